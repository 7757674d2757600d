"""Open the inputs of a plan, and run inputs of differences.

The graph, steps, checkpoints and tools call the same methods for each kind of input. To add a kind of input, write its
binding in ``ddflow/plan``, its running class, and a line in `KINDS`. An event of an input of differences is already an
update, so no state is looked up. With ``keep=True``, the input arranges its rows with their multiplicities.

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
from ddflow.time import NEVER
from ddflow.trace.batch import ArrangementChange


@dataclass
class ResolvedDifferences:
    """The resolved events of one input of differences, with the methods of `Resolved`.

    Every event has the verdict "applied".
    """

    bound: BoundDifferences
    events: Events
    received_positions: Ints
    """The positions of the events in the received order."""
    counts: Ints
    """int64[8]: the number of events with each verdict."""
    made: Updates
    """The updates whose diff is not 0, with all columns of the row."""
    changes: list[ArrangementChange] = field(default_factory=list)
    expiry: ExpiryChange = field(default_factory=ExpiryChange)

    def updates(self, schema: pa.Schema) -> Updates:
        """Return the differences, sorted by time."""
        return self.made._replace(rows=self.made.rows.select(schema.names))

    @property
    def verdict(self) -> Flags:
        """uint8[n]: the verdict of each event."""
        return np.full(self.received_positions.size, APPLIED, np.uint8)

    def winner_orders(self, rows: Ints) -> list[pa.Array]:
        """Return no columns, because events of differences have no order columns."""
        return []


class RunningDifferences(RunningThreshold):
    """An opened input of differences.  State: the multiplicity of each row, if the input keeps rows.

    ``bound``: the input's spec and schema.

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
    horizon: int = NEVER
    hidden: frozenset[str] = frozenset()
    unfed = True
    """Whether the state shows that the input never had an event.

    Such an input has no rows, even if it does not keep rows.
    """

    def __init__(self, bound: BoundDifferences, secret: Secret, threads: Threads = ALONE) -> None:
        super().__init__(bound.row_schema, lambda batch: batch.column("n"), secret)
        self.bound, self.threads = bound, threads
        self.output_arrangement.set_threads(threads)

    def require_keys(self, asked: str, error: type[DdflowError] = SpecError) -> NoReturn:
        """Raise ``error``, because an input of differences has no keys."""
        found = f"{self.bound.name!r} is an input of differences, which has no keys"
        raise error(asked, found, "use an input of upserts: flow.upserts(...)")

    def resolve(self, events: Events, times: Ints, since: int, winners: bool = True) -> ResolvedDifferences:
        """Compute the verdicts and the updates that result from events. The state stays unchanged. O(n) expected.

        ``times``, ``since``: as for inputs of upserts. Raises `CountOverflow` if a stored multiplicity would be outside
        int64.
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
