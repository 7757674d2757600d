"""Test readers of every kind on their own threads beside one writer: each sees the twin at a closed step."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import every_operator
import pyarrow as pa
import pytest
from chance import mid_test
from messages import raises

import ddflow as dd
from ddflow.dataflow.spill import spill_to_fit_budget
from ddflow.errors import ConcurrentUse, EngineClosed, NotReadable, SpecError

CITIES = ["Bern", "Chur", "Zug", "Brig"]
SCHEMA = {"id": int, "city": str, "n": int, "gone": bool}


def plan() -> dd.Flow:
    flow = dd.Flow()
    people = flow.upserts("people", SCHEMA, dd.Upsert(key="id", delete=dd.tombstone("gone")))
    flow.output("people", people)
    flow.output("by_city", people.count("city"))
    flow.output("sums", people.group_by("city").agg(total="sum(n)", last="max(n)"))
    flow.output("first", people.top(2, by=["n desc"], partition_by="city", rank_name="place"))
    flow.output("some", people.filter("n >= 50").project({"id": "id", "town": "city"}))
    flow.output("pairs", people.join(people.count("city"), on="city"))
    flow.output("keyed", people.to_upserts("id"))
    return flow


class Twin:
    """What the input holds after each step."""

    def __init__(self, seed: int, keys: int = 300) -> None:
        self.random, self.keys, self.at = random.Random(seed), keys, [dict[int, tuple[str, int]]()]

    def events(self, size: int) -> pa.Table:
        held, rows = dict(self.at[-1]), list[tuple[int, str, int, bool]]()
        for id in self.random.sample(range(self.keys), size):
            row = id, self.random.choice(CITIES), self.random.randrange(100), self.random.random() < 0.2
            rows.append(row)
            if row[3]:
                held.pop(id, None)
            else:
                held[id] = row[1:3]
        self.at.append(held)
        names = ["id", "city", "n", "gone"]
        return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))

    def rows(self, step: int) -> set[tuple[int, str, int]]:
        return {(id, *row) for id, row in self.at[step].items()}

    def counts(self, step: int) -> dict[str, int]:
        cities = [city for city, _ in self.at[step].values()]
        return {city: cities.count(city) for city in set(cities)}


@contextmanager
def threads(*work: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Have each work on a thread of its own; yield what they raised so far; the first of it is raised at the end."""
    failed = list[BaseException]()

    def watched(each: Callable[[], object]) -> None:
        try:
            each()
        except BaseException as error:
            failed.append(error)

    every = [threading.Thread(target=watched, args=(each,)) for each in work]
    for each in every:
        each.start()
    try:
        yield failed
    finally:
        for each in every:
            each.join(120)
            assert not each.is_alive()
    if failed:
        raise failed[0]


