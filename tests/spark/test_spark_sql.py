"""Test SQL on Spark: queries beside Spark's answers, step by step; `spark_bridge.sql`; a stream; refusals.

Spark recomputes each query from the current rows. One flow makes all queries, so that an epoch is one job.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import mid_on_spark
from messages import raises
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from queries import TABLES
from spark_session import frame_of
from sql_witness import Held, rows_of, step

import ddflow as dd
import spark_bridge
from ddflow.errors import (
    AggregateOverflow,
    DdflowError,
    ExpressionError,
    NotArrow,
    SchemaMismatch,
    SpecError,
    WrongMode,
)

pytestmark = pytest.mark.together("spark")

QUERIES = {
    "inner": "select o.id, c.name, o.amount from o join c on o.c = c.id and o.n >= c.n",
    "outer": "select o.id i, c.id j, t.k from o full join c on o.c = c.id left join t on t.a = o.n",
    "semi and anti": "select id from o left semi join c on o.c = c.id "
    "union all select id from o left anti join t on a = n",
    "groups": "select city, count(o.id) k, sum(amount) s, avg(o.n) a, var_pop(o.n) v, stddev_samp(o.n) d, "
    "bool_and(o.n > 1) b, min(o.d) lo, max(o.n) hi from o right join c on o.c = c.id group by city having count(*) < 4",
    "all": "select count(*) k, sum(n) s from o where status = 'paid'",
    "first ones": "select id, n from o order by n desc, id limit 3",
    "first of each": "select id, status from "
    "(select *, row_number() over (partition by status order by n, id) r from o) where r <= 2",
    "windows": "select id, rank() over (partition by status order by n desc) r, lag(n, 1, 0) over w p, "
    "sum(n) over (order by id rows 2 preceding) s, count(*) over () k from o "
    "window w as (partition by c order by id) qualify r <= 3",
    "windows of groups": "select status, rank() over (order by sum(n) desc) r, sum(count(*)) over () k from o "
    "group by status",
    "not in": "select id from o where n not in (select a from t where b = 'Bern')",
    "exists": "select id from c x where exists (select 1 from o where o.c = x.id and o.n > 0)",
    "sets": "select n from o union select a from t except select n from c",
    "scalar": "select id, (select count(*) from t where t.a = o.n) k, (select sum(n) from c) m, "
    "(select name from c x where x.id = o.c) name from o",
}


def upserts(name: str) -> dd.Upsert:
    return dd.Upsert(key=TABLES[name][1], delete=dd.tombstone("gone", True))


def flow_of() -> dd.Flow:
    """The tables o and c are upserts, t is rows that are appended."""
    flow = dd.Flow()
    for name, (columns, _) in TABLES.items():
        if name == "t":
            flow.updates(name, columns)
        else:
            flow.upserts(name, {**columns, "gone": pa.bool_()}, upserts(name))
    for name, query in QUERIES.items():
        flow.output(name, flow.sql(query))
    return flow


@pytest.fixture(scope="module")
def steps(spark: SparkSession) -> list[tuple[dict[str, pa.Table], dict[str, Counter[Any]]]]:
    """Two steps: what is given, and what Spark answers to each query after it."""
    chance, held, log, out = random.Random(11), Held(), list[pa.Table](), []
    held.update({name: {} for name in TABLES})
    for least in (6, 3):
        given = step(chance, held, 9, least)
        given["t"] = given["t"].drop_columns("gone")
        log.append(given["t"])
        for name, (columns, _) in TABLES.items():
            rows = pa.Table.from_pylist(list(held[name].values()), pa.schema([*columns.items()]))
            table = pa.concat_tables(log) if name == "t" else rows
            frame_of(spark, table).createOrReplaceTempView(name)
        out.append((given, {name: answered(spark.sql(query)) for name, query in QUERIES.items()}))
    return out


def answered(frame: DataFrame) -> Counter[Any]:
    """The rows of a frame, as `rows_of` has them."""
    table: pa.Table = frame.toArrow()
    return rows_of(table.append_column("_diff", pa.array([1] * table.num_rows, pa.int64())))


def framed(spark: SparkSession, tables: Mapping[str, pa.Table]) -> dict[str, DataFrame]:
    return {name: frame_of(spark, table) for name, table in tables.items()}


@mid_on_spark
@pytest.mark.drawn(1)
@pytest.mark.parametrize("partitions", [1, 3])
def test_queries_give_what_spark_answers(
    spark: SparkSession, tmp_path: Path, steps: list[Any], partitions: int
) -> None:
    state = str(tmp_path / "state")
    for number, (given, wanted) in enumerate(steps):
        out = spark_bridge.run(flow_of(), framed(spark, given), partitions, state=state)
        with dd.Snapshot.open(state) as snapshot:
            for name in QUERIES:
                assert rows_of(snapshot.read(name)) == wanted[name], (number, name)
    before = steps[0][1]
    for name in list(QUERIES)[partitions % 2 :: 2]:  # a job for each
        told = before[name] + Counter()
        told.update(rows_of(out[name].toArrow()))
        assert Counter({row: n for row, n in told.items() if n}) == wanted[name], name


ALIKE = {
    "having without groups": "select 3 c from a having true",
    "having over nothing": "select 3 c, array_agg(x) l, count(x) n, min(x) m, bool_or(x > 1) b "
    "from a where x > 9 having true",
    "having of none": "select 3 c from a having count(*) > 9",
    "having in a subquery": "select x, (select 3 from b having true) m from a",
    "lists": "select x, (select array_agg(v) from b where b.k = a.x) l, "
    "(select array_agg(v) filter (where v > 5) from b where b.k = a.x) s, "
    "(select count(v) from b where b.k = a.x limit 1) n from a",
    "star of using": "select * from t1 join t2 using (b) join t3 using (c)",
    "star of natural": "select * from t1 natural full join t2 natural right join t3",
    "star of a nested join": "select * from t3 join (t1 join t2 using (b)) using (c)",
    "star of a semi join": "select * from t1 join t2 using (b) left semi join t3 using (c)",
    "star beside a table": "select t3.*, t1.a from t1 join t2 using (b) join t3 using (c)",
    "a constant in a subquery": "select x from a where 5 in (select v from b where b.k = a.x)",
    "a constant as a value": "select 5 in (select v from b) e, 6 in (select k from b where k is not null) f from a",
    "no aliases": "select * from (select x from a), (select v from b)",
    "exists of values": "select exists (values (1)) e from a",
    "equal values": "select count(*) n from (values (1), (2 - 1), (1.0)) v(x)",
    "a day": "select i, count(*) n from (values (interval '1 day'), (interval '24 hours')) v(i) group by i",
    "a comma": "select a.x, b.k, t3.d from a, b full join t3 on t3.c = b.k",
}
"""Queries whose columns and rows are Spark's."""
NEITHER = [
    "select x from a having x > 2",
    "select * from a having true",
    "select exists (select o.x + min(o.x) from b where v = 5) from a o",
    "select x from a where x in (select min(a.x) from b)",
    "select x from a where exists (select 1 from b having min(a.x) > 0)",
    "select x, (select sum(a.x) from b) m from a",
    "select x from a order by x limit 1 with ties",
    "select x from a limit 50 percent",
    "select x from a limit 2 by x",
    "with q as materialized (select x from a) select x from q",
    "select * from a join b using ()",
]
"""Queries that Spark refuses, too."""


