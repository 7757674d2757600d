"""Write an output to a table of Delta Lake.

An epoch is one commit in the table's log: added rows, or a merge by the key. The same commit stores the record of the
epoch as application transaction identifiers, because the log keeps these for ever. They are ``ddflow.epoch``, and the
halves of the state's id, of the manifest's digest and of a hash of the output's name.
Guarantees: if two writers write one epoch, one commits and the other fails. The secrets of ``storage_options`` appear
in no repr, message or manifest.

>>> DeltaSink("s3://lake/by_city", "upsert", {"secret": "hush"})
DeltaSink(path='s3://lake/by_city', mode='upsert')
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import time
from typing import Any, ClassVar, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyarrow.types as pat
import xxhash

from ddflow.columns.names import DELETED, quote_name
from ddflow.connectors.api import Mode, OpenSink, Staging, TableChanges, TableShape, TableSink, TargetRecord
from ddflow.connectors.lake_table import LakeTable
from ddflow.connectors.modes import merge_upserts_and_deletes
from ddflow.errors import SinkFailed, convert_errors, first_line, import_extra, mask_secrets
from ddflow.storage.address import refuse_embedded_secret

OPTIONS: Final = "give them as storage_options="
EPOCH: Final = "ddflow.epoch"
_SIGNED: Final = 1 << 64


def resolve_address(path: str) -> str:
    """Return the address of a table: a URL unchanged, a path made absolute."""
    return path if "://" in path else os.path.abspath(path)


def import_deltalake() -> Any:
    """Import the library of Delta Lake.  Raises `MissingExtra`."""
    return import_extra("speak to Delta Lake", "delta", "deltalake")


def read_dataset_rows(
    dataset: ds.FileSystemDataset, names: Sequence[str], only: Collection[str] | None = None, begin: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a table, file by file in the order of their paths, after the first ``begin`` rows.

    ``only``: the names of the files to read.  O(rows).  Reads in this thread only: the library's files are Python
    objects, and the process would abort at exit if a thread of a dataset scanner still held one.
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
    """Return a column of a file; if the file lacks it, the value of its partition, else null."""
    if field.name in rows.schema.names:
        return rows.column(field.name).cast(field.type)
    return pa.array([values.get(field.name)] * rows.num_rows, field.type)


def find_delta_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the stored type of fixed-size bytes, which have no length in Delta Lake; None for others."""
    return pa.binary() if pat.is_fixed_size_binary(kind) else None


@dataclass(frozen=True)
class DeltaSink(TableSink):
    """See `dd.sinks.delta`."""

    path: str
    mode: Mode = "upsert"
    storage_options: Mapping[str, str] = field(repr=False, default_factory=dict)
    kind: ClassVar[str] = "delta"

    def __post_init__(self) -> None:
        refuse_embedded_secret(self.path, OPTIONS)

    @property
    def target(self) -> str:
        """Address of the table."""
        return resolve_address(self.path)

    def needs(self) -> None:
        """Import the library of Delta Lake."""
        import_deltalake()

    def open(self, shape: TableShape) -> OpenSink:
        """Return the table; reads nothing yet."""
        return DeltaLakeTable(self, shape)


