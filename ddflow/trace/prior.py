"""What an arrangement held before it was brought up to date, and its index after that.

Invariant: the index of an arrangement that was brought up to date answers as one made of all versions would. A worker
that kept a part open finds that others went on with it: an inventory of theirs names files that are here, files that
are new, and no longer names some that were merged. What is here keeps its slot, so entries that point there stay right.
A run that speaks of times after all that was held has newer versions than those: they are written. Any other new run is
the output of a merge of what was held: entries that pointed into its inputs are pointed at it, and no others, because a
newer version of the key may stand elsewhere. What still points into files that are gone was deleted and merged away.
So the work is that of the versions that came and went, not of all. With nothing held, all runs are new ones.

>>> import pyarrow as pa
>>> from dataclasses import replace
>>> from ddflow.time import Description
>>> from ddflow.trace.batch import Batch
>>> arranged = Arrangement(pa.schema({"k": pa.int64()}), wide=False, words=0)
>>> held = Held(arranged, indexed=True)
>>> batch = replace(Batch.of([5], [3], [True], pa.table({"k": [1]})), value=np.array([5], np.uint64))
>>> arranged.spine.append(Run(Description(0, 4, 3), [arranged.slots.put(batch)]))
>>> arranged.slots.files[1] = "its file"
>>> held.reindex()
>>> len(arranged.index), len(arranged.slots.batches)
(1, 1)
"""

from typing import Any

import numpy as np

from ddflow.columns.hashing import Ints
from ddflow.kernels.gather import SLOT
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.index import Write
from ddflow.trace.records import BatchRecord
from ddflow.trace.run import LASTS, Part, Run, lasts

ROW = (1 << SLOT) - 1
"""The bits of a reference that are its row."""


class Held:
    """Of an arrangement, before anything is changed there; none, where it is new.  ``indexed``: whether it is to have
    an index of all versions; else what it holds on disk is kept."""

    def __init__(self, arranged: Arrangement, indexed: bool) -> None:
        self.arranged, self.indexed = arranged, indexed
        self.upper, self.parts = arranged.spine.upper, arranged.spine.parts
        self.slots = [slot for slot, batch in enumerate(arranged.slots.by_slot) if batch is not None]
        self._named: dict[tuple[str, str], int] = {}
        for slot in self.slots:
            mapped = arranged.slots[slot].mapped
            file = mapped or arranged.slots.files.get(slot)
            if file is not None and indexed == (mapped is None):
                self._named[file.columns.blob.name, "" if indexed else mapped.words.blob.name] = slot

    def slot(self, record: BatchRecord) -> int | None:
        """Where the batch of a record is held, which it is asked for once; None where it is to be read.  O(1)."""
        bloom = "" if self.indexed or record.bloom is None else record.bloom.name
        return self._named.pop((record.file.name, bloom), None)

    def reshape(self, shapes: list[list[str]]) -> None:
        """Take an inventory's list of the columns that payloads have or had.  O(files held) where the order is new."""
        slots = self.arranged.slots
        if shapes[: len(slots.shapes)] != slots.shapes:
            # What was said of a file named its columns by their number.
            for slot in self.slots:
                if (file := slots[slot].mapped or slots.files.get(slot)) is not None:
                    file.record = None
        slots.shapes = shapes

    def reindex(self) -> None:
        """Make the index fit what the arrangement holds now, and let go of what it holds no more.

        O(versions that came and went), and O(slots) when they outgrow the index."""
        arranged, slots = self.arranged, self.arranged.slots
        for spine in (arranged.spine, arranged.on_disk):
            spine.planned = spine.fresh = 0
        now = {part.slot: part.begin for part in arranged.parts}
        if self.indexed:
            floor = np.zeros(len(slots.by_slot), np.int64)
            gone = [Part(part.slot, part.begin, min(now.get(part.slot, part.end), part.end)) for part in self.parts]
            for part in gone:
                floor[part.slot] = part.end if part.slot in now else ROW + 1
            self._write(floor)
            for part in gone:
                self._clear(part, floor)
        elif self.slots:
            arranged.index = arranged.like().index
        for slot in self.slots:
            if slot not in now:
                slots.drop(slot)

    def _write(self, floor: Ints) -> None:
        """Point entries at all versions of runs that are new."""
        arranged, index, slots, here = self.arranged, self.arranged.index, self.arranged.slots, set(self.slots)
        if not here:
            versions = sum(map(len, arranged.spine.runs))
            index.room(arranged.keys + arranged.tombstones + min(LASTS, versions))
        new = [
            Run(run.description, [part for part in run.parts if part.slot not in here]) for run in arranged.spine.runs
        ]
        later = [run for run in new if run.description.upper > self.upper or not here]
        # Of several outputs that have a key the newest one has what the entry pointed at.
        for run in reversed(new):
            for part in run.parts if run not in later else ():
                self._redirect(part, floor)
        # Older runs first, so that the newest of a key stays.
        for run in later:
            # Deletions that need not be kept stand in the index all the same until newer runs are told.
            index.room(sum(last.size for part in run.parts for last in lasts(slots[part.slot], part)))
            index_run(arranged, run)
        for part in (part for run in new for part in run.parts):
            if slots[part.slot].value.size:
                slots.wrote(part.slot, slots.files[part.slot])

    def _redirect(self, part: Part, floor: Ints) -> None:
        """Point entries that point at what is gone at a merge's output."""
        for last in lasts(self.arranged.slots[part.slot], part):
            places, lost = self._find_lost_entries(part.slot, last, floor)
            self.arranged.index.redirect(places[lost], last[lost] | part.slot << SLOT)

    def _clear(self, part: Part, floor: Ints) -> None:
        """Let entries that still point at what is gone point at nothing."""
        for last in lasts(self.arranged.slots[part.slot], part) if part.end > part.begin else ():
            places, lost = self._find_lost_entries(part.slot, last, floor)
            if lost.any():
                self.arranged.index.drop_tombstones(places[lost])

    def _find_lost_entries(self, slot: int, rows: Ints, floor: Ints) -> tuple[Ints, Any]:
        """Where the index has the keys of some rows, and bool[m]: which of these entries point at what is gone."""
        batch = self.arranged.slots[slot]
        prior = self.arranged.index.seek(batch.high, batch.low, rows.astype(np.int32), order=batch.more)
        references = prior.reference & ~np.int64(OCCUPIED | LIVE)
        return prior.place, references & ROW < floor[references >> SLOT]


def index_run(arranged: Arrangement, run: Run) -> None:
    """Write the last versions of a run's keys into the index, in which there is room.  O(versions)."""
    index = arranged.index
    for part in run.parts:
        batch = arranged.slots[part.slot]
        columns = batch.high, batch.low, batch.value, batch.live, batch.order
        for last in lasts(batch, part):
            index.write(Write(np.full(last.size, -1), index.built, last, *columns, part.slot))
