"""Measure an upper limit of speed with compiled loops over an open-addressing table from int64 to int64.

The loops write updates as the contract in `peers` demands, and do nothing else. ``limit`` is the fastest loop we found.
For each time, this loop finds the last event of each key with a small table that fits the first-level cache. Then the
loop reads the slots of these keys in the big table. These memory accesses overlap, so the processor waits for memory
once instead of a thousand times. As its last action for this time, the loop writes the updates. ``limit_plain``
processes one event after another. Limits: the loops support only int64, keep no history, give no verdicts, and need
events in time order. The least int64 marks an empty slot, so it cannot be a key.

>>> events = pa.table({"key": [1, 1, 1], "val": [5, 6, None], "time": [0, 1, 1]})
>>> for loop in (limit, limit_plain):
...     print([tuple(row.values()) for table in loop(events) for row in table.to_pylist()])
[(1, 5, 0, 1), (1, 5, 1, -1)]
[(1, 5, 0, 1), (1, 5, 1, -1)]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numba import njit
from workloads import slices, whole

Loop = TypeVar("Loop", bound=Callable[..., Any])
compiled: Callable[[Loop], Loop] = njit(nogil=True)

STEP = 100_000
NOTHING = np.int64(-(2**63))
FIBONACCI = np.uint64(0x9E3779B97F4A7C15)

# These are tuples, not objects: reading an object's field in a loop counts references, which halves the speed.
# - `table`: the slots, int64[width * capacity]; the shift from hash to slot; the number of used slots.
# - `events`: key, val, the validity bits of val with the offset of the first bit, and time.
# - `out`: key, val, time and diff, each int64[2n].
# - `scratch`: a small table of rows, where -1 is a free slot; int64[n] for rows; int64[n] for slots.


@compiled
def _grown(slots: Any, shift: Any, width: int) -> Any:
    """Copy the slots into a table with twice the capacity; return its slots and its shift."""
    old, slots, shift = slots, np.full(slots.size * 2, NOTHING), shift - np.uint64(1)
    mask = slots.size // width - 1
    for at in range(0, old.size, width):
        if old[at] != NOTHING:
            slot = np.int64((np.uint64(old[at]) * FIBONACCI) >> shift)
            while slots[slot * width] != NOTHING:
                slot = (slot + 1) & mask
            for word in range(width):
                slots[slot * width + word] = old[at + word]
    return slots, shift


@compiled
def _winners(key: Any, begin: int, end: int, scratch: Any) -> int:
    """Write the last row of each key in [begin, end) to the scratch rows, with the latest row first.

    Return the number of these rows.
    """
    small, rows, slots = scratch
    size, shift = 1, np.uint64(64)
    while size < 2 * (end - begin):
        size, shift = size * 2, shift - np.uint64(1)
    found = 0
    for row in range(end - 1, begin - 1, -1):
        wanted = key[row]
        slot = np.int64((np.uint64(wanted) * FIBONACCI) >> shift)
        held = small[slot]
        while held >= 0 and key[held] != wanted:
            slot = (slot + 1) & (size - 1)
            held = small[slot]
        if held < 0:
            small[slot], rows[found], slots[found] = row, row, slot
            found += 1
    for place in range(found):
        small[slots[place]] = -1
    return found


@compiled
def _in_groups(table: Any, events: Any, out: Any, scratch: Any) -> Any:
    """Implement `limit`, whose slots are (key, value)."""
    keys, vals, bits, offset, times = events
    out_key, out_val, out_time, out_diff = out
    _, rows, places = scratch
    slots, shift, used = table
    written, begin, seen = 0, 0, 0
    while begin < keys.size:
        time, end = times[begin], begin + 1
        while end < keys.size and times[end] == time:
            end += 1
        winners = _winners(keys, begin, end, scratch)
        while (used + winners) * 4 > slots.size:
            slots, shift = _grown(slots, shift, 2)
        mask = slots.size // 2 - 1
        for place in range(winners):
            slot = np.int64((np.uint64(keys[rows[place]]) * FIBONACCI) >> shift)
            places[place] = slot
            seen ^= slots[slot * 2]
        for place in range(winners - 1, -1, -1):
            row, slot = rows[place], places[place]
            key = keys[row]
            while slots[slot * 2] != key and slots[slot * 2] != NOTHING:
                slot = (slot + 1) & mask
            if slots[slot * 2] == NOTHING:
                slots[slot * 2] = key
                used += 1
            bit = offset + row
            new = vals[row] if bits[bit >> 3] >> (bit & 7) & 1 else NOTHING
            old = slots[slot * 2 + 1]
            if new == old:
                continue
            slots[slot * 2 + 1] = new
            if old != NOTHING:
                out_key[written], out_val[written], out_time[written], out_diff[written] = key, old, time, -1
                written += 1
            if new != NOTHING:
                out_key[written], out_val[written], out_time[written], out_diff[written] = key, new, time, 1
                written += 1
        begin = end
    places[0] = seen  # keeps the compiler from removing the look-ahead
    return (slots, shift, used), written


@compiled
def _one_by_one(table: Any, events: Any, out: Any, scratch: Any) -> Any:
    """Implement `limit_plain`, whose slots are (key, value, value before this time, time last seen)."""
    keys, vals, bits, offset, times = events
    out_key, out_val, out_time, out_diff = out
    _, _, places = scratch
    slots, shift, used = table
    written, begin = 0, 0
    while begin < keys.size:
        time, end, touched = times[begin], begin + 1, 0
        while end < keys.size and times[end] == time:
            end += 1
        while (used + end - begin) * 8 > slots.size:
            slots, shift = _grown(slots, shift, 4)
        mask = slots.size // 4 - 1
        for row in range(begin, end):
            key = keys[row]
            slot = np.int64((np.uint64(key) * FIBONACCI) >> shift)
            while slots[slot * 4] != key and slots[slot * 4] != NOTHING:
                slot = (slot + 1) & mask
            at = slot * 4
            if slots[at] == NOTHING:
                slots[at] = key
                used += 1
            if slots[at + 3] != time:
                slots[at + 2], slots[at + 3] = slots[at + 1], time
                places[touched] = at
                touched += 1
            bit = offset + row
            slots[at + 1] = vals[row] if bits[bit >> 3] >> (bit & 7) & 1 else NOTHING
        for place in range(touched):
            at = places[place]
            key, new, old = slots[at], slots[at + 1], slots[at + 2]
            if new != old and old != NOTHING:
                out_key[written], out_val[written], out_time[written], out_diff[written] = key, old, time, -1
                written += 1
            if new != old and new != NOTHING:
                out_key[written], out_val[written], out_time[written], out_diff[written] = key, new, time, 1
                written += 1
        begin = end
    return (slots, shift, used), written


def limit(events: pa.Table) -> list[pa.Table]:
    """Run the fastest loop. O(n) expected time. Raises ValueError if an event has the least int64."""
    return _run(events, _in_groups, 2)


def limit_plain(events: pa.Table) -> list[pa.Table]:
    """Run the plain loop, one event after another.

    O(n) expected time. Raises ValueError if an event has the least int64.
    """
    return _run(events, _one_by_one, 4)


def _run(events: pa.Table, loop: Callable[..., Any], width: int) -> list[pa.Table]:
    table = (np.full(width * 1024, NOTHING), np.uint64(64 - 10), 0)
    size = 1 << (4 * STEP).bit_length()
    scratch = (np.full(size, -1, np.int64), np.empty(STEP, np.int64), np.empty(STEP, np.int64))
    tables = []
    # All events of a time must be in one step; otherwise the loop would treat them as events of two times. In these
    # workloads, each step has complete times.
    for piece in slices(events, STEP):
        out = tuple(np.empty(2 * piece.num_rows, np.int64) for _ in range(4))
        table, written = loop(table, _columns(piece), out, scratch)
        tables.append(pa.table([column[:written] for column in out], names=["key", "val", "_time", "_diff"]))
    return tables


def _columns(events: pa.Table) -> tuple[Any, ...]:
    key, val, time = (whole(events[name]) for name in ("key", "val", "time"))
    bits, numbers = val.buffers()
    numbers = np.frombuffer(numbers, np.int64)[val.offset : val.offset + len(val)]
    every = np.full(len(val) // 8 + 2, 255, np.uint8)
    offset, bits = (0, every) if bits is None else (val.offset, np.frombuffer(bits, np.uint8))
    for numbers_ in (key.to_numpy(), numbers):
        if len(numbers_) and numbers_.min() == NOTHING:
            raise ValueError(f"{NOTHING} is a key or a value, but the limit reserves it for empty slots")
    return key.to_numpy(), numbers, bits, offset, time.to_numpy()
