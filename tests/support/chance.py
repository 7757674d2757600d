"""Draw the randomness of a run: its seed, its share of examples, and samples of long lists.

Each run draws new values, so many short runs search as much as a long one. ``DDFLOW_SEED=N`` repeats a run's draws;
pytest's first lines print the seed. ``DDFLOW_EXAMPLES=1`` draws all examples. ``DDFLOW_SOAK=1`` draws twenty times as
many and takes lists whole.

>>> sample(range(9), 20, "short lists are taken whole")
[0, 1, 2, 3, 4, 5, 6, 7, 8]
>>> len(sample(range(900), 20, "long ones")) in (20, 900)
True
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random, SystemRandom
from typing import Any, TypeVar

import pytest
from hypothesis import core, settings
from hypothesis.internal.conjecture import providers

T = TypeVar("T")

SEED = int(os.environ.setdefault("DDFLOW_SEED", str(SystemRandom().getrandbits(32))))
"""Seed of all draws of this run; child processes inherit it."""
SOAK = os.environ.get("DDFLOW_SOAK") == "1"
"""Whether this run is a soak."""
RECORD = bool(os.environ.get("DDFLOW_MESSAGES"))
"""Whether this run records error texts (`messages`); then it leaves out no test."""
SHARE = float(os.environ.get("DDFLOW_EXAMPLES", "20" if SOAK else "0.1"))
"""Share of a property's examples to draw.  A tenth finds in ten runs what all find in one."""

long_test = pytest.mark.drawn(5, of="long tests")
"""Mark for a test of some ten seconds. A run draws five of their cases; a soak takes all."""
long_on_spark = pytest.mark.drawn(4, of="long tests on Spark")
"""Mark for such a test on Spark. A run draws four of their cases."""
mid_test = pytest.mark.drawn(9, of="tests of some seconds")
"""Mark for a test of two to nine seconds. A run draws nine of their cases; a soak takes all."""
mid_on_spark = pytest.mark.drawn(7, of="tests of some seconds on Spark")
"""Mark for such a test on Spark. A run draws seven of their cases."""


def seeded(*names: object) -> Random:
    """Return a generator for one purpose, the same in each run with this seed."""
    return Random(f"{SEED} {' '.join(map(str, names))}")


def sample(given: Sequence[T], most: int, *names: object) -> list[T]:
    """Return at most ``most`` of them in order; a soak returns all."""
    if SOAK or len(given) <= most:
        return list(given)
    return [given[i] for i in sorted(seeded(*names).sample(range(len(given)), most))]


def effort(examples: int, **options: Any) -> settings:
    """Return a property's settings with this run's share of the examples."""
    return settings(max_examples=max(round(examples * SHARE), 3), **options)


def covering(examples: int, **options: Any) -> settings:
    """Return settings for a property that asserts what its examples cover: fixed examples, more in a soak."""
    return (
        settings(max_examples=examples * 20, **options)
        if SOAK
        else settings(max_examples=examples, derandomize=True, database=None, **options)
    )


def draw_for(test: str) -> None:
    """Seed hypothesis for a test, independent of the tests before it.

    ``hypothesis.seed`` and ``--hypothesis-seed`` would turn the example database off.
    """
    core.threadlocal._hypothesis_global_random = seeded(test)


# Hypothesis would prefer literals of loaded modules to other values, and spend a second finding them.
providers._get_local_constants = lambda: providers.Constants()
