"""Test that `walk_single_group`, for a single order, writes the same as the general `apply_events_by_key`."""

from __future__ import annotations

import numpy as np
import pytest

from ddflow.kernels.fold import EventsByKey
from ddflow.kernels.resolve import ERROR, FIRST, GREATEST, LAST
from ddflow.kernels.walk import WalkOutcome, WalkRules, apply_events_by_key, walk_single_group


def taken(n: int, m: int, words: int) -> WalkOutcome:
    action, why = np.zeros((1, n), np.uint8), np.zeros(n, np.uint8)
    return WalkOutcome(action, why, np.zeros((m, words), np.int64), np.zeros(m, np.uint8), np.zeros(m, np.int64))


@pytest.mark.parametrize("tie", [LAST, FIRST, GREATEST, ERROR])
@pytest.mark.parametrize("words", [0, 1, 2, 3])
def test_it_writes_what_the_other_writes(tie: int, words: int) -> None:
    refusals = 0
    for seed in range(60):
        random = np.random.default_rng([seed, tie, words])
        n, wide = int(random.integers(1, 30)), words == 3
        cuts = np.unique(np.append(random.integers(0, n, 12), [0, n])).astype(np.int32)
        of = np.unique(np.append(random.integers(0, cuts.size - 1, 5), [0, cuts.size - 1])).astype(np.int32)
        steps = EventsByKey(random.permutation(n).astype(np.int32), cuts, of)
        g, m = of.size - 1, cuts.size - 1
        least = np.int64(-(2**63))
        order = random.choice(np.array([least, 1, 2, 3]), (n, words))
        if wide:  # a column of two words, of which the first tells null
            order[:, 0] = random.integers(0, 2, n)
        columns = np.array([[0, 0, 2, 1]] if wide else [[0, w, w + 1, 1] for w in range(words)], np.int64).reshape(
            -1, 4
        )
        base = int(random.integers(0, words + 1)) if not wide else 2
        columns = columns[columns[:, 2] <= base]
        gone, status = random.integers(0, 2, n).astype(np.uint8), random.integers(0, 3, g).astype(np.uint8)
        prior = random.choice(np.array([1, 2, 3]), (g, words))
        for keeps, over, inherits in ((True, False, True), (True, True, False), (False, False, True)):
            rule = WalkRules(tie, keeps, True, False, over, inherits)
            one, other = taken(n, m, words), taken(n, m, words)
            a = apply_events_by_key(
                steps,
                order,
                gone,
                status,
                prior,
                np.array([[0, base, words]]),
                columns,
                rule,
                np.empty((4, words + 1), np.int64),
                one,
            )
            b = walk_single_group(steps, order, gone, status, prior, base, columns, rule, other)
            assert a == b
            refusals += a >= 0
            if a < 0:
                assert all(np.array_equal(x, y) for x, y in zip(one, other, strict=True)), seed
    assert (refusals > 0) == (tie == ERROR)
