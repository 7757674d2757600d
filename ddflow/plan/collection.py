"""The plan: inputs, operators on their differences, named outputs.

Invariant: a collection is immutable and knows its schema; every mistake that can be seen without data is an error where
it is written down, naming the column. A plan runs nothing: `ddflow.Flow.open` makes an engine of it, the Spark bridge
stages, the command line both. Which operators there are is not known here: `Collection` has a method for each verb,
and the registry has its class.

>>> import pyarrow as pa
>>> from ddflow.plan.spec import Upsert
>>> plan = Plan()
>>> people = plan.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> by_city = plan.output("by_city", people.project(["city"]).count())
>>> by_city.schema.names
['city', 'count']
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import pyarrow as pa

from ddflow.columns.names import check_names
from ddflow.columns.schema import to_schema, updates_schema
from ddflow.errors import SpecError
from ddflow.plan.bind import Bound, bind
from ddflow.plan.merge.bind_machine import bind_machine
from ddflow.plan.merge.machine import Machine
from ddflow.plan.merge.machines import VALUES
from ddflow.plan.record import Record
from ddflow.plan.registry import operator
from ddflow.plan.spec import Upsert

Formula = Any
"""An SQL string, a ``pyarrow.compute.Expression``, or a function from a record batch to an array."""
Columns = tuple[str, ...]


class Collection:
    """A multiset of rows that changes over time: an input, or an operator's output.

    ``schema``: its rows' columns.  ``inputs``: what it is made of.  ``consolidated``: whether its updates come
    consolidated.  ``unique``: whether each row is there once, whatever the inputs hold.
    """

    verb: ClassVar[str]
    """The method that makes one, its tag in JSON, and its word in messages."""
    keeps: ClassVar[bool] = False
    """Whether it holds a state between steps."""

    transparent: ClassVar[bool] = False
    """Whether it is the same collection as its input, and so has no id of its own."""

    def __init__(self, flow: Plan, schema: pa.Schema, inputs: Sequence[Collection], consolidated: bool) -> None:
        self.flow, self.schema, self.consolidated = flow, schema, consolidated
        self.inputs = tuple(each.operand() for each in inputs)
        self.unique: bool = self.keeps or (consolidated and all(each.unique for each in self.inputs))
        flow.nodes.append(self)

    def filter(self, predicate: Formula) -> Collection:
        """Keep the rows for which ``predicate`` is true.  Null is not true.

        Parameters
        ----------
        predicate : str, pyarrow.compute.Expression or callable
            SQL, a pyarrow expression, or a function from a record batch to an array of booleans.

        Raises
        ------
        ExpressionError
            If it does not parse, names a missing column, or is not boolean.
        """
        return self._then("filter", predicate)

    def project(self, columns: str | Sequence[str] | Mapping[str, Formula]) -> Collection:
        """Map the rows to other columns, given by names or as ``{name: formula}``.  Multiplicities stay.

        Raises `SpecError` for a missing column, `ExpressionError` for a formula that does not fit.
        """
        return self._then("project", columns)

    def count(self, by: str | Sequence[str] | None = None, name: str = "count") -> Collection:
        """Count the rows of each group.  A group at zero is not there.  Asked for twice, it is one collection, with one
        arrangement.

        Parameters
        ----------
        by : str or sequence of str, optional
            The group columns.  By default all; ``[]`` counts all rows.
        name : str
            The name of the count's column, an int64.

        Raises
        ------
        SpecError
            For a missing column, or one that is called ``name``.
        """
        return self._then("count", by, name)

    def distinct(self) -> Collection:
        """Each row of positive multiplicity, once.  Asked for twice, it is one collection, with one arrangement."""
        return self._then("distinct")

    def consolidate(self) -> Collection:
        """Add up the diffs of equal rows of a time, and drop zeros."""
        return self if self.consolidated else self._then("consolidate")

    def concat(self, *others: Collection) -> Collection:
        """The rows of this and the others, multiplicities added.  Raises `SpecError` where their columns differ."""
        return self._then("concat", *others)

    def negate(self) -> Collection:
        """The same rows with multiplicities negated: ``a.concat(b.negate())`` is a without b."""
        return self._then("negate")

    def unnest(self, column: str) -> Collection:
        """Make a row for each element of a column of lists: it, or its fields, in the list's place.  Raises
        `SpecError`.
        """
        return self._then("unnest", column)

    def to_upserts(
        self, key: str | Sequence[str], on_conflict: Literal["error", "greatest", "all"] = "error"
    ) -> Collection:
        """What `ddflow.ToUpserts` makes of its updates, for an output; nothing further can be made of it.

        Raises `SpecError` for a missing column, and what that raises for a type or a name that it cannot do with.
        """
        return self._then("to_upserts", key, on_conflict)

    def _then(self, verb: str, *told: Any) -> Collection:
        made: Collection = operator(verb)(self, *told)
        return self.flow.known(made)

    # What an operator says of itself; those with one input whose rows may stay where they are need say little.

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """What it was told, as JSON.  ``formulas``: writes expressions, see `ddflow.plan.formulas.Formulas.add`."""
        return {}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: Record) -> Collection:
        """The collection again.  Raises `CorruptState`, and what making it raises."""
        made: Collection = getattr(inputs[0], cls.verb)(*inputs[1:])
        return made

    @classmethod
    def text(cls, record: Record, inputs: Sequence[str]) -> str:
        """What stands in the brackets of its verb, of its JSON.  ``inputs``: texts of the second input and later."""
        return ", ".join(inputs)

    def same(self, other: Self) -> bool:
        """Whether another of its kind, on the same inputs, holds the same state."""
        return self.to_json(None) == other.to_json(None)

    def needs(self, wanted: set[str]) -> list[set[str]]:
        """The columns read of each input, where ``wanted`` of its own are."""
        return [set(each.schema.names) for each in self.inputs]

    def exchange(self) -> list[Columns | None]:
        """For each input the columns whose equal rows must meet; None where rows may stay where they are."""
        return [None] * len(self.inputs)

    def carried(self, by: Columns | None) -> Columns | None:
        """What columns of the input are called here; None where one is gone."""
        return by

    def check_partitions(self) -> None:
        """Raise `SpecError` where it cannot be cut by hash over partitions."""

    def open(self, context: Any) -> Any:
        """Its state, new, and its step: see ``ddflow.operators.base``."""
        raise NotImplementedError

    def operand(self) -> Collection:
        """Itself: what an operator is applied to."""
        return self

    def updates_schema(self, time_type: pa.DataType) -> pa.Schema:
        """The columns of its table where it is an output."""
        return updates_schema(self.schema, time_type)

    def before(self, added: Container[str], time_type: pa.DataType) -> pa.Schema:
        """The columns of that table as they were when its rows had not some of theirs."""
        return pa.schema([field for field in self.updates_schema(time_type) if field.name not in added])

    def since(self, table: pa.Table, time_type: pa.DataType) -> pa.Table:
        """A table of those columns with all there are now, which are null.  O(rows)."""
        return widened(table, self.updates_schema(time_type))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f.name} {f.type}' for f in self.schema)})"


def widened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with all columns of a schema, null where it has none.  O(1) a column that is there."""
    names = table.column_names
    columns = [table.column(f.name) if f.name in names else pa.nulls(table.num_rows, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


class Input(Collection):
    """What a plan reads from: upserts.  ``bound``: its spec joined with its schema."""

    verb, keeps = "input", True

    def __init__(self, flow: Plan, bound: Bound) -> None:
        super().__init__(flow, bound.row_schema, (), True)
        self.bound = bound

    @property
    def name(self) -> str:
        """What rows are given under."""
        return self.bound.name

    @property
    def spec(self) -> Upsert:
        """Who wins, what deletes, what changes."""
        return self.bound.spec

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Its name; its columns and its spec stand elsewhere, since they may change."""
        return {"name": self.name}


class Plan:
    """A plan under construction.  ``inputs`` and ``outputs``: by name."""

    def __init__(self) -> None:
        self.nodes: list[Collection] = []
        self.inputs: dict[str, Input] = {}
        self.outputs: dict[str, Collection] = {}

    def upserts(self, name: str, schema: Any, spec: Upsert) -> Input:
        """Add an input of upserts.

        Parameters
        ----------
        name : str
            What rows are given under.
        schema : pyarrow.Schema, mapping of str to pyarrow.DataType, or table
            The columns of its events.  Anything that has an Arrow schema will do.
        spec : Upsert
            How its events upsert.

        Raises
        ------
        SpecError
            If spec and schema do not fit, the name is taken, or inputs mix the modes.
        """
        return self._input(bind(name, to_schema(schema, f"the schema of {name!r}"), spec))

    def machine(self, name: str, schema: Any, spec: Upsert, machine: Machine) -> Collection:
        """What keys hold by a `ddflow.Machine` that events of an input drive: a row for each value, of key and state.

        ``spec``: which events count, in which order.  Raises as `upserts`, and `SpecError` for what a machine does not
        go by, naming it.
        """
        input = self._input(bind_machine(name, to_schema(schema, f"the schema of {name!r}"), spec, machine))
        return input.unnest(VALUES) if machine.several else input

    def known(self, made: Collection) -> Collection:
        """A collection that was just made, or the one there is already that keeps the same state.  O(nodes)."""
        for node in self.nodes[:-1] if made.keeps else ():
            if type(node) is type(made) and node.inputs == made.inputs and node.same(made):
                self.nodes.remove(made)
                return node
        return made

    def _input(self, bound: Bound) -> Input:
        name, spec = bound.name, bound.spec
        if name in self.inputs or name in self.outputs:
            raise SpecError(f"input {name!r}", "that name is taken", "give every input a name of its own")
        for other in self.inputs.values():
            self._agree(bound, other.bound)
        side = bound.side
        if side is not None:
            check_names(side[1].names, f"the output {side[0]!r} that stale={spec.stale!r} adds")
            if side[0] in self.outputs:
                raise SpecError(
                    f"input {name!r}",
                    f"stale={spec.stale!r} adds an output {side[0]!r}, which is taken",
                    "give that output another name",
                )
        self.inputs[name] = Input(self, bound)
        return self.inputs[name]

    def _agree(self, one: Bound, other: Bound) -> None:
        if one.spec.holds_back != other.spec.holds_back:
            held, free = (one, other) if one.spec.holds_back else (other, one)
            raise SpecError(
                "a flow of two inputs",
                f"{held.name!r} is in hold-back mode (time={held.spec.time!r}) and {free.name!r} is not",
                "name time= in both specs, or in neither",
            )
        if one.time_type != other.time_type:
            raise SpecError(
                "a flow of two inputs",
                f"the times of {one.name!r} are {one.time_type}, those of {other.name!r} {other.time_type}",
                "cast one to the other",
            )
        if (one.spec.lateness is None) != (other.spec.lateness is None):
            raise SpecError("a flow of two inputs", "one has lateness=, one not", "give it to both or neither")

    def output(self, name: str, collection: Collection) -> Collection:
        """Name a collection's updates as an output; returns it.  Raises `SpecError` for a name that is taken."""
        if not isinstance(name, str) or not isinstance(collection, Collection):
            found = f"it is given {name!r:.99} and {collection!r:.99}"
            raise SpecError("flow.output", found, 'write flow.output("name", collection)')
        if collection.flow is not self:
            raise SpecError(f"output {name!r}", "the collection is of another flow", "build it in this one")
        taken = name in self.outputs or name in self.side_outputs()
        if taken or (name in self.inputs and self.inputs[name] is not collection):
            raise SpecError(f"output {name!r}", "that name is taken", "give every output a name of its own")
        self.outputs[name] = collection
        return collection

    @property
    def holds_back(self) -> bool:
        """Whether the flow is in hold-back mode (its inputs name a time column)."""
        return any(input.spec.holds_back for input in self.inputs.values())

    @property
    def time_type(self) -> pa.DataType:
        """The type of ``_time`` in outputs."""
        return next((s.bound.time_type for s in self.inputs.values()), pa.int64())

    def side_outputs(self) -> dict[str, tuple[Input, pa.Schema]]:
        """The outputs that ``stale="mark"`` and ``"side"`` add, by name, with their rows' columns."""
        sides = ((input, input.bound.side) for input in self.inputs.values())
        return {side[0]: (input, side[1]) for input, side in sides if side is not None}

    def updates_schema(self, name: str) -> pa.Schema | None:
        """The columns of the updates of an output, a side output or an input; None where there is none of that name."""
        if name in self.outputs:
            return self.outputs[name].updates_schema(self.time_type)
        side, input = self.side_outputs().get(name), self.inputs.get(name)
        schema = side[1] if side is not None else None if input is None else input.schema
        return None if schema is None else updates_schema(schema, self.time_type)

    def frozen(self) -> Plan:
        """The plan as it is now: what is added to this flow later is not in it.  O(nodes)."""
        out = Plan()
        out.nodes, out.inputs, out.outputs = list(self.nodes), dict(self.inputs), dict(self.outputs)
        return out
