"""Join each left row once, when it arrives, to the right row of its key, and keep that result.

The result includes all changes of the right input up to the time when the left row arrives. Later changes of the right
input do not affect the result. A retraction of the left row retracts the stored result. Equal left rows share one
result until all of them are retracted.

The state holds the left rows by key. Each row has its multiplicity and its result. The right rows are read from the
arrangement of the right input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints, Narrow, RowHasher, Words, unpack_booleans, unpack_validity
from ddflow.columns.layout import Arena, Column
from ddflow.columns.names import TIMES, check_column_names, check_no_shared_columns
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.rows import RowPool, Rows, gather_arrays, gather_table, row_values
from ddflow.columns.schema import column_arrays, empty_table
from ddflow.errors import NotUnique
from ddflow.kernels.join import find_group_row_at_times
from ddflow.kernels.sort import order_by_rank
from ddflow.operators.arranged import refuse_negative_counts
from ddflow.operators.base import Operator, OperatorContext, RunningOperator, as_updates, register_operator
from ddflow.operators.ordered_rows import RowChanges, RunningOrderedRows, add_step_rows, number_identities
from ddflow.operators.updates import Updates, ints, narrow_ints, sort_retractions_first
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, mark_first_of_keys

FOUND = "_found"
"""The state column that says whether the left row matched a right row."""


@register_operator
class LookUp(Operator):
    """The operator of `Collection.lookup`.

    ``on``: pairs of equal columns of the left and the right. ``shown``: the right columns in the output, by output
    name. If ``shown`` is None, the output has all right columns except ``without``, including columns that are added
    later. ``how``: if "inner", left rows without a match are dropped.

    The right input must be arranged by its join columns, in this order, or have at most one row for each key.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> bids = flow.updates("bids", {"auction": int, "price": int})
    >>> names = flow.upserts("names", {"auction": int, "name": str}, dd.Upsert(key="auction"))
    >>> _ = flow.output("named", bids.lookup(names, on="auction"))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"bids": {"auction": [7], "price": [5]}, "names": {"auction": [7], "name": ["oz"]}})
    ...     rows = {"bids": {"auction": [7], "price": [6]}, "names": {"auction": [7], "name": ["ox"]}}
    ...     engine.step(rows)["named"].to_pylist()
    [{'auction': 7, 'price': 6, 'name': 'ox', '_time': 2, '_diff': 1}]
    """

    verb, keeps, looks, as_it_came = "lookup", True, (1,), True

    def __init__(
        self,
        left: Collection,
        right: Collection,
        on: Sequence[Sequence[str]],
        shown: Mapping[str, str] | None,
        without: Sequence[str],
        how: str,
    ) -> None:
        self.on, self.how, self.shown, self.without = [(str(a), str(b)) for a, b in on], how, shown, list(without)
        every = {name: name for name in right.schema.names if name not in without}
        self.columns = list((every if shown is None else shown).items())
        refuse_forgetting_inputs(self.verb, "the output would keep their values forever", left, right)
        fields = [right.schema.field(of).with_name(name) for name, of in self.columns]
        self.found = pa.schema([field.with_nullable(field.nullable or how == "left") for field in fields])
        schema = pa.schema([*left.schema, *self.found])
        check_no_shared_columns(left.schema.names, self.found.names, right.schema.names, self.verb)
        check_column_names([*schema.names, TIMES, FOUND], self.verb)
        super().__init__(left.flow, schema, [left, right], True)
        self.unique, self.positive = self.inputs[0].unique, True

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the join columns, the right columns, and ``how`` as JSON."""
        columns = {"without": self.without} if self.shown is None else {"columns": dict(self.shown)}
        return {"on": [list(each) for each in self.on], "how": self.how} | columns

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        on, shown, without = record.read_list("on"), None, list[str]()
        if "columns" in record:
            columns = record.read_record("columns")
            shown = {name: columns.read_text(name) for name in columns.list_field_names()}
        else:
            without = record.read_texts("without")
        return inputs[0]._apply_verb("lookup", inputs[1], on, shown, without, record.read_text("how"))

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render as text the other side, the join columns, and ``how`` unless it is the default."""
        on = {str(one): str(other) for one, other in record.read_list("on")}
        how = [] if record.read_text("how") == "left" else [f"how={record.read_text('how')!r}"]
        return ", ".join([*inputs, f"on={on}", *how])

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return all columns of the left input, and the join and result columns of the right input."""
        return [set(self.inputs[0].schema.names), {other for _, other in self.on} | {of for _, of in self.columns}]

    def exchange(self) -> list[Columns | None]:
        """Return the join columns of each side."""
        return [tuple(each[side] for each in self.on) for side in (0, 1)]

    def find_pushdown_columns(self, at: int) -> dict[str, str]:
        """Return the join columns; see `Collection.find_pushdown_columns`."""
        return {pair[at]: pair[0] for pair in self.on}

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return the left rows with the wanted left values, and their right rows if these still exist.

        See `Collection.find_contributing_rows`.
        """
        return [
            alike.select_matches(given[0], wanted, self.inputs[0].schema.names),
            alike.select_matches(
                given[1], wanted, {b: a for a, b in self.on} | {of: name for name, of in self.columns}
            ),
        ]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningLookup(self, context)


class LookupResults(NamedTuple):
    """The results for c changes of left rows, sorted by row and then time."""

    order: Ints
    """int64[c]: the positions of the changes."""
    diffs: Ints
    """int64[c]: the change in the multiplicity of the row with its result."""
    found: pa.Table
    """The values of the right columns, and the column `FOUND`."""


class RunningLookup(RunningOrderedRows):
    """A running lookup. State: each left row, arranged by its key, with its multiplicity and its result."""

    def __init__(self, node: LookUp, context: OperatorContext) -> None:
        row, right = node.inputs[0].schema, node.inputs[1].schema
        keys = node.exchange()
        super().__init__(row, keys[0] or (), [], context.secret)
        self.node, self.sides = node, context.inputs
        self.wanted = [field for field in node.schema if field.name in context.wanted]
        loose = [field.with_nullable(True) for field in node.found]
        self.kept = pa.schema([*loose, pa.field(FOUND, pa.bool_())])
        self.schema = pa.schema([*row, *self.kept, pa.field(TIMES, pa.int64(), False)])
        self.arrangements = (Arrangement(self.schema, wide=True, words=2, ordered=True),)
        self.identified = pa.schema([*row, *loose])
        self.asked = RowHasher(
            pa.schema([right.field(name).with_nullable(True) for name in keys[1] or ()]), self.secret
        )
        names = [name for name in right.names if name in node.find_read_columns(set())[1]] or right.names[:1]
        self.theirs = pa.schema([right.field(name).with_nullable(True) for name in names])

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`. Raises `NegativeMultiplicity`, `NotUnique`, `CountOverflow`.

        O(n log n) for n updates of both sides, and one look-up for each key of a new row.
        """
        left, right = inputs
        folded = self.fold_updates(left, since)
        refuse_negative_counts(folded, left, self.node.verb)
        given = self._find_change_values(folded, left, right)
        change = self._add_looked_up_values(folded, left, given)
        ranks, rows, diffs = folded.ranks[given.order], folded.rows[given.order], given.diffs
        shown = np.arange(diffs.size)
        if self.node.how == "inner":
            shown = np.flatnonzero(unpack_booleans(given.found.column(FOUND).combine_chunks()))
        shown = shown[sort_retractions_first(ranks[shown], diffs[shown], left.times.size)]
        places, mine = pa.array(shown), pa.array(rows[shown])
        columns = [
            given.found.column(field.name).take(places)
            if field.name in self.kept.names
            else column_arrays(left.rows, [field.name])[0].take(mine)
            for field in self.wanted
        ]
        made = pa.Table.from_arrays(columns, schema=pa.schema(self.wanted))
        return Updates(made, ranks[shown], diffs[shown], left.times), change

    def compute_initial_change(self, inputs: Sequence[Updates], since: int) -> Any:
        """Join the left rows to the current right rows; see `RunningOperator.compute_initial_change`.

        If the arrangement of the right input already holds rows, the right rows in ``inputs`` are ignored, so that no
        row counts twice.
        """
        left, right = inputs
        if self.sides[1].output_arrangement.keys:
            right = Updates(empty_table(right.rows.schema), narrow_ints(), ints(), left.times)
        return super().compute_initial_change([left, right], since)

    def to_output_rows(self, arranged: pa.Table) -> Updates:
        """Return each row with its result; see `ReadableNode.to_output_rows`."""
        if self.node.how == "inner":
            arranged = arranged.select(arranged.schema.names).filter(arranged.column(FOUND))
        (times,) = column_arrays(arranged, [TIMES])
        columns = column_arrays(arranged, self.node.schema.names)
        rows = pa.Table.from_arrays(columns, schema=self.node.schema)
        return as_updates(rows)._replace(diffs=times.to_numpy())

    def _lay_out_columns(self, rows: Ints, counts: Ints) -> list[Column]:
        """See `RunningCountedRows._lay_out_columns`.

        The result columns are null at first and are filled in later.
        """
        *mine, times = super()._lay_out_columns(rows, counts)
        return [*mine, *(pa.nulls(counts.size, field.type) for field in self.kept), times]

    def _find_change_values(self, folded: RowChanges, left: Updates, right: Updates) -> LookupResults:
        """Return the result of each change.

        A change that adds a new row gets the result of a look-up, and any other change gets the stored result.
        """
        c = folded.numbers.size
        order = np.empty(c, np.int64)
        order_by_rank(folded.numbers.astype(np.int32), NONE.view(np.int64), np.int64(folded.prior.size), order)
        numbers, counts = folded.numbers[order], folded.counts[order]
        first = np.append(np.ones(min(c, 1), bool), numbers[1:] != numbers[:-1])
        before = np.where(first, folded.prior[numbers], np.append(ints(0), counts)[:c])
        came = np.flatnonzero(before == 0)
        rows = column_arrays(left.rows, self.by)
        there = np.ones(came.size, bool)
        for column in rows:
            if column.null_count:
                there &= unpack_validity(column)[folded.rows[order[came]]] != 0
        asked = came[there]
        by, which = folded.by, numbers[asked]
        given = order[asked]
        found = self._look_up_right(by.high[which], by.low[which], folded.ranks[given], right, left, folded.rows[given])
        # The latest result of a row is from its last arrival in this step or, if it did not arrive in this step, from
        # the state.
        latest = np.maximum.accumulate(np.where(before == 0, np.arange(c), -1))
        begun = np.flatnonzero(first)[np.cumsum(first) - 1] if c else ints()
        kept = latest < begun
        table = gather_table(self.output_arrangement.slots.pool, folded.references[numbers[kept]], self.kept)
        nulls = [pa.nulls(1, field.type) for field in self.node.found]
        nothing = pa.Table.from_arrays([*nulls, pa.array([False])], schema=self.kept)
        place = np.full(c, table.num_rows + found.num_rows)
        place[asked] = table.num_rows + np.arange(asked.size)
        place = place[latest]
        place[kept] = np.arange(table.num_rows)
        every = pa.concat_tables([table, found, nothing]).combine_chunks()
        return LookupResults(order, counts - before, every.take(pa.array(place)))

    def _look_up_right(
        self, high: Words, low: Words, ranks: Narrow, right: Updates, left: Updates, rows: Ints
    ) -> pa.Table:
        """Look up ascending keys in the right input. The look-up of each key is as of the key's own time rank.

        ``rows``: the left rows, which the error message quotes.
        """
        n, heads = high.size, mark_first_of_keys(high, low)
        group, size = np.cumsum(heads) - 1, int(heads.sum())
        held = self.sides[1].look_up_groups(high[heads], low[heads])
        words = self.asked.compute_identities(column_arrays(right.rows, self.asked.names), right.diffs.size)
        both = [np.concatenate(each) for each in zip((high[heads], low[heads]), words, strict=True)]
        theirs = number_identities(both[0], both[1], Arena())[0][size:]
        changes = np.flatnonzero(theirs < size)
        changes = changes[np.argsort(theirs[changes], kind="stable")]
        begins = np.searchsorted(theirs[changes], np.arange(size + 1))
        pool = add_step_rows(self.sides[1].output_arrangement.slots.pool, right)
        references = np.concatenate([held.references, changes])
        numbers = self._find_first_equal_rows(pool, references, held.begins, begins)
        cut, sorting = held.references.size, np.lexsort((ranks, group))
        told = right.ranks[changes], right.diffs[changes], numbers[cut:]
        found = np.empty(n, np.int64)
        asked = np.searchsorted(group, np.arange(size + 1)), ranks[sorting]
        given = held.begins, numbers[:cut], held.values, begins, *told, *asked
        refused = find_group_row_at_times(*given, np.zeros(references.size, np.int64), found)
        if refused >= 0:
            row = row_values(left.rows, int(rows[sorting[refused]]))
            what = f"{row} finds several rows of its key {self.asked.names}, or a row with a multiplicity other than 1"
            remedy = "look up by columns that identify one row, or apply top(1) to each key first"
            raise NotUnique(self.node.verb, what, remedy)
        found[sorting] = found.copy()
        at = np.flatnonzero(found >= 0)
        place = np.zeros(n, np.int64)
        place[at] = np.arange(at.size)
        places = pa.array(place, mask=found < 0)
        fields = [self.theirs.field(of) for _, of in self.node.columns]
        columns = [column.take(places) for column in gather_arrays(pool, references[found[at]], fields)]
        return pa.Table.from_arrays([*columns, pa.array(found >= 0)], schema=self.kept)

    def _find_first_equal_rows(self, pool: RowPool, references: Ints, held: Ints, changes: Ints) -> Ints:
        """For each row, find the first equal row of its group.

        The stored rows of a group precede its changes. ``held``, ``changes``: int64[g + 1], where each group begins
        among the stored rows and among the changes.
        """
        out = np.arange(references.size)
        mixed = np.repeat(np.diff(changes) > 0, np.diff(held))
        some = np.append(np.flatnonzero(mixed), out[mixed.size :])
        if some.size > 1:
            hashes = RowHasher(self.theirs, self.secret)
            words = hashes.compute_identities(gather_arrays(pool, references[some], self.theirs), some.size)
            number, first = number_identities(*words, Arena())
            out[some] = some[first[number]]
        return out

    def _add_looked_up_values(self, folded: RowChanges, left: Updates, given: LookupResults) -> ArrangementChange:
        """Add the result of the row to each version of the change."""
        change, batch = folded.change, folded.change.batch
        there = np.flatnonzero(change.last >= 0)
        numbers = there[np.searchsorted(change.last[there], np.arange(len(batch)))]
        ranks, times = np.searchsorted(left.times, batch.time), np.int64(left.times.size)
        known = folded.numbers[given.order] * times + folded.ranks[given.order]
        found = given.found.take(pa.array(np.searchsorted(known, numbers * times + ranks)))
        mine, columns = len(self.row), batch.rows.columns
        columns = [*columns[:mine], *column_arrays(found), columns[-1]]
        rows = Rows.from_columns(columns, self.output_arrangement.slots.pool.shape, len(batch))
        return change._replace(batch=replace(batch, rows=rows))
