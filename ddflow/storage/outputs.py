"""A folder of outputs: each committed epoch's updates as Parquet, for others to read while ddflow goes on.

Invariant: a file that a glob finds (``*/*.parquet``) is of a committed epoch, whole, and never changes; all of them are
of one state.  Outputs must be durable before the manifest that names them, and a commit may still fail then; so a file
is written under a name that ends otherwise, and shown under its own once the manifest is there (``showing``).  Each
output has a folder of its own, called by what is safe of its name and a digest of it, since nothing a user wrote
becomes a path; ``outputs.json`` says which is whose, and which state the folder belongs to.  Every call goes through
the state's `Disk`.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     folder, rows = OutputFolder(place, "00ff00ff00ff00ff"), pa.table({"n": [1, 2]})
...     folder.claim("0" * 32, "state", ["by city"])
...     blob = folder.put("by city", rows)
...     hidden = os.listdir(os.path.join(place, of("by city")))
...     folder.show("by city", 7, blob)
...     of("by city"), hidden, os.listdir(os.path.join(place, of("by city")))
...     folder.read("by city", 7, blob, rows.schema) == rows
('by_city-03b9d52a719159e2', ['.00ff00ff00ff00ff-1.parquet.hidden'], ['000000000007-00ff00ff00ff00ff-1.parquet'])
True
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from msgspec.json import Decoder

from ddflow.errors import SpecError, StateRefused, cut
from ddflow.storage import address
from ddflow.storage.disk import Disk
from ddflow.storage.fields import Hex, Path, Strict, decoded, encoded
from ddflow.storage.protocol import Blob, Store, lost, verified
from ddflow.storage.site import Site

MARK: Final = "outputs.json"
MARK_BYTES: Final = 1 << 24
"""Bytes that it may have at most."""
READABLE: Final = 40
"""Characters of an output's name that its folder's has, at most."""
AGAIN: Final = (
    "restore it from a copy; or, if the folder is of this state and no other, delete that file, and open "
    "the state with outputs= again, which writes it anew"
)
COPY: Final = "restore it from a copy, or go back with ddflow rollback"
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")
_DISK = Disk()


def of(name: str) -> str:
    """What the folder of an output is called: what is safe of its name, and 16 hex digits of all of it."""
    # One that begins with a dot or an underscore is passed over by those who read such folders.
    readable = _UNSAFE.sub("_", name)[:READABLE].strip("._")
    digest = xxhash.xxh3_64_hexdigest(name.encode("utf-8", "surrogatepass"))
    return f"{readable}-{digest}" if readable else digest


class Mark(Strict, frozen=True):
    """What ``outputs.json`` says: the id of the ``state`` that the folder belongs to; the place ``at`` which that was
    when it last claimed it, since a copy has the same id; the folders of its ``outputs`` by their names."""

    state: Hex
    at: Path
    outputs: dict[str, str]


_DECODER: Final = Decoder(Mark)


class OutputFolder:
    """``path``: absolute.  ``nonce``: of the writer.  ``trust``: as a state's.  Nothing is looked at or made by itself.

    Raises `StateRefused` for what is no path.  Every method raises `StorageFailed` when the disk fails.
    """

    def __init__(
        self, path: str | os.PathLike[str], nonce: str = "0" * 16, trust: str = "owner", disk: Disk = _DISK
    ) -> None:
        self.site = Site(disk, address.folder(path, "write outputs to"), trust, "the outputs folder")
        self.disk, self.nonce = disk, nonce
        self._numbers, self._unsynced = itertools.count(), set[str]()

    @property
    def path(self) -> str:
        """Where it is."""
        return self.site.path

    def check(self, name: str, schema: pa.Schema) -> None:
        """Raise `SpecError` unless Parquet can hold an output's rows."""
        try:
            pq.write_table(schema.empty_table(), io.BytesIO())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SpecError(
                f"outputs= for {name!r}",
                f"Parquet cannot hold its rows ({error})",
                "project it to other types, or leave outputs= out",
            ) from None

    def look(self, state: str | None) -> None:
        """Raise `StateRefused` unless a state's outputs may go here; nothing is made.  O(1).

        ``state``: its id, None for one that is yet to be made.  Raises `CorruptState` for a damaged ``outputs.json``.
        """
        with self.site.guarded("open it", opening=True):
            self.site.path = self.disk.real(self.site.path)
            if self.site.is_there(self.path):
                self.site.look(self.path)
                self._must_be_of(state, self.mark())

    def claim(self, state: str, at: str, names: Iterable[str]) -> None:
        """Take the folder for a state's, and make what is missing of it, durably.  O(names).

        ``at``: where the state is.  Of several states that do so at the same time one gets it.  Raises as `look` does,
        `StateRefused` for a name that is no UTF-8, `StorageFull`.
        """
        wanted = {name: of(name) for name in sorted(names)}
        try:
            encoded([self.path, at, wanted])
        except UnicodeEncodeError as error:
            odd = f"the name of a folder or an output is no UTF-8 ({error.reason}): {error.object!r}"
            raise self.site.refused(cut(odd), "give it another name") from None
        self.look(state)
        with self.site.guarded("make it", opening=True):
            self.site.make()
            self.site.look(self.path)
            found = self.mark() or self._first(Mark(state, at, wanted))
            self._must_be_of(state, found)
            for name in wanted:
                with suppress(FileExistsError):
                    self.disk.mkdir(self.site.below(of(name)), self.site.folder_mode)
                self.site.look(self.site.below(of(name)))
            if found != (now := Mark(state, at, wanted | found.outputs)):
                self.disk.rename(self._written(now), self.site.below(MARK))
            self.site.sweep(self.path)
            # Whoever made any of it may have died before he did.
            self.disk.sync_dir(self.path)
            self.site.sync_above(self.path)

    def mark(self) -> Mark | None:
        """What ``outputs.json`` says; None where there is none.  O(its bytes).  Raises `CorruptState` for another."""
        with self.site.reading(f"file {MARK}", lost(MARK, self.path), AGAIN):
            try:
                data = self.disk.read(self.site.below(MARK), MARK_BYTES)
            except FileNotFoundError:
                return None
        return decoded(_DECODER, data, f"the file {MARK} of {self.path}", AGAIN)

    def put(self, name: str, table: pa.Table) -> Blob:
        """Write what an output gained to a hidden file, durable but for its name.  O(rows).

        Raises `StorageFull`, `StorageFailed`; `StateRefused` where the output's folder is not there.
        """
        called = f"{self.nonce}-{next(self._numbers)}.parquet"
        path = self._hidden(name, called)
        if not self.site.is_there(os.path.dirname(path)):
            raise StateRefused(
                f"write an output to {os.path.dirname(path)}",
                "that folder is not there",
                "mount the same folder on the driver and all executors; where it was deleted, open the "
                "state again, which makes it",
            )
        sink = self.site.written(path, "write an output", lambda sink: pq.write_table(table, sink))
        self._unsynced.add(os.path.dirname(path))
        return Blob(called, sink.size, sink.state.digest())

    def size(self, name: str, epoch: int, blob: Blob) -> int | None:
        """The length of a file in bytes, shown or hidden; None where there is none.  O(1)."""
        with self.site.guarded("look at an output"):
            for path in (self._hidden(name, blob.name), self.shown(name, epoch, blob)):
                with suppress(FileNotFoundError):
                    return self.disk.status(path).size
        return None

    def sync(self) -> None:
        """Make durable what files were put, shown or hidden before, and are called now.  O(outputs), a sync each."""
        with self.site.guarded("sync the outputs"):
            for path in sorted(self._unsynced):
                self.disk.sync_dir(path)
        self._unsynced.clear()

    def show(self, name: str, epoch: int, blob: Blob) -> None:
        """Give a file of a committed epoch its own name; one that has it stays.  O(1); durable after `sync`."""
        hidden, shown = self._hidden(name, blob.name), self.shown(name, epoch, blob)
        with self.site.guarded("show an output"):
            try:
                self.disk.rename(hidden, shown)
            except FileNotFoundError:
                if not self.site.is_there(os.path.dirname(shown)):
                    return
            # Also where another has shown it, who may have died before it was durable.
            self._unsynced.add(os.path.dirname(shown))

    def hide(self, name: str, path: str) -> None:
        """Hide a file that is shown; it counts as changed now.  One that is not there is hidden.  O(1); then `sync`.

        ``name``: that a manifest has for it.
        """
        with self.site.guarded("hide an output"), suppress(FileNotFoundError):
            self.disk.touch(path)
            self.disk.rename(path, os.path.join(os.path.dirname(path), hidden(name)))
            self._unsynced.add(os.path.dirname(path))

    def has(self, name: str, epoch: int, blob: Blob) -> bool:
        """Whether a file is there, shown or hidden.  O(1)."""
        return self.size(name, epoch, blob) is not None

    def read(self, name: str, epoch: int, blob: Blob, schema: pa.Schema) -> pa.Table:
        """The rows of a file.  O(bytes).  Raises `CorruptState` when it is missing or not what was put."""
        return pq.read_table(pa.BufferReader(self.data(name, epoch, blob))).cast(schema)

    def data(self, name: str, epoch: int, blob: Blob) -> bytes:
        """The bytes of a file.  O(bytes).  Raises as `read` does."""
        shown = self.shown(name, epoch, blob)
        with self.site.reading(f"file {blob.name}", lost(shown, self.path), COPY):
            for path in (shown, self._hidden(name, blob.name), shown):  # it may be shown meanwhile
                with suppress(FileNotFoundError):
                    return bytes(verified(self.disk.read(path, blob.length), blob, self.path))
        raise lost(shown, self.path)

    def shown(self, name: str, epoch: int, blob: Blob) -> str:
        """The path that a file of a committed epoch has, or will have."""
        return self.site.below(of(name), f"{epoch:012}-{blob.name}")

    def _hidden(self, name: str, called: str) -> str:
        return self.site.below(of(name), hidden(called))

    def _must_be_of(self, state: str | None, found: Mark | None) -> None:
        if found is not None and found.state != state:
            this = "this one is new" if state is None else f"this one's is {state}"
            raise self.site.refused(
                f"it belongs to the state with the id {found.state}, at {found.at}, and {this}",
                "give every state a folder of its own",
            )

    def _first(self, mark: Mark) -> Mark:
        """Say whose the folder is, where nothing says it yet; what is said there then."""
        temporary = self._written(mark)
        try:
            self.disk.link(temporary, self.site.below(MARK))
        except FileExistsError:
            return self.mark() or mark
        finally:
            self.site.tidy(temporary)
        return mark

    def _written(self, mark: Mark) -> str:
        """A new file with it, durable but for its name: its path."""
        data = msgspec.json.format(encoded(mark), indent=1)
        path = self.site.below(f".{self.nonce}-{next(self._numbers)}.part")
        self.site.written(path, f"write {MARK}", lambda sink: sink.write(data))
        return path


def hidden(name: str) -> str:
    """What a file is called before its epoch is committed.  ``name``: that a manifest has for it."""
    return f".{name}.hidden"


def disk_of(store: Store) -> Disk:
    """The disk of a state's own folder, or this machine's."""
    found: Disk = getattr(store, "disk", _DISK)
    return found
