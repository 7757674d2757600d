"""A state, opened for many partitions: its ledger, what its plan has got, where outputs go, what was asked for.

Invariant: what `opened` returns can be gone on with as it is; every mistake is an error that names the option or the
difference, and then nothing was made that was not there, but for a state that is new. A new state is published by
whoever is first, with his plan, so the plan is compared after that, too; and a state of many partitions can take up
less than one engine's, since what a new input or output owes is nobody's task yet.

>>> import pyarrow as pa, ddflow as dd
>>> from ddflow.storage.memory import MemoryStore
>>> flow = dd.Flow()
>>> people = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> opened(flow.frozen(), MemoryStore(), Wanted(partitions=4)).ledger.manifest.spread
4
>>> Wanted(partitions=0)
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: partitions=0: that is not possible; give a whole number from 1 to 65536
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Literal, NamedTuple

from ddflow.columns.hashing import Secret
from ddflow.dataflow.budget import LEAST, shown_size
from ddflow.engine.commits import check_types
from ddflow.errors import PlanChanged, SpecError
from ddflow.partitions.epoch_start import own
from ddflow.plan.codec import describe, fingerprint
from ddflow.plan.collection import Plan
from ddflow.plan.compatibility import PlanChange, compare
from ddflow.storage import address
from ddflow.storage.manifest import PARTITIONS, Manifest, newest
from ddflow.storage.manifest_log import GRACE, ManifestLog
from ddflow.storage.opening import open_store
from ddflow.storage.protocol import Store
from ddflow.storage.showing import Outputs
from ddflow.time import CLOSED

KEPT = 8
"""How many epochs can be told again."""


@dataclass(frozen=True)
class Wanted:
    """What a state is opened with: see `EpochDriver.open`.  Raises `SpecError`."""

    partitions: int | None = None
    default_partitions: int = 1
    outputs: str | PathLike[str] | None = None
    trust: Literal["owner", "group"] = "owner"
    grace: float = GRACE
    keep: int = KEPT
    retain: int = 0
    memory: int | None = None
    secret: Secret | None = None
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("partitions", 1, PARTITIONS),
            ("default_partitions", 1, PARTITIONS),
            ("keep", 1, 1 << 16),
            ("retain", 0, CLOSED),
        ):
            given = getattr(self, name)
            number = isinstance(given, int) and not isinstance(given, bool)
            if not (number and least <= given <= most) and (given is not None or name != "partitions"):
                raise SpecError(
                    f"{name}={given!r}", "that is not possible", f"give a whole number from {least} to {most}"
                )
        address.folder(self.outputs, "write outputs to")  # before anything is made
        if self.memory is not None and own(self.memory) < LEAST:
            raise SpecError(
                f"memory={shown_size(self.memory)}",
                "that is too small for a task to work in",
                f"give {shown_size(2 * LEAST)} or more",
            )


class Opened(NamedTuple):
    """``ledger``: of the state.  ``change``: what the plan has that its has not.  ``outputs``: where they go."""

    ledger: ManifestLog
    change: PlanChange
    outputs: Outputs


def opened(flow: Plan, state: str | PathLike[str] | Store, wanted: Wanted) -> Opened:
    """Open a state, or make a new one.  O(plan).

    ``flow``: frozen.  Raises `PlanChanged`, `SpecError`, `StateRefused`, `CorruptState`, and what the store raises.
    """
    check_types(flow)
    store = open_store(state, trust=wanted.trust)
    try:
        manifest = newest(store)
        outputs = Outputs.open(wanted.outputs, store, manifest, wanted.trust)
        outputs.check({name: node.schema for name, node in flow.outputs.items()})
        if manifest is None:
            plan = describe(flow)
            ledger = ManifestLog.create(
                store,
                plan,
                fingerprint(plan),
                wanted.secret or Secret.fresh(),
                outputs.path,
                wanted.grace,
                wanted.partitions or wanted.default_partitions,
            )
        else:
            ledger = ManifestLog(store, manifest, set(), wanted.grace)
        change = _compared(ledger.manifest, flow, wanted, store.where)
        outputs.claim(ledger.manifest, store, [*flow.outputs, *flow.side_outputs()])
    except BaseException:
        store.close()
        raise
    return Opened(ledger, change, outputs)


def _compared(manifest: Manifest, flow: Plan, wanted: Wanted, where: str) -> PlanChange:
    """What a plan has that a state's had not.  Raises `PlanChanged`; `SpecError` for another number of partitions."""
    change = compare(manifest.plan, flow, where)
    _same_shape(change, manifest, where)
    if manifest.partitions and wanted.partitions not in (None, manifest.spread):  # else it has none yet
        found = f"it has {manifest.spread}, and opening a state does not rewrite it"
        other = f"ddflow rescale {where} --partitions {wanted.partitions}, or on Spark spark_bridge.rescale"
        remedy = f"leave it out, or change it first: {other}"
        raise SpecError(f"open {where} with partitions={wanted.partitions}", found, remedy)
    return change


def _same_shape(change: PlanChange, manifest: Manifest, where: str) -> None:
    """Raise `PlanChanged` for inputs or outputs that a state of many partitions cannot take up."""
    new = [
        f"the {what} {names} are new"
        for what, names in (("inputs", change.inputs), ("outputs", change.outputs))
        if names
    ]
    if new and manifest.partitions:
        raise PlanChanged(
            f"open {where} with this plan",
            " and ".join(new),
            "a state that goes on on Spark takes up "
            "new columns only: bring it to one partition (ddflow rescale), go on with flow.open for an "
            "epoch, and come back; or make a new state of the log with ddflow migrate",
        )
