"""Test that arrays from an arena are as good as fresh ones until the arena restarts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from ddflow.columns.layout import SMALL, Arena

kinds = st.sampled_from([np.uint8, np.int32, np.int64, np.uint64])
shapes = st.one_of(st.integers(0, 20), st.integers(250, 600), st.tuples(st.integers(0, 300), st.integers(0, 3)))


@given(st.lists(st.lists(st.tuples(shapes, kinds), max_size=8), min_size=1, max_size=5))
def test_arrays_of_one_step_do_not_overlap_and_are_contiguous_and_of_the_shape_that_was_asked_for(
    steps: list[list[tuple[int | tuple[int, int], type]]],
) -> None:
    arena = Arena()
    for step in steps:
        arena.reset()
        arrays = [arena.empty(shape, kind) for shape, kind in step]
        for i, ((shape, kind), array) in enumerate(zip(step, arrays, strict=True)):
            assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
            assert array.dtype == kind and array.flags.c_contiguous and array.flags.aligned and array.flags.writeable
            array.view(np.uint8)[...] = i
        assert all((array.view(np.uint8) == i).all() for i, array in enumerate(arrays))


def test_a_step_like_the_one_before_takes_no_fresh_memory() -> None:
    arena = Arena()
    for _ in range(2):
        arena.reset()
        for n in (1000, 700, 300):
            arena.empty(n, np.int64)
    block = arena.block
    arena.reset()
    arrays = [arena.empty(n, np.int64) for n in (1000, 700, 300)]
    assert arena.block is block
    assert all(np.shares_memory(array, block) for array in arrays)
    assert [array.ctypes.data % 64 for array in arrays] == [0, 0, 0]


def test_large_arrays_begin_in_different_lines_of_a_page() -> None:
    arena = Arena()
    for _ in range(2):
        arena.reset()
        lines = [arena.empty(4096, np.int64).ctypes.data % 4096 // 64 for _ in range(10)]
    assert len(set(lines)) == 10


def test_what_was_carved_before_it_grew_stays_good_until_the_step_is_over() -> None:
    arena = Arena()
    arena.empty(100, np.int64)
    arena.reset()
    first = arena.empty(50, np.int64)
    first[:] = 7
    arena.empty(10_000, np.int64)[:] = 8
    assert (first == 7).all()
    before = arena.nbytes
    arena.reset()
    assert arena.nbytes > before


def test_the_least_array_that_is_carved_fits_the_next_time() -> None:
    arena = Arena()
    arena.empty(SMALL, np.uint8)
    arena.reset()
    assert np.shares_memory(arena.empty(SMALL, np.uint8), arena.block)
