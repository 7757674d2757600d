"""Claim a folder of outputs for a state, and define the sink that writes one Parquet file for each epoch.

`OwnedFolder` claims a folder for one state and refuses other states. `ParquetSink` records each epoch next to its file,
so an epoch that was written before a crash is not written again.

>>> import os, tempfile
>>> from ddflow.storage.folder.disk import Disk
>>> with tempfile.TemporaryDirectory() as folder:
...     place = OwnedFolder(ManagedFolder(Disk(), folder, "owner", "the outputs folder"), "00ff00ff00ff00ff")
...     place.claim("0" * 32, "state", ["by city"])
...     sorted(os.listdir(folder)), place.read_record().state == "0" * 32
(['by_city-03b9d52a719159e2', 'outputs.json'], True)
"""

import itertools
import json
import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path as LocalPath
from typing import ClassVar, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from msgspec.json import Decoder

from ddflow.connectors.api import Mode, OpenSink, TableChanges, TableShape, TableSink, TargetRecord
from ddflow.connectors.table_shape import build_dropped_table_error, find_new_columns, is_written
from ddflow.errors import SinkFailed, SinkRefused, SpecError, convert_errors, shorten
from ddflow.storage.fields import Hex, Path, StrictRecord, decode_record, encode_record
from ddflow.storage.folder.site import ManagedFolder
from ddflow.storage.protocol import missing_file_error

MARK: Final = "outputs.json"
MARK_BYTES: Final = 1 << 24
"""Maximum size of ``outputs.json`` in bytes."""
READABLE: Final = 40
"""Maximum number of characters that a folder name takes from the name of its output."""
AGAIN: Final = (
    "restore it from a backup; or, if the folder belongs to this state only, delete that file, and open "
    "the state with outputs= again, which writes it again"
)
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")


def build_folder_name(name: str) -> str:
    """Return the folder name of an output: the safe characters of the output's name, and 16 hex digits of a hash."""
    # Programs that read folders of Parquet files ignore names with a leading dot or underscore.
    readable = _UNSAFE.sub("_", name)[:READABLE].strip("._")
    digest = xxhash.xxh3_64_hexdigest(name.encode("utf-8", "surrogatepass"))
    return f"{readable}-{digest}" if readable else digest


class OwnerRecord(StrictRecord, frozen=True):
    """Content of ``outputs.json``: the id of the owning ``state``, and the folder of each of its ``outputs``.

    ``at``: the address of the state at its last claim, because a copy of the state has the same id.
    """

    state: Hex
    at: Path
    outputs: dict[str, str]


_DECODER: Final = Decoder(OwnerRecord)


