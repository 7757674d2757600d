"""Warm parts: what a worker keeps open of a state from one task to the next, so that it need not be opened again.

Invariant: whether a part is found here changes nothing but the time that a task takes: one is given out only for the
inventory that it holds, by name, and to one task at a time. Spark sends a partition to whichever worker is free, so
another one may have gone on with it, and then what is held here is of the past; a task may be killed at any moment, so
a part is back only once its receipt was given; and parts of several states share a worker, whose memory is bounded. It
is a cache of a process, and knows neither Spark nor what a part does.

>>> from types import SimpleNamespace
>>> closed = []
>>> def part(name: str) -> Part:
...     return SimpleNamespace(at=name, close=lambda: closed.append(name))
>>> warm = Warm()
>>> warm.put(("state", 0, 0), part("first"), 10, most=100)
>>> warm.put(("state", 0, 1), part("second"), 95, most=100)
>>> warm.take(("state", 0, 1), "second").at, warm.take(("state", 0, 0), "first"), closed
('second', None, ['first'])
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ddflow.errors import DdflowError
from ddflow.partitions.stage_step import Part

Key = tuple[Any, ...]
"""Which part of which state, and whatever else it was opened by."""


class Lying(NamedTuple):
    """A part, and how many bytes it takes."""

    part: Part
    nbytes: int


class Warm:
    """Parts by key, least recently used first.  One thread at a time, as a worker has."""

    def __init__(self) -> None:
        self._parts: OrderedDict[Key, Lying] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Of all parts."""
        return sum(each.nbytes for each in self._parts.values())

    def take(self, key: Key, at: str) -> Part | None:
        """The part of a key, if it holds the inventory called ``at``; else it is closed, and None.  O(1)."""
        lying = self._parts.pop(key, None)
        if lying is None:
            return None
        if lying.part.at == at:
            return lying.part
        close(lying.part)
        return None

    def put(self, key: Key, part: Part, nbytes: int, most: int) -> None:
        """Keep a part; those used longest ago are closed until all take ``most`` bytes or less.  O(parts)."""
        old = self._parts.pop(key, None)
        if old is not None:
            close(old.part)
        self._parts[key] = Lying(part, nbytes)
        while self._parts and self.nbytes > most:
            close(self._parts.popitem(last=False)[1].part)

    def clear(self) -> None:
        """Close all."""
        while self._parts:
            close(self._parts.popitem()[1].part)


def close(part: Part) -> None:
    """Close a part that nobody will miss.  Never fails: its files are in the state, or garbage there."""
    with suppress(DdflowError, OSError):
        part.close()


PARTS: Final = Warm()
"""Of this process."""
