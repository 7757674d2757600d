"""Test nightly full files on the shell: counts, skipped files, states of flows, encodings."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import unicodedata
import warnings
import zipfile
from pathlib import Path

import pytest
import typer
from messages import raises
from test_cli import refused, run

import ddflow as dd
from ddflow.cli import exit_on_errors
from ddflow.cli.output import WrittenEpochs
from ddflow.errors import SourceChanged


def test_counts_of_full_files_know_who_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("id,city\n1,Bern\n2,Bern\n")
    Path("2.csv").write_text("id,city\n1,Bern\n")
    words = ("count", "1.csv", "2.csv", "--key", "id", "--by", "city", "--net", "-o", "-")
    assert json.loads(run(*words).stdout)["count"] == 2
    full = run(*words, "--full")
    assert json.loads(full.stdout)["count"] == 1
    assert full.stderr.startswith("3 rows of 2 files in 2 epochs: 3 updates, 1 count in ")
    assert "allows 0" in refused(*words, "--full", "--max-absent", "0")
    for given, says in (
        ("--max-absent", "--max-absent works only with full files"),
        ("--scope", "--scope works only with full files"),
    ):
        assert says in run(*words, given, "1", code=2).stderr.replace("\n", " ")
    assert "--order-by works only with events" in run(*words, "--full", "--order-by", "id", code=2).stderr


def test_the_rows_of_a_skipped_file_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("id,city\n1,Bern\n1,Chur\n")
    Path("2.csv").write_text("id,city\n1,Bern\n")
    said = run("replace", "1.csv", "2.csv", "--key", "id", "--skip-bad-files", "-o", "out.parquet").stderr
    assert "1 row of 2.csv in 1 epoch: 1 update to out.parquet" in said
    assert said.startswith("skipped 1.csv: ") and said.split("\n")[0].count("1.csv") == 1


def test_a_state_of_another_flow_is_shown_its_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("id,city\n1,Bern\n")
    flow = dd.Flow()
    flow.output("beds", flow.upserts("beds", {"id": int, "city": str}, dd.Upsert(key="id")))
    with flow.open("state") as engine:
        engine.replace("beds", "1.csv")
    assert "ddflow run FLOW.PY --state state" in refused("replace", "1.csv", "--key", "id", "--state", "state")


def test_a_mark_of_utf_8_wins_over_the_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_bytes("id,city\n1,Zürich\n".encode("cp1252"))
    Path("2.csv").write_bytes("id,city\n1,Zürich\n2,Genève\n".encode("utf-8-sig"))
    out = run("compare", "1.csv", "2.csv", "--key", "id", "--encoding", "cp1252", "--json", "-o", "out.jsonl")
    assert {name: n for name, n in json.loads(out.stdout).items() if name in ("added", "removed", "changed")} == {
        "added": 1,
        "removed": 0,
        "changed": 0,
    }
    assert "Genève" in Path("out.jsonl").read_text()


def test_compare_says_which_columns_are_text_on_one_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("id,since\n1,2026-11-01\n")
    Path("2.csv").write_text("id,since,rate\n1,01/11/2026,7\n")
    said = run("compare", "1.csv", "2.csv", "--key", "id", "-o", "-").stderr
    assert (
        "'since' is date32[day] before and string after (because of '01/11/2026' in 2.csv, row 2), so its values are "
        "compared as text" in said
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run("compare", "2.csv", "1.csv", "--key", "id", "-o", "-")
    assert not found


def test_a_marked_file_of_semicolons_is_asked_for_its_delimiter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("id;city\n1;Bern, BE\n", encoding="utf-8-sig")
    assert "--delimiter ';'" in refused("replace", "1.csv", "--key", "id")


def test_standard_input_without_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("7,Bern\n")
    assert "its first row is read as the header" in refused("replace", "1.csv", "--key", "id")


def test_commas_between_values_of_an_output_are_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("id,city,ward\n1,Bern,IPS\n")
    run("diff", "1.csv", "--key", "id", "--state", "s", "-o", "o.parquet")
    assert "a separate argument" in run("why", "s", "output", "city=Bern,ward=IPS").stderr
    assert run("why", "s", "output", "city=Bern", "ward=IPS").stderr == ""


def test_an_interrupted_run_says_what_is_committed(capsys: pytest.CaptureFixture[str]) -> None:
    class Engine:
        epoch = 3

    with pytest.raises(typer.Exit) as code, exit_on_errors(False), WrittenEpochs(Engine.epoch).explain_stop(Engine):
        Engine.epoch = 5
        raise KeyboardInterrupt
    assert code.value.exit_code == 130
    assert capsys.readouterr().err.startswith(
        "ddflow: interrupted; epochs 4 to 5 are committed: to write their rows again "
    )
    with pytest.raises(SystemExit) as end, exit_on_errors(False), WrittenEpochs(Engine.epoch).explain_stop(Engine):
        Engine.epoch = 6
        raise SystemExit(143)
    assert end.value.code == 143
    assert capsys.readouterr().err.startswith("ddflow: terminated; epoch 6 is committed: to write their rows again ")


def test_files_that_a_state_has_taken_already_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for day in (1, 2, 3):
        Path(f"{day}.csv").write_text(f"id,n\n1,{day}\n")
    days, words = ("1.csv", "2.csv", "3.csv"), ("--key", "id", "--state", "s", "--overwrite", "-o", "o.csv")
    says = "1.csv, now epoch 4, has the same rows as epoch 1; if you did not intend this, go back at once (ddflow "
    assert "again" not in run("replace", "1.csv", *days, *words).stderr  # the second 1.csv changes nothing
    assert says.replace("4", "5") in run("replace", *days, *words).stderr
    assert "again" not in run("replace", *days, *words, "--epoch", "2").stderr
    sums = [*words[:3], "t", *words[4:], "--merge", "n=sum"]
    assert "again" not in run("diff", *days, *sums).stderr
    assert run("diff", *days, *sums).stderr.count(says) == 1


def test_rows_of_committed_epochs_are_kept_where_a_run_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for day in range(1, 13):
        Path(f"{day:02}.csv").write_text(f"id,n\n{day},{day}\n")
    Path("11.csv").write_text("id,n\n1,1\n1,2\n")
    words = ("--key", "id", "--state", "s", "-o")
    said = run("replace", *(f"{day:02}.csv" for day in range(1, 13)), *words, "o.jsonl", code=1).stderr
    says = "epochs 1 to 10 are committed, the rows of epochs 1 to 10 are in epochs-1-10.o.jsonl: continue with 11.csv "
    assert says + "and 1 more file, --epoch 11, into another file" in said and not Path("o.jsonl").exists()
    Path("11.csv").write_text("id,n\n11,11\n")
    run("replace", "11.csv", "12.csv", *words, "rest.jsonl", "--epoch", "11")
    run("replace", *(f"{day:02}.csv" for day in range(1, 13)), "--key", "id", "-o", "all.jsonl")
    pieces = [Path(name).read_text() for name in ("epochs-1-10.o.jsonl", "rest.jsonl", "all.jsonl")]
    assert pieces[0] + pieces[1] == pieces[2]
    assert not list(tmp_path.glob(".*.part"))


def test_full_files_that_are_counted_as_upserts_are_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for day in (1, 2, 3):
        Path(f"{day}.csv").write_text("id,city\n" + "".join(f"{i},Bern\n" for i in range(day, 50 + day)))
    days = ("1.csv", "2.csv", "3.csv", "--key", "id")
    says = "2 keys are not in the last file: if each file holds all rows, so that these keys are deleted, "
    assert says + "add --full" in run("count", *days, "--net", "-o", "-").stderr
    assert says + "use ddflow replace" in run("diff", *days, "-o", "-").stderr
    Path("2.csv").write_text("id,city\n" + "".join(f"{i},Bern\n" for i in range(80, 120)))
    for words in (("diff", *days), ("replace", *days), ("diff", "1.csv", "3.csv", "--key", "id", "--delete", "id = 1")):
        assert "not in the last" not in run(*words, "-o", "-").stderr


def test_numbers_in_names_that_sort_as_text_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("o").mkdir()
    for day in (1, 2, 10):
        Path(f"o/{day}. März.csv").write_text(f"id,n\n1,{day}\n")
    says = "o/10. März.csv is read before 2. März.csv, because names sort as text: pad the numbers in them with "
    for given in ("o", "o/*.csv"):
        with pytest.warns(UserWarning, match=r"read before 2. März.csv.*\(02. März.csv\)") as found:
            run("diff", given, "--key", "id", "-o", "-")
        assert [str(each.message).startswith(says) for each in found] == [True]
    flow = dd.Flow()
    flow.output("o", flow.upserts("o", {"id": int, "n": int}, dd.Upsert(key="id")))
    with flow.open("s") as engine, pytest.warns(UserWarning, match="is read before 2. März.csv"):
        engine.run({"o": dd.sources.files("o/*.csv")})
    for given in (("o/1. März.csv", "o/10. März.csv"), ("o/2. März.csv", "o/10. März.csv", "o/1. März.csv")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run("diff", *given, "--key", "id", "-o", "-")


def test_a_name_before_equals_that_is_nearly_the_key_is_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("meter,city\nA,Bern\nmeters=A,Chur\n")
    run("diff", "1.csv", "--key", "meter", "--state", "s", "-o", "-")
    assert (
        "there is no key column 'meters'; did you mean 'meter'? the columns are ['meter']; if this text is the value, "
        "write meter=meters=A" in refused("why", "s", "meters=A")
    )
    assert "there is no key column 'city'" in refused("why", "s", "city=Bern")
    assert "Chur" in run("why", "s", "meter=meters=A").stdout
    assert "'x=A' is read as a value of the key 'meter'" in run("why", "s", "x=A").stderr


def test_a_file_of_utf_16_is_known_by_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_bytes("id,city\n1,Bern\n2,Chur\n".encode("utf-16"))
    said = refused("replace", "1.csv", "--key", "id")
    assert "1.csv: it begins with the byte order mark of UTF-16; pass --encoding utf-16" in said
    assert "2 rows" in run("replace", "1.csv", "--key", "id", "--encoding", "utf-16", "-o", "-").stderr


def test_a_file_that_is_no_plain_table_is_named_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "id;city\n1;Bern\n2;Zürich\n"
    with zipfile.ZipFile("zip.csv", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", rows * 99)
    Path("gzip.csv").write_bytes(gzip.compress(rows.encode()))
    Path("hex.csv").write_bytes(b"id\n\x81\n")
    Path("semi.csv").write_text(f"sep=;\n{rows}")
    Path("comma.csv").write_text("sep=,\nid,city\n1,Bern\n")
    Path("title.csv").write_text("Cities of March\nid,city\n1,Bern\n")
    Path("wide.csv").write_text("Cities;;\nid;city;n\n1;Bern;2\n")
    Path("plain.txt").write_text("id,city\n1,Bern\n")

    def said(name: str, *how: str) -> str:
        return refused("replace", name, "--key", "id", *how)

    for encoding in ("utf-8", "cp1252", "latin-1"):
        assert "zip.csv: it is a zip archive, perhaps an Excel workbook; unpack it" in said(
            "zip.csv", "--encoding", encoding
        )
        assert "gzip.csv: it is compressed with gzip; add .gz to its name" in said("gzip.csv", "--encoding", encoding)
    assert "it is not CP1252 (" in said("hex.csv", "--encoding", "cp1252")
    assert "pass its encoding, or write" in said("hex.csv", "--encoding", "cp1252")
    excel = "its first line is 'sep=;', which only Excel reads; delete that line"
    assert f"{excel}, and pass --delimiter ';'" in said("semi.csv")
    assert said("semi.csv", "--delimiter", ";").strip().endswith(excel)
    assert "'sep=,', which only Excel reads; delete that line" in said("comma.csv")
    assert "if the first line, 'Cities of March', is a title, delete it" in said("title.csv")
    assert "if its first line is a title, delete the line" in said("wide.csv", "--delimiter", ";")
    assert "text also with .gz or .zst after it; or pass its format, as in --format csv" in said("plain.txt")
    run("replace", "plain.txt", "--key", "id", "--format", "csv", "-o", "out.csv")
    assert "--format" not in refused("replace", "out.csv", "--key", "id", "-o", "out.xls")


def test_a_missing_file_to_compare_with_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("id;city\n1;Bern\n")
    assert "2.csv: there is no such file or folder" in refused("compare", "1.csv", "2.csv", "--key", "id")


def test_a_name_that_is_composed_otherwise_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("Zähler,city\n1,Bern\n")
    said = refused("replace", "1.csv", "--key", unicodedata.normalize("NFD", "Zähler"))
    assert "'Zähler' has these letters in another Unicode form (unicodedata.normalize); copy it from" in said


def test_a_query_that_selects_nothing_is_refused_in_words_of_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("id,city\n1,Bern\n")
    said = refused("sql", "select from z", "z=1.csv:key=id")
    assert "SELECT names no column at line 1, column 13; name at least one column, or *" in said


def test_a_read_file_whose_time_alone_differs_has_a_way_back(tmp_path: Path) -> None:
    path = tmp_path / "in" / "1.csv"
    path.parent.mkdir()
    path.write_text("id,city\n1,Bern\n")
    flow = dd.Flow()
    flow.output("cities", flow.upserts("city", {"id": int, "city": str}, dd.Upsert(key="id")))
    source = {"city": dd.sources.files(str(path.parent / "*.csv"))}
    with flow.open(tmp_path / "state") as engine:
        engine.run(source)
        os.utime(path)
        with raises(SourceChanged) as error:
            engine.run(source)
        subprocess.run(shlex.split(str(error.value).partition("differs: ")[2]), check=True)
        engine.run(source)
