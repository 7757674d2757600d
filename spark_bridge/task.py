"""The body of a stage: what ``mapInArrow`` calls in a worker, once for each partition.

Invariant: what a body yields depends on the rows of its partition and on nothing else: it is sent as data, builds its
part of the flow anew, keeps nothing between calls, and no object of the driver is in it. So a retried, speculative or
repeated call, a partition without rows and a caller who stops early are all harmless. Arrow batches are matched by
position on both sides, rows come out of a shuffle in no order, and a step must see all rows of a partition at once, so
what is held is let go as soon as the next form of it exists.

The rows of a partition go through the engine's own rooms (intake, circuit), without what only matters for a next step.
What it does not do: decide anything (``plan``), keep state, commit.

>>> import ddflow as dd
>>> from spark_bridge.plan import planned
>>> flow = dd.Flow()
>>> names = flow.upserts("names", {"id": pa.int64(), "name": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("now", names)
>>> plan = planned(flow)
>>> body = Body(plan.stages[0], plan.time_type, Secret(1, 2))
>>> rows = pa.record_batch({"id": [1, 1], "name": ["mcsherry", "zappa"]})
>>> [batch.to_pylist() for batch in body(iter([rows]))]
[[{'id': 1, 'name': 'zappa', '_time': 0, '_diff': 1}]]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Secret, identities
from ddflow.columns.schema import DIFF, TIME, updates_schema
from ddflow.dataflow.admission import Intake
from ddflow.dataflow.graph import Circuit, Released
from ddflow.dataflow.side_outputs import Sides
from ddflow.dataflow.step import compute
from ddflow.operators.updates import Updates, time_column
from ddflow.partitions.stage_graph import as_updates
from ddflow.plan import collection as plan
from ddflow.plan.merge.bind_machine import bind_machine
from ddflow.plan.spec import Upsert
from ddflow.time import CLOSED, NEVER
from spark_bridge.columns import carried, restored
from spark_bridge.plan import Events, Stage

PARTITION: Final = "_partition"
"""The column that says which partition the sum of a row goes to."""
BATCH_ROWS, BATCH_BYTES = 65_536, 32 << 20
"""What one yielded batch holds at most (a single row may be larger)."""
EPOCH = 0
"""What epoch mode stamps, there being one step."""


@dataclass(frozen=True)
class Body:
    """The body of ``stage``: call it with the record batches of a partition, and it yields those of the outcome.

    ``secret``: the same for all partitions of a run.  ``columns``: what the incoming columns are, by position, and
    after them an arrival sequence where the stage asks for one (None: they are what they are called, and there is
    none).  ``partitions``: how many the next shuffle has, for sums.  O(rows) expected.  Raises what a step of the
    engine raises, and `SchemaMismatch` for values that Spark cannot take.
    """

    stage: Stage
    time_type: pa.DataType
    secret: Secret
    columns: tuple[str, ...] | None = None
    partitions: int = 1

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        what = "sums" if self.stage.gives == "sums" else f"output {self.stage.name!r}"
        for part in sliced(self._given(self._taken(batches))):
            yield carried(part, what)

    def _taken(self, batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
        """All rows of the partition in one table: in the order of arrival, named, in the flow's types; or None."""
        reads, parts = self.stage.reads, [batch for batch in batches if batch.num_rows]
        if not parts:
            return None
        table = pa.Table.from_batches(parts)
        if self.columns is not None:
            table = in_order(table) if isinstance(reads, Events) and reads.arrival else table
            table = table.rename_columns(list(self.columns))
        what = f"rows for {reads.source!r}" if isinstance(reads, Events) else str(reads)
        return restored(table, reads.schema, what)

    def _given(self, table: pa.Table | None) -> pa.Table:
        """What the stage gives for the rows."""
        if table is None:
            return self.schema.empty_table()
        stage, flow = self.stage, Region(self.stage)
        circuit = RegionCircuit(flow, self.secret, winners=False)
        if isinstance(stage.reads, Events):
            intake = Intake(flow.sources[stage.reads.source].bound)
            sealed, sides = intake.admit(table, NEVER, None if flow.holds_back else EPOCH).sealed, Sides(flow)
            del table
            stepped = compute(circuit, {stage.reads.source: Released.of(sealed)}, CLOSED - 1, observe=sides.add)
            if stage.gives == "side":
                return self._stamped(sides.tables()[stage.name])
        else:
            circuit.arrived = as_updates(table, stage.reads.schema)
            del table
            stepped = compute(circuit, {}, CLOSED - 1)
        out = stepped.outputs[""]
        return self._routed(out) if stage.gives == "sums" else self._stamped(out)

    @property
    def schema(self) -> pa.Schema:
        """The columns given, in the flow's types: rows, then `_time` and `_diff`; for sums columns have numbers for
        names (Spark minds case and dots), times are int64, and `PARTITION` comes last."""
        if self.stage.gives != "sums":
            return updates_schema(self.stage.schema, self.time_type)
        numbered = pa.schema([pa.field(f"c{i}", f.type) for i, f in enumerate(self.stage.schema)])
        return updates_schema(numbered, pa.int64()).append(pa.field(PARTITION, pa.int32()))

    def _stamped(self, table: pa.Table) -> pa.Table:
        """The table of a region, with times in the flow's type."""
        times = table.column(TIME).to_numpy()
        columns = [*table.columns[:-2], time_column(times, self.time_type), table.column(DIFF)]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _routed(self, table: pa.Table) -> pa.Table:
        """The table of a region, with the partition that each row's sum goes to: a slice of the identities."""
        rows = table.select(self.stage.schema.names)
        high, _ = identities(rows, self.secret, table.num_rows)
        to = ((high >> np.uint64(32)) * np.uint64(self.partitions) >> np.uint64(32)).astype(np.int32)
        return pa.Table.from_arrays([*table.columns, pa.array(to)], schema=self.schema)


