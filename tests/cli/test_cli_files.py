"""Test which irregular files the command line recognises, skips, refuses or holds back."""

from __future__ import annotations

import gzip
import json
import subprocess
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from chance import mid_test
from programs import run_ddflow
from test_cli import folder, read, refused, rows, run

import ddflow as dd
from ddflow.connectors.files import open_output

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def days(folder: Path) -> None:
    """Three full files; the last one lacks three of four places."""
    Path("1.csv").write_text("id,city\n1,Bern\n2,Basel\n3,Chur\n4,Olten\n")
    Path("2.csv").write_text("id,city\n1,Bern\n2,Basel\n3,Chur\n5,Genf\n")
    Path("3.csv").write_text("id,city\n1,Bern\n")
    Path("none.csv").write_text("id,city\n")


REPLACE = ["--key", "id", "-o", "-"]


def test_a_name_in_other_letters_is_recognised() -> None:
    Path("upper.csv").write_text("ID,City\n1,Bern\n")
    said = refused("diff", "upper.csv", "--key", "id")
    lacks = "the column 'id' is missing, but every file must have it"
    assert f"{lacks}; did you mean 'ID'? the columns are ['ID', 'City']" in said


def test_a_wrong_delimiter_is_recognised_and_options_of_text_hold_for_every_verb() -> None:
    Path("a.csv").write_bytes("id;v\n1;Zürich\n2;NA\n".encode("latin-1"))
    said = refused("diff", "a.csv", "--key", "id")
    assert "a.csv: the header is one column, 'id;v'; is the delimiter ';'? pass --delimiter ';'" in said
    Path("b.csv").write_text("id;n\n1;5,50\n")
    assert "b.csv: row 2: Expected 1 columns, got 2: 1;5,50; is the delimiter ';'? pass --delimiter ';' " in refused(
        "diff", "b.csv", "--key", "id"
    )
    text = ["--delimiter", ";", "--null", "NA", "--encoding", "latin-1"]
    assert rows(run("diff", "a.csv", "--key", "id", *text, "-o", "-")) == [(1, "Zürich", 1, 1), (2, None, 1, 1)]
    assert rows(run("count", "a.csv", "--key", "id", *text, "--by", "v", "-o", "-")) == [
        ("Zürich", 1, 1, 1),
        (None, 1, 1, 1),
    ]
    run("replace", "a.csv", "--key", "id", *text, "--state", "s", "-o", "r.csv")
    assert "agrees with its log" in run("verify", "s", "a.csv", *text).stdout
    assert "Zürich" in run("why", "s", "1", "a.csv", *text).stdout
    run("migrate", "s", "t", "a.csv", "--key", "id", *text, "-o", "m.jsonl")
    assert Path("m.jsonl").read_text() == ""
    assert set(dd.read("t", "output")["v"].to_pylist()) == {"Zürich", None}
    Path("c.tsv").write_text("id\tv\n1\tZürich\n2\t\n")
    assert run("compare", "c.tsv", "c.tsv", "--key", "id").stdout == ""
    Path("d.csv").write_bytes("id;v\n1;Zug\n2;NA\n".encode("latin-1"))
    assert json.loads(run("compare", "a.csv", "d.csv", "--key", "id", *text).stdout)["v_after"] == "Zug"
    Path("b").write_bytes(gzip.compress(Path("a.csv").read_bytes()))
    assert len(rows(run("diff", "b", "--key", "id", *text, "--format", "csv.gz", "-o", "-"))) == 2


@mid_test
def test_rows_come_from_standard_input() -> None:
    with subprocess.Popen(["cat", "1.csv"], stdout=subprocess.PIPE) as cat:
        shown = run_ddflow("diff", "-", "--key", "id", "-o", "-", stdin=cat.stdout).stdout
    assert [json.loads(row)["city"] for row in shown.splitlines()] == ["Bern", "Basel", "Chur", "Olten"]
    words = ("diff", "2.csv", "-", "--key", "city", "--time", "id", "--types", "id=bigint", "-o", "-")
    with subprocess.Popen(["gzip", "-c", "1.csv"], stdout=subprocess.PIPE) as zipped:
        shown = run_ddflow(*words, stdin=zipped.stdout).stdout
    assert len(shown.splitlines()) == 5


def test_a_pattern_in_quotes_is_expanded_here() -> None:
    said = run("diff", "[0-9].csv", "--key", "id", "-o", "out.csv").stderr
    assert said.startswith("9 rows of 3 files in 3 epochs: "), said
    assert "9 rows of 3 files in 3 epochs" in run("diff", "?.csv", "--key", "id", "-o", "out2.csv").stderr


