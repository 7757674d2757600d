"""Open a state with a plan, find its committed epochs, and publish new epochs in sequence.

Each engine and each driver of Spark tasks has an `EpochLog`. An `EpochLog` treats an engine like a driver with one
partition. The contents of partitions and the rows of calls are handled in the modules `engine.commits` and
`partitions.commit`.

Guarantees: an epoch is one version of the state. An epoch is published together with all its outputs, or not at all.
The files of an epoch and the names of its outputs are durable before its manifest is published. The outputs of an epoch
become visible after its manifest is published. Older versions are deleted only after the outputs are visible.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
from msgspec.structs import replace

from ddflow.columns.hashing import Secret
from ddflow.columns.widening import InexactValue, conform_to_wider_schema
from ddflow.connectors.parquet.sink import Fragment
from ddflow.engine.garbage import collect_file_names, gc
from ddflow.engine.outputs import Outputs
from ddflow.errors import (
    CommandFix,
    CorruptState,
    DdflowError,
    EpochSkipped,
    ErrorText,
    OutcomeUnknown,
    SchemaMismatch,
    SpecError,
    StorageFailed,
    StorageFull,
)
from ddflow.plan.compatibility import (
    PlanChange,
    add_state_columns,
    adopt_wide_offset_types,
    compare_plans,
    warn_of_new_columns,
)
from ddflow.plan.evolve import (
    PastSchemas,
    build_plan_with_time_type,
    find_past_schemas,
    retain_past_columns,
    share_join_arrangements,
)
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import describe_plan, fingerprint_plan, read_step_time_type
from ddflow.storage.backlog import BacklogFile
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.epochs import Epoch, Output
from ddflow.storage.files.arrow_file import is_readable_type
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.inventory_text import list_state_file_names
from ddflow.storage.manifest import Manifest
from ddflow.storage.manifest_log import GRACE, ManifestLog, load_newest_manifest
from ddflow.storage.opening import open_store
from ddflow.storage.protocol import GREATEST, Blob, Store
from ddflow.time import INT64

KEPT: Final = 8
"""The number of recent epochs that can be replayed."""
TIDY: Final = 2_000
"""The maximum number of inventories of a state. Commits collect no garbage in a state with more inventories.

If a state has more, run ``ddflow gc``.
"""

Fits = Callable[[Manifest, str], None]
"""A function that checks whether a version of the state fits the options of the open call.

