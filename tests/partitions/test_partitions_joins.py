"""Test joins on any number of partitions, rescaled or not: each epoch gives a single engine's output.

A join runs on the stage of its last input and looks others up on earlier stages. Plans are drawn from joins by keys,
self joins, joins of joins and joins of counts, so that all cases occur. Tasks run in this process (``parts_by_hand``);
``test_spark_joins`` runs some on Spark.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from chance import effort, mid_test
from hypothesis import event, given, note, strategies as st
from parts_by_hand import Hands
from spark_session import counted

import ddflow as dd
from ddflow.operators.base import Operator, OperatorContext, RunningOperator, StatelessRunningOperator
from ddflow.partitions.rescale import rescale
from ddflow.partitions.stages import compute_placements, cut_stages
from ddflow.plan.collection import Collection, Columns
from ddflow.storage.memory import MemoryStore

ORDERS = {"id": pa.int32(), "customer": pa.int64(), "amount": pa.int64()}
CUSTOMERS = {"of": pa.int64(), "city": pa.string()}
NOTES = {"city": pa.string(), "note": pa.string()}
IDS, CITIES = st.integers(0, 5), st.sampled_from(["Bern", "Chur", None])
ROWS: dict[str, Any] = {
    "orders": st.tuples(IDS, st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 2)),
    "customers": st.tuples(st.integers(0, 3), CITIES),
    "notes": st.tuples(CITIES, st.sampled_from(["a", "b"]), st.sampled_from([1, 1, 2, -1])),
}
SCHEMAS = {"orders": ORDERS, "customers": CUSTOMERS, "notes": NOTES | {"n": pa.int64()}}


def made_of(orders: Any, customers: Any, notes: Any) -> dict[str, Callable[[], Any]]:
    """Joins by name: where sides stand already, where one or both move, and one behind another."""
    on = {"customer": "of"}

    def joined() -> Any:
        return orders.join(customers, on=on)

    def named() -> Any:
        return customers.project({"place": "city", "whose": "of"})

    return {
        "by key": joined,
        "keys of both": lambda: orders.join(customers, on={"id": "of"}, how="full"),
        "itself": lambda: orders.join(orders.project({"other": "id", "customer": "customer"}), on="customer"),
        "itself by key": lambda: orders.join(orders.project({"other": "id", "n": "amount"}), on={"id": "other"}),
        "of a join": lambda: joined().join(named(), on={"city": "place"}),
        "of a join by key": lambda: joined().join(named(), on={"amount": "whose"}, how="left"),
        "of a count": lambda: customers.join(orders.count("customer", name="n"), on={"of": "customer"}, how="left"),
        "of a count by the key": lambda: orders.count(["id", "customer"], name="n").join(
            customers.project({"id": "of", "customer": "of", "city": "city"}), on=["id", "customer"]
        ),
        "of a sum": lambda: (
            joined().group_by("city").agg(total="sum(amount)").join(notes, on="city", condition="total > 0")
        ),
        "of a sum by some columns": lambda: orders.join(
            joined().group_by("city").agg(total="sum(amount)"), on={"amount": "total"}
        ).project(["city"]),
        "of all, without columns": lambda: (
            orders.project(["amount"]).join(joined().count("city", name="n"), on=[]).project(["city"])
        ),
        "of all": lambda: joined().count("city", name="n").join(orders.count([], name="all"), on=[]),
        "semi": lambda: orders.join(customers, on=on, how="semi", condition="amount > of"),
        "anti": lambda: customers.join(orders, on={"of": "customer"}, how="anti"),
        "full": lambda: orders.join(customers, on=on, how="full", condition="amount <> of"),
        "left of what may be negative": lambda: (
            orders.negate()
            .negate()
            .join(orders.project({"other": "id", "n": "customer"}), on={"customer": "n"}, how="left")
        ),
        "less than none": lambda: customers.join(notes, on="city").negate(),
        "upserts": lambda: joined().to_upserts("id"),
        "upserts by city": lambda: joined().to_upserts("city", on_conflict="all"),
        "greatest": lambda: customers.to_upserts("city", on_conflict="greatest"),
        "counted": lambda: joined().count("city"),
        "top": lambda: joined().top(2, ["amount desc"], ["city"], offset=1),
        "top of all": lambda: joined().project(["id", "city"]).top(2, ["city"]),
        "window functions": lambda: joined().over(
            "city", "amount desc", place="row_number()", before="lag(id)", total="sum(amount)"
        ),
        "window functions of all": lambda: orders.over((), "id", n="count(*) over (rows 1 preceding)"),
        "of a top": lambda: customers.join(
            orders.top(1, ["amount"], ["customer"]).project({"of": "customer", "best": "amount"}), on="of"
        ),
        "extremes": lambda: orders.group_by("customer").agg(lo="min(amount)", hi="max(id)"),
        "extremes beside sums": lambda: (
            joined()
            .group_by("city")
            .agg(n="count(*)", hi="max(amount)", kinds="count(distinct customer)", ids="array_agg(id order by amount)")
        ),
        "extremes of all": lambda: joined().agg(lo="min(id)", n="sum(amount)", kinds="count(distinct city)"),
        "a query": lambda: orders.flow.sql(  # type: ignore[attr-defined]
            "select o.id, (select count(*) from customers c where c.city = 'Bern') n from orders o"
        ),
        "nothing": lambda: orders.flow.sql(  # type: ignore[attr-defined]
            "select sum(amount) s, count(*) n from orders"
        ),
    }


NAMES = list(made_of(None, None, None))


def flow_of(names: list[str], time: bool, lateness: bool = True) -> dd.Flow:
    """A flow with some of them as outputs.  ``time``: in hold-back mode."""
    flow, gone = dd.Flow(), {"delete": dd.tombstone("gone", True)}
    more: dict[str, Any] = {"at": pa.int64()} if time else {}
    timed: dict[str, Any] = {"time": "at", "late": "drop"} if time else {}
    timed |= {"lateness": 1} if time and lateness else {}
    ordered = timed | ({"order_by": "at"} if time else {})
    inputs = [
        flow.upserts("orders", ORDERS | {"gone": pa.bool_()} | more, dd.Upsert("id", **ordered, **gone)),
        flow.upserts("customers", CUSTOMERS | {"gone": pa.bool_()} | more, dd.Upsert("of", **ordered, **gone)),
        flow.updates("notes", SCHEMAS["notes"] | more, diff="n", keep=True, **timed),
    ]
    built = made_of(*inputs)
    for name in names:
        flow.output(name, built[name]())
    return flow


@st.composite
def epochs(draw: st.DrawFn, time: bool) -> list[dict[str, pa.Table]]:
    """Rows of some inputs, epoch by epoch; some have none."""
    out = []
    for number in range(draw(st.integers(2, 5))):
        tables = {}
        for name in draw(st.lists(st.sampled_from(list(ROWS)), unique=True)):
            rows = draw(st.lists(ROWS[name], max_size=6))
            columns: dict[str, Any] = dict(SCHEMAS[name])
            if name != "notes":
                columns["gone"] = pa.bool_()
                rows = [(*row, draw(st.integers(0, 4)) == 0) for row in rows]
            if time:
                columns["at"] = pa.int64()
                rows = [(*row, number + draw(st.integers(-1, 2))) for row in rows]
            schema = pa.schema(columns)
            tables[name] = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema)
        out.append(tables)
    return out


def compare(hands: Hands, engine: dd.Engine, inputs: dict[str, pa.Table]) -> None:
    """One epoch of both."""
    committed, outputs = hands.epoch(inputs)
    if not hands.cut.flow.holds_back:
        steps = [engine.step(inputs, time=hands.start.time)]
    else:
        steps = [engine.push(inputs)]
        steps += [engine.advance_to(hands.start.to)] if hands.start.to > engine.frontier else []
    for name in hands.cut.flow.outputs:
        assert counted(outputs[name]) == counted(pa.concat_tables([step[name] for step in steps])), name
    assert committed.frontier == engine.frontier


def rescaled(hands: Hands, partitions: int) -> Hands:
    """The same state in another number of partitions, which fsck finds in order."""
    store = hands.store
    hands.close()
    assert rescale(store.reopen(), partitions).partitions == partitions
    report = dd.fsck(store.reopen())
    assert report.ok, str(report)
    fresh = Hands(hands.cut.flow, store.reopen(), None, hands.chance)
    fresh.budgets = hands.budgets
    return fresh


@mid_test
@effort(60)
@given(st.data(), st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True), st.booleans())
def test_any_number_of_partitions_gives_what_one_engine_gives(
    data: st.DataObject, names: list[str], time: bool
) -> None:
    flow = flow_of(names, time)
    numbers = st.sampled_from([1, 2, 3, 8])
    hands = Hands(flow, MemoryStore(), data.draw(numbers), random.Random(data.draw(st.integers(0, 99))))
    hands.budgets = [None, None, 64 << 20]
    note(str(hands.cut))
    with flow_of(names, time, lateness=False).open() as engine:
        for inputs in data.draw(epochs(time)):
            compare(hands, engine, inputs)
            event("a part was behind" if hands.behind else "no part was behind")
            if data.draw(st.integers(0, 3)) == 0:
                hands = rescaled(hands, data.draw(numbers))
        for name in names:
            assert counted(dd.read(hands.store.reopen(), name)) == counted(engine.read(name)), name
    event(f"{hands.cut.stages} stages")
    hands.close()


def test_where_an_input_stands_it_is_looked_into_and_what_moves_is_sent_once() -> None:
    flow = flow_of(["by key", "keys of both", "of a count"], False)
    stages = cut_stages(flow)
    sent = [(flow.nodes[each.of].verb, each.by, each.stage) for each in stages.exchanges if each.of < 3]
    assert sorted(sent) == [("input", ("customer",), 1), ("input", ("of",), 1)]
    looked = {stage: stages.find_lookup_collections(stage) for stage in range(stages.stages)}
    assert looked == {0: {}, 1: {0: [flow.inputs["customers"]]}, 2: {}}
    assert "looks into customers of stage 0" in str(stages)
    # What stands by the same columns on both sides does not move.
    assert [each.number for each in cut_stages(flow_of(["itself by key"], False)).exchanges] == []


@pytest.mark.parametrize(
    ("name", "columns"), [("of a sum by some columns", ["amount"]), ("of all, without columns", [])]
)
def test_a_join_of_a_later_stage_gets_only_the_columns_that_it_reads(name: str, columns: list[str]) -> None:
    flow, engine = (flow_of([name], False) for _ in range(2))
    cut = cut_stages(flow)
    sent = [each.carried.names for each in cut.exchanges if flow.nodes[each.of].verb == "arrange"]
    assert sent == [columns], str(cut)
    hands = Hands(flow, MemoryStore(), 3, random.Random(3))
    customers = pa.table({"of": [2, 7], "city": ["Bern", "Chur"], "gone": [False, False]})
    orders = pa.table({"id": [1, 2, 3], "customer": [2, 7, 7], "amount": [5, 2, 7], "gone": [False] * 3})
    with engine.open() as engine:
        compare(hands, engine, {"orders": orders, "customers": customers})
        compare(hands, engine, {"orders": orders.set_column(2, "amount", pa.array([5, 7, 2]))})
    hands.close()


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_that_came_together_are_subtracted_in_their_own_columns(partitions: int) -> None:
    # They came with those first that they met by; what was matched then did not cancel them, or had other types.
    flow = flow_of(["left of what may be negative"], False)
    hands = Hands(flow, MemoryStore(), partitions, random.Random(3))
    orders = pa.table({"id": [1, 2], "customer": [2, 7], "amount": [5, 6], "gone": [False, False]})
    with flow_of(["left of what may be negative"], False).open() as engine:
        compare(hands, engine, {"orders": orders})
        compare(hands, engine, {"orders": orders.take([1, 0, 0])})
    hands.close()


class Beside(Operator):
    """Two inputs that meet, and are not looked up."""

    verb, keeps = "beside", True

    def exchange(self) -> list[Columns | None]:
        return [("id",), ("customer",)]

    def open(self, context: OperatorContext) -> RunningOperator:
        return StatelessRunningOperator(lambda one, _: one)


def test_several_inputs_that_are_not_looked_up_meet_on_the_last_stage_of_theirs() -> None:
    flow = flow_of([], False)
    orders = flow.inputs["orders"]
    made: Collection = Beside(flow, orders.schema, [orders, orders.filter("amount > 0")], True)
    flow.output("out", made.negate())
    stages = cut_stages(flow)
    assert [(each.by, each.stage) for each in stages.exchanges] == [(("id",), 1), (("customer",), 1)]
    assert compute_placements(flow)[made].by == ("id",) and not stages.find_lookup_collections(1)


def test_a_part_that_looks_into_another_stage_sees_its_new_versions() -> None:
    flow = flow_of(["by key"], False)
    hands = Hands(flow, MemoryStore(), 1, random.Random(1))
    hands.chance.choice = lambda given: given[0]  # type: ignore[method-assign]
    customers = {"of": [7], "gone": [False]}
    hands.epoch({"orders": pa.table({"id": [1], "customer": [7], "amount": [0], "gone": [False]})})
    for city in ("Bern", "Chur", "Thun"):
        # Stage 1 has no rows in some of these, so it is not opened, and must not stay behind for it.
        hands.epoch({"customers": pa.table(customers | {"city": [city]})})
        hands.epoch({"customers": pa.table({"of": [8], "city": [city], "gone": [False]})})
        hands.epoch({})
    _, outputs = hands.epoch({"orders": pa.table({"id": [2], "customer": [7], "amount": [0], "gone": [False]})})
    assert [row["city"] for row in outputs["by key"].to_pylist()] == ["Thun"]
    hands.close()


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_constant_is_there_from_the_first_event_on_and_not_where_all_is_empty(partitions: int) -> None:
    flow = flow_of(["nothing"], False)
    hands = Hands(flow, MemoryStore(), partitions, random.Random(2))
    empty = pa.schema({**ORDERS, "gone": pa.bool_()}).empty_table()
    assert hands.epoch({"orders": empty})[1]["nothing"].num_rows == 0
    assert hands.epoch({})[1]["nothing"].num_rows == 0
    deletes = pa.table({"id": [1, 2, 3], "customer": [1, 1, 1], "amount": [1, 1, 1], "gone": [True] * 3})
    [row] = hands.epoch({"orders": deletes})[1]["nothing"].to_pylist()
    assert (row["s"], row["n"], row["_diff"]) == (None, 0, 1)
    hands = rescaled(hands, 4)
    assert hands.epoch({"orders": deletes})[1]["nothing"].num_rows == 0
    hands.close()
