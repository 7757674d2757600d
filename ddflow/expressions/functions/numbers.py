"""Define functions of numbers: rounding, roots, logarithms, signs, ``greatest`` and ``least``.

Guarantees: result types are the same as in Spark. ``round`` keeps the type, except that decimals lose digits. ``floor``
and ``ceil`` turn a double into a bigint. Undefined logarithms are null. Numbers are rounded by their decimal digits,
half up (see `digits.py`). NaN is the greatest float, and ``greatest`` and ``least`` ignore nulls.
Limits: `catalog.py` refuses random functions, because a row must always give the same result.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import constant
>>> FUNCTIONS["round"].call([constant(pa.scalar(2.675)), constant(pa.scalar(2))]).constant
<pyarrow.DoubleScalar: 2.68>
>>> FUNCTIONS["ln"].call([constant(pa.scalar(0))]).constant
<pyarrow.DoubleScalar: None>
"""

import math
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.arithmetic import arithmetic
from ddflow.expressions.casts import build_cast
from ddflow.expressions.digits import compute_with_numpy, round_decimal, round_double
from ddflow.expressions.functions.table import (
    FUNCTIONS,
    cast_argument_to_double,
    cast_argument_to_number,
    keep_argument,
    read_integer_literal,
    register_row_function,
    sql_function,
)
from ddflow.expressions.logic import coalesce, convert_to_common_type
from ddflow.expressions.node import Compute, Datum, Node, Refusal, accept_scalars, build_compute_node, constant, null
from ddflow.expressions.types import BOOL, DOUBLE, INT8, INT32, INT64, NULL, STRING, is_decimal, is_float, is_integer


@sql_function("abs", takes=[cast_argument_to_number])
def absolute(value: Node) -> Node:
    """Compute the absolute value. The absolute value of the least integer of a type overflows."""
    return build_compute_node(pc.abs_checked, value, fallible=is_integer(value.type))