@mid_on_spark
def test_clauses_mean_what_they_mean_to_spark(spark: SparkSession) -> None:
    tables = {
        "a": pa.table({"x": [1, 2, None], "y": [5, 6, 7]}),
        "b": pa.table({"v": [5, 7, 1], "k": [1, 2, None]}),
        "t1": pa.table({"a": [1, 5], "b": [2, 6]}),
        "t2": pa.table({"b": [2, 7], "c": [3, 8]}),
        "t3": pa.table({"c": [3, 9], "d": [4, 1]}),
    }
    flow = dd.Flow()
    for name, table in tables.items():
        flow.updates(name, table.schema)
        frame_of(spark, table).createOrReplaceTempView(name)
    for name, query in ALIKE.items():
        flow.output(name, flow.sql(query))
    with flow.open() as engine:
        engine.step(tables)
        for name, query in ALIKE.items():
            wanted, found = spark.sql(query).toArrow(), engine.read(name)
            assert found.column_names[:-1] == wanted.column_names, query
            rows = [[*row.values()] for row in wanted.to_pylist()]
            told = [[*row.values()][:-1] for row in found.to_pylist() for _ in range(row["_diff"])]
            assert sorted(told, key=str) == sorted(rows, key=str), query
    for query in NEITHER:
        with pytest.raises(ExpressionError):
            flow.sql(query)
        with pytest.raises(PySparkException):
            spark.sql(query).collect()


