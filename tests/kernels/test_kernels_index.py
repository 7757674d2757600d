"""Test that the index behaves like a dict in the order of identities, in a table of any load."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from chance import long_test
from hypothesis import given, strategies as st

from ddflow.columns.threads import Threads
from ddflow.kernels import index as kernels
from ddflow.kernels.gather import SLOT, SLOTS
from ddflow.kernels.index import ONE
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.trace.index import Index, IndexWrite

pytestmark = pytest.mark.kernels
TOP = 2**64 - 1
FLAGS = OCCUPIED | LIVE
Key = tuple[int, int]
Put = tuple[int, bool, tuple[int, ...], int]
"""Value hash, live, order words, how many versions the key has before this one in the same step."""
Entry = tuple[int, int, tuple[int, ...]]
"""Value hash, reference with flags, order words."""
# Uniform ones, a crowd of one home slot in the middle, and one that runs off the end.
highs = st.one_of(
    st.integers(0, TOP), st.integers(0, 9).map(lambda i: (1 << 62) + i), st.integers(TOP - 9, TOP), st.integers(0, 2)
)
values = st.integers(0, TOP)
orders = st.integers(-(2**63), 2**63 - 1)


def columns(keys: list[Key], wide: bool) -> tuple[Any, Any]:
    high = np.array([high for high, _ in keys], np.uint64)
    return high, np.array([low for _, low in keys] if wide else [], np.uint64)


def starts(n: int) -> Any:
    return np.arange(n, dtype=np.int32)


def put(
    index: Index, entries: dict[Key, Put], slot: int, others: Sequence[Key] = (), stale: bool = False
) -> dict[Key, Entry]:
    """Write what a step's keys hold now, and leave ``others``, of which it has events too, as they are.

    ``stale``: the table was rebuilt since the keys were looked for.  Returns the entries that there should be now.
    """
    keys, rows, last = sorted({*entries, *others}), list[Key](), list[int]()
    out: dict[Key, Entry] = {}
    for key in keys:
        if key not in entries:
            last.append(-1)
            continue
        value, live, order, more = entries[key]
        rows += [key] * (more + 1)
        last.append(len(rows) - 1)
        out[key] = value, OCCUPIED | (LIVE if live else 0) | slot << SLOT | last[-1], order
        if not live and not index.keeps:
            out[key] = value, OCCUPIED, order
    newest = [row in last for row in range(len(rows))]
    order = np.array([entries[key][2] for key in rows], np.int64).reshape(len(rows), index.words)
    value = [entries[key][0] if last else 7 for key, last in zip(rows, newest, strict=True)]
    live = [entries[key][1] == last for key, last in zip(rows, newest, strict=True)]
    place, built = index.look_up_keys(*columns(keys, index.wide), starts(len(keys))).place, index.built
    if stale:
        rebuild(index)
    index.reserve_entries(len(last))
    cells = np.array(value, np.uint64), np.array(live, np.uint8), order
    index.write(IndexWrite(place, built, np.array(last, np.int64), *columns(rows, index.wide), *cells, slot))
    return out


def found(index: Index, keys: list[Key]) -> list[Entry | None]:
    """What the index knows of some keys; of one that it does not know, the slot it names is the one for it."""
    held = index.look_up_keys(*columns(keys, index.wide), starts(len(keys)))
    for (high, _), place, reference in zip(keys, held.place.tolist(), held.reference.tolist(), strict=True):
        owner, first, _ = index._find_range(high)
        table, homes, bits = index._get_table(owner)
        home = (high - first) * int(homes) >> 64 - int(bits)
        if not reference:
            free = home + int((table[home:, kernels.REF] == 0).argmax())
            assert place == table.ctypes.data + free * table.strides[0]
    rows = zip(held.value.tolist(), held.reference.tolist(), map(tuple, held.order.tolist()), strict=True)
    # A deletion that need not be kept may linger, or be gone.
    return [row if row[1] & LIVE or (row[1] and index.keeps) else None for row in rows]


def seen(index: Index, entry: Entry | None) -> Entry | None:
    return entry if entry is not None and (index.keeps or entry[1] & LIVE) else None


SHARDS = st.sampled_from([1, 4])
CREW = Threads(3)
CREW.waking = 1  # all work is shared


def rebuild(index: Index) -> None:
    for owner, _, _ in index._cut_range(0, TOP):
        index._rebuild(owner, 0)


def cut(index: Index, shards: int) -> Index:
    """An index whose table is cut, for threads that share all of its work."""
    if shards > 1:
        index.set_threads(CREW)
        index._allocate_shards(0, 0, shards.bit_length() - 1, 0)
        assert len(index.tables) == shards
    return index


@st.composite
def batches(draw: st.DrawFn) -> tuple[bool, int, list[dict[Key, Put]]]:
    """Wide or not, the number of order words, and some writes."""
    wide, words = draw(st.booleans()), draw(st.integers(0, 3))
    keys = st.tuples(highs, st.integers(0, 1) if wide else st.just(0))
    entries = st.tuples(values, st.booleans(), st.tuples(*[orders] * words), st.integers(0, 2))
    return wide, words, draw(st.lists(st.dictionaries(keys, entries, max_size=12), min_size=1, max_size=5))


@given(batches(), st.lists(highs, max_size=8), st.booleans(), st.booleans(), SHARDS)
def test_what_was_written_last_is_found_and_nothing_else(
    drawn: tuple[bool, int, list[dict[Key, Put]]], absent: list[int], keeps: bool, stale: bool, shards: int
) -> None:
    wide, words, writes = drawn
    index, twin = cut(Index(wide, words, keeps), shards), dict[Key, Entry]()
    others = [(high, 0) for high in absent]
    for slot, entries in enumerate(writes, 1):
        twin |= put(index, entries, slot, others, stale)
        index._check_invariants()
        keys = sorted({*twin, *others})
        assert found(index, keys) == [seen(index, twin.get(key)) for key in keys]
        alive = sum(bool(reference & LIVE) for _, reference, _ in twin.values())
        assert len(index) == len(twin) if keeps else alive <= len(index) <= len(twin)
    live = [twin[key][1] for key in sorted(twin) if twin[key][1] & LIVE]
    assert index.list_entries(live=True)[0].tolist() == live


@given(batches(), st.sets(st.integers(0, 5)), highs, highs, SHARDS)
def test_a_walk_gives_the_entries_of_a_range_and_of_some_batches_in_the_order_of_identities(
    drawn: tuple[bool, int, list[dict[Key, Put]]], slots: set[int], one: int, other: int, shards: int
) -> None:
    wide, words, writes = drawn
    index, twin = cut(Index(wide, words), shards), dict[Key, Entry]()
    for slot, entries in enumerate(writes, 1):
        twin |= put(index, entries, slot)
    members = np.array([slot in slots for slot in range(6)], np.uint8)
    first, last = sorted([one, other])
    ranges = [
        {},
        {"first": first, "last": last},
        {"first": first, "last": last, "members": members},
        {"members": members},
        {"first": first},
        {"last": last},
    ]
    for asked in ranges:
        for live in (False, True):
            keys = [
                key
                for key, (_, reference, _) in sorted(twin.items())
                if asked.get("first", 0) <= key[0] <= asked.get("last", TOP)
                and ("members" not in asked or reference >> SLOT & SLOTS in slots)
                and (reference & LIVE or not live)
            ]
            references, places = index.list_entries(live, **asked)
            assert references.tolist() == [twin[key][1] for key in keys]
            high, low, value, order = index.read_entries(places)
            assert high.tolist() == [high for high, _ in keys]
            assert low.tolist() == [low for _, low in keys if wide]
            assert value.tolist() == [twin[key][0] for key in keys]
            assert list(map(tuple, order.tolist())) == [twin[key][2] for key in keys]


@given(batches(), SHARDS)
def test_redirected_entries_point_elsewhere_and_keep_their_flags(
    drawn: tuple[bool, int, list[dict[Key, Put]]], shards: int
) -> None:
    wide, words, writes = drawn
    index, twin = cut(Index(wide, words), shards), dict[Key, Entry]()
    for slot, entries in enumerate(writes, 1):
        twin |= put(index, entries, slot)
    keys = sorted(twin)
    n, absent = len(keys), (1 << 61, 0)
    # Of every key its reference and one that it had before, if any; in between a key that was never there.
    asked = sorted([*keys, absent] if absent not in twin else keys)
    groups = np.repeat(np.arange(len(asked)), 2)
    now = [twin[key][1] & ~FLAGS if key in twin else 5 for key in asked]
    references = np.array([each for reference in now for each in (reference, reference ^ 1)], np.int64)
    places = index.find_entry_places(*columns(asked, wide), starts(len(asked)), references, groups)
    assert (places[1::2] == -1).all()
    ours = places[::2][[key in twin for key in asked]]
    assert index.read_entries(ours)[0].tolist() == [high for high, _ in keys]
    assert n == len(asked) or places[2 * asked.index(absent)] == -1
    moved = {key: (v, r & FLAGS | i, o) for i, (key, (v, r, o)) in enumerate(sorted(twin.items())) if i % 2}
    index.repoint_entries(np.where(np.arange(n) % 2 == 1, ours, -1), np.arange(n))
    assert found(index, keys) == [moved.get(key, twin[key]) for key in keys]


@long_test
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("crowd", ["at the end", "in the middle", "at the beginning"])
def test_a_crowd_of_identities_with_the_same_leading_bits_finds_room(wide: bool, crowd: str) -> None:
    first = {"at the end": TOP - 700, "in the middle": 1 << 63, "at the beginning": 0}[crowd]
    keys = [(first + i, 0) for i in range(700)]
    index = Index(wide, 1)
    twin = put(index, {key: (i, True, (i,), 0) for i, key in enumerate(keys)}, 3)
    index._check_invariants()
    assert found(index, keys) == [twin[key] for key in keys]
    assert found(index, [(first - 1 & TOP, 0)]) == [None]
    assert index.list_entries(live=True, first=first + 10, last=first + 19)[0].tolist() == [
        twin[k][1] for k in keys[10:20]
    ]
    assert index.nbytes < 1 << 20


def test_deleted_keys_are_dropped_when_the_table_is_rebuilt_unless_their_order_is_kept() -> None:
    for keeps in (False, True):
        index = Index(False, 0, keeps)
        step = TOP // 4000
        put(index, {(i * step, 0): (0, False, (), 0) for i in range(600)}, 1)
        put(index, {(i * step + 1, 0): (0, True, (), 0) for i in range(600)}, 2)
        index._check_invariants()
        assert len(index) == (1200 if keeps else 600)


def test_a_deletion_points_at_its_version_only_where_it_is_kept() -> None:
    for keeps in (False, True):
        index = Index(False, 0, keeps)
        put(index, {(5, 0): (0, True, (), 0), (9, 0): (0, True, (), 0)}, 1)
        put(index, {(5, 0): (0, False, (), 1)}, 2)
        references = index.list_entries(live=False)[0].tolist()
        assert references == [OCCUPIED | 2 << SLOT | 1 if keeps else OCCUPIED, FLAGS | 1 << SLOT | 1]


def test_from_the_moment_that_deletions_are_kept_they_stay_and_those_before_are_gone() -> None:
    index = Index(False, 0, keeps=False)
    put(index, {(5, 0): (0, False, (), 0), (9, 0): (0, True, (), 0)}, 1)
    index.keep_deletions()
    index._check_invariants()
    assert index.list_entries(live=False)[0].tolist() == [FLAGS | 1 << SLOT | 1]
    put(index, {(9, 0): (0, False, (), 0)}, 2)
    rebuild(index)
    assert index.list_entries(live=False)[0].tolist() == [OCCUPIED | 2 << SLOT]


@given(batches(), highs, highs, st.sets(st.integers(1, 5)), SHARDS)
def test_what_is_evicted_is_found_no_more_and_a_step_that_looked_before_writes_as_if_it_looked_after(
    drawn: tuple[bool, int, list[dict[Key, Put]]], one: int, other: int, slots: set[int], shards: int
) -> None:
    wide, words, writes = drawn
    index, twin = cut(Index(wide, words), shards), dict[Key, Entry]()
    for slot, entries in enumerate(writes, 1):
        twin |= put(index, entries, slot)
    keys, (first, last) = sorted(twin), sorted([one, other])
    n, held, built = len(keys), index.look_up_keys(*columns(keys, wide), starts(len(keys))), index.built
    index.remove_entries(first, last, np.array([slot in slots for slot in range(6)], np.uint8))
    index._check_invariants()
    leaving = {key for key in keys if first <= key[0] <= last and twin[key][1] >> SLOT & SLOTS in slots}
    assert found(index, keys) == [None if key in leaving else twin[key] for key in keys]
    assert len(index) == n - len(leaving)
    value, order = np.arange(n).astype(np.uint64), np.zeros((n, words), np.int64)
    index.reserve_entries(n)
    cells = value, np.ones(n, np.uint8), order
    halves = [slice(0, n // 2), slice(n // 2, n)]
    high, low = columns(keys, wide)
    writes = [
        IndexWrite(
            held.place[h], built, np.arange(n)[h] - (h.start or 0), high[h], low[h], *(c[h] for c in cells), 9 + i
        )
        for i, h in enumerate(halves)
    ]
    index.write(*writes)
    index._check_invariants()
    places = [(9, i) for i in range(n // 2)] + [(10, i) for i in range(n - n // 2)]
    assert found(index, keys) == [(i, FLAGS | s << SLOT | r, (0,) * words) for i, (s, r) in enumerate(places)]


def probe(*tables: Any, homes: int, most: int) -> tuple[Any, Any, Any]:
    """The arguments for two shards, or for one."""
    bits = len(tables) - 1
    rows = [kernels.describe_shard(table, homes, bits, owner, most) for owner, table in enumerate(tables)]
    return np.array(rows * (2 - bits), np.uint64), np.uint64(63), np.uint64(tables[0].strides[0])


def test_a_shard_that_is_full_says_so_and_writing_goes_on_in_a_larger_one() -> None:
    high, none, order = np.array([1, 2, 3], np.uint64), np.empty(0, np.uint64), np.empty((3, 0), np.int64)
    table, larger = np.zeros((3, 3), np.uint64), np.zeros((8, 3), np.uint64)
    home, last, live = np.full(3, -1), np.arange(3), np.ones(3, np.uint8)
    rest = (high, none, high, live, order, np.int64(OCCUPIED), np.int64(LIVE), np.int64(0))
    # The last slot stays empty, and so do the slots beyond the greatest number of entries.
    assert kernels.write_entries(*probe(table, homes=2, most=1), home, last, *rest) == -2
    assert kernels.write_entries(*probe(table, homes=2, most=3), home[1:], last[1:], *rest) == -2
    assert kernels.write_entries(*probe(table, homes=2, most=0), home[:2], last[:2], *rest) == 0
    small, new = probe(np.zeros((2, 3), np.uint64), homes=1, most=2), probe(larger, homes=4, most=4)
    assert kernels.copy_entries(table, np.uint64(OCCUPIED), False, *small) == -1
    assert kernels.copy_entries(table, np.uint64(OCCUPIED), False, *new) == 2
    assert kernels.write_entries(*new, home[2:], last[2:], *rest) == 1 and new[0][0, kernels.USED] == 3
    assert sorted(larger[larger[:, kernels.REF] != 0, kernels.ID].tolist()) == [1, 2, 3]


def test_of_two_shards_each_counts_its_entries() -> None:
    high, none, order = np.array([1, 2, 2**63], np.uint64), np.empty(0, np.uint64), np.empty((3, 0), np.int64)
    both = probe(*np.zeros((2, 8, 3), np.uint64), homes=4, most=2)
    rest = (high, none, high, np.ones(3, np.uint8), order, np.int64(OCCUPIED), np.int64(LIVE), np.int64(0))
    assert kernels.write_entries(*both, np.full(3, -1), np.arange(3), *rest) == 3
    assert both[0][:, kernels.USED].tolist() == [2, 1]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.integers(0, 2**32), st.integers(1, 4), st.booleans())
def test_shards_split_and_grow_one_at_a_time(steps: list[int], seed: int, threads: int, crowded: bool) -> None:
    random, twin, crew = np.random.default_rng(seed), dict[Key, Entry](), Threads(threads)
    crew.waking = 1
    with pytest.MonkeyPatch.context() as patch, crew:
        patch.setattr("ddflow.trace.index.SHARD", 64)
        patch.setattr("ddflow.trace.index.LEAST", 16)
        patch.setattr("ddflow.trace.index.SPARE", 4)
        index = Index(False, 1)
        index.set_threads(crew)
        for step, size in enumerate(steps):
            keys = np.unique(random.integers(0, TOP >> (20 if crowded and step % 2 else 0), size, np.uint64))
            cuts = [keys.size * i // threads for i in range(threads + 1)]
            place, built, writes = index.look_up_keys(keys, keys[:0], starts(keys.size)).place, index.built, []
            for slot, (a, b) in enumerate(itertools.pairwise(cuts), 1 + step * threads):
                high, rows, live = keys[a:b], np.arange(b - a), np.ones(b - a, np.uint8)
                columns = high, high[:0], high, live, rows.reshape(b - a, 1)
                writes.append(IndexWrite(place[a:b], built, rows, *columns, slot))
                twin |= {(h, 0): (h, FLAGS | slot << SLOT | i, (i,)) for i, h in enumerate(high.tolist())}
            index.reserve_entries(keys.size)
            index.write(*writes)
            index._check_invariants()
        assert found(index, sorted(twin)) == [twin[key] for key in sorted(twin)]
        assert crowded or len(twin) < 200 or len(index.tables) > 1


def test_a_walk_without_room_says_so() -> None:
    table = np.array([[1, 0, 1], [2, 0, 1]], np.uint64)
    ends = np.uint64(0), np.uint64(TOP)
    for room in (0, 1, 2):
        out = np.empty(room, np.int64), np.empty(room, np.int64)
        n = kernels.walk_entries(table, ONE, np.uint64(0), False, ONE, np.empty(0, np.uint8), *ends, *out)
        assert n == (2 if room == 2 else -1)
