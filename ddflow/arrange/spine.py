"""The spine: the batches of one arrangement, oldest first, few and growing.

Invariant: the descriptions of neighbours meet, and together they hold every version that a read at or after ``since``
needs.  Why that is not trivial: references into batches are held by the index, so a merge must redirect exactly the
entries whose rows it moved; and only a run of the *newest* batches may be merged, since then the last version of a key
in it is its current one.  ``choose`` decides with sizes alone; `Spine.merge` acts.  The spine holds no index.

>>> choose([1000, 10, 10], 900) is None
True
>>> choose([1000] + [10] * 32, 1100)
1
>>> choose([1000, 1100], 900)
0
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ddflow.arrange.batch import Batch
from ddflow.arrange.index import Index
from ddflow.errors import CorruptState
from ddflow.frontier import NEVER, Description
from ddflow.identity import Ints
from ddflow.kernels.gather import SLOT, gather_words
from ddflow.kernels.merge import prune
from ddflow.rows import Array, Rows, gather
from ddflow.sorting import sort

FAN = 32


def choose(sizes: Sequence[int], needed: int) -> int | None:
    """The first batch of the newest run that should be merged into one, or None.

    ``sizes``: versions a batch, oldest first.  ``needed``: how many versions a full merge would leave, about.  All are
    merged when more than half is garbage; else the newest ones when there are ``FAN`` of about one size (of one power
    of 8), so a version is copied about once for each power.  Pure; O(batches).
    """
    if len(sizes) > 1 and sum(sizes) > 2 * needed + 64:
        return 0
    tiers = [max(size, 1).bit_length() // 3 for size in sizes]
    for tier in sorted(set(tiers)):
        run = 0
        while run < len(tiers) and tiers[-1 - run] <= tier:
            run += 1
        if run >= FAN:
            return len(sizes) - run
    return None


class Spine:
    """Batches by slot; slot 0 is left to the events of the step at hand."""

    def __init__(self) -> None:
        self.slots: list[Batch | None] = [None]
        self.ages: list[int] = []
        self.collected = 0
        self.copied = 0

    def __len__(self) -> int:
        return len(self.ages)

    @property
    def batches(self) -> list[Batch]:
        """Oldest first."""
        return [batch for slot in self.ages if (batch := self.slots[slot]) is not None]

    def sources(self, events: Rows | None = None) -> list[Rows | None]:
        """Payload by slot, as `rows.gather` takes it."""
        return [events, *(None if batch is None else batch.rows for batch in self.slots[1:])]

    def append(self, batch: Batch) -> int:
        """Take in the newest batch; return its slot.  O(1)."""
        slot = next((i for i, held in enumerate(self.slots) if held is None and i > 0), len(self.slots))
        if slot == len(self.slots):
            self.slots.append(None)
        self.slots[slot] = batch
        self.ages.append(slot)
        return slot

    def tidy(self, index: Index, since: int, needed: int) -> None:
        """Merge while `choose` says so.  O(versions merged)."""
        while (first := choose([len(b) for b in self.batches], max(needed, self.collected))) is not None:
            self.merge(first, index, since)
            if first == 0:
                self.collected = len(self.batches[0])

    def versions(self, first: int, index: Index, since: int, droppable: bool) -> tuple[Ints, Ints]:
        """References to what need not go of the batches from ``first`` on, and the index's places for the current ones.

        Both int64[m], in the order of identities, then times; a place is -1 where the index points elsewhere.  Raises
        `CorruptState` where a key has two versions of one time.
        """
        run = [(slot, batch) for slot in self.ages[first:] if (batch := self.slots[slot]) is not None]
        by = sort(*(np.concatenate([getattr(batch, name) for _, batch in run]) for name in ("high", "low")))
        times, live = (np.concatenate([getattr(batch, name) for _, batch in run]) for name in ("time", "live"))
        kept = np.empty(times.size, np.int64)
        n = prune(by.permutation, by.starts, times, live, np.int64(since), droppable, kept)
        if n < 0:
            raise CorruptState("a read or a merge", f"a key has two values at one time, {times[-1 - n]}",
                               "do not use this state; replay the log into a new one")  # fmt: skip
        kept = kept[:n]
        references = np.concatenate([slot << SLOT | np.arange(len(batch), dtype=np.int64) for slot, batch in run])[kept]
        group = np.empty(times.size, np.int64)
        group[by.permutation] = np.repeat(np.arange(by.starts.size - 1), np.diff(by.starts))
        places = index.places(by.high, by.low, by.starts[:-1])[group[kept]]
        return references, np.where(index.references(places) == references, places, -1)

    def merge(self, first: int, index: Index, since: int) -> None:
        """Merge the batches from ``first`` on into one and redirect the index.  O(their versions).

        When nothing before the newest version of a key need be told apart, the index itself names what to keep: the
        live rows are copied in its order, and no batch is sorted or even read but for those.
        """
        run = self.batches[first:]
        description = run[0].description
        for batch in run[1:]:
            description = description.joined(batch.description)
        if first == 0 and since >= description.upper - 1:
            references, places = index.walk(live=not index.keeps)
        else:
            references, places = self.versions(first, index, since, first == 0 and not index.keeps)
        if description.since < since < description.upper:
            description = description._replace(since=since)
        merged = self.picked(references, description)
        for slot in self.ages[first:]:
            self.slots[slot] = None
        del self.ages[first:]
        slot = self.append(merged)
        index.redirect(places, (slot << SLOT) | np.arange(len(merged), dtype=np.int64))
        self.copied += len(merged)

    def picked(self, references: Ints, description: Description) -> Batch:
        """The versions that ``references`` name as one batch."""
        some = next(batch for batch in self.batches)
        n = references.size

        def column(name: str) -> Array:
            like = getattr(some, name)
            out = np.empty((n, *like.shape[1:]) if like.size or len(some) == 0 or name != "low" else 0, like.dtype)
            if out.size:
                bases = np.array([0 if b is None else getattr(b, name).ctypes.data for b in self.slots], np.uint64)
                size = np.int64(out.nbytes // n)
                gather_words(references, bases, size, np.uint64(out.ctypes.data))
            return out

        table = gather(self.sources(), references, some.rows.table.schema)
        return Batch(description, column("high"), column("low"), column("time"), column("live"), column("order"),
                     Rows(table))  # fmt: skip

    def _check(self) -> None:
        """Assert the invariant."""
        batches = self.batches
        for batch in batches:
            batch._check()
        # Neighbours meet: no time is covered twice or not at all.
        for older, newer in pairwise(batches):
            assert older.description.meets(newer.description), (older.description, newer.description)
        # Slot 0 is the step's own, and every slot in use has an age.
        assert self.slots[0] is None
        assert sorted(self.ages) == [i for i, b in enumerate(self.slots) if b is not None]
        assert all(b.description.lower >= NEVER for b in batches)
