"""Test the pace of a run: epochs by time, rows and bytes, signals, the status line and the log line."""

from __future__ import annotations

import math
import os
import pty
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from programs import PIPE, Program

import ddflow as dd
from ddflow.connectors.api import OpenSource, Polled, Source
from ddflow.engine.run.retry import Retry
from ddflow.errors import SourceFailed
from ddflow.exporters.figures import FIGURES
from ddflow.metrics import SourceLag

PROGRAM = """
import sys
import ddflow as dd
from test_run_pace import Numbers, flow
class Slow(Numbers):
    def poll(self, room):
        print("polled", flush=True)
        sys.stdin.readline()
        return super().poll(room)
with flow().open(sys.argv[1]) as engine:
    done = engine.run({"rows": Slow(100)})
    print(done.stopped, done.epochs, done.rows)
"""


def flow(*names: str) -> dd.Flow:
    made = dd.Flow()
    for name in names or ("rows",):
        made.output(name, made.upserts(name, {"id": int, "text": str}, dd.Upsert(key="id")))
    return made


class Numbers(Source, OpenSource):
    """Batches of so many rows, without an end or until so many epochs; what it was asked for, and what an epoch had."""

    kind, unit = "numbers", "batches"

    def __init__(self, rows: int, ends: float = math.inf) -> None:
        self.rows, self.ends, self.asked, self.epochs, self.size = rows, ends, list[int](), list[int](), 0

    @property
    def target(self) -> str:
        """Nowhere."""
        return "nowhere"

    @property
    def ended(self) -> bool:
        """After its epochs."""
        return len(self.epochs) >= self.ends

    def open(self, inputs: Any, position: Any) -> OpenSource:
        """Itself."""
        self.name, self.position = next(iter(inputs)), position or 0
        return self

    def poll(self, room: int) -> Polled:
        """Rows of as many bytes as there is room for."""
        self.asked.append(room)
        rows = min(self.rows, room // 100)
        self.position += 1
        batch = pa.record_batch({"id": range(rows), "text": ["x" * 84] * rows})
        self.size += batch.nbytes
        return Polled({self.name: [batch]}, self.position)

    def lag(self) -> int:
        """Batches."""
        return 7

    def acknowledge(self, position: Any) -> None:
        """An epoch ended."""
        self.epochs, self.size = [*self.epochs, self.size], 0


def test_an_epoch_has_no_more_bytes_than_there_is_room_for(tmp_path: Path) -> None:
    room, least = 1 << 20, 1 << 16
    sources = {"a": Numbers(3_000, ends=3), "b": Numbers(100, ends=3)}
    with flow("a", "b").open(tmp_path / "state") as engine:
        done = engine.run(sources, interval="60s", room=room)
    assert (done.stopped, done.epochs) == ("end", 3)
    for source in sources.values():
        assert max(source.asked) <= room and min(source.asked) >= least
    each = [sum(sizes) for sizes in zip(*(source.epochs for source in sources.values()), strict=True)]
    assert max(each) <= room + 2 * least
    assert min(each[:-1]) >= room


class Elsewhere(Numbers):
    """Its rows are none of ours: only its position moves, twice."""

    @property
    def ended(self) -> bool:
        """Behind the second."""
        return bool(self.position > 1)

    def poll(self, room: int) -> Polled:
        """A position."""
        self.position += 1
        return Polled({}, self.position)


def test_positions_that_move_without_rows_are_committed_and_are_no_epoch(tmp_path: Path) -> None:
    with flow().open(tmp_path / "state") as engine:
        done = engine.run({"rows": Elsewhere(0)}, rows=1, interval="1ms")
        assert (done.epochs, done.rows, engine.epoch, done.moved > 0) == (0, 0, 0, True)
    with flow().open(tmp_path / "state") as engine:
        assert engine.durable is not None and engine.durable.log.sources["rows"].position == 2
    with flow().open() as engine:
        done = engine.run({"rows": Elsewhere(0)})
        assert done.epochs == 0 and done.moved > 0


class Unreached(Numbers):
    """A source that fails before it is open, some times."""

    fails = 2

    def open(self, inputs: Any, position: Any) -> OpenSource:
        """Fail, or itself."""
        self.fails -= 1
        if self.fails >= 0:
            raise SourceFailed("read nowhere", "it does not answer", "wait")
        return super().open(inputs, position)


def test_a_lag_has_one_unit_and_none_is_shown_before_it_is_known() -> None:
    seen = list[Any]()
    with flow().open(metrics=seen.append) as engine:
        engine.run({"rows": Unreached(10, ends=2)}, rows=10, interval="1ms")
    lags = [call.sources["rows"] for call in seen if call.kind == "run"]
    assert {lag.unit for lag in lags} == {"batches"}
    assert lags[0] == SourceLag(None, "batches", True) and lags[-1] == SourceLag(7, "batches")
    shown = [list(figure.of(call)) for figure in FIGURES if figure.name == "source_lag" for call in seen]
    assert shown[0] == [] and shown[-1] == [(("rows", "batches"), 7)]


class Slow(Numbers):
    """A source that says what is there, and reads for long."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__(10, ends=1)
        self.seen, self.before = seen, list[Any]()

    def poll(self, room: int) -> Polled:
        """What was published until it is read."""
        self.before = self.before or list(self.seen)
        return super().poll(room)


def test_what_waits_is_shown_before_it_is_read() -> None:
    seen = list[Any]()
    source = Slow(seen)
    with flow().open(metrics=seen.append) as engine:
        engine.run({"rows": source}, rows=10)
    assert [(call.kind, call.sources["rows"].amount) for call in source.before] == [("run", 7)]


def test_what_waits_is_shown_when_the_first_answer_tells_it() -> None:
    seen = list[Any]()

    class Late(Numbers):
        """A source that knows what is there once it was asked."""

        def lag(self) -> Any:
            """None until it was."""
            return 7 if self.asked else None

    with flow().open(metrics=seen.append) as engine:
        engine.run({"rows": Late(10, ends=1)}, rows=10)
    kinds = [(call.kind, call.sources["rows"].amount if call.kind == "run" else 0) for call in seen]
    assert kinds[:3] == [("run", None), ("run", 7), ("step", 0)]


def test_epochs_end_by_rows(tmp_path: Path) -> None:
    with flow().open(tmp_path / "state") as engine:
        done = engine.run({"rows": Numbers(10, ends=3)}, interval="60s", rows=25)
        assert engine.run({"rows": Numbers(10)}, until="200ms").stopped == "time"
    assert (done.epochs, done.rows) == (3, 90)  # three batches each


def test_epochs_end_by_time_and_each_is_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with flow().open(tmp_path / "state") as engine:
        done = engine.run({"rows": Numbers(1, ends=3)}, interval="200ms")
    assert 3 <= done.epochs <= done.seconds / 0.2 + 1
    words = r"epoch (\d+): ([\d,]+) rows? of \['rows'\], ([\d,]+) updates?, [\d,]+ ms, rows is 7 batches behind"
    lines = [re.fullmatch(words, each.message) for each in caplog.records]
    records = [each.__dict__["ddflow"] for each, line in zip(caplog.records, lines, strict=True) if line]
    assert [(each["epoch"], each["rows"], each["updates"]) for each in records] == [
        tuple(int(text.replace(",", "")) for text in line.groups()) for line in lines if line
    ]
    assert all(each["seconds"] > 0 and each["lags"] == {"rows": 7} and each["sinks"] == {} for each in records)
    told = [(int(line[1]), int(line[2].replace(",", ""))) for line in lines if line]
    assert [epoch for epoch, _ in told] == list(range(1, done.epochs + 1))
    assert sum(rows for _, rows in told) == done.rows


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_ends_behind_the_epoch_and_another_at_once(tmp_path: Path, signals: int) -> None:
    process = Program(PROGRAM, tmp_path / "state", stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None and process.stdout.readline() == "polled\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None  # it waits in the middle of a poll
    ends = time.monotonic() + 120
    while signals == 2 and process.poll() is None and time.monotonic() < ends:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    said, _ = process.communicate("\n" if signals == 1 else None)
    if signals == 1:
        assert (process.returncode, said) == (0, "signal 1 100\n")
        assert dd.read(tmp_path / "state", "rows").num_rows == 100
    else:
        assert (process.returncode, said) == (-signal.SIGTERM, "")
        assert not dd.fsck(tmp_path / "state").problems


class Copying(Numbers):
    """A source whose first rows have no end, as a copy for hours; a signal comes at the third poll."""

    def poll(self, room: int) -> Polled:
        self.position += 1
        if self.position == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return Polled({"rows": [pa.record_batch({"id": [self.position]})]}, None)


def test_a_signal_ends_a_first_copy_which_begins_anew(tmp_path: Path) -> None:
    source = Copying(10)
    with flow().open(tmp_path / "state") as engine:
        done = engine.run({"rows": source})
        assert (done.stopped, done.epochs, source.position) == ("signal", 0, 3)
    with flow().open(tmp_path / "state") as engine:
        engine.run({"rows": Numbers(10, ends=1)}, rows=10)
        assert engine.epoch == 1


def test_an_epoch_is_shown_as_waiting_while_a_sink_takes_it(tmp_path: Path) -> None:
    seen = list[Any]()
    with flow().open(tmp_path / "state", metrics=seen.append) as engine:
        engine.run({"rows": Numbers(10, ends=1)}, {"rows": dd.sinks.sqlite(tmp_path / "o.db", "rows")}, rows=10)
    lags = [call.sinks["rows"].epochs for call in seen if call.kind == "run"]
    assert 1 in lags and lags[-1] == 0


def test_the_log_says_that_a_write_lasts(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("ddflow.engine.run.retry.monotonic", lambda: now[0])
    retry = Retry("the sink of 'rows'")
    with retry.watch_call("has been writing epoch 7"):
        assert retry._call is not None
        retry._call.began = 0.0
        for second in range(300):
            now[0] = float(second)
            retry.log_long_call()
    retry.log_long_call()
    said = [each.getMessage() for each in caplog.records]
    assert said == [f"the sink of 'rows' has been writing epoch 7 for {lasted} s" for lasted in (30, 60, 120, 240)]


class Times(Numbers):
    """A row a poll, a second after the one before."""

    def poll(self, room: int) -> Polled:
        self.position += 1
        return Polled({"a": [pa.record_batch({"id": [1], "at": [self.position]})]}, self.position)


def test_the_line_says_how_far_all_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = dd.Flow()
    for name in ("a", "b"):
        made.output(name, made.upserts(name, {"id": int, "at": int}, dd.Upsert(key="id", time="at", lateness=1)))
    (tmp_path / "1.csv").write_text("id,at\n1,5\n")
    sources = {"a": Times(1), "b": dd.sources.files(tmp_path / "*.csv", follow=True, settle="0s")}
    leader, follower = pty.openpty()
    monkeypatch.setenv("COLUMNS", "200")
    wanted, shown = b", a: 7 batches, frontier 4, held by b, b has ", bytearray()

    def look() -> None:
        with suppress(OSError):  # the terminal is closed behind the run
            while block := os.read(leader, 4096):
                shown.extend(block)
                if wanted in shown:
                    engine.stop()

    with made.open(tmp_path / "state") as engine:
        looks = threading.Thread(target=look)
        with open(follower, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            looks.start()
            done = engine.run(sources, {"b": dd.sinks.sqlite(tmp_path / "out.db", "b")}, interval="50ms", until="2min")
            monkeypatch.undo()
        looks.join(120)
    os.close(leader)
    text = shown.decode()
    assert done.stopped == "stop", text
    lines = text.strip().split("\r\x1b[K")[1:]
    parts = (
        r"epoch ([\d,]+), ([\d,]+) rows, ([\d,]+) rows/s(, (reading|writing) [ab]: [\d,]+ rows, [\d,]+ rows/s)?"
        r"(, a: 7 batches)?(, frontier \S+, held by [ab])?, b has ([\d,]+)"
    )
    assert all(re.fullmatch(parts, line) for line in lines), text
