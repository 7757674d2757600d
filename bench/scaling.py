"""Measure how much faster ddflow is with more threads, beside the gain of bare loops in the same minutes.

One process takes turns. First one bare loop runs alone, then one bare loop per thread, each on its own events. Then
ddflow runs with one thread and with several threads. So a busy machine or a shared cache slows the loops and ddflow
equally. ``of_bare`` is ddflow's gain divided by the gain of the bare loops, and the bars require this ratio. The bar of
a join requires a gain. The updates must be the same for any number of threads.

Limits: bare loops share nothing, so they gain as much as the machine allows. An engine cannot gain more.

>>> sample = BENCH.measure(line="upsert", step=1000, n=20_000, budget=None, threads=2, turns=1)
>>> sample["gain"] > 0, len(sample["rates"]), len(sample["gains"])
(True, 2, 1)
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import operators_peers
import operators_work
import ours
import pyarrow as pa
import report
import workloads
from limit import limit
from report import Bar, Row, within
from runner import Bench, Job

OF_BARE, OF_BARE_BUDGET, LEAST, JOINED = 0.9, 0.75, 0.95, 1.6
N, BARE = 4_000_000, 1_000_000
LINES = [
    ("upsert", 10_000, 1_000_000, None),
    ("upsert", 100_000, N, None),
    ("upsert", 1_000_000, N, None),
    ("upsert", 10_000_000, 10_000_000, None),
    ("filter", 100_000, N, None),
    ("count", 100_000, N, None),
    ("upsert", 1_000_000, N, "128MB"),
    ("join", 100_000, 2_000_000, None),
]


class Scaling(Bench):
    """The bench, with one job for each line and each size of steps."""

    name = "scaling"
    about = "Scaling: several threads compared with one, and the same for bare loops, in the same minutes."
    figures = ("gain", "of_bare")
    quick = ({"step": "100000", "line": "upsert", "budget": "None"}, {"n": "200000", "turns": "1"})
    columns = (
        "line {line} | events a step {step:,} | budget {budget} | threads {threads} | M upserts/s, one thread "
        "{alone:.2f} | several {shared:.2f} | gain {gain:.2f} | of bare loops {bare_gain:.2f} | quotient {of_bare:.2f}"
    )

    def jobs(self) -> list[Job]:
        keys = "line", "step", "n", "budget"
        return [Job(dict(zip(keys, each, strict=True)) | {"threads": 2, "turns": 5}) for each in LINES]

    def measure(self, line: str, step: int, n: int, budget: str | None, threads: int, turns: int) -> dict[str, Any]:
        """Take several turns, and time all but the first. Raise AssertionError if the updates of two turns differ."""
        ours.warm()
        events = workloads.build(workloads.Shape(n, max(n // 10, 1000)))
        bare = [workloads.build(workloads.Shape(min(BARE, n), 100_000, seed=i)) for i in range(threads)]
        rates: dict[int, list[float]] = {1: [], threads: []}
        gains, seen = list[float](), set[int]()
        for turn in range(turns + 1):
            alone, together = _bare(bare[:1]), _bare(bare)
            gains += [threads * alone / together] * (turn > 0)
            for size, found in rates.items():
                seconds, checksum = (
                    _joined(step, n, size) if line == "join" else _taken(events, line, step, budget, size)
                )
                seen.add(checksum)
                found += [n / seconds / 1e6] * (turn > 0)
        assert len(seen) == 1, f"the updates differ between turns: {seen}"
        one, several, bare_gain = median(rates[1]), median(rates[threads]), median(gains)
        return {
            "alone": one,
            "shared": several,
            "gain": several / one,
            "bare_gain": bare_gain,
            "of_bare": several / one / bare_gain,
            "rates": [rates[1], rates[threads]],
            "gains": gains,
        }

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars.

        The bars require that ddflow gains a given share of the bare loops' gain, and that several threads are never
        slower than one.
        """
        for row in result["results"]:
            name = f"{row['line']}, {row['step']:,} a step{', ' + row['budget'] if row['budget'] else ''}"
            said = f"{row['gain']:.2f}, bare loops {row['bare_gain']:.2f}"
            if row["step"] >= 100_000:
                joined, wanted = row["line"] == "join", OF_BARE_BUDGET if row["budget"] else OF_BARE
                met = row["gain"] >= JOINED if joined else row["of_bare"] >= wanted
                yield within(f"two threads: {name}", said, f"{JOINED}" if joined else f"{wanted} of bare", met)
            yield within(f"not slower: {name}", f"{row['gain']:.2f}", f"{LEAST}", row["gain"] >= LEAST)

    def panels(self, result: Row) -> list[Callable[[Any], None]]:
        """Draw the gain of each line, beside the gain of bare loops."""

        def gains(axis: Any) -> None:
            rows = result["results"][::-1]
            names = [f"{row['line']}, {row['step']:,}{', ' + row['budget'] if row['budget'] else ''}" for row in rows]
            for shift, name, colour, label in (
                (0.2, "gain", report.OURS, "ddflow"),
                (-0.2, "bare_gain", report.THEIRS, "bare loops"),
            ):
                axis.barh(
                    [at + shift for at in range(len(rows))], [row[name] for row in rows], 0.4, color=colour, label=label
                )
            axis.set_yticks(range(len(rows)), names)
            axis.axvline(1, color="black", linewidth=0.5)
            axis.set(title="Two threads beside one, by line and events a step", xlabel="times the rate of one thread")
            axis.legend(frameon=False)

        return [gains]


def _bare(events: list[pa.Table]) -> float:
    """Return the seconds that bare loops take, each on its own thread."""
    with ThreadPoolExecutor(len(events)) as pool:
        begun = time.perf_counter()
        list(pool.map(limit, events))
        return time.perf_counter() - begun


def _taken(events: pa.Table, line: str, step: int, budget: str | None, threads: int) -> tuple[float, int]:
    """Return the seconds of the steps and the checksum of their updates."""
    with tempfile.TemporaryDirectory() as folder:
        options = {} if budget is None else {"memory": budget, "spill": folder}
        with ours.plan(events.schema, line).open(threads=threads, **options) as engine:
            begun = time.perf_counter()
            tables = list(ours.in_steps(engine, events, step))
            seconds = time.perf_counter() - begun
            ours.check_verdicts(engine, events.num_rows)
            return seconds, workloads.checksum(tables)


def _joined(step: int, n: int, threads: int) -> tuple[float, int]:
    """Return the seconds of the steps of the line ``join`` of the bench `operators`, and the checksum of their updates.

    The load of a million orders is not timed.
    """
    size = operators_work.Size(min(n, 1_000_000), n, step)
    runner, seconds, tables = operators_peers.Incremental("join", size, None, threads), 0.0, list[pa.Table]()
    runner.step(operators_work.loaded(size), 0)
    for number in range(size.steps):
        events = operators_work.changes(size, number)
        begun = time.perf_counter()
        tables.append(runner.step(events, number + 1))
        seconds += time.perf_counter() - begun
    return seconds, workloads.checksum(tables)


BENCH = Scaling()
