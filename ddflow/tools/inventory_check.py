"""Check the contents of the files that an inventory names, in addition to their checksums.

A checksum finds changed bytes, but not contents that were wrong when they were written. So this module checks the order
of each batch. Then the identities and hashes of the rows, and the Bloom filter, are computed again. The module counts
live and deleted keys, and runs the checks of arrangements and batchers. The module reads no file twice. Guarantees: a
state that ddflow committed has no faults. Each fault is recorded, and the check continues after it.

>>> from ddflow.storage.memory import MemoryStore
>>> batch_store = CachedBatchStore(MemoryStore(), set())
>>> blob = batch_store.write_table([pa.record_batch({"n": [1, 2]})], pa.schema({"n": pa.int64()}))
>>> batch_store.open_batch(blob, pa.schema({"n": pa.int64()}), 2) is batch_store.open_batch(blob,
...     pa.schema({"n": pa.int64()}), 2)
True
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret, Words, assign_partitions, compute_identities
from ddflow.columns.rows import gather_table
from ddflow.connectors.sources import find_position_error
from ddflow.dataflow import batcher as pending
from ddflow.dataflow.result import GONE, NAMES, count_resolved_events
from ddflow.engine.checkpoint import ROLLBACK_REMEDY, InputRecord, Inventories, StoredInventory
from ddflow.errors import CorruptState
from ddflow.operators.base import ReadableNode
from ddflow.operators.inputs import RunningInput
from ddflow.plan.collection import Columns
from ddflow.storage.feeding import FULL, RESTATED
from ddflow.storage.files.batch_store import BatchStore, StoredBatch
from ddflow.storage.manifest import Manifest
from ddflow.storage.protocol import Blob, Store
from ddflow.time import NEVER
from ddflow.trace import checkpoint as arrangements
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch
from ddflow.trace.merge import pick_versions_by_sorting
from ddflow.trace.records import ArrangementRecord, BatchRecord
from ddflow.trace.spill import WORDS, BloomFilter, Made

Guard = Callable[[], AbstractContextManager[None]]
"""A function that returns a context manager.

