"""Test the verbs that prove a state: exit codes, output, and JSON for programs."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from proof_case import files
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.cli.inspect import format_age
from ddflow.connectors.files import open_files

MONDAY = "id,city,at\n1,Bern,1\n2,007,2\n3,Bern,1\n"
TUESDAY = "id,city,at\n1,Chur,5\n2,Bern,1\n3,Bern,9\n"
SCHEMA = {"id": pa.int64(), "city": pa.string(), "at": pa.int64()}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A state of two files in the working directory."""
    monkeypatch.chdir(tmp_path)
    flow = dd.Flow()
    orders = flow.upserts("orders", SCHEMA, dd.Upsert(key="id", order_by="at"))
    flow.output("orders", orders)
    flow.output("../by city", orders.project(["city"]).count())
    flow.output("cities", orders.project(["city"]))
    with flow.open("state", retain=3, outputs="out") as engine:
        for time, (name, text) in enumerate({"a.csv": MONDAY, "b.csv": TUESDAY}.items(), 1):
            Path(name).write_text(text)
            given = open_files([name], {"city": "string"})
            engine.step({"orders": pa.Table.from_batches([batch for batch, _ in given.batches()])}, time)
    return "state"


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result.output


def as_json(*words: str, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code))


def test_verify_ends_with_0_where_they_agree_and_1_where_they_do_not(state: str) -> None:
    assert "agrees with its log: 3 rows, 6 events" in run("verify", state, "a.csv", "b.csv")
    said = run("verify", state, "b.csv", code=1)
    assert "DIFFERS from its log: 0 rows missing, 0 extra, 1 different" in said
    assert "different (id=2): the state has (id=2, city='007', at=2), the log has (id=2, city='Bern'" in said
    found = as_json("verify", state, "b.csv", "--input", "orders", "--memory", "16MB", code=1)
    assert not found["ok"] and found["inputs"]["orders"]["different"] == 1
    assert "did you mean 'orders'?" in run("verify", state, "a.csv", "--input", "order", code=1)
    assert "there is no such file" in run("verify", state, "c.csv", code=1)
    assert "there is no state" in run("verify", "nowhere", "a.csv", code=1)


def test_fsck_ends_with_1_and_names_the_file(state: str) -> None:
    assert "epoch 2: no problems; " in run("fsck", state)
    assert as_json("fsck", state)["ok"]
    hurt = next(path for path in files(Path(state)) if path.suffix == ".arrow")
    hurt.write_bytes(hurt.read_bytes()[:-8])
    assert f"blobs/{hurt.name}: " in run("fsck", state, code=1)
    assert as_json("fsck", state, code=1)["problems"][0]["file"] == f"blobs/{hurt.name}"


def test_inspect_tells_what_there_is_without_reading_data(state: str) -> None:
    found = as_json("inspect", state)
    assert found == dd.inspect(state) | {"versions": found["versions"]}
    orders = found["inputs"]["orders"]
    assert (found["epoch"], found["last"], orders["keys"], orders["versions"], orders["arrived"]) == (2, 2, 3, 5, 6)
    assert [each["epoch"] for each in found["versions"]] == [2, 1, 0] and found["verdicts"]["stale"] == 1
    assert found["bytes"] > 1000 and found["folder"]["path"].endswith("out")
    for path in files(Path(state)):
        if path.suffix == ".arrow":
            path.write_bytes(b"")
    shown = run("inspect", state)
    for line in (
        "epoch    2, in manifest 2",
        "orders.project(['city']).count(by=['city'])",
        "key=id, order_by=at",
        "id int64, city string, at int64",
        "applied 2, stale 1",
        "commit of step",
    ):
        assert line in shown, shown
    assert (format_age(59), format_age(61), format_age(7300), format_age(200_000)) == ("59 s", "1 min", "2 h", "2 d")


def test_why_tells_winners_and_losers(state: str) -> None:
    said = run("why", state, "2", "a.csv", "b.csv")
    assert "the key (id=2) of 'orders' holds (id=2, city='007', at=2)" in said
    assert "at 2: stale (id=2, city='Bern', at=1); the key held order (at=2)" in said
    assert run("why", state, "id=2") == said[: said.index("its 2 events")]
    found = as_json("why", state, "3", "a.csv", "b.csv")
    assert [row["verdict"] for row in found["story"]] == [None, None, "applied", "applied"]
    assert "'x' is not a valid int64" in run("why", state, "x", code=1)
    assert "there is no key column 'idd'; did you mean 'id'" in run("why", "state", "idd=2", code=1)


