"""Declare merge strategies: rules that combine the stored cell with the cell of a new event.

Invariant: a strategy is an immutable value with a JSON form; `ddflow/operators/upsert/folds.py` and
`ddflow/kernels/fold.py` compute it. The name of a strategy means the same in specs, JSON, messages and the reference
model. A strategy declares the types that it supports. So a wrong type is refused when the spec is bound, not in a step.

Sources: Pinot, "Upsert", Partial upsert strategies; Paimon, aggregation functions. Rules: docs/semantics.md, section 9.

>>> union(limit=10)
dd.union(limit=10)
>>> Strategy.of_json(union(limit=10).to_json()) == union(limit=10)
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.names import parse_column_names
from ddflow.columns.schema import is_flat_type, is_text
from ddflow.errors import SpecError

ORDER_FREE: Final = frozenset({"last", "last_non_null"})
"""Strategies whose result is independent of arrival order with ``versions="cell"``, even if there are deletes."""
COMMUTING: Final = frozenset({"max", "min", "sum", "bool_and", "bool_or"})
"""Commutative strategies. With ``versions="cell"`` every event counts, even a late event."""
WITHOUT_DELETES: Final = COMMUTING | {"first", "first_non_null"}
"""Strategies whose result is independent of arrival order only if the spec has no deletes."""
LISTS: Final = frozenset({"append", "union", "collect"})


@dataclass(frozen=True, repr=False)
class Strategy:
    """A merge strategy, created by functions of this module. ``parts``: the strategy of each field, for ``fields``."""

    name: str
    limit: int | None = None
    separator: str | None = None
    parts: tuple[tuple[str, Strategy], ...] | None = None
    default: Strategy | None = None

    def __repr__(self) -> str:
        """Write the strategy as Python code."""
        given = [] if self.parts is None else [f"{dict(self.parts)}"]
        given += [] if self.separator in (None, ",") else [f"{self.separator!r}"]
        for name in ("limit", "default"):
            given += [] if getattr(self, name) is None else [f"{name}={getattr(self, name)!r}"]
        return f"dd.{self.name}({', '.join(given)})"

    def to_json(self) -> Any:
        """Write the strategy as JSON for `of_json`: its name, or an object with its name and non-default options."""
        every = {
            "limit": self.limit,
            "separator": self.separator,
            "fields": None if self.parts is None else {name: each.to_json() for name, each in self.parts},
            "default": None if self.default is None else self.default.to_json(),
        }
        given = {name: value for name, value in every.items() if value is not None}
        return {"name": self.name} | given if given else self.name

    @classmethod
    def of_json(cls, given: Any) -> Strategy:
        """Read the JSON that `to_json` writes. Raises `SpecError` if the JSON is invalid."""
        if isinstance(given, str):
            given = {"name": given}
        if not isinstance(given, dict) or given.get("name") not in MAKERS:
            raise SpecError("a strategy from JSON", repr(given), f"use one of {sorted(MAKERS)}")
        arguments = {name: value for name, value in given.items() if name != "name"}
        parts = arguments.pop("fields", None)
        if "default" in arguments:
            arguments["default"] = cls.of_json(arguments["default"])
        try:
            if parts is not None:
                return fields({name: cls.of_json(each) for name, each in parts.items()}, **arguments)
            return MAKERS[given["name"]](**arguments)
        except (TypeError, AttributeError) as error:
            raise SpecError("a strategy from JSON", f"{given!r} ({error})", "pass the result of to_json()") from None

    def supports_type(self, kind: pa.DataType) -> bool:
        """Tell whether the strategy can merge cells of a type. O(1), or O(fields) for the strategy ``fields``."""
        if self.name == "fields":
            return bool(pat.is_struct(kind)) and not self.list_unsupported_fields(kind)
        return WORKS[self.name][0](kind)

    @property
    def supported_types_text(self) -> str:
        """The supported types, as text for messages."""
        return WORKS[self.name][1]

    def list_unsupported_fields(self, kind: pa.DataType) -> list[str]:
        """List the named fields that a struct lacks, and the fields whose strategy cannot merge their type."""
        there = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        named = dict(self.parts or ())
        out = [name for name in named if name not in there]
        default = self.default or last_non_null()
        return out + [name for name, of in there.items() if not named.get(name, default).supports_type(of)]


def _build_limited_strategy(name: str, limit: int | None) -> Strategy:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise SpecError(f"dd.{name}(limit={limit!r})", "that is not a length", "use a whole number, 1 or more")
    return Strategy(name, limit=limit)


def last() -> Strategy:
    """Keep the new cell, even if it is null.  If the batch lacks the column, keep the stored cell.

    Works on all types.  (Pinot: FORCE_OVERWRITE.)
    """
    return Strategy("last")


def last_non_null() -> Strategy:
    """Keep the new cell. If the new cell is null, keep the stored cell. The strategy `last_non_null` is the default.

    Works on all types.  (Pinot: OVERWRITE.)
    """
    return Strategy("last_non_null")


def first() -> Strategy:
    """Keep the cell of the row's first event, even if it is null.  Works on all types."""
    return Strategy("first")


def first_non_null() -> Strategy:
    """Keep the stored cell. If the stored cell is null, keep the new cell.

    Works on all types.  (Pinot: IGNORE.)
    """
    return Strategy("first_non_null")


