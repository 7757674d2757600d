"""Test that an arrangement reads like a dict of histories, at every time from since on and after any merges."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort, mid_test
from hypothesis import assume, given, strategies as st
from messages import raises

from ddflow.columns.hashing import NONE
from ddflow.columns.rows import Rows, gather_table
from ddflow.errors import CorruptState, NotReadable, SpillFull, TimeWentBack
from ddflow.kernels.resolve import LIVE
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.scratch import ScratchStore
from ddflow.time import NEVER, BatchDescription
from ddflow.trace import spine as spines
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, Batch, BatchSlots, Run
from ddflow.trace.merge import RunMerge
from ddflow.trace.spine import EFFORT, FAN, GARBAGE, Spine, choose_merge_start

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

    def columns(self, keys: list[int]) -> tuple[Any, Any]:
        """The identities of keys, as arrays."""
        ids = [self.identity(key) for key in keys]
        high = np.array([high for high, _ in ids], np.uint64)
        return high, np.array([low for _, low in ids], np.uint64) if self.wide else NONE

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
        """Take versions in, as an operator does: looked for, then applied; sometimes as two ranges of identities, and
        with keys that were looked for and have not changed."""
        asked = sorted({*drawn, *self.random.sample([*self.histories], min(len(self.histories), 2))}, key=self.identity)
        cut = self.random.choice([0, *range(len(asked))])
        while 0 < cut < len(asked) and self.identity(asked[cut])[0] == self.identity(asked[cut - 1])[0]:
            cut += 1
        changes = [self.change(some, drawn) for some in (asked[:cut], asked[cut:]) if some]
        for key, versions in drawn.items():
            self.histories[key] += versions
        self.arranged.apply_changes(changes, upper, since)

    def change(self, keys: list[int], drawn: dict[int, list[Version]]) -> ArrangementChange:
        """What happens to some keys, in the order of identities."""
        held = self.arranged.look_up_keys(*self.columns(keys), np.arange(len(keys), dtype=np.int32))
        rows = [(key, *version) for key in keys for version in drawn.get(key, [])]
        ends = np.cumsum([len(drawn.get(key, [])) for key in keys])
        last = [int(end) - 1 if key in drawn else -1 for key, end in zip(keys, ends, strict=True)]
        numbers, live_added, tombstones_added = [number for *_, number in rows], 0, 0
        for key in set(keys) & {key for key, *_ in rows}:
            before, after = self.histories[key][-1:], drawn[key][-1]
            live_added += after[1] - (self.live(key) is not None)
            tombstones_added += self.keeps * ((not after[1]) - (before != [] and not before[0][1]))
        order = np.array([[number + w for w in range(self.words)] for number in numbers], np.int64)
        payload = pa.table(
            {"k": [key for key, *_ in rows], "v": list(map(str, numbers)), "l": [[n] for n in numbers]}, SCHEMA
        )
        batch = Batch(
            *self.columns([key for key, *_ in rows]),
            np.array([time for _, time, *_ in rows], np.int64),
            np.array([now for _, _, now, _ in rows], np.uint8),
            NONE,
            order.reshape(len(rows), self.words),
            Rows(payload),
        )
        return ArrangementChange(
            batch,
            np.array(numbers, np.uint64),
            np.array(last, np.int64),
            held.place,
            self.arranged.index.built,
            live_added,
            tombstones_added,
        )

    def assert_reads(self, at: int | None) -> None:
        found = {row["k"]: (row["v"], row["l"]) for row in self.arranged.read(at).to_pylist()}
        expected = {key: version for key in list(self.histories) if (version := self.live(key, at))}
        assert found == {key: (str(number), [number]) for key, (_, _, number) in expected.items()}

    def assert_reads_since(self) -> None:
        """At every time that can be told apart, and now."""
        for at in [None, *range(max(self.arranged.since, 0), self.arranged.upper)]:
            self.assert_reads(at)

    def assert_seeks(self, keys: int) -> None:
        ordered = sorted(range(keys), key=self.identity)
        held = self.arranged.look_up_keys(*self.columns(ordered), np.arange(keys, dtype=np.int32))
        there = np.flatnonzero((held.reference & LIVE != 0) | ((held.reference != 0) & self.keeps))
        rows = gather_table(self.arranged.prepare_row_pool(), held.reference[there], SCHEMA).to_pylist()
        assert [(row["k"], row["v"]) for row in rows] == [(ordered[i], str(held.value[i])) for i in there]
        for i, key in enumerate(ordered):
            newest = self.histories[key][-1] if self.histories[key] else None
            assert bool(held.reference[i] & LIVE) == (newest is not None and newest[1])
            if newest is not None and (newest[1] or self.keeps):
                assert held.reference[i] and held.value[i] == newest[2]
                assert held.order[i].tolist() == [newest[2] + w for w in range(self.words)]
        tombstones = sum(not history[-1][1] for history in self.histories.values() if history)
        assert self.arranged.tombstone_count == (tombstones if self.keeps else 0)


@effort(12)
@given(st.integers(0, 2**32), st.booleans(), st.integers(0, 2), st.booleans(), st.sampled_from([0, 3, 1000]))
def test_reads_at_every_time_since_are_those_of_the_histories(
    seed: int, wide: bool, words: int, keeps: bool, retain: int
) -> None:
    twin, upper, keys = Twin(seed, wide, words, keeps), 0, 40
    for _ in range(90):
        upper += twin.random.randint(1, 3)
        since = max(twin.arranged.since, upper - 1 - retain) if twin.random.random() < 0.8 else twin.arranged.since
        twin.apply(twin.draw(keys, upper), upper, since)
        twin.arranged._check_invariants()
        assert (twin.arranged.upper, twin.arranged.since) == (upper, since)
        twin.assert_reads(None)
        for at in {twin.random.randint(max(twin.arranged.since, -1), upper - 1) for _ in range(2)}:
            twin.assert_reads(at)
    twin.assert_seeks(keys)
    assert twin.arranged.spine.copied > 0  # something was merged, or this test shows nothing
    with pytest.raises(NotReadable, match=f"it can be read from .* up to, not including, {upper}"):
        twin.arranged.read(upper)


@pytest.mark.parametrize("keeps", [False, True])
def test_merging_keeps_runs_few_and_garbage_below_half(keeps: bool) -> None:
    twin, keys, most = Twin(5, False, 1, keeps), 30, 0
    for upper in range(1, 400):
        twin.apply(twin.draw(keys, upper), upper, upper - 1)
        spine, needed = twin.arranged.spine, len(twin.arranged.index)
        assert len(spine) < 80 and len(spine.parts) < 80
        if not spine.merges:
            # A few more runs than there were when a plan was made are not worth another look.
            assert (
                choose_merge_start([len(run) for run in spine.items], needed, FAN) is None or len(spine) > spine.planned
            )
            assert len(spine) - spine.planned < FAN // 8
        # What is garbage is resolved when no merge is going on; until then, and while all is merged, an eighth as many
        # versions come in, and those of one step are too many.
        assert spine.version_count <= (GARBAGE * needed + 64 + 12) * (1 + 1 / EFFORT) ** 2
        most = max(most, spine.version_count)
    assert most > GARBAGE * keys  # there was garbage
    assert twin.arranged.spine.copied > 0
    twin.arranged._check_invariants()
    twin.assert_reads(None)


def merge_something(twin: Twin) -> None:
    """Any effort: begin what the spine would, or a merge of any neighbours; go on with all of them, for a little."""
    arranged, spine, draw = twin.arranged, twin.arranged.spine, twin.random
    first = draw.randrange(len(spine) + 1)
    runs = spine.items[first : first + draw.randint(1, 4)]
    if draw.random() < 0.5:
        spine.plan_merges(len(arranged.index), True)
    elif runs and all(isinstance(item, Run) for item in runs):
        spine.items[first : first + len(runs)] = [RunMerge(runs, whole=first == 0)]  # type: ignore[arg-type]
    # That all is settled is for the merge to make use of, not to rely on.
    settled = arranged.latest <= arranged.since and draw.random() < 0.7
    paid = None if draw.random() < 0.1 else draw.randrange(4)
    spine.advance_merges(paid, arranged.slots, arranged.index, arranged.since, settled)


@effort(25)
@given(
    st.integers(0, 2**32),
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([0, 3, 9, 1000]),
    st.sampled_from([1, 4, 30]),
    st.sampled_from([1, 5, 40]),
    st.integers(2, 6),
)
def test_merges_that_go_on_beside_steps_change_no_read_whatever_is_done_of_them_and_when(
    seed: int, wide: bool, words: int, keeps: bool, retain: int, piece: int, most: int, fan: int
) -> None:
    twin, upper, since, keys = Twin(seed, wide, words, keeps), 0, NEVER, 25
    spine, beside = twin.arranged.spine, 0
    spine.fan, spine.most = fan, most
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spines, "PIECE", piece)
        for _ in range(30):
            upper += twin.random.randint(1, 2)
            since = max(since, upper - 1 - retain) if twin.random.random() < 0.8 else since
            twin.apply(twin.draw(keys, upper), upper, since)
            twin.arranged._check_invariants()
            for _ in range(twin.random.randint(0, 3)):
                merge_something(twin)
                twin.arranged._check_invariants()
                twin.assert_reads(None)
                twin.assert_reads(twin.random.randint(max(since, 0), upper - 1))
                beside += bool(spine.merges)
            twin.assert_seeks(keys)
        twin.assert_reads_since()
        assume(beside and spine.copied)  # there was something to go on with, as in all but one life in 300
        spine.advance_merges(None, twin.arranged.slots, twin.arranged.index, since, twin.arranged.latest <= since)
        assert not spine.remaining_versions and not spine.merges
        twin.arranged._check_invariants()
        twin.assert_reads_since()


def test_merging_all_at_any_moment_with_any_since_leaves_no_more_than_reads_can_ask_for() -> None:
    twin, since = Twin(9, True, 1, True), NEVER
    for upper in range(1, 61):
        since = max(since, upper - twin.random.choice([1, 5, 9]))
        twin.apply(twin.draw(20, upper), upper, since)
        spine = twin.arranged.spine
        spine.advance_merges(None, twin.arranged.slots, twin.arranged.index, since, False)
        if spine.items and twin.random.random() < 0.3:
            spine.items[:] = [RunMerge(spine.items[:], whole=True)]  # type: ignore[arg-type]
            spine.advance_merges(None, twin.arranged.slots, twin.arranged.index, since, False)
            assert len(spine) == 1
            seen = {version for history in twin.histories.values() for version in history if version[0] > since}
            seen |= {old[-1] for history in twin.histories.values() if (old := [v for v in history if v[0] <= since])}
            assert spine.version_count == len(seen)
        twin.arranged._check_invariants()
        twin.assert_reads_since()
    twin.assert_seeks(20)


def loaded(seed: int, n: int) -> Twin:
    """An arrangement of n live keys, written by one step and settled, in the middle of being merged."""
    twin = Twin(seed, False, 0, False)
    twin.apply({key: [(0, True, key)] for key in range(n)}, 1, 0)
    twin.apply({key: [(1, True, n + key)] for key in range(0, n, 7)}, 2, 1)
    spine = twin.arranged.spine
    spine.items[:] = [RunMerge(spine.items[:], whole=True)]  # type: ignore[arg-type]
    return twin


def test_no_step_pays_for_a_whole_merge_and_each_pays_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spines, "PIECE", 64)
    twin = loaded(4, 4000)
    merge, owed, paid = twin.arranged.spine.merges[0], twin.arranged.spine.remaining_versions, 0
    for upper in range(3, 2000):
        drawn = twin.draw(4000, upper)
        paid += sum(map(len, drawn.values()))
        before = merge.remaining_versions
        twin.apply(drawn, upper, upper - 1)
        done = owed - merge.remaining_versions
        # Identities are uniform, so a piece is of about the size that was asked for.
        assert EFFORT * paid - 64 - 40 <= done <= EFFORT * paid + 40 or not merge.remaining_versions
        assert before - merge.remaining_versions <= 64 + EFFORT * 12 + 40
        if not merge.remaining_versions:
            break
    assert not merge.remaining_versions and EFFORT * (paid - 12) <= owed
    twin.arranged._check_invariants()
    twin.assert_reads(None)


def test_memory_comes_free_as_a_merge_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spines, "PIECE", 1)
    twin = Twin(4, False, 0, False)
    # A run of many batches, as a large step leaves it.
    ordered = sorted(range(1000), key=twin.identity)
    parts = [ordered[at : at + 50] for at in range(0, 1000, 50)]
    twin.arranged.apply_changes([twin.change(part, {key: [(0, True, key)] for key in part}) for part in parts], 1, 0)
    for key in ordered:
        twin.histories[key].append((0, True, key))
    spine, before = twin.arranged.spine, twin.arranged.slots.resident
    spine.most = 20
    spine.items[:] = [RunMerge(spine.items[:], whole=True)]  # type: ignore[arg-type]
    while spine.merges:
        spine.advance_merges(2, twin.arranged.slots, twin.arranged.index, 0, True)
        twin.arranged._check_invariants()
        assert twin.arranged.slots.resident < before * 1.15  # a batch of twenty is read by pieces
    twin.assert_reads(None)


def test_since_never_retreats_and_upper_never_goes_back() -> None:
    twin = Twin(1, False, 0, False)
    twin.apply({1: [(0, True, 1)]}, 5, 3)
    twin.arranged.apply_changes([], 6, 1)
    assert (twin.arranged.since, twin.arranged.upper) == (3, 6)
    with pytest.raises(TimeWentBack):
        twin.arranged.apply_changes([], 4, 3)
    with raises(NotReadable):
        twin.arranged.read(2)


def test_an_arrangement_that_holds_nothing_can_be_read() -> None:
    arranged = Arrangement(SCHEMA, True, 2)
    assert arranged.read().schema == SCHEMA and arranged.read().num_rows == 0
    arranged.apply_changes([], 5, 1)
    assert arranged.read(2).num_rows == arranged.read(4).num_rows == 0
    arranged._check_invariants()


def test_an_arrangement_whose_keys_are_all_gone_can_be_read_and_written_again() -> None:
    twin = Twin(1, False, 0, False)
    for upper in range(1, 200):
        key = upper // 2 % 3
        twin.apply({key: [(upper - 1, upper % 2 == 0, upper)]}, upper, upper - 1)
        twin.arranged._check_invariants()
        twin.assert_reads(None)
    spine = twin.arranged.spine
    assert twin.arranged.keys in (0, 1) and spine.version_count < 100  # most was merged away
    twin.apply({key: [(200, False, 500 + key)] for key in range(3) if twin.live(key)}, 201, 200)
    runs = [item for item in spine.items if isinstance(item, Run)]
    assert len(runs) == len(spine)
    spine.items[:] = [RunMerge(runs, whole=True)]
    spine.advance_merges(None, twin.arranged.slots, twin.arranged.index, 200, True)
    assert (spine.version_count, len(spine), twin.arranged.slots.resident) == (0, 1, 0)
    twin.apply({1: [(201, True, 9)]}, 202, 200)
    twin.arranged._check_invariants()
    twin.assert_reads_since()


def test_a_table_that_was_read_does_not_change_with_later_steps() -> None:
    twin = Twin(2, False, 0, False)
    twin.apply({key: [(0, True, key)] for key in range(1, 20)}, 1, 0)
    before = twin.arranged.read()
    rows = before.to_pylist()
    for upper in range(2, 80):
        twin.apply(twin.draw(20, upper), upper, upper - 1)
    assert twin.arranged.spine.copied > 0
    assert before.to_pylist() == rows


def two_values_of_one_key(live: tuple[bool, bool] = (True, True)) -> dict[int, list[Version]]:
    return {3: [(2, live[0], 1), (2, live[1], 2)], 4: [(1, True, 3), (4, True, 4)]}


def test_two_live_values_of_a_key_at_one_time_are_corrupt_state_and_never_a_silent_pick() -> None:
    twin = Twin(1, False, 0, False)
    twin.apply(two_values_of_one_key(), 5, 0)
    for at in (2, 3):
        with raises(CorruptState):
            twin.arranged.read(at)
    with raises(CorruptState):
        twin.arranged._check_invariants()
    spine = twin.arranged.spine
    spine.items[:] = [RunMerge(spine.items[:], whole=True)]  # type: ignore[arg-type]
    for _ in range(2):  # what was refused is refused again: nothing was eaten
        with raises(CorruptState):
            spine.advance_merges(None, twin.arranged.slots, twin.arranged.index, 0, False)
        assert spine.remaining_versions == spine.version_count == 4


def test_a_merge_whose_output_finds_no_place_leaves_all_as_it_was() -> None:
    twin = loaded(6, 300)
    arranged, spine = twin.arranged, twin.arranged.spine
    merge, calls = spine.merges[0], []

    def full(batch: Batch) -> Batch:
        calls.append(len(batch))
        raise SpillFull("writing a batch", "the disk is full", "free some")

    spine.items[:] = [RunMerge(merge.inputs, True, full)]
    spine.most = 50
    for settled in (False, True):
        with pytest.raises(SpillFull):
            spine.advance_merges(None, arranged.slots, arranged.index, 1, settled)
        arranged._check_invariants()
        twin.assert_reads_since()
        twin.assert_seeks(300)
    assert len(calls) == 2 and spine.remaining_versions == 300 + 43
    spine.items[:] = [RunMerge(merge.inputs, True)]
    spine.advance_merges(None, arranged.slots, arranged.index, 1, True)
    arranged._check_invariants()
    assert spine.version_count == 300
    twin.assert_reads_since()


@mid_test
@effort(10)
@given(
    seed=st.integers(0, 2**32),
    wide=st.booleans(),
    words=st.integers(0, 2),
    keeps=st.booleans(),
    retain=st.sampled_from([0, 3, 1000]),
)
def test_what_is_moved_to_files_at_any_moment_is_read_and_sought_as_before(
    tmp_path_factory: pytest.TempPathFactory, seed: int, wide: bool, words: int, keeps: bool, retain: int
) -> None:
    twin, upper, since, keys = Twin(seed, wide, words, keeps), 0, NEVER, 40
    arranged, mapped = twin.arranged, 0
    with pytest.MonkeyPatch.context() as patch, BatchStore(ScratchStore(tmp_path_factory.mktemp("spill"))) as folder:
        patch.setattr(spines, "PIECE", 4)
        arranged.spine.fan, arranged.on_disk.fan = 4, 2
        for _ in range(40):
            upper += twin.random.randint(1, 3)
            since = max(since, upper - 1 - retain) if twin.random.random() < 0.8 else since
            twin.apply(twin.draw(keys, upper), upper, since)
            if twin.random.random() < 0.4:
                # Never, begin to move, and move all at once.
                arranged.spill(folder, twin.random.choice([1 << 30, int(arranged.nbytes * 1.2), 0]))
            arranged.spine.most = arranged.on_disk.most = arranged.piece = twin.random.choice([3, 20])
            arranged._check_invariants()
            mapped += arranged.slots.mapped
            for at in (None, twin.random.randint(max(since, 0), upper - 1)):
                twin.assert_reads(at)
            twin.assert_seeks(keys)
        twin.assert_reads_since()
        assert mapped  # or this test shows nothing


def test_a_batch_out_of_order_or_with_two_values_of_a_key_at_one_time_fails_its_check() -> None:
    def batch(high: list[int], time: list[int]) -> Any:
        return Batch.from_lists(high, time, [True] * len(high), pa.table({"k": high}))

    batch([1, 1, 2], [0, 4, 1])._check_invariants()
    with pytest.raises(AssertionError, match="hash order"):
        batch([2, 1], [0, 0])._check_invariants()
    with raises(CorruptState):
        batch([1, 2, 2], [0, 3, 3])._check_invariants()


def spine_of(*runs: tuple[BatchDescription, Sequence[tuple[list[int], list[int]]]]) -> tuple[Spine, BatchSlots]:
    """A spine of runs: what each speaks of, and its batches' identities and times."""
    slots, spine = BatchSlots(pa.schema({"k": pa.uint64()})), Spine()
    for description, batches in runs:
        parts = [
            slots.add_batch(
                Batch.from_lists(high, time, [True] * len(high), pa.table({"k": pa.array(high, pa.uint64())}))
            )
            for high, time in batches
        ]
        spine.append(Run(description, parts))
    return spine, slots


