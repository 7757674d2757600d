"""Test times of date or timestamp columns: users see and type dates and timestamps, and data stays unchanged."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ddflow as dd
from ddflow import errors
from ddflow.engine.commits import CallRequest
from ddflow.engine.run.delivery import Deliveries
from ddflow.engine.run.report import RunReport
from ddflow.time import CLOSED, NEVER, format_time, parse_time, time_to_int64

WINDOW = "it can be read from 2024-01-03 up to, not including, 2024-01-06"


def day(n: int) -> dt.date:
    return dt.date(2024, 1, n)


def flow_of(kind: pa.DataType) -> dd.Flow:
    flow = dd.Flow()
    visits = flow.upserts("visits", {"id": int, "city": str, "at": kind}, dd.Upsert("id", time="at"))
    flow.output("by_city", visits.project(["city"]).count())
    return flow


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[dd.Engine]:
    with flow_of(pa.date32()).open(tmp_path / "state", retain=2) as engine:
        for n in range(1, 6):
            engine.push({"id": [n], "city": ["Bern"], "at": [day(n)]})
            engine.advance_to(day(n + 1))
        yield engine


def refused(act: Callable[[], Any], error: type[errors.DdflowError], *texts: str) -> None:
    with pytest.raises(error) as caught:
        act()
    for text in texts:
        assert text in str(caught.value)


def test_what_is_shown_has_days_and_what_is_data_has_not_changed(engine: dd.Engine) -> None:
    stats = engine.stats()
    for text in (str(stats), stats._repr_html_(), engine._repr_html_()):
        assert "frontier 2024-01-06, since 2024-01-03" in text
    assert (stats["frontier"], stats["since"], engine.last) == (19728, 19725, 19727)
    assert "by_city, at 2024-01-05" in engine.watch("by_city")._repr_html_()
    step = engine.advance_to("2024-01-07")
    assert step.frontier == 19729 and step["by_city"].field("_time").type == pa.date32()
    with engine.reader("by_city", at=day(5)) as reader:
        assert repr(reader) == "Reader('by_city', at 2024-01-05)" and reader.time == 19727
        refused(lambda: engine.compact(forget=True), errors.SpecError, "holds history from 2024-01-05 on")
    assert "closed at 2024-01-05" in repr(reader)
    refused(reader.read, errors.NotReadable, "it was closed at time 2024-01-05")


def test_why_has_days_in_text_and_the_number_in_plain_values(engine: dd.Engine) -> None:
    told = engine.why("by_city", {"city": "Bern"}, as_of=day(4))
    assert str(told).startswith("1 row of 'by_city' as of 2024-01-04\n") and told.to_dict()["as_of"] == 19726
    assert "from 2024-01-01 or before:" in str(engine.why("visits", 1))
    engine.push({"id": [9], "city": ["Chur"], "at": [day(9)]})
    assert "pending, for 2024-01-09" in str(engine.why("visits", 9))


@pytest.mark.parametrize("give", [int, lambda n: np.int64(n), lambda n: str(day(n - 19722)), lambda n: day(n - 19722)])
def test_a_day_is_understood_wherever_a_time_is_asked_for(
    engine: dd.Engine, tmp_path: Path, give: Callable[[int], Any]
) -> None:
    held = [{"city": "Bern", "count": 4, "_diff": 1}]
    assert engine.read("by_city", give(19726)).to_pylist() == held
    assert dd.read(tmp_path / "state", "by_city", as_of=give(19726)).to_pylist() == held
    assert engine.changes("by_city", give(19726), give(19727)).column("_diff").to_pylist() == [-1, 1]
    assert engine.why("by_city", {"city": "Bern"}, as_of=give(19726)).to_dict()["as_of"] == 19726
    with engine.reader("by_city", at=give(19725)) as reader:
        assert reader.read(give(19726)).to_pylist() == held
        assert reader.changes_to(give(19726)).num_rows == 2
        reader.advance_to(give(19727))
        assert reader.time == 19727
        refused(
            lambda: reader.advance_to(give(19725)), errors.TimeWentBack, "to 2024-01-03: it is already at 2024-01-05"
        )
    assert engine.advance_to(give(19730)).frontier == 19730


def test_errors_say_days(engine: dd.Engine) -> None:
    late = {"id": [7], "city": ["Bern"], "at": [day(2)]}
    refused(lambda: engine.push(late), errors.LateEvent, "behind the frontier 2024-01-06", "at time 2024-01-02;")
    back = "cannot advance to 2024-01-02: the frontier is already 2024-01-06"
    refused(lambda: engine.advance_to(day(2)), errors.TimeWentBack, back)
    refused(lambda: engine.read("by_city", day(1)), errors.NotReadable, "as of 2024-01-01: since is 2024-01-03", WINDOW)
    refused(lambda: engine.read("by_city", 19723), errors.NotReadable, "as of 2024-01-01: since is 2024-01-03", WINDOW)
    refused(lambda: engine.changes("by_city", day(3), "2024-01-09"), errors.NotReadable, "the frontier is 2024-01-06")
    backwards = "changes from 2024-01-05 to 2024-01-04: the second"
    refused(lambda: engine.changes("by_city", day(5), day(4)), errors.TimeWentBack, backwards)
    refused(lambda: engine.reader("by_city", at=day(1)), errors.NotReadable, "at 2024-01-01: since is 2024-01-03")
    refused(lambda: engine.advance_to(day(7), epoch=1), errors.DdflowError, "advance_to at 2024-01-07 of epoch 1")


def test_an_epoch_given_again_otherwise_says_both_days(engine: dd.Engine) -> None:
    found = "advance_to at 2024-01-07: it was committed as advance_to at 2024-01-06"
    refused(lambda: engine.advance_to(day(7), epoch=10), errors.ReplayMismatch, found)
    assert CallRequest("advance_to", 5) == CallRequest("advance_to", 5, time_type=pa.date32())


def test_the_line_of_a_run_says_up_to_which_day_it_is(engine: dd.Engine) -> None:
    report = RunReport(engine.calls, [], Deliveries({}), False)
    report.show_status(("visits", 0))
    assert report._format_status_line().endswith("frontier 2024-01-06, held by visits")


@pytest.mark.parametrize(
    ("kind", "text", "number"),
    [
        (pa.date32(), "2024-01-03", 19725),
        (pa.date64(), "2024-01-03", 19725 * 86_400_000),
        (pa.timestamp("s"), "2024-01-03 10:00:00", 1_704_276_000),
        (pa.timestamp("us"), "2024-01-03 10:00:00.000001", 1_704_276_000_000_001),
        (pa.timestamp("ms", "UTC"), "2024-01-03 10:00:00+00:00", 1_704_276_000_000),
        (pa.timestamp("ms", "Europe/Zurich"), "2024-01-03 11:00:00+01:00", 1_704_276_000_000),
        (pa.int64(), "19725", 19725),
    ],
)
def test_what_is_shown_is_understood(kind: pa.DataType, text: str, number: int) -> None:
    assert format_time(number, kind) == text
    assert parse_time("a test", f" {text} ", kind) == parse_time("a test", str(number), kind) == number
    assert time_to_int64("a test", np.int64(number), CLOSED, kind) == number
    assert (format_time(CLOSED, kind), format_time(NEVER, kind)) == ("CLOSED", "the beginning")
    for wrong in ("noon", 1.5, True, None, 2**64):
        refused(
            lambda wrong=wrong: time_to_int64("a test", wrong, CLOSED, kind),
            errors.SchemaMismatch,
            "that is not a",
            "pass a",
        )


def test_what_has_no_day_is_a_number_and_midnight_is_a_day() -> None:
    for number in (2**40, -(2**40), CLOSED - 1):
        assert format_time(number, pa.date32()) == str(number)
    assert time_to_int64("a test", dt.datetime(2024, 1, 3), CLOSED, pa.date32()) == 19725
    for moment in (dt.datetime(2024, 1, 3, 10), "2024-01-03 10:00:00"):
        refused(
            lambda given=moment: time_to_int64("a test", given, CLOSED, pa.date32()), errors.SchemaMismatch, "date32"
        )
    assert time_to_int64("a test", dt.date(2024, 1, 3), CLOSED, pa.timestamp("s")) == 19725 * 86_400
    assert time_to_int64("a test", np.datetime64("2024-01-03T10"), CLOSED, pa.timestamp("s")) == 1_704_276_000
    naive = "pass a time like 1970-01-01 00:00:00+00:00"  # which moment one without a zone is, nobody says
    refused(
        lambda: time_to_int64("a", dt.date(2024, 1, 3), CLOSED, pa.timestamp("s", "UTC")), errors.SchemaMismatch, naive
    )
