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
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints, Narrow, RowHasher, Words, unpack_validity
from ddflow.columns.layout import Arena
from ddflow.columns.names import check_column_names, check_no_shared_columns
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.rows import Chosen, PairedRows, RowPool, Rows, RowView, row_values
from ddflow.columns.schema import column_arrays, to_array
from ddflow.columns.sorting import sort_by_identity
from ddflow.errors import CountOverflow
from ddflow.kernels.join import pair_updates
from ddflow.kernels.sort import order_by_rank
from ddflow.operators.base import Operator, OperatorContext, ReadableNode, RunningOperator, register_operator
from ddflow.operators.ordered_rows import add_step_rows, number_identities
from ddflow.operators.updates import Updates, compute_net_updates, ints, narrow_ints, sort_retractions_first
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs, rename_equal_column_sets
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.ordered_index import RowsByGroup

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


class SideUpdates(NamedTuple):
    """The updates of one side whose keys are not null.

    The fields are the group numbers of these updates, and their positions sorted by group.
    """

    updates: Updates
    number: Narrow
    begins: Ints
    """int64[g + 1]: where each group begins in ``places``."""
    places: Ints


class JoinedPairs(NamedTuple):
    """Joined pairs.

    A pair has a time rank, a left and a right reference, the product of both diffs, and a group number.
    """

    ranks: Narrow
    left: Ints
    right: Ints
    diffs: Ints
    groups: Narrow

    def take_pairs(self, places: Ints) -> "JoinedPairs":
        """Take the pairs at the positions ``places``."""
        columns: Any = [each.take(places) for each in self]
        return JoinedPairs(*columns)

    @staticmethod
    def concat_pairs(every: "Sequence[JoinedPairs]") -> "JoinedPairs":
        """Concatenate pairs."""
        columns: Any = [np.concatenate(each) for each in zip(*every, strict=True)]
        return JoinedPairs(*columns)


