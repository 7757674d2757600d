"""Read a table of an SQLite file as the full contents of an input, and write an output to a table.

An epoch is one transaction of SQLite, and the transaction is durable when `write` returns. SQLite lacks many types. The
sink therefore stores decimals, unsigned 64-bit integers, dates and times as text; dates and times are in ISO form. The
sink also stores NaN as text, because SQLite would turn NaN into null. A boolean becomes 0 or 1, a duration becomes its
number of units, and a nested value becomes JSON.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     opened = SQLiteSink(f"{folder}/a.db", "t").open(TableShape("t", pa.schema({"id": pa.int64()}), ("id",)))
...     opened.prepare()
...     opened.write(TableChanges(None, pa.table({"id": [7]}), 1), TargetRecord("0" * 32, "t", 1, "f" * 32), None)
...     opened.read().to_pylist(), opened.written().epoch
([{'id': 7}], 1)
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from math import nan
from typing import Any, ClassVar, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.names import quote_name
from ddflow.columns.schema import is_bytes
from ddflow.columns.wider import suggest_widening
from ddflow.connectors.api import OpenSink, TableChanges, TableShape, TargetRecord
from ddflow.connectors.file_database import FileDatabaseSink, FileDatabaseSource, split_columns_by_presence
from ddflow.connectors.sql_table import InPlaceTable, KeyMatch, cast_to_text
from ddflow.errors import SchemaMismatch, SinkFailed, SourceFailed, UnreadableInput

__all__ = ["SQLiteSink", "SQLiteSource", "TableChanges", "TargetRecord"]


@dataclass(frozen=True)
class SQLiteSource(FileDatabaseSource):
    """See `dd.sources.sqlite`."""

    kind: ClassVar[str] = "sqlite"

    def read_rows(self, schema: pa.Schema, all_of_it: bool) -> tuple[pa.Table, Mapping[str, pa.DataType | None]]:
        """See `FileDatabaseSource`."""
        try:
            place = f"file:{quote(self.path)}?mode=ro"
            with closing(sqlite3.connect(place, uri=True, isolation_level=None)) as connection:
                connection.execute("begin")
                described = connection.execute(f"select * from {self.table_expression} limit 0").description
                schema, others = split_columns_by_presence(schema, [each[0] for each in described], all_of_it)
                names = ", ".join(quote_name(name) for name in schema.names)
                found = connection.execute(f"select {names} from {self.table_expression}").fetchall()
                beside = {name: self._find_column_type(connection, name) for name in others}
        except sqlite3.Error as error:
            # SQLite's error for a missing table or column begins with "no such". A retry would fail again.
            kind = UnreadableInput if str(error).startswith("no such") else SourceFailed
            raise kind(f"read {self.target}", str(error), "check the database") from None
        columns = list(zip(*found, strict=True)) or [()] * len(schema)
        arrays = [_cast_column(each, field, self.target) for each, field in zip(columns, schema, strict=True)]
        return pa.table(arrays, schema=schema), beside

    def _find_column_type(self, connection: sqlite3.Connection, name: str) -> pa.DataType | None:
        """Return the type of a column that the input lacks, from the values or else from the SQLite schema."""
        column = quote_name(name)
        there = {
            each for (each,) in connection.execute(f"select distinct typeof({column}) from {self.table_expression}")
        }
        if there - {"null"}:
            return next((kind for kinds, kind in _VALUES.items() if there - {"null"} <= kinds), pa.string())
        asked = "select type from pragma_table_info(?) where name = ?"
        given = next(iter(connection.execute(asked, [self.table, name])), ("",))[0].upper()
        return next((kind for words, kind in _DECLARED.items() if any(word in given for word in words)), None)


_VALUES: Final = {
    frozenset(["integer"]): pa.int64(),
    frozenset(["integer", "real"]): pa.float64(),
    frozenset(["blob"]): pa.binary(),
}
"""Arrow type of a column, by the SQLite storage classes of its values.  For other classes, the type is text."""
_DECLARED: Final = {
    ("INT",): pa.int64(),
    ("CHAR", "CLOB", "TEXT"): pa.string(),
    ("BLOB",): pa.binary(),
    ("REAL", "FLOA", "DOUB"): pa.float64(),
}
"""Arrow type of a column, by substrings of its declared type.

