"""Define collections: the nodes of a plan, and the properties that operators declare.

Invariant: a collection is immutable and has a schema.

This file imports no operator. `ddflow.plan.verbs` adds one method for each verb; each family of verbs has a file. A
registry finds the operator class of a verb. `ddflow.plan.plan.Plan` adds the inputs, and all other collections are
derived from inputs.

>>> from ddflow.plan.plan import Plan
>>> from ddflow.plan.inputs.spec import Upsert
>>> people = Plan().upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> people.project(["city"]).count()
Count(city string, count int64)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import pyarrow as pa

from ddflow.columns.row_match import RowMatcher
from ddflow.columns.schema import build_updates_schema
from ddflow.errors import NotReadable, SpecError
from ddflow.plan.text.formulas import Formulas, JsonRecord
from ddflow.plan.verbs.asof import AsofVerbs
from ddflow.plan.verbs.family import ForeignVerbHints
from ddflow.plan.verbs.groups import GroupVerbs
from ddflow.plan.verbs.joins import JoinVerbs
from ddflow.plan.verbs.rows import RowVerbs, SetVerbs

Columns = tuple[str, ...]
WatermarkStep = Callable[[pa.Array], pa.Array]
"""A function that never decreases, from an array with one value to an array with one value."""


class PlanNodes:
    """The collections of a plan in order of creation. So each collection comes after its inputs."""

    def __init__(self) -> None:
        self.nodes: list[Collection] = []

    def require_clock(self) -> pa.DataType:
        """Return the type of the clock; see `ddflow.plan.plan.Plan`."""
        raise NotImplementedError

    def reuse_equal_node(self, made: Collection) -> Collection:
        """Return the collection of the plan that is equal to ``made``. Without an equal collection, return ``made``.

        O(nodes).
        """
        for node in self.nodes[:-1]:
            if type(node) is type(made) and node.inputs == made.inputs and _is_same_operator(node, made):
                self.nodes.remove(made)
                return node
        return made


class Collection(
    RowVerbs["Collection"],
    SetVerbs["Collection"],
    GroupVerbs["Collection"],
    JoinVerbs["Collection"],
    AsofVerbs["Collection"],
    ForeignVerbHints,
):
    """A multiset of rows that changes over time: an input, or an operator's output.

    A collection is immutable.  Each verb returns a new collection and runs nothing.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns of its rows.
    """

    _shown = "a collection"
    _instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("select", "rename", "drop"), "project(['city', 'amount']), or project({'town': 'city'})"),
        **dict.fromkeys(("with_columns", "withColumn", "assign", "map"), "project({'id': 'id', 'double': 'n * 2'})"),
        **dict.fromkeys(("where", "query"), "filter('amount > 0')"),
        **dict.fromkeys(("groupby", "groupBy"), "group_by('city').agg(n='count(*)')"),
        **dict.fromkeys(("sort", "order_by", "orderBy", "limit", "head"), "top(10, by=['amount desc'])"),
        **dict.fromkeys(("sum", "min", "max", "avg", "mean"), "agg(total='sum(amount)')"),
        **dict.fromkeys(("unique", "drop_duplicates", "dropDuplicates"), "distinct()"),
        **dict.fromkeys(("union_all", "unionAll", "vstack"), "concat(other)"),
        "merge": "join(other, on='id')",
        **dict.fromkeys(("join_asof", "merge_asof"), "asof(other, on='id', at='t >= t')"),
        "explode": "unnest('tags')",
        **dict.fromkeys(
            ("collect", "show", "read", "to_arrow", "to_pandas", "toPandas"),
            "flow.output('name', collection), and read('name') of the engine that flow.open() returns",
        ),
    }

    verb: ClassVar[str]
    """The name of the method that builds the operator. JSON and messages use this name for the operator."""
    keeps: ClassVar[bool] = False
    """Whether the operator keeps state between steps."""

    of_events: ClassVar[bool] = False
    """Whether the operator receives only a signal that its inputs had events, without the rows.

    The operator's inputs must then be inputs of the plan.
    """

    reads_clock: ClassVar[bool] = False
    """Whether the operator also receives the last time that each step closes, because it can emit updates then."""

    looks: ClassVar[tuple[int, ...]] = ()
    """Positions of the inputs whose rows the operator looks up, as the rows were before the step.

    The columns of `exchange` are the lookup key.
    """

    orders_partitions: ClassVar[bool] = False
    """Whether the operator needs all rows of a partition in order. Without columns, all rows are one partition."""

    as_it_came: ClassVar[bool] = False
    """Whether the state depends on the order in which rows arrived.

    If True, the state cannot be rebuilt from the current rows of the inputs.
    """

    bound: Any = None
    """The spec of an input, bound to the input's schema. For an operator, None."""

    fallible: Columns = ()
    """Input columns whose values can make the operator fail, for example in an expression.

    The tuple is empty if the operator never fails.
    """

    transparent: ClassVar[bool] = False
    """Whether the collection always equals its input, so that the collection needs no id of its own."""

    def __init__(self, flow: PlanNodes, schema: pa.Schema, inputs: Sequence[Collection], consolidated: bool) -> None:
        self.flow, self.schema, self.consolidated = flow, schema, consolidated
        self.inputs = tuple(each.operand() for each in inputs)
        self.unique: bool = self.keeps or (consolidated and all(each.unique for each in self.inputs))
        """Whether each row always has multiplicity one, whatever rows the inputs have."""
        self.positive: bool = self.unique or all(each.positive for each in self.inputs)
        """Whether no multiplicity is negative after the last update of a timestamp, whatever rows the inputs have."""
        self.grows: bool = any(each.grows for each in self.inputs)
        """Whether a column that is added to an input can also appear in this collection."""
        self.forgetting: frozenset[str] = frozenset[str]().union(*(each.forgetting for each in self.inputs))
        """Names of the upstream inputs whose rows expire without a retraction."""
        self.equal: frozenset[frozenset[str]] = frozenset()
        """Sets of columns.

        Within a row, the columns of a set have equal values, for example the two key columns of a join.
        """
        self.proven: Columns | None = None
        """Columns that identify rows, as proven by the verb.

        None if the verb can prove no more than the operator itself.
        """
        self.time_type: pa.DataType = self.inputs[0].time_type if self.inputs else pa.int64()
        flow.nodes.append(self)

    def consolidate(self) -> Collection:
        """Sum the diffs of equal rows with equal times, and drop the rows whose sum is zero.

        Returns
        -------
        Collection
            A collection with the same rows.  If its updates are already consolidated, the same collection.

        Notes
        -----
        O(n) expected, for n updates of a step.
        """
        return self if self.consolidated else self._apply_verb("consolidate")

    def told_by(self, names: Iterable[str]) -> bool:
        """Tell whether any two different rows differ in at least one of the columns ``names``. O(columns)."""
        known = set(names)
        while more := [each for each in self.equal if each & known and not each <= known]:
            known = known.union(*more)
        return known.issuperset(self.schema.names)

    # Operators override the methods below. The defaults are for operators with one input whose rows need no exchange.

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Describe the arguments as JSON. ``formulas`` writes expressions: see `ddflow.plan.text.formulas.Formulas`."""
        return {}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """Rebuild the collection from its JSON.  Raises `CorruptState`, and the errors of its constructor."""
        made: Collection = getattr(inputs[0], cls.verb)(*inputs[1:])
        return made

    def rebuild_with_inputs(self, inputs: Sequence[Collection]) -> Collection:
        """Rebuild the same operator on inputs that have more columns or wider types.

        Raises the errors of its constructor.
        """
        return self.from_json(inputs, JsonRecord(self.to_json(None), self.verb))

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Yield reasons why this operator's rows can differ from the rows of ``narrow``, cast to the wider types.

        ``narrow``: the same operator on the narrower columns.
        """
        yield from ()

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Write the verb's arguments as text, given their JSON.

        ``inputs``: the texts of the second and later inputs.
        """
        return ", ".join(inputs)

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """List, for each input, the columns that the operator reads to compute the columns ``wanted``."""
        return [set(each.schema.names) for each in self.inputs]

    def exchange(self) -> list[Columns | None]:
        """List the partitioning columns of each input, or None for an input whose rows can stay in their partition.

        Rows with equal values in these columns must be in the same partition.
        """
        return [None] * len(self.inputs)

    def map_input_columns(self, by: Columns | None) -> Columns | None:
        """Map columns of the input to their names in this collection. Return None if this collection lacks a column."""
        return by

    def find_pushdown_columns(self, at: int) -> dict[str, str]:
        """Map columns of input ``at`` to their names in this collection.

        Include only columns for which a filter gives the same result before this operator as after it.
        """
        by = self.exchange()[at]
        names = by if by is not None and self.keeps else self.inputs[at].schema.names
        return {name: here[0] for name in names if (here := self.map_input_columns((name,)))}

    def map_watermark_columns(self, at: int) -> dict[str, tuple[str, WatermarkStep | None]] | None:
        """Map columns of this collection to the columns of input ``at`` from which they get a watermark.

        Include only columns for which a filter gives the same result before this operator as after it, and functions
        that never decrease. The second value computes the column from an array with one value of the input's column;
        None if both are equal. Return None if this collection has no rows of the input.
        """
        if self.of_events:
            return {}
        found = self.find_pushdown_columns(at).items()
        return {name: (of, None) for of, name in found if name in self.schema.names}

    def is_selection(self) -> bool:
        """Return whether each row has the values of a row of the only input, in all columns of the input."""
        return False

    def find_lookup_columns(self) -> Columns | None:
        """Return the columns by which the state can be looked up: the key of an arrangement, or a unique key."""
        return None

    def identified_by(self) -> Columns | None:
        """Return columns that provably identify rows.

        The result () means that there is at most one row. The result None means that no columns are known to identify
        rows.
        """
        return next(iter(self.unique_by()), None)

    def unique_by(self) -> list[Columns]:
        """List all sets of columns that identify rows.

        Several sets are useful because a later projection can drop the columns of one of them. `identified_by` returns
        the first set.
        """
        return [] if self.proven is None else [self.proven]

    def find_never_null_columns(self) -> frozenset[str]:
        """Return the columns that are provably never null. O(nodes and their columns)."""
        made = {field.name for field in self.schema if not field.nullable}
        if len(self.inputs) == 1:
            made |= self._find_never_null_of_input(0)
        return frozenset(made)

    def _find_never_null_of_input(self, at: int) -> set[str]:
        """Return the columns of this collection that are copies of columns of input ``at`` and are never null."""
        below, here = self.inputs[at], self.find_pushdown_columns(at)
        # If a column is never null in the input, a filter for nulls in that column would select no row of the input.
        # The same filter selects the same rows from this operator's output, so the column is never null in the output.
        return {here[name] for name in below.find_never_null_columns() if name in here} & {*self.schema.names}

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Select the rows of each input that contribute to ``wanted``.

        From the selected rows, the operator computes exactly ``wanted``.
        ``wanted``: some rows of this collection.
        ``given``: all rows of the inputs.
        All tables have the column ``_diff`` and show the rows as of the same timestamp. O(rows of the inputs). Raises
        `NotReadable` if the operator has no lineage.
        """
        found = f"it is the result of {self.verb}(...), which has no lineage"
        raise NotReadable("why", found, f"make an output of each input of {self.verb}, and ask about its rows")

    def renames(self) -> dict[str, str] | None:
        """Map the columns to their names in the input. Return None if the operator does more than select columns."""
        return None

    def open(self, context: Any) -> Any:
        """Create the empty state and the step function; see ``ddflow.operators.base``."""
        raise NotImplementedError

    def operand(self) -> Collection:
        """Return the collection that an operator on this collection reads. By default, that is this collection."""
        return self

    def updates_schema(self, time_type: pa.DataType) -> pa.Schema:
        """Return the columns that the updates would have if this collection were an output."""
        return build_updates_schema(self.schema, time_type)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f.name} {f.type}' for f in self.schema)})"


