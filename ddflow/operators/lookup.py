"""Join each left row once, when it arrives, to the right row of its key, and keep that result.

The result includes all changes of the right input up to the time when the left row arrives. Later changes of the right
input do not affect the result. A retraction of the left row retracts the stored result. Equal left rows share one
result until all of them are retracted.

The state holds the left rows by key. Each row has its multiplicity and its result. The right rows are read from the
arrangement of the right input.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Narrow, RowHasher, Words, unpack_booleans, unpack_validity
from ddflow.columns.layout import Arena
from ddflow.columns.names import TIMES, check_column_names, check_no_shared_columns
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.rows import RowPool, gather_arrays, gather_table, row_values
from ddflow.columns.schema import column_arrays, empty_table
from ddflow.errors import NotUnique
from ddflow.kernels.join import find_group_row_at_times
from ddflow.operators.arranged import RunningArrange
from ddflow.operators.base import Operator, OperatorContext, RunningOperator, as_updates, register_operator
from ddflow.operators.updates import (
    GroupSortedUpdates,
    Updates,
    add_step_rows,
    ints,
    narrow_ints,
    number_identities,
    refuse_negative_counts,
    sort_retractions_first,
)
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord
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

    verb, keeps, as_it_came = "lookup", True, True
    looks: ClassVar[tuple[int, ...]] = (1,)

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
        columns = {"without": self.without} if self.shown is None else {"columns": list(map(list, self.columns))}
        return {"on": [list(each) for each in self.on], "how": self.how} | columns

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        on, *columns = cls.read_arguments(record)
        return inputs[0]._apply_verb(cls.verb, inputs[1], on, *columns)

    @staticmethod
    def read_arguments(record: JsonRecord) -> tuple[list[Any], dict[str, str] | None, list[str], str]:
        """Read the join columns, the right columns, and ``how``."""
        shown = None
        if "columns" in record:
            shown = {str(name): str(of) for name, of in record.read_list("columns")}
        without = [] if shown is not None else record.read_texts("without")
        return record.read_list("on"), shown, without, record.read_text("how")

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


class LeftChanges(NamedTuple):
    """The c changes in the multiplicities of left rows, sorted by key, then row, then time."""

    high: Words
    low: Words
    """uint64[c]: the words of the key."""
    rows: Ints
    """int64[c]: an update with the row, as a position in the step."""
    ranks: Narrow
    before: Ints
    counts: Ints
    """The multiplicities of the row before and after the change."""
    first: Ints
    """int64[c]: the position of the first change of the row."""
    stored: Ints
    """int64[c]: a reference to the row with its result before the step, or -1 for a new row."""


class RunningLookup(RunningArrange):
    """A running lookup. State: the differences of left rows with their results, by key.

    The words that identify a row in its group are two words of the left row and two words of its result. So at any
    time, the rows of the state with the words of a left row are equal.
    """

    def __init__(self, node: LookUp, context: OperatorContext) -> None:
        row, right, secret = node.inputs[0].schema, node.inputs[1].schema, context.secret
        self.by, theirs = (keys or () for keys in node.exchange())
        self.node, self.sides, self.secret, self.refuses = node, context.inputs, secret, ""
        self.wanted = [field for field in node.schema if field.name in context.wanted]
        self.kept = pa.schema([*(field.with_nullable(True) for field in node.found), pa.field(FOUND, pa.bool_())])
        self.set_up_rows(pa.schema([*row, *self.kept]), self.by, 4, secret, context.threads)
        loose: Any = row, self.kept, [right.field(name) for name in theirs]
        self.mine, self.result, self.asked = (
            RowHasher(pa.schema([field.with_nullable(True) for field in fields]), secret) for fields in loose
        )
        names = [name for name in right.names if name in node.find_read_columns(set())[1]] or right.names[:1]
        self.theirs = pa.schema([right.field(name).with_nullable(True) for name in names])

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`. Raises `NegativeMultiplicity`, `NotUnique`, `CountOverflow`.

        O(n log n) for n updates of both sides, and one look-up for each left row and for each key of a new row.
        """
        left, right = inputs
        changes = self._list_changes(left)
        made = self._add_results(changes, left, right)
        _, change = super().compute([made], since)
        refuse_negative_counts(changes.counts, changes.rows, left, self.node.verb)
        if self.node.how == "inner":
            made = made.take(np.flatnonzero(unpack_booleans(*column_arrays(made.rows, [FOUND]))))
        columns = column_arrays(made.rows, [field.name for field in self.wanted])
        return made._replace(rows=pa.Table.from_arrays(columns, schema=pa.schema(self.wanted))), change

    def compute_row_words(self, rows: Any) -> Ints:
        """Compute two words of the left row and two words of its result, as int64[n, 4]."""
        words = *self.mine.identify_rows(rows), *self.result.identify_rows(rows)
        return np.stack(words, axis=1).view(np.int64)

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

    def _list_changes(self, left: Updates) -> LeftChanges:
        """Add up the diffs of equal left rows and times, and look up the rows before the step."""
        words = np.stack(self.mine.identify_rows(left.rows), axis=1).view(np.int64)
        by = GroupSortedUpdates.sort_by_words(left, self.keys, words)
        fresh = mark_first_of_keys(by.high, by.low, by.more)
        rows, begun = np.flatnonzero(fresh), fresh.copy()
        begun[1:] |= by.ranks[1:] != by.ranks[:-1]
        heads = np.flatnonzero(begun)
        diffs = np.add.reduceat(by.diffs, heads) if heads.size else by.diffs
        heads, diffs = heads[diffs != 0], diffs[diffs != 0]
        arranged: Any = self.output_arrangement
        held = arranged.find_group_rows(by.high[rows], by.low[rows], by.more[rows])
        there = np.diff(held.begins) > 0
        prior, stored = np.zeros(rows.size, np.int64), np.full(rows.size, -1)
        prior[there], stored[there] = held.values, held.references
        number = np.cumsum(fresh)[heads] - 1
        first = np.searchsorted(number, number)
        total = np.cumsum(diffs)
        counts = prior[number] + total - (total - diffs)[first]
        places = by.places[heads]
        return LeftChanges(
            by.high[heads], by.low[heads], places, by.ranks[heads], counts - diffs, counts, first, stored[number]
        )

    def _add_results(self, changes: LeftChanges, left: Updates, right: Updates) -> Updates:
        """Add the results to the changed left rows.

        A change that adds a new row gets the result of a look-up, and any other change gets the stored result.
        """
        c, came = changes.rows.size, changes.before == 0
        there = came.copy()
        for column in column_arrays(left.rows, self.by):
            if column.null_count:
                there &= unpack_validity(column)[changes.rows] != 0
        asked = np.flatnonzero(there)
        high, low = changes.high[asked], changes.low[asked]
        found = self._look_up_right(high, low, changes.ranks[asked], right, left, changes.rows[asked])
        # The latest result of a row is from its last arrival in this step or, if it did not arrive in this step, from
        # the state.
        latest = np.maximum.accumulate(np.where(came, np.arange(c), -1))
        kept = latest < changes.first
        table = gather_table(self.output_arrangement.slots.pool, changes.stored[kept], self.kept)
        nulls = [pa.nulls(1, field.type) for field in self.node.found]
        nothing = pa.Table.from_arrays([*nulls, pa.array([False])], schema=self.kept)
        place = np.full(c, table.num_rows + found.num_rows)
        place[asked] = table.num_rows + np.arange(asked.size)
        place = place[latest]
        place[kept] = np.arange(table.num_rows)
        every, diffs = pa.concat_tables([table, found, nothing]).combine_chunks(), changes.counts - changes.before
        order = sort_retractions_first(changes.ranks, diffs, left.times.size)
        mine, results = pa.array(changes.rows[order]), every.take(pa.array(place[order]))
        columns = [each.take(mine) for each in column_arrays(left.rows, self.mine.names)]
        rows = pa.Table.from_arrays([*columns, *column_arrays(results)], schema=self.identified)
        return Updates(rows, changes.ranks[order], diffs[order], left.times)

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