SQLite's rules for type affinity define these substrings.
"""
_READ: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...]] = (
    (pat.is_boolean, bool),
    (pat.is_nested, json.loads),
    (pa.uint64().equals, int),
    (pat.is_decimal, lambda value: Decimal(str(value))),
)
"""Pairs of a test and a function. The function converts stored values to the Arrow types that pass the test."""
_NAN: Final = "NaN"
_DAY: Final = "1970-01-01 "


def _cast_values(values: Any, kind: pa.DataType) -> pa.Array:
    """Cast values from SQLite to a type.  Raises `SchemaMismatch`."""
    try:
        if pat.is_integer(kind) and any(isinstance(value, float) and not value.is_integer() for value in values):
            raise ValueError(f"{next(value for value in values if isinstance(value, float))} is not a whole number")
        if (read := next((read for test, read in _READ if test(kind)), None)) is not None:
            return pa.array([None if value is None else read(value) for value in values], kind)
        if pat.is_time(kind):  # Arrow cannot cast text to times of day
            texts = pa.array([None if value is None else f"{_DAY}{value}" for value in values], pa.string())
            return texts.cast(pa.timestamp("ns")).cast(kind)
        if pat.is_temporal(kind) and any(isinstance(value, str) for value in values):
            return pa.array(values, pa.string()).cast(kind)
        if pat.is_floating(kind):
            values = [nan if value == _NAN else value for value in values]
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, ArithmeticError, TypeError) as error:
        raise SchemaMismatch(f"read values as {kind}", str(error), "declare the type of the values") from None


def _cast_column(values: Any, field: pa.Field, target: str) -> pa.Array:
    """Cast values from SQLite to the type of a column.  Raises `SchemaMismatch` with the column's name."""
    try:
        return _cast_values(values, field.type)
    except SchemaMismatch as error:
        kinds = {str: pa.string(), bytes: pa.binary(), float: pa.float64(), int: pa.int64()}
        wide = next(kind for of, kind in kinds.items() if any(isinstance(value, of) for value in values))
        remedy = error.fix + suggest_widening(field, wide)
        raise SchemaMismatch(
            f"column {field.name!r} of {target}", f"{error.asked}: {error.found}", remedy, column=field.name
        ) from None


@dataclass(frozen=True)
class SQLiteSink(FileDatabaseSink):
    """See `dd.sinks.sqlite`."""

    kind: ClassVar[str] = "sqlite"

    def open(self, shape: TableShape) -> OpenSink:
        """Connect."""
        try:
            # Several threads use the connection, but only one thread at a time.
            connection = sqlite3.connect(self.path, timeout=5, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise SinkFailed(f"open {self.target}", str(error), "check the file") from None
        return SQLiteTable(connection, self.table, shape, self.target)


class SQLiteTable(InPlaceTable):
    """A table of SQLite."""

    failures = (sqlite3.Error,)
    refusals = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError)
    clashes = (sqlite3.IntegrityError,)
    begin = "begin immediate"

    def find_sql_type(self, kind: pa.DataType) -> str | None:
        """Return the SQLite type for an Arrow type: INTEGER, REAL, BLOB or TEXT."""
        if pat.is_boolean(kind) or pat.is_duration(kind) or (pat.is_integer(kind) and kind != pa.uint64()):
            return "INTEGER"
        if pat.is_floating(kind):
            return "REAL"
        return "BLOB" if is_bytes(kind) else "TEXT"

    def read_column_types(self, table: str) -> dict[str, str]:
        """Read the columns from the catalog."""
        return dict(self.execute("select name, type from pragma_table_info(?)", [table]))

    def insert_rows(self, table: str, rows: pa.Table) -> None:
        """Add rows."""
        names = ", ".join(map(quote_name, rows.schema.names))
        marks = ", ".join("?" * rows.num_columns)
        self.connection.executemany(
            f"insert into {quote_name(table)} ({names}) values ({marks})", _convert_to_tuples(rows)
        )

    def delete_keys(self, table: str, keys: pa.Table) -> None:
        """Delete the rows with the given keys."""
        same = " and ".join(f"{quote_name(name)} is ?" for name in keys.schema.names)
        self.connection.executemany(f"delete from {quote_name(table)} where {same}", _convert_to_tuples(keys))

    def build_key_matches(self, keys: pa.Table) -> Sequence[KeyMatch]:
        """Compare keys by ``is``, which matches null and still uses an index."""
        same = (f"t.{name} is g.{name}" for name in map(quote_name, keys.schema.names))
        return [KeyMatch("1", " and ".join(same) or "1")]

    def convert_to_array(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """See `InPlaceTable.convert_to_array`."""
        return _cast_values(values, kind)


def _convert_to_tuples(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield each row as a tuple of values that SQLite can store."""
    return zip(*(_convert_to_sqlite_values(column) for column in rows.columns), strict=True)


def _convert_to_sqlite_values(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pat.is_nested(kind):
        return [None if value is None else json.dumps(value, default=str) for value in column.to_pylist()]
    if pat.is_decimal(kind) or kind == pa.uint64():
        return [None if value is None else str(value) for value in column.to_pylist()]
    if pat.is_duration(kind):
        return list(pc.cast(column, pa.int64()).to_pylist())
    if pat.is_temporal(kind):
        return list(cast_to_text(column).to_pylist())
    if pat.is_floating(kind):
        return [_NAN if value != value else value for value in column.to_pylist()]
    return list(column.to_pylist())
