"""Decode, check and number the rows of one input, and convert them to events with a time.

`InputValidator.decode` converts messages to rows, and `InputValidator.validate_rows` converts rows to events.
`IngestedRows` then queues the events. Every row gets an arrival number, even a bad row. A row that is late and also
lacks its key is counted only once, as bad. With ``late="advance"``, a late event gets the frontier as its time, but is
resolved by its original time.

Guarantees: `validate_rows` changes no state. `validate_rows` either accepts all rows of a call and marks bad and late
rows with their verdict, or raises an error that names the cause.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Flags, Ints, build_word_reader, unpack_validity
from ddflow.columns.rows import row_values
from ddflow.columns.schema import (
    INTERVAL,
    MANY,
    check_values,
    conform_to_schema,
    is_large_ascii_array,
    is_text,
    needs_validation,
    to_batch,
)
from ddflow.connectors.formats.base import (
    BAD as MARK,
    DELETED,
    OWN,
    DecodedEvents,
    MissingColumnFinder,
    Truncate,
    decode_messages,
    refuse_truncates,
    wrap_messages,
)
from ddflow.connectors.to_arrow import to_table
from ddflow.dataflow.result import NAMES
from ddflow.errors import ErrorText, LateEvent, Option, Row, SchemaMismatch, format_location, shorten
from ddflow.kernels.sort import find_range_and_order
from ddflow.operators.upsert.events import Events, add_stamps
from ddflow.plan.inputs.input import Binding
from ddflow.time import CLOSED, NEVER, format_time

BAD, LATE = NAMES.index("bad"), NAMES.index("late")
Where = Callable[[int], str | Row]
"""A function that gets a row number and returns a description of the row for an error message."""
Look = Callable[[pa.RecordBatch], None]
"""A function that is called with each batch of rows, in the order of arrival."""


class RefusedRows(NamedTuple):
    """Bad and late rows, which are counted but not admitted. ``codes``: the verdict codes of these rows."""

    events: Events
    codes: Ints

    @property
    def counts_by_verdict(self) -> dict[str, int]:
        """The number of refused rows for each verdict."""
        return {NAMES[code]: int(n) for code, n in enumerate(np.bincount(self.codes)) if n}


@dataclass
class DecodeProgress:
    """The progress of one call while it reads the messages of an input.

    ``table``: the name of the table in the messages; None until a message names it. ``count``: the number of messages
    read.
    """

    table: str | None
    count: int = 0


class DecodedRows(NamedTuple):
    """Rows, or events decoded from messages. ``truncate``: the truncate message directly before these rows, if any.

    ``where``: the function that names a row in errors.
    """

    rows: Any
    truncate: Truncate | None = None
    where: Where | None = None


class InputValidator:
    """The checks that rows of one input must pass.

    ``bound``: the spec and the schema of the input. ``arrived``: the number of rows so far, which the engine updates.

    >>> import pyarrow as pa
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    >>> admission = InputValidator(bind_upserts("o", schema, Upsert("k", time="t", late="drop")))
    >>> events, refused = admission.validate_rows(pa.table({"k": [1, 2], "t": [3, 9]}), frontier=5)
    >>> events.times.tolist(), refused.counts_by_verdict
    ([9], {'late': 1})
    """

    def __init__(self, bound: Binding) -> None:
        self.bound, self.arrived = bound, 0
        self.columns: list[str] = bound.schema.names
        """The columns of the most recent rows."""
        self.greatest, self.what, self.required = NEVER, repr(bound.name), bound.required_columns
        self.watermark, self.least, self.keeps_old_rows = bound.watermark, CLOSED, False
        """The watermark, the least word of its column, and whether full contents leave old rows alone."""
        self.table: str | None = None
        """The table name that the messages contain; None until a message has contained a name.

        The engine sets this attribute.
        """
        doubted = [at for at, field in enumerate(bound.schema) if bound.format is None and needs_validation(field.type)]
        self.texts = [at for at in doubted if is_text(bound.schema.field(at).type)]
        self.doubted = [at for at in doubted if at not in self.texts]
        """The columns, except those in `texts`, that can have values which do not fit the type of the column."""
        self.names = bound.schema.names
        self.certain = [field.name for field in bound.schema if not field.nullable]
        self.spelled = INTERVAL in bound.schema.types
        """Whether a column's type can represent equal values in several ways, so that values must be normalized."""
        self.key = [name for name in bound.non_null_columns if name not in self.certain]
        """The columns that must not be null in an event."""
        self.words = None if bound.spec.time is None else build_word_reader(bound.time_type)
        """The function that reads the times of events as 64-bit words."""
        self.notes, self.stamp = bound.unstamped_event_schema != bound.schema, bound.stamp
        """Whether events have columns that the rows do not have."""
        self.given = bound.schema if bound.format is None else pa.schema([])
        """The declared columns of incoming rows.

        The schema is empty for messages, because each message format defines its own columns.
        """
        self.format, self.marks = bound.format, bound.has_bad_event_column
        self.unseen = (
            MissingColumnFinder(())
            if bound.format is None
            else MissingColumnFinder(bound.message_target.columns.names, bound.format.asked)
        )
        """Finds the declared columns that no message has contained yet."""

    @property
    def missing_columns(self) -> tuple[str, ...]:
        """The columns that were missing in the most recent rows and were filled with null.

        The tuple is empty for messages and for an input with a merge.
        """
        if self.format is not None or self.bound.merging is not None:
            return ()
        return tuple(name for name in self.bound.schema.names if name not in self.columns)

    def decode(self, given: Any, read: DecodeProgress) -> Sequence[DecodedRows]:
        """Return rows unchanged, or decode messages to events and split the events at each truncate.

        ``read``: the progress of the call, which is updated. O(1) for rows, O(bytes) for messages. Raises `BadMessage`.
        Raises `SchemaMismatch` if the value is not a table of messages.
        """
        if self.format is None:
            return (DecodedRows(given),)
        first = read.count
        made = self._decode_messages(given, read)
        if not isinstance(made, DecodedEvents):
            return (DecodedRows(made),)
        begin, before, parts = 0, None, []
        for each in (*made.truncates, None):
            end = made.rows.num_rows if each is None else each.row
            where = partial(self._locate_message, given, first, made.at[begin:])
            parts.append(DecodedRows(made.rows.slice(begin, end - begin), before, where))
            begin, before = end, each
        return parts

    def decode_without_truncates(self, given: Any, read: DecodeProgress | None = None) -> Any:
        """Return rows unchanged, or decode messages to events as `decode` does.

        Raises `BadMessage` for a truncate message.
        """
        made = self._decode_messages(given, read or DecodeProgress(self.table))
        return refuse_truncates(made, self.what).rows if isinstance(made, DecodedEvents) else made

    def _decode_messages(self, given: Any, read: DecodeProgress) -> Any:
        """Decode messages to `DecodedEvents`. Rows, and events that are already decoded, are returned unchanged."""
        format = self.format
        if format is None:
            return given
        table = to_table(given, self.what, self.given)
        if DELETED in table.column_names:
            return table
        first = read.count
        made = decode_messages(format, table, self.bound.message_target._replace(table=read.table), first)
        read.count, read.table = first + table.num_rows, made.table
        self.unseen.search_messages(format, table, made, self.what)
        if format.of_rows:
            there = (*table.column_names, *OWN)
            made = made._replace(rows=made.rows.select([name for name in made.rows.column_names if name in there]))
        if self.bound.spec.null_key == "error" and any(made.rows.column(name).null_count for name in self.key):
            self._refuse_null_keys(made, table, first)
        return made

    def _refuse_null_keys(self, made: DecodedEvents, given: pa.Table, first: int) -> None:
        """Raise `NullKey` with the location of the message if an event lacks its key."""
        lacking = np.zeros(made.rows.num_rows, np.bool_)
        for name in self.key:
            lacking |= np.asarray(made.rows.column(name).is_null())
        if self.marks:
            lacking &= np.asarray(made.rows.column(MARK).is_null())
        if lacking.any():
            place = partial(self._locate_message, given, first, made.at)
            self._raise_null_error(
                lacking,
                lambda row: ErrorText.join_texts("; ", [place(row), *self.unseen.list_warnings(self.key)]),
                made.rows,
            )

    def _locate_message(self, given: Any, first: int, at: Ints, row: int) -> str | Row:
        """Return the location of the message that an event comes from.

        ``given``: the messages of a batch. ``first``: the number of earlier messages. ``at``: for each event, the
        position of its message.
        """
        assert self.format is not None
        return wrap_messages(self.format, to_table(given, self.what, self.given), self.what, first).locate_message(
            int(at[row])
        )

    def build_event_batch(self, given: Any) -> pa.RecordBatch:
        """Convert rows to a batch with the columns of events.

        O(1) without a copy if the rows are one chunk with exactly these columns, else O(rows). Raises `NotArrow`,
        `SchemaMismatch`.
        """
        schema = self.bound.schema
        table = given if isinstance(given, pa.Table) else to_table(given, self.what, schema, self.bound.guessed)
        if table.schema.equals(schema):
            self.columns, batches = self.names, [] if self.spelled else table.to_batches()
        else:
            self.columns, batches = table.column_names, []
        if len(batches) == 1 and not (self.certain and [x for x in self.certain if batches[0].column(x).null_count]):
            batch = batches[0]
            try:
                for at in self.texts:  # inlined, because function calls slow down small steps
                    if batch.num_rows < MANY or not is_large_ascii_array(batch.column(at)):
                        batch.column(at).validate(full=True)
            except pa.ArrowInvalid:
                check_values(batch, self.what, self.texts)
            if self.doubted:
                check_values(batch, self.what, self.doubted)
            if not batch.schema.equals(schema, check_metadata=True):
                batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        else:
            batch = to_batch(
                conform_to_schema(
                    table, schema, self.what, self.required, self.bound.name, self.bound.fixed_type_columns
                )
            )
        return self.bound.add_event_columns(batch, table.column_names) if self.notes else batch

    def validate_rows(
        self,
        given: Any,
        frontier: int,
        time: int | None = None,
        before: int = 0,
        looks: Iterable[Look] = (),
        where: Where | None = None,
    ) -> tuple[Events, RefusedRows | None]:
        """Check and number the rows of one input. Return the admitted events and the refused rows. O(rows).

        ``time``: the time of the step, in epoch mode. ``before``: the number of earlier rows of the same call.
        ``looks``: functions that get all rows. ``where``: the function that names a row in errors; by default it uses
        the row's number in the call.

        Raises `NotArrow`, `SchemaMismatch`, `NullKey`, `LateEvent`. After an error, nothing has changed.
        """
        bound, rows, where = self.bound, self.build_event_batch(given), where or (lambda row: Row(before + row))
        for look in looks:
            look(rows)
        n, first = rows.num_rows, self.arrived + before
        arrival = np.arange(first, first + n)
        keyless = self._mark_bad_rows(rows, where) if self.key or self.marks else None
        if time is None:
            times, least, ascending = self._read_times(rows, keyless, where)
        else:
            times, least, ascending = np.empty(n, np.int64), time, True
            times.fill(time)
        original = times
        if bound.spec.exclusive and bound.merging is not None:
            misordered = bound.merging.mark_misordered_events(rows)
            keyless = misordered if keyless is None else keyless | misordered
        codes = None if keyless is None else np.where(keyless != 0, np.int8(BAD), np.int8(-1))
        if time is None and least < frontier:
            codes = np.full(n, -1, np.int8) if codes is None else codes
            late = (original < frontier) & (codes < 0)
            if late.any():
                times = self._stamp_late_events(late, original, frontier, codes, where)
        if self.stamp is not None:
            rows = add_stamps(rows, times, self.stamp)
        if self.watermark is not None:
            codes = self._judge_by_watermark(rows, codes, where, time)
        events, refused = Events(rows, times, original, arrival), None
        if codes is not None and (codes >= 0).any():
            gone = np.flatnonzero(codes >= 0)
            refused = RefusedRows(events.take(gone), codes[gone].astype(np.int64))
            events = events.take(np.flatnonzero(codes < 0))
        return events if times is original and ascending else events.sort_by_time(), refused

    def _mark_bad_rows(self, events: pa.RecordBatch, where: Where) -> Flags | None:
        """Mark each event that lacks its key, and each event that the decoder marked as bad.

        Return None if no event is marked.

        Raises `NullKey` if the spec refuses events without a key.
        """
        marked = None
        if self.marks and events.column(MARK).null_count < events.num_rows:
            marked = np.asarray(events.column(MARK).is_valid()).astype(np.uint8)
        for name in self.key:
            if events.column(name).null_count:
                keyless = self.bound.mark_events_without_key(events)
                if marked is not None:
                    keyless = keyless & (marked ^ np.uint8(1))
                if keyless.any():
                    self._raise_null_error(keyless, where, events)
                return keyless if marked is None else keyless | marked
        return marked

    def _read_times(self, events: pa.RecordBatch, keyless: Flags | None, where: Where) -> tuple[Ints, int, bool]:
        """Return the events' times as int64, the least time, and whether the times ascend.

        Raises `SchemaMismatch` if a time is null, or equals `CLOSED`, which is not a valid time of an event.
        """
        name = self.bound.spec.time
        assert name is not None
        column = events.column(name)
        here = True if keyless is None else keyless == 0
        if column.null_count and (rows := np.flatnonzero((unpack_validity(column) == 0) & here)).size:
            raise SchemaMismatch(
                f"the times of {self.bound.name!r}",
                ErrorText(
                    f"{name!r} is null in {rows.size:,} rows", format_location(", first in ", where(int(rows[0])))
                ),
                "fix the rows, because every event needs a time; nothing was ingested",
                column=name,
            )
        assert self.words is not None
        times = self.words(column).view(np.int64)
        least, greatest, ascending = find_range_and_order(times) if times.size else (CLOSED, NEVER, True)
        if greatest == CLOSED and (beyond := np.flatnonzero((times == CLOSED) & here)).size:
            raise SchemaMismatch(
                f"the times of {self.bound.name!r}",
                ErrorText(
                    f"{beyond.size:,} rows have time {CLOSED}", format_location(", first ", where(int(beyond[0])))
                ),
                "that is the closed frontier; use smaller times",
                column=name,
            )
        return times, least, ascending

    def find_extent(self, rows: pa.RecordBatch) -> tuple[int, int]:
        """Find the least and the greatest word of the watermark's column in admitted rows, or (CLOSED, NEVER)."""
        bound: Any = self.bound
        words, here = bound.watermark.read_words(rows, bound)
        words = words[here]
        return (int(words.min()), int(words.max())) if words.size else (CLOSED, NEVER)

    def _judge_by_watermark(self, rows: pa.RecordBatch, codes: Any, where: Where, time: int | None) -> Any:
        """Mark the rows below the watermark as late, and those too far ahead of the step's ``time`` as bad.

        A stored row that an event would change is judged later, in the step. Raises `LateEvent` if the spec refuses
        late events.
        """
        bound: Any = self.bound
        horizon = bound.watermark.compute_horizon(self.greatest)
        codes = np.full(rows.num_rows, np.int8(-1)) if codes is None else codes
        words, here = bound.watermark.read_words(rows, bound)
        if bound.watermark.ahead is not None and time is not None:
            codes[here & (words > bound.watermark.compute_greatest(time, bound.time_type)) & (codes < 0)] = BAD
        late = np.flatnonzero(here & (words < horizon) & (codes < 0))
        if late.size and bound.spec.late == "error" and not self.keeps_old_rows:
            value = format_time(int(words[late[0]]), bound.watermark.field.type)
            first = format_location(", first ", where(int(late[0]))), f", at {value}"
            raise bound.watermark.make_late_error(f"{late.size:,} rows", horizon, first)
        codes[late] = LATE
        return codes

    def _raise_null_error(self, keyless: Any, where: Where, events: Any) -> None:
        """Raise the error for rows without a key if the spec refuses such rows.

        The error shows the first row without a key.
        """
        if self.bound.spec.null_key == "error":
            rows = np.flatnonzero(keyless)
            others = ErrorText(" or ", Option("null_key", "keep")) if self.bound.unique else ErrorText()
            others += ErrorText(" or ", Option("on_bad", "drop"), " of the format") if self.format is not None else ""
            error = self.bound.null_error(
                f"rows for {self.bound.name!r}",
                ErrorText(
                    f"{self.bound.missing_part_name} is null in {rows.size:,} rows",
                    format_location(", first in ", where(int(rows[0]))),
                ),
                ErrorText("fix them, or choose ", Option("null_key", "drop"), others, "; nothing was ingested"),
                input=self.bound.name,
                column=next(name for name in self.key if events.column(name).null_count),
            )
            error.cells = shorten(str(row_values(events, int(rows[0]))))
            raise error

    def _stamp_late_events(self, late: Any, original: Ints, frontier: int, codes: Any, where: Where) -> Ints:
        """Return the times of all events. Late events get the time that the spec says.

        Raises `LateEvent` if the spec refuses late events.
        """
        rule = self.bound.spec.late
        if rule == "error":
            rows, kind = np.flatnonzero(late), self.bound.time_type
            raise LateEvent(
                f"rows for {self.bound.name!r}",
                ErrorText(
                    f"{rows.size:,} events are behind the frontier {format_time(frontier, kind)}",
                    format_location(", first ", where(int(rows[0]))),
                    f", at time {format_time(int(original[rows[0]]), kind)}",
                ),
                ErrorText(
                    *("push them before you advance, or choose ", Option("late", "drop"), " or "),
                    *(Option("late", "advance"), "; nothing was ingested"),
                ),
                input=self.bound.name,
            )
        if rule == "drop":
            codes[late] = LATE
            return original
        if frontier == CLOSED:
            raise LateEvent(
                f"rows for {self.bound.name!r}",
                "the frontier is CLOSED",
                "no later time is left to advance late events to",
                input=self.bound.name,
            )
        return np.where(late, frontier, original)
