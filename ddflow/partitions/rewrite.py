"""Rewrite a state into another version of the same epoch.

Tasks read the old partitions, convert the rows and write files. `rescale` and `evolve` define the target
(`RewriteTarget`). A task reads one old partition (`rewrite_task`), and `Rewrite.finish` publishes the result.
`BackfillPlan` uses the same steps to prepare the new parts of a plan, which the next epoch publishes.

Guarantees: the old version stays valid until the complete new version is published. Every row of an old partition goes
to exactly one new partition. A pending event goes to the partition of its key.
Limits: a rewrite writes rows only if partitions or columns change. For other changes, a rewrite writes only
inventories.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from typing import NamedTuple

from msgspec.structs import replace

from ddflow.columns.hashing import Secret
from ddflow.dataflow.budget import LEAST, MemoryBudget, parse_size
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Graph
from ddflow.dataflow.inflow import add_to_counts
from ddflow.engine.checkpoint import InputRecord, Inventory, OperatorRecord, StoredInventory, make_inventory
from ddflow.errors import CorruptState, DdflowError, Fenced, MissingReceipts, PlanChanged, SpecError, StateRefused
from ddflow.metrics import Look
from ddflow.partitions.epoch_start import Backfill, RewriteStart, StateVersion
from ddflow.partitions.receipt import RewriteTaskResult, split_inventories_by_stage
from ddflow.partitions.rewrite_task import NOTHING, build_inventory, run_task
from ddflow.partitions.stages import Stages, compute_placements
from ddflow.plan.compatibility import PlanChange, resolve_plan
from ddflow.plan.evolve import evolve_plan
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import compute_node_ids, describe_plan, fingerprint_plan
from ddflow.storage.fields import encode_record
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.manifest import Manifest, load_newest_manifest
from ddflow.storage.manifest_log import ManifestLog
from ddflow.storage.opening import State, Trust, open_existing_store
from ddflow.storage.protocol import Blob, Store
from ddflow.terminal import format_size
from ddflow.time import NEVER
from ddflow.trace.records import ArrangementRecord, MergeRecord, RunRecord


class RewriteTarget(NamedTuple):
    """The target of a rewrite: the properties of the new version.

    - ``cut``: the stages of the new plan.
    - ``partitions``: the new number of partitions.
    - ``note``: the note in the manifest of the new version.
    - ``cast``: the old plan, if columns change.
    - ``new``: empty records for the operators and inputs that the state may lack; None if the plan has the same
      operators and inputs.
    - ``moves``: whether the new plan puts rows into other partitions.
    - ``revise``: a function that changes the remaining fields of the manifest, and adds the files that it writes to a
      list.
    """

    cut: Stages
    partitions: int
    note: str = ""
    cast: Plan | None = None
    new: Inventory | None = None
    moves: bool = True
    revise: Callable[[Manifest, list[Blob]], Manifest] = lambda manifest, written: manifest

    def is_different_from(self, manifest: Manifest) -> bool:
        """Return whether the target differs from the version that a manifest describes."""
        return self.partitions != manifest.partitions or self.cast is not None or self.new is not None


FindNewState = Callable[[Store, Manifest], RewriteTarget]
"""A function that returns the target for a version of a state. The function may raise `SpecError` and `PlanChanged`."""


class RewriteResult(NamedTuple):
    """The result of a rewrite.

    - ``epoch``, ``manifest``: the epoch number and the manifest number of the newest version.
    - ``before``, ``partitions``: the old and the new number of partitions on each stage.
    - ``stages``: the number of stages.
    - ``versions``, ``pending``: the number of rewritten row versions and pending events.
    - ``files``, ``bytes``: the number of written files and their size; 0 if the state needed no change.
    """

    epoch: int
    manifest: int
    before: int
    partitions: int
    stages: int
    versions: int
    pending: int
    files: int
    bytes: int


class Rewrite:
    """An object that performs one rewrite of a state.

    Call `open`, run `rewrite_task.run_task` for each item of ``tasks`` on any host, collect the results in ``made``,
    and call `finish`. A task may run more than once.

    - ``start``: the values that all tasks start from.
    - ``tasks``: stage and number of each old partition; empty if no rows must be rewritten.
    - ``written``: the files that this process has written.
    - ``publishing``: whether a new version may exist.

    >>> from ddflow.partitions.rescale import plan_rescale
    >>> from ddflow.storage.memory import MemoryStore
    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     _ = engine.step({"people": [{"id": 1}, {"id": 2}]})
    >>> with Rewrite.open(store.reopen(), plan_rescale(2)) as rewrite:
    ...     rewrite.run_tasks()
    ...     done = rewrite.finish()
    >>> rewrite.tasks, done.partitions, done.versions
    ([(0, 0)], 2, 2)
    """

    def __init__(self, store: Store, manifest: Manifest, target: RewriteTarget, trust: str, memory: int | None) -> None:
        self.store, self.manifest, self.target = store, manifest, target
        self.made, self.written, self.publishing = list[RewriteTaskResult](), list[Blob](), False
        cut, given, many = target.cut, manifest.inventories, manifest.partitions
        inventories: dict[tuple[int, int], tuple[Blob, ...]] = {}
        horizons, greatest = dict(manifest.horizons), dict(manifest.greatest)
        if given and target.moves and target.is_different_from(manifest):
            by_stage = split_inventories_by_stage(store.where, given, cut.stages, many) if target.new is None else ()
            for stage, number in product(range(cut.stages), range(many)):
                inventories[stage, number] = (by_stage[stage][number],) if by_stage else given[number::many]
            # The inventory of a local engine also holds values that all new partitions need.
            for name, each in StoredInventory.read(store, given[0]).of.inputs.items() if many == 1 else ():
                greatest[name] = max(greatest.get(name, NEVER), each.greatest)
                if each.horizon is not None:
                    horizons[name] = max(horizons.get(name, NEVER), each.horizon)
        self.tasks = [*inventories]
        self.start = RewriteStart(
            cut=cut,
            version=StateVersion.of_manifest(store, manifest, trust),
            secret=manifest.secret,
            before=many,
            partitions=target.partitions,
            inventories=inventories,
            horizons=horizons,
            greatest=greatest,
            cast=target.cast,
            new=target.new or NOTHING,
            memory=memory,
        )

    @classmethod
    @contextmanager
    def open(
        cls,
        state: State,
        find_new_state: FindNewState,
        *,
        verb: str = "rescale",
        trust: Trust = "owner",
        memory: str | int | None = None,
    ) -> Iterator[Rewrite]:
        """Open a state for a rewrite. `open` itself writes nothing. O(manifests).

        If the state has one partition, `open` also reads its inventory. If the ``with`` block fails before a new
        version can exist, all written files are deleted. ``verb``: the purpose, for messages. ``memory``: the most
        memory that a task may use. Raises `SpecError` for too little memory, `StateRefused` if there is no state, and
        the errors of ``find_new_state`` and the store.
        """
        size = parse_size(memory)
        if size is not None and size < LEAST:
            raise SpecError(
                f"memory={format_size(size)}", "that is too small to work in", f"use {format_size(LEAST)} or more"
            )
        with open_existing_store(state, trust=trust, readonly=False) as store:
            manifest = load_newest_manifest(store)
            if manifest is None:
                raise StateRefused(f"{verb} {store.where}", "there is no state", "create one with flow.open")
            rewrite = cls(store, manifest, find_new_state(store, manifest), trust, size)
            try:
                yield rewrite
            except BaseException as error:
                if not rewrite.publishing or isinstance(error, Fenced):
                    rewrite.delete_written_files()
                raise

    def run_tasks(self, look: Look = lambda rows: None) -> None:
        """Run all tasks in this process.  O(bytes of the state), if there are tasks.  ``look``: as in `run_task`."""
        for stage, number in self.tasks:
            self.made.append(run_task(self.start, stage, number, self.store, look))

    def finish(self) -> RewriteResult:
        """Publish the results of the tasks as another version of the same epoch. O(partitions + files).

        Raises `MissingReceipts` if a task is missing, `CorruptState` if a file is missing, `Fenced` if another writer
        has committed in the meantime, and the errors of `ManifestLog.commit`.
        """
        manifest, target, taken = self.manifest, self.target, self._collect_results()
        done = RewriteResult(
            manifest.epoch,
            manifest.number,
            manifest.partitions,
            target.partitions,
            target.cut.stages,
            sum(each.versions for each in taken),
            sum(each.pending for each in taken),
            0,
            0,
        )
        if not target.is_different_from(manifest):
            return done
        self._check_files(taken)
        new = replace(
            manifest,
            partitions=target.partitions,
            inventories=self.write_inventories(),
            horizons=self.start.horizons,
            greatest=self.start.greatest,
        )
        log = ManifestLog(self.store, manifest, set())  # this log deletes nothing, so it needs no file names
        log.check_still_newest()
        new = target.revise(new, self.written)
        self.publishing = True
        number = log.commit(new, new.inventories, set(), target.note).number
        files = [*self.written, *(blob for each in taken for blob in each.added)]
        return done._replace(manifest=number, files=len(files), bytes=sum(blob.length for blob in files))

    def _collect_results(self) -> list[RewriteTaskResult]:
        """Return one result for each task.  Raises `MissingReceipts` if a task has no result."""
        by = {(each.stage, each.number): each for each in self.made}
        if missing := [each for each in self.tasks if each not in by]:
            raise MissingReceipts(
                f"rescale {self.store.where}",
                f"{len(missing)} of {len(self.tasks)} tasks returned "
                f"no result, first those of (stage, partition) {missing[:3]}",
                "run them again, and pass the results of all tasks",
            )
        return [by[each] for each in self.tasks]

    def _check_files(self, taken: Sequence[RewriteTaskResult]) -> None:
        """Raise `CorruptState` unless all files exist with the lengths that their tasks reported."""
        files = {blob: each for each in taken for blob in each.added}
        there = self.store.find_blob_sizes([blob.name for blob in files])
        for blob, each in files.items():
            if (size := there.get(blob.name)) != blob.length:
                found = "it is missing" if size is None else f"it has {size:,} bytes"
                raise CorruptState(
                    f"the file {blob.name} of {self.store.where}",
                    f"{found}, but the task of stage {each.stage} and partition {each.number} wrote {blob.length:,}",
                    "run tasks with the same folder or bucket as this process, and rescale again",
                )

    def write_inventories(self) -> tuple[Blob, ...]:
        """Write the inventories of the new partitions, stage by stage. O(files).

        If rows move into one partition, the method writes one inventory for all stages, like a local engine.
        """
        if not self.tasks:
            return self._write_unmoved_inventories()
        shares = defaultdict[tuple[int, int], list[Inventory]](list)
        for each in self._collect_results():
            for share in each.shares:
                shares[0 if self.target.partitions == 1 else each.stage, share.to].append(share.inventory)
        return tuple(self._write_inventory(join_inventories(shares[part])) for part in sorted(shares))

    def _write_unmoved_inventories(self) -> tuple[Blob, ...]:
        """Write inventories that list existing files. Reuse the inventories that do not change."""
        cut, given, many, parts = self.target.cut, self.manifest.inventories, self.manifest.partitions, list[Blob]()
        old = [StoredInventory.read(self.store, each).of for each in given]
        for stage, number in product(range(cut.stages if old else 0), range(many)):
            inventory, at = build_inventory(cut, stage, old[number::many], self.start.new), stage * many + number
            stays = len(old) == cut.stages * many and inventory == old[at]
            parts.append(given[at] if stays else self._write_inventory(inventory))
        return tuple(parts)

    def _write_inventory(self, inventory: Inventory) -> Blob:
        data = encode_record(inventory)
        self.written.append(self.store.put("json", data))
        return self.written[-1]

    def delete_written_files(self) -> None:
        """Delete all files that this rewrite has written. No version of the state uses these files. O(files).

        The method ignores errors, because remaining files are only garbage.
        """
        for blob in (*self.written, *(blob for each in self.made for blob in each.added)):
            with suppress(DdflowError):
                self.store.delete(blob.name)


def join_inventories(shares: Sequence[Inventory]) -> Inventory:
    """Join the shares of a new partition into one inventory.  O(files)."""
    totals: dict[str, int] = {}
    inputs, operators = defaultdict[str, list[InputRecord]](list), defaultdict[str, list[OperatorRecord]](list)
    for each in shares:
        add_to_counts(totals, each.totals)
        for name, input in each.inputs.items():
            inputs[name].append(input)
        for name, operator in each.operators.items():
            operators[name].append(operator)
    return Inventory(
        {name: _join_input_records(given) for name, given in inputs.items()},
        {
            name: OperatorRecord(
                [*map(_join_arrangement_records, zip(*(each.arrangements for each in given), strict=True))]
            )
            for name, given in operators.items()
        },
        totals,
    )


def _join_input_records(given: Sequence[InputRecord]) -> InputRecord:
    return replace(
        given[0],
        arrived=sum(each.arrived for each in given),
        rows=_join_arrangement_records([each.rows for each in given]),
        runs=[run for each in given for run in each.runs],
    )


def _join_arrangement_records(given: Sequence[ArrangementRecord]) -> ArrangementRecord:
    """Combine the records of one arrangement from all shares.

    Each share has at most one run, and all runs have the same columns.
    """
    runs = [run for each in given for run in each.runs]
    assert len(runs) <= len(given), "a task leaves no merge half done"
    return ArrangementRecord(
        since=max(each.since for each in given),
        upper=max(each.upper for each in given),
        latest=max(each.latest for each in given),
        keys=sum(each.keys for each in given),
        tombstones=sum(each.tombstones for each in given),
        lapsed=0,
        shapes=next((each.shapes for each in given if each.shapes), []),
        items=[*runs] if len(runs) < 2 else [build_merge_record(runs)],
    )


def build_merge_record(runs: Sequence[RunRecord]) -> MergeRecord:
    """Build the record of a merge that has not begun yet, for input runs that have no keys in common. O(runs).

    The inputs of a merge must cover consecutive spans of time. Therefore the first input run gets the whole span of
    time, and each further run gets an empty span.

    >>> run = RunRecord(lower=0, upper=7, since=3, begin=0, batches=[])
    >>> merge = build_merge_record([run, RunRecord(lower=2, upper=5, since=4, begin=0, batches=[])])
    >>> [(each.lower, each.upper) for each in (merge.output, *merge.inputs)], merge.output.since
    ([(0, 7), (0, 7), (7, 7)], 4)
    """
    lower, upper = min(each.lower for each in runs), max(each.upper for each in runs)
    since = max(each.since for each in runs)
    first = replace(runs[0], lower=lower, upper=upper, since=since)
    others = [replace(each, lower=upper, upper=upper, since=since) for each in runs[1:]]
    return MergeRecord([first, *others], RunRecord(lower, upper, since, 0, []), whole=True, first=0, credit=0)


def require_same_plan(manifest: Manifest, flow: Plan | None, where: str, verb: str) -> Plan:
    """Return the plan of a state. If ``flow`` is given, check that ``flow`` equals this plan. O(plan).

    ``flow``: the plan that the user passed, or None. ``verb``: the purpose, for messages. Raises `PlanChanged` for
    another plan, and the errors of `resolve_plan`.
    """
    plan = resolve_plan(manifest.plan, flow, where)
    if flow is not None and fingerprint_plan(describe_plan(plan)) != manifest.fingerprint:
        raise PlanChanged(
            f"{verb} {where} with this plan",
            "it has parts that the plan of the state lacks",
            "run a step with it first, or pass the plan of the state",
        )
    return plan


def drop_from_plan(plan: Plan, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[Plan, bool]:
    """Return the plan without some inputs and outputs, and whether the removal moves rows to other partitions.

    O(nodes).
    """
    schemas = {name: input.bound.schema for name, input in plan.inputs.items() if name not in inputs}
    smaller, nodes = evolve_plan(plan, schemas, only=plan.outputs.keys() - {*outputs})
    before, now = compute_placements(plan), compute_placements(smaller)
    return smaller, any(before[old].by != now[new].by for old, new in nodes.items() if new.keeps)


class BackfillPlan:
    """The new parts of a plan, which tasks fill from the rows of the state.

    ``cut``: the stages of the new plan. ``change``: the parts that the state lacks. ``log``: the manifests of the
    state. ``new``: the parts that tasks must fill. Raises `CorruptState`. Also raises `PlanChanged` if a new part
    needs rows that the state does not keep.

    >>> import ddflow as dd
    >>> from ddflow.partitions.stages import cut_stages
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> people = flow.output("people", flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id")))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     _ = engine.step({"people": [{"id": 1, "city": "Bern"}]})
    >>> _ = flow.output("by_city", people.count("city"))
    >>> change = PlanChange(outputs=["by_city"])
    >>> backfill = BackfillPlan(cut_stages(flow), change, ManifestLog(store.reopen(), load_newest_manifest(store),
    ...     set()))
    >>> backfill.new.outputs, len(backfill.new.operators), len(backfill.write_inventories("owner", None))
    (('by_city',), 1, 2)
    """

    def __init__(self, cut: Stages, change: PlanChange, log: ManifestLog) -> None:
        self.change, self.store, self.manifest = change, log.store, log.manifest
        flow, many = cut.flow, log.manifest.partitions
        graph = Graph(flow, Secret(*log.manifest.secret))
        marks, known = graph.horizons.marks, (log.manifest.greatest, log.manifest.horizons)
        graph.horizons.set_extents({name: mark.read_extent(*known, fresh=False) for name, mark in marks.items()})
        old = [StoredInventory.read(log.store, each).of for each in log.manifest.inventories]
        empty = make_inventory(Dataflow(flow, graph, MemoryBudget(None, None)), BatchStore(log.store))
        there = {name for each in old for name in each.operators}
        self.new = Backfill(tuple(change.outputs), tuple(name for name in empty.operators if name not in there))
        self._check_rows_retained(graph, {name for each in old for name, found in each.inputs.items() if found.arrived})
        _, moves = drop_from_plan(flow, change.inputs, change.outputs)
        self.target = RewriteTarget(cut, many, new=empty, moves=moves and many > 1)

    def _check_rows_retained(self, graph: Graph, fed: set[str]) -> None:
        """Raise `PlanChanged` if a new part of the plan needs rows that the state does not keep.

        ``fed``: the names of inputs that have had events.
        """
        for name in self.new.outputs:
            if lost := fed.intersection(graph.list_stateless_inputs(graph.plan.outputs[name])):
                raise graph.make_missing_state_error(f"output {name!r}", sorted(lost))
        for node, name in compute_node_ids(graph.plan).items():
            if name in self.new.operators and (lost := fed.intersection(graph.list_stateless_inputs(*node.inputs))):
                raise graph.make_missing_state_error(f"{node.verb}({', '.join(node.schema.names)})", sorted(lost))

    def write_inventories(self, trust: Trust, memory: int | None) -> tuple[Blob, ...]:
        """Write the inventories that tasks start from, stage by stage.

        O(files), and O(bytes) if rows must move to other partitions. ``memory``: the most memory to use. Raises
        `StorageFull`, `StorageFailed`.
        """
        rewrite = Rewrite(self.store, self.manifest, self.target, trust, memory)
        rewrite.run_tasks()
        return rewrite.write_inventories()
