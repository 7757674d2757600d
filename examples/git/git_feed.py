"""Feed a git history into a flow as path -> (mode, blob).

Git's raw log and ``git ls-tree`` are the witness for the checks.

The witness takes a retraction from the *old* side of git's raw line, and not from an earlier event. So the witness
cannot repeat an error of the engine. Each raw line must cause at most one retraction and at most one assertion. File
contents are not read; a rename is a removed path and an added path.

>>> from git_log import RAW
>>> raw = pa.table({"path": ["a.py"], "extension": [".py"], "commit": [2], "old_mode": ["100644"], "old_blob": ["1f"],
...                 "mode": ["100755"], "blob": ["1f"]}).cast(RAW)
>>> retractions(raw).to_pylist()
[{'path': 'a.py', 'extension': '.py', 'mode': '100644', 'blob': '1f', '_time': 2, '_diff': -1}]
>>> assertions(raw).to_pylist()
[{'path': 'a.py', 'extension': '.py', 'mode': '100755', 'blob': '1f', '_time': 2, '_diff': 1}]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import git_log as git
import pyarrow as pa
import pyarrow.compute as pc
from git_log import COMMITS
from tally import Checks, compare, equal

import ddflow as dd

EVENTS: Final = pa.schema([*git.TREE, ("gone", pa.bool_()), ("commit", pa.int64())])
"""The columns of the input: the path, its new mode and blob, a mark for removed paths, and the time.

The time is the ordinal of the commit.
"""
EXECUTABLE: Final = "100755"


class Slice(NamedTuple):
    """Events of complete commits, with git's own updates for the same commits."""

    events: pa.RecordBatch
    """The upserts, in the columns of `EVENTS`."""
    closes: int
    """The frontier after these events. All times in later slices are at or after the frontier."""
    said: Mapping[str, pa.Table]
    """The updates of these commits according to git, by kind."""


