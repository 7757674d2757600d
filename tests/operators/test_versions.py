"""Test versions beside the twin and DuckDB: late versions, deletes, ties, runs of equal neighbours.

The tests also check which rows a step reads, and every refusal with its text. ``test_operators`` tests the laws of
operators; ``test_laws`` and ``test_machine`` draw versions in other plans.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import sqlite3
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import effort, seeded
from hypothesis import given, strategies as st
from messages import raises
from model import Node, difference
from test_top import possible, put_out, read
from tight import MEMORY, tighten, tiny

import ddflow as dd
from ddflow.errors import CorruptState, ExpressionError, NegativeMultiplicity, PlanChanged
from ddflow.operators.versions import RunningVersions
from ddflow.plan.text.codec import compute_node_id, describe_plan, format_node, rebuild_plan
from ddflow.storage.memory import MemoryStore
from ddflow.tools.verify import recount_groups

LONG = "2024-01-01T00:00:"
COLUMNS = {"k": pa.string(), "at": pa.int32(), "text": pa.string(), "d": pa.decimal128(9, 2), "op": pa.string()}
ROWS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([None, *range(6)]),
    st.sampled_from([None, *(LONG + str(i) for i in range(5))]),
    st.sampled_from([Decimal("1.00"), Decimal("2.00"), None]),
    st.sampled_from(["I", "U", "D", None]),
)
CHANGES = st.lists(st.tuples(ROWS, st.sampled_from([1, 1, 1, 2, -1, -1, -2])), max_size=12)
DELETES: dict[str, Any] = {
    "none": (None, None, None),
    "tombstone": (dd.tombstone("op", "D"), lambda row: row["op"] == "D", "op"),
    "not null": (dd.tombstone("d"), lambda row: row["d"] is not None, "d"),
    "sql": ("op = 'D' or d = 2", lambda row: row["op"] == "D" or row["d"] == 2, None),
}
TOLD = st.fixed_dictionaries(
    {
        "key": st.sampled_from([["k"], ["k"], [], ["k", "d"]]),
        "order_by": st.sampled_from(["at", "at", "text", ["at", "text"], ["d", "at", "text"]]),
        "ignore": st.sampled_from([[], ["op"], ["text", "at"], ["at", "text", "d", "op"]]),
    }
)


def flow_of(told: dict[str, Any], delete: str, **more: Any) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.updates("rows", {**COLUMNS, "n": pa.int64(), "t": pa.int64()}, diff="n", keep=True, **more)
    rows = rows.project(list(COLUMNS))
    flow.output("out", rows.versions(delete=DELETES[delete][0], **told))
    return flow


def table(changes: list[tuple[tuple[Any, ...], int]], time: int = 0) -> pa.Table:
    named = [dict(zip([*COLUMNS, "n", "t"], [*row, n, time], strict=True)) for row, n in changes]
    return pa.Table.from_pylist(named, pa.schema({**COLUMNS, "n": pa.int64(), "t": pa.int64()}))


def twin(told: dict[str, Any], delete: str) -> Any:
    node = Node(tuple(COLUMNS), lambda state: state["rows"])
    node = node.versions(**told, delete=DELETES[delete][1], hidden=DELETES[delete][2])
    return lambda rows: node.of({"rows": rows})


def fits(told: dict[str, Any], delete: str) -> bool:
    hidden = DELETES[delete][2]
    return hidden not in (*told["key"], *told["order_by"]) and not {*told["key"]} & {*told["order_by"]}


def once(rows: pa.Table, columns: tuple[str, ...]) -> bool:
    """Whether no two rows are equal by some columns."""
    return rows.num_rows == len(set(zip(*(rows[name].to_pylist() for name in columns), strict=True)))


@effort(150)
@given(st.lists(CHANGES, min_size=1, max_size=5), TOLD, st.sampled_from(sorted(DELETES)), st.booleans())
def test_each_step_and_each_read_is_the_twins(
    steps: list[Any], told: dict[str, Any], delete: str, spills: bool
) -> None:
    if not fits(told, delete):
        return
    expected, held, history = twin(told, delete), Counter[Any](), [Counter[Any]()]
    flow = flow_of(told, delete)
    with tiny(), flow.open(retain=len(steps), **({"memory": MEMORY} if spills else {})) as engine:
        if spills:
            tighten(engine, 0, 2**40)
        for time, changes in enumerate(steps, 1):
            out = engine.step({"rows": table(possible(changes, held))}, time)
            history.append(expected(Counter(held)))
            assert put_out(out["out"]) == difference(history[-2], history[-1], time)
            assert read(engine.read("out")) == history[-1]
            proven = flow.outputs["out"].unique_by()
            assert len(proven) == 2 and all(once(engine.read("out"), columns) for columns in proven)
        engine._check_invariants()
        for time in range(1, len(steps) + 1):
            assert read(engine.read("out", as_of=time)) == history[time]


@effort(100)
@given(st.lists(CHANGES, min_size=2, max_size=6), TOLD, st.sampled_from(sorted(DELETES)))
def test_so_it_is_at_every_time_of_one_step(steps: list[Any], told: dict[str, Any], delete: str) -> None:
    if not fits(told, delete):
        return
    expected, held, found, before = twin(told, delete), Counter[Any](), dict[Any, int](), Counter[Any]()
    with flow_of(told, delete, time="t").open() as engine:
        half = len(steps) // 2
        for time, changes in enumerate(steps):
            engine.push({"rows": table(possible(changes, held), time)})
            now = expected(Counter(held))
            found |= difference(before, now, time)
            before = now
            if time == half:
                out = put_out(engine.advance_to(time + 1)["out"])
        last = engine.advance_to(dd.CLOSED)["out"]
    assert out | put_out(last) == found
    signs = [(at, n > 0) for at, n in zip(last["_time"].to_pylist(), last["_diff"].to_pylist(), strict=True)]
    assert signs == sorted(signs)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("medium", ["memory", "files", "reopened"])
def test_histories_of_many_versions_beside_duckdb(medium: str, tmp_path: Path) -> None:
    """Of upserts by key and order; late ones, corrections, retractions and deletes."""
    draw, store = seeded("versions", medium), MemoryStore()
    columns = {"k": pa.int64(), "begun": pa.timestamp("us"), "v": pa.int64(), "note": pa.string(), "gone": pa.bool_()}

    def flow() -> dd.Flow:
        made = dd.Flow()
        spec = dd.Upsert(["k", "begun"], delete="note = 'never was'")
        rows = made.upserts("rows", columns, spec)
        made.output("out", rows.versions("k", "begun", dd.tombstone("gone"), ["note"]))
        return made

    options = {"memory": MEMORY, "spill": tmp_path} if medium == "files" else {}
    engine = flow().open(store.reopen() if medium == "reopened" else None, retain=3, **options)
    held: dict[Any, Any] = {}
    added, history = Counter[Any](), list[Any]()
    with duckdb.connect() as witness:
        for time in range(8):
            if medium == "reopened" and time:
                engine.close()
                engine = flow().open(store.reopen(), retain=3)
            if medium == "files":
                tighten(engine, 0, 2**40)
            events = {}
            for _ in range(1000 if not time else 60):
                key = draw.randrange(7), dt.datetime(2024, 1, 1) + dt.timedelta(minutes=draw.randrange(400))
                note = "never was" if draw.random() < 0.2 else draw.choice("ab")
                events[key] = (*key, draw.randrange(3), note, draw.random() < 0.1)
            for key, row in events.items():
                held.pop(key, None)
                if row[3] != "never was":
                    held[key] = row
            given = [dict(zip(columns, row, strict=True)) for row in events.values()]
            out = engine.step({"rows": pa.Table.from_pylist(given, pa.schema(columns))}, time)["out"]
            for *row, _, diff in zip(*(c.to_pylist() for c in out.columns), strict=True):
                added[tuple(row)] += diff
            rows = [dict(zip(columns, row, strict=True)) for row in held.values()]
            witness.register("held", pa.Table.from_pylist(rows, pa.schema(columns)))
            history.append(Counter(witness.execute(WITNESS).fetchall()))
            assert history[-1] == Counter({row: n for row, n in added.items() if n})
            assert history[-1] == read(engine.read("out"))
            for back in range(1, min(time, 3) + 1):
                assert history[-1 - back] == read(engine.read("out", as_of=time - back))
    engine._check_invariants()
    engine.close()
    if medium == "reopened":
        assert dd.fsck(store.reopen()).ok
        with dd.Snapshot.open(store) as snapshot:
            assert set(dict(recount_groups(snapshot)).values()) <= {0}
        assert read(dd.read(store, "out")) == history[-1]


WITNESS = """
select * exclude (gone, same) from (
    select k, begun, v, note, begun as valid_from, lead(begun) over (partition by k order by begun) as valid_to,
        gone, same from (
        select *, coalesce(gone = lag(gone) over w and v is not distinct from lag(v) over w, false) same
        from held window w as (partition by k order by begun)
    ) where not same or gone
) where not gone
"""
"""The versions, where a key has one row of an order: those that are as the one before are left out first."""


def prices(**told: Any) -> tuple[dd.Flow, dd.Collection]:
    flow = dd.Flow()
    rows = flow.updates("prices", {"id": int, "at": int, "price": int, "note": str}, keep=True)
    flow.output("out", rows.versions("id", "at", **told))
    return flow, rows


def given_prices(*rows: tuple[Any, ...]) -> dict[str, Any]:
    names = ["id", "at", "price", "note"]
    schema = pa.schema({"id": pa.int64(), "at": pa.int64(), "price": pa.int64(), "note": pa.string()})
    return {"prices": pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)}


def moves(out: pa.Table) -> list[tuple[Any, ...]]:
    told = [(row["price"], row["valid_from"], row["valid_to"], row["_diff"]) for row in out.to_pylist()]
    return sorted(told, key=lambda row: (row[:2], row[2] is None, row[2:]))


def test_a_late_version_moves_the_ends_of_its_neighbours_and_no_others() -> None:
    flow, _ = prices()
    with flow.open() as engine:
        engine.step(given_prices(*((1, at, at, None) for at in range(0, 100, 10))))
        out = engine.step(given_prices((1, 45, 45, None)))["out"]
        assert moves(out) == [(40, 40, 45, 1), (40, 40, 50, -1), (45, 45, 50, 1)]
        # Before all, and behind all.
        out = engine.step(given_prices((1, -5, 7, None), (1, 95, 8, None)))["out"]
        assert moves(out) == [(7, -5, 0, 1), (8, 95, None, 1), (90, 90, 95, 1), (90, 90, None, -1)]


def test_a_step_reads_what_is_around_its_rows_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many versions a key has; and runs of equal neighbours as far as they go."""
    looked: list[int] = []
    around = RunningVersions._collect_rows

    def watched(self: RunningVersions, *given: Any) -> Any:
        found = around(self, *given)
        looked.append(found.references.size)
        return found

    monkeypatch.setattr(RunningVersions, "_collect_rows", watched)
    flow, _ = prices()
    with flow.open() as engine:
        n = range(30_000)
        engine.step(given_prices(*((at % 3, at, at if at < 20_000 else 7, None) for at in n)))
        for rows, most in [
            ([(1, 500, 9, "new")], 5),
            ([(1, 500, 9, "new"), (2, 500, 9, "new"), (2, 900, 8, None)], 15),
            ([(0, at, 9, "many") for at in range(3000, 3030)], 45),
            ([(1, 40_000, 9, "last")], 3400),
            ([(1, 25_000, 9, "within")], 3400),
        ]:
            looked.clear()
            engine.step(given_prices(*rows))
            assert sum(looked) <= most
        node = Node(("id", "at", "price", "note"), lambda state: state["rows"]).versions(["id"], "at")
        assert read(engine.read("out")) == node.of({"rows": read(engine.read("prices"))})


