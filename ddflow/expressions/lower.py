"""A syntax tree to a node: every kind of syntax that is supported, each in a few lines, and a refusal for the rest.

Guarantees: what is not listed here is refused by name; no part of a tree is passed over. A name gives exactly one
column or a Refusal that says why: exact first, else the one that differs only in case, as in Spark. Columns are
numbered in the order of their first mention. Chains of operators (a thousand ANDs) are walked in a loop.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import Frame
>>> from ddflow.expressions.parse import parse
>>> lowering = Lowering(Columns(pa.schema({"a": pa.int64()})))
>>> node = lowering.lower(parse("a between 1 and 3 or a is null").tree)
>>> node.run(Frame((pa.array([1, 5, None]),), 3)).to_pylist()
[True, False, True]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from sqlglot import exp

from ddflow.expressions import intervals
from ddflow.expressions.arithmetic import arithmetic, minus, number
from ddflow.expressions.casts import convert
from ddflow.expressions.functions import dates, lists, strings
from ddflow.expressions.functions.catalog import TYPES, find
from ddflow.expressions.logic import (
    among,
    choice,
    compare,
    condition,
    conjunction,
    disjunction,
    is_null,
    is_truth,
    like,
    literal_text,
    matches,
    meet,
    negation,
    same,
)
from ddflow.expressions.node import Node, Refusal, apply, column, constant, null
from ddflow.expressions.parse import Tree, format_tree
from ddflow.expressions.types import (
    DOUBLE,
    DURATION,
    FLOAT,
    INT32,
    MOST_DIGITS,
    NULL,
    STRING,
    is_integer,
    sql_name,
    working,
)


@dataclass
class Columns:
    """The columns of ``schema`` that an expression reads: ``names``, in the order of first mention.

    >>> import pyarrow as pa
    >>> columns = Columns(pa.schema({"City": pa.string(), "at": pa.struct({"x": pa.int32()})}))
    >>> columns.resolve(["at", "X"]).type, columns.resolve(["city"]).type, columns.names
    (DataType(int32), DataType(string), ['at', 'City'])
    """

    schema: pa.Schema
    names: list[str] = field(default_factory=list)

    def resolve(self, parts: Sequence[str]) -> Node:
        """Build the node of ``parts``: a column, then fields of structs. O(columns) once, then O(columns read)."""
        name = self._find(parts)
        if name not in self.names:
            self.names.append(name)
        node = column(self.names.index(name), working(self.schema.field(name).type))
        for part in parts[1:]:
            node = field_of(node, part)
        return node

    @cached_property
    def _spelt(self) -> dict[str, list[str]]:
        return _group_names(self.schema.names, str)

    @cached_property
    def _lower(self) -> dict[str, list[str]]:
        return _group_names(self.schema.names, str.lower)

    def _find(self, parts: Sequence[str]) -> str:
        asked, names = parts[0], self.schema.names
        found = self._spelt.get(asked) or self._lower.get(asked.lower(), [])
        if len(found) == 1:
            return str(found[0])
        if found:
            raise Refusal(
                f"the column {asked!r} could be any of {', '.join(map(repr, found))}",
                "write the name in its own case, and let no two columns have one name",
            )
        dotted = ".".join(parts)
        near = [self._lower[each][-1] for each in get_close_matches(asked.lower(), self._lower, n=1)]
        hint = f"write `{dotted}` in backquotes" if dotted in names else f"did you mean {near[0]!r}?" if near else ""
        raise Refusal(
            f"there is no column {asked!r}",
            f"{hint}{'; ' if hint else ''}columns are {', '.join(map(repr, names)) or 'none'}",
        )


def _group_names(names: Sequence[str], by: Callable[[str], str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for name in names:
        out.setdefault(by(name), []).append(name)
    return out


def field_of(node: Node, name: str) -> Node:
    """Read a field of a struct; null if the struct is null."""
    kind = node.type
    if not pat.is_struct(kind):
        raise Refusal(f"{name!r} is asked of a {sql_name(kind)}, which has no fields", "only structs have fields")
    names = [kind.field(index).name for index in range(kind.num_fields)]
    found = [each for each in names if each == name] or [each for each in names if each.lower() == name.lower()]
    if len(found) != 1:
        raise Refusal(
            f"there is {'no' if not found else 'more than one'} field {name!r}", f"fields are {', '.join(names)}"
        )
    index = names.index(found[0])
    target = working(kind.field(index).type)
    return apply(lambda values: pc.struct_field(values, [index]).cast(target), node)


_COMPARE: dict[type[Any], str] = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_ARITHMETIC: dict[type[Any], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
}
_BITS: dict[type[Any], Any] = {
    exp.BitwiseAnd: pc.bit_wise_and,
    exp.BitwiseOr: pc.bit_wise_or,
    exp.BitwiseXor: pc.bit_wise_xor,
}
_TYPE_NAMES = {
    "TEXT": "string",
    "VARCHAR": "string",
    "CHAR": "string",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
    "DECIMAL": "decimal",
}


NO_VALUE = (exp.Star, exp.Distinct)
"""What may stand among the arguments of a call and is none."""


class Lowering:
    """A compiler of trees over one schema; it gathers the columns read in ``columns``."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._handlers: dict[type[Any], Callable[[Tree], Node]] = {
            exp.Column: self._column,
            exp.Dot: self._dot,
            exp.Add: lambda tree: self._move_by_interval(self._right(tree), tree.this, 1),
            exp.Paren: lambda tree: self.lower(tree.this),
            exp.Literal: self._literal,
            exp.RawString: lambda tree: constant(pa.scalar(str(tree.this)), literal=True),
            exp.Concat: lambda tree: strings.concat(*map(self.lower, tree.expressions)),
            exp.Boolean: lambda tree: constant(pa.scalar(bool(tree.this))),
            exp.Null: lambda tree: null(NULL),
            exp.Not: lambda tree: negation(condition(self.lower(tree.this), "NOT")),
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Like: self._like,
            exp.ILike: self._like,
            exp.Escape: self._like,
            exp.RegexpLike: lambda tree: self._apply_negation(tree, matches(*self._pair(tree))),
            exp.Neg: self._neg,
            exp.BitwiseNot: lambda tree: apply(pc.bit_wise_not, self._integer(self.lower(tree.this), "~")),
            exp.DPipe: self._concatenation,
            exp.Case: self._case,
            exp.Cast: self._cast_literal,
            exp.TryCast: self._cast_literal,
            exp.Extract: lambda tree: dates.extract(tree.this.name, self.lower(tree.expression)),
            exp.Interval: lambda tree: intervals.value(_interval(tree)),
            exp.Trim: self._trim,
            exp.Substring: self._substring,
            exp.Anonymous: self._call,
        }
        self._chained: dict[type[Any], Callable[[Tree, Node], Node]] = {
            exp.And: lambda tree, left: conjunction(condition(left, "AND"), condition(self._right(tree), "AND")),
            exp.Or: lambda tree, left: disjunction(condition(left, "OR"), condition(self._right(tree), "OR")),
            exp.NullSafeEQ: lambda tree, left: same(left, self._right(tree)),
            exp.NullSafeNEQ: lambda tree, left: negation(same(left, self._right(tree))),
            exp.Cast: self._cast,
            exp.TryCast: self._cast,
            **dict.fromkeys(_COMPARE, lambda tree, left: compare(_COMPARE[type(tree)], left, self._right(tree))),
            **dict.fromkeys(_ARITHMETIC, self._arithmetic),
            exp.Bracket: self._element,
            exp.Dot: self._field,
            **dict.fromkeys(_BITS, self._bits),
        }

    def lower(self, tree: Tree) -> Node:
        """Compile ``tree`` to a node. Raises Refusal for unsupported syntax, misspelt names and wrong types."""
        chain = list[Tree]()
        while type(tree) in self._chained and not _is_cast_literal(tree) and not _begins_with_interval(tree):
            links, base = [tree], tree.this
            while isinstance(tree, exp.Dot) and isinstance(base, exp.Dot):
                links.append(base)
                base = base.this
            if isinstance(tree, exp.Dot) and isinstance(base, exp.Column | exp.Identifier):
                break  # a name with several dots
            chain += links
            tree = base
        handler = self._handlers.get(type(tree))
        if handler is None:
            raise _build_refusal(tree)
        node = handler(tree)
        for each in reversed(chain):
            node = self._chained[type(each)](each, node)
        return node

    def _right(self, tree: Tree) -> Node:
        return self.lower(tree.expression)

    def _pair(self, tree: Tree) -> tuple[Node, Node]:
        return self.lower(tree.this), self.lower(tree.expression)

    def _apply_negation(self, tree: Tree, node: Node) -> Node:
        return negation(node) if tree.args.get("negate") else node

    def _column(self, tree: Tree) -> Node:
        if not all(isinstance(part, exp.Identifier) for part in tree.parts):
            raise Refusal(f"{format_tree(tree)} names several columns", "name one column")
        return self.columns.resolve([part.name for part in tree.parts])

    def _dot(self, tree: Tree) -> Node:
        parts = tree.parts
        if not all(isinstance(part, exp.Identifier) for part in parts):
            raise _build_refusal(tree)
        return self.columns.resolve([part.name for part in parts])

    def _literal(self, tree: Tree) -> Node:
        return constant(pa.scalar(str(tree.this)), literal=True) if tree.is_string else number(str(tree.this))

    def _neg(self, tree: Tree) -> Node:
        if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
            return number("-" + str(tree.this.this))
        return minus(self.lower(tree.this))

    def _concatenation(self, tree: Tree) -> Node:
        parts = []
        while isinstance(tree, exp.DPipe):
            parts.append(tree.expression)
            tree = tree.this
        return strings.join_texts(*map(self.lower, [tree, *reversed(parts)]))

    def _integer(self, node: Node, place: str) -> Node:
        if not (is_integer(node.type) or node.type == NULL):
            raise Refusal(f"{place} takes integers, and this is {sql_name(node.type)}", "cast to bigint first")
        return convert(node, INT32) if node.type == NULL else node

    def _bits(self, tree: Tree, left: Node) -> Node:
        left, right = (self._integer(node, "a bit operation") for node in (left, self._right(tree)))
        return apply(_BITS[type(tree)], *meet([left, right], "a bit operation"))

    def _arithmetic(self, tree: Tree, left: Node) -> Node:
        if isinstance(tree, exp.Add | exp.Sub) and _intervals(tree.expression):
            return self._move_by_interval(left, tree.expression, 1 if isinstance(tree, exp.Add) else -1)
        return arithmetic(_ARITHMETIC[type(tree)], left, self._right(tree))

    def _move_by_interval(self, node: Node, tree: Tree, sign: int) -> Node:
        """Move a date, a timestamp or a duration by an interval literal."""
        return intervals.shift_by_interval(node, _interval(tree), sign)

    def _element(self, tree: Tree, left: Node) -> Node:
        if len(tree.expressions) != 1 or isinstance(tree.expressions[0], exp.Slice):
            raise _build_refusal(tree)
        return lists.element(left, self.lower(tree.expressions[0]))

    def _field(self, tree: Tree, left: Node) -> Node:
        if not isinstance(tree.expression, exp.Identifier):
            raise _build_refusal(tree)
        return field_of(left, tree.expression.name)

    def _is(self, tree: Tree) -> Node:
        node = self.lower(tree.this)
        if isinstance(tree.expression, exp.Null):
            return is_null(node)
        if isinstance(tree.expression, exp.Boolean):
            return is_truth(condition(node, "IS TRUE or IS FALSE"), bool(tree.expression.this))
        raise Refusal(
            f"{format_tree(tree)} is not supported",
            "IS takes NULL, TRUE, FALSE, UNKNOWN, DISTINCT FROM; for NaN use isnan",
        )

    def _in(self, tree: Tree) -> Node:
        if not tree.expressions:
            raise _build_refusal(tree.args.get("query") or tree)
        texts, numbers, others = list[str](), list[int](), list[Tree]()
        for item in tree.expressions:  # of which there may be very many
            if isinstance(item, exp.Literal) and item.is_string:
                texts.append(str(item.this))
            elif isinstance(item, exp.Literal) and len(item.this) < 10 and item.this.isdecimal():
                numbers.append(int(item.this))
            else:
                others.append(item)
        lists = [pa.array(values, kind) for values, kind in ((texts, STRING), (numbers, INT32)) if values]
        return self._apply_negation(tree, among(self.lower(tree.this), [self.lower(item) for item in others], lists))

    def _between(self, tree: Tree) -> Node:
        if tree.args.get("symmetric"):
            raise Refusal("BETWEEN SYMMETRIC is not supported", "write the lower bound first")
        node, low, high = self.lower(tree.this), self.lower(tree.args["low"]), self.lower(tree.args["high"])
        return self._apply_negation(tree, conjunction(compare(">=", node, low), compare("<=", node, high)))

    def _like(self, tree: Tree) -> Node:
        escape = "\\"
        if isinstance(tree, exp.Escape):
            mark = literal_text(self.lower(tree.expression), "the escape of LIKE")
            if mark is None or len(mark) != 1:
                raise Refusal(f"the escape of LIKE is {mark!r}", "give one character")
            tree, escape = tree.this, mark
        if isinstance(tree.expression, exp.Any | exp.All):
            raise Refusal(f"{format_tree(tree)} is not supported", "write one LIKE for each pattern, with OR or AND")
        node, pattern = self._pair(tree)
        return self._apply_negation(tree, like(node, pattern, escape, isinstance(tree, exp.ILike)))

    def _case(self, tree: Tree) -> Node:
        subject = None if tree.this is None else self.lower(tree.this)
        tests, values = [], []
        for branch in tree.args["ifs"]:
            test = self.lower(branch.this)
            test = condition(test, "WHEN") if subject is None else compare("=", subject, test)
            tests.append(test)
            values.append(self.lower(branch.args["true"]))
        default = tree.args.get("default")
        return choice(tests, [*values, null(NULL) if default is None else self.lower(default)], "CASE")

    def _cast(self, tree: Tree, node: Node) -> Node:
        return convert(node, _type(tree.to), attempt=bool(tree.args.get("safe")))

    def _cast_literal(self, tree: Tree) -> Node:
        kind = _type(tree.to)
        if not tree.this.is_string and kind in (FLOAT, DOUBLE):
            return constant(pa.scalar(float(tree.this.this), kind))  # 0.1D is the double, not a decimal turned one
        if tree.this.is_string and kind == DURATION:
            return intervals.value(intervals.parse_interval([(str(tree.this.this), None, None)]))
        node = self._cast(tree, self.lower(tree.this))
        return constant(node.constant, literal=True) if is_integer(kind) and node.constant is not None else node

    def _trim(self, tree: Tree) -> Node:
        characters = None if tree.expression is None else self.lower(tree.expression)
        return strings.trim(self.lower(tree.this), str(tree.args.get("position") or "BOTH").upper(), characters)

    def _substring(self, tree: Tree) -> Node:
        arguments = [tree.this, tree.args.get("start"), tree.args.get("length")]
        return find("substring").call([self.lower(each) for each in arguments if each is not None])

    def _call(self, tree: Tree) -> Node:
        function = find(tree.name)
        for argument in tree.expressions:
            if isinstance(argument, NO_VALUE):
                raise _build_refusal(argument)
        return function.call([self.lower(argument) for argument in tree.expressions])


