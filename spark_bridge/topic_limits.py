"""Topics of Kafka as a stream of so many messages a batch, and up to what is there now: what Spark asks from 4.2 on.

Invariant: as in ``topics``; and no batch has more messages than it may. A query that is to take what is available ends
where the topics ended when it asked.

>>> LimitedTopics(Topics([], {}), 100).getDefaultReadLimit()
ReadMaxRows(max_rows=100)
"""

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from spark_bridge.topics import Offsets, Positions, Topics, TopicStream, shares


class LimitedTopics(TopicStream, SupportsTriggerAvailableNow):
    """``most``: messages of a batch, None for all there are."""

    def __init__(self, topics: Topics, most: int | None) -> None:
        super().__init__(topics)
        self.most = most
        self._target: Offsets | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """How many messages a batch has."""
        return ReadAllAvailable() if self.most is None else ReadMaxRows(self.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the messages that are available now."""
        self._target = self.topics.now()

    def latestOffset(self, start: Positions | None = None, limit: Any = None) -> Positions:
        """Where the next batch ends.  O(partitions)."""
        since = None if start is None else self.topics.offsets(start)
        end = self.topics.now(since) if self._target is None else self._target
        if since is not None and isinstance(limit, ReadMaxRows):
            end = shares(since, end, limit.max_rows)
        return self.topics.positions(end)
