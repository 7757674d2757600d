"""Run jobs in interleaved rounds, each in a fresh process, and check every answer.

A `Bench` lists its jobs as data. A `Bench` also says how to take and check a sample, and which columns and bars to
show. ``--only`` chooses jobs by field and ``--set`` changes fields, so all benches share one set of options.

Guarantees: the run fails if a count, a checksum or an order is wrong, or if a job does not finish. A failed run exits
with code 1 and stores no result. A fresh process has no warm allocator pages from an earlier job, and it has its own
thread limits. Rounds start at different jobs, so a busy minute does not affect the same contender in each round.
Results are stored only for committed code.

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
    """A failure of a child process. The message is the standard error output of the child."""


class Job(NamedTuple):
    """A measurement as data. ``what`` has the arguments of `Bench.measure`, which are also the first fields of the row.

    ``may_fail``: report a peer that exceeds its budget or time as a row instead of failing the run. ``named``: fields
    that ``--only`` must name before the job runs.
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
    """A bench; subclasses replace these defaults.

    `measure` and `expected` run in a child process, everything else in the parent.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    columns: ClassVar[str]  # see `report.columns`
    sampled: ClassVar[tuple[str, ...]] = ()  # fields that keep the sample of every round
    figures: ClassVar[tuple[str, ...]] = ("seconds",)  # fields of a sample that `compare` compares
    rate: ClassVar[str] = "m_per_s"  # the name for million rows a second, if `seconds` are sampled
    quick: ClassVar[tuple[dict[str, str], dict[str, str]]] = ({}, {})  # what ``--quick`` chooses and sets

    def jobs(self) -> list[Job]:
        """Return the jobs of a round."""
        raise NotImplementedError

    def measure(self, **what: Any) -> dict[str, Any]:
        """Take one sample. Raise AssertionError if the answer is wrong in a way that this method itself can see."""
        raise NotImplementedError

    def question(self, job: Job) -> dict[str, Any] | None:
        """Return the arguments of `expected` for a job, or None if `measure` checks the answer by itself."""
        return None

    def expected(self, **what: Any) -> Any:
        """Compute the known answer, without using the contender."""
        raise NotImplementedError

    def wrong(self, job: Job, sample: dict[str, Any], expected: Any) -> str | None:
        """Describe the error of a sample; return None if it is correct."""
        if expected is None or sample["checksum"] == expected:
            return None
        return f"the rows add up to {sample['checksum']}, expected {expected}"

    def row(self, job: Job, samples: Sequence[dict[str, Any]]) -> Row:
        """Build a result row from the job, the first sample, and all samples of the `sampled` fields."""
        row = {**job.what, **samples[0], **{name: [each[name] for each in samples] for name in self.sampled}}
        if "seconds" in self.sampled:
            row["median_seconds"] = median(row["seconds"])
            row[self.rate] = row.get("counted", row["rows"]) / row["median_seconds"] / 1e6
        return row

    def compared(self, rows: list[Row]) -> list[Row]:
        """Add fields that compare rows with each other."""
        return rows

    def tables(self, result: Row) -> Iterable[tuple[str, Sequence[Row]]]:
        """Yield title and rows of each table."""
        yield self.about, result["results"]

    def notes(self, result: Row) -> list[str]:
        """Return sentences to print below the tables."""
        return []

    def bars(self, result: Row) -> Iterable[Bar]:
        """Yield the bars for which the result has figures."""
        return ()

    def panels(self, result: Row) -> list[Callable[[Any], None]]:
        """Return the panels of the bench's picture."""
        return []


def load(name: str) -> Bench:
    """Import the module `name` and return its ``BENCH``."""
    bench: Bench = import_module(name).BENCH
    return bench


