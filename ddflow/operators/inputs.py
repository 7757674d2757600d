"""Inputs of an opened plan, and the input of differences, whose admitted rows are updates.

Guarantees: graph, step, checkpoint and tools ask all kinds of inputs by the same methods. A kind is a binding in
``ddflow/plan`` and what runs it here: one line of `KINDS`. An event of differences is an update, so nothing is looked
up; with ``keep=True`` its rows are arranged with their multiplicities.

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.bind import bind_upserts
>>> from ddflow.plan.inputs.spec import Upsert
>>> type(open_input(bind_upserts("v", pa.schema({"k": pa.int64()}), Upsert("k")), Secret(1, 2))).__name__
'RunningUpsert'
"""

from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Flags, Ints, Secret
from ddflow.columns.layout import make_writable
from ddflow.columns.names import DIFF
from ddflow.columns.threads import ALONE, Threads
from ddflow.errors import DdflowError, SpecError
from ddflow.kernels.resolve import APPLIED
from ddflow.operators.count import RunningCount
from ddflow.operators.threshold import RunningThreshold
from ddflow.operators.updates import Updates
from ddflow.operators.upsert.events import Events, ExpiryChange
from ddflow.operators.upsert.upsert import RunningUpsert
from ddflow.plan.inputs.bind import BoundUpserts
from ddflow.plan.inputs.differences import BoundDifferences
from ddflow.trace.batch import ArrangementChange


@dataclass
class ResolvedDifferences:
    """The resolved events of one input of differences, all of which are applied; asked like `Resolved`."""

    bound: BoundDifferences
    events: Events
    received_positions: Ints
    """The events, by place."""
    counts: Ints
    """int64[8]: events by verdict."""
    made: Updates
    """Of all columns of the row; those of diff 0 are gone."""
    changes: list[ArrangementChange] = field(default_factory=list)
    expiry: ExpiryChange = field(default_factory=ExpiryChange)

    def updates(self, schema: pa.Schema) -> Updates:
        """Return the differences, in the order of their times."""
        return self.made._replace(rows=self.made.rows.select(schema.names))

    @property
    def verdict(self) -> Flags:
        """uint8[n]: the verdict of each event."""
        return np.full(self.received_positions.size, APPLIED, np.uint8)

    def winner_orders(self, rows: Ints) -> list[pa.Array]:
        """No columns: there is no order."""
        return []


class RunningDifferences(RunningThreshold):
    """``bound``: the input's spec and schema.  State: the multiplicity of each row, where it is kept.

    >>> import pyarrow as pa
    >>> from ddflow.plan.inputs.differences import Differences, bind_differences
    >>> bound = bind_differences("log", pa.schema({"v": pa.string(), "n": pa.int64()}), Differences("n", keep=True))
    >>> log, times = RunningDifferences(bound, Secret(1, 2)), np.array([7, 7])
    >>> events = bound.add_event_columns(pa.record_batch({"v": ["a", "b"], "n": [3, 0]}), ["v", "n"])
    >>> resolved = log.resolve(Events(events, times, times, np.arange(2)), np.array([7]), since=7)
    >>> resolved.updates(bound.row_schema).to_table(bound.row_schema, pa.int64()).to_pylist(), len(resolved.changes)
    ([{'v': 'a', '_time': 7, '_diff': 3}], 1)
    """

    expiring: Any = None
    hidden: frozenset[str] = frozenset()
    unfed = True
    """Whether no event ever came, as far as a state tells: then what is not kept is known to be nothing."""

    def __init__(self, bound: BoundDifferences, secret: Secret, threads: Threads = ALONE) -> None:
        super().__init__(bound.row_schema, lambda batch: batch.column("n"), secret)
        self.bound, self.threads = bound, threads
        self.output_arrangement.set_threads(threads)

    def require_keys(self, asked: str, error: type[DdflowError] = SpecError) -> NoReturn:
        """Raise ``error`` for what is asked of keys."""
        found = f"{self.bound.name!r} is an input of differences, which has no keys"
        raise error(asked, found, "ask it of an input of upserts: flow.upserts(...)")

    def resolve(self, events: Events, times: Ints, since: int, winners: bool = True) -> ResolvedDifferences:
        """Compute the outcome of events; nothing changes.  ``times``, ``since``: as of an upsert's.  O(n) expected.

        Raises `CountOverflow` where a multiplicity that is kept leaves int64.
        """
        n = events.times.size
        ranks = np.searchsorted(times, events.times).astype(np.int32)
        diffs = make_writable(np.asarray(events.rows.column(DIFF)).astype(np.int64, copy=False))
        rows = pa.Table.from_batches([events.rows]).select(self.bound.row_schema.names)
        made = Updates(rows, ranks, diffs, times)
        if not diffs.all():
            made = made.take(np.flatnonzero(diffs))
        counts = np.zeros(8, np.int64)
        counts[APPLIED] = n
        resolved = ResolvedDifferences(self.bound, events, np.arange(n), counts, made)
        if self.bound.has_stored_rows and made.diffs.size:
            resolved.changes.append(RunningCount.compute(self, [made], since)[1])
        return resolved


RunningInput = RunningUpsert | RunningDifferences
KINDS: Final[dict[type, Any]] = {BoundUpserts: RunningUpsert, BoundDifferences: RunningDifferences}


def open_input(bound: BoundUpserts | BoundDifferences, secret: Secret, threads: Threads = ALONE) -> RunningInput:
    """Open an input with empty state."""
    made: RunningInput = KINDS[type(bound)](bound, secret, threads)
    return made