def test_a_full_file_without_rows_deletes_everything_only_where_that_is_allowed() -> None:
    Path("nothing.csv").write_text("")
    for name, found in (("none.csv", "it has no rows, so all 4 keys would be deleted; pass --allow-empty"),):
        result = run("replace", "1.csv", name, *REPLACE, code=1)
        assert found in result.stderr
        assert len(result.stdout.splitlines()) == 4  # those of the file before
    assert "nothing.csv: it is empty (0 bytes)" in refused("replace", "1.csv", "nothing.csv", "--key", "id")
    for name in ("none.csv", "nothing.csv"):
        done = run("replace", "1.csv", name, *REPLACE, "--allow-empty")
        assert sum(json.loads(row)["_diff"] for row in done.stdout.splitlines()) == 0
        assert "absent 4" in done.stderr
    run("replace", "1.csv", "--key", "id", "--state", "s", "-o", "a.csv")
    assert "--allow-empty" in run("replace", "none.csv", "--key", "id", "--state", "s", "-o", "b.csv", code=1).stderr
    assert dd.read("s", "output").num_rows == 4
    run("replace", "nothing.csv", "--key", "id", "--state", "s", "--allow-empty", "-o", "c.csv")
    assert dd.read("s", "output").num_rows == 0
    # Of events such a file says nothing.
    assert "4 rows of 2 files in 2 epochs" in run("diff", "1.csv", "none.csv", "--key", "id", "-o", "d.csv").stderr


@pytest.mark.parametrize("most", ["2", "50%", "74.9%", "0", "0%"])
def test_a_full_file_that_lacks_too_many_keys_stops_before_anything_of_it_is_written(most: str) -> None:
    first = ["1.csv"] if most in ("0", "0%") else ["1.csv", "2.csv"]
    result = run("replace", *first, "3.csv", *REPLACE, "--max-absent", most, code=1)
    assert f"lacks 3 of 4 keys, but --max-absent {most} allows" in result.stderr and "3.csv: replace" in result.stderr
    assert result.stdout == run("replace", *first, *REPLACE).stdout
    for number, name in enumerate(first):
        run("replace", name, "--key", "id", "--state", "s", "-o", f"{number}.jsonl")
    said = run("replace", "3.csv", "--key", "id", "--state", "s", "-o", "3.jsonl", "--max-absent", most, code=1).stderr
    assert "nothing was ingested" in said
    assert not Path("3.jsonl").exists()
    assert dd.read("s", "output").num_rows == 4
    more = {"2": "3", "0": "3", "0%": "75%"}.get(most, "75%")
    words = ["replace", "3.csv", "--key", "id", "--state", "s", "--epoch", str(len(first) + 1), "--max-absent", more]
    run(*words, "-o", "3.jsonl")
    assert dd.read("s", "output").num_rows == 1
    run(*words, "-o", "again.jsonl")  # what was committed is told again, whatever share it was
    assert Path("again.jsonl").read_text() == Path("3.jsonl").read_text()


def test_of_a_scope_the_share_is_of_the_keys_in_it() -> None:
    places = [(n, "EU" if n < 4 else "US") for n in range(100)]
    Path("all.csv").write_text("id,region\n" + "".join(f"{n},{region}\n" for n, region in places))
    Path("eu.csv").write_text("id,region\n0,EU\n200,EU\n")
    run("replace", "all.csv", "--key", "id", "--state", "s", "-o", "a.csv")
    words = ["replace", "eu.csv", "--key", "id", "--state", "s", "--scope", "region = 'EU'", "-o", "b.csv"]
    assert "it lacks 3 of 4 keys, but --max-absent 74% allows 2" in run(*words, "--max-absent", "74%", code=1).stderr
    run(*words, "--max-absent", "75%")
    for text in ("half", "101%", "-1"):
        assert "that is neither a number of keys nor a share" in run(*words, f"--max-absent={text}", code=1).stderr


BAD = {
    "ragged.csv": "id,at\n1,1\n2\n",
    "late.csv": "id,at\n" + "7,7\n" * 600_000 + "8,x\n",  # several blocks in
    "null.csv": "id,at\n,3\n",
    "empty.csv": "",
    "conflict.csv": "<<<<<<< HEAD\nid,at\n",
    "gone.csv.gz": "no gzip",
}