@effort(60)
@given(st.integers(0, 2**32), st.sampled_from([0.1, 0.5]), st.sampled_from(["at", "text"]))
def test_long_histories_with_runs_ties_and_deletes_are_the_twins(seed: int, deletes: float, order: str) -> None:
    """Several changes of a key in a step, at several times; most of the history is not looked at."""
    draw, told = random.Random(seed), {"key": ["k"], "order_by": order, "ignore": ["at", "text"]}
    expected, held, before = twin(told, "tombstone"), Counter[Any](), Counter[Any]()

    def change() -> tuple[Any, int]:
        at = draw.randrange(60)
        op, value = "D" if draw.random() < deletes else "U", Decimal(draw.choice([1, 1, 1, 2]))
        row = draw.choice("ab"), at, f"{LONG}{at:02}" if at % 3 else str(at), value, op
        gone = draw.choice(sorted(held, key=repr)) if held and draw.random() < 0.5 else None
        return (row, 1) if gone is None else (gone, -1)

    with flow_of(told, "tombstone", time="t").open() as engine:
        time = 0
        for size in (draw.randrange(150), *(draw.randrange(1, 5) for _ in range(6))):
            found: dict[Any, int] = {}
            for _ in range(draw.randrange(1, 4)):
                made = table(possible([change() for _ in range(size)], held), time)
                engine.push({"rows": made})
                now = expected(Counter(held))
                found |= difference(before, now, time)
                before, time = now, time + 1
            assert put_out(engine.advance_to(time)["out"]) == found
        assert read(engine.read("out")) == before


