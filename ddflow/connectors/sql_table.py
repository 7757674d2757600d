"""Write to a table of a SQL database.  The sinks of DuckDB, Postgres and SQLite share this code.

For each database, a subclass of `SqlTable` has the connection, the types and the statements. Guarantees: one
transaction of the target writes the rows of an epoch and its `TargetRecord`. Before the transaction changes a row, it
compares the target's record with the record of the last epoch. A write therefore notices a second writer. It also
notices an epoch that was committed although the target's answer was lost. Null keys compare equal. `InPlaceTable`
deletes, updates and inserts rows, so foreign keys and triggers see an update, not a delete and an insert. If a key
occurs more than once, or if rows exchange unique values, `InPlaceTable` deletes and inserts rows, without updates.

>>> SqlTable.indexed, SqlTable.begin
(True, 'begin')
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import Secret
from ddflow.columns.names import quote_name
from ddflow.connectors.api import OpenSink, TableChanges, TableShape, TargetRecord
from ddflow.connectors.modes import mark_rows_with_keys
from ddflow.connectors.table_shape import (
    build_dropped_table_error,
    build_sink_refusal,
    find_missing_columns,
    is_written,
)
from ddflow.errors import SinkFailed, SinkRefused, SpecError, convert_errors, first_line

RECORDS: Final = "_ddflow_written"
PIECE: Final = 1 << 17
"""Number of rows in one insert.  The sink reports progress after each insert."""


class SqlTable(OpenSink):
    """A table of a SQL database.

    ``table``: name of the table.  ``place``: address of the table, for messages.  ``connection``: the connection that
    the subclass opened.
    """

    failures: ClassVar[tuple[type[Exception], ...]]
    """Exceptions that the driver raises."""
    refusals: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions of the driver that would occur again in a retry.

    Examples are a violated constraint, and a value that does not fit its column.
    """
    begin: ClassVar[str] = "begin"
    indexed: ClassVar[bool] = True
    """Whether ddflow creates an index on the key of a new table."""
    index: ClassVar[str] = "_ddflow"
    """Text after the table's name in the name of the key's index; "" if the target chooses the name."""
    unique: str | None = ""
    """SQL that ends the statement for a unique index on nullable columns.

    The value is None if the index must not be unique.
    """

    def __init__(self, connection: Any, table: str, shape: TableShape, place: str) -> None:
        self.connection, self.table, self.shape, self.place = connection, table, shape, place

    @abstractmethod
    def find_sql_type(self, kind: pa.DataType) -> str | None:
        """Return the SQL type for an Arrow type; None if the target has no such type."""

    @abstractmethod
    def read_column_types(self, table: str) -> dict[str, str]:
        """Return the types of a table's columns, as `find_sql_type` spells them; {} if the table does not exist."""

    @abstractmethod
    def insert_rows(self, table: str, rows: pa.Table) -> None:
        """Insert rows into the columns with the same names."""

    @abstractmethod
    def delete_keys(self, table: str, keys: pa.Table) -> None:
        """Delete the rows with the given keys.  A key has at least one column."""

    @abstractmethod
    def read(self) -> pa.Table:
        """Read all rows."""

    def replace_rows(self, gone: pa.Table, rows: pa.Table) -> None:
        """Delete the rows whose keys are in ``gone``, and insert ``rows``.

        If ``gone`` has no columns, delete all rows.
        """
        self.delete_rows(gone)
        self.insert_in_batches(self.table, rows)

    def delete_rows(self, keys: pa.Table) -> None:
        """Delete the rows with the given keys.  If the keys have no columns, delete all rows."""
        if not keys.num_columns:
            self.execute(f"delete from {quote_name(self.table)}")
        elif keys.num_rows:
            self.delete_keys(self.table, keys)

    def insert_in_batches(self, table: str, rows: pa.Table) -> None:
        """Insert rows in batches, and report progress after each batch."""
        for start in range(0, rows.num_rows, PIECE):
            piece = rows.slice(start, PIECE)
            self.insert_rows(table, piece)
            self.look(piece.num_rows)

    def refusal_remedy(self, error: Exception) -> str:
        """Return the remedy for an error in `refusals`."""
        del error
        return "check the table's constraints and types"

    def failure_remedy(self, error: Exception) -> str:
        """Return the remedy for an error after which a retry can succeed."""
        del error
        return "check the target"

    def execute(self, text: str, given: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.  The method raises the driver's errors."""
        return list(self.connection.execute(text, list(given)).fetchall())

    def translate_errors(self, asked: str) -> AbstractContextManager[None]:
        """Convert the driver's errors to errors of ddflow."""

        def to_ours(error: Exception) -> SinkFailed | SinkRefused:
            said = f"{type(error).__name__}: {first_line(error) if str(error) else ''}"  # omits the statement
            if isinstance(error, self.refusals):
                return build_sink_refusal(self.shape, self.place, said, self.refusal_remedy(error))
            return SinkFailed(f"{asked} {self.place}", said, self.failure_remedy(error))

        return convert_errors((*self.refusals, *self.failures), to_ours)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of a ``with`` block, or roll the statements back after an error."""
        self.execute(self.begin)
        try:
            yield
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()

    def written(self) -> TargetRecord | None:
        """Read the record of the last epoch."""
        with self.translate_errors("ask"):
            return self._find_target_record()

    def _find_target_record(self) -> TargetRecord | None:
        if not self.read_column_types(RECORDS):
            return None
        found = self.execute(f"select state, output, epoch, digest from {RECORDS} where table_name = ?", [self.table])
        return TargetRecord(*found[0]) if found else None

    def missing(self) -> bool:
        """Return whether the catalog lacks the table."""
        with self.translate_errors("ask"):
            return not self.read_column_types(self.table)

    def occupied(self) -> bool:
        """Return whether the table has a row."""
        with self.translate_errors("ask"):
            there = self.read_column_types(self.table)
            return bool(there) and bool(self.execute(f"select 1 from {quote_name(self.table)} limit 1"))

    def holds(self) -> None:
        """Raise `SinkRefused` if the target has no type for a column."""
        for field in self.shape.schema:
            self._require_sql_type(field)

    def prepare(self) -> None:
        """Create the table, or check its columns and add new columns."""
        wanted = {field.name: self._require_sql_type(field) for field in self.shape.schema}
        with self.translate_errors("prepare"):
            there = self.read_column_types(self.table)
            name = quote_name(self.table)
            if not there:
                shown = ", ".join(f"{quote_name(column)} {kind}" for column, kind in wanted.items())
                key = ", ".join(map(quote_name, self.shape.key or ())) if self.indexed else ""
                with self.transaction():
                    if self._find_target_record() is not None:
                        self.execute(f"delete from {RECORDS} where table_name = ?", [self.table])
                    self.execute(f"create table {name} ({shown}{f', primary key ({key})' * self._has_primary_key})")
                    if key and not self._has_primary_key:
                        kind = "index" if self.unique is None else "unique index"
                        called = quote_name(self.table + self.index) if self.index else ""
                        made = f"create {kind} {called} on {name} ({key})"
                        self.execute(made + (self.unique or ""))
                return
            for column in find_missing_columns(self.shape, there, wanted, self.place, self.find_sql_type):
                self.execute(f"alter table {name} add column {quote_name(column)} {wanted[column]}")

    @property
    def _has_primary_key(self) -> bool:
        """Whether ddflow declares the key of a new table as its primary key."""
        return self.indexed and bool(self.shape.key) and self.shape.certain

    def _require_sql_type(self, field: pa.Field) -> str:
        kind = self.find_sql_type(field.type)
        if kind is None:
            raise build_sink_refusal(
                self.shape,
                self.place,
                f"it cannot store {field.name!r} ({field.type})",
                "project it to another type",
            )
        return kind

    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Write an epoch and its record in one transaction."""
        with self.translate_errors("write"), self.transaction():
            self.execute(
                f"create table if not exists {RECORDS} (table_name varchar(255) primary key, state varchar(32), "
                "output varchar(255), epoch bigint, digest varchar(32))"
            )
            if is_written(self._find_target_record(), now, before, self.place):
                return
            if not self.read_column_types(self.table):
                raise build_dropped_table_error(now.output, self.place, now.epoch if before is None else before.epoch)
            if changes.gone is None:
                self.insert_in_batches(self.table, changes.rows)
            else:
                self.replace_rows(changes.gone, changes.rows)
            self.execute(f"delete from {RECORDS} where table_name = ?", [self.table])
            self.execute(f"insert into {RECORDS} values (?, ?, ?, ?, ?)", [self.table, *now])

    def cancel(self) -> None:
        """Interrupt the connection's current statement."""
        self.connection.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def refuse_records_table(table: str) -> None:
    """Raise `SpecError` if ``table`` is the table of records, which rows of an output would corrupt."""
    if table.lower() == RECORDS:
        found = "that table records the epochs of the other tables"
        raise SpecError(f"write to the table {table!r}", found, "use another table")


def cast_to_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert values to text.

    Timestamps with a zone become UTC.  Some historical offsets include seconds, but the text of an offset has no place
    for seconds.

    >>> cast_to_text(pa.chunked_array([pa.array([-(10**10)], pa.timestamp("s", "Europe/Zurich"))])).to_pylist()
    ['1653-02-10 06:13:20Z']
    """
    kind = column.type
    if pat.is_timestamp(kind) and kind.tz is not None:
        column = pc.cast(column, pa.timestamp(kind.unit, "UTC"))
    return pc.cast(column, pa.string())


GIVEN: Final = "_ddflow_given"


class KeyMatch(NamedTuple):
    """SQL conditions that find, for each row to write, the table's row with the same key.

    In the conditions, ``g`` is a row to write, and ``t`` is a row of the table.

    ``of``: a condition that selects some of the rows ``g``.
    ``same``: a condition that is true if the key of a row ``t`` equals the key of a row ``g``.
    """

    of: str
    same: str


class InPlaceTable(SqlTable):
    """A table that updates rows in place; see `SqlTable`.

    >>> set(InPlaceTable.__abstractmethods__) >= {"build_key_matches", "delete_keys"}, InPlaceTable.staged
    (True, '')
    """

    staged: ClassVar[str] = ""
    """SQL that follows the column list in the statement that creates the temporary table."""
    clashes: ClassVar[tuple[type[Exception], ...]]
    """Exceptions that the driver raises if the rows of an update exchange unique values."""

    @abstractmethod
    def build_key_matches(self, keys: pa.Table) -> Sequence[KeyMatch]:
        """Return conditions that match keys.  Each key is selected by exactly one of the conditions."""

    @abstractmethod
    def convert_to_array(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Convert values from the driver back to their Arrow type."""

    def read(self) -> pa.Table:
        """Read all rows."""
        schema = self.shape.schema
        with self.translate_errors("read"):
            found = self.execute(f"select {', '.join(map(quote_name, schema.names))} from {quote_name(self.table)}")
        columns = list(zip(*found, strict=True)) or [()] * len(schema)
        arrays = [self.convert_to_array(each, field.type) for each, field in zip(columns, schema, strict=True)]
        return pa.table(arrays, schema=schema)

    def is_referenced(self) -> bool:
        """Return whether foreign keys of other tables refer to the table."""
        return False

    def execute_and_count(self, text: str) -> int:
        """Run a statement, and return the number of affected rows."""
        return int(self.connection.execute(text).rowcount)

    def replace_rows(self, gone: pa.Table, rows: pa.Table) -> None:
        """See `SqlTable.replace_rows`."""
        keys = rows.select(list(self.shape.key or ()))
        if not self.execute(f"select 1 from {quote_name(self.table)} limit 1"):
            self.insert_in_batches(self.table, rows)
            return
        if gone.num_columns:
            gone = gone.filter(pc.invert(pa.array(mark_rows_with_keys(gone, keys, Secret.fresh()))))
        if gone.num_columns or not rows.num_rows:
            self.delete_rows(gone)
        if not rows.num_rows:
            return
        typed = ", ".join(f"{quote_name(field.name)} {self._require_sql_type(field)}" for field in self.shape.schema)
        self.execute(f"create temporary table if not exists {GIVEN} ({typed}){self.staged}")
        self.execute(f"delete from {GIVEN}")
        self.insert_in_batches(GIVEN, rows)
        if not self._try_upsert(rows, self.build_key_matches(keys)):
            self.delete_rows(keys)
            names = ", ".join(map(quote_name, rows.schema.names))
            self.execute(f"insert into {quote_name(self.table)} ({names}) select {names} from {GIVEN}")

    def _try_upsert(self, rows: pa.Table, matches: Sequence[KeyMatch]) -> bool:
        """Update and insert rows.  Return False if deletes and inserts may give a different table."""
        table, names = quote_name(self.table), [quote_name(name) for name in rows.schema.names]
        sets = ", ".join(
            f"{quote_name(each)} = g.{quote_name(each)}"
            for each in rows.schema.names
            if each not in (self.shape.key or ())
        )
        self.execute("savepoint ddflow")
        found = 0
        try:
            for each in matches:
                where = f"from {GIVEN} as g where {each.of} and {each.same}"
                if sets:
                    found += self.execute_and_count(f"update {table} as t set {sets} {where}")
                else:
                    found += self.execute(f"select count(*) from {table} as t, {where.removeprefix('from ')}")[0][0]
        except self.clashes:
            self.execute("rollback to savepoint ddflow")
            if self.is_referenced():
                raise
            return False
        for each in matches:  # even if the count is already right: an update of a duplicate key counts twice
            given = ", ".join(f"g.{name}" for name in names)
            found += self.execute_and_count(
                f"insert into {table} ({', '.join(names)}) select {given} from {GIVEN} as g where {each.of} and "
                f"not exists (select 1 from {table} as t where {each.same})"
            )
        return found <= rows.num_rows
