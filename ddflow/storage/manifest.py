"""Encode one version of a state as a manifest, which has a checksum. Decode a manifest and check all its fields.
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
ddflow.errors.CorruptState: manifest 0 of memory: its body has 428 bytes, but its header says 429; go back ...
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import xxhash
from msgspec import Meta
from msgspec.json import Decoder
from msgspec.structs import replace

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

FORMAT: Final = 13
"""The format that `Manifest.encode` writes, and the only format that `Manifest.decode` reads."""

DEPTH: Final = 200
"""The maximum nesting of a plan. If the stack is already deep, JSON with more nesting might not be decoded."""

PARTITIONS: Final = 1 << 16
"""The maximum number of partitions of a state."""

_HEADER = re.compile(rb"ddflow manifest ([1-9][0-9]{0,5}) (0|[1-9][0-9]{0,11}) ([0-9a-f]{32})\n")


class Manifest(StrictRecord, frozen=True, kw_only=True):
    """One version of a state, with a number. A manifest is stored as bytes with a checksum.

    `decode` returns the manifest that was encoded, or raises `CorruptState` with the number and the place of the
    manifest. A flipped bit or a missing byte is always detected. A checksum detects only accidents, so `decode` also
    checks each field. A manifest names blobs but does not read them.

    - ``id``: the id of the state, 32 hex digits. A copy of the state has the same id.
    - ``nonce``: the nonce of the writer, 16 hex digits.
    - ``written``: the date of the manifest, in unix milliseconds.
    - ``secret``: the secret of the state's hashes, two uint64.
    - ``plan``: the flow as JSON. ``fingerprint``: the hash of the plan, 32 hex digits.
    - ``frontier``, ``last`` (the time of the last step), ``since``: int64.
    - ``inventories``: JSON blobs. The blob of stage l and partition p is at position l * ``partitions`` + p. If the
      list has only one blob, the inventory in this blob covers all stages. The list is empty before the first commit.
    - ``receipts``: the receipts of the last epochs, ascending. ``backlog``: files of older receipts that a sink needs.
    - ``folder``: the folder of outputs; None if outputs are blobs of the state.
    - ``note``: the reason for this version.
    - ``previous``: the digest of the previous manifest, 32 hex digits, "" for none.
    - ``partitions``: the number of partitions.
    - ``horizons``: by input whose rows expire, the greatest order of all steps. ``greatest``: by input, the greatest
      event time of all steps. By input with a watermark, ``greatest`` is the greatest word of its column, and
      ``horizons`` the complement of the least word. A state that a local engine writes also has ``horizons`` and
      ``greatest`` in its inventory.
    - ``feed``: the query that feeds the state in batches. ``fed``: by input of any call, how calls fed the input.
    - ``past``: the earlier columns of ``receipts`` that the plan has changed since, ascending by epoch.
    - ``sources``: the sources by name, with positions after the rows of this epoch. ``sinks``: the sinks by output.
    - ``added``: by input, the columns that a source added; a flow need not declare these columns.
    - ``dropped``: by removed output, its last epoch. If an output with the name of a removed output is added later, it
      is a new output.
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
        """The number of the first epoch with a receipt, or None without receipts."""
        return self.backlog[0].first if self.backlog else self.receipts[0].epoch if self.receipts else None

    def encode(self, before: Manifest | None = None) -> bytes:
        """Encode the manifest as a header and a body. O(bytes).

        The header is one line, ``ddflow manifest <format> <length of body> <xxh3-128 of body, with the format as its
        seed>``. The body is compact JSON. ``before``: a manifest that was encoded or decoded. Its plan and its receipts
        are not checked again. Raises `StateRefused` for a manifest that `decode` would refuse or decode differently.
        """
        asked = f"write manifest {self.number}"
        try:
            body, new = encode_record(self), self
            if before is not None:
                checked, at = {*map(id, before.receipts)}, 0
                while at < len(self.receipts) and id(self.receipts[at]) in checked:
                    at += 1
                new = replace(self, plan={} if self.plan is before.plan else self.plan, receipts=self.receipts[at:])
            # Fields are checked only when a manifest is decoded, not when it is built. NaN would be decoded as null.
            if _decode_body(body if new is self else encode_record(new), self) != new:
                raise ValueError("its plan has a value that JSON cannot hold")
        except REFUSALS as error:
            raise _unreadable_error(asked, shorten(str(error))) from None
        data = f"ddflow manifest {FORMAT} {len(body)} {_compute_checksum(body, FORMAT)}\n".encode("ascii") + body
        if len(data) > MANIFEST:
            raise _unreadable_error(asked, f"it has {len(data):,} bytes, but the limit is {MANIFEST:,}")
        return data

    @classmethod
    def decode(cls, data: bytes, number: int, where: str) -> Manifest:
        """Decode a manifest. O(bytes).

        ``number``: the number that the manifest was found under. ``where``: the place of the state. Raises
        `CorruptState` for bytes that `encode` cannot return.
        """
        what = f"manifest {number} of {where}"
        header = _HEADER.match(data[:80])
        if header is None:
            raise damage_error(what, f"it begins with {data[:32]!r}, which is not the header of a manifest")
        format_, length, digest = int(header[1]), int(header[2]), header[3].decode()
        body = data[header.end() :]
        if len(body) != length:
            raise damage_error(what, f"its body has {len(body):,} bytes, but its header says {length:,}")
        found = _compute_checksum(body, format_)
        if found != digest:
            raise damage_error(what, f"it has checksum {found}, but its header says {digest}")
        if format_ != FORMAT:
            raise CorruptState(
                what,
                f"it has format {format_}, but this ddflow reads format {FORMAT}",
                ErrorText(
                    "another ddflow version wrote it: open it with that version, or replay the log into a new state; ",
                    *(CommandFix("rollback"), " goes back to a version of this format, if one is kept"),
                ),
            )
        try:
            # Decode on a new stack, so that the maximum nesting of a plan does not depend on the caller.
            manifest = run_on_new_stack(lambda: _decode_body(body))
        except REFUSALS as error:
            raise damage_error(what, f"its body is not a manifest: {shorten(str(error))}") from None
        if manifest.number != number:
            raise damage_error(what, f"it says that it is manifest {manifest.number}")
        return manifest

    def _check_invariants(self) -> None:
        # Check that decoding an encoded manifest gives the same manifest.
        assert Manifest.decode(self.encode(), self.number, "a check") == self
        # Check that each receipt belongs to a committed epoch, and that no epoch has two receipts.
        given = [receipt.epoch for receipt in self.receipts]
        assert given == sorted(set(given)) and all(epoch <= self.epoch for epoch in given)


