"""Run the peers in Python and numpy: a dict loop, and two numpy programs over whole arrays.

Every peer keeps the engine's contract. Input: an Arrow table of (key, val or null, time), in time order. Output: Arrow
tables of (key, val, ``_time``, ``_diff``), ordered by ``_time``, with a key's retraction before its assertion. The last
event of a key at a time wins. A null deletes, and an event without a change gives no update. Each contender states its
*assumptions* and whether it orders its output. This module does not measure time.

>>> events = pa.table({"key": [1, 1, 1], "val": [5, 6, None], "time": [0, 1, 1]})
>>> for peer in (dict_loop, numpy_lexsort, numpy_arrival):
...     print([tuple(row.values()) for table in peer(events) for row in table.to_pylist()])
[(1, 5, 0, 1), (1, 5, 1, -1)]
[(1, 5, 0, 1), (1, 5, 1, -1)]
[(1, 5, 0, 1), (1, 5, 1, -1)]
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from workloads import whole

FLUSH = 200_000  # updates that a dict loop collects before it makes an Arrow table


def dict_loop(events: pa.Table, line: str = "upsert") -> list[pa.Table]:
    """Loop over the events with one dict from key to value. No other peer runs every line.

    Within a time, ``dict(zip(...))`` picks the last event of a key at C speed. Updates go into a flat list. With a list
    of tuples, garbage collection takes three times as long as the loop. O(n) time.
    """
    keys, vals, times = (events[name].to_pylist() for name in ("key", "val", "time"))
    sink = _Sink(events.schema, line)
    flat = sink.flat
    state: dict[Any, Any] = {}
    start, n = 0, len(keys)
    for end in _ends(events):
        time = times[start]
        for key, val in dict(zip(keys[start:end], vals[start:end], strict=True)).items():
            old = state.get(key)
            if old == val:
                continue
            if old is not None:
                flat += (key, old, time, -1)
            if val is None:
                del state[key]
            else:
                state[key] = val
                flat += (key, val, time, 1)
        sink.close_time(time, last=end == n)
        start = end
    return sink.tables


def _ends(events: pa.Table) -> list[int]:
    """Return, for each time, the position that follows the last row of the time."""
    times = events["time"].to_numpy()
    return [*(np.flatnonzero(np.diff(times)) + 1).tolist(), len(times)] if len(times) else []


class _Sink:
    """A sink for the updates of the dict loop. The sink applies the line's operators and fills Arrow tables."""

    def __init__(self, schema: pa.Schema, line: str) -> None:
        self.flat: list[Any] = []  # key, val, time, diff, key, val, time, diff, ...
        self.tables: list[pa.Table] = []
        self._filter, self._count = "filter" in line, "count" in line
        self._counts: Counter[Any] = Counter()
        self._done: list[Any] = []
        types = [schema.field("val").type, pa.int64()] if self._count else [f.type for f in schema][:2]
        names = ["val", "count"] if self._count else ["key", "val"]
        columns = list(zip([*names, "_time", "_diff"], [*types, pa.int64(), pa.int64()], strict=True))
        self._schema = pa.schema(columns)

    def close_time(self, time: int, last: bool) -> None:
        """Apply the operators to the updates of one time in ``flat``."""
        flat = self.flat
        if self._filter:
            flat = [x for at in range(0, len(flat), 4) if flat[at + 1] < 100 for x in flat[at : at + 4]]
        if self._count:
            flat = self._counted(flat, time)
        if flat is not self.flat:
            self._done += flat
            self.flat.clear()
            flat = self._done
        if len(flat) >= 4 * FLUSH or last:
            arrays = [pa.array(flat[at::4], field.type) for at, field in enumerate(self._schema)]
            self.tables.append(pa.table(arrays, schema=self._schema))
            flat.clear()

    def _counted(self, flat: list[Any], time: int) -> list[Any]:
        """Return how the updates of one time change the counts."""
        net: Counter[Any] = Counter()
        for val, diff in zip(flat[1::4], flat[3::4], strict=True):
            net[val] += diff
        changes: list[Any] = []
        for val, change in net.items():
            if change:
                old = self._counts[val]
                self._counts[val] = new = old + change
                for count, diff in ((old, -1), (new, 1)):
                    if count:
                        changes += (val, count, time, diff)
        return changes


class Columns(NamedTuple):
    """A workload as plain arrays, with text as dictionary codes, so that numpy sees integers only."""

    key: Any  # int64[n]
    val: Any  # int64[n], 0 if dead
    live: Any  # bool[n], false if the event deletes
    time: Any  # int64[n]
    keys: pa.Array | None  # texts of the codes of `key`, None for integer keys
    vals: pa.Array | None


