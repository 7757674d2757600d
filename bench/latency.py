"""Measure the latency of one small step on a million loaded keys; some steps include a merge.

A step is one ``push`` and one ``advance_to`` in hold-back mode, timed together until the updates are available. All
steps are timed. Medians hide merges, so the table also has the 99th percentile and the longest step, and the median of
the processor time. The lines are the upserts alone, a count of their values, and a join with a second input of a
thousand values. Input tables are made before the timing, because making them takes longer than a small step. At the
end, the bench compares the rows of the engine with the expected rows of the events.

Limits: the figures of the Rust original were published for another machine.

>>> for line in LINES:
...     sample = BENCH.measure(line, events=10, steps=20, keys=500)
...     print(len(sample["us"]), sample["median_us"] <= sample["p99_us"])
20 True
20 True
20 True
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import Any

import memory
import numpy as np
import ours
import pyarrow as pa
import report
import workloads
from report import Bar, Row, within
from runner import Bench, Job

KEYS, PER_TIME = 1_000_000, 1_000
LINES = ("upsert", "count", "join")
MORE = {"count": {1: 2_000, 100: 1_000}, "join": {1: 2_000, 100: 1_000, 1_000: 300}}  # events -> steps, of other lines
STEPS = {1: 3_000, 10: 3_000, 100: 2_000, 1_000: 1_000, 10_000: 300}  # events a step -> number of steps
WANTED_US = {1: 100, 10: 110, 100: 150, 1_000: 400, 10_000: 2_000}
RUST_US = {1: 8, 10: 35, 100: 182, 1_000: 1_556, 10_000: 7_953}  # published for differential-dataflow, other machine


class Latency(Bench):
    """The bench, with one job for each number of events in a step."""

    name = "latency"
    about = "Latency: one push and one advance with a million keys loaded."
    figures = ("median_us", "p99_us")
    quick = ({}, {"keys": "100000", "steps": "100"})
    columns = (
        "line {line} | events a step {events:,} | steps {steps:,} | median us {median_us:,.0f} | "
        "CPU us {cpu_us:,.0f} | p99 us {p99_us:,.0f} | max us {max_us:,.0f} | mean us {mean_us:,.0f} | "
        "M events/s {m_per_s:.2f} | Rust, published: us {rust_us:,}"
    )

    def jobs(self) -> list[Job]:
        lines = {"upsert": STEPS, **MORE}
        return [
            Job({"line": line, "events": events, "steps": steps, "keys": KEYS})
            for line in LINES
            for events, steps in lines[line].items()
        ]

    def measure(self, line: str, events: int, steps: int, keys: int) -> dict[str, Any]:
        """Load the keys and time the steps; raise AssertionError if the final rows are wrong."""
        import ddflow as dd

        ours.warm()
        rng = np.random.default_rng(events)
        given = [_events(rng, rng.permutation(keys), 0)]
        frontiers = [given[0]["time"][-1].as_py() + 1]
        for _ in range(steps):
            given.append(_events(rng, rng.integers(0, keys, events), frontiers[-1]))
            frontiers.append(given[-1]["time"][-1].as_py() + 1)
        with plan(given[0].schema, line).open(threads=1) as engine:
            if line == "join":
                values = np.arange(1000)
                engine.push({"names": pa.table({"val": values, "name": values, "time": np.zeros(1000, np.int64)})})
            for piece in workloads.slices(given[0], ours.STEP):
                engine.push({"events": piece})
            engine.advance_to(frontiers[0])
            memory.settled()
            micros, spent = [], []
            for table, frontier in zip(given[1:], frontiers[1:], strict=True):
                begun, used = time.perf_counter_ns(), time.process_time_ns()
                engine.push({"events": table})
                out = engine.advance_to(frontier)["out"]
                spent.append((time.process_time_ns() - used) / 1000)
                micros.append((time.perf_counter_ns() - begun) / 1000)
                del out
            engine.advance_to(dd.CLOSED)
            check(engine.read("events"), given)
        return {
            "median_us": median(micros),
            "p99_us": float(np.percentile(micros, 99)),
            "max_us": max(micros),
            "mean_us": fmean(micros),
            "m_per_s": events / fmean(micros),
            "cpu_us": median(spent),
            "rust_us": RUST_US.get(events) if line == "upsert" else None,
            "us": [round(each, 1) for each in micros],
        }

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars (targets): median latencies in microseconds."""
        for row in list_upsert_rows(result):
            events, found = row["events"], row["median_us"]
            said = f"{found:,.0f} us; p99 {row['p99_us']:,.0f}, max {row['max_us']:,.0f}"
            wanted, peer = f"{WANTED_US[events]:,} us", f"Rust, published: {RUST_US[events]:,} us"
            yield within(f"latency, {events:,} events", said, wanted, found <= WANTED_US[events], peer)

    def panels(self, result: Row) -> list[Callable[[Any], None]]:
        """Draw two curves over the number of events in a step: the time and the rate."""
        rows = list_upsert_rows(result)
        times = {"median": "median_us", "99th percentile": "p99_us"}
        events = [row["events"] for row in rows]

        def latency(axis: Any) -> None:
            for (label, name), colour in zip(times.items(), (report.OURS, report.ALSO), strict=True):
                axis.plot(events, [row[name] for row in rows], "o-", color=colour, label=label)
            axis.set(title="A push and an advance on a million keys", xlabel="events a step", ylabel="microseconds")
            axis.set(xscale="log", yscale="log")
            axis.legend(frameon=False)

        def rate(axis: Any) -> None:
            axis.plot(events, [row["m_per_s"] for row in rows], "o-", color=report.OURS)
            axis.set(xlabel="events a step", ylabel="million events a second", xscale="log", yscale="log")

        return [latency, rate]


