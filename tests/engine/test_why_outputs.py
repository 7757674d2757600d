"""Why of outputs: the rows of the inputs that are named make the row again.

Two laws beside that of ``test_behind``, which is of single operators. Of plans of filters, projections, unions, distinct
rows, inner and semi joins: the rows named for a row make it, as often, and nothing that the output does not hold. Of
plans that are one chain, in which tops rank, skip and cut no row: they make that row and nothing else.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from chance import effort
from doors import EngineDoor, plain, plan
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import events, inputs, plans, row_of

import ddflow as dd
from ddflow.engine.story import Origins
from ddflow.errors import NotReadable

ADDING = {"input", "filter", "project", "concat", "consolidate", "distinct", "join", "arrange"}
CHAIN = ADDING - {"concat", "join"} | {"negate", "threshold", "count", "agg", "top"}
DRAWN = ("filter", "project", "concat", "join", "join"), ("filter", "project", "count", "agg", "top", "sets")


def verbs(nodes: Any) -> set[str]:
    return {node.verb for node in nodes}


def rows_of(table: pa.Table) -> Counter[Any]:
    return Counter({tuple(map(repr, row[:-1])): row[-1] for row in plain(table)})


@pytest.mark.parametrize("law", [ADDING, CHAIN], ids=["adding", "chain"])
@effort(150)
@given(data=st.data())
def test_the_rows_that_are_named_make_the_row_again(law: set[str], data: st.DataObject) -> None:
    input = data.draw(inputs(False, tie="last", stale="drop", null_key="drop", seq=False))
    row = {name: input["columns"][name] for name in row_of(input["columns"], input["spec"])}
    names = ["a", "b"] if law is ADDING else ["a"]
    drawn, _ = data.draw(plans(row, names, data.draw(st.integers(1, 4)), DRAWN[law is CHAIN]))
    door = EngineDoor({"inputs": dict.fromkeys(names, input), "outputs": {"out": drawn}})
    graph = door.engine.dataflow.graph
    assume(verbs(graph.nodes) <= law)
    tops = [node for node in graph.nodes if node.verb == "top"]
    assume(not any(node.offset or node.rank_name for node in tops))
    for time in range(data.draw(st.integers(1, 2))):
        door.step({name: data.draw(events(input, least=3)) for name in names}, time)
    for node in tops:
        held = rows_of(graph.read(node.inputs[0], None))
        assume(all(held[row] == n for row, n in rows_of(graph.read(node, None)).items()))
    whole = door.engine.read("out")
    for i in range(min(whole.num_rows, 4)):
        flow = dd.Flow()
        kept = {name: flow.updates(name, each.schema, keep=True) for name, each in door.inputs.items()}
        flow.output("out", plan(drawn, kept, False))
        asked = {name: whole.column(name)[i] for name in whole.schema.names if name != "_diff"}
        told = door.engine.why("out", asked)
        assert isinstance(told, Origins)
        assert rows_of(told.shown) == rows_of(whole.slice(i, 1))
        with flow.open() as fresh:
            fresh.step(dict(told.rows), 1)
            again, wanted, full = rows_of(fresh.read("out")), rows_of(told.shown), rows_of(whole)
        if law is CHAIN:
            assert again == wanted
        else:
            assert again & wanted == wanted and again <= full
    door.close()


def shop() -> dd.Flow:
    """The two largest cities of orders by revenue, of customers who order."""
    flow = dd.Flow()
    orders = flow.upserts("orders", {"id": int, "customer": int, "amount": int}, dd.Upsert(key="id"))
    people = flow.upserts("people", {"customer": int, "city": str}, dd.Upsert(key="customer"))
    paid = orders.filter("amount > 0").join(people, on="customer")
    flow.output("by_city", paid.group_by("city").agg(revenue="sum(amount)"))
    flow.output("best", flow.outputs["by_city"].top(1, by=["revenue desc"]))
    flow.output("second", flow.outputs["by_city"].top(1, by=["revenue desc"], offset=1))
    flow.output("silent", people.join(orders, on="customer", how="anti"))
    return flow


ORDERS = {"id": [1, 2, 3, 4], "customer": [7, 7, 8, 9], "amount": [5, 6, 9, -1]}
PEOPLE = {"customer": [7, 8, 9, 10], "city": ["Bern", "Chur", "Bern", "Genf"]}


def ids(told: Any) -> tuple[list[int], list[int]]:
    return told.rows["orders"].column("id").to_pylist(), told.rows["people"].column("customer").to_pylist()


def test_through_a_join_an_aggregate_and_a_top() -> None:
    with shop().open(retain=9) as engine:
        engine.step({"orders": ORDERS, "people": PEOPLE}, 1)
        engine.step({"orders": {"id": [1], "customer": [8], "amount": [1]}}, 2)
        assert ids(engine.why("by_city", {"city": "Bern"})) == ([2], [7])
        assert ids(engine.why("by_city", {"city": "Bern"}, as_of=1)) == ([1, 2], [7])
        assert ids(engine.why("best", {"city": "Chur"})) == ([1, 3], [8])
        assert ids(engine.why("best", {"revenue": 11}, as_of=1)) == ([1, 2], [7])
        assert ids(engine.why("second", {"city": "Bern"})) == ([1, 2, 3], [7, 8])
        assert ids(engine.why("silent", {"city": "Genf"})) == ([], [10])
        nothing: Any = engine.why("best", {"city": "Bern"})
        assert nothing.shown.num_rows == 0 and ids(nothing) == ([], [])
        assert str(nothing) == "no row of 'best' has these values as of 2"
        assert str(engine.why("by_city", {"city": "Bern"}, as_of=1)).splitlines() == [
            "1 row of 'by_city' as of 1",
            "  (city='Bern', revenue=11)",
            "is made of 2 rows of 'orders'",
            "  (id=1, customer=7, amount=5)",
            "  (id=2, customer=7, amount=6)",
            "and 1 row of 'people'",
            "  (customer=7, city='Bern')",
        ]


def test_a_log_tells_the_events_of_the_keys() -> None:
    log = [pa.table({"id": [1, 2], "city": ["Bern", "Chur"]}), pa.table({"id": [1], "city": ["Chur"]})]
    flow = dd.Flow()
    flow.output("by_city", flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id")).count(["city"]))
    with flow.open() as engine:
        for part in log:
            engine.step({"people": part})
        told: Any = engine.why("by_city", {"city": "Chur"}, iter(log))
        assert [str(each).count("applied") for each in told.stories] == [2, 1]
        assert str(told).endswith(str(engine.why("people", 2, log)))
        assert told.to_dict()["stories"][0] == engine.why("people", 1, {"people": log}["people"]).to_dict()
        again: Any = engine.why("by_city", {"city": "Chur"}, {"people": log})
        assert str(again) == str(told)
        with pytest.raises(NotReadable, match="a log of 'peple'.*did you mean 'people'"):
            engine.why("by_city", {"city": "Chur"}, {"peple": log})


def test_what_cannot_be_told_is_refused() -> None:
    with shop().open() as engine:
        many = {"id": list(range(300)), "customer": [7] * 300, "amount": [1] * 300}
        engine.step({"orders": many, "people": PEOPLE}, 1)
        for asked, found in (
            (("by_city", "Bern"), "an output has no key.*give values by column"),
            (("by_city", {}), "an output has no key"),
            (("by_city", {"town": "Bern"}), "there is no column 'town'"),
            (("by_city", {"revenue": "x"}), "'x' is no int64"),
            (("by_citi", {"city": "Bern"}), "no input or output of that name.*by_city"),
            (("by_city", {"city": "Bern"}, [pa.table(ORDERS)]), "give a log for each"),
            (("by_city", {"city": "Bern"}, None, 9), "as of 9"),
            (("people", 7, None, 1), "leave as_of= out"),
        ):
            with pytest.raises(NotReadable, match=found):
                engine.why(*asked)  # type: ignore[arg-type]


def test_many_rows_and_inputs_that_are_not_kept_are_refused() -> None:
    flow = dd.Flow()
    rows, other = (flow.updates(name, {"n": int, "kind": int}, keep=name == "rows") for name in ("rows", "other"))
    flow.output("every", rows.filter("n >= 0"))
    flow.output("counted", other.count(["kind"]))
    with flow.open() as engine:
        engine.step({"rows": {"n": list(range(101)), "kind": [1] * 101}, "other": {"n": [1], "kind": [1]}}, 1)
        with pytest.raises(NotReadable, match="101 of its rows.*give more of its columns"):
            engine.why("every", {"kind": 1})
        assert engine.why("every", {"n": 7}).rows["rows"].to_pylist() == [{"n": 7, "kind": 1, "_diff": 1}]  # type: ignore[union-attr]
        with pytest.raises(NotReadable, match=r"inputs \['other'\], which are not kept.*keep=True"):
            engine.why("counted", {"kind": 1})