If the block of the context manager raises an error, the context manager records the error, and the check continues.
"""
Place = Callable[[Batch], Words]
"""A function from a batch to the identities (only their first words) that determine the partition of each row."""


class EmptyOperators(NamedTuple):
    """New, empty operators of a plan.

    ``inputs``: by name.  ``kept``: operators with state, by id; None if they are unknown.  ``by``: the partition
    columns of operators, if these are not the group keys.
    """

    inputs: Mapping[str, RunningInput]
    kept: Mapping[str, ReadableNode] | None
    by: Mapping[str, Columns]


class AlreadyReportedDamage(CorruptState):
    """The error for a damaged file whose damage is already in the report."""


class CachedBatchStore(BatchStore):
    """A batch store that caches opened files.

    Compressed files are not cached, because their contents would stay in memory.

    ``damaged``: the names of files that the store refuses to open.
    """

    def __init__(self, store: Store, damaged: set[str]) -> None:
        super().__init__(store)
        self.damaged = damaged
        self.opened: dict[tuple[Blob, str, int], StoredBatch] = {}

    def open_batch(self, blob: Blob, schema: pa.Schema, rows: int, compressed: bool = False) -> StoredBatch:
        """Open a file like `BatchStore.open_batch`; raise `AlreadyReportedDamage` if it is known to be damaged."""
        if blob.name in self.damaged:
            raise AlreadyReportedDamage(f"the file {blob.name}", "it is damaged", "see the report about this file")
        if compressed:
            return super().open_batch(blob, schema, rows, compressed)
        key = (blob, str(schema), rows)
        if key not in self.opened:
            self.opened[key] = super().open_batch(blob, schema, rows)
        return self.opened[key]


class InventoryCheck:
    """The check of one inventory of a manifest, for the partition ``number``.

    ``seen``: the names of files whose rows are already checked; the check adds names.  ``whole``: whether to also count
    keys and check the invariants of arrangements.
    """

    def __init__(
        self,
        manifest: Manifest,
        number: int,
        operators: EmptyOperators,
        batch_store: CachedBatchStore,
        guard: Guard,
        seen: set[str],
        whole: bool,
    ) -> None:
        self.manifest, self.number, self.operators = manifest, number, operators
        self.batch_store, self.guard, self.seen, self.whole = batch_store, guard, seen, whole

    def run(self, stored: StoredInventory) -> None:
        """Check the inventory. O(bytes). The context manager of `guard` records the faults."""
        arrived = waiting = 0
        complete, inputs = True, stored.of.inputs
        for name, upsert in self.operators.inputs.items():
            if name not in inputs:
                continue
            at = stored.describe_place("inputs", name)
            with self.guard():
                self._check_arrangement(
                    upsert.output_arrangement, inputs[name].rows, f"{at}, rows", upsert.hash_rows, True
                )
            with self.guard():
                complete = False
                arrived += inputs[name].arrived
                waiting += self._check_pending(inputs[name], at, upsert)
                complete = True
        with self.guard():
            kept = stored.of.operators
            for name, each in (self.operators.kept or {}).items():
                if name in kept:
                    for n, (arranged, part) in enumerate(zip(each.arrangements, kept[name].arrangements, strict=True)):
                        with self.guard():
                            at = f"{stored.describe_place('operators', name)}, arrangements[{n}]"
                            self._check_arrangement(
                                arranged, part, at, each.hash_rows, False, self._build_row_partitioner(name)
                            )
        with self.guard():
            known = {name: n for name, n in stored.of.totals.items() if name in (*NAMES, GONE)}
            if complete and arrived != (done := count_resolved_events(known)) + waiting:
                found = f"{arrived:,} events were ingested, but {done:,} were resolved and {waiting:,} are pending"
                raise CorruptState(stored.what, found, ROLLBACK_REMEDY)

    def _check_pending(self, record: InputRecord, at: str, upsert: RunningInput) -> int:
        """Count the pending events, and check that their keys belong to this partition."""
        batcher = pending.restore_batcher(record.runs, at, upsert.bound.event_schema, self.batch_store, spilled=True)
        batcher._check_invariants()
        for run in batcher.runs.by_least if self.manifest.partitions > 1 else ():
            high, _ = upsert.keys.identify_rows(run.pending_events.rows)
            self._check_partition(at, high, "a pending event")
        return len(batcher)

    def _check_partition(self, at: str, high: Words, what: str) -> None:
        """Check that identities belong to this partition.

        The error message calls a row by the noun ``what``, such as "a pending event".
        """
        places = assign_partitions(high, self.manifest.partitions)
        if (odd := np.flatnonzero(places != self.number)).size:
            raise CorruptState(
                at,
                f"{what} of partition {places[odd[0]]} is in partition {self.number} of {self.manifest.partitions}",
                ROLLBACK_REMEDY,
            )

    def _build_row_partitioner(self, name: str) -> Place:
        """Return a function that gives the identities that determine the partition of an operator's rows."""
        if name not in self.operators.by:
            return lambda batch: batch.high
        by, secret = list(self.operators.by[name]), Secret(*self.manifest.secret)
        return lambda batch: compute_identities(pa.table(batch.rows.table).select(by), secret, len(batch))[0]

    def _check_arrangement(
        self,
        arranged: Arrangement,
        record: ArrangementRecord,
        at: str,
        rows: Made,
        told: bool,
        place: Place = lambda batch: batch.high,
    ) -> None:
        """Check an arrangement.

        ``at``: the place of the arrangement, for messages.  ``rows``: a function that computes the hashes of rows.
        ``told``: whether the identities of deleted rows also determine a partition.  ``place``: see `Place`.
        """
        arrangements.restore_arrangement(arranged, record, at, self.batch_store, indexed=False, made=rows, sieved=False)
        if arranged.upper > self.manifest.frontier or arranged.since > max(self.manifest.since, NEVER):
            raise CorruptState(
                at,
                f"it is complete up to {arranged.upper} and compacted up to {arranged.since}, but the "
                f"manifest says {self.manifest.frontier} and {self.manifest.since}",
                ROLLBACK_REMEDY,
            )
        for slot, begin, end in arranged.parts if self.manifest.partitions > 1 else ():
            batch = arranged.slots[slot]
            # A deleted row may have lost its columns, but it keeps its identity.
            mine = slice(None) if told else batch.live[begin:end] != 0
            self._check_partition(at, place(batch)[begin:end][mine], "a key")
        by_file = {file.columns.blob.name: arranged.slots[slot] for slot, file in arranged.slots.files.items()}
        for each in record.batches:
            with self.guard():
                self._check_batch(each, by_file[each.file.name], arranged, rows)
        if self.whole:
            live, dead = count_keys(arranged, rows)
            if live != arranged.keys or (
                arranged.keeps and arranged.lapse is None and dead != arranged.tombstone_count
            ):
                raise CorruptState(
                    at,
                    f"it says {arranged.keys:,} keys and {arranged.tombstone_count:,} tombstones, but its files "
                    f"have {live:,} and {dead:,}",
                    ROLLBACK_REMEDY,
                )
            arranged._check_invariants()

    def _check_batch(self, record: BatchRecord, batch: Batch, arranged: Arrangement, rows: Made) -> None:
        """Check the identities and hashes of rows, and the Bloom filter."""
        name, bloom = record.file.name, record.bloom
        if name not in self.seen:
            self.seen.add(name)
            high, low, value, *more = rows(pa.table(batch.rows.table))
            live = batch.live != 0
            beyond = [pair for each in more for pair in zip(batch.order.T, each.T, strict=True)]
            for what, there, expected, at in (
                ("identity", batch.high, high, live),
                ("identity", batch.low, low, live),
                *(("identity", *pair, live) for pair in beyond),
                # If a version was already replaced, a merge does not write a hash for it.
                ("hash", batch.value, value, live & (batch.value != 0)),
            ):
                if there.size and expected.size and (odd := np.flatnonzero(at & (there != expected))).size:
                    raise self._damage_error(name, f"the {what} of row {odd[0]:,} does not match its columns")
        if bloom is not None and bloom.name not in self.seen:
            self.seen.add(bloom.name)
            words = BloomFilter.compute_size(int(batch.high[0]), int(batch.high[-1]), len(batch))[2]
            kept = self.batch_store.open_batch(bloom, pa.schema({WORDS: pa.uint64()}), words)
            if not np.array_equal(
                kept.batch.column(0).to_numpy(False), BloomFilter.from_identities(batch.high, batch.low).words
            ):
                raise self._damage_error(bloom.name, f"it is not the Bloom filter of {name}")

    def _damage_error(self, name: str, found: str) -> CorruptState:
        return CorruptState(f"the file {name} of {self.batch_store.store.where}", found, ROLLBACK_REMEDY)


