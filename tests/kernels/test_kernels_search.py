"""Test that a search in a batch finds a key's last row, as a scan would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.kernels.search import DENSE, search_batch

pytestmark = pytest.mark.kernels
TOP = 2**64 - 1
Key = tuple[int, int]
# Uniform ones, and crowds at either end and in the middle.
highs = st.one_of(
    st.integers(0, TOP), st.integers(0, 5), st.integers(0, 9).map(lambda i: (1 << 63) + i), st.integers(TOP - 5, TOP)
)
lows = st.one_of(st.integers(0, 2), st.integers(0, TOP))


def address(array: Any) -> np.uint64:
    return np.uint64(array.ctypes.data)


def columns(keys: list[Key], wide: bool) -> tuple[Any, Any]:
    high = np.array([high for high, _ in keys], np.uint64)
    return high, np.array([low for _, low in keys] if wide else [], np.uint64)


def searched(events: list[Key], starts: list[int], wanted: list[int], part: list[Key], wide: bool, begin: int) -> Any:
    """(how many, rows) that are found."""
    high, low = columns(part, wide)
    found = np.full(len(wanted), -7, np.int64)
    hits = search_batch(
        *columns(events, wide),
        np.array(starts, np.int32),
        np.array(wanted, np.int64),
        address(high),
        address(low) if wide else np.uint64(0),
        np.int64(len(part)),
        np.int64(begin),
        found,
    )
    return hits, found.tolist()


def scanned(events: list[Key], starts: list[int], wanted: list[int], part: list[Key], begin: int) -> Any:
    """What should be."""
    last = {key: row for row, key in enumerate(part) if row >= begin}
    found = [last.get(events[starts[group]], -1) for group in wanted]
    return sum(row >= 0 for row in found), found


@st.composite
def parts(draw: st.DrawFn, wide: bool) -> list[Key]:
    """A sorted part in which some identities have many versions."""
    keys = st.tuples(highs, lows if wide else st.just(0))
    return sorted(
        key for key, n in draw(st.dictionaries(keys, st.integers(1, 40), max_size=30)).items() for _ in range(n)
    )


@given(st.data(), st.booleans())
def test_the_last_row_of_each_wanted_key_is_found(data: st.DataObject, wide: bool) -> None:
    part = data.draw(parts(wide))
    keys = st.tuples(highs, lows if wide else st.just(0))
    some = st.lists(st.one_of(keys, st.sampled_from(part)) if part else keys, max_size=30)
    events = sorted(data.draw(some))
    starts = [i for i in range(len(events)) if i == 0 or events[i] != events[i - 1]]
    wanted = [group for group in range(len(starts)) if data.draw(st.booleans())]
    begin = data.draw(st.integers(0, len(part)))
    arguments = events, starts, wanted, part
    assert searched(*arguments, wide, begin) == scanned(*arguments, begin)
    assert searched(*arguments, wide, 0) == scanned(*arguments, 0)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("rows", [DENSE // 4, DENSE * 4])
@pytest.mark.parametrize(
    "shape", ["uniform", "a narrow slice", "nearly all one key", "crowded at the beginning", "two far apart"]
)
def test_however_the_identities_lie_and_however_many_rows_there_are_for_each_key(
    shape: str, rows: int, wide: bool
) -> None:
    random, n = np.random.default_rng(7), 60 * rows
    high = {
        "uniform": lambda: random.integers(0, TOP, n, np.uint64, endpoint=True),
        "a narrow slice": lambda: random.integers(5 << 50, 6 << 50, n, np.uint64),
        "nearly all one key": lambda: np.where(random.random(n) < 0.9, 1 << 62, random.integers(0, 1 << 63, n)),
        "crowded at the beginning": lambda: 2.0 ** (62 * random.random(n)),
        "two far apart": lambda: random.integers(0, 2, n) * (2**63 - 1),
    }[shape]()
    part = sorted(zip(high.astype(np.uint64).tolist(), (random.integers(0, 3, n) * wide).tolist(), strict=True))
    absent = random.integers(0, TOP, 30, np.uint64, endpoint=True).tolist()
    near = [max(0, min(TOP, part[row][0] + 1)) for row in random.integers(0, n, 10)]
    events = sorted({part[row] for row in random.integers(0, n, 30)} | {(high, 0) for high in [0, TOP, *absent, *near]})
    every = list(range(len(events)))
    for begin in (0, n // 3, n - 1, n):
        assert searched(events, every, every, part, wide, begin) == scanned(events, every, every, part, begin)


@pytest.mark.parametrize("versions", [1, 40])
def test_of_identities_that_share_their_first_word_the_second_decides(versions: int) -> None:
    part = [(9, low) for low in (3, 5, 7) for _ in range(versions)]
    events, every = [(9, low) for low in range(10)], list(range(10))
    for begin in range(len(part) + 1):
        assert searched(events, every, every, part, True, begin) == scanned(events, every, every, part, begin)
        for one in every:
            assert searched(events, every, [one], part, True, begin) == scanned(events, every, [one], part, begin)


def test_a_mapped_part_that_may_not_be_written_is_searched_by_the_same_compiled_form(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    part = np.sort(random.integers(0, TOP, 20_000, np.uint64))
    part.tofile(tmp_path / "part")
    mapped = np.memmap(tmp_path / "part", np.uint64, "r")
    keys, none, every = np.sort(random.choice(part, 200)), np.empty(0, np.uint64), np.arange(200)
    starts = every.astype(np.int32)
    rows = [np.empty(200, np.int64), np.empty(200, np.int64)]
    for source, found in zip((part, mapped), rows, strict=True):
        search_batch(keys, none, starts, every, address(source), np.uint64(0), np.int64(20_000), np.int64(0), found)
    assert part[rows[0]].tolist() == keys.tolist()
    assert rows[0].tolist() == rows[1].tolist()
    assert len(getattr(search_batch, "signatures", [search_batch])) == 1


COUNTING = """
import numpy as np
from ddflow.kernels import search as module
load, loads, n, keys, search = module.load_u64, 0, 1 << 17, 40, module.search_batch
none, low, nothing, random = np.empty(0, np.uint64), np.empty(0, np.uint64), np.uint64(0), np.random.default_rng(9)

