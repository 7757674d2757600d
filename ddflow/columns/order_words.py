"""Compute words of 64 bits that sort like the values of columns, and dense ranks of rows.

Words compare like the values, including nulls and NaN. Two different text or binary values longer than 15 bytes can
have equal words. If the words of two long values are equal, the caller must compare the values.

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
"""The number of words for a text or binary value: room for its first 15 bytes, then one byte for its length."""
SIGN, ALL, SPARE = np.uint64(1 << 63), np.uint64((1 << 64) - 1), 1
_SIZES = np.arange(17)
_HIGH = np.array([((1 << 64) - 1) >> 8 * n << 8 * n for n in np.maximum(8 - _SIZES, 0).tolist()], np.uint64)
_LOW = np.array([((1 << 64) - 1) >> 8 * n << 8 * n for n in np.clip(16 - _SIZES, 1, 8).tolist()], np.uint64)
"""For each length of a text: masks of the bits that the text uses in its first and second word."""


class OrderColumn(NamedTuple):
    """A column that decides the order of rows.

    Parameters
    ----------
    name : str
        The column.
    descending : bool
        Whether the greatest value comes first.
    nulls_first : bool
        Whether nulls come before all values, in either direction; otherwise they come after all values.
    """

    name: str
    descending: bool
    nulls_first: bool


def has_exact_words(kind: pa.DataType) -> bool:
    """Return whether equal words imply equal values of a type.

    Returns False only for text and binary of variable length. Two texts with equal words are equal, or both have more
    than 15 bytes and share the first 15.

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
        1 for types narrower than 64 bits and for floats. 2 for other types of 64 bits, text and binary. 1 to 4 for
        decimals, by precision. For fixed-width binary, the number of complete words plus 1.

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
        remedy = "use numbers, text, binary, dates or decimals"
        raise SpecError(f"order by {name!r}", f"it is {kind}, which has no order", remedy)
    if offset_width(normal):
        return PREFIX
    if pat.is_floating(normal):
        return 1
    # A decimal needs a sign bit and the bits of its magnitude. Decimals never use the extreme bit patterns, so one
    # pattern can stand for null.
    bits = (10**normal.precision).bit_length() if pat.is_decimal(normal) else normal.bit_width
    return int(bits) // 64 + 1


def compute_order_words(rows: pa.Table | pa.RecordBatch, by: Sequence[OrderColumn]) -> Words:
    """Compute words for each row, so that the words sort like the rows.

    Parameters
    ----------
    rows : pyarrow.Table or pyarrow.RecordBatch
        n rows with these columns; other columns are ignored.
    by : sequence of OrderColumn
        The columns that decide the order, from left to right.

    Returns
    -------
    numpy.ndarray
        uint64[n, words], C-contiguous. Rows compare like their words, from left to right. If a type does not have exact
        words (`has_exact_words`), different values may have equal words. ``words`` is the sum of `count_order_words`
        over the columns, so it depends only on the declared types.

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
    """Write each decimal as two's complement with the sign bit flipped. The most significant word comes first."""
    n, wide = len(values), values.type.bit_width // 8
    if wide <= 8:
        out[:, 0] = view_values(values, np.dtype(f"i{wide}")).astype(np.int64).view(np.uint64)
    else:
        parts = np.frombuffer(values.buffers()[1], np.uint64, n * wide // 8, values.offset * wide).reshape(n, -1)
        out[:] = parts[:, : out.shape[1]][:, ::-1]
    out[:, 0] ^= SIGN


def _write_text_prefixes(values: pa.Array, out: Words) -> None:
    """Write the first 15 bytes of each text, padded with zeros. The 16th byte is the length plus one, at most 17."""
    _, offsets, data = values.buffers()
    wide = offset_width(values.type)
    ends = np.frombuffer(offsets, f"i{wide}", len(values) + 1, values.offset * wide)
    size = np.minimum(np.diff(ends), 16)
    out[:] = _load_prefix_words(np.frombuffer(data or b"", np.uint8)[: ends[-1]], ends[:-1])
    out[:, 0] &= _HIGH[size]
    out[:, 1] = out[:, 1] & _LOW[size] | (size + 1).astype(np.uint64)


def _load_prefix_words(data: Array, starts: Array) -> Array:
    """Load the 16 bytes at each start as two big-endian words. Bytes after the end of the data count as zeros.

    ``starts``: ascending positions.
    """
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
    """Compute the dense rank of each row. Rows are compared by their columns, from left to right.

    Null counts as the smallest value, NaN as the largest.

    ``table``: n rows of flat types. ``equal``: uint64[n], a hash of each row, equal for equal rows. Returns int64[n];
    equal rows share a rank. O(n log n). The section on ties in docs/semantics.md defines the order.

    >>> dense_ranks(pa.table({"a": [2.5, None, 2.5]}), np.array([7, 0, 7])).tolist()
    [1, 0, 1]
    """
    if not table.num_columns or not table.num_rows:
        return np.zeros(table.num_rows, np.int64)
    columns: dict[str, Any] = {}
    for i, column in enumerate(table.itercolumns()):
        # Arrow sorts NaN next to nulls, so two extra columns mark nulls and NaN.
        columns[f"{i}valid"] = pc.is_valid(column)
        if pat.is_floating(column.type):
            columns[f"{i}nan"] = pc.fill_null(pc.is_nan(column), False)
            column = pc.add(pc.cast(column, pa.float64()), 0.0)
        elif pat.is_fixed_size_binary(column.type):
            column = pc.cast(column, pa.binary())
        elif pat.is_decimal32(column.type) or pat.is_decimal64(column.type):
            # Arrow sorts narrow decimals wrongly: it places negative numbers after zero.
            column = pc.cast(column, pa.decimal128(column.type.precision, column.type.scale))
        columns[f"{i}value"] = column
    order = pc.sort_indices(pa.table(columns), [(name, "ascending", "at_start") for name in columns])
    permutation = np.asarray(order).astype(np.int64)
    steps = np.zeros(table.num_rows, np.int64)
    steps[1:] = np.cumsum(equal[permutation][1:] != equal[permutation][:-1])
    ranks = np.empty(table.num_rows, np.int64)
    ranks[permutation] = steps
    return ranks


def compute_watermark_words(column: pa.Array) -> tuple[Array, Array]:
    """Compute words that sort like integers or times. Also return the validity flags, empty if no value is null.

    A struct, such as a window of time, has the words of its first field.

    >>> windows = pa.array([{"start": 5, "end": 9}, None])
    >>> words, present = compute_watermark_words(windows)
    >>> words[:1].tolist(), present.tolist()
    ([5], [1, 0])
    """
    while pat.is_struct(column.type):
        column = column.flatten()[0]
    return compute_sortable_words(column), unpack_validity(column)


def mark_values_below(column: pa.Array, word: int) -> Array:
    """Mark the values whose `compute_watermark_words` are below a word, as bool[n]. A null is never below. O(n).

    >>> mark_values_below(pa.array([3, None, 7]), 5).tolist()
    [True, False, False]
    """
    words, present = compute_watermark_words(column)
    out: Array = words < word
    return out & (present != 0) if present.size else out