@mid_test
@pytest.mark.drawn(10)
@pytest.mark.parametrize("mode", [[], ["--time", "at", "--lateness", "0", "--late", "advance"]])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_nothing_of_a_bad_file_or_of_those_after_it_is_written(name: str, state: bool, mode: list[str]) -> None:
    Path("a.csv").write_text("id,at\n1,1\n2,2\n")
    Path("z.csv").write_text("id,at\n3,8\n")
    Path(name).write_text(BAD[name])
    words = ["diff", "--key", "id", "-o", "-", *mode]

    def continued(folder: str) -> list[str]:
        return ["--state", folder] if state else []

    if mode and name == "null.csv":
        return  # the engine's refusal in hold-back mode; see below
    result = run(*words, "a.csv", name, "z.csv", *continued("s"), code=1)
    assert name in result.stderr
    written = [json.loads(line)["id"] for line in result.stdout.splitlines()]
    assert set(written) <= {1, 2}, "of the files before it alone"
    if name in ("late.csv", "null.csv"):
        assert written == ([1, 2] if not mode else [1])  # what no head shows does not stop the files before
    skipping = run(*words, "a.csv", name, "z.csv", "--skip-bad-files", *continued("t"))
    without = run(*words, "a.csv", "z.csv", *continued("u"))
    assert skipping.stdout == without.stdout
    assert skipping.stderr.count(f"skipped {name}") == 1
    assert "in 2 epochs" in skipping.stderr or mode
    assert "; skipped 1 bad file\n" in skipping.stderr
    if state:
        held = [sorted(map(repr, dd.read(each, "output").to_pylist())) for each in ("t", "u")]
        assert held[0] == held[1]


def test_a_refusal_of_rows_in_hold_back_mode_stops_also_under_skip() -> None:
    Path("null.csv").write_text(BAD["null.csv"])
    said = run("diff", "null.csv", "--key", "id", "--time", "at", "--skip-bad-files", "-o", "-", code=1).stderr
    assert "null.csv: rows for 'input': the key ['id'] is null" in said


@mid_test
@pytest.mark.parametrize("mode", [[], ["--time", "at"]])
def test_the_last_file_may_be_the_bad_one_and_all_may_be(mode: list[str]) -> None:
    Path("a.csv").write_text("id,at\n1,1\n")
    Path("late.csv").write_text(BAD["late.csv"])
    words = ["diff", "--key", "id", *mode, "--skip-bad-files", "--json"]
    for state in ([], ["--state", "s"]):
        done = json.loads(run(*words, "a.csv", "late.csv", *state, "--overwrite", "-o", "o.csv").stdout)
        assert (done["inputs"], list(done["skipped"]), done["updates"]) == (["a.csv"], ["late.csv"], 1), state
        assert "row 600,002, column 'at': " in done["skipped"]["late.csv"]
        said = run(*words, "late.csv", *state, "-o", "no.csv", code=1).stderr
        assert "the files: all 1 are bad and were skipped; fix at least one" in said
        assert not Path("no.csv").exists()


