"""Test the demo end to end: real input, the engine, its files and output, and the errors its checks find.

The tests show that each kind of check fails on wrong data and reports exactly the wrong rows. Otherwise the demo's
output "all checks held" would prove nothing.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import counts_plot
import demo
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from chance import long_on_spark, long_test
from demo_repos import Repo, lively
from git_feed import EVENTS, GitFeed, Slice
from messages import raises
from rich.console import Console
from tally import Checks, compare

import ddflow as dd
from ddflow.errors import OutputExists

Tables = Mapping[str, pa.Table]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    return lively(tmp_path_factory.mktemp("demo") / "lively")


def perform(feed: GitFeed, out: Path, spark: bool = False) -> tuple[int, str]:
    """The exit code of a run, and what it said."""
    console = Console(file=io.StringIO(), width=150)
    code = demo.perform(feed, spark=spark, out=out, partitions=2, console=console)
    assert isinstance(console.file, io.StringIO)
    return code, console.file.getvalue()


def net(table: pa.Table) -> dict[tuple[object, ...], int]:
    """What updates add up to: rows and how often they are there."""
    held: dict[tuple[object, ...], int] = {}
    for *data, _, diff in zip(*(column.to_pylist() for column in table.columns), strict=True):
        held[tuple(data)] = held.get(tuple(data), 0) + diff
    return {row: times for row, times in held.items() if times}


def test_a_lively_history_passes_every_check_and_is_written(repo: Repo, tmp_path: Path) -> None:
    code, said = perform(GitFeed(repo.path), tmp_path)
    assert code == 0
    assert said.rstrip().splitlines()[-1].startswith("all ")
    tables = {path.stem: pq.read_table(path) for path in (tmp_path / "git").glob("*.parquet")}
    assert set(tables) == {"upserts", "files", "by_extension", "executable", "commits"}
    tree = repo.git("ls-tree", "-r", "HEAD").decode().splitlines()
    assert len(net(tables["files"])) == len(tree) == 6
    assert net(tables["by_extension"]) == {(".txt", 1): 1, (".md", 2): 1, (".py", 1): 1, (".sh", 1): 1, (".c", 1): 1}
    assert {row[0] for row in net(tables["executable"])} == {"src/app.py", "tool/inner.sh"}
    assert tables["commits"]["hash"].to_pylist()[-1] == repo.head
    assert (tmp_path / "git" / "counts.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.rglob("*.part"))


def test_a_second_run_into_the_same_folder_replaces_the_first(repo: Repo, tmp_path: Path) -> None:
    assert perform(GitFeed(repo.path), tmp_path)[0] == 0
    before = pq.read_table(tmp_path / "git" / "files.parquet")
    assert perform(GitFeed(repo.path), tmp_path)[0] == 0
    assert compare(before, pq.read_table(tmp_path / "git" / "files.parquet")).held == before.num_rows


def test_the_table_tells_comings_edits_and_goings_apart(repo: Repo, tmp_path: Path) -> None:
    _, said = perform(GitFeed(repo.path), tmp_path)
    lines = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.startswith(" .")}
    # now, added, edited, removed, assertions, retractions, updates
    assert lines[".txt"] == ["1", "2", "1", "1", "3", "2", "5"]
    assert lines[".py"] == ["1", "2", "1", "1", "3", "2", "5"]
    assert lines[".md"] == ["2", "2", "1", "0", "3", "1", "4"]


@long_on_spark
def test_spark_gives_the_same_rows(alone: None, repo: Repo, tmp_path: Path) -> None:
    code, said = perform(GitFeed(repo.path), tmp_path, spark=True)
    assert code == 0
    for name in ("files", "by_extension", "executable"):
        rows = pq.read_table(tmp_path / "git" / f"{name}.parquet").num_rows
        assert f"Spark, row by row: {name}" in said
        line = next(line for line in said.splitlines() if f"Spark, row by row: {name}" in line)
        assert line.split()[-3:] == [str(rows), str(rows), "ok"]


@long_test
def test_without_pyspark_the_demo_says_what_to_do(repo: Repo, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        f"sys.path.insert(0, {str(Path(demo.__file__).parent)!r})\nimport demo\ndemo.app()"
    )
    command = [sys.executable, "-c", script, "--repo", str(repo.path), "--out", str(tmp_path)]
    assert subprocess.run([*command, "--no-spark"], check=False).returncode == 0
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--no-spark" in done.stderr.splitlines()[-1]


class Tampered(GitFeed):
    """A git feed that is shown other updates than the engine gave."""

    def __init__(self, where: Path, tamper: Callable[[dict[str, pa.Table]], None]) -> None:
        super().__init__(where)
        self.tamper = tamper

    def resolve(self, part: Slice, out: Tables, checks: Checks) -> None:
        """Resolve what the tampering leaves."""
        tables = {name: out[name] for name in out}
        self.tamper(tables)
        super().resolve(part, tables, checks)


def failed(checks: Checks) -> dict[str, tuple[int, int]]:
    """How many checks were asked and failed, by the first word of what they check, where some failed."""
    return {what.split(":")[0]: (t.asked, t.asked - t.held) for what, t in checks.items() if t.asked != t.held}


def resolved(feed: GitFeed, out: Path) -> Checks:
    run = demo.Demo(feed, out, Console(file=io.StringIO()))
    run.locally()
    return run.checks


def where(table: pa.Table, **values: object) -> pa.Table:
    for name, value in values.items():
        table = table.filter(pc.equal(table[name], pa.scalar(value, table[name].type)))
    return table


def swap(table: pa.Table, name: str, old: object, new: object) -> pa.Table:
    """The table with one value of a column replaced by another."""
    column = pa.chunked_array([[new if value == old else value for value in table[name].to_pylist()]], table[name].type)
    return table.set_column(table.column_names.index(name), table.field(name), column)


def test_a_retraction_of_the_wrong_blob_fails(repo: Repo, tmp_path: Path) -> None:
    def tamper(out: dict[str, pa.Table]) -> None:
        leaving = where(out["files"], path="a.txt", _time=5)
        assert leaving.num_rows == 1
        others = out["files"].filter(
            pc.invert(pc.and_(pc.equal(out["files"]["path"], "a.txt"), pc.equal(out["files"]["_time"], 5)))
        )
        out["files"] = pa.concat_tables([others, swap(leaving, "blob", repo.hash("two\n"), repo.hash("one\n"))])

    fine = resolved(GitFeed(repo.path), tmp_path)
    asked = fine["retractions: the old mode and blob of git's raw log"].asked
    assert fine.good
    assert asked == 7
    # the row that should be there is not, and one is there that should not
    assert failed(resolved(Tampered(repo.path, tamper), tmp_path)) == {"retractions": (asked + 1, 2)}


def test_a_missing_assertion_and_a_doubled_one_fail(repo: Repo, tmp_path: Path) -> None:
    def lose(out: dict[str, pa.Table]) -> None:
        out["files"] = out["files"].filter(pc.not_equal(out["files"]["path"], "side.md"))

    def double(out: dict[str, pa.Table]) -> None:
        out["files"] = pa.concat_tables([out["files"], where(out["files"], path="side.md")])

    assert failed(resolved(Tampered(repo.path, lose), tmp_path))["assertions"][1] == 1
    assert failed(resolved(Tampered(repo.path, double), tmp_path))["assertions"][1] == 1


def test_a_count_that_is_not_retracted_fails(repo: Repo, tmp_path: Path) -> None:
    def tamper(out: dict[str, pa.Table]) -> None:
        counts = out["by_extension"]
        kept = pc.invert(pc.and_(pc.equal(counts["extension"], ".md"), pc.less(counts["_diff"], 0)))
        out["by_extension"] = counts.filter(kept)

    assert failed(resolved(Tampered(repo.path, tamper), tmp_path)) == {"by extension": (13, 1)}


class Undeleting(GitFeed):
    """A git feed whose plan forgets that a file can go."""

    def plan(self) -> dd.Flow:
        """The plan without its tombstone; the column goes by another way."""
        flow = dd.Flow()
        rows = dd.Upsert(key="path", time="commit", value=["extension", "mode", "blob"])
        files = flow.upserts("files", EVENTS, rows)
        flow.output("files", files)
        flow.output("by_extension", files.project(["extension"]).count())
        flow.output("executable", files.filter("mode = '100755'"))
        return flow


def test_a_plan_that_is_wrong_gives_exit_code_1(repo: Repo, tmp_path: Path) -> None:
    code, said = perform(Undeleting(repo.path), tmp_path)
    assert code == 1
    assert said.rstrip().splitlines()[-1].endswith("did not")
    assert "failed: final files: git ls-tree -r: expected 0, found 1: path='tool'" in said


def test_spark_rows_that_differ_from_the_written_ones_fail() -> None:
    local = pa.table({"path": ["a", "b", "b"], "_time": [1, 1, 2], "_diff": [1, 1, -1]})
    other = pa.table({"_diff": [1, 1, 1], "path": ["a", "b", "b"], "_time": pa.array([1, 1, 2], pa.int32())})
    assert compare(local, local.take([2, 0, 1])).held == 3
    tally = compare(local, other)
    assert (tally.asked, tally.held, len(tally.failures)) == (4, 2, 2)


def test_a_failed_run_leaves_no_half_written_file(repo: Repo, tmp_path: Path) -> None:
    class Broken(GitFeed):
        def slices(self) -> Iterator[object]:  # type: ignore[override]
            yield from super().slices()
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        resolved(Broken(repo.path), tmp_path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_paths_of_any_bytes_are_shown_harmlessly(tmp_path: Path) -> None:
    odd = Repo.new(tmp_path / "odd")
    for name in (b"x.\x1b[2J", b"y.[bold red]", b"z.\xff\xfe", b"$a$.$b_{$"):
        odd.write(name, "1\n")
        odd.commit()
    code, said = perform(GitFeed(odd.path), tmp_path / "out")
    assert code == 0
    assert "\x1b" not in said
    assert ".\\x1b[2J" in said
    assert ".[bold red]" in said
    assert ".\\xff\\xfe" in said


def test_a_history_without_any_file_passes_and_draws_an_empty_picture(tmp_path: Path) -> None:
    bare = Repo.new(tmp_path / "bare")
    bare.commit()
    code, said = perform(GitFeed(bare.path), tmp_path / "out")
    assert code == 0
    assert "all " in said
    assert pq.read_table(tmp_path / "out" / "git" / "files.parquet").num_rows == 0


def test_the_picture_draws_the_largest_groups_as_steps_down_to_zero() -> None:
    names = [f".e{n}" for n in range(12)]
    updates = pa.table(
        {
            "extension": [*names, ".e11"],
            "count": [*range(1, 13), 12],
            "_time": [*range(1, 13), 20],
            "_diff": [*([1] * 12), -1],
        }
    )
    assert counts_plot.levels(updates)[".e11"] == ([12, 20], [12, 0])


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file\n")
    with raises(OutputExists):
        perform(GitFeed(repo.path), tmp_path / "out")


def test_a_shallow_clone_passes_and_says_that_its_history_is_cut(repo: Repo, tmp_path: Path) -> None:
    repo.git("clone", "--quiet", "--depth=4", repo.path.as_uri(), str(tmp_path / "clone"))
    code, said = perform(GitFeed(tmp_path / "clone"), tmp_path / "out")
    assert code == 0
    assert "note: the clone is shallow" in said
    commits = pq.read_table(tmp_path / "out" / "git" / "commits.parquet")
    assert commits["commit"].to_pylist() == [1, 2, 3, 4]
