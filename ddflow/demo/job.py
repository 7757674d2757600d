"""The demo's run: a feed through its plan in process, then on local Spark, every difference between them looked for.

Invariant: the exit code is 0 only if every check held, and each was asked of what was really put out: the witness
judges the engine's updates slice by slice as they come, and Spark's rows are compared with the Parquet files that were
written, not with something kept in memory. A history may be larger than one likes to hold, so nothing of it stays but
running counts, and both engines read the very same events. It knows no git, no dpkg and no Spark itself; those are the
feeds' and the bridge's. Files of an earlier run in the folder are replaced.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     with Files(Path(folder)) as files:
...         files.write({"files": pa.table({"path": ["a", "b"]})})
...         files.write({"files": pa.table({"path": ["c"]})})
...     pq.read_table(Path(folder) / "files.parquet").num_rows
3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.status import Status

import ddflow as dd
from ddflow import terminal
from ddflow.demo import plot
from ddflow.demo.dpkg_feed import DpkgFeed
from ddflow.demo.feed import Feed
from ddflow.demo.git_feed import GitFeed
from ddflow.demo.report import ENGINE, Activity, Clock, printable, show_activity, show_checks, show_clock
from ddflow.demo.tally import Checks, compare, equal
from ddflow.errors import MissingExtra, OutputExists


@contextmanager
def _session(console: Console) -> Iterator[Any]:
    """A local Spark session of the demo's own, stopped afterwards."""
    remedy = "pip install 'ddflow[spark,java]', or leave Spark out with --no-spark"
    try:
        from spark_bridge.session import local_session
    except ImportError as error:
        raise MissingExtra("run the plan on local Spark", str(error), remedy) from None
    with ExitStack() as stack:
        clock = Clock()
        with console.status("starting local Spark"), clock("start"):
            try:
                session = stack.enter_context(local_session("ddflow demo"))
            except MissingExtra as error:
                raise MissingExtra(
                    "run the plan on local Spark", error.found, f"{error.remedy}; or give --no-spark"
                ) from None
        console.print(f"local Spark {session.version} started in {clock['start']:.1f} s")
        yield session


