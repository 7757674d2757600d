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

import ddflow.kernels.step  # noqa: F401 - binds the kernels by name, before they are replaced
from ddflow.kernels import index as kernels

SLOTS = 12
"""Maximum average number of slots for each key.

Adding a key to a full table visits 5 slots on average, and more slots in crowded parts or with bad luck.
"""
CHANCE = 2000
"""Extra slots allowed for a call with few keys."""


class Call(NamedTuple):
    """A call of the index.

    ``slots`` is the number of slots that the call visited but did not use.
    """

    what: str
    keys: int
    slots: int


def homes(directory: Any, shift: Any, line: Any, high: Any) -> Any:
    """Return the address of the first slot of each identity.

    Shift the leading bits out of the identity, and multiply it by the number of homes; the upper word of the product is
    the slot.
    """
    rows = directory[high >> shift]
    slots = _upper(high << rows[:, kernels.BITS], rows[:, kernels.HOMES])
    return (rows[:, kernels.START] + slots * line).astype(np.int64)


def _upper(high: Any, factor: Any) -> Any:
    upper, lower = high >> np.uint64(32), high & np.uint64(2**32 - 1)
    return (upper * factor + (lower * factor >> np.uint64(32))) >> np.uint64(32)


@contextmanager
def counted() -> Iterator[list[Call]]:
    """Record the calls in a block. Yield the list to which each call is added."""
    calls, seek, write, rebuild = list[Call](), kernels.look_up_keys, kernels.write_entries, kernels.copy_entries

    def count(what: str, probe: tuple[Any, ...], high: Any, low: Any, begin: Any = -1) -> None:
        """Add a call.  ``begin``: the places where the searches began, -1 for the home."""
        n = high.size
        end, word, rows = np.empty(n, np.int64), np.empty(n, np.int64), np.arange(n, dtype=np.int32)
        seek(*probe, high, low, rows, end, word, word.view(np.uint64), np.empty((n, 0), np.int64))
        far = end - np.where(begin >= 0, begin, homes(*probe, high))
        calls.append(Call(what, n, int(far.sum()) // int(probe[2])))

    def sought(directory: Any, shift: Any, line: Any, high: Any, low: Any, starts: Any, *out: Any) -> None:
        seek(directory, shift, line, high, low, starts, *out)
        count("seek", (directory, shift, line), high[starts], low[starts] if low.size else low)

    def written(directory: Any, shift: Any, line: Any, place: Any, last: Any, high: Any, low: Any, *rest: Any) -> int:
        added = int(write(directory, shift, line, place, last, high, low, *rest))
        there = np.flatnonzero(last[: last.size if added >= 0 else -1 - added] >= 0)
        rows = last[there]
        count("write", (directory, shift, line), high[rows], low[rows] if low.size else low, place[there])
        return added

    def rebuilt(table: Any, keep: Any, wide: bool, *probe: Any) -> int:
        copied = int(rebuild(table, keep, wide, *probe))
        kept = table[table[:, kernels.REF] & keep != 0]
        high, low = (np.ascontiguousarray(kept[:, column]) for column in (kernels.ID, kernels.LOW if wide else 0))
        count("rebuild", probe, high, low[: high.size * wide])
        return copied

    with pytest.MonkeyPatch.context() as patch:
        for name, counting in (("look_up_keys", sought), ("write_entries", written), ("copy_entries", rebuilt)):
            patch.setattr(kernels, name, counting)
        yield calls


def check(calls: list[Call]) -> None:
    """Assert that no call visited too many slots for its keys."""
    far = [call for call in calls if call.slots > SLOTS * call.keys + CHANCE]
    assert not far, far