def test_export_writes_collections_whole_or_not_at_all(state: str) -> None:
    run("export", state, "-o", "exported/all")
    there = sorted(path.name for path in Path("exported/all").iterdir())
    assert len(there) == 3 and there[1:] == ["cities.parquet", "orders.parquet"]
    orders = pq.read_table("exported/all/orders.parquet")
    assert (
        orders.sort_by("id").to_pylist() == dd.read(state, "orders").drop_columns(["_diff"]).sort_by("id").to_pylist()
    )
    cities = pq.read_table("exported/all/cities.parquet").sort_by("city").to_pylist()
    assert cities == [{"city": "007", "_diff": 1}, {"city": "Bern", "_diff": 1}, {"city": "Chur", "_diff": 1}]
    counts = pq.read_table(f"exported/all/{there[0]}").sort_by("city")
    assert counts.to_pylist() == [{"city": c, "count": 1} for c in ("007", "Bern", "Chur")]
    assert "it exists already" in run("export", state, "orders", "-o", "exported/all", code=1)
    run("export", state, "orders", "-o", "exported/all", "--overwrite")
    found = as_json("export", state, "../by city", "-o", "c.csv", "--as-of", "1")
    assert found["written"] == [{"name": "../by city", "rows": 2, "file": "c.csv"}] and found["as_of"] == 1
    assert sorted(Path("c.csv").read_text().splitlines()) == ['"007",1', '"Bern",2', '"city","count"']
    assert "since is -1" in run("export", state, "--as-of", "-5", "orders", code=1)
    assert "that is not an int64" in run("export", state, "--as-of", "soon", "orders", code=1)
    assert "to use days or timestamps, begin with" in run("export", state, "--as-of", "2026-11-07", "orders", code=1)
    assert "did you mean 'orders'?" in run("export", state, "order", code=1)
    run("export", state, "orders", "cities", "-o", "d.csv", code=2)
    run("export", state, "orders", "-o", "-", code=2)
    assert not Path("d.csv").exists() and not Path("orders.parquet").exists()


def test_days_of_steps_are_written_as_days_and_the_shell_asks_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flow = dd.Flow()
    flow.output("output", flow.upserts("input", {"id": pa.int64(), "city": pa.string()}, dd.Upsert("id")))
    with flow.open("state", retain=9) as engine:
        engine.step({"id": [1], "city": ["Bern"]}, time=dt.date(2026, 11, 26))
    Path("next.csv").write_text("id,city\n1,Zug\n")
    line = "diff", "next.csv", "--state", "state", "--key", "id", "-o", "c.csv"
    said = run(*line, code=1)
    assert "are days, the last 2026-11-26" in said and "--at '2026-11-27'" in said and not Path("c.csv").exists()
    run(*line, "--at", "2026-11-27")
    again = run(*line[:-1], "again.csv", "--epoch", "2")  # has the day that it had
    assert "now at epoch 2" in again and Path("again.csv").read_text() == Path("c.csv").read_text()
    assert sorted(Path("c.csv").read_text().splitlines())[1:] == ['1,"Bern",2026-11-27,-1', '1,"Zug",2026-11-27,1']
    run("export", "state", "output", "--as-of", "2026-11-26", "-o", "o.jsonl")
    assert Path("o.jsonl").read_text() == '{"id":1,"city":"Bern"}\n'
    assert "from 2026-11-27: (id=1, city='Zug')" in run("why", "state", "input", "1")
    assert "last 2026-11-27, frontier 2026-11-28" in run("inspect", "state")
    assert as_json("inspect", "state")["receipts"][-1]["calls"][0]["origin"] == "next.csv"
    assert "output at 2026-11-27, epoch 2" in run("watch", "state", "output", "--once")


