"""Define the records of an arrangement in an inventory: runs, merges in progress, and the files of batches.

Guarantees: every number is an int64 in its range or a uint64, and every file name has the form that a store makes. The
record of a batch never changes, and each batch is in an inventory only once, so the record is encoded only once.
Limits: only `checkpoint` checks that the time ranges of runs adjoin, when it restores an arrangement.

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
    """The record of a batch and its file.

    ``rows``: the number of rows.  ``bloom``: the file of the Bloom filter.  ``shape``: the position of the payload's
    list of columns in the arrangement's ``shapes``.
    """

    file: Blob
    rows: Positive
    bloom: Blob | None
    layout: FileLayout
    shape: Natural


class RunRecord(StrictRecord, frozen=True, tag="run"):
    """The record of a run.

    ``begin``: the first row of the first batch that no merge has processed.  ``batches``: the batches in hash order.
    """

    lower: Instant
    upper: Instant
    since: Instant
    begin: Natural
    batches: list[BatchRecord]


class MergeRecord(StrictRecord, frozen=True, tag="merge"):
    """The record of a merge in progress, with the fields of `RunMerge`. ``first`` is a uint64."""

    inputs: Annotated[list[RunRecord], Meta(min_length=1)]
    output: RunRecord
    whole: bool
    first: Word
    credit: Instant

    def __post_init__(self) -> None:
        if self.first >= 1 << 64:
            raise ValueError(f"its first identity is {self.first}, but identities are below 2**64")


class ArrangementRecord(StrictRecord, frozen=True):
    """The record of an arrangement.

    ``keys``: the number of keys, or the sum of all diffs.  ``shapes``: the lists of columns that payloads have or had.
    ``items``: runs and merges in order of time.
    """

    since: Instant
    upper: Instant
    latest: Instant
    keys: Instant
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
        """The batches of all runs."""
        for run in self.runs:
            yield from run.batches
