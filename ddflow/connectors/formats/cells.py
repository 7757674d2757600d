"""Convert cells of messages, which are JSON texts or struct fields, to the declared types.

Guarantees: a conversion loses no information. A number with more digits than its type holds, or a time with a finer
unit than its type, is an error that shows the cell. A decimal gets the same value, whether the cell is text or Kafka
Connect's base64 bytes.
"""

import base64
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.casts import cast_to_floats, parse_decimals
from ddflow.columns.schema import find_invalid_time, is_bytes, is_text
from ddflow.connectors.formats.parse import QUOTED, TEXT, WORDS, Bools, decode_base64, evaluate_sql, parse_objects

PRECISE: Final = "precise"
MODES: Final = (PRECISE, "string", "double")
"""Values of Debezium's option ``decimal.handling.mode``."""
BASE64: Final = '^"?(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"?$'
_WIDE: Final = pa.decimal256(76, 38)


def convert_decimals(
    cells: pa.Array, kind: pa.DataType, mode: str = PRECISE, scale: int | None = None, quoted: bool = False
) -> pa.Array:
    """Convert cells to decimals.  O(n).

    ``scale``: the scale of numbers that are bytes, by default the scale of ``kind``.  ``quoted``: whether cells are
    JSON texts, so that strings have quotes.

    Raises `ValueError` or `pyarrow.ArrowInvalid` for a cell that does not fit.

    >>> convert_decimals(pa.array(["AMg=", "nA==", None]), pa.decimal128(6, 2)).to_pylist()
    [Decimal('2.00'), Decimal('-1.00'), None]
    >>> convert_decimals(pa.array(['{"scale": 1, "value": "Dw=="}']), pa.decimal128(6, 2)).to_pylist()
    [Decimal('1.50')]
    >>> convert_decimals(pa.array(["1.50"]), pa.decimal128(6, 2), "string").to_pylist()
    [Decimal('1.50')]
    >>> convert_decimals(pa.array(["1.5", '"AMg="']), pa.decimal128(6, 2), quoted=True).to_pylist()
    [Decimal('1.50'), Decimal('2.00')]
    """
    if pat.is_binary(cells.type):
        return decode_decimals(cells, kind, scale)
    if pat.is_floating(cells.type):
        return parse_decimals(cells.cast(pa.string()), kind)
    if not is_text(cells.type):
        return cells.cast(kind)
    given = cells
    if quoted:
        cells = pc.ascii_trim(cells, '"')
    if mode != PRECISE:
        return parse_decimals(cells, kind)
    if quoted and not _has_only_strings(given):
        bare = pc.fill_null(pc.match_substring_regex(given, r"^[-0-9]"), False)  # not a JSON string, so not bytes
        if pc.any(bare).as_py():
            none = pa.scalar(None, cells.type)
            text = convert_decimals(pc.if_else(bare, given, none), kind, "string", None, quoted)
            return pc.coalesce(text, convert_decimals(pc.if_else(bare, none, given), kind, mode, scale, quoted))
    variable = pc.fill_null(pc.starts_with(cells, "{"), False)
    if not pc.any(variable).as_py():
        return decode_decimals(decode_base64(cells), kind, scale)
    return _convert_variable_scale(cells, variable, kind, scale)


def mark_invalid_decimals(cells: pa.Array, kind: pa.DataType, mode: str, scale: int | None, quoted: bool) -> Bools:
    """Mark texts that are not numbers, or that do not fit the type.

    The function may miss some invalid texts.  O(n).
    """
    wrong: Bools = np.zeros(len(cells), np.bool_)
    if mode == PRECISE:
        plain = pc.fill_null(pc.match_substring_regex(cells, rf"^[{{0-9-]|{BASE64}"), True)
        wrong = np.logical_not(np.asarray(plain))
        cells = pc.if_else(plain, cells, pa.scalar(None, cells.type))
    try:
        read = convert_decimals(cells, _WIDE, mode, kind.scale if scale is None else scale, quoted)
        whole = pc.equal(read, read.cast(pa.decimal256(76, kind.scale), safe=False).cast(_WIDE))
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        fits = pc.less_equal(pc.abs(read), pa.scalar(most, _WIDE))
    except (pa.ArrowException, ValueError):
        return wrong
    wrong |= np.logical_not(np.asarray(pc.fill_null(pc.and_(whole, fits), True)))
    return wrong


def format_number(text: str, scale: int | None) -> str | None:
    """Return the number in a cell as text; None if the cell has no number.

    ``scale``: the scale if the cell holds base64 bytes; None if it holds text.
    """
    try:
        if scale is None:
            return text if Decimal(text).is_finite() else None
        raw = base64.b64decode(text, validate=True)
        return f"{Decimal(int.from_bytes(raw, 'big', signed=True)).scaleb(-scale):f}" if raw else None
    except (ValueError, ArithmeticError):
        return None