@mid_on_spark
def test_a_query_over_frames_of_a_state_goes_on_where_it_stopped(
    spark: SparkSession, tmp_path: Path, steps: list[Any]
) -> None:
    query, state, told = QUERIES["groups"], str(tmp_path / "state"), Counter[Any]()
    for given, wanted in steps:
        frames = framed(spark, {name: given[name] for name in "oc"})
        tables = {name: dd.keyed(frame, upserts(name)) for name, frame in frames.items()}
        out = spark_bridge.sql(query, tables, 2, state=state)
        assert out.columns == ["city", "k", "s", "a", "v", "d", "b", "lo", "hi", "_time", "_diff"]
        told.update(rows_of(out.toArrow()))
        assert Counter({row: n for row, n in told.items() if n}) == wanted["groups"]
    assert rows_of(dd.read(state, "out")) == wanted["groups"]


def test_a_bare_frame_is_rows_that_are_appended(spark: SparkSession, steps: list[Any]) -> None:
    query = "select b, count(*) n from t join values ('paid'), ('Bern') as w(b) using (b) group by b"
    given = steps[0][0]["t"]
    frame = frame_of(spark, given, given)
    found = rows_of(spark_bridge.sql(query, {"t": frame}).toArrow())
    counts = Counter(given["b"].to_pylist())
    assert found == {(b, f"{2 * counts[b]}"): 1 for b in ("paid", "Bern") if counts[b]}


@mid_on_spark
def test_an_aggregate_without_groups_waits_for_an_event_on_spark_too(spark: SparkSession, tmp_path: Path) -> None:
    query, state = "select count(*) n, sum(a) s from t where a > 1", str(tmp_path / "state")
    schema = pa.schema([*TABLES["t"][0].items()])
    told = []
    for rows in ([], [{"k": 1}], [{"k": 2, "a": 5}]):
        frame = frame_of(spark, pa.Table.from_pylist(rows, schema))
        told.append(rows_of(spark_bridge.sql(query, {"t": frame}, 2, state=state).toArrow()))
    assert told == [{}, {("0", None): 1}, {("0", None): -1, ("1", "5"): 1}]


@mid_on_spark
def test_a_stream_into_a_join_and_a_sum(spark: SparkSession, tmp_path: Path, steps: list[Any]) -> None:
    query, folder, state = "select name, sum(a) s from t join c on k = id group by name", tmp_path / "in", "state"
    told, c = Counter[Any](), pa.table({"id": pa.array([1, 2, 3], pa.int32()), "name": ["x", "x", "y"]})
    flow = dd.Flow()
    flow.updates("t", {"k": int, "a": int})
    flow.upserts("c", c.schema, dd.Upsert(key="id"))
    flow.output("out", flow.sql(query))
    spark_bridge.run(flow, {"c": frame_of(spark, c)}, 2, state=str(tmp_path / state))

    def take(out: Mapping[str, DataFrame], epoch: int) -> None:
        told.update(rows_of(out["out"].toArrow()))

    folder.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"k": [1, 2, 3, 4], "a": [number, 10, 100, 1000]}), folder / f"{number}.parquet")
    frame = spark.readStream.schema("k long, a long").option("maxFilesPerTrigger", 1).parquet(str(folder))
    options: dict[str, Any] = {"trigger": {"availableNow": True}, "outputs": take}
    spark_bridge.stream(flow, {"t": frame}, state=str(tmp_path / state), **options).start().awaitTermination()
    assert Counter({row: n for row, n in told.items() if n}) == {("x", "21"): 1, ("y", "200"): 1}
    with raises(WrongMode):
        spark_bridge.sql("select sum(a) s from t", {"t": frame})


