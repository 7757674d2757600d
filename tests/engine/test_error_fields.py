"""Test the fields of errors: subject and fix as data, which Python and the shell format differently."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.cli.words import ShellSyntax
from ddflow.errors import CommandFix, ErrorText, EvolveFix, Option, Row, SpecError, WidenFix, format_error_text
from ddflow.errors.base import replace_error_texts, set_error_row_names


def flow(name: str = "rows", **spec: Any) -> dd.Flow:
    made = dd.Flow()
    columns = {"id": int, "n": pa.int32(), "at": int}
    made.output("out", made.upserts(name, columns, dd.Upsert(key="id", **spec)))
    return made


def test_a_null_key_is_of_an_input_a_row_and_a_column() -> None:
    rows = {"id": [1, None], "n": [1, 2], "at": [1, 1]}
    with flow().open() as engine, raises(dd.errors.NullKey, input="rows", row=1, column="id", file="") as caught:
        engine.step({"rows": rows})
    assert caught.value.fixes == (Option("null_key", "drop"), Option("null_key", "keep"))


def test_a_row_of_a_file_has_the_name_that_the_file_gives_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,n,at\n1,1,1\n,2,1\n")
    with flow().open() as engine, raises(dd.errors.NullKey, file=str(path), row=1) as caught:
        engine.step({"rows": str(path)})
    assert "first in row 3;" in str(caught.value)  # the header is row 1


def test_a_value_that_does_not_fit_says_how_the_column_is_widened(tmp_path: Path) -> None:
    with flow().open(tmp_path / "state") as engine, raises(dd.errors.SchemaMismatch, column="n", row=0) as caught:
        engine.step({"rows": pa.table({"id": [1], "n": pa.array([2**40]), "at": [1]})})
    (fix,) = caught.value.fixes
    assert fix == WidenFix({"n": "int64"}, "rows", declared=True, reads=True)


def test_a_message_is_named_by_its_offset() -> None:
    made = dd.Flow()
    format = dd.formats.plain_json()
    made.output("out", made.upserts("rows", {"id": int}, dd.Upsert(key="id"), format=format))
    messages = pa.table({"value": ['{"id": 1}', "{"], "offset": [7, 8], "partition": [3, 3]})
    with (
        made.open() as engine,
        raises(dd.errors.BadMessage, input="rows", offset="offset 8 of partition 3", row=None) as caught,
    ):
        engine.step({"rows": messages})
    assert caught.value.fixes == (Option("on_bad", "drop"),)


def test_another_plan_is_fixed_by_calls_as_data(tmp_path: Path) -> None:
    def two(*names: str) -> dd.Flow:
        made = dd.Flow()
        for name in names:
            made.output(name, made.upserts(name, {"id": int}, dd.Upsert(key="id")))
        return made

    with two("a", "b").open(tmp_path / "state") as engine:
        engine.step({"a": {"id": [1]}})
    with raises(dd.errors.PlanChanged) as caught:
        two("a").open(tmp_path / "state")
    state = str(tmp_path / "state")
    assert caught.value.fixes == (EvolveFix(state=state, drop_outputs=["b"], drop_inputs=["b"]), CommandFix("migrate"))
    shell = format_error_text(caught.value.message, ShellSyntax({}))
    assert f"ddflow evolve {state} --drop-output b --drop-input b;" in shell and "ddflow migrate" in shell


def test_an_error_keeps_its_data_on_its_way() -> None:
    error = SpecError("rows for 'a'", "null in " + Row(3), "choose " + Option("tie", "last"), column="c", input="a")
    again = copy.deepcopy(error)
    assert (str(again), again.fixes, again.column, again.row) == (str(error), error.fixes, "c", 3)
    changed = set_error_row_names(
        replace_error_texts(again, found=again.found + ", at time 7"), "line {}".format, "a.csv"
    )
    assert str(changed) == "rows for 'a': null in line 3, at time 7; choose tie='last'"
    assert changed.args == (changed.asked, changed.found, changed.fix) and changed.file == "a.csv"


@pytest.mark.parametrize("words", [None, ShellSyntax({"password": "--password", "url": "--url"})])
def test_no_option_of_an_error_holds_a_secret(words: Any) -> None:
    fix = ErrorText("give ", Option("password", "hunter2"), " or ", Option("url", "postgres://me:hunter2@db/shop"))
    error = SpecError("connect", "no", fix)
    assert (
        "hunter2" not in f"{error} {error!r} {error.fixes!r} {format_error_text(error.message, words) if words else ''}"
    )