def counted(at):
    global loads
    loads += 1
    assert any(column.ctypes.data <= at <= column.ctypes.data + column.nbytes - 8 for column in (part, low))
    return load(at)

module.load_u64 = counted
uniform = random.integers(0, 2**64 - 1, n, np.uint64)
for name, part in {
    "uniform": np.sort(uniform),
    "one key": np.full(n, 1 << 62, np.uint64),
    "two keys": np.arange(n).astype(np.uint64) // np.uint64(n // 2) << np.uint64(62),
    "crowded": (2.0 ** (np.arange(n) * 62 / n)).astype(np.uint64),
    "nearly all small": np.append(np.arange(n - 1), 2**63).astype(np.uint64),
    "not sorted": uniform,
    "not sorted, and the ends are close": np.concatenate([[5], uniform, [6]]).astype(np.uint64),
}.items():
    wanted = np.unique(part[:: n // keys])
    every, found, loads = np.arange(wanted.size), np.empty(wanted.size, np.int64), 0
    at = np.uint64(part.ctypes.data)
    search(wanted, none, every.astype(np.int32), every, at, nothing, np.int64(part.size), np.int64(0), found)
    if not name.startswith("not sorted"):
        assert (found == np.searchsorted(part, wanted, "right") - 1).all(), name
        print(loads / wanted.size)

for n in 9, 900:  # first words all equal, and wanted keys beyond the last row
    part, low = np.full(n, 7, np.uint64), (np.arange(n) // 3 + 4).astype(np.uint64)
    wanted, second, every = np.full(9, 7, np.uint64), (np.arange(9) + n // 3).astype(np.uint64), np.arange(9)
    at, low_at, found = np.uint64(part.ctypes.data), np.uint64(low.ctypes.data), np.empty(9, np.int64)
    for begin in range(0, n, 4):
        search(wanted, second, every.astype(np.int32), every, at, low_at, np.int64(n), np.int64(begin), found)
        assert found[4:].tolist() == [-1] * 5
"""


def test_a_key_takes_few_looks_into_a_uniform_part_a_logarithm_into_any_and_none_outside() -> None:
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COUNTING], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    looks = [float(line) for line in done.stdout.split()]
    assert len(looks) == 5
    assert looks[0] < 12  # a binary search takes 17; each key is 3,000 rows from the last
    assert max(looks) < 2 * 17
