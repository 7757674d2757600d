"""Run a Spark plan without Spark. The tasks of each stage run one after the other, in this process.

A shuffle is a list that gives chunks in reverse order, a few at a time. Every task runs twice, and both attempts must
give the same output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from doors import plain

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.partitions.chunks import PACKED
from ddflow.partitions.stages import cut_stages
from spark_bridge.job import make_partitioner
from spark_bridge.tasks import StatelessStageTask
from spark_bridge.types import build_output_schemas, to_spark_types

SECRET = Secret(5, 6)


def by_hand(
    flow: dd.Flow, given: Mapping[str, Sequence[pa.Table]], partitions: int, time: int = 0
) -> dict[str, pa.Table]:
    """Return each output in its transfer types.

    ``given`` has, for each input, the rows of each task that reads the input. ``time``: the time of the step.
    """
    packed, columns = [], {name: tuple(tables[0].column_names) for name, tables in given.items()}
    for name, tables in given.items():
        by = make_partitioner(flow, name, partitions, SECRET, columns[name])
        for origin, table in enumerate(tables):
            packed += by((to_spark_types(batch, "a test") for batch in table.to_batches(max_chunksize=3)), origin)
    out = {}
    for name, shape in build_output_schemas(flow).items():
        stages, chunks = cut_stages(flow, only=name), packed
        for stage in range(stages.stages):
            last = stage == stages.stages - 1
            task = StatelessStageTask(stages, stage, SECRET, partitions, columns, name if last else None, time)
            chunks = [batch for number in range(partitions) for batch in attempted(task, chunks, number)]
        out[name] = pa.Table.from_batches(chunks or [to_spark_types(whole(shape.arrow.empty_table()), "a test")])
    return out


def attempted(task: StatelessStageTask, chunks: Sequence[pa.RecordBatch], number: int) -> list[pa.RecordBatch]:
    """Run two attempts at a task, both on the chunks of the task's partition.

    Return the output of the first attempt.
    """
    table = pa.Table.from_batches(chunks, PACKED)
    mine = [row for row, to in enumerate(table.column("to").to_pylist()) if to == number]
    rows = table.take(pa.array(mine[::-1], pa.int64())).combine_chunks().to_batches(max_chunksize=2)
    first, second = (list(task(iter(each))) for each in (rows, rows))
    assert [plain(pa.table(each)) for each in first] == [plain(pa.table(each)) for each in second]
    return first


def whole(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch, even if the table has no rows."""
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
