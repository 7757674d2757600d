"""Cut a plan into stages at each exchange, and build the operator graph of a stage.

Equal rows of an arrangement are always in the same partition. The stages depend only on the plan, so all tasks compute
the same stages.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": pa.int64(), "city": pa.string(), "paid": pa.bool_()}, dd.Upsert(key="id"))
>>> cities = flow.upserts("cities", {"city": pa.string(), "country": pa.string()}, dd.Upsert(key="city"))
>>> paid = flow.output("paid", orders.filter("paid"))
>>> by_city = flow.output("by_city", paid.count(by="city").join(cities, on="city"))
>>> print(cut_stages(flow))
stage 0: orders, cities, filter; paid; sums 0 by [city] of filter; sums 1 by [city] of cities
stage 1: sums 0 by [city] of filter; sums 1 by [city] of cities; looks into cities of stage 0; count, join; by_city
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Secret
from ddflow.columns.names import DIFF, TIME
from ddflow.columns.threads import ALONE, Threads
from ddflow.dataflow.buffer import UpdateBuffer
from ddflow.dataflow.graph import ComputedStep, Graph, ReleasedEvents, find_read_columns
from ddflow.dataflow.step import Observe, StepComputation
from ddflow.errors import ExpressionError, SpecError
from ddflow.operators.updates import Updates, compute_without_failing_rows, consolidate, ints, rerank_updates
from ddflow.plan.collection import Collection, Columns, find_paired_inputs, is_partitioned_by, walk_inputs
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import compute_node_ids

ALL: Final = pa.schema({"all": pa.bool_()})
"""The schema of a table for rows that are sent without any column of their collection.

A table needs at least one column, so this schema has a column ``all`` that is true in all rows.
"""


class Placement(NamedTuple):
    """How the rows of a collection are distributed over partitions.

    ``roots``: the inputs, or the operators with an exchange, that placed the rows last. ``by``: the columns that decide
    the partition of a row, or None if the rows no longer have these columns.
    """

    roots: tuple[Collection, ...]
    by: Columns | None


class Exchange(NamedTuple):
    """A shuffle of the rows of a collection. Rows with equal values in some columns go to the same partition.

    - ``number``: the index of the exchange among all exchanges.
    - ``stage``: the stage that receives the rows.
    - ``of``: the index of the collection among the flow's nodes.
    - ``by``: the columns whose values decide the partition of a row.
    - ``carried``: the columns ``by`` and the columns that the stage reads, in the collection's order. Empty for
      ``events``.
    - ``events``: whether the exchange carries one row with the time of each event of an input, instead of its rows.
    - ``tests``: the index of an operator, if the exchange carries the rows for which the operator failed. If the failed
      rows do not cancel each other, the step raises an error. ``tests`` is None if the exchange carries computed rows.
    """

    number: int
    stage: int
    of: int
    by: Columns
    carried: pa.Schema
    events: bool
    tests: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns that the shuffle sends: the carried columns, or `ALL` if there are none."""
        return self.carried if len(self.carried) else ALL


