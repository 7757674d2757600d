"""Windows that no query can have, and what is written for them instead: a subquery for each row.

Invariant: what is written gives what the window would, where the columns that it is ordered by are not null: a rank is
one more than the rows, or the distinct values, before; an aggregate is that of the part, or of its rows up to this one
and its equals, as windows with ORDER BY have it. A frame (``rows between ...``), ``lag`` and their like look at rows by
their places, of which one change may move all; nothing is written for them.

>>> from ddflow.expressions.parse import parse
>>> instead(parse("rank() over (partition by city order by n desc)").tree)
'write 1 + (select count(*) from T b where b.city <=> T.city and b.n > T.n), with T for the table'
>>> instead(parse("sum(n) over (partition by city)").tree)
'write (select sum(b.n) from T b where b.city <=> T.city), with T for the table'
"""

from typing import Final

from sqlglot import exp

from ddflow.expressions.parse import Tree
from ddflow.plan.aggregated import CALLED, NAMES
from ddflow.plan.sql.trees import quoted, replaced, text

_OUTER, _INNER = "T", "b"
_BY_PLACE: Final = "row_number() <= k can; compute others over the rows that are read, with DuckDB or Polars"


def instead(window: Tree) -> str:
    """Suggest SQL that replaces a window, for the remedy of an error.  O(query)."""
    query, named = window.find_ancestor(exp.Select), dict[str, Tree]()

    def change(node: Tree) -> Tree | None:
        call = node.this if node.key == "filter" else node
        name = CALLED.get(call.name.lower(), call.name.lower()) if isinstance(call, exp.Anonymous) else ""
        if name not in NAMES or (isinstance(node.parent, exp.Window) and node.arg_key == "this"):
            return None
        return named.setdefault(text(node), exp.column(f"v{len(named) + 1}")).copy()

    remedy = _alone(replaced(window, change))
    if remedy == _BY_PLACE or not (named or (query is not None and query.args.get("group"))):
        return remedy
    columns = "".join(f", with {told} as {each.name}" for told, each in named.items())
    return f"name the query of the groups{columns}, as T in a WITH, and over it {remedy.partition(', with T')[0]}"


def _alone(window: Tree) -> str:
    """Write SQL that replaces a window over a table."""
    name, order = window.this.name.lower(), window.args.get("order")
    parts = [f"{_of(each, _INNER)} <=> {_of(each, _OUTER)}" for each in window.args.get("partition_by") or ()]
    by = order.expressions if order is not None else []
    if window.args.get("spec") is not None or not isinstance(window.this, exp.Anonymous):
        return _BY_PLACE
    if name in ("rank", "dense_rank") and by and (name == "rank" or len(by) == 1):
        counted = "*" if name == "rank" else f"distinct {_of(by[0].this, _INNER)}"
        return _write_subquery(f"1 + (select count({counted})", [*parts, _before(by)])
    if name in NAMES and len(by) < 2:
        upto = [_before(by, "=")] if by else []
        return _write_subquery(f"(select {_of(window.this, _INNER)}", [*parts, *upto])
    return _BY_PLACE


def _write_subquery(begin: str, conditions: list[str]) -> str:
    where = f" where {' and '.join(conditions)}" if conditions else ""
    return f"write {begin} from {_OUTER} {_INNER}{where}), with {_OUTER} for the table"


def _before(order: list[Tree], equal: str = "") -> str:
    """Write the condition that a row comes before another in an order, or equals it."""
    ways = list[str]()
    for place, each in enumerate(order):
        same = [f"{_of(one.this, _INNER)} = {_of(one.this, _OUTER)}" for one in order[:place]]
        sign = ">" if each.args.get("desc") else "<"
        ways.append(" and ".join([*same, f"{_of(each.this, _INNER)} {sign}{equal} {_of(each.this, _OUTER)}"]))
    return ways[0] if len(ways) == 1 else f"({' or '.join(ways)})"


def _of(tree: Tree, table: str) -> str:
    """Write an expression over the columns of a table."""

    def change(node: Tree) -> Tree | None:
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return None
        return exp.column(exp.to_identifier(node.name, quoted=quoted(node.name) != node.name), table)

    return text(replaced(tree, change))
