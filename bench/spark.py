#!/usr/bin/env python3
"""The Spark bench: ddflow on Spark beside what Spark has of its own, on the same files and with the same answers.

Invariant: every contender runs in a process of its own with a session of its own on two cores; rounds begin at another
contender each; and updates that are not the known ones fail the run. Most of a streaming batch is Spark's own planning
and book-keeping, so a rate says little without its neighbours ``ceiling`` and ``floor``, which do nothing but the
shuffle. What is slow takes a part of a workload, in one round; the tables say how many rows.

>>> [job.contender for job in select(parser().parse_args(["--only", "small"]))]
['floor', 'ddflow']
>>> {job.rows for job in select(parser().parse_args(["--quick", "--only", "batch"]))}
{1000000}
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import bars
import child
import report
import spark_run
import workloads
from rich.console import Console
from rich.markup import escape
from spark_run import IDLE, Sample, able
from spark_work import KEYS, Job

LINES = {
    "batch": "everything at once, updates committed",
    "stream-100k": "streamed in batches of 100 k rows, each committed",
    "stream-1m": "streamed in batches of 1 M rows, each committed",
    "small": "batches of 1 k rows on a state of a million keys",
}
CONTENDERS = ("ceiling", "lag", "floor", "ddflow", "join", "rows", "apply-pandas", "transform-pandas")
SLOW = {"rows": 300_000, "apply-pandas": 300_000, "transform-pandas": 200_000}  # rows they take, in one round
PART = 1_000_000  # rows that the join takes
ROWS = {"w1": 10_000_000, "w1s": 1_000_000, "w3": 2_000_000}
SKEWED = "w1z"  # Zipf keys: one of them has a good part of all events
QUICK = ("w1s",)
SMALL, SMALL_BATCHES = 1000, 30
HEADINGS = (
    "contender",
    "query",
    "rows",
    "seconds",
    "min-max",
    "M rows/s",
    "batch ms",
    "all s",
    "memory MB",
    "private MB",
    "state MB",
    "newest MB",
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="bench/spark.py",
        description=(__doc__ or "").splitlines()[0],
        epilog="lines: " + "; ".join(f"{name}: {what}" for name, what in LINES.items()) + ". contenders: "
        f"{', '.join(CONTENDERS)}. {' and '.join(spark_run.PROTOBUF)} need protobuf and are left out without it.",
    )
    add = line.add_argument
    add("--only", nargs="+", choices=LINES, metavar="LINE", help="only these lines")
    add("--contender", nargs="+", choices=CONTENDERS, metavar="NAME", help="only these (default: all)")
    add("--workload", nargs="+", choices=[*ROWS, SKEWED, "small"], metavar="NAME", help="only these (default: all)")
    add("--quick", action="store_true", help="w1s and a small state, one round, without the slow ones")
    add("--rounds", type=int, metavar="N", help="rounds, of which the median is taken (default: 3)")
    add("--json", action="store_true", help="print the raw results as JSON instead of tables")
    add("--out", type=Path, default=child.ROOT / "bench" / "results", metavar="DIR", help="where results go")
    add("--no-save", action="store_true", help="write no files")
    return line


def select(options: argparse.Namespace) -> list[Job]:
    """The jobs of a round, line by line.  Those whose libraries are missing are left out."""
    made = [*_batches(options.quick), *_streams(options.quick), *_small(KEYS // 10 if options.quick else KEYS)]
    return [
        job
        for job in made
        if (options.only is None or job.line in options.only)
        and (options.contender is None or job.contender in options.contender)
        and (options.workload is None or job.workload in options.workload)
        and able(job.contender)
    ]


def _batches(quick: bool) -> Iterator[Job]:
    for name in QUICK if quick else ROWS:
        for contender in ("ceiling", "lag", "ddflow"):
            yield Job("batch", name, contender, ROWS[name])
        yield Job("batch", name, "ddflow", ROWS[name], query="count")
    for contender in () if quick else ("ceiling", "ddflow"):
        yield Job("batch", SKEWED, contender, ROWS["w1"])


def _streams(quick: bool) -> Iterator[Job]:
    for name in QUICK if quick else ROWS:
        rows, skip = ROWS[name], 5 if name == "w1" else 2
        for contender, query in (("floor", "upsert"), ("ddflow", "upsert"), ("ddflow", "count")):
            yield Job("stream-100k", name, contender, rows, 100_000, query, skip=skip)
        yield Job("stream-100k", name, "join", min(rows, PART), 100_000, skip=2)
    if not quick:
        # The same part as the slow ones, so that the state on disk can be compared.
        yield Job("stream-100k", "w1s", "ddflow", max(SLOW.values()), 100_000, skip=1)
        for contender, rows in SLOW.items():
            yield Job("stream-100k", "w1s", contender, rows, 100_000, skip=1)
        for contender, query in (("floor", "upsert"), ("ddflow", "upsert"), ("ddflow", "count")):
            yield Job("stream-1m", "w1", contender, ROWS["w1"], 1_000_000, query, skip=2)
        for contender in ("floor", "ddflow"):
            yield Job("stream-1m", SKEWED, contender, ROWS["w1"], 1_000_000, skip=2)


def _small(keys: int) -> Iterator[Job]:
    for contender in ("floor", "ddflow"):
        yield Job("small", "small", contender, keys + SMALL_BATCHES * SMALL, SMALL, loaded=keys, skip=6)


def measured(jobs: Sequence[Job], rounds: int, console: Console) -> tuple[list[dict[str, Any]], list[str]]:
    """All rounds of all jobs, of the slow ones one: a row for each job, and what failed."""
    samples, failures = {job: list[Sample]() for job in jobs}, list[str]()
    known: dict[Job, workloads.Answer] = {}
    for number in range(rounds):
        start = number * 5 % len(jobs)
        for job in (*jobs[start:], *jobs[:start]):
            if number and job.contender in SLOW:
                continue
            label = f"{job.line} {job.workload} {job.query} {job.contender}"
            with console.status(f"round {number + 1} of {rounds}: {label}"):
                try:
                    sample = spark_run.measure(job)
                    problem = None if job.contender in IDLE else _wrong(job, sample, known)
                except child.Broken as broken:
                    failures.append(f"{label}: did not finish: {str(broken)[-2000:]}")
                    continue
            if problem is not None:
                failures.append(f"{label}: {problem}")
            samples[job].append(sample)
    return [_row(job, every) for job, every in samples.items() if every], failures


def _wrong(job: Job, sample: Sample, known: dict[Job, workloads.Answer]) -> str | None:
    asked = job._replace(contender="expected")
    if asked not in known:
        known[asked] = workloads.Answer(**child.ask(spark_run.__file__, asked._asdict()))
    found, of = workloads.Answer(sample.updates, sample.checksum), known[asked]
    if found == of:
        return None
    return f"{found.updates:,} updates with checksum {found.checksum}, expected {of.updates:,} with {of.checksum}"


def _row(job: Job, every: Sequence[Sample]) -> dict[str, Any]:
    listed = {name: [sample._asdict()[name] for sample in every] for name in Sample._fields[:8] if name != "counted"}
    seconds, counted = median(listed["seconds"]), every[0].counted
    times = [took for sample in every for took in sample.batch_ms[job.skip :]]
    return {
        **job._asdict(),
        **listed,
        "counted": counted,
        "median_seconds": seconds,
        "m_rows_per_s": counted / seconds / 1e6,
        "median_batch_ms": median(times) if times else None,
        "updates": every[0].updates,
        "checksum": every[0].checksum,
        "figures": every[-1].figures,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    batch = row["median_batch_ms"]
    sizes = (f"{median(row[name]) / 2**20:,.1f}" for name in ("resident", "private", "state", "live"))
    return [
        row["contender"],
        row["query"],
        f"{row['rows']:,}",
        f"{row['median_seconds']:.2f}",
        f"{min(row['seconds']):.2f}-{max(row['seconds']):.2f}",
        f"{row['m_rows_per_s']:.4f}",
        "" if batch is None else f"{batch:,.0f}",
        f"{median(row['total_seconds']):.1f}",
        *sizes,
    ]


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[list[str]]]]:
    """A title and rows for each line and workload."""
    for (line, workload), members in groupby(rows, key=lambda row: (row["line"], row["workload"])):
        yield f"{line}, {workload}: {LINES[line]}", list(map(_cells, members))


def text(rows: Sequence[dict[str, Any]], about: dict[str, Any], reached: Sequence[bars.Bar]) -> str:
    """The tables and the bars in Markdown."""
    parts = ["# Spark bench", "", report.machine_line(about), ""]
    for title, lines in tables(rows):
        parts += [f"## {title}", "", report.table(HEADINGS, lines)]
    return "\n".join(parts) + (f"\n## Bars\n\n{bars.markdown(reached)}" if reached else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    options = parser().parse_args(arguments)
    out, progress, about = Console(), Console(stderr=True), report.machine(child.ROOT)
    about |= {"pyspark": version("pyspark"), "master": f"local[{spark_run.CORES}]", "jvm": spark_run.JVM}
    out.width = max(out.width, 150)
    if about["load_at_start"] > 0.5:
        progress.print(f"[yellow]the machine is busy (load {about['load_at_start']}); trust ratios, not seconds")
    for missing in (name for name in spark_run.PROTOBUF if not able(name)):
        progress.print(f"[yellow]{missing} is left out: PySpark wants protobuf for it (pip install protobuf)")
    rows, failures = measured(select(options), max(1, options.rounds or (1 if options.quick else 3)), progress)
    result = {"bench": "spark", "machine": about, "results": rows}
    reached = bars.bars_of(result)
    if options.json:
        out.print_json(json.dumps(result))
    else:
        out.print(report.machine_line(about), style="dim")
        for title, lines in tables(rows):
            report.print_table(out, title, HEADINGS, lines)
        bars.show(out, reached)
    for failure in failures:
        progress.print(f"[bold red]WRONG[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if failures:
        return 1
    if not options.no_save:
        partial = options.quick or options.only or options.contender or options.workload or options.rounds is not None
        path = report.keep(options.out, result, text(rows, about, reached), "-partial" if partial else "")
        progress.print(f"written: {path}, .md beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
