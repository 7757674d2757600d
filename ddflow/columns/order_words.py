"""Compute fixed-width words in the order of values, and ranks for values without such words.

Words compare like the values, nulls and NaN included. Texts and binaries longer than 15 bytes may share words, so the
caller compares their values if the words tie.

>>> import pyarrow as pa
>>> rows = pa.table({"at": pa.array([3, None, -1], pa.int32()), "city": ["Bern", "Chur", None]})
>>> words = compute_order_words(rows, [OrderColumn("at", descending=True, nulls_first=False)])
>>> words.shape, np.lexsort(words.T[::-1]).tolist()
((3, 1), [0, 2, 1])
>>> compute_order_words(rows, [OrderColumn("city", False, True), OrderColumn("at", False, True)]).shape
(3, 3)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import Words, compute_sortable_words, unpack_validity, view_values
from ddflow.columns.layout import Array, offset_width
from ddflow.columns.schema import decode_array, is_flat_type, is_word_type, normalize_type
from ddflow.errors import SpecError

PREFIX = 2
"""Words for a value of text or binary: 15 of its bytes, then a byte for its length."""
SIGN, ALL, SPARE = np.uint64(1 << 63), np.uint64((1 << 64) - 1), 1
_SIZES = np.arange(17)
_HIGH = np.array([((1 << 64) - 1) >> 8 * n << 8 * n for n in np.maximum(8 - _SIZES, 0).tolist()], np.uint64)
_LOW = np.array([((1 << 64) - 1) >> 8 * n << 8 * n for n in np.clip(16 - _SIZES, 1, 8).tolist()], np.uint64)
"""Masks of the value's bits in the two words, by its length; the last byte is for the length."""


class OrderColumn(NamedTuple):
    """A column that decides the order of rows.

    Parameters
    ----------
    name : str
        The column.
    descending : bool
        Whether the greatest value comes first.
    nulls_first : bool
        Whether nulls come before all values, in either direction; else after them.
    """

    name: str
    descending: bool
    nulls_first: bool


def has_exact_words(kind: pa.DataType) -> bool:
    """Return whether equal words imply equal values of a type: true except for text and binary of any length.

    Two texts with equal words are equal, or both have more than 15 bytes and share the first 15.

    Parameters
    ----------
    kind : pyarrow.DataType
        A type with an order, or an encoded form of it.

    Returns
    -------
    bool
        False if the caller must compare values with equal words.

    Examples
    --------
    >>> has_exact_words(pa.decimal128(38, 2)), has_exact_words(pa.string_view())
    (True, False)
    """
    return not offset_width(normalize_type(kind))


def count_order_words(kind: pa.DataType, name: str) -> int:
    """Count the words for a value of a type, including the space for null. O(1).

    Parameters
    ----------
    kind : pyarrow.DataType
        The type, or an encoding of it.
    name : str
        The column, for messages.

    Returns
    -------
    int
        1 for types narrower than 64 bits and for floats; 2 for other types of 64 bits, text and binary; 1 to 4 for
        decimals, by precision; for fixed-width binary its whole words plus 1.

    Raises
    ------
    SpecError
        If the type has no order: a list, a struct, a map, ...

    Examples
    --------
    >>> [count_order_words(kind, "x") for kind in (pa.int32(), pa.int64(), pa.float64(), pa.decimal128(18),
    ...     pa.binary(16))]
    [1, 2, 1, 1, 3]
    """
    normal = normalize_type(kind)
    if not is_flat_type(normal):
        remedy = "use numbers, text, binary, dates, decimals"
        raise SpecError(f"order by {name!r}", f"it is {kind}, which has no order", remedy)
    if offset_width(normal):
        return PREFIX
    if pat.is_floating(normal):
        return 1
    # A decimal needs a sign bit besides the bits of its magnitude, and never uses the extreme values of both.
    bits = (10**normal.precision).bit_length() if pat.is_decimal(normal) else normal.bit_width
    return int(bits) // 64 + 1


def compute_order_words(rows: pa.Table | pa.RecordBatch, by: Sequence[OrderColumn]) -> Words:
    """Compute the words that order rows.

    Parameters
    ----------
    rows : pyarrow.Table or pyarrow.RecordBatch
        n rows that have the columns, among others.
    by : sequence of OrderColumn
        The columns that decide, from left to right.

    Returns
    -------
    numpy.ndarray
        uint64[n, words], C-contiguous. Rows compare like their words, from left to right, except for ties of types
        without `has_exact_words`. ``words`` is the sum of the columns' `count_order_words`, so it depends only on the
        declared types, not on values or nullability.

    Raises
    ------
    SpecError
        If a column has no order.

    Notes
    -----
    O(n words).
    """
    counts = [count_order_words(rows.schema.field(column.name).type, column.name) for column in by]
    out, at = np.empty((rows.num_rows, sum(counts)), np.uint64), 0
    for column, count in zip(by, counts, strict=True):
        found, begin = rows.column(column.name), 0
        for chunk in found.chunks if isinstance(found, pa.ChunkedArray) else [found]:
            if len(chunk):
                _write_column_words(decode_array(chunk), column, out[begin : begin + len(chunk), at : at + count])
            begin += len(chunk)
        at += count
    return out


