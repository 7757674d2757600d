"""How far the index looks: slots gone through by every look-up, write and rebuild, counted by a second look.

``counted()`` yields the calls, each with its keys and its slots, as they are made.  What is counted is where an entry
was found less where the look began, so the kernels count nothing themselves; a table that grew too late shows as slots
by the thousand for each key, whatever the machine and its load.

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
"""Slots a key, on average: 5 for a new key in a full table, the others for chance and for crowded parts."""
CHANCE = 2000
"""Slots that a call of a few keys may go through beside."""


class Call(NamedTuple):
    """``slots``: that were looked at and not taken; all of the table where it was left without having found room."""

    what: str
    keys: int
    slots: int


def homes(table: Any, capacity: Any, shards: Any, high: Any) -> Any:
    """Where the entries of some identities belong: in its shard, the upper word of what is left of it by capacity."""
    return _upper(high, shards) * (table.shape[0] // int(shards)) + _upper(high * shards, capacity)


def _upper(high: Any, factor: Any) -> Any:
    upper, lower = high >> np.uint64(32), high & np.uint64(2**32 - 1)
    return ((upper * factor + (lower * factor >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


@contextmanager
def counted() -> Iterator[list[Call]]:
    """Yields the calls, in their order."""
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
    """Assert that no call went through more slots than its keys are worth."""
    far = [call for call in calls if call.slots > SLOTS * call.keys + CHANCE]
    assert not far, far