class Region(plan.Plan):
    """The part of a flow that one stage computes: one source, or the sums that came; one output, ``""``."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        first: plan.Collection
        if isinstance(stage.reads, Events):
            reads = stage.reads
            spec, machine = reads.own or (Upsert.from_json(reads.spec), None)
            if machine is None:
                first = self.upserts(reads.source, reads.schema, spec)
            else:
                first = self._source(bind_machine(reads.source, reads.schema, spec, machine))
        else:
            first = Arrived(self, stage.reads.schema, (), False)
        made = [first]
        for operator in stage.operators:
            of, *others = (made[n] for n in operator.of)
            made.append(getattr(of, operator.verb)(*others, **operator.told))
        if stage.gives != "side":
            self.outputs[""] = made[-1]

    @property
    def time_type(self) -> pa.DataType:
        """Inside a stage, and between stages, times are int64."""
        return pa.int64()


class Arrived(plan.Collection):
    """A collection whose updates other stages have summed."""

    verb = "arrived"


class RegionCircuit(Circuit):
    """The circuit of a region.  ``arrived``: the updates of its `Arrived` collection."""

    arrived: Updates

    def arrive(self, node: plan.Collection) -> Updates:
        """What arrived."""
        return self.arrived


def in_order(table: pa.Table) -> pa.Table:
    """Rows in the order of their last column, an arrival sequence, and without it.  O(n) where they are in order."""
    last = table.num_columns - 1
    arrival: Ints = table.column(last).to_numpy()
    table = table.remove_column(last)
    if bool((arrival[1:] > arrival[:-1]).all()):
        return table
    # Stable, for it is a merge sort of runs, and runs are what comes out of a shuffle.
    return table.combine_chunks().take(pa.array(np.argsort(arrival, kind="stable")))


def sliced(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """A table as batches of bounded size; none for no rows."""
    width = max(table.nbytes // max(table.num_rows, 1), 1)
    yield from table.to_batches(max_chunksize=max(min(BATCH_ROWS, BATCH_BYTES // width), 1))
