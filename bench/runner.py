"""The runner: every measurement in a child process, all of them in interleaved rounds, every answer checked.

Invariant: nothing is reported that is not right. A contender whose count, checksum or order is not the known one, or
that does not finish, fails the whole run with exit code 1 and without a result: the easiest way to be fast is to be
wrong where nobody looks. A child has run nothing before, imports the ddflow of this checkout, and holds every library
to the threads it was given, because libraries read that number once, when they are imported, and a process that has run
one contender gives the next its allocator's warm pages and its peak memory. Rounds begin at different jobs, so that a
busy minute of the machine does not fall on the same contender twice. Results are stored of committed code only.
Limits: one child at a time.

A bench is a `Bench`: its jobs are data, of which ``--only`` chooses and in which ``--set`` changes fields, so that
every bench has the same options; it says how a sample is taken and checked, and has columns and bars.

>>> [job.what["n"] for _, job in turns([(Bench(), Job({"n": n}, rounds=2)) for n in range(4)], 1, 2)]
[2, 3, 0, 1]
>>> environment(2)["POLARS_MAX_THREADS"], environment(2)["OMP_NUM_THREADS"]
('2', '2')
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, NamedTuple

import machine
import report
from report import Bar, Row
from rich.console import Console
from rich.markup import escape

THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class ChildFailed(RuntimeError):
    """A child did not finish; the message is what it printed to its standard error."""


class Job(NamedTuple):
    """One measurement, as data: ``what`` has the arguments of `Bench.measure`, and the first fields of its row.

    ``may_fail``: a peer that runs out of its budget or its time is a row, and not a failure of the run.
    ``named``: fields that ``--only`` must name for the job to run at all.
    """

    what: dict[str, Any]
    threads: int = 1
    rounds: int = 1
    timeout: float = 3600
    may_fail: bool = False
    named: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(str(value) for value in self.what.values())


class Bench:
    """A bench; what a subclass does not say is as here.  `measure` and `expected` run in a child, the rest does not."""

    name: ClassVar[str]
    about: ClassVar[str]
    columns: ClassVar[str]  # see `report.columns`
    sampled: ClassVar[tuple[str, ...]] = ()  # fields of which a row keeps every round's
    figures: ClassVar[tuple[str, ...]] = ("seconds",)  # fields of a sample by which two commits are compared
    rate: ClassVar[str] = "m_per_s"  # what million rows a second are called, where `seconds` are sampled
    quick: ClassVar[tuple[dict[str, str], dict[str, str]]] = ({}, {})  # what ``--quick`` chooses and sets

    def jobs(self) -> list[Job]:
        """The jobs of a round."""
        raise NotImplementedError

    def measure(self, **what: Any) -> dict[str, Any]:
        """One sample; AssertionError for an answer that this can see to be wrong."""
        raise NotImplementedError

    def question(self, job: Job) -> dict[str, Any] | None:
        """The arguments of `expected` for a job, None where `measure` checks by itself."""
        return None

    def expected(self, **what: Any) -> Any:
        """What a sample is compared with, found without the contender."""
        raise NotImplementedError

    def wrong(self, job: Job, sample: dict[str, Any], expected: Any) -> str | None:
        """What is wrong with a sample, None when nothing."""
        if expected is None or sample["checksum"] == expected:
            return None
        return f"the rows add up to {sample['checksum']}, expected {expected}"

    def row(self, job: Job, samples: Sequence[dict[str, Any]]) -> Row:
        """A row of the result: the job, the first sample, and every sample of what is `sampled`."""
        row = {**job.what, **samples[0], **{name: [each[name] for each in samples] for name in self.sampled}}
        if "seconds" in self.sampled:
            row["median_seconds"] = median(row["seconds"])
            row[self.rate] = row.get("counted", row["rows"]) / row["median_seconds"] / 1e6
        return row

    def compared(self, rows: list[Row]) -> list[Row]:
        """The rows, with what a row says of others."""
        return rows

    def tables(self, result: Row) -> Iterable[tuple[str, Sequence[Row]]]:
        """Title and rows of each table."""
        yield self.about, result["results"]

    def notes(self, result: Row) -> list[str]:
        """Sentences below the tables."""
        return []

    def bars(self, result: Row) -> Iterable[Bar]:
        """The bars that a result says something about; those that were not run are left out."""
        return ()

    def panels(self, result: Row) -> list[Callable[[Any], None]]:
        """The panels of its picture."""
        return []


def load(name: str) -> Bench:
    """The bench of a name: ``BENCH`` of the module so called."""
    bench: Bench = import_module(name).BENCH
    return bench


def environment(threads: int, root: Path = machine.ROOT) -> dict[str, str]:
    """The variables of a child: every library held to ``threads``, and a checkout first on the path."""
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **dict.fromkeys(THREADS, str(threads)), "PYTHONPATH": path}


def ask(
    bench: Bench,
    method: str,
    question: dict[str, Any],
    threads: int = 1,
    timeout: float = 3600,
    root: Path = machine.ROOT,
) -> Any:
    """The answer of a method of the bench in a fresh process; ChildFailed when it fails or takes too long.

    ``root``: the checkout whose ddflow is measured.
    """
    command = [sys.executable, str(Path(__file__).parent), "child", bench.name, method, json.dumps(question)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment(threads, root), timeout=timeout)
    except subprocess.TimeoutExpired as late:
        raise ChildFailed(f"no answer within {timeout:g} s") from late
    if done.returncode:
        raise ChildFailed(done.stderr.strip()[-2000:] or f"exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def child(name: str, method: str, question: str) -> None:
    """The child's side of `ask`: call the method and print its answer."""
    print(json.dumps(getattr(load(name), method)(**json.loads(question))))