class OwnedFolder:
    """Folder that belongs to one state.

    ``site``: the folder.  ``nonce``: the nonce of the writer, part of the names of its files.  ``numbers``: a counter
    for these names.  Every method raises `StorageFailed` if the disk fails.
    """

    def __init__(self, site: ManagedFolder, nonce: str) -> None:
        self.site, self.nonce, self.numbers = site, nonce, itertools.count()

    def check_folder(self, state: str | None) -> None:
        """Raise `StateRefused` unless a state is allowed to write its outputs to the folder.  Creates nothing.  O(1).

        ``state``: the id of the state, None for a new state.  Raises `CorruptState` for a damaged ``outputs.json``.
        """
        with self.site.translate_disk_errors("open it", opening=True):
            self.site.path = self.site.disk.resolve_path(self.site.path)
            if self.site.is_existing_path(self.site.path):
                self.site.check_folder(self.site.path)
                self._check_owner(state, self.read_record())

    def claim(self, state: str, at: str, names: Iterable[str]) -> None:
        """Claim the folder for a state, and durably create its missing parts.  O(names).

        ``at``: the address of the state.  If several states claim the folder at the same time, only one state succeeds.
        Raises the errors of `check_folder`.  Raises `StorageFull`, and `StateRefused` for a name that is not UTF-8.
        """
        wanted = {name: build_folder_name(name) for name in sorted(names)}
        try:
            encode_record([self.site.path, at, wanted])
        except UnicodeEncodeError as error:
            odd = f"the name of a folder or an output is not valid UTF-8 ({error.reason}): {error.object!r}"
            raise self.site.build_refusal(shorten(odd), "choose another name") from None
        self.check_folder(state)
        with self.site.translate_disk_errors("create it", opening=True):
            self.site.create_folder()
            self.site.check_folder(self.site.path)
            found = self.read_record() or self._write_first_record(OwnerRecord(state, at, wanted))
            self._check_owner(state, found)
            for name in wanted:
                with suppress(FileExistsError):
                    self.site.disk.mkdir(self.site.child_path(build_folder_name(name)), self.site.folder_mode)
                self.site.check_folder(self.site.child_path(build_folder_name(name)))
            if found != (now := OwnerRecord(state, at, wanted | found.outputs)):
                self.site.disk.rename(self._write_record_file(now), self.site.child_path(MARK))
            self.site.remove_stale_temporaries(self.site.path)
            # A crashed process may have created folders or files without a sync.
            self.site.disk.sync_dir(self.site.path)
            self.site.sync_parent_folder(self.site.path)

    def read_record(self) -> OwnerRecord | None:
        """Read ``outputs.json``; None if the file is missing.

        O(its bytes).  Raises `CorruptState` for an invalid file.
        """
        with self.site.translate_read_errors(f"file {MARK}", missing_file_error(MARK, self.site.path), AGAIN):
            try:
                data = self.site.disk.read(self.site.child_path(MARK), MARK_BYTES)
            except FileNotFoundError:
                return None
        return decode_record(_DECODER, data, f"the file {MARK} of {self.site.path}", AGAIN)

    def _check_owner(self, state: str | None, found: OwnerRecord | None) -> None:
        if found is not None and found.state != state:
            this = "this state is new" if state is None else f"this state has the id {state}"
            raise self.site.build_refusal(
                f"it belongs to the state with the id {found.state}, at {found.at}, but {this}",
                "use a separate folder for each state",
            )

    def _write_first_record(self, mark: OwnerRecord) -> OwnerRecord:
        """Write the first owner record.  If another process has just written a record, return that record."""
        temporary = self._write_record_file(mark)
        try:
            self.site.disk.link(temporary, self.site.child_path(MARK))
        except FileExistsError:
            return self.read_record() or mark
        finally:
            self.site.try_unlink(temporary)
        return mark

    def _write_record_file(self, mark: OwnerRecord) -> str:
        """Write the record to a temporary file, make the bytes durable, and return the path of the file."""
        data = msgspec.json.format(encode_record(mark), indent=1)
        path = self.site.child_path(f".{self.nonce}-{next(self.numbers)}.part")
        self.site.write_file(path, f"write {MARK}", lambda sink: sink.write(data))
        return path


RECORDS: Final = "_written"
OURS: Final = b"ddflow"
"""Key under which the metadata of the sink's Parquet files contains the record of the epoch."""


@dataclass(frozen=True)
class ParquetSink(TableSink):
    """Sink that writes one Parquet file for each epoch.  `dd.sinks.parquet` describes the options.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     opened = ParquetSink(folder).open(TableShape("t", pa.schema({"id": pa.int64()}), None))
    ...     opened.write(TableChanges(None, pa.table({"id": [7]}), 1), TargetRecord("0" * 32, "t", 3, "f" * 32), None)
    ...     opened.read().to_pylist(), opened.written().epoch, sorted(os.listdir(folder))
    ([{'id': 7}], 3, ['000000000001.parquet', '_written'])
    """

    folder: str
    mode: Mode = "changelog"
    kind: ClassVar[str] = "parquet"
    modes: ClassVar[tuple[Mode, ...]] = ("changelog", "retract", "debezium", "updates")

    def __post_init__(self) -> None:
        if "://" in self.folder:
            asked = f"dd.sinks.parquet({self.folder.rpartition('@')[2]!r})"
            raise SpecError(
                asked, "that is not a folder of this machine", "write to a table: dd.sinks.delta, or iceberg"
            )

    @property
    def target(self) -> str:
        """Absolute path of the folder."""
        return os.path.abspath(self.folder)

    def open(self, shape: TableShape) -> OpenSink:
        """Return the open sink. The method does not create the folder."""
        return FragmentFolder(LocalPath(self.target), shape)


