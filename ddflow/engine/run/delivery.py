"""Deliver the committed epochs of outputs to their sinks, in order, and each epoch exactly once.

The target stores a `TargetRecord` with the number of the last epoch in the same transaction as the rows of this epoch.
After a failure, the run pauses and then opens the target again. The record in the target shows whether the target has
the failed epoch. A table is refused in three cases: it is ahead of the state, it needs epochs that are not kept, or it
has rows of another writer. Only `sync` can repair a refused table.

Guarantees: the state records an epoch as delivered only after the target has the epoch. No waiting epoch is lost,
because the run ingests no rows while `Deliveries.is_backlog_full` returns True.
"""

import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import Final

import pyarrow as pa

from ddflow.connectors.api import (
    OpenSink,
    SinkNotLetIn,
    TableChanges,
    TableShape,
    TableSink,
    TargetRecord,
    check_result_type,
)
from ddflow.connectors.modes import to_table_changes
from ddflow.connectors.table_shape import OTHER_MODE, build_dropped_table_error
from ddflow.engine.run.kept_epochs import RetainedEpochs
from ddflow.engine.run.options import EPOCHS, make_table_shape
from ddflow.engine.run.retry import LASTS, Retry
from ddflow.engine.run.signals import call_repeatedly
from ddflow.errors import SinkAhead, SinkFailed, SinkRefused
from ddflow.metrics import Look, SinkLag
from ddflow.storage.epochs import AttachedSink, Epoch

NAP: Final = 0.01
"""The pause in seconds between two attempts to deliver."""
SYNC: Final = "run ddflow sync, which writes the difference"


