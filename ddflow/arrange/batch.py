"""A batch: immutable, hash-ordered, consolidated versions with a description.

Invariant: rows are sorted by (identity, time), no (identity, time) occurs twice, and every time lies in [lower, upper).
A *version* says what its key holds from its time on, until the next: a row, or nothing (a deletion).  That spells out
the same updates as a list of diffs would, since a retraction's row is the version before it, at half the size; two
versions of a key at one time would be two live values, and are refused as `CorruptState`.  Where the columns live
(memory, a mapped file) does not change the class.  A batch knows nothing of other batches.

>>> import pyarrow as pa
>>> batch = Batch.of(Description(0, 3, 0), [7, 7], [1, 2], [True, False], pa.table({"k": [1, 1]}))
>>> batch._check()
>>> len(batch), batch.description.upper
(2, 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ddflow.errors import CorruptState
from ddflow.frontier import Description
from ddflow.identity import NONE, Flags, Ints, Words
from ddflow.rows import Rows


@dataclass(frozen=True, eq=False)
class Batch:
    """n versions; see the header.

    ``high``, ``low``: uint64[n], identities (low of size 0 where one word is enough).  ``time``: int64[n].
    ``live``: uint8[n].  ``order``: int64[n, w], the order words that each version was won with.  ``rows``: n rows of
    payload; a deletion's payload is filler.
    """

    description: Description
    high: Words
    low: Words
    time: Ints
    live: Flags
    order: Ints
    rows: Rows

    @classmethod
    def of(cls, description: Description, high: Sequence[int], time: Sequence[int], live: Sequence[bool],
           table: pa.Table) -> Batch:  # fmt: skip
        """A small batch from lists, without orders: for examples and tests."""
        n = len(high)
        return cls(description, np.array(high, np.uint64), NONE, np.array(time, np.int64), np.array(live, np.uint8),
                   np.empty((n, 0), np.int64), Rows(table))  # fmt: skip

    def __len__(self) -> int:
        return int(self.high.size)

    @property
    def nbytes(self) -> int:
        """Bytes held by columns and payload."""
        own = (self.high, self.low, self.time, self.live, self.order)
        return sum(a.nbytes for a in own) + self.rows.nbytes

    def _check(self) -> None:
        """Assert the invariant; raise `CorruptState` for two values of a key at one time."""
        n, d = len(self), self.description
        assert len(self.rows) == n == self.time.size == self.live.size == self.order.shape[0]
        # Every time is one the description speaks of.
        assert n == 0 or (self.time.min() >= d.lower and self.time.max() < d.upper), d
        if n < 2:
            return
        low = self.low if self.low.size else np.zeros(n, np.uint64)
        columns = (self.high, low, self.time)
        equal, less = np.ones(n - 1, bool), np.zeros(n - 1, bool)
        for column in columns:
            less |= equal & (column[:-1] < column[1:])
            equal &= column[:-1] == column[1:]
        if equal.any():
            at = int(np.flatnonzero(equal)[0])
            raise CorruptState("a batch", f"rows {at} and {at + 1} are two values of one key at time {self.time[at]}",
                               "do not use this state; replay the log into a new one")  # fmt: skip
        # Sorted by identity, then time.
        assert less.all(), "a batch is not in hash order"
