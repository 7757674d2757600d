"""Turn a collection's updates into upserts. Only an output can follow this operator.

No operator can follow, because operators work on differences and not on upserts. The output has ``_deleted`` in place
of ``_diff``. The state has the input's rows by key, as differences. A step reads the rows of each updated key, and
``upserts.py`` computes upserts.

>>> import pyarrow as pa
>>> from ddflow.plan.plan import Plan
>>> from ddflow.plan.inputs.spec import Upsert
>>> plan = Plan()
>>> people = plan.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> cities = plan.output("cities", people.project(["city"]).to_upserts("city", on_conflict="all"))
>>> cities.schema.names, cities.updates_schema(plan.time_type).names
(['city', 'rows'], ['city', 'rows', '_time', '_deleted'])
"""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NoReturn, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret, compute_identities, compute_value_hashes, has_two_word_identities
from ddflow.columns.names import DELETED, TIMES, check_column_names, check_columns_exist
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.rows import gather_table
from ddflow.columns.schema import build_updates_schema, column_arrays, conform_to_schema
from ddflow.columns.sorting import sort_by_identity
from ddflow.columns.wider import keeps_order, list_changed_types
from ddflow.errors import SpecError
from ddflow.operators.arranged import RunningArrange
from ddflow.operators.base import Operator, OperatorContext, RunningOperator, as_updates, register_operator
from ddflow.operators.held_rows import RowStore
from ddflow.operators.updates import Updates
from ddflow.operators.upserts import Conflicts, ToUpserts
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import RowsByGroup, mark_first_of_keys


