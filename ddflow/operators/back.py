"""Back: a collection's updates as upserts, one operator of a flow among others.

Invariant: `Back.judge` changes nothing, and a change is taken in by `Back.apply` alone; so where another operator, or
the budget, refuses a step after this one was judged, it holds what it held. What it holds is what its input holds, so
no file has it: `Back.fill` makes it of the input, and goes on as if never stopped. A large step comes in pieces, each
with all updates of some keys, and all are judged before the first is kept. How a key's rows are found and which one
shows is ``upserting``'s; who merges the pieces to one table in the order of times, the shelf.

>>> import pyarrow as pa
>>> schema = pa.schema({"id": pa.int64(), "city": pa.string()})
>>> back = Back(schema, ("id",), "error", pa.int64(), Secret(1, 2))
>>> moved = pa.table({"id": [1, 1], "city": ["Bern", "Chur"]}, schema=schema)
>>> back.fill(Updates(moved.slice(0, 1), few(0), ints(1), ints(4)))
>>> upserts, change = back.judge(Updates(moved, few(0, 0), ints(-1, 1), ints(5)))
>>> back.told.told(upserts).to_pylist()
[{'id': 1, 'city': 'Chur', '_time': 5, '_deleted': False}]
>>> back.apply([change])
>>> len(back.told)
1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.schema import conform, one_chunk, updates_schema
from ddflow.operators.held_rows import Change
from ddflow.operators.updates import Updates, few, ints
from ddflow.operators.upserting import Conflicts, ToUpserts

__all__ = ["Back", "few", "ints"]


class Back:
    """``schema``: of the input's rows.  ``told``: which holds them, and is told of as `ddflow.ToUpserts`."""

    def __init__(
        self, schema: pa.Schema, key: Sequence[str], on_conflict: Conflicts, time_type: pa.DataType, secret: Secret
    ) -> None:
        self.schema, self.time_type, self.secret = schema, time_type, secret
        self.told = self._fresh(key, on_conflict)

    def _fresh(self, key: Sequence[str], on_conflict: Conflicts) -> ToUpserts:
        made = ToUpserts(key, on_conflict, secret=self.secret)
        made.declare(updates_schema(self.schema, self.time_type))
        return made

    def judge(self, updates: Updates) -> tuple[Updates, Change | None]:
        """The upserts, as rows of what is shown and ``_deleted``, and the change to apply.

        ``updates``: all of a step, or of some keys of it; consolidated or not.  O(updates, and the rows that their keys
        hold) expected.  Raises `NotUnique`, `NotHeld`, `CountOverflow`, with nothing changed.
        """
        return self.told.judge(self._rows(updates, self.told))

    def apply(self, changes: Iterable[Change]) -> None:
        """Take the changes of a step into the state, each of other keys.  Amortised as `judge`."""
        self.told.keep(*changes)

    def fill(self, held: Updates) -> None:
        """Hold what the input holds; to be called once, before the first step.  O(rows).  Raises as `judge`."""
        change = self.judge(held)[1]
        self.apply([] if change is None else [change])

    def shown(self, held: Updates) -> Updates:
        """What keys show when the input holds this: upserts of one time, none of them deleted; nothing is held of it.

        O(rows).  Raises as `judge`, where it never was the input's.
        """
        made = self._fresh(self.told.key, self.told.on_conflict)
        return made.judge(self._rows(held, made))[0]

    def _rows(self, updates: Updates, made: ToUpserts) -> Updates:
        """The same with the columns declared: what may be null differs from piece to piece, encodings may."""
        columns = [updates.rows.column(name) for name in made.row.names]
        columns = [one_chunk(column) if isinstance(column, pa.ChunkedArray) else column for column in columns]
        if all(column.type == field.type for column, field in zip(columns, made.row, strict=True)):
            return updates._replace(rows=pa.Table.from_arrays(columns, schema=made.row))
        table = pa.Table.from_arrays(columns, names=made.row.names)
        return updates._replace(rows=conform(table, made.row, "upserts"))
