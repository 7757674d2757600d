"""Test Kafka failures (lost brokers, lost or repeated messages, missing topics): each has a result without loss.

The mock cluster forgets everything when its process dies. Then positions are beyond its end, or topics are missing. The
mock has no compaction, but drops the oldest messages of a large partition. A proxy gives the mock a fixed address, and
rewrites the address and id in its answers. The mock does not support topic ids, so the proxy answers requests for them.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import long_test, mid_test
from confluent_kafka import Producer
from kafka_cluster import Cluster
from messages import raises
from tcp_proxy import Proxy
from test_kafka import flow, held, produced, row
from test_targets_bad import keeps_its_mode

import ddflow as dd
from ddflow.connectors.api import TableShape, TargetRecord
from ddflow.connectors.kafka.source import KafkaTopicSource, OffsetRangeReader
from ddflow.engine.run.kept_epochs import EngineEpochs
from ddflow.errors import BadMessage, DdflowError, SinkAhead, SinkRefused, SourceChanged, SourceFailed, UnreadableInput

MARKER = "Geheimnis7"
NAMED = re.compile(rb"mockCluster[0-9a-f]{12}\0{4}")
"""What a cluster says of its id, and of the broker that is asked."""
KEPT = b"aClusterOfOneBrokerOnly"


class Broker:
    """A cluster behind an address that stays, which can be killed and begun anew."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.rewritten = dict[bytes, bytes]()
        self.proxy = Proxy(self._begun(), self._seen)

    def _begun(self) -> tuple[str, int]:
        host, port = self.cluster.__enter__().split(":")
        self.named = (host, int(port))
        return self.named

    def _seen(self, data: bytes) -> bytes:
        """Its answers, with the address of the proxy in the place of its own, and one id."""
        data = NAMED.sub(KEPT + struct.pack(">i", 1), data)
        for old, new in self.rewritten.items():
            data = data.replace(old, new)
        host, port = self.named
        name = host.encode()
        for length in (struct.pack(">h", len(name)), bytes([len(name) + 1])):
            data = data.replace(
                length + name + struct.pack(">i", port), length + name + struct.pack(">i", self.proxy.port)
            )
        return data

    def __enter__(self) -> Broker:
        self.proxy.__enter__()
        return self

    def __exit__(self, *failed: Any) -> None:
        self.proxy.__exit__()
        self.cluster.__exit__()

    @property
    def servers(self) -> str:
        return f"{self.named[0]}:{self.proxy.port}"

    def killed(self) -> None:
        """SIGKILL, and another one in its place, which knows nothing."""
        self.cluster.process.kill()
        self.cluster.process.communicate()
        self.proxy.target = self._begun()
        self.proxy.hang_up()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def topic(tmp_path: Path) -> str:
    return tmp_path.name


def until(held: Callable[[], bool]) -> None:
    ends = time.monotonic() + 120
    while not held() and time.monotonic() < ends:
        time.sleep(0.02)
    assert held()


@long_test
def test_brokers_that_cannot_be_reached_are_waited_for(broker: Broker, topic: str, tmp_path: Path) -> None:
    produced(broker.servers, topic, *(row(n, "Bern") for n in range(10)), partition=0)
    sinks = {"by_city": dd.sinks.kafka(broker.servers, f"{topic}-out", config={"reconnect.backoff.max.ms": 200})}
    source = dd.sources.kafka(broker.servers, topic, follow=True, config={"reconnect.backoff.max.ms": 200})

    def away() -> None:
        until(lambda: state_rows(tmp_path) == 10)
        broker.proxy.refuses = True
        broker.proxy.hang_up()
        time.sleep(0.7)
        broker.proxy.refuses = False
        produced(broker.servers, topic, *(row(n, "Chur") for n in range(5, 20)), partition=0)
        until(lambda: state_rows(tmp_path) == 20)
        engine.stop()

    with flow().open(tmp_path / "state") as engine:
        thread = threading.Thread(target=away)
        thread.start()
        done = engine.run({"rows": source}, sinks, interval="20ms", until="5min")
        thread.join()
        assert done.stopped == "stop"
        engine.run({"rows": dd.sources.kafka(broker.servers, topic)}, sinks)
        assert held(engine, "by_city") == [("Bern", 5), ("Chur", 15)]
        assert engine.sync(sinks, dry=True)["by_city"][:3] == (0, 0, 0)


def state_rows(tmp_path: Path) -> int:
    try:
        return dd.read(tmp_path / "state", "rows").num_rows
    except DdflowError:
        return 0


