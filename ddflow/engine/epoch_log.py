"""Open a state with a plan, find its committed epochs, and publish new ones in sequence.

An engine and a driver of Spark tasks each have an `EpochLog`; an engine is a driver with one partition.
`engine.commits` and `partitions.commit` know the contents of partitions and the rows of calls.

Guarantees: an epoch is one version of the state, published as a whole with its outputs or not at all. Its files and the
names of its outputs are durable before its manifest. Its outputs become visible after the manifest, and only then older
versions are deleted.
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

KEPT: Final = 8
"""The number of epochs that can be replayed."""
TIDY: Final = 2_000
"""The most inventories in a state whose commits collect garbage. Larger states need ``ddflow gc``."""

Fits = Callable[[Manifest, str], None]
"""Raises an error if the version of a place does not fit the options of the open call."""


class LogOptions(NamedTuple):
    """How a state is opened, see `Flow.open`. ``keep``: the number of epochs that can be replayed."""

    outputs: str | PathLike[str] | None = None
    trust: str = "owner"
    grace: float = GRACE
    keep: int = KEPT
    secret: Secret | None = None


class EpochLog:
    """The epochs of a state. `EpochLog.open` makes it.

    ``flow``: the state's plan, at the time of opening. ``manifest_log``: its manifests. ``change``: the difference
    between the plan and the state's. ``outputs``: the folders of outputs. ``keep``: the number of epochs that can be
    replayed.

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
    ddflow.errors.EpochSkipped: epoch 3: the last one committed is 1, and the outputs of [1] are kept; give epoch 2
    """

    def __init__(self, flow: Plan, manifest_log: ManifestLog, change: PlanChange, outputs: Outputs, keep: int) -> None:
        self.flow, self.manifest_log, self.change, self.outputs, self.keep = flow, manifest_log, change, outputs, keep
        self.set_plan(flow)
        manifest = manifest_log.manifest
        self.sources, self.sinks = dict(manifest.sources), dict(manifest.sinks)
        """The sources and sinks of the next version."""
        self.added = dict(manifest.added)
        """By input, the columns that it got from its source."""
        self._tidy = False
        """Whether the files of earlier writers were checked for garbage."""

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
        """Open a state, or make a new one with ``partitions``. O(plan).

        The first process publishes a new state with its plan, so the plan is compared after that too. Until the first
        commit, any plan fits. ``flow``: frozen. ``catches_up``: whether the flow may lack columns that the state got
        from its sources. Raises `PlanChanged`, `SpecError`, `CorruptState`, the errors of ``fits`` and of the store.
        Nothing was made then, except perhaps a new state.
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
                flow, _ = build_plan_with_time_type(flow, read_step_time_type(manifest.plan, store.where))
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
        """Raise `SpecError` for columns that the files of a state, or its output folder, cannot hold. O(columns)."""
        check_storable_types(flow)
        if self.outputs.sink is not None:
            self.outputs.sink.check_claim(
                self.manifest_log.manifest.id, {name: node.schema for name, node in flow.outputs.items()}
            )

    def evolve_columns(self, flow: Plan, columns: Mapping[str, Sequence[str]]) -> None:
        """Continue with wider or more columns, which the next version has. ``columns``: new ones, by input. O(plan)."""
        self.added |= {name: (*self.added.get(name, ()), *of) for name, of in columns.items()}
        self.set_plan(flow)
        self.change = compare_plans(self.manifest_log.manifest.plan, flow, self.manifest_log.store.where)

    def set_plan(self, flow: Plan) -> None:
        """Continue with another plan, such as one with another type of times, which the next version has. O(plan)."""
        self.plan = describe_plan(flow)
        self.fingerprint = fingerprint_plan(self.plan)

    @property
    def epoch(self) -> int:
        """The last committed epoch."""
        return self.manifest_log.manifest.epoch

    def resume_from_newest_version(self, files: set[str]) -> set[str]:
        """Continue from the newest version, and publish its outputs. O(its files). Raises `StorageFailed`.

        ``files``: the names of its inventories and of all files in them. Returns these names and the names of output
        files.
        """
        self.manifest_log.names = files | list_state_file_names(self.manifest_log.manifest.output_files())
        self.outputs.publish_fragments(self.manifest_log.manifest.receipts)
        return self.manifest_log.names

    def close(self) -> None:
        """Close the store. A second call does nothing."""
        self.manifest_log.wait_for_sweep()
        with suppress(DdflowError):  # the next opening of the state repeats it
            self.outputs.sync_sinks()
        self.manifest_log.store.close()

    def find_committed_epoch(self, epoch: int, asked: str) -> Epoch | None:
        """Return the record of a committed epoch; None if it is the next one. O(epochs kept).

        ``asked``: the request, for messages. Raises `EpochSkipped` for any other epoch.
        """
        if epoch == self.epoch + 1:
            return None
        found = next((each for each in self.manifest_log.manifest.receipts if each.epoch == epoch and each.calls), None)
        if found is None:
            raise self.make_skip_error(asked)
        return found

    def make_skip_error(self, asked: str) -> EpochSkipped:
        """Make the error for an epoch that is neither the next one nor kept."""
        return EpochSkipped(
            asked,
            f"the last one committed is {self.epoch}, and the outputs of "
            f"{[each.epoch for each in self.manifest_log.manifest.receipts]} are kept",
            f"give epoch {self.epoch + 1}",
        )

    def add_receipt(self, epoch: Epoch) -> tuple[Epoch, ...]:
        """Add an epoch to the receipts of the newest manifest; `publish_version` drops unneeded ones. O(receipts)."""
        return (*self.manifest_log.manifest.receipts, epoch)

    def find_past_schemas(self, epoch: int) -> PastSchemas | None:
        """Return the columns of an epoch at its commit; None if the plan still has them. O(past columns)."""
        manifest, where = self.manifest_log.manifest, f"the manifest of {self.manifest_log.store.where}"
        known = retain_past_columns(manifest.past, self._previous_plan, manifest.epoch, manifest.oldest_epoch)
        return find_past_schemas([PastSchemas.from_record(each, where) for each in known], epoch)

    def read_call_output(
        self, epoch: int, name: str, output: Output, schema: pa.Schema, there: pa.Schema | None, batches: BatchStore
    ) -> pa.Table:
        """Read the updates of an output in one call of an epoch, in its current columns. O(bytes).

        ``there``: the columns at that time, None if they are the same. Raises `CorruptState`, and `SchemaMismatch` for
        a value that does not fit its current type.
        """
        read, columns = self.outputs.read_fragment, schema if there is None else there
        table = pa.concat_tables(read(epoch, Fragment(name, blob), columns, batches) for blob in output.blobs)
        if table.num_rows != output.rows:
            raise CorruptState(
                f"the files {[blob.name for blob in output.blobs]} of {self.manifest_log.store.where}",
                f"they have {table.num_rows:,} rows, the manifest says {output.rows:,}",
                ErrorText("restore them from a copy, or go back with ", CommandFix("rollback")),
            )
        if there is None:
            return table
        try:
            return pa.Table.from_batches([conform_to_wider_schema(table, schema)])
        except InexactValue as error:
            raise SchemaMismatch(
                f"epoch {epoch} given again",
                f"column {error.column!r} of output {name!r} had a value that its type of now does not hold: {error}",
                "go on with the next epoch",
                column=error.column,
            ) from None

    @property
    def _previous_plan(self) -> Plan | None:
        """The plan of the newest version, if it has other columns than the current plan."""
        return None if self.manifest_log.manifest.fingerprint == self.fingerprint else self.change.before

    def publish_version(
        self, receipts: tuple[Epoch, ...], inventories: tuple[Blob, ...], files: set[str], note: str, **state: Any
    ) -> None:
        """Publish the next version, for a new epoch, the last of ``receipts``, or as another version of the same epoch.

        ``inventories``: one for each part. ``files``: the names of all files in them. ``state``: the changed fields of
        the manifest. O(what changed); the first call also collects garbage of earlier writers. Raises `Fenced`,
        `StorageFull`, `StorageFailed` if it did not happen, and `OutcomeUnknown` if it may have.
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
        """Publish only the positions of sources, and of sinks of existing outputs. Like `publish_version`."""
        log, sinks = self.manifest_log, {n: each for n, each in self.sinks.items() if n not in self.change.outputs}
        log.wait_for_sweep()
        new = replace(log.manifest, sources=dict(self.sources), sinks=sinks)
        log.commit(new, log.manifest.inventories, log.names, note)

    def _select_backlog(self, receipts: tuple[Epoch, ...]) -> tuple[tuple[BacklogFile, ...], tuple[Epoch, ...]]:
        """Return the backlog and the receipts of the next version. O(changes + log kept)."""
        log = self.manifest_log
        taken, backlog = (
            min(sink.epoch for sink in self.sinks.values()) if self.sinks else GREATEST,
            log.manifest.backlog,
        )
        if backlog and self.outputs.has_new_sink:  # drop epochs that only the old folder has
            backlog, receipts = (), (*log.backlog.list_receipts(backlog, taken), *receipts)
        return log.backlog.move_receipts(
            backlog, log.add_digest_to_receipts(self.outputs.select_readable_receipts(receipts)), self.keep, taken
        )

    def finish_epoch(self, apart: float = math.inf) -> None:
        """Publish the outputs of the newest epoch, then delete expired versions. O(its files + deleted files).

        ``apart``: as in `ManifestLog.sweep_old_manifests`. Raises `OutcomeUnknown`; the epoch is committed then.
        """
        try:
            self.outputs.publish_fragments(self.manifest_log.manifest.receipts[-1:])
        except (StorageFull, StorageFailed) as error:  # these would say that the commit failed
            raise OutcomeUnknown(
                f"commit epoch {self.epoch}",
                f"it is committed, and its outputs are hidden: {error.found}",
                "open the state again, which shows them",
            ) from error
        self.manifest_log.sweep_old_manifests(apart)

    def _collect_garbage_once(self) -> None:
        """Collect garbage once, and adopt the versions of earlier writers. O(their files). Never fails.

        If a file is unaccounted for, nothing is deleted; ``ddflow gc`` says why.
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
    """Raise `SpecError` for a column that the files of a state cannot hold. O(columns)."""
    schemas: dict[str, pa.Schema] = {f"input {name!r}": input.bound.schema for name, input in flow.inputs.items()}
    schemas |= {f"output {name!r}": node.schema for name, node in flow.outputs.items()}
    for what, schema in schemas.items():
        for field in schema:
            if not is_readable_type(field.type):
                raise SpecError(
                    f"open a state with {what}",
                    f"its column {field.name!r} is {field.type}, which files of a state cannot hold",
                    "declare another type, or project it away",
                    column=field.name,
                )
