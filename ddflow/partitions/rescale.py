"""Rescale a state: change its number of partitions from P to Q. All reads return the same rows as before.

Guarantees: the old version stays valid until the complete new version is published. If the state already has Q
partitions, a rescaling writes nothing. `ddflow.partitions.rewrite` rewrites the state.
"""

from ddflow.errors import SpecError
from ddflow.metrics import Look
from ddflow.partitions.rewrite import FindNewState, Rewrite, RewriteResult, RewriteTarget, require_same_plan
from ddflow.partitions.stages import cut_stages
from ddflow.plan.plan import Plan
from ddflow.storage.manifest import PARTITIONS, Manifest
from ddflow.storage.opening import State, Trust
from ddflow.storage.protocol import Store


def plan_rescale(partitions: int, flow: Plan | None = None) -> FindNewState:
    """Return a function that plans the rescaling of a state, and returns its `RewriteTarget`.

    Raises `SpecError` for an invalid number.
    """
    if not isinstance(partitions, int) or isinstance(partitions, bool) or not 0 < partitions <= PARTITIONS:
        raise SpecError(
            f"rescale to {partitions!r} partitions", "that is not possible", f"use a number from 1 to {PARTITIONS:,}"
        )

    def find_new_state(store: Store, manifest: Manifest) -> RewriteTarget:
        plan = require_same_plan(manifest, flow, store.where, "rescale")
        return RewriteTarget(cut_stages(plan), partitions, f"rescale {manifest.partitions} -> {partitions}")

    return find_new_state


def rescale(
    state: State,
    partitions: int,
    *,
    flow: Plan | None = None,
    trust: Trust = "owner",
    memory: str | int | None = None,
    look: Look = lambda rows: None,
) -> RewriteResult:
    """Change the number of partitions of a state, in this process. O(bytes of the state).

    ``flow``: the state's plan, if it has Python functions. ``memory``: the most memory that a task may use. ``look``: a
    progress callback, called with the number of rows written since its last call.

    Raises `SpecError` for an invalid number of partitions; `StateRefused`, `PlanChanged`, `CorruptState`,
    `StorageFull`, `StorageFailed` and the errors of `Rewrite.finish`. After an error, the state is unchanged.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    >>> _ = flow.output("by_city", people.count("city"))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1, 2, 3], "city": ["Bern", "Bern", "Rome"]})}, time=1)
    >>> done = [rescale(store.reopen(), partitions) for partitions in (8, 3, 1)]
    >>> [(each.before, each.partitions, each.stages, each.versions) for each in done]
    [(1, 8, 2, 5), (8, 3, 2, 5), (3, 1, 2, 5)]
    >>> with flow.open(store.reopen()) as engine:
    ...     step = engine.step({"people": pa.table({"id": [1], "city": ["Rome"]})}, time=2)
    ...     engine.epoch, sorted((row["city"], row["count"]) for row in engine.read("by_city").to_pylist())
    (2, [('Bern', 1), ('Rome', 2)])
    """
    with Rewrite.open(state, plan_rescale(partitions, flow), trust=trust, memory=memory) as rewrite:
        rewrite.run_tasks(look)
        return rewrite.finish()