def test_a_cluster_that_forgot_is_no_source_any_more(broker: Broker, topic: str, tmp_path: Path) -> None:
    produced(broker.servers, topic, *(row(n, "Bern") for n in range(10)), partition=0)
    source, sinks = dd.sources.kafka(broker.servers, topic), {"rows": dd.sinks.sqlite(tmp_path / "out.db", "rows")}
    with flow().open(tmp_path / "state") as engine:
        engine.run({"rows": source}, sinks)
        broker.killed()
        with raises(UnreadableInput):
            engine.run({"rows": source}, sinks)
        produced(broker.servers, topic, row(1, "Chur"), partition=0)
        with raises(SourceChanged):
            engine.run({"rows": source}, sinks)
        produced(broker.servers, topic, *(row(n, "Chur") for n in range(20)), partition=0)  # so the offsets fit
        with raises(SourceChanged):
            engine.run({"rows": source}, sinks)
        assert engine.epoch == 1 and len(held(engine)) == 10
    assert not dd.fsck(tmp_path / "state").problems


def test_a_cluster_that_forgets_under_a_run_ends_it(broker: Broker, topic: str, tmp_path: Path) -> None:
    produced(broker.servers, topic, *(row(n, "Bern") for n in range(10)), partition=0)

    def forgets() -> None:
        until(lambda: state_rows(tmp_path) == 10)
        broker.killed()
        produced(broker.servers, topic, *(row(n, "Chur") for n in range(20)), partition=0)

    thread = threading.Thread(target=forgets)
    thread.start()
    source = dd.sources.kafka(broker.servers, topic, follow=True, config={"reconnect.backoff.max.ms": 200})
    with flow().open(tmp_path / "state") as engine:
        with pytest.raises((SourceChanged, UnreadableInput)):
            engine.run({"rows": source}, interval="20ms", until="5min")
        thread.join()
        assert engine.epoch == 1 and len(held(engine)) == 10


