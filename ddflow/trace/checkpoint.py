"""Save an arrangement for a commit as a record of plain values and as files, and restore an arrangement.

Each batch is written once, when it is new. Later commits store only the name of the batch, so the cost of a commit
depends on what changed. A merge in progress continues after a restore, because the record says where the remaining
parts of its inputs begin. The index is not saved. `restore_arrangement` builds it from the versions, oldest run first.
With a memory budget no index is built, and look-ups search the runs on disk.

Guarantees: a restored arrangement gives the same rows at every time, and continues the merges in progress. All values
from a file are checked before a kernel uses them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Raw

from ddflow.columns.hashing import NONE, Ints
from ddflow.columns.rows import Rows
from ddflow.errors import CorruptState, shorten
from ddflow.kernels.gather import SLOT, SLOTS
from ddflow.kernels.merge import find_first_invalid_row
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.storage.fields import RESTORE_REMEDY, encode_record
from ddflow.storage.files.batch_store import BatchStore, StoredBatch, StoredBlob
from ddflow.time import BatchDescription
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import LASTS, Batch, BatchRange, BatchSlots, Run, iterate_last_rows_of_keys
from ddflow.trace.index import IndexWrite
from ddflow.trace.merge import RunMerge
from ddflow.trace.records import ArrangementRecord, BatchRecord, MergeRecord, RunRecord
from ddflow.trace.spill import (
    WORDS,
    BatchFiles,
    BloomFilter,
    FileLayout,
    Made,
    add_bloom_filter,
    decode_batch,
    encode_batch,
    fill_hashes,
    spill_batch,
)

ROW = (1 << SLOT) - 1
"""The mask of the row number in a reference."""


class ReusedBatches:
    """The batches and runs of an arrangement before its update from a newer inventory.

    A worker keeps an arrangement open while the rest of the workers change the same arrangement. A newer inventory
    names some files that this worker has open, and some new files. Files whose batches were merged since then are not
    named. Open batches keep their slots, so index entries that point to open batches stay valid. The versions of runs
    with later times are written to the index. A new run without later times is the output of a merge. Index entries
    that pointed to the inputs of the merge now point to its output. Remaining entries that point to missing files are
    cleared. Therefore the cost depends only on the versions that were added or removed.

    ``indexed``: whether the arrangement gets an index of all versions and reuses batches in memory. A state without an
    index reuses batches on disk.
    """

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

    def find_slot(self, record: BatchRecord) -> int | None:
        """Return the slot of the open batch of a record, or None if the batch must be read.  O(1).

        Call this once for each record.
        """
        bloom = "" if self.indexed or record.bloom is None else record.bloom.name
        return self._named.pop((record.file.name, bloom), None)

    def update_shapes(self, shapes: list[list[str]]) -> None:
        """Take over an inventory's lists of payload columns. O(open files) if the order of the lists is new."""
        slots = self.arranged.slots
        if shapes[: len(slots.shapes)] != slots.shapes:
            # Clear the cached records of files, because they refer to the lists by number.
            for slot in self.slots:
                if (file := slots[slot].mapped or slots.files.get(slot)) is not None:
                    file.record = None
        slots.shapes = shapes

    def update_index(self) -> None:
        """Update the index for the current versions of the arrangement, and drop batches without versions.

        O(versions added or removed), and O(index slots) if the new versions outgrow the index.
        """
        arranged, slots = self.arranged, self.arranged.slots
        for spine in (arranged.spine, arranged.on_disk):
            spine.planned = spine.fresh = 0
        now = {part.slot: part.begin for part in arranged.parts}
        if self.indexed and not slots.summed:
            floor = np.zeros(len(slots.by_slot), np.int64)
            gone = [
                BatchRange(part.slot, part.begin, min(now.get(part.slot, part.end), part.end)) for part in self.parts
            ]
            for part in gone:
                floor[part.slot] = part.end if part.slot in now else ROW + 1
            self._write_entries(floor)
            for part in gone:
                self._clear_entries(part, floor)
        elif self.slots and not slots.summed:
            arranged.index = arranged.make_empty().index
        for slot in self.slots:
            if slot not in now:
                slots.drop_batch(slot)

    def _write_entries(self, floor: Ints) -> None:
        """Point index entries at all versions of new runs."""
        arranged, index, slots, here = self.arranged, self.arranged.index, self.arranged.slots, set(self.slots)
        if not here:
            versions = sum(map(len, arranged.spine.runs))
            index.reserve_entries(arranged.keys + arranged.tombstone_count + min(LASTS, versions))
        new = [
            Run(run.description, [part for part in run.parts if part.slot not in here]) for run in arranged.spine.runs
        ]
        later = [run for run in new if run.description.upper > self.upper or not here]
        # If several merge outputs contain a key, the newest of these outputs has the version that the key's entry
        # pointed at.
        for run in reversed(new):
            for part in run.parts if run not in later else ():
                self._redirect_entries(part, floor)
        # Write older runs first, so that the newest version of a key stays in the index.
        for run in later:
            # Until newer runs are written, every deletion has an entry, even if it does not have to be remembered.
            index.reserve_entries(
                sum(last.size for part in run.parts for last in iterate_last_rows_of_keys(slots[part.slot], part))
            )
            index_run(arranged, run)
        for part in (part for run in new for part in run.parts):
            if slots[part.slot].value.size:
                slots.set_batch_file(part.slot, slots.files[part.slot])

    def _redirect_entries(self, part: BatchRange, floor: Ints) -> None:
        """Update the index entries whose version a merge has moved.

        These entries then point at ``part``, the output of the merge.
        """
        for last in iterate_last_rows_of_keys(self.arranged.slots[part.slot], part):
            places, lost = self._find_lost_entries(part.slot, last, floor)
            self.arranged.index.repoint_entries(places[lost], last[lost] | part.slot << SLOT)

    def _clear_entries(self, part: BatchRange, floor: Ints) -> None:
        """Clear the references of index entries whose version no longer exists, for the keys of ``part``."""
        for last in iterate_last_rows_of_keys(self.arranged.slots[part.slot], part) if part.end > part.begin else ():
            places, lost = self._find_lost_entries(part.slot, last, floor)
            if lost.any():
                self.arranged.index.drop_tombstones(places[lost])

    def _find_lost_entries(self, slot: int, rows: Ints, floor: Ints) -> tuple[Ints, Any]:
        """Return the places of the index entries for the keys of some rows.

        As a second result, mark, as bool[m], the entries whose version no longer exists.
        """
        batch = self.arranged.slots[slot]
        prior = self.arranged.index.look_up_keys(batch.high, batch.low, rows.astype(np.int32))
        references = prior.reference & ~np.int64(OCCUPIED | LIVE)
        return prior.place, references & ROW < floor[references >> SLOT]


