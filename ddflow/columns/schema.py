"""What columns may be: the types a source declares, the names that are reserved, the casts that lose nothing.

Invariant: after ``conform`` a table has exactly the declared columns, in the declared order, in their *normal* types
(dictionary, run-end and view encodings are decoded), without a null where the schema forbids one. Everything above
relies on it and checks nothing again. Producers disagree on encodings of the same values (``string``,
``large_string``, ``string_view``, dictionaries), and Arrow's own cast would also accept what loses information in
meaning (int to float, timestamps across zones). This module reads no values beyond those casts and knows nothing of
keys, orders or deletes: that is ``spec``.

>>> import pyarrow as pa
>>> declared = to_schema({"id": pa.int64(), "city": pa.dictionary(pa.int32(), pa.string())})
>>> declared.field("city").type
DataType(string)
>>> conform(pa.table({"city": ["Bern"], "id": pa.array([1], pa.int16())}), declared, "orders").to_pylist()
[{'id': 1, 'city': 'Bern'}]
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.names import DIFF, TIME, check_names, did_you_mean
from ddflow.columns.wider import unfit
from ddflow.errors import NotArrow, SchemaMismatch


def normal_type(kind: pa.DataType) -> pa.DataType:
    """The type whose values ``kind`` encodes: dictionaries, run ends and views are encodings, not types."""
    if pat.is_dictionary(kind) or pat.is_run_end_encoded(kind):
        return normal_type(kind.value_type)
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pat.is_struct(kind):
        return pa.struct([_normal_field(kind.field(i)) for i in range(kind.num_fields)])
    if pat.is_map(kind):
        return pa.map_(normal_type(kind.key_type), normal_type(kind.item_type))
    if pat.is_fixed_size_list(kind):
        return pa.list_(_normal_field(kind.value_field), kind.list_size)
    if pat.is_large_list(kind) or pat.is_large_list_view(kind):
        return pa.large_list(_normal_field(kind.value_field))
    if pat.is_list(kind) or pat.is_list_view(kind):
        return pa.list_(_normal_field(kind.value_field))
    return kind


def _normal_field(field: pa.Field) -> pa.Field:
    return field.with_type(normal_type(field.type))


def plain(array: pa.Array) -> pa.Array:
    """The same values in their `normal_type`; no copy where that is their type.  O(values).

    Level by level, since Arrow's own casts know no nested run ends, and lose values of list views.
    """
    kind, normal = array.type, normal_type(array.type)
    if kind == normal:
        return array
    if pat.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if pat.is_run_end_encoded(kind):
        rows = np.arange(array.offset, array.offset + len(array))
        return plain(array.values).take(pa.array(np.searchsorted(np.asarray(array.run_ends), rows, side="right")))
    if not pat.is_nested(kind):
        return array.cast(normal)
    gone = array.is_null()
    if pat.is_struct(kind):
        return pa.StructArray.from_arrays([plain(child) for child in array.flatten()], fields=list(normal), mask=gone)
    if pat.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(plain(values), type=normal, mask=gone)
    wide = pat.is_large_list(kind) or pat.is_large_list_view(kind)
    if pat.is_list_view(kind) or pat.is_large_list_view(kind):
        sizes = pc.fill_null(pc.list_value_length(array), 0)
        ends, children = np.concatenate([[0], np.cumsum(np.asarray(sizes))]), array.flatten()
    else:
        ends, children = np.asarray(array.offsets), None if pat.is_map(kind) else array.values
    offsets = pa.array(ends.astype(np.int64 if wide else np.int32))
    if children is None:
        return pa.MapArray.from_arrays(offsets, plain(array.keys), plain(array.items), type=normal, mask=gone)
    made = pa.LargeListArray if wide else pa.ListArray
    return made.from_arrays(offsets, plain(children), type=normal, mask=gone)


def plain_size(rows: pa.Table | pa.RecordBatch) -> int:
    """Bytes that rows take once they are in their normal types.  O(columns), and O(rows) for those that are encoded.

    A slice of a dictionary's or of views' rows refers to all values, so Arrow would tell the bytes of them all.
    """
    chunks = (c.chunks if isinstance(c, pa.ChunkedArray) else [c] for c in rows.itercolumns())
    return sum(_plain_size(chunk) for each in chunks for chunk in each)


def _plain_size(array: pa.Array) -> int:
    kind, normal, n = array.type, normal_type(array.type), len(array)
    if kind == normal:
        return int(array.nbytes)
    if kind in (pa.string_view(), pa.binary_view()):
        # Sixteen bytes a view, of which the first four are its length.
        lengths = np.frombuffer(array.buffers()[1] or b"", np.int32)[4 * array.offset : 4 * (array.offset + n) : 4]
        return int(lengths[np.asarray(array.is_valid())].sum(dtype=np.int64)) + 4 * n
    bytes_of = is_text(normal) or pat.is_binary(normal) or pat.is_large_binary(normal)
    if pat.is_dictionary(kind) and kind.value_type == normal and bytes_of:
        return (pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0) + 4 * n
    return 8 * n if is_word(normal) else int(plain(array).nbytes)


def is_text(kind: pa.DataType) -> bool:
    """Whether values are strings, of any offset width."""
    return bool(pat.is_string(kind) or pat.is_large_string(kind))


def is_word(kind: pa.DataType) -> bool:
    """Whether a value fits one 64-bit word: booleans, integers, floats, dates, times, timestamps, durations."""
    return bool(
        pat.is_boolean(kind)
        or pat.is_integer(kind)
        or pat.is_floating(kind)
        or pat.is_date(kind)
        or pat.is_time(kind)
        or pat.is_timestamp(kind)
        or pat.is_duration(kind)
    )


def is_flat(kind: pa.DataType) -> bool:
    """Whether values have one part and an order: words, decimals, text, binary of any width."""
    binary = pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind)
    return bool(is_word(kind) or is_text(kind) or pat.is_decimal(kind) or binary)


def is_key(kind: pa.DataType) -> bool:
    """Whether values can be keys: flat ones, and UUIDs, each taken as its 16 bytes."""
    return is_flat(kind) or bool(kind == pa.uuid())


def is_time(kind: pa.DataType) -> bool:
    """Whether a column may be a ``time``: int64 and what is kept as one (timestamps, dates)."""
    return bool(kind == pa.int64() or pat.is_timestamp(kind) or pat.is_date(kind))


def to_schema(given: Any, what: str = "schema") -> pa.Schema:
    """The declared schema of a source, in normal types.

    ``given``: a ``pa.Schema``, anything with ``__arrow_c_schema__`` (a Polars or DuckDB schema, a table's), or
    ``{name: type}``.  Raises `SpecError` for duplicate or reserved names, `NotArrow` for anything else.  O(columns).
    """
    try:
        if isinstance(given, pa.Schema):
            schema = given
        elif isinstance(given, Mapping):
            schema = pa.schema(list(given.items()))
        elif hasattr(given, "__arrow_c_schema__"):
            schema = pa.schema(given)
        elif isinstance(getattr(given, "schema", None), pa.Schema):
            schema = given.schema
        else:
            raise TypeError("it is no Arrow schema")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        remedy = "give a pyarrow.Schema, {name: type}, or anything with __arrow_c_schema__"
        raise NotArrow(f"{what} from {type(given).__name__}", str(error), remedy) from None
    check_names(schema.names, what)
    return pa.schema([_normal_field(field) for field in schema])


def to_table(given: Any, what: str, schema: pa.Schema) -> pa.Table:
    """Any Arrow producer's rows as one table.  Copies nothing that is Arrow already; O(batches).

    ``given``: a table, a record batch, a reader, anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``, or a
    sequence of record batches.  ``schema``: of the table when there is no batch to tell.  Raises `NotArrow`, and
    `SchemaMismatch` when the batches of a sequence differ.
    """
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if isinstance(given, pa.RecordBatchReader):
        return given.read_all()
    if hasattr(given, "__arrow_c_stream__"):
        reader: pa.RecordBatchReader = imported(pa.RecordBatchReader.from_stream, given, what)
        return reader.read_all()
    if hasattr(given, "__arrow_c_array__"):
        return pa.Table.from_batches([imported(pa.record_batch, given, what)])
    if isinstance(given, list | tuple) and all(isinstance(part, pa.RecordBatch) for part in given):
        for i, part in enumerate(given):
            if not part.schema.equals(given[0].schema):
                raise SchemaMismatch(
                    f"rows for {what}",
                    f"batch {i} has the columns {_shown(part.schema)}, the first {_shown(given[0].schema)}",
                    "give batches of one schema",
                )
        return pa.Table.from_batches(given, given[0].schema if given else schema)
    raise NotArrow(
        f"rows for {what}",
        f"{type(given).__name__} does not speak Arrow",
        "give a table, record batches, a reader, or anything with __arrow_c_stream__",
    )


def imported(take: Callable[[Any], Any], given: Any, what: str) -> Any:
    """What ``take`` makes of something that speaks Arrow.  Raises `NotArrow` where that holds no rows."""
    try:
        return take(given)
    except pa.ArrowInvalid as error:
        raise NotArrow(
            f"rows for {what}",
            f"{type(given).__name__} holds no rows ({error})",
            "give a table, record batches, or a reader of them",
        ) from None


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def conform(table: pa.Table, schema: pa.Schema, what: str, required: Iterable[str] = ()) -> pa.Table:
    """``table`` with exactly ``schema``'s columns, order and types, each column in one chunk.

    Columns are matched by name; one that is missing is null, unless it is ``required``.  Raises `SchemaMismatch`
    for an unknown, duplicate or missing required column, a cast that could lose something, or a null that the schema
    forbids.  O(rows) only for columns that need a cast or have several chunks.
    """
    if table.schema.equals(schema) and all(column.num_chunks == 1 for column in table.columns):
        return _without_nulls(table, what)
    names = table.column_names
    for name in names:
        if names.count(name) > 1:
            raise SchemaMismatch(f"rows for {what}", f"the column {name!r} occurs more than once", "give it one name")
        if schema.get_field_index(name) < 0:
            raise SchemaMismatch(
                f"rows for {what}",
                f"there is a column {name!r} that was not declared",
                f"{did_you_mean(name, schema.names)}; a new column is taken in by engine.evolve({{{name!r}: type}})",
            )
    for name in required:
        if name not in names:
            raise SchemaMismatch(
                f"rows for {what}",
                f"the column {name!r} is missing",
                f"it cannot be null for all rows: give it (found {names})",
            )
    columns = []
    for field in schema:
        if field.name not in names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        columns.append(_lossless(table.column(field.name), field, what))
    return _without_nulls(pa.Table.from_arrays(columns, schema=schema), what)


def _without_nulls(table: pa.Table, what: str) -> pa.Table:
    """The same table.  Raises `SchemaMismatch` for nulls that its schema forbids."""
    if bad := [f.name for i, f in enumerate(table.schema) if not f.nullable and table.column(i).null_count]:
        raise SchemaMismatch(
            f"rows for {what}",
            f"the columns {bad} hold nulls and were declared not null",
            "mend the rows, or declare the columns nullable",
        )
    return table


def _lossless(column: pa.ChunkedArray, field: pa.Field, what: str) -> pa.Array:
    """``column`` as one array of the field's type.  Raises `SchemaMismatch` where that could lose something."""
    source = column.type
    if source != field.type:
        column = pa.chunked_array([plain(chunk) for chunk in column.chunks], normal_type(source))
    if pat.is_null(column.type):
        return pa.nulls(len(column), field.type)
    if column.type != field.type:
        asked = f"column {field.name!r} of rows for {what}"
        if not _may_cast(column.type, field.type):
            raise SchemaMismatch(
                asked, f"it is {source}, declared is {field.type}", unfit(field, column.type, "cast it")
            )
        try:
            column = column.cast(field.type, safe=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(
                asked,
                f"{source} does not fit {field.type} ({str(error).splitlines()[0]})",
                unfit(field, column.type, "mend the rows"),
            ) from None
    return one_chunk(column)


def updates_schema(schema: pa.Schema, time_type: pa.DataType) -> pa.Schema:
    """The columns of an output's table: the collection's, then ``_time``, then ``_diff``."""
    return pa.schema([*schema, pa.field(TIME, time_type, nullable=False), pa.field(DIFF, pa.int64(), nullable=False)])


def empty(schema: pa.Schema) -> pa.Table:
    """No rows, of any types: Arrow's own ``empty_table`` knows no unions."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def one_batch(table: Any) -> pa.RecordBatch:
    """A table, or a view, as a record batch; no copy where each column is in one chunk."""
    return pa.RecordBatch.from_arrays(arrays(table), schema=table.schema.remove_metadata())


def arrays(rows: Any, names: Sequence[str] | None = None) -> list[pa.Array]:
    """The columns of a table, batch or view, or some of them, each as one array; no copy where it is one already."""
    columns = rows.columns if names is None else map(rows.column, names)
    return [one_chunk(column) if isinstance(column, pa.ChunkedArray) else column for column in columns]


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A chunked column as one array; no copy where there is one chunk already."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _may_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a checked cast from one to the other can only fail, never lose: pure on types."""
    if source == target or pat.is_null(source):
        return True
    if pat.is_integer(source):
        return bool(pat.is_integer(target))
    if pat.is_floating(source):
        return bool(pat.is_floating(target)) and source.bit_width <= target.bit_width
    if is_text(source):
        return is_text(target)
    if {source, target} == {pa.uuid(), pa.binary(16)}:
        return True
    if pat.is_binary(source) or pat.is_large_binary(source):
        return bool(pat.is_binary(target) or pat.is_large_binary(target))
    if pat.is_decimal(source):
        return bool(pat.is_decimal(target))
    if pat.is_timestamp(source):
        return bool(pat.is_timestamp(target)) and source.tz == target.tz
    if pat.is_date(source):
        return bool(pat.is_date(target))
    if pat.is_time(source) or pat.is_duration(source):
        return source.id == target.id or (bool(pat.is_time(source)) and bool(pat.is_time(target)))
    if pat.is_struct(source) and pat.is_struct(target):
        return [f.name for f in source] == [f.name for f in target] and all(
            _may_cast(a.type, b.type) for a, b in zip(source, target, strict=True)
        )
    if pat.is_list(source) or pat.is_large_list(source):
        return bool(pat.is_list(target) or pat.is_large_list(target)) and _may_cast(
            source.value_type, target.value_type
        )
    return False
