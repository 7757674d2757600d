"""Topics of Kafka as Spark's batches and streams read them: partitions of offsets, read in tasks.

Invariant: a batch of a stream has the messages between two sets of offsets, the same ones whenever it is given, so a
state that is fed by it has each once. Positions are in Spark's checkpoint; no consumer group is needed. Offsets that a
topic has no more are an error, never a gap, and so are those of another cluster or topic of the same name.

>>> shares({"t": {"0": 5, "1": 0}}, {"t": {"0": 105, "1": 20}}, 12)
{'t': {'0': 15, '1': 2}}
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from ddflow.connectors.kafka.source import Ends, KafkaTopic, RangeReader, TopicPosition, remembered
from spark_bridge.errors import noted

Offsets = dict[str, dict[str, int]]
"""By topic and partition (a text, as JSON has it), the next offset."""
Positions = dict[str, TopicPosition]
"""By topic, what Spark keeps: offsets, and of what they are."""
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
"""As Spark's own source has them, but for ``timestampType``."""


@dataclass(frozen=True)
class Range(InputPartition):
    """Messages of a partition of a topic, from an offset on, before another."""

    of: KafkaTopic
    partition: int
    first: int
    end: int


class Topics:
    """Some topics, watched from where Spark plans.  ``given``: offsets that are named instead of a start."""

    def __init__(self, of: Sequence[KafkaTopic], given: Mapping[str, Mapping[str, int]]) -> None:
        self.of, self.given = {each.topic: each for each in of}, given
        self._ends: dict[str, Ends] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ends": {}}

    def ends(self, topic: str) -> Ends:
        """Connect to a topic."""
        if topic not in self._ends:
            self._ends[topic] = Ends(self.of[topic])
        return self._ends[topic]

    def begin(self) -> Offsets:
        """Where reading begins.  O(partitions).  Raises `SourceFailed`, `SourceChanged`, `UnreadableInput`."""
        return {topic: self._find_offsets(topic) or text(self.ends(topic).at) for topic in self.of}

    def _find_offsets(self, topic: str) -> dict[str, int]:
        """Return the given offsets, and the start of other partitions; -1 is the end and -2 the beginning."""
        if topic not in self.given:
            return {}
        ends, asked = self.ends(topic), {int(p): n for p, n in self.given[topic].items()}
        now = ends.now()
        found = {p: now[p][{-1: 1, -2: 0}[n]] if n in (-1, -2) and p in now else n for p, n in asked.items()}
        ends.check(found, now)
        at = int(self.of[topic].start == "latest")
        return text({partition: each[at] for partition, each in now.items()} | found)

    def now(self, since: Offsets | None = None) -> Offsets:
        """Where topics end.  ``since``: that they must still have.  O(partitions).  Raises as `begin`."""
        found = dict[str, dict[str, int]]()
        for topic in self.of:
            ends = self.ends(topic)
            now = ends.now()
            if since is not None:
                ends.check({int(p): n for p, n in since.get(topic, {}).items()}, now)
            found[topic] = text({partition: high for partition, (_, high) in now.items()})
        return found

    def positions(self, offsets: Offsets) -> Positions:
        """Return the offsets of the existing topics, in Spark's form. O(partitions)."""
        return {topic: remembered(each, self.ends(topic).origin) for topic, each in offsets.items()}

    def offsets(self, positions: Positions) -> Offsets:
        """Return the offsets of positions. O(topics).

        Raises the errors of `begin`, and `SourceChanged` for positions of another topic.
        """
        return {topic: dict(self.ends(topic).still(each)) for topic, each in positions.items() if topic in self.of}

    def between(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Split the messages between two offsets into ranges for tasks. O(partitions)."""
        made = list[InputPartition]()
        for topic, partitions in end.items():
            before = start.get(topic, {})
            new = self.ends(topic).now() if partitions.keys() - before.keys() else {}
            for partition, last in partitions.items():
                first = before[partition] if partition in before else new[int(partition)][0]
                if first < last:
                    made.append(Range(self.of[topic], int(partition), first, last))
        return made


def read(of: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the messages of a range, in a task. O(messages). Raises `SourceFailed`, `SourceChanged`."""
    assert isinstance(of, Range)
    with noted(), closing(RangeReader(of.of, of.partition, of.first, of.end)) as reader:
        for batch in reader.batches():
            yield pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in COLUMNS], schema=COLUMNS)


class TopicBatch(DataSourceReader):
    """Messages up to where topics end when the query is planned, or before ``until``."""

    def __init__(self, topics: Topics, until: Topics | None) -> None:
        self.topics, self.until = topics, until

    def partitions(self) -> Sequence[InputPartition]:
        """One a partition of a topic."""
        return self.topics.between(self.topics.begin(), (self.until.begin() if self.until else self.topics.now()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Its messages."""
        return read(partition)


class TopicStream(DataSourceStreamReader):
    """Messages as they come."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics

    def initialOffset(self) -> Positions:
        """Where a new query begins."""
        return self.topics.positions(self.topics.begin())

    def latestOffset(self, start: Positions | None = None, limit: Any = None) -> Positions:
        """Return the end of a batch: all available messages."""
        return self.topics.positions(self.topics.now(None if start is None else self.topics.offsets(start)))

    def partitions(self, start: Positions, end: Positions) -> Sequence[InputPartition]:
        """Split a batch into ranges for tasks."""
        return self.topics.between(self.topics.offsets(start), self.topics.offsets(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a range."""
        return read(partition)


def text(offsets: Mapping[int, int]) -> dict[str, int]:
    """Offsets as JSON has them."""
    return {str(partition): offset for partition, offset in offsets.items()}


def shares(start: Offsets, end: Offsets, most: int) -> Offsets:
    """Limit a batch to ``most`` messages and share them between partitions by their lag. O(partitions)."""
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
