"""`@kernel`, the decorator of every kernel: compiled by numba on its first call, or interpreted at first.

The first calls of a kernel that is not in the cache are interpreted, if their arrays are small and this process has not
interpreted for long (`InterpreterBudget`). `list_entry_kernels` lists those to compile ahead, for
`ddflow.tools.warmup`.

Guarantees: importing compiles nothing; a kernel is compiled once a machine for each set of types; interpreted and
compiled calls give the same bits, with numpy's arithmetic (division by zero gives an infinity, overflow wraps), and
without the GIL. ``NUMBA_DISABLE_JIT=1`` runs all as Python, ``NUMBA_BOUNDSCHECK=1`` checks indexes; compiled forms are
kept apart.
Limits: a function outside of this package, or with a closure, is not cached: the digest would not cover its code.
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
"""Elements in the arrays of a call, at most; an interpreted kernel takes microseconds for each."""


FIRST: Final = 16
"""Calls of a kernel that are interpreted, at most: a process that goes on for longer wants the compiled form."""


class InterpreterBudget:
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
        allowed = self.seconds > 0 and self._calls[kernel] < self.most and sum(map(_count_elements, arguments)) <= SMALL
        self._calls[kernel] += allowed
        return allowed


PATIENCE = InterpreterBudget(2.0)


@functools.cache
def interpret(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel's function, to be called in its place.  The time that it takes is taken from `PATIENCE`.

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
    """Copy the globals of a module, with its kernels' functions in the place of the kernels."""
    scope = dict(vars(sys.modules[module]))
    for name, value in list(scope.items()):
        if (function := getattr(value, "py_func", None)) is not None:
            own = function.__module__ == module
            scope[name] = _rebind_globals(function, scope if own else _copy_globals(function.__module__))
    return scope


def _rebind_globals(function: Any, scope: dict[str, Any]) -> FunctionType:
    """Copy a function with other globals."""
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)


def _to_python_scalars(result: Any) -> Any:
    """Convert numpy's scalars in a result to Python's, as compiled code returns them."""
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
    """Compile ``function`` with numba on its first call, and keep the result in the cache; the type stays the same.

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
    """Every kernel defined so far, in order: numba dispatchers, or ``InterpretedKernel`` when the compiler is off."""
    return list(_registry)


def cache_directory() -> Path | None:
    """Where compiled kernels are kept; None when caching is off.  Makes the directory if it can."""
    return _find_current_folder().directory


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A kernel with the compiler on: compiled, loaded from the cache, or interpreted while little goes through it."""

    def _compile_for_args(self, *args: Any, **kws: Any) -> Callable[..., Any]:
        """Return a function that runs a call for types that have no compiled form in this process."""
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
        """Whether there is a compiled form for argument types, in this process or in the cache."""
        return sig in self.overloads or (
            isinstance(self._cache, KernelCache) and self._cache.has_overload(sig, self.targetctx)
        )

    def add_overload(self, cres: Any) -> None:
        """Take in a compiled form; one without an entry for Python is for kernels alone."""
        if self.targetoptions["no_cpython_wrapper"]:
            self.overloads[tuple(cres.signature.args)] = cres
        else:
            super().add_overload(cres)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the form that other kernels call: compiled once for all integers of a sign, constants included."""
        return super().get_call_template([_widen_type(each) for each in args], kws)


def _widen_type(kind: Any) -> Any:
    """Widen a type: drop its constant, and make an integer one of 64 bits."""
    kind = getattr(kind, "literal_type", kind)
    return (types.int64 if kind.signed else types.uint64) if kind in types.integer_domain else kind


@contextlib.contextmanager
def _pause_garbage_collector() -> Iterator[None]:
    """Without the garbage collector, which takes a sixth of the time of a compilation."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.cache
def _announce_compilation() -> None:
    """Say once that this process compiles."""
    show_notice("ddflow compiles the kernels that it needs, once on this machine: about 15 seconds (`ddflow warmup`)")


class InterpretedKernel(Generic[P, R]):
    """A kernel that runs as plain Python, with the compiled one's silent overflow and division by zero."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.py_func = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function."""
        with np.errstate(all="ignore"):
            return self.py_func(*args, **kwargs)


