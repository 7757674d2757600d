"""A batch: immutable, hash-ordered, consolidated versions of a range of identities; and the change that a step makes.

Guarantees: a batch never changes once it is made. Versions of an identity are ordered by time, and no two have one
time.

>>> import pyarrow as pa
>>> batch = Batch.of([7, 7], [1, 2], [True, False], pa.table({"k": [1, 1]}))
>>> batch._check()
>>> len(batch), batch.nbytes < 100
(2, True)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Flags, Ints, Words
from ddflow.columns.rows import Rows
from ddflow.errors import CorruptState


def same(value: int, n: int, kind: Any) -> np.ndarray[Any, Any]:
    """Build a column of n times one value, in the memory of one."""
    return np.ndarray(n, kind, np.array([value], kind), 0, (0,))


@dataclass(frozen=True, eq=False)
class Batch:
    """n versions; see the header.

    ``high``, ``low``: uint64[n], identities (low of size 0 where one word is enough).  ``time``: int64[n].
    ``live``: uint8[n].  ``value``: uint64[n], hashes of the rows, or of size 0 where an index holds them.  ``order``:
    int64[n, w], the order words that each version was won with; where ``ordered``, the words of identities beyond two.
    ``rows``: n rows of payload; a deletion's payload is filler.  ``mapped``: the file the columns are in, None for
    memory.
    """

    high: Words
    low: Words
    time: Ints
    live: Flags
    value: Words
    order: Ints
    rows: Rows
    mapped: Any = None
    ordered: bool = False

    @property
    def more(self) -> Ints | None:
        """The words of identities beyond two, None where there are none."""
        return self.order if self.ordered else None

    @classmethod
    def of(cls, high: Sequence[int], time: Sequence[int], live: Sequence[bool], table: pa.Table) -> Self:
        """Build a small batch from lists, without orders: for examples and tests."""
        n = len(high)
        return cls(
            np.array(high, np.uint64),
            NONE,
            np.array(time, np.int64),
            np.array(live, np.uint8),
            NONE,
            np.empty((n, 0), np.int64),
            Rows(table),
        )

    def __len__(self) -> int:
        return int(self.high.size)

    @cached_property
    def nbytes(self) -> int:
        """Bytes held by columns and payload, in memory or in the file."""
        total = 0
        for column in (self.high, self.low, self.time, self.live, self.value, self.order):
            total += column.nbytes if 0 not in column.strides else column.itemsize
        return total + self.rows.held

    def _check(self) -> None:
        """Assert the invariant; raise `CorruptState` for two values of a key at one time."""
        n = len(self)
        assert len(self.rows) == n == self.time.size == self.live.size == self.order.shape[0]
        assert self.value.size in (0, n)
        if n < 2:
            return
        columns = [self.high, self.low if self.low.size else np.zeros(n, np.uint64)]
        columns += [*np.ascontiguousarray(self.order).view(np.uint64).T] if self.ordered else []
        columns.append(self.time)  # type: ignore[arg-type]
        equal, less = np.ones(n - 1, bool), np.zeros(n - 1, bool)
        for column in columns:
            less |= equal & (column[:-1] < column[1:])
            equal &= column[:-1] == column[1:]
        if equal.any():
            at = int(np.flatnonzero(equal)[0])
            raise CorruptState(
                "a batch",
                f"rows {at} and {at + 1} are two values of one key at time {self.time[at]}",
                "do not use this state; replay the log into a new one",
            )
        # Sorted by identity, then time.
        assert less.all(), "a batch is not in hash order"


def starts(high: Words, low: Words, more: Ints | None = None) -> Any:
    """bool[n]: where another key begins, of identities in order (``low`` of size 0 where one word is enough).  O(n).

    ``more``: int64[n, w], words beyond two.

    >>> starts(np.array([1, 1, 2], np.uint64), np.empty(0, np.uint64)).tolist()
    [True, False, True]
    """
    out = np.ones(high.size, np.bool_)
    out[1:] = high[1:] != high[:-1]
    if low.size:
        out[1:] |= low[1:] != low[:-1]
    if more is not None:
        for word in more.T:
            out[1:] |= word[1:] != word[:-1]
    return out


def ends(high: Words, low: Words, more: Ints | None = None) -> Any:
    """bool[n]: which are the last of their keys, of identities in order.  O(n)."""
    return np.append(starts(high, low, more)[1:], np.ones(min(high.size, 1), np.bool_))


class Change(NamedTuple):
    """What one step does to a range of identities: its versions, and which of them are current after it.

    >>> import numpy as np, pyarrow as pa
    >>> zero = np.array([0])
    >>> batch = Batch.of([5], [3], [True], pa.table({"k": [1]}))
    >>> Change(batch, np.array([5], np.uint64), zero, zero, 0, live_added=1, tombstones_added=0).nbytes > 0
    True
    """

    batch: Batch
    """The versions, in memory or in files."""
    value: Words
    """uint64[n]: what counts in "did it change", for the index."""
    last: Ints
    """int64[keys]: the place of each key's last version, ascending; -1 for a key that did not change."""
    place: Ints
    """int64[keys]: where `Arrangement.seek` found the keys in the index."""
    built: int
    """The number of the index's table at that time."""
    live_added: int
    """How many more keys are live than before."""
    tombstones_added: int
    """How many more hold an order and no row."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that taking it in will add; none of a batch in files."""
        return self.batch.nbytes if self.batch.mapped is None else 0