class RunningJoin(RunningOperator):
    """A running join without state. ``sides``: the opened inputs."""

    def __init__(self, node: Join, context: OperatorContext) -> None:
        self.node, self.sides, self.secret, self.arena = node, context.inputs, context.secret, Arena()
        loose = [
            [of.schema.field(name).with_nullable(True) for name in by or ()]
            for of, by in self._list_inputs_with_keys(node)
        ]
        self.key_hashes = [RowHasher(pa.schema(fields), context.secret) for fields in loose]
        self.wanted = [column for column in node.columns if column[0] in context.wanted]

    @staticmethod
    def _list_inputs_with_keys(node: Join) -> list[tuple[Collection, Columns | None]]:
        return list(zip(node.inputs, node.exchange(), strict=True))

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, None]:
        """See `RunningOperator.compute`. O(n + pairs), and one look-up for each key. Raises `CountOverflow`."""
        pools = [
            add_step_rows(side.output_arrangement.slots.pool, each)
            for side, each in zip(self.sides, inputs, strict=True)
        ]
        (left, right), high, low = self._group_updates(inputs)
        held = [self._look_up_groups(self.sides[side], other, high, low) for side, other in ((0, right), (1, left))]
        every = [
            self._pair_updates(left, held[1].begins, held[1].references, held[1].values, narrow_ints()),
            self._swap_sides(
                self._pair_updates(right, held[0].begins, held[0].references, held[0].values, narrow_ints())
            ),
            self._pair_updates(left, right.begins, right.places, right.updates.diffs, right.updates.ranks),
        ]
        # Pairs can cancel only in a group that has updates on both sides.
        both = (np.diff(left.begins) > 0) & (np.diff(right.begins) > 0) if self.node.consolidated else None
        return self._build_updates(every, pools, inputs[0].times, self.wanted, both), None

    def compute_output_rows(
        self, inputs: Sequence[Updates], as_of: int | None, columns: Sequence[Chosen] | None = None
    ) -> Updates:
        """See `RunningOperator.compute_output_rows`. ``columns``: the columns to compute, by default all."""
        pools = [RowPool(each.rows.schema, [Rows(each.rows.select(each.rows.schema.names))]) for each in inputs]
        (left, right), _, _ = self._group_updates(inputs)
        made = self._pair_updates(left, right.begins, right.places, right.updates.diffs, right.updates.ranks)
        return self._build_updates([made], pools, inputs[0].times, self.node.columns if columns is None else columns)

    def compute_initial_updates(self, inputs: Sequence[Updates]) -> Updates:
        """See `RunningOperator.compute_initial_updates`."""
        return self.compute_output_rows(inputs, None, self.wanted)

    def _group_updates(self, inputs: Sequence[Updates]) -> tuple[list[SideUpdates], Words, Words]:
        """Group the updates of both sides.

        Return the grouped updates, and the ascending identity words of the groups.
        """
        words, some = [], []
        for keys, each in zip(self.key_hashes, inputs, strict=True):
            columns, n = column_arrays(each.rows, keys.names), each.diffs.size
            there = np.ones(n, bool)
            for column in columns if not self.node.nulls else ():
                there &= unpack_validity(column) != 0 if column.null_count else True
            some.append(np.flatnonzero(there))
            words.append([word.take(some[-1]) for word in keys.compute_identities(columns, n)])
        high, low = (np.concatenate(each) for each in zip(*words, strict=True))
        self.arena.reset()
        number, first = number_identities(high, low, self.arena)
        by = sort_by_identity(high.take(first), low.take(first), self.arena)
        place = np.empty(first.size, np.int32)
        place[by.permutation] = np.arange(first.size, dtype=np.int32)
        number = place.take(number)
        cut, made = some[0].size, []
        for each, rows, own in zip(inputs, some, (number[:cut], number[cut:]), strict=True):
            begins = np.concatenate([ints(0), np.cumsum(np.bincount(own, minlength=first.size))])
            places = np.empty(own.size, np.int64)
            order_by_rank(own, NONE.view(np.int64), np.int64(first.size), places)
            # Within a group, updates keep their order.
            ranks, diffs = each.ranks.take(rows).take(places), each.diffs.take(rows).take(places)
            updates = Updates(each.rows, ranks, diffs, each.times)
            made.append(SideUpdates(updates, own.take(places), begins, rows.take(places)))
        return made, by.high.copy(), by.low.copy()

    def _look_up_groups(self, side: ReadableNode, other: SideUpdates, high: Words, low: Words) -> RowsByGroup:
        """Look up the rows that a side had before the step, for the groups that the other side updates."""
        which = np.flatnonzero(np.diff(other.begins))
        found = side.look_up_groups(high.take(which), low.take(which))
        sizes = np.zeros(high.size + 1, np.int64)
        sizes[which + 1] = np.diff(found.begins)
        return found._replace(begins=np.cumsum(sizes))

    def _pair_updates(
        self, mine: SideUpdates, begins: Ints, references: Ints, times: Ints, theirs: Narrow
    ) -> JoinedPairs:
        """Pair the updates of a side with the other side's rows of the same group."""
        n = int(np.diff(begins).take(mine.number).sum())
        out = np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        given = mine.number, mine.updates.ranks, mine.updates.diffs, begins, references, times, theirs
        refused = pair_updates(*given, *out)
        if refused >= 0:
            row = row_values(mine.updates.rows, int(mine.places[refused]))
            found = f"the multiplicity of {row}, times that of its match, overflows int64"
            remedy = "find the input that multiplies diffs; nothing of this step was kept"
            raise CountOverflow("a join", found, remedy)
        return JoinedPairs(out[0], mine.places.take(out[1]), out[2], out[3], mine.number.take(out[1]))

    @staticmethod
    def _swap_sides(pairs: JoinedPairs) -> JoinedPairs:
        """Swap the left and the right references of pairs."""
        return pairs._replace(left=pairs.right, right=pairs.left)

    def _build_updates(
        self,
        every: Sequence[JoinedPairs],
        pools: Sequence[RowPool],
        times: Ints,
        columns: Sequence[Chosen],
        both: Any = None,
    ) -> Updates:
        """Combine all pairs into updates sorted by time, with retractions first within a time.

        ``both``: bool[groups], marks groups whose pairs can cancel. Pairs of the marked groups are consolidated.
        """
        pairs = JoinedPairs.concat_pairs(every)
        pairs = pairs.take_pairs(sort_retractions_first(pairs.ranks, pairs.diffs, times.size))
        if both is not None and (shared := both[pairs.groups]).any():
            some = pairs.take_pairs(np.flatnonzero(shared))
            ranks, kept, diffs = compute_net_updates(
                self._view_pairs_as_updates(some, pools, times, columns), self.secret
            )
            left = pairs.take_pairs(np.flatnonzero(~shared)), some.take_pairs(kept)._replace(ranks=ranks, diffs=diffs)
            pairs = JoinedPairs.concat_pairs(left)
            pairs = pairs.take_pairs(sort_retractions_first(pairs.ranks, pairs.diffs, times.size))
        return self._view_pairs_as_updates(pairs, pools, times, columns)

    def _view_pairs_as_updates(
        self, pairs: JoinedPairs, pools: Sequence[RowPool], times: Ints, columns: Sequence[Chosen]
    ) -> Updates:
        """Return the pairs as updates whose columns are gathered later."""
        sides = [
            RowView(pool, references, of.schema)
            for pool, references, of in zip(pools, (pairs.left, pairs.right), self.node.inputs, strict=True)
        ]
        return Updates(PairedRows(sides, columns), pairs.ranks, pairs.diffs, times)
