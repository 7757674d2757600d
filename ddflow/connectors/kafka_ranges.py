"""Kafka by ranges of offsets: where partitions begin and end, and what one has from an offset to another.

Invariant: a range gives the committed messages of its offsets, in their order, the same ones whenever it is read;
offsets that the topic has no more are an error. Who reads ranges keeps positions itself, so no consumer group is
needed. Nothing is read past the end of a range, though more may have come.

>>> Ends.__init__.__annotations__["of"], RangeReader.batches.__name__
(<class 'ddflow.connectors.kafka.KafkaTopic'>, 'batches')
"""

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.kafka import AT_ONCE, WAIT, KafkaTopic, TopicReader, library
from ddflow.connectors.kafka_position import TopicOrigin, TopicPosition, remembered, same
from ddflow.errors import SourceChanged, SourceFailed

SILENCE: Final = 60.0
"""Seconds without a message of a range that are too many."""


class Ends(TopicReader):
    """The partitions of a topic, watched and not read.  ``at``: where each begins, by the start that is declared.

    Raises `SourceFailed`, `UnreadableInput`.
    """

    def __init__(self, of: KafkaTopic) -> None:
        super().__init__(of, of.topic, None, watched=True)
        self.consumer.unassign()

    def now(self) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition, and the one after its last.

        O(partitions).  Raises `SourceFailed`.
        """
        kafka, topic = library(), self.of.topic
        with self._talking():
            each = {
                number: kafka.TopicPartition(topic, number) for number in sorted(self._fetch_topic(WAIT).partitions)
            }
            return {number: self.consumer.get_watermark_offsets(p, timeout=WAIT) for number, p in each.items()}

    def still(self, position: TopicPosition) -> Mapping[str, int]:
        """Return the offsets of a position.  Raises `SourceChanged` if its topic or cluster is another."""
        self.origin = same(self.asked, TopicOrigin(position["cluster"], position["topic_id"]), self.origin)
        return position["offsets"]

    def check(self, offsets: Mapping[int, int], now: Mapping[int, tuple[int, int]]) -> None:
        """Raise `SourceChanged` for offsets that the topic does not have.  O(partitions)."""
        for partition, offset in offsets.items():
            low, high = now.get(partition, (0, -1))
            if not low <= offset <= high:
                found = f"partition {partition} was read up to {offset:,}, and has {low:,} to {max(high, 0):,}"
                raise SourceChanged(self.asked, found, "messages in between are lost here: begin anew, or restore it")


class RangeReader(TopicReader):
    """The messages of a ``partition`` from ``first`` on, before ``end``.  Raises as `TopicReader`."""

    def __init__(self, of: KafkaTopic, partition: int, first: int, end: int) -> None:
        self.partition, self.end = partition, end
        super().__init__(of, of.topic, remembered({partition: first}, TopicOrigin()))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all messages.  O(messages).  Raises `SourceFailed`, `SourceChanged`."""
        heard = monotonic()
        while self.at[self.partition] < self.end:
            before = self.at[self.partition]
            with self._talking():
                batch = self._batch(self._good(self.consumer.consume(AT_ONCE, timeout=0.1)))
            if self.at[self.partition] > before:
                heard = monotonic()
            elif monotonic() - heard > SILENCE:
                found = f"nothing came of partition {self.partition} from offset {before:,} on for {SILENCE:.0f} s"
                raise SourceFailed(self.asked, found, "see to the brokers")
            if batch is not None:
                yield batch.filter(pc.less(batch.column("offset"), self.end))

    def _assign(self, start: object) -> None:
        self.until = {self.partition: self.end}
        self.consumer.assign([library().TopicPartition(self.of.topic, self.partition, self.at[self.partition])])
