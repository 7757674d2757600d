"""What no message has had so far of what was asked: a declared column, or the table that was named; and other columns.

Invariant: what was misspelled is a column of nulls, or a table without rows. The table is told once, where changes came
and all were of other tables; a state that has had one of it looks no more. A column is told once, and only where some
message with a row was looked at and none had its name. Deletes, tombstones, bad messages and those with cells left out
say nothing of a row's columns, and neither does a format whose rows cannot be looked into. Names are read only where a
column is null in a whole batch, and no more once it was found or told: then a batch costs O(columns that are left), and
nothing where none is. The columns that messages have and nobody declared (`undeclared`) are looked for in `SAMPLE` of a
batch, since a source that gets a column gives it from there on.

>>> from ddflow.connectors.formats.base import Target, decoded, events_schema
>>> from ddflow.connectors.formats.plain import PlainJson
>>> format, columns = PlainJson(), pa.schema({"id": pa.int64(), "amounts": pa.float64()})
>>> target = Target("'t'", columns, ("id",), (), False, events_schema(format, columns))
>>> came, unseen = pa.table({"value": ['{"id": 1, "amount": 2.5}']}), Unseen(columns.names)
>>> unseen.look(format, came, decoded(format, came, target), "'t'")
>>> unseen.told()
["none so far has the declared column 'amounts', which is null: did you mean 'amount'? there are ['id', 'amount']"]
>>> unseen.told()
[]
>>> undeclared(format, came, decoded(format, came, target), ["id", "amounts"], "'t'")
['amount']
>>> unseen = Unseen([], "order")
>>> unseen.hear([], [], {"shop.orders": 5, "shop.people": 1})
>>> unseen.told()
["none so far is of the table 'order', so no row came: did you mean 'shop.orders'? 6 are of \
['shop.orders', 'shop.people']"]
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.connectors.formats.base import ABSENT, BAD, DELETED, Decoded, Format, messages_of
from ddflow.connectors.formats.parse import Bools
from ddflow.connectors.formats.whose import is_of, nearest

SAMPLE: Final = 256
"""In how many messages of a batch undeclared columns are looked for."""
SHOWN: Final = 10
"""How many tables are named at most."""


class Unseen:
    """``left``: the columns that are neither found nor told.  ``names``: those that messages had instead, so far.
    ``table``: that was named, while it is neither found nor told; ``tables``: how many changes were of each."""

    def __init__(self, columns: Iterable[str], table: str | None = None) -> None:
        self.left, self.table = list(columns), table
        self.names, self.tables = dict[str, None](), dict[str, int]()

    def look(self, format: Format, given: pa.Table, made: Decoded, what: str) -> None:
        """Look for the missing columns and table in some messages and their events.

        O(missing columns); O(bytes) if a missing column is null in all rows.
        """
        if self.table is not None:
            self._of(made.table, made.tables)
        rows = made.rows
        self.left = [name for name in self.left if rows.column(name).null_count == rows.num_rows]
        if not self.left or not rows.num_rows:
            return
        says = _with_row(rows, BAD, ABSENT)
        if not says.any():
            return
        some = given if says.all() else given.take(pa.array(np.unique(made.at[says])))
        names = format.columns(messages_of(format, some, what))
        self.left = [name for name in self.left if name not in names]
        self.names |= dict.fromkeys(names)

    def hear(
        self, had: Iterable[str], names: Iterable[str], tables: Mapping[str, int], table: str | None = None
    ) -> None:
        """Note what other workers found.

        ``had``: columns in messages.  ``names``: other columns there.  ``tables``: changes by table.  ``table``: the
        one found.
        """
        self._of(table, tables)
        gone = set(had)
        self.left = [name for name in self.left if name not in gone]
        self.names |= dict.fromkeys(names)

    def _of(self, table: str | None, tables: Mapping[str, int]) -> None:
        """Look for the table.  ``table``: see `Decoded`, as ``tables``, which has it where its changes are bad, too."""
        if self.table is None:
            return
        for name, count in tables.items():
            self.tables[name] = self.tables.get(name, 0) + count
        if table is not None or any(is_of(self.table, name) for name in tables):
            self.table = None

    @property
    def looks(self) -> bool:
        """Whether anything is left to be looked for."""
        return bool(self.left) or self.table is not None

    def told(self) -> list[str]:
        """Return warnings about columns and a table that no message had, once.  O(columns), O(tables)."""
        said = self.said(self.left)
        if said:
            self.left = []
        if self.table is not None and self.tables:
            said, self.table = [_elsewhere(self.table, self.tables), *said], None
        return said

    def said(self, columns: Iterable[str]) -> list[str]:
        """Return warnings about the columns, among some, that no message had.  O(columns)."""
        return [
            f"none so far has the declared column {name!r}, which is null: {did_you_mean(name, self.names)}"
            for name in columns
            if self.names and name in self.left
        ]


def _elsewhere(table: str, tables: Mapping[str, int]) -> str:
    """Describe a table without changes, though other tables have some."""
    found, changes = nearest(table, tables), sum(tables.values())
    meant = "" if found is None else f"did you mean {found!r}? "
    more = f" and {len(tables) - SHOWN:,} more" if len(tables) > SHOWN else ""
    others = f"{changes:,} {'is' if changes == 1 else 'are'} of {[*tables][:SHOWN]}{more}"
    return f"none so far is of the table {table!r}, so no row came: {meant}{others}"


def undeclared(format: Format, given: pa.Table, made: Decoded, known: Collection[str], what: str) -> list[str]:
    """Return the unknown columns in a sample of some messages.  O(messages + bytes of the sample).

    The last message with a row is one of the sample.
    """
    rows = np.unique(made.at[_with_row(made.rows, BAD)])
    if not rows.size:
        return []
    some = rows[np.unique(np.linspace(0, rows.size - 1, min(SAMPLE, rows.size)).astype(np.int64))]
    return list(format.columns(messages_of(format, given.take(pa.array(some)), what), known))


def _with_row(rows: pa.Table, *marks: str) -> Bools:
    """Mark the events with a row, and without some marks."""
    says = ~np.asarray(rows.column(DELETED).fill_null(True))
    for mark in marks:
        if mark in rows.column_names:
            says &= np.asarray(rows.column(mark).is_null())
    return says
