"""Strategies: what becomes of a cell that is held and a cell that is given.

Invariant: a strategy is a value (frozen, comparable, with a JSON form) that says what to do and does nothing; the folds
are in ``folds`` and ``kernels.fold``. A name must mean the same in a spec, in its JSON, in messages and in the twin;
and which types it works on is part of it, so that a spec is refused, and not a step. (Pinot, "Upsert", Partial upsert
strategies; Paimon, aggregation functions. The rulings: docs/semantics.md, section 9.)

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
"""Under versions of cells any arrival gives the same, with deletes too."""
COMMUTING: Final = frozenset({"max", "min", "sum", "bool_and", "bool_or"})
"""What an event adds does not depend on when: under versions of cells every event counts, late ones too."""
WITHOUT_DELETES: Final = COMMUTING | {"first", "first_non_null"}
"""Order-free as well, where nothing deletes."""
LISTS: Final = frozenset({"append", "union", "collect"})


@dataclass(frozen=True, repr=False)
class Strategy:
    """A value that a function of this module makes.  ``parts``: for ``fields``, the strategy of each field named."""

    name: str
    limit: int | None = None
    separator: str | None = None
    parts: tuple[tuple[str, Strategy], ...] | None = None
    default: Strategy | None = None

    def __repr__(self) -> str:
        """Write it as Python code."""
        given = [] if self.parts is None else [f"{dict(self.parts)}"]
        given += [] if self.separator in (None, ",") else [f"{self.separator!r}"]
        for name in ("limit", "default"):
            given += [] if getattr(self, name) is None else [f"{name}={getattr(self, name)!r}"]
        return f"dd.{self.name}({', '.join(given)})"

    def to_json(self) -> Any:
        """Write its name, or an object with its non-default options.  `of_json` reads it."""
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
        """Read the JSON that `to_json` wrote.  Raises `SpecError` for anything else."""
        if isinstance(given, str):
            given = {"name": given}
        if not isinstance(given, dict) or given.get("name") not in MAKERS:
            raise SpecError("a strategy from JSON", repr(given), f"give one of {sorted(MAKERS)}")
        arguments = {name: value for name, value in given.items() if name != "name"}
        parts = arguments.pop("fields", None)
        if "default" in arguments:
            arguments["default"] = cls.of_json(arguments["default"])
        try:
            if parts is not None:
                return fields({name: cls.of_json(each) for name, each in parts.items()}, **arguments)
            return MAKERS[given["name"]](**arguments)
        except (TypeError, AttributeError) as error:
            raise SpecError("a strategy from JSON", f"{given!r} ({error})", "give what to_json() wrote") from None

    def supports_type(self, kind: pa.DataType) -> bool:
        """Whether it can merge cells of a type.  O(1), for ``fields`` O(fields)."""
        if self.name == "fields":
            return bool(pat.is_struct(kind)) and not self.list_unsupported_fields(kind)
        return WORKS[self.name][0](kind)

    @property
    def supported_types_text(self) -> str:
        """The types it works on, in words."""
        return WORKS[self.name][1]

    def list_unsupported_fields(self, kind: pa.DataType) -> list[str]:
        """List the fields that a struct lacks, or that their strategy cannot merge."""
        there = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        named = dict(self.parts or ())
        out = [name for name in named if name not in there]
        default = self.default or last_non_null()
        return out + [name for name, of in there.items() if not named.get(name, default).supports_type(of)]


def _build_limited_strategy(name: str, limit: int | None) -> Strategy:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise SpecError(f"dd.{name}(limit={limit!r})", "that is no length", "give a whole number, 1 or more")
    return Strategy(name, limit=limit)


def last() -> Strategy:
    """Keep the given cell, null too.  A column that the batch lacks leaves the held cell.

    Works on all types.  (Pinot: FORCE_OVERWRITE.)
    """
    return Strategy("last")


def last_non_null() -> Strategy:
    """Keep the given cell; where it is null, the held one.  This is the default.

    Works on all types.  (Pinot: OVERWRITE.)
    """
    return Strategy("last_non_null")


def first() -> Strategy:
    """Keep the cell of the row's first event, null too.  Works on all types."""
    return Strategy("first")


