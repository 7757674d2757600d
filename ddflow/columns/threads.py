"""Threads: the threads that share the kernels of a step.

Invariant: results do not depend on how many there are. Work is cut into spans that write to different places, and
every kernel runs without the interpreter's lock. A hand-over takes as long as it takes a sleeping thread to wake up, so
work is cut only where each span has more to do than that; and Python between the kernels still runs one thread at a
time.

>>> with Threads(2) as threads:
...     spans = threads.cut_spans(10, cost=50_000)
...     spans, threads.cut_spans(9, cost=50_000), threads.run_in_parallel(lambda *span: sum(range(*span)), spans)
([(0, 5), (5, 10)], [(0, 9)], [10, 35])
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, starmap
from math import inf
from typing import Any, Literal, Self, TypeVar

T = TypeVar("T")
WAKING = 250_000
"""Nanoseconds that a hand-over takes, of the thread that wakes and of the one that wakes up: no span is worth one that
takes less."""
MOST = 8
"""How many threads "auto" means at most."""


class Threads:
    """``size``: how many threads, the caller's included."""

    waking = WAKING
    """Nanoseconds of work that are worth a span."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._pool: ThreadPoolExecutor | None = None
        self._inside = threading.local()

    @classmethod
    def from_option(cls, threads: int | Literal["auto"]) -> Self:
        """So many; "auto": as many as there are cores that this process may use, at most `MOST`."""
        if threads != "auto":
            return cls(threads)
        return cls(min(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1, MOST))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; twice is harmless."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def compute_min_rows_to_split(self, cost: float) -> float:
        """From how many rows on work is cut, where one takes ``cost`` nanoseconds, about."""
        return 2 * self.waking / cost if self.size > 1 else inf

    def cut_spans(self, n: int, cost: float) -> list[tuple[int, int]]:
        """[0, n) in equal spans, one a thread, or fewer.  ``cost``: nanoseconds that one of the n takes, about."""
        if self.size == 1 or n < 2 or n * cost < 2 * self.waking:
            return [(0, n)]
        count = min(self.size, n, int(n * cost) // self.waking)
        return list(pairwise([n * i // count for i in range(count + 1)]))

    def run_spans(self, n: int, work: Callable[[int, int], T], cost: float) -> list[T]:
        """``work(begin, end)`` for `cut_spans` of [0, n), at the same time."""
        if self.size == 1 or n * cost < 2 * self.waking:
            return [work(0, n)]
        return self.run_in_parallel(work, self.cut_spans(n, cost))

    def run_in_parallel(self, work: Callable[..., T], spans: Sequence[tuple[Any, ...]]) -> list[T]:
        """``work(*span)`` for each span, at the same time; the first error is raised when all have ended.

        The threads begin with the first work that there is for more than one.  Work within shared work is not shared.
        """
        if self.size == 1 or len(spans) < 2 or getattr(self._inside, "work", False):
            return list(starmap(work, spans))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.size - 1, "ddflow")
        others = [self._pool.submit(self._run_span, work, span) for span in spans[1:]]
        try:
            first = self._run_span(work, spans[0])
        finally:
            for other in others:
                other.exception()
        return [first, *(other.result() for other in others)]

    def _run_span(self, work: Callable[..., T], span: tuple[Any, ...]) -> T:
        """One span's work, which shares nothing itself."""
        self._inside.work = True
        try:
            return work(*span)
        finally:
            self._inside.work = False


ALONE = Threads()
"""The caller's own thread."""
