"""Convert the updates of an epoch to the form of a sink's mode: rows, a changelog or messages in Debezium's envelope.

Guarantees: in every mode, readers can rebuild the contents of the output from the table. `dd.formats.debezium` reads
the messages of the mode `debezium`. Before images come from the updates of the output, never from the target.

>>> updates = pa.table({"id": [1, 1, 2], "n": [5, 6, 7], "_time": [3, 3, 3], "_diff": [-1, 1, 1]})
>>> made = to_table_changes("upsert", updates, ("id",), 3, Secret(1, 2))
>>> made.gone.to_pydict(), made.rows.to_pylist()
({'id': [1, 2]}, [{'id': 1, 'n': 6}, {'id': 2, 'n': 7}])
>>> to_table_changes("changelog", updates, ("id",), 3, Secret(1, 2)).rows["_change_type"].to_pylist()
['update_preimage', 'update_postimage', 'insert']
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Ints, Secret, compute_identities
from ddflow.columns.names import DELETED, DIFF, TIME
from ddflow.columns.rows import row_values
from ddflow.columns.schema import to_array
from ddflow.columns.sorting import sort_by_identity
from ddflow.connectors.api import Mode, TableChanges
from ddflow.connectors.files.writers import format_json_objects
from ddflow.connectors.formats.cells import CellEncoding, build_json_shape, cast_cells
from ddflow.connectors.formats.parse import parse_objects
from ddflow.errors import CountOverflow, NotUnique, SinkRefused
from ddflow.kernels.accumulate import consolidate_diffs

MESSAGES: Final = pa.schema({"key": pa.string(), "value": pa.string()})
"""Columns of a table in which each row is a message."""
_FORM: Final = CellEncoding(decimals="string", quoted=True)
_AT_ONCE: Final = 1 << 16


class NetUpdates(NamedTuple):
    """Net changes of an epoch, after the diffs of equal rows are summed.

    ``rows``: n distinct rows.  ``diffs``: the diff of each row, never 0.  ``keys``: a number below n for each row. Two
    rows have the same number if they have the same key.

    >>> of = NetUpdates(pa.table({"id": [1, 1, 2], "n": [5, 6, 7]}), np.array([-1, 1, 1]), np.array([0, 0, 2]))
    >>> for row in build_change_messages(of, ("id",), 3, "orders").to_pylist():
    ...     print(row["key"], row["value"])
    {"id":1} {"before":{"id":1,"n":5},"after":{"id":1,"n":6},"source":{"connector":"ddflow",...,"epoch":3},"op":"u"}
    {"id":2} {"before":null,"after":{"id":2,"n":7},"source":{"connector":"ddflow",...,"epoch":3},"op":"c"}
    """

    rows: pa.Table
    diffs: Ints
    keys: Ints


def sort_updates_by_key(of: NetUpdates) -> NetUpdates:
    """Sort updates by key; within a key, deleted rows come first.  O(n) for sorted updates, else O(n log n)."""
    places = 2 * of.keys + (of.diffs > 0)
    if (places[1:] >= places[:-1]).all():
        return of
    order = np.argsort(places, kind="stable")
    return NetUpdates(of.rows.take(pa.array(order)), of.diffs[order], of.keys[order])


def build_change_messages(of: NetUpdates, key: Sequence[str] | None, epoch: int, output: str) -> pa.Table:
    """Build Debezium messages from updates.  O(n).

    ``key``: the columns of the key of a message; None for messages without a key.
    """
    of = sort_updates_by_key(of)
    keys, diffs, n = of.keys, of.diffs, of.diffs.size
    pair: Any = np.zeros(n + 1, bool)  # marks a row that is an update of the row before it
    if key is not None:
        new = np.flatnonzero(np.diff(keys, prepend=-1, append=-1))
        two = new[:-1][np.diff(new) == 2]
        pair[two[(diffs[two] == -1) & (diffs[two + 1] == 1)] + 1] = True
    came = np.flatnonzero(~pair[1:])  # all rows, except the old row of an update
    updated, times = pair[:-1][came], np.abs(diffs[came])
    after = np.where(diffs[came] > 0, came, -1)
    before = np.where(updated, came - 1, np.where(diffs[came] < 0, came, -1))
    source = {"connector": "ddflow", "name": output, "db": "", "schema": "", "table": output, "epoch": epoch}
    tail = f',"source":{json.dumps(source, separators=(",", ":"))},"op":"'
    parts = []
    for at in range(0, came.size, _AT_ONCE):
        here = slice(at, at + _AT_ONCE)
        texts = [_format_json_objects(of.rows, places[here]) for places in (before, after)]
        ops = np.where(updated[here], "u", np.where(after[here] < 0, "d", "c"))
        value = pc.binary_join_element_wise(
            '{"before":', texts[0], ',"after":', texts[1], tail, pa.array(ops), '"}', ""
        )
        keyed = pa.nulls(len(value), pa.string()) if key is None else pa.array(["{}"] * len(value), pa.string())
        if key:
            keyed = _format_json_objects(of.rows.select(list(key)), np.maximum(before, after)[here])
        part = pa.table([keyed, value], schema=MESSAGES)
        if (times[here] > 1).any():
            part = part.take(pa.array(np.repeat(np.arange(len(value)), times[here])))
        parts.append(part)
    return pa.concat_tables(parts) if parts else MESSAGES.empty_table()


def parse_change_messages(written: pa.Table, schema: pa.Schema) -> pa.Table:
    """Parse the rows in messages.  ``_diff`` is 1 for a row in ``after``, and -1 for a row in ``before``.  O(bytes).

    Raises `SinkRefused` for a message that ddflow did not write.
    """
    shape = {field.name: build_json_shape(field.type) for field in schema}
    found, wrong = parse_objects(to_array(written.column("value")), {"before": shape, "after": shape})
    parts = []
    for name, diff in (("before", -1), ("after", 1)):
        made = _cast_structs(pc.struct_field(found, name).drop_null(), schema, bool(wrong.any()))
        parts.append(made.append_column(DIFF, pa.array(np.full(made.num_rows, diff, np.int64))))
    return pa.concat_tables(parts)


def format_json_rows(rows: pa.Table) -> pa.Array:
    """Format rows as JSON texts.  O(bytes)."""
    batches = rows.to_batches(max_chunksize=_AT_ONCE)
    return pa.concat_arrays(
        [pa.array([], pa.string()), *(format_json_objects(batch, strict=True) for batch in batches)]
    )


def parse_json_rows(texts: pa.Array, schema: pa.Schema) -> pa.Table:
    """Parse rows from texts that `format_json_rows` wrote.  O(bytes).  Raises `SinkRefused` for invalid texts."""
    found, wrong = parse_objects(texts, {field.name: build_json_shape(field.type) for field in schema})
    return _cast_structs(found, schema, bool(wrong.any()))


def _cast_structs(rows: pa.Array, schema: pa.Schema, wrong: bool) -> pa.Table:
    """Cast the texts in structs to the types of a ``schema``.

    Raises `SinkRefused` if ``wrong`` is true, or if a text does not fit its type.
    """
    columns = []
    for field in schema:
        cells, misfits = cast_cells(pc.struct_field(rows, field.name), field.type, _FORM)
        wrong |= misfits is not None
        columns.append(cells)
    if wrong:
        asked, remedy = "read messages back", "use a separate place for them"
        raise SinkRefused(asked, "some are not as ddflow wrote them", remedy)
    return pa.table(columns, schema=schema)


def _format_json_objects(rows: pa.Table, places: Ints) -> pa.Array:
    """Format the rows at the indexes ``places`` as JSON text.  For an index below 0, the text is ``null``."""
    there = np.flatnonzero(places >= 0)
    batch = pa.RecordBatch.from_arrays(
        [to_array(column.take(pa.array(places[there]))) for column in rows.columns], schema=rows.schema
    )
    text = format_json_objects(batch, strict=True)
    if there.size == places.size:
        return text
    at = np.zeros(places.size, np.int64)
    at[there] = np.arange(there.size)
    return text.take(pa.array(at, mask=places < 0)).fill_null("null")


CHANGE: Final = "_change_type"
VERSION: Final = "_commit_version"
WRITTEN: Final = "_commit_timestamp"
RETRACT: Final = "_retract"
KINDS: Final = ("delete", "insert", "update_preimage", "update_postimage")


def build_mode_schema(mode: Mode, updates: pa.Schema) -> pa.Schema:
    """Return the columns that a mode writes to a table.  ``updates``: the columns of the output's updates."""
    row = [field for field in updates if field.name not in (TIME, DIFF, DELETED)]
    if mode == "changelog":
        row += [
            pa.field(CHANGE, pa.string()),
            pa.field(VERSION, pa.int64()),
            pa.field(WRITTEN, pa.timestamp("us", "UTC")),
        ]
    elif mode == "retract":
        row = [pa.field(RETRACT, pa.bool_()), *row]
    elif mode == "debezium":
        row = list(MESSAGES)
    return updates if mode == "updates" else pa.schema(row)