def index_run(arranged: Arrangement, run: Run) -> None:
    """Write the last versions of a run's keys into the index. The index must have enough room. O(versions)."""
    index = arranged.index
    for part in run.parts:
        batch = arranged.slots[part.slot]
        columns = batch.high, batch.low, batch.value, batch.live, batch.order
        for last in iterate_last_rows_of_keys(batch, part):
            index.write(IndexWrite(np.full(last.size, -1), index.built, last, *columns, part.slot))


class WrittenBatch:
    """The file of a batch in memory.

    ``names``: the names of the payload's columns.  ``record``: the JSON of the batch's record in an inventory.
    """

    def __init__(self, columns: StoredBlob, layout: FileLayout, names: list[str]) -> None:
        self.columns, self.layout, self.names = columns, layout, names
        self.record: Raw | None = None

    def drop(self) -> None:
        """Drop the file."""
        self.columns.drop()

    def verify(self) -> None:
        """If the batch maps the file, compare the bytes of the file with their checksum. Raises `CorruptState`."""
        if isinstance(self.columns, StoredBatch):
            self.columns.verify()


def checkpoint_arrangement(arranged: Arrangement, batch_store: BatchStore) -> ArrangementRecord:
    """Write the batches without files, and return the arrangement as a record.  O(unwritten bytes + batches).

    In the returned record, the records of runs are already JSON. A run that did not change is not encoded again. Raises
    `StorageFull`, `StorageFailed`. After an error, the arrangement is unchanged.

    >>> from ddflow.storage.fields import Decoder, decode_record
    >>> from ddflow.storage.memory import MemoryStore
    >>> from ddflow.trace.batch import ArrangementChange
    >>> batch_store, schema = BatchStore(MemoryStore()), pa.schema({"k": pa.int64()})
    >>> arranged = Arrangement(schema, wide=False, words=0)
    >>> arranged.slots.lasting, zero = True, np.array([0])
    >>> batch = Batch.from_lists([5], [3], [True], pa.table({"k": [1]}))
    >>> change = ArrangementChange(batch, np.array([5], np.uint64), zero, zero, 0, live_added=1, tombstones_added=0)
    >>> arranged.apply_changes([change], upper=4, since=3)
    >>> record = decode_record(Decoder(ArrangementRecord), encode_record(checkpoint_arrangement(arranged, batch_store)),
    ...     "an example")
    >>> again = Arrangement(schema, wide=False, words=0)
    >>> made = lambda rows: (NONE, NONE, NONE)  # nothing is compressed
    >>> restore_arrangement(again, record, "an example", batch_store, indexed=True, made=made)
    >>> again.read().to_pylist(), again.upper, again.keys
    ([{'k': 1}], 4, 1)
    """
    slots, by_slot, files = arranged.slots, arranged.slots.by_slot, arranged.slots.files
    items = list[Any]()
    for item in chain(arranged.on_disk.items, arranged.spine.items):
        if item.record is not None:
            items.append(item.record)
            continue
        runs = list[Any]()
        for run in [item] if isinstance(item, Run) else [*item.inputs, item.output]:
            if run.record is None:
                batches: list[Any] = []
                for slot, _, _ in run.parts:
                    file = files.get(slot) or by_slot[slot].mapped  # type: ignore[union-attr]
                    record = None if file is None else file.record
                    batches.append(_write_batch_record(slots, slot, batch_store) if record is None else record)
                # A merge takes rows from the front, so only the first part can begin within its batch.
                begin = run.parts[0].begin if run.parts else 0
                run.record = Raw(encode_record(RunRecord(*run.description, begin, batches)))
            runs.append(run.record)
        if isinstance(item, Run):
            items += runs
        else:
            items.append(MergeRecord(runs[:-1], runs[-1], item.whole, int(item.first), int(item.credit)))
    return ArrangementRecord(
        since=int(arranged.since),
        upper=int(arranged.upper),
        latest=int(arranged.latest),
        keys=int(arranged.keys),
        tombstones=max(arranged.tombstones_counted, 0) if arranged.lapse is None else int(arranged.tombstone_count),
        lapsed=0 if arranged.lapse is None else int(arranged.expired_tombstone_count),
        shapes=[*slots.shapes],
        items=items,
    )


