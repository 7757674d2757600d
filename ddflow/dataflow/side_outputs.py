"""Build verdict rows of events, and build the side outputs of the options ``stale=`` and ``on_bad=``.

`build_resolved_verdicts` and `build_refused_verdicts` make one row for each event of a call. A verdict row has the
number and the verdict of an event, and the order of the event that now wins the key. `SideOutputs` collects the side
outputs of a step piece by piece.

Guarantees: each resolved event is listed once, with the verdict that was counted. This module makes no decisions about
verdicts. Limits: the resolved events must be read before the step is applied, because earlier orders of keys come from
the state.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints
from ddflow.columns.names import TIME
from ddflow.columns.schema import build_updates_schema, empty_table
from ddflow.connectors.formats.base import BAD_TYPE
from ddflow.dataflow.admission import RefusedRows
from ddflow.dataflow.result import decode_verdicts
from ddflow.errors import SpecError
from ddflow.kernels.resolve import STALE
from ddflow.operators.inputs import ResolvedDifferences
from ddflow.operators.updates import build_time_column
from ddflow.operators.upsert.resolution import Resolved
from ddflow.plan.inputs.input import Binding, Input

ARRIVAL: Final = "_arrival"
"""The name of the column for event numbers in verdict rows."""


def check_verdict_columns(bound: Binding) -> None:
    """Raise `SpecError` if a key column has the same name as a column that verdict rows add."""
    taken = {ARRIVAL, "seq", "verdict", *(f"winner_{n}" for n in bound.spec.order_by)} & set(bound.key_schema.names)
    if taken:
        raise SpecError(
            f"verdicts='rows' of {bound.name!r}",
            f"its key columns {sorted(taken)} have names that verdict rows use",
            "rename the key columns, or use verdicts='counts'",
        )


def build_refused_verdicts(bound: Binding, refused: RefusedRows) -> pa.Table:
    """Make the verdict rows of events that were refused on arrival. O(events)."""
    n = refused.codes.size
    winners = [pa.nulls(n, bound.schema.field(name).type) for name in bound.spec.order_by]
    return _build_verdict_rows(
        bound, refused.events.rows, refused.events.arrival, refused.codes, pa.nulls(n, bound.time_type), winners
    )


def build_resolved_verdicts(resolved: Resolved | ResolvedDifferences) -> pa.Table:
    """Make the verdict rows of resolved events. O(events)."""
    bound, events, given = resolved.bound, resolved.events, resolved.received_positions
    rows = events.rows if given.size == events.times.size else events.rows.take(pa.array(given))
    times = build_time_column(events.times[given], bound.time_type)
    return _build_verdict_rows(
        bound, rows, events.arrival[given], resolved.verdict[given], times, resolved.winner_orders(given)
    )


def _build_verdict_rows(
    bound: Binding, events: pa.RecordBatch, arrival: Ints, codes: Any, times: pa.Array, winners: Sequence[pa.Array]
) -> pa.Table:
    """Make a verdict row for each event. O(events).

    ``_arrival`` is the number of the event among all events of the input. ``seq`` is the same number, or the value of
    the ``seq`` column of the spec. The columns after ``seq`` are the key, ``verdict`` and the time of the event. The
    time is null if the event was refused on arrival. The ``winner_`` columns have the order values that the key has
    after the event.
    """
    number = pa.array(arrival)
    seq = number if bound.spec.seq is None else events.column(bound.spec.seq)
    columns = {ARRIVAL: number, "seq": seq, **{n: events.column(n) for n in bound.key_schema.names}}
    columns |= {"verdict": decode_verdicts(codes), TIME: times}
    columns |= {f"winner_{n}": w for n, w in zip(bound.spec.order_by, winners, strict=True)}
    return pa.table(columns)


def has_bad_messages(name: str) -> bool:
    """Return whether a side output, by its name, is a list of unreadable messages."""
    return name.endswith(".bad")


def build_bad_message_table(marks: Sequence[pa.Array], time: int, time_type: pa.DataType) -> pa.Table:
    """Build the table of unreadable messages for the side output. O(messages)."""
    every = pa.concat_arrays(marks)
    n = len(every)
    columns = [*every.flatten(), build_time_column(np.full(n, time), time_type), pa.array(np.ones(n, np.int64))]
    return pa.Table.from_arrays(columns, schema=build_updates_schema(pa.schema(list(BAD_TYPE)), time_type))


class SideOutputs:
    """The tables of a step's side outputs, collected piece by piece. ``wanted``: as returned by `Flow.side_outputs`.

    >>> import pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> v = flow.upserts("v", {"k": pa.int64(), "at": pa.int64()}, dd.Upsert("k", order_by="at", stale="side"))
    >>> _ = flow.output("out", v)
    >>> with flow.open(verdicts="rows") as engine:
    ...     out = engine.step({"v": pa.table({"k": [1, 1], "at": [9, 4]})}, time=1)
    ...     late = engine.step({"v": pa.table({"k": [1], "at": [5]})}, time=2)
    >>> out.verdicts.rows["v"].select(["seq", "verdict", "winner_at"]).to_pylist()[1]
    {'seq': 1, 'verdict': 'superseded', 'winner_at': 9}
    >>> late["v.stale"].to_pylist()
    [{'k': 1, 'at': 5, '_winner_at': 9, '_time': 2, '_diff': 1}]
    """

    def __init__(self, wanted: Mapping[str, tuple[Input, pa.Schema]], time_type: pa.DataType) -> None:
        self.wanted, self.time_type = wanted, time_type
        self.made: dict[str, list[pa.Table]] = defaultdict(list)

    def add(self, resolved: Resolved | ResolvedDifferences) -> None:
        """Add the rows of resolved events to the side outputs. O(events) if the input has side outputs."""
        for name, (input, schema) in self.wanted.items():
            if input.name == resolved.bound.name and not has_bad_messages(name):
                self.made[name].append(self._build_table(input, schema, resolved))

    def _build_table(self, input: Input, schema: pa.Schema, resolved: Resolved | ResolvedDifferences) -> pa.Table:
        stale = resolved.verdict == STALE
        if input.spec.stale == "mark":
            rows = resolved.received_positions
            further = [pa.array(stale[rows])]
        else:
            rows = np.flatnonzero(stale)
            further = resolved.winner_orders(rows)
        events = resolved.events.rows.take(pa.array(rows))
        columns = [events.column(n) for n in input.bound.event_columns] + further
        times = build_time_column(resolved.events.times[rows], self.time_type)
        columns += [times, pa.array(np.ones(rows.size, np.int64))]
        return pa.Table.from_arrays(columns, schema=build_updates_schema(schema, self.time_type))

    def build_tables(self) -> dict[str, pa.Table]:
        """Build the table of each side output, sorted by time."""
        out = {}
        for name, (_, schema) in self.wanted.items():
            made = self.made[name]
            out[name] = pa.concat_tables(made) if made else empty_table(build_updates_schema(schema, self.time_type))
            if len(made) > 1:
                out[name] = out[name].sort_by(TIME)
        return out
