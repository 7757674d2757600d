"""What the verbs that prove a state share: an input of the state, its log and a key of it.

Invariant: a log's columns are read as the types that the input declares, whatever their files would be guessed to be,
so that ``007`` of a text column is text on the command line too. A column may come in later files only, or not at
all. Nothing of a state is read here but its manifest.

>>> from ddflow.plan.spec import Upsert
>>> key_of("7,Bern", bind("v", pa.schema({"id": pa.int64(), "city": pa.string()}), Upsert(key=["id", "city"])))
{'id': 7, 'city': 'Bern'}
>>> key_of("00000000-0000-0000-0000-000000000007", bind("v", pa.schema({"id": pa.uuid()}), Upsert(key="id")))
{'id': UUID('00000000-0000-0000-0000-000000000007')}
>>> key_of("a=b", bind("v", pa.schema({"id": pa.string()}), Upsert(key="id")))
{'id': 'a=b'}
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import typer

from ddflow.cli.reading import rows_of
from ddflow.columns.names import did_you_mean
from ddflow.connectors.files import FilesSource, open_files
from ddflow.connectors.files.kinds import JSON, kind_of, listed
from ddflow.engine.logs import Full
from ddflow.engine.snapshot import found
from ddflow.errors import NotReadable
from ddflow.plan.bind import Bound, bind
from ddflow.plan.rebuild import inputs
from ddflow.storage.opening import opened_store


def input_of(state: str, name: str | None, trust: str) -> Bound:
    """An input of a state; the only one by default.  Raises `NotReadable`, and what opening raises."""
    with opened_store(state, trust=trust) as store:
        manifest = found(store)
    known = inputs(manifest.plan, store.where)
    if name is None and len(known) != 1:
        raise NotReadable(f"an input of {state}", f"it has {list(known)}", "say which: --input NAME")
    if name is not None and name not in known:
        raise NotReadable(f"the input {name!r} of {state}", "it has none of that name", did_you_mean(name, known))
    name = next(iter(known)) if name is None else name
    return bind(name, *known[name])


class LogFiles:
    """Files as the log of an input; `log_of` makes it.  ``files``: in their order.  ``rows``: in all, where known."""

    def __init__(self, sources: dict[Path, FilesSource]) -> None:
        self._sources, self.files = sources, list(sources)
        counts = [each.rows for each in sources.values()]
        self.rows = None if None in counts else sum(filter(None, counts))

    def reader(self, file: Path) -> pa.RecordBatchReader:
        """The rows of a file, of the columns that it has."""
        source = self._sources[file]
        return pa.RecordBatchReader.from_batches(source.schema, rows_of(source, file))

    def close(self) -> None:
        """Let go of all files.  Twice is harmless."""
        for each in self._sources.values():
            each.close()


def log_of(paths: Sequence[Path | str], bound: Bound) -> LogFiles:
    """Files as the log of an input.  The input's columns are the standard: a file may lack some, whichever it is.

    Raises what `open_files` raises.
    """
    return LogFiles({file: _of_input(file, bound) for file in listed(paths)})


def _of_input(file: Path, bound: Bound) -> FilesSource:
    """A file, of whose columns those of the input have its types."""
    every = kind_of(file).name == JSON  # which has the columns that it is asked for
    there = set() if every else set(open_files([file]).schema.names)
    types = {field.name: field.type for field in bound.schema if every or field.name in there}
    return open_files([file], types, bound.required)


def streamed(given: LogFiles, full: Sequence[str] | None, scope: str | None) -> Iterator[Any]:
    """A reader for each file, to be read one after the other, in a mark where that is full contents.

    ``full``, ``scope``: as in `marked`.
    """
    for part in marked(given.files, full, scope):
        if isinstance(part, Full):
            yield replace(part, rows=given.reader(part.rows))
        else:
            yield given.reader(part)


def marked(files: Sequence[Path], full: Sequence[str] | None, scope: str | None) -> list[Any]:
    """Files as parts of a log.  ``full``: names, folders or patterns of those that are full contents, of a ``scope``.

    O(files * names).  Raises `typer.BadParameter` for a name that is none of the files, and a scope of none.
    """
    if scope is not None and not full:
        raise typer.BadParameter("--scope is of full contents: name their files with --full")
    of = {name: [file for file in files if _is(file, name)] for name in full or ()}
    for name, these in of.items():
        if not these:
            raise typer.BadParameter(f"--full {name}: none of the files of the log is that")
    whole = {file for these in of.values() for file in these}
    return [Full(file, scope) if file in whole else file for file in files]


def _is(file: Path, name: str) -> bool:
    return Path(name) in (file, file.parent) or fnmatchcase(str(file), name) or fnmatchcase(file.name, name)


def key_of(text: str, bound: Bound) -> dict[str, Any]:
    """A key as it is written: ``7``, ``7,Bern`` or ``id=7,city=Bern``; quotes as in CSV.  Raises `NotReadable`."""
    names, asked = list(bound.spec.key), f"the key {text!r} of {bound.name!r}"
    try:
        parts = next(csv.reader([text], skipinitialspace=True), []) if len(names) > 1 else [text]
    except csv.Error as error:
        raise NotReadable(asked, str(error), "put a value with a line's end in quotes") from None
    pairs = [part.partition("=") for part in parts]
    if all(equals and name.strip() in names for name, equals, _ in pairs):
        given = {name.strip(): value for name, _, value in pairs}
    else:
        given = dict(zip(names, parts, strict=False)) if len(parts) == len(names) else {}
    if sorted(given) != sorted(names):
        raise NotReadable(asked, f"its columns are {names}", f"write {','.join(f'{name}=...' for name in names)}")
    out = {}
    for name in names:
        kind = bound.key_schema.field(name).type
        try:
            text = given[name]
            out[name] = UUID(text) if kind == pa.uuid() else pa.scalar(text).cast(kind).as_py()
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise NotReadable(asked, f"{given[name]!r} is no {kind} ({error})", "write a value of that type") from None
    return out
