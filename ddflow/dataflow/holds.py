"""Track the times that readers need, so that history stays readable, and keep recent steps for readers.

`HistoryHolds.find_least_time` returns the least time of all holds that are not released. `RecentSteps` keeps the last
steps, without a gap, until all readers have read them or the steps exceed `MOST` bytes. A reader that needs older
changes reads them from history.

Guarantees: both classes are safe to use from any thread. `release_hold` takes no lock, because a finalizer may call it
at any point.

>>> holds = HistoryHolds()
>>> first, second = holds.add_hold(3), holds.add_hold(5)
>>> holds.release_hold(first)
>>> holds.find_least_time()
5
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from sortedcontainers import SortedList

from ddflow.dataflow.result import Step
from ddflow.errors import ErrorText, Option, TimeWentBack
from ddflow.time import CLOSED, INT64, format_time

MOST: Final = 1 << 26
"""The maximum bytes of updates in kept steps. If a reader falls further behind, it reads history."""


class HistoryHold:
    """A claim that a reader makes: all reads at ``time`` and later must stay possible.

    `HistoryHolds` creates and changes it.
    """

    __slots__ = ("number", "time")

    def __init__(self, time: int, number: int) -> None:
        self.time, self.number = time, number

    @property
    def sort_key(self) -> tuple[int, int]:
        """The position of the hold in the order of all holds.

        The number distinguishes holds that have the same time.
        """
        return self.time, self.number


class HistoryHolds:
    """The registry of the times that an engine's readers hold. ``len(holds)`` is the number of holds.

    All methods are safe to use from any thread.
    """

    def __init__(self) -> None:
        self._held: SortedList = SortedList()
        self._left: deque[HistoryHold] = deque()
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self.used = False
        """Whether there ever was a hold."""

    def add_hold(self, time: int) -> HistoryHold:
        """Add a hold at ``time``. O(log n) expected."""
        hold = HistoryHold(time, next(self._numbers))
        with self._lock:
            self.used = True
            self._held.add(hold.sort_key)
        return hold

    def advance_hold(self, hold: HistoryHold, to: int) -> None:
        """Move a hold to the later time ``to``. A hold that was released stays released.

        O(log n) expected. Raises `TimeWentBack` if ``to`` is before the time of the hold.
        """
        with self._lock:
            if to < hold.time:
                raise make_went_back_error(to, hold.time)
            self._drop_ended_holds()
            if hold.sort_key in self._held:
                self._held.remove(hold.sort_key)
                hold.time = to
                self._held.add(hold.sort_key)

    def release_hold(self, hold: HistoryHold) -> None:
        """Release a hold. A second call does nothing. O(1).

        The method takes no lock, so a finalizer may call it at any point.
        """
        self._left.append(hold)

    def find_least_time(self) -> int:
        """Return the least held time, or `CLOSED` if there are no holds.

        O(log n) for each hold that was released since the last call.
        """
        with self._lock:
            if self._left:
                self._drop_ended_holds()
            return int(self._held[0][0]) if self._held else CLOSED

    def __len__(self) -> int:
        with self._lock:
            self._drop_ended_holds()
            return len(self._held)

    def _drop_ended_holds(self) -> None:
        """Remove the released holds from the registry. The caller must hold the lock."""
        while self._left:
            self._held.discard(self._left.popleft().sort_key)

    def _check_invariants(self) -> None:
        """Assert the invariants."""
        with self._lock:
            self._drop_ended_holds()
            # Holds are sorted, so the first hold has the least time. No hold occurs twice.
            assert list(self._held) == sorted(self._held)
            assert len({number for _, number in self._held}) == len(self._held)


class RecentSteps:
    """The most recent steps of an engine that has readers.

    ``nbytes``: the bytes of the updates in these steps. ``ended``: whether no more steps will arrive.

    All methods are safe to use from any thread.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int, Step, int]] = deque()
        self.nbytes, self.ended = 0, False
        self._lock, self._wakers = threading.Lock(), set[Callable[[], object]]()

    def add(self, before: int, last: int, step: Step, least: int) -> None:
        """Add a step that closed the times after ``before`` up to and including ``last``, and wake all waiting readers.

        ``least``: the least time that a reader holds. O(outputs).
        """
        with self._lock:
            if least < last:
                size = sum(table.nbytes for table in step.values())
                self._steps.append((before, last, step, size))
                self.nbytes += size
            self._drop_passed_steps(least)
            self._wake_readers()

    def count_waiting_bytes(self, least: int) -> int:
        """Return the bytes of updates that at least one reader has not read yet.

        ``least``: the least time of all readers.

        O(steps dropped).
        """
        with self._lock:
            self._drop_passed_steps(least)
            return self.nbytes

    def _drop_passed_steps(self, least: int) -> None:
        """Drop the steps that all readers have read.

        If the kept steps still have more than `MOST` bytes, the oldest of them are dropped, even if a reader needs
        them.
        """
        while self._steps and (self._steps[0][1] <= least or self.nbytes > MOST):
            self.nbytes -= self._steps.popleft()[3]

    def mark_ended(self) -> None:
        """Record that no more steps will arrive, and wake all waiting readers."""
        with self._lock:
            self.ended = True
            self._wake_readers()

    @contextmanager
    def call_on_each_step(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call ``wake`` on the writer's thread after each step, until the block ends."""
        with self._lock:
            self._wakers.add(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.discard(wake)

    def _wake_readers(self) -> None:
        for wake in self._wakers:
            wake()

    def find_step_after(self, time: int) -> tuple[int, Step] | None:
        """Return the step that follows a time, with the last time of this step. Return None if the step is not kept.

        O(steps kept).
        """
        with self._lock:
            return next(((last, step) for before, last, step, _ in self._steps if before <= time < last), None)

    def find_resume_time(self, time: int) -> int | None:
        """Return the earliest time after ``time`` from which all steps are kept.

        Return None if no kept step begins later.

        O(steps kept).
        """
        with self._lock:
            return next((before for before, _, _, _ in self._steps if before > time), None)


def make_went_back_error(to: int, at: int, kind: pa.DataType = INT64) -> TimeWentBack:
    """Make the error for a reader that cannot advance to a time because the reader is already at a later time.

    ``kind``: the type of times.
    """
    return TimeWentBack(
        f"advance a reader to {format_time(to, kind)}",
        f"it is already at {format_time(at, kind)}",
        ErrorText("a reader cannot go back; open another reader with ", Option("at")),
    )