def test_equal_neighbours_are_the_earliest_and_the_next_one_shows_when_that_leaves() -> None:
    flow = dd.Flow()
    rows = flow.updates("prices", {"id": int, "at": int, "price": int, "note": str, "n": int}, diff="n")
    flow.output("out", rows.project(["id", "at", "price", "note"]).versions("id", "at", ignore="note"))
    with flow.open() as engine:

        def step(*given: tuple[int, int, str, int]) -> list[Any]:
            ids, names = [1] * len(given), ["at", "price", "note", "n"]
            columns = {name: [row[i] for row in given] for i, name in enumerate(names)}
            return moves(engine.step({"prices": {"id": ids, **columns}})["out"])

        assert step((10, 5, "a", 1), (20, 5, "b", 1), (30, 6, "c", 1)) == [(5, 10, 30, 1), (6, 30, None, 1)]
        assert step((10, 5, "a", -1)) == [(5, 10, 30, -1), (5, 20, 30, 1)]
        assert step((25, 9, "x", 1)) == [(5, 20, 25, 1), (5, 20, 30, -1), (9, 25, 30, 1)]
        # The run is cut, and grows together again.
        assert step((27, 5, "y", 1)) == [(5, 27, 30, 1), (9, 25, 27, 1), (9, 25, 30, -1)]
        assert step((25, 9, "x", -1)) == [(5, 20, 25, -1), (5, 20, 30, 1), (5, 27, 30, -1), (9, 25, 27, -1)]
        # There twice, it is one version, and stays while it is there once.
        assert step((20, 5, "b", 1)) == [] == step((20, 5, "b", -1))


