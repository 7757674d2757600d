"""Normalize types, and convert tables to the declared columns of an input.

`conform_to_schema` returns a table with exactly the declared columns, in the declared order. Types are *normal*:
dictionary, run-end and view encodings are decoded. The returned table has no forbidden null and only valid values, so
later code does not check the values again. Arrow itself accepts invalid UTF-8, and times of day that are not within 24
hours. ``casts`` decides which casts are lossless. This module does not know keys, orders or deletes.

>>> import pyarrow as pa
>>> normalize_type(pa.dictionary(pa.int32(), pa.string()))
DataType(string)
>>> declared = pa.schema({"id": pa.int64(), "city": pa.string()})
>>> conform_to_schema(pa.table({"city": ["Bern"], "id": pa.array([1], pa.int16())}), declared, "orders").to_pylist()
[{'id': 1, 'city': 'Bern'}]
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.casts import (
    build_list_array,
    cast_exactly,
    find_uncastable_row,
    format_type,
    may_cast,
    suggest_type,
)
from ddflow.columns.names import DIFF, RESERVED, TIME, did_you_mean, find_nearest_name
from ddflow.columns.wider import suggest_widening
from ddflow.errors import ErrorText, SchemaMismatch, TooLarge, WidenFix, shorten

INTERVAL: Final[pa.DataType] = pa.month_day_nano_interval()  # type: ignore[attr-defined]
"""The interval type of months, days and nanoseconds.

Of all flat types, only this type has several representations of equal values.
"""
_PARTS: Final = np.dtype([("months", np.int32), ("days", np.int32), ("rest", np.int64)])
_DAY: Final = 86_400_000_000_000


def normalize_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values that ``kind`` encodes, without dictionaries, run ends and views."""
    if pat.is_dictionary(kind) or pat.is_run_end_encoded(kind):
        return normalize_type(kind.value_type)
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pat.is_struct(kind):
        return pa.struct([normalize_field(kind.field(i)) for i in range(kind.num_fields)])
    if pat.is_map(kind):
        return pa.map_(normalize_type(kind.key_type), normalize_type(kind.item_type))
    if pat.is_fixed_size_list(kind):
        return pa.list_(normalize_field(kind.value_field), kind.list_size)
    if pat.is_large_list(kind) or pat.is_large_list_view(kind):
        return pa.large_list(normalize_field(kind.value_field))
    if pat.is_list(kind) or pat.is_list_view(kind):
        return pa.list_(normalize_field(kind.value_field))
    return kind


def to_declared_type(kind: pa.DataType) -> pa.DataType:
    """Return the type to declare for a frame's column: a type without an encoding, and without 64-bit offsets.

    >>> to_declared_type(pa.large_list(pa.large_string()))
    ListType(list<item: string>)
    """
    kind = normalize_type(kind)
    if pat.is_large_string(kind):
        return pa.string()
    if pat.is_large_binary(kind):
        return pa.binary()
    if pat.is_struct(kind):
        return pa.struct([field.with_type(to_declared_type(field.type)) for field in kind])
    if pat.is_map(kind):
        return pa.map_(to_declared_type(kind.key_type), to_declared_type(kind.item_type))
    if not (pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)):
        return kind
    value = kind.value_field.with_type(to_declared_type(kind.value_type))
    return pa.list_(value, kind.list_size) if pat.is_fixed_size_list(kind) else pa.list_(value)


def normalize_field(field: pa.Field) -> pa.Field:
    """Return the field with a normal type: see `normalize_type`."""
    return field.with_type(normalize_type(field.type))


def decode_array(array: pa.Array) -> pa.Array:
    """Convert values to their normal type, without a copy if they already have it. O(values).

    The function converts one level of nesting after another. Arrow's own casts do not support nested run ends, and lose
    values of list views.
    """
    kind, normal = array.type, normalize_type(array.type)
    if kind == normal:
        return array
    if pat.is_dictionary(kind):
        return decode_array(array.dictionary).take(array.indices)  # decode first: Arrow cannot take from views
    if pat.is_run_end_encoded(kind):
        rows = np.arange(array.offset, array.offset + len(array))
        return decode_array(array.values).take(
            pa.array(np.searchsorted(np.asarray(array.run_ends), rows, side="right"))
        )
    if not pat.is_nested(kind):
        return array.cast(normal)
    gone = array.is_null()
    if pat.is_struct(kind):
        return pa.StructArray.from_arrays(
            [decode_array(child) for child in array.flatten()], fields=list(normal), mask=gone
        )
    if pat.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(decode_array(values), type=normal, mask=gone)
    if pat.is_list_view(kind) or pat.is_large_list_view(kind):
        sizes = pc.fill_null(pc.list_value_length(array), 0)
        ends, children = np.concatenate([[0], np.cumsum(np.asarray(sizes))]), array.flatten()
    else:
        ends, children = np.asarray(array.offsets), array.values
    return build_list_array(normal, ends, decode_array(children), gone)


