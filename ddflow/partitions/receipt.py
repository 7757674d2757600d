"""Check and sum the receipts of an epoch's tasks, and track which files the state has (`LiveFiles`).

A task reports its work as a `Receipt` in JSON. `gather_receipts` selects one receipt for each task, and sums the
selected receipts. `check_receipt_names` and `check_files_exist` compare the receipts with the plan and the store.

Guarantees: the driver checks each receipt before it uses the receipt. The driver uses one receipt for each task, so no
row counts twice. If two attempts at a task report different results, the driver raises `ReceiptsDisagree`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import xxhash
from msgspec import Meta
from msgspec.json import Decoder

from ddflow.connectors.parquet.sink import Fragment, OutputFolder
from ddflow.dataflow.inflow import add_to_counts
from ddflow.engine.checkpoint import Inventory
from ddflow.errors import CorruptState, MissingReceipts, ReceiptsDisagree, SpecError, StateRefused
from ddflow.partitions.chunks import add_digests
from ddflow.partitions.messages import MessageSummary, merge_summaries_by_input as said_together
from ddflow.partitions.stages import Stages
from ddflow.storage.epochs import Output, refuse_duplicate_files
from ddflow.storage.fields import (
    FileName,
    Hex,
    HexOrNone,
    Instant,
    Natural,
    NonceOrNone,
    StrictRecord,
    decode_record,
    encode_record,
)
from ddflow.storage.inventory_text import is_state_file, read_inventory_text
from ddflow.storage.manifest import PARTITIONS
from ddflow.storage.protocol import Blob, Store
from ddflow.time import NEVER

AGAIN: Final = "no task of ddflow wrote it; run the job again"
STAGES: Final = 1 << 10
"""The greatest number of stages that a receipt allows."""
Stage = Annotated[int, Meta(ge=0, lt=STAGES)]
Number = Annotated[int, Meta(ge=0, lt=PARTITIONS)]


class EpochContribution(StrictRecord, frozen=True, kw_only=True):
    """What one task, or all tasks together, contribute to an epoch.

    - ``outputs``: the new files of outputs, without empty outputs.
    - ``rows``, ``digests``: the counts and digests of received rows, by input. A digest has 32 hex digits, and does not
      depend on the order of rows.
    - ``counts``: the number of events by verdict.
    - ``greatest``: in hold-back mode, the greatest event time so far, by input.
    - ``horizons``: the greatest order so far, by input whose keys expire.
    - ``frontier``, ``last``, ``since``: the times of the state after the epoch.
    - ``figures``: measurements in microseconds and bytes, by name.
    - ``said``: the message summaries, by input.
    """

    outputs: dict[str, Output]
    rows: dict[str, Natural]
    digests: dict[str, Hex]
    counts: dict[str, Natural]
    greatest: dict[str, Instant]
    horizons: dict[str, Instant]
    frontier: Instant
    last: Instant
    since: Instant
    figures: dict[str, Natural]
    said: dict[str, MessageSummary]


class Receipt(EpochContribution, frozen=True, kw_only=True):
    """The receipt of the task for the stage ``stage`` and the partition ``number``.

    - ``started_from``: the digest of the manifest in the task's epoch start.
    - ``nonce``: the nonce of the writer of the task's files, "" if the task wrote no files.
    - ``inventory``: the inventory of the partition after the step.
    - ``outputs``: the new files of outputs, at most one file for each output.
    - ``added``: the files that this inventory has and the earlier inventory did not have.
    - ``gone``: the names of files that the earlier inventory had and this inventory does not have.
    - ``sent``: a hash of the rows for later stages that does not depend on their order, "" for no rows.

    >>> blob = Blob("00ff00ff00ff00ff-1.json", 40, bytes(16))
    >>> receipt = Receipt(stage=0, number=3, started_from="0" * 32, nonce="00ff00ff00ff00ff", inventory=blob, \
outputs={},
    ...                   rows={"orders": 2}, digests={"orders": "01" * 16}, counts={"applied": 2}, greatest={},
    ...                   horizons={}, frontier=8, last=7, since=7, added=(), gone=(), sent="", figures={"step": 900},
    ...                   said={})
    >>> Receipt.from_json(receipt.to_json(), "a task") == receipt
    True
    >>> Receipt.from_json(receipt.to_json().replace(b"-1.json", b"/../.js"), "the receipt of a task")
    Traceback (most recent call last):
        ...
    ddflow.errors.CorruptState: the receipt of a task: it is not a record of this format: Expected `str` matching ...
    """

    stage: Stage
    number: Number
    started_from: Hex
    nonce: NonceOrNone
    inventory: Blob
    added: tuple[Blob, ...]
    gone: tuple[FileName, ...]
    sent: HexOrNone

    @property
    def reproducible_content(self) -> dict[str, Any]:
        """The fields that are equal in all attempts with the same rows: all except the writer, files and speed."""
        return {
            "rows": {name: n for name, n in self.rows.items() if n},
            "digests": {name: digest for name, digest in self.digests.items() if self.rows.get(name)},
            "counts": dict(self.counts),
            "outputs": {name: each.rows for name, each in self.outputs.items()},
            "sent": self.sent,
            "frontier": self.frontier,
            "last": self.last,
            "since": self.since,
        }

    def claimed_files(self) -> Iterator[Blob]:
        """Yield all files that the receipt names: the inventory, the files added to it, and the files of outputs."""
        yield self.inventory
        yield from self.added
        for output in self.outputs.values():
            yield from output.blobs

    def to_json(self) -> bytes:
        """Encode the receipt as JSON.  O(files)."""
        return encode_record(self)

    @classmethod
    def from_json(cls, data: bytes, what: str) -> Receipt:
        """Decode a receipt. ``what``: a description for messages. O(bytes). Raises `CorruptState`."""
        receipt = decode_record(_DECODER, data, what, AGAIN)
        try:
            refuse_duplicate_files([receipt.outputs])
            receipt._check_writer()
        except ValueError as error:
            raise CorruptState(what, str(error), AGAIN) from None
        return receipt

    def _check_writer(self) -> None:
        """Raise `ValueError` unless all new files were written by the writer whose nonce is in the receipt."""
        own = f"{self.nonce}-"
        for blob in (*self.added, *(blob for output in self.outputs.values() for blob in output.blobs)):
            if not (self.nonce and blob.name.startswith(own)):
                raise ValueError(
                    f"it names the file {blob.name}, but its writer {self.nonce!r} did not write that file"
                )
        if self.nonce and not self.inventory.name.startswith(own):
            raise ValueError(
                f"it names the inventory {self.inventory.name}, but its writer {self.nonce!r} did not write that file"
            )


_DECODER: Final = Decoder(Receipt)


class PartitionShare(StrictRecord, frozen=True):
    """The rows that a task moves to the new partition ``to``. ``inventory``: the inventory of only these rows."""

    to: Number
    inventory: Inventory


class RewriteTaskResult(StrictRecord, frozen=True):
    """The result of one task of a rewrite.

    - ``shares``: the shares of the new partitions.
    - ``added``: the files that the shares name.
    - ``versions``, ``pending``: the number of row versions and of pending events in these files.
    - ``figures``: measurements in microseconds and bytes, by name.
    """

    stage: Stage
    number: Number
    shares: tuple[PartitionShare, ...]
    added: tuple[Blob, ...]
    versions: Natural
    pending: Natural
    figures: dict[str, Natural]

    def to_json(self) -> bytes:
        """Encode the result as JSON.  O(files)."""
        return encode_record(self)

    @classmethod
    def from_json(cls, data: bytes, what: str) -> RewriteTaskResult:
        """Decode a result. ``what``: a description for messages. O(bytes). Raises `CorruptState`."""
        return decode_record(_SHARES, data, what, AGAIN)


_SHARES: Final = Decoder(RewriteTaskResult)


class EpochResult(NamedTuple):
    """The result of a committed epoch.

    - ``time``: the time of the epoch's updates.
    - ``counts``: the number of events by verdict.
    - ``rows``: the number of received rows, by input.
    - ``outputs``: the new files of outputs by name, without empty outputs.
    - ``figures``: measurements of all tasks.
    - ``replayed``: whether the epoch was committed before.
    """

    epoch: int
    time: int
    frontier: int
    counts: Mapping[str, int]
    rows: Mapping[str, int]
    outputs: Mapping[str, Output]
    figures: Mapping[str, int]
    replayed: bool


MOST: Final = 10
"""The maximal number of partitions that an error message lists."""
ROWS: Final = "rows of "
"""The beginning of the name of every figure that counts the rows of an input. The input's name follows."""
OWED: Final = "held by new outputs"
"""The name of the figure that counts the rows from the backfill of new outputs."""
_NOT_ADDED: Final = ("memory", "part_cache")
"""The figures of an epoch that are the maximum over its tasks, not the sum."""


