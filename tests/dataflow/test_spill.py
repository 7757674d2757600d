"""Test spilling for users: refusals and their texts, full disks, streams, and outputs that outlive the engine."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import mid_test
from messages import raises
from programs import run_python

import ddflow as dd
from ddflow.errors import BudgetExceeded, NotReadable, SpecError, SpillInUse, SpillRefused

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string(), "t": pa.int64()})


def plan(**spec: Any) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("rows", SCHEMA, dd.Upsert("k", **spec))
    flow.output("rows", rows)
    flow.output("n", rows.count([]))
    return flow


def batch(begin: int, size: int, time: int, text: str = "x") -> pa.RecordBatch:
    keys = pa.array(range(begin, begin + size))
    return pa.record_batch([keys, [f"{text}{k % 7}" for k in range(size)], [time] * size], schema=SCHEMA)


def test_a_budget_too_small_to_spill_within_says_how_much_is_needed(tmp_path: Path) -> None:
    with raises(SpecError):
        plan().open(memory="1MB", spill=tmp_path)
    assert not list(tmp_path.iterdir())  # the folder was not even claimed


def test_a_spill_folder_without_a_budget_is_refused(tmp_path: Path) -> None:
    with raises(SpecError):
        plan().open(spill=tmp_path)


@pytest.mark.parametrize("make", ["missing", "a file", "someone else's"])
def test_a_folder_that_cannot_be_used_is_refused_by_name(tmp_path: Path, make: str) -> None:
    path = tmp_path / "spill"
    if make == "a file":
        path.write_text("")
    elif make == "someone else's":
        path.mkdir()
        path.chmod(0o777)  # writable by all, so anybody's
    with pytest.raises(SpillRefused, match=str(path)):
        plan().open(memory="64MB", spill=path)


def test_two_engines_do_not_share_a_folder(tmp_path: Path) -> None:
    with plan().open(memory="64MB", spill=tmp_path), pytest.raises(SpillInUse, match=str(tmp_path)):
        plan().open(memory="64MB", spill=tmp_path)
    with plan().open(memory="64MB", spill=tmp_path) as engine:
        assert engine.step({"rows": batch(0, 3, 0)}, 1)["rows"].num_rows == 3


def test_a_row_larger_than_the_budget_allows_is_refused_and_nothing_taken_in(tmp_path: Path) -> None:
    with plan().open(memory="16MB", spill=tmp_path) as engine:
        engine.step({"rows": batch(0, 10, 0)}, 1)
        huge = pa.record_batch([[1, 2, 3], ["a", "b" * 9_000_000, "c"], [0, 0, 0]], schema=SCHEMA)
        with raises(BudgetExceeded):
            engine.step({"rows": huge}, 2)
        assert engine.verdicts.total == 10 and engine.read("rows").num_rows == 10
        assert engine.step({"rows": batch(10, 5, 0)}, 2)["n"].to_pylist()[-1]["count"] == 15


def test_a_read_before_since_says_what_since_is(tmp_path: Path) -> None:
    with plan(time="t").open(memory="64MB", spill=tmp_path, retain=2) as engine:
        for time in range(6):
            engine.push({"rows": batch(0, 4, time, str(time))})
            engine.advance_to(time + 1)
        with raises(NotReadable):
            engine.read("rows", as_of=2)
        with raises(NotReadable):
            engine.read("rows", as_of=6)
        assert {row["v"][0] for row in engine.read("rows", as_of=3).to_pylist()} == {"3"}


def test_a_stream_that_breaks_off_takes_nothing_in(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(0, 200_000, 0)
        raise RuntimeError("the feed is gone")

    with plan().open(memory="16MB", spill=tmp_path) as engine:
        with pytest.raises(RuntimeError, match="the feed is gone"):
            engine.step({"rows": pa.RecordBatchReader.from_batches(SCHEMA, broken())}, 1)
        assert engine.verdicts.total == 0 and engine.read("rows").num_rows == 0
        assert engine.step({"rows": batch(0, 9, 0)}, 1)["n"].to_pylist() == [{"count": 9, "_time": 1, "_diff": 1}]


@pytest.mark.parametrize("time", [None, "t"])
def test_a_first_step_larger_than_the_budget_is_streamed_and_right(tmp_path: Path, time: str | None) -> None:
    """A stream of ten times what waits in memory, many times over the same keys; the outputs come back mapped."""
    size, parts, keys = 50_000, 12, 150_000
    draw = np.random.default_rng(7)
    picked = [draw.integers(0, keys, size) for _ in range(parts)]

    def feed() -> Iterator[pa.RecordBatch]:
        for i, each in enumerate(picked):
            yield pa.record_batch([each, [f"{i}"] * size, np.full(size, i)], schema=SCHEMA)

    flow = plan(time=time)
    with flow.open(memory="16MB", spill=tmp_path) as engine:
        given = {"rows": pa.RecordBatchReader.from_batches(SCHEMA, feed())}
        if time is None:
            out = engine.step(given, 1)
        else:
            engine.push(given)
            assert engine.stats()["bytes_pending"] < 16_000_000 and len(list(tmp_path.iterdir())) > 1
            out = engine.advance_to(dd.CLOSED)
        stats = engine.stats()
        assert stats["bytes_mapped"] > 0 and stats["bytes_resident"] < 16_000_000
        held = stats["arrangements"]["rows"]["keys"]
        assert held == np.unique(np.concatenate(picked)).size == engine.read("rows").num_rows
        assert out.verdicts.total == size * parts
    rows = out["rows"]
    assert rows["_time"].to_numpy().tolist() == sorted(rows["_time"].to_numpy().tolist())
    live = int(rows["_diff"].to_numpy().sum())
    assert live == held
    if time is None:  # one net change a key
        assert rows.num_rows == live
    assert sum(row["count"] * row["_diff"] for row in out["n"].to_pylist()) == live
    assert not list(tmp_path.iterdir())  # mapped outputs live on without a name
    del engine
    gc.collect()
    assert rows.select(["k"]).to_pydict()["k"][:3] == rows["k"][:3].to_pylist()


FULL = """
import json, resource, signal, sys
sys.path.insert(0, {tests!r})
from test_spill import batch, plan
from ddflow.errors import SpillFull

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
with plan().open(memory="16MB", spill={folder!r}) as engine:
    kept = plan().open()
    for time in range(1, 4):
        for each in (engine, kept):
            each.step({{"rows": batch(time * 1000, {size}, 0, str(time))}}, time)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    refused, time = 0, 3
    for _ in range(60):
        before = sorted(map(str, engine.read("rows").to_pylist())) if refused == 0 else before
        try:
            engine.step({{"rows": batch(time * 1000, {size}, 0, str(time))}}, time + 1)
        except SpillFull as error:
            refused += 1
            said = str(error)
            after = sorted(map(str, engine.read("rows").to_pylist()))
            assert after == before, "a refused step changed what can be read"
            break
        time += 1
        kept.step({{"rows": batch((time - 1) * 1000, {size}, 0, str(time - 1))}}, time)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    again = engine.step({{"rows": batch(time * 1000, {size}, 0, str(time))}}, time + 1)
    kept.step({{"rows": batch(time * 1000, {size}, 0, str(time))}}, time + 1)
    same = sorted(map(str, engine.read("rows").to_pylist())) == sorted(map(str, kept.read("rows").to_pylist()))
    engine.dataflow.graph._check_invariants()
    print(json.dumps({{"refused": refused, "said": said, "same": same, "mapped": engine.stats()["bytes_mapped"]}}))
"""


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("size", [8_000, 60_000])  # one that a flush stumbles over, one that is brought into ranges
def test_a_full_disk_fails_the_step_and_nothing_else(tmp_path: Path, size: int) -> None:
    code = FULL.format(tests=str(Path(__file__).parent.parent), folder=str(tmp_path), size=size)
    done = run_python(code)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["refused"] == 1 and found["same"] and found["mapped"] > 0
    assert "RLIMIT_FSIZE" in found["said"]  # a limit stands in for the disk here, and is told for what it is