class Delivery:
    """Delivers the output ``name`` to its sink.

    ``at``: the last delivered epoch. ``before``: the record in the target. ``look``: as in `OpenSink`. The delivery
    connects to the target in the first call of `deliver_waiting_epochs`. Raises `SpecError`.
    """

    def __init__(self, epochs: RetainedEpochs, name: str, sink: TableSink, look: Look = lambda rows: None) -> None:
        self.epochs, self.name, self.sink, self.look = epochs, name, sink, look
        self.key, self.shape = self._find_table_shape()
        self._table: OpenSink | None = None
        self.before: TargetRecord | None = None
        self.retry = Retry(f"the sink of {name!r}")
        self._sizes = deque[tuple[int, int]]()
        """For each waiting epoch that was counted so far: its number, and the bytes of its updates."""
        known = self.find_sink_record()
        self.at = self.epochs.manifest.epoch if known is None else known.epoch

    @property
    def table(self) -> OpenSink:
        """The table in the target. The first access opens a connection. Raises `SinkFailed`."""
        if self._table is None:
            made = self.sink.open(self.shape)
            check_result_type(f"the sink of {self.name!r}", "open", made, OpenSink)
            self._table = made
            self._table.look = self.look
        return self._table

    def close(self) -> None:
        """Close the target. A second call does nothing."""
        if self._table is not None:
            self._table.close()
            self._table = None

    def update_table_shape(self) -> None:
        """Continue with the current columns of the output, which may have changed."""
        key, shape = self._find_table_shape()
        if shape != self.shape:
            self.close()
            self.key, self.shape = key, shape

    def _find_table_shape(self) -> tuple[tuple[str, ...] | None, TableShape]:
        """Return the key of the output, and the shape of the table in the target."""
        key, shape = make_table_shape(self.epochs.flow, self.name, self.sink)
        known = self.find_sink_record()
        return key, shape if known is None else shape._replace(had=frozenset(known.columns))

    def find_sink_record(self) -> AttachedSink | None:
        """Return the state's record of this sink. Return None if the record belongs to another target."""
        known = self.epochs.log.sinks.get(self.name)
        same = known is not None and (known.kind, known.target) == (self.sink.kind, self.sink.target)
        return known if same else None

    @property
    def waiting_epochs(self) -> int:
        """The number of committed epochs that the sink does not have yet."""
        return self.epochs.manifest.epoch - self.at

    def count_waiting_bytes(self) -> int:
        """Count the bytes of updates that the sink does not have yet. O(waiting epochs).

        The method asks the state only once about each epoch.
        """
        for receipt in self.epochs.list_epochs(max(self.at, self._sizes[-1][0] if self._sizes else 0)):
            self._sizes.append((receipt.epoch, receipt.count_output_bytes(self.name)))
        while self._sizes and self._sizes[0][0] <= self.at:
            self._sizes.popleft()
        return sum(size for _, size in self._sizes)

    def deliver_waiting_epochs(self, now: float) -> bool:
        """Write the waiting epochs, unless it is too early for a retry.

        Return whether the sink now has all committed epochs. O(updates). ``now``: the time of a monotonic clock, in
        seconds. Raises `SinkAhead`, `SinkRefused`.
        """
        if not self.retry.is_due(now):
            return False
        began = monotonic()
        try:
            with self.retry.watch_call("has not answered"):
                if self._table is None:
                    self.resume_from_target()
                if self.before is None and self.at == 0 < self.epochs.manifest.epoch:
                    self.table.prepare()
            for receipt in self.epochs.list_epochs(self.at):
                self._write_epoch(receipt)
                self.at = receipt.epoch
                self.record_delivered_epoch()
                self.retry.record_success(now)
        except (SinkFailed, SinkNotLetIn) as error:
            self.retry.record_failure(error, now, monotonic() - began)
            with suppress(SinkFailed):
                self.close()
            self._table = None
            return False
        self.retry.record_success(now)
        return True

    def resume_from_target(self) -> None:
        """Read the record in the target, and find the epoch after which to continue.

        Raises `SinkRefused`, `SinkAhead`, `SinkFailed`.
        """
        self._sizes.clear()
        known = self.find_sink_record()
        self.check_write_mode(known)
        if known is not None and known.syncing:
            raise self.make_refused_error("a sync that added columns to it did not finish", SYNC)
        record, missing = self.table.written(), self.table.missing()
        if record is not None and missing and not self._is_own_record(record):
            record = None  # the table of the record, of another state or output, was dropped
        self.before = record
        if missing and (last := record.epoch if record is not None else known.written if known is not None else 0):
            raise build_dropped_table_error(self.name, self.sink.target, last)
        at = self._choose_start_epoch(record, known)
        # If the delivery fails before the first epoch, it must leave no table, because the shape of the table may still
        # change.
        (self.table.holds if missing and not self.epochs.manifest.epoch else self.table.prepare)()
        if at is None:
            self._write_initial_rows()
        else:
            self.at = at
        if (lost := self.epochs.find_first_lost_epoch(self.at)) is not None:
            raise self.make_refused_error(f"it needs the updates of epoch {lost}, which are not kept", SYNC)
        self.record_delivered_epoch()

    def _choose_start_epoch(self, record: TargetRecord | None, known: AttachedSink | None) -> int | None:
        """Choose the last epoch that need not be delivered.

        Return None if the table is empty and must first get all rows of the output.

        ``record``: the target's record. ``known``: the state's record.
        """
        match record, known:
            case None, AttachedSink(written=written) if written:
                raise self.make_refused_error(
                    f"it has lost its record, but this state wrote epoch {written} to it", SYNC
                )
            case None, _ if self.table.occupied():
                remedy = "choose another table; or take it over: ddflow sync --adopt lists the rows that it deletes"
                raise self.make_refused_error("it has rows, but no record of the state that wrote them", remedy)
            case None, None:
                return None if self.epochs.manifest.epoch else 0
            case None, AttachedSink(epoch=acknowledged):
                return acknowledged
            case TargetRecord(epoch=there), _:
                self._check_record(record, known)
                return max(there, known.epoch) if known is not None and known.written == there else there
        raise AssertionError("all cases are above")

    def check_write_mode(self, known: AttachedSink | None) -> None:
        """Raise `SinkRefused` if the target was written in a mode other than the mode of this sink."""
        if known is not None and known.written and known.mode != self.sink.mode:
            raise self.make_refused_error(
                f"it was written with mode={known.mode!r}, but this sink has mode {self.sink.mode!r}", OTHER_MODE
            )

    def _check_record(self, there: TargetRecord, known: AttachedSink | None) -> None:
        """Raise `SinkRefused` or `SinkAhead` if the record in a target does not match the history of this state."""
        manifest = self.epochs.manifest
        if there.state != manifest.id:
            remedy = "use a separate table for each state; if that state is gone, ddflow sync --adopt takes it over"
            raise self.make_refused_error(f"the state with the id {there.state} writes it", remedy)
        if there.output != self.name:
            raise self.make_refused_error(f"it has the output {there.output!r}", "use a separate table for each output")
        if known is not None and (known.written, known.digest) == (there.epoch, there.digest):
            return
        if not self._is_own_record(there):
            found = (
                f"it has the rows of this output at epoch {there.epoch}, but the output was dropped since and is new"
            )
            raise self.make_refused_error(found, f"choose another table, or {SYNC}")
        digest = self.epochs.find_manifest_digest(there.epoch)
        if there.epoch > manifest.epoch or digest not in (there.digest, None):
            found = f"it has epoch {there.epoch}, which is not in the history of this state, at epoch {manifest.epoch}"
            raise SinkAhead(f"write {self.name!r} to {self.sink.target}", found, f"after a rollback, {SYNC}")
        if known is not None and there.epoch < known.written:
            found = f"it has epoch {there.epoch}, but this state wrote epoch {known.written} to it"
            raise self.make_refused_error(found, f"if it was restored from a backup, {SYNC}")
        if digest is None:
            raise self.make_refused_error(f"it has epoch {there.epoch}, which is no longer kept", SYNC)

    def _is_own_record(self, there: TargetRecord) -> bool:
        """Return whether a record comes from the current output of this state, and not from a dropped output."""
        return there.state == self.epochs.manifest.id and there.epoch > self.epochs.manifest.dropped.get(self.name, 0)

    def make_refused_error(self, found: str, remedy: str) -> SinkRefused:
        """Make the error for a table that this state must not write."""
        return SinkRefused(f"write {self.name!r} to {self.sink.target}", found, remedy)

    def _write_initial_rows(self) -> None:
        """Write all current rows of the output to the empty target table."""
        self.look(0)
        made = self.make_change_converter(self.epochs.manifest.epoch)(self.epochs.read_rows_as_updates(self.name))
        if made.net:
            self.write_changes(made, self.epochs.manifest.epoch)
        self.at = self.epochs.manifest.epoch

    def _write_epoch(self, receipt: Epoch) -> None:
        """Write an epoch.

        If the epochs and the target support parts, stage the parts in other processes. Otherwise write the epoch in
        this process.
        """
        self.look(0)
        make = self.make_change_converter(receipt.epoch)
        in_parts = None
        if self.sink.mode != "upsert":
            key = () if self.sink.mode == "updates" else self.key
            in_parts = self.epochs.find_partition_splitter(receipt, self.name, key)
        staging = None if in_parts is None else self.table.staging()
        if in_parts is not None and staging is not None:
            if fragments := [each for each in in_parts(partial(_stage_part, make, staging.stage)) if each]:
                new = self._make_record(receipt.epoch)
                staging.append(fragments, new, self.before)
                self.before = new
        elif (made := make(self.epochs.read_updates(receipt, self.name))).net:
            self.write_changes(made, receipt.epoch)

    def make_change_converter(self, epoch: int) -> Callable[[pa.Table], TableChanges]:
        """Return a function that converts the updates of an epoch to changes of the target table. O(updates).

        The function returns the same changes in each retry. The function can be pickled to run in another process. The
        function raises the errors of `to_table_changes`.
        """
        secret, written = self.epochs.hash_secret, self.epochs.read_commit_time(epoch)
        return partial(
            to_table_changes,
            self.sink.mode,
            key=self.key,
            epoch=epoch,
            secret=secret,
            output=self.name,
            written=written,
        )

    def write_changes(self, made: TableChanges, epoch: int) -> None:
        """Write changes to the target, together with the record of an epoch. O(rows).

        Raises `SinkAhead`, `SinkFailed`.
        """
        new = self._make_record(epoch)
        with (
            self.retry.watch_call(f"has been writing epoch {epoch}", self.table.cancel),
            call_repeatedly(self.retry.log_long_call, LASTS, LASTS) as begin,
        ):
            begin()
            self.table.write(made, new, self.before)
        self.before = new

    def _make_record(self, epoch: int) -> TargetRecord:
        digest = self.epochs.find_manifest_digest(epoch)
        assert digest is not None, f"epoch {epoch} is kept"
        return TargetRecord(self.epochs.manifest.id, self.name, epoch, digest)

    def record_delivered_epoch(self) -> None:
        """Record the last delivered epoch in the state, so that the next manifest contains it."""
        sink, (written, digest) = self.sink, (0, "") if self.before is None else self.before[2:]
        columns = tuple(self.shape.schema.names) if written else ()
        made = AttachedSink(sink.kind, sink.target, sink.mode, self.at, written, digest, columns)
        self.epochs.log.sinks[self.name] = made