class GitFeed:
    """The history of one repository up to its head. The history has a plan, events, and git as the witness.

    The checks find every retraction without a raw line, and every raw line that should have a retraction but has none.
    The checks also count the raw lines whose two sides are equal, because these lines change nothing. Read ``slices``
    once, before you call ``conclude``, ``commit_table`` and ``notes``.
    """

    def __init__(self, repo: str | Path | None = None) -> None:
        """Open the repository. Raises the errors of `git.find`."""
        self.repository = git.find(repo)
        self.commits: list[git.Commit] = []
        self.lines = self.changes = 0
        self._counts: Counter[str] = Counter()
        self.title = f"git history of {self.repository.where.resolve()} up to {self.repository.head[:12]}"

    def plan(self) -> dd.Flow:
        """Build the plan.

        The plan upserts by path with the commit's ordinal as the time, counts files by extension, and selects
        executable files.
        """
        flow = dd.Flow()
        files = flow.upserts("files", EVENTS, dd.Upsert(key="path", time="commit", delete=dd.tombstone("gone")))
        flow.output("files", files)
        flow.output("by_extension", files.project(["extension"]).count())
        flow.output("executable", files.filter(f"mode = '{EXECUTABLE}'"))
        return flow

    def slices(self) -> Iterator[Slice]:
        """Yield slices of complete commits; see `git.history`."""
        for commits, batch in git.history(self.repository):
            raw = pa.Table.from_batches([batch])
            self.commits += commits
            self.lines += raw.num_rows
            said = {"retractions": retractions(raw), "assertions": assertions(raw), "counts": self._recount(raw)}
            self.changes += raw.num_rows - pc.sum(_same(raw), min_count=0).as_py()
            columns = [*(batch[name] for name in git.TREE.names), pc.is_null(batch["mode"]), batch["commit"]]
            yield Slice(pa.RecordBatch.from_arrays(columns, schema=EVENTS), commits[-1].ordinal + 1, said)

    def resolve(self, part: Slice, out: Mapping[str, pa.Table], checks: Checks) -> None:
        """Check each update against git's raw lines of the same commits, with one check per row."""
        files, said = out["files"], part.said
        leaving = pc.less(files["_diff"], 0)
        checks.add(
            "retractions: the old mode and blob of git's raw log", compare(said["retractions"], files.filter(leaving))
        )
        checks.add(
            "assertions: the new mode and blob of git's raw log",
            compare(said["assertions"], files.filter(pc.invert(leaving))),
        )
        both = pa.concat_tables([said["retractions"], said["assertions"]])
        checks.add("executable: the same, filtered", compare(both.filter(_executable(both)), out["executable"]))
        checks.add("by extension: counts recounted from the raw log", compare(said["counts"], out["by_extension"]))

    def conclude(self, final: Mapping[str, pa.Table], verdicts: Mapping[str, int], checks: Checks) -> None:
        """Compare the final collections with ``git ls-tree -r``, and check that every raw line has a verdict."""
        tree = git.tree(self.repository)
        checks.add("final files: git ls-tree -r", compare(_once(tree), final["files"]))
        checks.add(
            "final executable: git ls-tree -r", compare(_once(tree.filter(_executable(tree))), final["executable"])
        )
        counts = tree.group_by("extension").aggregate([("path", "count")]).rename_columns(["extension", "count"])
        checks.add("final counts by extension: git ls-tree -r", compare(_once(counts), final["by_extension"]))
        accounts = {"applied": self.changes, "noop": self.lines - self.changes}
        for verdict in verdicts:
            what = f"events with verdict {verdict}:"
            checks.add("verdicts: one for each raw line", equal(what, accounts.get(verdict, 0), verdicts[verdict]))

    def commit_table(self) -> pa.Table:
        """Return the commits as a table, with the ordinal (``_time``), the hash and the time of each commit."""
        return pa.Table.from_pylist([dict(zip(COMMITS.names, c, strict=True)) for c in self.commits], COMMITS)

    def notes(self) -> list[str]:
        """Return a note if the clone is shallow, because the history then begins at the boundary of the clone."""
        if not self.repository.shallow:
            return []
        return ["the clone is shallow: all files of its first commit are assertions, because older history is missing"]

    def _recount(self, raw: pa.Table) -> pa.Table:
        """Compute from the raw lines how the counts by extension change, and keep the running counts."""
        came = pc.subtract(pc.is_valid(raw["mode"]).cast(pa.int64()), pc.is_valid(raw["old_mode"]).cast(pa.int64()))
        nets = raw.append_column("net", came).group_by(["commit", "extension"]).aggregate([("net", "sum")])
        rows: list[tuple[str, int, int, int]] = []
        for row in nets.filter(pc.not_equal(nets["net_sum"], 0)).sort_by("commit").to_pylist():
            old = self._counts[row["extension"]]
            new = self._counts[row["extension"]] = old + row["net_sum"]
            rows += [(row["extension"], count, row["commit"], diff) for count, diff in ((old, -1), (new, 1)) if count]
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
        types = {"extension": pa.string(), "count": pa.int64(), "_time": pa.int64(), "_diff": pa.int64()}
        return pa.table([pa.array(c, t) for c, t in zip(columns, types.values(), strict=True)], names=list(types))


def retractions(raw: pa.Table) -> pa.Table:
    """Return the retractions in raw lines: the old side of each line, if it exists and differs from the new side."""
    keep = pc.and_(pc.is_valid(raw["old_mode"]), pc.invert(_same(raw)))
    return _updates(raw.filter(keep), "old_mode", "old_blob", -1)


def assertions(raw: pa.Table) -> pa.Table:
    """Return the assertions in raw lines: the new side of each line, if it exists and differs from the old side."""
    keep = pc.and_(pc.is_valid(raw["mode"]), pc.invert(_same(raw)))
    return _updates(raw.filter(keep), "mode", "blob", 1)


def _same(raw: pa.Table) -> pa.ChunkedArray:
    """Mark the lines that change nothing. In such a line both sides are missing, or they exist and are equal."""
    equal_sides = pc.and_kleene(pc.equal(raw["mode"], raw["old_mode"]), pc.equal(raw["blob"], raw["old_blob"]))
    neither = pc.and_(pc.is_null(raw["mode"]), pc.is_null(raw["old_mode"]))
    return pc.or_(pc.fill_null(equal_sides, False), neither)


def _updates(raw: pa.Table, mode: str, blob: str, diff: int) -> pa.Table:
    data = raw.select(["path", "extension", mode, blob, "commit"]).rename_columns([*git.TREE.names, "_time"])
    return data.append_column("_diff", pa.repeat(pa.scalar(diff, pa.int64()), data.num_rows))


def _executable(table: pa.Table) -> pa.ChunkedArray:
    return pc.equal(table["mode"], EXECUTABLE)


def _once(table: pa.Table) -> pa.Table:
    """Return a collection with every row once."""
    return table.append_column("_diff", pa.repeat(pa.scalar(1, pa.int64()), table.num_rows))
