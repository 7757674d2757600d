"""Gathering returns the values that were put in, of every Arrow type, from any number of batches at any offset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import FLAT, PLAIN, pieces
from rules import canonical, rank

from ddflow.errors import TooLarge
from ddflow.identity import Secret, value_hashes
from ddflow.kernels.gather import SLOT
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.rows import Rows, dense_ranks, gather

SECRET = Secret(1, 2)


def references(*places: tuple[int, int]) -> Any:
    return np.array([slot << SLOT | row for slot, row in places], np.int64)


def values(array: Any) -> list[Any]:
    return [canonical(value) for value in array.to_pylist()]


@pytest.mark.parametrize("kind", PLAIN)
def test_values_of_every_type_come_back_equal_from_slices_and_chunks(kind: str) -> None:
    array = PLAIN[kind]
    n, schema = len(array), pa.schema({"n": pa.int64(), "v": array.type})
    whole = Rows(pa.table({"n": range(n), "v": array}, schema))
    sliced = Rows(pa.concat_tables([whole.table, whole.table]).combine_chunks().slice(1, n))
    chunked = Rows(pa.table({"n": range(n), "v": pieces(array)}, schema))
    places = [(i % 3 + 1, i * 5 % n) for i in range(3 * n)]
    found = gather([None, whole, sliced, chunked], references(*places), schema)
    expected, shifted = values(array), [*values(array)[1:], values(array)[0]]
    assert values(found["v"]) == [(shifted if slot == 2 else expected)[row] for slot, row in places]
    assert found["n"].to_pylist() == [(row + (slot == 2)) % n for slot, row in places]
    found.validate(full=True)


@pytest.mark.parametrize("kind", PLAIN)
def test_no_reference_gives_no_rows_and_columns_without_null_get_no_bitmap(kind: str) -> None:
    array = PLAIN[kind]
    schema = pa.schema({"v": array.type})
    assert gather([None], references(), schema).schema == schema
    assert gather([None, Rows(pa.table({"v": array.slice(0, 0)}, schema))], references(), schema).num_rows == 0
    found = gather([Rows(pa.table({"v": array}, schema))], references((0, 0), (0, 0)), schema)
    assert found["v"].null_count == (0 if kind != "null" else 2)


@given(st.lists(st.lists(st.one_of(st.none(), st.text(max_size=3)), min_size=1, max_size=5), min_size=1, max_size=4),
       st.data())  # fmt: skip
def test_any_references_in_any_order_are_followed_and_their_flags_ignored(
    batches: list[list[str | None]], data: st.DataObject
) -> None:
    all_places = [(slot, row) for slot, batch in enumerate(batches) for row in range(len(batch))]
    places = data.draw(st.lists(st.sampled_from(all_places), max_size=12))
    flags = np.array([data.draw(st.sampled_from([0, OCCUPIED, OCCUPIED | LIVE])) for _ in places], np.int64)
    schema = pa.schema({"b": pa.bool_(), "s": pa.string(), "l": pa.list_(pa.string())})
    tables = [pa.table({"b": [x is None or x == "" for x in batch], "s": batch, "l": [[x] for x in batch]}, schema)
              for batch in batches]  # fmt: skip
    found = gather([Rows(table) for table in tables], references(*places) | flags, schema)
    expected = [batches[slot][row] for slot, row in places]
    assert found.to_pylist() == [{"b": x is None or x == "", "s": x, "l": [x]} for x in expected]


def test_only_the_columns_asked_for_are_gathered_in_the_order_asked_for() -> None:
    rows = Rows(pa.table({"a": [1, 2], "b": ["x", "y"], "c": [True, None]}))
    found = gather([rows], references((0, 1)), pa.schema({"c": pa.bool_(), "a": pa.int64()}))
    assert found.to_pylist() == [{"c": None, "a": 2}]


def test_what_was_gathered_owns_its_memory() -> None:
    source = np.array([1, 2, 3])
    rows = Rows(pa.table({"a": pa.array(source)}))
    found = gather([rows], references((0, 2), (0, 0)), rows.table.schema)
    source[:] = 9
    assert found["a"].to_pylist() == [3, 1]


def test_a_text_column_that_would_pass_two_gibibytes_is_refused_before_any_byte_is_copied() -> None:
    rows = Rows(pa.table({"s": ["x" * (1 << 20)]}))
    with pytest.raises(TooLarge, match=r"'s'.*2,147,483,648 bytes.*large_string"):
        gather([rows], references(*[(0, 0)] * 2048), rows.table.schema)
    assert gather([rows], references((0, 0)), rows.table.schema)["s"][0].as_py() == "x" * (1 << 20)


@pytest.mark.parametrize("kind", FLAT)
def test_dense_ranks_order_every_flat_type_with_null_first_and_nan_last(kind: str) -> None:
    table = pa.table({"v": FLAT[kind]})
    keys = [rank(value) for value in values(FLAT[kind])]
    distinct = sorted(set(keys))
    found = dense_ranks(table, value_hashes(table, SECRET))
    assert found.tolist() == [distinct.index(key) for key in keys]


cells = st.one_of(st.none(), st.sampled_from([float("nan"), 0.0, -0.0, 1.0, float("-inf")]))


@given(st.lists(st.tuples(cells, st.one_of(st.none(), st.text("ab", max_size=2))), max_size=12))
def test_dense_ranks_compare_columns_left_to_right(rows: list[tuple[float | None, str | None]]) -> None:
    table = pa.table(
        {"f": pa.array([f for f, _ in rows], pa.float64()), "s": pa.array([s for _, s in rows], pa.string())}
    )
    keys = [(rank(canonical(f)), rank(s)) for f, s in rows]
    distinct = sorted(set(keys))
    assert dense_ranks(table, value_hashes(table, SECRET)).tolist() == [distinct.index(key) for key in keys]


def test_rows_without_columns_are_all_equal() -> None:
    table = pa.table({"a": [1, 2]}).select([])
    assert dense_ranks(table, np.zeros(table.num_rows, np.uint64)).tolist() == [0] * table.num_rows
