"""Count events that change nothing. The input is a git history, once as a log and once as full contents.

All feeds read the same commits. In the feed *log*, each path that a commit changed is an event. In the feed *full
files*, each commit passes all its files to ``engine.replace``, like a nightly export. The feed *ddflow replace* runs
and times the command ``ddflow replace`` on a folder with the same tables. Each row has a column with the number of the
commit, which stands for an "updated at" column. Each feed runs twice: once with the number of the commit ignored, and
once without ignoring it. Every feed must end with the tree that git shows. Limits: the feeds follow only first parents,
and do not detect renames.

>>> first, second = list(readings(machine.ROOT, 2, "log"))
>>> second.num_rows < first.num_rows == next(iter(readings(machine.ROOT, 2, "full files"))).num_rows
True
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import pyarrow as pa
import pyarrow.parquet as pq
from report import Row
from runner import Bench, Job

FEEDS = ("log", "full files", "ddflow replace")
FILES = pa.schema([("path", pa.string()), ("blob", pa.string()), ("gone", pa.bool_()), ("commit", pa.int64())])


def git(repository: Path | str, *arguments: str) -> list[bytes]:
    """Run a git command and return the parts of its output, which are separated by null bytes."""
    done = subprocess.run(["git", "-C", str(repository), *arguments, "-z"], capture_output=True, check=True)
    return done.stdout.split(b"\0")[:-1]


def readings(repository: Path | str, commits: int, feed: str) -> Iterator[pa.Table]:
    """Yield a table for each of the last commits.

    The table has the changes of the commit, or all its files. The first table has all files.
    """
    listed = git(repository, "log", "--first-parent", "--format=%H", "-n", str(commits), "--reverse")
    hashes = [line.decode() for line in listed]
    for number, commit in enumerate(hashes):
        if number == 0 or feed != "log":
            yield tree(repository, commit, number)
            continue
        words = git(repository, "diff-tree", "-r", "--raw", "--no-renames", "--abbrev=40", hashes[number - 1], commit)
        sides = [word.decode().split() for word in words[::2]]  # :mode mode blob blob status
        rows = [(path, f"{new[1]} {new[3]}", new[4] == "D") for new, path in zip(sides, words[1::2], strict=True)]
        yield _table(rows, number)


def tree(repository: Path | str, commit: str, number: int) -> pa.Table:
    """Return all files of a commit."""
    split = [line.split(b"\t", 1) for line in git(repository, "ls-tree", "-r", commit)]
    return _table([(path, " ".join(head.decode().split()[::2]), False) for head, path in split], number)


def _table(rows: list[tuple[bytes, str, bool]], number: int) -> pa.Table:
    named = ((path.decode(errors="backslashreplace"), blob, gone) for path, blob, gone in rows)
    listed = [{"path": path, "blob": blob, "gone": gone, "commit": number} for path, blob, gone in named]
    return pa.Table.from_pylist(listed, schema=FILES)


def digest(paths: Any, blobs: Any) -> str:
    """Return a checksum of files in any order."""
    import xxhash

    lines = sorted(f"{path}\0{blob}" for path, blob in zip(paths, blobs, strict=True))
    return xxhash.xxh3_64("\n".join(lines).encode()).hexdigest()


class Noops(Bench):
    """The bench that runs each feed twice: with and without ignoring the commit's number."""

    name = "noops"
    about = "No-ops: updates of the last commits of a git history, with and without noop_ignore."
    quick = ({}, {"commits": "20"})
    columns = (
        "feed {feed} | commit ignored {ignored!y} | rows in {rows:,} | updates out {updates:,} | no-ops {noops:,} | "
        "share {share:.1%} | s {seconds:.2f} | rows/s {rows_per_s:,.0f}"
    )

    def jobs(self) -> list[Job]:
        where = {"repository": str(machine.ROOT), "commits": 200}
        return [Job({"feed": feed, "ignored": ignored, **where}) for feed in FEEDS for ignored in (False, True)]

    def question(self, job: Job) -> dict[str, Any]:
        return {"repository": job.what["repository"]}

    def expected(self, repository: str) -> str:
        """Return the checksum of the tree that git shows."""
        files = tree(repository, "HEAD", 0)
        return digest(files["path"].to_pylist(), files["blob"].to_pylist())

    def measure(self, feed: str, ignored: bool, repository: str, commits: int) -> dict[str, Any]:
        """Feed all tables, one table in each step, and return the figures."""
        tables = list(readings(repository, commits, feed))
        found = (_command if feed == "ddflow replace" else _engine)(tables, ignored, feed)
        rows = sum(table.num_rows for table in tables)
        return {"rows": rows, **found, "share": found["noops"] / rows, "rows_per_s": rows / found["seconds"]}

    def row(self, job: Job, samples: Any) -> Row:
        row = super().row(job, samples)
        del row["repository"]
        return row


def _engine(tables: list[pa.Table], ignored: bool, feed: str) -> dict[str, Any]:
    import ddflow as dd

    flow = dd.Flow()
    delete = dd.tombstone("gone") if feed == "log" else None
    spec = dd.Upsert("path", delete=delete, noop_ignore=["commit"] if ignored else [])
    flow.output("files", flow.upserts("files", FILES, spec))
    updates = 0
    with flow.open(threads=1) as engine:
        begun = time.perf_counter()
        for number, table in enumerate(tables):
            step = engine.step({"files": table}, number) if feed == "log" else engine.replace("files", table, number)
            updates += step["files"].num_rows
        took, held = time.perf_counter() - begun, engine.read("files")
        found = digest(held["path"].to_pylist(), held["blob"].to_pylist())
        return {"updates": updates, "noops": engine.verdicts["noop"], "seconds": took, "checksum": found}


def _command(tables: list[pa.Table], ignored: bool, feed: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "files", Path(place) / "out.parquet"
        folder.mkdir()
        for number, table in enumerate(tables):
            pq.write_table(table, folder / f"{number:06}.parquet")
        program = Path(sys.executable).with_name("ddflow")
        command = [program, "replace", folder, "--key", "path", "-o", out, "--json"]
        begun = time.perf_counter()
        said = subprocess.run(
            command + (["--noop-ignore", "commit"] if ignored else []), capture_output=True, check=True
        )
        took, report, updates = time.perf_counter() - begun, json.loads(said.stdout), pq.read_table(out)
    held: Counter[tuple[str, str]] = Counter()
    for path, blob, diff in zip(*(updates[name].to_pylist() for name in ("path", "blob", "_diff")), strict=True):
        held[path, blob] += diff
    live = [row for row, n in held.items() for _ in range(n)]
    found = digest([path for path, _ in live], [blob for _, blob in live])
    return {"updates": updates.num_rows, "noops": report["verdicts"]["noop"], "seconds": took, "checksum": found}


BENCH = Noops()
