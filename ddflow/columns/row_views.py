"""View referenced rows, or rows of two collections side by side, like a table. A column is gathered when it is read.

Guarantees: a view has those methods of a table that operators call. A column is gathered at most once.

>>> import numpy as np, pyarrow as pa
>>> from ddflow.columns.rows import Rows
>>> table = pa.table({"n": [7, 8]})
>>> RowView(RowPool(table.schema, [Rows(table)]), np.array([1]), table.schema).column("n").to_pylist()
[8]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.layout import Array, ColumnBuffers
from ddflow.columns.rows import RowPool, gather_columns_of_pool, gather_table
from ddflow.kernels.gather import ROWS, SLOT, SLOTS


class LazyColumns:
    """Columns that are gathered by name when they are read, as a table's columns are read.

    ``schema``: the columns.
    """

    schema: pa.Schema

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def columns(self) -> list[pa.Array]:
        """All columns. O(n) each, once."""
        return self.gather_by_name(self.schema.names)

    def column(self, name: str) -> pa.Array:
        """Gather one column. O(n), once."""
        return self.gather_by_name([name])[0]

    def gather_by_name(self, names: Sequence[str]) -> list[pa.Array]:
        """Gather the named columns."""
        raise NotImplementedError


class RowView(LazyColumns):
    """A view of referenced rows of a pool. A column is gathered on first use, then cached.

    ``references``: int64[n], as for `gather_table`. ``near``: a function that returns a column by name from a cheaper
    source, or None. The view has those methods of a table that operators call.
    """

    def __init__(
        self,
        pool: RowPool,
        references: Array,
        schema: pa.Schema,
        near: Callable[[str], pa.Array | None] | None = None,
    ) -> None:
        self.pool, self.references, self.schema, self.near = pool, references, schema, near
        self._made: dict[str, pa.Array] = {}

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.references.size)

    def gather_by_name(self, names: Sequence[str]) -> list[pa.Array]:
        """Gather the named columns. O(n) each, once."""
        made, near, missing = self._made, self.near, list[str]()
        for name in names:
            if name not in made:
                column = None if near is None else near(name)
                if column is None:
                    missing.append(name)
                else:
                    made[name] = column
        if missing:
            wanted = map(self.pool.describe_columns(self.schema).__getitem__, missing)
            for name, each in zip(missing, gather_columns_of_pool(self.pool, self.references, wanted), strict=True):
                made[name] = pa.Array.from_buffers(*each) if isinstance(each, ColumnBuffers) else each
        return list(map(made.__getitem__, names))

    def take(self, places: pa.Array) -> RowView:
        """Take the rows at ``places``.

        Columns that are already gathered are taken at once. All other columns are gathered on first use. O(places).
        """
        out = RowView(self.pool, self.references.take(np.asarray(places)), self.schema)
        out._made = {name: column.take(places) for name, column in self._made.items()}
        return out

    def slice(self, begin: int, size: int) -> RowView:
        """Slice ``size`` rows, starting at row ``begin``."""
        return self.take(pa.array(np.arange(begin, begin + size)))

    def select(self, names: Sequence[str]) -> pa.Table:
        """Build a table of the named columns."""
        return pa.table(self.gather_by_name(names), schema=pa.schema([self.schema.field(n) for n in names]))


class RowSlice(RowView):
    """A view of one row. Its columns are slices of the columns of the row's batch, so nothing is copied.

    The view keeps the memory of the batch. It stays valid when the pool changes.

    >>> from ddflow.columns.rows import Rows
    >>> pool = RowPool(pa.schema({"n": pa.int64()}), [Rows(pa.table({"n": [7, 8]}))])
    >>> RowSlice(pool, np.array([1]), pool.schema).to_dict(["n"])
    {'n': 8}
    """

    def __init__(self, pool: RowPool, references: Array, schema: pa.Schema) -> None:
        super().__init__(pool, references, schema)
        reference = int(pool.find_positions(references)[0])
        rows = pool.rows[reference >> SLOT & SLOTS]
        assert rows is not None, f"reference {reference} points at a batch that is gone"
        self._batch, self._row, self._at = rows.stored_columns, reference & ROWS, pool.at

    def gather_by_name(self, names: Sequence[str]) -> list[pa.Array]:
        """Slice the named columns. O(1) each."""
        return [self._batch[self._at[name]].slice(self._row, 1) for name in names]

    def take(self, places: pa.Array) -> Any:
        """Copy the row as often as ``places`` has its place. O(places) for each column."""
        return self.select(self.schema.names).take(places)

    def to_dict(self, names: Iterable[str]) -> dict[str, Any]:
        """Convert the named columns to Python values, by name."""
        return {name: self._batch[self._at[name]][self._row].as_py() for name in names}


class HeldRows(RowView):
    """Columns in memory, with those methods of a table that operators call. Unlike a table, it is cheap to make.

    >>> HeldRows([pa.array([1, 2]), pa.array(["a", "b"])], pa.schema({"n": pa.int64(), "s": pa.string()})).take(
    ...     pa.array([1])).select(["s", "n"]).to_pylist()
    [{'s': 'b', 'n': 2}]
    """

    def __init__(self, columns: Sequence[pa.Array], schema: pa.Schema) -> None:
        self.schema, self._columns = schema, columns
        self._made = dict(zip(schema.names, columns, strict=True))

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._columns[0])

    def gather_by_name(self, names: Sequence[str]) -> list[pa.Array]:
        """Return the named columns."""
        return list(map(self._made.__getitem__, names))

    def take(self, places: pa.Array) -> HeldRows:
        """Take the rows at ``places``. O(places) for each column."""
        return HeldRows([column.take(places) for column in self._columns], self.schema)

    def slice(self, begin: int, size: int) -> HeldRows:
        """Slice ``size`` rows, starting at row ``begin``, without a copy."""
        return HeldRows([column.slice(begin, size) for column in self._columns], self.schema)


def gather_or_slice(pool: RowPool, references: Array, schema: pa.Schema) -> Any:
    """Gather rows like `gather_table`, but return a single row as a `RowSlice`."""
    return RowSlice(pool, references, schema) if references.size == 1 else gather_table(pool, references, schema)


def make_row_dict(rows: Any, names: Iterable[str]) -> dict[str, Any]:
    """Convert the named columns of the first row of a table or view to Python values, by name."""
    if isinstance(rows, RowSlice):
        return rows.to_dict(names)
    return {name: rows.column(name)[0].as_py() for name in names}


Chosen = tuple[str, int, str]
"""A column of a join's result: the name there, the number of the side that it comes from, and the name on that side."""


