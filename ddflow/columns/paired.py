"""Rows of two collections beside each other, as a join gives them: columns are gathered when somebody asks for them.

Invariant: row i is row i of each side. It has the methods of a table that operators use, as `View` has.

>>> import numpy as np, pyarrow as pa
>>> from ddflow.columns.rows import RowPool, Rows
>>> cities, names = (pa.table({"of": column}) for column in (["Bern", "Basel"], ["Ann", "Bo"]))
>>> given = (cities, np.array([1, 1])), (names, np.array([0, 1]))
>>> views = [View(RowPool(table.schema, [Rows(table)]), at, table.schema) for table, at in given]
>>> Paired(views, [("city", 0, "of"), ("name", 1, "of")]).take(pa.array([1])).select(["name", "city"]).to_pylist()
[{'name': 'Bo', 'city': 'Basel'}]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ddflow.columns.rows import View

Chosen = tuple[str, int, str]
"""A column: its name, the side that it is of, and its name there."""


class Paired:
    """``sides``: views of as many rows each.  ``columns``: chosen of these."""

    def __init__(self, sides: Sequence[View], columns: Sequence[Chosen]) -> None:
        self.sides, self.given = list(sides), list(columns)
        self.at = {name: (side, of) for name, side, of in columns}
        self.schema = pa.schema([self.sides[side].schema.field(of).with_name(name) for name, side, of in columns])

    @property
    def num_rows(self) -> int:
        """How many."""
        return self.sides[0].num_rows

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def columns(self) -> list[pa.Array]:
        """All columns.  O(n) each, once."""
        return self.chosen(self.schema.names)

    def column(self, name: str) -> pa.Array:
        """One column.  O(n), once."""
        return self.chosen([name])[0]

    def chosen(self, names: Sequence[str]) -> list[pa.Array]:
        """Gather some columns.  O(n) each, once."""
        read = [[of for side, of in map(self.at.__getitem__, names) if side == each] for each in range(len(self.sides))]
        found = [iter(view.chosen(some)) for view, some in zip(self.sides, read, strict=True)]
        return [next(found[self.at[name][0]]) for name in names]

    def take(self, places: pa.Array) -> Paired:
        """Take the rows at some places; only columns gathered before are gathered again.  O(places)."""
        return Paired([view.take(places) for view in self.sides], self.given)

    def slice(self, begin: int, size: int) -> Paired:
        """Slice the rows [begin, begin + size)."""
        return self.take(pa.array(np.arange(begin, begin + size)))

    def select(self, names: Sequence[str]) -> pa.Table:
        """Build a table of some columns."""
        return pa.table(self.chosen(names), schema=pa.schema([self.schema.field(name) for name in names]))
