#!/usr/bin/env python3
"""The semantics bench: merges, groups, cells, lists, machines, tombstones and contents beside full rows, and peers.

Invariant: a line is timed on a state that holds all keys, in steps of 100 k rows, each contender in a fresh process;
and the rows that are left have the checksum that numpy or a dict found from the same events, or the run fails. What a
line costs only means something beside full rows of the same table, in the same run; so a line brings its base along,
and every round begins at another line. What is put out is checked and dropped between the steps, outside of the time
that counts.

>>> found = run("overwrite", "ddflow", [500, 100, 1, 4])
>>> found["rows"], found["checksum"] == run("overwrite", "expected", [500, 100, 1, 4])["checksum"]
(400, True)
>>> [job.line for job in select(parser().parse_args(["--only", "max", "--contender", "ddflow"]))]
['full', 'max']
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import bars
import child
import memory
import pyarrow as pa
import report
import semantics_ours
import semantics_peers
from rich.console import Console
from rich.markup import escape
from semantics_work import LINES, Size, expected, loaded, tables

CONTENDERS = ("ddflow", *semantics_peers.PEERS)
QUICK = Size(200_000, 100_000, 1, 4)
PREFIX = 2  # steps that the dict takes: it is slow, and as slow in each
HEADINGS = ("line", "contender", "M/s", "of", "x base", "M/s of CPU", "x base", "min-max", "seconds", "peak MB")


class Job(NamedTuple):
    """What to measure."""

    line: str
    contender: str

    def size(self, size: Size) -> Size:
        """How much of it."""
        return size._replace(steps=min(size.steps, PREFIX)) if self.contender == "dict" else size


def run(line: str, contender: str, size: list[int]) -> dict[str, Any]:
    """Load the keys, take the steps; or, as "expected", only say what the rows must add up to."""
    of = Size(*size)
    if contender == "expected":
        return {"checksum": expected(line, of)}
    pa.set_cpu_count(1)
    if contender == "ddflow":
        from ddflow.tools.warmup import warm

        warm(None)
    made = tables(LINES[line].kind, of)
    first, seconds, cpu, longest = loaded(LINES[line].kind, of), 0.0, 0.0, 0.0
    before = memory.settled()
    memory.forget_peak()
    ours = contender == "ddflow"
    runner = semantics_ours.opened(line, of, made) if ours else semantics_peers.PEERS[contender](line)
    for number, table in enumerate(made):
        begun, begun_cpu = time.perf_counter(), time.process_time()
        out = runner.step(table)
        took, took_cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
        runner.take(out)
        del out
        if number >= first:
            seconds, cpu, longest = seconds + took, cpu + took_cpu, max(longest, took)
    peak = (memory.peak() - before) / 2**20
    rows = sum(table.num_rows for table in made[first:])
    return {
        "rows": rows,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "longest_ms": longest * 1e3,
        "peak_mb": peak,
        "checksum": runner.answer(),
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="bench/semantics.py",
        description=(__doc__ or "").splitlines()[0],
        epilog=f"lines: {', '.join(LINES)}; contenders: {', '.join(CONTENDERS)} "
        f"(the peers run {', '.join(semantics_peers.TAKES)})",
    )
    add = line.add_argument
    add("--only", nargs="+", choices=LINES, metavar="LINE", help="only these, and their bases")
    add("--contender", nargs="+", choices=CONTENDERS, metavar="NAME", help="only these (default: all)")
    add("--quick", action="store_true", help=f"{QUICK.keys:,} keys, {QUICK.steps} steps, one round, few peers")
    add("--rounds", type=int, metavar="N", help="rounds, of which the median is taken (default: 3)")
    add("--json", action="store_true", help="print the raw results as JSON instead of tables")
    add("--out", type=Path, default=child.ROOT / "bench" / "results", metavar="DIR", help="where results go")
    add("--no-save", action="store_true", help="write no files")
    return line


def select(options: argparse.Namespace) -> list[Job]:
    """The jobs of a round: lines in their order, of each ddflow first.  What this ddflow has not is left out."""
    names = [name for name in LINES if options.only is None or name in options.only]
    wanted = {*names, *(LINES[name].base for name in names)}
    jobs = [Job(name, contender) for name in LINES if name in wanted for contender in options.contender or CONTENDERS]
    peers = semantics_peers.TAKES if not options.quick or options.contender else ("overwrite",)
    return [j for j in jobs if (semantics_ours.able(j.line) if j.contender == "ddflow" else j.line in peers)]


def measured(jobs: Sequence[Job], size: Size, rounds: int, console: Console) -> tuple[list[dict[str, Any]], list[str]]:
    """All rounds of all jobs: a row for each job, and what failed."""
    samples, failures, known = {job: list[dict[str, Any]]() for job in jobs}, list[str](), dict[tuple[Any, ...], str]()
    for number in range(rounds):
        start = number * 7 % len(jobs)
        for job in (*jobs[start:], *jobs[:start]):
            of = job.size(size)
            question = {"line": job.line, "contender": job.contender, "size": list(of)}
            with console.status(f"round {number + 1} of {rounds}: {job.line} {job.contender}"):
                try:
                    key = (job.line, of)
                    if key not in known:
                        known[key] = child.ask(__file__, {**question, "contender": "expected"})["checksum"]
                    found = child.ask(__file__, question)
                except child.Broken as broken:
                    failures.append(f"{job.line} {job.contender}: did not finish: {str(broken)[-2000:]}")
                    continue
            if found["checksum"] != known[key]:
                failures.append(f"{job.line} {job.contender}: the rows add up to {found['checksum']}, not {known[key]}")
            samples[job].append(found)
    return [_row(job, every) for job, every in samples.items() if every], failures


def _row(job: Job, every: Sequence[dict[str, Any]]) -> dict[str, Any]:
    listed = {name: [each[name] for each in every] for name in ("seconds", "cpu_seconds", "longest_ms", "peak_mb")}
    line, rows = LINES[job.line], every[0]["rows"]
    seconds, cpu = median(listed["seconds"]), median(listed["cpu_seconds"])
    return {
        **job._asdict(),
        "base": line.base,
        "what": line.what,
        "rows": rows,
        **listed,
        "median_seconds": seconds,
        "m_per_s": rows / seconds / 1e6,
        "cpu_m_per_s": rows / cpu / 1e6,
        "checksum": every[0]["checksum"],
    }


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with ``over_base``: of ours to the base's of the same run, of a peer's to ours on the same line.

    ``cpu_over_base``: the same of processor time.
    """
    ours = {row["line"]: row for row in rows if row["contender"] == "ddflow"}
    for row in rows:
        base = ours.get(row["base"] if row["contender"] == "ddflow" else row["line"])
        for prefix in ("", "cpu_"):
            rate = f"{prefix}m_per_s"
            row[f"{prefix}over_base"] = None if base is None else row[rate] / base[rate]
    return rows


