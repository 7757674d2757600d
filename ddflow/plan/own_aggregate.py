"""Aggregates of one's own: a state of numbers, to which a value is added, and from which it is taken back.

Invariant: a state depends on the values that are there, and not on their order or on those that came and went; the
functions must see to that, and `ddflow.testing.aggregate_laws` tries it. Nothing of a function is kept in a state but
its name and a digest of its code.

>>> total = Aggregate((0,), lambda s, x: (s[0] + x,), lambda s, x: (s[0] - x,), lambda s: s[0], type=int)
>>> total("amount * 2").sql, total.type
('amount * 2', DataType(int64))
>>> Aggregate((0, "a"), None, None, None)
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: dd.Aggregate: zero= is (0, 'a'); give a tuple of integers and floats, 1 to 16 of them
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ddflow.columns.declared import to_type
from ddflow.errors import Option, SpecError, cut

MOST: Final = 16
"""Numbers in a state."""
TYPES: Final = (pa.int64(), pa.float64(), pa.bool_())
"""Of results."""


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of one's own, for `Collection.agg`: ``agg(spread=my_aggregate("amount"))``.

    The functions are compiled by numba.  A value that is null is skipped; one that is there m times is added m times,
    and one that is there less than zero times is taken back as often.  A value may be taken back before it is added.

    Parameters
    ----------
    zero : tuple of int and float
        The state of no values: 1 to 16 numbers, each kept as an int64 or a double, as it is written here.
    add : callable
        From a state and a value to the state with it: a tuple of the same types.
    retract : callable
        From a state and a value to the state without it.
    result : callable
        From a state to a number.  Of no values but nulls the result is null, and it is not called.
    type : {float, int, bool}
        Of the result; or "double", "int64", "boolean".

    Raises
    ------
    SpecError, NotArrow
        For what is none of these.

    Notes
    -----
    Sums of floats in a state are rounded at each addition, so what was added does not leave without a trace: keep
    integers, or numbers whose sums are exact.  The plan of a state holds the names of the functions and a digest of
    their code; a flow with other functions is `PlanChanged`.

    Examples
    --------
    >>> import ddflow as dd
    >>> def add(state, x):
    ...     return state[0] ^ x, state[1] + 1
    >>> def retract(state, x):
    ...     return state[0] ^ x, state[1] - 1
    >>> def result(state):
    ...     return state[0]
    >>> parity = dd.Aggregate((0, 0), add, retract, result, type=int)
    >>> flow = dd.Flow()
    >>> rows = flow.upserts("rows", {"id": int, "n": int}, dd.Upsert(key="id"))
    >>> _ = flow.output("out", rows.agg(p=parity("n"), rows="count(*)"))
    >>> with flow.open() as engine:
    ...     engine.step({"rows": {"id": [1, 2], "n": [5, 6]}}, time=0)["out"].to_pylist()
    [{'p': 3, 'rows': 2, '_time': 0, '_diff': 1}]
    """

    zero: tuple[int | float, ...]
    add: Callable[..., Any]
    retract: Callable[..., Any]
    result: Callable[..., Any]
    type: Any = float

    def __post_init__(self) -> None:
        given = self.zero
        numbers = isinstance(given, tuple) and all(type(each) in (int, float) for each in given)
        if not (numbers and 1 <= len(given) <= MOST):
            found = f"zero= is {cut(repr(given))}"
            raise SpecError("dd.Aggregate", found, f"give a tuple of integers and floats, 1 to {MOST} of them")
        for name in ("add", "retract", "result"):
            if not callable(getattr(self, name)):
                raise SpecError(
                    "dd.Aggregate", Option(name) + f" is {cut(repr(getattr(self, name)))}", "give a function"
                )
        kind = to_type(self.type, "dd.Aggregate, type=")
        if kind not in TYPES:
            raise SpecError("dd.Aggregate", f"type= is {cut(repr(kind))}", "give float, int or bool")
        object.__setattr__(self, "type", kind)

    def __call__(self, sql: str) -> AppliedAggregate:
        """Apply the aggregate to an expression, for `Collection.agg`.

        Parameters
        ----------
        sql : str
            The expression to aggregate: SQL of an integer, a float or a boolean.

        Returns
        -------
        AppliedAggregate
            For `Collection.agg`, in place of a text.
        """
        if not isinstance(sql, str):
            raise SpecError("dd.Aggregate", f"it is called with {cut(repr(sql))}", "give SQL, as in mine('amount')")
        return AppliedAggregate(self, sql)

    @property
    def functions(self) -> tuple[Any, Any, Any]:
        """The functions add, retract and result."""
        return self.add, self.retract, self.result


class AppliedAggregate(NamedTuple):
    """A user-defined aggregate and its expression."""

    of: Aggregate
    sql: str
