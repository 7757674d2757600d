"""An arrangement: a collection with at most one live row a key, kept indexed by key; one writer, many readers.

Invariant: for every t in [since, upper) a read at t is the collection that the applied changes define; ``since`` never
retreats.  Why that is not trivial: the index knows only what is current, the spine only what was written; a read at an
older time is assembled from the versions of all batches, while merges throw away what no read may ask for any more.
An operator uses it in two steps: ``seek`` what the keys of its step hold, and, when the whole step has been
computed and nothing was refused, ``apply`` its change.  An arrangement does not judge, and does not know its operator.

>>> import numpy as np, pyarrow as pa
>>> arranged = Arrangement(pa.schema({"k": pa.int64()}), wide=False, words=0)
>>> one = np.array([5], np.uint64)
>>> arranged.apply(Change(one, np.empty(0, np.uint64), np.array([3]), np.ones(1, np.uint8), one,
...                np.empty((1, 0), np.int64), pa.table({"k": [1]}), np.array([0])), upper=4, since=3)
>>> arranged.read().to_pylist(), arranged.since, arranged.upper
([{'k': 1}], 3, 4)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.arrange.batch import Batch
from ddflow.arrange.index import Index
from ddflow.arrange.spine import Spine
from ddflow.errors import NotReadable
from ddflow.frontier import NEVER, Description, advance, shown
from ddflow.identity import Flags, Ints, Words
from ddflow.kernels.gather import SLOT
from ddflow.kernels.resolve import LIVE, OCCUPIED, Held
from ddflow.rows import Rows, gather


class Change(NamedTuple):
    """What one step does to an arrangement: versions sorted by (identity, time), and which are their keys' last."""

    high: Words
    low: Words
    time: Ints
    live: Flags
    value: Words
    """uint64[n]: what counts in "did it change", for the index."""
    order: Ints
    table: pa.Table
    last: Ints
    """int64[keys]: the place of each changed key's last version, ascending."""


class Arrangement:
    """``schema``: the columns of a version's payload.  ``wide``: identities of two words.  ``words``: order words an
    entry.  ``keeps``: whether the order of a deleted key must stay."""

    def __init__(self, schema: pa.Schema, wide: bool, words: int, keeps: bool = False) -> None:
        self.schema = schema
        self.index = Index(wide, words, keeps)
        self.spine = Spine()
        self.since, self.upper = NEVER, NEVER

    def seek(self, high: Words, low: Words, starts: Ints) -> Held:
        """What the keys that begin at ``starts`` of the sorted identities hold now.  O(keys) expected."""
        return self.index.seek(high, low, starts)

    def sources(self, events: Rows | None = None) -> list[Rows | None]:
        """What references point into: the batches, and at 0 the step's own rows."""
        return self.spine.sources(events)

    def apply(self, change: Change | None, upper: int, since: int) -> None:
        """Take in a computed change, or None; times below ``upper`` are complete now.

        O(versions), and merging that is proportional to what was written, amortised.
        """
        lower = self.spine.batches[-1].description.upper if len(self.spine) else NEVER
        self.upper = advance(self.upper, upper)
        self.since = max(self.since, since)
        if change is None or not change.last.size:
            return
        batch = Batch(Description(lower, upper, NEVER), change.high, change.low, change.time, change.live,
                      change.order, Rows(change.table))  # fmt: skip
        slot = self.spine.append(batch)
        last = change.last
        reference = OCCUPIED | (change.live[last].astype(np.int64) * LIVE) | (slot << SLOT) | last
        low = change.low[last] if change.low.size else change.low
        self.index.write(change.high[last], low, change.value[last], reference, change.order[last])
        self.spine.tidy(self.index, self.since, len(self.index))

    def check_readable(self, as_of: int | None, what: str) -> None:
        """Raise `NotReadable` unless ``as_of`` (None: now) is a time in [since, upper)."""
        if as_of is not None and not self.since <= as_of < self.upper:
            raise NotReadable(f"{what} as of {as_of}",
                              f"it can be read from {shown(self.since)} up to, not including, {shown(self.upper)}",
                              "read at a closed time, or open with a larger retain=")  # fmt: skip

    def read(self, as_of: int | None = None, what: str = "a read") -> pa.Table:
        """The live rows as of a time, by default the last closed one, in hash order.

        O(keys) now; O(versions) at an older time.  Raises `NotReadable` outside [since, upper), `CorruptState` when a
        key has two values at one time.
        """
        self.check_readable(as_of, what)
        if as_of is None or as_of == self.upper - 1:
            return gather(self.sources(), self.index.walk(live=True)[0], self.schema)
        return gather(self.sources(), self._live_at(as_of), self.schema)

    def _live_at(self, as_of: int) -> Ints:
        """References to the rows that were live at an older time."""
        if not len(self.spine):
            return np.empty(0, np.int64)
        references, _ = self.spine.versions(0, self.index, NEVER, droppable=False)
        batch = self.spine.picked(references, Description(NEVER, self.upper, NEVER))
        same = batch.high[1:] == batch.high[:-1]
        if batch.low.size:
            same &= batch.low[1:] == batch.low[:-1]
        early = batch.time <= as_of
        last = early.copy()
        # A version is the one in force when the next of its key is not yet.
        last[:-1] &= ~(same & early[1:])
        live: Ints = references[last & (batch.live != 0)]
        return live

    @property
    def nbytes(self) -> int:
        """Bytes of index and batches."""
        return self.index.nbytes + sum(batch.nbytes for batch in self.spine.batches)

    def _check(self) -> None:
        """Assert the invariants of index and spine, and that they fit each other."""
        self.index._check()
        self.spine._check()
        assert self.since <= max(self.upper - 1, self.since)
        table = self.index.table
        for word in table[table[:, 2] != 0, 2]:
            slot, row = (int(word) >> SLOT) & ((1 << 20) - 1), int(word) & ((1 << SLOT) - 1)
            batch = self.spine.slots[slot] if slot < len(self.spine.slots) else None
            if int(word) & LIVE or self.index.keeps:
                # An entry points at a version that is live or not as it says (a deletion that is not kept may be gone).
                assert batch is not None and bool(batch.live[row]) == bool(int(word) & LIVE), (slot, row)
