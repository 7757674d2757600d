"""Rescale a state of P partitions to Q, split or joined, without any change of its answers.

Guarantees: the old state stays valid until the new one is published as a whole. Every row of an old partition goes to
exactly one new one, and pending events go with their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from ddflow.dataflow.budget import LEAST, parse_size, shown_size
from ddflow.dataflow.inflow import add
from ddflow.engine.checkpoint import InputRecord, Inventory, OperatorRecord, StoredInventory
from ddflow.errors import CorruptState, DdflowError, Fenced, MissingReceipts, PlanChanged, SpecError, StateRefused
from ddflow.metrics import Look
from ddflow.partitions.epoch_start import EpochStart
from ddflow.partitions.live_files import by_level
from ddflow.partitions.rescale_rows import Move
from ddflow.partitions.rescale_task import Moved, task
from ddflow.partitions.stages import Stages, cut, uncut
from ddflow.plan.compatibility import plan_of
from ddflow.plan.evolve import carried
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import describe, fingerprint
from ddflow.storage.fields import encoded
from ddflow.storage.folder.disk import FileWriter
from ddflow.storage.inventory_text import names_inside
from ddflow.storage.manifest import PARTITIONS, Manifest, newest
from ddflow.storage.manifest_log import ManifestLog, digest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.opening import State, Trust, opened_store
from ddflow.storage.protocol import Blob, Store
from ddflow.time import NEVER
from ddflow.trace.records import ArrangementRecord, MergeRecord, RunRecord


def joined(shares: Sequence[Inventory]) -> Inventory:
    """Join shares into one inventory.  O(files)."""
    totals: dict[str, int] = {}
    for each in shares:
        add(totals, each.totals)
    inputs = {name: _input([each.inputs[name] for each in shares if name in each.inputs]) for name in _names(shares, 0)}
    operators = {
        name: _operator([each.operators[name] for each in shares if name in each.operators])
        for name in _names(shares, 1)
    }
    return Inventory(inputs, operators, totals)


def _names(shares: Iterable[Inventory], kind: int) -> list[str]:
    return list(dict.fromkeys(name for each in shares for name in ((each.inputs, each.operators)[kind])))


def _input(given: Sequence[InputRecord]) -> InputRecord:
    return replace(
        given[0],
        arrived=sum(each.arrived for each in given),
        rows=_arrangement([each.rows for each in given]),
        runs=[run for each in given for run in each.runs],
    )


def _operator(given: Sequence[OperatorRecord]) -> OperatorRecord:
    return OperatorRecord(
        [_arrangement(list(each)) for each in zip(*(each.arrangements for each in given), strict=True)]
    )


def _arrangement(given: Sequence[ArrangementRecord]) -> ArrangementRecord:
    """Join the runs of one arrangement from all shares.  Each has one run, of the same shape, or none."""
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
        items=[*runs] if len(runs) < 2 else [merged(runs)],
    )


def merged(runs: Sequence[RunRecord]) -> MergeRecord:
    """Build a merge, not yet begun, of runs without a common key.

    Inputs follow each other in time, so the first covers all times, and the others none.  O(runs).

    >>> run = RunRecord(lower=0, upper=7, since=3, begin=0, batches=[])
    >>> merge = merged([run, RunRecord(lower=2, upper=5, since=4, begin=0, batches=[])])
    >>> [(each.lower, each.upper) for each in (merge.output, *merge.inputs)], merge.output.since
    ([(0, 7), (0, 7), (7, 7)], 4)
    """
    lower, upper = min(each.lower for each in runs), max(each.upper for each in runs)
    since = max(each.since for each in runs)
    first = replace(runs[0], lower=lower, upper=upper, since=since)
    others = [replace(each, lower=upper, upper=upper, since=since) for each in runs[1:]]
    return MergeRecord([first, *others], RunRecord(lower, upper, since, 0, []), whole=True, first=0, credit=0)


Plans = Callable[[Manifest, str], tuple[Plan, Plan | None]]
"""Gives, for a version and where it is, the plan that it shall have, and the one before."""


class Rescaled(NamedTuple):
    """The result of a rescaling.  ``epoch``, ``manifest``: of the newest version.  ``before``, ``partitions``: how many
    there were and are, on each of so many ``stages``.  ``versions``, ``pending``: rows and events that were moved.
    ``files``, ``bytes``: written; none where there were as many partitions already."""

    epoch: int
    manifest: int
    before: int
    partitions: int
    stages: int
    versions: int
    pending: int
    files: int
    bytes: int


class Rescaler:
    """A rescaling under way: `open`, run `rescale_task.task` for each of ``tasks`` anywhere, any number of times,
    `finish`.

    ``cut``: of the state's flow.  ``move``: what tasks start from.  ``tasks``: (stage, number) of each old partition;
    none where there is nothing to be done.  ``made``: what they have told.  ``written``: the new inventories.
    ``publishing``: whether a new version may be there.
    """

    def __init__(self, store: Store, manifest_log: ManifestLog, cut: Stages, move: Move) -> None:
        self.store, self.manifest_log, self.cut, self.move, self.made = store, manifest_log, cut, move, list[Moved]()
        self.written = list[Blob]()
        changes = move.start.partitions != move.partitions or move.before is not None
        there = changes and bool(manifest_log.manifest.inventories)
        stages = range(cut.stages if there else 0)
        self.tasks = [(stage, number) for stage in stages for number in range(move.start.partitions)]
        self.publishing = False

    @classmethod
    @contextmanager
    def open(
        cls,
        state: State,
        partitions: int | None,
        *,
        flow: Plan | None = None,
        trust: Trust = "owner",
        memory: str | int | None = None,
        plans: Plans | None = None,
    ) -> Iterator[Rescaler]:
        """Open a state for rescaling; nothing is written there.  O(manifests), and the inventory of a state of one
        partition.

        Deletes the files in ``made`` if the block fails before a new version can exist.
        ``partitions``: None for as many as there are.  ``flow``: its plan, if the state's plan has functions.
        ``memory``: what a task may take.  ``plans``: gives the plan that the state shall have, and the one before if
        it has other columns; by default the plan stays.  Raises `SpecError` for a number that cannot be;
        `StateRefused`, `PlanChanged`, `CorruptState`, and what the store raises.
        """
        whole = isinstance(partitions, int) and not isinstance(partitions, bool)
        given = partitions is not None or plans is None
        if given and not (whole and 0 < (partitions or 0) <= PARTITIONS):
            raise SpecError(
                f"rescale to {partitions!r} partitions",
                "that is no number of them",
                f"give one from 1 to {PARTITIONS:,}",
            )
        size = parse_size(memory)
        if size is not None and size < LEAST:
            raise SpecError(
                f"memory={shown_size(size)}", "that is too small to work in", f"give {shown_size(LEAST)} or more"
            )
        with opened_store(state, trust=trust, readonly=False) as store:
            manifest = newest(store)
            if manifest is None:
                raise StateRefused(f"rescale {store.where}", "there is no state", "make one with flow.open")
            now, before = (
                (same_plan(manifest, flow, store.where), None) if plans is None else plans(manifest, store.where)
            )
            number = partitions or manifest.partitions
            manifest_log = ManifestLog(store, manifest, set())
            plan = uncut(now) if plans is not None and manifest.partitions == number == 1 else cut(now)
            move = moving(store, manifest, plan, number, trust, size)
            rescaler = cls(store, manifest_log, plan, move._replace(before=before))
            try:
                yield rescaler
            except BaseException:
                if not rescaler.publishing:
                    rescaler.forget(rescaler.made)
                raise

    def finish(self, made: Iterable[Moved]) -> Rescaled:
        """Publish what the tasks made, one of each, as another version of the same epoch.  O(partitions + files).

        Raises `MissingReceipts` if one is missing, `CorruptState` if a file of one is missing, `Fenced` when
        another writer has committed meanwhile, and what `ManifestLog.commit` raises.
        """
        manifest, move = self.manifest_log.manifest, self.move
        by = {(each.stage, each.number): each for each in made}
        if missing := [each for each in self.tasks if each not in by]:
            raise MissingReceipts(
                f"rescale {self.store.where}",
                f"{len(missing)} of {len(self.tasks)} tasks told "
                f"nothing, first those of (stage, partition) {missing[:3]}",
                "run them again, and give what all of them told",
            )
        taken = [by[each] for each in self.tasks]
        figures = Rescaled(
            manifest.epoch,
            manifest.number,
            manifest.partitions,
            move.partitions,
            self.cut.stages,
            sum(each.versions for each in taken),
            sum(each.pending for each in taken),
            0,
            0,
        )
        if manifest.partitions == move.partitions and move.before is None:
            return figures
        self._look(taken)
        names = {blob.name for each in taken for blob in each.added} | names_inside(manifest.outputs())
        new = replace(manifest, partitions=move.partitions, horizons=move.horizons, greatest=move.greatest)
        note = f"rescale {manifest.partitions} -> {move.partitions}"
        if move.before is not None:
            plan, note = describe(self.cut.flow), "evolution"
            past = carried(manifest.past, move.before, manifest.epoch, manifest.oldest)
            added = _find_added_columns(manifest, move.before, self.cut.flow)
            new = replace(new, plan=plan, fingerprint=fingerprint(plan), past=past, added=added)
        parts = self.parts(taken)
        try:
            self.manifest_log.check_newest()
            self.publishing = True
            done = self.manifest_log.commit(new, tuple(parts), names, note)
        except Fenced:
            self.forget(taken)
            raise
        files = [*parts, *(blob for each in taken for blob in each.added)]
        return figures._replace(manifest=done.number, files=len(files), bytes=sum(blob.length for blob in files))

    def _look(self, taken: list[Moved]) -> None:
        """Raise `CorruptState` unless all files exist, with the lengths that their tasks reported."""
        files = {blob: each for each in taken for blob in each.added}
        there = self.store.sizes([blob.name for blob in files])
        for blob, each in files.items():
            if there.get(blob.name) != blob.length:
                raise CorruptState(
                    f"the file {blob.name} of {self.store.where}",
                    f"it has {there.get(blob.name)} bytes, the task of stage {each.stage} and partition "
                    f"{each.number} wrote {blob.length:,}",
                    "give tasks the place that this process has, and rescale again",
                )

    def parts(self, taken: list[Moved]) -> list[Blob]:
        """Write the inventories of the new partitions, stage by stage; writes one for all stages of one partition, as a
        local engine does.  O(files)."""
        shares: dict[tuple[int, int], list[Inventory]] = {}
        for each in taken:
            for share in each.shares:
                stage = 0 if self.move.partitions == 1 else each.stage
                shares.setdefault((stage, share.to), []).append(share.inventory)
        for _, given in sorted(shares.items(), key=lambda item: item[0]):
            self.written.append(self.store.put("json", partial(_write, encoded(joined(given)))))
        return self.written

    def forget(self, made: Iterable[Moved]) -> None:
        """Delete files of tasks, which no version names.  Never fails: what stays is garbage.  O(files)."""
        for blob in (*self.written, *(blob for each in made for blob in each.added)):
            with suppress(DdflowError):
                self.store.delete(blob.name)


def rescale(
    state: State,
    partitions: int,
    *,
    flow: Plan | None = None,
    trust: Trust = "owner",
    memory: str | int | None = None,
    look: Look = lambda rows: None,
) -> Rescaled:
    """Split or join a state's partitions, all in this process.  O(bytes of the state).

    ``look``: for progress, called with the number of rows written since its last call.  The rest as in
    `Rescaler.open`.  Raises what that raises, what `Rescaler.finish` does, and `StorageFull` and `StorageFailed`: it
    did not happen.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    >>> _ = flow.output("by_city", people.count("city"))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1, 2, 3], "city": ["Bern", "Bern", "Rome"]})}, time=1)
    >>> done = [rescale(store.writer(), partitions) for partitions in (8, 3, 1)]
    >>> [(each.before, each.partitions, each.stages, each.versions) for each in done]
    [(1, 8, 2, 5), (8, 3, 2, 5), (3, 1, 2, 5)]
    >>> with flow.open(store.writer()) as engine:
    ...     step = engine.step({"people": pa.table({"id": [1], "city": ["Rome"]})}, time=2)
    ...     engine.epoch, sorted((row["city"], row["count"]) for row in engine.read("by_city").to_pylist())
    (2, [('Bern', 1), ('Rome', 2)])
    """
    with Rescaler.open(state, partitions, flow=flow, trust=trust, memory=memory) as rescaler:
        for stage, number in rescaler.tasks:
            rescaler.made.append(task(rescaler.cut, rescaler.move, stage, number, rescaler.store, look))
        return rescaler.finish(rescaler.made)


def _find_added_columns(manifest: Manifest, before: Plan, after: Plan) -> dict[str, tuple[str, ...]]:
    """Return, by input, the columns that a flow need not declare: undeclared ones so far, and new ones."""
    added = dict(manifest.added)
    for name, input in before.inputs.items():
        was, now = input.bound.schema.names, after.inputs[name].bound.schema.names
        added[name] = (*added.get(name, ()), *(column for column in now if column not in was))
    return {name: columns for name, columns in added.items() if columns}


def _write(data: bytes, sink: FileWriter) -> None:
    sink.write(data)


def same_plan(manifest: Manifest, flow: Plan | None, where: str, verb: str = "rescale") -> Plan:
    """Return the plan that a state was made by: the given ``flow`` if there is one.

    ``verb``: its purpose, for messages.  O(plan).  Raises `PlanChanged` for another one, and what `plan_of` raises.
    """
    plan = plan_of(manifest.plan, flow, where)
    if flow is not None and fingerprint(describe(plan)) != manifest.fingerprint:
        raise PlanChanged(
            f"{verb} {where} with this plan",
            "it has more than the one that the state was made by",
            "take a step with it first, or give the plan before",
        )
    return plan


def moving(store: Store, manifest: Manifest, plan: Stages, partitions: int, trust: str, memory: int | None) -> Move:
    """Build the start of a version's tasks.  O(bytes of the inventory of a state of one partition)."""
    start = EpochStart(
        store=store if isinstance(store, MemoryStore) else store.where,
        trust=trust,
        number=manifest.number,
        digest=digest(store.manifest(manifest.number)),
        epoch=manifest.epoch,
        partitions=manifest.partitions,
        secret=manifest.secret,
        frontier=manifest.frontier,
        last=manifest.last,
        since=manifest.since,
        time=manifest.last,
        to=manifest.frontier,
        horizons={},
        inventories=by_level(store.where, manifest.inventories, plan.stages, manifest.partitions),
        folder=manifest.folder,
        retain=0,
        memory=memory,
    )
    horizons, greatest = dict(manifest.horizons), dict(manifest.greatest)
    if manifest.partitions == 1 and start.inventories:
        for name, each in StoredInventory.read(store, start.inventories[0][0]).of.inputs.items():
            greatest[name] = max(greatest.get(name, NEVER), each.greatest)
            if each.horizon is not None:
                horizons[name] = max(horizons.get(name, NEVER), each.horizon)
    return Move(start, partitions, horizons, greatest)
