"""Define the aggregates of SQL and of users: their parts, their result types, and their results.

Guarantees: a result is computed from exact parts and rounded once. If all values are null, a count is 0 and other
results are null. A group without rows has an empty state. The state of a user's aggregate becomes empty again only if
``retract`` undoes ``add`` exactly.

>>> call = parse_aggregate("mean", "avg(x)")
>>> aggregate = FUNCTIONS["avg"](call, pa.schema({"x": pa.int64()}))
>>> aggregate.type, [type(part).__name__ for _, part in aggregate.parts.items()]
(DataType(double), ['CountPart', 'WordSumPart'])
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, Words, unpack_validity, view_values, view_words
from ddflow.columns.wider import find_widening
from ddflow.errors import AggregateFailed
from ddflow.expressions import Expression, compile as compile_expression
from ddflow.kernels import exact_results as kernels
from ddflow.kernels.user_functions import AggregateLoops, find_aggregate_fault
from ddflow.operators.aggregates.parts import (
    INT64,
    CountPart,
    ExactSumPart,
    StatePart,
    UpdatesByCell,
    ValueOverflow,
    build_sum_part,
    decode_sums,
    find_state_ends,
)
from ddflow.plan.aggregates import Aggregate, AggregateCall, AppliedAggregate, parse_aggregate

Key = tuple[str, str]
"""The key of a part: the kind and the argument of the part."""
ROWS: Final[Key] = "rows", ""
"""The key of the part that counts rows. Every group has this part."""
DOUBLE = pa.float64()


class FoldedAggregate:
    """An aggregate of a plan. ``type``: the type of its results.

    ``parts``: the parts by key, so that aggregates share equal parts. ``arguments``: the expressions of the parts, by
    their SQL text.
    """

    type: pa.DataType
    nullable = True
    given: Any
    """The text or object that defines the aggregate."""

    def __init__(self, call: AggregateCall, schema: pa.Schema) -> None:
        self.call, self.schema, self.given = call, schema, call.text
        self.arguments: dict[str, Expression] = {}
        self.parts: dict[Key, StatePart] = {}
        if call.distinct or call.order or call.ignores_nulls:
            what = "DISTINCT" if call.distinct else "ORDER BY" if call.order else "IGNORE NULLS"
            raise call.build_error(f"{call.function} does not accept {what}", f"omit {what}")

    def compile_argument(self, text: str) -> pa.DataType:
        """Compile an argument and return its type.  Raises `ExpressionError`."""
        what = f"{self.call.function} of {self.call.name!r}"
        self.arguments[text] = compile_expression(text, self.schema, what=what)
        return self.arguments[text].type

    def add_count_part(self, text: str) -> Key:
        """Add a part that counts the non-null values of an argument."""
        self.parts["count", text] = CountPart()
        return "count", text

    def to_json_entries(self, formulas: Any) -> dict[str, Any]:
        """Return the JSON entries that a plan writes in addition to the aggregate's text.

        ``formulas``: see `Collection.to_json`.
        """
        return {}

    def compute_results(self, states: Sequence[pa.Array], there: Any) -> pa.Array:
        """Compute results from the states of the parts.

        ``there``: bool[n], true for the states whose results are wanted. Raises `ValueOverflow`.
        """
        raise NotImplementedError

    def list_incompatibilities(self, narrow: Any) -> Iterator[str]:
        """Yield the reasons why results would differ from ``narrow``, the same aggregate over narrower columns.

        A wider result type alone is not a reason.
        """
        if self.type != narrow.type and find_widening(narrow.type, self.type) is None:
            yield f"{self.call.text!r} was {narrow.type}, but would become {self.type}"


class CountAggregate(FoldedAggregate):
    """A count of rows, or of non-null values."""

    type, nullable = pa.int64(), False

    def __init__(self, call: AggregateCall, schema: pa.Schema) -> None:
        super().__init__(call, schema)
        if not call.arguments:
            self.parts[ROWS] = CountPart()
        else:
            # With several arguments, count the rows in which no argument is null.
            text = call.arguments[0]
            if len(call.arguments) > 1:
                tests = " AND ".join(f"({each}) IS NOT NULL" for each in call.arguments)
                text = f"CASE WHEN {tests} THEN true END"
            self.compile_argument(text)
            self.add_count_part(text)

    def compute_results(self, states: Sequence[pa.Array], there: Any) -> pa.Array:
        """See `FoldedAggregate.compute_results`."""
        return states[0]


class BooleanAggregate(FoldedAggregate):
    """An aggregate that is true if all values are true, or if some value is true."""

    type = pa.bool_()

    def __init__(self, call: AggregateCall, schema: pa.Schema) -> None:
        super().__init__(call, schema)
        text = call.arguments[0]
        if self.compile_argument(text) != pa.bool_():
            kind = self.arguments[text].type
            raise call.build_error(f"its argument is {kind}, not boolean", "compare it with a value")
        del self.arguments[text]
        for test in (f"CASE WHEN {text} THEN true END", f"CASE WHEN NOT ({text}) THEN true END"):
            self.compile_argument(test)
            self.add_count_part(test)

    def compute_results(self, states: Sequence[pa.Array], there: Any) -> pa.Array:
        """See `FoldedAggregate.compute_results`.  A negative count is treated as 0."""
        trues, falses = (view_values(each, INT64) > 0 for each in states)
        found = ~falses if self.call.function == "bool_and" else trues
        return pa.array(found, mask=~(trues | falses))


class NumericAggregate(FoldedAggregate):
    """An aggregate that is computed from an exact sum of numbers.

    ``of_time``: whether it also accepts durations and then returns a duration.
    """

    of_time: ClassVar[bool] = False

    def __init__(self, call: AggregateCall, schema: pa.Schema) -> None:
        super().__init__(call, schema)
        self.text = call.arguments[0]
        self.of = self.compile_argument(self.text)
        if pat.is_duration(self.of):
            if not self.of_time:
                found = f"its argument is {self.of}, which supports only sum, avg, min and max"
                raise call.build_error(found, "use one of these, or pass the duration as a number")
        elif not (pat.is_integer(self.of) or pat.is_floating(self.of) or pat.is_decimal(self.of)):
            raise call.build_error(f"its argument is {self.of}, not a number", "cast it, as in cast(x as double)")
        self.add_count_part(self.text)
        self.parts["sum", self.text] = part = build_sum_part(self.of)
        self.unit, self.scale = part.unit, part.scale


class SumAggregate(NumericAggregate):
    """The sum of the values."""

    of_time = True

    def __init__(self, call: AggregateCall, schema: pa.Schema) -> None:
        super().__init__(call, schema)
        self.type = DOUBLE if self.unit else self.of if pat.is_duration(self.of) else pa.int64()
        if pat.is_decimal(self.of):
            self.type = pa.decimal128(min(self.of.precision + 10, 38), self.scale)

    def compute_results(self, states: Sequence[pa.Array], there: Any) -> pa.Array:
        """See `FoldedAggregate.compute_results`."""
        none = view_values(states[0], INT64) == 0
        if self.unit:
            return set_nulls(_divide_sums(states[1], np.ones(none.size, np.int64), self.unit), none)
        given = view_words(states[1], states[1].type.byte_width // 8), (there & ~none).view(np.uint8)
        most, wide = (10**self.type.precision - 1, 2) if pat.is_decimal(self.type) else (2**63 - 1, 1)
        out = np.empty((none.size, wide), np.uint64)
        bounds = np.uint64(most & 2**64 - 1), np.uint64(most >> 64), np.uint64(wide - 1)
        return build_results(self.type, kernels.write_integers(*given, *bounds, out), out, none)


class AverageAggregate(NumericAggregate):
    """The sum of the values divided by their number."""

    of_time = True

    def __init__(self, call: AggregateCall, schema: pa.Schema) -> None:
        super().__init__(call, schema)
        self.type = self.of if pat.is_duration(self.of) else DOUBLE
        if pat.is_decimal(self.of):
            self.type = pa.decimal128(min(self.of.precision + 4, 38), min(self.scale + 4, 38))

    def compute_results(self, states: Sequence[pa.Array], there: Any) -> pa.Array:
        """See `FoldedAggregate.compute_results`."""
        counts = view_values(states[0], INT64)
        none = counts == 0
        if self.type == DOUBLE:
            return set_nulls(_divide_sums(states[1], counts, self.unit), none)
        most, wide, times = 2**63 - 1, 1, 1
        if pat.is_decimal(self.type):
            most, wide, times = 10**self.type.precision - 1, 2, 10 ** (self.type.scale - self.scale)
        given = view_words(states[1], states[1].type.byte_width // 8), counts, np.uint64(times)
        bounds = np.uint64(most & 2**64 - 1), np.uint64(most >> 64)
        out = np.empty((none.size, wide), np.uint64)
        beyond = kernels.write_rounded_quotients(*given, there.view(np.uint8), *bounds, out)
        return build_results(self.type, beyond, out, none)

    def list_incompatibilities(self, narrow: Any) -> Iterator[str]:
        """Yield a reason if the scale or the time unit differs, because the results would then be rounded differently.

        See `FoldedAggregate.list_incompatibilities`.
        """
        yield from super().list_incompatibilities(narrow)
        if pat.is_duration(self.type) and pat.is_duration(narrow.type) and self.type != narrow.type:
            yield f"{self.call.text!r} was rounded to {narrow.type.unit}, but would be rounded to {self.type.unit}"
        elif self.type != DOUBLE != narrow.type and self.type.scale != narrow.type.scale:
            more = f"would be rounded to {self.type.scale}"
            yield f"{self.call.text!r} was rounded to {narrow.type.scale} digits after the point, but {more}"


class VarianceAggregate(NumericAggregate):
    """A variance or standard deviation. The sample variance and deviation of a single value are null."""

    type = DOUBLE

    def __init__(self, call: AggregateCall, schema: pa.Schema) -> None:
        super().__init__(call, schema)
        self.parts["squares", self.text] = ExactSumPart(self.of, square=True)
        self.sample, self.root = call.function.endswith("_samp"), call.function.startswith("stddev")

    def compute_results(self, states: Sequence[pa.Array], there: Any) -> pa.Array:
        """See `FoldedAggregate.compute_results`."""
        counts = view_values(states[0], INT64)
        given = zip(counts.tolist(), decode_sums(states[1]), decode_sums(states[2]), strict=True)
        found = np.array([self._compute_variance(*each) for each in given], np.float64)
        return pa.array(found, mask=(counts == 0) | (self.sample & (counts == 1)))

    def _compute_variance(self, n: int, total: int | None, squares: int | None) -> float:
        if total is None or squares is None:
            return math.nan
        by = n * (n - 1 if self.sample else n)
        if by == 0:
            return 0.0
        exact = n * squares - total * total, (by << -2 * self.unit) * 100**self.scale
        return _round_root(*exact) if self.root else _round_quotient(*exact)


FUNCTIONS: Final[dict[str, type[FoldedAggregate]]] = {
    "count": CountAggregate,
    "sum": SumAggregate,
    "avg": AverageAggregate,
    **dict.fromkeys(("var_pop", "var_samp", "stddev_pop", "stddev_samp"), VarianceAggregate),
    **dict.fromkeys(("bool_and", "bool_or"), BooleanAggregate),
}


def bind_sql_aggregate(name: str, text: Any, schema: pa.Schema) -> FoldedAggregate:
    """Parse an aggregate in SQL and bind it to the columns of a schema. O(text). Raises `ExpressionError`."""
    call = parse_aggregate(name, text, schema.names)
    return FUNCTIONS[call.function](call, schema)


def set_nulls(values: Any, none: Any) -> pa.Array:
    """Build an array from numbers, with nulls at the positions that ``none`` marks.

    The caller must not change ``values`` later.
    """
    if np.count_nonzero(none):
        return pa.array(np.ascontiguousarray(values), mask=none)
    return pa.array(np.ascontiguousarray(values))


def build_results(kind: pa.DataType, beyond: int, words: Words, none: Any) -> pa.Array:
    """Build an array of type ``kind`` from words, with nulls at the positions that ``none`` marks.

    Raises `ValueOverflow` if ``beyond`` is a position.
    """
    if beyond >= 0:
        raise ValueOverflow(beyond)
    valid = pa.py_buffer(np.packbits(~none, bitorder="little")) if none.any() else None
    return pa.Array.from_buffers(kind, none.size, [valid, pa.py_buffer(words)])


def _divide_sums(states: pa.Array, counts: Ints, unit: int) -> Any:
    """Divide exact sums by counts, and round each quotient once. The quotient for a count of 0 is arbitrary."""
    out = np.empty(counts.size)
    if unit:
        wide = kernels.write_quotients(*find_state_ends(states), counts, unit, out)
    else:
        wide = kernels.divide_words(view_words(states, states.type.byte_width // 8), counts, out)
    if wide >= 0:
        for place in np.flatnonzero(np.abs(counts) >= 1 << 32).tolist():
            (total,) = decode_sums(states.slice(place, 1))
            if total is not None:
                out[place] = _round_quotient(total, int(counts[place]) << -unit)
    return out


def _round_quotient(over: int, under: int) -> float:
    """Round a quotient to the nearest double. A quotient beyond the largest double becomes infinity."""
    try:
        return over / under
    except OverflowError:
        return math.inf if (over > 0) == (under > 0) else -math.inf


def _round_root(over: int, under: int) -> float:
    """Round the square root of a quotient to the nearest double.

    The integer root has at least 64 bits. The last bit of the integer root is set if there is a remainder.
    """
    if over < 0:
        return math.nan
    shift = max(128 - over.bit_length() + under.bit_length(), 0) + 1 & ~1
    scaled, rest = divmod(over << shift, under)
    root = math.isqrt(scaled)
    return _round_quotient(2 * root + (rest != 0 or root * root != scaled), 2 << shift // 2)


class UserStatePart(StatePart):
    """The states of a user's aggregate. ``of``: the type of the aggregated values.

    >>> from ddflow.plan.aggregates import Aggregate
    >>> from ddflow.operators.aggregates.parts import UpdatesByCell
    >>> total = Aggregate((0.0,), lambda s, x: (s[0] + x,), lambda s, x: (s[0] - x,), lambda s: s[0])
    >>> part = UserStatePart(total, pa.int32())
    >>> few = lambda *v: np.array(v, np.int32)
    >>> folding = UpdatesByCell(few(0, 0), few(-1), np.array([1, 2]), 0)
    >>> states = part.fold_updates(folding, pa.array([], part.kind), pa.array([7, 4], pa.int32()))
    >>> view_words(states, 1)[0].view(float).tolist(), part.mark_nonempty(states).tolist()
    ([15.0], [True])
    """

    def __init__(self, aggregate: Aggregate, of: pa.DataType) -> None:
        self.aggregate, self.double = aggregate, pat.is_floating(of)
        kinds = tuple(isinstance(each, float) for each in aggregate.zero)
        self.loops, self.width = AggregateLoops.from_functions(*aggregate.functions, kinds), len(kinds)
        self.kind = pa.binary(8 * self.width)
        zero = [np.array([each]).view(np.int64) for each in aggregate.zero]
        self.zero: Ints = np.concatenate(zero)

    def fold_updates(self, folding: UpdatesByCell, held: pa.Array, values: Any) -> pa.Array:
        """See `StatePart.fold_updates`. A user function is called once for each added or retracted value."""
        out = np.empty((folding.size, self.width), np.int64)
        out[: folding.held], out[folding.held :] = view_words(held, self.width).view(np.int64), self.zero
        kind = (pa.float64(), np.dtype(np.float64)) if self.double else (pa.int64(), INT64)
        words = view_values(values.cast(kind[0]), kind[1])
        states = folding.diffs, out, out.view(np.float64)
        given = *folding.rows_by_cell, folding.before, unpack_validity(values), words
        self._run_loop(self.loops.fold, *given, *states)
        return pa.Array.from_buffers(self.kind, folding.size, [None, pa.py_buffer(out)])

    def compute_results(self, states: pa.Array, wanted: Any) -> Any:
        """Compute the results of the states that ``wanted`` marks."""
        words, kind = view_words(states, self.width).view(np.int64), self.aggregate.type
        out = np.zeros(wanted.size, np.float64 if pat.is_floating(kind) else np.int64)
        self._run_loop(self.loops.results, words, words.view(np.float64), wanted.view(np.uint8), out)
        return out

    def mark_nonempty(self, states: pa.Array) -> Any:
        """See `StatePart.mark_nonempty`."""
        return (view_words(states, self.width).view(np.int64) != self.zero).any(axis=1)

    def _run_loop(self, loop: Any, *given: Any) -> None:
        try:
            loop(*given)
        except Exception as error:
            names = ", ".join(getattr(each, "__name__", "?") for each in self.aggregate.functions)
            found = f"one of {names} raised {type(error).__name__}: {error}"
            raise AggregateFailed("dd.Aggregate", found, "fix the function; nothing of this step was kept") from error


class UserAggregate(FoldedAggregate):
    """A user's aggregate, bound in a plan."""

    def __init__(self, name: str, given: AppliedAggregate, schema: pa.Schema) -> None:
        call = AggregateCall(name, given.sql, "own", [given.sql], False, [], False, "")
        super().__init__(call, schema)
        self.given, self.type = given, given.of.type
        kind = self.compile_argument(given.sql)
        if not (pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind)):
            raise call.build_error(f"its argument is {kind}, not a number", "cast it, as in cast(x as double)")
        self.part = UserStatePart(given.of, kind)
        value = 0.5 if self.part.double else 1
        kinds = tuple(isinstance(each, float) for each in given.of.zero)
        if found := find_aggregate_fault(given.of.functions, kinds, value, not pat.is_floating(self.type)):
            raise call.build_error(found, "see dd.Aggregate for the arguments and results of the functions")
        self.add_count_part(given.sql)
        self.parts[f"own {id(given.of)}", given.sql] = self.part

    def to_json_entries(self, formulas: Any) -> dict[str, Any]:
        """Write the names of the functions, then the type and the text of ``zero``."""
        of = self.given.of
        return {**formulas.describe_functions(of.functions), "type": str(of.type), "zero": repr(of.zero)}

    def list_incompatibilities(self, narrow: Any) -> Iterator[str]:
        """See `FoldedAggregate.list_incompatibilities`."""
        if self.part.double != narrow.part.double:
            yield f"{self.call.text!r} uses functions of the user, which received whole numbers before"

    def compute_results(self, states: Sequence[pa.Array], there: Any) -> pa.Array:
        """See `FoldedAggregate.compute_results`."""
        none = view_values(states[0], INT64) == 0
        out = self.part.compute_results(states[1], there & ~none)
        return pa.array(out if not pat.is_boolean(self.type) else out != 0, mask=none)
