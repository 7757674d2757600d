"""Test that identities and hashes are equal exactly for equal values, for every Arrow type and encoding."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kinds import ENCODED, FLAT, PLAIN, pieces
from rules import canonical

from ddflow.columns import hashing
from ddflow.columns.hashing import (
    Secret,
    compute_identities,
    compute_value_hashes,
    has_two_word_identities,
    unpack_booleans,
    unpack_validity,
)
from ddflow.columns.schema import conform_to_schema, decode_array

SECRET = Secret(0x0123456789ABCDEF, 0xFEDCBA9876543210)


def ids(*columns: Any) -> list[tuple[int, int]]:
    high, low = compute_identities(pa.table(list(columns), [str(i) for i in range(len(columns))]), SECRET)
    return list(zip(high.tolist(), low.tolist() or [0] * len(high), strict=True))


def hashes(*columns: Any) -> list[int]:
    found: list[int] = compute_value_hashes(
        pa.table(list(columns), [str(i) for i in range(len(columns))]), SECRET
    ).tolist()
    return found


def assert_agrees(found: list[Any], expected: list[Any]) -> None:
    """Equal exactly where the expected values are."""
    for i in range(len(found)):
        for j in range(i):
            assert (found[i] == found[j]) == (expected[i] == expected[j]), (expected[i], expected[j])


@pytest.mark.parametrize("kind", PLAIN)
def test_equal_values_of_every_type_have_equal_identities_and_others_do_not(kind: str) -> None:
    array = PLAIN[kind]
    expected = [canonical(value) for value in array.to_pylist()]
    if "union" in kind:  # a value of one child does not equal the same value of another
        expected = list(zip(array.type_codes.to_pylist(), expected, strict=True))
    fill = pa.array([0] * len(array))
    for found in (ids(array), hashes(array), ids(array, fill), hashes(fill, array)):
        assert_agrees(found, expected)


@pytest.mark.parametrize("kind", PLAIN)
def test_where_a_value_stands_does_not_matter(kind: str) -> None:
    array = PLAIN[kind]
    longer = pa.concat_arrays([array.slice(1), array, array])
    for function in (ids, hashes):
        expected = function(array)
        assert function(pieces(array)) == expected
        assert function(longer.slice(len(array) - 1, len(array))) == expected
        assert function(array.slice(1)) == expected[1:]
        assert function(array.slice(len(array))) == []


@pytest.mark.parametrize("kind", ENCODED)
def test_an_encoding_of_a_value_is_that_value(kind: str) -> None:
    array, normal = ENCODED[kind]
    decoded = pa.array(array.to_pylist(), normal)
    for part in (array, array.slice(1), array.slice(1, len(array) - 2)):
        found = decode_array(part)
        found.validate(full=True)
        assert found.type == normal and found.to_pylist() == part.to_pylist()
    assert ids(decode_array(array)) == ids(decoded) and hashes(decode_array(array)) == hashes(decoded)


def test_there_is_one_nan_one_zero_and_null_is_neither() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001, 1 << 63, 0], np.uint64)
    column = pa.concat_arrays([pa.array(bits.view(np.float64)), pa.array([None], pa.float64())])
    for found in (ids(column), hashes(column), ids(column, column), ids(pa.array([[x] for x in column.to_pylist()]))):
        assert found[0] == found[1] == found[2]
        assert found[3] == found[4]
        assert len(set(found)) == 3


@pytest.mark.parametrize("width", [16, 32])
def test_narrow_floats_are_canonical_too(width: int) -> None:
    column = pa.array([np.float16(x) for x in (0.0, -0.0, float("nan"), -float("nan"), 1.5)], pa.float16())
    column = column.cast({16: pa.float16(), 32: pa.float32()}[width])
    found = ids(column)
    assert found[0] == found[1] and found[2] == found[3] and len(set(found)) == 3


def test_decimals_are_equal_by_value_once_a_batch_has_taken_the_declared_scale() -> None:
    declared = pa.schema({"0": pa.decimal128(20, 4)})
    expected = ids(pa.array([Decimal("1.5"), None, Decimal("-20")], pa.decimal128(20, 4)))
    for kind in (pa.decimal32(5, 1), pa.decimal64(9, 2), pa.decimal128(30, 6), pa.decimal256(50, 1)):
        batch = pa.table({"0": pa.array([Decimal("1.5"), None, Decimal("-20")], kind)})
        assert ids(conform_to_schema(batch, declared, "t")["0"]) == expected


def test_null_empty_and_zero_are_three_values_in_every_position() -> None:
    texts = ids(pa.array(["", None, "\0"]))
    assert len(set(texts)) == 3
    pairs = ids(pa.array(["", None, "", None, "a", ""]), pa.array([None, "", "", None, "", "a"]))
    assert len(set(pairs)) == 6
    lists = ids(pa.array([[], None, [None], [0], [[None]][0], [0, 0]]))
    assert len(set(lists)) == 5 and lists[2] == lists[4]


def test_one_integer_column_without_nulls_needs_one_word_and_cannot_collide() -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    keys = [0, 1, -1, 2**63 - 1, -(2**63), *range(5, 300)]
    high, low = compute_identities(pa.table({"k": keys}, schema), SECRET)
    assert low.size == 0 and len(set(high.tolist())) == len(keys)
    assert not has_two_word_identities(schema) and has_two_word_identities(schema.append(schema.field(0)))
    assert has_two_word_identities(pa.schema([("k", pa.int64())])) and has_two_word_identities(
        pa.schema([pa.field("k", pa.string(), nullable=False)])
    )


@pytest.mark.parametrize("kind", FLAT)
def test_which_layout_applies_is_decided_by_the_schema_not_by_the_batch(kind: str) -> None:
    array = FLAT[kind]
    whole, clean = ids(array), ids(array.drop_null())
    assert clean == [found for found, valid in zip(whole, array.is_valid().to_pylist(), strict=True) if valid]


@pytest.mark.parametrize("kind", FLAT)
def test_the_first_word_hangs_neither_on_a_columns_name_nor_on_whether_it_may_be_null(kind: str) -> None:
    array = FLAT[kind].drop_null()
    fields = [pa.field(name, array.type, nullable=null) for name, null in (("a", True), ("b", False), ("a", False))]
    for n in (1, 2):  # of one column, and of several
        names = [[f"{field.name}{i}" for i in range(n)] for field in fields]
        schemas = [pa.schema([f.with_name(x) for x in of]) for f, of in zip(fields, names, strict=True)]
        found = [
            compute_identities(pa.Table.from_arrays([array] * n, schema=each), SECRET)[0].tolist() for each in schemas
        ]
        assert found[0] == found[1] == found[2]


def test_the_first_word_is_the_same_for_equal_numbers_of_any_width() -> None:
    for values, kinds in (([0, 1, 127], ["int8", "int32", "int64", "uint16"]), ([0.0, 1.5], ["float32", "float64"])):
        for n in (1, 2):
            columns = [[pa.array(values, kind)] * n for kind in kinds]
            assert len({str(ids(*each)) for each in columns}) == 1


def test_another_secret_gives_other_identities() -> None:
    table = pa.table({"k": pa.array(range(100)), "s": ["x"] * 100})
    for columns in (["k"], ["k", "s"]):
        one, two = (compute_identities(table.select(columns), Secret(key, 2))[0] for key in (1, 3 << 20))
        assert not set(one.tolist()) & set(two.tolist())
    assert Secret.fresh() != Secret.fresh()


def test_crafted_keys_share_leading_bits_under_one_secret_only() -> None:
    schema = pa.schema([pa.field("k", pa.uint64(), nullable=False)])
    keys = pa.table({"k": pa.array(range(50_000), pa.uint64())}, schema)
    high = compute_identities(keys, Secret(0, 0))[0]
    crafted = keys.filter(pa.array(high >> np.uint64(56) == 7))
    assert crafted.num_rows > 100
    again = compute_identities(crafted, SECRET)[0] >> np.uint64(56)
    assert len(set(again.tolist())) > 50


def test_rows_without_columns_are_equal() -> None:
    table = pa.table({"a": [1, 2]}).select([])
    assert len(set(compute_identities(table, SECRET, 2)[0].tolist())) == 1
    assert compute_value_hashes(pa.record_batch({"a": [1, 2]}).select([]), SECRET).tolist() == [0, 0]


def test_long_texts_that_differ_in_one_byte_differ() -> None:
    long = "x" * (1 << 20)
    assert len(set(ids(pa.array([long, long + "y", "y" + long, long[:-1] + "y", long])))) == 4


def test_validity_and_flags_are_read_at_odd_offsets() -> None:
    column = pa.array([True, None, False, True, None, True, False, None, True, True, None])
    for begin in range(len(column)):
        for part in (column.slice(begin), column.slice(begin, 2)):
            expected = part.to_pylist()
            assert unpack_booleans(part).tolist() == [value is True for value in expected]
            present = unpack_validity(part)
            assert (present.tolist() or [1] * len(part)) == [value is not None for value in expected]
    assert unpack_validity(pa.nulls(3)).tolist() == [0, 0, 0] and unpack_validity(pa.array([1, 2])).size == 0


@pytest.mark.parametrize("kind", PLAIN)
def test_rows_hashed_in_several_blocks_have_the_same_hashes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = pa.concat_arrays([PLAIN[kind].slice(1), PLAIN[kind], PLAIN[kind]])
    fill = pa.array([0] * len(array))
    expected = ids(array, fill), hashes(fill, array)
    monkeypatch.setattr(hashing, "CACHED", 3)
    assert (ids(array, fill), hashes(fill, array)) == expected
