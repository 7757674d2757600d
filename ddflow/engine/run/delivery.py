"""Delivery: the committed epochs of an output, given to its sink in their order, each once.

Invariant: what the target says that it has (`TargetRecord`) is what counts: an epoch is written in the target's own
transaction with it, and a state acknowledges an epoch when the target has said so. What it says must be in this
state's history, by the digest of the manifest that committed it; a target that is ahead, behind what is kept, another
state's, or has rows that nobody recorded is refused, and only `sync` mends it. An epoch without updates for the sink is
acknowledged without being written. A failure of the target ends nothing: the connection is opened anew after a pause,
and what it says then tells whether the epoch that failed is in it.

>>> import ddflow as dd, tempfile
>>> from ddflow.engine.run.kept_epochs import EngineEpochs
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> with tempfile.TemporaryDirectory() as place, flow.open(f"{place}/state") as engine:
...     epochs = EngineEpochs(engine.calls, "an example")
...     delivery = Delivery(epochs, "people", dd.sinks.sqlite(f"{place}/out.db", "people"))
...     _ = engine.step({"people": {"id": [7]}})
...     delivery.pump(now=0.0), delivery.at, delivery.waiting, delivery.table.read().to_pylist()
(True, 1, 0, [{'id': 7}])
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DELETED, DIFF, TIME
from ddflow.connectors.api import (
    Mode,
    OpenSink,
    SinkNotLetIn,
    TableChanges,
    TableShape,
    TableSink,
    TargetRecord,
    check_made,
)
from ddflow.connectors.modes import among, changes, folded, netted, shaped
from ddflow.connectors.table_shape import OTHER_MODE, vanished
from ddflow.engine.run.kept_epochs import KeptEpochs, Synced, told
from ddflow.engine.run.options import shape_of
from ddflow.engine.run.retry import LASTS, Retry
from ddflow.engine.run.signals import insisting
from ddflow.errors import SinkAhead, SinkFailed, SinkRefused
from ddflow.metrics import Look
from ddflow.operators.updates import time_column
from ddflow.storage.epochs import Delivered, Epoch
from ddflow.time import NEVER

SYNC: Final = "ddflow sync gives it the difference"


@dataclass(frozen=True)
class RowsOf:
    """Makes of an epoch's updates what a target takes.  O(updates).  Raises as `changes`."""

    mode: Mode
    key: tuple[str, ...] | None
    epoch: int
    secret: Secret
    output: str
    written: int

    def __call__(self, updates: pa.Table) -> TableChanges:
        return changes(self.mode, updates, self.key, self.epoch, self.secret, self.output, self.written)


@dataclass(frozen=True)
class Staged:
    """Stages a part of an epoch's updates at a target; returns "" for a part without rows."""

    rows: RowsOf
    stage: Callable[[pa.Table], bytes]

    def __call__(self, updates: pa.Table) -> bytes:
        made = self.rows(updates)
        return self.stage(made.rows) if made.net else b""


