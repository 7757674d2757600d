"""Measure ddflow on Spark beside Spark's own methods, on the same files and with the same answers.

Each contender gets its own process and a session on two cores. A batch job runs on few rows, and then twice over all
rows; the second of the two long runs is timed. A streaming job runs only once. The first batches of a stream are not
timed, because the JVM then compiles hot code and the first job starts workers. Spark itself times each batch
(``triggerExecution``, from planning to the commit of offsets). State and updates are committed before the clock stops.
Spark spends most of the time of a streaming batch on planning. ``ceiling`` and ``floor`` only shuffle, so they show the
cost of planning. Slow peers run only once, and on a part of a workload. Limits: everything runs on one machine. Memory
is the sum over the process, the JVM, the daemon and its workers.

>>> progress = [{"numInputRows": 5, "durationMs": {"triggerExecution": 70}}, {"numInputRows": 0, "durationMs": {}}]
>>> batches(progress * 3, 1)
([70, 70, 70], 10, 0.14)
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import memory
import ours
import pyarrow.parquet as pq
import report
import spark_files
import workloads
from report import Bar, Row, at_least, within
from runner import Bench, Job
from spark_files import KEYS, Task

LINES = {
    "batch": "everything at once, updates committed",
    "stream-100k": "streamed in batches of 100 k rows, each committed",
    "stream-1m": "streamed in batches of 1 M rows, each committed",
    "small": "batches of 1 k rows on a state of a million keys",
}
SLOW = {"rows": 300_000, "apply-pandas": 300_000, "transform-pandas": 200_000}  # rows that each processes, once
PART = 1_000_000  # the number of rows that the join processes
ROWS = {"w1s": 1_000_000, "w1": 10_000_000, "w3": 2_000_000}
SKEWED = "w1z"  # With Zipf keys, a single key has a large share of all events
SMALL, SMALL_BATCHES = 1000, 30
IDLE = ("ceiling", "floor")  # they do no work, so they have no updates
PROTOBUF = ("rows", "transform-pandas")  # these contenders need protobuf, which PySpark does not install
WARM_ROWS, JVM, CORES, TIMEOUT = 50_000, "3g", 2, 3 * 3600  # TIMEOUT in seconds: slow peers are very slow
EVENTS, CITIES = "events", "cities"

# Two runs and a factor: the rate of the first run must be at least this factor times the rate of the second run. A run
# is a line, a workload, a contender and a query.
NEEDS = (
    (("batch", "w1", "ddflow", "upsert"), ("batch", "w1", "ceiling", "upsert"), 0.4),
    (("batch", "w1", "ddflow", "upsert"), ("batch", "w1", "lag", "upsert"), 1.2),
    (("stream-100k", "w1", "ddflow", "upsert"), ("stream-100k", "w1", "floor", "upsert"), 1 / 1.5),
    (("stream-100k", "w1", "ddflow", "upsert"), ("stream-100k", "w1", "join", "upsert"), 3.0),
    (("stream-100k", "w1s", "ddflow", "upsert"), ("stream-100k", "w1s", "transform-pandas", "upsert"), 100.0),
    (("stream-100k", "w1s", "ddflow", "upsert"), ("stream-100k", "w1s", "rows", "upsert"), 20.0),
    (("stream-100k", "w1s", "ddflow", "upsert"), ("stream-100k", "w1s", "join", "upsert"), 3.0),
    (("stream-100k", "w1", "ddflow", "count"), ("stream-100k", "w1", "ddflow", "upsert"), 0.5),
    (("stream-100k", "w1s", "ddflow", "revenue"), ("stream-100k", "w1s", "ddflow", "count"), 0.6),
    (("stream-100k", "w1", "ddflow", "revenue"), ("stream-100k", "w1", "ddflow", "count"), 0.6),
    (("stream-1m", "w1", "ddflow", "count"), ("stream-1m", "w1", "ddflow", "upsert"), 0.5),
)
LARGE_BATCHES = 0.7  # million rows a second in batches of a million
SMALL_OVER_MS = 150.0  # allowed extra time of a small batch over the floor's
STATE_PART = 0.5  # allowed share of RocksDB's bytes for the same rows


def able(contender: str) -> bool:
    """Return whether a contender's libraries are installed."""
    return contender not in PROTOBUF or (find_spec("google") is not None and find_spec("google.protobuf") is not None)


