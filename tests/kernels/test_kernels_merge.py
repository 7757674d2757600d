"""Test pruning: pruned versions read the same as all versions from ``since`` on, and no kept version is superfluous."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.kernels.merge import prune_versions

pytestmark = pytest.mark.kernels
Version = tuple[int, int, bool]
"""Key, time, live."""
histories = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 5)), st.booleans(), max_size=14)


def pruned(versions: list[Version], since: int, droppable: bool) -> list[Version]:
    by = sorted(range(len(versions)), key=lambda i: versions[i][:2])
    keys = [versions[i][0] for i in by]
    starts = [place for place in range(len(by)) if place == 0 or keys[place] != keys[place - 1]]
    kept, groups = np.empty(len(by), np.int64), np.empty(len(by), np.int64)
    times, live = (np.array([version[i] for version in versions]) for i in (1, 2))
    n = prune_versions(
        np.array(by, np.int32),
        np.array([*starts, len(by)] if by else [0], np.int32),
        times.astype(np.int64),
        live.astype(np.uint8),
        np.int64(since),
        droppable,
        kept,
        groups,
    )
    # What is written are places in the order of keys, and which of the keys each is of.
    order = sorted(set(keys))
    assert [order[group] for group in groups[:n]] == [keys[place] for place in kept[:n]]
    return [versions[by[place]] for place in kept[:n]]


def in_force(versions: list[Version], key: int, at: int) -> Version | None:
    return max((version for version in versions if version[0] == key and version[1] <= at), default=None)


def shown(version: Version | None, droppable: bool) -> object:
    """What a reader sees: where deletions may go, the absence of a version is as good as one."""
    return None if droppable and version is not None and not version[2] else version


@given(histories, st.integers(-1, 6), st.booleans(), st.randoms())
def test_reads_from_since_on_do_not_change(
    drawn: dict[tuple[int, int], bool], since: int, droppable: bool, random: object
) -> None:
    versions = [(key, time, live) for (key, time), live in drawn.items()]
    random.shuffle(versions)  # type: ignore[attr-defined]
    kept = pruned(versions, since, droppable)
    assert kept == sorted(kept)
    for key, at in product(range(4), range(max(since, 0), 8)):
        assert shown(in_force(kept, key, at), droppable) == shown(in_force(versions, key, at), droppable)


@given(histories, st.integers(-1, 6), st.booleans())
def test_no_version_is_kept_that_no_read_can_see(
    drawn: dict[tuple[int, int], bool], since: int, droppable: bool
) -> None:
    kept = pruned([(key, time, live) for (key, time), live in drawn.items()], since, droppable)
    for version in kept:
        less = [other for other in kept if other != version]
        assert any(in_force(kept, version[0], at) != in_force(less, version[0], at) for at in range(max(since, 0), 8))
    if droppable:
        alone = [version for version in kept if sum(other[0] == version[0] for other in kept) == 1]
        assert not [version for version in alone if not version[2] and version[1] <= since]


def test_a_deletion_stays_where_it_hides_an_older_row() -> None:
    assert pruned([(0, 1, True), (0, 4, False)], 2, True) == [(0, 1, True), (0, 4, False)]
    assert pruned([(0, 1, True), (0, 2, False)], 2, True) == []
    assert pruned([(0, 1, True), (0, 2, False)], 2, False) == [(0, 2, False)]


def test_two_versions_of_one_time_are_told_even_where_a_later_one_hides_both() -> None:
    permutation, starts = np.array([2, 0, 1, 3], np.int32), np.array([0, 4], np.int32)
    times, live = np.array([4, 4, 1, 5]), np.ones(4, np.uint8)
    kept = np.empty(4, np.int64), np.empty(4, np.int64)
    for since in (0, 4, 9):
        n = prune_versions(permutation, starts, times, live, np.int64(since), False, *kept)
        assert n < 0 and times[-1 - n] == 4
