"""Read an engine or a snapshot: `Reading` has the read methods of both, and `Reader` follows a collection.

Guarantees: each answer describes one time: the last closed time, or a time from `Reading.since` on, which never passes
the time of a `Reader`. Reads change nothing. Any thread can read beside the writer, and sees the last closed step.
"""

import importlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from threading import Event
from time import monotonic
from typing import Any, Final, TypeVar

import pyarrow as pa

from ddflow.columns.names import DIFF, did_you_mean
from ddflow.columns.row_views import make_row_dict
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import RowLookup
from ddflow.dataflow.holds import make_went_back_error
from ddflow.dataflow.result import Step, Verdicts
from ddflow.engine.lineage.key_history import build_key_history, convert_to_column_type
from ddflow.engine.lineage.rows import find_matching_rows, find_origin_rows
from ddflow.engine.lineage.story import Origins, Story
from ddflow.engine.read import history
from ddflow.engine.read.history import make_side_output_error
from ddflow.engine.stats import Inspectable
from ddflow.errors import ErrorText, NotReadable, Option, SpecError, TimeWentBack
from ddflow.operators.updates import consolidate, ints
from ddflow.plan.collection import Collection
from ddflow.storage.closing import Closing
from ddflow.time import CLOSED, Time, format_time, format_time_argument, time_to_int64

T = TypeVar("T")
PAUSE: Final = 1.0
"""The interval, in seconds, at which a waiting reader checks that the engine still runs."""


