"""A run: the output of one step or one merge: versions in hash order with a description, in one batch or several.

Invariant: the parts are disjoint, ascending ranges of identities. Together they hold all that the run's description
covers, less what a merge has taken. A merge takes its inputs from the least identity on, part by part, so memory and
disk come free as it goes. References name (slot, row) and must stay good in a run that is half taken. So parts remember
where they now begin, and rows are never renumbered. `Slots` gives batches their numbers. A run does not know which
versions are current; the index does.

>>> import pyarrow as pa
>>> from ddflow.time import Description
>>> slots = Slots(pa.schema({"k": pa.int64()}))
>>> run = Run(Description(0, 3, 0), [slots.put(Batch.of([4, 7, 9], [1, 1, 2], [True] * 3, pa.table({"k": [1, 2, 3]})))])
>>> run.bite(slots, 7), len(run), run.bite(slots, 2**64 - 1), len(run)
([Part(slot=1, begin=0, end=2)], 1, [Part(slot=1, begin=2, end=3)], 0)
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Flags, Ints
from ddflow.columns.rows import RowPool
from ddflow.columns.threads import ALONE
from ddflow.kernels.gather import SLOT
from ddflow.time import Description
from ddflow.trace.batch import Batch, ends

END = 2**64 - 1
"""The greatest identity."""
LASTS = 1 << 16
"""Versions that `lasts` looks at together."""


class Part(NamedTuple):
    """Rows [begin, end) of the batch in a slot."""

    slot: int
    begin: int
    end: int

    @property
    def references(self) -> Ints:
        """int64[end - begin]: the references of the rows, without flags."""
        return np.arange(self.slot << SLOT | self.begin, self.slot << SLOT | self.end, dtype=np.int64)


def lasts(batch: Batch, part: Part) -> Iterator[Ints]:
    """Yield the rows that are the last of their keys in a part, some at a time.  O(rows)."""
    for begin in range(part.begin, part.end, LASTS):
        end = min(begin + LASTS, part.end)
        to = min(end + 1, part.end)
        more = None if batch.more is None else batch.more[begin:to]
        yield np.flatnonzero(ends(batch.high[begin:to], batch.low[begin:to], more)[: end - begin]) + begin


class Slots:
    """The batches of an arrangement by number; 0 is left to the events of the step at hand.

    ``ordered``: whether identities have more words than two.

    ``lasting``: whether commits write them to files.  ``files``: by number, those of resident ones that were written.
    ``shapes``: the columns that payloads in files have or had; one is added where it is new, and none goes.
    ``readers``: what `freeze` gave, as long as somebody holds it.
    """

    def __init__(self, schema: pa.Schema, ordered: bool = False) -> None:
        self.ordered = ordered
        self.by_slot: list[Batch | None] = [None]
        self.free: list[int] = []
        self.pool = RowPool(schema)
        self.pool.put(0, None)
        self.resident = self.mapped = 0
        self.lasting = False
        self.files: dict[int, Any] = {}
        self.shapes: list[list[str]] = []
        self.readers: WeakSet[Slots] = WeakSet()

    def __getitem__(self, slot: int) -> Batch:
        batch = self.by_slot[slot]
        assert batch is not None, f"slot {slot} is empty"
        return batch

    @property
    def batches(self) -> list[Batch]:
        """All batches, in the order of slots."""
        return [batch for batch in self.by_slot if batch is not None]

    def put(self, batch: Batch) -> Part:
        """Give a batch a number; all its rows as a part.  O(columns)."""
        batch = replace(batch, ordered=True) if self.ordered else batch
        if self.free:
            slot = self.free.pop()
            self.by_slot[slot] = batch
        else:
            slot = len(self.by_slot)
            self.by_slot.append(batch)
        self.pool.put(slot, batch.rows)
        self._weigh(batch, 1)
        return Part(slot, 0, batch.high.size)

    def freeze(self) -> Slots:
        """Return these as they are now, for a reader of its own thread.  O(columns * batches)."""
        out = copy(self)
        out.by_slot, out.pool = self.by_slot.copy(), self.pool.copy()
        out.pool.threads = ALONE  # the others may end while it reads
        self.readers.add(out)
        return out

    @property
    def bytes_pinned(self) -> int:
        """Bytes of memory of batches that only readers hold any more.  O(batches that readers hold)."""
        here = {id(batch.rows) for batch in self.batches}
        held = {id(batch.rows): batch for each in list(self.readers) for batch in each.batches if batch.mapped is None}
        return sum(batch.nbytes for rows, batch in held.items() if rows not in here)

    def drop(self, slot: int) -> None:
        """Let a batch go: its memory when nobody looks at it any more, its file at once."""
        batch = self[slot]
        self._weigh(batch, -1)
        self.by_slot[slot] = None
        self.pool.put(slot, None)
        self.free.append(slot)
        file = self.files.pop(slot, batch.mapped)
        if file is not None:
            file.drop()

    def wrote(self, slot: int, file: Any) -> None:
        """Note that a resident batch is in a file, too; the index holds the hashes of its values."""
        self.files[slot] = file
        self.swap(slot, replace(self[slot], value=NONE))

    def swap(self, slot: int, batch: Batch) -> None:
        """Put a batch of the same versions, row by row, in the place of a slot's.  O(columns)."""
        self._weigh(self[slot], -1)
        self.by_slot[slot] = replace(batch, ordered=True) if self.ordered else batch
        self.pool.put(slot, batch.rows)
        self._weigh(batch, 1)

    def _weigh(self, batch: Batch, sign: int) -> None:
        if batch.mapped is None:
            self.resident += sign * batch.nbytes
        else:
            self.mapped += sign * batch.mapped.nbytes

    def members(self, parts: list[Part]) -> Flags:
        """uint8[slots]: 1 for those that the parts are of."""
        out = np.zeros(len(self.by_slot), np.uint8)
        out[[part.slot for part in parts]] = 1
        return out


class Run:
    """``description``: the times it speaks for.  ``parts``: ascending ranges of identities."""

    def __init__(self, description: Description, parts: list[Part]) -> None:
        self.description, self.parts, self.size = description, parts, 0
        for part in parts:
            self.size += part.end - part.begin

    def __len__(self) -> int:
        return self.size

    def freeze(self) -> Run:
        """Return this as it is now.  O(parts)."""
        return Run(self.description, self.parts.copy())

    def add(self, part: Part) -> None:
        """Take in the next range of identities."""
        self.parts.append(part)
        self.size += part.end - part.begin

    def bite(self, slots: Slots, last: int) -> list[Part]:
        """Take the rows with identities up to ``last`` (its first word) off, and their batches when nothing is left.

        O(parts taken + log rows).  The batches stay readable through what the caller holds of them.
        """
        if last == END:
            taken, self.parts, self.size = self.parts, [], 0
            return taken
        taken = []
        while self.parts:
            part = self.parts[0]
            high = slots[part.slot].high
            end = part.end
            if int(high[end - 1]) > last:
                end = int(np.searchsorted(high[part.begin : end], np.uint64(last), side="right")) + part.begin
            if end > part.begin:
                taken.append(Part(part.slot, part.begin, end))
                self.size -= end - part.begin
            if end < part.end:
                self.parts[0] = Part(part.slot, end, part.end)
                break
            del self.parts[0]
        return taken
