"""Read the arrangements of a state's partitions as one arrangement.

Guarantees: at every time, a read gives the same rows as one arrangement with the versions of all partitions. A read
returns the rows of one partition after the other, in hash order within each partition. No key is in two partitions. For
example, a count is in the partition of the rows that it counts.
Limits: a `PartitionedArrangement` is read-only. Only its `partitions` have an index, batches and runs. The stored
``upper`` of a partition is older than the last step if this step had no rows for the partition.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import assign_partitions
from ddflow.trace.arrangement import Arrangement


class PartitionedArrangement(Arrangement):
    """An arrangement over partitions.

    ``partitions``: one or more arrangements without an index, which this object then owns.  ``since``, ``upper``: the
    times of the state.

    >>> import pyarrow as pa
    >>> from ddflow.trace.batch import Batch
    >>> from ddflow.trace.batch import Run
    >>> from ddflow.time import BatchDescription
    >>> def part(high):
    ...     each = Arrangement(pa.schema({"k": pa.int64()}), wide=False, words=0)
    ...     batch = Batch.from_lists([high], [3], [True], pa.table({"k": [high % 1000]}))
    ...     each.on_disk.append(Run(BatchDescription(0, 4, 3), [each.slots.add_batch(batch)]))
    ...     each.keys, each.since, each.upper, each.latest = 1, 3, 4, 3
    ...     return each
    >>> joined = PartitionedArrangement([part(7), part(2**63)], since=3, upper=9)
    >>> joined.read(8).to_pylist(), joined.keys, len(joined.partitions)
    ([{'k': 7}, {'k': 808}], 2, 2)
    >>> find_misplaced_key_partition(part(8), number=0, partitions=2)
    1
    """

    def __init__(self, partitions: Sequence[Arrangement], since: int, upper: int) -> None:
        # Do not call super().__init__, because this object has no index, batches or runs.
        self._partitions = tuple(partitions)
        self.schema, self.keeps, self.lapse = partitions[0].schema, partitions[0].keeps, None
        self.is_searched = False
        self.since, self.upper = since, upper
        for each in partitions:
            advance_times(each, since, upper)
            each.index = partitions[0].index  # no index is searched, so sharing one saves memory
        self.latest = max(each.latest for each in partitions)
        self.keys, self.tombstones_counted = sum(p.keys for p in partitions), sum(p.tombstone_count for p in partitions)

    @property
    def partitions(self) -> Sequence[Arrangement]:
        """The arrangements of the partitions."""
        return self._partitions

    def freeze(self) -> Arrangement:
        """Return this object, which has no writer."""
        return self

    def iterate_rows(self, as_of: int | None = None, what: str = "a read") -> Iterator[pa.Table]:
        """Yield the rows of all partitions, one after the other, as `Arrangement.iterate_rows` does."""
        self.check_readable(as_of, what)
        for each in self._partitions:
            yield from each.iterate_rows(as_of, what)

    @property
    def nbytes(self) -> int:
        """Bytes of all partitions in memory."""
        return self._partitions[0].index.nbytes + sum(each.slots.resident for each in self._partitions)

    def _check_invariants(self) -> None:
        for each in self._partitions:
            each._check_invariants()


def advance_times(arranged: Arrangement, since: int, upper: int) -> None:
    """Advance the times of an arrangement to ``since`` and ``upper``.

    Later steps must not have changed the arrangement. O(1).
    """
    arranged.since, arranged.upper = max(arranged.since, since), max(arranged.upper, upper)


def find_misplaced_key_partition(arranged: Arrangement, number: int, partitions: int) -> int | None:
    """Find the first key that is in a wrong partition.

    Return the right partition of this key, or None if all keys are in the right partition. O(versions). ``number``: the
    number of the arrangement's partition. ``partitions``: the number of partitions.
    """
    for part in arranged.parts:
        of = assign_partitions(arranged.slots[part.slot].high[part.begin : part.end], partitions)
        if (odd := np.flatnonzero(of != number)).size:
            return int(of[odd[0]])
    return None
