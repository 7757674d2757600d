"""Match a log of one input with the calls that fed the state. Mark each part as events or as full contents.

Events may be split into parts in any way, because the split of events into calls does not matter. The full contents of
one call are one part. A log can begin with full contents of all rows, because these contents replace all earlier rows.
But a log that begins with full contents is refused if events follow and deleted keys keep their order, because the
result would depend on earlier events.

Guarantees: `mark_log_parts` yields the parts in the order of the log. If the state has recorded that a call passed full
contents or a corrected history, the function marks the part of this call as `Full` or `Restated`. `mark_log_parts`
refuses any log that does not match, and does not read the rows of parts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, Final

import pyarrow as pa

from ddflow.columns.schema import conform_to_schema, decode_array, normalize_type
from ddflow.columns.widening import InexactValue, widen_column
from ddflow.columns.wider import find_widening
from ddflow.connectors.to_arrow import is_rows, to_arrow_rows, to_table
from ddflow.dataflow.admission import DecodeProgress, InputValidator
from ddflow.engine.full_contents import decode_order, encode_order, list_order_columns, parse_order
from ddflow.errors import ErrorText, LogUnclear, NotArrow, Option, SchemaMismatch
from ddflow.plan.inputs.input import Binding
from ddflow.storage.feeding import EVENTS, FULL, RESTATED, FeedHistory, FeedMode, FeedRun


@dataclass(frozen=True)
class Full:
    """A part of a log with full contents, like the rows of an `Engine.replace` call.

    Parameters
    ----------
    rows : table
        Anything that speaks Arrow.
    scope : str, optional
        The scope of the call, a SQL condition. With None, the scope that the state has recorded for the call.
    order : mapping or scalar, optional
        The order of the call's deletions. With None, the order that the state has recorded for the call.
    """

    rows: Any
    scope: str | None = None
    order: Any = None


@dataclass(frozen=True)
class Restated:
    """A part of a log with a corrected history, like the events of an `Engine.restate` call.

    Parameters
    ----------
    rows : table
        The events of the corrected history, as Arrow data.
    order : mapping or scalar, optional
        As for `Full`.
    """

    rows: Any
    order: Any = None


MARKS: Final = (Full, Restated)
SAY: Final = (
    "pass one part for each call that fed the state, in order; or mark each part that is not events: "
    "dd.Full(rows), on the command line --full FILE"
)
"""The remedy that an error suggests for an ambiguous log."""


def iterate_parts(log: Any, what: str) -> Iterator[Any]:
    """Yield the parts of a log without changes. O(1) for each part. Raises `NotArrow`.

    ``log``: a part, or an iterable of parts. A part is Arrow data, or a `Full` or `Restated` that contains Arrow data.
    """
    if isinstance(log, MARKS) or is_rows(log):
        yield log
    elif isinstance(log, Iterable) and not isinstance(log, bytes):
        yield from log
    else:
        raise NotArrow(
            f"rows for {what}",
            f"{type(log).__name__} does not speak Arrow",
            "pass a table, record batches, a reader, or an iterable of these",
        )


def mark_log_parts(log: Iterable[Any], fed: FeedHistory, bound: Binding, to: Binding | None = None) -> Iterator[Any]:
    """Mark the parts of a log in the same way as the calls that fed the state. ``bound``: the input of the log.

    ``to``: the input that gets the parts, if it differs from ``bound``. The parts are read lazily if the state was fed
    only events. Otherwise all parts are in memory. O(parts + groups of equal calls in a row). Raises `LogUnclear`.

    >>> import pyarrow as pa
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> bound = bind_upserts("people", pa.schema({"id": pa.int64()}), Upsert(key="id"))
    >>> fed = FeedHistory().add_call(1, EVENTS).add_call(2, FeedMode(FULL)).add_call(3, EVENTS)
    >>> list(mark_log_parts(["a", "b", "c"], fed, bound))
    ['a', Full(rows='b', scope=None, order=None), 'c']
    >>> list(mark_log_parts([Full("b"), "c", "d"], fed, bound))[0]
    Full(rows='b', scope=None, order=None)
    >>> list(mark_log_parts(["b", "c"], fed, bound))
    Traceback (most recent call last):
        ...
    ddflow.errors.LogUnclear: the log of 'people': the state was fed events (epoch 1), full contents (epoch 2), \