def asking(engine: Any, twin: Twin, over: threading.Event) -> dict[str, Callable[[], None]]:
    """By verb, what a thread does until the writer has ended: each answer is of one step, and steps only go on."""
    step = threading.local()

    def seen(matches: Callable[[int], bool], before: int, what: Any) -> None:
        # The writer's own step may be closed a moment before the twin's list is longer than what was asked.
        last = len(twin.at)
        found = next((at for at in range(getattr(step, "at", 0), last) if matches(at)), None)
        assert found is not None, (what, getattr(step, "at", 0), last, before)
        step.at = found

    def until_over(ask: Callable[[], None]) -> Callable[[], None]:
        def work() -> None:
            while not over.is_set():
                ask()
            ask()

        return work

    def read() -> None:
        table = engine.read("people")
        rows = {(row["id"], row["city"], row["n"]) for row in table.to_pylist()}
        assert len(rows) == table.num_rows
        seen(lambda at: twin.rows(at) == rows, 0, "read")

    def counts() -> None:
        found = {row["city"]: row["count"] for row in engine.read("by_city").to_pylist()}
        seen(lambda at: twin.counts(at) == found, 0, "counts")

    def pairs() -> None:
        found = {row["id"]: row["count"] for row in engine.read("pairs").to_pylist()}
        seen(lambda at: {id: twin.counts(at)[city] for id, (city, _) in twin.at[at].items()} == found, 0, "pairs")

    def get() -> None:
        city = random.choice(CITIES)
        found = engine.get("by_city", city=city)
        count = 0 if found is None else found["count"]
        seen(lambda at: twin.counts(at).get(city, 0) == count, 0, "get")

    def get_key() -> None:
        id = random.randrange(twin.keys)
        found = engine.get("people", id=id)
        want = None if found is None else (found["city"], found["n"])
        seen(lambda at: twin.at[at].get(id) == want, 0, "get key")

    def changes() -> None:
        with engine.reader("people") as reader:
            began, rows = reader.time, {(r["id"], r["city"], r["n"]) for r in reader.read().to_pylist()}
            assert began < 0 or rows == twin.rows(max(began, 0))
            net = reader.changes_to()
            for row in net.to_pylist():
                mine = row["id"], row["city"], row["n"]
                (rows.discard if row["_diff"] < 0 else rows.add)(mine)
            assert rows == twin.rows(max(reader.time, 0))

    def why() -> None:
        city = random.choice(CITIES)
        told = engine.why("by_city", {"city": city})
        found = {(row["id"], row["city"], row["n"]) for row in told.rows["people"].to_pylist()}
        seen(lambda at: {row for row in twin.rows(at) if row[1] == city} == found, 0, "why")

    def looks() -> None:
        stats = engine.stats()
        assert stats["pinned"] >= 0
        assert "by_city" in str(engine.explain())
        assert engine.output_schema("by_city").names[0] == "city"
        engine.scd2("by_city")

    every = {"read": read, "counts": counts, "pairs": pairs, "get": get, "get_key": get_key}
    every |= {"changes": changes, "why": why, "looks": looks}
    return {name: until_over(each) for name, each in every.items()}


@mid_test
@pytest.mark.drawn(2)
@pytest.mark.parametrize("how", ["memory", "spilled", "durable", "durable_spilled", "threads"])
def test_readers_of_every_verb_see_closed_steps_beside_a_writer(how: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"retain": 3}
    if "spilled" in how:
        options |= {"memory": "16MB"} if how == "durable_spilled" else {"memory": "16MB", "spill": tmp_path}
    if how == "threads":
        options["threads"] = 2
    twin, over = Twin(7), threading.Event()
    with plan().open(*([tmp_path / "state"] if "durable" in how else []), **options) as engine:
        asks = asking(engine, twin, over)
        with threads(*asks.values()):
            try:
                for time in range(1, 61):
                    engine.step({"people": twin.events(40)}, time)
                    if time % 20 == 0:
                        engine.compact()
                    if "spilled" in how and time % 10 == 5:
                        spill(engine)
            finally:
                over.set()
        engine._check_invariants()
        assert engine.stats()["pinned"] == 0


@pytest.mark.drawn(2)
@pytest.mark.parametrize("how", ["memory", "spilled", "durable", "durable_spilled", "reopened"])
def test_a_look_up_gives_the_row_that_a_read_gives_now_and_at_older_times(how: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"memory": "16MB"} if "spilled" in how else {}
    options |= {"spill": tmp_path} if how == "spilled" else {}
    place = [] if how in ("memory", "spilled") else [tmp_path / "state"]
    twin = Twin(3, keys=40)
    with plan().open(*place, retain=2, **options) as engine:
        for time in range(1, 13):
            engine.step({"people": twin.events(12)}, time)
            if "spilled" in how and time % 5 == 0:
                spill(engine)
        if how != "reopened":
            check_look_ups(engine)
    if place:
        with plan().open(*place, **options) as engine:
            check_look_ups(engine)
        with dd.Snapshot.open(place[0]) as snapshot:
            check_look_ups(snapshot)


def spill(engine: Any) -> None:
    """Have all state leave memory."""
    with engine.dataflow.guard.lock_for_write("spill"):
        spill_to_fit_budget(engine.dataflow.budget, engine.dataflow.graph, {}, share=0)


KEYS = {"people": ["id"], "by_city": ["city"], "sums": ["city"], "some": ["id"], "keyed": ["id"], "pairs": ["id"]}


