"""Test which rows an input accepts: any producer, columns by name, any lossless encoding. Other rows are refused."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
import pytest
from kinds import ENCODED, PLAIN, pieces
from messages import raises

from ddflow.columns.casts import suggest_type
from ddflow.columns.declared import to_arrow_schema
from ddflow.columns.schema import conform_to_schema, decode_array, empty_table, normalize_type
from ddflow.connectors.to_arrow import to_table
from ddflow.errors import NotArrow, SchemaMismatch, SpecError

INTS = pa.schema({"id": pa.int64()})


class Stream:
    """A producer that speaks Arrow and is nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class Columns:
    """A schema that speaks Arrow and is nothing else."""

    def __arrow_c_schema__(self) -> Any:
        return INTS.__arrow_c_schema__()


def conformed(array: Any, kind: pa.DataType) -> pa.Array:
    return conform_to_schema(pa.table({"v": array}), pa.schema({"v": kind}), "t")["v"]


@pytest.mark.parametrize("kind", PLAIN)
def test_a_column_of_the_declared_type_is_taken_as_it_is(kind: str) -> None:
    array = PLAIN[kind]
    assert normalize_type(array.type) == array.type
    found = conformed(pieces(array), array.type)
    assert found.num_chunks == 1 and str(found.to_pylist()) == str(array.to_pylist())
    assert decode_array(array) is array


@pytest.mark.parametrize("kind", ENCODED)
def test_an_encoded_column_is_decoded_from_any_chunks(kind: str) -> None:
    array, normal = ENCODED[kind]
    assert to_arrow_schema({"v": array.type}).field("v").type == normal
    for given in (array, array.slice(1), pieces(array), array.slice(0, 0)):
        found = conformed(given, normal)
        found.validate(full=True)
        assert found.type == normal and found.to_pylist() == given.to_pylist()


WIDENED = [
    (pa.array([1, None], pa.int8()), pa.int64()),
    (pa.array([1, 2**40]), pa.uint64()),
    (pa.array([5, None], pa.uint64()), pa.int8()),
    (pa.array([1.5, None], pa.float32()), pa.float64()),
    (pa.array(["a", None], pa.large_string()), pa.string()),
    (pa.array([b"a", None], pa.large_binary()), pa.binary()),
    (pa.array([Decimal("1.5"), None], pa.decimal32(3, 1)), pa.decimal256(40, 5)),
    (pa.array([0, None]).view(pa.timestamp("s", "UTC")), pa.timestamp("ns", "UTC")),
    (pa.array([0, None], pa.int32()).view(pa.date32()), pa.date64()),
    (pa.array([0, None], pa.int32()).view(pa.time32("s")), pa.time64("us")),
    (pa.array([0, None]).view(pa.duration("s")), pa.duration("ms")),
    (pa.array([[1], None], pa.list_(pa.int8())), pa.large_list(pa.int64())),
    (pa.array([{"x": 1}, None], pa.struct({"x": pa.int8()})), pa.struct({"x": pa.int64()})),
    (pa.array([[None], [], None], pa.list_(pa.null())), pa.list_(pa.int64())),
    (pa.array([1, None, 2**53, 2**60]), pa.float64()),
    (pa.array([1.0, None, -7.0]), pa.int8()),
    (pa.array([1.5, None, float("inf")]), pa.float32()),
    (pa.array([7, None]), pa.decimal128(9, 2)),
    (pa.array([Decimal("7.00"), None]), pa.int16()),
    (pa.array([Decimal("7.00"), None], pa.decimal32(4, 2)), pa.int16()),
    (pa.array([Decimal("0.75"), None]), pa.float32()),
    (pa.array([0.75, None]), pa.decimal128(9, 2)),
    (pa.array([0, None, -86_400_000]).view(pa.timestamp("ms")), pa.date32()),
    (pa.array([0, None], pa.int32()).view(pa.date32()), pa.timestamp("ns")),
    (pa.array([1000, None]).view(pa.timestamp("us", "UTC")), pa.timestamp("ms", "Europe/Zurich")),
    (pa.array([0, None]).view(pa.time64("ns")), pa.time32("s")),
    (pa.array([b"ab", None]), pa.binary(2)),
    (pa.array([b"a" * 16, None]), pa.uuid()),
    (pa.array([{"y": 1.0, "x": None}, None]), pa.struct({"x": pa.string(), "y": pa.int8()})),
    (pa.array([[1.0, 2.0], None, []], pa.list_(pa.float64())), pa.list_(pa.int8())),
    (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), pa.list_(pa.float64())),
    (pa.array([[1, 2], None], pa.list_(pa.int8())), pa.list_(pa.float64(), 2)),
    (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int8())), pa.map_(pa.string(), pa.float64())),
]


