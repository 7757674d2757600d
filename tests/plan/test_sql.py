"""SQL over single tables beside DuckDB; what is refused, with its place; and that equal texts give equal plans."""

from __future__ import annotations

import datetime as dt
import re

import nexmark_queries as nexmark
import pyarrow as pa
import pytest
from queries import listed
from sql_witness import flow_of, rows_of, same_as_duckdb

import ddflow as dd
from ddflow.errors import DdflowError, ExpressionError, SpecError
from ddflow.plan.codec import describe


@pytest.mark.drawn(8)
@pytest.mark.parametrize("query", listed("rowwise", "distinct", "tops"), ids=lambda pair: pair[0])
def test_queries_of_one_table_give_what_duckdb_gives(query: tuple[str, str]) -> None:
    for seed in range(4):
        same_as_duckdb(*query, seed)


def test_values_are_there_from_the_first_event_on() -> None:
    flow = flow_of()
    flow.output("out", flow.sql("select col1 + 1 as n from values (1), (1), (2)"))
    with flow.open() as engine:
        assert rows_of(engine.read("out")) == {}
        event = pa.table({"id": pa.array([7], pa.int32()), "gone": [True]})
        assert rows_of(engine.step({"c": event}, time=3)["out"]) == {("2",): 2, ("3",): 1}
        assert rows_of(engine.step({"c": event}, time=4)["out"]) == {}


def test_a_collection_is_asked_for_by_keyword_and_goes_before_an_input() -> None:
    flow = flow_of()
    big = flow.inputs["o"].filter("n > 1")
    assert flow.sql("select id from big", big=big).inputs == (big,)
    assert flow.sql("select id from o", o=big).inputs == (big,)
    with pytest.raises(SpecError, match="no collection of this flow"):
        flow.sql("select id from other", other=flow_of().inputs["o"])


def test_what_is_all_of_an_input_is_the_input() -> None:
    flow = flow_of()
    assert flow.sql("select * from o") is flow.inputs["o"]


def test_double_quotes_are_around_names_in_a_query_and_refused_for_a_column_in_an_expression() -> None:
    flow = dd.Flow()
    beds = flow.upserts("beds", {"id": int, "ward name": str}, dd.Upsert(key="id"))
    asked = 'select "ward name", count(*) as "how many" from beds where "ward name" <> \'a "b"\' group by "ward name"'
    flow.output("out", flow.sql(asked))
    with flow.open() as engine:
        engine.step([{"id": 1, "ward name": "IPS"}, {"id": 2, "ward name": "Notfall"}, {"id": 3, "ward name": 'a "b"'}])
        rows = sorted(engine.read("out").select(["ward name", "how many"]).to_pylist(), key=str)
    assert rows == [{"ward name": "IPS", "how many": 1}, {"ward name": "Notfall", "how many": 1}]
    with pytest.raises(ExpressionError, match=r"no column 'IPS'.* write 'IPS' if it is a text"):
        flow.sql('select id from beds where `ward name` = "IPS"')
    for wrong in (lambda: beds.filter("\"Ward name\" = 'IPS'"), lambda: beds.group_by("id").agg(n='max("ward name")')):
        with pytest.raises(ExpressionError, match=r"is a text.* write `ward name` in backquotes for the column"):
            wrong()
    assert beds.filter('`ward name` = "IPS"').schema == beds.schema


def test_equal_texts_give_equal_plans() -> None:
    made = []
    for _ in range(2):
        flow = flow_of()
        flow.output(
            "out", flow.sql("with p as (select id, upper(status) s from o where n > 1) select distinct s from p")
        )
        made.append(describe(flow))
    assert made[0] == made[1]