def batches(progress: Sequence[Any], skip: int) -> tuple[list[int], int, float]:
    """Return the milliseconds of each batch that has rows.

    Return also the total rows and seconds, without the first ``skip`` batches.
    """
    full = [each for each in progress if each["numInputRows"]]
    times = [int(each["durationMs"]["triggerExecution"]) for each in full]
    return times, sum(int(each["numInputRows"]) for each in full[skip:]), sum(times[skip:]) / 1e3


def tasks() -> Iterator[Task]:
    """Yield all tasks, line by line."""
    upsert_and_count = (("floor", "upsert"), ("ddflow", "upsert"), ("ddflow", "count"))
    for name, rows in (*ROWS.items(), ("tiny", 20_000)):
        for contender, query in (("ceiling", "upsert"), ("lag", "upsert"), ("ddflow", "upsert"), ("ddflow", "count")):
            yield Task("batch", name, contender, rows, query=query)
    for contender in ("ceiling", "ddflow"):
        yield Task("batch", SKEWED, contender, ROWS["w1"])
    for name, rows in ROWS.items():
        for contender, query in upsert_and_count:
            yield Task("stream-100k", name, contender, rows, 100_000, query, skip=5 if name == "w1" else 2)
        yield Task("stream-100k", name, "join", min(rows, PART), 100_000, skip=2)
        if workloads.kind(name) == "ints":
            yield Task("stream-100k", name, "ddflow", rows, 100_000, "revenue", skip=5 if name == "w1" else 2)
    # ddflow also processes the part of the slow peers, so that the sizes of states on disk can be compared.
    for contender, rows in (("ddflow", max(SLOW.values())), *SLOW.items()):
        yield Task("stream-100k", "w1s", contender, rows, 100_000, skip=1)
    for contender in ("floor", "join", *SLOW, "ddflow"):
        yield Task("stream-100k", "tiny", contender, 3000, 1000, skip=1)
    for query in ("count", "revenue"):
        yield Task("stream-100k", "tiny", "ddflow", 3000, 1000, query, skip=1)
    for contender, query in upsert_and_count:
        yield Task("stream-1m", "w1", contender, ROWS["w1"], 1_000_000, query, skip=2)
    for contender in ("floor", "ddflow"):
        yield Task("stream-1m", SKEWED, contender, ROWS["w1"], 1_000_000, skip=2)
        yield Task("small", "small", contender, KEYS + SMALL_BATCHES * SMALL, SMALL, loaded=KEYS, skip=6)


