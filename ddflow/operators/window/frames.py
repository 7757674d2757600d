"""Parse the frames of window functions, and find the frame of each place.

A frame in ROWS counts places. A frame in RANGE includes all peers of its first and last place; a bound with a distance
includes the rows whose value in the only order column is at most this distance away. Nulls are peers of nulls only.

>>> frame = parse_frame("s", None, ordered=True)
>>> frame, frame.reach.tail
(WindowFrame(unit='range', begin=Bound(side=-1, distance='', rows=None), end=Bound(side=0, distance='', rows=0)), True)
"""

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Ints
from ddflow.columns.order_words import OrderColumn, compute_order_words
from ddflow.errors import ExpressionError, shorten
from ddflow.expressions import Expression, compile as compile_expression
from ddflow.expressions.types import sql_name
from ddflow.operators.window.places import Bounds, Places, rank_words

_ONE: Final = pa.record_batch({"one": [1]})
UNITS: Final = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
"""The nanoseconds in a time unit."""
_DAY: Final = 86_400 * 10**9


class Reach(NamedTuple):
    """The rows whose results a change can affect, and which these results are computed from.

    ``near``: the number of places on both sides of the change.  ``value``: the distance in the order column, in the
    unit of its order words.  ``tail``: all rows after the change, given the prefix.  ``whole``: all rows of the
    partition.  ``gap``: the rows of the change's session, whose neighbours are less than this distance apart.
    """

    near: int = 0
    value: int = 0
    tail: bool = False
    whole: bool = False
    gap: int = 0

    def combine(self, other: "Reach") -> "Reach":
        """Combine the reaches of two calls."""
        near, value = max(self.near, other.near), max(self.value, other.value)
        tail, whole, gap = self.tail or other.tail, self.whole or other.whole, max(self.gap, other.gap)
        apart = bool((near and value and not tail) or (gap and (near or value or tail)))
        return Reach(near, value, tail, whole or apart, gap)


class Bound(NamedTuple):
    """A bound of a frame.

    ``side``: -1 for PRECEDING, 0 for CURRENT ROW, 1 for FOLLOWING.  ``distance``: the SQL of the distance, or "" for
    none.  ``rows``: the distance in ROWS, signed; None if it is unbounded.
    """

    side: int
    distance: str = ""
    rows: int | None = 0

    @property
    def unbounded(self) -> bool:
        """Whether the bound is the start or the end of the partition."""
        return self.rows is None and not self.distance


START, HERE, END = Bound(-1, "", None), Bound(0), Bound(1, "", None)


class WindowFrame(NamedTuple):
    """A frame.  ``unit``: "rows" or "range"."""

    unit: str
    begin: Bound
    end: Bound

    @property
    def reach(self) -> Reach:
        """The reach of a function of this frame. For distances in RANGE, see `RangeOrder.measure_reach`."""
        if self.end.unbounded:
            return Reach(whole=True)
        ahead = max(self.end.rows or 0, 0)
        if self.begin.unbounded:
            return Reach(near=ahead, tail=True)
        return Reach(near=max(max(-(self.begin.rows or 0), 0) + ahead, 1))

    @property
    def by_value(self) -> bool:
        """Whether a bound is a distance in the order column."""
        return self.unit == "range" and bool(self.begin.distance or self.end.distance)

    @property
    def counts_places(self) -> bool:
        """Whether the order of peers decides which rows are in the frame."""
        return self.unit == "rows" and not (self.begin.unbounded and self.end.unbounded)

    def find_bounds(self, places: Places, order: "RangeOrder | None", values: Any) -> Bounds:
        """Find the frame of each place.  ``values``: the words of `RangeOrder.compute_words`, by frame.  O(places)."""
        if self not in places.bounds:
            begin = self._find_begin(places, values)
            places.bounds[self] = begin, np.maximum(self._find_end(places, values), begin)
        return places.bounds[self]

    def _find_begin(self, places: Places, values: Any) -> Ints:
        if self.begin.unbounded:
            return places.begin
        if self.unit == "rows":
            return np.clip(places.index + (self.begin.rows or 0), places.begin, places.end)
        return _search(places, values[self.begin], "left") if self.begin.distance else places.peer_begin

    def _find_end(self, places: Places, values: Any) -> Ints:
        if self.end.unbounded:
            return places.end
        if self.unit == "rows":
            return np.clip(places.index + (self.end.rows or 0) + 1, places.begin, places.end)
        return _search(places, values[self.end], "right") if self.end.distance else places.peer_end


def _search(places: Places, ranked: tuple[Ints, Ints, Any], side: Any) -> Ints:
    """Search the bound of each place among the values. ``ranked``: see `RangeOrder`.  O(places log places)."""
    ranks, bounds, nulls = ranked
    span = np.int64(2 * ranks.size + 2)
    base = places.state * span
    found: Ints = np.searchsorted(base + ranks[places.row], base + bounds[places.row], side=side)
    peers = places.peer_begin if side == "left" else places.peer_end
    return np.where(nulls[places.row], peers, found)


