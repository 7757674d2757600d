"""Join each left row to the nearest right row of its key, by the order of a column such as a time.

A left row has at most one partner: the last right row whose moment is not later, for ``>=``. If several right rows have
this moment, their remaining columns decide, ascending. A pair has the multiplicity of its left row. If a nearer row
comes or goes, the pairs are corrected. A null key and a null moment have no partner.

Both inputs are arranged by key and moment, so that the right row that a left row needs is the first present row at or
after the place of the left row. The operator has no state. A step reads the updated rows, their partners, and the left
rows whose partner can change (`ddflow.kernels.asof`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Flags, Ints, Narrow, Words, unpack_validity
from ddflow.columns.names import DIFF
from ddflow.columns.order_words import compute_order_words, count_order_words, has_exact_words
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.rows import RowPool, gather_arrays, gather_table
from ddflow.columns.schema import column_arrays, normalize_type
from ddflow.errors import SpecError
from ddflow.kernels.asof import ONES, AsofUpdates, AsofWindows, NearRows, compute_asof_updates, find_asof_windows
from ddflow.kernels.top import StepUpdates, StoredGroups, find_group_ranges
from ddflow.operators.arranged import Arrange
from ddflow.operators.base import OperatorContext, RunningOperator, as_updates, register_operator
from ddflow.operators.join import match_updates
from ddflow.operators.lookup import LookUp
from ddflow.operators.ordered_groups import ALL, FirstRows, RunningOrderedGroups, StepGroups
from ddflow.operators.row_order import (
    MOST,
    RowOrder,
    find_order_type,
    find_reordered_columns,
    format_order_columns,
    parse_order_columns,
)
from ddflow.operators.updates import (
    GroupSortedUpdates,
    Updates,
    add_step_rows,
    refuse_negative_counts,
    sort_retractions_first,
)
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import RowsByGroup, to_identity_words


@register_operator
class ArrangeInOrder(Arrange):
    """The operator that arranges a collection by key, then by order.

    ``order``: an order column, as for `top`. ``ties``: whether the remaining columns order the rows that tie.

    >>> import ddflow as dd
    >>> prices = dd.Flow().updates("prices", {"id": int, "at": int})
    >>> prices._apply_verb("arrange_in_order", ["id"], "at desc", True)
    ArrangeInOrder(id int64, at int64)
    """

    verb = "arrange_in_order"

    def __init__(self, of: Collection, by: Sequence[str], order: str, ties: bool) -> None:
        ((self.order,), self.ties) = parse_order_columns(order, of.schema, self.verb), ties
        super().__init__(of, by)

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the columns, and whether the remaining columns order the rows, as JSON."""
        return {"by": list(self.by), "order": format_order_columns([self.order])[0], "ties": self.ties}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        ties = bool(record.given.get("ties"))
        return inputs[0]._apply_verb(cls.verb, record.read_texts("by"), record.read_text("order"), ties)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the columns as text."""
        return f"by={record.read_texts('by')}, order={record.read_text('order')!r}"

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that the wider types sort the rows in the same order; see `Collection.find_widening_obstacles`."""
        read = {self.order.name} | ({*self.schema.names} - {*self.by} if self.ties else set())
        for name, kind in find_reordered_columns(self.schema, narrow.schema):
            if name in read:
                yield f"asof(...) compares its column {name!r}, whose values sort differently as {kind}"

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningArrangeInOrder(self, context)


