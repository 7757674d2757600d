"""Start ``ddflow run`` processes and kill them with SIGKILL, after some time or at the n-th call.

`Lives` forks each process from a process with all imports and kernels loaded (`programs.py`). So a process starts at
once, and spends most of its time in the code that the test wants to interrupt. A soak starts the real program instead.
A `Story` has a folder and command-line arguments. The story writes data to its source, and at the end compares source,
state and target.
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
"""Code that the forking process runs first."""


class Deadly:
    """A counter of the calls of a run; the counter kills the process at call number ``at``."""

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
    """A starter of processes. ``lake`` is the folder for the catalog and the tables of Iceberg."""

    def __init__(self, lake: Path) -> None:
        name = "PYICEBERG_CATALOG__DEFAULT__"
        self.catalog = {f"{name}URI": f"sqlite:///{lake}/catalog.db", f"{name}WAREHOUSE": f"file://{lake}/warehouse"}
        self._before = f"import os\nos.environ.update({self.catalog!r})\n{LIBRARIES}"

    def begin(self, words: Sequence[str], errors: Path, at: int = -2, torn: str = "") -> Program:
        """Start a process.

        ``at``: the number of the call that kills it.  ``torn``: a file that exists during Kafka transactions.
        """
        with errors.open("ab") as file:
            return Program(
                LIFE, calls_of(errors), at, torn, *words, of=self._before, env=os.environ | self.catalog, stderr=file
            )


def calls_of(errors: Path) -> Path:
    """Return the path of a file. If a process is not killed, it writes its number of calls to this file."""
    return errors.with_suffix(".calls")


class Story:
    """A scenario for a test that kills processes."""

    forked = False
    """A soak starts the real program instead of forking; True if this story forks even in a soak."""

    def __init__(self, place: Path) -> None:
        self.place, self.errors, self.torn = place, place / "errors", ""
        place.mkdir(exist_ok=True)
        (place / "flow.py").write_text(self.flow)

    flow: str

    def words(self, follow: bool) -> list[str]:
        """Return the arguments of a run. With ``follow``, the run keeps following its source."""
        way = ["--follow", "--interval", "10ms"] if follow else []
        return ["run", str(self.place / "flow.py"), "--state", str(self.place / "state"), *way, *self.attached()]

    def attached(self) -> list[str]:
        """Return the arguments that attach sources and sinks."""
        raise NotImplementedError

    def feed(self, draw: Random) -> None:
        """Give the source new data."""
        raise NotImplementedError

    def look(self) -> None:
        """Compare source, state and target."""
        raise NotImplementedError

    def lived(self) -> None:
        """Do the work that the story needs each time a process has ended."""

    def close(self) -> None:
        """Restore the server of the story, if it has one."""


def replayed(rows: Iterable[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """Replay a changelog epoch by epoch. No epoch may remove a row that is missing, or add a row that exists.

    So a replay shows whether an epoch is missing or was delivered twice.
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
    """Create a file at the start of each Kafka transaction, and delete it at the end."""
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
    """Run a command line, and kill the process at a call. This function does not return."""
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
    """Do each kind of work once in a temporary folder, so that all code is loaded before the process forks."""
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