events ...
    """
    marker = _LogPartMatcher(fed, bound, to or bound)
    if fed.has_only_events:
        return marker.check_only_events(log)
    parts = list(log)
    if any(isinstance(part, MARKS) for part in parts):
        return iter(marker.match_parts_by_marks(parts))
    return iter(marker.match_unmarked_parts(parts))


def find_feed_mode(part: Any) -> FeedMode:
    """Return the kind of call that matches the mark of a part.

    The result has the scope of the part but not its order.
    """
    return (
        FeedMode(FULL, part.scope)
        if isinstance(part, Full)
        else FeedMode(RESTATED)
        if isinstance(part, Restated)
        else EVENTS
    )


class _LogPartMatcher:
    """Compares the parts of a log with the calls that the state has recorded for the input."""

    def __init__(self, fed: FeedHistory, bound: Binding, to: Binding) -> None:
        self.fed, self.bound, self.to = fed, bound, to

    def check_only_events(self, log: Iterable[Any]) -> Iterator[Any]:
        """Yield the parts of a log in which all parts must be events."""
        for part in log:
            if isinstance(part, MARKS):
                raise self._make_log_error(
                    f"a part of the log is marked {type(part).__name__}",
                    "pass it as events, without a mark (dd.Full, --full)",
                )
            yield part

    def match_unmarked_parts(self, parts: Sequence[Any]) -> list[Any]:
        """Match each part with the call at the same position."""
        if self.fed.forgotten_call_count or len(parts) != self.fed.call_count:
            raise self._make_log_error(
                f"that is {self.fed.call_count:,} calls, but the log has {len(parts):,} unmarked parts", SAY
            )
        out: list[Any] = []
        for run in self.fed.runs:
            some = parts[len(out) : len(out) + run.calls]
            out += some if run.way == EVENTS else [self._mark_part(part, run) for part in some]
        return out

    def match_parts_by_marks(self, parts: Sequence[Any]) -> list[Any]:
        """Match marked parts and groups of event parts with calls, from the last call to the first.

        The log is allowed to lack the first calls.
        """
        groups: list[Any] = []
        for marked, run_of in groupby(parts, lambda part: isinstance(part, MARKS)):
            some = list(run_of)
            groups += some if marked else [some]
        out: list[Any] = []
        for run in reversed(self.fed.runs):
            for _ in range(1 if run.way == EVENTS else run.calls):
                if not groups:
                    break
                if isinstance(groups[-1], MARKS) == (run.way == EVENTS):
                    there = "events" if run.way != EVENTS else f"a part that is marked {type(groups[-1]).__name__}"
                    raise self._make_log_error(f"the log has {there} in place of {run}", SAY)
                last = groups.pop()
                out.append(last if run.way == EVENTS else [self._mark_part(last, run)])
        if groups:
            self._check_forgotten_calls(groups)
            out += [[each] if isinstance(each, MARKS) else each for each in reversed(groups)]
        told = [part for group in reversed(out) for part in group]
        marks = sum(isinstance(part, MARKS) for part in told)
        begun = self.fed.runs and not self.fed.forgotten_call_count and self.fed.runs[0].way == EVENTS
        if marks < self.fed.full_call_count or (begun and isinstance(told[0], MARKS)):
            self._check_log_start(told)
        return told

    def _check_forgotten_calls(self, groups: Sequence[Any]) -> None:
        """Refuse a log if it has more parts of a kind than the state has counted calls of this kind."""
        marks = [type(each) for each in groups if isinstance(each, MARKS)]
        for kind, calls in ((Full, self.fed.full), (Restated, self.fed.restated)):
            if marks.count(kind) > calls:
                raise self._make_log_error(
                    f"the log has {marks.count(kind) - calls:,} parts too many that are marked {kind.__name__}", SAY
                )
        if len(marks) < len(groups) and not self.fed.events:
            raise self._make_log_error("the log has events before these calls", SAY)

    def _check_log_start(self, told: Sequence[Any]) -> None:
        """Refuse a log that begins after the first call of the state, unless the missing calls do not matter."""
        first = told[0]
        if not isinstance(first, MARKS) or not find_feed_mode(first).is_full_replacement:
            raise self._make_log_error(
                "the log begins later, but not with full contents of all rows", "pass it from the beginning"
            )
        if self.to.spec.keeps_order and not all(isinstance(part, MARKS) for part in told):
            raise self._make_log_error(
                "the log begins later and has events after its full contents, but the result of these events "
                "depends on the orders of earlier deletions",
                "pass it from the beginning",
            )

    def _mark_part(self, part: Any, run: FeedRun) -> Full | Restated:
        """Give a part the mark of its call.

        If the mark of a part lacks a scope or an order, the recorded call provides the missing value.
        """
        way = run.way
        mark: Full | Restated = part if isinstance(part, MARKS) else (Full if way.kind == FULL else Restated)(part)
        if way.kind != find_feed_mode(mark).kind:
            raise self._make_log_error(
                f"the log has a part that is marked {type(mark).__name__} in place of {run}", SAY
            )
        if isinstance(mark, Full) and mark.scope is not None and mark.scope != way.scope:
            raise self._make_log_error(
                f"a part of the log is marked with the scope {mark.scope!r} in place of {run}",
                ErrorText("omit ", Option("scope"), ", or pass the scope that the state names"),
            )
        if isinstance(mark, Full):
            mark = replace(mark, scope=way.scope)
        if mark.order is None:
            return replace(mark, order=self._find_call_order(run))
        asked = f"the log of {self.bound.name!r}"
        if self.to is self.bound:
            given = parse_order(mark.order, list_order_columns(self.bound.spec), self.bound.schema, asked)
            if encode_order(given) != way.order:
                raise self._make_log_error(
                    f"a part of the log is marked with order={mark.order!r}, but {run} had "
                    f"{'another order' if way.order else 'no order'}",
                    "omit order=",
                )
        return mark

    def _find_call_order(self, run: FeedRun) -> Any:
        """Return the order of the deletions of a call, as a value for each column.

        Return None if the call had no order.
        """
        if run.way.order is None:
            return None
        there, wanted = list_order_columns(self.bound.spec), list_order_columns(self.to.spec)
        order = decode_order(run.way.order, there, self.bound.schema)
        if set(wanted) - set(there):
            raise self._make_log_error(
                f"{run} had an order= by {there}, but here the order is by {wanted}",
                "mark that part with its own order: dd.Full(rows, order=...)",
            )
        return {name: order[name] for name in wanted} or None

    def _make_log_error(self, found: str, remedy: str) -> LogUnclear:
        return LogUnclear(f"the log of {self.bound.name!r}", f"the state was fed {self.fed}; {found}", remedy)


def convert_part_to_batches(part: Any, bound: Binding, table: str | None = None) -> Iterator[pa.RecordBatch]:
    """Convert a part of a log to batches with the columns of the input. ``part`` has no mark.

    ``part``: Arrow data. ``table``: the name of the table in its messages, if known. O(rows) if columns need a cast,
    else O(1) for each batch. Raises `NotArrow`, `SchemaMismatch`. Raises `BadMessage` for a truncate, which deletes all
    rows of an input.
    """
    what, admission = repr(bound.name), InputValidator(bound)
    part = to_arrow_rows(part, what, admission.given, bound.guessed)
    read = DecodeProgress(table)
    for rows in part if isinstance(part, pa.RecordBatchReader) else [part]:
        rows = admission.decode_without_truncates(rows, read)
        given = widen_narrow_columns(to_table(rows, what, bound.schema), bound.schema, what)
        fit = conform_to_schema(given, bound.schema, what, bound.required_columns)
        if bound.merging is not None:  # under a merge, a missing column is not null
            fit = fit.select([name for name in fit.column_names if name in given.column_names])
        yield from fit.to_batches()


def widen_narrow_columns(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Widen those columns of a table that have a narrower type than in the schema. O(rows) for these columns.

    Raises `SchemaMismatch` if the wider type cannot hold a value.
    """
    for at, field in enumerate(table.schema):
        wanted = schema.get_field_index(field.name)
        kind = normalize_type(field.type)
        if wanted >= 0 and find_widening(kind, schema.field(wanted).type) is not None:
            try:
                made = [
                    widen_column(decode_array(chunk), schema.field(wanted).type) for chunk in table.column(at).chunks
                ]
            except InexactValue as error:
                asked, found = f"column {field.name!r} of rows for {what}", f"{error}; its type was {kind}"
                raise SchemaMismatch(asked, found, "fix the rows, or pass the log in the types of the state") from None
            column = pa.chunked_array(made, schema.field(wanted).type)
            table = table.set_column(at, field.with_type(column.type), column)
    return table


def convert_part_rows(part: Any, bound: Binding) -> Any:
    """Convert the rows of a log part lazily, and keep the mark of the part.

    Raises the errors of `convert_part_to_batches`.
    """
    marked = isinstance(part, MARKS)
    made = convert_part_to_batches(part.rows if marked else part, bound)
    if (first := next(made, None)) is None:
        rows: Any = bound.schema.empty_table()
    else:
        rows = pa.RecordBatchReader.from_batches(first.schema, chain([first], made))
    return replace(part, rows=rows) if marked else rows