def _float_sign(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(values == 0, values, np.sign(values))  # the sign of -0.0 is -0.0


register_row_function(
    accept_scalars(partial(compute_with_numpy, _float_sign)), "sign", "signum", takes=[cast_argument_to_double]
)


@sql_function("round", takes=[cast_argument_to_number, keep_argument], least=1)
def round_number(value: Node, places: Node | None = None) -> Node:
    """Round half up to ``places`` digits after the decimal point.

    A negative ``places`` counts digits before the point.
    """
    count = 0 if places is None else read_integer_literal(places, "the number of places of round")
    if count is None:
        return null(value.type)
    kind = value.type
    if is_decimal(kind):
        least = kind.precision - kind.scale + 1
        scale = 0 if count < 0 else min(kind.scale, count)
        precision = min(max(least, 1 - count) if count < 0 else least + scale, 38)
        return _apply_with_overflow_check(lambda values: round_decimal(values, count, precision, scale), value)
    if is_integer(kind):
        if count >= 0:
            return value
        exact = pa.decimal128(19, 0)
        return build_cast(
            _apply_with_overflow_check(lambda values: round_decimal(values.cast(exact), count, 38, 0), value), kind
        )
    return build_compute_node(accept_scalars(lambda values: round_double(values.cast(DOUBLE), count).cast(kind)), value)


def _apply_with_overflow_check(compute: Compute, value: Node) -> Node:
    """Build a node that fails if ``compute`` turns a value into null because of an overflow."""

    def compute_checked(values: pa.Array) -> pa.Array:
        result: pa.Array = compute(values)
        if result.null_count > values.null_count:
            raise pa.ArrowInvalid("overflow: a rounded number does not fit")
        return result

    return build_compute_node(accept_scalars(compute_checked), value, fallible=True)


def _round_to_whole(kernel: Compute, value: Node) -> Node:
    if is_integer(value.type):
        return build_cast(value, INT64)
    if is_decimal(value.type):
        digits = min(value.type.precision - value.type.scale + 1, 38)
        wide = pa.decimal256(76, value.type.scale)
        return build_compute_node(lambda values: kernel(values.cast(wide)).cast(pa.decimal128(digits, 0)), value)
    return build_cast(build_compute_node(lambda values: _replace_nan(kernel(values.cast(DOUBLE))), value), INT64)


def _replace_nan(values: Datum) -> Datum:
    return pc.if_else(pc.is_nan(values), 0.0, values)


def _compute_logarithm(kernel: Compute, values: Datum) -> Datum:
    return pc.if_else(pc.less_equal(values, 0.0), pa.scalar(None, DOUBLE), kernel(values))


sql_function("floor", takes=[cast_argument_to_number])(partial(_round_to_whole, pc.floor))
sql_function("ceil", "ceiling", takes=[cast_argument_to_number])(partial(_round_to_whole, pc.ceil))
register_row_function(pc.sqrt, "sqrt", takes=[cast_argument_to_double])
register_row_function(pc.exp, "exp", takes=[cast_argument_to_double])
register_row_function(partial(_compute_logarithm, pc.ln), "ln", takes=[cast_argument_to_double])
register_row_function(partial(_compute_logarithm, pc.log2), "log2", takes=[cast_argument_to_double])
register_row_function(partial(_compute_logarithm, pc.log10), "log10", takes=[cast_argument_to_double])
register_row_function(pc.power, "power", "pow", takes=[cast_argument_to_double, cast_argument_to_double])
register_row_function(
    lambda values: pc.fill_null(pc.is_nan(values), False), "isnan", takes=[cast_argument_to_double]
)  # false for a null
register_row_function(
    lambda a, b: pc.if_else(pc.is_nan(a), b, a), "nanvl", takes=[cast_argument_to_double, cast_argument_to_double]
)
sql_function("mod", takes=[keep_argument, keep_argument])(partial(arithmetic, "%"))
sql_function("pmod", takes=[keep_argument, keep_argument])(partial(arithmetic, "pmod"))


@sql_function("log", takes=[cast_argument_to_double, cast_argument_to_double], least=1)
def log(first: Node, second: Node | None = None) -> Node:
    """Compute a logarithm. log(x) is the natural logarithm, and log(base, x) is the logarithm to the given base."""
    if second is None:
        return FUNCTIONS["ln"].call([first])

    def compute(base: Datum, values: Datum) -> Datum:
        bad = pc.or_(pc.less_equal(values, 0.0), pc.less_equal(base, 0.0))
        return pc.if_else(bad, pa.scalar(None, DOUBLE), pc.divide(pc.ln(values), pc.ln(base)))

    return build_compute_node(compute, first, second)


def _build_greatest_or_least(name: str, kernel: Compute, of_floats: Compute, *values: Node) -> Node:
    if len({node.type == STRING for node in values if node.type != NULL}) > 1:
        raise Refusal(f"{name} mixes text with other types", "cast the operands to one type")
    nodes = convert_to_common_type(values, name)
    kind = nodes[0].type
    if kind == NULL:
        return null(NULL)
    if kind == BOOL:
        return build_cast(build_compute_node(kernel, *(build_cast(node, INT8) for node in nodes)), BOOL)
    return build_compute_node(of_floats if is_float(kind) else kernel, *nodes)


def _max_with_nan(*values: Datum) -> Datum:
    """Return the greatest float. As in Spark, NaN is greater than all numbers, whereas Arrow ignores NaN like null."""
    result = pc.max_element_wise(*values)
    nan = pa.scalar(math.nan, result.type)
    for value in values:
        result = pc.if_else(pc.fill_null(pc.is_nan(value), False), nan, result)
    return result


_GREATEST = partial(_build_greatest_or_least, "greatest", pc.max_element_wise, _max_with_nan)
_LEAST = partial(_build_greatest_or_least, "least", pc.min_element_wise, pc.min_element_wise)
sql_function("greatest", takes=[keep_argument, keep_argument], more=True)(_GREATEST)
sql_function("least", takes=[keep_argument, keep_argument], more=True)(_LEAST)


@sql_function("zeroifnull", takes=[keep_argument])
def zeroifnull(value: Node) -> Node:
    return coalesce([value, constant(pa.scalar(0, INT32))], "zeroifnull")