def _write_batch_record(slots: BatchSlots, slot: int, batch_store: BatchStore) -> Raw:
    """Encode a batch's record as JSON once. If the batch has no file, write it to a file."""
    batch = slots.by_slot[slot]
    assert batch is not None
    file: BatchFiles | WrittenBatch | None = batch.mapped or slots.files.get(slot)
    if file is None:
        columns, layout = encode_batch(batch, batch_store.compresses, slots.file_schemas)
        file = WrittenBatch(batch_store.write_unmapped(columns), layout, batch.rows.schema.names)
        slots.set_batch_file(slot, file)
    if file.names not in slots.shapes:
        slots.shapes.append(file.names)
    bloom = file.words.blob if isinstance(file, BatchFiles) else None
    record = BatchRecord(file.columns.blob, batch.high.size, bloom, file.layout, slots.shapes.index(file.names))
    file.record = Raw(encode_record(record))
    return file.record


def restore_arrangement(
    arranged: Arrangement,
    given: ArrangementRecord,
    what: str,
    batch_store: BatchStore,
    indexed: bool,
    made: Made,
    sieved: bool = True,
    home: BatchStore | None = None,
) -> None:
    """Restore an arrangement from its record, and verify every file.  O(bytes read).

    If ``arranged`` is not empty, it comes from an earlier inventory of the same arrangement, and is updated.

    ``what``: the place of the record, for messages.  ``indexed``: whether all runs are in memory (mapped if they are
    not compressed) and indexed; otherwise all runs are on disk.  ``made``: the function that hashes rows, if a file is
    compressed or lacks new columns.  ``sieved``: whether runs on disk are searched with Bloom filters, and not only
    read. ``home``: the store of uncompressed copies of compressed files, which are read in place; None to hold the
    copies in memory.  Raises `CorruptState`, and the errors of the home.
    """
    held = ReusedBatches(arranged, indexed)
    arranged.slots.lasting = True
    arranged.since, arranged.upper, arranged.latest = given.since, given.upper, given.latest
    shapes = [_select_fields(names, arranged.schema, what) for names in given.shapes]
    held.update_shapes([*given.shapes])
    if (batches := sum(len(run.batches) for run in given.runs)) >= SLOTS:
        raise _make_corrupt_error(what, f"it has {batches:,} batches, but the limit is {SLOTS - 1:,}")
    searched, arranged.is_searched = not indexed and sieved, indexed or sieved

    def load(record: BatchRecord) -> tuple[Batch, Any]:
        return _load_batch(record, shapes, batch_store, arranged, made, searched, home, what)

    target = None if indexed else partial(spill_batch, batch_store=batch_store)
    items = _InventoryLoader(arranged, held, load, target, batch_store if sieved else None, indexed, what)
    made_again = [items.build_run_or_merge(each) for each in given.items]
    arranged.spine.items[:], arranged.on_disk.items[:] = (made_again, []) if indexed else ([], made_again)
    items.check_time_coverage()
    keys = 0 if arranged.slots.summed else given.keys
    if not 0 <= keys <= items.versions or not given.lapsed <= given.tombstones <= items.versions:
        found = f"{given.keys:,} keys, {given.tombstones:,} tombstones, {given.lapsed:,} of them expired"
        raise _make_corrupt_error(what, f"it has {items.versions:,} versions, but records {found}")
    arranged.keys, arranged.tombstones_counted = given.keys, given.tombstones
    if arranged.lapse is not None:
        arranged.lapse.gone = 0
    arranged.update_useless_deletions(given.lapsed)
    held.update_index()
    if not indexed and items.versions:
        arranged.index.keep_deletions()
        arranged.spine.keeps = True


