"""Make the tables of the bench `semantics` from a seed, and list its lines and their known answers.

A line has a spec, a kind of table, a base line and an answer. The answer is the checksum of the final rows. numpy or a
dict computes them, without the engine. All contenders of a line end with the same rows. Order values ascend with
arrival, except in the lines about late events. So the dict does not compare order values. Random values are never
negative, so -1 can stand for null.

>>> made = tables("plain", Size(4, 2, 1, 2))
>>> [table.num_rows for table in made], made[0].column_names[:3]
([2, 2, 2, 2, 2], ['id', 'at', 'c0'])
>>> digest(pa.table({"id": [1, 1]}), pa.array([1, -1]))  # a retraction undoes its assertion
0
>>> len({expected(name, Size(4, 2, 1, 2)) for name in ("full", "overwrite", "sum")})
3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import ours
import pyarrow as pa
import workloads

CELLS = tuple(f"c{i}" for i in range(6))
GROUPS = {"ts_a": CELLS[:2], "ts_b": CELLS[2:4], "ts_c": CELLS[4:]}
STATES = [[0, 1, 2, 3], [2, 1, 0, 3], [1, 3, 2, 0], [3, 0, 1, 2]]  # from state and symbol to state
NULLS, DELETES, CHANGED = 0.3, 0.05, 0.1


class Size(NamedTuple):
    """A size.

    ``keys`` keys are loaded in steps of ``step`` rows. Then ``warm`` steps run without timing, and ``steps`` steps are
    timed.
    """

    keys: int = 1_000_000
    step: int = 100_000
    warm: int = 3
    steps: int = 20


class Line(NamedTuple):
    """A line with its kind of table and the rule for its cells. The line's rate is compared with that of ``base``."""

    kind: str
    rule: str
    base: str | None = None
    what: str = "events"


LINES = {
    "full": Line("plain", "full"),
    "overwrite": Line("plain", "overwrite", "full"),
    "ignore": Line("plain", "ignore", "full"),
    "max": Line("plain", "max", "full"),
    "sum": Line("plain", "sum", "full"),
    "cell": Line("plain", "overwrite", "full"),
    "late-full": Line("late", "full"),
    "late-cell": Line("late", "overwrite", "late-full"),
    "groups-full": Line("groups", "full"),
    "groups": Line("groups", "groups", "groups-full"),
    "append": Line("lists", "append"),
    "union": Line("lists", "union"),
    "dfa-full": Line("symbols", "full"),
    "dfa": Line("symbols", "dfa", "dfa-full"),
    "dfa-arrival": Line("symbols", "dfa", "dfa-full"),
    "deletes": Line("deletes", "full"),
    "tombstones-stay": Line("deletes", "full", "deletes"),
    "tombstones-go": Line("deletes", "full", "deletes"),
    "operator": Line("deletes", "full", "deletes"),
    "to_upserts": Line("updates", "updates", what="updates"),
    "contents-upsert": Line("contents", "full", what="rows"),
    "contents-replace": Line("contents", "full", "contents-upsert", "rows"),
}


def window(size: Size) -> int:
    """Return how late an order value may be. Tombstones that expire are kept for the same span."""
    return size.step * size.steps // 4


