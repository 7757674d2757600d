"""Compute the identities of rows, hashes of their values, and words that sort like the values.

Two rows have equal identities exactly if their values are equal by the rules of docs/semantics.md. All NaN are equal,
-0.0 equals 0.0, null differs from "" and 0, and decimals compare by value. The encoding of a column does not matter,
because ``schema.conform_to_schema`` decodes it. A key of one word is mixed by a bijection, so two different keys of one
word never collide. The second word of a nullable key says whether the key is null. Every key that does not fit one
word, and every row, is hashed with the state's secret. The docstring of ``kernels.identity`` gives the odds of a
collision. The layout of identities depends only on the schema, never on the values.

>>> import pyarrow as pa
>>> keys = pa.table({"k": pa.array([0.0, -0.0, float("nan"), None])})
>>> high, low = compute_identities(keys, Secret(1, 2))
>>> int(high[0]) == int(high[1]), low.tolist()
(True, [0, 0, 0, 1])
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from math import inf
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.layout import (
    BITS,
    BYTES,
    SMALL,
    buffer_address,
    column_layout,
    find_addresses,
    fixed_width,
    make_writable,
    offset_width,
)
from ddflow.columns.schema import column_arrays, decode_array, is_word_type, normalize_type
from ddflow.columns.threads import ALONE, Threads
from ddflow.kernels import identity as kernels

Words = np.ndarray[Any, np.dtype[np.uint64]]
Flags = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Narrow = np.ndarray[Any, np.dtype[np.int32]]
NONE: Words = np.empty(0, np.uint64)
ALL_VALID: Flags = np.empty(0, np.uint8)
CACHED = 1 << 15
"""The number of rows whose hash states fit into the processor's cache."""
Read = Callable[[pa.Array], Words]
"""A function that computes one word for each value of a column."""
Absorb = Callable[[Words, pa.Array, Flags], None]
"""A function that mixes a column into the hash states of rows.

Each flag says whether a value is not null.
"""


class Secret(NamedTuple):
    """128 random bits that key the hashes of all identities.

    Engines, tasks and tools that must compute equal identities share one secret.

    Parameters
    ----------
    k0, k1 : int
        The two halves, unsigned numbers of 64 bits.
    """

    k0: int
    k1: int

    @classmethod
    def fresh(cls) -> Self:
        """Make a new secret from the system's random source.

        Returns
        -------
        Secret
            Two random numbers of 64 bits.
        """
        return cls(secrets.randbits(64), secrets.randbits(64))

    @property
    def words(self) -> tuple[np.uint64, np.uint64]:
        """The secret as two numbers of type ``numpy.uint64``, as kernels expect it."""
        return np.uint64(self.k0), np.uint64(self.k1)


def has_two_word_identities(schema: pa.Schema) -> bool:
    """Return whether the identities of rows with this schema have two words.

    One word is enough only for a single non-null column of a word type.
    """
    return not (len(schema) == 1 and is_word_type(schema.field(0).type) and not schema.field(0).nullable)


def assign_partitions(high: Words, partitions: int) -> Narrow:
    """Assign each identity to a partition, as int32[n].

    Each partition is a range of the numbers that `compute_partition_hashes` returns, and all ranges have the same size.
    O(n). Thanks to the mix, all bits of the first word are uniformly distributed within a partition. The sort and
    the index rely on uniform leading bits of the word, and Bloom filters rely on uniform last bits.

    >>> assign_partitions(np.array([0, 2**63, 1, 2**64 - 1], np.uint64), 4).tolist()
    [0, 2, 2, 1]
    """
    return (compute_partition_hashes(high) * np.uint64(partitions) >> np.uint64(32)).astype(np.int32)


def compute_partition_hashes(high: Words) -> Words:
    """Mix the first word of each identity into a number below 2**32, as uint64[n]. O(n).

    `assign_partitions` cuts these numbers into ranges.
    """
    return high * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)


def unpack_validity(column: pa.Array) -> Flags:
    """Unpack the validity bitmap of a column to uint8[n]: 1 for a value, 0 for null.

    The array is empty if no value is null.
    """
    if not column.null_count:
        return ALL_VALID
    if pat.is_null(column.type):
        return np.zeros(len(column), np.uint8)
    out = np.empty(len(column), np.uint8)
    kernels.unpack_bits(np.uint64(buffer_address(column.buffers()[0])), np.int64(column.offset), out)
    return out


def unpack_booleans(column: pa.Array) -> Flags:
    """Unpack a boolean column to uint8[n]: 1 for true, 0 for false and null."""
    out = np.empty(len(column), np.uint8)
    if len(column):
        kernels.unpack_bits(np.uint64(column.buffers()[1].address), np.int64(column.offset), out)
    if column.null_count:
        out &= unpack_validity(column)
    return out


