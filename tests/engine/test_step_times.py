"""Test step times that are dates or timestamps: the first step sets the type and the state keeps it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow import errors
from ddflow.partitions.commit import EpochDriver
from ddflow.partitions.rescale import rescale
from ddflow.plan.text.codec import describe_plan, rebuild_plan

DAY = dt.date(2026, 11, 26)
MOMENT = dt.datetime(2026, 11, 26, 12)
ZONED = MOMENT.replace(tzinfo=dt.UTC)


def flow_of(**more: Any) -> dd.Flow:
    flow = dd.Flow()
    spec = dd.Upsert(key="id", order_by="v", stale="mark")
    people = flow.upserts("people", {"id": int, "city": str, "v": int, **more}, spec)
    flow.output("by_city", people.project(["city"]).count())
    flow.output("shown", people.to_upserts("id"))
    return flow


def rows(*given: tuple[int, str, int]) -> dict[str, list[Any]]:
    return dict(zip(("id", "city", "v"), map(list, zip(*given, strict=True)), strict=True))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    with flow_of().open(tmp_path / "state", retain=9) as engine:
        engine.step(rows((1, "Bern", 5)), time=DAY)
        engine.step(rows((1, "Zug", 6), (2, "Zug", 6)), time=DAY + dt.timedelta(3))
    yield tmp_path / "state"


def test_days_are_in_all_that_comes_out() -> None:
    with flow_of().open(retain=9, verdicts="rows") as engine:
        first = engine.replace(rows((1, "Bern", 5)), time=DAY)
        for table in first.values():
            assert table["_time"].to_pylist() == [DAY] and table.field("_time").type == pa.date32()
        assert first.verdicts.rows is not None and first.verdicts.rows["people"]["_time"].to_pylist() == [DAY]
        second = engine.step(rows((1, "Zug", 6), (2, "Zug", 4)), time="2026-11-29")
        assert set(second["by_city"]["_time"].to_pylist()) == {dt.date(2026, 11, 29)}
        assert engine.step({}, time="2026-11-30")["by_city"].field("_time").type == pa.date32()
        assert engine.last == 20787
        for as_of in (DAY, "2026-11-28", 20783):
            assert engine.read("by_city", as_of=as_of)["city"].to_pylist() == ["Bern"]
        assert "from 2026-11-29: (id=1, city='Zug', v=6)" in str(engine.why("people", 1))
        assert "as of 2026-11-30" in str(engine.why("by_city", {"city": "Zug"}))
        assert set(engine.scd2("people")["valid_from"].to_pylist()) == {DAY, dt.date(2026, 11, 29)}
        assert "frontier 2026-12-01" in str(engine.stats())
        with raises(errors.TimeWentBack):
            engine.step({}, time=DAY.replace(day=1))
        with raises(errors.DuplicateKeys):
            engine.replace(rows((1, "Zug", 6), (1, "Zug", 7)), time="2026-12-01")


@pytest.mark.parametrize(
    ("first", "other", "said", "kept"),
    [
        (DAY, 7, "step at time 7: that time has type int64", "date32[day], the last 2026-11-26; pass a time like"),
        (7, DAY, "step at time 2026-11-26: that time has type date32[day]", "int64, the last 7; pass a time like 7"),
        (DAY, MOMENT, "that time has type timestamp[us]", "date32[day], the last 2026-11-26"),
        (MOMENT, "2026-11-27", "that time has type date32[day]", "timestamp[us], the last 2026-11-26 12:00:00"),
        (ZONED, MOMENT, "time has type timestamp[us]", "timestamp[us, tz=UTC], the last 2026-11-26 12:00:00+00:00"),
        (7, np.datetime64("2026-11-26T12:00"), "that time has type timestamp[us]", "int64, the last 7"),
    ],
)
def test_a_time_of_another_type_is_refused_and_both_are_named(first: Any, other: Any, said: str, kept: str) -> None:
    with flow_of().open() as engine:
        engine.step(rows((1, "Bern", 5)), time=first)
        with pytest.raises(errors.SchemaMismatch) as caught:
            engine.step(rows((2, "Bern", 5)), time=other)
        assert said in str(caught.value) and kept in str(caught.value)
        assert engine.read("by_city")["count"].to_pylist() == [1]


def test_moments_of_any_zone_are_one_type() -> None:
    with flow_of().open() as engine:
        engine.step(rows((1, "Bern", 5)), time=ZONED)
        later = (ZONED + dt.timedelta(hours=1)).astimezone(ZoneInfo("Europe/Zurich"))
        assert engine.step(rows((1, "Zug", 6)), time=later)["shown"]["_time"].to_pylist() == [later]
        with pytest.raises(errors.TimeWentBack):
            engine.step({}, time="2026-11-26 13:00:00+02:00")


def test_a_first_step_that_fails_says_no_type() -> None:
    with flow_of().open() as engine:
        with pytest.raises(errors.NullKey):
            engine.step({"id": [None], "city": ["Bern"], "v": [1]}, time=DAY)
        for wrong in ("soon", "2026-13-01", 1.5, True):
            with raises(errors.SchemaMismatch):
                engine.step({}, time=wrong)  # type: ignore[arg-type]  # as a user may give it
        assert engine.step(rows((1, "Bern", 5)))["by_city"]["_time"].to_pylist() == [1]


@pytest.mark.parametrize(
    "first",
    [
        DAY,
        ZONED,
        dt.date.max,
    ],
)
def test_a_day_or_a_moment_is_never_made_up(first: dt.date) -> None:
    with flow_of().open() as engine:
        engine.step(rows((1, "Bern", 5)), time=first)
        for call in (engine.step, engine.replace, engine.restate):
            with raises(errors.SchemaMismatch):
                call(rows((2, "Bern", 5)))
        assert engine.read("by_city")["count"].to_pylist() == [1]


def test_a_run_on_days_takes_nothing_from_sources_and_gives_to_sinks(state: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,city,v\n3,Bern,5\n")
    sinks = {"by_city": dd.sinks.sqlite(tmp_path / "a.db", "t")}
    with flow_of().open(state) as engine:
        with raises(errors.SchemaMismatch):
            engine.run({"people": dd.sources.files(tmp_path / "*.csv")}, sinks)
        assert engine.run(sinks=sinks).sinks == {"by_city": 2}


def test_an_epoch_that_is_given_again_has_its_day(state: Path) -> None:
    with flow_of().open(state) as engine:
        assert engine.step(rows((1, "Bern", 5)), epoch=1)["by_city"]["_time"].to_pylist() == [DAY]
        with raises(errors.SchemaMismatch):
            engine.step({}, epoch=3)


def test_a_state_keeps_the_type(state: Path) -> None:
    with flow_of().open(state) as engine:
        assert engine.step(rows((1, "Bern", 5)), time=DAY)["by_city"]["_time"].to_pylist() == [DAY]  # given again
        with raises(errors.ReplayMismatch):
            engine.step(rows((3, "Bern", 5)), time=DAY)
        with raises(errors.SchemaMismatch):
            engine.step({}, time=3)
        engine.evolve({"more": pa.string()})
        done = engine.step(rows((3, "Chur", 5)) | {"more": ["x"]}, time=DAY.replace(day=30))
        assert done["shown"]["_time"].to_pylist() == [dt.date(2026, 11, 30)]
        engine.compact()
    found = dd.inspect(state)
    assert found["time_type"] == "date32[day]" and found["last"] == 20787
    assert not dd.fsck(state).problems
    with dd.Snapshot.open(state, flow=flow_of(more=str)) as snapshot:
        assert snapshot.read("by_city", as_of=DAY)["city"].to_pylist() == ["Bern"]
    log = [rows((1, "Bern", 5)), rows((1, "Zug", 6), (2, "Zug", 6)), rows((3, "Chur", 5)) | {"more": ["x"]}]
    assert dd.verify(state, {"people": log}).ok
    rescale(state, 3)
    assert dd.read(state, "by_city", as_of="2026-11-28")["city"].to_pylist() == ["Bern"]
    driver = EpochDriver.open(flow_of(more=str), state)
    with raises(errors.SpecError):
        driver.begin()
    assert driver.begin(time=20788).epoch == driver.epoch + 1
    driver.close()


def test_no_days_are_made_up_for_the_steps_of_a_log(state: Path, tmp_path: Path) -> None:
    log = [{"people": rows((1, "Bern", 5))}, {"people": rows((1, "Zug", 6), (2, "Zug", 6))}]
    with raises(errors.StateRefused):
        dd.migrate(state, tmp_path / "new", flow_of(), log)
    assert not (tmp_path / "new").exists()


def test_a_plan_is_read_back_with_the_type_and_damage_is_named(state: Path) -> None:
    with dd.Snapshot.open(state) as snapshot:
        description = describe_plan(snapshot.flow)
    assert description["times"] == "date32[day]" and describe_plan(rebuild_plan(description)) == description
    for wrong in ("string", "no type", 7):
        with raises(errors.CorruptState):
            rebuild_plan(description | {"times": wrong})