def loaded(kind: str, size: Size) -> int:
    """Return the number of tables of a kind that are not timed: those of the load and of the warm-up."""
    return -(-size.keys // size.step) + (1 if kind == "contents" else size.warm)


def tables(kind: str, size: Size) -> list[pa.Table]:
    """Make the tables of a kind. The tables have all keys once in random order, and then random keys. O(events).

    All kinds of tables have the column ``id``. The further columns are:

    - *plain*: ``at`` and six int64 columns with 30 % nulls.
    - *late*: the same, with orders shuffled within a window.
    - *groups*: three order columns instead, two of them late and 30 % null.
    - *deletes*: plain, 5 % delete.
    - *lists*: ``tags`` of 1 to 3 elements, 5 % delete.
    - *symbols*: one of four symbols.
    - *contents*: plain, all keys in each table, one in ten changed.
    - *updates*: ddflow's updates for upserts like W1's.
    """
    rng = np.random.default_rng(5)
    if kind == "contents":
        return _contents(rng, size)
    key = np.concatenate([rng.permutation(size.keys), rng.integers(0, size.keys, size.step * (size.warm + size.steps))])
    if kind == "updates":
        return _updates(rng, key, size)
    made = _columns(rng, kind, key, size)
    starts = [*range(0, size.keys, size.step), *range(size.keys, key.size, size.step)]
    return [made.slice(a, b - a) for a, b in zip(starts, [*starts[1:], key.size], strict=True)]


def _columns(rng: Any, kind: str, key: Any, size: Size) -> pa.Table:
    n, at = key.size, np.arange(key.size)
    gone = (rng.random(n) < DELETES) & (at >= size.keys)
    if kind == "symbols":
        return pa.table({"id": key, "at": at, "symbol": rng.integers(0, 4, n).astype(np.int8)})
    if kind == "lists":
        ends = np.concatenate([[0], np.cumsum(rng.integers(1, 4, n))])
        tags = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(rng.integers(0, 20, ends[-1])))
        return pa.table({"id": key, "at": at, "gone": gone, "tags": tags})
    if kind == "late":
        at = np.argsort(np.argsort(at + rng.random(n) * window(size), kind="stable"))
    cells = {name: pa.array(rng.integers(0, 1000, n), mask=rng.random(n) < NULLS) for name in CELLS}
    if kind == "groups":
        orders = {"ts_a": pa.array(at)}
        for name in ("ts_b", "ts_c"):
            behind = np.where(at < size.keys, 0, rng.integers(0, window(size), n))
            orders[name] = pa.array(np.maximum(at - behind, 0), mask=(rng.random(n) < NULLS) & (at >= size.keys))
        return pa.table({"id": key, **orders, **cells})
    return pa.table({"id": key, "at": at, **({"gone": gone} if kind == "deletes" else {}), **cells})


