"""Dropping: outputs are taken out of a state, with all that only they needed.

Invariant: either there is a new version of the same epoch that says of every other output what the one before said, at
every time that can be read, or nothing has changed. Rows stay in the files that they are in: a version without an
output names fewer. So inventories are written again without the operators that no other output is made of, and the
receipts that may be given again, those of the backlog included, without the output's files. Where an operator was
partitioned for a collection that goes, another plan partitions it otherwise, and only then is the state rewritten, as a
rescaling does. Inputs stay, whether an output is made of them or not: what came in is counted over all of them, and
they have side outputs and sources of their own. An output with a sink is not dropped.

>>> import pyarrow as pa, ddflow as dd
>>> from ddflow.storage.memory import MemoryStore
>>> flow = dd.Flow()
>>> people = flow.output("people", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")))
>>> _ = flow.output("by_city", people.count("city"))
>>> with flow.open(store := MemoryStore()) as engine:
...     _ = engine.step({"people": pa.table({"id": [1], "city": ["Bern"]})}, time=1)
>>> done = drop_outputs(store.writer(), ["by_city"])
>>> done.outputs, done.unused, done.freed > 0
(('by_city',), (), True)
>>> with dd.Snapshot.open(store) as snapshot:
...     list(snapshot.flow.outputs), snapshot.epoch
(['people'], 1)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from shlex import quote
from typing import NamedTuple

from msgspec.structs import replace

from ddflow.columns.names import did_you_mean
from ddflow.dataflow.budget import parse_size
from ddflow.dataflow.inflow import add
from ddflow.engine.garbage import blobs_of
from ddflow.engine.inventory import Inventory, StoredInventory
from ddflow.engine.outputs import Outputs
from ddflow.errors import DdflowError, Fenced, SpecError, StateRefused
from ddflow.metrics import Look
from ddflow.partitions.rescale import Rescaler, moving, same_plan
from ddflow.partitions.rescale_task import task
from ddflow.partitions.stages import Stages, cut, placed, uncut
from ddflow.plan.codec import behind, describe, fingerprint, node_ids
from ddflow.plan.evolve import evolved
from ddflow.plan.input import Input
from ddflow.plan.plan import Plan
from ddflow.storage.backlog import Backlog
from ddflow.storage.epochs import Epoch
from ddflow.storage.fields import encoded
from ddflow.storage.manifest import Manifest, newest
from ddflow.storage.manifest_log import ManifestLog
from ddflow.storage.naming import inside
from ddflow.storage.opening import State, Trust, opened_store
from ddflow.storage.protocol import Blob, Store


class Dropped(NamedTuple):
    """What was done.  ``epoch``, ``manifest``: of the newest version.  ``outputs``: that are gone.  ``unused``: the
    inputs that no output is made of any more.  ``versions``, ``pending``: rows and waiting events that were rewritten.
    ``files``, ``bytes``: written.  ``freed``: the bytes of the files that only versions before name."""

    epoch: int
    manifest: int
    outputs: tuple[str, ...]
    unused: tuple[str, ...]
    versions: int
    pending: int
    files: int
    bytes: int
    freed: int


def drop_outputs(
    state: State,
    names: Sequence[str],
    *,
    flow: Plan | None = None,
    trust: Trust = "owner",
    memory: str | int | None = None,
    look: Look = lambda rows: None,
) -> Dropped:
    """Take outputs out of a state.  O(files + receipts kept); O(bytes) where an operator is partitioned otherwise.

    ``flow``: the state's plan, with these outputs, where it has functions.  The rest as of `ddflow.evolve`.  Raises
    `SpecError` for a name that is no output, for the last one, and for one that has a sink; `PlanChanged` for another
    plan; `Fenced` when another writer has committed meanwhile; what opening a state and a commit raise.
    """
    with opened_store(state, trust=trust, readonly=False) as store:
        manifest = newest(store)
        if manifest is None:
            raise StateRefused(f"drop outputs of {store.where}", "there is no state", "make one with flow.open")
        plan = same_plan(manifest, flow, store.where, "drop outputs of")
        _check(plan, names, manifest, store.where)
        dropping = _Dropping(store, manifest, plan, set(names))
        with dropping.forgotten():
            moved = dropping.inventories(trust, parse_size(memory), look)
            return dropping.publish(dropping.manifest_of(), moved, trust)


def _check(plan: Plan, names: Sequence[str], manifest: Manifest, where: str) -> None:
    """Raise `SpecError` unless these outputs can go."""
    asked = f"drop {'the output ' + repr(names[0]) if len(names) == 1 else f'the outputs {list(names)}'} of {where}"
    for name in names:
        if name in plan.side_outputs():
            input, _ = plan.side_outputs()[name]
            raise SpecError(asked, f"{name!r} is a side output of the input {input.name!r}", "it stays with its input")
        if name not in plan.outputs:
            raise SpecError(asked, f"there is no output {name!r}", did_you_mean(name, plan.outputs))
    if set(names) == {*plan.outputs}:
        raise SpecError(
            asked, "it has no other, and a state has one at least", "delete the state, or open it with another output"
        )
    if attached := [name for name in names if name in manifest.sinks]:
        first = manifest.sinks[attached[0]]
        raise SpecError(
            asked,
            f"updates of {attached[0]!r} are kept for its sink, {first.kind} {first.target}",
            "forget the sink first, whose table stays as it is, with the flow that has the output: "
            f"engine.detach({attached[0]!r}), or "
            f"ddflow sync FLOW --state {quote(where)} --detach {quote(attached[0])} --yes",
        )


class _Dropping:
    """``plan``: of the state.  ``names``: of the outputs that go."""

    def __init__(self, store: Store, manifest: Manifest, plan: Plan, names: set[str]) -> None:
        self.store, self.manifest, self.plan, self.names = store, manifest, plan, names
        schemas = {name: input.bound.schema for name, input in plan.inputs.items()}
        self.flow, self.nodes = evolved(plan, schemas, only=plan.outputs.keys() - names)
        self.parts: tuple[Blob, ...] = ()
        self.written = list[Blob]()
        self.publishing = False

    @contextmanager
    def forgotten(self) -> Iterator[None]:
        """Where the block fails before a new version may be there, what was written is deleted."""
        try:
            yield
        except BaseException as error:
            if not self.publishing or isinstance(error, Fenced):
                for blob in self.written:
                    with suppress(DdflowError):
                        self.store.delete(blob.name)
            raise

    def inventories(self, trust: Trust, memory: int | None, look: Look) -> tuple[int, int]:
        """Write those of the new version; how many rows and events were rewritten for it.  O(files)."""
        manifest, many = self.manifest, self.manifest.partitions
        stages = uncut(self.flow) if many == 1 else cut(self.flow)
        old = [StoredInventory.read(self.store, each) for each in manifest.inventories]
        parts = list[Blob]()
        for stage in range(stages.stages if old else 0):
            for number in range(many):
                inventory, at = _without(stages, stage, old[number::many]), stage * many + number
                if len(old) == stages.stages * many and inventory == old[at].of:
                    parts.append(manifest.inventories[at])
                else:
                    parts.append(self._put(encoded(inventory)))
        self.parts = tuple(parts)
        if many == 1 or not old or not self._moved():
            return 0, 0
        first, self.written = self.written, []
        move = moving(self.store, replace(manifest, inventories=self.parts), stages, many, trust, memory)
        rescaler = Rescaler(self.store, ManifestLog(self.store, manifest, set()), stages, move)
        made = rescaler.made
        try:
            for stage in range(stages.stages):
                made += [task(stages, move, stage, number, self.store, look) for number in range(many)]
            self.parts = tuple(rescaler.parts(made))
        finally:
            self.written += [*rescaler.written, *(blob for each in made for blob in each.added)]
            with suppress(DdflowError):
                for blob in first:
                    self.store.delete(blob.name)
        return sum(each.versions for each in made), sum(each.pending for each in made)

    def _moved(self) -> bool:
        """Whether rows of some operator would be in other partitions by the new plan."""
        before, now = placed(self.plan), placed(self.flow)
        return any(before[old].by != now[new].by for old, new in self.nodes.items() if new.keeps)

    def _put(self, data: bytes) -> Blob:
        self.written.append(self.store.put("json", lambda sink: sink.write(data)))
        return self.written[-1]

    def manifest_of(self) -> Manifest:
        """The manifest without the outputs.  O(receipts)."""
        manifest, plan = self.manifest, describe(self.flow)
        backlog = Backlog(self.store).changed(manifest.backlog, self._bare, self.written)
        past = (
            replace(each, outputs={name: text for name, text in each.outputs.items() if name not in self.names})
            for each in manifest.past
        )
        return replace(
            manifest,
            plan=plan,
            fingerprint=fingerprint(plan),
            inventories=self.parts,
            backlog=backlog,
            receipts=tuple(map(self._bare, manifest.receipts)),
            past=tuple(past),
        )

    def _bare(self, epoch: Epoch) -> Epoch:
        calls = tuple(
            replace(call, outputs={name: each for name, each in call.outputs.items() if name not in self.names})
            for call in epoch.calls
        )
        return replace(epoch, calls=calls)

    def publish(self, new: Manifest, moved: tuple[int, int], trust: Trust) -> Dropped:
        """Publish the next version.  O(files).  Raises as `ManifestLog.commit` does."""
        before, after = (
            {blob.name: blob.length for blob in blobs_of(self.store, each) if inside(blob)}
            for each in (self.manifest, new)
        )
        log = ManifestLog(self.store, self.manifest, set())
        log.check_newest()
        # A folder shows the files of an epoch by its receipt, which names those of the outputs for the last time.
        outputs = Outputs.open(None, self.store, self.manifest, {}, trust)
        outputs.show(self.manifest.receipts)
        outputs.sync()
        self.publishing = True
        done = log.commit(new, self.parts, {*after}, f"dropped {', '.join(sorted(self.names))}")
        were, are = ({each.name for each in _used(plan)} for plan in (self.plan, self.flow))
        return Dropped(
            done.epoch,
            done.number,
            tuple(name for name in self.plan.outputs if name in self.names),
            tuple(name for name in self.plan.inputs if name in were - are),
            *moved,
            len(self.written),
            sum(blob.length for blob in self.written),
            sum(length for name, length in before.items() if name not in after),
        )


def _used(plan: Plan) -> list[Input]:
    """The inputs that outputs are made of."""
    found = behind(plan.outputs.values())
    return [input for input in plan.inputs.values() if input in found]


def _without(stages: Stages, stage: int, old: Sequence[StoredInventory]) -> Inventory:
    """The inventory of one partition on a stage, of those that it has on all stages.  O(files)."""
    ids, totals = node_ids(stages.flow), dict[str, int]()
    wanted = {ids[node] for node in stages.keeping(stage)}
    for each in old if stage == 0 else ():
        add(totals, each.of.totals)
    return Inventory(
        {name: found for each in old if stage == 0 for name, found in each.of.inputs.items()},
        {name: found for each in old for name, found in each.of.operators.items() if name in wanted},
        totals,
    )
