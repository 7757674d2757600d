"""Test ``ddflow run`` and ``ddflow sync``: a flow from a file, sources and sinks by address."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import socket
import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from ports import listening_ports
from programs import PIPE, ddflow, run_ddflow
from terminals import begun, on_a_terminal
from test_cli import refused, run
from typer.testing import CliRunner

from ddflow.cli import app
from ddflow.cli.run import StateLock, _report_run
from ddflow.engine.run.report import RunDone
from ddflow.errors import StateRefused

FLOW = """
import ddflow as dd
flow = dd.Flow()
orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
flow.output("orders", orders)
flow.output("by_city", orders.group_by("city").agg(n="count(*)"))
other = 7
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flow.py").write_text(FLOW)
    Path("in").mkdir()
    Path("in/1.csv").write_text("id,city\n1,Bern\n2,Bern\n")


def rows(path: str, table: str) -> list[tuple[object, ...]]:
    """What a table of SQLite holds."""
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.execute(f"select * from {table}").fetchall())
    finally:
        connection.close()


WORDS = ("run", "flow.py", "--state", "state", "--from", "orders=files:in/*.csv")


def test_a_bad_row_names_its_file_and_row() -> None:
    Path("in/2.csv").write_text("id,city\n3,Biel\n,Basel\n")
    assert "in/2.csv: rows for 'orders': the key ['id'] is null in 1 rows, first in row 3;" in refused(*WORDS)


def test_files_into_tables() -> None:
    to = ("--to", "by_city=sqlite:out.db#cities", "--to", "orders=parquet:log", "--mode", "orders=retract")
    done = json.loads(run(*WORDS, *to, "--json").stdout)
    assert (done["epoch"], done["rows"], done["stopped"]) == (1, 2, "end")
    assert done["sinks"] == {"by_city": 1, "orders": 1}
    assert rows("out.db", "cities") == [("Bern", 2)]
    Path("in/2.csv").write_text("id,city\n2,Chur\n")
    said = run(*WORDS, *to).stderr
    assert said.startswith("1 row in 1 epoch, 5 updates in ") and "epoch 2, by_city has 2, orders has 2 (end)" in said
    assert rows("out.db", "cities") == [("Bern", 1), ("Chur", 1)]
    shown = run("inspect", "state").stdout
    assert "Sources" in shown and "in/*.csv" in shown and "out.db#cities" in shown


