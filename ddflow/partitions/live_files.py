"""The files that each partition of a state holds, and the digests of an epoch that is given again.

Guarantees: the files come from inventories, read and checked as records. A digest covers the columns that the epoch was
given with, so an epoch from before an evolution is still recognised.

>>> from ddflow.storage.memory import MemoryStore
>>> store = MemoryStore()
>>> blob = store.put("json", lambda sink: sink.write(b'{"rows": ["00ff00ff00ff00ff-1.arrow", 4, "..."]}'))
>>> live = LiveFiles.read(store, (blob,), stages=2, partitions=1)
>>> live.whole, live.names() == {blob.name, "00ff00ff00ff00ff-1.arrow"}
(True, True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.schema import one_batch
from ddflow.columns.widening import narrowed
from ddflow.connectors.protocol import Fragment, Sink
from ddflow.errors import CorruptState, ReceiptsDisagree, StateRefused
from ddflow.partitions.chunks import PACKED, digests, payload_at, row_hashes, unpack, with_arrival
from ddflow.partitions.receipt import Receipt
from ddflow.partitions.stages import Stages
from ddflow.storage.inventory_text import inside, read
from ddflow.storage.protocol import Blob, Store

MOST = 3
"""Number of files that a message lists."""
PAST = 16
"""Number of earlier inventories of a part that a driver knows."""


@dataclass(frozen=True)
class LiveFiles:
    """``parts``: of each stage, by partition, its inventory; none before the first commit.  ``files``: what each names.

    ``whole``: whether one inventory is that of all stages.
    """

    parts: tuple[tuple[Blob, ...], ...]
    files: Mapping[tuple[int, int], frozenset[str]]
    whole: bool = False

    @classmethod
    def read(cls, store: Store, given: tuple[Blob, ...], stages: int, partitions: int) -> LiveFiles:
        """Read the files of a manifest's partitions.  O(bytes of the inventories).  Raises `CorruptState`."""
        parts = by_level(store.where, given, stages, partitions)
        whole = len(given) == partitions == 1 < stages
        files = {
            (stage, number): named(store, blob)
            for stage, blobs in enumerate(parts[:1] if whole else parts)
            for number, blob in enumerate(blobs)
        }
        return cls(parts, files, whole)

    @property
    def inventories(self) -> tuple[Blob, ...]:
        """The inventories in the order of a manifest."""
        return self.parts[0] if self.whole else tuple(blob for stage in self.parts for blob in stage)

    def names(self) -> set[str]:
        """Return the names of all files of the parts.  O(files)."""
        return {blob.name for blob in self.inventories}.union(*self.files.values())

    def after(self, store: Store, taken: Sequence[Receipt]) -> LiveFiles:
        """Return the inventories and files after an epoch.  ``taken``: a receipt a part, by stage.  O(files of the
        parts that changed).

        Raises `CorruptState` for a receipt that removes a file its part did not have, `ReceiptsDisagree` if only some
        stages of a state of one inventory wrote their own.
        """
        stages, partitions = taken[-1].stage + 1, taken[-1].number + 1
        blobs = tuple(each.inventory for each in taken)
        parts = tuple(blobs[stage * partitions : (stage + 1) * partitions] for stage in range(stages))
        if not self.whole:
            return LiveFiles(parts, {(each.stage, each.number): self._after(each) for each in taken})
        kept = [each.stage for each in taken if each.inventory == self.inventories[0]]
        if len(kept) == stages:
            return self
        if kept:
            raise ReceiptsDisagree(
                "commit an epoch",
                f"the stages {kept} keep {self.inventories[0].name}, the "
                "inventory of all stages, and others wrote their own",
                "open the parts of all stages once, even where no rows came",
            )
        return LiveFiles(parts, {(each.stage, each.number): named(store, each.inventory) for each in taken})

    def _after(self, receipt: Receipt) -> frozenset[str]:
        before = self.files.get((receipt.stage, receipt.number), frozenset())
        if not receipt.added and not receipt.gone:
            return before
        unknown = sorted(set(receipt.gone) - before)
        if unknown:
            raise CorruptState(
                f"the receipt of partition {receipt.number} on stage {receipt.stage}",
                f"it leaves {', '.join(unknown[:MOST])}, which its inventory had not",
                "it was not written by a task of ddflow; run the job again",
            )
        return before.difference(receipt.gone).union(blob.name for blob in receipt.added)


def by_level(where: str, given: tuple[Blob, ...], stages: int, partitions: int) -> tuple[tuple[Blob, ...], ...]:
    """Split the inventories of a manifest by stage and partition; one engine's inventory serves all stages.
    O(inventories).

    None before the first commit.  Raises `CorruptState` for another number of them.
    """
    if len(given) == partitions == 1:
        return (given,) * stages
    if len(given) not in (0, stages * partitions):
        raise CorruptState(
            f"open {where}",
            f"it has {len(given)} inventories, where the plan has {stages} stages of {partitions} partitions",
            "open it with the ddflow that it was written "
            "by, or bring it to one partition: ddflow rescale --partitions 1",
        )
    return tuple(given[at : at + partitions] for at in range(0, len(given), partitions))


