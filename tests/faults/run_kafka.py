"""A run from a topic of Kafka into a topic and a table: all agree, and the table has each epoch once.

The cluster is librdkafka's mock, which hides nothing of a transaction that nobody ended, its record in the control
topic included. So the topic is written with ``upsert``, where a row that comes twice is the same row; and where a life
ended within a transaction, whose part a broker would hide, ``ddflow sync`` gives the topic the difference. That each
epoch is in a topic once is for a broker to show: ``real_kafka``.
"""

from __future__ import annotations

import json
import runpy
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from lives import Story, replayed

import ddflow as dd
from ddflow.cli import app
from ddflow.engine.run.delivery import Delivery
from ddflow.engine.run.kept_epochs import EngineEpochs


class KafkaRun(Story):
    """Rows in a topic, their counts in another one, and a changelog in SQLite."""

    forked = True
    flow = """
import pyarrow as pa, ddflow as dd
flow = dd.Flow()
columns = {"id": pa.int64(), "city": pa.string()}
rows = flow.upserts("rows", columns, dd.Upsert(key="id"), format=dd.formats.plain_json())
flow.output("moves", rows)
flow.output("by_city", rows.count("city", name="n"))
"""

    def __init__(self, place: Path, servers: str) -> None:
        super().__init__(place)
        self.model, self.servers, self.topic = dict[int, dict[str, Any]](), servers, place.parent.name
        self.torn = str(place / "torn")
        self.producer = Producer({"bootstrap.servers": servers, "log_level": 0, "partitioner": "murmur2_random"})

    def attached(self) -> list[str]:
        words = ["--from", f"rows=kafka://{self.servers}/{self.topic}", *self.topics()]
        return [*words, "--to", f"moves=sqlite:{self.place}/moves.db", "--mode", "moves=changelog"]

    def topics(self) -> list[str]:
        return ["--to", f"by_city=kafka://{self.servers}/{self.topic}-out"]

    def feed(self, draw: Random) -> None:
        for _ in range(20):
            id, row = draw.randrange(50), self.row(draw)
            gone = draw.random() < 0.1
            self.producer.produce(self.topic, None if gone else json.dumps({"id": id} | row), str(id))
            self.model.pop(id, None)
            if not gone:
                self.model[id] = row
        assert self.producer.flush(10) == 0

    def row(self, draw: Random) -> dict[str, Any]:
        """One without its key."""
        return {"city": draw.choice(["Bern", "Chur", "Basel"])}

    def lived(self) -> None:
        torn = Path(self.torn)
        if torn.exists():
            torn.unlink()
            words = ["sync", str(self.place / "flow.py"), "--state", str(self.place / "state"), *self.topics(), "--yes"]
            with pytest.raises(SystemExit) as ended:
                app(words)
            assert not ended.value.code

    def look(self) -> None:
        held = dd.read(self.place / "state", "moves").drop_columns(["_diff"])
        rows = {tuple(({"id": id} | row).get(name) for name in held.schema.names) for id, row in self.model.items()}
        assert {name for row in self.model.values() for name in row} <= {*held.schema.names}
        assert {tuple(row.values()) for row in held.to_pylist()} == rows
        connection = sqlite3.connect(self.place / "moves.db")
        connection.row_factory = sqlite3.Row
        assert replayed(dict(row) for row in connection.execute("select * from moves")) == rows
        connection.close()
        found = {row["city"]: row["n"] for row in self.counts()}
        cities = [row["city"] for row in self.model.values()]
        assert found == {city: cities.count(city) for city in set(cities)}

    def counts(self) -> list[dict[str, Any]]:
        """What the topic says."""
        flow = runpy.run_path(str(self.place / "flow.py"))["flow"]
        with flow.open(self.place / "state") as engine:
            sink = dd.sinks.kafka(self.servers, f"{self.topic}-out")
            delivery = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", sink)
            rows: list[dict[str, Any]] = delivery.table.read().to_pylist()
            delivery.close()
        return rows


class KafkaColumnsRun(KafkaRun):
    """The same, and rows get a column with each change but the first."""

    changes = -1

    def feed(self, draw: Random) -> None:
        self.changes += 1
        super().feed(draw)

    def row(self, draw: Random) -> dict[str, Any]:
        return super().row(draw) | {f"c{1 + number}": draw.randrange(9) for number in range(self.changes)}
