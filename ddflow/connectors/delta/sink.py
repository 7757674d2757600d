"""Write an output to a table of Delta Lake.

An epoch is one commit in the table's log, which adds rows or merges by the key. This commit also stores the record of
the epoch, as application transaction identifiers, because the log keeps these identifiers for ever. The number of the
epoch is in the identifier ``ddflow.epoch``. The state's id, the manifest's digest and a hash of the output's name each
take two identifiers, one for each half of the value. Guarantees: if two writers write the same epoch, one writer
commits and the other writer fails. No repr, message or manifest shows the secrets in ``storage_options``.

>>> DeltaSink("s3://lake/by_city", "upsert", {"secret": "hush"})
DeltaSink(path='s3://lake/by_city', mode='upsert')
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from time import time
from typing import Any, ClassVar, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat
import xxhash

from ddflow.columns.names import DELETED, quote_name
from ddflow.connectors.api import Mode, OpenSink, Staging, TableChanges, TableShape, TableSink, TargetRecord
from ddflow.connectors.lake_table import LakeTable
from ddflow.connectors.modes import merge_upserts_and_deletes
from ddflow.connectors.table_shape import build_sink_refusal
from ddflow.errors import SinkFailed, SinkRefused, convert_errors, first_line, import_extra, mask_secrets
from ddflow.storage.address import refuse_embedded_secret

OPTIONS: Final = "pass them as storage_options="
EPOCH: Final = "ddflow.epoch"
_SIGNED: Final = 1 << 64
_CONSTRAINT: Final = "delta.constraints."
_BROKEN: Final = "failed validation check"
"""Text in the library's error about a row that violates a constraint."""


def resolve_address(path: str) -> str:
    """Return the address of a table: a URL unchanged, or the absolute path of a folder."""
    return path if "://" in path else os.path.abspath(path)


def import_deltalake() -> Any:
    """Import the library of Delta Lake.  Raises `MissingExtra`."""
    return import_extra("use Delta Lake", "delta", "deltalake")


def find_delta_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that Delta Lake stores for fixed-size bytes (bytes without a length); None for other types."""
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
        """Return the open sink.  The method does not read the table yet."""
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
        # The query engine is the only reader in the library that applies deletion vectors.
        columns = ", ".join(map(quote_name, self.shape.schema.names))
        return pa.table(import_deltalake().QueryBuilder().register("t", table).execute(f"select {columns} from t"))

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
        """Return a way for several writers to write separate files, and to append these files to the table.

        Returns None for a table with partitions, column mapping or constraints.
        """
        with self._translate_errors("ask"):
            if (table := self._load()) is None:
                return None  # the table is missing; `write` raises the error
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
        """Delete the old rows of the changed keys and insert the new rows, in one merge."""
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
        """Return the files of a version; an empty set if the log no longer has the version."""
        of = import_deltalake()
        try:
            old = of.DeltaTable(self.place, version=version, storage_options=self.options)
        except of.exceptions.DeltaError:
            return frozenset()
        return frozenset(old.file_uris())

    def _translate_errors(self, asked: str) -> AbstractContextManager[None]:
        def to_ours(error: Exception) -> SinkFailed | SinkRefused:
            said = mask_secrets(first_line(error), self.options.values())
            if _BROKEN in said:
                return build_sink_refusal(self.shape, self.place, said.rstrip("."), self._suggest_constraint_fix())
            return SinkFailed(f"{asked} {self.place}", said, "check the table")

        return convert_errors((import_deltalake().exceptions.DeltaError, OSError), to_ours)

    def _suggest_constraint_fix(self) -> str:
        """Name the table's constraints, as far as it can be read, for the error about a row that violates one."""
        rules: Mapping[str, str] = {}
        with suppress(import_deltalake().exceptions.DeltaError, OSError):
            rules = self._load().metadata().configuration
        found = ", ".join(
            f"{name.removeprefix(_CONSTRAINT)} ({rule})" for name, rule in rules.items() if name.startswith(_CONSTRAINT)
        )
        return f"filter such rows out in the flow, or change the table's constraints{': ' * bool(found)}{found}"


Files = Callable[[int], frozenset[str]]


def _find_restored_record(table: Any, files: Files) -> list[TargetRecord] | None:
    """Return a list with the record of the restored version, if the table was restored after ddflow's last commit.

    Returns [] if the restored version has no record, and None if the table was not restored. A restore brings back the
    rows of an older version, but keeps the newer transaction identifiers. If another writer made the last commit, the
    function also reads earlier commits, back to the last commit of ddflow.
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
        if len(commits) < limit:  # the table has no older commits, or its log was cleaned
            return [] if restored else None
        limit *= 32


def _find_restored_version(restore: Mapping[str, Any], commits: Sequence[Mapping[str, Any]], files: Files) -> int:
    """Return the older version that a restore brought back; -1 if that version is unknown.

    If the commit names no version and no Unix time, return the newest earlier version that has the same files. Spark
    writes a local time into the commit, and the log does not name the time zone.
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
    """Writer of rows to a new file in a table's folder.  The log of the table does not name the file yet.

    A call returns the JSON of the log entry that adds the file.
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
            raise SinkFailed(f"stage a file of {self.place}", str(error), "check the table") from None
        add = {"path": name, "size": size, "partition_values": {}, "modification_time": int(time() * 1000)}
        return json.dumps({**add, "data_change": True, "stats": json.dumps(_collect_statistics(written[0]))}).encode()


def _collect_statistics(of: Any) -> dict[str, Any]:
    """Return the statistics of a file: the rows, the nulls in each column, and the range of each integer column."""
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
    """Encode a record as application transaction identifiers, which map names to 64-bit integers."""
    texts = {"state": now.state, "digest": now.digest}
    halves = {f"ddflow.{name}.{n}": _parse_hex(text[16 * n :][:16]) for name, text in texts.items() for n in (0, 1)}
    return {EPOCH: now.epoch, **halves, **_hash_output_name(now.output)}


def _hash_output_name(output: str) -> dict[str, int]:
    digest = xxhash.xxh3_128_hexdigest(output.encode())
    return {f"ddflow.output.{n}": _parse_hex(digest[16 * n :][:16]) for n in (0, 1)}


def _parse_hex(digits: str) -> int:
    return int.from_bytes(bytes.fromhex(digits), signed=True)
