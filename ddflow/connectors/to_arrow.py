"""Convert what users pass as rows to Arrow data: frames, queries, paths of files, and Python's lists and dicts.

`to_arrow_rows` lists the accepted objects. The module recognises an object by its methods, so it imports no library.

Guarantees: no value changes. Python values get the type that Arrow infers, or the declared type if Arrow infers no
type. If Arrow would silently lose information, such as a time of day among dates, ddflow rebuilds or refuses the
column. An unnamed pandas index does not become a column.
"""

import datetime
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.declared import drop_index_columns
from ddflow.errors import NotArrow, SchemaMismatch, shorten

if TYPE_CHECKING:
    from ddflow.connectors.files import MultiFileReader

_REMEDY: Final = "pass a table, a frame, a path, {name: values}, [{name: value}], or anything with __arrow_c_stream__"
_OF_COLUMN: Final = re.compile(r"(?P<why>.*) Conversion failed for column (?P<name>.*) with type \S+", re.DOTALL)
"""Arrow's error text for a pandas column that it cannot convert."""
Rows = pa.Table | pa.RecordBatch | pa.RecordBatchReader


def to_table(given: Any, what: str, schema: pa.Schema, guessed: Collection[str] = ()) -> pa.Table:
    """Convert rows to one table.  Raises the errors of `to_arrow_rows`.

    O(batches) for Arrow data, which is not copied.  O(rows) for Python values.

    >>> schema = pa.schema({"id": pa.int64(), "city": pa.string()})
    >>> to_table([{"id": 1, "city": "Bern"}, {"id": 2}], "'people'", schema).to_pylist()
    [{'id': 1, 'city': 'Bern'}, {'id': 2, 'city': None}]
    >>> to_table({"id": [1, 2]}, "'people'", schema).num_rows
    2
    """
    rows = to_arrow_rows(given, what, schema, guessed)
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


