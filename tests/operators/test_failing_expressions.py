"""Test expressions that fail for absent rows, with fixed examples; `test_expression_errors` draws random examples."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tight
from messages import raises
from parts_by_hand import Hands

import ddflow as dd
from ddflow.dataflow.step import StepComputation
from ddflow.errors import ExpressionError, NotSingle
from ddflow.storage.memory import MemoryStore

Step = dict[str, dict[str, list[Any]]]
WRONG: Step = {"b": {"id": [1], "k": [2], "v": [0], "t": ["x"]}}
"""A row without a partner for which expressions fail."""
RIGHT: Step = {"g": {"id": [1], "k": [2]}, "b": {"id": [1], "k": [2], "v": [5], "t": ["5"]}}
"""Its partner, and the row corrected."""


def flow_of(query: str | None = None) -> dd.Flow:
    flow = dd.Flow()
    flow.upserts("g", {"id": int, "k": int}, dd.Upsert(key="id"))
    flow.upserts("b", {"id": int, "k": int, "v": int, "t": str}, dd.Upsert(key="id"))
    if query is not None:
        flow.output("out", flow.sql(query))
    return flow


def rows_of(engine: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in engine.read("out").to_pylist()), key=repr)


QUERIES: dict[str, list[tuple[Any, ...]]] = {
    "select g.k, 10 / b.v r from g join b on g.k = b.k": [(2, 2.0, 1)],
    "select g.k, 10 / coalesce(b.v, 0) r from g left join b on g.k = b.k": [(2, 2.0, 1)],
    "select g.id a, b.id c, 10 / coalesce(b.v, 0) r from g full join b on g.k = b.k": [(1, 1, 2.0, 1)],
    "select g.k, case when b.v is null then 1 / 0 else 10 / b.v end r from g left join b on g.k = b.k": [(2, 2.0, 1)],
    "select g.k, cast(b.t as int) r from g join b on g.k = b.k": [(2, 5, 1)],
    "select g.k, sum(10 / b.v) r from g join b on g.k = b.k group by g.k": [(2, 2.0, 1)],
    "select g.k, sum(b.v) filter (where 10 / b.v > 1) r from g join b on g.k = b.k group by g.k": [(2, 5, 1)],
    "select g.k, max(10 / b.v) r from g join b on g.k = b.k group by g.k": [(2, 2.0, 1)],
    "select 10 / b.v r, count(*) n from g join b on g.k = b.k group by 10 / b.v": [(2.0, 1, 1)],
    "select g.k from g join b on g.k = b.k order by 10 / b.v limit 1": [(2, 1)],
    "select g.id from g join b on g.k = b.k and 10 / b.v > g.id": [(1, 1)],
    "select g.id from g where exists (select 1 from b where b.k = g.k and 10 / b.v > g.id)": [(1, 1)],
    "select g.id from g where not exists (select 1 from b where b.k = g.k and 10 / b.v > 3 * g.id)": [(1, 1)],
}


@pytest.mark.parametrize("query", QUERIES)
def test_an_expression_behind_a_join_counts_for_pairs_that_are_there(query: str) -> None:
    with flow_of(query).open() as engine:
        engine.step(WRONG) if "full" not in query else None
        engine.step(RIGHT)
        assert rows_of(engine) == QUERIES[query]
        with raises(ExpressionError):
            engine.step(WRONG)
        assert rows_of(engine) == QUERIES[query]
        engine.step({"b": {"id": [1], "k": [2], "v": [2], "t": ["2"]}})
        assert rows_of(engine) != QUERIES[query] or "limit" in query or "exists" in query or "on g.k = b.k and" in query


ABOVE = [
    "select g.id from g join b on b.k = g.k where 10 / b.v > 1",
    "select g.id from g, b where 10 / b.v > 1 and b.k = g.k",
    "select g.id from g join b on b.k = g.k and 10 / b.v > 1",
    "select g.id from g left join b on b.k = g.k and 10 / b.v > 1",
    "select g.id from b right join g on b.k = g.k and 10 / b.v > 1",
    "select g.id from g join b on b.k = g.k and 10 div b.v = 2 * g.id",
    "select g.id from g join b on b.k = g.k join g h on h.id = g.id where 10 / b.v > 1",
    "select g.id from g join (select k, v w from b) b on b.k = g.k where 10 / b.w > 1",
    "select g.id from g where exists (select 1 from b where b.k = g.k and 10 / b.v > 1)",
    "select b.id from b where b.k in (select k from g) and 10 / b.v > 1",
    "select b.id from b where exists (select 1 from g where g.k = b.k) and 10 / b.v > 1",
    "select g.id from g left join b on b.k = g.k where b.v is null or (b.v <> 0 and 10 / b.v > 1)",
]


@pytest.mark.parametrize("query", ABOVE)
def test_a_condition_that_can_fail_stays_above_the_join(query: str) -> None:
    with flow_of(query).open() as engine:
        engine.step({"g": {"id": [1], "k": [2]}, "b": {"id": [1, 7], "k": [2, 7], "v": [5, 0], "t": ["5", "x"]}})
        assert rows_of(engine) == [(1, 1)]
        engine.step({"b": {"id": [7], "k": [8], "v": [0], "t": ["y"]}})
        if "<> 0" not in query:
            with raises(ExpressionError):
                engine.step({"g": {"id": [2], "k": [8]}})
        assert rows_of(engine) == [(1, 1)]


def test_an_equality_that_can_fail_is_the_key_of_a_join_that_has_no_other() -> None:
    flow = flow_of("select g.id from g join b on cast(b.t as int) = g.k")
    joins = [node for node in flow.nodes if node.verb == "join"]
    assert [node.exchange()[0] for node in joins] == [("k",)]
    with flow.open() as engine:
        engine.step({"g": {"id": [1], "k": [5]}, "b": {"id": [1], "k": [2], "v": [5], "t": ["5"]}})
        assert rows_of(engine) == [(1, 1)]


def test_the_share_of_a_total_is_computed_in_the_first_step() -> None:
    flow = dd.Flow()
    flow.updates("b", {"k": int, "v": int})
    flow.output("out", flow.sql("select k, count(*) / (select count(*) from b) share from b group by k"))
    with flow.open() as engine:
        engine.step({"b": {"k": [1], "v": [1]}})
        assert rows_of(engine) == [(1, 1.0, 1)]
        engine.step({"b": {"k": [2, 2, 2], "v": [1, 1, 1]}})
        assert rows_of(engine) == [(1, 0.25, 1), (2, 0.75, 1)]


def test_the_query_102_of_nexmark_takes_ordinary_inserts() -> None:
    flow = dd.Flow()
    flow.upserts("auction", {"id": int, "item": str}, dd.Upsert(key="id"))
    flow.updates("bid", {"auction": int, "price": int})
    query = """select a.id, a.item, count(b.auction) bids from auction a join bid b on a.id = b.auction
        group by a.id, a.item having count(b.auction) >= (select count(*) / count(distinct auction) from bid)"""
    flow.output("out", flow.sql(query))
    with flow.open() as engine:
        engine.step({"auction": {"id": [1, 2], "item": ["a", "b"]}})
        engine.step({"bid": {"auction": [1, 1, 2], "price": [1, 2, 3]}})
        assert rows_of(engine) == [(1, "a", 2, 1)]


@pytest.mark.parametrize("function", [lambda rows: pc.divide_checked(10, rows["v"]), pc.scalar(10) / pc.field("v")])
def test_functions_count_like_sql(function: Any) -> None:
    flow = flow_of()
    g, b = flow.inputs["g"], flow.inputs["b"]
    flow.output("out", g.join(b.project({"k": "k", "v": "v"}), on="k").project({"r": function}))
    with flow.open() as engine:
        engine.step(WRONG)
        engine.step(RIGHT)
        assert rows_of(engine) == [(2, 1)]


def test_versions_delete_by_rows_that_are_there() -> None:
    flow = flow_of()
    pairs = (
        flow.inputs["g"]
        .project({"key": "k"})
        .join(flow.inputs["b"].project({"k": "k", "v": "v", "at": "id"}), on={"key": "k"})
    )
    flow.output("out", pairs.versions("key", "at", delete="10 / v > 9"))
    with flow.open() as engine:
        engine.step(WRONG)
        engine.step(RIGHT)
        assert [row["v"] for row in engine.read("out").to_pylist()] == [5]
        with raises(ExpressionError):
            engine.step(WRONG)


def test_a_column_that_nobody_reads_is_not_computed_by_a_read_either() -> None:
    flow = flow_of()
    flow.output("out", flow.inputs["b"].project({"id": "id", "r": "10 / v"}).project(["id"]))
    with flow.open() as engine:
        engine.step(WRONG)
        assert rows_of(engine) == [(1, 1)]
        assert engine.why("out", {"id": 1}).rows["b"].num_rows == 1


PADS = "select 10 / coalesce(b.v, 0) r from g left join b on g.k = b.k"


@pytest.mark.parametrize("partitions", [None, 1, 3])
def test_a_new_output_of_a_state_is_made_of_rows_that_are_there(partitions: int | None, tmp_path: Path) -> None:
    store, read = MemoryStore(), pa.table({})
    for flow in (flow_of(), flow_of(PADS)):
        flow.output("first", flow.sql("select g.id, b.id c from g join b on g.k = b.k"))
        if partitions is None:
            with flow.open(str(tmp_path / "state")) as engine:
                engine.step(RIGHT)
                read = engine.read("out" if "out" in flow.outputs else "first")
        else:
            hands = Hands(flow, store.reopen(), partitions, random.Random(7))
            hands.epoch({name: pa.table(rows) for name, rows in RIGHT.items()})
            hands.close()
            read = dd.read(store.reopen(), "out" if "out" in flow.outputs else "first")
    assert read.to_pylist() == [{"r": 2.0, "_diff": 1}]


def test_pads_of_a_step_in_pieces_cancel(tmp_path: Path) -> None:
    n, seen = 60, list[str]()
    with (
        pytest.MonkeyPatch.context() as patch,
        tight.tiny(),
        flow_of(PADS).open(memory=tight.MEMORY, spill=tmp_path) as engine,
    ):
        catch_up = StepComputation._compute_deferred_operators
        patch.setattr(
            StepComputation, "_compute_deferred_operators", lambda own: (seen.append("waited"), catch_up(own))
        )
        numbers = list(range(n))
        for value in (1, 0, 2):
            tight.tighten(engine, 0, 2)
            b = {"id": numbers, "k": numbers, "v": [1] * (n - 1) + [value], "t": ["x"] * n}
            step = {"g": {"id": numbers, "k": numbers}, "b": b}
            if value:
                engine.step(step)
            else:
                with raises(ExpressionError):
                    engine.step(step)
        assert seen and rows_of(engine) == [(10.0, n - 1), (5.0, 1)]


def hold_back() -> dd.Flow:
    flow = dd.Flow()
    a = flow.upserts("a", {"id": int, "k": int, "t": int}, dd.Upsert(key="id", time="t"))
    b = flow.upserts("b", {"k": int, "w": int, "t": int}, dd.Upsert(key="k", time="t"))
    flow.output("out", a.project(["id", "k"]).join(b, on="k").project({"id": "id", "r": "10 div w"}))
    return flow


def test_held_back_the_error_names_the_time_up_to_which_times_can_be_closed() -> None:
    with hold_back().open() as engine:
        pairs = {"k": [1, 1, 1, 1], "w": [5, 0, 2, 0], "t": [1, 3, 4, 7]}
        engine.push({"a": {"id": [1], "k": [1], "t": [1]}, "b": pairs})
        for frontier in (4, 9):
            with raises(ExpressionError):
                engine.advance_to(frontier)
        engine.advance_to(3)
        assert rows_of(engine) == [(1, 2, 1)]


def test_held_back_a_row_counts_at_the_end_of_each_time() -> None:
    with hold_back().open() as engine:
        engine.push({"b": {"k": [1, 1], "w": [0, 5], "t": [1, 2]}, "a": {"id": [1], "k": [1], "t": [2]}})
        engine.advance_to(3)
        assert rows_of(engine) == [(1, 2, 1)]


def test_a_refused_step_leaves_a_durable_state_as_it_was(tmp_path: Path) -> None:
    query, where = next(iter(QUERIES)), str(tmp_path / "state")
    with flow_of(query).open(where) as engine:
        engine.step(RIGHT)
        with raises(ExpressionError):
            engine.step(WRONG)
    with flow_of(query).open(where) as engine:
        assert engine.epoch == 1 and rows_of(engine) == QUERIES[query]
        engine.step({"g": {"id": [1], "k": [3]}, "b": {"id": [1], "k": [2], "v": [0], "t": [None]}})
        assert rows_of(engine) == []
    assert dd.fsck(where).ok


SINGLE = "select a.id, (select b.v from b where b.z = a.z) m from a"


@pytest.mark.parametrize("durable", [False, True])
def test_a_scalar_subquery_of_two_rows_counts_if_a_row_asks(durable: bool, tmp_path: Path) -> None:
    flow = dd.Flow()
    flow.upserts("a", {"id": int, "z": int}, dd.Upsert(key="id"))
    flow.upserts("b", {"id": int, "z": int, "v": int, "gone": bool}, dd.Upsert(key="id", delete=dd.tombstone("gone")))
    flow.output("out", flow.sql(SINGLE))
    with flow.open(str(tmp_path / "state")) if durable else flow.open() as engine:
        engine.step({"a": {"id": [1], "z": [5]}, "b": {"id": [1, 2], "z": [7, 7], "v": [3, 4], "gone": [False, False]}})
        assert rows_of(engine) == [(1, None, 1)]
        with raises(NotSingle):
            engine.step({"a": {"id": [2], "z": [7]}})
        assert rows_of(engine) == [(1, None, 1)]
        # A row of the subquery leaves, and one asks.
        engine.step({"a": {"id": [2], "z": [7]}, "b": {"id": [1], "z": [7], "v": [3], "gone": [True]}})
        assert rows_of(engine) == [(1, None, 1), (2, 4, 1)]
        # The row that asks leaves, and a second row of the subquery comes.
        engine.step({"a": {"id": [2], "z": [5]}, "b": {"id": [3], "z": [7], "v": [3], "gone": [False]}})
        assert rows_of(engine) == [(1, None, 1), (2, None, 1)]


def test_an_uncorrelated_subquery_of_two_rows_counts_if_there_is_a_row() -> None:
    flow = dd.Flow()
    flow.upserts("a", {"id": int, "z": int}, dd.Upsert(key="id"))
    flow.upserts("b", {"id": int, "v": int}, dd.Upsert(key="id"))
    flow.output("out", flow.sql("select a.id from a where a.z = (select b.v from b)"))
    with flow.open() as engine:
        engine.step({"b": {"id": [1, 2], "v": [3, 4]}})
        with raises(NotSingle):
            engine.step({"a": {"id": [1], "z": [3]}})


def test_an_error_of_a_row_that_is_missing_below_is_the_one_that_is_raised() -> None:
    # The join lacks the pair that failed, so less than nothing would be turned into upserts.
    flow = flow_of()
    pairs = flow.inputs["g"].join(flow.inputs["b"].project({"k": "k", "v": "v"}), on="k")
    flow.output("out", pairs.project({"id": "id", "r": "10 / v"}).to_upserts("id"))
    with flow.open() as engine:
        engine.step(RIGHT)
        with raises(ExpressionError):
            engine.step(WRONG)


def test_a_row_that_is_there_less_than_never_counts() -> None:
    flow = dd.Flow()
    rows = flow.updates("n", {"v": pa.int64(), "n": pa.int64()}, diff="n")
    flow.output("out", rows.project({"r": "10 / v"}))
    with flow.open() as engine:
        engine.step({"n": {"v": [0, 0], "n": [1, -1]}})
        with raises(ExpressionError):
            engine.step({"n": {"v": [0], "n": [-1]}})


def test_a_derived_column_counts_for_rows_that_are_there() -> None:
    flow = dd.Flow()
    spec = dd.Upsert(
        key="id", merge=dd.Merge({"n": dd.sum()}), derive={"r": "10 / coalesce(n, 0)"}, delete=dd.tombstone("gone")
    )
    flow.output("out", flow.upserts("m", {"id": int, "n": int, "r": float, "gone": bool}, spec).project(["id", "r"]))
    with flow.open() as engine:
        engine.step({"m": {"id": [1, 2], "n": [5, 2], "gone": [False, False]}})
        engine.step({"m": {"id": [1, 2, 2], "n": [0, -2, 1], "gone": [True, False, False]}})
        assert rows_of(engine) == [(2, 10.0, 1)]
        with raises(ExpressionError):
            engine.step({"m": {"id": [2], "n": [-1], "gone": [False]}})


def test_a_condition_on_events_is_not_applied_to_the_filler_of_deletes() -> None:
    flow = dd.Flow()
    spec = dd.Upsert(key="id", delete=dd.tombstone("gone"), where="10 / v > 1")
    flow.output("out", flow.upserts("m", {"id": int, "v": int, "gone": bool}, spec).project(["id", "v"]))
    with flow.open() as engine:
        engine.step({"m": {"id": [1, 2, 3], "v": [5, 2, 20], "gone": [False, False, False]}})
        engine.step({"m": {"id": [1, 4], "v": [0, 3], "gone": [True, False]}})
        assert rows_of(engine) == [(2, 2, 1), (4, 3, 1)]
        with raises(ExpressionError):
            engine.step({"m": {"id": [1], "v": [0], "gone": [False]}})
