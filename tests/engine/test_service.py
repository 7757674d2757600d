"""Test a run in a service: on its own thread, stopped from other threads, beside readers, and under asyncio."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chance import long_test
from messages import raises
from programs import PIPE, Program

import ddflow as dd
from ddflow.errors import ConcurrentUse, EngineClosed


def plan() -> dd.Flow:
    flow = dd.Flow()
    people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
    flow.output("people", people)
    flow.output("by_city", people.count("city"))
    return flow


def put(folder: Path, number: int, *rows: tuple[int, str]) -> None:
    """A whole file appears at once."""
    text = "id,city\n" + "".join(f"{id},{city}\n" for id, city in rows)
    (folder / f".{number}").write_text(text)
    (folder / f".{number}").rename(folder / f"{number}.csv")


def source(folder: Path) -> dict[str, Any]:
    return {"people": dd.sources.files(f"{folder}/*.csv", follow=True)}


def until(holds: Any) -> None:
    """Wait for what another thread does."""
    ends = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


@contextmanager
def working(engine: Any, folder: Path, **options: Any) -> Iterator[list[Any]]:
    """A run on a thread of its own; what it returned or raised, once it has ended."""
    ended = list[Any]()

    def run() -> None:
        try:
            ended.append(engine.run(source(folder), interval="10ms", **options))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ended
    finally:
        engine.stop()
        thread.join(120)
        assert not thread.is_alive()


@long_test
@pytest.mark.parametrize("durable", [False, True])
def test_others_read_beside_a_run_and_end_it(durable: bool, tmp_path: Path) -> None:
    place = [tmp_path / "state"] if durable else []
    landing = tmp_path / "in"
    landing.mkdir()
    with plan().open(*place) as engine:
        with working(engine, landing) as ended, engine.reader("people") as reader:
            steps = reader.changes()
            for number in range(1, 6):
                put(landing, number, (number, "Bern"))
                assert next(steps)["people"]["id"].to_pylist() == [number]
                assert engine.get("by_city", city="Bern")["count"] == number == engine.read("people").num_rows
                assert engine.stats()["keys"] and engine.explain() and engine.why("people", number)
                assert engine.changes("people", engine.last).num_rows == 0
            with raises(ConcurrentUse):
                engine.step({"people": {"id": [9], "city": ["Zug"]}})
            with raises(ConcurrentUse):
                engine.run(source(landing))
            assert not ended
            engine.stop()
            until(lambda: ended)
        (done,) = ended
        assert (done.stopped, done.rows, done.epochs) == ("stop", 5, 5)
        put(landing, 6, (6, "Zug"))
        done = engine.run(source(landing))  # the other stop, behind the block, came without a run
        assert (done.stopped, done.rows) == ("stop", 0)
        done = engine.run({"people": dd.sources.files(f"{landing}/*.csv")})
        assert (done.stopped, done.rows) == ("end", 1 if durable else 6)
    if durable:
        with plan().open(*place) as engine:
            assert engine.read("people").num_rows == 6


def test_a_stop_before_a_run_ends_it_at_once_and_no_later_one(tmp_path: Path) -> None:
    put(tmp_path, 1, (1, "Bern"))
    with plan().open() as engine:
        engine.stop()
        engine.stop()
        assert engine.run(source(tmp_path)).stopped == "stop"
        assert engine.run({"people": dd.sources.files(f"{tmp_path}/*.csv")}).stopped == "end"


def test_closing_ends_a_run_behind_its_epoch_and_waits_for_it(tmp_path: Path) -> None:
    landing, inside, go_on = tmp_path / "in", threading.Event(), threading.Event()
    landing.mkdir()
    put(landing, 1, (1, "Bern"))

    def slow(step: dd.Step) -> None:
        inside.set()
        assert go_on.wait(120)

    engine = plan().open(tmp_path / "state")
    with working(engine, landing, on_epoch=slow) as ended:
        assert inside.wait(120)
        closes = threading.Thread(target=engine.close)
        closes.start()
        until(lambda: engine.calls.stopping)
        assert closes.is_alive() and not ended
        go_on.set()
        closes.join(120)
        assert not closes.is_alive() and ended[0].stopped == "stop" and ended[0].epochs == 1
    with pytest.raises(EngineClosed):
        engine.read("people")
    with plan().open(tmp_path / "state") as engine:
        assert engine.read("people").num_rows == 1


def test_each_epoch_is_told_behind_its_commit_as_one_step(tmp_path: Path) -> None:
    landing = tmp_path / "in"
    landing.mkdir()
    for number in range(3):
        put(landing, number, (number, "Bern"), (number + 10, "Zug"))
    told = list[tuple[int, dd.Step]]()
    with plan().open(tmp_path / "state", retain=9) as engine:
        before = engine.epoch

        def on_epoch(step: dd.Step) -> None:
            told.append((engine.epoch, step))
            assert step.committed(timeout=0) == engine.epoch == before + len(told)
            assert engine.read("people").num_rows and threading.current_thread() is threading.main_thread()

        done = engine.run({"people": dd.sources.files(f"{landing}/*.csv")}, rows=1, on_epoch=on_epoch)
        assert len(told) == done.epochs
        assert sum(table.num_rows for _, step in told for table in step.values()) == done.updates
        assert sum(step.verdicts.resolved for _, step in told) == 6

        def fails(step: dd.Step) -> None:
            raise ValueError("it is full")

        put(landing, 7, (7, "Chur"))
        with pytest.raises(ValueError, match="it is full"):
            engine.run({"people": dd.sources.files(f"{landing}/*.csv")}, on_epoch=fails)
        assert engine.get("people", id=7) == {"id": 7, "city": "Chur"}
        with raises(ConcurrentUse):
            put(landing, 8, (8, "Chur"))
            engine.run({"people": dd.sources.files(f"{landing}/*.csv")}, on_epoch=lambda step: engine.close())

        def writes(step: dd.Step) -> None:
            if engine.get("people", id=100) is None:
                engine.step({"people": {"id": [100], "city": ["Zug"]}})

        put(landing, 9, (9, "Chur"))
        engine.run({"people": dd.sources.files(f"{landing}/*.csv")}, on_epoch=writes)
    with plan().open(tmp_path / "state") as engine:
        assert all(engine.get("people", id=id) for id in (7, 8, 9, 100))


@pytest.mark.parametrize("how", ["cancel", "stop"])
def test_a_run_under_asyncio_ends_when_its_task_is_cancelled(how: str, tmp_path: Path) -> None:
    landing = tmp_path / "in"
    landing.mkdir()

    async def serve() -> int:
        with plan().open(tmp_path / "state") as engine:
            run = asyncio.ensure_future(asyncio.to_thread(engine.run, source(landing), interval="10ms"))
            with engine.reader("people") as reader:
                put(landing, 1, (1, "Bern"))
                async for step in reader.changes():
                    assert step["people"]["id"].to_pylist() == [1]
                    break
            if how == "stop":
                engine.stop()
                assert (await run).stopped == "stop"
                return engine.epoch
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        return engine.epoch  # closing has ended the run

    assert asyncio.run(serve()) == 1
    with plan().open(tmp_path / "state") as engine:
        assert engine.read("people").num_rows == 1


SERVICE = """
import signal, sys, threading
import ddflow as dd
from pathlib import Path