class Spark(Bench):
    """The bench that runs all `tasks`. Slow peers run one round, and ``tiny`` runs only if it is named."""

    name = "spark"
    about = "Spark: ddflow on Spark beside Spark's own ways, state and updates committed."
    sampled = ("seconds", "batch_ms", "total_seconds", "resident", "private", "state", "live")
    rate = "m_rows_per_s"
    quick = ({"workload": "w1s", "contender": "ceiling,lag,floor,ddflow,join"}, {})
    columns = (
        "contender {contender} | query {query} | rows {rows:,} | seconds {median_seconds:.2f} | "
        "min-max {seconds!l:.2f}-{seconds!g:.2f} | M rows/s {m_rows_per_s:.4f} | batch ms {median_batch_ms:,.0f} | "
        "all s {total_seconds!m:.1f} | memory MB {resident_median!M:,.1f} | private MB {private_median!M:,.1f} | "
        "state MB {state_median!M:,.1f} | newest MB {live_median!M:,.1f}"
    )

    def jobs(self) -> list[Job]:
        """Return the jobs, without contenders whose libraries are missing."""
        return [
            Job(
                task._asdict(),
                rounds=1 if task.contender in SLOW else 3,
                timeout=TIMEOUT,
                named=("workload",) if task.workload == "tiny" else (),
            )
            for task in tasks()
            if able(task.contender)
        ]

    def measure(self, **what: Any) -> dict[str, Any]:
        """Start a session, run the task in it, and measure the memory of all its processes."""
        task = Task(**what)
        spark_files.files(task)
        if task.contender == "ddflow":
            ours.warm()
            os.environ["PYSPARK_SUBMIT_ARGS"] = _settings()
        from spark_bridge.session import local_session

        with local_session("bench", cores=CORES, memory=JVM) as spark, memory.Watch(0.25, tree=True) as watch:
            found = measured(task, spark)
        return {**found, "resident": watch.resident, "private": watch.peak.private}

    def question(self, job: Job) -> dict[str, Any] | None:
        if job.what["contender"] in IDLE:
            return None
        return {**job.what, "contender": "", "skip": 0, "line": ""}

    def expected(self, **what: Any) -> list[Any]:
        """Return the number of updates and their checksum."""
        return list(spark_files.expected(Task(**what)))

    def wrong(self, job: Job, sample: dict[str, Any], expected: Any) -> str | None:
        found = [sample["updates"], sample["checksum"]]
        if expected is None or found == list(expected):
            return None
        return "{:,} updates with checksum {}, expected {:,} with {}".format(*found, *expected)

    def row(self, job: Job, samples: Sequence[dict[str, Any]]) -> Row:
        row = super().row(job, [{"rows": job.what["rows"], **sample} for sample in samples])
        times = [took for sample in samples for took in sample["batch_ms"][job.what["skip"] :]]
        sizes = {f"{name}_median": median(row[name]) for name in ("resident", "private", "state", "live")}
        return {**row, **sizes, "median_batch_ms": median(times) if times else None}

    def tables(self, result: Row) -> Iterator[tuple[str, Sequence[Row]]]:
        """Yield a table per line and workload."""
        for (line, workload), rows in report.grouped(result["results"], "line", "workload"):
            yield f"{line}, {workload}: {LINES[line]}", rows

    def panels(self, result: Row) -> list[Callable[[Any], None]]:
        """Draw rates as bars, for the contenders that write updates.

        Each line shows the workload that most contenders ran.
        """
        panels = list[Callable[[Any], None]]()
        for (line,), found in report.grouped(result["results"], "line"):
            plain = [row for row in found if row["query"] == "upsert"]
            workload = max({row["workload"]: None for row in plain}, key=[row["workload"] for row in plain].count)
            rows = [row for row in plain if row["workload"] == workload]
            names = [f"{row['contender']}, {row['rows'] / 1e6:g} M rows" for row in rows]
            rates = [row[self.rate] for row in rows]
            panels.append(partial(report.draw_bars, title=f"{line}: {LINES[line]}", names=names, values=rates))
        return panels

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars.

        The bars make three comparisons: ddflow's rates with the peers' rates, the time of small batches with the floor,
        and the sizes of states on disk after the same rows.

        The slow peers ran only a part of ddflow's workload, so their rate is better than it would be on the whole
        workload.
        """
        rows: dict[tuple[str, ...], Row] = {}
        for row in sorted(result["results"], key=lambda row: row["rows"]):
            rows[row["line"], row["workload"], row["contender"], row["query"]] = row  # keep the run with the most rows
        for mine, theirs, times in NEEDS:
            if mine in rows and theirs in rows:
                line, workload, _, query = mine
                of = f"{theirs[1]} {theirs[2]}" + (" upsert" if theirs[3] != query else "")
                rates = rows[mine]["m_rows_per_s"], of, rows[theirs]["m_rows_per_s"]
                yield at_least(f"{workload} {line} {query}", *rates, times, digits=(3, 4))
        if large := rows.get(("stream-1m", "w1", "ddflow", "upsert")):
            rate = large["m_rows_per_s"]
            yield within("w1 stream-1m upsert", f"{rate:.3f} M/s", f"{LARGE_BATCHES} M/s", rate >= LARGE_BATCHES)
        small, floor = (rows.get(("small", "small", name, "upsert")) for name in ("ddflow", "floor"))
        if small is not None and floor is not None:
            took, least = small["median_batch_ms"], floor["median_batch_ms"]
            met, wanted = took - least <= SMALL_OVER_MS, f"{SMALL_OVER_MS:.0f} ms over"
            yield within("1 k rows on the state", f"{took:.0f} ms", wanted, met, f"floor {least:.0f} ms")
        yield from _states(result["results"])


def _states(rows: Sequence[Row]) -> Iterator[Bar]:
    def place(row: Row) -> tuple[Any, ...]:
        return row["line"], row["workload"], row["rows"]

    same = {place(row): row for row in rows if row["contender"] == "ddflow" and row["query"] == "upsert"}
    for row in (row for row in rows if row["contender"] in SLOW and place(row) in same):
        mine, theirs = median(same[place(row)]["live"]), median(row["live"])
        line = f"state on disk, {row['workload']}, {row['rows'] / 1000:,.0f} k rows"
        of, met = f"{row['contender']} {theirs / 1e6:.2f} MB", mine <= STATE_PART * theirs
        yield within(line, f"{mine / 1e6:.2f} MB", f"{STATE_PART} of it", met, of)


def measured(task: Task, spark: Any) -> dict[str, Any]:
    """Run a task in a session, in temporary folders."""
    import spark_peers

    spark_peers.configure(spark)
    # Workers import the peers' operators by name.
    path = filter(None, (str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")))
    spark.sparkContext.environment["PYTHONPATH"] = os.pathsep.join(path)
    with tempfile.TemporaryDirectory(prefix="ddflow-bench-") as folder:
        found, place, kept = (_stream if task.step else _batch)(task, spark, folder)
        updates, checksum, live = 0, "", 0
        if task.contender not in IDLE:
            updates, checksum = spark_files.answer(os.path.join(place, "out"))
            live = spark_files.newest(task.contender, kept)
        return {**found, "state": memory.on_disk(kept), "live": live, "updates": updates, "checksum": checksum}


def _batch(task: Task, spark: Any, folder: str) -> tuple[dict[str, Any], str, str]:
    """Run on a few rows, then twice over all rows.

    Return the figures, and two folders: of the updates and of the state of the last run.
    """
    import spark_peers

    (path,) = spark_files.files(task)
    frame, figures = spark.read.parquet(str(path)), dict[str, int]()
    runs = [*([frame.limit(WARM_ROWS)] if task.rows > WARM_ROWS else []), frame, frame]
    for number, some in enumerate(runs):
        place = os.path.join(folder, str(number))
        os.makedirs(place)
        begun = time.perf_counter()
        if task.contender == "ddflow":
            figures = _run(some, place, task.query)
        else:
            spark_peers.BATCH[task.contender](some, place)
        took = time.perf_counter() - begun
        if number + 1 < len(runs):
            shutil.rmtree(place)
    if task.contender in IDLE:
        check_rows(task, frame.count())
    found = {"seconds": took, "counted": task.rows, "batch_ms": [], "total_seconds": took, "figures": figures}
    return found, place, os.path.join(place, "state")


def _stream(task: Task, spark: Any, folder: str) -> tuple[dict[str, Any], str, str]:
    """Stream the files in order, one file per batch.

    Return the figures, and two folders: of the updates and of the state.
    """
    import spark_peers

    import spark_bridge

    checkpoint, input = os.path.join(folder, "checkpoint"), os.path.join(folder, "feed")
    os.makedirs(input)
    for path in spark_files.files(task):
        os.symlink(path, os.path.join(input, path.name))
    schema = spark.read.parquet(input).schema
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(input)
    begun = time.perf_counter()
    if task.contender == "ddflow":
        plan, frames = flow(task.query, frame.schema), {EVENTS: frame}
        if CITIES in plan.inputs:
            frames[CITIES] = spark.readStream.schema(_cities(spark, folder).schema).parquet(
                os.path.join(folder, CITIES)
            )
        where = {
            "state": os.path.join(folder, "state"),
            "outputs": os.path.join(folder, "out"),
            "checkpoint": checkpoint,
        }
        given = {"partitions": spark_peers.PARTITIONS, "close": True, "trigger": {"availableNow": True}, **where}
        query = spark_bridge.stream(plan, frames, **given).start()
    else:
        query = spark_peers.STREAMS[task.contender](frame, folder, checkpoint)
    query.awaitTermination()
    total = time.perf_counter() - begun
    progress = [json.loads(each.json) if hasattr(each, "json") else each for each in query.recentProgress]
    check_rows(task, sum(each["numInputRows"] for each in progress) - more_rows(task))
    times, counted, seconds = batches(progress, task.skip)
    figures = _figures(query, task.rows + more_rows(task)) if task.contender == "ddflow" else {}
    found = {"seconds": seconds, "counted": counted, "batch_ms": times, "total_seconds": total, "figures": figures}
    return found, folder, os.path.join(folder if task.contender == "ddflow" else checkpoint, "state")


def check_rows(task: Task, found: int) -> None:
    """Raise AssertionError unless the contender has read every row."""
    if found != task.rows:
        raise AssertionError(f"{task.contender} read {found:,} rows of {task.rows:,}")


def flow(query: str, schema: Any) -> Any:
    """Return the flow of a query.

    The flow upserts by key, with ``time`` as the clock, and then applies the operators of the query.

    ``count`` adds a projection and a count. ``revenue`` joins with cities by value, and counts and sums the keys by
    city. With ``lateness=0``, the last time of a batch closes only in the next batch. The last time of the whole input
    closes when the input ends.
    """
    import ddflow as dd

    made = dd.Flow()
    rows: Any = made.upserts(EVENTS, schema, dd.Upsert(key="key", time="time", lateness=0, delete="val is null"))
    if query == "count":
        rows = rows.project(["val"]).count()
    elif query == "revenue":
        spec = dd.Upsert(key="of", time="time", lateness=0)
        cities = made.upserts(CITIES, spark_files.cities().schema, spec)
        rows = rows.join(cities, on={"val": "of"}).group_by("city").agg(n="count(*)", s="sum(key)")
    made.output("out", rows)
    return made


def _cities(spark: Any, folder: str) -> Any:
    """Write the cities to a separate folder, and return them as a DataFrame."""
    place = os.path.join(folder, CITIES)
    os.makedirs(place)
    pq.write_table(spark_files.cities(), os.path.join(place, "0.parquet"))
    return spark.read.parquet(place)


def more_rows(task: Task) -> int:
    """Return the number of rows that are read in addition to those of the task."""
    return spark_files.cities().num_rows if task.query == "revenue" else 0


def _run(frame: Any, folder: str, query: str) -> dict[str, int]:
    """Run everything in one epoch that closes all times; return the figures of the epoch.

    Raises AssertionError if a row has no verdict.
    """
    import spark_peers

    import spark_bridge

    plan, place = flow(query, frame.schema), Path(folder)
    where = {"state": str(place / "state"), "outputs": str(place / "out")}
    frames = {EVENTS: frame} | ({CITIES: _cities(frame.sparkSession, folder)} if CITIES in plan.inputs else {})
    done = spark_bridge.run(plan, frames, spark_peers.PARTITIONS, close=True, **where)
    if done.verdicts.resolved != sum(done.rows.values()):
        raise AssertionError(f"of {done.rows} rows, only {done.verdicts.resolved} have a verdict")
    return dict(done.figures)


def _figures(query: Any, rows: int) -> dict[str, int]:
    """Return the median figures of a finished query's epochs; raise AssertionError if a row has no verdict."""
    epochs = query.ddflow.stats()
    resolved = sum(sum(epoch.counts.values()) for epoch in epochs)
    came = sum(sum(epoch.rows.values()) for epoch in epochs)
    if resolved != came and came == rows:  # otherwise the query no longer keeps all epochs
        raise AssertionError(f"of {rows} rows, only {resolved} have a verdict")
    names = {name for epoch in epochs for name in epoch.figures}
    return {name: int(median(epoch.figures.get(name, 0) for epoch in epochs)) for name in sorted(names)}


def _settings() -> str:
    """Return the settings of ``spark_bridge.configure`` as PYSPARK_SUBMIT_ARGS for the process of a session."""
    import spark_bridge

    class Builder(dict[str, str]):
        def config(self, name: str, value: str) -> Builder:
            self[name] = value
            return self

    chosen = spark_bridge.configure(Builder())
    return " ".join([*(f"--conf {name}={value}" for name, value in chosen.items()), "pyspark-shell"])


BENCH = Spark()