class Reader(Closing):
    """A reader of one collection, made by ``engine.reader(name)``.

    Use a reader in a ``with`` statement, or close it. ``since`` of the engine does not pass the `time` of a reader, so
    you can read all times from this time on. Their history takes memory until the reader advances, closes or is freed.

    Attributes
    ----------
    name : str
        The output or input that the reader reads.

    Notes
    -----
    The design follows ``TraceHandle`` of differential-dataflow: each reader limits compaction by its frontier.
    """

    def __init__(self, engine: "Reading", name: str, at: int) -> None:
        self._engine, self.name = engine, name
        self._hold = engine.dataflow.holds.add_hold(at)
        # The finalizer is not a method of this reader. A method would keep the reader alive. The garbage collector may
        # call `release_hold` at any time, so `release_hold` only appends to a queue, which the next read processes.
        self._finalizer = weakref.finalize(self, engine.dataflow.holds.release_hold, self._hold)
        self._finalizer.atexit = False

    def close(self) -> None:
        """Free the history that the reader keeps readable. You may call `close` repeatedly and from any thread."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether the reader is closed."""
        return not self._finalizer.alive

    @property
    def time(self) -> int:
        """The time of the reader, an int64. `read` reads at this time, and `changes_to` starts from it."""
        return self._hold.time

    def read(self, as_of: Time | None = None) -> pa.Table:
        """Read the collection at the reader's time, or at another readable time.

        Parameters
        ----------
        as_of : int, date, datetime or str, optional
            A readable time. By default the reader's time.

        Returns
        -------
        pyarrow.Table
            The row's columns, then ``_diff`` (int64), consolidated.

        Raises
        ------
        NotReadable
            As in ``engine.read``, and once the reader is closed.

        Notes
        -----
        `read` costs as much as ``engine.read``.
        """
        self._check_open("read")
        ask = partial(self._engine.read, self.name)
        return self._retry_if_reader_moved(ask) if as_of is None else ask(as_of)

    def get(self, /, **key: Any) -> dict[str, Any] | None:
        """Look up the row of a key or a group, as ``engine.get`` does, but at the reader's time.

        Parameters
        ----------
        **key : scalar
            A value for each column of a key.

        Returns
        -------
        dict or None
            The row by column; None if there is none.

        Raises
        ------
        SpecError, NotReadable
            As in ``engine.get``, and once the reader is closed.

        Notes
        -----
        O(log n) for each run of stored rows.
        """
        self._check_open("get")
        return self._retry_if_reader_moved(partial(self._engine.get_as_of, self.name, key))

    def _retry_if_reader_moved(self, ask: Callable[[int], T]) -> T:
        """Call ``ask`` with the reader's time. Repeat the call if another thread moved the reader meanwhile."""
        while True:
            time = self.time
            try:
                return ask(time)
            except NotReadable:
                if self.time == time:
                    raise

    def advance_to(self, time: Time | None = None) -> None:
        """Move the reader to a closed time, and free the history before this time.

        Parameters
        ----------
        time : int, date, datetime or str, optional
            The default is the last closed time.

        Raises
        ------
        TimeWentBack
            If ``time`` is before the reader's time.
        NotReadable
            If ``time`` is not closed, or the reader is closed.

        Notes
        -----
        O(log r), for r readers.
        """
        self._check_open("advance")
        with self._engine.dataflow.guard.lock_for_read("advance a reader"):
            self._engine.dataflow.holds.advance_hold(self._hold, self._parse_target_time("advance", time))

    def changes_to(self, time: Time | None = None) -> pa.Table:
        """Return the net changes from the reader's time to a closed time, and move the reader to the closed time.

        Call `changes_to` repeatedly to follow a collection. The rows of one ``read()`` plus all later results are the
        rows of the collection at the reader's time. If the method raises an error, the reader does not move.

        Parameters
        ----------
        time : int, date, datetime or str, optional
            The default is the last closed time.

        Returns
        -------
        pyarrow.Table
            The net changes, as ``engine.changes`` returns them.

        Raises
        ------
        TimeWentBack, NotReadable
            As in `advance_to` and ``engine.changes``.

        Notes
        -----
        `changes_to` costs as much as ``engine.changes``.
        """
        self._check_open("changes")
        with self._engine.dataflow.guard.lock_for_read("changes of a reader"):
            to = self._parse_target_time("changes", time)
        out = self._engine.changes(self.name, self.time, to)
        self._engine.dataflow.holds.advance_hold(self._hold, to)
        return out

    def changes(self, *, timeout: float | None = None) -> "StepIterator":
        """Follow the collection: yield a `Step` for each step of the engine after the reader's time.

        Use the result in a ``for`` or an ``async for``, on any thread that does not write during the loop. Each step
        moves the reader to the last time of the step. So a second loop neither misses nor repeats a step. The loop ends
        when the reader or the engine is closed.

        Parameters
        ----------
        timeout : float, optional
            The seconds without a step after which the iterator also ends. With 0 it ends after the last existing step.

        Returns
        -------
        StepIterator
            An iterator. Each step has the updates of this collection, under its name.

        Raises
        ------
        EngineClosed
            From the iterator, if the engine failed, or was closed before the reader had all steps.

        Notes
        -----
        A step can arrive before its commit. `Step.committed` waits for the commit. Memory holds at most 64 MB of steps
        that readers have not read. If steps are no longer in memory, or the reader follows an input that is not an
        output, the reader gets a single step with the net changes since the reader's time. This single step is computed
        from history. The computed step has no verdicts, and all updates of this step have the last closed time. The
        step costs O(n) for n rows of the inputs.
        """
        self._check_open("changes")
        return StepIterator(self, timeout)

    def _find_next_step(self) -> tuple[int, Step] | None:
        """Return the first step after the reader's time, and the step's last time. Return None if there is no step."""
        dataflow, name = self._engine.dataflow, self.name
        found = dataflow.recent.find_step_after(self.time)
        # An output of upserts has no differences, so differences are computed from the held rows.
        if found is not None and name in found[1] and found[1][name].schema.names[-1] == DIFF:
            last, step = found
            out = Step({name: step[name]}, step.verdicts, step.frontier)
            out.waits = step.waits
            return last, out
        if dataflow.last <= self.time:
            return None
        with dataflow.open_read_copy(f"changes of a reader of {name!r}") as still:
            kept = dataflow.recent.find_resume_time(self.time) if found is None else found[0]
            node, last = self._engine.node(name), still.last if kept is None else min(kept, still.last)
            graph, first = still.graph, self._engine.closed("changes of a reader", self.time, still)
            total = partial(graph.accumulate_rows, node)
            net = history.subtract_rows(total(last), total(first), still.secret)
            table = net._replace(times=ints(last)).to_table(node.schema, still.time_type)
            return last, Step({name: table}, Verdicts.of({}, still.pending_count), still.frontier)

    def _parse_target_time(self, what: str, time: Time | None) -> int:
        kind = self._engine.dataflow.time_type
        asked = f"{what} of a reader of {self.name!r} to {format_time_argument(time, kind)}"
        to = None if time is None else time_to_int64(asked, time, CLOSED, kind)
        if to is not None and to < self.time:
            raise make_went_back_error(to, self.time, kind)
        return self._engine.closed(asked, to)

    def _has_ended(self) -> bool:
        """Return whether all steps have arrived. Raises `EngineClosed` if the engine has failed."""
        dataflow = self._engine.dataflow
        if self.closed or (dataflow.recent.ended and dataflow.last <= self.time):
            return True
        if dataflow.guard.state != "open":
            with dataflow.guard.lock_for_read(f"changes of a reader of {self.name!r} from {self._formatted_time} on"):
                """Taking the lock waits for a running step, and raises an error if the engine failed."""
        return False

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise NotReadable(
                f"{what} of a reader of {self.name!r}",
                f"it was closed at time {self._formatted_time}",
                f"open another reader: engine.reader({self.name!r})",
            )

    @property
    def _formatted_time(self) -> str:
        return format_time(self.time, self._engine.dataflow.time_type)

    def __repr__(self) -> str:
        return f"Reader({self.name!r}, {'closed ' if self.closed else ''}at {self._formatted_time})"


