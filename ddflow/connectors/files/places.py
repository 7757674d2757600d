"""List and open input files: local files and folders, standard input, and objects in S3.

Guarantees: a pattern means the same for local files and for objects. Folders and patterns list their files in the
order of the names, without hidden files. ddflow warns if names contain numbers without leading zeros, because `10.csv`
then sorts before `2.csv`.

>>> list_file_locations(["https://KEY@host/a.csv?token=1"])
Traceback (most recent call last):
    ...
ddflow.errors.UnreadableInput: https://host/a.csv: ddflow reads no input from the web; download it first: \
curl -fLO https://host/a.csv
"""

import glob
import io
import os
import re
import shutil
import sys
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, Final, Protocol, TypeVar

import pyarrow as pa

from ddflow.connectors.files.kinds import ARROW, PARQUET, STREAM, FileKind, find_kind, sniff_file_kind
from ddflow.errors import DdflowError, MissingExtra, SourceFailed, StateRefused, UnreadableInput, convert_errors
from ddflow.storage.object_store import Bucket

STDIN: Final = "-"
HEAD: Final = 4 << 20
"""Size in bytes of the buffer for the beginning of standard input, which ddflow can read twice."""
PIECE: Final = 4 << 20
"""Number of bytes of an object to fetch at a time."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)")
_WILD: Final = re.compile(r"[*?\[]")


class FileLocation(ABC):
    """Location of one file.  ``name``: its name in messages and positions, without credentials."""

    def __init__(self, name: str, kind: FileKind | None = None) -> None:
        self.name, self._kind = name, kind

    @property
    def kind(self) -> FileKind:
        """The given kind, or the kind for the extension of the name."""
        return find_kind(self.name, self._kind)

    @abstractmethod
    def size(self) -> int | None:
        """Return the size of the file in bytes; None if the size is unknown before reading."""

    @abstractmethod
    def open(self) -> pa.NativeFile:
        """Open the file at its first byte.  Close the file only if you read it directly, never while Arrow reads it.

        Arrow reads ahead in a thread that may still read after its reader is dropped. If the file were closed too
        early, this thread could read a block of another file that got the same descriptor. A file that you leave open
        closes when Arrow's thread drops it.
        """

    def open_head(self) -> pa.NativeFile:
        """Open the file, or only its beginning, which is enough to guess types from.  See `open`."""
        return self.open()

    def close(self) -> None:  # noqa: B027 - most keep nothing
        """Release the resources of the file.  A second call is harmless."""


class LocalFile(FileLocation):
    """A local file."""

    def size(self) -> int | None:
        """Return the size from the file system."""
        path = Path(self.name)
        size = path.stat().st_size
        if not path.is_file():
            raise UnreadableInput(
                self.name, "it is not a regular file", "pipe its contents to standard input, and pass -"
            )
        return size

    def open(self) -> pa.NativeFile:
        """Open the file."""
        return pa.OSFile(self.name)


class Stdin(FileLocation):
    """Standard input, read once as a stream.

    Columnar formats need random access, so ddflow copies input in such a format to a temporary file.
    """

    def __init__(self, kind: FileKind | None = None) -> None:
        super().__init__(STDIN, kind)
        self._input: IO[bytes] | None = None
        self._begin: bytes | None = None
        self._copy: Any = None

    @property
    def kind(self) -> FileKind:
        """The given kind, or a guess from the first bytes of the input."""
        if self._kind is None:
            wrapped = next((how for magic, how in MAGIC.items() if self._read_beginning().startswith(magic)), None)
            plain = pa.BufferReader(self._read_beginning())
            stream = plain if wrapped is None else pa.CompressedInputStream(plain, wrapped)
            self._kind = sniff_file_kind(stream.read(4096))._replace(wrapped=wrapped)
        return self._kind

    def _read_beginning(self) -> bytes:
        if self._begin is None:
            self._input = sys.stdin.buffer
            self._begin = self._input.read(HEAD)
        return self._begin

    def size(self) -> int | None:
        """Return 0 if the input is empty, else None."""
        return None if self._read_beginning() else 0

    def open(self) -> pa.NativeFile:
        """Open standard input at its beginning.  A text format can be opened only once."""
        begin = self._read_beginning()
        if self.kind.name in (PARQUET, ARROW, STREAM):
            return self._copy_to_file(begin)
        if self._input is None:
            raise UnreadableInput(
                STDIN, "standard input can be read only once", "write it to a file, and pass the file"
            )
        rest, self._input = self._input, None
        return pa.PythonFile(io.BufferedReader(_JoinedStream(begin, rest), HEAD), mode="r")

    def open_head(self) -> pa.NativeFile:
        """Open the buffered beginning of standard input."""
        return pa.BufferReader(self._read_beginning())

    def _copy_to_file(self, begin: bytes) -> pa.NativeFile:
        if self._copy is None:
            self._copy = tempfile.NamedTemporaryFile(prefix="ddflow-stdin-")  # noqa: SIM115 - `close` closes it
            self._copy.write(begin)
            shutil.copyfileobj(self._input or io.BytesIO(), self._copy, PIECE)
            self._copy.flush()
        return pa.OSFile(self._copy.name)

    def close(self) -> None:
        """Remove the temporary copy, if a copy exists."""
        if self._copy is not None:
            self._copy.close()


MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


class _JoinedStream(io.RawIOBase):
    """Stream of some bytes, followed by the bytes of another file."""

    def __init__(self, begin: bytes, rest: IO[bytes]) -> None:
        self._begin, self._rest = io.BytesIO(begin), rest

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        """Read the next bytes of the first part, then of the second part."""
        got = self._begin.read(len(into)) or self._rest.read(len(into))
        into[: len(got)] = got
        return len(got)


class BucketObject(FileLocation):
    """Object in S3; readers fetch its ranges on demand.

    ``key``: its name in the bucket.  ``length``: its size in bytes.  ``ask``: a function that calls the bucket
    and translates its errors.
    """

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        length: int,
        kind: FileKind | None = None,
        ask: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(f"{bucket.url}/{key}", kind)
        self._bucket, self._key, self._length = bucket, key, length
        self._asks = ask or partial(call_bucket, self.name)

    def size(self) -> int | None:
        """Return the size from the bucket."""
        return self._length

    def open(self) -> pa.NativeFile:
        """Open the object."""
        ranges = _RangeStream(
            lambda begin, end: self._asks(self._bucket.read_range, self._key, begin, end), self._length
        )
        return pa.PythonFile(io.BufferedReader(ranges, PIECE), mode="r")


class _RangeStream(io.RawIOBase):
    """Seekable stream of ``length`` bytes.  ``ask``: function that fetches the bytes from one position to another."""

    def __init__(self, ask: Callable[[int, int], bytes], length: int) -> None:
        self._ask, self._length, self._at = ask, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._length)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: Any) -> int:
        """Fetch the next bytes of the object."""
        end = min(self._at + len(into), self._length)
        if end <= self._at:
            return 0
        got = self._ask(self._at, end)
        into[: len(got)] = got
        self._at += len(got)
        return len(got)


def list_file_locations(paths: Iterable[Path | str], kind: FileKind | None = None) -> list[FileLocation]:
    """List the files that paths, folders, patterns, addresses and ``-`` refer to.  O(files).

    ``kind``: the kind of all files; None to find it from each name.

    Raises `UnreadableInput` for a missing file, an address with an unknown scheme, an unknown kind, an empty folder,
    a folder with subfolders, a pattern without matches, and an empty list.
    """
    found: list[FileLocation] = []
    for given in map(str, paths):
        if given == STDIN:
            found.append(Stdin(kind))
        elif re.match("s3:/", given):
            found += _list_bucket_objects(given, kind)
        else:
            _refuse_remote_address(given)
            found += [
                LocalFile(str(file) if str(file) != STDIN else "./-", kind) for file in _list_local_files(given, kind)
            ]
    if not found:
        raise UnreadableInput("an input", "there is no file", "pass at least one file or folder, or - for stdin")
    for place in found:
        _ = isinstance(place, Stdin) or place.kind
    return found


def _list_local_files(given: str, kind: FileKind | None) -> Sequence[Path]:
    path = Path(given)
    if path.is_dir():
        return _list_folder(path)
    if not os.path.lexists(path) and _WILD.search(given):
        matched = [Path(name) for name in sorted(glob.glob(given, recursive=True)) if not _is_hidden(name, given)]
        if not matched:
            raise UnreadableInput(given, "no file matches", "check the pattern and the current folder")
        return [file for each in matched for file in (_list_folder(each) if each.is_dir() else [each])]
    if not os.path.lexists(path):
        find_kind(given, kind)
        raise UnreadableInput(given, "there is no such file or folder", "check the name and the current folder")
    return [path]


def _is_hidden(name: str, pattern: str) -> bool:
    """Return whether a name is hidden and the pattern does not ask for hidden names."""
    return PurePosixPath(name).name[:1] in "._" and PurePosixPath(pattern).name[:1] not in "._"


def _refuse_remote_address(given: str) -> None:
    """Refuse an address such as ``gs://...``, which `Path` would read as a relative folder."""
    match = _SCHEME.match(given)
    if match is not None and (match[2] == "//" or not Path(given).exists()):
        # The message omits credentials before the host and a signature after the path.
        place = f"{match[1]}://{re.split(r'[?#]', given[match.end() :].rpartition('@')[2])[0]}"
        if match[1].lower() in ("http", "https"):
            raise UnreadableInput(place, "ddflow reads no input from the web", f"download it first: curl -fLO {place}")
        raise UnreadableInput(
            place,
            "inputs are files and folders of this machine, or s3://bucket/key",
            "copy it here first, or read it in Python and pass its rows to a step",
        )


