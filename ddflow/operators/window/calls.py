"""Compute the results of window functions for places.

There are five kinds of calls: ranks, functions that pick a value of one place, aggregates that are computed from
states, aggregates that need all values of a frame, and sessions.

>>> call = NumberCall("place", "rank()", "rank", 1)
>>> places = Places(np.array([0, 1, 2]), np.array([0, 3]), np.array([0, 0, 1]))
>>> call.compute(places, Arguments({}, None, Secret(1, 2)), None).take(np.arange(3)).to_pylist()
[1, 1, 3]
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, RowHasher, Secret, compute_canonical_words, unpack_validity, view_words
from ddflow.columns.order_words import OrderColumn, compute_order_words, count_order_words, has_exact_words
from ddflow.columns.schema import decode_array, is_word_type
from ddflow.columns.wider import find_widening
from ddflow.errors import AggregateOverflow, ExpressionError, TooLarge, shorten
from ddflow.expressions import Expression, compile as compile_expression
from ddflow.expressions.functions.time_windows import build_structs
from ddflow.expressions.types import INT64, sql_name, working_type
from ddflow.kernels.frames import count_frame_values, find_frame_extremes
from ddflow.operators.aggregates.parts import UpdatesByCell, ValueOverflow
from ddflow.operators.aggregates.results import FoldedAggregate
from ddflow.operators.window.frames import HERE, START, UNITS, RangeOrder, Reach, WindowFrame
from ddflow.operators.window.places import Places, list_ranges, rank_words
from ddflow.plan.aggregates import AggregateCall

LIMIT: Final = 10_000
"""The maximum number of places in a frame from which an aggregate needs all values."""
NUMBERS: Final = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile")
_SHARES: Final = ("percent_rank", "cume_dist")
_MOST: Final = 2**63 - 1
"""The greatest timestamp, in its unit."""


class Arguments(NamedTuple):
    """The rows of some windows. ``values``: the value of each argument for each row, by SQL text.

    ``ranges``: see `RangeOrder.compute_words`.
    """

    values: Mapping[str, pa.Array]
    ranges: Any
    secret: Secret


class Results(NamedTuple):
    """The results of a call for e places. Two places have equal results if their ``words`` are equal.

    ``values``: an array of distinct or of all results.  ``at``: int64[e], the position of each place's result in
    ``values``, or None if the results are in the order of places.
    """

    words: Sequence[Any]
    values: Any
    at: Ints | None = None

    def take(self, places: Ints) -> pa.Array:
        """Return the results of some places."""
        at = places if self.at is None else self.at[places]
        return self.values.take(pa.array(at)) if isinstance(self.values, pa.Array) else pa.array(self.values[at])


class WindowCall:
    """A call of a window function. ``type``: the type of its results. ``arguments``: its expressions by SQL text.

    ``ordered``: whether the order of peers can affect the results.
    """

    type: pa.DataType
    nullable = True
    ordered = True

    def __init__(self, name: str, text: str, frame: WindowFrame) -> None:
        self.name, self.text, self.frame = name, text, frame
        self.arguments: dict[str, Expression] = {}
        self.reach = frame.reach

    def compute(self, places: Places, given: Arguments, order: RangeOrder | None) -> Results:
        """Compute the results for places."""
        raise NotImplementedError

    def add_argument(self, text: str, schema: pa.Schema) -> pa.DataType:
        """Compile an argument and return its type.  Raises `ExpressionError`."""
        self.arguments[text] = compile_expression(text, schema, what=f"{self.text} of {self.name!r}")
        return self.arguments[text].type

    def refuse(self, found: str, remedy: str) -> ExpressionError:
        """Build the error for an invalid call."""
        return ExpressionError(f"over {self.name}={shorten(self.text)!r}", found, remedy)

    def list_incompatibilities(self, narrow: Self) -> Iterator[str]:
        """Yield the reasons why results would differ from ``narrow``, the same call over narrower columns."""
        if self.type != narrow.type and find_widening(narrow.type, self.type) is None:
            yield f"{self.text!r} was {narrow.type}, but would become {self.type}"


class NumberCall(WindowCall):
    """A rank, or another function of a place alone."""

    nullable = False

    def __init__(self, name: str, text: str, function: str, buckets: int) -> None:
        super().__init__(name, text, WindowFrame("range", START, HERE))
        self.function, self.buckets = function, buckets
        self.type = pa.float64() if function in _SHARES else pa.int64()
        self.ordered = function in ("row_number", "ntile")
        self.reach = Reach(tail=True) if function in NUMBERS[:3] else Reach(whole=True)

    def compute(self, places: Places, given: Arguments, order: RangeOrder | None) -> Results:
        """See `WindowCall.compute`."""
        values = self._compute(places)
        return Results([values], values)

    def _compute(self, places: Places) -> Any:
        if self.function == "dense_rank":
            return places.event_number
        if self.function in ("row_number", "rank"):
            at = places.index if self.function == "row_number" else places.peer_begin
            return at - places.begin + 1 + places.prefix.places[places.state]
        size = places.end - places.begin
        if self.function == "percent_rank":
            return (places.peer_begin - places.begin) / np.maximum(size - 1, 1)
        if self.function == "cume_dist":
            return (places.peer_end - places.begin) / size
        at, (small, more) = places.index - places.begin, np.divmod(size, self.buckets)
        large = more * (small + 1)
        return np.where(at < large, at // (small + 1), more + (at - large) // np.maximum(small, 1)) + 1


class ParsedCall(NamedTuple):
    """A parsed call of a function that picks a value.

    ``number``: the signed distance of lag and lead, or the number of rows before the one of nth_value, else 0.
    """

    function: str
    arguments: Sequence[str]
    number: int
    skips: bool


class PickCall(WindowCall):
    """A function whose result is the value of an argument at one place of the frame."""

    def __init__(self, name: str, text: str, of: "ParsedCall", frame: WindowFrame, schema: pa.Schema) -> None:
        super().__init__(name, text, frame)
        self.function, self.number, self.skips = of.function, of.number, of.skips
        (self.argument,) = of.arguments
        self.type = self.add_argument(self.argument, schema)
        self.extreme = self.function in ("min", "max")
        if self.extreme:
            count_order_words(self.type, self.argument)
        self.ordered = not self.extreme or frame.counts_places
        self.running = self.reach.tail and (self.function in ("min", "max") or not (self.skips and self.number))
        if self.function in ("lag", "lead"):
            self.reach, self.running = Reach(whole=True) if self.skips else Reach(near=max(abs(self.number), 1)), False
        elif self.reach.tail and not self.running:
            self.reach = Reach(whole=True)

    def compute(self, places: Places, given: Arguments, order: RangeOrder | None) -> Results:
        """See `WindowCall.compute`."""
        values = given.values[self.argument]
        offset = self.function in ("lag", "lead")
        bounds = (places.begin, places.end) if offset else self.frame.find_bounds(places, order, given.ranges)
        rows = self.pick_rows(places, values, *bounds)
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
        rows[rows < 0] = len(values) - 1
        hasher = RowHasher(pa.schema([pa.field("", values.type)]), given.secret)
        words = hasher.compute_identities([values], len(values))
        return Results([each[rows] for each in words], values, rows)

    def pick_rows(self, places: Places, values: pa.Array, begin: Ints, end: Ints) -> Ints:
        """Return the row whose value each place gets, or -1.  ``begin``, ``end``: the frame of each place."""
        ranks = self._rank_rows(decode_array(values)) if self.extreme else None
        if ranks is not None:
            at = np.empty(places.row.size, np.int64)
            find_frame_extremes(ranks[places.row], begin, end, at)
        elif self.skips:
            at = self._pick_present(places, ~np.asarray(values.is_null())[places.row], begin, end)
        elif self.function in ("lag", "lead"):
            at = places.index + self.number
        else:
            at = end - 1 if self.function == "last" else begin + self.number
            if self.function == "nth_value" and self.running:
                at = at - places.prefix.places[places.state]
        found = (at >= begin) & (at < end)
        rows = np.where(found, places.row[np.where(found, at, 0)], -1) if places.row.size else at
        picked = places.prefix.picked.get(self.name)
        if picked is None:
            return rows
        before = picked[places.state]
        if ranks is not None:
            first = (rows < 0) | (ranks[before] <= ranks[rows])
            return np.where((before >= 0) & first, before, rows)
        late = rows < 0 if self.function == "last" else before >= 0
        return np.where(late, before, rows)

    def _rank_rows(self, values: pa.Array) -> Ints:
        """Rank the values of rows, from the first one to pick. A null has the rank -1."""
        ranks = rank_values(values, self.function == "max")
        ranks[np.asarray(values.is_null())] = -1
        return ranks

    def _pick_present(self, places: Places, there: Any, begin: Ints, end: Ints) -> Ints:
        """Pick places with `IGNORE NULLS`.  ``there``: bool[e], whether the value of each place is not null."""
        present = np.flatnonzero(there)
        if self.function in ("lag", "lead"):
            here = np.searchsorted(present, places.index, side="left" if self.number < 0 else "right")
            at = here + self.number - (self.number > 0)
        elif self.function == "last":
            at = np.searchsorted(present, end) - 1
        else:
            at = np.searchsorted(present, begin) + self.number
        found: Ints = np.append(present, -1)[np.clip(at, -1, present.size)]
        return np.where(at >= 0, found, -1)


class FoldCall(WindowCall):
    """An aggregate that is computed from states, which a place that leaves the frame changes as one that enters."""

    def __init__(self, name: str, text: str, of: FoldedAggregate, frame: WindowFrame) -> None:
        super().__init__(name, text, frame)
        self.of, self.type, self.nullable = of, of.type, of.nullable
        self.arguments = of.arguments
        self.ordered = frame.counts_places

    def compute(self, places: Places, given: Arguments, order: RangeOrder | None) -> Results:
        """See `WindowCall.compute`.  Raises `AggregateOverflow`."""
        begin, end = self.frame.find_bounds(places, order, given.ranges)
        changes, running = list_frame_changes(places, begin, end), self.frame.begin.unbounded
        prefix = places.prefix.states if running else {}
        held = len(next(iter(prefix.values()), ()))
        before = np.arange(held - 1, held + changes.first.size - 1)
        before[changes.fresh] = places.prefix.held[places.state[changes.first[changes.fresh]]] if held else -1
        cells = (changes.cells + held).astype(np.int32)
        folding, states = UpdatesByCell(cells, before.astype(np.int32), changes.diffs, held), []
        rows = places.row[changes.moved]
        try:
            for key, part in self.of.parts.items():
                text = key[1]
                values = given.values[text].take(pa.array(rows)) if text else None
                states.append(part.fold_updates(folding, prefix.get(key, pa.array([], part.kind)), values))
            results = self.of.compute_results(states, np.ones(folding.size, bool))
        except ValueOverflow:
            found = f"{self.of.call.text} overflows its type"
            remedy = "cast its argument to a wider type; nothing of this step was kept"
            raise AggregateOverflow(f"over {self.name}", found, remedy) from None
        results = results.slice(held)
        words = compute_canonical_words(results)[:, None] if is_word_type(results.type) else view_words(results, 2)
        validity = unpack_validity(results)
        told = [*words.T, validity] if validity.size else [*words.T]
        return Results([each[changes.cell] for each in told], results, changes.cell)

    def list_incompatibilities(self, narrow: Any) -> Iterator[str]:
        """See `WindowCall.list_incompatibilities`."""
        yield from self.of.list_incompatibilities(narrow.of)


class CollectedCall(WindowCall):
    """An aggregate that needs all values of its frame: array_agg, or the number of distinct values."""

    def __init__(self, name: str, text: str, of: AggregateCall, frame: WindowFrame, schema: pa.Schema) -> None:
        super().__init__(name, text, frame)
        self.function, (self.argument,) = of.function, of.arguments
        kind = self.add_argument(self.argument, schema)
        self.type = pa.int64() if self.function == "count" else pa.list_(pa.field("item", kind))
        self.nullable, self.ordered = False, self.function != "count" or frame.counts_places
        if self.reach.tail:
            self.reach = Reach(whole=True)

    def compute(self, places: Places, given: Arguments, order: RangeOrder | None) -> Results:
        """See `WindowCall.compute`.  Raises `TooLarge`."""
        begin, end = self.frame.find_bounds(places, order, given.ranges)
        if (most := int((end - begin).max(initial=0))) > LIMIT:
            found = f"a frame has {most:,} rows, but {self.text} needs each value of a frame of at most {LIMIT:,}"
            raise TooLarge(f"over {self.name}", found, "use a shorter frame, or smaller partitions")
        values = given.values[self.argument]
        if self.function == "count":
            hasher = RowHasher(pa.schema([pa.field("", values.type)]), given.secret)
            words = np.stack(hasher.compute_identities([values], len(values)), axis=1)
            _, number = np.unique(words, axis=0, return_inverse=True)
            number = number.reshape(-1).astype(np.int64)
            number[np.asarray(values.is_null())] = -1
            out = np.empty(places.row.size, np.int64)
            count_frame_values(number[places.row], begin, end, np.int64(len(values)), out)
            return Results([out], out)
        rows = places.row[list_ranges(begin, end - begin)]
        present = ~np.asarray(values.is_null())[rows]
        stops = np.append(0, np.cumsum(present))[np.append(0, np.cumsum(end - begin))]
        items = values.take(pa.array(rows[present]))
        lists = pa.LargeListArray.from_arrays(pa.array(stops), items).cast(self.type)
        hasher = RowHasher(pa.schema([pa.field("", self.type)]), given.secret)
        return Results(hasher.compute_identities([lists], len(lists)), lists)


class SessionCall(WindowCall):
    """The session of each row, as a struct with its start and end.

    The timestamps of a session are less than a gap apart. The session ends a gap after its last timestamp. A row
    without a timestamp is in no session.

    ``column``: the timestamps, which order the rows.  ``gap``: in microseconds.
    """

    ordered = False

    def __init__(self, name: str, text: str, column: str, gap: int, schema: pa.Schema) -> None:
        super().__init__(name, text, WindowFrame("range", START, HERE))
        self.column, (self.argument, kind) = column, (f"`{column.replace('`', '``')}`", schema.field(column).type)
        self.add_argument(self.argument, schema)
        if not pat.is_timestamp(kind):
            raise self.refuse(f"{column!r} is {sql_name(kind)}, not a timestamp", "cast it in a projection before")
        self.kind = working_type(kind)
        self.type = pa.struct([("start", self.kind), ("end", self.kind)])
        self.gap, self.scale = gap * 1000 // UNITS[self.kind.unit], UNITS[kind.unit] // UNITS[self.kind.unit]
        # Two timestamps of a coarse unit are closer than the gap if they are closer than the gap rounded up.
        self.distance = min(-(-self.gap // self.scale), _MOST)
        self.reach = Reach(gap=self.distance)

    def compute(self, places: Places, given: Arguments, order: RangeOrder | None) -> Results:
        """See `WindowCall.compute`.  Raises `ExpressionError`."""
        times = given.values[self.argument]
        at = np.asarray(pc.fill_null(times.cast(INT64), 0))[places.row]
        present = ~np.asarray(times.is_null())[places.row]
        new = np.ones(at.size, bool)
        new[1:] = (np.diff(at).view(np.uint64) >= self.distance) | (present[1:] != present[:-1])
        new[places.starts[:-1][places.starts[:-1] < at.size]] = True
        first, session = np.flatnonzero(new), np.cumsum(new) - 1
        starts, lasts, there = at[first], at[np.append(first, at.size)[1:] - 1], present[first]
        least, most = (int(each) * self.scale for each in (starts.min(initial=0), lasts.max(initial=0)))
        if least < -_MOST - 1 or most > _MOST - self.gap:
            found = "a session begins or ends outside of the range of timestamps"
            raise self.refuse(found, "filter rows with such timestamps out first")
        starts, ends = starts * self.scale, np.where(there, lasts * self.scale + self.gap, 0)
        # Without a timestamp, both bounds are 0. A session has different bounds.
        values = build_structs(starts, ends, self.kind)
        if not there.all():
            values = pc.if_else(pa.array(there), values, pa.scalar(None, values.type))
        return Results([starts[session], ends[session]], values, session)


def rank_values(values: pa.Array, descending: bool) -> Ints:
    """Compute the dense rank of each value.  O(n log n).

    >>> rank_values(pa.array([7, 5, 7]), descending=True).tolist()
    [0, 1, 0]
    """
    if not has_exact_words(values.type):
        way: Any = "descending" if descending else "ascending"
        return np.array(pc.rank(values, way, tiebreaker="dense")).astype(np.int64)
    words = compute_order_words(pa.record_batch({"v": values}), [OrderColumn("v", descending, True)])
    return rank_words(words)


class FrameChanges(NamedTuple):
    """The places that enter and leave frames. Successive places with equal frames share a cell; there are c cells."""

    cell: Ints
    """int64[e]: the cell of each place."""
    first: Ints
    """int64[c]: the first place of each cell."""
    fresh: Any
    """bool[c]: whether the cell is the first of its state."""
    cells: Ints
    moved: Ints
    diffs: Ints
    """int64[m]: the cell, the place and the diff of each change."""


def list_frame_changes(places: Places, begin: Ints, end: Ints) -> FrameChanges:
    """List the places that enter and leave frames.  O(places + changes)."""
    n = places.row.size
    starts = np.zeros(n, bool)
    starts[places.starts[:-1][places.starts[:-1] < n]] = True
    changed = starts.copy()
    changed[1:] |= (begin[1:] != begin[:-1]) | (end[1:] != end[:-1])
    first = np.flatnonzero(changed)
    begins, ends, fresh = begin[first], end[first], starts[first]
    left = np.where(fresh, begins, np.roll(begins, 1))
    entered = np.where(fresh, begins, np.roll(ends, 1))
    numbers, into, out = np.arange(first.size), ends - entered, begins - left
    moved = np.concatenate([list_ranges(entered, into), list_ranges(left, out)])
    cells = np.concatenate([np.repeat(numbers, into), np.repeat(numbers, out)])
    diffs = np.ones(moved.size, np.int64)
    diffs[int(into.sum()) :] = -1
    return FrameChanges(np.cumsum(changed) - 1, first, fresh, cells, moved, diffs)
