"""Write the outputs of a state as Parquet files that stay hidden until their epoch is committed.

An epoch is written in two steps, as in Trino's connectors. Tasks write durable, hidden files (`write_fragment`). After
the manifest with their names is published, `publish_epoch` renames them to visible names.

A crash between the steps leaves hidden files. Garbage collection deletes those without a manifest
(`list_hidden_fragments`, `delete_leftovers`). If their epoch is committed, the next process that opens the state
publishes it.

Guarantees: visible files belong to committed epochs, each once. Publishing an epoch again changes nothing.
"""

import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ddflow.connectors.parquet.folder import MARK, READABLE, OwnedFolder, build_folder_name
from ddflow.errors import CommandFix, ErrorText, SpecError, StateRefused
from ddflow.storage import address
from ddflow.storage.folder.disk import Disk
from ddflow.storage.folder.site import ManagedFolder
from ddflow.storage.protocol import Blob, Store, missing_file_error, verify_bytes

COPY: Final = ErrorText("restore it from a copy, or go back with ", CommandFix("rollback"))
SHOWN: Final = re.compile(r"(?P<epoch>[0-9]{12,})-(?P<name>[0-9a-f]{16}-[0-9]{1,12}\.parquet)")
HIDDEN: Final = re.compile(r"\.(?P<name>[0-9a-f]{16}-[0-9]{1,12}\.parquet)\.hidden")
PLACE: Final = re.compile(rf"(?:[A-Za-z0-9][A-Za-z0-9._]{{0,{READABLE - 1}}}-)?[0-9a-f]{{16}}")
"""Pattern for the folder names of outputs."""
_DISK: Final = Disk()


class Fragment(NamedTuple):
    """File of one ``output`` from one call or task: the ``blob`` as its manifest names it."""

    output: str
    blob: Blob


class FolderOwner(NamedTuple):
    """Owner of a folder: the id of the ``state``, and its address ``at`` the claim, because a copy has the same id."""

    state: str
    at: str


class LeftoverFragment(NamedTuple):
    """Fragment that may belong to no committed epoch.

    It may also belong to a running commit in this or another process. Only its age shows that, so ``written`` and
    ``age`` must be accurate.

    ``place``: the path of the file.  ``name``: the name of its blob.  ``written``: Unix seconds.  ``age``: seconds
    since then, by the folder's clock.
    """

    place: str
    name: str
    written: float
    age: float


