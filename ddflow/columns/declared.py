"""Convert any schema that a user declares to an Arrow schema.

A user can declare a schema of Arrow, Spark or Polars, a frame, or a mapping of names to types. A type is an Arrow or
Python type, or a text for `parse_type`. This module recognizes frames and schemas by their methods, so it does not
import Polars or Spark. Types that lack information are refused: `decimal.Decimal` has no precision, and ``list`` has no
element type.

Guarantees: each name occurs once, no name is reserved for updates, and types are in normal form. Nullability is kept.
Limits: no rows are read. To get the columns of a query, such as a DuckDB relation, this module executes the query with
a limit of 0 rows.
"""

import datetime
import re
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, get_args, get_origin

import pyarrow as pa

from ddflow.columns.casts import parse_type
from ddflow.columns.names import check_column_names
from ddflow.columns.schema import normalize_type, to_declared_type
from ddflow.errors import DdflowError, NotArrow, SpecError

_PYTHON: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us"),
    datetime.time: pa.time64("us"),
    datetime.timedelta: pa.duration("us"),
}
_SPARK: Final = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    r"string( collate \w+)?|(var)?char\(\d+\)": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    r"interval (day|hour|minute|second)( to \w+)?": pa.duration("us"),
    r"time\(\d\)": pa.time64("ns"),
}
"""Regular expressions that match Spark's type names, each with its Arrow type."""
_INDEX: Final = re.compile(r"__index_level_\d+__")


def to_arrow_schema(given: Any, what: str = "schema") -> pa.Schema:
    """Convert the declared schema of a source to an Arrow schema in normal types.

    ``given``: a ``pa.Schema``; a ``pl.Schema``; Spark's ``StructType``; a frame of pandas, Polars, DuckDB or Spark, or
    anything with ``__arrow_c_schema__`` or a ``schema``; or ``{name: type}``, see `to_arrow_type`. Text columns of a
    frame become ``string``, even if the frame stores them as ``large_string``, ``string_view`` or a dictionary.

    Raises `SpecError` for duplicate or reserved names and for a text that names no known type. Raises `NotArrow` for
    any other value that has no Arrow type. O(columns).

    >>> import datetime
    >>> to_arrow_schema({"id": int, "name": str, "at": datetime.datetime, "tags": list[str], "amount": "decimal(12,2)"})
    id: int64
    name: string
    at: timestamp[us]
    tags: list<item: string>
      child 0, item: string
    amount: decimal128(12, 2)
    >>> to_arrow_schema({"amount": float, "total": __import__("decimal").Decimal})
    Traceback (most recent call last):
        ...
    ddflow.errors.NotArrow: schema, column 'total': Decimal has no precision; write "decimal(12,2)", for example
    """
    try:
        schema = _extract_schema(given, what)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, DdflowError):
            raise
        remedy = "pass a pyarrow.Schema, a frame, {name: type}, or anything with __arrow_c_schema__"
        raise NotArrow(f"{what} from {type(given).__name__}", str(error), remedy) from None
    check_column_names(schema.names, what)
    usual = normalize_type if isinstance(given, pa.Schema | Mapping) else to_declared_type
    return pa.schema([field.with_type(usual(field.type)) for field in schema])


def _extract_schema(given: Any, what: str) -> pa.Schema:
    if isinstance(given, pa.Schema):
        return given
    if hasattr(given, "__arrow_c_schema__"):
        return pa.schema(given)
    if isinstance(given, Mapping):
        return pa.schema([(name, to_arrow_type(kind, f"{what}, column {name!r}")) for name, kind in given.items()])
    if hasattr(given, "jsonValue"):
        return _convert_spark_schema(given.jsonValue(), what)
    if hasattr(given, "collect_schema"):  # try this first, because `schema` warns about its cost
        given = given.collect_schema().to_frame()
    own: Any = getattr(given, "schema", None)
    if isinstance(own, pa.Schema):
        return own
    if hasattr(own, "jsonValue"):
        return _convert_spark_schema(own.jsonValue(), what)
    if hasattr(given, "limit"):
        given = given.limit(0)
    if hasattr(given, "__arrow_c_stream__"):
        return drop_index_columns(pa.RecordBatchReader.from_stream(given).schema, given)
    raise TypeError("it is not an Arrow schema")


