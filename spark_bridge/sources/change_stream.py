"""Follow a state as a Spark stream: first return its contents, then the updates of every committed epoch.

Guarantees: the updates between two offsets are always the same, however often and whenever they are read. The sum of
all updates up to an epoch equals the output after this epoch. Spark may repeat the first batch after the version of
this batch was deleted. The batch is then computed as the present contents minus the later updates. An offset has a mark
of its epoch. So a stream stops if the state was rolled back and committed different epochs afterwards, or if the output
was dropped. Limits: a state keeps few epochs. From PySpark 4.2 on, every batch except the first batch has at most
`most` epochs.

>>> ChangeStream("nowhere", "owner", None, "people", pa.schema([]), "earliest", 3).initialOffset()
{'epoch': -1, 'mark': ''}
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark.sql.datasource import InputPartition

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DIFF
from ddflow.engine.snapshot import find_version
from ddflow.errors import CorruptState, PlanChanged, SnapshotExpired
from ddflow.operators.updates import Updates, consolidate, ints
from ddflow.partitions.driver_epochs import append_time_column, read_updates
from ddflow.partitions.epoch_start import StateVersion
from ddflow.plan.compatibility import resolve_plan
from ddflow.plan.evolve import PastSchemas, find_past_schemas
from ddflow.plan.plan import Plan
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.inventory_text import is_state_file
from ddflow.storage.manifest import Epoch, Manifest
from ddflow.storage.opening import open_existing_store, open_store
from ddflow.storage.protocol import Store
from spark_bridge.sources.base import StreamReader, list_readable_partitions
from spark_bridge.tasks import UpdatesFile, to_spark_batches

Offset = dict[str, Any]
BYTES: Final = 32 << 20
"""Maximum bytes of files that one task reads."""
AGAIN: Final = (
    "read the stream more often; let the state keep more epochs (keep=); or write its outputs to a folder "
    "(outputs=), where they stay, and follow the Parquet files there; or start again, with a new checkpoint"
)


@dataclass(frozen=True)
class FileSplit(InputPartition):
    """A split with the updates of some files, in order. ``schema`` has all columns of the output."""

    version: StateVersion
    files: tuple[UpdatesFile, ...]
    schema: pa.Schema


@dataclass(frozen=True)
class SnapshotSplit(InputPartition):
    """A split with the contents of an output as of a version, minus the updates in the files ``less``.

    All rows have the same ``time``.

    ``share``: the stage and partition to read, or None for all rows. ``schema``: all columns of the output; None for
    upserts, which have their own times.
    """

    version: StateVersion
    share: tuple[int, int] | None
    time: int
    schema: pa.Schema | None
    less: tuple[UpdatesFile, ...] = field(default=())


class ChangeStream(StreamReader):
    """The reader of `DdflowSource.streamReader`.

    ``begin``: "earliest", "latest", "kept" or the number of an epoch. ``most``: the most epochs in a batch. Spark can
    limit a batch only by rows, bytes or files, so the reader declares each epoch as one file.
    """

    limit = "ReadMaxFiles"

    def __init__(
        self,
        store: str,
        trust: str,
        flow: Plan | None,
        name: str,
        columns: pa.Schema,
        begin: str,
        most: int | None = None,
    ) -> None:
        self.where, self.trust, self.flow, self.output = store, trust, flow, name
        self.columns, self.begin, self.most = columns, begin, most
        self._store: Store | None = None
        self._last: Manifest | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "target": None, "_store": None, "_last": None}

    def initialOffset(self) -> Offset:
        """Return the start of a new query.

        Raises `SnapshotExpired` if the state no longer keeps the requested epoch.
        """
        if self.begin == "earliest":
            return {"epoch": -1, "mark": ""}
        manifest = self.find_stream_end()
        if self.begin == "latest":
            return self._build_offset(manifest, manifest.epoch)
        kept = [each.epoch for each in manifest.receipts]
        if self.begin == "kept":
            return self._build_offset(manifest, min(kept, default=manifest.epoch + 1) - 1)
        first = int(self.begin)
        if first != manifest.epoch + 1 and first not in kept:
            raise SnapshotExpired(
                f"follow {self.where} from epoch {first}",
                f"the state keeps only the updates of the epochs {kept}",
                f"pass one of these, {manifest.epoch + 1} for the next epoch, or 'earliest' for the present contents",
            )
        return self._build_offset(manifest, first - 1)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return the last epoch of the next batch. O(epochs kept).

        Versions of PySpark before 4.2 do not pass the start of the batch. Raises `SnapshotExpired` if the state no
        longer keeps an epoch after the start.
        """
        manifest = self.target or self.find_stream_end()
        if start is None:
            return self._build_end_offset(manifest) if manifest.epoch else self.initialOffset()
        if manifest.epoch == start["epoch"] or not manifest.epoch:
            self._check_offset(manifest, start)
            return start
        if start["epoch"] < 0:
            return self._build_end_offset(manifest)
        last = min(manifest.epoch, start["epoch"] + getattr(limit, "max_files", manifest.epoch))
        self._list_epochs(manifest, start, last)
        return self._build_offset(manifest, last)

    def _build_end_offset(self, manifest: Manifest) -> Offset:
        """Return the offset of the last epoch of a version.

        The offset includes a time, which the rows of the contents get.
        """
        return self._build_offset(manifest, manifest.epoch) | {"time": max(manifest.last, manifest.since)}

    def _build_offset(self, manifest: Manifest, epoch: int) -> Offset:
        """Return an offset, which is the number of an epoch and a mark.

        The mark is "" if the state no longer keeps the epoch.

        Two epochs can have the same number: one before a rollback and one after it. Their marks differ. If an output of
        the same name was dropped earlier, ``dropped`` is the last epoch of that output.
        """
        before = {"dropped": manifest.dropped[self.output]} if self.output in manifest.dropped else {}
        for each in manifest.receipts:
            if each.epoch == epoch:
                calls = [
                    [
                        call.kind,
                        call.time,
                        call.digest,
                        call.frontier,
                        dict(call.counts),
                        call.outputs[self.output].rows if self.output in call.outputs else 0,
                    ]
                    for call in each.calls
                ]
                mark = xxhash.xxh3_64_hexdigest(json.dumps(calls, sort_keys=True).encode())
                return {"epoch": epoch, "mark": mark, **before}
        return {"epoch": epoch, "mark": "", **before}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Split a batch into partitions for tasks. O(files). Raises `SnapshotExpired`, `PlanChanged`."""
        manifest = self.find_stream_end()
        self._check_offset(manifest, start)
        if start["epoch"] == end["epoch"]:
            return []
        plan = resolve_plan(manifest.plan, self.flow, self.where)
        schema = self._find_schema(plan)
        if start["epoch"] < 0:
            return self._split_contents(manifest, plan, schema, end)
        self._check_offset(manifest, end)
        version = StateVersion.of_manifest(self._open_store(), manifest, self.trust)
        groups: list[list[UpdatesFile]] = []
        room = 0
        for file in self._list_files(manifest, self._list_epochs(manifest, start, end["epoch"])):
            if room <= 0:
                groups.append([])
                room = BYTES
            groups[-1].append(file)
            room -= file.blob.length
        return [FileSplit(version, tuple(group), schema) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the updates of a split, in Spark's types.

        O(bytes). Raises `SnapshotExpired`, `CorruptState`.
        """
        if isinstance(partition, FileSplit):
            tables = self._read_files(partition.version, partition.files, partition.schema)
        else:
            assert isinstance(partition, SnapshotSplit), partition
            tables = iter([self._read_snapshot(partition)])
        for table in tables:
            yield from to_spark_batches(table.select(self.columns.names), self.output)

    def _split_contents(
        self, manifest: Manifest, plan: Plan, schema: pa.Schema, end: Offset
    ) -> Sequence[InputPartition]:
        """Split the first batch for tasks. The first batch has the contents of the output after an epoch."""
        node, store = plan.outputs.get(self.output), self._open_store()
        if node is None:  # a side output: a state keeps no rows of it
            return []
        upserts = DIFF not in node.updates_schema(plan.time_type).names
        try:
            then = find_version(store, end["epoch"])
        except SnapshotExpired:
            if upserts or node.forgetting:
                raise
            less = tuple(self._list_files(manifest, self._list_epochs(manifest, end, manifest.epoch)))
            return [
                SnapshotSplit(StateVersion.of_manifest(store, manifest, self.trust), None, end["time"], schema, less)
            ]
        self._check_offset(then, end)
        version = StateVersion.of_manifest(store, then, self.trust)
        shares = list_readable_partitions(plan, self.output, then)
        return [SnapshotSplit(version, share, end["time"], None if upserts else schema) for share in shares]

    def _list_epochs(self, manifest: Manifest, start: Offset, last: int) -> list[Epoch]:
        """List the epochs after an offset, up to the epoch of another offset. Raises `SnapshotExpired`."""
        self._check_offset(manifest, start)
        kept = {each.epoch: each for each in manifest.receipts}
        wanted = range(start["epoch"] + 1, last + 1)
        asked = f"follow {self.where} after epoch {start['epoch']}"
        if missing := [number for number in wanted if number not in kept]:
            raise SnapshotExpired(
                asked, f"the updates of epoch {missing[0]} are no longer kept; kept are the epochs {[*kept]}", AGAIN
            )
        if start["mark"] and start["epoch"] not in kept:
            raise SnapshotExpired(
                asked,
                f"that epoch is no longer kept, so ddflow cannot check that it is the same; kept are {[*kept]}",
                AGAIN,
            )
        return [kept[number] for number in wanted]

    def _check_offset(self, manifest: Manifest, at: Offset) -> None:
        """Raise `SnapshotExpired` if the state was rolled back to before an offset, or if the output was dropped."""
        there, asked = self._build_offset(manifest, at["epoch"]), f"follow {self.where} at epoch {at['epoch']}"
        if at["epoch"] >= 0 and at.get("dropped") != there.get("dropped"):
            found = f"the output {self.output!r} was dropped since then; a new output of this name is not the same"
            raise SnapshotExpired(asked, found, "start again, with a new checkpoint")
        if manifest.epoch < at["epoch"] or (at["mark"] and there["mark"] and at["mark"] != there["mark"]):
            raise SnapshotExpired(
                asked,
                f"the state was rolled back: its last epoch is {manifest.epoch}, and epoch {at['epoch']} no longer "
                "exists or has changed",
                "start again, with a new checkpoint",
            )

    def _list_files(self, manifest: Manifest, epochs: Sequence[Epoch]) -> Iterator[UpdatesFile]:
        known = [PastSchemas.from_record(each, f"manifest {manifest.number} of {self.where}") for each in manifest.past]
        for epoch in epochs:
            past = find_past_schemas(known, epoch.epoch)
            columns = None if past is None else past.outputs.get(self.output)
            for call in epoch.calls:
                for blob in call.outputs[self.output].blobs if self.output in call.outputs else ():
                    yield UpdatesFile(epoch.epoch, blob, None if is_state_file(blob) else manifest.folder, columns)

    def _read_files(self, version: StateVersion, files: Sequence[UpdatesFile], schema: pa.Schema) -> Iterator[pa.Table]:
        """Read the updates in some files, one file after the other."""
        with open_existing_store(version.store, trust=version.trust) as store:
            for file in files:
                try:
                    yield file.read(self.output, schema, lambda: BatchStore(store))
                except CorruptState:
                    if file.epoch in (each.epoch for each in find_version(store).receipts):
                        raise
                    raise SnapshotExpired(
                        f"read the updates of epoch {file.epoch} of {version.store}",
                        "they were deleted in the meantime",
                        AGAIN,
                    ) from None

    def _read_snapshot(self, split: SnapshotSplit) -> pa.Table:
        """Read the contents of a version, minus the updates in ``split.less``."""
        table = read_updates(split.version, self.flow, self.output, split.share)
        if split.schema is None:
            return table
        if split.less:
            rows = pa.schema(list(split.schema)[:-2])
            pieces = [table, *map(negate_diffs, self._read_files(split.version, split.less, split.schema))]
            both = pa.concat_tables([each.select([*rows.names, DIFF]) for each in pieces]).combine_chunks()
            diffs = both.column(DIFF).to_numpy()
            updates = Updates(both.select(rows.names).cast(rows), np.zeros(diffs.size, np.int32), diffs, ints(0))
            table = consolidate(updates, Secret.fresh()).to_table(rows, None)
        return append_time_column(table, split.time, split.schema)

    def _find_schema(self, plan: Plan) -> pa.Schema:
        """Return all columns of the output. Raises `PlanChanged` if the columns differ from the requested columns."""
        there = self.output in (*plan.outputs, *plan.side_outputs())
        schema = (plan.updates_schema(self.output) if there else None) or pa.schema([])
        if not set(self.columns) <= set(schema):
            raise PlanChanged(
                f"follow {self.output!r} of {self.where}",
                f"its columns are now {schema.names}, but the query has {self.columns.names}",
                "start the query again",
            )
        return schema

    def _open_store(self) -> Store:
        if self._store is None:
            self._store = open_store(self.where, trust=self.trust, create=False, readonly=True)
        return self._store

    def find_stream_end(self) -> Manifest:
        """Return the newest manifest. Each manifest is read only once, so frequent calls of this function are cheap."""
        store = self._open_store()
        if self._last is None or store.list_manifests()[-1:] != [self._last.number]:
            self._last = find_version(store)
        return self._last


def negate_diffs(table: pa.Table) -> pa.Table:
    """Negate the differences of some updates. O(updates)."""
    at = table.schema.get_field_index(DIFF)
    return table.set_column(at, table.schema.field(at), pc.negate(table.column(DIFF)))
