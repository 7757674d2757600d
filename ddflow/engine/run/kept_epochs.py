"""The committed epochs that sinks still need, and how the table of a sink differs from an output.

Guarantees: an epoch stays with its digest and updates until every sink acknowledges it. A difference counts rows of
the table: deleted, changed where a key stays, or added. A changelog only gets rows.

>>> import ddflow as dd
>>> from ddflow.storage.memory import MemoryStore
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> with flow.open(MemoryStore()) as engine:
...     epochs = EngineEpochs(engine.calls, "an example")
...     _ = engine.step({"people": {"id": [7]}})
...     epochs.gained(next(epochs.kept()), "people").to_pylist(), epochs.held("people").num_rows
([{'id': 7, '_time': 1, '_diff': 1}], 1)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DIFF
from ddflow.connectors.api import TableChanges
from ddflow.connectors.modes import among
from ddflow.engine.calls import Calls
from ddflow.engine.commits import Commits
from ddflow.engine.epoch_log import EpochLog
from ddflow.errors import SpecError
from ddflow.plan.plan import Plan
from ddflow.storage.epochs import Epoch
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.manifest import Manifest

InParts = Callable[[Callable[[pa.Table], bytes]], list[bytes]]
"""Has something made of each part of an epoch's updates, anywhere, and returns all of that."""


class KeptEpochs(ABC):
    """``log``: the state's epochs.  ``batch_store``: reads its files."""

    def __init__(self, log: EpochLog, batch_store: BatchStore) -> None:
        self.log, self.batch_store = log, batch_store

    @property
    @abstractmethod
    def flow(self) -> Plan:
        """The current plan."""

    @abstractmethod
    def held(self, name: str) -> pa.Table:
        """All that an output holds after the last epoch, as its updates of one time.  O(rows)."""

    @abstractmethod
    def owes(self, name: str) -> bool:
        """Whether an output is new, so that the next epoch brings its earlier rows."""

    @abstractmethod
    def acknowledge(self) -> None:
        """Publish what is attached, where the newest manifest does not say it.  Raises as a commit does."""

    def parts(self, receipt: Epoch, name: str, key: Sequence[str] | None) -> InParts | None:
        """Return a function over each part of an output's updates; None if the sink takes them in one piece.

        ``key``: all updates of a key must be in one part; None: all equal rows, (): any.
        """
        return None

    @property
    def manifest(self) -> Manifest:
        """The newest."""
        return self.log.manifest_log.manifest

    def kept(self, after: int = 0) -> Iterator[Epoch]:
        """List the kept epochs after one, ascending. O(those + log kept). Raises `CorruptState`."""
        manifest = self.manifest
        yield from self.log.manifest_log.backlog.receipts(manifest.backlog, after)
        yield from (each for each in manifest.receipts if each.epoch > after)

    def dropped(self, name: str) -> int:
        """Return the last epoch of a dropped output of this name; 0 if there was none. O(1)."""
        return self.manifest.dropped.get(name, 0)

    def lacking(self, after: int) -> int | None:
        """Find the first committed epoch after one that is not kept. O(1)."""
        oldest = self.epoch + 1 if self.manifest.oldest is None else self.manifest.oldest
        return after + 1 if after + 1 < oldest and after < self.epoch else None

    @property
    def epoch(self) -> int:
        """The last one that was committed."""
        return self.manifest.epoch

    @property
    def secret(self) -> Secret:
        """The state's."""
        return Secret(*self.manifest.secret)

    def output_schema(self, name: str) -> pa.Schema:
        """Return the columns of an output's updates."""
        schema = self.flow.updates_schema(name)
        assert schema is not None, f"{name!r} is an output"
        return schema

    def gained(self, receipt: Epoch, name: str) -> pa.Table:
        """Read the updates of an output in all calls of an epoch. O(bytes). Raises `CorruptState`."""
        schema, past = self.output_schema(name), self.log.past(receipt.epoch)
        there = None if past is None else past.outputs[name]
        given = [
            self.log.table(receipt.epoch, name, call.outputs[name], schema, there, self.batch_store)
            for call in receipt.calls
            if name in call.outputs
        ]
        return pa.concat_tables([each.cast(schema) for each in given]) if given else schema.empty_table()

    def digest(self, epoch: int) -> str | None:
        """Return the digest of the manifest that committed an epoch; None if it is no longer kept."""
        found = next(self.kept(epoch - 1), None)
        if epoch == self.epoch and (found is None or not found.digest):
            return self.log.manifest_log.digest
        return found.digest if found is not None and found.epoch == epoch else None

    def written(self, epoch: int) -> int:
        """When the manifest that committed an epoch was written, in unix milliseconds.  The epoch is kept."""
        found = next(self.kept(epoch - 1), None)
        return self.manifest.written if found is None or found.written is None else found.written


