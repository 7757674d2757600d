"""A manifest: what one version of a state consists of, as numbered, checksummed bytes.

Invariant: `Manifest.decode` gives back what `Manifest.encode` was called on, or raises `CorruptState` with the number
and the place; one flipped bit or one missing byte is never another manifest. A checksum tells of accidents only, so
whatever passes it is still read with suspicion, field by field; a format of a later ddflow must be told from damage, so
the format in the header counts in the checksum; and the newest manifest may be the one that is lost, which
only a mark can tell: then nothing steps back to the one before by itself. A manifest names blobs; it does not read
them, does not know what a plan says, and publishes nothing.

The bytes: one line ``ddflow manifest <format> <length of body> <xxh3-128 of body, with the format as its seed>``, then
the body, compact JSON.

>>> zero = "0" * 32
>>> first = Manifest(id=zero, number=0, epoch=0, nonce="0" * 16, written=0, secret=(1, 2), plan={}, fingerprint=zero,
...                  frontier=0, last=0, since=0, inventories=(), backlog=(), receipts=(), folder=None, note="created",
...                  previous="", partitions=1, horizons={}, greatest={}, feed=None, fed={}, past=(), sources={},
...                  sinks={}, added={}, dropped={}, retain=0)
>>> data = first.encode()
>>> Manifest.decode(data, 0, "memory") == first
True
>>> Manifest.decode(data[:-1], 0, "memory")
Traceback (most recent call last):
    ...
ddflow.errors.CorruptState: manifest 0 of memory: its body has 428 bytes, its header says 429; go back with dd...
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import xxhash
from msgspec import Meta
from msgspec.json import Decoder

from ddflow.aside import run_on_new_stack
from ddflow.errors import CommandFix, CorruptState, ErrorText, StateRefused, shorten
from ddflow.storage.backlog import BacklogFile, check_epoch_sequence
from ddflow.storage.epochs import (
    REMEDY,
    AttachedSink,
    AttachedSource,
    Epoch,
    EpochCall,
    Feed,
    Output,
    PastColumns,
    damage_error,
    refuse_duplicate_files,
)
from ddflow.storage.feeding import FeedHistory
from ddflow.storage.fields import (
    REFUSALS,
    Hex,
    HexOrNone,
    Instant,
    Moment,
    Natural,
    Nonce,
    Path,
    StrictRecord,
    Word,
    encode_record,
)
from ddflow.storage.protocol import GREATEST, MANIFEST, Blob, Store

__all__ = [
    "FORMAT",
    "GREATEST",
    "MANIFEST",
    "PARTITIONS",
    "AttachedSink",
    "AttachedSource",
    "Epoch",
    "EpochCall",
    "Feed",
    "Manifest",
    "Output",
    "PastColumns",
    "load_manifest",
    "load_newest_manifest",
]

FORMAT: Final = 11
"""The format that `Manifest.encode` writes, the only one that is read."""

DEPTH: Final = 200
"""Objects and lists within each other, in a plan: what is nested deeper could not be read from a deep stack."""

PARTITIONS: Final = 1 << 16
"""The greatest number of partitions of a state."""

_HEADER = re.compile(rb"ddflow manifest ([1-9][0-9]{0,5}) (0|[1-9][0-9]{0,11}) ([0-9a-f]{32})\n")


class Manifest(StrictRecord, frozen=True, kw_only=True):
    """One version of a state.

    ``id``: of the state, 32 hex digits; a copy has the same.  ``nonce``: of its writer, 16 hex digits.  ``written``:
    unix milliseconds.  ``secret``: two uint64.  ``plan``: the flow as JSON.  ``fingerprint``: of the plan, 32 hex
    digits.  ``frontier``, ``last`` (time of a step), ``since``: int64.  ``inventories``: a JSON blob each, stage by
    stage: that of stage l and partition p at l * ``partitions`` + p, or one for all stages.  None is there before the
    first commit.
    ``receipts``: of the last epochs, ascending.  ``backlog``: files with those before them that a sink has yet to take.
    ``folder``: where outputs are written to; None when they are blobs of the state.  ``note``: why it was written.
    ``previous``: the digest of the manifest that it was made from, 32 hex digits, "" for none.  ``partitions``: how
    many.  ``horizons``, ``greatest``: by input, the greatest order of all steps where rows expire, the greatest
    event time there ever was; what a state of one engine keeps in its inventory.  ``feed``: who feeds it in batches.
    ``fed``: by input that was ever named in a call, how it was fed.  ``past``: the columns that ``receipts`` were given
    with, where the plan has others now; ascending by epoch.  ``sources``: by the name that they were attached by, with
    the position that the rows of this epoch end at.  ``sinks``: by output.  ``added``: by input, the columns that it
    got by itself from a source, which a flow need not declare.  ``dropped``: by output that was taken out, the last
    epoch of it: one of its name is another since.  ``retain``: how far behind ``last`` history is kept.
    """

    id: Hex
    number: Annotated[int, Meta(ge=0, le=GREATEST)]
    epoch: Natural
    nonce: Nonce
    written: Moment
    secret: tuple[Word, Word]
    plan: dict[str, Any]
    fingerprint: Hex
    frontier: Instant
    last: Instant
    since: Instant
    inventories: tuple[Blob, ...]
    backlog: tuple[BacklogFile, ...]
    receipts: tuple[Epoch, ...]
    folder: Path | None
    note: Annotated[str, Meta(max_length=1 << 24)]
    previous: HexOrNone
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS)]
    horizons: dict[str, Instant]
    greatest: dict[str, Instant]
    feed: Feed | None
    fed: dict[str, FeedHistory]
    past: tuple[PastColumns, ...]
    sources: dict[str, AttachedSource]
    sinks: dict[str, AttachedSink]
    added: dict[str, tuple[str, ...]]
    dropped: dict[str, Natural]
    retain: Natural

    def output_files(self) -> list[Blob]:
        """Return the files of all outputs of the manifest's receipts, in order."""
        calls = [call for receipt in self.receipts for call in receipt.calls]
        return [blob for call in calls for output in call.outputs.values() for blob in output.blobs]

    @property
    def oldest_epoch(self) -> int | None:
        """The first epoch with a receipt; None if there is none."""
        return self.backlog[0].first if self.backlog else self.receipts[0].epoch if self.receipts else None

    def encode(self) -> bytes:
        """Encode header and body.  O(bytes).  Raises `StateRefused` for a manifest that `decode` would refuse, or
        decode differently."""
        asked = f"write manifest {self.number}"
        try:
            body = encode_record(self)
            # A struct checks its fields when it is read, not when it is made; and NaN would be read as null.
            if _decode_body(body) != self:
                raise ValueError("its plan has a value that JSON has not")
        except REFUSALS as error:
            raise _unreadable_error(asked, shorten(str(error))) from None
        data = f"ddflow manifest {FORMAT} {len(body)} {_compute_checksum(body, FORMAT)}\n".encode("ascii") + body
        if len(data) > MANIFEST:
            raise _unreadable_error(asked, f"it has {len(data):,} bytes, of {MANIFEST:,} at most")
        return data

    @classmethod
    def decode(cls, data: bytes, number: int, where: str) -> Manifest:
        """Decode a manifest.  ``number``: the number it was found under; ``where``: the state.  O(bytes).

        Raises `CorruptState` for bytes that `encode` does not return.
        """
        what = f"manifest {number} of {where}"
        header = _HEADER.match(data[:80])
        if header is None:
            raise damage_error(what, f"it begins with {data[:32]!r}, which is no header of a manifest")
        format_, length, digest = int(header[1]), int(header[2]), header[3].decode()
        body = data[header.end() :]
        if len(body) != length:
            raise damage_error(what, f"its body has {len(body):,} bytes, its header says {length:,}")
        found = _compute_checksum(body, format_)
        if found != digest:
            raise damage_error(what, f"it has checksum {found}, its header says {digest}")
        if format_ != FORMAT:
            raise CorruptState(
                what,
                f"it has format {format_}, and this ddflow reads format {FORMAT}",
                ErrorText(
                    "it was written by another ddflow: open it with that one, or replay the log into a new state; ",
                    *(CommandFix("rollback"), " goes back to a version of this format, where one is kept"),
                ),
            )
        try:
            # How deep a plan may be nested must not depend on who calls.
            manifest = run_on_new_stack(lambda: _decode_body(body))
        except REFUSALS as error:
            raise damage_error(what, f"its body is no manifest: {shorten(str(error))}") from None
        if manifest.number != number:
            raise damage_error(what, f"it says it is manifest {manifest.number}")
        return manifest

    def _check_invariants(self) -> None:
        # What is written can be read again.
        assert Manifest.decode(self.encode(), self.number, "a check") == self
        # A receipt is of an epoch that was committed, and each epoch has one.
        given = [receipt.epoch for receipt in self.receipts]
        assert given == sorted(set(given)) and all(epoch <= self.epoch for epoch in given)


