"""Test messages on Spark: the tasks that read them decode them, and partitions get an engine's rows."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import long_on_spark, mid_on_spark
from messages import raises
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_session import frame_of

import ddflow as dd
import spark_bridge
from ddflow.connectors.formats.base import decode_messages
from spark_bridge.decoding import DecodeTask

pytestmark = pytest.mark.together("spark")

COLUMNS = {"id": pa.int64(), "v": pa.string(), "d": pa.decimal128(10, 2)}


def flow_of(**options: Any) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("t", COLUMNS, dd.Upsert(key="id"), format=dd.formats.debezium(**options))
    flow.output("t", rows)
    flow.output("by_v", rows.count("v"))
    return flow


def messages(begin: int, end: int) -> pa.Table:
    """Messages of two partitions of a topic: upserts, deletes with their tombstones, some that cannot be read."""
    values, keys = list[str | None](), list[str]()
    for n in range(begin, end):
        key, row = {"id": n % 17}, {"id": n % 17, "v": f"v{n % 5}", "d": "ASY="}
        gone = n % 7 == 3
        values.append(json.dumps({"op": "d" if gone else "u", "after": None if gone else row, "source": {"lsn": n}}))
        values += [None] if gone else ["{"] if n % 11 == 5 else []
        keys += [json.dumps(key)] * (len(values) - len(keys))
    n = len(values)
    of = [int(json.loads(key)["id"]) % 2 for key in keys]
    columns = {"value": pa.array([None if v is None else v.encode() for v in values], pa.binary()), "key": keys}
    return pa.table({**columns, "topic": ["shop"] * n, "partition": pa.array(of, pa.int32()), "offset": range(n)})


@contextmanager
def said() -> Iterator[list[str]]:
    """What ddflow warns of within."""
    texts = list[str]()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        yield texts
        texts += [str(each.message) for each in told if each.category is UserWarning]


def counted(table: pa.Table) -> Counter[Any]:
    names = [name for name in table.column_names if name != "_time"]
    return Counter(tuple(row) for row in zip(*(table[name].to_pylist() for name in names), strict=True))


@long_on_spark
def test_into_a_state_as_an_engine(spark: SparkSession, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with flow_of(on_bad="drop").open() as engine:
        for number, begin in enumerate((0, 40), 1):
            came = messages(begin, begin + 40)
            frame = frame_of(spark, came.slice(0, 25), came.slice(25))
            ran = spark_bridge.run(flow_of(on_bad="drop"), {"t": frame}, state=state, partitions=3, epoch=number)
            step = engine.step({"t": came})
            for name in ("t", "by_v", "t.bad"):
                assert counted(ran[name].toArrow()) == counted(step[name]), name
            again = spark_bridge.run(flow_of(on_bad="drop"), {"t": frame}, state=state, partitions=3, epoch=number)
            assert counted(again["t.bad"].toArrow()) == counted(step["t.bad"])


def test_lazily_as_an_engine(spark: SparkSession) -> None:
    came = messages(0, 60)
    frames = spark_bridge.run(flow_of(on_bad="drop"), {"t": frame_of(spark, came)})
    with flow_of(on_bad="drop").open() as engine:
        step = engine.step({"t": came}, time=0)
        for name in ("t", "by_v"):
            assert counted(frames[name].toArrow()) == counted(step[name]), name


def test_what_cannot_be_read_stops_the_run(spark: SparkSession, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with raises(dd.errors.BadMessage):
        spark_bridge.run(flow_of(), {"t": frame_of(spark, messages(0, 40))}, state=state)
    cut = pa.table({"value": ['{"op": "t", "source": {"lsn": 1}}']})
    with raises(dd.errors.BadMessage):
        spark_bridge.run(flow_of(), {"t": frame_of(spark, cut)}, state=state)
    with raises(dd.errors.SchemaMismatch):
        spark_bridge.run(flow_of(), {"t": frame_of(spark, pa.table({"id": [1]}))}, state=state)


def of_table(table: str, *ids: int, lsn: int = 0) -> pa.Table:
    source = {"table": table, "lsn": lsn}
    values = [json.dumps({"op": "c", "after": {"id": n, "v": table, "d": "ASY="}, "source": source}) for n in ids]
    return pa.table({"value": values})


@long_on_spark
@pytest.mark.drawn(1)
@pytest.mark.parametrize("on_bad", ["stop", "drop"])
def test_messages_of_two_tables_are_refused_whichever_task_reads_them(
    spark: SparkSession, tmp_path: Path, on_bad: str
) -> None:
    flow, state, says = flow_of(on_bad=on_bad), str(tmp_path / "state"), "some are of the table 'a', some of 'b'"
    for name, messages in (("a", of_table("a", *range(40))), ("b", of_table("b", 3, lsn=9))):
        pq.write_table(messages, tmp_path / f"{name}.parquet")
    mine, other = (spark.read.parquet(str(tmp_path / f"{name}.parquet")) for name in "ab")
    ran = spark_bridge.run(flow, {"t": mine.union(other)}, partitions=3)
    with pytest.raises(PySparkException, match=says):
        ran["t"].toArrow()
    with pytest.raises(dd.errors.BadMessage, match=says):
        spark_bridge.run(flow, {"t": other.union(mine)}, state=state, partitions=3, epoch=1)
    first = spark_bridge.run(flow, {"t": mine}, state=state, partitions=3, epoch=1)
    if on_bad == "stop":
        with raises(dd.errors.BadMessage):
            spark_bridge.run(flow, {"t": other}, state=state, epoch=2)
    else:  # the state knows the table, and so do tasks, also those that read no message of it
        for _ in range(2):
            second = spark_bridge.run(flow, {"t": other.union(mine)}, state=state, epoch=2)
            assert "its table is 'b', but other messages are of 'a'" in second["t.bad"].toArrow()["reason"][0].as_py()
            assert str(second.verdicts) == "noop 40, bad 1"
        third = spark_bridge.run(flow, {"t": other}, state=state, epoch=3)
        assert str(third.verdicts) == "bad 1"
    again = spark_bridge.run(flow, {"t": mine}, state=state, epoch=1)
    assert counted(again["t"].toArrow()) == counted(first["t"].toArrow())
    assert dd.read(state, "t").num_rows == 40


@pytest.mark.parametrize("on_bad", ["stop", "drop"])
def test_decoded_messages_of_another_table_in_a_later_batch_are_bad(on_bad: Any) -> None:
    bound: Any = flow_of(on_bad=on_bad).inputs["t"].bound
    given = [batch for table in ("a", "b", "a") for batch in of_table(table, 1).to_batches()]
    rows = DecodeTask(bound.format, bound.message_target, ("value",), ())(given)
    if on_bad == "stop":
        with raises(dd.errors.BadMessage):
            list(rows)
        return
    reasons = [row["_bad"] and row["_bad"]["reason"] for batch in rows for row in batch.to_pylist()]
    assert [each and each[:17] for each in reasons] == [None, "its table is 'b',", None]


@mid_on_spark
def test_a_column_that_no_message_has_is_told_by_the_driver_once(spark: SparkSession, tmp_path: Path) -> None:
    """Whichever task reads the message that has it, if there is one; and a table is known to a state of one engine."""
    flow, state = dd.Flow(), str(tmp_path / "state")
    rows = flow.upserts("t", {"id": int, "v": str, "w": str}, dd.Upsert(key="id"), format=dd.formats.debezium())
    flow.output("t", rows)
    with flow.open(state) as engine, pytest.warns(UserWarning, match="column 'w', so it is null"):
        engine.step({"t": of_table("a", 0)})
    lacks, has = of_table("a", 1), json.dumps({"op": "c", "after": {"id": 2, "w": None}, "source": {"table": "a"}})
    with raises(dd.errors.BadMessage):
        spark_bridge.run(flow, {"t": frame_of(spark, of_table("b", 5))}, state=state, epoch=2)
    frame, more = frame_of(spark, lacks, pa.table({"value": [has]})), "messages for 't': they have the columns ['d'], "
    with said() as told:
        spark_bridge.run(flow, {"t": frame}, state=state, epoch=2)
    assert len(told) == 1 and told[0].startswith(more)  # and 'w', which one of them has
    with said() as told:
        frame = frame_of(spark, lacks, of_table("a", 3))
        spark_bridge.run(flow, {"t": frame}, state=str(tmp_path / "other"), partitions=2)
    assert len(told) == 2 and told[1].startswith(more)
    assert told[0] == "messages for 't': no message so far has the declared column 'w', so it is null: " + (
        "the columns are ['id', 'v', 'd']"
    )


@mid_on_spark
def test_a_table_that_no_message_is_of_is_told_by_the_driver_once(spark: SparkSession, tmp_path: Path) -> None:
    """Not where a task saw one of it, which may be bad, and others do not."""
    flow, state = flow_of(table="orders", on_bad="drop"), str(tmp_path / "state")
    mine, other = of_table("orders", 1), of_table("order", 1, 2)
    bad = pa.table({"value": [mine["value"][0].as_py().replace("ASY=", "no")]})
    for number, tables in enumerate(([other, other], [other, bad], [mine, other], [other]), 1):
        with said() as told:
            spark_bridge.run(flow, {"t": frame_of(spark, *tables)}, state=state, partitions=2, epoch=number)
        says = "messages for 't': no message so far is of the table 'orders', so no row came: did you mean 'order'? "
        assert told == [f"{says}4 changes are of ['order']"][: number == 1]


def test_decoded_rows_are_those_that_an_input_is_given(spark: SparkSession, tmp_path: Path) -> None:
    """As a batch and as a stream; and a flow of such rows is that of the messages."""
    came, format = messages(0, 60), dd.formats.debezium(on_bad="drop")
    given = (format, COLUMNS, dd.Upsert(key="id"))
    rows = spark_bridge.decode(frame_of(spark, came.slice(0, 25), came.slice(25)), *given, keep=["partition", "offset"])
    assert rows.columns == ["id", "v", "d", "_position", "_row", "_deleted", "_bad", "partition", "offset"]
    found = rows.toArrow()
    bound = flow_of(on_bad="drop").inputs["t"].bound
    expected = decode_messages(format, came, bound.message_target, 0)
    assert counted(found.select(bound.schema.names[:6])) == counted(expected.rows.select(bound.schema.names[:6]))
    assert sorted(found["offset"].to_pylist()) == sorted(came["offset"].take(pa.array(expected.at)).to_pylist())
    assert {row["_bad"]["reason"] for row in found.to_pylist() if row["_bad"]} == {"it is not valid JSON"}
    # A stream of the same messages, into a flow of rows.
    pq.write_table(came, (tmp_path / "in.parquet"))
    reader = spark.readStream.schema("value binary, key string, topic string, partition int, offset long")
    stream = spark_bridge.decode(reader.parquet(str(tmp_path)), *given)
    good = stream.where("_bad is null").drop("_bad")
    flow = dd.Flow()
    latest = dd.Upsert(key="id", order_by=["_position", "_row"], delete=dd.tombstone("_deleted"))
    flow.output("by_v", flow.upserts("t", good, latest).count("v"))
    state = str(tmp_path / "state")
    query = spark_bridge.stream(flow, good, state=state, partitions=2, trigger={"availableNow": True}).start()
    query.awaitTermination()
    with flow_of(on_bad="drop").open() as engine:
        engine.step({"t": came})
        assert counted(dd.read(state, "by_v")) == counted(engine.read("by_v"))


@mid_on_spark
def test_history_of_a_topic_as_an_engine_and_of_decoded_rows(spark: SparkSession, tmp_path: Path) -> None:
    """With ``before`` in the messages, cut into epochs, some of them read twice; and lazily, and of frames of rows."""
    delete, order = dd.tombstone("_deleted"), ["_position", "_row"]
    came = messages(0, 60)
    parts = [came.slice(0, 30), came.slice(20, 25), came.slice(40)]
    flow = dd.Flow()
    rows = flow.updates("t", COLUMNS, key="id", format=dd.formats.debezium(on_bad="drop"))
    flow.output("history", rows.versions("id", order, delete))
    with flow.open() as engine:
        for number, part in enumerate(parts, 1):
            frames = {"t": frame_of(spark, part.slice(0, 7), part.slice(7))}
            ran = spark_bridge.run(flow, frames, state=str(tmp_path / "state"), partitions=2, epoch=number)
            step = engine.step({"t": part})
            assert counted(ran["history"].toArrow()) == counted(step["history"])
            assert counted(ran["t.bad"].toArrow().select(["reason"])) == counted(step["t.bad"].select(["reason"]))
        expected = counted(engine.read("history"))
    assert counted(dd.read(str(tmp_path / "state"), "history")) == expected
    every = frame_of(spark, *parts)
    lazy = spark_bridge.run(flow, {"t": every})["history"].toArrow()
    assert counted(lazy) == expected
    format = dd.formats.debezium(on_bad="drop")
    decoded_rows = spark_bridge.decode(every, format, COLUMNS, dd.Upsert(key="id")).where("_bad is null").drop("_bad")
    flow = dd.Flow()
    flow.output("history", flow.updates("t", decoded_rows).versions("id", order, delete))
    assert counted(spark_bridge.run(flow, {"t": decoded_rows})["history"].toArrow()) == expected


def test_what_cannot_be_decoded_is_said_before_a_job_or_by_it(spark: SparkSession) -> None:
    format, spec = dd.formats.debezium(), dd.Upsert(key="id")
    good = frame_of(spark, messages(0, 3))
    with raises(dd.errors.SchemaMismatch):
        spark_bridge.decode(frame_of(spark, pa.table({"id": [1]})), format, COLUMNS, spec)
    with raises(dd.errors.SpecError):
        spark_bridge.decode(good, format, COLUMNS, spec, keep=["ofset"])
    with raises(dd.errors.SpecError):
        spark_bridge.decode(good, "debezium", COLUMNS, spec)
    cut = frame_of(spark, pa.table({"value": ['{"op": "t", "source": {"lsn": 1}}']}))
    with pytest.raises(PySparkException, match="it is a truncate"):
        spark_bridge.decode(cut, format, COLUMNS, spec).collect()
    with pytest.raises(PySparkException, match=r"offset \d+ of shop/\d: it is not valid JSON"):
        spark_bridge.decode(frame_of(spark, messages(0, 20)), format, COLUMNS, spec).collect()


def test_a_feed_that_lacks_a_column_has_it_absent(spark: SparkSession, tmp_path: Path) -> None:
    flow = dd.Flow()
    spec = dd.Upsert(key="id", merge=dd.Merge({"v": dd.last()}))
    flow.output("t", flow.upserts("t", COLUMNS, spec, format=dd.formats.delta_cdf()))
    with flow.open() as engine:
        for number, cells in enumerate([{"v": ["a", "b"]}, {"d": pa.array([1, 2], pa.decimal128(10, 2))}], 1):
            feed = {"_change_type": ["insert"] * 2, "_commit_version": [number] * 2}
            came = pa.table({"id": [1, 2], **cells, **feed})
            frames = {"t": frame_of(spark, came)}
            with said() as told:
                ran = spark_bridge.run(flow, frames, state=str(tmp_path / "state"), partitions=2, epoch=number)
                assert counted(ran["t"].toArrow()) == counted(engine.step({"t": came})["t"])
            lacks = f"messages for 't': no message so far has the declared column {'vd'[number % 2]!r}, "
            # The engine had 'v' before; a run of its own did not.
            assert [each[: len(lacks)] for each in told] == [lacks] * (3 - number)
        assert sorted(engine.read("t")["v"].to_pylist()) == ["a", "b"]
