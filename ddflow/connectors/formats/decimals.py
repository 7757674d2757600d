"""Cells of messages as decimals: Connect's bytes in base64, or text.

Invariant: what comes out is the number that was written, or an error: bytes are the unscaled number, two's complement,
greatest byte first, whose scale the message's schema or the declared type has; text, and a number that stands bare in
JSON, keep every digit. A double counts as its shortest text. Nothing loops over
numbers of usual length.

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

from ddflow.columns.casts import decimals_of
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
    """Convert cells to decimals.  O(n).

    ``scale``: of numbers as bytes, by default the declared one.  ``quoted``: as JSON.

    Raises `ValueError` or `pyarrow.ArrowInvalid` for a cell that does not fit.
    """
    if pat.is_binary(cells.type):
        return unscaled(cells, kind, scale)
    if pat.is_floating(cells.type):
        return decimals_of(cells.cast(pa.string()), kind)
    if not is_text(cells.type):
        return cells.cast(kind)
    given = cells
    if quoted:
        cells = pc.ascii_trim(cells, '"')
    if mode != PRECISE:
        return decimals_of(cells, kind)
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
    """Mark texts that are no numbers, or do not fit; none if one pass cannot find them.  O(n)."""
    wrong: Bools = np.zeros(len(cells), np.bool_)
    if mode == PRECISE:
        plain = pc.fill_null(pc.match_substring_regex(cells, rf"^[{{0-9-]|{BASE64}"), True)
        wrong = np.logical_not(np.asarray(plain))
        cells = pc.if_else(plain, cells, pa.scalar(None, cells.type))
    try:
        read = decimals(cells, _WIDE, mode, kind.scale if scale is None else scale, quoted)
        whole = pc.equal(read, read.cast(pa.decimal256(76, kind.scale), safe=False).cast(_WIDE))
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        fits = pc.less_equal(pc.abs(read), pa.scalar(most, _WIDE))
    except (pa.ArrowException, ValueError):
        return wrong
    wrong |= np.logical_not(np.asarray(pc.fill_null(pc.and_(whole, fits), True)))
    return wrong


def number_in(text: str, scale: int | None) -> str | None:
    """Format the number in a cell; None if it is not a number.  ``scale``: of bytes in base64, None for text."""
    try:
        if scale is None:
            return text if Decimal(text).is_finite() else None
        raw = base64.b64decode(text, validate=True)
        return f"{Decimal(int.from_bytes(raw, 'big', signed=True)).scaleb(-scale):f}" if raw else None
    except (ValueError, ArithmeticError):
        return None


def _strings(cells: pa.Array) -> bool:
    """Return whether all cells are strings of JSON."""
    return pc.all(pc.starts_with(cells, '"')).as_py() is not False


def _variable(cells: pa.Array, variable: pa.Array, kind: pa.DataType, scale: int | None) -> pa.Array:
    """Convert numbers if some are objects of a scale and bytes."""
    none = pa.scalar(None, cells.type)
    out = unscaled(base64_bytes(pc.if_else(variable, none, cells)), kind, scale)
    read, _ = objects(pc.if_else(variable, cells, none), {"scale": TEXT, "value": TEXT})
    scales, values = (pc.struct_field(read, name) for name in ("scale", "value"))
    for each in pc.unique(scales.drop_null()).to_pylist():
        here = pc.fill_null(pc.equal(scales, each), False)
        out = pc.if_else(here, unscaled(base64_bytes(pc.if_else(here, values, none)), kind, int(each)), out)
    return out


def unscaled(column: pa.Array, kind: pa.DataType, scale: int | None = None) -> pa.Array:
    """Convert the bytes of unscaled integers to decimals.  O(n).  Raises `ValueError` for too many bytes."""
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
