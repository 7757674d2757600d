"""Build a plan of inputs, operators and named outputs.

Invariant: if ddflow can detect a mistake without data, the call that contains the mistake raises an error. The error
names the column.

A plan runs nothing. `ddflow.Flow.open` turns a plan into an engine, and the Spark bridge turns a plan into stages.

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.spec import Upsert
>>> plan = Plan()
>>> people = plan.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> by_city = plan.output("by_city", people.project(["city"]).count())
>>> by_city.schema.names
['city', 'count']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.types as pat

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
from ddflow.time import INT64

CLOCKS: Final = {"timestamp": pa.timestamp("us", "UTC"), "date": pa.date32()}
"""The types of clocks."""


class Plan(PlanNodes):
    """A plan under construction.

    Parameters
    ----------
    clock : {"timestamp", "date"}, optional
        The type of the times of steps: UTC timestamps of microseconds, or dates.  Every step then needs a time of this
        type.  By default the first step decides; a condition with ``now()`` sets "timestamp".

    Attributes
    ----------
    clock : pyarrow.DataType or None
        The type of the times of steps, if the flow has declared it.
    inputs : dict of str to Input
        Inputs by name.
    outputs : dict of str to Collection
        Outputs by name.
    """

    def __init__(self, clock: Literal["timestamp", "date"] | None = None) -> None:
        super().__init__()
        if clock not in (None, *CLOCKS):
            remedy = 'use "timestamp" or "date", or omit it for numbered steps'
            raise SpecError(f"a flow with clock={clock!r:.99}", "there is no such clock", remedy)
        self.clock: pa.DataType | None = None if clock is None else CLOCKS[clock]
        self.inputs: dict[str, Input] = {}
        self.outputs: dict[str, Collection] = {}

    def require_clock(self) -> pa.DataType:
        """Return the type of times. If nothing has declared it, the flow gets a clock of timestamps.

        O(nodes). Raises `SpecError` if the time columns of a flow in hold-back mode are numbers.
        """
        if self.holds_back:
            if pat.is_integer(self.time_type):
                found = f"the time columns of the flow are {self.time_type}, and numbers are no clock"
                raise SpecError("compare now()", found, "use time columns of timestamps or dates")
            return self.time_type
        if self.clock is None:
            if self.time_type == INT64 and any(each.spec.ingested is not None for each in self.inputs.values()):
                found = "the column of ingested= already has numbers"
                raise SpecError("compare now()", found, 'declare the clock first: dd.Flow(clock="timestamp")')
            self.clock = CLOCKS["timestamp"] if self.time_type == INT64 else self.time_type
            for node in self.nodes:
                node.time_type = self.clock
            for input in self.inputs.values():
                input.bound = replace(input.bound, time_type=self.clock)
        return self.clock

    def upserts(self, name: str, schema: Any, spec: Upsert, *, format: Format | None = None) -> Input:
        """Add an input of upserts.

        Parameters
        ----------
        name : str
            The name of the input; a step passes rows under it.
        schema : schema, mapping of str to type, or frame
            The columns of its events: a schema of pyarrow, Polars or Spark, a frame, or anything that has an Arrow
            schema.  Or a mapping such as ``{"id": int, "total": "decimal(12,2)"}``, with types of Python, pyarrow,
            Polars or Spark, or with the texts that `ddflow.evolve` and ``--types`` accept: ``int64``, ``double``,
            ``timestamp``, ``list<string>``.
        spec : Upsert
            How events change the row of their key.
        format : Format, optional
            A format of `ddflow.formats`.  The input then takes messages with a ``value`` and, if the source has them,
            ``key``, ``topic``, ``partition``, ``offset`` and ``timestamp``.  Without ``order_by``, the format chooses
            the columns that order events.

        Returns
        -------
        Input
            The collection of the live rows.

        Raises
        ------
        SpecError
            If spec and schema do not fit, a text names no type, the name is taken, or inputs mix the modes.
        NotArrow
            If ``schema`` has no Arrow schema.

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
            The same as in `upserts`.
        spec : Upsert
            The events that count, and their order.
        machine : Machine
            The transitions that events make in the state of their key.

        Returns
        -------
        Collection
            A row with key and state for each value that a key holds.

        Raises
        ------
        SpecError
            If `upserts` would raise it, or if ``spec`` sets a field that a machine ignores.  The error names the field.
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
        watermark: Mapping[str, str | int] | None = None,
        ahead: str | None = None,
        key: str | Sequence[str] = (),
        format: Format | None = None,
        ingested: str | None = None,
    ) -> Input:
        """Add an input of differences. Each row has a diff, which is the number of times that the row counts.

        Parameters
        ----------
        name, schema
            The same as in `upserts`.
        diff : str or ChangeFeed, optional
            How often a row counts: a column of integers, or SQL that returns integers; or `ddflow.delta_cdf`, the
            change feed of a table of Delta Lake.  A row with 0 changes nothing.  By default every row counts once.
        time : str, optional
            The column of times.  With it, the flow is in hold-back mode.
        keep : bool
            Whether to store the rows, so that you can read the input and the collections built from it row by row.
        late, lateness, watermark, ahead, ingested
            The same as in `ddflow.Upsert`.  ``ingested`` not with ``diff``.
        null_key : {"error", "drop"}
            How to treat a row whose diff is null; "drop" counts it under the verdict bad.
        value : str or sequence of str, optional
            The columns of a row.  By default all but the time, the column of diffs, and the columns of a change feed.
        key : str or sequence of str
            With ``format``: the columns that identify a row in a message.
        format : Format, optional
            A format of `ddflow.formats`.  The input then takes messages, as in `upserts`, and each event is a row of a
            history.  Rows have ``_position`` and, in most formats, ``_row``; these order the events of a key.  They
            also have ``_deleted``: it is true if the event deleted the key, and then all columns but the key are null.

        Returns
        -------
        Input
            The collection of the rows.

        Raises
        ------
        SpecError, ExpressionError
            If schema and options do not fit, the name is taken, or inputs mix the modes.
        NotArrow
            If ``schema`` has no Arrow schema.

        Notes
        -----
        With ``keep``, the state holds each current row with its multiplicity. Without ``keep``, it holds no rows.

        Examples
        --------
        >>> plan = Plan()
        >>> plan.updates("log", {"city": pa.string(), "n": pa.int64()}, diff="n")
        Input(city string)
        """
        spec = Differences(diff, time, keep, late, lateness, null_key, value, key, ingested, watermark, ahead)
        columns = to_arrow_schema(schema, f"the schema of {name!r}")
        bound = bind_differences(name, columns, spec) if format is None else bind_format(name, columns, spec, format)
        return self._add_input(bound)

    def sql(self, text: str, **collections: Collection) -> Collection:
        """Build a collection from a query in Spark's SQL.

        Parameters
        ----------
        text : str
            A query over the inputs, by their names, and over ``collections``.
        **collections : Collection
            Collections of this flow, by their names in the query.

        Returns
        -------
        Collection
            A collection with the columns of the select list.

        Raises
        ------
        ExpressionError
            If the query does not parse, or names unknown or ambiguous tables and columns.  Also for a part that cannot
            be maintained: an ORDER BY without LIMIT (a collection has no order), functions that return another value
            on each call, recursion, and windows other than ``row_number() <= k``.  The error gives the
            position.
        SpecError
            If a collection is of another flow.

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
        from ddflow.plan.sql import plan_sql  # imported here because its parser loads slowly

        made: Collection = plan_sql(self, text, collections)
        return made

    def _add_input(self, bound: Binding) -> Input:
        name, spec = bound.name, bound.spec
        if name in self.inputs or name in self.outputs:
            by = "input" if name in self.inputs else "output"
            raise SpecError(f"input {name!r}", f"an {by} already has that name", "choose another name", input=name)
        if self.clock is not None and spec.holds_back:
            found = f"in hold-back mode the time columns are the clock, and {name!r} has one"
            raise SpecError(Option("clock"), found, ErrorText("omit ", Option("clock")), input=name)
        if self.clock is not None:
            bound = replace(bound, time_type=self.clock)
        elif spec.ahead is not None and bound.time_type == INT64:
            found = "the steps of the flow are numbered, so no row is ahead of them"
            raise SpecError(Option("ahead", spec.ahead), found, 'declare dd.Flow(clock="timestamp")', input=name)
        for other in self.inputs.values():
            self._check_modes(bound, other.bound)
        for side, schema in bound.side_output_schemas.items():
            why = Option("on_bad", "drop") if side.endswith(".bad") else Option("stale", spec.stale)
            check_column_names(schema.names, f"the output {side!r} that {why} adds")
            if side in self.outputs:
                raise SpecError(
                    f"input {name!r}",
                    why + f" adds an output {side!r}, but the flow already has one",
                    "choose another name for the output of the flow",
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
                ErrorText("set ", Option("time"), " in both specs, or in neither"),
            )
        if one.time_type != other.time_type:
            raise SpecError(
                "a flow of two inputs",
                f"the times of {one.name!r} are {one.time_type}, but the times of {other.name!r} are {other.time_type}",
                "cast one time column to the type of the other",
            )
        if (one.spec.lateness is None) != (other.spec.lateness is None):
            raise SpecError(
                "a flow of two inputs",
                ErrorText("one has ", Option("lateness"), ", but the other does not"),
                "set it in both specs, or in neither",
            )

    def output(self, name: str, collection: Collection) -> Collection:
        """Publish a collection's updates as a named output.

        Parameters
        ----------
        name : str
            The name of the output.
        collection : Collection
            A collection of this flow.

        Returns
        -------
        Collection
            The same collection.

        Raises
        ------
        SpecError
            If the name is taken, or the collection is of another flow.
        """
        if not isinstance(name, str) or not isinstance(collection, Collection):
            found = f"its arguments are {name!r:.99} and {collection!r:.99}"
            raise SpecError("flow.output", found, 'write flow.output("name", collection)')
        if collection.flow is not self:
            raise SpecError(f"output {name!r}", "the collection is of another flow", "build it in this flow")
        asked = f"output {name!r}"
        if name in self.outputs:
            raise SpecError(asked, "an output already has that name", "choose another name")
        if name in self.side_outputs():
            by = self.side_outputs()[name][0].name
            raise SpecError(
                asked, f"the input {by!r} adds an output of that name", "choose another name for this output", input=by
            )
        if name in self.inputs and self.inputs[name] is not collection:
            found = "an input has that name, but the collection is not that input"
            raise SpecError(asked, found, "choose another name for this output")
        self.outputs[name] = collection
        return collection

    @property
    def holds_back(self) -> bool:
        """Whether the flow is in hold-back mode. The flow is in hold-back mode if its inputs name a time column."""
        return any(input.spec.holds_back for input in self.inputs.values())

    @property
    def time_type(self) -> pa.DataType:
        """The type of ``_time`` in outputs. Without time columns, the type of the first step's time is used."""
        return next((s.bound.time_type for s in self.inputs.values()), pa.int64())

    def side_outputs(self) -> dict[str, tuple[Input, pa.Schema]]:
        """List the side outputs.

        The options ``stale="mark"``, ``stale="side"``, and ``on_bad="drop"`` of a format add side outputs.

        Returns
        -------
        dict of str to (Input, pyarrow.Schema)
            The input and the columns of the rows, by name of the side output.
        """
        return {
            name: (input, schema)
            for input in self.inputs.values()
            for name, schema in input.bound.side_output_schemas.items()
        }

    def updates_schema(self, name: str) -> pa.Schema | None:
        """Return the columns that the updates of an output, a side output or an input have.

        Parameters
        ----------
        name : str
            The name of an output or an input.

        Returns
        -------
        pyarrow.Schema or None
            The schema; None if no output or input has that name.
        """
        if name in self.outputs:
            return self.outputs[name].updates_schema(self.time_type)
        side, input = self.side_outputs().get(name), self.inputs.get(name)
        schema = side[1] if side is not None else None if input is None else input.schema
        return None if schema is None else build_updates_schema(schema, self.time_type)

    def frozen(self) -> Plan:
        """Copy the plan, so that collections added to this flow later do not appear in the copy.

        Returns
        -------
        Plan
            A plan with the same collections.

        Notes
        -----
        O(nodes).
        """
        out = Plan()
        out.clock = self.clock
        out.nodes, out.inputs, out.outputs = list(self.nodes), dict(self.inputs), dict(self.outputs)
        return out