def _has_only_strings(cells: pa.Array) -> bool:
    """Return whether all cells are JSON strings."""
    return pc.all(pc.starts_with(cells, '"')).as_py() is not False


def _convert_variable_scale(cells: pa.Array, variable: pa.Array, kind: pa.DataType, scale: int | None) -> pa.Array:
    """Convert a column of decimals in which some cells are JSON objects with a scale and bytes."""
    none = pa.scalar(None, cells.type)
    out = decode_decimals(decode_base64(pc.if_else(variable, none, cells)), kind, scale)
    read, _ = parse_objects(pc.if_else(variable, cells, none), {"scale": TEXT, "value": TEXT})
    scales, values = (pc.struct_field(read, name) for name in ("scale", "value"))
    for each in pc.unique(scales.drop_null()).to_pylist():
        here = pc.fill_null(pc.equal(scales, each), False)
        out = pc.if_else(here, decode_decimals(decode_base64(pc.if_else(here, values, none)), kind, int(each)), out)
    return out


def decode_decimals(column: pa.Array, kind: pa.DataType, scale: int | None = None) -> pa.Array:
    """Convert big-endian unscaled integers to decimals.  O(n).  Raises `ValueError` for too many bytes."""
    column = column.cast(pa.binary())
    n, width = len(column), kind.bit_width // 8
    _, starts, data = column.buffers()
    ends = np.frombuffer(starts, np.int32)[column.offset : column.offset + n + 1].astype(np.int64)
    sizes = np.diff(ends)
    present = np.asarray(column.is_valid())
    if ((sizes == 0) & present).any() or (sizes > width).any():
        raise ValueError(f"a number of {int(sizes.max())} bytes does not fit {kind}")
    out: Any = np.zeros((n, width), np.uint8)
    if data is not None and data.size and n:
        source = np.frombuffer(data, np.uint8)
        first = np.where(sizes > 0, source[np.minimum(ends[:-1], source.size - 1)], 0)
        out[first >= 128] = 255
        for place in range(int(sizes.max())):
            rows = np.flatnonzero(sizes > place)
            out[rows, place] = source[ends[rows + 1] - 1 - place]
    made = pa.decimal128 if width == 16 else pa.decimal256
    most = 38 if width == 16 else 76
    whole = made(most, kind.scale if scale is None else scale)
    valid = pa.array(present).buffers()[1]
    return pa.Array.from_buffers(whole, n, [valid, pa.py_buffer(out.tobytes())]).cast(kind)


NUMBER: Final = r"^-?[0-9]+$"
DAY: Final = 86_400_000


def convert_times(cells: pa.Array, kind: pa.DataType, unit: str = "") -> pa.Array:
    """Convert numbers or texts to a temporal type.  ``unit``: the unit of numbers, by default the type's unit.  O(n).

    Raises `pyarrow.ArrowInvalid` or `ValueError` for a cell that does not fit.

    >>> convert_times(pa.array(["1700000000000", None]), pa.timestamp("ms")).to_pylist()
    [datetime.datetime(2023, 11, 14, 22, 13, 20), None]
    >>> convert_times(pa.array(["2023-11-14T22:13:20.5Z"]), pa.timestamp("us")).to_pylist()
    [datetime.datetime(2023, 11, 14, 22, 13, 20, 500000)]
    >>> convert_times(pa.array(["19675", "2023-11-14Z"]), pa.date32()).to_pylist()
    [datetime.date(2023, 11, 14), datetime.date(2023, 11, 14)]
    """
    made = _convert_times_unchecked(cells, kind, unit)
    if find_invalid_time(made) >= 0:
        raise ValueError("the time is out of range")
    return made


def _convert_times_unchecked(cells: pa.Array, kind: pa.DataType, unit: str) -> pa.Array:
    if pat.is_integer(cells.type):
        return _convert_numbers_to_times(cells.cast(pa.int64()), kind, unit)
    if not is_text(cells.type):
        return cells.cast(kind)
    try:
        return _convert_numbers_to_times(cells.cast(pa.int64()), kind, unit)
    except pa.ArrowInvalid:
        pass
    numbers = pc.fill_null(pc.match_substring_regex(cells, NUMBER), True)
    none = pa.scalar(None, cells.type)
    counted = _convert_numbers_to_times(pc.if_else(numbers, cells, none).cast(pa.int64()), kind, unit)
    return pc.if_else(numbers, counted, _convert_texts_to_times(pc.if_else(numbers, none, cells), kind))