@register_operator
class AsUpserts(Operator):
    """The operator of `Collection.to_upserts`. ``key``, ``on_conflict``: as in `ddflow.ToUpserts`.

    As a collection, the operator contains the visible row of each key once. Raises `SpecError`, `SchemaMismatch`.
    """

    verb, keeps = "to_upserts", True

    def __init__(self, of: Collection, key: str | Sequence[str], on_conflict: Conflicts = "error") -> None:
        made = ToUpserts(key, on_conflict)
        check_columns_exist(made.key, of.schema.names, f"to_upserts({list(made.key)})")
        refuse_forgetting_inputs(f"to_upserts({list(made.key)})", "keys would show these rows forever", of)
        check_column_names([*of.schema.names, TIMES], f"to_upserts({list(made.key)})")
        made.declare(of.updates_schema(of.time_type))
        self.key, self.on_conflict, self._out = made.key, on_conflict, made.schema.out
        # Visible rows keep their nullability. Only the upsert of a deleted key has nulls in all columns outside the
        # key.
        row, shown = made.schema.row, [field for field in made.schema.shown if field.name != DELETED]
        if on_conflict != "all":
            shown = [row.field(field.name) for field in shown]
        super().__init__(of.flow, pa.schema(shown), [of], True)

    def updates_schema(self, time_type: pa.DataType) -> pa.Schema:
        """Return the columns of the upserts. The time column has the flow's type of time."""
        return self._out

    def operand(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `SpecError`, because no operator can follow this operator."""
        raise SpecError(
            f"an operator on to_upserts({list(self.key)})",
            "operators work on differences, but these are upserts",
            "apply it before to_upserts; only flow.output(...) may follow to_upserts",
        )

    def unique_by(self) -> list[Columns]:
        """Return the key, unless a key can have several visible rows; see `Collection.unique_by`."""
        return [] if self.on_conflict == "all" else [tuple(self.key)]

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the key and ``on_conflict`` as JSON."""
        return {"key": list(self.key), "on_conflict": self.on_conflict}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        rule: Any = record.read_text("on_conflict")
        return inputs[0].to_upserts(record.read_texts("key"), rule)

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that the greatest row of a key stays the same; see `Collection.find_widening_obstacles`."""
        for name in (
            list_changed_types(narrow.inputs[0].schema, self.inputs[0].schema) if self.on_conflict == "greatest" else ()
        ):
            was, now = (each.inputs[0].schema.field(name).type for each in (narrow, self))
            if not keeps_order(was, now):
                yield f"on_conflict='greatest' compares its column {name!r}, whose values sort differently as {now}"

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the key and ``on_conflict`` as text."""
        return f"{record.read_texts('key')}, on_conflict={record.read_text('on_conflict')!r}"

    def exchange(self) -> list[Columns | None]:
        """Return the key columns."""
        return [self.key]

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return all rows of the wanted keys; see `Collection.find_contributing_rows`."""
        return [alike.select_matches(given[0], wanted, self.key)]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningToUpserts(self.inputs[0].schema, self, context)

    _apply_verb = consolidate = operand


class RunningToUpserts(RunningArrange):
    """A running conversion to upserts. State: each input row, arranged by its key, with its multiplicity.

    ``told``: the `ToUpserts` that applies ``on_conflict``.
    """

    def __init__(self, schema: pa.Schema, node: AsUpserts, context: OperatorContext) -> None:
        secret = context.secret
        self.told = ToUpserts(node.key, node.on_conflict, secret=secret)
        self.told.declare(build_updates_schema(schema, context.time_type))
        self.row, self.by, self.secret, self.refuses = self.told.schema.row, list(node.key), secret, ""
        self.set_up_rows(self.row, node.key, 2, secret, context.threads)

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, Any]:
        """Compute the upserts and the change to apply. The upserts are visible rows with the column ``_deleted``.

        O(updates + stored rows of their keys) expected. Raises `NotUnique`, `NotHeld`, `CountOverflow`.
        """
        updates, told = self._conform_rows(inputs[0]), copy(self.told)
        n = updates.diffs.size
        if not n:
            return self.told.resolve(updates)[0], None
        by, pool = self.group_updates(updates, self.keys), self.output_arrangement.slots.pool
        first = np.flatnonzero(mark_first_of_keys(by.high, by.low))
        found = self.look_up_groups(by.high.take(first), by.low.take(first))
        rows, told.held_rows = gather_table(pool, found.references, self.row), self._build_empty_store()
        if rows.num_rows:
            keys = sort_by_identity(*compute_identities(rows.select(self.by), self.secret))
            hashes = compute_value_hashes(rows.select(told.schema.beside.names), self.secret).view(np.int64)
            told.held_rows.insert_rows(rows, keys, hashes, found.values, told._rank_candidates)
        return told.resolve(updates)[0], super().compute([updates], since)[1]

    def compute_output_rows(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """Compute the visible row of each key from the rows of the input. The state stays unchanged. O(rows).

        Raises the errors of `compute`.
        """
        told = copy(self.told)
        told.held_rows = self._build_empty_store()
        return told.resolve(self._conform_rows(inputs[0]))[0]

    def iterate_rows(self, as_of: int | None) -> Iterator[Updates]:
        """Yield the visible rows of all keys; see `ReadableNode.iterate_rows`.  O(rows), in memory."""
        every = [self.to_output_rows(table) for table in self.output_arrangement.iterate_rows(as_of)]
        if every:
            rows = pa.concat_tables([each.rows for each in every])
            whole = as_updates(rows)._replace(diffs=np.concatenate([each.diffs for each in every]))
            yield self.compute_output_rows([whole], as_of)

    def compute_group(self, arranged: Arrangement, found: RowsByGroup) -> Updates:
        """Compute the visible row of one key; see `ReadableNode.compute_group`."""
        return self.compute_output_rows([super().compute_group(arranged, found)], None)

    def to_output_table(self, made: Updates, secret: Secret, schema: pa.Schema, time_type: pa.DataType) -> pa.Table:
        """Return a table of upserts; see `ReadableNode.to_output_table`."""
        shown = [made.rows.column(name) for name in schema.names]
        there = pa.array(np.zeros(made.diffs.size, bool))
        table = pa.Table.from_arrays([*shown, there], schema=self.told.schema.shown)
        return self.told.told(made._replace(rows=table))

    def _build_empty_store(self) -> RowStore:
        return RowStore(self.row, has_two_word_identities(pa.schema([self.row.field(name) for name in self.by])))

    def _conform_rows(self, updates: Updates) -> Updates:
        """Cast the columns to the declared types.

        The updates of different parts of a step can have types of different nullability and encoding.
        """
        columns = column_arrays(updates.rows, self.row.names)
        if all(column.type == field.type for column, field in zip(columns, self.row, strict=True)):
            return updates._replace(rows=pa.Table.from_arrays(columns, schema=self.row))
        table = pa.Table.from_arrays(columns, names=self.row.names)
        return updates._replace(rows=conform_to_schema(table, self.row, "upserts"))
