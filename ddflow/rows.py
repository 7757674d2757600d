"""Rows: Arrow columns with their buffers' addresses, gathered by reference from any number of batches.

Invariant: rows never change; a gathered column owns its memory and holds exactly the values that the references name,
whichever batch each lives in.  Why that is not trivial: every Arrow type must work at the speed that its layout
allows.  Fixed widths, bits and byte strings are moved by kernels over addresses; every other type by Arrow's ``take``.
Arrays are brought to one chunk with a plain offset first, so that address and row are all a kernel needs.  What a row
*means* (its key, its order) is not known here.

>>> import numpy as np, pyarrow as pa
>>> old, new = (Rows(pa.table({"city": [name], "n": [n]})) for name, n in (("Bern", 1), ("Basel", 2)))
>>> references = np.array([(1 << 40) | 0, 0], np.int64)  # row 0 of batch 1, row 0 of batch 0
>>> gather([old, new], references, old.table.schema).to_pylist()
[{'city': 'Basel', 'n': 2}, {'city': 'Bern', 'n': 1}]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.errors import TooLarge
from ddflow.kernels.gather import ROWS, SLOT, SLOTS, gather_bits, gather_bytes, gather_sizes, gather_words
from ddflow.schema import one_chunk

Array = np.ndarray[Any, np.dtype[Any]]


def width(kind: pa.DataType) -> int:
    """Bytes a value of a fixed-width type that kernels move, else 0."""
    if pat.is_boolean(kind) or pat.is_nested(kind) or pat.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return 0
    try:
        bits = kind.bit_width
    except ValueError:
        return 0
    return bits // 8 if bits in (8, 16, 32) or (bits and bits % 64 == 0) else 0


def offset_width(kind: pa.DataType) -> int:
    """Bytes an offset of a byte-string type, else 0."""
    if pat.is_string(kind) or pat.is_binary(kind):
        return 4
    return 8 if pat.is_large_string(kind) or pat.is_large_binary(kind) else 0


def address(buffer: pa.Buffer | None) -> int:
    """Where a buffer begins, 0 for none."""
    return 0 if buffer is None else int(buffer.address)


class Rows:
    """A table of one chunk a column, and where each column's buffers are.

    ``table``: the rows.  ``addresses``: uint64[columns, 3]: validity bitmap (0 when no value is null), values or
    offsets, bytes; ``firsts``: int64[columns, 2]: the bit numbers of row 0 in validity and in boolean values.
    O(columns) to make.
    """

    __slots__ = ("addresses", "columns", "firsts", "table")

    def __init__(self, table: pa.Table | pa.RecordBatch) -> None:
        self.table = table
        self.columns = [c if isinstance(c, pa.Array) else one_chunk(c) for c in table.columns]
        self.addresses = np.zeros((len(self.columns), 3), np.uint64)
        self.firsts = np.zeros((len(self.columns), 2), np.int64)
        for i, column in enumerate(self.columns):
            buffers, start, kind = column.buffers(), column.offset, column.type
            if column.null_count:
                self.addresses[i, 0], self.firsts[i, 0] = address(buffers[0]), start
            if pat.is_boolean(kind):
                self.addresses[i, 1], self.firsts[i, 1] = address(buffers[1]), start
            elif width(kind):
                self.addresses[i, 1] = address(buffers[1]) + start * width(kind)
            elif offset_width(kind):
                self.addresses[i, 1] = address(buffers[1]) + start * offset_width(kind)
                self.addresses[i, 2] = address(buffers[2])

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of Arrow buffers that these rows refer to."""
        return int(self.table.nbytes)


def new_buffer(size: int) -> pa.Buffer:
    """A writable buffer from Arrow's pool, which reuses memory where fresh pages would fault."""
    return pa.allocate_buffer(max(size, 1))


def gather(sources: Sequence[Rows | None], references: Array, schema: pa.Schema) -> pa.Table:
    """The rows that ``references`` name, in their order.

    ``sources``: the batches by number (None where no reference points).  ``references``: int64[n], batch number and row
    packed as in ``kernels.gather``; flags above are ignored.  ``schema``: the columns wanted, all of which each source
    has at the place given by its own schema.  Raises `TooLarge` when a 32-bit text column would pass 2 GiB.
    O(n) a column.
    """
    return pa.Table.from_arrays([gather_column(sources, references, f) for f in schema], schema=schema)