def _write_column_words(values: pa.Array, column: OrderColumn, out: Words) -> None:
    kind = values.type
    if is_word_type(kind):
        np.bitwise_xor(compute_sortable_words(values).view(np.uint64), SIGN, out=out[:, 0])
        out[:, 1:] = SPARE
    elif pat.is_decimal(kind):
        _write_decimals(values, out)
    elif pat.is_fixed_size_binary(kind):
        wide, n = kind.byte_width, len(values)
        spelled = np.zeros((n, 8 * out.shape[1]), np.uint8)
        if wide:
            given = np.frombuffer(values.buffers()[1], np.uint8, n * wide, values.offset * wide)
            spelled[:, :wide] = given.reshape(n, wide)
        spelled[:, wide] = SPARE
        out[:] = spelled.view(">u8")
    else:
        _write_text_prefixes(values, out)
    if column.descending:
        np.invert(out, out=out)
    if values.null_count:
        out[unpack_validity(values) == 0] = 0 if column.nulls_first else ALL


def _write_decimals(values: pa.Array, out: Words) -> None:
    """Write the two's complement with the sign bit flipped, most significant word first."""
    n, wide = len(values), values.type.bit_width // 8
    if wide <= 8:
        out[:, 0] = view_values(values, np.dtype(f"i{wide}")).astype(np.int64).view(np.uint64)
    else:
        parts = np.frombuffer(values.buffers()[1], np.uint64, n * wide // 8, values.offset * wide).reshape(n, -1)
        out[:] = parts[:, : out.shape[1]][:, ::-1]
    out[:, 0] ^= SIGN


def _write_text_prefixes(values: pa.Array, out: Words) -> None:
    """Write the first 15 bytes, padded with zeros, then the length plus one: never 0 and never 255."""
    _, offsets, data = values.buffers()
    wide = offset_width(values.type)
    ends = np.frombuffer(offsets, f"i{wide}", len(values) + 1, values.offset * wide)
    size = np.minimum(np.diff(ends), 16)
    out[:] = _load_prefix_words(np.frombuffer(data or b"", np.uint8)[: ends[-1]], ends[:-1])
    out[:, 0] &= _HIGH[size]
    out[:, 1] = out[:, 1] & _LOW[size] | (size + 1).astype(np.uint64)


def _load_prefix_words(data: Array, starts: Array) -> Array:
    """Load 16 bytes from each ascending start as big-endian uint64[n, 2], with zeros after the end of the data."""
    close = max(data.size - 15, 0)
    tail = np.concatenate([data[close:], np.zeros(16, np.uint8)])
    far = np.searchsorted(starts, close)
    out = np.empty(starts.size, "V16")
    for here, begin, wanted in (data, 0, slice(0, far)), (tail, close, slice(far, None)):
        if here.size > 15:
            windows = np.ndarray(here.size - 15, "V16", here, strides=(1,))
            out[wanted] = windows[starts[wanted] - begin]
    return out.view(">u8").reshape(-1, 2)


def dense_ranks(table: pa.Table | pa.RecordBatch, equal: Array) -> Array:
    """Compute the dense rank of every row by its columns, left to right: null smallest, NaN largest.

    ``table``: n rows of flat types. ``equal``: uint64[n], a word that is equal for equal rows (a hash of them). Returns
    int64[n]; equal rows share a rank. O(n log n). (Order: docs/semantics.md, ties.)

    >>> dense_ranks(pa.table({"a": [2.5, None, 2.5]}), np.array([7, 0, 7])).tolist()
    [1, 0, 1]
    """
    if not table.num_columns or not table.num_rows:
        return np.zeros(table.num_rows, np.int64)
    columns: dict[str, Any] = {}
    for i, column in enumerate(table.itercolumns()):
        # Arrow sorts NaN next to nulls, so two extra columns say whether a value is null or NaN.
        columns[f"{i}valid"] = pc.is_valid(column)
        if pat.is_floating(column.type):
            columns[f"{i}nan"] = pc.fill_null(pc.is_nan(column), False)
            column = pc.add(pc.cast(column, pa.float64()), 0.0)
        elif pat.is_fixed_size_binary(column.type):
            column = pc.cast(column, pa.binary())
        elif pat.is_decimal32(column.type) or pat.is_decimal64(column.type):
            # Arrow sorts narrow decimals wrongly: negative ones come after zero.
            column = pc.cast(column, pa.decimal128(column.type.precision, column.type.scale))
        columns[f"{i}value"] = column
    order = pc.sort_indices(pa.table(columns), [(name, "ascending", "at_start") for name in columns])
    permutation = np.asarray(order).astype(np.int64)
    steps = np.zeros(table.num_rows, np.int64)
    steps[1:] = np.cumsum(equal[permutation][1:] != equal[permutation][:-1])
    ranks = np.empty(table.num_rows, np.int64)
    ranks[permutation] = steps
    return ranks
