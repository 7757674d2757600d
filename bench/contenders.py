"""List the contenders of the bench `upsert`.

Each entry has a name, a number of threads, the supported lines and kinds of rows, and the output order.

Each name stands for one algorithm with one number of threads, so no figure mixes several settings. Each ratio compares
a contender with ``numpy``, the simplest program over complete arrays. The other contenders in numpy show how much speed
depends on how the program is written. ``limit`` shows how much faster ddflow could still become.

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
    """A program that turns events into updates.

    ``run`` takes the events, and also the line if the contender has several; it returns tables of updates.
    """

    name: str
    run: Callable[..., list[pa.Table]]
    about: str
    threads: int = 1
    lines: tuple[str, ...] = ("upsert",)
    kinds: tuple[str, ...] = PAIRS
    ordered: bool = True  # whether the output is ordered by _time
    base: bool = False  # whether ratios compare with this contender

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
