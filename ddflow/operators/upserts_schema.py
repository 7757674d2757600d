"""What updates must look like to be turned into upserts, and the columns that upserts get.

Invariant: the columns are known before any row is: they follow from the updates' own, the key and the rule. A deleted
key shows nulls, so every column beside the key may be null in an upsert. Columns that upserts get themselves cannot be
columns of the rows.

>>> updates = pa.schema([pa.field("id", pa.int64(), False), ("city", pa.string()), ("_time", pa.int64()),
...                      ("_diff", pa.int64())])
>>> UpsertsSchema(bound(updates, ["id"], "error"), ["id"], "error").out.names
['id', 'city', '_time', '_deleted']
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints
from ddflow.columns.names import DELETED, DIFF, TIME, check_names, did_you_mean
from ddflow.columns.rows import RowPool, gather_column
from ddflow.columns.schema import is_flat, is_key, is_time, normal_type
from ddflow.errors import SchemaMismatch, SpecError
from ddflow.kernels.gather import SLOT
from ddflow.operators.held_rows import NULLS

ROWS = "rows"
Conflicts = Literal["error", "greatest", "all"]


def bound(given: pa.Schema, key: Sequence[str], on_conflict: Conflicts) -> pa.Schema:
    """Check the schema of updates, and return that of every step.  Raises `SchemaMismatch`, `SpecError`."""
    asked = f"updates to turn into upserts by {list(key)}"
    for name in (*key, TIME, DIFF):
        if name not in given.names or (name in (TIME, DIFF) and name in key):
            raise SchemaMismatch(asked, f"there is no column {name!r}", did_you_mean(name, given.names), column=name)
    rows = [field for field in given if field.name not in (TIME, DIFF)]
    check_names([field.name for field in rows], asked)
    schema = pa.schema([field.with_type(normal_type(field.type)) for field in rows])
    for field in schema:
        if field.name in key and not is_key(field.type):
            raise SpecError(
                asked,
                f"{field.name!r} is {field.type}, which cannot be hashed as a key",
                "use numbers, text, binary, dates, decimals",
            )
        if field.name not in key and on_conflict == "greatest" and not is_flat(field.type):
            raise SpecError(
                f"on_conflict='greatest' of {asked}",
                f"{field.name!r} is {field.type}, which has no order",
                "leave the column out, or take on_conflict='all'",
            )
        if field.name == DELETED or (field.name in key and on_conflict == "all" and field.name == ROWS):
            raise SchemaMismatch(asked, f"{field.name!r} is a column that upserts get themselves", "rename it")
    kind = given.field(TIME).type
    if not is_time(kind):
        raise SchemaMismatch(asked, f"{TIME!r} is {kind}, which is no time", "use int64, a timestamp or a date")
    return pa.schema([*schema, pa.field(TIME, kind, False), pa.field(DIFF, pa.int64(), False)])


class UpsertsSchema:
    """The columns of updates, of the rows in them, and of the upserts that are made of them.

    ``row``: of a row, without time and diff.  ``beside``: of a row beside the key; all may be null.  ``shown``: of what
    a key shows, and ``_deleted``.  ``out``: of a table of upserts.
    """

    def __init__(self, updates: pa.Schema, key: Sequence[str], on_conflict: Conflicts) -> None:
        self.updates, self.key, self.on_conflict = updates, key, on_conflict
        self.time_type = updates.field(TIME).type
        self.row = pa.schema([field for field in updates if field.name not in (TIME, DIFF)])
        self.beside = pa.schema([field.with_nullable(True) for field in self.row if field.name not in key])
        fields = [field if field.name in key else field.with_nullable(True) for field in self.row]
        if on_conflict == "all":
            inner = [*(self.row.field(name) for name in self.beside.names), pa.field(DIFF, pa.int64(), False)]
            lists = pa.list_(pa.field("item", pa.struct(inner), False))
            fields = [*(field for field in self.row if field.name in key), pa.field(ROWS, lists)]
        deleted = pa.field(DELETED, pa.bool_(), False)
        self.shown = pa.schema([*fields, deleted])
        self.out = pa.schema([*fields, pa.field(TIME, self.time_type, False), deleted])

    def rows(self, upserts: Ints, shown: Any, pool: RowPool) -> pa.Table:
        """Gather the rows that keys show, and ``_deleted``.  O(upserts).

        ``upserts``: the first update of each.  ``shown``: references to rows, -1 for none; under "all" the lists:
        sizes, references and multiplicities.
        """
        columns = {name: gather_column(pool, upserts, self.row.field(name)) for name in self.key}
        if self.on_conflict == "all":
            sizes, references, counted = shown
            gone = sizes == 0
            columns[ROWS] = self._lists(sizes, references, counted, pool)
        else:
            gone = shown < 0
            at = np.where(gone, NULLS << SLOT, shown)
            columns |= {field.name: gather_column(pool, at, field) for field in self.beside}
        columns[DELETED] = pa.array(gone)
        return pa.Table.from_arrays([columns[name] for name in self.shown.names], schema=self.shown)

    def _lists(self, sizes: Ints, references: Ints, counted: Ints, pool: RowPool) -> pa.Array:
        """Build the column of all rows of each key; null if a key has none."""
        kind = self.out.field(ROWS).type
        columns = [gather_column(pool, references, self.row.field(name)) for name in self.beside.names]
        values = pa.StructArray.from_arrays([*columns, pa.array(counted)], fields=list(kind.value_type))
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), values, type=kind, mask=pa.array(sizes == 0))
