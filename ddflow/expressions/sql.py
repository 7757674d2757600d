"""Compile SQL text to a runner, and check whether an expression keeps its meaning if columns get wider types.

Guarantees: equal texts over equal columns compile to equal nodes, so the nodes of short texts are cached. Refusals are
not cached. `find_wider_type` returns a type only if the expression has the same value in every row before and after the
columns get wider types.
Limits: `find_wider_type` rejects comparisons of text with numbers, because a cast from text depends on the other type.

>>> run, names = compile_sql("n + 1 > 2", pa.schema({"id": pa.string(), "n": pa.int64()}), True, "filter of 'a'")
>>> run(pa.record_batch({"n": [1, 2, None]})).to_pylist(), names
([False, True, None], ('n',))
"""

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as pat
from sqlglot import exp

from ddflow.aside import run_on_new_stack
from ddflow.columns.widening import InexactValue, widen_column
from ddflow.columns.wider import find_widening, list_changed_types
from ddflow.errors import ExpressionError, shorten
from ddflow.expressions.casts import build_cast
from ddflow.expressions.evaluate import SqlRunner
from ddflow.expressions.lower import ColumnResolver, TreeCompiler
from ddflow.expressions.node import Node, Refusal, reset_constant_bytes
from ddflow.expressions.parse import Tree, build_nesting_refusal, parse_expression
from ddflow.expressions.types import (
    BOOL,
    DATE,
    INT64,
    NULL,
    common_type,
    is_decimal,
    is_float,
    is_integer,
    is_time,
    to_decimal_type,
)

_MOST = 600  # characters of the cause in a message
_KEPT, _SHORT = 256, 1000
"""The number of cached texts, and the maximum length of a cached text.

The nodes of a longer text may take megabytes.
"""


class _CompiledText(NamedTuple):
    """A compiled text.

    The fields are the node of the text, the columns that the text reads, whether the text is only a column name, and
    the number of nested levels.
    """

    node: Node
    names: tuple[str, ...]
    bare: bool
    nested: int


def compile_sql(text: str, schema: pa.Schema, boolean: bool, what: str) -> tuple[SqlRunner, tuple[str, ...]]:
    """Compile an expression, and list the columns that it reads. See `ddflow.expressions.compile`."""
    shown = f"{what} {shorten(text)}"
    asked = f"cannot compile {shown}"
    try:
        made = (_compile_text if len(text) <= _SHORT else _compile_text.__wrapped__)(text, schema, boolean)
    except Refusal as refusal:
        raise ExpressionError(asked, shorten(refusal.found, _MOST), shorten(refusal.fix, 4 * _MOST)) from refusal
    except RecursionError as error:
        raise ExpressionError(asked, build_nesting_refusal().found, build_nesting_refusal().fix) from error
    except pa.ArrowException as error:
        raise ExpressionError(
            asked, shorten(str(error), _MOST), "docs/expressions.md lists what is supported"
        ) from error
    fields = [schema.field(name) for name in made.names]
    return SqlRunner(made.node, fields, made.bare, made.nested, f"cannot compute {shown}"), made.names


@lru_cache(_KEPT)
def _compile_text(text: str, schema: pa.Schema, boolean: bool) -> _CompiledText:
    """Parse and compile a text. Nodes keep no state between runs, so equal texts can share one node."""

    def compile_fresh() -> _CompiledText:
        reset_constant_bytes()
        parsed, columns = parse_expression(text), ColumnResolver(schema)
        parsed.check_quoted_texts(schema.names)
        node = TreeCompiler(columns).lower(parsed.tree)
        plain = parsed.tree.unnest()
        bare = isinstance(plain, exp.Column) and len(plain.parts) == 1
        right = build_cast(node, BOOL) if boolean and node.type == NULL else node
        return _CompiledText(right, tuple(columns.names), bare, parsed.nested)

    return run_on_new_stack(compile_fresh)


_COMPARES: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_ARITHMETIC: Final = (exp.Add, exp.Sub, exp.Mul, exp.Neg)
_NULL_TESTS: Final = ("isnull", "isnotnull")
_CHOICES: Final = ("coalesce", "nvl", "ifnull")


class _NodePair(NamedTuple):
    """One part of an expression, compiled over the narrower and over the wider columns.

    ``same``: whether both nodes have equal values. ``exact``: whether the wider type holds all values that the narrower
    part can have.
    """

    old: Node
    new: Node
    same: bool
    exact: bool = True


class _MeaningMayChange(Exception):
    """An error for a part of an expression whose meaning can change over wider columns."""


