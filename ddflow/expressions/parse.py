"""SQL text to a syntax tree: sqlglot's Spark dialect, with functions left by the names they were written with.

Invariant: the tree says what Spark would read, or there is an error with the place.  Why that is not trivial: sqlglot
reads many dialects and forgives much.  It renames functions to its own (so that here none is known to it), takes
``it''s`` for two texts, and binds a few operators otherwise than Spark: where the two readings differ, parentheses are
asked for.  Nothing here knows columns or types.

>>> type(parse("upper(city) = 'Bern'")).__name__
'EQ'
>>> try:
...     parse("city = ")
... except Refusal as refusal:
...     print(refusal.found)
it does not parse at line 1, column 6: Required keyword: 'expression' missing
    city =
         ^
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError

from ddflow.expressions.node import Refusal

_KEPT = ("CAST", "TRY_CAST", "EXTRACT", "SUBSTRING", "SUBSTR", "TRIM")  # calls with a syntax of their own
_SPARK: Any = Spark

Tree: TypeAlias = Any  # a sqlglot expression; its classes have moved between versions


class DdflowSpark(_SPARK):  # type: ignore[misc]
    """Spark's dialect, where a doubled quote is a quote and a function is only a name."""

    class Tokenizer(_SPARK.Tokenizer):  # type: ignore[misc]
        """A quote twice is a quote; the suffix BD, which versions of sqlglot read in different ways, is none."""

        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']
        NUMERIC_LITERALS: ClassVar[dict[str, str]] = {
            suffix: kind for suffix, kind in _SPARK.Tokenizer.NUMERIC_LITERALS.items() if suffix != "BD"
        }

    class Parser(_SPARK.Parser):  # type: ignore[misc]
        """Functions are left as written; only calls with a syntax of their own are read."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser for name, parser in _SPARK.Parser.FUNCTION_PARSERS.items() if name in _KEPT
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": _SPARK.Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]}


_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ)
_PREDICATES = (exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike)
_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)


def parse(text: str) -> Tree:
    """The tree of one expression. Raises Refusal where it does not parse, with line, column and a caret."""
    try:
        tree: Tree = sqlglot.parse_one(text, read=DdflowSpark, into=exp.Condition)
    except ParseError as error:
        raise _misread(text, error) from error
    except SqlglotError as error:
        raise Refusal(f"it does not parse: {text!r}", "close every quote, backquote and comment") from error
    except RecursionError as error:
        raise Refusal("it is nested too deeply", "split it over several projections") from error
    for node in tree.walk():
        _unambiguous(node)
    return tree


def _misread(text: str, error: ParseError) -> Refusal:
    remedy = "an expression is what goes into WHERE or SELECT, without AS; names that are SQL words go in backquotes"
    if not error.errors:
        return Refusal("it is empty" if not text.strip() else f"it does not parse: {text!r}", remedy)
    first = error.errors[0]
    line, column = int(first["line"]), int(first["col"]) - len(first["highlight"]) + 1
    what = str(first["description"]).partition(" for <class")[0]
    lines = text.splitlines()
    shown = lines[line - 1] if line <= len(lines) else text
    caret = " " * (column - 1) + "^"
    return Refusal(f"it does not parse at line {line}, column {column}: {what}\n    {shown}\n    {caret}\n", remedy)


def _unambiguous(node: Tree) -> None:
    """Raise where Spark would read the text otherwise than this tree, for want of parentheses."""
    parts = list(node.iter_expressions())
    if isinstance(node, _COMPARISONS):
        bad = any(isinstance(part, (*_PREDICATES, exp.Not)) for part in parts)
    elif isinstance(node, _PREDICATES):
        bad = any(isinstance(part, (*_COMPARISONS, *_PREDICATES, exp.Not)) for part in parts)
    elif isinstance(node, exp.DPipe):
        bad = any(isinstance(part, (exp.Add, exp.Sub, *_BITS)) for part in parts)
    elif isinstance(node, _BITS):
        bad = any(isinstance(part, (*_BITS, exp.DPipe)) and type(part) is not type(node) for part in parts)
    else:
        return
    if bad:
        raise Refusal(f"{node.sql('spark')} can be read in two ways", "put parentheses around what belongs together")