def instants(values: list[Any]) -> list[Any]:
    """Values as they compare: a UUID as its bytes, a date as its midnight, a struct without its order and its nulls."""
    return [
        value.bytes
        if isinstance(value, UUID)
        else datetime.combine(value, time())
        if type(value) is date
        else {name: each for name, each in value.items() if each is not None}
        if isinstance(value, dict)
        else value
        for value in values
    ]


@pytest.mark.parametrize(("array", "kind"), WIDENED, ids=lambda x: str(getattr(x, "type", x)))
def test_a_cast_that_loses_nothing_is_made(array: pa.Array, kind: pa.DataType) -> None:
    found = conformed(array, kind)
    found.validate(full=True)
    assert found.type == kind and instants(found.to_pylist()) == instants(array.to_pylist())
    sliced = conformed(pa.concat_arrays([array, array]).slice(1, len(array)), kind)
    assert instants(sliced.to_pylist()) == instants([*array.to_pylist()[1:], array[0].as_py()])


@pytest.mark.parametrize("kind", PLAIN)
def test_a_column_of_nothing_but_null_fits_any_type(kind: str) -> None:
    found = conformed(pa.nulls(3), PLAIN[kind].type)
    assert found.type == PLAIN[kind].type and found.to_pylist() == [None] * 3


LOSSY = [
    (pa.array([7, 300]), pa.int8()),
    (pa.array([300], pa.int16()), pa.int8()),
    (pa.array([-1]), pa.uint64()),
    (pa.array([2**53 + 1]), pa.float64()),
    (pa.array([1.0, None, 1.5]), pa.int64()),
    (pa.array([float("nan")]), pa.int64()),
    (pa.array([float("inf")]), pa.decimal128(9, 2)),
    (pa.array([0.1]), pa.float32()),
    (pa.array([1e300]), pa.float32()),
    (pa.array([2**24 + 1], pa.int32()), pa.float32()),
    (pa.array([0.5, 0.1]), pa.decimal128(9, 2)),
    (pa.array([Decimal("0.1")]), pa.float64()),
    (pa.array([Decimal("1.50")]), pa.int64()),
    (pa.array([10**7]), pa.decimal128(9, 2)),
    (pa.array([1]), pa.string()),
    (pa.array([None, "1"]), pa.int64()),
    (pa.array(["1"]).dictionary_encode(), pa.int64()),
    (pa.array([b"\xff"]), pa.string()),
    (pa.array([Decimal("1.55")]), pa.decimal128(5, 1)),
    (pa.array([0, 1500]).view(pa.timestamp("ms")), pa.timestamp("s")),
    (pa.array([2**37]).view(pa.timestamp("s")), pa.timestamp("ns")),
    (pa.array([0]).view(pa.timestamp("us", "UTC")), pa.timestamp("us")),
    (pa.array([0]).view(pa.timestamp("us")), pa.timestamp("us", "UTC")),
    (pa.array([0, 1]).view(pa.timestamp("ms")), pa.date32()),
    (pa.array([1]).view(pa.time64("us")), pa.time32("s")),
    (pa.array([b"abc"]), pa.binary(2)),
    (pa.array([True]), pa.int64()),
    (pa.array([{"y": 1}]), pa.struct({"x": pa.int64()})),
    (pa.array([{"x": 1.5}]), pa.struct({"x": pa.int64()})),
    (pa.array([[], [300]]), pa.list_(pa.int8())),
    (pa.array([[0.1]]), pa.list_(pa.float32())),
    (pa.array([[None]], pa.list_(pa.int8())), pa.list_(pa.field("item", pa.int64(), False))),
]


