"""Collecting garbage: files that no version of a state names are deleted, whatever other processes do there meanwhile.

Invariant: no file is deleted that a kept manifest names, or that a later manifest will name. A collection that cannot
account for something deletes nothing. A writer puts files long before it publishes, and may be paused anywhere, for a
week. The rule rests on one fact: *a file that was put before manifest K was published, and that K does not name, is
named by no later manifest*. Number K + 1 is only given to a writer that has read K, and that names files of K or files
that it put since. The same holds for the next number, and a rollback names copies, which it put since. So a decision
from K stays right, even if the process that made it is stopped, fenced and woken. The store's own clock says whether a
file was put before K: the youngest file that K names is older than K. Files are listed before manifests are read, so
files that are put and published meanwhile count as named. Files that were put after K stay until K + 1 is published,
however old they are.

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
"""Seconds after which a file without a manifest is garbage."""
TICK: Final = 2.0
"""Seconds by which one file must be older than another to be put before it: some stores' clocks tell no less."""


@dataclass(frozen=True)
class CollectedGarbage:
    """The files that `gc` deleted; with ``dry_run``, the files that it would delete.

    Attributes
    ----------
    manifests : list of int
        The numbers of the deleted manifests.
    kept : list of int
        The numbers of the kept ones.
    files, bytes : int
        Deleted files, and their bytes.
    waiting, bytes_waiting : int
        Files without a manifest that may still be needed, and their bytes.
    outputs : list of str
        Where failed commits left fragments in the sink of the outputs.
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
    """Delete the expired versions of a state, and files that no version names.

    Parameters
    ----------
    state : str, path or Store
        The state's folder, or ``s3://bucket/prefix``.
    grace : float
        How many seconds a version outlives its successor.  The two newest stay.
    orphans : float
        The age, in seconds, at which a file that was never named is deleted; a day by default.
    dry_run : bool
        Delete nothing, and only report.
    trust : {"owner", "group"}
        As in `Flow.open`.

    Returns
    -------
    CollectedGarbage
        What was deleted, or would be.

    Raises
    ------
    CorruptState
        If the newest version, a kept one, or a manifest less than ``orphans`` old cannot be read. Nothing is deleted
        then. The errors of the store are a `DdflowError`, too.

    Notes
    -----
    O(m + f), for m manifests and f files.
    """
    with open_existing_store(state, trust=trust, readonly=dry_run) as store:
        sink = open_owned_folder(store, load_newest_manifest(store), deleting=True)
        outputs = [] if sink is None else sink.list_hidden_fragments()
        entries = store.list_blobs()  # before the manifests are read, see the header
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
            for number in expired:  # before what they name, so that none ever names what is not there
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
    """Split the manifests into those to keep, from the newest down, and the numbers of the others, ascending.

    O(bytes of those kept). Raises `CorruptState` for an unreadable one that is too young to delete.
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
                continue  # another writer's sweep was here
            if age < orphans:
                raise CorruptState(
                    f"collect what {error.asked} does not name",
                    error.found,
                    f"nothing was deleted; look into it, or wait: when manifest {kept[-1].number} is "
                    f"{orphans:,.0f} s old, the damaged one goes like any other",
                ) from None
            damaged.append(number)
    return kept, sorted([*numbers, *damaged])


def collect_file_names(store: Store, manifest: Manifest) -> set[str]:
    """Collect the names of all files of a version, except its backlog. O(bytes of its inventories).

    Raises `CorruptState`.
    """
    return {blob.name for blob in _list_version_files(store, manifest)}


def list_version_blobs(store: Store, manifest: Manifest, backlog: Backlog | None = None) -> Iterator[Blob]:
    """List all files of a version: its partitions, their files, its outputs, its backlog. Like `collect_file_names`.

    ``backlog``: a reader to share between several versions.
    """
    yield from _list_version_files(store, manifest)
    yield from (backlog or Backlog(store)).list_files(manifest.backlog)


def _list_version_files(store: Store, manifest: Manifest) -> Iterator[Blob]:
    yield from manifest.inventories
    yield from manifest.output_files()
    for part in manifest.inventories:
        yield from StoredInventory.read(store, part).text.files


def _collect_referenced_files(store: Store, manifest: Manifest, backlog: Backlog, newest: Manifest) -> set[str]:
    """Collect the files that a version names; of its backlog only files that the newest version does not name."""
    return (
        collect_file_names(store, manifest)
        | backlog.find_different_files(manifest.backlog, () if manifest is newest else newest.backlog)[0]
    )


def _find_expired_files(store: Store, expired: list[int], backlog: Backlog, newest: Manifest) -> set[str]:
    """Collect the files that expired versions name."""
    over = set[str]()
    for number in expired:
        with suppress(CorruptState):  # then its files are like those that nobody named
            over |= _collect_referenced_files(store, load_manifest(store, number), backlog, newest)
    return over


def _split_unreferenced_files(
    entries: list[BlobEntry], newest: set[str], named: set[str], over: set[str], orphans: float
) -> tuple[list[BlobEntry], list[BlobEntry]]:
    """Split the files without a name into those to delete and those to keep for now.

    ``over``: the files that only expired versions name.
    """
    unnamed = [entry for entry in entries if entry.name not in named]
    youngest = min((entry.age for entry in entries if entry.name in newest), default=math.inf)
    gone, waiting = list[BlobEntry](), list[BlobEntry]()
    for entry in unnamed:
        dead = entry.name in over or (entry.age >= orphans and entry.age > youngest + TICK)
        (gone if dead else waiting).append(entry)
    return gone, waiting
