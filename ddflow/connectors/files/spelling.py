"""Parse texts to typed values, and convert types that CSV and JSON cannot store directly.

Guarantees: type guesses and the parsing of later rows use the same patterns, so the reader never refuses a value that a
guess accepted. If a value is written as text and the text is parsed with the value's type, the result is the same
value.
"""

import base64
import binascii
from bisect import bisect_left
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.casts import build_list_array, cast_to_floats, parse_decimals
from ddflow.columns.schema import is_bytes, is_text, is_word_type, normalize_type
from ddflow.connectors.files.kinds import USUAL, ValueFormats, is_json_kind
from ddflow.expressions.types import is_number

WIDE: Final = pa.decimal256(76, 38)
_ANY: Final = 1 << 30


def is_list_like(kind: pa.DataType) -> bool:
    """Return whether a type is a list, a large list, a fixed-size list or a map."""
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind) or pat.is_map(kind))


def element_type(kind: pa.DataType) -> pa.DataType:
    """Return the element type of a list; the elements of a map are structs of key and value."""
    return pa.struct([("key", kind.key_type), ("value", kind.item_type)]) if pat.is_map(kind) else kind.value_type


def is_storable_in_text(kind: pa.DataType, form: str) -> bool:
    """Return whether a text format can hold columns of a type; ``form``: the name of the format."""
    if pat.is_struct(kind):
        return is_json_kind(form) and all(is_storable_in_text(field.type, form) for field in kind)
    if is_list_like(kind):
        return is_json_kind(form) and is_storable_in_text(element_type(kind), form)
    return is_word_type(kind) or is_text(kind) or is_bytes(kind) or bool(pat.is_decimal(kind) or pat.is_null(kind))


def find_json_reader_type(kind: pa.DataType) -> pa.DataType:
    """Return a type for Arrow's JSON reader that `cast_parsed_column` can then convert to ``kind``.

    >>> column = pa.array([b"\\xff", None])
    >>> to_csv_type(column).to_pylist(), cast_parsed_column(to_csv_type(column), pa.binary()).equals(column)
    (['/w==', None], True)
    >>> find_json_reader_type(pa.list_(pa.date32()))
    ListType(list<item: string>)
    """
    if pat.is_struct(kind):
        return pa.struct([field.with_type(find_json_reader_type(field.type)).with_nullable(True) for field in kind])
    if is_list_like(kind):
        return pa.list_(find_json_reader_type(element_type(kind)))
    if is_bytes(kind) or pat.is_null(kind) or is_text(kind) or pat.is_date(kind) or pat.is_time(kind):
        return pa.string()
    if pat.is_decimal(kind):
        return WIDE if kind.precision <= 38 else kind
    return pa.float64() if pat.is_floating(kind) else pa.int64() if pat.is_duration(kind) else kind


def find_max_exact_digits(kind: pa.DataType) -> int:
    """Return the maximum number of digits that Arrow's JSON reader keeps exactly for numbers in lists and objects."""
    if pat.is_struct(kind) or is_list_like(kind):
        inner = [field.type for field in (kind if pat.is_struct(kind) else [pa.field("", element_type(kind))])]
        return min(map(find_max_exact_digits, inner), default=_ANY)
    return 76 - find_json_reader_type(kind).scale if pat.is_decimal(kind) else _ANY