class EngineEpochs(KeptEpochs):
    """The kept epochs of an engine. ``asked``: their use, for messages. Raises `SpecError` for state in memory."""

    def __init__(self, calls: Calls, asked: str) -> None:
        self.calls, self.durable = calls, durable(calls, asked)
        super().__init__(self.durable.log, self.durable.batch_store)

    @property
    def flow(self) -> Plan:
        """The engine's."""
        return self.calls.dataflow.flow

    def held(self, name: str) -> pa.Table:
        """Read an output's rows from the operators."""
        with self.calls.dataflow.at_rest(f"read {name!r}") as still:
            return still.graph.output(still.flow.outputs[name], still.last)

    def owes(self, name: str) -> bool:
        """Whether the next step gives it."""
        return name in self.calls.dataflow.owed

    def acknowledge(self) -> None:
        """With the engine's state."""
        self.durable.acknowledge(self.calls.dataflow)


def durable(calls: Calls, asked: str) -> Commits:
    """Return the commits of an engine on durable state. Raises `SpecError` if the state is in memory."""
    if calls.durable is None:
        raise SpecError(asked, "this engine's state is in memory", "open the flow with a state: flow.open('state')")
    return calls.durable


class Synced(NamedTuple):
    """Counts of the table's rows that `Engine.sync` wrote, or would write."""

    deleted: int
    """That went."""
    changed: int
    """That got other values beside their key."""
    added: int
    """That are new."""
    keys: pa.Table | None = None
    """The keys of deleted rows, then of changed rows; None if rows are only added."""


def told(made: TableChanges, both: pa.Table, key: Sequence[str] | None, secret: Secret) -> Synced:
    """Count the differences that ``made`` writes. O(rows of both).

    ``both``: as updates, the table's rows to delete and the rows to insert.

    >>> updates = pa.table({"id": [2, 2, 3, 4], "n": [9, 2, 3, 4], "_time": [1] * 4, "_diff": [-1, 1, 1, -1]})
    >>> made = TableChanges(updates.select(["id"]), updates.slice(1, 2), 4)
    >>> found = told(made, updates, ("id",), Secret(1, 2))
    >>> found[:3], found.keys.to_pylist()
    ((1, 1, 1), [{'id': 4}, {'id': 2}])
    """
    if made.gone is None:
        return Synced(0, 0, made.rows.num_rows)
    diffs, keys = np.array(both.column(DIFF), np.int64), both.select(list(key or ()))
    theirs, ours = (keys.filter(pa.array(sign)) for sign in (diffs < 0, diffs > 0))
    stays = among(theirs, ours, secret) if key else np.full(theirs.num_rows, ours.num_rows > 0)
    known = among(ours, theirs, secret) if key else np.full(ours.num_rows, theirs.num_rows > 0)
    changed, gone = int(np.count_nonzero(known)), int(-diffs[diffs < 0].sum())
    listed = pa.concat_tables([theirs.filter(pa.array(~stays)), ours.filter(pa.array(known))])
    return Synced(gone - changed, changed, ours.num_rows - changed, listed)
