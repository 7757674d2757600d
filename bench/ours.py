"""ddflow as a contender: steps of 100 k rows through ``push`` and ``advance_to``, on one thread.

Invariant: the engine sees what a feed would give it and nothing else: slices in order of arrival, and after each a
frontier at the first time of the next, so that no time is closed that could still receive events.  Why that is not
trivial: whole-input peers sort once, this keeps state between 100 steps and still has to beat them.  It ends with
``advance_to(CLOSED)`` and checks that every event got its verdict.  Nothing here measures.

>>> events = pa.table({"key": [1, 1, 1], "val": [5, 6, None], "time": [0, 1, 1]})
>>> [tuple(row.values()) for table in ddflow_steps(events) for row in table.to_pylist()]
[(1, 5, 0, 1), (1, 5, 1, -1)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from workloads import slices

if TYPE_CHECKING:
    import ddflow as dd

STEP = 100_000


def plan(schema: pa.Schema, line: str) -> dd.Flow:
    """The flow of a line: upserts, then what ``line`` names, into an output called ``out``."""
    import ddflow as dd

    flow = dd.Flow()
    rows: dd.Collection = flow.upserts("events", schema, dd.Upsert(key="key", time="time", delete="val is null"))
    if "filter" in line:
        rows = rows.filter("val < 100")
    if "count" in line:
        rows = rows.project(["val"]).count()
    flow.output("out", rows)
    return flow


def ddflow_steps(events: pa.Table, line: str = "upsert", step: int = STEP) -> list[pa.Table]:
    """Run ``line`` over the events in steps and return one table of updates a step; all of them stay alive."""
    import ddflow as dd

    tables = []
    with plan(events.schema, line).open() as engine:
        for start, piece in zip(range(0, events.num_rows, step), slices(events, step), strict=True):
            after = start + step
            frontier = events["time"][after].as_py() if after < events.num_rows else dd.CLOSED
            engine.push({"events": piece})
            tables.append(engine.advance_to(frontier)["out"])
        judged, pending = engine.verdicts.total, engine.verdicts.pending
    if judged != events.num_rows or pending:
        raise AssertionError(f"{events.num_rows} events in, {judged} judged and {pending} pending: verdicts are lost")
    return tables
