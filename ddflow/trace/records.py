"""An arrangement as an inventory holds it: its runs, its merges under way, and the files of its batches.

Invariant: every number is an int64 in its range, or a uint64, and every file has a name that a store gives. What is
said of a batch is the same wherever it stands, and stands in one place, so that it is written once.
Whether runs follow each other is looked at where an arrangement is restored (``checkpoint``).

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
    """The file of a batch.  ``rows``: how many.  ``bloom``: the file of its Bloom filter.  ``shape``: which of the
    arrangement's ``shapes`` its payload has."""

    file: Blob
    rows: Positive
    bloom: Blob | None
    layout: FileLayout
    shape: Natural


class RunRecord(StrictRecord, frozen=True, tag="run"):
    """A run.  ``begin``: the first row of its first batch that a merge has not taken.  ``batches``: in their order."""

    lower: Instant
    upper: Instant
    since: Instant
    begin: Natural
    batches: list[BatchRecord]


class MergeRecord(StrictRecord, frozen=True, tag="merge"):
    """A merge under way, as `Merge` has it.  ``first``: a uint64."""

    inputs: Annotated[list[RunRecord], Meta(min_length=1)]
    output: RunRecord
    whole: bool
    first: Word
    credit: Instant

    def __post_init__(self) -> None:
        if self.first >= 1 << 64:
            raise ValueError(f"its first identity is {self.first}, of which there is none")


class ArrangementRecord(StrictRecord, frozen=True):
    """An arrangement.  ``shapes``: the columns that payloads have or had.  ``items``: runs and merges in the order of
    their times."""

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
        """All runs, also those of merges."""
        for item in self.items:
            yield from [item] if isinstance(item, RunRecord) else [*item.inputs, item.output]

    @property
    def batches(self) -> Iterator[BatchRecord]:
        """All batches."""
        for run in self.runs:
            yield from run.batches
