"""Readers: each follows a collection at its own pace, and history stays readable for it.

Invariant: a reader's own time can be read for as long as the reader lives. ``since`` is never above the least time that
a reader holds, and never retreats. A reader may be dropped without being closed. Then Python's garbage collector gives
up its claim, at any time, in any thread, even while this registry is being changed. So giving up only puts a note into
a queue, and the next question reads the queue. Several readers share one arrangement: a reader holds back history, not
a copy. Without readers, ``retain=`` alone says how much history stays. (differential-dataflow's ``TraceHandle``:
readers hold compaction back by a frontier each, and downgrade it themselves.)

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> with flow.open() as engine:
...     _ = engine.step({"people": pa.table({"id": [1]})}, time=1)
...     with engine.reader("people") as reader:
...         _ = engine.step({"people": pa.table({"id": [2]})}, time=2)
...         engine.since, reader.changes_to().to_pylist(), reader.time
(1, [{'id': 2, '_diff': 1}], 2)
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from threading import Event
from time import monotonic
from typing import Any, Final, Protocol

import pyarrow as pa

from ddflow.columns.names import DIFF
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.holds import went_back
from ddflow.dataflow.result import Step, Verdicts
from ddflow.engine.read.history import subtract
from ddflow.errors import NotReadable
from ddflow.operators.updates import ints
from ddflow.plan.collection import Collection
from ddflow.storage.closing import Closing
from ddflow.time import CLOSED, Time, as_int64, format_given_time, format_time

PAUSE: Final = 1.0
"""Seconds after which a waiting reader checks that the engine still runs."""


class Followed(Protocol):
    """The methods of an engine that a reader calls."""

    dataflow: Dataflow

    def read(self, name: str, as_of: Time | None = None) -> pa.Table:
        """Read a collection as of a time. Raises `NotReadable`."""

    def get_as_of(self, name: str, key: Mapping[str, Any], as_of: Time | None) -> dict[str, Any] | None:
        """Return a row by its key. Raises `NotReadable`, `SpecError`."""

    def changes(self, name: str, t1: Time, t2: Time) -> pa.Table:
        """Return the net changes of a collection between two times. Raises `NotReadable`."""

    def closed(self, asked: str, time: Time | None, of: Dataflow | None = None) -> int:
        """Check, within a turn, that a time can be read; the default is the last closed one. Raises `NotReadable`."""

    def node(self, name: str) -> Collection:
        """Find a collection by its name. Raises `NotReadable`."""


class Reader(Closing):
    """Follows one collection.  ``engine.reader(name)`` makes it; use it in a ``with``, or close it.

    While it lives, the engine's ``since`` does not pass its `time`, so you can read everything from there on.  Until it
    advances, this takes the memory of the history that it keeps, for all collections of the engine.  A reader that you
    drop without closing frees its history when it is garbage-collected.

    Attributes
    ----------
    name : str
        The output or input that it reads.

    Notes
    -----
    After differential-dataflow's ``TraceHandle``: each reader keeps back compaction by its own frontier.
    """

    def __init__(self, engine: Followed, name: str, at: int) -> None:
        self._engine, self.name = engine, name
        self._hold = engine.dataflow.holds.add(at)
        # Not a method of this reader: the finalizer must not keep it alive.
        self._finalizer = weakref.finalize(self, engine.dataflow.holds.let_go, self._hold)
        self._finalizer.atexit = False

    def close(self) -> None:
        """Free the history that it keeps.  You may call it twice, and from any thread."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return not self._finalizer.alive

    @property
    def time(self) -> int:
        """The reader's time, an int64: `read` reads there, and `changes_to` begins there."""
        return self._hold.time

    def read(self, as_of: Time | None = None) -> pa.Table:
        """Read the collection at the reader's time, or at another.

        Parameters
        ----------
        as_of : int, date, datetime or str, optional
            A time that can be read.  By default the reader's own.

        Returns
        -------
        pyarrow.Table
            The row's columns, then ``_diff`` (int64), consolidated.

        Raises
        ------
        NotReadable
            As ``engine.read`` does, and once the reader is closed.

        Notes
        -----
        The cost is that of ``engine.read``.
        """
        self._must_be_open("read")
        return self._engine.read(self.name, self.time if as_of is None else as_of)

    def get(self, /, **key: Any) -> dict[str, Any] | None:
        """Look up the row of a key or a group at the reader's time, like ``engine.get``.

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
            As ``engine.get`` does; once the reader is closed.

        Notes
        -----
        O(log n) for each run that is kept.
        """
        self._must_be_open("get")
        return self._engine.get_as_of(self.name, key, self.time)

    def advance_to(self, time: Time | None = None) -> None:
        """Go on to a closed time, and free the history before it.

        Parameters
        ----------
        time : int, date, datetime or str, optional
            By default the last closed time.

        Raises
        ------
        TimeWentBack
            If ``time`` is before the reader's own.
        NotReadable
            If ``time`` is not closed, or the reader is.

        Notes
        -----
        O(log r), for r readers.
        """
        self._must_be_open("advance")
        with self._engine.dataflow.guard.look("advance a reader"):
            self._engine.dataflow.holds.advance(self._hold, self._to("advance", time))

    def changes_to(self, time: Time | None = None) -> pa.Table:
        """Return the net changes from the reader's time to a closed time, and move the reader to it.

        Call it repeatedly to follow a collection: its results add up, from ``read()`` on, to the collection. If it
        raises, the reader does not move.

        Parameters
        ----------
        time : int, date, datetime or str, optional
            By default the last closed time.

        Returns
        -------
        pyarrow.Table
            The net changes, as ``engine.changes`` gives them.

        Raises
        ------
        TimeWentBack, NotReadable
            As `advance_to` and ``engine.changes`` do.

        Notes
        -----
        The cost is that of ``engine.changes``.
        """
        self._must_be_open("changes")
        with self._engine.dataflow.guard.look("changes of a reader"):
            to = self._to("changes", time)
        out = self._engine.changes(self.name, self.time, to)
        self._engine.dataflow.holds.advance(self._hold, to)
        return out

    def changes(self, *, timeout: float | None = None) -> FollowedSteps:
        """Follow the collection: yield a `Step` for each step of the engine after the reader's time.

        Use it in a ``for`` or an ``async for``, on any thread except one that writes meanwhile. Each step moves the
        reader to its last time, so a second loop misses no step and repeats none. It ends when the reader or the engine
        is closed.

        Parameters
        ----------
        timeout : float, optional
            It also ends after so many seconds without a step; 0: with the last existing step.

        Returns
        -------
        FollowedSteps
            An iterator.  Each step has the updates of this collection, under its name.

        Raises
        ------
        EngineClosed
            From the iterator, if the engine failed, or was closed before the reader had all steps.

        Notes
        -----
        A step may come before its commit; `Step.committed` waits for that. Steps wait for readers in 64 MB of memory.
        History replaces steps that a slower reader missed, steps before it was opened, and all steps of an input that
        is no output. It gives the net changes since the reader's time as one step, stamped with the last time, without
        verdicts; in O(n), for n rows of the inputs.
        """
        self._must_be_open("changes")
        return FollowedSteps(self, timeout)

    def _next(self) -> tuple[int, Step] | None:
        """Return the first step after the reader's time, with its last time; None if there is none yet."""
        dataflow, name = self._engine.dataflow, self.name
        found = dataflow.recent.after(self.time)
        # Upserts are no differences: a reader makes them from the rows that are held.
        if found is not None and name in found[1] and found[1][name].schema.names[-1] == DIFF:
            last, step = found
            out = Step({name: step[name]}, step.verdicts, step.frontier)
            out.waits = step.waits
            return last, out
        if dataflow.last <= self.time:
            return None
        with dataflow.at_rest(f"changes of a reader of {name!r}") as still:
            kept = dataflow.recent.before(self.time) if found is None else found[0]
            node, last = self._engine.node(name), still.last if kept is None else min(kept, still.last)
            graph, first = still.graph, self._engine.closed("changes of a reader", self.time, still)
            net = subtract(graph.accumulated(node, last), graph.accumulated(node, first), still.secret)
            table = net._replace(times=ints(last)).to_table(node.schema, still.time_type)
            return last, Step({name: table}, Verdicts.of({}, still.pending), still.frontier)

    def _to(self, what: str, time: Time | None) -> int:
        kind = self._engine.dataflow.time_type
        asked = f"{what} of a reader of {self.name!r} to {format_given_time(time, kind)}"
        to = None if time is None else as_int64(asked, time, CLOSED, kind)
        if to is not None and to < self.time:
            raise went_back(to, self.time, kind)
        return self._engine.closed(asked, to)

    def _has_ended(self) -> bool:
        """Whether the last step has come. Raises `EngineClosed` if a failure is the reason."""
        dataflow = self._engine.dataflow
        if self.closed or (dataflow.recent.ended and dataflow.last <= self.time):
            return True
        if dataflow.guard.state != "open":
            with dataflow.guard.look(f"changes of a reader of {self.name!r} from {self._time_text} on"):
                """It was a step in hand."""
        return False

    def _must_be_open(self, what: str) -> None:
        if self.closed:
            raise NotReadable(
                f"{what} of a reader of {self.name!r}",
                f"it was closed at time {self._time_text}",
                f"open another one: engine.reader({self.name!r})",
            )

    @property
    def _time_text(self) -> str:
        return format_time(self.time, self._engine.dataflow.time_type)

    def __repr__(self) -> str:
        return f"Reader({self.name!r}, {'closed ' if self.closed else ''}at {self._time_text})"


