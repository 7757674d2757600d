"""Rescale a state: split or join its P partitions into Q, without any change of its answers.

Guarantees: the old version stays valid until the new one is published as a whole. If the state has Q partitions
already, nothing is written. `ddflow.partitions.rewrite` does the work.
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
    """Return a function that finds the target of a rescaling. Raises `SpecError` for an invalid number."""
    if not isinstance(partitions, int) or isinstance(partitions, bool) or not 0 < partitions <= PARTITIONS:
        raise SpecError(
            f"rescale to {partitions!r} partitions", "that is no number of them", f"give one from 1 to {PARTITIONS:,}"
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
    """Split or join a state's partitions in this process. O(bytes of the state).

    ``flow``: the state's plan, if it has Python functions. ``memory``: the most memory of a task. ``look``: for
    progress, called with the number of rows written since its last call.

    Raises `SpecError` for an invalid number; `StateRefused`, `PlanChanged`, `CorruptState`, `StorageFull`,
    `StorageFailed` and the errors of `Rewrite.finish`. After an error, the state is unchanged.

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
