#!/usr/bin/env python3
"""The no-op bench: what of a real feed changes nothing, on a git history read twice over.

Invariant: every figure is of the same commits. As a *log* each raw line of ``git log`` is an event; as *full files*
the whole tree stands at each commit, all paths, and goes through ``engine.replace``, as a nightly export would through
``ddflow replace``. Both rows carry the commit's number, as feeds carry their "updated at"; it is ignored, or it is
not. Both readings must end in the same tree. A log of changes has next to no no-ops, a feed of states has little else;
what suppression is worth depends on which of the two one has.

>>> log, files = read(None, 5)
>>> row = run("full files", files, ignore=True)
>>> row["rows"] == sum(table.num_rows for table in files), row["updates"] < row["rows"]
(True, True)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import child
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import report
from rich.console import Console

import ddflow as dd
from ddflow.columns.hashing import value_hashes

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "git"))

import git_log as git
from git_feed import EVENTS, GitFeed

HEADINGS = ("feed", "commit ignored", "rows in", "updates out", "no-ops", "share", "s", "rows/s")
TREE = pa.schema([("path", pa.string()), ("mode", pa.string()), ("blob", pa.string()), ("commit", pa.int64())])


def read(where: Path | None, commits: int) -> tuple[list[pa.Table], list[pa.Table]]:
    """The last ``commits`` commits along the first parents: events of each, and the whole tree at each."""
    feed = GitFeed(where)
    events = pa.concat_tables([pa.Table.from_batches([part.events]) for part in feed.slices()]).cast(EVENTS)
    last = feed.commits[-commits:]
    log, files = [], []
    for number, commit in enumerate(last):
        of = pc.equal(events["commit"], commit.ordinal)
        if number == 0:
            of = pc.less_equal(events["commit"], commit.ordinal)
        log.append(events.filter(of))
        files.append(tree(feed.repository, commit.hash, commit.ordinal))
    return log, files


def tree(repository: git.Repository, commit: str, ordinal: int) -> pa.Table:
    """All files of a commit."""
    command = ["git", "-C", str(repository.where), "ls-tree", "-r", "-z", commit]
    said = subprocess.run(command, capture_output=True, check=True).stdout.split(b"\0")[:-1]
    split = [line.split(b"\t", 1) for line in said]
    heads = [head.split() for head, _ in split]
    return pa.table(
        [
            [git.path_text(path) for _, path in split],
            [head[0].decode() for head in heads],
            [head[2].decode() for head in heads],
            [ordinal] * len(split),
        ],
        schema=TREE,
    )


def run(feed: str, tables: Sequence[pa.Table], ignore: bool) -> dict[str, Any]:
    """Feed all tables, one a step; what came out."""
    schema = EVENTS if feed == "log" else TREE
    delete = dd.tombstone("gone") if feed == "log" else None
    spec = dd.Upsert("path", delete=delete, noop_ignore=["commit"] if ignore else [])
    flow = dd.Flow()
    flow.output("files", flow.upserts("files", schema, spec))
    updates = 0
    with flow.open() as engine:
        begun = time.perf_counter()
        for number, table in enumerate(tables):
            step = engine.step({"files": table}, number) if feed == "log" else engine.replace("files", table, number)
            updates += step["files"].num_rows
        took, noops = time.perf_counter() - begun, engine.verdicts["noop"]
        held = engine.read("files").select(["path", "blob"]).sort_by("path").combine_chunks()
    rows = sum(table.num_rows for table in tables)
    return {
        "feed": feed,
        "ignored": ignore,
        "rows": rows,
        "updates": updates,
        "noops": noops,
        "seconds": took,
        "tree": hash_of(held),
    }


def shell(tables: Sequence[pa.Table], ignore: bool) -> dict[str, Any]:
    """The same full files in a folder, through ``ddflow replace``; the time is that of the whole command."""
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "files", Path(place) / "out.parquet"
        folder.mkdir()
        for number, table in enumerate(tables):
            pq.write_table(table, folder / f"{number:06}.parquet")
        command = [
            str(Path(sys.executable).with_name("ddflow")),
            "replace",
            str(folder),
            "--key",
            "path",
            "-o",
            str(out),
            "--json",
        ]
        begun = time.perf_counter()
        said = subprocess.run(
            command + (["--noop-ignore", "commit"] if ignore else []), capture_output=True, check=True
        )
        took, told, updates = time.perf_counter() - begun, json.loads(said.stdout), pq.read_table(out)
    held: Counter[tuple[str, str]] = Counter()
    for path, blob, diff in zip(*(updates.column(name).to_pylist() for name in ("path", "blob", "_diff")), strict=True):
        held[path, blob] += diff
    paths, blobs = zip(*sorted(row for row, n in held.items() if n), strict=True)
    rows = sum(table.num_rows for table in tables)
    return {
        "feed": "ddflow replace",
        "ignored": ignore,
        "rows": rows,
        "updates": updates.num_rows,
        "noops": told["verdicts"]["noop"],
        "seconds": took,
        "tree": hash_of(pa.table({"path": paths, "blob": blobs})),
    }


def hash_of(rows: pa.Table) -> int:
    """One number for a multiset of rows."""
    return int(value_hashes(rows, dd.Secret(1, 2)).sum())


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["feed"],
        "yes" if row["ignored"] else "no",
        f"{row['rows']:,}",
        f"{row['updates']:,}",
        f"{row['noops']:,}",
        f"{row['noops'] / row['rows']:.1%}",
        f"{row['seconds']:.2f}",
        f"{row['rows'] / row['seconds']:,.0f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    line = argparse.ArgumentParser(prog="bench/noops.py", description=(__doc__ or "").splitlines()[0])
    line.add_argument("--repository", type=Path, metavar="DIR", help="a git repository (default: this one)")
    line.add_argument("--commits", type=int, default=200, metavar="N", help="the last so many (default: 200)")
    line.add_argument("--out", type=Path, default=child.ROOT / "bench" / "results", metavar="DIR")
    line.add_argument("--no-save", action="store_true", help="write no files")
    options = line.parse_args(arguments)
    out, about = Console(), report.machine(child.ROOT)
    out.width = max(out.width, 120)
    log, files = read(options.repository or child.ROOT, options.commits)
    rows = [
        run(feed, tables, ignore) for feed, tables in (("log", log), ("full files", files)) for ignore in (False, True)
    ]
    rows += [shell(files, ignore) for ignore in (False, True)]
    if len({row["tree"] for row in rows}) != 1:
        raise AssertionError("the feeds end in different trees")
    title = f"No-ops in the last {len(log)} commits of a git history"
    report.print_table(out, title, HEADINGS, map(_cells, rows))
    if not options.no_save:
        text = f"# No-op bench\n\n{report.machine_line(about)}\n\n## {title}\n\n"
        text += report.table(HEADINGS, map(_cells, rows))
        path = report.keep(options.out, {"bench": "noops", "machine": about, "results": rows}, text, "")
        out.print(f"written: {path}, .md beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
