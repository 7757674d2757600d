"""Three-valued logic and choice: AND, OR, NOT, IS, CASE, COALESCE, each evaluating only what a row asks for.

Invariant: a branch that would fail for a row is not to blame unless the row takes it, exactly as Spark's own AND, OR,
IF, CASE and COALESCE stop early. Columns are computed whole, so every branch is run under the mask of the rows that
still want it, and only if something in it can fail. Comparisons live in ``compare``.

>>> import pyarrow as pa, pyarrow.compute as pc
>>> from ddflow.expressions.node import Frame, apply, column, constant
>>> a = column(0, pa.int64())
>>> safe = conjunction(
...     apply(pc.not_equal, a, constant(pa.scalar(0))),
...     apply(lambda a: pc.greater(pc.divide_checked(pa.scalar(10), a), 2), a, fallible=True),
... )
>>> safe.run(Frame((pa.array([0, 3, None, 9]),), 4)).to_pylist()
[False, True, None, False]
"""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.casts import convert
from ddflow.expressions.node import Datum, Frame, Node, Refusal, apply, broadcast, constant, null, where
from ddflow.expressions.types import BOOL, NULL, STRING, meeting, sql_name


def condition(node: Node, place: str) -> Node:
    """Convert ``node`` to a boolean. Raises Refusal naming ``place`` if it is none."""
    if node.type not in (BOOL, NULL, STRING):
        raise Refusal(f"{place} needs a boolean, and this is {sql_name(node.type)}", "compare it with something")
    return convert(node, BOOL)


def meet(nodes: Sequence[Node], place: str) -> list[Node]:
    """Cast ``nodes`` to the type that they meet in. Raises Refusal naming ``place`` without one."""
    kind = meeting([node.type for node in nodes])
    if kind is None:
        found = ", ".join(sql_name(node.type) for node in nodes)
        raise Refusal(f"{place} has no type in common for {found}", "cast the operands to one type")
    return [convert(node, kind) for node in nodes]


def conjunction(left: Node, right: Node) -> Node:
    """Compute AND: false wins over null. The right side runs only for rows whose left side is not false."""
    return _junction(left, right, pc.and_kleene, False)


def disjunction(left: Node, right: Node) -> Node:
    """Compute OR: true wins over null. The right side runs only for rows whose left side is not true."""
    return _junction(left, right, pc.or_kleene, True)


def _junction(left: Node, right: Node, kernel: Callable[..., Datum], wins: bool) -> Node:
    if left.constant is not None and left.constant.is_valid:
        return constant(pa.scalar(wins)) if left.constant.as_py() == wins else right
    if not right.fallible:
        return apply(kernel, left, right)

    def run(frame: Frame, first: Datum) -> Datum:
        first = broadcast(first, frame.rows)
        undecided = pc.fill_null(pc.not_equal(first, wins), True)
        return kernel(first, where(right, frame, undecided))

    return Node(BOOL, run, (left,), framed=True, fallible=True)


def negation(node: Node) -> Node:
    """Compute NOT: null stays null."""
    return apply(pc.invert, node)


def is_null(node: Node) -> Node:
    """Compute IS NULL. NaN is not null."""
    return apply(lambda value: pc.is_null(value), node)


def is_truth(node: Node, truth: bool) -> Node:
    """Compute IS TRUE or IS FALSE: null is neither."""
    return apply(lambda value: pc.fill_null(value if truth else pc.invert(value), False), node)


def choice(conditions: Sequence[Node], values: Sequence[Node], place: str) -> Node:
    """Compute CASE: the value of the first true condition, else the last value, of which there is one more."""
    *taken, default = meet(values, place)
    pairs: list[tuple[Node, Node]] = []
    for test, value in zip(conditions, taken, strict=True):
        if test.constant is None:
            pairs.append((test, value))
        elif test.constant.as_py():
            default = value
            break
    if not pairs:
        return default
    tests, results = [test for test, _ in pairs], [*(value for _, value in pairs), default]
    if any(node.fallible for node in (*tests, *results)):
        return _lazy_choice(tests, results)
    count = len(tests)
    if count == 1:
        return apply(lambda test, yes, no: pc.if_else(pc.fill_null(test, False), yes, no), *tests, *results)
    return apply(lambda *data: pc.case_when(pc.make_struct(*data[:count]), *data[count:]), *tests, *results)


def _lazy_choice(tests: Sequence[Node], results: Sequence[Node]) -> Node:
    def run(frame: Frame) -> Datum:
        open_rows = broadcast(pa.scalar(True), frame.rows)
        hits, values = [], []
        for test, result in zip(tests, results, strict=False):
            true = pc.fill_null(where(test, frame, open_rows), False)
            hits.append(pc.and_(open_rows, true))
            values.append(broadcast(where(result, frame, hits[-1]), frame.rows))
            open_rows = pc.and_not(open_rows, true)
        return pc.case_when(pc.make_struct(*hits), *values, where(results[-1], frame, open_rows))

    return Node(results[0].type, run, framed=True, fallible=True)


def first_valid(nodes: Sequence[Node], place: str) -> Node:
    """Compute COALESCE: the first value that is not null. Each value runs only for rows without an earlier one."""
    nodes = [node for node in meet(nodes, place) if node.constant is None or node.constant.is_valid] or [
        null(meet(nodes, place)[0].type)
    ]
    if len(nodes) == 1:
        return nodes[0]
    if not any(node.fallible for node in nodes[1:]):
        return apply(pc.coalesce, *nodes)

    def run(frame: Frame, first: Datum) -> Datum:
        value = broadcast(first, frame.rows)
        for node in nodes[1:]:
            value = pc.coalesce(value, where(node, frame, value.is_null()))
        return value

    return Node(nodes[0].type, run, (nodes[0],), framed=True, fallible=True)
