"""Test ``diff`` and ``count`` with ``--state``: several runs equal one run, and a repeated run gives the same rows.

Runs over parts of the files must together write what one run over all files writes without a state.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pyarrow.feather as feather
import pytest
from chance import SOAK, mid_test, seeded
from programs import ddflow
from test_cli import run

import ddflow as dd

DAYS = {
    "1.csv": "id,city,amount,at,op\n1,Bern,120,10,U\n2,Basel,80,11,U\n3,Bern,15,12,U\n",
    "2.csv": "id,city,amount,at,op\n1,Basel,120,20,U\n2,,,21,D\n3,Bern,99,5,U\n",
    "3.csv": "op,at,city,id\nU,31,Chur,4\nU,30,Bern,1\n",  # other columns, in another order
    "4.csv": "id,city,amount,at,op\n1,Bern,,40,U\n",  # an amount that says nothing of its type
}
KEYED = ["--key", "id", "--order-by", "at", "--tombstone", "op=D"]
TIMED = ["--key", "id", "--time", "at", "--tombstone", "op=D", "--late", "drop"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, text in DAYS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def rows(*words: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in run(*words, "-o", "-").stdout.splitlines()]
    return sorted(lines, key=lambda row: (row["_time"], row["_diff"], repr(row)))


@pytest.mark.parametrize("verb", [["diff", "--project", "id,city,amount"], ["count", "--by", "city"]])
def test_file_after_file_is_all_files_at_once(verb: list[str]) -> None:
    whole = rows(*verb, *DAYS, *KEYED)
    apart = [row for name in DAYS for row in rows(*verb, name, *KEYED, "--state", "state")]
    assert apart == whole
    assert rows(*verb, "1.csv", "2.csv", *KEYED, "--state", "two") == [row for row in whole if row["_time"] < 3]
    assert rows(*verb, "3.csv", "4.csv", *KEYED, "--state", "two", "--memory", "16MB") == [
        row for row in whole if row["_time"] >= 3
    ]
    assert dd.fsck("state").ok


def test_what_is_said_is_of_this_run_and_of_the_state() -> None:
    said = run("diff", "1.csv", *KEYED, "--state", "state", "-o", "1.parquet").stderr
    assert re.fullmatch(r"3 rows of 1.csv in 1 epoch, now at epoch 1: 3 updates to 1.parquet in .*; applied 3\n", said)
    done = json.loads(run("diff", "2.csv", *KEYED, "--state", "state", "-o", "2.parquet", "--json").stdout)
    assert (done["rows"], done["epoch"], done["epochs"], done["pending"]) == (3, 2, 1, 0)
    assert done["verdicts"]["applied"] == 2 and done["verdicts"]["stale"] == 1
    assert json.loads(run("diff", "1.csv", *KEYED, "-o", "x.csv", "--json").stdout)["epoch"] is None


@pytest.mark.parametrize("spec", [KEYED, TIMED, [*TIMED, "--lateness", "10"]])
def test_epochs_that_were_committed_give_what_they_gave(spec: list[str]) -> None:
    words = ["diff", *DAYS, *spec, "--state", "state", "--epoch", "1"]
    whole = rows(*words)
    assert whole and rows(*words) == whole and rows(*words) == whole
    for many in range(1, 4) if spec != TIMED else ():  # as if it had died after so many
        rows("diff", *list(DAYS)[:many], *spec, "--state", f"after {many}", "--epoch", "1")
        words[words.index("--state") + 1] = f"after {many}"
        assert rows(*words) == whole
    if spec == KEYED:
        last = rows("diff", "4.csv", *spec, "--state", "state", "--epoch", "4")
        assert last == [row for row in whole if row["_time"] == 4]
    message = run("diff", "1.csv", *spec, "--state", "state", "--epoch", "6", code=1).stderr
    assert "epoch 6" in message and "the last committed epoch is 4" in message
    message = run("diff", "2.csv", *spec, "--state", "state", "--epoch", "1", code=1).stderr
    assert "2.csv" in message and "committed as" in message


def test_with_times_of_their_own_what_was_seen_is_closed_and_later_files_go_on() -> None:
    whole = rows("diff", "1.csv", "2.csv", *TIMED)
    done = run("diff", "1.csv", *TIMED, "--state", "state", "-o", "-")
    assert "pending" not in done.stderr and len(done.stdout.splitlines()) == 3
    again = run("diff", "2.csv", *TIMED, "--state", "state", "-o", "-")
    assert "late 1" in again.stderr  # what is older than what was closed
    assert len(whole) > 3
    first = run("diff", "1.csv", *TIMED, "--lateness", "2", "--state", "slow", "-o", "-")
    assert "pending 3" in first.stderr
    first = run("diff", "3.csv", *TIMED, "--lateness", "2", "--state", "slow", "-o", "-")
    assert "pending 2" in first.stderr and dd.inspect("slow")["epoch"] == 2


def test_a_run_that_is_refused_half_way_says_what_is_committed_and_goes_on() -> None:
    whole = rows("diff", "1.csv", "2.csv", *KEYED)
    (Path("bad.csv")).write_text("id,city,amount,at,op\n,Bern,1,50,U\n")
    message = run("diff", "1.csv", "bad.csv", *KEYED, "--state", "state", "-o", "out.csv", code=1).stderr
    assert "bad.csv" in message and "are in epochs-1-1.out.csv: continue with bad.csv, --epoch 2" in message
    assert not Path("out.csv").exists() and Path("epochs-1-1.out.csv").exists() and dd.inspect("state")["epoch"] == 1
    assert rows("diff", "1.csv", "2.csv", *KEYED, "--state", "state", "--epoch", "1") == whole
    # Nothing was committed: nothing is said of it.
    assert "--epoch" not in run("diff", "bad.csv", *KEYED, "--state", "state", code=1).stderr


def test_another_plan_is_refused_by_field() -> None:
    run("diff", "1.csv", *KEYED, "--state", "state", "-o", "-")
    message = run("diff", "2.csv", "--key", "id,city", *KEYED[2:], "--state", "state", code=1).stderr
    assert "--key of input 'input' is ['id', 'city'], but was ['id']" in message and "ddflow migrate" in message
    message = run("diff", "2.csv", *KEYED, "--filter", "amount > 1", "--state", "state", code=1).stderr
    assert "output 'output' is input.filter('amount > 1'), but was input" in message
    run("diff", "2.csv", *KEYED, "--types", "amount=string", "--state", "state", code=1)
    assert dd.inspect("state")["epoch"] == 1


def test_a_column_that_a_file_adds_is_added_to_the_state() -> None:
    run("diff", "1.csv", *KEYED, "--state", "state", "-o", "-")
    Path("more.csv").write_text("id,city,amount,at,op,tag\n9,Bern,1,50,U,new\n")
    found = rows("diff", "more.csv", *KEYED, "--state", "state")
    assert found == [{"id": 9, "city": "Bern", "amount": 1, "at": 50, "tag": "new", "_time": 2, "_diff": 1}]


def test_the_final_counts_are_of_all_runs() -> None:
    run("count", "1.csv", *KEYED, "--by", "city", "--net", "--state", "state", "-o", "-")
    run("count", "2.csv", *KEYED, "--by", "city", "--net", "--state", "state", "-o", "net.csv")
    assert Path("net.csv").read_text() == '"city","count"\n"Basel",1\n"Bern",1\n'


def test_stale_events_are_given_again_too() -> None:
    side = ["--stale", "side", "--stale-output", "stale.csv", "--overwrite"]
    words = ["diff", "1.csv", "2.csv", *KEYED, *side, "--state", "state", "--epoch", "1", "-o", "-"]
    run(*words)
    said = Path("stale.csv").read_text()
    assert said.count("\n") == 2
    run(*words)
    assert Path("stale.csv").read_text() == said


@pytest.mark.parametrize("words", [["--epoch", "1"], ["--memory", "1GB"], ["--retain", "3"], ["--trust", "group"]])
def test_options_of_a_state_need_one(words: list[str]) -> None:
    assert "pass --state FOLDER too" in re.sub(r"[│\s]+", " ", run("diff", "1.csv", *KEYED, *words, code=2).output)


def test_a_state_that_is_none_is_refused() -> None:
    Path("mine").mkdir(mode=0o700)
    (Path("mine") / "notes").write_text("mine")
    assert "not empty" in run("diff", "1.csv", *KEYED, "--state", "mine", code=1).stderr


@mid_test
def test_a_run_that_is_killed_is_run_again_and_nothing_is_lost_or_twice(tmp_path: Path) -> None:
    names = [f"{i}.jsonl" for i in range(6)]
    for i, name in enumerate(names):
        lines = (json.dumps({"id": n % 997, "v": n * 7 + i}) for n in range(10_000))
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    words = ["diff", *names, "--key", "id", "--state", "killed", "--epoch", "1", "-o", "killed.arrow"]
    draw = seeded(__name__)
    for _ in range(3 if SOAK else 1):
        child = ddflow(*words)
        deadline, before = time.monotonic() + 120, _manifests() + draw.randrange(4)
        while _manifests() <= before and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        child.kill()
        child.wait()
        if Path("killed.arrow").exists():
            break
    if not Path("killed.arrow").exists():
        run(*words)
    run("diff", *names, "--key", "id", "--state", "whole", "-o", "whole.arrow")
    assert dd.inspect("killed")["epoch"] == 6
    assert _sorted(feather.read_table("killed.arrow")) == _sorted(feather.read_table("whole.arrow"))


def _manifests() -> int:
    return len(list(Path("killed/manifests").glob("0*"))) if Path("killed/manifests").exists() else 0


def _sorted(table: Any) -> list[Any]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_inspect_shows_the_newest_versions_and_cuts_long_names() -> None:
    flow = dd.Flow()
    rows = flow.upserts("orders", {"id": int, "city": str, "amount": int}, dd.Upsert(key="id"))
    for number in range(6):
        rows = rows.filter(f"amount > {number}")
    flow.output("by_city", rows.group_by("city").agg(n="count(*)", total="sum(amount)", most="max(amount)"))
    with flow.open("state") as engine:
        for number in range(12):
            engine.step({"orders": {"id": [number], "city": ["Bern"], "amount": [number]}})
        engine.run({"orders": dd.sources.files("*.none")}, {"by_city": dd.sinks.sqlite("out.db", "by_city")})
    said, whole = run("inspect", "state").stdout, json.loads(run("inspect", "state", "--json").stdout)
    assert max(map(len, said.splitlines())) < 160 < max(map(len, whole["operators"]))
    kept = said[said.index("Versions that are kept") :].strip().splitlines()[2:]
    assert [line.split()[0] for line in kept[:5]] == [str(each["manifest"]) for each in whole["versions"][:5]]
    assert len(kept) == 6 and f"{len(whole['versions']) - 5} versions, back to" in kept[5]
    assert said.index("\nSinks\n") < said.index("\nCollections\n")