def cast_parsed_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to ``kind``.  The column has texts, or values parsed as ``find_json_reader_type(kind)``.  O(n).

    Raises `ValueError` or an Arrow error if a value does not fit.
    """
    if column.type == kind:
        return column
    if pat.is_struct(kind) and pat.is_struct(column.type):
        # `flatten` applies the nulls of the struct to its children.
        children = [cast_parsed_column(child, field.type) for child, field in zip(column.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if is_list_like(kind) and is_list_like(column.type):
        return _cast_lists(column, kind)
    if is_text(column.type):
        if is_bytes(kind):
            return pa.array([_decode_base64(text) for text in column.to_pylist()], kind)
        if pat.is_time(kind):
            return pc.binary_join_element_wise("1970-01-01", column, " ").cast(pa.timestamp(kind.unit)).cast(kind)
        if pat.is_null(kind) and column.null_count < len(column):
            raise ValueError("a column of type null has a value")
        if pat.is_duration(kind):
            return column.cast(pa.int64()).cast(kind)
        if pat.is_decimal(kind):
            return parse_decimals(column, kind)
    if pat.is_floating(kind):
        return cast_to_floats(column, kind)
    return pa.nulls(len(column)) if pat.is_null(kind) else column.cast(kind)


def _decode_base64(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not valid base64: {error}") from None


def convert_map_to_list(column: pa.Array) -> pa.Array:
    """Convert a map to a list of its entries without a copy; return a list unchanged."""
    if not pat.is_map(column.type):
        return column
    entries = pa.StructArray.from_arrays([column.keys, column.items], fields=list(element_type(column.type)))
    kind, buffers = pa.list_(entries.type), column.buffers()[:2]
    return pa.ListArray.from_buffers(kind, len(column), buffers, column.null_count, column.offset, [entries])


def compute_list_offsets(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the offsets of the lists in ``column.flatten()``, int64[n + 1]; a null list has no elements."""
    out = np.zeros(len(column) + 1, np.int64)
    np.cumsum(pc.list_value_length(column).fill_null(0), out=out[1:])
    return out


