"""Evolve a state: publish another version of the same epoch with wider or more columns, or with outputs or inputs
dropped.

Guarantees: answers of what stays do not change. Arrangements that only dropped outputs need are removed with their
files; an output or input that others need is not dropped.

>>> import pyarrow as pa, ddflow as dd
>>> from ddflow.storage.memory import MemoryStore
>>> flow = dd.Flow()
>>> people = flow.output("people", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")))
>>> _ = flow.output("by_city", people.count("city"))
>>> with flow.open(store := MemoryStore()) as engine:
...     _ = engine.step({"people": pa.table({"id": [1], "city": ["Bern"]})}, time=1)
>>> done = drop(store.writer(), ["by_city"])
>>> done.outputs, done.unused, done.freed > 0
(('by_city',), (), True)
>>> with dd.Snapshot.open(store) as snapshot:
...     list(snapshot.flow.outputs), snapshot.epoch
(['people'], 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from shlex import quote
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from ddflow.columns.names import did_you_mean
from ddflow.columns.widening import Inexact
from ddflow.connectors.sources import without as without_source
from ddflow.dataflow.budget import parse_size
from ddflow.engine.checkpoint import StoredInventory
from ddflow.engine.garbage import blobs_of
from ddflow.engine.outputs import Outputs
from ddflow.errors import DdflowError, Evolve, Fenced, Phrase, PlanChanged, SchemaMismatch, SpecError, StateRefused
from ddflow.metrics import Look
from ddflow.partitions.growth import moved, relaid
from ddflow.partitions.rescale import Rescaled, Rescaler, moving, same_plan
from ddflow.partitions.rescale_task import task
from ddflow.partitions.stages import cut, uncut
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.compatibility import PlanChange, compare
from ddflow.plan.evolve import evolved, evolved_to, refuse_slips, timed, with_shared_sides
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import describe, fingerprint, rebuild, step_times
from ddflow.storage.backlog import Backlog
from ddflow.storage.epochs import Attached, Epoch
from ddflow.storage.fields import encoded
from ddflow.storage.inventory_text import inside
from ddflow.storage.manifest import Manifest, newest
from ddflow.storage.manifest_log import ManifestLog
from ddflow.storage.opening import State, Trust, opened_store
from ddflow.storage.protocol import Blob, Store

T = TypeVar("T")


class Dropped(NamedTuple):
    """The result of `drop`.  ``epoch``, ``manifest``: of the newest version.  ``outputs``, ``inputs``: that are gone.
    ``unused``: the inputs left that no output is made of any more.  ``versions``, ``pending``: rows and waiting events
    that were rewritten.  ``files``, ``bytes``: written.  ``freed``: the bytes of the files that only versions before
    name."""

    epoch: int
    manifest: int
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    unused: tuple[str, ...]
    versions: int
    pending: int
    files: int
    bytes: int
    freed: int


def drop(
    state: State,
    outputs: Sequence[str] = (),
    inputs: Sequence[str] = (),
    *,
    flow: Plan | None = None,
    trust: Trust = "owner",
    memory: str | int | None = None,
    look: Look = lambda rows: None,
) -> Dropped:
    """Take outputs and inputs out of a state.  O(files + receipts kept); O(bytes) if an operator is partitioned
    differently without them.

    ``flow``: the state's plan, with all of them, if it has functions.  The rest as in `ddflow.evolve`.  Raises
    `SpecError` for a name that is none, for the last output, for one that has a sink, and for an input that an output
    is made of; `PlanChanged` for another plan; `Fenced` when another writer has committed meanwhile; what opening a
    state and a commit raise.
    """
    with opened_store(state, trust=trust, readonly=False) as store:
        manifest = newest(store)
        if manifest is None:
            raise StateRefused(f"drop outputs of {store.where}", "there is no state", "make one with flow.open")
        plan = same_plan(manifest, flow, store.where, "drop outputs of")
        _check(plan, outputs, inputs, manifest, store.where)
        work = _Drop(store, manifest, plan, outputs, inputs)
        with work.forgotten():
            figures = work.inventories(trust, parse_size(memory), look)
            return work.publish(work.manifest_of(), figures, trust)


def _check(plan: Plan, outputs: Sequence[str], inputs: Sequence[str], manifest: Manifest, where: str) -> None:
    """Raise `SpecError` unless these outputs and inputs can go."""
    sides = plan.side_outputs()
    asked = f"drop {' and '.join(_describe_names('output', outputs) + _describe_names('input', inputs))} of {where}"
    for name in outputs:
        if name in sides:
            found = f"{name!r} is a side output of the input {sides[name][0].name!r}"
            raise SpecError(asked, found, "it goes with its input: name that")
        if name not in plan.outputs:
            raise SpecError(asked, f"there is no output {name!r}", did_you_mean(name, plan.outputs))
    for name in inputs:
        if name not in plan.inputs:
            raise SpecError(asked, f"there is no input {name!r}", did_you_mean(name, plan.inputs), input=name)
    if {*outputs} == {*plan.outputs}:
        raise SpecError(
            asked, "it has no other, and a state has one at least", "delete the state, or open it with another output"
        )
    made = {name: used for name, node in plan.outputs.items() if (used := _used(plan, [node]) & {*inputs})}
    if still := [name for name in made if name not in outputs]:
        of = " and ".join(map(repr, sorted({*inputs} & {each for name in still for each in made[name]})))
        together = [name for name in plan.outputs if name in outputs or name in made]
        remedy = "they are all that it has: delete the state, or open it with another output first"
        if len(together) < len(plan.outputs):
            remedy = Phrase(
                "drop them too, in one call: ", Evolve(state=where, drop_outputs=together, drop_inputs=inputs)
            )
        raise SpecError(asked, f"the outputs {still} are made of {'it' if len(inputs) == 1 else of}", remedy)
    names = [*outputs, *(name for name, (input, _) in sides.items() if input.name in inputs)]
    if attached := [name for name in names if name in manifest.sinks]:
        first = manifest.sinks[attached[0]]
        sink = f"sink:{attached[0]}" if attached[0] in manifest.sources else attached[0]
        raise SpecError(
            asked,
            f"updates of {attached[0]!r} are kept for its sink, {first.kind} {first.target}",
            "forget the sink first, whose table stays as it is, with the flow that has the output: "
            f"engine.detach({sink!r}), ddflow sync FLOW --state {quote(where)} --detach {quote(sink)} --yes, "
            f"or on Spark spark_bridge.sync(flow, {where!r}, {{}}, detach=({sink!r},))",
        )


def _describe_names(kind: str, names: Sequence[str]) -> list[str]:
    """Describe one or several names of a kind in words; an empty list for none."""
    return [f"the {kind} {names[0]!r}" if len(names) == 1 else f"the {kind}s {[*names]}"] if names else []


class _Drop:
    """``plan``: of the state.  ``outputs``, ``inputs``: that go."""

    def __init__(
        self, store: Store, manifest: Manifest, plan: Plan, outputs: Sequence[str], inputs: Sequence[str]
    ) -> None:
        self.store, self.manifest, self.plan = store, manifest, plan
        self.outputs, self.inputs = {*outputs}, {*inputs}
        sides = {name for name, (input, _) in plan.side_outputs().items() if input.name in self.inputs}
        self.names = self.outputs | sides
        """Outputs whose files the receipts leave out."""
        schemas = {name: input.bound.schema for name, input in plan.inputs.items() if name not in self.inputs}
        self.flow, self.nodes = evolved(plan, schemas, only=plan.outputs.keys() - self.outputs)
        self.parts: tuple[Blob, ...] = ()
        self.written = list[Blob]()
        self.publishing = False

    @contextmanager
    def forgotten(self) -> Iterator[None]:
        """Delete the written files if the block fails before a new version can exist."""
        try:
            yield
        except BaseException as error:
            if not self.publishing or isinstance(error, Fenced):
                for blob in self.written:
                    with suppress(DdflowError):
                        self.store.delete(blob.name)
            raise

    def inventories(self, trust: Trust, memory: int | None, look: Look) -> tuple[int, int]:
        """Write the inventories of the new version; return how many rows and events were rewritten for it.
        O(files)."""
        manifest, many = self.manifest, self.manifest.partitions
        stages = uncut(self.flow) if many == 1 else cut(self.flow)
        old = [StoredInventory.read(self.store, each) for each in manifest.inventories]
        parts = list[Blob]()
        for stage in range(stages.stages if old else 0):
            for number in range(many):
                inventory, at = relaid(stages, stage, old[number::many]), stage * many + number
                if len(old) == stages.stages * many and inventory == old[at].of:
                    parts.append(manifest.inventories[at])
                else:
                    parts.append(self._write_inventory(encoded(inventory)))
        self.parts = tuple(parts)
        if many == 1 or not old or not moved(self.plan, self.flow, self.nodes):
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

    def _write_inventory(self, data: bytes) -> Blob:
        self.written.append(self.store.put("json", lambda sink: sink.write(data)))
        return self.written[-1]

    def manifest_of(self) -> Manifest:
        """Build the manifest without them.  O(receipts)."""
        manifest, plan = self.manifest, describe(self.flow)
        backlog = Backlog(self.store).changed(manifest.backlog, self._bare, self.written)
        past = (
            replace(each, inputs=_but(each.inputs, self.inputs), outputs=_but(each.outputs, self.names))
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
            **{
                field: _but(getattr(manifest, field), self.inputs) for field in ("fed", "added", "horizons", "greatest")
            },
            sources=_sources(manifest.sources, self.inputs),
            dropped={**manifest.dropped, **dict.fromkeys(sorted(self.names), manifest.epoch)},
        )

    def _bare(self, epoch: Epoch) -> Epoch:
        return replace(
            epoch, calls=tuple(replace(call, outputs=_but(call.outputs, self.names)) for call in epoch.calls)
        )

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
        done = log.commit(new, self.parts, {*after}, f"dropped {', '.join(sorted(self.outputs | self.inputs))}")
        were, are = (_used(plan, plan.outputs.values()) for plan in (self.plan, self.flow))
        return Dropped(
            done.epoch,
            done.number,
            tuple(name for name in self.plan.outputs if name in self.outputs),
            tuple(name for name in self.plan.inputs if name in self.inputs),
            tuple(name for name in self.flow.inputs if name in were - are),
            *moved,
            len(self.written),
            sum(blob.length for blob in self.written),
            sum(length for name, length in before.items() if name not in after),
        )


def _used(plan: Plan, outputs: Iterable[Collection]) -> set[str]:
    """Return the inputs that outputs depend on."""
    found = walk_inputs(outputs)
    return {name for name, input in plan.inputs.items() if input in found}


def _but(given: Mapping[str, T], names: set[str]) -> dict[str, T]:
    return {name: each for name, each in given.items() if name not in names}


def _sources(sources: Mapping[str, Attached], inputs: set[str]) -> dict[str, Attached]:
    """Leave out sources that have fed only these inputs, as far as the state knows."""
    out = dict[str, Attached]()
    for name, each in sources.items():
        fed = _but(each.left_out, inputs)
        if fed or not (each.left_out or name in inputs):
            out[name] = replace(each, left_out=fed, position=without_source(each.kind, each.position, inputs))
    return out


class Evolved(NamedTuple):
    """The result of an evolution.

    Attributes
    ----------
    epoch, manifest : int
        Of the newest version.
    columns : dict
        By input and column, the type that it was and the type that it is; None for a column that is new.
    versions, pending : int
        Rows and waiting events that were rewritten.
    files, bytes : int
        What was written.
    outputs : tuple of str
        Outputs that were dropped.
    inputs : tuple of str
        Inputs that were dropped.
    unused : tuple of str
        The inputs that no output is made of any more.  They stay: their events are judged and counted as before.
    freed : int
        The bytes of files that were needed for what was dropped only; ``gc`` frees them, in its time.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> _ = flow.output("by_n", flow.upserts("o", {"id": pa.int64(), "n": pa.int64()}, dd.Upsert(key="id")).count("n"))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     _ = engine.step({"o": pa.table({"id": [1, 2], "n": [5, 5]})}, time=1)
    >>> evolve(store.writer(), {"n": "decimal(12,2)"}).columns
    {'o': {'n': ('int64', 'decimal128(12, 2)')}}
    >>> dd.read(store, "by_n").to_pylist()
    [{'n': Decimal('5.00'), 'count': 2, '_diff': 1}]
    """

    epoch: int
    manifest: int
    columns: dict[str, dict[str, tuple[str | None, str]]]
    versions: int
    pending: int
    files: int
    bytes: int
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    freed: int = 0


class Evolution:
    """Which plan a state shall have: its own with columns of ``types``, or ``flow``, whose columns are wider.

    ``change``: what that changes, once it was asked (`plans`)."""

    def __init__(self, types: Any, flow: Plan | None) -> None:
        if types is None and flow is None:
            raise SpecError(
                "evolve a state",
                "no types are given",
                "give {column: type}, flow= with wider columns, drop_outputs=, or drop_inputs=",
            )
        self.types, self.flow, self.change = types, flow, PlanChange()
        self.schemas: dict[str, pa.Schema] = {}

    def plans(self, manifest: Manifest, where: str) -> tuple[Plan, Plan | None]:
        """Return the new plan and the one before, as `ddflow.partitions.rescale.Plans`.  Raises `SpecError`,
        `PlanChanged`."""
        if self.flow is None:
            plan = rebuild(manifest.plan, where)
        else:
            plan, _ = timed(self.flow.frozen(), step_times(manifest.plan, where))
            plan = with_shared_sides(plan, manifest.plan)
        if self.types is not None:
            plan, _ = evolved_to(plan, self.types, f"evolve {where}")
        self.change = compare(manifest.plan, plan, where, rewriting=True)
        if self.change.inputs or self.change.outputs or self.change.options:
            raise PlanChanged(
                f"evolve {where} with this plan",
                self.change.text,
                "change columns only; the rest is taken when the state is opened with that plan",
            )
        if self.types is not None:
            refuse_slips(plan, self.change.columns, f"evolve {where}")
        self.schemas = {name: input.bound.schema for name, input in plan.inputs.items()}
        return plan, self.change.before

    def done(self, done: Rescaled) -> Evolved:
        """Build the result.  ``done``: the result of the rescaling."""
        columns: dict[str, dict[str, tuple[str | None, str]]] = {}
        for name, types in self.change.types.items():
            columns.setdefault(name, {}).update({column: (str(was), str(now)) for column, (was, now) in types.items()})
        for name, added in self.change.columns.items():
            schema = self.schemas[name]
            columns.setdefault(name, {}).update({column: (None, str(schema.field(column).type)) for column in added})
        return Evolved(done.epoch, done.manifest, columns, done.versions, done.pending, done.files, done.bytes)


@contextmanager
def inexact(where: str) -> Iterator[None]:
    """Explain a value that a wider type does not hold.  Raises `SchemaMismatch`."""
    try:
        yield
    except Inexact as error:
        raise SchemaMismatch(
            f"evolve {where}",
            f"column {error.column!r} holds a value that the wider type does not: {error}",
            "give a decimal type that holds every value, such as decimal(20,0); nothing was changed",
            column=error.column,
        ) from None


def evolve(
    state: State,
    types: Any = None,
    *,
    drop_outputs: str | Sequence[str] = (),
    drop_inputs: str | Sequence[str] = (),
    flow: Plan | None = None,
    trust: Trust = "owner",
    memory: str | int | None = None,
    look: Look = lambda rows: None,
) -> Evolved:
    """Make a new version of a state, of the same epoch, with wider columns, or with fewer outputs and inputs.

    Parameters
    ----------
    state : str, path or Store
        The state's folder, or ``s3://bucket/prefix``.
    types : mapping or schema, optional
        ``{column: type}``, types as Arrow's or as text such as ``"decimal(12,2)"``; a schema; of several inputs
        ``{input: columns}``.  Columns that are not named stay; a new one is added at the end, null in all rows, unless
        its name is near that of another.
    drop_outputs : str or sequence of str
        The outputs to take out, with all that only they need: what their operators hold, and their updates that are
        kept.  Then no ``types``.  Tables and folders that have their updates stay as they are; so do the inputs.
    drop_inputs : str or sequence of str
        The inputs to take out, of which no output is made that stays: what they hold, their waiting events, their side
        outputs, and where their sources stand.  What became of their events stays counted in the state's verdicts.
    flow : Plan, optional
        The state's plan, with all its outputs and inputs, where it has functions; or one with wider columns, and then
        no ``types``.
    trust : {"owner", "group"}
        As in `Flow.open`.
    memory : str or int, optional
        What may be taken, such as "1GB".
    look : callable
        For progress: called with the number of rows written since its last call.

    Returns
    -------
    Evolved
        What was rewritten.

    Raises
    ------
    SpecError, PlanChanged
        For a type that a column cannot be widened to; for a key or an order column, and for an expression, a merge or
        a function that would mean something else.  `SpecError` also for a name that is none, for the last output, for
        one that has a sink (`Engine.detach` forgets that), and for an input that an output is made of.
    SchemaMismatch
        For a value that the wider type does not hold exactly.
    Fenced
        If another writer has committed meanwhile.
    DdflowError
        What opening a state raises; `StorageFull`, `StorageFailed`: nothing has changed.

    Notes
    -----
    O(bytes of the state).  To drop outputs and inputs O(files): rows are rewritten only where those of an operator come
    into other partitions without them.  The old version stays readable as after any commit.  An epoch in which rows of
    a dropped input came cannot be given again.
    """
    if drop_outputs or drop_inputs:
        return without(state, drop_outputs, drop_inputs, types, flow=flow, trust=trust, memory=memory, look=look)
    evolution = Evolution(types, flow)
    with Rescaler.open(state, None, trust=trust, memory=memory, plans=evolution.plans) as rescaler:
        with inexact(rescaler.store.where):
            for stage, number in rescaler.tasks:
                rescaler.made.append(task(rescaler.cut, rescaler.move, stage, number, rescaler.store, look))
        return evolution.done(rescaler.finish(rescaler.made))


def without(
    state: State, outputs: str | Sequence[str], inputs: str | Sequence[str], types: Any, **options: Any
) -> Evolved:
    """Drop outputs and inputs for `evolve`.  ``options``: of `drop`.  Raises as `evolve` does."""
    names, others = ([each] if isinstance(each, str) else [*dict.fromkeys(each)] for each in (outputs, inputs))
    if types is not None:
        raise SpecError(f"evolve, without {names + others}", "types are given, too", "do one after the other")
    done = drop(state, names, others, **options)
    figures = done.versions, done.pending, done.files, done.bytes
    return Evolved(done.epoch, done.manifest, {}, *figures, done.outputs, done.inputs, done.unused, done.freed)
