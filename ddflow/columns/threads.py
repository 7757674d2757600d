"""Share the work of a step's kernels among threads.

Work is cut into spans of rows that write to separate memory, and kernels release the interpreter's lock. Python code
between kernels still runs on one thread at a time. Before a thread can run a span, it must be woken. Work is cut into
spans only if each span takes longer than waking a thread.

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
"""The nanoseconds that it takes to wake a thread and give it a span. The calling thread runs shorter spans itself."""
MOST = 8
"""The maximal number of threads for "auto"."""


class Threads:
    """A pool of ``size`` threads, including the caller's thread."""

    waking = WAKING
    """The minimal nanoseconds of work per span."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._pool: ThreadPoolExecutor | None = None
        self._inside = threading.local()

    @classmethod
    def from_option(cls, threads: int | Literal["auto"]) -> Self:
        """Make a pool of ``threads`` threads.

        "auto" makes one thread per core that this process may use, but at most `MOST` threads.
        """
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
        """Compute the minimal number of rows for which work is cut into spans. ``cost``: nanoseconds per row."""
        return 2 * self.waking / cost if self.size > 1 else inf

    def cut_spans(self, n: int, cost: float) -> list[tuple[int, int]]:
        """Cut the range from 0 to ``n`` into equal spans, at most one per thread.

        ``cost``: approximate nanoseconds per element.
        """
        if self.size == 1 or n < 2 or n * cost < 2 * self.waking:
            return [(0, n)]
        count = min(self.size, n, int(n * cost) // self.waking)
        return list(pairwise([n * i // count for i in range(count + 1)]))

    def run_spans(self, n: int, work: Callable[[int, int], T], cost: float) -> list[T]:
        """Run ``work(begin, end)`` in parallel for each span that `cut_spans` returns."""
        if self.size == 1 or n * cost < 2 * self.waking:
            return [work(0, n)]
        return self.run_in_parallel(work, self.cut_spans(n, cost))

    def run_in_parallel(self, work: Callable[..., T], spans: Sequence[tuple[Any, ...]]) -> list[T]:
        """Run ``work(*span)`` in parallel for each span; raise the first error after all spans have ended.

        The pool starts its threads at the first call with more than one span. A nested call runs all its spans on the
        calling thread.
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
        """Run the work of one span, and let nested calls of `run_in_parallel` use only this thread."""
        self._inside.work = True
        try:
            return work(*span)
        finally:
            self._inside.work = False


ALONE = Threads()
"""A pool that has only the caller's thread."""