def compute_canonical_words(column: pa.Array) -> Words:
    """Compute the canonical word of each value of a word type, as uint64[n]. The words of null values are unspecified.

    The result may be the column's own memory, so do not write to it.
    """
    return build_word_reader(column.type)(column)


def build_word_reader(kind: pa.DataType) -> Read:
    """Build a function that does the same as `compute_canonical_words`, for columns of one word type."""
    if pat.is_boolean(kind):
        return lambda column: unpack_booleans(column).astype(np.uint64)
    signed = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
    dtype = np.dtype(f"{signed}{kind.bit_width // 8}")
    if signed == "f":
        return lambda column: _canonicalize_floats(view_values(column, dtype).astype(np.float64).view(np.uint64))
    if kind.bit_width == 64:
        return partial(view_values, dtype=np.dtype(np.uint64))
    return lambda column: view_values(column, dtype).astype(np.int64).view(np.uint64)


def _canonicalize_floats(floats: Words) -> Words:
    kernels.canonicalize_floats(floats)
    return floats


def view_values(column: pa.Array, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a numpy view of the values of a fixed-width column, without a copy. Do not write to the result."""
    n = len(column)
    if not n:
        return np.empty(0, dtype)
    found: np.ndarray[Any, Any] = np.frombuffer(column.buffers()[1], dtype, n, column.offset * dtype.itemsize)
    return found if found.flags.writeable else make_writable(found)


def view_words(column: pa.Array, width: int) -> Words:
    """Return the words of decimals or of fixed-width bytes, uint64[n, width]. Do not write to the result."""
    size = len(column) * width
    if not size:
        return np.empty((0, width), np.uint64)
    found: Words = np.frombuffer(column.buffers()[1], np.uint64, size, column.offset * 8 * width)
    return make_writable(found).reshape(len(column), width)


def compute_sortable_words(column: pa.Array) -> Ints:
    """Compute words that sort like the values, as int64[n], for a column of a word type.

    NaN counts as the largest value. The words of null values are unspecified.
    """
    out = compute_canonical_words(column)
    if pat.is_floating(column.type):
        kernels.make_floats_sortable(out)
    elif pat.is_uint64(column.type):
        out = out ^ np.uint64(1 << 63)
    return out.view(np.int64)


def compute_identities(
    table: pa.Table | pa.RecordBatch, secret: Secret, rows: int | None = None
) -> tuple[Words, Words]:
    """Compute the identities of rows from all columns, as `RowHasher.compute_identities` does.

    ``rows``: the number of rows, if the table may have no columns.
    """
    return RowHasher(table.schema, secret).compute_identities(
        column_arrays(table), table.num_rows if rows is None else rows
    )


def compute_value_hashes(table: pa.Table | pa.RecordBatch, secret: Secret) -> Words:
    """Compute a keyed hash of each row, as uint64[n], like `RowHasher.compute_value_hashes`."""
    return RowHasher(table.schema, secret).compute_value_hashes(column_arrays(table), table.num_rows)


class RowHasher:
    """An object that hashes the rows of one schema. The constructor chooses a reader for each column by its type."""

    def __init__(self, schema: pa.Schema, secret: Secret, threads: Threads = ALONE) -> None:
        self.threads, self.cost = threads, sum(1 if is_word_type(field.type) else 15 for field in schema)
        """The approximate time to hash a row, in nanoseconds."""
        self.least = threads.compute_min_rows_to_split(self.cost or 1)
        self.secret, self.wide, self.names = secret.words, has_two_word_identities(schema), schema.names
        alone = len(schema) == 1 and is_word_type(schema.field(0).type)
        self.word = build_word_reader(schema.field(0).type) if alone else None
        self.plan, self.ways = build_hash_plan(schema), [column_layout(field.type) for field in schema]
        self.absorb = [build_absorber(field.type, secret) for field in schema]

    def identify_rows(self, rows: Any) -> tuple[Words, Words]:
        """Compute the identities of the rows of a table, batch or view. The columns may be in any order."""
        return self.compute_identities(column_arrays(rows, self.names), rows.num_rows)

    def compute_identities(self, columns: Sequence[pa.Array], n: int) -> tuple[Words, Words]:
        """Compute the identities of n rows, and return their high and their low words as two arrays, uint64[n].

        If identities have one word, ``low`` is empty. O(n) per column.
        """
        if n >= self.least:
            found = self._run_spans(RowHasher.compute_identities, columns, n)
            high, low = map(np.concatenate, zip(*found, strict=True))
            return high, low
        high = np.empty(n, np.uint64)
        if self.word is None:
            low = np.empty(n, np.uint64)
            if n < SMALL and self.plan is not None:
                self._hash_few_rows(columns, True, high, low)
                return high, low
            self._hash_many_rows(columns, n, high, low)
            return high, low
        given, present = self.word(columns[0]), ALL_VALID
        if columns[0].null_count:
            present = unpack_validity(columns[0])
            given = np.where(present != 0, given, np.uint64(0))
        kernels.mix_words(given, *self.secret, high)
        if not self.wide:
            return high, NONE
        return high, (np.uint64(1) - present.astype(np.uint64)) if present.size else np.zeros(n, np.uint64)

    def compute_value_hashes(self, columns: Sequence[pa.Array], n: int) -> Words:
        """Compute a keyed hash of each row, as uint64[n]. Equal rows have equal hashes. O(n) per column.

        For a single column of a word type, different values have different hashes. The odds that a null has the same
        hash as a value are 2**-64.
        """
        if n >= self.least:
            return np.concatenate(self._run_spans(RowHasher.compute_value_hashes, columns, n))
        high = np.empty(n, np.uint64)
        if self.word is not None:
            kernels.mix_words(self.word(columns[0]), *self.secret, high)
            if columns[0].null_count:
                high[unpack_validity(columns[0]) == 0] = self.secret[0] ^ np.uint64(kernels.NULL)
        elif n < SMALL and self.plan is not None:
            self._hash_few_rows(columns, False, high, NONE)
        elif columns:
            self._hash_many_rows(columns, n, high, NONE)
        else:
            high[:] = 0
        return high

    def _run_spans(
        self, compute: Callable[[RowHasher, Sequence[pa.Array], int], Any], columns: Sequence[pa.Array], n: int
    ) -> list[Any]:
        """Run a method of this class in parallel for spans of the rows."""
        alone = copy(self)
        alone.least = inf
        spans = self.threads.cut_spans(n, self.cost)
        return self.threads.run_in_parallel(
            lambda begin, end: compute(alone, slice_columns(columns, begin, end), end - begin), spans
        )

    def _hash_few_rows(self, columns: Sequence[pa.Array], identities: bool, high: Words, low: Words) -> None:
        """Hash all columns of few rows in one call of a kernel."""
        assert self.plan is not None
        addresses = find_addresses(columns, self.ways)[0]
        kernels.hash_rows(addresses, self.plan, *self.secret, identities, high, low)

    def _hash_many_rows(self, columns: Sequence[pa.Array], n: int, high: Words, low: Words) -> None:
        """Hash all columns of n rows, column by column for each `CACHED` rows."""
        states, given = np.empty((min(n, CACHED), 4), np.uint64), columns
        for begin in range(0, n, CACHED):
            end = min(begin + CACHED, n)
            state = states[: end - begin]
            kernels.start_hashes(*self.secret, state)
            if n > CACHED:
                given = slice_columns(columns, begin, end)
            for absorb, column in zip(self.absorb, given, strict=True):
                absorb(state, column, unpack_validity(column) if column.null_count else ALL_VALID)
            kernels.finish_hashes(state, high[begin:end], low[begin:end])


def build_hash_plan(schema: pa.Schema, places: Sequence[str] | None = None) -> Ints | None:
    """Build the plan with which `kernels.identity.hash_rows` hashes the columns of ``schema``, as int64[columns, 3].

    ``places``: the names of the columns that have addresses, by default those of ``schema``. Return None if the kernel
    cannot read a column.

    >>> build_hash_plan(pa.schema({"k": pa.string(), "d": pa.date32()}), ["d", "k"]).tolist()
    [[1, 4, 4], [0, 0, 4]]
    """
    plan = []
    for at, field in enumerate(schema):
        kind, (how, wide) = field.type, column_layout(field.type)
        if how == BITS:
            reads = kernels.BIT
        elif how == BYTES:
            reads = kernels.BYTES
        elif not is_word_type(kind) or (pat.is_floating(kind) and wide != 8):
            return None
        elif pat.is_floating(kind):
            reads = kernels.FLOAT
        else:
            reads = kernels.UNSIGNED if pat.is_unsigned_integer(kind) else kernels.SIGNED
        plan.append((at if places is None else places.index(field.name), reads, wide))
    return np.array(plan, np.int64).reshape(-1, 3)


def slice_columns(columns: Sequence[pa.Array], begin: int, end: int) -> Sequence[pa.Array]:
    """Slice columns to the rows from ``begin`` up to, but not including, ``end``."""
    return [column.slice(begin, end - begin) for column in columns]


def build_absorber(kind: pa.DataType, secret: Secret) -> Absorb:
    """Build a function that mixes columns of any type into the hash states of rows."""
    if isinstance(kind, pa.BaseExtensionType):
        inner = build_absorber(normalize_type(kind.storage_type), secret)
        return lambda state, column, present: inner(state, decode_array(column.storage), present)
    if is_word_type(kind):
        read = build_word_reader(kind)
        return lambda state, column, present: kernels.absorb_words(state, read(column), present)
    if pat.is_null(kind):
        return lambda state, column, present: kernels.absorb_words(state, np.zeros(len(column), np.uint64), present)
    if size := fixed_width(kind):
        return partial(_absorb_fixed_width, size)
    if pat.is_union(kind):
        return partial(_absorb_union, [_build_element_hasher(normalize_type(field.type), secret) for field in kind])
    if pat.is_struct(kind):
        return partial(_absorb_struct, [build_absorber(field.type, secret) for field in kind])
    if pat.is_nested(kind):
        return _build_list_absorber(kind, secret)
    if not (wide := offset_width(kind)):
        return partial(_absorb_fixed_bytes, kind.byte_width)
    dtype = np.dtype(f"i{wide}")

    def absorb(state: Words, column: pa.Array, present: Flags) -> None:
        if len(column):
            _, offsets, data = column.buffers()
            ends = np.frombuffer(offsets, dtype, len(column) + 1, column.offset * wide).astype(np.uint64)
            kernels.absorb_bytes(state, ends, np.uint64(0 if data is None else data.address), present)

    return absorb


def _build_list_absorber(kind: pa.DataType, secret: Secret) -> Absorb:
    """Build a function that mixes lists or maps into hash states: first the length, then a hash of each element."""
    pairs = pa.struct([("k", kind.key_type), ("v", kind.item_type)]) if pat.is_map(kind) else None
    hashed = _build_element_hasher(kind.value_type if pairs is None else pairs, secret)
    dtype = np.dtype(np.int64 if pat.is_large_list(kind) else np.int32)

    def absorb(state: Words, column: pa.Array, present: Flags) -> None:
        n = len(column)
        if not n:
            return
        if pat.is_fixed_size_list(kind):
            children = column.values.slice(column.offset * kind.list_size, n * kind.list_size)
            ends = np.arange(n + 1) * kind.list_size
        else:
            ends = np.frombuffer(column.buffers()[1], dtype, n + 1, column.offset * dtype.itemsize)
            children = (
                column.values
                if pairs is None
                else pa.StructArray.from_arrays([column.keys, column.items], fields=list(pairs))
            )
        kernels.absorb_lists(state, ends.astype(np.uint64), hashed(children), present)

    return absorb


def _build_element_hasher(kind: pa.DataType, secret: Secret) -> Read:
    """Build a function that computes a hash of one word for each value of an array."""
    hashes = RowHasher(pa.schema([pa.field("", kind)]), secret)
    return lambda column: hashes.compute_value_hashes([column], len(column))


def _absorb_struct(inner: Sequence[Absorb], state: Words, column: pa.Array, present: Flags) -> None:
    kernels.absorb_words(state, np.zeros(len(column), np.uint64), present)
    for absorb, child in zip(inner, column.flatten(), strict=True):
        absorb(state, child, unpack_validity(child))


def _absorb_union(inner: Sequence[Read], state: Words, column: pa.Array, present: Flags) -> None:
    """Mix the type code of each value of a union into the hash state, then a hash of the value."""
    # Read the buffers, because Arrow's ``type_codes`` and ``offsets`` ignore the offset of a slice.
    n, start, buffers = len(column), column.offset, column.buffers()
    codes = np.frombuffer(buffers[1], np.int8, n, start)
    at = np.frombuffer(buffers[2], np.int32, n, 4 * start) if column.type.mode == "dense" else np.arange(n)
    found = np.zeros(n, np.uint64)
    for i, code in enumerate(column.type.type_codes):
        here = np.flatnonzero(codes == code)
        found[here] = inner[i](decode_array(column.field(i)).take(pa.array(at[here])))
    kernels.absorb_words(state, codes.astype(np.uint64), ALL_VALID)
    kernels.absorb_words(state, found, ALL_VALID)


def _absorb_fixed_width(size: int, state: Words, column: pa.Array, present: Flags) -> None:
    """Mix decimals and other fixed-width values into the hash states, word by word."""
    if size < 8:
        kernels.absorb_words(state, view_values(column, np.dtype(f"i{size}")).astype(np.int64).view(np.uint64), present)
        return
    parts = np.frombuffer(column.buffers()[1], np.uint64, len(column) * size // 8, column.offset * size)
    for i in range(size // 8):
        kernels.absorb_words(state, np.array(parts[i :: size // 8]), present)


def _absorb_fixed_bytes(size: int, state: Words, column: pa.Array, present: Flags) -> None:
    ends = (np.arange(len(column) + 1) + column.offset).astype(np.uint64) * np.uint64(size)
    kernels.absorb_bytes(state, ends, np.uint64(buffer_address(column.buffers()[1])), present)