def find_wider_type(text: str, old: pa.Schema, new: pa.Schema) -> pa.DataType | None:
    """Return the type of an SQL expression over wider columns. O(text).

    Return None if the values of the expression can change.

    ``old``, ``new``: the narrower and the wider columns, of equal names.

    >>> import pyarrow as pa
    >>> old, new = pa.schema({"n": pa.int32()}), pa.schema({"n": pa.float64()})
    >>> texts = ["case when n > 5 then 'many' else 'few' end", "coalesce(n, 0)"]
    >>> [find_wider_type(text, old, new) for text in texts]
    [DataType(string), DataType(double)]
    >>> find_wider_type("n / 2", old, new) is None
    True

    >>> old = pa.schema({"n": pa.uint32()})
    >>> find_wider_type("coalesce(n, 0)", old, new), find_wider_type("n + 1", old, new)
    (DataType(double), None)
    """
    try:
        return run_on_new_stack(lambda: _PairCompiler(old, new).compile_pair(parse_expression(text).tree).new.type)
    except (_MeaningMayChange, Refusal, RecursionError):
        return None


class _PairCompiler:
    def __init__(self, old: pa.Schema, new: pa.Schema) -> None:
        # Expressions compute uint32 as 64-bit integers. A double holds every 32-bit integer exactly, but not every
        # 64-bit integer.
        self.short = {field.name for field in old if field.type == pa.uint32()}
        self.old, self.new = TreeCompiler(ColumnResolver(old)), TreeCompiler(ColumnResolver(new))
        self.changed = {name.lower() for name in list_changed_types(old, new)}

    def compile_pair(self, tree: Tree) -> _NodePair:
        """Compile a tree over the narrower and the wider columns. Raises `_MeaningMayChange`."""
        if isinstance(tree, exp.Paren):
            return self.compile_pair(tree.this)
        old, new = self.old.lower(tree), self.new.lower(tree)
        if isinstance(tree, exp.Column | exp.Dot):
            short = isinstance(tree, exp.Column) and len(tree.parts) == 1 and tree.name in self.short
            exact = _is_subtype(old.type, new.type) or (short and new.type == pa.float64())
            return _NodePair(old, new, old.type == new.type, exact)
        if self.changed.isdisjoint(each.name.lower() for each in tree.find_all(exp.Identifier)):
            return _NodePair(old, new, True)
        parts = [self.compile_pair(each) for each in _list_operands(tree)]
        if all(part.same for part in parts):
            if old.type != new.type:
                raise _MeaningMayChange
            return _NodePair(old, new, True)
        if _is_null_test(tree):
            return _NodePair(old, new, True)
        if isinstance(tree, (*_COMPARES, exp.In, exp.Between)) and tree.args.get("query") is None:
            if not all(map(_is_exact_number, parts)):
                _check_exact_operands(parts)
            return _NodePair(old, new, True)
        if (chosen := self._list_branch_values(tree, parts)) is not None:
            _check_exact_operands(chosen)
            exact = all(part.exact for part in chosen)
        else:
            exact = (
                _is_subtype(old.type, new.type) and isinstance(tree, _ARITHMETIC) and all(map(_is_exact_integer, parts))
            )
        if not exact:
            raise _MeaningMayChange
        return _NodePair(old, new, old.type == new.type)

    def _list_branch_values(self, tree: Tree, parts: list[_NodePair]) -> list[_NodePair] | None:
        """List the values among which ``tree``, such as a CASE, chooses. Return None if ``tree`` is not a choice.

        Raises `_MeaningMayChange`.
        """
        if _function_name(tree) in _CHOICES:
            return parts
        if not isinstance(tree, exp.Case) or tree.this is not None:
            return None
        branches = tree.args["ifs"]
        if not all(self.compile_pair(each.this).same for each in branches):
            raise _MeaningMayChange
        last = tree.args.get("default")
        return [
            self.compile_pair(each) for each in [*(each.args["true"] for each in branches), *([last] if last else [])]
        ]


def _list_operands(tree: Tree) -> list[Tree]:
    """List the operands of a part of an expression, without type names and identifiers."""
    found: list[Any] = list(tree.iter_expressions())
    if isinstance(tree, exp.Cast | exp.TryCast):
        found = [tree.this]
    parts = [each for one in found for each in (one.iter_expressions() if isinstance(one, exp.If) else [one])]
    return [each for each in parts if isinstance(each, exp.Expression) and not isinstance(each, exp.Identifier)]


