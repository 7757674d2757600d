"""Looking functions up by name, and saying what is wrong with a name that cannot be one.

Invariant: every name gives a function or a Refusal that says why it is none: it sums over rows, it differs from call to
call, it makes several rows, or nobody knows it, and then which known name is nearest. A misspelt name and a name that
can never be row-wise ask for different remedies. The functions themselves are in ``strings``, ``numbers`` and
``dates``; those of choice (``coalesce``, ``if``) are entered here, and casts by name.

>>> find("Upper").name
'upper'
>>> try:
...     find("uper")
... except Refusal as refusal:
...     print(refusal.remedy.partition(";")[0])
did you mean upper or power?
"""

from __future__ import annotations

from difflib import get_close_matches

import pyarrow as pa

from ddflow.expressions import dates, numbers, strings
from ddflow.expressions.casts import convert
from ddflow.expressions.compare import compare
from ddflow.expressions.logic import choice, condition, first_valid, is_null, negation
from ddflow.expressions.node import Node, Refusal, constant, null
from ddflow.expressions.table import Function, Table
from ddflow.expressions.types import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    FLOAT,
    INSTANT,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    WALL,
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_AGGREGATES = _names("""
    any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and bool_or
    collect_list collect_set corr count count_if covar_pop covar_samp every first first_value grouping kurtosis last
    last_value listagg max max_by mean median min min_by mode percentile percentile_approx regr_count skewness some
    std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance
""")
_WINDOWS = _names("cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number")
_CHANGING = _names("""
    curdate current_date current_timestamp current_time current_user localtimestamp monotonically_increasing_id now rand
    randn random randstr session_user shuffle spark_partition_id uniform user uuid
""")
_GENERATORS = _names("explode explode_outer inline inline_outer posexplode posexplode_outer stack")

TYPES: dict[str, pa.DataType] = {
    "boolean": BOOL,
    "tinyint": INT8,
    "smallint": INT16,
    "int": INT32,
    "bigint": INT64,
    "float": FLOAT,
    "double": DOUBLE,
    "string": STRING,
    "binary": BINARY,
    "date": DATE,
    "timestamp": INSTANT,
    "timestamp_ntz": WALL,
}

TABLE = Table()


def find(name: str) -> Function:
    """The function called ``name``, in any case. Raises Refusal when there is none."""
    lower = name.lower()
    if lower in FUNCTIONS:
        return FUNCTIONS[lower]
    if lower in _AGGREGATES or lower in _WINDOWS:
        raise Refusal(
            f"{lower} looks at several rows, and an expression sees one row at a time",
            "filter and project row by row, and count with .count(by=...)",
        )
    if lower in _CHANGING:
        raise Refusal(f"{lower} differs from call to call", "bring the value in as a column or a literal")
    if lower in _GENERATORS:
        raise Refusal(f"{lower} makes several rows of one", "unnest before the rows come in")
    near = get_close_matches(lower, FUNCTIONS, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else ""
    raise Refusal(
        f"there is no function {name}", hint + f"{'; ' if near else ''}known are {', '.join(sorted(FUNCTIONS))}"
    )


@TABLE.function("coalesce", arguments=(1, None))
def coalesce(*values: Node) -> Node:
    return first_valid(values, "coalesce")


@TABLE.function("nvl", "ifnull", arguments=(2, 2))
def nvl(value: Node, other: Node) -> Node:
    return first_valid([value, other], "nvl")


@TABLE.function("nvl2", arguments=(3, 3))
def nvl2(value: Node, valid: Node, other: Node) -> Node:
    return choice([negation(is_null(value))], [valid, other], "nvl2")


@TABLE.function("nullif", arguments=(2, 2))
def nullif(value: Node, other: Node) -> Node:
    return choice([compare("=", value, other)], [null(value.type), value], "nullif")


@TABLE.function("nullifzero", arguments=(1, 1))
def nullifzero(value: Node) -> Node:
    return nullif(value, constant(pa.scalar(0, INT32), literal=True))


@TABLE.function("if", arguments=(3, 3))
def if_(test: Node, yes: Node, no: Node) -> Node:
    return choice([condition(test, "the condition of if")], [yes, no], "if")


@TABLE.function("isnull", arguments=(1, 1))
def isnull(value: Node) -> Node:
    return is_null(value)


@TABLE.function("isnotnull", arguments=(1, 1))
def isnotnull(value: Node) -> Node:
    return negation(is_null(value))


def _cast(kind: pa.DataType) -> Function:
    return Function("cast", lambda value: convert(value, kind), 1, 1)


FUNCTIONS: dict[str, Function] = {
    **{name: _cast(kind) for name, kind in TYPES.items() if name != "timestamp_ntz"},
    **strings.TABLE.entries,
    **numbers.TABLE.entries,
    **dates.TABLE.entries,
    **TABLE.entries,
}
