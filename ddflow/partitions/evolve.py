"""Evolving: another version of the same epoch: its columns are wider or more, or its outputs and inputs fewer.

Invariant: either there is a new version that says what the one before said, in the wider types, at every time that can
be read, or nothing has changed. Hashes are made again, and so is every arrangement whose identities depend on a column
that changes; waiting events and kept history are cast. It is a rescaling to as many partitions under another plan: a
group's identity changes with its columns, and so may its partition. So a crash leaves the old version whole, and an
epoch that was committed meanwhile wins. What an expression, a merge or a function would make of the wider columns must
be what it made of the narrower ones (``plan.evolve``), and each value must be exact. How outputs and inputs
are taken out is in ``dropping``.

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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from ddflow.columns.widening import Inexact
from ddflow.errors import PlanChanged, SchemaMismatch, SpecError
from ddflow.metrics import Look
from ddflow.partitions.dropping import drop
from ddflow.partitions.rescale import Rescaled, Rescaler
from ddflow.partitions.rescale_task import task
from ddflow.plan.compatibility import PlanChange, compare
from ddflow.plan.evolve import evolved_to, refuse_slips, timed
from ddflow.plan.join_sides import with_shared_sides
from ddflow.plan.plan import Plan
from ddflow.plan.rebuild import rebuild, step_times
from ddflow.storage.manifest import Manifest
from ddflow.storage.opening import State, Trust


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
