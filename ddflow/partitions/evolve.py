"""Evolve a state: widen or add columns, or drop outputs and inputs. The result is another version of the same epoch.

`ColumnEvolution` changes columns, and `OutputRemoval` drops outputs and inputs. The two classes of this module define
the target of a rewrite, and `ddflow.partitions.rewrite` writes the new version.

Guarantees: the answers of the remaining outputs do not change. An arrangement that only dropped outputs need is
removed, together with its files. An input is never dropped while a remaining output needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from ddflow.columns.names import did_you_mean
from ddflow.columns.widening import InexactValue
from ddflow.connectors.sources import drop_inputs as without_source
from ddflow.engine.garbage import list_version_blobs
from ddflow.engine.outputs import Outputs
from ddflow.errors import ErrorText, EvolveFix, PlanChanged, SchemaMismatch, SpecError
from ddflow.metrics import Look
from ddflow.partitions.rewrite import Rewrite, RewriteResult, RewriteTarget, drop_from_plan, require_same_plan
from ddflow.partitions.rewrite_task import NOTHING
from ddflow.partitions.stages import Stages, build_single_stage, cut_stages
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.compatibility import PlanChange, compare_plans
from ddflow.plan.evolve import (
    build_plan_with_time_type,
    evolve_plan_to_types,
    refuse_misspelled_columns,
    retain_past_columns,
    share_join_arrangements,
)
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import describe_plan, fingerprint_plan, read_step_time_type, rebuild_plan
from ddflow.storage.backlog import Backlog
from ddflow.storage.epochs import AttachedSource, Epoch, PastColumns
from ddflow.storage.inventory_text import is_state_file
from ddflow.storage.manifest import Manifest
from ddflow.storage.opening import State, Trust
from ddflow.storage.protocol import Blob, Store

T = TypeVar("T")


class EvolutionResult(NamedTuple):
    """The result of an evolution.

    Attributes
    ----------
    epoch, manifest : int
        The epoch number and the manifest number of the newest version.
    columns : dict
        The old and the new type of each changed column, by input and column. The old type of a new column is None.
    versions, pending : int
        The number of rewritten row versions and waiting events.
    files, bytes : int
        The number of written files, and their size.
    outputs : tuple of str
        The dropped outputs.
    inputs : tuple of str
        The dropped inputs.
    unused : tuple of str
        The remaining inputs that no output needs any more. ddflow still checks and counts their events.
    freed : int
        The size of the files that only dropped parts needed. Garbage collection (``gc``) deletes these files later.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> _ = flow.output("by_n", flow.upserts("o", {"id": pa.int64(), "n": pa.int64()}, dd.Upsert(key="id")).count("n"))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     _ = engine.step({"o": pa.table({"id": [1, 2], "n": [5, 5]})}, time=1)
    >>> evolve(store.reopen(), {"n": "decimal(12,2)"}).columns
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


def cut_plan_for_state(plan: Plan, manifest: Manifest) -> Stages:
    """Cut a plan into stages for a state. The state of a local engine needs only one stage."""
    local = manifest.partitions == 1 and len(manifest.inventories) < 2
    return build_single_stage(plan) if local else cut_stages(plan)


