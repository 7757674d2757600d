"""Compile a syntax tree to a node, and refuse unsupported syntax.

Guarantees: every part of a tree is compiled, or a Refusal quotes it. A column name resolves to exactly one column, or
raises a Refusal. As in Spark, a column with exactly the written name takes precedence over columns whose names differ
in case. Columns are numbered in the order in which the expression first mentions each column. Chains of operators are
compiled in a loop, so a thousand ANDs need no deep stack.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import Frame
>>> from ddflow.expressions.parse import parse_expression
>>> lowering = TreeCompiler(ColumnResolver(pa.schema({"a": pa.int64()})))
>>> node = lowering.lower(parse_expression("a between 1 and 3 or a is null").tree)
>>> node.evaluate(Frame((pa.array([1, 5, None]),), 3)).to_pylist()
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
from ddflow.expressions.arithmetic import arithmetic, negate_number, parse_number
from ddflow.expressions.casts import build_cast
from ddflow.expressions.functions import dates, lists, strings
from ddflow.expressions.functions.catalog import TYPES, find_function
from ddflow.expressions.functions.table import CLOCK_REMEDY
from ddflow.expressions.logic import (
    build_truth_test,
    case_when,
    comparison,
    conjunction,
    convert_to_common_type,
    disjunction,
    is_in,
    is_null,
    like,
    negation,
    null_safe_equal,
    read_text_literal,
    rlike,
    to_condition,
)
from ddflow.expressions.node import Node, Refusal, build_compute_node, column, constant, null
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
    working_type,
)


@dataclass
class ColumnResolver:
    """The columns of ``schema`` that an expression reads.

    ``names`` lists the columns in the order of their first mention.

    >>> import pyarrow as pa
    >>> columns = ColumnResolver(pa.schema({"City": pa.string(), "at": pa.struct({"x": pa.int32()})}))
    >>> columns.resolve_column(["at", "X"]).type, columns.resolve_column(["city"]).type, columns.names
    (DataType(int32), DataType(string), ['at', 'City'])
    """

    schema: pa.Schema
    names: list[str] = field(default_factory=list)

    def resolve_column(self, parts: Sequence[str]) -> Node:
        """Build the node of a name such as ``a.b.c``.

        ``parts`` is a column, then the fields of structs. O(columns) once, then O(columns read).
        """
        name = self._find_column(parts)
        if name not in self.names:
            self.names.append(name)
        node = column(self.names.index(name), working_type(self.schema.field(name).type))
        for part in parts[1:]:
            node = get_struct_field(node, part)
        return node

    @cached_property
    def _exact_names(self) -> dict[str, list[str]]:
        return _group_names(self.schema.names, str)

    @cached_property
    def _lowercase_names(self) -> dict[str, list[str]]:
        return _group_names(self.schema.names, str.lower)

    def _find_column(self, parts: Sequence[str]) -> str:
        asked, names = parts[0], self.schema.names
        found = self._exact_names.get(asked) or self._lowercase_names.get(asked.lower(), [])
        if len(found) == 1:
            return str(found[0])
        if found:
            raise Refusal(
                f"the column {asked!r} may be any of {', '.join(map(repr, found))}",
                "write the name in its exact case, and use each name for one column only",
            )
        dotted = ".".join(parts)
        near = [
            self._lowercase_names[each][-1] for each in get_close_matches(asked.lower(), self._lowercase_names, n=1)
        ]
        hint = f"write `{dotted}` in backquotes; " if dotted in names else f"did you mean {near[0]!r}? " if near else ""
        raise Refusal(
            f"there is no column {asked!r}",
            f"{hint}the columns are {', '.join(map(repr, names)) or 'none'}",
        )


def _group_names(names: Sequence[str], by: Callable[[str], str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for name in names:
        out.setdefault(by(name), []).append(name)
    return out


def get_struct_field(node: Node, name: str) -> Node:
    """Read a field of a struct. A null struct gives null."""
    kind = node.type
    if not pat.is_struct(kind):
        raise Refusal(
            f"the field {name!r} is read from a {sql_name(kind)}, which has no fields", "read fields of structs only"
        )
    names = [kind.field(index).name for index in range(kind.num_fields)]
    found = [each for each in names if each == name] or [each for each in names if each.lower() == name.lower()]
    if len(found) != 1:
        raise Refusal(
            f"there is {'no' if not found else 'more than one'} field {name!r}", f"the fields are {', '.join(names)}"
        )
    index = names.index(found[0])
    target = working_type(kind.field(index).type)
    return build_compute_node(lambda values: pc.struct_field(values, [index]).cast(target), node)


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
"""Syntax that is not a value but is allowed as an argument of a call, such as the star of ``count(*)``."""


class TreeCompiler:
    """A compiler of syntax trees over one schema. ``columns`` collects the columns that the compiled trees read."""

    def __init__(self, columns: ColumnResolver) -> None:
        self.columns = columns
        self._handlers: dict[type[Any], Callable[[Tree], Node]] = {
            exp.Column: self._lower_column,
            exp.Dot: self._lower_dotted_name,
            exp.Add: lambda tree: self._shift_by_interval(self._lower_right_operand(tree), tree.this, 1),
            exp.Paren: lambda tree: self.lower(tree.this),
            exp.Literal: self._lower_literal,
            exp.RawString: lambda tree: constant(pa.scalar(str(tree.this)), literal=True),
            exp.Concat: lambda tree: strings.concat(*map(self.lower, tree.expressions)),
            exp.Boolean: lambda tree: constant(pa.scalar(bool(tree.this))),
            exp.Null: lambda tree: null(NULL),
            exp.Not: lambda tree: negation(to_condition(self.lower(tree.this), "NOT")),
            exp.Is: self._lower_is,
            exp.In: self._lower_in,
            exp.Between: self._lower_between,
            exp.Like: self._lower_like,
            exp.ILike: self._lower_like,
            exp.Escape: self._lower_like,
            exp.RegexpLike: lambda tree: self._apply_negation(tree, rlike(*self._lower_operands(tree))),
            exp.Neg: self._lower_negation,
            exp.BitwiseNot: lambda tree: build_compute_node(
                pc.bit_wise_not, self._check_integer(self.lower(tree.this), "~")
            ),
            exp.DPipe: self._lower_concatenation,
            exp.Case: self._lower_case,
            exp.Cast: self._lower_cast_of_literal,
            exp.TryCast: self._lower_cast_of_literal,
            exp.Extract: lambda tree: dates.extract(tree.this.name, self.lower(tree.expression)),
            exp.Interval: lambda tree: intervals.interval_to_duration(_read_interval(tree)),
            exp.Trim: self._lower_trim,
            exp.Substring: self._lower_substring,
            exp.Anonymous: self._lower_call,
        }
        self._chained: dict[type[Any], Callable[[Tree, Node], Node]] = {
            exp.And: lambda tree, left: conjunction(
                to_condition(left, "AND"), to_condition(self._lower_right_operand(tree), "AND")
            ),
            exp.Or: lambda tree, left: disjunction(
                to_condition(left, "OR"), to_condition(self._lower_right_operand(tree), "OR")
            ),
            exp.NullSafeEQ: lambda tree, left: null_safe_equal(left, self._lower_right_operand(tree)),
            exp.NullSafeNEQ: lambda tree, left: negation(null_safe_equal(left, self._lower_right_operand(tree))),
            exp.Cast: self._lower_cast,
            exp.TryCast: self._lower_cast,
            **dict.fromkeys(
                _COMPARE, lambda tree, left: comparison(_COMPARE[type(tree)], left, self._lower_right_operand(tree))
            ),
            **dict.fromkeys(_ARITHMETIC, self._lower_arithmetic),
            exp.Bracket: self._lower_element,
            exp.Dot: self._lower_field,
            **dict.fromkeys(_BITS, self._lower_bit_operation),
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
            raise _build_syntax_refusal(tree)
        node = handler(tree)
        for each in reversed(chain):
            node = self._chained[type(each)](each, node)
        return node

    def _lower_right_operand(self, tree: Tree) -> Node:
        return self.lower(tree.expression)

    def _lower_operands(self, tree: Tree) -> tuple[Node, Node]:
        return self.lower(tree.this), self.lower(tree.expression)

    def _apply_negation(self, tree: Tree, node: Node) -> Node:
        return negation(node) if tree.args.get("negate") else node

    def _lower_column(self, tree: Tree) -> Node:
        if not all(isinstance(part, exp.Identifier) for part in tree.parts):
            raise Refusal(f"{format_tree(tree)} names several columns", "name one column")
        return self.columns.resolve_column([part.name for part in tree.parts])

    def _lower_dotted_name(self, tree: Tree) -> Node:
        parts = tree.parts
        if not all(isinstance(part, exp.Identifier) for part in parts):
            raise _build_syntax_refusal(tree)
        return self.columns.resolve_column([part.name for part in parts])

    def _lower_literal(self, tree: Tree) -> Node:
        return constant(pa.scalar(str(tree.this)), literal=True) if tree.is_string else parse_number(str(tree.this))

    def _lower_negation(self, tree: Tree) -> Node:
        if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
            return parse_number("-" + str(tree.this.this))
        return negate_number(self.lower(tree.this))

    def _lower_concatenation(self, tree: Tree) -> Node:
        parts = []
        while isinstance(tree, exp.DPipe):
            parts.append(tree.expression)
            tree = tree.this
        return strings.join_texts(*map(self.lower, [tree, *reversed(parts)]))

    def _check_integer(self, node: Node, place: str) -> Node:
        if not (is_integer(node.type) or node.type == NULL):
            raise Refusal(f"{place} takes integers, but this is {sql_name(node.type)}", "cast to bigint first")
        return build_cast(node, INT32) if node.type == NULL else node

    def _lower_bit_operation(self, tree: Tree, left: Node) -> Node:
        left, right = (self._check_integer(node, "a bit operation") for node in (left, self._lower_right_operand(tree)))
        return build_compute_node(_BITS[type(tree)], *convert_to_common_type([left, right], "a bit operation"))

    def _lower_arithmetic(self, tree: Tree, left: Node) -> Node:
        if isinstance(tree, exp.Add | exp.Sub) and _list_interval_parts(tree.expression):
            return self._shift_by_interval(left, tree.expression, 1 if isinstance(tree, exp.Add) else -1)
        return arithmetic(_ARITHMETIC[type(tree)], left, self._lower_right_operand(tree))

    def _shift_by_interval(self, node: Node, tree: Tree, sign: int) -> Node:
        """Add an interval literal to a date, a timestamp or a duration, or subtract the literal."""
        return intervals.shift_by_interval(node, _read_interval(tree), sign)

    def _lower_element(self, tree: Tree, left: Node) -> Node:
        if len(tree.expressions) != 1 or isinstance(tree.expressions[0], exp.Slice):
            raise _build_syntax_refusal(tree)
        return lists.subscript_list(left, self.lower(tree.expressions[0]))

    def _lower_field(self, tree: Tree, left: Node) -> Node:
        if not isinstance(tree.expression, exp.Identifier):
            raise _build_syntax_refusal(tree)
        return get_struct_field(left, tree.expression.name)

    def _lower_is(self, tree: Tree) -> Node:
        node = self.lower(tree.this)
        if isinstance(tree.expression, exp.Null):
            return is_null(node)
        if isinstance(tree.expression, exp.Boolean):
            return build_truth_test(to_condition(node, "IS TRUE or IS FALSE"), bool(tree.expression.this))
        raise Refusal(
            f"{format_tree(tree)} is not supported",
            "IS takes NULL, TRUE, FALSE, UNKNOWN, DISTINCT FROM; for NaN use isnan",
        )

    def _lower_in(self, tree: Tree) -> Node:
        if not tree.expressions:
            raise _build_syntax_refusal(tree.args.get("query") or tree)
        texts, numbers, others = list[str](), list[int](), list[Tree]()
        for item in tree.expressions:  # there may be very many items
            if isinstance(item, exp.Literal) and item.is_string:
                texts.append(str(item.this))
            elif isinstance(item, exp.Literal) and len(item.this) < 10 and item.this.isdecimal():
                numbers.append(int(item.this))
            else:
                others.append(item)
        lists = [pa.array(values, kind) for values, kind in ((texts, STRING), (numbers, INT32)) if values]
        return self._apply_negation(tree, is_in(self.lower(tree.this), [self.lower(item) for item in others], lists))

    def _lower_between(self, tree: Tree) -> Node:
        if tree.args.get("symmetric"):
            raise Refusal("BETWEEN SYMMETRIC is not supported", "write the lower bound first")
        node, low, high = self.lower(tree.this), self.lower(tree.args["low"]), self.lower(tree.args["high"])
        return self._apply_negation(tree, conjunction(comparison(">=", node, low), comparison("<=", node, high)))

    def _lower_like(self, tree: Tree) -> Node:
        escape = "\\"
        if isinstance(tree, exp.Escape):
            mark = read_text_literal(self.lower(tree.expression), "the escape of LIKE")
            if mark is None or len(mark) != 1:
                raise Refusal(f"the escape of LIKE is {mark!r}", "use one character")
            tree, escape = tree.this, mark
        if isinstance(tree.expression, exp.Any | exp.All):
            raise Refusal(f"{format_tree(tree)} is not supported", "write one LIKE for each pattern, with OR or AND")
        node, pattern = self._lower_operands(tree)
        return self._apply_negation(tree, like(node, pattern, escape, isinstance(tree, exp.ILike)))

    def _lower_case(self, tree: Tree) -> Node:
        subject = None if tree.this is None else self.lower(tree.this)
        tests, values = [], []
        for branch in tree.args["ifs"]:
            test = self.lower(branch.this)
            test = to_condition(test, "WHEN") if subject is None else comparison("=", subject, test)
            tests.append(test)
            values.append(self.lower(branch.args["true"]))
        default = tree.args.get("default")
        return case_when(tests, [*values, null(NULL) if default is None else self.lower(default)], "CASE")

    def _lower_cast(self, tree: Tree, node: Node) -> Node:
        return build_cast(node, _read_cast_type(tree.to), attempt=bool(tree.args.get("safe")))

    def _lower_cast_of_literal(self, tree: Tree) -> Node:
        kind = _read_cast_type(tree.to)
        if not tree.this.is_string and kind in (FLOAT, DOUBLE):
            return constant(pa.scalar(float(tree.this.this), kind))  # parse 0.1D as a double, not as a decimal
        if tree.this.is_string and kind == DURATION:
            return intervals.interval_to_duration(intervals.parse_interval([(str(tree.this.this), None, None)]))
        node = self._lower_cast(tree, self.lower(tree.this))
        return constant(node.constant, literal=True) if is_integer(kind) and node.constant is not None else node

    def _lower_trim(self, tree: Tree) -> Node:
        characters = None if tree.expression is None else self.lower(tree.expression)
        return strings.trim_text(self.lower(tree.this), str(tree.args.get("position") or "BOTH").upper(), characters)

    def _lower_substring(self, tree: Tree) -> Node:
        arguments = [tree.this, tree.args.get("start"), tree.args.get("length")]
        return find_function("substring").call([self.lower(each) for each in arguments if each is not None])

    def _lower_call(self, tree: Tree) -> Node:
        function = find_function(tree.name)
        for argument in tree.expressions:
            if isinstance(argument, NO_VALUE):
                raise _build_syntax_refusal(argument)
        return function.call([self.lower(argument) for argument in tree.expressions])


def _read_interval(tree: Tree) -> intervals.Interval:
    """Read an interval literal. Raises Refusal."""
    parts = []
    for each in _list_interval_parts(tree):
        if not isinstance(each.this, exp.Literal):
            raise Refusal(f"{format_tree(each)} is not a literal", "write n * interval 1 day, or date_add(d, n)")
        unit = each.args.get("unit")
        first, last = (unit.this, unit.expression) if isinstance(unit, exp.IntervalSpan) else (unit, None)
        begin, end = (None if name is None else str(name.name).upper() for name in (first, last))
        parts.append((str(each.this.this), begin, end))
    return intervals.parse_interval(parts)


def is_fixed_interval(tree: Tree) -> bool:
    """Tell whether a tree is an interval literal.  Raises Refusal for an interval of months."""
    if not _list_interval_parts(tree):
        return False
    if _read_interval(tree).months:
        found = f"{format_tree(tree)} is added to the clock, but months differ in length"
        raise Refusal(found, "move it to the other side: now() < at + interval 1 month")
    return True


def _begins_with_interval(tree: Tree) -> bool:
    return (
        isinstance(tree, exp.Add)
        and bool(_list_interval_parts(tree.this))
        and not _list_interval_parts(tree.expression)
    )


def _list_interval_parts(tree: Tree) -> list[Tree]:
    """List the parts of an interval literal, or return an empty list for other syntax.

    sqlglot parses ``interval 1 day 2 hours`` as a sum.
    """
    tree, found = tree.unnest(), list[Tree]()
    while isinstance(tree, exp.Add) and isinstance(tree.expression, exp.Interval):
        found.append(tree.expression)
        tree = tree.this
    return [tree, *reversed(found)] if isinstance(tree, exp.Interval) else []


def _is_cast_literal(tree: Tree) -> bool:
    return isinstance(tree, exp.Cast) and isinstance(tree.this, exp.Literal)


def _read_cast_type(tree: Tree) -> pa.DataType:
    """Return the Arrow type for a type name of CAST."""
    name = str(getattr(tree.this, "name", tree.this))
    name = _TYPE_NAMES.get(name, name.lower())
    if name == "decimal":
        given = [parameter.name for parameter in tree.expressions]
        digits = [int(each) if each.isdecimal() and len(each) < 4 else -1 for each in given] or [10]
        precision, scale = digits[0], digits[1] if len(digits) > 1 else 0
        if not (0 < precision <= MOST_DIGITS and 0 <= scale <= precision):
            raise Refusal(f"{format_tree(tree)} is not a type", "use 1 to 38 digits, and no greater scale than digits")
        return pa.decimal128(precision, scale)
    if name == "interval":
        return DURATION
    if name not in TYPES:
        raise Refusal(
            f"there is no cast to {format_tree(tree)}", f"the types are {', '.join([*TYPES, 'decimal(p,s)'])}"
        )
    return TYPES[name]


_WHY = {
    "Window": ("is a window function, which reads several rows", "use only functions of one row"),
    "Filter": ("is an aggregate, which reads several rows", "count with .count(by=...)"),
    **dict.fromkeys(
        ("Subquery", "Select", "Exists", "Union", "Intersect", "Except"),
        ("is a subquery", "an expression reads one row; add the values that it needs as columns"),
    ),
    "Alias": ("assigns a name", "omit AS: the projection assigns names, {name: expression}"),
    "Star": ("selects all columns", "name the columns"),
    **dict.fromkeys(("CurrentDate", "CurrentTimestamp"), ("is the clock, which is no value of a row", CLOCK_REMEDY)),
    **dict.fromkeys(
        ("CurrentTime", "CurrentUser"), ("differs from call to call", "pass the value as a column or a literal")
    ),
}


def _build_syntax_refusal(tree: Tree) -> Refusal:
    kind = type(tree).__name__
    found, remedy = _WHY.get(kind, (f"({kind}) is not supported", "docs/expressions.md lists the supported syntax"))
    return Refusal(f"{format_tree(tree)} {found}", remedy)