def gather_column(sources: Sequence[Rows | None], references: Array, field: pa.Field) -> pa.Array:
    """One column of `gather`."""
    kind, n = field.type, references.size
    at = next((s.table.schema.get_field_index(field.name) for s in sources if s is not None), 0)
    bases = np.zeros((3, len(sources)), np.uint64)
    firsts = np.zeros((2, len(sources)), np.int64)
    for i, source in enumerate(sources):
        if source is not None:
            bases[:, i], firsts[:, i] = source.addresses[at], source.firsts[at]
    if not (width(kind) or offset_width(kind) or pat.is_boolean(kind)):
        return _take(sources, references, at, kind)
    validity, nulls = None, 0
    if bases[0].any():
        validity = new_buffer((n + 7) // 8)
        nulls = gather_bits(references, bases[0], firsts[0], np.frombuffer(validity, np.uint8))
    if pat.is_boolean(kind):
        values = new_buffer((n + 7) // 8)
        gather_bits(references, bases[1], firsts[1], np.frombuffer(values, np.uint8))
        buffers = [validity, values]
    elif width(kind):
        values = new_buffer(n * width(kind))
        gather_words(references, bases[1], np.int64(width(kind)), np.uint64(values.address))
        buffers = [validity, values]
    else:
        buffers = [validity, *_bytes(references, bases[1], bases[2], offset_width(kind), field.name)]
    return pa.Array.from_buffers(kind, n, buffers, nulls)


def _bytes(references: Array, bases: Array, data: Array, wide: int, name: str) -> tuple[pa.Buffer, pa.Buffer]:
    """The offset and data buffers of gathered byte strings."""
    ends = np.empty(references.size + 1, np.int64)
    total = gather_sizes(references, bases, np.int64(wide), ends)
    if wide == 4 and total > 2**31 - 1:
        raise TooLarge(f"column {name!r} of one output", f"its text takes {total:,} bytes, 32-bit offsets reach 2 GiB",
                       "take smaller steps, or declare the column large_string")  # fmt: skip
    out = new_buffer(total)
    gather_bytes(references, bases, data, np.int64(wide), ends, np.uint64(out.address))
    offsets = new_buffer(ends.size * wide)
    np.frombuffer(offsets, np.int64 if wide == 8 else np.int32, ends.size)[:] = ends
    return offsets, out


def _take(sources: Sequence[Rows | None], references: Array, at: int, kind: pa.DataType) -> pa.Array:
    """Any other type, by Arrow: each batch's rows taken together, then put in order."""
    batch = (references >> SLOT) & SLOTS
    order = np.argsort(batch, kind="stable")
    parts = []
    for number in np.unique(batch):
        source = sources[number]
        assert source is not None, f"a reference points at batch {number}, which is gone"
        parts.append(source.columns[at].take(pa.array(references[batch == number] & ROWS)))
    if not parts:
        return pa.nulls(0, kind)
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    return pa.concat_arrays(parts).take(pa.array(place))


def shown_row(rows: pa.Table | pa.RecordBatch, row: int) -> dict[str, Any]:
    """One row for an error's message: Python values, and the bare number of a time that Python has no value for."""
    out: dict[str, Any] = {}
    for name in rows.schema.names:
        scalar = rows.column(name)[row]
        try:
            out[name] = scalar.as_py()
        except (OverflowError, ValueError):
            out[name] = getattr(scalar, "value", f"a {scalar.type}")
    return out


def dense_ranks(table: pa.Table, equal: Array) -> Array:
    """The dense rank of every row by its columns, left to right: null smallest, NaN largest.

    ``table``: n rows of flat types.  ``equal``: uint64[n], a word that is equal for equal rows (a hash of them).
    Returns int64[n]; equal rows share a rank.  O(n log n).  (Order: docs/semantics.md, ties.)
    """
    if not table.num_columns or not table.num_rows:
        return np.zeros(table.num_rows, np.int64)
    columns: dict[str, Any] = {}
    for i, column in enumerate(table.columns):
        # Arrow sorts NaN beside the nulls, so null-ness and NaN-ness become columns of their own.
        columns[f"{i}valid"] = pc.is_valid(column)
        if pat.is_floating(column.type):
            columns[f"{i}nan"] = pc.fill_null(pc.is_nan(column), False)
            column = pc.add(pc.cast(column, pa.float64()), 0.0)
        elif pat.is_fixed_size_binary(column.type):
            column = pc.cast(column, pa.binary())
        elif pat.is_decimal32(column.type) or pat.is_decimal64(column.type):
            # Arrow sorts the narrow ones wrongly: negative ones come after zero.
            column = pc.cast(column, pa.decimal128(column.type.precision, column.type.scale))
        columns[f"{i}value"] = column
    order = pc.sort_indices(pa.table(columns), [(name, "ascending", "at_start") for name in columns])
    permutation = np.asarray(order).astype(np.int64)
    steps = np.zeros(table.num_rows, np.int64)
    steps[1:] = np.cumsum(equal[permutation][1:] != equal[permutation][:-1])
    ranks = np.empty(table.num_rows, np.int64)
    ranks[permutation] = steps
    return ranks