@dataclass(frozen=True)
class Stages:
    """The stages of a flow.

    - ``stages``: the number of stages.
    - ``exchanges``: the exchanges by number.
    - ``active``: for each stage, the indexes of the nodes that it computes, ascending.
    - ``outputs``: for each stage, the names of its outputs and side outputs.
    """

    flow: Plan
    stages: int
    exchanges: tuple[Exchange, ...]
    active: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[str, ...], ...]

    def find_stateful_nodes(self, stage: int) -> set[Collection]:
        """Return the stateful operators of a stage."""
        return {node for n in self.active[stage] if (node := self.flow.nodes[n]).keeps and node.inputs}

    def list_exchanges(self, stage: int) -> list[Exchange]:
        """Return the exchanges to which a stage may send rows."""
        active = self.active[stage]
        return [each for each in self.exchanges if each.stage > stage and each.of in active]

    def list_computed_row_exchanges(self, stage: int) -> list[Exchange]:
        """Return the exchanges to which a stage may send computed rows."""
        return [each for each in self.list_exchanges(stage) if each.tests is None]

    def find_failed_row_exchanges(self, stage: int) -> dict[Collection, Exchange]:
        """Return, by operator, the exchanges to which a stage may send the rows for which the operator failed."""
        return {self.flow.nodes[each.tests]: each for each in self.list_exchanges(stage) if each.tests is not None}

    def find_lookup_collections(self, stage: int) -> dict[int, list[Collection]]:
        """Return the collections that a stage looks up in the state of earlier stages, as a dict by earlier stage.

        O(nodes * stages).
        """
        active, out = self.active[stage], dict[int, list[Collection]]()
        at = {node: n for n, node in enumerate(self.flow.nodes)}
        looks = [node for node in map(self.flow.nodes.__getitem__, active) if node.looks]
        for of in dict.fromkeys(
            node.inputs[n] for node in looks for n in node.looks if at[node.inputs[n]] not in active
        ):
            out.setdefault(next(n for n, there in enumerate(self.active) if at[of] in there), []).append(of)
        return out

    def __str__(self) -> str:
        return "\n".join(self._describe_stage(stage) for stage in range(self.stages))

    def _describe_stage(self, stage: int) -> str:
        inputs: dict[Collection, str] = {input: name for name, input in self.flow.inputs.items()}
        names = {n: inputs.get(node, node.verb) for n, node in enumerate(self.flow.nodes)}
        at = {node: n for n, node in enumerate(self.flow.nodes)}

        def sums(each: Exchange) -> str:
            what = "events" if each.events else f"sums {each.number} by [{', '.join(each.by)}]"
            return f"{what} of {names[each.of]}"

        parts = [sums(each) for each in self.exchanges if each.stage == stage and each.tests is None]
        for earlier, nodes in sorted(self.find_lookup_collections(stage).items()):
            parts.append(f"looks into {', '.join(names[at[node]] for node in nodes)} of stage {earlier}")
        parts += [
            ", ".join(names[n] for n in self.active[stage]),
            *self.outputs[stage],
            *map(sums, self.list_computed_row_exchanges(stage)),
        ]
        return f"stage {stage}: {'; '.join(part for part in parts if part)}"


def cut_stages(flow: Plan, only: str | None = None) -> Stages:
    """Cut a flow into stages. O(nodes * exchanges). Pure.

    A flow needs an exchange if equal rows, or the rows of one group, may be in different partitions. A stage runs the
    operators between exchanges. ``only``: the name of an output; cut the flow as if this were its only output. Raises
    `SpecError` for a flow without inputs or outputs.
    """
    if not flow.inputs or not flow.outputs:
        raise SpecError(
            "run a flow on Spark",
            f"it has {len(flow.inputs)} inputs and {len(flow.outputs)} outputs",
            "declare at least one of each: flow.upserts(...), flow.output(...)",
        )
    if only is not None:
        outputs, flow = flow.outputs, flow.frozen()
        flow.outputs = {name: node for name, node in outputs.items() if name == only}
    return _StageCutter(flow).cut_flow()


def find_repartitioned_nodes(before: Plan, now: Plan) -> list[str]:
    """Find the inputs and operators whose rows a new plan puts into other partitions.

    Return the names of inputs and the verbs of operators. If the plan ``now`` has more columns than ``before``, its
    inputs or operators may identify rows by more columns. O(nodes).
    """
    ids, places = compute_node_ids(now), compute_placements(now)
    was = {name: node for node, name in compute_node_ids(before).items()}
    kept = [node for node in now.nodes if node.keeps and node.inputs and ids.get(node) in was]
    moved = [node for node in kept if places[node].by == node.exchange()[0] != was[ids[node]].exchange()[0]]
    inputs = [(each, before.inputs[name]) for name, each in now.inputs.items() if name in before.inputs]
    apart = [now.name for now, was in inputs if now.bound.key_schema.names != was.bound.key_schema.names]
    return [*apart, *(node.verb for node in moved)]


def build_single_stage(flow: Plan) -> Stages:
    """Return a flow as a single stage, for a state with one partition.  O(nodes)."""
    needed = walk_inputs([*flow.inputs.values(), *flow.outputs.values()])
    active = tuple(n for n, node in enumerate(flow.nodes) if node in needed)
    return Stages(flow, 1, (), (active,), ((*flow.side_outputs(), *flow.outputs),))


