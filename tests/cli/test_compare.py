"""Test the keyed diff of two tables against two dicts, for all kinds of rows, in Python and on the shell."""

from __future__ import annotations

import importlib
import json
import math
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from messages import raises
from terminals import on_a_terminal
from typer.testing import CliRunner, Result

import ddflow as dd
from ddflow.cli import app
from ddflow.errors import DuplicateKeys, NullKey, SchemaMismatch, SpecError, UnreadableInput

program = importlib.import_module("ddflow.tools.compare")
BEFORE = {"id": [1, 2, 3], "city": ["Bern", "Basel", "Chur"], "amount": [1.5, 2.5, None]}
AFTER = {"amount": [2.5, None, 7.0], "city": ["Basel", "Zug", "Bern"], "id": [2, 3, 4]}
DIFFERENCES = [
    (1, "removed", None, "Bern", None, 1.5, None),
    (3, "changed", ["city"], "Chur", "Zug", None, None),
    (4, "added", None, None, "Bern", None, 7.0),
]
NAMES = ["id", "_change", "_changed", "city_before", "city_after", "amount_before", "amount_after"]


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def test_what_was_added_removed_and_changed() -> None:
    found = dd.compare(BEFORE, AFTER, key="id")
    assert found.column_names == NAMES and rows_of(found) == DIFFERENCES
    assert dd.compare(BEFORE, BEFORE, "id").num_rows == 0
    assert rows_of(dd.compare(BEFORE, AFTER, ["id"], ignore="city")) == [
        (1, "removed", None, 1.5, None),
        (4, "added", None, None, 7.0),
    ]


KEYS = st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, "", "x", "y"]))
VALUES = st.tuples(st.sampled_from([None, 0.0, -0.0, 1.5, math.nan]), st.sampled_from([None, [], [1], [1, None]]))
SIDE = st.dictionaries(KEYS, VALUES, max_size=6)


@pytest.mark.parametrize("rows", [2, 1 << 16])
@given(before=SIDE, after=SIDE)
def test_it_is_what_two_dicts_give(rows: int, before: dict[Any, Any], after: dict[Any, Any]) -> None:
    with mock.patch.object(program, "ROWS", rows):
        check_against_dicts(before, after)


def check_against_dicts(before: dict[Any, Any], after: dict[Any, Any]) -> None:
    schema = pa.schema({"n": pa.float64(), "k": pa.int64(), "tags": pa.list_(pa.int64()), "name": pa.string()})

    def table(side: dict[Any, Any]) -> pa.Table:
        rows = [{"k": k, "name": name, "n": n, "tags": tags} for (k, name), (n, tags) in side.items()]
        return pa.Table.from_pylist(rows, schema)

    found = dd.compare(table(before), table(after), key=["k", "name"], null_key="keep")
    expected = {}
    for key in {**before, **after}:
        one, other = (side.get(key, (None, None)) for side in (before, after))
        differ = [name for name, a, b in zip(("n", "tags"), one, other, strict=True) if canonical(a) != canonical(b)]
        change = "removed" if key not in after else "added" if key not in before else "changed"
        if change != "changed" or differ:
            expected[key] = (change, differ if change == "changed" else None, one[0], other[0], one[1], other[1])
    rows = rows_of(found)
    assert {row[:2]: canonical(row[2:]) for row in rows} == {key: canonical(row) for key, row in expected.items()}
    assert len(rows) == len(expected)
    keys = [row[:2] for row in rows]
    assert keys == sorted(keys, key=lambda key: (key[0] is not None, key[0] or 0, key[1] is not None, key[1] or ""))


@pytest.mark.parametrize("rows", [2, 1 << 16])
@given(data=st.data())
def test_keys_are_refused_or_left_out_as_lists_say(rows: int, data: st.DataObject) -> None:
    sides = [data.draw(st.lists(st.sampled_from([None, *range(6)]), max_size=6)) for _ in range(2)]
    given = [
        pa.table({"id": pa.array(side, pa.int64()), "n": pa.array(range(len(side)), pa.int64())}) for side in sides
    ]
    for null_key in ("error", "drop", "keep"):
        kept = [[key for key in side if key is not None or null_key != "drop"] for side in sides]
        nulls = [null_key == "error" and None in side for side in sides]
        twice = [len(set(side)) < len(side) for side in kept]
        with mock.patch.object(program, "ROWS", rows):
            if any(nulls) or any(twice):
                at = next(i for i in range(2) if nulls[i] or twice[i])
                error, side = NullKey if nulls[at] else DuplicateKeys, ("before", "after")[at]
                with pytest.raises(error, match=f"compare: the rows {side}: "):
                    dd.compare(*given, key="id", null_key=null_key)
                continue
            found = dd.compare(*given, key="id", null_key=null_key)
        places = [{key: row for row, key in enumerate(side) if key in kept[i]} for i, side in enumerate(sides)]
        expected = {key: tuple(each.get(key) for each in places) for key in {*places[0], *places[1]}}
        differ = {key: pair for key, pair in expected.items() if pair[0] != pair[1]}
        assert {row["id"]: (row["n_before"], row["n_after"]) for row in found.to_pylist()} == differ


