"""Test SQL over single tables beside DuckDB, refusals with their place, and equal plans for equal texts."""

from __future__ import annotations

import datetime as dt
import random
from contextlib import suppress

import nexmark_queries as nexmark
import pyarrow as pa
import pytest
from chance import mid_test
from messages import raises
from queries import listed
from sql_witness import flow_of, rows_of, same_as_duckdb
from sqlglot import exp

import ddflow as dd
from ddflow.errors import DdflowError, ExpressionError, SpecError
from ddflow.expressions.parse import QueryDialect, parse_query
from ddflow.plan.text.codec import describe_plan


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
    with raises(SpecError):
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
    with raises(ExpressionError):
        flow.sql('select id from beds where `ward name` = "IPS"')
    for wrong in (lambda: beds.filter("\"Ward name\" = 'IPS'"), lambda: beds.group_by("id").agg(n='max("ward name")')):
        with raises(ExpressionError):
            wrong()
    assert beds.filter('`ward name` = "IPS"').schema == beds.schema


def test_equal_texts_give_equal_plans() -> None:
    made = []
    for _ in range(2):
        flow = flow_of()
        flow.output(
            "out", flow.sql("with p as (select id, upper(status) s from o where n > 1) select distinct s from p")
        )
        made.append(describe_plan(flow))
    assert made[0] == made[1]


REFUSED = {
    "select id from o order by id": "ORDER BY without LIMIT at line 1, column 27",
    "select id,\n  rand() r from o": "rand differs from call to call at line 2, column 3",
    "select now() t from o": r"now\(\) is the clock, which is no value of a row at line 1, column 8",
    "select current_user from o": "differs from call to call at line 1, column 8",
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
    "insert into o values (1)": "INSERT is not a query",
    "select id from o union select id, n from o": "UNION of 1 and 2 columns",
    "select id from o where id in (select id, n from c)": "a subquery of 2 columns instead of 1",
    "select id from o tablesample (10 percent)": "TABLESAMPLE is not supported",
    "select id from o group by rollup(id)": "is not supported at line 1",
    "select id from o where n > all (select n from c)": "is not supported at line 1",
    "select uper(status) s from o": "there is no function uper at line 1, column 8; did you mean upper",
    "select id from o group by 3": "there is no column 3 of 1 at line 1, column 27",
    "select * from o natural left outer join lateral (select 1) x": "LATERAL in FROM is not supported",
    "select distinct id from o order by n limit 1": "is not in SELECT DISTINCT",
    "select id from o order by id limit 1 with ties": "WITH TIES is not supported at line 1, column 36",
    "select id from o limit 50 percent": "PERCENT is not supported at line 1, column 24",
    "select id from o limit 2 by id": "LIMIT BY is not supported at line 1, column 29",
    "select id from o union select n from c limit 1 with ties": "WITH TIES is not supported at line 1, column 46",
    "select id from o fetch first 10 percent rows only": "PERCENT is not supported at line 1, column 30",
    "select id from o fetch first 2 rows with ties": "WITH TIES is not supported at line 1, column 30",
    "select id from o fetch first 0 rows only": "FETCH 0 at line 1, column 30",
    "select id from o limit '1'": "LIMIT '1' at line 1, column 24",
    "select id from o order by id with fill limit 1": "WITH FILL is not supported at line 1, column 27",
    "select id from o order by all limit 1": "ORDER BY ALL is not supported",
    "with q as materialized (select id from o) select * from q": "MATERIALIZED is not supported at line 1, column 6",
    "with q as (select 1 a) search depth first by a set b select * from q": "SEARCH is not supported",
    "with q using key (a) as (select 1 a) select * from q": "KEY EXPRESSIONS is not supported",
    "with q as (select 1 a), Q as (select 2 a) select * from q": "two queries of WITH are called 'Q' at line 1",
    "select * from o join c using ()": "USING names no column",
    "select id from x.o": "a table with a database before its name is not supported at line 1, column 16",
    "select * from range(5)": r"range\(5\) in FROM is not supported at line 1, column 15",
    "select q.id from (select id + 1 id from o)": "there is no column 'q.id' at line 1, column 8",
    "select id from o having id > 2": "'o.id' is neither in GROUP BY nor in an aggregate at line 1, column 8",
    "select * from o having true": "is neither in GROUP BY nor in an aggregate",
    "select array_agg(n) respect nulls a from o": "array_agg skips nulls",
    "select * from o |> limit 1": "it does not parse",
    "select exists (select o.n + min(o.n) from c where n = 5) e from o": r"min\(o.n\) aggregates columns of the outer "
    "query at line 1, column 29",
    "select id, (select sum(o.n) from c) s from o": r"sum\(o.n\) aggregates columns of the outer query",
    "select id from o where n in (select min(o.n) from c)": r"min\(o.n\) aggregates columns of the outer query",
    "select id from o where exists (select 1 from c having max(o.n) > 1)": r"max\(o.n\) aggregates columns of",
    "select id from o where n > (select count(*) filter (where o.n > 1) from c)": "aggregates columns of the outer",
    "select c from o group by c having exists (select 1 from t where a > min(o.n))": "aggregates columns of the outer",
    "select id, (select max(t.a) from t join c x on x.id = o.c) m from o": "'o.c' is a column of an outer query, which "
    "FROM, ON and WITH cannot read at line 1, column 55",
    "select id, (with w as (select o.n q) select q from w) m from o": "'o.n' is a column of an outer query",
    "select id, (select m from (select o.n m) q) r from o": "'o.n' is a column of an outer query",
    "select id, (select max(a) from (select a from t where k = c) q) r from o": "'c' is a column of an outer query",
    "select o.id, (select max(a) from (select a from t where c) q) r from o join c on o.c = c.id": "'c' is a column of",
    "select c, count(*) k from o group by c having count(*) > (select max(a) from t where k = o.n)": "'o.n' is neither "
    "in GROUP BY nor in an aggregate at line 1, column 90",
    "select id from (select id, row_number() over (order by n) w from o group by id) x where w < 2": "'o.n' is neither",
    "values ()": "the rows of VALUES are empty",
}


