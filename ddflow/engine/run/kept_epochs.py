"""Read the committed epochs that sinks still need, and read the current rows of outputs.

Guarantees: an epoch is kept with its digest and its updates until every sink acknowledges it.

>>> import ddflow as dd
>>> from ddflow.storage.memory import MemoryStore
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> with flow.open(MemoryStore()) as engine:
...     epochs = EngineEpochs(engine.calls, "an example")
...     _ = engine.step({"people": {"id": [7]}})
...     epochs.read_updates(next(epochs.list_epochs()), "people").to_pylist(), epochs.read_output("people").num_rows
([{'id': 7, '_time': 1, '_diff': 1}], 1)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DELETED, DIFF, TIME
from ddflow.connectors.modes import build_mode_schema
from ddflow.engine.calls import EngineCalls
from ddflow.engine.epoch_log import EpochLog
from ddflow.errors import SpecError
from ddflow.operators.updates import build_time_column
from ddflow.plan.plan import Plan
from ddflow.storage.epochs import Epoch
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.manifest import Manifest
from ddflow.time import NEVER

InParts = Callable[[Callable[[pa.Table], bytes]], list[bytes]]
"""A function that gets a second function, and applies it to each part of an epoch's updates, in any process.

The result is the list of all results.
"""


class RetainedEpochs(ABC):
    """The committed epochs that sinks still need. ``log``: the epochs of the state.

    ``batch_store``: the reader of the state's files.
    """

    def __init__(self, log: EpochLog, batch_store: BatchStore) -> None:
        self.log, self.batch_store = log, batch_store

    @property
    @abstractmethod
    def flow(self) -> Plan:
        """The current plan."""

    @abstractmethod
    def read_output(self, name: str) -> pa.Table:
        """Read the rows that an output has after the last epoch, as updates that all have one time. O(rows)."""

    @abstractmethod
    def is_new_output(self, name: str) -> bool:
        """Return whether an output is new. For a new output, the next epoch has all existing rows as updates."""

    @abstractmethod
    def publish_connector_positions(self) -> None:
        """Publish the attached sources and sinks if they differ from those in the newest manifest.

        Raises the errors of a commit.
        """

    def find_partition_splitter(self, receipt: Epoch, name: str, key: Sequence[str] | None) -> InParts | None:
        """Return a function that processes the updates of an output in parts. Return None if the updates are not split.

        ``key``: all updates with the same values of these columns must be in one part. If ``key`` is None, all updates
        of equal rows must be in one part. If ``key`` is (), the updates can be split in any way.
        """
        return None

    def read_rows_as_updates(self, name: str) -> pa.Table:
        """Read the current rows of an output as updates at the last time, with a ``_diff`` column. O(rows).

        The table is empty for a side output. The table of a new output is empty, because the next epoch has all rows of
        the output.
        """
        if self.is_new_output(name) or self.manifest.last == NEVER or name not in self.flow.outputs:
            rows = build_mode_schema("upsert", self.output_schema(name)).empty_table()
        else:
            rows = self.read_output(name)
            if DIFF in rows.schema.names:
                return rows
            rows = rows.select([name for name in rows.schema.names if name not in (TIME, DELETED)])
        return self.add_time_column(rows.append_column(DIFF, pa.array(np.ones(rows.num_rows, np.int64))))

    def add_time_column(self, rows: pa.Table) -> pa.Table:
        """Add a ``_time`` column that contains the last time of the state.

        The column is placed before the last column ``_diff``. O(rows).
        """
        times = build_time_column(np.full(rows.num_rows, self.manifest.last), self.flow.time_type)
        return rows.append_column(TIME, times).select([*rows.schema.names[:-1], TIME, DIFF])

    @property
    def manifest(self) -> Manifest:
        """The newest manifest."""
        return self.log.manifest_log.manifest

    def list_epochs(self, after: int = 0) -> Iterator[Epoch]:
        """List the kept epochs after the epoch ``after``, in ascending order. O(listed epochs + kept log).

        Raises `CorruptState`.
        """
        manifest = self.manifest
        yield from self.log.manifest_log.backlog.list_receipts(manifest.backlog, after)
        yield from (each for each in manifest.receipts if each.epoch > after)

    def find_first_lost_epoch(self, after: int) -> int | None:
        """Return the first committed epoch that comes after the epoch ``after`` and is not kept.

        Return None if all later epochs are kept. O(1).
        """
        oldest = self.manifest.epoch + 1 if self.manifest.oldest_epoch is None else self.manifest.oldest_epoch
        return after + 1 if after + 1 < oldest and after < self.manifest.epoch else None

    @property
    def hash_secret(self) -> Secret:
        """The state's secret."""
        return Secret(*self.manifest.secret)

    def output_schema(self, name: str) -> pa.Schema:
        """Return the schema of an output's updates."""
        schema = self.flow.updates_schema(name)
        assert schema is not None, f"{name!r} is an output"
        return schema

    def read_updates(self, receipt: Epoch, name: str) -> pa.Table:
        """Read the updates that all calls of an epoch made to an output. O(bytes). Raises `CorruptState`."""
        schema, past = self.output_schema(name), self.log.find_past_schemas(receipt.epoch)
        there = None if past is None else past.outputs[name]
        given = [
            self.log.read_call_output(receipt.epoch, name, call.outputs[name], schema, there, self.batch_store)
            for call in receipt.calls
            if name in call.outputs
        ]
        return pa.concat_tables([each.cast(schema) for each in given]) if given else schema.empty_table()

    def find_manifest_digest(self, epoch: int) -> str | None:
        """Return the digest of the manifest that committed an epoch. Return None if the digest is no longer kept."""
        found = next(self.list_epochs(epoch - 1), None)
        if epoch == self.manifest.epoch and (found is None or not found.digest):
            return self.log.manifest_log.digest
        return found.digest if found is not None and found.epoch == epoch else None

    def read_commit_time(self, epoch: int) -> int:
        """Return the time when the manifest of a kept epoch was written, in milliseconds since 1970."""
        found = next(self.list_epochs(epoch - 1), None)
        return self.manifest.written if found is None or found.written is None else found.written


class EngineEpochs(RetainedEpochs):
    """The kept epochs of an engine. ``asked``: the purpose of reading the epochs, for error messages.

    Raises `SpecError` if the state is in memory.
    """

    def __init__(self, calls: EngineCalls, asked: str) -> None:
        if calls.durable is None:
            raise SpecError(asked, "this engine's state is in memory", "open the flow with a state: flow.open('state')")
        self.calls, self.durable = calls, calls.durable
        super().__init__(self.durable.log, self.durable.batch_store)

    @property
    def flow(self) -> Plan:
        """The engine's plan."""
        return self.calls.dataflow.flow

    def read_output(self, name: str) -> pa.Table:
        """Read the current rows of an output from the operators of the engine."""
        with self.calls.dataflow.open_read_copy(f"read {name!r}") as still:
            return still.graph.read_output(still.flow.outputs[name], still.last)

    def is_new_output(self, name: str) -> bool:
        """Return whether the next step will return the existing rows of an output."""
        return name in self.calls.dataflow.owed

    def publish_connector_positions(self) -> None:
        """Publish the positions of sources and sinks together with the state of the engine."""
        self.durable.publish_connector_positions(self.calls.dataflow)
