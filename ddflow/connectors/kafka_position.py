"""What a state remembers of a topic of Kafka, and whether what it is opened on is still that.

Invariant: a position names the cluster and the topic that its offsets are of, each by its id, because a broker that was
made anew, another server, and a topic that was deleted and created again have other messages under the same names and
offsets. Where an id is another now, that is an error before anything is read. What nobody says is "", and is compared
with nothing: then offsets alone are, as with a broker before 2.8, which gives topics no id.

Not seen at once: a topic that is created anew under a run. That is noticed at the next look at its partitions, so what
came since the last one may be of either.

>>> was = TopicOrigin("5L6g3nShT-eMCtK--X86sw", "iUdtnEfkQqmBFqpgY4E8lg")
>>> remembered({0: 17}, was)
{'offsets': {'0': 17}, 'cluster': '5L6g3nShT-eMCtK--X86sw', 'topic_id': 'iUdtnEfkQqmBFqpgY4E8lg'}
>>> same("read orders", was, TopicOrigin("", "aYJZo9BsTVulFxpHR3PiyA"))
Traceback (most recent call last):
    ...
ddflow.errors.SourceChanged: read orders: it is another topic of this name: its id is aYJZo9BsTVulFxpHR3PiyA, and was \
iUdtnEfkQqmBFqpgY4E8lg; it was deleted and created again, and the offsets are of the other one: begin a new state
"""

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypedDict

from ddflow.errors import SourceChanged

ANSWER: Final = 3.0
"""Seconds that the id of a topic is waited for."""
_CLUSTER: Final = "give brokers of the one that was read; or begin a new state, because the offsets are of that one"
_TOPIC: Final = "it was deleted and created again, and the offsets are of the other one: begin a new state"


class TopicPosition(TypedDict):
    """Next offset of each partition (``offsets``), with the ids of the ``cluster`` and the topic."""

    offsets: dict[str, int]
    cluster: str
    topic_id: str


class TopicOrigin(NamedTuple):
    """Ids of the cluster and the topic of offsets; "" for an unknown one."""

    cluster: str = ""
    topic_id: str = ""


def remembered(at: Mapping[int, int] | Mapping[str, int], origin: TopicOrigin) -> TopicPosition:
    """Build a position.  O(partitions)."""
    offsets = {str(partition): offset for partition, offset in at.items()}
    return TopicPosition(offsets=offsets, cluster=origin.cluster, topic_id=origin.topic_id)


def same(asked: str, was: TopicOrigin, now: TopicOrigin) -> TopicOrigin:
    """Merge two origins.  Raises `SourceChanged` if their cluster or topic differs."""
    if was.cluster and now.cluster and was.cluster != now.cluster:
        found = f"it is another cluster: its id is {now.cluster}, and was {was.cluster}"
        raise SourceChanged(asked, found, _CLUSTER)
    if was.topic_id and now.topic_id and was.topic_id != now.topic_id:
        found = f"it is another topic of this name: its id is {now.topic_id}, and was {was.topic_id}"
        raise SourceChanged(asked, found, _TOPIC)
    return TopicOrigin(was.cluster or now.cluster, was.topic_id or now.topic_id)


class TopicIds:
    """Client that asks for the id of a topic, since a reader cannot.  ``settings``: of librdkafka.

    After a failure it asks no more, because a reader would wait each time.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings, self._silent = settings, False
        self._client: Any = None

    def of(self, topic: str) -> str:
        """Return the id of a topic; "" if it is unknown.  One request."""
        if self._silent:
            return ""
        library: Any = importlib.import_module("confluent_kafka")
        admin: Any = importlib.import_module("confluent_kafka.admin")
        try:
            self._client = self._client or admin.AdminClient(dict(self._settings))
            asked = self._client.describe_topics(library.TopicCollection([topic]), request_timeout=ANSWER)
            found = asked[topic].result().topic_id
        except library.KafkaException:
            self._silent = True
            return ""
        return str(found) if found.get_most_significant_bits() or found.get_least_significant_bits() else ""
