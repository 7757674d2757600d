"""What an input takes in: any producer's rows, by name, in any encoding, where nothing is lost; all else is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from kinds import ENCODED, PLAIN, pieces

from ddflow.columns.schema import conform, empty, normal_type, plain, to_schema, to_table
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
    return conform(pa.table({"v": array}), pa.schema({"v": kind}), "t")["v"]


@pytest.mark.parametrize("kind", PLAIN)
def test_a_column_of_the_declared_type_is_taken_as_it_is(kind: str) -> None:
    array = PLAIN[kind]
    assert normal_type(array.type) == array.type
    found = conformed(pieces(array), array.type)
    assert found.num_chunks == 1 and str(found.to_pylist()) == str(array.to_pylist())
    assert plain(array) is array


@pytest.mark.parametrize("kind", ENCODED)
def test_an_encoded_column_is_decoded_from_any_chunks(kind: str) -> None:
    array, normal = ENCODED[kind]
    assert to_schema({"v": array.type}).field("v").type == normal
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
]


@pytest.mark.parametrize(("array", "kind"), WIDENED, ids=lambda x: str(getattr(x, "type", x)))
def test_a_cast_that_loses_nothing_is_made(array: pa.Array, kind: pa.DataType) -> None:
    found = conformed(array, kind)
    found.validate(full=True)
    assert found.type == kind and found.to_pylist() == array.to_pylist()


@pytest.mark.parametrize("kind", PLAIN)
def test_a_column_of_nothing_but_null_fits_any_type(kind: str) -> None:
    found = conformed(pa.nulls(3), PLAIN[kind].type)
    assert found.type == PLAIN[kind].type and found.to_pylist() == [None] * 3


LOSSY = [
    (pa.array([300]), pa.int8(), "does not fit int8"),
    (pa.array([-1]), pa.uint64(), "does not fit uint64"),
    (pa.array([1]), pa.float64(), "it is int64, declared is double"),
    (pa.array([1.5]), pa.int64(), "it is double, declared is int64"),
    (pa.array([1.5]), pa.float32(), "it is double, declared is float"),
    (pa.array([1]), pa.string(), "it is int64, declared is string"),
    (pa.array(["1"]), pa.int64(), "it is string, declared is int64"),
    (pa.array(["1"]).dictionary_encode(), pa.int64(), "it is dictionary"),
    (pa.array([b"\xff"]), pa.string(), "it is binary, declared is string"),
    (pa.array([Decimal("1.55")]), pa.decimal128(5, 1), "does not fit decimal128"),
    (pa.array([1500]).view(pa.timestamp("ms")), pa.timestamp("s"), "does not fit timestamp"),
    (pa.array([0]).view(pa.timestamp("us", "UTC")), pa.timestamp("us"), "declared is timestamp"),
    (pa.array([True]), pa.int64(), "it is bool, declared is int64"),
    (pa.array([{"y": 1}]), pa.struct({"x": pa.int64()}), "it is struct"),
    (pa.array([[300]]), pa.list_(pa.int8()), "does not fit list"),
]


@pytest.mark.parametrize(("array", "kind", "why"), LOSSY, ids=lambda x: str(getattr(x, "type", x)))
def test_a_cast_that_could_lose_something_is_refused(array: pa.Array, kind: pa.DataType, why: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"column 'v' of rows for t: .*{why}"):
        conformed(array, kind)


def test_columns_are_matched_by_name_and_missing_ones_are_null() -> None:
    declared = pa.schema({"id": pa.int64(), "city": pa.string(), "tags": pa.list_(pa.string())})
    found = conform(pa.table({"city": ["Bern"], "id": [1]}), declared, "t", ["id"])
    assert found.schema == declared and found.to_pylist() == [{"id": 1, "city": "Bern", "tags": None}]


def test_a_missing_column_of_every_type_is_null() -> None:
    declared = pa.schema({"id": pa.int64()} | {kind: PLAIN[kind].type for kind in PLAIN})
    found = conform(pa.table({"id": [1, 2]}), declared, "t")
    assert found.num_rows == 2 and set(found.slice(1).to_pylist()[0].values()) == {2, None}
    assert empty(declared).schema == declared


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table({"id": [1], "citty": ["x"]}), "a column 'citty' that was not declared; did you mean 'city'"),
        (pa.table([[1], [2]], ["id", "id"]), "the column 'id' occurs more than once"),
        (pa.table({"city": ["x"]}), "the column 'id' is missing"),
        (pa.table({"id": [None, 1], "city": ["x", "y"]}), r"the columns \['id'\] hold nulls"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(table: pa.Table, why: str) -> None:
    declared = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
    with pytest.raises(SchemaMismatch, match=why):
        conform(table, declared, "t", ["id"])


def test_a_null_where_the_schema_forbids_one_is_refused_even_if_the_types_agree() -> None:
    declared = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with pytest.raises(SchemaMismatch, match="hold nulls and were declared not null"):
        conform(pa.Table.from_arrays([pa.array([1, None])], schema=declared), declared, "t")


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
    assert conform(table, TABLE.schema, "t").to_pylist() == ROWS


@pytest.mark.parametrize("given", [None, 5, "rows", [1, 2], [{"id": 1}], {"id": [1]}, [TABLE]], ids=repr)
def test_what_does_not_speak_arrow_is_refused(given: Any) -> None:
    with pytest.raises(NotArrow, match=r"rows for t: \w+ does not speak Arrow; give a table"):
        to_table(given, "t", INTS)


@pytest.mark.parametrize("given", [pa.array([1]), pa.chunked_array([[1]])], ids=["array", "chunked"])
def test_a_lone_column_is_no_rows(given: Any) -> None:
    with pytest.raises(NotArrow, match="holds no rows"):
        to_table(given, "t", INTS)


def test_batches_must_be_of_one_schema_and_may_be_none() -> None:
    with pytest.raises(SchemaMismatch, match="batch 1 has the columns id string, the first id int64"):
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
    assert to_schema(given) == INTS


@pytest.mark.parametrize("given", [None, 5, {"id": int}, {"id": "int65"}, ["id"], {5: pa.int64()}], ids=repr)
def test_what_is_no_schema_is_refused(given: Any) -> None:
    with pytest.raises(NotArrow, match="schema from"):
        to_schema(given)


@pytest.mark.parametrize(
    ("names", "why"), [(["a", "b", "a"], r"\['a'\] occur more than once"), (["a", "_diff", "_time"], "_diff.*_time")]
)
def test_duplicate_and_reserved_names_are_refused(names: list[str], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        to_schema(pa.schema([pa.field(name, pa.int64()) for name in names]))
