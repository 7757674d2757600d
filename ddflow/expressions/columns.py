"""Names in an expression to columns of a schema: exact first, else the one that differs only in case, as Spark does.

Invariant: a name gives exactly one column or a Refusal that says why; the columns that were asked for are numbered in
the order of their first mention, which is their order in the frame. ``a.b`` is a field of a struct and `` `a.b` `` a
column with a dot in its name, and a column may be there twice. No values are read.

>>> import pyarrow as pa
>>> columns = Columns(pa.schema({"City": pa.string(), "at": pa.struct({"x": pa.int32()})}))
>>> columns.resolve(["at", "X"]).type, columns.resolve(["city"]).type, columns.names
(DataType(int32), DataType(string), ['at', 'City'])
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.expressions.node import Node, Refusal, apply, column
from ddflow.expressions.types import sql_name, working


@dataclass
class Columns:
    """The columns of ``schema`` that an expression reads: ``names``, in the order of first mention."""

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
