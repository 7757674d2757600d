"""Test that fold kernels give the results of Python loops: choices, sums of each width, parts of lists, sets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from chance import effort
from hypothesis import given, strategies as st

from ddflow.kernels.fold import (
    BLANK,
    CLEAR,
    FIRST,
    GREATEST,
    LAST,
    LEAST,
    NOTHING,
    SKIP,
    TAKE,
    EventsByKey,
    add_floats,
    add_int64,
    add_int128,
    choose_cells,
    collect_list_elements,
    expand_ranges,
    mark_distinct_elements,
)

pytestmark = pytest.mark.kernels
LOW = 2**64 - 1


class Case(NamedTuple):
    """Keys of (key, time) groups of (row, action); by row whether it counts and its word; by key the same of what is
    held."""

    keys: list[list[list[tuple[int, int]]]]
    counts: list[int]
    words: list[int]
    had: list[int]
    held: list[int]

    @property
    def walked(self) -> EventsByKey:
        key_times = [key_time for key in self.keys for key_time in key]
        bounds = [np.cumsum([0, *map(len, of)]).astype(np.int32) for of in (key_times, self.keys)]
        return EventsByKey(np.array([row for key_time in key_times for row, _ in key_time], np.int32), *bounds)

    @property
    def action(self) -> Any:
        return flags([what for key in self.keys for key_time in key for _, what in key_time])

    @property
    def counting(self) -> Any:
        return flags([] if all(self.counts) else self.counts)

    @property
    def key_times(self) -> int:
        return sum(map(len, self.keys))


def flags(values: list[int]) -> Any:
    return np.array(values, np.uint8)


def ints(values: list[int]) -> Any:
    return np.array(values, np.int64)


@st.composite
def cases(draw: st.DrawFn, words: st.SearchStrategy[Any] = st.integers(-3, 3)) -> Case:  # noqa: B008
    """Small ones, with rows that the walk does not visit."""
    sizes = draw(st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=4))
    n = sum(map(sum, sizes))
    rows = iter(draw(st.permutations(range(n + 1)))[:n])
    what = st.sampled_from([TAKE, TAKE, TAKE, SKIP, CLEAR, BLANK])
    keys = [[[(next(rows), draw(what)) for _ in range(size)] for size in key] for key in sizes]

    def some(of: st.SearchStrategy[Any], size: int) -> list[Any]:
        return draw(st.lists(of, min_size=size, max_size=size))

    g, flag = len(keys), st.integers(0, 1)
    return Case(keys, some(flag, n + 1), some(words, n + 1), some(flag, g), some(words, g))


@given(cases(), st.sampled_from([LAST, FIRST, GREATEST, LEAST]))
@effort(200)
def test_choices(case: Case, rule: int) -> None:
    expected = []
    for group, key in enumerate(case.keys):
        cell = 1000 + group if case.had[group] or rule == LAST else NOTHING
        there, word = cell != NOTHING, case.held[group]
        for key_time in key:
            for row, what in key_time:
                better = {LAST: True, FIRST: False, GREATEST: case.words[row] > word, LEAST: case.words[row] < word}
                if what == TAKE and case.counts[row] and (not there or better[rule]):
                    cell, there, word = row, True, case.words[row]
                elif what in (CLEAR, BLANK):
                    cell, there = NOTHING, what == BLANK and rule == FIRST
            expected.append(cell)
    out, compared = np.empty(case.key_times, np.int64), rule in (GREATEST, LEAST)
    words, held = ints(case.words if compared else []), ints(case.held if compared else [])
    references = ints([1000 + group for group in range(len(case.keys))])
    choose_cells(case.walked, case.action, case.counting, words, references, flags(case.had), held, rule, out)
    assert out.tolist() == expected


def sums(case: Case, low: float, high: float) -> tuple[list[Any], tuple[int, int, Any]]:
    """The sums by key and time, None for none; or the group, the row and the sum before of what leaves the bounds."""
    out: list[Any] = []
    for group, key in enumerate(case.keys):
        total = case.held[group] if case.had[group] else None
        for key_time in key:
            for row, what in key_time:
                if what == TAKE and case.counts[row]:
                    if total is not None and (total + case.words[row] < low or total + case.words[row] > high):
                        return out, (group, row, total)
                    total = case.words[row] if total is None else total + case.words[row]
                elif what in (CLEAR, BLANK):
                    total = None
            out.append(total)
    return out, (-1, 0, 0)


NARROW, WHOLE = (-4, 4), (-(2**63), 2**63 - 1)


@given(st.one_of(st.tuples(cases(), st.just(NARROW)), st.tuples(cases(st.integers(*WHOLE)), st.just(WHOLE))))
@effort(200)
def test_sums_of_words(given: tuple[Case, tuple[int, int]]) -> None:
    case, (low, high) = given
    out, there = np.empty(case.key_times, np.int64), flags([9] * case.key_times)
    expected, refused = sums(case, low, high)
    told = add_int64(
        case.walked,
        case.action,
        case.counting,
        ints(case.words),
        flags(case.had),
        ints(case.held),
        low,
        high,
        out,
        there,
    )
    assert tuple(map(int, told)) == refused
    if refused[0] < 0:
        assert [v if t else None for v, t in zip(out.tolist(), there.tolist(), strict=True)] == expected


def pairs(values: list[int]) -> Any:
    return np.array([(value & LOW, value >> 64 & LOW) for value in values], np.uint64).reshape(-1, 2)


MOST = 10**38 - 1
WIDE = st.sampled_from([0, 1, -1, 2**63, 2**64 - 1, -(2**64), MOST, -MOST, MOST // 2, 2**100])


@given(
    st.one_of(
        st.tuples(cases(WIDE), st.just((-MOST, MOST))),
        st.tuples(cases(st.integers(0, 3) | st.just(LOW)), st.just((0, LOW))),
    )
)
@effort(200)
def test_sums_of_two_words(given: tuple[Case, tuple[int, int]]) -> None:
    case, (low, high) = given
    out, there = pairs([0] * case.key_times), flags([9] * case.key_times)
    expected, refused = sums(case, low, high)
    told = add_int128(
        case.walked,
        case.action,
        case.counting,
        pairs(case.words),
        flags(case.had),
        pairs(case.held),
        pairs([low])[0],
        pairs([high])[0],
        out,
        there,
    )
    assert tuple(map(int, told)) == refused[:2]
    if refused[0] < 0:
        numbers = [v if t else None for v, t in zip(expected, there.tolist(), strict=True)]
        assert numbers == expected
        assert out[there != 0].tolist() == pairs([v for v in expected if v is not None]).tolist()
    else:
        assert out[0].tolist() == pairs([refused[2]])[0].tolist()


FLOATS = st.one_of(
    st.floats(-1e9, 1e9), st.sampled_from([0.1, -0.0, float("nan"), float("inf"), -float("inf"), 2.0**24])
)


@given(cases(FLOATS), st.booleans())
@effort(200)
def test_sums_of_floats(case: Case, short: bool) -> None:
    dtype = np.float32 if short else np.float64
    words, held = (np.array(values, dtype) for values in (case.words, case.held))
    with np.errstate(invalid="ignore"):
        case = case._replace(words=list(words), held=list(held))
        expected, _ = sums(case, -np.inf, np.inf)
    out, there = np.empty(case.key_times), flags([9] * case.key_times)
    add_floats(
        case.walked,
        case.action,
        case.counting,
        words.astype(np.float64),
        flags(case.had),
        held.astype(np.float64),
        short,
        out,
        there,
    )
    shown = [repr(v) if t else None for v, t in zip(out.tolist(), there.tolist(), strict=True)]
    assert shown == [None if v is None else repr(float(v)) for v in expected]


@given(cases())
@effort(200)
def test_parts_of_lists(case: Case) -> None:
    n, g, p = len(case.words), len(case.keys), case.action.size
    parts, stretches = ints([0] * (p + g)), ints([0] * (p + g + 1))
    begins, stops = ints([0] * case.key_times), ints([0] * case.key_times)
    made, opened = collect_list_elements(
        case.walked, case.action, case.counting, n, flags(case.had), parts, stretches, begins, stops
    )
    lists, ended = [], []
    for group, key in enumerate(case.keys):
        current = [n + group] if case.had[group] else []
        for key_time in key:
            for row, what in key_time:
                if what == TAKE and case.counts[row]:
                    current = [*current, row]
                elif what in (CLEAR, BLANK):
                    ended.append(current)
                    current = []
            lists.append(current)
        ended.append(current)
    assert [parts[a:b].tolist() for a, b in zip(begins, stops, strict=True)] == lists
    assert [parts[a:b].tolist() for a, b in pairwise(stretches[: opened + 1])] == [each for each in ended if each]
    assert stretches[opened] == made


def test_short_floats_are_rounded_at_each_addition() -> None:
    case = Case([[[(0, TAKE), (1, TAKE)]]], [1, 1], [1, 1], [1], [2**24])
    for short, total in ((True, 2.0**24), (False, 2.0**24 + 2)):
        out, there = np.zeros(1), flags([0])
        add_floats(
            case.walked, case.action, case.counting, np.ones(2), flags(case.had), np.full(1, 2.0**24), short, out, there
        )
        assert (out.tolist(), there.tolist()) == ([total], [1])


@given(st.lists(st.lists(st.integers(0, 30), max_size=70), max_size=4))
@effort(100)
def test_duplicates(lists: list[list[int]]) -> None:
    hashes = np.arange(31, dtype=np.uint64) // np.uint64(2) * np.uint64(0x9E3779B97F4A7C15)
    elements, ends = ints([each for of in lists for each in of]), ints(np.cumsum([0, *map(len, lists)]).tolist())
    kept, expected = flags([9] * elements.size), []
    for of in lists:
        seen: set[int] = set()
        for each in of:
            expected.append(int(each // 2 not in seen))
            seen.add(each // 2)
    mark_distinct_elements(hashes, elements, ends, kept)
    assert kept.tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=5))
@effort(50)
def test_ranges(ranges: list[tuple[int, int]]) -> None:
    ends = ints(np.cumsum([0, *(size for _, size in ranges)]).tolist())
    out = np.empty(int(ends[-1]), np.int64)
    expand_ranges(ints([first for first, _ in ranges]), ends, out)
    assert out.tolist() == [first + i for first, size in ranges for i in range(size)]
