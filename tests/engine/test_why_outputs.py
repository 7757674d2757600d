"""Test `why` for rows of outputs, by example, and its refusals. ``laws/test_why`` tests the law."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from chance import long_test
from messages import raises
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.cli.log import parse_values
from ddflow.dataflow.graph import trace_columns
from ddflow.engine.lineage.rows import list_ancestors
from ddflow.errors import NotReadable, SchemaMismatch, TimeWentBack


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


def test_a_top_that_shows_no_key_is_made_of_the_rows_up_to_it() -> None:
    flow = dd.Flow()
    flow.upserts("orders", {"id": int, "customer": int, "amount": int}, dd.Upsert(key="id"))
    top = "qualify row_number() over (partition by customer order by amount) <= 2"
    no_key = f"from (select customer, amount from orders) {top}"
    flow.output("keyed", flow.sql(f"select customer, amount from orders {top}"))
    flow.output("first", flow.sql(f"select customer, amount {no_key}"))
    flow.output("amounts", flow.sql(f"select amount {no_key}"))
    with flow.open() as engine:
        engine.step({"orders": {"id": [1, 2, 3, 4, 5], "customer": [7, 7, 7, 8, 8], "amount": [5, 6, 6, 6, 9]}}, 1)

        def made_of(output: str, of: dict[str, int]) -> tuple[int, list[int]]:
            told: Any = engine.why(output, of)
            return sum(told.shown.column("_diff").to_pylist()), sorted(told.rows["orders"].column("id").to_pylist())

        assert made_of("first", {"customer": 7, "amount": 5}) == (1, [1])
        assert made_of("keyed", {"customer": 7, "amount": 6}) == (1, [2])
        count, rows = made_of("first", {"customer": 7, "amount": 6})
        assert count == 1 and {2, 3} <= set(rows)
        assert made_of("first", {"customer": 8}) == (2, [4, 5])
        count, rows = made_of("amounts", {"amount": 6})
        assert count == 2 and {2, 3, 4} <= set(rows)


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
        with raises(NotReadable):
            engine.why("by_city", {"city": "Chur"}, {"peple": log})


def test_a_log_that_can_be_read_once_is_told_to_every_key() -> None:
    parts = [pa.table({"id": [1, 2], "city": ["Bern", "Bern"]}), pa.table({"id": [3], "city": ["Bern"]})]
    flow = dd.Flow()
    flow.output("by_city", flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id")).count(["city"]))
    with flow.open() as engine:
        for part in parts:
            engine.step({"people": part})
        for log in ([part.to_reader() for part in parts], (part.to_reader() for part in parts)):
            told: Any = engine.why("by_city", {"city": "Bern"}, log)
            assert [str(each).count("applied") for each in told.stories] == [1, 1, 1]


def test_what_cannot_be_told_is_refused() -> None:
    with shop().open() as engine:
        many = {"id": list(range(300)), "customer": [7] * 300, "amount": [1] * 300}
        engine.step({"orders": many, "people": PEOPLE}, 1)
        for asked in (
            ("by_city", "Bern"),
            ("by_city", {}),
            ("by_city", {"town": "Bern"}),
            ("by_city", {"revenue": "x"}),
            ("by_citi", {"city": "Bern"}),
            ("by_city", {"city": "Bern"}, [pa.table(ORDERS)]),
            ("by_city", {"city": "Bern"}, None, 9),
            ("by_city", {"city": "Bern"}, None, 0),
            ("by_city", {"ciy": "Bern"}),
            ("people", 7, None, 1),
        ):
            with raises(NotReadable):
                engine.why(*asked)  # type: ignore[arg-type]


def test_between_two_times_the_changes_of_the_inputs_are_told() -> None:
    with shop().open(retain=9) as engine:
        engine.step({"orders": ORDERS, "people": PEOPLE}, 1)
        engine.step({"orders": {"id": [1], "customer": [8], "amount": [1]}}, 2)
        engine.step({"orders": {"id": [5, 6], "customer": [10, 7], "amount": [1, 2]}}, 3)
        engine.step({"people": {"customer": [9], "city": ["Chur"]}}, 4)
        told: Any = engine.why("by_city", {"city": "Bern"}, between=(1, 4))
        assert str(told).splitlines() == [
            "2 changes of 'by_city' with these values after 1 up to 4",
            "  + (city='Bern', revenue=8)",
            "  - (city='Bern', revenue=11)",
            "2 changes of the input 'orders'",
            "  - (id=1, customer=7, amount=5)",
            "  + (id=6, customer=7, amount=2)",
        ]
        assert (told.after, told.as_of, told.to_dict()["after"]) == (1, 4, 1)
        # The customer was there all the time: it made no difference.
        assert told.rows["people"].num_rows == 0
        # What came and went within, and an interval without changes.
        assert ids(engine.why("by_city", {"city": "Bern"}, between=(3, 4))) == ([], [])
        # That a partner came is told by the values that are asked for.
        silent: Any = engine.why("silent", {"customer": 10}, between=(2, 3))
        assert ids(silent) == ([], []) and silent.near["orders"].to_pylist() == [
            {"id": 5, "customer": 10, "amount": 1, "_diff": 1}
        ]
        first: Any = engine.why("by_city", {"city": "Bern"}, between=(0, 1))
        assert ids(first) == ([1, 2], [7]) and first.rows["orders"]["_diff"].to_pylist() == [1, 1]
        for between, error, found in (
            ((1, 9), NotReadable, r"from 1 to 9: the frontier is 5: it can be read from -5 up to, not including, 5"),
            ((-6, 1), NotReadable, r"since is -5: it can be read from -5 up to.*a larger retain="),
            ((4, 1), TimeWentBack, "the second time is before the first"),
            (4, NotReadable, r"it is not a pair of times; pass between=\(t1, t2\)"),
            ((1, 2, 3), NotReadable, "it is not a pair of times"),
            (("x", 2), SchemaMismatch, "x"),
        ):
            with pytest.raises(error, match=found):
                engine.why("by_city", {"city": "Bern"}, between=between)  # type: ignore[arg-type]
        with raises(NotReadable):
            engine.why("by_city", {"city": "Bern"}, as_of=1, between=(1, 2))
        with raises(NotReadable):
            engine.why("people", 7, between=(1, 2))


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us")])
def test_between_days_and_moments_as_they_are_written(kind: pa.DataType, tmp_path: Path) -> None:
    days: list[Any] = [date(2026, 3, n) for n in (3, 4, 5)]
    if kind != pa.date32():
        days = [datetime(each.year, each.month, each.day, 12) for each in days]
    flow = dd.Flow()
    flow.output("by_city", flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id")).count("city"))
    with flow.open(tmp_path / "state", retain=9 if kind == pa.date32() else 9 * 86_400_000_000) as engine:
        for day, rows in zip(
            days, ([(1, "Bern"), (2, "Bern")], [(1, "Chur")], [(3, "Bern"), (4, "Bern")]), strict=True
        ):
            engine.step({"people": [{"id": id, "city": city} for id, city in rows]}, day)
        told: Any = engine.why("by_city", {"city": "Bern"}, between=(days[0], days[2]))
        assert told.rows["people"].sort_by("id").select(["id", "_diff"]).to_pylist() == [
            {"id": 1, "_diff": -1},
            {"id": 3, "_diff": 1},
            {"id": 4, "_diff": 1},
        ]
        assert f"after {days[0]} up to {days[2]}" in str(told)
        texts: Any = engine.why("by_city", {"city": "Bern"}, between=(str(days[0]), str(days[2])))
        assert str(texts) == str(told)
        with raises(NotReadable):
            engine.why("by_city", {"city": "Bern"}, between=(date(2020, 1, 1), days[2]))
    with dd.Snapshot.open(tmp_path / "state") as snapshot:
        assert str(snapshot.why("by_city", {"city": "Bern"}, between=(days[0], days[2]))) == str(told)
    said = CliRunner().invoke(
        app, ["why", str(tmp_path / "state"), "by_city", "city=Bern", "--between", str(days[0]), str(days[2])]
    )
    assert said.stdout == f"{told}\n", said.output


def test_many_rows_and_inputs_that_are_not_kept_are_refused() -> None:
    flow = dd.Flow()
    rows, other = (flow.updates(name, {"n": int, "kind": int}, keep=name == "rows") for name in ("rows", "other"))
    flow.output("every", rows.filter("n >= 0"))
    flow.output("counted", other.count(["kind"]))
    with flow.open() as engine:
        engine.step({"rows": {"n": list(range(101)), "kind": [1] * 101}, "other": {"n": [1], "kind": [1]}}, 1)
        with raises(NotReadable):
            engine.why("every", {"kind": 1})
        assert engine.why("every", {"n": 7}).rows["rows"].to_pylist() == [{"n": 7, "kind": 1, "_diff": 1}]  # type: ignore[union-attr]
        with raises(NotReadable):
            engine.why("counted", {"kind": 1})


def test_values_that_are_told_are_looked_for_in_the_inputs() -> None:
    flow = shop()
    flow.output("lines", flow.inputs["orders"].join(flow.inputs["people"], on="customer"))
    with flow.open() as engine:
        graph = engine.dataflow.graph
        for output, column, orders, people in (
            ("by_city", "city", [], ["city"]),
            ("by_city", "revenue", [], []),
            ("best", "city", [], []),
            ("silent", "city", [], ["city"]),
            ("lines", "id", ["id"], []),
            ("lines", "customer", ["customer"], ["customer"]),
        ):
            nodes = list_ancestors(engine.dataflow, engine.flow.outputs[output])
            told = {
                graph.names[each]: list(names)
                for each, names in trace_columns(nodes, {column: column}).items()
                if each in graph.names
            }
            assert told == {"orders": orders, "people": people}, (output, column)


def test_events_that_came_late_are_no_rows() -> None:
    flow = dd.Flow()
    people = flow.upserts("people", {"id": int, "at": int}, dd.Upsert(key="id", order_by="at", stale="side"))
    flow.output("ids", people.project(["id"]))
    with flow.open() as engine:
        engine.step({"people": {"id": [1], "at": [1]}}, 1)
        with raises(NotReadable):
            engine.why("people.stale", {"id": 1})


@long_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("memory", [None, "16MB"])
def test_of_a_large_state_that_was_opened_again(tmp_path: Path, memory: str | None) -> None:
    every = np.arange(200_000)
    orders = pa.table({"id": every, "customer": every % 20_000, "amount": every % 7 + 1})
    people = pa.table({"customer": np.arange(20_000), "city": [f"city {i % 5_000}" for i in range(20_000)]})
    expected = [int(each) for each in every if each % 20_000 % 5_000 == 77]
    with shop().open(state := tmp_path / "state", memory=memory, retain=9) as engine:
        engine.step({"orders": orders, "people": people}, 1)
        engine.step({"orders": {"id": [expected[0]], "customer": [0], "amount": [1]}}, 2)
        assert memory is None or engine.stats()["bytes_mapped"] > 0
        assert ids_of(engine, 1) == expected and ids_of(engine, 2) == expected[1:]
    with shop().open(state, memory=memory, retain=9) as engine:
        assert ids_of(engine, 1) == expected and ids_of(engine, 2) == expected[1:]
    with dd.Snapshot.open(state) as snapshot:
        assert ids_of(snapshot, 1) == expected and ids_of(snapshot, 2) == expected[1:]


def ids_of(reading: Any, as_of: int) -> list[int]:
    told = reading.why("by_city", {"city": "city 77"}, as_of=as_of)
    assert told.shown.num_rows == 1 and ids(told)[1] == [77, 5077, 10077, 15077]
    return ids(told)[0]


def test_nulls_and_values_of_every_kind() -> None:
    day, at, uuid = date(2026, 1, 2), datetime(2026, 1, 2, 3, tzinfo=UTC), UUID(int=7)
    kinds: dict[str, Any] = {
        "day": (pa.date32(), day, "2026-01-02"),
        "at": (pa.timestamp("us", "UTC"), at, "2026-01-02 03:00:00Z"),
        "price": (pa.decimal128(9, 2), Decimal("1.50"), "1.50"),
        "open": (pa.bool_(), True, "true"),
        "ratio": (pa.float64(), float("nan"), "nan"),
        "who": (pa.uuid(), uuid, str(uuid)),
        "text": (pa.string(), "a=b", "a=b"),
    }
    flow = dd.Flow()
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _, _) in kinds.items())])
    rows = flow.upserts("rows", schema, dd.Upsert(key="id"))
    flow.output("counted", rows.group_by(*kinds).agg(n="count(*)"))
    with flow.open() as engine:
        columns = {"id": [1, 2]} | {name: [value, None] for name, (_, value, _) in kinds.items()}
        engine.step({"rows": pa.table(columns, schema=schema)}, 1)
        for name, (_, value, text) in kinds.items():
            written = parse_values([f"{name}={text}"], engine.flow.outputs["counted"].schema, "why")
            for asked, expected in (({name: value}, [1]), ({name: None}, [2]), (written, [1])):
                told: Any = engine.why("counted", asked)
                assert told.rows["rows"].column("id").to_pylist() == expected, (asked, str(told))
        assert parse_values(["day="], rows.schema, "why") == {"day": None}
        with raises(NotReadable):
            parse_values(["day=soon"], rows.schema, "why")


def test_times_are_shown_as_their_type_is() -> None:
    flow = dd.Flow()
    spec = dd.Upsert("id", time="at")
    rows = flow.upserts("rows", {"id": int, "at": pa.timestamp("s")}, spec)
    flow.output("ids", rows.project(["id"]))
    with flow.open(retain=10**9) as engine:
        told: Any = engine.why("ids", {"id": 1})
        assert str(told).splitlines()[0] == "no row of 'ids' has these values before the first step"
        engine.push({"rows": {"id": [1], "at": [datetime(1970, 1, 2)]}})
        engine.advance_to(10**6)
        told = engine.why("ids", {"id": 1}, as_of=86_400)
        assert str(told).startswith("1 row of 'ids' as of 1970-01-02 00:00:00\n") and told.as_of == 86_400
        told = engine.why("ids", {"id": 1}, as_of=5)
        assert str(told).splitlines()[0] == "no row of 'ids' has these values as of 1970-01-01 00:00:05"


def test_the_rows_behind_a_query() -> None:
    flow = dd.Flow()
    schema = {"id": int, "city": str}
    for name in ("a", "b", "c"):
        flow.upserts(name, schema, dd.Upsert(key="id"))
    flow.output("less", flow.sql("select city from a union all select city from b except select city from c"))
    flow.output("both", flow.sql("select city from a intersect select city from b"))
    flow.output("best", flow.sql("select city, count(*) n from a group by city having count(*) > 1"))
    with flow.open() as engine:
        engine.step(
            {
                "a": {"id": [1, 2, 3], "city": ["Bern", "Bern", "Chur"]},
                "b": {"id": [4, 5], "city": ["Bern", "Genf"]},
                "c": {"id": [6], "city": ["Chur"]},
            },
            1,
        )
        for output, city, expected in (
            ("less", "Bern", {"a": [1, 2], "b": [4], "c": []}),
            ("less", "Genf", {"a": [], "b": [5], "c": []}),
            ("less", "Chur", {"a": [], "b": [], "c": []}),
            ("both", "Bern", {"a": [1, 2], "b": [4]}),
            ("best", "Bern", {"a": [1, 2]}),
            ("best", "Chur", {"a": []}),
        ):
            told: Any = engine.why(output, {"city": city})
            assert {name: rows.column("id").to_pylist() for name, rows in told.rows.items()} == expected, output


def test_of_a_row_that_is_absent_the_rows_of_the_inputs_are_named() -> None:
    flow = dd.Flow()
    items = flow.upserts("items", {"id": int, "price": int, "of": int}, dd.Upsert(key="id"))
    flow.upserts("makers", {"maker": int, "land": str}, dd.Upsert(key="maker"))
    flow.output("dear", flow.sql("select id, price, land from items join makers on of = maker where price > 10"))
    flow.output("counted", items.count("of"))
    with flow.open() as engine:
        engine.step({"items": {"id": [1, 2], "price": [5, 50], "of": [7, 8]}, "makers": {"maker": [7], "land": ["CH"]}})
        told: Any = engine.why("dear", {"id": 2})
        assert told.near["items"].to_pylist() == [{"id": 2, "price": 50, "of": 8, "_diff": 1}] and not told.shown
        assert "1 row of input 'items' has these values\n  (id=2, price=50, of=8)" in str(told)
        assert "a filter or a join after 'items' removes" in str(told)
        assert "0 rows of input 'items' have these values\n  why('items', key)" in str(engine.why("dear", {"id": 3}))
        (row,) = engine.read("counted").slice(0, 1).to_pylist()
        assert engine.why("counted", row).rows["items"].num_rows == 1  # a row that was read has _diff
        engine.step({"items": {"id": list(range(10, 40)), "price": [1] * 30, "of": [9] * 30}})
        assert str(engine.why("counted", {"of": 9})).endswith("and 10 more in .rows")
