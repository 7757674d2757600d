"""Test ``ddflow replace``: successive full files, with and without a state, against the differences between files.

``test_replace`` tests how the engine handles full contents; this file tests that the command passes files as full
contents.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from ddflow.cli import app

DAYS = [
    "id,city,seen\n1,Bern,1\n2,Basel,1\n3,Chur,1\n",
    "id,city,seen\n3,Chur,2\n1,Biel,2\n",
    "id,city,seen\n3,Chur,3\n4,Bern,3\n2,Basel,3\n",
]
NAMES = ["day1.csv", "day2.csv", "day3.csv"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with three days of full files."""
    monkeypatch.chdir(tmp_path)
    for name, text in zip(NAMES, DAYS, strict=True):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["replace", *words])
    assert result.exit_code == code, (result.output, result.stderr)
    return result


def changes(ignored: str | None = None) -> Counter[tuple[str, ...]]:
    """What the days differ by, from the texts: (id, city, seen, time) with its diff; ``ignored`` makes no change."""
    out, before = Counter[tuple[str, ...]](), dict[str, dict[str, str]]()
    for time, text in enumerate(DAYS, 1):
        now = {row["id"]: row for row in csv.DictReader(text.splitlines())}
        kept = {
            k: before[k] for k in now if k in before and all(now[k][c] == before[k][c] for c in now[k] if c != ignored)
        }
        now |= kept
        for sign, rows, others in ((-1, before, now), (1, now, before)):
            for key, row in rows.items():
                if others.get(key) != row:
                    out[(*row.values(), str(time))] += sign
        before = now
    return out


def told(path: str) -> Counter[tuple[str, ...]]:
    out = Counter[tuple[str, ...]]()
    for row in pq.read_table(path).to_pylist():
        *values, diff = row.values()
        out[tuple(map(str, values))] += diff
    return out


@pytest.mark.parametrize("ignored", [None, "seen"])
def test_successive_full_files_give_what_they_differ_by(ignored: str | None) -> None:
    extra = ["--noop-ignore", ignored] if ignored else []
    done = run(*NAMES, "--key", "id", "-o", "out.parquet", "--json", *extra)
    assert told("out.parquet") == changes(ignored)
    assert json.loads(done.stdout)["verdicts"]["absent"] == 2


def test_a_state_goes_on_and_an_epoch_is_given_again() -> None:
    for i, name in enumerate(NAMES):
        run(name, "--key", "id", "--state", "state", "-o", f"out{i}.parquet")
    every = Counter[tuple[str, ...]]()
    for i in range(3):
        every.update(told(f"out{i}.parquet"))
    assert every == changes()
    run(*NAMES[1:], "--key", "id", "--state", "state", "--epoch", "2", "-o", "again.parquet")
    both = told("out1.parquet")
    both.update(told("out2.parquet"))
    assert told("again.parquet") == both


def test_a_scope_and_what_is_refused() -> None:
    run("day1.csv", "--key", "id", "--state", "state", "-o", "a.parquet")
    Path("biel.csv").write_text("id,city,seen\n9,Bern,5\n")
    run("biel.csv", "--key", "id", "--state", "state", "--scope", "city = 'Bern'", "-o", "b.parquet")
    assert told("b.parquet") == Counter({("1", "Bern", "1", "2"): -1, ("9", "Bern", "5", "2"): 1})
    refused = run("day1.csv", "--key", "id", "--scope", "city = 'Bern'", "-o", "c.parquet", code=1)
    assert "day1.csv: replace of 'input'" in refused.stderr
    assert "2 rows from row 0 on are not in the scope" in refused.stderr
    Path("twice.csv").write_text("id,city,seen\n9,Bern,5\n9,Bern,6\n")
    refused = run("twice.csv", "--key", "id", "-o", "c.parquet", code=1)
    assert "1 keys have more than one row, first [{'id': 9}]" in refused.stderr
    assert not Path("c.parquet").exists()
