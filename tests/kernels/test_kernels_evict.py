"""Test that eviction equals deletion from a dict: other keys are found and writes continue, in a table of any load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.kernels.gather import SLOT, SLOTS
from ddflow.kernels.index import ID, LOW, REF, describe_shard, evict_entries, look_up_keys
from ddflow.kernels.resolve import LIVE, OCCUPIED

pytestmark = pytest.mark.kernels
TOP = 2**64 - 1
BATCHES = 4
Key = tuple[int, int]
Entry = tuple[int, int, int]
"""Value hash, reference with flags, the order's word."""
# Uniform ones, and crowds of one home slot at either end and in the middle.
highs = st.one_of(
    st.integers(0, TOP), st.integers(0, 9), st.integers(0, 9).map(lambda i: (1 << 62) + i), st.integers(TOP - 9, TOP)
)
references = st.builds(
    lambda batch, row, live: OCCUPIED | (LIVE if live else 0) | batch << SLOT | row,
    st.integers(0, BATCHES - 1),
    st.integers(0, (1 << SLOT) - 1),
    st.booleans(),
)
entries = st.tuples(st.integers(0, TOP), references, st.integers(-(2**63), 2**63 - 1))
goners = st.lists(st.integers(0, 1), min_size=BATCHES, max_size=BATCHES)


