"""Test sums in words, their quotients, and arithmetic on decimals, beside Python's integers."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.kernels.accumulate import number_cells
from ddflow.kernels.exact import accumulate_words
from ddflow.kernels.exact_results import combine_decimals, divide_words, write_integers, write_rounded_quotients

pytestmark = pytest.mark.kernels
NONE, MASK = np.empty(0, np.uint8), 2**64 - 1
EDGES = [0, 1, -1, 2**32, 2**63 - 1, -(2**63), 2**53, -(2**53) - 1, 10**18]
INTS = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1), st.integers(-99, 99))
WIDE = st.one_of(INTS, st.integers(1 - 10**38, 10**38 - 1), st.sampled_from([10**38 - 1, 1 - 10**38]))


def words(numbers: list[int], width: int) -> Any:
    return np.array([[n >> 64 * k & MASK for k in range(width)] for n in numbers], np.uint64).reshape(-1, width)


def numbers(table: Any) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little", signed=True) for row in table]


def bounds(most: int) -> tuple[np.uint64, np.uint64]:
    return np.uint64(most & MASK), np.uint64(most >> 64)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), WIDE, INTS, st.booleans()), max_size=12),
    st.lists(WIDE, min_size=3, max_size=3),
    st.sets(st.integers(0, 2)),
    st.booleans(),
)
def test_sums_after_each_cell_are_those_of_the_rows_so_far(
    rows: list[tuple[int, int, int, int, bool]], sums: list[int], held: set[int], wide: bool
) -> None:
    rows = sorted(rows, key=lambda row: row[1])
    rows = [(g, rank, v if wide else (v + 2**63) % 2**64 - 2**63, diff, there) for g, rank, v, diff, there in rows]
    n, width, stored = len(rows), 4 if wide else 3, sorted(held)
    groups, ranks = (np.array([row[i] for row in rows], np.int32) for i in (0, 1))
    latest = np.array([stored.index(g) if g in held else -1 for g in range(3)], np.int32)
    cells, before, cell_ranks, of = (np.empty(n, np.int32) for _ in range(4))
    first = np.empty(n, np.int64)
    given = groups, ranks, latest, np.full(3, -1, np.int32), len(stored)
    c = number_cells(*given, cells, before, cell_ranks, of, first)
    states = np.zeros((len(stored) + c, width), np.uint64)
    states[: len(stored)] = words([sums[g] for g in stored], width)
    diffs = np.array([row[3] for row in rows], np.int64).view(np.uint64)
    present = np.array([row[4] for row in rows], np.uint8)
    values = words([row[2] for row in rows], 2 if wide else 1).reshape(-1)
    accumulate_words(cells, before[:c], values, present, diffs, wide, states)
    now = Counter({g: sums[g] for g in stored})
    expected = dict[tuple[int, int], int]()
    for g, rank, value, diff, there in rows:
        now[g] += value * diff * there
        expected[g, rank] = now[g]
    found = zip(of[:c].tolist(), cell_ranks[:c].tolist(), numbers(states[len(stored) :]), strict=True)
    assert {(g, rank): total for g, rank, total in found} == expected
    assert [(rows[row][0], rows[row][1]) for row in first[:c].tolist()] == list(expected)


@given(st.lists(st.tuples(st.one_of(WIDE, WIDE.map(lambda n: n * 2**60)), INTS), min_size=1, max_size=8))
def test_results_of_sums_are_rounded_once(drawn: list[tuple[int, int]]) -> None:
    sums, counts = words([total for total, _ in drawn], 4), np.array([n for _, n in drawn], np.int64)
    out, every = np.empty(len(drawn)), np.ones(len(drawn), np.uint8)
    wide = divide_words(sums, counts, out)
    for place, (total, n) in enumerate(drawn):
        if abs(n) < 2**32 or (abs(total) < 2**53 and abs(n) < 2**53):
            assert out[place] == (float(Fraction(total, n)) if n else 0)
        else:
            assert wide >= place or total == 0
    for most, width, slack in ((2**63 - 1, 1, 0), (10**19 - 1, 2, 1), (10**38 - 1, 2, 1)):
        table = np.empty((len(drawn), width), np.uint64)
        fits = [-most - 1 + slack <= total <= most for total, _ in drawn]
        beyond = write_integers(sums, every, *bounds(most), np.uint64(slack), table)
        assert beyond == (fits.index(False) if False in fits else -1)
        assert numbers(table) == [total if fit else 0 for (total, _), fit in zip(drawn, fits, strict=True)]
        exact = [Fraction(100 * total, n) if n else Fraction(0) for total, n in drawn]
        rounded = [int(abs(each) + Fraction(1, 2)) * (-1 if each < 0 else 1) for each in exact]
        beyond = write_rounded_quotients(sums, counts, np.uint64(100), every, *bounds(most), table)
        fits = [abs(each) <= most for each in rounded]
        assert beyond == (fits.index(False) if False in fits else -1)
        assert numbers(table) == [each if fit else 0 for each, fit in zip(rounded, fits, strict=True)]


@given(
    st.lists(st.tuples(WIDE, WIDE, st.booleans()), min_size=1, max_size=8),
    st.sampled_from([1, -1, 10, -(10**18), 10**38]),
    st.integers(0, 38),
    st.sampled_from([10**5 - 1, 10**19 - 1, 10**38 - 1]),
    st.booleans(),
)
def test_decimals_are_combined_in_256_bits(
    rows: list[tuple[int, int, bool]], factor: int, drop: int, most: int, product: bool
) -> None:
    left, right = (words([row[i] for row in rows], 2) for i in (0, 1))
    present, out = np.array([row[2] for row in rows], np.uint8), np.empty((len(rows), 2), np.uint64)
    one, by = words([1], 2), words([factor], 2)
    given = (left, right, np.empty((0, 2), np.uint64), one) if product else (left, by, right, one)
    refused = combine_decimals(*given, present, drop, *bounds(most), out)
    exact = [a * b if product else a * factor + b for a, b, _ in rows]
    rounded = [(abs(each) + 10**drop // 2) // 10**drop * (-1 if each < 0 else 1) for each in exact]
    wrong = [i for i, (each, row) in enumerate(zip(rounded, rows, strict=True)) if row[2] and abs(each) > most]
    assert refused == (wrong[0] if wrong else -1)
    if not wrong:
        assert numbers(out) == [each if row[2] else 0 for each, row in zip(rounded, rows, strict=True)]
