#!/usr/bin/env python3
"""The bar: every line that ddflow must reach, what it reached, its peer in the same run, and whether that is enough.

Invariant: a bar is computed from the stored results of runs and from nothing else, and a ratio only from two figures of
one run. A bar may say ``8 M/s where numpy does 1.55``, and then it is the ratio that decides (5.2 times numpy), on any
machine; the rate it was said in stands beside it. Figures of the Rust original were published for another machine and
are shown, never required. Nothing here measures.

As a program it takes result files, or the newest of each kind in ``bench/results``, and prints all bars in one table.

>>> result = {"bench": "upsert", "results": [
...     {"workload": "w1", "line": "upsert", "contender": "ddflow", "m_upserts_per_s": 9.0},
...     {"workload": "w1", "line": "upsert", "contender": "numpy", "m_upserts_per_s": 1.5}]}
>>> for bar in bars_of(result):
...     print(bar.line, bar.ours, bar.peer, bar.ratio, bar.needed, bar.met)
W1 upsert 9.0 M/s numpy 1.5 6.0 5.0 True
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"
HEADINGS = ("line", "ours", "wanted", "peer in the same run", "ratio", "needed", "met")
NUMPY_THEN = 1.55  # million upserts a second of the numpy peer where the rates below were set

# Published for differential-dataflow on another machine, in microseconds a step of so many events.
RUST_LATENCY_US = {1: 8, 10: 35, 100: 182, 1_000: 1_556, 10_000: 7_953}
LATENCY_US = {1: 100, 10: 110, 100: 150, 1_000: 400, 10_000: 2_000}
BYTES_PER_KEY = 100
OVER_BUDGET = 1.15  # times the budget that private memory may take, over an idle engine
RECEIPTS_OF, COMMIT_MS = 1000, 1000  # partitions, whose receipts must be committed in so many milliseconds
COMMIT_GROWS = 2.0  # times that a commit may take at most on the largest state over that on the smallest
# Of the lines of the semantics bench: the part of their base's rate, and the rate in million a second.
SEMANTICS_PARTS = {
    "overwrite": 1 / 2,
    "ignore": 1 / 2,
    "max": 1 / 2,
    "sum": 1 / 2,
    "cell": 1 / 3,
    "groups": 1 / 3,
    "tombstones-stay": 0.97,
    "contents-replace": 1.0,
}
SEMANTICS_RATES = {"append": 0.5, "union": 0.5, "to_upserts": 5.0, "dfa-arrival": 5.0}


class Bar(NamedTuple):
    """One line: figures as text, ``ratio`` and ``needed`` as numbers where there are any."""

    line: str
    ours: str
    wanted: str
    peer: str
    ratio: float | None
    needed: float | None
    met: bool


class Need(NamedTuple):
    """``line`` must be ``times`` as fast as its ``peer``: both are (workload, line, contender) of one run."""

    line: str
    ours: tuple[str, str, str]
    peer: tuple[str, str, str]
    times: float
    rate: float | None = None


W1 = ("w1", "upsert", "ddflow")
NUMPY = ("w1", "upsert", "numpy")
NEEDS = (
    Need("W1 upsert", W1, NUMPY, 5.0, 8.0),
    Need("W1 upsert", W1, ("w1", "upsert", "limit"), 0.6, 8.0),
    Need("W1z upsert (Zipf)", ("w1z", "upsert", "ddflow"), W1, 1.0),
    Need("W1 -> count", ("w1", "count", "ddflow"), NUMPY, 5.0 / NUMPY_THEN, 5.0),
    Need("W1 -> filter -> count", ("w1", "filter+count", "ddflow"), NUMPY, 6.5 / NUMPY_THEN, 6.5),
    Need("W3 upsert (strings)", ("w3", "upsert", "ddflow"), ("w3", "upsert", "duckdb-2t"), 3.0 / 1.5, 3.0),
    Need("W3 upsert (strings)", ("w3", "upsert", "ddflow"), NUMPY, 3.0 / NUMPY_THEN, 3.0),
    Need("W1 on two threads", ("w1", "upsert", "ddflow-2t"), W1, 1.6),
    Need("wide rows", ("wide", "upsert", "ddflow"), ("wide", "upsert", "duckdb-wide-1t"), 5.0, 1.0),
    Need("backfill, hold-back", ("w1", "backfill", "ddflow"), W1, 1.0),
    Need("backfill, one epoch", ("w1", "epoch", "ddflow"), W1, 1.0),
)


def bars_of(result: dict[str, Any]) -> list[Bar]:
    """The bars that a result says something about; one that was not run is left out.  KeyError for an unknown bench."""
    kinds: dict[str, Callable[[dict[str, Any]], Iterable[Bar]]] = {
        "upsert": _of_upsert,
        "latency": _of_latency,
        "footprint": _of_footprint,
        "growth": _of_growth,
        "large": _of_large,
        "durable": _of_durable,
        "receipts": _of_receipts,
        "semantics": _of_semantics,
        "spark": _of_spark,
    }
    return list(kinds[result["bench"]](result))


def _of_upsert(result: dict[str, Any]) -> Iterator[Bar]:
    rates = {(row["workload"], row["line"], row["contender"]): row["m_upserts_per_s"] for row in result["results"]}
    for need in NEEDS:
        if need.ours in rates and need.peer in rates:
            ours, theirs = rates[need.ours], rates[need.peer]
            ratio, wanted = ours / theirs, "" if need.rate is None else f"{need.rate:.1f} M/s"
            of = need.peer[2] if need.peer[:2] == need.ours[:2] else " ".join(need.peer)
            met = ratio >= need.times
            yield Bar(need.line, f"{ours:.1f} M/s", wanted, f"{of} {theirs:.1f}", ratio, need.times, met)


def _of_latency(result: dict[str, Any]) -> Iterator[Bar]:
    for row in result["results"]:
        events, ours = row["events"], row["median_us"]
        if events in LATENCY_US:
            said = f"{ours:,.0f} us; p99 {row['p99_us']:,.0f}, max {row['max_us']:,.0f}"
            wanted, peer = f"{LATENCY_US[events]:,} us", f"Rust, published: {RUST_LATENCY_US[events]:,} us"
            yield Bar(f"latency, {events:,} events", said, wanted, peer, None, None, ours <= LATENCY_US[events])


def _of_footprint(result: dict[str, Any]) -> Iterator[Bar]:
    for row in result["results"]:
        if row["workload"] == "w1":
            ours, wanted = row["bytes_per_key"], f"{BYTES_PER_KEY} bytes"
            said = f"{ours:.0f} bytes; RssAnon, with scratch: {row['private_per_key']:.0f}"
            yield Bar("bytes a key after W1", said, wanted, "", None, None, ours <= BYTES_PER_KEY)


def _of_growth(result: dict[str, Any]) -> Iterator[Bar]:
    rows = [row for row in result["results"] if not row["spilled"]]
    if len(rows) > 1:
        least, most = (pick(rows, key=lambda row: row["keys"]) for pick in (min, max))
        grown = most["ns_per_event"] / least["ns_per_event"]
        allowed = math.log(most["keys"]) / math.log(least["keys"])
        said = f"{grown:.2f} times" + f" ({least['ns_per_event']:.0f} to {most['ns_per_event']:.0f} ns)"
        line = f"cost an event, {least['keys']:,} to {most['keys']:,} keys"
        yield Bar(line, said, f"{allowed:.2f} times", "the logarithm", None, None, grown <= allowed)


def _of_large(result: dict[str, Any]) -> Iterator[Bar]:
    rows = [row for row in result["results"] if row["failed"] is None]
    for ours in rows:
        title = f"{ours['workload']} {ours['steps']}"
        if not ours["contender"].startswith("ddflow"):
            continue
        for peer, times in (("rocksdict", 3.0), ("rocksdict-mapped", 1.0), ("duckdb", 1.0)):
            for row in rows:
                asked = (peer, ours["workload"], ours["steps"], ours["events"])
                if (row["contender"], row["workload"], row["steps"], row["events"]) == asked:
                    ratio = ours["late_m_per_s"] / row["late_m_per_s"]
                    said, theirs = f"{ours['late_m_per_s']:.2f} M/s", f"{peer} {row['late_m_per_s']:.3f}"
                    yield Bar(title, said, "", theirs, ratio, times, ratio >= times)
        over, most = ours["private_over_idle"], OVER_BUDGET * result["budget"]
        said = f"{over / 1e6:.0f} MB; mapped {ours['mapped_over_idle'] / 1e6:,.0f}"
        name = f"{title}, private memory, {ours['contender']}, {ours['events'] / 1e6:g} M"
        yield Bar(name, said, f"{most / 1e6:.0f} MB", "", None, None, over <= most)


def _of_durable(result: dict[str, Any]) -> Iterator[Bar]:
    rows = sorted(result["results"], key=lambda row: row["keys"])
    if len(rows) > 1:
        took = [row["commit_cpu_ms"] for row in rows]
        grown, line = max(took) / min(took), f"a commit's CPU, {rows[0]['keys']:,} to {rows[-1]['keys']:,} keys"
        said = f"{grown:.2f} times ({min(took):.1f} to {max(took):.1f} ms)"
        yield Bar(line, said, f"{COMMIT_GROWS:.2f} times", "", None, None, grown <= COMMIT_GROWS)


def _of_receipts(result: dict[str, Any]) -> Iterator[Bar]:
    for row in result["results"]:
        if row["partitions"] == RECEIPTS_OF:
            took = median(row["finish_ms"])
            line = f"a commit of {row['receipts']:,} receipts, {row['files']:,} files"
            yield Bar(line, f"{took:.0f} ms", f"{COMMIT_MS:,} ms", "", None, None, took <= COMMIT_MS)


def _of_semantics(result: dict[str, Any]) -> Iterator[Bar]:
    ours = {row["line"]: row for row in result["results"] if row["contender"] == "ddflow"}
    for line, row in ours.items():
        rate, base = row["m_per_s"], ours.get(row["base"])
        if line in SEMANTICS_PARTS and base is not None:
            ratio, needed = rate / base["m_per_s"], SEMANTICS_PARTS[line]
            peer = f"{row['base']} {base['m_per_s']:.2f}"
            yield Bar(line, f"{rate:.2f} M/s", "", peer, ratio, needed, ratio >= needed)
        if line in SEMANTICS_RATES:
            wanted = SEMANTICS_RATES[line]
            yield Bar(line, f"{rate:.2f} M/s", f"{wanted:.1f} M/s", "", None, None, rate >= wanted)


def _of_spark(result: dict[str, Any]) -> Iterator[Bar]:
    from spark_bars import bars_of_spark

    yield from bars_of_spark(result["results"])


def cells(bar: Bar) -> list[str]:
    """A bar as text, for a row of a table."""
    ratio, needed = ("" if number is None else f"{number:.2f}" for number in (bar.ratio, bar.needed))
    return [bar.line, bar.ours, bar.wanted, bar.peer, ratio, needed, "yes" if bar.met else "NO"]


def show(console: Console, bars: Sequence[Bar]) -> None:
    """Print the bars as a table, if there are any."""
    if not bars:
        return
    table = Table(title="What must be reached (where there is a ratio, it decides)", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in ("ratio", "needed") else "left")
    for bar in bars:
        table.add_row(*cells(bar), style=None if bar.met else "bold red")
    console.print(table)


def markdown(bars: Sequence[Bar]) -> str:
    """The bars as a Markdown table."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *map(cells, bars)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def newest(folder: Path) -> list[Path]:
    """The newest result file of each bench in a folder, but not of narrowed runs."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
        if "-partial" not in path.name:
            found[path.name.split("-")[0]] = path
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bars of the given files; 1 when one is not reached."""
    given = sys.argv[1:] if arguments is None else arguments
    out = Console(width=max(Console().width, 150))
    every: list[Bar] = []
    for path in [Path(name) for name in given] or newest(RESULTS):
        result = json.loads(path.read_text())
        about = result["machine"]
        out.print(f"{path.name}: {about['cpu']}, commit {about['commit']}, {about['date']}", style="dim")
        every += bars_of(result)
    show(out, every)
    return 0 if all(bar.met for bar in every) else 1


if __name__ == "__main__":
    sys.exit(main())
