"""Read the committed messages of a Kafka topic, either from a position on or in ranges of offsets.

A position holds the next offset of each partition and the ids of the cluster and the topic. The manifest stores the
position, so ddflow needs no consumer group. If you name a group, ddflow commits the offsets to this group after each
epoch. Guarantees: reading fails if the cluster or the topic is not the one in the position. No declaration, message or
manifest shows a secret. Limits: if a topic is dropped and created again during a run, ddflow notices this only at the
next check of the partitions. Brokers before version 2.8 have no topic ids, so ddflow compares only offsets.

>>> KafkaTopicSource("broker:9092", "orders", "earliest", False, {"sasl.password": "secret"})
KafkaTopicSource(servers='broker:9092', topic='orders', start='earliest', follow=False, group=None, ...)
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple, TypedDict, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.api import OpenSource, Polled, Source
from ddflow.connectors.formats.routes import Others, check_table_routing, group_batches_by_input
from ddflow.errors import (
    DdflowError,
    SourceChanged,
    SourceFailed,
    SpecError,
    UnreadableInput,
    convert_errors,
    import_extra,
    mask_secrets,
)
from ddflow.storage.address import refuse_embedded_secret
from ddflow.storage.closing import undo_on_failure

ANSWER: Final = 3.0
"""Seconds to wait for the id of a topic."""
_CLUSTER: Final = "pass brokers of the cluster that was read; or create a new state, as offsets belong to a cluster"
_TOPIC: Final = "it was deleted and created again, and the offsets belong to the deleted topic: create a new state"


class TopicPosition(TypedDict):
    """Position in a topic: the next offset of each partition, the id of the cluster, and the id of the topic."""

    offsets: dict[str, int]
    cluster: str
    topic_id: str


class TopicIdentity(NamedTuple):
    """Ids of a cluster and a topic.  An unknown id is ""."""

    cluster: str = ""
    topic_id: str = ""


def build_position(at: Mapping[int, int] | Mapping[str, int], origin: TopicIdentity) -> TopicPosition:
    """Build a position from the next offset of each partition.  O(partitions)."""
    offsets = {str(partition): offset for partition, offset in at.items()}
    return TopicPosition(offsets=offsets, cluster=origin.cluster, topic_id=origin.topic_id)


def merge_topic_identities(asked: str, was: TopicIdentity, now: TopicIdentity) -> TopicIdentity:
    """Combine two identities, each of which may lack an id.

    Raises `SourceChanged` if both have an id and the ids differ.

    >>> was = TopicIdentity("5L6g3nShT-eMCtK--X86sw", "iUdtnEfkQqmBFqpgY4E8lg")
    >>> build_position({0: 17}, was)
    {'offsets': {'0': 17}, 'cluster': '5L6g3nShT-eMCtK--X86sw', 'topic_id': 'iUdtnEfkQqmBFqpgY4E8lg'}
    >>> merge_topic_identities("read orders", was, TopicIdentity("", "aYJZo9BsTVulFxpHR3PiyA"))
    Traceback (most recent call last):
        ...
    ddflow.errors.SourceChanged: read orders: it is another topic of this name: its id is aYJZo9BsTVulFxpHR3PiyA, \
