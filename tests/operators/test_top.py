"""Test tops beside the twin and DuckDB: large groups, ties, multiplicities, ranks and offsets.

The tests also check which rows a step reads, and every refusal with its text. ``test_operators`` tests the laws of
operators; ``test_laws`` and ``test_machine`` draw tops in other plans.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import starmap
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from chance import effort, seeded
from hypothesis import given, strategies as st
from messages import raises
from model import Node, difference
from tight import MEMORY, tighten, tiny

import ddflow as dd
from ddflow.errors import CorruptState, NegativeMultiplicity, PlanChanged
from ddflow.operators.ordered_groups import RunningOrderedGroups
from ddflow.operators.row_order import RowOrder, find_reordered_columns, format_order_columns, parse_order_columns
from ddflow.plan.text.codec import compute_node_id, describe_plan, format_node, rebuild_plan
from ddflow.storage.memory import MemoryStore

COLUMNS = {"city": pa.string(), "n": pa.decimal128(9, 2), "at": pa.date32(), "note": pa.string(), "x": pa.float64()}
SCHEMA = pa.schema(COLUMNS)
PREFIX = "the same fifteen bytes"
CITIES = st.sampled_from(["Bern", "Chur", None])
NUMBERS = st.sampled_from([Decimal("1.50"), Decimal("-2.00"), Decimal("0.00"), None])
DAYS = st.sampled_from([dt.date(2024, 1, 1), None])
NOTES = st.sampled_from(["", "b", PREFIX, PREFIX + " and b", PREFIX + " and a", PREFIX + " é", None])
ROWS = st.tuples(CITIES, NUMBERS, DAYS, NOTES, st.sampled_from([0.5, float("inf"), None]))
CHANGES = st.lists(st.tuples(ROWS, st.sampled_from([1, 1, 1, 2, 5, -1, -1, -2])), max_size=12)
WAYS = ["", " desc", " nulls last", " desc nulls first", " ASC  Nulls First"]
BY = st.lists(
    st.tuples(st.sampled_from(list(COLUMNS)), st.sampled_from(WAYS)), max_size=3, unique_by=lambda each: each[0]
).map(lambda given: [name + way for name, way in given])
TOPS = st.fixed_dictionaries(
    {
        "k": st.sampled_from([1, 2, 3, 50]),
        "by": BY,
        "partition_by": st.sampled_from([[], ["city"], ["note"], ["city", "at"]]),
        "offset": st.sampled_from([0, 0, 1, 4]),
        "rank_name": st.sampled_from([None, "rank"]),
    }
)
Rows = Counter[tuple[Any, ...]]


def feeds(diff: str | None = "d") -> tuple[dd.Flow, dd.Collection]:
    flow = dd.Flow()
    return flow, flow.updates("rows", {**COLUMNS, "d": pa.int64()}, diff=diff, keep=True)


def table(changes: list[tuple[tuple[Any, ...], int]]) -> pa.Table:
    named = [dict(zip([*COLUMNS, "d"], [*row, n], strict=True)) for row, n in changes]
    return pa.Table.from_pylist(named, pa.schema({**COLUMNS, "d": pa.int64()}))


def possible(changes: list[tuple[tuple[Any, ...], int]], held: Rows) -> list[tuple[tuple[Any, ...], int]]:
    """The changes without what would take away more than there is; what is there then is in ``held``."""
    out = []
    for row, n in changes:
        if held[row] + n >= 0:
            held[row] += n
            out.append((row, n))
    for row in [row for row, n in held.items() if not n]:
        del held[row]
    return out


def twin(told: dict[str, Any]) -> Callable[[Rows], Rows]:
    node = Node(tuple(COLUMNS), lambda state: state["rows"]).top(**told)
    return lambda rows: node.of({"rows": rows})


def read(found: pa.Table) -> Rows:
    return Counter({tuple(row): n for *row, n in zip(*(c.to_pylist() for c in found.columns), strict=True)})


def put_out(found: pa.Table) -> dict[Any, int]:
    assert found.num_rows == len({tuple(row.values()) for row in found.drop_columns(["_diff"]).to_pylist()})
    return {(tuple(row), at): n for *row, at, n in zip(*(c.to_pylist() for c in found.columns), strict=True)}


@effort(150)
@given(st.lists(CHANGES, min_size=1, max_size=5), TOPS, st.booleans())
def test_each_step_and_each_read_is_the_twins(steps: list[Any], told: dict[str, Any], spills: bool) -> None:
    flow, rows = feeds()
    flow.output("top", rows.top(**told))
    first, held, history = twin(told), Counter[Any](), [Counter[Any]()]
    with tiny(), flow.open(retain=len(steps), **({"memory": MEMORY} if spills else {})) as engine:
        if spills:
            tighten(engine, 0, 2**40)
        for time, changes in enumerate(steps, 1):
            out = engine.step({"rows": table(possible(changes, held))}, time)
            history.append(first(Counter(held)))
            assert put_out(out["top"]) == difference(history[-2], history[-1], time)
            assert read(engine.read("top")) == history[-1]
        engine._check_invariants()
        for time in range(1, len(steps) + 1):
            assert read(engine.read("top", as_of=time)) == history[time]


@effort(60)
@given(st.lists(CHANGES, min_size=2, max_size=6), TOPS)
def test_so_it_is_at_every_time_of_one_step(steps: list[Any], told: dict[str, Any]) -> None:
    flow = dd.Flow()
    rows = flow.updates("rows", {**COLUMNS, "d": pa.int64(), "t": pa.int64()}, diff="d", time="t")
    flow.output("top", rows.top(**told))
    first, held, expected, before = twin(told), Counter[Any](), dict[Any, int](), Counter[Any]()
    with flow.open() as engine:
        for time, changes in enumerate(steps):
            made = table(possible(changes, held))
            engine.push({"rows": made.append_column("t", pa.array([time] * made.num_rows, pa.int64()))})
            now = first(Counter(held))
            expected |= difference(before, now, time)
            before = now
        out = engine.advance_to(dd.CLOSED)["top"]
    assert put_out(out) == expected
    signs = [(at, n > 0) for at, n in zip(out["_time"].to_pylist(), out["_diff"].to_pylist(), strict=True)]
    assert signs == sorted(signs)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("medium", ["memory", "files", "reopened"])
@pytest.mark.parametrize("told", [{"k": 3}, {"k": 2, "offset": 30}, {"k": 40, "rank_name": "rank"}])
def test_groups_of_many_rows_beside_duckdb(medium: str, told: dict[str, Any], tmp_path: Path) -> None:
    """Of upserts by key, so that most steps take rows away from the front; ties go to the key."""
    draw, store = seeded("tops", medium, str(told)), MemoryStore()
    columns = {"id": pa.int64(), "g": pa.int64(), "v": pa.int64(), "s": pa.string(), "gone": pa.bool_()}

    def flow() -> dd.Flow:
        made = dd.Flow()
        rows = made.upserts("rows", columns, dd.Upsert("id", delete=dd.tombstone("gone")))
        made.output("top", rows.top(by=["v desc nulls last", "s"], partition_by="g", **told))
        return made

    options = {"memory": MEMORY, "spill": tmp_path} if medium == "files" else {}
    engine = flow().open(store.reopen() if medium == "reopened" else None, retain=3, **options)
    held: dict[int, Any] = {}
    added, history = Counter[Any](), list[Rows]()
    with duckdb.connect() as witness:
        for time in range(8):
            if medium == "reopened" and time:
                engine.close()
                engine = flow().open(store.reopen(), retain=3)
            if medium == "files":
                tighten(engine, 0, 2**40)
            for key in draw.sample(range(1500), 400 if time else 1500):
                value, text = draw.choice([None, *range(12)]), PREFIX[: draw.randrange(22)] + draw.choice("ab")
                held[key] = (key, key % 7, value, text, draw.random() < 0.2)
            out = engine.step(
                {
                    "rows": pa.Table.from_pylist(
                        [dict(zip(columns, held[key], strict=True)) for key in held], pa.schema(columns)
                    )
                },
                time,
            )["top"]
            for *row, _, diff in zip(*(c.to_pylist() for c in out.columns), strict=True):
                added[tuple(row)] += diff
            witness.register(
                "held",
                pa.Table.from_pylist(
                    [dict(zip(columns, row, strict=True)) for row in held.values() if not row[-1]], pa.schema(columns)
                ),
            )
            offset = told.get("offset", 0)
            rank = ", r" if "rank_name" in told else ""
            sql = (
                f"select id, g, v, s{rank} from (select *, row_number() over (partition by g "
                f"order by v desc nulls last, s, id) r from held) where r > {offset} and r <= {offset + told['k']}"
            )
            history.append(Counter(witness.execute(sql).fetchall()))
            assert history[-1] == Counter({row: n for row, n in added.items() if n})
            assert history[-1] == read(engine.read("top"))
            for back in range(1, min(time, 3) + 1):
                assert history[-1 - back] == read(engine.read("top", as_of=time - back))
    engine._check_invariants()
    engine.close()
    if medium == "reopened":
        assert dd.fsck(store.reopen()).ok
        assert read(dd.read(store, "top")) == history[-1]


def test_a_step_reads_the_front_of_the_groups_that_it_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large groups are, and nothing of others."""
    looked: list[int] = []
    find = RunningOrderedGroups._find_first_rows

    def watched(self: RunningOrderedGroups, *given: Any, **named: Any) -> Any:
        found = find(self, *given, **named)
        looked.append(int(np.count_nonzero(found.held)))
        return found

    monkeypatch.setattr(RunningOrderedGroups, "_find_first_rows", watched)
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "g": int, "v": int}, dd.Upsert("id"))
    flow.output("top", rows.top(3, by="v", partition_by="g"))
    with flow.open() as engine:
        n = np.arange(20_000)
        engine.step({"rows": pa.table({"id": n, "g": n % 4, "v": n})}, 0)
        for time, (keys, values, most, changed) in enumerate(
            [
                ([19_000], [30_000], 3, 0),  # behind the first three
                ([0], [30_000], 3 + 4, 2),  # the first row leaves, and the fourth comes
                ([1, 5, 9], [40_000, 40_001, 40_002], 3 + 6, 6),  # all three
                ([50_001], [-1], 3, 2),
                ([], [], 0, 0),
            ],
            1,
        ):
            looked.clear()
            out = engine.step(
                {
                    "rows": pa.table(
                        {
                            "id": pa.array(keys, pa.int64()),
                            "g": np.array(keys, int) % 4,
                            "v": pa.array(values, pa.int64()),
                        }
                    )
                },
                time,
            )
            assert sum(looked) <= most and out["top"].num_rows == changed