class RunningArrangeInOrder(RunningOrderedGroups):
    """A running arrangement in order. State: the differences of the rows, by group and order."""

    def __init__(self, node: ArrangeInOrder, context: OperatorContext) -> None:
        ways = RowOrder(node.schema, node.by, [node.order], context.secret, MOST if node.ties else 0)
        super().__init__(node.inputs[0], node.by, ways, node.verb, context.threads)
        self.ties, self.refuses = node.ties, ""
        self.order, self.moment = node.order, node.schema.field(node.order.name).with_nullable(True)
        self.order_type = find_order_type(self.moment.type)

    def find_groups(self, high: Words, low: Words) -> StoredGroups:
        """Find the stored rows of groups by ascending words of the groups.  O(groups runs log rows) expected."""
        arranged = self.output_arrangement
        parts = np.array(arranged.parts, np.int64).reshape(-1, 3)
        ranges, one = np.empty((high.size, 2 * parts.shape[0]), np.int64), np.empty(0, np.int64)
        more = np.empty((0, arranged.words), np.uint64)
        asked = StepUpdates(np.arange(high.size + 1), high, low, more, one, np.empty(0, np.int32), one)
        find_group_ranges(asked, parts, arranged.slots.addresses, ranges)
        return StoredGroups(parts[:, 0].copy(), ranges, arranged.slots.addresses)

    def list_rows(self, groups: StepGroups, pool: RowPool) -> FirstRows:
        """List all rows of groups, in order. If the remaining columns do not matter, rows that tie are in any order."""
        return self._find_first_rows(groups, pool, ALL) if self.ties else self._collect_rows(groups, ALL)

    def compute_moments(self, pool: RowPool, references: Ints) -> Words:
        """Compute the words of the moments of rows, as uint64[n, t].  O(n)."""
        column = gather_arrays(pool, references, [self.moment])[0].cast(self.order_type)
        return compute_order_words(pa.table({self.order.name: column}), [self.order])

    def _compute_group_output(self, arranged: Arrangement, found: RowsByGroup) -> Updates:
        """See `RunningOrderedGroups._compute_group_output`."""
        return as_updates(gather_table(arranged.slots.pool, found.references, self.row))._replace(diffs=found.values)


@register_operator
class Asof(LookUp):
    """The operator of `Collection.asof`. The columns are chosen as in a `LookUp`.

    ``at``: the left moment, the comparison, and the right moment.

    Each side must be arranged by its join columns, in this order, and then by its moment: descending for ``>=`` and
    ``>``.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> trades = flow.updates("trades", {"id": int, "at": int})
    >>> prices = flow.updates("prices", {"id": int, "since": int, "price": int})
    >>> _ = flow.output("out", trades.asof(prices, on="id", at="at >= since"))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"trades": {"id": [1], "at": [9]}, "prices": {"id": [1], "since": [2], "price": [50]}})
    ...     for row in engine.step({"prices": {"id": [1], "since": [7], "price": [60]}})["out"].to_pylist():
    ...         print(*row.values())
    1 9 2 50 2 -1
    1 9 7 60 2 1
    """

    verb, keeps, looks, as_it_came, orders_partitions = "asof", False, (0, 1), False, True

    def __init__(self, left: Collection, right: Collection, on: Any, at: Sequence[str], *columns: Any) -> None:
        super().__init__(left, right, on, *columns)
        self.at = [str(each) for each in at]
        self.strict = {">=": False, ">": True, "<=": False, "<": True}[self.at[1]]
        _check_moments(*(of.schema.field(name) for of, name in zip((left, right), self.at[::2], strict=True)))
        # Two right rows that differ give different output rows, and no output row if their moments are null.
        shown = {of for _, of in self.columns}
        known = shown.union(other for _, other in self.on)
        self.consolidated = self.at[2] in shown and known.issuperset(right.schema.names)

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the join columns, the comparison, the right columns, and ``how`` as JSON."""
        return super().to_json(formulas) | {"at": self.at}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        on, *columns = cls.read_arguments(record)
        return inputs[0]._apply_verb(cls.verb, inputs[1], on, record.read_texts("at"), *columns)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render as text the other side, the join columns, the comparison and ``how``."""
        on = {str(one): str(other) for one, other in record.read_list("on")}
        at = " ".join(record.read_texts("at"))
        return ", ".join([*inputs, f"on={on}", f"at={at!r}", f"how={record.read_text('how')!r}"])

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return all columns of both inputs, because all columns together identify a row."""
        return [set(each.schema.names) for each in self.inputs]

    def find_pushdown_columns(self, at: int) -> dict[str, str]:
        """Return all left columns, and the join columns; see `Collection.find_pushdown_columns`."""
        return super().find_pushdown_columns(at) if at else {name: name for name in self.inputs[0].schema.names}

    def unique_by(self) -> list[Columns]:
        """Return the keys of the left side, because a row has at most one partner; see `Collection.unique_by`."""
        return self.inputs[0].unique_by()

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return the wanted left rows and their partners; see `Collection.find_contributing_rows`."""
        left = alike.select_matches(given[0], wanted, self.inputs[0].schema.names)
        running = RunningAsof(self, OperatorContext(alike.secret, self.time_type, frozenset()))
        partners = np.unique(running.pair_rows([_to_updates(each) for each in (left, given[1])]).right)
        return [left, given[1].take(pa.array(partners[partners >= 0]))]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningAsof(self, context)


