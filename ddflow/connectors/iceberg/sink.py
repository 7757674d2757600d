"""Write an output to an Iceberg table of a catalog.

An epoch is one snapshot, which adds files. If the table has a key, the snapshot also replaces files with copies that
lack the deleted rows. The summary of the snapshot has the record of the epoch. The commit of the snapshot also stores
the record as a table property, because snapshots expire. The sink reads the newest record of the current snapshot and
its ancestors, so it notices a rollback. A commit names its base snapshot and is never retried, so if two writers write
the same epoch, one writer commits and the other writer fails. The sink writes the remaining rows of a rewritten file
together with new rows, so small files are merged. If column statistics show that a file contains no deleted key, the
sink skips the file; it reads the keys of all other files. No message, manifest or repr shows a catalog property.

>>> IcebergSink("shop.by_city", {"type": "rest", "uri": "https://me:hush@lake:8181?token=hush", "token": "hush"})
IcebergSink(table='shop.by_city', mode='upsert')
>>> IcebergSink("shop.by_city", {"type": "rest", "uri": "https://me:hush@lake:8181?token=hush"}).target
'https://lake:8181#shop.by_city'
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.api import Mode, OpenSink, Staging, TableChanges, TableShape, TableSink, TargetRecord
from ddflow.connectors.lake_table import LakeTable
from ddflow.connectors.modes import mark_rows_with_keys
from ddflow.connectors.table_shape import build_sink_refusal
from ddflow.errors import DdflowError, SinkFailed, SpecError, convert_errors, first_line, import_extra, mask_secrets
from ddflow.storage.address import check_percent_encoding

RECORD: Final = "ddflow.written"
"""Name of the property that holds the record as a JSON list."""
FEW: Final = 200
"""Largest number of keys that a file filter lists.

For more than `FEW` keys, a filter has only the range of the keys.
"""
TOGETHER: Final = 256 << 20
"""Number of bytes of rows that the sink collects before it writes files."""
_HIDDEN: Final = re.compile(r"(?<=://)(?:[^/?#]*|[^/@:]*:(?!\d+(?:/|$))[^\n]*)@|[?#].*")
"""Parts of an address that may hold secrets: the user, the query and the fragment."""
_CREATED: Final = {"write.metadata.delete-after-commit.enabled": "true"}
"""Properties of a new table.

Without the properties in `_CREATED`, a table would keep a metadata file for each commit.
"""


def find_iceberg_type(kind: pa.DataType) -> pa.DataType | None:
    """Return Iceberg's type for small integers, times of day, fixed-size bytes and UUIDs; None for other types."""
    if pat.is_integer(kind) and kind.bit_width < 32:
        return pa.int32()
    if pat.is_time(kind):
        return pa.null() if kind.unit == "ns" else pa.time64("us")
    return kind if pat.is_fixed_size_binary(kind) or kind == pa.uuid() else None


@dataclass(frozen=True)
class IcebergSink(TableSink):
    """See `dd.sinks.iceberg`."""

    table: str
    catalog: str | Mapping[str, str] = field(repr=False, default="default")
    mode: Mode = "upsert"
    kind: ClassVar[str] = "iceberg"

    def __post_init__(self) -> None:
        if not all(self.table.rpartition(".")[::2]):
            found = "it has no namespace"
            raise SpecError(f"dd.sinks.iceberg({self.table!r})", found, "write NAMESPACE.TABLE: 'shop.by_city'")
        check_percent_encoding(self.catalog_properties.get("uri", ""), f"write the table {self.table}")

    @property
    def catalog_properties(self) -> dict[str, str]:
        """Properties of the catalog; {} if the sink names a configured catalog."""
        return {} if isinstance(self.catalog, str) else dict(self.catalog)

    @property
    def catalog_name(self) -> str:
        """Name of the catalog."""
        return self.catalog if isinstance(self.catalog, str) else self.catalog_properties.pop("name", "default")

    @property
    def target(self) -> str:
        """Address or name of the catalog, and the table."""
        shown = _HIDDEN.sub("", self.catalog_properties.get("uri", ""))
        return f"{shown or self.catalog_name}#{self.table}"

    def needs(self) -> None:
        """Import the library ``pyiceberg``."""
        import_pyiceberg()

    def open(self, shape: TableShape) -> OpenSink:
        """Return the open sink.  The method does not read the table yet."""
        return IcebergTable(self, shape)


