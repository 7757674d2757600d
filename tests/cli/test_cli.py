"""Test the command line, mostly in real processes with real files, pipes and terminals.

Output is compared with rows worked out by hand, or with the Python API on the same rows. Every refusal has its exit
code and its message on stderr, and leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from chance import long_test
from programs import PIPE, ddflow
from terminals import on_a_terminal, until_closed, without_colours
from typer.testing import CliRunner, Result

import ddflow as dd
from ddflow.cli import VERBS, app, exit_on_errors
from ddflow.connectors.files import open_files, open_output
from ddflow.connectors.files.kinds import KINDS

ROOT = Path(__file__).parents[2]
DDFLOW = Path(sys.executable).parent / "ddflow"
MONDAY = """id,city,amount,updated_at,op
1,Bern,120,10,U
2,Basel,80,11,U
3,Bern,15,12,U
"""
TUESDAY = """id,city,amount,updated_at,op
1,Basel,120,20,U
2,,,21,D
3,Bern,99,5,U
"""
KEYED = ["--key", "id", "--order-by", "updated_at", "--tombstone", "op=D"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with two days of orders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "monday.csv").write_text(MONDAY)
    (tmp_path / "tuesday.csv").write_text(TUESDAY)
    return tmp_path


def run(*words: str, code: int = 0) -> Result:
    """A command line, in this process; the exit code is checked."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def really(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command line in a process of its own."""
    return subprocess.run([DDFLOW, *words], capture_output=True, text=True, timeout=120, **options)


def refused(*words: str, code: int = 1) -> str:
    """The message of a command that is refused: on stderr, alone, without a traceback, and nothing left behind."""
    before = sorted(path.name for path in Path.cwd().iterdir())
    result = run(*words, code=code)
    assert "Traceback" not in result.output and result.stdout == ""
    assert sorted(path.name for path in Path.cwd().iterdir()) == before
    return re.sub(r"\s+", " ", result.stderr)


def rows(result: Result) -> list[tuple[Any, ...]]:
    """The rows that a command printed as JSON lines, sorted by time, then as text."""
    found = [tuple(json.loads(line).values()) for line in result.stdout.splitlines()]
    return sorted(found, key=lambda row: (row[-2], repr(row)))


def read(name: str) -> pa.Table:
    input = open_files([name])
    return pa.Table.from_batches([batch for batch, _ in input.batches()], input.schema)


def test_each_file_is_an_epoch_and_each_change_retracts_what_was_stored() -> None:
    result = run("diff", "monday.csv", "tuesday.csv", *KEYED, "--project", "id,city,amount", "-o", "-")
    assert rows(result) == [
        (1, "Bern", 120, 1, 1),
        (2, "Basel", 80, 1, 1),
        (3, "Bern", 15, 1, 1),
        (1, "Basel", 120, 2, 1),
        (1, "Bern", 120, 2, -1),
        (2, "Basel", 80, 2, -1),
    ]
    assert re.fullmatch(
        r"6 rows of 2 files in 2 epochs: 6 updates in [\d.]+ s, [\d,]+ rows/s; applied 5, stale 1\n", result.stderr
    )


def test_the_order_of_files_is_the_order_of_time() -> None:
    result = run("diff", "tuesday.csv", "monday.csv", "--key", "id", "--project", "id,city", "-o", "-")
    assert rows(result)[3:] == [(1, "Basel", 2, -1), (1, "Bern", 2, 1), (2, "Basel", 2, 1), (2, None, 2, -1)]


def test_with_a_time_column_the_end_of_input_closes_every_time() -> None:
    words = ["diff", "monday.csv", "tuesday.csv", "--key", "id", "--time", "updated_at", "--tombstone", "op=D"]
    result = run(*words, "--filter", "amount > 20", "-o", "-")
    assert rows(result) == [
        (3, "Bern", 99, 5, 1),
        (1, "Bern", 120, 10, 1),
        (2, "Basel", 80, 11, 1),
        (3, "Bern", 99, 12, -1),
        (1, "Basel", 120, 20, 1),
        (1, "Bern", 120, 20, -1),
        (2, "Basel", 80, 21, -1),
    ]
    assert "6 rows of 2 files by time: 7 updates" in result.stderr and "applied 6" in result.stderr


