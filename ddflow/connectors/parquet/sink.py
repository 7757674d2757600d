"""Write the outputs of a state as Parquet files that stay hidden until their epoch is committed.

An epoch is written in two steps, as in Trino's connectors. Tasks write durable, hidden files (`write_fragment`). After
the manifest that names these files is published, `publish_epoch` renames the files to visible names.

A crash between the two steps leaves hidden files. Garbage collection deletes the hidden files that no manifest names
(`list_hidden_fragments`, `delete_leftovers`). If the epoch of hidden files is committed, the next process that opens
the state publishes these files.

Guarantees: every visible file belongs to a committed epoch, and each update is visible in exactly one file. Publishing
an epoch a second time changes nothing.
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

COPY: Final = ErrorText("restore it from a backup, or go back with ", CommandFix("rollback"))
SHOWN: Final = re.compile(r"(?P<epoch>[0-9]{12,})-(?P<name>[0-9a-f]{16}-[0-9]{1,12}\.parquet)")
HIDDEN: Final = re.compile(r"\.(?P<name>[0-9a-f]{16}-[0-9]{1,12}\.parquet)\.hidden")
PLACE: Final = re.compile(rf"(?:[A-Za-z0-9][A-Za-z0-9._]{{0,{READABLE - 1}}}-)?[0-9a-f]{{16}}")
"""Pattern for the folder names of outputs."""
_DISK: Final = Disk()


class Fragment(NamedTuple):
    """File with the updates of one ``output`` from one call or task.

    ``blob``: the name, size and digest of the file, as its manifest has them.
    """

    output: str
    blob: Blob


class FolderOwner(NamedTuple):
    """Owner of a folder: the id of the ``state``, and the address of the state when it claimed the folder (``at``).

    A copy of a state has the same id as the state, but another address.
    """

    state: str
    at: str


class LeftoverFragment(NamedTuple):
    """Fragment that may belong to no committed epoch.

    A fragment without a committed epoch can belong to a commit that is still running, in this or another process. Only
    the age of a fragment shows whether its commit may still be running, so ``written`` and ``age`` must be accurate.

    ``place``: the path of the file.  ``name``: the name of its blob.  ``written``: its write time in Unix
    seconds.  ``age``: the seconds since its write time, by the clock of the folder.
    """

    place: str
    name: str
    written: float
    age: float


class OutputFolder:
    """Folder with the outputs of a state.

    ``nonce``: the nonce of the writer.
    ``trust``: the same values as for `Snapshot.open`.

    The constructor neither reads nor creates anything.  Raises `StateRefused` for an invalid path.  Every method raises
    `StorageFailed` if the disk fails.  The methods are called in this order:

    1. The driver opens a state, and calls `check_claim`, `claim`, and `publish_epoch` for all epochs that the newest
       manifest can repeat.
    2. An engine calls `write_fragment` in each call; a task calls `write_fragment` for its part. When its fragments are
       written, the engine or task calls `sync`. Only then does the writer name the fragments in a manifest.
    3. The writer publishes the manifest and calls `publish_epoch`. Before the next manifest, the writer calls `sync`.
    4. Code that repeats an epoch or reads the state calls `find_fragment_size` and `read_fragment`.
    5. Garbage collection calls `read_owner`, `list_hidden_fragments` and `delete_leftovers`.
    6. A rollback calls `read_owner`, `list_published_after`, `hide_fragments` and `sync`.

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
        """Check that a state can write its outputs to the folder.  The method creates nothing.  O(columns).

        ``state``: the id of the state, None for a new state.  ``schemas``: the schemas of updates by output.  Raises
        `SpecError` if Parquet cannot hold the rows, `StateRefused` if the folder belongs to another state, and
        `CorruptState` for an unreadable ``outputs.json``.
        """
        self.location.check_folder(state)
        for name, schema in schemas.items():
            try:
                pq.write_table(schema.empty_table(), io.BytesIO())
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise SpecError(
                    f"outputs= for {name!r}",
                    f"Parquet cannot hold its rows ({error})",
                    "project it to other types, or omit outputs=",
                ) from None

    def claim(self, state: str, at: str, names: Iterable[str]) -> None:
        """Claim the folder for a state, and durably create its missing parts.  O(names).

        ``state``: the id of the state.  ``at``: its address.  You may repeat the call with more ``names`` of outputs.
        If several states claim the folder at the same time, only one state succeeds.  Raises `StateRefused`,
        `CorruptState` and `StorageFull`.  A name that is not UTF-8 raises `StateRefused`.
        """
        self.location.claim(state, at, names)

    def read_owner(self) -> FolderOwner | None:
        """Return the owner; None if the folder has no owner.  O(1).  Raises `CorruptState` for an unreadable record."""
        mark = self.location.read_record()
        return None if mark is None else FolderOwner(mark.state, mark.at)

    @property
    def record_path(self) -> str:
        """Path of ``outputs.json``."""
        return f"{self.target}/{MARK}"

    def write_fragment(self, name: str, table: pa.Table) -> Blob:
        """Write at least one update of an output to a hidden file.  O(rows).

        The bytes of the file are durable when the method returns. The name of the file is durable after `sync`.  A task
        can run twice, so some files are never published.

        Raises `StorageFull`, and `StateRefused` if the folder of the output is missing.
        """
        called = f"{self.location.nonce}-{next(self.location.numbers)}.parquet"
        path = self._hidden_path(name, called)
        if not self.site.is_existing_path(os.path.dirname(path)):
            raise StateRefused(
                f"write an output to {os.path.dirname(path)}",
                "that folder does not exist",
                "mount the same folder on the driver and all executors; if it was deleted, open the "
                "state again, which creates it",
            )
        sink = self.site.write_file(path, "write an output", lambda sink: pq.write_table(table, sink))
        self._unsynced.add(os.path.dirname(path))
        return Blob(called, sink.size, sink.state.digest())

    def sync(self) -> None:
        """Make the names of files durable.  O(outputs): the method syncs the folder of each output once."""
        with self.site.translate_disk_errors("sync the outputs"):
            for path in sorted(self._unsynced):
                self.site.disk.sync_dir(path)
        self._unsynced.clear()

    def publish_epoch(self, epoch: int, fragments: Iterable[Fragment]) -> None:
        """Make the files of a committed epoch visible.  O(files).  The new names are durable after `sync`.

        A file that is already visible stays visible.

        When the manifest is durable, call the method with all ``fragments`` of the epoch. Publish epochs in order.
        """
        for fragment in fragments:
            self._publish_fragment(epoch, fragment)

    def _publish_fragment(self, epoch: int, fragment: Fragment) -> None:
        hidden, shown = (
            self._hidden_path(fragment.output, fragment.blob.name),
            self.build_fragment_path(epoch, fragment),
        )
        with self.site.translate_disk_errors("publish an output"):
            try:
                self.site.disk.rename(hidden, shown)
            except FileNotFoundError:
                if not self.site.is_existing_path(os.path.dirname(shown)):
                    return
            # Sync even if another process renamed the file, because that process may have crashed before its sync.
            self._unsynced.add(os.path.dirname(shown))

    def find_fragment_size(self, epoch: int, fragment: Fragment) -> int | None:
        """Return the size of a visible or hidden file in bytes; None if the file is missing.  O(1)."""
        with self.site.translate_disk_errors("inspect an output"):
            for path in (
                self._hidden_path(fragment.output, fragment.blob.name),
                self.build_fragment_path(epoch, fragment),
            ):
                with suppress(FileNotFoundError):
                    return self.site.disk.status(path).size
        return None

    def read_fragment(self, epoch: int, fragment: Fragment, schema: pa.Schema) -> pa.Table:
        """Read the rows of a visible or hidden file, with the types of a schema.  O(bytes).  Raises `CorruptState`."""
        # Read without threads, because the process would crash if an Arrow thread freed Python's bytes at exit.
        file = pq.ParquetFile(pa.BufferReader(self._read_verified_bytes(epoch, fragment)), pre_buffer=False)
        return file.read(use_threads=False).cast(schema)

    def count_rows(self, epoch: int, fragment: Fragment) -> int:
        """Verify all bytes of a file and count its rows.  O(bytes).  Raises `CorruptState`."""
        return int(pq.ParquetFile(pa.BufferReader(self._read_verified_bytes(epoch, fragment))).metadata.num_rows)

    def _read_verified_bytes(self, epoch: int, fragment: Fragment) -> bytes:
        """Read a file and verify its bytes.  O(bytes)."""
        shown, hidden, blob = (
            self.build_fragment_path(epoch, fragment),
            self._hidden_path(fragment.output, fragment.blob.name),
            fragment.blob,
        )
        with self.site.translate_read_errors(f"file {blob.name}", missing_file_error(shown, self.target), COPY):
            for path in (shown, hidden, shown):  # another process may publish the file meanwhile
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
        """Delete the files.  The method ignores a file that cannot be deleted.  O(files)."""
        for each in leftovers:
            self.site.try_unlink(each.place)

    def find_published_folder(self, name: str, epoch: int) -> str | None:
        """Return the folder of an output if the folder has visible files of epochs up to ``epoch``, else None.

        O(files).
        """
        place = self.site.child_path(build_folder_name(name))
        with self.site.translate_disk_errors("look for files of an output"):
            there = self.site.disk.names(place) if self.site.is_existing_path(place) else ()
        shown = filter(None, map(SHOWN.fullmatch, there))
        return place if any(int(match["epoch"]) <= epoch for match in shown) else None

    def list_published_after(self, epoch: int) -> list[LeftoverFragment]:
        """List the visible files of epochs after ``epoch``.  O(files)."""
        return [found for match, found in self._find_matching_leftovers(SHOWN) if int(match["epoch"]) > epoch]

    def hide_fragments(self, leftovers: Iterable[LeftoverFragment]) -> None:
        """Hide the files again; a missing file counts as hidden.  O(files).  The new names are durable after `sync`."""
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
        """Yield the files whose name matches a pattern, in the folders of all outputs."""
        disk = self.site.disk
        with self.site.translate_disk_errors("look for leftovers"):
            for name in disk.names(self.target) if self.site.is_existing_path(self.target) else ():
                there = self.site.child_path(name)
                if PLACE.fullmatch(name) and disk.status(there).kind == "folder":
                    for match in filter(None, map(pattern.fullmatch, disk.names(there))):
                        path = f"{there}/{match[0]}"
                        try:
                            changed = disk.status(path).changed
                        except OSError:  # another process renamed the file
                            continue
                        yield match, LeftoverFragment(path, match["name"], changed, disk.read_clock() - changed)


def check_outputs_path(given: Any) -> None:
    """Raise `StateRefused` if the path of a folder of outputs is invalid.  O(length)."""
    address.require_folder(given, "write outputs to")


def open_output_folder(
    target: str | os.PathLike[str], store: Store | None = None, trust: str = "owner"
) -> OutputFolder:
    """Return the `OutputFolder` at a path. The function reads and creates nothing.

    ``store``: the store of the state, which provides the nonce of this writer.  If you pass no store, do not write
    fragments. ``trust``: the same values as for `Snapshot.open`. Raises `StateRefused` for an invalid target.
    """
    nonce = "0" * 16 if store is None else store.nonce
    # A state in a folder has a disk object of its own; any other state uses the local disk.
    return OutputFolder(target, nonce, trust, getattr(store, "disk", Disk()))
