"""The index behaves as a dict does, in the order of identities, however crowded its slots are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddflow.arrange.index import Index
from ddflow.kernels import index as kernels
from ddflow.kernels.resolve import LIVE, OCCUPIED

pytestmark = pytest.mark.kernels
TOP = 2**64 - 1
Key = tuple[int, int]
Entry = tuple[int, int, tuple[int, ...]]
"""Value hash, reference with flags, order words."""
# Uniform ones, a crowd of one home slot in the middle, and one that runs off the end.
highs = st.one_of(
    st.integers(0, TOP), st.integers(0, 9).map(lambda i: (1 << 62) + i), st.integers(TOP - 9, TOP), st.integers(0, 2)
)
references = st.builds(lambda live, at: OCCUPIED | (LIVE if live else 0) | at, st.booleans(), st.integers(0, 2**60 - 1))
values = st.integers(0, TOP)
orders = st.integers(-(2**63), 2**63 - 1)


def columns(keys: list[Key], wide: bool) -> tuple[Any, Any]:
    high = np.array([high for high, _ in keys], np.uint64)
    return high, np.array([low for _, low in keys] if wide else [], np.uint64)


def put(index: Index, entries: dict[Key, Entry]) -> None:
    keys = sorted(entries)
    order = np.array([entries[key][2] for key in keys], np.int64).reshape(len(keys), index.words)
    index.write(*columns(keys, index.wide), np.array([entries[key][0] for key in keys], np.uint64),
                np.array([entries[key][1] for key in keys], np.int64), order)  # fmt: skip


def found(index: Index, keys: list[Key]) -> list[Entry | None]:
    held = index.seek(*columns(keys, index.wide), np.arange(len(keys)))
    rows = zip(held.value.tolist(), held.reference.tolist(), map(tuple, held.order.tolist()), strict=True)
    return [row if row[1] else None for row in rows]


@st.composite
def batches(draw: st.DrawFn) -> tuple[bool, int, list[dict[Key, Entry]]]:
    """Wide or not, the number of order words, and some writes."""
    wide, words = draw(st.booleans()), draw(st.integers(0, 3))
    keys = st.tuples(highs, st.integers(0, 1) if wide else st.just(0))
    entries = st.tuples(values, references, st.tuples(*[orders] * words))
    return wide, words, draw(st.lists(st.dictionaries(keys, entries, max_size=12), min_size=1, max_size=5))


@given(batches(), st.lists(highs, max_size=8))
def test_what_was_written_last_is_found_and_nothing_else(
    drawn: tuple[bool, int, list[dict[Key, Entry]]], absent: list[int]
) -> None:
    wide, words, writes = drawn
    index, twin = Index(wide, words), dict[Key, Entry]()
    for entries in writes:
        put(index, entries)
        twin |= entries
        index._check()
        keys = sorted({*twin, *((high, 0) for high in absent)})
        assert found(index, keys) == [twin.get(key) for key in keys]
        assert len(index) == len(twin)
    _, places = index.walk(live=False)
    assert [index.table[place, kernels.ID] for place in places] == [high for high, _ in sorted(twin)]
    live = [twin[key][1] for key in sorted(twin) if twin[key][1] & LIVE]
    assert index.walk(live=True)[0].tolist() == live


@given(batches())
def test_redirected_entries_point_elsewhere_and_keep_their_flags(
    drawn: tuple[bool, int, list[dict[Key, Entry]]],
) -> None:
    wide, words, writes = drawn
    index, twin = Index(wide, words), dict[Key, Entry]()
    for entries in writes:
        put(index, entries)
        twin |= entries
    keys = sorted(twin)
    moved = {key: (v, r & (OCCUPIED | LIVE) | i, o) for i, (key, (v, r, o)) in enumerate(sorted(twin.items())) if i % 2}
    places = index.places(*columns(keys, wide), np.arange(len(keys)))
    index.redirect(np.where(np.arange(len(keys)) % 2 == 1, places, -1), np.arange(len(keys)))
    assert found(index, keys) == [moved.get(key, twin[key]) for key in keys]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("crowd", ["at the end", "in the middle", "at the beginning"])
def test_a_crowd_of_identities_with_the_same_leading_bits_finds_room(wide: bool, crowd: str) -> None:
    first = {"at the end": TOP - 700, "in the middle": 1 << 63, "at the beginning": 0}[crowd]
    entries: dict[Key, Entry] = {(first + i, 0): (i, OCCUPIED | LIVE | i, (i,)) for i in range(700)}
    index = Index(wide, 1)
    put(index, entries)
    index._check()
    assert found(index, sorted(entries)) == [entries[key] for key in sorted(entries)]
    assert found(index, [(first - 1 & TOP, 0)]) == [None]
    assert index.nbytes < 1 << 20


def test_deleted_keys_are_dropped_when_the_table_is_rebuilt_unless_their_order_is_kept() -> None:
    for keeps in (False, True):
        index = Index(False, 0, keeps)
        step = TOP // 4000
        put(index, {(i * step, 0): (0, OCCUPIED, ()) for i in range(600)})
        put(index, {(i * step + 1, 0): (0, OCCUPIED | LIVE, ()) for i in range(600)})
        index._check()
        assert len(index) == (1200 if keeps else 600)


def test_a_table_that_is_full_says_so_and_writing_again_into_a_larger_one_is_harmless() -> None:
    high, none, order = np.array([1, 2, 3], np.uint64), np.empty(0, np.uint64), np.empty((3, 0), np.int64)
    table, larger = np.zeros((2, 3), np.uint64), np.zeros((8, 3), np.uint64)
    reference = np.array([OCCUPIED | i for i in range(3)])
    assert kernels.write(table, np.uint64(2), high, none, high, reference, order) == -1
    assert kernels.rebuild(table, np.zeros((1, 3), np.uint64), np.uint64(1), False, np.uint64(OCCUPIED)) == -1
    assert kernels.rebuild(table, larger, np.uint64(4), False, np.uint64(OCCUPIED)) == 2
    assert kernels.write(larger, np.uint64(4), high, none, high, reference, order) == 1
    assert sorted(larger[larger[:, kernels.REF] != 0, kernels.ID].tolist()) == [1, 2, 3]
