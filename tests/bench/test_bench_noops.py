"""Test the no-op bench: all feeds of a git history end in the same tree, and only full files have no-op events."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.soak  # of the bench, which users do not have; tests/bench/test_bench_smoke.py runs always

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def noops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    import noops as program

    return program


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A repository of two commits: one file stays, one changes, one goes."""

    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True)

    git("init", "-q")
    for name, text in (("stays", "1"), ("changes", "1"), ("goes", "1")):
        (tmp_path / name).write_text(text)
    git("add", "-A")
    git("commit", "-qm", "one")
    (tmp_path / "changes").write_text("2")
    (tmp_path / "goes").unlink()
    git("add", "-A")
    git("commit", "-qm", "two")
    return tmp_path


def test_full_files_are_noops_but_for_what_changed(noops: Any, history: Path) -> None:
    log, files = (list(noops.readings(history, 5, feed)) for feed in ("log", "full files"))
    assert [table.num_rows for table in log] == [3, 2] and [table.num_rows for table in files] == [3, 2]
    expected, measure = noops.BENCH.expected(str(history)), noops.BENCH.measure
    found = {
        (feed, ignored): measure(feed, ignored, str(history), 5) for feed in noops.FEEDS for ignored in (False, True)
    }
    assert {row["checksum"] for row in found.values()} == {expected}
    assert {at: (row["updates"], row["noops"]) for at, row in found.items()} == {
        ("log", False): (6, 0),
        ("log", True): (6, 0),
        ("full files", False): (8, 0),
        ("full files", True): (6, 1),
        ("ddflow replace", False): (8, 0),
        ("ddflow replace", True): (6, 1),
    }


def test_the_program_checks_each_feed_against_the_tree_that_git_shows(history: Path) -> None:
    command = [sys.executable, BENCH, "noops", "--set", f"repository={history}", "--no-save"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "No-ops" in done.stdout and "ddflow replace" in done.stdout
