"""Test runs of flows with a clock: rows that go without input, idle times, and the options that do not fit."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.errors import SpecError


def flow_of() -> dd.Flow:
    flow = dd.Flow(clock="timestamp")
    rows = flow.upserts("rows", {"id": int, "at": "timestamp"}, dd.Upsert(key="id"))
    flow.output("recent", rows.filter("at > now() - interval 1 hour and at <= now()"))
    flow.output("rows", rows)
    return flow


def test_rows_come_and_go_without_input(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    hour, second = dt.timedelta(hours=1), dt.timedelta(seconds=1)
    (tmp_path / "rows.csv").write_text(
        f"id,at\n1,{now - hour + 2 * second}\n2,{now - 2 * hour}\n3,{now + 2 * second}\n4,{now + hour}\n"
    )
    with flow_of().open(tmp_path / "state") as engine:
        seen = list[tuple[int, int]]()

        def note(step: dd.Step) -> None:
            seen.extend((row["id"], row["_diff"]) for row in step["recent"].to_pylist())
            if {(1, -1), (3, 1)} <= {*seen}:
                engine.stop()

        source = dd.sources.files(str(tmp_path / "*.csv"), follow=True)
        done = engine.run({"rows": source}, clock="100ms", interval="50ms", until="60s", on_epoch=note)
        # A slow machine can read row 1 when it is already over.
        assert {each for each in seen if each != (1, 1)} == {(1, -1), (3, 1)} or (1, 1) not in seen
        assert [row["id"] for row in engine.read("recent").to_pylist()] == [3]
        assert done.epochs <= 3 and engine.epoch == done.epochs
    with flow_of().open(tmp_path / "state") as engine:
        before = engine.epoch
        engine.run({}, clock="50ms", until="300ms")
        assert engine.epoch == before  # no row comes or goes at these times
        later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=3)
        assert engine.step({}, time=later)["recent"].num_rows == 1


def test_clocks_that_do_not_fit(tmp_path: Path) -> None:
    plain = dd.Flow()
    plain.output("rows", plain.upserts("rows", {"id": int}, dd.Upsert(key="id")))
    held = dd.Flow()
    held.output("rows", held.updates("rows", {"id": int, "t": pa.timestamp("us")}, time="t", lateness=0))
    days = dd.Flow(clock="date")
    days.output("rows", days.updates("rows", {"day": pa.date32()}))
    for flow, clock in [(plain, "1s"), (held, "1s"), (days, None), (flow_of(), "soon")]:
        with flow.open() as engine, raises(SpecError):
            engine.run({}, clock=clock)


@pytest.mark.parametrize("clock", ["1s"])
def test_the_clock_is_an_option_of_the_shell(tmp_path: Path, clock: str) -> None:
    from typer.testing import CliRunner

    from ddflow.cli import app

    (tmp_path / "flow.py").write_text(
        "import ddflow as dd\nflow = dd.Flow(clock='timestamp')\n"
        "rows = flow.upserts('rows', {'id': int, 'at': 'timestamp'}, dd.Upsert(key='id'))\n"
        "flow.output('recent', rows.filter('at <= now()'))\n"
    )
    (tmp_path / "rows.csv").write_text("id,at\n1,2026-01-01 00:00:00\n2,2999-01-01 00:00:00\n")
    asked = ["run", str(tmp_path / "flow.py"), "--state", str(tmp_path / "state"), "--clock", clock]
    made = CliRunner().invoke(app, [*asked, "--from", f"rows=files:{tmp_path}/*.csv", "--json"])
    assert made.exit_code == 0 and '"updates": 1' in made.output
