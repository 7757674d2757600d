"""Turn a git history into differences, locally and on Spark, and check every row against git.

Run ``make demo``, or ``python examples/git/demo.py --repo PATH``. Each change of a file is an upsert (path -> mode and
blob, or gone), and each commit is a time. The exit code is 0 only if every check held. The checks read git and the
written Parquet files; they never compare the engine with itself.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     with Files(Path(folder)) as files:
...         files.write({"files": pa.table({"path": ["a", "b"]})})
...         files.write({"files": pa.table({"path": ["c"]})})
...     pq.read_table(Path(folder) / "files.parquet").num_rows
3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Annotated, Any

import counts_plot
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from activity import ENGINE, Activity, Clock, printable, show_activity, show_checks, show_clock
from git_feed import GitFeed
from rich.console import Console
from rich.status import Status
from tally import Checks, compare, equal

import ddflow as dd
from ddflow import terminal
from ddflow.cli import exit_on_errors
from ddflow.errors import MissingExtra, OutputExists


@contextmanager
def local_spark(console: Console) -> Iterator[Any]:
    """Start a local Spark session, and stop it afterwards. Raises `MissingExtra` if Spark or Java is missing."""
    asked = "run the plan on local Spark"
    try:
        from spark_bridge.session import local_session
    except ImportError as error:
        remedy = "pip install 'ddflow[spark,java]', or skip Spark with --no-spark"
        raise MissingExtra(asked, str(error), remedy) from None
    with ExitStack() as stack:
        clock = Clock()
        with console.status("starting local Spark"), clock("start"):
            try:
                session = stack.enter_context(local_session("ddflow demo"))
            except MissingExtra as error:
                raise MissingExtra(asked, error.found, f"{error.fix}; or pass --no-spark") from None
        console.print(f"local Spark {session.version} started in {clock['start']:.1f} s")
        yield session


class Files:
    """Parquet files in a folder, to which tables are appended.

    An older file is replaced only when the new file is complete.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, pq.ParquetWriter] = {}

    def write(self, tables: Mapping[str, pa.Table]) -> None:
        """Append each table to the file that has the table's name. O(rows)."""
        for name, table in tables.items():
            if name not in self._open:
                self._open[name] = pq.ParquetWriter(self._part(name), table.schema, compression="zstd")
            self._open[name].write_table(table)

    def __enter__(self) -> Files:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputExists(f"write to {self.folder}", str(error), "choose another folder with --out") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, writer in self._open.items():
            writer.close()
            if kind is None:
                self._part(name).replace(self.folder / f"{name}.parquet")
            else:
                self._part(name).unlink()

    def _part(self, name: str) -> Path:
        return self.folder / f"{name}.parquet.part"


