"""Parse temporal conditions: comparisons of the clock with an expression over a row.

The clock is ``now()``, ``current_timestamp`` or ``current_date``: the time of a step. A temporal condition changes at
one time for each row, so it gives a bound: the row is present before the bound, or from the bound on.

Limits: a comparison with ``=``, and the clock inside OR, NOT or another expression, are refused. An interval of months
must be on the side of the row, because adding months to the clock is not monotone.

>>> split_temporal_conditions("n > 1 and at > now() - interval 1 hour")
('n > 1', ["at > now() - INTERVAL '1' HOUR"])
>>> parse_temporal_condition("at > now() - interval 1 hour")
[TemporalCondition(ends=True, after=False, days=False, text="(at) + INTERVAL '1' HOUR")]
"""

from typing import Any, Final, NamedTuple

from sqlglot import exp

from ddflow.expressions.functions.table import CLOCK, CLOCK_REMEDY
from ddflow.expressions.lower import is_fixed_interval
from ddflow.expressions.node import Refusal
from ddflow.expressions.parse import ExpressionDialect, Tree, format_tree, parse_expression

_SIGNS: Final = {exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


_COMPARING: Final[Any] = (*_SIGNS, exp.Between)


class TemporalCondition(NamedTuple):
    """A comparison of the clock with a value of a row.

    ``ends``: whether a row is present before the bound; else it is present from the bound on. ``after``: whether the
    bound is the first time after the value; else it is the first time that is not before the value. ``days``: whether
    the value is compared with the date of the clock. ``text``: the SQL of the value.
    """

    ends: bool
    after: bool
    days: bool
    text: str


def is_clock(tree: Tree) -> bool:
    """Tell whether a syntax tree is the clock."""
    if isinstance(tree, exp.CurrentDate | exp.CurrentTimestamp):
        return tree.this is None
    return isinstance(tree, exp.Anonymous) and tree.name.lower() in CLOCK and not tree.expressions


def has_clock(tree: Tree) -> bool:
    """Tell whether a syntax tree contains the clock.  O(tree)."""
    return any(map(is_clock, tree.walk()))


def stands_in_condition(clock: Tree) -> bool:
    """Tell whether WHERE, HAVING or ON compare a clock, alone or in a conjunction.

    In ON of an outer join, the columns beside the clock must be of the side that can be null.
    """
    above = _skip_parents(clock.parent, exp.Add, exp.Sub)
    if not isinstance(above, _COMPARING):
        return False
    clause = _skip_parents(above.parent, exp.And)
    if isinstance(clause, exp.Join) and clause.side in ("LEFT", "RIGHT"):
        tables = {each.table for each in above.find_all(exp.Column)} - {""}
        name = clause.this.alias_or_name
        return name not in tables if clause.side == "RIGHT" else tables <= {name}
    return isinstance(clause, exp.Where | exp.Having | exp.Join)


def _skip_parents(tree: Tree, *kinds: Any) -> Any:
    skipped: Any = (exp.Paren, *kinds)
    while isinstance(tree, skipped):
        tree = tree.parent
    return tree


def split_temporal_conditions(condition: str) -> tuple[str | None, list[str]]:
    """Split a condition at its ANDs. Return the conditions without the clock, or None, and those with the clock.

    A condition that does not parse is returned unchanged. O(text).
    """
    try:
        ahead, parts = [parse_expression(condition).tree], list[Tree]()
    except Refusal:
        return condition, []
    while ahead:
        node = ahead.pop().unnest()
        if isinstance(node, exp.And):
            ahead += [node.expression, node.this]
        else:
            parts.append(node)
    timed = [_write_sql(each) for each in parts if has_clock(each)]
    if not timed:
        return condition, []
    rest = [exp.paren(each, copy=True) if isinstance(each, exp.Or) else each for each in parts if not has_clock(each)]
    return " AND ".join(map(_write_sql, rest)) or None, timed


def parse_temporal_condition(condition: str) -> list[TemporalCondition]:
    """Parse a temporal condition. Return two comparisons for BETWEEN, else one. O(text). Raises Refusal."""
    tree = parse_expression(condition).tree.unnest()
    if isinstance(tree, exp.Between) and not (tree.args.get("negate") or tree.args.get("symmetric")):
        pairs = [(tree.this, ">=", tree.args["low"]), (tree.this, "<=", tree.args["high"])]
    elif type(tree) in _SIGNS:
        pairs = [(tree.this, _SIGNS[type(tree)], tree.expression)]
    else:
        raise Refusal(f"{format_tree(tree)} does not compare the clock", CLOCK_REMEDY)
    out = list[TemporalCondition]()
    for left, sign, right in pairs:
        if has_clock(left) == has_clock(right):
            raise Refusal(f"{format_tree(tree)} compares the clock with no column", CLOCK_REMEDY)
        clock, value = (left, right) if has_clock(left) else (right, left)
        sign = sign if clock is left else _MIRRORED[sign]
        clock = clock.unnest()
        while isinstance(clock, exp.Add | exp.Sub) and is_fixed_interval(clock.expression):
            move = exp.Sub if isinstance(clock, exp.Add) else exp.Add
            value = move(this=exp.paren(value, copy=True), expression=clock.expression.copy())
            clock = clock.this.unnest()
        if not is_clock(clock):
            raise Refusal(f"{format_tree(clock)} computes with the clock", CLOCK_REMEDY)
        days = isinstance(clock, exp.CurrentDate) or clock.name.lower() in ("current_date", "curdate")
        out.append(TemporalCondition(sign[0] == "<", sign in ("<=", ">"), days, _write_sql(value)))
    return out


def _write_sql(tree: Tree) -> str:
    return str(tree.sql(dialect=ExpressionDialect, normalize_functions=False))