class Delivery:
    """``name``: of the output.  ``at``: the last epoch that needs nothing more.  ``look``: as of `OpenSink`; of `sync`
    it is called for rows that were read as well.

    Nothing is connected before the first `pump` or `sync`.  Raises `SpecError`.
    """

    def __init__(self, epochs: KeptEpochs, name: str, sink: TableSink, look: Look = lambda rows: None) -> None:
        self.epochs, self.name, self.sink, self.look = epochs, name, sink, look
        self.key, self.shape = self._shape()
        self._table: OpenSink | None = None
        self._made = False
        """Whether the target's table exists."""
        self.before: TargetRecord | None = None
        self.retry = Retry(f"the sink of {name!r}")
        self._sizes, self._size, self._counted = deque[tuple[int, int]](), 0, 0
        """The waiting epochs: their numbers and bytes, the sum of bytes, and the last counted epoch."""
        known = self._find_record()
        self.at = self.epochs.epoch if known is None else known.epoch

    @property
    def table(self) -> OpenSink:
        """The target's, connected.  Raises `SinkFailed`."""
        if self._table is None:
            made = self.sink.open(self.shape)
            check_made(f"the sink of {self.name!r}", "open", made, OpenSink)
            self._table = made
            self._table.look = self.look
        return self._table

    def close(self) -> None:
        """Let go of the target.  Twice is harmless."""
        if self._table is not None:
            self._table.close()
            self._table = None

    def reshaped(self) -> None:
        """Go on with the columns that the output has now."""
        key, shape = self._shape()
        if shape != self.shape:
            self.close()
            self.key, self.shape = key, shape

    def _shape(self) -> tuple[tuple[str, ...] | None, TableShape]:
        """Return the key of the output, and the table that it needs."""
        key, shape = shape_of(self.epochs.flow, self.name, self.sink)
        known = self._find_record()
        return key, shape if known is None else shape._replace(had=frozenset(known.columns))

    def _find_record(self) -> Delivered | None:
        """Return the state's record of this sink; None if the record is of another target."""
        known = self.epochs.log.sinks.get(self.name)
        same = known is not None and (known.kind, known.target) == (self.sink.kind, self.sink.target)
        return known if same else None

    @property
    def waiting(self) -> int:
        """How many committed epochs the sink has yet to take."""
        return self.epochs.epoch - self.at

    def waiting_bytes(self) -> int:
        """Count the bytes of the updates that wait.

        O(epochs since the last call), and the first time O(epochs that wait).
        """
        for receipt in self.epochs.kept(max(self._counted, self.at)):
            self._sizes.append((receipt.epoch, receipt.size(self.name)))
            self._size, self._counted = self._size + self._sizes[-1][1], receipt.epoch
        while self._sizes and self._sizes[0][0] <= self.at:
            self._size -= self._sizes.popleft()[1]
        return self._size

    def resume(self) -> None:
        """See what the target has, and where to go on."""
        self._sizes, self._size, self._counted = deque(), 0, 0
        manifest, known = self.epochs.manifest, self._find_record()
        self._check_mode(known)
        if known is not None and known.syncing:
            raise self._make_refusal("a sync that added columns to it did not end", SYNC)
        there = self.table.written()
        if there is not None and not self._mine(there) and self.table.missing():
            there = None  # it told of a table of another state, or output, which was dropped
        self.before, self._made = there, there is not None or manifest.epoch > 0 or not self.table.missing()
        last = there.epoch if there is not None else known.written if known is not None else 0
        if last and self.table.missing():
            raise vanished(self.name, self.sink.target, last)
        if there is None:
            if known is not None and known.written:
                raise self._make_refusal(f"it has lost its record, and was given epoch {known.written}", SYNC)
            if self.table.occupied():
                remedy = "give another table; or take it over: ddflow sync --adopt lists what that deletes"
                raise self._make_refusal("it has rows and no record of a state that wrote them", remedy)
            # What fails ahead of the first epoch leaves no table, because it may be of another shape then.
            (self.table.prepare if self._made else self.table.holds)()
            self.at = 0 if known is None else known.epoch
            if known is None and manifest.epoch:
                self._begin()
        else:
            self._check(there, known)
            self.table.prepare()
            self.at = max(there.epoch, known.epoch if known is not None and known.written == there.epoch else 0)
        self._check_kept()
        self._acknowledge()

    def _check_mode(self, known: Delivered | None) -> None:
        """Raise `SinkRefused` where the target was written in another mode: it would be half of each."""
        if known is not None and known.written and known.mode != self.sink.mode:
            raise self._make_refusal(
                f"it was written with mode={known.mode!r}, and this is {self.sink.mode!r}", OTHER_MODE
            )

    def _check(self, there: TargetRecord, known: Delivered | None) -> None:
        manifest = self.epochs.manifest
        if there.state != manifest.id:
            remedy = "give each a table of its own; in place of a state that is gone: ddflow sync --adopt takes it over"
            raise self._make_refusal(f"it is written by the state with the id {there.state}", remedy)
        if there.output != self.name:
            raise self._make_refusal(f"it has the output {there.output!r}", "give each output a table of its own")
        if known is not None and (known.written, known.digest) == (there.epoch, there.digest):
            return
        if not self._mine(there):
            found = f"it has this output as it was until epoch {there.epoch}; it was dropped since, and is a new one"
            raise self._make_refusal(found, f"give another table, or {SYNC}")
        if there.epoch > manifest.epoch or self.epochs.digest(there.epoch) not in (there.digest, None):
            found = f"it has epoch {there.epoch}, which is not in the history of this state, at epoch {manifest.epoch}"
            raise SinkAhead(f"write {self.name!r} to {self.sink.target}", found, f"after a rollback that is so: {SYNC}")
        if known is not None and there.epoch < known.written:
            found = f"it has epoch {there.epoch}, and was given {known.written}"
            raise self._make_refusal(found, f"was it restored? {SYNC}")
        if self.epochs.digest(there.epoch) is None:
            raise self._make_refusal(f"it has epoch {there.epoch}, which is not kept any more", SYNC)

    def _mine(self, there: TargetRecord) -> bool:
        """Whether a record is of this state, and not of an output that was taken out."""
        return there.state == self.epochs.manifest.id and there.epoch > self.epochs.dropped(self.name)

    def _check_kept(self) -> None:
        """Raise `SinkRefused` if updates that the sink needs are not kept."""
        lost = self.epochs.lacking(self.at)
        if lost is not None:
            raise self._make_refusal(f"it needs the updates of epoch {lost}, which are not kept", SYNC)

    def _make_refusal(self, found: str, remedy: str) -> SinkRefused:
        return SinkRefused(f"write {self.name!r} to {self.sink.target}", found, remedy)

    def _begin(self) -> None:
        """Give an empty table all rows that the output has now."""
        self.look(0)
        made = self._rows(self.epochs.epoch)(self._read_output())
        if made.net:
            self._write(made, self.epochs.epoch)
        self.at = self.epochs.epoch

    def _read_output(self) -> pa.Table:
        """Return the rows of the output as updates of the last time.

        The table is empty for a side output, and if the next step gives all rows.
        """
        epochs = self.epochs
        none = epochs.owes(self.name) or epochs.manifest.last == NEVER
        if none or self.name not in epochs.flow.outputs:
            rows = shaped("upsert", epochs.output_schema(self.name)).empty_table()
        else:
            rows = epochs.held(self.name)
            if DIFF in rows.schema.names:
                return rows
            rows = rows.select([name for name in rows.schema.names if name not in (TIME, DELETED)])
        return self._stamp_time(rows.append_column(DIFF, pa.array(np.ones(rows.num_rows, np.int64))))

    def _stamp_time(self, rows: pa.Table) -> pa.Table:
        times = time_column(np.full(rows.num_rows, self.epochs.manifest.last), self.epochs.flow.time_type)
        return rows.append_column(TIME, times).select([*rows.schema.names[:-1], TIME, DIFF])

    def pump(self, now: float) -> bool:
        """Write what waits, unless it failed a moment ago.  O(updates).  Whether nothing waits any more.

        ``now``: a monotonic clock, in seconds.  Raises `SinkAhead`, `SinkRefused`.
        """
        if not self.retry.is_due(now):
            return False
        began = monotonic()
        try:
            with self.retry.watch("has not answered"):
                if self._table is None:
                    self.resume()
                if not self._made and self.epochs.epoch:
                    self.table.prepare()
                    self._made = True
            for receipt in self.epochs.kept(self.at):
                self._give(receipt)
                self.at = receipt.epoch
                self._acknowledge()
                self.retry.note_answer(now)
        except (SinkFailed, SinkNotLetIn) as error:
            self.retry.note_failure(error, now, monotonic() - began)
            with suppress(SinkFailed):
                self.close()
            self._table = None
            return False
        self.retry.note_answer(now)
        return True

    def _give(self, receipt: Epoch) -> None:
        """Write an epoch: in staged parts if the target takes those, else from this process."""
        self.look(0)
        rows = self._rows(receipt.epoch)
        in_parts = staging = None
        if self.sink.mode != "upsert":
            key = () if self.sink.mode == "updates" else self.key
            in_parts = self.epochs.parts(receipt, self.name, key)
        if in_parts is not None:
            staging = self.table.staging()
        if in_parts is not None and staging is not None:
            fragments = [each for each in in_parts(Staged(rows, staging.stage)) if each]
            if fragments:
                new = self._record(receipt.epoch)
                staging.append(fragments, new, self.before)
                self.before = new
            return
        made = rows(self.epochs.gained(receipt, self.name))
        if made.net:
            self._write(made, receipt.epoch)

    def _rows(self, epoch: int) -> RowsOf:
        """Return the function that makes an epoch's rows; it makes the same rows in each retry."""
        return RowsOf(self.sink.mode, self.key, epoch, self.epochs.secret, self.name, self.epochs.written(epoch))

    def _write(self, made: TableChanges, epoch: int) -> None:
        new = self._record(epoch)
        with (
            self.retry.watch(f"has been writing epoch {epoch}", self.table.cancel),
            insisting(self.retry.remind, LASTS, LASTS) as begin,
        ):
            begin()
            self.table.write(made, new, self.before)
        self.before = new

    def _record(self, epoch: int) -> TargetRecord:
        digest = self.epochs.digest(epoch)
        assert digest is not None, f"epoch {epoch} is kept"
        return TargetRecord(self.epochs.manifest.id, self.name, epoch, digest)

    def _acknowledge(self) -> None:
        """Record the delivered epoch of the sink for the next manifest."""
        sink, (written, digest) = self.sink, (0, "") if self.before is None else self.before[2:]
        columns = tuple(self.shape.schema.names) if written else ()
        made = Delivered(sink.kind, sink.target, sink.mode, self.at, written, digest, columns)
        self.epochs.log.sinks[self.name] = made

    def difference(self) -> tuple[TableChanges, Synced]:
        """Compare the target's table with the output's rows: the changes that make them equal. O(rows of both).

        Empty for a side output: its rows about past events stay.
        """
        epochs, ours = self.epochs, self._read_output()
        self.look(ours.num_rows)
        if self.name not in epochs.flow.outputs:
            made = self._rows(epochs.epoch)(ours if self.sink.mode != "updates" else ours.drop_columns([DIFF]))
            return made, told(made, ours.slice(0, 0), None, epochs.secret)
        read = self.shape.schema.empty_table() if self.table.missing() else self.table.read()
        self.look(read.num_rows)
        # Somebody may have put a null where the plan knows of none.
        ours = ours.cast(pa.schema([field.with_nullable(True) for field in ours.schema]))
        theirs = folded(self.sink.mode, read, ours.schema)
        names = [name for name in ours.schema.names if name not in (TIME, DIFF)]
        gone = theirs.set_column(theirs.num_columns - 1, DIFF, pa.array(-np.array(theirs.column(DIFF))))
        gone = self._stamp_time(gone.select([*names, DIFF])).cast(ours.schema)
        both = netted(pa.concat_tables([gone, ours]).combine_chunks(), epochs.secret)
        made = self._rows(epochs.epoch)(both)
        if made.gone is not None and self.key is not None:
            # A key that the table has twice goes with a row that may be right.
            again = [made.net > 0] * ours.num_rows
            if self.key:
                again = among(ours.select(list(self.key)), made.gone, epochs.secret)
            made = made._replace(rows=ours.filter(pa.array(again, pa.bool_())).select(names).cast(made.rows.schema))
        return made, told(made, both, self.key, epochs.secret)

    def claim(self, adopt: bool) -> None:
        """See whether `give` may be called.  Nothing is changed.  Raises `SinkRefused`, `SinkFailed`.

        ``adopt``: whether the table may be another's.
        """
        self._check_mode(self._find_record())
        there, state = self.table.written(), self.epochs.manifest.id
        other = self.table.occupied() if there is None else (there.state, there.output) != (state, self.name)
        if other and not adopt and not self.table.missing():
            found = "nobody" if there is None else f"{there.output!r} of the state {there.state}"
            remedy = "give another table, or take it over with --adopt, which lists what that deletes"
            raise self._make_refusal(f"it has rows, written by {found}", remedy)

    def prepare(self, *, dry: bool) -> None:
        """Make the table fit for a difference.  Raises `SinkRefused`, `SinkFailed`.

        A column that others dropped comes back, unless the call is ``dry``.  The state says so first: if the sync dies
        before `give`, the column has no values, and `resume` refuses the table.
        """
        try:
            self.table.prepare()
        except SinkRefused:
            known = self._find_record()
            if dry or known is None:
                raise
            self.close()
            self.epochs.log.sinks[self.name] = replace(known, syncing=True)
            self.epochs.acknowledge()
            self.shape = self.shape._replace(had=frozenset())
            self.table.prepare()
        self.before = self.table.written()

    def give(self, made: TableChanges) -> None:
        """Write a difference, with the record of this epoch.  O(its rows).  Raises `SinkAhead`, `SinkFailed`."""
        self._write(made, self.epochs.epoch)
        self.at = self.epochs.epoch
        self._acknowledge()
