"""Keep the rows that satisfy temporal conditions, which compare the time of the step with values of the row.

Each condition gives a bound, so a row is present for a half-open span of times [from, to). An update at time t becomes
an update at the later of t and ``from``, and its opposite at ``to``. Updates at times that are not closed yet wait in
the state, sorted by time, and every step emits the updates that are due. In hold-back mode an update gets the exact
time of its bound, in epoch mode the time of the step.

The operator is linear, so it needs neither the present rows nor the multiplicities. A row whose span is over when it
arrives is neither emitted nor kept.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, RowHasher, Words, unpack_booleans
from ddflow.columns.names import TIMES, check_column_names
from ddflow.columns.rows import gather_table
from ddflow.columns.schema import column_arrays
from ddflow.columns.sorting import sort_by_words
from ddflow.errors import ExpressionError, shorten
from ddflow.expressions import Expression, compile as compile_expression
from ddflow.expressions.node import Refusal
from ddflow.expressions.types import sql_name
from ddflow.kernels.frames import find_bound_ranges
from ddflow.kernels.top import StepUpdates, StoredGroups
from ddflow.operators.arranged import RunningArrange
from ddflow.operators.base import OperatorContext, RowPreservingOperator, RunningOperator, register_operator
from ddflow.operators.updates import GroupSortedUpdates, Updates, consolidate, ints, sort_retractions_first
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord, find_formula_objections
from ddflow.time import CLOSED, INT64, NEVER, count_nanoseconds
from ddflow.trace.batch import BatchRange
from ddflow.trace.merge import PickedVersions

DUE: Final = pa.field("_due", INT64, nullable=False)
"""The column of the time at which a waiting update is due."""
GOES: Final = pa.field("_goes", pa.bool_(), nullable=False)
"""The column that tells whether a row will go at that time; else it will come."""


class TemporalBound(NamedTuple):
    """The bound of a temporal condition; see `ddflow.expressions.clock.TemporalCondition`.

    ``value``: the expression that the clock is compared with. ``kind``: the type of times.

    >>> rows = pa.record_batch({"day": pa.array([20_000, None], pa.date32())})
    >>> day = compile_expression("day", rows.schema)
    >>> TemporalBound(day, True, False, True, pa.timestamp("s")).compute(rows).tolist() == [20_000 * 86_400, NEVER]
    True
    """

    value: Expression
    ends: bool
    after: bool
    days: bool
    kind: pa.DataType

    def compute(self, rows: pa.RecordBatch) -> Ints:
        """Compute the bound of each row, in the unit of times; `CLOSED` or `NEVER` if the bound is beyond all times.

        With a null value, the row is never present. O(rows). Raises `ExpressionError`.
        """
        values = self.value(rows)
        numbers = values.cast(pa.int32() if pat.is_date32(values.type) else INT64).fill_null(0)
        ticks, mine, clock = np.array(numbers, np.int64), count_ticks(values.type), count_ticks(self.kind)
        unit = 1 if self.days else clock
        ticks = _multiply(ticks, max(unit // mine, 1))
        if (size := max(mine // unit, 1)) > 1 and not self.after:
            ticks = -(-ticks // size)
        elif self.after:
            ticks = ticks // size + (ticks < CLOSED)
        ticks = _multiply(ticks, clock // unit)
        if values.null_count:
            ticks[np.asarray(values.is_null())] = NEVER if self.ends else CLOSED
        return ticks


def _to_words(times: Ints) -> Words:
    """Convert times to words in the same order."""
    return times.view(np.uint64) ^ np.uint64(1 << 63)


def count_ticks(kind: pa.DataType) -> int:
    """Return the number of values that a type of dates or timestamps has for a day."""
    return count_nanoseconds(pa.date32()) // count_nanoseconds(kind)


def _multiply(ticks: Ints, by: int) -> Ints:
    """Multiply. Replace numbers that are too large or too small by `CLOSED` or `NEVER`."""
    most = CLOSED // by
    out: Ints = np.where(ticks > most, CLOSED, np.where(ticks < -most, NEVER, ticks * by))
    return out if by > 1 else ticks


class TimeSpans(NamedTuple):
    """The half-open spans [begin, end) of times at which rows are present, each as int64[n]."""

    begin: Ints
    end: Ints


class UpdatesAtTimes(NamedTuple):
    """The updates at some places of ``rows``, with a time and a diff for each row."""

    places: Ints
    rows: Any
    times: Ints
    diffs: Ints


class DueUpdates(NamedTuple):
    """Updates that wait: their rows, the times at which they are due, their diffs, and whether the rows then go."""

    rows: pa.Table
    due: Ints
    diffs: Ints
    goes: Any
    """bool[n]"""


NOTHING_DUE: Final = DueUpdates(pa.table({}), ints(), ints(), np.zeros(0, np.bool_))


@register_operator
class TemporalFilter(RowPreservingOperator):
    """The operator of `Collection.filter` for conditions with the clock.  ``conditions``: their SQL."""

    verb, keeps, reads_clock = "temporal_filter", True, True

    def __init__(self, of: Collection, conditions: Sequence[str]) -> None:
        self.conditions = list(conditions)
        check_column_names([*of.schema.names, TIMES, DUE.name, GOES.name], "filter")
        refuse_forgetting_inputs("filter by now()", "the state would keep these rows forever", of)
        kind = of.flow.require_clock()
        self.bounds = [bound for text in self.conditions for bound in _bind_condition(text, of.schema, kind)]
        read = {name for bound in self.bounds for name in bound.value.columns or ()}
        # Conditions without columns still need the number of rows.
        self.read = pa.schema([each for each in of.schema if each.name in read] or [of.schema.field(0)])
        super().__init__(of.flow, of.schema, [of], of.consolidated)
        self.unique, self.equal = of.unique, of.equal

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the conditions as JSON."""
        return {"conditions": self.conditions}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return inputs[0]._apply_verb(cls.verb, record.read_texts("conditions"))

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that the conditions have the same meaning on the wider types."""
        for mine, its in zip(self.bounds, narrow.bounds, strict=True):
            yield from find_formula_objections(
                mine.value, narrow.inputs[0].schema, self.inputs[0].schema, its.value.type
            )

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the conditions as text."""
        return repr(" and ".join(record.read_texts("conditions")))

    def exchange(self) -> list[Columns | None]:
        """Return the columns that identify rows, by which rows usually are partitioned, or else all columns."""
        return [self.inputs[0].identified_by() or tuple(self.schema.names)]

    def find_pushdown_columns(self, at: int) -> dict[str, str]:
        """Return all columns, because the output rows are input rows; see `Collection.find_pushdown_columns`."""
        return {name: name for name in self.schema.names}

    def map_watermark_columns(self, at: int) -> dict[str, Any]:
        """Return no columns: rows below a watermark can come and go later; see `Collection.map_watermark_columns`."""
        return {}

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input; see `Collection.unique_by`."""
        return self.inputs[0].unique_by()

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningTemporalFilter(self, context)


def _bind_condition(text: str, schema: pa.Schema, kind: pa.DataType) -> Iterator[TemporalBound]:
    """Compile a temporal condition over columns. ``kind``: the type of times. Raises `ExpressionError`."""
    from ddflow.expressions.clock import parse_temporal_condition  # its parser takes long to import

    asked = f"cannot compile the condition {shorten(text)}"
    try:
        conditions = parse_temporal_condition(text)
    except Refusal as refusal:
        raise ExpressionError(asked, refusal.found, refusal.fix) from None
    for ends, after, days, sql in conditions:
        value = compile_expression(sql, schema, what="the condition")
        if pat.is_string(value.type):
            value = compile_expression(
                f"cast({sql} as {'date' if days else 'timestamp'})", schema, what="the condition"
            )
        if not (pat.is_date(value.type) or pat.is_timestamp(value.type)):
            found = f"it compares the clock with {sql}, which is {sql_name(value.type)}"
            raise ExpressionError(asked, found, "compare the clock with a date or a timestamp")
        if pat.is_date(kind) and not days:
            raise ExpressionError(asked, "the clock of the flow has only dates", "write current_date")
        yield TemporalBound(value, ends, after, days, kind)


class RunningTemporalFilter(RunningArrange):
    """A running temporal filter. State: the updates that wait, by the time at which they are due, then by row.

    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import ints, narrow_ints
    >>> from ddflow.plan.plan import Plan
    >>> days = Plan(clock="date").updates("days", {"day": pa.date32()})
    >>> context = OperatorContext(Secret(1, 2), pa.date32(), frozenset(["day"]))
    >>> running = days.filter("day >= current_date").open(context)
    >>> rows, none = pa.table({"day": [3]}, schema=days.schema), pa.table({})
    >>> made, change = running.compute([Updates(rows, narrow_ints(0), ints(1), ints(2))], since=2)
    >>> running.apply([change], upper=3, since=2)
    >>> nothing, clock = Updates(rows[:0], narrow_ints(), ints(), ints()), Updates(none, narrow_ints(), ints(), ints(4))
    >>> made.diffs.tolist(), running.compute([nothing, clock], since=4)[0].diffs.tolist()
    ([1], [-1])
    """

    holds_output = False

    def __init__(self, node: TemporalFilter, context: OperatorContext) -> None:
        self.bounds, self.exact, self.secret, self.refuses = node.bounds, node.flow.holds_back, context.secret, ""
        self.read = node.read
        self.wanted = [name for name in node.schema.names if name in context.wanted]
        self.set_up_rows(node.schema.append(DUE).append(GOES), (), 3, context.secret, context.threads)
        self.rows = RowHasher(pa.schema(self.fields[:-2]), context.secret, context.threads)

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, Any]:
        """See `RunningOperator.compute`. ``inputs``: the updates, and one whose last time the step closes.

        O(n log n) for n updates, and O(runs log rows) plus the updates that are due. Raises `ExpressionError`.
        """
        updates, until = inputs[0], int(inputs[-1].times[-1])
        stamps, span, diffs = updates.times.take(updates.ranks), self._find_spans(updates.rows), updates.diffs
        begin = np.maximum(stamps, span.begin)
        alive = begin < span.end
        came, later = np.flatnonzero(alive & (begin <= until)), np.flatnonzero(alive & (begin > until))
        left, ends = came[span.end[came] <= until], np.flatnonzero(alive & (span.end > until) & (span.end < CLOSED))
        plus, minus = (updates.rows, begin, diffs), (updates.rows, span.end, -diffs)
        due = self._find_due(until)
        every = np.arange(due.diffs.size)
        if every.size or left.size or (begin[came] > stamps[came]).any():
            at = due.due if self.exact else np.full(every.size, until)
            gone = [UpdatesAtTimes(left, *minus), UpdatesAtTimes(every, due.rows, at, due.diffs)]
            # Two updates of a row can only be at one time if a bound of the row is in this step. A row comes before its
            # end, so what comes can only cancel a begin.
            mixed = not self.exact and bool((due.diffs > 0).any() and (due.diffs < 0).any())
            mixed = mixed or bool((span.begin[came] >= self.output_arrangement.upper).any())
            if left.size and not mixed:
                ended = consolidate(_combine(gone, self.wanted, ints()), self.secret)
                places, ends_at = np.arange(ended.diffs.size), ended.times.take(ended.ranks)
                gone = [UpdatesAtTimes(places, ended.rows, ends_at, ended.diffs)]
            out = _combine([UpdatesAtTimes(came, *plus), *gone], self.wanted, updates.times)
            out = consolidate(out, self.secret) if mixed else out
        else:
            out = updates if came.size == stamps.size else updates.take(came)
        kept = [(later, *plus), (ends, *minus), (every, due.rows, due.due, -due.diffs)]
        goes = np.zeros(later.size, np.bool_), np.ones(ends.size, np.bool_), due.goes
        waiting = [(UpdatesAtTimes(*each), its) for each, its in zip(kept, goes, strict=True) if its.size]
        return out, self._store_waiting(waiting, until, since)

    def _store_waiting(self, kept: Sequence[tuple[UpdatesAtTimes, Any]], until: int, since: int) -> Any:
        """Build the change that stores updates until they are due, and removes those that are due.

        The flags tell which rows will go. They are stored with the opposite diff, so that multiplicities are positive.
        """
        if not kept:
            return None
        names, tables, diffs = self.rows.names, list[pa.Table](), list[Ints]()
        for each, goes in kept:
            taken = column_arrays(each.rows.take(pa.array(each.places)), names)
            columns = [*taken, pa.array(each.times[each.places]), pa.array(goes)]
            tables.append(pa.Table.from_arrays(columns, self.whole.names))
            diffs.append(np.where(goes, -1, 1) * each.diffs[each.places])
        rows, summed = pa.concat_tables(tables).combine_chunks(), np.concatenate(diffs)
        stored = Updates(rows, np.zeros(summed.size, np.int32), summed, ints(until))
        return super().compute([stored], since)[1]

    def group_updates(self, updates: Updates, keys: RowHasher) -> GroupSortedUpdates:
        """Sort the updates by the words of `compute_row_words`; see `RunningArrange.group_updates`.

        Many updates are due at one time. So the sort begins with one word, the rank of the time and the first bits of
        the row, whose values are spread evenly.
        """
        more = self.compute_row_words(updates.rows)
        due, first = more[:, 0].view(np.uint64), more[:, 1].view(np.uint64)
        distinct = np.unique(due)
        bits = max(int(distinct.size - 1).bit_length(), 1)
        ranks = np.searchsorted(distinct, due).astype(np.uint64)
        word = (ranks << np.uint64(64 - bits)) | (first >> np.uint64(bits))
        by = sort_by_words(word, np.zeros_like(word), more, None, keys.threads)
        high, low = keys.compute_identities([], due.size)
        return GroupSortedUpdates.gather(updates, by._replace(high=high, low=low), more, keys.threads)

    def apply(self, changes: Sequence[Any], upper: int, since: int) -> None:
        """See `RunningOperator.apply`.  Changes of one step can overlap, so each becomes a run of its own."""
        for each in changes or [None]:
            super().apply([] if each is None else [each], upper, since)

    def compute_row_words(self, rows: Any) -> Ints:
        """Compute the time at which updates are due, as a word, and two words of their rows, as int64[n, 3]."""
        due, goes = column_arrays(rows, [DUE.name, GOES.name])
        high, low = self.rows.identify_rows(rows)
        return np.stack([_to_words(np.asarray(due)), high, low ^ unpack_booleans(goes)], axis=1).view(np.int64)

    def compute_initial_updates(self, inputs: Sequence[Updates]) -> Updates:
        """Select the rows that are present at the last time; see `RunningOperator.compute_initial_updates`."""
        return self._select_present(inputs[0], int(inputs[0].times[-1]))

    def compute_output_rows(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """Select the rows that are present at a time; see `RunningOperator.compute_output_rows`.

        O(rows), plus O(rows that waited) for an earlier time in epoch mode.
        """
        last = max(self.output_arrangement.upper - 1, NEVER)
        if self.exact or as_of is None or as_of >= last:
            return self._select_present(inputs[0], last if as_of is None or not self.exact else as_of)
        # The last step before that time is not known. A row that will go has been emitted if its end waits and its
        # beginning does not. So the waiting updates of such rows add up to the opposite of what was emitted.
        of = inputs[0]
        span, words = self._find_spans(of.rows), np.stack(self.rows.identify_rows(of.rows), axis=1)
        stays = np.flatnonzero((span.end == CLOSED) & (span.begin < CLOSED))
        shown = [UpdatesAtTimes(stays, of.rows, np.full(of.diffs.size, as_of), of.diffs)]
        known = {each.tobytes() for each in words}
        arrangements: Any = self.output_arrangement.partitions
        for each in arrangements:
            for picked in each.iterate_sums(as_of):
                waiting = _read_waiting(each, picked)
                its = np.stack(self.rows.identify_rows(waiting.rows), axis=1)
                places = np.flatnonzero([word.tobytes() in known for word in its])
                shown.append(UpdatesAtTimes(places, waiting.rows, np.full(its.shape[0], as_of), -waiting.diffs))
        return _combine(shown, self.rows.names, ints())

    def select_waiting_rows(self, inputs: Sequence[Updates]) -> Updates:
        """Select the updates of rows that are accepted, but not present yet.  ``inputs``: as for `compute`."""
        updates, until = inputs[0], int(inputs[-1].times[-1])
        span = self._find_spans(updates.rows)
        return updates.take(np.flatnonzero((span.begin > until) & (span.begin < span.end)))

    def has_due_updates(self, until: int) -> bool:
        """See `RunningOperator.has_due_updates`."""
        return bool(self._find_due(until).diffs.size)

    def _select_present(self, updates: Updates, now: int) -> Updates:
        span = self._find_spans(updates.rows)
        return updates.take(np.flatnonzero((span.begin <= now) & (now < span.end)))

    def _find_spans(self, rows: Any) -> TimeSpans:
        """Compute the times [begin, end) at which each row is present.  O(rows)."""
        n = rows.num_rows
        spans = TimeSpans(np.full(n, NEVER), np.full(n, CLOSED))
        given = pa.RecordBatch.from_arrays(column_arrays(rows, self.read.names), schema=self.read)
        for bound in self.bounds if n else ():
            choose, out = (np.minimum, spans.end) if bound.ends else (np.maximum, spans.begin)
            choose(out, bound.compute(given), out=out)
        return spans

    def _find_due(self, until: int) -> DueUpdates:
        """Find the waiting updates that are due, up to and including the time ``until``.  O(runs log rows + found)."""
        arranged: Any = self.output_arrangement
        parts = np.array(arranged.parts, np.int64).reshape(-1, 3)
        whole, word, one = parts[:, 1:].reshape(1, -1), np.zeros(1, np.uint64), np.zeros(1, np.int64)
        bounds, ranges = _to_words(np.array([[arranged.upper, until]])), np.empty_like(whole)
        asked = StepUpdates(np.array([0, 1]), word, word, np.zeros((1, 3), np.uint64), one, np.zeros(1, np.int32), one)
        stored = StoredGroups(parts[:, 0].copy(), whole.copy(), arranged.slots.addresses)
        find_bound_ranges(asked, stored, bounds, np.int64(1), np.empty(2, np.int64), ranges)
        found = [
            BatchRange(slot, begin, end)
            for slot, (begin, end) in zip(parts[:, 0].tolist(), ranges.reshape(-1, 2).tolist(), strict=True)
            if begin < end
        ]
        picked = arranged.sum_parts(found, None) if found else None
        return NOTHING_DUE if picked is None else _read_waiting(arranged, picked)


def _read_waiting(arranged: Any, picked: PickedVersions) -> DueUpdates:
    """Read waiting updates from an arrangement.  O(n)."""
    rows = gather_table(arranged.slots.pool, picked.references, arranged.schema)
    goes, counts = np.asarray(rows.column(GOES.name)), picked.value.view(np.int64)
    return DueUpdates(rows, np.asarray(rows.column(DUE.name)), np.where(goes, -counts, counts), goes)


def _combine(parts: Sequence[UpdatesAtTimes], names: Sequence[str], times: Ints) -> Updates:
    """Combine updates in the order of their times, retractions first.  ``times``: further times to list. O(n log n)."""
    parts = [each for each in parts if each.places.size] or parts[:1]
    taken = [column_arrays(each.rows.take(pa.array(each.places)), names) for each in parts]
    rows = pa.concat_tables([pa.Table.from_arrays(columns, names) for columns in taken]).combine_chunks()
    stamps = np.concatenate([each.times[each.places] for each in parts])
    listed = np.union1d(times, stamps)
    listed = times if listed.size == times.size else listed
    ranks = np.searchsorted(listed, stamps).astype(np.int32)
    made = Updates(rows, ranks, np.concatenate([each.diffs[each.places] for each in parts]), listed)
    return made.take(sort_retractions_first(ranks, made.diffs, listed.size))
