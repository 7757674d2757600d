"""Turn rows into a type-2 history.

A row is valid from its order value until the order value of the next row of its key. The output depends only on the set
of rows, so a row that arrives late changes the validity of its neighbours. All rows with one key and order value form
one event. The greatest row of an event represents the event. A delete is less than any row.

The state holds every row by key and order, with a content word. The content word of a delete is 0. The content word of
a row that is not a delete is a hash of the columns that decide whether a version changes. Therefore neighbours are
compared by words of identities, without a read of columns. Only rows with equal key and order values are gathered and
compared by value.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Ints, RowHasher, Words, unpack_booleans
from ddflow.columns.names import TIMES, check_column_name, check_column_names, check_columns_exist, parse_column_names
from ddflow.columns.order_words import OrderColumn, count_order_words, has_exact_words
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.rows import RowPool, gather_arrays, gather_table
from ddflow.columns.schema import column_arrays, decode_array, to_array
from ddflow.connectors.formats.base import DELETED
from ddflow.errors import BadMessage, ErrorText, Option, SpecError
from ddflow.expressions import compile as compile_expression
from ddflow.kernels.versions import NONE, compute_version_updates, compute_versions, find_windows
from ddflow.operators.base import Operator, OperatorContext, RunningOperator, as_updates, register_operator
from ddflow.operators.ordered_groups import ALL, RunningOrderedGroups, StepGroups
from ddflow.operators.row_order import RowOrder, find_order_type, find_reordered_columns
from ddflow.operators.updates import (
    GroupSortedUpdates,
    Updates,
    add_step_rows,
    refuse_negative_counts,
    sort_retractions_first,
)
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.inputs.bind import find_tombstone_value
from ddflow.plan.inputs.spec import Tombstone
from ddflow.plan.text.formulas import JsonRecord, find_formula_objections, write_formula
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, RowsByGroup, to_identity_words
from ddflow.trace.differences import DifferenceArrangement


@register_operator
class AsVersions(Operator):
    """The operator of `Collection.versions`.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> prices = flow.updates("prices", {"id": int, "at": int, "price": int})
    >>> _ = flow.output("history", prices.versions("id", "at"))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"prices": {"id": [1, 1], "at": [10, 30], "price": [5, 7]}})
    ...     for row in engine.step({"prices": {"id": [1], "at": [20], "price": [6]}})["history"].to_pylist():
    ...         print(*row.values())
    1 10 5 10 30 2 -1
    1 10 5 10 20 2 1
    1 20 6 20 30 2 1
    """

    verb, keeps = "versions", True

    def __init__(
        self,
        of: Collection,
        key: str | Sequence[str],
        order_by: str | Sequence[str],
        delete: Any = None,
        ignore: str | Sequence[str] = (),
        valid_from: str = "valid_from",
        valid_to: str = "valid_to",
    ) -> None:
        asked, row = self.verb, of.schema
        self.key, self.ignore = parse_column_names(key, asked, "key"), parse_column_names(ignore, asked, "ignore")
        self.order_by = parse_column_names(order_by, asked, "order_by")
        if not self.order_by:
            raise SpecError(
                asked, ErrorText(Option("order_by"), " is empty"), "name the columns that order the versions of a key"
            )
        self.tombstone = delete if isinstance(delete, Tombstone) else None
        said = [("key", self.key), ("order_by", self.order_by), ("ignore", self.ignore)]
        said += [("delete", (self.tombstone.column,))] if self.tombstone is not None else []
        for option, names in said:
            check_columns_exist(names, row.names, asked, option)
        hidden = self.tombstone.column if self.tombstone is not None else None
        named = [*self.key, *self.order_by, *([] if hidden is None else [hidden])]
        if twice := [name for name in (*self.order_by, hidden) if name is not None and named.count(name) > 1]:
            raise SpecError(
                asked,
                ErrorText(
                    f"{twice[0]!r} is used twice, in ",
                    Option("key"),
                    ", ",
                    Option("order_by"),
                    " or ",
                    Option("delete"),
                ),
                "name another column",
            )
        for name in self.order_by:
            count_order_words(row.field(name).type, name)
            if name != self.order_by[-1] and not has_exact_words(row.field(name).type):
                found = ErrorText(
                    Option("order_by"), f" holds {name!r}, a {row.field(name).type}, before other columns"
                )
                raise SpecError(asked, found, "put a text or binary column last, or use it alone")
        self.placed = _check_versions_input(of, self, ends=delete is not None)
        refuse_forgetting_inputs(asked, "the state would keep these rows forever", of)
        given = delete if self.tombstone is None else _format_condition(self.tombstone, row)
        self.delete = None if given is None else compile_expression(given, row, boolean=True, what="delete of versions")
        self.names = check_column_name(valid_from, asked, "valid_from"), check_column_name(valid_to, asked, "valid_to")
        shown = [field for field in row if field.name != hidden]
        taken = [name for i, name in enumerate(self.names) if name in (*row.names, *self.names[:i])]
        if taken:
            raise SpecError(
                asked,
                f"a column {taken[0]!r} already exists",
                "choose other names with valid_from= and valid_to=",
                column=taken[0],
            )
        order = row.field(self.order_by[0])
        shown += [order.with_name(valid_from), order.with_name(valid_to).with_nullable(True)]
        check_column_names([*(field.name for field in shown), TIMES], asked)
        # Output rows can cancel if a column is hidden, or if there are several order columns and valid_to shows only
        # the first.
        super().__init__(of.flow, pa.schema(shown), [of], hidden is None and len(self.order_by) == 1)
        self.unique = self.positive = True
        self.equal = frozenset([frozenset([order.name, valid_from])])

    def unique_by(self) -> list[Columns]:
        """Return the key and order columns, which identify an output row; see `Collection.unique_by`."""
        more = self.order_by[1:]
        return [(*self.key, self.names[0], *more), (*self.key, *self.order_by)]

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write all options and, if there is one, the delete condition as JSON."""
        order = self.order_by[0] if len(self.order_by) == 1 else list(self.order_by)
        told: dict[str, Any] = {"key": list(self.key), "order_by": order, "ignore": list(self.ignore)}
        told |= dict(zip(("valid_from", "valid_to"), self.names, strict=True))
        if self.tombstone is not None:
            return told | {"tombstone": self.tombstone.column, "value": self.tombstone.value}
        if self.delete is None:
            return told
        given = self.delete.text or id(self.delete.given)
        return told | {"delete": given if formulas is None else formulas.describe_formula(self.delete)}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        delete: Any = record.read_record("delete").read_text("sql") if "delete" in record else None
        if "tombstone" in record:
            delete = Tombstone(record.read_text("tombstone"), record.given.get("value"))
        names = record.read_text("valid_from"), record.read_text("valid_to")
        return inputs[0].versions(
            record.read_texts("key"), _decode_order_columns(record), delete, record.read_texts("ignore"), *names
        )

    def rebuild_with_inputs(self, inputs: Sequence[Collection]) -> Collection:
        """See `Collection.rebuild_with_inputs`."""
        delete = self.tombstone or (None if self.delete is None else self.delete.given)
        return inputs[0].versions(self.key, self.order_by, delete, self.ignore, *self.names)

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that the wider types keep the order and the delete condition.

        See `Collection.find_widening_obstacles`.
        """
        rows = narrow.inputs[0].schema, self.inputs[0].schema
        for name, kind in find_reordered_columns(rows[1], rows[0]):
            if name not in self.key:
                yield f"versions(...) compares its column {name!r}, whose values sort differently as {kind}"
        if self.delete is not None:
            yield from find_formula_objections(self.delete, *rows)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render as text the options that differ from their defaults."""
        told = [str(record.read_texts("key")), repr(_decode_order_columns(record))]
        told += [f"delete={write_formula(record.read_record('delete'))}"] if "delete" in record else []
        if "tombstone" in record:
            told += [f"delete={Tombstone(record.read_text('tombstone'), record.given.get('value'))!r}"]
        told += [f"ignore={names}"] if (names := record.read_texts("ignore")) else []
        told += [f"{name}={to!r}" for name in ("valid_from", "valid_to") if (to := record.read_text(name)) != name]
        return ", ".join(told)

    def exchange(self) -> list[Columns | None]:
        """Return the key columns."""
        return [self.key]

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return the rows of the key that begin and end the version; see `Collection.find_contributing_rows`."""
        key, (begun, ended) = {name: name for name in self.key}, self.names
        orders = {name: name for name in self.order_by} | {self.order_by[0]: begun}, {self.order_by[0]: ended}
        found = [alike.mark_matches(given[0], wanted, key | order) for order in orders]
        return [given[0].take(pa.array(np.flatnonzero(found[0] | found[1])))]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningVersions(self, context)


def _decode_order_columns(record: JsonRecord) -> str | list[str]:
    """Read the order columns. A single column is written as text, and several columns as a list."""
    return (
        record.read_texts("order_by")
        if isinstance(record.given.get("order_by"), list)
        else record.read_text("order_by")
    )


def _check_versions_input(of: Collection, made: AsVersions, *, ends: bool) -> str | None:
    """Raise `SpecError` if the input has only one row for each key, or if rows that end a version lack order columns.

    ``ends``: whether ``delete=`` is set. Return the name of the input whose messages must have their log position, or
    None if there is no such input.
    """
    key, order, node = list(made.key), list(made.order_by), of
    while len(node.inputs) == 1:
        node = node.inputs[0]
    bound, name, own = node.bound, "", list[str]()
    history = f"key the input by {[*key, *order]}, or use flow.updates(...)"
    if bound is not None and (format := bound.format) is not None:
        name, own = bound.name, [each for each, _ in format.order]
        history = f"read its messages with flow.updates({name!r}, ..., key={key}, format={format!r}), and order "
        history += f"versions by {own}, with delete=dd.tombstone({DELETED!r})"
        lacking = [each for each in order if each in bound.message_target.columns.names and each not in bound.spec.key]
        if not node.unique and ends and lacking and of.schema == node.schema:
            found = f"an end row of {name!r} has its key and nulls, so {lacking} sorts it before all versions"
            raise SpecError("versions", found, f"order by {own}")
        if node.unique and {*order} & {*bound.spec.key} and (format.of_tables or format.of_rows):
            warnings.warn(
                f"versions of {name!r}: its key {list(bound.spec.key)} has the order {order}, and an update "
                "deletes the row that it names as the old one; unless that is the key of the table at the source, "
                f"{history}",
                stacklevel=5,
            )
    if single := [list(each) for each in of.unique_by() if {*each} <= {*key}]:
        found = f"the input holds one row of each {single[0]}, so there is no history of {key}"
        raise SpecError("versions", found, history)
    return name if not node.unique and order[0] in own else None


def _format_condition(tombstone: Tombstone, row: pa.Schema) -> str:
    """Format the condition of a tombstone as SQL. Raises `SpecError`."""
    column, value = "`" + tombstone.column.replace("`", "``") + "`", tombstone.value
    if find_tombstone_value("versions", row, tombstone) is not None:
        if isinstance(value, str):
            value = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return f"{column} = {value}"
    return column if pa.types.is_boolean(row.field(tombstone.column).type) else f"{column} is not null"


class KeyRows(NamedTuple):
    """The n sorted rows of some keys, or of parts of keys. The rows of a part are adjacent."""

    references: Ints
    held: Ints
    """The multiplicities of the rows."""
    ends: Ints
    """int64[g + 1]: where each part begins."""
    event: Ints
    """int64[n]: the event number of each row, ascending."""
    content: Words
    """uint64[n]: the content word of each row, which is 0 for a delete."""


class RunningVersions(RunningOrderedGroups):
    """A running version history. State: the differences of all input rows, by key and order."""

    def __init__(self, node: AsVersions, context: OperatorContext) -> None:
        row, self.order_by, self.delete, self.names = node.inputs[0].schema, node.order_by, node.delete, node.names
        order, secret = [OrderColumn(name, False, True) for name in self.order_by], context.secret
        most = sum(count_order_words(find_order_type(row.field(name).type), name) for name in self.order_by)
        ways = RowOrder(row, node.key, order, secret, most)
        super().__init__(node.inputs[0], node.key, ways, node.verb, context.threads)
        self.arrangements = (DifferenceArrangement(row, self.output_arrangement.words + 1),)
        self.output_arrangement.set_threads(context.threads)
        left_out = {*node.key, *node.ignore, *self.order_by, *([node.tombstone.column] if node.tombstone else [])}
        loose = [field.with_nullable(True) for field in row if field.name not in left_out]
        self.counting = RowHasher(pa.schema(loose), secret)
        self.ties = RowOrder(row, [*node.key, *self.order_by], [], secret, most=0)
        self.exact = has_exact_words(find_order_type(row.field(self.order_by[-1]).type))
        self.whole_row = [field for field in node.schema if field.name not in self.names]
        self.wanted, self.placed, self.refuses = context.wanted, node.placed, ""

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`. Raises `NegativeMultiplicity`, `CountOverflow`, `BadMessage`.

        O(u runs log rows) for u updates, and O(r log r) for the r rows near these updates. The rows near an update
        range from the version before the update to the second version after it. For each time of a step, all rows
        between the changes at this time are read.
        """
        updates = inputs[0]
        if self.placed is not None and (none := column_arrays(updates.rows, self.order_by[:1])[0].null_count):
            found = f"{none:,} events have no log position and no offset, so they have no order"
            remedy = "pass messages with offsets, or order versions by a column of their rows; nothing was ingested"
            raise BadMessage(f"messages for {self.placed!r}", found, remedy)
        _, change = super().compute(inputs, since)
        return self._compute_updates(self.group_updates(updates, self.keys), updates), change

    def compute_row_words(self, rows: Any) -> Ints:
        """Compute the order words, the content word and, if needed, two words of the row."""
        names = self.counting.names
        content = self.counting.compute_value_hashes(column_arrays(rows, names), rows.num_rows) | np.uint64(1)
        if self.delete is not None:
            read = self.row.names if self.delete.columns is None else list(self.delete.columns) or self.row.names[:1]
            shown = pa.schema([self.row.field(name).with_nullable(True) for name in read])
            deletes = self.delete(pa.RecordBatch.from_arrays(column_arrays(rows, read), schema=shown))
            content[unpack_booleans(deletes) != 0] = 0
        words = super().compute_row_words(rows)
        return np.ascontiguousarray(np.insert(words, self.ways.tied, content.view(np.int64), axis=1))

    def _compute_group_output(self, arranged: Arrangement, found: RowsByGroup) -> Updates:
        """See `RunningOrderedGroups._compute_group_output`.

        Only the visible rows, and rows with the same order as another row, are gathered.
        """
        pool, tied = arranged.slots.pool, self.ways.tied
        _, first = found.mark_first_rows(tied)
        at, event = self._sort_events(pool, found.references, ~first, found.order[:, tied])
        content = to_identity_words(found.order[at, tied])
        rows = KeyRows(found.references[at], found.values[at], found.begins, event, content)
        until = np.empty(at.size, np.int64)
        compute_versions(rows.ends, rows.held, rows.event, rows.content, until)
        shown = np.flatnonzero(until != NONE)
        return as_updates(self._build_table(pool, rows, shown, until[shown], None))

    def _compute_updates(self, by: GroupSortedUpdates, updates: Updates) -> Updates:
        """Compute the updates of the output."""
        pool = add_step_rows(self.output_arrangement.slots.pool, updates)
        windows = self._find_windows(self._find_groups(by, updates))
        found = self._collect_rows(windows, ALL)
        at, event = self._sort_events(pool, found.references, found.ties != 0, found.content)
        found = found.sort_rows(at)
        chosen, begins = windows.sort_changes(found)
        refuse_negative_counts(found.counts[chosen], by.places[chosen], updates, AsVersions.verb)
        rows = KeyRows(found.references, found.held, found.ends, event, found.content)
        until, fresh = np.empty(at.size, np.int64), np.empty(at.size, np.int64)
        compute_versions(rows.ends, rows.held, rows.event, rows.content, until)
        told = begins, found.place[chosen], by.ranks[chosen], found.counts[chosen]
        room = 8 * chosen.size
        out: Any = [np.empty(room, np.int32), *(np.empty(room, np.int64) for _ in range(3))]
        n = compute_version_updates(rows.ends, rows.held, rows.event, rows.content, until, *told, fresh, *out)
        ranks, changed, ended, diffs = (each[:n] for each in out)
        sorting = sort_retractions_first(ranks, diffs, updates.times.size)
        shown = self._build_table(pool, rows, changed[sorting], ended[sorting], self.wanted)
        return Updates(shown, ranks[sorting], diffs[sorting], updates.times)

    def _find_windows(self, groups: StepGroups) -> StepGroups:
        """Divide the groups of a step into the ranges of rows that its updates can affect."""
        step, stored, times = groups
        begins = np.empty(step.diff.size + 1, np.int64)
        ranges = np.empty((step.diff.size, stored.ranges.shape[1]), np.int64)
        n = find_windows(step, stored, np.int64(self.ways.tied), np.int64(0), begins, ranges)
        return StepGroups(step._replace(begins=begins[: n + 1]), stored._replace(ranges=ranges[:n]), times)

    def _sort_events(self, pool: RowPool, references: Ints, ties: Any, content: Any) -> tuple[Ints, Ints]:
        """Sort rows, which are in the order of identities, by event. Return the permutation and the event numbers.

        ``ties``: bool[n], whether the order words of a row equal those of the row before.
        """
        at, begun = np.arange(references.size), ~ties
        number = np.cumsum(begun) - 1
        tied = np.flatnonzero(ties | np.append(ties[1:], np.zeros(min(ties.size, 1), bool)))
        if tied.size:
            schema = pa.schema([field.with_nullable(True) for field in self.row])
            table, classes = gather_table(pool, references[tied], schema), number[tied]
            if not self.exact:
                column = decode_array(to_array(table.column(self.order_by[-1])))
                rank = np.array(pc.rank(column, "ascending", tiebreaker="dense")).astype(np.int64)
                rank[np.asarray(column.is_null())] = 0
                classes = classes * np.int64(tied.size + 1) + rank
            live = content[tied] != 0
            sorting = self.ties.sort_rows(table, classes * 2 + live)
            at[tied] = tied[sorting]
            if not self.exact:
                classes = classes[sorting]
                begun[tied[1:]] |= classes[1:] != classes[:-1]
                number = np.cumsum(begun) - 1
        return at, number

    def _build_table(self, pool: RowPool, rows: KeyRows, at: Ints, until: Ints, wanted: Any) -> pa.Table:
        """Build a table of versions. ``wanted``: the columns of the table, or None for all."""
        fields = [field for field in self.whole_row if wanted is None or field.name in wanted]
        columns = gather_arrays(pool, rows.references[at], fields)
        order, ended = self.row.field(self.order_by[0]), until >= 0
        for name, references in zip(self.names, (at, np.where(ended, until, at)), strict=True):
            if wanted is None or name in wanted:
                (column,) = gather_arrays(pool, rows.references[references], [order])
                if name == self.names[1]:
                    column = pc.if_else(pa.array(ended), column, pa.scalar(None, order.type))
                    fields.append(order.with_name(name).with_nullable(True))
                else:
                    fields.append(order.with_name(name))
                columns.append(column)
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))
