"""Read Kafka topics as a Spark data source through librdkafka, for machines without Spark's Kafka jar.

Options have the same names and meanings as in Spark's Kafka source. An unknown option is refused. Options that begin
with ``kafka.`` are passed to librdkafka, and errors never show the values of these options. The columns are those of
Spark's Kafka source, without ``timestampType``.

Guarantees: a batch of a stream has the same messages each time it is read, so a state receives each message once.
Spark's checkpoint keeps the offsets; no consumer group is used. Reading fails if offsets are lost, or if the name now
belongs to a different cluster or topic.

>>> KafkaSource({"subscrib": "orders"}).reader(KafkaSource({}).schema())
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: read Kafka with the option 'subscrib': there is no such option; did you mean 'subscribe'? ...
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ddflow.connectors.kafka.source import (
    KafkaTopicSource,
    OffsetRangeReader,
    TopicPosition,
    TopicWatcher,
    build_position,
)
from ddflow.errors import SpecError
from spark_bridge.errors import attach_error_notes
from spark_bridge.sources.base import StreamReader, check_limit_supported, check_options
from spark_bridge.types import spark_schema

SERVERS: Final = "kafka.bootstrap.servers"
BATCH: Final = ("endingOffsets",)
STREAM: Final = ("maxOffsetsPerTrigger",)
OPTIONS: Final = ("subscribe", SERVERS, "startingOffsets", "startingTimestamp", *BATCH, *STREAM)
Offsets = dict[str, dict[str, int]]
"""For each topic and partition, the offset of the next message.

Each partition is identified by its number as text, because JSON allows only text as keys.
"""
Positions = dict[str, TopicPosition]
"""The entry in Spark's checkpoint. For each topic, it contains the offsets and the identity of the topic."""
COLUMNS: Final = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
)
"""The columns of Spark's Kafka source, without ``timestampType``."""


class KafkaSource(DataSource):
    """The Spark data source ``ddflow-kafka``. See docs/spark.md for the options.

    Examples
    --------
    Register it, then load a topic::

        spark.dataSource.register(spark_bridge.KafkaSource)
        reader = spark.readStream.format("ddflow-kafka").option("kafka.bootstrap.servers", "broker:9092")
        feed = reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name, ``"ddflow-kafka"``."""
        return "ddflow-kafka"

    def schema(self) -> StructType:
        """Return the columns of messages.

        Returns
        -------
        pyspark.sql.types.StructType
            ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``.
        """
        return spark_schema(COLUMNS, "messages")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch: from ``startingOffsets`` ("earliest") to ``endingOffsets`` ("latest").

        Parameters
        ----------
        schema : pyspark.sql.types.StructType
            The columns. They must be all columns of the source.

        Returns
        -------
        DataSourceReader
            The reader, with one split for each partition of a topic.

        Raises
        ------
        SpecError
            For unknown options, or options of a stream.
        """
        self._check_query(schema, STREAM, "a batch")
        ending = self.options.get("endingOffsets", "latest")
        given = {} if ending == "latest" else self._parse_offsets("endingOffsets", ending)
        return TopicBatchReader(self._parse_start_topics("earliest"), Topics(self._make_topics("latest"), given))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream, from ``startingOffsets`` ("latest") on.

        Parameters
        ----------
        schema
            See `reader`.

        Returns
        -------
        DataSourceStreamReader
            The reader, with at most ``maxOffsetsPerTrigger`` messages in a batch.

        Raises
        ------
        SpecError
            For unknown options, or options of a batch.
        MissingExtra
            For a limit of messages before PySpark 4.2.
        """
        self._check_query(schema, BATCH, "a stream")
        most = self._parse_number("maxOffsetsPerTrigger")
        check_limit_supported(most, "follow Kafka with maxOffsetsPerTrigger")
        return TopicStreamReader(self._parse_start_topics("latest"), most)

    def _check_query(self, schema: StructType, others: tuple[str, ...], kind: str) -> None:
        """Raise `SpecError` if options are missing or belong to the other kind of query, or if the schema differs."""
        own = [name for name in self.options if not name.lower().startswith("kafka.")]
        check_options(own, OPTIONS, others, "read Kafka", f"read {kind} of Kafka")
        for name in ("subscribe", SERVERS):
            if not self.options.get(name):
                raise SpecError("read Kafka", f"the option {name} is missing", f'add .option("{name}", ...)')
        if schema != self.schema():
            raise SpecError("read Kafka with a schema", "its columns are always the same", "omit schema()")

    def _make_topics(self, start: str | datetime) -> list[KafkaTopicSource]:
        """Create the sources of the topics. ``start``: "earliest", "latest" or a time."""
        config = {name[6:]: value for name, value in self.options.items() if name.lower().startswith("kafka.")}
        servers = config.pop("bootstrap.servers")
        names = [name.strip() for name in self.options["subscribe"].split(",")]
        return [KafkaTopicSource(servers, name, start, False, config) for name in names]

    def _parse_start_topics(self, default: str) -> Topics:
        at, start = self._parse_number("startingTimestamp"), self.options.get("startingOffsets")
        if at is not None:
            if start is not None:
                raise SpecError(
                    "read Kafka with startingTimestamp", "startingOffsets is also set", "set only one of them"
                )
            return Topics(self._make_topics(datetime.fromtimestamp(at / 1000, UTC)), {})
        start = default if start is None else start.strip()
        if start in ("earliest", "latest"):
            return Topics(self._make_topics(start), {})
        return Topics(self._make_topics("earliest"), self._parse_offsets("startingOffsets", start))

    def _parse_offsets(self, name: str, given: str) -> Mapping[str, Mapping[str, int]]:
        """Parse offsets in Spark's form: {"topic": {"0": 23, "1": -2}}."""
        try:
            found: Any = json.loads(given)
            each = [(p, n) for partitions in found.values() for p, n in partitions.items()]
            if all(p.isdigit() and isinstance(n, int) and n >= -2 for p, n in each):
                return {str(topic): dict(partitions) for topic, partitions in found.items()}
        except (ValueError, AttributeError):
            pass
        remedy = 'use "earliest", "latest", or offsets by partition: {"topic": {"0": 23}}'
        raise SpecError(f"read Kafka with {name}", "that is not a position in a topic", remedy)

    def _parse_number(self, name: str) -> int | None:
        given = self.options.get(name)
        if given is None:
            return None
        if not (given.strip().isdigit() and int(given)):
            raise SpecError(
                f"read Kafka with {name}={given!r:.99}", "that is not a positive whole number", "use 1 or more"
            )
        return int(given)


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The messages of a topic's partition from offset ``first`` up to, but not including, offset ``end``."""

    of: KafkaTopicSource
    partition: int
    first: int
    end: int


