"""Test slowly changing dimensions: versions of a key equal the twin's history and agree with a hand-written join."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from doors import FOREVER, EngineDoor, plain
from durable_case import CASES, TIGHT, opened, perform
from hypothesis import given, strategies as st
from messages import raises
from model import CLOSED, Collection
from pair import Pair
from strategies import scenarios
from test_laws import calls

import ddflow as dd
from ddflow import errors
from ddflow.columns.rows import Rows
from ddflow.engine.read.history import iterate_version_spans as versions_of
from ddflow.storage.memory import MemoryStore
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, Batch

PEOPLE = {"id": pa.int64(), "city": pa.string(), "at": pa.int64()}
TIMES = ["valid_from", "valid_to", "current"]


def rows(*given: tuple[Any, ...]) -> dict[str, pa.Table]:
    ids, cities, orders = zip(*given, strict=True)
    return {"people": pa.table({"id": list(ids), "city": pa.array(cities, pa.string()), "at": list(orders)})}


def people(**options: Any) -> dd.Flow:
    flow = dd.Flow()
    input = flow.upserts("people", PEOPLE, dd.Upsert("id", order_by="at", delete="city is null", **options))
    flow.output("rows", input)
    flow.output("by_city", input.count(["city"]))
    flow.output("cities", input.project(["city"]))
    return flow


def versions(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns and the times, in their order."""
    picked = table.select([*columns, *TIMES]).to_pylist()
    return sorted((tuple(row.values()) for row in picked), key=repr)


def as_of(table: pa.Table, time: int) -> Collection:
    """The rows that were valid at a time, joined by hand; ``table``: plain times last."""
    found: Collection = Counter()
    for *row, first, to, current in plain(table):
        assert current == (to is None) and (first is None or to is None or first < to)
        if (first is None or first <= time) and (to is None or time < to):
            found[tuple(row)] += 1
    return found


def keyed(scenario: Mapping[str, Any], door: EngineDoor) -> dict[str, list[str]]:
    """The names that have versions, with the columns of their key."""
    found = {name: list(given["spec"]["key"]) for name, given in scenario["inputs"].items()}
    for name, expression in scenario["outputs"].items():
        if expression[0] == "count":
            found[name] = door.columns_of(name)[:-1]
        elif expression[0] == "input":
            found[name] = found[expression[1]]
    return found


def agrees(pair: Pair) -> None:
    """The engine's versions are the twin's, and joined by hand they are what it read at every time in history."""
    since, history = pair.since, [time for time, _ in pair.twin.twin.history]
    times = [time for time in {since, pair.last, *history, *(t + 1 for t in history)} if since <= time <= pair.last]
    for name, key in keyed(pair.scenario, pair.engine).items():
        table = pair.engine.engine.scd2(name)
        assert table.schema.types[-3:] == [pair.engine.time_type] * 2 + [pa.bool_()]
        assert table.column_names == [*pair.engine.columns_of(name), *TIMES]
        expected = pair.twin.twin.scd2(name, key, since)
        assert Counter(plain(table)) == expected, f"{name} since {since}\n{pair.trace()}"
        for time in times:
            assert as_of(table, time) == pair.engine.read(name, time), f"{name} at {time}\n{pair.trace()}"


@effort(80)
@given(st.data())
def test_versions_are_those_of_the_twin_and_a_join_by_hand_is_a_read(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(null_key="drop"))
    pair = Pair(scenario, retain=data.draw(st.sampled_from([0, 1, 2, FOREVER])))
    for call in data.draw(calls(scenario)):
        pair.play(call)
        agrees(pair)


@effort(30)
@given(st.data())
def test_versions_in_files_and_half_merged_are_the_same(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(null_key="drop"))
    pair = Pair(scenario, retain=data.draw(st.sampled_from([0, 2, FOREVER])), medium={"share": 0, "rows": 2**40})
    for call in data.draw(calls(scenario)):
        pair.play(call)
        pair.spill(data.draw(st.sampled_from([0, 500, 1000])))
        pair.merge(data.draw(st.sampled_from([0, 1, None])))
        for arranged in pair.engine.engine.dataflow.graph.arrangements.values():
            arranged.piece = data.draw(st.sampled_from([1, 3, 1 << 19]))
        agrees(pair)
    pair.engine.close()


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("medium", [None, TIGHT])
def test_versions_are_there_after_reopening_and_in_a_snapshot(name: str, medium: Any) -> None:
    case, store = CASES[name], MemoryStore()
    pair = Pair(case.scenario, retain=6)
    for call in case.calls:
        with opened_engine(case.scenario, store.reopen(), medium) as door:
            perform(door, call)
            pair.play(call)
            assert door.engine.since == pair.since
            told = {name: door.engine.scd2(name) for name in ("a", "all", "by_s")}
        with dd.Snapshot.open(store) as snapshot:
            for each, table in told.items():
                key = ["k"] if each in ("a", "all") else ["s"]
                expected = pair.twin.twin.scd2(each, key, pair.since)
                assert Counter(plain(table)) == expected == Counter(plain(snapshot.scd2(each)))


