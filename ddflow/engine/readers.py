"""Readers: whoever follows a collection at a pace of its own, and what must stay readable for them.

Invariant: a reader's own time can be read for as long as the reader lives; ``since`` is never above the least time that
a reader holds, and never retreats. A reader may be forgotten without being closed, and then the garbage collector lets
go of it, at any moment, in any thread, even while this registry is being changed; so letting go only puts a note into a
queue, and whoever asks next reads the queue. Several readers share one arrangement: what is held back is history, not
a copy. Where there is no reader, ``retain=`` alone says how much history stays. (differential-dataflow's
``TraceHandle``: readers hold compaction back by a frontier each, and downgrade it themselves.)

>>> holds = Holds()
>>> slow, fast = holds.add(3), holds.add(5)
>>> holds.least(), len(holds)
(3, 2)
>>> holds.advance(slow, 9)
>>> holds.least()
5
>>> holds.let_go(fast)
>>> holds.let_go(slow)
>>> holds.least() == CLOSED
True
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from numbers import Integral
from types import TracebackType
from typing import Protocol

import pyarrow as pa
from sortedcontainers import SortedList

from ddflow.engine.call_guard import Turns
from ddflow.errors import NotReadable, TimeWentBack
from ddflow.time import CLOSED, shown


class Hold:
    """One claim on history: ``time`` and all later ones must stay readable.  Made and changed by `Holds` alone."""

    __slots__ = ("number", "time")

    def __init__(self, time: int, number: int) -> None:
        self.time, self.number = time, number

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands among the others; the number makes it one of its own among those of one time."""
        return self.time, self.number


class Holds:
    """The registry of an engine's readers: which times they hold.  ``len`` is how many there are.

    Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._held: SortedList = SortedList()
        self._left: deque[Hold] = deque()
        self._lock, self._numbers = threading.Lock(), itertools.count()

    def add(self, time: int) -> Hold:
        """Hold ``time`` back.  O(log n) expected."""
        hold = Hold(time, next(self._numbers))
        with self._lock:
            self._held.add(hold.place)
        return hold

    def advance(self, hold: Hold, to: int) -> None:
        """Let go of what is before ``to``; of a claim that was given up nothing is left to move.

        O(log n) expected.  Raises `TimeWentBack` for a time before the one it holds.
        """
        with self._lock:
            if to < hold.time:
                raise went_back(to, hold.time)
            self._sweep()
            if hold.place in self._held:
                self._held.remove(hold.place)
                hold.time = to
                self._held.add(hold.place)

    def let_go(self, hold: Hold) -> None:
        """Give a claim up; twice is harmless.  O(1).

        It takes no lock, so that a finalizer may call it in the middle of anything.
        """
        self._left.append(hold)

    def least(self) -> int:
        """The least time that is held, `CLOSED` when none is.  O(log n) for each claim given up since it was asked."""
        with self._lock:
            self._sweep()
            return int(self._held[0][0]) if self._held else CLOSED

    def __len__(self) -> int:
        with self._lock:
            self._sweep()
            return len(self._held)

    def _sweep(self) -> None:
        """Take out what was given up; the lock is held."""
        while self._left:
            self._held.discard(self._left.popleft().place)

    def _check(self) -> None:
        """Assert the invariant."""
        with self._lock:
            self._sweep()
            # Ascending, so that the first is the least; and no claim stands twice.
            assert list(self._held) == sorted(self._held)
            assert len({number for _, number in self._held}) == len(self._held)


def went_back(to: int, at: int) -> TimeWentBack:
    """The error for a reader that is to go to a time before its own."""
    return TimeWentBack(
        f"advance a reader to {shown(to)}",
        f"it is already at {shown(at)}",
        "times may not go back; open another reader with at=",
    )


class Readable(Protocol):
    """What a reader needs of an engine."""

    holds: Holds
    turns: Turns

    def read(self, name: str, as_of: int | None = None) -> pa.Table:
        """A collection as of a time; raises `NotReadable`."""

    def changes(self, name: str, t1: int, t2: int) -> pa.Table:
        """The net changes of a collection from one time to another; raises `NotReadable`."""

    def _closed(self, asked: str, time: int | None) -> int:
        """A time that can be read, checked, within a turn; by default the last closed one.  Raises `NotReadable`."""


class Reader:
    """Follows one collection; ``engine.reader(name)`` makes it.  Use it in a ``with``, or close it.

    ``name``: the output or source it reads.  `time`: where it stands.  While it lives, ``since`` of the engine does not
    pass that time, so everything from there on can be read; that costs the memory of the history it holds, for all
    collections of the engine, until it advances.  One that is forgotten lets go when it is collected as garbage.
    """

    def __init__(self, engine: Readable, name: str, at: int) -> None:
        self._engine, self.name = engine, name
        self._hold = engine.holds.add(at)
        # Not a method of this reader: the finalizer must not keep it alive.
        self._finalizer = weakref.finalize(self, engine.holds.let_go, self._hold)
        self._finalizer.atexit = False

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the history it holds; twice is harmless, and so is any thread."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether it has let go."""
        return not self._finalizer.alive

    @property
    def time(self) -> int:
        """The time it stands at: `read` reads there, and `changes_to` begins there."""
        return self._hold.time

    def read(self, as_of: int | None = None) -> pa.Table:
        """The collection at the reader's own time, or at another: its rows and ``_diff``, consolidated.

        Cost and errors are those of ``engine.read``; also `NotReadable` once the reader is closed.
        """
        self._must_be_open("read")
        return self._engine.read(self.name, self.time if as_of is None else as_of)

    def advance_to(self, time: int | None = None) -> None:
        """Go on to a closed time, by default the last one, and let go of what is before it.  O(log readers).

        Raises `TimeWentBack` for one before its own, `NotReadable` for one that is not closed, or when the reader is.
        """
        self._must_be_open("advance")
        with self._engine.turns.use("advance a reader"):
            self._engine.holds.advance(self._hold, self._to("advance", time))

    def changes_to(self, time: int | None = None) -> pa.Table:
        """What changed since the reader's own time, up to a closed one, by default the last; and go on to that.

        The net changes as ``engine.changes`` gives them.  Called again and again it is a follower's loop: what it
        returns adds up, from ``read()`` on, to the collection.  When it raises, the reader stands where it stood.
        Cost and errors are those of ``engine.changes``, and those of `advance_to`.
        """
        self._must_be_open("changes")
        with self._engine.turns.use("changes of a reader"):
            to = self._to("changes", time)
        out = self._engine.changes(self.name, self.time, to)
        self._engine.holds.advance(self._hold, to)
        return out

    def _to(self, what: str, time: int | None) -> int:
        if isinstance(time, Integral) and time < self.time:
            raise went_back(int(time), self.time)
        return self._engine._closed(f"{what} of a reader of {self.name!r} to {time!r}", time)

    def _must_be_open(self, what: str) -> None:
        if self.closed:
            raise NotReadable(
                f"{what} of a reader of {self.name!r}",
                "it was closed at time " + shown(self.time),
                f"open another one: engine.reader({self.name!r})",
            )

    def __repr__(self) -> str:
        return f"Reader({self.name!r}, {'closed ' if self.closed else ''}at {shown(self.time)})"
