"""Test a task's memory: a first batch of many times the budget stays within it, Spark's Arrow batches included.

The test covers the work from Spark's chunks to the written files. A separate process measures private pages, minus the
pages of a task with little input.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chance import SOAK, long_test
from watched import watched

pytestmark = pytest.mark.sampled

TASK = """
import gc, json, os, sys
import numpy as np, pyarrow as pa, pyarrow.compute as pc
import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.partitions.stages import cut_stages
from ddflow.partitions.step import StagePartition
from ddflow.partitions.partitioner import Partitioner
from ddflow.partitions.chunks import ChunkLimits, ShuffleReader

mode, place, total, memory = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "t": pa.int64(), "s": pa.string()})
flow = dd.Flow()
spec = dd.Upsert("k", order_by="t") if mode == "epoch" else dd.Upsert("k", time="t", lateness=10)
rows = flow.upserts("s", schema, spec)
flow.output("rows", rows)
flow.output("by_v", rows.count(["v"]))
PLAN = cut_stages(flow.frozen())

def batches(total):
    for begin in range(0, total, 10_000):
        chance, size = np.random.default_rng([7, begin]), min(10_000, total - begin)
        k = chance.integers(0, total, size)
        yield pa.record_batch([k, chance.integers(0, 1000, size), np.sort(chance.integers(0, 50, size)),
                               pc.binary_join_element_wise(pa.array(k).cast(pa.string()), 'x' * 70, '')], schema=schema)

def take(name, total, wait):
    coordinator = EpochDriver.open(flow, os.path.join(place, name), DriverOptions(partitions=1, memory=memory))
    router = Partitioner(flow, "s", 1, Secret(*coordinator.manifest.secret), None, ChunkLimits(1 << 18, memory // 16))
    chunks = os.path.join(place, name + ".arrow")
    # What Spark keeps on its own disk between two stages; it hands over an eighth of the budget together, at most.
    with pa.OSFile(chunks, "wb") as file:
        writer = None
        for batch in router(batches(total), 0):
            writer = writer or pa.ipc.new_file(file, batch.schema)
            writer.write_batch(batch)
        writer.close()
    del batch, router
    gc.collect()
    pa.default_memory_pool().release_unused()
    scratch = os.path.join(place, name + ".scratch")
    os.mkdir(scratch)
    start = coordinator.begin(close=mode != "epoch")
    wait("idle")
    with ShuffleReader(PLAN, 0, 0, memory, scratch, {"s": tuple(schema.names)}) as shuffle:
        with pa.OSFile(chunks) as file:
            reader = pa.ipc.open_file(file)
            for i in range(reader.num_record_batches):
                shuffle.add_chunks(reader.get_batch(i))
        part = StagePartition(PLAN, start, 0, 0)
        done = part.step(start, {"s": shuffle.read_input("s")}, {}, shuffle.rows, shuffle.digests)
        updates = done.receipt.outputs["rows"].rows if "rows" in done.receipt.outputs else 0
        figures = done.receipt.counts, updates, part.dataflow.pending_count
        part.close()
    wait("done")
    coordinator.close()
    return figures

def wait(word):
    print(word, flush=True)
    sys.stdin.readline()

take("little", 30_000, lambda word: None)
gc.collect()
counts, updates, pending = take("much", total, wait)
print(json.dumps({"counts": counts, "updates": updates, "pending": pending}))
"""
BUDGET = 128_000_000 if SOAK else 32_000_000
ROWS = 12_000_000 if SOAK else 600_000
"""Of some 110 bytes: ten times the budget when soaking, else twice."""


@long_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("mode", ["epoch", "hold-back"])
def test_a_first_batch_of_many_times_the_budget_stays_within_it(tmp_path: Path, mode: str) -> None:
    seen = watched(TASK, mode, str(tmp_path), str(ROWS), str(BUDGET))
    found, over = seen.answer, seen.most - seen.idle
    assert sum(found["counts"].values()) + found["pending"] == ROWS
    assert over <= BUDGET * 1.15, f"{over:,} bytes over the {seen.idle:,} of an idle task"
