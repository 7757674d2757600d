"""Count how many slots the look-ups, writes and rebuilds of an index visit, so that tests can bound the probe length.

``counted()`` yields a list of calls with the number of keys and visited slots. The number of visited slots is the
distance from the first slot of an entry to its actual slot. So the kernels need no counters. If a table grows too late,
calls visit thousands of slots for each key, on any machine.

>>> from ddflow.trace.index import Index
>>> index, none = Index(wide=False, words=0), np.empty(0, np.uint64)
>>> with counted() as calls:
...     _ = index.look_up_keys(np.array([1, 2**63], np.uint64), none, np.array([0, 1], np.int32))
>>> calls
[Call(what='seek', keys=2, slots=0)]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from ddflow.kernels import index as kernels

SLOTS = 12
"""Maximum average number of slots for each key.

Adding a key to a full table visits 5 slots on average, and more slots in crowded parts or with bad luck.
"""
CHANCE = 2000
"""Extra slots allowed for a call with few keys."""


class Call(NamedTuple):
    """A call of the index.

    ``slots`` is the number of slots that the call visited but did not use, or of all slots if none was free.
    """

    what: str
    keys: int
    slots: int


def homes(table: Any, capacity: Any, shards: Any, high: Any) -> Any:
    """Return the first slot of each identity.

    To find the first slot within a shard, multiply the remaining bits by the capacity; the upper word of the product is
    the slot.
    """
    return _upper(high, shards) * (table.shape[0] // int(shards)) + _upper(high * shards, capacity)


def _upper(high: Any, factor: Any) -> Any:
    upper, lower = high >> np.uint64(32), high & np.uint64(2**32 - 1)
    return ((upper * factor + (lower * factor >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


@contextmanager
def counted() -> Iterator[list[Call]]:
    """Record the calls in a block. Yield the list to which each call is added."""
    calls, seek, write, rebuild = list[Call](), kernels.look_up_keys, kernels.write_entries, kernels.copy_entries

    def sought(table: Any, capacity: Any, shards: Any, high: Any, low: Any, starts: Any, place: Any, *out: Any) -> None:
        seek(table, capacity, shards, high, low, starts, place, *out)
        ends = np.where(place < 0, table.shape[0], place)
        calls.append(Call("seek", starts.size, int((ends - homes(table, capacity, shards, high[starts])).sum())))

    def written(table: Any, capacity: Any, shards: Any, place: Any, last: Any, high: Any, low: Any, *rest: Any) -> int:
        added = write(table, capacity, shards, place, last, high, low, *rest)
        there = last >= 0
        rows = last[there]
        begin = np.where(place[there] < 0, homes(table, capacity, shards, high[rows]), place[there])
        end, word = np.empty(rows.size, np.int64), np.empty(rows.size, np.int64)
        seek(
            table,
            capacity,
            shards,
            high,
            low,
            rows.astype(np.int32),
            end,
            word,
            word.view(np.uint64),
            np.empty((rows.size, 0), np.int64),
        )
        slots = int((end - begin).sum()) if added >= 0 else table.shape[0] * rows.size
        calls.append(Call("write", rows.size, slots))
        return int(added)

    def rebuilt(
        old: Any, held: Any, parts: Any, table: Any, capacity: Any, shards: Any, first: Any, last: Any, *rest: Any
    ) -> int:
        copied = rebuild(old, held, parts, table, capacity, shards, first, last, *rest)
        each = table.shape[0] // int(shards)
        begin, end = (int(first) * int(shards) >> 64) * each, ((int(last) * int(shards) >> 64) + 1) * each
        at = np.flatnonzero(table[begin:end, kernels.REF]) + begin
        slots = int((at - homes(table, capacity, shards, table[at, kernels.ID])).sum())
        calls.append(Call("rebuild", at.size, slots if copied >= 0 else table.shape[0] * at.size))
        return int(copied)

    with pytest.MonkeyPatch.context() as patch:
        for name, counting in (("look_up_keys", sought), ("write_entries", written), ("copy_entries", rebuilt)):
            patch.setattr(kernels, name, counting)
        yield calls


def check(calls: list[Call]) -> None:
    """Assert that no call visited too many slots for its keys."""
    far = [call for call in calls if call.slots > SLOTS * call.keys + CHANCE]
    assert not far, far
