#!/usr/bin/env python3
"""The footprint bench: what a key takes in memory after a workload has gone through, by two accounts.

Invariant: the engine's own account (``stats()``: index and batches) and the system's (private pages, RssAnon, after
less before) are both told, for the same engine at the same moment, and divided by the keys it then holds. The first
leaves out scratch, allocators' leftovers and whatever was forgotten; the second has them all, and the smaller the state
the more of the second is none of the keys'. Updates are dropped as they come.

>>> found = run("tiny")
>>> found["keys"], found["bytes_per_key"] > 16
(1920, True)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bars
import child
import memory
import ours
import report
import workloads
from rich.console import Console
from startup import fill_cache

HEADINGS = ("workload", "keys", "resident MB", "bytes a key", "private MB more", "private bytes a key")


def run(workload: str) -> dict[str, Any]:
    """Take a workload in steps of 100 k and say what is held before the engine is closed."""
    import ddflow as dd
    from ddflow.tools.warmup import warm

    warm(None)
    events = workloads.load(workload)
    memory.settled()
    before = memory.pages()
    with ours.opened(ours.plan(events.schema, "upsert")) as engine:
        for start in range(0, events.num_rows, ours.STEP):
            after = start + ours.STEP
            engine.push({"events": events.slice(start, ours.STEP)})
            engine.advance_to(events["time"][after].as_py() if after < events.num_rows else dd.CLOSED)
        ours.check_verdicts(engine, events.num_rows)
        stats = engine.stats()
        memory.settled()
        private = memory.pages().private - before.private
    return {
        "workload": workload,
        "keys": stats["keys"],
        "bytes_resident": stats["bytes_resident"],
        "bytes_per_key": stats["bytes_resident"] / stats["keys"],
        "private": private,
        "private_per_key": private / stats["keys"],
        "arrangements": {name: dict(held) for name, held in stats["arrangements"].items()},
    }


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["workload"],
        f"{row['keys']:,}",
        f"{row['bytes_resident'] / 1e6:,.1f}",
        f"{row['bytes_per_key']:.1f}",
        f"{row['private'] / 1e6:,.1f}",
        f"{row['private_per_key']:.1f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    line = argparse.ArgumentParser(prog="bench/footprint.py", description=(__doc__ or "").splitlines()[0])
    line.add_argument("--workload", nargs="+", default=["w1", "w3", "wide"], choices=workloads.SHAPES, metavar="NAME")
    line.add_argument("--out", type=Path, default=child.ROOT / "bench" / "results", metavar="DIR")
    line.add_argument("--no-save", action="store_true", help="write no files")
    options = line.parse_args(arguments)
    out, about = Console(), report.machine(child.ROOT)
    out.width = max(out.width, 120)
    fill_cache()
    rows = [child.ask(__file__, {"workload": name}) for name in options.workload]
    result = {"bench": "footprint", "machine": about, "results": rows}
    report.print_table(out, "What is held, steps of 100 k", HEADINGS, map(_cells, rows))
    bars.show(out, bars.bars_of(result))
    if not options.no_save:
        text = f"# Footprint bench\n\n{report.machine_line(about)}\n\n{report.table(HEADINGS, map(_cells, rows))}"
        text += f"\n## Bars\n\n{bars.markdown(bars.bars_of(result))}"
        path = report.keep(options.out, result, text, "" if "w1" in options.workload else "-partial")
        out.print(f"written: {path} and .md beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    if child.is_child(sys.argv[1:]):
        child.answer(sys.argv[1:], run)
    else:
        sys.exit(main())