def gather_receipts(
    receipts: Iterable[Receipt], started_from: str, stages: int, partitions: int
) -> tuple[tuple[Receipt, ...], EpochContribution]:
    """Select one receipt for each task, and sum the selected receipts. O(receipts).

    Returns the selected receipts, ordered by stage and partition, and their sum. ``started_from``: the digest of the
    manifest that all tasks started from. Raises `MissingReceipts`, which names the partitions, `ReceiptsDisagree`, and
    `SpecError` for a receipt of another epoch or plan.

    >>> def receipt(number, rows):
    ...     file = Blob(f"{number:016x}-1.json", 9, bytes(16))
    ...     return Receipt(stage=0, number=number, started_from="b" * 32, nonce=file.name[:16], inventory=file, \
outputs={},
    ...                    rows={"orders": rows}, digests={"orders": "01" * 16}, counts={"applied": rows}, greatest={},
    ...                    horizons={}, frontier=8, last=7, since=7, added=(), gone=(), sent="",
    ...                    figures={"step": 5, "memory": 70}, said={})
    >>> _, whole = gather_receipts([receipt(1, 2), receipt(0, 3), receipt(1, 2)], "b" * 32, stages=1, partitions=2)
    >>> whole.rows, whole.counts, whole.frontier, whole.figures
    ({'orders': 5}, {'applied': 5}, 8, {'step': 10, 'memory': 70})
    >>> gather_receipts([receipt(1, 2)], "b" * 32, stages=1, partitions=3)
    Traceback (most recent call last):
        ...
    ddflow.errors.MissingReceipts: commit an epoch of 1 stages and 3 partitions: there is no receipt of partitions \
[0, ...
    """
    taken = _select_receipts(receipts, started_from, stages, partitions)
    frontiers = {each.frontier: each for each in taken}
    if len(frontiers) > 1:
        first, second = list(frontiers.values())[:2]
        raise ReceiptsDisagree(
            "commit an epoch",
            f"{_describe_task(first)} closed to {first.frontier}, {_describe_task(second)} to {second.frontier}",
            "pass the same epoch start to all tasks of an epoch",
        )
    files, rows = defaultdict[str, list[Blob]](list), defaultdict[str, int](int)
    for each in taken:
        for name, output in each.outputs.items():
            files[name] += output.blobs
            rows[name] += output.rows
    return taken, EpochContribution(
        rows=_sum_by_name(each.rows for each in taken),
        digests=sum_digests(each.digests for each in taken),
        counts=_sum_by_name(each.counts for each in taken),
        outputs={name: Output(tuple(blobs), rows[name]) for name, blobs in sorted(files.items())},
        greatest=max_by_name(each.greatest for each in taken),
        horizons=max_by_name(each.horizons for each in taken),
        frontier=taken[0].frontier,
        last=max(each.last for each in taken),
        since=max(each.since for each in taken),
        figures=_sum_figures(each.figures for each in taken),
        said=said_together(each.said for each in taken),
    )