def compute_placements(flow: Plan) -> dict[Collection, Placement]:
    """Compute the placement of every collection. O(nodes)."""
    places: dict[Collection, Placement] = {}
    input_keys: dict[Collection, Sequence[str]] = {
        input: input.bound.key_schema.names for input in flow.inputs.values()
    }
    paired = find_paired_inputs(flow.outputs.values())
    for node in flow.nodes:
        inputs = [places[i] for i in node.inputs]
        if not inputs:
            places[node] = Placement((node,), tuple(input_keys[node]))
        elif (by := node.exchange()[0]) is not None:
            if len(inputs) > 1:
                places[node] = Placement((node,), node.map_input_columns(by))
            else:
                stands = is_partitioned_by(inputs[0].by, by, exactly=node in paired)
                places[node] = inputs[0] if stands else Placement((node,), by)
        elif len(inputs) == 1:
            places[node] = Placement(inputs[0].roots, node.map_input_columns(inputs[0].by))
        else:
            roots = tuple(dict.fromkeys(root for i in inputs for root in i.roots))
            same = len(roots) == 1 and len({i.by for i in inputs}) == 1
            places[node] = Placement(roots, inputs[0].by if same else None)
    return places


def warn_of_single_partitions(flow: Plan) -> None:
    """Warn of operators that need all rows in order, because one task then computes them.  O(nodes)."""
    for node in flow.nodes:
        if node.orders_partitions and node.exchange()[0] == () and node in walk_inputs(flow.outputs.values()):
            found = f"{node.verb}(...) without {'keys' if len(node.inputs) > 1 else 'partition_by='}"
            remedy = "add columns that divide the rows"
            warnings.warn(f"{found}: one Spark task computes all of its rows; {remedy}", stacklevel=5)


def find_partition_columns(node: Collection, place: Placement) -> Columns | None:
    """Return the columns that decide the partition of rows in an operator's state.

    Return None if the identities of the rows decide the partition.
    """
    by = place.by or ()
    return None if by == node.exchange()[0] and not (node.of_events or node.reads_clock) else by


class _StageCutter:
    """An object that finds the exchanges that outputs depend on, and the stages between the exchanges."""

    def __init__(self, flow: Plan) -> None:
        self.flow, self.places = flow, compute_placements(flow)
        self.at = {node: n for n, node in enumerate(flow.nodes)}
        self.exchanges: dict[tuple[Any, ...], Exchange] = {}
        self.stage: dict[Collection, int] = dict.fromkeys(flow.inputs.values(), 0)
        self.needed = walk_inputs([*flow.inputs.values(), *flow.outputs.values()])
        self.read: Mapping[Collection, pa.Schema] = find_read_columns(flow)

    def cut_flow(self) -> Stages:
        """Find all exchanges and return the stages."""
        outputs: list[tuple[int, str]] = [(0, name) for name in self.flow.side_outputs()]
        for node in self.flow.nodes:  # a collection comes after its inputs
            if node.inputs and node in self.needed and self.places[node].roots == (node,):
                self.stage[node] = self._add_input_exchanges(node)
        for name, node in self.flow.outputs.items():
            direct = node.consolidated or self.places[node].by is not None
            stage = self.stage[self.places[node].roots[0]] if direct else self._find_last_stage(node) + 1
            if not direct:
                self._add_exchange(node, tuple(node.schema.names), stage)
            outputs.append((stage, name))
        stages = 1 + max(stage for stage, _ in outputs)
        stages = max(stages, 1 + max((each.stage for each in self.exchanges.values()), default=0))
        active: list[set[int]] = [set() for _ in range(stages)]
        for node in self.flow.nodes:
            for root in self.places[node].roots if node in self.needed else ():
                active[self.stage[root]].add(self.at[node])
        self._add_failed_row_exchanges(active)
        given = tuple(tuple(name for at, name in outputs if at == stage) for stage in range(stages))
        return Stages(self.flow, stages, tuple(self.exchanges.values()), tuple(tuple(sorted(a)) for a in active), given)

    def _add_failed_row_exchanges(self, active: Sequence[Set[int]]) -> None:
        """Add exchanges for failed rows if equal rows may be in several partitions or stages."""
        last = len(active) - 1
        for node in self.flow.nodes:
            if not (node.fallible and node in self.read) or node.inputs[0].consolidated:
                continue
            of, at = node.inputs[0], self.at[node]
            roots, by = self.places[of]
            if (by is None or len(roots) > 1) and at not in active[last]:
                carried = self.read[of]
                made = Exchange(len(self.exchanges), last, self.at[of], tuple(carried.names), carried, False, at)
                self.exchanges["tests", at] = made

    def _find_last_stage(self, node: Collection) -> int:
        """Return the last stage that computes a collection."""
        return max(self.stage[root] for root in self.places[node].roots)

    def _add_input_exchanges(self, node: Collection) -> int:
        """Add the exchanges of a node's inputs, and return the stage of the node."""
        every = [by or () for by in node.exchange()]
        stands = [
            len(every) > 1 and not node.of_events and self.places[of].by == by
            for of, by in zip(node.inputs, every, strict=True)
        ]
        stage = max(self._find_last_stage(of) + (not there) for of, there in zip(node.inputs, stands, strict=True))
        assert all(stands[n] for n in node.looks), "a looked-up input is already in the partitions of the operator"
        read = node.find_read_columns(set(self.read[node].names))
        for of, by, columns in zip(node.inputs, every, read, strict=True):
            if self._find_last_stage(of) < stage:
                self._add_exchange(of, by, stage, columns, node.of_events)
        return stage

    def _add_exchange(
        self, of: Collection, by: Columns, stage: int, read: Set[str] = frozenset(), events: bool = False
    ) -> None:
        """Add an exchange by some columns.

        The exchange also carries the columns ``read``, which the receiving stage reads.
        """
        known = (of, by, stage, events)
        made = self.exchanges.setdefault(
            known, Exchange(len(self.exchanges), stage, self.at[of], by, pa.schema([]), events)
        )
        names = set[str]() if events else {*by, *read, *made.carried.names}
        self.exchanges[known] = made._replace(carried=pa.schema([each for each in of.schema if each.name in names]))


