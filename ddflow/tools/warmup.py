"""Compile every kernel in advance, for exactly the types of the engine's calls.

Guarantees: after `compile_all_kernels` no step of any flow compiles a kernel in this process. If the kernel cache is
writable, later processes need not compile a kernel either. The types come from the annotations of kernels.
tests/tools/test_warmup.py compares these annotations with the types of real calls.

>>> from ddflow.kernels.compile import list_entry_kernels
>>> compile_all_kernels().kernels == len(list_entry_kernels())
True
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ddflow.kernels.cache import mark_cache_filled
from ddflow.kernels.compile import Kernel, argument_types, cache_directory, list_entry_kernels

Progress = Callable[[int, int, str], None]
"""Callback with the number of ready kernels, the number of all kernels, and the name of the current kernel."""


class WarmupResult(NamedTuple):
    """The result of `compile_all_kernels`."""

    kernels: int
    """Total number of kernels; all of them are now ready to use."""
    compiled: int
    """Number of newly compiled kernels. All other kernels came from the cache, or were already loaded."""
    directory: Path | None
    """The directory that keeps the compiled kernels for the next process; None if no directory is writable."""


def compile_all_kernels(progress: Progress | None = None) -> WarmupResult:
    """Compile every kernel in about a minute, or load all from the cache in about a second.

    ``progress`` is called before each compilation and at the end.  If the compiler is off, nothing is compiled.
    """
    every, compiled = list_entry_kernels(), 0
    kernels = [kernel for kernel in every if isinstance(kernel, Kernel)]
    for ready, kernel in enumerate(kernels):
        types = argument_types(kernel.py_func)
        if not kernel.has_compiled_form(types):
            compiled += 1
            if progress is not None:
                progress(ready, len(every), kernel.py_func.__name__)
        kernel.compile(types)
    if progress is not None and kernels:
        progress(len(every), len(every), "ready")
    mark_cache_filled(cache_directory())
    return WarmupResult(len(every), compiled, cache_directory())