def check_collections(inventories: Inventories, operators: EmptyOperators) -> None:
    """Raise `CorruptState` unless all inventories together hold exactly the collections of the plan.

    Each collection must also be complete.

    O(inventories * collections).
    """
    inputs = {name for each in inventories.stored for name in each.of.inputs}
    kept = {name for each in inventories.stored for name in each.of.operators}
    for kind, there, plan in (("inputs", inputs, operators.inputs), ("operators", kept, operators.kept)):
        if plan is not None and there != set(plan):
            raise CorruptState(
                inventories.stored[0].what,
                f"it has the {kind} {sorted(there)}, but the plan has {sorted(plan)}",
                ROLLBACK_REMEDY,
            )
    for name in inputs:
        inventories.find_input(name)
    for name in kept if operators.kept is not None else ():
        inventories.find_operator(name)


def find_feed_faults(manifest: Manifest) -> Iterator[str]:
    """Yield contradictions in a manifest about the calls that fed its inputs.  O(runs of calls * receipts)."""
    plan = manifest.plan.get("inputs")
    if unknown := sorted(set(manifest.fed) - set(plan if isinstance(plan, dict) else ())):
        yield f"it records how {unknown} were fed, but its plan has no such inputs"
    for kind, way in (("replace", FULL), ("restate", RESTATED)):
        runs = [run for fed in manifest.fed.values() for run in fed.runs if run.way.kind == way]
        until = max((fed.until for fed in manifest.fed.values()), default=0)
        for receipt in manifest.receipts:
            here = any(run.first <= receipt.epoch <= run.last for run in runs) or receipt.epoch <= until
            if any(call.kind == kind for call in receipt.calls) and not here:
                yield f"epoch {receipt.epoch} had a {kind}, but the records of the inputs do not show it"


def find_attachment_faults(manifest: Manifest, kept: Mapping[int, str]) -> Iterator[str]:
    """Yield contradictions in a manifest about its sources and sinks.  O(sources + sinks).

    ``kept``: the digests of kept epochs.
    """
    plan = manifest.plan
    for name, source in manifest.sources.items():
        if (why := find_position_error(source.kind, source.position)) is not None:
            yield f"the position of the source {name!r} is not a valid position of {source.kind}: {why}"
    outputs = {*plan.get("outputs", ())}
    for name, sink in manifest.sinks.items():
        if name not in outputs and name.rpartition(".")[0] not in plan.get("inputs", ()):
            yield f"it has a sink of {name!r}, but its plan has no such output"
        if sink.written > sink.epoch:
            yield f"the sink of {name!r} received epoch {sink.written}, but has acknowledged only {sink.epoch}"
        elif kept.get(sink.written, "") not in ("", sink.digest):
            yield f"the sink of {name!r} received an epoch {sink.written} that differs from the kept epoch"
        # After a change of the output folder, earlier epochs are only in the previous folder.
        oldest = manifest.epoch + 1 if manifest.oldest_epoch is None else manifest.oldest_epoch
        if manifest.folder is None and sink.epoch < manifest.epoch and sink.epoch + 1 < oldest:
            yield f"the sink of {name!r} lacks epoch {sink.epoch + 1}, but its updates are no longer kept"


def count_keys(arranged: Arrangement, rows: Made) -> tuple[int, int]:
    """Count the live keys and the deleted keys.  O(versions).

    ``rows``: a function that computes the expected hashes.  Raises `CorruptState` if a current version lacks its hash.
    """
    live = dead = 0
    for parts in arranged.iterate_version_ranges():
        picked = pick_versions_by_sorting(arranged.slots, parts, NEVER, droppable=False)
        if picked.summed:
            live += picked.count_keys()
            continue
        last = picked.last_of_keys
        there = last & (picked.live != 0)
        live, dead = live + int(there.sum()), dead + int((last & (picked.live == 0)).sum())
        bare = np.flatnonzero(there & (picked.value == 0))
        if bare.size and rows(gather_table(arranged.slots.pool, picked.references[bare], arranged.schema))[2].any():
            raise CorruptState("the rows of an arrangement", "a current version has no hash", ROLLBACK_REMEDY)
    return live, dead
