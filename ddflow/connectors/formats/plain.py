"""Decode messages whose value is a row, read the keys of messages, and write updates as messages.

`plain_json`, `custom`, `kcat` and `delta_cdf` are formats. `write` converts updates to the messages of a mode.

Guarantees: `kcat` returns the same events for a wrapped message as the inner format returns for the bare message.
``dd.formats.debezium(decimals="string")`` reads the messages of ``write(..., "debezium")``.

>>> updates = pa.table({"id": [1, 1], "n": [5, 6], "_time": [3, 3], "_diff": [-1, 1]})
>>> write(updates, "upsert", key="id").to_pylist()
[{'id': 1, 'n': 6, '_deleted': False}]
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DIFF, TIME, did_you_mean
from ddflow.columns.schema import cast_losslessly, check_values, decode_array, is_text, to_array
from ddflow.connectors.formats import row_columns
from ddflow.connectors.formats.base import DELETED, BadMessages, Format, Ints, MessageTarget, OnBad, Upserts
from ddflow.connectors.formats.cells import (
    BINARIES,
    MODES as DECIMAL_MODES,
    CellEncoding,
    build_json_shape,
    cast_cells,
    describe_unconvertible_cell,
)
from ddflow.connectors.formats.envelope import ParsedMessages, cast_column, parse_messages
from ddflow.connectors.formats.messages import POSITION, ROW, Messages, parse_integers
from ddflow.connectors.formats.parse import TEXT, WORDS, Bools, evaluate_sql_on_json, parse_objects, replace_cells
from ddflow.connectors.formats.row_columns import ExampleRows, Path
from ddflow.connectors.to_arrow import to_table
from ddflow.errors import BadMessage, ErrorText, Option, SchemaMismatch, SpecError, shorten


def read_key_cells(messages: Messages, rows: Any, target: MessageTarget, how: CellEncoding) -> dict[str, pa.Array]:
    """Return the key columns from the keys of messages; an empty dict if messages have no key.  O(bytes).

    >>> from ddflow.connectors.formats.base import MessageTarget
    >>> messages = Messages(pa.table({"value": ["", ""], "key": ['{"id": 7}', "8"]}), "'t'", 0)
    >>> target = MessageTarget("'t'", pa.schema({"id": pa.int64()}), ("id",), (), False, pa.schema([]))
    >>> read_key_cells(messages, np.arange(2), target, CellEncoding())["id"].to_pylist()
    [7, 8]
    """
    if messages.key is None or pat.is_null(messages.key.type):
        return {}
    keys = messages.key.take(pa.array(rows))
    exact = np.broadcast_to(messages.exact, messages.rows)[rows]
    inside = parse_messages(
        keys, {name: build_json_shape(target.columns.field(name).type) for name in target.key}, exact
    )
    out = {name: cast_column(inside, (), name, target.columns.field(name).type, how)[0] for name in target.key}
    if len(target.key) == 1 and not pat.is_struct(keys.type):
        (name,) = target.key
        left = np.flatnonzero(np.asarray(out[name].is_null()) & np.asarray(keys.is_valid()))
        if left.size:
            out[name] = _read_scalar_keys(out[name], keys, left, target.columns.field(name).type, how)
    return out


def _read_scalar_keys(made: pa.Array, keys: pa.Array, left: Any, kind: pa.DataType, how: CellEncoding) -> pa.Array:
    """Read keys that are not objects: a JSON scalar, plain text, or a scalar payload with a schema."""
    some = keys.take(pa.array(left))
    objects_here = pc.starts_with(pc.utf8_trim_whitespace(some), "{")
    body, _ = parse_objects(some, {"payload": WORDS})
    wrapped = pc.struct_field(body, "payload")
    plain = pc.if_else(objects_here, pa.scalar(None, some.type), some)
    value, _ = parse_objects(plain, WORDS)
    cells = pc.coalesce(wrapped, value, plain)
    found, _ = cast_cells(cells, kind, how)
    return replace_cells(made, left, found)


@dataclass(frozen=True, repr=False, kw_only=True)
class plain_json(Format):
    """Format of messages whose value is a row, as a JSON object.  A message without a value deletes its key.

    Parameters
    ----------
    decimals, binary, on_bad
        As in `debezium`.

    Raises
    ------
    SpecError
        For an invalid option.

    Examples
    --------
    >>> plain_json(on_bad="drop")
    dd.formats.plain_json(on_bad='drop')

    >>> from ddflow.connectors.formats.base import MessageTarget, decode_messages, build_events_schema
    >>> format, columns = plain_json(), pa.schema({"id": pa.int64(), "city": pa.string()})
    >>> target = MessageTarget("'people'", columns, ("id",), (), True, build_events_schema(format, columns, True))
    >>> came = pa.table({"key": ["1", "2"], "value": ['{"id": 1, "city": "Bern"}', None], "offset": [7, 8]})
    >>> for row in decode_messages(format, came, target).rows.to_pylist():
    ...     print(row)
    {'id': 1, 'city': 'Bern', '_position': 7, '_deleted': False}
    {'id': 2, 'city': None, '_position': 8, '_deleted': True}
    """

    decimals: Literal["precise", "string", "double"] = "string"
    binary: Literal["base64", "base64-url-safe", "hex"] = "base64"

    kind: ClassVar[str] = "plain_json"
    order: ClassVar[Any] = ((POSITION, pa.int64()),)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_option_values(decimals=DECIMAL_MODES, binary=BINARIES)

    row_path: ClassVar[Path] = ()

    def examples(self, values: pa.Array) -> ExampleRows:
        """Return the messages themselves as example rows.  See `Format`."""
        return row_columns.find_example_rows(values, ["$"])

    def upserts(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> Upserts:
        """Convert messages to upserts.  See `Format`."""
        how = CellEncoding(decimals=self.decimals, binary=self.binary)
        inside = parse_messages(
            messages.value, {field.name: build_json_shape(field.type) for field in target.columns}, messages.exact
        )
        bad.mark(np.flatnonzero(inside.wrong & ~bad.mask), "it is not valid JSON")
        deleted = np.asarray(inside.body.is_null())
        at = np.arange(messages.rows)
        columns = {field.name: read_column_at_path(inside, (), field, how, at, bad) for field in target.columns}
        lacking = np.zeros(messages.rows, np.bool_)
        for name in target.key:
            lacking |= np.asarray(columns[name].is_null())
        if (rows := np.flatnonzero(lacking)).size:
            _fill_missing_keys(columns, rows, messages, target, how)
        mark_non_objects(inside.body, messages, deleted, bad)
        for name in target.key:
            none = np.flatnonzero(np.asarray(columns[name].is_null()) & deleted)
            bad.mark(none, f"it has no value, and its key lacks {name!r}")
        return Upserts(columns, deleted, {POSITION: get_offsets(messages)} if target.ordered else {})


def _fill_missing_keys(
    columns: dict[str, pa.Array], rows: Ints, messages: Messages, target: MessageTarget, how: CellEncoding
) -> None:
    """Fill missing key columns from the keys of the messages."""
    for name, found in read_key_cells(messages, rows, target, how).items():
        lacking = columns[name].take(pa.array(rows)).is_null()
        columns[name] = replace_cells(columns[name], rows[np.asarray(lacking)], found.filter(lacking))


def mark_non_objects(body: pa.Array, messages: Messages, deleted: Any, bad: BadMessages) -> None:
    """Mark messages as bad if their JSON is not an object.

    Without the mark, a message that is not an object would become a row of nulls.
    """
    if not is_text(messages.value.type) or not len(body):
        return
    empty = ~deleted
    for cells in body.flatten():
        empty &= np.asarray(cells.is_null())
    rows = np.flatnonzero(empty)
    if rows.size:
        objects_here = pc.starts_with(pc.utf8_trim_whitespace(messages.value.take(pa.array(rows))), "{")
        bad.mark(rows[~np.asarray(objects_here)], "it is not a JSON object")


def read_column_at_path(
    inside: ParsedMessages,
    path: Sequence[str],
    field: pa.Field,
    usual: CellEncoding,
    at: Ints,
    bad: BadMessages,
    ignored: Bools | None = None,
) -> pa.Array:
    """Return a column below a path in its declared type.  Mark a message as bad if its cell does not fit the type.

    ``at``: the index of the message of each cell.  ``ignored``: marks cells that may be invalid without an error.
    """
    made, wrong = cast_column(inside, path, field.name, field.type, usual)
    if wrong is not None:
        rows = np.flatnonzero(wrong if ignored is None else wrong & ~ignored)
        mark_bad_cell_messages(
            inside.get_cells(*path, field.name),
            rows,
            field,
            at,
            bad,
            inside.build_encoding_lookup(path, field.name, usual),
        )
    return made


def mark_bad_cell_messages(
    cells: pa.Array, rows: Ints, field: pa.Field, at: Ints, bad: BadMessages, how: Callable[[int], CellEncoding]
) -> None:
    """Mark messages as bad if their cells do not fit the type.

    ``at``: the index of the message of each cell.  ``how``: a function that returns the encoding of a cell for its
    index.
    """

    def reason(n: int) -> str:
        cell, why = describe_unconvertible_cell(cells[int(rows[n])].as_py(), field.type, how(int(rows[n])))
        bad.narrow[int(at[rows[n]])] = (field, cell.strip("'"))
        return f"column {field.name!r} is {shorten(cell, 80)}, {why}"

    bad.mark(at[rows], reason)


def _cast_function_column(column: pa.ChunkedArray, field: pa.Field, asked: str) -> pa.Array:
    """Cast a column that a user's function returned to the declared type.

    Text is parsed like a cell of a message.  Raises `BadMessage`.
    """
    cells, kind = decode_array(to_array(column)), field.type
    try:
        check_values(pa.table({field.name: cells}), asked)
        if not is_text(cells.type) or is_text(kind):
            return cast_losslessly(column, field, asked)
    except SchemaMismatch as error:
        found = f"its function returned {field.name!r} as {column.type}: {error.found}"
        raise BadMessage(asked, found, f"return {kind}; nothing was ingested") from None
    made, wrong = cast_cells(cells, kind, CellEncoding(decimals="string"))
    if wrong is not None:
        text, why = describe_unconvertible_cell(
            cells[int(np.argmax(wrong))].as_py(), kind, CellEncoding(decimals="string")
        )
        found = f"its function returned {field.name!r} as {column.type}: {shorten(text, 80)}, {why}"
        raise BadMessage(asked, found, f"return {kind}; nothing was ingested")
    return made


def get_offsets(messages: Messages) -> pa.Array:
    """Return the offsets of messages; nulls if the messages have no offsets."""
    return pa.nulls(messages.rows, pa.int64()) if messages.offset is None else messages.offset


@dataclass(frozen=True, repr=False, kw_only=True)
class custom(Format):
    """Format of messages that your own function decodes.

    Parameters
    ----------
    function : callable
        Takes a table of messages and returns rows, as any object that supports Arrow: the declared columns, and
        optionally ``_deleted`` (true for a row that deletes its key) and ``_position`` (an integer that orders events;
        by default the offset).  It must return the same rows for the same messages.

    Raises
    ------
    SpecError
        For an object that is not callable.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> custom(lambda messages: {"line": messages["value"]}).kind
    'custom'
    """

    function: Callable[[pa.Table], Any] = field(kw_only=False)
    on_bad: OnBad = field(default="stop", init=False)

    kind: ClassVar[str] = "custom"
    order: ClassVar[Any] = ((POSITION, pa.int64()),)

    def __post_init__(self) -> None:
        if not callable(self.function):
            found = f"function={self.function!r:.99}"
            raise SpecError("dd.formats.custom", found, "pass a function that takes a table of messages")

    def needs(self) -> None:
        """Do nothing, because the format needs only its function."""

    def upserts(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> Upserts:
        """Convert messages to upserts.  Raises `BadMessage` if the function fails or returns invalid rows."""
        asked = f"the format of {target.what}"
        try:
            made = to_table(self.function(messages.table), asked, target.columns)
        except Exception as error:
            found = f"its function raised {type(error).__name__}: {shorten(str(error))}"
            raise BadMessage(asked, found, "fix the function or the messages; nothing was ingested") from error
        known = {**{field.name: field.type for field in target.columns}, POSITION: pa.int64(), DELETED: pa.bool_()}
        columns = {
            name: _cast_function_column(made.column(name), pa.field(name, kind), asked)
            if name in made.column_names
            else pa.nulls(made.num_rows, kind)
            for name, kind in known.items()
        }
        if more := [name for name in made.column_names if name not in known]:
            raise BadMessage(
                asked, f"its function returned the columns {more}", f"return only columns of {list(known)}"
            )
        if POSITION not in made.column_names and made.num_rows == messages.rows:
            columns[POSITION] = get_offsets(messages)
        deleted = np.asarray(pc.fill_null(columns.pop(DELETED), False))
        position = columns.pop(POSITION)
        return Upserts(columns, deleted, {POSITION: position} if target.ordered else {}, np.arange(made.num_rows))


_LINE: Final = dict.fromkeys(("topic", "partition", "offset", "key", "payload"), TEXT)
_USUAL: Final = r'"key"\s*:\s*("|null).*"payload"\s*:\s*("|null)'
"""Pattern for the usual lines, in which the key and the payload are strings or null."""
_NESTED: Final = r'"(payload|key)"\s*:\s*[-0-9\[{]'
_FEED: Final = ("_change_type", "_commit_version", "_commit_timestamp")
_CHANGES: Final = ("insert", "update_postimage", "update_preimage", "delete")


@dataclass(frozen=True, repr=False, kw_only=True)
class kcat(Format):
    """Format of the output of ``kcat -J``.  Each line wraps a message of another format.

    Parameters
    ----------
    of : Format
        The format of the wrapped messages.

    Raises
    ------
    SpecError
        For an object that is not a format.

    Examples
    --------
    >>> kcat(plain_json())
    dd.formats.kcat(dd.formats.plain_json())
    >>> from ddflow.connectors.formats.base import decode_messages, build_events_schema
    >>> format, columns = kcat(plain_json()), pa.schema({"id": pa.int64(), "v": pa.string()})
    >>> target = MessageTarget("'o'", columns, ("id",), (), True, build_events_schema(format, columns, True))
    >>> line = '{"topic": "t", "partition": 0, "offset": 7, "key": "1", "payload": "{\\\\"v\\\\": \\\\"x\\\\"}"}'
    >>> decode_messages(format, pa.table({"value": [line]}), target).rows.to_pylist()
    [{'id': 1, 'v': 'x', '_position': 7, '_deleted': False}]
    """

    of: Format = field(kw_only=False)
    on_bad: OnBad = field(default="stop", init=False)

    kind: ClassVar[str] = "kcat"

    def __post_init__(self) -> None:
        if not isinstance(self.of, Format) or isinstance(self.of, kcat):
            raise SpecError("dd.formats.kcat", f"of= is {self.of!r:.99}", "pass the format of the wrapped messages")
        object.__setattr__(self, "on_bad", self.of.on_bad)
        object.__setattr__(self, "order", self.of.order)

    @property
    def leaves_out(self) -> bool:
        """Whether the inner format can omit cells."""
        return self.of.leaves_out

    @property
    def of_tables(self) -> bool:
        """Whether messages of the inner format can name their table."""
        return self.of.of_tables

    @property
    def asked(self) -> str | None:
        """Table that the options of the inner format name."""
        return self.of.asked

    def upserts(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> Upserts:
        """Unwrap the messages, and convert them to upserts with the inner format."""
        value = messages.value
        read, wrong = parse_objects(value, _LINE, _mark_nested_json_lines(value))
        lines = {name: pc.struct_field(read, name) for name in _LINE}
        bad.mark(np.flatnonzero(wrong & ~bad.mask), "it is not valid JSON")
        lost = np.asarray(lines["offset"].is_null()) & ~bad.mask
        bad.mark(np.flatnonzero(lost), "it is not a line of kcat -J: it has no 'offset'")
        inner = {"value": lines["payload"], "key": lines["key"], "topic": lines["topic"]}
        inner |= {name: parse_integers(lines[name]) for name in ("partition", "offset")}
        good = np.flatnonzero(~bad.mask)
        table = pa.table(inner).take(pa.array(good))
        within, found = Messages(table, messages.what, messages.first), BadMessages(good.size)
        within.exact = np.broadcast_to(messages.exact, messages.rows)[good]
        made = self.of.upserts(within, target, found)
        for row, reason in found.reasons.items():
            bad.mark([good[row]], f"{within.locate_message(row)}: {reason}")
        bad.narrow |= {int(good[row]): narrow for row, narrow in found.narrow.items()}
        at = good if made.at is None else good[made.at]
        cuts = tuple(each._replace(row=int(good[each.row])) for each in made.truncates)
        return made._replace(at=at, truncates=cuts)

    def columns(self, messages: Messages, known: Collection[str] = ()) -> dict[str, int]:
        """Return the columns of the rows in the wrapped messages.  See `Format`."""
        return self.of.columns(self._extract_payloads(messages), known)

    def kinds(self, messages: Messages, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the types of columns in the wrapped messages.  See `Format`."""
        return self.of.kinds(self._extract_payloads(messages), names)

    def _extract_payloads(self, messages: Messages) -> Messages:
        payload, _ = evaluate_sql_on_json(messages.value, "json_extract_string(v, '$.payload')")
        return Messages(pa.table({"value": payload}), messages.what, messages.first)

    def examples(self, values: pa.Array) -> ExampleRows | None:
        """Return example rows from the wrapped messages.  See `Format`."""
        return self.of.examples(pc.struct_field(parse_objects(values, _LINE)[0], "payload").drop_null())

    def to_json(self) -> dict[str, Any]:
        """Return the kind, and the JSON of the inner format."""
        return {"kind": self.kind, "of": self.of.to_json()}

    def __repr__(self) -> str:
        """Return the call that creates the format."""
        return f"dd.formats.kcat({self.of!r})"


