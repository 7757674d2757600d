"""The rows of one arrangement that a new partition takes over, from the arrangements of those there were.

Invariant: what is written are all versions that are of this partition, each once, sorted and merged into one run, in
the columns that the plan has now. Where identities change with the columns, versions are first brought under their new
ones, piece by piece, because their order is another. See ``rescale_task``, of which this is the part that knows
arrangements.

>>> from ddflow.partitions.epoch_start import EpochStart
>>> from ddflow.storage.memory import MemoryStore
>>> start = EpochStart("shop", "owner", 3, "0" * 32, 4, 1, (1, 2), 7, 6, 6, 7, 7, {}, (), None, 0, None)
>>> moved = MovedRows(BatchStore(MemoryStore()), None, Move(start, 4, {}, {}), number=2)
>>> moved.mine(np.array([0, 2**63, 1, 2**64 - 1], np.uint64)).tolist()
[1, 2]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Secret, Words, identities, partition_of
from ddflow.columns.rows import gather
from ddflow.partitions.move import Move
from ddflow.storage.batch_store import BatchStore
from ddflow.storage.protocol import Blob
from ddflow.time import NEVER, Description
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, same, starts
from ddflow.trace.batch_file import Made, filed, unfiled
from ddflow.trace.checkpoint import Written, restore, take
from ddflow.trace.merge import Picked, by_sorting, useless
from ddflow.trace.recast import recast, recast_pieces, rekeys
from ddflow.trace.records import ArrangementRecord
from ddflow.trace.run import Part, Run

Opened = tuple[Arrangement, Made, pa.Schema]
"""A new arrangement, what hashes its rows, and the columns that identify them."""
CHUNK: Final = 1 << 20
"""Identities that are looked at together."""


class MovedRows:
    """Of partition ``number``.  ``home``: where what is compressed, or waits to be merged, is written; None: memory.

    ``added``: the files.  ``versions``: how many they hold."""

    def __init__(self, batch_store: BatchStore, home: BatchStore | None, move: Move, number: int) -> None:
        self.batch_store, self.home, self.move, self.number = batch_store, home, move, number
        self.secret, self.added = Secret(*move.start.secret), list[Blob]()
        self.versions = 0
        self.held: list[Any] = []

    def joined(
        self,
        records: Iterable[tuple[str, ArrangementRecord]],
        fresh: Callable[[], Opened],
        before: Callable[[], Opened] | None,
        keys: pa.Schema | None = None,
    ) -> ArrangementRecord:
        """One arrangement of what several hold of this partition, as an inventory has it.

        ``before``: what opens the old ones, where their columns were others.  ``keys``: the columns whose identities
        tell what is of this partition, None where the rows' own do."""
        stored, (new, made, identified), descriptions = before or fresh, fresh(), list[Description]()
        shares, _, was = stored()
        for what, given in records:
            old, hashed, _ = stored()
            restore(old, given, what, self.batch_store, indexed=False, made=hashed, sieved=False, home=self.home)
            descriptions += [(each if isinstance(each, Run) else each.output).description for each in old.on_disk.items]
            new.since, new.upper = max(new.since, old.since), max(new.upper, old.upper)
            # Of one key all are in one partition, so only their order within that matters.
            for slot, begin, end in old.on_disk.parts:
                part = shares.slots.put(old.slots[slot])._replace(begin=begin, end=end)
                shares.on_disk.append(Run(Description(NEVER, NEVER, NEVER), [part]))
        shares.since = new.since
        moves = rekeys(was, identified)
        if moves:
            shares = self._rekeyed(shares, fresh()[0], made)
        pieces = self._pieces(shares, new, keys)
        if before is not None and not moves:
            pieces = (recast(batch, new.schema, made, False) for batch in pieces)
        parts = [self._laid(batch, new) for batch in pieces]
        if parts:
            lower, upper = min(each.lower for each in descriptions), max(each.upper for each in descriptions)
            since = max(min(new.since, upper - 1), *(each.since for each in descriptions))
            new.on_disk.append(Run(Description(lower, upper, since), parts))
        self.held += [new, shares]
        return take(new, self.batch_store)

    def _rekeyed(self, old: Arrangement, out: Arrangement, made: Made) -> Arrangement:
        """All versions under the identities of their wider columns: a run for each piece, to be merged."""
        out.since, memory = old.since, self.move.start.memory
        if memory is not None and old.slots.batches:
            old.piece = self._piece(old, memory)
        for batch in recast_pieces(old, out.schema, made, True):
            if not len(batch):
                continue
            if self.home is None:
                part = out.slots.put(batch)
            else:
                record, layout = filed(batch)
                kept = self.home.write(record)
                part = out.slots.put(unfiled(kept.batch, layout))
                out.slots.files[part.slot] = Written(kept, layout, batch.rows.table.schema.names)
            out.on_disk.append(Run(Description(NEVER, NEVER, NEVER), [part]))
        return out

    def _piece(self, old: Arrangement, memory: int) -> int:
        """How many versions are looked at together."""
        batches = old.slots.batches
        width = max(sum(batch.nbytes for batch in batches) // sum(map(len, batches)), 32)
        return min(old.piece, max(memory // 4 // (4 * width + 128), 4096))

    def _pieces(self, old: Arrangement, new: Arrangement, keys: pa.Schema | None) -> Iterator[Batch]:
        """What is taken of all there is, merged, some identities at a time; counted for the new arrangement."""
        memory, batches, partitions = self.move.start.memory, old.slots.batches, self.move.partitions
        if memory is not None and batches:
            old.piece = self._piece(old, memory)
        if keys is None:
            # What is looked at is more than what is taken, and files should not become smaller for that.
            old.piece *= max(partitions // self.move.start.partitions, 1)
        for parts in old.ranges():
            some = None
            if keys is None:
                some = [self.mine(old.slots[slot].high[begin:end]) for slot, begin, end in parts]
            picked = by_sorting(old.slots, parts, old.since, not old.keeps, some=some)
            if keys is not None and picked.high.size:
                picked = picked.without(~self._belong(picked, old, keys))
            if old.lapse is not None and old.keeps:
                picked = picked.without(useless(picked, old.since, old.lapse))
            n = picked.high.size
            if not n:
                continue
            last = picked.last
            live = picked.live != 0
            live_added = int((live & last).sum())
            new.keys = new.keys + live_added
            new.tombstones_counted += int(last.sum()) - live_added if new.keeps else 0
            latest = int(picked.time.max())
            new.latest = max(new.latest, latest)
            if latest <= old.since:
                # History before since is one, and one time takes no room.
                picked = picked._replace(time=same(latest, n, np.int64))
            if live.all():
                picked = picked._replace(live=same(1, n, np.uint8))
            self.versions += n
            yield picked.batch(old.slots, True)

    def mine(self, high: Words) -> Ints:
        """Which identities are of this partition, some at a time."""
        found = [
            begin + np.flatnonzero(partition_of(high[begin : begin + CHUNK], self.move.partitions) == self.number)
            for begin in range(0, high.size, CHUNK)
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def _belong(self, picked: Picked, old: Arrangement, keys: pa.Schema) -> Any:
        """bool[m]: which versions are of this partition by their rows' ``keys``.

        A deletion's row may be filler, so what a live version of the same key says holds for all."""
        high, _ = identities(gather(old.slots.pool, picked.references, keys), self.secret, picked.high.size)
        mine, first = partition_of(high, self.move.partitions) == self.number, starts(picked.high, picked.low)
        of, live = np.cumsum(first) - 1, picked.live != 0
        decided = mine[first]
        decided[of[live]] = mine[live]
        return decided[of]

    def _laid(self, batch: Batch, new: Arrangement) -> Part:
        """A batch written to a file, as the next part of an arrangement."""
        record, layout = filed(batch)
        kept = self.batch_store.write(record)
        part = new.slots.put(unfiled(kept.batch, layout))
        new.slots.files[part.slot] = Written(kept, layout, batch.rows.table.schema.names)
        self.added.append(kept.blob)
        return part
