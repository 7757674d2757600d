"""Kernels that are not compiled yet, run as the Python that they are written in while little goes through them.

Invariant: a call gives the same bits whether its kernel is interpreted or compiled. A kernel calls other kernels: an
interpreted one runs with the globals of its module, in which functions stand in the place of kernels. Scalars come back
as Python's own, as they do from compiled code.

Compiling takes seconds, interpreting some microseconds a row. So the first few calls of a kernel (`FIRST`) may be
interpreted while their arrays are small (`SMALL`) and this process has not yet interpreted for long (`Patience`). A
process that goes on compiles after that.

Limits: it knows nothing of caches. `compile.Kernel` asks it only for what has no compiled form.

>>> def add(a, b):
...     return a + b
>>> interpreted(add)(np.int64(1), 2)
3
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from types import FunctionType
from typing import Any, Final

import numpy as np

SMALL: Final = 1 << 15
"""Elements in the arrays of a call, at most; an interpreted kernel takes microseconds for each."""


FIRST: Final = 16
"""Calls of a kernel that are interpreted, at most: a process that goes on for longer wants the compiled form."""


class Patience:
    """How long this process may still interpret kernels.

    Attributes
    ----------
    seconds : float
        CPU seconds that are left; below 0, kernels are compiled at once.
    """

    def __init__(self, seconds: float, calls: int = FIRST) -> None:
        self.seconds, self.most = seconds, calls
        self._calls: Counter[str] = Counter()

    def allows(self, kernel: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a call of a kernel with these arguments may be interpreted, which counts then.  O(arguments)."""
        allowed = self.seconds > 0 and self._calls[kernel] < self.most and sum(map(_elements, arguments)) <= SMALL
        self._calls[kernel] += allowed
        return allowed

    @contextmanager
    def over(self) -> Iterator[None]:
        """Compile every kernel that is called within the block."""
        left, self.seconds = self.seconds, 0.0
        try:
            yield
        finally:
            self.seconds = left


PATIENCE = Patience(2.0)


@functools.cache
def interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel's function, to be called in its place.  The time that it takes is taken from `PATIENCE`."""
    plain = _among(function, _globals(function.__module__))

    def run(*arguments: Any) -> Any:
        began = thread_time()
        with np.errstate(all="ignore"):
            result = plain(*arguments)
        PATIENCE.seconds -= thread_time() - began
        return _scalars(result)

    return run


@functools.cache
def _globals(module: str) -> dict[str, Any]:
    """Copy the globals of a module, with its kernels' functions in the place of the kernels."""
    scope = dict(vars(sys.modules[module]))
    for name, value in list(scope.items()):
        if (function := getattr(value, "py_func", None)) is not None:
            own = function.__module__ == module
            scope[name] = _among(function, scope if own else _globals(function.__module__))
    return scope


def _among(function: Any, scope: dict[str, Any]) -> FunctionType:
    """Copy a function with other globals."""
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)


def _scalars(result: Any) -> Any:
    """Convert numpy's scalars in a result to Python's, as compiled code returns them."""
    if isinstance(result, np.generic) and not isinstance(result, np.void):
        return result.item()
    if isinstance(result, tuple):
        values = map(_scalars, result)
        return result._make(values) if hasattr(result, "_make") else tuple(values)
    return result


def _elements(argument: Any) -> int:
    if isinstance(argument, np.ndarray):
        return argument.size
    return sum(map(_elements, argument)) if isinstance(argument, tuple) else 0
