"""Test that an error names options and calls in its user's notation: Python's in Python, the shell's on the shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from messages import raises
from test_cli import run

import ddflow as dd
from ddflow.cli.words import ShellSyntax
from ddflow.errors import (
    BadMessage,
    CommandFix,
    DeclareFix,
    ErrorText,
    EvolveFix,
    FileFix,
    Option,
    SchemaMismatch,
    TombstoneFix,
    format_error_text,
)

OPTIONS = {"null_key": "--null-key", "track": "--track", "time": "--time", "scalar": "--scalar", "types": "--types"} | {
    name: f"--{name}" for name in ("delimiter", "decimal", "dates", "thousands")
}
BAD = '{"payload": {"op": "c", "after": {"id": 1}}}\n\nno JSON\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("fix", "shell"),
    [
        ("choose " + Option("null_key", "drop"), "choose --null-key drop"),
        (ErrorText(Option("track", ["a", "b"]), " and ", Option("time")), "--track a,b and --time"),
        (Option("scalar", True) + " has no effect", "--scalar has no effect"),
        (ErrorText(Option("time", "two words")), "--time 'two words'"),
        ("the scope 'time=1', a row's own", "the scope 'time=1', a row's own"),
        (ErrorText(TombstoneFix("op", "D"), ", ", Option("late", "drop")), "dd.tombstone('op', 'D'), late='drop'"),
        ("declare " + DeclareFix({"a": "decimal(9,2)"}), "declare --types 'a=decimal(9,2)'"),
        ("by " + EvolveFix({"a": "int64"}), "by ddflow evolve STATE --types a=int64"),
        (ErrorText(EvolveFix({"a": "int64"}, "in", "my s")), "ddflow evolve 'my s' --input in --types a=int64"),
        (
            ErrorText(EvolveFix({"a": "string"}, state="s", moves=True)),
            "ddflow migrate s NEW LOG... --whole --types a=string",
        ),
        ("give " + FileFix("my a.csv", {"delimiter": ";"}), "give --delimiter ';'"),
        (
            ErrorText(FileFix("a.csv", {"decimal": ",", "dates": ["%d.%m.%Y", "%d.%m.%Y %H:%M"]})),
            "--decimal ',' --dates %d.%m.%Y --dates '%d.%m.%Y %H:%M'",
        ),
        (ErrorText(FileFix("a.csv", {"thousands": " "})), "--thousands ' '"),
        (ErrorText(FileFix("a.csv", {"decimal": ".", "thousands": "'"})), "--decimal . --thousands ''\"'\"''"),
        (
            ErrorText(EvolveFix(state="s", drop_outputs=["a", "b c"])),
            "ddflow evolve s --drop-output a --drop-output 'b c'",
        ),
        (
            ErrorText(EvolveFix(state="s", drop_outputs=["a"], drop_inputs=["b"])),
            "ddflow evolve s --drop-output a --drop-input b",
        ),
        ("go back with " + CommandFix("rollback"), "go back with ddflow rollback"),
    ],
)
def test_words_of_python_become_those_of_the_shell(fix: str, shell: str) -> None:
    assert format_error_text(fix, ShellSyntax(OPTIONS)) == shell


def test_how_text_is_written_is_said_in_the_address_of_a_source() -> None:
    fix = "give " + FileFix("a.csv", {"delimiter": ";", "null": ["NA", "-"]})
    said = format_error_text(fix, ShellSyntax({"from": "--from"}))
    assert said == "give --from 'INPUT=files:PATTERN:delimiter=;:null=NA:null=-'"
    assert format_error_text(fix, ShellSyntax({}, tables=True)) == "give 'NAME=FILE:delimiter=;:null=NA:null=-'"
    assert format_error_text(ErrorText(TombstoneFix("op", "D")), ShellSyntax({}, tables=True)) == ":tombstone=op=D"


def test_the_same_mistake_is_worded_for_who_made_it() -> None:
    Path("a.csv").write_text("id,n\n1,5\n2,x\n")
    Path("null.csv").write_text("id,n\n1,5\n,6\n")
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", {"id": int, "n": int}, dd.Upsert(key="id")))
    with flow.open() as engine:
        with raises(SchemaMismatch):
            engine.step("a.csv")
        with pytest.raises(ValueError, match="first in row 3; fix them, or choose null_key='drop' or"):
            engine.step("null.csv")
    said = run("diff", "a.csv", "--key", "id", "--types", "n=int64", code=1).stderr
    assert said.endswith("column 'n': 'x' is not a valid int64; fix it, or declare another type: --types n=string\n")
    said = run("diff", "null.csv", "--key", "id", code=1).stderr
    assert "first in row 3; fix them, or choose --null-key drop or --null-key keep;" in said
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
        raises(BadMessage),
    ):
        engine.run({"rows": dd.sources.files("*.jsonl", lines=True)})
    words = ["--format", "debezium", "--key", "id", "--types", "id=int64"]
    said = run("diff", "a.jsonl", *words, code=1).stderr
    remedy = "fix the source, or skip bad messages with --on-bad drop, which needs a new state; nothing was ingested\n"
    assert said.endswith(f"a.jsonl: messages for 'input': line 3: it is not valid JSON; {remedy}")
    said = run("diff", "a.jsonl", "b.jsonl", *words, "--skip-bad-files", "-o", "o.csv").stderr
    assert "skipped a.jsonl: " in said