def test_lateness_closes_times_on_the_way_and_what_is_later_is_late() -> None:
    words = ["diff", "monday.csv", "tuesday.csv", "--key", "id", "--time", "updated_at"]
    assert "applied 5, late 1" in run(*words, "--lateness", "0", "--late", "drop", "-o", "-").stderr
    assert "applied 6" in run(*words, "--lateness", "7", "-o", "-").stderr
    said = refused(*words, "--lateness", "6", "-o", "out.csv")
    assert said.startswith(
        "ddflow: tuesday.csv: rows for 'input': 1 events are behind the frontier 6, first row 4, at time 5"
    )
    advanced = rows(run(*words, "--lateness", "0", "--late", "advance", "--filter", "id = 3", "-o", "-"))
    assert advanced == [(3, "Bern", 15, "U", 12, 1)]


@pytest.mark.parametrize(
    ("kind", "text", "span", "late"),
    [
        ("timestamp", "2024-01-01 00:00:{:02}", "7s", False),
        ("timestamp[ms]", "2024-01-01 00:00:{:02}", "6999ms", True),
        ("date", "2024-01-{:02}", "1d", True),
        ("date", "2024-01-{:02}", "7d", False),
        ("bigint", "{}", "7", False),
    ],
)
def test_a_span_of_lateness_is_in_the_unit_of_the_column(kind: str, text: str, span: str, late: bool) -> None:
    Path("a.csv").write_text("id,at\n" + "".join(f"1,{text.format(n)}\n" for n in (2, 12)))
    Path("b.csv").write_text(f"id,at\n1,{text.format(5)}\n")
    words = [
        "diff",
        "a.csv",
        "b.csv",
        "-k",
        "id",
        "--time",
        "at",
        "--types",
        f"at={kind}",
        "--lateness",
        span,
        "-o",
        "-",
    ]
    assert ("behind the frontier" in run(*words, code=int(late)).stderr) is late


def test_counts_come_as_differences_or_net() -> None:
    words = ["count", "monday.csv", "tuesday.csv", *KEYED, "--by", "city"]
    assert rows(run(*words, "-o", "-")) == [
        ("Basel", 1, 1, 1),
        ("Bern", 2, 1, 1),
        ("Bern", 1, 2, 1),
        ("Bern", 2, 2, -1),
    ]
    result = run(*words, "--net", "--name", "orders", "-o", "now.csv")
    assert Path("now.csv").read_text() == '"city","orders"\n"Basel",1\n"Bern",1\n'
    assert "4 updates, 2 counts to now.csv" in result.stderr
    everything = run("count", "monday.csv", "tuesday.csv", *KEYED, "--net", "-o", "-")
    assert everything.stdout == '{"count":2}\n'


def test_counts_go_by_computed_and_several_columns() -> None:
    words = [
        "count",
        "monday.csv",
        *KEYED,
        "--project",
        "big=amount > 50",
        "--project",
        "city",
        "--by",
        "city,big",
        "--net",
    ]
    assert run(*words, "-o", "-").stdout.splitlines() == [
        '{"city":"Basel","big":true,"count":1}',
        '{"city":"Bern","big":false,"count":1}',
        '{"city":"Bern","big":true,"count":1}',
    ]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("ending", KINDS)
def test_every_kind_of_file_in_and_out_gives_the_same_differences(ending: str) -> None:
    for day in ("monday", "tuesday"):
        table = read(f"{day}.csv").set_column(2, "amount", read(f"{day}.csv")["amount"].cast(pa.int64()))
        Path("in").mkdir(exist_ok=True)
        with open_output(f"in/{day}{ending}", table.schema) as out:
            out.write(table)
    run("diff", "in", *KEYED, "-o", f"out{ending}")
    run("diff", "monday.csv", "tuesday.csv", *KEYED, "-o", "out2.parquet")
    one, other = read(f"out{ending}"), read("out2.parquet")
    assert one.schema == other.schema
    assert Counter(map(repr, one.to_pylist())) == Counter(map(repr, other.to_pylist()))
    assert one["_time"].to_pylist() == [1] * 3 + [2] * 3


