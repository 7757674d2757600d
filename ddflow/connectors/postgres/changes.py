"""Read tables as wal2json messages: copies of all rows in a snapshot, and complete transactions from a slot.

Guarantees: a peek does not advance the slot, so peeks return the same changes until `ReplicationSlot.advance_slot`.
wal2json 2.6 and later versions write numbers as text, so NaN and infinities keep their value. Limits: older versions of
wal2json write null for NaN and infinities. In a column that is declared not null, a null that stands for NaN or an
infinity ends the run. For a nullable column, ddflow looks up some rows, and warns once. ddflow does not notice a NaN
that was replaced before the look-up.

>>> looked = TableMetadata([], ["x"], ["x"], 9, {"x": 1}, 1)
>>> build_wal2json_options({SourceTable("public", "orders", "orders"): looked}, timed=False)["add-tables"]
'public.orders'
"""

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.names import quote_name
from ddflow.connectors.api import Polled, UndeclaredColumn
from ddflow.connectors.formats.base import OWN
from ddflow.connectors.formats.messages import POSITION, ROW
from ddflow.connectors.formats.parse import TEXT, parse_objects
from ddflow.connectors.formats.row_columns import parse_sql_type
from ddflow.connectors.postgres.catalog import (
    NEWER,
    SourceTable,
    TableMetadata,
    build_json_column_sql,
    build_message_batch,
    fill_dropped_columns,
    filter_messages_with_null,
    parse_lsn,
    quote_literal,
    read_catalog_columns,
    refuse_row_level_security,
    stream_rows,
)
from ddflow.connectors.postgres.sink import import_psycopg
from ddflow.errors import UnreadableInput

OPTION: Final = "numeric-data-types-as-string"
"""Option of wal2json that writes numbers as text."""
SAMPLE: Final = 1000
"""Largest number of rows with a null that one look-up covers, for each column."""


