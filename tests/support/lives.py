"""Lives of ``ddflow run``: begun, and ended by SIGKILL at a moment, or at the n-th call of what a run is made of.

`Lives` begins programs that are forked from a process in which all is imported and compiled (`programs.py`). Each runs
the command line as the program does, so a life begins at once, and most of its time is spent in what a kill is to meet.
A soak starts the real program for each life instead.

A `Story` has a place, words for the command line, a writer that feeds its source, and a look at what source, state and
target hold in the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from programs import Program

WATCHED = ("ddflow/engine/run/", "engine/commits", "engine/epoch_log", "ddflow/connectors/")
CALLS = {
    *("execute", "executemany", "commit", "rollback", "write", "link", "rename", "unlink", "mkdir", "fsync"),
    *("produce", "begin_transaction", "commit_transaction", "init_transactions", "consume", "assign", "cursor"),
}
PROGRAM = "from ddflow.cli import main; main()"
LIFE = "import sys\nfrom lives import live\nlive(*sys.argv[1:])"
LIBRARIES = """
import confluent_kafka, deltalake, duckdb, psycopg, pyiceberg.catalog.sql, pyiceberg.io.pyarrow
import ddflow.cli.run, ddflow.connectors.address
from lives import warm
warm()
"""
"""What the process has done that forks lives."""


class Deadly:
    """Counts the calls of a run; the ``at``-th kills."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0
        self.watched: dict[Any, bool] = {}

    def __call__(self, frame: Any, event: str, given: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code not in self.watched:
                self.watched[code] = any(each in code.co_filename for each in WATCHED)
            named = self.watched[code]
        else:
            named = event == "c_call" and getattr(given, "__name__", "") in CALLS
        if named:
            self.calls += 1
            if self.calls == self.at + 1:
                os.kill(os.getpid(), signal.SIGKILL)


class Lives:
    """Begins lives.  ``lake``: the folder of Iceberg's catalog and tables."""

    def __init__(self, lake: Path) -> None:
        name = "PYICEBERG_CATALOG__DEFAULT__"
        self.catalog = {f"{name}URI": f"sqlite:///{lake}/catalog.db", f"{name}WAREHOUSE": f"file://{lake}/warehouse"}
        self._before = f"import os\nos.environ.update({self.catalog!r})\n{LIBRARIES}"

    def begin(self, words: Sequence[str], errors: Path, at: int = -2, torn: str = "") -> Program:
        """Begin a life.  ``at``: the call at which it dies.  ``torn``: a file that is there within Kafka's
        transactions."""
        with errors.open("ab") as file:
            return Program(
                LIFE, calls_of(errors), at, torn, *words, of=self._before, env=os.environ | self.catalog, stderr=file
            )


def calls_of(errors: Path) -> Path:
    """Name the file with the number of calls of a life that nothing ended."""
    return errors.with_suffix(".calls")


class Story:
    """What a test of kills has."""

    forked = False
    """Whether a soak forks its lives, too."""

    def __init__(self, place: Path) -> None:
        self.place, self.errors, self.torn = place, place / "errors", ""
        place.mkdir(exist_ok=True)
        (place / "flow.py").write_text(self.flow)

    flow: str

    def words(self, follow: bool) -> list[str]:
        """Of a run; ``follow``: whether it goes on."""
        way = ["--follow", "--interval", "10ms"] if follow else []
        return ["run", str(self.place / "flow.py"), "--state", str(self.place / "state"), *way, *self.attached()]

    def attached(self) -> list[str]:
        """The words that attach."""
        raise NotImplementedError

    def feed(self, draw: Random) -> None:
        """Something new for the source."""
        raise NotImplementedError

    def look(self) -> None:
        """Compare source, state and target."""
        raise NotImplementedError

    def lived(self) -> None:
        """A life ended."""

    def close(self) -> None:
        """Leave the server, if there is one, as it was."""


def replayed(rows: Iterable[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """What a changelog comes to, epoch by epoch: none takes back what is not there, or adds what is.

    So an epoch that was written twice, or left out, is found.
    """
    held, epochs = set[tuple[Any, ...]](), dict[int, list[tuple[bool, tuple[Any, ...]]]]()
    for row in rows:
        kind, epoch = row.pop("_change_type"), row.pop("_commit_version")
        row.pop("_commit_timestamp")
        epochs.setdefault(epoch, []).append((kind in ("insert", "update_postimage"), tuple(row.values())))
    for epoch in sorted(epochs):
        for added, row in sorted(epochs[epoch], key=lambda each: each[0]):
            assert (row in held) != added, f"epoch {epoch}: {row} is {'there' if added else 'not there'}"
            (held.add if added else held.remove)(row)
    return held


def _noted(torn: str) -> None:
    """Leave a file there while a transaction of Kafka is under way."""
    from contextlib import contextmanager

    from ddflow.connectors.kafka.sink import TopicWriter

    whole = TopicWriter._transaction

    @contextmanager
    def noted(self: Any) -> Any:
        Path(torn).touch()
        with whole(self):
            yield
        Path(torn).unlink()

    TopicWriter._transaction = noted  # type: ignore[method-assign, assignment]


def live(calls: str, at: str, torn: str, *words: str) -> None:
    """Run a command line, and die at a call. Does not return."""
    from ddflow.cli import app

    status, deadly = 1, Deadly(int(at))
    try:
        if torn:
            _noted(torn)
        sys.setprofile(deadly)
        app(words)
    except SystemExit as error:
        status = int(error.code or 0)
    finally:
        sys.setprofile(None)
        Path(calls).write_text(str(deadly.calls))
        os._exit(status)


def warm() -> None:
    """A run of each kind of work, in a folder that goes."""
    import tempfile

    import ddflow as dd

    with tempfile.TemporaryDirectory() as place:
        flow = dd.Flow()
        orders = flow.upserts("orders", {"id": int, "city": str, "amount": int}, dd.Upsert(key="id"))
        flow.output("orders", orders)
        flow.output("by_city", orders.group_by("city").agg(n="count(*)", total="sum(amount)"))
        sinks = {name: dd.sinks.sqlite(f"{place}/out.db", name) for name in ("orders", "by_city")}
        with flow.open(f"{place}/state") as engine:
            for number in range(2):
                engine.step({"orders": {"id": [1], "city": ["Bern"], "amount": [number]}})
                engine.run({}, sinks)