def to_table_changes(
    mode: Mode,
    updates: pa.Table,
    key: Sequence[str] | None,
    epoch: int,
    secret: Secret,
    output: str = "",
    written: int | None = None,
) -> TableChanges:
    """Convert the updates of an epoch to the changes of a target's table.  O(n).

    ``output``: the name of the output in messages.  ``written``: the time of the commit, in Unix milliseconds.

    Raises `NotUnique`, `CountOverflow`.
    """
    if mode == "updates":
        return TableChanges(None, updates, updates.num_rows)
    if DIFF not in updates.schema.names and key is not None:
        return _keep_last_upserts(updates, key, secret)
    if DIFF not in updates.schema.names:  # each event, such as a dead letter, is a row
        updates = updates.append_column(DIFF, pa.array(np.ones(updates.num_rows, np.int64)))
    of = _sum_diffs(updates, key, secret)
    schema = build_mode_schema(mode, updates.schema)
    if mode == "upsert":
        return _convert_net_to_upserts(of, key or (), schema)
    if mode == "debezium":
        return TableChanges(None, build_change_messages(of, key, epoch, output), of.diffs.size)
    if mode == "retract":
        order = np.argsort(of.diffs > 0, kind="stable")
        rows = of.rows.take(pa.array(order)).append_column(RETRACT, pa.array(of.diffs[order] < 0))
        rows = _repeat_rows_by_diff(rows.select(schema.names), of.diffs[order])
        return TableChanges(None, rows.cast(schema), order.size)
    of = sort_updates_by_key(of)
    kinds: Any = (of.diffs > 0).astype(np.int64)
    if key is not None:
        signs: Any = np.zeros((kinds.size, 2), bool)
        signs[of.keys, kinds] = True
        kinds += 2 * signs.all(1)[of.keys]
    rows = of.rows.append_column(CHANGE, pa.array(KINDS).take(pa.array(kinds)))
    rows = rows.append_column(VERSION, pa.array(np.full(kinds.size, epoch)))
    at = pa.array([written], pa.timestamp("ms", "UTC")).cast(schema.field(WRITTEN).type)
    rows = rows.append_column(WRITTEN, at.take(pa.array(np.zeros(kinds.size, np.int64))))
    return TableChanges(None, _repeat_rows_by_diff(rows, of.diffs).cast(schema), kinds.size)


