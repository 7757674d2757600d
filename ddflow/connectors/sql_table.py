"""A table of a database as a sink, for every dialect of SQL that Python's database API speaks.

Guarantees: the rows of an epoch and its `TargetRecord` are one transaction of the target. The record is compared within
it, so a second writer, or an epoch committed before a lost answer, is found before a row changes. Null keys compare
equal. `InPlaceTable` deletes, updates and inserts, so foreign keys and triggers see an update as one; it replaces rows
if a key occurs more than once or unique values change places.
A dialect is a subclass with its connection, its types and its statements.

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
"""Rows that are inserted at once, so that progress can be seen."""


class SqlTable(OpenSink):
    """``table``: its name.  ``place``: of it, for messages.  ``connection``: made by the subclass."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """What the driver raises."""
    refusals: ClassVar[tuple[type[Exception], ...]] = ()
    """Those of them that another attempt would raise again: a constraint, a value that does not fit."""
    begin: ClassVar[str] = "begin"
    indexed: ClassVar[bool] = True
    """Whether rows of a key are found by an index."""
    index: ClassVar[str] = "_ddflow"
    """How the name of that index ends, behind the table's; "" if the target finds one."""
    unique: str | None = ""
    """What stands behind a unique index whose columns may be null; None where such an index is not made."""

    def __init__(self, connection: Any, table: str, shape: TableShape, place: str) -> None:
        self.connection, self.table, self.shape, self.place = connection, table, shape, place

    @abstractmethod
    def find_sql_type(self, kind: pa.DataType) -> str | None:
        """Return the declared type of a column of Arrow's type; None if the target has no such type."""

    @abstractmethod
    def read_column_types(self, table: str) -> dict[str, str]:
        """Return the columns of a table, with types as `find_sql_type` writes them; none if it does not exist."""

    @abstractmethod
    def insert_rows(self, table: str, rows: pa.Table) -> None:
        """Add rows, by the names of their columns."""

    @abstractmethod
    def delete_keys(self, table: str, keys: pa.Table) -> None:
        """Delete the rows of some keys, of one column or more."""

    @abstractmethod
    def read(self) -> pa.Table:
        """Read all rows."""

    def replace_rows(self, gone: pa.Table, rows: pa.Table) -> None:
        """Give keys the rows that they have now, none or one; of no columns: the table."""
        self.delete_rows(gone)
        self.insert_in_batches(self.table, rows)

    def delete_rows(self, keys: pa.Table) -> None:
        """Delete the rows of some keys; of no columns: all."""
        if not keys.num_columns:
            self.execute(f"delete from {quote_name(self.table)}")
        elif keys.num_rows:
            self.delete_keys(self.table, keys)

    def insert_in_batches(self, table: str, rows: pa.Table) -> None:
        """Add rows, piece by piece."""
        for start in range(0, rows.num_rows, PIECE):
            piece = rows.slice(start, PIECE)
            self.insert_rows(table, piece)
            self.look(piece.num_rows)

    def refusal_remedy(self, error: Exception) -> str:
        """Return the remedy for a refusal."""
        del error
        return "see to the table's constraints and types"

    def failure_remedy(self, error: Exception) -> str:
        """Return the remedy for a failure that may pass."""
        del error
        return "see to the target"

    def execute(self, text: str, given: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement.  Raises what the driver raises."""
        return list(self.connection.execute(text, list(given)).fetchall())

    def translate_errors(self, asked: str) -> AbstractContextManager[None]:
        """Convert the driver's errors to ours."""

        def to_ours(error: Exception) -> SinkFailed | SinkRefused:
            said = f"{type(error).__name__}: {first_line(error) if str(error) else ''}"  # without the statement
            if isinstance(error, self.refusals):
                return build_sink_refusal(self.shape, self.place, said, self.refusal_remedy(error))
            return SinkFailed(f"{asked} {self.place}", said, self.failure_remedy(error))

        return convert_errors((*self.refusals, *self.failures), to_ours)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the block's statements, or roll all back after an error."""
        self.execute(self.begin)
        try:
            yield
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()

    def written(self) -> TargetRecord | None:
        """Read the record."""
        with self.translate_errors("ask"):
            return self._find_target_record()

    def _find_target_record(self) -> TargetRecord | None:
        if not self.read_column_types(RECORDS):
            return None
        found = self.execute(f"select state, output, epoch, digest from {RECORDS} where table_name = ?", [self.table])
        return TargetRecord(*found[0]) if found else None

    def missing(self) -> bool:
        """Return whether its catalog has no such table."""
        with self.translate_errors("ask"):
            return not self.read_column_types(self.table)

    def occupied(self) -> bool:
        """Return whether there is a row."""
        with self.translate_errors("ask"):
            there = self.read_column_types(self.table)
            return bool(there) and bool(self.execute(f"select 1 from {quote_name(self.table)} limit 1"))

    def holds(self) -> None:
        """Raise `SinkRefused` for a column whose type the target does not have."""
        for field in self.shape.schema:
            self._require_sql_type(field)

    def prepare(self) -> None:
        """Make the table, or compare it."""
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
        """Whether the key of a table that is made is its primary key."""
        return self.indexed and bool(self.shape.key) and self.shape.certain

    def _require_sql_type(self, field: pa.Field) -> str:
        kind = self.find_sql_type(field.type)
        if kind is None:
            raise build_sink_refusal(
                self.shape,
                self.place,
                f"it cannot hold {field.name!r}, {field.type}",
                "project it to another type",
            )
        return kind

    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Take an epoch."""
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
    """Raise `SpecError` for the table of records, which rows of an output would spoil for all other tables."""
    if table.lower() == RECORDS:
        found = "there it is written which epochs other tables have"
        raise SpecError(f"write to the table {table!r}", found, "give another table")


def cast_to_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert values to text; moments in UTC, because offsets of long ago have seconds and those in text do not.

    >>> cast_to_text(pa.chunked_array([pa.array([-(10**10)], pa.timestamp("s", "Europe/Zurich"))])).to_pylist()
    ['1653-02-10 06:13:20Z']
    """
    kind = column.type
    if pat.is_timestamp(kind) and kind.tz is not None:
        column = pc.cast(column, pa.timestamp(kind.unit, "UTC"))
    return pc.cast(column, pa.string())


GIVEN: Final = "_ddflow_given"


class KeyMatch(NamedTuple):
    """Conditions in SQL that find given rows: ``of``: some rows of ``g``; ``same``: their equals in ``t``."""

    of: str
    same: str


class InPlaceTable(SqlTable):
    """See `SqlTable`.

    >>> set(InPlaceTable.__abstractmethods__) >= {"build_key_matches", "delete_keys"}, InPlaceTable.staged
    (True, '')
    """

    staged: ClassVar[str] = ""
    """What stands behind the temporary table's columns."""
    clashes: ClassVar[tuple[type[Exception], ...]]
    """What an update raises whose rows have values of each other."""

    @abstractmethod
    def build_key_matches(self, keys: pa.Table) -> Sequence[KeyMatch]:
        """Return the ways to find the given keys; each key is found in one way."""

    @abstractmethod
    def convert_to_array(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Convert values of the driver to the type that they were written from."""

    def read(self) -> pa.Table:
        """Read all rows."""
        schema = self.shape.schema
        with self.translate_errors("read"):
            found = self.execute(f"select {', '.join(map(quote_name, schema.names))} from {quote_name(self.table)}")
        columns = list(zip(*found, strict=True)) or [()] * len(schema)
        arrays = [self.convert_to_array(each, field.type) for each, field in zip(columns, schema, strict=True)]
        return pa.table(arrays, schema=schema)

    def is_referenced(self) -> bool:
        """Return whether foreign keys point at the table's rows."""
        return False

    def execute_and_count(self, text: str) -> int:
        """Run a statement, and say of how many rows it was."""
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
        """Update and insert the given rows.  Return False if that would not give the same table."""
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
        for each in matches:  # also where as many were updated: of a key that is there twice two are
            given = ", ".join(f"g.{name}" for name in names)
            found += self.execute_and_count(
                f"insert into {table} ({', '.join(names)}) select {given} from {GIVEN} as g where {each.of} and "
                f"not exists (select 1 from {table} as t where {each.same})"
            )
        return found <= rows.num_rows