but was iUdtnEfkQqmBFqpgY4E8lg; it was deleted and created again, and the offsets belong to the deleted topic: create \
a new state
    """
    if was.cluster and now.cluster and was.cluster != now.cluster:
        found = f"it is another cluster: its id is {now.cluster}, but was {was.cluster}"
        raise SourceChanged(asked, found, _CLUSTER)
    if was.topic_id and now.topic_id and was.topic_id != now.topic_id:
        found = f"it is another topic of this name: its id is {now.topic_id}, but was {was.topic_id}"
        raise SourceChanged(asked, found, _TOPIC)
    return TopicIdentity(was.cluster or now.cluster, was.topic_id or now.topic_id)


WAIT: Final = 10.0
"""Seconds to wait for an answer from a broker."""
LOOK: Final = 10.0
"""Seconds between two checks for new partitions."""
AGAIN: Final = 2.0
"""Seconds to wait for an answer after all connections to the brokers broke."""
AT_ONCE: Final = 10_000
CONFIG: Final = "pass them as config={'sasl.username': ..., 'sasl.password': ...}, and brokers as HOST:PORT"
QUIET: Final = {"log_level": 0, "socket.keepalive.enable": True}


def import_confluent_kafka() -> Any:
    """Import confluent-kafka.  Raises `MissingExtra`."""
    return import_extra("connect to Kafka", "kafka", "confluent_kafka")


@dataclass(frozen=True)
class KafkaTopicSource(Source):
    """See `dd.sources.kafka`."""

    servers: str
    topic: str
    start: str | datetime
    follow: bool
    config: Mapping[str, Any] = field(repr=False, default_factory=dict)
    group: str | None = None
    tables: Mapping[str, str] | None = None
    others: Others = "error"
    kind: ClassVar[str] = "kafka"
    unit: ClassVar[str] = "messages"
    positions: ClassVar[Any] = TopicPosition

    def __post_init__(self) -> None:
        refuse_embedded_secret(self.target, CONFIG)
        check_table_routing(self.tables, self.others, "dd.sources.kafka")
        if isinstance(self.start, str) and self.start not in ("earliest", "latest"):
            remedy = "use 'earliest', 'latest', or a datetime with a time zone"
            raise SpecError(f"start={self.start!r}", "that is not a position in a topic", remedy)

    @property
    def target(self) -> str:
        """Address of the brokers, and the topic."""
        return f"kafka://{self.servers}/{self.topic}"

    @classmethod
    def said(cls, position: Any) -> str:
        """Describe the next offset of each partition."""
        return ", ".join(f"offset {offset} of partition {each}" for each, offset in position["offsets"].items())

    def inputs(self, name: str) -> Sequence[str]:
        """Return the inputs that the declared tables feed; ``name`` if no tables are declared."""
        return (name,) if self.tables is None else tuple(dict.fromkeys(self.tables.values()))

    def needs(self) -> None:
        """Import the library ``confluent-kafka``."""
        import_confluent_kafka()

    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> OpenSource:
        """Connect, and check that the topic still has the messages after the position."""
        return TopicReader(self, next(iter(inputs)), position, watched=True)


class TopicReader(OpenSource):
    """Reader of all partitions of a topic.

    ``position``: the position to continue after; None to begin at the declared start.  ``watched``: whether to fetch
    the id of the topic too.
    """

    def __init__(self, of: KafkaTopicSource, name: str, position: TopicPosition | None, watched: bool = False) -> None:
        self.of, self.name = of, name
        self.asked = f"read {of.target}"
        self.at, self.origin = dict[int, int](), TopicIdentity()
        if position is not None:
            self.at = {int(partition): offset for partition, offset in position["offsets"].items()}
            self.origin = TopicIdentity(position["cluster"], position["topic_id"])
        kafka = import_confluent_kafka()
        settings = {"bootstrap.servers": of.servers, **QUIET, **of.config}
        self._id_settings, self._id_client = settings if watched else None, cast(Any, None)
        self._down = False
        """Whether all connections to the brokers broke since the last check of the topic's identity."""
        settings = {"group.id": of.group or "ddflow", "error_cb": self._note_lost_brokers, **settings}
        settings |= {"enable.auto.commit": False, "auto.offset.reset": "error", "enable.partition.eof": True}
        settings.setdefault("fetch.wait.max.ms", 100)
        with self._translate_errors():
            self.consumer = kafka.Consumer({"isolation.level": "read_committed", **settings})
        self.until = dict[int, int]()
        self.written = dict[int, float]()
        """For each partition, the write time of the last message that was read; 0 if this message has no time."""
        with undo_on_failure(self.consumer.close), self._translate_errors():
            self._assign_partitions(of.start if position is None else "earliest")
        self._looked = monotonic()

    @property
    def ended(self) -> bool:
        """Whether a source without ``follow`` has read all messages that the topic had when the source was opened."""
        return not self.of.follow and all(self.at[each] >= until for each, until in self.until.items())

    def lag(self) -> int | None:
        """Count the unread messages that the client knows of."""
        behind, kafka, left = 0, import_confluent_kafka(), list[float]()
        for partition, offset in self.at.items():
            with suppress(kafka.KafkaException):
                high = self.consumer.get_watermark_offsets(kafka.TopicPartition(self.of.topic, partition), cached=True)
                if (more := max(high[1] if high else 0, self.until[partition]) - offset) > 0:
                    behind += more
                    left.append(self.written.get(partition, 0.0))
        self.reached = min(left, default=0.0) or None
        return behind

    def poll(self, room: int) -> Polled | None:
        """Return messages of all partitions.  The messages of a partition keep their order."""
        came, size, before = list[Any](), 0, dict(self.at)
        with self._translate_errors():
            if self.of.follow and monotonic() - self._looked > LOOK:
                self._looked = monotonic()
                self._assign_partitions("earliest")
                before = dict(self.at)
            while size < room:
                some = self.consumer.consume(AT_ONCE, timeout=0.02 if came else 0.1)
                good = self._filter_messages(some)
                came += good
                size += sum(map(len, good))
                if not good:
                    break
            if self._down:  # the messages may come from another cluster already
                self._fetch_topic_metadata(AGAIN)
            batch = self._convert_to_batch(came)
        if self.at == before:
            return None
        rows = group_batches_by_input(
            [] if batch is None else [batch], self.name, self.of.tables, self.of.others, self.asked
        )
        return Polled(rows, build_position(self.at, self.origin))

    def acknowledge(self, position: Any) -> None:
        """Commit the offsets to the consumer group, if a group is set."""
        if self.of.group is not None:
            kafka = import_confluent_kafka()
            told = [kafka.TopicPartition(self.of.topic, int(p), n) for p, n in position["offsets"].items()]
            with suppress(kafka.KafkaException):
                self.consumer.commit(offsets=told, asynchronous=True)

    def close(self) -> None:
        """Close the connections."""
        self.consumer.close()
        self._id_settings = self._id_client = None

    def _note_lost_brokers(self, error: Any) -> None:
        """Note whether all connections to the brokers broke.

        The client calls the method with each error, including errors of idle connections.
        """
        self._down |= error.code() == import_confluent_kafka().KafkaError._ALL_BROKERS_DOWN

    def _fetch_topic_metadata(self, wait: float) -> Any:
        """Fetch the metadata of the topic, and check that the cluster and the topic are still the same."""
        topic, self._down = self.of.topic, False
        cluster = self.consumer.list_topics(topic, timeout=wait)
        self.origin = merge_topic_identities(self.asked, self.origin, TopicIdentity(cluster.cluster_id or ""))
        if (found := cluster.topics[topic]).error is not None:
            raise import_confluent_kafka().KafkaException(found.error)
        if self._id_settings is not None and cluster.controller_id in cluster.brokers:  # the controller answers
            self.origin = merge_topic_identities(
                self.asked, self.origin, TopicIdentity("", self._fetch_topic_id(topic))
            )
        return found

    def _fetch_topic_id(self, topic: str) -> str:
        """Fetch the id of a topic with an admin client, because a consumer cannot request the id.

        Return "" if the id is unknown. After a failure the reader does not fetch the id again, because each attempt
        would wait for the timeout.
        """
        kafka, admin = import_confluent_kafka(), importlib.import_module("confluent_kafka.admin")
        try:
            self._id_client = self._id_client or admin.AdminClient(self._id_settings)
            asked = self._id_client.describe_topics(kafka.TopicCollection([topic]), request_timeout=ANSWER)
            found = asked[topic].result().topic_id
        except kafka.KafkaException:
            self._id_settings = self._id_client = None
            return ""
        return str(found) if found.get_most_significant_bits() or found.get_least_significant_bits() else ""

    def _filter_messages(self, came: Sequence[Any]) -> Sequence[Any]:
        """Return the messages without an error.

        The client reports the end of a partition as an error. At the end of a partition, the method advances the
        partition's offset. The method raises any other error.
        """
        kafka = import_confluent_kafka()
        wrong = [at for at, error in enumerate(map(kafka.Message.error, came)) if error is not None]
        for each in (came[at] for at in wrong):
            if each.error().code() != kafka.KafkaError._PARTITION_EOF:
                raise kafka.KafkaException(each.error())
            self.at[each.partition()] = max(self.at[each.partition()], each.offset())
        return [each for each in came if each.error() is None] if wrong else came

    def _convert_to_batch(self, good: Sequence[Any]) -> pa.RecordBatch | None:
        """Convert messages to a batch of columns, without a Python loop over messages.

        Return None if there are no messages.
        """
        if not good:
            return None
        of, n = import_confluent_kafka().Message, len(good)
        partitions, offsets = (np.fromiter(map(each, good), np.int64, n) for each in (of.partition, of.offset))
        times = np.fromiter(map(itemgetter(1), map(of.timestamp, good)), np.int64, n)
        for partition in np.unique(partitions).tolist():
            last = np.flatnonzero(partitions == partition)[-1]
            self.at[partition] = max(self.at[partition], int(offsets[last]) + 1)
            self.written[partition] = max(int(times[last]), 0) / 1000
        columns: dict[str, pa.Array] = {
            "value": pa.array(list(map(of.value, good)), pa.binary()),
            "key": pa.array(list(map(of.key, good)), pa.binary()),
            "topic": pa.repeat(self.of.topic, n),
            "partition": pa.array(partitions.astype(np.int32)),
            "offset": pa.array(offsets),
            "timestamp": pa.array(times).cast(pa.timestamp("ms")),
        }
        return pa.record_batch(columns)

    def _assign_partitions(self, start: str | datetime) -> None:
        """Begin to read all partitions of the topic.  New partitions begin at ``start``."""
        kafka, topic, found = import_confluent_kafka(), self.of.topic, self._fetch_topic_metadata(WAIT)
        new = [each for each in sorted(found.partitions) if each not in self.until]
        if not new:
            return
        if lost := sorted(self.at.keys() - found.partitions.keys()):
            raise SourceChanged(self.asked, f"it no longer has the partitions {lost}", _ANOTHER)
        begins = self._find_start_offsets(new, start)
        for partition in new:
            low, high = self.consumer.get_watermark_offsets(kafka.TopicPartition(topic, partition), timeout=WAIT)
            at = self.at.setdefault(partition, begins.get(partition, high if start == "latest" else low))
            if not low <= at <= high:
                found_ = f"partition {partition} was read up to {at:,}, but has {low:,} to {high:,}"
                raise SourceChanged(self.asked, found_, _ANOTHER)
            self.until[partition] = high
        self.consumer.assign([kafka.TopicPartition(topic, p, n) for p, n in self.at.items()])

    def _find_start_offsets(self, partitions: Iterable[int], start: str | datetime) -> dict[int, int]:
        """Return each partition's first offset at or after the time ``start``; {} if ``start`` is not a time."""
        if isinstance(start, str):
            return {}
        kafka, at = import_confluent_kafka(), int(start.timestamp() * 1000)
        asked = [kafka.TopicPartition(self.of.topic, each, at) for each in partitions]
        found = self.consumer.offsets_for_times(asked, timeout=WAIT)
        ends = {each: self.consumer.get_watermark_offsets(each, timeout=WAIT)[1] for each in asked}
        return {each.partition: each.offset if each.offset >= 0 else ends[each] for each in found}

    def _translate_errors(self) -> AbstractContextManager[None]:
        """Convert an error of the library to an error of ddflow, which is a failure to retry or a mistake to fix."""
        of = import_confluent_kafka().KafkaError

        def to_ours(error: Any) -> DdflowError:
            code, said = error.args[0].code(), mask_secrets(error.args[0].str(), self.of.config.values())
            if code == of._AUTO_OFFSET_RESET:
                return SourceChanged(self.asked, said, _ANOTHER)
            if code in (of.UNKNOWN_TOPIC_OR_PART, of._UNKNOWN_TOPIC):
                return UnreadableInput(self.asked, "there is no such topic", "create it, or fix its name")
            if code in (of._INVALID_ARG, of.TOPIC_AUTHORIZATION_FAILED):
                return UnreadableInput(self.asked, said, "check config= and the permissions of its user")
            return SourceFailed(self.asked, said, "check the brokers")

        return convert_errors(import_confluent_kafka().KafkaException, to_ours)