def read_rows_with_diff(mode: Mode, table: pa.Table, updates: pa.Schema) -> pa.Table:
    """Return the rows of a table that was written in a mode, with the column ``_diff``.  O(n).

    ``updates``: the columns of the output's updates.  Raises `SinkRefused`.
    """
    if mode == "debezium":
        return parse_change_messages(table, build_mode_schema("upsert", updates))
    diffs: Ints = np.ones(table.num_rows, np.int64)
    if mode == "changelog":
        gone = pa.array(["delete", "update_preimage"])
        diffs -= 2 * np.array(pc.is_in(to_array(table.column(CHANGE)), gone), np.int64)
    elif mode == "retract":
        diffs -= 2 * np.array(to_array(table.column(RETRACT)), np.int64)
    elif mode == "updates":
        diffs = np.array(to_array(table.column(DIFF)), np.int64)
    beside = [name for name in (CHANGE, VERSION, WRITTEN, RETRACT, TIME, DIFF) if name in table.schema.names]
    return table.drop_columns(beside).append_column(DIFF, pa.array(diffs))


def merge_upserts_and_deletes(made: TableChanges, key: Sequence[str], secret: Secret) -> pa.Table:
    """Convert upserts and deletes to one table with ``_deleted``.

    A deleted row has values only in the key columns.  O(n).
    """
    assert made.gone is not None
    n = made.rows.num_rows
    keys = pa.concat_tables([made.rows.select(list(key)), made.gone.select(list(key))])
    gone = made.gone.filter(pa.array(_number_keys(keys, secret)[n:] >= n))
    fields = [field if field.name in key else field.with_nullable(True) for field in made.rows.schema]
    schema = pa.schema([*fields, pa.field(DELETED, pa.bool_())])
    nulls = {field.name: pa.nulls(gone.num_rows, field.type) for field in fields if field.name not in key}
    deleted = pa.table({**dict(zip(gone.schema.names, gone.columns, strict=True)), **nulls})
    parts = [(deleted, True), (made.rows, False)]
    tables = [part.append_column(DELETED, pa.array(np.full(part.num_rows, flag))) for part, flag in parts]
    return pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])


