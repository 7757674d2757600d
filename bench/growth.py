#!/usr/bin/env python3
"""The growth bench: what an event costs as the state grows from ten thousand keys to ten million.

Invariant: at every size all keys are loaded first, then events of existing keys come in steps of 10 k until merging has
come round more than once, and only those are counted; verdicts and updates are checked against the events. Merges come
seldom and are dear, so too few events would leave them out; cost is the mean over all steps. It may grow by the
logarithm of the state, no faster: the merges' share is that of the levels, and what the processor's caches no longer
hold comes on top. Write amplification is that of the counted steps too: versions written and copied for each one
written. In memory, and once more through a budget a tenth of the state.

>>> row = run(2_000, 10_000, None)
>>> row["keys"], row["events"], row["ns_per_event"] > 0, row["write_amplification"] >= 1
(2000, 10000, True, True)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bars
import child
import memory
import numpy as np
import ours
import pyarrow as pa
import report
from rich.console import Console

SIZES = (10**4, 10**5, 10**6, 10**7)
SPILLED = {10**6: "16MB", 10**7: "128MB"}  # keys -> budget, about a tenth of what they take
STEP, PER_TIME, LOADED = 10_000, 1_000, 100_000
LEAST = 1_000_000  # events that are counted, or as many as there are keys
HEADINGS = (
    "keys",
    "budget",
    "events",
    "ns an event",
    "longest step ms",
    "write ampl.",
    "batches",
    "resident MB",
    "mapped MB",
    "owed",
)


def run(keys: int, events: int, budget: str | None) -> dict[str, Any]:
    """Load ``keys`` keys, take ``events`` events, and say what one cost; AssertionError when updates are missing."""
    from ddflow.tools.warmup import warm

    warm(None)
    rng = np.random.default_rng(keys)
    values = np.full(keys, -1, np.int16)  # what each key holds, to know how many updates there must be
    expected = updates = at = 0
    nanoseconds, loaded = list[int](), None
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {} if budget is None else {"memory": budget, "spill": folder}
        flow = ours.plan(_table(np.zeros(1, np.int64), np.zeros(1), 0).schema, "upsert")
        with ours.opened(flow, **options) as engine:
            for keyed, counted in _steps(rng, keys, events):
                val = rng.integers(0, 1000, len(keyed))
                table, frontier = _table(keyed, val, at), at + -(-len(keyed) // PER_TIME)
                expected += _updates(values, keyed, val)
                if counted and loaded is None:
                    loaded = _rows_written(engine)
                begun = time.perf_counter_ns()
                engine.push({"events": table})
                out = engine.advance_to(frontier)["out"]
                took = time.perf_counter_ns() - begun
                updates, at = updates + out.num_rows, frontier
                del out, table
                if counted:
                    nanoseconds.append(took)
            ours.check_verdicts(engine, keys + events)
            stats, private, end = engine.stats(), memory.pages().private, _rows_written(engine)
    if updates != expected:
        raise AssertionError(f"{updates} updates came out of {keys + events} events, expected {expected}")
    assert loaded is not None
    written, copied = end[0] - loaded[0], end[1] - loaded[1]
    wanted = ("batches", "bytes_resident", "bytes_mapped", "effort_owed")
    return {
        "keys": keys,
        "events": events,
        "budget": budget,
        "spilled": budget is not None,
        "ns_per_event": sum(nanoseconds) / events,
        "longest_ms": max(nanoseconds) / 1e6,
        "private": private,
        "write_amplification": (written + copied) / max(written, 1),
        **{name: stats[name] for name in wanted},
    }


def _rows_written(engine: Any) -> tuple[int, int]:
    """Versions that steps have written so far, and that merges have copied."""
    each = engine.stats()["arrangements"].values()
    return sum(held["written"] for held in each), sum(held["copied"] for held in each)


def _steps(rng: Any, keys: int, events: int) -> Iterator[tuple[Any, bool]]:
    """The keys of each step, and whether it counts."""
    everyone = rng.permutation(keys)
    for start in range(0, keys, LOADED):
        yield everyone[start : start + LOADED], False
    for _ in range(0, events, STEP):
        yield rng.integers(0, keys, STEP), True


def _table(key: Any, val: Any, at: int) -> pa.Table:
    return pa.table({"key": key, "val": val.astype(np.int64), "time": at + np.arange(len(key)) // PER_TIME})


def _updates(values: Any, key: Any, val: Any) -> int:
    """How many updates a step must give; ``values`` is brought up to date."""
    order = np.argsort(key, kind="stable")
    time = order // PER_TIME
    key, val = key[order], val[order]
    last = np.append((key[1:] != key[:-1]) | (time[1:] != time[:-1]), True)
    key, val = key[last], val[last]
    first = np.insert(key[1:] != key[:-1], 0, True)
    old = np.where(first, values[key], np.roll(val, 1))
    values[key[np.append(first[1:], True)]] = val[np.append(first[1:], True)]
    return int(np.sum((old != val) & (old >= 0)) + np.sum(old != val))


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['keys']:,}",
        row["budget"] or "none",
        f"{row['events']:,}",
        f"{row['ns_per_event']:.0f}",
        f"{row['longest_ms']:.1f}",
        f"{row['write_amplification']:.2f}",
        f"{row['batches']:,}",
        *(f"{row[name] / 1e6:,.1f}" for name in ("bytes_resident", "bytes_mapped")),
        f"{row['effort_owed']:,}",
    ]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw cost, write amplification and batches over the number of keys, and save them as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = (("ns_per_event", "ns an event"), ("write_amplification", "write amplification"), ("batches", "batches"))
    figure, panels = pyplot.subplots(1, len(shown), figsize=(13, 4), layout="constrained")
    for panel, (name, label) in zip(panels, shown, strict=True):
        for spilled, colour in ((False, "#c44e52"), (True, "#4c72b0")):
            mine = [row for row in rows if row["spilled"] == spilled]
            keys, found = [row["keys"] for row in mine], [row[name] for row in mine]
            if mine:
                panel.plot(keys, found, "o-", color=colour, label="spilled" if spilled else "in memory")
        mine = [row for row in rows if not row["spilled"]]
        if name == "ns_per_event" and len(mine) > 1:
            keys, first = [row["keys"] for row in mine], mine[0]
            allowed = [first[name] * np.log(each) / np.log(first["keys"]) for each in keys]
            panel.plot(keys, allowed, "--", color="#8c9bb0", label="the logarithm")
        panel.set(xscale="log", xlabel="keys", ylabel=label, ylim=(0, None))
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False)
    figure.suptitle(f"Updates of existing keys in steps of {STEP:,}")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    line = argparse.ArgumentParser(prog="bench/growth.py", description=(__doc__ or "").splitlines()[0])
    line.add_argument("--keys", nargs="+", type=int, metavar="N", help="only these sizes (default: 10^4 to 10^7)")
    line.add_argument("--in-memory", action="store_true", help="leave out the runs that spill")
    line.add_argument("--out", type=Path, default=child.ROOT / "bench" / "results", metavar="DIR")
    line.add_argument("--no-save", action="store_true", help="write no files")
    options = line.parse_args(arguments)
    out, about = Console(), report.machine(child.ROOT)
    out.width = max(out.width, 140)
    sizes = options.keys or SIZES
    jobs: list[tuple[int, str | None]] = [(keys, None) for keys in sizes]
    jobs += [] if options.in_memory else [(keys, SPILLED[keys]) for keys in sizes if keys in SPILLED]
    rows = []
    for keys, budget in jobs:
        events = -(-max(keys, min(LEAST, 100 * keys)) // STEP) * STEP
        rows.append(child.ask(__file__, {"keys": keys, "events": events, "budget": budget}))
    result = {"bench": "growth", "machine": about, "results": rows}
    title = f"Updates of existing keys in steps of {STEP:,}"
    report.print_table(out, title, HEADINGS, map(_cells, rows))
    bars.show(out, bars.bars_of(result))
    if not options.no_save:
        text = f"# Growth bench\n\n{report.machine_line(about)}\n\n## {title}\n\n"
        text += report.table(HEADINGS, map(_cells, rows)) + f"\n## Bars\n\n{bars.markdown(bars.bars_of(result))}"
        path = report.keep(options.out, json.loads(json.dumps(result)), text, "-partial" if options.keys else "")
        plot(rows, path.with_suffix(".png"))
        out.print(f"written: {path}, .md and .png beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    if child.is_child(sys.argv[1:]):
        child.answer(sys.argv[1:], run)
    else:
        sys.exit(main())