class StageGraph(Graph):
    """The operator graph of one stage.

    ``came``: the updates that this stage received, by number of the exchange. ``sent``: the updates that a step sends
    to later stages, by number of the exchange.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.partitions.stages import cut_stages
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert("id"))
    >>> _ = flow.output("by_city", people.count("city"))
    >>> graph = StageGraph(cut_stages(flow), 1, Secret(1, 2))
    >>> rows = pa.table({"city": ["Bern", "Bern"], "_time": [7, 7], "_diff": [2, 1]})
    >>> graph.came = {0: build_sum_updates(rows, graph.cut.exchanges[0].schema)}
    >>> StageComputation(graph, {}, 7, UpdateBuffer(None, 0)).run().outputs["by_city"].to_pylist()
    [{'city': 'Bern', 'count': 3, '_time': 7, '_diff': 1}]
    """

    def __init__(self, cut: Stages, stage: int, secret: Secret, threads: Threads = ALONE) -> None:
        super().__init__(cut.flow, secret, winners=False, threads=threads)
        self.cut, self.stage = cut, stage
        self.here = frozenset(cut.flow.nodes[n] for n in cut.active[stage])
        self.keeping = {node: each for node, each in self.keeping.items() if node in self.here}
        if stage:
            self.inputs = {}
        self.lent = cut.find_lookup_collections(stage)
        """The collections that this stage looks up in the state of earlier stages, by earlier stage."""
        self.came: dict[int, Updates] = {}
        self.sent: dict[int, pa.Table] = {}