class NonFiniteNumbers:
    """Handler of NaN and infinities in messages.

    ``as_text``: whether to request numbers as text.  ``nulls``: collected messages with a null, by table and column.

    >>> numbers, of = NonFiniteNumbers(), SourceTable("public", "t", "t")
    >>> numbers.build_text_options([looked := TableMetadata([], [], ["v"], 9, {"id": 1, "v": 2}, 2)])
    {'numeric-data-types-as-string': 'true'}
    >>> numbers.as_text, cell = False, '{"name":"%s","type":"%s","value":%s}'
    >>> cells = ",".join([cell % ("id", "integer", 7), cell % ("v", "double precision", "null")])
    >>> numbers.collect_null_messages(pa.array([f'{{"action":"I","columns":[{cells}]}}']), of, looked)
    >>> parse_key_values(numbers.nulls[of, "v"], ["id"])
    (['integer'], [['7']])
    """

    def __init__(self) -> None:
        self.as_text, self.nulls = True, dict[tuple[SourceTable, str], list[str]]()
        self._warned = set[tuple[SourceTable, str]]()

    def build_text_options(self, looked: Iterable[TableMetadata]) -> dict[str, str]:
        """Return the options of wal2json that request numbers as text; {} if no table needs these options."""
        return {OPTION: "true"} if self.as_text and any(each.lossy for each in looked) else {}

    def detect_text_refusal(self, error: Exception) -> bool:
        """Return whether a server refused to write numbers as text.

        After a refusal, later reads do not request text.
        """
        if not self.as_text or OPTION not in str(error):
            return False
        self.as_text = False
        return True

    def collect_null_messages(self, text: pa.Array, table: SourceTable, looked: TableMetadata) -> None:
        """Collect messages with a null that may be NaN or infinite, up to `SAMPLE` for each column.

        O(bytes) for each column.
        """
        for name in () if self.as_text else looked.lossy:
            if name not in looked.certain and (table, name) not in self._warned:
                kept = self.nulls.setdefault((table, name), [])
                if len(kept) < SAMPLE:
                    kept += filter_messages_with_null(text, name).slice(0, SAMPLE - len(kept)).to_pylist()

    def replace_nonfinite_numbers(
        self, text: pa.Array, table: SourceTable, looked: TableMetadata, key: Sequence[str]
    ) -> pa.Array:
        """Replace NaN and infinities with null in those columns of messages whose declared type has neither.

        O(bytes) for each column.  Raises `UnreadableInput` if Postgres declares the column not null, even if wal2json
        itself wrote the null.
        """
        for name in looked.certain:
            if len(lost := filter_messages_with_null(text, name, ',"optional":false')):
                found = f"wal2json wrote null for {name!r}, which is declared not null: it is NaN or infinite"
                raise _build_never_null_error(table, looked, name, f"{found}{_describe_row(lost[0].as_py(), key)}")
        for name, kind in looked.exact.items():
            cell = f'({{"name" ?: ?{re.escape(json.dumps(name, ensure_ascii=False))}, ?'
            cell += '(?:"type":"[^"]*",)?"value" ?: ?)"(-?(?:NaN|Infinity))"'
            lost = text.filter(pc.match_substring_regex(text, cell))
            if not len(lost):
                continue
            text = pc.replace_substring_regex(text, cell, r"\1null")
            # Warn only of new values, because an earlier message contained each old value.
            lost = pc.replace_substring_regex(lost, r',"identity":\[.*$', "")
            lost = lost.filter(pc.match_substring_regex(lost, cell))
            if len(lost):
                message = lost[0].as_py()
                row = _describe_row(message, key)
                (_, value), *_ = re.findall(cell, message)
                if name in looked.certain:
                    found = f"{name!r} is {value}{row}, which {kind} cannot hold, and it is declared not null"
                    raise _build_never_null_error(table, looked, name, found)
                self._warn_of_null_once(table, looked, name, f"{value}{row}")
        return text

    def _warn_of_null_once(self, table: SourceTable, looked: TableMetadata, name: str, found: str) -> None:
        """Warn, once for each column, that a value became null."""
        if (table, name) not in self._warned:
            self._warned.add((table, name))
            kind = looked.exact.get(name)
            why = f"because wal2json wrote null: {NEWER}" if kind is None else f"because {kind} cannot hold it"
            why += "" if kind is None else "; to keep it, create a new state that declares the column as str"
            warnings.warn(f"{table.full_name}: {name!r} is {found}, but null in this state, {why}", stacklevel=2)

    def warn_of_nulled_numbers(
        self, connection: Any, looked: Mapping[SourceTable, TableMetadata], keys: Mapping[str, Sequence[str]]
    ) -> None:
        """Look up the rows of collected messages, and warn of columns with NaN or an infinity.

        ``keys``: the key columns by input.
        """
        for (table, name), texts in self.nulls.items():
            key = keys.get(table.input, ())
            kinds, cells = parse_key_values(texts, key)
            if not kinds:
                continue
            own = [f"t.{quote_name(each)}" for each in key]
            same = " and ".join(f"{one} = k.c{n}::{kind}" for n, (one, kind) in enumerate(zip(own, kinds, strict=True)))
            given = (
                f"unnest({', '.join(['%s::text[]'] * len(key))}) as k({', '.join(f'c{n}' for n in range(len(key)))})"
            )
            lost = f"t.{quote_name(name)}::text in ('NaN', 'Infinity', '-Infinity')"
            rows = f"only {table.quoted_name} t join {given} on {same}"
            query = f"select {', '.join(own)}, t.{quote_name(name)}::text from {rows}"
            with suppress(import_psycopg().Error):  # a type outside the search path, or a missing privilege
                found = connection.execute(f"{query} where {lost} limit 1", cells).fetchone()
                if found is not None:
                    row = dict(zip(key, found, strict=False))
                    self._warn_of_null_once(table, looked[table], name, f"{found[-1]} in the row {row}")
        self.nulls.clear()