class ColumnEvolution:
    """A change of column types. The new types come from ``types``, or from a ``flow`` with wider columns.

    `plan_new_state` sets ``change`` to the difference between the plans, and ``plan`` to the new plan.
    """

    verb = "rescale"
    plan: Plan

    def __init__(self, types: Any, flow: Plan | None) -> None:
        if types is None and flow is None:
            raise SpecError(
                "evolve a state",
                "no types were passed",
                "pass {column: type}, flow= with wider columns, drop_outputs=, or drop_inputs=",
            )
        self.types, self.flow, self.change = types, flow, PlanChange()

    def plan_new_state(self, store: Store, manifest: Manifest) -> RewriteTarget:
        """Plan the rewrite of a state, and return its target. Raises `SpecError`, `PlanChanged`."""
        where = store.where
        if self.flow is None:
            plan = rebuild_plan(manifest.plan, where)
        else:
            plan, _ = build_plan_with_time_type(self.flow.frozen(), read_step_time_type(manifest.plan, where))
            plan = share_join_arrangements(plan, manifest.plan)
        if self.types is not None:
            plan, _ = evolve_plan_to_types(plan, self.types, f"evolve {where}")
        self.plan, self.change = plan, compare_plans(manifest.plan, plan, where, rewriting=True)
        if self.change.inputs or self.change.outputs or self.change.options:
            raise PlanChanged(
                f"evolve {where} with this plan",
                self.change.description,
                "change only columns here; to add the other changes, open the state with that plan",
            )
        if self.types is not None:
            refuse_misspelled_columns(plan, self.change.columns, f"evolve {where}")
        stages = cut_plan_for_state(plan, manifest)
        return RewriteTarget(
            stages, manifest.partitions, "evolution", cast=self.change.before, revise=self._revise_manifest
        )

    def _revise_manifest(self, manifest: Manifest, written: list[Blob]) -> Manifest:
        """Put the new plan into a manifest.

        Keep the old columns in the manifest, because the receipts of earlier epochs need them.
        """
        before, plan, added = self.change.before, describe_plan(self.plan), dict(manifest.added)
        assert before is not None, "columns change"
        for name, input in before.inputs.items():
            was, now = input.bound.schema.names, self.plan.inputs[name].bound.schema.names
            added[name] = (*added.get(name, ()), *(column for column in now if column not in was))
        return replace(
            manifest,
            plan=plan,
            fingerprint=fingerprint_plan(plan),
            past=retain_past_columns(manifest.past, before, manifest.epoch, manifest.oldest_epoch),
            added={name: columns for name, columns in added.items() if columns},
        )

    def build_result(self, done: RewriteResult) -> EvolutionResult:
        """Build the result of the evolution.  ``done``: the result of the rewrite."""
        columns: dict[str, dict[str, tuple[str | None, str]]] = {}
        for name, types in self.change.types.items():
            columns.setdefault(name, {}).update({column: (str(was), str(now)) for column, (was, now) in types.items()})
        for name, added in self.change.columns.items():
            schema = self.plan.inputs[name].bound.schema
            columns.setdefault(name, {}).update({column: (None, str(schema.field(column).type)) for column in added})
        return EvolutionResult(done.epoch, done.manifest, columns, done.versions, done.pending, done.files, done.bytes)


class OutputRemoval:
    """A change that removes ``outputs`` and ``inputs`` from a state.

    ``names``: the outputs and side outputs to remove from receipts. ``flow``: the plan without the dropped parts, set
    by `plan_new_state`. Raises `SpecError` if the caller also passes types.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> people = flow.output("people", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, \
dd.Upsert(key="id")))
    >>> _ = flow.output("by_city", people.count("city"))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1], "city": ["Bern"]})}, time=1)
    >>> done = evolve(store.reopen(), drop_outputs="by_city")
    >>> done.outputs, done.unused, done.freed > 0
    (('by_city',), (), True)
    >>> with dd.Snapshot.open(store) as snapshot:
    ...     list(snapshot.flow.outputs), snapshot.epoch
    (['people'], 1)
    """

    verb = "drop outputs of"
    store: Store
    manifest: Manifest
    plan: Plan
    flow: Plan

    def __init__(
        self, outputs: str | Sequence[str], inputs: str | Sequence[str], types: Any, flow: Plan | None, trust: Trust
    ) -> None:
        self.outputs, self.inputs = (
            [each] if isinstance(each, str) else [*dict.fromkeys(each)] for each in (outputs, inputs)
        )
        if types is not None:
            asked = f"evolve, without {self.outputs + self.inputs}"
            raise SpecError(asked, "types are passed, too", "change types and drop names in separate calls")
        self.given, self.trust, self.freed = flow, trust, 0
        self.names = {*self.outputs}

    def plan_new_state(self, store: Store, manifest: Manifest) -> RewriteTarget:
        """Plan the rewrite of a state, and return its target. Raises `SpecError`, `PlanChanged`."""
        self.store, self.manifest = store, manifest
        self.plan = plan = require_same_plan(manifest, self.given, store.where, self.verb)
        _check_drop(plan, self.outputs, self.inputs, manifest, store.where)
        self.names |= {name for name, (input, _) in plan.side_outputs().items() if input.name in self.inputs}
        self.flow, moves = drop_from_plan(plan, self.inputs, self.outputs)
        many, note = manifest.partitions, f"dropped {', '.join(sorted({*self.outputs, *self.inputs}))}"
        return RewriteTarget(
            cut_plan_for_state(self.flow, manifest),
            many,
            note,
            None,
            NOTHING,
            moves and many > 1,
            self._revise_manifest,
        )

    def _revise_manifest(self, manifest: Manifest, written: list[Blob]) -> Manifest:
        """Build the manifest without the dropped outputs and inputs. O(files).

        In an output folder, publish the files of the dropped outputs for the last time.
        """
        plan, past = describe_plan(self.flow), list[PastColumns]()
        for each in manifest.past:
            inputs = _drop_names(each.inputs, self.inputs)
            past.append(replace(each, inputs=inputs, outputs=_drop_names(each.outputs, self.names)))
        new = replace(
            manifest,
            plan=plan,
            fingerprint=fingerprint_plan(plan),
            backlog=Backlog(self.store).rewrite_epochs(manifest.backlog, self._drop_epoch_outputs, written),
            receipts=tuple(map(self._drop_epoch_outputs, manifest.receipts)),
            past=tuple(past),
            **{
                field: _drop_names(getattr(manifest, field), self.inputs)
                for field in ("fed", "added", "horizons", "greatest")
            },
            sources=_drop_sources(manifest.sources, self.inputs),
            dropped={**manifest.dropped, **dict.fromkeys(sorted(self.names), manifest.epoch)},
        )
        before, after = (
            {blob.name: blob.length for blob in list_version_blobs(self.store, each) if is_state_file(blob)}
            for each in (self.manifest, new)
        )
        self.freed = sum(length for name, length in before.items() if name not in after)
        # An output folder publishes the files that are listed in the receipt of an epoch. Only the old receipts name
        # the dropped outputs.
        outputs = Outputs.open(None, self.store, self.manifest, {}, self.trust)
        outputs.publish_fragments(self.manifest.receipts)
        outputs.sync_sinks()
        return new

    def _drop_epoch_outputs(self, epoch: Epoch) -> Epoch:
        """Remove the files of the dropped outputs from the record of an epoch."""
        calls = (replace(call, outputs=_drop_names(call.outputs, self.names)) for call in epoch.calls)
        return replace(epoch, calls=tuple(calls))

    def build_result(self, done: RewriteResult) -> EvolutionResult:
        """Build the result of the evolution.  ``done``: the result of the rewrite."""
        were, are = (_find_used_inputs(plan, plan.outputs.values()) for plan in (self.plan, self.flow))
        return EvolutionResult(
            done.epoch,
            done.manifest,
            {},
            done.versions,
            done.pending,
            done.files,
            done.bytes,
            tuple(name for name in self.plan.outputs if name in self.outputs),
            tuple(name for name in self.plan.inputs if name in self.inputs),
            tuple(name for name in self.flow.inputs if name in were - are),
            self.freed,
        )


