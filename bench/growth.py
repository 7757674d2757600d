"""Measure the cost of an event as the state grows from 10^4 to 10^7 keys.

Each job loads all keys first. Then events of existing keys arrive in steps of 10 k, until merging has completed more
than one cycle. Only these steps are timed. The cost is the mean, because merges are rare and expensive. The cost may
grow with the logarithm of the state because of merges. Cache misses may increase the cost further. Write amplification
is (rows written + rows copied) / rows written. The bench checks verdicts and the number of updates.

Limits: each size runs once in memory, and once with a budget of a tenth of the state.

>>> row = BENCH.measure(2_000, None, 10_000)
>>> row["ns_per_event"] > 0, row["write_amplification"] >= 1
(True, True)
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import memory
import numpy as np
import ours
import pieces
import pyarrow as pa
import report
from report import Bar, Row, within
from runner import Bench, Job

SIZES = (10**4, 10**5, 10**6, 10**7)
SPILLED = {10**6: "16MB", 10**7: "128MB"}  # keys -> budget, about a tenth of their memory
STEP, PER_TIME = 10_000, 1_000
LEAST = 1_000_000  # least number of counted events; else as many as keys


class Growth(Bench):
    """The bench, with one job for each number of keys, with or without a memory budget."""

    name = "growth"
    about = f"Growth: updates of existing keys in steps of {STEP:,}."
    figures = ("ns_per_event",)
    quick = ({"keys": "10000,100000"}, {})
    columns = (
        "keys {keys:,} | budget {budget} | events {events:,} | ns an event {ns_per_event:.0f} | "
        "longest step ms {longest_ms:.1f} | write ampl. {write_amplification:.2f} | batches {batches:,} | "
        "resident MB {bytes_resident!M:,.1f} | mapped MB {bytes_mapped!M:,.1f} | owed {effort_owed:,}"
    )

    def jobs(self) -> list[Job]:
        budgets = [*((keys, None) for keys in SIZES), *SPILLED.items()]
        return [Job({"keys": keys, "budget": budget}) for keys, budget in budgets]

    def measure(self, keys: int, budget: str | None, least: int = LEAST) -> dict[str, Any]:
        """Load the keys, then time the same number of events.

        There are at least ``least`` events, but at most 100 for each key.

        Raises AssertionError if updates are missing.
        """
        events = -(-max(keys, min(least, 100 * keys)) // STEP) * STEP
        ours.warm()
        rng = np.random.default_rng(keys)
        values = np.full(keys, -1, np.int16)  # the value of each key, to count the expected updates
        expected = updates = at = 0
        nanoseconds, loaded = list[int](), None
        flow = ours.plan(_table(np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.int64)).schema, "upsert")
        with tempfile.TemporaryDirectory() as folder:
            options = {} if budget is None else {"memory": budget, "spill": folder}
            with flow.open(**options, threads=1) as engine:
                for key, counted in _steps(rng, keys, events):
                    val, times = rng.integers(0, 1000, len(key)), at + np.arange(len(key)) // PER_TIME
                    table, at = _table(key, val, times), at + -(-len(key) // PER_TIME)
                    expected += pieces.updates(values, key, val, times).num_rows
                    if counted and loaded is None:
                        loaded = _rows_written(engine)
                    begun = time.perf_counter_ns()
                    engine.push({"events": table})
                    out = engine.advance_to(at)["out"]
                    took = time.perf_counter_ns() - begun
                    updates += out.num_rows
                    del out, table
                    if counted:
                        nanoseconds.append(took)
                ours.check_verdicts(engine, keys + events)
                stats, private, end = engine.stats(), memory.pages().private, _rows_written(engine)
        if updates != expected:
            raise AssertionError(f"{keys + events} events gave {updates} updates, expected {expected}")
        assert loaded is not None
        written, copied = end[0] - loaded[0], end[1] - loaded[1]
        return {
            "events": events,
            "spilled": budget is not None,
            "ns_per_event": sum(nanoseconds) / events,
            "longest_ms": max(nanoseconds) / 1e6,
            "private": private,
            "write_amplification": (written + copied) / max(written, 1),
            **{name: stats[name] for name in ("batches", "bytes_resident", "bytes_mapped", "effort_owed")},
        }

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bar (target). In memory, the cost may grow at most with the logarithm of the number of keys."""
        rows = [row for row in result["results"] if not row["spilled"]]
        if len(rows) > 1:
            least, most = (pick(rows, key=lambda row: row["keys"]) for pick in (min, max))
            grown = most["ns_per_event"] / least["ns_per_event"]
            allowed = math.log(most["keys"]) / math.log(least["keys"])
            said = f"{grown:.2f} times ({least['ns_per_event']:.0f} to {most['ns_per_event']:.0f} ns)"
            line = f"cost an event, {least['keys']:,} to {most['keys']:,} keys"
            yield within(line, said, f"{allowed:.2f} times", grown <= allowed, "the logarithm")

    def panels(self, result: Row) -> list[Callable[[Any], None]]:
        """Draw three curves over the number of keys: the cost, the write amplification and the number of batches."""
        shown = {"ns_per_event": "ns an event", "write_amplification": "write amplification", "batches": "batches"}
        return [
            lambda axis, name=name, label=label: self._draw(axis, result["results"], name, label)
            for name, label in shown.items()
        ]

    def _draw(self, axis: Any, rows: list[Row], name: str, label: str) -> None:
        resident, spilled = ([row for row in rows if row["spilled"] == which] for which in (False, True))
        for some, colour, called in ((resident, report.OURS, "in memory"), (spilled, report.ALSO, "spilled")):
            if some:
                axis.plot([row["keys"] for row in some], [row[name] for row in some], "o-", color=colour, label=called)
        if name == "ns_per_event" and len(resident) > 1:
            keys, first = [row["keys"] for row in resident], resident[0]
            allowed = [first[name] * math.log(each) / math.log(first["keys"]) for each in keys]
            axis.plot(keys, allowed, "--", color=report.THEIRS, label="the logarithm")
        axis.set(xscale="log", xlabel="keys", ylabel=label, ylim=(0, None))
        axis.legend(frameon=False)


def _rows_written(engine: Any) -> tuple[int, int]:
    """Return how many versions the steps have written and how many the merges have copied."""
    each = engine.stats()["arrangements"].values()
    return sum(held["written"] for held in each), sum(held["copied"] for held in each)


def _steps(rng: Any, keys: int, events: int) -> Iterator[tuple[Any, bool]]:
    """Yield the keys of each step, and whether the step is timed."""
    everyone = rng.permutation(keys)
    for start in range(0, keys, ours.STEP):
        yield everyone[start : start + ours.STEP], False
    for _ in range(0, events, STEP):
        yield rng.integers(0, keys, STEP), True


def _table(key: Any, val: Any, times: Any) -> pa.Table:
    return pa.table({"key": key, "val": val.astype(np.int64), "time": times})


BENCH = Growth()
