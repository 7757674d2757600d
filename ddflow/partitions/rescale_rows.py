"""The versions of an old partition that each new partition gets, and the plain value from which all tasks start.

Guarantees: rows are read range by range, so memory does not grow with the partition, and each goes to exactly one new
partition. Partitions without keys in common share nothing.

>>> from ddflow.partitions.epoch_start import EpochStart
>>> from ddflow.storage.memory import MemoryStore
>>> start = EpochStart("shop", "owner", 3, "0" * 32, 4, 1, (1, 2), 7, 6, 6, 7, 7, {}, (), None, 0, None)
>>> moved = MovedRows(BatchStore(MemoryStore()), None, Move(start, 4, {}, {}), number=0)
>>> moved.targets, grouped(np.array([2, 0, 2], np.int32))
(range(0, 4), {0: array([1]), 2: array([0, 2])})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace as changed

from ddflow.columns.hashing import Ints, Narrow, Secret, identities, partition_of
from ddflow.columns.rows import Rows, gather
from ddflow.columns.schema import one_batch
from ddflow.metrics import Look
from ddflow.partitions.epoch_start import EpochStart
from ddflow.plan.plan import Plan
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.protocol import Blob
from ddflow.time import NEVER, Description
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, Run, ends, same
from ddflow.trace.cast import Cast, cast_rows, recast, recast_pieces, rekeys
from ddflow.trace.checkpoint import Written, restore
from ddflow.trace.merge import Picked, by_sorting, useless
from ddflow.trace.records import ArrangementRecord, BatchRecord, RunRecord
from ddflow.trace.spill import Made, filed, unfiled


def bounds(number: int, partitions: int) -> tuple[int, int]:
    """Return the least and the greatest mixed word (`ddflow.columns.hashing.mixed`) of the identities of a partition.
    Pure.

    >>> bounds(1, 4) == (2**30, 2**31 - 1)
    True
    """
    first, after = (-((-at << 32) // partitions) for at in (number, number + 1))
    return first, after - 1


def overlapping(number: int, partitions: int, before: int) -> range:
    """Return the old partitions, of ``before``, that share identities with a new one, of ``partitions``.  Pure.

    >>> list(overlapping(0, 2, 3)), list(overlapping(2, 3, 2))
    ([0, 1], [1])
    """
    first, last = bounds(number, partitions)
    return range(first * before >> 32, (last * before >> 32) + 1)


class Move(NamedTuple):
    """The start of all tasks of a rescaling; it can be pickled, unless its store is in memory.

    ``start``: the state as it is.  ``partitions``: how many there will be.  ``horizons``, ``greatest``: by input, the
    greatest order where keys expire, and event time, of all partitions.  ``before``: the plan that the state was made
    by, where the one that is cut has wider or more columns."""

    start: EpochStart
    partitions: int
    horizons: Mapping[str, int]
    greatest: Mapping[str, int]
    before: Plan | None = None


Opened = tuple[Arrangement, Made, pa.Schema]
"""A new arrangement, what hashes its rows, and the columns that identify them."""
FILE: Final = 1 << 19
"""Versions that fill a file."""
WAITING: Final = 512 << 20
"""Bytes that may wait to be written, where no memory is given."""


class MovedRows:
    """Of the old partition ``number``.  ``home``: where what is compressed, or waits to be merged, is written; None:
    memory.

    ``targets``: the new partitions that have keys in common with it.  ``added``: the files that were written.
    ``versions``: how many they hold.  ``held``: what must be referred to for the files to stay."""

    def __init__(
        self, batch_store: BatchStore, home: BatchStore | None, move: Move, number: int, look: Look = lambda rows: None
    ) -> None:
        self.batch_store, self.home, self.move, self.number, self.look = batch_store, home, move, number, look
        self.targets = overlapping(number, move.start.partitions, move.partitions)
        self.secret, self.added = Secret(*move.start.secret), list[Blob]()
        self.versions = 0
        self.held: list[Any] = []

    def shared(
        self,
        what: str,
        given: ArrangementRecord,
        fresh: Callable[[], Opened],
        before: Callable[[], Opened] | None,
        keys: pa.Schema | None = None,
        cast: Cast = cast_rows,
    ) -> dict[int, ArrangementRecord]:
        """Split an arrangement over the new partitions, each with one run or none.  O(bytes).

        ``what``: the place of ``given``, for messages.  ``before``: opens the old one, if its columns were
        others.  ``keys``: the columns whose identities say where a version belongs, None if the rows' own do.
        ``cast``: makes new rows of the old ones."""
        (old, hashed, was), (new, made, identified) = (before or fresh)(), fresh()
        restore(old, given, what, self.batch_store, indexed=False, made=hashed, sieved=False, home=self.home)
        times = [(each if isinstance(each, Run) else each.output).description for each in old.on_disk.items]
        lower = min((each.lower for each in times), default=NEVER)
        upper = max((each.upper for each in times), default=NEVER)
        since = max([min(old.since, upper - 1), *(each.since for each in times)])
        shares = {to: _ShareWriter(self, new.schema, old.since) for to in self.targets}
        moves = rekeys(was, identified)
        source = self._rekey_versions(old, fresh()[0], made, cast) if moves else old
        recasts = before is not None and not moves
        most = WAITING if self.move.start.memory is None else self.move.start.memory // 4
        for picked, to in self._ranges(source, keys):
            for target, rows in grouped(to).items():
                batch = picked.only(rows).batch(source.slots, True)
                share = shares.setdefault(target, _ShareWriter(self, new.schema, old.since))
                share.put(recast(batch, new.schema, made, False, cast) if recasts else batch)
            if sum(share.nbytes for share in shares.values()) > most:
                for share in shares.values():
                    share.write()
        return {to: share.record(old, Description(lower, upper, since)) for to, share in shares.items()}

    def _rekey_versions(self, old: Arrangement, out: Arrangement, made: Made, cast: Cast) -> Arrangement:
        """Put all versions under the identities of their wider columns: a run for each piece, to be merged."""
        out.since, memory = old.since, self.move.start.memory
        if memory is not None and old.slots.batches:
            old.piece = _piece(old, memory)
        for batch in recast_pieces(old, out.schema, made, True, cast):
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

    def _ranges(self, old: Arrangement, keys: pa.Schema | None) -> Iterator[tuple[Picked, Narrow]]:
        """Yield the versions that stay, merged, some identities at a time, and the partition of each."""
        memory = self.move.start.memory
        if memory is not None and old.slots.batches:
            old.piece = _piece(old, memory)
        for parts in old.ranges():
            picked = by_sorting(old.slots, parts, old.since, not old.keeps)
            if old.lapse is not None and old.keeps:
                picked = picked.without(useless(picked, old.since, old.lapse))
            if picked.high.size:
                words = picked.high if keys is None else self._hash_keys(picked, old, keys)
                yield picked, partition_of(words, self.move.partitions)

    def _hash_keys(self, picked: Picked, old: Arrangement, keys: pa.Schema) -> Any:
        """Hash each version by its row's ``keys``, as uint64[m].

        A deletion's row may be filler, so a live version of the same key decides for all."""
        high, _ = identities(gather(old.slots.pool, picked.references, keys), self.secret, picked.high.size)
        first = picked.starts
        of, live = np.cumsum(first) - 1, picked.live != 0
        decided = high[first]
        decided[of[live]] = high[live]
        return decided[of]