@pytest.mark.parametrize("query", REFUSED)
def test_what_is_refused_is_named_with_its_place(query: str) -> None:
    flow = flow_of()
    nodes = list(flow.nodes)
    with pytest.raises(DdflowError, match=REFUSED[query]):
        flow.sql(query)
    assert flow.nodes == nodes


@pytest.mark.parametrize("query", [query for query, _ in listed("odd")])
def test_odd_clauses_have_an_answer_or_a_refusal(query: str) -> None:
    flow = flow_of()
    with suppress(DdflowError):
        flow.output("out", flow.sql(query))
        with flow.open() as engine:
            engine.step({"o": pa.table({"id": [1, 2], "gone": [False, False]})}, time=1)
            assert engine.read("out").num_rows >= 0


@mid_test
@pytest.mark.drawn(300)
def test_queries_with_parts_of_others_have_an_answer_or_a_refusal() -> None:
    chance = random.Random(7)
    sections = (
        "rowwise",
        "distinct",
        "groups",
        "joins",
        "subqueries",
        "sets",
        "tops",
        "tops of groups and joins",
        "windows",
    )
    trees = [parse_query(query) for query, _ in listed(*sections)]
    kinds = (
        exp.Window,
        exp.Query,
        exp.Table,
        exp.Join,
        exp.Condition,
        exp.Where,
        exp.Group,
        exp.Having,
        exp.Order,
        exp.Limit,
    )
    parts = {kind: [node for tree in trees for node in tree.walk() if isinstance(node, kind)] for kind in kinds}
    for _ in range(300):
        tree = chance.choice(trees).copy()
        for _ in range(2):
            node = chance.choice(list(tree.walk()))
            kind = next((each for each in kinds if isinstance(node, each)), None)
            if kind is not None and node is not tree:
                node.replace(chance.choice(parts[kind]).copy())
        flow = flow_of()
        with suppress(DdflowError):
            flow.output("out", flow.sql(tree.sql(dialect=QueryDialect, normalize_functions=False)))


def test_star_has_the_keys_of_the_last_join_first_as_in_the_standard() -> None:
    flow = dd.Flow()
    for name, columns in {"t1": "ab", "t2": "bc", "t3": "cd", "t4": "cb"}.items():
        flow.updates(name, dict.fromkeys(columns, int))
    for query, wanted in {
        "select * from t1 join t2 using (b) join t3 using (c)": "cbad",
        "select * from t1 natural join t2 natural join t3": "cbad",
        "select * from t1 right join t2 using (b) right join t3 using (c)": "cbad",
        "select * from t1 full join t2 using (b) full join t3 using (c)": "cbad",
        "select * from t1 natural full join t2 natural right join t3": "cbad",
        "select * from t3 join (t1 join t2 using (b)) using (c)": "cdba",
        "select * from t1 join t2 using (b) join t4 using (c, b)": "cba",
        "select * from t1 natural join t2 natural join t4": "bca",
        "select * from t1 join t2 using (b) left semi join t3 using (c)": "cba",
        "select * from t1 join t2 using (b) left anti join t3 using (c)": "cba",
        "select * from (select * from t1 join t2 using (b)) q join t3 using (c)": "cbad",
    }.items():
        assert "".join(flow.sql(query).schema.names) == wanted, query
    assert flow.sql("select t3.*, t1.a from t1 join t2 using (b) join t3 using (c)").schema.names == ["c", "d", "a"]