class IcebergTable(LakeTable):
    """A table of Iceberg."""

    def __init__(self, of: IcebergSink, shape: TableShape) -> None:
        super().__init__(of, shape, find_iceberg_type)
        self.of, self._catalog = of, None
        import_pyiceberg()

    @property
    def catalog(self) -> Any:
        """Catalog, loaded at the first use."""
        if self._catalog is None:
            given = {name: value for name, value in self.of.catalog_properties.items() if name != "name"}
            self._catalog = import_pyiceberg().catalog.load_catalog(self.of.catalog_name, **given)
        return self._catalog

    def _load(self) -> Any:
        try:
            return self.catalog.load_table(self.of.table)
        except import_pyiceberg().exceptions.NoSuchTableError:
            return None

    def _arrow_schema(self, table: Any) -> pa.Schema:
        there: pa.Schema = table.schema().as_arrow()
        return there

    def _has_rows(self, table: Any) -> bool:
        return any(task.file.record_count for task in table.scan().plan_files())

    def _create(self) -> None:
        self.catalog.create_namespace_if_not_exists(self.of.table.rpartition(".")[0])
        self.catalog.create_table_if_not_exists(self.of.table, self.schema, properties=_CREATED)

    def _add_columns(self, table: Any, new: pa.Schema) -> None:
        with table.update_schema() as update:
            update.union_by_name(new)

    def _find_target_record(self, table: Any) -> TargetRecord | None:
        """Return the newest record of the current snapshot and its ancestors."""
        by_id = {each.snapshot_id: each for each in table.metadata.snapshots}
        said, at, first = None, table.metadata.current_snapshot_id, True
        while said is None and at in by_id:
            here = by_id[at]
            said = None if here.summary is None else here.summary.additional_properties.get(RECORD)
            at, first = here.parent_snapshot_id, here.sequence_number == 1
        if said is None and not first:  # the earlier snapshots have expired
            said = table.metadata.properties.get(RECORD)
        return None if said is None else msgspec.json.decode(said, type=TargetRecord)

    def _scan(self, table: Any) -> pa.Table:
        rows: pa.Table = table.scan().to_arrow()
        return rows.select(self.shape.schema.names)

    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Write an epoch as one snapshot."""
        rows, gone = changes.rows.cast(self.schema), changes.gone

        def change(table: Any, update: Any) -> None:
            if gone is None:
                with update.merge_append() as snapshot:
                    self._write_files(table, snapshot, itertools.count(), rows)
            else:
                with update.overwrite() as snapshot:
                    self._rewrite_files(table, snapshot, gone, rows)

        self._commit_snapshot(change, now, before)

    def staging(self) -> Staging | None:
        """Return a way for several writers to write files that a commit appends; None if the table has partitions."""
        with self._translate_errors("ask"):
            if (table := self._load()) is None:
                return None  # the table is missing; `write` raises the error
            if not table.spec().is_unpartitioned():
                return None
            files = IcebergFileWriter(
                table.metadata.model_dump_json(), self.schema, self.place, dict(table.io.properties)
            )
        return Staging(files, self._append_staged_files)

    def _append_staged_files(self, fragments: Sequence[bytes], now: TargetRecord, before: TargetRecord | None) -> None:
        """Append the files that several writers staged."""

        def change(table: Any, update: Any) -> None:
            of = import_pyiceberg().io.pyarrow.parquet_file_to_data_file
            with update.merge_append() as snapshot:
                for path in (path for each in fragments for path in msgspec.json.decode(each, type=list[str])):
                    snapshot.append_data_file(of(table.io, table.metadata, path))

        self._commit_snapshot(change, now, before)

    def _commit_snapshot(
        self, change: Callable[[Any, Any], None], now: TargetRecord, before: TargetRecord | None
    ) -> None:
        """Commit one snapshot with the record ``now``, unless the table has that record."""
        with self._translate_errors("write"):
            if (table := self._load_for_epoch(now, before)) is None:
                return
            # If the library retried the commit, it would add these rows on top of another writer's commit.
            once = {**table.metadata.properties, "commit.retry.num-retries": "0"}
            table.metadata = table.metadata.model_copy(update={"properties": once})
            said = {RECORD: msgspec.json.encode(now).decode()}
            begun = table.transaction()
            begun.set_properties(said)
            change(table, begun.update_snapshot(snapshot_properties=said))
            begun.commit_transaction()

    def close(self) -> None:
        """Release the catalog."""
        self._catalog = None

    def _rewrite_files(self, table: Any, snapshot: Any, gone: pa.Table, rows: pa.Table) -> None:
        """Remove the rows with keys in ``gone`` by rewriting the files of these rows, and add the new ``rows``."""
        key, numbers = list(self.shape.key or ()), itertools.count()
        gone = gone.cast(pa.schema([self.schema.field(name) for name in key]))
        kept, size = [rows], rows.nbytes
        for task in table.scan(row_filter=_build_key_filter(gone)).plan_files() if gone.num_rows or not key else ():
            if key:
                leaves = mark_rows_with_keys(self._read_file(table, task, key), gone, self._secret)
                if not leaves.any():
                    continue
                if not leaves.all():
                    left = self._read_file(table, task, self.schema.names).filter(pa.array(~leaves))
                    kept, size = [*kept, left], size + left.nbytes
            snapshot.delete_data_file(task.file)
            if size > TOGETHER:
                self._write_files(table, snapshot, numbers, pa.concat_tables(kept))
                kept, size = [], 0
        self._write_files(table, snapshot, numbers, pa.concat_tables(kept) if kept else self.schema.empty_table())

    def _read_file(self, table: Any, task: Any, names: list[str]) -> pa.Table:
        """Read some columns of a file, without the rows that other writers deleted."""
        scan = import_pyiceberg().io.pyarrow.ArrowScan
        always = import_pyiceberg().expressions.AlwaysTrue()
        columns = table.schema().select(*names)
        rows: pa.Table = scan(table.metadata, table.io, columns, always).to_table([task])
        return rows.select(names).cast(pa.schema([self.schema.field(name) for name in names]))

    def _write_files(self, table: Any, snapshot: Any, numbers: Iterator[int], rows: pa.Table) -> None:
        """Write rows to new files, and add the files to a snapshot."""
        if rows.num_rows:
            # The library has no public function that writes files for an update that also deletes files.
            files = import_pyiceberg().io.pyarrow._dataframe_to_data_files
            for each in files(table.metadata, rows, table.io, snapshot.commit_uuid, numbers):
                snapshot.append_data_file(each)

    def _translate_errors(self, asked: str) -> AbstractContextManager[None]:
        def to_ours(error: Exception) -> DdflowError | None:
            if isinstance(error, DdflowError | AssertionError):
                return None
            if isinstance(error, ValueError):
                return build_sink_refusal(
                    self.shape, self.place, self._format_masked_error(error), "check the catalog's settings"
                )
            return SinkFailed(f"{asked} {self.place}", self._format_masked_error(error), "check the catalog")

        return convert_errors(Exception, to_ours)  # catalogs and stores raise errors of their clients

    def _format_masked_error(self, error: Exception) -> str:
        return format_masked_error(
            error, self.of.catalog_properties | (getattr(self._catalog, "properties", None) or {})
        )


@dataclass(frozen=True)
class IcebergFileWriter:
    """Writer of rows to new files of a table.  No snapshot of the table names the files yet.

    A call of the object returns the paths of the files as JSON.  ``metadata``: metadata of the table, as JSON.
    """

    metadata: str
    schema: pa.Schema
    place: str
    properties: Mapping[str, str] = field(repr=False)

    def __call__(self, rows: pa.Table) -> bytes:
        of = import_pyiceberg()
        try:
            metadata = of.table.metadata.TableMetadataUtil.parse_raw(self.metadata)
            there = of.io.load_file_io(dict(self.properties), metadata.location)
            made = of.io.pyarrow._dataframe_to_data_files(metadata, rows.cast(self.schema), there)
            return msgspec.json.encode([each.file_path for each in made])
        except Exception as error:  # stores raise errors of their clients
            found = format_masked_error(error, self.properties)
            raise SinkFailed(f"stage files of {self.place}", found, "check the table's store") from None


def format_masked_error(error: Exception, known: Mapping[str, Any]) -> str:
    """Return the first line of an error's message, with the values of ``known`` masked."""
    said = first_line(error) if str(error).strip() else ""
    return f"{type(error).__name__}: {mask_secrets(said, known.values())}"


_MODULES: Final = (
    "pyiceberg",
    "pyiceberg.catalog",
    "pyiceberg.exceptions",
    "pyiceberg.expressions",
    "pyiceberg.io.pyarrow",
    "pyiceberg.table.metadata",
)


def import_pyiceberg() -> Any:
    """Import pyiceberg.  Raises `MissingExtra`."""
    return import_extra("write an Iceberg table", "iceberg", *_MODULES)


def _build_key_filter(keys: pa.Table) -> Any:
    """Build a filter that selects, by column statistics, the files that may contain some of the keys."""
    of = import_pyiceberg().expressions
    spans = of.AlwaysTrue()
    for name, column in zip(keys.schema.names, keys.columns, strict=True):
        if not (pat.is_integer(column.type) or pat.is_string(column.type)):
            continue
        there = pc.unique(column.drop_null())
        if not len(there):
            span = of.IsNull(name)
        elif len(there) <= FEW:
            span = of.In(name, there.to_pylist())
        else:
            least, most = pc.min(there).as_py(), pc.max(there).as_py()
            span = of.And(of.GreaterThanOrEqual(name, least), of.LessThanOrEqual(name, most))
        spans = of.And(spans, of.Or(span, of.IsNull(name)) if column.null_count else span)
    return spans
