"""Who takes part: each contender by name, with its threads, what it assumes and whether its output is in order.

Invariant: a name stands for one way of doing the work with one number of threads, so a figure is never an average over
settings.  Why that is not trivial: the ratio everybody quotes is to ``numpy``, the plain whole-array way; the
contenders beside it show how much of that is numpy and how much the way it was written.

>>> [name for name, contender in CONTENDERS.items() if contender.base]
['numpy']
>>> CONTENDERS["ddflow"].threads, CONTENDERS["ddflow"].takes("count"), CONTENDERS["numpy"].takes("count")
(1, True, False)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from ours import ddflow_steps
from peers import dict_loop, numpy_arrival, numpy_lexsort
from peers_sql import duckdb_steps, duckdb_whole, polars_whole


class Contender(NamedTuple):
    """One way to do the work; ``run`` takes the events (and the line, if ``lines``) and returns tables of updates."""

    name: str
    run: Callable[..., list[pa.Table]]
    about: str
    threads: int = 1
    lines: bool = False  # does it run the lines with operators too
    ordered: bool = True  # does its output come ordered by _time
    base: bool = False  # the one that ratios are taken to

    def takes(self, line: str) -> bool:
        """Whether it runs ``line``."""
        return self.lines or line == "upsert"

    def __call__(self, events: pa.Table, line: str) -> list[pa.Table]:
        """The updates of ``line`` over ``events``."""
        return self.run(events, line) if self.lines else self.run(events)


def _all() -> list[Contender]:
    yours = [
        Contender("ddflow", ddflow_steps, "steps of 100 k rows with state; any arrival order", lines=True),
        Contender("dict", dict_loop, "a Python loop over a dict; events in time order", lines=True),
        Contender("numpy", numpy_lexsort, "whole input: lexsort in, sort out; any arrival order", base=True),
        Contender("numpy-arrival", numpy_arrival, "whole input: one packed sort; events in time order"),
    ]
    for threads in (1, 2):
        whole, steps = partial(duckdb_whole, threads=threads), partial(duckdb_steps, threads=threads)
        yours += [
            Contender(f"duckdb-{threads}t", whole, "whole input: window lag; events in time order", threads),
            Contender(
                f"duckdb-unordered-{threads}t",
                partial(whole, ordered=False),
                "the same, output in any order",
                threads,
                ordered=False,
            ),
            Contender(f"duckdb-steps-{threads}t", steps, "steps of 100 k rows against a state table", threads),
            Contender(f"polars-{threads}t", polars_whole, "whole input: sort and shift; events in time order", threads),
            Contender(
                f"polars-unordered-{threads}t",
                partial(polars_whole, ordered=False),
                "the same, output in any order",
                threads,
                ordered=False,
            ),
        ]
    return yours


CONTENDERS = {contender.name: contender for contender in _all()}