def test_a_row_takes_as_many_places_as_it_is_there_and_may_be_cut() -> None:
    flow, rows = feeds()
    flow.output("top", rows.project(["city", "n"]).top(3, by=["n"]))
    flow.output("ranked", rows.project(["n"]).top(3, by=["n"], offset=1, rank_name="place"))
    one, two = ("Bern", Decimal(1), None, None, None), ("Bern", Decimal(2), None, None, None)
    with flow.open() as engine:
        out = engine.step({"rows": table([(one, 2), (two, 2**62)])}, 1)
        assert [(row["n"], row["_diff"]) for row in out["top"].to_pylist()] == [(1, 2), (2, 1)]
        assert [(row["n"], row["place"]) for row in out["ranked"].to_pylist()] == [(1, 2), (2, 3), (2, 4)]
        out = engine.step({"rows": table([(one, -1)])}, 2)
        assert [(row["n"], row["_diff"]) for row in out["top"].to_pylist()] == [(1, -1), (2, 1)]
        found = [(row["n"], row["place"], row["_diff"]) for row in out["ranked"].to_pylist()]
        assert found == [(1, 2, -1), (2, 2, 1)]


def test_below_zero_at_the_end_of_a_time_is_refused_and_not_within_one() -> None:
    flow, rows = feeds()
    flow.output("top", rows.project(["city"]).top(1, by=["city"]))
    bern = ("Bern", None, None, None, None)
    with flow.open() as engine:
        engine.step({"rows": table([(bern, -1), (bern, 2)])}, 1)
        with raises(NegativeMultiplicity):
            engine.step({"rows": table([(bern, -2)])}, 2)
        assert read(engine.read("top")) == {("Bern",): 1}
        engine.step({"rows": table([(bern, -1)])}, 2)
        assert engine.read("top").num_rows == 0
        engine._check_invariants()