def _check_moments(one: pa.Field, other: pa.Field) -> None:
    """Raise `SpecError` unless the values of two columns sort like the words of the columns."""
    kinds = [find_order_type(normalize_type(each.type)) for each in (one, other)]
    for field, kind in zip((one, other), kinds, strict=True):
        count_order_words(kind, field.name)
        if not has_exact_words(kind):
            found = f"{field.name!r} is {field.type}, whose values are not times or numbers"
            raise SpecError("asof", found, "compare times or numbers")
    same = kinds[0] == kinds[1] or all(map(pat.is_floating, kinds))
    if not same:
        found = f"{one.name!r} is {one.type} and {other.name!r} is {other.type}, which do not compare without loss"
        raise SpecError("asof", found, "cast one of them")


def _to_updates(rows: pa.Table) -> Updates:
    """Convert rows with the column ``_diff`` to updates at one time."""
    return as_updates(rows.drop_columns([DIFF]))._replace(diffs=rows.column(DIFF).to_numpy())


class NearestPairs(NamedTuple):
    """The n changes of pairs, sorted by time, with retractions first within a time."""

    left: Ints
    right: Ints
    """int64[n]: references to the rows. The reference -1 means that a left row has no partner."""
    ranks: Narrow
    diffs: Ints
    pools: list[RowPool]
    """The pools of both sides, into which the references point."""


