"""Test that a state without a commit takes any plan: a failed first run does not bind the flow."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddflow as dd
from ddflow.errors import PlanChanged, SchemaMismatch


def flow(kind: type, output: str) -> dd.Flow:
    made = dd.Flow()
    made.output(output, made.upserts("t", {"id": int, "v": kind}, dd.Upsert(key="id")))
    return made


def test_until_something_is_committed_the_plan_may_be_another(tmp_path: Path) -> None:
    with flow(int, "rows").open(tmp_path / "state") as engine, pytest.raises(SchemaMismatch):
        engine.step({"t": {"id": [1], "v": ["text"]}})
    with flow(str, "other").open(tmp_path / "state") as engine:
        engine.step({"t": {"id": [1], "v": ["text"]}})
    assert dd.read(tmp_path / "state", "other").to_pylist() == [{"id": 1, "v": "text", "_diff": 1}]
    with flow(str, "other").open(tmp_path / "state") as engine:
        assert (engine.epoch, engine.read("other").num_rows) == (1, 1)
    assert dd.fsck(tmp_path / "state").problems == []
    with pytest.raises(PlanChanged):
        flow(int, "rows").open(tmp_path / "state")
