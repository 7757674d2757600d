"""The upsert operator: events in, differences out, against the arrangement of its own output.

Invariant: accumulating what it emitted up to any time gives one row for each live key, the row that won; the
arrangement is that collection, so the state costs nothing beyond the index one would want anyway. The journey: events
are identified and sorted, what their keys hold is looked up, a kernel resolves all of them without touching payload,
and only the rows that changed hands are gathered. Nothing may change until the whole step, of all inputs, is known to
succeed; so `resolve` computes a `Resolution`, and `apply` takes it. (McSherry, "Upserts in differential dataflow";
differential-dataflow's ``arrange_from_upsert``.)

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.bind import bind
>>> from ddflow.plan.inputs.spec import Upsert
>>> schema = pa.schema({"k": pa.string(), "v": pa.string()})
>>> upsert = RunningUpsert(bind("names", schema, Upsert("k")), Secret(1, 2))
>>> events = pa.record_batch({"k": ["frank"] * 2, "v": ["mcsherry", "zappa"]}, schema)
>>> events = Events(events, ints(0, 1), ints(0, 1), ints(0, 1))
>>> upsert.resolve(events, ints(0, 1), since=1).updates(schema).to_table(schema, pa.int64()).column("_diff").to_pylist()
[1, -1, 1]
"""

from typing import Self

from ddflow.columns.hashing import Ints, Secret
from ddflow.errors import DdflowError, SpecError
from ddflow.operators.updates import ints
from ddflow.operators.upsert.events import Events
from ddflow.operators.upsert.full_rows import FullRows
from ddflow.operators.upsert.merged import MergedRows
from ddflow.operators.upsert.resolution import Resolution
from ddflow.operators.upsert.state import UpsertState

__all__ = ["Events", "Resolution", "RunningUpsert", "Secret", "ints"]


class RunningUpsert(UpsertState):
    """The upsert operator of one input of an opened plan."""

    def keyed_for(self, asked: str, error: type[DdflowError] = SpecError) -> Self:
        """Return this input, because it has keys."""
        return self

    def resolve(self, events: Events, times: Ints, since: int, winners: bool = True) -> Resolution:
        """Compute the outcome of events; nothing changes.

        ``times``: the step's distinct times, ascending.  ``since``: what it will be after the step.  ``winners``:
        whether anybody asks for `Resolution.winner_orders`.  O(n) expected.  Raises `TieRefused` under ``tie="error"``.
        """
        self.arena.reset()
        keyed = self.keyed(events, times, since)
        weigh = FullRows if self.bound.merging is None else MergedRows
        return Resolution(self, keyed, weigh(self, keyed, since), winners)

    def apply(self, resolution: Resolution, upper: int, since: int) -> None:
        """Take a resolution into the state.  Amortised O(versions)."""
        self.arranged.apply(resolution.changes, upper, since)
