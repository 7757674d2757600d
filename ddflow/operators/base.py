"""Define the operator protocol: `Operator` for a node of a plan, `RunningOperator` for its state in an opened plan.

To add an operator, write one file with two classes: a subclass of `Operator` with a ``verb``, marked
`register_operator`, and the `RunningOperator` that its ``open`` returns. An operator without state returns a
`StatelessRunningOperator`.

Guarantees: an `Operator` is immutable and holds no rows. A `RunningOperator` changes only in `RunningOperator.apply`,
so a step that fails leaves its state unchanged. Other packages use only the methods of these two classes, for every
kind of operator.

>>> doubled = StatelessRunningOperator(lambda given: given._replace(diffs=2 * given.diffs))
>>> updates = Updates(pa.table({"v": ["oz"]}), narrow_ints(0), ints(1), ints(3))
>>> doubled.compute([updates], since=3)[0].diffs.tolist()
[2]
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints, Narrow, RowHasher, Secret, Words
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.row_views import gather_or_slice
from ddflow.columns.threads import ALONE, Threads
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.operators.updates import GroupSortedUpdates, Updates, consolidate, ints, narrow_ints
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.verbs.family import register_operator
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import NO_ROWS, RowsByGroup

__all__ = [
    "Operator",
    "OperatorContext",
    "RunningOperator",
    "StatelessRunningOperator",
    "ints",
    "narrow_ints",
    "register_operator",
]

ONLY: Narrow = narrow_ints(0)
"""The position of the only group in a look-up."""
Hashes = tuple[Words, Words, Words] | tuple[Words, Words, Words, Ints]
"""Hashes of rows: high identity words, low identity words, and a hash of the columns that decide whether a row changed.

The fourth array holds the identity words after the first two, for rows of a `DifferenceArrangement` with all columns.
"""


class OperatorContext(NamedTuple):
    """The settings that an opened plan passes to each operator."""

    secret: Secret
    """The secret key of the hash function that computes identities."""
    time_type: pa.DataType
    """The type of the plan's times."""
    wanted: frozenset[str]
    """The output columns that a step has to compute because a later operator or an output reads them."""
    threads: Threads = ALONE
    """The threads that share the work."""
    inputs: tuple[Any, ...] = ()
    """The opened inputs of the operator. Each input is a `ReadableNode`."""


