"""What a run draws for itself: its seed, its share of the examples, and the samples that it takes of long lists.

Each run draws anew, so that many short runs search as much as a long one.  ``DDFLOW_SEED=N`` repeats a run's draws; the
first lines of pytest name the seed.  ``DDFLOW_EXAMPLES=1`` draws all of the examples; ``DDFLOW_SOAK=1`` draws
twenty times as many as they name, and takes lists whole instead of samples.

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
"""The number that all draws of this run come from; processes that it starts inherit it."""
SOAK = os.environ.get("DDFLOW_SOAK") == "1"
"""Whether this run takes its time."""
RECORD = bool(os.environ.get("DDFLOW_MESSAGES"))
"""Whether this run records the texts of errors (`messages`), for which no test is left out."""
SHARE = float(os.environ.get("DDFLOW_EXAMPLES", "20" if SOAK else "0.1"))
"""How many of the examples that a property names are drawn.  A tenth finds in ten runs what all find in one."""

long_test = pytest.mark.drawn(5, of="long tests")
"""Marks a test of some ten seconds. A run draws five of their cases; a soak takes all."""
long_on_spark = pytest.mark.drawn(4, of="long tests on Spark")
"""Marks such a test on Spark. A run draws four of their cases."""
mid_test = pytest.mark.drawn(9, of="tests of some seconds")
"""Marks a test of two to nine seconds. A run draws nine of their cases; a soak takes all."""
mid_on_spark = pytest.mark.drawn(7, of="tests of some seconds on Spark")
"""Marks such a test on Spark. A run draws seven of their cases."""


def seeded(*names: object) -> Random:
    """A generator for one purpose, the same in each run of this seed."""
    return Random(f"{SEED} {' '.join(map(str, names))}")


def sample(given: Sequence[T], most: int, *names: object) -> list[T]:
    """At most so many of them, in their order; all of them when soaking."""
    if SOAK or len(given) <= most:
        return list(given)
    return [given[i] for i in sorted(seeded(*names).sample(range(len(given)), most))]


def effort(examples: int, **options: Any) -> settings:
    """The settings of a property: this run's share of so many examples."""
    return settings(max_examples=max(round(examples * SHARE), 3), **options)


def covering(examples: int, **options: Any) -> settings:
    """The settings of a property that asserts what its examples reach: so many, always the same; more when soaking."""
    return (
        settings(max_examples=examples * 20, **options)
        if SOAK
        else settings(max_examples=examples, derandomize=True, database=None, **options)
    )


def draw_for(test: str) -> None:
    """Let hypothesis draw what this run's seed says for a test, whichever tests ran before it.

    ``hypothesis.seed`` and ``--hypothesis-seed`` would turn the example database off.
    """
    core.threadlocal._hypothesis_global_random = seeded(test)


# Literals of whichever modules are loaded would be drawn more often than other values, and take a second to look for.
providers._get_local_constants = lambda: providers.Constants()
