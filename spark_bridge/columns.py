"""Columns across the border: which type carries which, and the casts there and back that lose nothing or fail.

Invariant: ``restored(carried(rows)) == rows``. Each of a flow's types has one type that Spark hands over and takes
(``carrier``); whatever Spark delivers in it becomes the flow's own again. Spark has no unsigned integers, one unit of
time, no fixed widths, and hands timestamps over in the zone of the session; ``mapInArrow`` fails late on a wrong type.
What travels is nullable throughout, and so is, inside a column, what a flow computes with: a null struct has children
that are not there, whatever they are declared to be. What a DataFrame's columns are in Arrow, and a flow's in Spark,
is for ``schemas``.

>>> carrier(pa.struct({"n": pa.uint64(), "at": pa.timestamp("s", "Europe/Zurich")}))
StructType(struct<n: decimal128(20, 0), at: timestamp[us, tz=UTC]>)
>>> there = carried(pa.record_batch({"n": pa.array([2**64 - 1], pa.uint64())}), "the example")
>>> there.column(0).type, restored(pa.table(there), pa.schema({"n": pa.uint64()}), "the example").to_pylist()
(Decimal128Type(decimal128(20, 0)), [{'n': 18446744073709551615}])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from ddflow.errors import SchemaMismatch, SpecError

_ITSELF: tuple[Callable[[pa.DataType], bool], ...] = (
    pat.is_null,
    pat.is_boolean,
    pat.is_int8,
    pat.is_int16,
    pat.is_int32,
    pat.is_int64,
    pat.is_float32,
    pat.is_float64,
)
_FIXED: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pat.is_uint8, pa.int16()),
    (pat.is_uint16, pa.int32()),
    (pat.is_uint32, pa.int64()),
    (pat.is_uint64, pa.decimal128(20)),
    (pat.is_date, pa.date32()),
    (pat.is_time, pa.time64("ns")),
    (pat.is_duration, pa.duration("us")),
    (pat.is_string, pa.string()),
    (pat.is_large_string, pa.string()),
    (pat.is_binary, pa.binary()),
    (pat.is_large_binary, pa.binary()),
    (pat.is_fixed_size_binary, pa.binary()),
)


def carrier(kind: pa.DataType) -> pa.DataType | None:
    """The Arrow type in which values of ``kind`` travel to and from Spark; None where Spark has none.  Pure."""
    if any(test(kind) for test in _ITSELF):
        return kind
    for test, fixed in _FIXED:
        if test(kind):
            return fixed
    if pat.is_decimal(kind):
        fits = kind.precision <= 38 and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if fits else None
    if pat.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        element = carrier(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if pat.is_map(kind):
        key, value = carrier(kind.key_type), carrier(kind.item_type)
        return None if key is None or value is None else pa.map_(key, value)
    if pat.is_struct(kind):
        children = [(field.name, carrier(field.type)) for field in kind]
        return None if any(child is None for _, child in children) else pa.struct(children)
    return None


def loose(schema: pa.Schema) -> pa.Schema:
    """The same columns, with all that is inside them nullable."""
    return pa.schema([field.with_type(_loose(field.type)) for field in schema])


def _loose(kind: pa.DataType) -> pa.DataType:
    if pat.is_struct(kind):
        return pa.struct([(field.name, _loose(field.type)) for field in kind])
    if pat.is_map(kind):
        return pa.map_(_loose(kind.key_type), _loose(kind.item_type))
    if pat.is_fixed_size_list(kind):
        return pa.list_(_loose(kind.value_type), kind.list_size)
    if pat.is_large_list(kind):
        return pa.large_list(_loose(kind.value_type))
    return pa.list_(_loose(kind.value_type)) if pat.is_list(kind) else kind


def carried_schema(schema: pa.Schema, what: str) -> pa.Schema:
    """The columns in which rows of ``schema`` travel.  Raises `SpecError` naming the column that cannot."""
    fields = []
    for field in schema:
        kind = carrier(field.type)
        if kind is None:
            raise SpecError(
                f"column {field.name!r} of {what}",
                f"it is {field.type}, for which Spark has no type",
                "project it to another type, or leave it out",
            )
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def carried(batch: pa.RecordBatch, what: str) -> pa.RecordBatch:
    """A batch in the types that travel.  O(rows) for the columns that need it.  Raises `SchemaMismatch`."""
    schema = carried_schema(batch.schema, what)
    columns = [_cast(c, f.type, f.name, what) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def restored(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """What came from Spark, by name: each column that came in the carrier of its type in ``schema`` in that type again,
    the others as they are, for `ddflow.columns.schema.conform` to judge.  O(rows) for the columns that need it.

    ``schema``: loose.  Raises `SchemaMismatch` where a value does not fit.
    """
    for i, name in enumerate(table.column_names):
        at = schema.get_field_index(name)
        if at < 0:
            continue
        kind, came = schema.field(at).type, table.column(i).type
        if came != kind and carrier(came) == carrier(kind) is not None:
            table = table.set_column(i, name, _cast(table.column(i), kind, name, what))
    return table


def _cast(column: Any, kind: pa.DataType, name: str, what: str) -> Any:
    if column.type == kind:
        return column
    try:
        return column.cast(kind, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        found = f"{column.type} does not fit {kind} ({str(error).splitlines()[0]})"
        raise SchemaMismatch(f"column {name!r} of {what}", found, "mend the rows, or use a wider type") from None