The second argument is the place of the state. The function raises an error if the version does not fit.
"""


class LogOptions(NamedTuple):
    """The options for opening a state; see `Flow.open`. ``keep``: the number of epochs that can be replayed."""

    outputs: str | PathLike[str] | None = None
    trust: str = "owner"
    grace: float = GRACE
    keep: int = KEPT
    secret: Secret | None = None


class EpochLog:
    """The epochs of a state. `EpochLog.open` makes an `EpochLog`.

    ``flow``: the state's plan, at the time of opening. ``manifest_log``: the state's manifests. ``change``: the
    difference between the current plan and the plan of the newest manifest. ``outputs``: the folders of outputs.
    ``keep``: the number of epochs that can be replayed.

    >>> import ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> log = EpochLog.open(flow.frozen(), MemoryStore(), partitions=1, fits=lambda manifest, where: None)
    >>> log.publish_version(log.add_receipt(Epoch(1, (), None)), (), set(), "an example", last=7)
    >>> log.epoch, log.find_committed_epoch(2, "epoch 2"), log.manifest_log.manifest.last
    (1, None, 7)
    >>> log.find_committed_epoch(3, "epoch 3")
    Traceback (most recent call last):
        ...
    ddflow.errors.EpochSkipped: epoch 3: the last committed epoch is 1, and the outputs of [1] are kept; pass epoch=2
    """

    def __init__(self, flow: Plan, manifest_log: ManifestLog, change: PlanChange, outputs: Outputs, keep: int) -> None:
        self.flow, self.manifest_log, self.change, self.outputs, self.keep = flow, manifest_log, change, outputs, keep
        self.set_plan(flow)
        manifest = manifest_log.manifest
        self.sources, self.sinks = dict(manifest.sources), dict(manifest.sinks)
        """The positions of sources and sinks to publish with the next version."""
        self.added = dict(manifest.added)
        """For each input, the columns that a source has added."""
        self._tidy = False
        """Whether this log has already collected the garbage of earlier writers."""

    @classmethod
    def open(
        cls,
        flow: Plan,
        state: str | PathLike[str] | Store | None,
        *,
        partitions: int,
        fits: Fits,
        options: LogOptions | None = None,
        catches_up: bool = False,
    ) -> Self:
        """Open a state, or create a new state with ``partitions`` partitions. O(plan).

        If two processes create a state at the same time, only one of them publishes its plan. So even after a creation,
        the plan is compared with the state. Until the first commit, any plan is accepted. ``flow``: the frozen plan.
        ``catches_up``: whether the flow is allowed to lack columns that sources added to the state. Raises
        `PlanChanged`, `SpecError`, `CorruptState`, and the errors of ``fits`` and of the store. After an error, nothing
        was created, except that a new empty state may exist.
        """
        check_storable_types(flow)
        options = options or LogOptions()
        store = open_store(state, trust=options.trust)
        with undo_on_failure(store.close):
            manifest = load_newest_manifest(store)
            if manifest is not None and catches_up:
                flow = add_state_columns(manifest.plan, flow, manifest.added, store.where)
            if manifest is not None:
                flow = adopt_wide_offset_types(manifest.plan, flow, store.where)
                kind = read_step_time_type(manifest.plan, store.where)
                flow = flow if manifest.epoch == 0 and kind == INT64 else build_plan_with_time_type(flow, kind)[0]
            flow = share_join_arrangements(flow, None if manifest is None else manifest.plan)
            plan = describe_plan(flow)
            schemas = {name: node.schema for name, node in flow.outputs.items()}
            where = Outputs.open(options.outputs, store, manifest, schemas, options.trust)
            if manifest is None:
                secret = options.secret or Secret.fresh()
                manifest_log = ManifestLog.create(
                    store, plan, fingerprint_plan(plan), secret, where.sink_path, options.grace, partitions
                )
            else:
                manifest_log = ManifestLog(store, manifest, set(), options.grace)
            change = PlanChange()
            if manifest_log.manifest.epoch or manifest_log.manifest.inventories:
                change = compare_plans(manifest_log.manifest.plan, flow, store.where)
            fits(manifest_log.manifest, store.where)
            for each in warn_of_new_columns(change, flow):
                warnings.warn(f"open {store.where}: {each}", stacklevel=5)
            names = [*flow.outputs, *flow.side_outputs()]
            where.check_dropped_outputs(manifest_log.manifest, names)
            where.claim_sink(manifest_log.manifest, store, names)
        return cls(flow, manifest_log, change, where, options.keep)

    def check_storable_columns(self, flow: Plan) -> None:
        """Raise `SpecError` if a column has a type that the files of a state or the output folder cannot store."""
        check_storable_types(flow)
        if self.outputs.sink is not None:
            self.outputs.sink.check_claim(
                self.manifest_log.manifest.id, {name: node.schema for name, node in flow.outputs.items()}
            )

    def evolve_columns(self, flow: Plan, columns: Mapping[str, Sequence[str]]) -> None:
        """Continue with a plan whose columns are wider or new. ``columns``: the new columns, by input. O(plan)."""
        self.added |= {name: (*self.added.get(name, ()), *of) for name, of in columns.items()}
        self.set_plan(flow)
        self.change = compare_plans(self.manifest_log.manifest.plan, flow, self.manifest_log.store.where)

    def set_plan(self, flow: Plan) -> None:
        """Continue with another plan, for example with another type of times. The next version contains this plan.

        O(plan).
        """
        self.plan = describe_plan(flow)
        self.fingerprint = fingerprint_plan(self.plan)

    @property
    def epoch(self) -> int:
        """The number of the last committed epoch."""
        return self.manifest_log.manifest.epoch

    def resume_from_newest_version(self, files: set[str]) -> set[str]:
        """Continue from the newest version of the state, and publish the outputs of this version.

        O(number of files of the version). Raises `StorageFailed`. ``files``: the names of the version's inventories,
        and the names of all files that these inventories list. Returns ``files`` together with the names of output
        files.
        """
        self.manifest_log.names = files | list_state_file_names(self.manifest_log.manifest.output_files())
        self.outputs.publish_fragments(self.manifest_log.manifest.receipts)
        return self.manifest_log.names

    def close(self) -> None:
        """Close the store. A second call does nothing."""
        self.manifest_log.wait_for_sweep()
        with suppress(DdflowError):  # the next opening of the state repeats the call
            self.outputs.sync_sinks()
        self.manifest_log.store.close()

    def find_committed_epoch(self, epoch: int, asked: str) -> Epoch | None:
        """Return the record of a committed epoch. Return None for the next epoch. O(epochs kept).

        ``asked``: the request, for messages. Raises `EpochSkipped` for every other epoch.
        """
        if epoch == self.epoch + 1:
            return None
        found = next((each for each in self.manifest_log.manifest.receipts if each.epoch == epoch and each.calls), None)
        if found is None:
            raise self.make_skip_error(asked)
        return found

    def make_skip_error(self, asked: str) -> EpochSkipped:
        """Make the error for an epoch that is not the next epoch and is not kept."""
        return EpochSkipped(
            asked,
            f"the last committed epoch is {self.epoch}, and the outputs of "
            f"{[each.epoch for each in self.manifest_log.manifest.receipts]} are kept",
            f"pass epoch={self.epoch + 1}",
        )

    def add_receipt(self, epoch: Epoch) -> tuple[Epoch, ...]:
        """Return the receipts of the newest manifest, followed by ``epoch``.

        `publish_version` drops receipts that are no longer needed. O(receipts).
        """
        return (*self.manifest_log.manifest.receipts, epoch)

    def find_past_schemas(self, epoch: int) -> PastSchemas | None:
        """Return the columns that inputs and outputs had at an epoch. Return None if they are still the same.

        O(past columns).
        """
        manifest, where = self.manifest_log.manifest, f"the manifest of {self.manifest_log.store.where}"
        known = retain_past_columns(manifest.past, self._previous_plan, manifest.epoch, manifest.oldest_epoch)
        return find_past_schemas([PastSchemas.from_record(each, where) for each in known], epoch)

    def read_call_output(
        self, epoch: int, name: str, output: Output, schema: pa.Schema, there: pa.Schema | None, batches: BatchStore
    ) -> pa.Table:
        """Read the updates that one call of an epoch made to an output, in the current columns of the output. O(bytes).

        ``there``: the columns at the commit of the epoch, None if they have not changed. Raises `CorruptState`. Raises
        `SchemaMismatch` if a value does not fit the current type of its column.
        """
        read, columns = self.outputs.read_fragment, schema if there is None else there
        table = pa.concat_tables(read(epoch, Fragment(name, blob), columns, batches) for blob in output.blobs)
        if table.num_rows != output.rows:
            raise CorruptState(
                f"the files {[blob.name for blob in output.blobs]} of {self.manifest_log.store.where}",
                f"they have {table.num_rows:,} rows, but the manifest says {output.rows:,}",
                ErrorText("restore them from a backup, or go back with ", CommandFix("rollback")),
            )
        if there is None:
            return table
        try:
            return pa.Table.from_batches([conform_to_wider_schema(table, schema)])
        except InexactValue as error:
            raise SchemaMismatch(
                f"replay of epoch {epoch}",
                f"column {error.column!r} of output {name!r} had a value that does not fit its current type: {error}",
                "continue with the next epoch",
                column=error.column,
            ) from None

    @property
    def _previous_plan(self) -> Plan | None:
        """The plan of the newest version; None if the current plan has the same columns."""
        return None if self.manifest_log.manifest.fingerprint == self.fingerprint else self.change.before

    def publish_version(
        self, receipts: tuple[Epoch, ...], inventories: tuple[Blob, ...], files: set[str], note: str, **state: Any
    ) -> None:
        """Publish the next version.

        If ``receipts`` end with a new epoch, the version belongs to this epoch. Otherwise the version belongs to the
        same epoch as the newest version. ``inventories``: one for each partition. ``files``: the names of all files in
        the inventories. ``state``: the changed fields of the manifest. O(what changed). The first call also collects
        the garbage of earlier writers. Raises `Fenced`, `StorageFull` or `StorageFailed` if the version was not
        published. Raises `OutcomeUnknown` if it is unknown whether the version was published.
        """
        before = self.manifest_log.manifest
        backlog, receipts = self._select_backlog(receipts)
        new = replace(
            before,
            epoch=max(before.epoch, receipts[-1].epoch if receipts else 0),
            plan=self.plan,
            fingerprint=self.fingerprint,
            backlog=backlog,
            receipts=receipts,
            folder=self.outputs.sink_path or before.folder,
            sources=dict(self.sources),
            sinks=dict(self.sinks),
            added=dict(self.added),
            **state,
        )
        new = replace(new, past=retain_past_columns(before.past, self._previous_plan, before.epoch, new.oldest_epoch))
        self.manifest_log.wait_for_sweep()
        if not self._tidy:
            self._collect_garbage_once()
        self.outputs.sync_sinks()
        self.manifest_log.commit(new, inventories, files | list_state_file_names(new.output_files()), note)
        if new.epoch > before.epoch:
            self.change = PlanChange()

    def publish_connector_positions(self, note: str) -> None:
        """Publish the positions of sources and sinks, but no new state. A sink is left out if its output is new.

        Like `publish_version`.
        """
        log, sinks = self.manifest_log, {n: each for n, each in self.sinks.items() if n not in self.change.outputs}
        log.wait_for_sweep()
        new = replace(log.manifest, sources=dict(self.sources), sinks=sinks)
        log.commit(new, log.manifest.inventories, log.names, note)

    def _select_backlog(self, receipts: tuple[Epoch, ...]) -> tuple[tuple[BacklogFile, ...], tuple[Epoch, ...]]:
        """Return the backlog and the receipts for the next version. O(changes + kept part of the log)."""
        log = self.manifest_log
        taken, backlog = (
            min(sink.epoch for sink in self.sinks.values()) if self.sinks else GREATEST,
            log.manifest.backlog,
        )
        if backlog and self.outputs.has_new_sink:  # drop the epochs whose updates are only in the old folder
            backlog, receipts = (), (*log.backlog.list_receipts(backlog, taken), *receipts)
        return log.backlog.move_receipts(
            backlog, log.add_digest_to_receipts(self.outputs.select_readable_receipts(receipts)), self.keep, taken
        )

    def finish_epoch(self, apart: float = math.inf) -> None:
        """Publish the outputs of the newest epoch. Then delete expired versions. O(published files + deleted files).

        ``apart``: as in `ManifestLog.sweep_old_manifests`. Raises `OutcomeUnknown` if the epoch is committed but its
        outputs could not be published.
        """
        try:
            self.outputs.publish_fragments(self.manifest_log.manifest.receipts[-1:])
        except (StorageFull, StorageFailed) as error:  # these errors would say that the commit failed
            raise OutcomeUnknown(
                f"commit epoch {self.epoch}",
                f"it is committed, but its outputs are still hidden: {error.found}",
                "open the state again to show them",
            ) from error
        self.manifest_log.sweep_old_manifests(apart)

    def _collect_garbage_once(self) -> None:
        """Collect garbage once. Also load the manifests of earlier writers. O(files of earlier writers). Never raises.

        If a manifest cannot be read, nothing is deleted, and ``ddflow gc`` tells the reason.
        """
        self._tidy = True
        store = self.manifest_log.store
        try:
            if len(store.list_manifests()) * len(self.manifest_log.manifest.inventories) <= TIDY:
                gc(store, grace=self.manifest_log.grace)
                self.manifest_log.load_past_manifests(collect_file_names)
        except DdflowError:
            self.manifest_log.grace = math.inf


def check_storable_types(flow: Plan) -> None:
    """Raise `SpecError` if the files of a state cannot store the type of a column. O(columns)."""
    schemas: dict[str, pa.Schema] = {f"input {name!r}": input.bound.schema for name, input in flow.inputs.items()}
    schemas |= {f"output {name!r}": node.schema for name, node in flow.outputs.items()}
    for what, schema in schemas.items():
        for field in schema:
            if not is_readable_type(field.type):
                raise SpecError(
                    f"open a state with {what}",
                    f"its column {field.name!r} is {field.type}, which files of a state cannot hold",
                    "declare another type, or omit the column with project(...)",
                    column=field.name,
                )
