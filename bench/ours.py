"""Run ddflow as a contender.

ddflow takes the events through ``push`` and ``advance_to``, in steps of 100 k rows or in one single step.

The engine gets slices in order of arrival. After each slice, the frontier advances to the first time of the next slice,
so no time closes too early. Peers that get the complete input at once sort once, but the engine takes about a hundred
steps and keeps state between steps. A run ends with ``advance_to(CLOSED)`` and checks that every event got a verdict.
This module does not measure time.

>>> events = pa.table({"key": [1, 1, 1], "val": [5, 6, None], "time": [0, 1, 1]})
>>> for line in ("upsert", "backfill"):
...     print([tuple(row.values()) for table in ddflow_steps(events, line) for row in table.to_pylist()])
[(1, 5, 0, 1), (1, 5, 1, -1)]
[(1, 5, 0, 1), (1, 5, 1, -1)]
>>> ddflow_steps(events.slice(0, 2), "epoch")[0].to_pylist()
[{'key': 1, 'val': 6, '_time': 0, '_diff': 1}]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from workloads import slices

if TYPE_CHECKING:
    import ddflow as dd

STEP = 100_000


def warm() -> None:
    """Load or compile every kernel, so that timings exclude compilation."""
    from ddflow.tools.warmup import compile_all_kernels

    compile_all_kernels(None)


def plan(schema: pa.Schema, line: str) -> dd.Flow:
    """Return the flow of a line: upserts, then the operators in ``line``, with the output ``out``.

    A null ``val`` deletes a row.
    """
    import ddflow as dd

    flow = dd.Flow()
    clock, delete = "time" if "time" in schema.names else None, "val is null" if "val" in schema.names else None
    rows: dd.Collection = flow.upserts("events", schema, dd.Upsert(key="key", time=clock, delete=delete))
    if "filter" in line:
        rows = rows.filter("val < 100")
    if "count" in line:
        rows = rows.project(["val"]).count()
    flow.output("out", rows)
    return flow


def in_steps(engine: dd.Engine, events: pa.Table, step: int = STEP) -> Iterator[pa.Table]:
    """Push the events one step at a time, advance to the start of the next step, and yield each step's updates."""
    import ddflow as dd

    for start, piece in zip(range(0, events.num_rows, step), slices(events, step), strict=True):
        after = start + step
        engine.push({"events": piece})
        yield engine.advance_to(events["time"][after].as_py() if after < events.num_rows else dd.CLOSED)["out"]


def ddflow_steps(events: pa.Table, line: str = "upsert", step: int = STEP, threads: int = 1) -> list[pa.Table]:
    """Run ``line`` over the events; return one table of updates per step, all in memory."""
    if line == "epoch":
        events = events.drop_columns("time")
    with plan(events.schema, line).open(threads=threads) as engine:
        if line == "epoch":
            tables = [engine.step({"events": events}, time=0)["out"]]
        else:
            tables = list(in_steps(engine, events, max(1, events.num_rows) if line == "backfill" else step))
        check_verdicts(engine, events.num_rows)
    return tables


def check_verdicts(engine: dd.Engine, events: int) -> None:
    """Raise AssertionError unless every event has its verdict."""
    resolved, pending = engine.verdicts.total, engine.verdicts.pending
    if resolved != events or pending:
        raise AssertionError(
            f"of {events} events, {resolved} have a verdict and {pending} are pending: verdicts are missing"
        )
