"""Test that order words compare like values, for every ordered type, both directions, and nulls first or last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from chance import effort, mid_test
from hypothesis import given, strategies as st
from kinds import ENCODED, FLAT, NESTED, PLAIN, pieces
from messages import raises
from rules import canonical, rank

from ddflow.columns.order_words import PREFIX, OrderColumn, compute_order_words, count_order_words, has_exact_words
from ddflow.columns.schema import is_flat_type
from ddflow.errors import SpecError


class Kind(NamedTuple):
    """How values of a type are drawn, and how an array is made of them."""

    values: st.SearchStrategy[Any]
    made: Callable[[list[Any]], pa.Array]
    type: pa.DataType


def plainly(values: st.SearchStrategy[Any], kind: pa.DataType) -> Kind:
    return Kind(values, lambda given: pa.array(given, kind), kind)


def whole(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(least, most) | st.sampled_from([least, least + 1, 0, 1, most - 1, most])


def viewed(kind: pa.DataType) -> Kind:
    """Times and dates as the whole numbers that they lie as: Python has not all of them."""
    number = pa.int64() if kind.bit_width == 64 else pa.int32()
    return Kind(whole(kind.bit_width), lambda given: pa.array(given, number).view(kind), kind)


def floats(bits: int) -> Kind:
    def made(given: list[Any]) -> pa.Array:
        numbers = np.array([0 if x is None else x for x in given], f"f{bits // 8}")
        return pa.array(numbers, mask=np.array([x is None for x in given], bool))

    least = {16: 2.0**-24, 32: 2.0**-149, 64: 5e-324}[bits]
    values = st.floats(width=bits) | st.sampled_from([0.0, -0.0, float("nan"), -float("inf"), float("inf"), -least])  # type: ignore[call-overload]
    return Kind(values, made, pa.from_numpy_dtype(np.dtype(f"f{bits // 8}")))


def decimals(kind: pa.DataType) -> Kind:
    most = 10**kind.precision - 1
    numbers = st.integers(-most, most) | st.integers(-2, 2) | st.sampled_from([-most, most, 1 - most])

    def spelled(number: int) -> Decimal:
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -kind.scale))

    return plainly(numbers.map(spelled), kind)


def encoded(kind: Kind, encode: Callable[[pa.Array], pa.Array]) -> Kind:
    return Kind(kind.values, lambda given: encode(kind.made(given)), encode(kind.made([])).type)


STEMS = st.sampled_from(["", "aaaaaaa", "aaaaaaaa", "a" * 14, "a" * 15, "ß" * 7, "a" * 16])
TEXTS = st.builds(str.__add__, STEMS, st.text("\0aß\U0010ffff", max_size=4)) | st.text(max_size=20)
FILLS, LENGTHS = st.sampled_from([b"\0", b"\xff"]), st.integers(0, 17)
BYTES = st.builds(lambda fill, n, end: fill * n + end, FILLS, LENGTHS, st.binary())


def fixed(width: int) -> Kind:
    ends = st.sampled_from([b"\0" * width, b"\xff" * width, (b"\0" * width + b"\1")[-width:] if width else b""])
    return plainly(st.binary(min_size=width, max_size=width) | ends, pa.binary(width))


KINDS: dict[str, Kind] = {
    "bool": plainly(st.booleans(), pa.bool_()),
    **{f"int{bits}": plainly(whole(bits), getattr(pa, f"int{bits}")()) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": plainly(whole(bits, False), getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": floats(bits) for bits in (16, 32, 64)},
    **{
        str(kind): viewed(kind)
        for kind in (
            *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns")),
            *(pa.timestamp("us"), pa.timestamp("s", "UTC"), pa.duration("ns")),
        )
    },
    **{
        f"{made.__name__}({precision})": decimals(made(precision, scale))
        for made, most in ((pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 76))
        for precision, scale in ((1, 0), (9, 2), (18, 5), (19, 0), (38, 9), (39, 2), (57, 1), (58, 0), (76, 76))
        if precision <= most
    },
    "string": plainly(TEXTS, pa.string()),
    "large_string": plainly(TEXTS, pa.large_string()),
    "binary": plainly(BYTES, pa.binary()),
    "large_binary": plainly(BYTES, pa.large_binary()),
    **{f"binary({width})": fixed(width) for width in (0, 1, 3, 7, 8, 9, 16, 20)},
}
KINDS |= {
    "string_view": encoded(KINDS["string"], lambda array: array.cast(pa.string_view())),
    "binary_view": encoded(KINDS["binary"], lambda array: array.cast(pa.binary_view())),
    "dictionary of texts": encoded(KINDS["string"], lambda array: array.dictionary_encode()),
    "dictionary of numbers": encoded(KINDS["int64"], lambda array: array.dictionary_encode()),
}
NAMES = sorted(KINDS)
WAYS = st.tuples(st.booleans(), st.booleans())
ALL_WAYS = [(descending, first) for descending in (False, True) for first in (False, True)]


def places(values: Sequence[Any], descending: bool, nulls_first: bool, modulo: bool) -> list[tuple[int, int]]:
    """The place of each value in the order that is asked for; ``modulo``: of text and bytes, as far as words tell."""
    plain = [canonical(value.encode() if isinstance(value, str) else value) for value in values]
    if modulo:
        plain = [(x[:15], len(x) > 15) if isinstance(x, bytes) else x for x in plain]
    known = {key: i for i, key in enumerate(sorted({rank(x) for x in plain}))}
    null = 0 if nulls_first else 2
    return [(null, 0) if x is None else (1, -known[rank(x)] if descending else known[rank(x)]) for x in plain]


def dense(rows: Sequence[Any]) -> list[int]:
    """What rows compare as."""
    known = {key: i for i, key in enumerate(sorted(set(rows)))}
    return [known[row] for row in rows]


def words(columns: dict[str, Any], by: list[OrderColumn]) -> list[tuple[int, ...]]:
    """The words of a table as tuples, whose order is theirs."""
    found = compute_order_words(pa.table(columns), by)
    assert found.dtype == np.uint64 and found.flags.c_contiguous
    kinds = [columns[column.name].type for column in by]
    assert found.shape[1] == sum(count_order_words(kind, "x") for kind in kinds)
    return list(map(tuple, found.tolist()))


@mid_test
@pytest.mark.drawn(30)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@effort(40)
def test_words_of_every_type_compare_as_its_values(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    values = data.draw(st.lists(st.none() | kind.values, max_size=12))
    array = kind.made(values)
    for descending, first in ALL_WAYS:
        found = words({"x": array}, [OrderColumn("x", descending, first)])
        assert dense(found) == dense(places(values, descending, first, not has_exact_words(kind.type)))


@given(data=st.data(), chunked=st.booleans())
@effort(300)
def test_words_of_several_columns_compare_from_left_to_right(data: st.DataObject, chunked: bool) -> None:
    n, columns, by, keys = data.draw(st.integers(0, 10)), {}, [], []
    for i, name in enumerate(data.draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=3))):
        kind, ways = KINDS[name], data.draw(WAYS)
        few = data.draw(st.lists(st.none() | kind.values, min_size=1, max_size=3))
        values = data.draw(st.lists(st.sampled_from(few), min_size=n, max_size=n))
        columns[str(i)] = pieces(kind.made(values)) if chunked and n else kind.made(values)
        by.append(OrderColumn(str(i), *ways))
        keys.append(places(values, *ways, not has_exact_words(kind.type)))
    assert dense(words(columns, by)) == dense(list(zip(*keys, strict=True)))


@pytest.mark.parametrize("name", ["string", "large_string", "string_view", "binary", "binary_view"])
@given(data=st.data())
@effort(150)
def test_equal_words_are_one_value_or_two_with_the_same_fifteen_bytes_and_more(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    values = data.draw(st.lists(kind.values, min_size=2, max_size=12))
    spelled = [value.encode() if isinstance(value, str) else value for value in values]
    found = words({"x": kind.made(values)}, [OrderColumn("x", False, True)])
    assert not has_exact_words(kind.type) and count_order_words(kind.type, "x") == PREFIX
    order = sorted(range(len(values)), key=lambda i: (found[i], spelled[i]))
    assert [spelled[i] for i in order] == sorted(spelled)
    for a, x in zip(found, spelled, strict=True):
        for b, y in zip(found, spelled, strict=True):
            assert (a == b) == (x == y or (x[:15] == y[:15] and min(len(x), len(y)) > 15))


ORDERED = {name: array for name, array in PLAIN.items() if is_flat_type(array.type)} | {
    name: array for name, (array, normal) in ENCODED.items() if is_flat_type(normal)
}


@pytest.mark.parametrize("name", ORDERED)
def test_where_a_value_stands_does_not_matter_nor_whether_its_field_is_nullable(name: str) -> None:
    array, by = ORDERED[name], [OrderColumn("x", True, False)]
    n, expected = len(array), words({"x": array}, by)
    assert dense(expected) == dense(places(array.to_pylist(), True, False, not has_exact_words(array.type)))
    assert words({"x": pieces(array)}, by) == expected
    assert words({"x": pa.chunked_array([], array.type)}, by) == words({"x": array.slice(n)}, by) == []
    for begin in range(n):
        for end in range(begin, n + 1):
            batch = pa.record_batch({"x": array}).slice(begin, end - begin)
            assert compute_order_words(batch, by).tolist() == list(map(list, expected[begin:end]))
    present = array.filter(array.is_valid()) if name in FLAT else array
    for nullable in (True, False) if not present.null_count else (True,):
        rows = pa.table({"x": present}, pa.schema([pa.field("x", present.type, nullable)]))
        assert compute_order_words(rows, by).shape == (len(present), count_order_words(array.type, "x"))


def test_texts_at_the_end_of_their_memory_are_read_to_its_end() -> None:
    """Many short ones, so that some begin fewer than sixteen bytes before the end; and one of each length alone."""
    spelled = [b"xyz"[:i] * j for j in range(12) for i in range(4)]
    for values in (spelled, spelled[::-1], *([value] for value in spelled)):
        found = words({"x": pa.array(values, pa.binary())}, [OrderColumn("x", False, True)])
        expected = [(value[:15].ljust(15, b"\0") + bytes([min(len(value), 16) + 1])) for value in values]
        assert found == [(int.from_bytes(x[:8], "big"), int.from_bytes(x[8:], "big")) for x in expected]


def test_rows_without_columns_to_order_by_have_no_words() -> None:
    assert compute_order_words(pa.table({"x": [1, 2]}), []).shape == (2, 0)
    assert compute_order_words(
        pa.table({"x": pa.array([], pa.decimal256(40))}), [OrderColumn("x", True, True)]
    ).shape == (0, 3)


def test_a_null_takes_a_word_of_its_own_only_where_values_fill_theirs() -> None:
    one = "bool int8 uint16 int32 float16 float32 float64 date32[day] time32[ms] decimal64(18) decimal128(18) binary(7)"
    two = "int64 uint64 date64[ms] timestamp[us] duration[ns] decimal128(19) decimal256(38) binary(8) string binary"
    three, four = "binary(16) binary(20) decimal256(39) decimal256(57)", "decimal256(58) decimal256(76)"
    for count, names in enumerate((one, two, three, four), 1):
        assert {count_order_words(KINDS[name].type, name) for name in names.split()} == {count}


@pytest.mark.parametrize("name", [name for name in NESTED if not is_flat_type(NESTED[name].type)])
def test_types_without_an_order_are_refused_by_name(name: str) -> None:
    rows = pa.table({"it": NESTED[name]})
    with raises(SpecError):
        compute_order_words(rows, [OrderColumn("it", False, True)])
    with pytest.raises(SpecError):
        count_order_words(rows.schema.field("it").type, "it")
