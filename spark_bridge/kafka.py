"""Kafka as a Spark data source, for machines without Spark's own Kafka jar; librdkafka reads.

Invariant: options are those of Spark's source, mean what they mean there, and are understood or refused; what begins
with ``kafka.`` is librdkafka's. No value of an option is in a message. Batches and streams have the columns of Spark's
source, but for ``timestampType``, so the one can be taken for the other. What is read, and how, is in ``topics``.

>>> KafkaSource({"subscrib": "orders"}).reader(KafkaSource({}).schema())
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: read Kafka with the option 'subscrib': there is no such option; did you mean 'subscribe'? ...
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from ddflow.columns.names import did_you_mean
from ddflow.connectors.kafka.source import KafkaTopic
from ddflow.errors import MissingExtra, SpecError
from spark_bridge.topics import COLUMNS, TopicBatch, Topics, TopicStream
from spark_bridge.types import spark_schema

SERVERS: Final = "kafka.bootstrap.servers"
BATCH: Final = ("endingOffsets",)
STREAM: Final = ("maxOffsetsPerTrigger",)
OPTIONS: Final = ("subscribe", SERVERS, "startingOffsets", "startingTimestamp", *BATCH, *STREAM)


class KafkaSource(DataSource):
    """The Spark data source ``ddflow-kafka``.  docs/spark.md has the options.

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
        """Make what reads a batch: from ``startingOffsets`` ("earliest") to ``endingOffsets`` ("latest").

        Parameters
        ----------
        schema : pyspark.sql.types.StructType
            The columns, all of them.

        Returns
        -------
        DataSourceReader
            One partition for each of a topic's.

        Raises
        ------
        SpecError
            For options that are none, or not of a batch.
        """
        self._check(schema, STREAM, "a batch")
        ending = self.options.get("endingOffsets", "latest")
        until = None if ending == "latest" else Topics(self._of("latest"), self._offsets("endingOffsets", ending))
        return TopicBatch(self._topics("earliest"), until)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Make what follows topics: from ``startingOffsets`` ("latest") on.

        Parameters
        ----------
        schema
            As of `reader`.

        Returns
        -------
        DataSourceStreamReader
            With up to ``maxOffsetsPerTrigger`` messages a batch.

        Raises
        ------
        SpecError
            For options that are none, or not of a stream.
        MissingExtra
            For a limit of messages before PySpark 4.2.
        """
        self._check(schema, BATCH, "a stream")
        most = self._number("maxOffsetsPerTrigger")
        topics = self._topics("latest")
        try:
            from spark_bridge.topic_limits import LimitedTopics
        except ImportError as error:  # Spark asks an input for its newest offset only
            if most is None:
                return TopicStream(topics)
            asked = f"follow Kafka with maxOffsetsPerTrigger={most}"
            raise MissingExtra(asked, str(error), "pip install 'pyspark>=4.2'") from None
        return LimitedTopics(topics, most)

    def _check(self, schema: StructType, other: tuple[str, ...], what: str) -> None:
        known = {name.lower(): name for name in OPTIONS}
        for name in self.options:
            if name.lower() not in known and not name.lower().startswith("kafka."):
                remedy = did_you_mean(name, list(OPTIONS))
                raise SpecError(f"read Kafka with the option {name!r}", "there is no such option", remedy)
            if known.get(name.lower()) in other:
                raise SpecError(
                    f"read {what} of Kafka with the option {name!r}", "it is of the other kind of query", "leave it out"
                )
        for name in ("subscribe", SERVERS):
            if not self.options.get(name):
                raise SpecError("read Kafka", f"the option {name} is missing", f'give .option("{name}", ...)')
        if schema != self.schema():
            raise SpecError("read Kafka with a schema", "its columns are always the same", "leave schema() out")

    def _of(self, start: str | datetime) -> list[KafkaTopic]:
        """Make the topics, to be read from a start on."""
        config = {name[6:]: value for name, value in self.options.items() if name.lower().startswith("kafka.")}
        servers = config.pop("bootstrap.servers")
        names = [name.strip() for name in self.options["subscribe"].split(",")]
        return [KafkaTopic(servers, name, start, False, config) for name in names]

    def _topics(self, default: str) -> Topics:
        at, start = self._number("startingTimestamp"), self.options.get("startingOffsets")
        if at is not None:
            if start is not None:
                raise SpecError(
                    "read Kafka with startingTimestamp", "there is startingOffsets, too", "give one of them"
                )
            return Topics(self._of(datetime.fromtimestamp(at / 1000, UTC)), {})
        start = default if start is None else start.strip()
        if start in ("earliest", "latest"):
            return Topics(self._of(start), {})
        return Topics(self._of("earliest"), self._offsets("startingOffsets", start))

    def _offsets(self, name: str, given: str) -> Mapping[str, Mapping[str, int]]:
        """Offsets as Spark has them: {"topic": {"0": 23, "1": -2}}."""
        try:
            found: Any = json.loads(given)
            each = [(p, n) for partitions in found.values() for p, n in partitions.items()]
            if all(p.isdigit() and isinstance(n, int) and n >= -2 for p, n in each):
                return {str(topic): dict(partitions) for topic, partitions in found.items()}
        except (ValueError, AttributeError):
            pass
        remedy = 'give "earliest", "latest", or {"topic": {"0": 23}} by partition'
        raise SpecError(f"read Kafka with {name}", "that is no place in a topic", remedy)

    def _number(self, name: str) -> int | None:
        given = self.options.get(name)
        if given is None:
            return None
        if not (given.strip().isdigit() and int(given)):
            raise SpecError(f"read Kafka with {name}={given!r:.99}", "that is no whole number", "give 1 or more")
        return int(given)