@mid_test
def test_the_rows_of_a_file_that_wait_are_not_in_memory_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_output("big.parquet", pa.schema({"id": pa.int64(), "text": pa.string()})) as out:
        for start in range(0, 1_000_000, 100_000):
            ids = range(start, start + 100_000)
            out.write(pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{n:0100}" for n in ids]}))
    from ddflow.cli.input_files import SkippedFiles, read_files_ahead
    from ddflow.connectors.files import open_files

    monkeypatch.setattr("ddflow.cli.input_files.IN_MEMORY", 1 << 20)
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    tracemalloc.start()
    (ready,) = read_files_ahead(open_files(["big.parquet"]), SkippedFiles(False), lambda rows, updates: None)
    for batch in ready.batches:
        most, seen = max(most, pa.total_allocated_bytes() - before), seen + batch.num_rows
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == 1_000_000 and most < 40e6 and python < 40e6, (most, python)  # of 110 MB


def test_a_file_that_lacks_a_column_leaves_it_as_it_was_where_rows_are_merged() -> None:
    """Absent is not null: under the strategy `last`, null overwrites."""
    Path("a.csv").write_text("id,city,n\n1,Bern,5\n2,Basel,6\n")
    Path("b.csv").write_text("id,n\n1,7\n")
    Path("c.csv").write_text("id,city,n\n2,,8\n")
    run("diff", "a.csv", "b.csv", "c.csv", "--key", "id", "--merge", "default=last", "--state", "s", "-o", "o.csv")
    held = {row["id"]: (row["city"], row["n"]) for row in dd.read("s", "output").to_pylist()}
    assert held == {1: ("Bern", 7), 2: (None, 8)}
    run("diff", "a.csv", "b.csv", "--key", "id", "--state", "t", "-o", "p.csv")
    held = {row["id"]: (row["city"], row["n"]) for row in dd.read("t", "output").to_pylist()}
    assert held == {1: (None, 7), 2: ("Basel", 6)}  # without merging it is null


def test_types_name_columns_of_later_runs() -> None:
    words = ["--key", "id", "--types", "zip=string", "--state", "s"]
    said = run("diff", "1.csv", *words, "-o", "a.csv").stderr
    assert "columns: no file has the declared column 'zip': the columns are ['id', 'city']\n" in said
    Path("zip.csv").write_text("id,zip\n1,08001\n")
    run("diff", "zip.csv", *words, "-o", "b.csv")
    assert {row["id"]: row["zip"] for row in dd.read("s", "output").to_pylist()} == {
        1: "08001",
        2: None,
        3: None,
        4: None,
    }


def test_groups_of_digits_are_an_option_of_every_verb() -> None:
    Path("a.csv").write_text("id;n\n1.000;1.250,50\n2;7\n")
    words = ["--delimiter", ";"]
    for more in (["--decimal", ","], ["--thousands", "."]):
        said = run("diff", "a.csv", "--key", "id", *words, "-o", "-").stderr
        assert "(a.csv, row 2): pass --delimiter ';' --decimal ',' --thousands ., or declare" in said
        words += more
    assert rows(run("diff", "a.csv", "--key", "id", *words, "-o", "-")) == [(1000, 1250.5, 1, 1), (2, 7.0, 1, 1)]
    assert rows(run("sql", "select 1 as one, sum(n) as s from t", "t=a.csv:key=id", *words, "-o", "-")) == [(1, 1257.5)]
    Path("b.jsonl").write_text('{"id": 1000, "n": 1250.5}\n{"id": 2, "n": 7.0}\n')
    assert run("compare", "a.csv", "b.jsonl", "--key", "id", *words).stdout == ""
    run("replace", "a.csv", "--key", "id", *words, "--state", "s", "-o", "r.csv")
    assert "agrees with its log" in run("verify", "s", "a.csv", *words).stdout
    assert "1250.5" in run("why", "s", "1000", "a.csv", *words).stdout
    said = refused("diff", "a.csv", "--key", "id", "--thousands", ",", "--decimal", ",")
    assert "--thousands ',': --decimal ',' is the same mark; use different marks: --decimal ',', --thousands ." in said


def test_a_state_has_the_say_about_types_and_no_head_is_read() -> None:
    Path("a.csv").write_text("id,code\n1,A1\n")
    Path("b.csv").write_text("id,code\n1,7\n")  # alone it would be guessed a number
    run("diff", "a.csv", "--key", "id", "--state", "s", "-o", "a.parquet")
    run("diff", "b.csv", "--key", "id", "--state", "s", "-o", "b.parquet")
    assert read("b.parquet")["code"].to_pylist() == ["A1", "7"]


def test_other_forms_of_numbers_and_dates_are_options_of_every_verb() -> None:
    text = "id;n;day\n1;12,50;3.1.2024\n2;7;\n"
    Path("a.csv").write_text(text)
    said = run("diff", "a.csv", "--key", "id", "--delimiter", ";", "-o", "-").stderr
    assert "'n' is text, because of '12,50' (a.csv, row 2): pass --delimiter ';' --decimal ',', or declare" in said
    assert "'day' is text, because of '3.1.2024' (a.csv, row 2): pass --delimiter ';' --dates %d.%m.%Y, or" in said
    words = ["--delimiter", ";", "--decimal", ",", "--dates", "%d.%m.%Y", "--dates", "%d.%m.%Y %H:%M"]
    right = [(1, 12.5, "2024-01-03", 1, 1), (2, 7.0, None, 1, 1)]
    assert rows(run("diff", "a.csv", "--key", "id", *words, "-o", "-")) == right
    query = "select id, n * 2 as n, year(day) as year from t"
    assert sorted(rows(run("sql", query, "t=a.csv:key=id", *words, "-o", "-"))) == [(1, 25.0, 2024), (2, 14.0, None)]
    Path("b.jsonl").write_text('{"id": 1, "n": 12.5, "day": "2024-01-03"}\n{"id": 2, "n": 7.0}\n')
    assert run("compare", "a.csv", "b.jsonl", "--key", "id", *words, "--dates", "iso").stdout == ""
    run("replace", "a.csv", "--key", "id", *words, "--state", "s", "-o", "r.csv")
    assert "agrees with its log" in run("verify", "s", "a.csv", *words).stdout
    assert "12.5" in run("why", "s", "1", "a.csv", *words).stdout
    Path("c.csv").write_text("id;n;day\n1;12,50;31.02.2024\n")
    said = refused("diff", "c.csv", "--key", "id", *words, "--state", "s")
    assert "c.csv, row 2, column 'day': '31.02.2024' does not fit the guessed type date32[day]; fix it" in said
    assert "--dates %d.%m: it has no year; write it as" in refused("diff", "a.csv", "--key", "id", "--dates", "%d.%m")
