"""The operator protocol: what a plan holds of an operator, and what an opened plan holds of it.

Invariant: an `Operator` is immutable and knows no rows. A `RunningOperator` changes in `RunningOperator.apply` alone,
so a refused step leaves everything as it was. Nothing outside this room asks which operator it has: graph, step, codec,
checkpoint, stages and tools go by these methods.

An operator is a file: a subclass of `Operator` with a ``verb``, marked `register_operator`, and the `RunningOperator`
that its ``open`` gives. An operator without state gives a `StatelessRunningOperator`.

>>> doubled = StatelessRunningOperator(lambda given: given._replace(diffs=2 * given.diffs))
>>> updates = Updates(pa.table({"v": ["oz"]}), narrow_ints(0), ints(1), ints(3))
>>> doubled.compute([updates], since=3)[0].diffs.tolist()
[2]
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints, RowHasher, Secret, Words
from ddflow.columns.layout import Column, ColumnBuffers
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.rows import RowPool, Rows, gather_buffers
from ddflow.columns.sorting import SortedRows
from ddflow.columns.threads import ALONE, Threads
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.kernels.resolve import LIVE, OCCUPIED, Prior
from ddflow.kernels.sort import order_by_rank
from ddflow.operators.updates import Updates, consolidate, ints, narrow_ints
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.verbs.family import register_operator
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, Batch
from ddflow.trace.ordered_index import ALL, RowsByGroup

__all__ = [
    "Operator",
    "OperatorContext",
    "RunningOperator",
    "StatelessRunningOperator",
    "ints",
    "narrow_ints",
    "register_operator",
]

Hashes = tuple[Words, Words, Words] | tuple[Words, Words, Words, Ints]
"""Of rows: their identities, high and low words, and a hash of what counts in "did it change"; of rows of ordered
arrangements the words beyond two, where all columns are there."""


class OperatorContext(NamedTuple):
    """What an operator is opened in."""

    secret: Secret
    """For identities."""
    time_type: pa.DataType
    """Of the plan's times."""
    wanted: frozenset[str]
    """The columns of its output that somebody reads in a step."""
    threads: Threads = ALONE
    """The threads that share the work."""
    inputs: tuple[Any, ...] = ()
    """What is opened of its inputs, each a `ReadableNode`."""


class ReadableNode:
    """What can be asked of an input or an operator of an opened plan."""

    tracked: Sequence[str] | None = None
    """Of what is kept by key: the columns that count in "did it change"; None for what has no key."""

    arrangements: tuple[Arrangement, ...] = ()
    """The state that lasts; the first is that of its own output, where it is arranged."""

    @property
    def output_arrangement(self) -> Arrangement:
        """The arrangement of its own output."""
        return self.arrangements[0]

    identified: pa.Schema = pa.schema([])
    """The columns that versions of its arrangements are identified by."""

    keys: RowHasher
    """The columns that rows of its own output are found by, where it is arranged, and how they are hashed."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory of all its state."""
        return sum(each.nbytes for each in self.arrangements)

    def iterate_rows(self, as_of: int | None) -> Iterable[Updates]:
        """Yield the rows of its output as of a time, by default now, piece by piece.  O(rows)."""
        return (self.to_output_rows(table) for table in self.output_arrangement.iterate_rows(as_of))

    def to_output_rows(self, arranged: pa.Table) -> Updates:
        """Convert rows of its arrangement to rows of its output; more columns may come along.  O(rows)."""
        return as_updates(arranged)

    def look_up_groups(self, high: Words, low: Words, most: int = ALL) -> RowsByGroup:
        """Look up the rows of groups by the words of their identities, ascending.

        References point into the arrangement.  ``most``: of each group, at most.  O(groups) expected.
        """
        arranged = self.output_arrangement
        prior = arranged.look_up_keys(high, low if arranged.index.wide else NONE, np.arange(high.size, dtype=np.int32))
        live = prior.reference & LIVE != 0
        if not arranged.index.wide:
            live &= low == 0  # null, which no row of it has
        begins = np.concatenate([ints(0), np.cumsum(live)])
        references = prior.reference[live] & (LIVE - 1) & ~OCCUPIED
        return RowsByGroup(references, np.ones(references.size, np.int64), begins)

    def find_group(self, columns: Sequence[pa.Array], as_of: int | None) -> Iterable[Updates]:
        """Yield the rows of its output as of a time for one key, or for the group that the key is found by.

        ``columns``: one value each, those of `keys`.  O(rows of the group) now; O(runs log rows) at an older time.
        """
        arranged, (high, low) = self.output_arrangement, self.keys.compute_identities(columns, 1)
        found = None
        if arranged.is_searched and (as_of is None or as_of >= max(arranged.latest, arranged.since)):
            found, as_of = self.look_up_groups(high, low if low.size else np.zeros(1, np.uint64)).references, None
        one = copy(self)
        one.arrangements = (arranged.narrow_to_group(high, low, found, as_of), *self.arrangements[1:])
        return one.iterate_rows(as_of)

    def clear_state(self) -> None:
        """Hold nothing any more: as it was opened."""
        fresh = [each.make_empty() for each in self.arrangements]
        for each, old in zip(fresh, self.arrangements, strict=True):
            if old.lapse is not None:
                each.set_tombstone_expiry(old.lapse.of)
        self.arrangements = tuple(fresh)

    def hash_rows(self, rows: pa.Table | pa.RecordBatch) -> Hashes:
        """Compute the hashes that its arrangement keeps with these rows.  O(rows).

        For a live version all three are those it keeps; for a deletion, whose row may be filler, they may be any.
        """
        raise NotImplementedError

    def to_output_table(self, made: Updates, secret: Secret, schema: pa.Schema, time_type: pa.DataType) -> pa.Table:
        """Convert the result of `read` to the table of an output.  O(rows)."""
        return consolidate(made, secret).to_table(schema, time_type)


