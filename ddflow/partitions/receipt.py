"""A receipt: what a task did, for the driver to take or to leave.

Invariant: what `Receipt.from_json` gives is of the types and within the ranges that a receipt has, and names files that
its own writer put, or its base had; two receipts of the same rows agree in `Receipt.content`, whoever wrote them. A
task may be run twice, speculatively or again, and both may be told; their files differ in name and length (merges
depend on what is kept in memory), so what they must agree in is what the rows made of them, and nothing else. It
travels as a value of one row, through a shuffle that others could write to, so it is read with suspicion. It does not
look whether files are there (``coordinator``).

>>> blob = Blob("00ff00ff00ff00ff-1.json", 40, bytes(16))
>>> receipt = Receipt(level=0, number=3, base="0" * 32, nonce="00ff00ff00ff00ff", inventory=blob, outputs={},
...                   rows={"orders": 2}, digests={"orders": "01" * 16}, counts={"applied": 2}, greatest={},
...                   horizons={}, frontier=8, last=7, since=7, added=(), gone=(), sent="", figures={"step": 900})
>>> Receipt.from_json(receipt.to_json(), "a task") == receipt
True
>>> Receipt.from_json(receipt.to_json().replace(b"-1.json", b"/../.js"), "the receipt of a task")
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: the receipt of a task: inventory is ['00ff00ff00ff00ff/../.js', 40, ...
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ddflow.errors import CorruptState
from ddflow.storage import epochs
from ddflow.storage.epochs import Output, digits, instant, numbers, only
from ddflow.storage.manifest import PARTITIONS
from ddflow.storage.protocol import NAME, Blob
from ddflow.storage.record import Record
from ddflow.time import NEVER

LEVELS: Final = 1 << 10
"""The greatest number of levels that a receipt may be of."""


class Receipt(NamedTuple):
    """What the task of a ``level`` and partition ``number`` did.

    ``base``: digest of the manifest that it started from.  ``nonce``: of the writer of its files, "" where it wrote
    none.  ``inventory``: of what it holds now.  ``outputs``: what outputs gained, where not empty, a file each.
    ``rows``, ``digests``: of the rows that came, by source; order-free, 32 hex digits.  ``counts``: events by verdict.
    ``greatest``: by source, the greatest event time ever, hold-back mode.  ``horizons``: by source whose keys expire,
    the greatest order so far.  ``frontier``, ``last``, ``since``: after it.  ``added``: files that the inventory names
    and its base's did not; ``gone``: names of which the reverse is true.  ``sent``: of the sums passed on, order-free,
    "" for none.  ``figures``: microseconds and bytes.
    """

    level: int
    number: int
    base: str
    nonce: str
    inventory: Blob
    outputs: Mapping[str, Output]
    rows: Mapping[str, int]
    digests: Mapping[str, str]
    counts: Mapping[str, int]
    greatest: Mapping[str, int]
    horizons: Mapping[str, int]
    frontier: int
    last: int
    since: int
    added: tuple[Blob, ...]
    gone: tuple[str, ...]
    sent: str
    figures: Mapping[str, int]

    @property
    def content(self) -> dict[str, Any]:
        """What is the same for all who were given the same rows: not who wrote it, in which files, how fast."""
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
        """All files that it says are there: its inventory, what that names and is new, what its outputs gained."""
        yield self.inventory
        yield from self.added
        for output in self.outputs.values():
            yield from output.blobs

    def to_json(self) -> bytes:
        """Its bytes.  O(files)."""
        plain = self._asdict() | {
            "inventory": self.inventory.to_json(),
            "added": [blob.to_json() for blob in self.added],
            "outputs": {name: epochs.given(each) for name, each in self.outputs.items()},
        }
        for name in ("rows", "digests", "counts", "greatest", "horizons", "figures"):
            plain[name] = dict(plain[name])
        return json.dumps(plain, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes, what: str) -> Receipt:
        """The receipt that these bytes are.  ``what``: whose, for messages.  O(bytes).  Raises `CorruptState`."""
        record = Record.parse(data, what)
        only(record, frozenset(cls._fields))
        digests, gone = record.record("digests"), record.texts("gone")
        wrong = [name for name in gone if not NAME.fullmatch(name)]
        if wrong:
            raise _refused(record, f"gone names {wrong[0][:80]!r}, which is no file of a state")
        receipt = cls(
            level=record.number("level", 0, LEVELS - 1),
            number=record.number("number", 0, PARTITIONS - 1),
            base=digits(record, "base", 32),
            nonce=_optional(record, "nonce", 16),
            inventory=record.blob("inventory"),
            outputs={name: epochs.output(each) for name, each in record.named("outputs").items()},
            rows=numbers(record.record("rows")),
            digests={name: digits(digests, name, 32) for name in digests.names()},
            counts=numbers(record.record("counts")),
            greatest=numbers(record.record("greatest"), NEVER),
            horizons=numbers(record.record("horizons"), NEVER),
            frontier=instant(record, "frontier"),
            last=instant(record, "last"),
            since=instant(record, "since"),
            added=tuple(record.blobs("added")),
            gone=tuple(gone),
            sent=_optional(record, "sent", 32),
            figures=numbers(record.record("figures")),
        )
        receipt._look(record)
        return receipt

    def _look(self, record: Record) -> None:
        """Raise `CorruptState` unless all files that are new are its writer's own."""
        own = f"{self.nonce}-"
        for blob in (*self.added, *(blob for output in self.outputs.values() for blob in output.blobs)):
            if not (self.nonce and blob.name.startswith(own)):
                raise _refused(record, f"it names the file {blob.name}, which {self.nonce or 'nobody'} did not write")
        if self.nonce and not self.inventory.name.startswith(own):
            raise _refused(record, f"its inventory {self.inventory.name} is not of its writer {self.nonce}")


def _optional(record: Record, name: str, count: int) -> str:
    return digits(record, name, count) if record.text(name, count) else ""


def _refused(record: Record, found: str) -> CorruptState:
    return CorruptState(record.what, found, "it was not written by a task of ddflow; run the job again")
