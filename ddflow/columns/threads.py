"""Threads: the threads that share the kernels of a step.

Invariant: results do not depend on how many there are. Work is cut into spans that write to different places, and
every kernel runs without the interpreter's lock. A hand-over costs some 20 us, so small work is not cut at all; and
Python between the kernels still runs one thread at a time.

>>> with Threads(2) as threads:
...     threads.spans(10, least=3), threads.each(lambda begin, end: sum(range(begin, end)), [(0, 5), (5, 10)])
([(0, 5), (5, 10)], [10, 35])
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, starmap
from typing import Any, Self, TypeVar

T = TypeVar("T")
LEAST = 16384
"""Rows a span, for work of some nanoseconds a row: fewer are done before another thread has woken up."""


class Threads:
    """``size``: how many threads, the caller's included."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size - 1, "ddflow") if size > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; twice is harmless."""
        if self._pool is not None:
            self._pool.shutdown()

    def spans(self, n: int, least: int = LEAST) -> list[tuple[int, int]]:
        """[0, n) in equal spans, one a thread, or fewer where they would be shorter than ``least``."""
        if self._pool is None:
            return [(0, n)]
        count = max(min(self.size, n // least), 1)
        bounds = [n * i // count for i in range(count + 1)]
        return list(pairwise(bounds))

    def over(self, n: int, work: Callable[[int, int], T]) -> list[T]:
        """``work(begin, end)`` for spans of [0, n), at the same time."""
        return [work(0, n)] if self._pool is None else self.each(work, self.spans(n))

    def each(self, work: Callable[..., T], spans: Sequence[tuple[Any, ...]]) -> list[T]:
        """``work(*span)`` for each span, at the same time; the first error is raised when all have ended."""
        if self._pool is None or len(spans) == 1:
            return list(starmap(work, spans))
        others = [self._pool.submit(work, *span) for span in spans[1:]]
        try:
            first = work(*spans[0])
        finally:
            for other in others:
                other.exception()
        return [first, *(other.result() for other in others)]


ALONE = Threads()
"""The caller's own thread."""