class _InventoryLoader:
    """A loader of runs and merges from their records. The loader reads only batches that are not open in ``held``."""

    def __init__(
        self,
        arranged: Arrangement,
        held: ReusedBatches,
        load: Callable[[BatchRecord], tuple[Batch, Any]],
        target: Any,
        batch_store: BatchStore | None,
        indexed: bool,
        what: str,
    ) -> None:
        self.arranged, self.held, self.load, self.target = arranged, held, load, target
        self.batch_store, self.indexed, self.what = batch_store, indexed, what
        self.used: set[str] = set()
        self.versions = 0

    def build_run_or_merge(self, record: RunRecord | MergeRecord) -> Run | RunMerge:
        """Build a run, or a merge in progress."""
        if isinstance(record, RunRecord):
            return self._load_run(record)
        inputs, output = [self._load_run(each) for each in record.inputs], self._load_run(record.output)
        low, high = output.description.lower, output.description.upper
        if (inputs[0].description.lower, inputs[-1].description.upper) != (low, high):
            raise _make_corrupt_error(self.what, "the times of a merge differ from the times of its inputs")
        self._check_times_meet([run.description for run in inputs])
        merge = RunMerge(inputs, record.whole, self.target)
        # A piece can be larger than the credit, so the credit can be negative.
        merge.output, merge.first, merge.credit = output, record.first, record.credit
        return merge

    def _load_run(self, record: RunRecord) -> Run:
        parts: list[BatchRange] = []
        if record.begin and not record.batches:
            raise _make_corrupt_error(self.what, f"a run without batches begins at row {record.begin:,}")
        for each in record.batches:
            part = self._load_part(each, 0 if parts else record.begin)
            if parts and self._get_identity_word(parts[-1], -1) >= self._get_identity_word(part, 0):
                raise _make_corrupt_error(self.what, "the files of a run overlap")
            parts.append(part)
            self.versions += part.end - part.begin
        return Run(BatchDescription(record.lower, record.upper, record.since), parts)

    def _get_identity_word(self, part: BatchRange, at: int) -> int:
        return int(self.arranged.slots[part.slot].high[part.begin if at == 0 else part.end - 1])

    def _load_part(self, record: BatchRecord, begin: int) -> BatchRange:
        if record.file.name in self.used:
            raise _make_corrupt_error(self.what, f"it names the file {record.file.name} twice")
        self.used.add(record.file.name)
        if begin >= record.rows:
            raise _make_corrupt_error(self.what, f"a run begins at row {begin:,} of a batch of {record.rows:,}")
        if (slot := self.held.find_slot(record)) is not None:
            if (rows := len(self.arranged.slots[slot])) != record.rows:
                found = f"it records {record.rows:,} rows in {record.file.name}, which has {rows:,}"
                raise _make_corrupt_error(self.what, found)
            return BatchRange(slot, begin, record.rows)
        batch, file = self.load(record)
        if not self.indexed and batch.mapped is None and self.batch_store is not None:
            batch = replace(batch, mapped=add_bloom_filter(file.columns, file.layout, self.batch_store).mapped)
        slot = self.arranged.slots.add_batch(batch).slot
        if batch.mapped is None:
            self.arranged.slots.files[slot] = file
        return BatchRange(slot, begin, len(batch))

    def _check_times_meet(self, descriptions: list[BatchDescription]) -> None:
        if not all(older.is_followed_by(newer) for older, newer in pairwise(descriptions)):
            raise _make_corrupt_error(self.what, "its runs overlap, or do not cover all times")

    def check_time_coverage(self) -> None:
        """Raise `CorruptState` unless the runs and merges cover each time exactly once."""
        items = self.arranged.spine.items or self.arranged.on_disk.items
        self._check_times_meet([(each if isinstance(each, Run) else each.output).description for each in items])