_ANOTHER: Final = "the messages in between are lost: create a new state, or restore the topic"


SILENCE: Final = 60.0
"""Seconds without a new message after which the read of an offset range fails."""


class TopicWatcher(TopicReader):
    """Watcher of the offsets of a topic.  A watcher reads no messages.

    ``at``: first offset of each partition, for the declared start.  Raises `SourceFailed`, `UnreadableInput`.

    >>> TopicWatcher.__init__.__annotations__["of"], OffsetRangeReader.batches.__name__
    (<class 'ddflow.connectors.kafka.source.KafkaTopicSource'>, 'batches')
    """

    def __init__(self, of: KafkaTopicSource) -> None:
        super().__init__(of, of.topic, None, watched=True)
        self.consumer.unassign()

    def fetch_offset_ranges(self) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition, and the offset after the partition's last message.

        O(partitions).  Raises `SourceFailed`.
        """
        kafka, topic = import_confluent_kafka(), self.of.topic
        with self._translate_errors():
            each = {
                number: kafka.TopicPartition(topic, number)
                for number in sorted(self._fetch_topic_metadata(WAIT).partitions)
            }
            return {number: self.consumer.get_watermark_offsets(p, timeout=WAIT) for number, p in each.items()}

    def check_topic_identity(self, position: TopicPosition) -> Mapping[str, int]:
        """Return the offsets of a position.

        Raises `SourceChanged` if the topic or the cluster is not the one in the position.
        """
        self.origin = merge_topic_identities(
            self.asked, TopicIdentity(position["cluster"], position["topic_id"]), self.origin
        )
        return position["offsets"]

    def check_offsets(self, offsets: Mapping[int, int], now: Mapping[int, tuple[int, int]]) -> None:
        """Raise `SourceChanged` for offsets that the topic does not have.  O(partitions)."""
        for partition, offset in offsets.items():
            low, high = now.get(partition, (0, -1))
            if not low <= offset <= high:
                found = f"partition {partition} was read up to {offset:,}, but has {low:,} to {max(high, 0):,}"
                raise SourceChanged(self.asked, found, "the messages in between are lost: begin again, or restore it")


class OffsetRangeReader(TopicReader):
    """Reader of the messages of a ``partition`` from the offset ``first`` up to, but not including, the offset ``end``.

    Raises the same errors as `TopicReader`.
    """

    def __init__(self, of: KafkaTopicSource, partition: int, first: int, end: int) -> None:
        self.partition, self.end = partition, end
        super().__init__(of, of.topic, build_position({partition: first}, TopicIdentity()))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all messages of the range.  O(messages).  Raises `SourceFailed`, `SourceChanged`."""
        heard = monotonic()
        while self.at[self.partition] < self.end:
            before = self.at[self.partition]
            with self._translate_errors():
                batch = self._convert_to_batch(self._filter_messages(self.consumer.consume(AT_ONCE, timeout=0.1)))
            if self.at[self.partition] > before:
                heard = monotonic()
            elif monotonic() - heard > SILENCE:
                found = f"partition {self.partition} sent no message from offset {before:,} on for {SILENCE:.0f} s"
                raise SourceFailed(self.asked, found, "check the brokers")
            if batch is not None:
                yield batch.filter(pc.less(batch.column("offset"), self.end))

    def _assign_partitions(self, start: object) -> None:
        self.until = {self.partition: self.end}
        self.consumer.assign(
            [import_confluent_kafka().TopicPartition(self.of.topic, self.partition, self.at[self.partition])]
        )