class OutputFolder:
    """Folder with the outputs of a state.  ``nonce``: the nonce of the writer.  ``trust``: as for a state.

    The constructor reads and creates nothing.  Raises `StateRefused` for an invalid path.  Every method raises
    `StorageFailed` if the disk fails.  The order of calls:

    1. The driver opens a state: `check_claim`, `claim`, and `publish_epoch` for all epochs that its newest manifest can
       return again.
    2. An engine calls `write_fragment` in each call, and each task for its part; then `sync`, before the writer names
       the fragments in a manifest.
    3. The writer publishes the manifest and calls `publish_epoch`; then `sync`, before it publishes the next manifest.
    4. Repeated epochs, and other readers of the state, use `find_fragment_size` and `read_fragment`.
    5. Garbage collection uses `read_owner`, `list_hidden_fragments` and `delete_leftovers`.
    6. A rollback uses `read_owner`, `list_published_after`, `hide_fragments` and `sync`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     outputs, rows = OutputFolder(place, "00ff00ff00ff00ff"), pa.table({"n": [1, 2]})
    ...     outputs.claim("0" * 32, "state", ["by city"])
    ...     fragment = Fragment("by city", outputs.write_fragment("by city", rows))
    ...     folder = os.path.join(place, build_folder_name("by city"))
    ...     hidden = os.listdir(folder)
    ...     outputs.publish_epoch(7, [fragment])
    ...     hidden, os.listdir(folder), outputs.read_fragment(7, fragment, rows.schema) == rows
    ...     outputs.hide_fragments(outputs.list_published_after(6))
    ...     os.listdir(folder) == hidden
    (['.00ff00ff00ff00ff-1.parquet.hidden'], ['000000000007-00ff00ff00ff00ff-1.parquet'], True)
    True
    """

    def __init__(
        self, path: str | os.PathLike[str], nonce: str = "0" * 16, trust: str = "owner", disk: Disk = _DISK
    ) -> None:
        self.site = ManagedFolder(disk, address.require_folder(path, "write outputs to"), trust, "the outputs folder")
        self.location, self._unsynced = OwnedFolder(self.site, nonce), set[str]()

    @property
    def target(self) -> str:
        """Path of the folder."""
        return self.site.path

    def check_claim(self, state: str | None, schemas: Mapping[str, pa.Schema]) -> None:
        """Check that a state can write its outputs here, before anything is created.  O(columns).

        ``state``: the id of the state, None for a new state.  ``schemas``: the schemas of updates by output.  Raises
        `SpecError` for rows that Parquet cannot hold, `StateRefused` for a folder of another state, and `CorruptState`
        for an unreadable ``outputs.json``.
        """
        self.location.check_folder(state)
        for name, schema in schemas.items():
            try:
                pq.write_table(schema.empty_table(), io.BytesIO())
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise SpecError(
                    f"outputs= for {name!r}",
                    f"Parquet cannot hold its rows ({error})",
                    "project it to other types, or leave outputs= out",
                ) from None

    def claim(self, state: str, at: str, names: Iterable[str]) -> None:
        """Claim the folder for a state, and durably create its missing parts.  O(names).

        ``state``: the id of the state.  ``at``: its address.  You may repeat the call with more ``names`` of outputs.
        If several states claim the folder at once, one succeeds.  Raises `StateRefused`, also for a name that is not
        UTF-8, `CorruptState` and `StorageFull`.
        """
        self.location.claim(state, at, names)

    def read_owner(self) -> FolderOwner | None:
        """Return the owner; None without one.  O(1).  Raises `CorruptState` for an unreadable record."""
        mark = self.location.read_record()
        return None if mark is None else FolderOwner(mark.state, mark.at)

    @property
    def record_path(self) -> str:
        """Path of ``outputs.json``."""
        return f"{self.target}/{MARK}"

    def write_fragment(self, name: str, table: pa.Table) -> Blob:
        """Write at least one update of an output to a hidden file.  O(rows).

        The bytes are durable, and the name is durable after `sync`.  A task may run twice, so the file may never be
        published.

        Raises `StorageFull`, and `StateRefused` if the folder of the output is missing.
        """
        called = f"{self.location.nonce}-{next(self.location.numbers)}.parquet"
        path = self._hidden_path(name, called)
        if not self.site.is_existing_path(os.path.dirname(path)):
            raise StateRefused(
                f"write an output to {os.path.dirname(path)}",
                "that folder is not there",
                "mount the same folder on the driver and all executors; where it was deleted, open the "
                "state again, which makes it",
            )
        sink = self.site.write_file(path, "write an output", lambda sink: pq.write_table(table, sink))
        self._unsynced.add(os.path.dirname(path))
        return Blob(called, sink.size, sink.state.digest())

    def sync(self) -> None:
        """Make the names of files durable.  O(outputs), with one sync for each."""
        with self.site.translate_disk_errors("sync the outputs"):
            for path in sorted(self._unsynced):
                self.site.disk.sync_dir(path)
        self._unsynced.clear()

    def publish_epoch(self, epoch: int, fragments: Iterable[Fragment]) -> None:
        """Make the files of a committed epoch visible; visible files stay so.  O(files); durable after `sync`.

        Call it after the manifest is durable, in the order of epochs, with all ``fragments`` of the epoch.
        """
        for fragment in fragments:
            self._publish_fragment(epoch, fragment)

    def _publish_fragment(self, epoch: int, fragment: Fragment) -> None:
        hidden, shown = (
            self._hidden_path(fragment.output, fragment.blob.name),
            self.build_fragment_path(epoch, fragment),
        )
        with self.site.translate_disk_errors("show an output"):
            try:
                self.site.disk.rename(hidden, shown)
            except FileNotFoundError:
                if not self.site.is_existing_path(os.path.dirname(shown)):
                    return
            # Also if another process renamed it, since that process may have crashed before its sync.
            self._unsynced.add(os.path.dirname(shown))

    def find_fragment_size(self, epoch: int, fragment: Fragment) -> int | None:
        """Return the size of a file in bytes, visible or hidden; None if it is missing.  O(1)."""
        with self.site.translate_disk_errors("look at an output"):
            for path in (
                self._hidden_path(fragment.output, fragment.blob.name),
                self.build_fragment_path(epoch, fragment),
            ):
                with suppress(FileNotFoundError):
                    return self.site.disk.status(path).size
        return None

    def read_fragment(self, epoch: int, fragment: Fragment, schema: pa.Schema) -> pa.Table:
        """Read the rows of a file, visible or hidden, in a schema of updates.  O(bytes).  Raises `CorruptState`."""
        # Only in this thread: a thread of Arrow that frees our bytes while Python ends crashes the process.
        file = pq.ParquetFile(pa.BufferReader(self._read_verified_bytes(epoch, fragment)), pre_buffer=False)
        return file.read(use_threads=False).cast(schema)

    def count_rows(self, epoch: int, fragment: Fragment) -> int:
        """Verify all bytes of a file and count its rows.  O(bytes).  Raises `CorruptState`."""
        return int(pq.ParquetFile(pa.BufferReader(self._read_verified_bytes(epoch, fragment))).metadata.num_rows)

    def _read_verified_bytes(self, epoch: int, fragment: Fragment) -> bytes:
        """Read a file and verify it.  O(bytes)."""
        shown, hidden, blob = (
            self.build_fragment_path(epoch, fragment),
            self._hidden_path(fragment.output, fragment.blob.name),
            fragment.blob,
        )
        with self.site.translate_read_errors(f"file {blob.name}", missing_file_error(shown, self.target), COPY):
            for path in (shown, hidden, shown):  # another process may publish it meanwhile
                with suppress(FileNotFoundError):
                    return bytes(verify_bytes(self.site.disk.read(path, blob.length), blob, self.target))
        raise missing_file_error(shown, self.target)

    def build_fragment_path(self, epoch: int, fragment: Fragment) -> str:
        """Return the visible path of a file, after its epoch is committed."""
        return self.site.child_path(build_folder_name(fragment.output), f"{epoch:012}-{fragment.blob.name}")

    def list_hidden_fragments(self) -> list[LeftoverFragment]:
        """List the hidden files.  O(files)."""
        return [found for match, found in self._find_matching_leftovers(HIDDEN)]

    def delete_leftovers(self, leftovers: Iterable[LeftoverFragment]) -> None:
        """Delete the files; a file that cannot be deleted stays.  O(files)."""
        for each in leftovers:
            self.site.try_unlink(each.place)

    def find_published_folder(self, name: str, epoch: int) -> str | None:
        """Return the folder of an output if it has visible files of epochs up to ``epoch``, else None.  O(files)."""
        place = self.site.child_path(build_folder_name(name))
        with self.site.translate_disk_errors("look for files of an output"):
            there = self.site.disk.names(place) if self.site.is_existing_path(place) else ()
        shown = filter(None, map(SHOWN.fullmatch, there))
        return place if any(int(match["epoch"]) <= epoch for match in shown) else None

    def list_published_after(self, epoch: int) -> list[LeftoverFragment]:
        """List the visible files of epochs after ``epoch``.  O(files)."""
        return [found for match, found in self._find_matching_leftovers(SHOWN) if int(match["epoch"]) > epoch]

    def hide_fragments(self, leftovers: Iterable[LeftoverFragment]) -> None:
        """Hide the files again; a missing file counts as hidden.  O(files); durable after `sync`."""
        for each in leftovers:
            folder = os.path.dirname(each.place)
            with self.site.translate_disk_errors("hide an output"), suppress(FileNotFoundError):
                self.site.disk.touch(each.place)
                self.site.disk.rename(each.place, f"{folder}/.{each.name}.hidden")
                self._unsynced.add(folder)

    def _hidden_path(self, name: str, called: str) -> str:
        """Return the hidden path of a file.  ``called``: its name in a manifest."""
        return self.site.child_path(build_folder_name(name), f".{called}.hidden")

    def _find_matching_leftovers(self, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], LeftoverFragment]]:
        """Yield the files in the folders of outputs that match a pattern."""
        disk = self.site.disk
        with self.site.translate_disk_errors("look for leftovers"):
            for name in disk.names(self.target) if self.site.is_existing_path(self.target) else ():
                there = self.site.child_path(name)
                if PLACE.fullmatch(name) and disk.status(there).kind == "folder":
                    for match in filter(None, map(pattern.fullmatch, disk.names(there))):
                        path = f"{there}/{match[0]}"
                        try:
                            changed = disk.status(path).changed
                        except OSError:  # renamed meanwhile
                            continue
                        yield match, LeftoverFragment(path, match["name"], changed, disk.read_clock() - changed)


def check_outputs_path(given: Any) -> None:
    """Raise `StateRefused` for an invalid target, before anything is opened.  O(length)."""
    address.require_folder(given, "write outputs to")


def open_output_folder(
    target: str | os.PathLike[str], store: Store | None = None, trust: str = "owner"
) -> OutputFolder:
    """Return the folder of outputs at a path, without reading or creating anything.

    ``store``: the store of the state, which provides the nonce of this writer.  Without a store, do not write
    fragments.  ``trust``: as for a state.  Raises `StateRefused` for an invalid target.
    """
    nonce = "0" * 16 if store is None else store.nonce
    # A state in a folder has its own disk object; other states use the local disk.
    return OutputFolder(target, nonce, trust, getattr(store, "disk", Disk()))
