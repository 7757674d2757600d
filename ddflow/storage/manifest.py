"""A manifest: what one version of a state consists of, as numbered, checksummed bytes.

Invariant: `Manifest.decode` gives back what `Manifest.encode` was called on, or raises `CorruptState` with the number
and the place; one flipped bit or one missing byte is never another manifest. A checksum tells of accidents only, so
whatever passes it is still read with suspicion, field by field; a format of a later ddflow must be told from damage, so
the format stands in the header and again under the checksum; and the newest manifest may be the one that is lost, which
only a mark can tell: then nothing steps back to the one before by itself. A manifest names blobs; it does not read
them, does not know what a plan says, and publishes nothing.

The bytes: one line ``ddflow manifest <format> <length of body> <xxh3-128 of body>``, then the body, compact JSON.

>>> zero = "0" * 32
>>> first = Manifest(id=zero, number=0, epoch=0, nonce="0" * 16, written=0, secret=(1, 2), plan={}, fingerprint=zero,
...                  frontier=0, last=0, since=0, partitions=(), receipts=(), folder=None, note="created")
>>> data = first.encode()
>>> Manifest.decode(data, 0, "memory") == first
True
>>> Manifest.decode(data[:-1], 0, "memory")
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: manifest 0 of memory: its body has 381 bytes, its header says 382; go back with ddflow ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

import xxhash

from ddflow.aside import aside
from ddflow.errors import CorruptState, StateRefused
from ddflow.storage import epochs
from ddflow.storage import feeding as fed
from ddflow.storage.epochs import KINDS, REMEDY, Call, Epoch, Feed, Output, damaged, digits, instant, numbers, only
from ddflow.storage.feeding import Fed
from ddflow.storage.protocol import GREATEST, MANIFEST, Blob, Store
from ddflow.storage.record import I64, Record
from ddflow.time import CLOSED, NEVER

__all__ = [
    "FORMAT",
    "GREATEST",
    "INSTANTS",
    "KINDS",
    "MANIFEST",
    "PARTITIONS",
    "Call",
    "Epoch",
    "Feed",
    "Manifest",
    "Output",
    "at",
    "history",
    "newest",
]

FORMAT: Final = 3
"""What `Manifest.encode` writes, and the only one that is read."""

INSTANTS: Final = (-62_135_596_800_000, 253_402_300_799_999)
"""Unix milliseconds of the years 1 to 9999; a clock may well say a time before 1970."""

DEPTH: Final = 200
"""Objects and lists within each other, in a plan: what is nested deeper could not be read from a deep stack."""

PARTITIONS: Final = 1 << 16
"""The greatest number of partitions of a state."""

_HEADER = re.compile(rb"ddflow manifest ([1-9][0-9]{0,5}) (0|[1-9][0-9]{0,11}) ([0-9a-f]{32})\n")
_FIELDS = frozenset(
    (
        "format",
        "number",
        "epoch",
        "nonce",
        "written",
        "secret",
        "plan",
        "fingerprint",
        "frontier",
        "last",
        "since",
        "partitions",
        "receipts",
        "folder",
        "note",
        "previous",
        "spread",
        "horizons",
        "greatest",
        "feed",
        "fed",
        "id",
    )
)


@dataclass(frozen=True)
class Manifest:
    """One version of a state.

    ``id``: of the state, 32 hex digits; a copy has the same.  ``nonce``: of its writer, 16 hex digits.  ``written``:
    unix milliseconds.  ``secret``: two uint64.  ``plan``: the flow as JSON.  ``fingerprint``: of the plan, 32 hex
    digits.  ``frontier``, ``last`` (time of a step), ``since``: int64.  ``partitions``: one JSON blob each, level by
    level: that of level l and partition p at l * ``spread`` + p, or one for all levels; none before the first commit.
    ``receipts``: of the last epochs, ascending.
    ``folder``: where outputs are written to; None when they are blobs of the state.  ``note``: why it was written.
    ``previous``: the digest of the manifest that it was made from, 32 hex digits, "" for none.  ``spread``: how many
    partitions.  ``horizons``, ``greatest``: by source, the greatest order of all steps where rows expire, the greatest
    event time there ever was; what a state of one engine keeps in its inventory.  ``feed``: who feeds it in batches.
    ``fed``: by source that was ever named in a call, how it was fed.
    """

    id: str
    number: int
    epoch: int
    nonce: str
    written: int
    secret: tuple[int, int]
    plan: Mapping[str, Any]
    fingerprint: str
    frontier: int
    last: int
    since: int
    partitions: tuple[Blob, ...]
    receipts: tuple[Epoch, ...]
    folder: str | None
    note: str
    previous: str = ""
    spread: int = 1
    horizons: Mapping[str, int] = field(default_factory=dict)
    greatest: Mapping[str, int] = field(default_factory=dict)
    feed: Feed | None = None
    fed: Mapping[str, Fed] = field(default_factory=dict)

    def outputs(self) -> Iterator[Blob]:
        """The files of all outputs of all receipts, in order."""
        for receipt in self.receipts:
            for call in receipt.calls:
                for output in call.outputs.values():
                    yield from output.blobs

    def encode(self) -> bytes:
        """Header and body.  O(bytes).  Raises `ValueError` for a plan that is no JSON, or deeper than `DEPTH`;
        `StateRefused` for anything else that `decode` would refuse."""
        if _too_deep(self.plan):
            raise ValueError(f"the plan is nested deeper than {DEPTH} levels")
        plain = {
            "format": FORMAT,
            "id": self.id,
            "number": self.number,
            "epoch": self.epoch,
            "nonce": self.nonce,
            "written": self.written,
            "secret": "".join(f"{word:016x}" for word in self.secret),
            "plan": self.plan,
            "fingerprint": self.fingerprint,
            "frontier": self.frontier,
            "last": self.last,
            "since": self.since,
            "partitions": [blob.to_json() for blob in self.partitions],
            "receipts": [epochs.written(each) for each in self.receipts],
            "folder": self.folder,
            "note": self.note,
            "previous": self.previous,
            "spread": self.spread,
            "horizons": dict(self.horizons),
            "greatest": dict(self.greatest),
            "feed": None if self.feed is None else self.feed._asdict(),
            "fed": {name: fed.written(each) for name, each in self.fed.items()},
        }
        try:
            _read(Record(plain, f"write manifest {self.number}"))
        except CorruptState as error:
            raise _unreadable(error.asked, error.found) from None
        body = json.dumps(plain, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")
        data = f"ddflow manifest {FORMAT} {len(body)} {xxhash.xxh3_128_hexdigest(body)}\n".encode("ascii") + body
        if len(data) > MANIFEST:
            raise _unreadable(f"write manifest {self.number}", f"it has {len(data):,} bytes, of {MANIFEST:,} at most")
        return data

    @classmethod
    def decode(cls, data: bytes, number: int, where: str) -> Manifest:
        """The manifest that these bytes are.  ``number``: what it was asked for by; ``where``: the state.  O(bytes).

        Raises `CorruptState` for anything else than what `encode` returns.
        """
        what = f"manifest {number} of {where}"
        header = _HEADER.match(data[:80])
        if header is None:
            raise damaged(what, f"it begins with {data[:32]!r}, which is no header of a manifest")
        format_, length, digest = int(header[1]), int(header[2]), header[3].decode()
        body = data[header.end() :]
        if len(body) != length:
            raise damaged(what, f"its body has {len(body):,} bytes, its header says {length:,}")
        found = xxhash.xxh3_128_hexdigest(body)
        if found != digest:
            raise damaged(what, f"its body has checksum {found}, its header says {digest}")
        record = Record(_parsed(body, what), what)
        inside = record.number("format", 1)
        if inside != format_:
            raise damaged(what, f"its header says format {format_}, its body format {inside}")
        if format_ != FORMAT:
            raise CorruptState(
                what,
                f"it has format {format_}, and this ddflow reads format {FORMAT}",
                "it was written by another ddflow: open it with that one, or replay the log into a "
                "new state; ddflow rollback goes back to a version of this format, where one is kept",
            )
        manifest = _read(record)
        if manifest.number != number:
            raise damaged(what, f"it says it is manifest {manifest.number}")
        return manifest

    def _check(self) -> None:
        # What is written can be read again.
        assert Manifest.decode(self.encode(), self.number, "a check") == self
        # A receipt is of an epoch that was committed, and each epoch has one.
        given = [receipt.epoch for receipt in self.receipts]
        assert given == sorted(set(given)) and all(epoch <= self.epoch for epoch in given)


def newest(store: Store) -> Manifest | None:
    """The manifest with the greatest number; None where nothing was ever published.  O(manifests + bytes).

    Raises `CorruptState` when that one is damaged, or is missing though its writer was told that it was published;
    what `Store` raises.
    """
    while True:
        # The mark first: it follows its manifest, so that whoever commits meanwhile does not look like a loss.
        marked, numbers = store.marked(), store.numbers()
        last = numbers[-1] if numbers else -1
        if marked > last:
            raise CorruptState(
                f"manifest {marked} of {store.where}",
                f"it was committed and is missing; the newest there is {last if numbers else 'none'}",
                REMEDY,
            )
        if last < 0:
            return None
        try:
            return at(store, last)
        except CorruptState:
            # A writer that went on may have expired what was the newest a moment ago.
            if store.numbers()[-1:] <= [last]:
                raise


def history(store: Store) -> list[int]:
    """The numbers of the manifests that are kept, ascending.  O(manifests)."""
    return store.numbers()


def at(store: Store, number: int) -> Manifest:
    """The manifest with a number.  O(bytes).  Raises `CorruptState` when it is damaged or missing."""
    return Manifest.decode(store.manifest(number), number, store.where)


def _unreadable(asked: str, found: str) -> StateRefused:
    return StateRefused(
        asked,
        f"{found}; so it could not be read again",
        "nothing was committed: mend what it is about, and open the state again",
    )


def _parsed(body: bytes, what: str) -> Any:
    """What the body's JSON says; NaN and infinity are none, however they are written."""

    def finite(text: str) -> float:
        number = float(text)
        if not isfinite(number):
            raise ValueError(f"{text[:20]} is no number of JSON")
        return number

    try:
        return aside(lambda: json.loads(body.decode("ascii"), parse_constant=finite, parse_float=finite))
    except (ValueError, RecursionError) as error:
        raise damaged(what, f"its body is no JSON ({error})") from None


