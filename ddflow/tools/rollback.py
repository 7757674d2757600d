"""Roll a state back: publish an older version of the state again, as its newest version.

Guarantees: a rollback either changes nothing, or publishes a new manifest with the next number and the contents of the
older manifest. A rollback deletes no file, keeps damaged manifests, and copies only verified bytes. The new manifest
names copies of all files. A fenced writer may still delete old files that no later manifest named (``engine.garbage``).
The number of a manifest is never used again. Even the number of a damaged
manifest, or of a manifest of which only the mark is left, is never used again.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Final, NamedTuple

from msgspec.json import Decoder
from msgspec.structs import replace

from ddflow.connectors.parquet.sink import OutputFolder
from ddflow.engine.garbage import list_version_blobs
from ddflow.engine.outputs import open_owned_folder
from ddflow.errors import CorruptState, DdflowError, Fenced, OutcomeUnknown, SnapshotExpired, StateRefused
from ddflow.metrics import Look
from ddflow.storage.backlog import Backlog
from ddflow.storage.fields import encode_record
from ddflow.storage.inventory_text import is_state_file, read_inventory_text, rename_files
from ddflow.storage.manifest import Epoch, Manifest, load_manifest
from ddflow.storage.manifest_log import hash_manifest, publish_manifest
from ddflow.storage.opening import State, Trust, open_existing_store
from ddflow.storage.protocol import Blob, Store

_RECEIPTS: Final = Decoder(tuple[Epoch, ...])


class OldVersion(NamedTuple):
    """A version of a state, with its ``number``.

    ``manifest`` is None if it cannot be read, and ``wrong`` lists the faults of the version.
    """

    number: int
    manifest: Manifest | None
    wrong: str | None


@dataclass(frozen=True)
class RollbackResult:
    """The result of `rollback`.

    Attributes
    ----------
    manifest : Manifest
        The new manifest.
    version : int
        The number of the repeated manifest.
    passed : list of str
        The faults of later versions that were not usable.
    hidden : list of str
        Output files of undone epochs, by their old names.
    ahead : dict of str to int
        By output, the last undone epoch that its sink may have.  A sink gets an epoch before a version records that it
        did.  Further writes to such a sink raise `SinkAhead`; ``ddflow sync`` writes the difference to it.
    """

    manifest: Manifest
    version: int
    passed: list[str]
    hidden: list[str]
    ahead: dict[str, int]


def list_versions(state: State, *, trust: Trust = "owner") -> list[OldVersion]:
    """List the kept versions of a state, newest first, with their missing or truncated files.

    Reads no data file: O(bytes of manifests and inventories + files).  Raises `StateRefused` if there is no state.
    """
    with open_existing_store(state, trust=trust) as store:
        lengths = {entry.name: entry.length for entry in store.list_blobs()}
        return [_describe_version(store, number, lengths) for number in _list_manifest_numbers(store)]


def rollback(
    state: State, epoch: int | None = None, *, trust: Trust = "owner", look: Look = lambda size: None
) -> RollbackResult:
    """Make an older version of a state its newest version. Any writer of the state then gets `Fenced`.

    Parameters
    ----------
    state : str, path or Store
        The state's folder, or ``s3://bucket/prefix``.
    epoch : int, optional
        The epoch to restore.  By default the last epoch before the newest.  If the newest version is damaged and an
        older version of the same epoch is complete, the default is this epoch.  If the newest version has the requested
        epoch and is complete, rollback only hides output files.
    trust : {"owner", "group"}
        See `Flow.open`.
    look : callable
        Progress callback: receives the number of bytes read or copied since its last call.

    Returns
    -------
    RollbackResult
        The new manifest, the faults of unusable versions, and the hidden output files.

    Raises
    ------
    SnapshotExpired
        For an epoch that is not kept.
    CorruptState
        If a file of that epoch, or of every version, or ``outputs.json`` is damaged.
    Fenced
        If another writer commits meanwhile.
    DdflowError
        The errors of the store.

    Notes
    -----
    O(bytes of the checked versions).

    Examples
    --------
    >>> from ddflow.storage.memory import MemoryStore
    >>> import pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     for time in (1, 2):
    ...         _ = engine.step({"people": pa.table({"id": [time]})}, time)
    >>> back = rollback(store.reopen())
    >>> back.manifest.epoch, back.manifest.number, back.manifest.note, dd.read(store.reopen(), "people").num_rows
    (1, 3, 'rollback to epoch 1 (manifest 1)', 1)
    """
    with open_existing_store(state, trust=trust, readonly=False) as store:
        numbers = _list_manifest_numbers(store)
        found, passed = _choose_version(store, numbers, epoch, look)
        # Open the folders before publishing, because a folder that cannot be read must stop the rollback. Deletes no
        # file.
        named = [*_load_readable_manifests(store)]
        folders = {each.folder: each for each in named}
        sinks = [
            sink for each in folders.values() if (sink := open_owned_folder(store, each, deleting=False)) is not None
        ]
        made = found
        if found.number != numbers[0]:
            made = _copy_version(store, found, numbers[0] + 1, look)
        ahead = {name: each.epoch for each in named for name in each.sinks if each.epoch > made.epoch}
        return RollbackResult(made, found.number, passed, _withdraw_outputs(store, made, sinks), ahead)


def _list_manifest_numbers(store: Store) -> list[int]:
    """List the numbers of all manifests, in descending order. Include a lost manifest whose mark still exists."""
    marked, numbers = store.find_last_published(), store.list_manifests()
    if marked > max(numbers, default=-1):
        numbers.append(marked)
    if not numbers:
        raise StateRefused(f"go back in {store.where}", "there is no state", "pass the place of a state")
    return numbers[::-1]


def _describe_version(store: Store, number: int, lengths: dict[str, int]) -> OldVersion:
    manifest = None
    try:
        manifest = load_manifest(store, number)
        wrong = [
            blob.name
            for blob in list_version_blobs(store, manifest)
            if lengths.get(blob.name) != blob.length and is_state_file(blob)
        ]
    except CorruptState as error:
        return OldVersion(number, manifest, f"{error.asked}: {error.found}")
    return OldVersion(number, manifest, f"missing or truncated: {', '.join(sorted(wrong))}" if wrong else None)


def _choose_version(store: Store, numbers: list[int], epoch: int | None, look: Look) -> tuple[Manifest, list[str]]:
    """Choose the version to restore, after reading all its files.

    Return also the faults of the versions that cannot be used.
    """
    passed: list[str] = []
    most: int | None = None
    for number in numbers:
        try:
            manifest = load_manifest(store, number)
        except CorruptState as error:
            passed.append(f"{error.asked}: {error.found}")
            continue
        wanted = epoch if epoch is not None else most
        if wanted is not None and (manifest.epoch > wanted or (epoch is not None and manifest.epoch < epoch)):
            continue
        try:
            for blob in list_version_blobs(store, manifest):
                if is_state_file(blob):
                    store.map_blob(blob)
                    look(blob.length)
        except CorruptState as error:
            passed.append(f"manifest {number}, of epoch {manifest.epoch}: {error.asked}: {error.found}")
            most = manifest.epoch if most is None else most
            continue
        if epoch is None and number == numbers[0]:
            most = manifest.epoch - 1  # the newest version is complete, so restore the epoch before it
            continue
        return manifest, passed
    remedy = "restore it from a backup, or replay the log into a new state"
    asked = f"go back to {'an older version' if epoch is None else f'epoch {epoch}'} of {store.where}"
    if passed:
        raise CorruptState(asked, "no kept version is intact: " + "; ".join(passed), remedy)
    raise SnapshotExpired(
        asked, f"none of the versions {numbers[::-1]} fits", f"choose one of ddflow rollback --list; or {remedy}"
    )


def _copy_version(store: Store, old: Manifest, number: int, look: Look) -> Manifest:
    """Publish a copy of an old manifest that names copies of its files. O(bytes)."""
    made: dict[str, Blob] = {}
    try:
        for blob in [*list_version_blobs(store, old)]:
            if blob.name not in made and blob.name.endswith(".arrow"):
                made[blob.name] = _copy_blob(store, blob)
                look(blob.length)
        parts = tuple(_rewrite_inventory(store, part, made) for part in old.inventories)
        made |= {blob.name: blob for blob in parts}
        reader = Backlog(store)
        older = _RECEIPTS.decode(rename_files(encode_record(tuple(reader.list_receipts(old.backlog))), made))
        receipts = _RECEIPTS.decode(rename_files(encode_record(old.receipts), made))
        backlog, older = reader.move_receipts((), older, 0, 0)
        made |= {part.file.name: part.file for part in backlog}
        new = replace(
            old,
            number=number,
            nonce=store.nonce,
            written=int(time() * 1000),
            inventories=parts,
            backlog=backlog,
            receipts=tuple(
                replace(each, digest=_compute_digest(store, old.number), written=old.written)
                if each.epoch == old.epoch and not each.digest
                else each
                for each in (*older, *receipts)
            ),
            previous=_compute_digest(store, number - 1),
            note=f"rollback to epoch {old.epoch} (manifest {old.number})",
        )
        store.fsync_blob_names()
        if publish_manifest(store, new) is None:
            raise Fenced(
                f"go back in {store.where}",
                f"another writer has published manifest {number} in the meantime",
                "stop the writer, check what it wrote, and try again",
            )
    except OutcomeUnknown:
        raise
    except BaseException:
        for blob in made.values():
            with suppress(DdflowError):
                store.delete(blob.name)
        raise
    store.mark_published(number)
    return new


def _compute_digest(store: Store, number: int) -> str:
    """Compute the digest of a manifest, even if it is damaged; "" if it is lost."""
    with suppress(CorruptState):
        return hash_manifest(store.read_manifest(number))
    return ""


def _copy_blob(store: Store, blob: Blob) -> Blob:
    whole = store.map_blob(blob)
    return store.put(blob.name.rpartition(".")[2], whole)


def _rewrite_inventory(store: Store, part: Blob, made: dict[str, Blob]) -> Blob:
    """Write a partition's inventory with the names of the copies, in one file.

    Later commits split the inventory into several files again.
    """
    data = rename_files(read_inventory_text(store, part).data, made)
    return store.put("json", data)


def _withdraw_outputs(store: Store, made: Manifest, sinks: list[OutputFolder]) -> list[str]:
    """Hide the files of undone epochs in all output folders, and list their paths."""
    found = [(sink, sink.list_published_after(made.epoch)) for sink in sinks]
    # Meanwhile another writer may have committed more epochs. A writer commits an epoch before it shows the files of
    # the epoch, so the manifests name all visible files.
    again = {
        blob.name
        for each in _load_readable_manifests(store)
        if each.number >= made.number
        for blob in each.output_files()
    }
    done = list[str]()
    for sink, shown in found:
        over = [each for each in shown if each.name not in again]
        sink.hide_fragments(over)
        sink.sync()
        done += [each.place for each in over]
    return sorted(done)


def _load_readable_manifests(store: Store) -> Iterator[Manifest]:
    for number in store.list_manifests():
        with suppress(CorruptState):
            yield load_manifest(store, number)