def _cast_lists(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a list column to another list type, and cast its elements."""
    return build_list_array(
        kind, compute_list_offsets(column), cast_parsed_column(column.flatten(), element_type(kind)), column.is_null()
    )


def to_csv_type(column: pa.Array) -> pa.Array:
    """Convert a flat column to a type for CSV: plain encoding, timestamps in UTC, bytes as base64.  O(n)."""
    if column.type != normalize_type(column.type):
        column = column.cast(normalize_type(column.type))
    kind = column.type
    if is_bytes(kind):
        encoded = (None if value is None else base64.b64encode(value).decode() for value in column.to_pylist())
        return pa.array(encoded, pa.string(), size=len(column))
    if pat.is_timestamp(kind) and kind.tz:
        return column.cast(pa.timestamp(kind.unit, "UTC"))
    return column


EXACT: Final = 15
"""Number of significant decimal digits that every double keeps."""

_NUMBER: Final = r"^(-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?|nan|NaN|-?inf|-?Infinity)$"
_NOUGHT: Final = r"^(-?0*\.?0*([eE].*)?|[nN].*|-?[iI].*)$"
_BOOLEAN: Final = pa.array(["true", "True", "TRUE", "false", "False", "FALSE", None])
_DECLARED: Final = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)$"
_TIME: Final = r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?$"


class UnparsableValue(Exception):
    """A text is not a value of the requested type.  ``row``: the index of the text.

    >>> parse_texts_strictly(pa.array(["7", None, "-12"]), pa.int64()).to_pylist()
    [7, None, -12]
    >>> for text, kind in (("007", pa.int64()), ("0.1234567890123456", pa.float64()), ("2024-02-30", pa.date32())):
    ...     try:
    ...         parse_texts_strictly(pa.array([None, text]), kind)
    ...     except UnparsableValue as error:
    ...         print(error.row)
    1
    1
    1
    """

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


def parse_texts_strictly(
    texts: pa.Array, kind: pa.DataType, shortest: bool = False, forms: ValueFormats = USUAL
) -> pa.Array:
    """Convert texts to values of a type; null stays null.  Raises `UnparsableValue` for an invalid text.  O(n).

    ``shortest``: accept a double with more than `EXACT` digits if the text is its shortest notation.
    ``forms``: the notation of numbers and dates.
    """
    texts = forms.normalize(texts, kind)
    if pat.is_boolean(kind):
        _check_all_valid(pc.is_in(texts, value_set=_BOOLEAN))
    elif (spelled := _build_value_pattern(kind)) is not None:
        _check_all_valid(pc.match_substring_regex(texts, spelled))
    found = _cast_texts(texts, kind)
    if pat.is_integer(kind) or pat.is_duration(kind):
        # Only the canonical text of an integer is valid.
        _check_all_valid(
            pc.equal(
                found.cast(pa.int64()).cast(pa.string()) if pat.is_duration(kind) else found.cast(pa.string()), texts
            )
        )
    elif pat.is_float64(kind):
        _check_exact_doubles(texts, found, shortest)
    return found


def parse_texts_leniently(texts: pa.Array, kind: pa.DataType, forms: ValueFormats = USUAL) -> pa.Array:
    """Convert texts to a declared type by Arrow's rules, after trimming whitespace.  O(n).

    A number may have a sign, leading and trailing zeros, and an exponent, if the type can hold it. Floats are rounded
    to the nearest value. Raises `UnparsableValue` for a text that cannot be converted.
    """
    if is_text(kind):
        return _cast_texts(texts, kind)
    texts = forms.normalize(pc.utf8_trim_whitespace(texts), kind)
    if is_number(kind):
        _check_all_valid(pc.match_substring_regex(texts, _DECLARED))
        texts = pc.replace_substring_regex(texts, r"^\+", "")
    return _cast_texts(texts, kind)


def _build_value_pattern(kind: pa.DataType) -> str | None:
    """Return the regular expression for all valid texts of a type; None if Arrow's cast is strict enough.

    Arrow parses dates and timestamps only in ISO 8601 without surrounding spaces. `ValueFormats` converts other formats
    to ISO 8601.
    """
    if pat.is_floating(kind):
        return _NUMBER
    if pat.is_decimal(kind):
        before, after = kind.precision - kind.scale, kind.scale
        whole = rf"[1-9]\d{{0,{before - 1}}}"
        if after <= 0:
            return rf"^(0|-?{whole})$"
        return rf"^-?{rf'(0|{whole})' if before > 0 else '0'}(\.\d{{1,{after}}})?$"
    return _TIME if pat.is_time(kind) else None


def _check_all_valid(good: pa.BooleanArray) -> None:
    row = pc.index(good, False).as_py()
    if row >= 0:
        raise UnparsableValue(row)


def is_parsable_as(texts: pa.Array, kind: pa.DataType, shortest: bool = False, forms: ValueFormats = USUAL) -> bool:
    """Return whether `parse_texts_strictly` accepts all texts for a type.  O(n)."""
    try:
        parse_texts_strictly(texts, kind, shortest, forms)
    except UnparsableValue:
        return False
    return True


def _cast_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return cast_parsed_column(texts, kind)
    except (pa.ArrowException, ValueError):
        row = bisect_left(range(len(texts)), True, key=lambda n: _cast_fails(texts.slice(0, n + 1), kind))
        raise UnparsableValue(row) from None


def _cast_fails(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        cast_parsed_column(texts, kind)
    except (pa.ArrowException, ValueError):
        return True
    return False


def _check_exact_doubles(texts: pa.Array, found: pa.Array, shortest: bool) -> None:
    """Raise `UnparsableValue` for a number with more digits than a double keeps, or beyond the range of a double."""
    rows = np.flatnonzero(pc.fill_null(pc.greater(pc.binary_length(texts), EXACT), False))
    if len(rows):
        digits = _extract_significant_digits(texts.take(pa.array(rows)))
        many = np.asarray(pc.greater(pc.binary_length(digits), EXACT))
        if shortest and many.any():
            own = _extract_significant_digits(found.take(pa.array(rows)).cast(pa.string()))
            many &= np.asarray(pc.not_equal(*(pc.utf8_rtrim(each, "0") for each in (digits, own))))
        if len(rows := rows[many]):
            raise UnparsableValue(int(rows[0]))
    size, limits = np.abs(np.asarray(found.fill_null(1.0))), np.finfo(np.float64)
    rows = np.flatnonzero(~((size >= limits.smallest_normal) & (size <= limits.max)))
    if len(rows):
        some = texts.take(pa.array(rows))
        shown = found.take(pa.array(rows)).cast(pa.string())
        own = pc.equal(
            *(pc.utf8_rtrim(_extract_significant_digits(each), "0") for each in (some, shown))
        )  # true for a subnormal number
        meant = pc.or_(pc.match_substring_regex(some, _NOUGHT), own)
        if len(rows := rows[~np.asarray(meant)]):
            raise UnparsableValue(int(rows[0]))


def _extract_significant_digits(texts: pa.Array) -> pa.Array:
    """Return the significant digits of number texts, with trailing zeros."""
    return pc.utf8_ltrim(pc.replace_substring_regex(texts, "[eE].*|[-.]", ""), "0")
