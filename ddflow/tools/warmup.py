"""Warm up: compile every kernel for exactly the types that the engine calls it with, before anybody waits for it.

Guarantees: after `compile_all_kernels` no step of any flow compiles anything, in this process or, if the kernel cache
can be written, in later ones. The types are the annotations of kernels; tests/tools/test_warmup.py compares them with
those of calls.

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
"""Called with how many kernels are ready, how many there are, and what is being compiled."""


class WarmupResult(NamedTuple):
    """The result of `compile_all_kernels`."""

    kernels: int
    """How many there are, all ready now."""
    compiled: int
    """How many had to be compiled; the others were in the cache, or ready."""
    directory: Path | None
    """The directory of compiled kernels for the next process; None if no directory is writable."""


def compile_all_kernels(progress: Progress | None = None) -> WarmupResult:
    """Compile, or load from the cache, every kernel: about a minute, or one second.

    ``progress`` receives each kernel as its compilation begins, and the end. Does nothing if the compiler is off.
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
