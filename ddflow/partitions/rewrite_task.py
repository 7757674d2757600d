"""Run one task of a rewrite: split one old partition of a stage into shares, one for each new partition.

The task reads the row versions of each arrangement, one range of identities after another. The task groups the versions
by new partition, and writes files for each new partition. `Rewrite` joins the shares of all tasks.

Guarantees: at every time from ``since`` on, the new partitions together have the same rows as the old partitions. A new
partition holds exactly the keys that `ddflow.columns.hashing.assign_partitions` assigns to it. A task reads each file
once, range by range, so the memory does not depend on the size of the partition. No manifest lists the files of a task
yet, so a task that runs twice only leaves unused files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ddflow.columns.hashing import Ints, Narrow, RowHasher, Secret, assign_partitions, compute_identities
from ddflow.columns.rows import Rows, gather_table
from ddflow.columns.schema import to_batch
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.dataflow import batcher as pending
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.inflow import add_to_counts
from ddflow.dataflow.result import GONE
from ddflow.engine.checkpoint import InputRecord, Inventory, OperatorRecord, StoredInventory
from ddflow.errors import CorruptState
from ddflow.metrics import Look
from ddflow.operators.base import OperatorContext, RunningOperator
from ddflow.operators.inputs import open_input
from ddflow.operators.upsert.events import Events
from ddflow.partitions.chunks import sort_by_group
from ddflow.partitions.epoch_start import RewriteStart
from ddflow.partitions.receipt import PartitionShare, RewriteTaskResult
from ddflow.partitions.stages import Stages, compute_placements, find_partition_columns
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.inputs.input import Binding, Input
from ddflow.plan.text.codec import compute_node_ids
from ddflow.storage.fields import RESTORE_REMEDY
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.protocol import Blob, Store
from ddflow.time import NEVER, BatchDescription
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, Run, mark_last_of_keys, repeat_value
from ddflow.trace.cast import Cast, cast_batch, cast_batches, cast_rows, has_changed_identities
from ddflow.trace.checkpoint import WrittenBatch, restore_arrangement
from ddflow.trace.merge import PickedVersions, pick_versions_by_sorting
from ddflow.trace.records import ArrangementRecord, BatchRecord, RunRecord
from ddflow.trace.spill import Made, decode_batch, encode_batch

T = TypeVar("T")
Opened = tuple[Arrangement, Made, pa.Schema]
"""An empty arrangement, the function that hashes its rows, and the schema of the columns that identify its rows."""
NOTHING: Final = Inventory({}, {}, {})
FILE: Final = 1 << 19
"""The number of row versions in a full file."""
WAITING: Final = 512 << 20
"""Without a memory limit, rows are written as soon as this many bytes of rows are in memory."""


def run_task(
    start: RewriteStart, stage: int, number: int, store: Store | None = None, look: Look = lambda rows: None
) -> RewriteTaskResult:
    """Split one old partition of a stage. O(bytes of the partition).

    The task needs memory for one range of identities and for the rows that are not written yet, at most
    ``start.memory``. ``store``: the open store of the state, if this process has opened it. ``look``: a progress
    callback, called with the number of rows written since its last call.

    Raises `StateRefused` if this host cannot see the state, `CorruptState`, `StorageFull`, `StorageFailed`. After an
    error, the written files are deleted.

    >>> import ddflow as dd
    >>> from ddflow.partitions.rescale import plan_rescale
    >>> from ddflow.partitions.rewrite import Rewrite
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> with flow.open(store := MemoryStore(), secret=dd.Secret(1, 2)) as engine:
    ...     _ = engine.step({"people": pa.table({"id": range(100)})}, time=1)
    >>> with Rewrite.open(store.reopen(), plan_rescale(2)) as rewrite:
    ...     made = [run_task(rewrite.start, stage, number) for stage, number in rewrite.tasks]
    >>> [(each.to, each.inventory.inputs["people"].rows.keys) for part in made for each in part.shares]
    [(0, 42), (1, 58)]
    """
    began = perf_counter_ns()
    own = start.version.open("rescale", readonly=False) if store is None else store
    try:
        made = _RewriteTask(start, stage, number, own, look).run()
        if store is None:
            own.fsync_blob_names()
    finally:
        if store is None:
            own.close()
    written = sum(blob.length for blob in made.added)
    return replace(made, figures={"task": (perf_counter_ns() - began) // 1000, "bytes": written})


def build_inventory(stages: Stages, stage: int, old: Sequence[Inventory], new: Inventory = NOTHING) -> Inventory:
    """Build the inventory of one partition for one stage, from the inventories of the partition for all stages.

    O(files). ``old``: the inventories for all stages. ``new``: the records of inputs and operators that the old
    inventories lack. If the plan lacks an input, the events of the input are counted under the verdict `GONE`.

    >>> import ddflow as dd
    >>> from ddflow.partitions.stages import cut_stages
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> old = Inventory({}, {"of another plan": OperatorRecord([])}, {"applied": 7})
    >>> made = build_inventory(cut_stages(flow), 0, [old])
    >>> made.operators, made.totals
    ({}, {'applied': 7})
    """
    ids, totals = compute_node_ids(stages.flow), dict[str, int]()
    here = {ids[node] for node in stages.find_stateful_nodes(stage)}
    operators = {name: found for each in (new, *old) for name, found in each.operators.items() if name in here}
    if stage:
        return Inventory({}, operators, {})
    inputs: dict[str, InputRecord] = {**new.inputs}
    for each in old:
        inputs |= each.inputs
        add_to_counts(totals, each.totals)
    dropped = [inputs.pop(name) for name in inputs.keys() - stages.flow.inputs.keys()]
    gone = sum(each.arrived - sum(run.rows - run.begin for run in each.runs) for each in dropped)
    if gone:
        add_to_counts(totals, {GONE: gone})
    return Inventory(inputs, operators, totals)


def find_overlapping_partitions(number: int, partitions: int, before: int) -> range:
    """Return the old partitions that share identities with the new partition ``number``. Pure.

    ``partitions``: the new number of partitions. ``before``: the old number of partitions.


    >>> list(find_overlapping_partitions(0, 2, 3)), list(find_overlapping_partitions(2, 3, 2))
    ([0, 1], [1])
    """
    first, after = (
        -((-at << 32) // partitions) for at in (number, number + 1)
    )  # bounds of the new partition in mixed identity words
    return range(first * before >> 32, ((after - 1) * before >> 32) + 1)


class _RewriteTask:
    """The rewrite of one old partition.

    - ``targets``: the new partitions that share keys with the old partition.
    - ``added``: the files that the task has written.
    - ``versions``, ``pending``: the number of row versions and of pending events in the written files.
    - ``held``: objects whose references prevent the deletion of the written files.
    """

    def __init__(self, start: RewriteStart, stage: int, number: int, store: Store, look: Look) -> None:
        self.start, self.stage, self.number, self.look = start, stage, number, look
        self.batch_store, self.secret = BatchStore(store), Secret(*start.secret)
        self.home = None if start.memory is None else self.batch_store
        self.targets = find_overlapping_partitions(number, start.before, start.partitions)
        self.added, self.held = list[Blob](), list[Any]()
        self.versions = self.pending = 0
        stored = [StoredInventory.read(store, each) for each in start.inventories[stage, number]]
        self.old = stored[0]._replace(of=build_inventory(start.cut, stage, [each.of for each in stored], start.new))
        self.ids = compute_node_ids(start.cut.flow)
        self.before = {} if start.cast is None else {name: node for node, name in compute_node_ids(start.cast).items()}
        """The collections of the old plan by their ids; empty if no columns change."""

    def run(self) -> RewriteTaskResult:
        """Write the shares of all new partitions.  O(bytes of the partition)."""
        start, flow = self.start, self.start.cut.flow
        inputs, operators = (
            defaultdict[int, dict[str, InputRecord]](dict),
            defaultdict[int, dict[str, OperatorRecord]](dict),
        )
        for name, input in flow.inputs.items() if self.stage == 0 else ():
            for to, rows in self._split_input(name, input):
                inputs[to][name] = rows
        places, here = (
            {} if start.partitions == start.before == 1 else compute_placements(flow),
            start.cut.find_stateful_nodes(self.stage),
        )
        for node in flow.nodes:
            if node in here and node.open(self._make_operator_context(node)).arrangements:
                told = find_partition_columns(node, places[node]) if node in places else None
                for to, groups in self._split_operator(node, self.ids[node], told).items():
                    operators[to][self.ids[node]] = groups
        # The batch store deletes unused files, except files that are registered because a manifest may name them.
        self.batch_store.register_manifest_files(blob.name for blob in self.added)
        first, totals = self.targets[0], self.old.of.totals if self.stage == 0 else {}
        shares = (
            PartitionShare(to, Inventory(inputs[to], operators[to], totals if to == first else {}))
            for to in sorted({*self.targets, *operators, *inputs})
        )
        return RewriteTaskResult(
            self.stage, self.number, tuple(shares), tuple(self.added), self.versions, self.pending, {}
        )

    def _split_input(self, name: str, input: Input) -> Iterator[tuple[int, InputRecord]]:
        """Split an input by new partition.

        Yield each partition with its record of the input: rows, pending events and counters.
        """
        horizon = self.start.horizons.get(name)

        def open_rows(bound: Binding) -> Opened:
            upsert = open_input(bound, self.secret)
            if upsert.expiring is not None:
                upsert.expiring.horizons.greatest = horizon
            return upsert.output_arrangement, upsert.hash_rows, upsert.identified

        was = None if self.start.cast is None else self.start.cast.inputs[name].bound
        old = None if was is None else partial(open_rows, was)
        given, what = self._require_record("inputs", name, self.old.of.inputs.get(name))
        resolved, batchers = self._split_pending_events(input, what, given, was)
        rows = self._split_versions(f"{what}, rows", given.rows, partial(open_rows, input.bound), old)
        nothing = drop_versions(next(iter(rows.values())))
        for to in sorted({*rows, *batchers}):
            batcher = batchers.get(to, Batcher())
            runs = pending.checkpoint_batcher(batcher, self.batch_store)
            self.added += [run.file for run in runs]
            self.held.append(batcher)
            self.pending += len(batcher)
            yield (
                to,
                InputRecord(
                    arrived=len(batcher) + (resolved if to == self.targets[0] else 0),
                    greatest=self.start.greatest.get(name, NEVER),
                    rows=rows.get(to, nothing),
                    runs=runs,
                    horizon=horizon if input.spec.expiry is not None or input.bound.watermark is not None else None,
                    table=given.table,
                ),
            )

    def _require_record(self, kind: str, name: str, found: T | None) -> tuple[T, str]:
        """Return a record of the inventory, and a text that tells the reader of a message where the record is.

        Raises `CorruptState` for a missing record.
        """
        if found is None:
            raise CorruptState(self.old.what, f"it has no {name!r}, which the plan has", RESTORE_REMEDY)
        return found, self.old.describe_place(kind, name)

    def _split_pending_events(
        self, input: Input, what: str, given: InputRecord, was: Binding | None
    ) -> tuple[int, dict[int, Batcher]]:
        """Count the resolved events of an input, and split its pending events by new partition.

        ``was``: the input in the old plan, if columns change. Pending events get new arrival numbers below 0, so all
        later events come after them. No two tasks assign the same arrival number, although a task does not know how
        many events other tasks have.
        """
        schema, memory = (was or input.bound).event_schema, self.start.memory
        old = pending.restore_batcher(given.runs, what, schema, self.batch_store, True, self.home)
        after = input.bound.event_schema
        every = [
            run.pending_events._replace(rows=conform_to_wider_schema(run.pending_events.rows, after))
            for run in old.runs.by_least
        ]
        picked = [(part, self._group_by_new_partition(input, part)) for part in every]
        out: dict[int, Batcher] = {to: Batcher() for _, places in picked for to in places}
        order = {
            to: np.sort(np.concatenate([part.arrival[places[to]] for part, places in picked if to in places]))
            for to in out
        }
        for part, places in picked:
            for to, rows in places.items():
                # Numbers are compared only within a new partition.
                at = np.searchsorted(order[to], part.arrival[rows]) - order[to].size
                out[to].add(_take_and_renumber_events(part, rows, at * self.start.before + self.number))
            if memory is not None and sum(batcher.nbytes for batcher in out.values()) > memory // 8:
                for batcher in out.values():
                    batcher.spill(self.batch_store, memory // 16 // len(out), memory // 32)
        return given.arrived - len(old), out

    def _group_by_new_partition(self, input: Input, events: Events) -> dict[int, Ints]:
        """Group the positions of events by the new partition of their keys."""
        high, _ = RowHasher(input.bound.key_schema, self.secret).identify_rows(events.rows)
        return group_positions(assign_partitions(high, self.start.partitions))

    def _split_operator(self, node: Collection, name: str, told: Columns | None) -> dict[int, OperatorRecord]:
        """Split the state of an operator by new partition.

        ``told``: the columns that decide the partition of a row; None if the row's identity decides it.
        """
        was = self.before.get(name)
        given, what = self._require_record("operators", name, self.old.of.operators.get(name))
        empty: RunningOperator = node.open(self._make_operator_context(node))
        if len(given.arrangements) != len(empty.arrangements):
            found = f"it has {len(given.arrangements)} arrangements, but a {node.verb} has {len(empty.arrangements)}"
            raise CorruptState(what, found, RESTORE_REMEDY)

        cast = cast_rows if was is None else partial(empty.cast_state_rows, was.open(self._make_operator_context(was)))

        def open_groups(of: Collection, number: int) -> Opened:
            made: RunningOperator = of.open(self._make_operator_context(of))
            return made.arrangements[number], made.hash_rows, made.identified

        def split_arrangement(number: int) -> dict[int, ArrangementRecord]:
            schema = empty.arrangements[number].schema
            keys = None if told is None else pa.schema([schema.field(each) for each in told])
            old: Callable[[], Opened] | None = None if was is None else partial(open_groups, was, number)
            record, where = given.arrangements[number], f"{what}, arrangements[{number}]"
            return self._split_versions(where, record, partial(open_groups, node, number), old, keys, cast)

        each = [split_arrangement(number) for number in range(len(empty.arrangements))]
        nothing = [drop_versions(next(iter(shares.values()))) for shares in each]
        return {
            to: OperatorRecord([shares.get(to, none) for shares, none in zip(each, nothing, strict=True)])
            for to in sorted({to for shares in each for to in shares})
        }

    def _make_operator_context(self, node: Collection) -> OperatorContext:
        return OperatorContext(self.secret, self.start.cut.flow.time_type, frozenset(node.schema.names))

    def _split_versions(
        self,
        what: str,
        given: ArrangementRecord,
        fresh: Callable[[], Opened],
        before: Callable[[], Opened] | None,
        keys: pa.Schema | None = None,
        cast: Cast = cast_rows,
    ) -> dict[int, ArrangementRecord]:
        """Split an arrangement into shares for the new partitions. Each share has one run or no run. O(bytes).

        - ``what``: the place of ``given``, for messages.
        - ``fresh``, ``before``: functions that open the new and the old arrangement; ``before`` is None if both have
          the same columns.
        - ``keys``: the columns that decide the partition of a version; None if the identity of its row decides it.
        - ``cast``: a function that makes new rows from old rows.
        """
        (old, hashed, was), (new, made, identified) = (before or fresh)(), fresh()
        restore_arrangement(
            old, given, what, self.batch_store, indexed=False, made=hashed, sieved=False, home=self.home
        )
        times = [(each if isinstance(each, Run) else each.output).description for each in old.on_disk.items]
        lower = min((each.lower for each in times), default=NEVER)
        upper = max((each.upper for each in times), default=NEVER)
        since = max([min(old.since, upper - 1), *(each.since for each in times)])
        shares = {to: _PartitionShareWriter(self, new.schema, old.since) for to in self.targets}
        moves = has_changed_identities(was, identified)
        source = self._rekey_versions(old, fresh()[0], made, cast) if moves else old
        recasts = before is not None and not moves
        most = WAITING if self.start.memory is None else self.start.memory // 4
        for picked, to in self._read_version_ranges(source, keys):
            for target, rows in group_positions(to).items():
                batch = picked.select_rows(rows).build_batch(source.slots, True)
                share = shares.setdefault(target, _PartitionShareWriter(self, new.schema, old.since))
                share.add_versions(cast_batch(batch, new.schema, made, False, cast) if recasts else batch)
            if sum(share.nbytes for share in shares.values()) > most:
                for share in shares.values():
                    share.write_file()
        return {to: share.make_record(old, BatchDescription(lower, upper, since)) for to, share in shares.items()}

    def _rekey_versions(self, old: Arrangement, out: Arrangement, made: Made, cast: Cast) -> Arrangement:
        """Store all row versions under the identities that their wider columns have.

        Each piece of the input becomes one run, and the runs are merged.
        """
        out.since = old.since
        self._limit_versions_per_read(old)
        for batch in cast_batches(old, out.schema, made, True, cast):
            if not len(batch):
                continue
            if self.home is None:
                part = out.slots.add_batch(batch)
            else:
                record, layout = encode_batch(batch)
                kept = self.home.write(record)
                part = out.slots.add_batch(decode_batch(kept.batch, layout))
                out.slots.files[part.slot] = WrittenBatch(kept, layout, batch.rows.schema.names)
            out.on_disk.append(Run(BatchDescription(NEVER, NEVER, NEVER), [part]))
        return out

    def _limit_versions_per_read(self, old: Arrangement) -> None:
        """Limit the number of row versions that one read returns, so that the versions fit in memory."""
        memory, batches = self.start.memory, old.slots.batches
        if memory is not None and batches:
            width = max(sum(batch.nbytes for batch in batches) // sum(map(len, batches)), 32)
            old.piece = min(old.piece, max(memory // 4 // (4 * width + 128), 4096))

    def _read_version_ranges(self, old: Arrangement, keys: pa.Schema | None) -> Iterator[tuple[PickedVersions, Narrow]]:
        """Yield the row versions to keep, and the new partition of each version.

        Each item is one range of identities, merged from all runs.
        """
        self._limit_versions_per_read(old)
        for parts in old.iterate_version_ranges():
            picked = pick_versions_by_sorting(old.slots, parts, old.since, not old.keeps)
            if old.lapse is not None and old.keeps:
                picked = picked.drop_rows(old.lapse.mark_useless_versions(picked, old.since, old.slots))
            if picked.high.size:
                words = picked.high if keys is None else self._hash_partition_keys(picked, old, keys)
                yield picked, assign_partitions(words, self.start.partitions)

    def _hash_partition_keys(self, picked: PickedVersions, old: Arrangement, keys: pa.Schema) -> Any:
        """Hash the columns ``keys`` of each row version, as uint64[m].

        A version that is a deletion can have a placeholder instead of a row. Therefore all versions of a key get the
        hash of a version that is not a deletion.
        """
        high, _ = compute_identities(
            gather_table(old.slots.pool, picked.references, keys), self.secret, picked.high.size
        )
        first = picked.first_of_keys
        of, live = np.cumsum(first) - 1, picked.live != 0
        decided = high[first]
        decided[of[live]] = high[live]
        return decided[of]


class _PartitionShareWriter:
    """A writer for the share of an arrangement that goes to one new partition.

    The share is one run, written file by file.
    """

    def __init__(self, task: _RewriteTask, schema: pa.Schema, since: int) -> None:
        self.task, self.schema, self.since = task, schema, since
        self.waiting, self.nbytes, self.versions = list[Batch](), 0, 0
        self.written: list[BatchRecord] = []
        self.keys = self.deleted = 0
        self.latest = NEVER

    def add_versions(self, batch: Batch) -> None:
        """Add the next row versions to the share. O(n), and O(unwritten versions) if they fill a file."""
        if self.waiting and self.nbytes + batch.nbytes > WAITING:
            self.write_file()
        self.waiting.append(batch)
        self.nbytes, self.versions = self.nbytes + batch.nbytes, self.versions + len(batch)
        last = mark_last_of_keys(batch.high, batch.low, batch.extra_identity_words)
        live = batch.live != 0
        keys = batch.value.view(np.int64).sum() if batch.summed else (live & last).sum()
        self.keys, self.deleted = self.keys + int(keys), self.deleted + int((~live & last).sum())
        self.latest = max(self.latest, int(batch.time.max()))
        if self.versions >= FILE:
            self.write_file()

    def write_file(self) -> None:
        """Write the collected row versions to a file. O(bytes)."""
        if not self.waiting:
            return
        batch, task = _join_batches(self.waiting, self.since), self.task
        self.waiting, self.nbytes, self.versions = [], 0, 0
        record, layout = encode_batch(batch)
        kept = task.batch_store.write_unmapped(record)
        task.held.append(kept)
        task.added.append(kept.blob)
        task.versions += len(batch)
        task.look(len(batch))
        self.written.append(BatchRecord(kept.blob, len(batch), None, layout, 0))

    def make_record(self, old: Arrangement, description: BatchDescription) -> ArrangementRecord:
        """Write the remaining row versions, and build the record for an inventory. O(files)."""
        self.write_file()
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


def drop_versions(given: ArrangementRecord) -> ArrangementRecord:
    """Return the record of an arrangement with all row versions removed. O(1)."""
    return replace(given, latest=NEVER, keys=0, tombstones=0, shapes=[], items=[])


def group_positions(to: Narrow) -> dict[int, Ints]:
    """Group the positions in ``to`` by value. Values and positions are ascending.

    O(n log n), and O(n) for values below 65,536.

    >>> group_positions(np.array([2, 0, 2], np.int32))
    {0: array([1]), 2: array([0, 2])}
    """
    order, starts = sort_by_group(to)
    return {int(to[rows[0]]): rows for rows in np.split(order, starts[1:])}


def _join_batches(batches: list[Batch], since: int) -> Batch:
    """Concatenate batches into one batch. The identities are ascending over all batches."""
    names = ("high", "low", "time", "live", "value", "order")
    columns: dict[str, Any] = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names}
    n, latest = columns["high"].size, int(columns["time"].max())
    if latest <= since:
        # If no time is after the frontier ``since``, all times become one time. An array of equal values takes no
        # space.
        columns["time"] = repeat_value(latest, n, np.int64)
    if columns["live"].all():
        columns["live"] = repeat_value(1, n, np.uint8)
    rows = to_batch(pa.Table.from_batches([to_batch(batch.rows.table) for batch in batches]))
    return Batch(**columns, rows=Rows(rows))


def _take_and_renumber_events(events: Events, rows: Ints, arrival: Ints) -> Events:
    """Select some events, and give them new arrival numbers."""
    times = events.times[rows]
    original = times if events.original is events.times else events.original[rows]
    return Events(events.rows.take(pa.array(rows)), times, original, arrival)
