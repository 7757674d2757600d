"""Footprint: what a key takes in memory after a workload, by two accounts.

Invariant: the engine's own account (``stats()``: index and batches) and the system's (private pages, RssAnon, after
less before) are taken of one engine at one moment and divided by the keys it then holds. The first leaves out scratch,
allocators' leftovers and whatever was forgotten. The second has them all, and the smaller the state the more of it
belongs to no key. Limits: updates are dropped as they come.

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
    """The jobs: a workload each."""

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
        """Take a workload in steps and say what is held before the engine is closed."""
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
        """Bytes a key after W1, by the engine's account."""
        for row in result["results"]:
            if row["workload"] == "w1":
                held = row["bytes_per_key"]
                said = f"{held:.0f} bytes; RssAnon, with scratch: {row['private_per_key']:.0f}"
                yield within("bytes a key after W1", said, f"{BYTES_PER_KEY} bytes", held <= BYTES_PER_KEY)


BENCH = Footprint()
