"""Join two collections on equal columns. The multiplicity of a pair is the product of the multiplicities of both rows.

Let L and R be the updates of the left and the right side in a step. Let L0 and R0 be the rows of both sides before the
step. The step emits L x R0 + L0 x R + L x R. The time of a pair is the later time of its two rows. The operator has no
state. Groups are looked up in the arrangements of the inputs, which stay unchanged until the whole step is computed.

The kernel makes pairs of row references. A column of the pairs is gathered only when it is first read. A null in a join
column has no match unless ``nulls`` is set. All other kinds of joins are built from the inner join
(`ddflow.plan.verbs.joins`).
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, RowHasher, Words, unpack_validity
from ddflow.columns.names import check_column_names, check_no_shared_columns
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.row_views import Chosen, PairedRows, RowView, pair_schemas
from ddflow.columns.rows import RowPool, Rows, row_values
from ddflow.columns.schema import column_arrays, to_array
from ddflow.columns.sorting import cut_groups
from ddflow.errors import CountOverflow
from ddflow.kernels.join import GroupRows, Pairs, count_pairs, match_groups, pair_rows, sort_pairs
from ddflow.operators.arranged import list_rows
from ddflow.operators.base import Operator, OperatorContext, ReadableNode, RunningOperator, register_operator
from ddflow.operators.updates import GroupSortedUpdates, Updates, add_step_rows
from ddflow.plan.collection import (
    Collection,
    Columns,
    WatermarkStep,
    refuse_forgetting_inputs,
    rename_equal_column_sets,
)
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.batch import RowsByGroup

NO_STORED_ROWS: Final = RowsByGroup(
    np.empty(0, np.int64), np.empty(0, np.int64), np.zeros(1, np.int64), np.empty((0, 2), np.int64)
)
JOINED: Final = 150
"""The approximate nanoseconds to look up, list and pair the rows of a group, for each update."""
MOST_KEYS: Final = 8
"""The maximum number of keys that a join derives from the keys of its two sides."""


@register_operator
class Join(Operator):
    """The operator of an inner join.

    ``on``: the pairs of join columns, left and right. ``columns``: the result columns. ``nulls``: whether null equals
    null. ``whole``: the sides whose columns are all in the result, including columns that are added to them later.

    Each side must be arranged by its join columns, in this order, or have at most one row for each key.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> orders = flow.upserts("orders", {"id": int, "customer": int}, dd.Upsert(key="id"))
    >>> customers = flow.upserts("customers", {"customer": int, "city": str}, dd.Upsert(key="customer"))
    >>> _ = flow.output("out", orders.join(customers, on="customer").project(["id", "city"]))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"orders": pa.table({"id": [1, 2], "customer": [7, 8]})}, time=1)
    ...     engine.step({"customers": pa.table({"customer": [7], "city": ["Bern"]})}, time=2)["out"].to_pylist()
    [{'id': 1, 'city': 'Bern', '_time': 2, '_diff': 1}]
    """

    verb, looks = "join", (0, 1)

    def __init__(
        self,
        left: Collection,
        right: Collection,
        on: Sequence[Sequence[str]],
        columns: Sequence[Sequence[Any]],
        whole: Sequence[int] = (),
        nulls: bool = False,
    ) -> None:
        self.on, self.nulls, self.whole = [(str(one), str(other)) for one, other in on], nulls, list(whole)
        self.columns, sides = normalize_columns(columns), (left, right)
        fields = [sides[side].schema.field(of).with_name(name) for name, side, of in self.columns]
        shown = [{of: name for name, at, of in self.columns if at == side} for side in (0, 1)]
        check_no_shared_columns([*shown[0].values()], [*shown[1].values()], right.schema.names, self.verb)
        check_column_names([name for name, _, _ in self.columns], self.verb)
        refuse_forgetting_inputs(self.verb, "the output would keep their pairs forever", left, right)
        met = [{pair[side] for pair in self.on if pair[1 - side] in shown[1 - side]} for side in (0, 1)]
        # Whether distinct pairs always give distinct output rows.
        whole_rows = all(of.told_by({*shown[at], *met[at]}) for at, of in enumerate(sides))
        super().__init__(left.flow, pa.schema(fields), sides, whole_rows and left.consolidated and right.consolidated)
        meeting = {frozenset([shown[0][a], shown[1][b]]) for a, b in self.on if a in shown[0] and b in shown[1]}
        self.equal = frozenset(meeting).union(
            *(rename_equal_column_sets(of.equal, shown[at]) for at, of in enumerate(sides))
        )
        self.unique, self.positive = False, all(each.positive for each in self.inputs)
        self.grows = any(self.inputs[side].grows for side in self.whole)

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the pairs of join columns, and the columns, as JSON."""
        columns = columns_to_json(self.columns, self.whole, self.inputs)
        return {"on": [list(each) for each in self.on], "columns": columns, "whole": self.whole, "nulls": self.nulls}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        left, right = inputs
        on, columns = record.read_list("on"), columns_from_json(record.read_list("columns"), inputs)
        return cls(left, right, on, columns, record.read_list("whole"), bool(record.given.get("nulls")))

    def rebuild_with_inputs(self, inputs: Sequence[Collection]) -> Collection:
        """See `Collection.rebuild_with_inputs`."""
        columns = columns_from_json(columns_to_json(self.columns, self.whole, self.inputs), inputs)
        return Join(inputs[0], inputs[1], self.on, columns, self.whole, self.nulls)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the other side and the join columns as text."""
        on = {str(one): str(other) for one, other in record.read_list("on")}
        return ", ".join([*inputs, f"on={on}"])

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return the wanted columns and the join columns of each side."""
        chosen = [{of for name, at, of in self.columns if at == side and name in wanted} for side in (0, 1)]
        return [each | {one[side] for one in self.on} for side, each in enumerate(chosen)]

    def exchange(self) -> list[Columns | None]:
        """Return the join columns of each side."""
        return [tuple(each[side] for each in self.on) for side in (0, 1)]

    def map_input_columns(self, by: Columns | None) -> Columns | None:
        """Return columns of the left side; see `Collection.map_input_columns`."""
        names = {of: name for name, side, of in reversed(self.columns) if side == 0}
        return tuple(names[c] for c in by) if by is not None and set(by) <= set(names) else None

    def find_pushdown_columns(self, at: int) -> dict[str, str]:
        """Return the columns of one side, and the other side's names for the join columns.

        See `Collection.find_pushdown_columns`.
        """
        mine, other = ({of: name for name, side, of in self.columns if side == each} for each in (at, 1 - at))
        return {pair[at]: other[pair[1 - at]] for pair in self.on if pair[1 - at] in other} | mine

    def map_watermark_columns(self, at: int) -> dict[str, tuple[str, WatermarkStep | None]]:
        """Return the join columns, because a row can match later; see `Collection.map_watermark_columns`."""
        return {name: (pair[at], None) for pair in self.on for name, side, of in self.columns if of == pair[side]}

    def unique_by(self) -> list[Columns]:
        """Return the keys of each side whose rows match at most one row, and all pairs of a left and a right key.

        See `Collection.unique_by`.
        """
        if self.proven is not None:
            return [self.proven]
        keys, shown = [of.unique_by() for of in self.inputs], [self.find_pushdown_columns(side) for side in (0, 1)]
        alone = [any({*key} <= {pair[side] for pair in self.on} for key in keys[side]) for side in (0, 1)]
        both = [[(side, column) for column in key] for side in (0, 1) for key in keys[side] if alone[1 - side]]
        both += [[*((0, each) for each in one), *((1, each) for each in other)] for one, other in product(*keys)]
        here = [[shown[side].get(column) for side, column in key] for key in both]
        found = dict.fromkeys(tuple(dict.fromkeys(map(str, key))) for key in here if None not in key)
        return list(found)[:MOST_KEYS]

    def find_never_null_columns(self) -> frozenset[str]:
        """Return the never-null columns of each side; see `Collection.find_never_null_columns`."""
        return super().find_never_null_columns() | self._find_never_null_of_input(0) | self._find_never_null_of_input(1)

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return both rows of each wanted pair; see `Collection.find_contributing_rows`."""
        shown = [[column for column in self.columns if column[1] == side] for side in (0, 1)]
        met = alike.assign_row_numbers(*((given[side], [pair[side] for pair in self.on]) for side in (0, 1)))
        asked, sides = dict[str, Ints](), list[pa.Table]()
        for side, (name, its, there) in enumerate(zip("lr", given, met, strict=True)):
            names = [of for _, _, of in shown[side]], [here for here, _, _ in shown[side]]
            mine, asked[name] = alike.assign_row_numbers((its, names[0]), (wanted, names[1]))
            meets = np.ones(its.num_rows, bool)
            for each in () if self.nulls else self.on:
                meets &= np.asarray(its.column(each[side]).is_valid())
            columns = {name: mine, "met": there, f"{name} at": np.arange(its.num_rows)}
            sides.append(pa.table(columns).filter(pa.array(meets & np.isin(mine, asked[name]))))
        pairs = pa.table(asked).group_by(["l", "r"]).aggregate([])
        found = sides[0].join(pairs, "l", join_type="inner").join(sides[1], ["r", "met"], join_type="inner")
        places = (np.unique(np.asarray(to_array(found.column(f"{name} at")))) for name in "lr")
        return [its.take(pa.array(at)) for its, at in zip(given, places, strict=True)]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningJoin(self, context)


def normalize_columns(columns: Sequence[Sequence[Any]]) -> list[Chosen]:
    """Convert columns from JSON to tuples."""
    return [(str(name), int(side), str(of)) for name, side, of in columns]


def columns_to_json(columns: Sequence[Chosen], whole: Sequence[int], inputs: Sequence[Collection]) -> list[Any]:
    """Write the columns of a join as JSON.

    If the result has all columns of a side, the JSON lists the columns that are excluded. Therefore columns that are
    added to the side later do not change the JSON.
    """
    out: list[Any] = []
    left_out = {side: [*inputs[side].schema.names] for side in whole}
    for name, side, of in columns:
        if side not in left_out:
            out.append([name, side, of])
            continue
        if (item := {"side": side, "without": left_out[side]}) not in out:
            out.append(item)
        left_out[side].remove(of)
    none = set(whole) - {side for _, side, _ in columns}
    return out + [{"side": side, "without": left_out[side]} for side in sorted(none)]


def columns_from_json(written: Sequence[Any], inputs: Sequence[Collection]) -> list[Chosen]:
    """Parse the columns of a join from the JSON of `columns_to_json`."""
    out: list[Chosen] = []
    for each in written:
        if isinstance(each, Mapping):
            side, without = int(each["side"]), set(each["without"])
            out += [(name, side, name) for name in inputs[side].schema.names if name not in without]
        else:
            out += normalize_columns([each])
    return out


class RunningJoin(RunningOperator):
    """A running join without state. ``sides``: the opened inputs."""

    def __init__(self, node: Join, context: OperatorContext) -> None:
        self.node, self.sides, self.secret = node, context.inputs, context.secret
        loose = [
            [of.schema.field(name).with_nullable(True) for name in by or ()]
            for of, by in self._list_inputs_with_keys(node)
        ]
        self.key_hashes = [RowHasher(pa.schema(fields), context.secret, context.threads) for fields in loose]
        self.threads = context.threads
        self.wanted = [column for column in node.columns if column[0] in context.wanted]
        self.schema = pair_schemas([of.schema for of in node.inputs], self.wanted)

    @staticmethod
    def _list_inputs_with_keys(node: Join) -> list[tuple[Collection, Columns | None]]:
        return list(zip(node.inputs, node.exchange(), strict=True))

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, None]:
        """See `RunningOperator.compute`. O(n + pairs), and one look-up for each key. Raises `CountOverflow`."""
        pools = [
            add_step_rows(side.output_arrangement.slots.pool, each)
            for side, each in zip(self.sides, inputs, strict=True)
        ]
        sorted_updates = [
            side.group_updates(each, keys) for side, each, keys in zip(self.sides, inputs, self.key_hashes, strict=True)
        ]
        return self._join(inputs, sorted_updates, pools, self.wanted, self.sides), None

    def compute_output_rows(
        self, inputs: Sequence[Updates], as_of: int | None, columns: Sequence[Chosen] | None = None
    ) -> Updates:
        """See `RunningOperator.compute_output_rows`. ``columns``: the columns to compute, by default all."""
        pools = [RowPool(each.rows.schema, [Rows(each.rows.select(each.rows.schema.names))]) for each in inputs]
        loose = [pa.schema([field.with_nullable(True) for field in each.rows.schema]) for each in inputs]
        whole = [RowHasher(each, self.secret) for each in loose]
        sorted_updates = [
            GroupSortedUpdates.sort_updates(*each) for each in zip(inputs, self.key_hashes, whole, strict=True)
        ]
        return self._join(inputs, sorted_updates, pools, self.node.columns if columns is None else columns)

    def compute_initial_updates(self, inputs: Sequence[Updates]) -> Updates:
        """See `RunningOperator.compute_initial_updates`."""
        return self.compute_output_rows(inputs, None, self.wanted)

    def _join(
        self,
        inputs: Sequence[Updates],
        by: Sequence[GroupSortedUpdates],
        pools: Sequence[RowPool],
        columns: Sequence[Chosen],
        sides: Sequence[ReadableNode] = (),
    ) -> Updates:
        """Join the updates of both sides, and the rows of ``sides`` before the step.

        The result is sorted by time, with retractions first within a time. ``by``: the sorted updates.
        """
        if not self.node.nulls:
            by = list(map(_drop_null_keys, by, inputs, self.key_hashes))

        def pair_groups(*spans: tuple[int, int]) -> tuple[Pairs, Ints]:
            updates = [each.slice(*span) for each, span in zip(by, spans, strict=True)]
            return self._pair_rows(_list_rows(updates, sides), inputs)

        ranges = cut_groups([by[0].high, by[1].high], self.threads, JOINED)
        if len(ranges) == 1:
            parts = [self._pair_rows(_list_rows(by, sides), inputs)]
        else:
            parts = self.threads.run_in_parallel(pair_groups, ranges)
        counts, pairs = np.stack([each for _, each in parts]), _allocate_pairs(sum(part.rank.size for part, _ in parts))
        self.threads.run_in_parallel(sort_pairs, [(part, counts, i, pairs) for i, (part, _) in enumerate(parts)])
        left, right = self.node.inputs
        views = [RowView(pools[0], pairs.left, left.schema), RowView(pools[1], pairs.right, right.schema)]
        paired = PairedRows(views, columns, self.schema if columns is self.wanted else None)
        return Updates(paired, pairs.rank, pairs.diff, inputs[0].times)

    def _pair_rows(self, rows: Sequence[GroupRows], inputs: Sequence[Updates]) -> tuple[Pairs, Ints]:
        """Pair the rows of both sides, and count the pairs for `sort_pairs`.  Raises `CountOverflow`."""
        (left, right), scratch = rows, np.empty(max(rows[1].reference.size, 2), np.int64)
        found, counts = _allocate_pairs(count_pairs(left, right)), np.zeros(2 * inputs[0].times.size, np.int64)
        n = pair_rows(left, right, found, counts, scratch)
        if n < 0:
            side = 0 if left.changes[scratch[0] + 1] > left.changes[scratch[0]] else 1
            row = row_values(inputs[side].rows, int(rows[side].reference[scratch[side]]))
            what = f"the multiplicity of {row}, times that of its match, overflows int64"
            remedy = "find the input that multiplies diffs; nothing of this step was kept"
            raise CountOverflow("a join", what, remedy)
        columns: Any = [column[:n] for column in found]
        return Pairs(*columns), counts


def _list_rows(by: Sequence[GroupSortedUpdates], sides: Sequence[ReadableNode]) -> list[GroupRows]:
    """List the rows of the groups of ``by`` on both sides; look up the rows before the step if ``sides`` is given."""
    begins, high, low = match_updates(*by)
    rows = []
    for side, mine in enumerate(by):
        held = NO_STORED_ROWS._replace(begins=np.zeros(high.size + 1, np.int64))
        which = np.flatnonzero(np.diff(begins[1 - side]))
        if sides and which.size:
            found = sides[side].look_up_groups(high.take(which), low.take(which))
            sizes = np.zeros(high.size + 1, np.int64)
            sizes[which + 1] = np.diff(found.begins)
            held = found._replace(begins=np.cumsum(sizes))
        rows.append(list_rows(mine, begins[side], held))
    return rows


def _allocate_pairs(n: int) -> Pairs:
    return Pairs(np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64))


def match_updates(left: GroupSortedUpdates, right: GroupSortedUpdates) -> tuple[list[Ints], Words, Words]:
    """Match the groups of the updates of both sides.

    Return where each group begins in both lists, int64[g + 1] each, and the words of the groups, ascending.
    """
    n = left.high.size + right.high.size
    begins, others, first = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64), np.empty(n, np.int64)
    g = match_groups(left.high, left.low, right.high, right.low, begins, others, first)
    first = first[:g]
    high, low = np.concatenate((left.high, right.high)), np.concatenate((left.low, right.low))
    return [begins[: g + 1], others[: g + 1]], high.take(first), low.take(first)


def _drop_null_keys(by: GroupSortedUpdates, updates: Updates, keys: RowHasher) -> GroupSortedUpdates:
    """Drop the updates whose key has a null."""
    there = None
    for column in column_arrays(updates.rows, keys.names):
        if column.null_count:
            valid = unpack_validity(column) != 0
            there = valid if there is None else there & valid
    return by if there is None else by.take(np.flatnonzero(there.take(by.places)))
