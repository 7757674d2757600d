"""Test metrics of calls: one record for each call that took effect, and no influence on the call."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.metrics import CallMetrics

SCHEMA = {"id": pa.int64(), "city": pa.string()}


def plan(**spec: str) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("rows", {**SCHEMA, **({"at": pa.int64()} if spec else {})}, dd.Upsert(key="id", **spec))
    flow.output("by_city", rows.project(["city"]).count())
    return flow


def rows(*ids: int | None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "city": ["Bern"] * len(ids)})


def test_each_call_of_a_state_is_told_once_after_its_commit(tmp_path: Path) -> None:
    seen: list[CallMetrics] = []
    with plan().open(tmp_path / "state", metrics=seen.append) as engine:
        first = engine.step({"rows": rows(1, 2)}, 1)
        engine.step({"rows": rows(1, 2)}, 1)  # given again
        with pytest.raises(dd.errors.NullKey):
            engine.step({"rows": rows(None)}, 2)
        engine.replace("rows", rows(2), 3)
        engine.restate("rows", rows(2, 3), 4)
    assert [(each.kind, each.time, each.epoch) for each in seen] == [
        ("step", 1, 1),
        ("replace", 3, 2),
        ("restate", 4, 3),
    ]
    assert seen[0].verdicts == first.verdicts.counts and seen[0].updates == {"by_city": 1}
    assert all(0 < each.seconds < 60 for each in seen)


def test_waiting_events_are_told_as_such() -> None:
    seen: list[CallMetrics] = []
    with plan(time="at").open(metrics=seen.append) as engine:
        engine.push({"rows": rows(1, 2).append_column("at", pa.array([1, 5]))})
        engine.advance_to(3)
    assert [(each.kind, each.time, each.pending, each.verdicts["applied"]) for each in seen] == [
        ("push", 0, 2, 0),
        ("advance_to", 3, 1, 1),
    ]


def test_what_goes_wrong_there_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(call: CallMetrics) -> None:
        raise OSError("the collector is down")

    with plan().open(metrics=broken) as engine:
        assert engine.step({"rows": rows(1)}, 1).verdicts["applied"] == 1
        assert engine.step({"rows": rows(1)}, 2).verdicts["noop"] == 1
    assert [each.getMessage() for each in caplog.records] == [
        "metrics= of a ddflow engine raised an error; the step took effect"
    ] * 2
    assert "the collector is down" in caplog.text