class RangeOrder:
    """The bounds of frames in RANGE with a distance.

    ``column``: the only order column.  ``frames``: the frames.  Raises `ExpressionError`.
    """

    def __init__(self, name: str, column: OrderColumn, bounds: list[Bound], schema: pa.Schema) -> None:
        self.column, self.kind = column, schema.field(column.name).type
        self.bounds: dict[Bound, Expression] = {}
        if not (pat.is_integer(self.kind) or pat.is_floating(self.kind) or pat.is_decimal(self.kind)) and not (
            pat.is_date(self.kind) or pat.is_timestamp(self.kind) or pat.is_duration(self.kind)
        ):
            found = f"RANGE with a distance, and ORDER BY {column.name} of type {sql_name(self.kind)}"
            raise ExpressionError(f"over {name}", found, "order by a number, a date or a timestamp, or use ROWS")
        quoted = f"`{column.name.replace('`', '``')}`"
        # Decimals hold the sum of any two integers.
        base = f"cast({quoted} as decimal(20, 0))" if pat.is_integer(self.kind) else quoted
        for bound in bounds:
            forward = (bound.side > 0) != column.descending
            text = f"{base} {'+' if forward else '-'} {bound.distance}"
            try:
                self.bounds[bound] = compile_expression(text, schema, what=f"the range of {name!r}")
            except ExpressionError as error:
                found = f"RANGE {bound.distance} with ORDER BY {column.name} of type {sql_name(self.kind)}"
                raise ExpressionError(
                    f"over {name}", found, f"use a number or an interval that fits: {error}"
                ) from None

    def measure(self, bound: Bound) -> int | None:
        """Measure a distance in units of the order words. Return None if its length varies or is not a number."""
        value: Any = measure_distance(bound.distance)
        if value is None or not (pat.is_integer(self.kind) or pat.is_temporal(self.kind)):
            return None
        if pat.is_integer(self.kind):
            return -int(-value // 1)
        return -int(-value * 1000 // (_DAY if pat.is_date32(self.kind) else UNITS[getattr(self.kind, "unit", "ms")]))

    def measure_reach(self, frame: WindowFrame) -> Reach:
        """Measure the reach of a frame by value."""
        if frame.end.unbounded:
            return Reach(whole=True)
        told = [self.measure(each) if each.distance else 0 for each in (frame.begin, frame.end)]
        back, ahead = (None if each is None else each * bound.side for each, bound in zip(told, frame[1:], strict=True))
        if frame.begin.unbounded:
            return Reach(whole=True) if ahead is None else Reach(value=max(ahead, 0), tail=True)
        if back is None or ahead is None:
            return Reach(whole=True)
        return Reach(value=max(-back, 0) + max(ahead, 0) + 1)

    def compute_words(self, rows: pa.RecordBatch) -> dict[Bound, tuple[Ints, Ints, Any]]:
        """Compute, for each bound, ranks of the values and of the bounds of rows, and mark nulls.  O(n log n)."""
        out = {}
        (value,) = (rows.column(self.column.name),)
        for bound, expression in self.bounds.items():
            reached = expression(rows)
            both = pa.concat_arrays([value.cast(reached.type), reached])
            words = compute_order_words(pa.record_batch({"v": both}), [self.column._replace(name="v")])
            ranks = rank_words(words)
            out[bound] = ranks[: len(value)], ranks[len(value) :], np.asarray(value.is_null())
        return out


def measure_distance(text: str) -> Any:
    """Evaluate the distance of a bound: a number, or microseconds.  Return None for an interval of months."""
    try:
        value: Any = compile_expression(text, _ONE.schema)(_ONE)[0]
    except ExpressionError:
        return None
    return value.cast(pa.int64()).as_py() if pat.is_duration(value.type) else value.as_py()


def parse_frame(name: str, spec: Any, ordered: bool) -> WindowFrame:
    """Parse a frame. ``spec``: a sqlglot WindowSpec, or None for the default frame.  Raises `ExpressionError`."""
    if spec is None:
        return WindowFrame("range", START, HERE if ordered else END)
    unit = str(spec.args.get("kind") or "").lower()
    if spec.args.get("exclude") is not None:
        raise _refuse(name, "its frame has EXCLUDE", "omit it; a frame has all of its rows")
    begin = _parse_bound(name, unit, spec.args.get("start"), spec.args.get("start_side"))
    end = HERE
    if spec.args.get("end") is not None:
        end = _parse_bound(name, unit, spec.args.get("end"), spec.args.get("end_side"))
    elif begin.side > 0:
        raise _refuse(name, "its frame ends before it begins", "write BETWEEN ... AND ...")
    same = begin.distance and end.distance and begin.side == end.side
    lengths = [measure_distance(each.distance) for each in (begin, end)] if same else [0, 0]
    crossed = None not in lengths and begin.side * lengths[0] > end.side * lengths[1]
    crossed |= begin.rows is not None and end.rows is not None and begin.rows > end.rows
    if begin == END or end == START or begin.side > end.side or crossed:
        raise _refuse(name, "its frame ends before it begins", "write the earlier bound first")
    return WindowFrame(unit, begin, end)


def _parse_bound(name: str, unit: str, given: Any, side: Any) -> Bound:
    from ddflow.expressions.parse import ExpressionDialect

    if isinstance(given, str):
        if given.upper() == "CURRENT ROW":
            return HERE
        return START if str(side).lower() == "preceding" else END
    text = given.sql(dialect=ExpressionDialect, normalize_functions=False)
    way = -1 if str(side).lower() == "preceding" else 1
    value = measure_distance(text)
    if value is not None and value < 0:
        raise _refuse(
            name, f"the bound {shorten(text)} is negative", "write PRECEDING or FOLLOWING with a positive bound"
        )
    if unit == "range":
        return Bound(way, text, None)
    if not isinstance(value, int) or pat.is_duration(compile_expression(text, _ONE.schema).type):
        raise _refuse(name, f"its frame in ROWS has the bound {shorten(text)}", "use a whole number of rows, or RANGE")
    return Bound(way, "", way * value) if value else HERE


def _refuse(name: str, found: str, remedy: str) -> ExpressionError:
    return ExpressionError(f"over {name}", found, remedy)