def check_look_ups(engine: Any) -> None:
    """Compare `get` with what `read` gives, of each key of each output, and of keys that are not there."""
    for name, key in [*KEYS.items(), ("first", ["city", "place"]), ("first", ["id"])]:
        for as_of in (None, engine.last - 1) if engine.since < engine.last else (None,):
            rows = engine.read(name, as_of).drop_columns(["_diff"]).to_pylist()
            assert rows or name == "first", name
            for row in rows:
                asked = {column: row[column] for column in key}
                assert (engine.get_as_of(name, asked, as_of), name) == (row, name)
                if as_of is None:
                    assert engine.get(name, **asked) == row
            assert engine.get_as_of(name, dict.fromkeys(key), as_of) is None
    assert engine.get("people", id=10**9) is None and engine.get("by_city", city="Genf") is None


def test_a_look_up_takes_exactly_the_columns_of_a_key() -> None:
    flow = plan()
    flow.output("all", flow.inputs["people"].count([]))
    flow.output("cities", flow.inputs["people"].project(["city"]))
    with flow.open() as engine:
        assert engine.get("all") is None
        engine.step({"people": {"id": [1, 2], "city": ["Bern", "Zug"], "n": [1, 2], "gone": [False, False]}}, 1)
        assert engine.get("all") == {"count": 2}
        with raises(SpecError):
            engine.get("by_city", count=1)
        with raises(SpecError):
            engine.get("people", id=1, city="Bern")
        with raises(SpecError):
            engine.get("cities", city="Bern")
        with raises(NotReadable):
            engine.get("people", id="Bern")
        with raises(NotReadable):
            engine.get("peple", id=1)
        with engine.reader("by_city") as reader:
            engine.step({"people": {"id": [3], "city": ["Zug"], "n": [1], "gone": [False]}}, 2)
            assert reader.get(city="Zug") == {"city": "Zug", "count": 1} and reader.time == 1
            assert engine.get("by_city", city="Zug") == {"city": "Zug", "count": 2}


def one(id: int, city: str = "Bern") -> dict[str, Any]:
    return {"people": {"id": [id], "city": [city], "n": [id], "gone": [False]}}


def add_up(rows: dict[int, tuple[str, int]], step: dd.Step, name: str = "people") -> None:
    """Bring rows up to a step; a step that came twice, or not at all, does not fit."""
    for row in step[name].to_pylist():
        held = row["city"], row["n"]
        if row["_diff"] < 0:
            assert rows.pop(row["id"]) == held
        else:
            assert row["id"] not in rows
            rows[row["id"]] = held