class StepIterator:
    """An iterator over the steps that a reader follows, for ``for`` and ``async for``. `Reader.changes` makes it."""

    def __init__(self, reader: Reader, timeout: float | None) -> None:
        self._reader, self._timeout = reader, timeout
        self._recent = reader._engine.dataflow.recent

    def __iter__(self) -> "StepIterator":
        return self

    def __aiter__(self) -> "StepIterator":
        return self

    def __next__(self) -> Step:
        ends, came = self._choose_deadline(), Event()
        with self._recent.call_on_each_step(came.set):
            while True:
                came.clear()
                found, over = self._poll_step()
                if found is not None:
                    return self._advance_reader(*found)
                pause = min(ends - monotonic(), PAUSE)
                if over or pause <= 0:
                    raise StopIteration
                came.wait(pause)

    async def __anext__(self) -> Step:
        asyncio: Any = importlib.import_module("asyncio")
        loop, ends, came = asyncio.get_running_loop(), self._choose_deadline(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(came.set)

        with self._recent.call_on_each_step(wake):
            while True:
                came.clear()
                # A cancelled call loses no step, because the reader moves only when `__anext__` returns a step.
                found, over = await asyncio.to_thread(self._poll_step)
                if found is not None:
                    return self._advance_reader(*found)
                pause = min(ends - monotonic(), PAUSE)
                if over or pause <= 0:
                    raise StopAsyncIteration
                with suppress(TimeoutError):
                    await asyncio.wait_for(came.wait(), pause)

    def _choose_deadline(self) -> float:
        """Return the clock time at which the wait for the next step ends."""
        return inf if self._timeout is None else monotonic() + self._timeout

    def _poll_step(self) -> tuple[tuple[int, Step] | None, bool]:
        """Return the next step or None, and whether all steps have arrived."""
        found = None if self._reader.closed else self._reader._find_next_step()
        return found, found is None and self._reader._has_ended()

    def _advance_reader(self, last: int, step: Step) -> Step:
        """Move the reader to the last time of the step. Return the step."""
        self._reader._engine.dataflow.holds.advance_hold(self._reader._hold, last)
        return step


class Reading(Inspectable):
    """Methods that read outputs and inputs of an engine or a snapshot at any readable time.

    >>> import pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> with flow.open(retain=5) as engine:
    ...     for time in (1, 2):
    ...         _ = engine.step({"people": pa.table({"id": [time]})}, time)
    ...     engine.read("people").num_rows, engine.read("people", as_of=1).num_rows, \
engine.changes("people", 1, 2).num_rows
    (2, 1, 1)
    """

    @property
    def last(self) -> int:
        """The last closed time, an int64."""
        return self.dataflow.last

    def output_schema(self, name: str) -> pa.Schema:
        """Return the schema of an output's table in a `Step`.

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
        """Read an output or an input at the last closed time or an earlier time.

        Parameters
        ----------
        name : str
            The output or input.
        as_of : int, date, datetime or str, optional
            A closed time, not before `since`. The default is the last closed time.

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
        O(n), for n rows of the inputs that the collection depends on.

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
        with self.dataflow.open_read_copy("read") as still:
            node = self.node(name)
            if as_of is not None:
                as_of = self.closed(f"read {name!r} as of {self._format_time(as_of)}", as_of, still)
            return still.graph.read_collection(node, as_of)

    def get(self, name: str, /, **key: Any) -> dict[str, Any] | None:
        """Look up the row of a key or a group without reading other rows.

        Parameters
        ----------
        name : str
            The output or input.
        **key : scalar
            A value for each column of a key that the plan proves, such as the key of an upsert, the columns of a group,
            or the key of ``to_upserts``.

        Returns
        -------
        dict or None
            The row by column; None if there is none.

        Raises
        ------
        SpecError
            For columns that are not a key, or if the plan proves no key; `read` returns all rows.
        NotReadable
            For an unknown name, or a value of another type than its column.

        Notes
        -----
        O(1) expected in memory, else O(log n) for each run on disk, plus O(k) for a top of k rows. O(n) if neither the
        rows nor, for a top, its input's rows are stored by the columns of ``key``, as for a join.

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
        """Look up a row as `get` does, but as of a given time. The default is the last closed time."""
        dataflow, time = self.dataflow, None
        with dataflow.guard.lock_for_read("get"):
            lookup = dataflow.graph.lookups.get((name, *key)) or self._prepare_lookup(name, key)
            given = [convert_to_column_type(lookup.fields[i], key[c], lookup.asked) for i, c in enumerate(key)]
            if as_of is not None:
                time = self.closed(f"{lookup.asked} as of {self._format_time(as_of)}", as_of)
            found = lookup.find_rows(given, time) if lookup.is_possible else None
        if found is None:
            with dataflow.open_read_copy("get") as still:
                time = None if as_of is None else self.closed(lookup.asked, as_of, still)
                found = find_matching_rows(still, lookup.node, dict(zip(key, given, strict=True)), time)
        if found.diffs.size > 1 or (found.diffs.size and found.diffs[0] != 1):
            found = consolidate(found, dataflow.secret)
        return make_row_dict(found.rows, lookup.shown) if found.diffs.size else None

    def _prepare_lookup(self, name: str, key: Mapping[str, Any]) -> RowLookup:
        """Prepare the look-up of an output or an input by the columns of ``key``, for this and further calls."""
        node, asked, graph = self.node(name), f"get {name!r} by {list(key)}", self.dataflow.graph
        keys, remedy = [list(each) for each in node.unique_by()], f"engine.read({name!r}) returns all rows"
        if not keys:
            raise SpecError(asked, "the plan proves no key for its rows", remedy)
        if not any(key.keys() == {*each} for each in keys):
            found = f"a row is identified by {' or by '.join(map(str, keys))}"
            raise SpecError(asked, found, f"pass exactly these columns; {remedy}")
        graph.lookups[name, *key] = lookup = RowLookup(graph, node, list(key), asked)
        return lookup

    def changes(self, name: str, t1: Time, t2: Time | None = None) -> pa.Table:
        """Return the net differences of an output or an input from one time to another time.

        The contents at ``t1`` plus these differences are the contents at ``t2``.

        Parameters
        ----------
        name : str
            The output or input.
        t1 : int, date, datetime or str
            A closed time, not before `since`. Updates after it count.
        t2 : int, date, datetime or str, optional
            A closed time. Updates up to and including it count. The default is the last closed time.

        Returns
        -------
        pyarrow.Table
            The row's columns, then ``_diff`` (int64), consolidated.

        Raises
        ------
        NotReadable
            As in `read`.
        TimeWentBack
            If ``t2`` is before ``t1``.
        CountOverflow
            If a multiplicity, or the difference of two multiplicities, does not fit int64.

        Notes
        -----
        O(n), for n rows of the inputs that the collection depends on.
        """
        with self.dataflow.open_read_copy("changes") as still:
            node, until = self.node(name), "now" if t2 is None else self._format_time(t2)
            asked = f"changes of {name!r} from {self._format_time(t1)} to {until}"
            return history.compute_net_changes(
                still.graph, node, self.closed(asked, t1, still), self.closed(asked, t2, still)
            )

    def reader(self, name: str, at: Time | None = None) -> Reader:
        """Make a reader of an output or an input. While the reader is open, `since` does not pass the reader's time.

        Parameters
        ----------
        name : str
            The output or input.
        at : int, date, datetime or str, optional
            The reader's time, which is closed and not before `since`. The default is the last closed time.

        Returns
        -------
        Reader
            Use it in a ``with`` statement, or close it.

        Raises
        ------
        NotReadable
            As in `read`.

        Notes
        -----
        O(log r), for r readers.
        """
        with self.dataflow.guard.lock_for_read("reader", nests=False):
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
            The row's columns and three more: the time when a version began (null: at `since` or before), the time when
            it ended (null: it is current), and whether it is current, a boolean.

        Raises
        ------
        NotReadable
            For an unknown name, or a collection without a key.
        SpecError
            For an added column with the name of an existing column.

        Notes
        -----
        O(v), for v versions. See `ddflow.engine.read.history`.
        """
        with self.dataflow.open_read_copy("scd2") as still:
            return history.build_scd2_table(still.graph, self.node(name), still.since, (valid_from, valid_to, current))

    def why(
        self, name: str, key: Any, log: Any = None, as_of: Time | None = None, *, between: Sequence[Time] | None = None
    ) -> Story | Origins:
        """Explain why a row exists: for an input by the story of a key, for an output by the input rows behind the row.

        The story of a key has its past and present rows, its pending events, and the verdicts of its events in a log.
        For an output, the answer has the input rows behind its rows. Both answers name sources and positions.

        Parameters
        ----------
        name : str
            The input or output. The input, if an output has the same name.
        key : scalar, sequence or mapping
            For an input: the key's value, its values in order, or a mapping by column. For an output: values by column.
            The call explains all rows with these values together, at most 100.
        log : table or iterable of tables, optional
            As for `ddflow.verify`; each part of an iterable is one epoch. For an output: a mapping of input to log, or
            the log of its only upsert input. Keys of found rows get stories, at most 100 for each input.
        as_of : int, date, datetime or str, optional
            For an output, a closed time, not before `since`. The default is the last closed time.
        between : tuple of two times, optional
            For an output, explain the changes of its rows after the first time, up to and including the second time.

        Returns
        -------
        Story or Origins
            The explanation, which prints as text.

        Raises
        ------
        NotReadable
            For an unknown name, a value of another type than its column, or a time that cannot be read. Also for an
            output of inputs whose rows are not kept.
        LogUnclear
            For a log that does not match the input's recorded calls.
        DdflowError
            `TimeWentBack`, `TieRefused`, and the errors of `Engine.step` for rows that do not fit the input.

        Notes
        -----
        O(runs + pending events), and O(n) for n events of a log. For an output: O(n log n) for n rows of all
        collections that it depends on, plus O(n) for n log events of each key. Missing rows are not explained.

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
        with self.dataflow.open_read_copy("why") as still:
            if name in self.flow.outputs and name not in self.flow.inputs:
                if between is not None:
                    return self._explain_changes(still, name, key, between, beside=log is not None or as_of is not None)
                time = self.closed(f"why of {name!r} as of {self._format_time(as_of)}", as_of, still)
                return find_origin_rows(still, name, key, time, log)
            if (as_of is not None or between is not None) and name in self.flow.inputs:
                found = "the story of a key covers all kept times"
                remedy = f"omit {'between' if as_of is None else 'as_of'}=, or name an output"
                raise NotReadable(f"why {key!r} of the input {name!r}", found, remedy, input=name)
            if name not in self.flow.inputs and name in (sides := self.flow.side_outputs()):
                raise make_side_output_error(f"why of {name!r}", name, sides[name][0])
            return build_key_history(still, name, key, log)

    def _explain_changes(self, still: Dataflow, name: str, key: Any, between: Any, *, beside: bool) -> Origins:
        """Explain how output rows changed, for `Reading.why`. ``beside``: whether ``log`` or ``as_of`` was passed."""
        asked = f"why of {name!r} between {between!r:.99}"
        if beside or not isinstance(between, tuple | list) or len(between) != 2:
            both = ErrorText("log= and ", Option("as_of"), " apply to one time")
            remedy = ErrorText("pass between=(t1, t2) with two closed times, and neither log= nor ", Option("as_of"))
            raise NotReadable(asked, both if beside else "it is not a pair of times", remedy)
        asked = f"why of {name!r} from {self._format_time(between[0])} to {self._format_time(between[1])}"
        first, last = (self.closed(asked, time, still) for time in between)
        if last < first:
            raise TimeWentBack(asked, "the second time is before the first", "pass the earlier time first")
        return find_origin_rows(still, name, key, last, after=first)

    def node(self, name: str) -> Collection:
        """Find an output or an input by its name. Raises `NotReadable`."""
        node = self.flow.outputs.get(name) or self.flow.inputs.get(name)
        if node is None and name in (sides := self.flow.side_outputs()):
            raise make_side_output_error(f"read {name!r}", name, sides[name][0])
        if node is None:
            known = [*self.flow.outputs, *self.flow.inputs]
            remedy = f"{did_you_mean(name, dict.fromkeys(known), 'names')}; if you added it since, open the flow again"
            raise NotReadable(f"read {name!r}", "there is no such output or input", remedy)
        if lost := self.dataflow.graph.list_stateless_inputs(node):
            why, keep = self.dataflow.graph.explain_missing_rows(lost)
            remedy = ErrorText(keep, " to keep them; the differences are in each step's output")
            raise NotReadable(f"read {name!r}", f"it is made of rows of the inputs {lost}, which are {why}", remedy)
        return node

    def closed(self, asked: str, time: Any, of: Dataflow | None = None) -> int:
        """Check that a time can be read from a dataflow, and return the time. The default is the last closed time."""
        of = self.dataflow if of is None else of
        time = max(of.last, of.since) if time is None else time_to_int64(asked, time, CLOSED, of.time_type)
        return history.check_readable_time(asked, time, of.since, of.frontier, kind=of.time_type)

    def _format_time(self, time: Any) -> str:
        return format_time_argument(time, self.dataflow.time_type)