def _check_drop(plan: Plan, outputs: Sequence[str], inputs: Sequence[str], manifest: Manifest, where: str) -> None:
    """Raise `SpecError` unless the state can drop these outputs and inputs."""
    sides = plan.side_outputs()
    asked = f"drop {' and '.join(_describe_names('output', outputs) + _describe_names('input', inputs))} of {where}"
    for name in outputs:
        if name in sides:
            found = f"{name!r} is a side output of the input {sides[name][0].name!r}"
            raise SpecError(asked, found, "it is dropped with its input: pass the input")
        if name not in plan.outputs:
            raise SpecError(asked, f"there is no output {name!r}", did_you_mean(name, plan.outputs, "outputs"))
    for name in inputs:
        if name not in plan.inputs:
            raise SpecError(asked, f"there is no input {name!r}", did_you_mean(name, plan.inputs, "inputs"), input=name)
    if {*outputs} == {*plan.outputs}:
        raise SpecError(
            asked, "it has no other output, and needs one", "delete the state, or open it with another output"
        )
    made = {name: used for name, node in plan.outputs.items() if (used := _find_used_inputs(plan, [node]) & {*inputs})}
    if still := [name for name in made if name not in outputs]:
        of = " and ".join(map(repr, sorted({*inputs} & {each for name in still for each in made[name]})))
        together = [name for name in plan.outputs if name in outputs or name in made]
        remedy = "the state has no other outputs: delete the state, or open it with another output first"
        if len(together) < len(plan.outputs):
            remedy = ErrorText(
                "drop them too, in one call: ", EvolveFix(state=where, drop_outputs=together, drop_inputs=inputs)
            )
        raise SpecError(asked, f"the outputs {still} depend on {'it' if len(inputs) == 1 else of}", remedy)
    names = [*outputs, *(name for name, (input, _) in sides.items() if input.name in inputs)]
    if attached := [name for name in names if name in manifest.sinks]:
        first = manifest.sinks[attached[0]]
        sink = f"sink:{attached[0]}" if attached[0] in manifest.sources else attached[0]
        raise SpecError(
            asked,
            f"updates of {attached[0]!r} are retained for its sink, {first.kind} {first.target}",
            "detach the sink first, whose table stays unchanged, with the flow that has the output: "
            f"engine.detach({sink!r}), ddflow sync FLOW --state {quote(where)} --detach {quote(sink)} --yes, "
            f"or on Spark spark_bridge.sync(flow, {where!r}, {{}}, detach=({sink!r},))",
        )


