"""Write to a table of a lake format.  The sinks of Delta Lake and Iceberg share this code.

A subclass for a format adds the calls of the format's library and the types that the format stores in its own way.
Guarantees: each call loads the newest version of the table. Before a write changes a row, it compares the table's
record with the record of the last epoch. Reading a table returns the values as they were written. The sink refuses
columns whose type would lose information, such as nanoseconds and durations, and the error names these columns.
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Secret
from ddflow.connectors.api import OpenSink, TableShape, TableSink, TargetRecord
from ddflow.connectors.table_shape import build_dropped_table_error, build_sink_refusal, find_new_columns, is_written

TypeRule = Callable[[pa.DataType], pa.DataType | None]
"""Function that maps an Arrow type to the stored type of a format; None for types that all formats store alike."""
_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_SAME: Final = (
    *(pat.is_boolean, pat.is_signed_integer, pat.is_float32, pat.is_float64, pat.is_string, pat.is_binary),
    *(pat.is_date32, pat.is_decimal128),
)


def find_lake_type(kind: pa.DataType, own: TypeRule = lambda kind: None) -> pa.DataType | None:
    """Return the type that a lake format stores for an Arrow type; None if the stored type would lose information."""
    if pat.is_dictionary(kind):
        return find_lake_type(kind.value_type, own)
    if (said := own(kind)) is not None:
        return said
    if kind in _WIDER or any(same(kind) for same in _SAME):
        return _WIDER.get(kind, kind)
    if pat.is_timestamp(kind):
        return None if kind.unit == "ns" else pa.timestamp("us", None if kind.tz is None else "UTC")
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        inner = find_lake_type(kind.value_type, own)
        return None if inner is None else pa.list_(inner)
    if pat.is_struct(kind):
        within = {each.name: inner for each in kind if (inner := find_lake_type(each.type, own)) is not None}
        return pa.struct(list(within.items())) if len(within) == kind.num_fields else None
    return None


def build_lake_schema(schema: pa.Schema, own: TypeRule = lambda kind: None) -> pa.Schema:
    """Return a schema with the types that a lake format stores.

    A column that the format cannot store gets the null type.

    >>> build_lake_schema(pa.schema({"n": pa.uint32(), "at": pa.timestamp("s", "Europe/Zurich")})).types
    [DataType(int64), TimestampType(timestamp[us, tz=UTC])]
    >>> build_lake_schema(pa.schema({"for": pa.duration("s")})).types
    [DataType(null)]
    """
    return pa.schema([(each.name, find_lake_type(each.type, own) or pa.null()) for each in schema])


class LakeTable(OpenSink):
    """A table of a lake format.

    ``place``: address of the table, for messages.  ``schema``: columns of the table, with types of the format.

    >>> set(LakeTable.__abstractmethods__) >= {"_load", "_find_target_record", "_scan", "write"}
    True
    """

    def __init__(self, of: TableSink, shape: TableShape, own: TypeRule) -> None:
        self.shape, self.place, self._own, self._secret = shape, of.target, own, Secret.fresh()
        self.schema = build_lake_schema(shape.schema, own)

    @abstractmethod
    def _translate_errors(self, asked: str) -> AbstractContextManager[None]:
        """Convert the library's errors to errors of ddflow.  ``asked``: the verb in the message, such as "write"."""

    @abstractmethod
    def _load(self) -> Any:
        """Load the newest version of the table; None if the table does not exist."""

    @abstractmethod
    def _find_target_record(self, table: Any) -> TargetRecord | None:
        """Return the record of the last epoch in a table."""

    @abstractmethod
    def _arrow_schema(self, table: Any) -> pa.Schema:
        """Return the columns of a table."""

    @abstractmethod
    def _has_rows(self, table: Any) -> bool:
        """Return whether a table has rows."""

    @abstractmethod
    def _scan(self, table: Any) -> pa.Table:
        """Read all rows of a table, in the columns of ``shape``."""

    @abstractmethod
    def _create(self) -> None:
        """Create the table."""

    @abstractmethod
    def _add_columns(self, table: Any, new: pa.Schema) -> None:
        """Add columns to a table."""

    def written(self) -> TargetRecord | None:
        """Read the record of the last epoch."""
        with self._translate_errors("ask"):
            table = self._load()
            return None if table is None else self._find_target_record(table)

    def missing(self) -> bool:
        """Return whether the table does not exist."""
        with self._translate_errors("ask"):
            return self._load() is None

    def occupied(self) -> bool:
        """Return whether the table has a row."""
        with self._translate_errors("ask"):
            table = self._load()
            return table is not None and self._has_rows(table)

    def holds(self) -> None:
        """Raise `SinkRefused` for columns that the format cannot store.

        In ``schema``, a column that the format cannot store has the null type.
        """
        if lost := [field.name for field in self.schema if pat.is_null(field.type)]:
            shown = ", ".join(f"{name!r} ({self.shape.schema.field(name).type})" for name in lost)
            raise build_sink_refusal(self.shape, self.place, f"it cannot store {shown}", "project it to another type")

    def prepare(self) -> None:
        """Create the table, or check its columns and add new columns."""
        self.holds()
        with self._translate_errors("prepare"):
            table = self._load()
            if table is None:
                self._create()
            elif (new := self._find_new_columns(self.shape, table)).names:
                self._add_columns(table, new)

    def read(self) -> pa.Table:
        """Read all rows."""
        with self._translate_errors("read"):
            table = self._load()
            assert table is not None, "it was prepared"
            rows = self._scan(table).cast(self.schema)
            return rows.cast(pa.schema([each.with_nullable(True) for each in self.shape.schema]))

    def _load_for_epoch(self, now: TargetRecord, before: TargetRecord | None) -> Any:
        """Load the table to write an epoch; return None if the table already has the record ``now``.

        Raises `SinkAhead` if the table's record is neither ``before`` nor ``now``, and `SinkRefused` if the table or a
        column was dropped.
        """
        if (table := self._load()) is None:
            raise build_dropped_table_error(now.output, self.place, now.epoch if before is None else before.epoch)
        if is_written(self._find_target_record(table), now, before, self.place):
            return None
        self._find_new_columns(self.shape._replace(had=frozenset(self.schema.names)), table)
        return table

    def _find_new_columns(self, shape: TableShape, table: Any) -> pa.Schema:
        """Return the columns that a table lacks.  Raises `SinkRefused` for a table that does not fit the shape."""
        there = build_lake_schema(self._arrow_schema(table), self._own)
        return find_new_columns(shape, there, self.schema, self.place)
