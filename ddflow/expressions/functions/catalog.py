"""Find SQL functions by name, or explain why a name has no function.

Guarantees: every name gives a function, or a Refusal with the reason. The reasons are: the function is an aggregate,
its result changes from call to call, its result has several rows, or the name is unknown. For an unknown name the
Refusal suggests a similar name or an equivalent expression. Each file of the folder registers its functions in
``table.FUNCTIONS`` on import.

>>> find_function("Upper").name
'upper'
>>> try:
...     find_function("uper")
... except Refusal as refusal:
...     print(refusal.fix.partition(" the ")[0])
did you mean upper?
"""

from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pkgutil import iter_modules

import pyarrow as pa

from ddflow.expressions import functions
from ddflow.expressions.casts import build_cast
from ddflow.expressions.functions.table import (
    CLOCK,
    CLOCK_REMEDY,
    FUNCTIONS,
    SqlFunction,
    find_equivalent_expression,
    is_known_in_other_dialects,
    keep_argument,
    sql_function,
)
from ddflow.expressions.functions.time_windows import SESSION
from ddflow.expressions.logic import case_when, coalesce, comparison, is_null, negation, to_condition
from ddflow.expressions.node import Node, Refusal, constant, null
from ddflow.expressions.types import BINARY, BOOL, DATE, DOUBLE, FLOAT, INSTANT, INT8, INT16, INT32, INT64, STRING, WALL

for _each in iter_modules(functions.__path__):
    import_module(f"{functions.__name__}.{_each.name}")


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_AGGREGATES = _split_names("""
    any any_value approx_count_distinct approx_percentile arg_max arg_min array_agg avg bit_and bit_or bit_xor bool_and
    bool_or collect_list collect_set corr count count_if covar_pop covar_samp every first first_value group_concat
    grouping kurtosis last
    last_value listagg max max_by mean median min min_by mode percentile percentile_approx regr_count skewness some
    std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop var_samp variance
""")
_UNKEPT = _split_names("""
    approx_count_distinct approx_percentile arg_max arg_min bit_and bit_or bit_xor corr count_if covar_pop covar_samp
    group_concat grouping kurtosis listagg max_by median min_by mode percentile percentile_approx regr_count skewness
    string_agg try_avg try_sum
""")
_KEPT = "the aggregates are array_agg, avg, bool_and, bool_or, count, first, last, max, min, stddev_*, sum, var_*"
_INSTEAD_OF = {"count_if": "write count(*) filter (where ...)", "approx_count_distinct": "write count(distinct x)"}
_WINDOWS = _split_names(f"cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number {SESSION}")
_CHANGING = _split_names("""
    current_time current_user localtimestamp monotonically_increasing_id rand randn random randstr session_user shuffle
    spark_partition_id today uniform user uuid
""")
_GENERATORS = _split_names(
    "explode explode_outer generate_series inline inline_outer posexplode posexplode_outer stack unnest"
)

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

ALIKE = 0.8
"""An error suggests a name whose similarity, from 0 to 1, is above this number."""


def find_function(name: str) -> SqlFunction:
    """Find the function called ``name``. Case does not matter. Raises Refusal if there is no such function."""
    lower = name.lower()
    if lower in FUNCTIONS:
        return FUNCTIONS[lower]
    if lower in _UNKEPT:
        remedy = _INSTEAD_OF.get(
            lower, "use array_agg(x) for all values of a group, or dd.Aggregate for your own aggregate"
        )
        raise Refusal(f"there is no aggregate {lower}", f"{remedy}; {_KEPT}")
    if lower in _AGGREGATES or lower in _WINDOWS:
        remedy = f"write aggregates of groups in .agg() or in the select list of a query; {_KEPT}"
        if lower in _WINDOWS:
            remedy = "write it in .over(), or with OVER in the select list of a query"
        if lower == SESSION:
            remedy = "write it in .over(), or in GROUP BY of a query"
        raise Refusal(f"{lower} reads several rows, but an expression reads one row at a time", remedy)
    if lower in CLOCK:
        raise Refusal(f"{lower} is the clock, which is no value of a row", CLOCK_REMEDY)
    if lower in _CHANGING:
        raise Refusal(f"{lower} differs from call to call", "pass the value as a column or a literal")
    if lower in _GENERATORS:
        raise Refusal(f"{lower} produces several rows from one", "unnest the rows before ddflow reads them")
    found = f"there is no function {name}"
    if (made := find_equivalent_expression(lower)) is not None:
        raise Refusal(found, f"write for example {made}")
    near = [] if is_known_in_other_dialects(lower) else get_close_matches(lower, FUNCTIONS, n=2, cutoff=ALIKE)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise Refusal(found, f"{hint}the functions are {', '.join(sorted(FUNCTIONS))}")


@sql_function("nullif", takes=[keep_argument, keep_argument])
def nullif(value: Node, other: Node) -> Node:
    return case_when([comparison("=", value, other)], [null(value.type), value], "nullif")


sql_function("coalesce", takes=[keep_argument], more=True)(lambda *values: coalesce(values, "coalesce"))
sql_function("nvl", "ifnull", takes=[keep_argument, keep_argument])(lambda *values: coalesce(values, "nvl"))
sql_function("nvl2", takes=[keep_argument, keep_argument, keep_argument])(
    lambda value, valid, other: case_when([negation(is_null(value))], [valid, other], "nvl2")
)
sql_function("nullifzero", takes=[keep_argument])(
    lambda value: nullif(value, constant(pa.scalar(0, INT32), literal=True))
)
sql_function("if", takes=[keep_argument, keep_argument, keep_argument])(
    lambda test, yes, no: case_when([to_condition(test, "the condition of if")], [yes, no], "if")
)
sql_function("isnull", takes=[keep_argument])(is_null)
sql_function("isnotnull", takes=[keep_argument])(lambda value: negation(is_null(value)))


for _name, _kind in TYPES.items():
    if _name != "timestamp_ntz":
        sql_function(_name, takes=[keep_argument])(partial(build_cast, kind=_kind))