def _describe_names(kind: str, names: Sequence[str]) -> list[str]:
    """Return a list with one text that describes the names of some outputs or inputs.

    Return [] if there are no names.
    """
    return [f"the {kind} {names[0]!r}" if len(names) == 1 else f"the {kind}s {[*names]}"] if names else []


def _find_used_inputs(plan: Plan, outputs: Iterable[Collection]) -> set[str]:
    """Return the names of the inputs that some outputs depend on."""
    found = walk_inputs(outputs)
    return {name for name, input in plan.inputs.items() if input in found}


def _drop_names(given: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    return {name: each for name, each in given.items() if name not in names}


def _drop_sources(sources: Mapping[str, AttachedSource], inputs: Sequence[str]) -> dict[str, AttachedSource]:
    """Return the attached sources, without the sources that are known to have fed only dropped inputs."""
    out = dict[str, AttachedSource]()
    for name, each in sources.items():
        fed = _drop_names(each.left_out, inputs)
        if fed or not (each.left_out or name in inputs):
            out[name] = replace(each, left_out=fed, position=without_source(each.kind, each.position, {*inputs}))
    return out


@contextmanager
def explain_inexact_value(where: str) -> Iterator[None]:
    """Convert `InexactValue`, the error for a value that a wider type cannot hold, to a `SchemaMismatch`."""
    try:
        yield
    except InexactValue as error:
        raise SchemaMismatch(
            f"evolve {where}",
            f"column {error.column!r} has a value that the wider type cannot hold: {error}",
            "use a decimal type that holds every value, such as decimal(20,0); nothing was changed",
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
) -> EvolutionResult:
    """Publish a version of a state with wider columns, or without some outputs and inputs. The epoch stays the same.

    Parameters
    ----------
    state : str, path or Store
        The state's folder, or ``s3://bucket/prefix``.
    types : mapping or schema, optional
        ``{column: type}``, with types of Arrow or text such as ``"decimal(12,2)"``; or a schema; for several inputs
        ``{input: columns}``. All other columns stay unchanged. A new column is added at the end, and is null in all
        rows. A new name that resembles the name of another column is refused as a probable typing error.
    drop_outputs : str or sequence of str
        Outputs to drop, with everything that only they need: the state of their operators and their retained updates.
        Not together with ``types``. The tables and folders of the outputs stay, and the inputs stay too.
    drop_inputs : str or sequence of str
        Inputs to drop, with their state, waiting events, side outputs and the positions of their sources. No remaining
        output may need a dropped input. The state's verdicts still count the events of dropped inputs.
    flow : Plan, optional
        The state's complete plan, if it has Python functions; or a plan with wider columns instead of ``types``.
    trust : {"owner", "group"}
        As in `Flow.open`.
    memory : str or int, optional
        The most memory that the rewrite may use, such as "1GB".
    look : callable
        A progress callback, called with the number of rows written since its last call.

    Returns
    -------
    EvolutionResult
        The changed columns, the rewritten rows and the written files.

    Raises
    ------
    SpecError, PlanChanged
        If a column cannot be widened, is a key or an order column, or if an expression, a merge or a function would
        change its meaning. `SpecError` also for an unknown name, the last output, an output with a sink (see
        `Engine.detach`), and an input that an output needs.
    SchemaMismatch
        For a value that the wider type cannot hold exactly.
    Fenced
        If another writer has committed in the meantime.
    DdflowError
        For the errors of opening a state, and `StorageFull` and `StorageFailed`. The state has not changed then.

    Notes
    -----
    O(bytes of the state). Dropping outputs and inputs is O(files), unless rows of an operator move to other partitions.
    The old version stays readable for some time, as after any commit. You cannot replay an epoch with rows of a dropped
    input.
    """
    change = (
        OutputRemoval(drop_outputs, drop_inputs, types, flow, trust)
        if drop_outputs or drop_inputs
        else ColumnEvolution(types, flow)
    )
    with Rewrite.open(state, change.plan_new_state, verb=change.verb, trust=trust, memory=memory) as rewrite:
        with explain_inexact_value(rewrite.store.where):
            rewrite.run_tasks(look)
        return change.build_result(rewrite.finish())
