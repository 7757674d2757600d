"""Measure a step of a thousand changed rows for each TPC-H query, beside DuckDB, which recomputes the answer.

Tables, steps and queries come from the tests (`tests/plan/tpch_feed.py`). After each step the engine's rows must equal
DuckDB's answer. A step inserts, changes and deletes rows of the query's tables, but not of nation and region, which
TPC-H never changes. Each query has its own engine on one thread; DuckDB has two threads and tables in memory. For
DuckDB, only the query is timed, not the update of the tables. Limits: `tpchgen-cli` makes the tables.

>>> sample = BENCH.measure(query=6, scale=0.01, rows=100, steps=3)
>>> sample["step_ms"] > 0, sample["duckdb_ms"] > 0
(True, True)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import machine
import ours
import workloads
from report import Bar, Row, within
from runner import Bench, Job

sys.path.append(str(machine.ROOT / "tests" / "plan"))  # these files import each other by name

ROWS, STEPS, SCALES = 1_000, 20, (0.1, 1.0)
FASTER, GROWS = 10.0, 1.5
GLOBAL = (11, 15, 22)  # rows are compared with a global scalar, so its change may affect all
FIXED = ("region", "nation")


class Tpch(Bench):
    """The bench of each query at each scale."""

    name = "tpch"
    about = f"TPC-H: a step of {ROWS:,} changed rows, beside DuckDB recomputing the answer on two threads."
    figures = ("step_ms", "load_seconds")
    quick = ({"scale": "0.1"}, {"steps": "5"})
    columns = (
        "query {query} | scale {scale:g} | step ms {step_ms:.2f} | longest {longest_ms:.1f} | "
        "DuckDB ms {duckdb_ms:.2f} | times {times:.1f} | load s {load_seconds:.2f} | "
        "held MB {bytes_resident!M:.0f} | rows {answer:,}"
    )

    def jobs(self) -> list[Job]:
        from tpch_queries import QUERIES

        scales = [{"scale": scale, "rows": ROWS, "steps": STEPS} for scale in SCALES]
        return [Job({"query": number, **what}, threads=2) for what in scales for number in QUERIES]

    def measure(self, query: int, scale: float, rows: int, steps: int) -> dict[str, Any]:
        """Load the tables, then take the steps; raise AssertionError if an answer differs from DuckDB's."""
        from accumulated import Accumulated, duck, same
        from tpch_feed import Feed, files, flow_with
        from tpch_queries import KEYS, TYPES, text

        ours.warm()
        flow, names = flow_with([query], scale)
        feed = Feed(files(workloads.folder(), scale), rows, FIXED, names)
        peer = Accumulated({name: TYPES[name] for name in names}, KEYS, threads=2)
        asked = duck(text(query, scale))
        took, theirs = list[float](), list[float]()
        with flow.open(threads=1) as engine:
            for step in feed.steps(steps + 1):
                begun = time.perf_counter()
                engine.step(step)
                took.append(time.perf_counter() - begun)
                peer.apply(step)
                begun = time.perf_counter()
                answer = peer.answer(asked)
                theirs.append(time.perf_counter() - begun)
                if wrong := same(engine.read(f"q{query}"), answer):
                    raise AssertionError(wrong)
            held = engine.stats()["bytes_resident"]
        peer.close()
        return {
            "step_ms": median(took[1:]) * 1e3,
            "longest_ms": max(took[1:]) * 1e3,
            "duckdb_ms": median(theirs[1:]) * 1e3,
            "times": median(theirs[1:]) / median(took[1:]),
            "load_seconds": took[0],
            "bytes_resident": held,
            "answer": answer.num_rows,
            "ms": [round(each * 1e3, 2) for each in took[1:]],
        }

    def notes(self, result: Row) -> list[str]:
        """Give the medians over the queries of each scale."""
        return [
            f"Scale {scale:g}, median of {len(rows)} queries: {_median(rows, 'step_ms'):.2f} ms a step, "
            f"DuckDB {_median(rows, 'duckdb_ms'):.2f} ms; of the ratios {_median(rows, 'times'):.1f}."
            for scale in SCALES
            if (rows := _of(result, scale))
        ]

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars.

        The bars compare the median step with DuckDB's median, and limit how the median step grows with the scale.
        """
        large = _of(result, SCALES[1])
        if large:
            mine, theirs = _median(large, "step_ms"), _median(large, "duckdb_ms")
            said, line = f"{mine:.2f} ms, {theirs / mine:.1f} times", f"TPC-H scale 1, median of {len(large)} queries"
            yield within(line, said, f"{FASTER:g} times", theirs >= FASTER * mine, f"DuckDB {theirs:.1f} ms")
        numbers = {row["query"] for row in large if row["query"] not in GLOBAL}
        numbers &= {row["query"] for row in _of(result, SCALES[0])}
        if numbers:
            few, many = (_median([r for r in _of(result, s) if r["query"] in numbers], "step_ms") for s in SCALES)
            said = f"{many / few:.2f} times ({few:.2f} to {many:.2f} ms)"
            yield within("TPC-H, median step, scale 0.1 to 1", said, f"{GROWS:g} times", many <= GROWS * few)


def _of(result: Row, scale: float) -> list[Row]:
    return [row for row in result["results"] if row["scale"] == scale]


def _median(rows: list[Row], field: str) -> float:
    return median(row[field] for row in rows)


BENCH = Tpch()
