"""What a slot of Postgres has: whole transactions, as messages of wal2json for the inputs of their tables.

Invariant: nothing is taken from the slot, which gives the same again until it is moved on. Messages of begin and commit
go to no input, and those of other tables are not asked for. Postgres decodes, and what it sends is kept as it is.

>>> options({SourceTable("public", "orders", "orders"): Looked([], ["x"], 9)}, timed=False)["add-tables"]
'public.orders'
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.formats.parse import TEXT, objects
from ddflow.connectors.postgres_catalog import Looked, SourceTable, literal, whole
from ddflow.connectors.postgres_stream import messages, streamed


class Peeked(NamedTuple):
    """Transactions.  ``rows``: by input.  ``lsn``, ``commit``: of the last one, "" and none where there is none.
    ``size``, ``messages``: bytes, and how many."""

    rows: dict[str, list[pa.RecordBatch]]
    lsn: str
    commit: str
    size: int
    messages: int


def options(looked: Mapping[SourceTable, Looked], timed: bool) -> dict[str, str]:
    """What wal2json is asked for."""
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
    *,
    upto: str | None = None,
    most: int | None = None,
    timed: bool = False,
) -> Peeked:
    """Transactions up to a place in the log, or of about so many messages.  ``timed``: whether these say when they were
    committed.  O(bytes)."""
    given = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in options(looked, timed).items())
    ends = "null" if upto is None else literal(upto)
    query = f"pg_logical_slot_peek_changes({literal(slot)}, {ends}, {'null' if most is None else most}, {given})"
    rows: dict[str, list[pa.RecordBatch]] = {}
    lsn, commit, size, count = "", "{}", 0, 0
    for some in streamed(connection, f"select lsn, data from {query}"):
        found = some.filter(pc.starts_with(some.column("data"), '{"action":"C"'))
        if found.num_rows:
            lsn, commit = (found.column(name)[-1].as_py() for name in ("lsn", "data"))
        size, count = size + some.nbytes, count + some.num_rows
        _route(some.column("data"), looked, rows)
    return Peeked(rows, lsn, commit, size, count)


def _route(data: pa.ChunkedArray, looked: Mapping[SourceTable, Looked], rows: dict[str, list[pa.RecordBatch]]) -> None:
    """Give each message to the input of its table; those of begin and commit to none."""
    text = messages(data.filter(pc.invert(pc.match_substring_regex(data, r'^\{"action":"[BCM]"')))).column(0)
    if not len(text):
        return
    if len(looked) == 1:
        (table,) = looked
        rows.setdefault(table.input, []).append(pa.record_batch({"value": whole(text, table, looked[table])}))
        return
    told, _ = objects(text, {"schema": TEXT, "table": TEXT})
    schemas, names = (pc.struct_field(told, each) for each in ("schema", "table"))
    for table, each in looked.items():
        here = pc.and_(pc.equal(schemas, table.schema), pc.equal(names, table.name))
        if (some := text.filter(here)) is not None and len(some):
            rows.setdefault(table.input, []).append(pa.record_batch({"value": whole(some, table, each)}))