def _read(record: Record) -> Manifest:
    only(record, _FIELDS)
    secret, epoch, spread = digits(record, "secret", 32), record.number("epoch"), record.number("spread", 1, PARTITIONS)
    receipts = tuple(epochs.read(each) for each in record.records("receipts"))
    given = [receipt.epoch for receipt in receipts]
    if given != sorted(set(given)) or given[-1:] > [epoch]:
        raise damaged(record.what, f"the epochs of its {len(given)} receipts do not ascend to {epoch}")
    partitions = tuple(record.blobs("partitions"))
    if len({blob.name for blob in partitions}) < len(partitions):
        raise damaged(record.what, "two of its partitions are the same file")
    if (count := len(partitions)) % spread:
        raise damaged(record.what, f"it has {count} inventories, which are no levels of {spread} partitions")
    plan = record.record("plan").given
    if _too_deep(plan):
        raise damaged(record.what, f"its plan is nested deeper than {DEPTH} levels")
    folder = record.text("folder", 1 << 16) if "folder" in record else None
    if folder is not None and "\0" in folder:
        raise damaged(record.what, f"its folder is {folder!r}, which is no path")
    return Manifest(
        id=digits(record, "id", 32),
        number=record.number("number", 0, GREATEST),
        epoch=epoch,
        nonce=digits(record, "nonce", 16),
        written=record.number("written", *INSTANTS),
        secret=(int(secret[:16], 16), int(secret[16:], 16)),
        plan=plan,
        fingerprint=digits(record, "fingerprint", 32),
        frontier=instant(record, "frontier"),
        last=instant(record, "last"),
        since=instant(record, "since"),
        partitions=partitions,
        receipts=receipts,
        folder=folder,
        note=record.text("note"),
        spread=spread,
        previous=digits(record, "previous", 32) if record.text("previous", 32) else "",
        horizons=numbers(record.record("horizons"), NEVER),
        greatest=numbers(record.record("greatest"), NEVER),
        feed=epochs.feed(record.record("feed")) if "feed" in record else None,
        fed={name: fed.read(each, epoch) for name, each in record.named("fed").items()},
    )


def _too_deep(plan: Any) -> bool:
    level = [plan]
    for _ in range(DEPTH + 1):
        level = [each for each in level if isinstance(each, Mapping | list | tuple)]
        if not level:
            return False
        level = [child for each in level for child in (each.values() if isinstance(each, Mapping) else each)]
    return True


assert CLOSED == I64
