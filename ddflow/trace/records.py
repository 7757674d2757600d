"""An arrangement as an inventory holds it: its runs, its merges under way, and the files of its batches.

Invariant: every number is an int64 in its range, or a uint64, and every file has a name that a store gives. Whether
batches are there, and runs follow each other, is looked at where an arrangement is restored (``checkpoint``).

>>> from ddflow.storage.fields import Decoder, decoded, encoded
>>> run = RunRecord(lower=0, upper=7, since=0, parts=[(0, 0, 3)])
>>> encoded(run)
b'{"type":"run","lower":0,"upper":7,"since":0,"parts":[[0,0,3]]}'
>>> decoded(Decoder(RunRecord | MergeRecord), encoded(MergeRecord([run], run, True, 2**64 - 1, -5)), "m").credit
-5
"""

from typing import Annotated

from msgspec import Meta

from ddflow.storage.fields import Instant, Natural, Positive, Strict, Word
from ddflow.storage.protocol import Blob
from ddflow.trace.batch_file import Layout


class RunRecord(Strict, frozen=True, tag="run"):
    """A run.  ``parts``: of each the number of its batch, and where its rows begin and end."""

    lower: Instant
    upper: Instant
    since: Instant
    parts: list[tuple[Natural, Natural, Natural]]


class MergeRecord(Strict, frozen=True, tag="merge"):
    """A merge under way, as `Merge` has it.  ``first``: a uint64."""

    inputs: Annotated[list[RunRecord], Meta(min_length=1)]
    output: RunRecord
    whole: bool
    first: Word
    credit: Instant

    def __post_init__(self) -> None:
        if self.first >= 1 << 64:
            raise ValueError(f"its first identity is {self.first}, of which there is none")


class BatchRecord(Strict, frozen=True):
    """The file of a batch.  ``rows``: how many.  ``bloom``: the file of its Bloom filter.  ``shape``: which of the
    arrangement's ``shapes`` its payload has."""

    file: Blob
    rows: Positive
    bloom: Blob | None
    layout: Layout
    shape: Natural


class ArrangementRecord(Strict, frozen=True):
    """An arrangement.  ``shapes``: the columns that payloads have.  ``batches``: by number.  ``items``: runs and merges
    in the order of their times."""

    since: Instant
    upper: Instant
    latest: Instant
    keys: Natural
    tombstones: Natural
    lapsed: Natural
    shapes: list[list[str]]
    batches: list[BatchRecord]
    items: list[RunRecord | MergeRecord]
