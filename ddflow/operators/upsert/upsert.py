"""Run the upsert operator: turn events into differences from the stored rows.

`resolve` computes a `Resolved` for the events, and `apply` stores its changes. Rows are compared only by hashes and
order words, so the other columns of a no-op are never read. See McSherry, "Upserts in differential dataflow", and
``arrange_from_upsert`` of differential-dataflow.

Guarantees: the sum of the differences up to any time has one row for each live key, the winning row. No state changes
until the whole step has been computed for all inputs.
"""

from typing import Self, cast

from ddflow.columns.hashing import Ints, Secret
from ddflow.columns.threads import ALONE, Threads
from ddflow.errors import DdflowError, SpecError
from ddflow.operators.upsert.events import Events
from ddflow.operators.upsert.merged import MergedRows
from ddflow.operators.upsert.resolution import FullRows, Resolved
from ddflow.operators.upsert.small_steps import SmallSteps
from ddflow.operators.upsert.state import UpsertState
from ddflow.plan.inputs.bind import BoundUpserts


class RunningUpsert(UpsertState):
    """The upsert operator of one input of an opened plan.

    >>> import pyarrow as pa
    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import ints
    >>> from ddflow.operators.upsert.events import Events
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> schema = pa.schema({"k": pa.string(), "v": pa.string()})
    >>> upsert = RunningUpsert(bind_upserts("names", schema, Upsert("k")), Secret(1, 2))
    >>> events = pa.record_batch({"k": ["frank"] * 2, "v": ["mcsherry", "zappa"]}, schema)
    >>> events = Events(events, ints(0, 1), ints(0, 1), ints(0, 1))
    >>> updates = upsert.resolve(events, ints(0, 1), since=1).updates(schema)
    >>> updates.to_table(schema, pa.int64()).column("_diff").to_pylist()
    [1, -1, 1]
    """

    def __init__(self, bound: BoundUpserts, secret: Secret, threads: Threads = ALONE) -> None:
        super().__init__(bound, secret, threads)
        self.small = SmallSteps(self)

    def require_keys(self, asked: str, error: type[DdflowError] = SpecError) -> Self:
        """Return this input. An input without keys would raise ``error``."""
        return self

    def resolve(self, events: Events, times: Ints, since: int, winners: bool = True) -> Resolved:
        """Compute the verdicts and the updates that result from events. The state stays unchanged.

        ``times``: the step's distinct times, ascending. ``since``: the value of ``since`` after the step. ``winners``:
        whether a caller needs `Resolved.winner_orders`. O(n) expected. Raises `TieRefused` under ``tie="error"``.
        """
        if not winners and self.small.fits:
            few = self.small.resolve(self, events, times, since)
            if few is not None:
                return cast(Resolved, few)  # it has the methods that a caller without ``winners`` uses
        self.arena.reset()
        keyed = self.sort_by_key(events, times, since)
        rows = (FullRows if self.bound.merging is None else MergedRows)(self, keyed, since)
        return Resolved(self, keyed, rows, winners)

    def apply(self, resolved: Resolved, upper: int, since: int) -> None:
        """Apply resolved events to the state.  Amortised O(versions)."""
        self.output_arrangement.apply_changes(resolved.changes, upper, since)
