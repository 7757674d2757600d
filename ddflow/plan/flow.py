"""The plan: sources of upserts, operators on their differences, named outputs.

Invariant: a collection is immutable and knows its schema; every mistake that can be seen without data is an error where
it is written down, naming the column. A flow runs nothing: ``open`` makes an engine of it, the Spark bridge stages,
the command line both. Whether a collection is already consolidated decides if an output must be, and that follows from
which columns still determine a row.

>>> import pyarrow as pa
>>> from ddflow.plan.spec import Upsert
>>> flow = Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> by_city = flow.output("by_city", people.project(["city"]).count())
>>> by_city.schema.names
['city', 'count']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ddflow.columns.names import column_names
from ddflow.columns.schema import check_names, did_you_mean, to_schema, updates_schema
from ddflow.errors import SpecError
from ddflow.plan.bind import Bound, bind
from ddflow.plan.options import EngineOptions, opened_with
from ddflow.plan.spec import Upsert

if TYPE_CHECKING:
    from ddflow.engine.engine import Engine
    from ddflow.expressions import Expression
    from ddflow.operators.back_node import Back
    from ddflow.operators.unnest import Unnest
    from ddflow.operators.upserting import Conflicts
    from ddflow.plan.merge.machine import Machine

Formula = Any
"""An SQL string, a ``pyarrow.compute.Expression``, or a function from a record batch to an array."""


class Collection:
    """A multiset of rows that changes over time: a source, or an operator's output.

    ``schema``: its rows' columns.  ``inputs``: what it is made of.  ``distinct``: whether its updates come
    consolidated.
    """

    def __init__(self, flow: Flow, schema: pa.Schema, inputs: Sequence[Collection], distinct: bool) -> None:
        self.flow, self.schema, self.distinct = flow, schema, distinct
        self.inputs = tuple(each.operand() for each in inputs)
        flow.nodes.append(self)

    def filter(self, predicate: Formula) -> Filter:
        """The rows for which ``predicate`` is true; null is not.  Raises `ExpressionError`."""
        return Filter(self, predicate)

    def project(self, columns: str | Sequence[str] | Mapping[str, Formula]) -> Project:
        """The rows mapped to other columns, multiplicity kept: names, or ``{name: expression}``.

        Raises `SpecError` for a missing column, `ExpressionError`.
        """
        return Project(self, columns)

    def count(self, by: str | Sequence[str] | None = None, name: str = "count") -> Count:
        """How many rows each group has.  ``by``: the group columns, by default all; ``[]`` counts all rows.

        A group at zero is not there.  Asked for twice it is one collection, with one arrangement.  Raises `SpecError`
        for a missing column or one that is called ``name``.
        """
        made = Count(self, by, name)
        for node in self.flow.nodes[:-1]:
            if isinstance(node, Count) and (node.inputs, node.by, node.name) == ((self,), made.by, name):
                self.flow.nodes.remove(made)
                return node
        return made

    def consolidate(self) -> Collection:
        """The same collection with the diffs of equal rows of a time added up and zeros dropped."""
        return self if self.distinct else Consolidate(self)

    def concat(self, *others: Collection) -> Concat:
        """The rows of this and the others, multiplicities added.  Raises `SpecError` where their columns differ."""
        return Concat([self, *others])

    def negate(self) -> Negate:
        """The same rows with multiplicities negated: ``a.concat(b.negate())`` is a without b."""
        return Negate(self)

    def unnest(self, column: str) -> Unnest:
        """A row for each element of a column of lists: it, or its fields, in the list's place.  Raises `SpecError`."""
        from ddflow.operators.unnest import Unnest

        return Unnest(self, column)

    def to_upserts(self, key: str | Sequence[str], on_conflict: Conflicts = "error") -> Back:
        """What `ddflow.ToUpserts` makes of its updates, for an output; nothing further can be made of it.

        Raises `SpecError` for a missing column, and what that raises for a type or a name that it cannot do with.
        """
        from ddflow.operators.back_node import Back

        return Back(self, key, on_conflict)

    def operand(self) -> Collection:
        """Itself: what an operator is applied to."""
        return self

    def updates_schema(self, time_type: pa.DataType) -> pa.Schema:
        """The columns of its table where it is an output."""
        return updates_schema(self.schema, time_type)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f.name} {f.type}' for f in self.schema)})"


