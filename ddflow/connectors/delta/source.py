"""Read a table of Delta Lake: a copy of one version, then the changes of each later version.

A row is in the copy or in the changes, never in both. The copy may take several epochs. All changes of a version are in
one epoch. Deletes come before inserts, so the last change of an updated key is its new row. Rows have the columns of
the change data feed: ``_change_type`` (``insert`` in the copy), ``_commit_version`` and ``_commit_timestamp``. ddflow
derives changes from removed and added files if ``delta.enableChangeDataFeed`` is off, or if a version dropped a column
or changed a type. The position is ``{"table": id, "version": n, "rows": None or rows copied}``. If a table is dropped
and created again, its id changes. Limits: the source refuses tables with deletion vectors or mapped columns.

>>> DeltaSource("s3://lake/orders", None, True, {"secret": "hush"})
DeltaSource(path='s3://lake/orders', start=None, follow=True)
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any, ClassVar, Final, TypedDict
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import decode_array, is_text, to_array, to_batch
from ddflow.columns.widening import InexactValue, widen_column
from ddflow.columns.wider import find_widening, suggest_widening
from ddflow.connectors.api import OpenSource, Polled, Source, UndeclaredColumn
from ddflow.connectors.delta.sink import OPTIONS, import_deltalake, resolve_address
from ddflow.connectors.formats.base import DELETED, OWN
from ddflow.connectors.formats.messages import POSITION
from ddflow.connectors.modes import CHANGE, VERSION, WRITTEN
from ddflow.errors import (
    DdflowError,
    ErrorText,
    SchemaMismatch,
    SourceChanged,
    SourceFailed,
    SpecError,
    UnreadableInput,
    convert_errors,
    first_line,
    mask_secrets,
)
from ddflow.storage.address import refuse_embedded_secret

LOOK: Final = 0.5
"""Seconds between two checks for a new version."""
SPAN: Final = 64
"""Largest number of versions in one read."""
_FEED: Final = (CHANGE, VERSION, WRITTEN)
_OFF: Final = "does not have change data enabled"
_READ: Final = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Reader features of Delta Lake that the source supports."""
_GONE: Final = (
    *("not found", "No such file", "Invalid table version", "No files in log segment", "is not available"),
    "LogSegment end version",
)
"""Texts in the library's errors about versions that were vacuumed, or cleaned from the log."""
_AGAIN: Final = "the changes since then are lost: create a new state, with a new copy"


class FeedPosition(TypedDict):
    """Position in a Delta Lake table; the header of this file describes its fields."""

    table: str
    version: int
    rows: int | None