def test_a_delete_ends_what_was_and_is_below_any_row_of_its_order() -> None:
    flow, _ = prices(delete="note = 'gone'")
    with flow.open() as engine:
        out = engine.step(given_prices((1, 10, 5, None), (1, 20, 0, "gone"), (1, 30, 5, None)))["out"]
        assert moves(out) == [(5, 10, 20, 1), (5, 30, None, 1)]
        assert engine.step(given_prices((1, 40, 0, "gone"), (1, 50, 0, "gone")))["out"].num_rows == 2
        out = engine.step(given_prices((1, 20, 3, "kept")))["out"]
        assert moves(out) == [(3, 20, 30, 1)]
        assert engine.step(given_prices((1, 20, 99, "gone")))["out"].num_rows == 0


@pytest.mark.parametrize("name", ["spark-scd2-open", "spark-scd2-delete"])
def test_histories_are_those_that_sparks_own_tests_expect(name: str) -> None:
    facts = json.loads((Path(__file__).parents[1] / "conformance" / "spark.json").read_text())
    (fact,) = (fact for fact in facts if fact["id"] == name)
    flow = dd.Flow()
    log = flow.updates("log", {"id": int, "name": str, "version": int, "is_delete": bool})
    flow.output("out", log.versions("id", "version", dd.tombstone("is_delete")))
    events = [row for verb, given in fact["calls"] if verb == "push" for row in given]
    with flow.open() as engine:
        names = log.schema.names
        engine.step({"log": {each: [row[i] for row in events] for i, each in enumerate(names)}})
        assert read(engine.read("out")) == {tuple(row[:-1]): 1 for row in fact["expected"]["history"]}


def test_below_zero_at_the_end_of_a_time_is_refused_and_not_within_one() -> None:
    flow, (row, other) = dd.Flow(), ((1, 10), (1, 20))
    rows = flow.updates("rows", {"id": int, "at": int, "n": int}, diff="n")
    flow.output("out", rows.project(["id", "at"]).versions("id", "at"))

    def given(*changes: Any) -> dict[str, Any]:
        return {"rows": {name: [(*row, n)[i] for row, n in changes] for i, name in enumerate(["id", "at", "n"])}}

    with flow.open() as engine:
        engine.step(given((row, -1), (row, 2)))
        with raises(NegativeMultiplicity):
            engine.step(given((row, 1), (other, -1)))
        assert read(engine.read("out")) == {(1, 10, 10, None): 1}


