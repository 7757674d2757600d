"""Check behaviour that only a real Kafka has. Run ``python tests/support/real_kafka.py broker:9092``, with your broker.

The program creates topics with the prefix ``ddflow-check-``, and prints a line for each check. If a check fails, the
exit code is 1. The checks:

- a second writer of an output fences the first, which gets an error;
- an aborted transaction, or one of a dead writer, is not read; its epoch appears once;
- the broker keeps a group's offsets and a transaction's offsets;
- a new state can start at a time;
- a position lost to retention or to a recreated topic raises `SourceChanged`.

The mock cluster of the tests has none of these properties.  ``--config name=value`` passes librdkafka settings, such as
a password.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import ddflow as dd
from ddflow.connectors.api import Polled, TableChanges, TableShape, TargetRecord
from ddflow.errors import SinkAhead, SinkFailed, SourceChanged

SHAPE = TableShape("rows", pa.schema({"id": pa.int64()}), None)


class Checks:
    """The checks, which run on the brokers ``servers``."""

    def __init__(self, servers: str, config: dict[str, str]) -> None:
        self.servers, self.config = servers, config
        self.settings: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0, **config}
        self.admin, self.made = AdminClient(self.settings), list[str]()

    def topic(self, **config: str) -> str:
        """Make a topic with one partition."""
        name = f"ddflow-check-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, 1, config=config)])[name].result(30)
        self.made += [name, f"{name}.ddflow"]
        return name

    def produce(self, topic: str, *ids: int) -> None:
        producer = Producer(self.settings)
        for id in ids:
            producer.produce(topic, json.dumps({"id": id}), str(id), partition=0)
        assert producer.flush(30) == 0

    def read(self, topic: str, **more: Any) -> list[int]:
        """Read a topic with a new state, and return the ids of its messages."""
        flow = dd.Flow()
        columns = {"id": pa.int64()}
        flow.output("rows", flow.upserts("rows", columns, dd.Upsert(key="id"), format=dd.formats.plain_json()))
        with flow.open() as engine:
            engine.run({"rows": dd.sources.kafka(self.servers, topic, config=self.config, **more)})
            return sorted(row["id"] for row in engine.read("rows").to_pylist())

    def messages(self, topic: str) -> list[int]:
        """Return the committed messages that a reader sees, including duplicates."""
        opened = dd.sources.kafka(self.servers, topic, config=self.config).open({"rows": pa.schema([])}, None)
        found, empty = list[int](), 0
        while not opened.ended or empty < 5:
            polled = opened.poll(1 << 20)
            empty += polled is None
            for batch in () if polled is None else polled.rows.get("rows", ()):
                found += [json.loads(value)["id"] for value in batch.column("value").to_pylist()]
        opened.close()
        return sorted(found)

    def writer(self, topic: str) -> Any:
        return dd.sinks.kafka(self.servers, topic, mode="changelog", config=self.config).open(SHAPE)

    def fencing(self) -> str:
        topic, rows = self.topic(), TableChanges(None, pa.table({"id": [1]}), 1)
        first = self.writer(topic)
        first.prepare()
        first.write(rows, record(1), None)
        second = self.writer(topic)
        second.write(rows, record(2), second.written())
        try:
            first.write(rows, record(2)._replace(digest="e" * 32), record(1))
        except (SinkAhead, SinkFailed) as error:
            assert self.messages(topic) == [1, 1], self.messages(topic)
            return f"the first was stopped: {error.found}"
        raise AssertionError("two writers wrote")

    def dead_writer(self) -> str:
        topic, rows = self.topic(), TableChanges(None, pa.table({"id": [1, 2, 3]}), 3)
        self.writer(topic).prepare()
        words = [self.servers, *(f"--config={name}={value}" for name, value in self.config.items())]
        subprocess.run([sys.executable, __file__, *words, "--die-in", topic], check=True)
        again = self.writer(topic)
        assert again.written() is None, "a record of an open transaction was read"
        again.write(rows, record(1), None)
        assert self.messages(topic) == [1, 2, 3], self.messages(topic)
        return "messages and record of a writer that died were not read, and the epoch is there once"

    def die(self, topic: str) -> None:
        """End this process in the middle of a transaction, when the broker already has messages of the transaction."""
        dying = self.writer(topic)
        dying.producer.begin_transaction()
        for id in (7, 8):
            dying.producer.produce(topic, json.dumps({"id": id}))
        dying.producer.produce(f"{topic}.ddflow", json.dumps(record(1)._asdict()), topic, partition=0)
        dying.producer.flush(30)
        os._exit(0)

    def aborted(self) -> str:
        topic = self.topic()
        producer = Producer({**self.settings, "transactional.id": topic})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"id": 1}))
        producer.flush(30)
        producer.abort_transaction(30)
        self.produce(topic, 2)
        assert self.messages(topic) == [2]
        return "what an aborted transaction wrote was not read, and the end was found behind it"

    def group(self) -> str:
        topic, name = self.topic(), f"ddflow-check-{uuid.uuid4().hex[:8]}"
        self.produce(topic, 1, 2, 3)
        self.read(topic, group=name)
        time.sleep(2)
        consumer = Consumer({**self.settings, "group.id": name})
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        assert found.offset == 3, found.offset
        producer = Producer({**self.settings, "transactional.id": f"{topic}-offsets"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 2)], consumer.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        consumer.close()
        assert found.offset == 2, found.offset
        return "offsets told to a group, and those of a transaction, were kept"

    def start_by_time(self) -> str:
        topic = self.topic()
        self.produce(topic, 1, 2)
        time.sleep(0.5)
        between = datetime.now(UTC)
        time.sleep(0.5)
        self.produce(topic, 3)
        assert self.read(topic, start=between) == [3]
        assert self.read(topic, start=datetime.now(UTC)) == []
        return "a state began with the first message that was not older"

    def retention(self) -> str:
        topic = self.topic()
        self.produce(topic, 1, 2, 3)
        self.admin.delete_records([TopicPartition(topic, 0, 2)])[TopicPartition(topic, 0)].result(30)
        try:
            position = {"offsets": {"0": 1}, "cluster": "", "topic_id": ""}
            dd.sources.kafka(self.servers, topic, config=self.config).open({"rows": pa.schema([])}, position)
        except SourceChanged as error:
            assert self.read(topic) == [3]
            return error.found
        raise AssertionError("a gap was not noticed")

    def created_anew(self) -> str:
        topic = self.topic()
        self.produce(topic, 1, 2)
        source, inputs = dd.sources.kafka(self.servers, topic, config=self.config), {"rows": pa.schema([])}
        opened, position = source.open(inputs, None), None
        while position is None:
            position = (opened.poll(1 << 20) or Polled({}, None)).position
        opened.close()
        assert position["cluster"] and position["topic_id"], position
        self.admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
        time.sleep(2)
        self.admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
        self.produce(topic, 3, 4, 5)
        try:
            source.open(inputs, position)
        except SourceChanged as error:
            return error.found
        raise AssertionError("another topic was read")

    def close(self) -> None:
        if not self.made:
            return
        for topic in self.admin.delete_topics(self.made, operation_timeout=30).values():
            try:
                topic.result(30)
            except KafkaException:
                continue  # the topic was never created


def record(epoch: int) -> TargetRecord:
    return TargetRecord("0" * 32, "rows", epoch, "f" * 32)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers", help="bootstrap.servers")
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--die-in", metavar="TOPIC", help=argparse.SUPPRESS)
    given = parser.parse_args()
    checks = Checks(given.servers, dict(each.split("=", 1) for each in given.config))
    if given.die_in:
        checks.die(given.die_in)
    return 1 if looked_at(checks) else 0


def looked_at(checks: Checks) -> list[str]:
    """Run the checks and print a line for each of them. Return the names of the checks that fail."""
    looks: list[Callable[[], str]] = [
        checks.fencing,
        checks.dead_writer,
        checks.aborted,
        checks.group,
        checks.start_by_time,
        checks.retention,
        checks.created_anew,
    ]
    wrong = list[str]()
    try:
        for look in looks:
            try:
                print(f"ok    {look.__name__}: {look()}", flush=True)
            except Exception as error:
                wrong.append(look.__name__)
                print(f"WRONG {look.__name__}: {type(error).__name__}: {error}", flush=True)
    finally:
        checks.close()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