def _select_fields(names: list[str], schema: pa.Schema, what: str) -> list[pa.Field]:
    """Select the columns of a payload by name."""
    if names != [name for name in schema.names if name in names]:
        raise _make_corrupt_error(what, f"its files have the columns {shorten(str(names))}, which the plan lacks")
    return [schema.field(name) for name in names]


def _load_batch(
    record: BatchRecord,
    shapes: list[list[pa.Field]],
    batch_store: BatchStore,
    arranged: Arrangement,
    made: Made,
    sieved: bool,
    home: BatchStore | None,
    what: str,
) -> tuple[Batch, Any]:
    """Load a batch from its file. Also return the file, or None if the batch itself refers to the file."""
    if record.shape >= len(shapes):
        raise _make_corrupt_error(what, f"it has no shape {record.shape}")
    layout, fields, rows = record.layout, shapes[record.shape], record.rows
    wanted = layout.build_schema(pa.schema(fields))
    if (
        ("low" in layout.own) != arranged.index.wide
        or layout.words != arranged.index.words
        or "value" not in layout.own
    ):
        raise _make_corrupt_error(
            what, f"a file has the columns {layout.own} and {layout.words} order words, which do not fit the plan"
        )
    kept = batch_store.open_batch(record.file, wanted, rows, layout.compressed)
    file = WrittenBatch(kept, layout, [f.name for f in fields])
    batch = replace(decode_batch(kept.batch, layout), summed=arranged.slots.summed)
    if layout.compressed:
        # Return the file, because the batch in memory differs from the compressed file.
        batch, file.columns = (
            fill_hashes(batch, made(_add_null_columns(batch, arranged.schema))[:3]),
            StoredBlob(batch_store, kept.blob, True),
        )
        if home is not None:
            plain, file.layout = encode_batch(batch)
            written = home.write(plain)
            batch, file.columns = decode_batch(written.batch, file.layout), written
    timed, told = (batch.time if layout.time is None else NONE.view(np.int64)), layout.live is None
    beyond = layout.words if arranged.slots.summed else 0
    more = np.uint64(batch.order.ctypes.data if beyond else 0)
    wrong = find_first_invalid_row(
        batch.high, batch.low, more, beyond, timed, batch.live if told else np.empty(0, np.uint8)
    )
    if wrong >= 0:
        raise _make_corrupt_error(what, f"row {wrong} of {kept.blob.name} is out of order")
    if sieved and record.bloom is not None and len(fields) == len(arranged.schema):
        words = BloomFilter.compute_size(int(batch.high[0]), int(batch.high[-1]), rows)[2]
        bloom = batch_store.open_batch(record.bloom, pa.schema({WORDS: pa.uint64()}), words)
        return replace(batch, mapped=BatchFiles(kept, layout, bloom, BloomFilter.from_words(batch, bloom.batch))), None
    return _widen_batch(batch, arranged.schema, made), file


def _widen_batch(batch: Batch, schema: pa.Schema, made: Made) -> Batch:
    """Add columns that a batch does not have, filled with null, and compute the value hashes of its rows again."""
    if len(batch.rows.columns) == len(schema):
        return batch
    payload = _add_null_columns(batch, schema)
    return replace(batch, rows=Rows(payload), value=batch.value if batch.summed else made(payload)[2])


def _add_null_columns(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch's rows with all columns of a schema. Columns that the batch does not have are null."""
    there = dict(zip(batch.rows.table.schema.names, batch.rows.columns, strict=True))
    columns = [there[f.name] if f.name in there else pa.nulls(len(batch), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _make_corrupt_error(what: str, found: str) -> CorruptState:
    return CorruptState(what, found, RESTORE_REMEDY)