def test_the_first_file_of_a_state_says_of_what_type_times_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("1.csv").write_text("id,city\n1,Bern\n")
    Path("2.csv").write_text("id,city\n2,Zug\n")
    for name, verb, first, then, said in (
        ("days", ("replace",), "2026-11-26", "2026-11-30", "2026-11-30"),
        ("moments", ("count", "--full", "--by", "city"), "2026-11-26T12:00+01:00", "2026-11-26T11:30Z", "11:30"),
        ("numbers", ("diff",), "7", "9", "9"),
    ):
        line = *verb, "--key", "id", "--state", name
        assert "that is no time" not in run(*line, "1.csv", "-o", f"{name}1.parquet", "--at", first)
        assert "was committed as" in run(*line, "2.csv", "-o", "no.csv", "--at", first, code=1)
        run(*line, "1.csv", "-o", f"{name}2.parquet", "--at", first)  # the same line again: the same rows
        assert Path(f"{name}1.parquet").read_bytes() == Path(f"{name}2.parquet").read_bytes()
        out = run(*line, "2.csv", "-o", "-", "--overwrite", "--at", then)
        assert said in out, out
    line = "diff", "--key", "id", "--state", "numbers", "-o", "no.csv"
    assert "but there are 2" in run(*line, "1.csv", "2.csv", "--at", "10", code=2)
    assert "write a day (2026-11-26)" in run(*line, "1.csv", "--at", "soon", code=2)
    assert "pass a time like 9" in run(*line, "1.csv", "--at", "2026-11-26", code=1)
    assert "pass --state FOLDER" in run("diff", "1.csv", "--key", "id", "--at", "7", code=2)
    assert "--at is the time of a step" in run(*line, "1.csv", "--time", "id", "--at", "7", code=2)
    Path("bad.csv").write_text("id,city\n,Bern\n")
    line = "diff", "--key", "id", "--types", "id=int64", "--state", "begun", "-o", "no.csv"
    assert "is null" in run(*line, "bad.csv", "--at", "2026-11-26", code=1)
    for given in ((), ("--at", "7")):
        assert "are date32[day], because the first file, which was refused, said so" in run(
            *line, "1.csv", *given, code=1
        )
    assert not Path("no.csv").exists()


def test_epochs_name_the_files_that_they_were_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv", "c.csv"):
        Path(name).write_text(f"id,city\n1,{name}\n")
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", {"id": int, "city": str}, dd.Upsert("id")))
    with flow.open("state") as engine:
        engine.step({"id": [1], "city": ["Bern"]})
        engine.replace(Path("a.csv"))
        with pytest.raises(dd.errors.NullKey):
            engine.step(pa.table({"id": pa.array([None], pa.int64()), "city": ["Bern"]}))
        engine.run({"rows": dd.sources.files("[bc].csv")})
    said = [call["origin"] for each in as_json("inspect", "state")["receipts"] for call in each["calls"]]
    assert said[:2] == ["", "a.csv"]
    assert [Path(each).name for each in ", ".join(said[2:]).split(", ")] == ["b.csv", "c.csv"]
    assert "a.csv" in run("inspect", "state")


def test_times_that_are_no_numbers_are_written_as_their_type_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flow = dd.Flow()
    rows = flow.upserts("v", {"k": pa.string(), "at": pa.timestamp("ms"), "n": pa.int64()}, dd.Upsert("k", time="at"))
    flow.output("v", rows)
    flow.output("ns", rows.project(["n"]))
    log = pa.table({"k": ["a=b", "a=b"], "at": pa.array([0, 86_400_000], pa.timestamp("ms")), "n": [1, 2]})
    pq.write_table(log, "log.parquet")
    with flow.open("state", retain=10**9) as engine:
        engine.push({"v": log})
        engine.advance_to(10**8)
    run("export", "state", "v", "--as-of", "1970-01-01 12:00:00", "-o", "v.jsonl")
    assert Path("v.jsonl").read_text() == '{"k":"a=b","n":1}\n'
    assert "agrees" in run("verify", "state", "log.parquet")
    said = run("why", "state", "a=b", "log.parquet")
    assert "from 1970-01-02 00:00:00: (k='a=b', n=2)" in said and "with their own times" in said
    said = run("why", "state", "ns", "n=1", "--as-of", "1970-01-01 12:00:00")
    assert said.startswith(
        "1 row of 'ns' as of 1970-01-01 12:00:00\n  (n=1)\nis made of 1 row of 'v'\n  (k='a=b', n=1)"
    )
    absent, now = run("why", "state", "ns", "n=1").splitlines(), "1970-01-02 03:46:39.999000"
    assert absent[:2] == [f"no row of 'ns' has these values as of {now}", "0 rows of input 'v' have these values"]
    assert "not a time of type timestamp[ms]; pass a time like 1970-01-01 00:00:00" in run(
        "why", "state", "ns", "n=1", "--as-of", "noon", code=1
    )


