"""Define the decorator `@kernel`, which compiles kernels with numba or interprets their first small calls.

A kernel without a compiled form in the cache is interpreted if its arrays are small and the process has spent little
time on interpreted kernels (`InterpreterBudget`). Numba compiles all other kernels. `list_entry_kernels` lists the
kernels that `ddflow.tools.warmup` compiles in advance.

Guarantees: an import of ddflow compiles nothing. A machine compiles a kernel once for each set of argument types.
Interpreted and compiled calls return the same bits: as in numpy, division by zero gives infinity and overflow wraps.
Compiled calls release the GIL. ``NUMBA_DISABLE_JIT=1`` runs all kernels as Python, and ``NUMBA_BOUNDSCHECK=1`` checks
indexes. Each setting of these variables has its own cache folder. Limits: a function outside this folder or with a
closure is not cached, because the digest of the cache does not cover its code.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import thread_time
from types import FunctionType
from typing import Annotated, Any, Final, Generic, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

import llvmlite
import llvmlite.binding
import numba
import numpy as np
from numba.core import caching, config, serialize, types
from numba.core.compiler import CompileResult
from numba.core.registry import CPUDispatcher

from ddflow import kernels as package
from ddflow.kernels import cache
from ddflow.kernels.cache import show_notice

SMALL: Final = 1 << 15
"""Maximum number of array elements in an interpreted call. The interpreter takes microseconds for each element."""


FIRST: Final = 16
"""Maximum number of interpreted calls of a kernel.

After more calls than this, it is faster overall to compile the kernel.
"""


class InterpreterBudget:
    """The CPU time and the number of calls that this process has left for interpreted kernels.

    Attributes
    ----------
    seconds : float
        The remaining CPU seconds.  If negative, kernels are compiled at their first call.
    """

    def __init__(self, seconds: float, calls: int = FIRST) -> None:
        self.seconds, self.most = seconds, calls
        self._calls: Counter[str] = Counter()

    def allows(self, kernel: str, arguments: tuple[Any, ...]) -> bool:
        """Return whether a kernel's call may be interpreted, and count the calls for which the answer is yes.

        O(arguments).
        """
        allowed = self.seconds > 0 and self._calls[kernel] < self.most and sum(map(_count_elements, arguments)) <= SMALL
        self._calls[kernel] += allowed
        return allowed


PATIENCE = InterpreterBudget(2.0)


@functools.cache
def interpret(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a Python function to call instead of a kernel.

    The run time of this function is subtracted from `PATIENCE`.

    >>> def add(a, b):
    ...     return a + b
    >>> interpret(add)(np.int64(1), 2)
    3
    """
    plain = _rebind_globals(function, _copy_globals(function.__module__))

    def run(*arguments: Any) -> Any:
        began = thread_time()
        with np.errstate(all="ignore"):
            result = plain(*arguments)
        PATIENCE.seconds -= thread_time() - began
        return _to_python_scalars(result)

    return run


@functools.cache
def _copy_globals(module: str) -> dict[str, Any]:
    """Copy the globals of a module and replace its kernels by their Python functions."""
    scope = dict(vars(sys.modules[module]))
    for name, value in list(scope.items()):
        if (function := getattr(value, "py_func", None)) is not None:
            own = function.__module__ == module
            scope[name] = _rebind_globals(function, scope if own else _copy_globals(function.__module__))
    return scope


def _rebind_globals(function: Any, scope: dict[str, Any]) -> FunctionType:
    """Copy a function, with ``scope`` as its globals."""
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)


def _to_python_scalars(result: Any) -> Any:
    """Convert numpy scalars in a result to Python numbers, like the results of compiled code."""
    if isinstance(result, np.generic) and not isinstance(result, np.void):
        return result.item()
    if isinstance(result, tuple):
        values = map(_to_python_scalars, result)
        return result._make(values) if hasattr(result, "_make") else tuple(values)
    return result


def _count_elements(argument: Any) -> int:
    if isinstance(argument, np.ndarray):
        return argument.size
    return sum(map(_count_elements, argument)) if isinstance(argument, tuple) else 0