def test_the_key_and_the_beginning_are_proven_so_the_default_sink_takes_a_dimension(tmp_path: Path) -> None:
    """With ties, late versions, null keys and null beginnings; zeros of both signs and NaNs are one order each."""
    columns = {"id": int, "at": float, "price": int, "note": str}
    flow = dd.Flow()
    dimension = flow.updates("prices", columns).versions("id", "at", dd.tombstone("note", "D"), ["price"])
    flow.output("dimension", dimension)
    assert dimension.identified_by() == ("id", "valid_from")
    assert dimension.project(["id", "at", "valid_to"]).identified_by() == ("id", "at")
    assert dimension.project(["id", "valid_to"]).identified_by() is None
    sinks = {"dimension": dd.sinks.sqlite(tmp_path / "out.db", "prices")}
    nan, steps = float("nan"), list[Any]()
    steps.append([(1, 0.0, 5, "U"), (1, -0.0, 6, "V"), (1, 9.0, 7, "W"), (None, 1.0, 1, "U"), (1, None, 4, None)])
    steps.append([(1, 4.0, 5, "late"), (1, 9.0, None, "D"), (None, 0.5, 2, "U"), (1, 4.0, 5, "later")])
    steps.append([(1, nan, 1, "N"), (1, -nan, 2, "N"), (2, 0.0, 5, "U"), (1, 9.5, 1, "D")])
    (tmp_path / "in").mkdir()
    for number, rows in enumerate(steps):
        given_rows = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], dimension_schema())
        pq.write_table(given_rows, tmp_path / "in" / f"{number}.parquet")
        with flow.open(tmp_path / "state") as engine:
            engine.run({"prices": dd.sources.files(tmp_path / "in" / "*.parquet")}, sinks)
            held = engine.read("dimension").drop_columns(["_diff"])
        assert once(held, ("id", "valid_from"))
        with sqlite3.connect(tmp_path / "out.db") as db:
            there = db.execute("select id, price, valid_to from prices").fetchall()
        expected = [tuple(row.values()) for row in held.select(["id", "price", "valid_to"]).to_pylist()]
        assert sorted(map(str, there)) == sorted(map(str, expected))


def dimension_schema() -> pa.Schema:
    return pa.schema({"id": pa.int64(), "at": pa.float64(), "price": pa.int64(), "note": pa.string()})


def test_two_of_the_same_are_one_and_their_json_makes_them_again() -> None:
    flow, rows = prices()
    assert rows.versions("id", "at") is rows.versions(["id"], "at", None, [])
    assert rows.versions("id", "at", "note = 'a'") is rows.versions("id", "at", "note = 'a'")
    assert rows.versions("id", "at", "note = 'b'") is not rows.versions("id", "at", "note = 'a'")
    node = rows.versions("id", "at", dd.tombstone("note", "it's \\ gone"), ["price"], "start", "stop")
    flow.output("other", node)
    flow.output("third", rows.versions([], "price", "note is null"))
    again = rebuild_plan(describe_plan(flow))
    assert describe_plan(again) == describe_plan(flow)
    assert node.schema.names == ["id", "at", "price", "start", "stop"] and node.unique and node.positive
    said = format_node(describe_plan(flow), compute_node_id(node), "this plan")
    delete = "dd.tombstone('note', \"it's \\\\ gone\")"
    assert (
        said == f"prices.versions(['id'], 'at', delete={delete}, ignore=['price'], valid_from='start', valid_to='stop')"
    )
    assert "versions([], 'price', delete='note is null')" in flow.explain()
    with flow.open() as engine:
        out = engine.step(given_prices((1, 10, 5, "it's gone"), (1, 20, 5, "it's \\ gone")))["other"]
        assert [row["stop"] for row in out.to_pylist()] == [20]
    broken = describe_plan(flow)
    broken["collections"][compute_node_id(node)]["order_by"] = 7
    with raises(CorruptState):
        rebuild_plan(broken)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"key": "idd"}, "key= holds 'idd': there is no such column; did you mean 'id'"),
        ({"order_by": "when"}, "order_by= holds 'when': there is no such column"),
        ({"order_by": []}, "order_by= is empty; name the columns that order the versions of a key"),
        ({"order_by": ["at", "at"]}, "'at' is used twice, in key=, order_by= or delete="),
        (
            {"order_by": ["note", "at"]},
            "holds 'note', a string, before other columns; put a text or binary column last",
        ),
        ({"order_by": "tags"}, "order by 'tags': it is list.*, which has no order"),
        ({"order_by": "id"}, "'id' is used twice, in key=, order_by= or delete="),
        ({"ignore": ["prize"]}, "ignore= holds 'prize': there is no such column; did you mean 'price'"),
        ({"delete": dd.tombstone("op")}, "delete= holds 'op': there is no such column"),
        ({"delete": dd.tombstone("at", 3)}, "'at' is used twice"),
        (
            {"delete": dd.tombstone("note")},
            "tombstone 'note' of versions: it is a text column, but there is no value; name the",
        ),
        ({"delete": dd.tombstone("price", "D")}, "tombstone 'price' of versions: 'D' is not a value of int64"),
        ({"valid_from": "price"}, "a column 'price' already exists; choose other names with valid_from="),
        ({"valid_from": "x", "valid_to": "x"}, "a column 'x' already exists"),
        ({"valid_to": "_diff"}, "names that ddflow reserves for updates"),
        ({"valid_to": ""}, "valid_to= is ''; name one column"),
    ],
)
def test_what_is_wrong_is_named(told: dict[str, Any], words: str) -> None:
    columns = {"id": int, "at": int, "price": int, "note": str, "tags": pa.list_(pa.string())}
    rows = dd.Flow().updates("prices", columns)
    with pytest.raises(dd.errors.SpecError, match=words):
        rows.versions(**({"key": "id", "order_by": "at"} | told))


