"""Write an output to a topic of Kafka.

An epoch is one transaction. The last message of the transaction goes to a control topic and names the epoch. To find
the last written epoch, the sink reads the committed messages of the control topic. `format_json_rows` formats rows as
JSON.

>>> KafkaSink("broker:9092", "by_city", "upsert", {"sasl.password": "secret"})
KafkaSink(servers='broker:9092', topic='by_city', mode='upsert')
"""

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DELETED
from ddflow.connectors.api import Mode, OpenSink, TableChanges, TableShape, TableSink, TargetRecord
from ddflow.connectors.kafka.source import (
    AT_ONCE,
    CONFIG,
    QUIET,
    WAIT,
    KafkaTopicSource,
    TopicReader,
    import_confluent_kafka,
)
from ddflow.connectors.modes import MESSAGES, format_json_rows, merge_upserts_and_deletes, parse_json_rows
from ddflow.connectors.table_shape import OTHER_MODE, build_dropped_table_error, build_sink_refusal, is_written
from ddflow.errors import (
    DdflowError,
    SinkFailed,
    SourceChanged,
    SourceFailed,
    SpecError,
    UnreadableInput,
    convert_errors,
    mask_secrets,
)
from ddflow.storage.address import refuse_embedded_secret

CONTROL: Final = ".ddflow"
"""Suffix of the name of a control topic."""


@dataclass(frozen=True)
class KafkaSink(TableSink):
    """See `dd.sinks.kafka`."""

    servers: str
    topic: str
    mode: Mode = "upsert"
    config: Mapping[str, Any] = field(repr=False, default_factory=dict)
    kind: ClassVar[str] = "kafka"

    def __post_init__(self) -> None:
        refuse_embedded_secret(self.target, CONFIG)
        if self.topic.endswith(CONTROL):
            found = f"a topic that ends with {CONTROL!r} records the epochs of other topics"
            raise SpecError(f"write to the topic {self.topic!r}", found, "use another topic")

    @property
    def target(self) -> str:
        """Address of the brokers, and the topic."""
        return f"kafka://{self.servers}/{self.topic}"

    def needs(self) -> None:
        """Import the library ``confluent-kafka``."""
        import_confluent_kafka()

    def open(self, shape: TableShape) -> OpenSink:
        """Connect to the brokers."""
        return TopicWriter(self, shape)