class Source(Collection):
    """A source of upserts.  ``bound``: its spec joined with its schema."""

    def __init__(self, flow: Flow, bound: Bound) -> None:
        super().__init__(flow, bound.row_schema, (), True)
        self.bound = bound

    @property
    def name(self) -> str:
        """What inputs are given under."""
        return self.bound.name

    @property
    def spec(self) -> Upsert:
        """Who wins, what deletes, what changes."""
        return self.bound.spec


def _compiled(expression: Formula, schema: pa.Schema, what: str, boolean: bool = False) -> Expression:
    from ddflow.expressions import compile as compile_expression

    return compile_expression(expression, schema, boolean=boolean, what=what)


class Filter(Collection):
    """See `Collection.filter`.  ``predicate``: compiled."""

    def __init__(self, of: Collection, predicate: Formula) -> None:
        self.predicate = _compiled(predicate, of.schema, "filter", boolean=True)
        super().__init__(of.flow, of.schema, [of], of.distinct)


class Project(Collection):
    """See `Collection.project`.  ``columns``: a name or a compiled expression for each column of the schema."""

    def __init__(self, of: Collection, columns: str | Sequence[str] | Mapping[str, Formula]) -> None:
        self.columns: list[str | Expression] = []
        fields = []
        names = list(columns) if isinstance(columns, Mapping) else column_names(columns, "project", "columns")
        if not names:
            raise SpecError("project", "no column is named", "name at least one; count(by=[]) counts all rows")
        check_names(names, "project")
        named = columns if isinstance(columns, Mapping) else dict(zip(names, names, strict=True))
        for name, formula in named.items():
            if isinstance(formula, str) and formula in of.schema.names:
                self.columns.append(formula)
                fields.append(of.schema.field(formula).with_name(name))
            elif isinstance(columns, Mapping):
                expression = _compiled(formula, of.schema, f"column {name!r} of project")
                self.columns.append(expression)
                fields.append(pa.field(name, expression.type))
            else:
                raise SpecError("project", f"there is no column {name!r}", did_you_mean(name, of.schema.names))
        schema = pa.schema(fields)
        kept = {c for c in self.columns if isinstance(c, str)}
        super().__init__(of.flow, schema, [of], of.distinct and set(of.schema.names) <= kept)


class Count(Collection):
    """See `Collection.count`.  ``by``: the group columns."""

    def __init__(self, of: Collection, by: str | Sequence[str] | None, name: str) -> None:
        self.by = list(of.schema.names if by is None else column_names(by, "count", "by"))
        for column in self.by:
            if column not in of.schema.names:
                raise SpecError("count by", f"there is no column {column!r}", did_you_mean(column, of.schema.names))
        if name in self.by:
            raise SpecError("count", f"a group column is called {name!r} already", "choose another with name=")
        check_names([*self.by, name], "count")
        self.name = name
        self.groups = pa.schema([of.schema.field(c) for c in self.by])
        schema = pa.schema([*self.groups, pa.field(name, pa.int64(), nullable=False)])
        super().__init__(of.flow, schema, [of], True)


class Consolidate(Collection):
    """See `Collection.consolidate`."""

    def __init__(self, of: Collection) -> None:
        super().__init__(of.flow, of.schema, [of], True)


class Concat(Collection):
    """See `Collection.concat`."""

    def __init__(self, parts: Sequence[Collection]) -> None:
        first = parts[0]
        for part in parts[1:]:
            if not isinstance(part, Collection) or part.flow is not first.flow:
                raise SpecError("concat", f"{part!r:.99} is no collection or of another flow", "build both in one flow")
            if [(f.name, f.type) for f in part.schema] != [(f.name, f.type) for f in first.schema]:
                found = f"the columns differ: {first!r} and {part!r}"
                raise SpecError("concat", found, "project both to the same columns")
        fields = [f.with_nullable(any(p.schema.field(f.name).nullable for p in parts)) for f in first.schema]
        super().__init__(first.flow, pa.schema(fields), parts, False)


class Negate(Collection):
    """See `Collection.negate`."""

    def __init__(self, of: Collection) -> None:
        super().__init__(of.flow, of.schema, [of], of.distinct)


