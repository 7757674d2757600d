"""Sums of a column: numbers of any Arrow type as the words that kernels add, and back.

Invariant: a sum has its column's type, and so has every sum on the way to it; `MergeOverflow` names the key, what was
held and what was added. Integers, durations and decimals of up to 18 digits are one word of 64 bits with bounds of
their own; unsigned 64-bit integers and longer decimals are two; and floats have no bounds, but an order in which they
are added. Decimals are added unscaled: a column has one scale.

>>> import pyarrow as pa
>>> from decimal import Decimal
>>> unscaled(pa.array([Decimal("-1.50"), None], pa.decimal128(5, 2))).tolist()
[-150, 0]
"""

from collections.abc import Callable
from decimal import Context, Decimal
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Flags, Ints, Words, validity, view
from ddflow.columns.layout import Array
from ddflow.errors import MergeOverflow
from ddflow.kernels.fold import Walked
from ddflow.kernels.sums import add, add_floats, add_wide

LOW = (1 << 64) - 1
SHORT = 18
"""Digits of a decimal whose unscaled value fits a word."""
WIDE = Context(prec=80)


def unscaled(column: pa.Array) -> Ints:
    """int64[n]: integers, durations, and decimals of up to `SHORT` digits without their scale; of nulls unspecified.

    It may be the column's own memory: not to be written to.  O(n).
    """
    kind = column.type
    size = kind.bit_width // 8
    if size == 16:
        return np.ascontiguousarray(view(column, np.dtype((np.int64, 2)))[:, 0])
    sign = "u" if pat.is_unsigned_integer(kind) else "i"
    return view(column, np.dtype(f"{sign}{size}")).astype(np.int64, copy=False)


def added(
    kind: pa.DataType,
    walked: Walked,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    name: str,
    named: Callable[[int], str],
) -> pa.Array:
    """Each key's sum after each of its times, null where nothing was added up.

    walked, action: as `kernels.fold.choose` takes them.  column: the events' cells, n; held: what the g keys hold;
    both of ``kind``.  ``name`` of the column and ``named``, of a group's key, are for the error.  Returns m cells of
    ``kind``.  Raises `MergeOverflow`.  O(places + n + g).
    """
    had = validity(held) if held.null_count else np.ones(len(held), np.uint8)
    there = np.empty(walked.key_times.size - 1, np.uint8)
    if pat.is_floating(kind):
        values = _floats(kind, walked, action, column, held, had, there)
    elif pat.is_uint64(kind) or (pat.is_decimal(kind) and kind.precision > SHORT):
        values = _wide(kind, walked, action, column, held, had, there, name, named)
    else:
        out, (low, high) = np.empty(there.size, np.int64), _bounds(kind)
        group, row, before = add(
            walked, action, validity(column), unscaled(column), had, unscaled(held), low, high, out, there
        )
        if group >= 0:
            _refuse(kind, before, int(unscaled(column)[row]), name, named(group))
        if kind.bit_width == 128:
            values = np.stack([out, out >> 63], axis=1)
        else:
            sign = "u" if pat.is_unsigned_integer(kind) else "i"
            values = out.astype(f"{sign}{kind.bit_width // 8}", copy=False)
    return set_nulls(kind, values, there)


def set_nulls(kind: pa.DataType, values: Array, there: Flags) -> pa.Array:
    """Build an array of a fixed-width type, null where ``there`` is 0.  O(m)."""
    bits = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, there.size, [bits, pa.py_buffer(np.ascontiguousarray(values))])


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    if pat.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pat.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1


def _floats(
    kind: pa.DataType, walked: Walked, action: Flags, column: pa.Array, held: pa.Array, had: Flags, there: Flags
) -> Array:
    dtype = np.dtype(f"f{kind.bit_width // 8}")
    given, before = (view(each, dtype).astype(np.float64, copy=False) for each in (column, held))
    out = np.empty(there.size, np.float64)
    add_floats(walked, action, validity(column), given, had, before, bool(kind.bit_width == 32), out, there)
    return out.astype(dtype, copy=False)


def _wide(
    kind: pa.DataType,
    walked: Walked,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    had: Flags,
    there: Flags,
    name: str,
    named: Callable[[int], str],
) -> Array:
    given, before = _pairs(column), _pairs(held)
    out = np.empty((there.size, 2), np.uint64)
    least, most = (np.array([bound & LOW, bound >> 64 & LOW], np.uint64) for bound in _bounds(kind))
    group, row = add_wide(walked, action, validity(column), given, had, before, least, most, out, there)
    if group >= 0:
        _refuse(kind, _whole(out[0]), _whole(given[row]), name, named(group))
    return out[:, 0] if pat.is_uint64(kind) else out


def _pairs(column: pa.Array) -> Words:
    """uint64[n, 2]: low words and high words."""
    if pat.is_decimal(column.type):
        return view(column, np.dtype((np.uint64, 2)))
    out = np.zeros((len(column), 2), np.uint64)
    out[:, 0] = view(column, np.dtype(np.uint64))
    return out


def _whole(pair: Words) -> int:
    number = int(pair[0]) | int(pair[1]) << 64
    return number - (1 << 128) if number >> 127 else number


def _refuse(kind: pa.DataType, before: int, value: int, name: str, key: str) -> NoReturn:
    def shown(number: int) -> str:
        return str(WIDE.scaleb(Decimal(number), -kind.scale) if pat.is_decimal(kind) else number)

    raise MergeOverflow(
        f"a sum of {name!r}",
        f"key {key}: {shown(before)} + {shown(value)} leaves {kind}",
        "declare the column wider, or mend the events; nothing was changed",
    )