def compute_decoded_size(rows: pa.Table | pa.RecordBatch) -> int:
    """Compute the size of rows in bytes, as if their columns had normal types.

    O(columns), and O(rows) for encoded columns. Arrow's ``nbytes`` is too large for a slice of a dictionary or view
    column, because it counts all values of the unsliced column.
    """
    chunks = (c.chunks if isinstance(c, pa.ChunkedArray) else [c] for c in rows.itercolumns())
    return sum(_decoded_array_size(chunk) for each in chunks for chunk in each)


def _decoded_array_size(array: pa.Array) -> int:
    kind, normal, n = array.type, normalize_type(array.type), len(array)
    if kind == normal:
        return int(array.nbytes)
    if kind in (pa.string_view(), pa.binary_view()):
        # Each element of a view array has 16 bytes. The first four bytes are the length of the value.
        lengths = np.frombuffer(array.buffers()[1] or b"", np.int32)[4 * array.offset : 4 * (array.offset + n) : 4]
        return int(lengths[np.asarray(array.is_valid())].sum(dtype=np.int64)) + 4 * n
    bytes_of = is_text(normal) or pat.is_binary(normal) or pat.is_large_binary(normal)
    if pat.is_dictionary(kind) and kind.value_type == normal and bytes_of:
        return (pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0) + 4 * n
    return 8 * n if is_word_type(normal) else int(decode_array(array).nbytes)


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are strings, of any offset width."""
    return bool(pat.is_string(kind) or pat.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether values are bytes, of any width."""
    return bool(pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind))


def is_word_type(kind: pa.DataType) -> bool:
    """Return whether a value fits one 64-bit word, as booleans, integers, floats, dates, times and durations do."""
    return bool(
        pat.is_boolean(kind)
        or pat.is_integer(kind)
        or pat.is_floating(kind)
        or pat.is_date(kind)
        or pat.is_time(kind)
        or pat.is_timestamp(kind)
        or pat.is_duration(kind)
    )


def is_flat_type(kind: pa.DataType) -> bool:
    """Return whether values are not nested and have an order, as words, decimals, texts and binary values do."""
    return bool(is_word_type(kind) or is_text(kind) or pat.is_decimal(kind) or is_bytes(kind))


def is_key_type(kind: pa.DataType) -> bool:
    """Return whether values of a type can be keys, as values of flat types can, and UUIDs, which count as 16 bytes."""
    return is_flat_type(kind) or bool(kind == pa.uuid())


def is_time_type(kind: pa.DataType) -> bool:
    """Return whether a ``time=`` column may have this type: int64, a timestamp or a date."""
    return bool(kind == pa.int64() or pat.is_timestamp(kind) or pat.is_date(kind))


YEARS: Final = (-62_135_596_800, 253_402_300_800)
"""The beginnings of the years 1 and 10000, in unix seconds."""
_EACH: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
MANY: Final = 1 << 12
"""`is_large_ascii_array` reads the bytes of an array only if the array has at least this many texts."""


