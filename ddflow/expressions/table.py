"""A table of SQL functions: name, what arguments it takes, and how they become the node of the call.

Invariant: a builder is called with as many arguments as its row allows, each made into what the row says: a node of
a certain type, or the value of a literal. A literal that is null makes the whole call null, and the builder never sees
it. Lookup, and what to say of an unknown name, is in ``functions``.

>>> import pyarrow.compute as pc
>>> from ddflow.expressions.node import constant
>>> table = Table()
>>> table.row(pc.utf8_reverse, "reverse", takes=[text])
>>> table.entries["reverse"].arity(), table.entries["reverse"].call([constant(pa.scalar(12))]).constant.as_py()
('1 argument', '21')
>>> _ = table.function("left", takes=[text, whole("the length of left")])(lambda text, length: text)
>>> table.entries["left"].call([constant(pa.scalar("abc")), constant(pa.scalar(None))]).constant.as_py() is None
True
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeAlias

import pyarrow as pa

from ddflow.expressions.casts import as_text, convert
from ddflow.expressions.compare import checked_regex, literal_text
from ddflow.expressions.elsewhere import fewer
from ddflow.expressions.node import Compute, Node, Refusal, apply, null
from ddflow.expressions.types import DATE, DOUBLE, INSTANT, NULL, STRING, is_number, is_time, sql_name

Build: TypeAlias = Callable[..., Node]
Take: TypeAlias = Callable[[Node, str], Any]
"""Makes of an argument what a builder wants, of a function by its name; None where the call is null with it.

Raises Refusal for an argument that does not fit.
"""


@dataclass(frozen=True, slots=True)
class Function:
    """One function: ``build`` gets the arguments as ``takes`` converts them.

    ``least``: the least number of arguments.  ``more``: whether any number may follow, converted like the last.
    ``of_null``: the type of a call that is null because a literal is null.
    """

    name: str
    build: Build
    takes: Sequence[Take]
    least: int
    more: bool
    of_null: pa.DataType

    def arity(self) -> str:
        """Describe the number of its arguments, in words."""
        if self.more:
            return f"{self.least} or more arguments"
        if self.least != len(self.takes):
            return f"{self.least} to {len(self.takes)} arguments"
        return f"{self.least} argument{'' if self.least == 1 else 's'}"

    def call(self, arguments: list[Node]) -> Node:
        """Build the node of a call. Raises Refusal for a wrong number of arguments and for one that does not fit."""
        count = len(arguments)
        if count < self.least or (count > len(self.takes) and not self.more):
            raise Refusal(f"{self.name} takes {self.arity()}, and this gives {count}", fewer(self.name))
        takes = chain(self.takes, repeat(self.takes[-1]))
        given = [take(node, self.name) for take, node in zip(takes, arguments, strict=False)]
        return null(self.of_null) if any(each is None for each in given) else self.build(*given)


@dataclass
class Table:
    """The functions of one family, by lower-case name."""

    entries: dict[str, Function] = field(default_factory=dict)

    def function(
        self,
        *names: str,
        takes: Sequence[Take],
        least: int | None = None,
        more: bool = False,
        of_null: pa.DataType = STRING,
    ) -> Callable[[Build], Build]:
        """Enter the decorated builder under all ``names``.  The rest: see `Function`."""

        def enter(build: Build) -> Build:
            for name in names:
                self.entries[name] = Function(name, build, takes, len(takes) if least is None else least, more, of_null)
            return build

        return enter

    def row(self, compute: Compute, *names: str, takes: Sequence[Take], more: bool = False) -> None:
        """Enter a function that is one computation over what it takes."""
        self.function(*names, takes=takes, more=more)(partial(apply, compute))


def same(node: Node, _: str) -> Node:
    """Return the argument unchanged."""
    return node


def text(node: Node, _: str) -> Node:
    """Cast the argument to text."""
    return as_text(node)


def number(node: Node, name: str) -> Node:
    """Take a number; cast text and null to double."""
    if node.type in (STRING, NULL):
        return convert(node, DOUBLE)
    if not is_number(node.type):
        raise Refusal(f"{name} takes a number, and this is {sql_name(node.type)}", "cast to a number first")
    return node


def double(node: Node, name: str) -> Node:
    """Cast any number to double."""
    return convert(number(node, name), DOUBLE)


def date(node: Node, name: str) -> Node:
    """Cast a timestamp or a text to a date."""
    return convert(_of_time(node, name, "date"), DATE)


def moment(node: Node, name: str) -> Node:
    """Cast a date or a text to a timestamp."""
    node = _of_time(node, name, "timestamp")
    return node if is_time(node.type) else convert(node, INSTANT)


def _of_time(node: Node, name: str, what: str) -> Node:
    if node.type not in (DATE, STRING, NULL) and not is_time(node.type):
        raise Refusal(f"{name} takes a {what}, and this is {sql_name(node.type)}", f"cast to {what} first")
    return node


def whole(place: str) -> Take:
    """Take the value of an integer literal; ``place`` names the argument in errors."""
    return lambda node, _: whole_of(node, place)


def literal(place: str) -> Take:
    """Take the value of a text literal."""
    return lambda node, _: literal_text(node, place)


def regex(place: str) -> Take:
    """Take a text literal that is a regular expression."""
    return lambda node, _: checked_regex(node, place)


def whole_of(node: Node, place: str) -> int | None:
    """Return the value of a constant integer, None for a null. Raises Refusal if it varies by row or is no integer."""
    value = None if node.constant is None else node.constant.as_py()
    if node.constant is None or not (value is None or type(value) is int):
        raise Refusal(f"{place} is not an integer literal", "write it as a literal: it is the same for all rows")
    return value