def canonical(value: Any) -> str:
    """A value as text, in which one NaN is another and zero has no sign."""
    return repr(value).replace("-0.0", "0.0")


def test_every_kind_of_rows_goes_in(tmp_path: Path) -> None:
    pq.write_table(pa.table(BEFORE), tmp_path / "before.parquet")
    kinds = [pd.DataFrame(BEFORE), pl.DataFrame(BEFORE), pl.LazyFrame(BEFORE), pa.table(BEFORE)]
    for kind in [*kinds, tmp_path / "before.parquet", str(tmp_path), pa.table(BEFORE).to_pylist()]:
        assert rows_of(dd.compare(kind, AFTER, key="id")) == DIFFERENCES


def test_columns_of_two_types_are_compared_in_one_that_holds_both() -> None:
    before = {"id": pa.array([1, 2], pa.int16()), "n": [1, 2], "at": pa.array([0, 0], pa.int32()).cast(pa.date32())}
    after = {"id": [1.0, 2.0], "n": [1.0, 2.5], "at": pa.array([0, 1], pa.timestamp("us"))}
    found = dd.compare(before, after, key="id")
    assert found.schema.field("id").type == pa.int16() and found.schema.field("n_after").type == pa.float64()
    assert found.schema.field("at_after").type == pa.timestamp("us")
    assert found["_changed"].to_pylist() == [["n", "at"]]
    with raises(SchemaMismatch):
        dd.compare({"id": [1], "n": [1]}, {"id": [1], "n": ["1"]}, "id")