def pair_schemas(sides: Sequence[pa.Schema], columns: Sequence[Chosen]) -> pa.Schema:
    """Return the schema of the columns that a join chooses from the schemas of its sides. O(columns)."""
    return pa.schema([sides[side].field(of).with_name(name) for name, side, of in columns])


class PairedRows(LazyColumns):
    """The result of a join: rows of two collections side by side. A column is gathered on first use.

    Row i of the result combines row i of both sides. Like `RowView`, the class has those methods of a table that
    operators call.

    ``sides``: two views with equal numbers of rows. ``columns``: the columns chosen from the sides. ``schema``: the
    schema of the result, if the caller knows it.

    >>> import numpy as np, pyarrow as pa
    >>> from ddflow.columns.rows import Rows
    >>> cities, names = (pa.table({"of": column}) for column in (["Bern", "Basel"], ["Ann", "Bo"]))
    >>> given = (cities, np.array([1, 1])), (names, np.array([0, 1]))
    >>> views = [RowView(RowPool(table.schema, [Rows(table)]), at, table.schema) for table, at in given]
    >>> pairs = PairedRows(views, [("city", 0, "of"), ("name", 1, "of")])
    >>> pairs.take(pa.array([1])).select(["name", "city"]).to_pylist()
    [{'name': 'Bo', 'city': 'Basel'}]
    """

    def __init__(self, sides: Sequence[RowView], columns: Sequence[Chosen], schema: pa.Schema | None = None) -> None:
        self.sides, self.given = sides, columns
        self.schema = pair_schemas([view.schema for view in sides], columns) if schema is None else schema

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.sides[0].num_rows

    def gather_by_name(self, names: Sequence[str]) -> list[pa.Array]:
        """Gather the named columns. O(n) each, once."""
        wanted, out = set(names), dict[str, pa.Array]()
        for number, view in enumerate(self.sides):
            chosen = {name: of for name, side, of in self.given if side == number and name in wanted}
            out.update(zip(chosen, view.gather_by_name([*chosen.values()]), strict=True))
        return list(map(out.__getitem__, names))

    def take(self, places: pa.Array) -> PairedRows:
        """Take the rows at ``places``.

        Columns that are already gathered are taken at once. All other columns are gathered on first use. O(places).
        """
        return PairedRows([view.take(places) for view in self.sides], self.given, self.schema)

    def slice(self, begin: int, size: int) -> PairedRows:
        """Slice ``size`` rows, starting at row ``begin``."""
        return self.take(pa.array(np.arange(begin, begin + size)))

    def select(self, names: Sequence[str]) -> pa.Table:
        """Build a table of the named columns."""
        return pa.table(self.gather_by_name(names), schema=pa.schema([self.schema.field(name) for name in names]))
