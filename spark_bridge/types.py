"""Convert types, rows and columns between a flow and Spark.

Guarantees: ``from_spark_types(to_spark_types(rows)) == rows``. Each Arrow type has a *transfer type*: an Arrow type
that can hold the same values and that Spark has, too. Spark has no unsigned integers, only one unit of time, and no
fixed widths. If a column's type has no transfer type, an error with the name of the column is raised before a job runs.
``mapInArrow`` would fail only during the job. Nested fields are nullable, because a null struct has no children.

>>> find_transfer_type(pa.struct({"n": pa.uint64(), "at": pa.timestamp("s", "Europe/Zurich")}))
StructType(struct<n: decimal128(20, 0), at: timestamp[us, tz=UTC]>)
>>> there = to_spark_types(pa.record_batch({"n": pa.array([2**64 - 1], pa.uint64())}), "the example")
>>> there.column(0).type, from_spark_types(pa.table(there), pa.schema({"n": pa.uint64()}), "the example").to_pylist()
(Decimal128Type(decimal128(20, 0)), [{'n': 18446744073709551615}])
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pat
from pyspark.sql import DataFrame, types as T
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import TimeType  # noqa: F401 (if it is missing, PySpark is too old: an ImportError)

from ddflow.columns.declared import parse_spark_type
from ddflow.columns.schema import build_updates_schema, cast_losslessly
from ddflow.errors import NotArrow, SchemaMismatch, SpecError
from ddflow.plan.plan import Plan

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


def find_transfer_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the transfer type of ``kind``: the Arrow type that its values have on the way to and from Spark.

    Return None if Spark has no suitable type. Pure.
    """
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
        element = find_transfer_type(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if pat.is_map(kind):
        key, value = find_transfer_type(kind.key_type), find_transfer_type(kind.item_type)
        return None if key is None or value is None else pa.map_(key, value)
    if pat.is_struct(kind):
        children = [(field.name, child) for field in kind if (child := find_transfer_type(field.type)) is not None]
        return pa.struct(children) if len(children) == len(kind) else None
    return None


def make_nullable(schema: pa.Schema) -> pa.Schema:
    """Make all nested fields of the columns nullable."""
    return pa.schema([field.with_type(_make_type_nullable(field.type)) for field in schema])


def _make_type_nullable(kind: pa.DataType) -> pa.DataType:
    if pat.is_struct(kind):
        return pa.struct([(field.name, _make_type_nullable(field.type)) for field in kind])
    if pat.is_map(kind):
        return pa.map_(_make_type_nullable(kind.key_type), _make_type_nullable(kind.item_type))
    if pat.is_fixed_size_list(kind):
        return pa.list_(_make_type_nullable(kind.value_type), kind.list_size)
    if pat.is_large_list(kind):
        return pa.large_list(_make_type_nullable(kind.value_type))
    return pa.list_(_make_type_nullable(kind.value_type)) if pat.is_list(kind) else kind


def build_transfer_schema(schema: pa.Schema, what: str) -> pa.Schema:
    """Return the schema with the transfer types of ``schema``.

    Raises `SpecError` for a column whose type Spark does not have.
    """
    fields = []
    for field in schema:
        kind = find_transfer_type(field.type)
        if kind is None:
            raise SpecError(
                f"column {field.name!r} of {what}",
                f"it is {field.type}, but Spark has no such type",
                "project the column to another type, or omit it",
                column=field.name,
            )
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def to_spark_types(batch: pa.RecordBatch, what: str) -> pa.RecordBatch:
    """Convert a batch to transfer types.

    O(rows) time for the columns that need a conversion. Raises `SchemaMismatch`.
    """
    schema = build_transfer_schema(batch.schema, what)
    columns = [_cast_column(c, f.type, f.name, what) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def from_spark_types(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Convert columns from Spark back to their types in ``schema``, matched by name.

    A column that does not have its transfer type is left unchanged. `ddflow.columns.schema.conform_to_schema` checks
    the column later. O(rows) time for the columns that need a conversion. ``schema`` has the columns, with nullable
    nested fields (see `make_nullable`). Raises `SchemaMismatch` if a value does not fit.
    """
    for i, name in enumerate(table.column_names):
        at = schema.get_field_index(name)
        if at < 0:
            continue
        kind, came = schema.field(at).type, table.column(i).type
        if came != kind and find_transfer_type(came) == find_transfer_type(kind) is not None:
            table = table.set_column(i, name, _cast_column(table.column(i), kind, name, what))
    return table


def _cast_column(column: Any, kind: pa.DataType, name: str, what: str) -> pa.Array:
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    return cast_losslessly(chunked, pa.field(name, kind), what)


def map_frames_to_inputs(flow: Any, frames: Any) -> Mapping[str, DataFrame]:
    """Map DataFrames to the inputs of a flow. ``frames`` is a mapping, or a single DataFrame if the flow has one input.

    The mapping is sorted by name, because Spark's checkpoint identifies the sources of a query by position. Raises
    `SpecError` if ``flow`` is not a flow, and `NotArrow` for a value that is not a DataFrame. The error shows the
    correct call.
    """
    if isinstance(flow, Plan) and len(flow.inputs) == 1 and not isinstance(frames, Mapping):
        frames = dict.fromkeys(flow.inputs, frames)
    if not isinstance(flow, Plan) or not isinstance(frames, Mapping):
        found = f"the arguments are a {type(flow).__name__} and a {type(frames).__name__}"
        inputs = f", for its inputs {list(flow.inputs)}" if isinstance(flow, Plan) else ""
        raise SpecError("a flow on Spark", found, f"pass the dd.Flow, then {{input: DataFrame}}{inputs}")
    for name, frame in frames.items():
        _check_frame(frame, f"rows for {name!r}")
    return dict(sorted(frames.items(), key=lambda each: str(each[0])))


def _check_frame(frame: Any, asked: str) -> None:
    """Raise `NotArrow` for a value that is not a Spark DataFrame."""
    if isinstance(frame, DataFrame):
        return
    found, remedy = f"{type(frame).__name__} is not a Spark DataFrame", "pass a DataFrame"
    if isinstance(frame, str):
        found, remedy = f"{frame!r:.200} is text", f"pass spark.table({frame!r:.200}), or spark.readStream.table(...)"
    elif type(frame).__module__.startswith("pyspark.pandas"):
        found, remedy = "it is a pandas-on-Spark frame", "pass frame.to_spark()"
    elif hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__dataframe__"):
        remedy = "convert it with spark.createDataFrame(...), or ingest it without Spark: flow.open().step(...)"
    raise NotArrow(asked, found, remedy)


def arrow_schema(frame: Any) -> pa.Schema:
    """Return the columns of a Spark DataFrame without running a job.

    Raises `NotArrow` for a value that is not a DataFrame. Raises `SchemaMismatch` for a type that would come back from
    Spark as a different type.
    """
    _check_frame(frame, "the columns of a DataFrame")
    fields = []
    for field in frame.schema:
        kind = parse_spark_type(field.dataType.jsonValue())
        if kind is None:
            asked, remedy = f"column {field.name!r} of a DataFrame", "cast it, or drop it, in the DataFrame"
            found = f"it is {field.dataType.simpleString()}, which cannot be sent to Python and back without a change"
            raise SchemaMismatch(asked, found, remedy)
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)


def describe_type_difference(given: T.DataType, declared: pa.Field) -> str:
    """Describe the Spark type that a column has, and the type that it should have. The text is appended to an error.

    >>> describe_type_difference(T.TimestampType(), pa.field("at", pa.timestamp("us")))
    ' (in Spark timestamp, declared timestamp_ntz)'
    """
    try:
        (asked,) = spark_schema(pa.schema([declared]), "an input")
    except SpecError:
        return ""
    return f" (in Spark {given.simpleString()}, declared {asked.dataType.simpleString()})"


def spark_schema(schema: pa.Schema, what: str) -> T.StructType:
    """Return the nullable Spark columns for rows of an Arrow schema.

    Raises `SpecError` for a type that Spark does not have.
    """
    kinds = {f.name: from_arrow_type(f.type, prefer_timestamp_ntz=True) for f in build_transfer_schema(schema, what)}
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


class OutputSchemas(NamedTuple):
    """The columns of an output in Arrow types and in Spark types."""

    arrow: pa.Schema
    spark: T.StructType


def build_output_schemas(flow: Plan) -> dict[str, OutputSchemas]:
    """Return the columns of all outputs, side outputs included.

    Raises `SpecError` for a type that Spark does not have.
    """
    schemas = {name: node.updates_schema(flow.time_type) for name, node in flow.outputs.items()}
    for name, (_, schema) in flow.side_outputs().items():
        schemas[name] = build_updates_schema(schema, flow.time_type)
    return {name: OutputSchemas(each, spark_schema(each, f"output {name!r}")) for name, each in schemas.items()}