@pytest.mark.parametrize(("array", "kind"), LOSSY, ids=lambda x: str(getattr(x, "type", x)))
def test_a_cast_that_would_lose_something_is_refused(array: pa.Array, kind: pa.DataType) -> None:
    with raises(SchemaMismatch):
        conformed(array, kind)
    named = suggest_type(normalize_type(array.type), kind)
    assert conformed(array, named).type == named, "the type that a message names must hold the values"


NUMBERS: dict[pa.DataType, list[Any]] = {
    **{kind: [0, 1, 127] for kind in (pa.int8(), pa.int16(), pa.uint8())},
    **{kind: [0, -1, 2**31 - 1, 127] for kind in (pa.int32(),)},
    pa.int64(): [0, 5, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**60, 2**63 - 1, -(2**63)],
    pa.uint64(): [0, 2**53 + 2, 2**63, 2**64 - 1],
    pa.float32(): [0.0, 1.5, 2.0**24, 2.0**64, float("inf"), 0.25],
    pa.float64(): [0.0, 1.5, 0.1, 2.0**53, 2.0**63, 2.0**64, 1e300, float("inf"), -0.75, 127.0],
    pa.decimal128(9, 2): [Decimal("1.50"), Decimal("0.10"), Decimal("7.00"), Decimal("-9999999.99")],
    pa.decimal128(38, 0): [Decimal(10**37), Decimal(2**53 + 1), Decimal(2**63)],
    pa.decimal256(60, 10): [Decimal("0.5"), Decimal("1e40"), Decimal("0.0000000001")],
}


@pytest.mark.parametrize("target", NUMBERS, ids=str)
@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_a_number_is_taken_if_and_only_if_the_type_has_an_equal_one(source: pa.DataType, target: pa.DataType) -> None:
    """Beside fractions, which Python compares exactly; an infinite one only a float has."""
    for value in NUMBERS[source]:
        array, found = pa.array([value, None], source), None
        try:
            found = conformed(array, target)
        except SchemaMismatch:
            assert not _holds(target, array[0].as_py()), (value, source, target)
        else:
            assert found.to_pylist() == array.to_pylist() and _holds(target, array[0].as_py())


def _holds(kind: pa.DataType, value: Any) -> bool:
    """Whether a type has a value that is equal to a number."""
    if value in (float("inf"), float("-inf")):
        return bool(pat.is_floating(kind))
    exactly = Fraction(value)
    if pat.is_floating(kind):
        digits = 53 if kind == pa.float64() else 24
        top, most = abs(exactly.numerator), 2 ** (1024 if digits == 53 else 128)
        odd = top // (top & -top) if top else 0
        below = exactly.denominator
        return below & (below - 1) == 0 and odd.bit_length() <= digits and abs(exactly) < most
    if pat.is_decimal(kind):
        scaled = exactly * 10**kind.scale
        return scaled.denominator == 1 and abs(scaled) < 10**kind.precision
    bits = kind.bit_width
    low, high = (0, 2**bits) if pat.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return exactly.denominator == 1 and low <= exactly < high


def test_columns_are_matched_by_name_and_missing_ones_are_null() -> None:
    declared = pa.schema({"id": pa.int64(), "city": pa.string(), "tags": pa.list_(pa.string())})
    found = conform_to_schema(pa.table({"city": ["Bern"], "id": [1]}), declared, "t", ["id"])
    assert found.schema == declared and found.to_pylist() == [{"id": 1, "city": "Bern", "tags": None}]


