"""Read and write memory by address, and compute 128-bit products, for kernels that gather bytes and mix hashes.

Numba has no pointers, so each function is compiled by hand-written code to one machine instruction or ``memmove``. When
kernels are interpreted, the Python functions below access the same bytes with ctypes. Addresses and values are unsigned
64-bit words. A load fills the high bits with zeros, and a store drops the high bits. Loads and stores work at any
alignment, in the machine's byte order.

Guarantees: each function gives the same result when it is compiled and when it is interpreted. Limits: nothing is
checked. A wrong address crashes the process, so the caller must keep the arrays alive.
"""

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, type_callable

Word = int | np.uint64
_LOW = (1 << 64) - 1


def load_u8(address: Word) -> np.uint64:
    """Load the byte at ``address``, widened to uint64."""
    return np.uint64(ctypes.c_uint8.from_address(int(address)).value)


def load_u16(address: Word) -> np.uint64:
    """Load the two bytes at ``address``, at any alignment, widened to uint64."""
    return np.uint64(int.from_bytes(ctypes.string_at(int(address), 2), _ORDER))


def load_u32(address: Word) -> np.uint64:
    """Load the four bytes at ``address``, at any alignment, widened to uint64."""
    return np.uint64(int.from_bytes(ctypes.string_at(int(address), 4), _ORDER))


def load_u64(address: Word) -> np.uint64:
    """Load the eight bytes at ``address``, at any alignment."""
    return np.uint64(int.from_bytes(ctypes.string_at(int(address), 8), _ORDER))


def store_u8(address: Word, value: Word) -> None:
    """Write the low byte of ``value`` to ``address``."""
    _store_bytes(address, value, 1)


def store_u16(address: Word, value: Word) -> None:
    """Write the two low bytes of ``value`` to ``address``, at any alignment."""
    _store_bytes(address, value, 2)


def store_u32(address: Word, value: Word) -> None:
    """Write the four low bytes of ``value`` to ``address``, at any alignment."""
    _store_bytes(address, value, 4)


def store_u64(address: Word, value: Word) -> None:
    """Write the eight bytes of ``value`` to ``address``, at any alignment."""
    _store_bytes(address, value, 8)


def copy_bytes(to: Word, start: Word, size: Word) -> None:
    """Copy ``size`` bytes from ``start`` to ``to``; the two ranges may overlap."""
    ctypes.memmove(int(to), int(start), int(size))


def clear_bytes(address: Word, size: Word) -> None:
    """Write ``size`` zeros from ``address`` on."""
    ctypes.memset(int(address), 0, int(size))


def prefetch(address: Word) -> None:
    """Prefetch the cache line at ``address``. Any address is allowed; no value is read."""


def mulhi(a: Word, b: Word) -> np.uint64:
    """Compute the high 64 bits of the 128-bit product."""
    return np.uint64(((int(a) & _LOW) * (int(b) & _LOW)) >> 64)


def mul128(a: Word, b: Word) -> tuple[np.uint64, np.uint64]:
    """Compute the 128-bit product as (low, high) words.

    >>> words = np.array([0x0102030405060708, 0], dtype=np.uint64)
    >>> here = words.ctypes.data
    >>> hex(load_u16(here))
    '0x708'
    >>> copy_bytes(here + 8, here, 4)
    >>> hex(words[1])
    '0x5060708'
    >>> low, high = mul128(np.uint64(2**63), np.uint64(6))
    >>> int(low), int(high)
    (0, 3)
    """
    product = (int(a) & _LOW) * (int(b) & _LOW)
    return np.uint64(product & _LOW), np.uint64(product >> 64)


_ORDER: Any = "little" if np.little_endian else "big"
_WORD = types.uint64
_PAIR = types.UniTuple(types.uint64, 2)


def _store_bytes(address: Word, value: Word, size: int) -> None:
    ctypes.memmove(int(address), (int(value) & _LOW & ((1 << 8 * size) - 1)).to_bytes(size, _ORDER), size)


def _emit_pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _register_intrinsic(function: Any, result: Any, operands: int, emit: Any) -> None:
    """Register ``function`` with numba.

    The compiled form of the function takes words, returns ``result``, and consists of the code that ``emit(builder,
    words)`` emits.
    """
    signature = result(*[_WORD] * operands)

    def lower(context: Any, builder: Any, _signature: Any, words: Any) -> Any:
        value = emit(builder, words)
        if result == types.void:
            return context.get_dummy_value()
        return context.make_tuple(builder, result, value) if result == _PAIR else value

    # numba counts the parameters of a typing function, so each number of parameters needs its own function.
    typers: dict[int, Any] = {
        1: lambda a: signature,
        2: lambda a, b: signature,
        3: lambda a, b, c: signature,
    }
    type_callable(function)(lambda context: typers[operands])
    lower_builtin(function, *[_WORD] * operands)(lower)


def _build_load_emitter(bits: int) -> Any:
    def emit(builder: Any, words: Any) -> Any:
        value = builder.load(_emit_pointer(builder, words[0], bits), align=1)
        return value if bits == 64 else builder.zext(value, ir.IntType(64))

    return emit


def _build_store_emitter(bits: int) -> Any:
    def emit(builder: Any, words: Any) -> None:
        value = words[1] if bits == 64 else builder.trunc(words[1], ir.IntType(bits))
        builder.store(value, _emit_pointer(builder, words[0], bits), align=1)

    return emit


def _emit_product(builder: Any, words: Any) -> tuple[Any, Any]:
    wide, word = ir.IntType(128), ir.IntType(64)
    product = builder.mul(builder.zext(words[0], wide), builder.zext(words[1], wide))
    return builder.trunc(product, word), builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)


def _emit_copy(builder: Any, words: Any) -> None:
    cgutils.raw_memmove(builder, _emit_pointer(builder, words[0], 8), _emit_pointer(builder, words[1], 8), words[2], 1)


def _emit_clear(builder: Any, words: Any) -> None:
    cgutils.memset(builder, _emit_pointer(builder, words[0], 8), words[1], 0)


def _emit_prefetch(builder: Any, words: Any) -> None:
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    # The numbers mean: 0 = read, 3 = keep in all cache levels, 1 = data cache.
    builder.call(function, [_emit_pointer(builder, words[0], 8), number(0), number(3), number(1)])


_register_intrinsic(load_u8, _WORD, 1, _build_load_emitter(8))
_register_intrinsic(load_u16, _WORD, 1, _build_load_emitter(16))
_register_intrinsic(load_u32, _WORD, 1, _build_load_emitter(32))
_register_intrinsic(load_u64, _WORD, 1, _build_load_emitter(64))
_register_intrinsic(store_u8, types.void, 2, _build_store_emitter(8))
_register_intrinsic(store_u16, types.void, 2, _build_store_emitter(16))
_register_intrinsic(store_u32, types.void, 2, _build_store_emitter(32))
_register_intrinsic(store_u64, types.void, 2, _build_store_emitter(64))
_register_intrinsic(copy_bytes, types.void, 3, _emit_copy)
_register_intrinsic(clear_bytes, types.void, 2, _emit_clear)
_register_intrinsic(prefetch, types.void, 1, _emit_prefetch)
_register_intrinsic(mulhi, _WORD, 2, lambda builder, words: _emit_product(builder, words)[1])
_register_intrinsic(mul128, _PAIR, 2, _emit_product)