Timed = tuple[Bench, Job]


def turns(jobs: Sequence[Timed], number: int, rounds: int) -> Iterator[Timed]:
    """The jobs of a round in the order they run; the beginnings of all rounds are spread over the jobs."""
    start = number * len(jobs) // rounds
    return (each for each in (*jobs[start:], *jobs[:start]) if number < each[1].rounds)


class Checked:
    """Takes samples, and compares each with the known answer, which is asked for once.

    ``failures``: what was wrong, or did not finish.
    """

    def __init__(self) -> None:
        self.failures = list[str]()
        self._known = dict[str, Any]()

    def sample(self, bench: Bench, job: Job, root: Path = machine.ROOT) -> dict[str, Any] | None:
        """A sample of a job, None where it failed and may not.  ChildFailed when the known answer is not found."""
        question = bench.question(job)
        key = json.dumps([bench.name, question])
        if key not in self._known:
            self._known[key] = None if question is None else ask(bench, "expected", question)
        try:
            taken: dict[str, Any] = ask(bench, "measure", job.what, job.threads, job.timeout, root)
            problem = bench.wrong(job, taken, self._known[key])
        except ChildFailed as failed:
            taken = {"failed": str(failed)[-300:]}
            problem = None if job.may_fail else f"did not finish: {failed}"
        if problem is not None:
            self.failures.append(f"{job}: {problem}")
        return taken if "failed" not in taken or job.may_fail else None


def run(jobs: Sequence[Timed], progress: Console) -> tuple[dict[str, list[Row]], list[str]]:
    """Measure all rounds of all jobs; the rows of each bench, and what failed.  ChildFailed as `Checked.sample`."""
    samples: dict[str, list[dict[str, Any]]] = {f"{bench.name} {job}": [] for bench, job in jobs}
    checked, rounds = Checked(), max(job.rounds for _, job in jobs)
    for number in range(rounds):
        for bench, job in turns(jobs, number, rounds):
            with progress.status(f"round {number + 1} of {rounds}: {bench.name} {job}"):
                taken = checked.sample(bench, job)
            if taken is not None:
                samples[f"{bench.name} {job}"].append(taken)
    rows = dict[str, list[Row]]()
    for bench, job in jobs:
        if taken_all := samples[f"{bench.name} {job}"]:
            rows.setdefault(bench.name, []).append(bench.row(job, taken_all))
    return {name: load(name).compared(found) for name, found in rows.items()}, checked.failures


