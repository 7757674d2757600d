"""A move: what all tasks of a rescaling, or of an evolution, start from, as one plain value that travels with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ddflow.partitions.epoch_start import EpochStart
from ddflow.plan.plan import Plan


class Move(NamedTuple):
    """The start of all tasks of a rescaling; it can be pickled, unless its store is in memory.

    ``start``: the state as it is.  ``partitions``: how many there will be.  ``horizons``, ``greatest``: by input, the
    greatest order where keys expire, and event time, of all partitions.  ``before``: the plan that the state was made
    by, where the one that is cut has wider or more columns."""

    start: EpochStart
    partitions: int
    horizons: Mapping[str, int]
    greatest: Mapping[str, int]
    before: Plan | None = None