@cache
def _find_valid_range(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the range of valid numbers of a date or time type, or None for other types.

    Returns the first valid number, and the first number after the range.

    >>> _find_valid_range(pa.time32("s")), _find_valid_range(pa.int64())
    ((0, 86400), None)
    """
    if pat.is_time(kind):
        return 0, 86_400 * _EACH[kind.unit]
    if pat.is_date32(kind):
        return YEARS[0] // 86_400, YEARS[1] // 86_400
    if pat.is_date64(kind) or (pat.is_timestamp(kind) and kind.unit != "ns"):
        each = _EACH["ms" if pat.is_date64(kind) else kind.unit]
        return YEARS[0] * each, YEARS[1] * each
    return None


def find_invalid_time(array: pa.Array) -> int:
    """Find the first row with a time of day not within 24 hours, or with a timestamp outside the years 1 to 9999.

    If all rows are valid, return -1. O(n).
    """
    limits = _find_valid_range(array.type)
    if limits is None or array.null_count == len(array):
        return -1
    array.validate()
    (least, most), width = limits, array.type.bit_width // 8
    found = np.frombuffer(array.buffers()[1], np.int32 if width == 4 else np.int64, len(array), array.offset * width)
    if least <= found.min() and found.max() < most:
        return -1
    numbers = array.view(pa.int32() if width == 4 else pa.int64())  # a view keeps nulls, whose numbers are arbitrary
    return int(pc.index(pc.or_(pc.less(numbers, least), pc.greater_equal(numbers, most)), True).as_py())


def is_large_ascii_array(array: pa.Array) -> bool:
    """Return whether an array of texts has at least `MANY` elements, and all texts are ASCII.

    The check is much cheaper than Arrow's check for UTF-8. Raises Arrow's error for buffers that are too short.
    O(bytes).

    >>> is_large_ascii_array(pa.array(["a", None] * MANY)), is_large_ascii_array(pa.array(["\u00e4"] * MANY))
    (True, False)
    """
    if len(array) < MANY or not is_text(array.type):
        return False
    array.validate()
    _, offsets, data = array.buffers()
    kind = np.dtype(np.int64 if pat.is_large_string(array.type) else np.int32)
    at = np.frombuffer(offsets, kind, len(array) + 1, array.offset * kind.itemsize)
    read = np.frombuffer(data, np.uint8)[at[0] : at[-1]] if data is not None else at[:0]
    return bool((at[1:] >= at[:-1]).all() and (not read.size or read.max() < 128))


def needs_validation(kind: pa.DataType) -> bool:
    """Return whether an Arrow array of a type can contain invalid values."""
    return not (pat.is_boolean(kind) or pat.is_integer(kind) or pat.is_floating(kind) or pat.is_null(kind))


def check_values(rows: pa.Table | pa.RecordBatch, what: str, columns: Iterable[int] | None = None) -> None:
    """Check that columns hold only valid values of their types. Raises `SchemaMismatch`. O(bytes).

    ``columns``: the numbers of the columns to check, if known.
    """
    for at in range(rows.num_columns) if columns is None else columns:
        column, before = rows.column(at), 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
            try:
                found = _find_invalid_value(chunk)
            except pa.ArrowInvalid as error:
                remedy = "fix it where it is created: its table.validate(full=True) fails, too"
                name = rows.schema.names[at]
                asked = f"column {name!r} of rows for {what}"
                raise SchemaMismatch(asked, f"it is not a valid {column.type}: {error}", remedy, column=name) from None
            if found is not None:
                array, row = found
                there = f"row {before + row:,} holds" if array is chunk else "it holds"
                limits = "a time must be within a day, a timestamp within the years 1 to 9999"
                shown = f"{there} {_format_value(array, row)}, which is not a valid time"
                place = before + row if array is chunk else None
                name = rows.schema.names[at]
                asked = f"column {name!r} of rows for {what}"
                raise SchemaMismatch(asked, shown, f"fix the row: {limits}", column=name, row=place)
            before += len(chunk)


def _find_invalid_value(array: pa.Array) -> tuple[pa.Array, int] | None:
    """Find the first invalid value.

    Return the array with the invalid value, which may be a nested child, and the position of the value. Raises Arrow's
    errors for broken buffers. The search goes through one level of nesting after another. Arrow's own check of a slice
    would also check children outside the slice.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _find_invalid_value(array.storage)
    if kind.num_fields and pat.is_struct(kind):
        children = array.flatten()
    elif kind.num_fields and (
        pat.is_map(kind) or pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)
    ):
        array.validate()
        if not pat.is_fixed_size_list(kind) and (np.diff(np.asarray(array.offsets)) < 0).any():
            raise pa.ArrowInvalid("its offsets decrease")
        children = [array.keys, array.items] if pat.is_map(kind) else [array.flatten()]
    else:
        if (row := find_invalid_time(array)) >= 0:
            return array, row
        if not is_large_ascii_array(array):
            array.validate(full=True)
        return _find_invalid_value(array.dictionary) if pat.is_dictionary(kind) else None
    return next((found for child in children if (found := _find_invalid_value(child)) is not None), None)