def test_a_topic_that_is_created_anew_under_a_reader_ends_it(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddflow.connectors.kafka.source.LOOK", 0.0)
    produced(broker.servers, topic, row(1, "Bern"), partition=0)
    opened = dd.sources.kafka(broker.servers, topic, follow=True).open({"rows": pa.schema([])}, None)
    position = polled(opened).position
    assert position["cluster"] == KEPT.decode()
    opened.poll(1 << 20)
    broker.rewritten[base64.urlsafe_b64decode(position["topic_id"] + "==")] = b"another topic id"
    with raises(SourceChanged):
        until(lambda: opened.poll(1 << 20) is not None)
    opened.close()
    # One whose id nobody says is compared by its offsets.
    broker.rewritten[KEPT + struct.pack(">i", 1)] = KEPT + struct.pack(">i", 7)
    opened = dd.sources.kafka(broker.servers, topic).open({"rows": pa.schema([])}, position)
    assert opened.ended
    opened.close()


@mid_test
def test_brokers_that_are_gone_are_noticed_before_the_next_look(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddflow.connectors.kafka.source.LOOK", 1e9)
    produced(broker.servers, topic, row(1, "Bern"), partition=0)
    opened = dd.sources.kafka(broker.servers, topic, follow=True).open({"rows": pa.schema([])}, None)
    polled(opened)
    broker.proxy.refuses = True
    broker.proxy.hang_up()
    with raises(SourceFailed):
        until(lambda: opened.poll(1 << 20) is not None)
    opened.close()


def test_messages_that_retention_took_are_missed(servers: str, topic: str, tmp_path: Path) -> None:
    produced(servers, topic, row(0, "Bern"), partition=0)
    with flow().open(tmp_path / "state") as engine:
        engine.run({"rows": dd.sources.kafka(servers, topic)})
        producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        for _ in range(100):
            producer.produce(topic, json.dumps(row(1, "x" * 100_000)), b"1", partition=0)
        assert producer.flush(20) == 0
        with pytest.raises(SourceChanged, match=r"was read up to 1, but has \d+ to 101; .*create a new state"):
            engine.run({"rows": dd.sources.kafka(servers, topic)})
        assert held(engine) == [(0, "Bern")]


def test_an_error_in_a_range_is_no_message_of_it(servers: str, topic: str) -> None:
    produced(servers, topic, row(1, "Bern"), row(2, "Chur"), partition=0)
    for first, end in ((0, 2), (7, 8)):
        with closing(OffsetRangeReader(KafkaTopicSource(servers, topic, "earliest", False), 0, first, end)) as reader:
            if end == 2:
                assert [batch.num_rows for batch in reader.batches()] == [2]
                continue
            with pytest.raises(SourceChanged):
                list(reader.batches())


def test_messages_that_come_again_say_nothing(servers: str, topic: str, tmp_path: Path) -> None:
    made = dd.Flow()
    rows = made.upserts("rows", {"id": int, "v": str}, dd.Upsert(key="id"), format=dd.formats.debezium())
    made.output("rows", rows)

    def change(op: str, id: int, v: str, lsn: int) -> dict[str, Any]:
        return {"id": id, "op": op, "after": {"id": id, "v": v}, "source": {"lsn": lsn, "table": "t"}}

    feed = [change("c", 1, "a", 1), change("u", 1, "b", 2), change("c", 2, "a", 3)]
    sinks = {"rows": dd.sinks.parquet(tmp_path / "out", mode="changelog")}
    with made.open(tmp_path / "state") as engine:
        for again in (feed, feed, feed[:2], [feed[0]]):
            produced(servers, topic, *again, partition=1)
            engine.run({"rows": dd.sources.kafka(servers, topic)}, sinks)
        assert held(engine) == [(1, "b"), (2, "a")]
        assert engine.sync(sinks, dry=True)["rows"][:3] == (0, 0, 0)
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1


def test_a_broken_message_is_named_by_its_offset(servers: str, topic: str, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for value in (json.dumps(row(1, "a")), "{", json.dumps({"city": "no key"}), b"\xff"):
        producer.produce(topic, value, partition=2)
    assert producer.flush(10) == 0
    source = {"rows": dd.sources.kafka(servers, topic)}
    with flow().open(tmp_path / "state") as engine, raises(BadMessage):
        engine.run(source)
    with flow(dd.formats.plain_json(on_bad="drop")).open(tmp_path / "other") as engine:
        engine.run(source)
        assert held(engine) == [(1, "a")]


def test_a_topic_of_several_tables_feeds_an_input_each(servers: str, topic: str, tmp_path: Path) -> None:
    made = dd.Flow()
    for name in ("left", "right"):
        spec = dd.Upsert(key="id")
        made.output(name, made.upserts(name, {"id": int}, spec, format=dd.formats.debezium()))
    for n, table in enumerate(["a", "b", "a", "c"]):
        change = {"id": n, "op": "c", "after": {"id": n}, "source": {"lsn": n, "schema": "public", "table": table}}
        produced(servers, topic, change, partition=3)
    tables = {"public.a": "left", "public.b": "right"}
    with made.open(tmp_path / "state") as engine:
        with raises(BadMessage):
            engine.run({"shop": dd.sources.kafka(servers, topic, tables=tables)})
        engine.run({"shop": dd.sources.kafka(servers, topic, tables=tables, others="ignore")})
        assert (held(engine, "left"), held(engine, "right")) == ([(0,), (2,)], [(1,)])
        with raises(DdflowError):
            engine.run({"shop": dd.sources.kafka(servers, topic, tables={"a": "lft"})})


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("first", "then"), [("upsert", "changelog"), ("retract", "upsert"), ("debezium", "retract")])
def test_a_topic_is_not_written_in_another_mode(
    servers: str, topic: str, tmp_path: Path, first: Any, then: Any
) -> None:
    def made(mode: Any) -> Any:
        return dd.sinks.kafka(servers, topic, mode=mode)

    def messages() -> list[tuple[Any, Any]]:
        opened = dd.sources.kafka(servers, topic).open({"rows": pa.schema([])}, None)
        found = [row for batch in polled(opened).rows["rows"] for row in batch.to_pylist()]
        opened.close()
        return sorted(((row["key"], row["value"]) for row in found), key=str)  # its partitions come as they like

    keeps_its_mode(tmp_path, made, first, then, messages)


@mid_test
def test_topics_that_are_not_ours_are_refused_and_a_rollback_is_mended(
    servers: str, topic: str, tmp_path: Path
) -> None:
    produced(servers, f"{topic}-theirs", row(1, "x"), partition=0)
    theirs, ours = ({"by_city": dd.sinks.kafka(servers, f"{topic}-{name}")} for name in ("theirs", "ours"))
    with flow().open(tmp_path / "state") as engine:
        for n in range(2):
            produced(servers, topic, row(n, "Bern"), partition=0)
            engine.run({"rows": dd.sources.kafka(servers, topic)}, ours)
        with raises(SinkRefused):
            engine.run({}, theirs)
        with raises(SinkRefused):
            engine.run({}, {"rows": ours["by_city"]})
    dd.rollback(tmp_path / "state", 1)
    with flow().open(tmp_path / "state") as engine:
        with raises(SinkAhead):
            engine.run({}, ours)
        engine.sync(ours)
        engine.run({"rows": dd.sources.kafka(servers, topic)}, ours)  # what the rollback took back is read again
        assert held(engine, "by_city") == [("Bern", 2)]
        assert engine.sync(ours, dry=True)["by_city"][:3] == (0, 0, 0)
    with flow().open(tmp_path / "other") as engine:
        engine.run({"rows": dd.sources.kafka(servers, topic)})
        with raises(SinkRefused):
            engine.run({}, ours)


@mid_test
def test_a_topic_that_was_deleted_is_made_anew_by_sync_alone(servers: str, topic: str, tmp_path: Path) -> None:
    produced(servers, topic, row(1, "Bern"), partition=0)
    sinks: dict[str, Any] = {"by_city": dd.sinks.kafka(servers, f"{topic}-out")}
    with flow().open(tmp_path / "state") as engine:
        # The mock cluster deletes no topic: what a control topic says of another one is what is left of one.
        own = EngineEpochs(engine.calls, "a test").manifest.id
        said = TargetRecord(own, "by_city", 3, "f" * 32)._asdict() | {"mode": "upsert"}
        producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        producer.produce(f"{topic}-out.ddflow", json.dumps(said), f"{topic}-out", 0)
        assert producer.flush(10) == 0
        with raises(SinkRefused):
            engine.run({"rows": dd.sources.kafka(servers, topic)}, sinks)
        opened = sinks["by_city"].open(TableShape("by_city", pa.schema({}), ()))
        opened.prepare()
        assert opened.written() is None
        opened.close()
        engine.run({"rows": dd.sources.kafka(servers, topic)}, sinks)
        assert engine.sync(sinks, dry=True)["by_city"][:3] == (0, 0, 0)


@mid_test
def test_a_password_is_shown_nowhere_whatever_fails(
    servers: str, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("ddflow.connectors.kafka.source.WAIT", 0.3)
    monkeypatch.setattr("ddflow.connectors.kafka.sink.WAIT", 0.3)
    secret: dict[str, Any] = {"sasl.password": MARKER, "sasl.username": "me", "sasl.mechanisms": "PLAIN"}
    ssl = {**secret, "security.protocol": "SASL_SSL"}
    produced(servers, topic, row(1, "a"), partition=0)
    told = list[str]()
    with flow().open(tmp_path / "state") as engine:
        for where, config in (
            ("127.0.0.1:1", {**secret, "socket.timeout.ms": 100}),
            (servers, ssl),
            (servers, {**secret, "no.such": MARKER}),
            (servers, {**secret, "ssl.key.pem": MARKER, "security.protocol": "SSL"}),
            (servers, {**secret, "socket.timeout.ms": MARKER}),
        ):
            source = dd.sources.kafka(where, topic, config=config)
            sink = dd.sinks.kafka(where, topic, config=config)
            told.append(repr(source) + repr(sink) + source.target + sink.target)
            for call in (
                lambda source=source: engine.run({"rows": source}, give_up_after="0s", interval="1ms"),
                lambda sink=sink: engine.run({}, {"by_city": sink}, give_up_after="0s", interval="1ms"),
            ):
                with pytest.raises(DdflowError) as failed:
                    call()
                told.append(f"{failed.value} {failed.value!r} {failed.value.args} {failed.getrepr(style='short')}")
        sinks = {"by_city": dd.sinks.kafka(servers, f"{topic}-out", config=secret)}
        engine.run({"rows": dd.sources.kafka(servers, topic, config=secret)}, sinks)
    told += [record.getMessage() + str(record.__dict__) for record in caplog.records]
    assert len(told) > 15 and not [each for each in told if MARKER in each]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or MARKER.encode() not in path.read_bytes(), path


def polled(opened: Any) -> Any:
    """What comes first, however long it takes."""
    return next(found for found in iter(lambda: opened.poll(1 << 20), 0) if found is not None and found.rows)


def test_a_state_of_a_reader_that_was_killed_in_between_reads_on(servers: str, topic: str) -> None:
    """What is not committed is read again from the same offsets."""
    produced(servers, topic, *(row(n, "a") for n in range(3)), partition=0)
    position = {"offsets": {"0": 1}, "cluster": "", "topic_id": ""}
    first = dd.sources.kafka(servers, topic).open({"rows": pa.schema([])}, position)
    second = dd.sources.kafka(servers, topic).open({"rows": pa.schema([])}, position)
    one, two = (polled(opened) for opened in (first, second))
    assert one.position == two.position
    assert one.rows["rows"][0].column("offset").to_pylist() == [1, 2]
    first.close()
    second.close()
