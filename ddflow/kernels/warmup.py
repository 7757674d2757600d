"""Which kernels there are to compile, and word of each one as it is compiled.

Invariant: ``entries`` are exactly the kernels that Python calls, whether or not their modules were imported before;
those whose name begins with an underscore are only called by kernels, and compiled into them. Numba compiles by the
types of the arguments, so what must be compiled is known only to the code that calls; this module watches while
`ddflow.tools.warmup` runs that code. A kernel that is loaded from the cache is not compiled, and not told of.

>>> [kernel.py_func.__name__ for kernel in entries() if kernel.py_func.__module__.endswith(".accumulate")]
['net', 'count']
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from ddflow import kernels as package
from ddflow.kernels.compile import Interpreted, kernels


def entries() -> list[Any]:
    """List the kernels that Python calls, in the order of their modules.  Imports all of them; compiles nothing."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    own = [kernel for kernel in kernels() if kernel.py_func.__module__.startswith(f"{package.__name__}.")]
    return [kernel for kernel in own if not kernel.py_func.__name__.startswith("_")]


def is_ready(kernel: Any) -> bool:
    """Whether a kernel has a compiled form in this process, or needs none because the compiler is off."""
    return isinstance(kernel, Interpreted) or bool(kernel.signatures)


@contextmanager
def watched(compiling: Callable[[str], None]) -> Iterator[None]:
    """Call ``compiling`` with the name of each kernel, its helpers too, when its compilation begins."""

    class Watcher(event.Listener):  # type: ignore[misc]
        """Numba's events, passed on."""

        def on_start(self, event: Any) -> None:
            """Report that a compilation begins."""
            compiling(event.data["dispatcher"].py_func.__name__)

        def on_end(self, event: Any) -> None:
            """Do nothing when a compilation ends."""

    with event.install_listener("numba:compile", Watcher()):
        yield
