"""Test rows of every kind of object: all objects give the same rows, and lossy conversions are refused."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from messages import raises

import ddflow as dd
from ddflow.connectors.to_arrow import to_table
from ddflow.errors import NotArrow, SchemaMismatch, UnreadableInput

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string(), "at": pa.timestamp("ms"), "amount": pa.float64()})
AT = dt.datetime(2024, 2, 29, 12)
ROWS = [
    {"id": 1, "city": "Bern", "at": AT, "amount": 1.5},
    {"id": 2, "city": None, "at": AT, "amount": None},
    {"id": 3, "city": "Zürich", "at": None, "amount": 3.0},
]
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)
COLUMNS = TABLE.to_pydict()


def parquet(folder: Path) -> Path:
    pq.write_table(TABLE, folder / "rows.parquet")
    return folder / "rows.parquet"


def text(folder: Path) -> str:
    pyarrow.csv.write_csv(TABLE, folder / "rows.csv")
    return str(folder / "rows.csv")


def lines(folder: Path) -> str:
    (folder / "rows.jsonl").write_text(
        '{"id": 1, "city": "Bern", "at": "2024-02-29T12:00:00", "amount": 1.5}\n'
        '{"id": 2, "at": "2024-02-29T12:00:00"}\n{"id": 3, "city": "Zürich", "amount": 3}\n'
    )
    return str(folder / "rows.jsonl")


def relation(_: Path) -> Any:
    return duckdb.from_arrow(TABLE).filter("id < 9")


def filtered(_: Path) -> Any:
    """A frame whose index has gaps, and no name."""
    return pd.DataFrame([{"id": 9, "city": "x", "at": AT, "amount": 0.0}, *ROWS]).query("id < 9")


KINDS: dict[str, Callable[[Path], Any]] = {
    "pandas": lambda _: pd.DataFrame(ROWS),
    "pandas, filtered": filtered,
    "pandas with an index": lambda _: pd.DataFrame(ROWS).set_index("id"),
    "pandas, categories": lambda _: pd.DataFrame(ROWS).astype({"city": "category"}),
    "pandas, nullable": lambda _: pd.DataFrame(ROWS).astype({"id": "Int64", "city": "string", "amount": "Float64"}),
    "polars, categories": lambda _: pl.DataFrame(ROWS).cast({"city": pl.Categorical()}),
    "polars": lambda _: pl.DataFrame(ROWS),
    "a lazy frame": lambda _: pl.DataFrame(ROWS).lazy().filter(pl.col("id") < 9),
    "duckdb": relation,
    "a path": parquet,
    "a folder": lambda folder: parquet(folder).parent,
    "CSV": text,
    "JSON lines": lines,
    "a dataset": lambda folder: pyarrow.dataset.dataset(parquet(folder)),
    "a dict of lists": lambda _: COLUMNS,
    "a dict of arrays": lambda _: {
        "id": np.arange(1, 4, dtype=np.int16),
        "city": pl.Series(COLUMNS["city"]),
        "at": pd.Series(COLUMNS["at"]),
        "amount": tuple(COLUMNS["amount"]),
    },
    "a list of dicts": lambda _: ROWS,
    "dicts that lack names": lambda _: [{name: v for name, v in row.items() if v is not None} for row in ROWS],
}


def people(**options: Any) -> dd.Engine:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("people", SCHEMA, dd.Upsert(key="id")))
    return flow.open(**options)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_same_in_whatever_they_come(kind: str, tmp_path: Path) -> None:
    for options in ({}, {"memory": "64MB"}):
        with people(**options) as engine:
            engine.step({"people": KINDS[kind](tmp_path)})
            assert engine.read("rows").select(SCHEMA.names).sort_by("id").equals(TABLE)
            assert engine.replace("people", KINDS[kind](tmp_path)).verdicts["noop"] == 3
            assert engine.step(KINDS[kind](tmp_path)).verdicts["noop"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_committed_epoch_is_given_again_from_any_kind(kind: str, tmp_path: Path) -> None:
    with people(state=str(tmp_path / "state")) as engine:
        engine.step(TABLE)
        folder = tmp_path / "rows"
        folder.mkdir()
        assert engine.step(KINDS[kind](folder), epoch=1)["rows"].num_rows == 3


def test_many_files_are_one_input_and_a_budget_reads_them_as_they_go(tmp_path: Path) -> None:
    for part in range(3):
        pq.write_table(pa.table({"id": range(part * 1000, part * 1000 + 1000)}), tmp_path / f"{part}.parquet")
    with people(memory="8MB") as engine:
        assert engine.step(tmp_path)["rows"].num_rows == 3000


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "lengths": ({"id": [1, 2], "city": ["x"]}, SchemaMismatch, "'id' has 2, 'city' has 1"),
    "a value": ({"id": 1}, NotArrow, "column 'id' .*: it is a int; pass a list of values"),
    "text": ({"id": "123"}, NotArrow, "it is a str; pass a list of values"),
    "text among numbers": (
        {"id": [1, "2"]},
        NotArrow,
        "column 'id' of .*: row 1 holds '2', a str after int",
    ),
    "zones": ({"at": [AT, AT.replace(tzinfo=dt.UTC)]}, NotArrow, "some of its times have a zone and some have none"),
    "text for a number": ([{"id": "1"}], SchemaMismatch, "it is string, but int64 is declared; row 0 holds '1'"),
    "a fraction": ([{"id": 1}, {"id": 1.5}], SchemaMismatch, "row 1 holds 1.5 .double., which does not fit int64"),
    "pandas of several types": (
        pd.DataFrame({"id": [1, "x"]}),
        NotArrow,
        r"column 'id' of the DataFrame has several types.* \(.*\); convert it to one type",
    ),
    "pandas of one name": (
        pd.DataFrame([[1, 2, 3]], columns=["id", "city", "city"]),
        SchemaMismatch,
        r"the columns \['city'\] of the DataFrame occur more than once; give every column its own name",
    ),
    "no file": ("there_is_none.parquet", UnreadableInput, "there is no such file"),
    "rows and others": ([{"id": 1}, 2], NotArrow, "list does not speak Arrow; pass a table, a frame, a path"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_would_lose_or_guess_something_is_refused(name: str) -> None:
    given, error, why = MISTAKES[name]
    with people() as engine:
        with pytest.raises(error, match=why):
            engine.step({"people": given})
        assert engine.frontier == dd.NEVER


def test_python_values_keep_all_they_are() -> None:
    """Where Arrow alone would cut a time of day, or could not tell a type."""
    noon = dt.datetime(2020, 1, 2, 12, 30)
    given = {"day": [dt.date(2020, 1, 1), noon], "big": [2**64 - 1, None], "sum": [Decimal("1.50"), Decimal("2")]}
    table = to_table(given, "t", pa.schema({"big": pa.uint64(), "day": pa.timestamp("us"), "sum": pa.decimal128(9, 2)}))
    assert table["day"].to_pylist() == [dt.datetime(2020, 1, 1), noon]
    assert table["big"].to_pylist() == [2**64 - 1, None]
    assert table["sum"].to_pylist() == given["sum"]
    flow = dd.Flow()
    flow.output("days", flow.upserts("days", {"day": dt.date}, dd.Upsert(key="day")))
    with flow.open() as engine, raises(SchemaMismatch):
        engine.step({"day": [dt.date(2020, 1, 1), noon]})


def test_a_column_that_a_file_lacks_is_absent_where_rows_are_merged(tmp_path: Path) -> None:
    """And null in full rows; of several files together it is null where one has it."""
    flow = dd.Flow()
    spec = dd.Upsert("id", merge=dd.Merge(default=dd.last()))
    flow.output("rows", flow.upserts("people", {"id": int, "city": str, "n": int}, spec))
    (tmp_path / "one.csv").write_text("id,city\n1,Bern\n")
    (tmp_path / "two.csv").write_text("id,n\n1,\n2,5\n")
    with flow.open() as engine:
        engine.step([{"id": 1, "city": "Zug", "n": 7}])
        engine.step(tmp_path / "one.csv")
        assert engine.read("rows").drop_columns(["_diff"]).to_pylist() == [{"id": 1, "city": "Bern", "n": 7}]
        engine.step(tmp_path / "two.csv")
        rows = engine.read("rows").sort_by("id").drop_columns(["_diff"]).to_pylist()
        assert rows == [{"id": 1, "city": "Bern", "n": None}, {"id": 2, "city": None, "n": 5}]
    with people() as engine:
        engine.step(TABLE)
        assert engine.step(tmp_path / "one.csv").verdicts["applied"] == 1
        assert engine.read("rows").sort_by("id").slice(0, 1)["amount"].to_pylist() == [None]


def test_what_is_wrong_with_the_columns_of_a_file_says_what_to_do(tmp_path: Path) -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", {"id": int, "city": str}, dd.Upsert(key="id")))
    cases = {
        "id;city\n1;Bern\n": "there is one column, 'id;city'; is the delimiter ';'\\? read .* dd.FilePath",
        "no,city\n1,Bern\n": "the column 'id' is missing",
        "id,city,n\n1,Bern,5\n": r"or add it with engine.evolve\(\{'rows': \{'n': 'int64'\}\}\)",
    }
    with flow.open() as engine:
        for text, words in cases.items():
            (tmp_path / "a.csv").write_text(text)
            with pytest.raises(dd.errors.SchemaMismatch, match=words):
                engine.replace("rows", tmp_path / "a.csv")
        engine.evolve({"n": "int64"})
        assert engine.replace("rows", tmp_path / "a.csv")["rows"].num_rows == 1


def test_a_file_of_decimal_commas_is_asked_for_its_delimiter(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;price\n1;5,50\n2;6,10\n")
    with raises(UnreadableInput):
        dd.compare(tmp_path / "a.csv", tmp_path / "a.csv", key="id")


@pytest.mark.parametrize("kind", ["Int128", "UInt128"])
def test_a_type_of_polars_that_arrow_does_not_have_is_named(kind: str) -> None:
    frame = pl.DataFrame({"id": [1], "n": [2]}).with_columns(pl.col("n").cast(getattr(pl, kind)))
    with raises(NotArrow):
        to_table(frame, "'t'", pa.schema([]))


@pytest.mark.parametrize("format", [None, dd.formats.plain_json(), dd.formats.debezium()])
@pytest.mark.parametrize("given", [[], {}, pa.table({})], ids=["list", "dict", "table"])
def test_no_rows_are_no_rows_with_and_without_a_format(given: Any, format: Any) -> None:
    flow, more = dd.Flow(), {} if format is None else {"format": format}
    flow.output("t", flow.upserts("t", {"id": int}, dd.Upsert(key="id"), **more))
    with flow.open() as engine:
        step = engine.step({"t": given})
        assert step["t"].num_rows == 0 and step.verdicts.resolved == 0


def test_a_missing_column_is_named_once() -> None:
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", {"id": int, "a": str, "b": str}, dd.Upsert(key="id")))
    with flow.open() as engine, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for lacking in ({"id": [1]}, {"id": [1], "a": ["x"]}, {"id": [1], "b": ["x"]}, {"id": [1]}):
            engine.step({"t": lacking})
        engine.replace({"id": [1]})
        engine.replace({"id": [1]})
        assert [str(each.message).split(",")[0] for each in said] == ["rows for 't': they lack the columns ['a'"]
