"""Test several patterns of files as one source, each with its own options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from messages import raises
from s3_server import Moto, moto, options
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.errors import SourceChanged, SpecError, UnreadableInput
from ddflow.storage.object_store import Bucket

__all__ = ["moto"]

COLUMNS = {"id": int, "amount": float, "shop": str}


def flow_of() -> dd.Flow:
    """A flow that counts each row as often as it comes."""
    flow = dd.Flow()
    flow.output("t", flow.updates("t", COLUMNS, keep=True))
    return flow


def held(engine: dd.Engine) -> list[tuple[Any, ...]]:
    rows = engine.read("t").to_pylist()
    return sorted(((row["id"], row["amount"], row["shop"], row["_diff"]) for row in rows), key=str)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    """Three shops that write in three ways, in a folder each."""
    for name, text in (
        ("a/1.csv", "id;amount;shop\n1;1,50;n/a\n"),
        ("b/1.tsv", "ID\tamount\tshop\n2\t2.50\tb\n"),
        ("c/1.txt", '{"id": 3, "amount": 3.5, "shop": "c"}\n'),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


def patterns(folder: Path | str) -> list[dd.FilePath]:
    return [
        dd.FilePath(f"{folder}/a/*.csv", delimiter=";", decimal=",", null="n/a"),
        dd.FilePath(f"{folder}/b/*.tsv", rename={"ID": "id"}),
        dd.FilePath(f"{folder}/c/*", format="jsonl"),
    ]


FIRST = [(1, 1.5, None, 1), (2, 2.5, "b", 1), (3, 3.5, "c", 1)]


def test_each_pattern_has_its_options_and_each_row_comes_once(landing: Path, tmp_path: Path) -> None:
    state, source = str(tmp_path / "state"), dd.sources.files(patterns(landing))
    with flow_of().open(state) as engine:
        engine.run({"t": source})
        assert held(engine) == FIRST
    (landing / "b/2.tsv").write_text("ID\tamount\tshop\n4\t4.50\tb\n")
    (landing / "a/0.csv").write_text("id;amount;shop\n5;5,50;a\n")
    with flow_of().open(state) as engine:
        assert engine.run({"t": source}).rows == 2
        assert engine.run({"t": source}).rows == 0
        assert held(engine) == [*FIRST, (4, 4.5, "b", 1), (5, 5.5, "a", 1)]
        assert engine.calls.durable is not None
        done = engine.calls.durable.log.sources["t"].position["done"]
        assert sorted(done) == ["../b/1.tsv", "../b/2.tsv", "../c/1.txt", "0.csv", "1.csv"]


def test_a_pattern_is_added_behind_that_of_a_state(landing: Path, tmp_path: Path) -> None:
    """A state of one pattern goes on, and nothing of it is read again, also when the whole folder has moved."""
    state, (first, *_) = str(tmp_path / "state"), patterns(landing)
    with flow_of().open(state) as engine:
        assert engine.run({"t": dd.sources.files(first)}).rows == 1
    with flow_of().open(state) as engine:
        assert engine.run({"t": dd.sources.files(patterns(landing))}).rows == 2
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in "abc":
        (landing / name).rename(moved / name)
    with flow_of().open(state) as engine:
        assert engine.run({"t": dd.sources.files(patterns(moved))}).rows == 0
        assert held(engine) == FIRST


def test_files_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for folder, name in (("b", "1"), ("a", "2"), ("a", "1"), ("c", "0")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.csv").write_text(f"id,shop\n7,{folder}{name}\n")
    for order in ("abc", "cba", "bca"):
        made = dd.Flow()
        made.output("t", made.upserts("t", {"id": int, "shop": str}, dd.Upsert(key="id")))
        with made.open() as engine:
            opened = dd.sources.files([tmp_path / each for each in order]).open({"t": made.inputs["t"].schema}, None)
            taken = opened.poll(1 << 20)
            assert taken is not None
            assert [batch["shop"][0].as_py() for batch in taken.rows["t"]] == ["a1", "a2", "b1", "c0"]
            engine.run({"t": dd.sources.files([tmp_path / each for each in order])})
            assert engine.read("t")["shop"].to_pylist() == ["c0"]


def test_a_file_of_two_patterns_is_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("id;amount;shop\n1;1,5;x\n")
    (tmp_path / "old.csv").write_text("id,amount,shop\n2,2.5,y\n")
    several = [dd.FilePath(tmp_path / "new*.csv", delimiter=";", decimal=","), tmp_path / "*.csv"]
    with flow_of().open() as engine:
        engine.run({"t": dd.sources.files(several)})
        assert held(engine) == [(1, 1.5, "x", 1), (2, 2.5, "y", 1)]
    with flow_of().open() as engine, raises(dd.errors.DdflowError):
        engine.run({"t": dd.sources.files(several[::-1])})


def test_a_file_that_was_read_in_part_goes_on_with_its_options(landing: Path, tmp_path: Path) -> None:
    state, source = str(tmp_path / "state"), dd.sources.files(patterns(landing))
    rows = "".join(f"{n}\t{n}.5\tb\n" for n in range(10, 200_010))
    (landing / "b/1.tsv").write_text(f"ID\tamount\tshop\n{rows}")
    with flow_of().open(state) as engine:
        engine.run({"t": source}, rows=1000, room="1MB", on_epoch=lambda step: engine.stop())
        assert engine.calls.durable is not None
        at = engine.calls.durable.log.sources["t"].position["at"]
        assert at is not None and at[0] == "../b/1.tsv" and 0 < at[3] < 200_000
    (first, *_) = patterns(landing)
    with flow_of().open(state) as engine:
        with raises(SourceChanged):
            engine.run({"t": dd.sources.files(first)})
        engine.run({"t": source})
        rows_held = held(engine)
        assert len(rows_held) == 200_002 and {row[3] for row in rows_held} == {1}


def test_a_rename_that_names_no_column_names_its_file(landing: Path) -> None:
    wrong = [patterns(landing)[0], dd.FilePath(landing / "b/*.tsv", rename={"Id": "id"})]
    with flow_of().open() as engine, pytest.raises(dd.errors.SchemaMismatch) as caught:
        engine.run({"t": dd.sources.files(wrong)})
    assert "b/1.tsv, rename=: there is no column 'Id' to rename to 'id'; did you mean 'ID'" in str(caught.value)


def test_what_is_no_list_of_patterns(tmp_path: Path) -> None:
    with raises(SpecError):
        dd.sources.files([])
    for two in ([tmp_path, "s3://bucket/a/*"], ["s3://bucket/a/*", "s3://other/a/*"]):
        with raises(SpecError):
            dd.sources.files(two)
    with raises(SpecError):
        dd.sources.files([tmp_path, dd.FilePath("a.csv", delimiter=";")], lines=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/1.csv").write_text("id\n1\n")
    with flow_of().open() as engine, raises(UnreadableInput):
        engine.run({"t": dd.sources.files([tmp_path / "a", tmp_path / "b"])})


def test_full_files_of_several_patterns(tmp_path: Path) -> None:
    (tmp_path / "2026-11-01.csv").write_text("id;amount;shop\n1;1,5;x\n2;2,5;y\n")
    (tmp_path / "2026-11-02.tsv").write_text("id\tamount\tshop\n1\t7.5\tx\n")
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", COLUMNS, dd.Upsert(key="id")))
    source = dd.sources.files(
        [tmp_path / "*.tsv", dd.FilePath(tmp_path / "*.csv", delimiter=";", decimal=",")], full=True
    )
    with flow.open(str(tmp_path / "state")) as engine:
        engine.run({"t": source})
        assert held(engine) == [(1, 7.5, "x", 1)]
        (tmp_path / "2026-10-31.csv").write_text("id;amount;shop\n1;1,5;x\n")
        with raises(SourceChanged):
            engine.run({"t": source})


def test_messages_of_several_patterns(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_text(f'{{"id": 1, "shop": "{name}"}}\n')
    flow = dd.Flow()
    rows = flow.upserts("t", {"id": int, "shop": str}, dd.Upsert(key="id"), format=dd.formats.plain_json())
    flow.output("t", rows)
    with flow.open() as engine:
        done = engine.run({"t": dd.sources.files([tmp_path / "b", tmp_path / "a"], lines=True)})
        assert done.rows == 2 and engine.read("t")["shop"].to_pylist() == ["b"]


def test_on_the_shell(landing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(landing)
    (landing / "flow.py").write_text(
        "import ddflow as dd\nflow = dd.Flow()\n"
        "flow.output('t', flow.updates('t', {'id': int, 'amount': float, 'shop': str}, keep=True))\n"
    )
    words = ["run", "flow.py", "--state", "state"]
    words += ["--from", "t=files:a/*.csv:delimiter=;:decimal=,:null=n/a"]
    words += ["--from", "t=files:b/*.tsv:rename=ID=id", "--from", "t=files:c/*:format=jsonl"]
    for rows in ("3 rows", "nothing new"):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0 and rows in done.output, done.output
    found = sorted((row["id"], row["amount"], row["shop"], row["_diff"]) for row in dd.read("state", "t").to_pylist())
    assert found == FIRST
    for other in ("t=files:b/*.tsv:full", "t=sqlite:a.db#t"):
        refused = CliRunner().invoke(app, [*words, "--from", other], env={"COLUMNS": "300"})
        assert refused.exit_code and "is given twice" in refused.output


@pytest.fixture
def bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    given = {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "hush", "ENDPOINT_URL": moto.url, "ALLOW_HTTP": "true"}
    for name, value in given.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return Bucket(f"s3://{moto.bucket()}", options(moto.url))


def test_objects_of_several_patterns(bucket: Bucket, tmp_path: Path) -> None:
    state, source = str(tmp_path / "state"), dd.sources.files(patterns(f"{bucket.url}/in"))
    bucket.put_object("in/a/1.csv", b"id;amount;shop\n1;1,50;n/a\n")
    bucket.put_object("in/b/1.tsv", b"ID\tamount\tshop\n2\t2.50\tb\n")
    with flow_of().open(state) as engine:
        engine.run({"t": source})
    bucket.put_object("in/c/1.txt", b'{"id": 3, "amount": 3.5, "shop": "c"}\n')
    with flow_of().open(state) as engine:
        assert engine.run({"t": source}).rows == 1
        assert held(engine) == FIRST
