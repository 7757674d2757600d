"""An arrangement reads, at every time that it still tells apart, what a dict of histories says; whatever was merged."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddflow.arrange.arrangement import Arrangement, Change
from ddflow.arrange.batch import Batch
from ddflow.arrange.spine import choose
from ddflow.errors import CorruptState, NotReadable, TimeWentBack
from ddflow.frontier import NEVER, Description
from ddflow.kernels.resolve import LIVE
from ddflow.rows import Rows, gather

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string(), "l": pa.list_(pa.int64())})
Version = tuple[int, bool, int]
"""Time, live, a number that its payload, value hash and order are made of."""


class Twin:
    """Histories of keys, and the arrangement that must agree with them."""

    def __init__(self, seed: int, wide: bool, words: int, keeps: bool) -> None:
        self.random = random.Random(seed)
        self.wide, self.words, self.keeps = wide, words, keeps
        self.arranged = Arrangement(SCHEMA, wide, words, keeps)
        self.histories: dict[int, list[Version]] = defaultdict(list)
        self.numbers = 0

    def identity(self, key: int) -> tuple[int, int]:
        """Spread over the words, but a fifth of the keys in one crowd (one first word, where there are two)."""
        crowd = 7 << 61
        if key % 5 == 0:
            return (crowd, key) if self.wide else (crowd + key, 0)
        return key * 0x9E3779B97F4A7C15 % 2**64, key % 2

    def live(self, key: int, at: int | None = None) -> Version | None:
        seen = [version for version in self.histories[key] if at is None or version[0] <= at]
        return seen[-1] if seen and seen[-1][1] else None

    def draw(self, keys: int, upper: int) -> dict[int, list[Version]]:
        """New versions of some keys, at times from the upper so far to below the next one."""
        times = range(max(self.arranged.upper, 0), upper)
        drawn = {}
        for key in self.random.sample(range(keys), self.random.randint(0, min(keys, 6))):
            live, versions = self.live(key) is not None, []
            for time in sorted(self.random.sample(times, min(len(times), self.random.randint(1, 2)))):
                now = not (live or self.keeps) or self.random.random() < 0.6
                self.numbers += 1
                versions.append((time, now, self.numbers))
                live = now
            drawn[key] = versions
        return drawn

    def apply(self, drawn: dict[int, list[Version]], upper: int, since: int) -> None:
        rows = sorted((self.identity(key), version, key) for key, versions in drawn.items() for version in versions)
        keys, numbers = [key for _, _, key in rows], [version[2] for _, version, _ in rows]
        last = [i for i in range(len(rows)) if i + 1 == len(rows) or rows[i + 1][2] != rows[i][2]]
        order = np.array([[number + w for w in range(self.words)] for number in numbers], np.int64)
        self.arranged.apply(Change(
            np.array([high for (high, _), _, _ in rows], np.uint64),
            np.array([low for (_, low), _, _ in rows] if self.wide else [], np.uint64),
            np.array([version[0] for _, version, _ in rows], np.int64),
            np.array([version[1] for _, version, _ in rows], np.uint8),
            np.array(numbers, np.uint64), order.reshape(len(rows), self.words),
            pa.table({"k": keys, "v": [str(n) for n in numbers], "l": [[n] for n in numbers]}, SCHEMA),
            np.array(last, np.int64),
        ), upper, since)  # fmt: skip
        for key, versions in drawn.items():
            self.histories[key] += versions

    def assert_reads(self, at: int | None) -> None:
        found = {row["k"]: (row["v"], row["l"]) for row in self.arranged.read(at).to_pylist()}
        expected = {key: version for key in list(self.histories) if (version := self.live(key, at))}
        assert found == {key: (str(number), [number]) for key, (_, _, number) in expected.items()}

    def assert_seeks(self, keys: int) -> None:
        ordered = sorted(range(keys), key=self.identity)
        high = np.array([self.identity(key)[0] for key in ordered], np.uint64)
        low = np.array([self.identity(key)[1] for key in ordered] if self.wide else [], np.uint64)
        held = self.arranged.seek(high, low, np.arange(keys))
        there = np.flatnonzero((held.reference & LIVE != 0) | ((held.reference != 0) & self.keeps))
        rows = gather(self.arranged.sources(), held.reference[there], SCHEMA).to_pylist()
        assert [(row["k"], row["v"]) for row in rows] == [(ordered[i], str(held.value[i])) for i in there]
        for i, key in enumerate(ordered):
            newest = self.histories[key][-1] if self.histories[key] else None
            assert bool(held.reference[i] & LIVE) == (newest is not None and newest[1])
            if newest is not None and (newest[1] or self.keeps):
                assert held.reference[i] and held.value[i] == newest[2]
                assert held.order[i].tolist() == [newest[2] + w for w in range(self.words)]


@settings(max_examples=12)
@given(st.integers(0, 2**32), st.booleans(), st.integers(0, 2), st.booleans(), st.sampled_from([0, 3, 1000]))
def test_reads_at_every_time_since_are_those_of_the_histories(
    seed: int, wide: bool, words: int, keeps: bool, retain: int
) -> None:
    twin, upper, keys = Twin(seed, wide, words, keeps), 0, 40
    for _ in range(90):
        upper += twin.random.randint(1, 3)
        since = max(twin.arranged.since, upper - 1 - retain) if twin.random.random() < 0.8 else twin.arranged.since
        twin.apply(twin.draw(keys, upper), upper, since)
        twin.arranged._check()
        assert (twin.arranged.upper, twin.arranged.since) == (upper, since)
        twin.assert_reads(None)
        for at in {twin.random.randint(max(twin.arranged.since, -1), upper - 1) for _ in range(2)}:
            twin.assert_reads(at)
    twin.assert_seeks(keys)
    assert twin.arranged.spine.copied > 0  # something was merged, or this test shows nothing
    with pytest.raises(NotReadable, match=f"it can be read from .* up to, not including, {upper}"):
        twin.arranged.read(upper)


@pytest.mark.parametrize("keeps", [False, True])
def test_merging_keeps_batches_few_and_garbage_below_half(keeps: bool) -> None:
    twin, keys = Twin(5, False, 1, keeps), 30
    for upper in range(1, 400):
        twin.apply(twin.draw(keys, upper), upper, upper - 1)
        sizes = [len(batch) for batch in twin.arranged.spine.batches]
        needed = max(len(twin.arranged.index), twin.arranged.spine.collected)
        assert choose(sizes, needed) is None and len(sizes) < 80
        assert sum(sizes) <= 2 * needed + 64
    assert twin.arranged.spine.copied > 0
    twin.arranged._check()
    twin.assert_reads(None)


def test_merging_at_any_moment_with_any_since_changes_no_read() -> None:
    twin, since = Twin(9, True, 1, True), NEVER
    for upper in range(1, 61):
        since = max(since, upper - twin.random.choice([1, 5, 9]))
        twin.apply(twin.draw(20, upper), upper, since)
        spine = twin.arranged.spine
        if len(spine):
            spine.merge(twin.random.randrange(len(spine)), twin.arranged.index, twin.arranged.since)
            twin.arranged._check()
        for at in range(max(since, 0), upper):
            twin.assert_reads(at)
    twin.assert_seeks(20)


def test_since_never_retreats_and_upper_never_goes_back() -> None:
    twin = Twin(1, False, 0, False)
    twin.apply({1: [(0, True, 1)]}, 5, 3)
    twin.arranged.apply(None, 6, 1)
    assert (twin.arranged.since, twin.arranged.upper) == (3, 6)
    with pytest.raises(TimeWentBack):
        twin.arranged.apply(None, 4, 3)
    with pytest.raises(NotReadable, match="from 3 up to, not including, 6"):
        twin.arranged.read(2)


def test_an_arrangement_that_holds_nothing_can_be_read() -> None:
    arranged = Arrangement(SCHEMA, True, 2)
    assert arranged.read().schema == SCHEMA and arranged.read().num_rows == 0
    arranged.apply(None, 5, 1)
    assert arranged.read(2).num_rows == arranged.read(4).num_rows == 0
    arranged._check()


def test_a_table_that_was_read_does_not_change_with_later_steps() -> None:
    twin = Twin(2, False, 0, False)
    twin.apply({key: [(0, True, key)] for key in range(1, 20)}, 1, 0)
    before = twin.arranged.read()
    rows = before.to_pylist()
    for upper in range(2, 80):
        twin.apply(twin.draw(20, upper), upper, upper - 1)
    assert before.to_pylist() == rows


def two_values_of_one_key(live: tuple[bool, bool] = (True, True)) -> dict[int, list[Version]]:
    return {3: [(2, live[0], 1), (2, live[1], 2)], 4: [(1, True, 3), (3, True, 4)]}


def test_two_live_values_of_a_key_at_one_time_are_corrupt_state_and_never_a_silent_pick() -> None:
    twin = Twin(1, False, 0, False)
    twin.apply(two_values_of_one_key(), 5, 0)
    for at in (2, 3):
        with pytest.raises(CorruptState, match="two values at one time, 2; do not use this state"):
            twin.arranged.read(at)
    with pytest.raises(CorruptState, match="two values of one key at time 2"):
        twin.arranged._check()
    with pytest.raises(CorruptState, match="a read or a merge"):
        twin.arranged.spine.merge(0, twin.arranged.index, 0)


def test_a_batch_out_of_order_or_out_of_its_times_fails_its_check() -> None:
    def batch(high: list[int], time: list[int]) -> Any:
        return Batch.of(Description(0, 5, 0), high, time, [True] * len(high), pa.table({"k": high}))

    batch([1, 1, 2], [0, 4, 1])._check()
    with pytest.raises(AssertionError, match="hash order"):
        batch([2, 1], [0, 0])._check()
    with pytest.raises(AssertionError, match="Description"):
        batch([1], [5])._check()
    with pytest.raises(CorruptState, match="rows 1 and 2 are two values of one key at time 3"):
        batch([1, 2, 2], [0, 3, 3])._check()


def test_payload_of_a_batch_is_counted() -> None:
    small, large = (Batch.of(Description(0, 1, 0), [1], [0], [True], pa.table({"v": ["x" * n]})) for n in (1, 10_000))
    assert large.nbytes - small.nbytes == 9_999
    assert Rows(pa.table({"v": [1, 2]})).nbytes == 16