@pytest.mark.parametrize("small", [False, True])
def test_readers_follow_every_step_once_beside_the_writer_whether_fast_or_slow(
    small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:  # so that slow ones are behind what waits for them, and take history
        monkeypatch.setattr("ddflow.dataflow.holds.MOST", 3_000)
    twin, steps = Twin(11), 80
    with plan().open() as engine:
        engine.step({"people": twin.events(50)}, 1)
        readers = [engine.reader("people") for _ in range(3)]
        began = [dict(twin.at[1]) for _ in readers]
        times = [list[int]() for _ in readers]

        def follow(number: int) -> None:
            for count, step in enumerate(readers[number].changes()):
                add_up(began[number], step)
                times[number].append(readers[number].time)
                if number == 1 and count % 20 == 5:
                    readers[2].read()  # slow

        async def follow_async() -> None:
            async for step in readers[2].changes():
                add_up(began[2], step)
                times[2].append(readers[2].time)

        with threads(lambda: follow(0), lambda: follow(1), lambda: asyncio.run(follow_async())) as failed:
            try:
                for time in range(2, steps + 1):
                    engine.step({"people": twin.events(20)}, time)
                while not failed and any(reader.time < steps for reader in readers):
                    assert all(reader.time <= steps for reader in readers)
                    engine.stats()
            finally:
                for reader in readers:
                    reader.close()
                engine.close()
        for held, when in zip(began, times, strict=True):
            assert held == twin.at[-1]
            assert when == sorted(set(when)) and (small or when == list(range(2, steps + 1)))


def test_a_reader_that_another_thread_moves_is_read_where_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with plan().open() as engine, engine.reader("people") as reader:
        read_at_rest = engine.dataflow.open_read_copy

        def move_first(what: str) -> Any:
            monkeypatch.setattr(engine.dataflow, "open_read_copy", read_at_rest)
            reader.advance_to()
            engine.step(one(2), 2)
            return read_at_rest(what)

        engine.step(one(1), 1)
        monkeypatch.setattr(engine.dataflow, "open_read_copy", move_first)
        assert reader.read()["id"].to_pylist() == [1]
        reader.close()
        with raises(NotReadable):
            reader.read()
    with plan().open() as engine, engine.reader("people") as reader:
        look = engine.dataflow.guard.lock_for_read

        def move_before(what: str) -> Any:
            monkeypatch.setattr(engine.dataflow.guard, "lock_for_read", look)
            reader.advance_to()
            engine.step(one(1, "Chur"), 2)
            return look(what)

        engine.step(one(1), 1)
        monkeypatch.setattr(engine.dataflow.guard, "lock_for_read", move_before)
        assert reader.get(id=1) == {"id": 1, "city": "Bern", "n": 1}


def test_a_reader_follows_from_the_time_that_it_is_at_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state", retain=5) as engine:
        for time in (1, 2, 3):
            engine.step(one(time), time)
        with engine.reader("people", at=1) as reader:
            engine.step(one(4), 4)
            engine.step(one(1, "Chur"), 5)
            found = [(reader.time, step["people"].num_rows) for step in reader.changes(timeout=0)]
            assert found == [(3, 2), (4, 1), (5, 2)]  # what was before it came from history, as one
            assert list(reader.changes(timeout=0)) == []
            engine.step(one(6), 6)
            step = next(reader.changes())
            assert (
                step["people"].to_pylist() == [{"id": 6, "city": "Bern", "n": 6, "_time": 6, "_diff": 1}]
                and step.verdicts.applied == 1
            )
            assert step.committed(timeout=0) == 6
            assert engine.stats()["pinned"] == 0
        with raises(NotReadable):
            reader.changes()
    with plan().open(tmp_path / "state") as engine, engine.reader("people") as reader:
        assert list(reader.changes(timeout=0)) == []
        engine.step(one(7), 7)
        assert [step["people"]["id"].to_pylist() for step in reader.changes(timeout=0)] == [[7]]


def test_what_new_outputs_held_already_is_no_step_of_a_reader_that_has_seen_it(tmp_path: Path) -> None:
    flow = dd.Flow()
    people = flow.upserts("people", SCHEMA, dd.Upsert(key="id", delete=dd.tombstone("gone")))
    flow.output("people", people)
    with flow.open(tmp_path / "state") as engine:
        engine.step(one(1), 1)
    flow.output("more", people)
    with flow.open(tmp_path / "state") as engine, engine.reader("more") as reader, engine.reader("people") as input:
        assert engine.read("more").num_rows == 1
        assert engine.step(one(2), 2)["more"].num_rows == 2
        engine.step(one(3), 3)
        assert [(step["more"]["id"].to_pylist()) for step in reader.changes(timeout=0)] == [[2], [3]]
        assert sorted(id for step in input.changes(timeout=0) for id in step["people"]["id"].to_pylist()) == [2, 3]


def test_who_waits_for_steps_is_told_when_the_engine_ends(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state") as engine:
        reader, waits = engine.reader("people"), threading.Event()

        def follow() -> None:
            waits.set()
            assert list(reader.changes()) == []

        with threads(follow):
            assert waits.wait(120)
            engine.close()
    with plan().open() as engine:
        reader = engine.reader("people")
        monkey = engine.dataflow.graph.apply_computed_step

        def broken(*_: Any) -> None:
            raise KeyboardInterrupt

        engine.dataflow.graph.apply_computed_step = broken
        with pytest.raises(KeyboardInterrupt):
            engine.step(one(1), 1)
        engine.dataflow.graph.apply_computed_step = monkey
        with raises(EngineClosed):
            next(reader.changes())


def test_a_cancelled_wait_for_a_step_loses_none() -> None:
    async def follow(engine: Any) -> list[int]:
        with engine.reader("people") as reader:
            found = list[int]()
            for time in range(1, 6):
                waits = asyncio.ensure_future(anext(reader.changes()))
                await asyncio.sleep(0)
                if time % 2:
                    waits.cancel()
                engine.step(one(time), time)
                try:
                    found += (await waits)["people"]["id"].to_pylist()
                except asyncio.CancelledError:
                    found += (await anext(reader.changes()))["people"]["id"].to_pylist()
            return found

    with plan().open() as engine:
        assert asyncio.run(follow(engine)) == [1, 2, 3, 4, 5]


def test_within_a_callback_of_a_call_one_may_read_and_not_open_a_reader() -> None:
    found = list[Any]()

    def positive(batch: pa.RecordBatch) -> pa.Array:
        if batch.num_rows and len(found) < 2:
            found.append(engine.read("people").num_rows)
            with raises(ConcurrentUse):
                engine.reader("people")
            with raises(ConcurrentUse):
                engine.step(one(9), 9)
        return pa.array([True] * batch.num_rows, pa.bool_())

    flow = dd.Flow()
    people = flow.upserts("people", SCHEMA, dd.Upsert(key="id", delete=dd.tombstone("gone")))
    flow.output("people", people)
    flow.output("some", people.filter(positive))
    with flow.open() as engine:
        engine.step(one(1), 1)
        engine.step(one(2), 2)
    assert found[:2] == [0, 1]


def test_readers_keep_what_they_hold_and_statistics_say_how_much() -> None:
    with plan().open() as engine:
        engine.step({"people": Twin(1, 9000).events(8000)}, 1)
        before = engine.read("people")
        with engine.dataflow.open_read_copy("read") as still:
            for time in range(2, 12):
                engine.step({"people": Twin(time, 9000).events(8000)}, time)
            engine.compact()
            assert engine.stats()["pinned"] > 100_000
            assert "pinned by readers" in str(engine.stats())
            node = engine.flow.outputs["people"]
            assert still.graph.read_collection(node, None).equals(before)
        assert engine.stats()["pinned"] == 0


def test_a_look_up_gives_what_a_read_gives_of_every_operator(tmp_path: Path) -> None:
    rng, flow = random.Random(5), every_operator.plan(every_operator.NARROW)
    looked_up = set[str]()
    with flow.open(tmp_path / "state", retain=3) as engine:
        for time in range(1, 6):
            n = len(ids := rng.sample(range(30), 12))
            columns = {
                "id": ids,
                "city": rng.choices(["Bern", "Zug", None, "Chur"], k=n),
                "n": pa.array(rng.choices([1, 2, 3, None], k=n), pa.int32()),
                "tags": [[each] for each in rng.choices("ab", k=n)],
                "day": pa.array(rng.choices([1, 2, None], k=n), pa.int32()).cast(pa.date32()),
            }
            engine.step({"a": pa.table(columns)}, time)
        snapshot = dd.Snapshot.open(tmp_path / "state")
        for name, node in {**flow.outputs, **flow.inputs}.items():
            for key in node.unique_by():
                for which, as_of in [(engine, None), (engine, 3), (snapshot, None), (snapshot, 3)]:
                    rows = which.read(name, as_of).drop_columns(["_diff"]).to_pylist()
                    for row in rows:
                        found = which.get_as_of(name, {column: row[column] for column in key}, as_of)
                        assert (name, key, as_of, found) == (name, key, as_of, row)
                if engine.dataflow.graph.lookups[name, *key].is_possible:
                    looked_up.add(name)
        snapshot.close()
    assert {"rows", "filter", "count", "agg", "ordered_agg", "versions", "to_upserts", "filtered", "a"} <= looked_up


def test_readers_follow_a_hold_back_flow_whose_calls_close_several_times_or_none() -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "at": int, "city": str}, dd.Upsert(key="id", time="at"))
    flow.output("rows", rows)
    with flow.open() as engine, engine.reader("rows") as reader:
        engine.push({"rows": {"id": [1, 2, 1], "at": [1, 2, 5], "city": ["Bern", "Zug", "Chur"]}})
        assert list(reader.changes(timeout=0)) == []
        engine.advance_to(3)
        engine.push({"rows": {"id": [3], "at": [9], "city": ["Bern"]}})
        assert engine.why("rows", 3).table["what"].to_pylist() == ["pending"]
        engine.advance_to(3)
        engine.advance_to(10)
        steps = list(reader.changes(timeout=0))
        assert [step["rows"]["_time"].to_pylist() for step in steps] == [[1, 2], [5, 5, 9]]
        assert reader.time == 9 and engine.get("rows", id=1) == {"id": 1, "city": "Chur"}