def environment(threads: int, root: Path = machine.ROOT) -> dict[str, str]:
    """Return the environment of a child process.

    This environment limits all libraries to ``threads``, and puts ``root`` first on the Python path.
    """
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
    """Call a method of the bench in a fresh process; raise ChildFailed if it fails or exceeds ``timeout``.

    ``root``: the checkout of the ddflow to measure.
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
    """Run in the child process of `ask`: call the method and print its answer."""
    print(json.dumps(getattr(load(name), method)(**json.loads(question))))


Timed = tuple[Bench, Job]


def turns(jobs: Sequence[Timed], number: int, rounds: int) -> Iterator[Timed]:
    """Return the jobs of a round in their order.

    Each round starts at a different job, at equal distances in the list.
    """
    start = number * len(jobs) // rounds
    return (each for each in (*jobs[start:], *jobs[:start]) if number < each[1].rounds)


class Checked:
    """A sampler that checks each sample against the expected answer, which is computed only once.

    ``failures``: wrong answers and jobs that did not finish.
    """

    def __init__(self) -> None:
        self.failures = list[str]()
        self._known = dict[str, Any]()

    def sample(self, bench: Bench, job: Job, root: Path = machine.ROOT) -> dict[str, Any] | None:
        """Take a sample. Return None if the job failed, unless `may_fail` allows that.

        Raises ChildFailed if the known answer cannot be computed.
        """
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
    """Measure all rounds of all jobs; return the rows of each bench and the failures.

    Raises ChildFailed as `Checked.sample` does.
    """
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
    """Build the command line, which is the same for every bench."""
    fields: dict[str, set[str]] = {}
    for job in bench.jobs():
        for name, value in job.what.items():
            fields.setdefault(name, set()).add(str(value))
    listed = "; ".join(f"{name}: {', '.join(sorted(values))}" for name, values in fields.items())
    line = argparse.ArgumentParser(
        prog=f"python bench {bench.name}", description=bench.about, epilog=f"fields: {listed}"
    )
    add = line.add_argument
    add("--only", nargs="+", default=[], metavar="FIELD=VALUE,...", help="run only jobs that have one of these values")
    add("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="change a field of all jobs, for other sizes")
    add("--quick", action="store_true", help="small inputs, one round")
    add("--rounds", type=int, metavar="N", help="the number of rounds; results are medians")
    add("--timeout", type=float, metavar="S", help="maximum seconds for one job")
    add("--json", action="store_true", help="print the raw result as JSON instead of tables")
    add("--out", type=Path, default=report.RESULTS, metavar="DIR", help="the folder for results")
    add("--no-save", action="store_true", help="write no files")
    return line


def choose(bench: Bench, options: argparse.Namespace) -> list[Job]:
    """Return the jobs that ``--only`` chooses, with the fields that ``--set`` changes.

    Raise SystemExit for an unknown field.

    Raise SystemExit if no job has a value that ``--only`` names.
    """
    only, given = (dict(pair.split("=", 1) for pair in pairs) for pairs in (options.only, options.set))
    if options.quick:
        only, given = bench.quick[0] | only, bench.quick[1] | given
    jobs = bench.jobs()
    for name, values in only.items():
        known = {str(job.what.get(name)) for job in jobs}
        if not known >= set(values.split(",")):
            raise SystemExit(f"--only {name}={values}: no job has it; the values are {', '.join(sorted(known))}")
        jobs = [job for job in jobs if str(job.what.get(name)) in values.split(",")]
    chosen = dict[str, Job]()
    for job in jobs:
        if set(job.named) <= only.keys():
            # The field is None if the job does not use this field.
            changes = {
                name: type(old)(given[name]) for name, old in job.what.items() if name in given and old is not None
            }
            rounds = options.rounds or (1 if options.quick else job.rounds)
            job = job._replace(what=job.what | changes, rounds=rounds, timeout=options.timeout or job.timeout)
            chosen[str(job)] = job
    if not chosen or any(all(name not in job.what for job in jobs) for name in given):
        raise SystemExit(f"no job is left, or no job has the fields of --set; see python bench {bench.name} --help")
    return list(chosen.values())


def suffix(options: argparse.Namespace) -> str:
    """Return the suffix of a result's name.

    The suffix is empty for all jobs in any number of rounds, and otherwise ``-partial`` and the chosen workloads.
    """
    if not (options.only or options.set or options.quick):
        return ""
    workloads = (pair.split("=")[1].split(",") for pair in options.only if pair.startswith("workload="))
    return "-".join(["-partial", *(name for names in workloads for name in names)])


def measured(jobs: Sequence[Timed], progress: Console) -> tuple[Row, dict[str, list[Row]], list[str]] | None:
    """Run the jobs between two calibrations of the machine; return the machine and the results of `run`.

    Returns None if a known answer cannot be computed.
    """
    about = machine.machine()
    if about["load_at_start"] > 0.5:
        progress.print(f"[yellow]the machine is busy (load {about['load_at_start']}); trust ratios, not seconds")
    before = machine.calibration()
    ask(load("startup"), "compile_kernels", {})  # in a separate process: compilers leave memory allocated
    try:
        rows, failures = run(jobs, progress)
    except ChildFailed as failed:
        progress.print(f"cannot compute the expected answer: {failed}", style="bold red", markup=False, soft_wrap=True)
        return None
    about["calibration"] = [before, machine.calibration()]
    for failure in failures:
        progress.print(f"[bold red]WRONG[/] {escape(failure)}", highlight=False, soft_wrap=True)
    return about, rows, failures


def may_store(progress: Console) -> bool:
    """Return whether the measured code is committed, so that results may be stored. Otherwise print the reason."""
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
    """Run a bench; return exit code 1 if an answer was wrong or a contender did not finish."""
    options = parser(bench).parse_args(arguments)
    jobs = choose(bench, options)
    out, progress = Console(), Console(stderr=True)
    out.width = max(out.width, 150)  # a narrow pipe would cut figures short
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