class opened_engine:
    """An engine of a story with some history, closed at the end."""

    def __init__(self, scenario: Any, state: Any, medium: Any) -> None:
        self.door = opened(scenario, state, medium, retain=6)

    def __enter__(self) -> EngineDoor:
        return self.door

    def __exit__(self, *_: Any) -> None:
        self.door.close()


def test_a_key_that_left_and_came_back_has_a_gap() -> None:
    with people().open(retain=99) as engine:
        for time, (city, at) in enumerate([("Bern", 1), (None, 2), ("Bern", 3), ("Chur", 4), (None, 5), (None, 6)]):
            engine.step(rows((1, city, at), (2, "Bern", 1)), time)
        assert versions(engine.scd2("rows"), "id", "city") == [
            (1, "Bern", 0, 1, False),
            (1, "Bern", 2, 3, False),
            (1, "Chur", 3, 4, False),
            (2, "Bern", 0, None, True),
        ]
        assert versions(engine.scd2("by_city"), "city", "count") == [
            ("Bern", 1, 1, 2, False),
            ("Bern", 1, 3, None, True),
            ("Bern", 2, 0, 1, False),
            ("Bern", 2, 2, 3, False),
            ("Chur", 1, 3, 4, False),
        ]


def test_an_event_that_changed_nothing_makes_no_version_though_its_order_is_kept() -> None:
    with people(track=["city"]).open(retain=99) as engine:
        for time, (city, at) in enumerate([("Bern", 1), ("Bern", 5), ("Chur", 3), ("Bern", 6), ("Chur", 7)]):
            engine.step(rows((1, city, at)), time)
        written = engine.dataflow.graph.arrangements["people"].written
        assert written == 4  # one was stale
        assert versions(engine.scd2("people"), "city", "at") == [("Bern", 1, 0, 4, False), ("Chur", 7, 4, None, True)]


LATE: dict[str, tuple[list[Any], dict[str, int]]] = {
    "error": ([], {}),
    "drop": ([], {"late": 2}),
    "advance": ([(2, "Genf", 31, None, True)], {"stale": 1, "applied": 1}),
}
"""What becomes of two events that come after their time was closed: versions, and verdicts."""


@pytest.mark.parametrize("late", LATE)
def test_a_version_that_comes_after_its_time_was_closed_is_none_of_the_history(late: Any) -> None:
    spec = dd.Upsert("id", time="at", late=late, delete="city is null", value=["city"])
    flow = dd.Flow()
    flow.output("people", flow.upserts("people", PEOPLE, spec))
    more, verdicts = LATE[late]
    with flow.open(retain=99) as engine:
        engine.push(rows((1, "Bern", 10), (1, "Chur", 30)))
        engine.advance_to(31)
        between, first = rows((1, "Basel", 20), (2, "Genf", 20)), engine.verdicts.counts
        if late == "error":
            with pytest.raises(errors.LateEvent):
                engine.push(between)
        else:
            engine.push(between)
        engine.advance_to(40)
        told = {name: n - first[name] for name, n in engine.verdicts.counts.items() if n != first[name]}
        assert told == verdicts
        history = versions(engine.scd2("people"), "id", "city")
        assert history == [(1, "Bern", 10, 30, False), (1, "Chur", 30, None, True), *more]


def test_a_version_that_comes_late_is_put_in_its_place_while_its_time_is_open() -> None:
    flow = dd.Flow()
    spec = dd.Upsert("id", time="at", lateness=10, delete="city is null", value=["city"])
    flow.output("people", flow.upserts("people", PEOPLE, spec))
    with flow.open(retain=99) as engine:
        for event in [(1, "Bern", 10), (1, "Chur", 30), (1, "Basel", 20)]:
            engine.push(rows(event))
        engine.advance_to(40)
        assert versions(engine.scd2("people"), "city") == [
            ("Basel", 20, 30, False),
            ("Bern", 10, 20, False),
            ("Chur", 30, None, True),
        ]


def test_in_epoch_mode_an_older_version_is_stale_and_none_of_the_history() -> None:
    with people().open(retain=99) as engine:
        engine.step(rows((1, "Bern", 10)), 1)
        engine.step(rows((1, "Chur", 30)), 2)
        assert engine.step(rows((1, "Basel", 20)), 3).verdicts["stale"] == 1
        assert versions(engine.scd2("people"), "city") == [("Bern", 1, 2, False), ("Chur", 2, None, True)]


def test_where_no_column_counts_a_version_ends_with_its_deletion_only() -> None:
    with people(track=[]).open(retain=99) as engine:
        for time, city in enumerate(["Bern", "Chur", "Genf", None, "Chur", "Bern"]):
            engine.step(rows((1, city, time)), time)
        assert versions(engine.scd2("people"), "city") == [("Bern", 0, 3, False), ("Chur", 4, None, True)]


