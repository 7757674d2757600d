"""Evaluate predicates like Spark: three-valued logic, CASE, COALESCE, comparisons, IN and LIKE.

`conjunction`, `disjunction`, `case_when` and `coalesce` run an operand that can fail only for the rows that need it.

Guarantees: a branch can fail only for rows that take the branch. Two operands that are not null satisfy exactly one of
the comparisons <, =, >. NaN equals NaN and is greater than any number. -0.0 equals 0.0.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.errors import shorten
from ddflow.expressions.casts import build_cast, cast_to_text
from ddflow.expressions.node import (
    FAILURES,
    Compute,
    Datum,
    Frame,
    Node,
    Refusal,
    accept_scalars,
    broadcast,
    build_compute_node,
    column,
    compute_where,
    constant,
    null,
)
from ddflow.expressions.types import (
    BOOL,
    MOST_DIGITS,
    NULL,
    STRING,
    common_type,
    is_decimal,
    is_float,
    is_integer,
    sql_name,
    to_decimal_type,
)


def to_condition(node: Node, place: str) -> Node:
    """Convert ``node`` to a boolean.

    Raises Refusal, with ``place`` in the message, if the type has no conversion to boolean.
    """
    if node.type not in (BOOL, NULL, STRING):
        raise Refusal(f"{place} needs a boolean, but this is {sql_name(node.type)}", "compare it with a value")
    return build_cast(node, BOOL)


def convert_to_common_type(nodes: Sequence[Node], place: str) -> list[Node]:
    """Cast ``nodes`` to their common type. Raises Refusal, with the text ``place``, if there is no common type."""
    kind = common_type([node.type for node in nodes])
    if kind is None:
        found = ", ".join(sql_name(node.type) for node in nodes)
        raise Refusal(f"{place} has no common type for {found}", "cast the operands to one type")
    return [build_cast(node, kind) for node in nodes]


def conjunction(left: Node, right: Node) -> Node:
    """Compute AND.

    If one side is false, the result is false even if the other side is null. The right side runs only for rows whose
    left side is not false.

    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> from ddflow.expressions.node import Frame, build_compute_node, column, constant
    >>> a = column(0, pa.int64())
    >>> safe = conjunction(
    ...     build_compute_node(pc.not_equal, a, constant(pa.scalar(0))),
    ...     build_compute_node(lambda a: pc.greater(pc.divide_checked(pa.scalar(10), a), 2), a, fallible=True),
    ... )
    >>> safe.evaluate(Frame((pa.array([0, 3, None, 9]),), 4)).to_pylist()
    [False, True, None, False]
    """
    return _build_junction(left, right, pc.and_kleene, False)


def disjunction(left: Node, right: Node) -> Node:
    """Compute OR.

    If one side is true, the result is true even if the other side is null. The right side runs only for rows whose left
    side is not true.
    """
    return _build_junction(left, right, pc.or_kleene, True)


def _build_junction(left: Node, right: Node, kernel: Callable[..., Datum], wins: bool) -> Node:
    if left.constant is not None and left.constant.is_valid:
        return constant(pa.scalar(wins)) if left.constant.as_py() == wins else right
    if not right.fallible:
        return build_compute_node(kernel, left, right)

    def run(frame: Frame, first: Datum) -> Datum:
        first = broadcast(first, frame.rows)
        undecided = pc.fill_null(pc.not_equal(first, wins), True)
        return kernel(first, compute_where(right, frame, undecided))

    return Node(BOOL, run, (left,), framed=True, fallible=True)


def negation(node: Node) -> Node:
    """Compute NOT. The negation of null is null."""
    return build_compute_node(pc.invert, node)


def is_null(node: Node) -> Node:
    """Compute IS NULL. The result for NaN is false."""
    return build_compute_node(lambda value: pc.is_null(value), node)


def build_truth_test(node: Node, truth: bool) -> Node:
    """Compute IS TRUE or IS FALSE. For null, the result is false."""
    return build_compute_node(lambda value: pc.fill_null(value if truth else pc.invert(value), False), node)


def case_when(conditions: Sequence[Node], values: Sequence[Node], place: str) -> Node:
    """Compute CASE.

    The result is the value that belongs to the first true condition. If no condition is true, the result is the last of
    ``values``.
    """
    *taken, default = convert_to_common_type(values, place)
    pairs: list[tuple[Node, Node]] = []
    for test, value in zip(conditions, taken, strict=True):
        if test.constant is None:
            pairs.append((test, value))
        elif test.constant.as_py():
            default = value
            break
    if not pairs:
        return default
    tests, results = [test for test, _ in pairs], [*(value for _, value in pairs), default]
    if any(node.fallible for node in (*tests, *results)):
        return _lazy_case_when(tests, results)
    count = len(tests)
    if count == 1:
        return build_compute_node(
            lambda test, yes, no: pc.if_else(pc.fill_null(test, False), yes, no), *tests, *results
        )
    return build_compute_node(
        lambda *data: pc.case_when(pc.make_struct(*data[:count]), *data[count:]), *tests, *results
    )


def _lazy_case_when(tests: Sequence[Node], results: Sequence[Node]) -> Node:
    def run(frame: Frame) -> Datum:
        open_rows = broadcast(pa.scalar(True), frame.rows)
        hits, values = [], []
        for test, result in zip(tests, results, strict=False):
            true = pc.fill_null(compute_where(test, frame, open_rows), False)
            hits.append(pc.and_(open_rows, true))
            values.append(broadcast(compute_where(result, frame, hits[-1]), frame.rows))
            open_rows = pc.and_not(open_rows, true)
        return pc.case_when(pc.make_struct(*hits), *values, compute_where(results[-1], frame, open_rows))

    return Node(results[0].type, run, framed=True, fallible=True)


def coalesce(nodes: Sequence[Node], place: str) -> Node:
    """Compute COALESCE: the first non-null value.

    Each value is computed only for rows whose earlier values are all null.
    """
    nodes = [
        node for node in convert_to_common_type(nodes, place) if node.constant is None or node.constant.is_valid
    ] or [null(convert_to_common_type(nodes, place)[0].type)]
    if len(nodes) == 1:
        return nodes[0]
    if not any(node.fallible for node in nodes[1:]):
        return build_compute_node(pc.coalesce, *nodes)

    def run(frame: Frame, first: Datum) -> Datum:
        value = broadcast(first, frame.rows)
        for node in nodes[1:]:
            value = pc.coalesce(value, compute_where(node, frame, value.is_null()))
        return value

    return Node(nodes[0].type, run, (nodes[0],), framed=True, fallible=True)


Compare: TypeAlias = Callable[[Datum, Datum], Datum]

MANY: Final = 1_000
"""If IN has more items than this number, the test keeps a Python set of the items."""
FEW: Final = 16
"""If the ratio of items to rows is above this number, a Python set is faster than Arrow."""

_PLAIN: dict[str, Compare] = {
    "=": lambda a, b: pc.equal(a, b),
    "<>": lambda a, b: pc.not_equal(a, b),
    "<": lambda a, b: pc.less(a, b),
    "<=": lambda a, b: pc.less_equal(a, b),
    ">": lambda a, b: pc.greater(a, b),
    ">=": lambda a, b: pc.greater_equal(a, b),
}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _equal_floats(a: Datum, b: Datum) -> Datum:
    return pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b)))


def _less_floats(a: Datum, b: Datum) -> Datum:
    return pc.and_not(pc.invert(pc.less_equal(b, a)), pc.is_nan(a))


def _less_equal_floats(a: Datum, b: Datum) -> Datum:
    return pc.or_(pc.less_equal(a, b), pc.is_nan(b))


# Comparisons of any two floats. NaN counts as the greatest float.
_FLOATS: dict[str, Compare] = {
    "=": _equal_floats,
    "<>": lambda a, b: pc.invert(_equal_floats(a, b)),
    "<": _less_floats,
    "<=": _less_equal_floats,
    ">": lambda a, b: _less_floats(b, a),
    ">=": lambda a, b: _less_equal_floats(b, a),
}
# Comparisons of a float a with a constant b that is not NaN. If a is NaN, a > b must be true. For NaN, Arrow's a <= b
# is false, so "not a <= b" gives the right result.
_FLOAT_AND_NUMBER: dict[str, Compare] = {
    **_PLAIN,
    ">": lambda a, b: pc.invert(pc.less_equal(a, b)),
    ">=": lambda a, b: pc.invert(pc.less(a, b)),
}


def comparison(sign: str, left: Node, right: Node) -> Node:
    """Compare ``left sign right`` for =, <>, <, <=, >, >=. Raises Refusal if the operands have no common type. O(rows).

    >>> import pyarrow as pa
    >>> from ddflow.expressions.node import Frame, column, constant
    >>> above = comparison(">", column(0, pa.float64()), constant(pa.scalar(5.0)))
    >>> above.evaluate(Frame((pa.array([4.0, 6.0, float("nan"), None]),), 4)).to_pylist()
    [False, True, True, None]
    """
    left, right = _convert_operands(left, right, f"the comparison {sign}")
    if not is_float(left.type):
        return build_compute_node(_PLAIN[sign], left, right)
    if _is_constant_number(left):
        left, right, sign = right, left, _MIRRORED[sign]
    return build_compute_node((_FLOAT_AND_NUMBER if _is_constant_number(right) else _FLOATS)[sign], left, right)


def null_safe_equal(left: Node, right: Node) -> Node:
    """Compare by ``<=>``. The result is true if both sides are equal or both sides are null, and otherwise false."""
    left, right = _convert_operands(left, right, "the comparison <=>")
    equal = comparison("=", left, right)
    both = build_compute_node(lambda a, b: pc.and_(pc.is_null(a), pc.is_null(b)), left, right)
    return build_compute_node(pc.coalesce, equal, both)


def is_in(node: Node, items: Sequence[Node], lists: Sequence[pa.Array] = ()) -> Node:
    """Compute IN. The result is true if any item equals the value.

    Without an equal item, the result is null if the value or any item is null. Otherwise the result is false. All
    constant items together take O(1) per row. ``lists``: the literals among the items, one array for each type.
    """
    listed = [column(0, each.type) for each in lists]
    if all(_is_exact_number(each.type) for each in (node, *items, *listed)) and _needs_wide_decimal(
        [node, *items, *listed]
    ):
        return _build_any_equal(node, [*items, *_build_constant_nodes(lists)])
    met, *others = convert_to_common_type([node, *items, *listed], "IN")
    items, listed = others[: len(items)], others[len(items) :]
    try:
        known: list[Any] = [
            each.evaluate(Frame((values,), len(values))) for each, values in zip(listed, lists, strict=True)
        ]
    except FAILURES as error:  # a text item does not parse as the common type
        return _build_failing_node(error, met)
    if any(item.constant is None for item in items):
        return _build_any_equal(met, [*items, *_build_constant_nodes(known)])
    if met.type == NULL:
        return null(BOOL)
    values = [item.constant for item in items if item.constant is not None]
    known += [pa.repeat(value, 1) for value in values if value.is_valid]
    nulls = sum(not value.is_valid for value in values)
    return build_compute_node(
        _build_membership_test(pa.concat_arrays([pa.array([], met.type), *known]), nulls > 0), met
    )


def _build_constant_nodes(lists: Iterable[pa.Array]) -> list[Node]:
    return [constant(value) for values in lists for value in values]


def _build_failing_node(error: Exception, node: Node) -> Node:
    """Build a node that raises ``error`` for every row."""

    def compute(_: Datum) -> Datum:
        raise error

    return Node(BOOL, compute, (node,), fallible=True)


def _build_membership_test(known: pa.Array, or_null: bool) -> Compute:
    """Build a test that tells whether values are in ``known``.

    If ``or_null`` is true, a value that is not found gives null.
    """
    kind = known.type
    zero = pa.scalar(0.0, kind) if is_float(kind) else None
    known = known if zero is None else pc.add(known, zero)
    # Arrow hashes the known values again for each batch. For a batch of few rows, the hashing takes most of the time.
    few = frozenset(known.to_pylist()) if len(known) > MANY and (kind == STRING or is_integer(kind)) else None

    def compute(value: pa.Array) -> pa.Array:
        value = value if zero is None else pc.add(value, zero)  # makes -0.0 the 0.0 it equals
        if few is not None and len(value) * FEW < len(few):
            hit = pa.array([each in few for each in value.to_pylist()], BOOL)
        else:
            hit = pc.is_in(value, value_set=known)
        if or_null:
            return pc.if_else(hit, hit, pa.scalar(None, BOOL))
        return pc.if_else(pc.is_valid(value), hit, pa.scalar(None, BOOL)) if value.null_count else hit

    return accept_scalars(compute)


def _build_any_equal(node: Node, items: Sequence[Node]) -> Node:
    found = comparison("=", node, items[0])
    for item in items[1:]:
        found = disjunction(found, comparison("=", node, item))
    return found


def _is_constant_number(node: Node) -> bool:
    value: Any = None if node.constant is None else node.constant.as_py()
    return value is not None and not math.isnan(value)


def _is_exact_number(kind: pa.DataType) -> bool:
    return is_integer(kind) or is_decimal(kind)


def _needs_wide_decimal(nodes: Sequence[Node]) -> bool:
    """Return whether a common decimal type of the operands would need more than 38 digits."""
    kinds = [to_decimal_type(node.type) for node in nodes]
    whole, scale = max(kind.precision - kind.scale for kind in kinds), max(kind.scale for kind in kinds)
    return bool(whole + scale > MOST_DIGITS)


def _convert_operands(left: Node, right: Node, place: str) -> tuple[Node, Node]:
    if _is_exact_number(left.type) and _is_exact_number(right.type) and _needs_wide_decimal([left, right]):
        return _widen_number(left), _widen_number(right)
    left, right = convert_to_common_type([left, right], place)
    if left.type == NULL:
        return null(BOOL), null(BOOL)
    return left, right


def _widen_number(node: Node) -> Node:
    """Widen a number of up to 38 digits to 76 digits, so that Arrow can convert any two numbers to one scale."""
    exact = build_cast(node, to_decimal_type(node.type))
    wide = pa.decimal256(MOST_DIGITS, exact.type.scale)
    return build_compute_node(lambda value: value.cast(wide), exact)


def like(node: Node, pattern: Node, escape: str, ignore_case: bool) -> Node:
    """Match LIKE and ILIKE with a literal pattern.

    ``%`` matches any text, and ``_`` any character. The character after ``escape`` matches itself.
    """
    node = cast_to_text(node)
    text = read_text_literal(pattern, "the pattern of LIKE")
    if text is None:
        return null(BOOL)
    parts = _split_like_pattern(text, escape)
    plain = [part for part in parts if part not in ("%", "_")]
    if not ignore_case and len(plain) <= 1 and "_" not in parts and parts.count("%") <= 2:
        needle, kinds = "".join(plain)[1:], ["%" if part == "%" else "x" for part in parts]
        match kinds:
            case [] | ["x"]:
                return build_compute_node(lambda value: pc.equal(value, needle), node)
            case ["x", "%"]:
                return build_compute_node(lambda value: pc.starts_with(value, needle), node)
            case ["%", "x"]:
                return build_compute_node(lambda value: pc.ends_with(value, needle), node)
            case ["%", "x", "%"]:
                return build_compute_node(lambda value: pc.match_substring(value, needle), node)
    inner = "".join({"%": ".*", "_": "."}.get(part) or re.escape(part[1:]) for part in parts)
    regex = _check_regex(f"(?s)^{inner}$", "the pattern of LIKE", "write a shorter pattern")
    return build_compute_node(lambda value: pc.match_substring_regex(value, regex, ignore_case=ignore_case), node)


def _split_like_pattern(pattern: str, escape: str) -> list[str]:
    """Split a pattern into ``%``, ``_`` and literal texts. Each literal text gets the prefix ``=``."""
    parts: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if letter in "%_" and letter != escape:
            parts.append(letter)
            continue
        if letter == escape:
            letter = next(letters, "")
            if not letter or letter not in ("%", "_", escape):
                raise Refusal(
                    f"in the pattern {shorten(repr(pattern))} the escape {escape!r} is before {letter or 'the end'!r}",
                    f"put it before %, _ or itself; write {escape}{escape} for the character itself",
                )
        if parts and parts[-1][0] == "=":
            parts[-1] += letter
        else:
            parts.append("=" + letter)
    return parts


def rlike(node: Node, pattern: Node) -> Node:
    """Compute RLIKE: search the text for a regular expression. The expression is a literal in RE2's syntax."""
    node = cast_to_text(node)
    text = read_regex_literal(pattern, "the pattern of RLIKE")
    return null(BOOL) if text is None else build_compute_node(lambda value: pc.match_substring_regex(value, text), node)


def read_text_literal(node: Node, place: str) -> str | None:
    """Return the text of a constant, or None for a null constant.

    Raises Refusal if the text differs from row to row.
    """
    if node.constant is None or node.type not in (STRING, NULL):
        raise Refusal(f"{place} is not a text literal", "write it as a literal: it is compiled once, not per row")
    value: str | None = node.constant.as_py()
    return value


def read_regex_literal(node: Node, place: str) -> str | None:
    """Return the text of a constant regular expression, or None for null.

    Raises Refusal if RE2 refuses the expression.
    """
    text = read_text_literal(node, place)
    return None if text is None else _check_regex(text, place, "use RE2's syntax: no look-around, no back references")


def _check_regex(regex: str, place: str, remedy: str) -> str:
    """Return a regular expression that RE2 accepts. Raises Refusal if RE2 does not accept the expression."""
    try:
        pc.match_substring_regex(pa.scalar(""), regex)
    except pa.ArrowInvalid as error:
        raise Refusal(f"{place}, {shorten(repr(regex))}, is invalid: {shorten(str(error))}", remedy) from error
    return regex
