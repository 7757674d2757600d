"""Share the kernels of a step among threads.

Work is cut into spans that write to separate memory, and kernels release the interpreter's lock. Python code between
kernels still runs on one thread at a time. A hand-over takes as long as waking a thread, so work is cut only if each
span takes longer than that.

Guarantees: results do not depend on the number of threads.

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
"""Nanoseconds of a hand-over, for the waking thread and the woken one; a shorter span is not worth one."""
MOST = 8
"""Maximal number of threads for "auto"."""


class Threads:
    """A pool of ``size`` threads, the caller's included."""

    waking = WAKING
    """Minimal nanoseconds of work per span."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._pool: ThreadPoolExecutor | None = None
        self._inside = threading.local()

    @classmethod
    def from_option(cls, threads: int | Literal["auto"]) -> Self:
        """Make so many threads; "auto": one per core available to this process, at most `MOST`."""
        if threads != "auto":
            return cls(threads)
        return cls(min(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1, MOST))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; a second call does nothing."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def compute_min_rows_to_split(self, cost: float) -> float:
        """Compute the minimal number of rows to cut, if a row takes about ``cost`` nanoseconds."""
        return 2 * self.waking / cost if self.size > 1 else inf

    def cut_spans(self, n: int, cost: float) -> list[tuple[int, int]]:
        """Cut [0, n) into equal spans, at most one per thread. ``cost``: approximate nanoseconds per element."""
        if self.size == 1 or n < 2 or n * cost < 2 * self.waking:
            return [(0, n)]
        count = min(self.size, n, int(n * cost) // self.waking)
        return list(pairwise([n * i // count for i in range(count + 1)]))

    def run_spans(self, n: int, work: Callable[[int, int], T], cost: float) -> list[T]:
        """Run ``work(begin, end)`` in parallel for the `cut_spans` of [0, n)."""
        if self.size == 1 or n * cost < 2 * self.waking:
            return [work(0, n)]
        return self.run_in_parallel(work, self.cut_spans(n, cost))

    def run_in_parallel(self, work: Callable[..., T], spans: Sequence[tuple[Any, ...]]) -> list[T]:
        """Run ``work(*span)`` in parallel for each span; raise the first error after all have ended.

        The threads start with the first work for more than one thread. Work inside such work runs on its own thread
        only.
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
        """Run the work of one span and prevent it from sharing work itself."""
        self._inside.work = True
        try:
            return work(*span)
        finally:
            self._inside.work = False


ALONE = Threads()
"""The caller's own thread, without a pool."""