class Files:
    """Parquet files of one folder, by name, each written table by table and there under its name only when whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, pq.ParquetWriter] = {}

    def write(self, tables: Mapping[str, pa.Table]) -> None:
        """Append each table to the file of its name.  O(rows)."""
        for name, table in tables.items():
            if name not in self._open:
                self._open[name] = pq.ParquetWriter(self._part(name), table.schema, compression="zstd")
            self._open[name].write_table(table)

    def __enter__(self) -> Files:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputExists(f"write to {self.folder}", str(error), "name a folder to write to by --out") from None
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
    """One feed's run: its plan, its folder, and what has been counted and timed so far."""

    def __init__(self, feed: Feed, folder: Path, console: Console) -> None:
        self.feed, self.folder, self.console = feed, folder, console
        self.flow = feed.plan()
        self.checks, self.clock, self.activity = Checks(), Clock(), Activity(feed.group, feed.key)
        self.events = self.updates = 0
        self.now: dict[str, int] = {}

    def locally(self) -> None:
        """Run the plan in this process, judge its updates, write them."""
        feed, clock = self.feed, self.clock
        with self.flow.open() as engine, Files(self.folder) as files, self.console.status("") as status:
            slices = feed.slices()
            while True:
                with clock(f"reading {feed.name}"):
                    part = next(slices, None)
                if part is None:
                    break
                if not self.events:
                    self._warm(part.events, status)
                with clock(ENGINE):
                    engine.push({feed.source: part.events})
                    out = engine.advance_to(part.closes)
                self._take(files, out, part.events)
                with clock(f"judging by {feed.name}"):
                    feed.judge(part, out, self.checks)
                status.update(f"{feed.name}: {self.events:,} upserts, {self.updates:,} updates")
            with clock(ENGINE):
                last = engine.advance_to(dd.CLOSED)
                final = {name: engine.read(name) for name in self.flow.outputs}
            left = sum(table.num_rows for table in last.values())
            self.checks.add("after the last event: nothing more", equal("updates", 0, left))
            with clock(f"judging by {feed.name}"):
                feed.conclude(final, engine.verdicts.counts, self.checks)
            files.write(feed.extras())
        counts = final[f"by_{feed.group}"]
        self.now = dict(zip(counts[feed.group].to_pylist(), counts["count"].to_pylist(), strict=True))

    def _warm(self, events: pa.RecordBatch, status: Status) -> None:
        """Load the kernels by a few events in an engine of their own, so that the rates are the plan's."""
        status.update("loading the kernels; the first time on a machine they are compiled")
        with self.clock("kernels, compiled or loaded"), self.flow.open() as engine:
            engine.push({self.feed.source: events.slice(0, 1000)})
            engine.advance_to(dd.CLOSED)

    def _take(self, files: Files, out: Mapping[str, pa.Table], events: pa.RecordBatch) -> None:
        self.events += events.num_rows
        self.updates += sum(table.num_rows for table in out.values())
        with self.clock("writing Parquet"):
            files.write({"upserts": pa.Table.from_batches([events]), **out})
        self.activity.add(out[self.feed.source])

    def on_spark(self, session: Any, partitions: int) -> None:
        """Run the same plan on Spark, from the same events, and compare each output with the written one."""
        import spark_bridge

        with TemporaryDirectory() as scratch, self.console.status("the plan, on Spark"):
            frame = session.read.parquet(str(self.folder / "upserts.parquet"))
            frames = spark_bridge.run(self.flow, {self.feed.source: frame}, partitions=partitions)
            for name, result in frames.items():
                where = Path(scratch) / name
                with self.clock("the plan, on local Spark"):
                    result.write.parquet(str(where))
                with self.clock("comparing Spark with local"):
                    local = pq.read_table(self.folder / f"{name}.parquet")
                    self.checks.add(f"Spark, row by row: {name}", compare(local, pq.read_table(where)))

    def picture(self) -> None:
        """Draw the counts over time; where there is nothing to draw with, say so."""
        output = f"by_{self.feed.group}"
        try:
            with self.clock("drawing"):
                updates = pq.read_table(self.folder / f"{output}.parquet")
                labels = plot.Labels(self.feed.title, self.feed.time, self.feed.source)
                plot.draw(updates, self.feed.group, self.folder / "counts.png", labels)
        except MissingExtra as error:
            self.console.print(f"no picture: {error}", markup=False)

    def show(self) -> None:
        """Say what was done, on the console."""
        show_activity(self.console, self.activity, self.now, self.feed.source)
        show_checks(self.console, self.checks)
        for note in self.feed.notes():
            self.console.print(f"note: {note}", markup=False)
        show_clock(self.console, self.clock, self.events, self.updates)


def run(
    repo: str | Path | None = None,
    *,
    dpkg: bool = False,
    spark: bool = True,
    out: Path = Path("out"),
    partitions: int = 4,
    console: Console | None = None,
) -> int:
    """Run the demo and show it: 0 if every check held, 1 if one did not.

    The git history of ``repo``, or of the checkout around the working directory where ``dpkg`` is not asked for
    instead; with ``dpkg`` this machine's dpkg log.  Files go to ``out``/git and ``out``/dpkg.  Raises `UnreadableInput`
    for an input that cannot be read, `MissingExtra` where git, dpkg-query, or with ``spark`` Spark or Java is missing.
    O(n log n) time in n events; the memory of the final collections, a slice of events, one output, and Spark's own.
    """
    feeds: list[Feed] = [GitFeed(repo)] if repo is not None or not dpkg else []
    feeds += [DpkgFeed()] if dpkg else []
    return perform(feeds, spark=spark, out=out, partitions=partitions, console=console or terminal.console())


def perform(feeds: Sequence[Feed], *, spark: bool, out: Path, partitions: int, console: Console) -> int:
    """Run each feed through its plan, in process and with ``spark`` on Spark too; show it; the exit code."""
    both = Checks()
    with ExitStack() as stack:
        session = stack.enter_context(_session(console)) if spark else None
        for feed in feeds:
            console.rule(printable(feed.title, 100), align="left")
            demo = Demo(feed, out / feed.name, console)
            demo.locally()
            if session is not None:
                demo.on_spark(session, partitions)
            demo.picture()
            demo.show()
            written = ", ".join(sorted(each.name for each in demo.folder.iterdir()))
            console.print(f"written to {demo.folder}: {written}", markup=False, soft_wrap=True)
            _close(console, demo.checks)
            both.add(feed.name, demo.checks.total)
    if len(feeds) > 1:
        console.rule("all together", align="left")
        _close(console, both)
    return 0 if both.good else 1


def _close(console: Console, checks: Checks) -> None:
    console.print(checks.closing, style="bold green" if checks.good else "bold red", highlight=False)
