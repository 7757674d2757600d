"""ddflow as a contender on Spark: the flow of a line, run over a whole frame or streamed batch by batch, committed.

Invariant: state and updates are committed before the clock stops, as a user would have them: updates as Parquet in a
folder, shown when their epoch is; and every row got its verdict. In hold-back mode a batch's own times close in the
next one (``lateness=0``), so without closing at the end the last batch's updates would be missing, and with it the
checksum. Nothing here measures.

>>> flow("upsert", pa.schema({"key": pa.int64(), "val": pa.int64(), "time": pa.int64()})).holds_back
True
>>> list(flow("count", pa.schema({"key": pa.int64(), "val": pa.int64(), "time": pa.int64()})).outputs)
['out']
"""

from __future__ import annotations

import os
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import ddflow as dd

SOURCE = "events"


def flow(query: str, schema: pa.Schema) -> dd.Flow:
    """Upserts by key, with ``time`` as the clock; behind them, for ``count``, a projection and a count."""
    made = dd.Flow()
    spec = dd.Upsert(key="key", time="time", lateness=0, delete="val is null")
    rows: dd.Collection = made.upserts(SOURCE, schema, spec)
    made.output("out", rows.project(["val"]).count() if query == "count" else rows)
    return made


def batch(frame: DataFrame, folder: str, query: str, partitions: int) -> dict[str, int]:
    """Everything in one epoch of a state in ``folder``, closed; gives its figures.

    AssertionError where a row has no verdict.
    """
    import spark_bridge

    plan = flow(query, spark_bridge.arrow_schema(frame))
    done = spark_bridge.run(plan, {SOURCE: frame}, partitions, state=state(folder), outputs=outputs(folder), close=True)
    if done.verdicts.judged != done.rows[SOURCE]:
        raise AssertionError(f"{done.rows[SOURCE]} rows came, {done.verdicts.judged} have a verdict")
    return dict(done.figures)


def stream(frame: DataFrame, folder: str, checkpoint: str, query: str, partitions: int) -> Any:
    """A query that is running, an epoch a batch, and closes the input at its end."""
    import spark_bridge

    plan = flow(query, spark_bridge.arrow_schema(frame))
    where = {"state": state(folder), "outputs": outputs(folder), "checkpoint": checkpoint}
    trigger = {"availableNow": True}
    return spark_bridge.stream(
        plan, {SOURCE: frame}, partitions=partitions, close=True, trigger=trigger, **where
    ).start()


def told(query: Any, rows: int) -> dict[str, int]:
    """The medians of what its epochs took, once it has ended; AssertionError where a row has no verdict."""
    epochs = query.ddflow.stats()
    judged = sum(sum(epoch.counts.values()) for epoch in epochs)
    came = sum(sum(epoch.rows.values()) for epoch in epochs)
    if judged != came and came == rows:  # else it does not tell of all epochs any more
        raise AssertionError(f"{rows} rows came, {judged} have a verdict")
    names = {name for epoch in epochs for name in epoch.figures}
    return {name: int(median(epoch.figures.get(name, 0) for epoch in epochs)) for name in sorted(names)}


class _Settings:
    """Takes what a session's builder would."""

    def __init__(self) -> None:
        self._options: dict[str, str] = {}

    def config(self, name: str, value: str) -> _Settings:
        self._options[name] = value
        return self


def session_settings() -> str:
    """What ``spark_bridge.configure`` gives a session, for the environment of the process that starts one."""
    import spark_bridge

    chosen = spark_bridge.configure(_Settings())._options
    return " ".join([*(f"--conf {name}={value}" for name, value in chosen.items()), "pyspark-shell"])


def state(folder: str) -> str:
    """Where the state is."""
    return os.path.join(folder, "state")


def outputs(folder: str) -> str:
    """Where the updates are."""
    return os.path.join(folder, "out")
