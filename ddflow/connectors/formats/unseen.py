"""The declared columns that no message has had so far: a name that was misspelled is a column of nulls; and the others.

Invariant: a column is told once, and only where some message with a row was looked at and none had its name. Deletes,
tombstones, bad messages and those with cells left out say nothing of a row's columns, and neither does a format whose
rows cannot be looked into. Names are read only where a column is null in a whole batch, and no more once it was found
or told: then a batch costs O(columns that are left), and nothing where none is. The columns that messages have and
nobody declared (`undeclared`) are looked for in `SAMPLE` of a batch, since a source that gets a column gives it from
there on.

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
"""

from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.connectors.formats.base import ABSENT, BAD, DELETED, Decoded, Format, messages_of
from ddflow.connectors.formats.parse import Bools

SAMPLE: Final = 256
"""In how many messages of a batch undeclared columns are looked for."""


class Unseen:
    """``left``: the columns that are neither found nor told.  ``names``: those that messages had instead, so far."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.left = list(columns)
        self.names: dict[str, None] = {}

    def look(self, format: Format, given: pa.Table, made: Decoded, what: str) -> None:
        """Look for the columns that are left in some messages, as they came and as they were decoded.

        O(columns that are left); O(bytes) where one of them is null in all rows.
        """
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

    def hear(self, had: Iterable[str], names: Iterable[str]) -> None:
        """Take in what others found: columns that messages ``had``, and ``names`` of them where they looked."""
        gone = set(had)
        self.left = [name for name in self.left if name not in gone]
        self.names |= dict.fromkeys(names)

    def told(self) -> list[str]:
        """What is to be said of the columns that were looked for and not found, once.  O(columns)."""
        said = self.said(self.left)
        if said:
            self.left = []
        return said

    def said(self, columns: Iterable[str]) -> list[str]:
        """What is to be said of those among some columns.  O(columns)."""
        return [
            f"none so far has the declared column {name!r}, which is null: {did_you_mean(name, self.names)}"
            for name in columns
            if self.names and name in self.left
        ]


def undeclared(format: Format, given: pa.Table, made: Decoded, known: Collection[str], what: str) -> list[str]:
    """The columns that some messages have, but for those known, as far as a sample of them tells.

    The last message with a row is one of the sample.  O(messages + bytes of the sample).
    """
    rows = np.unique(made.at[_with_row(made.rows, BAD)])
    if not rows.size:
        return []
    some = rows[np.unique(np.linspace(0, rows.size - 1, min(SAMPLE, rows.size)).astype(np.int64))]
    return list(format.columns(messages_of(format, given.take(pa.array(some)), what), known))


def _with_row(rows: pa.Table, *marks: str) -> Bools:
    """Which events have a row, and none of some marks."""
    says = ~np.asarray(rows.column(DELETED).fill_null(True))
    for mark in marks:
        if mark in rows.column_names:
            says &= np.asarray(rows.column(mark).is_null())
    return says
