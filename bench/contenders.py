"""List the contenders of `upsert`: name, threads, supported lines and row kinds, and output order.

A name means one way of working with one number of threads, so a figure never averages over settings. Ratios are taken
to ``numpy``, the plain whole-array way. The other numpy contenders show how much depends on how the code is written.
``limit`` shows what is left to gain.

>>> [name for name, contender in CONTENDERS.items() if contender.base]
['numpy']
>>> CONTENDERS["ddflow"].threads, CONTENDERS["ddflow"].takes("w1", "count"), CONTENDERS["numpy"].takes("w1", "count")
(1, True, False)
>>> [name for name, contender in CONTENDERS.items() if contender.takes("wide", "upsert")]
['ddflow', 'ddflow-2t', 'duckdb-wide-1t', 'duckdb-wide-2t']
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import workloads
from limit import limit, limit_plain
from ours import ddflow_steps
from peers import dict_loop, numpy_arrival, numpy_lexsort
from peers_sql import duckdb_steps, duckdb_whole, duckdb_wide_steps, polars_whole

PAIRS = ("ints", "texts")  # kinds of rows with one key and one value


class Contender(NamedTuple):
    """A way to do the work; ``run`` takes events, and the line if it has several, and returns tables of updates."""

    name: str
    run: Callable[..., list[pa.Table]]
    about: str
    threads: int = 1
    lines: tuple[str, ...] = ("upsert",)
    kinds: tuple[str, ...] = PAIRS
    ordered: bool = True  # whether its output is ordered by _time
    base: bool = False  # whether ratios are taken to it

    def takes(self, workload: str, line: str) -> bool:
        """Return whether the contender can run ``line`` on a workload."""
        return line in self.lines and line in workloads.lines(workload) and workloads.kind(workload) in self.kinds

    def __call__(self, events: pa.Table, line: str) -> list[pa.Table]:
        """Return the updates of ``line`` over ``events``."""
        return self.run(events, line) if len(self.lines) > 1 else self.run(events)


def _all() -> list[Contender]:
    every = ("ints", "texts", "wide")
    two, operators = partial(ddflow_steps, threads=2), workloads.LINES[:4]
    yours = [
        Contender("ddflow", ddflow_steps, "steps of 100 k rows; any arrival order", 1, workloads.LINES, every),
        Contender("ddflow-2t", two, "the same on two threads", 2, kinds=every),
        Contender("limit", limit, "a bare compiled loop, int64 only; events in time order", kinds=("ints",)),
        Contender("limit-plain", limit_plain, "the same, one event after another", kinds=("ints",)),
        Contender("dict", dict_loop, "a Python loop over a dict; events in time order", lines=operators),
        Contender("numpy", numpy_lexsort, "whole input: lexsort in, sort out; any arrival order", base=True),
        Contender("numpy-arrival", numpy_arrival, "whole input: one packed sort; events in time order"),
    ]
    for threads in (1, 2):
        whole, steps = partial(duckdb_whole, threads=threads), partial(duckdb_steps, threads=threads)
        wide, unordered = partial(duckdb_wide_steps, threads=threads), "the same, output in any order"
        any_order, polars_any = partial(whole, ordered=False), partial(polars_whole, ordered=False)
        yours += [
            Contender(f"duckdb-{threads}t", whole, "whole input: window lag; events in time order", threads),
            Contender(f"duckdb-unordered-{threads}t", any_order, unordered, threads, ordered=False),
            Contender(f"duckdb-steps-{threads}t", steps, "steps of 100 k rows against a state table", threads),
            Contender(f"duckdb-wide-{threads}t", wide, "the same, for wide rows", threads, kinds=("wide",)),
            Contender(f"polars-{threads}t", polars_whole, "whole input: sort and shift; events in time order", threads),
            Contender(f"polars-unordered-{threads}t", polars_any, unordered, threads, ordered=False),
        ]
    return yours


CONTENDERS = {contender.name: contender for contender in _all()}
