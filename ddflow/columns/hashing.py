"""Arrow columns to words: the identity of rows, the hash of values, the words that order compares.

Invariant: canonical equality. Two rows get the same identity exactly when their values are equal under the one rule of
docs/semantics.md: one NaN, -0.0 == 0.0, null distinct from "" and 0, encodings invisible (``schema.conform`` decoded
them), decimals by value (a column has one scale). A key of one non-null word is mixed bijectively and cannot collide;
a nullable one carries "is null" in a second word, so it cannot either; all other keys, and the values of rows, are
hashed with the state's secret (see ``kernels.identity`` for the odds). Which layout applies is decided by the schema
alone, never by a batch, since it is fixed for the life of a state.

>>> import pyarrow as pa
>>> keys = pa.table({"k": pa.array([0.0, -0.0, float("nan"), None])})
>>> high, low = identities(keys, Secret(1, 2))
>>> int(high[0]) == int(high[1]), low.tolist()
(True, [0, 0, 0, 1])
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.rows import address, offset_width, plainly, width
from ddflow.columns.schema import is_word, one_chunk, plain
from ddflow.kernels import identity as kernels

Words = np.ndarray[Any, np.dtype[np.uint64]]
Flags = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Narrow = np.ndarray[Any, np.dtype[np.int32]]
NONE: Words = np.empty(0, np.uint64)
ALL_VALID: Flags = np.empty(0, np.uint8)


class Secret(NamedTuple):
    """128 random bits that identities are mixed with.  All parts that must agree on identities share them.

    Parameters
    ----------
    k0, k1 : int
        The two halves, unsigned numbers of 64 bits.
    """

    k0: int
    k1: int

    @classmethod
    def fresh(cls) -> Secret:
        """Make a new secret from the system's random source.

        Returns
        -------
        Secret
            Two random numbers of 64 bits.
        """
        return cls(secrets.randbits(64), secrets.randbits(64))

    @property
    def words(self) -> tuple[np.uint64, np.uint64]:
        """Both halves, as the kernels take them: two ``numpy.uint64``."""
        return np.uint64(self.k0), np.uint64(self.k1)


def is_wide(schema: pa.Schema) -> bool:
    """Whether identities of rows with these columns take two words: all but one non-null word."""
    return not (len(schema) == 1 and is_word(schema.field(0).type) and not schema.field(0).nullable)


def partition_of(high: Words, partitions: int) -> Narrow:
    """int32[n]: the partition, of so many, of each identity by its first word: equal ranges of a mix of it.  O(n).

    Of a mix, and not of the word, since sorting and the index go by leading bits, and filters by the last ones: within
    a partition those must be spread as they are in the whole.

    >>> partition_of(np.array([0, 2**63, 1, 2**64 - 1], np.uint64), 4).tolist()
    [0, 2, 2, 1]
    """
    return (mixed(high) * np.uint64(partitions) >> np.uint64(32)).astype(np.int32)


def mixed(high: Words) -> Words:
    """uint64[n], below 2**32: what partitions are ranges of.  O(n)."""
    return high * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)


def validity(column: pa.Array) -> Flags:
    """uint8[n] of 1 where a value is not null; of size 0 when none is null."""
    if not column.null_count:
        return ALL_VALID
    if pat.is_null(column.type):
        return np.zeros(len(column), np.uint8)
    out = np.empty(len(column), np.uint8)
    kernels.unpack_bits(np.uint64(address(column.buffers()[0])), np.int64(column.offset), out)
    return out


def flags(column: pa.Array) -> Flags:
    """uint8[n] of 1 where a boolean column is true; null counts as not true."""
    out = np.empty(len(column), np.uint8)
    if len(column):
        kernels.unpack_bits(np.uint64(address(column.buffers()[1])), np.int64(column.offset), out)
    if column.null_count:
        out &= validity(column)
    return out


def words(column: pa.Array) -> Words:
    """uint64[n]: the canonical word of each value of a word type; what null values hold is unspecified.

    It may be the column's own memory: not to be written to.
    """
    kind, n = column.type, len(column)
    if not n:
        return np.empty(0, np.uint64)
    if pat.is_boolean(kind):
        out = np.empty(n, np.uint8)
        kernels.unpack_bits(np.uint64(address(column.buffers()[1])), np.int64(column.offset), out)
        return out.astype(np.uint64)
    if pat.is_floating(kind):
        dtype = {16: np.float16, 32: np.float32, 64: np.float64}[kind.bit_width]
        values = _view(column, np.dtype(dtype)).astype(np.float64).view(np.uint64)
        kernels.canonical_floats(values)
        return values
    signed = "u" if pat.is_unsigned_integer(kind) else "i"
    return _view(column, np.dtype(f"{signed}{kind.bit_width // 8}")).astype(np.int64, copy=False).view(np.uint64)


def _view(column: pa.Array, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return plainly(np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize))


def ordered_words(column: pa.Array) -> Ints:
    """int64[n]: words of a word type whose order is the order of the values, NaN largest; nulls unspecified."""
    out = words(column)
    if pat.is_floating(column.type):
        kernels.ordered_floats(out)
    elif pat.is_uint64(column.type):
        out = out ^ np.uint64(1 << 63)
    return out.view(np.int64)


def identities(table: pa.Table | pa.RecordBatch, secret: Secret, rows: int | None = None) -> tuple[Words, Words]:
    """The identities of all rows by all columns: (high, low), uint64[n] each, low of size 0 when one word is enough.

    ``rows``: how many there are, where there may be no column to tell.  O(n) a column; about 1 ns a row for one word,
    15 for a short text.
    """
    columns = [_chunk(column) for column in table.columns]
    n, (k0, k1) = table.num_rows if rows is None else rows, secret.words
    if len(columns) == 1 and is_word(columns[0].type):
        given, present = words(columns[0]), validity(columns[0])
        if present.size:
            given = np.where(present != 0, given, np.uint64(0))
        high = np.empty(n, np.uint64)
        kernels.mix_words(given, k0, k1, high)
        if not is_wide(table.schema):
            return high, NONE
        return high, (np.uint64(1) - present.astype(np.uint64)) if present.size else np.zeros(n, np.uint64)
    high, low = np.empty(n, np.uint64), np.empty(n, np.uint64)
    kernels.finish(_absorbed(columns, n, secret), high, low)
    return high, low


def value_hashes(table: pa.Table | pa.RecordBatch, secret: Secret) -> Words:
    """uint64[n]: a keyed hash of all columns of each row, equal for equal rows; a bijection for one non-null word."""
    columns = [_chunk(column) for column in table.columns]
    if not columns:
        return np.zeros(table.num_rows, np.uint64)
    return _element_hashes(columns, table.num_rows, secret)


def _element_hashes(columns: list[pa.Array], n: int, secret: Secret) -> Words:
    """One word a row: for a single word column a bijection, in which null meets a value with odds of 2**-64."""
    high = np.empty(n, np.uint64)
    if len(columns) == 1 and is_word(columns[0].type):
        present, k0 = validity(columns[0]), np.uint64(secret.k0)
        kernels.mix_words(words(columns[0]), *secret.words, high)
        if present.size:
            high[present == 0] = k0 ^ np.uint64(0x9E3779B97F4A7C15)
        return high
    kernels.finish(_absorbed(columns, n, secret), high, NONE)
    return high


def _absorbed(columns: list[pa.Array], n: int, secret: Secret) -> Words:
    state = np.empty((n, 4), np.uint64)
    kernels.start(*secret.words, state)
    for column in columns:
        _absorb(state, column, secret)
    return state


def _absorb(state: Words, column: pa.Array, secret: Secret) -> None:
    """Absorb one column, of any type, into the rows' states."""
    kind, present = column.type, validity(column)
    if isinstance(kind, pa.BaseExtensionType):
        _absorb(state, plain(column.storage), secret)
    elif is_word(kind):
        kernels.absorb_words(state, words(column), present)
    elif pat.is_null(kind):
        kernels.absorb_words(state, np.zeros(len(column), np.uint64), present)
    elif offset_width(kind):
        data = np.uint64(address(column.buffers()[2]))
        kernels.absorb_bytes(state, _ends(column, offset_width(kind)), data, present)
    elif width(kind):
        _absorb_fixed(state, column, width(kind), present)
    elif pat.is_fixed_size_binary(kind):
        ends = (np.arange(len(column) + 1) + column.offset).astype(np.uint64) * np.uint64(kind.byte_width)
        kernels.absorb_bytes(state, ends, np.uint64(address(column.buffers()[1])), present)
    elif pat.is_struct(kind):
        kernels.absorb_words(state, np.zeros(len(column), np.uint64), present)
        for child in column.flatten():
            _absorb(state, child, secret)
    elif pat.is_fixed_size_list(kind):
        size = kind.list_size
        children = column.values.slice(column.offset * size, len(column) * size)
        ends = (np.arange(len(column) + 1) * size).astype(np.uint64)
        kernels.absorb_lists(state, ends, _element_hashes([children], len(children), secret), present)
    elif pat.is_union(kind):
        _absorb_union(state, column, secret)
    else:
        children = (
            pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"]) if pat.is_map(kind) else column.values
        )
        ends = _ends(column, 8 if pat.is_large_list(kind) else 4)
        kernels.absorb_lists(state, ends, _element_hashes([children], len(children), secret), present)


