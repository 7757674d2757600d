"""Test Kafka on Spark without Spark's jar: tasks read topics, and a topic is a sink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import long_on_spark
from confluent_kafka import Producer
from kafka_cluster import Cluster
from messages import raises
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import ddflow as dd
import spark_bridge
from ddflow.connectors.kafka.source import KafkaTopicSource, TopicReader
from ddflow.errors import SourceChanged
from spark_bridge.sources.kafka import Topics, TopicStreamReader

pytestmark = pytest.mark.together("spark")

COLUMNS = {"id": pa.int64(), "city": pa.string()}


@pytest.fixture(scope="module")
def servers(servers: str, spark: SparkSession) -> str:
    spark.dataSource.register(spark_bridge.KafkaSource)
    return servers


def produced(servers: str, topic: str, *rows: dict[str, Any], number: int = 4) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for row in rows:
        producer.produce(topic, json.dumps(row), str(row["id"]), partition=row["id"] % number)
    assert producer.flush(10) == 0


def flow() -> dd.Flow:
    made = dd.Flow()
    rows = made.upserts("rows", COLUMNS, dd.Upsert(key="id"), format=dd.formats.plain_json())
    made.output("rows", rows)
    made.output("by_city", rows.count("city", name="n"))
    return made


def reader(spark: SparkSession, servers: str, topic: str, **options: Any) -> Any:
    made = spark.readStream if options.pop("stream", True) else spark.read
    made = made.format("ddflow-kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    for name, value in options.items():
        made = made.option(name, value)
    return made


def people(*numbers: int, city: str = "Bern") -> list[dict[str, Any]]:
    return [{"id": n, "city": city} for n in numbers]


def held(state: str, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values())[:-1] for row in dd.read(state, name).to_pylist())


def in_topic(servers: str, topic: str) -> dict[str, str | None]:
    """What a topic holds by its keys."""
    source = TopicReader(KafkaTopicSource(servers, topic, "earliest", False), topic, None)
    found: dict[str, str | None] = {}
    while not source.ended:
        polled = source.poll(1 << 20)
        for batch in polled.rows.get(topic, ()) if polled else ():
            for row in batch.to_pylist():
                found[row["key"].decode()] = row["value"] and row["value"].decode()
    source.close()
    return found


@long_on_spark
def test_a_topic_is_a_batch_and_a_stream_into_a_topic(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    produced(servers, "in", *people(*range(10)))
    batch = reader(spark, servers, "in", stream=False).load().toArrow()
    assert batch.column_names == ["key", "value", "topic", "partition", "offset", "timestamp"]
    assert sorted(json.loads(value)["id"] for value in batch["value"].to_pylist()) == list(range(10))
    some = json.dumps({"in": {"0": 2, "1": -1}})
    rest = reader(spark, servers, "in", stream=False, startingOffsets=some, endingOffsets='{"in": {"3": 1}}').load()
    assert sorted(json.loads(row.value)["id"] for row in rest.collect()) == [2, 3, 6, 8]
    state, sinks = str(tmp_path / "state"), {"by_city": dd.sinks.kafka(servers, "out")}

    def run(most: int) -> list[int]:
        feed = reader(spark, servers, "in", startingOffsets="earliest", maxOffsetsPerTrigger=most).load()
        query = spark_bridge.stream(
            flow(), feed, state=state, partitions=2, sinks=sinks, trigger={"availableNow": True}
        ).start()
        query.awaitTermination()
        return [each.rows["rows"] for each in query.ddflow.stats()]

    assert run(6) == [6, 4]
    produced(servers, "in", *people(1, 2, 11, city="Chur"))
    assert run(100) == [3]
    assert held(state, "by_city") == [("Bern", 8), ("Chur", 3)]
    found = {key: value and json.loads(value) for key, value in in_topic(servers, "out").items()}
    assert found == {f'{{"city":"{city}"}}': {"city": city, "n": n} for city, n in held(state, "by_city")}


@long_on_spark
def test_what_cannot_be_read_is_said(spark: SparkSession, servers: str) -> None:
    for options, says in (
        ({"startingOffsets": "soon"}, "that is not a position in a topic"),
        ({"failOnDataLoss": "false"}, "there is no such option"),
        ({"maxOffsetsPerTrigger": "5"}, "this kind of query does not have the option"),
        ({"kafka.sasl.password": "hush", "startingOffsets": '{"none": {"0": 99}}'}, "there is no such topic"),
    ):
        with pytest.raises(PySparkException) as failed:
            reader(spark, servers, "none", stream=False, **options).load().collect()
        assert says in str(failed.value) and "hush" not in str(failed.value), options
    produced(servers, "short", *people(4))
    with pytest.raises(PySparkException, match="partition 0 was read up to 99, but has 0 to 1"):
        reader(spark, servers, "short", stream=False, startingOffsets='{"short": {"0": 99}}').load().collect()


def test_a_checkpoint_is_of_one_cluster(servers: str) -> None:
    with Cluster() as others:
        here, there = (
            TopicStreamReader(Topics([KafkaTopicSource(each, "both", "earliest", False)], {}))
            for each in (servers, others)
        )
        for each in (servers, others):
            produced(each, "both", *people(*range(8)))
        start = here.initialOffset()
        end = json.loads(json.dumps(here.latestOffset(start)))  # as Spark keeps it
        assert len(here.partitions(start, end)) == 4
        for read in (there.latestOffset, lambda start: there.partitions(start, end)):
            with raises(SourceChanged):
                read(start)
