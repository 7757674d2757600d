"""Staying in the budget: what an engine moves to files, before and after a step, and how it takes a large step.

Invariant: nothing here changes what can be read; state and pending events only change places. When the disk is full,
the step that would have needed room fails before it has changed anything, and everything is as readable as before; so
room is made before rows are admitted, not only after they were taken in. Shares are the budget's; how to spill is
known to arrangements and batchers.

>>> import tempfile, pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> with tempfile.TemporaryDirectory() as place, flow.open(memory="16MB", spill=place) as engine:
...     _ = engine.step({"people": pa.table({"id": range(1000)})}, 0)
...     before = engine.stats()["bytes_mapped"]
...     make_room(engine.dataflow.budget, engine.dataflow.graph, {}, share=0)
...     before, engine.stats()["bytes_mapped"] > 8000, engine.read("people").num_rows
(0, True, 1000)
"""

from collections.abc import Mapping

import numpy as np

from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.budget import Budget
from ddflow.dataflow.graph import Graph, Released
from ddflow.dataflow.ranges import Ranges
from ddflow.operators.inputs import RunningInput
from ddflow.storage.files.batch_store import BatchStore


def make_room(budget: Budget, graph: Graph, batchers: Mapping[str, Batcher], share: int | None = None) -> None:
    """Bring state and pending events under their shares, or all state out of memory with a ``share`` of 0.

    O(1) where nothing is over; else the merges that are paid for.  Raises `SpillFull`, `SpillFailed`; what was moved
    until then has moved.
    """
    if budget.home is None:
        return
    arranged = list(graph.arrangements.values())
    total = sum(each.nbytes for each in arranged) or 1
    for each in arranged:
        # Each gets of the whole what it takes of it.
        each.spill(budget.home, budget.state * each.nbytes // total if share is None else share, budget.piece)
    for batcher in batchers.values():
        if batcher.nbytes > budget.pending:
            batcher.spill(budget.home, budget.pending // 2, budget.chunk)


class Release:
    """The events that ``batchers`` release before ``to``; in ranges on disk during the block, if they are many.

    ``inputs``: by name. O(events released). Raises `SpillFull`, `SpillFailed`. It is no generator, because a generator
    would take a tenth of the time of a step of one event.
    """

    def __init__(
        self, to: int, batchers: Mapping[str, Batcher], inputs: Mapping[str, RunningInput], budget: Budget
    ) -> None:
        self.to, self.batchers, self.inputs, self.budget = to, batchers, inputs, budget
        self.made: list[Ranges] = []

    def __enter__(self) -> dict[str, Released]:
        """Return the released events, by input."""
        scratch = self.budget.scratch
        if scratch is None:
            return {name: Released.of(batcher.peek(self.to)) for name, batcher in self.batchers.items()}
        try:
            return {name: self._release_input(name, batcher, scratch) for name, batcher in self.batchers.items()}
        except BaseException:
            self.__exit__()
            raise

    def _release_input(self, name: str, batcher: Batcher, scratch: BatchStore) -> Released:
        """Return the released events of one input, in ranges if they exceed the budget."""
        to, most = self.to, self.budget.rows((batcher.nbytes + batcher.mapped) / max(len(batcher), 1))
        if len(batcher) <= most:
            return Released.of(batcher.peek(to))
        count, parts = batcher.released(to)
        if count <= most:
            return Released.of(batcher.peek(to))
        ranges = Ranges(self.inputs[name].keys, scratch, 1 << min((count // most).bit_length(), 14))
        self.made.append(ranges)
        times = []
        for part in parts:
            ranges.add(part)
            times.append(np.unique(part.times))
        return Released(count, np.unique(np.concatenate(times)), ranges)

    def __exit__(self, *_: object) -> None:
        """Let the ranges go."""
        for ranges in self.made:
            ranges.close()
