"""Read a table of a database file as the full contents of an input, and again whenever the file changes.

DuckDB and SQLite share this source. A position holds the table, the size of the file and the time of its last write.
The source notes the file's size and write time before it reads the file. A write during a read therefore makes the
source read the file again. If the table in the position is not the declared table, opening fails, because the new rows
would replace the earlier rows. If you change the query, ddflow reads the rows of the new query. A column that is
missing at the first read is an error. Later reads omit a column that was dropped. The source does not lock the file;
only the database's library locks the file.

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
    """Position of the source.

    ``table``: the table, or a query in parentheses.  ``stamp``: sizes and write times of the file before the read.
    """

    table: str
    stamp: list[int]


@dataclass(frozen=True)
class FileDatabaseSource(Source):
    """The source of a table in a database file.  ``table``: name of the table, or a query in parentheses."""

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
            return f"the write at {last.isoformat(sep=' ')}"
        return super().said(position)

    @abstractmethod
    def read_rows(self, schema: pa.Schema, all_of_it: bool) -> tuple[pa.Table, Mapping[str, pa.DataType | None]]:
        """Read the rows with the columns of a schema.

        Return the rows, and the type of each column that the schema lacks, by name.

        The rows omit the columns that the table lacks.  With ``all_of_it``, a missing column is an error.

        Raises `SourceFailed`, `UnreadableInput`.
        """

    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> "DatabaseReader":
        """Return a reader that continues after the position."""
        ((name, schema),) = inputs.items()
        if position is not None:
            check_same_table(name, position["table"], self.table)
        return DatabaseReader(self, name, schema, position)

    @property
    def table_expression(self) -> str:
        """Operand of ``from`` in SQL: a quoted table name, or a query in parentheses."""
        return self.table if self.table.startswith("(") else ".".join(map(quote_name, self.table.split(".")))

    @staticmethod
    def read_file_stamp(path: str) -> list[int]:
        """Return the size and write time of a file, and those of its write-ahead log if the log exists."""
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
    """The sink of a table in a database file."""

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
    """Reader of a database file.  ``position``: the table, file size and write time of the last read."""

    def __init__(self, of: FileDatabaseSource, name: str, schema: pa.Schema, position: DatabasePosition | None) -> None:
        self.of, self.name, self.schema, self.position = of, name, schema, position
        self._looked, self._asked = -LOOK, False

    @property
    def ended(self) -> bool:
        """Whether a source without ``follow`` has read the file."""
        return self._asked and not self.of.follow

    def lag(self) -> int | None:
        """Return None, because the lag of a database file is unknown."""
        return None

    def poll(self, room: int) -> Polled | None:
        """Return all rows if the file changed since the last read."""
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
    """Raise `SpecError` if an input was read from the table ``was``, and that is not the table ``now``.

    The check ignores letter case, and accepts every query.

    >>> check_same_table("loans", "loans", "Loans")
    >>> check_same_table("loans", "(select 1 as id)", "(select 2 as id)")
    """
    if now.casefold() != was.casefold() and not now.startswith("(") and not was.startswith("("):
        found = f"this state reads it from the table {was!r}, whose rows would be replaced"
        raise SpecError(f"read {name!r} from the table {now!r}", found, f"name {was}; or create a new state")


def split_columns_by_presence(schema: pa.Schema, there: Sequence[str], all_of_it: bool) -> tuple[pa.Schema, list[str]]:
    """Return the fields to read, and the names of the table's columns that are not in the schema.  Ignore case.

    >>> split_columns_by_presence(pa.schema({"id": pa.int64(), "old": pa.int64()}), ["ID", "new"], False)
    (id: int64, ['new'])
    """
    have, asked = ({name.casefold() for name in names} for names in (there, schema.names))
    read = [field for field in schema if all_of_it or field.name.casefold() in have]
    return pa.schema(read), [name for name in there if name.casefold() not in asked]
