"""What a committed epoch put out, as DataFrames: they read its files, and compute nothing a second time.

Invariant: a frame holds what the epoch's files hold, whoever reads it and however often, as long as the state keeps
them: until some epochs later (`ddflow.partitions.commit`), unless outputs go to a folder, where they stay. The plan
that made them ran once and may not run again, and a frame of a plan is computed at every action; so a frame is made of
the files' names, and its tasks read those. It commits nothing.

>>> ran = Ran({}, Done(7, 7, 8, {"applied": 3}, 0, {"orders": 3}, {}, {}, False), None)
>>> list(ran), ran.epoch, str(ran.verdicts), ran.replayed
([], 7, 'applied 3', False)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ddflow.columns.schema import updates_schema
from ddflow.dataflow.verdicts import Verdicts
from ddflow.engine.flow import Flow
from ddflow.storage.manifest import Output
from spark_bridge.bodies import Files
from spark_bridge.schemas import spark_schema

_NAMES = "name string, length bigint, digest binary"


class Done(NamedTuple):
    """An epoch that is committed.  ``time``: what it stamped, epoch mode.  ``frontier``: after it.  ``counts``: events
    by verdict.  ``pending``: events that wait.  ``rows``: that came, by source.  ``outputs``: what they gained, where
    not empty.  ``figures``: microseconds and bytes.  ``replayed``: whether it was committed before."""

    epoch: int
    time: int
    frontier: int
    counts: Mapping[str, int]
    pending: int
    rows: Mapping[str, int]
    outputs: Mapping[str, Output]
    figures: Mapping[str, int]
    replayed: bool


class Shape(NamedTuple):
    """An output's columns in the flow's types and in Spark's."""

    arrow: pa.Schema
    spark: StructType


def shapes(flow: Flow) -> dict[str, Shape]:
    """The shape of every output, side outputs included.  Raises `SpecError` where Spark has no type for a column."""
    schemas = {name: node.updates_schema(flow.time_type) for name, node in flow.outputs.items()}
    for name, (_, schema) in flow.side_outputs().items():
        schemas[name] = updates_schema(schema, flow.time_type)
    return {name: Shape(each, spark_schema(each, f"output {name!r}")) for name, each in schemas.items()}


class Place(NamedTuple):
    """Where committed files are, and who reads them.  ``folder``: of Parquet outputs, else None."""

    session: Any
    store: str
    trust: str
    folder: str | None


class Ran(Mapping[str, DataFrame]):
    """The outputs of an epoch by name, as DataFrames of its files.  ``frontier``: the least time still open.
    ``rows``: that came, by source.  ``figures``: microseconds and bytes, over all tasks, and of the driver."""

    def __init__(self, shapes: Mapping[str, Shape], done: Done, place: Place | None) -> None:
        self._shapes, self._done, self._place = shapes, done, place
        self.epoch, self.time, self.frontier, self.replayed = done.epoch, done.time, done.frontier, done.replayed
        self.verdicts, self.rows, self.figures = Verdicts.of(done.counts, done.pending), done.rows, done.figures

    def __getitem__(self, name: str) -> DataFrame:
        shape, place = self._shapes[name], self._place
        assert place is not None
        output = self._done.outputs.get(name)
        files = [(blob.name, blob.length, blob.digest) for blob in output.blobs] if output is not None else []
        body = Files(place.store, place.trust, place.folder, name, self.epoch, shape.arrow)
        named: DataFrame = place.session.createDataFrame(files, _NAMES)
        return named.mapInArrow(body, shape.spark)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __repr__(self) -> str:
        sizes = (f"{name}: {self.updates(name):,} updates" for name in self)
        return f"Ran(epoch {self.epoch}; {', '.join(sizes)}; {self.verdicts})"

    def updates(self, name: str) -> int:
        """How many updates an output gained, without reading them.  O(1)."""
        output = self._done.outputs.get(name)
        return 0 if output is None else output.rows