class Topics:
    """The topics that the driver watches. ``given`` has the offsets to start from, by topic."""

    def __init__(self, of: Sequence[KafkaTopicSource], given: Mapping[str, Mapping[str, int]]) -> None:
        self.of, self.given = {each.topic: each for each in of}, given
        self._ends: dict[str, TopicWatcher] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ends": {}}

    def connect(self, topic: str) -> TopicWatcher:
        """Connect to a topic."""
        if topic not in self._ends:
            self._ends[topic] = TopicWatcher(self.of[topic])
        return self._ends[topic]

    def find_start_offsets(self) -> Offsets:
        """Find the offsets at which reading starts. O(partitions).

        Raises `SourceFailed`, `SourceChanged`, `UnreadableInput`.
        """
        return {topic: self._find_offsets(topic) or offsets_to_json(self.connect(topic).at) for topic in self.of}

    def _find_offsets(self, topic: str) -> dict[str, int]:
        """Return the offsets where reading of a topic starts.

        ``given`` has the offsets of some partitions; for all others, the start is looked up.

        In ``given``, -1 means the end of a partition and -2 the beginning.
        """
        if topic not in self.given:
            return {}
        ends, asked = self.connect(topic), {int(p): n for p, n in self.given[topic].items()}
        now = ends.fetch_offset_ranges()
        found = {p: now[p][{-1: 1, -2: 0}[n]] if n in (-1, -2) and p in now else n for p, n in asked.items()}
        ends.check_offsets(found, now)
        at = int(self.of[topic].start == "latest")
        return offsets_to_json({partition: each[at] for partition, each in now.items()} | found)

    def find_end_offsets(self, since: Offsets | None = None) -> Offsets:
        """Find the ends of the topics. The messages at the offsets ``since`` must still exist in the topics.

        O(partitions). Raises the errors of `find_start_offsets`.
        """
        found = dict[str, dict[str, int]]()
        for topic in self.of:
            ends = self.connect(topic)
            now = ends.fetch_offset_ranges()
            if since is not None:
                ends.check_offsets({int(p): n for p, n in since.get(topic, {}).items()}, now)
            found[topic] = offsets_to_json({partition: high for partition, (_, high) in now.items()})
        return found

    def build_positions(self, offsets: Offsets) -> Positions:
        """Combine offsets with the identities of their topics, for Spark's checkpoint. O(partitions)."""
        return {topic: build_position(each, self.connect(topic).origin) for topic, each in offsets.items()}

    def extract_offsets(self, positions: Positions) -> Offsets:
        """Extract the offsets from entries of a checkpoint. O(topics).

        Raises the same errors as `find_start_offsets`. Raises `SourceChanged` for offsets of another topic.
        """
        return {
            topic: dict(self.connect(topic).check_topic_identity(each))
            for topic, each in positions.items()
            if topic in self.of
        }

    def split_ranges(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Split the messages between two sets of offsets into ranges for tasks. O(partitions)."""
        made = list[InputPartition]()
        for topic, partitions in end.items():
            before = start.get(topic, {})
            new = self.connect(topic).fetch_offset_ranges() if partitions.keys() - before.keys() else {}
            for partition, last in partitions.items():
                first = before[partition] if partition in before else new[int(partition)][0]
                if first < last:
                    made.append(OffsetRange(self.of[topic], int(partition), first, last))
        return made


def read_offset_range(of: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the messages of a range, in a task. O(messages). Raises `SourceFailed`, `SourceChanged`."""
    assert isinstance(of, OffsetRange)
    with attach_error_notes(), closing(OffsetRangeReader(of.of, of.partition, of.first, of.end)) as reader:
        for batch in reader.batches():
            yield pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in COLUMNS], schema=COLUMNS)


