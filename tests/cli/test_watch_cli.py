"""Test ``ddflow watch``: a state's output on a pipe, as JSON, and redrawn on a terminal."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path

import pytest
from terminals import begun
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with flow().open(tmp_path / "state") as engine:
        engine.step({"id": [1, 2, 3], "city": ["Bern", "Bern", "Zug"]})
    return tmp_path / "state"


def flow() -> dd.Flow:
    made = dd.Flow()
    made.output("by_city", made.upserts("orders", {"id": int, "city": str}, dd.Upsert("id")).count("city"))
    return made


def ran(*given: object) -> str:
    done = CliRunner().invoke(app, ["watch", *map(str, given)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_pipe_gets_what_is_there(state: Path) -> None:
    text = ran(state, "by_city", "--by", "count desc")
    assert "by_city at epoch 1" in text and text.index("Bern") < text.index("Zug") and "2 rows" in text


def test_json_has_the_rows(state: Path) -> None:
    assert json.loads(ran(state, "by_city", "--rows", 1, "--json")) == {
        "output": "by_city",
        "epoch": 1,
        "total": 2,
        "rows": [{"city": "Bern", "count": 2}],
    }


def test_a_name_that_is_none_is_refused(state: Path) -> None:
    done = CliRunner().invoke(app, ["watch", str(state), "by_cty"])
    assert done.exit_code == 1 and "by_city" in done.output


def test_a_terminal_sees_each_new_epoch(state: Path) -> None:
    child, ours = begun("watch", str(state), "by_city", "--every", "50ms", columns=80)
    try:
        assert "at epoch 1" in until(ours, "Zug")
        with flow().open(state) as engine:
            engine.step({"id": [4], "city": ["Chur"]})
        assert "at epoch 2" in until(ours, "Chur")
    finally:
        child.terminate()
        child.wait(120)
        os.close(ours)


def until(terminal: int, word: str) -> str:
    seen, ends = "", time.monotonic() + 120
    while word not in seen and time.monotonic() < ends:
        if select.select([terminal], [], [], 0.5)[0]:
            seen += os.read(terminal, 1 << 16).decode(errors="replace")
    assert word in seen, seen
    return seen
