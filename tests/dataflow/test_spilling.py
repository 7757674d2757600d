"""Test edge cases of spilling: disks that fill at any point, files of a killed process, long-lived results.

Memory is measured while ten times the budget streams in.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import long_test, mid_test, sample
from messages import raises
from programs import PIPE, Program
from tight import files, full, merge, spill, tighten, tiny, watching
from watched import watched

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.dataflow import batcher
from ddflow.errors import BudgetExceeded, NotArrow, SpillFull, SpillRefused

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string(), "t": pa.int64()})
MANY, SECRET = 2**40, Secret(1, 2)


def plan(holds_back: bool = False) -> dd.Flow:
    """Rows by key, and two outputs that are computed from them: a count, and rows that must be consolidated."""
    flow = dd.Flow()
    rows = flow.upserts("rows", SCHEMA, dd.Upsert("k", **{"time" if holds_back else "order_by": "t"}))
    flow.output("all", rows)
    flow.output("by_v", rows.count(["v"]))
    flow.output("vs", rows.project(["v"]).consolidate())
    return flow


def events(size: int, seed: int, times: tuple[int, int] = (0, 9)) -> pa.Table:
    """Random upserts over half as many keys."""
    chance = np.random.default_rng(seed)
    keys, moments = chance.integers(0, size // 2, size), np.sort(chance.integers(*times, size))
    return pa.table([keys, [f"value {n}" for n in chance.integers(0, 50, size)], moments], schema=SCHEMA)


def opened(flow: dd.Flow, place: Path, **options: Any) -> Any:
    return flow.open(memory="16MB", spill=place, secret=SECRET, **options)


def contents(engine: Any) -> dict[str, Counter[Any]]:
    """All that can be read."""
    return {name: multiset(engine.read(name)) for name in ("rows", "all", "by_v", "vs")}


def multiset(table: pa.Table) -> Counter[Any]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def wanted(engine: Any) -> int:
    """How many files an engine must have: two for a batch that is mapped, one for a run of pending events."""
    batches = [b for a in engine.dataflow.graph.arrangements.values() for b in a.slots.batches if b.mapped is not None]
    runs = [
        run for waiting in engine.dataflow.batchers.values() for run in waiting.runs.by_least if run.file is not None
    ]
    return 2 * len(batches) + len(runs)


class Calls:
    """The same calls in either mode."""

    def __init__(self, engine: Any, holds_back: bool) -> None:
        self.engine, self.holds_back, self.now = engine, holds_back, 0

    def step(self, rows: Any) -> Any:
        """Take rows in; in hold-back mode they wait."""
        return self.engine.push({"rows": rows}) if self.holds_back else self._at({"rows": rows})

    def close(self, to: int) -> Any:
        """Close the times before ``to``, or, in epoch mode, step without rows."""
        return self.engine.advance_to(to) if self.holds_back else self._at({})

    def _at(self, inputs: dict[str, Any]) -> Any:
        out = self.engine.step(inputs, self.now + 1)
        self.now += 1
        return out


# A disk without room.


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("holds_back", [False, True])
def test_a_disk_that_is_full_at_any_point_refuses_a_step_whole_and_takes_it_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds_back: bool
) -> None:
    # The ranges of a large step are written in small files, so that a disk may take them and refuse what comes after.
    monkeypatch.setattr(batcher, "PIECE", 32)
    first, second = events(600, 1, (0, 5)), events(3000, 2, (5, 9))
    met: set[str] = set()
    refused = 0
    with plan(holds_back).open() as memory, opened(plan(holds_back), tmp_path) as engine:
        tighten(engine, share=20_000, rows=200)
        engine.dataflow.budget.pending, engine.dataflow.budget.buffered = (20_000, 20_000) if holds_back else (MANY, 0)
        acts = [("step", first), ("close", 5), ("step", second), ("close", 9)]
        plain, hindered = Calls(memory, holds_back), Calls(engine, holds_back)
        for call, given in acts:
            expected = getattr(plain, call)(given)
            before = contents(engine), engine.verdicts, engine.frontier
            for size in (0, *(int(500 * 1.8**i) for i in range(9)), MANY):
                try:
                    with full(size):
                        found = getattr(hindered, call)(given)
                    break
                except SpillFull as error:
                    refused += 1
                    met |= {frame.name for frame in traceback.extract_tb(error.__traceback__)}
                engine._check_invariants()
                assert (contents(engine), engine.verdicts, engine.frontier) == before
                gc.collect()
                assert len(files(tmp_path)) == wanted(engine)
            assert {name: multiset(found[name]) for name in found} == {n: multiset(expected[n]) for n in expected}
            assert found.verdicts == expected.verdicts
            assert contents(engine) == contents(memory)
    assert refused > 12
    # Pending events, the ranges of a large step, what it changes, its updates and its outputs: each met a full disk.
    wanted_in = {"_release_input", "write_change", "store_copy", "merge_to_table"}
    assert met >= wanted_in | ({"enqueue"} if holds_back else set())


def test_a_flush_that_the_disk_refuses_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with tiny() as seen, plan().open() as memory, opened(plan(), tmp_path) as engine:
        tighten(engine, share=MANY, rows=MANY)
        for each in (engine, memory):
            each.step({"rows": events(400, 1)}, 1)
        spill(engine, 1000)
        merge(engine, 20)
        assert seen["a flush half way"]
        there = files(tmp_path)
        with full():
            # The step itself wants no room on the disk; what it pays for is refused, and then the next step is.
            for each in (engine, memory):
                each.step({"rows": events(40, 2)}, 2)
            assert contents(engine) == contents(memory)
            before = engine.verdicts
            for _ in range(3):
                with raises(SpillFull):
                    engine.step({"rows": events(40, 3)}, 3)
                engine._check_invariants()
                assert engine.verdicts == before and files(tmp_path) == there
                assert contents(engine) == contents(memory)
        for time in range(3, 6):
            for each in (engine, memory):
                each.step({"rows": events(40, time)}, time)
            assert contents(engine) == contents(memory)
        assert len(files(tmp_path)) == wanted(engine) > len(there)


def test_a_merge_beneath_that_the_disk_refuses_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with tiny() as seen, plan().open() as memory, opened(plan(), tmp_path) as engine:
        tighten(engine, share=MANY, rows=MANY)
        for time in range(1, 9):
            for each in (engine, memory):
                each.step({"rows": events(60, time)}, time)
            spill(engine, 0)
            merge(engine, 5)
            if any(each.on_disk.merges for each in engine.dataflow.graph.arrangements.values()):
                there = files(tmp_path)
                with full(), raises(SpillFull):
                    merge(engine, None)
                engine._check_invariants()
                assert files(tmp_path) == there and contents(engine) == contents(memory)
        assert seen["a merge on disk half way"]
        merge(engine, None)
        assert not any(each.on_disk.merges for each in engine.dataflow.graph.arrangements.values())
        assert len(files(tmp_path)) == wanted(engine) and contents(engine) == contents(memory)


# What came in is all taken in, or nothing.


@pytest.mark.parametrize("holds_back", [False, True])
@pytest.mark.parametrize("how", ["breaks off", "has a row larger than the budget", "has a null key"])
def test_a_stream_that_fails_in_its_middle_leaves_nothing(tmp_path: Path, how: str, holds_back: bool) -> None:
    good = events(1000, 1).to_batches()[0]

    def stream() -> Iterator[pa.RecordBatch]:
        yield from [good] * 20
        if how == "breaks off":
            raise OSError("the feed is gone")
        bad = {"k": [None if "null" in how else 1], "v": ["x" if "null" in how else "x" * 9_000_000], "t": [5]}
        yield pa.record_batch(bad, SCHEMA)
        yield good

    with opened(plan(holds_back), tmp_path, verdicts="rows") as engine:
        engine.dataflow.budget.pending = 0
        calls = Calls(engine, holds_back)
        with pytest.raises((OSError, BudgetExceeded, dd.errors.NullKey)) as caught:
            calls.step(pa.RecordBatchReader.from_batches(SCHEMA, stream()))
        assert str(caught.value)
        assert engine.verdicts.total == 0 and engine.stats()["pending"] == 0
        del caught
        gc.collect()
        assert files(tmp_path) == []
        calls.step(events(10, 1))
        rows = calls.close(9).verdicts.rows["rows"] if holds_back else engine.read("rows")
        assert rows.num_rows
        if holds_back:
            # They are numbered as if nothing had come before.
            assert sorted(rows["seq"].to_pylist()) == list(range(10))


@pytest.mark.parametrize("encoding", [pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.large_string()])
def test_encoded_columns_are_taken_in_portions_by_what_their_rows_hold(tmp_path: Path, encoding: pa.DataType) -> None:
    texts = pa.array([f"a text that is not short, number {n}" for n in range(100_000)])
    encoded = texts.dictionary_encode() if pa.types.is_dictionary(encoding) else texts.cast(encoding)
    table = pa.table({"k": range(100_000), "v": encoded, "t": np.zeros(100_000, np.int64)})
    with watching() as seen, opened(plan(), tmp_path) as engine:
        out = engine.step({"rows": table}, 1)
        # Slices of such a column refer to all of its values, 4 MB, which is no row's size.
        assert seen["an input taken in portions"]
        assert out.verdicts["applied"] == 100_000
        assert sorted(out["all"]["v"].to_pylist()) == sorted(texts.to_pylist())


def test_a_stream_that_holds_no_rows_is_no_input_with_a_budget_either(tmp_path: Path) -> None:
    for flow in (plan().open(), opened(plan(), tmp_path)):
        with flow as engine, raises(NotArrow):
            engine.step({"rows": pa.chunked_array([[1, 2]])}, 1)


# Folders.


@pytest.mark.parametrize("how", ["read-only", "someone else's"])
def test_a_folder_that_is_not_ours_to_write_is_refused_and_left_alone(tmp_path: Path, how: str) -> None:
    place = tmp_path / "spill"
    place.mkdir()
    if how == "read-only":
        place.chmod(0o500)
    elif os.geteuid() == 0:
        os.chown(place, 12345, -1)
    else:
        place = Path("/")
    before = sorted(place.iterdir())
    with pytest.raises(SpillRefused, match="it is read-only" if how == "read-only" else "it belongs to user"):
        opened(plan(), place)
    assert sorted(place.iterdir()) == before


KILLED = """
import sys
from test_spilling import events, opened, plan
from tight import spill
engine = opened(plan(True), sys.argv[1])
engine.push({"rows": events(5000, 1, (0, 9))})
engine.advance_to(5)
spill(engine, 0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_engine_had_spilled_is_gone_at_the_next_open(tmp_path: Path) -> None:
    process = Program(KILLED, tmp_path, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    assert len(files(tmp_path)) > 2
    process.kill()
    process.communicate()
    assert len(files(tmp_path)) > 2
    with opened(plan(), tmp_path) as engine:
        assert files(tmp_path) == []
        assert engine.step({"rows": events(10, 1)}, 1).verdicts.total == 10
    assert list(tmp_path.iterdir()) == []


# Results.


def test_results_stay_as_they_are_after_later_steps_after_close_and_without_the_engine(tmp_path: Path) -> None:
    with watching() as seen:
        engine = opened(plan(True), tmp_path)
        tighten(engine, rows=100)
        engine.push({"rows": events(2000, 1, (0, 5))})
        out, read = engine.advance_to(5), engine.read("all")
        assert seen["a table that was mapped"] >= 3
        kept = {name: out[name] for name in out} | {"read": read}
        expected = {name: table.to_pydict() for name, table in kept.items()}

        def unchanged() -> bool:
            gc.collect()
            for table in kept.values():
                table.validate(full=True)
            return {name: table.to_pydict() for name, table in kept.items()} == expected

        for time in range(5, 9):
            engine.push({"rows": events(1000, time, (time, time + 1))})
            engine.advance_to(time + 1)
            spill(engine, 0)
            assert unchanged()
        del out, read
        engine.close()
        assert list(tmp_path.iterdir()) == []
        assert unchanged()
        del engine
        assert unchanged()


def test_a_forgotten_engine_leaves_nothing_but_its_results(tmp_path: Path) -> None:
    engine = opened(plan(True), tmp_path)
    tighten(engine, rows=100)
    engine.push({"rows": events(2000, 1, (0, 5))})
    out = engine.advance_to(5)
    expected = multiset(out["all"])
    spill(engine, 0)
    assert len(files(tmp_path)) == wanted(engine) > 0
    del engine
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert multiset(out["all"]) == expected


@mid_test
@pytest.mark.drawn(2)
@pytest.mark.parametrize("times", [1, 40, 20_000])
def test_a_mapped_output_is_in_the_order_of_times_and_of_few_chunks(tmp_path: Path, times: int) -> None:
    rows = events(20_000, 3, (0, times))
    with plan(True).open() as memory, watching() as seen, opened(plan(True), tmp_path) as engine:
        tighten(engine, rows=1000)
        for each in (memory, engine):
            each.push({"rows": rows})
        expected, found = memory.advance_to(dd.CLOSED), engine.advance_to(dd.CLOSED)
        assert seen["a step taken in ranges"] and seen["a table that was mapped"]
        for name in expected:
            moments = found[name]["_time"].to_numpy()
            assert (moments[1:] >= moments[:-1]).all()
            assert multiset(found[name]) == multiset(expected[name])
            # Chunks are of a thousand rows at least, but for the last of each window of times.
            assert found[name]["_time"].num_chunks <= 2 + 2 * moments.size // 1000


# Memory.

STREAM = """
import gc, json, sys
import numpy as np, pyarrow as pa
import ddflow as dd

mode, place, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "t": pa.int64()})

def columns(begin, size):
    chance = np.random.default_rng([7, begin])
    return [chance.integers(0, total // 2, size), chance.integers(0, 1000, size), np.sort(chance.integers(0, 50, size))]

def stream(total):
    pieces = (columns(begin, min(20_000, total - begin)) for begin in range(0, total, 20_000))
    return pa.RecordBatchReader.from_batches(schema, (pa.record_batch(each, schema=schema) for each in pieces))

def take(engine, total):
    if mode == "epoch":
        return engine.step({"s": stream(total)}, 1)
    engine.push({"s": stream(total)})
    return engine.advance_to(dd.CLOSED)

def wait(word):
    print(word, flush=True)
    sys.stdin.readline()

flow = dd.Flow()
flow.output("rows", flow.upserts("s", schema, dd.Upsert("k", **{"order_by" if mode == "epoch" else "time": "t"})))
with flow.open(memory="16MB", spill=place) as engine:  # all code is there before memory is looked at
    take(engine, 60_000)
gc.collect()
with flow.open(memory="16MB", spill=place) as engine:
    wait("idle")
    rows = take(engine, total)["rows"]
    wait("done")
    diffs = sum(int(np.asarray(chunk).sum()) for chunk in rows["_diff"].chunks)
    print(json.dumps({"updates": rows.num_rows, "diffs": diffs, "keys": engine.stats()["keys"]}))
"""


def updates_of(total: int, holds_back: bool) -> tuple[int, int]:
    """How many updates the stream makes, and how many keys are live then, by numpy from the whole of it."""
    keys, values, times = [], [], []
    for begin in range(0, total, 20_000):
        chance, size = np.random.default_rng([7, begin]), min(20_000, total - begin)
        keys.append(chance.integers(0, total // 2, size))
        values.append(chance.integers(0, 1000, size))
        times.append(np.sort(chance.integers(0, 50, size)))
    key, value, time = map(np.concatenate, (keys, values, times))
    order = np.lexsort((np.arange(total), time, key))
    key, value, time = key[order], value[order], time[order]
    new = np.append(True, key[1:] != key[:-1])
    if not holds_back:
        return int(new.sum()), int(new.sum())
    # The last event of each key and time; an update is a change of value against that of the time before.
    last = np.append((key[1:] != key[:-1]) | (time[1:] != time[:-1]), True)
    key, value = key[last], value[last]
    new = np.append(True, key[1:] != key[:-1])
    changed = np.append(True, value[1:] != value[:-1])
    return int(new.sum() + 2 * (changed & ~new).sum()), int(new.sum())


@long_test
@pytest.mark.sampled
@pytest.mark.parametrize("mode", sample(["epoch", "hold-back"], 1, __name__))
def test_a_first_step_of_three_times_the_budget_stays_within_it(tmp_path: Path, mode: str) -> None:
    total, budget = 1_200_000, 16_000_000
    seen = watched(STREAM, mode, str(tmp_path), str(total))
    updates, keys = updates_of(total, mode == "hold-back")
    assert seen.answer == {"updates": updates, "diffs": keys, "keys": keys}
    assert seen.most - seen.idle <= budget * 1.15, (
        f"{seen.most - seen.idle:,} bytes over an idle engine's {seen.idle:,}"
    )
