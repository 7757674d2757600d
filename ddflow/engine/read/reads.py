"""Reading: the questions that an engine answers without changing.

Invariant: an answer is as of one time: the engine's last closed time, or one at or after `Reading.since`. A reader that
is given out holds ``since`` back; no other question has an effect. Any thread may ask: it takes references to the rows
held after the last closed step, and reads beside the writer. `Reading` is a class of its own because an engine that
takes steps and a snapshot (``snapshot``) answer the same questions.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> with flow.open(retain=5) as engine:
...     for time in (1, 2):
...         _ = engine.step({"people": pa.table({"id": [time]})}, time)
...     engine.read("people").num_rows, engine.read("people", as_of=1).num_rows, engine.changes("people", 1, 2).num_rows
(2, 1, 1)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.dataflow.dataflow import Dataflow
from ddflow.engine.lineage.key_history import value_of, why
from ddflow.engine.lineage.rows import find_origins, rows_like
from ddflow.engine.lineage.story import Origins, Story
from ddflow.engine.read.history import check_readable, net_changes, scd2
from ddflow.engine.read.readers import Reader
from ddflow.engine.stats import Looking
from ddflow.errors import NotReadable, Option, Phrase, SpecError, TimeWentBack
from ddflow.operators.updates import consolidate
from ddflow.plan.collection import Collection
from ddflow.plan.inputs.input import Input
from ddflow.time import CLOSED, Time, as_int64, format_given_time


class Reading(Looking):
    """Reads of an engine or a snapshot: its outputs and inputs, at the times that can be read."""

    @property
    def last(self) -> int:
        """The last closed time, an int64."""
        return self.dataflow.last

    def output_schema(self, name: str) -> pa.Schema:
        """Return the columns of an output's table in a `Step`.

        Parameters
        ----------
        name : str
            An output, or a side output that ``stale=`` adds.

        Returns
        -------
        pyarrow.Schema
            The row's columns, then ``_time`` and ``_diff``; `KeyError` for an unknown name.
        """
        return self.dataflow.output_schema(name)

    def read(self, name: str, as_of: Time | None = None) -> pa.Table:
        """Read an output or an input, at the last closed time or an earlier one.

        Parameters
        ----------
        name : str
            The output or input.
        as_of : int, date, datetime or str, optional
            A closed time, not before `since`.  By default the last closed one.

        Returns
        -------
        pyarrow.Table
            The row's columns, then ``_diff`` (int64), consolidated.

        Raises
        ------
        NotReadable
            For an unknown name, or a time that cannot be read.

        Notes
        -----
        O(n), for n rows of the inputs that it depends on.

        Examples
        --------
        >>> import pyarrow as pa, ddflow as dd
        >>> flow = dd.Flow()
        >>> people = flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id"))
        >>> _ = flow.output("people", people)
        >>> with flow.open() as engine:
        ...     _ = engine.step({"people": pa.table({"id": [7]})}, time=1)
        ...     engine.read("people").to_pylist()
        [{'id': 7, '_diff': 1}]
        """
        with self.dataflow.at_rest("read") as still:
            node = self.node(name)
            if as_of is not None:
                as_of = self.closed(f"read {name!r} as of {self._format_time(as_of)}", as_of, still)
            return still.graph.read(node, as_of)

    def get(self, name: str, /, **key: Any) -> dict[str, Any] | None:
        """Look up the row of a key or a group, without reading the others.

        Parameters
        ----------
        name : str
            The output or input.
        **key : scalar
            A value for each column of its key. The plan proves keys, such as the key of an upsert, the columns of a
            group, or the key of ``to_upserts``.

        Returns
        -------
        dict or None
            The row by column; None if there is none.

        Raises
        ------
        SpecError
            For other columns than a key has, or if the plan proves no key: `read` returns all rows.
        NotReadable
            For an unknown name, or a value of another type than its column.

        Notes
        -----
        O(1) expected in memory, O(log n) for each run on disk. O(n) if rows are not kept by these columns, such as of a
        join, or of a top by the key of its input.

        Examples
        --------
        >>> import ddflow as dd
        >>> flow = dd.Flow()
        >>> people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
        >>> _ = flow.output("by_city", people.count("city"))
        >>> with flow.open() as engine:
        ...     _ = engine.step({"people": {"id": [1, 2], "city": ["Bern", "Bern"]}})
        ...     engine.get("by_city", city="Bern"), engine.get("by_city", city="Chur")
        ({'city': 'Bern', 'count': 2}, None)
        """
        return self.get_as_of(name, key, None)

    def get_as_of(self, name: str, key: Mapping[str, Any], as_of: Time | None) -> dict[str, Any] | None:
        """`get` as of a time, by default the last closed one."""
        dataflow, asked = self.dataflow, f"get {name!r} by {list(key)}"
        node, time, found = self.node(name), None, None
        if not any(key.keys() == {*each} for each in node.unique_by()):
            raise SpecError(asked, *_no_key(node, name))
        given = {column: value_of(node.schema.field(column), value, asked) for column, value in key.items()}
        with dataflow.guard.look("get"):
            if as_of is not None:
                time = self.closed(f"{asked} as of {self._format_time(as_of)}", as_of)
            if node in dataflow.graph.opened:
                found = dataflow.graph.find_rows(node, given, time)
        if found is None:
            with dataflow.at_rest("get") as still:
                time = None if as_of is None else self.closed(asked, as_of, still)
                found = rows_like(still, node, given, time)
        if found.diffs.size > 1 or (found.diffs.size and found.diffs[0] != 1):
            found = consolidate(found, dataflow.secret)
        rows = found.rows
        return {name: rows.column(name)[0].as_py() for name in node.schema.names} if found.diffs.size else None

    def changes(self, name: str, t1: Time, t2: Time | None = None) -> pa.Table:
        """Return the net differences of an output or an input between two times.

        Its contents as of ``t1``, plus these, are its contents as of ``t2``.

        Parameters
        ----------
        name : str
            The output or input.
        t1 : int, date, datetime or str
            A closed time, not before `since`: the updates after it.
        t2 : int, date, datetime or str, optional
            Up to and with this closed time.  By default the last closed one.

        Returns
        -------
        pyarrow.Table
            The row's columns, then ``_diff`` (int64), consolidated.

        Raises
        ------
        NotReadable
            As `read` does.
        TimeWentBack
            If ``t2`` is before ``t1``.
        CountOverflow
            If a multiplicity, or a difference of two, does not fit int64.

        Notes
        -----
        O(n), for n rows of the inputs that it depends on.
        """
        with self.dataflow.at_rest("changes") as still:
            node, until = self.node(name), "now" if t2 is None else self._format_time(t2)
            asked = f"changes of {name!r} from {self._format_time(t1)} to {until}"
            return net_changes(still.graph, node, self.closed(asked, t1, still), self.closed(asked, t2, still))

    def reader(self, name: str, at: Time | None = None) -> Reader:
        """Make a reader of an output or an input.  While it lives, it keeps `since` at or before its time.

        Parameters
        ----------
        name : str
            The output or input.
        at : int, date, datetime or str, optional
            The reader's time, closed and not before `since`.  By default the last closed one.

        Returns
        -------
        Reader
            Use it in a ``with``, or close it.

        Raises
        ------
        NotReadable
            As `read` does.

        Notes
        -----
        O(log r), for r readers.
        """
        with self.dataflow.guard.look("reader", nests=False):
            self.node(name)
            return Reader(self, name, self.closed(f"a reader of {name!r} at {self._format_time(at)}", at))

    def scd2(
        self, name: str, valid_from: str = "valid_from", valid_to: str = "valid_to", current: str = "current"
    ) -> pa.Table:
        """Return the versions of an input or a count from `since` on, as a slowly changing dimension of type 2.

        Parameters
        ----------
        name : str
            The input, or an output that is a count.
        valid_from, valid_to, current : str
            The names of the three added columns.

        Returns
        -------
        pyarrow.Table
            The row's columns; from when each version was valid, in the flow's type of time (null: from `since` or
            before); to when (null: it is current); and whether it is current, a boolean.

        Raises
        ------
        NotReadable
            For an unknown name, or a collection without a key.
        SpecError
            For a name that is a column already.

        Notes
        -----
        O(v), for v versions.  See `ddflow.engine.read.history`.
        """
        with self.dataflow.at_rest("scd2") as still:
            return scd2(still.graph, self.node(name), still.since, (valid_from, valid_to, current))

    def why(
        self, name: str, key: Any, log: Any = None, as_of: Time | None = None, *, between: Sequence[Time] | None = None
    ) -> Story | Origins:
        """Tell why a row is there: the story of an input's key, or the inputs' rows that make an output's row.

        The story of a key has its rows, past and present, its pending events, and the verdicts of its events in a log.
        For an output, it has the input rows that make the rows with these values. Both name sources and positions.

        Parameters
        ----------
        name : str
            The input or output; the input if both have the name.
        key : scalar, sequence or mapping
            The key's value; values in the order of the key columns; or a mapping by column. For an output: values by
            column, of some columns or all; the rows that have them are explained together, 100 at most.
        log : table or iterable of tables, optional
            As for `ddflow.verify`. Each part of an iterable is one epoch. For an output a mapping by input, or the log
            of its only input of upserts; the keys of the found rows get stories, 100 of an input at most.
        as_of : int, date, datetime or str, optional
            For an output: a closed time, not before `since`. By default the last closed one.
        between : tuple of two times, optional
            For an output: the changes after the first, up to and with the second, of its rows and their input rows.

        Returns
        -------
        Story or Origins
            Prints as text.

        Raises
        ------
        NotReadable
            For an unknown name, a value of another type than its column, a time that cannot be read, or an output of
            inputs that are not kept.
        LogUnclear
            For a log that differs from the input's calls.
        DdflowError
            Also `TimeWentBack`, `TieRefused`, and the errors of `Engine.step` for rows that the input does not take.

        Notes
        -----
        O(runs + pending events), and O(n) for n events of a log. For an output O(n log n), for n rows of all
        collections that it is made of, and O(n) for n events of the log for each key. A missing row has no explanation.

        Examples
        --------
        >>> import ddflow as dd
        >>> flow = dd.Flow()
        >>> people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
        >>> _ = flow.output("by_city", people.project(["city"]).count())
        >>> with flow.open(retain=9) as engine:
        ...     _ = engine.step({"people": {"id": [1, 2], "city": ["Bern", "Chur"]}}, 1)
        ...     engine.why("by_city", {"city": "Bern"}).rows["people"].to_pylist()
        ...     _ = engine.step({"people": {"id": [1], "city": ["Chur"]}}, 2)
        ...     engine.why("by_city", {"city": "Bern"}, between=(1, 2)).rows["people"].to_pylist()
        [{'id': 1, 'city': 'Bern', '_diff': 1}]
        [{'id': 1, 'city': 'Bern', '_diff': -1}]
        """
        with self.dataflow.at_rest("why") as still:
            if name in self.flow.outputs and name not in self.flow.inputs:
                if between is not None:
                    return self._why_between(still, name, key, between, beside=log is not None or as_of is not None)
                time = self.closed(f"why of {name!r} as of {self._format_time(as_of)}", as_of, still)
                return find_origins(still, name, key, time, log)
            if (as_of is not None or between is not None) and name in self.flow.inputs:
                found = "the story of a key tells of all times that are kept"
                remedy = f"leave {'between' if as_of is None else 'as_of'}= out, or name an output"
                raise NotReadable(f"why {key!r} of the input {name!r}", found, remedy, input=name)
            if name not in self.flow.inputs and name in (sides := self.flow.side_outputs()):
                raise told_only(f"why of {name!r}", name, sides[name][0])
            return why(still, name, key, log)

    def _why_between(self, still: Dataflow, name: str, key: Any, between: Any, *, beside: bool) -> Origins:
        """Explain why rows of an output changed. ``beside``: whether there is another option. Like `why`."""
        asked = f"why of {name!r} between {between!r:.99}"
        if beside or not isinstance(between, tuple | list) or len(between) != 2:
            found = "it is no pair of times" if not beside else Phrase("log= and ", Option("as_of"), " are of one time")
            raise NotReadable(
                asked, found, Phrase("give between=(t1, t2), two closed times, and neither log= nor ", Option("as_of"))
            )
        asked = f"why of {name!r} from {self._format_time(between[0])} to {self._format_time(between[1])}"
        first, last = (self.closed(asked, time, still) for time in between)
        if last < first:
            raise TimeWentBack(asked, "the second time is before the first", "give the earlier time first")
        return find_origins(still, name, key, last, after=first)

    def node(self, name: str) -> Collection:
        """Find an output or an input by its name. Raises `NotReadable`."""
        node = self.flow.outputs.get(name) or self.flow.inputs.get(name)
        if node is None and name in (sides := self.flow.side_outputs()):
            raise told_only(f"read {name!r}", name, sides[name][0])
        if node is None:
            known = [*self.flow.outputs, *self.flow.inputs]
            remedy = f"{did_you_mean(name, dict.fromkeys(known))}; of one that the flow got since, open it again"
            raise NotReadable(f"read {name!r}", "that is no output or input", remedy)
        if lost := self.dataflow.graph.unkept(node):
            remedy = Phrase(
                "give ",
                Option("keep", True),
                " to flow.updates to have them arranged; the differences are in each step's ",
                "output",
            )
            raise NotReadable(f"read {name!r}", f"it is made of rows of the inputs {lost}, which are not kept", remedy)
        return node

    def closed(self, asked: str, time: Any, of: Dataflow | None = None) -> int:
        """Check that a time of a dataflow at rest can be read; the default is the last closed one."""
        of = self.dataflow if of is None else of
        time = max(of.last, of.since) if time is None else as_int64(asked, time, CLOSED, of.time_type)
        return check_readable(asked, time, of.since, of.frontier, kind=of.time_type)

    def _format_time(self, time: Any) -> str:
        return format_given_time(time, self.dataflow.time_type)


def _no_key(node: Collection, name: str) -> tuple[str, str]:
    """Return the finding and the remedy for a read by columns that are no key."""
    keys = [list(each) for each in node.unique_by()]
    remedy = f"engine.read({name!r}) gives all rows"
    if not keys:
        return "the plan proves no columns by which each row is another", remedy
    return f"a row is known by {' or by '.join(map(str, keys))}", f"give exactly these; {remedy}"


def told_only(asked: str, name: str, input: Input) -> NotReadable:
    """Make the error for an output that ``stale=`` or ``on_bad=`` adds: it has events, and a state holds rows."""
    adds = "on_bad='drop'" if name.endswith(".bad") else f"stale={input.spec.stale!r}"
    return NotReadable(
        asked,
        f"{adds} of the input {input.name!r} adds it: it tells of events, and a state holds rows",
        f"give it a sink in mode 'changelog'; or take its rows from each step, as step[{name!r}], from the files of "
        f"outputs=, or on Spark with readStream; the rows held are {input.name!r}",
        input=input.name,
    )