class TopicBatchReader(DataSourceReader):
    """The reader of a batch.

    ``until`` has the offsets at which the batch ends: given by the user, or the ends of the topics at planning.
    """

    def __init__(self, topics: Topics, until: Topics) -> None:
        self.topics, self.until = topics, until

    def partitions(self) -> Sequence[InputPartition]:
        """Split the batch into ranges for tasks, with at most one range for each partition of a topic."""
        return self.topics.split_ranges(self.topics.find_start_offsets(), self.until.find_start_offsets())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a range."""
        return read_offset_range(partition)


class TopicStreamReader(StreamReader):
    """The reader of a stream. ``most``: the maximum number of messages in a batch."""

    limit = "ReadMaxRows"

    def __init__(self, topics: Topics, most: int | None = None) -> None:
        self.topics, self.most = topics, most

    def find_stream_end(self) -> Offsets:
        """Return the ends of the topics."""
        return self.topics.find_end_offsets()

    def initialOffset(self) -> Positions:
        """Return the start of a new query."""
        return self.topics.build_positions(self.topics.find_start_offsets())

    def latestOffset(self, start: Positions | None = None, limit: Any = None) -> Positions:
        """Return the end of the next batch. O(partitions)."""
        since = None if start is None else self.topics.extract_offsets(start)
        end = self.topics.find_end_offsets(since) if self.target is None else self.target
        if since is not None and (most := getattr(limit, "max_rows", None)):
            end = limit_messages(since, end, most)
        return self.topics.build_positions(end)

    def partitions(self, start: Positions, end: Positions) -> Sequence[InputPartition]:
        """Split a batch into ranges for tasks."""
        return self.topics.split_ranges(self.topics.extract_offsets(start), self.topics.extract_offsets(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a range."""
        return read_offset_range(partition)


def offsets_to_json(offsets: Mapping[int, int]) -> dict[str, int]:
    """Convert each partition's number to text, as JSON requires for keys."""
    return {str(partition): offset for partition, offset in offsets.items()}


def limit_messages(start: Offsets, end: Offsets, most: int) -> Offsets:
    """Limit a batch to ``most`` messages, and divide them between partitions in proportion to their lag. O(partitions).

    >>> limit_messages({"t": {"0": 5, "1": 0}}, {"t": {"0": 105, "1": 20}}, 12)
    {'t': {'0': 15, '1': 2}}
    """
    lag = {
        (topic, partition): last - start.get(topic, {}).get(partition, 0)
        for topic, partitions in end.items()
        for partition, last in partitions.items()
    }
    whole, left = sum(lag.values()), most
    made = {topic: dict(partitions) for topic, partitions in end.items()}
    for (topic, partition), there in sorted(lag.items(), key=lambda each: -each[1]):
        taken = min(there, left, -(-there * most // max(whole, 1)))
        made[topic][partition] = end[topic][partition] - there + taken
        left -= taken
    return made
