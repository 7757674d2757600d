"""A table of a database as a sink: what is the same wherever SQL is spoken over a connection of Python's.

Invariant: an epoch's rows and its `TargetRecord` are one transaction of the target. The record lies in the table
``_ddflow_written``, a row for each table. The record is compared within that transaction, so a second writer, or an
epoch that was committed though nobody heard of it, is found before a row changes. A dialect is a subclass with the
connection, the types and how rows go in; its file has nothing of records, shapes or order.

Rows of keys are replaced by comparison that takes null for equal to null: deleted, then inserted, unless a dialect
updates them in place. A table that is made has its
key as primary key, or as unique index where it may be null; one that the user made needs none, and keeps what it has.

>>> SqlTable.indexed, SqlTable.begin
(True, 'begin')
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.names import quoted
from ddflow.connectors.attached import OpenSink, TableChanges, TableShape, TargetRecord
from ddflow.connectors.table_shape import is_written, lacking, refused, vanished
from ddflow.errors import SinkFailed, SpecError

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
    def type_of(self, kind: pa.DataType) -> str | None:
        """Return the declared type of a column of Arrow's type; None if the target has no such type."""

    @abstractmethod
    def columns(self, table: str) -> dict[str, str]:
        """Return the columns of a table, with types as `type_of` writes them; none if it does not exist."""

    @abstractmethod
    def insert(self, table: str, rows: pa.Table) -> None:
        """Add rows, by the names of their columns."""

    @abstractmethod
    def delete(self, table: str, keys: pa.Table) -> None:
        """Delete the rows of some keys, of one column or more."""

    @abstractmethod
    def read(self) -> pa.Table:
        """Read all rows."""

    def replace(self, gone: pa.Table, rows: pa.Table) -> None:
        """Give keys the rows that they have now, none or one; of no columns: the table."""
        self.clear(gone)
        self.add(self.table, rows)

    def clear(self, keys: pa.Table) -> None:
        """Delete the rows of some keys; of no columns: all."""
        if not keys.num_columns:
            self.execute(f"delete from {quoted(self.table)}")
        elif keys.num_rows:
            self.delete(self.table, keys)

    def add(self, table: str, rows: pa.Table) -> None:
        """Add rows, piece by piece."""
        for start in range(0, rows.num_rows, PIECE):
            piece = rows.slice(start, PIECE)
            self.insert(table, piece)
            self.look(piece.num_rows)

    def remedy(self, error: Exception) -> str:
        """Return the remedy for a refusal."""
        del error
        return "see to the table's constraints and types"

    def cure(self, error: Exception) -> str:
        """Return the remedy for a failure that may pass."""
        del error
        return "see to the target"

    def execute(self, text: str, given: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement.  Raises what the driver raises."""
        return list(self.connection.execute(text, list(given)).fetchall())

    @contextmanager
    def talking(self, asked: str) -> Iterator[None]:
        """Convert the driver's errors to ours."""
        try:
            yield
        except self.refusals as error:
            raise refused(self.shape, self.place, _describe_error(error), self.remedy(error)) from None
        except self.failures as error:
            raise SinkFailed(f"{asked} {self.place}", _describe_error(error), self.cure(error)) from None

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
        with self.talking("ask"):
            return self._record()

    def _record(self) -> TargetRecord | None:
        if not self.columns(RECORDS):
            return None
        found = self.execute(f"select state, output, epoch, digest from {RECORDS} where table_name = ?", [self.table])
        return TargetRecord(*found[0]) if found else None

    def missing(self) -> bool:
        """Return whether its catalog has no such table."""
        with self.talking("ask"):
            return not self.columns(self.table)

    def occupied(self) -> bool:
        """Return whether there is a row."""
        with self.talking("ask"):
            there = self.columns(self.table)
            return bool(there) and bool(self.execute(f"select 1 from {quoted(self.table)} limit 1"))

    def holds(self) -> None:
        """Raise `SinkRefused` for a column whose type the target does not have."""
        for field in self.shape.schema:
            self._require_type(field)

    def prepare(self) -> None:
        """Make the table, or compare it."""
        wanted = {field.name: self._require_type(field) for field in self.shape.schema}
        with self.talking("prepare"):
            there = self.columns(self.table)
            name = quoted(self.table)
            if not there:
                shown = ", ".join(f"{quoted(column)} {kind}" for column, kind in wanted.items())
                key = ", ".join(map(quoted, self.shape.key or ())) if self.indexed else ""
                with self.transaction():
                    if self._record() is not None:
                        self.execute(f"delete from {RECORDS} where table_name = ?", [self.table])
                    self.execute(f"create table {name} ({shown}{f', primary key ({key})' * self._primary})")
                    if key and not self._primary:
                        kind = "index" if self.unique is None else "unique index"
                        called = quoted(self.table + self.index) if self.index else ""
                        made = f"create {kind} {called} on {name} ({key})"
                        self.execute(made + (self.unique or ""))
                return
            for column in lacking(self.shape, there, wanted, self.place, self.type_of):
                self.execute(f"alter table {name} add column {quoted(column)} {wanted[column]}")

    @property
    def _primary(self) -> bool:
        """Whether the key of a table that is made is its primary key."""
        return self.indexed and bool(self.shape.key) and self.shape.certain

    def _require_type(self, field: pa.Field) -> str:
        kind = self.type_of(field.type)
        if kind is None:
            raise refused(
                self.shape,
                self.place,
                f"it cannot hold {field.name!r}, {field.type}",
                "project it to another type",
            )
        return kind

    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Take an epoch."""
        with self.talking("write"), self.transaction():
            self.execute(
                f"create table if not exists {RECORDS} (table_name varchar(255) primary key, state varchar(32), "
                "output varchar(255), epoch bigint, digest varchar(32))"
            )
            if is_written(self._record(), now, before, self.place):
                return
            if not self.columns(self.table):
                raise vanished(now.output, self.place, now.epoch if before is None else before.epoch)
            if changes.gone is None:
                self.add(self.table, changes.rows)
            else:
                self.replace(changes.gone, changes.rows)
            self.execute(f"delete from {RECORDS} where table_name = ?", [self.table])
            self.execute(f"insert into {RECORDS} values (?, ?, ?, ?, ?)", [self.table, *now])

    def cancel(self) -> None:
        """Interrupt the connection's current statement."""
        self.connection.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def no_records(table: str) -> None:
    """Raise `SpecError` for the table of records, which rows of an output would spoil for all other tables."""
    if table.lower() == RECORDS:
        found = "there it is written which epochs other tables have"
        raise SpecError(f"write to the table {table!r}", found, "give another table")


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert values to text; moments in UTC, because offsets of long ago have seconds and those in text do not.

    >>> as_text(pa.chunked_array([pa.array([-(10**10)], pa.timestamp("s", "Europe/Zurich"))])).to_pylist()
    ['1653-02-10 06:13:20Z']
    """
    kind = column.type
    if pat.is_timestamp(kind) and kind.tz is not None:
        column = pc.cast(column, pa.timestamp(kind.unit, "UTC"))
    return pc.cast(column, pa.string())


def _describe_error(error: Exception) -> str:
    """Describe a driver's error without the statement."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
