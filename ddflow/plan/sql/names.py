"""What names mean at a place of a query: its tables and their columns, then those of the queries around it.

Invariant: a name gives one tree or an error with its place and the nearest names, as Spark has it: exactly as written
first, else in another case; ``t.a`` is a column of a table, here or around, before it is a field of a column. A name
found in an enclosing query is noted in ``outer`` of all queries between.

>>> from ddflow.expressions.parse import parse
>>> names = Names(None)
>>> names.add("o", {"id": "o.id", "city": "o.city"})
>>> names.resolve(parse("O.City").tree).name, Names(names).resolve(parse("id").tree).name
('o.city', 'o.id')
>>> names.resolve(parse("o.cty").tree)
Traceback (most recent call last):
    ...
ddflow.errors.ExpressionError: flow.sql: there is no column 'o.cty' at line 1, column 1; did you mean 'city'? ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from ddflow.columns.names import did_you_mean
from ddflow.expressions.parse import Tree
from ddflow.plan.sql.trees import column, names_of, refused


class Visible(NamedTuple):
    """A column that an unqualified name or ``*`` may mean."""

    alias: str | None
    name: str
    tree: Tree


class Names:
    """The names of a query.  ``around``: those of the query around it.  ``outer``: the logical names that it takes from
    there.  ``hidden``: names of a query around that are not available here, as in a FROM or a WITH.
    """

    def __init__(self, around: Names | None, hidden: Names | None = None) -> None:
        self.around, self.hidden = around, hidden
        self.visible: list[Visible] = []
        self.aliases: dict[str, dict[str, str]] = {}
        self.lateral: dict[str, Callable[[], Tree]] = {}
        """Columns of the select list, which may be asked for where nothing else has the name."""
        self.outer: set[str] = set()

    def add(self, alias: str, names: dict[str, str], named: bool = True) -> None:
        """Add a table, with the logical names of its columns.  ``named``: whether a query can name it."""
        if named:
            self.aliases[alias] = names
        self.visible += [Visible(alias, name, column(logical)) for name, logical in names.items()]

    def joined(self, other: Names) -> Names:
        """Combine these names with those of another table."""
        made = Names(self.around, self.hidden)
        made.visible = [*self.visible, *other.visible]
        made.aliases = {**self.aliases, **other.aliases}
        return made

    def merge(self, index: int, made: Visible, sides: Sequence[Visible]) -> None:
        """Merge two columns into one, by USING.  ``index``: its place, before all columns but the join's keys."""
        self.visible = [each for each in self.visible if not any(each is side for side in sides)]
        self.visible.insert(index, made)

    def drop(self, other: Names) -> None:
        """Remove the tables and columns of another."""
        self.aliases = {alias: names for alias, names in self.aliases.items() if alias not in other.aliases}
        self.visible = [each for each in self.visible if not any(each is gone for gone in other.visible)]

    def one(self, name: str, written: Tree) -> Visible:
        """Find the column that an unqualified name means here.  Raises `ExpressionError`."""
        found = _find_visible(name, self.visible)
        if len(found) != 1:
            raise self.missing(name, found, written)
        return found[0]

    def resolve(self, tree: Tree, first: Mapping[str, Callable[[], Tree]] | None = None) -> Tree:
        """Resolve a column to its tree.  ``first``: names that take precedence.  Raises `ExpressionError`."""
        parts = [part.name for part in tree.parts]
        early = find(parts[0], first or {}) if len(parts) == 1 else None
        if first and early is not None:
            return first[early]()
        for look in (_find_qualified, _find_plain) if len(parts) > 1 else (_find_plain,):
            here: Names | None = self
            between = list[Names]()
            while here is not None:
                found = look(here, parts, tree)
                if found is not None:
                    for each in between:
                        each.outer |= names_of(found[0])
                    made = _fields(*found)
                    made.meta.update(tree.parts[0].meta)
                    return made
                between.append(here)
                here = here.around
        late = find(parts[0], self.lateral)
        if late is not None:
            return _fields(self.lateral[late](), parts[1:])
        if self._hides(parts):
            hidden = f"{'.'.join(parts)!r} is a column of a query around, which FROM, ON and WITH cannot ask for"
            raise refused(tree, hidden, "ask for it in the WHERE or the select list of the subquery itself")
        raise self.missing(".".join(parts), [], tree)

    def _hides(self, parts: Sequence[str]) -> bool:
        """Whether a name means a column of a query around that cannot be asked for."""
        here, beyond = self, False
        while (around := here.around or here.hidden) is not None:
            here, beyond = around, beyond or here.around is None
            found = len(parts) > 1 and _find_qualified(here, parts, None)
            if beyond and (found or _find_visible(parts[0], here.visible)):
                return True
        return False

    def missing(self, name: str, found: Sequence[Visible], written: Tree) -> Exception:
        """Build the error for an unknown or ambiguous name."""
        if found:
            could = ", ".join(f"{each.alias}.{each.name}" for each in found)
            return refused(written, f"the column {name!r} could be any of {could}", "write the table's name before it")
        known = list(dict.fromkeys(each.name for each in self.visible))
        remedy = did_you_mean(name.rpartition(".")[2], known)
        if any(part.args.get("quoted") for part in written.find_all(exp.Identifier)):
            remedy = f"{remedy}; double quotes are around names: write '{name}' if it is a text"
        return refused(written, f"there is no column {name!r}", remedy)

    def star(self, written: Tree, alias: str | None = None) -> list[Visible]:
        """List the columns of ``*`` or ``alias.*``."""
        if alias is None:
            return list(self.visible)
        found = find(alias, self.aliases)
        if found is None:
            raise refused(written, f"there is no table {alias!r}", did_you_mean(alias, self.aliases))
        return [Visible(found, name, column(logical)) for name, logical in self.aliases[found].items()]


def find(name: str, among: Iterable[str]) -> str | None:
    """Find a name: exactly as written, or the only one that differs in case."""
    known = list(among)
    folded = [each for each in known if each.casefold() == name.casefold()]
    return name if name in known else folded[0] if len(folded) == 1 else None


def _find_qualified(here: Names, parts: Sequence[str], _: Tree) -> tuple[Tree, Sequence[str]] | None:
    """Find a column of a named table, and the fields that follow it."""
    alias = find(parts[0], here.aliases)
    name = None if alias is None else find(parts[1], here.aliases[alias])
    return None if alias is None or name is None else (column(here.aliases[alias][name]), parts[2:])


def _find_plain(here: Names, parts: Sequence[str], written: Tree) -> tuple[Tree, Sequence[str]] | None:
    """Find a column of any table."""
    found = _find_visible(parts[0], here.visible)
    if len(found) > 1:
        raise here.missing(parts[0], found, written)
    return (found[0].tree.copy(), parts[1:]) if found else None


def _find_visible(name: str, among: Sequence[Visible]) -> list[Visible]:
    exact = [each for each in among if each.name == name]
    return exact or [each for each in among if each.name.casefold() == name.casefold()]


def _fields(tree: Tree, fields: Sequence[str]) -> Any:
    for name in fields:
        tree = exp.Dot(this=tree, expression=exp.Identifier(this=name, quoted=True))
    return tree
