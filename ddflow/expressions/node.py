"""Define `Node`, the compiled form of an expression, and limit the size of the text that nodes compute.

Guarantees: a node is a pure function of a frame, with one type. A node whose parts are all constants is computed once,
when the node is built. Arrow does not check the size of text: some kernels return corrupt arrays for too much text, and
other kernels end the process. So no kernel gets more text than 32-bit offsets can address, and the constants of an
expression take at most a megabyte.

>>> import pyarrow as pa, pyarrow.compute as pc
>>> twice = build_compute_node(lambda a: pc.multiply_checked(a, pa.scalar(2)), column(0, pa.int64()))
>>> twice.evaluate(Frame((pa.array([1, None]),), 2)).to_pylist()
[2, None]
>>> build_compute_node(pc.add_checked, constant(pa.scalar(1)), constant(pa.scalar(2))).constant
<pyarrow.Int64Scalar: 3>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.types import sql_name

CONSTANTS: Final = 1 << 20
"""Maximum total size, in bytes, of the constants that are computed when one expression is compiled."""
COLUMN: Final = 2**31 - 2
"""The maximum bytes of text in one array with 32-bit offsets."""
_made: ContextVar[int] = ContextVar("made", default=0)


class TextTooLarge(pa.ArrowInvalid):
    """An error for text that is too large.

    ``row``: the number of a row whose own text is too large. ``rows``: the number of rows.

    >>> texts = pa.array(["a", "bc"])
    >>> check_text_size("repeat", [texts], lambda size: size * 10**9, lambda: pc.multiply(byte_lengths(texts), 1e9))
    Traceback (most recent call last):
        ...
    ddflow.expressions.node.TextTooLarge: repeat would produce 3,000,000,000 bytes for 2 rows, up to 2,000,000,000 ...
    """

    row: int | None = None
    rows = 0


def reset_constant_bytes() -> None:
    """Set the count of constant bytes to zero for a new expression."""
    _made.set(0)


def count_constant_bytes(value: pa.Scalar) -> pa.Scalar:
    """Add the bytes of a computed constant to the count. Raises TextTooLarge if the count exceeds `CONSTANTS`."""
    _made.set(_made.get() + _estimate_text_bytes(value, 1))
    if _made.get() > CONSTANTS:
        raise TextTooLarge(f"its constants take more than {CONSTANTS:,} bytes")
    return value


def byte_lengths(value: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Return the number of bytes of each text. Null counts as 0.

    The results are doubles, because later computations multiply them, and the products can exceed the range of
    integers.
    """
    return pc.fill_null(pc.binary_length(value), 0).cast(pa.float64())


def check_text_size(
    name: str, values: Sequence[Any], rough: Callable[[int], float], exact: Callable[[], Any] | None = None
) -> None:
    """Raise TextTooLarge if the result of function ``name`` over ``values`` would be too large. O(1), else O(rows).

    ``rough``: a function from the input bytes to the most output bytes. ``exact``: a function that returns the bytes of
    each result, called only if the rough number is too large. If the size were not checked, the offsets of some Arrow
    kernels would overflow, and other kernels would end the process.
    """
    rows = next((len(value) for value in values if not isinstance(value, pa.Scalar)), None)
    most = rough(sum(_estimate_text_bytes(value, 1 if rows is None else rows) for value in values))
    if most <= (CONSTANTS if rows is None else COLUMN):
        return
    if rows is None:
        size = most if exact is None else exact().as_py() or 0
        if size > CONSTANTS:
            raise TextTooLarge(f"{name} would produce a constant of {size:,.0f} bytes, but the limit is {CONSTANTS:,}")
        return
    sizes = None if exact is None else exact()
    total = most if sizes is None else pc.sum(sizes).as_py() or 0
    if total > COLUMN:
        largest = most / rows if sizes is None else pc.max(sizes).as_py()
        made = f"{total:,.0f} bytes for {rows:,} rows, up to {largest:,.0f} for one"
        error = TextTooLarge(f"{name} would produce {made}, but a column of a batch holds {COLUMN:,}")
        error.rows = rows
        if sizes is not None and largest > COLUMN:
            error.row = pc.index(sizes, largest).as_py()
        raise error


def _estimate_text_bytes(value: Any, rows: int) -> int:
    """Return an upper bound for the bytes of text that a value takes in ``rows`` rows."""
    if not isinstance(value, pa.Scalar):
        return int(value.nbytes)
    if not value.is_valid or not isinstance(value, pa.StringScalar | pa.BinaryScalar):
        return 0
    return rows * len(value.as_buffer())


Datum: TypeAlias = pa.Array | pa.Scalar
Compute: TypeAlias = Callable[..., Any]  # returns an array if any argument is one, else a scalar

FAILURES = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowCapacityError)


class Refusal(Exception):
    """An error for an expression that cannot be compiled.

    The error states the problem and the remedy, but not the place.
    """

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(found, fix)
        self.found, self.fix = found, fix