class RunningOperator(ReadableNode):
    """What an opened plan holds of one operator."""

    @abstractmethod
    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, Any]:
        """Compute the updates of its output, and the change to apply, None for none; nothing changes.

        ``inputs``: updates of each input, of one list of times; all of a step, or all of some identities of the columns
        that `Collection.exchange` names.  ``since``: what it will be after the step.
        """

    def apply(self, changes: Sequence[Any], upper: int, since: int) -> None:
        """Take in the changes of a step, each of other identities.  Amortised O(updates)."""
        for each in self.arrangements:
            each.apply_changes(changes, upper, since)

    def store_change(self, change: Any, keep: Callable[[Arrangement, Any], Any]) -> Any:
        """Return a change that outlives its piece of a step.  ``keep``: moves an arrangement's change to files."""
        return keep(self.arrangements[0], change)

    def cast_state_rows(
        self, narrow: Any, rows: pa.Table | pa.RecordBatch, schema: pa.Schema, live: Any
    ) -> pa.RecordBatch:
        """Rows of an arrangement of ``narrow``, the same operator on narrower columns, in the columns of its own.

        ``live``: bool[n]; the row of a deletion may be any.  O(bytes).  Raises `InexactValue`.
        """
        return conform_to_wider_schema(rows, schema)

    def compute_initial_change(self, inputs: Sequence[Updates], since: int) -> Any:
        """Compute the change that fills state without files from the ``inputs`` at the last time.  O(rows)."""
        return self.compute(inputs, since)[1]

    def compute_initial_updates(self, inputs: Sequence[Updates]) -> Updates:
        """Of an operator that keeps nothing: the updates of its output where its inputs came to hold this.  O(rows)."""
        return self.compute(inputs, 0)[0]

    def compute_output_rows(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """Its output where its inputs hold this.  O(rows)."""
        return self.compute(inputs, 0)[0]


class Operator(Collection):
    """A collection that is computed from others."""

    @abstractmethod
    def open(self, context: OperatorContext) -> RunningOperator:
        """Its state, new, and its step."""


class RowPreservingOperator(Operator):
    """An operator whose rows are rows of its inputs, with the same values in the columns that it has."""

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """See `Collection.find_contributing_rows`: the same rows, of each input those that it has."""
        return [alike.select_matches(each, wanted, self.schema.names) for each in given]


class GroupOperator(Operator):
    """An operator that has a row for each group.  ``by``: the columns of groups."""

    by: Sequence[str]

    def exchange(self) -> list[Columns | None]:
        """See `Collection.exchange`: the groups."""
        return [tuple(self.by)]

    def unique_by(self) -> list[Columns]:
        """See `Collection.unique_by`: the groups."""
        return [tuple(self.by)]

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """See `Collection.find_contributing_rows`: all rows of their groups."""
        return [alike.select_matches(given[0], wanted, self.by)]


class RunningCountedRows(RunningOperator):
    """What keeps rows of a step with numbers, such as counts.  ``given``: holds the columns of the updates at hand, as
    number 0; ``fields``: their fields, in whose schema null may not be meant."""

    given: RowPool
    fields: list[pa.Field]

    def _build_change(
        self, updates: Updates, by: SortedRows, order: Ints | None, prior: Prior, place: Ints, versions: list[Any]
    ) -> ArrangementChange:
        """Build the versions, in the order of identities, then times, and mark the last one of each.

        ``order``: the other words of identities, None where they have none.  ``place``: by number, where it is in
        ``by``.
        """
        ranks, rows, values, numbers = versions
        at = place.take(numbers).astype(np.int32, copy=False)
        sorting = np.empty(at.size, np.int64)
        order_by_rank(at, np.empty(0, np.int64), np.int64(place.size), sorting)
        at, values = at.take(sorting), values.take(sorting)
        last = np.full(place.size, -1)
        last[at] = np.arange(at.size)
        batch = Batch(
            by.high.take(at),
            by.low.take(at) if by.low.size else by.low,
            updates.times.take(ranks.take(sorting)),
            (values != 0).astype(np.uint8),
            NONE,
            np.empty((at.size, 0), np.int64) if order is None else order.take(at, 0),
            Rows.from_columns(
                self._lay_out_columns(rows.take(sorting), values), self.output_arrangement.slots.pool.shape, at.size
            ),
            ordered=order is not None,
        )
        return ArrangementChange(
            batch, values.view(np.uint64), last, prior.place, self.output_arrangement.index.built, 0, 0
        )

    def _lay_out_columns(self, rows: Ints, counts: Ints) -> list[Column]:
        """Gather some rows of the step, and append their numbers."""
        column = ColumnBuffers(pa.int64(), counts.size, [None, pa.py_buffer(counts.copy())], 0)
        return [*gather_buffers(self.given, rows, self.fields), column]


class StatelessRunningOperator(RunningOperator):
    """An operator that keeps nothing: ``step`` makes its output's updates of its inputs', and rows of rows."""

    def __init__(self, step: Callable[..., Updates]) -> None:
        self.step = step

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, Any]:
        """See `RunningOperator.compute`.  op(a + b) = op(a) + op(b)."""
        return self.step(*inputs), None

    def compute_output_rows(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """See `RunningOperator.compute_output_rows`."""
        return self.step(*inputs)


def as_updates(table: pa.Table) -> Updates:
    """Rows that are held once each, as updates of one time, whichever."""
    n = table.num_rows
    return Updates(table, np.zeros(n, np.int32), np.ones(n, np.int64), ints(0))
