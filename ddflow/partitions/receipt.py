"""A receipt: what a task did, for the driver to take or to leave.

Invariant: what `Receipt.from_json` gives is of the types and within the ranges that a receipt has, and names files that
its own writer put, or its epoch start had; two receipts of the same rows agree in `Receipt.content`, whoever wrote
them. A task may be run twice, speculatively or again, and both may be told; their files differ in name and length
(merges depend on what is kept in memory), so what they must agree in is what the rows made of them, and nothing else.
It travels as a value of one row, through a shuffle that others could write to, so it is read with suspicion. It does
not look whether files are there (``commit``).

>>> blob = Blob("00ff00ff00ff00ff-1.json", 40, bytes(16))
>>> receipt = Receipt(stage=0, number=3, started_from="0" * 32, nonce="00ff00ff00ff00ff", inventory=blob, outputs={},
...                   rows={"orders": 2}, digests={"orders": "01" * 16}, counts={"applied": 2}, greatest={},
...                   horizons={}, frontier=8, last=7, since=7, added=(), gone=(), sent="", figures={"step": 900},
...                   said={})
>>> Receipt.from_json(receipt.to_json(), "a task") == receipt
True
>>> Receipt.from_json(receipt.to_json().replace(b"-1.json", b"/../.js"), "the receipt of a task")
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: the receipt of a task: it is no record of this format: Expected `str` matching regex ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta
from msgspec.json import Decoder

from ddflow.errors import CorruptState
from ddflow.partitions.said import Said
from ddflow.storage.epochs import Output, check_files
from ddflow.storage.fields import (
    FileName,
    Hex,
    HexOrNone,
    Instant,
    Natural,
    NonceOrNone,
    Strict,
    decoded,
    encoded,
)
from ddflow.storage.manifest import PARTITIONS
from ddflow.storage.protocol import Blob

AGAIN: Final = "it was not written by a task of ddflow; run the job again"
STAGES: Final = 1 << 10
"""The greatest number of stages that a receipt may be of."""


class Contribution(Strict, frozen=True, kw_only=True):
    """The contribution of one task to an epoch, or of all tasks.

    ``outputs``: what outputs gained, where not empty.  ``rows``, ``digests``: of the rows that came, by input;
    order-free, 32 hex digits.  ``counts``: events by verdict.  ``greatest``: by input, the greatest event time ever,
    hold-back mode.  ``horizons``: by input whose keys expire, the greatest order so far.  ``frontier``, ``last``,
    ``since``: after it.  ``figures``: microseconds and bytes.  ``said``: by input, what its messages say of it.
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
    said: dict[str, Said]


class Receipt(Contribution, frozen=True, kw_only=True):
    """The receipt of the task of a ``stage`` and partition ``number``.

    ``started_from``: digest of the manifest of its epoch start.  ``nonce``: of the writer of its files, "" where it
    wrote none.  ``inventory``: of what it holds now.  ``outputs``: a file each.  ``added``: files that the inventory
    names and that of its epoch start did not; ``gone``: names of which the reverse is true.  ``sent``: of the sums
    passed on, order-free, "" for none.
    """

    stage: Annotated[int, Meta(ge=0, lt=STAGES)]
    number: Annotated[int, Meta(ge=0, lt=PARTITIONS)]
    started_from: Hex
    nonce: NonceOrNone
    inventory: Blob
    added: tuple[Blob, ...]
    gone: tuple[FileName, ...]
    sent: HexOrNone

    @property
    def content(self) -> dict[str, Any]:
        """The parts that agree for all tasks with the same rows: neither the writer, nor the files, nor the speed."""
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

    def files(self) -> Iterator[Blob]:
        """Yield all files that the receipt claims: its inventory, the new files in that, and the files of its
        outputs."""
        yield self.inventory
        yield from self.added
        for output in self.outputs.values():
            yield from output.blobs

    def to_json(self) -> bytes:
        """Encode the receipt as JSON.  O(files)."""
        return encoded(self)

    @classmethod
    def from_json(cls, data: bytes, what: str) -> Receipt:
        """Decode a receipt.  ``what``: its task, for messages.  O(bytes).  Raises `CorruptState`."""
        receipt = decoded(_DECODER, data, what, AGAIN)
        try:
            check_files([receipt.outputs])
            receipt._look()
        except ValueError as error:
            raise CorruptState(what, str(error), AGAIN) from None
        return receipt

    def _look(self) -> None:
        """Raise `ValueError` unless its own writer wrote all new files."""
        own = f"{self.nonce}-"
        for blob in (*self.added, *(blob for output in self.outputs.values() for blob in output.blobs)):
            if not (self.nonce and blob.name.startswith(own)):
                raise ValueError(f"it names the file {blob.name}, which {self.nonce or 'nobody'} did not write")
        if self.nonce and not self.inventory.name.startswith(own):
            raise ValueError(f"its inventory {self.inventory.name} is not of its writer {self.nonce}")


_DECODER: Final = Decoder(Receipt)


class Committed(NamedTuple):
    """An epoch that is committed.  ``time``: that its step stamped.  ``counts``: events by verdict.  ``rows``: that
    came, by input.  ``outputs``: by name, where not empty.  ``figures``: what was measured, of all tasks.
    ``replayed``: whether it was committed before."""

    epoch: int
    time: int
    frontier: int
    counts: Mapping[str, int]
    rows: Mapping[str, int]
    outputs: Mapping[str, Output]
    figures: Mapping[str, int]
    replayed: bool
