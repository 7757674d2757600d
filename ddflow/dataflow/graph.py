"""Open and connect the operators of a plan, and hold their state.

Guarantees: a step is computed completely before `Graph.apply_computed_step` applies the changes of the step. Applying
changes cannot fail. So if any operator fails in a step, every arrangement stays unchanged. Operators produce only the
columns that are read later.

>>> import pyarrow as pa
>>> from ddflow.plan.plan import Plan
>>> from ddflow.plan.inputs.spec import Upsert
>>> flow = Plan()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> _ = flow.output("cities", people.project(["city"]).count())
>>> Graph(flow, Secret(1, 2)).needed[people].names
['city']
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints, RowHasher, Secret
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.row_views import HeldRows, RowSlice
from ddflow.columns.schema import column_arrays, empty_table
from ddflow.columns.threads import ALONE, Threads
from ddflow.errors import CommandFix, ErrorText, Option, PlanChanged
from ddflow.operators.base import OperatorContext, ReadableNode, RunningOperator, as_updates
from ddflow.operators.inputs import open_input
from ddflow.operators.updates import Updates, compute_with_net_retry, consolidate, ints, narrow_ints
from ddflow.operators.upsert.events import Events, ExpiryChange, merge_events
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.plan import Plan
from ddflow.plan.watermarks import Horizons, find_forgetting_rules
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange

Keep = Callable[[Collection, Updates], Updates]
"""A function that gets a collection and some of its rows, and returns the rows to keep."""


Held = dict[Collection, tuple[Arrangement, ...]]
"""The arrangements of each collection."""
Names = dict[Collection, dict[str, str]]
"""For each collection, maps each column with a known value to the column of the last collection that has this value.

