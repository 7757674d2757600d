"""What a slot of Postgres has: whole transactions, as messages of wal2json for the inputs of their tables.

Invariant: nothing is taken from the slot, which gives the same again until it is moved on. Messages of begin and commit
go to no input, and those of other tables are not asked for. Postgres decodes, and what it sends is kept as it is.

>>> looked = Looked([], ["x"], ["x"], 9, {"x": 1}, 1)
>>> options({SourceTable("public", "orders", "orders"): looked}, timed=False)["add-tables"]
'public.orders'
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.formats.parse import TEXT, objects
from ddflow.connectors.postgres_catalog import Looked, SourceTable, literal, without
from ddflow.connectors.postgres_numbers import Numbers
from ddflow.connectors.postgres_stream import messages, streamed

_IDENTITY: Final = '"identity":['
"""The name in front of the columns that identify the changed row."""
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
"""A string of JSON."""


class Peeked(NamedTuple):
    """Transactions.  ``rows``: by input.  ``lsn``, ``commit``: of the last one, "" and none where there is none.
    ``size``, ``messages``: bytes, and how many.  ``untold``: by table, why a value is not there that is needed.
    ``lost``: by table, why rows are not told that were changed."""

    rows: dict[str, list[pa.RecordBatch]]
    lsn: str
    commit: str
    size: int
    messages: int
    untold: Mapping[SourceTable, str]
    lost: Mapping[SourceTable, str]


def options(looked: Mapping[SourceTable, Looked], timed: bool) -> dict[str, str]:
    """Return the options of wal2json."""
    filtered = ",".join(table.filtered for table in looked)
    given = {"format-version": "2", "include-lsn": "true", "add-tables": filtered}
    if any(each.certain for each in looked.values()):
        given["include-not-null"] = "true"
    if timed:
        given["include-timestamp"] = "true"
    return given


def peeked(
    connection: Any,
    slot: str,
    looked: Mapping[SourceTable, Looked],
    keys: Mapping[str, Sequence[str]],
    numbers: Numbers,
    *,
    upto: str | None = None,
    most: int | None = None,
    timed: bool = False,
) -> Peeked:
    """Read transactions up to a place in the log, or of about ``most`` messages.  O(bytes).

    ``keys``: by input.  ``timed``: whether messages have the time of their commit.
    """
    if not looked:
        return Peeked({}, "", "", 0, 0, {}, {})
    asked = options(looked, timed) | numbers.options(looked.values())
    given = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in asked.items())
    ends = "null" if upto is None else literal(upto)
    query = f"pg_logical_slot_peek_changes({literal(slot)}, {ends}, {'null' if most is None else most}, {given})"
    rows: dict[str, list[pa.RecordBatch]] = {}
    lsn, commit, size, count = "", "{}", 0, 0
    with _warnings(connection) as said:
        for some in streamed(connection, f"select lsn, data from {query}"):
            found = some.filter(pc.starts_with(some.column("data"), '{"action":"C"'))
            if found.num_rows:
                lsn, commit = (found.column(name)[-1].as_py() for name in ("lsn", "data"))
            size, count = size + some.nbytes, count + some.num_rows
            for table, text in _split_by_table(some.column("data"), looked):
                numbers.look(text, table, looked[table])
                held = numbers.held(text, table, looked[table], keys.get(table.input, ()))
                taken = without(held, looked[table].gone)
                rows.setdefault(table.input, []).append(pa.record_batch({"value": taken}))
    numbers.warn(connection, looked, keys)
    untold, lost = dict[SourceTable, str](), dict[SourceTable, str]()
    for table, each in looked.items():
        texts, key = [batch.column(0) for batch in rows.get(table.input, ())], keys.get(table.input, ())
        if any(text.startswith("no ") and text.endswith(f'"{table.schema}"."{table.name}"') for text in said):
            lost[table] = (
                "rows were updated or deleted while it had no replica identity, and the log has no key of them"
            )
        elif any(_is_otherwise_identified(text, key) for text in texts):
            lost[table] = "rows were updated or deleted while its replica identity was not the key"
        elif any(lacks(text, each, key) for text in texts):
            remedy = f"the log has it after: alter table {table.quoted} replica identity full"
            untold[table] = f"a row got another key, and a large value of it is not in the log; {remedy}"
    return Peeked(rows, lsn, commit, size, count, untold, lost)


@contextmanager
def _warnings(connection: Any) -> Iterator[list[str]]:
    """Collect the warnings of the server: wal2json leaves out changes of rows without an identity."""
    said = list[str]()

    def note(warning: Any) -> None:
        said.append(warning.message_primary or "")

    connection.add_notice_handler(note)
    try:
        yield said
    finally:
        connection.remove_notice_handler(note)


def _is_otherwise_identified(text: pa.Array, key: Sequence[str]) -> bool:
    """Return whether an update or a delete identifies its row by other columns than the key.  O(bytes).

    >>> one = '{"action":"D","identity":[{"name":"id","type":"integer","value":1}]}'
    >>> [_is_otherwise_identified(pa.array([one]), key) for key in (["id"], ["id", "of"], [])]
    [False, True, False]
    """
    for name in key:
        cell = f'{{"name":{json.dumps(name, ensure_ascii=False)},'
        # The first column is found without a search by pattern, which takes five times as long.
        some = text.filter(pc.invert(pc.match_substring(text, _IDENTITY + cell)))
        some = some.filter(pc.match_substring(some, _IDENTITY))
        if (
            len(some)
            and not pc.all(pc.match_substring_regex(some, f"{re.escape(_IDENTITY)}.*{re.escape(cell)}")).as_py()
        ):
            return True
    return False


def lacks(text: pa.Array, looked: Looked, key: Sequence[str]) -> bool:
    """Return whether an update of a row's key lacks a value, so that only the old key has it stored.  O(bytes).

    A large value that did not change may be missing, unless the message has all of the old row.

    >>> head, now = '{"action":"U","columns":[', '{"name":"id","type":"integer","value":1}'
    >>> had, looked = now.replace("1", "2"), Looked([], [], [], 9, {"id": 1, "v": 2}, 2)
    >>> [lacks(pa.array([f'{head}{now}],"identity":[{each}]}}']), looked, ["id"]) for each in (now, had)]
    [False, True]
    """
    some = text.filter(pc.starts_with(text, '{"action":"U"'))
    parts = pc.split_pattern(some, _IDENTITY, max_splits=1, reverse=True)  # type: ignore[attr-defined]
    some, parts = (each.filter(pc.equal(pc.list_value_length(parts), 2)) for each in (some, parts))
    if not len(some):
        return False
    now, had = (pc.list_element(parts, part) for part in (0, 1))
    changed = [pc.not_equal(_value(now, name), _value(had, name)) for name in key]
    some = some.filter(reduce(pc.or_kleene, changed, pa.array([False] * len(some))))
    names = (f'"name":{json.dumps(name, ensure_ascii=False)},' for name in looked.columns)
    return any(not pc.all(pc.match_substring(some, each)).as_py() for each in names) if len(some) else False


def _value(text: pa.Array, name: str) -> pa.Array:
    """Extract the value of a column from each text, unparsed; null if it has none.  O(bytes)."""
    head = f'"name":{re.escape(json.dumps(name, ensure_ascii=False))},"type":{_STRING},"value":'
    return pc.struct_field(pc.extract_regex(text, f"{head}(?P<value>{_STRING}|[^,}}]*)"), 0)


def _split_by_table(
    data: pa.ChunkedArray, looked: Mapping[SourceTable, Looked]
) -> Iterator[tuple[SourceTable, pa.Array]]:
    """Yield the messages of each table; begin and commit belong to none."""
    text = messages(data.filter(pc.invert(pc.match_substring_regex(data, r'^\{"action":"[BCM]"')))).column(0)
    if len(text) and len(looked) == 1:
        yield next(iter(looked)), text
    elif len(text):
        told, _ = objects(text, {"schema": TEXT, "table": TEXT})
        schemas, names = (pc.struct_field(told, each) for each in ("schema", "table"))
        for table in looked:
            some = text.filter(pc.and_(pc.equal(schemas, table.schema), pc.equal(names, table.name)))
            if len(some):
                yield table, some