class _ShareWriter:
    """The share of one new partition in an arrangement: a run, whose files are written as they fill."""

    def __init__(self, rows: MovedRows, schema: pa.Schema, since: int) -> None:
        self.rows, self.schema, self.since = rows, schema, since
        self.waiting, self.nbytes, self.versions = list[Batch](), 0, 0
        self.written: list[BatchRecord] = []
        self.keys = self.deleted = 0
        self.latest = NEVER

    def put(self, batch: Batch) -> None:
        """Add the next versions.  O(n), and O(versions that wait) if they fill a file."""
        if self.waiting and self.nbytes + batch.nbytes > WAITING:
            self.write()
        self.waiting.append(batch)
        self.nbytes, self.versions = self.nbytes + batch.nbytes, self.versions + len(batch)
        last = ends(batch.high, batch.low, batch.more)
        live = batch.live != 0
        self.keys, self.deleted = self.keys + int((live & last).sum()), self.deleted + int((~live & last).sum())
        self.latest = max(self.latest, int(batch.time.max()))
        if self.versions >= FILE:
            self.write()

    def write(self) -> None:
        """Write the versions that wait to a file.  O(bytes)."""
        if not self.waiting:
            return
        batch = _whole(self.waiting, self.since)
        self.waiting, self.nbytes, self.versions = [], 0, 0
        record, layout = filed(batch)
        kept = self.rows.batch_store.save(record)
        self.rows.held.append(kept)
        self.rows.added.append(kept.blob)
        self.rows.versions += len(batch)
        self.rows.look(len(batch))
        self.written.append(BatchRecord(kept.blob, len(batch), None, layout, 0))

    def record(self, old: Arrangement, description: Description) -> ArrangementRecord:
        """Write the rest, and build the record for an inventory.  O(files)."""
        self.write()
        lower, upper, since = map(int, description)
        return ArrangementRecord(
            since=int(old.since),
            upper=int(old.upper),
            latest=self.latest,
            keys=self.keys,
            tombstones=self.deleted if old.keeps else 0,
            lapsed=0,
            shapes=[self.schema.names] if self.written else [],
            items=[RunRecord(lower, upper, since, 0, self.written)] if self.written else [],
        )


def without_versions(given: ArrangementRecord) -> ArrangementRecord:
    """Return the record of an arrangement without its versions.  O(1)."""
    return changed(given, latest=NEVER, keys=0, tombstones=0, shapes=[], items=[])


def _piece(old: Arrangement, memory: int) -> int:
    """Return how many versions are read together."""
    batches = old.slots.batches
    width = max(sum(batch.nbytes for batch in batches) // sum(map(len, batches)), 32)
    return min(old.piece, max(memory // 4 // (4 * width + 128), 4096))


def grouped(to: Narrow) -> dict[int, Ints]:
    """Group positions by value, ascending.  O(n log n), and O(n) for values below 65,536."""
    narrow = to.astype(np.uint16)  # a stable sort of which is one by digits
    order = np.argsort(narrow, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(to[order]) != 0))
    return {int(to[rows[0]]): rows for rows in np.split(order, first[1:])}


def _whole(batches: list[Batch], since: int) -> Batch:
    """Join batches of ascending identities into one."""
    names = ("high", "low", "time", "live", "value", "order")
    columns: dict[str, Any] = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names}
    n, latest = columns["high"].size, int(columns["time"].max())
    if latest <= since:
        # History before since is one, and one time takes no room.
        columns["time"] = same(latest, n, np.int64)
    if columns["live"].all():
        columns["live"] = same(1, n, np.uint8)
    rows = one_batch(pa.Table.from_batches([one_batch(batch.rows.table) for batch in batches]))
    return Batch(**columns, rows=Rows(rows))
