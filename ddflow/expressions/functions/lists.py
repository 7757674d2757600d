"""Split text into lists, build lists, and read their elements by index.

Guarantees: as in Spark, ``x[i]`` and ``get`` count from 0; ``element_at`` counts from 1, or backwards from -1. An index
outside of the list fails in ``x[i]`` and ``element_at`` (ANSI mode), and gives null in ``get``. A null list or index
gives null.
Limits: patterns of ``split`` are RE2's and must match at least one character, because libraries split at empty matches
differently.

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
    """Split a text at each match; empty parts count. A ``limit`` above 0 is the largest number of parts."""
    if pc.any(pc.match_substring_regex(pa.array([""]), pattern)).as_py():
        raise Refusal(f"the pattern of split, {pattern!r}, matches an empty text", "let it match a character")
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
    """Build a list of values in their common type; an empty list adapts to the type of the other list."""
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
    """Return the element at an index counted from 0; null outside of the list."""
    return _build_element_access("get", node, index, 0, False)


@sql_function("element_at", takes=[keep_argument, keep_argument])
def element_at(node: Node, index: Node) -> Node:
    """Return the element at an index counted from 1, or from the end if negative. Fails outside of the list."""
    return _build_element_access("element_at", node, index, 1, True)


def subscript_list(node: Node, index: Node) -> Node:
    """Return the element ``x[i]`` at an index counted from 0. Fails outside of the list."""
    return _build_element_access("[ ]", node, index, 0, True)


def _build_element_access(name: str, node: Node, index: Node, base: int, strict: bool) -> Node:
    kind = node.type
    if not (pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)):
        raise Refusal(f"{name} takes a list, and this is {sql_name(kind)}", "a field of a struct is x.name")
    if not is_integer(index.type):
        raise Refusal(f"{name} takes an integer index, and this is {sql_name(index.type)}", "cast it to int")
    compute = partial(_take_elements, base=base, strict=strict, kind=working_type(kind.value_type))
    return build_compute_node(accept_scalars(compute), node, build_cast(index, INT64), fallible=strict)


def _take_elements(lists: pa.Array, index: pa.Array, base: int, strict: bool, kind: pa.DataType) -> pa.Array:
    valid = pc.and_(lists.is_valid(), index.is_valid())
    there, size = np.asarray(valid), np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    at = np.asarray(pc.fill_null(index, base)) - base
    if base:
        if (there & (at == -1)).any():
            raise pa.ArrowInvalid("element_at counts from 1, and its index is 0")
        at = np.where(at < -1, at + 1 + size, at)
    inside = there & (at >= 0) & (at < size)
    if strict and (there & ~inside).any():
        row = int(np.flatnonzero(there & ~inside)[0])
        raise pa.ArrowInvalid(f"the index {index[row].as_py()} is outside of a list of {size[row]} elements")
    begins = np.cumsum(size) - size
    elements: pa.Array = lists.flatten().take(pa.array(np.where(inside, begins + at, 0), mask=~inside)).cast(kind)
    return elements
