"""Modes: an epoch's updates as a target takes them.

Invariant: but for ``updates``, an epoch is written as its net: a row that left and came back within it is not sent, and
one that came n times is written n times. ``upsert`` needs a key by which no two rows are equal at the end of an epoch.

    upsert      the keys whose rows changed, and the rows that they have now
    changelog   the row, ``_change_type`` (insert, delete, update_preimage, update_postimage), ``_commit_version`` (the
                epoch), and ``_commit_timestamp`` (when the epoch was committed)
    retract     ``_retract``, then the row; retractions first
    debezium    messages in Debezium's envelope: ``key`` and ``value`` as JSON
    updates     the row, ``_time``, ``_diff``, as a step gave them

>>> updates = pa.table({"id": [1, 1, 2], "n": [5, 6, 7], "_time": [3, 3, 3], "_diff": [-1, 1, 1]})
>>> made = changes("upsert", updates, ("id",), 3, Secret(1, 2))
>>> made.gone.to_pydict(), made.rows.to_pylist()
({'id': [1, 2]}, [{'id': 1, 'n': 6}, {'id': 2, 'n': 7}])
>>> changes("changelog", updates, ("id",), 3, Secret(1, 2)).rows["_change_type"].to_pylist()
['update_preimage', 'update_postimage', 'insert']
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Ints, Secret, identities
from ddflow.columns.names import DELETED, DIFF, TIME
from ddflow.columns.rows import shown_row
from ddflow.columns.schema import one_chunk
from ddflow.columns.sorting import sort
from ddflow.connectors.attached import Mode, TableChanges
from ddflow.connectors.change_messages import MESSAGES, Net, in_order, messages, rows_of
from ddflow.errors import CountOverflow, NotUnique
from ddflow.kernels.accumulate import net

CHANGE: Final = "_change_type"
VERSION: Final = "_commit_version"
WRITTEN: Final = "_commit_timestamp"
RETRACT: Final = "_retract"
KINDS: Final = ("delete", "insert", "update_preimage", "update_postimage")


def shaped(mode: Mode, updates: pa.Schema) -> pa.Schema:
    """Return the columns of a table in a mode, for an output whose updates have these columns."""
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


def changes(
    mode: Mode,
    updates: pa.Table,
    key: Sequence[str] | None,
    epoch: int,
    secret: Secret,
    output: str = "",
    written: int | None = None,
) -> TableChanges:
    """Convert the updates of an epoch to the changes of a target's table.  O(n).

    ``output``: its name in messages.  ``written``: when the epoch was committed, in unix milliseconds.

    Raises `NotUnique`, `CountOverflow`.
    """
    if mode == "updates":
        return TableChanges(None, updates, updates.num_rows)
    if DIFF not in updates.schema.names and key is not None:
        return _last(updates, key, secret)
    if DIFF not in updates.schema.names:  # events, such as messages that could not be read: each is a row
        updates = updates.append_column(DIFF, pa.array(np.ones(updates.num_rows, np.int64)))
    of = _net(updates, key, secret)
    schema = shaped(mode, updates.schema)
    if mode == "upsert":
        return _upserts(of, key or (), schema)
    if mode == "debezium":
        return TableChanges(None, messages(of, key, epoch, output), of.diffs.size)
    if mode == "retract":
        order = np.argsort(of.diffs > 0, kind="stable")
        rows = of.rows.take(pa.array(order)).append_column(RETRACT, pa.array(of.diffs[order] < 0))
        rows = _repeat_rows(rows.select(schema.names), of.diffs[order])
        return TableChanges(None, rows.cast(schema), order.size)
    of = in_order(of)
    kinds: Any = (of.diffs > 0).astype(np.int64)
    if key is not None:
        signs: Any = np.zeros((kinds.size, 2), bool)
        signs[of.keys, kinds] = True
        kinds += 2 * signs.all(1)[of.keys]
    rows = of.rows.append_column(CHANGE, pa.array(KINDS).take(pa.array(kinds)))
    rows = rows.append_column(VERSION, pa.array(np.full(kinds.size, epoch)))
    at = pa.array([written], pa.timestamp("ms", "UTC")).cast(schema.field(WRITTEN).type)
    rows = rows.append_column(WRITTEN, at.take(pa.array(np.zeros(kinds.size, np.int64))))
    return TableChanges(None, _repeat_rows(rows, of.diffs).cast(schema), kinds.size)


def folded(mode: Mode, table: pa.Table, updates: pa.Schema) -> pa.Table:
    """Read the rows of a table in a mode, with ``_diff``, for an output with these updates.

    O(n).  Raises `SinkRefused`.
    """
    if mode == "debezium":
        return rows_of(table, shaped("upsert", updates))
    diffs: Ints = np.ones(table.num_rows, np.int64)
    if mode == "changelog":
        gone = pa.array(["delete", "update_preimage"])
        diffs -= 2 * np.array(pc.is_in(one_chunk(table.column(CHANGE)), gone), np.int64)
    elif mode == "retract":
        diffs -= 2 * np.array(one_chunk(table.column(RETRACT)), np.int64)
    elif mode == "updates":
        diffs = np.array(one_chunk(table.column(DIFF)), np.int64)
    beside = [name for name in (CHANGE, VERSION, WRITTEN, RETRACT, TIME, DIFF) if name in table.schema.names]
    return table.drop_columns(beside).append_column(DIFF, pa.array(diffs))


def with_deletes(made: TableChanges, key: Sequence[str], secret: Secret) -> pa.Table:
    """Convert upserts to one table with ``_deleted``; deleted rows only have their key.  O(n)."""
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


def among(rows: pa.Table, keys: pa.Table, secret: Secret) -> Any:
    """Mark the rows that equal some key; null equals null.  Both have the same columns.  O(n log keys)."""
    (high, low), (of, beside) = (identities(each.combine_chunks(), secret) for each in (rows, keys))
    found = np.isin(high, of)
    if low.size and beside.size:
        at = np.flatnonzero(found)
        mine, theirs = np.rec.fromarrays([high[at], low[at]]), np.rec.fromarrays([of, beside])
        found[at] = np.isin(mine, theirs)
    return found


def netted(updates: pa.Table, secret: Secret) -> pa.Table:
    """Net the updates of one time.  O(n)."""
    of = _net(updates, None, secret)
    times = updates.column(TIME).slice(0, 1).take(pa.array(np.zeros(of.diffs.size, np.int64)))
    return of.rows.append_column(TIME, times).append_column(DIFF, pa.array(of.diffs))


def _last(upserts: pa.Table, key: Sequence[str], secret: Secret) -> TableChanges:
    """Keep the last upsert of each key, from `ddflow.Collection.to_upserts`."""
    back = upserts.take(pa.array(np.arange(upserts.num_rows)[::-1])).combine_chunks()
    numbers = _number_keys(back.select(list(key)), secret)
    last = back.take(pa.array(np.unique(numbers, return_index=True)[1][::-1]))
    rows = last.filter(pc.invert(last.column(DELETED))).drop_columns([TIME, DELETED])
    return TableChanges(last.select(list(key)), rows, last.num_rows)


def _upserts(of: Net, key: Sequence[str], schema: pa.Schema) -> TableChanges:
    there, every = np.flatnonzero(of.diffs > 0), np.arange(of.diffs.size)
    times = np.bincount(of.keys[there], of.diffs[there], every.size)
    if (twice := np.flatnonzero(times > 1)).size:
        row = shown_row(of.rows.select(list(key)), int(twice[0]))
        raise NotUnique("write an epoch as upserts", f"the key {row} has several rows", "choose another mode, or key")
    gone = of.rows.select(list(key)).take(pa.array(np.flatnonzero(of.keys == every)))
    return TableChanges(gone, of.rows.take(pa.array(there)).cast(schema), of.diffs.size)


def _net(updates: pa.Table, key: Sequence[str] | None, secret: Secret) -> Net:
    rows = updates.drop_columns([TIME, DIFF])
    diffs, n = np.array(one_chunk(updates.column(DIFF)), np.int64), updates.num_rows
    by = sort(*identities(rows.combine_chunks(), secret, n))
    ranks, places, sums = np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.int64)
    written, refused = net(by.permutation, by.starts, np.zeros(n, np.int32), diffs, ranks, places, sums)
    if refused >= 0:
        raise CountOverflow("add up an epoch", "a sum of diffs leaves int64", "write it in mode 'updates'")
    if written < n:
        diffs = np.zeros(n, np.int64)
        diffs[places[:written]] = sums[:written]
        kept = np.flatnonzero(diffs)
        rows, diffs = rows.take(pa.array(kept)).combine_chunks(), diffs[kept]
    return Net(
        rows, diffs, np.arange(written) if key is None else _number_keys(rows.select(list(key)), secret, written)
    )


def _number_keys(keys: pa.Table, secret: Secret, n: int | None = None) -> Ints:
    """Map each key to the number of the first row that has it."""
    by = sort(*identities(keys.combine_chunks(), secret, n))
    out: Ints = np.empty(by.permutation.size, np.int64)
    out[by.permutation] = np.repeat(by.permutation[by.starts[:-1]], np.diff(by.starts))
    return out


def _repeat_rows(rows: pa.Table, diffs: Ints) -> pa.Table:
    """Repeat each row by the size of its diff."""
    if (np.abs(diffs) == 1).all():
        return rows
    return rows.take(pa.array(np.repeat(np.arange(diffs.size), np.abs(diffs))))
