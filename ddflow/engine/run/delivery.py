"""Deliver the committed epochs of outputs to their sinks, in order, each once.

The target stores the number of its last epoch (`TargetRecord`) in the same transaction as the rows. A failed target is
opened again after a pause, and its record tells whether it has the failed epoch. A table is refused if it is ahead,
needs epochs that are not kept, or has rows of another writer; only `sync` fixes it.

Guarantees: a state acknowledges an epoch after the target has it. No epoch is lost, because
`Deliveries.is_backlog_full` stops the intake.
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
"""The seconds between two checks for work."""
SYNC: Final = "ddflow sync gives it the difference"


class Delivery:
    """The delivery of the output ``name`` to its sink.

    ``at``: the last epoch that is done. ``before``: the record in the target. ``look``: as in `OpenSink`. It connects
    at the first `deliver_waiting_epochs`. Raises `SpecError`.
    """

    def __init__(self, epochs: RetainedEpochs, name: str, sink: TableSink, look: Look = lambda rows: None) -> None:
        self.epochs, self.name, self.sink, self.look = epochs, name, sink, look
        self.key, self.shape = self._find_table_shape()
        self._table: OpenSink | None = None
        self.before: TargetRecord | None = None
        self.retry = Retry(f"the sink of {name!r}")
        self._sizes = deque[tuple[int, int]]()
        """The numbers and the bytes of waiting epochs that were counted so far."""
        known = self.find_sink_record()
        self.at = self.epochs.manifest.epoch if known is None else known.epoch

    @property
    def table(self) -> OpenSink:
        """The target's table, connected. Raises `SinkFailed`."""
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
        """Continue with the current columns of the output."""
        key, shape = self._find_table_shape()
        if shape != self.shape:
            self.close()
            self.key, self.shape = key, shape

    def _find_table_shape(self) -> tuple[tuple[str, ...] | None, TableShape]:
        """Return the key of the output, and the table that it needs."""
        key, shape = make_table_shape(self.epochs.flow, self.name, self.sink)
        known = self.find_sink_record()
        return key, shape if known is None else shape._replace(had=frozenset(known.columns))

    def find_sink_record(self) -> AttachedSink | None:
        """Return the state's record of this sink; None if the record belongs to another target."""
        known = self.epochs.log.sinks.get(self.name)
        same = known is not None and (known.kind, known.target) == (self.sink.kind, self.sink.target)
        return known if same else None

    @property
    def waiting_epochs(self) -> int:
        """The number of committed epochs that the sink has yet to take."""
        return self.epochs.manifest.epoch - self.at

    def count_waiting_bytes(self) -> int:
        """Count the bytes of waiting updates. O(waiting epochs); each epoch is read from the state once."""
        for receipt in self.epochs.list_epochs(max(self.at, self._sizes[-1][0] if self._sizes else 0)):
            self._sizes.append((receipt.epoch, receipt.count_output_bytes(self.name)))
        while self._sizes and self._sizes[0][0] <= self.at:
            self._sizes.popleft()
        return sum(size for _, size in self._sizes)

    def deliver_waiting_epochs(self, now: float) -> bool:
        """Write waiting epochs, unless a retry is not due. Return whether no epoch waits. O(updates).

        ``now``: a monotonic clock, in seconds. Raises `SinkAhead`, `SinkRefused`.
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
        """Read the target's record, and find the epoch to continue from.

        Raises `SinkRefused`, `SinkAhead`, `SinkFailed`.
        """
        self._sizes.clear()
        known = self.find_sink_record()
        self.check_write_mode(known)
        if known is not None and known.syncing:
            raise self.make_refused_error("a sync that added columns to it did not end", SYNC)
        record, missing = self.table.written(), self.table.missing()
        if record is not None and missing and not self._is_own_record(record):
            record = None  # its table, of another state or output, was dropped
        self.before = record
        if missing and (last := record.epoch if record is not None else known.written if known is not None else 0):
            raise build_dropped_table_error(self.name, self.sink.target, last)
        at = self._choose_start_epoch(record, known)
        # A failure before the first epoch must leave no table, because its shape may change until then.
        (self.table.holds if missing and not self.epochs.manifest.epoch else self.table.prepare)()
        if at is None:
            self._write_initial_rows()
        else:
            self.at = at
        if (lost := self.epochs.find_first_lost_epoch(self.at)) is not None:
            raise self.make_refused_error(f"it needs the updates of epoch {lost}, which are not kept", SYNC)
        self.record_delivered_epoch()

    def _choose_start_epoch(self, record: TargetRecord | None, known: AttachedSink | None) -> int | None:
        """Choose the epoch to continue after; None if an empty table first gets all rows of the output.

        ``record``: the target's record. ``known``: the state's record.
        """
        match record, known:
            case None, AttachedSink(written=written) if written:
                raise self.make_refused_error(f"it has lost its record, and was given epoch {written}", SYNC)
            case None, _ if self.table.occupied():
                remedy = "give another table; or take it over: ddflow sync --adopt lists what that deletes"
                raise self.make_refused_error("it has rows and no record of a state that wrote them", remedy)
            case None, None:
                return None if self.epochs.manifest.epoch else 0
            case None, AttachedSink(epoch=acknowledged):
                return acknowledged
            case TargetRecord(epoch=there), _:
                self._check_record(record, known)
                return max(there, known.epoch) if known is not None and known.written == there else there
        raise AssertionError("all cases are above")

    def check_write_mode(self, known: AttachedSink | None) -> None:
        """Raise `SinkRefused` if the target was written in another mode, because the modes would mix."""
        if known is not None and known.written and known.mode != self.sink.mode:
            raise self.make_refused_error(
                f"it was written with mode={known.mode!r}, and this is {self.sink.mode!r}", OTHER_MODE
            )

    def _check_record(self, there: TargetRecord, known: AttachedSink | None) -> None:
        """Raise `SinkRefused` or `SinkAhead` unless a target's record is in the history of this state."""
        manifest = self.epochs.manifest
        if there.state != manifest.id:
            remedy = "give each a table of its own; in place of a state that is gone: ddflow sync --adopt takes it over"
            raise self.make_refused_error(f"it is written by the state with the id {there.state}", remedy)
        if there.output != self.name:
            raise self.make_refused_error(f"it has the output {there.output!r}", "give each output a table of its own")
        if known is not None and (known.written, known.digest) == (there.epoch, there.digest):
            return
        if not self._is_own_record(there):
            found = f"it has this output as it was until epoch {there.epoch}; it was dropped since, and is a new one"
            raise self.make_refused_error(found, f"give another table, or {SYNC}")
        digest = self.epochs.find_manifest_digest(there.epoch)
        if there.epoch > manifest.epoch or digest not in (there.digest, None):
            found = f"it has epoch {there.epoch}, which is not in the history of this state, at epoch {manifest.epoch}"
            raise SinkAhead(f"write {self.name!r} to {self.sink.target}", found, f"after a rollback that is so: {SYNC}")
        if known is not None and there.epoch < known.written:
            found = f"it has epoch {there.epoch}, and was given {known.written}"
            raise self.make_refused_error(found, f"was it restored? {SYNC}")
        if digest is None:
            raise self.make_refused_error(f"it has epoch {there.epoch}, which is not kept any more", SYNC)

    def _is_own_record(self, there: TargetRecord) -> bool:
        """Whether a record is from this state, and from no dropped output."""
        return there.state == self.epochs.manifest.id and there.epoch > self.epochs.manifest.dropped.get(self.name, 0)

    def make_refused_error(self, found: str, remedy: str) -> SinkRefused:
        """Make the error for a table that cannot be written."""
        return SinkRefused(f"write {self.name!r} to {self.sink.target}", found, remedy)

    def _write_initial_rows(self) -> None:
        """Write all current rows of the output to an empty table."""
        self.look(0)
        made = self.make_change_converter(self.epochs.manifest.epoch)(self.epochs.read_rows_as_updates(self.name))
        if made.net:
            self.write_changes(made, self.epochs.manifest.epoch)
        self.at = self.epochs.manifest.epoch

    def _write_epoch(self, receipt: Epoch) -> None:
        """Write an epoch: in staged parts if the target supports them, else from this process."""
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
        """Return a function that converts updates of an epoch to a table's changes, the same in each retry. O(updates).

        Other processes can load the function. Raises the errors of `to_table_changes`.
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
        """Write changes with the record of an epoch. O(rows). Raises `SinkAhead`, `SinkFailed`."""
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
        """Record the delivered epoch of the sink for the next manifest."""
        sink, (written, digest) = self.sink, (0, "") if self.before is None else self.before[2:]
        columns = tuple(self.shape.schema.names) if written else ()
        made = AttachedSink(sink.kind, sink.target, sink.mode, self.at, written, digest, columns)
        self.epochs.log.sinks[self.name] = made


def _stage_part(make: Callable[[pa.Table], TableChanges], stage: Callable[[pa.Table], bytes], part: pa.Table) -> bytes:
    """Stage a part of an epoch's updates at a target; return b"" for a part without rows."""
    made = make(part)
    return stage(made.rows) if made.net else b""