class ReadableNode:
    """An input or an operator of an opened plan, with methods that read its state."""

    tracked: Sequence[str] | None = None
    """The columns that decide whether the row of a key changed. The value is None if the rows have no key."""

    arrangements: tuple[Arrangement, ...] = ()
    """The arrangements that hold the state.

    If the node's output is arranged, the first arrangement holds the output.
    """

    @property
    def output_arrangement(self) -> Arrangement:
        """The arrangement of the node's output."""
        return self.arrangements[0]

    holds_output: ClassVar[bool] = True
    """Whether rows of the output can be read from the state, if there is state."""

    identified: pa.Schema = pa.schema([])
    """The columns whose values identify a version in the arrangements."""

    keys: RowHasher
    """The columns by which rows of the output are found in its arrangement, and the hash function of these columns."""

    @property
    def is_read_from_state(self) -> bool:
        """Whether the output is read from the state, and not computed from the inputs."""
        return self.holds_output and bool(self.arrangements)

    @property
    def nbytes(self) -> int:
        """The size of the state in memory, in bytes."""
        return sum(each.nbytes for each in self.arrangements)

    def iterate_rows(self, as_of: int | None) -> Iterable[Updates]:
        """Yield the rows of the output at the time ``as_of``, or the current rows if it is None, in several `Updates`.

        O(rows).
        """
        return (self.to_output_rows(table) for table in self.output_arrangement.iterate_rows(as_of))

    def to_output_rows(self, arranged: Any) -> Updates:
        """Convert rows of the arrangement to rows of the output. The result can have extra columns. O(rows)."""
        return as_updates(arranged)

    def look_up_groups(self, high: Words, low: Words) -> RowsByGroup:
        """Look up the rows of groups by the identity words of the groups, which must ascend.

        The references point into the arrangement. O(groups) expected.
        """
        arranged = self.output_arrangement
        prior = arranged.look_up_keys(high, low if arranged.index.wide else NONE, np.arange(high.size, dtype=np.int32))
        live = prior.reference & LIVE != 0
        if not arranged.index.wide:
            live &= low == 0  # a null key; no stored row has one
        begins = np.concatenate([ints(0), np.cumsum(live)])
        references = prior.reference[live] & (LIVE - 1) & ~OCCUPIED
        return RowsByGroup(references, np.ones(references.size, np.int64), begins)

    def group_updates(self, updates: Updates, keys: RowHasher) -> GroupSortedUpdates:
        """Sort the updates of a step by the columns of ``keys``, by which `look_up_groups` finds rows.  O(n log n)."""
        return GroupSortedUpdates.sort_updates(updates, keys)

    def find_group(self, columns: Sequence[pa.Array], as_of: int | None) -> list[Updates]:
        """Return the output rows of one group as of a time, in several `Updates`.

        The rows can be slices of batches. ``columns``: one value for each column of `keys`. O(rows of the group) for
        the current rows; O(runs log rows) for an older time.
        """
        arranged, (high, low) = self.output_arrangement, self.keys.compute_identities(columns, 1)
        if arranged.is_searched and (as_of is None or as_of >= max(arranged.latest, arranged.since)):
            found = [(arranged, self.look_up_group(high, low))]
        else:
            parts = arranged.partitions
            found = [(each, each.find_group_at(high, low, as_of)) for each in parts]
        return [self.compute_group(each, rows) for each, rows in found if rows.references.size]

    def look_up_group(self, high: Words, low: Words) -> RowsByGroup:
        """Look up the stored rows of one group that its output rows depend on. O(rows) expected."""
        reference = int(self.output_arrangement.look_up_keys(high, low, ONLY).reference[0])
        return RowsByGroup(ints(reference & (LIVE - 1) & ~OCCUPIED) if reference & LIVE else NO_ROWS)

    def compute_group(self, arranged: Arrangement, found: RowsByGroup) -> Updates:
        """Compute the output rows of one group from its stored rows, one or more. O(rows)."""
        return self.to_output_rows(gather_or_slice(arranged.slots.pool, found.references, arranged.schema))

    def clear_state(self) -> None:
        """Replace the state with empty arrangements."""
        fresh = [each.make_empty() for each in self.arrangements]
        for each, old in zip(fresh, self.arrangements, strict=True):
            if old.lapse is not None and old.forgetting is None:
                each.set_tombstone_expiry(old.lapse.of)
        self.arrangements = tuple(fresh)

    def hash_rows(self, rows: pa.Table | pa.RecordBatch) -> Hashes:
        """Compute the hashes that the arrangement stores for these rows. O(rows).

        For a live version, all three hashes equal the stored hashes. The row of a deletion can hold filler values, so
        its hashes can differ from the stored hashes.
        """
        raise NotImplementedError

    def to_output_table(self, made: Updates, secret: Secret, schema: pa.Schema, time_type: pa.DataType) -> pa.Table:
        """Convert rows that were read from the node to the table of an output.  O(rows)."""
        return consolidate(made, secret).to_table(schema, time_type)


