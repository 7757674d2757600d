"""Where files land: a folder of this machine, or objects of a bucket below a prefix; what is there, and how it looks.

Invariant: a pattern means the same in both: `*` and `?` stay within a name, `**` stands for any folders, names with a
dot in front are hidden. What is there is listed whole each time, because a late name may be any name: in a bucket that
is a request for each thousand objects below the prefix, every five seconds. An object is put whole, so what is listed
is settled. Keys of a bucket come from the environment, and no address with a password is taken.

>>> matches_pattern("2026/**/*.gz".split("/"), "2026/11/25/10/a.gz".split("/"))
True
>>> matches_pattern(["*.gz"], [".a.gz"]), matches_pattern(["*.gz"], ["2026", "a.gz"])
(False, False)
>>> build_listing("s3://lake/orders/2026/**/*.gz").target, build_listing("s3://lake/orders/2026/**/*.gz").folder
('s3://lake/orders/2026/**/*.gz', 'orders/2026')
"""

import glob
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from ddflow.connectors.files.kinds import FileKind
from ddflow.connectors.files.places import MAGIC, BucketObject, FileLocation, LocalFile, call_bucket
from ddflow.errors import SourceFailed, SpecError, StorageFailed, UnreadableInput
from ddflow.storage.address import mask_address
from ddflow.storage.object_store import Bucket, import_obstore

_WILD: Final = re.compile(r"[*?\[]")
_BUCKET: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+/.+")


class FileStamp(NamedTuple):
    """Size of a file in bytes, and time of its last write in nanoseconds; of objects in whole seconds."""

    size: int
    mtime: int


class FileListing(ABC):
    """``target``: the pattern, whole.  Names of files are relative to the ``folder`` in front of the pattern."""

    every: ClassVar[float]
    """Seconds between two looks."""
    settled: ClassVar[bool]
    """Whether what is listed is whole."""

    def __init__(self, target: str) -> None:
        self.target = target

    @property
    @abstractmethod
    def folder(self) -> str:
        """That in front of the pattern."""

    @abstractmethod
    def list_files(self) -> dict[str, FileStamp]:
        """List the files by name.  O(files).  Raises `SourceFailed`, `UnreadableInput`."""

    @abstractmethod
    def read_file_stamp(self, file: str) -> FileStamp:
        """Return the current stamp of a file.  Raises `FileNotFoundError`, `SourceFailed`."""

    @abstractmethod
    def build_file_location(self, file: str, stamp: FileStamp, kind: FileKind | None = None) -> FileLocation:
        """Return the place to read a file from."""

    def relative_name(self, other: "FileListing", file: str) -> str:
        """Return the name here of a file from another pattern of this machine or bucket.

        >>> build_listing("/in/a/*.csv").relative_name(build_listing("/in/b/*.tsv"), "1.tsv")
        '../b/1.tsv'
        """
        if other is self or other.folder == self.folder:
            return file
        return os.path.relpath(os.path.join("/", other.folder, file), os.path.join("/", self.folder))

    def needs(self) -> None:  # noqa: B027 - a folder needs no library
        """Raise `MissingExtra` if a library is not installed."""

    def open_stream(self, file: str, stamp: FileStamp) -> pa.NativeFile:
        """Open a file and decompress it by its first bytes, whatever its name."""
        raw = self.build_file_location(file, stamp).open()
        first = raw.read(4)
        raw.seek(0)
        how = next((how for magic, how in MAGIC.items() if first.startswith(magic)), None)
        return raw if how is None else pa.CompressedInputStream(raw, how)