P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = Path(__file__).parent
_IMPORTED = cache.list_source_stamps(_PACKAGE)
_SWITCHES = (
    "BOUNDSCHECK",
    "DISABLE_JIT",
    "OPT",
    "DEBUGINFO_DEFAULT",
    "CPU_NAME",
    "CPU_FEATURES",
    "ENABLE_AVX",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
)
OPTIONS: Final = {"nopython": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_registry: list[Any] = []


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function`` with numba on its first call and cache the result.

    The static type stays the same.

    >>> @kernel
    ... def double(n: int) -> int:
    ...     return n + n
    >>> double(21)  # interpreted, because it is not compiled yet
    42
    """
    compiled: Any
    if config.DISABLE_JIT:
        compiled = InterpretedKernel(function)
    else:
        inner = function.__name__.startswith("_")
        compiled = Kernel(function, targetoptions=OPTIONS | {"no_cpython_wrapper": inner, "forceinline": inner})
        if function.__module__.startswith(f"{__package__}.") and function.__closure__ is None:
            compiled._cache = KernelCache(f"{function.__module__}.{function.__qualname__}")
    _registry.append(compiled)
    return cast("Callable[P, R]", compiled)


def list_kernels() -> list[Any]:
    """List the kernels in the order of definition.

    The kernels are numba dispatchers, or `InterpretedKernel` objects if the compiler is off.
    """
    return list(_registry)


def cache_directory() -> Path | None:
    """Return the directory of compiled kernels, and create it if needed.  Return None if caching is off."""
    return _find_current_folder().directory


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A kernel of a process in which the compiler is on.

    A call runs a form that was compiled or loaded from the cache. The first small calls are interpreted and use no
    compiled form.
    """

    def _compile_for_args(self, *args: Any, **kws: Any) -> Callable[..., Any]:
        """Return the function to call if this process has no compiled form for the argument types."""
        if self.targetoptions["no_cpython_wrapper"]:
            return interpret(self.py_func)
        if isinstance(self._cache, KernelCache):
            types = tuple(map(self.typeof_pyval, args))
            if not self._cache.has_overload(types, self.targetctx):
                if PATIENCE.allows(self._cache.name, args):
                    cache.start_fill_process(cache_directory())
                    return interpret(self.py_func)
                _announce_compilation()
        return cast("Callable[..., Any]", super()._compile_for_args(*args, **kws))

    def compile(self, sig: Any) -> Any:
        """Return the compiled form for argument types, from the cache or the compiler."""
        with _pause_garbage_collector():
            return super().compile(sig)

    def has_compiled_form(self, sig: tuple[Any, ...]) -> bool:
        """Return whether this process or the cache has a compiled form for argument types."""
        return sig in self.overloads or (
            isinstance(self._cache, KernelCache) and self._cache.has_overload(sig, self.targetctx)
        )

    def add_overload(self, cres: Any) -> None:
        """Add a compiled form. Python cannot call some compiled forms, which only compiled kernels use."""
        if self.targetoptions["no_cpython_wrapper"]:
            self.overloads[tuple(cres.signature.args)] = cres
        else:
            super().add_overload(cres)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the compiled form that other kernels call.

        This compiled form accepts constants, and integers of any width.
        """
        return super().get_call_template([_widen_type(each) for each in args], kws)


def _widen_type(kind: Any) -> Any:
    """Widen a numba type: remove a constant value, and use 64 bits for an integer."""
    kind = getattr(kind, "literal_type", kind)
    return (types.int64 if kind.signed else types.uint64) if kind in types.integer_domain else kind


@contextlib.contextmanager
def _pause_garbage_collector() -> Iterator[None]:
    """Pause the garbage collector, which would take a sixth of the compile time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def _announce_compilation() -> None:
    """Announce, once in this process, that ddflow compiles kernels."""
    show_notice(
        "ddflow compiles the kernels that it needs, once on this machine; this takes about 15 seconds (`ddflow warmup` "
        "compiles them in advance)"
    )


class InterpretedKernel(Generic[P, R]):
    """A kernel that runs as plain Python, with the silent overflow and division by zero of compiled code."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.py_func = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the Python function."""
        with np.errstate(all="ignore"):
            return self.py_func(*args, **kwargs)


@functools.cache
def _choose_folder(*switches: str) -> cache.KernelFolder:
    """Choose the cache folder for the imported code and the current numba settings, once for each process."""
    versions = (sys.version, sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)
    facts = (*versions, config.CPU_NAME or llvmlite.binding.get_host_cpu_name(), *switches)
    name = cache.compute_digest([file for file, _, _ in _IMPORTED], facts)
    return cache.KernelFolder.choose(cache.list_cache_directories(), name)


def _find_current_folder() -> cache.KernelFolder:
    """Return the cache folder of this process.

    If the sources are unknown or have changed since the import, the folder's ``directory`` is None.
    """
    with contextlib.suppress(OSError):  # a source was removed while we looked
        if _IMPORTED and cache.list_source_stamps(_PACKAGE) == _IMPORTED:
            return _choose_folder(*(f"{switch}={getattr(config, switch, None)}" for switch in _SWITCHES))
    return cache.KernelFolder(None)


class KernelCache(caching._Cache):  # type: ignore[misc]
    """The cached compiled forms of one kernel, with the interface of numba's cache.

    Each compiled form has a separate file, so processes share no index file.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def cache_path(self) -> str | None:
        """The cache directory, which numba shows in its statistics."""
        directory = cache_directory()
        return None if directory is None else str(directory)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the compiled form for the argument types ``sig``. Return None if numba must compile it."""
        target_context.refresh()
        folder, key = _find_current_folder(), self._build_key(sig, target_context.codegen())
        payload = folder.read_kernel(self._build_file_name(key))
        if payload is None:
            return None
        try:
            stored, reduced = serialize.loads(payload)
            return CompileResult._rebuild(target_context, *reduced) if stored == key else None
        except Exception as error:  # the checksum matches, but numba cannot use the bytes
            folder.warn_of_damage(f"{self.name}: {error!r}")
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a compiled form. Numba calls this method after each compilation."""
        if data.lifted or data.library.has_dynamic_globals:
            cache.LOG.warning("cannot cache the kernel %s: it has an address or an object of this process", self.name)
            return
        folder, key = _find_current_folder(), self._build_key(sig, data.codegen)
        if folder.directory is not None:
            folder.write_kernel(self._build_file_name(key), serialize.dumps((key, data._reduce())))

    def has_overload(self, sig: Any, target_context: Any) -> bool:
        """Return whether the cache has a compiled form for these argument types."""
        return _find_current_folder().has_kernel(self._build_file_name(self._build_key(sig, target_context.codegen())))

    def enable(self) -> None:
        """Ignore the call.

        Do nothing, because the cache is on if a folder exists, and changed sources use a new folder.
        """

    disable = flush = enable

    def _build_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return self.name, sig, codegen.magic_tuple()

    def _build_file_name(self, key: tuple[Any, ...]) -> str:
        return f"{self.name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}"


def list_entry_kernels() -> list[Any]:
    """List the kernels that Python calls, in the order of their modules.

    The call imports all modules and compiles nothing.

    >>> "consolidate_diffs" in {kernel.py_func.__name__ for kernel in list_entry_kernels()}
    True
    """
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    own = [kernel for kernel in list_kernels() if kernel.py_func.__module__.startswith(f"{package.__name__}.")]
    return [kernel for kernel in own if not kernel.py_func.__name__.startswith("_")]


def argument_types(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the numba types of a kernel's arguments from its annotations: 64-bit numbers and C-ordered arrays.

    >>> from ddflow.kernels.arrays import Words2d
    >>> def add(one: np.uint64, words: Words2d) -> None: ...
    >>> argument_types(add)
    (uint64, Array(uint64, 2, 'C', False, aligned=True))
    """
    hints = get_type_hints(function, include_extras=True)
    return tuple(numba.typeof(_build_sample_argument(hint)) for name, hint in hints.items() if name != "return")


def _build_sample_argument(hint: Any) -> Any:
    """Return a value of an annotated type.

    An array has one dimension unless it is annotated otherwise. An argument annotated as Any is int64.
    """
    hint, dimensions = get_args(hint) if get_origin(hint) is Annotated else (hint, 1)
    if hint is Any:
        return 0
    if get_origin(hint) is np.ndarray:
        (element,) = get_args(get_args(hint)[1])
        return np.empty((0,) * dimensions, element)
    if issubclass(hint, tuple):
        return hint(*map(_build_sample_argument, get_type_hints(hint, include_extras=True).values()))
    return hint(0)
