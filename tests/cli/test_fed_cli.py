"""Test ``verify``, ``migrate`` and ``why`` on states whose input came from ``ddflow replace``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_cli import run

import ddflow as dd

FILES = {
    "d1.csv": "id,region,v\n1,EU,a\n2,EU,b\n",
    "e1.csv": "id,region,v\n3,US,c\n",
    "d2.csv": "id,region,v\n2,EU,b\n4,US,d\n",
    "eu.csv": "id,region,v\n5,EU,e\n",
    "e2.csv": "id,region,v\n4,US,x\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


def ids(state: str) -> list[int]:
    return sorted(dd.read(state, "output")["id"].to_pylist())


def daily() -> str:
    """A state of two full files."""
    run("replace", "d1.csv", "d2.csv", "--key", "id", "--state", "daily", "-o", "daily.csv")
    return "daily"


def mixed() -> str:
    """A state of events, a full file, a full file of a scope, and events again."""
    for verb, name, *more in (
        ("diff", "d1.csv"),
        ("diff", "e1.csv"),
        ("replace", "d2.csv"),
        ("replace", "eu.csv", "--scope", "region = 'EU'"),
        ("diff", "e2.csv"),
    ):
        run(verb, name, "--key", "id", "--state", "mixed", "-o", f"out-{name}", *more)
    return "mixed"


def test_a_log_of_full_files_brings_no_deleted_key_back() -> None:
    run("migrate", daily(), "new", "d1.csv", "d2.csv", "--key", "id", "-o", "net.csv")
    assert ids("daily") == ids("new") == [2, 4]
    assert len(Path("net.csv").read_text().splitlines()) == 1
    assert "agrees with its log" in run("verify", "daily", "d1.csv", "d2.csv").stdout
    said = run("why", "daily", "1", "d1.csv", "d2.csv").stdout
    assert "its input was fed full contents (epochs 1 to 2)" in said
    assert said.splitlines()[-1] == "  at 2: deleted: full contents lack it"
    again = json.loads(run("why", "new", "1", "d1.csv", "d2.csv", "--json").stdout)
    assert [row["verdict"] for row in again["story"] if row["what"] in ("event", "absent")] == ["applied", "absent"]


def test_a_log_that_lacks_a_full_file_is_refused_unless_it_is_marked() -> None:
    state = daily()
    for words in (
        ["verify", state, "d2.csv"],
        ["why", state, "1", "d2.csv"],
        ["migrate", state, "new", "d2.csv", "--key", "id", "-o", "net.csv"],
    ):
        said = run(*words, code=1).stderr
        assert "the state was fed full contents (epochs 1 to 2); that is 2 calls, but the log has 1 unmarked" in said
        assert "--full FILE" in said
        assert not Path("new").exists() and not Path("net.csv").exists()
        run(*words, "--full", "d2.csv")
    assert ids("new") == [2, 4]
    assert "DIFFERS" in run("verify", state, "d1.csv", "--full", "d1.csv", code=1).stdout


def test_a_mixed_log_is_told_by_its_number_of_files_or_by_marks() -> None:
    state, log = mixed(), ["d1.csv", "e1.csv", "d2.csv", "eu.csv", "e2.csv"]
    assert ids(state) == [4, 5]
    assert "agrees with its log: 2 rows, 7 events" in run("verify", state, *log).stdout
    # Events that come in other files than they came in then: what is full is said.
    Path("both.csv").write_text(FILES["d1.csv"] + FILES["e1.csv"].split("\n", 1)[1])
    log = ["both.csv", "d2.csv", "eu.csv", "e2.csv"]
    said = run("verify", state, *log, code=1).stderr
    assert "events (epochs 1 to 2), full contents (epoch 3), full contents of the scope" in said
    for marks in (["--full", "d2.csv", "--full", "eu.csv"], ["--full", "d2.csv", "--full", "e?.csv"]):
        code = int("e?.csv" in marks)
        run("verify", state, *log, *marks, code=code)
        run("migrate", state, f"new{code}", *log, "--key", "id", "-o", f"net{code}.csv", *marks, code=code)
    assert ids("new0") == [4, 5] and not Path("new1").exists()
    said = run("verify", state, *log, "--full", "d2.csv", "--full", "eu.csv", "--scope", "region = 'US'", code=1).stderr
    assert "a part of the log is marked with the scope \"region = 'US'\"" in said
    assert ids(state) == [4, 5]
    story = run("why", state, "2", *log, "--full", "d2.csv", "--full", "eu.csv").stdout
    assert "  at 3: deleted: full contents of the scope \"region = 'EU'\" lack it" in story


def test_marks_name_files_of_the_log() -> None:
    state = daily()
    Path("log").mkdir()
    for name in ("d1.csv", "d2.csv"):
        Path("log", name).write_text(FILES[name])
    run("verify", state, "log", "--full", "log")
    run("verify", state, "log", "--full", "log/*.csv")
    run("verify", state, "log", "--full", "d?.csv")
    for words, said in (
        (["--full", "d3.csv"], "--full d3.csv: no file of the log matches it"),
        (["--scope", "id > 1"], "name their files with --full"),
    ):
        for verb in (
            ["verify", state, "log"],
            ["why", state, "1", "log"],
            ["migrate", state, "new", "log", "--key", "id", "-o", "net.csv"],
        ):
            assert said in re.sub(r"[│\s]+", " ", run(*verb, *words, code=2).output)
    run("diff", "d1.csv", "--key", "id", "--state", "events", "-o", "e.csv")
    assert "pass it as events, without a mark" in run("verify", "events", "d1.csv", "--full", "d1.csv", code=1).stderr


def test_a_scope_is_said_where_the_state_has_forgotten_it() -> None:
    log = ["d2.csv", "eu.csv", "d1.csv"]
    run("diff", "d2.csv", "--key", "id", "--state", "s", "-o", "a.csv")
    run("replace", "eu.csv", "--key", "id", "--state", "s", "-o", "b.csv", "--scope", "region = 'EU'")
    assert ids("s") == [4, 5]
    run("diff", "d1.csv", "--key", "id", "--state", "s", "-o", "c.csv")
    run("verify", "s", *log)
    run("gc", "s", "--forget")
    said = run("verify", "s", *log, code=1).stderr
    assert "2 calls without details (epochs up to 2: 1 of events, 1 of full contents, 0 restated)" in said
    assert "1 rows missing" not in run("verify", "s", *log, "--full", "eu.csv", "--scope", "region = 'EU'").stdout
    said = run("verify", "s", *log, "--full", "eu.csv", code=1).stdout
    assert "extra (id=4)" in said and "DIFFERS" in said
    shown = run("inspect", "s").stdout
    assert re.search(r"input +1 to 2 +1 +events, only counted", shown)
    assert re.search(r"input +1 to 2 +1 +full contents, only counted", shown)


def test_inspect_shows_the_last_of_many_ways() -> None:
    for i in range(4):
        run("replace", "d1.csv", "--key", "id", "--state", "s", "-o", f"a{i}.csv")
        run("diff", "d1.csv", "--key", "id", "--state", "s", "-o", f"b{i}.csv")
    lines = run("inspect", "s").stdout.splitlines()
    at = lines.index("How inputs were fed")
    rows = [re.split(r" {2,}", line.strip()) for line in lines[at + 2 : at + 8]]
    assert rows[0] == ["input", "8", "1", "events"] and rows[1] == ["input", "7", "1", "full contents"]
    assert rows[5] == ["input", "1 to 3", "3", "3 runs of calls"]