def conform_to_schema(
    table: pa.Table,
    schema: pa.Schema,
    what: str,
    required: Collection[str] = (),
    input: str = "",
    fixed: Collection[str] = (),
) -> pa.Table:
    """Convert a table to exactly the columns, order and types of ``schema``. In the result, each column has one chunk.

    Columns are matched by name. A missing column becomes null, unless it is ``required``. ``input``: the name of the
    input, if columns can be added to the input. ``fixed``: columns whose type can never change. Raises `SchemaMismatch`
    for an unknown or duplicate column, for a required column that is missing, for a value that the declared type cannot
    represent, and for a forbidden null. Only columns that need a cast or have several chunks cost O(rows).
    """
    check_values(table, what)
    if table.schema.equals(schema) and all(column.num_chunks == 1 for column in table.columns):
        return _check_nulls(_normalize_interval_columns(table), what)
    if not table.num_columns and not table.num_rows:  # for example {}
        return empty_table(schema)
    names = table.column_names
    undivided = len(names) == 1 and names[0] not in schema.names
    between = next((each for each in ";\t|" if undivided and each in names[0]), None)
    if between is not None:
        raise SchemaMismatch(
            f"rows for {what}",
            f"there is one column, {names[0]!r}",
            f"is the delimiter {between!r}? read the file with it; for a path, set it with dd.FilePath",
        )
    for name in required:
        if name not in names:
            raise SchemaMismatch(
                f"rows for {what}",
                f"the column {name!r} is missing",
                f"it cannot be null for all rows: {did_you_mean(name, names)}",
                column=name,
            )
    for name in names:
        if names.count(name) > 1:
            raise SchemaMismatch(
                f"rows for {what}", f"the column {name!r} occurs more than once", "use each name once", column=name
            )
        if schema.get_field_index(name) < 0:
            remedy = f"{did_you_mean(name, schema.names)}; omit it from the rows"
            if name in RESERVED:
                remedy = "drop it: ddflow adds it to updates and reads"
            elif find_nearest_name(name, schema.names) is not None:
                remedy += ", or declare it in the flow, too"
            elif input:
                types = {input: {name: format_type(to_declared_type(table.schema.field(name).type))}}
                remedy += f", or add it with engine.evolve({types})"
            raise SchemaMismatch(
                f"rows for {what}", f"there is a column {name!r} that was not declared", remedy, column=name
            )
    deciding, asked = {*fixed, *required}, f"rows for {what}"
    columns = [
        cast_losslessly(
            table.column(each.name), each, asked, partial(suggest_widening, input=input, fixed=each.name in deciding)
        )
        if each.name in names
        else pa.nulls(table.num_rows, each.type)
        for each in schema
    ]
    return _check_nulls(_normalize_interval_columns(pa.Table.from_arrays(columns, schema=schema)), what)


def _normalize_interval_columns(table: pa.Table) -> pa.Table:
    """Normalize the interval columns of a table, so that equal intervals have equal bytes."""
    for index, field in enumerate(table.schema):
        if field.type == INTERVAL:
            table = table.set_column(index, field, normalize_intervals(to_array(table.column(index))))
    return table


def normalize_intervals(array: pa.Array) -> pa.Array:
    """Normalize intervals: days and nanoseconds get the same sign, and the nanoseconds are less than a day.

    Days that overflow 32 bits stay in the nanoseconds. O(rows).

    >>> times = pa.array([(0, 0, 86_400_000_000_000), (1, 1, -1)], pa.month_day_nano_interval())
    >>> normalize_intervals(times).to_pylist()
    [MonthDayNano(months=0, days=1, nanoseconds=0), MonthDayNano(months=1, days=0, nanoseconds=86399999999999)]
    """
    valid, buffer = array.buffers()
    if not len(array) or buffer is None:
        return array
    made = np.frombuffer(buffer, _PARTS, array.offset + len(array)).copy()
    rest = np.fmod(made["rest"], _DAY)
    days = made["days"] + (made["rest"] - rest) // _DAY
    across = np.where((days > 0) & (rest < 0), 1, np.where((days < 0) & (rest > 0), -1, 0))
    days, rest = days - across, rest + across * _DAY
    fits = np.abs(days) < 2**31
    made["days"], made["rest"] = np.where(fits, days, made["days"]), np.where(fits, rest, made["rest"])
    return pa.Array.from_buffers(INTERVAL, len(array), [valid, pa.py_buffer(made)], offset=array.offset)


