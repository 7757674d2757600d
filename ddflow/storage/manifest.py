"""Encode one version of a state as a manifest of checksummed bytes, and decode it with all checks.
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
"""The format that `Manifest.encode` writes; no other is read."""

DEPTH: Final = 200
"""The maximum nesting of a plan: deeper JSON might be unreadable from a deep stack."""

PARTITIONS: Final = 1 << 16
"""The maximum number of partitions of a state."""

_HEADER = re.compile(rb"ddflow manifest ([1-9][0-9]{0,5}) (0|[1-9][0-9]{0,11}) ([0-9a-f]{32})\n")


class Manifest(StrictRecord, frozen=True, kw_only=True):
    """One version of a state, as numbered and checksummed bytes.

    `decode` returns the manifest that `encode` got, or raises `CorruptState` with its number and place. One flipped bit
    or one missing byte never gives another manifest or another format. A checksum detects accidents only, so `decode`
    checks each field too. A manifest names blobs and does not read them.

    - ``id``: the id of the state, 32 hex digits; a copy has the same.
    - ``nonce``: of its writer, 16 hex digits.
    - ``written``: the date, in unix milliseconds.
    - ``secret``: two uint64.
    - ``plan``: the flow as JSON.  ``fingerprint``: of the plan, 32 hex digits.
    - ``frontier``, ``last`` (the time of a step), ``since``: int64.
    - ``inventories``: one JSON blob for stage l and partition p at l * ``partitions`` + p, or one for all stages; none
      before the first commit.
    - ``receipts``: the last epochs, ascending.  ``backlog``: files of older receipts that a sink has yet to take.
    - ``folder``: the folder of outputs; None if outputs are blobs of the state.
    - ``note``: the reason for this version.
    - ``previous``: the digest of the manifest before it, 32 hex digits, "" for none.
    - ``partitions``: the number of partitions.
    - ``horizons``, ``greatest``: by input, the greatest order of all steps (if rows expire), and the greatest event
      time ever. A state of one engine keeps them in its inventory.
    - ``feed``: the query that feeds the state in batches.  ``fed``: by input of any call, how it was fed.
    - ``past``: columns of ``receipts`` that the plan has changed since, ascending by epoch.
    - ``sources``: by name of the attachment, with the position after the rows of this epoch.  ``sinks``: by output.
    - ``added``: by input, columns that came from a source by themselves; a flow need not declare them.
    - ``dropped``: by removed output, its last epoch; a later output of the same name is another one.
    - ``retain``: how far before ``last`` history is kept.
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
        """Encode header and body.  O(bytes).

        The header is one line, ``ddflow manifest <format> <length of body> <xxh3-128 of body, with the format as its
        seed>``. The body is compact JSON.  Raises `StateRefused` for a manifest that `decode` would refuse or decode
        differently.
        """
        asked = f"write manifest {self.number}"
        try:
            body = encode_record(self)
            # A struct checks its fields when it is decoded, not when it is built; and NaN is decoded as null.
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
        """Decode a manifest.  O(bytes).

        ``number``: the number that it was found under.  ``where``: the state.  Raises `CorruptState` for bytes that
        `encode` does not return.
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
            # The maximum nesting of a plan must not depend on the caller's stack.
            manifest = run_on_new_stack(lambda: _decode_body(body))
        except REFUSALS as error:
            raise damage_error(what, f"its body is no manifest: {shorten(str(error))}") from None
        if manifest.number != number:
            raise damage_error(what, f"it says it is manifest {manifest.number}")
        return manifest

    def _check_invariants(self) -> None:
        # Encoded manifests decode to themselves.
        assert Manifest.decode(self.encode(), self.number, "a check") == self
        # Each receipt is of a committed epoch, and no epoch has two.
        given = [receipt.epoch for receipt in self.receipts]
        assert given == sorted(set(given)) and all(epoch <= self.epoch for epoch in given)


_DECODER: Final = Decoder(Manifest)


def load_newest_manifest(store: Store) -> Manifest | None:
    """Load the manifest with the greatest number; return None if none was ever published.  O(manifests + bytes).

    Raises `CorruptState` if it is damaged. Raises it also if it is marked as published and missing, and never takes an
    older manifest instead. Also raises the errors of `Store`.
    """
    while True:
        # Read the mark first: it follows its manifest, so a commit meanwhile does not look like a loss.
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
            # Another writer may have committed and deleted this manifest meanwhile.
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
    """Hash a body with its format as the seed.

    The format is in the header, so one flipped bit there must not turn it into another valid format.
    """
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