def _absorb_union(state: Words, column: pa.Array, secret: Secret) -> None:
    """Which child a value is of, then the value."""
    # By buffer: ``type_codes`` and ``offsets`` of a slice are those of its parent.
    n, start, buffers = len(column), column.offset, column.buffers()
    codes = np.frombuffer(buffers[1], np.int8, n, start)
    at = np.frombuffer(buffers[2], np.int32, n, 4 * start) if column.type.mode == "dense" else np.arange(n)
    found = np.zeros(n, np.uint64)
    for i, code in enumerate(column.type.type_codes):
        here = np.flatnonzero(codes == code)
        child = plain(column.field(i)).take(pa.array(at[here]))
        found[here] = _element_hashes([child], here.size, secret)
    kernels.absorb_words(state, codes.astype(np.uint64), ALL_VALID)
    kernels.absorb_words(state, found, ALL_VALID)


def _absorb_fixed(state: Words, column: pa.Array, size: int, present: Flags) -> None:
    """Decimals and other types of whole words: word by word."""
    if size < 8:
        kernels.absorb_words(state, _view(column, np.dtype(f"i{size}")).astype(np.int64).view(np.uint64), present)
        return
    parts = np.frombuffer(column.buffers()[1], np.uint64, len(column) * size // 8, column.offset * size)
    for i in range(size // 8):
        kernels.absorb_words(state, np.ascontiguousarray(parts[i :: size // 8]).copy(), present)


def _ends(column: pa.Array, wide: int) -> Words:
    if not len(column):
        return np.zeros(1, np.uint64)
    dtype = np.dtype(f"i{wide}")
    return np.frombuffer(column.buffers()[1], dtype, len(column) + 1, column.offset * wide).astype(np.uint64)


def _chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
