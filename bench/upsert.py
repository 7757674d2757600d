#!/usr/bin/env python3
"""The bench: ddflow beside a dict loop, numpy, DuckDB and Polars on the same upserts, checked and then compared.

Invariant: nothing is reported that is not right. A contender whose number of updates, checksum or order of output is
not the known one, or that does not finish, fails the whole run with exit code 1. The easiest way to be fast is to be
wrong where nobody looks. Contenders of a round run one after the other, and every round begins at another one, so that
a busy minute of the machine does not fall on the same contender twice.

>>> [job.contender for job in turns([Job("w1s", name, "upsert") for name in "abc"], 1)]
['b', 'c', 'a']
>>> select(parser().parse_args(["--workload", "w1s", "--contender", "ddflow", "--line", "count"]))
[Job(workload='w1s', contender='ddflow', line='count')]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bars
import report
import workloads
from child import ROOT, Broken
from contenders import CONTENDERS
from measure import Job, Sample, measure
from rich.console import Console
from rich.markup import escape
from startup import startup

BASE = next(name for name, contender in CONTENDERS.items() if contender.base)
WIDTH = 120
SOME = {"w1z": {"ddflow", "limit", "limit-plain", BASE}}  # who takes part unless asked for

EPILOG = f"""\
workloads: w1s and w1 (1 and 10 million upserts of int64), w1z (Zipf keys), w3 (2 million of strings), wide (3 million
rows of 20 columns)
contenders: {", ".join(CONTENDERS)}
examples:
  python bench/upsert.py --quick                                  a minute, small inputs, one round
  python bench/upsert.py --workload w1 --contender ddflow numpy   two contenders on one workload
exit code: 0 when every contender gave the known updates, 1 otherwise
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="bench/upsert.py",
        description="Measure ddflow and its peers on upsert workloads; every answer is checked against the known one.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = line.add_argument
    add(
        "--workload",
        nargs="+",
        choices=workloads.SHAPES,
        metavar="NAME",
        help="only these (default: w1s w1 w1z w3 wide)",
    )
    add("--contender", nargs="+", choices=CONTENDERS, metavar="NAME", help="only these (default: all)")
    add(
        "--line", nargs="+", choices=workloads.LINES, metavar="LINE", help=f"only these of {', '.join(workloads.LINES)}"
    )
    add("--all", action="store_true", help="everybody on w1z too")
    add("--quick", action="store_true", help="w1s and w3s, one round, no start-up figures")
    add("--rounds", type=int, metavar="N", help="rounds, of which the median is taken (default: 3; 5 for w1s)")
    add("--json", action="store_true", help="print the raw results as JSON instead of tables")
    add("--out", type=Path, default=ROOT / "bench" / "results", metavar="DIR", help="where results go (bench/results)")
    add("--no-save", action="store_true", help="write no files")
    add("--plot", action="store_true", help="also draw the rates as PNG")
    return line


def select(options: argparse.Namespace) -> list[Job]:
    """The jobs of one round.  Peers run the line ``upsert``; on the others ddflow runs, with the dict loop on w1s."""
    names = options.workload or (["w1s", "w3s"] if options.quick else ["w1s", "w1", "w1z", "w3", "wide"])
    jobs = []
    for name in names:
        some = SOME.get(name, set(CONTENDERS)) if not options.all else set(CONTENDERS)
        for line in options.line or workloads.LINES:
            if options.line is None and name not in ("w1s", "w1", "w1z") and line != "upsert":
                continue
            for contender in options.contender or CONTENDERS:
                asked = line == "upsert" or contender == "ddflow" or name == "w1s"
                asked = options.contender is not None or (asked and contender in some)
                if asked and CONTENDERS[contender].takes(name, line):
                    jobs.append(Job(name, contender, line))
    return jobs


def turns(jobs: list[Job], round_: int) -> list[Job]:
    """The jobs of a round in the order they run: each round begins one further on."""
    start = round_ % len(jobs)
    return jobs[start:] + jobs[:start]


def rounds(options: argparse.Namespace, workload: str) -> int:
    """How many rounds a workload gets."""
    if options.rounds is not None:
        return max(1, int(options.rounds))
    return 1 if options.quick else 5 if workload == "w1s" else 3