def _cells(row: dict[str, Any]) -> list[str]:
    to = "" if row["contender"] == "ddflow" else " of ddflow"
    ratio, cpu = ("" if row[name] is None else f"{row[name]:.2f}{to}" for name in ("over_base", "cpu_over_base"))
    return [
        row["line"],
        row["contender"],
        f"{row['m_per_s']:.2f}",
        row["what"],
        ratio,
        f"{row['cpu_m_per_s']:.2f}",
        cpu,
        f"{min(row['seconds']):.2f}-{max(row['seconds']):.2f}",
        f"{row['median_seconds']:.2f}",
        f"{median(row['peak_mb']):,.0f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    options = parser().parse_args(arguments)
    out, progress, about = Console(), Console(stderr=True), report.machine(child.ROOT)
    out.width = max(out.width, 150)
    if about["load_at_start"] > 0.5:
        progress.print(f"[yellow]the machine is busy (load {about['load_at_start']}); trust ratios, not seconds")
    size, jobs = QUICK if options.quick else Size(), select(options)
    rounds = max(1, options.rounds or (1 if options.quick else 3))
    found, failures = measured(jobs, size, rounds, progress)
    rows = with_ratios(found)
    result = {"bench": "semantics", "machine": about, "size": size._asdict(), "rounds": rounds, "results": rows}
    reached = bars.bars_of(result)
    title = f"Steps of {size.step:,} rows on {size.keys:,} keys, {size.steps} steps; medians of {rounds}"
    if options.json:
        out.print_json(json.dumps(result))
    else:
        out.print(report.machine_line(about), style="dim")
        report.print_table(out, title, HEADINGS, map(_cells, rows))
        bars.show(out, reached)
    for failure in failures:
        progress.print(f"[bold red]WRONG[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if failures:
        return 1
    if not options.no_save:
        text = f"# Semantics bench\n\n{report.machine_line(about)}\n\n## {title}\n\n"
        text += report.table(HEADINGS, map(_cells, rows))
        text += f"\n## Bars\n\n{bars.markdown(reached)}" if reached else ""
        partial = options.quick or options.only or options.contender or options.rounds is not None
        path = report.keep(options.out, result, text, "-partial" if partial else "")
        progress.print(f"written: {path}, .md beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    if child.is_child(sys.argv[1:]):
        child.answer(sys.argv[1:], run)
    else:
        sys.exit(main())