class FolderListing(FileListing):
    """A folder of this machine."""

    every, settled = 0.2, False

    @property
    def folder(self) -> str:
        """That in front of the pattern."""
        if os.path.isdir(self.target):
            return self.target
        match = _WILD.search(self.target)
        return os.path.dirname(self.target[: match.start()] if match else self.target)

    def list_files(self) -> dict[str, FileStamp]:
        """List the files that match."""
        pattern = os.path.join(self.target, "*") if os.path.isdir(self.target) else self.target
        there = dict[str, FileStamp]()
        for path in glob.glob(pattern, recursive=True):
            if os.path.isfile(path):
                file = os.path.relpath(path, self.folder)
                try:
                    there[file] = self.read_file_stamp(file)
                except FileNotFoundError:  # gone since
                    continue
        return there

    def read_file_stamp(self, file: str) -> FileStamp:
        """Read the stamp from the file system."""
        stat = os.stat(self._full_path(file))
        return FileStamp(stat.st_size, stat.st_mtime_ns)

    def build_file_location(self, file: str, stamp: FileStamp, kind: FileKind | None = None) -> FileLocation:
        """Return the file."""
        return LocalFile(self._full_path(file), kind)

    def relative_name(self, other: FileListing, file: str) -> str:
        """See `Landing.relative_name`.  Raises `UnreadableInput` if it is not clear whether this is a folder."""
        if other is not self and not _WILD.search(self.target) and not os.path.exists(self.target):
            found = "there is no such file or folder, and the names of all files are relative to it"
            raise UnreadableInput(self.target, found, "make it, or give a pattern with * in its place")
        return super().relative_name(other, file)

    def _full_path(self, file: str) -> str:
        # A folder may be a link, so only the text can say what is beside it.
        return os.path.normpath(os.path.join(self.folder, file))


class BucketListing(FileListing):
    """Objects of a bucket."""

    every, settled = 5.0, True

    @cached_property
    def _bucket(self) -> Bucket:
        return self._call_bucket(Bucket, "/".join(self.target.split("/")[:3]))  # type: ignore[no-any-return]

    def needs(self) -> None:
        """Import the library of object stores."""
        self._call_bucket(import_obstore)

    @cached_property
    def _pattern_parts(self) -> tuple[list[str], list[str]]:
        """The folders in front of the pattern, and its parts."""
        *folders, last = self.target.split("/")[3:]
        wild = next((at for at, part in enumerate(folders) if _WILD.search(part)), len(folders))
        return folders[:wild], [*folders[wild:], last or "*"]

    @property
    def folder(self) -> str:
        """That in front of the pattern, in the bucket."""
        return "/".join(self._pattern_parts[0])

    def list_files(self) -> dict[str, FileStamp]:
        """List the objects below the prefix that match."""
        folder, pattern = self._pattern_parts
        found = self._call_bucket(self._bucket.list_objects, self.folder or None)
        names = ((each, each.key.split("/")[len(folder) :]) for each in found)
        return {"/".join(name): _build_object_stamp(each) for each, name in names if matches_pattern(pattern, name)}

    def read_file_stamp(self, file: str) -> FileStamp:
        """Read the stamp from the bucket."""
        try:
            return _build_object_stamp(self._bucket.head(self._object_key(file)))
        except StorageFailed as error:
            raise SourceFailed(f"read {self.target}", error.found, "see to the network and the bucket") from None

    def build_file_location(self, file: str, stamp: FileStamp, kind: FileKind | None = None) -> FileLocation:
        """Return the object."""
        return BucketObject(self._bucket, self._object_key(file), stamp.size, kind, self._call_bucket)

    def _object_key(self, file: str) -> str:
        if file.startswith("../"):
            return os.path.relpath(os.path.join("/", self.folder, file), "/")
        return f"{self.folder}/{file}" if self.folder else file

    def _call_bucket(self, ask: Callable[..., Any], *given: Any) -> Any:
        return call_bucket(self.target, ask, *given, followed=True)


def _build_object_stamp(found: Any) -> FileStamp:
    """Return the stamp of an object in whole seconds, in which a listing and an answer to HEAD agree."""
    return FileStamp(found.length, int(found.written) * 10**9)


def matches_pattern(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether the parts of a name match a pattern.  O(parts), for each ``**`` as many times."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(matches_pattern(pattern[1:], names[at:]) for at in range(len(names) + 1))
    if not names or (names[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(names[0], pattern[0]) and matches_pattern(pattern[1:], names[1:])


def build_listing(pattern: str) -> FileListing:
    """Return the place of a pattern without any request.  Raises `SpecError` for an address that is not read."""
    if "://" not in pattern:
        return FolderListing(os.path.abspath(pattern))
    if not _BUCKET.fullmatch(pattern):
        shown = mask_address(pattern)
        found = "files of this machine and objects of s3://BUCKET/PREFIX are followed"
        raise SpecError(f"dd.sources.files({shown!r})", found, "give a path, a pattern, or s3://BUCKET/PREFIX/*")
    return BucketListing(pattern)
