"""Test schemas declared with Polars, data frames, Spark, or Python types."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import types as T

import ddflow as dd
from ddflow.columns.declared import to_arrow_schema
from ddflow.errors import NotArrow, SchemaMismatch, SpecError

PLAIN = pa.schema({"id": pa.int64(), "city": pa.string(), "at": pa.timestamp("us"), "n": pa.float64()})
TABLE = PLAIN.empty_table()
COLUMNS = {"id": [1], "city": ["x"], "at": [dt.datetime(2024, 1, 1)], "n": [1.5]}
GIVEN: dict[str, Any] = {
    "Python's types": {"id": int, "city": str, "at": dt.datetime, "n": float},
    "Arrow's texts": {"id": "int64", "city": "string", "at": "timestamp[us]", "n": "double"},
    "SQL's texts": {"id": "bigint", "city": "text", "at": "timestamp", "n": "double"},
    "a Polars schema": pl.Schema({"id": pl.Int64, "city": pl.String, "at": pl.Datetime("us"), "n": pl.Float64}),
    "Polars' types": {"id": pl.Int64, "city": pl.String(), "at": pl.Datetime("us"), "n": pl.Float64},
    "mixed": {"id": int, "city": pa.string(), "at": pl.Datetime("us"), "n": T.DoubleType()},
    "a Polars frame": pl.DataFrame(COLUMNS),
    "a lazy frame": pl.LazyFrame(COLUMNS),
    "pandas": pd.DataFrame(COLUMNS).astype({"at": "datetime64[us]"}),
    "pandas, filtered": pd.DataFrame(COLUMNS, index=[7]).astype({"at": "datetime64[us]"}),
    "DuckDB": duckdb.sql("select 1::bigint as id, 'x' as city, timestamp '2024-01-01' as at, 1.5::double as n"),
    "a table": TABLE,
    "a dataset": pyarrow.dataset.dataset(TABLE),
    "Spark's": T.StructType(
        [
            T.StructField("id", T.LongType()),
            T.StructField("city", T.VarcharType(9)),
            T.StructField("at", T.TimestampNTZType()),
            T.StructField("n", T.DoubleType()),
        ]
    ),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_every_kind_of_schema_means_the_same_columns(kind: str) -> None:
    assert to_arrow_schema(GIVEN[kind]) == PLAIN
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", GIVEN[kind], dd.Upsert(key="id")))
    with flow.open() as engine:
        assert engine.step(COLUMNS)["rows"].num_rows == 1


def test_types_of_python_and_of_spark_that_are_more_than_one_word() -> None:
    found = to_arrow_schema({"d": dt.date, "t": dt.time, "l": dt.timedelta, "b": bool, "x": bytes, "many": list[int]})
    times = [pa.date32(), pa.time64("us"), pa.duration("us")]
    assert found.types == [*times, pa.bool_(), pa.binary(), pa.list_(pa.int64())]
    spark = T.StructType(
        [
            T.StructField("amount", T.DecimalType(12, 2), nullable=False),
            T.StructField("at", T.TimestampType()),
            T.StructField("long", T.DayTimeIntervalType(0, 3)),
            T.StructField("tags", T.ArrayType(T.StringType())),
            T.StructField("sums", T.MapType(T.StringType(), T.ShortType())),
            T.StructField("who", T.StructType([T.StructField("name", T.StringType())])),
        ]
    )
    assert to_arrow_schema(spark) == pa.schema(
        [
            pa.field("amount", pa.decimal128(12, 2), nullable=False),
            ("at", pa.timestamp("us", "UTC")),
            ("long", pa.duration("us")),
            ("tags", pa.list_(pa.string())),
            ("sums", pa.map_(pa.string(), pa.int16())),
            ("who", pa.struct({"name": pa.string()})),
        ]
    )


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "a decimal": ({"sum": Decimal}, NotArrow, "column 'sum': Decimal has no precision; write .decimal"),
    "a list": (
        {"many": list},
        NotArrow,
        "column 'many': <class 'list'> is not the type of a column; .*or one of bool, int",
    ),
    "an object": ({"x": object()}, NotArrow, "column 'x': <object object .*is not the type of a column"),
    "values": ({"id": [1, 2]}, NotArrow, r"column 'id': \[1, 2\] is not the type of a column"),
    "a variant": (T.StructType([T.StructField("v", T.VariantType())]), NotArrow, "column 'v': Spark's 'variant'"),
    "a text that names no type": ({"id": "int65"}, SpecError, "column 'id', type 'int65': .*did you mean 'int64'"),
    "a name that is taken": ({"_diff": int}, SpecError, "_diff"),
    "nothing": (None, NotArrow, "NoneType"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_schema_is_refused_with_its_column(name: str) -> None:
    given, error, why = WRONG[name]
    with pytest.raises(error, match=why):
        to_arrow_schema(given)


def test_text_of_a_frame_is_declared_as_string_and_a_wide_declaration_is_the_same_type(tmp_path: Path) -> None:
    def flow(columns: Any) -> dd.Flow:
        made = dd.Flow()
        made.output("out", made.upserts("beds", columns, dd.Upsert(key="id")))
        return made

    frame = pl.DataFrame({"id": ["a"], "tags": [["x", None]]})
    assert to_arrow_schema(frame) == pa.schema({"id": pa.string(), "tags": pa.list_(pa.string())})
    wide = pa.schema({"id": pa.large_string(), "tags": pa.large_list(pa.large_string())})
    for number, (first, then) in enumerate([(frame, {"id": str, "tags": list[str]}), (wide, frame), (wide, wide)]):
        state = tmp_path / str(number)
        with flow(first).open(state) as engine:
            engine.step(frame)
        with flow(then).open(state) as engine:
            engine.step(pl.DataFrame({"id": ["b"], "tags": [[]]}))
            assert sorted(engine.read("out")["id"].to_pylist()) == ["a", "b"]
            with pytest.raises(SchemaMismatch) as error:
                engine.step(pl.DataFrame({"id": ["b"], "tags": [[]], "ward": ["x"]}))
            assert error.value.fix.endswith("add it with engine.evolve({'beds': {'ward': 'string'}})")
            engine.evolve({"beds": {"ward": "string"}})
            engine.step(pl.DataFrame({"id": ["b"], "tags": [[]], "ward": ["x"]}))
        with flow(then).open(state) as engine:  # what was evolved need not be declared
            assert sorted(engine.read("out")["ward"].to_pylist(), key=str) == [None, "x"]
