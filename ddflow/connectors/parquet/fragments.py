"""A folder of Parquet files as a sink, a file an epoch, beside records that say which count.

Invariant: files and records have the same numbers. A record (``_written/<number>.json``) is written after its file is
durable, and put only where it is not there yet, so of two writers one wins; the last one says what the folder has. A
file whose record is missing was left by a dead writer, and is removed before the next one is written; that it is ours
stands in its metadata, so files of others are not touched.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     opened = ParquetFragments(folder).open(TableShape("t", pa.schema({"id": pa.int64()}), None))
...     opened.write(TableChanges(None, pa.table({"id": [7]}), 1), TargetRecord("0" * 32, "t", 3, "f" * 32), None)
...     opened.read().to_pylist(), opened.written().epoch, sorted(os.listdir(folder))
([{'id': 7}], 3, ['000000000001.parquet', '_written'])
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ddflow.connectors.attached import Mode, OpenSink, TableChanges, TableShape, TableSink, TargetRecord
from ddflow.connectors.table_shape import is_written, new_columns, vanished
from ddflow.errors import SinkFailed, SinkRefused, SpecError

RECORDS: Final = "_written"
OURS: Final = b"ddflow"
"""The metadata of a file that was written here: its record."""


@dataclass(frozen=True)
class ParquetFragments(TableSink):
    """See `dd.sinks.parquet`."""

    folder: str
    mode: Mode = "changelog"
    kind: ClassVar[str] = "parquet"
    modes: ClassVar[tuple[Mode, ...]] = ("changelog", "retract", "debezium", "updates")

    def __post_init__(self) -> None:
        if "://" in self.folder:
            asked = f"dd.sinks.parquet({self.folder.rpartition('@')[2]!r})"
            raise SpecError(asked, "that is no folder of this machine", "write to a table: dd.sinks.delta, or iceberg")

    @property
    def target(self) -> str:
        """The folder."""
        return os.path.abspath(self.folder)

    def open(self, shape: TableShape) -> OpenSink:
        """Return the folder; makes nothing yet."""
        return FragmentFolder(Path(self.target), shape)


class FragmentFolder(OpenSink):
    """``folder``: with a file an epoch."""

    def __init__(self, folder: Path, shape: TableShape) -> None:
        self.folder, self.shape = folder, shape

    def written(self) -> TargetRecord | None:
        """Read the greatest record."""
        with self._disk("ask"):
            names = self._names(RECORDS, ".json")
            return TargetRecord(**json.loads((self.folder / RECORDS / names[-1]).read_text())) if names else None

    def missing(self) -> bool:
        """Return whether there is no such folder."""
        return not self.folder.exists()

    def occupied(self) -> bool:
        """Return whether there are records, or files that are not ours."""
        with self._disk("ask"):
            return bool(self._names(RECORDS, ".json")) or len(self._names("", ".parquet")) > len(self._list_orphans())

    def prepare(self) -> None:
        """Make the folder, or compare the columns of its last file, which may be fewer than ours."""
        place = str(self.folder)
        with self._disk("prepare"):
            (self.folder / RECORDS).mkdir(parents=True, exist_ok=True)
            for name in self._names("", ".parquet")[-1:]:
                new_columns(self.shape, pq.ParquetFile(self.folder / name).schema_arrow, self.shape.schema, place)

    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Take an epoch."""
        if before is not None and self.missing():
            raise vanished(now.output, str(self.folder), before.epoch)
        if is_written(self.written(), now, before, str(self.folder)):
            return
        with self._disk("write"):
            (self.folder / RECORDS).mkdir(parents=True, exist_ok=True)
            for path in self._list_orphans():
                path.unlink()
            records = self._names(RECORDS, ".json")
            stem = f"{int(Path(records[-1]).stem) + 1 if records else 1:012}"
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
        """Read the rows of all epochs that have a record."""
        with self._disk("read"):
            stems = [Path(name).stem for name in self._names(RECORDS, ".json")]
            files = [path for stem in stems if (path := self.folder / f"{stem}.parquet").exists()]
            # What may be null in one epoch's file may be declared otherwise in another's.
            schema = pa.schema([field.with_nullable(True) for field in self.shape.schema])
            tables = [pq.read_table(path) for path in files]
            tables = [each.cast(pa.schema([f.with_nullable(True) for f in each.schema])) for each in tables]
            return pa.concat_tables([schema.empty_table(), *tables], promote_options="default")

    def _list_orphans(self) -> list[Path]:
        """List our files that have no record."""
        recorded = {Path(name).stem for name in self._names(RECORDS, ".json")}
        files = [self.folder / name for name in self._names("", ".parquet") if Path(name).stem not in recorded]
        return [path for path in files if OURS in (pq.ParquetFile(path).schema_arrow.metadata or {})]

    def _names(self, within: str, ending: str) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(n for n in os.listdir(self.folder / within) if n.endswith(ending) and n[0] != "_")
        return []

    @contextmanager
    def _disk(self, asked: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException, ValueError) as error:
            if isinstance(error, SinkRefused):
                raise
            raise SinkFailed(
                f"{asked} {self.folder}", f"{type(error).__name__}: {error}", "see to the folder"
            ) from None


def _sync_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
