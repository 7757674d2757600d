"""Stay within the memory budget: move state to files before and after a step, and split a step that needs more memory.

Guarantees: state and pending events are spilled before rows are admitted. So a failed spill loses no rows. If a step is
too large, its events are sorted on disk into ranges of identities by a stable sort. Then the ranges are resolved one by
one.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, RowHasher
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.budget import MemoryBudget
from ddflow.dataflow.graph import Graph, ReleasedEvents
from ddflow.operators.inputs import RunningInput
from ddflow.operators.upsert.events import Events, merge_events
from ddflow.storage.files.batch_store import BatchStore, StoredBatch


class EventRanges:
    """Events that are stored on disk, grouped by ranges of identities.

    ``keys``: the hasher of the key columns. ``count``: the number of ranges, a power of two.

    >>> import tempfile, numpy as np
    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.upsert.events import Events
    >>> events = pa.record_batch({"k": pa.array(range(100), pa.int64())})
    >>> times = np.zeros(100, np.int64)
    >>> from ddflow.storage.folder.scratch import ScratchStore
    >>> with tempfile.TemporaryDirectory() as place, BatchStore(ScratchStore(place)) as scratch:
    ...     ranges = EventRanges(RowHasher(events.schema, Secret(1, 2)), scratch, 4)
    ...     ranges.add(Events(events, times, times, np.arange(100)))
    ...     sizes = [part.times.size for part in ranges]
    >>> len(sizes), sum(sizes)
    (4, 100)
    """

    def __init__(self, keys: RowHasher, scratch: BatchStore, count: int) -> None:
        self.keys, self.scratch = keys, scratch
        self.bits = count.bit_length() - 1
        self.pieces: list[tuple[StoredBatch, Ints]] = []

    def add(self, events: Events) -> None:
        """Write events to a file, sorted by their ranges. O(n). Raises `SpillFull`, `SpillFailed`."""
        rows, (high, _) = events.rows, self.keys.identify_rows(events.rows)
        # Shift in two parts, because a single shift by all 64 bits would leave a word unchanged.
        at = (high >> np.uint64(63) >> np.uint64(1) if not self.bits else high >> np.uint64(64 - self.bits)).astype(
            np.uint16
        )
        order = np.argsort(at, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=1 << self.bits))])
        numbers = [events.times, events.original, events.arrival]
        arrays = [pa.array(np.ascontiguousarray(column)) for column in numbers]
        fields = [pa.field(f"_{i}", pa.int64(), nullable=False) for i in range(3)]
        batch = pa.RecordBatch.from_arrays([*rows.columns, *arrays], schema=pa.schema([*rows.schema, *fields]))
        self.pieces.append((self.scratch.write(batch.take(pa.array(order))), ends))

    def __iter__(self) -> Iterator[Events]:
        for number in range(1 << self.bits):
            parts = [
                _slice_events(piece.batch, int(ends[number]), int(ends[number + 1]))
                for piece, ends in self.pieces
                if ends[number] < ends[number + 1]
            ]
            if parts:
                yield merge_events(parts)

    def close(self) -> None:
        """Remove the files."""
        for piece, _ in self.pieces:
            piece.drop()
        self.pieces.clear()


def _slice_events(batch: pa.RecordBatch, begin: int, end: int) -> Events:
    part = batch.slice(begin, end - begin)
    width = batch.num_columns - 3
    events = pa.RecordBatch.from_arrays(part.columns[:width], schema=pa.schema(list(batch.schema)[:width]))
    return Events(events, *(part.column(width + i).to_numpy() for i in range(3)))


def spill_to_fit_budget(
    budget: MemoryBudget, graph: Graph, batchers: Mapping[str, Batcher], share: int | None = None
) -> None:
    """Move state and pending events to files until both fit their shares of the budget.

    With ``share=0``, move all state to files. O(1) if nothing exceeds its share, else the cost of merging the state.
    Raises `SpillFull`, `SpillFailed`. After an error, state that was already moved stays in files.

    >>> import tempfile, pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> with tempfile.TemporaryDirectory() as place, flow.open(memory="16MB", spill=place) as engine:
    ...     _ = engine.step({"people": pa.table({"id": range(1000)})}, 0)
    ...     before = engine.stats()["bytes_mapped"]
    ...     spill_to_fit_budget(engine.dataflow.budget, engine.dataflow.graph, {}, share=0)
    ...     before, engine.stats()["bytes_mapped"] > 8000, engine.read("people").num_rows
    (0, True, 1000)
    """
    if budget.home is None:
        return
    arranged = list(graph.arrangements.values())
    total = sum(each.nbytes for each in arranged) or 1
    for each in arranged:
        # The share of an arrangement is in proportion to its size.
        each.spill(budget.home, budget.state * each.nbytes // total if share is None else share, budget.piece)
    for batcher in batchers.values():
        if batcher.nbytes > budget.pending:
            batcher.spill(budget.home, budget.pending // 2, budget.chunk)


class EventRelease:
    """A context manager for the events with times before ``to``, which ``batchers`` release.

    During the block, the events of a large step are on disk, grouped by ranges of identities. ``inputs``: the inputs,
    by name. O(events released). Raises `SpillFull`, `SpillFailed`. The context manager is a class, because a generator
    would slow down small steps.
    """

    def __init__(
        self, to: int, batchers: Mapping[str, Batcher], inputs: Mapping[str, RunningInput], budget: MemoryBudget
    ) -> None:
        self.to, self.batchers, self.inputs, self.budget = to, batchers, inputs, budget
        self.made: list[EventRanges] = []

    def __enter__(self) -> dict[str, ReleasedEvents]:
        """Return the released events of each input."""
        scratch = self.budget.scratch
        if scratch is None:
            released = {}
            for name, batcher in self.batchers.items():
                if batcher.pending and (events := batcher.peek(self.to)) is not None:
                    released[name] = ReleasedEvents.from_parts(events)
            return released
        try:
            return {name: self._release_input(name, batcher, scratch) for name, batcher in self.batchers.items()}
        except BaseException:
            self.__exit__()
            raise

    def _release_input(self, name: str, batcher: Batcher, scratch: BatchStore) -> ReleasedEvents:
        """Return the released events of one input.

        If the events exceed the budget, they are grouped into ranges of identities.
        """
        to, most = self.to, self.budget.compute_max_rows((batcher.nbytes + batcher.mapped_bytes) / max(len(batcher), 1))
        if len(batcher) <= most:
            return ReleasedEvents.from_parts(batcher.peek(to))
        count, parts = batcher.peek_in_chunks(to)
        if count <= most:
            return ReleasedEvents.from_parts(batcher.peek(to))
        ranges = EventRanges(self.inputs[name].keys, scratch, 1 << min((count // most).bit_length(), 14))
        self.made.append(ranges)
        times = []
        for part in parts:
            ranges.add(part)
            times.append(np.unique(part.times))
        return ReleasedEvents(count, np.unique(np.concatenate(times)), ranges)

    def __exit__(self, *_: object) -> None:
        """Remove the files that contain the ranges."""
        for ranges in self.made:
            ranges.close()
