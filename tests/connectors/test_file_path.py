"""Test `dd.FilePath`, a path with its text format, in every Python call that takes paths."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.connectors.files import open_output
from ddflow.errors import SpecError, UnreadableInput


def flow() -> dd.Flow:
    made = dd.Flow()
    made.output("rows", made.upserts("rows", {"id": int, "city": str}, dd.Upsert(key="id")))
    return made


def test_each_door_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "1.csv"
    path.write_bytes("id;city\n1;Zürich, ZH\n2;n/a\n".encode("cp1252"))
    file, right = (
        dd.FilePath(path, delimiter=";", null="n/a", encoding="cp1252"),
        {"id": [1, 2], "city": ["Zürich, ZH", None]},
    )
    for door in ("step", "replace", "run"):
        with flow().open() as engine:
            if door == "run":
                engine.run({"rows": dd.sources.files(file, full=True)})
            else:
                getattr(engine, door)(file)
            assert dd.compare(right, engine.read("rows").drop_columns(["_diff"]), key="id").num_rows == 0, door
    assert dd.compare(right, file, key="id").num_rows == 0
    with raises(UnreadableInput):
        dd.compare(right, path, key="id")


def test_each_door_reads_other_forms_of_numbers_and_dates(tmp_path: Path) -> None:
    made = dd.Flow()
    columns = {"id": int, "price": float, "day": "date", "at": "timestamp"}
    made.output("rows", made.upserts("rows", columns, dd.Upsert(key="id")))
    path = tmp_path / "beds.csv"
    path.write_text("id;price;day;at\n7;12,50;3.1.2024;03.01.2024 14:05\n")
    file = dd.FilePath(path, delimiter=";", decimal=",", dates=["%d.%m.%Y", "%d.%m.%Y %H:%M"])
    at = datetime(2024, 1, 3, 14, 5)
    right = [{"id": 7, "price": 12.5, "day": at.date(), "at": at}]
    for door in ("step", "replace", "run"):
        with made.open() as engine:
            if door == "run":
                engine.run({"rows": dd.sources.files(file)})
            else:
                getattr(engine, door)(file)
            assert engine.read("rows").drop_columns(["_diff"]).to_pylist() == right, door
    assert dd.compare(right, file, key="id").num_rows == 0


@pytest.mark.parametrize("door", ["step", "replace", "run", "compare", "compare with text"])
@pytest.mark.parametrize(
    ("kind", "format", "ending"),
    [
        ("csv", "csv", "txt"),
        ("csv.gz", "csv", "gz"),
        ("csv.gz", "csv.gz", "txt"),
        ("jsonl.zst", "jsonl", "dat.zst"),
        ("parquet", "parquet", "dat"),
        ("arrow", "arrow", "dat"),
    ],
)
def test_each_door_reads_files_of_any_ending(door: str, kind: str, format: str, ending: str, tmp_path: Path) -> None:
    """Story: the shell had ``--format``, and Python nothing: such a file had to be renamed."""
    rows = pa.table({"id": [1, 2], "city": ["Bern", "Chur"]})
    with open_output(tmp_path / f"a.{kind}", rows.schema) as out:
        out.write(rows)
    path = (tmp_path / f"a.{kind}").rename(tmp_path / f"export.{ending}")
    file = dd.FilePath(path, format=format)
    if door.startswith("compare"):
        right = rows if door == "compare" else {"id": [1, 2], "city": ["Bern", None]}
        assert dd.compare(right, file, key="id").num_rows == (door != "compare")
        return
    with flow().open() as engine:
        if door == "run":
            engine.run({"rows": dd.sources.files(dd.FilePath(tmp_path / "export.*", format=format))})
        else:
            getattr(engine, door)(file)
        assert dd.compare(rows, engine.read("rows").drop_columns(["_diff"]), key="id").num_rows == 0
        with raises(UnreadableInput):
            engine.step(path)


def test_what_is_said_to_be_written_otherwise_keeps_the_format(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("id;city\n1;Bern, BE\n")
    with raises(UnreadableInput):
        dd.compare({"id": [1], "city": ["Bern"]}, dd.FilePath(path, format="csv"), key="id")
    path.write_bytes("id;city\n1;Z\u00fcrich\n".encode("cp1252"))
    with raises(UnreadableInput):
        dd.compare({"id": [1], "city": ["Bern"]}, dd.FilePath(path, format="csv", delimiter=";"), key="id")


def test_lines_of_messages_are_not_written_otherwise() -> None:
    with raises(SpecError):
        dd.sources.files(dd.FilePath("in/*.jsonl", encoding="cp1252"), lines=True)


BAD = {
    "a value": "id,n\n1,5\n2,x\n",
    "a delimiter": "id;n\n1;5,5\n",
    "a quote": 'id,n\n1,"5\n',
    "a key": "no,n\n1,5\n",
    "a null": "id,n\n,5\n",
}


@pytest.mark.parametrize("given", ["./a.csv", "*.csv", "in//../a.csv", "in", "in/*.csv", "in/", "./in/a.csv"])
@pytest.mark.parametrize(
    ("door", "wrong"),
    [(door, each) for door in ("step", "replace") for each in BAD]
    + [("run", each) for each in list(BAD)[:3]]
    + [("compare", each) for each in ("a delimiter", "a quote")],
)
def test_an_error_names_the_file_once(
    given: str, door: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: errors of ``./a.csv`` began with ``./a.csv: a.csv, row 3``, and those of a pattern likewise;
    those of the folder ``in`` named none where they had such letters in ``missing``.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for path in ("a.csv", "in/a.csv"):
        (tmp_path / path).write_text(BAD[wrong])
    made = dd.Flow()
    made.output("rows", made.upserts("rows", {"id": int, "n": int}, dd.Upsert(key="id")))
    doors: dict[str, Callable[[dd.Engine], object]] = {
        "step": lambda engine: engine.step(given),
        "replace": lambda engine: engine.replace("rows", given),
        "run": lambda engine: engine.run({"rows": dd.sources.files(given)}),
        "compare": lambda engine: dd.compare({"id": [1], "n": [5]}, given, key="id"),
    }
    with made.open() as engine, pytest.raises(dd.DdflowError) as caught:
        doors[door](engine)
    named = f"{caught.value.asked}: {caught.value.found}"
    assert named.count("csv") == 1, named


def test_what_is_no_way_to_write_text_is_refused() -> None:
    with raises(SpecError):
        dd.FilePath("1.csv", delimiter="||")
    with raises(SpecError):
        dd.FilePath("1.csv", encoding="cp-none")
    with raises(SpecError):
        dd.FilePath("1.csv", format="xls")
