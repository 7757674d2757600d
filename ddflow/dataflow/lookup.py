"""Look up the rows of a collection by the values of some columns. `RowLookup` prepares all that the plan determines.

>>> from ddflow.plan.plan import Plan
>>> from ddflow.plan.inputs.spec import Upsert
>>> from ddflow.columns.hashing import Secret
>>> flow = Plan()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> _ = flow.output("by_city", people.count("city"))
>>> graph = Graph(flow, Secret(1, 2))
>>> lookup = RowLookup(graph, flow.outputs["by_city"], ["city"], "get")
>>> lookup.is_possible, lookup.find_rows([pa.array(["Bern"])], None).diffs.size
(True, 0)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from ddflow.columns.row_match import RowMatcher
from ddflow.dataflow.graph import Graph, concat_updates, select_matching_updates, trace_columns
from ddflow.operators.updates import Updates
from ddflow.plan.collection import Collection


class GroupLookup(NamedTuple):
    """The way to find the known values of a group in an arrangement."""

    places: list[int]
    """For each column of the group, the position of its value among the given values."""
    kinds: list[pa.DataType]
    wide: bool
    """Whether an identity can encode a null."""


class RowLookup:
    """A look-up of the rows of a collection by one list of columns. ``graph``: the graph that has the state.

    ``names``: the columns. ``asked``: the text of the request, for errors. ``fields``: the fields of these columns.
    ``shown``: the names of all columns of the collection.
    ``is_possible``: whether the plan allows the look-up. If not, only a full read finds all rows.
    """

    def __init__(self, graph: Graph, node: Collection, names: Sequence[str], asked: str) -> None:
        self.graph, self.node, self.names, self.asked = graph, node, list(names), asked
        self.shown = node.schema.names
        self.fields = [node.schema.field(name) for name in names]
        nodes = graph.list_nodes_to_read([node])
        kept = [each for each in nodes if graph.opened[each].arrangements]
        told = trace_columns(nodes, {name: name for name in names}, kept)
        self.is_possible = all({*graph.opened[each].keys.names} <= told[each].keys() for each in kept)
        self._ways: dict[Collection, GroupLookup | None] = dict.fromkeys(nodes)
        if self.is_possible:
            self._ways |= {each: self._find_way(each, told[each]) for each in kept}
        ways = [way for way in self._ways.values() if way is not None]
        self._is_exact = all({*way.places} == {*range(len(self.names))} for way in ways)

    def _find_way(self, node: Collection, told: Mapping[str, str]) -> GroupLookup:
        keys = self.graph.opened[node].keys
        kinds = [node.schema.field(name).type for name in keys.names]
        return GroupLookup([self.names.index(told[name]) for name in keys.names], kinds, keys.wide)

    def find_rows(self, given: Sequence[pa.Array], as_of: int | None) -> Updates:
        """Find the rows that have the values ``given``, one value for each column. The rows can be slices of batches.

        No step may be running. O(found rows) for the last closed time, O(runs log rows) for an earlier time.
        """
        graph, done = self.graph, dict[Collection, Updates]()
        held = {each: graph.opened[each].arrangements for each, way in self._ways.items() if way is not None}
        with graph.open_read_graph(held) as reader:
            for each, way in self._ways.items():
                if way is None:
                    done[each] = reader.compute_rows(each, done, as_of)
                    continue
                values = _cast_values([given[place] for place in way.places], way.kinds)
                # An identity with a width of one word cannot encode a null.
                lost = values is None or (not way.wide and values[0].null_count)
                found = () if lost or values is None else reader.opened[each].find_group(values, as_of)
                done[each] = concat_updates(found, each.schema)
        if self._is_exact:
            return done[self.node]
        table = pa.Table.from_arrays(list(given), names=self.names)
        return select_matching_updates(
            done[self.node], table, {name: name for name in self.names}, RowMatcher(graph.secret)
        )


def _cast_values(values: Sequence[pa.Array], kinds: Sequence[pa.DataType]) -> list[pa.Array] | None:
    """Cast values to the types of their columns. Return None if a value does not fit its column."""
    try:
        return [each if each.type == kind else each.cast(kind) for each, kind in zip(values, kinds, strict=True)]
    except pa.ArrowInvalid:
        return None
