"""A table of a database whose rows are updated where they are, for what the user hangs on them.

Invariant: within an epoch's transaction keys that are gone are deleted, then rows whose key is there are updated, then
those of new keys inserted: so a foreign key that points at a row, and a trigger, see an update as one. The rows lie in
a temporary table meanwhile. Rows are deleted and inserted again where an update would not give the same table: a key is
there more than once, or values of a unique constraint change places and nothing points at the rows.

>>> set(InPlaceTable.__abstractmethods__) >= {"matches", "delete"}, InPlaceTable.staged
(True, '')
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Secret
from ddflow.columns.names import quoted
from ddflow.connectors.modes import among
from ddflow.connectors.sql_table import SqlTable

GIVEN: Final = "_ddflow_given"


class Match(NamedTuple):
    """Conditions in SQL that find given rows: ``of``: some rows of ``g``; ``same``: their equals in ``t``."""

    of: str
    same: str


class InPlaceTable(SqlTable):
    """See `SqlTable`."""

    staged: ClassVar[str] = ""
    """What stands behind the temporary table's columns."""
    clashes: ClassVar[tuple[type[Exception], ...]]
    """What an update raises whose rows have values of each other."""

    @abstractmethod
    def matches(self, keys: pa.Table) -> Sequence[Match]:
        """Return the ways to find the given keys; each key is found in one way."""

    @abstractmethod
    def array_of(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Convert values of the driver to the type that they were written from."""

    def read(self) -> pa.Table:
        """Read all rows."""
        schema = self.shape.schema
        with self.talking("read"):
            found = self.execute(f"select {', '.join(map(quoted, schema.names))} from {quoted(self.table)}")
        columns = list(zip(*found, strict=True)) or [()] * len(schema)
        arrays = [self.array_of(each, field.type) for each, field in zip(columns, schema, strict=True)]
        return pa.table(arrays, schema=schema)

    def pointed_at(self) -> bool:
        """Return whether foreign keys point at the table's rows."""
        return False

    def count(self, text: str) -> int:
        """Run a statement, and say of how many rows it was."""
        return int(self.connection.execute(text).rowcount)

    def replace(self, gone: pa.Table, rows: pa.Table) -> None:
        """See `SqlTable.replace`."""
        keys = rows.select(list(self.shape.key or ()))
        if not self.execute(f"select 1 from {quoted(self.table)} limit 1"):
            self.add(self.table, rows)
            return
        if gone.num_columns:
            gone = gone.filter(pc.invert(pa.array(among(gone, keys, Secret.fresh()))))
        if gone.num_columns or not rows.num_rows:
            self.clear(gone)
        if not rows.num_rows:
            return
        typed = ", ".join(f"{quoted(field.name)} {self._require_type(field)}" for field in self.shape.schema)
        self.execute(f"create temporary table if not exists {GIVEN} ({typed}){self.staged}")
        self.execute(f"delete from {GIVEN}")
        self.add(GIVEN, rows)
        if not self._try_update(rows, self.matches(keys)):
            self.clear(keys)
            names = ", ".join(map(quoted, rows.schema.names))
            self.execute(f"insert into {quoted(self.table)} ({names}) select {names} from {GIVEN}")

    def _try_update(self, rows: pa.Table, matches: Sequence[Match]) -> bool:
        """Update and insert the given rows.  Return False if that would not give the same table."""
        table, names = quoted(self.table), [quoted(name) for name in rows.schema.names]
        sets = ", ".join(f"{quoted(each)} = g.{quoted(each)}" for each in rows.schema.names if each not in self._key)
        self.execute("savepoint ddflow")
        found = 0
        try:
            for each in matches:
                where = f"from {GIVEN} as g where {each.of} and {each.same}"
                if sets:
                    found += self.count(f"update {table} as t set {sets} {where}")
                else:
                    found += self.execute(f"select count(*) from {table} as t, {where.removeprefix('from ')}")[0][0]
        except self.clashes:
            self.execute("rollback to savepoint ddflow")
            if self.pointed_at():
                raise
            return False
        for each in matches:  # also where as many were updated: of a key that is there twice two are
            given = ", ".join(f"g.{name}" for name in names)
            found += self.count(
                f"insert into {table} ({', '.join(names)}) select {given} from {GIVEN} as g where {each.of} and "
                f"not exists (select 1 from {table} as t where {each.same})"
            )
        return found <= rows.num_rows

    @property
    def _key(self) -> tuple[str, ...]:
        return self.shape.key or ()
