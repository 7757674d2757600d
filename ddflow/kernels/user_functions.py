"""Compile user functions into the loops that call them: mergers, transitions of machines, and aggregates.

A call that is not inlined would dominate the run time, so each function is compiled together with its loops. The
compiled loops stay in memory until the process ends. The compiled loops are never cached on disk, because the code of a
function can change between runs. Mergers and machines get records, which the loops copy as bytes. The state of an
aggregate is a tuple of int64 values and doubles. Each element of this tuple takes one word.

Guarantees: a loop writes the function's result for each key. A loop calls the function for one event after the other,
in the order of the walk. A call can write only to zeroed memory or to the memory of its own key. A fault of a user
function is returned as a code and a row. An exception is not caught. Equal states of a machine or an aggregate have
equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import config
from numba.core.registry import CPUDispatcher

from ddflow.kernels.arrays import Ints
from ddflow.kernels.compile import kernel
from ddflow.kernels.fold import SKIP, TAKE
from ddflow.kernels.pointer import clear_bytes, load_u8, load_u32, load_u64, store_u8, store_u32, store_u64

Kind = np.dtype[Any]
Fields = Ints
"""int64[f, 6], for each column, as listed below.

The numbers of a column are: the offset of the value in a record; the size of the value in bytes; the offset of the null
flag; whether the value must not change; whether the value must not be null; and, for a float, the size in bytes, or
otherwise 0.
"""
FINE, CHANGED, NULL, TOO_MANY, UNSOUND = range(5)
"""Codes of faults, in the order of these names.

