"""Aggregates of one's own, compiled into the loops that fold them: a state is a tuple of int64 and doubles.

Invariant: a state lies in as many words as it has numbers, -0.0 as 0.0, so equal states are equal bytes. Each aggregate
has loops of its own, compiled with its functions and kept as long as the process lives.

>>> import numpy as np
>>> kinds = (False, True)
>>> loops = Loops.of(lambda s, x: (s[0] + 1, s[1] + x), lambda s, x: (s[0] - 1, s[1] - x), lambda s: s[1], kinds)
>>> ints = lambda *values: np.array(values, np.int64)
>>> before, out = np.zeros((1, 2), np.int64), np.zeros((1, 2), np.int64)
>>> cells = ints(0, 1), ints(0, 2), ints(0, 1)
>>> loops.fold(*cells, np.ones(2, np.uint8), np.array([0.5, 2.0]), ints(3, -1), before, before.view(float), out,
...            out.view(float))
>>> int(out[0, 0]), float(out.view(float)[0, 1])
(2, -0.5)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numba
from numba.core import config

Kinds = tuple[bool, ...]
"""Of the numbers of a state: whether each is a double."""


@lru_cache(maxsize=1024)
def _compile_inline(function: Any) -> Any:
    if hasattr(function, "py_func"):
        return function.py_func if config.DISABLE_JIT else function
    return function if config.DISABLE_JIT else numba.njit(function)


def _loader(kinds: Kinds) -> Any:
    """Build a function that makes a tuple of the words of a row.  A tuple of several types is built one by one."""

    def one(at: int, double: bool) -> Any:
        def of_double(ints: Any, doubles: Any, row: Any) -> Any:
            return (doubles[row, at],)

        def of_int(ints: Any, doubles: Any, row: Any) -> Any:
            return (ints[row, at],)

        return _compile_inline(of_double if double else of_int)

    made = one(0, kinds[0])
    for at, double in enumerate(kinds[1:], 1):
        made = _join_loaders(made, one(at, double))
    return made


def _join_loaders(first: Any, last: Any) -> Any:
    def both(ints: Any, doubles: Any, row: Any) -> Any:
        return first(ints, doubles, row) + last(ints, doubles, row)

    return _compile_inline(both)


def _storer(kinds: Kinds) -> Any:
    """Build a function that writes a tuple to the words of a row."""

    def one(at: int, double: bool, before: Any) -> Any:
        def of_double(state: Any, ints: Any, doubles: Any, row: Any) -> None:
            before(state, ints, doubles, row)
            doubles[row, at] = state[at] + 0.0

        def of_int(state: Any, ints: Any, doubles: Any, row: Any) -> None:
            before(state, ints, doubles, row)
            ints[row, at] = state[at]

        return _compile_inline(of_double if double else of_int)

    def nothing(state: Any, ints: Any, doubles: Any, row: Any) -> None:
        pass

    made = _compile_inline(nothing)
    for at, double in enumerate(kinds):
        made = one(at, double, made)
    return made


class Loops(NamedTuple):
    """Of an aggregate.  ``fold``: states after cells, of rows that are present, by a flag each; by none, of all.
    ``results``: of states."""

    fold: Callable[..., None]
    results: Callable[..., None]

    @classmethod
    def of(cls, add: Any, retract: Any, result: Any, kinds: Kinds) -> Loops:
        """Those of some functions."""
        return _loops(add, retract, result, kinds)


@lru_cache(maxsize=64)
def _loops(add: Any, retract: Any, result: Any, kinds: Kinds) -> Loops:
    add, retract, result = (_compile_inline(each) for each in (add, retract, result))
    load, store = _loader(kinds), _storer(kinds)

    def fold(
        rows: Any,
        starts: Any,
        firsts: Any,
        present: Any,
        values: Any,
        diffs: Any,
        ints: Any,
        doubles: Any,
        out_ints: Any,
        out_doubles: Any,
    ) -> None:
        every = present.size == 0
        for group in range(firsts.size - 1):
            state = load(ints, doubles, group)
            for cell in range(firsts[group], firsts[group + 1]):
                for place in range(starts[cell], starts[cell + 1]):
                    row = rows[place]
                    if every or present[row] != 0:
                        for _ in range(diffs[row]):
                            state = add(state, values[row])
                        for _ in range(-diffs[row]):
                            state = retract(state, values[row])
                store(state, out_ints, out_doubles, cell)

    def results(ints: Any, doubles: Any, wanted: Any, out: Any) -> None:
        for row in range(wanted.size):
            if wanted[row] != 0:
                out[row] = result(load(ints, doubles, row))

    return Loops(_compile_inline(fold), _compile_inline(results))


@lru_cache(maxsize=256)
def objection(functions: tuple[Any, Any, Any], kinds: Kinds, value: Any, whole: bool) -> str:
    """Describe the fault of functions of such states and values, "" for none.  ``whole``: results must be integers.

    Without a compiler, nothing is checked.
    """
    if config.DISABLE_JIT:
        return ""
    state = numba.types.Tuple([numba.types.float64 if each else numba.types.int64 for each in kinds])
    for name, function in zip(("add", "retract", "result"), functions, strict=True):
        made = _compile_inline(function)
        try:
            given = (state, numba.typeof(value)) if name != "result" else (state,)
            made.compile(given)
            found = made.overloads[given].signature.return_type
        except Exception as error:
            return f"numba cannot compile {name} of {given}: {str(error).strip().splitlines()[0]}"
        if name != "result" and found != state:
            return f"{name} gives {found}, and a state is {state}"
        exact = isinstance(found, numba.types.Integer | numba.types.Boolean)
        if name == "result" and not (exact or (isinstance(found, numba.types.Float) and not whole)):
            return f"result gives {found}"
    return ""