def test_lists_and_structs_are_compared_by_something_that_stays() -> None:
    """Which of two is first means nothing, and it is always the same one."""
    flow = dd.Flow()
    columns = {"id": pa.int64(), "l": pa.list_(pa.int64()), "s": pa.struct({"x": pa.int64()}), "z": pa.int64()}
    rows = flow.upserts("rows", columns, dd.Upsert("id", delete=dd.tombstone("z"))).project(["l", "s"])
    flow.output("top", rows.top(2, by=[]))
    draw = seeded("lists")
    keys, found = list(range(9)), set()
    for _ in range(3):
        draw.shuffle(keys)
        with flow.open(secret=dd.Secret(1, 2)) as engine:
            for time, key in enumerate(keys):
                engine.step(
                    {"rows": pa.Table.from_pylist([{"id": key, "l": [key], "s": {"x": -key}}], pa.schema(columns))},
                    time,
                )
                engine._check_invariants()
            found.add(repr(sorted(map(repr, engine.read("top").to_pylist()))))
    assert len(found) == 1
    with raises(dd.errors.SpecError):
        rows.top(2, by=["l"])


def test_wide_rows_are_ordered_by_words_and_then_by_values() -> None:
    schema = pa.schema({f"c{i}": pa.int64() for i in range(9)} | {"s": pa.string(), "l": pa.list_(pa.int64())})
    order = RowOrder(schema, ["c0"], parse_order_columns(["c8 desc"], schema, "top"), dd.Secret(1, 2))
    assert [each.name for each in order.words] == ["c8", "c1", "c2", "c3"]
    assert [each.name for each in order.values] == [*(f"c{i}" for i in range(4, 8)), "s", "l"]
    wide = pa.schema({"b": pa.binary(200), "n": pa.int64()})
    order = RowOrder(wide, [], parse_order_columns(["b"], wide, "top"), dd.Secret(1, 2))
    assert [each.name for each in order.words] == ["b"] and [each.name for each in order.values] == ["n"]


