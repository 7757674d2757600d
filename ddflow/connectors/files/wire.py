"""Types that a text format cannot hold as such: what is written or parsed instead, and the way back.

Invariant: a value written to CSV or JSON lines and read back as its own type is the same value. ``plain`` makes of a
column one that the format has (instants in UTC, bytes in base64); ``restored`` makes of texts the type meant. Within
lists and objects Arrow's reader of JSON parses values: ``wire`` says as which type it must, because it knows some types
and not others. Numbers keep all their digits: decimals are quoted in JSON, where a number would be rounded by most
readers.

>>> column = pa.array([b"\\xff", None])
>>> plain(column).to_pylist(), restored(plain(column), pa.binary()).equals(column)
(['/w==', None], True)
>>> wire(pa.list_(pa.date32()))
ListType(list<item: string>)
"""

import base64
import binascii
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.casts import build_lists, decimals_of, floats_of
from ddflow.columns.schema import is_bytes, is_text, is_word, normal_type
from ddflow.connectors.files.kinds import is_json

WIDE: Final = pa.decimal256(76, 38)
_ANY: Final = 1 << 30


def is_listed(kind: pa.DataType) -> bool:
    """Return whether values are lists: of any width, of a fixed size, or of a map's entries."""
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind) or pat.is_map(kind))


def element(kind: pa.DataType) -> pa.DataType:
    """Return the type of a list's elements; a map's are structs of key and value."""
    return pa.struct([("key", kind.key_type), ("value", kind.item_type)]) if pat.is_map(kind) else kind.value_type


def holds(kind: pa.DataType, form: str) -> bool:
    """Return whether columns of a type can be written to and read from CSV or JSON lines."""
    if pat.is_struct(kind):
        return is_json(form) and all(holds(field.type, form) for field in kind)
    if is_listed(kind):
        return is_json(form) and holds(element(kind), form)
    return is_word(kind) or is_text(kind) or is_bytes(kind) or bool(pat.is_decimal(kind) or pat.is_null(kind))


def wire(kind: pa.DataType) -> pa.DataType:
    """Return the type for Arrow's JSON reader that can be cast to ``kind``, within lists and objects."""
    if pat.is_struct(kind):
        return pa.struct([field.with_type(wire(field.type)).with_nullable(True) for field in kind])
    if is_listed(kind):
        return pa.list_(wire(element(kind)))
    if is_bytes(kind) or pat.is_null(kind) or is_text(kind) or pat.is_date(kind) or pat.is_time(kind):
        return pa.string()
    if pat.is_decimal(kind):
        return WIDE if kind.precision <= 38 else kind
    return pa.float64() if pat.is_floating(kind) else pa.int64() if pat.is_duration(kind) else kind


def digits_within(kind: pa.DataType) -> int:
    """Return the most digits of a number in lists and objects that Arrow's JSON reader keeps exactly."""
    if pat.is_struct(kind) or is_listed(kind):
        inner = [field.type for field in (kind if pat.is_struct(kind) else [pa.field("", element(kind))])]
        return min(map(digits_within, inner), default=_ANY)
    return 76 - wire(kind).scale if pat.is_decimal(kind) else _ANY


def restored(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column of texts, or one parsed as ``wire(kind)``, to ``kind``.  O(n).

    Raises `ValueError` or an Arrow error if a value does not fit.
    """
    if column.type == kind:
        return column
    if pat.is_struct(kind) and pat.is_struct(column.type):
        # A struct's children, with the nulls of the struct itself in them.
        children = [restored(child, field.type) for child, field in zip(column.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if is_listed(kind) and is_listed(column.type):
        return _restore_lists(column, kind)
    if is_text(column.type):
        if is_bytes(kind):
            return pa.array([_bytes(text) for text in column.to_pylist()], kind)
        if pat.is_time(kind):
            return pc.binary_join_element_wise("1970-01-01", column, " ").cast(pa.timestamp(kind.unit)).cast(kind)
        if pat.is_null(kind) and column.null_count < len(column):
            raise ValueError("a value in a column of type null")
        if pat.is_duration(kind):
            return column.cast(pa.int64()).cast(kind)
        if pat.is_decimal(kind):
            return decimals_of(column, kind)
    if pat.is_floating(kind):
        return floats_of(column, kind)
    return pa.nulls(len(column)) if pat.is_null(kind) else column.cast(kind)


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is no base64: {error}") from None


def as_list(column: pa.Array) -> pa.Array:
    """Convert a map to the list of its entries, on the same buffers; return a list unchanged."""
    if not pat.is_map(column.type):
        return column
    entries = pa.StructArray.from_arrays([column.keys, column.items], fields=list(element(column.type)))
    kind, buffers = pa.list_(entries.type), column.buffers()[:2]
    return pa.ListArray.from_buffers(kind, len(column), buffers, column.null_count, column.offset, [entries])


def ends_of(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the end of each list's elements in ``column.flatten()``, int64[n + 1]; a null list has none."""
    out = np.zeros(len(column) + 1, np.int64)
    np.cumsum(pc.list_value_length(column).fill_null(0), out=out[1:])
    return out


def _restore_lists(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a list column to another kind of list, with its elements restored."""
    return build_lists(kind, ends_of(column), restored(column.flatten(), element(kind)), column.is_null())


def plain(column: pa.Array) -> pa.Array:
    """Convert a flat column to a type of CSV: no encodings, instants in UTC, bytes as base64.  O(n)."""
    if column.type != normal_type(column.type):
        column = column.cast(normal_type(column.type))
    kind = column.type
    if is_bytes(kind):
        encoded = (None if value is None else base64.b64encode(value).decode() for value in column.to_pylist())
        return pa.array(encoded, pa.string(), size=len(column))
    if pat.is_timestamp(kind) and kind.tz:
        return column.cast(pa.timestamp(kind.unit, "UTC"))
    return column