def _interval(tree: Tree) -> intervals.Interval:
    """Read an interval literal.  Raises Refusal."""
    parts = []
    for each in _intervals(tree):
        if not isinstance(each.this, exp.Literal):
            raise Refusal(f"{format_tree(each)} is no literal", "write n * interval 1 day, or date_add(d, n)")
        unit = each.args.get("unit")
        first, last = (unit.this, unit.expression) if isinstance(unit, exp.IntervalSpan) else (unit, None)
        begin, end = (None if name is None else str(name.name).upper() for name in (first, last))
        parts.append((str(each.this.this), begin, end))
    return intervals.parse_interval(parts)


def _begins_with_interval(tree: Tree) -> bool:
    return isinstance(tree, exp.Add) and bool(_intervals(tree.this)) and not _intervals(tree.expression)


def _intervals(tree: Tree) -> list[Tree]:
    """List the parts of an interval literal: ``interval 1 day 2 hours`` parses as a sum.  Empty for anything else."""
    tree, found = tree.unnest(), list[Tree]()
    while isinstance(tree, exp.Add) and isinstance(tree.expression, exp.Interval):
        found.append(tree.expression)
        tree = tree.this
    return [tree, *reversed(found)] if isinstance(tree, exp.Interval) else []


def _is_cast_literal(tree: Tree) -> bool:
    return isinstance(tree, exp.Cast) and isinstance(tree.this, exp.Literal)