_DECODER: Final = Decoder(Manifest)


def load_newest_manifest(store: Store) -> Manifest | None:
    """Load the manifest with the greatest number; return None if none was ever published.  O(manifests + bytes).

    Raises `CorruptState` if it is damaged, or if it is marked as published and missing; also raises
    as `Store` does.
    """
    while True:
        # The mark first: it follows its manifest, so that whoever commits meanwhile does not look like a loss.
        marked, numbers = store.find_last_published(), store.list_manifests()
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
            return load_manifest(store, last)
        except CorruptState:
            # A writer that went on may have expired what was the newest a moment ago.
            if store.list_manifests()[-1:] <= [last]:
                raise


def load_manifest(store: Store, number: int) -> Manifest:
    """Load the manifest with a number.  O(bytes).  Raises `CorruptState` if it is damaged or missing."""
    return Manifest.decode(store.read_manifest(number), number, store.where)


def _unreadable_error(asked: str, found: str) -> StateRefused:
    return StateRefused(
        asked,
        f"{found}; so it could not be read again",
        "nothing was committed: mend what it is about, and open the state again",
    )


def _compute_checksum(body: bytes, format_: int) -> str:
    """Hash a body with its format, which the header has: one flipped bit must not make it another format."""
    return xxhash.xxh3_128_hexdigest(body, format_)