def test_a_delete_that_is_no_condition_is_refused() -> None:
    rows = dd.Flow().updates("prices", {"id": int, "at": int, "price": int})
    with raises(ExpressionError):
        rows.versions("id", "at", delete="price")


def test_what_has_no_history_is_refused() -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "at": int}, dd.Upsert("id", order_by="at"))
    with raises(dd.errors.SpecError):
        rows.versions("id", "at")
    spec = dd.Upsert(["id", "at"], order_by="seen", expiry=dd.Expiry(ttl=3, on_expire="forget"))
    with raises(dd.errors.SpecError):
        flow.upserts("more", {"id": int, "at": int, "seen": int}, spec).versions("id", "at")


def test_columns_whose_order_would_change_are_refused_and_new_ones_are_shown() -> None:
    flow = dd.Flow()
    columns = {"id": pa.int64(), "at": pa.int64(), "v": pa.int32()}
    flow.output("out", flow.upserts("rows", columns, dd.Upsert(["id", "at"])).versions("id", "at", "v < 0"))
    with flow.open() as engine:
        engine.step({"rows": pa.table({"id": [1, 1], "at": [1, 2], "v": pa.array([7, 8], pa.int32())})})
        with raises(PlanChanged):
            engine.evolve({"v": pa.string()})
        engine.evolve({"v": pa.int64(), "new": pa.string()})
        out = engine.step({"rows": pa.table({"id": [1], "at": [3], "v": [2**40], "new": ["x"]})})["out"]
        assert out.column_names == ["id", "at", "v", "new", "valid_from", "valid_to", "_time", "_diff"]
        assert read(engine.read("out")) == {
            (1, 1, 7, None, 1, 2): 1,
            (1, 2, 8, None, 2, 3): 1,
            (1, 3, 2**40, "x", 3, None): 1,
        }
        engine._check_invariants()


def test_state_that_is_added_to_a_plan_is_made_of_what_its_input_holds() -> None:
    store, (flow, rows) = MemoryStore(), prices()
    flow.outputs.clear()
    flow.output("all", rows)
    with flow.open(store.reopen()) as engine:
        engine.step(given_prices((1, 10, 5, None), (1, 30, 6, None)))
    flow.output("out", rows.versions("id", "at"))
    with flow.open(store.reopen()) as engine:
        assert read(engine.read("out")) == {(1, 10, 5, None, 10, 30): 1, (1, 30, 6, None, 30, None): 1}
        out = engine.step(given_prices((1, 20, 7, None)))["out"]
        last = out.filter(pa.array([time == engine.last for time in out["_time"].to_pylist()]))
        assert (7, 20, 30, 1) in moves(last)