def _stage_part(make: Callable[[pa.Table], TableChanges], stage: Callable[[pa.Table], bytes], part: pa.Table) -> bytes:
    """Stage a part of an epoch's updates at a target. Return b"" if the part has no changes."""
    made = make(part)
    return stage(made.rows) if made.net else b""


class Deliveries:
    """The deliveries to all sinks, with a common limit for their backlogs.

    ``each``: the deliveries, by output. ``most``: the most bytes of updates that may wait for a sink. ``patience``: the
    seconds of retries for a failing sink; None for no limit.

    >>> import ddflow as dd, tempfile
    >>> from ddflow.engine.run.kept_epochs import EngineEpochs
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> with tempfile.TemporaryDirectory() as place, flow.open(f"{place}/state") as engine:
    ...     sink = dd.sinks.sqlite(f"{place}/out.db", "people")
    ...     deliveries = Deliveries({"people": Delivery(EngineEpochs(engine.calls, "an example"), "people", sink)})
    ...     _ = engine.step({"people": {"id": [7]}})
    ...     deliveries.is_backlog_full(), deliveries.deliver_waiting_epochs(), deliveries.delivered_epochs
    (False, True, {'people': 1})
    """

    def __init__(self, each: Mapping[str, Delivery], most: int = 1 << 30, patience: float | None = None) -> None:
        self.each, self.most, self.patience = each, most, patience

    @property
    def delivered_epochs(self) -> dict[str, int]:
        """For each output, the last epoch that was delivered."""
        return {name: each.at for name, each in self.each.items()}

    @property
    def has_waiting_epochs(self) -> bool:
        """Whether any sink lacks a committed epoch."""
        return any(each.waiting_epochs for each in self.each.values())

    def measure_lags(self) -> dict[str, SinkLag]:
        """Measure the lag of each sink. The result is a mapping from output names. O(waiting epochs)."""
        return {
            name: SinkLag(each.waiting_epochs, each.count_waiting_bytes(), each.retry.failing is not None)
            for name, each in self.each.items()
        }

    def deliver_waiting_epochs(self) -> bool:
        """Write the waiting epochs of all sinks. Return whether all sinks now have all committed epochs. O(updates).

        Raises `SinkAhead`, `SinkRefused`.
        """
        return not [each for each in self.each.values() if not each.deliver_waiting_epochs(monotonic())]

    def is_backlog_full(self) -> bool:
        """Return whether too many epochs or bytes wait for one of the sinks. O(waiting epochs)."""
        waiting = [each for each in self.each.values() if each.waiting_epochs]
        return any(each.waiting_epochs >= EPOCHS or each.count_waiting_bytes() >= self.most for each in waiting)

    def give_up_if_overdue(self) -> None:
        """Raise the error of a sink that has failed for too long."""
        for each in self.each.values():
            each.retry.give_up_if_overdue(monotonic(), self.patience)

    def cancel_writes(self) -> None:
        """Cancel running writes if their targets support it. The epochs of these writes stay in the backlog.

        Call the method from a thread other than the thread of the run.
        """
        for each in self.each.values():
            each.retry.cancel_call()

    def reduce_backlog(self) -> None:
        """Deliver epochs until the backlog is not full.

        Raises the errors of `deliver_waiting_epochs`, and the errors of sinks that have failed for too long.
        """
        while self.is_backlog_full():
            self._retry_waiting_epochs()

    def drain(self) -> None:
        """Deliver epochs until all sinks have all committed epochs. Raises the errors of `reduce_backlog`."""
        while not self.deliver_waiting_epochs():
            self._retry_waiting_epochs()

    def _retry_waiting_epochs(self) -> None:
        self.deliver_waiting_epochs()
        self.give_up_if_overdue()
        sleep(NAP)

    def close(self) -> None:
        """Close all targets. A second call does nothing."""
        for each in self.each.values():
            each.close()


def warn_of_missing_sinks(attached: Iterable[str], given: Collection[str], where: str) -> None:
    """Warn about sinks that are ``attached`` to a state but are not among the sinks ``given`` to a run. O(sinks)."""
    if lacking := [name for name in attached if name not in given]:
        warnings.warn(
            f"the sinks of {lacking} of {where} are attached but were not passed: the state keeps their updates until "
            "you pass them again, or forget them with engine.detach(NAME), ddflow sync --detach NAME, on Spark "
            "spark_bridge.sync(flow, state, {}, detach=(NAME,))",
            stacklevel=4,
        )