def _decode_body(body: bytes) -> Manifest:
    """Decode and check the body of a manifest.  Raises one of `REFUSALS`."""
    manifest = _DECODER.decode(body)
    check_epoch_sequence(manifest.backlog)
    first = manifest.receipts[0].epoch if manifest.receipts else None
    if manifest.backlog and manifest.backlog[-1].last + 1 != first:
        raise ValueError(
            f"its backlog ends with epoch {manifest.backlog[-1].last}, and its first receipt is of {first}"
        )
    last = -1
    for receipt in manifest.receipts:
        if not last < receipt.epoch <= manifest.epoch:
            raise ValueError(f"the epochs of its {len(manifest.receipts)} receipts do not ascend to {manifest.epoch}")
        last = receipt.epoch
    refuse_duplicate_files([call.outputs for receipt in manifest.receipts for call in receipt.calls])
    until = [each.epoch for each in manifest.past]
    if until != sorted(set(until)) or until[-1:] > [manifest.epoch]:
        raise ValueError(f"the epochs {until} of its past columns do not ascend to {manifest.epoch}")
    for fed in manifest.fed.values():
        fed.check_calls(manifest.epoch)
    for name, sink in manifest.sinks.items():
        if sink.epoch > manifest.epoch:
            raise ValueError(f"the sink {name} has acknowledged epoch {sink.epoch}, which is later than its own")
    inventories = manifest.inventories
    if len({blob.name for blob in inventories}) < len(inventories):
        raise ValueError("two of its inventories are the same file")
    if len(inventories) % manifest.partitions:
        raise ValueError(
            f"it has {len(inventories)} inventories, which are no stages of {manifest.partitions} partitions"
        )
    if max(manifest.secret) >= 1 << 64:
        raise ValueError("its secret is not two words of 64 bits")
    if _is_plan_too_deep(manifest.plan):
        raise ValueError(f"its plan is nested deeper than {DEPTH} levels")
    for name, source in manifest.sources.items():
        if _is_plan_too_deep({"position": source.position}):
            raise ValueError(f"the position of its source {name} is nested deeper than {DEPTH} levels")
    return manifest


def _is_plan_too_deep(plan: dict[str, Any]) -> bool:
    level: list[Any] = [plan]
    for _ in range(DEPTH):
        below: list[Any] = []
        for each in level:
            for child in each.values() if isinstance(each, dict) else each:
                if isinstance(child, dict | list):
                    below.append(child)
        if not below:
            return False
        level = below
    return True