@effort(40)
@given(st.lists(st.tuples(*[st.integers(0, 1)] * 9), max_size=30), st.integers(1, 4))
def test_so_are_tops_of_them(rows: list[tuple[int, ...]], k: int) -> None:
    flow = dd.Flow()
    schema = {f"c{i}": int for i in range(9)}
    flow.output("top", flow.updates("rows", schema).top(k, by=["c0 desc"], partition_by=["c1"]))
    expected: Rows = Counter()
    for group in (0, 1):
        its = [row for row in rows if row[1] == group]
        expected.update(sorted(its, key=lambda row: (-row[0], *row[1:]))[:k])
    with flow.open() as engine:
        half = len(rows) // 2
        for time, some in enumerate((rows[:half], rows[half:])):
            engine.step(
                {"rows": pa.table({f"c{i}": pa.array([row[i] for row in some], pa.int64()) for i in range(9)})}, time
            )
        assert read(engine.read("top")) == expected


def test_two_of_the_same_are_one_and_their_json_makes_them_again() -> None:
    flow, rows = feeds()
    top = rows.top(2, by=["n desc", "note"], partition_by="city")
    assert rows.top(2, by=["n DESC nulls last", "`note` asc"], partition_by=["city"]) is top
    assert top.unique is False and top.positive and rows.top(2, "n", rank_name="r").unique
    flow.output("top", top)
    flow.output("ranked", rows.top(3, by=["x"], offset=4, rank_name="place"))
    again = rebuild_plan(describe_plan(flow))
    assert describe_plan(again) == describe_plan(flow)
    said = format_node(describe_plan(flow), compute_node_id(top), "this plan")
    assert said == "rows.top(2, by=['`n` desc nulls last', '`note` asc nulls first'], partition_by=['city'])"
    assert "offset=4, rank_name='place'" in flow.explain()
    broken = describe_plan(flow)
    broken["collections"][compute_node_id(top)]["k"] = "2"
    with raises(CorruptState):
        rebuild_plan(broken)


