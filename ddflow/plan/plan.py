"""The plan: inputs, operators on their differences, named outputs.

Invariant: every mistake that can be seen without data is an error where it is written down, naming the column. A plan
runs nothing: `ddflow.Flow.open` makes an engine of it, the Spark bridge makes stages of it.

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.spec import Upsert
>>> plan = Plan()
>>> people = plan.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> by_city = plan.output("by_city", people.project(["city"]).count())
>>> by_city.schema.names
['city', 'count']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa

from ddflow.columns.declared import to_arrow_schema
from ddflow.columns.names import check_column_names
from ddflow.columns.schema import build_updates_schema
from ddflow.connectors.formats.base import Format
from ddflow.errors import ErrorText, Option, SpecError
from ddflow.plan.collection import Collection, PlanNodes
from ddflow.plan.inputs.bind import bind_upserts
from ddflow.plan.inputs.differences import ChangeFeed, Differences, bind_differences
from ddflow.plan.inputs.input import Binding, Input, bind_format, bind_machine
from ddflow.plan.inputs.spec import Late, Upsert
from ddflow.plan.merge.machine import Machine
from ddflow.plan.merge.machines import VALUES


class Plan(PlanNodes):
    """A plan under construction.

    Attributes
    ----------
    inputs : dict of str to Input
        By name.
    outputs : dict of str to Collection
        By name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[str, Input] = {}
        self.outputs: dict[str, Collection] = {}

    def upserts(self, name: str, schema: Any, spec: Upsert, *, format: Format | None = None) -> Input:
        """Add an input of upserts.

        Parameters
        ----------
        name : str
            What rows are given under.
        schema : schema, mapping of str to type, or frame
            The columns of its events: a schema of pyarrow, Polars or Spark, a frame, or anything that has an Arrow
            schema; or ``{"id": int, "total": "decimal(12,2)"}``, types of Python's, pyarrow's, Polars' or Spark's, or
            texts as `ddflow.evolve` and ``--types`` take them: ``int64``, ``double``, ``timestamp``, ``list<string>``.
        spec : Upsert
            How its events upsert.
        format : Format, optional
            One of `ddflow.formats`: the input is then given messages, with a ``value`` and, where there are, ``key``,
            ``topic``, ``partition``, ``offset`` and ``timestamp``.  Without ``order_by`` the format says what orders
            events.

        Returns
        -------
        Input
            The collection of the rows that live.

        Raises
        ------
        SpecError
            If spec and schema do not fit, a text names no type, the name is taken, or inputs mix the modes.
        NotArrow
            For what is no schema.

        Examples
        --------
        >>> plan = Plan()
        >>> plan.upserts("people", {"id": int, "city": pa.string(), "at": "timestamp"}, Upsert(key="id"))
        Input(id int64, city string, at timestamp[us])
        """
        columns = to_arrow_schema(schema, f"the schema of {name!r}")
        bound = bind_upserts(name, columns, spec) if format is None else bind_format(name, columns, spec, format)
        return self._add_input(bound)

    def machine(self, name: str, schema: Any, spec: Upsert, machine: Machine) -> Collection:
        """Add an input whose events drive a `ddflow.Machine`.

        Parameters
        ----------
        name, schema
            As in `upserts`.
        spec : Upsert
            Which events count, and in which order.
        machine : Machine
            What they do to the values of their key.

        Returns
        -------
        Collection
            A row for each value that a key holds: the key and the state.

        Raises
        ------
        SpecError
            As `upserts`, and for a field of ``spec`` that a machine does not go by; it is named.
        """
        input = self._add_input(bind_machine(name, to_arrow_schema(schema, f"the schema of {name!r}"), spec, machine))
        return input.unnest(VALUES) if machine.several else input

    def updates(
        self,
        name: str,
        schema: Any,
        diff: str | ChangeFeed | None = None,
        time: str | None = None,
        keep: bool = False,
        *,
        late: Late = "error",
        lateness: int | None = None,
        null_key: Literal["error", "drop"] = "error",
        value: Sequence[str] | None = None,
        key: str | Sequence[str] = (),
        format: Format | None = None,
    ) -> Input:
        """Add an input of differences: rows that say themselves how often they count.

        Parameters
        ----------
        name, schema
            As in `upserts`.
        diff : str or ChangeFeed, optional
            How often a row counts: a column of integers, or SQL that gives integers; or `ddflow.delta_cdf`, the change
            feed of a table of Delta Lake.  0 says nothing.  By default every row counts once.
        time : str, optional
            The column of times.  With it, the flow is in hold-back mode.
        keep : bool
            Whether the rows are held, so that the input can be read, and all that is made of its rows one by one.
        late, lateness
            As of `ddflow.Upsert`.
        null_key : {"error", "drop"}
            What becomes of a row whose diff is null; "drop" gives the verdict bad.
        value : str or sequence of str, optional
            The columns of a row.  By default all but the time, the column of diffs, and those of a change feed.
        key : str or sequence of str
            With ``format``: the columns that name a row in a message.
        format : Format, optional
            One of `ddflow.formats`: the input is then given messages, as in `upserts`, and each event is a row of a
            history.  Rows have ``_position`` and, in most formats, ``_row``, by which the events of a key are
            ordered, and ``_deleted``, true where the row of the key ended: such a row has the key and nulls.

        Returns
        -------
        Input
            The collection of the rows.

        Raises
        ------
        SpecError, ExpressionError
            If schema and options do not fit, the name is taken, or inputs mix the modes.
        NotArrow
            For what is no schema.

        Notes
        -----
        With ``keep`` it holds each row that there is, with its multiplicity; else nothing.

        Examples
        --------
        >>> plan = Plan()
        >>> plan.updates("log", {"city": pa.string(), "n": pa.int64()}, diff="n")
        Input(city string)
        """
        spec = Differences(diff, time, keep, late, lateness, null_key, value, key)
        columns = to_arrow_schema(schema, f"the schema of {name!r}")
        bound = bind_differences(name, columns, spec) if format is None else bind_format(name, columns, spec, format)
        return self._add_input(bound)

    def sql(self, text: str, **collections: Collection) -> Collection:
        """Make a collection from a query in Spark's SQL.

        Parameters
        ----------
        text : str
            A query over the inputs, by their names, and over ``collections``.
        **collections : Collection
            Collections of this flow, by their names in the query.

        Returns
        -------
        Collection
            With the columns of the select list.

        Raises
        ------
        ExpressionError
            For a query that does not parse, for unknown or ambiguous tables and columns, and for a part that cannot be
            maintained: an ORDER BY without LIMIT (a collection has no order), functions that differ from call to call,
            recursion, and windows other than ``find_next_row_number() <= k``.  The error names the place.
        SpecError
            For a collection of another flow.

        Examples
        --------
        >>> plan = Plan()
        >>> people = plan.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
        >>> plan.sql("select upper(city) as town from people where id > 1")
        Project(town string)

        Notes
        -----
        O(text).
        """
        from ddflow.plan.sql import plan_sql  # with a parser that takes long to import

        made: Collection = plan_sql(self, text, collections)
        return made

    def _add_input(self, bound: Binding) -> Input:
        name, spec = bound.name, bound.spec
        if name in self.inputs or name in self.outputs:
            by = "input" if name in self.inputs else "output"
            raise SpecError(
                f"input {name!r}", f"an {by} has that name already", "give every input a name of its own", input=name
            )
        for other in self.inputs.values():
            self._check_modes(bound, other.bound)
        for side, schema in bound.side_output_schemas.items():
            why = Option("on_bad", "drop") if side.endswith(".bad") else Option("stale", spec.stale)
            check_column_names(schema.names, f"the output {side!r} that {why} adds")
            if side in self.outputs:
                raise SpecError(
                    f"input {name!r}",
                    why + f" adds an output {side!r}, which is taken",
                    "give that output another name",
                    input=name,
                )
        self.inputs[name] = Input(self, bound)
        return self.inputs[name]

    def _check_modes(self, one: Binding, other: Binding) -> None:
        if one.spec.holds_back != other.spec.holds_back:
            waiting, free = (one, other) if one.spec.holds_back else (other, one)
            raise SpecError(
                "a flow of two inputs",
                f"{waiting.name!r} is in hold-back mode (time={waiting.spec.time!r}) and {free.name!r} is not",
                ErrorText("name ", Option("time"), " in both specs, or in neither"),
            )
        if one.time_type != other.time_type:
            raise SpecError(
                "a flow of two inputs",
                f"the times of {one.name!r} are {one.time_type}, those of {other.name!r} {other.time_type}",
                "cast one to the other",
            )
        if (one.spec.lateness is None) != (other.spec.lateness is None):
            raise SpecError(
                "a flow of two inputs",
                ErrorText("one has ", Option("lateness"), ", one not"),
                "give it to both or neither",
            )

    def output(self, name: str, collection: Collection) -> Collection:
        """Name a collection's updates as an output.

        Parameters
        ----------
        name : str
            The name of the output.
        collection : Collection
            One of this flow.

        Returns
        -------
        Collection
            The same one.

        Raises
        ------
        SpecError
            For a name that is taken, or a collection of another flow.
        """
        if not isinstance(name, str) or not isinstance(collection, Collection):
            found = f"it is given {name!r:.99} and {collection!r:.99}"
            raise SpecError("flow.output", found, 'write flow.output("name", collection)')
        if collection.flow is not self:
            raise SpecError(f"output {name!r}", "the collection is of another flow", "build it in this one")
        asked = f"output {name!r}"
        if name in self.outputs:
            raise SpecError(asked, "an output has that name already", "give every output a name of its own")
        if name in self.side_outputs():
            by = self.side_outputs()[name][0].name
            raise SpecError(
                asked, f"the input {by!r} adds an output of that name", "give this one another name", input=by
            )
        if name in self.inputs and self.inputs[name] is not collection:
            found = "an input has that name, and only its own rows may be put out under it"
            raise SpecError(asked, found, "give this output another name")
        self.outputs[name] = collection
        return collection

    @property
    def holds_back(self) -> bool:
        """Whether the flow is in hold-back mode (its inputs name a time column)."""
        return any(input.spec.holds_back for input in self.inputs.values())

    @property
    def time_type(self) -> pa.DataType:
        """The type of ``_time`` in outputs: the type of the time columns, else of the first step's time."""
        return next((s.bound.time_type for s in self.inputs.values()), pa.int64())

    def side_outputs(self) -> dict[str, tuple[Input, pa.Schema]]:
        """List the outputs that ``stale="mark"`` and ``"side"`` add, and ``on_bad="drop"`` of a format.

        Returns
        -------
        dict of str to (Input, pyarrow.Schema)
            By name: the input, and the columns of the rows.
        """
        return {
            name: (input, schema)
            for input in self.inputs.values()
            for name, schema in input.bound.side_output_schemas.items()
        }

    def updates_schema(self, name: str) -> pa.Schema | None:
        """Return the columns of the updates of an output, a side output or an input.

        Parameters
        ----------
        name : str
            The name of an output or an input.

        Returns
        -------
        pyarrow.Schema or None
            None if nothing has that name.
        """
        if name in self.outputs:
            return self.outputs[name].updates_schema(self.time_type)
        side, input = self.side_outputs().get(name), self.inputs.get(name)
        schema = side[1] if side is not None else None if input is None else input.schema
        return None if schema is None else build_updates_schema(schema, self.time_type)

    def frozen(self) -> Plan:
        """Copy the plan, without the collections that are added to this flow later.

        Returns
        -------
        Plan
            With the same collections.

        Notes
        -----
        O(nodes).
        """
        out = Plan()
        out.nodes, out.inputs, out.outputs = list(self.nodes), dict(self.inputs), dict(self.outputs)
        return out