def _type(tree: Tree) -> pa.DataType:
    """Return the Arrow type of a type's name in CAST."""
    name = str(getattr(tree.this, "name", tree.this))
    name = _TYPE_NAMES.get(name, name.lower())
    if name == "decimal":
        given = [parameter.name for parameter in tree.expressions]
        digits = [int(each) if each.isdecimal() and len(each) < 4 else -1 for each in given] or [10]
        precision, scale = digits[0], digits[1] if len(digits) > 1 else 0
        if not (0 < precision <= MOST_DIGITS and 0 <= scale <= precision):
            raise Refusal(f"{format_tree(tree)} is no type", "the digits go to 38, the scale to the digits")
        return pa.decimal128(precision, scale)
    if name == "interval":
        return DURATION
    if name not in TYPES:
        raise Refusal(f"there is no cast to {format_tree(tree)}", f"types are {', '.join([*TYPES, 'decimal(p,s)'])}")
    return TYPES[name]


_WHY = {
    "Window": ("is a window function: it looks at several rows", "an expression sees one row at a time"),
    "Filter": ("is an aggregate: it looks at several rows", "count with .count(by=...)"),
    **dict.fromkeys(
        ("Subquery", "Select", "Exists", "Union", "Intersect", "Except"),
        ("is a subquery", "an expression sees one row; bring what it needs in as columns"),
    ),
    "Alias": ("gives a name", "leave AS out: names are given by the projection, {name: expression}"),
    "Star": ("stands for all columns", "name the columns"),
    **dict.fromkeys(
        ("CurrentDate", "CurrentTimestamp", "CurrentTime", "CurrentUser"),
        ("differs from call to call", "bring the value in as a column or a literal"),
    ),
}


def _build_refusal(tree: Tree) -> Refusal:
    kind = type(tree).__name__
    found, remedy = _WHY.get(kind, (f"({kind}) is not supported", "docs/expressions.md lists what is"))
    return Refusal(f"{format_tree(tree)} {found}", remedy)
