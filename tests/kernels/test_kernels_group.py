"""Test group numbers: in order of arrival, and distinct for distinct identities, in a table of any load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.kernels.accumulate import number_groups

pytestmark = pytest.mark.kernels
TOP = 2**64 - 1
# Uniform ones, and crowds of one slot at either end (where the table wraps around) and in the middle.
highs = st.one_of(
    st.integers(0, TOP), st.integers(0, 5), st.integers(0, 9).map(lambda i: (1 << 63) + i), st.integers(TOP - 9, TOP)
)


def numbered(keys: list[tuple[int, int]], wide: bool, bits: int) -> tuple[list[int], list[int]]:
    """The number of each row's group, the first row of each group."""
    n = len(keys)
    high = np.array([high for high, _ in keys], np.uint64)
    low = np.array([low for _, low in keys] if wide else [], np.uint64)
    groups, first = np.full(n, -7, np.int32), np.full(n, -7, np.int64)
    found = number_groups(high, low, np.int64(bits), np.empty(1 << bits, np.int32), groups, first)
    return groups.tolist(), first[:found].tolist()


@given(st.lists(st.tuples(highs, st.integers(0, 1)), max_size=60), st.booleans(), st.integers(0, 3))
def test_rows_have_one_number_exactly_when_their_identities_are_equal(
    keys: list[tuple[int, int]], wide: bool, spare: int
) -> None:
    ids = keys if wide else [(high, 0) for high, _ in keys]
    order = list(dict.fromkeys(ids))
    numbers, first = numbered(keys, wide, len(keys).bit_length() + spare + (len(keys) == 0))
    assert numbers == [order.index(key) for key in ids]
    assert first == [ids.index(key) for key in order]


@pytest.mark.parametrize("wide", [False, True])
def test_identities_that_all_want_the_last_slot_find_others(wide: bool) -> None:
    keys = [(TOP, i) if wide else (TOP - i, 0) for i in range(50)] * 2
    numbers, first = numbered(keys, wide, 7)
    assert numbers == [*range(50)] * 2 and first == [*range(50)]


def test_a_table_grows_with_the_number_of_groups() -> None:
    chance = np.random.default_rng(1)
    for spread in (1 << 40, 1):
        keys = [(int(each) * spread, 0) for each in chance.integers(0, 1 << 14, 40_000)]
        order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        assert numbered(keys, False, 17)[0] == [order[key] for key in keys]