def list_upsert_rows(result: Row) -> list[Row]:
    """Return the rows of the upserts alone."""
    return [row for row in result["results"] if row.get("line", "upsert") == "upsert"]


def plan(schema: pa.Schema, line: str) -> Any:
    """Return the flow of a line, with the output ``out``."""
    import ddflow as dd

    if line != "join":
        return ours.plan(schema, line)
    flow = dd.Flow()
    rows = flow.upserts("events", schema, dd.Upsert(key="key", time="time", delete="val is null"))
    named = {"val": pa.int64(), "name": pa.int64(), "time": pa.int64()}
    flow.output("out", rows.join(flow.upserts("names", named, dd.Upsert(key="val", time="time")), on="val"))
    return flow


def _events(rng: Any, key: Any, at: int) -> pa.Table:
    """Make upserts of these keys. Times start at ``at``, and each time has a thousand upserts.

    5 % of the events delete, but none of them if ``at`` is 0.
    """
    n = len(key)
    gone = rng.random(n) < (0.05 if at else 0.0)
    val = pa.array(rng.integers(0, 1000, n), mask=gone)
    return pa.table({"key": key, "val": val, "time": at + np.arange(n) // PER_TIME})


def check(held: pa.Table, given: Sequence[pa.Table]) -> None:
    """Raise AssertionError unless the engine holds the last row of each key."""
    whole = pa.concat_tables(given)
    key, val = whole["key"].to_numpy(), whole["val"].fill_null(-1).to_numpy()
    last = np.full(key.max() + 1, -1)
    last[key] = val  # numpy keeps the last of equal places
    live = np.flatnonzero(last >= 0)
    order = np.argsort(held["key"].to_numpy())
    found = held["key"].to_numpy()[order], held["val"].to_numpy()[order]
    if not (np.array_equal(found[0], live) and np.array_equal(found[1], last[live])):
        raise AssertionError(f"the engine holds {held.num_rows} rows, which differ from the {len(live)} expected rows")


BENCH = Latency()
