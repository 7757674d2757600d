"""Test that gathering returns the stored values, for every Arrow type, any number of batches and any offset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from kinds import FLAT, PLAIN, pieces
from messages import raises
from rules import canonical, rank

from ddflow.columns.hashing import Secret, compute_value_hashes
from ddflow.columns.layout import make_writable
from ddflow.columns.order_words import dense_ranks
from ddflow.columns.row_views import RowSlice, RowView
from ddflow.columns.rows import RowPool, Rows, gather_table
from ddflow.columns.threads import Threads
from ddflow.errors import TooLarge
from ddflow.kernels.gather import SLOT
from ddflow.kernels.resolve import LIVE, OCCUPIED

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
    found = gather_table(RowPool(schema, [None, whole, sliced, chunked]), references(*places), schema)
    expected, shifted = values(array), [*values(array)[1:], values(array)[0]]
    assert values(found["v"]) == [(shifted if slot == 2 else expected)[row] for slot, row in places]
    assert found["n"].to_pylist() == [(row + (slot == 2)) % n for slot, row in places]
    found.validate(full=True)


@pytest.mark.parametrize("kind", PLAIN)
def test_no_reference_gives_no_rows_and_columns_without_null_get_no_bitmap(kind: str) -> None:
    array = PLAIN[kind]
    schema = pa.schema({"v": array.type})
    assert gather_table(RowPool(schema, [None]), references(), schema).schema == schema
    nothing = Rows(pa.table({"v": array.slice(0, 0)}, schema))
    assert gather_table(RowPool(schema, [None, nothing]), references(), schema).num_rows == 0
    found = gather_table(RowPool(schema, [Rows(pa.table({"v": array}, schema))]), references((0, 0), (0, 0)), schema)
    assert found["v"].null_count == (0 if kind != "null" else 2)


@given(
    st.lists(st.lists(st.one_of(st.none(), st.text(max_size=3)), min_size=1, max_size=5), min_size=1, max_size=4),
    st.data(),
)
def test_any_references_in_any_order_are_followed_and_their_flags_ignored(
    batches: list[list[str | None]], data: st.DataObject
) -> None:
    all_places = [(slot, row) for slot, batch in enumerate(batches) for row in range(len(batch))]
    places = data.draw(st.lists(st.sampled_from(all_places), max_size=12))
    flags = np.array([data.draw(st.sampled_from([0, OCCUPIED, OCCUPIED | LIVE])) for _ in places], np.int64)
    schema = pa.schema({"b": pa.bool_(), "s": pa.string(), "l": pa.list_(pa.string())})
    tables = [
        pa.table({"b": [x is None or x == "" for x in batch], "s": batch, "l": [[x] for x in batch]}, schema)
        for batch in batches
    ]
    found = gather_table(RowPool(schema, [Rows(table) for table in tables]), references(*places) | flags, schema)
    expected = [batches[slot][row] for slot, row in places]
    assert found.to_pylist() == [{"b": x is None or x == "", "s": x, "l": [x]} for x in expected]


def test_only_the_columns_asked_for_are_gathered_in_the_order_asked_for() -> None:
    rows = Rows(pa.table({"a": [1, 2], "b": ["x", "y"], "c": [True, None]}))
    found = gather_table(
        RowPool(rows.table.schema, [rows]), references((0, 1)), pa.schema({"c": pa.bool_(), "a": pa.int64()})
    )
    assert found.to_pylist() == [{"c": None, "a": 2}]


def test_what_was_gathered_owns_its_memory() -> None:
    input = np.array([1, 2, 3])
    rows = Rows(pa.table({"a": pa.array(input)}))
    found = gather_table(RowPool(rows.table.schema, [rows]), references((0, 2), (0, 0)), rows.table.schema)
    input[:] = 9
    assert found["a"].to_pylist() == [3, 1]


def test_a_text_column_that_would_pass_two_gibibytes_is_refused_before_any_byte_is_copied() -> None:
    rows = Rows(pa.table({"s": ["x" * (1 << 20)]}))
    pool = RowPool(rows.table.schema, [rows])
    with raises(TooLarge):
        gather_table(pool, references(*[(0, 0)] * 2048), rows.table.schema)
    assert gather_table(pool, references((0, 0)), rows.table.schema)["s"][0].as_py() == "x" * (1 << 20)


NUMBERS = pa.schema({"n": pa.int64(), "s": pa.string(), "l": pa.list_(pa.int64())})


def numbered(*numbers: int | None) -> Rows:
    return Rows(
        pa.table(
            {"n": numbers, "s": [None if n is None else f"s{n}" for n in numbers], "l": [[n] for n in numbers]}, NUMBERS
        )
    )


def test_any_number_of_batches_may_come_and_go_and_a_number_be_used_again() -> None:
    pool = RowPool(NUMBERS)
    for number in (3, 0, 40, 17):
        pool.set_batch(number, numbered(number, None))
    pool.set_batch(17, None)
    pool.set_batch(17, numbered(99))
    found = gather_table(pool, references((40, 0), (17, 0), (3, 1), (0, 0)), NUMBERS)
    assert found["n"].to_pylist() == [40, 99, None, 0]
    assert found["s"].to_pylist() == ["s40", "s99", None, "s0"]
    assert found["l"].to_pylist() == [[40], [99], [None], [0]]


def test_the_rows_of_a_step_stand_beside_the_batches_and_neither_sees_the_other_change() -> None:
    pool = RowPool(NUMBERS, [None, numbered(1), numbered(2)])
    beside = pool.with_events(numbered(7, 8))
    pool.set_batch(1, numbered(5))
    again = pool.with_events(numbered(9))
    places = references((0, 0), (1, 0), (2, 0))
    assert gather_table(beside, places, NUMBERS)["n"].to_pylist() == [7, 1, 2]
    assert gather_table(beside, places, NUMBERS)["l"].to_pylist() == [[7], [1], [2]]
    assert gather_table(again, places, NUMBERS)["s"].to_pylist() == ["s9", "s5", "s2"]


def test_columns_whose_nulls_nobody_looks_at_are_gathered_without_a_bitmap() -> None:
    table = pa.table({"n": [1, None, 3], "s": ["a", None, "c"]})
    schema, picked = table.schema, references((0, 0), (0, 2))
    filled = gather_table(RowPool(schema, [Rows(table, filled=["n", "s"])]), picked, schema)
    assert filled.to_pylist() == [{"n": 1, "s": "a"}, {"n": 3, "s": "c"}]
    assert [column.chunk(0).buffers()[0] for column in filled.columns] == [None, None]
    half = gather_table(RowPool(schema, [Rows(table, filled=["s"])]), references((0, 1)), schema)
    assert half["n"].to_pylist() == [None] and half["s"].null_count == 0


@given(st.data())
def test_a_view_is_the_table_of_its_references_however_it_is_taken_apart(data: st.DataObject) -> None:
    batches = [numbered(*range(10 * i, 10 * i + 4)) for i in range(3)]
    pool = RowPool(NUMBERS, batches)
    places = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=8))
    view = RowView(pool, references(*places), NUMBERS)
    table = gather_table(pool, references(*places), NUMBERS)
    for _ in range(data.draw(st.integers(0, 4))):
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(NUMBERS.names))
            assert view.column(name) is view.column(name)
        elif view.num_rows:
            taken = data.draw(st.lists(st.integers(0, view.num_rows - 1), max_size=8))
            view, table = view.take(pa.array(taken, pa.int64())), table.take(pa.array(taken, pa.int64()))
    assert (view.num_rows, view.column_names) == (table.num_rows, table.column_names)
    assert view.select(["l", "n"]).equals(table.select(["l", "n"]))
    assert view.columns == [column.combine_chunks() for column in table.columns]
    if view.num_rows:
        rest = view.slice(1, view.num_rows - 1)
        assert rest.select(NUMBERS.names).equals(table.slice(1))


def test_columns_that_are_the_same_nearby_are_gathered_from_there() -> None:
    asked = []

    def near(name: str) -> Any:
        asked.append(name)
        return pa.array([5, 6]) if name == "n" else None

    def view() -> RowView:
        return RowView(RowPool(NUMBERS, [numbered(7, 8)]), references((0, 1), (0, 0)), NUMBERS, near)

    whole = view()
    for _ in range(2):
        assert whole.column("n").to_pylist() == [5, 6]  # as it is nearby, not what the references name
        assert whole.column("s").to_pylist() == ["s8", "s7"]
    assert asked == ["n", "s"]
    # What was not read before is of the references; nearby is only the column as a whole.
    assert whole.take(pa.array([1])).select(["n", "s"]).to_pylist() == [{"n": 6, "s": "s7"}]
    assert view().take(pa.array([1])).select(["n", "s"]).to_pylist() == [{"n": 7, "s": "s7"}]


def test_threads_gather_what_one_would() -> None:
    n = 40_000
    input = np.random.default_rng(1).integers(0, 1000, n)
    schema = pa.schema({"i": pa.int32(), "s": pa.string(), "b": pa.bool_(), "t": pa.large_string()})
    texts = pa.array(input).cast(pa.string())
    table = pa.table(
        [pa.array(input, pa.int32()), texts, pa.array(input % 2 == 0), texts.cast(pa.large_string())], schema=schema
    )
    pool, places = RowPool(schema, [Rows(table)]), np.random.default_rng(2).integers(0, n, n)
    alone = gather_table(pool, places, schema)
    with Threads(2) as threads:
        threads.waking = 1
        pool.threads = threads
        assert gather_table(pool, places, schema).equals(alone)
    assert alone.equals(table.take(pa.array(places)))


def test_memory_that_may_not_be_written_is_given_to_kernels_as_any_other() -> None:
    locked = np.frombuffer(b"abcdefgh", np.uint64)
    plain = make_writable(locked)
    assert (plain.flags.writeable, plain.ctypes.data, plain.tolist()) == (True, locked.ctypes.data, locked.tolist())
    own = np.arange(3)
    assert make_writable(own) is own


@pytest.mark.parametrize("kind", FLAT)
def test_dense_ranks_order_every_flat_type_with_null_first_and_nan_last(kind: str) -> None:
    table = pa.table({"v": FLAT[kind]})
    keys = [rank(value) for value in values(FLAT[kind])]
    distinct = sorted(set(keys))
    found = dense_ranks(table, compute_value_hashes(table, SECRET))
    assert found.tolist() == [distinct.index(key) for key in keys]


cells = st.one_of(st.none(), st.sampled_from([float("nan"), 0.0, -0.0, 1.0, float("-inf")]))


@given(st.lists(st.tuples(cells, st.one_of(st.none(), st.text("ab", max_size=2))), max_size=12))
def test_dense_ranks_compare_columns_left_to_right(rows: list[tuple[float | None, str | None]]) -> None:
    table = pa.table(
        {"f": pa.array([f for f, _ in rows], pa.float64()), "s": pa.array([s for _, s in rows], pa.string())}
    )
    keys = [(rank(canonical(f)), rank(s)) for f, s in rows]
    distinct = sorted(set(keys))
    assert dense_ranks(table, compute_value_hashes(table, SECRET)).tolist() == [distinct.index(key) for key in keys]


def test_rows_without_columns_are_all_equal() -> None:
    table = pa.table({"a": [1, 2]}).select([])
    assert dense_ranks(table, np.zeros(table.num_rows, np.uint64)).tolist() == [0] * table.num_rows


@pytest.mark.parametrize("kind", PLAIN)
def test_rows_with_places_are_the_rows_in_the_order_of_places(kind: str) -> None:
    array = PLAIN[kind]
    n, schema = len(array), pa.schema({"n": pa.int64(), "v": array.type})
    table = pa.table({"n": range(n), "v": array}, schema)
    places = np.array([*range(n - 1, -1, -1), 0], np.int32)
    rows = Rows.from_columns([c.combine_chunks() for c in table.columns], RowPool(schema).shape, n + 1, (), places)
    expected = [values(array)[place] for place in places]
    assert values(rows.table.column("v")) == values(rows.columns[1]) == expected
    pool = RowPool(schema, [None, Rows(table), rows])
    asked = [(i % 2 + 1, i * 5 % n) for i in range(3 * n)]
    found = gather_table(pool.copy(), references(*asked), schema)
    assert values(found["v"]) == [(expected if slot == 2 else values(array))[row] for slot, row in asked]
    assert values(RowSlice(pool, references((2, n)), schema).column("v")) == expected[n:]
    pool.set_batch(2, Rows(table))  # the number of a batch is used again
    assert values(gather_table(pool, references((2, 1)), schema)["v"]) == values(array)[1:2]
