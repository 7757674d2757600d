"""Test ``ddflow evolve`` and logs that are older than a change of columns, for columns that outgrow their type."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import raises
from test_cli import run

import ddflow as dd
from ddflow.cli.words import ShellSyntax
from ddflow.errors import PlanChanged, format_error_text

DAYS = {
    "1.csv": "id,n,day\n1,5,2024-01-01\n2,6,2024-01-02\n",
    "2.csv": "id,city,n,day\n3,Bern,7,2024-01-03\n1,Basel,5,2024-01-01\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, text in DAYS.items():
        (tmp_path / name).write_text(text)
    for name in DAYS:
        run("diff", name, "--key", "id", "--types", "n=int32,day=date", "--state", "state", "-o", f"{name}.out.csv")
    return tmp_path


def test_a_state_that_grew_a_column_is_checked_against_its_own_log() -> None:
    assert "agrees with its log: 3 rows, 4 events" in run("verify", "state", *DAYS).output
    told = run("why", "state", "1", *DAYS).output
    assert "city=null" in told and "city='Basel'" in told


@pytest.mark.parametrize("kind", ["int64", "double", "decimal(12,2)", "string"])
def test_a_log_of_narrower_types_and_fewer_columns_is_one_still(kind: str) -> None:
    said = run("evolve", "state", "--types", f"n={kind},day=timestamp", "--types", "note=string").output
    assert "note of input is string (new)" in said
    assert "state: 3 rows and 0 waiting events rewritten (epoch 2)" in said
    assert "agrees with its log" in run("verify", "state", *DAYS).output
    pq.write_table(
        pa.table({"id": [1, 2], "n": pa.array([5, 6], pa.int8()), "day": pa.array([19723, 19724], pa.int32())}).cast(
            pa.schema({"id": pa.int64(), "n": pa.int8(), "day": pa.date32()})
        ),
        "1.parquet",
    )
    assert "agrees with its log" in run("verify", "state", "1.parquet", "2.csv").output
    assert "its 2 events in the log" in run("why", "state", "1", "1.parquet", "2.csv").output
    assert dd.fsck("state").ok


def test_what_was_done_is_said_as_json_and_twice_is_nothing() -> None:
    told = json.loads(run("evolve", "state", "--types", "n=double", "--json").output)
    assert told["columns"] == {"input": {"n": ["int32", "double"]}} and told["versions"] == 3
    assert run("evolve", "state", "--types", "n=double").output == "state already has these columns (epoch 2)\n"


def test_what_cannot_be_is_refused_and_named() -> None:
    before = sorted(Path("state").rglob("*"))
    for types, found in (
        ("id=string", "column 'id' of input 'input' is string, but was int64; it decides between events (key)"),
        ("n=int8", "it is int32, which cannot be widened to int8"),
        ("n=what", "type 'what': there is no such type"),
    ):
        assert found in run("evolve", "state", "--types", types, code=1).output
    assert "--types" in run("evolve", "state", code=2).output
    found = run("evolve", "state", "--types", "n=double", "--input", "other", code=1).output
    assert "there is no input 'other'" in found
    assert sorted(Path("state").rglob("*")) == before


def test_a_new_column_that_may_be_misspelled_is_refused_and_one_of_a_flow_of_messages_is_named() -> None:
    flow, wide = dd.Flow(), dd.Flow()
    for each, more in ((flow, {}), (wide, {"weight": float})):
        for name in ("a", "b"):
            columns = {"id": int, "weight_kg": float, **(more if name == "b" else {})}
            each.output(
                name, each.upserts(name, columns, dd.Upsert(key="id"), format=dd.formats.plain_json(on_bad="drop"))
            )
    with flow.open("two") as engine:
        engine.step({"b": {"value": ['{"id": 1, "weight_kg": 2.5}']}})
    shown = run("inspect", "two").output
    assert "weight_kg double, _position int64" in shown and "_bad" not in shown
    with raises(dd.errors.SpecError):
        dd.evolve("two", {"b": {"weight": "double"}})
    found = run("evolve", "two", "--types", "weight=double", "--input", "b", code=1).output
    assert "did you mean 'weight_kg'?" in found and "declare it in the flow that opens the state" in found
    with pytest.warns(UserWarning, match=r"'weight' of input 'b' is new in this state, and permanent"):
        wide.open("two").close()
    assert dd.evolve("two", {"b": {"note": "string"}}).columns == {"b": {"note": (None, "string")}}


def test_a_wider_type_is_refused_with_a_command_that_names_its_input() -> None:
    def two(kind: str) -> dd.Flow:
        flow = dd.Flow()
        for name, n in (("a", "int64"), ("b c", kind)):
            flow.output(name, flow.upserts(name, {"id": int, "n": n}, dd.Upsert(key="id")))
        return flow

    with two("int64").open("of two") as engine:
        engine.step({"b c": {"id": [1], "n": [2]}})
    with raises(PlanChanged) as error:
        two("double").open("of two")
    assert "of two' --input 'b c' --types n=double" in format_error_text(error.value.message, ShellSyntax({}))
    assert "n of b c is double" in run("evolve", "of two", "--input", "b c", "--types", "n=double").output
    two("double").open("of two").close()


def test_a_plan_says_in_its_help_what_a_column_may_become() -> None:
    said = run("evolve", "--help").output
    assert "wider integer, decimal(p,s), double, text" in said and "Keys and the columns that decide" in said


def test_an_output_is_taken_out_and_the_message_said_how() -> None:
    def flow(*outputs: str) -> dd.Flow:
        made = dd.Flow()
        orders = made.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
        cities = made.upserts("cities", {"city": str}, dd.Upsert(key="city"))
        for name in outputs:
            made.output(name, {"orders": orders, "by_city": orders.count("city"), "all": cities.count()}[name])
        return made

    with flow("orders", "by_city", "all").open("two") as engine:
        engine.step({"orders": [{"id": 1, "city": "Bern"}], "cities": [{"city": "Bern"}]})
    with pytest.raises(PlanChanged) as refused:
        flow("orders").open("two")
    command = (
        format_error_text(refused.value.message, ShellSyntax({})).partition("first run ddflow ")[2].partition(";")[0]
    )
    assert command.split()[2:] == ["--drop-output", "by_city", "--drop-output", "all"]
    said = run("evolve", "two", *command.split()[2:]).output
    assert "by_city is no longer an output of two\nall is no longer an output of two\n" in said
    assert "no output reads the input cities now; it stays" in said
    assert "to remove it too: ddflow evolve two --drop-input cities\n" in said
    assert "when it deletes the older versions (epoch 1)" in said
    with flow("orders").open("two") as engine:
        assert engine.step({"orders": [{"id": 2, "city": "Rome"}]})["orders"].num_rows == 1
    with flow("orders", "by_city").open("two") as engine:
        engine.step({"orders": [{"id": 3, "city": "Rome"}]})
    told = json.loads(run("evolve", "two", "--drop-output", "by_city", "--json").output)
    assert (told["outputs"], told["unused"], told["columns"], told["epoch"]) == (["by_city"], [], {}, 3)
    assert told["freed"] > 0
    assert "cities is no longer an input of two\n" in run("evolve", "two", "--drop-input", "cities").output
    refused_by = run("evolve", "two", "--drop-input", "orders", code=1).output
    assert "the outputs ['orders'] depend on it; the state has no other outputs" in refused_by


def test_what_has_no_place_beside_an_output_that_goes_is_refused() -> None:
    assert "or names to remove (--drop-output, --drop-input)" in run("evolve", "state", code=2).output
    assert "(--types), or" in run("evolve", "state", "--types", "n=double", "--drop-output", "input", code=2).output
    assert "pass --drop-input NAME" in run("evolve", "state", "--drop-output", "a", "--input", "input", code=2).output
    assert "did you mean 'output'?" in run("evolve", "state", "--drop-output", "outptu", code=1).output
    assert "it has no other" in run("evolve", "state", "--drop-output", "output", code=1).output
    assert "the state has no other outputs" in run("evolve", "state", "--drop-input", "input", code=1).output