class DeltaLakeTable(LakeTable):
    """A table of Delta Lake."""

    def __init__(self, of: DeltaSink, shape: TableShape) -> None:
        super().__init__(of, shape, find_delta_type)
        self.options = dict(of.storage_options)
        import_deltalake()

    def _load(self) -> Any:
        of = import_deltalake()
        if not of.DeltaTable.is_deltatable(self.place, storage_options=self.options):
            return None
        return of.DeltaTable(self.place, storage_options=self.options)

    def _arrow_schema(self, table: Any) -> pa.Schema:
        return pa.schema(table.schema().to_arrow())

    def _has_rows(self, table: Any) -> bool:
        return bool(table.count() > 0)

    def _create(self) -> None:
        of = import_deltalake()
        made = of.Schema.from_arrow(self.schema)
        of.DeltaTable.create(self.place, made, mode="error", storage_options=self.options)

    def _add_columns(self, table: Any, new: pa.Schema) -> None:
        table.alter.add_columns(import_deltalake().Schema.from_arrow(new).fields)

    def _scan(self, table: Any) -> pa.Table:
        dataset, names = table.to_pyarrow_dataset(), self.shape.schema.names
        there = pa.schema([dataset.schema.field(name) for name in names])
        return pa.Table.from_batches(read_dataset_rows(dataset, names), there)

    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Write an epoch: append, merge by the key, or overwrite if the key has no columns."""
        of = import_deltalake()
        with self._translate_errors("write"):
            table = self._load_for_epoch(now, before)
            if table is None:
                return
            told = self._build_commit_properties(now)
            if changes.gone is not None and self.shape.key and changes.net:
                self._merge_changes(table, changes, told)
                return
            # A merge without changes commits nothing, so it would not write the record.
            mode = "append" if changes.gone is None or not changes.net else "overwrite"
            of.write_deltalake(table, changes.rows.cast(self.schema), mode=mode, commit_properties=told)

    def staging(self) -> Staging | None:
        """Return a writer of separate files; None for partitions, column mapping or constraints."""
        with self._translate_errors("ask"):
            if (table := self._load()) is None:
                return None  # the write raises the error
            about = table.metadata()
        odd = [name for name in about.configuration if name.startswith(("delta.columnMapping", "delta.constraints"))]
        if about.partition_columns or odd:
            return None
        return Staging(DeltaFileWriter(self.place, self.schema, self.options), self._append_staged_files)

    def _append_staged_files(self, fragments: Sequence[bytes], now: TargetRecord, before: TargetRecord | None) -> None:
        of = import_deltalake()
        with self._translate_errors("write"):
            table = self._load_for_epoch(now, before)
            if table is not None:
                adds = [of.transaction.AddAction(**json.loads(each)) for each in fragments]
                schema = of.Schema.from_arrow(self.schema)
                table.create_write_transaction(
                    adds, "append", schema, commit_properties=self._build_commit_properties(now)
                )

    @staticmethod
    def _build_commit_properties(now: TargetRecord) -> Any:
        """Build the commit properties that store the record of an epoch."""
        of = import_deltalake()
        return of.CommitProperties(
            custom_metadata={"ddflow": json.dumps(now._asdict())},
            app_transactions=[of.Transaction(name, value) for name, value in _encode_record(now).items()],
        )

    def _merge_changes(self, table: Any, changes: TableChanges, told: Any) -> None:
        """Replace rows by their key."""
        key = self.shape.key or ()
        rows = merge_upserts_and_deletes(changes, key, self._secret)
        flags = rows.column(DELETED)
        rows = rows.select(self.schema.names).cast(self.schema).append_column(DELETED, flags)
        nulls = {name for name in key if rows.column(name).null_count}
        equal = {name: "is not distinct from" if name in nulls else "=" for name in key}
        same = " and ".join(f"(t.{quote_name(name)} {sign} s.{quote_name(name)})" for name, sign in equal.items())
        values = {quote_name(name): f"s.{quote_name(name)}" for name in self.schema.names}
        merge = table.merge(rows, same, source_alias="s", target_alias="t", commit_properties=told)
        merge = merge.when_matched_delete(f"s.{DELETED}").when_matched_update(values, f"not s.{DELETED}")
        merge.when_not_matched_insert(values, f"not s.{DELETED}").execute()

    def _find_target_record(self, table: Any) -> TargetRecord | None:
        if (epoch := table.transaction_version(EPOCH)) is None:
            return None
        if (restored := _find_restored_record(table, self._list_version_files)) is not None:
            return next(iter(restored), None)
        found = {
            name: table.transaction_version(name) for name in _encode_record(TargetRecord("0" * 32, "", 0, "0" * 32))
        }
        halves = [f"{found[f'ddflow.{name}.{n}'] % _SIGNED:016x}" for name in ("state", "digest") for n in (0, 1)]
        mine = all(found[name] == value for name, value in _hash_output_name(self.shape.output).items())
        return TargetRecord(
            "".join(halves[:2]), self.shape.output if mine else "another output", epoch, "".join(halves[2:])
        )

    def _list_version_files(self, version: int) -> frozenset[str]:
        """Return the files of a version; none if its log was cleaned away."""
        of = import_deltalake()
        try:
            old = of.DeltaTable(self.place, version=version, storage_options=self.options)
        except of.exceptions.DeltaError:
            return frozenset()
        return frozenset(old.file_uris())

    def _translate_errors(self, asked: str) -> AbstractContextManager[None]:
        def to_ours(error: Exception) -> SinkFailed:
            said = mask_secrets(first_line(error), self.options.values())
            return SinkFailed(f"{asked} {self.place}", said, "see to the table")

        return convert_errors((import_deltalake().exceptions.DeltaError, OSError), to_ours)


Files = Callable[[int], frozenset[str]]


def _find_restored_record(table: Any, files: Files) -> list[TargetRecord] | None:
    """Return the record of a restored version, in a list, if the table was restored after our last commit.

    Returns [] if that version has no record, and None if the table was not restored. A restore brings back the rows of
    an older version, but keeps the newer transaction identifiers. Reads the last commit, and further commits back to
    ours if another writer made it.
    """
    limit = 1
    while True:
        above, restored, commits = table.version(), False, table.history(limit)
        for commit in commits:
            if commit["version"] > above:
                continue
            if "ddflow" in commit:
                return [TargetRecord(**json.loads(commit["ddflow"]))] if restored else None
            if commit.get("operation") == "RESTORE":
                restored, above = True, _find_restored_version(commit, commits, files)
        if len(commits) < limit:  # no more commits, or the log was cleaned
            return [] if restored else None
        limit *= 32


def _find_restored_version(restore: Mapping[str, Any], commits: Sequence[Mapping[str, Any]], files: Files) -> int:
    """Return the older version that a restore brought back; -1 if it is unknown.

    If the commit names no version and no Unix time, return the last earlier version with the same files: Spark writes a
    local time there, and the log does not name its zone.
    """
    to = restore.get("operationParameters") or {}
    if to.get("version") not in (None, ""):
        return int(to["version"])
    moment = str(to.get("datetime") or to.get("timestamp") or "")
    if not moment.isdecimal():
        same, before = files(restore["version"]), (each["version"] for each in commits)
        return next((each for each in before if each < restore["version"] and same and files(each) == same), -1)
    return max((each["version"] for each in commits if each["timestamp"] <= int(moment)), default=-1)


@dataclass(frozen=True)
class DeltaFileWriter:
    """Writer of rows to a new file in a table's folder, before the log names it.

    Returns the JSON for the log entry that adds the file.
    """

    place: str
    schema: pa.Schema
    options: Mapping[str, str] = field(repr=False)

    def __call__(self, rows: pa.Table) -> bytes:
        import_deltalake()
        from deltalake.fs import DeltaStorageHandler

        name, written = f"part-{uuid4()}.snappy.parquet", list[Any]()
        try:
            with DeltaStorageHandler(self.place, dict(self.options)).open_output_stream(name) as sink:
                pq.write_table(rows.cast(self.schema), sink, metadata_collector=written)
                size = sink.tell()
        except (import_deltalake().exceptions.DeltaError, OSError) as error:
            raise SinkFailed(f"stage a file of {self.place}", str(error), "see to the table") from None
        add = {"path": name, "size": size, "partition_values": {}, "modification_time": int(time() * 1000)}
        return json.dumps({**add, "data_change": True, "stats": json.dumps(_collect_statistics(written[0]))}).encode()


def _collect_statistics(of: Any) -> dict[str, Any]:
    """Return the number of rows of a file, the nulls of each column, and the range of each integer column."""
    least, most, nulls = dict[str, int](), dict[str, int](), dict[str, int]()
    for group in map(of.row_group, range(of.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name, said = column.path_in_schema, column.statistics
            if said is None or "." in name:
                continue
            nulls[name] = nulls.get(name, 0) + said.null_count
            if said.has_min_max and isinstance(said.min, int):
                least[name] = min(least.get(name, said.min), said.min)
                most[name] = max(most.get(name, said.max), said.max)
    return {"numRecords": of.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _encode_record(now: TargetRecord) -> dict[str, int]:
    """Encode a record as 64-bit integers by name."""
    texts = {"state": now.state, "digest": now.digest}
    halves = {f"ddflow.{name}.{n}": _parse_hex(text[16 * n :][:16]) for name, text in texts.items() for n in (0, 1)}
    return {EPOCH: now.epoch, **halves, **_hash_output_name(now.output)}


def _hash_output_name(output: str) -> dict[str, int]:
    digest = xxhash.xxh3_128_hexdigest(output.encode())
    return {f"ddflow.output.{n}": _parse_hex(digest[16 * n :][:16]) for n in (0, 1)}


def _parse_hex(digits: str) -> int:
    return int.from_bytes(bytes.fromhex(digits), signed=True)
