"""Functions of numbers: rounding, roots and logarithms, signs, the greatest and the least.

Invariant: result types are Spark's: ``round`` keeps the type (decimals lose digits), ``floor`` and ``ceil`` of a double
are bigints, logarithms of what has none are null. Halves go up by the digits that are written (see ``digits``), NaN is
the greatest float, and ``greatest`` passes over nulls. Random functions are refused (in ``functions``): a row must
always give the same result.

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
from ddflow.expressions.casts import convert
from ddflow.expressions.digits import round_decimal, round_double, with_numpy
from ddflow.expressions.functions.table import FUNCTIONS, double, function, number, row_function, same, whole_of
from ddflow.expressions.logic import first_valid, meet
from ddflow.expressions.node import Compute, Datum, Node, Refusal, apply, constant, null, on_arrays
from ddflow.expressions.types import BOOL, DOUBLE, INT8, INT32, INT64, NULL, STRING, is_decimal, is_float, is_integer


@function("abs", takes=[number])
def absolute(value: Node) -> Node:
    """Remove the sign; the least integer of a type overflows."""
    return apply(pc.abs_checked, value, fallible=is_integer(value.type))


def _sign(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(values == 0, values, np.sign(values))  # the sign of -0.0 is -0.0


row_function(on_arrays(partial(with_numpy, _sign)), "sign", "signum", takes=[double])


@function("round", takes=[number, same], least=1)
def round_number(value: Node, places: Node | None = None) -> Node:
    """Round half up to ``places`` digits after the point, before it if negative."""
    count = 0 if places is None else whole_of(places, "the number of places of round")
    if count is None:
        return null(value.type)
    kind = value.type
    if is_decimal(kind):
        least = kind.precision - kind.scale + 1
        scale = 0 if count < 0 else min(kind.scale, count)
        precision = min(max(least, 1 - count) if count < 0 else least + scale, 38)
        return _check_overflow(lambda values: round_decimal(values, count, precision, scale), value)
    if is_integer(kind):
        if count >= 0:
            return value
        exact = pa.decimal128(19, 0)
        return convert(_check_overflow(lambda values: round_decimal(values.cast(exact), count, 38, 0), value), kind)
    return apply(on_arrays(lambda values: round_double(values.cast(DOUBLE), count).cast(kind)), value)


def _check_overflow(compute: Compute, value: Node) -> Node:
    """Make ``compute`` fail for overflows, which it turns into null."""

    def compute_checked(values: pa.Array) -> pa.Array:
        result: pa.Array = compute(values)
        if result.null_count > values.null_count:
            raise pa.ArrowInvalid("overflow: a rounded number does not fit")
        return result

    return apply(on_arrays(compute_checked), value, fallible=True)


def _whole(kernel: Compute, value: Node) -> Node:
    if is_integer(value.type):
        return convert(value, INT64)
    if is_decimal(value.type):
        digits = min(value.type.precision - value.type.scale + 1, 38)
        wide = pa.decimal256(76, value.type.scale)
        return apply(lambda values: kernel(values.cast(wide)).cast(pa.decimal128(digits, 0)), value)
    return convert(apply(lambda values: _nan_as_zero(kernel(values.cast(DOUBLE))), value), INT64)


def _nan_as_zero(values: Datum) -> Datum:
    return pc.if_else(pc.is_nan(values), 0.0, values)


def _logarithm(kernel: Compute, values: Datum) -> Datum:
    return pc.if_else(pc.less_equal(values, 0.0), pa.scalar(None, DOUBLE), kernel(values))


function("floor", takes=[number])(partial(_whole, pc.floor))
function("ceil", "ceiling", takes=[number])(partial(_whole, pc.ceil))
row_function(pc.sqrt, "sqrt", takes=[double])
row_function(pc.exp, "exp", takes=[double])
row_function(partial(_logarithm, pc.ln), "ln", takes=[double])
row_function(partial(_logarithm, pc.log2), "log2", takes=[double])
row_function(partial(_logarithm, pc.log10), "log10", takes=[double])
row_function(pc.power, "power", "pow", takes=[double, double])
row_function(lambda values: pc.fill_null(pc.is_nan(values), False), "isnan", takes=[double])  # false for a null
row_function(lambda a, b: pc.if_else(pc.is_nan(a), b, a), "nanvl", takes=[double, double])
function("mod", takes=[same, same])(partial(arithmetic, "%"))
function("pmod", takes=[same, same])(partial(arithmetic, "pmod"))


@function("log", takes=[double, double], least=1)
def log(first: Node, second: Node | None = None) -> Node:
    """Compute a logarithm: log(x) is natural; log(base, x)."""
    if second is None:
        return FUNCTIONS["ln"].call([first])

    def compute(base: Datum, values: Datum) -> Datum:
        bad = pc.or_(pc.less_equal(values, 0.0), pc.less_equal(base, 0.0))
        return pc.if_else(bad, pa.scalar(None, DOUBLE), pc.divide(pc.ln(values), pc.ln(base)))

    return apply(compute, first, second)


def _extreme(name: str, kernel: Compute, of_floats: Compute, *values: Node) -> Node:
    if len({node.type == STRING for node in values if node.type != NULL}) > 1:
        raise Refusal(f"{name} is given text and other types", "cast the operands to one type")
    nodes = meet(values, name)
    kind = nodes[0].type
    if kind == NULL:
        return null(NULL)
    if kind == BOOL:
        return convert(apply(kernel, *(convert(node, INT8) for node in nodes)), BOOL)
    return apply(of_floats if is_float(kind) else kernel, *nodes)


def _greatest_float(*values: Datum) -> Datum:
    """Return the greatest float with NaN on top, as Spark does; Arrow skips NaN like null."""
    result = pc.max_element_wise(*values)
    nan = pa.scalar(math.nan, result.type)
    for value in values:
        result = pc.if_else(pc.fill_null(pc.is_nan(value), False), nan, result)
    return result


_GREATEST = partial(_extreme, "greatest", pc.max_element_wise, _greatest_float)
_LEAST = partial(_extreme, "least", pc.min_element_wise, pc.min_element_wise)
function("greatest", takes=[same, same], more=True)(_GREATEST)
function("least", takes=[same, same], more=True)(_LEAST)


@function("zeroifnull", takes=[same])
def zeroifnull(value: Node) -> Node:
    return first_valid([value, constant(pa.scalar(0, INT32))], "zeroifnull")
