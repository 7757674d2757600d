"""A folder of outputs: each committed epoch's updates as Parquet, for others to read while ddflow goes on.

Invariant: a file that a glob finds (``*/*.parquet``) is of a committed epoch, whole, and never changes.  Why that is
not trivial: outputs must be durable before the manifest that names them, and a commit may still fail then; so a file is
written under a hidden name, which readers of such folders pass over, and shown under its own once the manifest is
there; whoever opens the state next shows what a crash in between left hidden.  Each output has a folder of its own,
called by a digest of its name, since nothing a user wrote becomes a path; ``outputs.json`` says which is whose.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     folder, rows = OutputFolder(place, "00ff00ff00ff00ff"), pa.table({"n": [1, 2]})
...     blob = folder.put("counts", rows)
...     hidden = sorted(os.listdir(os.path.join(place, of("counts"))))
...     folder.show("counts", 7, blob)
...     hidden, sorted(os.listdir(os.path.join(place, of("counts"))))
...     folder.read("counts", 7, blob, rows.schema) == rows
(['.00ff00ff00ff00ff-0.parquet'], ['000000000007-00ff00ff00ff00ff-0.parquet'])
True
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from ddflow.errors import SpecError, StateRefused, StorageFailed, StorageFull
from ddflow.store.blob import Blob, lost, verified
from ddflow.store.claim import NO_ROOM
from ddflow.store.part import Sink


def of(name: str) -> str:
    """What the folder of an output is called: 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(name.encode())


class OutputFolder:
    """``path``: absolute; made, 0700, if missing and ``create``.  ``nonce``: of the writer.  Raises `StateRefused`."""

    def __init__(self, path: str | os.PathLike[str], nonce: str, create: bool = True) -> None:
        self.path, self.nonce = os.path.abspath(os.fspath(path)), nonce
        self._numbers, self._unsynced = itertools.count(), set[str]()
        try:
            if create:
                os.makedirs(self.path, mode=0o700, exist_ok=True)
            known = self._known()
        except (OSError, ValueError) as error:
            raise StateRefused(f"write outputs to {self.path}", f"it cannot be used ({error})",
                               "give a folder that you may write to") from None  # fmt: skip
        self._names = known

    def check(self, name: str, schema: pa.Schema) -> None:
        """Raise `SpecError` unless Parquet can hold an output's rows."""
        try:
            pq.write_table(schema.empty_table(), io.BytesIO())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SpecError(f"outputs= for {name!r}", f"Parquet cannot hold its rows ({error})",
                            "project it to other types, or leave outputs= out") from None  # fmt: skip

    def put(self, name: str, table: pa.Table) -> Blob:
        """Write what an output gained to a hidden file, durable but for its name.  O(rows).

        Raises `StorageFull`, `StorageFailed`; no file is left then.
        """
        called = f"{self.nonce}-{next(self._numbers)}.parquet"
        path = self._hidden(name, called)
        try:
            self._introduce(name)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                sink = Sink(file)
                pq.write_table(table, sink)
                sink.finish()
                os.fsync(file)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
            finally:
                os.close(file)
        except OSError as error:
            raise self._failed("write an output", error) from None
        self._unsynced.add(os.path.dirname(path))
        return Blob(called, sink.size, sink.state.digest())

    def introduce(self, names: Iterable[str]) -> None:
        """Make the folders of outputs, before several writers put files there at once.  O(names).

        Raises `StorageFull`, `StorageFailed`.
        """
        try:
            for name in names:
                self._introduce(name)
        except OSError as error:
            raise self._failed("make the folders of outputs", error) from None
        self.sync()

    def size(self, name: str, epoch: int, blob: Blob) -> int | None:
        """The length of a file in bytes, shown or hidden; None where there is none.  O(1).  Raises `StorageFailed`."""
        for path in (self._hidden(name, blob.name), self.shown(name, epoch, blob)):
            try:
                return os.stat(path, follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failed("look at an output", error) from None
        return None

    def sync(self) -> None:
        """Make the names of all files durable that were put before.  Raises `StorageFailed`."""
        try:
            for path in (*self._unsynced, self.path):
                _sync(path)
        except OSError as error:
            raise self._failed("sync the outputs", error) from None
        self._unsynced.clear()

    def show(self, name: str, epoch: int, blob: Blob) -> None:
        """Give a file of a committed epoch its own name; one that has it stays.  O(1).  Raises `StorageFailed`."""
        hidden, shown = self._hidden(name, blob.name), self.shown(name, epoch, blob)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rename(hidden, shown)
        except OSError as error:
            raise self._failed("show an output", error) from None

    def has(self, name: str, epoch: int, blob: Blob) -> bool:
        """Whether a file is there, shown or hidden.  O(1)."""
        return any(map(os.path.exists, (self.shown(name, epoch, blob), self._hidden(name, blob.name))))

    def read(self, name: str, epoch: int, blob: Blob, schema: pa.Schema) -> pa.Table:
        """The rows of a file.  O(bytes).  Raises `CorruptState` when it is missing or not what was put."""
        return pq.read_table(pa.BufferReader(self.data(name, epoch, blob))).cast(schema)

    def data(self, name: str, epoch: int, blob: Blob) -> bytes:
        """The bytes of a file.  O(bytes).  Raises as `read` does."""
        for path in (self.shown(name, epoch, blob), self._hidden(name, blob.name)):
            try:
                with open(path, "rb") as file:
                    data = file.read(blob.length + 1)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._failed("read an output", error) from None
            return bytes(verified(data, blob, self.path))
        raise lost(self.shown(name, epoch, blob), self.path)

    def _introduce(self, name: str) -> None:
        """Make an output's folder, and say in ``outputs.json`` whose it is."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(self.path, of(name)), 0o700)
        if self._names.get(name) == of(name):
            return
        self._names[name] = of(name)
        path = os.path.join(self.path, "outputs.json")
        temporary = os.path.join(self.path, f".{self.nonce}.json")
        with open(temporary, "w", encoding="utf-8", opener=_private) as file:
            json.dump(self._names, file, indent=1)
        os.replace(temporary, path)

    def _known(self) -> dict[str, str]:
        try:
            with open(os.path.join(self.path, "outputs.json"), encoding="utf-8") as file:
                given: Any = json.load(file)
        except FileNotFoundError:
            return {}
        return {str(k): str(v) for k, v in given.items()} if isinstance(given, dict) else {}

    def _hidden(self, name: str, called: str) -> str:
        return os.path.join(self.path, of(name), f".{called}")

    def shown(self, name: str, epoch: int, blob: Blob) -> str:
        """The path that a file of a committed epoch has, or will have."""
        return os.path.join(self.path, of(name), f"{epoch:012}-{blob.name}")

    def _failed(self, what: str, error: OSError) -> StorageFailed | StorageFull:
        kind = StorageFull if error.errno in NO_ROOM else StorageFailed
        return kind(f"{what} in {self.path}", f"{error.strerror or error}", "mend it, and open the state again")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _sync(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