def to_arrow_rows(given: Any, what: str, schema: pa.Schema, guessed: Collection[str] = ()) -> Rows:
    """Convert rows to a table or a batch.  If the data can be streamed, convert it to a reader of batches.

        a path           a file, folder, pattern or s3://... for `ddflow.connectors.files`, streamed
        a dataset        of pyarrow, streamed
        a LazyFrame      collected
        {name: list}     columns of equal length
        [{name: value}]  rows; a missing name gives null
        other objects    tables, batches, readers, and objects with ``__arrow_c_stream__`` (pandas, Polars, DuckDB)

    ``schema``: the declared columns; empty if nothing is declared.  ``guessed``: the declared columns with a guessed
    type; file readers do not convert text to a guessed type.  Raises `NotArrow` for an object without rows.  Raises
    `SchemaMismatch` if the schemas of batches or the lengths of columns differ.  Raises the errors of the file readers.
    """
    if isinstance(given, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return given
    if isinstance(given, str | os.PathLike):
        from ddflow.connectors.files import (  # the readers take time to load, and few calls need them
            FileOptions,
            open_files,
        )
        from ddflow.connectors.files.file_path import build_dialect

        known = schema if len(schema) else None
        how = FileOptions(dialect=build_dialect(given), converts={*schema.names} - {*guessed})
        return build_files_reader(open_files([os.fspath(given)], known=known, how=how))
    if hasattr(given, "collect_schema") and hasattr(given, "lazy") and not hasattr(given, "__arrow_c_stream__"):
        given = given.collect()
    elif hasattr(given, "scanner") and hasattr(given, "schema"):
        scanned: pa.RecordBatchReader = given.scanner().to_reader()
        return scanned
    if hasattr(given, "__arrow_c_stream__"):
        rows: pa.RecordBatchReader = convert_arrow_object(pa.RecordBatchReader.from_stream, given, what)
        named = drop_index_columns(rows.schema, given)
        return rows if len(named) == len(rows.schema) else rows.read_all().select(named.names)
    if hasattr(given, "__arrow_c_array__"):
        batch: pa.RecordBatch = convert_arrow_object(pa.record_batch, given, what)
        return batch
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return _build_table_from_columns(given, what, schema)
    if isinstance(given, list | tuple) and all(isinstance(part, pa.RecordBatch) for part in given):
        return _join_batches(given, what, schema)
    if isinstance(given, list | tuple) and all(isinstance(row, Mapping) for row in given):
        names = list(dict.fromkeys(name for row in given for name in row))
        return _build_table_from_columns({name: [row.get(name) for row in given] for name in names}, what, schema)
    found, remedy = f"{type(given).__name__} does not speak Arrow", _REMEDY
    if hasattr(given, "rows") and hasattr(given, "order"):  # only marks of a log's parts have both attributes
        found = f"{type(given).__name__} marks a part of a log, which only verify, migrate and why accept"
        remedy = "pass its rows to engine.replace or engine.restate"
    raise NotArrow(f"rows for {what}", found, remedy)


def is_rows(given: Any) -> bool:
    """Return whether ``given`` is a single object with rows, not a sequence of objects.  O(1)."""
    attributes = ("__arrow_c_stream__", "__arrow_c_array__", "collect_schema", "scanner")
    return isinstance(given, str | os.PathLike | Mapping) or any(hasattr(given, each) for each in attributes)


def convert_arrow_object(take: Callable[[Any], Any], given: Any, what: str) -> Any:
    """Call ``take`` with an object that has Arrow's methods, and return the result.

    Raises `NotArrow` if the object holds no rows, or if a pandas column has values of several types.  Raises
    `SchemaMismatch` if several columns of a pandas frame have the same name.
    """
    asked, kind = f"rows for {what}", type(given).__name__
    try:
        return take(given)
    except (ValueError, pa.ArrowTypeError) as error:  # pandas raises ValueError for duplicate columns, like Arrow
        names = [str(name) for name in getattr(given, "columns", ())]
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            found = f"the columns {twice} of the {kind} occur more than once"
            raise SchemaMismatch(asked, found, "give every column its own name, or omit one") from None
        if not isinstance(error, pa.ArrowInvalid | pa.ArrowTypeError):
            raise
        reason = " ".join(map(str, error.args))
        if of := _OF_COLUMN.fullmatch(reason):
            found = f"column {of['name']!r} of the {kind} has several types, or a type that Arrow does not have"
            remedy = "convert it to one type, in pandas with pandas.to_numeric or .astype('string')"
            raise NotArrow(asked, f"{found} ({of['why']})", remedy) from None
        if odd := _find_unsupported_types(given):
            found = f"the columns {odd} of the {kind} have types that Arrow does not have"
            remedy = (
                "cast them, in Polars with .cast(polars.Decimal(38, 0)), .cast(polars.Int64) or .cast(polars.String)"
            )
            raise NotArrow(asked, found, remedy) from None
        remedy = "pass a table, record batches, or a batch reader, with one type for each column"
        raise NotArrow(asked, f"{kind} holds no rows ({reason})", remedy) from None


def _find_unsupported_types(given: Any) -> dict[str, str]:
    """Map each column of a Polars frame whose type Arrow lacks, such as Int128, to the name of its type."""
    types = getattr(given, "schema", None)
    types = types if isinstance(types, Mapping) else {}
    return {str(name): str(kind) for name, kind in types.items() if re.search(r"\bU?Int128\b|\bObject\b", str(kind))}


def _join_batches(parts: Sequence[pa.RecordBatch], what: str, schema: pa.Schema) -> pa.Table:
    for i, part in enumerate(parts):
        if not part.schema.equals(parts[0].schema):
            raise SchemaMismatch(
                f"rows for {what}",
                f"batch {i} has the columns {_format_schema(part.schema)}, batch 0 {_format_schema(parts[0].schema)}",
                "pass batches with one schema",
            )
    return pa.Table.from_batches(parts, parts[0].schema if parts else schema)


def _format_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def build_files_reader(source: "MultiFileReader") -> pa.RecordBatchReader:
    """Stream the rows of files, with every column that occurs in at least one file.

    The reader closes the source after the last row.
    """
    there = {name for file in source.files for name in source.columns(file).names}
    schema = pa.schema([field for field in source.schema if field.name in there])

    def batches() -> Iterator[pa.RecordBatch]:
        with closing(source):
            for batch, _ in source.batches():
                if batch.num_rows:
                    yield batch.select(schema.names)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _build_table_from_columns(given: Mapping[str, Any], what: str, schema: pa.Schema) -> pa.Table:
    types = dict(zip(schema.names, schema.types, strict=True))
    columns = {name: _build_column(values, types.get(name), name, what) for name, values in given.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} has {n:,}" for name, n in lengths.items())
        raise SchemaMismatch(f"rows for {what}", f"the columns have different lengths: {found}", "pass equal lengths")
    return pa.table(columns)


def _build_column(values: Any, kind: pa.DataType | None, name: str, what: str) -> Any:
    """Build a column with the type that Arrow infers, or with the type ``kind`` if Arrow infers no type.

    Raises `NotArrow`.
    """
    asked = f"column {name!r} of rows for {what}"
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise NotArrow(asked, f"it is a {type(values).__name__}", "pass a list of values for each column")
    if hasattr(values, "__arrow_c_stream__"):
        speaking: Any = values
        return pa.chunked_array(speaking)
    tried: tuple[pa.DataType | None, ...] = (None,) if kind is None else (None, kind)
    values, message = values if hasattr(values, "__len__") else list(values), ""
    for each in tried:
        try:
            array = pa.array(values, each)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            message = message or str(error).splitlines()[0]
        else:
            return _restore_times_of_day(values, array, asked)
    raise NotArrow(asked, _describe_mixed_type_value(values) or message, "pass values of one type, and None for null")


def _describe_mixed_type_value(values: Any) -> str | None:
    """Describe the first value whose type differs from the type of the earlier values; None if all types are equal."""
    first: Any = None
    for row, value in enumerate(values):
        first = value if first is None else first
        if value is not None and type(value) is not type(first):
            return (
                f"row {row:,} holds {shorten(repr(value), 60)}, a {type(value).__name__} after {type(first).__name__}"
            )
    return None


def _restore_times_of_day(values: Any, array: Any, asked: str) -> Any:
    """Return ``array``, or a new array with the times of day that ``array`` lost.

    Raises `NotArrow` if only some times have a
    zone.
    """
    if isinstance(values, list | tuple) and (pat.is_date(array.type) or pat.is_timestamp(array.type)):
        moments = [value for value in values if isinstance(value, datetime.datetime)]
        if len({value.tzinfo is None for value in moments}) > 1:
            raise NotArrow(asked, "some of its times have a zone and some have none", "set a zone on all of them")
        if moments and pat.is_date(array.type):
            midnight = datetime.time()
            days = [datetime.datetime.combine(v, midnight) if type(v) is datetime.date else v for v in values]
            return pa.array(days)
    return array