def _contents(rng: Any, size: Size) -> list[pa.Table]:
    """Make steps with all keys, then tables of whole contents: one first, and one more for every five steps."""
    key, at = rng.permutation(size.keys), np.zeros(size.keys, np.int64)
    cells = [rng.integers(-400, 1000, size.keys) for _ in CELLS]
    out: list[pa.Table] = []
    for number in range(2 + max(1, size.steps // 5)):
        changed = rng.random(size.keys) < (CHANGED if number else 0)
        at, cells[0] = np.where(changed, number, at), np.where(changed, rng.integers(0, 1000, size.keys), cells[0])
        drawn = {name: pa.array(cell, mask=cell < 0) for name, cell in zip(CELLS, cells, strict=True)}
        made = pa.table({"id": key, "at": at, **drawn})
        out += [made] if number else list(workloads.slices(made, size.step))
    return out


def _updates(rng: Any, key: Any, size: Size) -> list[pa.Table]:
    """Return the updates that hold-back mode gives for upserts like those of W1, one table for each step.

    The upserts have ``key`` and ``val``. Each time has a thousand upserts, and 5 % of the upserts delete.
    """
    val = pa.array(rng.integers(0, 1000, key.size), mask=(rng.random(key.size) < DELETES))
    return ours.ddflow_steps(pa.table({"key": key, "val": val, "time": np.arange(key.size) // 1000}), step=size.step)


def digest(rows: pa.Table, diffs: pa.Array | None = None) -> int:
    """Return a checksum that does not depend on the order of rows.

    With ``diffs``, the rows are updates, and their times are ignored. O(cells).
    """
    one = np.ones(rows.num_rows, np.int64)
    columns = [_hashed(column) if pa.types.is_list(column.type) else column for column in rows.columns]
    named = [f"f{i}" for i in range(len(columns))]
    table = pa.table(columns, names=named).append_column("_time", pa.array(one * 0))
    return workloads.checksum([table.append_column("_diff", pa.array(one) if diffs is None else diffs)])


def _hashed(column: pa.ChunkedArray) -> pa.Array:
    """Convert each list to one int64, a sum over its elements and their places. A null gives -1."""
    lists = column.combine_chunks()
    ends, values = lists.offsets.to_numpy().astype(np.int64), lists.values.to_numpy()
    words = np.zeros(values.size + 1, np.uint64)
    place = np.arange(ends[0], ends[-1]) - np.repeat(ends[:-1], np.diff(ends))
    mixed = (values[ends[0] : ends[-1]] + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (place + 1).astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    mixed *= mixed ^ (mixed >> np.uint64(29))
    np.cumsum(mixed, out=words[ends[0] + 1 : ends[-1] + 1])
    sums = (words[ends[1:]] - words[ends[:-1]]).view(np.int64)
    return pa.array(sums & np.int64(2**62 - 1), mask=lists.is_null().to_numpy(zero_copy_only=False))


def expected(name: str, size: Size) -> str:
    """Return the checksum, in hexadecimal, of the rows that a line must have at the end. O(events)."""
    line = LINES[name]
    made = tables(line.kind, size)
    whole = pa.concat_tables(made).combine_chunks()
    if line.rule == "updates":
        return f"{digest(whole.drop_columns(['_time', '_diff']), whole['_diff']):016x}"
    if line.rule in ("append", "union", "dfa"):
        return f"{digest(_by_dict(line.rule, whole)):016x}"
    return f"{digest(_by_numpy(line, whole, size.keys)):016x}"


def _by_numpy(line: Line, whole: pa.Table, keys: int) -> pa.Table:
    """Compute the final rows with numpy. Events are assigned to arrays in order, so the last event of a key remains."""
    numbers = {name: whole[name].fill_null(-1).to_numpy() for name in whole.column_names if name != "gone"}
    key, columns = numbers["id"], {"id": np.arange(keys)}
    order = np.argsort(numbers["at"], kind="stable") if line.kind in ("late", "contents") else np.arange(key.size)
    orders = {cell: name for name, cells in GROUPS.items() for cell in (name, *cells)}
    for name, values in list(numbers.items())[1:]:
        columns[name], there = np.full(keys, -1), order[values[order] >= 0]
        rule = "overwrite" if name == "at" else line.rule
        if rule == "groups":
            stamps = numbers[orders[name]]
            order = np.argsort(stamps, kind="stable")
            order = order[stamps[order] >= 0]
        if rule in ("full", "groups"):
            columns[name][key[order]] = values[order]
        elif rule in ("overwrite", "ignore"):
            there = there if rule == "overwrite" else there[::-1]
            columns[name][key[there]] = values[there]
        elif rule == "max":
            np.maximum.at(columns[name], key, values)
        else:
            columns[name] = np.bincount(key[there], values[there], keys).astype(np.int64)
            columns[name][np.bincount(key[there], minlength=keys) == 0] = -1
    rows = pa.table({name: pa.array(column, mask=column < 0) for name, column in columns.items()})
    if line.kind != "deletes":
        return rows
    live = np.ones(keys, bool)
    live[key] = ~whole["gone"].to_numpy()
    return rows.filter(pa.array(live))


def _by_dict(rule: str, whole: pa.Table) -> pa.Table:
    """Compute the final rows with a loop."""
    held: dict[int, Any] = {}
    if rule == "dfa":
        for key, symbol in zip(whole["id"].to_pylist(), whole["symbol"].to_pylist(), strict=True):
            held[key] = STATES[held.get(key, 0)][symbol]
        return pa.table({"id": list(held), "state": list(held.values())})
    names = ("id", "at", "gone", "tags")
    for key, at, gone, tags in zip(*(whole[name].to_pylist() for name in names), strict=True):
        if gone:
            held.pop(key, None)
        else:
            before: Sequence[int] = held[key][1] if key in held else ()
            held[key] = at, ([*before, *tags] if rule == "append" else list(dict.fromkeys([*before, *tags])))
    lists = pa.array([tags for _, tags in held.values()], pa.list_(pa.int64()))
    return pa.table({"id": list(held), "at": [at for at, _ in held.values()], "tags": lists})
