"""Measure merges, groups, cells, lists, machines, tombstones and whole contents.

Compare them with full rows and with peers.

The bench times the steps of each line on a state that has all keys. Each contender gets a fresh process. The final rows
must have the checksum that numpy or a dict computed from the same events. The rate of a line is compared with the rate
of its base line: full rows *of the same table* in the same run. Between steps, updates are checked and dropped outside
of the timing.

Limits: all lines use one thread and epoch mode.

>>> size = {"keys": 500, "step": 100, "warm": 1, "steps": 4}
>>> found = BENCH.measure("overwrite", "ddflow", **size)
>>> found["rows"], found["checksum"] == BENCH.expected("overwrite", **size)
(400, True)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import memory
import ours
import pyarrow as pa
import semantics_ours
import semantics_peers
from report import Bar, Row, at_least, within
from runner import Bench, Job
from semantics_work import LINES, Size, expected, loaded, tables

DICT_STEPS = 2  # the dict is slow, and equally slow in each step
# The required share of the base's rate, and the required rate in million a second.
PARTS = {"overwrite": 1 / 2, "ignore": 1 / 2, "max": 1 / 2, "sum": 1 / 2, "cell": 1 / 3, "groups": 1 / 3}
PARTS |= {"tombstones-stay": 0.97, "contents-replace": 1.0}
RATES = {"append": 0.5, "union": 0.5, "to_upserts": 5.0, "dfa-arrival": 5.0}


class Semantics(Bench):
    """The bench that runs every line with ddflow, and with each peer that supports the line."""

    name = "semantics"
    about = "Semantics: the cost of each way to upsert beside full rows; peers beside ddflow on the same line."
    sampled = ("seconds", "cpu_seconds", "longest_ms", "peak_mb")
    quick = ({}, {"keys": "200000", "warm": "1", "steps": "4"})
    columns = (
        "line {line} | contender {contender} | M/s {m_per_s:.2f} | of {what} | x base or ddflow {over_base:.2f} | "
        "M/s of CPU {cpu_m_per_s:.2f} | the same {cpu_over_base:.2f} | min-max {seconds!l:.2f}-{seconds!g:.2f} | "
        "seconds {median_seconds:.2f} | peak MB {peak_mb!m:,.0f}"
    )

    def jobs(self) -> list[Job]:
        jobs = []
        for line in LINES:
            for contender in ("ddflow", *(semantics_peers.PEERS if line in semantics_peers.TAKES else ())):
                size = Size(steps=DICT_STEPS) if contender == "dict" else Size()
                jobs.append(Job({"line": line, "contender": contender, **size._asdict()}, rounds=3))
        return jobs

    def measure(self, line: str, contender: str, **size: int) -> dict[str, Any]:
        """Load the keys, take the steps, and add up the results."""
        pa.set_cpu_count(1)
        of, mine = Size(**size), contender == "ddflow"
        if mine:
            ours.warm()
        made = tables(LINES[line].kind, of)
        first, seconds, cpu, longest = loaded(LINES[line].kind, of), 0.0, 0.0, 0.0
        before = memory.settled()
        memory.forget_peak()
        runner = semantics_ours.opened(line, of, made) if mine else semantics_peers.PEERS[contender](line)
        for number, table in enumerate(made):
            begun, begun_cpu = time.perf_counter(), time.process_time()
            out = runner.step(table)
            took, took_cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
            runner.take(out)
            del out
            if number >= first:
                seconds, cpu, longest = seconds + took, cpu + took_cpu, max(longest, took)
        found = {"rows": sum(table.num_rows for table in made[first:]), "seconds": seconds, "cpu_seconds": cpu}
        peak = (memory.peak() - before) / 2**20
        return {**found, "longest_ms": longest * 1e3, "peak_mb": peak, "checksum": runner.answer()}

    def question(self, job: Job) -> dict[str, Any]:
        return {name: value for name, value in job.what.items() if name != "contender"}

    def expected(self, line: str, **size: int) -> str:
        """Return the checksum of the final rows."""
        return expected(line, Size(**size))

    def row(self, job: Job, samples: Sequence[dict[str, Any]]) -> Row:
        row, line = super().row(job, samples), LINES[job.what["line"]]
        cpu = sorted(row["cpu_seconds"])[len(row["cpu_seconds"]) // 2]
        return {**row, "base": line.base, "what": line.what, "cpu_m_per_s": row["rows"] / cpu / 1e6}

    def compared(self, rows: list[Row]) -> list[Row]:
        """Add ``over_base``: ddflow's rate divided by the base line's rate in this run.

        For a peer, divide its rate by ddflow's rate.

        Add the same ratio by CPU time.
        """
        mine = {row["line"]: row for row in rows if row["contender"] == "ddflow"}
        for row in rows:
            base = mine.get(row["base"] if row["contender"] == "ddflow" else row["line"])
            for rate, name in (("m_per_s", "over_base"), ("cpu_m_per_s", "cpu_over_base")):
                row[name] = None if base is None else row[rate] / base[rate]
        return rows

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars. The bars require a share of the base line's rate, or a rate."""
        mine = {row["line"]: row for row in result["results"] if row["contender"] == "ddflow"}
        for line, row in mine.items():
            rate, base = row["m_per_s"], mine.get(row["base"])
            if line in PARTS and base is not None:
                yield at_least(line, rate, row["base"], base["m_per_s"], PARTS[line], digits=(2, 2))
            if line in RATES:
                yield within(line, f"{rate:.2f} M/s", f"{RATES[line]:.1f} M/s", rate >= RATES[line])


BENCH = Semantics()
