"""Test that `walk_latest_cells`, for the simple case, writes the same as the general `walk_cells`."""

from __future__ import annotations

from typing import Any

import numpy as np
from chance import effort
from hypothesis import given, strategies as st

from ddflow.kernels.fold import EventsByKey
from ddflow.kernels.resolve import LAST
from ddflow.kernels.walk import NONE, ROW, TOMBSTONE, WalkOutcome, WalkRules
from ddflow.kernels.walk_cells import CellValues, walk_cells, walk_latest_cells

NULL = -(2**63)


@st.composite
def walks(draw: st.DrawFn, words: int) -> dict[str, Any]:
    """A few keys with a few events each, at a few times."""
    sizes = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=4))
    key_times = np.concatenate([[0], np.cumsum([n for key in sizes for n in key])]).astype(np.int32)
    keys = np.concatenate([[0], np.cumsum([len(key) for key in sizes])]).astype(np.int32)
    n, m, g = int(key_times[-1]), int(keys[-1]), len(sizes)
    permutation = np.array(draw(st.permutations(range(n))), np.int32)

    def some(*shape: int, of: list[int]) -> Any:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(st.sampled_from(of), min_size=size, max_size=size))).reshape(shape)

    return {
        "steps": EventsByKey(permutation, key_times, keys),
        "order": some(n, words, of=[1, 2, 3, NULL]).astype(np.int64),
        "gone": some(n, of=[0, 0, 1]).astype(np.uint8),
        "status": some(g, of=[NONE, TOMBSTONE, ROW]).astype(np.uint8),
        "some": some,
        "n": n,
        "m": m,
        "g": g,
    }


def room(groups: int, n: int, m: int, words: int) -> WalkOutcome:
    flags = np.full((groups, n), 9, np.uint8), np.full(n, 9, np.uint8)
    return WalkOutcome(*flags, np.full((m, words), 7), np.full(m, 9, np.uint8), np.full(m, 7))


def same(one: WalkOutcome, other: WalkOutcome) -> None:
    for name, left, right in zip(WalkOutcome._fields, one, other, strict=True):
        assert left.tolist() == right.tolist(), name


@effort(200)
@given(data=st.data())
def test_the_plain_walk_of_cells_is_the_walk_of_cells(data: st.DataObject) -> None:
    drawn, cells, wide = data.draw(walks(1)), data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2]))
    drawn["order"][drawn["order"] == NULL] = 0
    held = drawn["some"](drawn["g"], 2 + cells, of=[1, 2, 3, NULL]).astype(np.int64)
    # A row's order is above that of its latest delete, or it would be none.
    row = drawn["status"] == ROW
    held[row, 0] = np.maximum(held[row, 0], 1)
    held[row, 1] = np.minimum(held[row, 0] - 1, held[row, 1])
    gives = drawn["some"](cells, drawn["n"], of=[0, 1]).astype(np.uint8)
    over = data.draw(st.booleans())
    order = drawn["order"]
    if wide == 2:  # a nullable column: its first word says that it is there; never set, both are the least
        order = np.stack([np.ones(drawn["n"], np.int64), order[:, 0]], axis=1)
        held = np.stack([np.where(held == NULL, NULL, 1), held], axis=2).reshape(drawn["g"], -1)
    rule = WalkRules(LAST, True, True, False, over, False)
    none, short = np.empty((cells, 0), np.int64), np.empty((cells, 0), np.uint8)
    words = (2 + cells) * wide
    one, other = (room(1 + cells, drawn["n"], drawn["m"], words) for _ in range(2))
    given_ = drawn["steps"], order, drawn["gone"], drawn["status"], held, gives
    scratch, fields = np.empty((4, words + cells), np.int64), np.array([[0, 0, wide, wide - 1]], np.int64)
    values = CellValues(none, short, none, short)
    refused = walk_cells(*given_, np.zeros(cells, np.int64), fields, rule, wide, values, scratch, one)
    walk_latest_cells(*given_, over, other)
    assert refused == -1
    same(one, other)