def columns_of(events: pa.Table) -> Columns:
    """Convert a workload to plain arrays.  O(n)."""
    key, val, time = (whole(events[name]) for name in ("key", "val", "time"))
    keys = vals = None
    live = val.is_valid().to_numpy(zero_copy_only=False)
    if not pa.types.is_integer(key.type):
        encoded = pc.dictionary_encode(key)
        key, keys = pc.cast(encoded.indices, pa.int64()), encoded.dictionary
    if not pa.types.is_integer(val.type):
        encoded = pc.dictionary_encode(val)
        val, vals = pc.cast(encoded.indices, pa.int64()), encoded.dictionary
    return Columns(key.to_numpy(), pc.fill_null(val, 0).to_numpy(), live, time.to_numpy(), keys, vals)


def _updates(columns: Columns, key: Any, val: Any, time: Any, diff: Any) -> list[pa.Table]:
    rows = [
        codes if words is None else words.take(pa.array(codes))
        for codes, words in ((key, columns.keys), (val, columns.vals))
    ]
    return [pa.table([*rows, time, diff], names=["key", "val", "_time", "_diff"])]


def heads(values: Any) -> Any:
    """Return bool[n], which is true at the start of each run of equal values."""
    head = np.empty(len(values), bool)
    head[:1] = True
    np.not_equal(values[1:], values[:-1], out=head[1:])
    return head


def numpy_lexsort(events: pa.Table) -> list[pa.Table]:
    """Sort by (key, time), compare neighbours, and sort updates by time; events may be in any order.

    O(n log n) time, and memory for about twelve arrays of n rows at once.
    """
    columns = columns_of(events)
    order = np.lexsort((columns.time, columns.key))  # stable: the last event of a (key, time) stays last
    key, val, live, time = (array[order] for array in columns[:4])
    last = np.append((heads(key) | heads(time))[1:], True)
    key, val, live, time = key[last], val[last], live[last], time[last]
    had, old = np.roll(live, 1), np.roll(val, 1)
    had &= ~heads(key)
    changed = (had != live) | (had & (old != val))
    out, into = np.flatnonzero(changed & had), np.flatnonzero(changed & live)
    keys, vals = np.concatenate((key[out], key[into])), np.concatenate((old[out], val[into]))
    times, diffs = np.concatenate((time[out], time[into])), np.repeat((-1, 1), (len(out), len(into)))
    by_time = np.argsort(times, kind="stable")  # retractions come first, and stay first within a time
    return _updates(columns, keys[by_time], vals[by_time], times[by_time], diffs[by_time])


def numpy_arrival(events: pa.Table) -> list[pa.Table]:
    """Run the fastest numpy program we found, for events in time order: a single sort by key.

    If the key and the row number fit into one uint64, they are packed into it and sorted with vector instructions. The
    program writes each old value back to the place of its event, so the output needs no sort. O(n log n) time.
    """
    columns = columns_of(events)
    order = by_key(columns.key)
    key, time = columns.key[order], columns.time[order]
    last = np.append((heads(key) | heads(time))[1:], True)
    rows, head = order[last], heads(key[last])
    val, live = columns.val[rows], columns.live[rows]
    had, old = np.roll(live, 1), np.roll(val, 1)
    had &= ~head
    changed = (had != live) | (had & (old != val))

    return in_arrival_order(columns, rows, old, changed & had, changed & live)


def in_arrival_order(columns: Columns, rows: Any, old: Any, retracts: Any, asserts: Any) -> list[pa.Table]:
    """Return the updates of the winners in the order of their rows, each retraction before its assertion.  O(n).

    ``rows`` are the winners' rows. The arguments give for each winner its ``old`` value, whether to retract the old
    value, and whether to assert its own value.
    """
    n = len(columns.key)
    before, out, into = np.empty(n, np.int64), np.zeros(n, bool), np.zeros(n, bool)
    before[rows], out[rows], into[rows] = old, retracts, asserts
    end = np.cumsum(out.view(np.int8) + into.view(np.int8), dtype=np.int64)
    leaving, entering = np.flatnonzero(out), np.flatnonzero(into)
    at_leaving, at_entering = end[leaving] - 1 - into[leaving], end[entering] - 1

    def interleave(of_leaving: Any, of_entering: Any) -> Any:
        column = np.empty(len(leaving) + len(entering), np.int64)
        column[at_leaving] = of_leaving
        column[at_entering] = of_entering
        return column

    vals = interleave(before[leaving], columns.val[entering])
    keys, times = (interleave(array[leaving], array[entering]) for array in (columns.key, columns.time))
    return _updates(columns, keys, vals, times, interleave(-1, 1))


def by_key(key: Any) -> Any:
    """Return the rows ordered by (key, row)."""
    bits = max(len(key) - 1, 1).bit_length()
    least = key.min(initial=0)
    if int(key.max(initial=0)) - int(least) >= 1 << (64 - bits):
        return np.argsort(key, kind="stable")
    packed = (key - least).view(np.uint64) << np.uint64(bits)
    packed |= np.arange(len(key), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << bits) - 1)
    return packed.view(np.int64)