In this mapping, a collection comes after its inputs.
"""


class ReleasedEvents(NamedTuple):
    """The events of one input that one step processes."""

    total: int
    times: Ints
    """The distinct times of the events as int64, in ascending order."""
    pieces: Iterable[Events]
    """The events, split into pieces.

    The events of a piece have identities in one range, and the ranges ascend from piece to piece.
    """

    @classmethod
    def from_parts(cls, *parts: Events | None) -> Self:
        """Join all events into a single piece."""
        if len(parts) == 1:
            events = parts[0]
        else:
            events = merge_events([part for part in parts if part]) if parts else None
        if events is None or not events.times.size:
            return cls(0, ints(), ())
        times = events.times
        if times[0] == times[-1]:
            first = times[:1].copy()  # a copy, because the times may be in a mapped file
            return tuple.__new__(cls, (times.size, first, [events]))
        later = np.flatnonzero(times[1:] != times[:-1])
        return cls(times.size, np.concatenate([times[:1], times[1:][later]]), [events])


@dataclass
class ComputedStep:
    """A computed step that is not applied yet: its outputs and its changes of state."""

    since: int
    """The value that ``since`` will have after the step."""
    outputs: dict[str, pa.Table] = field(default_factory=dict)
    changes: dict[str, list[ArrangementChange]] = field(default_factory=dict)
    """For each input, the changes of its stored rows."""
    kept: dict[Collection, list[Any]] = field(default_factory=dict)
    """For each operator with state, the changes to pass to `RunningOperator.apply`."""
    counts: dict[str, Ints] = field(default_factory=dict)
    """For each input, an int64 array of length 8 with the number of events for each verdict."""
    expiry: dict[str, ExpiryChange] = field(default_factory=dict)
    """For each input whose keys expire, the changes to the times at which keys expire."""
    listed: dict[str, list[pa.Table]] = field(default_factory=dict)
    """For each input, its verdict rows, if they were requested."""

    @property
    def nbytes(self) -> int:
        """The memory in bytes that the changes will add to the state."""
        every = [change for changes in (*self.changes.values(), *self.kept.values()) for change in changes]
        return sum(change.nbytes for change in every)


class Graph:
    """The operators of an opened plan, and their state.

    ``plan``: the plan. ``secret``: the secret of identities. ``winners``: whether verdict rows will be requested.
    ``threads``: the threads that share the work. ``running``: the operators, by collection.
    """

    def __init__(self, plan: Plan, secret: Secret, winners: bool = True, threads: Threads = ALONE) -> None:
        self.plan, self.secret, self.winners = plan, secret, winners or bool(plan.side_outputs())
        self.inputs = {name: open_input(each.bound, secret, threads) for name, each in plan.inputs.items()}
        self.forgets = any(each.expiring is not None for each in self.inputs.values())
        """Whether any input has keys that expire."""
        self.needed, self.time_type = find_read_columns(plan), plan.time_type
        self.names: dict[Collection, str] = {each: name for name, each in plan.inputs.items()}
        self.running: dict[Collection, RunningOperator] = {}
        self.opened: dict[Collection, ReadableNode] = {each: self.inputs[each.name] for each in plan.inputs.values()}
        """The opened input or operator of each collection."""
        for node in plan.nodes:
            if node in self.needed and node.inputs:
                wanted, inputs = frozenset(self.needed[node].names), tuple(self.opened[of] for of in node.inputs)
                self.running[node] = node.open(OperatorContext(secret, self.time_type, wanted, threads, inputs))
                self.opened[node] = self.running[node]
        self.keeping = {node: each for node, each in self.running.items() if node.keeps}
        """The operators that hold state."""
        marks = {name: mark for name, each in plan.inputs.items() if (mark := each.bound.watermark) is not None}
        self.horizons, self.rules = Horizons(marks), find_forgetting_rules(plan)
        """The horizons of the inputs with a watermark, and the rules by which collections forget rows."""
        self.nodes = [node for node in plan.nodes if node in self.needed]
        """The collections that a step computes. Each collection comes after its inputs."""
        self.exchange = {node for node in self.nodes if _needs_exchange(node)}
        """The collections whose operators need all pieces of a step together."""
        self.whole = {each for node in self.exchange for each in node.inputs} | set(plan.outputs.values())
        """The collections whose pieces are collected until all pieces have been computed."""
        self.exchanged = {node: node.exchange() for node in self.exchange}
        """For each collection in `exchange`, the columns from its `exchange()`.

        Rows with equal values in these columns must be in one piece.
        """
        self.followers = {node: self._list_followers(node) for node in self.nodes}
        """For each collection, the collections that are computed piece by piece from its pieces, directly or not.

        Each collection comes after its inputs.
        """
        self.nothing = {node: HeldRows([pa.nulls(0, f.type) for f in each], each) for node, each in self.needed.items()}
        """For each collection, no rows."""
        self.spent: dict[Collection, int] = {}
        """For each collection, the nanoseconds spent on computing the collection and its outputs."""
        self.shown = {node: node.updates_schema(self.time_type) for node in plan.outputs.values()}
        """The schema of each output table."""
        self._readers: list[Graph] = []
        """Idle graphs of the same plan.

        Each reader needs its own graph, because a graph's scratch memory is for one thread.
        """
        self.lookups: dict[tuple[str, ...], RowLookup] = {}
        """Each `RowLookup` that was used, by the name of its collection and the names of its columns."""

    def _list_followers(self, node: Collection) -> list[Collection]:
        found = [node]
        for each in self.nodes:
            if each.inputs and each not in self.exchange and each.inputs[0] in found:
                found.append(each)
        return found[1:]

    def _name_stateful_nodes(self) -> dict[str, ReadableNode]:
        """Return the inputs and operators that hold state, as a mapping from readable names."""
        out: dict[str, ReadableNode] = {name: each for name, each in self.inputs.items() if each.bound.has_stored_rows}
        seen: dict[str, int] = {}
        for node, each in self.keeping.items():
            number = seen[node.verb] = seen.get(node.verb, -1) + 1
            out[f"{node.verb} {number} by {list(node.exchange()[0] or ())}"] = each
        return out

    @property
    def arrangements(self) -> dict[str, Arrangement]:
        """All arrangements, as a mapping from readable names."""
        return {name: arranged for name, each in self._name_stateful_nodes().items() for arranged in each.arrangements}

    @property
    def nbytes(self) -> int:
        """The memory in bytes that the state takes."""
        return sum(each.nbytes for each in self.opened.values())

    def add_expiry_deletes(
        self, released: Mapping[str, ReleasedEvents], time: int, most: int | None
    ) -> dict[str, ReleasedEvents]:
        """Add a delete event to the released events for each key that expires at ``time``.

        ``most``: the greatest number of events in a piece; None without a limit. O(events of the inputs whose keys
        expire).
        """
        out = dict(released)
        for name, input in self.inputs.items():
            due = input.expiring.find_due_keys() if input.expiring is not None else (NONE, NONE)
            if input.expiring is None or not due[0].size:
                continue
            given = out.get(name, ReleasedEvents.from_parts())
            total = given.total + due[0].size
            many = not isinstance(given.pieces, list | tuple) or (most is not None and total > most)
            pieces = input.expiring.add_deletions(given.pieces, due, time, (most or total) if many else None)
            out[name] = ReleasedEvents(total, np.union1d(given.times, [time]), pieces if many else list(pieces))
        return out

    def apply_computed_step(self, computed: ComputedStep, upper: int) -> None:
        """Apply a computed step to the state. Amortised O(versions written)."""
        for node, rule in self.rules.items():
            for arranged in self.opened[node].arrangements:
                if arranged.forgetting is None and rule.column in arranged.schema.names:
                    column = arranged.schema.field(rule.column)
                    arranged.forget_rows(column, partial(self.horizons.find_bound, rule))
        for name, input in self.inputs.items():
            changes = computed.changes.get(name, ())
            if input.expiring is not None and name in computed.expiry:
                input.expiring.record_changes(changes, computed.expiry[name])
            input.arrangements[0].apply_changes(changes, upper, computed.since)
        for node, each in self.keeping.items():
            each.apply(computed.kept.get(node, ()), upper, computed.since)

    def has_due_updates(self, until: int) -> bool:
        """Tell whether a step without events that closes the time ``until`` would have updates.  O(runs log rows)."""
        timed = [each for node, each in self.keeping.items() if node.reads_clock]
        return any(each.has_due_updates(until) for each in timed)

    def rebuild_state(self, node: Collection, last: int, upper: int, since: int) -> None:
        """Rebuild the state of an operator from the rows of its inputs, because no file contains this state.

        O(rows of the inputs). ``last``: the last closed time. Raises the errors of operators if the rows of a new
        operator cannot be computed.
        """
        if lost := [name for name in self.list_stateless_inputs(*node.inputs) if not self.inputs[name].unfed]:
            raise self.make_missing_state_error(f"{node.verb}({', '.join(node.schema.names)})", lost)
        # If a state has rows, its inputs must have had events.
        some = Updates(pa.table({}), narrow_ints(0), ints(1), ints(last))
        inputs = [some if node.of_events else self.accumulate_rows(of)._replace(times=ints(last)) for of in node.inputs]
        running = self.running[node]
        change = compute_with_net_retry(partial(running.compute_initial_change, since=since), inputs, self.secret)
        running.apply([] if change is None else [change], upper, since)

    def list_stateless_inputs(self, *nodes: Collection) -> list[str]:
        """List the inputs that a read of the collections would need, but whose rows are not stored or forgotten.

        O(nodes).
        """
        seen = self._list_nodes_to_read(nodes)
        unkept = [
            name
            for name, each in self.inputs.items()
            if not each.bound.has_stored_rows and self.plan.inputs[name] in seen
        ]
        return list(dict.fromkeys([*unkept, *self.list_forgotten_inputs(seen)]))

    def list_forgotten_inputs(self, nodes: Iterable[Collection]) -> list[str]:
        """List the inputs below whose watermarks some of the collections have forgotten rows."""
        rules = [rule for node in nodes if (rule := self.rules.get(node)) and self.horizons.has_forgotten(rule)]
        return list(dict.fromkeys(term.mark.input for rule in rules for term in rule.terms))

    def read_new_outputs(self, names: Sequence[str], time: int) -> dict[str, pa.Table]:
        """Read all existing rows of new outputs, as output tables with the time ``time``. O(rows).

        Raises `PlanChanged`.
        """
        for name in names:
            if lost := [
                each for each in self.list_stateless_inputs(self.plan.outputs[name]) if not self.inputs[each].unfed
            ]:
                raise self.make_missing_state_error(f"output {name!r}", lost)
        return {name: self.read_output(self.plan.outputs[name], time) for name in names}

    def _list_nodes_to_read(self, nodes: Iterable[Collection]) -> list[Collection]:
        """List the collections that must be computed or taken from state in order to read ``nodes``.

        Each collection comes after its inputs.
        """
        found = walk_inputs(nodes, lambda node: () if self.opened[node].is_read_from_state else node.inputs)
        return [node for node in self.plan.nodes if node in found]

    def explain_missing_rows(self, lost: Sequence[str]) -> tuple[str, ErrorText]:
        """Describe for an error why the rows of the inputs ``lost`` are missing, and what to do to keep them."""
        if {*lost} & {*self.list_forgotten_inputs(self.rules)}:
            return "forgotten below the watermark", ErrorText("omit ", Option("watermark"))
        return "not kept", ErrorText("pass ", Option("keep", True), " to flow.updates")

    def make_missing_state_error(self, what: str, lost: Sequence[str]) -> PlanChanged:
        """Make the error for a new part of the plan that needs rows of an input, although these rows are not held."""
        why, _ = self.explain_missing_rows(lost)
        kept = why == "not kept"
        option = ErrorText("with ", Option("keep", True)) if kept else ErrorText("without ", Option("watermark"))
        return PlanChanged(
            f"open a state with the new {what}",
            f"it is made of the inputs {list(lost)}, whose rows are {why}",
            ErrorText(
                *("create a new state from the log with ", CommandFix("migrate")),
                *("; ", option, " the rows are kept"),
            ),
        )

    def freeze_state(self) -> Held:
        """Return the current state of each collection, to pass to `open_read_graph`. O(runs).

        The caller must ensure that no step is running.
        """
        return {node: tuple(a.freeze() for a in each.arrangements) for node, each in self.opened.items()}

    @contextmanager
    def open_read_graph(self, held: Held) -> Iterator[Graph]:
        """Yield a graph that reads the frozen state ``held`` on any thread, while this graph computes steps."""
        try:
            graph = self._readers.pop()
        except IndexError:
            graph = Graph(self.plan, self.secret)
        try:
            for node, arrangements in held.items():
                graph.opened[node].arrangements = arrangements
            graph.horizons = self.horizons
            yield graph
        finally:
            for node in held:
                graph.opened[node].arrangements = ()
            self._readers.append(graph)

    def _compute_rows(self, node: Collection, done: Mapping[Collection, Updates], as_of: int | None) -> Updates:
        """Compute the rows of a stateless collection from the rows of its inputs."""
        read = partial(self.running[node].compute_output_rows, as_of=as_of)
        return compute_with_net_retry(read, [done[of] for of in node.inputs], self.secret)

    def read_collection(self, node: Collection, as_of: int | None) -> pa.Table:
        """Read the consolidated rows of a collection, with the column ``_diff``, as of a time.

        If ``as_of`` is None, read at the last time. O(rows of all inputs of the plan that the collection depends on).
        """
        return consolidate(self.accumulate_rows(node, as_of), self.secret).to_table(node.schema, None)

    def read_output(self, node: Collection, time: int, as_of: int | None = None) -> pa.Table:
        """Read all rows of an output as an output table whose rows have the time ``time``. O(rows).

        ``as_of``: the time to read; by default the last time.
        """
        made = self.accumulate_rows(node, as_of)._replace(times=ints(time))
        return self.opened[node].to_output_table(made, self.secret, node.schema, self.time_type)

    def accumulate_rows(self, node: Collection, as_of: int | None = None) -> Updates:
        """Return the rows of a collection as of a time (by default the last time), without consolidating them.

        O(rows of the inputs).
        """
        return self.accumulate_collections([node], as_of)[node]

    def accumulate_collections(
        self, nodes: Iterable[Collection], as_of: int | None = None, keep: Keep | None = None
    ) -> dict[Collection, Updates]:
        """Return the rows of ``nodes`` and of all collections they depend on, as of a time.

        O(rows of the inputs).

        ``keep``: the function that filters each piece of a collection's rows, so that memory never holds all rows.
        """
        done: dict[Collection, Updates] = {}
        keeps = keep or (lambda _, rows: rows)
        for each in self._list_nodes_to_read(nodes):
            if (own := self.opened[each]).is_read_from_state:
                done[each] = _concat_updates((keeps(each, piece) for piece in own.iterate_rows(as_of)), each.schema)
            else:
                done[each] = keeps(each, self._compute_rows(each, done, as_of))
        return done

    def _check_invariants(self) -> None:
        for arrangement in self.arrangements.values():
            arrangement._check_invariants()


class GroupLookup(NamedTuple):
    """The way to find a group in an arrangement by known values."""

    names: Sequence[str]
    """The columns of the group."""
    kinds: list[pa.DataType]
    wide: bool
    """Whether an identity can encode a null."""
    places: list[int]
    """The positions of the known values among the given values."""
    source: RowLookup | None = None
    """The look-up of the input row that has the values of the group. If None, the known values are these values."""


class RowLookup:
    """A look-up of the rows of a collection by one list of columns. ``graph``: the graph that has the state.

    ``names``: the columns. ``asked``: the text of the request, for errors. ``fields``: the fields of these columns.
    ``shown``: the names of all columns of the collection.
    ``is_possible``: whether the plan allows the look-up. If not, only a full read finds all rows.
    """

    def __init__(self, graph: Graph, node: Collection, names: Sequence[str], asked: str) -> None:
        self.graph, self.node, self.names, self.asked = graph, node, list(names), asked
        self.shown, self.fields = node.schema.names, [node.schema.field(name) for name in names]
        nodes = graph._list_nodes_to_read([node])
        kept = [each for each in nodes if graph.opened[each].is_read_from_state]
        told = trace_columns(nodes, {name: name for name in names}, kept)
        found = {each: self._find_way(each, told[each]) for each in kept}
        self.is_possible = None not in found.values()
        self._ways: dict[Collection, GroupLookup | None] = {each: found.get(each) for each in nodes}
        self._hasher = RowHasher(pa.schema([field.with_nullable(True) for field in self.fields]), graph.secret)
        every = {*range(len(self.names))}
        self._is_exact = all(way and way.source is None and {*way.places} == every for way in found.values())

    def _find_way(self, node: Collection, told: Mapping[str, str]) -> GroupLookup | None:
        """Find a way to look up a group of a collection. Return None if there is none.

        ``told``: the columns of the collection whose values are given, and the names of the given values.
        """
        keys = self.graph.opened[node].keys
        way = keys.names, [node.schema.field(name).type for name in keys.names], keys.wide
        if {*keys.names} <= told.keys():
            return GroupLookup(*way, [self.names.index(told[name]) for name in keys.names])
        if not node.is_selection() or self.graph.list_stateless_inputs(*node.inputs):
            return None
        (of,) = node.inputs
        columns = [name for name in of.schema.names if name in told]
        source = RowLookup(self.graph, of, columns, self.asked)
        if not source.is_possible or not any({*each} <= {*columns} for each in of.unique_by()):
            return None
        return GroupLookup(*way, [self.names.index(told[name]) for name in columns], source)

    def find_rows(self, given: Sequence[pa.Array], as_of: int | None) -> Updates:
        """Find the rows that have the values ``given``, one value for each column. The rows can be slices of batches.

        No step may be running. O(found rows) for the last closed time, O(runs log rows) for an earlier time.
        """
        graph, done = self.graph, dict[Collection, Updates]()
        held = {each: graph.opened[each].arrangements for each in self._ways}
        with graph.open_read_graph(held) as reader:
            for each, way in self._ways.items():
                if way is None:
                    done[each] = reader._compute_rows(each, done, as_of)
                else:
                    values = self._find_group_values(way, given, as_of)
                    found = () if values is None else reader.opened[each].find_group(values, as_of)
                    done[each] = _concat_updates(found, each.schema)
        return done[self.node] if self._is_exact else self._select_rows(done[self.node], given)

    def _select_rows(self, found: Updates, given: Sequence[pa.Array]) -> Updates:
        """Select the rows that have the values ``given``. O(rows)."""
        hashed, columns = self._hasher.compute_identities, column_arrays(found.rows, self.names)
        (high, low), own = hashed(columns, found.diffs.size), hashed(given, 1)
        return found.take(np.flatnonzero((high == own[0]) & (low == own[1])))

    def _find_group_values(self, way: GroupLookup, given: Sequence[pa.Array], as_of: int | None) -> Any:
        """Return the values of a group, with the types of its columns. Return None if no group has the given values."""
        values = [given[place] for place in way.places]
        if way.source is not None:
            rows = consolidate(way.source.find_rows(values, as_of), self.graph.secret)
            if not rows.diffs.size:
                return None
            return column_arrays(rows.rows, way.names)
        try:
            values = [
                each if each.type == kind else each.cast(kind) for each, kind in zip(values, way.kinds, strict=True)
            ]
        except pa.ArrowInvalid:
            return None
        return values if way.wide or not values[0].null_count else None


def _concat_updates(pieces: Iterable[Updates], schema: pa.Schema) -> Updates:
    """Combine several pieces into one piece with the columns of ``schema``. O(rows)."""
    every = list(pieces) or [as_updates(empty_table(schema))]
    if len(every) == 1:
        rows = every[0].rows
        keeps = isinstance(rows, RowSlice) or rows.schema.names == schema.names
        return every[0] if keeps else every[0]._replace(rows=rows.select(schema.names))
    rows = pa.concat_tables([piece.rows.select(schema.names) for piece in every])
    return as_updates(rows)._replace(diffs=np.concatenate([piece.diffs for piece in every]))


def select_matching_updates(updates: Updates, given: pa.Table, names: Mapping[str, str], alike: RowMatcher) -> Updates:
    """Select the updates that match the row ``given``. ``names``: maps columns of the updates to columns of ``given``.

    O(n).
    """
    return updates.take(np.flatnonzero(alike.mark_matches(updates.rows.select([*names]), given, names)))


def trace_columns(nodes: Sequence[Collection], asked: Mapping[str, str], kept: Container[Collection] = ()) -> Names:
    """For each collection, find the columns whose values are known because columns of the last collection are known.

    ``nodes``: the last collection and all collections that it depends on, each after its inputs. ``asked``: the known
    columns. ``kept``: the collections that are read, not computed. Only rows with these values are needed; see
    `Collection.find_pushdown_columns`. O(nodes * columns).
    """
    told: Names = {nodes[-1]: dict(asked)}
    for node in reversed(nodes):
        for at, of in enumerate(() if node in kept else node.inputs):
            here = node.find_pushdown_columns(at).items()
            mine = {column: told[node][name] for column, name in here if name in told[node]}
            told[of] = mine if of not in told else dict(told[of].items() & mine.items())
    return {node: told[node] for node in nodes}


def find_read_columns(plan: Plan) -> dict[Collection, pa.Schema]:
    """For each node, find the columns that outputs need, directly or through other nodes.

    A node keeps at least one column, because the column carries the number of rows.
    """
    read: dict[Collection, set[str]] = {node: set(node.schema.names) for node in plan.outputs.values()}
    for node in reversed(plan.nodes):
        if node in read:
            mine = read[node]
            if not mine:
                mine.add(node.schema.names[0])
            for each, names in zip(node.inputs, node.find_read_columns(mine), strict=True):
                read.setdefault(each, set()).update(names)
    return {node: pa.schema([f for f in node.schema if f.name in names]) for node, names in read.items()}


def _needs_exchange(node: Collection) -> bool:
    """Return whether a node has several inputs, or must get equal rows of all pieces together."""
    return len(node.inputs) > 1 or any(by is not None for by in node.exchange())