def _mark_nested_json_lines(lines: pa.Array) -> Bools:
    """Mark the lines with a key or payload that is neither a string nor null.  O(bytes)."""
    found: Bools = ~np.asarray(pc.fill_null(pc.match_substring_regex(lines, _USUAL), True))
    rows = np.flatnonzero(found)
    found[rows] = np.asarray(pc.match_substring_regex(lines.take(pa.array(rows)), _NESTED))
    return found


@dataclass(frozen=True, repr=False, kw_only=True)
class delta_cdf(Format):
    """Format of rows from the change data feed of a Delta Lake table (``load_cdf`` or ``readChangeFeed``).

    Parameters
    ----------
    on_bad : {"stop", "drop"}
        As in `debezium`.

    Raises
    ------
    SpecError
        For an invalid option.

    Notes
    -----
    Events are ordered by ``_commit_version``.  `ddflow.delta_cdf` reads the same rows without a key, as differences.

    Examples
    --------
    >>> delta_cdf()
    dd.formats.delta_cdf()
    """

    kind: ClassVar[str] = "delta_cdf"
    order: ClassVar[Any] = ((POSITION, pa.int64()), (ROW, pa.int64()))
    of_rows: ClassVar[bool] = True
    row_path: ClassVar[Path] = ()

    def needs(self) -> None:
        """Do nothing, because rows with types need no JSON parser."""

    def columns(self, messages: Messages, known: Collection[str] = ()) -> dict[str, int]:
        """Return the columns of the rows, without the columns of the change feed.  See `Format`."""
        return {name: row for name, row in super().columns(messages, known).items() if name not in _FEED}

    def upserts(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> Upserts:
        """Convert rows of a change feed to upserts.  See `Format`."""
        rows = messages.value
        names = [field.name for field in rows.type]
        if lost := [name for name in ("_change_type", "_commit_version", *target.key) if name not in names]:
            remedy = "read the table with its change feed: load_cdf, or readChangeFeed"
            raise SchemaMismatch(f"rows for {messages.what}", f"the columns {lost} are missing", remedy)
        change = pc.struct_field(rows, "_change_type").cast(pa.string())
        known = np.asarray(pc.is_in(change, pa.array(_CHANGES)))
        bad.mark(np.flatnonzero(~known), f"its '_change_type' is not one of {list(_CHANGES)}")
        deleted = ~np.asarray(pc.is_in(change, pa.array(_CHANGES[:2])))
        columns, at = {}, np.arange(messages.rows)
        for each in target.columns:
            if each.name not in names:
                columns[each.name] = pa.nulls(messages.rows, each.type)
                continue
            cells = pc.struct_field(rows, each.name)
            columns[each.name], wrong = cast_cells(cells, each.type, CellEncoding())
            if wrong is not None:
                mark_bad_cell_messages(cells, np.flatnonzero(wrong), each, at, bad, lambda _: CellEncoding())
        version = pc.struct_field(rows, "_commit_version").cast(pa.int64())
        order = {POSITION: version, ROW: pa.array((~deleted).astype(np.int64))} if target.ordered else {}
        return Upserts(columns, deleted, order)


MODES = ("debezium", "upsert", "changelog", "retract")


def write(
    updates: Any,
    mode: Literal["debezium", "upsert", "changelog", "retract"],
    *,
    key: str | Sequence[str] | None = None,
    output: str = "",
    epoch: int | None = None,
    committed: datetime | None = None,
) -> pa.Table:
    """Convert updates to Debezium messages, or to the columns of another mode.

    Parameters
    ----------
    updates : table or any object that supports Arrow
        Updates as a step returns them: the row, ``_time`` and ``_diff``.  They count as one epoch, so a row that was
        deleted and inserted again is not written.
    mode : {"debezium", "upsert", "changelog", "retract"}
        "debezium": ``key`` and ``value``, as JSON without a schema.  "upsert": the row and ``_deleted``, which is true
        for a deleted key; such a row has null outside its key.  "changelog" and "retract": as in `ddflow.sinks`.
    key : str or sequence of str, optional
        The columns that identify a row at the end of the epoch.  "upsert" requires a key.  With a key, "debezium" and
        "changelog" write updates instead of deletes and inserts.
    output : str
        The table that messages name.
    epoch : int, optional
        The epoch in messages and ``_commit_version``.  By default the greatest ``_time``.
    committed : datetime, optional
        The ``_commit_timestamp``, with a time zone.  By default null, so that the same updates give the same rows.

    Returns
    -------
    pyarrow.Table
        The messages or rows.  O(rows).

    Raises
    ------
    SpecError
        For an unknown mode, missing columns, and "upsert" without a key.
    NotUnique
        If a key has several rows and the mode is "upsert".
    CountOverflow
        If a sum of diffs exceeds 64 bits.

    Notes
    -----
    Debezium: ``op`` is c, u or d, and an update has ``before`` and ``after``.  Decimals, dates and times are text, and
    bytes are base64.  ``source`` has ``connector`` "ddflow", the output and the epoch. Messages include no tombstones
    and no ``ts_ms``, so equal updates give equal bytes.  To read messages, use ``debezium(decimals="string")``.

    Examples
    --------
    >>> updates = pa.table({"id": [7], "_time": [3], "_diff": [1]})
    >>> write(updates, "debezium", key="id", output="ids")["value"][0].as_py()
    '{"before":null,"after":{"id":7},"source":{"connector":"ddflow",...,"table":"ids","epoch":3},"op":"c"}'
    """
    from ddflow.connectors.modes import merge_upserts_and_deletes, to_table_changes  # `modes` imports the formats

    asked = f"dd.formats.write(mode={mode!r})"
    if mode not in MODES:
        raise SpecError(asked, "there is no such mode", f"use one of {list(MODES)}")
    by = None if key is None else (key,) if isinstance(key, str) else tuple(key)
    table = _build_updates_table(updates, by or (), asked)
    if mode == "upsert" and by is None:
        raise SpecError(asked, "it has no key", ErrorText("pass ", Option("key"), ", the columns that identify a row"))
    if epoch is None:
        epoch = int(np.max(np.asarray(table.column(TIME)).astype(np.int64), initial=0))
    secret = Secret.fresh()
    at = None if committed is None else round(committed.timestamp() * 1000)
    made = to_table_changes(mode, table, by, epoch, secret, output, at)
    return made.rows if by is None or made.gone is None else merge_upserts_and_deletes(made, by, secret)


def _build_updates_table(updates: Any, by: Sequence[str], asked: str) -> pa.Table:
    """Convert updates to a table.  Raises `SpecError` if columns are missing."""
    table = to_table(updates, "dd.formats.write", pa.schema([]))
    for name in (TIME, DIFF, *by):
        if name not in table.schema.names:
            remedy = ErrorText(
                "pass the updates that a step returned, and some of their columns as ",
                Option("key"),
                f"; {did_you_mean(name, table.schema.names)}",
            )
            raise SpecError(asked, f"the updates have no column {name!r}", remedy, column=name)
    return table
