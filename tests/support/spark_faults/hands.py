"""Simulate a cluster. Workers cache parts, a shuffle has the worst possible order, and attempts fail.

The tasks run in this process, and are called in the same way as Spark calls them. An attempt runs once or twice, stops
after some chunks, loses its input, or finds a full disk. Some attempts sleep until their epoch is committed, and then
continue.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.errors import StorageFull
from ddflow.partitions.chunks import PACKED, RECEIPT
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.partitions.epoch_start import StateVersion
from ddflow.partitions.partitioner import Partitioner
from ddflow.partitions.receipt import EpochResult, Receipt
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.local import LocalStore
from spark_bridge import tasks
from spark_bridge.part_cache import CacheLimit, PartCache
from spark_bridge.tasks import EpochStageTask, RouteTask

Chunks = list[pa.RecordBatch]
FAILS = ("left", "cut off", "full disk", "late")


class FetchFailed(Exception):
    """The error that a task gets if the machine with its rows is lost."""


class Hands:
    """A driver and its workers. ``seen`` counts each outcome of attempts, so that tests can require all outcomes.

    ``late``: sleeping attempts, each with its worker and its remaining output.
    """

    def __init__(
        self,
        flow: dd.Flow,
        state: str,
        partitions: int,
        chance: random.Random,
        workers: int = 3,
        memory: int | None = None,
    ) -> None:
        self.flow, self.state, self.chance, self.memory = flow, state, chance, memory
        self.coordinator = EpochDriver.open(flow, state, DriverOptions(partitions=partitions, memory=memory))
        self.workers = [PartCache() for _ in range(workers)]
        self.late: list[tuple[PartCache, int, Iterator[pa.RecordBatch]]] = []
        self.seen: dict[str, int] = {}

    def close(self) -> None:
        for worker in self.workers:
            worker.clear()
        self.coordinator.close()

    def epoch(self, inputs: Mapping[str, pa.Table]) -> tuple[EpochResult, dict[str, pa.Table]]:
        """Run one epoch. Return the commit, and the rows in the files of the epoch."""
        start = self.coordinator.begin()
        columns = {name: tuple(input.bound.schema.names) for name, input in self.flow.inputs.items()}
        maps = [[chunk] for chunk in self._routed(inputs)]
        for stage in range(self.coordinator.cut.stages):
            task = EpochStageTask(self.coordinator.cut, start, stage, columns, "a test", CacheLimit(1 << 30))
            told = [self.task(task, number, maps) for number in range(start.partitions)]
            maps = [[pa.Table.from_batches(each, PACKED) for each in attempts] for attempts in told]
        receipts = [
            Receipt.from_json(row["payload"], "a test")
            for attempts in maps
            for each in attempts
            for row in each.to_pylist()
            if row["what"] == RECEIPT
        ]
        committed = self.coordinator.finish(start, receipts)
        self.wake()
        return committed, self._outputs(committed)

    def task(self, task: EpochStageTask, number: int, maps: Iterable[list[pa.Table]]) -> list[Chunks]:
        """Run some attempts at one task. Return the output of each attempt that finished.

        For each input, an attempt reads the output of one of the attempts that produced it, chosen at random.
        """
        told: list[Chunks] = []
        wanted = self.chance.choice([1, 1, 2])
        while len(told) < wanted:
            worker = self.chance.choice(self.workers)
            rows = self._shuffled(maps, number)
            kind = self.chance.choice(["whole", "whole", "whole", *FAILS])
            given = self._attempt(kind, worker, task, number, rows)
            self.seen[kind] = self.seen.get(kind, 0) + 1
            if given is not None:
                told.append(given)
                hits = [
                    Receipt.from_json(row["payload"], "a test").figures.get("hit", 0)
                    for each in given
                    for row in each.to_pylist()
                    if row["what"] == RECEIPT
                ]
                self.seen["hit"] = self.seen.get("hit", 0) + hits[-1]
        return told

    def wake(self) -> None:
        """Let sleeping attempts continue; any outcome of these attempts is allowed."""
        for worker, number, attempt in self.late:
            with as_task(worker, number):
                list(attempt)
        self.late.clear()

    def _attempt(self, kind: str, worker: PartCache, task: EpochStageTask, number: int, rows: Chunks) -> Chunks | None:
        """Run one attempt. Return the attempt's output, or None if the output is not used."""
        with as_task(worker, number):
            if kind == "whole":
                return list(task(iter(rows)))
            if kind == "cut off":
                with pytest.raises(FetchFailed):
                    list(task(cut_off(rows, self.chance.randrange(len(rows) + 1))))
            elif kind == "full disk":
                with full(self.chance.randrange(8)) as was_full:
                    given = None
                    try:
                        given = list(task(iter(rows)))
                    except StorageFull:
                        assert was_full
                return None if was_full else given
            else:
                attempt = task(iter(rows))
                # The output of the failed attempt is lost, because Spark takes only the output of a finished attempt.
                list(islice(attempt, self.chance.randrange(3)))
                if kind == "late":
                    self.late.append((worker, number, attempt))
                else:
                    attempt.close()  # type: ignore[attr-defined]
        return None

    def _routed(self, inputs: Mapping[str, pa.Table]) -> list[pa.Table]:
        """Pack rows into chunks, in three tasks per input. Each task has an earlier attempt that was abandoned."""
        manifest, out = self.coordinator.manifest, []
        sight = StateVersion(self.state, "owner", manifest.number, self.coordinator.log.manifest_log.digest)
        for name, table in inputs.items():
            columns = tuple(table.column_names)
            router = Partitioner(self.flow, name, self.coordinator.partitions, Secret(*manifest.secret), columns)
            task, third = RouteTask(router, sight, columns), -(-table.num_rows // 3)
            for origin in range(3):
                rows = table.slice(origin * third, third).to_batches(max_chunksize=7)
                with as_task(self.workers[0], origin):
                    left = task(iter(rows))
                    list(islice(left, 1))
                    left.close()  # type: ignore[attr-defined]
                    out.append(pa.Table.from_batches(list(task(iter(rows))), PACKED))
        return out

    def _shuffled(self, maps: Iterable[list[pa.Table]], number: int) -> Chunks:
        """Return the input of a task from the shuffle. Chunks are in any order, and batches end anywhere."""
        table = pa.concat_tables([self.chance.choice(attempts) for attempts in maps] or [PACKED.empty_table()])
        mine = table.filter(pa.array([to == number for to in table.column("to").to_pylist()], pa.bool_()))
        order = list(range(mine.num_rows))
        self.chance.shuffle(order)
        batches: Chunks = mine.take(pa.array(order, pa.int64())).combine_chunks().to_batches(max_chunksize=3)
        return batches

    def _outputs(self, committed: EpochResult) -> dict[str, pa.Table]:
        batch_store = BatchStore(self.coordinator.log.manifest_log.store)
        schemas = {name: node.updates_schema(self.flow.time_type) for name, node in self.flow.outputs.items()}
        return {
            name: pa.concat_tables(
                [
                    schema.empty_table(),
                    *(
                        batch_store.read_table(blob, schema, None)
                        for blob in (committed.outputs[name].blobs if name in committed.outputs else ())
                    ),
                ]
            )
            for name, schema in schemas.items()
        }


@contextmanager
def as_task(worker: PartCache, number: int) -> Iterator[None]:
    """Run a block as the task of a partition, in the process of a worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "PARTS", worker)
        patch.setattr(tasks, "_task_number", lambda: number)
        yield


def cut_off(rows: Chunks, after: int) -> Iterator[pa.RecordBatch]:
    """Yield some rows, and then fail as if the other rows could not be fetched."""
    yield from rows[:after]
    raise FetchFailed


@contextmanager
def full(after: int) -> Iterator[list[Any]]:
    """Fill the disk after some files. The yielded list records whether that happened."""
    was_full, put, left = list[Any](), LocalStore.put, [after]

    def hindered(self: LocalStore, *given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            was_full.append(given)
            raise StorageFull("write a file", "the disk is full", "make room")
        return put(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "put", hindered)
        yield was_full