class RunningAsof(RunningOperator):
    """A running asof without state. ``sides``: the opened inputs."""

    def __init__(self, node: Asof, context: OperatorContext) -> None:
        self.node, self.sides, self.secret = node, context.inputs, context.secret
        self.wanted = [field for field in node.schema if field.name in context.wanted]
        self.outer = node.how == "left"

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, None]:
        """See `RunningOperator.compute`. Raises `NegativeMultiplicity`.

        O(n log n) for n updates, n look-ups, and the left rows whose partner changes.
        """
        return self._join(inputs, self.wanted, self.sides), None

    def compute_output_rows(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """See `RunningOperator.compute_output_rows`."""
        return self._join(inputs, self.node.schema)

    def compute_initial_updates(self, inputs: Sequence[Updates]) -> Updates:
        """See `RunningOperator.compute_initial_updates`."""
        return self._join(inputs, self.wanted)

    def _join(self, inputs: Sequence[Updates], wanted: Iterable[pa.Field], sides: Sequence[Any] = ()) -> Updates:
        """Join the updates of both sides, and the rows of ``sides`` before the step, if given."""
        made, theirs = self.pair_rows(inputs, sides), dict(self.node.columns)
        fields, columns = list(wanted), dict[str, pa.Array]()
        own = [field for field in fields if field.name not in theirs]
        columns |= zip((each.name for each in own), gather_arrays(made.pools[0], made.left, own), strict=True)
        found = made.right >= 0
        place = None if found.all() else pa.array(np.cumsum(found) - 1, mask=~found)
        other = [field.with_name(theirs[field.name]).with_nullable(True) for field in fields if field.name in theirs]
        gathered = gather_arrays(made.pools[1], made.right[found], other)
        gathered = gathered if place is None else [column.take(place) for column in gathered]
        columns |= zip((field.name for field in fields if field.name in theirs), gathered, strict=True)
        rows = pa.Table.from_arrays([columns[field.name] for field in fields], schema=pa.schema(fields))
        return Updates(rows, made.ranks, made.diffs, inputs[0].times)

    def pair_rows(self, inputs: Sequence[Updates], sides: Sequence[Any] = ()) -> NearestPairs:
        """Pair the updates of both sides. ``sides``: the opened inputs with the rows before the step, if any."""
        if not sides:
            empty = OperatorContext(self.secret, self.node.time_type, frozenset())
            sides = [of.open(empty) for of in self.node.inputs]
        by = [side.group_updates(each, side.keys) for side, each in zip(sides, inputs, strict=True)]
        begins, high, low = match_updates(*by)
        steps = [
            StepUpdates(starts, each.high, each.low, to_identity_words(each.more), each.places, each.ranks, each.diffs)
            for starts, each in zip(begins, by, strict=True)
        ]
        stored = [side.find_groups(high, low) for side in sides]
        blank = np.zeros(high.size, np.uint8)
        for side, each, updates, starts in zip(sides, by, inputs, begins, strict=True):
            _mark_null_keys(blank, column_arrays(updates.rows, side.keys.names), each, starts)
        windows = AsofWindows.allocate(sum(each.diffs.size for each in by), *(each.slots.size for each in stored))
        nulls = np.full(count_order_words(sides[1].order_type, self.node.at[2]), ONES, np.uint64)
        asked = nulls, np.int64(sides[1].ways.tied), self.node.strict
        w = find_asof_windows(steps[0], stored[0], steps[1], stored[1], blank, *asked, windows)
        pools = [
            add_step_rows(side.output_arrangement.slots.pool, each) for side, each in zip(sides, inputs, strict=True)
        ]
        near, references = list[NearRows](), list[Ints]()
        cut = (windows.left, windows.lefts), (windows.right, windows.rights)
        for n, (first, ranges) in enumerate(cut):
            step, rows = steps[n]._replace(begins=first[: w + 1]), stored[n]._replace(ranges=ranges[:w])
            groups = StepGroups(step, rows, inputs[n].times.size)
            found = sides[n].list_rows(groups, pools[n])
            chosen, changes = groups.sort_changes(found)
            counts = found.counts[chosen]
            refuse_negative_counts(counts, by[n].places[chosen], inputs[n], self.node.verb)
            moments = sides[n].compute_moments(pools[n], found.references)
            told = changes, found.place[chosen], by[n].ranks[chosen], counts
            near.append(NearRows(found.ends, moments, found.held, *told))
            references.append(found.references)
        out = self._compute_updates(near)
        order = sort_retractions_first(out.rank, out.diff, inputs[0].times.size)
        left, right = references[0][out.left[order]], out.right[order]
        if references[1].size:
            right = np.where(right < 0, -1, references[1][right])
        return NearestPairs(left, right, out.rank[order], out.diff[order], pools)

    def _compute_updates(self, near: Sequence[NearRows]) -> AsofUpdates:
        """Compute the changes of pairs; see `compute_asof_updates`."""
        room = 4 * (near[0].places.size + near[1].places.size) + 64
        while True:
            out = AsofUpdates(np.empty(room, np.int32), *np.empty((3, room), np.int64))
            left, right = (each._replace(held=each.held.copy()) for each in near)
            n = compute_asof_updates(left, right, self.node.strict, self.outer, out)
            if n <= room:
                columns: Any = (column[:n] for column in out)
                return AsofUpdates(*columns)
            room = n


def _mark_null_keys(blank: Flags, keys: Sequence[pa.Array], by: GroupSortedUpdates, begins: Ints) -> None:
    """Mark the groups whose key has a null. ``keys``: the key columns of the updates of one side."""
    for column in keys:
        if column.null_count:
            null = unpack_validity(column)[by.places] == 0
            blank[np.repeat(np.arange(blank.size), np.diff(begins))[null]] = 1
