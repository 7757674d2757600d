"""The sinks of a state on Spark: each epoch to each of them once, by the driver, or with files that tasks stage.

Invariant: as of ``ddflow.engine.run.delivery``: what a target says that it has is what counts, and an epoch goes there
after its commit, in the target's own transaction. The updates are in the state's files already, which tasks wrote; the
driver reads them and writes them. Where a table takes files that many write, and an epoch is large, tasks make them
and the driver commits them together; a job costs a few tenths of a second, so small epochs are written by the driver.

>>> SinkOptions.of({}, None).how.patience is None
True
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa

from ddflow.connectors.api import TableSink
from ddflow.engine.flow import Flow
from ddflow.engine.run.delivery import Deliveries, Delivery, warn_of_detached
from ddflow.engine.run.options import RunOptions
from ddflow.engine.run.sync import Synced
from ddflow.errors import DdflowError
from ddflow.partitions.commit import EpochDriver
from ddflow.partitions.driver_epochs import DriverEpochs, sync_state
from ddflow.storage.epochs import Epoch
from ddflow.storage.protocol import Blob
from spark_bridge.job import Job
from spark_bridge.state_options import check_address
from spark_bridge.tasks import MakeOfFiles, ReadFiles


class SinkOptions(NamedTuple):
    """``sinks``: by output.  ``how``: what may wait for them, and for how long one may fail."""

    sinks: Mapping[str, TableSink]
    how: RunOptions

    @classmethod
    def of(cls, sinks: Mapping[str, TableSink] | None, give_up_after: str | None, backlog: str | int = "1GB") -> Self:
        """Make the options from the arguments of `spark_bridge.run`. Raises `SpecError`."""
        return cls(dict(sinks or {}), RunOptions(sink_backlog=backlog, give_up_after=give_up_after))


class Outlets:
    """The sinks of a ``job``'s state.  Raises `SpecError` for an output that has no such sink."""

    def __init__(self, job: Job, session: Any, options: SinkOptions) -> None:
        self.job, self.session = job, session
        self.epochs = DriverEpochs(job.coordinator, self._each)
        each = {name: Delivery(self.epochs, name, sink) for name, sink in options.sinks.items()}
        self.of = Deliveries(each, options.how.most, options.how.patience)
        warn_of_detached(job.coordinator.log.sinks, options.sinks, job.store)

    def drain(self) -> None:
        """Give sinks all that they lack, and say so in the state.  Raises what a sink raises."""
        self.of.drain()
        self.epochs.acknowledge()

    def close(self, acknowledge: bool) -> None:
        """Let go of targets.  ``acknowledge``: say in the state what they have; else the next epoch does."""
        with suppress(DdflowError):
            if acknowledge:
                self.epochs.acknowledge()
        self.of.close()

    def _each(
        self, receipt: Epoch, name: str, blobs: tuple[Blob, ...], make: Callable[[pa.Table], bytes]
    ) -> list[bytes]:
        """Run a task for each file of an output's updates."""
        job, schema = self.job, self.epochs.output_schema(name)
        past, folder = job.coordinator.log.past(receipt.epoch), job.coordinator.manifest.folder
        there = None if past is None else past.outputs[name]
        read = ReadFiles(job.store, job.options.trust, folder, name, receipt.epoch, schema, there)
        numbers = self.session.range(0, len(blobs), 1, len(blobs))
        with job.around(self.session, f"epoch {receipt.epoch}, files for the sink of {name}"):
            made = numbers.mapInArrow(MakeOfFiles(read, blobs, make), "made binary").collect()
        return [bytes(each) for (each,) in made]


def sync(
    flow: Flow,
    state: str,
    sinks: Mapping[str, TableSink],
    *,
    adopt: bool = False,
    dry: bool = False,
    detach: tuple[str, ...] = (),
    trust: Literal["owner", "group"] = "owner",
) -> dict[str, Synced]:
    """Write the difference between a state's outputs and their targets to the targets, like ``ddflow sync``.

    Stop the writer of the state first; otherwise it is `Fenced`.

    Parameters
    ----------
    flow : Flow
        The state's plan.
    state : str
        Its folder, or ``s3://bucket/prefix``.
    sinks : mapping of str to TableSink
        By output.
    adopt, dry
        As in `Engine.sync`.
    detach : tuple of str
        Sinks to forget then, for which the state would go on keeping updates; as `Engine.detach`.
    trust : {"owner", "group"}
        As in `Flow.open`.

    Returns
    -------
    dict of str to Synced
        By output, how many rows of the table were deleted, changed and added.

    Raises
    ------
    SinkRefused, SinkFailed, SpecError
        As `Engine.sync`.
    DdflowError
        What opening the state raises.

    Notes
    -----
    O(rows of the output and the table), in this process; no Spark job runs.
    """
    driver = EpochDriver.open(flow, check_address(state), trust=trust)
    try:
        return sync_state(driver, sinks, adopt, dry, detach)
    finally:
        driver.close()