def followed(
    before: tuple[tuple[Blob, ...], ...],
    now: tuple[tuple[Blob, ...], ...],
    past: tuple[tuple[tuple[str, ...], ...], ...],
) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Return the names of the inventories that led to each part of ``now``, newest first, `PAST` at most.

    ``past``: the same for ``before``.  O(parts).

    >>> one, two = Blob("a.json", 1, b""), Blob("b.json", 1, b"")
    >>> past = followed(((one, one),), ((two, one),), ())
    >>> past, followed(((two, one),), ((one, two),), past)
    (((('a.json',), ()),), ((('b.json', 'a.json'), ('a.json',)),))
    """
    if not before:
        return ()
    none = tuple(tuple(() for _ in stage) for stage in before)
    return tuple(
        tuple(names if one == other else (one.name, *names)[:PAST] for one, other, names in zip(*each, strict=True))
        for each in zip(before, now, past or none, strict=True)
    )


def named(store: Store, inventory: Blob) -> frozenset[str]:
    """Return the names of all files in an inventory.  O(bytes).  Raises `CorruptState`."""
    return frozenset(read(store, inventory).names)


def look(cut: Stages, taken: Sequence[Receipt], folder: bool) -> None:
    """Raise `CorruptState` for a receipt with names that the plan does not have.  O(receipts).

    ``folder``: whether outputs are in one.
    """
    inputs = set(cut.flow.inputs)
    for each in taken:
        told = {*each.rows, *each.greatest, *each.horizons, *each.said}
        wrong = sorted(told - (inputs if each.stage == 0 else set()))
        wrong += sorted(set(each.outputs) - set(cut.outputs[each.stage]))
        wrong += sorted({name for name, n in each.rows.items() if n} - set(each.digests))
        wrong += [blob.name for output in each.outputs.values() for blob in output.blobs if inside(blob) == folder]
        if wrong:
            raise CorruptState(
                f"the receipt of partition {each.number} on stage {each.stage}",
                f"it tells of {', '.join(wrong[:MOST])}, where the plan has no such thing",
                "run all tasks with the flow and the epoch start that the coordinator has",
            )


def look_for(store: Store, sink: Sink | None, epoch: int, taken: Sequence[Receipt], known: set[Blob]) -> None:
    """Raise `StateRefused` unless all new files exist, with the lengths in their receipts.  O(new files).

    Their readers compare the bytes.  Raises as the store does.
    """
    new = {blob for each in taken for blob in each.files() if inside(blob)} - known
    there: dict[str, int | None] = {**store.sizes([blob.name for blob in new])}
    if sink is not None:
        shown = {Fragment(name, b) for each in taken for name, output in each.outputs.items() for b in output.blobs}
        new |= {each.blob for each in shown}
        there |= {each.blob.name: sink.size(epoch, each) for each in shown}
    wrong = sorted(blob for blob in new if there.get(blob.name) != blob.length)
    if wrong:
        first = wrong[0]
        size = there.get(first.name)
        found = "is not there" if size is None else f"has {size:,} bytes, not the {first.length:,} that were written"
        raise StateRefused(
            f"commit epoch {epoch} of {store.where}",
            f"{len(wrong)} of {len(new)} files that tasks wrote are not in it: {first.name} {found}",
            "mount the same folder on the driver and all executors, or keep the state in s3://bucket/prefix",
        )


@dataclass(frozen=True)
class PastDigests:
    """``now``: the columns of each input's chunks, by its number.  ``past``: those it was given with then.

    >>> import ddflow as dd
    >>> from ddflow.partitions.partitioner import Partitioner
    >>> def chunks(kind, value):
    ...     flow = dd.Flow()
    ...     _ = flow.upserts("a", {"id": pa.int64(), "n": kind}, dd.Upsert(key="id"))
    ...     rows = pa.record_batch({"id": [1], "n": pa.array([value], kind)})
    ...     return [c for c in Partitioner(flow, "a", 1, Secret(1, 2))([rows], 0)][0], flow.inputs["a"].bound.schema
    >>> (then, narrow), (now, wide) = chunks(pa.int32(), 7), chunks(pa.float64(), 7.0)
    >>> again = PastDigests((wide,), (narrow,), Secret(1, 2))(now)
    >>> now.column("digest") == then.column("digest"), again.column("digest") == then.column("digest")
    (False, True)
    """

    now: tuple[pa.Schema, ...]
    past: tuple[pa.Schema, ...]
    secret: Secret

    def __call__(self, chunks: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the digests of chunks by digests over the past columns.  O(rows).  Raises `Misrouted`."""
        chunks = chunks.filter(chunks.column("payload").is_valid())
        payload = chunks.column("payload")
        told = zip(*(chunks.column(name).to_pylist() for name in ("what", "origin", "rows")), strict=True)
        found = starmap(self._digest, ((payload_at(payload, i), *each) for i, each in enumerate(told)))
        at = PACKED.get_field_index("digest")
        return chunks.set_column(at, PACKED.field(at), pa.array(list(found), pa.binary()))

    def _digest(self, payload: pa.Buffer, what: int, origin: str, rows: int) -> bytes:
        batch = unpack(payload, with_arrival(self.now[what], "/" in origin), rows)
        table = pa.Table.from_batches([batch])
        if "/" in origin:
            table = table.select(list(range(table.num_columns - 1)))  # the last says where rows stood
        then = one_batch(narrowed(table, self.past[what]))
        found: bytes = digests(row_hashes(then, self.secret), np.zeros(1, np.int64))[0].as_py()
        return found