flow = dd.Flow()
flow.output("people", flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id")))
with flow.open(sys.argv[1] + "/state") as engine:
    if sys.argv[2] == "term":
        signal.signal(signal.SIGTERM, lambda *_: engine.stop())
    run = threading.Thread(
        target=engine.run,
        args=({"people": dd.sources.files(sys.argv[1] + "/in/*.csv", follow=True)},),
        kwargs={"interval": "10ms", "on_epoch": lambda step: print("epoch", engine.epoch, flush=True)},
    )
    run.start()
    run.join()
print("closed at", engine.epoch)
"""


@pytest.mark.parametrize("how", ["term", "interrupt"])
def test_a_signal_ends_a_run_that_works_off_the_main_thread(how: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    put(tmp_path / "in", 1, (1, "Bern"))
    process = Program(SERVICE, tmp_path, how, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "epoch 1\n"
    process.send_signal(signal.SIGTERM if how == "term" else signal.SIGINT)
    out, err = process.communicate()
    if how == "term":
        assert (process.returncode, out, err) == (0, "closed at 1\n", "")
    else:
        assert process.returncode in (1, -signal.SIGINT) and "KeyboardInterrupt" in err
    with plan().open(tmp_path / "state") as engine:
        assert engine.read("people").num_rows == 1
