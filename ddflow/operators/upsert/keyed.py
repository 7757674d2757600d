"""Events by key: a step's events of one input, sorted by identity, beside what their keys hold.

Invariant: nothing is decided yet. An event that nobody gave (a key that full contents do not name, or that is
forgotten) deletes its key and stands among the others.

>>> Seen(3, 1).plus(Seen(None, 2))
Seen(greatest=3, forgotten=3, useless=0)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Flags, Ints, Narrow
from ddflow.columns.sorting import Sorted
from ddflow.kernels.resolve import Prior
from ddflow.operators.upsert.events import Events


class Seen(NamedTuple):
    """What a step brings for the next one, where keys expire."""

    greatest: int | None = None
    """The word of the greatest order among its events, None where there is none."""
    forgotten: int = 0
    """How many live keys it forgot."""
    useless: int = 0
    """How many more deletions than before need not be known."""

    def plus(self, other: Seen) -> Seen:
        """Of two pieces of a step."""
        both = [each for each in (self.greatest, other.greatest) if each is not None]
        return Seen(max(both, default=None), self.forgotten + other.forgotten, self.useless + other.useless)


class Keyed(NamedTuple):
    """n events of g keys."""

    events: Events
    columns: dict[str, pa.Array]
    """Those of the events, by name."""
    times: Ints
    """int64: the step's distinct times, ascending."""
    settled: bool
    """Whether all of them are at or before ``since``, where one time does for all versions."""
    by: Sorted
    prior: Prior
    """What each of the g keys holds."""
    built: int
    """The number of the index's table in which they were looked up."""
    gone: Flags
    """uint8[n]: which events delete."""
    absent: Ints
    """The events that nobody gave."""
    mark: Narrow
    """int32[n]: twice the rank of the event's time, and 1 more where it deletes."""
    full: int | None = None
    """In a step of full contents: the arrival number from which on events stand for keys that are absent."""
    left: Ints = np.empty(0, np.int64)
    """The events that decide nothing: their keys are forgotten, and they come too late."""
    seen: Seen = Seen()

    def without(self, stays: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Keyed:
        """Without the events for which ``stays`` is false, and the keys that have no others.  O(n)."""
        by, prior = self.by, self.prior
        here = stays[by.permutation]
        counts = np.add.reduceat(here, by.starts[:-1], dtype=np.int64)
        groups = counts > 0
        starts = np.concatenate([[0], np.cumsum(counts[groups])]).astype(np.int32)
        low = by.low[here] if by.low.size else by.low
        kept = Prior(prior.place[groups], prior.reference[groups], prior.value[groups], prior.order[groups])
        return self._replace(by=Sorted(by.permutation[here], by.high[here], low, starts), prior=kept)
