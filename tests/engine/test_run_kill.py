"""Killed anywhere between source and sink, a run goes on: source, state and targets agree, and have each epoch once.

A forked child lands files, runs and gives its epochs to three targets, and kills itself with SIGKILL at the n-th call
of what a run is made of: its own functions, those of the connectors and the state's log, and the calls of ``os`` and
SQLite that change something.  The next child goes on with what is left, and may be killed as well; the last one comes
to the end.  What the targets then hold is what they hold after a life without any of it.
"""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from chance import sample, seeded

import ddflow as dd
from ddflow.errors import DdflowError

FILES = [
    [(1, "Bern", 5), (2, "Bern", 6), (3, "Chur", 7)],
    [(1, "Chur", 5), (4, "Basel", 1)],
    [(2, "Bern", 6)],
    [(4, "Bern", 2), (5, "Chur", 9)],
]
WATCHED = ("engine/run", "engine/delivery", "engine/inlet", "engine/commits", "engine/epoch_log", "connectors/")
CALLS = ("execute", "executemany", "commit", "rollback", "write", "link", "rename", "unlink", "mkdir", "fsync")


def flow() -> dd.Flow:
    """Orders, and sums of them by city."""
    made = dd.Flow()
    orders = made.upserts("orders", {"id": int, "city": str, "amount": int}, dd.Upsert(key="id"))
    made.output("orders", orders)
    made.output("by_city", orders.group_by("city").agg(n="count(*)", total="sum(amount)"))
    made.output("log", orders.filter("amount > 1"))
    return made


def story(place: Path) -> None:
    """Land file after file, each with a run; what was done before is not done again."""
    sources = {"orders": dd.sources.files(place / "in" / "*.csv")}
    sinks = {
        "by_city": dd.sinks.sqlite(place / "out.db", "by_city"),
        "orders": dd.sinks.sqlite(place / "log.db", "orders", mode="changelog"),
        "log": dd.sinks.parquet(place / "log", mode="retract"),
    }
    (place / "in").mkdir(exist_ok=True)
    with flow().open(place / "state", grace=0.0) as engine:
        for number, rows in enumerate(FILES):
            file = place / "in" / f"{number}.csv"
            if not file.exists():
                part = place / "in" / f"_{number}"
                part.write_text("id,city,amount\n" + "".join(f"{i},{c},{a}\n" for i, c, a in rows))
                part.rename(file)
            engine.run(sources, sinks)


def held(place: Path) -> dict[str, Any]:
    """What the state and the targets hold."""
    found: dict[str, Any] = {}
    for name, table in (("out.db", "by_city"), ("log.db", "orders")):
        connection = sqlite3.connect(place / name)
        found[name] = sorted(connection.execute(f"select * from {table}").fetchall())
        connection.close()
    records = sorted(path.stem for path in (place / "log" / "_written").glob("*.json"))
    found["log"] = [pq.read_table(place / "log" / f"{stem}.parquet").to_pylist() for stem in records]
    found["state"] = sorted(map(str, dd.read(place / "state", "by_city").to_pylist()))
    return found


class Deadly:
    """Counts the calls of a run; the ``at``-th kills."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def __call__(self, frame: Any, event: str, given: Any) -> None:
        if event == "call":
            named = any(each in frame.f_code.co_filename for each in WATCHED)
        else:
            named = event == "c_call" and getattr(given, "__name__", "") in CALLS
        if named:
            self.calls += 1
            if self.calls == self.at + 1:
                os.kill(os.getpid(), signal.SIGKILL)


def killed(place: Path, at: int) -> bool:
    """Whether a child's life ended at its ``at``-th call."""
    child = os.fork()
    if not child:
        status = 1
        try:
            gc.disable()
            sys.setprofile(Deadly(at))
            story(place)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed: run `story` by itself to see how"
    return os.WIFSIGNALED(status)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], int]]:
    """What is held after a life that nothing ended, and how many calls it had."""
    counted = Deadly(-2)
    warm, place = tmp_path_factory.mktemp("warm"), tmp_path_factory.mktemp("whole")
    story(warm)
    sys.setprofile(counted)
    try:
        story(place)
    finally:
        sys.setprofile(None)
    yield held(place), counted.calls


def test_killed_at_every_call_and_again(tmp_path: Path, whole: tuple[dict[str, Any], int]) -> None:
    expected, calls = whole
    assert calls > 500
    draw = seeded(__name__)
    for at in sample(range(calls), 10, __name__):
        place = tmp_path / str(at)
        place.mkdir()
        lives = [at, draw.randrange(calls), draw.randrange(calls)]
        for each in lives:
            if not killed(place, each):
                break
        story(place)
        assert held(place) == expected, lives


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_run_kill import flow
import ddflow as dd
place = Path({place!r})
sinks = {{"by_city": dd.sinks.duckdb(place / "out.db", "by_city"), "log": dd.sinks.sqlite(place / "log.db", "log",
    mode="updates")}}
with flow().open(place / "state") as engine:
    engine.run({{"orders": dd.sources.files(place / "in", follow=True, settle="0s")}}, sinks, interval="10ms")
"""


@pytest.mark.soak
def test_killed_at_random_moments(tmp_path: Path) -> None:
    import duckdb

    draw, model = seeded(__name__), dict[int, tuple[str, int]]()
    (tmp_path / "in").mkdir()
    script = SCRIPT.format(tests=str(Path(__file__).parent), place=str(tmp_path))
    number = 0
    for _ in range(200):
        process = subprocess.Popen([sys.executable, "-c", script])
        ends = time.monotonic() + draw.uniform(1.0, 4.0)
        while time.monotonic() < ends:
            rows = [(draw.randrange(50), draw.choice(["Bern", "Chur", "Basel"]), draw.randrange(9)) for _ in range(20)]
            model |= {i: (c, a) for i, c, a in rows}
            part = tmp_path / "in" / f"_{number}"
            part.write_text("id,city,amount\n" + "".join(f"{i},{c},{a}\n" for i, c, a in rows))
            part.rename(tmp_path / "in" / f"{number:06}.csv")
            number += 1
            time.sleep(0.02)
        process.kill()
        process.wait()
    with flow().open(tmp_path / "state") as engine:
        sinks: dict[str, Any] = {
            "by_city": dd.sinks.duckdb(tmp_path / "out.db", "by_city"),
            "log": dd.sinks.sqlite(tmp_path / "log.db", "log", mode="updates"),
        }
        engine.run({"orders": dd.sources.files(tmp_path / "in")}, sinks)
        assert [each[:2] for each in engine.sync(sinks, dry=True).values()] == [(0, 0)] * 2
        assert {r["id"]: (r["city"], r["amount"]) for r in engine.read("orders").to_pylist()} == model
    with duckdb.connect(tmp_path / "out.db") as connection:
        assert sum(n for _, n, _ in connection.execute("from by_city").fetchall()) == len(model)


def test_a_second_writer_is_told(tmp_path: Path) -> None:
    story(tmp_path)
    sink = dd.sinks.sqlite(tmp_path / "out.db", "by_city")
    with flow().open(tmp_path / "state") as engine:
        from ddflow.engine.delivery import Delivery
        from ddflow.engine.kept_epochs import EngineEpochs

        first = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", sink)
        second = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", sink)
        assert first.pump(0.0) and second.pump(0.0)
        engine.step({"orders": {"id": [77], "city": ["Genf"], "amount": [1]}})
        engine.step({"orders": {"id": [78], "city": ["Genf"], "amount": [1]}})
        assert first.pump(0.0)
        with pytest.raises(DdflowError, match="another process writes there"):
            second.pump(0.0)
        first.close()
        second.close()
