"""Test ``dd.FilePath(rename=)``: columns of files of any kind under new names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from messages import raises
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app

OWN = pa.table({"Order ID": [1, 2], "Amt": [1.5, 2.5], "city": ["Bern", None]})
NAMES = {"Order ID": "id", "Amt": "amount"}
ROWS = [{"id": 1, "amount": 1.5, "city": "Bern"}, {"id": 2, "amount": 2.5, "city": None}]


def flow_of() -> dd.Flow:
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", {"id": int, "amount": float, "city": str}, dd.Upsert(key="id")))
    return flow


def write(path: Path, table: pa.Table = OWN) -> str:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        pa.feather.write_feather(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    else:
        lines = [",".join("" if each is None else str(each) for each in row.values()) for row in table.to_pylist()]
        path.write_text("\n".join([",".join(table.column_names), *lines]) + "\n")
    return str(path)


def held(engine: dd.Engine) -> list[dict[str, Any]]:
    return engine.read("t").drop_columns(["_diff"]).sort_by("id").to_pylist()


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "arrow"])
def test_columns_get_their_names(ending: str, tmp_path: Path) -> None:
    path = dd.FilePath(write(tmp_path / f"a.{ending}"), rename=NAMES)
    with flow_of().open() as engine:
        engine.step({"t": path})
        assert held(engine) == ROWS
    renamed = OWN.rename_columns(["id", "amount", "city"])
    assert dd.compare(path, renamed, key="id").num_rows == 0
    with flow_of().open(str(tmp_path / "state")) as engine:
        engine.run({"t": dd.sources.files(path)})
        assert held(engine) == ROWS


def test_files_that_have_the_new_names_are_taken_too(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", OWN.slice(0, 1))
    write(tmp_path / "b.csv", OWN.slice(1).rename_columns(["id", "Amt", "city"]))
    with flow_of().open() as engine:
        engine.step({"t": dd.FilePath(f"{tmp_path}/*.csv", rename=NAMES)})
        assert held(engine) == ROWS


def test_names_are_swapped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", pa.table({"id": [1.5], "amount": [7], "city": ["x"]}))
    with flow_of().open() as engine:
        engine.step({"t": dd.FilePath(path, rename={"id": "amount", "amount": "id"})})
        assert held(engine) == [{"id": 7, "amount": 1.5, "city": "x"}]


@pytest.mark.parametrize(
    "names",
    [
        {"Order Id": "id"},
        {"Order ID": "city"},
    ],
)
def test_a_name_that_is_not_there_and_two_that_are_one(names: dict[str, str], tmp_path: Path) -> None:
    path = dd.FilePath(write(tmp_path / "a.csv"), rename=names)
    with flow_of().open() as engine, raises(dd.errors.SchemaMismatch):
        engine.step({"t": path})


def test_what_is_no_renaming() -> None:
    for names in ({"a": 1}, ["a"], {"a": ""}):
        with raises(dd.errors.SpecError):
            dd.FilePath("a.csv", rename=names)  # type: ignore[arg-type]
    with raises(dd.errors.SpecError):
        dd.FilePath("a.csv", rename={"a": "b", "c": "b"})


def test_an_error_names_what_to_declare(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Order ID,Amt,city\n1,x,Bern\n")
    with flow_of().open() as engine, pytest.raises(dd.errors.SchemaMismatch) as caught:
        engine.step({"t": dd.FilePath(str(path), rename=NAMES)})
    assert "a.csv, row 2, column 'Amt'" in caught.value.asked and "{'amount': 'string'}" in caught.value.fix


def test_on_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv")
    (tmp_path / "flow.py").write_text(
        "import ddflow as dd\nflow = dd.Flow()\n"
        "rows = flow.upserts('t', {'id': int, 'amount': float, 'city': str}, dd.Upsert(key='id'))\n"
        "flow.output('t', rows)\n"
    )
    words = ["run", "flow.py", "--state", "state", "--from", "t=files:a.csv:rename=Order ID=id:rename=Amt=amount"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    rows = dd.read("state", "t").sort_by("id").select(["id", "amount", "city"]).to_pylist()
    assert rows == ROWS


def test_named_tables_of_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv")
    write(tmp_path / "b.parquet", pa.table({"Customer": [1, 2], "name": ["x", "y"]}))
    query = "select name, amount from orders join people on orders.id = people.id"
    orders, people = "orders=a.csv:key=id:rename=Order ID=id:rename=Amt=amount", "people=b.parquet:rename=Customer=id"
    done = CliRunner().invoke(app, ["sql", query, orders, f"{people}:key=id"])
    assert done.exit_code == 0, done.output
    found = sorted((row["name"], row["amount"]) for row in map(json.loads, done.stdout.splitlines()[:2]))
    assert found == [("x", 1.5), ("y", 2.5)]
    for wrong, said in (
        ("rename=Customr=id", "b.parquet, rename=: there is no column 'Customr' to rename to 'id'; did you mean"),
        ("rename=Customer=name", "b.parquet, rename=: its columns ['Customer', 'name'] would all be named 'name'"),
        ("rename=Customer", "rename="),
    ):
        table = f"people=b.parquet:{wrong}:key=id"
        refused = CliRunner().invoke(app, ["sql", query, orders, table], env={"COLUMNS": "300"})
        assert refused.exit_code and said in refused.output, refused.output