def test_a_run_out_of_its_times_or_ranges_or_apart_from_its_neighbour_fails_the_check_of_its_spine() -> None:
    def check(*runs: tuple[BatchDescription, Sequence[tuple[list[int], list[int]]]]) -> None:
        spine, slots = spine_of(*runs)
        spine._check_invariants(slots)

    old, new = BatchDescription(0, 5, 0), BatchDescription(5, 9, 0)
    check((old, [([1, 2], [0, 4]), ([3], [1])]), (new, [([1], [5])]))
    for wrong in ([5], [-1]):
        with pytest.raises(AssertionError, match="Description"):
            check((old, [([1], wrong)]))
    with pytest.raises(AssertionError):
        check((old, [([1, 3], [0, 0]), ([3], [1])]))
    with pytest.raises(AssertionError, match="Description"):
        check((old, [([1], [0])]), (BatchDescription(6, 9, 0), [([1], [6])]))


def test_payload_of_a_batch_is_counted_and_what_all_rows_share_takes_nothing() -> None:
    small, large = (Batch.from_lists([1], [0], [True], pa.table({"v": ["x" * n]})) for n in (1, 10_000))
    assert large.nbytes - small.nbytes == 9_999
    assert Rows(pa.table({"v": [1, 2]})).nbytes == 16
    twin = loaded(3, 500)
    twin.arranged.spine.advance_merges(None, twin.arranged.slots, twin.arranged.index, 1, True)
    (batch,) = twin.arranged.slots.batches
    assert (batch.time.tolist(), batch.live.tolist()) == ([1] * 500, [1] * 500)
    whole = replace(batch, time=batch.time.copy(), live=batch.live.copy())
    assert whole.nbytes - batch.nbytes == (8 + 1) * 499