class Flow:
    """A plan under construction.  ``sources`` and ``outputs``: by name."""

    def __init__(self) -> None:
        self.nodes: list[Collection] = []
        self.sources: dict[str, Source] = {}
        self.outputs: dict[str, Collection] = {}

    def upserts(self, name: str, schema: Any, spec: Upsert) -> Source:
        """A source of upserts.  ``schema``: of its input, see `ddflow.columns.schema.to_schema`.

        Raises `SpecError` when spec and schema do not fit, when the name is taken, or when sources mix the modes.
        """
        return self._source(bind(name, to_schema(schema, f"the schema of {name!r}"), spec))

    def machine(self, name: str, schema: Any, spec: Upsert, machine: Machine) -> Collection:
        """What keys hold by a `ddflow.Machine` that events of a source drive: a row for each value, of key and state.

        ``spec``: which events count, in which order.  Raises as `upserts`, and `SpecError` for what a machine does not
        go by, naming it.
        """
        from ddflow.plan.merge.machines import VALUES, bind_machine

        source = self._source(bind_machine(name, to_schema(schema, f"the schema of {name!r}"), spec, machine))
        return source.unnest(VALUES) if machine.several else source

    def _source(self, bound: Bound) -> Source:
        name, spec = bound.name, bound.spec
        if name in self.sources or name in self.outputs:
            raise SpecError(f"source {name!r}", "that name is taken", "give every source a name of its own")
        for other in self.sources.values():
            self._agree(bound, other.bound)
        side = bound.side
        if side is not None:
            check_names(side[1].names, f"the output {side[0]!r} that stale={spec.stale!r} adds")
            if side[0] in self.outputs:
                raise SpecError(
                    f"source {name!r}",
                    f"stale={spec.stale!r} adds an output {side[0]!r}, which is taken",
                    "give that output another name",
                )
        self.sources[name] = Source(self, bound)
        return self.sources[name]

    def _agree(self, one: Bound, other: Bound) -> None:
        if one.spec.holds_back != other.spec.holds_back:
            held, free = (one, other) if one.spec.holds_back else (other, one)
            raise SpecError(
                "a flow of two sources",
                f"{held.name!r} is in hold-back mode (time={held.spec.time!r}) and {free.name!r} is not",
                "name time= in both specs, or in neither",
            )
        if one.time_type != other.time_type:
            raise SpecError(
                "a flow of two sources",
                f"the times of {one.name!r} are {one.time_type}, those of {other.name!r} {other.time_type}",
                "cast one to the other",
            )
        if (one.spec.lateness is None) != (other.spec.lateness is None):
            raise SpecError("a flow of two sources", "one has lateness=, one not", "give it to both or neither")

    def output(self, name: str, collection: Collection) -> Collection:
        """Name a collection's updates as an output; returns it.  Raises `SpecError` for a name that is taken."""
        if not isinstance(name, str) or not isinstance(collection, Collection):
            found = f"it is given {name!r:.99} and {collection!r:.99}"
            raise SpecError("flow.output", found, 'write flow.output("name", collection)')
        if collection.flow is not self:
            raise SpecError(f"output {name!r}", "the collection is of another flow", "build it in this one")
        taken = name in self.outputs or name in self.side_outputs()
        if taken or (name in self.sources and self.sources[name] is not collection):
            raise SpecError(f"output {name!r}", "that name is taken", "give every output a name of its own")
        self.outputs[name] = collection
        return collection

    @property
    def holds_back(self) -> bool:
        """Whether the flow is in hold-back mode (its sources name a time column)."""
        return any(source.spec.holds_back for source in self.sources.values())

    @property
    def time_type(self) -> pa.DataType:
        """The type of ``_time`` in outputs."""
        return next((s.bound.time_type for s in self.sources.values()), pa.int64())

    def side_outputs(self) -> dict[str, tuple[Source, pa.Schema]]:
        """The outputs that ``stale="mark"`` and ``"side"`` add, by name, with their rows' columns."""
        sides = ((source, source.bound.side) for source in self.sources.values())
        return {side[0]: (source, side[1]) for source, side in sides if side is not None}

    def frozen(self) -> Flow:
        """The plan as it is now: what is added to this flow later is not in it.  O(nodes)."""
        out = Flow()
        out.nodes, out.sources, out.outputs = list(self.nodes), dict(self.sources), dict(self.outputs)
        return out

    @opened_with(EngineOptions)
    def open(self, options: EngineOptions) -> Engine:
        """An engine that runs this plan; use it in a ``with``."""
        from ddflow.engine.engine import Engine

        return Engine(self, options)