class TopicWriter(OpenSink):
    """Writer of a topic, with one transaction for each epoch."""

    def __init__(self, of: KafkaSink, shape: TableShape) -> None:
        self.of, self.shape, self.control = of, shape, of.topic + CONTROL
        settings = {"bootstrap.servers": of.servers, "partitioner": "murmur2_random", **QUIET, **of.config}
        self.settings, self._secret = settings, Secret.fresh()
        self._there: TargetRecord | None = None
        self._mode: str = of.mode
        """Mode of the epochs in the topic.  `written` sets the mode from the record."""
        self._asked = False
        """Whether `_there` is the record of the last epoch.

        `_there` stays the last record, because another writer with this transactional id would fence this writer.
        """
        with self._translate_errors("connect to"):
            self.producer = import_confluent_kafka().Producer(
                {**settings, "transactional.id": f"ddflow.{of.topic}.{shape.output}"}
            )
            self.producer.init_transactions(WAIT)

    def written(self) -> TargetRecord | None:
        """Read the last record of this topic from the control topic."""
        with self._translate_errors("ask"):
            found = [
                each for each in self._read_committed_messages(self.control) if each.key() == self.of.topic.encode()
            ]
            if not found or found[-1].value() is None:
                return None
            record = json.loads(found[-1].value())
            self._mode = record.pop("mode")
            return TargetRecord(**record)

    def missing(self) -> bool:
        """Return whether the topic does not exist."""
        with self._translate_errors("ask"):
            return self.admin_client.list_topics(self.of.topic, timeout=WAIT).topics[self.of.topic].error is not None

    @cached_property
    def admin_client(self) -> Any:
        """Client that never creates a topic.

        A request of the producer creates a missing topic if the broker allows that.
        """
        of: Any = importlib.import_module("confluent_kafka.admin")
        settings = {name: value for name, value in self.settings.items() if name != "partitioner"}
        return of.AdminClient(settings | {"allow.auto.create.topics": False})

    def occupied(self) -> bool:
        """Return whether the topic has a message."""
        with self._translate_errors("ask"):
            return any(True for _ in self._read_committed_messages(self.of.topic))

    def prepare(self) -> None:
        """Create the missing topics.  Raises `SinkRefused` if the mode of the topic is not the mode of the sink."""
        kafka = import_confluent_kafka()
        if self._mode != self.of.mode:
            raise build_sink_refusal(
                self.shape,
                self.of.target,
                f"it was written with mode={self._mode!r}, but this sink has mode={self.of.mode!r}",
                OTHER_MODE,
            )
        if self.missing() and self.written() is not None:
            with self._translate_errors("prepare"), self._transaction():
                self._produce(self.control, self.of.topic, None, partition=0)
        with self._translate_errors("prepare"):
            for topic in (self.of.topic, self.control):
                if self.producer.list_topics(topic, timeout=WAIT).topics[topic].error is None:
                    continue
                new: Any = importlib.import_module("confluent_kafka.admin").NewTopic
                told = {"cleanup.policy": "compact"} if topic == self.control else {}
                try:
                    self.admin_client.create_topics([new(topic, 1, config=told)])[topic].result(WAIT)
                except kafka.KafkaException as error:
                    said = mask_secrets(error.args[0].str(), self.of.config.values())
                    remedy = f"create it: kafka-topics --create --topic {topic} --partitions 1"
                    raise build_sink_refusal(
                        self.shape, self.of.target, f"there is no topic {topic}: {said}", remedy
                    ) from None

    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Write an epoch in one transaction."""
        if is_written(self._there if self._asked else self.written(), now, before, self.of.target):
            return
        if before is not None and self.missing():
            raise build_dropped_table_error(now.output, self.of.target, before.epoch)
        with self._translate_errors("write"), self._transaction():
            for key, value in self._encode_changes(changes):
                self._produce(self.of.topic, key, value)
                self.look(1)
            self._produce(self.control, self.of.topic, json.dumps(now._asdict() | {"mode": self.of.mode}), partition=0)
        self._there, self._asked = now, True

    def read(self) -> pa.Table:
        """Read the rows in the messages.  In mode "upsert", the row of a key is the row in the key's last message."""
        with self._translate_errors("read"):
            found = list(self._read_committed_messages(self.of.topic))
        if self.of.mode == "debezium":
            values = [each.value().decode() for each in found]
            keys = [None if each.key() is None else each.key().decode() for each in found]
            return pa.table([pa.array(keys, pa.string()), pa.array(values, pa.string())], schema=MESSAGES)
        if self.of.mode == "upsert":
            found = [each for each in {each.key(): each for each in found}.values() if each.value() is not None]
        return parse_json_rows(pa.array([each.value().decode() for each in found], pa.string()), self.shape.schema)

    def close(self) -> None:
        """Release the producer and the client."""
        self.producer = None
        self.__dict__.pop("admin_client", None)

    def _encode_changes(self, changes: TableChanges) -> Iterator[tuple[str | None, str | None]]:
        """Yield the key and the value of each message."""
        if self.of.mode == "debezium":
            columns = (changes.rows.column(name).to_pylist() for name in MESSAGES.names)
            yield from zip(*columns, strict=True)
            return
        if self.shape.key is None or changes.gone is None:
            for value in format_json_rows(changes.rows).to_pylist():
                yield None, value
            return
        if not self.shape.key:  # one row at most
            yield "{}", next(iter(format_json_rows(changes.rows).to_pylist()), None)
            return
        every = merge_upserts_and_deletes(changes, self.shape.key, self._secret)
        gone = np.asarray(every.column(DELETED))
        keys, values = (
            format_json_rows(every.select(list(self.shape.key))),
            format_json_rows(every.drop_columns([DELETED])),
        )
        for key, value, deleted in zip(keys.to_pylist(), values.to_pylist(), gone.tolist(), strict=True):
            yield key, None if deleted else value

    def _produce(self, topic: str, key: str | None, value: str | None, **more: Any) -> None:
        while True:
            try:
                self.producer.produce(topic, value, key, **more)
                return
            except BufferError:
                self.producer.poll(0.1)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.producer.begin_transaction()
        try:
            yield
            self.producer.commit_transaction(WAIT)
        except BaseException:
            with suppress(import_confluent_kafka().KafkaException):
                self.producer.abort_transaction(WAIT)
            raise

    def _read_committed_messages(self, topic: str) -> Iterator[Any]:
        """Yield all committed messages of a topic.  A missing topic has no messages."""
        offsets = KafkaTopicSource(self.of.servers, topic, "earliest", False, self.of.config)
        try:
            reader = TopicReader(offsets, topic, None)
        except UnreadableInput:
            return
        try:
            while not reader.ended:
                came = reader.consumer.consume(AT_ONCE, timeout=0.1)
                yield from (each for each in came if each.error() is None)
                reader._convert_to_batch(came)
        finally:
            reader.close()

    def _translate_errors(self, asked: str) -> AbstractContextManager[None]:
        def to_ours(error: Any) -> SinkFailed:
            said = error.found if isinstance(error, DdflowError) else error.args[0].str()
            said = mask_secrets(said, self.of.config.values())
            return SinkFailed(f"{asked} {self.of.target}", said, "check the brokers")

        return convert_errors((import_confluent_kafka().KafkaException, SourceFailed, SourceChanged), to_ours)