sizes = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 10**6)), max_size=80)
fans = st.integers(2, 40)


@given(sizes, st.one_of(st.none(), st.integers(0, 10**6)), fans)
def test_what_is_chosen_is_never_one_run_alone_and_choosing_comes_to_an_end(
    sizes: list[int], needed: int | None, fan: int
) -> None:
    rounds = len(sizes)
    while (first := choose_merge_start(sizes, needed, fan)) is not None:
        assert 0 <= first <= len(sizes) - 2
        # Even when nothing can be left out, there are fewer runs than before.
        sizes = [*sizes[:first], sum(sizes[first:])]
        rounds -= 1
    assert rounds >= 0


@given(sizes, st.integers(0, 10**6), fans)
def test_all_is_merged_exactly_when_too_much_is_garbage(sizes: list[int], needed: int, fan: int) -> None:
    chosen = choose_merge_start(sizes, needed, fan)
    if len(sizes) > 1 and sum(sizes) > GARBAGE * needed + 64:
        assert chosen == 0
    else:
        assert chosen == choose_merge_start(sizes, None, fan)
    if chosen is None:
        assert len(sizes) < 2 or sum(sizes) <= GARBAGE * needed + 64


@given(sizes, fans)
def test_without_garbage_the_fewest_of_the_newest_runs_of_about_one_size_are_merged(sizes: list[int], fan: int) -> None:
    def alike(first: int) -> bool:
        rest = sizes[first:]
        return len(rest) >= fan and max(rest) * max(fan // 4, 2) <= sum(rest)

    assert choose_merge_start(sizes, None, fan) == max((i for i in range(len(sizes)) if alike(i)), default=None)


@pytest.mark.parametrize("fan", [4, 16, FAN])
def test_of_a_hundred_thousand_steps_each_version_is_copied_a_logarithm_of_times(fan: int) -> None:
    steps, each = 100_000, max(fan // 4, 2)
    runs: list[tuple[int, int]] = []
    """Versions of each run, and how often one of them was copied at most."""
    most = 0
    for _ in range(steps):
        runs.append((1, 0))
        while (first := choose_merge_start([n for n, _ in runs], None, fan)) is not None:
            runs[first:] = [(sum(n for n, _ in runs[first:]), max(times for _, times in runs[first:]) + 1)]
        most = max(most, len(runs))
    # A merge makes of each version's run one that is at least ``each`` times as large.
    powers = int(np.log(steps) / np.log(each))
    assert 2 <= max(times for _, times in runs) <= powers
    assert most <= (fan + each) * (powers + 1)
    assert sum(n for n, _ in runs) == steps


def test_garbage_stays_within_its_bound_and_costs_a_constant_for_each_version() -> None:
    draw, needed, runs, written, copied = random.Random(3), 1000, [1000], 0, 0
    for _ in range(20_000):
        runs.append(draw.choice([1, 5, 60]))
        written += runs[-1]
        while (first := choose_merge_start(runs, needed, FAN)) is not None:
            # Only the merge of all throws garbage away.
            left = sum(runs[first:]) if first else min(sum(runs), needed)
            copied += left
            runs[first:] = [left]
        assert sum(runs) <= GARBAGE * needed + 64
    assert copied < 3 * written


def test_a_range_that_is_read_at_once_is_small_whichever_part_of_a_run_is_the_largest() -> None:
    arranged = Arrangement(pa.schema({"k": pa.int64()}), wide=False, words=0)
    for time, sizes in enumerate(([100, 100, 900], [300, 200, 100], [50])):
        high = np.linspace(0, 2**64 - 2**12, sum(sizes)).astype(np.uint64) + np.uint64(time)
        parts, begin = [], 0
        for size in sizes:
            some = high[begin : begin + size].tolist()
            begin += size
            parts.append(
                arranged.slots.add_batch(
                    Batch.from_lists(some, [time] * size, [True] * size, pa.table({"k": range(size)}))
                )
            )
        arranged.on_disk.append(Run(BatchDescription(time, time + 1, NEVER), parts))
    arranged.piece = 100
    ranges = [sum(part.end - part.begin for part in parts) for parts in arranged.iterate_version_ranges()]
    assert sum(ranges) == 1750 and max(ranges) <= 130 and len(ranges) < 40
