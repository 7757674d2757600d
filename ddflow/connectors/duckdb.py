"""Read a table of a DuckDB file as the full contents of an input, and write an output to a table.

An epoch is one transaction of DuckDB. DuckDB lets only one process write to a file. The sink therefore opens the file
for each operation and closes it afterwards. Other processes can read the file between operations.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     opened = DuckDBSink(f"{folder}/a.db", "t").open(TableShape("t", pa.schema({"id": pa.int64()}), ("id",)))
...     opened.prepare()
...     opened.write(TableChanges(None, pa.table({"id": [7]}), 1), TargetRecord("0" * 32, "t", 1, "f" * 32), None)
...     opened.read().to_pylist(), opened.written().epoch
([{'id': 7}], 1)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

import pyarrow as pa

from ddflow.columns.names import quote_name
from ddflow.connectors.api import OpenSink, TableChanges, TableShape, TargetRecord
from ddflow.connectors.file_database import FileDatabaseSink, FileDatabaseSource, split_columns_by_presence
from ddflow.connectors.sql_table import SqlTable
from ddflow.errors import SourceFailed, UnreadableInput, import_extra
from ddflow.storage.address import refuse_embedded_secret

__all__ = ["DuckDBSink", "DuckDBSource", "TableChanges", "TargetRecord"]

TOKEN: Final = "set the token in the environment: motherduck_token"
_GIVEN: Final = "_ddflow_given"
"""Name by which a SQL statement refers to the rows that are passed with it.  No table has this name."""


def import_duckdb() -> Any:
    """Import the library of DuckDB.  Raises `MissingExtra`."""
    return import_extra("use DuckDB", "duckdb", "duckdb")


@dataclass(frozen=True)
class DuckDBSource(FileDatabaseSource):
    """See `dd.sources.duckdb`."""

    kind: ClassVar[str] = "duckdb"

    def __post_init__(self) -> None:
        refuse_embedded_secret(self.path, TOKEN)

    def needs(self) -> None:
        """Import the driver."""
        import_duckdb()

    def read_rows(self, schema: pa.Schema, all_of_it: bool) -> tuple[pa.Table, Mapping[str, pa.DataType | None]]:
        """See `FileDatabaseSource`."""
        duckdb = import_duckdb()
        try:
            with self._connect_to_read(duckdb) as connection:
                there = connection.sql(f"select * from {self.table_expression} limit 0").to_arrow_table().schema
                schema, others = split_columns_by_presence(schema, there.names, all_of_it)
                names = ", ".join(quote_name(name) for name in schema.names)
                rows = connection.sql(f"select {names} from {self.table_expression}").to_arrow_table()
                return rows.rename_columns(schema.names), {name: there.field(name).type for name in others}
        except duckdb.Error as error:
            # DuckDB raises ProgrammingError for a missing table or column, and a retry does not help.
            kind = UnreadableInput if isinstance(error, duckdb.ProgrammingError) else SourceFailed
            raise kind(f"read {self.target}", str(error).splitlines()[0], "check the database") from None

    def _connect_to_read(self, duckdb: Any) -> Any:
        """Connect to read the file, or connect for writing if this process already has the file open for writing."""
        try:
            return duckdb.connect(self.path, read_only=True)
        except duckdb.ConnectionException:
            return duckdb.connect(self.path)


@dataclass(frozen=True)
class DuckDBSink(FileDatabaseSink):
    """See `dd.sinks.duckdb`."""

    kind: ClassVar[str] = "duckdb"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_embedded_secret(self.path, TOKEN)

    def needs(self) -> None:
        """Import the driver."""
        import_duckdb()

    def open(self, shape: TableShape) -> OpenSink:
        """Connect."""
        return DuckDBTable(self, shape)


@cache
def _find_duckdb_type(kind: pa.DataType) -> str | None:
    """See `DuckDBTable.find_sql_type`.

    The function asks an in-memory DuckDB database for the type, once in a process for each Arrow type.
    """
    duckdb, empty = import_duckdb(), pa.table({"a": pa.array([], kind)})
    try:
        with duckdb.connect() as connection:
            connection.register("empty", empty)
            connection.sql("from empty").to_arrow_table().cast(empty.schema)
            return str(connection.execute("describe empty").fetchall()[0][1])
    except (duckdb.Error, pa.ArrowException):
        return None


class DuckDBTable(SqlTable):
    """A table of DuckDB, without an index or a primary key.

    An index would not help: DuckDB uses no index for joins, and each insert would have to update the index.
    """

    indexed: ClassVar[bool] = False

    def __init__(self, of: DuckDBSink, shape: TableShape) -> None:
        self._duckdb = import_duckdb()
        type(self).failures = (self._duckdb.Error,)
        type(self).refusals = (self._duckdb.IntegrityError, self._duckdb.ProgrammingError, self._duckdb.DataError)
        super().__init__(None, of.table, shape, of.target)
        self._path = of.path

    @contextmanager
    def translate_errors(self, asked: str) -> Iterator[None]:
        """Connect for the duration of a ``with`` block, and convert the driver's errors to errors of ddflow."""
        with super().translate_errors(asked):
            self.connection = self._duckdb.connect(self._path)
            try:
                yield
            finally:
                self.connection.close()

    def find_sql_type(self, kind: pa.DataType) -> str | None:
        """Return the DuckDB type for an Arrow type; None if DuckDB would change the values."""
        return _find_duckdb_type(kind)

    def read_column_types(self, table: str) -> dict[str, str]:
        """Read the columns from the catalog."""
        found = self.execute(
            "select column_name, data_type from duckdb_columns() where schema_name = current_schema() and "
            "database_name = current_database() and table_name = ? order by column_index",
            [table],
        )
        return dict(found)

    def insert_rows(self, table: str, rows: pa.Table) -> None:
        """Add rows."""
        names = self._quote_names(rows.schema.names)
        self._execute_with_rows(rows, f"insert into {quote_name(table)} ({names}) select {names} from {_GIVEN}")

    def delete_keys(self, table: str, keys: pa.Table) -> None:
        """Delete the rows with the given keys."""
        same = " and ".join(
            f"t.{quote_name(name)} is not distinct from {_GIVEN}.{quote_name(name)}" for name in keys.schema.names
        )
        self._execute_with_rows(keys, f"delete from {quote_name(table)} t using {_GIVEN} where {same}")

    def read(self) -> pa.Table:
        """Read all rows."""
        with self.translate_errors("read"):
            names = self._quote_names(self.shape.schema.names)
            found: pa.Table = self.connection.sql(f"select {names} from {quote_name(self.table)}").to_arrow_table()
            return found.cast(pa.schema([each.with_nullable(True) for each in self.shape.schema]))

    def close(self) -> None:
        """Do nothing, because each operation closes its connection."""

    def _quote_names(self, names: Sequence[str]) -> str:
        return ", ".join(map(quote_name, names))

    def _execute_with_rows(self, rows: pa.Table, text: str) -> None:
        self.connection.register(_GIVEN, rows)
        try:
            self.connection.execute(text)
        finally:
            with suppress(self._duckdb.Error):  # an error about the ended transaction would hide its cause
                self.connection.unregister(_GIVEN)
