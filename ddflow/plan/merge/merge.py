"""Declare a merge: a strategy for each column, or one function for whole rows.

Invariant: a merge has either a function or strategies, because a function replaces all strategies. Each named column
has one strategy. A merge is an immutable value with a JSON form. In JSON, a function is a name and a digest of the
code. A merge does not know the input's columns; `bound.py` checks them.

>>> from ddflow.plan.merge.strategy import first_non_null, sum
>>> merge = Merge({"visits": sum(), "name": first_non_null()})
>>> merge
dd.Merge({'visits': dd.sum(), 'name': dd.first_non_null()})
>>> Merge.of_json(merge.to_json()) == merge
True
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ddflow.columns.names import parse_column_names
from ddflow.errors import SpecError
from ddflow.plan.merge.strategy import Strategy
from ddflow.plan.merge.user_function import KEYS, describe_function, find_qualified_name

Function = Callable[..., Any]


@dataclass(frozen=True, repr=False)
class Merge:
    """Rules to fold events into the stored row: a strategy for each column, or one function.

    Parameters
    ----------
    columns : mapping of str to strategy
        The strategy of each named column, such as ``{"visits": dd.sum()}``.
    default : strategy, optional
        The strategy of the other columns.  By default `ddflow.last_non_null`; inside a group, `ddflow.last`.
    function : callable, optional
        ``f(held, given)``, which merges whole rows instead of the strategies.  It takes the stored and the new rows:
        two record batches with the row's columns and one row for each key.  It returns one such batch.  A null in the
        returned batch clears the cell.
    scalar : bool
        Whether ``function`` is ``f(held, given, out)``.  numba compiles it, and ddflow calls it for each event with
        three records.  A record has a field for each column of numbers, booleans or times (as integers).  A boolean
        field ``<column>_null`` says if the value is null; the value is then 0.  ddflow fills ``out`` as
        `ddflow.last_non_null` does before the call; columns of other types keep that result.

    Raises
    ------
    SpecError
        If ``columns`` does not map columns to strategies, or if there are both strategies and a function.

    Notes
    -----
    ddflow sends the code of a function to Spark. The spec's JSON does not contain its code.

    Examples
    --------
    >>> from ddflow.plan.merge.strategy import last, sum
    >>> Merge({"visits": sum()}, default=last())
    dd.Merge({'visits': dd.sum()}, default=dd.last())
    >>> Merge({"visits": sum()}, function=print)
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: dd.Merge: it has a function, and strategies for ['visits']; omit one of \
them: a function merges the complete row
    """

    columns: Mapping[str, Strategy] | tuple[tuple[str, Strategy], ...] = ()
    default: Strategy | None = None
    function: Function | None = field(default=None)
    scalar: bool = False

    def __post_init__(self) -> None:
        given: Any = self.columns.items() if isinstance(self.columns, Mapping) else self.columns
        try:
            pairs = tuple((name, each) for name, each in given)
        except (TypeError, ValueError):
            raise SpecError("dd.Merge", f"columns= is {given!r:.200}", "pass {column: strategy}") from None
        parse_column_names([name for name, _ in pairs], "dd.Merge", "columns")
        object.__setattr__(self, "columns", pairs)
        for name, each in (*pairs, *([("default", self.default)] if self.default is not None else [])):
            if not isinstance(each, Strategy):
                raise SpecError(f"dd.Merge of {name!r}", f"{each!r} is not a strategy", "use dd.last(), dd.sum(), ...")
        if self.function is None:
            if self.scalar:
                raise SpecError("dd.Merge", "scalar=True without function=", "pass the function, or omit scalar=")
            return
        if not callable(self.function):
            raise SpecError("dd.Merge", f"function= is {type(self.function).__name__}", "pass a function")
        if pairs or self.default is not None:
            named = [name for name, _ in pairs] or ["default"]
            raise SpecError(
                "dd.Merge",
                f"it has a function, and strategies for {named}",
                "omit one of them: a function merges the complete row",
            )

    def __repr__(self) -> str:
        """Write the merge as Python code. A function is written as its name."""
        given = [f"{self.strategies}"] if self.columns else []
        given += [f"default={self.default}"] if self.default is not None else []
        given += [f"function={find_qualified_name(self.function)}"] if self.function is not None else []
        return f"dd.Merge({', '.join(given + ['scalar=True'] * self.scalar)})"

    @property
    def strategies(self) -> dict[str, Strategy]:
        """The strategies, by column."""
        return dict(self.columns)

    def to_json(self) -> Any:
        """Write the merge as JSON. A function is written as a name and a digest of the code.

        `of_json` cannot read functions.
        """
        if self.function is not None:
            return describe_function(self.function) | ({"scalar": True} if self.scalar else {})
        columns = {name: each.to_json() for name, each in self.strategies.items()}
        default = {} if self.default is None else {"default": self.default.to_json()}
        return ({"columns": columns} if columns else {}) | default

    @classmethod
    def of_json(cls, given: Any) -> Self:
        """Read the JSON that `to_json` writes. Raises `SpecError` if the JSON is invalid, or describes a function."""
        if not isinstance(given, dict) or set(given) - {"columns", "default", "scalar", *KEYS}:
            raise SpecError("a merge from JSON", repr(given), "pass the result of to_json()")
        if "function" in given:
            raise SpecError(
                "a merge from JSON",
                f"it is the function {given['function']!r}",
                "pass the flow itself: JSON contains no code",
            )
        columns = given.get("columns", {})
        if not isinstance(columns, dict):
            raise SpecError("a merge from JSON", repr(given), "pass the result of to_json()")
        default = Strategy.of_json(given["default"]) if "default" in given else None
        return cls({name: Strategy.of_json(each) for name, each in columns.items()}, default)
