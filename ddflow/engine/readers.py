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

import weakref
from typing import Protocol

import pyarrow as pa

from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.holds import went_back
from ddflow.errors import NotReadable
from ddflow.storage.closing import Closing
from ddflow.time import CLOSED, Time, as_int64, as_shown, shown


class Followed(Protocol):
    """What a reader needs of an engine."""

    dataflow: Dataflow

    def read(self, name: str, as_of: Time | None = None) -> pa.Table:
        """A collection as of a time; raises `NotReadable`."""

    def changes(self, name: str, t1: Time, t2: Time) -> pa.Table:
        """The net changes of a collection from one time to another; raises `NotReadable`."""

    def closed(self, asked: str, time: Time | None) -> int:
        """A time that can be read, checked, within a turn; by default the last closed one.  Raises `NotReadable`."""


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
        """The time at which it stands, an int64: `read` reads there, and `changes_to` begins there."""
        return self._hold.time

    def read(self, as_of: Time | None = None) -> pa.Table:
        """The collection at the reader's own time, or at another.

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
        with self._engine.dataflow.guard.use("advance a reader"):
            self._engine.dataflow.holds.advance(self._hold, self._to("advance", time))

    def changes_to(self, time: Time | None = None) -> pa.Table:
        """The net changes from the reader's own time to a closed one; then the reader goes on to that one.

        Call it again and again to follow a collection: what it returns adds up, from ``read()`` on, to the collection.
        When it raises, the reader stays where it was.

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
        with self._engine.dataflow.guard.use("changes of a reader"):
            to = self._to("changes", time)
        out = self._engine.changes(self.name, self.time, to)
        self._engine.dataflow.holds.advance(self._hold, to)
        return out

    def _to(self, what: str, time: Time | None) -> int:
        kind = self._engine.dataflow.time_type
        asked = f"{what} of a reader of {self.name!r} to {as_shown(time, kind)}"
        to = None if time is None else as_int64(asked, time, CLOSED, kind)
        if to is not None and to < self.time:
            raise went_back(to, self.time, kind)
        return self._engine.closed(asked, to)

    def _must_be_open(self, what: str) -> None:
        if self.closed:
            raise NotReadable(
                f"{what} of a reader of {self.name!r}",
                f"it was closed at time {self._shown}",
                f"open another one: engine.reader({self.name!r})",
            )

    @property
    def _shown(self) -> str:
        return shown(self.time, self._engine.dataflow.time_type)

    def __repr__(self) -> str:
        return f"Reader({self.name!r}, {'closed ' if self.closed else ''}at {self._shown})"