def test_a_run_without_rows_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.match(r"2 rows in 1 epoch, 3 updates in [\d.]+ s; epoch 1 \(end\)\n", run(*WORDS).stderr)
    assert re.match(r"nothing new in [\d.]+ s; epoch 1 \(end\)\n", run(*WORDS).stderr)
    done = json.loads(run(*WORDS, "--json").stdout)
    assert (done["epochs"], done["moved"], done["rows"]) == (0, 0, 0)
    _report_run(1, RunDone(moved=2), False)
    assert capsys.readouterr().err == "no rows, only new positions, in 0.00 s; epoch 1 (end)\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*WORDS[:-1], "oders=files:in/*.csv"), "there is no input 'oders'; did you mean 'orders'?"),
        ((*WORDS, "--to", "by_cty=sqlite:out.db"), "there is no such output; did you mean 'by_city'?"),
        ((*WORDS, "--to", "by_city=parquet:out", "--mode", "by_city=upsert"), "parquet has no mode"),
        ((*WORDS, "--interval", "soon"), "soon: that is not a duration"),
        ((*WORDS, "--rows", "0"), "that is not a number of rows"),
    ],
)
def test_what_cannot_run_leaves_no_state(words: tuple[str, ...], says: str) -> None:
    assert says in run(*words, code=1).stderr
    assert not Path("state").exists() and not Path("out.db").exists() and not Path("out").exists()


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("duckdb", "duckdb", ("--from", "orders=postgres://nowhere.invalid/shop#orders")),
        ("psycopg", "postgres", ("--from", "orders=postgres://nowhere.invalid/shop#orders")),
        ("confluent_kafka", "kafka", ("--from", "orders=kafka://nowhere.invalid/orders")),
        ("obstore.store", "s3", ("--from", "orders=files:s3://bucket/in/*.csv")),
        ("deltalake", "delta", ("--from", "orders=delta:lake")),
        ("duckdb", "duckdb", ("--from", "orders=duckdb:in.db")),
        ("duckdb", "duckdb", (*WORDS[4:], "--to", "by_city=duckdb:out.db")),
        ("psycopg", "postgres", (*WORDS[4:], "--to", "by_city=postgres://nowhere.invalid/shop")),
        ("confluent_kafka", "kafka", (*WORDS[4:], "--to", "by_city=kafka://nowhere.invalid/out")),
        ("deltalake", "delta", (*WORDS[4:], "--to", "by_city=delta:out")),
        ("pyiceberg", "iceberg", (*WORDS[4:], "--to", "by_city=iceberg:shop.by_city")),
    ],
)
def test_an_extra_that_is_missing_is_noticed_before_anything_begins(
    module: str, extra: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    done = CliRunner().invoke(app, [*WORDS[:4], *words])
    assert done.exit_code == 1 and f"pip install 'ddflow[{extra}]'" in done.output, done.output
    assert not any(Path(each).exists() for each in ("state", "out", "out.db"))


def test_the_extra_that_a_format_needs_is_noticed_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("flow.py").write_text(FLOW.replace('key="id")', 'key="id"), format=dd.formats.plain_json()'))
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = CliRunner().invoke(app, [*WORDS, "--lines"])
    assert done.exit_code == 1 and "pip install 'ddflow[duckdb]'" in done.output, done.output
    assert not Path("state").exists()


def test_a_source_without_an_input_and_an_input_without_a_source_are_named() -> None:
    said = run(*WORDS[:-1], "shop=files:in/*.csv", code=1).stderr
    assert said.startswith("ddflow: the source 'shop': there is no input 'shop'; ")
    assert "name a source of one table or topic like its input" in said
    Path("flow.py").write_text(FLOW + 'flow.upserts("people", {"id": int}, dd.Upsert(key="id"))\n')
    assert run(*WORDS).stderr.startswith("ddflow: no source feeds 'people', so no rows arrive there: see --from\n")


def test_a_new_column_is_taken_or_ends_the_run() -> None:
    to = ("--to", "orders=sqlite:out.db", "--rows", "1", "--room", "1MB", "--sink-backlog", "10MB")
    run(*WORDS, *to)
    Path("in/2.csv").write_text("id,city,amount\n3,Chur,7\n")
    assert "there is the column 'amount' (int64), first in 2.csv" in refused(*WORDS, *to, "--evolve", "stop")
    assert rows("out.db", "orders") == [(1, "Bern"), (2, "Bern")]
    run(*WORDS, *to)
    assert rows("out.db", "orders") == [(1, "Bern", None), (2, "Bern", None), (3, "Chur", 7)]
    said = run("sync", "flow.py", "--state", "state", "--to", "orders=sqlite:out.db").stdout
    assert "0 rows would be deleted, 0 changed, 0 added" in said


def test_another_state_at_a_table_is_shown_the_way_to_take_it_over() -> None:
    run(*WORDS, "--to", "by_city=sqlite:out.db")
    other = ("run", "flow.py", "--state", "other", *WORDS[4:])
    said = run(*other, "--to", "by_city=sqlite:out.db", code=1).stderr
    assert "if that state is gone, ddflow sync --adopt" in said
    run(*other)
    sync = ("sync", "flow.py", "--state", "other", "--to", "by_city=sqlite:out.db", "--adopt", "--yes")
    assert "by_city" in run(*sync).stdout
    run(*other, "--to", "by_city=sqlite:out.db")
    assert rows("out.db", "by_city") == [("Bern", 2)]


def test_each_epoch_is_a_timed_line_where_that_is_asked_for() -> None:
    (_, quiet), (_, said) = (on_a_terminal(*WORDS, *more) for more in ((), ("--verbose",)))
    assert "INFO" not in quiet
    assert re.search(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d+ INFO opened .*state at epoch 1 ", said, re.M)


def test_a_warning_is_one_line_without_its_place_in_python() -> None:
    words = ["run", "flow.py", "--state", "state", "--from", "orders=sqlite:shop.db#orders"]
    connection = sqlite3.connect("shop.db")
    connection.execute("create table orders (id integer primary key, city text)")
    run(*words)
    connection.execute("alter table orders drop column city")
    connection.execute("insert into orders values (1)")
    connection.commit()
    connection.close()
    told = run_ddflow(*words).stderr.splitlines()
    assert told[0].startswith("ddflow: replace of 'orders' at time 2: it lacks the columns ['city']"), told
    assert len(told) == 2


def test_a_second_run_on_a_state_is_refused_at_its_start(tmp_path: Path) -> None:
    process = ddflow(*WORDS, "--follow", "--verbose", stderr=PIPE)
    assert process.stderr is not None
    try:
        said = next((line for line in process.stderr if "epoch 1:" in line or "Error" in line), "")
        assert "epoch 1:" in said
        assert "state: another run uses it; stop the other run" in refused(*WORDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.stderr.close()
    run(*WORDS)


def test_a_run_that_comes_second_to_a_new_state_leaves_it_there() -> None:
    """Both saw that there is none."""
    with StateLock("state") as first:
        with pytest.raises(StateRefused), StateLock("state") as second:
            os.mkdir("state")
            first.acquire()
            second.acquire()
        assert os.path.isdir("state")


def test_a_run_that_fails_leaves_no_state_that_it_made() -> None:
    connection = sqlite3.connect("out.db")
    connection.execute("create table by_city (other text)")
    connection.commit()
    connection.close()
    to = ("--to", "by_city=sqlite:out.db")
    refused(*WORDS, *to)
    assert not Path("state").exists()
    Path("state").mkdir(mode=0o700)
    refused(*WORDS, *to)
    assert Path("state").exists()  # it was there
    run(*WORDS)
    refused(*WORDS, *to)
    assert json.loads(run("inspect", "state", "--json").stdout)["epoch"] == 1


def test_sync_says_before_it_does() -> None:
    run(*WORDS, "--to", "by_city=sqlite:out.db")
    connection = sqlite3.connect("out.db")
    connection.execute("update by_city set n = 77")
    connection.commit()
    connection.close()
    words = ("sync", "flow.py", "--state", "state", "--to", "by_city=sqlite:out.db")
    found = run(*words)
    assert "0 rows would be deleted, 1 changed, 0 added" in found.stdout
    assert "nothing was written" in found.stderr
    assert "  changed: city='Bern'" in found.stdout
    assert rows("out.db", "by_city") == [("Bern", 77)]
    done = json.loads(run(*words, "--yes", "--json").stdout)
    assert done == {"done": True, "by_city": {"deleted": 0, "changed": 1, "added": 0}}
    assert rows("out.db", "by_city") == [("Bern", 2)]


def test_a_sink_is_forgotten() -> None:
    run(*WORDS, "--to", "by_city=sqlite:out.db")
    words = ("sync", "flow.py", "--state", "state", "--detach", "by_city")
    assert "would be detached" in run(*words).stdout
    assert "by_city is detached" in run(*words, "--yes").stdout
    assert json.loads(run("inspect", "state", "--json").stdout)["sinks"] == {}
    assert "it is not attached" in run(*words, "--yes", code=1).stderr


def test_what_is_refused() -> None:
    assert "there is no such kind" in refused(*WORDS[:-1], "orders=ftp:me:secret@host/x")
    assert "secret" not in refused(*WORDS[:-1], "orders=ftp:me:secret@host/x")
    assert "there is no such file" in refused("run", "nothing.py", "--state", "state")
    assert "it has no flow 'other'" in refused("run", "flow.py:other", "--state", "state")
    assert "write NAME=" in refused(*WORDS, "--to", "out.db", code=2)
    twice = refused(*WORDS, "--to", "by_city=sqlite:a.db", "--to", "by_city=sqlite:b.db", code=2)
    assert "it is repeated; declare a second output" in " ".join(twice.replace("│", " ").split())
    assert "no --to by_city" in refused(*WORDS, "--mode", "by_city=upsert", code=2)


def test_a_signal_ends_it_behind_its_epoch() -> None:
    words = [*WORDS, "--follow", "--interval", "50ms", "--to", "by_city=sqlite:out.db"]
    process = ddflow(*words, stderr=PIPE)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if os.path.exists("out.db"):
            try:
                if rows("out.db", "by_city"):
                    break
            except sqlite3.Error:
                pass
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 0 and "(signal)" in said, said
    assert rows("out.db", "by_city") == [("Bern", 2)]


def test_a_line_on_a_terminal() -> None:
    words = [*WORDS, "--follow", "--interval", "50ms", "--to", "by_city=sqlite:out.db"]
    process, leader = begun(*words, columns=200)
    said, ending = b"", False
    while True:
        try:
            block = os.read(leader, 4096)
        except OSError:
            break
        said += block
        if not block:
            break
        if not ending and b"epoch 1, 2 rows" in said and b"by_city has 1" in said:
            process.send_signal(signal.SIGTERM)
            ending = True
    assert process.wait(120) == 0
    text = said.decode()
    assert "epoch 1, 2 rows" in text and "by_city has 1" in text and "(signal)" in text


def test_a_terminal_sees_a_first_copy_as_it_is_read_taken_in_and_written() -> None:
    Path("in/1.csv").write_text("id,city\n" + "".join(f"{i},Bern\n" for i in range(200_000)))
    code, shown = on_a_terminal(*WORDS, "--interval", "1min", "--to", "orders=sqlite:out.db", every=0)
    assert code == 0
    assert "epoch 0, 0 rows, 0 rows/s, reading orders: 0 rows" in shown
    assert "epoch 0, 0 rows, 0 rows/s, ingesting 200,000 rows" in shown
    assert re.search(r"epoch 1, 200,000 rows, [\d,]+ rows/s, writing orders: 131,072 rows, [\d,]+ rows/s", shown)


def test_a_terminal_sees_the_progress_of_sync_and_of_gc() -> None:
    run(*WORDS, "--to", "orders=sqlite:out.db")
    sync = ("sync", "flow.py", "--state", "state", "--to", "orders=sqlite:out.db")
    assert re.search(r" comparing: 4 rows, [\d,]+ rows/s", on_a_terminal(*sync)[1])  # of both sides
    connection = sqlite3.connect("out.db")
    connection.execute("delete from orders")
    connection.commit()
    connection.close()
    assert re.search(r" comparing and writing: 4 rows, [\d,]+ rows/s", on_a_terminal(*sync, "--yes")[1])
    assert re.search(r" compacting: [1-9]\d* rows, [\d,]+ rows/s", on_a_terminal("gc", "state", "--forget")[1])


def test_metrics_are_served_while_it_runs() -> None:
    words = ["--to", "by_city=sqlite:shop.db", "--follow", "--interval", "20ms", "--metrics", "0"]
    child = ddflow(*WORDS, *words)
    try:
        page, wanted = "", 'ddflow_sink_lag_epochs{flow="flow",output="by_city"} 0.0'
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (wanted in page and 'ddflow_epoch{flow="flow"} 1.0' in page):
            time.sleep(0.1)
            for port in listening_ports(child.pid):
                with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    page = answer.read().decode()
        assert wanted in page and 'ddflow_source_lag{flow="flow",source="orders",unit="files"} 0.0' in page
        assert 'ddflow_rows_total{flow="flow",input="orders"}' in page
    finally:
        child.terminate()
    assert child.wait(120) == 0


def test_a_port_of_metrics_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refused(*WORDS, "--metrics", str(taken.getsockname()[1]))
    assert "Address already in use" in said and "use a free port" in said


def test_full_files_delete_the_keys_that_they_do_not_name() -> None:
    words = (
        "run",
        "flow.py",
        "--state",
        "state",
        "--from",
        "orders=files:in/*.csv:full",
        "--to",
        "orders=sqlite:o.db#o",
    )
    run(*words)
    Path("in/2.csv").write_text("id,city\n2,Bern\n3,Chur\n")
    Path("in/3.csv").write_text("id,city\n3,Chur\n4,Genf\n")
    run(*words)
    assert rows("o.db", "o") == [(3, "Chur"), (4, "Genf")]
    Path("in/4.csv").write_text("id,city\n5,Genf\n")
    assert "it lacks 2 of 2 keys" in refused(*words, "--max-absent", "50%")
    Path("in/4.csv").write_text("id,city\n")
    assert "it has no rows, so every key would be deleted" in refused(*words)
    Path("in/4.csv").rename("in/0.csv")
    assert "'3.csv' was read before it" in refused(*words)
    assert rows("o.db", "o") == [(3, "Chur"), (4, "Genf")]


def test_how_text_is_written_stands_behind_the_pattern() -> None:
    Path("flow.py").write_text(FLOW.replace('"city": str', '"city": str, "n": float, "at": "timestamp"'))
    Path("in/1.dat").write_bytes("id;city;n;at\n1;Zürich;12,50;3.1.2024 14:05\n2;NA;-;3.1.2024\n".encode("cp1252"))
    words = ("run", "flow.py", "--state", "state", "--from")
    address = "orders=files:in/*.dat"
    assert "pass its format, as in --from INPUT=files:PATTERN:format=csv" in refused(*words, address)
    address += ":format=csv"
    assert "pass --from 'INPUT=files:PATTERN:delimiter=;:format=csv'" in refused(*words, address)
    address += ":delimiter=;:null=NA:null=-"
    said = refused(*words, address)
    assert "(--from 'INPUT=files:PATTERN:delimiter=;:null=NA:null=-:encoding=cp1252:format=csv')" in said
    address += ":encoding=cp1252"
    said = refused(*words, address)
    assert ":PATTERN:delimiter=;:null=NA:null=-:encoding=cp1252:decimal=,:format=csv', fix it" in said
    address += ":full:decimal=,:dates=%d.%m.%Y %H:%M"
    assert "'3.1.2024' is not a valid timestamp[us]; pass --from" in refused(*words, address)
    run(*words, f"{address}:dates=%d.%m.%Y", "--to", "orders=sqlite:o.db#o")
    assert rows("o.db", "o") == [
        (1, "Zürich", 12.5, "2024-01-03 14:05:00.000000"),
        (2, None, None, "2024-01-03 00:00:00.000000"),
    ]
    said = run(*words, f"{address}:nul=x", code=1).stderr
    assert "there is no option :nul; write :full, or :delimiter=, :null=, " in said
    assert "dates='%d': it has no month" in run(*words, "orders=files:in/*.csv:dates=%d", code=1).stderr


def test_groups_of_digits_stand_behind_the_pattern() -> None:
    Path("flow.py").write_text(FLOW.replace('"city": str', '"city": str, "n": float'))
    Path("in/1.csv").write_text("id;city;n\n1.000;Chur;1.250,50\n2;Genf;12'000\n")
    words, address = ("run", "flow.py", "--state", "state", "--from"), "orders=files:in/1.csv:delimiter=;:decimal=,"
    assert "pass --from 'INPUT=files:PATTERN:delimiter=;:decimal=,:thousands=.'" in refused(*words, address)
    Path("in/1.csv").write_text("id;city;n\n1.000;Chur;1.250,50\n2;Genf;7\n")
    run(*words, f"{address}:thousands=.", "--to", "orders=sqlite:o.db#o")
    assert rows("o.db", "o") == [(2, "Genf", 7.0), (1000, "Chur", 1250.5)]


def test_files_of_events_on_a_state_of_full_contents_are_noted() -> None:
    with runpy.run_path("flow.py")["flow"].open("state") as engine:
        engine.replace("orders", "in/1.csv")
    assert "write files:PATTERN:full" in run(*WORDS).stderr
    assert "files:PATTERN:full" not in run(*WORDS).stderr


def test_a_flow_may_import_what_lies_beside_it() -> None:
    Path("sub").mkdir()
    Path("sub/helper.py").write_text(FLOW)
    Path("sub/flow.py").write_text("from helper import flow\n")
    assert run("run", "sub/flow.py", *WORDS[2:]).stderr.startswith("2 rows in 1 epoch")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import ddflow as dd\nflow = dd.Flow(\n", "bad.py, line 2: SyntaxError: '(' was never closed"),
        ("x = 1\n\nx / 0\n", "bad.py, line 3: x / 0: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('x')\n", "bad.py, line 2: json.loads('x'): JSONDecodeError: Expecting value"),
        ("import no_such_thing\n", "No module named 'no_such_thing'"),
    ],
)
def test_a_mistake_in_a_flow_is_shown_at_its_place(text: str, says: str) -> None:
    Path("bad.py").write_text(text)
    found = refused("run", "bad.py", *WORDS[2:])
    assert says in found and "bug in ddflow" not in found and not Path("state").exists()
