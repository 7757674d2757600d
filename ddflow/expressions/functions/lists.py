"""Split text into lists, build lists, and read elements of lists by index.

Guarantees: as in Spark, ``x[i]`` and ``get`` count from 0. ``element_at`` counts from 1, and -1 is the last element. If
the index is outside the list, ``x[i]`` and ``element_at`` fail, but ``get`` returns null. If the list or the index is
null, the result is null.
Limits: ``split`` takes patterns in RE2's syntax. A pattern must match at least one character, because libraries treat
empty matches differently.

>>> from ddflow.expressions.functions.table import FUNCTIONS
>>> from ddflow.expressions.node import constant
>>> parts = FUNCTIONS["split"].call([constant(pa.scalar(v)) for v in ("a,b,,c", ",")])
>>> parts.constant.as_py(), subscript_list(parts, constant(pa.scalar(1))).constant.as_py()
(['a', 'b', '', 'c'], 'b')
"""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.expressions.casts import build_cast
from ddflow.expressions.functions.table import (
    build_integer_reader,
    build_regex_reader,
    cast_argument_to_text,
    keep_argument,
    sql_function,
)
from ddflow.expressions.logic import convert_to_common_type
from ddflow.expressions.node import Node, Refusal, accept_scalars, build_compute_node, constant
from ddflow.expressions.types import INT64, NULL, STRING, is_integer, sql_name, working_type

LIST = pa.list_(STRING)


@sql_function(
    "split",
    takes=[
        cast_argument_to_text,
        build_regex_reader("the pattern of split"),
        build_integer_reader("the limit of split"),
    ],
    least=2,
    of_null=LIST,
)
def split_text(text: Node, pattern: str, limit: int = -1) -> Node:
    """Split a text at each match of a pattern. Empty parts are kept.

    If ``limit`` is above 0, the result has at most ``limit`` parts.
    """
    if pc.any(pc.match_substring_regex(pa.array([""]), pattern)).as_py():
        raise Refusal(
            f"the pattern of split, {pattern!r}, matches an empty text", "make it match at least one character"
        )
    most = None if limit <= 0 else limit - 1

    def compute(values: pa.Array) -> pa.Array:
        if most == 0:
            whole = pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32)), values)
            return pc.if_else(values.is_valid(), whole, pa.scalar(None, LIST))
        parts: pa.Array = pc.split_pattern_regex(values, pattern, max_splits=most).cast(LIST)
        return parts

    return build_compute_node(accept_scalars(compute), text)


@sql_function("array", takes=[keep_argument], least=0, more=True)
def build_array(*nodes: Node) -> Node:
    """Build a list of values in their common type.

    The elements of an empty list have the null type, which is compatible with any list type.
    """
    if not nodes:
        return constant(pa.scalar([], pa.list_(NULL)))

    def compute(*columns: pa.Array) -> pa.Array:
        n, rows = len(columns), len(columns[0])
        places = np.arange(n * rows).reshape(n, rows).T.ravel()
        ends = pa.array(np.arange(rows + 1, dtype=np.int32) * n)
        return pa.ListArray.from_arrays(ends, pa.concat_arrays(columns).take(pa.array(places)))

    return build_compute_node(accept_scalars(compute), *convert_to_common_type(nodes, "array"))


@sql_function("get", takes=[keep_argument, keep_argument])
def get_element(node: Node, index: Node) -> Node:
    """Return the element at an index that counts from 0. An index outside of the list gives null."""
    return _build_element_access("get", node, index, 0, False)


@sql_function("element_at", takes=[keep_argument, keep_argument])
def element_at(node: Node, index: Node) -> Node:
    """Return the element at an index that counts from 1.

    A negative index counts from the end. Fails if the index is outside of the list.
    """
    return _build_element_access("element_at", node, index, 1, True)


def subscript_list(node: Node, index: Node) -> Node:
    """Return the element ``x[i]``. The index counts from 0. Fails if the index is outside of the list."""
    return _build_element_access("[ ]", node, index, 0, True)


def _build_element_access(name: str, node: Node, index: Node, base: int, strict: bool) -> Node:
    kind = node.type
    if not (pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)):
        raise Refusal(f"{name} takes a list, but this is {sql_name(kind)}", "for a field of a struct write x.name")
    if not is_integer(index.type):
        raise Refusal(f"{name} takes an integer index, but this is {sql_name(index.type)}", "cast it to int")
    compute = partial(_take_elements, base=base, strict=strict, kind=working_type(kind.value_type))
    return build_compute_node(accept_scalars(compute), node, build_cast(index, INT64), fallible=strict)


def _take_elements(lists: pa.Array, index: pa.Array, base: int, strict: bool, kind: pa.DataType) -> pa.Array:
    valid = pc.and_(lists.is_valid(), index.is_valid())
    there, size = np.asarray(valid), np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    at = np.asarray(pc.fill_null(index, base)) - base
    if base:
        if (there & (at == -1)).any():
            raise pa.ArrowInvalid("element_at counts from 1, but its index is 0")
        at = np.where(at < -1, at + 1 + size, at)
    inside = there & (at >= 0) & (at < size)
    if strict and (there & ~inside).any():
        row = int(np.flatnonzero(there & ~inside)[0])
        raise pa.ArrowInvalid(f"the index {index[row].as_py()} is outside of a list of {size[row]} elements")
    begins = np.cumsum(size) - size
    elements: pa.Array = lists.flatten().take(pa.array(np.where(inside, begins + at, 0), mask=~inside)).cast(kind)
    return elements
