"""Read the arrangements of a state's partitions as one arrangement.

Guarantees: a read gives the rows of one arrangement of all versions, at every time: partition by partition, each in
hash order. No key is in two partitions, however they are cut, because a count stays with the rows that it counts.
Limits: a `PartitionedArrangement` is read-only and has no index, batches or runs; look into its `partitions` instead.
The ``upper`` of a partition may be old, because a step may have brought nothing to it.
"""

from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Words, assign_partitions
from ddflow.trace.arrangement import Arrangement


class PartitionedArrangement(Arrangement):
    """An arrangement over partitions.

    ``partitions``: one or more, not indexed; this object owns them from then on.  ``since``, ``upper``: of the state.

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
        # No super().__init__: this object needs none of an arrangement's index, batches and runs.
        self._partitions = tuple(partitions)
        self.schema, self.keeps, self.lapse = partitions[0].schema, partitions[0].keeps, None
        self.is_searched, self.found = False, None
        self.since, self.upper = since, upper
        for each in partitions:
            advance_times(each, since, upper)
            each.index = partitions[0].index  # no index is searched, so one saves the memory of many
        self.latest = max(each.latest for each in partitions)
        self.keys, self.tombstones_counted = sum(p.keys for p in partitions), sum(p.tombstone_count for p in partitions)

    @property
    def partitions(self) -> Sequence[Arrangement]:
        """The arrangements of the partitions."""
        return self._partitions

    def freeze(self) -> Arrangement:
        """Return this object, which has no writer."""
        return self

    def narrow_to_group(self, high: Words, low: Words, found: Ints | None, as_of: int | None) -> Arrangement:
        """Return one that reads only the rows of one group, as `Arrangement.narrow_to_group` does."""
        out = copy(self)
        out._partitions = tuple(each.narrow_to_group(high, low, found, as_of) for each in self._partitions)
        return out

    def iterate_rows(self, as_of: int | None = None, what: str = "a read") -> Iterator[pa.Table]:
        """Yield the rows of all partitions, one after the other, as `Arrangement.iterate_rows` does."""
        self.check_readable(as_of, what)
        for each in self._partitions:
            yield from each.iterate_rows(as_of, what)

    @property
    def nbytes(self) -> int:
        """Bytes in memory of all partitions."""
        return self._partitions[0].index.nbytes + sum(each.slots.resident for each in self._partitions)

    def _check_invariants(self) -> None:
        for each in self._partitions:
            each._check_invariants()


def advance_times(arranged: Arrangement, since: int, upper: int) -> None:
    """Record that times below ``upper`` are complete and times up to ``since`` compacted.  O(1).

    No step since then has changed the arrangement.
    """
    arranged.since, arranged.upper = max(arranged.since, since), max(arranged.upper, upper)


def find_misplaced_key_partition(arranged: Arrangement, number: int, partitions: int) -> int | None:
    """Return the right partition of the first key that is not in its own; None if all are.  O(versions).

    ``number``: the partition of the arrangement.  ``partitions``: their number.
    """
    for part in arranged.parts:
        of = assign_partitions(arranged.slots[part.slot].high[part.begin : part.end], partitions)
        if (odd := np.flatnonzero(of != number)).size:
            return int(of[odd[0]])
    return None