def wrong(job: Job, sample: Sample, agreed: dict[tuple[str, str], workloads.Answer]) -> str | None:
    """What is wrong with a sample, None when nothing: by the known answer, or else by the first contender's."""
    found = workloads.Answer(sample.updates, sample.checksum)
    key = (job.workload, job.line)
    expected = agreed.setdefault(key, workloads.answer(*key) or found)
    if found != expected:
        return (
            f"{found.updates:,} updates with checksum {found.checksum}, "
            f"expected {expected.updates:,} with {expected.checksum}"
        )
    if CONTENDERS[job.contender].ordered and not sample.in_order:
        return "the updates are not ordered by _time"
    return None


def check_input(name: str) -> str | None:
    """What is wrong with a workload itself, None when it is the one the answers are known for."""
    found, expected = workloads.fingerprint(workloads.load(name)), workloads.FINGERPRINTS[name]
    if found == expected:
        return None
    remedy = f"delete {workloads.folder()} and try again"
    return f"{name}: the generated input has fingerprint {found}, expected {expected}; {remedy}"


def run(options: argparse.Namespace, console: Console) -> tuple[list[report.Row], list[str]]:
    """Measure everything asked for; returns the rows and what failed."""
    jobs, samples, failures = select(options), dict[Job, list[Sample]](), list[str]()
    agreed: dict[tuple[str, str], workloads.Answer] = {}
    for name in dict.fromkeys(job.workload for job in jobs):
        if problem := check_input(name):
            return [], [problem]
        mine = [job for job in jobs if job.workload == name]
        total = rounds(options, name)
        for number in range(total):
            for job in turns(mine, number):
                label = f"{job.workload} {job.line} {job.contender}"
                with console.status(f"round {number + 1} of {total}: {label}"):
                    try:
                        sample = measure(job)
                    except Broken as broken:
                        failures.append(f"{label}: did not finish: {str(broken)[-2000:]}")
                        continue
                if problem := wrong(job, sample, agreed):
                    failures.append(f"{label}: {problem}")
                samples.setdefault(job, []).append(sample)
    return [_row(job, samples[job]) for job in jobs if job in samples], failures


def _row(job: Job, samples: Sequence[Sample]) -> report.Row:
    contender, first = CONTENDERS[job.contender], samples[0]
    return report.Row(
        job.workload,
        job.line,
        job.contender,
        contender.threads,
        contender.ordered,
        [sample.seconds for sample in samples],
        [sample.cpu_seconds for sample in samples],
        [sample.first_seconds for sample in samples],
        [sample.peak_mb for sample in samples],
        first.output_mb,
        first.rows,
        first.updates,
        first.checksum,
    )


def save(options: argparse.Namespace, rows: Sequence[report.Row], result: dict[str, Any], text: str) -> Path:
    """Write JSON and Markdown, and the plot if asked for; returns the path of the first."""
    partial = options.quick or options.workload or options.contender or options.line or options.rounds is not None
    # Two narrowed runs of one commit must not overwrite each other.
    suffix = "".join(f"-{name}" for name in (*["partial"] * bool(partial), *(options.workload or ())))
    path = report.keep(options.out, result, text, suffix)
    if options.plot:
        report.plot(rows, path.with_suffix(".png"))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    options = parser().parse_args(arguments)
    out, progress = Console(), Console(stderr=True)
    out.width = max(out.width, WIDTH)  # figures cut short by a narrow pipe help nobody
    about = report.machine(ROOT)
    if about["load_at_start"] > 0.5:
        progress.print(f"[yellow]the machine is busy (load {about['load_at_start']}); trust ratios, not seconds")
    rows, failures = run(options, progress)
    whole = not (options.quick or options.contender or options.line)
    times = startup() if whole and not failures else None
    result = report.as_json(rows, about, times, BASE)
    reached = bars.bars_of(result)
    if options.json:
        out.print_json(json.dumps(result))
    else:
        out.print(report.machine_line(about), style="dim")
        report.show(out, rows, BASE)
        if times is not None:
            out.print(report.startup_line(times), highlight=False)
        if reached:
            bars.show(out, reached)
    for failure in failures:
        progress.print(f"[bold red]WRONG[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if failures:
        return 1
    if not options.no_save:
        text = report.as_markdown(rows, about, times, BASE) + ("\n" + bars.markdown(reached) if reached else "")
        path = save(options, rows, result, text)
        progress.print(f"written: {path} and .md beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