def parser(bench: Bench) -> argparse.ArgumentParser:
    """The command line, the same for every bench."""
    fields: dict[str, set[str]] = {}
    for job in bench.jobs():
        for name, value in job.what.items():
            fields.setdefault(name, set()).add(str(value))
    listed = "; ".join(f"{name}: {', '.join(sorted(values))}" for name, values in fields.items())
    line = argparse.ArgumentParser(
        prog=f"python bench {bench.name}", description=bench.about, epilog=f"fields: {listed}"
    )
    add = line.add_argument
    add("--only", nargs="+", default=[], metavar="FIELD=VALUE,...", help="only the jobs that have one of these values")
    add("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="change a field of all jobs, for other sizes")
    add("--quick", action="store_true", help="small inputs, one round")
    add("--rounds", type=int, metavar="N", help="rounds, of which the median is taken")
    add("--timeout", type=float, metavar="S", help="seconds that one job may take")
    add("--json", action="store_true", help="print the raw result as JSON instead of tables")
    add("--out", type=Path, default=report.RESULTS, metavar="DIR", help="where results go")
    add("--no-save", action="store_true", help="write no files")
    return line


def choose(bench: Bench, options: argparse.Namespace) -> list[Job]:
    """The jobs that the options leave, with what they set; SystemExit for a field or a value that no job has."""
    only, given = (dict(pair.split("=", 1) for pair in pairs) for pairs in (options.only, options.set))
    if options.quick:
        only, given = bench.quick[0] | only, bench.quick[1] | given
    jobs = bench.jobs()
    for name, values in only.items():
        known = {str(job.what.get(name)) for job in jobs}
        if not known >= set(values.split(",")):
            raise SystemExit(f"--only {name}={values}: no job has that; there are {', '.join(sorted(known))}")
        jobs = [job for job in jobs if str(job.what.get(name)) in values.split(",")]
    chosen = dict[str, Job]()
    for job in jobs:
        if set(job.named) <= only.keys():
            # A field that is None is one that the job has no use for.
            changes = {
                name: type(old)(given[name]) for name, old in job.what.items() if name in given and old is not None
            }
            rounds = options.rounds or (1 if options.quick else job.rounds)
            job = job._replace(what=job.what | changes, rounds=rounds, timeout=options.timeout or job.timeout)
            chosen[str(job)] = job
    if not chosen or any(all(name not in job.what for job in jobs) for name in given):
        raise SystemExit(f"no job is left, or none has the fields of --set: see python bench {bench.name} --help")
    return list(chosen.values())


def suffix(options: argparse.Namespace) -> str:
    """What is added to the name of a result: nothing for a whole run, else ``-partial`` and the chosen workloads."""
    if not (options.only or options.set or options.quick or options.rounds):
        return ""
    workloads = (pair.split("=")[1].split(",") for pair in options.only if pair.startswith("workload="))
    return "-".join(["-partial", *(name for names in workloads for name in names)])


def measured(jobs: Sequence[Timed], progress: Console) -> tuple[Row, dict[str, list[Row]], list[str]] | None:
    """What `run` gives, with the machine before it, calibrated before and after; None where no answer is known."""
    about = machine.machine()
    if about["load_at_start"] > 0.5:
        progress.print(f"[yellow]the machine is busy (load {about['load_at_start']}); trust ratios, not seconds")
    before = machine.calibration()
    ask(load("startup"), "compile_kernels", {})  # by a process that measures nothing: compilers leave memory behind
    try:
        rows, failures = run(jobs, progress)
    except ChildFailed as failed:
        progress.print(f"the known answer was not found: {failed}", style="bold red", markup=False, soft_wrap=True)
        return None
    about["calibration"] = [before, machine.calibration()]
    for failure in failures:
        progress.print(f"[bold red]WRONG[/] {escape(failure)}", highlight=False, soft_wrap=True)
    return about, rows, failures


def may_store(progress: Console) -> bool:
    """Whether results may be stored: the measured code is committed.  Says why not."""
    changed = machine.uncommitted()
    if changed:
        progress.print(
            "[yellow]not stored: a result must name a commit that others can check out, and these differ from theirs:",
            *changed[:5],
            "Commit them and run again, or pass --no-save.",
            sep="\n",
            soft_wrap=True,
        )
    return not changed


def main(bench: Bench, arguments: Sequence[str]) -> int:
    """Run a bench; returns the exit code: 1 when an answer was wrong, or a contender did not finish."""
    options = parser(bench).parse_args(arguments)
    jobs = choose(bench, options)
    out, progress = Console(), Console(stderr=True)
    out.width = max(out.width, 150)  # figures cut short by a narrow pipe help nobody
    may = options.no_save or may_store(progress)
    done = measured([(bench, job) for job in jobs], progress)
    if done is None:
        return 1
    about, rows, failures = done
    result = {"bench": bench.name, "machine": about, "results": rows.get(bench.name, [])}
    if options.json:
        out.print_json(json.dumps(result))
    else:
        report.show(out, bench, result)
    if failures:
        return 1
    if may and not options.no_save:
        path = report.keep(options.out, bench, json.loads(json.dumps(result)), suffix(options))
        progress.print(f"written: {path} and .md beside it", soft_wrap=True, highlight=False)
    return 0
