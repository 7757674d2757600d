"""Commit the calls of an engine as epochs of a durable state. Each epoch is published completely or not at all.

Guarantees: a repeated call is recognized by the digest of its rows. After a crash, the state has either the older or
the newer version, and this version is complete.

>>> import ddflow as dd
>>> from ddflow.storage.memory import MemoryStore
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> with flow.open(MemoryStore()) as engine:
...     first = engine.step({"people": pa.table({"id": [1]})}, time=5)
...     again = engine.step({"people": pa.table({"id": [1]})}, time=5)
...     engine.epoch, again["people"].equals(first["people"])
(1, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from shlex import quote
from time import perf_counter
from typing import Any

import pyarrow as pa
import xxhash

from ddflow.columns.hashing import RowHasher, Secret
from ddflow.columns.widening import narrow_columns
from ddflow.dataflow.admission import DecodeProgress, InputValidator
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.inflow import split_rows
from ddflow.dataflow.result import Step
from ddflow.engine import checkpoint as recovery
from ddflow.engine.checkpoint import StoredInventory
from ddflow.engine.epoch_log import EpochLog, LogOptions
from ddflow.engine.outputs import write_output
from ddflow.errors import CommandFix, ErrorText, ReplayMismatch, SchemaMismatch, StateRefused
from ddflow.plan.evolve import evolve_plan
from ddflow.plan.options import EngineOptions
from ddflow.plan.plan import Plan
from ddflow.storage.epochs import Kind
from ddflow.storage.fields import encode_record
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.inventory_text import InventorySectionWriter
from ddflow.storage.manifest import Epoch, EpochCall, Manifest
from ddflow.time import INT64, NEVER, format_time

MOST = 1 << 26
"""The maximum bytes of rows that are hashed together."""


class RowsDigest:
    """A digest of the rows of one input, in the order of the rows.

    ``hashes``: the hasher to use if all rows have the same columns.

    >>> secret, schema = Secret(1, 2), pa.schema({"k": pa.int64()})
    >>> one, two = RowsDigest(secret), RowsDigest(secret)
    >>> one.update(pa.record_batch({"k": [1, 2]}, schema))
    >>> for k in (1, 2):
    ...     two.update(pa.record_batch({"k": [k]}, schema))
    >>> combine_digests("step", 7, {"a": one}) == combine_digests("step", 7, {"a": two, "b": RowsDigest(secret)})
    True
    """

    def __init__(self, secret: Secret, hashes: RowHasher | None = None) -> None:
        self.secret, self.hashes = secret, hashes
        self.rows, self.state = 0, xxhash.xxh3_128()

    def update(self, events: pa.RecordBatch) -> None:
        """Add rows. O(rows)."""
        self.rows += events.num_rows
        hashes = self.hashes or RowHasher(events.schema, self.secret)
        self.state.update(hashes.compute_value_hashes(events.columns, events.num_rows).data)


def combine_digests(kind: str, time: int, digests: Mapping[str, RowsDigest]) -> str:
    """Return the digest of a call, as 32 hexadecimal digits."""
    out = xxhash.xxh3_128(f"{kind} {time}".encode())
    for name, each in sorted(digests.items()):
        if each.rows:
            out.update(f"\n{len(name)} {name} {each.rows} ".encode())
            out.update(each.state.digest())
    return out.hexdigest()


def compute_call_digest(
    kind: str,
    time: int,
    inputs: Mapping[str, Any],
    admissions: Mapping[str, InputValidator],
    secret: Secret,
) -> str:
    """Compute the digest of a call, but do not ingest its rows. O(rows).

    ``admissions``: the inputs with the columns of the original call. Since the original call, columns of the rows can
    have become wider. The rows can have columns that the original call lacked, if these columns contain only nulls.
    Raises `NotArrow`, `SchemaMismatch`.
    """
    digests = {name: RowsDigest(secret) for name in inputs}
    for name, given in inputs.items():
        admission = admissions[name]
        schema = admission.bound.schema
        read = DecodeProgress(admission.table)
        for portion in split_rows(given, admission, MOST):
            for part in admission.decode(portion, read):
                digests[name].update(admission.build_event_batch(narrow_columns(part.rows, schema)))
    return combine_digests(kind, time, digests)


@dataclass
class CallRequest:
    """A call with its arguments. ``time``: the time of a step, or the requested frontier of `advance_to`."""

    kind: Kind
    time: int
    further: str = ""
    """The other arguments of the call, as text. The digest includes this text."""
    began: float = field(default_factory=perf_counter, compare=False)
    """The time at which the call began, in seconds of `perf_counter`."""
    time_type: pa.DataType = field(default=INT64, compare=False)
    """The type of times, used to format ``time`` as text."""

    @property
    def kind_and_arguments(self) -> str:
        """The kind and the further arguments of the call, as text for the digest."""
        return f"{self.kind} {self.further}" if self.further else self.kind

    def __str__(self) -> str:
        return self.kind if self.kind == "push" else f"{self.kind} at {format_time(self.time, self.time_type)}"


class EpochCommitter:
    """Commits the calls of one engine. ``log``: the epochs of the state.

    ``batch_store``, ``sections``: the writers of files and of inventories.
    """

    def __init__(self, log: EpochLog) -> None:
        self.log = log
        self.batch_store, self.sections = (
            BatchStore(log.manifest_log.store),
            InventorySectionWriter(log.manifest_log.store),
        )
        self.calls: list[EpochCall] = []
        """The calls since the last commit, as records for the next epoch.

        The outputs of these calls are already in files.
        """
        self.came: tuple[CallRequest | None, Mapping[str, RowsDigest]] = (None, {})
        """The last call that had rows, and for each input the digest of these rows."""
        self.origin = ""
        """The files that contained the rows of the last call."""
        self._told: tuple[int, int] = (-1, 0)
        """The epoch that is being replayed, and the position of the next call to replay in it."""

    @classmethod
    def open(cls, flow: Plan, options: EngineOptions) -> EpochCommitter:
        """Open the state at the place that ``options`` name, or create a new state there.

        Raises `CorruptState`, `PlanChanged`, and the errors of the store.
        """
        log = EpochLog.open(
            flow,
            options.state,
            partitions=1,
            fits=_check_one_partition,
            options=LogOptions(options.outputs, options.trust, options.grace, secret=options.secret),
            catches_up=True,
        )
        durable = cls(log)
        durable.batch_store.lazy = options.verify == "lazy"
        return durable

    def close(self) -> None:
        """Release the store. Uncommitted calls are lost. A second call does nothing."""
        for call in self.calls:
            for output in call.outputs.values():
                for blob in output.blobs:
                    self.batch_store.delete_unnamed_blob(blob.name)
        self.calls = []
        self.log.close()

    @property
    def hash_secret(self) -> Secret:
        """The state's secret."""
        return Secret(*self.log.manifest_log.manifest.secret)

    def recover_dataflow(self, dataflow: Dataflow) -> dict[str, pa.Table]:
        """Fill the dataflow of a new engine from the state. Return the existing rows of each new output.

        O(bytes of the state). Raises `CorruptState`, which names the damaged file.
        """
        manifest, store = self.log.manifest_log.manifest, self.log.manifest_log.store
        for arranged in dataflow.graph.arrangements.values():
            arranged.slots.lasting = True
        dataflow.frontier, dataflow.last, dataflow.since = manifest.frontier, manifest.last, manifest.since
        dataflow.fed, dataflow.sources = manifest.fed, self.log.sources
        files, stored = set[str](), list[StoredInventory]()
        for part in manifest.inventories:
            stored.append(StoredInventory.read(store, part))
            files |= {part.name} | stored[-1].text.file_names
            self.sections.load_text(stored[-1].text)
        recovery.restore_dataflow(dataflow, stored, self.batch_store, dataflow.budget.memory is None)
        self.batch_store.start_verification()
        self.batch_store.register_manifest_files(self.log.resume_from_newest_version(files))
        if manifest.last == NEVER:
            return {}
        graph = dataflow.graph
        for node, each in graph.keeping.items():
            if not each.arrangements:
                graph.rebuild_state(node, manifest.last, dataflow.frontier, dataflow.since)
        return graph.read_new_outputs(self.log.change.outputs, dataflow.last)

    def find_committed_step(
        self, asked: CallRequest, epoch: int | None, inputs: Mapping[str, Any], dataflow: Dataflow
    ) -> Step | None:
        """Return the step of a committed epoch. Return None for a new epoch.

        O(rows), because the digest of the rows is computed. Raises `ReplayMismatch`, `EpochSkipped`. Raises `Fenced` if
        another writer has committed.
        """
        manifest_log = self.log.manifest_log
        if epoch is None:
            if asked.kind in ("push", "advance_to") or self.calls or asked.time > manifest_log.manifest.last:
                manifest_log.check_still_newest()
                return None
            receipts = manifest_log.manifest.receipts
            found = next(((call, r.epoch) for r in receipts for call in r.calls if call.time == asked.time), None)
            return None if found is None else self._replay_call(*found, asked, inputs, dataflow)
        receipt = self.log.find_committed_epoch(epoch, f"{asked} of epoch {epoch}")
        if receipt is None:
            manifest_log.check_still_newest()
            return None
        if self.calls:
            raise self.log.make_skip_error(f"{asked} of epoch {epoch}")
        at = self._find_replay_position(epoch)
        step = self._replay_call(receipt.calls[at], epoch, asked, inputs, dataflow)
        # When the last call of an epoch has been replayed, the next call to replay is again the first call of this
        # epoch. So an epoch can be replayed many times.
        self._told = (epoch, (at + 1) % len(receipt.calls))
        return step

    def find_call_time(self, epoch: int) -> int | None:
        """Return the time of the next call to replay in a committed epoch. Return None for a new epoch."""
        for receipt in self.log.manifest_log.manifest.receipts:
            if receipt.epoch == epoch and receipt.calls:
                return receipt.calls[self._find_replay_position(epoch)].time
        return None

    def find_epoch_of_same_rows(self) -> int | None:
        """Return an earlier epoch with a single call whose rows equal the rows of the last epoch.

        Return None if there is none. O(epochs kept).
        """
        asked, digests = self.came
        if asked is None:
            return None
        for receipt in self.log.manifest_log.manifest.receipts:
            calls = receipt.calls if receipt.epoch < self.log.epoch else ()
            if len(calls) == 1 and calls[0].digest == combine_digests(asked.kind_and_arguments, calls[0].time, digests):
                return receipt.epoch
        return None

    def _find_replay_position(self, epoch: int) -> int:
        """Return the position of the next call to replay in an epoch."""
        return self._told[1] if self._told[0] == epoch else 0

    def _replay_call(
        self, call: EpochCall, epoch: int, asked: CallRequest, inputs: Mapping[str, Any], dataflow: Dataflow
    ) -> Step:
        past, digest = self.log.find_past_schemas(epoch), ""
        admissions = dataflow.admissions
        if past is not None:
            plan, _ = evolve_plan(dataflow.flow, past.inputs, only=())
            admissions = {name: InputValidator(input.bound) for name, input in plan.inputs.items()}
            for name, each in admissions.items():
                each.table = dataflow.admissions[name].table
        try:
            digest = compute_call_digest(asked.kind_and_arguments, asked.time, inputs, admissions, dataflow.secret)
        except SchemaMismatch:
            if past is None:
                raise
        if (call.kind, call.time, call.digest) != (asked.kind, asked.time, digest):
            raise ReplayMismatch(
                f"{asked}",
                f"it was committed as {CallRequest(call.kind, call.time, time_type=asked.time_type)} with rows of "
                f"digest {call.digest}, but these rows have {f'digest {digest}' if digest else 'other columns'}",
                _suggest_replay(asked.kind == "replace"),
            )
        tables = {
            name: self.log.read_call_output(
                epoch, name, output, dataflow.output_schema(name), past and past.outputs[name], self.batch_store
            )
            for name, output in call.outputs.items()
        }
        step = dataflow.build_committed_step(tables, call.counts, call.frontier)
        step.waits = lambda given, _: given, epoch
        return step

    def publish_connector_positions(self, dataflow: Dataflow) -> None:
        """Publish the positions of sources and sinks if they changed. Raises the errors of `commit`.

        If the existing rows of a new output have not been returned by a step yet, publish only the positions. If the
        published manifest already had the new plan, the new output would no longer count as new.
        """
        manifest = self.log.manifest_log.manifest
        if (self.log.sinks, self.log.sources) != (manifest.sinks, manifest.sources):
            with dataflow.guard.lock_for_write("run"), dataflow.guard.commit:
                if dataflow.owed:
                    self.log.publish_connector_positions("sinks have acknowledged")
                else:
                    self.publish_version(dataflow, manifest.receipts, "sinks have acknowledged")
                self.log.manifest_log.sweep_old_manifests()

    def set_retention(self, dataflow: Dataflow, retain: int) -> None:
        """Keep the history of the last ``retain`` times from now on, and drop older history.

        Raises the errors of `commit`.
        """
        dataflow.retain = retain
        with dataflow.guard.lock_for_write("retain"), dataflow.guard.commit:
            self.publish_version(dataflow, self.log.manifest_log.manifest.receipts, "history is kept from here on")

    def record_call(self, asked: CallRequest, step: Step) -> None:
        """Record a call for the next commit, and write its outputs to files. O(updates).

        Raises the errors of `commit`.
        """
        digests, origin = (self.came[1], self.origin) if self.came[0] is asked else ({}, "")
        digest = combine_digests(asked.kind_and_arguments, asked.time, digests)
        counts = {name: n for name, n in {**step.verdicts.counts, "absent": step.verdicts.absent}.items() if n}
        sink, store = self.log.outputs.sink, self.batch_store
        outputs = {name: write_output(sink, store, name, table) for name, table in step.items() if table.num_rows}
        self.calls.append(EpochCall(asked.kind, asked.time, digest, step.frontier, counts, outputs, {}, origin))

    def commit(self, dataflow: Dataflow) -> int:
        """Publish the calls since the last commit as one epoch, and return its number. O(what changed).

        Raises `Fenced`, `StorageFull`, `StorageFailed`, `OutcomeUnknown`.
        """
        number = self.log.manifest_log.manifest.epoch
        if not self.calls:
            return number
        if len(self.calls) > 1:  # so that the versions of all calls are written as one file
            for each in dataflow.graph.arrangements.values():
                each.spine.merge_unwritten_runs(each.slots, each.merged_index, each.since, each.latest <= each.since)
        epoch = Epoch(number + 1, tuple(self.calls), None)
        note = f"commit of {', '.join(sorted({call.kind for call in self.calls}))}"
        self.publish_version(dataflow, self.log.add_receipt(epoch), note)
        self.calls = []
        self.log.finish_epoch()
        return number + 1

    def publish_version(self, dataflow: Dataflow, receipts: tuple[Epoch, ...], note: str) -> None:
        """Write all state that no file contains yet, and publish the next version. Raises the errors of `commit`."""
        self.batch_store.finish_verification()
        data = encode_record(recovery.make_inventory(dataflow, self.batch_store))
        part = self.sections.write_inventory(data)
        files = self.sections.names
        # From here on, the commit may succeed even if the store reports an error.
        outputs = {blob.name for call in self.calls for output in call.outputs.values() for blob in output.blobs}
        self.batch_store.register_manifest_files(files | outputs)
        greatest, horizons = recovery.find_max_times_and_orders(dataflow)
        self.log.publish_version(
            receipts,
            (part,),
            files,
            note,
            frontier=dataflow.frontier,
            last=dataflow.last,
            since=dataflow.since,
            retain=dataflow.retain,
            greatest=greatest,
            horizons=horizons,
            fed=dataflow.fed,
        )


def _check_one_partition(manifest: Manifest, where: str) -> None:
    """Raise `StateRefused` if a state has several partitions."""
    if manifest.partitions > 1:
        raise StateRefused(
            f"open {where}",
            f"it has {manifest.partitions:,} partitions, but an engine has one",
            f"reduce them to one with ddflow rescale {quote(where)} --partitions 1, or continue on Spark; "
            "dd.read and dd.Snapshot can read it unchanged",
        )


def _suggest_replay(full: bool) -> ErrorText:
    """Return the remedy for a call at a committed time if its rows differ from the committed rows.

    ``full``: the rows are full contents, not events.
    """
    if not full:
        return ErrorText("pass the same rows again, or pass other rows as the next epoch, at a time after the last")
    return ErrorText(
        *("pass the same rows again; to replace this time, go back to the epoch before with ", CommandFix("rollback")),
        ", then pass these rows and all later ones; at a later time they would become the newest contents; ",
        "for several inputs at one time, use replace({name: rows, ...})",
    )
