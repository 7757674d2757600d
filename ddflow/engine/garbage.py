"""Collect garbage. Delete the files that no version of a state names, while other processes may use the state.

Guarantees: no kept manifest and no later manifest names a deleted file. If any needed manifest or inventory cannot be
read, nothing is deleted. Rule: if a file was put before manifest K was published, and K does not name the file, no
later manifest names it. A writer can publish K + 1 only after reading K, and K + 1 names only files of K and newer
files. A rollback names copies of files, and these copies are newer files. So if manifest K allows the deletion of a
file, the file can also be deleted later, even if the deleting process is paused for a week, fenced and resumed. A file
counts as put before K if, by the clock of the store, the file is older than the youngest file of K. The youngest file
of K is older than K. `gc` lists files before it reads manifests. So a file that is put and published while `gc` runs
counts as named. If a file was put after manifest K was published, the file stays until K + 1 is published, whatever its
age.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import Final

from ddflow.engine.checkpoint import StoredInventory
from ddflow.engine.outputs import open_owned_folder
from ddflow.errors import CorruptState
from ddflow.storage.backlog import Backlog
from ddflow.storage.manifest import Manifest, load_manifest, load_newest_manifest
from ddflow.storage.manifest_log import GRACE
from ddflow.storage.opening import State, Trust, open_existing_store
from ddflow.storage.protocol import Blob, BlobEntry, Store

DAY: Final = 86_400.0
"""The age in seconds after which a file that no manifest names is garbage."""
TICK: Final = 2.0
"""A file counts as put before another file only if it is older by more than this number of seconds.