def _list_folder(folder: Path) -> list[Path]:
    try:
        entries = sorted(entry for entry in folder.iterdir() if entry.name[0] not in "._")
    except OSError as error:
        raise UnreadableInput(str(folder), f"it cannot be listed ({error.strerror})", "check its permissions") from None
    _refuse_subfolders(str(folder), [entry.name for entry in entries if entry.is_dir()])
    if not entries:
        raise UnreadableInput(str(folder), "there is no file in it", "name another folder, or files")
    return entries


def _refuse_subfolders(folder: str, inner: list[str]) -> None:
    if inner:
        raise UnreadableInput(
            folder,
            f"it contains folders: {inner[:5]}",
            "ddflow reads no subfolders: name the folders to read, in their order",
        )


def _list_bucket_objects(given: str, kind: FileKind | None) -> list[FileLocation]:
    """List the objects at an address: one object, all objects in a folder, or all objects that match a pattern."""
    name, _, key = given.removeprefix("s3://").partition("/")
    address = f"s3://{name.rpartition('@')[2]}/{re.split('[?#]', key)[0]}"
    bucket = call_bucket(address, Bucket, f"s3://{name}")
    if not key.endswith("/") and not _WILD.search(key):
        length = call_bucket(address, bucket.find_object_lengths, [key]).get(key)
        if length is not None:
            return [BucketObject(bucket, key, length, kind)]
    folder = "/".join(key[: match.start()].split("/")[:-1]) if (match := _WILD.search(key)) else key.rstrip("/")
    there = {each.key: each.length for each in call_bucket(address, bucket.list_objects, folder or None)}
    if match:
        pattern = f"/{key}"
        found = [each for each in there if PurePosixPath(f"/{each}").match(pattern) and not _is_hidden(each, pattern)]
        remedy = "check the pattern"
    else:
        below = {each: each.removeprefix(f"{folder}/" if folder else "") for each in there}
        found = [each for each, rest in below.items() if rest and rest[0] not in "._"]
        remedy = "check the address"
        _refuse_subfolders(address, sorted({below[each].split("/")[0] for each in found if "/" in below[each]}))
    if not found:
        raise UnreadableInput(address, "there is no such object", remedy)
    return [BucketObject(bucket, each, there[each], kind) for each in sorted(found)]


