#!/usr/bin/env python3
"""The large bench: state ten times the budget, ddflow beside RocksDB and DuckDB, every update checked.

Invariant: all contenders take the same upserts in the same steps inside the same budget, in one run, and at every mark
their updates must have the count and checksum of the reference, or nothing is reported. A peer may need an hour for
what ddflow does in a minute. So everybody takes a prefix (``--events``), ddflow takes all of it too, and rates are
compared over a *late window*, the last fifth of the prefix, where the state has been loaded. A peer that runs out of
the budget is reported as such; ddflow may not.

>>> [run.contender for run in plan(parser().parse_args(["--workload", "tinyl", "--contender", "ddflow"]))]
['ddflow', 'ddflow', 'ddflow']
>>> [said_step(step) for step in (0, 100_000, 1_000_000)]
['in one step', 'in steps of 100 k', 'in steps of 1 M']
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bars
import large_run
import report
from child import ROOT, Broken, ask
from large_run import CONTENDERS, LargeJob, LargeSample, budget
from pieces import KNOWN, LARGE
from rich.console import Console
from rich.markup import escape
from startup import fill_cache

PREFIX = {"w1l": 20_000_000, "w3l": 10_000_000}  # upserts that everybody takes; other workloads are taken whole
STEPS = (100_000, 1_000_000)
HEADINGS = (
    "contender",
    "M upserts",
    "M/s",
    "late M/s",
    "CPU s",
    "private MB",
    "mapped MB",
    "disk MB",
    "write ampl.",
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(prog="bench/large.py", description=(__doc__ or "").splitlines()[0])
    add = line.add_argument
    add("--workload", nargs="+", choices=LARGE, metavar="NAME", help="only these of w1l and w3l (default: both)")
    add("--contender", nargs="+", choices=CONTENDERS, metavar="NAME", help=f"only these of {', '.join(CONTENDERS)}")
    add("--steps", nargs="+", type=int, metavar="N", help="upserts a step, 0 for one step (default: 100000 1000000 0)")
    add("--events", type=int, metavar="N", help="the prefix that everybody takes (default: 20 M of w1l, all of w3l)")
    add("--prefix-only", action="store_true", help="ddflow does not go on to the end either")
    add("--memory", default="128MB", metavar="SIZE", help="the budget of everybody (128MB)")
    add("--folder", type=Path, metavar="DIR", help="where state is spilled to (default: where temporary files go)")
    add("--timeout", type=float, default=3600, metavar="S", help="seconds that one contender may take (3600)")
    add("--out", type=Path, default=ROOT / "bench" / "results", metavar="DIR", help="where results go (bench/results)")
    add("--no-save", action="store_true", help="write no files")
    return line


def plan(options: argparse.Namespace) -> list[LargeJob]:
    """The jobs in the order they run, their folders still to be made; exits when a step is no number of pieces."""
    jobs = []
    for name in options.workload or ("w1l", "w3l"):
        whole = LARGE[name].n
        prefix = min(options.events or PREFIX.get(name, whole), whole)
        for step in (*STEPS, 0) if options.steps is None else options.steps:
            if step % LARGE[name].piece:
                parser().error(f"a step of {step} cuts the pieces of {name}: give a multiple of {LARGE[name].piece}")
            for contender in options.contender or CONTENDERS:
                ours = contender.startswith("ddflow")
                # At once is what ddflow must be able to do: all of it, far more than the budget, in both modes.
                if step == 0 and ours:
                    jobs.append(LargeJob(name, contender, 0, prefix if options.prefix_only else whole, "", ""))
                if step and contender != "ddflow-epoch":
                    jobs.append(LargeJob(name, contender, step, prefix, "", ""))
                    if ours and prefix < whole and not options.prefix_only:
                        jobs.append(LargeJob(name, contender, step, whole, "", ""))
    return [job._replace(memory=options.memory) for job in jobs]


def said_step(step: int) -> str:
    """How a step is called in a table."""
    if step == 0:
        return "in one step"
    return f"in steps of {step // 10**6} M" if step % 10**6 == 0 else f"in steps of {step // 1000} k"


def wrong(job: LargeJob, sample: LargeSample, marks: list[list[Any]], epoch: list[Any]) -> str | None:
    """What is wrong with a sample, None when nothing: at every mark, or by the live rows after one epoch."""
    last = sample.marks[-1]
    if last[0] != job.events:
        return f"it took {last[0]:,} of {job.events:,} upserts"
    if job.contender == "ddflow-epoch":
        return None if last[1:] == epoch else f"gave {last[1:]}, expected {epoch}"
    expected = {mark[0]: mark for mark in marks}
    for mark in sample.marks:
        if mark != expected[mark[0]]:
            return f"after {mark[0]:,} upserts gave {mark[1:]}, expected {expected[mark[0]][1:]}"
    return None


def run(options: argparse.Namespace, progress: Console) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure everything asked for; returns the rows and what failed."""
    rows, failures = list[dict[str, Any]](), list[str]()
    answers: dict[tuple[str, int], Any] = {}
    jobs = plan(options)
    if any(job.contender.startswith("ddflow") for job in jobs):
        fill_cache()
    for job in jobs:
        label = f"{job.workload} {job.contender} {said_step(job.step)}, {job.events:,} upserts"
        with progress.status(label):
            sized = (job.workload, job.events)
            if sized not in answers:
                answers[sized] = ask(large_run.__file__, {"what": "answer", "workload": sized[0], "events": sized[1]})
                final = answers[sized][0][-1]
                if KNOWN.get(sized, tuple(final[1:])) != tuple(final[1:]):
                    return [], [f"{label}: the generated input is another one: {final[1:]}, expected {KNOWN[sized]}"]
            try:
                sample = _measured(job, options)
            except Broken as broken:
                rows.append(_row(job, None, str(broken)[-300:]))
                if job.contender.startswith("ddflow"):
                    failures.append(f"{label}: did not finish: {str(broken)[-2000:]}")
                continue
        if problem := wrong(job, sample, *answers[sized]):
            failures.append(f"{label}: {problem}")
        rows.append(_row(job, sample, None))
        progress.print(f"{label}: {rows[-1]['late_m_per_s']:.3f} M/s late", highlight=False, soft_wrap=True)
    return rows, failures