def _check_nulls(table: pa.Table, what: str) -> pa.Table:
    """Check that no column has a null that the schema forbids, and return the table. Raises `SchemaMismatch`."""
    if bad := [f.name for i, f in enumerate(table.schema) if not f.nullable and table.column(i).null_count]:
        raise SchemaMismatch(
            f"rows for {what}",
            f"the columns {bad} hold nulls, but are declared not null",
            "fix the rows, or declare the columns nullable",
        )
    return table


def cast_losslessly(
    column: pa.ChunkedArray, field: pa.Field, what: str, how: Callable[..., WidenFix] | None = None
) -> pa.Array:
    """Cast a column to one array of the field's type.

    Raises `SchemaMismatch` for a value that the type cannot represent.

    ``how``: a function like `suggest_widening`, whose suggestion to widen a state's column the error shows.
    """
    source = column.type
    if source == field.type:
        return to_array(column)
    array = to_array(pa.chunked_array([decode_array(chunk) for chunk in column.chunks], normalize_type(source)))
    made = cast_exactly(array, field.type)
    if made is not None:
        return made
    asked, kind = f"column {field.name!r} of {what}", to_declared_type(source)
    if kind == field.type and array.nbytes > 2**31 - 1:
        found = f"its text takes {array.nbytes:,} bytes, but 32-bit offsets reach 2 GiB"
        raise TooLarge(asked, found, "use smaller steps, or declare the column large_string")
    if may_cast(array.type, field.type):
        row = find_uncastable_row(array, field.type)
        found = f"row {row:,} holds {_format_value(array, row)} ({kind}), which does not fit {field.type}"
        fits = to_declared_type(suggest_type(array.type, field.type))
        floats, decimals = map(pat.is_floating, (array.type, field.type)), map(pat.is_decimal, (array.type, field.type))
        rounds = any(floats) and any(decimals)
        remedy = f"cast the column to {field.type} yourself, which rounds" if rounds else "fix the row"
        fix = ErrorText(f"{remedy}, or declare {fits}", how(field, fits) if how else "")
        raise SchemaMismatch(asked, found, fix, column=field.name, row=row)
    there = np.flatnonzero(np.asarray(array.is_valid()))[:1]
    found = f"it is {kind}, but {field.type} is declared" + "".join(
        f"; row {i:,} holds {_format_value(array, i)}" for i in there
    )
    fix = ErrorText(f"cast it yourself, or declare {kind}", how(field, kind) if how else "")
    raise SchemaMismatch(asked, found, fix, column=field.name)


def _format_value(array: pa.Array, row: int) -> str:
    """Format a value for messages: as Python formats it, or as Arrow does if no Python value can represent it.

    Long text is cut.
    """
    try:
        return shorten(repr(array[row].as_py()), 60)
    except (OverflowError, ValueError):  # Python's calendar ends with the year 9999
        return shorten(" ".join(str(array.slice(row, 1)).split()[1:]), 60)


def build_updates_schema(schema: pa.Schema, time_type: pa.DataType) -> pa.Schema:
    """Build the schema of an output's table: the collection's columns, then ``_time``, then ``_diff``."""
    return pa.schema([*schema, pa.field(TIME, time_type, nullable=False), pa.field(DIFF, pa.int64(), nullable=False)])


def empty_table(schema: pa.Schema) -> pa.Table:
    """Make a table without rows, of any types; Arrow's own ``empty_table`` does not support unions."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def to_batch(table: Any) -> pa.RecordBatch:
    """Convert a table or a view to a record batch. Nothing is copied if each column has one chunk."""
    return pa.RecordBatch.from_arrays(column_arrays(table), schema=table.schema.remove_metadata())


TABLES: Final = pa.Table, pa.RecordBatch
"""The types of rows that are not views."""


def column_arrays(rows: Any, names: Sequence[str] | None = None) -> list[pa.Array]:
    """Return columns of a table, batch or view as arrays. A column with one chunk is not copied.

    ``names``: the columns to return, by default all.
    """
    columns: Any
    if not isinstance(rows, TABLES):
        held: list[pa.Array] = rows.columns if names is None else rows.gather_by_name(names)
        return held
    columns = rows.columns if names is None else map(rows.column, names)
    return [to_array(column) if isinstance(column, pa.ChunkedArray) else column for column in columns]


def to_array(column: pa.ChunkedArray) -> pa.Array:
    """Convert a chunked column to one array. Nothing is copied if the column has one chunk."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