class FragmentFolder(OpenSink):
    """Folder with one Parquet file for each epoch, and records of the epochs in ``_written``."""

    def __init__(self, folder: LocalPath, shape: TableShape) -> None:
        self.folder, self.shape = folder, shape

    def written(self) -> TargetRecord | None:
        """Read the record of the last epoch; None if there is no record."""
        with self._translate_errors("check"):
            names = self._list_file_names(RECORDS, ".json")
            return TargetRecord(**json.loads((self.folder / RECORDS / names[-1]).read_text())) if names else None

    def missing(self) -> bool:
        """Return whether the folder is missing."""
        return not self.folder.exists()

    def occupied(self) -> bool:
        """Return whether the folder has records, or Parquet files that the sink did not write."""
        with self._translate_errors("check"):
            return bool(self._list_file_names(RECORDS, ".json")) or len(self._list_file_names("", ".parquet")) > len(
                self._list_unrecorded_files()
            )

    def prepare(self) -> None:
        """Create the folder, or check the columns of the last file in it.  The last file may lack new columns."""
        place = str(self.folder)
        with self._translate_errors("prepare"):
            (self.folder / RECORDS).mkdir(parents=True, exist_ok=True)
            for name in self._list_file_names("", ".parquet")[-1:]:
                find_new_columns(self.shape, pq.ParquetFile(self.folder / name).schema_arrow, self.shape.schema, place)

    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Write an epoch, unless its record exists."""
        if before is not None and self.missing():
            raise build_dropped_table_error(now.output, str(self.folder), before.epoch)
        if is_written(self.written(), now, before, str(self.folder)):
            return
        with self._translate_errors("write"):
            (self.folder / RECORDS).mkdir(parents=True, exist_ok=True)
            for path in self._list_unrecorded_files():
                path.unlink()
            records = self._list_file_names(RECORDS, ".json")
            stem = f"{int(LocalPath(records[-1]).stem) + 1 if records else 1:012}"
            if changes.rows.num_rows:
                new = self.folder / f"_{stem}.new"
                pq.write_table(changes.rows.replace_schema_metadata({OURS: json.dumps(now._asdict())}), new)
                _sync_to_disk(new)
                new.rename(self.folder / f"{stem}.parquet")
                _sync_to_disk(self.folder)
            part = self.folder / RECORDS / f"_{stem}.{os.getpid()}"
            part.write_text(json.dumps(now._asdict()))
            _sync_to_disk(part)
            try:
                os.link(part, self.folder / RECORDS / f"{stem}.json")
            finally:
                part.unlink()
            _sync_to_disk(self.folder / RECORDS)

    def read(self) -> pa.Table:
        """Read the rows of all recorded epochs."""
        with self._translate_errors("read"):
            stems = [LocalPath(name).stem for name in self._list_file_names(RECORDS, ".json")]
            files = [path for stem in stems if (path := self.folder / f"{stem}.parquet").exists()]
            # A column can be declared nullable in the file of one epoch and not nullable in the file of another epoch.
            schema = pa.schema([field.with_nullable(True) for field in self.shape.schema])
            tables = [pq.read_table(path) for path in files]
            tables = [each.cast(pa.schema([f.with_nullable(True) for f in each.schema])) for each in tables]
            return pa.concat_tables([schema.empty_table(), *tables], promote_options="default")

    def _list_unrecorded_files(self) -> list[LocalPath]:
        """List the files that have no record because a crash came between the file and its record."""
        recorded = {LocalPath(name).stem for name in self._list_file_names(RECORDS, ".json")}
        files = [
            self.folder / name for name in self._list_file_names("", ".parquet") if LocalPath(name).stem not in recorded
        ]
        return [path for path in files if OURS in (pq.ParquetFile(path).schema_arrow.metadata or {})]

    def _list_file_names(self, within: str, ending: str) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(n for n in os.listdir(self.folder / within) if n.endswith(ending) and n[0] != "_")
        return []

    def _translate_errors(self, asked: str) -> AbstractContextManager[None]:
        def to_ours(error: Exception) -> SinkFailed | None:
            if isinstance(error, SinkRefused):
                return None
            return SinkFailed(f"{asked} {self.folder}", f"{type(error).__name__}: {error}", "check the folder")

        return convert_errors((OSError, pa.ArrowException, ValueError), to_ours)


def _sync_to_disk(path: LocalPath) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
