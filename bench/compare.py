"""Compare two commits on ddflow's lines of the suite, pair by pair.

The bench of this checkout measures both commits, each in its own worktree. The bench checks every answer. A pair has
one sample of each commit, and the second sample is taken directly after the first. The two commits take turns at being
measured first in a pair. So noise of the machine affects both commits equally. The result of a line is the ratio of
the medians, with the least and the greatest ratio of any pair. If the least ratio is below 1 and the greatest ratio is
above 1, the line shows no difference.

Limits: if this bench cannot use the API of a commit, the lines of this commit fail.

>>> ratios([1.0, 2.0, 3.0], [2.0, 2.0, 6.0])
(1.0, 1.0, 2.0)
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import machine
import report
import runner
import suite
from rich.console import Console

COLUMNS = (
    "line {line} | figure {figure} | {a} {first:,.4g} | {b} {second:,.4g} | second / first {ratio:.3f} | "
    "pairs {least:.2f}-{greatest:.2f} | shown {shown}"
)


def ratios(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of the medians, and the least and greatest ratio of the pairs.

    A ratio is the second commit over the first.
    """
    pairs = [b / a for a, b in zip(first, second, strict=True)]
    return median(second) / median(first), min(pairs), max(pairs)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out into a worktree, and remove the worktree afterwards.

    Raise CalledProcessError for an unknown commit.
    """

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=machine.ROOT, check=True, capture_output=True, text=True)

    with tempfile.TemporaryDirectory(prefix="ddflow-bench-") as folder:
        place = Path(folder, "tree")
        git("worktree", "add", "--detach", str(place), commit)
        try:
            yield place
        finally:
            git("worktree", "remove", "--force", str(place))


def figures(sample: dict[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Return the figures of a sample that are compared between commits.  A list of figures becomes its median."""
    return {name: median(value) if isinstance(value := sample[name], list) else float(value) for name in names}


def main(arguments: Sequence[str]) -> int:
    """Compare two commits; return 1 if an answer was wrong or a line did not run."""
    line = argparse.ArgumentParser(prog="python bench compare", description=(__doc__ or "").split("\n", 1)[0])
    line.add_argument("first", help="a commit, a branch or a tag")
    line.add_argument("second", nargs="?", default="HEAD", help="the commit to compare it with; HEAD by default")
    line.add_argument("--lines", nargs="+", default=suite.OURS, metavar="LINE", help='such as "latency --rounds 1"')
    line.add_argument("--rounds", type=int, default=3, metavar="N", help="pairs of samples for each line")
    options = line.parse_args(arguments)
    out, progress = Console(), Console(stderr=True)
    out.width = max(out.width, 150)
    jobs, checked = suite.lines(options.lines), runner.Checked()
    samples: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    with checkout(options.first) as one, checkout(options.second) as other:
        for root in (one, other):
            with progress.status(f"compiling the kernels of {root}"):
                runner.ask(runner.load("startup"), "compile_kernels", {}, root=root)
        before = machine.calibration()
        for number in range(options.rounds):
            for bench, job in jobs:
                pair: list[dict[str, Any] | None] = [None, None]
                for side in ((0, 1), (1, 0))[number % 2]:
                    with progress.status(f"round {number + 1} of {options.rounds}: {bench.name} {job}, {side + 1}"):
                        pair[side] = checked.sample(bench, job, (one, other)[side])
                if pair[0] is not None and pair[1] is not None:
                    both = [figures(sample, bench.figures) for sample in pair if sample is not None]
                    for name in bench.figures:
                        found = samples.setdefault((f"{bench.name} {job}", name), ([], []))
                        for taken, side in zip(both, found, strict=True):
                            side.append(taken[name])
    out.print(machine.line(machine.machine() | {"calibration": [before, machine.calibration()]}), style="dim")
    names = {"a": options.first[:12], "b": options.second[:12]}
    rows = [_row(line, figure, *found) for (line, figure), found in samples.items()]
    report.print_table(
        out, "Less is better, everywhere", COLUMNS.replace("{a}", names["a"]).replace("{b}", names["b"]), rows
    )
    for failure in checked.failures:
        progress.print(f"WRONG {failure}", style="bold red", markup=False, soft_wrap=True)
    return 1 if checked.failures else 0


def _row(line: str, figure: str, first: list[float], second: list[float]) -> dict[str, Any]:
    ratio, least, greatest = ratios(first, second)
    shown = "faster" if greatest < 1 else "slower" if least > 1 else "no difference"
    return {
        "line": line,
        "figure": figure,
        "first": median(first),
        "second": median(second),
        "ratio": ratio,
        "least": least,
        "greatest": greatest,
        "shown": shown,
    }
