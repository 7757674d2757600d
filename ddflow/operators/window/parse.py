"""Parse the calls of window functions, such as ``lag(x, 2)`` or ``sum(x) over (rows 3 preceding)``.

>>> schema = pa.schema({"x": pa.int64()})
>>> call = parse_call("before", "lag(x)", schema, [OrderColumn("x", False, True)])
>>> call.type, call.reach
(DataType(int64), Reach(near=1, value=0, tail=False, whole=False, gap=0))
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa

from ddflow.columns.order_words import OrderColumn
from ddflow.expressions.functions.time_windows import SESSION, read_length
from ddflow.operators.aggregates.results import FUNCTIONS
from ddflow.operators.window.calls import (
    NUMBERS,
    CollectedCall,
    FoldCall,
    NumberCall,
    ParsedCall,
    PickCall,
    SessionCall,
    WindowCall,
)
from ddflow.operators.window.frames import HERE, START, WindowFrame, parse_frame
from ddflow.plan.aggregates import CALLED, NAMES, parse_aggregate
from ddflow.plan.verbs.family import ALIKE

PICKS: Final = ("lag", "lead", "first", "last", "nth_value", "min", "max")
_FRAMELESS: Final = (*NUMBERS, "lag", "lead", SESSION)
"""The functions that need an order, and have no frame."""
_MOST: Final = 2**31 - 1


def parse_call(name: str, text: Any, schema: pa.Schema, order: Sequence[OrderColumn]) -> WindowCall:
    """Parse a call of a window function and bind it to the columns of a schema.  O(text).  Raises `ExpressionError`."""
    from sqlglot import exp  # imported here because it loads slowly

    from ddflow.expressions.node import Refusal
    from ddflow.expressions.parse import parse_expression, strip_call_suffixes

    empty = WindowCall(name, str(text), WindowFrame("range", START, HERE))
    if not isinstance(text, str):
        raise empty.refuse(f"it is {type(text).__name__}", "write SQL, as in place='row_number()'")
    try:
        parsed = parse_expression(text)
        parsed.check_quoted_texts(schema.names)
    except Refusal as refusal:
        raise empty.refuse(refusal.found, refusal.fix) from refusal
    tree, spec = parsed.tree, None
    if isinstance(tree, exp.Window):
        if any(tree.args.get(each) for each in ("partition_by", "order", "alias")):
            raise empty.refuse("its OVER names a partition or an order", "pass partition_by= and order_by=")
        tree, spec = tree.this, tree.args.get("spec")
    call = strip_call_suffixes(tree)
    if not isinstance(call, exp.Anonymous):
        raise empty.refuse("it is not a call of a window function", "write one call for each column, as in 'rank()'")
    function = CALLED.get(call.name.lower(), call.name.lower())
    known = sorted({*NUMBERS, *PICKS, *NAMES, SESSION})
    if function not in known:
        near = [f"did you mean {each}? " for each in get_close_matches(function, known, 1, ALIKE)]
        raise empty.refuse(f"there is no window function {call.name!r}", f"{''.join(near)}they are {', '.join(known)}")
    if function in _FRAMELESS and not order:
        raise empty.refuse("it needs an order", "pass order_by=, or write ORDER BY in OVER (...)")
    if spec is not None and function in _FRAMELESS:
        raise empty.refuse(f"{function} does not accept a frame", "omit ROWS or RANGE")
    frame = parse_frame(name, spec, bool(order))
    if function in NUMBERS:
        buckets = _read_whole_number(empty, call.expressions, 0) if function == "ntile" else 1
        if len(call.expressions) != (function == "ntile") or tree is not call:
            found = f"{function} has {len(call.expressions)} arguments, or a FILTER"
            raise empty.refuse(found, "write ntile(4)" if function == "ntile" else f"write {function}()")
        return NumberCall(name, text, function, buckets)
    if function == SESSION:
        return _parse_session(empty, tree, call.expressions, schema)
    if function in PICKS:
        return PickCall(name, text, _parse_pick(empty, function, tree, call), frame, schema)
    aggregate = parse_aggregate(name, _write_sql(tree), schema.names)
    if aggregate.function == "array_agg" or aggregate.distinct:
        if len(aggregate.arguments) != 1 or aggregate.order or aggregate.ignores_nulls:
            raise empty.refuse("it has several arguments, an ORDER BY or IGNORE NULLS", "omit them")
        if aggregate.distinct and aggregate.function != "count":
            raise empty.refuse(f"{aggregate.function} does not accept DISTINCT", "omit DISTINCT")
        return CollectedCall(name, text, aggregate, frame, schema)
    return FoldCall(name, text, FUNCTIONS[aggregate.function](aggregate, schema), frame)


def _parse_session(empty: WindowCall, tree: Any, given: Sequence[Any], schema: pa.Schema) -> SessionCall:
    """Parse the column and the gap of a session."""
    from sqlglot import exp

    from ddflow.expressions.lower import ColumnResolver, TreeCompiler
    from ddflow.expressions.node import Refusal

    columns = ColumnResolver(schema)
    if not isinstance(tree, exp.Anonymous) or len(given) != 2 or not isinstance(given[0], exp.Column):
        raise empty.refuse("its arguments are not a column and a gap", f"write {SESSION}(at, '10 minutes')")
    try:
        gap = [TreeCompiler(columns).lower(each) for each in given][1]
        length = read_length(gap, SESSION) or 0
    except Refusal as refusal:
        raise empty.refuse(refusal.found, refusal.fix) from refusal
    if length <= 0:
        raise empty.refuse("it is a session without a gap", "use a gap above 0, such as '10 minutes'")
    return SessionCall(empty.name, empty.text, columns.names[0], length, schema)


def _parse_pick(empty: WindowCall, function: str, tree: Any, call: Any) -> ParsedCall:
    """Parse the arguments of a function that picks a value."""
    from sqlglot import exp

    given, skips = list(call.expressions), False
    if function in ("min", "max"):
        aggregate = parse_aggregate(empty.name, _write_sql(tree))
        return ParsedCall(function, aggregate.arguments, 0, False)
    while tree is not call:
        if tree.key == "filter":
            raise empty.refuse(f"{function} does not accept FILTER", "omit it, or use CASE WHEN in the argument")
        skips, tree = skips or isinstance(tree, exp.IgnoreNulls), tree.this
    if given and isinstance(given[0], exp.IgnoreNulls | exp.RespectNulls):
        skips, given[0] = isinstance(given[0], exp.IgnoreNulls), given[0].this
    if function in ("first", "last") and len(given) == 2 and isinstance(given[1], exp.Boolean):
        skips = bool(given.pop().this)
    most = 1 if function in ("first", "last") else 2
    least = 2 if function == "nth_value" else 1
    if not least <= len(given) <= most:
        raise empty.refuse(f"{function} has {len(given)} arguments", f"write {function}(x{', 2' if most == 2 else ''})")
    number = 0
    if function in ("lag", "lead"):
        number = _read_whole_number(empty, given, 1, least=-_MOST) if len(given) == 2 else 1
        number = -number if function == "lag" else number
    elif function == "nth_value":
        number = _read_whole_number(empty, given, 1) - 1
    return ParsedCall(function, [_write_sql(given[0])], number, skips)


def _read_whole_number(empty: WindowCall, given: Sequence[Any], at: int, least: int = 1) -> int:
    """Read an argument that must be a whole number."""
    text = _write_sql(given[at]) if at < len(given) else ""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= _MOST:
        raise empty.refuse(f"its argument is {text or 'missing'}", f"use a whole number from {least:,} to {_MOST:,}")
    return value


def _write_sql(tree: Any) -> str:
    from ddflow.expressions.parse import ExpressionDialect

    return str(tree.sql(dialect=ExpressionDialect, normalize_functions=False))
