"""A manifest: what one version of a state consists of, as numbered, checksummed bytes.

Invariant: `Manifest.decode` gives back what `Manifest.encode` was called on, or raises `CorruptState` with the number
and the place; one flipped bit or one missing byte is never another manifest.  Why that is not trivial: a checksum tells
of accidents only, so whatever passes it is still read with suspicion, field by field; a format of a later ddflow must
be told from damage, so the format stands in the header and again under the checksum; and the newest manifest may be the
one that is lost, which only a mark can tell: then nothing steps back to the one before by itself.  A manifest names
blobs; it does not read them, does not know what a plan says, and publishes nothing.

The bytes: one line ``ddflow manifest <format> <length of body> <xxh3-128 of body>``, then the body, compact JSON.

>>> zero = "0" * 32
>>> first = Manifest(number=0, epoch=0, nonce="0" * 16, written=0, secret=(1, 2), plan={}, fingerprint=zero, frontier=0,
...                  last=0, since=0, partitions=(), receipts=(), folder=None, note="created")
>>> data = first.encode()
>>> Manifest.decode(data, 0, "memory") == first
True
>>> Manifest.decode(data[:-1], 0, "memory")
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: manifest 0 of memory: its body has 281 bytes, its header says 282; go back with ddflow ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, NamedTuple

import xxhash

from ddflow.errors import CorruptState
from ddflow.frontier import CLOSED, NEVER
from ddflow.store.blob import Blob, Store
from ddflow.store.record import I64, Record

FORMAT: Final = 1
"""What `Manifest.encode` writes; every format up to it is read for ever."""

GREATEST: Final = 10**16 - 1
"""The greatest number of a manifest: sixteen digits."""

DEPTH: Final = 200
"""Objects and lists within each other, in a plan: what is nested deeper could not be read from a deep stack."""

KINDS: Final = ("step", "push", "advance_to", "replace", "restate")
_HEADER = re.compile(rb"ddflow manifest ([1-9][0-9]{0,5}) (0|[1-9][0-9]{0,11}) ([0-9a-f]{32})\n")
_HEX = re.compile(r"[0-9a-f]+")
_REMEDY = "go back with ddflow rollback, restore it from a copy, or replay the log into a new state"
_FIELDS = frozenset(("format", "number", "epoch", "nonce", "written", "secret", "plan", "fingerprint", "frontier",
                     "last", "since", "partitions", "receipts", "folder", "note", "previous"))  # fmt: skip


class Output(NamedTuple):
    """The file that holds what one output gained by a call, and how many ``rows`` it has."""

    blob: Blob
    rows: int


class Call(NamedTuple):
    """One call of an epoch, and what came of it.

    ``kind``: of `KINDS`.  ``time``: of the step, or the frontier asked for; 0 for a push.  ``digest``: 32 hex digits,
    of the input rows.  ``frontier``: after it.  ``counts``: events by verdict, ``absent`` keys.
    ``outputs``: by name, where not empty.
    """

    kind: str
    time: int
    digest: str
    frontier: int
    counts: Mapping[str, int]
    outputs: Mapping[str, Output]


class Receipt(NamedTuple):
    """An epoch that was committed, call by call."""

    epoch: int
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Manifest:
    """One version of a state.

    ``nonce``: of its writer, 16 hex digits.  ``written``: unix milliseconds.  ``secret``: two uint64.  ``plan``: the
    flow as JSON.  ``fingerprint``: of the plan, 32 hex digits.  ``frontier``, ``last`` (time of a step), ``since``:
    int64.  ``partitions``: one JSON blob each, in their order.  ``receipts``: of the last epochs, ascending.
    ``folder``: where outputs are written to; None when they are blobs of the state.  ``note``: why it was written.
    ``previous``: the digest of the manifest that it was made from, 32 hex digits, "" for none.
    """

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
    receipts: tuple[Receipt, ...]
    folder: str | None
    note: str
    previous: str = ""

    def outputs(self) -> Iterator[Blob]:
        """The files of all outputs of all receipts, in order."""
        for receipt in self.receipts:
            for call in receipt.calls:
                yield from (output.blob for output in call.outputs.values())

    def encode(self) -> bytes:
        """Header and body.  O(bytes).  Raises `ValueError` for a plan that is no JSON, or deeper than `DEPTH`."""
        if _too_deep(self.plan):
            raise ValueError(f"the plan is nested deeper than {DEPTH} levels")
        body = json.dumps({
            "format": FORMAT, "number": self.number, "epoch": self.epoch, "nonce": self.nonce, "written": self.written,
            "secret": "".join(f"{word:016x}" for word in self.secret), "plan": self.plan,
            "fingerprint": self.fingerprint, "frontier": self.frontier, "last": self.last, "since": self.since,
            "partitions": [blob.to_json() for blob in self.partitions],
            "receipts": [{"epoch": each.epoch, "calls": [_written(call) for call in each.calls]}
                         for each in self.receipts],
            "folder": self.folder, "note": self.note, "previous": self.previous,
        }, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")  # fmt: skip
        return f"ddflow manifest {FORMAT} {len(body)} {xxhash.xxh3_128_hexdigest(body)}\n".encode("ascii") + body

    @classmethod
    def decode(cls, data: bytes, number: int, where: str) -> Manifest:
        """The manifest that these bytes are.  ``number``: what it was asked for by; ``where``: the state.  O(bytes).

        Raises `CorruptState` for anything else than what `encode` returns, in any format up to `FORMAT`.
        """
        what = f"manifest {number} of {where}"
        header = _HEADER.match(data[:80])
        if header is None:
            raise _damaged(what, f"it begins with {data[:32]!r}, which is no header of a manifest")
        format_, length, digest = int(header[1]), int(header[2]), header[3].decode()
        body = data[header.end() :]
        if len(body) != length:
            raise _damaged(what, f"its body has {len(body):,} bytes, its header says {length:,}")
        found = xxhash.xxh3_128_hexdigest(body)
        if found != digest:
            raise _damaged(what, f"its body has checksum {found}, its header says {digest}")
        record = Record(_parsed(body, what), what)
        inside = record.number("format", 1)
        if inside != format_:
            raise _damaged(what, f"its header says format {format_}, its body format {inside}")
        if format_ not in READERS:
            raise CorruptState(what, f"it has format {format_}, and this ddflow reads formats up to {FORMAT}",
                               "it was written by a newer ddflow: upgrade, or, to lose what that one wrote, go back "
                               "with ddflow rollback")  # fmt: skip
        manifest = READERS[format_](record)
        if manifest.number != number:
            raise _damaged(what, f"it says it is manifest {manifest.number}")
        return manifest

    def _check(self) -> None:
        # What is written can be read again.
        assert Manifest.decode(self.encode(), self.number, "a check") == self
        # A receipt is of an epoch that was committed, and each epoch has one.
        epochs = [receipt.epoch for receipt in self.receipts]
        assert epochs == sorted(set(epochs)) and all(epoch <= self.epoch for epoch in epochs)


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
            raise CorruptState(f"manifest {marked} of {store.where}",
                               f"it was committed and is missing; the newest there is {last if numbers else 'none'}",
                               _REMEDY)  # fmt: skip
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


def _written(call: Call) -> dict[str, Any]:
    return {"kind": call.kind, "time": call.time, "digest": call.digest, "frontier": call.frontier,
            "counts": dict(call.counts),
            "outputs": {name: {"blob": each.blob.to_json(), "rows": each.rows}
                        for name, each in call.outputs.items()}}  # fmt: skip


def _parsed(body: bytes, what: str) -> Any:
    """What the body's JSON says; NaN and infinity are none, however they are written."""

    def finite(text: str) -> float:
        number = float(text)
        if not isfinite(number):
            raise ValueError(f"{text[:20]} is no number of JSON")
        return number

    try:
        return json.loads(body.decode("ascii"), parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise _damaged(what, f"its body is no JSON ({error})") from None


def _read_1(record: Record) -> Manifest:
    _only(record, _FIELDS)
    secret, epoch = _hex(record, "secret", 32), record.number("epoch")
    receipts = tuple(_receipt(each) for each in record.records("receipts"))
    epochs = [receipt.epoch for receipt in receipts]
    if epochs != sorted(set(epochs)) or epochs[-1:] > [epoch]:
        raise _damaged(record.what, f"the epochs of its {len(epochs)} receipts do not ascend to {epoch}")
    partitions = tuple(record.blobs("partitions"))
    if len({blob.name for blob in partitions}) < len(partitions):
        raise _damaged(record.what, "two of its partitions are the same file")
    plan = record.record("plan").given
    if _too_deep(plan):
        raise _damaged(record.what, f"its plan is nested deeper than {DEPTH} levels")
    folder = record.text("folder", 1 << 16) if "folder" in record else None
    if folder is not None and "\0" in folder:
        raise _damaged(record.what, f"its folder is {folder!r}, which is no path")
    return Manifest(
        number=record.number("number", 0, GREATEST), epoch=epoch, nonce=_hex(record, "nonce", 16),
        written=record.number("written"), secret=(int(secret[:16], 16), int(secret[16:], 16)),
        plan=plan, fingerprint=_hex(record, "fingerprint", 32),
        frontier=_time(record, "frontier"), last=_time(record, "last"), since=_time(record, "since"),
        partitions=partitions, receipts=receipts, folder=folder, note=record.text("note"),
        previous=_hex(record, "previous", 32) if record.text("previous", 32) else "",
    )  # fmt: skip


READERS: Final[Mapping[int, Callable[[Record], Manifest]]] = {1: _read_1}
"""How the body of each format is read."""


def _receipt(record: Record) -> Receipt:
    _only(record, frozenset(("epoch", "calls")))
    return Receipt(record.number("epoch"), tuple(_call(each) for each in record.records("calls")))


def _call(record: Record) -> Call:
    _only(record, frozenset(("kind", "time", "digest", "frontier", "counts", "outputs")))
    kind = record.text("kind", 16)
    if kind not in KINDS:
        raise _damaged(record.what, f"kind is {kind!r}, not one of {', '.join(KINDS)}")
    counts = record.record("counts")
    return Call(kind, _time(record, "time"), _hex(record, "digest", 32), _time(record, "frontier"),
                {name: counts.number(name) for name in counts.names()},
                {name: _output(each) for name, each in record.named("outputs").items()})  # fmt: skip


def _output(record: Record) -> Output:
    _only(record, frozenset(("blob", "rows")))
    return Output(record.blob("blob"), record.number("rows"))


def _too_deep(plan: Any) -> bool:
    level = [plan]
    for _ in range(DEPTH + 1):
        level = [each for each in level if isinstance(each, Mapping | list | tuple)]
        if not level:
            return False
        level = [child for each in level for child in (each.values() if isinstance(each, Mapping) else each)]
    return True


def _time(record: Record, name: str) -> int:
    return record.number(name, NEVER, CLOSED)


def _hex(record: Record, name: str, digits: int) -> str:
    text = record.text(name, digits)
    if len(text) != digits or not _HEX.fullmatch(text):
        raise _damaged(record.what, f"{name} is {text!r}, not {digits} hex digits")
    return text


def _only(record: Record, fields: frozenset[str]) -> None:
    unknown, missing = sorted(set(record.names()) - fields), sorted(fields - set(record.names()))
    if unknown or missing:
        raise _damaged(record.what, f"it lacks the fields {missing}, and has {len(unknown)} that nobody knows")


def _damaged(what: str, found: str) -> CorruptState:
    return CorruptState(what, found, _REMEDY)


assert CLOSED == I64