_DECODER: Final = Decoder(Manifest)


def load_newest_manifest(store: Store) -> Manifest | None:
    """Load the manifest with the greatest number. Return None if no manifest was ever published. O(manifests + bytes).

    Raises `CorruptState` if the newest manifest is damaged, or if a mark shows that a missing manifest was published.
    An older manifest is never returned instead of a damaged or missing newest manifest. Also raises the errors of
    `Store`.
    """
    while True:
        # Read the mark before the list of manifests. A mark is written after its manifest, so a concurrent commit does
        # not look like a lost manifest.
        marked, numbers = store.find_last_published(), store.list_manifests()
        last = numbers[-1] if numbers else -1
        if marked > last:
            raise CorruptState(
                f"manifest {marked} of {store.where}",
                f"it was committed, but is missing; the newest manifest is {last if numbers else 'none'}",
                REMEDY,
            )
        if last < 0:
            return None
        try:
            return load_manifest(store, last)
        except CorruptState:
            # After the list of manifests was read, another writer may have committed and deleted this manifest.
            if store.list_manifests()[-1:] <= [last]:
                raise


def load_manifest(store: Store, number: int) -> Manifest:
    """Load the manifest with this number. O(bytes). Raises `CorruptState` if it is damaged or missing."""
    return Manifest.decode(store.read_manifest(number), number, store.where)


def _unreadable_error(asked: str, found: str) -> StateRefused:
    return StateRefused(
        asked,
        f"{found}; so ddflow could not read it again",
        "nothing was committed: fix the cause, and open the state again",
    )


def _compute_checksum(body: bytes, format_: int) -> str:
    """Compute the checksum of a body, with the number of the format as the seed.

    The format is in the header, outside the body. Because of the seed, a flipped bit in the format is detected too.
    """
    return xxhash.xxh3_128_hexdigest(body, format_)


def _decode_body(body: bytes, whole: Manifest | None = None) -> Manifest:
    """Decode and check the body of a manifest. Raises one of `REFUSALS`.

    ``whole``: the complete manifest, if the body lacks receipts or the plan. Its epochs are checked.
    """
    decoded = _DECODER.decode(body)
    manifest = decoded if whole is None else whole
    check_epoch_sequence(manifest.backlog)
    first = manifest.receipts[0].epoch if manifest.receipts else None
    if manifest.backlog and manifest.backlog[-1].last + 1 != first:
        raise ValueError(
            f"its backlog ends with epoch {manifest.backlog[-1].last}, but its first receipt is of {first}"
        )
    last = -1
    for receipt in manifest.receipts:
        if not last < receipt.epoch <= manifest.epoch:
            raise ValueError(f"the epochs of its {len(manifest.receipts)} receipts do not ascend to {manifest.epoch}")
        last = receipt.epoch
    until = [each.epoch for each in manifest.past] if manifest.past else []
    if until != sorted(set(until)) or until[-1:] > [manifest.epoch]:
        raise ValueError(f"the epochs {until} of its past columns do not ascend to {manifest.epoch}")
    for fed in manifest.fed.values():
        fed.check_calls(manifest.epoch)
    for name, sink in manifest.sinks.items():
        if sink.epoch > manifest.epoch:
            raise ValueError(f"the sink {name} has acknowledged epoch {sink.epoch}, which is later than the manifest")
    manifest = decoded
    refuse_duplicate_files([call.outputs for receipt in manifest.receipts for call in receipt.calls])
    inventories = manifest.inventories
    if len(inventories) > 1 and len({blob.name for blob in inventories}) < len(inventories):
        raise ValueError("two of its inventories are the same file")
    if len(inventories) % manifest.partitions:
        raise ValueError(
            f"it has {len(inventories)} inventories, which is not a multiple of {manifest.partitions} partitions"
        )
    if max(manifest.secret) >= 1 << 64:
        raise ValueError("its secret is not two words of 64 bits")
    if manifest.plan and _is_plan_too_deep(manifest.plan):
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
