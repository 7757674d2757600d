"""Cells of messages as decimals: Connect's bytes in base64, text, or a double.

Invariant: what comes out is the number that was written, or an error: bytes are the unscaled number, two's complement,
greatest byte first, whose scale the message's schema or the declared type has; text keeps every digit, and a number
that stands bare in JSON is read as such text, of 15 digits or fewer where it is a fraction; only a double, which was
one at the source already, is rounded to the declared digits. Nothing loops over numbers.

>>> decimals(pa.array(["AMg=", "nA==", None]), pa.decimal128(6, 2)).to_pylist()
[Decimal('2.00'), Decimal('-1.00'), None]
>>> decimals(pa.array(['{"scale": 1, "value": "Dw=="}']), pa.decimal128(6, 2)).to_pylist()
[Decimal('1.50')]
>>> decimals(pa.array(["1.50"]), pa.decimal128(6, 2), "string").to_pylist()
[Decimal('1.50')]
>>> decimals(pa.array(["1.5", '"AMg="']), pa.decimal128(6, 2), quoted=True).to_pylist()
[Decimal('1.50'), Decimal('2.00')]
"""

import base64
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.schema import is_text
from ddflow.connectors.formats.parse import TEXT, Bools, base64_bytes, objects

PRECISE: Final = "precise"
MODES: Final = (PRECISE, "string", "double")
"""Debezium's own words: ``decimal.handling.mode``."""
BASE64: Final = '^"?(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"?$'
_WIDE: Final = pa.decimal256(76, 38)


def decimals(
    cells: pa.Array, kind: pa.DataType, mode: str = PRECISE, scale: int | None = None, quoted: bool = False
) -> pa.Array:
    """Cells as decimals.  ``scale``: of numbers as bytes, by default the declared one.  ``quoted``: as JSON.  O(n).

    Raises `ValueError` or `pyarrow.ArrowInvalid` for what does not fit.
    """
    if pat.is_binary(cells.type):
        return unscaled(cells, kind, scale)
    if not is_text(cells.type):
        return cells.cast(kind)
    given = cells
    if quoted:
        cells = _unquoted(cells, mode)
    if mode == "double":
        return cells.cast(pa.float64()).cast(kind)
    if mode == "string":
        return cells.cast(kind)
    if quoted and not _strings(given):
        bare = pc.fill_null(pc.match_substring_regex(given, r"^[-0-9]"), False)  # no JSON string, so no bytes
        if pc.any(bare).as_py():
            none = pa.scalar(None, cells.type)
            text = decimals(pc.if_else(bare, given, none), kind, "string", None, quoted)
            return pc.coalesce(text, decimals(pc.if_else(bare, none, given), kind, mode, scale, quoted))
    variable = pc.fill_null(pc.starts_with(cells, "{"), False)
    if not pc.any(variable).as_py():
        return unscaled(base64_bytes(cells), kind, scale)
    return _variable(cells, variable, kind, scale)


def too_wide(cells: pa.Array, kind: pa.DataType, mode: str, scale: int | None, quoted: bool) -> Bools:
    """Which texts are numbers that do not fit, or none at all, where all can be seen at once; else none.  O(n)."""
    wrong: Bools = np.zeros(len(cells), np.bool_)
    if mode == "double":
        return wrong
    if mode == PRECISE:
        plain = pc.fill_null(pc.match_substring_regex(cells, rf"^[{{0-9-]|{BASE64}"), True)
        wrong = np.logical_not(np.asarray(plain))
        cells = pc.if_else(plain, cells, pa.scalar(None, cells.type))
    try:
        read = decimals(cells, _WIDE, mode, kind.scale if scale is None else scale, quoted)
    except (pa.ArrowException, ValueError):
        return wrong
    whole = pc.equal(read, read.cast(pa.decimal256(76, kind.scale), safe=False).cast(_WIDE))
    fits = pc.less(pc.abs(read), pa.scalar(Decimal(10) ** (kind.precision - kind.scale), _WIDE))
    wrong |= np.logical_not(np.asarray(pc.fill_null(pc.and_(whole, fits), True)))
    return wrong


def number_in(text: str, scale: int | None) -> str | None:
    """The number that a cell is, in words; None where it is none.  ``scale``: of one that is bytes in base64."""
    try:
        if scale is None:
            return text if len(text) <= 15 and Decimal(text).is_finite() else None  # longer ones JSON may have rounded
        raw = base64.b64decode(text, validate=True)
        return f"{Decimal(int.from_bytes(raw, 'big', signed=True)).scaleb(-scale):f}" if raw else None
    except (ValueError, ArithmeticError):
        return None


def _unquoted(cells: pa.Array, mode: str) -> pa.Array:
    """Strings without their quotes.  Raises `ValueError` for fractions of more digits than readers of JSON keep."""
    if mode == "string" and not _strings(cells) and (pc.max(pc.binary_length(cells)).as_py() or 0) > 15:
        many = pc.greater(pc.count_substring_regex(cells, "[0-9]"), 15)
        rounded = pc.and_(pc.match_substring_regex(cells, r"^-?[0-9]+[.eE]"), many)
        if pc.any(rounded).as_py():
            raise ValueError("a fraction of more than 15 digits is a double in JSON: write it as a string")
    return pc.ascii_trim(cells, '"')


def _strings(cells: pa.Array) -> bool:
    """Whether all cells are strings of JSON."""
    return pc.all(pc.starts_with(cells, '"')).as_py() is not False


def _variable(cells: pa.Array, variable: pa.Array, kind: pa.DataType, scale: int | None) -> pa.Array:
    """Numbers of which some are objects of a scale and bytes."""
    none = pa.scalar(None, cells.type)
    out = unscaled(base64_bytes(pc.if_else(variable, none, cells)), kind, scale)
    read, _ = objects(pc.if_else(variable, cells, none), {"scale": TEXT, "value": TEXT})
    scales, values = (pc.struct_field(read, name) for name in ("scale", "value"))
    for each in pc.unique(scales.drop_null()).to_pylist():
        here = pc.fill_null(pc.equal(scales, each), False)
        out = pc.if_else(here, unscaled(base64_bytes(pc.if_else(here, values, none)), kind, int(each)), out)
    return out


def unscaled(column: pa.Array, kind: pa.DataType, scale: int | None = None) -> pa.Array:
    """Numbers from the bytes of their unscaled integers.  O(n).  Raises `ValueError` for too many bytes."""
    column = column.cast(pa.binary())
    n, width = len(column), kind.bit_width // 8
    _, starts, data = column.buffers()
    ends = np.frombuffer(starts, np.int32)[column.offset : column.offset + n + 1].astype(np.int64)
    sizes = np.diff(ends)
    present = np.asarray(column.is_valid())
    if ((sizes == 0) & present).any() or (sizes > width).any():
        raise ValueError(f"a number of {int(sizes.max())} bytes is no {kind}")
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
