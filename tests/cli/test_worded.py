"""An error names options and calls as its reader writes them: Python's in Python, the shell's on the shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_cli import run

import ddflow as dd
from ddflow.cli.worded import in_shell
from ddflow.errors import BadMessage, SchemaMismatch

OPTIONS = {"null_key": "--null-key", "track": "--track", "time": "--time", "scalar": "--scalar", "types": "--types"} | {
    name: f"--{name}" for name in ("delimiter", "decimal", "dates", "thousands")
}
BAD = '{"payload": {"op": "c", "after": {"id": 1}}}\n\nno JSON\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("choose null_key='drop'", "choose --null-key drop"),
        ("track=['a', 'b'] and time=", "--track a,b and --time"),
        ("time= soon: no", "--time soon: no"),
        ("scalar=True has no effect", "--scalar has no effect"),
        ("time='two words'", "--time 'two words'"),
        ("the scope 'time=1', a row's own", "the scope 'time=1', a row's own"),
        ("dd.tombstone(time='x'), late='drop'", "dd.tombstone(time='x'), late='drop'"),
        ("declare {'a': 'decimal(9,2)'}", "declare --types 'a=decimal(9,2)'"),
        ("keys {'a': 'x'}", "keys {'a': 'x'}"),
        ("by dd.evolve(STATE, {'a': 'int64'})", "by ddflow evolve STATE --types a=int64"),
        ("dd.evolve('my s', {'in': {'a': 'int64'}})", "ddflow evolve 'my s' --input in --types a=int64"),
        ("give dd.FilePath('my a.csv', delimiter=';')", "give --delimiter ';'"),
        (
            "dd.FilePath('a.csv', decimal=',', dates=['%d.%m.%Y', '%d.%m.%Y %H:%M'])",
            "--decimal ',' --dates %d.%m.%Y --dates '%d.%m.%Y %H:%M'",
        ),
        ("dd.FilePath('a.csv', thousands=' ')", "--thousands ' '"),
        ("dd.FilePath('a.csv', decimal='.', thousands=\"'\")", "--decimal . --thousands ''\"'\"''"),
        ("dd.evolve('my s', drop_outputs=['a', 'b c'])", "ddflow evolve 'my s' --drop-output a --drop-output 'b c'"),
        ("dd.evolve('s', drop_inputs=['a', 'b c'])", "ddflow evolve s --drop-input a --drop-input 'b c'"),
        ("dd.evolve('s', drop_outputs=['a'], drop_inputs=['b'])", "ddflow evolve s --drop-output a --drop-input b"),
    ],
)
def test_words_of_python_become_those_of_the_shell(python: str, shell: str) -> None:
    assert in_shell(python, OPTIONS) == shell


def test_how_text_is_written_is_said_in_the_address_of_a_source() -> None:
    said = in_shell("give dd.FilePath('a.csv', delimiter=';', null=['NA', '-'])", {"from": "--from"})
    assert said == "give --from 'INPUT=files:PATTERN:delimiter=;:null=NA:null=-'"


def test_the_same_mistake_is_worded_for_who_made_it() -> None:
    Path("a.csv").write_text("id,n\n1,5\n2,x\n")
    Path("null.csv").write_text("id,n\n1,5\n,6\n")
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", {"id": int, "n": int}, dd.Upsert(key="id")))
    with flow.open() as engine:
        with pytest.raises(SchemaMismatch, match=r"row 3, column 'n': .* another type: \{'n': 'string'\}$"):
            engine.step("a.csv")
        with pytest.raises(ValueError, match="first in row 3; mend them, or choose null_key='drop' or"):
            engine.step("null.csv")
    said = run("diff", "a.csv", "--key", "id", "--types", "n=int64", code=1).stderr
    assert said.endswith("column 'n': 'x' is no int64; mend it, or declare another type: --types n=string\n")
    said = run("diff", "null.csv", "--key", "id", code=1).stderr
    assert "first in row 3; mend them, or choose --null-key drop or --null-key keep;" in said
    said = run(
        "diff", "null.csv", "a.csv", "--key", "id", "--types", "n=string", "--skip-bad-files", "-o", "o.csv"
    ).stderr
    assert "skipped null.csv: " in said and "--null-key drop" in said


def test_a_message_that_cannot_be_read_is_named_by_its_file_and_line() -> None:
    Path("a.jsonl").write_text(BAD)
    Path("b.jsonl").write_text(BAD[: BAD.index("\n") + 1])
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int}, dd.Upsert(key="id"), format=dd.formats.debezium())
    flow.output("rows", rows)
    with (
        flow.open() as engine,
        pytest.raises(BadMessage, match=r"line 3 of .*/a.jsonl: it is no JSON; .*on_bad="),
    ):
        engine.run({"rows": dd.sources.files("*.jsonl", lines=True)})
    words = ["--format", "debezium", "--key", "id", "--types", "id=int64"]
    said = run("diff", "a.jsonl", *words, code=1).stderr
    remedy = "mend the source, or leave it out with --on-bad drop; nothing was taken in\n"
    assert said.endswith(f"a.jsonl: messages for 'input': line 3: it is no JSON; {remedy}")
    said = run("diff", "a.jsonl", "b.jsonl", *words, "--skip-bad-files", "-o", "o.csv").stderr
    assert "skipped a.jsonl: " in said