REFUSED = {
    "select id from o order by id": "ORDER BY without LIMIT at line 1, column 27",
    "select id,\n  rand() r from o": "rand differs from call to call at line 2, column 3",
    "select now() t from o": "now differs from call to call at line 1, column 8",
    "select id from o where d > current_date": "differs from call to call at line 1, column 28",
    "select rank() over (order by id) r from o": "cannot be maintained at line 1, column 8",
    "select sum(n) over (partition by c) r from o": "cannot be maintained at line 1, column 8",
    "select row_number() over (order by id) r from o": "without a bound at line 1, column 8",
    "with recursive r as (select 1 x) select * from r": "WITH RECURSIVE cannot be maintained",
    "select id from oo": "there is no table 'oo' at line 1, column 16; did you mean 'o'",
    "select x.statu from o x": "there is no column 'x.statu' at line 1, column 8; did you mean 'status'",
    "select id from o, c": "the column 'id' could be any of o.id, c.id at line 1, column 8",
    "select x.id from o x, c x": "two tables are called 'x'",
    "select id from o limit 0": "LIMIT 0 at line 1, column 24",
    "select id from o offset 2": "OFFSET without LIMIT",
    "select id, n id from o": r"several columns are called \['id'\]",
    "select id from o where sum(n) > 1": "WHERE has an aggregate",
    "select sum(sum(n)) s from o": "an aggregate within an aggregate",
    "select sum(distinct n) s from o": "is not supported at line 1, column 8",
    "select id from": "it does not parse at line 1, column 11",
    "select 1; select 2": "several queries",
    "insert into o values (1)": "INSERT is no query",
    "select id from o union select id, n from o": "UNION of 1 columns and 2",
    "select id from o where id in (select id, n from c)": "a subquery of 2 columns where 1 can be",
    "select id from o tablesample (10 percent)": "TABLESAMPLE is not supported",
    "select id from o group by rollup(id)": "is not supported at line 1",
    "select id from o where n > all (select n from c)": "is not supported at line 1",
    "select uper(status) s from o": "there is no function uper at line 1, column 8; did you mean upper",
    "select id from o group by 3": "there is no column 3 of 1 at line 1, column 27",
    "select * from o natural left outer join lateral (select 1) x": "LATERAL in FROM is not supported",
    "select distinct id from o order by n limit 1": "is not in SELECT DISTINCT",
}


@pytest.mark.parametrize("query", REFUSED)
def test_what_is_refused_is_named_with_its_place(query: str) -> None:
    flow = flow_of()
    nodes = list(flow.nodes)
    with pytest.raises(DdflowError, match=REFUSED[query]):
        flow.sql(query)
    assert flow.nodes == nodes


WINDOWS = [
    "rank() over (partition by c order by n)",
    "rank() over (order by n desc, id)",
    "dense_rank() over (partition by upper(status), c order by n desc)",
    "sum(n) over (partition by status)",
    "count(*) over ()",
    "max(n + id) over (partition by c order by n)",
]


@pytest.mark.parametrize("window", WINDOWS)
def test_what_is_written_instead_of_a_window_gives_the_same(window: str) -> None:
    with pytest.raises(ExpressionError, match="cannot be maintained") as caught:
        flow_of().sql(f"select id, {window} r from o")
    written = re.fullmatch("write (.*), with T for the table", caught.value.remedy)
    assert written is not None
    given = "with T as (select * from o where n is not null)"
    same_as_duckdb(f"{given} select T.id, {written[1]} r from T", f"{given} select id, {window} r from T", 7)


def test_windows_that_look_at_rows_by_their_places_are_computed_where_rows_are_read() -> None:
    for window in (
        "lag(n) over (order by id)",
        "sum(n) over (order by id rows 2 preceding)",
        "ntile(3) over (order by n)",
    ):
        with pytest.raises(ExpressionError, match=r"row_number\(\) <= k can; compute others over the rows"):
            flow_of().sql(f"select {window} r from o")


def test_values_of_a_flow_without_inputs_have_no_first_event() -> None:
    with pytest.raises(SpecError, match="has no inputs"):
        dd.Flow().sql("values (1)")
    with pytest.raises(ExpressionError, match="give a query as text"):
        dd.Flow().sql(1)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [0, 1, 2, 14, 21, 22])
def test_queries_of_nexmark_that_look_at_one_row(number: int) -> None:
    flow = dd.Flow()
    for name, columns in nexmark.TYPES.items():
        flow.upserts(name, columns, dd.Upsert(key="id"))
    flow.output("out", flow.sql(nexmark.QUERIES[number]))
    bid = {"id": 1, "auction": 246, "bidder": 3, "price": 2_000_000, "channel": "Apple", "extra": "accra"}
    bid |= {"url": "https://a.b/c/d/e?channel_id=7", "at": dt.datetime(2024, 1, 1, 9)}
    with flow.open() as engine:
        step = engine.step(
            {"bid": pa.Table.from_pylist([bid], schema=pa.schema([*nexmark.TYPES["bid"].items()]))}, time=1
        )
    wanted = {14: {"bid_time": "day", "c_counts": 2}, 21: {"channel_id": "0"}, 22: {"dir1": "c", "dir2": "d"}}
    (row,) = step["out"].to_pylist()
    assert row | {"auction": 246, **wanted.get(number, {})} == row


def test_inputs_of_differences_are_tables_too() -> None:
    flow = dd.Flow()
    flow.updates("log", {"page": str, "n": int}, diff="n")
    flow.output("out", flow.sql("select upper(page) as page from log where page <> 'x'"))
    with flow.open() as engine:
        step = engine.step({"page": ["a", "x"], "n": [2, 3]}, time=1)
    assert rows_of(step["out"]) == {("A",): 2}