@functools.cache
def _choose_folder(*switches: str) -> cache.KernelFolder:
    """Choose the folder for the code as it was imported and these switches of numba, once a process."""
    versions = (sys.version, sys.implementation.cache_tag, numba.__version__, llvmlite.__version__, np.__version__)
    facts = (*versions, config.CPU_NAME or llvmlite.binding.get_host_cpu_name(), *switches)
    name = cache.compute_digest([file for file, _, _ in _IMPORTED], facts)
    return cache.KernelFolder.choose(cache.list_cache_directories(), name)


def _find_current_folder() -> cache.KernelFolder:
    """Return the folder of this process, or none if the sources are unknown or differ from those imported."""
    with contextlib.suppress(OSError):  # a source was removed while we looked
        if _IMPORTED and cache.list_source_stamps(_PACKAGE) == _IMPORTED:
            return _choose_folder(*(f"{switch}={getattr(config, switch, None)}" for switch in _SWITCHES))
    return cache.KernelFolder(None)


class KernelCache(caching._Cache):  # type: ignore[misc]
    """What numba asks about one kernel's compiled forms; one file a form, so that processes share no index."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def cache_path(self) -> str | None:
        """The directory, for numba's statistics."""
        directory = cache_directory()
        return None if directory is None else str(directory)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the compiled form for the argument types ``sig``, or return None, so that numba compiles."""
        target_context.refresh()
        folder, key = _find_current_folder(), self._build_key(sig, target_context.codegen())
        payload = folder.read_kernel(self._build_file_name(key))
        if payload is None:
            return None
        try:
            stored, reduced = serialize.loads(payload)
            return CompileResult._rebuild(target_context, *reduced) if stored == key else None
        except Exception as error:  # the bytes are those once written, and still numba cannot use them
            folder.warn_of_damage(f"{self.name}: {error!r}")
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form; numba calls this once it has compiled one."""
        if data.lifted or data.library.has_dynamic_globals:
            cache.LOG.warning("kernel %s cannot be cached: it holds an address or an object of this process", self.name)
            return
        folder, key = _find_current_folder(), self._build_key(sig, data.codegen)
        if folder.directory is not None:
            folder.write_kernel(self._build_file_name(key), serialize.dumps((key, data._reduce())))

    def has_overload(self, sig: Any, target_context: Any) -> bool:
        """Whether a compiled form for these argument types is in the cache."""
        return _find_current_folder().has_kernel(self._build_file_name(self._build_key(sig, target_context.codegen())))

    def enable(self) -> None:
        """Nothing to do: the cache is on unless there is no place for it, and other sources have another folder."""

    disable = flush = enable

    def _build_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return self.name, sig, codegen.magic_tuple()

    def _build_file_name(self, key: tuple[Any, ...]) -> str:
        return f"{self.name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}"


def list_entry_kernels() -> list[Any]:
    """List the kernels that Python calls, in the order of their modules.  Imports all of them; compiles nothing.

    >>> "consolidate_diffs" in {kernel.py_func.__name__ for kernel in list_entry_kernels()}
    True
    """
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    own = [kernel for kernel in list_kernels() if kernel.py_func.__module__.startswith(f"{package.__name__}.")]
    return [kernel for kernel in own if not kernel.py_func.__name__.startswith("_")]


def argument_types(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the types of a kernel's arguments, as its annotations say: numbers of 64 bits, and arrays in C's order.

    >>> from ddflow.kernels.arrays import Words2d
    >>> def add(one: np.uint64, words: Words2d) -> None: ...
    >>> argument_types(add)
    (uint64, Array(uint64, 2, 'C', False, aligned=True))
    """
    hints = get_type_hints(function, include_extras=True)
    return tuple(numba.typeof(_build_sample_argument(hint)) for name, hint in hints.items() if name != "return")


def _build_sample_argument(hint: Any) -> Any:
    """Return a value of an annotated type.  An array has one dimension if nothing else is annotated; Any is int64."""
    hint, dimensions = get_args(hint) if get_origin(hint) is Annotated else (hint, 1)
    if hint is Any:
        return 0
    if get_origin(hint) is np.ndarray:
        (element,) = get_args(get_args(hint)[1])
        return np.empty((0,) * dimensions, element)
    if issubclass(hint, tuple):
        return hint(*map(_build_sample_argument, get_type_hints(hint, include_extras=True).values()))
    return hint(0)
