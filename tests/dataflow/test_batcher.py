"""Test that waiting events are released once, when their time closes, by time and arrival, spilled or not.

Merges, cuts and spills depend on sizes of megabytes. ``tiny`` reduces these sizes to bytes, so that a few events take
every path that ten million events take.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from kinds import PLAIN
from messages import raises

from ddflow.dataflow import batcher, pending_runs
from ddflow.dataflow.batcher import Batcher, PendingRunRecord
from ddflow.errors import SpillFull
from ddflow.operators.upsert.events import FEW, Events, argsort_times, merge_events
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.scratch import LOCK, ScratchStore

Event = tuple[int, int]
"""Time and number of arrival."""


def run_of(events: list[Event], shared: bool = False) -> Events:
    """A push's events as they arrive; their payload tells their number, their own time is one less, or the same."""
    times, numbers = (np.array([event[i] for event in events], np.int64) for i in (0, 1))
    batch = pa.record_batch(
        {"n": pa.array(numbers), "l": [[number] for number in numbers.tolist()]},
        pa.schema({"n": pa.int64(), "l": pa.list_(pa.int64())}),
    )
    return Events(batch, times, times if shared else times - 1, numbers)


def read(events: Events | None) -> list[Event]:
    """The events of a run, after a look at whether its columns still belong together."""
    if events is None:
        return []
    numbers = events.arrival.tolist()
    assert events.rows.column("n").to_pylist() == numbers
    assert events.rows.column("l").to_pylist() == [[number] for number in numbers]
    assert (events.original == events.times - 1).all() or events.original is events.times
    return list(zip(events.times.tolist(), numbers, strict=True))


def plain(times: Any, first: int = 0, **columns: Any) -> Events:
    """Events at these times, with a column of numbers and others."""
    times = np.asarray(times, np.int64)
    numbers = np.arange(first, first + times.size)
    return Events(pa.record_batch({"n": pa.array(numbers), **columns}), times, times, numbers)