class Table:
    """An index's table, entries put as an index would; and its twin, a dict."""

    def __init__(self, wide: bool, capacity: int, slots: int) -> None:
        self.wide, self.capacity = wide, np.uint64(capacity)
        self.words = np.zeros((slots, 4 + wide), np.uint64)
        self.twin: dict[Key, Entry] = {}

    def columns(self, keys: list[Key]) -> tuple[Any, Any]:
        high = np.array([high for high, _ in keys], np.uint64)
        return high, np.array([low for _, low in keys] if self.wide else [], np.uint64)

    def put(self, entries: dict[Key, Entry]) -> None:
        for (high, low), (value, reference, order) in entries.items():
            slot = high * int(self.capacity) >> 64
            while self.words[slot, REF] and (self.words[slot, ID], self.words[slot, LOW] if self.wide else 0) != (
                high,
                low,
            ):
                slot += 1
            self.words[slot] = [high, value, reference, *([low] if self.wide else []), order % 2**64]
        self.twin |= entries

    def evict(self, begin: int, end: int, gone: list[int]) -> None:
        leaving = [
            key
            for key, (_, reference, _) in self.twin.items()
            if begin <= key[0] < (end or 2**64) and gone[reference >> SLOT & SLOTS]
        ]
        n = evict_entries(
            self.words, self.capacity, np.uint64(0), np.uint64(begin), np.uint64(end), np.array(gone, np.uint8)
        )
        assert n == len(leaving)
        for key in leaving:
            del self.twin[key]

    def check(self, others: list[Key]) -> None:
        """Each entry is at or after its home with no hole between, and found; others are not; free slots are clean."""
        taken = self.words[:, REF] != 0
        assert not self.words[~taken].any()
        assert int(taken.sum()) == len(self.twin)
        for slot in np.flatnonzero(taken):
            home = int(self.words[slot, ID]) * int(self.capacity) >> 64
            assert home <= slot and taken[home : slot + 1].all()
        keys = sorted({*self.twin, *others})
        n = len(keys)
        place, reference, value = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.uint64)
        order = np.empty((n, 1), np.int64)
        starts = np.arange(n, dtype=np.int32)
        # A search ends at an empty slot, and the last slot of a shard is always empty.
        words = np.concatenate([self.words, np.zeros((1, self.words.shape[1]), np.uint64)])
        directory = np.array([describe_shard(words, int(self.capacity), 0, 0, n)] * 2, np.uint64)
        probe = directory, np.uint64(63), np.uint64(words.strides[0])
        look_up_keys(*probe, *self.columns(keys), starts, place, reference, value, order)
        rows = zip(value.tolist(), reference.tolist(), order[:, 0].tolist(), strict=True)
        assert [row if row[1] else None for row in rows] == [self.twin.get(key) for key in keys]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Some entries, put in an order of their own; sometimes in the least slots that hold them."""
    wide = draw(st.booleans())
    keys = st.tuples(highs, st.integers(0, 2) if wide else st.just(0))
    held = draw(st.dictionaries(keys, entries, max_size=24))
    shuffled = {key: held[key] for key in draw(st.permutations(sorted(held)))}
    capacity = draw(st.integers(1, 40))
    table = Table(wide, capacity, capacity + len(held))
    table.put(shuffled)
    if draw(st.booleans()):  # no slot to spare: a crowd at the end fills the last one
        table.words = table.words[: max([capacity, *(np.flatnonzero(table.words[:, REF]) + 1).tolist()])].copy()
    return table


@given(tables(), st.lists(st.tuples(highs, st.one_of(st.just(0), highs), goners), min_size=1, max_size=4))
def test_what_is_evicted_is_gone_and_all_else_is_found(table: Table, rounds: list[tuple[int, int, list[int]]]) -> None:
    every = list(table.twin)
    for begin, end, gone in rounds:
        table.evict(begin, end, gone)
        table.check(every)


@given(tables(), st.sets(highs, max_size=5), goners, st.dictionaries(st.tuples(highs, st.just(0)), entries, max_size=8))
def test_range_by_range_it_is_as_at_once_and_writing_goes_on(
    table: Table, cuts: set[int], gone: list[int], more: dict[Key, Entry]
) -> None:
    every, bounds = list(table.twin), sorted({0, *cuts})
    for begin, end in zip(bounds, [*bounds[1:], 0], strict=True):
        table.evict(begin, end, gone)
    assert not [key for key, (_, reference, _) in table.twin.items() if gone[reference >> SLOT & SLOTS]]
    table.check(every)
    table.words = np.concatenate([table.words, np.zeros((len(more), table.words.shape[1]), np.uint64)])
    table.put(more)
    table.check(every)


@given(tables(), highs, highs, goners)
def test_entries_move_towards_their_homes_only(table: Table, begin: int, end: int, gone: list[int]) -> None:
    def places() -> dict[Key, int]:
        taken = np.flatnonzero(table.words[:, REF])
        low = table.words[taken, LOW].tolist() if table.wide else [0] * taken.size
        return dict(zip(zip(table.words[taken, ID].tolist(), low, strict=True), taken.tolist(), strict=True))

    before = places()
    table.evict(begin, end, gone)
    assert all(place <= before[key] for key, place in places().items())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("crowd", ["one identity's first word", "the beginning", "the middle", "the end"])
@pytest.mark.parametrize("way", [1, -1])
def test_a_crowd_is_thinned_out(wide: bool, crowd: str, way: int) -> None:
    first = {"the end": TOP - 149, "the middle": 1 << 63, "the beginning": 0}.get(crowd)
    keys = [(1 << 62, i) if first is None else (first + i, 0) for i in range(150)]
    if first is None and not wide:
        keys = keys[:1]
    table = Table(wide, 64, 64 + len(keys))
    table.put({key: (i, OCCUPIED | (i % 3) << SLOT | i, -i) for i, key in enumerate(keys[::way])})
    table.evict(0, 0, [0, 0, 0, 1])
    assert len(table.twin) == len(keys)
    table.check(keys)
    table.evict(keys[len(keys) // 2][0], 0, [0, 1, 0, 0])
    table.check(keys)
    table.evict(0, keys[len(keys) // 2][0], [0, 1, 1, 0])
    table.check(keys)
    table.evict(0, 0, [1] * BATCHES)
    assert not table.words.any()


def test_of_an_empty_range_nothing_goes() -> None:
    table = Table(False, 8, 12)
    table.put({(i << 61, 0): (i, OCCUPIED | i, i) for i in range(8)})
    for begin, end in ((5, 5), (TOP, TOP), (6, 5), (TOP, 1)):
        table.evict(begin, end, [1] * BATCHES)
    assert len(table.twin) == 8
    table.evict(7 << 61, (7 << 61) + 1, [1] * BATCHES)
    assert len(table.twin) == 7
    table.check([(i << 61, 0) for i in range(8)])
