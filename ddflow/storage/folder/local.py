"""Store a state in a local folder.

    blobs/00112233aabbccdd-1.arrow      manifests/0000000000000007      marks/0000000000000007      spill/

A writer writes a manifest under a temporary name, syncs it, and creates a hard link with the manifest's number as its
name. Only one writer can create this link. A failed sync cannot be repeated, because the system may have dropped the
bytes. After a failure with an unknown outcome, the store therefore refuses all writes.

Guarantees: when `LocalStore.put` returns, a blob's bytes are durable. When `fsync_blob_names` returns, the blob's name
is durable too. A manifest is complete or absent, and durable when `publish` returns True. Files with names that ddflow
does not use are neither listed nor deleted.
Limits: there is no lock, so a state may have many writers. After a power failure, any name that was added to a folder
since the last sync of the folder may be missing.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from ddflow.errors import CommandFix, CorruptState, EngineClosed, ErrorText, OutcomeUnknown
from ddflow.storage.folder.disk import Disk
from ddflow.storage.folder.scratch import BlobFolder, ScratchStore, remove_stale_folders
from ddflow.storage.folder.site import INSIDE, StateFolder
from ddflow.storage.protocol import DIGITS, MANIFEST, NAME, BlobEntry, Store, parse_manifest_numbers

FEW: Final = 64
"""If there are at least this many files to delete, several threads delete them."""
AT_ONCE: Final = 8
REMEDY: Final = ErrorText("restore it from a backup, or go back with ", CommandFix("rollback"))
_DISK = Disk()


class LocalStore(BlobFolder, Store):
    """A state in a folder.

    ``path``: the folder. ``create``: whether to create a missing state. ``trust``: "owner", or "group" if other users
    write to it. ``readonly``: whether to create, test, sweep and put nothing, as on a read-only mount.

    O(1): about 20 system calls and a sync. Raises `StateRefused` if the state is missing and ``create`` is False.
    Raises `StateRefused` if the folder belongs to another user, if other users can write to it, or if the test of
    exclusive publishing fails. Also raises `StorageFull`, `StorageFailed`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as above:
    ...     store = LocalStore(os.path.join(above, "orders"))
    ...     blob = store.put("arrow", b"four")
    ...     store.fsync_blob_names()
    ...     store.publish(0, b"a manifest"), store.publish(0, b"another"), store.read_manifest(0)
    ...     store.map_blob(blob).to_pybytes()
    (True, False, b'a manifest')
    b'four'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        trust: str = "owner",
        readonly: bool = False,
        disk: Disk = _DISK,
    ) -> None:
        site = StateFolder(disk, path, trust)
        site.open_folder(create, readonly)
        super().__init__(site, "blobs", first=3)  # `prove_exclusive_publish` uses the first three
        self.site: StateFolder = site
        self.readonly, self._process = readonly, os.getpid()
        self._held: dict[str, pa.Buffer] = {}
        self._mark = ""
        """The path of the mark that this writer made last.

        To make a new mark, the old mark is renamed, so there is always a mark.
        """
        if not readonly:
            self.site.prove_exclusive_publish(self.nonce)
            self.site.remove_stale_temporaries(self.site.child_path("manifests"))
            with self.site.translate_disk_errors("remove the files that a crash left"):
                if "spill" in disk.names(self.where):
                    remove_stale_folders(self.site.child_path("spill"))

    def fsync_blob_names(self) -> None:
        """Sync the folder of blobs."""
        self._check_writable()
        try:
            self.site.disk.sync_dir(self._folder)
        except OSError as error:
            self._broken = "a sync of its files failed"
            raise self.site.build_failure("sync its files", error) from None

    def pin_blobs(self, names: Iterable[str]) -> None:
        """Map blobs now, so that `map_blob` can return them even if they are deleted later. O(blobs)."""
        for name in names:
            with contextlib.suppress(OSError):
                self._held[name] = self.disk.map_file(self._blob_path(name))

    def list_blobs(self) -> list[BlobEntry]:
        """List all blobs, with their ages by this machine's clock. O(blobs), with one system call each."""
        now, found = self.disk.read_clock(), []
        with self.site.translate_disk_errors("list its files"), contextlib.suppress(FileNotFoundError):
            found = self.disk.scan(self.site.child_path("blobs"))
        return [BlobEntry(name, size, max(0.0, now - changed)) for name, size, changed in found if NAME.fullmatch(name)]

    def find_blob_sizes(self, names: list[str]) -> dict[str, int]:
        """Return the lengths of blobs, as `Store.find_blob_sizes` does. Makes one system call for each name."""
        out: dict[str, int] = {}
        with self.site.translate_disk_errors("look for its files"):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found = self.disk.status(self._blob_path(name))
                    out |= {name: found.size} if found.kind == "file" else {}
        return out

    def delete_many(self, names: Iterable[str]) -> None:
        """Unlink blobs, in `AT_ONCE` threads if there are many. O(names)."""
        few = [*names]
        if len(few) < FEW:
            super().delete_many(few)
            return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.delete, few))

    def list_manifests(self, after: int = -1) -> list[int]:
        """List the numbers of all manifests after ``after``, ascending. O(manifests)."""
        return self._list_numbers("manifests", f"{after:0{DIGITS}d}" if after >= 0 else "")

    def is_published(self, number: int) -> bool:
        """Return whether a manifest has this number. O(1)."""
        try:
            return self.site.is_existing_path(self._number_path("manifests", number))
        except OSError as error:
            raise self.site.build_failure(f"look for manifest {number}", error) from None

    def read_manifest(self, number: int) -> bytes:
        """Read the bytes of a manifest, as `Store.read_manifest` does. O(bytes)."""
        what = f"manifest {number}"
        missing = CorruptState(
            f"{what} of {self.where}", "it is missing", "open the state again, or restore it from a backup"
        )
        with self.site.translate_read_errors(what, missing, REMEDY):
            return self.disk.read(self._number_path("manifests", number), MANIFEST)

    def publish(self, number: int, data: bytes) -> bool:
        """Publish a manifest, as `Store.publish` does. O(bytes) and two syncs.

        The file gets a hard link with the manifest's number as its name.
        """
        self._check_writable()
        what, target = f"publish manifest {number}", self._number_path("manifests", number)
        folder = f"{self.where}/manifests"
        temporary = f"{folder}/.{self.nonce}-{next(self._numbers)}.part"
        self.site.write_file(temporary, what, data)
        self._broken = f"it is unknown whether manifest {number} was published"
        try:
            won = self._link_manifest(temporary, target, data)
            self.site.try_unlink(temporary)
            if won:
                self.site.disk.sync_dir(folder)
        except OSError as error:
            self.site.try_unlink(temporary)
            why = error.strerror or str(error)
            raise OutcomeUnknown(
                f"{what}, in the state {self.where}",
                f"the disk says {why!r}",
                "it may have happened: open the state again to see it",
            ) from None
        self._broken = ""
        return won

    def delete_manifest(self, number: int) -> None:
        """Unlink a manifest. O(1), without a sync."""
        self._check_writable()
        self.site.unlink(self._number_path("manifests", number), f"delete manifest {number}")

    def mark_published(self, number: int) -> None:
        """Create an empty file with the number as its name. Remove the files of smaller numbers. O(1), no sync."""
        self._check_writable()
        before, self._mark = self._mark, self._number_path("marks", number)
        try:
            if before:
                self.site.disk.rename(before, self._mark)
                return
        except FileNotFoundError:  # another writer has marked a greater number
            pass
        except OSError as error:
            raise self.site.build_failure(f"mark {number}", error) from None
        with self.site.translate_disk_errors(f"mark {number}"):
            with contextlib.suppress(FileExistsError):
                self.disk.close(self.disk.create(self._mark, self.site.file_mode))
            for other in self._list_numbers("marks"):
                if other < number:
                    self.site.unlink(self._number_path("marks", other), f"mark {number}")

    def find_last_published(self) -> int:
        """Return the greatest marked number, or -1 if no number is marked. O(marks). Normally there is one mark."""
        return max(self._list_numbers("marks"), default=-1)

    def open_scratch_store(self) -> ScratchStore:
        """Open a scratch store below ``spill/``, as `Store.open_scratch_store` does. O(1).

        Also raises `StorageFull`, `StorageFailed`.
        """
        self._check_writable()
        with self.site.translate_disk_errors("create a folder to spill to"):
            with contextlib.suppress(FileExistsError):
                self.disk.mkdir(self.site.child_path("spill"), self.site.folder_mode)
            return ScratchStore.create_below(self.site.child_path("spill"))

    def remove_new_state(self, whole: bool) -> None:
        """Remove a state that was just created. ``whole``: whether to remove its folder too.

        Errors are ignored, because remaining files are only garbage.
        """
        for path in [self.where] if whole else [self.site.child_path(name) for name in (*INSIDE, "spill")]:
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Close the store, as `BlobStore.close` does."""
        super().close()
        self._held.clear()

    def _check_writable(self) -> None:
        if self.readonly or self._closed or self._broken:
            super()._check_writable()
        if os.getpid() != self._process:  # two processes would create the same names
            raise EngineClosed(
                f"write to the state {self.where}",
                f"it was opened by process {self._process}, before this one was forked from it",
                "open it again in this process",
            )

    def _link_manifest(self, temporary: str, target: str, data: bytes) -> bool:
        """Link a manifest to its number. Return whether the file with this number now has the bytes of this manifest.

        A file server may repeat a request that it already carried out. If the server repeats a request for a link, the
        link seems to fail although the first request succeeded.
        """
        try:
            self.site.disk.link(temporary, target)
            return True
        except FileExistsError:
            try:
                return self.disk.read(target, MANIFEST) == data
            except OSError as error:
                if error.errno == errno.EFBIG:
                    return False
                raise

    def _list_numbers(self, folder: str, after: str = "") -> list[int]:
        """Find the files of a folder whose names are numbers, and return the numbers in ascending order.

        ``after``: a name; only later names are listed.
        """
        try:
            names = self.site.disk.names(f"{self.where}/{folder}")
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise self.site.build_failure(f"list its {folder}", error) from None
        return parse_manifest_numbers(folder, filter(after.__lt__, names), self.where)

    def _number_path(self, folder: str, number: int) -> str:
        if not 0 <= number < 10**DIGITS:
            raise ValueError(f"{number} is not the number of a manifest")
        return f"{self.where}/{folder}/{number:0{DIGITS}d}"

    def _map_file(self, name: str) -> pa.Buffer:
        return self._held.pop(name, None) or super()._map_file(name)
