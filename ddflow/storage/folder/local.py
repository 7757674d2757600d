"""A state in a local folder.

Invariant: a blob is whole and durable before `LocalStore.put` returns, its name before `fsync_blob_names` does; a
manifest is whole under its number or not there, and durable when `publish` returns True. Until a folder is synced any
of its names may be lost in a power failure, and a failed sync cannot be repeated: the system may have thrown the bytes
away and say nothing the next time. So a manifest is written under another name, synced, and linked to its number, which
only one writer can; after a failure of which the outcome is unknown this store takes nothing more.

    blobs/00112233aabbccdd-1.arrow      manifests/0000000000000007      marks/0000000000000007      spill/

What is not called like these is not ours: it is neither listed nor deleted.  It does not lock: writers may be many.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as above:
...     store = LocalStore(os.path.join(above, "orders"))
...     blob = store.put("arrow", lambda sink: sink.write(b"four"))
...     store.fsync_blob_names()
...     store.publish(0, b"a manifest"), store.publish(0, b"another"), store.read_manifest(0)
...     store.map_blob(blob).to_pybytes()
(True, False, b'a manifest')
b'four'
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from ddflow.errors import CommandFix, CorruptState, EngineClosed, ErrorText, OutcomeUnknown, StorageFailed, StorageFull
from ddflow.storage.folder.disk import Disk
from ddflow.storage.folder.scratch import BlobFolder, ScratchStore, remove_stale_folders
from ddflow.storage.folder.site import INSIDE, StateFolder
from ddflow.storage.protocol import DIGITS, MANIFEST, NAME, BlobEntry, Store, parse_manifest_numbers

FEW: Final = 64
"""Fewer files than these are deleted one after the other."""
AT_ONCE: Final = 8
REMEDY: Final = ErrorText("restore it from a copy, or go back with ", CommandFix("rollback"))
_DISK = Disk()


class LocalStore(BlobFolder, Store):
    """``path``: the folder, made if ``create`` and missing.  ``trust``: "owner", or "group" where others write too.

    ``readonly``: nothing is made, proved or swept, and nothing can be put; for readers, also on a read-only mount.
    O(1): some 20 system calls and a sync.  Raises `StateRefused` when there is no state and none is to be made, when
    the folder belongs to another user or others can write to it, when put-if-absent cannot be proved; `StorageFull`,
    `StorageFailed`.
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
        super().__init__(site, "blobs", first=3)  # the first three are the proof's
        self.site: StateFolder = site
        self.readonly, self._process = readonly, os.getpid()
        self._held: dict[str, pa.Buffer] = {}
        self._marked = -1
        """The number that this writer has marked last: its mark is renamed, so that there is always one."""
        if not readonly:
            self.site.prove_exclusive_publish(self.nonce)
            self.site.remove_stale_temporaries(self.site.child_path("manifests"))
            with self.site.translate_disk_errors("remove what a crash left"):
                if "spill" in disk.names(self.where):
                    remove_stale_folders(self.site.child_path("spill"))

    def fsync_blob_names(self) -> None:
        """Sync the folder of blobs, once."""
        self._check_writable()
        try:
            with self.site.translate_disk_errors("sync its files"):
                self.disk.sync_dir(self.site.child_path("blobs"))
        except (StorageFailed, StorageFull):
            self._broken = "a sync of its files failed"
            raise

    def pin_blobs(self, names: Iterable[str]) -> None:
        """Map blobs now; `map` checks their bytes later.  O(blobs)."""
        for name in names:
            with contextlib.suppress(OSError):
                self._held[name] = self.disk.map_file(self._blob_path(name))

    def list_blobs(self) -> list[BlobEntry]:
        """List all blobs, with their ages by this machine's clock.  O(blobs), a call each."""
        now, found = self.disk.read_clock(), []
        with self.site.translate_disk_errors("list its files"), contextlib.suppress(FileNotFoundError):
            found = self.disk.scan(self.site.child_path("blobs"))
        return [BlobEntry(name, size, max(0.0, now - changed)) for name, size, changed in found if NAME.fullmatch(name)]

    def find_blob_sizes(self, names: list[str]) -> dict[str, int]:
        """Return lengths as `Store.find_blob_sizes` does; one call for each name."""
        out: dict[str, int] = {}
        with self.site.translate_disk_errors("look for its files"):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found = self.disk.status(self._blob_path(name))
                    out |= {name: found.size} if found.kind == "file" else {}
        return out

    def delete_many(self, names: Iterable[str]) -> None:
        """Unlink blobs.  O(names); some file systems take 3 ms for one, and the same time for eight at once."""
        few = [*names]
        if len(few) < FEW:
            super().delete_many(few)
            return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.delete, few))

    def list_manifests(self) -> list[int]:
        """List the numbers of all manifests, ascending.  O(manifests)."""
        return self._list_numbers("manifests")

    def is_published(self, number: int) -> bool:
        """Return whether a manifest has this number.  O(1)."""
        with self.site.translate_disk_errors(f"look for manifest {number}"):
            return self.site.is_existing_path(self._number_path("manifests", number))

    def read_manifest(self, number: int) -> bytes:
        """Read the bytes of a manifest.  O(bytes).  See `Store.read_manifest`."""
        what = f"manifest {number}"
        missing = CorruptState(
            f"{what} of {self.where}", "it is missing", "open the state again, or restore it from a copy"
        )
        with self.site.translate_read_errors(what, missing, REMEDY):
            return self.disk.read(self._number_path("manifests", number), MANIFEST)

    def publish(self, number: int, data: bytes) -> bool:
        """Link a manifest to its number.  O(bytes) and two syncs.  See `Store.publish`."""
        self._check_writable()
        what, target = f"publish manifest {number}", self._number_path("manifests", number)
        temporary = self.site.child_path("manifests", f".{self.nonce}-{next(self._numbers)}.part")
        self.site.write_file(temporary, what, lambda sink: sink.write(data))
        self._broken = f"it is unknown whether manifest {number} was published"
        try:
            won = self._link_manifest(temporary, target, data)
            self.site.try_unlink(temporary)
            if won:
                self.disk.sync_dir(self.site.child_path("manifests"))
        except OSError as error:
            self.site.try_unlink(temporary)
            why = error.strerror or str(error)
            raise OutcomeUnknown(
                f"{what}, in the state {self.where}",
                f"the disk says {why!r}",
                "it may have happened: open the state again, which tells",
            ) from None
        self._broken = ""
        return won

    def delete_manifest(self, number: int) -> None:
        """Unlink a manifest.  O(1); not synced."""
        self._check_writable()
        self.site.unlink(self._number_path("manifests", number), f"delete manifest {number}")

    def mark_published(self, number: int) -> None:
        """Create an empty file of that number, in the place of the marks before it.  O(1); not synced."""
        self._check_writable()
        before, self._marked = self._marked, number
        with self.site.translate_disk_errors(f"mark {number}"):
            if before >= 0:
                with contextlib.suppress(FileNotFoundError):  # another writer has marked a greater one
                    self.disk.rename(self._number_path("marks", before), self._number_path("marks", number))
                    return
            with contextlib.suppress(FileExistsError):
                self.disk.close(self.disk.create(self._number_path("marks", number), self.site.file_mode))
            for other in self._list_numbers("marks"):
                if other < number:
                    self.site.unlink(self._number_path("marks", other), f"mark {number}")

    def find_last_published(self) -> int:
        """Return the greatest number marked, or -1.  O(marks); there is one as a rule."""
        return max(self._list_numbers("marks"), default=-1)

    def open_scratch_store(self) -> ScratchStore:
        """Open a scratch store as `Store.open_scratch_store` does, below ``spill/``.  O(1).  Raises `StorageFull`,
        `StorageFailed` too."""
        self._check_writable()
        with self.site.translate_disk_errors("make a folder to spill to"):
            with contextlib.suppress(FileExistsError):
                self.disk.mkdir(self.site.child_path("spill"), self.site.folder_mode)
            return ScratchStore.create_below(self.site.child_path("spill"))

    def remove_new_state(self, whole: bool) -> None:
        """Remove a state that was only just made, with its folder if ``whole``.  Never fails: what stays is garbage."""
        for path in [self.where] if whole else [self.site.child_path(name) for name in (*INSIDE, "spill")]:
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Close the store, as `BlobStore.close` does."""
        super().close()
        self._held.clear()

    def _check_writable(self) -> None:
        if self.readonly or self._closed or self._broken:
            super()._check_writable()
        if os.getpid() != self._process:  # two processes would give the same names
            raise EngineClosed(
                f"write to the state {self.where}",
                f"it was opened by process {self._process}, before this one was forked from it",
                "open it again in this process",
            )

    def _link_manifest(self, temporary: str, target: str, data: bytes) -> bool:
        """Link a manifest to its number, and return whether it has it.  The number may be taken by ourselves: a file
        server may forget that it has answered, and try again."""
        try:
            self.disk.link(temporary, target)
            return True
        except FileExistsError:
            try:
                return self.disk.read(target, MANIFEST) == data
            except OSError as error:
                if error.errno == errno.EFBIG:
                    return False
                raise

    def _list_numbers(self, folder: str) -> list[int]:
        """List the numbers that are names in a folder, ascending."""
        names: list[str] = []
        with self.site.translate_disk_errors(f"list its {folder}"), contextlib.suppress(FileNotFoundError):
            names = self.disk.names(self.site.child_path(folder))
        return parse_manifest_numbers(folder, names, self.where)

    def _number_path(self, folder: str, number: int) -> str:
        if not 0 <= number < 10**DIGITS:
            raise ValueError(f"{number} is no number of a manifest")
        return self.site.child_path(folder, f"{number:0{DIGITS}d}")

    def _map_file(self, name: str) -> pa.Buffer:
        return self._held.pop(name, None) or super()._map_file(name)
