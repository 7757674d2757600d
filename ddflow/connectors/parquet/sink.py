"""The folder of a state's outputs: Parquet files that stay hidden until their epoch is committed.

An epoch goes there in two moves, as in Trino's connectors: tasks `put` fragments, which are durable and hidden; after
the manifest that names them is published, `finish` shows them. A crash in between leaves fragments that no manifest
names, which are collected (`list_hidden_fragments`, `discard`), or a committed epoch that is hidden, which the next
process that opens the state finishes.

Guarantees: what is shown is of committed epochs, each once; finishing an epoch again changes nothing.
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
"""What the folder of an output is called."""
_DISK: Final = Disk()


class Fragment(NamedTuple):
    """Gain of one ``output`` from one call or task: the ``blob`` by its name in a manifest."""

    output: str
    blob: Blob


class FolderOwner(NamedTuple):
    """Owner of a folder: the id of the ``state``, and its address ``at`` the claim, since a copy has the same id."""

    state: str
    at: str


class LeftoverFragment(NamedTuple):
    """Fragment that may belong to no committed epoch.

    It may belong to a running commit, in this process or another. Only its age shows that, so both times must be true.

    ``place``: for messages.  ``name``: of its blob.  ``written``: unix seconds.  ``age``: seconds since then, by the
    folder's clock.
    """

    place: str
    name: str
    written: float
    age: float


class OutputFolder:
    """``nonce``: of the writer.  ``trust``: as a state's.

    The constructor reads and creates nothing.  Raises `StateRefused` for an invalid path.  Every method raises
    `StorageFailed` if the disk fails.  The calls of a life, in their order:

    1. `check`, then `claim`: by the driver, when a state is opened.  `finish`: for all epochs that its newest manifest
       can give again.
    2. `put`: by an engine for each call, by each task for its part.  `sync`: before the writer names the fragments.
    3. The manifest is published.  `finish`: for its epoch.  `sync`: before the next manifest is published.
    4. `size`, `read`: for epochs that are given again, and by readers of the state elsewhere.
    5. `owner`, `list_hidden_fragments`, `discard`: by a collection of garbage.  `owner`, `list_published_after`,
    `hide`, `sync`:
       by a rollback.

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
        """The folder."""
        return self.site.path

    def check_claim(self, state: str | None, schemas: Mapping[str, pa.Schema]) -> None:
        """Check that a state's outputs can go here, before anything is made.  O(columns).

        ``state``: its id, None for one that is yet to be made.  ``schemas``: by output, of its updates.  Raises
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
        """Claim the folder for the state with an id at an address, and create its missing parts, durably.  O(names).

        May be repeated with more ``names`` of outputs.  Of several states that claim it at once, one gets it.  Raises
        `StateRefused`, also for a name that is no UTF-8, `CorruptState`, `StorageFull`.
        """
        self.location.claim(state, at, names)

    def read_owner(self) -> FolderOwner | None:
        """Return the owner; None if it has none.  O(1).  Raises `CorruptState` for an unreadable record."""
        mark = self.location.read_record()
        return None if mark is None else FolderOwner(mark.state, mark.at)

    @property
    def record_path(self) -> str:
        """The path of ``outputs.json``."""
        return f"{self.target}/{MARK}"

    def write_fragment(self, name: str, table: pa.Table) -> Blob:
        """Write updates of an output, one at least, to a hidden file.  O(rows).

        The bytes are durable, the name is after `sync`.  A task may run twice, so the file may never be finished.

        Raises `StorageFull`; `StateRefused` where the output's folder is not there.
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
        """Make durable what files are called now.  O(outputs), a sync each."""
        with self.site.translate_disk_errors("sync the outputs"):
            for path in sorted(self._unsynced):
                self.site.disk.sync_dir(path)
        self._unsynced.clear()

    def publish_epoch(self, epoch: int, fragments: Iterable[Fragment]) -> None:
        """Show the files of a committed epoch; one that is shown stays so.  O(files); durable after `sync`.

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
            # Also where another has shown it, who may have died before it was durable.
            self._unsynced.add(os.path.dirname(shown))

    def find_fragment_size(self, epoch: int, fragment: Fragment) -> int | None:
        """Return the bytes of a file, shown or hidden; None if it is missing.  O(1)."""
        with self.site.translate_disk_errors("look at an output"):
            for path in (
                self._hidden_path(fragment.output, fragment.blob.name),
                self.build_fragment_path(epoch, fragment),
            ):
                with suppress(FileNotFoundError):
                    return self.site.disk.status(path).size
        return None

    def read_fragment(self, epoch: int, fragment: Fragment, schema: pa.Schema) -> pa.Table:
        """Read the rows of a file, shown or hidden, in a schema of updates.  O(bytes).  Raises `CorruptState`."""
        # In this thread: one of Arrow's may let go of our bytes while Python ends, for which it needs Python, and then
        # it takes the process with it.
        file = pq.ParquetFile(pa.BufferReader(self._read_verified_bytes(epoch, fragment)), pre_buffer=False)
        return file.read(use_threads=False).cast(schema)

    def count_rows(self, epoch: int, fragment: Fragment) -> int:
        """Count the rows of a file after comparing all its bytes.  O(bytes).  Raises `CorruptState`."""
        return int(pq.ParquetFile(pa.BufferReader(self._read_verified_bytes(epoch, fragment))).metadata.num_rows)

    def _read_verified_bytes(self, epoch: int, fragment: Fragment) -> bytes:
        """Read a file and verify it.  O(bytes)."""
        shown, hidden, blob = (
            self.build_fragment_path(epoch, fragment),
            self._hidden_path(fragment.output, fragment.blob.name),
            fragment.blob,
        )
        with self.site.translate_read_errors(f"file {blob.name}", missing_file_error(shown, self.target), COPY):
            for path in (shown, hidden, shown):  # it may be shown meanwhile
                with suppress(FileNotFoundError):
                    return bytes(verify_bytes(self.site.disk.read(path, blob.length), blob, self.target))
        raise missing_file_error(shown, self.target)

    def build_fragment_path(self, epoch: int, fragment: Fragment) -> str:
        """Return the path of a file once its epoch is committed."""
        return self.site.child_path(build_folder_name(fragment.output), f"{epoch:012}-{fragment.blob.name}")

    def list_hidden_fragments(self) -> list[LeftoverFragment]:
        """List the hidden files.  O(files)."""
        return [found for match, found in self._find_matching_leftovers(HIDDEN)]

    def delete_leftovers(self, leftovers: Iterable[LeftoverFragment]) -> None:
        """Delete such files; one that cannot be deleted stays.  O(files)."""
        for each in leftovers:
            self.site.try_unlink(each.place)

    def find_published_folder(self, name: str, epoch: int) -> str | None:
        """Return the output's folder if it shows files of an epoch up to this one, else None.  O(files)."""
        place = self.site.child_path(build_folder_name(name))
        with self.site.translate_disk_errors("look for files of an output"):
            there = self.site.disk.names(place) if self.site.is_existing_path(place) else ()
        shown = filter(None, map(SHOWN.fullmatch, there))
        return place if any(int(match["epoch"]) <= epoch for match in shown) else None

    def list_published_after(self, epoch: int) -> list[LeftoverFragment]:
        """List the shown files of epochs after this one.  O(files)."""
        return [found for match, found in self._find_matching_leftovers(SHOWN) if int(match["epoch"]) > epoch]

    def hide_fragments(self, leftovers: Iterable[LeftoverFragment]) -> None:
        """Hide the files again; one that is not there is hidden.  O(files); durable after `sync`."""
        for each in leftovers:
            folder = os.path.dirname(each.place)
            with self.site.translate_disk_errors("hide an output"), suppress(FileNotFoundError):
                self.site.disk.touch(each.place)
                self.site.disk.rename(each.place, f"{folder}/.{each.name}.hidden")
                self._unsynced.add(folder)

    def _hidden_path(self, name: str, called: str) -> str:
        """Return the path of a file before its epoch is committed.  ``called``: its name in a manifest."""
        return self.site.child_path(build_folder_name(name), f".{called}.hidden")

    def _find_matching_leftovers(self, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], LeftoverFragment]]:
        """Yield the files of a pattern in the outputs' folders."""
        disk = self.site.disk
        with self.site.translate_disk_errors("look for leftovers"):
            for name in disk.names(self.target) if self.site.is_existing_path(self.target) else ():
                there = self.site.child_path(name)
                if PLACE.fullmatch(name) and disk.status(there).kind == "folder":
                    for match in filter(None, map(pattern.fullmatch, disk.names(there))):
                        path = f"{there}/{match[0]}"
                        try:
                            changed = disk.status(path).changed
                        except OSError:  # shown or hidden meanwhile
                            continue
                        yield match, LeftoverFragment(path, match["name"], changed, disk.read_clock() - changed)


def check_outputs_path(given: Any) -> None:
    """Raise `StateRefused` for an invalid target, before anything is opened.  O(length)."""
    address.require_folder(given, "write outputs to")


def open_output_folder(
    target: str | os.PathLike[str], store: Store | None = None, trust: str = "owner"
) -> OutputFolder:
    """Return the folder of outputs at a path; it reads and creates nothing yet.

    ``store``: the state's, which gives this writer's nonce; without one nothing can be put.  ``trust``: as a state's.
    Raises `StateRefused` for an invalid target.
    """
    nonce = "0" * 16 if store is None else store.nonce
    # The disk of a state's own folder, or this machine's.
    return OutputFolder(target, nonce, trust, getattr(store, "disk", Disk()))
