"""Threads: the threads that share the kernels of a step.

Invariant: results do not depend on how many there are. Work is cut into spans that write to different places, and
every kernel runs without the interpreter's lock. A hand-over takes as long as it takes a sleeping thread to wake up, so
work is cut only where each span has more to do than that; and Python between the kernels still runs one thread at a
time.

>>> with Threads(2, waking=300) as threads:
...     threads.spans(10, 60), threads.spans(9, 60), threads.each(lambda *span: sum(range(*span)), [(0, 5), (5, 10)])
([(0, 5), (5, 10)], [(0, 9)], [10, 35])
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, starmap
from typing import Any, Self, TypeVar

T = TypeVar("T")
WAKING = 100_000
"""Nanoseconds that a hand-over takes: no span is worth one that takes less."""
MOST = 8
"""How many threads "auto" means at most."""


def cores() -> int:
    """How many threads "auto" means: those that this process may use, at most `MOST`."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, MOST)


class Threads:
    """``size``: how many threads, the caller's included.  ``waking``: nanoseconds of work that are worth a span."""

    def __init__(self, size: int = 1, waking: int = WAKING) -> None:
        self.size, self.waking = size, waking
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; twice is harmless."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def spans(self, n: int, cost: float) -> list[tuple[int, int]]:
        """[0, n) in equal spans, one a thread, or fewer.  ``cost``: nanoseconds that one of the n takes, about."""
        count = min(self.size, int(n * cost) // self.waking) if self.size > 1 else 1
        if count < 2:
            return [(0, n)]
        return list(pairwise([n * i // count for i in range(count + 1)]))

    def over(self, n: int, work: Callable[[int, int], T], cost: float) -> list[T]:
        """``work(begin, end)`` for `spans` of [0, n), at the same time."""
        return [work(0, n)] if self.size == 1 else self.each(work, self.spans(n, cost))

    def each(self, work: Callable[..., T], spans: Sequence[tuple[Any, ...]]) -> list[T]:
        """``work(*span)`` for each span, at the same time; the first error is raised when all have ended.

        The threads begin with the first work that there is for more than one.
        """
        if self.size == 1 or len(spans) < 2:
            return list(starmap(work, spans))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.size - 1, "ddflow")
        others = [self._pool.submit(work, *span) for span in spans[1:]]
        try:
            first = work(*spans[0])
        finally:
            for other in others:
                other.exception()
        return [first, *(other.result() for other in others)]


ALONE = Threads()
"""The caller's own thread."""
