"""Names of columns as options take them: one as text, or several in their order.

Invariant: what comes back is text, and in an order that somebody gave: a set has none, so what is made of it would
change from process to process.  Whether there are such columns is asked by whoever knows the schema.

>>> column_names("id", "an upsert spec", "key"), column_names(["id", "at"], "an upsert spec", "key")
(('id',), ('id', 'at'))
>>> column_name(["id"], "an upsert spec", "seq")
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: an upsert spec: seq= is ['id']; name one column, as text
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from ddflow.errors import SpecError


def column_names(given: Any, asked: str, option: str) -> tuple[str, ...]:
    """Columns as an option names them: one as text, or several in their order.  Raises `SpecError`."""
    unordered = isinstance(given, Mapping | Set | bytes) or not isinstance(given, Iterable)
    names = (given,) if isinstance(given, str) or unordered else tuple(given)
    for name in names:
        if not isinstance(name, str) or not name:
            found = f"{option}= {'is' if unordered else 'holds'} {name!r:.200}"
            raise SpecError(asked, found, "give column names as text: one, or a list of them")
    return names


def column_name(given: Any, asked: str, option: str) -> str:
    """The column that an option names.  Raises `SpecError`."""
    if not isinstance(given, str) or not given:
        raise SpecError(asked, f"{option}= is {given!r:.200}", "name one column, as text")
    return given
