#!/usr/bin/env python3
"""The latency bench: how long one small step takes when a million keys are loaded, merges and all.

Invariant: a step is one ``push`` and one ``advance_to`` in hold-back mode, timed together, its updates in hand; no step
is left out, and after the last the engine's rows are compared with those that the events leave. A median hides what a
merge costs, so the 99th percentile and the longest step stand beside it; and the table that goes in is made before, or
making it would be most of a small step.

The figures of the Rust original (``bars.RUST_LATENCY_US``) were published for another machine.

>>> [row["events"] for row in run({"1": 20, "10": 20}, keys=500)]
[1, 10]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bars
import child
import memory
import numpy as np
import ours
import pyarrow as pa
import report
import workloads
from rich.console import Console

KEYS = 1_000_000
STEPS = {1: 3_000, 10: 3_000, 100: 2_000, 1_000: 1_000, 10_000: 300}  # events a step -> how many such steps
PER_TIME = 1_000
LOADED = 100_000  # events a step while loading
HEADINGS = ("events a step", "steps", "median us", "p99 us", "max us", "mean us", "M events/s", "Rust, published: us")


def run(steps: dict[str, int], keys: int) -> list[dict[str, Any]]:
    """Load the keys, then take the steps, by the number of events in them; AssertionError when the rows come out wrong.

    JSON has made the numbers of events into text.
    """
    import ddflow as dd
    from ddflow.tools.warmup import warm

    warm(None)
    rng = np.random.default_rng(0)
    every = [_events(rng, rng.permutation(keys), 0)]
    rows, at = [], every[0]["time"][-1].as_py() + 1
    with ours.opened(ours.plan(every[0].schema, "upsert")) as engine:
        for piece in workloads.slices(every[0], LOADED):
            engine.push({"events": piece})
        engine.advance_to(at)
        for events, count in ((int(events), count) for events, count in steps.items()):
            given, frontiers = [], []
            for _ in range(count):
                given.append(_events(rng, rng.integers(0, keys, events), at))
                at = given[-1]["time"][-1].as_py() + 1
                frontiers.append(at)
            memory.settled()
            nanoseconds = []
            for table, frontier in zip(given, frontiers, strict=True):
                begun = time.perf_counter_ns()
                engine.push({"events": table})
                out = engine.advance_to(frontier)["out"]
                nanoseconds.append(time.perf_counter_ns() - begun)
                del out
            rows.append(_row(events, nanoseconds))
            every += given
        engine.advance_to(dd.CLOSED)
        held = engine.read("out")
    _check(held, every)
    return rows


def _events(rng: Any, key: Any, at: int) -> pa.Table:
    """Upserts of these keys from time ``at`` on, a thousand a time; 5 % delete, but for the first of all."""
    n = len(key)
    gone = rng.random(n) < (0.05 if at else 0.0)
    val = pa.array(rng.integers(0, 1000, n), mask=gone)
    return pa.table({"key": key, "val": val, "time": at + np.arange(n) // PER_TIME})


def _row(events: int, nanoseconds: list[int]) -> dict[str, Any]:
    micros = [each / 1000 for each in nanoseconds]
    return {
        "events": events,
        "steps": len(micros),
        "median_us": statistics.median(micros),
        "p99_us": float(np.percentile(micros, 99)),
        "max_us": max(micros),
        "mean_us": statistics.fmean(micros),
        "us": [round(each, 1) for each in micros],
    }


def _check(held: pa.Table, given: list[pa.Table]) -> None:
    """AssertionError unless the rows held are the last of each key."""
    whole = pa.concat_tables(given)
    key, val = whole["key"].to_numpy(), whole["val"].fill_null(-1).to_numpy()
    last = np.full(key.max() + 1, -1)
    last[key] = val  # numpy keeps the last of equal places
    live = np.flatnonzero(last >= 0)
    order = np.argsort(held["key"].to_numpy())
    found = held["key"].to_numpy()[order], held["val"].to_numpy()[order]
    if not (np.array_equal(found[0], live) and np.array_equal(found[1], last[live])):
        raise AssertionError(f"{held.num_rows} rows are held, and they are not the {len(live)} that the events leave")


def _cells(row: dict[str, Any]) -> list[str]:
    figures = (row["median_us"], row["p99_us"], row["max_us"], row["mean_us"])
    rust = bars.RUST_LATENCY_US.get(row["events"])
    rate = f"{row['events'] / row['mean_us']:.2f}"
    return [f"{row['events']:,}", f"{row['steps']:,}", *(f"{each:,.0f}" for each in figures), rate, f"{rust:,}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    line = argparse.ArgumentParser(prog="bench/latency.py", description=(__doc__ or "").splitlines()[0])
    line.add_argument("--part", type=float, default=1.0, metavar="P", help="take only this part of the steps and keys")
    line.add_argument("--out", type=Path, default=child.ROOT / "bench" / "results", metavar="DIR")
    line.add_argument("--no-save", action="store_true", help="write no files")
    options = line.parse_args(arguments)
    out, about = Console(), report.machine(child.ROOT)
    out.width = max(out.width, 120)
    steps = {str(events): max(10, int(count * options.part)) for events, count in STEPS.items()}
    keys = max(1000, int(KEYS * options.part))
    rows = child.ask(__file__, {"steps": steps, "keys": keys})
    result = {"bench": "latency", "machine": about, "keys": keys, "results": rows}
    title = f"One push and one advance, {keys:,} keys loaded"
    report.print_table(out, title, HEADINGS, map(_cells, rows))
    bars.show(out, bars.bars_of(result))
    if not options.no_save:
        text = f"# Latency bench\n\n{report.machine_line(about)}\n\n## {title}\n\n"
        text += report.table(HEADINGS, map(_cells, rows)) + f"\n## Bars\n\n{bars.markdown(bars.bars_of(result))}"
        path = report.keep(options.out, json.loads(json.dumps(result)), text, "-partial" if options.part < 1 else "")
        out.print(f"written: {path} and .md beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    if child.is_child(sys.argv[1:]):
        child.answer(sys.argv[1:], run)
    else:
        sys.exit(main())