def test_a_long_file_gives_what_the_python_door_gives() -> None:
    n = 200_000
    cities = [f"city {i * i % 97}" for i in range(n)]
    ids, at, gone = [i * 7919 % 5000 for i in range(n)], [i // 3 for i in range(n)], [i % 11 == 0 for i in range(n)]
    events = pa.table({"id": ids, "at": at, "city": cities, "gone": gone})
    with open_output("events.csv", events.schema) as out:
        out.write(events)
    words = ["--key", "id", "--tombstone", "gone", "--filter", "city <> 'city 1'"]
    for held_back in (["--order-by", "at"], ["--time", "at"], ["--time", "at", "--lateness", "10"]):
        run("diff", "events.csv", *words, *held_back, "-o", "out.parquet", "--overwrite")
        flow = dd.Flow()
        spec = dd.Upsert(
            "id",
            () if "--time" in held_back else "at",
            delete=dd.tombstone("gone"),
            time="at" if "--time" in held_back else None,
        )
        flow.output("out", flow.upserts("in", events.schema, spec).filter("city <> 'city 1'"))
        with flow.open() as engine:
            if "--time" in held_back:
                engine.push({"in": events})
                expected = engine.advance_to(dd.CLOSED)["out"]
            else:
                expected = engine.step({"in": events}, time=1)["out"]
        found = pq.read_table("out.parquet")
        order = [(name, "ascending") for name in expected.column_names]
        assert found.sort_by(order).equals(expected.sort_by(order)), held_back
        assert found["_time"].to_pylist() == sorted(found["_time"].to_pylist())


def test_events_that_are_stale_go_to_a_file_of_their_own_or_are_marked() -> None:
    words = ["diff", "monday.csv", "tuesday.csv", *KEYED, "-o", "out.csv", "--overwrite"]
    run(*words, "--stale", "side", "--stale-output", "stale.jsonl")
    assert json.loads(Path("stale.jsonl").read_text()) == {
        "id": 3,
        "city": "Bern",
        "amount": 99,
        "updated_at": 5,
        "_winner_updated_at": 12,
        "_time": 2,
        "_diff": 1,
    }
    run(*words, "--stale", "mark", "--stale-output", "all.csv")
    assert sorted(read("all.csv")["_stale"].to_pylist()) == [False] * 5 + [True]


def test_options_say_who_wins_what_deletes_and_what_is_no_change() -> None:
    Path("a.jsonl").write_text('{"id": 1, "v": "x", "at": 1, "n": 5}\n{"id": 1, "v": "y", "at": 1, "n": 4}\n')
    for options, expected in (
        (["--order-by", "at"], "y"),
        (["--order-by", "at", "--tie", "first"], "x"),
        (["--order-by", "at", "--seq", "n"], "x"),
        (["--order-by", "at", "--tie", "greatest"], "y"),
        (["--order-by", "at,n"], "x"),
        ([], "y"),
        (["--delete", "v = 'x'"], "y"),
    ):
        result = run("diff", "a.jsonl", "--key", "id", "--project", "v", *options, "-o", "-")
        assert [row[0] for row in rows(result)] == [expected], options
    assert run("diff", "a.jsonl", "--key", "id", "--delete", "v = 'y'", "-o", "-").stdout == ""
    Path("b.jsonl").write_text('{"id": 1, "v": "y", "at": 9, "n": 4}\n{"id": null, "v": "z"}\n')
    result = run("diff", "a.jsonl", "b.jsonl", "-k", "id", "--noop-ignore", "at", "--null-key", "drop", "-o", "-")
    assert "noop 1" in result.stderr and "bad 1" in result.stderr
    result = run("diff", "a.jsonl", "b.jsonl", "-k", "id", "--track", "v,n", "--null-key", "drop", "-o", "-")
    assert "noop 1" in result.stderr
    assert len(rows(run("diff", "b.jsonl", "-k", "id", "--null-key", "keep", "-o", "-"))) == 2


def test_partial_rows_are_merged_by_strategies_groups_or_cells() -> None:
    Path("a.csv").write_text("id,at,n,tag,twice\n1,5,1,a,\n1,6,2,b,\n2,1,5,,\n")
    Path("b.csv").write_text("id,at,n\n1,4,10\n1,7,20\n")
    merged = ["--order-by", "at", "--merge", "n=sum", "--merge", "tag=join_text(;)", "--types", "twice=int"]
    result = run("diff", "a.csv", "b.csv", "-k", "id", *merged, "--derive", "twice=n * 2", "-o", "-")
    assert rows(result)[-1] == (1, 7, 23, "a;b", 46, 2, 1) and "stale 1" in result.stderr
    Path("c.csv").write_text("id,at,n,tag,twice\n1,7,20,,\n")
    types = ["--types", "tag=text,twice=int", "-o", "-"]
    cells = run("diff", "c.csv", "a.csv", "-k", "id", "--order-by", "at", "--versions", "cell", *types)
    assert (1, 7, 20, "b", None, 2, 1) in rows(cells)
    grouped = run("diff", "a.csv", "-k", "id", "--group", "at=n,tag", "--project", "n,tag", "-o", "-")
    assert rows(grouped) == [(2, "b", 1, 1), (5, None, 1, 1)]
    first = run("diff", "a.csv", "-k", "id", "--merge", "first_row", "--project", "n", "-o", "-")
    assert rows(first) == [(1, 1, 1), (5, 1, 1)]


def test_names_with_commas_go_in_quotes_and_types_are_declared() -> None:
    Path("a.csv").write_text('"a,b",zip,total\n1,08001,1.10\n1,8001,1.1\n')
    words = ["diff", "a.csv", "--key", '"a,b",zip', "--types", "zip=int,total=decimal(9,2)", "-o", "out.parquet"]
    assert "applied 1, superseded 1" in run(*words).stderr
    assert pq.read_schema("out.parquet").types == [pa.int64(), pa.int32(), pa.decimal128(9, 2), pa.int64(), pa.int64()]


def test_json_says_everything_in_one_object_on_stdout() -> None:
    result = run("diff", "monday.csv", "tuesday.csv", *KEYED, "-o", "out.parquet", "--json")
    said = json.loads(result.stdout)
    assert result.stderr == "" and result.stdout.count("\n") == 1
    assert 0 < said.pop("seconds") < 60
    assert said == {
        "inputs": ["monday.csv", "tuesday.csv"],
        "rows": 6,
        "epochs": 2,
        "updates": 6,
        "written": 6,
        "output": "out.parquet",
        "verdicts": {
            "applied": 5,
            "superseded": 0,
            "noop": 0,
            "stale": 1,
            "tie_lost": 0,
            "late": 0,
            "bad": 0,
            "forgotten": 0,
        },
        "epoch": None,
        "pending": 0,
        "skipped": {},
    }
    held = json.loads(
        run("count", "monday.csv", "-k", "id", "--time", "updated_at", "--net", "-o", "o.csv", "--json").stdout
    )
    assert (held["epochs"], held["updates"], held["written"]) == (None, 5, 1)


NULLED = "id,city,amount,updated_at,op\n1,Bern,1,1,U\n,Bern,1,1,U\n"
KEY, TIMED = ["--key", "id"], ["--key", "id", "--time", "updated_at"]
REFUSALS = {
    "a key that is not there": (["--key", "idd"], "monday.csv: the column 'idd' is missing, but every file must"),
    "an order that is not there": ([*KEY, "--order-by", "at"], "--order-by of 'input': there is no column 'at'"),
    "a tombstone that is not there": ([*KEY, "--tombstone", "opp=D"], "no column 'opp'; did you mean 'op'?"),
    "a tombstone of text without a value": ([*KEY, "--tombstone", "op"], "a text column, but there is no value"),
    "a filter that does not parse": ([*KEY, "--filter", "amount >"], "cannot compile filter amount >"),
    "a filter of a missing column": ([*KEY, "--filter", "amuont > 1"], "did you mean 'amount'?"),
    "a filter that is no condition": ([*KEY, "--filter", "amount + 1"], "not boolean"),
    "a delete that is no condition": ([*KEY, "--delete", "amount"], "not boolean"),
    "a projection of a missing column": ([*KEY, "--project", "town"], "town"),
    "a projection with a name twice": ([*KEY, "--project", "city", "--project", "city=id"], "named more than once"),
    "a projection of a column twice": ([*KEY, "--project", "city,city"], "the column 'city' is named more than once"),
    "a tie rule that is none": ([*KEY, "--order-by", "updated_at", "--tie", "best"], "--tie best; use one of ['last'"),
    "late without a time": ([*KEY, "--late", "drop"], "--late drop has no effect without --time"),
    "lateness without a time": ([*KEY, "--lateness", "5"], "--lateness has no effect without --time"),
    "lateness that is no span": ([*TIMED, "--lateness", "soon"], "that is not a duration"),
    "a span for plain numbers": ([*TIMED, "--lateness", "5s"], "is int64, which has no unit; write a plain number"),
    "a time that is no time": ([*KEY, "--time", "city"], "--time of 'input': 'city' is string, which is not a time"),
    "a merge that is none": ([*KEY, "--merge", "amount"], "--merge amount: that is not COLUMN=STRATEGY"),
    "a strategy that is none": ([*KEY, "--merge", "amount=avg"], "{'name': 'avg'}; use one of ['append',"),
    "a merge of a missing column": ([*KEY, "--merge", "total=sum"], "--merge of 'input': there is no column 'total'"),
    "a column merged twice": ([*KEY, "--merge", "amount=sum", "--merge", "amount=max"], "named twice"),
    "a group without an order": ([*KEY, "--group", "amount"], "--group amount: it names no order column"),
    "types that are none": ([*KEY, "--types", "amount=nmber"], "there is no such type"),
    "types of a missing column": (
        [*KEY, "--types", "amuont=int", "--strict-columns"],
        "no file has the declared column 'amuont': did you mean 'amount'?",
    ),
    "types without an equals sign": ([*KEY, "--types", "amount"], "it is not column=type"),
    "types that the values are not": ([*KEY, "--types", "city=int"], "monday.csv, row 2, column 'city': 'Bern' is no"),
    "an output of unknown kind": ([*KEY, "-o", "out.xls"], "write out.xls: unknown file type '.xls'"),
    "an output in no folder": ([*KEY, "-o", "no/out.csv"], "write no/out.csv: there is no folder no; create it first"),
    "an output that exists": ([*KEY, "-o", "tuesday.csv"], "write tuesday.csv: it exists already; choose another"),
    "an output that is the input": ([*KEY, "-o", "monday.csv", "--overwrite"], "monday.csv: it is one of the inputs"),
    "a count called as a group": ([*KEY, "--by", "city", "--name", "city"], "already has the name 'city'"),
    "a group that is not there": ([*KEY, "--by", "town"], "count by: there is no column 'town'"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_makes_no_sense_is_refused_with_a_message_and_exit_code_1(what: str) -> None:
    options, found = REFUSALS[what]
    verb = "count" if "--by" in options else "diff"
    said = refused(verb, "monday.csv", *options)
    assert said.startswith("ddflow: ") and found in said, said


def test_bad_rows_are_refused_with_their_file() -> None:
    Path("null.csv").write_text(NULLED)
    said = refused("diff", "monday.csv", "null.csv", *KEYED, "-o", "out.csv")
    assert said.startswith(
        "ddflow: null.csv: rows for 'input': the key ['id'] is null in 1 rows, first in row 3; fix them"
    )
    Path("tie.csv").write_text("id,at\n1,1\n1,1\n")
    assert "the key {'id': 1} has two events of order {'at': 1}" in refused(
        "diff", "tie.csv", "--key", "id", "--order-by", "at", "--tie", "error", "-o", "out.csv"
    )
    Path("none.csv").write_text("id,at\n1,\n")
    assert "none.csv: the times of 'input': 'at' is null" in refused(
        "diff", "none.csv", "--key", "id", "--time", "at", "--types", "at=bigint", "-o", "out.csv"
    )


def test_rows_far_into_a_file_are_counted_from_where_the_batch_began() -> None:
    with open_output("a.parquet", pa.schema({"id": pa.int64(), "at": pa.int64()})) as out:
        out.write(pa.table({"id": pa.array([*range(70_000), None]), "at": range(70_001)}))
    said = refused("diff", "a.parquet", "--key", "id", "--time", "at", "-o", "out.csv")
    assert "a.parquet, from row 65,536: rows for 'input': the key ['id'] is null in 1 rows, first in row 70,001" in said


def test_files_that_cannot_be_read_are_refused_and_leave_nothing() -> None:
    Path("empty.csv").write_text("")
    Path("ragged.csv").write_text(MONDAY + "9,Bern\n")
    Path("folder").mkdir()
    for name, found in (
        ("empty.csv", "empty.csv: it is empty (0 bytes)"),
        ("s3://b/y.csv", "s3://b/y.csv: it is not of the form s3://bucket/prefix; use such a URL, or a folder"),
        ("gs://b/y.csv", "gs://b/y.csv: inputs are files and folders of this machine, or s3://bucket/key; copy it"),
        (
            "https://h/y.csv",
            "https://h/y.csv: ddflow reads no input from the web; download it first: curl -fLO https://h/y",
        ),
        ("ragged.csv", "ragged.csv: row 5: Expected 5 columns, got 2"),
        ("none.csv", "none.csv: there is no such file or folder"),
        ("folder", "folder: there is no file in it"),
        ("notes.txt", "notes.txt: unknown file type '.txt'"),
    ):
        for mode in ([], ["--time", "updated_at"]):
            said = refused("diff", "monday.csv", name, "--key", "id", *mode, "-o", "out.parquet")
            assert said.startswith(f"ddflow: {found}"), said


def test_updates_are_no_upserts() -> None:
    run("diff", "monday.csv", *KEYED, "-o", "out.parquet")
    assert "have names that ddflow reserves for updates" in refused("diff", "out.parquet", "--key", "id")


def test_a_refused_run_leaves_an_output_that_was_there_as_it_was() -> None:
    Path("null.csv").write_text(NULLED)
    Path("out.csv").write_text("old")
    refused("diff", "monday.csv", "null.csv", *KEYED, "-o", "out.csv", "--overwrite")
    assert Path("out.csv").read_text() == "old"


DIFF = ["diff", "monday.csv", "--key", "id"]
SIDE = ["--stale", "side", "--stale-output", "a.csv"]
USAGE = {
    "no key": (["diff", "monday.csv"], "Missing option '--key'"),
    "no input": (["diff", "--key", "id"], "Missing argument 'INPUT"),
    "an unknown option": ([*DIFF, "--keys"], "No such option"),
    "an unknown verb": (["dif"], "No such command 'dif'. Did you mean 'diff'?"),
    "two kinds of delete": ([*DIFF, "--tombstone", "op=D", "--delete", "true"], "pass only one of them"),
    "json without a file": ([*DIFF, "--json"], "write the rows to a file with -o FILE"),
    "json into stdout": ([*DIFF, "--json", "-o", "-"], "write the rows to a file with -o FILE"),
    "stale without its file": ([*DIFF, "--stale", "side"], "the reverse: pass both"),
    "a file without stale": ([*DIFF, "--stale-output", "a.csv"], "the reverse: pass both"),
    "one file for both": ([*DIFF, *SIDE, "-o", "a.csv"], "the same file"),
    "an epoch below 1": ([*DIFF, "--state", "s", "--epoch", "0"], "greater than or equal to 1"),
}


@pytest.mark.parametrize("what", USAGE)
def test_wrong_usage_has_exit_code_2(what: str) -> None:
    words, found = USAGE[what]
    said = re.sub(r"[│╭╮╰╯─\s]+", " ", refused(*words, code=2))
    assert found in said, said


def test_every_verb_has_help_that_teaches_and_the_documentation_has_every_option() -> None:
    for verb in VERBS:
        assert run(verb, "--help").stdout.split()[0] == "Usage:", verb
        assert verb in run("--help").stdout
    shown = run("diff", "--help").stdout
    assert all(words in shown for words in ("Epoch mode", "Hold-back mode", "Examples"))
    option = re.compile(r"--[a-z][a-z-]+")
    helped = {
        name for words in [(), *((verb,) for verb in VERBS)] for name in option.findall(run(*words, "--help").stdout)
    }
    assert helped == set(option.findall((ROOT / "docs" / "cli.md").read_text()))
    assert "Exit codes" in run("--help").stdout


def test_the_program_itself_ends_with_the_right_code_and_without_a_traceback() -> None:
    assert really("--version").stdout == f"ddflow {dd.__version__}\n"
    bad = really("diff", "monday.csv", "--key", "nokey")
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (1, "", 1)
    assert really("diff", "monday.csv").returncode == 2
    shown = really("diff", "monday.csv", "--key", "nokey", "--debug")
    assert (shown.returncode, "Traceback" in shown.stderr) == (1, True)
    assert shown.stderr.endswith(bad.stderr)


def test_a_bug_has_exit_code_70_and_asks_to_be_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, exit_on_errors(debug=False):
        raise TypeError("'NoneType' object is not subscriptable")
    assert caught.value.exit_code == 70
    assert "this is a bug in ddflow: run again with --debug and report it" in capsys.readouterr().err
    with pytest.raises(typer.Exit) as caught, exit_on_errors(debug=True):
        raise MemoryError
    assert caught.value.exit_code == 1
    assert "Traceback" in (said := capsys.readouterr().err) and "out of memory" in said


def test_asking_for_help_loads_all_verbs_and_nothing_heavy() -> None:
    program = (
        "import sys; from ddflow.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: print(sorted({'numba', 'pyarrow', 'numpy', 'sqlglot', 'pyspark'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_goes_away_is_no_error() -> None:
    with open_output("many.csv", pa.schema({"id": pa.int64()})) as out:
        out.write(pa.table({"id": range(300_000)}))
    command = f"set -o pipefail; {DDFLOW} diff many.csv --key id | head -n 1"
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (shown.returncode, shown.stdout.count("\n"), shown.stderr) == (141, 1, "")


STOPS = [(signal.SIGINT, 130, "ddflow: interrupted\n"), (signal.SIGTERM, 143, "")]


@long_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("number", "code", "said"), STOPS)
def test_a_run_that_is_stopped_leaves_nothing(number: signal.Signals, code: int, said: str, folder: Path) -> None:
    with open_output("many.csv", pa.schema({"id": pa.int64()})) as out:
        out.write(pa.table({"id": range(100_000)}))
    process = ddflow("diff", *["many.csv"] * 100, "--key", "id", "-o", "out.csv", stderr=PIPE)
    for _ in range(1_200):
        if list(folder.glob(".out.csv.*.part")):
            break
        time.sleep(0.1)
    process.send_signal(number)
    assert process.communicate()[1] == said
    assert process.returncode == code
    assert sorted(path.name for path in folder.iterdir()) == ["many.csv", "monday.csv", "tuesday.csv"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_a_signal_whose_exception_c_code_drops_comes_again(number: signal.Signals, code: int) -> None:
    script = f"""if True:
    import ctypes, signal, time
    from ddflow.cli import stop_on_signals
    stop_on_signals()
    def call():
        signal.raise_signal({int(number)})
    state = "raised"
    try:
        ctypes.CFUNCTYPE(None)(call)()
        state = "dropped"
        time.sleep(600)
    except KeyboardInterrupt:
        raise SystemExit(1)
    finally:
        print(state)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stdout, done.stderr) == (code, "dropped\n", "")


def program_on_a_terminal(*words: str) -> tuple[int, str]:
    """The exit code of the program, started on a terminal, and what it showed."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen([DDFLOW, *words], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = until_closed(ours)
    return process.wait(timeout=120), without_colours(shown)


def test_a_terminal_sees_progress_a_table_of_the_first_rows_and_what_was_done() -> None:
    with open_output("many.parquet", pa.schema({"id": pa.int64(), "city": pa.string()})) as out:
        out.write(pa.table({"id": range(100_000), "city": [None] * 100_000}))
    code, shown = on_a_terminal("diff", "many.parquet", "--key", "id", every=0)
    assert code == 0
    assert re.search(r"100,000 rows, [\d,]+ rows/s, \d", shown)
    assert len(re.findall(r"^│ .* null .*│", shown, re.MULTILINE)) == 20
    assert "... and 99,980 more rows; -o FILE writes all rows, -o - prints them" in shown
    assert "100,000 rows of many.parquet in 1 epoch: 100,000 updates in" in shown
    code, shown = on_a_terminal("diff", "monday.csv", "--key", "id", "-o", "-")
    assert code == 0 and shown.startswith('{"id":')


def examples(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a page with the lines they show."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for command in block.split("$ ")[1:]:
            line, *shown = command.splitlines()
            yield line, shown


@pytest.mark.parametrize(("page", "commands"), [("cli", 8), ("guides/daily-exports", 4)])
def test_the_examples_in_the_documentation_are_true(page: str, commands: int) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for name, content in re.findall(r"`([\w-]+\.csv)`:\n\n```csv\n(.*?)```", text, re.DOTALL):
        Path(name).write_text(content)
    seen = 0
    for line, shown in examples(text):
        words = shlex.split(line.replace("2>/dev/null", ""))
        if words[0] == "cat":
            assert Path(words[1]).read_text().splitlines() == shown
            continue
        assert words.pop(0) == "ddflow"
        result = CliRunner().invoke(app, words)
        said = result.stdout + ("" if "2>/dev/null" in line else result.stderr)
        assert sorted(map(steady, said.splitlines())) == sorted(map(steady, shown)), line
        seen += 1
    assert seen >= commands


def steady(line: str) -> str:
    """A line without what differs from run to run."""
    return re.sub(r'in [\d.]+ s, [\d,]+ rows/s|"seconds": [\d.]+', "", line)
