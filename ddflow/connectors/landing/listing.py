"""List the files that match a pattern, in a local folder or below a prefix of a bucket, with size and write time.

A pattern means the same for a folder and for a bucket. `*` and `?` match characters of one name, `**` matches any
number of folders, and names with a leading dot are hidden. Each poll lists all files, because a late file may have any
name. An object in a bucket is always complete, so ddflow reads objects at once. Credentials of a bucket come from the
environment, and addresses with a password are refused.

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
    """Size of a file in bytes, and time of its last write in nanoseconds.

    The time of an object is in whole seconds.
    """

    size: int
    mtime: int


class FileListing(ABC):
    """Files that match the pattern ``target``.

    Names of files are relative to ``folder``, the path before wildcards.
    """

    every: ClassVar[float]
    """Seconds between two listings."""
    settled: ClassVar[bool]
    """Whether a listed file is always complete."""

    def __init__(self, target: str) -> None:
        self.target = target

    @property
    @abstractmethod
    def folder(self) -> str:
        """Folder before the first wildcard."""

    @abstractmethod
    def list_files(self) -> dict[str, FileStamp]:
        """List the files by name.  O(files).  Raises `SourceFailed`, `UnreadableInput`."""

    @abstractmethod
    def read_file_stamp(self, file: str) -> FileStamp:
        """Return the current stamp of a file.  Raises `FileNotFoundError`, `SourceFailed`."""

    @abstractmethod
    def build_file_location(self, file: str, stamp: FileStamp, kind: FileKind | None = None) -> FileLocation:
        """Return the location to read a file from."""

    def relative_name(self, other: "FileListing", file: str) -> str:
        """Return the name of a file from another listing, relative to the folder of this listing.

        >>> build_listing("/in/a/*.csv").relative_name(build_listing("/in/b/*.tsv"), "1.tsv")
        '../b/1.tsv'
        """
        if other is self or other.folder == self.folder:
            return file
        return os.path.relpath(os.path.join("/", other.folder, file), os.path.join("/", self.folder))

    def needs(self) -> None:  # noqa: B027 - a folder needs no library
        """Raise `MissingExtra` if a library is not installed."""

    def open_stream(self, file: str, stamp: FileStamp) -> pa.NativeFile:
        """Open a file.

        Decompress the file if its first bytes are those of gzip or zstd, whatever the file's name is.
        """
        raw = self.build_file_location(file, stamp).open()
        first = raw.read(4)
        raw.seek(0)
        how = next((how for magic, how in MAGIC.items() if first.startswith(magic)), None)
        return raw if how is None else pa.CompressedInputStream(raw, how)


class FolderListing(FileListing):
    """Listing of a local folder."""

    every, settled = 0.2, False

    @property
    def folder(self) -> str:
        """Folder before the first wildcard of the pattern; the target itself if the target is a folder."""
        if os.path.isdir(self.target):
            return self.target
        match = _WILD.search(self.target)
        return os.path.dirname(self.target[: match.start()] if match else self.target)

    def list_files(self) -> dict[str, FileStamp]:
        """List the files that match the pattern."""
        pattern = os.path.join(self.target, "*") if os.path.isdir(self.target) else self.target
        there = dict[str, FileStamp]()
        for path in glob.glob(pattern, recursive=True):
            if os.path.isfile(path):
                file = os.path.relpath(path, self.folder)
                try:
                    there[file] = self.read_file_stamp(file)
                except FileNotFoundError:  # the file was deleted meanwhile
                    continue
        return there

    def read_file_stamp(self, file: str) -> FileStamp:
        """Read the stamp from the file system."""
        stat = os.stat(self._full_path(file))
        return FileStamp(stat.st_size, stat.st_mtime_ns)

    def build_file_location(self, file: str, stamp: FileStamp, kind: FileKind | None = None) -> FileLocation:
        """Return the local file."""
        return LocalFile(self._full_path(file), kind)

    def relative_name(self, other: FileListing, file: str) -> str:
        """Return the relative name of a file.  Raises `UnreadableInput` if a target without wildcards is missing."""
        if other is not self and not _WILD.search(self.target) and not os.path.exists(self.target):
            found = "there is no such file or folder, and the names of all files are relative to it"
            raise UnreadableInput(self.target, found, "create it, or pass a pattern with * instead")
        return super().relative_name(other, file)

    def _full_path(self, file: str) -> str:
        # The folder may be a symbolic link, so ".." must be resolved in the text of the path, not by the file system.
        return os.path.normpath(os.path.join(self.folder, file))


class BucketListing(FileListing):
    """Listing of objects in a bucket.  A listing sends one request for each 1,000 objects below the prefix."""

    every, settled = 5.0, True

    @cached_property
    def _bucket(self) -> Bucket:
        return self._call_bucket(Bucket, "/".join(self.target.split("/")[:3]))  # type: ignore[no-any-return]

    def needs(self) -> None:
        """Import the library for object stores."""
        self._call_bucket(import_obstore)

    @cached_property
    def _pattern_parts(self) -> tuple[list[str], list[str]]:
        """Folders before the first wildcard, and the parts of the pattern after these folders."""
        *folders, last = self.target.split("/")[3:]
        wild = next((at for at, part in enumerate(folders) if _WILD.search(part)), len(folders))
        return folders[:wild], [*folders[wild:], last or "*"]

    @property
    def folder(self) -> str:
        """Folder in the bucket before the first wildcard."""
        return "/".join(self._pattern_parts[0])

    def list_files(self) -> dict[str, FileStamp]:
        """List the objects below the prefix that match the pattern."""
        folder, pattern = self._pattern_parts
        found = self._call_bucket(self._bucket.list_objects, self.folder or None)
        names = ((each, each.key.split("/")[len(folder) :]) for each in found)
        return {"/".join(name): _build_object_stamp(each) for each, name in names if matches_pattern(pattern, name)}

    def read_file_stamp(self, file: str) -> FileStamp:
        """Read the stamp from the bucket."""
        try:
            return _build_object_stamp(self._bucket.head(self._object_key(file)))
        except StorageFailed as error:
            raise SourceFailed(f"read {self.target}", error.found, "check the network and the bucket") from None

    def build_file_location(self, file: str, stamp: FileStamp, kind: FileKind | None = None) -> FileLocation:
        """Return the object in the bucket."""
        return BucketObject(self._bucket, self._object_key(file), stamp.size, kind, self._call_bucket)

    def _object_key(self, file: str) -> str:
        if file.startswith("../"):
            return os.path.relpath(os.path.join("/", self.folder, file), "/")
        return f"{self.folder}/{file}" if self.folder else file

    def _call_bucket(self, ask: Callable[..., Any], *given: Any) -> Any:
        return call_bucket(self.target, ask, *given, followed=True)


def _build_object_stamp(found: Any) -> FileStamp:
    """Return the stamp of an object in whole seconds, because listings and HEAD requests agree only on seconds."""
    return FileStamp(found.length, int(found.written) * 10**9)


def matches_pattern(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether the parts of a name match a pattern.

    O(parts).  Each ``**`` in the pattern multiplies the running time by the number of parts.
    """
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(matches_pattern(pattern[1:], names[at:]) for at in range(len(names) + 1))
    if not names or (names[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(names[0], pattern[0]) and matches_pattern(pattern[1:], names[1:])


def build_listing(pattern: str) -> FileListing:
    """Return the listing for a pattern, without a request to the bucket.

    Raises `SpecError` for an unsupported address.
    """
    if "://" not in pattern:
        return FolderListing(os.path.abspath(pattern))
    if not _BUCKET.fullmatch(pattern):
        shown = mask_address(pattern)
        found = "ddflow follows files of this machine and objects of s3://BUCKET/PREFIX"
        raise SpecError(f"dd.sources.files({shown!r})", found, "pass a path, a pattern, or s3://BUCKET/PREFIX/*")
    return BucketListing(pattern)