def _convert_numbers_to_times(numbers: pa.Array, kind: pa.DataType, unit: str) -> pa.Array:
    if pat.is_date32(kind):
        return numbers.cast(pa.int32()).cast(kind)
    if pat.is_date64(kind):
        return pc.multiply_checked(numbers, DAY).cast(kind)
    of: Any = unit or kind.unit
    if pat.is_timestamp(kind):
        return numbers.cast(pa.timestamp(of, kind.tz)).cast(kind)
    if pat.is_duration(kind):
        return numbers.cast(pa.duration(unit or "us")).cast(kind)
    if of in ("s", "ms"):
        return numbers.cast(pa.int32()).cast(pa.time32(of)).cast(kind)
    return numbers.cast(pa.time64(of)).cast(kind)


def _convert_texts_to_times(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if pat.is_time(kind):
        whole = pc.binary_join_element_wise("1970-01-01", pc.replace_substring_regex(text, "Z$", ""), "T")
        return whole.cast(pa.timestamp(kind.unit)).cast(kind)
    if not pat.is_timestamp(kind):
        return pc.replace_substring_regex(text, "Z$", "").cast(kind)
    zoned = pc.match_substring_regex(text, r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)$")
    zoned = pc.and_(zoned, pc.match_substring(text, ":"))  # the end of a date without a time looks like an offset
    if kind.tz is None:
        if not pc.any(zoned).as_py():
            return text.cast(kind)
        whole = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
        return whole.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
    return text.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)


_UNFIT: Final = (pa.ArrowException, ValueError, OverflowError)
BINARIES: Final = ("base64", "base64-url-safe", "hex")
"""Values of Debezium's option ``binary.handling.mode``."""


class CellEncoding(NamedTuple):
    """Encoding of a column's cells in messages.

    ``unit``: the unit of times that are numbers; "" means the unit of the declared type.  ``decimals``, ``binary``:
    values of Debezium's options ``decimal.handling.mode`` and ``binary.handling.mode``.  ``scale``: the scale of
    decimals that are bytes; None means the declared scale.  ``quoted``: whether decimals are JSON texts.

    >>> made, wrong = cast_cells(pa.array(["7", "x", None]), pa.int64(), CellEncoding())
    >>> made.to_pylist(), wrong.tolist()
    ([7, None, None], [False, True, False])
    >>> cast_cells(pa.array([["1", "2"], None]), pa.list_(pa.int64()), CellEncoding())
    (<pyarrow.lib.ListArray object at ...>
    [
      [
        1,
        2
      ],
      null
    ], None)
    """

    unit: str = ""
    decimals: str = PRECISE
    binary: str = "base64"
    scale: int | None = None
    quoted: bool = False


def build_json_shape(kind: pa.DataType) -> Any:
    """Return the shape that `parse_objects` needs for cells of a type.  Scalars stay text.  O(fields)."""
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return [build_json_shape(kind.value_type)]
    if pat.is_struct(kind):
        return {field.name: build_json_shape(field.type) for field in kind}
    return QUOTED if pat.is_decimal(kind) else WORDS if is_text(kind) else TEXT


def cast_cells(cells: pa.Array, kind: pa.DataType, how: CellEncoding) -> tuple[pa.Array, Bools | None]:
    """Convert cells to a type, and mark the cells that do not fit.

    A cell that does not fit becomes null.  The marks are None if all cells fit.  O(n), plus O(log n) for each cell that
    does not fit.
    """
    if cells.type == kind:
        return cells, None
    try:
        return _convert_cells(cells, kind, how), None
    except _UNFIT:
        known = _mark_unconvertible_cells(cells, kind, how)
    if known.any():
        cells = pc.if_else(pa.array(known), pa.scalar(None, cells.type), cells)
    made, wrong = convert_by_bisection(cells, kind, lambda some: _convert_cells(some, kind, how))
    return made, known if wrong is None else known | wrong


def _mark_unconvertible_cells(cells: pa.Array, kind: pa.DataType, how: CellEncoding) -> Bools:
    """Mark the cells that do not fit, as far as one pass over the cells finds them.

    `convert_by_bisection` finds every cell that does not fit, but is slower.
    """
    if not is_text(cells.type):
        return np.zeros(len(cells), np.bool_)
    if pat.is_decimal(kind):
        return mark_invalid_decimals(cells, kind, how.decimals, how.scale, how.quoted)
    if is_bytes(kind) and how.binary != "hex":
        return np.asarray(pc.fill_null(pc.invert(pc.match_substring_regex(cells, BASE64)), False))
    return np.zeros(len(cells), np.bool_)