class FollowedSteps:
    """The steps that a reader follows: an iterator, for ``for`` and ``async for``.  `Reader.changes` makes it."""

    def __init__(self, reader: Reader, timeout: float | None) -> None:
        self._reader, self._timeout = reader, timeout
        self._recent = reader._engine.dataflow.recent

    def __iter__(self) -> FollowedSteps:
        return self

    def __aiter__(self) -> FollowedSteps:
        return self

    def __next__(self) -> Step:
        ends, came = self._ends(), Event()
        with self._recent.waking(came.set):
            while True:
                came.clear()
                found, over = self._look_again()
                if found is not None:
                    return self._give(*found)
                pause = min(ends - monotonic(), PAUSE)
                if over or pause <= 0:
                    raise StopIteration
                came.wait(pause)

    async def __anext__(self) -> Step:
        asyncio: Any = importlib.import_module("asyncio")
        loop, ends, came = asyncio.get_running_loop(), self._ends(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(came.set)

        with self._recent.waking(wake):
            while True:
                came.clear()
                # What is cancelled here is found again: the reader goes on when its step is given.
                found, over = await asyncio.to_thread(self._look_again)
                if found is not None:
                    return self._give(*found)
                pause = min(ends - monotonic(), PAUSE)
                if over or pause <= 0:
                    raise StopAsyncIteration
                with suppress(TimeoutError):
                    await asyncio.wait_for(came.wait(), pause)

    def _ends(self) -> float:
        """Until when the next step is waited for."""
        return inf if self._timeout is None else monotonic() + self._timeout

    def _look_again(self) -> tuple[tuple[int, Step] | None, bool]:
        """Return the next step if it is there, and else whether the steps have ended."""
        found = None if self._reader.closed else self._reader._next()
        return found, found is None and self._reader._has_ended()

    def _give(self, last: int, step: Step) -> Step:
        """Move the reader to the step's last time and return the step."""
        self._reader._engine.dataflow.holds.advance(self._reader._hold, last)
        return step
