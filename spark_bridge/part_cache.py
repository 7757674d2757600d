"""The part cache: parts of a state that a worker keeps open from one task to the next.

Invariant: whether a part is found here changes nothing but the time that a task takes: one is given out only for the
inventory that it holds, by name, and to one task at a time. Spark sends a partition to whichever worker is free, so
another one may have gone on with it, and then the part here is behind, and whoever takes it brings it up to date; a
task may be killed at any moment, so a part is put back only once its receipt was given; and parts of several states
share a worker, whose memory is bounded. The cache is a process's own, and knows neither Spark nor what a part does.

>>> from types import SimpleNamespace
>>> closed = []
>>> def part(name: str) -> StagePart:
...     return SimpleNamespace(at=name, close=lambda: closed.append(name))
>>> cache = PartCache()
>>> cache.put(("state", 0, 0), part("first"), 10, most=100)
>>> cache.put(("state", 0, 1), part("second"), 95, most=100)
>>> cache.take(("state", 0, 1), ["second"]).at, cache.take(("state", 0, 0), ["first"]), closed
('second', None, ['first'])
"""

from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ddflow.errors import DdflowError
from ddflow.partitions.stage_step import StagePart

Key = tuple[Any, ...]
"""Which part of which state, and whatever else it was opened by."""


class CachedPart(NamedTuple):
    """A part, and how many bytes it takes."""

    part: StagePart
    nbytes: int


class PartCache:
    """Parts by key, least recently used first.  One thread at a time, as a worker has."""

    def __init__(self) -> None:
        self._parts: OrderedDict[Key, CachedPart] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Of all parts."""
        return sum(each.nbytes for each in self._parts.values())

    def take(self, key: Key, held: Collection[str]) -> StagePart | None:
        """The part of a key, if it holds one of the inventories called so; else it is closed, and None.  O(held)."""
        cached = self._parts.pop(key, None)
        if cached is None:
            return None
        if cached.part.at in held:
            return cached.part
        close(cached.part)
        return None

    def put(self, key: Key, part: StagePart, nbytes: int, most: int) -> None:
        """Keep a part; those used longest ago are closed until all take ``most`` bytes or less.  O(parts)."""
        old = self._parts.pop(key, None)
        if old is not None:
            close(old.part)
        self._parts[key] = CachedPart(part, nbytes)
        while self._parts and self.nbytes > most:
            close(self._parts.popitem(last=False)[1].part)

    def clear(self) -> None:
        """Close all."""
        while self._parts:
            close(self._parts.popitem()[1].part)


def close(part: StagePart) -> None:
    """Close a part that nobody will miss.  Never fails: its files are in the state, or garbage there."""
    with suppress(DdflowError, OSError):
        part.close()


PARTS: Final = PartCache()
"""Of this process."""