def drop_index_columns(schema: pa.Schema, frame: Any) -> pa.Schema:
    """Drop the columns that Arrow creates for an unnamed pandas index."""
    names = [] if not hasattr(frame, "columns") else [str(name) for name in frame.columns]
    return pa.schema([field for field in schema if field.name in names or not _INDEX.fullmatch(field.name)])


def to_arrow_type(kind: Any, what: str) -> pa.DataType:
    """Convert a declared type to an Arrow type.

    ``kind``: an Arrow type; a text for `parse_type`; a Polars or Spark type; or a Python type: bool, int, float, str,
    bytes, date, datetime, time, timedelta, ``list[int]``. Raises `SpecError` for a text that names no known type, and
    `NotArrow` for any other value that has no Arrow type.
    """
    if isinstance(kind, pa.DataType):
        return kind
    if isinstance(kind, str):
        try:
            return parse_type(kind)
        except SpecError as error:
            raise SpecError(f"{what}, {error.asked}", error.found, error.fix) from None
    if isinstance(kind, type) and kind in _PYTHON:
        return _PYTHON[kind]
    if get_origin(kind) is list:
        return pa.list_(to_arrow_type(get_args(kind)[0], what))
    if kind is Decimal:
        raise NotArrow(what, "Decimal has no precision", 'write "decimal(12,2)", for example')
    if type(kind).__module__.startswith("polars."):
        made: pa.DataType = pa.schema(sys.modules["polars"].Schema({"type": kind})).field(0).type
        return to_declared_type(made)
    if hasattr(kind, "jsonValue") and not isinstance(kind, type):
        return (
            _convert_spark_schema({"fields": [{"name": "type", "type": kind.jsonValue(), "nullable": True}]}, what)
            .field(0)
            .type
        )
    known = ", ".join(each.__name__ for each in _PYTHON)
    remedy = f"use a pyarrow type, a text such as 'decimal(12,2)', or one of {known}"
    raise NotArrow(what, f"{kind!r:.80} is not the type of a column", remedy)


def _convert_spark_schema(record: Any, what: str) -> pa.Schema:
    fields = []
    for field in record["fields"]:
        kind = parse_spark_type(field["type"])
        if kind is None:
            found = f"Spark's {field['type']!r:.200} changes on the way to Python and back"
            raise NotArrow(
                f"{what}, column {field['name']!r}", found, "cast the column, or omit it", column=field["name"]
            )
        fields.append(pa.field(field["name"], kind, field["nullable"]))
    return pa.schema(fields)


def parse_spark_type(record: Any) -> pa.DataType | None:
    """Return the Arrow type of the values that Spark sends for a Spark type.

    Return None if the conversion to an Arrow type would lose information. In a nested result, every field is nullable.

    ``record``: the result of ``DataType.jsonValue``.
    """
    if isinstance(record, str):
        if (decimal := re.fullmatch(r"decimal\((\d+),(-?\d+)\)", record)) is not None:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        return next((kind for pattern, kind in _SPARK.items() if re.fullmatch(pattern, record)), None)
    if record["type"] == "array":
        element = parse_spark_type(record["elementType"])
        return None if element is None else pa.list_(element)
    if record["type"] == "map":
        key, value = parse_spark_type(record["keyType"]), parse_spark_type(record["valueType"])
        return None if key is None or value is None else pa.map_(key, value)
    if record["type"] == "struct":
        fields = record["fields"]
        children = [(field["name"], kind) for field in fields if (kind := parse_spark_type(field["type"])) is not None]
        return pa.struct(children) if len(children) == len(fields) else None
    return None
