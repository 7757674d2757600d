"""Test a source's lag in seconds: by its own clock while it has more rows, and 0 at its end."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.connectors.api import OpenSource, Polled, Source
from ddflow.engine.run.source_reader import SourceReader
from ddflow.errors import SourceFailed

SCHEMA = pa.schema({"id": pa.int64()})


def flow() -> dd.Flow:
    made = dd.Flow()
    made.output("rows", made.upserts("rows", {"id": int}, dd.Upsert(key="id")))
    return made


def landed(folder: Path, *ages: int) -> str:
    """A pattern of files that were written so many seconds ago."""
    for at, age in enumerate(ages):
        path = folder / f"{at}.csv"
        path.write_text(f"id\n{at}\n")
        os.utime(path, times=(0, time.time() - age))
    return str(folder / "*.csv")


def reader(source: Source, position: Any = None) -> SourceReader:
    """A reader whose source is open; its inputs have no format."""
    made = SourceReader("rows", source, {}, None)
    made._open = source.open({"rows": SCHEMA}, position)
    return made


def test_of_files_it_is_since_the_last_one_was_written_that_was_read(tmp_path: Path) -> None:
    source = dd.sources.files(landed(tmp_path, 7200, 3600, 60))
    made = reader(source)
    assert made.measure_lag().seconds is None
    seen, position = list[Any](), None
    while (found := made.poll(1)) is not None:
        seen, position = [*seen, made.measure_lag()], found.position if len(seen) == 1 else position
    assert [round(each.seconds, -2) for each in seen[:2]] == [7200, 3600] and made.measure_lag().seconds == 0.0
    again = reader(source, position)
    assert again.measure_lag().seconds == pytest.approx(3600, abs=60)
    assert str(again.measure_lag()) == ""  # how many there are is not known yet


def test_of_delta_it_is_since_the_commit_of_the_version(tmp_path: Path) -> None:
    for at in range(3):
        rows = pa.table({"id": [at]})
        feed = {"delta.enableChangeDataFeed": "true"}
        deltalake.write_deltalake(tmp_path, rows, mode="append", configuration=None if at else feed)
    commits = [each["timestamp"] / 1000 for each in reversed(deltalake.DeltaTable(tmp_path).history())]
    schema = pa.schema({"id": pa.int64(), "_change_type": pa.string()})
    opened = dd.sources.delta(tmp_path, start=0).open({"rows": schema}, None)
    assert (opened.lag(), opened.reached) == (3, None)
    seen = list[Any]()
    while opened.poll(1) is not None:
        seen.append((opened.lag(), opened.reached))
    assert [seen[0][1], seen[-1]] == [commits[0], (0, commits[2])]


def test_a_database_in_a_file_has_no_time_but_that_of_the_last_look(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("create table t (id integer)")
        connection.execute("insert into t values (1)")
    connection.close()
    began = time.time()
    made = reader(dd.sources.sqlite(tmp_path / "a.db", "t"))
    assert made.measure_lag().seconds is None
    assert made.poll(1) is not None
    lag = made.measure_lag()
    assert lag.amount is None and lag.seconds is not None and 0 <= lag.seconds <= time.time() - began
    assert str(lag) == ""


class Old(Source, OpenSource):
    """A row of long ago, then an end, then a failure."""

    kind, unit, target = "old", "rows", "nowhere"
    ended, left = False, 1

    def open(self, inputs: Any, position: Any) -> OpenSource:
        """Itself."""
        return self

    def lag(self) -> int:
        """As it is set."""
        return self.left

    def poll(self, room: int) -> Polled | None:
        """Nothing."""
        raise SourceFailed("read nowhere", "it does not answer", "wait")


def test_an_end_that_was_seen_is_no_older_than_that_also_while_the_source_fails() -> None:
    source = Old()
    source.reached = time.time() - 3600
    made = reader(source)
    assert made.measure_lag().seconds == pytest.approx(3600, abs=60)
    assert str(made.measure_lag()).startswith("1 row (3,6")
    source.left = 0
    assert made.measure_lag().seconds == 0.0
    source.left = 5  # by a row of long ago it would be an hour
    first = made.measure_lag().seconds
    assert made.poll(1) is None
    last = made.measure_lag()
    assert last.failing and first is not None and last.seconds is not None and 0 <= first <= last.seconds < 60


class Away(Source):
    """Files that cannot be reached, a first time or some more."""

    kind, unit, target = "files", "files", "away"

    def __init__(self, of: Source) -> None:
        self.of, self.fails = of, 2

    def open(self, inputs: Any, position: Any) -> OpenSource:
        """That of the files."""
        self.fails -= 1
        if self.fails >= 0:
            raise SourceFailed("read the files", "the server does not answer", "wait")
        return self.of.open(inputs, position)


def test_after_a_restart_it_is_known_before_the_source_answers(tmp_path: Path) -> None:
    files = dd.sources.files(landed(tmp_path, 7200, 3600))
    seen = list[Any]()
    with flow().open(tmp_path / "state") as engine:
        engine.run({"rows": files})
        # The files were read to their end just now; what was committed of one that is read on is older.
        assert engine.durable is not None
        log = engine.durable.log.sources
        assert log["rows"].reached == pytest.approx(time.time() * 1000, abs=60_000)
        old = reader(files)
        assert old.poll(1) is not None
        assert old.make_record().reached == pytest.approx((time.time() - 7200) * 1000, abs=60_000)
    with flow().open(tmp_path / "state", metrics=seen.append) as engine:
        done = engine.run({"rows": Away(files)})
    lags = [call.sources["rows"] for call in seen if call.kind == "run"]
    assert lags[0].failing and lags[0].amount is None and 0 <= lags[0].seconds < 60
    assert done.behind == {"rows": 0.0}
    assert SourceReader("rows", files, {}, old.make_record()).measure_lag().seconds == pytest.approx(7200, abs=60)


@pytest.mark.parametrize("said", [1.7e12, -1e15])
def test_a_state_takes_a_source_whose_clock_is_wrong(tmp_path: Path, said: float) -> None:
    pattern = landed(tmp_path, 60)
    with flow().open(tmp_path / "state") as engine:
        made = reader(dd.sources.files(pattern))
        made._open.reached, made._open._first = said, True
        engine.dataflow.sources["rows"] = made.make_record()
        engine.step([{"id": 1}])
        assert 0 <= made.make_record().reached <= time.time() * 1000
    with flow().open(tmp_path / "state") as engine:
        assert engine.read("rows").num_rows == 1


class Copied(Old):
    """Three batches behind which no epoch may end but the last."""

    def __init__(self) -> None:
        self.polled = 0

    @property
    def ended(self) -> bool:
        """After the third."""
        return self.polled == 3

    def lag(self) -> int | None:
        """Unknown until it has ended."""
        return 0 if self.ended else None

    def poll(self, room: int) -> Polled | None:
        """Ten rows."""
        self.polled += 1
        rows = pa.record_batch({"id": range(10 * self.polled, 10 * self.polled + 10)})
        return Polled({"rows": [rows]}, 3 if self.ended else None)


def test_a_first_copy_says_how_many_rows_came_so_far(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for name in ("EVERY", "REMIND"):
        monkeypatch.setattr(f"ddflow.engine.run.report.{name}", 0)
    seen = list[Any]()
    with flow().open(metrics=seen.append) as engine:
        assert engine.run({"rows": Copied()}).epochs == 1
    lags = [call.sources["rows"] for call in seen if call.kind == "run"]
    assert [(each.amount, each.seconds) for each in lags if each.gathered in (10, 20)] == [(None, None)] * 2
    assert {each.gathered for each in lags} >= {0, 10, 20} and lags[-1].gathered == 0
    shown = [each.message for each in caplog.records if "first copy" in each.message]
    assert shown == [f"the first copy of 'rows' has {rows} rows so far" for rows in (10, 20)]
    began = SourceReader("rows", Copied(), {}, None)
    began.poll(1)
    again = SourceReader("rows", Copied(), {}, began.make_record())
    again.committed = 1
    again.poll(1)
    assert (began.is_reading_first_copy, began.gathered, again.is_reading_first_copy, again.gathered) == (
        True,
        10,
        False,
        10,
    )


def test_a_run_says_it_in_its_end_its_log_and_its_figures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    seen = list[Any]()
    with flow().open(tmp_path / "state", metrics=seen.append) as engine:
        done = engine.run({"rows": dd.sources.files(landed(tmp_path, 60))})
    assert done.behind == {"rows": 0.0}
    epochs = [each.__dict__["ddflow"] for each in caplog.records if each.message.startswith("epoch 1: ")]
    assert [(each["lags"], each["behind"]) for each in epochs] == [({"rows": 0}, {"rows": 0.0})]
    assert [call.sources["rows"].seconds for call in seen if call.kind == "run"][-1] == 0.0