def test_a_column_that_one_side_lacks_is_null_there_and_named() -> None:
    with pytest.warns(UserWarning, match="'tag' is only in the rows after, so it is null before"):
        found = dd.compare({"id": [1, 2]}, {"id": [1, 2], "tag": ["x", None]}, key="id")
    assert rows_of(found) == [(1, "changed", ["tag"], None, "x")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dd.compare({"id": [1, 2]}, {"id": [2], "tag": ["x"]}, "id", ignore=["tag"]).num_rows == 1


REFUSED: dict[str, tuple[Any, Any, Any, type[Exception], str]] = {
    "twice": ({"id": [1, 1]}, {"id": [1]}, "id", DuplicateKeys, "the rows before: 1 keys .*'id': 1.*more columns"),
    "twice after": ({"id": [1]}, {"id": [2, 2]}, "id", DuplicateKeys, "the rows after: .*'id': 2"),
    "no key": ({"id": [1]}, {"id": [1]}, "idd", SchemaMismatch, "before.* names the column 'idd'.*did you mean 'id'"),
    "no key after": ({"city": [1]}, {"cityy": [1]}, "city", SchemaMismatch, "the rows after.*mean 'cityy'"),
    "a clash": (
        {"n": [1], "n_before": [1]},
        {"n_before": [1]},
        "n_before",
        SpecError,
        r"\['n_before'\] occur more than once",
    ),
    "a taken name": (
        {"id": [1], "_change": [1]},
        {"_change": [1]},
        "_change",
        SpecError,
        r"\['_change'\] occur more than once",
    ),
    "times in the key": ({"_time": [1, 1]}, {"_time": [1]}, "_time", DuplicateKeys, r"'_time': 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused(name: str) -> None:
    before, after, key, error, why = REFUSED[name]
    with pytest.raises(error, match=why):
        dd.compare(before, after, key)
    with raises(SchemaMismatch):
        dd.compare({"id": [1], "n": [2]}, {"id": [1]}, "id", ignore=["nn"])


@pytest.mark.parametrize("name", ["_time", "_diff"])
def test_columns_of_updates_are_compared_as_others(name: str, tmp_path: Path) -> None:
    before, after = {"id": [1, 2], name: [1, 5]}, {"id": [1, 2], name: [2, 5]}
    assert rows_of(dd.compare(before, after, key="id")) == [(1, "changed", [name], 1, 2)]
    assert dd.compare(before, after, key="id", ignore=[name]).num_rows == 0
    assert rows_of(dd.compare(before, after, key=name)) == [(1, "removed", None, 1, None), (2, "added", None, None, 1)]
    odd = {f"{name} ": [0, 0]}
    assert rows_of(dd.compare(before | odd, after | odd, key="id")) == [(1, "changed", [name], 1, 2, 0, 0)]
    paths = [tmp_path / "before.jsonl", tmp_path / "after.jsonl"]
    for path, rows in zip(paths, (before, after), strict=True):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in pa.table(rows).to_pylist()))
    done = compare(*map(str, paths), "--key", "id")
    assert json.loads(done.stdout) == dd.compare(before, after, key="id").to_pylist()[0]
    assert compare(*map(str, paths), "--key", "id", "--ignore", name).stdout == ""


def test_a_column_without_values_is_compared() -> None:
    empty = {"id": [1], "note": [None], "tags": [[None]], "at": [{"x": None}]}
    assert dd.compare(empty, empty, key="id").num_rows == 0
    full = {"id": [1], "note": ["x"], "tags": [[1]], "at": [{"x": 1.5}]}
    (row,) = dd.compare(empty, full, key="id").to_pylist()
    assert row["_changed"] == ["note", "tags", "at"] and (row["note_before"], row["note_after"]) == (None, "x")
    assert dd.compare({"id": [None]}, {"id": [None]}, key="id", null_key="keep").num_rows == 0
    found = dd.compare(empty, empty, key="id", types={"note": int})
    assert found.schema.field("note_after").type == pa.int64()
    with raises(SchemaMismatch):
        dd.compare(empty, empty, key="id", types={"notes": int})
    with raises(SchemaMismatch):
        dd.compare(empty, full, key="id", types={"note": int})


# The shell.


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("id,city,amount\n1,Bern,1.5\n2,Basel,2.5\n3,Chur,\n")
    (tmp_path / "b.csv").write_text("id,city,amount\n2,Basel,2.5\n3,Zug,\n4,Bern,7\n")
    (tmp_path / "twice.csv").write_text("id\n1\n1\n")
    return tmp_path


def compare(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["compare", *words], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done


def test_differences_are_json_lines_in_a_pipe_and_a_file_where_one_is_named(files: Path) -> None:
    piped = compare("a.csv", "b.csv", "--key", "id")
    assert [tuple(json.loads(line).values()) for line in piped.stdout.splitlines()] == DIFFERENCES
    assert piped.stderr == "1 added, 1 removed, 1 changed; 3 rows before, 3 after\n"
    compare("a.csv", "b.csv", "-k", "id", "-o", "out.parquet")
    assert rows_of(pq.read_table("out.parquet")) == DIFFERENCES
    compare("a.csv", "b.csv", "-k", "id", "--ignore", "amount", "-o", "out.csv")
    assert (files / "out.csv").read_text().splitlines()[2] == '3,"changed","city","Chur","Zug"'
    compare("a.csv", "b.csv", "-k", "id", "-o", "out.csv", code=1)
    compare("a.csv", "b.csv", "-k", "id", "-o", "out.csv", "--overwrite")
    told = json.loads(compare("a.csv", "b.csv", "-k", "id", "--json").stdout)
    assert told == {"added": 1, "removed": 1, "changed": 1, "before": 3, "after": 3, "output": None}


def test_exit_codes_are_those_of_diff_where_that_is_asked_for(files: Path) -> None:
    compare("a.csv", "a.csv", "--key", "id", "--exit-code")
    compare("a.csv", "b.csv", "--key", "id", "--exit-code", code=1)
    assert "1 keys have more than one row" in compare("a.csv", "twice.csv", "-k", "id", "--exit-code", code=2).stderr
    said = compare("a.csv", "twice.csv", "-k", "id", code=1).stderr
    assert "compare: the rows after, twice.csv: " in said and "in row 2, and in row 3; each row needs" in said


def test_a_key_that_is_null_is_refused_as_replace_does(files: Path) -> None:
    (files / "null.csv").write_text("id;city\n1;Bern\n;Chur\n")
    words = ("null.csv", "null.csv", "-k", "id", "--delimiter", ";")
    said = compare(*words, code=1).stderr
    assert "compare: the rows before, null.csv: the key ['id'] is null in 1 rows, first in row 3; " in said
    assert "choose --null-key drop or --null-key keep" in said
    assert compare(*words, "--null-key", "keep").stdout == ""
    with raises(NullKey):
        dd.compare({"id": [1]}, {"id": pa.array([None], pa.int64())}, "id")


def test_rows_of_files_are_refused_as_those_of_tables(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "ROWS", 2)
    pq.write_table(pa.table({"id": [1, 2, 3, 4, 5], "n": [1, 2, 3, 4, 5]}), "before.parquet")
    for name, ids in {"twice": [1, 2, 3, 4, 1], "new": [1, 9, 2, 8, 9], "null": [1, 2, 3, None, 5]}.items():
        pq.write_table(pa.table({"id": ids, "n": [1, 2, 3, 4, 5]}), f"{name}.parquet")
    for name, rows in {"twice": "in row 1, and in row 5", "new": "in row 2, and in row 5", "null": "in row 4"}.items():
        for before, after, side in (("before", name, "after"), (name, "before", "before")):
            said = compare(f"{before}.parquet", f"{after}.parquet", "-k", "id", code=1).stderr
            assert f"compare: the rows {side}, {name}.parquet: " in said and rows in said
    pq.write_table(pa.table({"id": [6, 5, 4, 2, 1], "n": [6, 5, 0, 2, 1], "tag": ["x"] * 5}), "after.parquet")
    done = compare("before.parquet", "after.parquet", "-k", "id", "--ignore", "tag")
    assert [(row["id"], row["_change"]) for row in map(json.loads, done.stdout.splitlines())] == [
        (3, "removed"),
        (4, "changed"),
        (6, "added"),
    ]
    assert done.stderr == "1 added, 1 removed, 1 changed; 5 rows before, 5 after\n"
    tables = [pq.read_table(f"{name}.parquet") for name in ("before", "after")]
    with pytest.warns(UserWarning, match="'tag' is only in the rows after"):
        from_files = dd.compare("before.parquet", "after.parquet", "id")
    with pytest.warns(UserWarning, match="'tag' is only in the rows after"):
        assert from_files == dd.compare(*tables, "id")
    monkeypatch.setattr(program, "refuse_duplicate_keys", lambda *_: None)
    with pytest.raises(UnreadableInput):
        dd.compare("before.parquet", "twice.parquet", "id")


def test_a_column_that_reads_as_numbers_in_one_file_only_is_text_in_both(files: Path) -> None:
    (files / "c.csv").write_text("id,zip\n1,8001\n2,3000\n")
    (files / "d.csv").write_text("id,zip\n1,8001\n2,03000\n")
    found = json.loads(compare("c.csv", "d.csv", "--key", "id").stdout)
    assert (found["zip_before"], found["zip_after"]) == ("3000", "03000")
    pq.write_table(pa.table({"id": [1, 2], "zip": ["8001", "03000"]}), "e.parquet")
    assert json.loads(compare("c.csv", "e.parquet", "--key", "id").stdout)["id"] == 2
    pq.write_table(pa.table({"id": [1, 2], "zip": [8001, 3000]}), "f.parquet")
    assert "it is int64 before and string after" in compare("f.parquet", "e.parquet", "--key", "id", code=1).stderr
    typed = compare("c.csv", "d.csv", "--key", "id", "--types", "zip=int64")
    assert typed.stdout == ""


def test_columns_of_one_file_are_named_and_several_keys_are_taken(files: Path) -> None:
    (files / "c.csv").write_text("id,city,total\n1,Bern,1.5\n")
    done = compare("a.csv", "c.csv", "--key", "id,city")
    assert "'amount' is only in the rows before, so it is null after" in done.stderr
    assert "'total' is only in the rows after, so it is null before" in done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert compare("a.csv", "c.csv", "--key", "id", "--key", "city").stdout == done.stdout


def test_a_terminal_gets_a_table_with_both_values_in_a_cell(files: Path) -> None:
    code, told = on_a_terminal("compare", "a.csv", "b.csv", "--key", "id")
    assert code == 0
    lines = [line.replace("│", " ").split() for line in told.splitlines()]
    assert ["3", "changed", "Chur", "->", "Zug", "null"] in lines
    assert ["1", "removed", "Bern", "1.5"] in lines and ["4", "added", "Bern", "7.0"] in lines


def test_an_output_that_cannot_be_written_is_refused(files: Path) -> None:
    assert "unknown file type '.xlsx'" in compare("a.csv", "b.csv", "-k", "id", "-o", "x.xlsx", code=1).stderr
    assert "there is no folder" in compare("a.csv", "b.csv", "-k", "id", "-o", "none/x.parquet", code=1).stderr


def test_files_are_read_as_other_verbs_read_them(files: Path) -> None:
    (files / "a.txt").write_bytes("id;city\n1;Zürich\n2;NA\n".encode("latin-1"))
    (files / "b.txt").write_bytes("id;city\n1;Zürich\n2;Bern\n".encode("latin-1"))
    words = ["--key", "id", "--format", "csv", "--delimiter", ";", "--null", "NA", "--encoding", "latin-1"]
    found = json.loads(compare("a.txt", "b.txt", *words).stdout)
    assert (found["id"], found["city_before"], found["city_after"]) == (2, None, "Bern")
    (files / "many").mkdir()
    (files / "many" / "1.csv").write_text("id,city,amount\n2,Basel,2.5\n")
    (files / "many" / "2.csv").write_text("id,city\n3,Zug\n")
    (files / "many" / "3.csv").write_text("amount,id,city\n7,4,Bern\n")
    assert compare("many", "b.csv", "--key", "id").stdout == ""
