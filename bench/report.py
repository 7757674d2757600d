"""What a run leaves behind: tables on the terminal, the raw samples as JSON, tables in Markdown, and on request a plot.

Invariant: the JSON holds every sample of every round and the machine they come from; the tables are computed from it
alone, so a figure in a table can always be traced. A ratio is only meaningful within one run on one machine, hence the
ratio is taken here, per workload, to the contender called the base. Nothing here measures.

>>> row = Row("w1s", "upsert", "dict", 1, True, [4.0, 2.0, 3.0], [4.0], [5.0], [90.0], 50.0, 10**6, 7, "0a")
>>> row.median_seconds, round(row.rate, 3)
(3.0, 0.333)
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

HEADINGS = (
    "contender",
    "threads",
    "ordered",
    "seconds",
    "min-max",
    "M upserts/s",
    "× numpy",
    "CPU s",
    "peak MB",
)
LIBRARIES = ("ddflow", "numpy", "numba", "pyarrow", "duckdb", "polars", "rocksdict")


class Row(NamedTuple):
    """The samples of one contender on one line of one workload."""

    workload: str
    line: str
    contender: str
    threads: int
    ordered: bool
    seconds: list[float]
    cpu_seconds: list[float]
    first_seconds: list[float]
    peak_mb: list[float]
    output_mb: float
    rows: int
    updates: int
    checksum: str

    @property
    def median_seconds(self) -> float:
        """The median wall time of the rounds."""
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """Million upserts a second, by the median."""
        return self.rows / self.median_seconds / 1e6


def machine(root: Path) -> dict[str, Any]:
    """Whose figures these are: processor, cores, memory, versions, commit, date, and how busy it was at the start."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
        "commit": _commit(root),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    if sys.platform == "darwin":
        return _said("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit(root: Path) -> str:
    commit = _said("git", "-C", str(root), "rev-parse", "--short", "HEAD")
    if not commit:
        return "uncommitted"
    return commit + ("-dirty" if _said("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no") else "")


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def machine_line(about: dict[str, Any]) -> str:
    """Whose figures these are, in one line."""
    return ", ".join(f"{name} {value}" for name, value in about.items())


def keep(folder: Path, result: dict[str, Any], text: str, suffix: str = "") -> Path:
    """Write a result as JSON and its tables as Markdown, named by bench, date and commit; the path of the JSON."""
    about = result["machine"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['bench']}-{about['date'][:10]}-{about['commit']}{suffix}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(text)
    return path


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    lines = [_line(headings), _line(["---", *["---:"] * (len(headings) - 1)]), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def print_table(console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The same on a terminal."""
    shown = Table(title=title, title_justify="left")
    for place, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row, style="bold" if row[0].startswith("ddflow") else None)
    console.print(shown)


def as_json(rows: Sequence[Row], about: dict[str, Any], startup: dict[str, float] | None, base: str) -> dict[str, Any]:
    """Everything of a run, for machines."""
    results = [
        {
            **row._asdict(),
            "median_seconds": row.median_seconds,
            "m_upserts_per_s": row.rate,
            "over_base": _ratio(row, rows, base),
        }
        for row in rows
    ]
    return {"bench": "upsert", "machine": about, "base": base, "startup": startup, "results": results}


def _ratio(row: Row, rows: Sequence[Row], base: str) -> float | None:
    """How many times as fast as the base of the same workload; None for lines the base does not run."""
    for other in rows:
        if (other.workload, other.line, other.contender) == (row.workload, row.line, base):
            return other.median_seconds / row.median_seconds
    return None


def _groups(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.workload, row.line), []).append(row)
    return {group: sorted(members, key=lambda row: -row.rate) for group, members in groups.items()}


def _cells(row: Row, rows: Sequence[Row], base: str) -> list[str]:
    ratio = _ratio(row, rows, base)
    return [
        row.contender,
        str(row.threads),
        "yes" if row.ordered else "no",
        f"{row.median_seconds:.3f}",
        f"{min(row.seconds):.2f}-{max(row.seconds):.2f}",
        f"{row.rate:.2f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{statistics.median(row.cpu_seconds):.2f}",
        f"{statistics.median(row.peak_mb):,.0f}",
    ]


def _title(group: tuple[str, str], members: Sequence[Row]) -> str:
    first = members[0]
    size = f"{first.rows:,} upserts, {first.updates:,} updates of {first.output_mb:,.0f} MB"
    return f"{group[0]}, {group[1]}: {size}; medians of {len(first.seconds)}"


def show(console: Console, rows: Sequence[Row], base: str) -> None:
    """Print a table for each workload and line, the fastest first."""
    for group, members in _groups(rows).items():
        print_table(console, _title(group, members), HEADINGS, [_cells(row, rows, base) for row in members])


def startup_line(startup: dict[str, float]) -> str:
    """The start-up figures as one sentence."""
    return (
        f"import ddflow {startup['import_s']:.3f} s, first answer {startup['first_answer_s']:.3f} s "
        f"(caches warm, medians); every kernel compiled from nothing {startup['cold_compile_s']:.1f} s"
    )


def as_markdown(rows: Sequence[Row], about: dict[str, Any], startup: dict[str, float] | None, base: str) -> str:
    """The same tables in Markdown, under a line that names the machine."""
    parts = ["# Upsert bench", "", machine_line(about), ""]
    for group, members in _groups(rows).items():
        parts += [f"## {_title(group, members)}", "", table(HEADINGS, [_cells(row, rows, base) for row in members])]
    if startup is not None:
        parts += [startup_line(startup) + ".", ""]
    return "\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the rates of the ``upsert`` line as bars, one panel a workload, and save them as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = {group: members for group, members in _groups(rows).items() if group[1] == "upsert"}
    heights = [0.34 * len(members) + 1.1 for members in groups.values()]
    figure, panels = pyplot.subplots(
        len(groups), figsize=(9, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for panel, (group, members) in zip(panels[:, 0], groups.items(), strict=True):
        members = members[::-1]
        colours = ["#c44e52" if row.contender.startswith("ddflow") else "#8c9bb0" for row in members]
        bars = panel.barh([row.contender for row in members], [row.rate for row in members], color=colours)
        panel.bar_label(bars, labels=[f"{row.rate:.2f}" for row in members], padding=3)
        panel.set(title=_title(group, members), xlabel="million upserts a second (more is better)")
        panel.margins(x=0.1)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