Clocks of some stores are coarse.
"""


@dataclass(frozen=True)
class CollectedGarbage:
    """The files that `gc` deleted or, with ``dry_run``, would delete.

    Attributes
    ----------
    manifests : list of int
        The numbers of the deleted manifests.
    kept : list of int
        The numbers of the kept manifests.
    files, bytes : int
        The number of deleted files, and their bytes.
    waiting, bytes_waiting : int
        The number of files without a manifest that may still be needed, and their bytes.
    outputs : list of str
        The paths of the deleted fragments that failed commits left in the folder of outputs.

    Examples
    --------
    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     for time in range(4):
    ...         _ = engine.step({"people": pa.table({"id": [time]})}, time)
    >>> done = gc(store.reopen(), grace=0)
    >>> done.manifests, done.kept
    ([0, 1, 2], [3, 4])
    """

    manifests: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    waiting: int = 0
    bytes_waiting: int = 0
    outputs: list[str] = field(default_factory=list)


def gc(
    state: State,
    *,
    grace: float = GRACE,
    orphans: float = DAY,
    dry_run: bool = False,
    trust: Trust = "owner",
) -> CollectedGarbage:
    """Delete the expired versions of a state, and delete the files that no version names.

    Parameters
    ----------
    state : str, path or Store
        The state's folder, or ``s3://bucket/prefix``.
    grace : float
        How many seconds a version is kept after the next version was published. The two newest versions stay.
    orphans : float
        The age, in seconds, at which a file that was never named is deleted; a day by default.
    dry_run : bool
        Whether to only report, and delete nothing.
    trust : {"owner", "group"}
        As in `Flow.open`.

    Returns
    -------
    CollectedGarbage
        The deleted files.

    Raises
    ------
    CorruptState, DdflowError
        If the newest version, a kept version, or a manifest less than ``orphans`` seconds old cannot be read. Then
        nothing is deleted. Also for errors of the store.

    Notes
    -----
    O(m + f), for m manifests and f files.
    """
    with open_existing_store(state, trust=trust, readonly=dry_run) as store:
        sink = open_owned_folder(store, load_newest_manifest(store), deleting=True)
        outputs = [] if sink is None else sink.list_hidden_fragments()
        entries = store.list_blobs()  # before the manifests are read, as the module's docstring explains
        manifest = load_newest_manifest(store)
        if manifest is None:
            return CollectedGarbage()
        kept, expired = split_versions(store, manifest, grace, orphans)
        backlog = Backlog(store)
        named = {each.number: _collect_referenced_files(store, each, backlog, manifest) for each in kept}
        every = set[str]().union(*named.values())
        over = _find_expired_files(store, expired, backlog, manifest) if len(every) < len(entries) else set()
        gone, waiting = _split_unreferenced_files(entries, named[manifest.number], every, over, orphans)
        since = manifest.written / 1000
        outputs = [each for each in outputs if each.name not in every and each.written < since and each.age >= orphans]
        if not dry_run:
            for number in expired:  # manifests before their files, so that no manifest names a missing file
                store.delete_manifest(number)
            for entry in gone:
                store.delete(entry.name)
            if sink is not None:
                sink.delete_leftovers(outputs)
        return CollectedGarbage(
            expired,
            sorted(named),
            len(gone),
            sum(each.length for each in gone),
            len(waiting),
            sum(each.length for each in waiting),
            [each.place for each in outputs],
        )


def split_versions(store: Store, manifest: Manifest, grace: float, orphans: float) -> tuple[list[Manifest], list[int]]:
    """Return the manifests to keep, newest first, and the numbers of the manifests to delete, in ascending order.

    O(bytes of kept manifests). Raises `CorruptState` if a manifest cannot be read and is too young to delete.
    """
    kept, damaged, now = [manifest], list[int](), time()
    numbers = [number for number in store.list_manifests() if number < manifest.number]
    while numbers:
        age = now - kept[-1].written / 1000
        if len(kept) > 1 and age >= grace:
            break
        number = numbers.pop()
        try:
            kept.append(load_manifest(store, number))
        except CorruptState as error:
            if number not in store.list_manifests():
                continue  # another writer has deleted the manifest
            if age < orphans:
                raise CorruptState(
                    f"collect the files that {error.asked} does not name",
                    error.found,
                    f"nothing was deleted; examine it, or wait: once manifest {kept[-1].number} is "
                    f"{orphans:,.0f} s old, the damaged manifest is deleted like any other",
                ) from None
            damaged.append(number)
    return kept, sorted([*numbers, *damaged])


def collect_file_names(store: Store, manifest: Manifest) -> set[str]:
    """Collect the names of all files of a version, except the files of its backlog. O(bytes of inventories).

    Raises `CorruptState`.
    """
    return {blob.name for blob in _list_version_files(store, manifest)}


def list_version_blobs(store: Store, manifest: Manifest, backlog: Backlog | None = None) -> Iterator[Blob]:
    """List all files of a version: its inventories, the files that they list, its outputs and its backlog.

    Raises `CorruptState`. ``backlog``: a reader of backlogs, which can be shared by several versions.
    """
    yield from _list_version_files(store, manifest)
    yield from (backlog or Backlog(store)).list_files(manifest.backlog)


def _list_version_files(store: Store, manifest: Manifest) -> Iterator[Blob]:
    yield from manifest.inventories
    yield from manifest.output_files()
    for part in manifest.inventories:
        yield from StoredInventory.read(store, part).text.files


def _collect_referenced_files(store: Store, manifest: Manifest, backlog: Backlog, newest: Manifest) -> set[str]:
    """Collect the files that a version names. Omit backlog files that the newest version names too."""
    return (
        collect_file_names(store, manifest)
        | backlog.find_different_files(manifest.backlog, () if manifest is newest else newest.backlog)[0]
    )


def _find_expired_files(store: Store, expired: list[int], backlog: Backlog, newest: Manifest) -> set[str]:
    """Collect the files that the expired versions name."""
    over = set[str]()
    for number in expired:
        with suppress(CorruptState):  # the files of a damaged manifest count as never named
            over |= _collect_referenced_files(store, load_manifest(store, number), backlog, newest)
    return over


def _split_unreferenced_files(
    entries: list[BlobEntry], newest: set[str], named: set[str], over: set[str], orphans: float
) -> tuple[list[BlobEntry], list[BlobEntry]]:
    """Split the files that no kept manifest names into files to delete and files to keep for now.

    ``over``: the files that only expired versions name.
    """
    unnamed = [entry for entry in entries if entry.name not in named]
    youngest = min((entry.age for entry in entries if entry.name in newest), default=math.inf)
    gone, waiting = list[BlobEntry](), list[BlobEntry]()
    for entry in unnamed:
        dead = entry.name in over or (entry.age >= orphans and entry.age > youngest + TICK)
        (gone if dead else waiting).append(entry)
    return gone, waiting