def test_a_list_of_nothing_is_empty_also_when_the_last_row_leaves() -> None:
    queries = {
        "all": "select array_agg(n) l from o",
        "some": "select array_agg(n) filter (where n > 5) l, count(*) k, sum(n) s, bool_and(n > 1) b, min(n) m from o",
        "of each": "select id, (select array_agg(n) from o where o.c = c.id) l from c",
        "counted": "select coalesce(array_agg(n), array()) l, count(n) k from o where n > 5",
    }
    flow = flow_of()
    for name, query in queries.items():
        flow.output(name, flow.sql(query))
    row, c = {"id": [1], "c": pa.array([4], pa.int32()), "n": [3]}, {"id": pa.array([4], pa.int32()), "gone": [False]}
    empty = {"all": {"l": []}, "some": {"l": [], "k": 0, "s": None, "b": None, "m": None}}
    empty |= {"of each": {"id": 4, "l": []}, "counted": {"l": [], "k": 0}}
    there = {"all": {"l": [3]}, "some": {"l": [], "k": 1, "s": 3, "b": True, "m": 3}, "of each": {"id": 4, "l": [3]}}
    with flow.open() as engine:
        engine.step({"c": pa.table(c)}, time=1)
        for time, (gone, wanted) in enumerate([(True, empty), (False, empty | there), (True, empty)], 2):
            engine.step({"o": pa.table(row | {"gone": [gone]})}, time=time)
            assert {name: engine.read(name).drop_columns("_diff").to_pylist() for name in queries} == {
                name: [row] for name, row in wanted.items()
            }


def test_an_interval_of_24_hours_is_a_day() -> None:
    interval, day = pa.month_day_nano_interval(), 86_400_000_000_000
    flow = dd.Flow()
    flow.upserts("a", {"id": int, "i": interval}, dd.Upsert(key="id"))
    queries = {
        "distinct": "select distinct i from a",
        "groups": "select i, count(*) n from a group by i",
        "counted": "select count(distinct i) n from a",
        "sets": "select i from a where id = 1 intersect select i from a where id = 2",
    }
    for name, query in queries.items():
        flow.output(name, flow.sql(query))
    given = pa.array([(0, 1, 0), (0, 0, day), (0, 2, -day), (1, 0, -3), (1, -1, day - 3), None], interval)
    with flow.open() as engine:
        for rows in (given[:4], given[4:]):  # whole tables, which are not copied otherwise
            engine.step({"a": pa.table({"id": range(len(rows)), "i": rows})})
        engine.step({"a": pa.table({"id": range(6), "i": given})})
        assert engine.read("a").sort_by("id")["i"].to_pylist() == [(0, 1, 0)] * 3 + [(1, 0, -3)] * 2 + [None]
        assert engine.step({"a": pa.table({"id": [0], "i": given[1:2]})})["groups"].num_rows == 0
        found = {name: rows_of(engine.read(name)) for name in queries}
    one, other = pa.MonthDayNano([0, 1, 0]), pa.MonthDayNano([1, 0, -3])
    assert found == {
        "distinct": {(one,): 1, (other,): 1, (None,): 1},
        "groups": {(one, "3"): 1, (other, "2"): 1, (None, "1"): 1},
        "counted": {("2",): 1},
        "sets": {(one,): 1},
    }


def test_a_comma_binds_as_a_join_does() -> None:
    flow = flow_of()
    flow.output("out", flow.sql("select o.id, c.id cid, t.k from o, c full join t on t.k = c.id"))
    with flow.open() as engine:
        engine.step({"t": pa.table({"k": [7], "gone": [False]})})
        assert rows_of(engine.read("out")) == {(None, None, "7"): 1}  # o is in the full join, and may be null


def test_values_of_a_flow_without_inputs_have_no_first_event() -> None:
    with raises(SpecError):
        dd.Flow().sql("values (1)")
    with raises(ExpressionError):
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