def mark_rows_with_keys(rows: pa.Table, keys: pa.Table, secret: Secret) -> Any:
    """Mark the rows that occur in ``keys``.

    Null equals null.  ``rows`` and ``keys`` have the same columns.  O(n log keys).
    """
    (high, low), (of, beside) = (compute_identities(each.combine_chunks(), secret) for each in (rows, keys))
    found = np.isin(high, of)
    if low.size and beside.size:
        at = np.flatnonzero(found)
        mine, theirs = np.rec.fromarrays([high[at], low[at]]), np.rec.fromarrays([of, beside])
        found[at] = np.isin(mine, theirs)
    return found


def consolidate_updates(updates: pa.Table, secret: Secret) -> pa.Table:
    """Sum the diffs of equal rows in updates that all have the same time.  O(n)."""
    of = _sum_diffs(updates, None, secret)
    times = updates.column(TIME).slice(0, 1).take(pa.array(np.zeros(of.diffs.size, np.int64)))
    return of.rows.append_column(TIME, times).append_column(DIFF, pa.array(of.diffs))


def _keep_last_upserts(upserts: pa.Table, key: Sequence[str], secret: Secret) -> TableChanges:
    """Keep the last upsert of each key.  ``upserts``: updates from `ddflow.Collection.to_upserts`."""
    back = upserts.take(pa.array(np.arange(upserts.num_rows)[::-1])).combine_chunks()
    numbers = _number_keys(back.select(list(key)), secret)
    last = back.take(pa.array(np.unique(numbers, return_index=True)[1][::-1]))
    rows = last.filter(pc.invert(last.column(DELETED))).drop_columns([TIME, DELETED])
    return TableChanges(last.select(list(key)), rows, last.num_rows)


def _convert_net_to_upserts(of: NetUpdates, key: Sequence[str], schema: pa.Schema) -> TableChanges:
    there, every = np.flatnonzero(of.diffs > 0), np.arange(of.diffs.size)
    times = np.bincount(of.keys[there], of.diffs[there], every.size)
    if (twice := np.flatnonzero(times > 1)).size:
        row = row_values(of.rows.select(list(key)), int(twice[0]))
        raise NotUnique(
            "write an epoch as upserts", f"the key {row} has several rows", "choose another mode or another key"
        )
    gone = of.rows.select(list(key)).take(pa.array(np.flatnonzero(of.keys == every)))
    return TableChanges(gone, of.rows.take(pa.array(there)).cast(schema), of.diffs.size)


def _sum_diffs(updates: pa.Table, key: Sequence[str] | None, secret: Secret) -> NetUpdates:
    rows = updates.drop_columns([TIME, DIFF])
    diffs, n = np.array(to_array(updates.column(DIFF)), np.int64), updates.num_rows
    by = sort_by_identity(*compute_identities(rows.combine_chunks(), secret, n))
    ranks, places, sums = np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.int64)
    written, refused = consolidate_diffs(by.permutation, by.starts, np.zeros(n, np.int32), diffs, ranks, places, sums)
    if refused >= 0:
        raise CountOverflow("sum the diffs of an epoch", "a sum overflows int64", "write it in mode 'updates'")
    if written < n:
        diffs = np.zeros(n, np.int64)
        diffs[places[:written]] = sums[:written]
        kept = np.flatnonzero(diffs)
        rows, diffs = rows.take(pa.array(kept)).combine_chunks(), diffs[kept]
    return NetUpdates(
        rows, diffs, np.arange(written) if key is None else _number_keys(rows.select(list(key)), secret, written)
    )


def _number_keys(keys: pa.Table, secret: Secret, n: int | None = None) -> Ints:
    """Return for each row the index of the first row with the same key."""
    by = sort_by_identity(*compute_identities(keys.combine_chunks(), secret, n))
    out: Ints = np.empty(by.permutation.size, np.int64)
    out[by.permutation] = np.repeat(by.permutation[by.starts[:-1]], np.diff(by.starts))
    return out


def _repeat_rows_by_diff(rows: pa.Table, diffs: Ints) -> pa.Table:
    """Repeat each row as often as the absolute value of its diff."""
    if (np.abs(diffs) == 1).all():
        return rows
    return rows.take(pa.array(np.repeat(np.arange(diffs.size), np.abs(diffs))))
