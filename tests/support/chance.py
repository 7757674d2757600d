"""Control the randomness of a test run: its seed, its share of the examples, and its samples of long lists.

Each run draws new random values, so many short runs together test as much as one long run. ``DDFLOW_SEED=N`` repeats
the random values of a run; the first lines of pytest's output show its seed. ``DDFLOW_EXAMPLES=1`` draws all examples.
``DDFLOW_SOAK=1`` draws twenty times as many examples, and takes complete lists instead of samples.

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
"""Seed of all random values of this run. Child processes inherit it."""
SOAK = os.environ.get("DDFLOW_SOAK") == "1"
"""True if this run is a soak, a long run with many examples."""
RECORD = bool(os.environ.get("DDFLOW_MESSAGES"))
"""True if this run records error texts (`messages`). A recording run skips no test."""
SHARE = float(os.environ.get("DDFLOW_EXAMPLES", "20" if SOAK else "0.1"))
"""The share of a property's examples that a run draws.

Ten runs with a tenth of the examples find as many bugs as one run with all examples.
"""

long_test = pytest.mark.drawn(5, of="long tests")
"""Mark for a test of about ten seconds.

A run chooses five random cases of all tests with this mark; a soak runs all cases.
"""
long_on_spark = pytest.mark.drawn(4, of="long tests on Spark")
"""Mark for a test of about ten seconds on Spark. A run chooses four random cases of all tests with this mark."""
mid_test = pytest.mark.drawn(9, of="tests of some seconds")
"""Mark for a test of two to nine seconds.

A run chooses nine random cases of all tests with this mark; a soak runs all cases.
"""
mid_on_spark = pytest.mark.drawn(7, of="tests of some seconds on Spark")
"""Mark for a test of two to nine seconds on Spark. A run chooses seven random cases of all tests with this mark."""


def seeded(*names: object) -> Random:
    """Return a random generator for one purpose. The generator is the same in each run with this seed."""
    return Random(f"{SEED} {' '.join(map(str, names))}")


def sample(given: Sequence[T], most: int, *names: object) -> list[T]:
    """Return at most ``most`` of the items, in their order; a soak returns all items."""
    if SOAK or len(given) <= most:
        return list(given)
    return [given[i] for i in sorted(seeded(*names).sample(range(len(given)), most))]


def effort(examples: int, **options: Any) -> settings:
    """Return the hypothesis settings of a property, with this run's share of the examples."""
    return settings(max_examples=max(round(examples * SHARE), 3), **options)


def covering(examples: int, **options: Any) -> settings:
    """Return hypothesis settings for a property that also asserts what its examples cover.

    The examples are fixed, and a soak has more of them.
    """
    return (
        settings(max_examples=examples * 20, **options)
        if SOAK
        else settings(max_examples=examples, derandomize=True, database=None, **options)
    )


def draw_for(test: str) -> None:
    """Seed hypothesis for a test, independently of the tests that ran earlier.

    ``hypothesis.seed`` and ``--hypothesis-seed`` would turn the example database off.
    """
    core.threadlocal._hypothesis_global_random = seeded(test)


# Otherwise hypothesis would prefer literals of loaded modules as values, and would need a second to find these
# literals.
providers._get_local_constants = lambda: providers.Constants()
