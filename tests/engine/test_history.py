"""Test history: the net changes between two times, and readers that hold history back while they live."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from pair import Pair
from strategies import scenarios
from test_laws import calls

import ddflow as dd
from ddflow import errors
from ddflow.engine.read.history import check_readable_time, compute_net_changes
from ddflow.engine.read.reads import Reader
from ddflow.time import CLOSED, NEVER

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string())])
TIMED = SCHEMA.append(pa.field("t", pa.int64(), nullable=False))
SECRET = dd.Secret(0x0123456789ABCDEF, 0xFEDCBA9876543210)
Bag = Counter[Any]


def opened(schema: pa.Schema = SCHEMA, spec: dict[str, Any] | None = None, **options: Any) -> Any:
    """An engine with an input ``s``, its rows and their count by city as outputs."""
    flow = dd.Flow()
    input = flow.upserts("s", schema, dd.Upsert("id", delete="city is null", **spec or {}))
    flow.output("rows", input)
    flow.output("by_city", input.project(["city"]).count())
    return flow.open(**{"secret": SECRET} | options)


def rows(*given: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in given], schema=schema)


def step(engine: Any, time: int, *given: tuple[Any, ...]) -> Any:
    return engine.step({"s": rows(*given)}, time=time)


def bag(table: pa.Table) -> Bag:
    """Rows with multiplicities, or changes, as a multiset; no row may come twice."""
    assert table.column_names[-1] == "_diff" and "_time" not in table.column_names
    out: Bag = Counter()
    for row in table.to_pylist():
        diff = row.pop("_diff")
        assert diff and tuple(row.values()) not in out
        out[tuple(row.values())] = diff
    return out


def plus(*bags: Bag) -> Bag:
    out: Bag = Counter()
    for each in bags:
        for row, n in each.items():
            out[row] += n
    return Counter({row: n for row, n in out.items() if n})


def refused(act: Callable[[], Any], kind: type[errors.DdflowError], why: str) -> None:
    with pytest.raises(kind, match=why) as caught:
        act()
    assert caught.value.asked and caught.value.found and caught.value.fix


# Changes


def test_changes_are_net_half_open_and_without_times() -> None:
    with opened(retain=9) as engine:
        for time, city in enumerate(["Bern", "Basel", "Bern", "Chur", None]):
            step(engine, time, (1, city), (2, "Bern"))
        assert engine.changes("rows", 0, 3).to_pylist() == [
            {"id": 1, "city": "Bern", "_diff": -1},
            {"id": 1, "city": "Chur", "_diff": 1},
        ]
        assert bag(engine.changes("rows", 3, 4)) == {(1, "Chur"): -1}
        assert bag(engine.changes("by_city", 0, 1)) == {("Bern", 2): -1, ("Bern", 1): 1, ("Basel", 1): 1}
        assert bag(engine.changes("s", 0, 2)) == {}  # away in between
        assert bag(engine.changes("by_city", 1, 1)) == {}
        whole = engine.changes("rows", engine.since, 4)
        assert engine.since == -5
        assert whole.schema == pa.schema([*SCHEMA, pa.field("_diff", pa.int64(), nullable=False)])
        assert whole.schema == engine.changes("rows", 4, 4).schema == engine.read("rows").schema
        assert bag(whole) == bag(engine.read("rows")) == {(2, "Bern"): 1}


@effort(150)
@given(st.data())
def test_as_of_one_time_plus_the_changes_is_as_of_the_other_and_changes_add_up(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(null_key="drop"))
    pair = Pair(scenario)
    for call in data.draw(calls(scenario)):
        pair.play(call)
    times = sorted({pair.since, pair.last, *(time for time, _ in pair.twin.twin.history)})
    a, b, c = sorted(data.draw(st.tuples(*[st.sampled_from(times)] * 3)))
    for name in pair.names:
        between = pair.changes(name, a, b)
        assert between is not None
        assert plus(pair.engine.read(name, a), between) == pair.engine.read(name, b)
        assert plus(between, pair.changes(name, b, c) or Counter()) == pair.changes(name, a, c)
    pair.close()


def test_changes_are_the_updates_that_steps_gave_in_between_added_up() -> None:
    chance = random.Random(7)
    given_out: dict[int, dict[str, Bag]] = {}
    with opened(retain=40) as engine:
        for time in range(0, 60, 2):
            events = [(chance.randrange(30), chance.choice(["Bern", "Chur", "Thun", None])) for _ in range(12)]
            out = step(engine, time, *events)
            given_out[time] = {name: bag(out[name].drop_columns(["_time"])) for name in ("rows", "by_city")}
        for t1, t2 in [(20, 58), (30, 31), (30, 33), (58, 58), (25, 41)]:
            for name in ("rows", "by_city"):
                expected = plus(*(out[name] for time, out in given_out.items() if t1 < time <= t2))
                assert bag(engine.changes(name, t1, t2)) == expected


def test_times_of_other_types_are_given_as_their_number() -> None:
    schema = SCHEMA.append(pa.field("t", pa.timestamp("ms"), nullable=False))
    with opened(schema, {"time": "t"}, retain=100) as engine:
        t = pa.array([5, 70], pa.int64()).cast(pa.timestamp("ms"))
        engine.push({"s": pa.table([pa.array([1, 1]), pa.array(["Bern", "Chur"]), t], schema=schema)})
        engine.advance_to(90)
        assert bag(engine.changes("rows", 5, 70)) == {(1, "Bern"): -1, (1, "Chur"): 1}
        assert bag(engine.changes("rows", -1, 69)) == {(1, "Bern"): 1}


def test_changes_that_leave_int64_are_refused() -> None:
    flow = dd.Flow()
    input = flow.upserts("s", SCHEMA, dd.Upsert("id"))
    many = [input.filter(f"city = '{city}'").project({"one": "1"}) for city in ("plus", "minus")]
    for _ in range(62):
        many = [each.concat(each).consolidate() for each in many]
    flow.output("out", many[0].concat(many[1].negate()))
    with flow.open(retain=9) as engine:
        for time, city in enumerate(["minus", "zero", "plus"]):
            step(engine, time, (1, city))
        assert bag(engine.changes("out", 0, 1)) == bag(engine.changes("out", 1, 2)) == {(1,): 2**62}
        refused(lambda: engine.changes("out", 0, 2), errors.CountOverflow, r"the sum for {'one': 1} overflows int64")


def test_changes_of_what_is_not_there_or_cannot_be_read_are_refused_and_say_what_since_is() -> None:
    with opened(retain=2) as engine:
        for time in range(8):
            step(engine, time, (1, f"city {time}"))
        assert (engine.since, engine.frontier) == (5, 8)
        kinds = errors.NotReadable, errors.TimeWentBack, errors.SchemaMismatch
        refused(lambda: engine.changes("row", 5, 6), kinds[0], "'row': .*did you mean 'rows'")
        refused(
            lambda: engine.changes("rows", 4, 6),
            kinds[0],
            "changes of 'rows' from 4 to 6: since is 5: it can be read from 5 up to, not including, 8; "
            "read at a closed time; a larger retain=, or a reader opened earlier, keeps more",
        )
        refused(lambda: engine.changes("rows", 5, 8), kinds[0], "the frontier is 8: it can be read from 5 up to")
        refused(lambda: engine.changes("rows", 7, 6), kinds[1], "from 7 to 6: the second time is before the first")
        refused(lambda: engine.changes("rows", "5", 6), kinds[2], "that is not an int64 time")
        refused(lambda: engine.changes("rows", 5, 2.5), kinds[2], "that is not an int64 time")
        refused(lambda: engine.changes("rows", True, 6), kinds[2], "that is not an int64 time")
        assert bag(engine.changes("rows", 5, 7)) == {(1, "city 5"): -1, (1, "city 7"): 1}


def test_before_anything_is_closed_only_the_beginning_can_be_read_and_it_is_empty() -> None:
    assert check_readable_time("x", NEVER, NEVER, NEVER) == NEVER
    refused(
        lambda: check_readable_time("x", NEVER + 1, NEVER, NEVER), errors.NotReadable, "the frontier is the beginning"
    )
    with opened() as engine:
        assert engine.read("rows", NEVER).num_rows == engine.changes("rows", NEVER, NEVER).num_rows == 0
        refused(lambda: engine.read("rows", 0), errors.NotReadable, "the frontier is the beginning")
        refused(lambda: engine.changes("rows", NEVER, 0), errors.NotReadable, "the frontier is the beginning")


def test_the_circuit_gives_changes_of_inner_collections_too() -> None:
    flow = dd.Flow()
    inner = flow.upserts("s", SCHEMA, dd.Upsert("id")).project(["city"])
    flow.output("n", inner.count(by=[]))
    with flow.open(retain=5) as engine:
        for time in range(3):
            step(engine, time, (time, "Bern"))
        assert bag(compute_net_changes(engine.dataflow.graph, inner, 0, 2)) == {("Bern",): 2}
        refused(lambda: compute_net_changes(engine.dataflow.graph, inner, 2, 1), errors.TimeWentBack, "from 2 to 1")


# Readers


def test_since_is_the_least_that_readers_hold_and_follows_with_the_next_step_when_they_go_on() -> None:
    with opened() as engine:
        readers = {}
        for time in range(8):
            step(engine, time, (1, f"city {time}"))
            if time in (3, 5):
                readers[time] = engine.reader("rows")
        assert (readers[3].time, readers[5].time, engine.since) == (3, 5, 3)
        for time in range(3, 8):
            assert bag(engine.read("rows", time)) == {(1, f"city {time}"): 1}
        refused(lambda: engine.read("rows", 2), errors.NotReadable, "since is 3")
        readers[3].close()
        assert engine.since == 3  # what is there can be read until a step goes on
        step(engine, 8, (1, "city 8"))
        assert engine.since == 5
        refused(lambda: readers[5].read(4), errors.NotReadable, "since is 5")
        assert bag(readers[5].read()) == {(1, "city 5"): 1}
        assert bag(readers[5].read(6)) == {(1, "city 6"): 1}
        readers[5].advance_to(6)
        step(engine, 9, (1, "city 9"))
        assert engine.since == 6
        readers[5].advance_to()
        step(engine, 10, (1, "city 10"))
        assert (readers[5].time, engine.since) == (9, 9)
        readers[5].close()
        step(engine, 12, (1, "city 12"))
        assert engine.since == 12


def test_what_is_retained_anyway_stays_when_a_reader_is_ahead_of_it() -> None:
    with opened(retain=4) as engine:
        for time in range(10):
            step(engine, time, (1, f"city {time}"))
        reader = engine.reader("rows", at=8)
        assert (reader.time, engine.since) == (8, 5)
        for time in range(10, 20):
            step(engine, time, (1, f"city {time}"))
        assert engine.since == 8
        assert bag(reader.read()) == {(1, "city 8"): 1}


def test_a_reader_closes_with_its_block_also_when_that_raises_and_twice_is_harmless() -> None:
    with opened() as engine:
        step(engine, 1, (1, "Bern"))
        with pytest.raises(ZeroDivisionError), engine.reader("rows") as reader:
            step(engine, 2, (1, "Chur"))
            assert (engine.since, reader.closed) == (1, False)
            raise ZeroDivisionError
        reader.close()
        step(engine, 3, (1, "Chur"))
        assert (engine.since, reader.closed) == (3, True)
        assert repr(reader) == "Reader('rows', closed at 1)"
        for act in (reader.read, reader.advance_to, reader.changes_to):
            refused(act, errors.NotReadable, r"it was closed at time 1; open another reader: engine.reader\('rows'\)")


def test_a_forgotten_reader_lets_go_and_so_does_one_in_a_cycle() -> None:
    with opened() as engine:
        step(engine, 1, (1, "Bern"))
        reader = engine.reader("rows")
        circle = [engine.reader("rows")]
        circle.append(circle)  # type: ignore[arg-type]
        step(engine, 2, (1, "Chur"))
        assert engine.since == 1
        del reader
        step(engine, 3, (1, "Thun"))
        assert engine.since == 1
        del circle
        gc.collect()
        step(engine, 4, (1, "Zug"))
        assert engine.since == 4


def test_a_reader_opened_before_the_first_step_is_told_everything() -> None:
    with opened() as engine:
        reader = engine.reader("by_city")
        assert (reader.time, repr(reader)) == (NEVER, "Reader('by_city', at the beginning)")
        assert reader.read().num_rows == reader.changes_to().num_rows == 0
        step(engine, 1, (1, "Bern"), (2, "Bern"))
        step(engine, 2, (1, None))
        assert reader.read().num_rows == 0
        assert bag(reader.changes_to(1)) == {("Bern", 2): 1}
        assert bag(reader.changes_to()) == {("Bern", 2): -1, ("Bern", 1): 1}
        assert bag(reader.changes_to()) == {}


def test_a_reader_outlives_the_end_of_the_input_but_not_its_engine() -> None:
    engine = opened(TIMED, {"time": "t"})
    engine.push({"s": rows((1, "Bern", 3), (1, "Chur", 8), schema=TIMED)})
    engine.advance_to(5)
    reader = engine.reader("rows", at=4)
    engine.advance_to(CLOSED)
    assert (reader.time, engine.since) == (4, 4)
    assert bag(reader.changes_to()) == {(1, "Bern"): -1, (1, "Chur"): 1}
    assert reader.time == 8
    assert bag(reader.changes_to(CLOSED - 1)) == {}
    refused(lambda: reader.changes_to(CLOSED), errors.NotReadable, "the frontier is CLOSED")
    engine.close()
    for act in (reader.read, reader.changes_to, reader.advance_to):
        refused(act, errors.EngineClosed, "it was closed")
    reader.close()


def test_followers_at_any_pace_hold_what_the_collection_is_through_merges() -> None:
    chance = random.Random(11)
    paces = {"fast": 1, "slow": 7, "rare": 30}
    states: dict[int, dict[str, Bag]] = {}
    with opened() as engine:
        followers = {(pace, name): engine.reader(name) for pace in paces for name in ("rows", "by_city")}
        held = {key: bag(reader.read()) for key, reader in followers.items()}
        for time in range(90):
            keys = [chance.randrange(60) for _ in range(25)]
            step(engine, time, *((key, chance.choice(["Bern", "Chur", "Thun", None])) for key in keys))
            states[time] = {name: bag(engine.read(name)) for name in ("rows", "by_city")}
            engine._check_invariants()
            for (pace, name), reader in followers.items():
                if time % paces[pace] == 0:
                    held[pace, name] = plus(held[pace, name], bag(reader.changes_to()))
                    assert held[pace, name] == states[time][name]
                elif reader.time >= 0:
                    assert bag(reader.read()) == states[reader.time][name] == held[pace, name]
            least = min(reader.time for reader in followers.values())
            assert engine.since <= least == engine.dataflow.holds.find_least_time()
        assert sum(a.spine.copied for a in engine.dataflow.graph.arrangements.values()) > 0


def test_history_that_nobody_holds_any_more_is_compacted_away() -> None:
    def kept(engine: Any) -> int:
        return sum(arrangement.nbytes for arrangement in engine.dataflow.graph.arrangements.values())

    with opened() as engine, opened() as other:
        reader, sizes = None, []
        for time in range(300):
            events = [(key, f"city {time}") for key in range(200)]
            step(engine, time, *events)
            step(other, time, *events)
            if time == 10:
                reader = engine.reader("rows")
            if time == 200:
                sizes.append((kept(engine), kept(other)))
                assert reader is not None
                reader.close()
        engine._check_invariants()
        assert sizes[0][0] > 4 * sizes[0][1]
        assert kept(engine) <= 1.5 * max(kept(other), sizes[0][1])


def test_readers_share_one_arrangement_whatever_their_number() -> None:
    def state(readers: int) -> int:
        with opened() as engine:
            step(engine, 0, *((key, "Bern") for key in range(500)))
            kept = [engine.reader("rows") for _ in range(readers)]
            for time in range(1, 20):
                step(engine, time, *((key, f"city {time}") for key in range(0, 500, 7)))
            assert all(reader.time == 0 for reader in kept)
            return sum(arrangement.nbytes for arrangement in engine.dataflow.graph.arrangements.values())

    assert state(1) == state(50) > state(0)


def test_a_reader_cannot_go_back_nor_to_where_nothing_is_closed_and_stays_where_it_was() -> None:
    with opened(retain=3) as engine:
        for time in range(6):
            step(engine, time, (1, f"city {time}"))
        reader = engine.reader("rows", at=4)
        assert engine.since == 2
        for act in (reader.advance_to, reader.changes_to):
            for back in (3, 1):  # one that can be read, and one that cannot
                refused(
                    lambda act=act, back=back: act(back),
                    errors.TimeWentBack,
                    f"advance a reader to {back}: it is already at 4; a reader cannot go back",
                )
            refused(lambda act=act: act(6), errors.NotReadable, "the frontier is 6: it can be read from 2 up to")
            refused(lambda act=act: act("5"), errors.SchemaMismatch, "that is not an int64 time")
            assert (reader.time, bag(reader.read())) == (4, {(1, "city 4"): 1})
        assert bag(reader.changes_to(4)) == {}


def test_a_reader_cannot_be_opened_where_nothing_can_be_read() -> None:
    with opened() as engine:
        step(engine, 3, (1, "Bern"))
        step(engine, 5, (1, "Chur"))
        refused(lambda: engine.reader("row"), errors.NotReadable, "'row': .*did you mean 'rows'")
        refused(lambda: engine.reader("rows", at=4), errors.NotReadable, "a reader of 'rows' at 4: since is 5: it can")
        refused(lambda: engine.reader("rows", at=6), errors.NotReadable, "the frontier is 6: it can be read from 5")
        refused(lambda: engine.reader("rows", at=5.0), errors.SchemaMismatch, "that is not an int64 time")
        assert len(engine.dataflow.holds) == 0
        engine.close()
        refused(lambda: engine.reader("rows"), errors.EngineClosed, "it was closed")
        refused(lambda: engine.changes("rows", 5, 5), errors.EngineClosed, "it was closed")


def test_changes_that_fail_leave_the_reader_where_it_stood() -> None:
    failing = [False]

    def moody(batch: pa.RecordBatch) -> pa.Array:
        if failing[0]:
            raise MemoryError("no")
        return pa.array([True] * batch.num_rows, pa.bool_())

    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", SCHEMA, dd.Upsert("id")).filter(moody))
    with flow.open() as engine:
        step(engine, 1, (1, "Bern"))
        reader = engine.reader("rows")
        step(engine, 2, (1, "Chur"))
        failing[0] = True
        with pytest.raises(MemoryError):
            reader.changes_to()
        failing[0] = False
        assert (reader.time, engine.since) == (1, 1)
        assert bag(reader.changes_to()) == {(1, "Bern"): -1, (1, "Chur"): 1}


def test_a_reader_waits_for_a_step_of_another_thread_and_may_always_be_closed() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(batch: pa.RecordBatch) -> pa.Array:
        if threading.current_thread() is not threading.main_thread() and batch.num_rows:
            inside.set()
            assert go_on.wait(120)
        return pa.array([True] * batch.num_rows, pa.bool_())

    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", SCHEMA, dd.Upsert("id")).filter(slow))
    with flow.open() as engine:
        step(engine, 1, (1, "Bern"))
        reader, other = engine.reader("rows"), engine.reader("rows")
        worker = threading.Thread(target=lambda: step(engine, 2, (1, "Chur")))
        worker.start()
        read = list[object]()
        waits = threading.Thread(target=lambda: read.append(bag(engine.read("rows"))))
        try:
            assert inside.wait(120)
            waits.start()
            reader.close()
            assert not read
        finally:
            go_on.set()
            worker.join(120)
            waits.join(120)
        assert read == [{(1, "Chur"): 1}]
        assert (other.time, engine.since) == (1, 1)
        assert bag(other.changes_to()) == {(1, "Bern"): -1, (1, "Chur"): 1}


def test_a_reader_that_goes_while_a_step_is_computed_costs_no_history_that_others_hold() -> None:
    """Garbage may be collected at any moment of a step, also between resolving it and taking it in."""
    held: list[Reader] = []

    def forgetful(batch: pa.RecordBatch) -> pa.Array:
        held.clear()
        return pa.array([True] * batch.num_rows, pa.bool_())

    flow = dd.Flow()
    input = flow.upserts("s", TIMED, dd.Upsert("id", time="t"))
    flow.output("rows", input.filter(forgetful))
    with flow.open() as engine:
        engine.push({"s": rows(*((1, f"city {t}", t) for t in range(9)), schema=TIMED)})
        engine.advance_to(2)
        held.append(engine.reader("s"))
        engine.advance_to(3)
        other = engine.reader("s")
        held.append(engine.reader("s"))
        engine.advance_to(9)
        assert held == []
        engine._check_invariants()
        assert engine.since == 2
        for before, after in pairwise(range(2, 9)):
            assert bag(other.changes_to(after)) == {(1, f"city {before}"): -1, (1, f"city {after}"): 1}


def test_changes_without_an_end_go_up_to_the_last_closed_time() -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", {"id": int}, dd.Upsert(key="id")))
    with flow.open(retain=9) as engine:
        for day in (1, 2, 3):
            engine.step({"id": [day]}, time=day)
        assert (
            engine.changes("rows", 1).equals(engine.changes("rows", 1, 3)) and engine.changes("rows", 3).num_rows == 0
        )