def first_non_null() -> Strategy:
    """Keep the held cell; where it is null, the given one.

    Works on all types.  (Pinot: IGNORE.)
    """
    return Strategy("first_non_null")


def max() -> Strategy:
    """Keep the greater cell.  A null loses against any value; NaN is the greatest number.

    Works on numbers, text, binary, dates, times and decimals.
    """
    return Strategy("max")


def min() -> Strategy:
    """Keep the smaller cell.  A null loses against any value; NaN is the greatest number.

    Works on numbers, text, binary, dates, times and decimals.
    """
    return Strategy("min")


def sum() -> Strategy:
    """Add the cells up, in the column's type.  A null adds nothing.

    Works on integers, float32, float64, durations, and decimals of up to 38 digits.  A sum that does not fit the type
    is a `MergeOverflow`, which refuses the step.  (Pinot: INCREMENT.)
    """
    return Strategy("sum")


def bool_and() -> Strategy:
    """Check whether all cells were true.  A null does not count.  Works on booleans."""
    return Strategy("bool_and")


def bool_or() -> Strategy:
    """Check whether one cell was true.  A null does not count.  Works on booleans."""
    return Strategy("bool_or")


def append(limit: int | None = None) -> Strategy:
    """Append the given list to the held one.  Works on lists.  (Pinot: APPEND.)

    Parameters
    ----------
    limit : int, optional
        How many elements the list may have, 1 or more.  A longer one is a `ListTooLong`, which refuses the step.

    Raises
    ------
    SpecError
        For a limit that is no length.
    """
    return _build_limited_strategy("append", limit)


def union(limit: int | None = None) -> Strategy:
    """Append the elements of the given list that the held one lacks, in order of first sight.  Works on lists.

    Parameters
    ----------
    limit : int, optional
        As in `append`, with the same error.
    """
    return _build_limited_strategy("union", limit)


def collect(limit: int | None = None) -> Strategy:
    """Collect all given values in a list: the input's column is of a type T, the row's is a list of T.

    Works on all types but lists, for which there is `append`.

    Parameters
    ----------
    limit : int, optional
        As in `append`, with the same error.
    """
    return _build_limited_strategy("collect", limit)


def join_text(separator: str = ",") -> Strategy:
    """Join the held and the given text with ``separator``.  A null adds nothing.  Works on text.

    Parameters
    ----------
    separator : str
        What stands between two texts.

    Raises
    ------
    SpecError
        For a separator that is no text.
    """
    if not isinstance(separator, str):
        raise SpecError(f"dd.join_text({separator!r})", "the separator is no text", "give text, such as ', '")
    return Strategy("join_text", separator=separator)


def fields(parts: Mapping[str, Strategy], default: Strategy | None = None) -> Strategy:
    """Merge a struct field by field.  Works on structs whose fields fit their strategies.

    Parameters
    ----------
    parts : mapping of str to strategy
        A strategy for each field named.
    default : strategy, optional
        For the other fields.  By default `last_non_null`.

    Raises
    ------
    SpecError
        For what is no strategy, and for `collect`, which changes the type of a field.

    Examples
    --------
    >>> fields({"visits": sum()}, default=last())
    dd.fields({'visits': dd.sum()}, default=dd.last())
    """
    if not isinstance(parts, Mapping):
        raise SpecError("dd.fields", f"parts= is {parts!r:.200}", "give {field: strategy}")
    parse_column_names(list(parts), "dd.fields", "parts")
    for name, each in (*parts.items(), *([("default", default)] if default else [])):
        if not isinstance(each, Strategy):
            raise SpecError(f"dd.fields of {name!r}", f"{each!r} is no strategy", "give dd.last(), dd.sum(), ...")
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
    "collect": (lambda kind: not _is_list(kind), "all types but lists, for which dd.append() is"),
    "join_text": (is_text, "text"),
    "fields": (pat.is_struct, "structs whose fields fit"),
}
