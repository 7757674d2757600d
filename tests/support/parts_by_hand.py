"""Run epochs of a state with many partitions without Spark: the driver and all tasks in this process.

Rows get their partitions from Spark's partition function, and arrive in the worst order that a shuffle can give. Random
choices of ``chance`` decide whether a task finds its partition open, opens it, runs twice, or is a second attempt.
These choices must not change the result.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

import ddflow as dd
from ddflow.columns.hashing import Secret, assign_partitions, compute_identities
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.partitions.epoch_start import EpochStart
from ddflow.partitions.receipt import EpochResult, Receipt
from ddflow.partitions.step import StagePartition, StagePartitionResult, make_idle_receipt
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.protocol import Store

Tables = dict[str, pa.Table]


class Hands:
    """A driver and its workers, simulated in one process.

    ``warm``: open parts by stage and number; several copies of a part may be at different epochs.  ``copies``: the
    maximum number of copies.  ``hits``, ``behind``: how often a part was current, or had to catch up.
    """

    def __init__(
        self, flow: dd.Flow, store: Store, partitions: int | None, chance: random.Random, **options: Any
    ) -> None:
        self.store, self.chance = store, chance
        self.coordinator = EpochDriver.open(flow, store, DriverOptions(partitions=partitions, **options))
        self.cut = self.coordinator.cut
        self.warm: dict[tuple[int, int], list[StagePartition]] = {}
        self.hits, self.behind, self.copies = 0, 0, 3
        self.budgets: list[int | None] = [None]
        """Memory budgets of parts, for states that set no budget. Parts without a budget compress their files."""

    def close(self) -> None:
        for part in (part for parts in self.warm.values() for part in parts):
            part.close()
        self.warm.clear()
        self.coordinator.close()

    def epoch(self, inputs: Mapping[str, pa.Table], **options: Any) -> tuple[EpochResult, Tables]:
        """Run one epoch on rows of some inputs. Return the commit, and the rows in the files of the epoch."""
        self.grow()
        start = self.start = self.coordinator.begin(**options)
        receipts = self.receipts(start, inputs)
        committed = self.coordinator.finish(start, receipts, **{k: v for k, v in options.items() if k == "feed"})
        return committed, self.outputs(committed)

    def grow(self) -> None:
        """Backfill new parts of the plan, if there are any."""
        if self.coordinator.growing is not None:
            start = self.coordinator.begin_backfill()
            self.coordinator.finish_backfill(start, self.receipts(start, {}))

    def receipts(self, start: EpochStart, inputs: Mapping[str, pa.Table]) -> list[Receipt]:
        """Run all tasks of an epoch, some of them twice, and return the receipts."""
        came: dict[int, list[pa.Table]] = {}
        receipts = list[Receipt]()
        for stage in range(self.cut.stages):
            tasks = list(range(start.partitions))
            self.chance.shuffle(tasks)
            sums = {number: pa.concat_tables(tables) for number, tables in came.items()}
            for number in tasks:
                for _ in range(self.chance.choice([1, 1, 1, 2])):
                    done = self.task(start, stage, number, inputs, sums)
                    receipts.append(type(done.receipt).from_json(done.receipt.to_json(), "a test"))
                for meeting, table in done.sums.items():
                    came.setdefault(meeting, []).append(table)
        return receipts

    def task(
        self, start: EpochStart, stage: int, number: int, inputs: Mapping[str, pa.Table], sums: Mapping[int, pa.Table]
    ) -> StagePartitionResult:
        """Run one attempt at a task. The attempt uses an open part if the part matches the start of the epoch."""
        rows = {
            name: mine(table, self.cut.flow.inputs[name].bound.key_schema.names, start, number)
            for name, table in inputs.items()
        }
        met = {each.number: each for each in self.cut.exchanges if each.stage == stage}
        here = {n: mine(table, met[n].by, start, number) for n, table in sums.items() if n in met}
        rows = {name: table for name, table in rows.items() if table.num_rows} if stage == 0 else {}
        here = {n: table for n, table in here.items() if table.num_rows}
        if not rows and not here and (receipt := make_idle_receipt(self.cut, start, stage, number)) is not None:
            return StagePartitionResult(receipt, {})
        part = self.part(start, stage, number)
        counts = {name: table.num_rows for name, table in rows.items()}
        digests = {name: f"{table.num_rows:032x}" for name, table in rows.items()}
        done = part.step(start, rows, {n: shuffled(table, self.chance) for n, table in here.items()}, counts, digests)
        self.warm.setdefault((stage, number), []).append(part)
        return done

    def part(self, start: EpochStart, stage: int, number: int) -> StagePartition:
        """Return an open part of a worker, after it has caught up. If there is none, return a new part."""
        parts = self.warm.setdefault((stage, number), [])
        if parts and self.chance.random() < (0.7 if len(parts) < self.copies else 1):
            part = parts.pop(self.chance.randrange(len(parts)))
            if part.at == start.inventory_name(stage, number):
                self.hits += 1
                return part
            if part.at in start.list_past_inventories(stage, number):
                self.behind += 1
                part.catch_up(start)
                for upsert in part.dataflow.graph.inputs.values():
                    upsert.output_arrangement._check_invariants()
                for arranged in part.dataflow.graph.arrangements.values():
                    arranged._check_invariants()
                return part
            part.close()
        budget = start.memory or self.chance.choice(self.budgets)
        return StagePartition(self.cut, start._replace(memory=budget), stage, number)

    def outputs(self, committed: EpochResult) -> Tables:
        """Return the rows of the committed files."""
        schemas = {name: node.updates_schema(self.cut.flow.time_type) for name, node in self.cut.flow.outputs.items()}
        batch_store = BatchStore(self.store)
        return {
            name: pa.concat_tables(
                [
                    batch_store.read_table(blob, schemas[name], rows_of(batch_store, blob))
                    for blob in committed.outputs[name].blobs
                ]
                or [schemas[name].empty_table()]
            )
            if name in committed.outputs
            else schemas[name].empty_table()
            for name in schemas
        }


def rows_of(batch_store: BatchStore, blob: Any) -> int:
    """Return a file's number of rows, as Arrow counts them."""
    return int(pa.ipc.open_file(batch_store.store.map_blob(blob)).read_all().num_rows)


def mine(table: pa.Table, by: Any, start: EpochStart, number: int) -> pa.Table:
    """Return the rows of a table that belong to one partition, in their order."""
    high, _ = compute_identities(table.select(list(by)), Secret(*start.secret), table.num_rows)
    return table.filter(pa.array(assign_partitions(high, start.partitions) == number))


def shuffled(table: pa.Table, chance: random.Random) -> pa.Table:
    """Return the rows in another order."""
    order = list(range(table.num_rows))
    chance.shuffle(order)
    return table.take(pa.array(order, pa.int64()))
