"""Cells of messages in the types that an input declares: text of JSON, or what a struct already has.

Invariant: a cell comes out exactly, or null and marked: no value is cut, rounded, or read as another kind than the
declared type says. The text of a scalar is read by the type; lists, structs and maps within are read cell by cell.

>>> made, wrong = cells_as(pa.array(["7", "x", None]), pa.int64(), CellForm())
>>> made.to_pylist(), wrong.tolist()
([7, None, None], [False, True, False])
>>> cells_as(pa.array([["1", "2"], None]), pa.list_(pa.int64()), CellForm())
(<pyarrow.lib.ListArray object at ...>
[
  [
    1,
    2
  ],
  null
], None)
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.casts import floats_of
from ddflow.columns.schema import is_bytes, is_text
from ddflow.connectors.formats.decimals import BASE64, PRECISE, decimals, number_in, too_wide
from ddflow.connectors.formats.parse import QUOTED, TEXT, WORDS, Bools, base64_bytes, computed
from ddflow.connectors.formats.times import is_timed, timed

_UNFIT: Final = (pa.ArrowException, ValueError, OverflowError)
BINARIES: Final = ("base64", "base64-url-safe", "hex")
"""Debezium's own words: ``binary.handling.mode``."""


class CellForm(NamedTuple):
    """Form of a column's cells in messages.

    ``unit``: of numbers that are times, "" for the declared type's.  ``decimals``, ``binary``: Debezium's modes.
    ``scale``: of decimals as bytes, None for the declared one.  ``quoted``: whether decimals are JSON.
    """

    unit: str = ""
    decimals: str = PRECISE
    binary: str = "base64"
    scale: int | None = None
    quoted: bool = False


def shape_of(kind: pa.DataType) -> Any:
    """Return the JSON shape that holds the cells of a type: scalars are text.  O(fields)."""
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return [shape_of(kind.value_type)]
    if pat.is_struct(kind):
        return {field.name: shape_of(field.type) for field in kind}
    return QUOTED if pat.is_decimal(kind) else WORDS if is_text(kind) else TEXT


def cells_as(cells: pa.Array, kind: pa.DataType, how: CellForm) -> tuple[pa.Array, Bools | None]:
    """Convert cells to a type, and mark the misfits, which become null; None if all fit.

    O(n); O(log n) more for each misfit.
    """
    if cells.type == kind:
        return cells, None
    try:
        return _convert_cells(cells, kind, how), None
    except _UNFIT:
        known = _misfits(cells, kind, how)
    if known.any():
        cells = pc.if_else(pa.array(known), pa.scalar(None, cells.type), cells)
    made, wrong = _read_by_halves(cells, kind, lambda some: _convert_cells(some, kind, how))
    return made, known if wrong is None else known | wrong


def _misfits(cells: pa.Array, kind: pa.DataType, how: CellForm) -> Bools:
    """Mark misfits that one pass can find: the search by halves takes a millisecond for each."""
    if not is_text(cells.type):
        return np.zeros(len(cells), np.bool_)
    if pat.is_decimal(kind):
        return too_wide(cells, kind, how.decimals, how.scale, how.quoted)
    if is_bytes(kind) and how.binary != "hex":
        return np.asarray(pc.fill_null(pc.invert(pc.match_substring_regex(cells, BASE64)), False))
    return np.zeros(len(cells), np.bool_)


def shown(cell: Any, kind: pa.DataType, how: CellForm) -> tuple[str, str]:
    """Describe a cell that does not fit, and why; show a decimal as its number.

    >>> shown("Czpzzi+D", pa.decimal128(9, 3), CellForm())
    ('12345678901.123', 'it is too wide for decimal128(9, 3)')
    """
    text = cell.strip('"') if isinstance(cell, str) else cell
    if pat.is_decimal(kind) and isinstance(text, str):
        coded = how.decimals == PRECISE and not cell[:1].isdigit()  # a number of JSON has no quotes
        if (number := number_in(text, (kind.scale if how.scale is None else how.scale) if coded else None)) is not None:
            return number, f"it is too wide for {kind}"
    return repr(text), f"which is no {kind}"


def _read_by_halves(
    cells: pa.Array, kind: pa.DataType, make: Callable[[pa.Array], pa.Array]
) -> tuple[pa.Array, Bools | None]:
    try:
        return make(cells), None
    except _UNFIT:
        if len(cells) == 1:
            return pa.nulls(1, kind), np.ones(1, np.bool_)
    middle = len(cells) // 2
    halves = [_read_by_halves(part, kind, make) for part in (cells.slice(0, middle), cells.slice(middle))]
    wrong = [np.zeros(len(made), np.bool_) if bad is None else bad for made, bad in halves]
    return pa.concat_arrays([made for made, _ in halves]), np.concatenate(wrong)


def _convert_cells(cells: pa.Array, kind: pa.DataType, how: CellForm) -> pa.Array:
    """Convert cells to a type.  Raises one of `_UNFIT`."""
    if pat.is_null(cells.type):
        return pa.nulls(len(cells), kind)
    if pat.is_dictionary(kind):
        return _convert_cells(cells, kind.value_type, how).cast(kind)
    if pat.is_decimal(kind):
        return decimals(cells, kind, how.decimals, how.scale, how.quoted)
    if is_timed(kind):
        return timed(cells, kind, how.unit)
    if isinstance(kind, pa.BaseExtensionType):
        return _read_extension(cells, kind, how)
    if pat.is_nested(kind):
        return _read_nested(cells, kind, how)
    if is_bytes(kind):
        return _bytes(cells, how).cast(kind) if is_text(cells.type) else cells.cast(kind)
    return floats_of(cells, kind) if pat.is_floating(kind) else cells.cast(kind)


def _read_extension(cells: pa.Array, kind: Any, how: CellForm) -> pa.Array:
    """Convert cells to an extension type: from a UUID's text with hyphens, else from the storage type."""
    if kind == pa.uuid() and is_text(cells.type):
        digits = pc.replace_substring(cells, "-", "")
        return pa.ExtensionArray.from_storage(kind, _bytes(digits, CellForm(binary="hex")).cast(kind.storage_type))
    return pa.ExtensionArray.from_storage(kind, _convert_cells(cells, kind.storage_type, how))


def _bytes(text: pa.Array, how: CellForm) -> pa.Array:
    if how.binary == "hex":
        wrong = pc.match_substring_regex(text, "[^0-9a-fA-F]|^(..)*.$")
        if pc.any(wrong).as_py():
            raise ValueError("it is not hexadecimal")
        return computed(text, "from_hex(v)")
    if how.binary == "base64-url-safe":
        text = pc.replace_substring(pc.replace_substring(text, "-", "+"), "_", "/")
    return base64_bytes(text)


def _read_nested(cells: pa.Array, kind: Any, how: CellForm) -> pa.Array:
    """Convert lists, structs and maps, one inner type after the other."""

    def whole(some: pa.Array, inner: pa.DataType) -> pa.Array:
        made, wrong = cells_as(some, inner, how)
        if wrong is not None:
            raise ValueError(f"a value within is no {inner}")
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
