"""Find an input of a state, open its log, and parse a key, for the verbs ``verify``, ``why`` and ``migrate``.

Guarantees: the columns of a log have the types that the input declares, so ``007`` in a text column is text. A column
of the input can be missing in the first files of a log, or in all files. Only the manifest of the state is read.

>>> from ddflow.plan.inputs.spec import Upsert
>>> schema = pa.schema({"id": pa.int64(), "city": pa.string()})
>>> parse_key("7,Bern", bind_upserts("v", schema, Upsert(key=["id", "city"])))
{'id': 7, 'city': 'Bern'}
>>> parse_key("00000000-0000-0000-0000-000000000007", bind_upserts("v", pa.schema({"id": pa.uuid()}), Upsert(key="id")))
{'id': UUID('00000000-0000-0000-0000-000000000007')}
>>> parse_key("id=a=b", bind_upserts("v", pa.schema({"id": pa.string()}), Upsert(key="id")))
{'id': 'a=b'}
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any
from uuid import UUID

import pyarrow as pa
import typer

from ddflow.cli.input_files import read_rows
from ddflow.cli.say import Tick, say, show_amount_progress
from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import is_text
from ddflow.connectors.files import AS_USUAL, FileOptions, MultiFileReader, open_files
from ddflow.connectors.files.kinds import COLUMNAR, MESSAGES
from ddflow.engine.lineage.log_parts import Full
from ddflow.engine.snapshot import find_version
from ddflow.errors import NotReadable, SchemaMismatch
from ddflow.plan.inputs.bind import BoundUpserts, bind_upserts
from ddflow.plan.text.codec import read_bindings
from ddflow.storage.opening import open_existing_store


def find_input(state: str, name: str | None, trust: str) -> BoundUpserts:
    """Find an input of a state by name.

    Without a name, the state must have a single input. Raises `NotReadable`, and the errors of opening a state.
    """
    with open_existing_store(state, trust=trust) as store:
        manifest = find_version(store)
    known = read_bindings(manifest.plan, store.where)
    if name is None and len(known) != 1:
        raise NotReadable(f"an input of {state}", f"it has the inputs {list(known)}", "choose one: --input NAME")
    if name is not None and name not in known:
        raise NotReadable(
            f"the input {name!r} of {state}", "there is no such input", did_you_mean(name, known), input=name
        )
    name = next(iter(known)) if name is None else name
    bound = known[name]
    if not isinstance(bound, BoundUpserts):
        why = "it receives differences, which have no keys"
        raise NotReadable(f"the input {name!r} of {state}", why, "choose an input of upserts: --input NAME", input=name)
    return bind_upserts(name, bound.schema, bound.spec, bound.format)


def open_log(paths: Sequence[str], bound: BoundUpserts, how: FileOptions = AS_USUAL) -> MultiFileReader:
    """Open files as the log of an input, with the columns of the input. Raises like `open_files`.

    A file with another column is refused. If the input receives messages, each line of a text file is a message, and
    Parquet or Arrow files have the columns of messages.
    """
    if bound.format is not None and not bound.format.of_rows:
        columnar = [path for path in paths if path.lower().endswith(COLUMNAR)]
        kind = how.dialect.kind or (None if columnar else MESSAGES)
        return open_files(paths, how=replace(how, dialect=how.dialect._replace(kind=kind)))
    types = dict(zip(bound.schema.names, bound.schema.types, strict=True))
    given = open_files(paths, types, bound.required_columns, bound.schema, how)
    if more := [name for name in given.schema.names if name not in types]:
        found = f"{given.changes.new[more[0]]} has a column {more[0]!r}, but the state does not"
        raise SchemaMismatch(f"the log of {bound.name!r}", found, did_you_mean(more[0], types))
    return given


def stream_log(
    given: MultiFileReader, full: Sequence[str] | None, scope: str | None, shown: Tick = lambda rows: None
) -> Iterator[Any]:
    """Yield a reader for each file, to be read in order. A reader of full contents is wrapped in `Full`.

    ``full``, ``scope``: as in `mark_full_content_files`. ``shown``: called with the number of rows read since its last
    call.
    """
    for part in mark_full_content_files(given.files, full, scope):
        file = part.rows if isinstance(part, Full) else part
        rows = pa.RecordBatchReader.from_batches(
            given.columns(file), read_rows(given, file, lambda rows, _: shown(rows))
        )
        yield replace(part, rows=rows) if isinstance(part, Full) else rows


def mark_full_content_files(files: Sequence[str], full: Sequence[str] | None, scope: str | None) -> list[Any]:
    """Mark those files of a log that hold full contents of a ``scope``.

    ``full`` gives their names, folders or patterns.

    O(files * names). Raises `typer.BadParameter` for a name that matches no file, and for a scope without files.
    """
    if scope is not None and not full:
        raise typer.BadParameter("--scope works only for full contents: name their files with --full")
    of = {name: [file for file in files if _matches_name(file, name)] for name in full or ()}
    for name, these in of.items():
        if not these:
            raise typer.BadParameter(f"--full {name}: no file of the log matches it")
    whole = {file for these in of.values() for file in these}
    return [Full(file, scope) if file in whole else file for file in files]


def _matches_name(file: str, name: str) -> bool:
    path = PurePath(file)
    return PurePath(name) in (path, path.parent) or fnmatchcase(file, name) or fnmatchcase(path.name, name)


def parse_key(text: str, bound: BoundUpserts) -> dict[str, Any]:
    """Parse a key: ``7``, ``7,Bern`` or ``id=7,city=Bern``.

    Quotes have the same meaning as in CSV. Raises `NotReadable`.
    """
    names, asked = list(bound.spec.key), f"the key {text!r} of {bound.name!r}"
    try:
        parts = next(csv.reader([text], skipinitialspace=True), []) if len(names) > 1 else [text]
    except csv.Error as error:
        raise NotReadable(asked, str(error), "put a value with a line break in quotes") from None
    pairs = [part.partition("=") for part in parts]
    if all(equals and name.strip() in names for name, equals, _ in pairs):
        given = {name.strip(): value for name, _, value in pairs}
    else:
        given = dict(zip(names, parts, strict=False)) if len(parts) == len(names) else {}
    _refuse_misspelled_key(asked, pairs, names, bound)
    if sorted(given) != sorted(names):
        raise NotReadable(asked, f"the key columns are {names}", f"write {','.join(f'{name}=...' for name in names)}")
    try:
        return {name: parse_value(given[name], bound.key_schema.field(name).type, asked) for name in names}
    except NotReadable:
        wrong = [name.strip() for name, equals, _ in pairs if equals and name.strip() not in names]
        if not wrong:
            raise
        raise NotReadable(
            asked, f"there is no key column {wrong[0]!r}", did_you_mean(wrong[0], names), column=wrong[0]
        ) from None


def _refuse_misspelled_key(
    asked: str, pairs: Sequence[tuple[str, str, str]], names: Sequence[str], bound: BoundUpserts
) -> None:
    """For a text key ``id``, refuse ``idd=7``, because it looks like a mistake.

    If any other text contains "=", report that the whole text is read as a value of the key.
    """
    name = pairs[0][0].strip()
    if len(names) > 1 or not pairs[0][1] or name in names or not is_text(bound.key_schema.field(0).type):
        return
    near = did_you_mean(name, names)
    if near.startswith("did you mean") or name in bound.schema.names:
        remedy = f"{near}; if this text is the value, write {names[0]}={name}={pairs[0][2]}"
        raise NotReadable(asked, f"there is no key column {name!r}", remedy, column=name)
    say(f"{''.join(pairs[0])!r} is read as a value of the key {names[0]!r}", err=True)


def parse_values(words: Sequence[str], schema: pa.Schema, asked: str) -> dict[str, Any]:
    """Parse values with their columns, written as ``city=Bern``. An empty value is null. Raises `NotReadable`."""
    out = dict[str, Any]()
    for word in words:
        name, _, text = word.partition("=")
        if name not in schema.names:
            raise NotReadable(asked, f"there is no column {name!r}", did_you_mean(name, schema.names), column=name)
        out[name] = parse_value(text, schema.field(name).type, asked) if text else None
    return out


def parse_value(text: str, kind: pa.DataType, asked: str) -> Any:
    """Parse a value of a type. Raises `NotReadable`."""
    try:
        return UUID(text) if kind == pa.uuid() else pa.scalar(text).cast(kind).as_py()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise NotReadable(asked, f"{text!r} is not a valid {kind} ({error})", "write a value of that type") from None


class FilesLog:
    """Files that form a log. Each iteration reads the files again, and shows the progress on a terminal.

    ``given``, ``full``, ``scope``: as in `stream_log`.
    """

    def __init__(self, given: MultiFileReader, full: Sequence[str] | None, scope: str | None) -> None:
        self.how = given, full, scope

    def __iter__(self) -> Iterator[Any]:
        with show_amount_progress("reading the log") as tick:
            yield from stream_log(*self.how, tick)