def test_orders_are_read_as_they_are_written() -> None:
    schema = pa.schema({"a b": pa.int64(), "c`d": pa.int64(), "desc": pa.int64(), "é": pa.int64()})
    for text in ("`a b` desc", "`c``d` nulls last", "desc desc", " é  ASC   NULLS  LAST ", "desc"):
        (way,) = parse_order_columns(text, schema, "top")
        assert parse_order_columns(format_order_columns([way]), schema, "top") == [way]
    assert parse_order_columns(["é desc", "desc", "é"], schema, "top") == parse_order_columns(
        ["é desc", "desc"], schema, "top"
    )


@pytest.mark.parametrize(
    "told",
    [
        {"k": 0},
        {"k": -1},
        {"k": 10_001},
        {"k": True},
        {"k": 2.0},
        {"offset": -1},
        {"by": ["ctiy desc"]},
        {"by": ["n down"]},
        {"by": ["n nulls"]},
        {"by": ["lower(note)"]},
        {"by": [7]},
        {"by": 7},
        {"partition_by": ["town"]},
        {"rank_name": "n"},
        {"rank_name": "_diff"},
        {"rank_name": 7},
    ],
)
def test_what_is_wrong_is_named(told: dict[str, Any]) -> None:
    with raises(dd.errors.SpecError):
        feeds()[1].top(**({"k": 1, "by": ["n"]} | told))


def test_rows_that_are_forgotten_without_a_word_have_no_top() -> None:
    spec = dd.Upsert("id", order_by="n", expiry=dd.Expiry(ttl=3, on_expire="forget"))
    rows = dd.Flow().upserts("rows", {"id": int, "n": int}, spec)
    with raises(dd.errors.SpecError):
        rows.top(1, by=["n"])


def test_columns_whose_order_would_change_are_refused() -> None:
    narrow = pa.schema({"a": pa.int32(), "b": pa.uint32(), "c": pa.date32(), "d": pa.list_(pa.int64())})
    wider = {"a": pa.string(), "b": pa.uint64(), "c": pa.timestamp("s"), "d": pa.list_(pa.float64())}
    assert dict(find_reordered_columns(pa.schema(wider), narrow)) == {name: wider[name] for name in "abd"}
    flow = dd.Flow()
    flow.output("top", flow.upserts("rows", {"id": pa.int64(), "n": pa.int32()}, dd.Upsert("id")).top(1, by=["n"]))
    with flow.open() as engine:
        engine.step({"rows": pa.table({"id": [1, 2], "n": pa.array([10, 9], pa.int32())})}, 1)
        with raises(PlanChanged):
            engine.evolve({"n": pa.string()})
        engine.evolve({"n": pa.int64()})
        out = engine.step({"rows": pa.table({"id": [2, 1], "n": [2**40, 2**41]})}, 2)
        assert out["top"].num_rows == 2 and read(engine.read("top")) == {(2, 2**40): 1}
        engine._check_invariants()


def test_state_that_is_added_to_a_plan_is_made_of_what_its_input_holds() -> None:
    store, (flow, rows) = MemoryStore(), feeds()
    flow.output("all", rows)
    changes = list(starmap(lambda i, n: (("Bern", Decimal(i), None, str(i), None), n), [(1, 1), (2, 2), (3, 1)]))
    with flow.open(store.reopen()) as engine:
        engine.step({"rows": table(changes)}, 1)
    flow.output("top", rows.top(2, by=["n desc"]))
    with flow.open(store.reopen()) as engine:
        assert sorted(row["note"] for row in engine.read("top").to_pylist()) == ["2", "3"]
        out = engine.step({"rows": table([(changes[2][0], -1)])}, 2)
        assert [(row["note"], row["_diff"]) for row in out["top"].to_pylist() if row["_time"] == 2][:2] == [
            ("3", -1),
            ("2", 1),
        ]
