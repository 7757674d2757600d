"""The receipt of a task: the files that it wrote and the rows that it counted, and the sum of all receipts of an epoch.

Guarantees: a receipt is plain text that the driver checks before it uses it. Receipts of attempts that lost are left
out, so a row counts once.

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

>>> def receipt(number, rows):
...     file = Blob(f"{number:016x}-1.json", 9, bytes(16))
...     return Receipt(stage=0, number=number, started_from="b" * 32, nonce=file.name[:16], inventory=file, outputs={},
...                    rows={"orders": rows}, digests={"orders": "01" * 16}, counts={"applied": rows}, greatest={},
...                    horizons={}, frontier=8, last=7, since=7, added=(), gone=(), sent="",
...                    figures={"step": 5, "memory": 70}, said={})
>>> _, whole = gather([receipt(1, 2), receipt(0, 3), receipt(1, 2)], "b" * 32, stages=1, partitions=2)
>>> whole.rows, whole.counts, whole.frontier, whole.figures
({'orders': 5}, {'applied': 5}, 8, {'step': 10, 'memory': 70})
>>> gather([receipt(1, 2)], "b" * 32, stages=1, partitions=3)
Traceback (most recent call last):
    ...
ddflow.errors.MissingReceipts: commit an epoch of 1 stages and 3 partitions: there is no receipt of partitions [0, ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import xxhash
from msgspec import Meta
from msgspec.json import Decoder

from ddflow.dataflow.inflow import add
from ddflow.errors import CorruptState, MissingReceipts, ReceiptsDisagree, SpecError
from ddflow.partitions.chunks import added
from ddflow.partitions.messages import Said
from ddflow.partitions.messages import together as said_together
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
from ddflow.time import NEVER

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


MOST: Final = 10
"""Number of partitions that a message lists."""
ROWS: Final = "rows of "
"""The prefix of an input's name in the figures of an epoch."""
OWED: Final = "held by new outputs"
"""Rows of an epoch that new outputs gave whole, among those figures."""
_NOT_ADDED: Final = ("memory", "part_cache")
"""Figures whose greatest value counts, not their sum."""


def gather(
    receipts: Iterable[Receipt], started_from: str, stages: int, partitions: int
) -> tuple[tuple[Receipt, ...], Contribution]:
    """Check the receipts, one a task, and add them up; returns them by stage with their sum.  O(receipts).

    ``started_from``: the digest of the manifest that all tasks started from.  Raises `MissingReceipts`, naming
    partitions; `ReceiptsDisagree`; `SpecError` for a receipt of another epoch or plan.
    """
    taken = _select_receipts(receipts, started_from, stages, partitions)
    frontiers = {each.frontier: each for each in taken}
    if len(frontiers) > 1:
        first, second = list(frontiers.values())[:2]
        raise ReceiptsDisagree(
            "commit an epoch",
            f"{_task(first)} closed to {first.frontier}, {_task(second)} to {second.frontier}",
            "give all tasks of an epoch the same epoch start",
        )
    files, rows = defaultdict[str, list[Blob]](list), defaultdict[str, int](int)
    for each in taken:
        for name, output in each.outputs.items():
            files[name] += output.blobs
            rows[name] += output.rows
    return taken, Contribution(
        rows=_sums(each.rows for each in taken),
        digests=summed(each.digests for each in taken),
        counts=_sums(each.counts for each in taken),
        outputs={name: Output(tuple(blobs), rows[name]) for name, blobs in sorted(files.items())},
        greatest=greatest(each.greatest for each in taken),
        horizons=greatest(each.horizons for each in taken),
        frontier=taken[0].frontier,
        last=max(each.last for each in taken),
        since=max(each.since for each in taken),
        figures=_figures(each.figures for each in taken),
        said=said_together(each.said for each in taken),
    )


def together(one: Mapping[str, Output], other: Mapping[str, Output]) -> dict[str, Output]:
    """Join the files that outputs gained in two steps, in the order of the outputs' names.  O(files)."""
    none = Output((), 0)
    pairs = {name: (one.get(name, none), other.get(name, none)) for name in sorted({*one, *other})}
    return {name: Output((*a.blobs, *b.blobs), a.rows + b.rows) for name, (a, b) in pairs.items()}


def call_digest(kind: str, time: int, rows: Mapping[str, int], digests: Mapping[str, str]) -> str:
    """Hash a call whose rows were added up by input, as 32 hex digits; an input without rows counts as not given.

    O(inputs).
    """
    out = xxhash.xxh3_128(f"{kind} {time}".encode())
    for name in sorted(rows):
        if rows[name]:
            out.update(f"\n{len(name)} {name} {rows[name]} {digests[name]}".encode())
    return out.hexdigest()


def summed(digests: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Add the digests of all rows by input, in any order.  O(digests)."""
    by_input = defaultdict(list)
    for each in digests:
        for name, digest in each.items():
            by_input[name].append(bytes.fromhex(digest))
    return {name: added(*each).hex() for name, each in by_input.items()}


def greatest(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the greatest number of each name.  O(numbers)."""
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
                f"{_task(each)} started from the manifest with digest {each.started_from}, not from {started_from}",
                "it is of another epoch: give the receipts of the tasks of this epoch start",
            )
        if not (each.stage < stages and each.number < partitions):
            raise SpecError(
                asked, f"there is a receipt of {_task(each)}", "give tasks the flow that the epoch start is of"
            )
        first = taken.setdefault((each.stage, each.number), each)
        if first is not each and first.content != each.content:
            differs = [name for name, value in first.content.items() if value != each.content[name]]
            raise ReceiptsDisagree(
                asked,
                f"two attempts at {_task(each)} differ in {', '.join(differs)}: "
                + "; ".join(f"{first.content[n]} and {each.content[n]}" for n in differs[:2]),
                "a function of the plan, or an input, gives other rows when it is read again",
            )
    for stage in range(stages):
        missing = [number for number in range(partitions) if (stage, number) not in taken]
        if missing:
            more = f" and {len(missing) - MOST} more" if len(missing) > MOST else ""
            raise MissingReceipts(
                asked,
                f"there is no receipt of partitions {missing[:MOST]}{more} on stage {stage}",
                "nothing was committed; run the job again, and let no rows of its shuffle be filtered",
            )
    return tuple(taken[stage, number] for stage in range(stages) for number in range(partitions))


def _task(receipt: Receipt) -> str:
    return f"partition {receipt.number} on stage {receipt.stage}"


def _sums(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for numbers in each:
        add(out, numbers)
    return out


def _figures(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    every = list(each)
    most = greatest({name: figures[name] for name in _NOT_ADDED if name in figures} for figures in every)
    return _sums(every) | most