class StageComputation(StepComputation):
    """One step of a stage. `run` puts the rows for later stages into the attribute ``sent`` of the stage's graph."""

    def __init__(
        self,
        graph: Graph,
        released: Mapping[str, ReleasedEvents],
        since: int,
        buffer: UpdateBuffer,
        observe: Observe | None = None,
    ) -> None:
        super().__init__(graph, released, since, buffer, observe)
        assert isinstance(graph, StageGraph)
        self.of = graph
        cut, nodes = graph.cut, graph.plan.nodes
        self.nodes = [node for node in self.nodes if node in graph.here]
        self.suspects: dict[Collection, list[Updates]] = {}
        """The rows for which an expression failed in this task, by operator."""
        self.arrived_suspects: dict[Collection, Updates] = {}
        """The rows for which an expression failed in any stage or partition, by operator."""
        self.came: dict[tuple[Collection, Columns, bool], Updates] = {}
        for number, each in graph.came.items():
            met = cut.exchanges[number]
            if met.tests is None:
                self.came[nodes[met.of], met.by, met.events] = each
            else:
                self.arrived_suspects[nodes[met.tests]] = each
        self.kept = self.kept | {
            nodes[each.of] for each in cut.list_computed_row_exchanges(graph.stage) if not each.events
        }
        self.tests = cut.find_failed_row_exchanges(graph.stage)
        if self.came:
            self.times = np.unique(np.concatenate([self.times, *(each.times for each in self.came.values())]))
            self.came = {known: rerank_updates(each, self.times) for known, each in self.came.items()}

    def run(self) -> ComputedStep:
        """Run the step. Equal rows for later stages are summed into one update.  O(events and updates)."""
        self._check_failed_rows()
        stepped = super().run()
        self._send_to_exchanges(self.of.cut.list_computed_row_exchanges(self.of.stage))
        return stepped

    def _list_more_times(self, updates: Updates) -> Updates:
        """See `StepComputation._list_more_times`.  Updates of other tasks also get new ranks."""
        made = super()._list_more_times(updates)
        self.came = {known: rerank_updates(each, self.times) for known, each in self.came.items()}
        return made

    def _check_failed_rows(self) -> None:
        """Check that the rows for which an expression failed cancel each other.

        If some of the failed rows remain, raise the error of the expression.
        """
        for node, suspects in self.arrived_suspects.items():
            left = consolidate(suspects, self.of.secret)
            if left.diffs.size:
                self.of.running[node].compute([left], self.since)
                found = "a function failed for a row, but not when it was called again"
                raise ExpressionError(f"compute {node.verb}", found, "make it depend on the row only")

    def _retry_on_net_updates(self, node: Collection, inputs: Sequence[Updates]) -> tuple[Updates, Any]:
        """Compute an operator on net updates.

        Rows that fail again are kept and sent, because rows of other tasks may cancel them.
        """
        if node not in self.tests:
            return super()._retry_on_net_updates(node, inputs)
        names = self.of.needed[node.inputs[0]].names
        net = consolidate(inputs[0]._replace(rows=inputs[0].rows.select(names)), self.of.secret)
        running, by = self.of.running[node], [name for name in names if name in node.fallible] or names
        made, failing = compute_without_failing_rows(
            lambda part: running.compute([part], self.since)[0], net, by, self.of.secret
        )
        if failing.size:
            self.suspects.setdefault(node, []).append(self.buffer.store_copy(net.take(failing)))
        return made, None

    def _send_to_exchanges(self, sums: Iterable[Exchange]) -> None:
        """Compute the tables to send. Each exchange of ``sums`` gets computed rows.

        Failed rows go to separate exchanges.
        """
        tests = [each for node, each in self.tests.items() if node in self.suspects]
        self.of.sent = {each.number: self._net_rows_for_exchange(each) for each in (*sums, *tests)}

    def list_outputs(self) -> Iterable[tuple[str, Collection]]:
        """Return the outputs of this stage."""
        here = self.of.cut.outputs[self.of.stage]
        return [(name, node) for name, node in self.of.plan.outputs.items() if name in here]

    def receive_updates(self, node: Collection, by: Sequence[str] | None) -> list[Updates]:
        """Return the updates of a collection, which come from an exchange or from this task itself."""
        came = self.came.get((node, tuple(node.schema.names if by is None else by), False))
        return super().receive_updates(node, by) if came is None else [came]

    def build_updates_at_time(self, node: Collection) -> Updates:
        """Return the times of an input's events.

        If the input belongs to another stage, the times were sent by other tasks.
        """
        came = self.came.get((node, (), True))
        return super().build_updates_at_time(node) if came is None else came

    def _net_rows_for_exchange(self, exchange: Exchange) -> pa.Table:
        """Sum the rows of an exchange, so that one update remains for each row and time."""
        node, schema = self.of.plan.nodes[exchange.of], exchange.schema
        pieces = []
        given = (
            self._list_updates(node) if exchange.tests is None else self.suspects[self.of.plan.nodes[exchange.tests]]
        )
        for piece in [self.build_updates_at_time(node)] if exchange.events else given:
            carried = [piece.rows.column(name) for name in exchange.carried.names]
            columns = carried or [pa.repeat(True, piece.diffs.size)]
            rows = pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
            made = consolidate(piece._replace(rows=rows), self.of.secret)
            pieces.append(self.buffer.store_copy(made) if self.many else made)
        return self.buffer.merge_to_table(pieces, schema, pa.int64())


def build_sum_updates(table: pa.Table, schema: pa.Schema) -> Updates:
    """Build updates, sorted by time, from the summed rows that this task received. O(n log n) for several times."""
    times, ranks = np.unique(table.column(TIME).to_numpy(), return_inverse=True)
    diffs: Ints = table.column(DIFF).to_numpy()
    rows = table.select(schema.names).cast(schema).combine_chunks()
    updates = Updates(rows, ranks.astype(np.int32), diffs, times if times.size else ints())
    return updates if times.size < 2 else updates.take(np.argsort(ranks, kind="stable"))
