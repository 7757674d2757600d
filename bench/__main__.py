"""Run benches from the command line.

    python bench BENCH [options]
    python bench all
    python bench compare A B
    python bench bars [FILE...]
    python bench report FILE

`NAMES` lists the benches. The module with the name of the bench defines ``BENCH``, a `runner.Bench`. The module of
a bench is imported only when the bench runs, because some modules need Spark. ``python bench BENCH --help`` lists its
options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import report
import runner
from rich.console import Console

NAMES = [
    "upsert",
    "startup",
    "latency",
    "get",
    "footprint",
    "growth",
    "scaling",
    "durable",
    "receipts",
    "scale",
    "semantics",
    "operators",
    "windows",
    "temporal",
    "noops",
    "tables",
    "tpch",
    "connectors",
    "large",
    "spark",
]  # in the order of bench/README.md


def show_bars(names: Sequence[str]) -> int:
    """Print the bars (targets) in the given result files, or in all stored results.  Return 1 if a bar is missed."""
    out, every = Console(width=max(Console().width, 150)), list[report.Bar]()
    for path in [Path(name) for name in names] or sorted(report.RESULTS.glob("*.json")):
        found = report.read(path)
        about = found[0]["machine"]
        out.print(f"{path.name}: {about['cpu']}, commit {about['commit']}, {about['date']}", style="dim")
        every += [bar for result in found for bar in runner.load(result["bench"]).bars(result)]
    report.print_bars(out, every)
    return 0 if all(bar.met for bar in every) else 1


def render(names: Sequence[str]) -> int:
    """Print result files as Markdown."""
    for result in [result for name in names for result in report.read(Path(name))]:
        print(report.markdown(runner.load(result["bench"]), result))
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the bench or command that the arguments name.  Return the exit code, 2 for an unknown name."""
    name, rest = (arguments[0] if arguments else "", arguments[1:])
    if name == "child":
        runner.child(*rest)
        return 0
    if name in ("bars", "report"):
        return (show_bars if name == "bars" else render)(rest)
    if name in ("all", "compare"):
        return int(import_module("suite" if name == "all" else name).main(rest))
    if name in NAMES:
        return runner.main(runner.load(name), rest)
    print(
        f"usage: python bench NAME [options], NAME one of {', '.join((*NAMES, 'all', 'compare', 'bars', 'report'))}",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
