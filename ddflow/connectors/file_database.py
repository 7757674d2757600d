"""Read a table of a database file as the full contents of an input, again whenever the file changes.

DuckDB and SQLite share this source. A position is the table, the size of the file and the time of its last write, both
taken before the read, so rows written during a read are read the next time. Another table than the position's is an
error, because its rows would replace the earlier ones. A query may change, and ddflow then reads the new query.
The rows lack a dropped column. A missing column at the first read is an error. Only the database itself locks.

>>> FileDatabaseSource.read_file_stamp("/no/such/file")
Traceback (most recent call last):
    ...
ddflow.errors.SourceFailed: read /no/such/file: there is no such file; check the path
"""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic, time
from typing import Any, ClassVar, Final, TypedDict

import pyarrow as pa

from ddflow.columns.names import quote_name
from ddflow.connectors.api import Mode, OpenSource, Polled, Source, TableSink, UndeclaredColumn
from ddflow.connectors.sql_table import refuse_records_table
from ddflow.errors import SourceFailed, SpecError

LOOK: Final = 0.2
"""Seconds between two checks of a file."""


class DatabasePosition(TypedDict):
    """Position: a ``table`` or a query in parentheses, and the ``stamp`` (sizes and times) of the file at the read."""

    table: str
    stamp: list[int]


@dataclass(frozen=True)
class FileDatabaseSource(Source):
    """A table of a database file.  ``table``: its name, or a query in parentheses."""

    path: str
    table: str
    follow: bool = False
    positions: ClassVar[Any] = DatabasePosition

    @property
    def target(self) -> str:
        """Path of the file, and the table."""
        return f"{os.path.abspath(self.path)}#{self.table}"

    @classmethod
    def said(cls, position: Any) -> str:
        """Describe the time of the file's last write."""
        with suppress(ValueError, OverflowError, OSError):
            last = datetime.fromtimestamp(max(position["stamp"][1::2]) // 10**9, UTC)
            return f"what was written at {last.isoformat(sep=' ')}"
        return super().said(position)

    @abstractmethod
    def read_rows(self, schema: pa.Schema, all_of_it: bool) -> tuple[pa.Table, Mapping[str, pa.DataType | None]]:
        """Return the rows in the columns of a schema, and the types of other columns by name.

        Omits missing columns, but raises for them with ``all_of_it``.

        Raises `SourceFailed`, `UnreadableInput`.
        """

    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> "DatabaseReader":
        """Return a reader after the position."""
        ((name, schema),) = inputs.items()
        if position is not None:
            check_same_table(name, position["table"], self.table)
        return DatabaseReader(self, name, schema, position)

    @property
    def table_expression(self) -> str:
        """Operand of ``from``: a table or a query."""
        return self.table if self.table.startswith("(") else ".".join(map(quote_name, self.table.split(".")))

    @staticmethod
    def read_file_stamp(path: str) -> list[int]:
        """Return the sizes and write times of a file and its write-ahead log, if any."""
        found = list[int]()
        for each in (path, f"{path}-wal", f"{path}.wal"):
            try:
                stat = os.stat(each)
            except FileNotFoundError:
                if each == path:
                    raise SourceFailed(f"read {path}", "there is no such file", "check the path") from None
            else:
                found += [stat.st_size, stat.st_mtime_ns]
        return found


@dataclass(frozen=True)
class FileDatabaseSink(TableSink):
    """A table of a database file."""

    path: str
    table: str
    mode: Mode = "upsert"

    def __post_init__(self) -> None:
        refuse_records_table(self.table)

    @property
    def target(self) -> str:
        """Path of the file, and the table."""
        return f"{os.path.abspath(self.path)}#{self.table}"


class DatabaseReader(OpenSource):
    """Reader of a database file.  ``position``: the table and the stamp of the last read."""

    def __init__(self, of: FileDatabaseSource, name: str, schema: pa.Schema, position: DatabasePosition | None) -> None:
        self.of, self.name, self.schema, self.position = of, name, schema, position
        self._looked, self._asked = -LOOK, False

    @property
    def ended(self) -> bool:
        """Whether the file was read once, without ``follow``."""
        return self._asked and not self.of.follow

    def lag(self) -> int | None:
        """Return None: the lag is unknown."""
        return None

    def poll(self, room: int) -> Polled | None:
        """Return all rows if the file changed."""
        if self.ended or monotonic() - self._looked < LOOK:
            return None
        self._looked, now = monotonic(), time()
        there = DatabasePosition(table=self.of.table, stamp=self.of.read_file_stamp(self.of.path))
        self._asked = True
        if there == self.position:
            self.reached = now
            return None
        rows, others = self.of.read_rows(self.schema, all_of_it=self.position is None)
        self.position, self.reached, where = there, now, self.of.target
        beside = {name: UndeclaredColumn(kind, where) for name, kind in others.items()}
        return Polled({self.name: rows.to_batches()}, there, frozenset([self.name]), {self.name: beside})


def check_same_table(name: str, was: str, now: str) -> None:
    """Raise `SpecError` if an input was read from another table.  Ignores case and queries.

    >>> check_same_table("loans", "loans", "Loans")
    >>> check_same_table("loans", "(select 1 as id)", "(select 2 as id)")
    """
    if now.casefold() != was.casefold() and not now.startswith("(") and not was.startswith("("):
        found = f"this state reads it from the table {was!r}, whose rows would be replaced"
        raise SpecError(f"read {name!r} from the table {now!r}", found, f"name {was}; or begin a new state")


def split_columns_by_presence(schema: pa.Schema, there: Sequence[str], all_of_it: bool) -> tuple[pa.Schema, list[str]]:
    """Return the fields to read, and the names of existing columns outside the schema.  Ignores case.

    >>> split_columns_by_presence(pa.schema({"id": pa.int64(), "old": pa.int64()}), ["ID", "new"], False)
    (id: int64, ['new'])
    """
    have, asked = ({name.casefold() for name in names} for names in (there, schema.names))
    read = [field for field in schema if all_of_it or field.name.casefold() in have]
    return pa.schema(read), [name for name in there if name.casefold() not in asked]