def test_the_stages_of_a_query_are_said(spark: SparkSession) -> None:
    columns = {"o": "id long, c long, n long", "c": "id long, city string"}
    frames = {name: dd.keyed(spark.createDataFrame([], each), dd.Upsert(key="id")) for name, each in columns.items()}
    said = spark_bridge.explain("select city, sum(n) s from o join c on o.c = c.id group by city", frames)
    plan, _, stages = said.partition("\n\n")
    assert stages.splitlines() == [
        "stage 0: o, c, project; sums 0 by [c] of project; sums 1 by [id] of c",
        "stage 1: sums 0 by [c] of project; sums 1 by [id] of c; looks into c of stage 0; arrange, join, project; "
        "sums 2 by [city] of project",
        "stage 2: sums 2 by [city] of project; agg; out",
    ]
    assert "join(on={'c': 'id'})    rows are looked up by [c] and [id]" in plan
    with raises(SpecError):
        spark_bridge.explain(dd.Flow())


def test_what_is_refused_before_a_job_runs(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "Bern", 2)], "id long, city string, n long")
    keyed = dd.keyed(frame, dd.Upsert(key="id"))
    refused: list[tuple[type[DdflowError], str, str, Any]] = [
        (
            ExpressionError,
            "there is no table 'oo' at line 1, column 24; did you mean 'o'",
            "select count(*) n from oo",
            {"o": keyed},
        ),
        (ExpressionError, "there is no table 'o'", "select count(*) n from o", {}),
        (ExpressionError, "there is no column 'town'", "select town from o", {"o": keyed}),
        (ExpressionError, "ORDER BY without LIMIT", "select id from o order by id", {"o": keyed}),
        (SpecError, "it does not use ", "select id from o", {"o": keyed, "p": keyed}),
        (SpecError, "ident", "select id from o", {"o": dd.keyed(frame, dd.Upsert(key="ident"))}),
        (SpecError, "'out'", "select id from out", {"out": keyed}),
        (SpecError, "the frames are a DataFrame", "select id from o", frame),
        (NotArrow, "pass spark.table", "select id from o", {"o": "orders"}),
        (NotArrow, "pass a DataFrame", "select id from o", {"o": dd.keyed(7, dd.Upsert(key="id"))}),
        (SchemaMismatch, "year", "select v from o", {"o": spark.sql("select interval 1 year as v")}),
    ]
    for kind, message, query, frames in refused:
        with pytest.raises(kind, match=message):
            spark_bridge.sql(query, frames)
    with raises(SpecError):
        dd.keyed(frame, "id")  # type: ignore[arg-type]
    with raises(SpecError):
        spark_bridge.sql("select id from o", {"o": keyed}, epoch=1)


@mid_on_spark
def test_an_epoch_that_overflows_is_refused_as_on_an_engine(spark: SparkSession, tmp_path: Path) -> None:
    query, state = "select sum(n) s from t", str(tmp_path / "state")
    frame = spark.range(2).selectExpr(f"{2**62} n")
    with raises(AggregateOverflow):
        spark_bridge.sql(query, {"t": frame}, 2, state=state)
    told = spark_bridge.sql(query, {"t": frame.limit(1)}, 2, state=state)
    assert told.toArrow().to_pylist() == [{"s": 2**62, "_time": 1, "_diff": 1}]