def max() -> Strategy:
    """Keep the greater cell.  Any value wins over null, and NaN is the greatest number.

    Works on numbers, text, binary, dates, times and decimals.
    """
    return Strategy("max")


def min() -> Strategy:
    """Keep the smaller cell.  Any value wins over null, and NaN is the greatest number.

    Works on numbers, text, binary, dates, times and decimals.
    """
    return Strategy("min")


def sum() -> Strategy:
    """Sum the cells, in the column's type.  Nulls are ignored.

    Works on integers, float32, float64, durations, and decimals of up to 38 digits.  If a sum does not fit the type,
    the step fails with `MergeOverflow`.  (Pinot: INCREMENT.)
    """
    return Strategy("sum")


def bool_and() -> Strategy:
    """Check whether all cells are true.  Nulls are ignored.  Works on booleans."""
    return Strategy("bool_and")


def bool_or() -> Strategy:
    """Check whether any cell is true.  Nulls are ignored.  Works on booleans."""
    return Strategy("bool_or")


def append(limit: int | None = None) -> Strategy:
    """Append the new list to the stored list.  Works on lists.  (Pinot: APPEND.)

    Parameters
    ----------
    limit : int, optional
        The maximum length of the list, 1 or more.  If a list gets longer, the step fails with `ListTooLong`.

    Raises
    ------
    SpecError
        If the limit is not a whole number of 1 or more.
    """
    return _build_limited_strategy("append", limit)


def union(limit: int | None = None) -> Strategy:
    """Append the elements of the new list that are not in the stored list, in order of first appearance.

    Works on lists.

    Parameters
    ----------
    limit : int, optional
        The maximum length of the list, with the same errors as in `append`.
    """
    return _build_limited_strategy("union", limit)


def collect(limit: int | None = None) -> Strategy:
    """Collect the values of all events in a list.

    If the input's column has type T, the row's column has type list of T. Works on all types except lists. For lists,
    use `append`.

    Parameters
    ----------
    limit : int, optional
        The maximum length of the list, with the same errors as in `append`.
    """
    return _build_limited_strategy("collect", limit)


def join_text(separator: str = ",") -> Strategy:
    """Join the stored text and the new text with ``separator`` between the two. Nulls are ignored. Works on text.

    Parameters
    ----------
    separator : str
        The text between two texts.

    Raises
    ------
    SpecError
        If the separator is not text.
    """
    if not isinstance(separator, str):
        raise SpecError(f"dd.join_text({separator!r})", "the separator is not text", "pass text, such as ', '")
    return Strategy("join_text", separator=separator)


def fields(parts: Mapping[str, Strategy], default: Strategy | None = None) -> Strategy:
    """Merge a struct field by field. Works on structs if the strategy of each field supports the type of the field.

    Parameters
    ----------
    parts : mapping of str to strategy
        The strategy of each named field.
    default : strategy, optional
        The strategy of the other fields.  By default `last_non_null`.

    Raises
    ------
    SpecError
        If an argument is not a strategy, or is `collect`, which would change the type of a field.

    Examples
    --------
    >>> fields({"visits": sum()}, default=last())
    dd.fields({'visits': dd.sum()}, default=dd.last())
    """
    if not isinstance(parts, Mapping):
        raise SpecError("dd.fields", f"parts= is {parts!r:.200}", "pass {field: strategy}")
    parse_column_names(list(parts), "dd.fields", "parts")
    for name, each in (*parts.items(), *([("default", default)] if default else [])):
        if not isinstance(each, Strategy):
            raise SpecError(f"dd.fields of {name!r}", f"{each!r} is not a strategy", "use dd.last(), dd.sum(), ...")
        if each.name == "collect":
            raise SpecError(f"dd.fields of {name!r}", "dd.collect() changes the type of a column", "use dd.append()")
    return Strategy("fields", parts=tuple(parts.items()), default=default)


def _is_summable(kind: pa.DataType) -> bool:
    return bool(
        pat.is_integer(kind)
        or kind in (pa.float32(), pa.float64())
        or pat.is_duration(kind)
        or pat.is_decimal32(kind)
        or pat.is_decimal64(kind)
        or pat.is_decimal128(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind))


MAKERS: Final[dict[str, Callable[..., Strategy]]] = {
    each.__name__: each
    for each in (
        last,
        last_non_null,
        first,
        first_non_null,
        max,
        min,
        sum,
        bool_and,
        bool_or,
        append,
        union,
        collect,
        join_text,
        fields,
    )
}
WORKS: Final[dict[str, tuple[Callable[[pa.DataType], bool], str]]] = {
    **dict.fromkeys(("last", "last_non_null", "first", "first_non_null"), (lambda kind: True, "all types")),
    **dict.fromkeys(("max", "min"), (is_flat_type, "numbers, text, binary, dates, times, decimals")),
    "sum": (_is_summable, "integers, float32, float64, durations, decimals to 38 digits"),
    "bool_and": (pat.is_boolean, "booleans"),
    "bool_or": (pat.is_boolean, "booleans"),
    "append": (_is_list, "lists"),
    "union": (_is_list, "lists"),
    "collect": (lambda kind: not _is_list(kind), "all types but lists (use dd.append() for lists)"),
    "join_text": (is_text, "text"),
    "fields": (pat.is_struct, "structs whose fields fit"),
}
