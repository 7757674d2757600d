"""A truncate among the events of a step: the deletes that it stands for.

Invariant: a truncate deletes each key that lives, in the state or by an event before it in its call, by an event of
the truncate's own order; so a key whose order is above it stays, and the order of calls does not matter. It has an
event for each such key, which gets a verdict like others. In hold-back mode no time is that of a truncate, so it is
refused.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": pa.int64()}, dd.Upsert(key="id"), format=dd.formats.debezium())
>>> _ = flow.output("orders", orders)
>>> def message(op, id, lsn):
...     return {"value": f'{{"op": "{op}", "after": {{"id": {id}}}, "source": {{"lsn": {lsn}}}}}'}
>>> with flow.open() as engine:
...     _ = engine.step({"orders": [message("c", 1, 10), message("c", 2, 30)]})
...     out = engine.step({"orders": [message("c", 3, 19), message("t", 0, 20), message("c", 4, 21)]})
...     sorted((row["id"], row["_diff"]) for row in out["orders"].to_pylist()), str(out.verdicts)
([(1, -1), (4, 1)], 'applied 2, superseded 1, noop 1, stale 1')
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ddflow.columns.rows import gathered
from ddflow.connectors.formats.base import DELETED, Truncate
from ddflow.dataflow.inflow import Inflow
from ddflow.errors import BadMessage, Option, Phrase, WrongMode
from ddflow.operators.upsert.living import living
from ddflow.operators.upsert.upsert import RunningUpsert

PIECE = 1 << 16
"""How many keys are gathered together."""


def deletes(upsert: RunningUpsert, inflow: Inflow, cut: Truncate) -> Iterator[pa.RecordBatch]:
    """Make the events of a truncate. ``inflow``: the earlier rows of the call. O(keys held + events before).

    Raises `WrongMode` in hold-back mode, `BadMessage` if it lacks an order that events have.
    """
    bound = upsert.bound
    asked = f"messages for {bound.name!r}"
    if bound.spec.holds_back:
        found = f"{cut.place}: it is a truncate, and the flow is in hold-back mode"
        raise WrongMode(
            asked, found, Phrase("a truncate has no time of an event: leave ", Option("time"), " out of the spec")
        )
    if lost := [name for name in bound.spec.order_by if name not in cut.order]:
        found = f"{cut.place}: it is a truncate, and says nothing of the order by {lost}"
        raise BadMessage(asked, found, Phrase("leave ", Option("order_by"), " to the format; nothing was taken in"))
    keys = bound.key_schema
    for high, _, references in living(upsert.arranged):
        for begin in range(0, high.size, PIECE):
            rows = gathered(upsert.arranged.pool(), references[begin : begin + PIECE], keys)
            yield _make_deletes(upsert, rows, cut)
    before = [events.rows.select(keys.names) for events in inflow.pieces]
    if before:
        named = pa.Table.from_batches(before).group_by(keys.names).aggregate([]).select(keys.names)
        yield _make_deletes(upsert, [column.combine_chunks() for column in named.columns], cut)


def _make_deletes(upsert: RunningUpsert, keys: list[pa.Array], cut: Truncate) -> pa.RecordBatch:
    schema = upsert.bound.schema
    n = len(keys[0])
    columns = dict(zip(upsert.bound.key_schema.names, keys, strict=True))
    columns |= {name: pa.array([value], schema.field(name).type).take(_first(n)) for name, value in cut.order.items()}
    columns[DELETED] = pa.array(np.ones(n, np.bool_))
    every = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(n, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(every, schema=schema)


def _first(n: int) -> pa.Array:
    return pa.array(np.zeros(n, np.int64))
