"""A table of SQL functions: name, how many arguments, and how nodes of arguments become the node of the call.

Invariant: a builder is only called with as many arguments as its entry allows, so it may unpack them. Nothing much is,
here; it is a place of its own so that each family of functions is one file that knows nothing of the others. Lookup,
and what to say of an unknown name, is in ``functions``.

>>> table = Table()
>>> @table.function("twice", arguments=(1, 1))
... def twice(node):
...     return node
>>> table.entries["twice"].arity()
'1 argument'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ddflow.expressions.node import Node, Refusal

Build: TypeAlias = Callable[..., Node]


@dataclass(frozen=True, slots=True)
class Function:
    """One function: ``build`` takes ``least`` to ``most`` nodes, any number from ``least`` when ``most`` is None."""

    name: str
    build: Build
    least: int
    most: int | None

    def arity(self) -> str:
        """How many arguments it takes, in words."""
        if self.most is None:
            return f"{self.least} or more arguments"
        if self.least != self.most:
            return f"{self.least} to {self.most} arguments"
        return f"{self.least} argument{'' if self.least == 1 else 's'}"

    def call(self, arguments: list[Node]) -> Node:
        """The node of a call. Raises Refusal for a wrong number of arguments, and what the builder raises."""
        count = len(arguments)
        if count < self.least or (self.most is not None and count > self.most):
            raise Refusal(f"{self.name} takes {self.arity()}, and this gives {count}", "give as many as it takes")
        return self.build(*arguments)


@dataclass
class Table:
    """The functions of one family, by lower-case name."""

    entries: dict[str, Function] = field(default_factory=dict)

    def function(self, *names: str, arguments: tuple[int, int | None]) -> Callable[[Build], Build]:
        """Enter the decorated builder under all ``names``."""

        def enter(build: Build) -> Build:
            for name in names:
                self.entries[name] = Function(name, build, *arguments)
            return build

        return enter


def whole(node: Node, place: str) -> int | None:
    """The value of a constant integer, None for a null. Raises Refusal when it differs from row to row or is none."""
    value = None if node.constant is None else node.constant.as_py()
    if node.constant is None or not (value is None or type(value) is int):
        raise Refusal(f"{place} is not an integer literal", "write it as a literal: it is the same for all rows")
    return value