def call_bucket(address: str, ask: Callable[..., Any], *given: Any, followed: bool = False) -> Any:
    """Call a bucket, and translate its errors so that the errors name the input, not a state.

    ``followed``: whether a source reads the bucket; a source retries after a failure.
    """
    asked, failure = (f"read {address}", SourceFailed) if followed else (address, UnreadableInput)
    remedy = "check the network, the bucket and its keys (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...)"

    def to_ours(error: Exception) -> DdflowError:
        if isinstance(error, MissingExtra):
            return MissingExtra(f"read {address}", error.found, error.fix)
        if isinstance(error, StateRefused):
            return UnreadableInput(asked, error.found, error.fix)
        if isinstance(error, DdflowError):
            return failure(asked, error.found, remedy)
        return UnreadableInput(asked, str(error), "check the address" if followed else remedy)

    with convert_errors((DdflowError, FileNotFoundError), to_ours):
        return ask(*given)


_NUMBER = re.compile(r"[0-9]+")


class HasName(Protocol):
    """Object with a name."""

    @property
    def name(self) -> str:
        """Name for messages."""


N = TypeVar("N", bound=HasName)


def warn_of_misordered_files(files: Sequence[N]) -> Sequence[N]:
    """Return the files unchanged.

    Warn if a numeric sort of the file names would give another order.  O(files).
    """
    warn_of_misordered_names([each.name for each in files])
    return files


def warn_of_misordered_names(names: Sequence[str]) -> None:
    """Warn if a numeric sort of the names would give another order.  O(names)."""
    if (found := find_misordered_names(names)) is not None:
        one, other, padded = found
        warnings.warn(
            f"{one} is read before {PurePath(other).name}, because names sort as text: pad the numbers in them with "
            f"zeros ({PurePath(padded).name}), or pass the files one by one in their order",
            stacklevel=4,
        )


def find_misordered_names(names: Sequence[str]) -> tuple[str, str, str] | None:
    """Return the first two neighbouring names whose numbers descend, and the second name with leading zeros added.

    Returns None if no numbers descend. The function ignores names that are not sorted, because the user chose their
    order. O(names).

    >>> find_misordered_names(["10. March.csv", "2. March.csv", "a.csv"])
    ('10. March.csv', '2. March.csv', '02. March.csv')
    >>> find_misordered_names(["02. March.csv", "10. March.csv"]), find_misordered_names(["2.csv", "10.csv"])
    (None, None)
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_NUMBER.sub("0", name), []).append(name)
    for each in alike.values():
        if each != sorted(each):
            continue
        for one, other in pairwise(each):
            if _extract_numbers_in_name(one) > _extract_numbers_in_name(other):
                widths = [max(map(len, found)) for found in zip(*map(_NUMBER.findall, each), strict=True)]
                padded = iter(widths)
                return one, other, _NUMBER.sub(lambda found: found[0].zfill(next(padded)), other)  # noqa: B023
    return None


def _extract_numbers_in_name(name: str) -> list[int]:
    return [int(found) for found in _NUMBER.findall(name)]
