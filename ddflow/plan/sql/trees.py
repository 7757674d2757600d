"""Trees of sqlglot that several rules ask about: columns, conjunctions, places, and their text.

Invariant: a column of a tree that was read (`ddflow.plan.sql.names`) is one identifier, its *logical name*
(``o.amount``), which is unique in the query. Trees are changed in place only by who made or copied them. Walks are
loops, because a chain of a thousand ANDs is as deep as it is long.

>>> from ddflow.expressions.parse import parse
>>> tree = parse("(a = 1 and b > 2) and (c = 3 and d = 4 or e = 5 and c = 3)").tree
>>> [text(each) for each in conjuncts(tree)]
['a = 1', 'b > 2', 'c = 3', '(d = 4) OR (e = 5)']
>>> sorted(names_of(tree))
['a', 'b', 'c', 'd', 'e']
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any, Final

from sqlglot import exp

from ddflow.errors import ExpressionError, cut
from ddflow.expressions.parse import DdflowSpark, Tree

ASKED: Final = "flow.sql"
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WORDS: Final = frozenset(DdflowSpark.Tokenizer.KEYWORDS)


class Nested(exp.Anonymous):
    """A subquery within an expression: its number in the query, then the operands of IN."""

    key = "anonymous"

    @classmethod
    def numbered(cls, index: int, operands: Iterable[Tree]) -> Nested:
        """Build the node of a subquery by its number."""
        return cls(this="subquery", expressions=[number(index), *operands])

    @property
    def asked(self) -> int:
        """The number of the subquery."""
        return int(self.expressions[0].name)

    @property
    def operands(self) -> list[Tree]:
        """The operands that IN compares."""
        return list(self.expressions[1:])


def refused(tree: Tree, found: str, remedy: str) -> ExpressionError:
    """Build the error for a part of a query, with its place."""
    return ExpressionError(ASKED, f"{found}{place(tree)}", remedy)


def place(tree: Tree) -> str:
    """Describe the place of a part of a query, or of its parent, as far as tokens tell."""
    if tree is None:
        return ""
    found = [node.meta for node in tree.walk() if "line" in node.meta]
    if not found:
        return place(tree.parent)
    first = min(found, key=lambda meta: meta["start"])
    return f" at line {first['line']}, column {first['col'] - (first['end'] - first['start'])}"


def text(tree: Tree) -> str:
    """Write a tree as SQL."""
    return str(tree.sql(dialect=DdflowSpark, normalize_functions=False))


def shown(tree: Tree) -> str:
    """Write a tree for a message, or as a name."""
    return cut(text(tree).replace("`", ""), 80)


def quoted(name: str) -> str:
    """Quote a column's name for SQL if it needs quotes."""
    if _PLAIN.fullmatch(name) and name.upper() not in _WORDS:
        return name
    return f"`{name.replace('`', '``')}`"


def column(logical: str) -> Tree:
    """Build a column of a resolved tree."""
    return exp.Column(this=exp.Identifier(this=logical, quoted=True))


def number(value: int) -> Tree:
    """Build a literal."""
    return exp.Literal(this=str(value), is_string=False)


def call(name: str, *arguments: Tree) -> Tree:
    """Build a call of a function."""
    return exp.Anonymous(this=name, expressions=[each.copy() for each in arguments])


def cast(tree: Tree, kind: str) -> Tree:
    """Build a cast to a type of SQL."""
    return exp.Cast(this=tree.copy(), to=exp.DataType.build(kind, dialect="spark"))


def columns_of(tree: Tree) -> Iterator[Tree]:
    """Yield its columns.  O(tree)."""
    return (node for node in tree.dfs() if isinstance(node, exp.Column))


def names_of(*trees: Tree) -> set[str]:
    """Return the logical names of the columns in trees, without those in subqueries."""
    return {each.name for tree in trees for each in columns_of(tree)}


def replaced(tree: Tree, change: Callable[[Tree], Tree | None]) -> Tree:
    """Copy a tree and replace each node for which ``change`` returns a new one.  New nodes are not visited."""
    holder = exp.Paren(this=tree.copy())
    ahead = [holder.this]
    while ahead:
        node = ahead.pop()
        made = change(node)
        if made is None:
            ahead += list(node.iter_expressions())
        elif made is not node:
            node.replace(made)
    return holder.this


def conjuncts(tree: Tree | None) -> list[Tree]:
    """Split a condition at its ANDs, and factor common conditions out of each OR.  O(tree)."""
    out, ahead = list[Tree](), [] if tree is None else [tree]
    while ahead:
        node = ahead.pop().unnest()
        if isinstance(node, exp.And):
            ahead += [node.expression, node.this]
        elif isinstance(node, exp.Or):
            out += _factor_out(node)
        else:
            out.append(node)
    return out


def _factor_out(tree: Tree) -> list[Tree]:
    """Split (a and b) or (a and c) into a and (b or c)."""
    branches, ahead = list[Tree](), [tree]
    while ahead:
        node = ahead.pop().unnest()
        if isinstance(node, exp.Or):
            ahead += [node.expression, node.this]
        else:
            branches.append(node)
    parts = [{text(each): each for each in conjuncts(branch)} for branch in branches]
    common = [key for key in parts[0] if all(key in part for part in parts[1:])]
    if not common:
        return [tree]
    rests = [[part[key] for key in part if key not in common] for part in parts]
    out = [parts[0][key] for key in common]
    if all(rests):
        out.append(any_of([all_of(rest) for rest in rests]))
    return out


def all_of(trees: Iterable[Tree]) -> Tree:
    """Combine conditions with AND."""
    return _chain_trees(exp.And, trees)


def any_of(trees: Iterable[Tree]) -> Tree:
    """Combine conditions with OR."""
    return _chain_trees(exp.Or, trees)


def _chain_trees(kind: Any, trees: Iterable[Tree]) -> Tree:
    parts = [each.copy() for each in trees]
    if len(parts) > 1:
        parts = [bracketed(each) for each in parts]
    return reduce(lambda left, right: kind(this=left, expression=right), parts)


def bracketed(tree: Tree) -> Tree:
    """Put a tree in parentheses if it could be taken apart without."""
    whole = isinstance(tree, exp.Column | exp.Literal | exp.Paren | exp.Anonymous | exp.Window)
    return tree if whole else exp.Paren(this=tree)
