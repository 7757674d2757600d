"""Test ordered aggregates beside lists: extremes, first and last rows, lists, distinct values, and mixed with sums."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import aggregate_rules as rules
import duckdb
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from messages import raises
from model import Twin, collection
from rules import Input

import ddflow as dd
from ddflow.errors import ExpressionError, NegativeMultiplicity, PlanChanged, SpecError
from ddflow.plan.text.codec import describe_plan, rebuild_plan
from ddflow.storage.memory import MemoryStore

COLUMNS = {
    "g": pa.string(),
    "i": pa.int64(),
    "x": pa.float64(),
    "b": pa.bool_(),
    "s": pa.string(),
    "d": pa.decimal128(30, 4),
    "t": pa.timestamp("us"),
    "y": pa.date32(),
    "z": pa.binary(),
    "tags": pa.list_(pa.int64()),
}
SCHEMA = pa.schema({"id": pa.int64(), **COLUMNS, "gone": pa.bool_(), "at": pa.int64()})
Named = dict[str, Any]
Values = list[tuple[Named, int]]


def of(column: str, test: Callable[[Named], bool] = lambda row: True) -> Callable[[Values], rules.Values]:
    return lambda rows: [(row[column], n) for row, n in rows if test(row)]


def ordered(
    column: str,
    by: Sequence[str],
    ways: Sequence[tuple[bool, bool]],
    ignore_nulls: bool = False,
    test: Callable[[Named], bool] = lambda row: True,
) -> Callable[[Values], list[Any]]:
    return lambda rows: rules.in_order(
        [([row[name] for name in by], row[column], n) for row, n in rows if test(row)], ways, ignore_nulls
    )


def end(values: Callable[[Values], list[Any]], at: int) -> Callable[[Values], Any]:
    return lambda rows: found[at] if (found := values(rows)) else None


def is_b(row: Named) -> bool:
    return row["b"] is True


ASC, DESC = (False, True), (True, False)
Twins = Mapping[str, tuple[str, Callable[[Values], Any]]]
SETS: dict[str, Twins] = {
    "extremes": {
        "lo": ("min(i)", lambda rows: rules.extreme(of("i")(rows), False)),
        "hi": ("max(i)", lambda rows: rules.extreme(of("i")(rows), True)),
        "few": ("max(i) filter (where b)", lambda rows: rules.extreme(of("i", is_b)(rows), True)),
    },
    "types": {
        name + column: (f"{name}({column})", lambda rows, c=column, n=name: rules.extreme(of(c)(rows), n == "max"))
        for column in ("x", "b", "s", "d", "t", "y", "z")
        for name in ("min", "max")
    },
    "beside sums": {
        "rows": ("count(*)", lambda rows: sum(n for _, n in rows)),
        "lo": ("min(s)", lambda rows: rules.extreme(of("s")(rows), False)),
        "total": ("sum(i)", lambda rows: rules.total(of("i")(rows))),
        "kinds": ("count(distinct s)", lambda rows: rules.distinct(of("s")(rows))),
    },
    "ends": {
        "f": ("first(s order by i)", end(ordered("s", ["i"], [ASC]), 0)),
        "l": ("last(s order by i)", end(ordered("s", ["i"], [ASC]), -1)),
        "d": ("first(x order by s desc, i)", end(ordered("x", ["s", "i"], [DESC, ASC]), 0)),
        "n": (
            "last(i order by x desc nulls first) ignore nulls",
            end(ordered("i", ["x"], [(True, True)], ignore_nulls=True), -1),
        ),
        "w": ("first(i order by s) filter (where b)", end(ordered("i", ["s"], [ASC], test=is_b), 0)),
        "wn": (
            "last(s ignore nulls order by i nulls last) filter (where b)",
            end(ordered("s", ["i"], [(False, False)], True, is_b), -1),
        ),
    },
    "lists": {
        "a": ("array_agg(i)", ordered("i", [], [], True)),
        "lo": ("min(i)", lambda rows: rules.extreme(of("i")(rows), False)),
        "o": ("array_agg(s order by i desc)", ordered("s", ["i"], [DESC], True)),
        "w": ("array_agg(x order by x desc) filter (where b)", ordered("x", ["x"], [DESC], True, is_b)),
        "l": ("last(s order by i desc) ignore nulls", end(ordered("s", ["i"], [DESC], True), -1)),
    },
    "distinct": {
        "s": ("count(distinct s)", lambda rows: rules.distinct(of("s")(rows))),
        "x": ("count(distinct x)", lambda rows: rules.distinct(of("x")(rows))),
        "two": ("count(distinct i, s)", lambda rows: rules.distinct([((r["i"], r["s"]), n) for r, n in rows])),
        "few": ("count(distinct s) filter (where b)", lambda rows: rules.distinct(of("s", is_b)(rows))),
    },
}
TEXTS = st.sampled_from(["", "a", "é", *(f"a text of many letters {n}" for n in "0123")])
ROWS = st.fixed_dictionaries(
    {
        "g": st.sampled_from(["a", "b", None]),
        "i": st.one_of(st.none(), st.integers(-3, 3)),
        "x": st.sampled_from([None, 0.0, -0.0, 1.5, -1e300, math.inf, -math.inf, math.nan]),
        "b": st.sampled_from([None, True, False]),
        "s": st.one_of(st.none(), TEXTS),
        "d": st.one_of(st.none(), st.integers(-(10**25), 10**25).map(lambda n: Decimal(n).scaleb(-4))),
        "t": st.one_of(st.none(), st.integers(0, 9).map(lambda n: datetime(2024, 1, 1) + timedelta(n))),
        "y": st.one_of(st.none(), st.integers(0, 9).map(lambda n: date(2024, 1, 1) + timedelta(n))),
        "z": st.one_of(st.none(), st.binary(max_size=3)),
        "tags": st.one_of(st.none(), st.lists(st.integers(0, 1), max_size=1)),
    }
)
EVENTS = st.lists(st.tuples(st.integers(0, 7), st.one_of(st.none(), ROWS), st.integers(0, 3)), max_size=16)
"""Ids, rows or nothing, times."""
Event = tuple[int, Named | None, int]


@cache
def flow_of(which: str, by: tuple[str, ...] = ("g",), time: bool = True) -> dd.Flow:
    flow = dd.Flow()
    spec = dd.Upsert("id", delete=dd.tombstone("gone", True), **({"time": "at", "order_by": "at"} if time else {}))
    rows = flow.upserts("rows", SCHEMA if time else SCHEMA.remove(SCHEMA.get_field_index("at")), spec)
    flow.output("out", rows.group_by(*by).agg(**{name: text for name, (text, _) in SETS[which].items()}))
    return flow


def table(events: Sequence[Event], time: bool = True) -> pa.Table:
    rows = [{"id": id, **(row or dict.fromkeys(COLUMNS)), "gone": row is None, "at": at} for id, row, at in events]
    made = pa.Table.from_pylist(rows, SCHEMA)
    return made if time else made.drop_columns(["at"])


def once(events: Sequence[Event]) -> list[Event]:
    """One event of a key and time, so that which one wins is no question."""
    return list({(id, at): (id, row, at) for id, row, at in events}.values())


def held_at(events: Sequence[Event], time: int) -> list[Named]:
    held: dict[int, tuple[int, Named | None]] = {}
    for id, row, at in events:
        if at <= time and (id not in held or held[id][0] <= at):
            held[id] = at, row
    return [row for _, row in held.values() if row is not None]


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(plain, value))
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def expected(rows: Sequence[Named], which: str, by: Sequence[str] = ("g",)) -> Counter[Any]:
    groups: dict[Any, Values] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append((row, 1))
    return Counter((*group, *(plain(twin(mine)) for _, twin in SETS[which].values())) for group, mine in groups.items())


def added(updates: pa.Table, into: Counter[Any]) -> None:
    rows = updates.drop_columns([name for name in ("_time",) if name in updates.column_names])
    for *row, diff in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        into[tuple(map(plain, row))] += diff
        if not into[tuple(map(plain, row))]:
            del into[tuple(map(plain, row))]


def read(engine: Any, as_of: int | None = None) -> Counter[Any]:
    out: Counter[Any] = Counter()
    added(engine.read("out", as_of=as_of), out)
    return out


@pytest.mark.drawn(6)
@pytest.mark.parametrize("by", [("g",), ("b", "g"), ()], ids=str)
@pytest.mark.parametrize("which", SETS)
@given(events=EVENTS, cuts=st.sets(st.integers(0, 4)))
@effort(25)
def test_results_are_those_of_the_rows_that_are_there(
    which: str, by: tuple[str, ...], events: list[Event], cuts: set[int]
) -> None:
    held, events = Counter[Any](), once(events)
    with flow_of(which, by).open(retain=9) as engine:
        engine.push({"rows": table(events)})
        updates = [engine.advance_to(cut)["out"] for cut in [*sorted(cuts), dd.CLOSED]]
        for time in range(4):
            for part in updates:
                mine = part.filter(pa.array([each == time for each in part.column("_time").to_pylist()], pa.bool_()))
                added(mine, held)
                found = Counter(tuple(map(plain, row.values())) for row in mine.drop_columns(["_diff"]).to_pylist())
                assert set(found.values()) <= {1}
            want = expected(held_at(events, time), which, by)
            assert held == want
            if engine.last is not None and engine.last >= time >= engine.since:
                assert read(engine, time) == want
        engine._check_invariants()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("which", SETS)
@given(steps=st.lists(EVENTS, min_size=1, max_size=4))
@effort(8)
def test_a_state_that_is_opened_again_or_spilled_goes_on(
    which: str, steps: list[list[Event]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store, spill, events = MemoryStore(), tmp_path_factory.mktemp("spill"), list[Event]()
    flow = flow_of(which, time=False)
    with flow.open(memory="16MB", spill=Path(spill)) as tight:
        tight.dataflow.budget.state = 0
        for time, step in enumerate(steps):
            events += [(id, row, time) for id, row, _ in {id: (id, row, 0) for id, row, _ in step}.values()]
            given = table([event for event in events if event[2] == time], time=False)
            with flow.open(store.reopen()) as engine:
                for each in (engine, tight):
                    each.step({"rows": given}, time)
                    assert read(each) == expected(held_at(events, time), which)
                engine._check_invariants()


@given(steps=st.lists(st.lists(st.tuples(ROWS, st.sampled_from([1, 2, -1, -2])), max_size=5), max_size=5))
@effort(40)
@pytest.mark.parametrize("which", ["beside sums", "lists", "ends"])
def test_rows_that_are_there_several_times_and_less_than_none(which: str, steps: list[Any]) -> None:
    flow, held = dd.Flow(), Counter[Any]()
    schema = pa.schema({**COLUMNS, "n": pa.int64()})
    rows = flow.updates("rows", schema, diff="n", keep=True)
    flow.output("out", rows.group_by("g").agg(**{name: text for name, (text, _) in SETS[which].items()}))
    with flow.open() as engine:
        for time, step in enumerate(steps):
            now = Counter(held)
            for row, n in step:
                now[tuple(map(plain, row.values()))] += n
            named = {tuple(map(plain, row.values())): row for step in steps for row, _ in step}
            given = pa.Table.from_pylist([{**row, "n": n} for row, n in step], schema)
            # What is arranged are the columns that are read, so rows that differ elsewhere are the same.
            try:
                engine.step({"rows": given}, time)
            except NegativeMultiplicity:
                assert min(now.values()) < 0
                continue
            held = now
            if not held or min(held.values()) >= 0:
                rows_held = [row for key, n in held.items() for row in [named[key]] * n]
                assert read(engine) == expected(rows_held, which)
        engine._check_invariants()


@given(steps=st.lists(st.lists(st.tuples(st.integers(0, 5), ROWS), max_size=6), max_size=4))
@effort(30)
def test_upserts_give_what_the_twin_gives(steps: list[list[tuple[int, Named]]]) -> None:
    spec, names = dd.Upsert("id"), ("id", *(name for name in COLUMNS if name != "tags"))
    schema = pa.schema([SCHEMA.field(name) for name in names])
    flow = dd.Flow()
    texts = {"lo": "min(s)", "n": "count(*)", "all": "array_agg(i)", "f": "first(s order by i desc)"}
    flow.output("out", flow.upserts("rows", schema, spec).group_by("g").agg(**texts))
    input = Input(names, spec)
    node = collection("rows", input).agg(
        ["g"],
        lo=lambda rows: rules.extreme(of("s")(rows), False),
        n=lambda rows: sum(n for _, n in rows),
        all=ordered("i", [], [], True),
        f=end(ordered("s", ["i"], [DESC]), 0),
    )
    twin = Twin({"rows": input}, {"out": node})
    with flow.open() as engine:
        for time, step in enumerate(steps):
            events = [{"id": id, **{name: row[name] for name in names[1:]}} for id, row in step]
            out = engine.step({"rows": pa.Table.from_pylist(events, schema)}, time)["out"]
            found = Counter[Any]()
            for *row, _, diff in zip(*(column.to_pylist() for column in out.columns), strict=True):
                found[tuple(map(plain, row)), time] += diff
            told = twin.step({"rows": events}, time).updates["out"]
            assert found == Counter({(tuple(map(plain, row)), at): n for (row, at), n in told.items()})


@given(st.lists(st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(-99, 99)), TEXTS), max_size=30))
@effort(25)
def test_duckdb_says_the_same(rows: list[tuple[int, int | None, str]]) -> None:
    texts = {
        "lo": "min(i)",
        "hi": "max(s)",
        "kinds": "count(distinct s)",
        "few": "max(i) filter (where i < 9)",
        "n": "count(*)",
        "f": "first(s order by i nulls last, s)",
        "l": "last(s order by i nulls first, s)",
        "a": "array_agg(s order by s desc)",
    }
    flow = dd.Flow()
    schema = pa.schema({"id": pa.int64(), "i": pa.int64(), "s": pa.string()})
    made = flow.upserts("rows", schema, dd.Upsert("id")).project({"g": "id % 3", "i": "i", "s": "s"})
    flow.output("out", made.group_by("g").agg(**texts))
    held = {id: (id % 3, i, s) for id, i, s in rows}
    with flow.open() as engine, duckdb.connect() as witness:
        for time in range(2):
            part = rows[: len(rows) // 2] if time == 0 else rows
            named = [dict(zip(schema.names, row, strict=True)) for row in part]
            engine.step({"rows": pa.Table.from_pylist(named, schema)}, time)
        rest = pa.table(list(zip(*held.values(), strict=True)) or [[], [], []], names=["g", "i", "s"])
        witness.register("held", rest.cast(pa.schema({"g": pa.int64(), "i": pa.int64(), "s": pa.string()})))
        sql = f"select g, {', '.join(texts.values())} from held group by g"
        found = {row[0]: row[1:] for row in witness.execute(sql).fetchall()}
        assert {row["g"]: tuple(row[name] for name in texts) for row in engine.read("out").to_pylist()} == found


def test_an_extreme_that_leaves_lets_the_next_one_in_without_its_group_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "gone": bool}, dd.Upsert("id", delete=dd.tombstone("gone", True)))
    flow.output("out", rows.agg(lo="min(id)", hi="max(id)"))
    n = 5_000
    with flow.open() as engine:
        engine.step({"rows": pa.table({"id": range(n), "gone": [False] * n})}, 0)
        running = engine.dataflow.graph.running[flow.outputs["out"]]
        looked, look = list[Any](), running._find_first_rows

        def noted(*args: Any, **more: Any) -> Any:
            looked.append(look(*args, **more))
            return looked[-1]

        monkeypatch.setattr(running, "_find_first_rows", noted)
        for time in range(1, 9):
            out = engine.step({"rows": pa.table({"id": [time - 1, n - time], "gone": [True] * 2})}, time)["out"]
            assert out.to_pylist()[-1] == {"lo": time, "hi": n - 1 - time, "_time": time, "_diff": 1}
        assert max(each.references.size for each in looked) <= 4


def test_what_is_asked_for_twice_is_held_once() -> None:
    flow = flow_of("beside sums")
    rows, texts = flow.inputs["rows"], {name: text for name, (text, _) in SETS["beside sums"].items()}
    assert rows.group_by("g").agg(**texts) is flow.outputs["out"]
    assert rows.group_by("g").agg(lo="min(s)") is rows.group_by("g").agg(lo="min(s)")
    arranged = sum(node.keeps for node in flow.nodes)
    again = rows.group_by("g").agg(**{name: texts[name] for name in ("lo", "kinds", "total", "rows")})
    assert sum(node.keeps for node in flow.nodes) <= arranged + 3
    assert again.schema.names == ["g", "lo", "kinds", "total", "rows"]
    assert describe_plan(rebuild_plan(describe_plan(flow))) == describe_plan(flow)
    assert "ordered_agg(by=['g'], order=['`value` asc nulls last'], lo=first value)" in dd.Flow.explain(flow)


@pytest.mark.parametrize(
    "text",
    [
        "first(i)",
        "min(i order by x)",
        "array_agg(distinct i)",
        "last(distinct i order by i)",
        "max(tags)",
        "array_agg(tags)",
        "first(i order by tags)",
        "max(nothing)",
        "max(i, x)",
        "count(distinct nothing)",
        "count(distinct i order by i)",
        "count(distinct *)",
        "first(i order by nothing)",
        "min(i) filter (where i)",
    ],
)
def test_what_is_no_aggregate_is_refused_by_name(text: str) -> None:
    rows = flow_of("extremes").inputs["rows"]
    with raises(ExpressionError):
        rows.group_by("g").agg(t=text)


def test_names_and_columns_are_checked_and_a_column_may_have_any_name() -> None:
    rows = flow_of("extremes").inputs["rows"]
    with raises(SpecError):
        rows.group_by("gg").agg(n="min(i)")
    with raises(SpecError):
        rows.group_by("g").agg(g="min(i)", n="sum(i)")
    with pytest.raises(SpecError):
        rows.group_by("g").agg(_diff="min(i)")
    flow = dd.Flow()
    schema = pa.schema({"id": pa.int64(), "value": pa.string(), "the `n`": pa.int64(), "order 1": pa.int64()})
    given = flow.upserts("rows", schema, dd.Upsert("id"))
    texts = {"a b": "max(`the ``n```)", "n": "count(distinct `the ``n```)", "f": "first(id order by `the ``n``` desc)"}
    flow.output("out", given.group_by("value", "order 1").agg(**texts))
    with flow.open() as engine:
        row = {"id": [1, 2], "value": ["v", "v"], "the `n`": [5, 7], "order 1": [1, 1]}
        assert engine.step({"rows": pa.table(row)}, 0)["out"].to_pylist() == [
            {"value": "v", "order 1": 1, "a b": 7, "n": 2, "f": 2, "_time": 0, "_diff": 1}
        ]


def test_a_value_without_an_order_may_be_the_first_or_in_a_list() -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": pa.int64(), "tags": pa.list_(pa.string())}, dd.Upsert("id"))
    texts = {"f": "first(tags order by id desc)", "a": "array_agg(tags order by id)", "n": "count(distinct tags)"}
    flow.output("out", rows.agg(**texts))
    with flow.open() as engine:
        tags = [["a"], None, ["a"], []]
        engine.step({"rows": pa.table({"id": [1, 2, 3, 4], "tags": pa.array(tags, pa.list_(pa.string()))})}, 0)
        assert engine.read("out").to_pylist() == [{"f": [], "a": [["a"], ["a"], []], "n": 2, "_diff": 1}]


def test_a_row_that_is_there_less_than_no_times_is_refused_by_name() -> None:
    for text in ("max(i)", "count(distinct i)"):
        flow = dd.Flow()
        rows = flow.updates("rows", {"i": int, "n": int}, diff="n")
        flow.output("out", rows.agg(t=text))
        with flow.open() as engine:
            engine.step({"rows": pa.table({"i": [5, 5], "n": [-1, 2]})}, 0)
            before = engine.read("out")
            with raises(NegativeMultiplicity):
                engine.step({"rows": pa.table({"i": [5], "n": [-2]})}, 1)
            assert engine.read("out").equals(before)
            engine._check_invariants()


def test_wider_columns_go_on_and_other_orders_are_refused_by_name() -> None:
    def kinds(n: pa.DataType) -> dd.Flow:
        flow = dd.Flow()
        schema = pa.schema({"id": pa.int64(), "g": pa.string(), "n": n})
        rows = flow.upserts("rows", schema, dd.Upsert("id"))
        flow.output("out", rows.group_by("g").agg(lo="min(n)", hi="max(n)", c="count(distinct n)"))
        return flow

    store, small = MemoryStore(), pa.int32()
    with kinds(small).open(store.reopen()) as engine:
        engine.step({"rows": pa.table({"id": [1, 2], "g": ["a", "a"], "n": pa.array([1, 2], small)})}, 1)
        engine.evolve({"rows": pa.schema({"id": pa.int64(), "g": pa.large_string(), "n": pa.int64()})})
        engine.step({"rows": pa.table({"id": [2], "g": ["a"], "n": [2**40]})}, 2)
        assert engine.read("out").to_pylist() == [{"g": "a", "lo": 1, "hi": 2**40, "c": 2, "_diff": 1}]
    with raises(PlanChanged):
        dd.evolve(store.reopen(), {"n": pa.string()})