def read_dataset_rows(
    dataset: ds.FileSystemDataset, names: Sequence[str], only: Collection[str] | None = None, begin: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a table, without the first ``begin`` rows.  Files come in the order of their paths.

    ``only``: the names of the files to read; None for all files.  O(rows).  Only the calling thread reads the files.
    The library opens files as Python objects. If a thread of the scanner still held a Python file object at exit, the
    process would abort.
    """
    fields = [dataset.schema.field(name) for name in names]
    for fragment in sorted(dataset.get_fragments(), key=lambda each: each.path):
        if only is not None and fragment.path.rpartition("/")[2] not in only:
            continue
        values, source = ds.get_partition_keys(fragment.partition_expression), fragment.open()
        with source, pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="us") as file:
            if begin >= file.metadata.num_rows:
                begin -= file.metadata.num_rows
                continue
            there = [name for name in names if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=there, use_threads=False):
                rows = batch.slice(min(begin, batch.num_rows))
                begin -= batch.num_rows - rows.num_rows
                if rows.num_rows:
                    yield pa.record_batch([_read_column(rows, each, values) for each in fields], names=list(names))


def _read_column(rows: pa.RecordBatch, field: pa.Field, values: Mapping[str, Any]) -> pa.Array:
    """Return a column of a file.

    If the file lacks the column, return the partition's value for the column, or null.
    """
    if field.name in rows.schema.names:
        return rows.column(field.name).cast(field.type)
    return pa.array([values.get(field.name)] * rows.num_rows, field.type)


@dataclass(frozen=True)
class DeltaSource(Source):
    """See `dd.sources.delta`."""

    path: str
    start: int | datetime | None = None
    follow: bool = False
    storage_options: Mapping[str, str] = field(repr=False, default_factory=dict)
    kind: ClassVar[str] = "delta"
    unit: ClassVar[str] = "versions"
    positions: ClassVar[Any] = FeedPosition

    def __post_init__(self) -> None:
        refuse_embedded_secret(self.path, OPTIONS)
        aware = not isinstance(self.start, datetime) or self.start.tzinfo is not None
        if not aware or isinstance(self.start, bool) or (isinstance(self.start, int) and self.start < 0):
            remedy = "use the number of a version, or a datetime with a time zone"
            raise SpecError(f"dd.sources.delta(start={self.start!r})", "that is not a version", remedy)

    @property
    def target(self) -> str:
        """Address of the table."""
        return resolve_address(self.path)

    @classmethod
    def said(cls, position: Any) -> str:
        """Describe the version of a position and, during a copy, the number of copied rows."""
        rows = position["rows"]
        return f"{'' if rows is None else f'row {rows:,} of the copy of '}version {position['version']:,}"

    def needs(self) -> None:
        """Import the library of Delta Lake."""
        import_deltalake()

    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> OpenSource:
        """Open the table.  Without a position, the reader begins with a copy."""
        ((name, schema),) = inputs.items()
        return FeedReader(self, name, schema, position)


class FeedReader(OpenSource):
    """Reader of a Delta Lake table.

    ``of``: the source.
    ``name``, ``schema``: the name and the schema of the input.
    """

    def __init__(self, of: DeltaSource, name: str, schema: pa.Schema, position: Any) -> None:
        self.of, self.name, self.asked = of, name, f"read {of.target} for {name!r}"
        if not {POSITION, DELETED} <= set(schema.names) and CHANGE not in schema.names:
            remedy = "set format=dd.formats.delta_cdf() for it, or declare '_change_type' for diff=dd.delta_cdf"
            raise SpecError(self.asked, "it takes plain rows, but the feed has changes with a '_change_type'", remedy)
        self.schema, self.table = schema, self._open_version(None)
        declared = schema.names if CHANGE in schema.names else (CHANGE, VERSION)
        self.feed = [name for name in _FEED if name in declared]
        """Columns of the change data feed that the input's rows have."""
        self.names = [name for name in schema.names if name not in (*OWN, *_FEED)]
        self.stamp = schema.field(WRITTEN).type if WRITTEN in schema.names else pa.timestamp("ms", "UTC")
        self._note_newest_version()
        self._copying: Iterator[pa.RecordBatch] | None = None
        self._looked, self._span = monotonic(), 1
        self.rows: int | None = 0
        """Number of copied rows; None after the copy."""
        if position is None:
            self.at = self.until if of.start is None else self._open_version(of.start).version()
        else:
            self.at, self.rows = position["version"], position["rows"]
        here = self.table
        with suppress(SourceChanged):
            here = self.table if self.at >= self.until else self._open_version(self.at)
        self.id, self.columns = _table_id(here), _table_schema(here)
        """Id and columns of the table at the current version, or at the newest version if the current one is gone.
        """
        if position is not None and (position["table"] != self.id or self.at > self.until):
            found = f"it is at version {self.until}, but the state has read version {self.at}: was it restored?"
            if position["table"] != self.id:
                found = "it is another table now"
            raise SourceChanged(self.asked, found, "create a new state, with a new copy")
        self._check_columns_exist(self.names if position is None else ())

    def declared(self, new: Mapping[str, Collection[str]]) -> None:
        """See `OpenSource.declared`."""
        self._check_columns_exist([name for name in new.get(self.name, ()) if name in self.names])

    def _check_columns_exist(self, names: Iterable[str]) -> None:
        there = {*self.columns.names, *self.newest.names}
        for name in names:
            if name not in there:
                raise UnreadableInput(
                    self.asked, f"it has no column {name!r}", did_you_mean(name, sorted(there)), column=name
                )

    @property
    def ended(self) -> bool:
        """Whether a source without ``follow`` has read the version that was the newest when the source was opened."""
        return not self.of.follow and self.rows is None and self.at >= self.until

    def lag(self) -> int | None:
        """Count the unread versions.  A version counts as unread until the version is copied completely."""
        behind: int = self.until - self.at
        return max(behind, 0) + (self.rows is not None)

    def poll(self, room: int) -> Polled | None:
        """Return a part of the copy, or all changes of one or several versions."""
        batches, size = list[pa.RecordBatch](), 0
        while self.rows is not None and size < room:
            self._copying = self._copying or self._read_initial_copy(self.rows)
            with convert_errors(Exception, self._translate_error):
                batch = next(self._copying, None)
            if batch is None:
                self.rows, self._copying = None, None
            else:
                batches, size, self.rows = [*batches, batch], size + batch.nbytes, self.rows + batch.num_rows
        if not batches and self.rows is None:
            if self.at >= self.until and self.of.follow and monotonic() - self._looked >= LOOK:
                with convert_errors(Exception, self._translate_error):
                    self.table.update_incremental()
                self._looked = monotonic()
                self._note_newest_version()
            while not batches and self.at < self.until:
                batches = self._read_changes(room)
        if not batches:
            return None
        position, where = FeedPosition(table=self.id, version=self.at, rows=self.rows), f"version {self.at:,}"
        others = (each for each in self.columns if each.name not in (*self.names, *OWN, *_FEED))
        beside = {each.name: UndeclaredColumn(each.type, where) for each in others}
        return Polled({self.name: batches}, position, beside={self.name: beside})

    def _open_version(self, version: Any) -> Any:
        """Open the table at a version; None means the newest version.  Raises `UnreadableInput`, `SourceChanged`."""
        of, options = import_deltalake(), dict(self.of.storage_options)
        with convert_errors(Exception, self._translate_error):
            if not of.DeltaTable.is_deltatable(self.of.target, storage_options=options):
                raise UnreadableInput(self.asked, "there is no Delta Lake table", "check the address")
            table = of.DeltaTable(self.of.target, storage_options=options)
            if version is not None:
                table.load_as_version(version)
            return table

    def _note_newest_version(self) -> None:
        """Note the newest version and its columns.  Raises `UnreadableInput` for unsupported reader features."""
        odd = set(self.table.protocol().reader_features or ()) - _READ
        if self.table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            odd.add("columnMapping")
        if odd:
            remedy = "turn them off, and purge the table: reorg table ... apply (purge)"
            raise UnreadableInput(self.asked, f"ddflow does not support its features {sorted(odd)}", remedy)
        self.until, self.newest = self.table.version(), _table_schema(self.table)

    def _get_schema_at_version(self, version: int) -> pa.Schema:
        """Return the columns of the table at a version."""
        return self.newest if version == self.until else _table_schema(self._open_version(version))

    def _read_initial_copy(self, taken: int) -> Iterator[pa.RecordBatch]:
        """Read the rows of the table at the current version, without the first ``taken`` rows."""
        table = self._open_version(self.at)
        yield from self._read_files_as_feed(table, table.file_uris(), taken)

    def _read_files_as_feed(
        self, table: Any, files: Any, taken: int, change: str = "insert", version: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of some files of ``table`` as rows of the change data feed, without the first ``taken`` rows.

        Files come in the order of their names.

        ``change``: the type of the change.
        ``version``: the version of the change, or None for the version of ``table``.
        """
        dataset, paths = table.to_pyarrow_dataset(), {urlsplit(each).path.rpartition("/")[2] for each in files}
        names = [name for name in self.names if name in dataset.schema.names]
        # Read the history from the newest version. The library counts commits back from the newest version, so the
        # history of an older version has wrong commit numbers.
        history = self._open_version(None).history()
        version = table.version() if version is None else version
        said = (each.get("timestamp") for each in history if each.get("version") == version)
        at = self._cast_commit_times(pa.array([next(said, None)], pa.timestamp("ms")))
        beside = {CHANGE: pa.array([change]), VERSION: pa.array([version]), WRITTEN: at}
        for here in read_dataset_rows(dataset, names, paths, taken):
            more = [beside[name].take(pa.array(np.zeros(here.num_rows, np.int64))) for name in self.feed]
            yield self._cast_to_declared_types(pa.record_batch([*here.columns, *more], names=[*names, *self.feed]))

    def _read_changes(self, room: int) -> list[pa.RecordBatch]:
        """Read the changes of the next version, or of several small versions that have the same columns."""
        first, last = self.at + 1, min(self.at + self._span, self.until)
        while (columns := self._get_schema_at_version(last)) != self.columns and last > first:
            last = (first + last) // 2
        kept = all(each.name in columns.names and columns.field(each.name).type == each.type for each in self.columns)
        table, read = self.table if columns == self.newest else self._open_version(last), None
        names = [*(name for name in self.names if name in columns.names), *_FEED]
        with convert_errors(Exception, self._translate_error):
            try:
                read = table.load_cdf(first, last, columns=names).read_all() if kept else None
            except import_deltalake().exceptions.DeltaError as error:
                if _OFF not in str(error):
                    raise
                last = first
        batches = self._derive_changes(first) if read is None else [self._sort_changes(pa.table(read))]
        size = sum(batch.nbytes for batch in batches)
        self._span = max(self._span // 2, 1) if size > room // 2 else min(self._span * 2, SPAN)
        # Some writers change the id of a table when they change its columns.
        if (newest := _table_id(self.table)) != self.id:
            self.id = newest if last == self.until else _table_id(self._open_version(last))
        self.at, self.columns = last, self._get_schema_at_version(last)
        return [batch for batch in batches if batch.num_rows]

    def _derive_changes(self, version: int) -> list[pa.RecordBatch]:
        """Derive the changes of a version from its removed and added files."""
        now, before = self._open_version(version), self._open_version(version - 1)
        files, old = set(now.file_uris()), set(before.file_uris())
        with convert_errors(Exception, self._translate_error):
            left = list(self._read_files_as_feed(before, old - files, 0, "delete", version))
            return [*left, *self._read_files_as_feed(now, files - old, 0)]

    def _cast_commit_times(self, at: Any) -> Any:
        """Cast commit times to the type that the input declares, and note the last time in `reached`."""
        last = pc.max(at.cast(pa.timestamp("ms", "UTC"))).cast(pa.int64()).as_py()
        self.reached = self.reached if last is None else last / 1000
        return at.cast(self.stamp)

    def _sort_changes(self, rows: pa.Table) -> pa.RecordBatch:
        """Sort changes by version, with deletes before inserts.  Return the changes in the columns of the input."""
        rows = pa.table([decode_array(to_array(each)) for each in rows.columns], names=rows.schema.names)
        version, at = rows.column(VERSION).cast(pa.int64()), self._cast_commit_times(rows.column(WRITTEN))
        came = pc.is_in(rows.column(CHANGE), pa.array(["insert", "update_postimage"]))
        order = np.lexsort((np.asarray(came), np.asarray(version)))
        rows = rows.drop_columns([VERSION, WRITTEN]).append_column(VERSION, version).append_column(WRITTEN, at)
        rows = rows.select([*(name for name in rows.schema.names if name not in _FEED), *self.feed])
        return self._cast_to_declared_types(to_batch(rows.take(pa.array(order))))

    def _cast_to_declared_types(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Cast rows to the declared types if the types in the table differ.

        Raises `SchemaMismatch` for a value that does not fit.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name in set(self.names) & set(columns):
            field, column = self.schema.field(name), decode_array(columns[name])
            try:
                if find_widening(column.type, field.type) is not None:
                    columns[name] = widen_column(column, field.type)
                elif find_widening(field.type, column.type) is not None:
                    if is_text(column.type) and not is_text(field.type):
                        raise pa.ArrowInvalid(f"it is {column.type}, but {field.type} is declared")
                    columns[name] = column.cast(field.type)
            except (pa.ArrowInvalid, InexactValue) as error:
                asked = f"column {name!r} of {self.of.target}"
                remedy = ErrorText("declare the type that the table has", suggest_widening(field, column.type))
                raise SchemaMismatch(asked, str(error), remedy) from None
        return pa.record_batch(columns)

    def _translate_error(self, error: Exception) -> DdflowError | None:
        """Convert an error of the library to an error of ddflow.  The library's readers raise plain `Exception`."""
        if not isinstance(error, (import_deltalake().exceptions.DeltaError, OSError)) and type(error) is not Exception:
            return None
        said = mask_secrets(first_line(error), self.of.storage_options.values())
        if isinstance(error, FileNotFoundError) or any(each in str(error) for each in _GONE):
            return SourceChanged(self.asked, f"an unread version was deleted, or does not exist: {said}", _AGAIN)
        return SourceFailed(self.asked, said, "check the table")


def _table_id(table: Any) -> str:
    """Return the identifier of the table in a version."""
    return str(table.metadata().id)


def _table_schema(table: Any) -> pa.Schema:
    """Return the columns of a version."""
    return pa.schema(table.schema().to_arrow()).remove_metadata()
