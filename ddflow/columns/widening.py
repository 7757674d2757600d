"""Convert column values to wider types and back; the module ``wider`` decides which types are wider.

`widen_column` is exact: two values are equal afterwards exactly if they were equal before, and null stays null.
Therefore rows of a collection that differ, and keys of groups that differ, still differ after a widening. For some
pairs of types, such as int64 to double, not every value fits the wider type. For such types, each value is checked.

>>> widen_column(pa.array([7, None]), pa.decimal128(12, 2)).to_pylist()
[Decimal('7.00'), None]
>>> widen_column(pa.array([2**53 + 1]), pa.float64())
Traceback (most recent call last):
    ...
ddflow.columns.widening.InexactValue: 9007199254740993 has no exact double
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.schema import column_arrays, is_text, to_array
from ddflow.columns.wider import find_widening

PLAIN_SCALE: Final = 6
"""The greatest number of fraction digits with which Arrow writes decimals as plain text.

With more fraction digits than this, Arrow may write an exponent, as in 1E-7.
"""


class InexactValue(ValueError):
    """An error for a value that the wider type cannot hold. ``column``: the column with the value, if known."""

    column = ""


def widen_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to its own type, or to a wider type that `find_widening` allows.

    Missing fields of a struct become null.

    O(values). Raises `InexactValue` for a value that the type cannot hold.
    """
    old = column.type
    if old == kind:
        return column
    if pat.is_integer(old) and pat.is_float64(kind):
        return _widen_to_doubles(column)
    if is_text(kind) and not is_text(old):
        return _widen_to_text(column).cast(kind)
    if pat.is_struct(old):
        had = dict(zip([field.name for field in old], column.flatten(), strict=True))
        parts = [widen_column(had[f.name], f.type) if f.name in had else pa.nulls(len(column), f.type) for f in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    if pat.is_list(old) or pat.is_large_list(old):
        made = pa.LargeListArray if pat.is_large_list(old) else pa.ListArray
        ends = pa.array(np.asarray(column.offsets))  # a copy, because Arrow refuses the offsets of a slice
        return made.from_arrays(ends, widen_column(column.values, kind.value_type), type=kind, mask=column.is_null())
    try:
        if pat.is_integer(old) and pat.is_decimal(kind):
            return column.cast(pa.decimal256(20 + kind.scale, kind.scale)).cast(kind)
        return column.cast(kind)
    except pa.ArrowInvalid:
        raise InexactValue(f"{_find_inexact_value(column, kind)} has no exact {kind}") from None


def _widen_to_doubles(column: pa.Array) -> pa.Array:
    plain = np.asarray(pc.fill_null(column, pa.scalar(0, column.type)))
    doubles = plain.astype(np.float64)
    top = 2.0 ** (plain.dtype.itemsize * 8 - (plain.dtype.kind == "i"))
    back = np.where(doubles < top, doubles, 0).astype(plain.dtype)
    wrong = np.flatnonzero((back != plain) | (doubles >= top))
    if wrong.size:
        raise InexactValue(f"{plain[wrong[0]]} has no exact double")
    return pa.array(doubles, mask=np.asarray(column.is_null()))


def _widen_to_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if kind == pa.uuid() or (pat.is_decimal(kind) and not 0 <= kind.scale <= PLAIN_SCALE):
        said = format if pat.is_decimal(kind) else lambda value, _: str(value)
        return pa.array([None if each is None else said(each, "f") for each in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def _find_inexact_value(column: pa.Array, kind: pa.DataType) -> str:
    """Find the first value that does not fit a type, and return it as text. O(log n) casts."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            widen_column(column.slice(low, middle - low), kind)
            low = middle
        except InexactValue:
            high = middle
    return str(column[low])


def conform_to_wider_schema(table: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a table or batch to a schema with wider types. Missing columns and fields become null.

    O(rows) per changed column. Raises `InexactValue`.
    """
    there, rows = table.schema.names, table.num_rows
    had = dict(zip(there, column_arrays(table), strict=True))
    columns = []
    for field in schema:
        try:
            made = widen_column(had[field.name], field.type) if field.name in had else pa.nulls(rows, field.type)
        except InexactValue as error:
            error.column = field.name
            raise
        columns.append(made)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def narrow_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Undo `conform_to_wider_schema`: cast columns back to narrower types, and drop the added columns of nulls.

    The casts lose nothing. A column that cannot be narrowed keeps its type. O(rows) per changed column.

    >>> narrow_columns(pa.table({"n": [1.0, 2.0], "new": pa.nulls(2)}), pa.schema({"n": pa.int32()})).to_pydict()
    {'n': [1, 2]}
    """
    for name in table.column_names:
        column, at = table.column(name), schema.get_field_index(name)
        if at < 0 and column.null_count == len(column):
            table = table.drop_columns([name])
        elif at >= 0 and find_widening(schema.field(at).type, column.type) is not None:
            whole = to_array(column)
            try:
                narrow = whole.cast(schema.field(at).type)
                same = widen_column(narrow, column.type).equals(whole)
            except (pa.ArrowException, ValueError):
                same = False
            if same:
                table = table.set_column(table.column_names.index(name), schema.field(at), narrow)
    return table