def parse_key_values(messages: Sequence[str], key: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the type and the values of each key column in messages; empty lists if no message has the key.

    O(bytes).
    """
    rows = [{each["name"]: each for each in json.loads(text)["columns"]} for text in messages]
    rows = [row for row in rows if key and all(name in row for name in key)]
    kinds = [str(rows[0][name]["type"]) for name in key] if rows else []
    return kinds, [[str(row[name]["value"]) for row in rows] for name in key] if rows else []


def _describe_row(message: str, key: Sequence[str]) -> str:
    """Describe the row of a message by its key; "" if the message lacks the key."""
    cells = {each["name"]: each["value"] for each in json.loads(message)["columns"]}
    row = {name: cells[name] for name in key if name in cells}
    return f" in the row {row}" if row and len(row) == len(key) else ""


def _build_never_null_error(table: SourceTable, looked: TableMetadata, name: str, found: str) -> UnreadableInput:
    """Build the error for a value that would be null in a column declared not null."""
    column = quote_name(name)
    null = f"to accept null: alter table {table.quoted_name} alter {column} drop not null, until a run has read it"
    text = f"add column ... text generated always as ({column}::text) stored"
    kept = f"to keep it: alter table {table.quoted_name} {text}, and create a new state that declares that column"
    remedy = f"{null}; or {kept}" if name in looked.exact else f"{NEWER}; or {null}; or {kept}"
    return UnreadableInput(f"read the table {table.full_name} for {table.input!r}", found, remedy)


_IDENTITY: Final = '"identity":['
"""Text in a message before the columns that identify the changed row."""
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
"""Pattern of a JSON string."""


class SlotChanges(NamedTuple):
    """Transactions from a slot.

    - ``rows``: messages by input.
    - ``lsn``, ``commit``: place and message of the last commit; "" and "{}" if no transaction was read.
    - ``size``: number of bytes that were read.
    - ``messages``: number of messages that were read.
    - ``untold``: tables for which the log lacks a needed value, each with the reason.
    - ``lost``: tables for which the log lacks changed rows, each with the reason.
    """

    rows: dict[str, list[pa.RecordBatch]]
    lsn: str
    commit: str
    size: int
    messages: int
    untold: Mapping[SourceTable, str]
    lost: Mapping[SourceTable, str]


def build_wal2json_options(looked: Mapping[SourceTable, TableMetadata], timed: bool) -> dict[str, str]:
    """Return the options of wal2json for some tables.  ``timed``: whether to request commit times."""
    filtered = ",".join(table.wal2json_name for table in looked)
    given = {"format-version": "2", "include-lsn": "true", "add-tables": filtered}
    if any(each.certain for each in looked.values()):
        given["include-not-null"] = "true"
    if timed:
        given["include-timestamp"] = "true"
    return given


def peek_slot_changes(
    connection: Any,
    slot: str,
    looked: Mapping[SourceTable, TableMetadata],
    keys: Mapping[str, Sequence[str]],
    numbers: NonFiniteNumbers,
    *,
    upto: str | None = None,
    most: int | None = None,
    timed: bool = False,
) -> SlotChanges:
    """Read transactions up to the place ``upto`` in the log, or until about ``most`` messages are read.  O(bytes).

    ``keys``: key columns by input.  ``timed``: whether to request commit times in messages.
    """
    if not looked:
        return SlotChanges({}, "", "", 0, 0, {}, {})
    asked = build_wal2json_options(looked, timed) | numbers.build_text_options(looked.values())
    given = ", ".join(f"{quote_literal(name)}, {quote_literal(value)}" for name, value in asked.items())
    ends = "null" if upto is None else quote_literal(upto)
    query = f"pg_logical_slot_peek_changes({quote_literal(slot)}, {ends}, {'null' if most is None else most}, {given})"
    rows: dict[str, list[pa.RecordBatch]] = {}
    lsn, commit, size, count = "", "{}", 0, 0
    with _collect_warnings(connection) as said:
        for some in stream_rows(connection, f"select lsn, data from {query}"):
            found = some.filter(pc.starts_with(some.column("data"), '{"action":"C"'))
            if found.num_rows:
                lsn, commit = (found.column(name)[-1].as_py() for name in ("lsn", "data"))
            size, count = size + some.nbytes, count + some.num_rows
            for table, text in _split_by_table(some.column("data"), looked):
                numbers.collect_null_messages(text, table, looked[table])
                held = numbers.replace_nonfinite_numbers(text, table, looked[table], keys.get(table.input, ()))
                taken = fill_dropped_columns(held, looked[table].gone)
                rows.setdefault(table.input, []).append(pa.record_batch({"value": taken}))
    numbers.warn_of_nulled_numbers(connection, looked, keys)
    untold, lost = dict[SourceTable, str](), dict[SourceTable, str]()
    for table, each in looked.items():
        texts, key = [batch.column(0) for batch in rows.get(table.input, ())], keys.get(table.input, ())
        if any(text.startswith("no ") and text.endswith(f'"{table.schema}"."{table.name}"') for text in said):
            lost[table] = "rows were updated or deleted while it had no replica identity, so the log lacks their keys"
        elif any(_has_other_replica_identity(text, key) for text in texts):
            lost[table] = "rows were updated or deleted while its replica identity was not the key"
        elif any(has_missing_value(text, each, key) for text in texts):
            remedy = f"to log such values: alter table {table.quoted_name} replica identity full"
            untold[table] = f"the key of a row changed, and the log lacks a large value of that row; {remedy}"
    return SlotChanges(rows, lsn, commit, size, count, untold, lost)


@contextmanager
def _collect_warnings(connection: Any) -> Iterator[list[str]]:
    """Collect the warnings of the server.

    wal2json omits changes of rows without a replica identity, and reports that as a warning.
    """
    said = list[str]()

    def note(warning: Any) -> None:
        said.append(warning.message_primary or "")

    connection.add_notice_handler(note)
    try:
        yield said
    finally:
        connection.remove_notice_handler(note)


def _has_other_replica_identity(text: pa.Array, key: Sequence[str]) -> bool:
    """Return whether some update or delete identifies its row by columns other than the key.  O(bytes).

    >>> one = '{"action":"D","identity":[{"name":"id","type":"integer","value":1}]}'
    >>> [_has_other_replica_identity(pa.array([one]), key) for key in (["id"], ["id", "of"], [])]
    [False, True, False]
    """
    for name in key:
        cell = f'{{"name":{json.dumps(name, ensure_ascii=False)},'
        # To find the first column, a search for plain text is faster than a pattern.
        some = text.filter(pc.invert(pc.match_substring(text, _IDENTITY + cell)))
        some = some.filter(pc.match_substring(some, _IDENTITY))
        if (
            len(some)
            and not pc.all(pc.match_substring_regex(some, f"{re.escape(_IDENTITY)}.*{re.escape(cell)}")).as_py()
        ):
            return True
    return False


def has_missing_value(text: pa.Array, looked: TableMetadata, key: Sequence[str]) -> bool:
    """Return whether some update changes the key of a row and lacks a value of the row.  O(bytes).

    The log may omit a large unchanged value, unless the log contains the old row in full. An omitted value is known
    only under the old key.

    >>> head, now = '{"action":"U","columns":[', '{"name":"id","type":"integer","value":1}'
    >>> had, looked = now.replace("1", "2"), TableMetadata([], [], [], 9, {"id": 1, "v": 2}, 2)
    >>> [has_missing_value(pa.array([f'{head}{now}],"identity":[{each}]}}']), looked, ["id"]) for each in (now, had)]
    [False, True]
    """
    some = text.filter(pc.starts_with(text, '{"action":"U"'))
    parts = pc.split_pattern(some, _IDENTITY, max_splits=1, reverse=True)  # type: ignore[attr-defined]
    some, parts = (each.filter(pc.equal(pc.list_value_length(parts), 2)) for each in (some, parts))
    if not len(some):
        return False
    now, had = (pc.list_element(parts, part) for part in (0, 1))
    changed = [pc.not_equal(_extract_column_value(now, name), _extract_column_value(had, name)) for name in key]
    some = some.filter(reduce(pc.or_kleene, changed, pa.array([False] * len(some))))
    names = (f'"name":{json.dumps(name, ensure_ascii=False)},' for name in looked.columns)
    return any(not pc.all(pc.match_substring(some, each)).as_py() for each in names) if len(some) else False


def _extract_column_value(text: pa.Array, name: str) -> pa.Array:
    """Extract the value of a column, unparsed, from each text; null if the text lacks the column.  O(bytes)."""
    head = f'"name":{re.escape(json.dumps(name, ensure_ascii=False))},"type":{_STRING},"value":'
    return pc.struct_field(pc.extract_regex(text, f"{head}(?P<value>{_STRING}|[^,}}]*)"), 0)


def _split_by_table(
    data: pa.ChunkedArray, looked: Mapping[SourceTable, TableMetadata]
) -> Iterator[tuple[SourceTable, pa.Array]]:
    """Yield pairs of a table and the messages of the table.  Begin and commit messages belong to no table."""
    text = build_message_batch(data.filter(pc.invert(pc.match_substring_regex(data, r'^\{"action":"[BCM]"')))).column(0)
    if len(text) and len(looked) == 1:
        yield next(iter(looked)), text
    elif len(text):
        told, _ = parse_objects(text, {"schema": TEXT, "table": TEXT})
        schemas, names = (pc.struct_field(told, each) for each in ("schema", "table"))
        for table in looked:
            some = text.filter(pc.and_(pc.equal(schemas, table.schema), pc.equal(names, table.name)))
            if len(some):
                yield table, some


class SlotStart(NamedTuple):
    """Start of a slot.

    ``lsn``: place in the log where the slot starts.  ``snapshot``: name of the snapshot at that place.  ``since``: an
    earlier place in the log; all changes from the slot come after it.
    """

    lsn: str
    snapshot: str
    since: str


def copy_rows(
    connection: Any,
    tables: Sequence[SourceTable],
    inputs: Mapping[str, pa.Schema],
    begins: SlotStart,
    beside: dict[str, dict[str, UndeclaredColumn]],
    held: Callable[[SourceTable], Callable[[pa.Array], pa.Array]],
    whole: Collection[str] = (),
) -> Iterator[Polled]:
    """Read all rows of tables in one transaction.  O(bytes).

    - ``begins``: the start of the slot whose snapshot the transaction uses.
    - ``beside``: the function adds the undeclared columns to this dict, by input.
    - ``held``: a function that returns for a table a call of `NonFiniteNumbers.replace_nonfinite_numbers`.
    - ``whole``: inputs that get all rows in one batch, as their full contents.
    """
    run = connection.execute
    run("begin isolation level repeatable read read only")
    run(f"set transaction snapshot '{begins.snapshot}'")
    for table in tables:
        own = [name for name in inputs[table.input].names if name not in OWN]
        found = read_catalog_columns(connection, table)
        refuse_row_level_security(f"copy the table {table.full_name} for {table.input!r}", found)
        kinds = {row.name: row.kind for row in found}
        others = {
            name: UndeclaredColumn(parse_sql_type(kind), table.quoted_name)
            for name, kind in kinds.items()
            if name not in own
        }
        beside[table.input] = {**beside.get(table.input, {}), **others}
        precise = {row.name: row.precise for row in found}
        cells = ", ".join(build_json_column_sql(name, kinds.get(name), precise.get(name, "")) for name in own)
        text = (
            f"{quote_literal(build_message_head(table, begins.since))} || array_to_string(array[{cells}], ',') || ']}}'"
        )
        made = held(table)
        rows = stream_rows(connection, f"select '', {text} from only {table.quoted_name}")
        batches = (
            pa.record_batch({"value": made(build_message_batch(some.column("data")).column(0))}) for some in rows
        )
        if table.input in whole:
            every = [build_message_batch(pa.chunked_array([pa.array([], pa.string())])), *batches]
            orders = {table.input: {POSITION: parse_lsn(begins.since), ROW: 0}}
            yield Polled({table.input: every}, None, frozenset([table.input]), dict(beside), orders=orders)
        for batch in batches:
            yield Polled({table.input: [batch]}, None, beside=dict(beside))
    run("commit")


def build_message_head(table: SourceTable, lsn: str) -> str:
    """Return the first part of each message in a copy.

    >>> build_message_head(SourceTable("public", "orders", "orders"), "0/16B3700")
    '{"action":"I","lsn":"0/16B3700","schema":"public","table":"orders","columns":['
    """
    said = {"action": "I", "lsn": lsn, "schema": table.schema, "table": table.name, "columns": []}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).removesuffix("]}")