def test_a_missing_column_of_every_type_is_null() -> None:
    declared = pa.schema({"id": pa.int64()} | {kind: PLAIN[kind].type for kind in PLAIN})
    found = conform_to_schema(pa.table({"id": [1, 2]}), declared, "t")
    assert found.num_rows == 2 and set(found.slice(1).to_pylist()[0].values()) == {2, None}
    assert empty_table(declared).schema == declared


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": [1], "citty": ["x"]}),
        pa.table({"id": [1], "_diff": [1]}),
        pa.table([[1], [2]], ["id", "id"]),
        pa.table({"city": ["x"]}),
        pa.table({"id": [None, 1], "city": ["x", "y"]}),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(table: pa.Table) -> None:
    declared = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
    with raises(SchemaMismatch):
        conform_to_schema(table, declared, "t", ["id"])


def test_a_null_where_the_schema_forbids_one_is_refused_even_if_the_types_agree() -> None:
    declared = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with raises(SchemaMismatch):
        conform_to_schema(pa.Table.from_arrays([pa.array([1, None])], schema=declared), declared, "t")


ROWS = [{"id": 1, "city": "Bern"}, {"id": 2, "city": None}]
TABLE = pa.Table.from_pylist(ROWS)
PRODUCERS = {
    "table": TABLE,
    "batch": TABLE.to_batches()[0],
    "reader": TABLE.to_reader,
    "batches": TABLE.slice(0, 1).to_batches() + TABLE.slice(1).to_batches(),
    "batches in a tuple": tuple(TABLE.to_batches()),
    "stream": Stream(TABLE),
    "polars": pl.DataFrame(ROWS),
    "duckdb": lambda: duckdb.sql("select * from (values (1::bigint, 'Bern'), (2, null)) t(id, city)"),
    "structs": pa.array(ROWS),
}


@pytest.mark.parametrize("name", PRODUCERS)
def test_every_arrow_producer_is_understood(name: str) -> None:
    given = PRODUCERS[name]
    table = to_table(given() if callable(given) else given, "t", TABLE.schema)
    assert conform_to_schema(table, TABLE.schema, "t").to_pylist() == ROWS


@pytest.mark.parametrize("given", [None, 5, b"rows", [1, 2], [{"id": 1}, 2], {1: [1]}, [TABLE]], ids=repr)
def test_what_does_not_speak_arrow_is_refused(given: Any) -> None:
    with pytest.raises(NotArrow, match=r"rows for t: \w+ does not speak Arrow; pass a table"):
        to_table(given, "t", INTS)


@pytest.mark.parametrize("given", [pa.array([1]), pa.chunked_array([[1]])], ids=["array", "chunked"])
def test_a_lone_column_is_no_rows(given: Any) -> None:
    with pytest.raises(NotArrow, match="holds no rows"):
        to_table(given, "t", INTS)


def test_batches_must_be_of_one_schema_and_may_be_none() -> None:
    with raises(SchemaMismatch):
        to_table([pa.record_batch({"id": [1]}), pa.record_batch({"id": ["1"]})], "t", INTS)
    assert to_table([], "t", INTS).num_rows == 0


def test_an_error_of_the_producer_itself_is_passed_on() -> None:
    def failing() -> Any:
        yield pa.record_batch({"id": [1]})
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        to_table(pa.RecordBatchReader.from_batches(INTS, failing()), "t", INTS)


@pytest.mark.parametrize(
    "given",
    [INTS, {"id": pa.int64()}, {"id": "int64"}, Columns(), TABLE.select(["id"])],
    ids=["schema", "types", "names", "capsule", "table"],
)
def test_schemas_are_taken_from_anything_that_has_one(given: Any) -> None:
    assert to_arrow_schema(given) == INTS


@pytest.mark.parametrize("given", [None, 5, {"id": set}, ["id"], {5: pa.int64()}], ids=repr)
def test_what_is_no_schema_is_refused(given: Any) -> None:
    with pytest.raises(NotArrow, match="schema"):
        to_arrow_schema(given)


@pytest.mark.parametrize("names", [["a", "b", "a"], ["a", "_diff", "_time"]])
def test_duplicate_and_reserved_names_are_refused(names: list[str]) -> None:
    with raises(SpecError):
        to_arrow_schema(pa.schema([pa.field(name, pa.int64()) for name in names]))