def join_outputs(one: Mapping[str, Output], other: Mapping[str, Output]) -> dict[str, Output]:
    """Combine the new files that two steps wrote for outputs. The result is sorted by output name. O(files)."""
    none = Output((), 0)
    pairs = {name: (one.get(name, none), other.get(name, none)) for name in sorted({*one, *other})}
    return {name: Output((*a.blobs, *b.blobs), a.rows + b.rows) for name, (a, b) in pairs.items()}


def digest_call(kind: str, time: int, rows: Mapping[str, int], digests: Mapping[str, str]) -> str:
    """Compute a hash of a call, 32 hex digits, from the row counts and digests of its inputs. O(inputs).

    The hash is the same whether an input has no rows or is missing.
    """
    out = xxhash.xxh3_128(f"{kind} {time}".encode())
    for name in sorted(rows):
        if rows[name]:
            out.update(f"\n{len(name)} {name} {rows[name]} {digests[name]}".encode())
    return out.hexdigest()


def sum_digests(digests: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Sum the digests of rows by input. The order of the digests does not matter. O(digests)."""
    by_input = defaultdict(list)
    for each in digests:
        for name, digest in each.items():
            by_input[name].append(bytes.fromhex(digest))
    return {name: add_digests(*each).hex() for name, each in by_input.items()}


def max_by_name(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return for each name the greatest of its numbers. O(numbers)."""
    out: dict[str, int] = {}
    for numbers in each:
        for name, number in numbers.items():
            out[name] = max(out.get(name, NEVER), number)
    return out


def _select_receipts(
    receipts: Iterable[Receipt], started_from: str, stages: int, partitions: int
) -> tuple[Receipt, ...]:
    """Select one receipt for each task, in the order of the tasks."""
    taken: dict[tuple[int, int], Receipt] = {}
    asked = f"commit an epoch of {stages} stages and {partitions} partitions"
    for each in receipts:
        if each.started_from != started_from:
            raise SpecError(
                asked,
                f"{_describe_task(each)} started from the manifest with digest {each.started_from}, not from "
                f"{started_from}",
                "it is of another epoch: pass the receipts of the tasks of this epoch start",
            )
        if not (each.stage < stages and each.number < partitions):
            raise SpecError(
                asked, f"there is a receipt of {_describe_task(each)}", "run tasks with the flow of the epoch start"
            )
        first = taken.setdefault((each.stage, each.number), each)
        if first is not each and first.reproducible_content != each.reproducible_content:
            differs = [
                name for name, value in first.reproducible_content.items() if value != each.reproducible_content[name]
            ]
            raise ReceiptsDisagree(
                asked,
                f"two attempts at {_describe_task(each)} differ in {', '.join(differs)}: "
                + "; ".join(f"{first.reproducible_content[n]} and {each.reproducible_content[n]}" for n in differs[:2]),
                "a function of the plan, or an input, returned other rows when it ran again: make it repeatable",
            )
    for stage in range(stages):
        missing = [number for number in range(partitions) if (stage, number) not in taken]
        if missing:
            more = f" and {len(missing) - MOST} more" if len(missing) > MOST else ""
            raise MissingReceipts(
                asked,
                f"there is no receipt of partitions {missing[:MOST]}{more} on stage {stage}",
                "nothing was committed; run the job again, and do not filter the rows of its shuffle",
            )
    return tuple(taken[stage, number] for stage in range(stages) for number in range(partitions))


def _describe_task(receipt: Receipt) -> str:
    return f"partition {receipt.number} on stage {receipt.stage}"


def _sum_by_name(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for numbers in each:
        add_to_counts(out, numbers)
    return out


def _sum_figures(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    every = list(each)
    most = max_by_name({name: figures[name] for name in _NOT_ADDED if name in figures} for figures in every)
    return _sum_by_name(every) | most


FEW: Final = 3
"""The maximal number of files that an error message lists."""
PAST: Final = 16
"""Number of earlier inventories that the driver remembers for each partition."""


@dataclass(frozen=True)
class LiveFiles:
    """The files of a state's newest version.

    ``parts``: the inventories of each stage by partition; empty before the first commit. ``files``: the names of the
    files in each inventory, by stage and partition. ``whole``: whether one inventory covers all stages.

    >>> from ddflow.storage.memory import MemoryStore
    >>> store = MemoryStore()
    >>> blob = store.put("json", b'{"rows": ["00ff00ff00ff00ff-1.arrow", 4, "..."]}')
    >>> live = LiveFiles.load(store, (blob,), stages=2, partitions=1)
    >>> live.whole, live.file_names() == {blob.name, "00ff00ff00ff00ff-1.arrow"}
    (True, True)
    """

    parts: tuple[tuple[Blob, ...], ...]
    files: Mapping[tuple[int, int], frozenset[str]]
    whole: bool = False

    @classmethod
    def load(cls, store: Store, given: tuple[Blob, ...], stages: int, partitions: int) -> LiveFiles:
        """Load the names of the files of all partitions. O(bytes of the inventories). Raises `CorruptState`."""
        parts = split_inventories_by_stage(store.where, given, stages, partitions)
        whole = len(given) == partitions == 1 < stages
        files = {
            (stage, number): list_inventory_files(store, blob)
            for stage, blobs in enumerate(parts[:1] if whole else parts)
            for number, blob in enumerate(blobs)
        }
        return cls(parts, files, whole)

    @property
    def inventories(self) -> tuple[Blob, ...]:
        """All inventories, in the order in which a manifest lists them."""
        return self.parts[0] if self.whole else tuple(blob for stage in self.parts for blob in stage)

    def file_names(self) -> set[str]:
        """Return the names of all files of all partitions. O(files)."""
        return {blob.name for blob in self.inventories}.union(*self.files.values())

    def apply_receipts(self, store: Store, taken: Sequence[Receipt]) -> LiveFiles:
        """Return the `LiveFiles` of the state after an epoch. O(files of the changed partitions).

        ``taken``: one receipt for each partition, by stage. Raises `CorruptState` if a receipt removes a file that its
        partition did not have. Raises `ReceiptsDisagree` if one inventory covered all stages before the epoch, and then
        only some stages wrote a separate inventory.
        """
        stages, partitions = taken[-1].stage + 1, taken[-1].number + 1
        blobs = tuple(each.inventory for each in taken)
        parts = tuple(blobs[stage * partitions : (stage + 1) * partitions] for stage in range(stages))
        if not self.whole:
            return LiveFiles(parts, {(each.stage, each.number): self._list_files_after_receipt(each) for each in taken})
        kept = [each.stage for each in taken if each.inventory == self.inventories[0]]
        if len(kept) == stages:
            return self
        if kept:
            raise ReceiptsDisagree(
                "commit an epoch",
                f"the stages {kept} keep {self.inventories[0].name}, the "
                "inventory of all stages, but other stages wrote their own inventory",
                "open the partitions of all stages once, even without rows",
            )
        return LiveFiles(
            parts, {(each.stage, each.number): list_inventory_files(store, each.inventory) for each in taken}
        )

    def _list_files_after_receipt(self, receipt: Receipt) -> frozenset[str]:
        before = self.files.get((receipt.stage, receipt.number), frozenset())
        if not receipt.added and not receipt.gone:
            return before
        unknown = sorted(set(receipt.gone) - before)
        if unknown:
            raise CorruptState(
                f"the receipt of partition {receipt.number} on stage {receipt.stage}",
                f"it removes {', '.join(unknown[:FEW])}, but its inventory did not have them",
                "no task of ddflow wrote it; run the job again",
            )
        return before.difference(receipt.gone).union(blob.name for blob in receipt.added)


def split_inventories_by_stage(
    where: str, given: tuple[Blob, ...], stages: int, partitions: int
) -> tuple[tuple[Blob, ...], ...]:
    """Split the inventories of a manifest by stage and partition. O(inventories).

    The single inventory of a local engine covers all stages. The function returns () before the first commit. Raises
    `CorruptState` for a wrong number of inventories.
    """
    if len(given) == partitions == 1:
        return (given,) * stages
    if len(given) not in (0, stages * partitions):
        raise CorruptState(
            f"open {where}",
            f"it has {len(given)} inventories, but the plan has {stages} stages of {partitions} partitions",
            "open it with the version of ddflow that "
            "wrote it, or rescale it to one partition: ddflow rescale --partitions 1",
        )
    return tuple(given[at : at + partitions] for at in range(0, len(given), partitions))


def extend_inventory_history(
    before: tuple[tuple[Blob, ...], ...],
    now: tuple[tuple[Blob, ...], ...],
    past: tuple[tuple[tuple[str, ...], ...], ...],
) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Return the names of earlier inventories for each partition, newest first, at most `PAST` names.

    ``now``, ``before``: the inventories of the newest version and of the version before, by stage and partition.
    ``past``: the result for ``before``. O(partitions).

    >>> one, two = Blob("a.json", 1, b""), Blob("b.json", 1, b"")
    >>> past = extend_inventory_history(((one, one),), ((two, one),), ())
    >>> past, extend_inventory_history(((two, one),), ((one, two),), past)
    (((('a.json',), ()),), ((('b.json', 'a.json'), ('a.json',)),))
    """
    if not before:
        return ()
    none = tuple(tuple(() for _ in stage) for stage in before)
    return tuple(
        tuple(names if one == other else (one.name, *names)[:PAST] for one, other, names in zip(*each, strict=True))
        for each in zip(before, now, past or none, strict=True)
    )


def list_inventory_files(store: Store, inventory: Blob) -> frozenset[str]:
    """Return the names of all files that an inventory lists. O(bytes). Raises `CorruptState`."""
    return frozenset(read_inventory_text(store, inventory).file_names)


def check_receipt_names(cut: Stages, taken: Sequence[Receipt], folder: bool) -> None:
    """Raise `CorruptState` for a receipt with an input, output or file name that the plan does not allow. O(receipts).

    ``folder``: whether outputs are written to an output folder.
    """
    inputs = set(cut.flow.inputs)
    for each in taken:
        told = {*each.rows, *each.greatest, *each.horizons, *each.said}
        wrong = sorted(told - (inputs if each.stage == 0 else set()))
        wrong += sorted(set(each.outputs) - set(cut.outputs[each.stage]))
        wrong += sorted({name for name, n in each.rows.items() if n} - set(each.digests))
        wrong += [
            blob.name for output in each.outputs.values() for blob in output.blobs if is_state_file(blob) == folder
        ]
        if wrong:
            raise CorruptState(
                f"the receipt of partition {each.number} on stage {each.stage}",
                f"it names {', '.join(wrong[:FEW])}, which the plan does not have",
                "run all tasks with the flow and the epoch start of the driver",
            )


def check_files_exist(
    store: Store, sink: OutputFolder | None, epoch: int, taken: Sequence[Receipt], known: set[Blob]
) -> None:
    """Raise `StateRefused` unless all new files exist with the lengths in their receipts. O(new files).

    Readers verify the contents of the files later. The function also raises the errors of the store.
    """
    new = {blob for each in taken for blob in each.claimed_files() if is_state_file(blob)} - known
    there: dict[str, int | None] = {**store.find_blob_sizes([blob.name for blob in new])}
    if sink is not None:
        shown = {Fragment(name, b) for each in taken for name, output in each.outputs.items() for b in output.blobs}
        new |= {each.blob for each in shown}
        there |= {each.blob.name: sink.find_fragment_size(epoch, each) for each in shown}
    wrong = sorted(blob for blob in new if there.get(blob.name) != blob.length)
    if wrong:
        first = wrong[0]
        size = there.get(first.name)
        found = "is missing" if size is None else f"has {size:,} bytes, not the {first.length:,} that were written"
        raise StateRefused(
            f"commit epoch {epoch} of {store.where}",
            f"{len(wrong)} of {len(new)} files that tasks wrote are missing or incomplete: {first.name} {found}",
            "mount the same folder on the driver and all executors, or keep the state in s3://bucket/prefix",
        )