class Demo:
    """One run of the demo: its plan, its folder, its counts and its times.

    The demo checks the updates against git slice by slice, so memory holds only running counts. The local engine and
    Spark read the same events.
    """

    def __init__(self, feed: GitFeed, folder: Path, console: Console) -> None:
        self.feed, self.folder, self.console = feed, folder, console
        self.flow = feed.plan()
        self.checks, self.clock, self.activity = Checks(), Clock(), Activity()
        self.events = self.updates = 0
        self.now: dict[str, int] = {}

    def locally(self) -> None:
        """Run the plan in this process, check its updates, and write them."""
        feed, clock = self.feed, self.clock
        with self.flow.open() as engine, Files(self.folder) as files, self.console.status("") as status:
            slices = feed.slices()
            while True:
                with clock("reading git"):
                    part = next(slices, None)
                if part is None:
                    break
                if not self.events:
                    self._warm(part.events, status)
                with clock(ENGINE):
                    engine.push({"files": part.events})
                    out = engine.advance_to(part.closes)
                self._take(files, out, part.events)
                with clock("resolving by git"):
                    feed.resolve(part, out, self.checks)
                status.update(f"git: {self.events:,} upserts, {self.updates:,} updates")
            with clock(ENGINE):
                last = engine.advance_to(dd.CLOSED)
                final = {name: engine.read(name) for name in self.flow.outputs}
            left = sum(table.num_rows for table in last.values())
            self.checks.add("after the last event: nothing more", equal("updates", 0, left))
            with clock("resolving by git"):
                feed.conclude(final, engine.verdicts.counts, self.checks)
            files.write({"commits": feed.commit_table()})
        counts = final["by_extension"]
        self.now = dict(zip(counts["extension"].to_pylist(), counts["count"].to_pylist(), strict=True))

    def _warm(self, events: pa.RecordBatch, status: Status) -> None:
        """Load the kernels with a few events in a separate engine.

        So the measured times do not include the loading.
        """
        status.update("loading the kernels; the first time on a machine they are compiled")
        with self.clock("kernels, compiled or loaded"), self.flow.open() as engine:
            engine.push({"files": events.slice(0, 1000)})
            engine.advance_to(dd.CLOSED)

    def _take(self, files: Files, out: Mapping[str, pa.Table], events: pa.RecordBatch) -> None:
        self.events += events.num_rows
        self.updates += sum(table.num_rows for table in out.values())
        with self.clock("writing Parquet"):
            files.write({"upserts": pa.Table.from_batches([events]), **out})
        self.activity.add(out["files"])

    def on_spark(self, session: Any, partitions: int) -> None:
        """Run the same plan on Spark, from the same events, and compare each output with the written file."""
        import spark_bridge

        with TemporaryDirectory() as scratch, self.console.status("the plan, on Spark"):
            frame = session.read.parquet(str(self.folder / "upserts.parquet"))
            frames = spark_bridge.run(self.flow, {"files": frame}, partitions=partitions)
            for name, result in frames.items():
                where = Path(scratch) / name
                with self.clock("the plan, on local Spark"):
                    result.write.parquet(str(where))
                with self.clock("comparing Spark with local"):
                    local = pq.read_table(self.folder / f"{name}.parquet")
                    self.checks.add(f"Spark, row by row: {name}", compare(local, pq.read_table(where)))

    def picture(self) -> None:
        """Draw the counts over time. If matplotlib is missing, print a note instead."""
        try:
            with self.clock("drawing"):
                updates = pq.read_table(self.folder / "by_extension.parquet")
                counts_plot.draw(updates, self.folder / "counts.png", self.feed.title)
        except MissingExtra as error:
            self.console.print(f"no picture: {error}", markup=False)

    def show(self) -> None:
        """Print the results on the console."""
        show_activity(self.console, self.activity, self.now)
        show_checks(self.console, self.checks)
        for note in self.feed.notes():
            self.console.print(f"note: {note}", markup=False)
        show_clock(self.console, self.clock, self.events, self.updates)
        written = ", ".join(sorted(each.name for each in self.folder.iterdir()))
        self.console.print(f"written to {self.folder}: {written}", markup=False, soft_wrap=True)
        style = "bold green" if self.checks.good else "bold red"
        self.console.print(self.checks.closing, style=style, highlight=False)


def perform(feed: GitFeed, *, spark: bool, out: Path, partitions: int, console: Console) -> int:
    """Run a feed through its plan in this process, and with ``spark`` also on Spark.

    Show the results, and return the exit code.

    O(n log n) time for n events. Memory holds the final collections, a slice of events, one output, and the data of
    Spark. Raises `UnreadableInput` for an unreadable history, and `MissingExtra` if git, Spark or Java is missing.
    """
    with ExitStack() as stack:
        session = stack.enter_context(local_spark(console)) if spark else None
        console.rule(printable(feed.title, 100), align="left")
        demo = Demo(feed, out / "git", console)
        demo.locally()
        if session is not None:
            demo.on_spark(session, partitions)
        demo.picture()
        demo.show()
    return 0 if demo.checks.good else 1


app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command()
def run(
    repo: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The git checkout to read. Default: the one around the working directory."),
    ] = None,
    spark: Annotated[bool, typer.Option(help="Run the plan on local Spark too, and compare.")] = True,
    partitions: Annotated[int, typer.Option(min=1, help="The number of partitions on Spark.")] = 4,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for results, which go to git/ in it.")] = Path(
        "out"
    ),
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Run a git history through a plan. Check every difference against git, and compare it with Spark's.

    Each change of a file is an upsert (path -> mode and blob, or deleted), and each commit is a time. Every retraction
    is checked against the old side of git's raw log, the final files against git ls-tree, and Spark's rows against the
    local rows. The diffs are written as Parquet, and the counts over time are drawn as PNG. The exit code is 0 if all
    checks held, and 1 otherwise.
    """
    with exit_on_errors(debug):
        code = perform(GitFeed(repo), spark=spark, out=out, partitions=partitions, console=terminal.make_console())
    raise typer.Exit(code)


if __name__ == "__main__":
    terminal.escape_logs()
    app()
