"""The kept epochs of a state of many partitions, as its sinks need them; what a driver delivers from.

Invariant: as of ``engine.kept_epochs``. What an output holds is read from the newest version, a partition at a time
where its rows can be told by partition, so the driver holds the rows of one output and not the state.

>>> import ddflow as dd, pyarrow as pa
>>> from ddflow.storage.memory import MemoryStore
>>> flow, store = dd.Flow(), MemoryStore()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> with flow.open(store) as engine:
...     _ = engine.step({"people": {"id": [7, 8]}})
>>> epochs = DriverEpochs(EpochDriver.open(flow, store.writer()))
>>> epochs.epoch, epochs.held("people").num_rows, epochs.gained(next(epochs.kept()), "people").num_rows
(1, 2, 2)
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from ddflow.connectors.api import TableSink
from ddflow.engine.run.deliveries import detach, sync
from ddflow.engine.run.kept_epochs import InParts, KeptEpochs, Synced
from ddflow.errors import PlanChanged
from ddflow.metrics import Look
from ddflow.partitions.commit import EpochDriver
from ddflow.partitions.merged_receipts import OWED
from ddflow.partitions.reading import read_updates, shared
from ddflow.partitions.version import Version
from ddflow.plan.plan import Plan
from ddflow.storage.batch_store import BatchStore
from ddflow.storage.epochs import Epoch
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob

LARGE: Final = 16 << 20
"""Bytes of an output's updates from which on tasks are worth their start."""

Each = Callable[[Epoch, str, tuple[Blob, ...], Callable[[pa.Table], bytes]], list[bytes]]
"""Runs a task for each file of what an output gained in an epoch: what each made of its rows."""


class DriverEpochs(KeptEpochs):
    """``driver``: which holds the state.  ``each``: runs tasks, where there are any."""

    def __init__(self, driver: EpochDriver, each: Each | None = None) -> None:
        super().__init__(driver.log, BatchStore(driver.log.manifest_log.store))
        self.driver, self.each = driver, each

    @property
    def flow(self) -> Plan:
        """The driver's plan."""
        return self.driver.flow

    def held(self, name: str) -> pa.Table:
        """Read an output from the newest version; an output that is new is empty until the next epoch.  O(bytes of
        it)."""
        if self.owes(name):
            return self.output_schema(name).empty_table()
        manifest, log = self.manifest, self.log.manifest_log
        store = log.store if isinstance(log.store, MemoryStore) else log.store.where
        version = Version(store, self.driver.given.trust, manifest.number, log.digest)
        parts = shared(self.flow, name) if manifest.partitions > 1 else None
        if parts is None:
            return read_updates(version, self.flow, name, None)
        shares = [(parts.stage, number) for number in range(manifest.partitions)]
        return pa.concat_tables(read_updates(version, self.flow, name, share) for share in shares)

    def owes(self, name: str) -> bool:
        """Return whether an output is new."""
        return name in self.log.change.outputs

    def parts(self, receipt: Epoch, name: str, key: Sequence[str] | None) -> InParts | None:
        """Split an epoch's rows of an output by partition, if they are many and equal rows, or rows of a key, share a
        partition."""
        each = self.each
        if each is None or len(receipt.calls) != 1 or receipt.size(name) < LARGE or OWED in receipt.calls[0].figures:
            return None
        blobs = receipt.calls[0].outputs[name].blobs
        if key != () and len(blobs) > 1:
            found = shared(self.flow, name) if name in self.flow.outputs else None
            if found is None or (key is not None and not (found.by is not None and set(found.by) <= set(key))):
                return None
        return partial(each, receipt, name, blobs)

    def acknowledge(self) -> None:
        """Publish with the inventories of the state.  While the plan has new columns, the next epoch does it."""
        self.driver.acknowledge()


def sync_state(
    driver: EpochDriver,
    sinks: Mapping[str, TableSink],
    adopt: bool,
    dry: bool,
    forget: tuple[str, ...] = (),
    look: Look = lambda rows: None,
) -> dict[str, Synced]:
    """Sync the sinks of a state of many partitions, as `Engine.sync` and then `Engine.detach` do.

    Raises as they do, and `PlanChanged` for a plan that has more than the state."""
    if driver.growing is not None:
        found = f"it has more than the state: {driver.growing.change.text}"
        raise PlanChanged(f"sync {driver.log.manifest_log.store.where}", found, "run an epoch with this plan first")
    epochs = DriverEpochs(driver)
    done = sync(epochs, sinks, adopt, dry, look)
    if forget:
        detach(epochs, forget)
    return done