def _function_name(tree: Tree) -> str:
    return tree.name.lower() if isinstance(tree, exp.Anonymous) else ""


_MONOTONE: Final = {"date_trunc": 1, "trunc": 0, "to_date": 0, "window": 0}
"""The functions whose results never decrease while an argument grows, and the position of this argument."""
_ORDERED_TYPES: Final = re.compile("date|timestamp|(big|small|tiny)?int", re.IGNORECASE)
_MONTHS: Final = re.compile("month|quarter|year", re.IGNORECASE)


def is_monotone(text: str) -> bool:
    """Return whether an expression never decreases while the value of its only column grows. O(text).

    False if this is not known. A month is not a fixed length, so the sum of a time and months may decrease.

    >>> texts = ["date_trunc('hour', at)", "cast(at as date)", "at - interval 1 day", "window(at, '5 minutes')"]
    >>> [is_monotone(text) for text in [*texts, "hour(at)", "0 - n", "n * n", "at + interval 1 month"]]
    [True, True, True, True, False, False, False, False]
    """
    tree = run_on_new_stack(lambda: parse_expression(text).tree.unnest())
    while not isinstance(tree, exp.Column):
        parts = _list_operands(tree)
        varying = [at for at, part in enumerate(parts) if part.find(exp.Column)]
        fits = varying == [_MONOTONE.get(_function_name(tree))]
        fits = fits or (isinstance(tree, exp.Cast) and _ORDERED_TYPES.match(tree.to.sql()) is not None)
        added = isinstance(tree, exp.Add) or (isinstance(tree, exp.Sub) and varying == [0])
        if len(varying) != 1 or not (fits or (added and _MONTHS.search(tree.sql()) is None)):
            return False
        tree = parts[varying[0]].unnest()
    return True


def _is_null_test(tree: Tree) -> bool:
    return (isinstance(tree, exp.Is) and isinstance(tree.expression, exp.Null)) or _function_name(tree) in _NULL_TESTS


def _is_exact_integer(part: _NodePair) -> bool:
    """Return whether the part is an integer that stays exact as a double. 64-bit integers must not become doubles."""
    return is_integer(part.old.type) and (part.same or _is_subtype(part.old.type, part.new.type))


def _is_exact_number(part: _NodePair) -> bool:
    """Return whether the part is an integer, a decimal or null.

    Integers and decimals are compared exactly, however many digits they have.
    """
    return all(is_integer(each) or is_decimal(each) or pat.is_null(each) for each in (part.old.type, part.new.type))


def _check_exact_operands(parts: list[_NodePair]) -> None:
    """Raise `_MeaningMayChange` unless the narrower operands and the wider operands each have an exact common type."""
    kinds = [(part.old.type, part.new.type) for part in parts]
    if not all(_is_number_or_time(kind) for pair in kinds for kind in pair):
        raise _MeaningMayChange
    old, new = common_type([pair[0] for pair in kinds]), common_type([pair[1] for pair in kinds])
    for part in parts:
        untouched = part.same and old == new
        checked = not part.same and new is not None and old in (part.old.type, part.new.type) and part.new.type == new
        if not (untouched or checked or (_is_exact_in_type(part.old, old) and _is_exact_in_type(part.new, new))):
            raise _MeaningMayChange


def _is_number_or_time(kind: pa.DataType) -> bool:
    """Return whether ``kind`` is the type of a number, a date, a timestamp, or null."""
    number = is_integer(kind) or is_decimal(kind) or is_float(kind)
    return bool(number or kind == DATE or is_time(kind) or pat.is_null(kind))


def _is_exact_in_type(node: Node, kind: pa.DataType | None) -> bool:
    """Return whether the common type ``kind`` holds the values of a node exactly."""
    if kind is None:
        return False
    if node.type == kind or pat.is_null(node.type) or _is_subtype(node.type, kind):
        return True
    if node.constant is None or is_float(node.type):
        return False
    try:
        return find_widening(node.type, kind) is not None and len(widen_column(pa.array([node.constant]), kind)) == 1
    except InexactValue:
        return False


def _is_subtype(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether type ``new`` holds every value of type ``old``, in the same order."""
    if old == new:
        return True
    if is_decimal(new):
        if not (is_integer(old) or is_decimal(old)):
            return False
        exact = to_decimal_type(old)
        return bool(exact.precision - exact.scale <= new.precision - new.scale and exact.scale <= new.scale)
    if is_float(new) and is_integer(old):
        return bool(new == pa.float64() and old != INT64)
    return not pat.is_string(new) and find_widening(old, new) is not None
