"""An arena: scratch arrays that a step carves out of memory which the step before it used.

Invariant: arrays carved since the last `reset` do not overlap; after it they are void. Fresh memory costs a page fault
for each 4 KB, more than most kernels do with it; and arrays that begin at the same offset of a page compete for the
same few lines of the cache, so that a loop over ten of them runs at a fifth of its speed. So all come from one block,
each a few lines further on. What outlives a step (batches, outputs) is not carved here.

>>> arena = Arena()
>>> a, b = arena.empty(100, np.int64), arena.empty((10, 2), np.uint8)
>>> a[:], b[:] = 1, 2
>>> int(a.sum()), int(b.sum())
(100, 40)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

SMALL = 256
"""Shorter arrays are not worth carving."""
STAGGER = 5 * 64
"""Bytes between arrays: an odd number of cache lines, so that neighbours begin in different sets of the cache."""


class Arena:
    """``block``: the memory; it grows to what the largest step carved."""

    def __init__(self) -> None:
        self.block: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)
        self.used = 0

    @classmethod
    def of(cls, nbytes: int) -> Arena:
        """One with so many bytes to carve from, for arrays that live as long as each other.  O(1)."""
        arena = cls()
        arena.used = nbytes
        arena.reset()
        return arena

    def reset(self) -> None:
        """Begin anew: arrays carved before are void.  One block from now on, where several were needed."""
        if self.used > self.block.size:
            size = self.used + self.used // 8
            room = np.empty(size + 64, np.uint8)
            begin = -room.ctypes.data % 64
            self.block = room[begin : begin + size]
        self.used = 0

    def room(self, n: int) -> Callable[..., Any]:
        """Return a function that makes arrays of about ``n``: `empty`, or numpy's if they are too short to carve."""
        return np.empty if n < SMALL else self.empty

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Carve a contiguous array of unspecified content; one from the block is aligned to a cache line.  O(1)."""
        if shape.__class__ is int and shape < SMALL:
            return np.empty(shape, dtype)
        kind = np.dtype(dtype)
        n = shape if isinstance(shape, int) else int(np.prod(shape))
        begin = -(-self.used // 64) * 64 + STAGGER
        self.used = begin + n * kind.itemsize
        if self.used > self.block.size:
            return np.empty(shape, kind)
        return self.block[begin : self.used].view(kind).reshape(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return int(self.block.nbytes)