def _measured(job: LargeJob, options: argparse.Namespace) -> LargeSample:
    with tempfile.TemporaryDirectory(prefix="ddflow-bench-", dir=options.folder) as folder:
        question = {"what": "run", **job._replace(folder=folder)._asdict()}
        return LargeSample(**ask(large_run.__file__, question, 2, options.timeout))


def _row(job: LargeJob, sample: LargeSample | None, failed: str | None) -> dict[str, Any]:
    row = {**job._asdict(), "steps": said_step(job.step), "failed": failed}
    del row["folder"]
    if sample is not None:
        row |= sample._asdict()
        row["m_per_s"] = job.events / sample.seconds / 1e6
        row["late_m_per_s"] = sample.late_events / sample.late_seconds / 1e6
        row["private_over_idle"] = sample.peak[0] - sample.idle[0]
        row["mapped_over_idle"] = sum(sample.peak[1:]) - sum(sample.idle[1:])
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    head = [row["contender"], f"{row['events'] / 1e6:g}"]
    if row["failed"] is not None:
        return [*head, "failed", "", "", "", "", "", ""]
    amplified = row["stats"].get("write_amplification")
    figures = (row["m_per_s"], row["late_m_per_s"])
    sizes = (row["private_over_idle"], row["mapped_over_idle"], row["disk"])
    return [
        *head,
        *(f"{figure:.3f}" for figure in figures),
        f"{row['cpu_seconds']:.1f}",
        *(f"{size / 1e6:,.0f}" for size in sizes),
        "" if amplified is None else f"{amplified:.2f}",
    ]


def groups(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[list[str]]]]:
    """Title and lines of each table."""
    for title in dict.fromkeys((row["workload"], row["steps"], row["memory"]) for row in rows):
        members = [row for row in rows if (row["workload"], row["steps"], row["memory"]) == title]
        yield f"{title[0]} {title[1]}, {title[2]}", [_cells(row) for row in members]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    options = parser().parse_args(arguments)
    out, progress = Console(), Console(stderr=True)
    out.width = max(out.width, 120)
    about = report.machine(ROOT)
    rows, failures = run(options, progress)
    for failure in failures:
        progress.print(f"[bold red]WRONG[/] {escape(failure)}", highlight=False, soft_wrap=True)
    result = {"bench": "large", "machine": about, "budget": budget(options.memory), "results": rows}
    reached = bars.bars_of(result)
    text = f"# Large bench\n\n{report.machine_line(about)}\n\n"
    for title, lines in groups(rows):
        report.print_table(out, title, HEADINGS, lines)
        text += f"## {title}\n\n{report.table(HEADINGS, lines)}\n"
    bars.show(out, reached)
    for row in rows:
        if row["failed"] is not None:
            out.print(f"{row['contender']} {row['steps']}: {escape(row['failed'])}", highlight=False, soft_wrap=True)
    if failures:
        return 1
    if not options.no_save:
        narrowed = options.workload or options.contender or options.steps or options.events or options.prefix_only
        text += f"## Bars\n\n{bars.markdown(reached)}"
        path = report.keep(options.out, json.loads(json.dumps(result)), text, "-partial" if narrowed else "")
        progress.print(f"written: {path} and .md beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