class RunningOperator(ReadableNode):
    """An operator of an opened plan, with its state and the method that computes a step."""

    @abstractmethod
    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, Any]:
        """Compute the updates of the output and the change for `apply`. The state stays unchanged.

        The change is None if there is nothing to apply. ``inputs``: the updates of each input, with one shared list of
        times. Without partitions, the inputs have all updates of the step. With partitions, they have all updates of
        some of the groups by which `Collection.exchange` distributes rows. ``since``: the value of ``since`` after the
        step.
        """

    def apply(self, changes: Sequence[Any], upper: int, since: int) -> None:
        """Apply the changes of a step. Two changes must not have an identity in common. Amortised O(updates)."""
        for each in self.arrangements:
            each.apply_changes(changes, upper, since)

    def has_due_updates(self, until: int) -> bool:
        """Tell whether the operator emits updates when a step without updates closes the time ``until``."""
        return False

    def select_waiting_rows(self, inputs: Sequence[Updates]) -> Updates:
        """Select the updates that the operator accepts but emits later.  ``inputs``: as for `compute`."""
        return inputs[0].slice_rows(0, 0)

    def store_change(self, change: Any, keep: Callable[[Arrangement, Any], Any]) -> Any:
        """Convert a change so that it stays valid after the current part of the step.

        ``keep``: a function that moves the change of an arrangement to files.
        """
        return keep(self.arrangements[0], change)

    def cast_state_rows(
        self, narrow: Any, rows: pa.Table | pa.RecordBatch, schema: pa.Schema, live: Any
    ) -> pa.RecordBatch:
        """Cast rows of an arrangement of ``narrow`` to the columns of this operator's arrangement.

        ``narrow``: the same operator on narrower columns.  ``live``: bool[n]; the row of a deletion may hold any
        values. O(bytes).  Raises `InexactValue`.
        """
        return conform_to_wider_schema(rows, schema)

    def compute_initial_change(self, inputs: Sequence[Updates], since: int) -> Any:
        """Compute the change that fills empty state from the ``inputs`` at the last time. O(rows).

        A plan uses this method if the state is not in files.
        """
        return self.compute(inputs, since)[1]

    def compute_initial_updates(self, inputs: Sequence[Updates]) -> Updates:
        """Compute the output updates of an operator without state from the current rows of its inputs. O(rows)."""
        return self.compute(inputs, 0)[0]

    def compute_output_rows(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """Compute the output rows as of a time from the input rows as of the same time. O(rows)."""
        return self.compute(inputs, 0)[0]


class Operator(Collection):
    """A collection that is computed from other collections."""

    @abstractmethod
    def open(self, context: OperatorContext) -> RunningOperator:
        """Create the running operator, with empty state."""


class RowPreservingOperator(Operator):
    """An operator whose output rows are input rows. The columns that the operator keeps have unchanged values."""

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return the equal rows of each input; see `Collection.find_contributing_rows`."""
        return [alike.select_matches(each, wanted, self.schema.names) for each in given]


class GroupOperator(Operator):
    """An operator with one output row for each group.  ``by``: the group columns."""

    by: Sequence[str]

    def exchange(self) -> list[Columns | None]:
        """Return the group columns; see `Collection.exchange`."""
        return [tuple(self.by)]

    def unique_by(self) -> list[Columns]:
        """Return the group columns; see `Collection.unique_by`."""
        return [tuple(self.by)]

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return all rows of the wanted groups; see `Collection.find_contributing_rows`."""
        return [alike.select_matches(given[0], wanted, self.by)]


class StatelessRunningOperator(RunningOperator):
    """An operator without state.

    The method ``step`` maps updates of the inputs to updates of the output, and rows of the inputs to rows of the
    output.
    """

    def __init__(self, step: Callable[..., Updates]) -> None:
        self.step = step

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, Any]:
        """See `RunningOperator.compute`. ``step`` is linear: step(a + b) = step(a) + step(b)."""
        return self.step(*inputs), None

    def compute_output_rows(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """See `RunningOperator.compute_output_rows`."""
        return self.step(*inputs)


def as_updates(table: Any) -> Updates:
    """Convert rows to updates of diff 1 at time 0."""
    n = table.num_rows
    return Updates(table, np.zeros(n, np.int32), np.ones(n, np.int64), ints(0))