def test_times_that_are_days_are_shown_and_understood_as_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for n, rows in enumerate(("1,Bern\n2,Chur", "1,Thun"), 1):
        lines = "".join(f"{row},2024-01-0{n}\n" for row in rows.split())
        Path(f"{n}.csv").write_text(f"id,city,day\n{lines}")
    words = ["--key", "id", "--time", "day", "--state", "s", "--retain", "1", "-o", "all.jsonl"]
    run("diff", "1.csv", "2.csv", *words)
    assert [json.loads(line)["_time"] for line in Path("all.jsonl").read_text().splitlines()] == [
        "2024-01-01",
        "2024-01-01",
        "2024-01-02",
        "2024-01-02",
    ]
    said = run("inspect", "s")
    assert "last 2024-01-02, frontier 2024-01-03, readable since 2024-01-01" in said
    assert "advance_to  2024-01-03" in said and "1972" not in said
    found = as_json("inspect", "s")
    assert (found["last"], found["frontier"], found["time_type"]) == (19724, 19725, "date32[day]")
    assert run("why", "s", "output", "city=Thun").startswith("1 row of 'output' as of 2024-01-02\n")
    assert run("why", "s", "output", "city=Bern", "--as-of", "2024-01-01").startswith(
        "1 row of 'output' as of 2024-01-01"
    )
    assert "from 2024-01-02:" in run("why", "s", "id=1")
    assert as_json("export", "s", "-o", "then.csv", "--as-of", "2024-01-01")["as_of"] == 19723
    assert Path("then.csv").read_text().count("Bern") == 1
    gone = run("export", "s", "-o", "gone.csv", "--as-of", "2023-12-31", code=1)
    assert (
        "as of 2023-12-31: since is 2024-01-01: it can be read from 2024-01-01 up to, not including, 2024-01-03" in gone
    )
    assert "that is not a time of type date32[day]; pass a time like 1970-01-01" in run(
        "export", "s", "-o", "gone.csv", "--as-of", "soon", code=1
    )
    Path("3.csv").write_text("id,city,day\n3,Bern,2024-01-01\n")
    late = "1 events are behind the frontier 2024-01-03, first row 2, at time 2024-01-01;"
    assert late in run("diff", "3.csv", *words, "--overwrite", code=1)


def test_why_names_the_rows_of_the_inputs_that_make_a_row_of_an_output(state: str) -> None:
    said = run("why", state, "../by city", "city=Bern")
    assert said.splitlines() == [
        "1 row of '../by city' as of 2",
        "  (city='Bern', count=1)",
        "is made of 1 row of 'orders'",
        "  (id=3, city='Bern', at=9)",
    ]
    before = as_json("why", state, "../by city", "city=Bern", "count=2", "--as-of", "1")
    assert [row["id"] for row in before["rows"]["orders"]] == [1, 3] and before["as_of"] == 1
    told = run("why", state, "../by city", "count=1", "a.csv", "b.csv")
    assert [f"the key (id={key}) of 'orders' holds" in told for key in (1, 2, 3)] == [True] * 3
    assert told.count("its 2 events in the log") == 3
    assert run("why", state, "../by city", "city=Rom").splitlines() == [
        "no row of '../by city' has these values as of 2",
        "0 rows of input 'orders' have these values",
        "  why('orders', key) shows the history of a key",
    ]
    assert run("why", state, "cities", "city=").startswith("no row of 'cities' has")
    assert run("why", state, "orders", "id=2") == run("why", state, "orders", "2") == run("why", state, "2")
    assert "there is no key column 'idd'; did you mean 'id'" in run("why", state, "orders", "idd=2", code=1)
    for words, error in (
        (["../by city", "town=Bern"], "there is no column 'town'"),
        (["../by city", "ciy=Bern"], "did you mean 'city'?"),
        (["../by city", "count=many"], "'many' is not a valid int64"),
        (["../by city", "city=Bern", "--as-of", "7"], "as of 7"),
        (["citis", "city=Bern"], "did you mean 'cities'?"),
        (["../by city"], "is an output, whose rows have no key; write values of the row after it"),
        (["../by city", "a.csv"], "is an output, whose"),
        (["orders", "id=2", "--as-of", "1"], "the story of a key covers all kept times"),
    ):
        assert error in run("why", state, *words, code=1)
