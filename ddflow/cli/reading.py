"""Files as an engine takes them: told of as they are read, and named in what the engine refuses.

Invariant: batches are those of the file, in their order; an error is the engine's own, of its own class. The engine's
errors speak of rows of a step, so the file, and where the step began in it, is put in front.

>>> from ddflow.errors import NullKey
>>> with within(Path("a.csv"), 9):
...     raise NullKey("rows for 'input'", "the key ['id'] is null in 1 rows, first [3]", "mend them")
Traceback (most recent call last):
    ...
ddflow.errors.NullKey: a.csv, from row 9: rows for 'input': the key ['id'] is null in 1 rows, first [3]; mend them
"""

from __future__ import annotations

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
from ddflow.engine.logs import MARKS
from ddflow.errors import DdflowError
from ddflow.tools.merge_on_read import take


def ticked(batches: Iterator[pa.RecordBatch], tick: Tick) -> Iterator[pa.RecordBatch]:
    """The same batches, each told of as it comes."""
    for batch in batches:
        tick(batch.num_rows, 0)
        yield batch


def marked(ask: Ask, files: Sequence[Path]) -> list[Any]:
    """Files as parts of a log: of events, or, where that is asked for, of full contents."""
    return [dd.Full(file, ask.scope) if ask.whole else file for file in files]


def taken(engine: dd.Engine, part: Any, rows: pa.RecordBatchReader, time: int, epoch: int | None = None) -> dd.Step:
    """A file of epoch mode as one step.  ``part``: the file, as it is marked; ``rows``: what it holds."""
    return take(engine, INPUT, replace(part, rows=rows) if isinstance(part, MARKS) else rows, time, epoch)


@contextmanager
def within(file: Path, row: int = 0) -> Iterator[None]:
    """Put the file in front of what the engine says of its rows, and the row that it counts from."""
    try:
        yield
    except DdflowError as error:
        if str(file) in error.asked:
            raise
        where = f"{file}, from row {row:,}" if row else str(file)
        raise type(error)(f"{where}: {error.asked}", error.found, error.remedy) from None
