"""SQLite: a table of a file as a source of full contents, and a table as a sink.

Invariant: an epoch is one transaction of SQLite, durable when it returns. Values that SQLite has no type for are text
that sorts as they do: decimals, dates and times in ISO form; booleans are 0 and 1, and what is nested is JSON.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     opened = SQLiteSink(f"{folder}/a.db", "t").open(TableShape("t", pa.schema({"id": pa.int64()}), ("id",)))
...     opened.prepare()
...     opened.write(TableChanges(None, pa.table({"id": [7]}), 1), TargetRecord("0" * 32, "t", 1, "f" * 32), None)
...     opened.read().to_pylist(), opened.written().epoch
([{'id': 7}], 1)
"""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.attached import Mode, OpenSink, TableChanges, TableShape, TableSink, TargetRecord
from ddflow.connectors.sql_table import SqlTable
from ddflow.connectors.whole_files import FileDatabase
from ddflow.errors import SinkFailed, SourceFailed, UnreadableInput

__all__ = ["SQLiteSink", "SQLiteSource", "TableChanges", "TargetRecord"]


@dataclass(frozen=True)
class SQLiteSource(FileDatabase):
    """See `dd.sources.sqlite`."""

    kind: ClassVar[str] = "sqlite"

    def rows(self, schema: pa.Schema) -> pa.Table:
        """The columns of a schema."""
        names = ", ".join(SqlTable.quoted(name) for name in schema.names)
        try:
            with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
                found = connection.execute(f"select {names} from {self.selected}").fetchall()
        except sqlite3.Error as error:
            # "no such table", "no such column": waiting does not help.
            kind = UnreadableInput if str(error).startswith("no such") else SourceFailed
            raise kind(f"read {self.target}", str(error), "see to the database") from None
        columns = list(zip(*found, strict=True)) or [()] * len(schema)
        return pa.table([_typed(each, field.type) for each, field in zip(columns, schema, strict=True)], schema=schema)


def _typed(values: Any, kind: pa.DataType) -> pa.Array:
    """Values of SQLite in a type.  Raises `SchemaMismatch`."""
    try:
        if pat.is_boolean(kind):
            return pa.array([None if value is None else bool(value) for value in values], kind)
        if pat.is_nested(kind):
            return pa.array([None if value is None else json.loads(value) for value in values], kind)
        if kind == pa.uint64():
            return pa.array([None if value is None else int(value) for value in values], kind)
        if pat.is_decimal(kind):
            return pa.array([None if value is None else Decimal(str(value)) for value in values], kind)
        if pat.is_temporal(kind) and any(isinstance(value, str) for value in values):
            return pa.array(values, pa.string()).cast(kind)
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, ArithmeticError, TypeError) as error:
        raise SourceFailed(
            f"read values as {kind}", str(error), "declare the column's type as its values are"
        ) from None


@dataclass(frozen=True)
class SQLiteSink(TableSink):
    """See `dd.sinks.sqlite`."""

    path: str
    table: str
    mode: Mode = "upsert"
    kind: ClassVar[str] = "sqlite"

    @property
    def target(self) -> str:
        """The file and the table."""
        return f"{os.path.abspath(self.path)}#{self.table}"

    def open(self, shape: TableShape) -> OpenSink:
        """Connect."""
        try:
            # One at a time uses it, though not always the same thread.
            connection = sqlite3.connect(self.path, timeout=5, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise SinkFailed(f"open {self.target}", str(error), "see to the file") from None
        return SQLiteTable(connection, self.table, shape, self.target)


class SQLiteTable(SqlTable):
    """A table of SQLite."""

    failures = (sqlite3.Error,)
    refusals = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError)
    begin = "begin immediate"

    def type_of(self, kind: pa.DataType) -> str | None:
        """One of its four."""
        if pat.is_boolean(kind) or (pat.is_integer(kind) and kind != pa.uint64()):
            return "INTEGER"
        if pat.is_floating(kind):
            return "REAL"
        return "BLOB" if _is_bytes(kind) else "TEXT"

    def columns(self, table: str) -> dict[str, str]:
        """As its catalog says."""
        return dict(self.execute("select name, type from pragma_table_info(?)", [table]))

    def insert(self, table: str, rows: pa.Table) -> None:
        """Add rows."""
        names = ", ".join(map(self.quoted, rows.schema.names))
        marks = ", ".join("?" * rows.num_columns)
        self.connection.executemany(f"insert into {self.quoted(table)} ({names}) values ({marks})", _values(rows))

    def delete(self, table: str, keys: pa.Table) -> None:
        """Delete the rows of keys."""
        same = " and ".join(f"{self.quoted(name)} is ?" for name in keys.schema.names)
        self.connection.executemany(f"delete from {self.quoted(table)} where {same}", _values(keys))

    def read(self) -> pa.Table:
        """All rows."""
        schema = self.shape.schema
        with self.talking("read"):
            names = ", ".join(map(self.quoted, schema.names))
            found = self.execute(f"select {names} from {self.quoted(self.table)}")
        columns = list(zip(*found, strict=True)) or [()] * len(schema)
        return pa.table([_typed(each, field.type) for each, field in zip(columns, schema, strict=True)], schema=schema)


def _is_bytes(kind: pa.DataType) -> bool:
    return pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind)


def _values(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows as SQLite takes them."""
    return zip(*(_plain(column) for column in rows.columns), strict=True)


def _plain(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pat.is_nested(kind):
        return [None if value is None else json.dumps(value, default=str) for value in column.to_pylist()]
    if pat.is_decimal(kind) or kind == pa.uint64():
        return [None if value is None else str(value) for value in column.to_pylist()]
    if pat.is_temporal(kind):
        return list(pc.cast(column, pa.string()).to_pylist())
    return list(column.to_pylist())
