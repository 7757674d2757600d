"""What runs where: a flow cut into stages, each one pass over partitions, with shuffles between them.

Invariant: every collection's updates are the sum, over the stages that contribute, of what each makes of its own part;
and where an operator must see equal rows together (count, consolidate, an output), they have been brought into one
partition. Between two shuffles everything is linear, so a concat of two sources needs no stage of its own, each part
goes its own way; and rows that stand together by columns they still have need not move again, a count by the key for
one. What moves is summed first: one update a row and time leaves a partition.

A stage is data: it can be printed, compared, sent to executors.  Expressions travel as their SQL text and are compiled
again over there.  What it does not do: touch Spark (``driver``) or rows (``task``).

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": pa.int64(), "city": pa.string(), "paid": pa.bool_()}, dd.Upsert(key="id"))
>>> paid = flow.output("paid", orders.filter("paid"))
>>> by_city = flow.output("by_city", paid.count(by="city"))
>>> print(planned(flow))
stage 0: events of orders by [id], in order of arrival; filter(0, paid); output paid
stage 1: events of orders by [id], in order of arrival; filter(0, paid); project(1, [city]); sums of [city]
stage 2: sums of stage 1 by [city]; count(0, [city], count); output by_city
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from ddflow.errors import SpecError
from ddflow.expressions import Expression
from ddflow.operators.consolidate import Consolidate
from ddflow.operators.count import Count
from ddflow.operators.filter import Filter
from ddflow.operators.project import Project
from ddflow.operators.unnest import Unnest
from ddflow.partitions.stages import ALL, placed
from ddflow.plan import collection as plan
from ddflow.plan.collection import Columns
from ddflow.plan.merge.machine import Machine
from ddflow.plan.spec import Upsert
from spark_bridge.columns import loose


class Operator(NamedTuple):
    """One operator of a stage: its verb, what it reads (0: what the stage reads; n:
    the n-th operator), what it is told."""

    verb: str
    of: tuple[int, ...]
    told: dict[str, Any]

    def __str__(self) -> str:
        told: list[Any] = []
        for value in self.told.values():
            pairs = value.items() if isinstance(value, dict) else ()
            told.append(_listed(f"{n}: {v}" if n != v else n for n, v in pairs) if pairs else value)
        words = [str(n) for n in self.of] + [_listed(v) if isinstance(v, list) else str(v) for v in told]
        return f"{self.verb}({', '.join(words)})"


class Events(NamedTuple):
    """A stage reads the events of a source, all of one key in one partition."""

    source: str
    schema: pa.Schema
    spec: str
    """As JSON."""
    key: Columns
    arrival: bool
    """Whether their order of arrival can decide, and must be carried through the shuffle."""
    own: tuple[Upsert, Machine | None] | None = None
    """The spec itself and the machine, where they hold code of one's own, or a machine: sent by value."""

    def __str__(self) -> str:
        return f"events of {self.source} by {_listed(self.key)}" + (", in order of arrival" if self.arrival else "")


class Sums(NamedTuple):
    """A stage reads updates that others summed, all of equal rows in one partition."""

    stages: tuple[int, ...]
    schema: pa.Schema

    def __str__(self) -> str:
        stages = " and ".join(f"stage {n}" for n in self.stages)
        return f"sums of {stages} by {_listed(self.schema.names)}"


class Stage(NamedTuple):
    """One pass over partitions."""

    reads: Events | Sums
    operators: tuple[Operator, ...]
    gives: Literal["output", "side", "sums"]
    name: str
    """Of the output or side output."""
    schema: pa.Schema
    """Of the rows given, without ``_time`` and ``_diff``."""

    def __str__(self) -> str:
        given = f"sums of {_listed(self.schema.names)}" if self.gives == "sums" else f"{self.gives} {self.name}"
        return "; ".join(map(str, [self.reads, *self.operators, given]))


@dataclass(frozen=True)
class Plan:
    """``stages``: each reads only from those before it.  ``outputs``: which of them gives each.  ``time_type``: of
    ``_time`` in outputs."""

    stages: tuple[Stage, ...]
    outputs: dict[str, int]
    time_type: pa.DataType

    def __str__(self) -> str:
        return "\n".join(f"stage {n}: {stage}" for n, stage in enumerate(self.stages))


def planned(flow: plan.Plan) -> Plan:
    """Cut a flow into stages.  Pure; O(outputs * nodes).  Raises `SpecError` for a flow without sources or outputs."""
    if not flow.sources or not flow.outputs:
        raise SpecError(
            "run a flow on Spark",
            f"it has {len(flow.sources)} sources and {len(flow.outputs)} outputs",
            "give it at least one of each: flow.upserts(...), flow.output(...)",
        )
    cutter = _Cutter(flow)
    outputs = {name: cutter.output(name, node) for name, node in flow.outputs.items()}
    for name, (source, schema) in flow.side_outputs().items():
        outputs[name] = cutter.exit(source, source, "side", name, schema)
    return Plan(tuple(cutter.stages), outputs, flow.time_type)


