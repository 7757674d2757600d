"""To upserts: a collection's updates as upserts, one operator of a flow among others.

Invariant: it is the last: only an output can be made of it, because operators work on differences. As a collection its
rows are what keys show, each once. As an output its columns are those of upserts, with ``_deleted`` and without
``_diff``. It holds what its input holds, so no file has it: `RunningToUpserts.fill` makes it of the input. Finding the
rows of a key, and choosing which one shows, is the business of ``upserting``.

>>> import pyarrow as pa
>>> from ddflow.plan.plan import Plan
>>> from ddflow.plan.spec import Upsert
>>> plan = Plan()
>>> people = plan.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> cities = plan.output("cities", people.project(["city"]).to_upserts("city", on_conflict="all"))
>>> cities.schema.names, cities.updates_schema(plan.time_type).names
(['city', 'rows'], ['city', 'rows', '_time', '_deleted'])
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import arrays, conform, updates_schema
from ddflow.columns.wider import differing, keeps_order
from ddflow.errors import SpecError
from ddflow.operators.base import Context, Operator, Running, register
from ddflow.operators.held_rows import HeldChange, HeldRows
from ddflow.operators.updates import Updates
from ddflow.operators.upserting import ToUpserts
from ddflow.operators.upserts_schema import DELETED, Conflicts
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.record import Record
from ddflow.trace.arrangement import Arrangement


@register
class AsUpserts(Operator):
    """See `Collection.to_upserts`.  ``key``, ``on_conflict``: as of `ddflow.ToUpserts`.

    Raises `SpecError`, `SchemaMismatch`.
    """

    verb, keeps = "to_upserts", True

    def __init__(self, of: Collection, key: str | Sequence[str], on_conflict: Conflicts = "error") -> None:
        made = ToUpserts(key, on_conflict)
        for column in made.key:
            if column not in of.schema.names:
                raise SpecError(
                    f"to_upserts({list(made.key)})",
                    f"there is no column {column!r}",
                    did_you_mean(column, of.schema.names),
                )
        if of.forgetting:
            raise SpecError(
                f"to_upserts({list(made.key)})",
                f"the inputs {sorted(of.forgetting)} forget rows without a retraction: keys would show them for ever",
                "leave on_expire='forget' out there",
            )
        made.declare(of.updates_schema(of.time_type))
        self.key, self.on_conflict, self._out = made.key, on_conflict, made.schema.out
        # What may be null in a row may be null where it shows; only of a deleted key everything may.
        row, shown = made.schema.row, [field for field in made.schema.shown if field.name != DELETED]
        if on_conflict != "all":
            shown = [row.field(field.name) for field in shown]
        super().__init__(of.flow, pa.schema(shown), [of], True)

    def updates_schema(self, time_type: pa.DataType) -> pa.Schema:
        """The columns of its upserts, which are of the flow's type of time anyway."""
        return self._out

    def operand(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `SpecError`: no operator is applied to it."""
        raise SpecError(
            f"an operator on to_upserts({list(self.key)})",
            "operators work on differences, and these are upserts",
            "apply it before to_upserts, behind which only flow.output(...) stands",
        )

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """The key, and the rule."""
        return {"key": list(self.key), "on_conflict": self.on_conflict}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: Record) -> Collection:
        """See `Collection.from_json`."""
        rule: Any = record.text("on_conflict")
        return inputs[0].to_upserts(record.texts("key"), rule)

    def unlike(self, narrow: Self) -> Iterator[str]:
        """See `Collection.unlike`: which row is greatest must not change."""
        for name in differing(narrow.inputs[0].schema, self.inputs[0].schema) if self.on_conflict == "greatest" else ():
            was, now = (each.inputs[0].schema.field(name).type for each in (narrow, self))
            if not keeps_order(was, now):
                yield f"on_conflict='greatest' compares its column {name!r}, whose values as {now} have another order"

    @classmethod
    def text(cls, record: Record, inputs: Sequence[str]) -> str:
        """The key, and the rule."""
        return f"{record.texts('key')}, on_conflict={record.text('on_conflict')!r}"

    def exchange(self) -> list[Columns | None]:
        """The key."""
        return [self.key]

    def check_partitions(self) -> None:
        """See `Collection.check_partitions`."""
        raise SpecError(
            "run a flow on Spark",
            f"it has to_upserts({list(self.key)})",
            "leave it out and give the updates to dd.to_upserts, or run it with flow.open()",
        )

    def open(self, context: Context) -> Running:
        """See `Operator.open`."""
        return RunningToUpserts(self.inputs[0].schema, self, context.time_type, context.secret)

    _then = consolidate = operand


class RunningToUpserts(Running):
    """``schema``: of the input's rows.  ``told``: which holds them, and is told of as `ddflow.ToUpserts`."""

    def __init__(self, schema: pa.Schema, node: AsUpserts, time_type: pa.DataType, secret: Secret) -> None:
        self.schema, self.node, self.time_type, self.secret = schema, node, time_type, secret
        self.told = self._fresh()

    def _fresh(self) -> ToUpserts:
        made = ToUpserts(self.node.key, self.node.on_conflict, secret=self.secret)
        made.declare(updates_schema(self.schema, self.time_type))
        return made

    @property
    def held_rows(self) -> HeldRows:  # type: ignore[override]
        """See `Running.held_rows`."""
        return self.told.held_rows

    @property
    def nbytes(self) -> int:
        """See `Running.nbytes`."""
        return self.told.held_rows.nbytes

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, HeldChange | None]:
        """The upserts, as rows of what is shown and ``_deleted``, and the change to apply.

        O(updates, and the rows that their keys hold) expected.  Raises `NotUnique`, `NotHeld`, `CountOverflow`.
        """
        return self.told.resolve(self._rows(inputs[0], self.told))

    def apply(self, changes: Sequence[Any], upper: int, since: int) -> None:
        """See `Running.apply`."""
        self.told.keep(*changes)

    def outlives(self, change: Any, keep: Callable[[Arrangement, Any], Any]) -> Any:
        """See `Running.outlives`.  It stays in memory."""
        return change.own()

    def read(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """What keys show when the input holds this; nothing is held of it.  O(rows).  Raises as `compute`."""
        made = self._fresh()
        return made.resolve(self._rows(inputs[0], made))[0]

    def output(self, made: Updates, secret: Secret, schema: pa.Schema, time_type: pa.DataType) -> pa.Table:
        """See `Running.output`: upserts."""
        return self.told.told(made)

    def _rows(self, updates: Updates, made: ToUpserts) -> Updates:
        """The same with the columns declared: what may be null differs from piece to piece, encodings may."""
        row = made.schema.row
        columns = arrays(updates.rows, row.names)
        if all(column.type == field.type for column, field in zip(columns, row, strict=True)):
            return updates._replace(rows=pa.Table.from_arrays(columns, schema=row))
        table = pa.Table.from_arrays(columns, names=row.names)
        return updates._replace(rows=conform(table, row, "upserts"))
