"""Measure the memory per key after a workload, once as the engine reports it and once as the system reports it.

Both figures are taken from the same engine at the same moment, and are divided by the number of keys. The engine's
``stats()`` counts the bytes of the index and of the batches. The system's figure is the growth of private pages
(RssAnon). The growth also includes scratch memory and freed memory that the allocator keeps. The smaller the state, the
larger the share of scratch memory and freed memory in the system's figure.

Limits: updates are dropped when they arrive.

>>> found = BENCH.measure("tiny")
>>> found["keys"], found["bytes_per_key"] > 16
(1920, True)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import memory
import ours
import workloads
from report import Bar, Row, within
from runner import Bench, Job

BYTES_PER_KEY = 100
DEFAULT = ("w1", "w3", "wide")


class Footprint(Bench):
    """The bench, with one job for each workload."""

    name = "footprint"
    about = "Footprint: memory held after a workload, steps of 100 k."
    figures = ("bytes_per_key",)
    quick = ({"workload": "w1s,w3s"}, {})
    columns = (
        "workload {workload} | keys {keys:,} | resident MB {bytes_resident!M:,.1f} | bytes a key {bytes_per_key:.1f} | "
        "private MB more {private!M:,.1f} | private bytes a key {private_per_key:.1f}"
    )

    def jobs(self) -> list[Job]:
        return [Job({"workload": name}, named=() if name in DEFAULT else ("workload",)) for name in workloads.SHAPES]

    def measure(self, workload: str) -> dict[str, Any]:
        """Run a workload in steps and measure its memory before the engine closes."""
        ours.warm()
        events = workloads.load(workload)
        memory.settled()
        before = memory.pages()
        with ours.plan(events.schema, "upsert").open(threads=1) as engine:
            for updates in ours.in_steps(engine, events):
                del updates
            ours.check_verdicts(engine, events.num_rows)
            stats = engine.stats()
            memory.settled()
            private = memory.pages().private - before.private
        return {
            "keys": stats["keys"],
            "bytes_resident": stats["bytes_resident"],
            "bytes_per_key": stats["bytes_resident"] / stats["keys"],
            "private": private,
            "private_per_key": private / stats["keys"],
            "arrangements": {name: dict(held) for name, held in stats["arrangements"].items()},
        }

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bar (target): bytes for each key after W1, as the engine reports them."""
        for row in result["results"]:
            if row["workload"] == "w1":
                held = row["bytes_per_key"]
                said = f"{held:.0f} bytes; RssAnon, with scratch: {row['private_per_key']:.0f}"
                yield within("bytes a key after W1", said, f"{BYTES_PER_KEY} bytes", held <= BYTES_PER_KEY)


BENCH = Footprint()