def rename_equal_column_sets(equal: Iterable[frozenset[str]], names: Mapping[str, str]) -> frozenset[frozenset[str]]:
    """Rename the columns in sets of equal columns, and drop the columns that have no new name.

    >>> rename_equal_column_sets([frozenset(["a", "b", "c"])], {"a": "x", "c": "y"}) == {frozenset(["x", "y"])}
    True
    """
    found = (frozenset(names[each] for each in some if each in names) for some in equal)
    return frozenset(some for some in found if len(some) > 1)


def walk_inputs(
    roots: Iterable[Collection], inputs: Callable[[Collection], Iterable[Collection]] = lambda node: node.inputs
) -> set[Collection]:
    """Return collections with all their direct and indirect inputs.

    ``inputs``: returns the inputs to follow from a collection.  O(collections found).
    """
    found, ahead = set[Collection](), list(roots)
    while ahead:
        node = ahead.pop()
        if node not in found:
            found.add(node)
            ahead += inputs(node)
    return found


def refuse_forgetting_inputs(asked: str, then: str, *inputs: Collection) -> None:
    """Refuse inputs whose rows expire without a retraction. ``then``: the consequence that the message states.

    Raises `SpecError`.
    """
    if forgetting := frozenset[str]().union(*(each.forgetting for each in inputs)):
        found = f"the inputs {sorted(forgetting)} forget rows without a retraction: {then}"
        raise SpecError(asked, found, "omit on_expire='forget' in their specs")


def find_paired_inputs(outputs: Iterable[Collection]) -> set[Collection]:
    """Return the inputs of each operator, such as a join, that partitions several inputs by columns. O(nodes)."""
    pairing = [node for node in walk_inputs(outputs) if len(node.inputs) > 1 and node.exchange()[0] is not None]
    return {each for node in pairing for each in node.inputs}


def is_partitioned_by(of: Columns | None, by: Columns, exactly: bool) -> bool:
    """Tell whether rows that are partitioned by the columns ``of`` are thereby partitioned by the columns ``by``.

    ``exactly``: whether another collection is partitioned by ``by`` too, so that a subset of the columns is not enough.
    """
    return of is not None and (of == by if exactly else set(of) <= set(by))


def _is_same_operator(one: Collection, other: Collection) -> bool:
    """Tell whether two operators have the same arguments. Both operators have the same class and the same inputs.

    O(text).
    """
    formulas = Formulas()
    try:
        return one.to_json(formulas) == other.to_json(formulas)
    except SpecError:  # two functions with one name
        return False
