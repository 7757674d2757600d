"""Files as an engine takes them, one by one: told of as they are read, and named in what the engine refuses.

Invariant: batches are those of the file, in their order; an error is the engine's own, of its own class. The engine's
errors speak of rows of a step, so the place where the step began, as its source calls it, is put in front.

>>> import tempfile
>>> from ddflow.connectors.files import open_files
>>> from ddflow.errors import NullKey
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (path := Path(folder) / "a.csv").write_text("id\\n7")
...     given = open_files([path])
...     [batch.to_pylist() for batch in rows_of(given, path)]
...     try:
...         with within(given, FilePosition(path, 9)):
...             raise NullKey("rows for 'input'", "the key ['id'] is null in 1 rows, first [3]", "mend them")
...     except NullKey as error:
...         error.asked.removeprefix(folder)
[[{'id': 7}]]
"/a.csv, from row 9: rows for 'input'"
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import ddflow as dd
from ddflow.cli.options import Ask
from ddflow.cli.plan import INPUT
from ddflow.cli.progress import Tick
from ddflow.connectors.files import FilePosition
from ddflow.connectors.protocol import Source
from ddflow.engine.logs import MARKS
from ddflow.errors import DdflowError
from ddflow.tools.merge_on_read import take


def rows_of(
    given: Source[FilePosition], file: Path, tick: Tick = lambda rows, updates: None
) -> Iterator[pa.RecordBatch]:
    """The rows of one file of a source, each batch told of as it comes."""
    for batch, position in given.batches(after=FilePosition(file)):
        if batch.num_rows:
            tick(batch.num_rows, 0)
            yield batch
        if position.finished:
            return


def marked(ask: Ask, files: Sequence[Path]) -> list[Any]:
    """Files as parts of a log: of events, or, where that is asked for, of full contents."""
    return [dd.Full(file, ask.scope) if ask.whole else file for file in files]


def taken(engine: dd.Engine, part: Any, rows: pa.RecordBatchReader, time: int, epoch: int | None = None) -> dd.Step:
    """A file of epoch mode as one step.  ``part``: the file, as it is marked; ``rows``: what it holds."""
    return take(engine, INPUT, replace(part, rows=rows) if isinstance(part, MARKS) else rows, time, epoch)


@contextmanager
def within(given: Source[FilePosition], at: FilePosition) -> Iterator[None]:
    """Put the place in front of what the engine says of the rows from there on."""
    try:
        yield
    except DdflowError as error:
        if str(at.file) in error.asked:
            raise
        raise type(error)(f"{given.place(at)}: {error.asked}", error.found, error.remedy) from None