The meanings are: no fault; a change of a column that must not change; a null in a column that must not be null; more
values than there is space for; an invalid number of values.
"""


def to_record_array(array: Any) -> Any:
    """Make the fields of a record array readable as attributes, even if the compiler is off.

    >>> def add(held, given, out):
    ...     out["n"] = held["n"] + given["n"]
    >>> kind = np.dtype([("n", np.int64), ("n_null", np.bool_)])
    >>> given, few = np.array([(2, False), (3, False)], kind), lambda *v: np.array(v, np.int32)
    >>> made, live = np.zeros(1, kind), np.zeros(1, np.uint8)
    >>> build_merge_loop(add, kind)(few(0, 1), few(0, 2), few(0, 1), np.array([TAKE, TAKE], np.uint8),
    ...     to_record_array(made[:0]),
    ...             np.zeros(1, np.uint8), to_record_array(given), to_record_array(made), np.array([[0, 8, 8, 0, 0,
    ...     0]]),
    ...             to_record_array(np.zeros(3, kind)))
    (0, -1)
    >>> int(made["n"][0])
    5
    """
    return array.view(np.recarray) if config.DISABLE_JIT else array


@lru_cache(maxsize=1024)
def compile_function(function: Any, *_: Kind) -> Any:
    """Compile a function for records of exactly these types.

    Numba confuses record types that begin with the same fields.
    """
    if config.DISABLE_JIT:
        return getattr(function, "py_func", function)
    return function if hasattr(function, "py_func") else numba.njit(function)


def find_compile_error(function: Any, *given: Any) -> Exception | None:
    """Return numba's error for a function of record arrays or records, or None if the function compiles.

    The loops use the compiled function. If the compiler is off, return only errors about fields, because the functions
    that this function calls are then plain Python functions, which numba cannot compile.
    """
    try:
        made = compile_function(function, *(each.dtype for each in given))
        if config.DISABLE_JIT:
            made = CPUDispatcher(function, targetoptions={"nopython": True})
        made.compile(tuple(numba.typeof(each) for each in given))
    except Exception as error:
        fields = isinstance(error, KeyError) or "Unknown attribute" in str(error) or "not found in record" in str(error)
        return error if fields or not config.DISABLE_JIT else None
    return None


@kernel
def _copy_record(source: Any, to: Any, size: Any) -> None:
    """Copy bytes from one address to another."""
    for i in range(size):
        store_u8(np.uint64(to + i), load_u8(np.uint64(source + i)))


@kernel
def _coalesce_record(held: Any, given: Any, out: Any, fields: Fields) -> None:
    """Write a record to ``out``: each value of ``given`` or, if it is null, the value of ``held``."""
    for f in range(fields.shape[0]):
        begin, size, null = fields[f, 0], fields[f, 1], fields[f, 2]
        source = held if load_u8(np.uint64(given + null)) != 0 else given
        _copy_record(source + begin, out + begin, size)
        store_u8(np.uint64(out + null), load_u8(np.uint64(source + null)))


@kernel
def _check_record(given: Any, out: Any, fields: Fields) -> int:
    """Check a record that a function wrote, and return the code of its fault.

    The value under a null becomes 0. If a column must not change and is null in ``given``, the column becomes null
    again in the written record.
    """
    for f in range(fields.shape[0]):
        begin, size, null = fields[f, 0], fields[f, 1], fields[f, 2]
        if fields[f, 3] != 0 and load_u8(np.uint64(given + null)) != 0:
            store_u8(np.uint64(out + null), 1)
        gone = load_u8(np.uint64(out + null)) != 0
        if gone:
            if fields[f, 4] != 0:
                return NULL
            for i in range(begin, begin + size):
                store_u8(np.uint64(out + i), 0)
        if fields[f, 3] != 0:
            if gone and load_u8(np.uint64(given + null)) == 0:
                return CHANGED
            for i in range(begin, begin + size):
                if not gone and load_u8(np.uint64(out + i)) != load_u8(np.uint64(given + i)):
                    return CHANGED
    return FINE


@kernel
def _canonicalize_floats(record: Any, fields: Fields) -> None:
    """Canonicalize floats, so that equal values have equal bytes: zero without a sign, NaN without a payload."""
    for f in range(fields.shape[0]):
        at = np.uint64(record + fields[f, 0])
        if fields[f, 5] == 8:
            word = load_u64(at)
            if word == np.uint64(1 << 63):
                store_u64(at, np.uint64(0))
            elif word & np.uint64(0x7FFFFFFFFFFFFFFF) > np.uint64(0x7FF0000000000000):
                store_u64(at, np.uint64(0x7FF8000000000000))
        elif fields[f, 5] == 4:
            word = load_u32(at)
            if word == np.uint64(1 << 31):
                store_u32(at, np.uint64(0))
            elif word & np.uint64(0x7FFFFFFF) > np.uint64(0x7F800000):
                store_u32(at, np.uint64(0x7FC00000))


@kernel
def _is_same_record(one: Any, other: Any, size: Any) -> bool:
    """Return whether two records are equal byte by byte."""
    equal = True
    for i in range(size):
        equal = equal and load_u8(np.uint64(one + i)) == load_u8(np.uint64(other + i))
    return equal


@kernel
def _contains_record(address: Any, records: Any, n: Any, size: Any) -> Any:
    """Return whether the record at an address equals any of n adjacent records."""
    known = False
    for i in range(n):
        known = known or _is_same_record(address, records + i * size, size)
    return known


@lru_cache(maxsize=64)
def build_merge_loop(function: Callable[..., Any], kind: Kind) -> Any:
    """Build a loop that folds the records of each key with a user function.

    The comments on the loop describe its arguments. The loop returns the code and the row of the first fault. The
    function gets copies of the stored and given records, so its writes to them have no effect. O(p).
    """
    call = compile_function(function, kind, kind, kind)

    def loop(
        permutation: Any,  # like key_times and keys, a field of `fold.EventsByKey`
        key_times: Any,
        keys: Any,
        action: Any,  # the effect of the event at each place
        held: Any,  # records[g]: the stored record of each key
        live: Any,  # uint8[g]: 1 for each key that has a record; the loop updates this array
        given: Any,  # records[n]: the record of each event
        made: Any,  # records[m]: the record of each key after each of its times, zeros if there is no record
        fields: Any,  # the numbers of each column, see `Fields`
        work: Any,  # records[3]: scratch memory
    ) -> Any:
        size, now = work.itemsize, np.int64(work.ctypes.data)
        at_held, at_given, at_made = np.int64(held.ctypes.data), np.int64(given.ctypes.data), np.int64(made.ctypes.data)
        following, event = now + size, now + 2 * size
        for key in range(keys.size - 1):
            there = live[key] != 0
            if there:
                _copy_record(at_held + key * size, now, size)
            for key_time in range(keys[key], keys[key + 1]):
                for place in range(key_times[key_time], key_times[key_time + 1]):
                    row = permutation[place]
                    if action[place] == SKIP:
                        continue
                    if action[place] != TAKE:
                        there = False
                        continue
                    if there:
                        _coalesce_record(now, at_given + row * size, following, fields)
                        _copy_record(at_given + row * size, event, size)
                        call(work[0], work[2], work[1])
                        code = _check_record(at_given + row * size, following, fields)
                        if code != FINE:
                            return code, row
                        _copy_record(following, now, size)
                    else:
                        _copy_record(at_given + row * size, now, size)
                        there = True
                if there:
                    _copy_record(now, at_made + key_time * size, size)
            live[key] = there
        return FINE, -1

    return loop if config.DISABLE_JIT else numba.njit(nogil=True, error_model="numpy")(loop)


@lru_cache(maxsize=64)
def build_state_machine_loop(function: Callable[..., Any], kind: Kind, event: Kind) -> Any:
    """Build a loop that runs a machine's transition function.

    States are records of one type, and events are records of a second type. The comments on the loop describe its
    arguments. The loop returns the key where it stopped, the code of the first fault, and the row of this fault. The
    loop stops before a key whose states possibly do not fit into ``out``. Before each call, the loop clears the memory
    that the function may write, because a function can write a value without returning it.
    """
    call = compile_function(function, kind, event, kind)

    def loop(
        begin: Any,  # the first key to process
        permutation: Any,  # like key_times and keys, a field of `fold.EventsByKey`
        key_times: Any,
        keys: Any,
        action: Any,  # the effect of the event at each place
        values: Any,  # records: the stored states of each key
        offsets: Any,  # int64[g + 1]: where the stored states of each key begin
        start: Any,  # records: the states of a new key
        given: Any,  # records[n]: the record of each event
        fields: Any,  # the numbers of each column, see `Fields`
        work: Any,  # records[2 * limit]: scratch memory
        out: Any,  # records: the states of each key after each of its times, from ``ends[keys[begin]]`` on
        ends: Any,  # int64[m + 1]: where the states after each time end
    ) -> Any:
        size, limit = work.itemsize, work.size // 2
        now, at_out = np.int64(work.ctypes.data), np.int64(out.ctypes.data)
        following = now + limit * size
        at_values, at_start = np.int64(values.ctypes.data), np.int64(start.ctypes.data)
        written = ends[keys[begin]]
        for key in range(begin, keys.size - 1):
            if written + (keys[key + 1] - keys[key]) * limit > out.size:
                return key, FINE, -1
            n = offsets[key + 1] - offsets[key]
            if n > limit:
                return key, TOO_MANY, permutation[key_times[keys[key]]]
            _copy_record(at_values + offsets[key] * size, now, n * size)
            for key_time in range(keys[key], keys[key + 1]):
                for place in range(key_times[key_time], key_times[key_time + 1]):
                    row = permutation[place]
                    if action[place] == SKIP:
                        continue
                    if action[place] != TAKE:
                        n = 0
                        continue
                    if n == 0:
                        n = start.size
                        _copy_record(at_start, now, n * size)
                    clear_bytes(np.uint64(following), np.uint64(limit * size))
                    made = call(work[:n], given[row], work[limit:])
                    if made < 0 or made > limit:
                        return key, UNSOUND if made < 0 else TOO_MANY, row
                    n = 0
                    for i in range(made):
                        code = _check_record(now, following + i * size, fields)
                        if code != FINE:
                            return key, code, row
                        _canonicalize_floats(following + i * size, fields)
                        if not _contains_record(following + i * size, now, n, size):
                            _copy_record(following + i * size, now + n * size, size)
                            n += 1
                _copy_record(now, at_out + written * size, n * size)
                written += n
                ends[key_time + 1] = written
        return keys.size - 1, FINE, -1

    return loop if config.DISABLE_JIT else numba.njit(nogil=True, error_model="numpy")(loop)


Kinds = tuple[bool, ...]
"""A flag for each number of a state: whether the number is a double."""


def _build_state_loader(kinds: Kinds) -> Any:
    """Build a function that loads the words of a row as a tuple. A tuple of mixed types is built element by element."""

    def one(at: int, double: bool) -> Any:
        def of_double(ints: Any, doubles: Any, row: Any) -> Any:
            return (doubles[row, at],)

        def of_int(ints: Any, doubles: Any, row: Any) -> Any:
            return (ints[row, at],)

        return compile_function(of_double if double else of_int)

    made = one(0, kinds[0])
    for at, double in enumerate(kinds[1:], 1):
        made = _join_loaders(made, one(at, double))
    return made


def _join_loaders(first: Any, last: Any) -> Any:
    def both(ints: Any, doubles: Any, row: Any) -> Any:
        return first(ints, doubles, row) + last(ints, doubles, row)

    return compile_function(both)


def _build_state_writer(kinds: Kinds) -> Any:
    """Build a function that writes a tuple to the words of a row."""

    def one(at: int, double: bool, before: Any) -> Any:
        def of_double(state: Any, ints: Any, doubles: Any, row: Any) -> None:
            before(state, ints, doubles, row)
            doubles[row, at] = state[at] + 0.0

        def of_int(state: Any, ints: Any, doubles: Any, row: Any) -> None:
            before(state, ints, doubles, row)
            ints[row, at] = state[at]

        return compile_function(of_double if double else of_int)

    def nothing(state: Any, ints: Any, doubles: Any, row: Any) -> None:
        pass

    made = compile_function(nothing)
    for at, double in enumerate(kinds):
        made = one(at, double, made)
    return made


class AggregateLoops(NamedTuple):
    """The compiled loops of an aggregate.

    ``fold`` replaces the state at each cell by the state after it, from the rows that are present. If no state is
    before a cell, the state at the cell is the first one. If ``present`` is empty, all rows are present. ``results``
    computes the results of states.

    >>> kinds = (False, True)
    >>> add, retract = lambda s, x: (s[0] + 1, s[1] + x), lambda s, x: (s[0] - 1, s[1] - x)
    >>> loops = AggregateLoops.from_functions(add, retract, lambda s: s[1], kinds)
    >>> ints = lambda *values: np.array(values, np.int64)
    >>> out, before = np.zeros((1, 2), np.int64), np.array([-1], np.int32)
    >>> loops.fold(ints(0, 1), ints(0, 2), before, np.ones(2, np.uint8), np.array([0.5, 2.0]), ints(3, -1), out,
    ...            out.view(float))
    >>> int(out[0, 0]), float(out.view(float)[0, 1])
    (2, -0.5)
    """

    fold: Callable[..., None]
    results: Callable[..., None]

    @classmethod
    def from_functions(cls, add: Any, retract: Any, result: Any, kinds: Kinds) -> AggregateLoops:
        """Build the loops for the three functions of an aggregate."""
        return _build_loops(add, retract, result, kinds)


@lru_cache(maxsize=64)
def _build_loops(add: Any, retract: Any, result: Any, kinds: Kinds) -> AggregateLoops:
    add, retract, result = (compile_function(each) for each in (add, retract, result))
    load, store = _build_state_loader(kinds), _build_state_writer(kinds)

    def fold(
        rows: Any,
        starts: Any,
        before: Any,
        present: Any,
        values: Any,
        diffs: Any,
        ints: Any,
        doubles: Any,
    ) -> None:
        every, held = present.size == 0, ints.shape[0] - before.size
        for cell in range(before.size):
            state = load(ints, doubles, before[cell] if before[cell] >= 0 else held + cell)
            for place in range(starts[cell], starts[cell + 1]):
                row = rows[place]
                if every or present[row] != 0:
                    for _ in range(diffs[row]):
                        state = add(state, values[row])
                    for _ in range(-diffs[row]):
                        state = retract(state, values[row])
            store(state, ints, doubles, held + cell)

    def results(ints: Any, doubles: Any, wanted: Any, out: Any) -> None:
        for row in range(wanted.size):
            if wanted[row] != 0:
                out[row] = result(load(ints, doubles, row))

    return AggregateLoops(compile_function(fold), compile_function(results))


@lru_cache(maxsize=256)
def find_aggregate_fault(functions: tuple[Any, Any, Any], kinds: Kinds, value: Any, whole: bool) -> str:
    """Describe why aggregate functions do not work for states and values of these types.

    Return "" if there is no fault.

    ``whole``: whether results must be integers. If the compiler is off, nothing is checked.
    """
    if config.DISABLE_JIT:
        return ""
    state = numba.types.Tuple([numba.types.float64 if each else numba.types.int64 for each in kinds])
    for name, function in zip(("add", "retract", "result"), functions, strict=True):
        made = compile_function(function)
        try:
            given = (state, numba.typeof(value)) if name != "result" else (state,)
            made.compile(given)
            found = made.overloads[given].signature.return_type
        except Exception as error:
            return f"numba cannot compile {name} for {given}: {str(error).strip().splitlines()[0]}"
        if name != "result" and found != state:
            return f"{name} returns {found}, but a state is {state}"
        exact = isinstance(found, numba.types.Integer | numba.types.Boolean)
        if name == "result" and not (exact or (isinstance(found, numba.types.Float) and not whole)):
            return f"result returns {found}"
    return ""
