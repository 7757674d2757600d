"""Functions of numbers: rounding, roots and logarithms, signs, the greatest and the least.

Invariant: result types are Spark's: ``round`` keeps the type (decimals lose digits), ``floor`` and ``ceil`` of a double
are bigints, logarithms of what has none are null. Halves go up by the digits that are written (see ``digits``), NaN is
the greatest float, and ``greatest`` passes over nulls. Random functions are refused (in ``functions``): a row must
always give the same result.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import constant
>>> TABLE.entries["round"].call([constant(pa.scalar(2.675)), constant(pa.scalar(2))]).constant
<pyarrow.DoubleScalar: 2.68>
>>> TABLE.entries["ln"].call([constant(pa.scalar(0))]).constant
<pyarrow.DoubleScalar: None>
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.arithmetic import arithmetic
from ddflow.expressions.casts import convert
from ddflow.expressions.digits import round_decimal, round_double, with_numpy
from ddflow.expressions.logic import first_valid, meet
from ddflow.expressions.node import Compute, Datum, Node, Refusal, apply, constant, null, on_arrays
from ddflow.expressions.table import Table, whole
from ddflow.expressions.types import (
    BOOL,
    DOUBLE,
    INT8,
    INT32,
    INT64,
    NULL,
    STRING,
    is_decimal,
    is_float,
    is_integer,
    is_number,
    sql_name,
)

TABLE = Table()


def _numeric(node: Node, name: str) -> Node:
    """A number; text and null are doubles."""
    if node.type in (STRING, NULL):
        return convert(node, DOUBLE)
    if not is_number(node.type):
        raise Refusal(f"{name} takes a number, and this is {sql_name(node.type)}", "cast to a number first")
    return node


def _double(node: Node, name: str) -> Node:
    return convert(_numeric(node, name), DOUBLE)


@TABLE.function("abs", arguments=(1, 1))
def absolute(value: Node) -> Node:
    """Without the sign; the least integer of a type has none and overflows."""
    value = _numeric(value, "abs")
    return apply(pc.abs_checked, value, fallible=is_integer(value.type))


@TABLE.function("sign", "signum", arguments=(1, 1))
def sign(value: Node) -> Node:
    return apply(on_arrays(lambda values: with_numpy(_sign, values)), _double(value, "sign"))


def _sign(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.where(values == 0, values, np.sign(values))  # the sign of -0.0 is -0.0


@TABLE.function("round", arguments=(1, 2))
def rounded(value: Node, places: Node | None = None) -> Node:
    """Half up to ``places`` digits after the point, before it when negative."""
    value = _numeric(value, "round")
    count = 0 if places is None else whole(places, "the number of places of round")
    if count is None:
        return null(value.type)
    kind = value.type
    if is_decimal(kind):
        least = kind.precision - kind.scale + 1
        scale = 0 if count < 0 else min(kind.scale, count)
        precision = min(max(least, 1 - count) if count < 0 else least + scale, 38)
        return _kept(lambda values: round_decimal(values, count, precision, scale), value)
    if is_integer(kind):
        if count >= 0:
            return value
        exact = pa.decimal128(19, 0)
        return convert(_kept(lambda values: round_decimal(values.cast(exact), count, 38, 0), value), kind)
    return apply(on_arrays(lambda values: round_double(values.cast(DOUBLE), count).cast(kind)), value)


def _kept(compute: Compute, value: Node) -> Node:
    """``compute``, which makes null of what overflows, with an error for that."""

    def checked(values: pa.Array) -> pa.Array:
        result = compute(values)
        if result.null_count > values.null_count:
            raise pa.ArrowInvalid("overflow: a rounded number does not fit")
        return result

    return apply(on_arrays(checked), value, fallible=True)


def _whole(name: str, kernel: Compute) -> Callable[[Node], Node]:
    def build(value: Node) -> Node:
        value = _numeric(value, name)
        if is_integer(value.type):
            return convert(value, INT64)
        if is_decimal(value.type):
            digits = min(value.type.precision - value.type.scale + 1, 38)
            wide = pa.decimal256(76, value.type.scale)
            return apply(lambda values: kernel(values.cast(wide)).cast(pa.decimal128(digits, 0)), value)
        number = apply(lambda values: _nan_as_zero(kernel(values.cast(DOUBLE))), value)
        return convert(number, INT64)

    return build


def _nan_as_zero(values: Datum) -> Datum:
    return pc.if_else(pc.is_nan(values), 0.0, values)


TABLE.function("floor", arguments=(1, 1))(_whole("floor", pc.floor))
TABLE.function("ceil", "ceiling", arguments=(1, 1))(_whole("ceil", pc.ceil))


def _of_double(name: str, kernel: Compute) -> None:
    TABLE.function(name, arguments=(1, 1))(lambda value: apply(kernel, _double(value, name)))


def _logarithm(name: str, kernel: Compute) -> None:
    def compute(values: Datum) -> Datum:
        return pc.if_else(pc.less_equal(values, 0.0), pa.scalar(None, DOUBLE), kernel(values))

    TABLE.function(name, arguments=(1, 1))(lambda value: apply(compute, _double(value, name)))


_of_double("sqrt", pc.sqrt)
_of_double("exp", pc.exp)
_logarithm("ln", pc.ln)
_logarithm("log2", pc.log2)
_logarithm("log10", pc.log10)


@TABLE.function("log", arguments=(1, 2))
def log(first: Node, second: Node | None = None) -> Node:
    """log(x) is natural; log(base, x)."""
    if second is None:
        return TABLE.entries["ln"].call([first])

    def compute(base: Datum, values: Datum) -> Datum:
        bad = pc.or_(pc.less_equal(values, 0.0), pc.less_equal(base, 0.0))
        return pc.if_else(bad, pa.scalar(None, DOUBLE), pc.divide(pc.ln(values), pc.ln(base)))

    return apply(compute, _double(first, "log"), _double(second, "log"))


@TABLE.function("power", "pow", arguments=(2, 2))
def power(base: Node, exponent: Node) -> Node:
    return apply(pc.power, _double(base, "power"), _double(exponent, "power"))


@TABLE.function("mod", arguments=(2, 2))
def mod(left: Node, right: Node) -> Node:
    return arithmetic("%", left, right)


@TABLE.function("pmod", arguments=(2, 2))
def pmod(left: Node, right: Node) -> Node:
    return arithmetic("pmod", left, right)


@TABLE.function("isnan", arguments=(1, 1))
def isnan(value: Node) -> Node:
    """False for a null, as in Spark."""
    return apply(lambda values: pc.fill_null(pc.is_nan(values), False), _double(value, "isnan"))


@TABLE.function("nanvl", arguments=(2, 2))
def nanvl(value: Node, other: Node) -> Node:
    """The other where the value is NaN."""
    return apply(lambda a, b: pc.if_else(pc.is_nan(a), b, a), _double(value, "nanvl"), _double(other, "nanvl"))


def _extreme(name: str, kernel: Compute, top: bool) -> Callable[..., Node]:
    def build(*values: Node) -> Node:
        if len({node.type == STRING for node in values if node.type != NULL}) > 1:
            raise Refusal(f"{name} is given text and other types", "cast the operands to one type")
        nodes = meet(values, name)
        kind = nodes[0].type
        if kind == NULL:
            return null(NULL)
        if kind == BOOL:
            return convert(apply(kernel, *(convert(node, INT8) for node in nodes)), BOOL)
        if is_float(kind) and top:
            return apply(_greatest_float, *nodes)
        return apply(kernel, *nodes)

    return build


def _greatest_float(*values: Datum) -> Datum:
    """Arrow passes over NaN as it does over null; Spark puts it on top."""
    result = pc.max_element_wise(*values)
    nan = pa.scalar(math.nan, result.type)
    for value in values:
        result = pc.if_else(pc.fill_null(pc.is_nan(value), False), nan, result)
    return result


TABLE.function("greatest", arguments=(2, None))(_extreme("greatest", pc.max_element_wise, top=True))
TABLE.function("least", arguments=(2, None))(_extreme("least", pc.min_element_wise, top=False))


@TABLE.function("zeroifnull", arguments=(1, 1))
def zeroifnull(value: Node) -> Node:
    return first_valid([value, constant(pa.scalar(0, INT32))], "zeroifnull")