@contextmanager
def tiny() -> Iterator[None]:
    """Runs are large from a few events on."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (pending_runs, batcher):
            patch.setattr(module, "LARGE", 600)
        patch.setattr(pending_runs, "CHUNK", 150)
        patch.setattr(pending_runs, "FAN", 3)
        patch.setattr(pending_runs, "SMALL", 64)
        patch.setattr(batcher, "PIECE", 3)
        yield


def files(place: Path | str) -> int:
    return len([name for name in os.listdir(place) if name != LOCK])


def alone(one: Batcher) -> Batcher:
    """The same batcher, but that what it does changes the given one in nothing."""
    out = Batcher()
    out.runs, out.pending = one.runs.copy(), one.pending
    return out


relative = st.integers(-2, 12)
"""Times and frontiers, from the frontier on."""
actions = st.lists(
    st.one_of(
        st.lists(relative, max_size=6),
        st.lists(relative, min_size=20, max_size=60),
        st.tuples(st.sampled_from(["seal", "seal", "peek, then seal", "discard"]), st.integers(0, 7)),
        st.tuples(st.just("spill"), st.sampled_from([0, 0, 300, 2000])),
        st.just(("fork", 0)),
    ),
    min_size=4,
    max_size=20,
)


@effort(80)
@given(actions, st.booleans())
def test_every_event_is_released_once_by_the_first_seal_above_its_time_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], shared: bool
) -> None:
    pending, arrived, upper, old = list[Event](), 0, 0, list[tuple[Batcher, list[Event]]]()
    place = tmp_path_factory.mktemp("spill")
    with tiny(), BatchStore(ScratchStore(place)) as folder:
        waiting = Batcher()
        for step in steps:
            if isinstance(step, list):
                events = [(upper + max(time, 0), arrived + i) for i, time in enumerate(step)]
                arrived += len(step)
                waiting = waiting.copy_with_events(run_of(events, shared).sort_by_time())
                pending = pending + events
            elif step[0] == "fork":
                old.append((alone(waiting), pending))
            elif step[0] == "spill":
                waiting.spill(folder, step[1])
                assert waiting.nbytes <= step[1]
            else:
                upper += step[1]
                due = sorted(event for event in pending if event[0] < upper)
                consume(waiting, upper, due, step[0])
                pending = [event for event in pending if event[0] >= upper]
            waiting._check_invariants()
            assert len(waiting) == len(pending)
        assert read(waiting.seal(1000)) == sorted(pending)
        assert len(waiting) == waiting.nbytes == waiting.mapped_bytes == 0
        for before, events in old:
            before._check_invariants()
            assert read(before.seal(1000)) == sorted(events)
        del old, waiting
        before = None
        gc.collect()
        assert files(place) == 0


def consume(waiting: Batcher, upper: int, due: list[Event], how: str) -> None:
    """Release what is due, one way or another, after a look at it in pieces."""
    number, pieces = waiting.peek_in_chunks(upper)
    looked = [read(piece) for piece in pieces]
    assert number == len(due) and sorted(event for piece in looked for event in piece) == due
    assert all(piece == sorted(piece) and 1 <= len(piece) <= 3 for piece in looked)
    held = len(waiting)
    if how == "discard":
        assert waiting.discard(upper) == len(due)
    else:
        if how != "seal":
            assert read(waiting.peek(upper)) == due and read(waiting.peek(upper - 1)) == [
                e for e in due if e[0] < upper - 1
            ]
            assert read(waiting.peek(upper)) == due and len(waiting) == held
        assert read(waiting.seal(upper)) == due
    assert waiting.seal(upper) is None and waiting.peek_in_chunks(upper)[0] == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_runs_cut_at_any_time_are_joined_as_if_they_had_never_been_apart(times: list[int], data: st.DataObject) -> None:
    events = [(time, number) for number, time in enumerate(times)]
    whole, parts = run_of(events).sort_by_time(), []
    cuts = sorted(data.draw(st.sets(st.integers(0, len(events)), max_size=4)) | {0, len(events)})
    for begin, end in pairwise(cuts):
        parts.append(whole.slice_events(begin, end))
    assert read(merge_events(data.draw(st.permutations(parts)))) == sorted(events)


@given(st.integers(0, 2**32), st.sampled_from([2, FEW - 1, FEW, 3000]), st.integers(0, 62).map(lambda bits: 2**bits))
def test_times_are_sorted_stably_however_many_there_are_and_however_far_apart(seed: int, n: int, reach: int) -> None:
    times = np.random.default_rng(seed).integers(-reach, reach, n)
    order = argsort_times(times)
    assert (order if order is not None else np.arange(n)).tolist() == np.argsort(times, kind="stable").tolist()
    assert argsort_times(np.sort(times)) is None


def test_a_run_that_is_in_order_is_not_copied() -> None:
    run = run_of([(1, 0), (1, 1), (4, 2)])
    assert run.sort_by_time() is run and merge_events([run]) is run
    cut = run.slice_events(1, 3)
    assert read(cut) == [(1, 1), (4, 2)]
    assert cut.rows.column("n").buffers()[1].address == run.rows.column("n").buffers()[1].address


def test_a_push_that_is_released_at_once_is_given_back_as_it_came() -> None:
    waiting, pushed = Batcher(), run_of([(1, 0), (3, 1)])
    waiting.add(pushed)
    assert waiting.peek(4) is pushed and waiting.seal(4) is pushed


# What it costs.


def test_bytes_are_those_of_what_is_held() -> None:
    waiting, n = Batcher(), 100_000
    waiting.add(plain(np.arange(n)))
    before = waiting.nbytes
    assert before == 3 * 8 * n  # one column, the time, the arrival; the own time is the time
    waiting.seal(n // 3)
    assert waiting.nbytes == before  # the run is one piece of memory still
    waiting.seal(n * 9 // 10)
    assert 0 < waiting.nbytes <= before / 10
    waiting._check_invariants()


def test_memory_held_is_at_most_about_twice_what_is_counted_whatever_was_pushed_and_sealed() -> None:
    rng, waiting, before = np.random.default_rng(1), Batcher(), pa.total_allocated_bytes()
    for i in range(60):
        whole = pa.record_batch({"n": pa.array(rng.integers(0, 9, 200_000)), "s": pa.array(["text"] * 200_000)})
        times = np.sort(rng.integers(i, i + 30, 2_000))
        waiting.add(Events(whole.slice(1000, 2_000), times, times, np.arange(i * 2000, i * 2000 + 2000)))
        del whole
        waiting.seal(i)
        assert waiting._check_invariants() is None
        # The last push is the caller's until the next one comes.
        if i % 10 == 9:
            waiting.add(plain([10**6], 10**6))
            assert pa.total_allocated_bytes() - before <= 2 * waiting.nbytes + 2_000_000
    assert len(waiting) > 20_000


@pytest.mark.parametrize("rows", [10, 1_000_000])
def test_what_waits_of_a_push_is_out_of_the_callers_memory_by_the_next_one(rows: int) -> None:
    before = pa.total_allocated_bytes()
    whole = pa.record_batch({"n": pa.array(range(2_000_000))})
    waiting, times = Batcher(), np.arange(rows)
    waiting.add(Events(whole.slice(5, rows), times, times, times))
    del whole
    assert pa.total_allocated_bytes() - before >= 16_000_000 and waiting.nbytes <= 24 * rows + 100
    waiting.add(plain([10**7], rows))
    assert pa.total_allocated_bytes() - before <= 8 * rows + 100_000
    assert waiting.seal(10**7).times.tolist() == list(range(rows))  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pushes_are_merged_so_that_few_runs_wait_and_each_event_is_copied_few_times(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, order = 0, np.random.default_rng(size).permutation(3000 * size)

    def counting(parts: list[Events]) -> Events:
        nonlocal copied
        copied += sum(part.times.size for part in parts)
        return merge_events(parts)

    monkeypatch.setattr(pending_runs, "merge_events", counting)
    waiting = Batcher()
    for i in range(3000):
        waiting.add(plain(order[i * size : (i + 1) * size], i * size))
    waiting._check_invariants()
    # Chunks that follow each other in time count as one.
    final = [each for each in waiting.runs.by_least if each.final]
    overlapping = sum(each.least <= 1500 * size <= each.greatest for each in final)
    assert len(waiting.runs.by_least) - len(final) < 5 * pending_runs.FAN
    assert overlapping <= 2 + waiting.nbytes // pending_runs.LARGE
    assert copied <= 5 * len(order)
    assert (waiting.seal(10**9) or waiting).__len__() and len(waiting) == 0


def test_a_seal_looks_only_at_runs_that_release_something_and_joins_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Batcher()
    for i in range(30):
        waiting.add(plain(np.arange(50_000) * 30 + i + 1_000_000 * (i % 2), 50_000 * i))
    looked: list[int] = []
    place = pending_runs.PendingRun.find_first_event_at
    monkeypatch.setattr(
        pending_runs.PendingRun,
        "find_first_event_at",
        lambda self, upper: looked.append(self.least) or place(self, upper),
    )
    calls: list[int] = []
    monkeypatch.setattr(batcher, "merge_events", lambda parts: calls.append(len(parts)) or merge_events(parts))
    peeked = waiting.peek(600_000)
    assert peeked is not None and (waiting.seal(600_000) is peeked) and len(calls) == 1
    assert looked and max(looked) < 600_000 and len(waiting.runs.by_least) > 3 * len(looked) / 2
    looked.clear()
    assert waiting.peek(600_000) is None and waiting.seal(600_000) is None and looked == []


def test_what_was_peeked_is_forgotten_when_a_push_changes_it() -> None:
    waiting = Batcher()
    waiting.add(plain([1, 5], 0))
    assert waiting.peek(4).times.tolist() == [1]  # type: ignore[union-attr]
    more = waiting.copy_with_events(plain([2], 2))
    waiting.add(plain([3], 3))
    assert waiting.seal(4).times.tolist() == [1, 3]  # type: ignore[union-attr]
    assert more.seal(4).times.tolist() == [1, 2]  # type: ignore[union-attr]


# Spilled.


def test_runs_are_spilled_into_files_of_some_megabytes_that_follow_each_other_in_time(tmp_path: Path) -> None:
    rng, waiting, before = np.random.default_rng(3), Batcher(), pa.total_allocated_bytes()
    order = rng.permutation(1_500_000)
    for i in range(0, order.size, 100_000):
        waiting.add(plain(order[i : i + 100_000], i))
    total = waiting.nbytes
    assert total == 24 * order.size
    with BatchStore(ScratchStore(tmp_path)) as folder:
        waiting.spill(folder, 10_000_000)
        waiting._check_invariants()
        assert 8_000_000 <= waiting.nbytes <= 10_000_000 and waiting.mapped_bytes >= total - waiting.nbytes
        sizes = [os.path.getsize(tmp_path / name) for name in os.listdir(tmp_path) if name != LOCK]
        assert len(sizes) <= 5 and max(sizes) < 17_000_000
        spilled = sorted((each.least, each.greatest) for each in waiting.runs.by_least if each.file is not None)
        assert all(one[1] < other[0] for one, other in pairwise(spilled))
        # What is due first stayed in memory.
        assert waiting.runs.by_least[0].file is None
        assert waiting.peek(order.size) is not None
        waiting.spill(folder, 0)
        assert waiting.nbytes == 0 and len(waiting) == order.size
        assert pa.total_allocated_bytes() - before < 1_000_000  # what was peeked is not kept either
        for upper in range(0, order.size + 1, 100_000):
            events = waiting.seal(upper)
            assert upper == 0 or (events is not None and events.times.tolist() == list(range(upper - 100_000, upper)))
            assert events is None or (order[events.arrival] == events.times).all()
            assert events is None or (events.rows.column("n").to_numpy() == events.arrival).all()
        assert files(tmp_path) == 0 and waiting.mapped_bytes == 0


def test_a_spilled_run_loses_its_file_with_its_last_event_and_what_was_released_stays_readable(tmp_path: Path) -> None:
    waiting = Batcher()
    waiting.add(plain(np.arange(1000), 0, s=pa.array([str(i) for i in range(1000)])))
    with BatchStore(ScratchStore(tmp_path)) as folder:
        waiting.spill(folder, 0)
        other = waiting.copy_with_events(plain([7], 1000, s=["more"]))
        first = waiting.seal(600)
        assert files(tmp_path) == 1
        second = waiting.seal(1000)
        assert files(tmp_path) == 1  # the other batcher still has it
        assert len(other) == 1001 and other.discard(1000) == 1001
        assert files(tmp_path) == 0
        assert first is not None and first.rows.column("s")[599].as_py() == "599"
    assert second is not None and second.rows.column("s").to_pylist() == [str(i) for i in range(600, 1000)]


def test_many_small_spills_do_not_leave_many_files(tmp_path: Path) -> None:
    waiting = Batcher()
    with BatchStore(ScratchStore(tmp_path)) as folder:
        for i in range(200):
            waiting.add(plain([200 - i, 1000 + i], 2 * i))
            waiting.spill(folder, 0)
        waiting._check_invariants()
        assert files(tmp_path) == len(waiting.runs.by_least) < 2.5 * pending_runs.FAN
        assert waiting.seal(10**6).times.size == 400  # type: ignore[union-attr]


@pytest.mark.parametrize("name", PLAIN)
def test_events_of_every_type_are_the_same_after_spilling(tmp_path: Path, name: str) -> None:
    array = PLAIN[name]
    schema = pa.schema([pa.field("x", array.type, metadata={"a": "b"}), pa.field("n", pa.int64(), nullable=False)])
    rows = pa.RecordBatch.from_arrays([array, pa.array(range(len(array)))], schema=schema)
    times = np.arange(len(array)) // 2
    waiting = Batcher()
    waiting.add(Events(rows, times, times - 1, np.arange(len(array))))
    with BatchStore(ScratchStore(tmp_path)) as folder:
        waiting.spill(folder, 0)
        events = waiting.seal(100)
    assert events is not None and repr(events.rows.to_pydict()) == repr(rows.to_pydict())
    assert events.rows.schema.equals(schema, check_metadata=True)
    assert (events.original == times - 1).all()


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A disk that is full, as far as this process can tell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_spill_that_fails_half_way_leaves_the_batcher_and_the_disk_as_before(tmp_path: Path) -> None:
    waiting = Batcher()
    long = ["x" * 2000] * 5000
    # The first chunk fits the disk, the second, of longer texts, does not.
    waiting.add(plain(np.arange(50_000), 0, s=pa.array(["y"] * 45_000 + long)))
    with BatchStore(ScratchStore(tmp_path)) as folder:
        rows = waiting.runs.by_least[0]
        with files_no_larger_than(3_000_000), raises(SpillFull) as caught:
            waiting.spill(folder, 0)
        # Even while somebody looks at the error, with all that it refers to.
        assert caught.value.fix
        assert waiting.runs.by_least == [rows] and waiting.mapped_bytes == 0 and files(tmp_path) == 0
        waiting._check_invariants()
        waiting.spill(folder, 0)
        assert waiting.nbytes == 0 and len(waiting) == 50_000 and files(tmp_path) >= 2
        events = waiting.seal(50_000)
    assert events is not None and events.rows.column("s").to_pylist() == ["y"] * 45_000 + long


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=40), min_size=1, max_size=6), st.integers(1, 12))
def test_lots_hold_every_event_once_and_are_none_much_larger_than_asked(pushes: list[list[int]], rows: int) -> None:
    first, given = 0, []
    for times in pushes:
        # Some have been consumed in part, up to a time that others still have.
        whole = pending_runs.PendingRun.from_events(plain(times, first).sort_by_time())
        given.append(whole.slice_remainder(len(times) // 3))
        first += len(times)
    out = list(pending_runs.split_events_by_time(given, rows))
    wait = [each.pending_events for each in given]
    most_of_one = max(np.bincount(np.concatenate([part.times for part in wait])))
    assert sorted(np.concatenate([chunk.arrival for chunk in out])) == sorted(np.concatenate([w.arrival for w in wait]))
    assert all(chunk.times.size <= 3 * rows and (np.diff(chunk.times) >= 0).all() for chunk in out)
    # They follow each other in time; chunks of one time may follow each other in any order.
    assert all(one.times[-1] <= other.times[0] or most_of_one > rows for one, other in pairwise(out))


def test_a_record_of_a_run_of_which_nothing_waits_is_refused() -> None:
    told: dict[str, Any] = {
        "file": None,
        "rows": 3,
        "advanced": False,
        "final": False,
        "columns": [],
        "compressed": False,
    }
    PendingRunRecord(begin=2, **told)
    with pytest.raises(ValueError, match="begins at row 3 of 3"):
        PendingRunRecord(begin=3, **told)