def test_keys_that_share_the_first_word_of_their_identities_are_two() -> None:
    schema, n = pa.schema({"k": pa.int64()}), 3
    arranged = Arrangement(schema, wide=True, words=0)
    batch = Batch(
        np.array([5, 5, 5], np.uint64),
        np.array([1, 1, 2], np.uint64),
        np.array([1, 2, 3]),
        np.ones(n, np.uint8),
        np.zeros(0, np.uint64),
        np.empty((n, 0), np.int64),
        Rows(pa.table({"k": [7, 8, 9]})),
    )
    last = np.array([1, 2])
    arranged.apply_changes(
        [ArrangementChange(batch, np.zeros(n, np.uint64), last, last * 0, 0, live_added=2, tombstones_added=0)],
        upper=4,
        since=0,
    )
    (found,) = list(versions_of(arranged, schema, 0, dd.Secret(1, 2)))
    assert [found.first.tolist(), found.current.tolist(), found.to[:1].tolist()] == [
        [1, 2, 3],
        [False, True, True],
        [2],
    ]


def test_no_time_is_told_that_may_be_forgotten() -> None:
    for compacted in (False, True):
        with people().open(retain=2) as engine:
            for time, city in enumerate(["Bern", "Basel", "Chur", "Bern", "Genf"]):
                engine.step(rows((1, city, time), (2, "Bern", 0), (3, "Bern" if time < 2 else None, time)), time)
            if compacted:
                engine.compact()
            assert engine.since == 2
            assert versions(engine.scd2("people"), "id", "city") == [
                (1, "Bern", 3, 4, False),
                (1, "Chur", None, 3, False),
                (1, "Genf", 4, None, True),
                (2, "Bern", None, None, True),
            ]
    with people().open() as engine:
        engine.step(rows((1, "Bern", 0)), 5)
        assert versions(engine.scd2("people"), "city") == [("Bern", None, None, True)]


def test_a_reader_keeps_the_versions_that_it_can_read() -> None:
    with people().open() as engine:
        engine.step(rows((1, "Bern", 0)), 1)
        with engine.reader("rows"):
            engine.step(rows((1, "Chur", 1)), 2)
            engine.step(rows((1, "Genf", 2)), 3)
            assert [row[0] for row in versions(engine.scd2("rows"), "city")] == ["Bern", "Chur", "Genf"]
        engine.step(rows((1, "Bern", 3)), 4)
        assert versions(engine.scd2("rows"), "city") == [("Bern", None, None, True)]


def test_times_are_of_their_own_type_and_a_version_number_is_a_time_too() -> None:
    flow = dd.Flow()
    columns = {"id": pa.int64(), "city": pa.string(), "day": pa.date32()}
    flow.output("rows", flow.upserts("people", columns, dd.Upsert("id", time="day")))
    first = datetime.date(2024, 2, 29)
    with flow.open(retain=1000) as engine:
        days = [first, first + datetime.timedelta(30)]
        engine.push({"people": pa.table({"id": [1, 1], "city": ["Chur", "Bern"], "day": days[::-1]})})
        engine.advance_to(CLOSED)
        found = engine.scd2("rows", "start", "stop", "now")
        ends = [("start", pa.date32()), ("stop", pa.date32()), pa.field("now", pa.bool_(), nullable=False)]
        assert found.schema == pa.schema([("id", pa.int64()), ("city", pa.string()), *ends])
        assert found.to_pylist() == [
            {"id": 1, "city": "Bern", "start": days[0], "stop": days[1], "now": False},
            {"id": 1, "city": "Chur", "start": days[1], "stop": None, "now": True},
        ]


def test_before_anything_is_closed_there_is_no_version() -> None:
    with people().open() as engine:
        assert engine.scd2("rows").num_rows == 0 == engine.scd2("by_city").num_rows
        assert engine.scd2("rows").column_names == ["id", "city", "at", *TIMES]


def test_what_has_no_key_or_takes_a_column_is_refused() -> None:
    with people().open() as engine:
        with raises(errors.NotReadable):
            engine.scd2("peopel")
        with raises(errors.NotReadable):
            engine.scd2("cities")
        with raises(errors.SpecError):
            engine.scd2("people", current="city")
        with raises(errors.SpecError):
            engine.scd2("people", "to", "to")
    with pytest.raises(errors.EngineClosed):
        engine.scd2("people")


def test_two_versions_of_one_time_are_a_corrupt_state() -> None:
    with people().open(retain=9) as engine:
        engine.step(rows((1, "Bern", 1)), 1)
        arranged = engine.dataflow.graph.arrangements["people"]
        (part,) = arranged.spine.parts
        arranged.spine.items.append(type(arranged.spine.items[0])(arranged.spine.items[0].description, [part]))
        with raises(errors.CorruptState):
            engine.scd2("people")
