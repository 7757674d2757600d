"""Define the records of an arrangement in an inventory: runs, merges in progress, and the files of batches.

Guarantees: every number is an int64 in its range or a uint64, and every file name is one that a store makes. A batch's
record is the same text wherever it appears, and appears once in an inventory, so a commit encodes it once.
Limits: `checkpoint` checks that the times of runs meet when it restores an arrangement.

>>> from ddflow.storage.fields import Decoder, decode_record, encode_record
>>> run = RunRecord(lower=0, upper=7, since=0, begin=0, batches=[])
>>> encode_record(run)
b'{"type":"run","lower":0,"upper":7,"since":0,"begin":0,"batches":[]}'
>>> merge = encode_record(MergeRecord([run], run, True, 2**64 - 1, -5))
>>> decode_record(Decoder(RunRecord | MergeRecord), merge, "m").credit
-5
"""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from ddflow.storage.fields import Instant, Natural, Positive, StrictRecord, Word
from ddflow.storage.protocol import Blob
from ddflow.trace.spill import FileLayout


class BatchRecord(StrictRecord, frozen=True):
    """The file of a batch.

    ``rows``: their number.  ``bloom``: the file of its Bloom filter.  ``shape``: the number of its payload's columns in
    the arrangement's ``shapes``.
    """

    file: Blob
    rows: Positive
    bloom: Blob | None
    layout: FileLayout
    shape: Natural


class RunRecord(StrictRecord, frozen=True, tag="run"):
    """A run.

    ``begin``: the first row of its first batch that no merge has taken.  ``batches``: in order.
    """

    lower: Instant
    upper: Instant
    since: Instant
    begin: Natural
    batches: list[BatchRecord]


class MergeRecord(StrictRecord, frozen=True, tag="merge"):
    """A merge in progress, with the fields of `RunMerge`.  ``first``: a uint64."""

    inputs: Annotated[list[RunRecord], Meta(min_length=1)]
    output: RunRecord
    whole: bool
    first: Word
    credit: Instant

    def __post_init__(self) -> None:
        if self.first >= 1 << 64:
            raise ValueError(f"its first identity is {self.first}, of which there is none")


class ArrangementRecord(StrictRecord, frozen=True):
    """An arrangement.

    ``shapes``: the lists of columns that payloads have or had.  ``items``: runs and merges in the order of their times.
    """

    since: Instant
    upper: Instant
    latest: Instant
    keys: Natural
    tombstones: Natural
    lapsed: Natural
    shapes: list[list[str]]
    items: list[RunRecord | MergeRecord]

    @property
    def runs(self) -> Iterator[RunRecord]:
        """All runs, including the inputs and outputs of merges."""
        for item in self.items:
            yield from [item] if isinstance(item, RunRecord) else [*item.inputs, item.output]

    @property
    def batches(self) -> Iterator[BatchRecord]:
        """All batches."""
        for run in self.runs:
            yield from run.batches
