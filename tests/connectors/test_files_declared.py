"""Test declared numbers in text files: the same rule in Python and on the shell."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.columns.casts import format_type

TAKEN: list[tuple[str, pa.DataType, Any]] = [
    ("007", pa.int64(), 7),
    ("+7", pa.int64(), 7),
    (" 7", pa.int64(), 7),
    ("-0", pa.int64(), 0),
    ("1.5000", pa.decimal128(5, 2), Decimal("1.50")),
    ("15e-1", pa.decimal128(5, 2), Decimal("1.50")),
    ("007", pa.decimal128(5, 2), Decimal("7.00")),
    ("1000000000.00000001", pa.decimal128(20, 8), Decimal("1000000000.00000001")),
    ("2.2250738585072014e-308", pa.float64(), 2.2250738585072014e-308),
    ("1e-310", pa.float64(), 1e-310),
    ("5e-324", pa.float64(), 5e-324),
    ("0.30000000000000004", pa.float64(), 0.1 + 0.2),
    ("1e308", pa.float64(), 1e308),
]
REFUSED: list[tuple[str, pa.DataType]] = [
    ("0x10", pa.int64()),
    ("1_000", pa.int64()),
    ("1.5", pa.int64()),
    ("9223372036854775808", pa.int64()),
    ("0x10", pa.float64()),
    ("1e400", pa.float64()),
    ("1e300", pa.float32()),
    ("1.505", pa.decimal128(5, 2)),
    ("-4", pa.decimal128(38, 38)),
    ("1e-400", pa.decimal128(5, 2)),
    ("1e300", pa.decimal128(5, 2)),
    ("32570277.00491839396e-400", pa.decimal128(5, 2)),
]


def flow_of(columns: Any) -> dd.Flow:
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", columns, dd.Upsert(key="id")))
    return flow


def read(path: Path, kind: pa.DataType) -> Any:
    with flow_of({"id": pa.int64(), "v": kind}).open() as engine:
        engine.step({"t": str(path)})
        return engine.read("t")["v"][0].as_py()


def run(path: Path, kind: pa.DataType) -> Any:
    """The same of a source that is followed."""
    with flow_of({"id": pa.int64(), "v": kind}).open() as engine:
        engine.run({"t": dd.sources.files(path)})
        return engine.read("t")["v"][0].as_py()


def run_on_the_shell(folder: Path, path: Path, kind: pa.DataType) -> Any:
    """The same with ``ddflow run``: the result, which says why where nothing was read."""
    code = "import ddflow as dd\nflow = dd.Flow()\n"
    code += f"rows = flow.upserts('t', {{'id': 'int64', 'v': {format_type(kind)!r}}}, dd.Upsert(key='id'))\n"
    (folder / "flow.py").write_text(f"{code}flow.output('t', rows)\n")
    state = str(folder / f"state-{path.name}")
    done = CliRunner().invoke(app, ["run", f"{folder}/flow.py", "--state", state, "--from", f"t=files:{path}"])
    return done.output if done.exit_code else dd.read(state, "t")["v"][0].as_py()


def written(folder: Path, text: str) -> list[Path]:
    """The files that have a text for ``v``: CSV, JSON lines in quotes, and without where it is JSON."""
    paths = {"a.csv": f"id,v\n1,{text}\n", "a.jsonl": f'{{"id": 1, "v": "{text}"}}\n'}
    try:
        json.loads(text)
        paths["b.jsonl"] = f'{{"id": 1, "v": {text}}}\n'
    except ValueError:
        pass
    for name, content in paths.items():
        (folder / name).write_text(content)
    return [folder / name for name in paths]


@pytest.mark.parametrize(("text", "kind", "value"), TAKEN, ids=str)
def test_a_declared_number_is_converted(text: str, kind: pa.DataType, value: Any, tmp_path: Path) -> None:
    for path in written(tmp_path, text):
        assert read(path, kind) == run(path, kind) == run_on_the_shell(tmp_path, path, kind) == value
        given = pa.table({"id": [1], "v": pa.array([value], kind)})
        assert dd.compare(given, str(path), key="id", types={"v": kind}).num_rows == 0
        assert dd.merge_on_read([str(path)], dd.Upsert(key="id"), schema=given.schema).to_pylist() == given.to_pylist()
        types = f"v={format_type(kind)}"
        done = CliRunner().invoke(app, ["diff", str(path), "--key", "id", "--types", types])
        shown = json.loads(done.stdout.splitlines()[0])["v"]
        assert type(value)(shown) == value


@pytest.mark.parametrize(("text", "kind"), REFUSED, ids=str)
def test_a_text_that_is_no_number_of_the_declared_type_is_refused(text: str, kind: pa.DataType, tmp_path: Path) -> None:
    for path in written(tmp_path, text):
        for reader in (read, run):
            with raises(dd.errors.SchemaMismatch):
                reader(path, kind)
        assert "column 'v'" in run_on_the_shell(tmp_path, path, kind)
        given = pa.table({"id": [1], "v": pa.array([None], kind)})
        with raises(dd.errors.SchemaMismatch):
            dd.compare(given, str(path), key="id", types={"v": kind})
        done = CliRunner().invoke(app, ["diff", str(path), "--key", "id", "--types", f"v={format_type(kind)}"])
        assert done.exit_code == 1 and "'v'" in done.output


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1000000000.00000001", pa.decimal128(20, 8), Decimal("1000000000.00000001")),
        ("-4", pa.decimal128(38, 38), None),
        ('"-4"', pa.decimal128(38, 38), None),
        ("15e-1", pa.decimal128(5, 2), Decimal("1.5")),
        ("1e300", pa.float32(), None),
        (f"{'9' * 60}", pa.decimal128(38, 0), None),
        (f"{'9' * 38}e9", pa.decimal128(38, 0), None),
    ],
)
def test_numbers_within_lists_of_json_lines(text: str, kind: pa.DataType, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"id": 1, "v": [1, {text}]}}\n'.replace("[1, ", "[0, "))
    if value is None:
        with raises(dd.errors.SchemaMismatch):
            read(path, pa.list_(kind))
    else:
        assert read(path, pa.list_(kind)) == [0, value]


def test_a_guessed_type_converts_nothing(tmp_path: Path) -> None:
    """As ruled: what was guessed takes only what is written as it was guessed; small floats are written so."""
    for text, kind in (
        ("5e-324", "double"),
        ("1e-310", "double"),
        ("2.2250738585072014e-308", "string"),
        ("007", "string"),
    ):
        (tmp_path / "a.csv").write_text(f"id,v\n1,{text}\n")
        done = CliRunner().invoke(app, ["diff", str(tmp_path / "a.csv"), "--key", "id"])
        value = json.loads(done.stdout.splitlines()[0])["v"]
        assert isinstance(value, str if kind == "string" else float)


def test_a_run_converts_nothing_to_a_column_that_it_took_in(tmp_path: Path) -> None:
    """Its type is a guess until the flow declares the column, also in the next run, and for the files of a step."""
    state, declared = str(tmp_path / "state"), {"id": pa.int64(), "n": pa.int64()}
    source = dd.sources.files(tmp_path / "*.csv")
    late = tmp_path / "3.csv"

    def held(engine: dd.Engine) -> list[tuple[Any, ...]]:
        return sorted((row["id"], row["n"], row["v"]) for row in engine.read("t").to_pylist())

    with flow_of(declared).open(state) as engine:
        (tmp_path / "1.csv").write_text("id,n\n1,007\n")
        engine.run({"t": source})
        (tmp_path / "2.csv").write_text("id,n,v\n2,+8,5\n")
        engine.run({"t": source})
        assert held(engine) == [(1, 7, None), (2, 8, 5)]
        late.write_text("id,n,v\n3,009,009\n")
        for call in (lambda: engine.run({"t": source}), lambda: engine.step({"t": str(late)})):
            with raises(dd.errors.SchemaMismatch):
                call()
    with flow_of(declared).open(state) as engine, pytest.raises(dd.errors.SchemaMismatch) as caught:
        engine.run({"t": source})
    assert "declaring {'v': 'int64'} converts it" in caught.value.fix
    with flow_of({**declared, "v": pa.int64()}).open(state) as engine:
        engine.run({"t": source})
        assert held(engine) == [(1, 7, None), (2, 8, 5), (3, 9, 9)]


def test_a_state_on_the_shell_converts_what_is_declared_there(tmp_path: Path) -> None:
    """A column of a state may have been guessed, so ``--types`` is given again where numbers are to be converted."""
    for name, text in (("1", "7"), ("2", "007")):
        (tmp_path / f"{name}.csv").write_text(f"id,v\n{name},{text}\n")
    words = ["diff", "--key", "id", "--state", str(tmp_path / "state")]
    assert CliRunner().invoke(app, [*words, str(tmp_path / "1.csv")]).exit_code == 0
    refused = CliRunner().invoke(app, [*words, str(tmp_path / "2.csv")], env={"COLUMNS": "300"})
    assert refused.exit_code == 1 and "'v': '007' does not fit the guessed type int64" in refused.output
    done = CliRunner().invoke(app, [*words, str(tmp_path / "2.csv"), "--types", "v=int64"])
    assert done.exit_code == 0 and json.loads(done.stdout.splitlines()[0])["v"] == 7


def test_a_point_under_a_decimal_comma_names_the_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id;v\n1;0.552\n")
    for kind in (pa.float64(), pa.decimal128(5, 3)):
        flow = dd.Flow()
        flow.output("t", flow.upserts("t", {"id": pa.int64(), "v": kind}, dd.Upsert(key="id")))
        with flow.open() as engine, pytest.raises(dd.errors.SchemaMismatch) as caught:
            engine.step({"t": dd.FilePath(str(path), delimiter=";", decimal=",")})
        assert f"pass dd.FilePath({str(path)!r}, delimiter=';', decimal='.')" in caught.value.fix
    words = ["--delimiter", ";", "--decimal", ",", "--types", "v=double"]
    done = CliRunner().invoke(app, ["diff", str(path), "--key", "id", *words], env={"COLUMNS": "300"})
    assert done.exit_code == 1 and "--decimal ." in done.output
