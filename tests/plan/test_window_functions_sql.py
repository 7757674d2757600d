"""Test window functions in queries beside DuckDB and Spark, in both modes, and their refusals by place."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import seeded
from messages import raises
from queries import TABLES, listed
from sql_witness import Held, answer, duck, flow_of, rows_of, same_as_duckdb, step

import ddflow as dd
from ddflow.errors import ExpressionError
from ddflow.plan.text.codec import describe_plan, rebuild_plan

LISTED = listed("windows")
WALL = pa.timestamp("us")


@pytest.mark.drawn(24)
@pytest.mark.parametrize("query", LISTED, ids=lambda pair: pair[0])
def test_windows_in_epoch_mode_give_what_duckdb_gives(query: tuple[str, str]) -> None:
    same_as_duckdb(*query, seeded(*query).randrange(99))


@pytest.mark.drawn(12)
@pytest.mark.parametrize("query", LISTED, ids=lambda pair: pair[0])
def test_windows_in_hold_back_mode_give_what_duckdb_gives_at_each_time(query: tuple[str, str]) -> None:
    chance, flow = seeded("held back", *query), dd.Flow()
    for name, (columns, keys) in TABLES.items():
        gone = dd.tombstone("gone", True)
        spec = dd.Upsert(key=keys, order_by="at", time="at", delete=gone)
        flow.upserts(name, {**columns, "gone": pa.bool_(), "at": pa.int64()}, spec)
    flow.output("out", flow.sql(query[0]))
    held: Held = {name: {} for name in TABLES}
    events: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
    wanted = list[Counter[Any]]()
    for time in range(5):
        for name, table in step(chance, held, least=int(not time)).items():
            events[name].append(table.append_column("at", pa.array([time] * table.num_rows, pa.int64())))
        wanted.append(answer(held, duck(query[1])))
    mixed = {name: shuffled(chance, pa.concat_tables(tables)) for name, tables in events.items()}
    with flow.open() as engine:
        engine.push({name: table.slice(0, 9) for name, table in mixed.items()})
        engine.push({name: table.slice(9) for name, table in mixed.items()})
        out = pa.concat_tables([engine.advance_to(until)["out"] for until in (1, 4, dd.CLOSED)])
    for time, rows in enumerate(wanted):
        assert rows_of(out.filter(pc.field("_time") <= time)) == rows, time


def shuffled(chance: random.Random, table: pa.Table) -> pa.Table:
    return table.take(pa.array(chance.sample(range(table.num_rows), table.num_rows)))


PARTS = ["", "partition by c", "partition by status, c", "partition by n % 2", "partition by upper(status)"]
ORDERS = ["order by id", "order by n desc, id", "order by n nulls last, id desc", "order by c, d desc nulls first, id"]
PEERS = ["order by n", "order by d desc", "order by c, n desc"]
BOUNDS = ["unbounded preceding", "2 preceding", "1 preceding", "current row", "1 following", "unbounded following"]
AGGREGATES = ["sum(n)", "count(*)", "count(c)", "avg(n)", "min(d)", "max(n + id)", "sum(n) filter (where c > 2)"]
PLACES = ["row_number()", "lag(n)", "lead(id, 2)", "lag(c, 1, id)", "ntile(2)"]


def drawn_call(chance: random.Random) -> str:
    """A call whose result does not depend on the order of rows that tie."""
    part = chance.choice(PARTS)
    kind = chance.randrange(4)
    if kind == 0:
        return f"{chance.choice(PLACES)} over ({part} {chance.choice(ORDERS)})"
    if kind == 1:
        ranks = ["rank()", "dense_rank()", "percent_rank()", "cume_dist()"]
        return f"{chance.choice([*ranks, *AGGREGATES])} over ({part} {chance.choice(PEERS)})"
    begin, end = sorted(chance.sample(range(len(BOUNDS)), 2))
    if kind == 2:
        of = chance.choice([*AGGREGATES, "first_value(n)", "last_value(c)", "nth_value(id, 2)"])
        frame = f"rows between {BOUNDS[begin]} and {BOUNDS[end]}"
        return f"{of} over ({part} {chance.choice(ORDERS)} {frame})"
    way = chance.choice(["n", "n desc", "n nulls last", "id"])
    return f"{chance.choice(AGGREGATES)} over ({part} order by {way} range between {BOUNDS[begin]} and {BOUNDS[end]})"


@pytest.mark.drawn(6)
@pytest.mark.parametrize("number", range(40))
def test_drawn_windows_give_what_duckdb_gives(number: int) -> None:
    chance = seeded("windows", number)
    calls = [drawn_call(chance) for _ in range(3)]
    query = f"select id, {', '.join(f'{call} x{i}' for i, call in enumerate(calls))} from o"
    if chance.random() < 0.3:
        query += f" qualify {drawn_call(chance)} is not null"
    same_as_duckdb(query, query, chance.randrange(99))


KEY_LAST = "(select c, status, amount, d, n, id from o) x"
NO_KEY = "(select c, status, d, n from o) x"
TIES = [
    "select n, row_number() over (order by n{, id}) r from o",
    "select status, row_number() over (order by n desc{, id}) r, row_number() over (order by c{, id}) q from o",
    "select n, lag(c) over (partition by status order by n{, id}) p, rank() over (order by n) r from o",
    f"select n, lead(n, 2) over (order by d{{, c, status, amount, n, id}}) p from {KEY_LAST}",
    f"select n, sum(n) over (order by d{{, c, status, amount, n, id}} rows 1 preceding) s from {KEY_LAST}",
    f"select n, ntile(3) over (order by n{{, c, status, d}}) t, count(*) over (order by n) k from {NO_KEY}",
    f"select n, nth_value(n, 2) over (order by d{{, c, status, n}} rows 3 preceding) v from {NO_KEY}",
    f"select d, first(n) over (partition by status order by d{{, c, n}}) f from {NO_KEY}",
    "select o.n, row_number() over (order by c.city{, o.id, c.id}) r from o join c on o.n = c.n",
    "select o.n, row_number() over (order by o.d{, c.id, o.id}) r from c left join o on o.c = c.id",
    "select city, lag(o.n) over (order by city{, o.id, c.id}) r from o right join c on o.n = c.n",
    "select city, lag(o.n) over (order by city{, o.id, c.id}) r from o full join c on o.n = c.n",
    "select j, row_number() over (order by x.c{, k, y.n, j}) r from (select c, count(*) k from o group by c) x "
    "full join (select n, count(*) + 9 j from o group by n) y on k = j",
    "select o.d, row_number() over (order by o.d{, t.k, o.id, c.id}) r from t, o, c where t.a = c.n and c.id = o.c",
    "select c.city, lead(d) over (order by status{, c.id, o.id}) r from c join o using (n) "
    "where o.id in (select k from t)",
    "select n, row_number() over (order by n{, id}) r from o "
    "where exists (select 1 from t where t.a = o.n or t.k < o.id)",
    "select max(n) m, row_number() over (order by count(*){, status, c}) r from o group by status, c",
    "select count(*) k, sum(count(*)) over (order by max(d){, upper(status), c} rows 2 preceding) r from o "
    "group by upper(status), c",
    "select n, d from o qualify row_number() over (partition by c order by n{, id}) <= 2",
    f"select n from {NO_KEY} qualify row_number() over (partition by c order by n{{, status, d}}) <= 1",
    "select n from (select n, row_number() over (partition by status order by d{, c, amount, n, id}) r "
    f"from {KEY_LAST}) y where r <= 2",
    "select o.status from o join c on o.c = c.n "
    "qualify row_number() over (partition by c.city order by o.d{, o.id, c.id}) = 1",
    "select max(d) e from o group by c, status qualify row_number() over (order by count(*){, c, status}) < 3",
    "select id, (select o.n from o where o.c = c.id qualify row_number() over (order by o.d{, o.id}) = 1) m from c",
    "select id, (select max(p) from (select o.c k, lag(n) over (partition by c order by d{, id}) p from o) x "
    "where x.k < c.id) m from c",
]
"""Queries with ties. What is in braces decides between peers, and only DuckDB is asked with it."""


@pytest.mark.drawn(24)
@pytest.mark.parametrize("query", TIES)
def test_the_columns_of_the_input_decide_between_peers(query: str) -> None:
    same_as_duckdb(re.sub(r"{[^}]*}", "", query), re.sub("[{}]", "", query), seeded("ties", query).randrange(99), 6)


def test_only_columns_that_can_decide_between_peers_are_stored() -> None:
    for query, names in {
        "select n, row_number() over (order by c) r from o": ["id", "n", "c"],
        "select n, row_number() over (order by c, id) r from o": ["n", "c", "id"],
        "select n, d, rank() over (order by c) r, sum(n) over (order by c) s from o": ["d", "n", "c"],
        "select n, status, lag(n) over (order by c, id) r from o": ["status", "n", "c", "id"],
        "select o.n, lag(o.n) over (order by city) r from o join c on o.c = c.id": ["id", "n", "city"],
        "select n, lag(n) over (order by n) r from (select n, d, status from o) x": ["n", "d", "status"],
        "select max(n) m, lag(c) over (order by max(n)) r from o group by status, c": ["status", "c", "m"],
    }.items():
        (of,) = flow_of().sql(query).inputs
        found = [name.rpartition(".")[2] for name in of.inputs[0].schema.names]
        assert found == names, query


def list_verbs(query: str, flow: dd.Flow | None = None) -> Counter[str]:
    flow = flow or flow_of()
    flow.output("out", flow.sql(query))
    return Counter(each["op"] for each in describe_plan(flow)["collections"].values())


def test_calls_of_one_partition_and_order_share_one_over() -> None:
    for query, count in {
        "select id, rank() over (partition by c order by n) a, sum(n) over (partition by c order by n) b from o": 1,
        "select id, rank() over (partition by c order by n) a, sum(n) over (partition by c) b from o": 1,
        "select id, rank() over (partition by c order by n) a, first(n) over (partition by c) b from o": 2,
        "select id, lag(n) over w a, max(n) over (w) b from o window w as (order by id)": 1,
        "select id, rank() over (partition by c, n order by d) a, max(n) over (partition by n, c order by d) from o": 1,
        "select id, rank() over (order by n) a, rank() over (order by n desc) b, count(*) over () k from o": 2,
        "select id, sum(n) over (order by id) a from o qualify sum(n) over (order by id) > 2": 1,
        "select lag(n, 1, 0) over (order by id) a from o order by lead(n) over (order by id) limit 2": 1,
    }.items():
        assert list_verbs(query)["over"] == count, query


def test_a_row_number_with_a_bound_alone_is_a_top() -> None:
    for query in (
        "select id from o qualify row_number() over (order by id) <= 2",
        "select * from (select id, row_number() over (partition by c order by id) r from o) x where r = 1 and id > 2",
    ):
        verbs = list_verbs(query)
        assert (verbs["top"], verbs["over"]) == (1, 0), query
    for query in (
        "select id from o qualify row_number() over (order by id) > 2",
        "select id, rank() over (order by n) k from o qualify row_number() over (order by n) <= 2",
        "select * from (select id, row_number() over (order by id) r, lag(n) over (order by id) from o) x where r < 3",
        "select * from (select id, row_number() over (order by id) r from o order by n limit 3) x where r < 3",
    ):
        verbs = list_verbs(query)
        assert (verbs["top"], verbs["over"]) == (int("limit" in query), 1), query


def test_a_result_may_have_the_name_of_a_column_or_of_an_option() -> None:
    flow = flow_of()
    query = "select sum(n) over (partition by c) n, lag(id) over (partition by c order by id) as self from o"
    assert flow.sql(query).schema.names == ["n", "self"]
    flow.output("out", flow.sql(query))
    assert describe_plan(rebuild_plan(describe_plan(flow))) == describe_plan(flow)
    assert flow.sql("select count(*) over () from o").schema.names == ["count(*) OVER ()"]


def test_structs_and_windows_of_time_are_partitions() -> None:
    flow, start = dd.Flow(), dt.datetime(2026, 1, 1)
    place = pa.struct({"city": pa.string(), "ward": pa.int64()})
    flow.upserts("visits", {"id": int, "at": WALL, "place": place, "n": int}, dd.Upsert(key="id"))
    text = "select id, sum(n) over (partition by window(at, '10 minutes') order by id) s, "
    flow.output("out", flow.sql(f"{text} count(*) over (partition by place) k from visits"))
    inner = "select *, window(at, '10 minutes') w from visits"
    flow.output("inner", flow.sql(f"select id, rank() over (partition by w.start order by n desc) r from ({inner}) x"))
    rows = [
        {"id": i, "at": start + dt.timedelta(minutes=4 * i), "place": {"city": "Bern", "ward": i % 2}, "n": i}
        for i in range(6)
    ]
    with flow.open() as engine:
        for some in (rows[:3], rows[3:], [rows[1] | {"at": start + dt.timedelta(minutes=20)}]):
            engine.step({"visits": pa.Table.from_pylist(some, flow.inputs["visits"].schema)})
        found = {row["id"]: (row["s"], row["k"]) for row in engine.read("out").to_pylist()}
        assert found == {0: (0, 3), 2: (2, 3), 3: (3, 3), 4: (7, 3), 1: (1, 3), 5: (6, 3)}
        ranks = {row["id"]: row["r"] for row in engine.read("inner").to_pylist()}
        assert ranks == {0: 2, 2: 1, 3: 2, 4: 1, 1: 2, 5: 1}


def test_the_word_window_is_still_a_name() -> None:
    flow = dd.Flow()
    flow.upserts("rows", {"id": int, "window": int}, dd.Upsert(key="id"))
    for query in (
        "select max(window) over (order by window) as w from rows",
        "select window w, rank() over window from rows window `window` as (order by id)",
        "with w(window) as (select id from rows) select sum(window) over (partition by window) s from w",
    ):
        assert flow.sql(query).schema, query


def test_later_columns_do_not_join_a_query_with_windows() -> None:
    flow = flow_of()
    assert not flow.sql("select *, count(*) over () k from o").grows


REFUSED = [
    "select id from o where rank() over (order by n) = 1",
    "select o.id from o join c on o.c = row_number() over (order by o.id)",
    "select count(*) k from o group by rank() over (order by n)",
    "select rank() over (order by n) r, count(*) k from o group by r",
    "select status from o group by status having rank() over (order by status) = 1",
    "select sum(rank() over (order by n)) s from o",
    "select sum(lag(n) over (order by id)) over () s from o",
    "select rank() over (order by n) r, sum(r) over () s from o",
    "select id from o qualify rank() over (order by n) in (select a from t)",
    "select rank() over (partition by c) r from o",
    "select id, row_number(id) over (order by id) r from o qualify r < 2",
    "select row_number() r from o",
    "select upper(status) over (order by id) r from o",
    "select sum(distinct n) over () s from o",
    "select sum(n) over w s from o",
    "select sum(n) over vv s from o window v as (order by id)",
    "select sum(n) over (W order by id) s from o window w as (order by id)",
    "select sum(n) over (w partition by id) s from o window w as (order by id)",
    "select sum(n) over (w rows 1 preceding) s from o window w as (order by id rows 2 preceding)",
    "select sum(n) over w s from o window w as (order by id), W as (order by n)",
    "select sum(n) over (order by id rows between 1 following and 2 preceding) s from o",
    "select sum(n) over (order by id rows between n preceding and current row) s from o",
    "select sum(n) over (order by id rows between 1 preceding and current row exclude ties) s from o",
    "select sum(n) over (order by id groups between 1 preceding and current row) s from o",
    "select id,\n  max(n) over (order by id) m,\n  sum(status) over (order by id) s from o",
    "select status, sum(n) over () s from o group by status",
    "select status, sum(count(*)) over (order by n) s from o group by status",
    "select lag(n, 1, 2, 3) over (order by id) t from o",
    "select id from o qualify row_number() over (order by id) < 1",
    "select rank() filter (where n > 1) over (order by id) r from o",
]


@pytest.mark.parametrize("query", REFUSED)
def test_what_no_window_can_do_is_refused_by_place(query: str) -> None:
    flow = flow_of()
    nodes = list(flow.nodes)
    with raises(ExpressionError):
        flow.sql(query)
    assert flow.nodes == nodes


ON_SPARK = [
    "select id, rank() over (partition by c order by n) r, dense_rank() over (order by n desc) e, "
    "sum(n) over (partition by c order by n) s, percent_rank() over (order by n) p from o",
    "select id, lag(n, 1, 0) over (order by n, id) a, lead(n) ignore nulls over (order by n desc, id) b, "
    "lag(n, 2, 9) ignore nulls over (order by id) e from o",
    "select id, first(n) over (order by d, id) f, last(n) ignore nulls over (order by d desc, id) l, "
    "nth_value(n, 2) over (partition by status order by id) m, ntile(3) over (order by n, id) t from o",
    "select id, sum(n) over (order by n range between 1 preceding and current row) s, "
    "count(*) over (order by n desc range between current row and 1 following) k, "
    "avg(n) over (order by id rows 2 preceding) a, stddev_samp(n) over (partition by c) v from o",
    "select status, sum(n) s, rank() over (order by sum(n) desc) r, sum(sum(n)) over () t from o group by status",
    "select id, max(amount) over w m, min(d) over (w) e from o window w as (partition by c order by n)",
    "select id, row_number() over (partition by c order by n, id) r from o qualify r <= 2 and count(*) over () > 2",
    "select id, sum(amount) over (partition by c order by id) s, avg(amount) over (partition by c) a from o",
    "select id, rank() over (order by n desc, id) r from o order by r limit 3",
    "select k, lag(f) over (order by f, k) p, max(f) over (order by f) m, sum(f) over (order by k) s from t",
]


@pytest.mark.spark
def test_windows_are_those_of_spark(spark: Any) -> None:
    from spark_session import frame_of  # imported here because it loads pyspark

    chance, held = seeded("spark"), {name: dict[Any, Any]() for name in TABLES}
    flow = flow_of()
    for number, query in enumerate(ON_SPARK):
        flow.output(f"q{number}", flow.sql(query))
    with flow.open() as engine:
        for _ in range(2):
            engine.step(step(chance, held, 9, 5))
        for name, (columns, _) in TABLES.items():
            rows = pa.Table.from_pylist(list(held[name].values()), pa.schema([*columns.items()]))
            frame_of(spark, rows).createOrReplaceTempView(name)
        for number, query in enumerate(ON_SPARK):
            told = spark.sql(query).toArrow()
            wanted = rows_of(told.append_column("_diff", pa.array([1] * told.num_rows, pa.int64())))
            assert rows_of(engine.read(f"q{number}")) == wanted, query