class Frame(NamedTuple):
    """The columns that an expression reads, and their number of rows. The columns have working types."""

    columns: tuple[pa.Array, ...]
    rows: int

    def filter(self, mask: pa.BooleanArray) -> Frame:
        """Keep the rows whose ``mask`` is true. ``mask`` has no nulls. O(rows) a column."""
        return Frame(tuple(each.filter(mask) for each in self.columns), mask.true_count)

    def slice(self, start: int, rows: int) -> Frame:
        """Select ``rows`` rows, beginning with row ``start``. All selected rows must exist. O(1) a column."""
        return Frame(tuple(each.slice(start, rows) for each in self.columns), rows)


@dataclass(frozen=True, eq=False)
class Node:
    """An operation.

    ``compute`` turns the values of ``parts`` into an array of ``type``, or into one scalar for all rows. ``framed``:
    whether ``compute`` takes the frame as the first argument.
    """

    type: pa.DataType
    compute: Compute
    parts: tuple[Node, ...] = ()
    framed: bool = False
    fallible: bool = False
    constant: pa.Scalar | None = None
    literal: bool = False

    def evaluate(self, frame: Frame) -> Datum:
        """Compute the values for a frame.

        Nested parts run in a loop. The function recurses only if a node with ``framed`` set evaluates other nodes
        itself.
        """
        values: dict[Node, Datum] = {}
        for node, done in self._ordered_nodes:
            given = map(values.__getitem__, node.parts)
            values[node] = node.compute(frame, *given) if node.framed else node.compute(*given)
            for part in done:
                del values[part]
        return values[self]

    @cached_property
    def _ordered_nodes(self) -> list[tuple[Node, list[Node]]]:
        """All nested parts and the node itself. Each comes with those of its parts that no later node needs.

        A node comes after its own parts.
        """
        order, seen, stack = list[Node](), set[Node](), [(self, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack += [(node, True), *((part, False) for part in reversed(node.parts))]
        steps, taken = list[tuple[Node, list[Node]]](), set[Node]()
        for node in reversed(order):
            steps.append((node, list(set(node.parts) - taken)))
            taken.update(node.parts)
        return steps[::-1]


def column(index: int, kind: pa.DataType) -> Node:
    """Build a node that reads the column at ``index`` of the frame."""
    return Node(kind, lambda frame: frame.columns[index], framed=True)


def constant(value: pa.Scalar, literal: bool = False) -> Node:
    """Build a node that has one value for all rows. ``literal``: whether the expression's text contains the value."""
    return Node(value.type, lambda: value, constant=value, literal=literal)


def null(kind: pa.DataType) -> Node:
    """Build a node that is null for all rows."""
    return constant(pa.scalar(None, kind))


def build_compute_node(compute: Compute, *nodes: Node, fallible: bool = False) -> Node:
    """Build a node that runs ``compute`` over ``nodes``.

    If all nodes are constants and ``compute`` succeeds, build a constant.

    ``compute`` runs once over empty arrays to find the type of the node. Raises Refusal if ``compute`` does not accept
    the types, or if the constants take more than `CONSTANTS` bytes.
    """
    fallible = fallible or any(node.fallible for node in nodes)
    empty = [pa.array([], node.type) for node in nodes]
    constants = [node.constant for node in nodes]
    try:
        if None not in constants:
            try:
                return constant(count_constant_bytes(compute(*constants)))
            except TextTooLarge as error:
                raise Refusal(str(error), "compute it from a column, or produce less text") from error
            except pa.ArrowInvalid:
                fallible = True  # it fails at run time instead, and only if a row needs it
                return Node(compute(*empty).type, compute, nodes, fallible=True)
        kind = compute(*(each if value is None else value for value, each in zip(constants, empty, strict=True))).type
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        types = ", ".join(sql_name(node.type) for node in nodes)
        raise Refusal(f"no function computes this for the types ({types})", "cast the operands first") from error
    return Node(kind, compute, nodes, fallible=fallible)


def broadcast(value: Datum, rows: int) -> pa.Array:
    """Turn ``value`` into an array of ``rows`` values. O(rows) for a scalar. Raises TextTooLarge."""
    if not isinstance(value, pa.Scalar):
        return value
    check_text_size("a literal", [pa.nulls(rows), value], lambda most: most)
    return pa.repeat(value, rows)


def compute_where(node: Node, frame: Frame, mask: pa.BooleanArray) -> Datum:
    """Compute ``node`` for the rows whose ``mask`` is true. The result for all other rows is arbitrary.

    ``mask`` has no nulls. Failures at rows whose ``mask`` is false are ignored. The node runs once, or twice after a
    failure.
    """
    try:
        return node.evaluate(frame)
    except FAILURES:
        part = frame.filter(mask)
        if part.rows == frame.rows:
            raise
    if part.rows == 0:
        return pa.scalar(None, node.type)
    values = broadcast(node.evaluate(part), part.rows)
    place = pc.subtract(pc.cumulative_sum(mask.cast(pa.int64())), 1)
    return values.take(pc.if_else(mask, place, pa.scalar(None, pa.int64())))


def accept_scalars(compute: Compute) -> Compute:
    """Wrap a function of arrays, so that the function accepts arrays and scalars.

    The result is a scalar if all arguments are scalars.
    """

    @wraps(compute)
    def compute_arrays(*values: Datum) -> Datum:
        rows = [len(value) for value in values if not isinstance(value, pa.Scalar)]
        result: pa.Array = compute(*(broadcast(value, rows[0] if rows else 1) for value in values))
        return result if rows else result[0]

    return compute_arrays