class Deliveries:
    """The deliveries of all sinks, with a common limit.

    ``each``: by output. ``most``: the most bytes of updates that may wait for a sink. ``patience``: seconds of retries
    for a failing sink, None without end.

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
        """By output, the last epoch that is done."""
        return {name: each.at for name, each in self.each.items()}

    @property
    def has_waiting_epochs(self) -> bool:
        """Whether an epoch waits for a sink."""
        return any(each.waiting_epochs for each in self.each.values())

    def measure_lags(self) -> dict[str, SinkLag]:
        """Measure the lag of each sink, by output. O(waiting epochs)."""
        return {
            name: SinkLag(each.waiting_epochs, each.count_waiting_bytes(), each.retry.failing is not None)
            for name, each in self.each.items()
        }

    def deliver_waiting_epochs(self) -> bool:
        """Write waiting epochs to each sink. Return whether no epoch waits. O(updates).

        Raises `SinkAhead`, `SinkRefused`.
        """
        return not [each for each in self.each.values() if not each.deliver_waiting_epochs(monotonic())]

    def is_backlog_full(self) -> bool:
        """Whether too many epochs or bytes wait for a sink. O(waiting epochs)."""
        waiting = [each for each in self.each.values() if each.waiting_epochs]
        return any(each.waiting_epochs >= EPOCHS or each.count_waiting_bytes() >= self.most for each in waiting)

    def give_up_if_overdue(self) -> None:
        """Raise an error that has lasted too long."""
        for each in self.each.values():
            each.retry.give_up_if_overdue(monotonic(), self.patience)

    def cancel_writes(self) -> None:
        """Cancel running writes, if their targets support that; their epochs wait. Call it from another thread."""
        for each in self.each.values():
            each.retry.cancel_call()

    def reduce_backlog(self) -> None:
        """Deliver until the backlog is no longer full.

        Raises the errors of `deliver_waiting_epochs` and of overdue sinks.
        """
        while self.is_backlog_full():
            self._retry_waiting_epochs()

    def drain(self) -> None:
        """Deliver until no epoch waits. Raises the errors of `reduce_backlog`."""
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
    """Warn of a state's sinks that are ``attached`` but not ``given``. O(sinks)."""
    if lacking := [name for name in attached if name not in given]:
        warnings.warn(
            f"the sinks of {lacking} of {where} are attached and not given: the state keeps their updates until they "
            "are given again, or forgotten: engine.detach(NAME), ddflow sync --detach NAME, on Spark "
            "spark_bridge.sync(flow, state, {}, detach=(NAME,))",
            stacklevel=4,
        )
