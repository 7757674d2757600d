"""An arrangement: a collection with at most one live row a key, kept indexed by key; one writer, many readers.

Invariant: for every t in [since, upper) a read at t is the collection that the applied changes define; ``since`` never
retreats.  Why that is not trivial: the index knows only what is current, the spine only what was written; a read at an
older time is assembled from the versions of all runs, while merges throw away what no read may ask for any more.
An operator uses it in two steps: ``seek`` what the keys of its step hold, and, when the whole step has been
computed and nothing was refused, ``apply`` its changes.  An arrangement does not judge, and does not know its operator.

>>> import numpy as np, pyarrow as pa
>>> arranged = Arrangement(pa.schema({"k": pa.int64()}), wide=False, words=0)
>>> one, none, zero = np.array([5], np.uint64), np.empty(0, np.uint64), np.array([0])
>>> change = Change(one, none, np.array([3]), np.ones(1, np.uint8), one, np.empty((1, 0), np.int64),
...                 pa.table({"k": [1]}), zero, zero, 0, born=1, buried=0)
>>> arranged.apply([change], upper=4, since=3)
>>> arranged.read().to_pylist(), arranged.since, arranged.upper, arranged.keys
([{'k': 1}], 3, 4, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.arena import Arena
from ddflow.arrange.batch import Batch
from ddflow.arrange.index import Index
from ddflow.arrange.merge import by_sorting
from ddflow.arrange.run import Part, Run, Slots
from ddflow.arrange.spine import Spine
from ddflow.errors import NotReadable
from ddflow.frontier import NEVER, Description, advance, shown
from ddflow.identity import NONE, Flags, Ints, Words
from ddflow.kernels.gather import SLOT
from ddflow.kernels.resolve import LIVE, Held
from ddflow.rows import Rows, Sources, gather


class Change(NamedTuple):
    """What one step does to a range of identities: versions sorted by (identity, time), and which are current after."""

    high: Words
    low: Words
    time: Ints
    live: Flags
    value: Words
    """uint64[n]: what counts in "did it change", for the index."""
    order: Ints
    table: pa.Table
    last: Ints
    """int64[keys]: the place of each key's last version, ascending; -1 for a key that did not change."""
    place: Ints
    """int64[keys]: where `Arrangement.seek` found the keys in the index."""
    built: int
    """The number of the index's table at that time."""
    born: int
    """How many more keys are live than before."""
    buried: int
    """How many more hold an order and no row."""


class Arrangement:
    """``schema``: the columns of a version's payload.  ``wide``: identities of two words.  ``words``: order words an
    entry.  ``keeps``: whether the order of a deleted key must stay."""

    def __init__(self, schema: pa.Schema, wide: bool, words: int, keeps: bool = False) -> None:
        self.schema, self.keeps = schema, keeps
        self.index = Index(wide, words, keeps)
        self.slots = Slots(schema)
        self.spine = Spine(keeps=keeps)
        self.since, self.upper, self.latest = NEVER, NEVER, NEVER
        self.keys, self.tombstones, self.written = 0, 0, 0

    def seek(self, high: Words, low: Words, starts: Ints, arena: Arena | None = None) -> Held:
        """What the keys that begin at ``starts`` of the sorted identities hold now, carved from ``arena``.

        O(keys) expected.
        """
        return self.index.seek(high, low, starts, arena)

    def sources(self, events: Rows | None = None) -> Sources:
        """What references point into: the batches, and at 0 the step's own rows."""
        return self.slots.sources if events is None else self.slots.sources.beside(events)

    def apply(self, changes: Sequence[Change], upper: int, since: int) -> None:
        """Take in the computed changes of a step, by ascending identities; times below ``upper`` are complete now.

        O(versions), and the merging that they pay for.
        """
        lower = self.spine_upper
        self.upper = advance(self.upper, upper)
        self.since = max(self.since, since)
        changes = [change for change in changes if change.high.size]
        for change in changes:
            self.latest = max(self.latest, int(change.time.max()))
            self.keys, self.tombstones = self.keys + change.born, self.tombstones + change.buried
        parts = [self._put(change) for change in changes]
        if parts:
            self.spine.append(Run(Description(lower, upper, NEVER), parts))
        paid = sum(part.end for part in parts)
        self.written += paid
        self.spine.plan(len(self.index), True)
        self.spine.work(paid, self.slots, self.index, self.since, self.latest <= self.since)

    def _put(self, change: Change) -> Part:
        high, low, time, live, value, order, table, last, place, built, _, _ = change
        part = self.slots.put(Batch(high, low, time, live, NONE, order, Rows(table)))
        self.index.write(place, built, last, high, low, value, live, order, part.slot)
        return part

    @property
    def spine_upper(self) -> int:
        """The time from which on nothing was written yet: where the next run's description begins."""
        if not self.spine.items:
            return NEVER
        item = self.spine.items[-1]
        return (item if isinstance(item, Run) else item.output).description.upper

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
        if as_of is None or as_of >= self.latest:
            return gather(self.slots.sources, self.index.walk(live=True)[0], self.schema)
        return gather(self.slots.sources, self._live_at(as_of), self.schema)

    def _live_at(self, as_of: int) -> Ints:
        """References to the rows that were live at an older time."""
        if not self.spine.items:
            return np.empty(0, np.int64)
        picked = by_sorting(self.slots, self.spine.parts, NEVER, droppable=False)
        same = picked.high[1:] == picked.high[:-1]
        if picked.low.size:
            same &= picked.low[1:] == picked.low[:-1]
        early = picked.time <= as_of
        last = early.copy()
        # A version is the one in force when the next of its key is not yet.
        last[:-1] &= ~(same & early[1:])
        live: Ints = picked.references[last & (picked.live != 0)]
        return live

    @property
    def nbytes(self) -> int:
        """Bytes of index and batches in memory."""
        return self.index.nbytes + self.slots.resident

    def _check(self) -> None:
        """Assert the invariants of index and spine, and that they fit each other."""
        self.index._check()
        for batch in self.slots.batches:
            batch._check()
        self.spine._check(self.slots)
        # Each batch is of one part, and slot 0 is the step's own.
        assert sorted(part.slot for part in self.spine.parts) == [
            i for i, batch in enumerate(self.slots.held) if batch is not None
        ]
        assert self.slots.resident == sum(b.nbytes for b in self.slots.batches if b.mapped is None)
        alive = 0
        table = self.index.table
        where = {part.slot: part for part in self.spine.parts}
        for word in table[table[:, 2] != 0, 2]:
            slot, row = (int(word) >> SLOT) & ((1 << 20) - 1), int(word) & ((1 << SLOT) - 1)
            alive += bool(int(word) & LIVE)
            if int(word) & LIVE or self.index.keeps:
                # An entry points at a version that is live or not as it says (a deletion that is not kept may be gone).
                assert slot in where and where[slot].begin <= row < where[slot].end, (slot, row)
                assert bool(self.slots[slot].live[row]) == bool(int(word) & LIVE), (slot, row)
        assert alive == self.keys