def arrival_decides(spec: Upsert) -> bool:
    """Whether which row wins can depend on the order of arrival: not where equal orders are an error, nor where the
    greatest row wins and every column counts."""
    if spec.merges:
        return not spec.order_free
    return not (spec.tie == "error" or (spec.tie == "greatest" and spec.compares_all))


def _formula(column: str | Expression) -> Any:
    """What compiles to the same expression elsewhere: SQL as its text, anything else as the function that it is."""
    return column.text if isinstance(column, Expression) and column.text is not None else column


def _listed(names: Iterable[Any]) -> str:
    return f"[{', '.join(map(str, names))}]"


class _Cutter:
    """Makes stages, each once."""

    def __init__(self, flow: plan.Plan) -> None:
        self.places, self.order = placed(flow), {node: i for i, node in enumerate(flow.nodes)}
        self.stages: list[Stage] = []
        self.known: dict[tuple[Any, ...], int] = {}

    def output(self, name: str, node: plan.Collection) -> int:
        """The stage that gives an output: after one more shuffle where equal rows may be apart."""
        place = self.places[node]
        if node.consolidated or place.by is not None:
            return self.exit(place.roots[0], node, "output", name, node.schema)
        return self._add(Stage(Sums(self.sums(node, node.schema), node.schema), (), "output", name, node.schema))

    def sums(self, node: plan.Collection, schema: pa.Schema) -> tuple[int, ...]:
        """The stages that together give some columns of a collection, one for each root."""
        return tuple(self.exit(root, node, "sums", "", schema) for root in self.places[node].roots)

    def exit(
        self,
        root: plan.Collection,
        node: plan.Collection,
        gives: Literal["output", "side", "sums"],
        name: str,
        schema: pa.Schema,
    ) -> int:
        """The stage that starts at ``root`` and gives its part of ``node``."""
        known = (root, node, gives, name, schema is ALL, *schema.names)
        if known not in self.known:
            reads, operators = self._reads(root), self._operators(root, node)
            if gives == "sums" and (schema is ALL or schema.names != node.schema.names):
                columns = {n: "true" if schema is ALL else n for n in schema.names}
                operators += (Operator("project", (len(operators),), {"columns": columns}),)
            self.known[known] = self._add(Stage(reads, operators, gives, name, schema))
        return self.known[known]

    def _add(self, stage: Stage) -> int:
        reads = stage.reads._replace(schema=loose(stage.reads.schema))
        self.stages.append(stage._replace(reads=reads, schema=loose(stage.schema)))
        return len(self.stages) - 1

    def _reads(self, root: plan.Collection) -> Events | Sums:
        if isinstance(root, plan.Input):
            spec = root.spec
            merging = root.bound.merging
            machine = merging.machine.machine if merging is not None and merging.machine is not None else None
            code = machine is not None or (merging is not None and merging.function is not None)
            return Events(
                root.name,
                root.bound.schema,
                spec.to_json(),
                tuple(spec.key),
                arrival_decides(spec),
                (spec, machine) if code else None,
            )
        assert isinstance(root, Count | Consolidate), root
        of, by = root.inputs[0], root.exchange()[0] or ()
        schema = pa.schema([of.schema.field(c) for c in by]) if by else ALL
        return Sums(self.sums(of, schema), schema)

    def _operators(self, root: plan.Collection, node: plan.Collection) -> tuple[Operator, ...]:
        """What leads from ``root`` to ``node`` without a shuffle; parts of other roots are left out."""
        members, walk = {node}, [node]
        while walk:
            each = walk.pop()
            if each is not root:
                further = {i for i in each.inputs if root in self.places[i].roots} - members
                members |= further
                walk.extend(further)
        numbers: dict[plan.Collection, int] = {}
        operators: list[Operator] = []
        for member in sorted(members, key=self.order.__getitem__):
            if isinstance(member, plan.Input):
                numbers[member] = 0
                continue
            # A keyed root reads the sums of all that feeds it; everything else reads members.
            of = (0,) if member is root else tuple(numbers[i] for i in member.inputs if i in members)
            operators.append(_operator(member, of))
            numbers[member] = len(operators)
        return tuple(operators)


def _operator(node: plan.Collection, of: tuple[int, ...]) -> Operator:
    verb = node.verb
    if isinstance(node, Filter):
        return Operator(verb, of, {"predicate": _formula(node.predicate)})
    if isinstance(node, Project):
        columns = {f.name: _formula(c) for f, c in zip(node.schema, node.columns, strict=True)}
        return Operator(verb, of, {"columns": columns})
    if isinstance(node, Count):
        return Operator(verb, of, {"by": list(node.by), "name": node.name})
    return Operator(verb, of, {"column": node.column} if isinstance(node, Unnest) else {})
