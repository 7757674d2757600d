"""Functions of one's own on scalars, compiled into the loop that calls them: a merger's, and a machine's transition.

Invariant: what a loop writes is what the function, called event by event in the order of the walk, makes of each key,
and of nothing else: where a call begins, what it may write to is zeros or its own key's, whatever the call before left
there.  A refusal is a code and a row.  A call that is not inlined costs more than all else, so each function has a loop
of its own, compiled with it and kept as long as the process lives (its code may change from run to run, so no file has
it).  A record is moved as bytes, since only the function knows its fields by name; it is packed, so each byte belongs
to a field.  An exception that the function raises passes through.

>>> def add(held, given, out):
...     out["n"] = held["n"] + given["n"]
>>> kind = np.dtype([("n", np.int64), ("n_null", np.bool_)])
>>> given, few = np.array([(2, False), (3, False)], kind), lambda *v: np.array(v, np.int32)
>>> made, live = np.zeros(1, kind), np.zeros(1, np.uint8)
>>> build_merger(add, kind)(few(0, 1), few(0, 2), few(0, 1), np.array([TAKE, TAKE], np.uint8), as_records(made[:0]),
...             np.zeros(1, np.uint8), as_records(given), as_records(made), np.array([[0, 8, 8, 0, 0, 0]]),
...             as_records(np.zeros(3, kind)))
(0, -1)
>>> int(made["n"][0])
5
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

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
"""int64[f, 6]: of each column where its value is in a record, how many bytes it has, where the flag of null is, whether
it may not change, whether it may not be null, and of a float again how many bytes, else 0."""
FINE, CHANGED, NULL, TOO_MANY, UNSOUND = range(5)
"""Codes: all is well; a column that may not change was; one that may not be null is; more values than there is room
for; a number of values that is none."""


def as_records(array: Any) -> Any:
    """Make fields of an array of records readable as attributes even if nothing is compiled."""
    return array.view(np.recarray) if config.DISABLE_JIT else array


@lru_cache(maxsize=64)
def _compile_function(function: Any, *_: Kind) -> Any:
    """Compile the function for records of these types alone: numba would confuse types that begin alike."""
    return function if hasattr(function, "py_func") or config.DISABLE_JIT else numba.njit(function)


def objection(function: Any, *given: Any) -> Exception | None:
    """Return numba's error for a function of such arguments, arrays of records or records; None if it compiles.

    The loops use the compiled function.  If nothing is to be compiled, only errors about fields count: the functions
    that are called are plain Python then, and numba knows none of those.
    """
    try:
        made = _compile_function(function, *(each.dtype for each in given))
        if config.DISABLE_JIT:
            made = CPUDispatcher(function, targetoptions={"nopython": True})
        made.compile(tuple(numba.typeof(each) for each in given))
    except Exception as error:
        fields = isinstance(error, KeyError) or "Unknown attribute" in str(error) or "not found in record" in str(error)
        return error if fields or not config.DISABLE_JIT else None
    return None


@kernel
def _copy_record(source: Any, to: Any, size: Any) -> None:
    """Copy bytes from an address to another."""
    for i in range(size):
        store_u8(np.uint64(to + i), load_u8(np.uint64(source + i)))


@kernel
def _fill(held: Any, given: Any, out: Any, fields: Fields) -> None:
    """Make the record at ``out`` of two others: each value that is given, where it is null the held one."""
    for f in range(fields.shape[0]):
        begin, size, null = fields[f, 0], fields[f, 1], fields[f, 2]
        source = held if load_u8(np.uint64(given + null)) != 0 else given
        _copy_record(source + begin, out + begin, size)
        store_u8(np.uint64(out + null), load_u8(np.uint64(source + null)))


@kernel
def _fault(given: Any, out: Any, fields: Fields) -> int:
    """Check a record that a function made, and return the code of its fault.

    Values under a null become 0; one that may not change and is null in ``given`` becomes null again.
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
def _settle(record: Any, fields: Fields) -> None:
    """Give each float its one form, in which zero has no sign and NaN no payload: equal values are equal bytes then."""
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
def _same_bytes(one: Any, other: Any, size: Any) -> bool:
    """Whether two records are the same, byte by byte."""
    equal = True
    for i in range(size):
        equal = equal and load_u8(np.uint64(one + i)) == load_u8(np.uint64(other + i))
    return equal


@kernel
def _among(address: Any, records: Any, n: Any, size: Any) -> Any:
    """Whether a record of so many bytes is one of n that stand together."""
    known = False
    for i in range(n):
        known = known or _same_bytes(address, records + i * size, size)
    return known


@lru_cache(maxsize=64)
def build_merger(function: Callable[..., Any], kind: Kind) -> Any:
    """Build a loop that folds records of a type by a function.

    Its arguments: (permutation, key_times, keys, action, held, live, given, made, fields, work).

    The first four: as in `fold.Walked`, and the action by place.  held: records[g]; live: uint8[g], whether a key holds
    one.  given: records[n], by row.  fields: see `Fields`.  work: three records.  Written: made, records[m], the record
    of each key after each of its times, zeros if it holds none, and live, after the last.  Returns a code and its row.
    The function gets copies of the held and given records, so its writes to them are lost.  O(p).
    """
    call = _compile_function(function, kind, kind, kind)

    def loop(
        permutation: Any,
        key_times: Any,
        keys: Any,
        action: Any,
        held: Any,
        live: Any,
        given: Any,
        made: Any,
        fields: Any,
        work: Any,
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
                        _fill(now, at_given + row * size, following, fields)
                        _copy_record(at_given + row * size, event, size)
                        call(work[0], work[2], work[1])
                        code = _fault(at_given + row * size, following, fields)
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
def build_machine(function: Callable[..., Any], kind: Kind, event: Kind) -> Any:
    """Build a loop that runs a transition, of records of a type by events of another.

    (begin, permutation, key_times, keys, action, values, offsets, start, given, fields, work, out, ends) -> the key
    that it reached, a code, a row.  values, offsets: the records of keys, and int64[g + 1].  start: the records of a
    new key.  given: records[n].  work: records[2 * limit].  Written: out, from ``ends[keys[begin]]`` on, the values
    after each of its times, and ends, int64[m + 1].  It stops before a key for which ``out`` may not have the room.
    All memory that the function may write to is cleared before each call, since it may write a value and then leave
    it out.  That takes some 7 ns for each 1,000 bytes.
    """
    call = _compile_function(function, kind, event, kind)

    def loop(
        begin: Any,
        permutation: Any,
        key_times: Any,
        keys: Any,
        action: Any,
        values: Any,
        offsets: Any,
        start: Any,
        given: Any,
        fields: Any,
        work: Any,
        out: Any,
        ends: Any,
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
                        code = _fault(now, following + i * size, fields)
                        if code != FINE:
                            return key, code, row
                        _settle(following + i * size, fields)
                        if not _among(following + i * size, now, n, size):
                            _copy_record(following + i * size, now + n * size, size)
                            n += 1
                _copy_record(now, at_out + written * size, n * size)
                written += n
                ends[key_time + 1] = written
        return keys.size - 1, FINE, -1

    return loop if config.DISABLE_JIT else numba.njit(nogil=True, error_model="numpy")(loop)