def describe_unconvertible_cell(cell: Any, kind: pa.DataType, how: CellEncoding) -> tuple[str, str]:
    """Return the text of a cell that does not fit its type, and the reason.  Decimals are shown as numbers.

    >>> describe_unconvertible_cell("Czpzzi+D", pa.decimal128(9, 3), CellEncoding())
    ('12345678901.123', 'it is too wide for decimal128(9, 3)')
    """
    text = cell.strip('"') if isinstance(cell, str) else cell
    if pat.is_decimal(kind) and isinstance(text, str):
        coded = how.decimals == PRECISE and not cell[:1].isdigit()  # a JSON number has no quotes
        if (
            number := format_number(text, (kind.scale if how.scale is None else how.scale) if coded else None)
        ) is not None:
            return number, f"it is too wide for {kind}"
    return repr(text), f"which is not a valid {kind}"


def convert_by_bisection(
    cells: pa.Array, kind: pa.DataType, make: Callable[[pa.Array], pa.Array]
) -> tuple[pa.Array, Bools | None]:
    """Convert cells with ``make``, and mark the cells that ``make`` cannot convert.

    A marked cell becomes null.  The marks are None if ``make`` converts all cells.
    """
    try:
        return make(cells), None
    except _UNFIT:
        if len(cells) == 1:
            return pa.nulls(1, kind), np.ones(1, np.bool_)
    middle = len(cells) // 2
    halves = [convert_by_bisection(part, kind, make) for part in (cells.slice(0, middle), cells.slice(middle))]
    wrong = [np.zeros(len(made), np.bool_) if bad is None else bad for made, bad in halves]
    return pa.concat_arrays([made for made, _ in halves]), np.concatenate(wrong)


def _convert_cells(cells: pa.Array, kind: pa.DataType, how: CellEncoding) -> pa.Array:
    """Convert cells to a type.  Raises an error in `_UNFIT` if a cell does not fit."""
    if pat.is_null(cells.type):
        return pa.nulls(len(cells), kind)
    if pat.is_dictionary(kind):
        return _convert_cells(cells, kind.value_type, how).cast(kind)
    if pat.is_decimal(kind):
        return convert_decimals(cells, kind, how.decimals, how.scale, how.quoted)
    if pat.is_temporal(kind):
        return convert_times(cells, kind, how.unit)
    if isinstance(kind, pa.BaseExtensionType):
        return _convert_to_extension(cells, kind, how)
    if pat.is_nested(kind):
        return _convert_nested(cells, kind, how)
    if is_bytes(kind):
        return _decode_bytes(cells, how).cast(kind) if is_text(cells.type) else cells.cast(kind)
    return cast_to_floats(cells, kind) if pat.is_floating(kind) else cells.cast(kind)


def _convert_to_extension(cells: pa.Array, kind: Any, how: CellEncoding) -> pa.Array:
    """Convert cells to an extension type.

    A UUID is converted from text with hyphens, and every other type from cells of its storage type.
    """
    if kind == pa.uuid() and is_text(cells.type):
        digits = pc.replace_substring(cells, "-", "")
        return pa.ExtensionArray.from_storage(
            kind, _decode_bytes(digits, CellEncoding(binary="hex")).cast(kind.storage_type)
        )
    return pa.ExtensionArray.from_storage(kind, _convert_cells(cells, kind.storage_type, how))


def _decode_bytes(text: pa.Array, how: CellEncoding) -> pa.Array:
    if how.binary == "hex":
        wrong = pc.match_substring_regex(text, "[^0-9a-fA-F]|^(..)*.$")
        if pc.any(wrong).as_py():
            raise ValueError("it is not hexadecimal")
        return evaluate_sql(text, "from_hex(v)")
    if how.binary == "base64-url-safe":
        text = pc.replace_substring(pc.replace_substring(text, "-", "+"), "_", "/")
    return decode_base64(text)


def _convert_nested(cells: pa.Array, kind: Any, how: CellEncoding) -> pa.Array:
    """Convert lists, structs and maps, and the values in them."""

    def whole(some: pa.Array, inner: pa.DataType) -> pa.Array:
        made, wrong = cast_cells(some, inner, how)
        if wrong is not None:
            raise ValueError(f"a nested value is not a valid {inner}")
        return made

    if pat.is_map(kind) or not pat.is_nested(cells.type):
        return cells.cast(kind)
    if pat.is_struct(kind):
        names = [field.name for field in cells.type]
        parts = [
            whole(pc.struct_field(cells, f.name), f.type) if f.name in names else pa.nulls(len(cells), f.type)
            for f in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=cells.is_null())
    some = cells.cast(pa.list_(cells.type.value_type))
    ends = np.asarray(some.offsets)
    values = some.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    made = pa.ListArray.from_arrays(pa.array(ends - ends[0]), whole(values, kind.value_type), mask=cells.is_null())
    return made.cast(kind)
