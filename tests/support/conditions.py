"""Pair the tests' SQL conditions and computed columns with equivalent Python functions.

The functions follow SQL's three-valued logic (None is unknown) and Spark's order of doubles: NaN equals NaN and is the
greatest. ``not (n > 1)`` of a null is null, and ``f > 0.5`` of a NaN is true. The twin uses the functions, and the
engine uses the SQL. Expressions themselves are tested in ``test_expressions``.

>>> CONDITIONS["n > 1"]({"n": None}) is None
True
>>> CONDITIONS["f > 0.5"]({"f": float("nan")})
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Event = Mapping[str, Any]


def known(column: str, holds: Callable[[Any], Any]) -> Callable[[Event], Any]:
    """Return a function of one column. The result of the function is null if the column is null."""
    return lambda event: None if event[column] is None else holds(event[column])


def both(a: bool | None, b: bool | None) -> bool | None:
    """Compute SQL's AND."""
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: bool | None, b: bool | None) -> bool | None:
    """Compute SQL's OR."""
    return True if a is True or b is True else None if a is None or b is None else False


CONDITIONS: dict[str, Callable[[Event], bool | None]] = {
    "n > 1": known("n", lambda n: n > 1),
    "not (n > 1)": known("n", lambda n: not n > 1),
    "n is null": lambda event: event["n"] is None,
    "n >= 0": known("n", lambda n: n >= 0),
    "n in (0, 2)": known("n", lambda n: n in (0, 2)),
    "s = 'a'": known("s", lambda s: s == "a"),
    "s like 'b%'": known("s", lambda s: s.startswith("b")),
    "s <> ''": known("s", lambda s: s != ""),
    "f > 0.5": known("f", lambda f: f != f or f > 0.5),
    "f = 0": known("f", lambda f: f == 0),
    "isnan(f)": lambda event: event["f"] is not None and event["f"] != event["f"],
    "b": lambda event: event["b"],
    "not b": known("b", lambda b: not b),
    "n > 0 and s = 'a'": lambda event: both(known("n", lambda n: n > 0)(event), known("s", lambda s: s == "a")(event)),
    "n > 1 or b": lambda event: either(known("n", lambda n: n > 1)(event), event["b"]),
    "v like 'z%'": known("v", lambda v: v.startswith("z")),
    "v is null": lambda event: event["v"] is None,
    "a <> 'three'": known("a", lambda a: a != "three"),
}
"""SQL text of a condition -> the equivalent Python function of a row."""

COMPUTED: dict[str, Callable[[Event], Any]] = {
    "n + 1": known("n", lambda n: n + 1),
    "coalesce(s, 'none')": lambda event: "none" if event["s"] is None else event["s"],
    "upper(s)": known("s", str.upper),
    "n > 1": CONDITIONS["n > 1"],
    "b": lambda event: event["b"],
    "f": lambda event: event["f"],
    "n": lambda event: event["n"],
    "s": lambda event: event["s"],
    "k": lambda event: event["k"],
    "v": lambda event: event["v"],
}
"""SQL text of a computed column -> the equivalent Python function of a row."""


def columns_in(sql: str) -> set[str]:
    """Return the columns that occur in one of these SQL texts. All names of columns have one letter."""
    words = "".join(c if c.isalnum() or c == "'" else " " for c in sql).split()
    return {word for word in words if len(word) == 1 and word.isalpha()}
