"""Kill ``ddflow run`` anywhere between source and sink: it continues, and source, state and targets agree.

Each scenario of the table feeds a source, and at the end compares the source with state and targets. The tests follow
changelogs epoch by epoch. A process is killed at its n-th call, at a random time, or, in a soak, at many random times.
To add a source or target, write a file ``run_*.py`` and a row here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import real_kafka
from chance import SOAK, mid_test, sample, seeded
from lives import PROGRAM, Lives, Story, calls_of
from postgres_server import missing
from run_columns import ColumnsRun
from run_delta import DeltaRun
from run_files import FilesRun
from run_kafka import KafkaColumnsRun, KafkaRun
from run_postgres import PostgresColumnsRun, PostgresRun, PostgresTablesRun, PostgresUnloggedRun


class Row(NamedTuple):
    """A story, and how often it is killed."""

    story: Callable[..., Story]
    calls: int
    """Lives that end at a call, in each run of the tests; all calls in a soak."""
    seconds: float = 0.0
    """The longest life of those that end at a moment; 0: none does."""
    many: int = 0
    """Lives that end at a moment in a soak, each twice as long."""
    server: str = ""
    """The fixture of the server that the story needs."""


STORIES = {
    "files": Row(FilesRun, 6, 0.5, 200),
    "columns": Row(ColumnsRun, 5),
    "delta": Row(DeltaRun, 4, 0.0, 60),
    "kafka": Row(KafkaRun, 6, 1.0, 200, "servers"),
    "kafka columns": Row(KafkaColumnsRun, 3, server="servers"),
    "postgres": Row(PostgresRun, 6, 0.5, 200, "server"),
    "postgres columns": Row(PostgresColumnsRun, 3, server="server"),
    "postgres changes that are not logged": Row(PostgresUnloggedRun, 3, server="server"),
    "postgres tables": Row(PostgresTablesRun, 3, server="server"),
}
HERE = {name: row for name, row in STORIES.items() if not (row.server == "server" and missing())}
MOMENTS = 6
"""Lives that end at a moment in each run of the tests."""
LONGEST = 600.0
"""Seconds that a life may take to its own end."""


@pytest.fixture
def begin(tmp_path: Path, request: Any, lives: Lives, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that begins the story of a name."""
    for name, value in lives.catalog.items():
        monkeypatch.setenv(name, value)
    begun: list[Story] = []

    def begin(name: str) -> Story:
        row = STORIES[name]
        server = [request.getfixturevalue(row.server)] if row.server else []
        begun.append(row.story(tmp_path / "story", *server))
        return begun[-1]

    yield begin
    for story in begun:
        story.close()


def finish(story: Story, lives: Lives) -> int:
    """Let a life run to its end, and compare. Return the number of its calls."""
    assert lives.begin(story.words(False), story.errors).wait(LONGEST) == 0, story.errors.read_text()
    story.look()
    return int(calls_of(story.errors).read_text())


def kill_at_moments(story: Story, lives: Lives, times: int, longest: float) -> None:
    """Kill so many lives that are fed and follow, each within so many seconds."""
    draw = seeded(__name__, type(story).__name__)
    real = SOAK and not story.forked
    for _ in range(times):
        process: Any
        if real:
            with story.errors.open("ab") as errors:
                process = subprocess.Popen([sys.executable, "-c", PROGRAM, *story.words(True)], stderr=errors)
        else:
            process = lives.begin(story.words(True), story.errors, torn=story.torn)
        ends = time.monotonic() + draw.uniform(0.0, longest + 1.5 * real)
        while time.monotonic() < ends:
            story.feed(draw)
            time.sleep(draw.uniform(0.0, 0.03))
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, story.errors.read_text()
        story.lived()
    finish(story, lives)


@mid_test
@pytest.mark.drawn(3, of="kills")
@pytest.mark.sampled
@pytest.mark.parametrize("name", HERE)
def test_a_run_that_is_killed_at_calls_goes_on(lives: Lives, begin: Any, name: str) -> None:
    story, most = begin(name), STORIES[name].calls
    draw = seeded(__name__, "calls", name)
    story.feed(draw)
    calls = finish(story, lives)
    assert calls > 100
    killed = 0
    for at in sample(range(calls), most, __name__, name):
        story.feed(draw)
        status = lives.begin(story.words(False), story.errors, at, story.torn).wait(LONGEST)
        assert status in (0, -signal.SIGKILL), story.errors.read_text()
        killed += status != 0
        story.lived()
    assert killed > most // 2
    finish(story, lives)


@mid_test
@pytest.mark.drawn(3, of="kills")
@pytest.mark.parametrize("name", [name for name, row in HERE.items() if row.seconds])
def test_a_run_that_is_killed_at_moments_goes_on(lives: Lives, begin: Any, name: str) -> None:
    kill_at_moments(begin(name), lives, MOMENTS, STORIES[name].seconds)


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name, row in HERE.items() if row.many])
def test_a_run_that_is_killed_at_many_moments_goes_on(lives: Lives, begin: Any, name: str) -> None:
    story, row = begin(name), STORIES[name]
    story.feed(Random(1))
    finish(story, lives)  # columns beside the first rows that are committed would be left out
    kill_at_moments(story, lives, row.many, 2 * row.seconds or 1.0)


@pytest.mark.soak
def test_what_the_mock_does_not_show_is_found_missing(servers: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(real_kafka.Checks, "topic", lambda self: f"check-{uuid4().hex}")
    wrong = real_kafka.looked_at(real_kafka.Checks(servers, {}))
    assert wrong == ["fencing", "dead_writer", "aborted", "group", "start_by_time", "retention", "created_anew"]
    said = capsys.readouterr().out
    assert "two writers wrote" in said and "a record of an open transaction was read" in said
