"""A DataFrame's columns in Arrow, and a flow's columns in Spark.

Invariant: a type is named only if its values go to Python and come back as what they were; whatever cannot is an error
that names the column, before a job runs. A variant arrives as a struct and would go back as one, a user-defined type
as the type below it, and PySpark finds out about others when a worker fails. What it does not do: look at values, that
is ``columns``; use what PySpark keeps to itself.

>>> spark_schema(pa.schema({"n": pa.uint64(), "at": pa.timestamp("s")}), "the example").simpleString()
'struct<n:decimal(20,0),at:timestamp_ntz>'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.types import TimeType  # by name: where it is missing, PySpark is too old, and that is an ImportError

from ddflow.engine.flow import Flow
from ddflow.errors import NotArrow, SchemaMismatch, SpecError
from spark_bridge.columns import carried_schema

_PAIRS: Final[tuple[tuple[type[T.DataType], pa.DataType], ...]] = (
    (T.NullType, pa.null()),
    (T.BooleanType, pa.bool_()),
    (T.ByteType, pa.int8()),
    (T.ShortType, pa.int16()),
    (T.IntegerType, pa.int32()),
    (T.LongType, pa.int64()),
    (T.FloatType, pa.float32()),
    (T.DoubleType, pa.float64()),
    (T.StringType, pa.string()),
    (T.VarcharType, pa.string()),
    (T.CharType, pa.string()),
    (T.BinaryType, pa.binary()),
    (T.DateType, pa.date32()),
    (T.TimestampType, pa.timestamp("us", "UTC")),
    (T.TimestampNTZType, pa.timestamp("us")),
    (T.DayTimeIntervalType, pa.duration("us")),
    (TimeType, pa.time64("ns")),
)
"""Both ways, for all but decimals and nested types; the first of equal ones is what a flow's columns become."""


def check_frames(flow: Any, frames: Any) -> None:
    """Refuse what is no flow, or are no Spark DataFrames by source, saying what to write.

    Raises `SpecError`, `NotArrow`.
    """
    if not isinstance(flow, Flow) or not isinstance(frames, Mapping):
        found = f"it is given a {type(flow).__name__} and a {type(frames).__name__}"
        raise SpecError("a flow on Spark", found, "give the dd.Flow, then {source: DataFrame}")
    for name, frame in frames.items():
        _check_frame(frame, f"rows for {name!r}")


def _check_frame(frame: Any, asked: str) -> None:
    """Raise `NotArrow` for what is no Spark DataFrame."""
    if isinstance(frame, DataFrame):
        return
    found, remedy = f"{type(frame).__name__} is no Spark DataFrame", "give a DataFrame"
    if isinstance(frame, str):
        found, remedy = f"{frame!r:.200} is text", f"give spark.table({frame!r:.200}), or spark.readStream.table(...)"
    elif type(frame).__module__.startswith("pyspark.pandas"):
        found, remedy = "it is a pandas-on-Spark frame", "give frame.to_spark()"
    elif hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__dataframe__"):
        remedy = "give spark.createDataFrame(...) of it, or take it in without Spark: flow.open().step(...)"
    raise NotArrow(asked, found, remedy)


def arrow_schema(frame: Any) -> pa.Schema:
    """The columns of a Spark DataFrame as the Arrow schema that ``flow.upserts`` takes; timestamps are in UTC.

    Raises `NotArrow` for what is no DataFrame, `SchemaMismatch` for a column of a type that Spark cannot hand over and
    take back.
    """
    _check_frame(frame, "the columns of a DataFrame")
    fields = []
    for field in frame.schema:
        kind = _arrow_type(field.dataType)
        if kind is None:
            asked, remedy = f"column {field.name!r} of a DataFrame", "cast it, or drop it, in the DataFrame"
            found = f"it is {field.dataType.simpleString()}, which does not go to Python and back unchanged"
            raise SchemaMismatch(asked, found, remedy)
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)


def spark_schema(schema: pa.Schema, what: str) -> T.StructType:
    """The Spark columns, all nullable, for rows of an Arrow schema.  Raises `SpecError` where there is none."""
    return T.StructType([T.StructField(f.name, _spark_type(f.type)) for f in carried_schema(schema, what)])


def _arrow_type(kind: T.DataType) -> pa.DataType | None:
    """What Spark sends values of a type as, all inside it nullable; None where that loses what they are."""
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        element = _arrow_type(kind.elementType)
        return None if element is None else pa.list_(element)
    if isinstance(kind, T.MapType):
        key, value = _arrow_type(kind.keyType), _arrow_type(kind.valueType)
        return None if key is None or value is None else pa.map_(key, value)
    if isinstance(kind, T.StructType):
        children = [(field.name, _arrow_type(field.dataType)) for field in kind]
        return None if any(child is None for _, child in children) else pa.struct(children)
    return next((arrow for spark, arrow in _PAIRS if type(kind) is spark), None)


def _spark_type(kind: pa.DataType) -> T.DataType:
    """The Spark type of a carrier."""
    if pat.is_decimal(kind):
        return T.DecimalType(kind.precision, kind.scale)
    if pat.is_list(kind):
        return T.ArrayType(_spark_type(kind.value_type))
    if pat.is_map(kind):
        return T.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pat.is_struct(kind):
        return T.StructType([T.StructField(field.name, _spark_type(field.type)) for field in kind])
    return next(spark() for spark, arrow in _PAIRS if arrow == kind)
