"""Test that a task's shuffle input is complete and in order of arrival, for any delivery order and memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from doors import SECRET, plain, schema_of, spec_of, to_arrow
from hypothesis import given, strategies as st
from kinds import PLAIN
from messages import raises
from strategies import events, inputs, splits

import ddflow as dd
from ddflow.columns.hashing import assign_partitions, compute_identities
from ddflow.errors import Misrouted, SpillRefused
from ddflow.partitions.chunks import (
    NO_ROWS,
    PACKED,
    ChunkLimits,
    RowOrigins,
    ShuffleReader,
    add_digests,
    exchange_sums_schema,
    hash_rows,
    pack_chunks,
    pack_exchange_sums,
    pack_receipts,
)
from ddflow.partitions.partitioner import Partitioner
from ddflow.partitions.stages import Stages, cut_stages


def opened(columns: Any, spec: dd.Upsert | None = None) -> dd.Flow:
    flow = dd.Flow()
    flow.output("s", flow.upserts("s", columns, spec or dd.Upsert("id")))
    return flow


def shuffled(
    batches: Iterable[pa.RecordBatch], seed: int, to: int | None = 0, several: int = 3
) -> list[pa.RecordBatch]:
    """The chunks that one task gets: in any order, some together."""
    rows = [batch.slice(i, 1) for batch in batches for i in range(batch.num_rows) if batch["to"][i].as_py() == to]
    Random(seed).shuffle(rows)
    return [pa.concat_batches(rows[i : i + several]) for i in range(0, len(rows), several)]


def seen(table: pa.Table) -> list[str]:
    return [repr(row) for row in plain(table)]


def read(shuffle: ShuffleReader, name: str = "s") -> pa.Table:
    reader = shuffle.read_input(name)
    assert reader is not None
    return reader.read_all()


@effort(60, deadline=None)
@given(st.data())
def test_rows_come_back_in_the_order_of_arrival(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    input = data.draw(inputs(data.draw(st.booleans())))
    rows = data.draw(events(input, most=20))
    flow = opened(schema_of(input["columns"]), spec_of(input["spec"]))
    partitions = data.draw(st.integers(1, 3))
    route = Partitioner(flow, "s", partitions, SECRET, limits=ChunkLimits(data.draw(st.integers(1, 5)), 8 << 20))
    tasks = data.draw(splits(rows))
    batches = [b for n, part in enumerate(tasks) for b in route(to_arrow(input["columns"], part).to_batches(), n)]
    whole = to_arrow(input["columns"], rows)
    high, _ = compute_identities(whole.select(input["spec"]["key"]), SECRET, len(rows))
    memory = data.draw(st.sampled_from([None, 0, 8 * 600]))
    scratch = tmp_path_factory.mktemp("scratch")
    digest = NO_ROWS
    for number in range(partitions):
        home = np.flatnonzero(assign_partitions(high, partitions) == number).tolist()
        expected = whole.take(pa.array(home, pa.int64()))
        with ShuffleReader(cut_stages(flow), 0, number, memory, str(scratch)) as shuffle:
            for batch in shuffled(batches, data.draw(st.integers(0, 99)), number):
                shuffle.add_chunks(batch)
            assert shuffle.rows == ({"s": len(home)} if home else {})
            assert (shuffle.read_input("s") is None) == (not home)
            digest = add_digests(digest, *(bytes.fromhex(each) for each in shuffle.digests.values()))
            for _ in range(2 if home else 0):
                assert seen(read(shuffle)) == seen(expected)
        assert os.listdir(scratch) == []
    assert digest == add_digests(NO_ROWS, *(d for batch in batches for d in batch["digest"].to_pylist()))


@pytest.mark.parametrize("kind", [kind for kind in PLAIN if kind != "null"])  # which is no type of a column
def test_rows_of_every_type_are_read_from_memory_and_from_the_file(kind: str, tmp_path: Path) -> None:
    array = pa.concat_arrays([PLAIN[kind]] * 3).slice(1)
    n = len(array)
    flow = opened({"id": pa.int64(), "v": array.type})
    rows = pa.record_batch({"id": pa.array(range(n)), "v": array})
    chunks = shuffled(Partitioner(flow, "s", 1, SECRET, limits=ChunkLimits(4, 8 << 20))([rows], 0), 1)
    odd = RowOrigins(["t/0"], np.empty(0, np.int64), np.arange(n) * 3 % n, True)
    hashes = hash_rows(rows, SECRET)
    halves = [
        pack_chunks(
            rows.slice(at, 3),
            np.zeros(min(3, n - at), np.int32),
            hashes[at : at + 3],
            odd._replace(places=odd.places[at : at + 3]),
            0,
        )
        for at in range(0, n, 3)
    ]
    for given_chunks in (chunks, halves):
        told = []
        for memory in (None, 0):
            with ShuffleReader(cut_stages(flow), 0, 0, memory, str(tmp_path)) as shuffle:
                for chunk in given_chunks:
                    shuffle.add_chunks(chunk)
                table = read(shuffle)
                table.validate(full=True)
            assert (shuffle.spilled > 0) == (memory == 0)
            assert table.column("v").type == array.type and table.num_rows == n
            told.append([repr(value) for value in zip(*(c.to_pylist() for c in table.columns), strict=True)])
        assert told[0] == told[1]
        at = {i: repr((i, value)) for i, value in enumerate(array.to_pylist())}
        assert sorted(told[0]) == sorted(at.values())
    places = np.argsort(odd.places, kind="stable").tolist()
    assert told[0] == [at[i] for i in places]


def kafka(
    flow: dd.Flow, offsets: list[int], task: int, partition: int = 3, chunk_rows: int = 4
) -> list[pa.RecordBatch]:
    n = len(offsets)
    rows = pa.record_batch(
        {
            "id": pa.array(offsets),
            "topic": ["t"] * n,
            "offset": pa.array(offsets),
            "partition": pa.array([partition] * n, pa.int32()),
        }
    )
    return list(Partitioner(flow, "s", 1, SECRET, limits=ChunkLimits(chunk_rows, 8 << 20))([rows], task))


@effort(80, deadline=None)
@given(st.permutations(range(40)), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_rows_of_a_kafka_partition_that_interleave_are_merged(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], tasks: int, chunk_rows: int, seed: int
) -> None:
    flow = opened({"id": pa.int64()})
    batches = [b for task in range(tasks) for b in kafka(flow, offsets[task::tasks], task, chunk_rows=chunk_rows)]
    batches += kafka(flow, [5, 7], 11, partition=2)
    with ShuffleReader(cut_stages(flow), 0, 0, seed % 2 or None, str(tmp_path_factory.mktemp("scratch"))) as shuffle:
        for batch in shuffled(batches, seed):
            shuffle.add_chunks(batch)
        parts = list(shuffle.read_input("s") or ())
    assert pa.Table.from_batches(parts).column("id").to_pylist() == [5, 7, *range(40)]
    assert max(part.num_rows for part in parts) <= 3 * chunk_rows, "little is joined at a time"


def test_events_with_the_same_offset_come_in_one_order_whatever_the_shuffle_does() -> None:
    flow = opened({"id": pa.int64(), "v": pa.int64()})
    batches = []
    for task in range(4):
        rows = pa.record_batch({"id": [1, 2, 3], "v": [task] * 3, "offset": [7, 7, 8], "partition": [0] * 3})
        batches += list(Partitioner(flow, "s", 1, SECRET)([rows], task))
    told = set()
    for seed in range(9):
        with ShuffleReader(cut_stages(flow), 0, 0) as shuffle:
            for batch in shuffled(batches, seed):
                shuffle.add_chunks(batch)
            told.add(repr(read(shuffle).to_pylist()))
    assert len(told) == 1


def counted() -> tuple[dd.Flow, Stages]:
    """Two stages behind the inputs: counts by city, then counts of those."""
    flow = opened({"id": pa.int64(), "city": pa.string()})
    flow.output("sizes", flow.outputs["s"].count("city", name="n").project(["n"]).count())
    return flow, cut_stages(flow)


def sums(plan: Stages, number: int, rows: list[Any]) -> pa.Table:
    schema = exchange_sums_schema(plan.exchanges[number])
    return pa.table([[row[i] for row in rows] for i in range(3)], schema=schema)


@pytest.mark.parametrize("memory", [None, 0])
def test_sums_are_for_their_level_and_what_is_for_later_ones_passes(memory: int | None, tmp_path: Path) -> None:
    _, plan = counted()
    assert plan.stages == 3
    given_sums = {0: sums(plan, 0, [("Bern", 7, 2), ("Bern", 8, -1)]), 1: sums(plan, 1, [(3, 7, 1)])}
    batches = [
        *pack_exchange_sums(given_sums, plan, 1, SECRET),
        pack_receipts([b"one", b"two"], 0),
        *pack_exchange_sums({0: sums(plan, 0, [("Chur", 7, 1)])}, plan, 1, SECRET),
    ]
    with ShuffleReader(plan, 1, 0, memory, str(tmp_path)) as shuffle:
        for batch in shuffled(batches, 3, several=9):
            shuffle.add_chunks(batch)
        assert sorted(shuffle.receipts) == [b"one", b"two"]
        assert shuffle.read_exchange_sums(0).sort_by([("_time", "ascending"), ("city", "ascending")]).to_pylist() == [
            {"city": "Bern", "_time": 7, "_diff": 2},
            {"city": "Chur", "_time": 7, "_diff": 1},
            {"city": "Bern", "_time": 8, "_diff": -1},
        ]
        assert shuffle.read_exchange_sums(0).column("_diff").chunk(0).buffers()[1].address % 8 == 0
        passed = list(shuffle.later_stage_chunks)
        assert [batch.schema for batch in passed] == [PACKED]
        assert (shuffle.rows, shuffle.digests, shuffle.read_input("s")) == ({}, {}, None)
    with ShuffleReader(plan, 2, 0) as later:
        later.add_chunks(passed[0])
        assert later.read_exchange_sums(1).to_pylist() == [{"n": 3, "_time": 7, "_diff": 1}]
        assert later.read_exchange_sums(0).num_rows == 0 and later.read_exchange_sums(0).schema == exchange_sums_schema(
            plan.exchanges[0]
        )
        assert list(later.later_stage_chunks) == []


def test_what_is_not_for_the_task_is_refused() -> None:
    flow, plan = counted()
    (rows,) = Partitioner(flow, "s", 1, SECRET)([pa.record_batch({"id": [1]})], 0)
    (first,) = pack_exchange_sums({0: sums(plan, 0, [("Bern", 7, 2)])}, plan, 1, SECRET)
    cases = [
        (0, 1, rows, "partition 1 of stage 0: it received rows for partition 0; leave the shuffle to ddflow"),
        (1, 0, rows, "partition 0 of stage 1: it received rows of input 0, which are not for it"),
        (2, 0, first, "it received sums 0, which are not for it"),
        (0, 0, rows.set_column(1, PACKED.field("what"), pa.array([9], pa.int32())), "it received rows of input 9"),
        (0, 0, rows.set_column(1, PACKED.field("what"), pa.array([-9], pa.int32())), "it received sums 8"),
    ]
    for stage, number, batch, message in cases:
        with ShuffleReader(plan, stage, number) as shuffle, pytest.raises(Misrouted, match=message):
            shuffle.add_chunks(batch)


def test_a_row_without_a_payload_only_calls_its_partition() -> None:
    call = pa.RecordBatch.from_pylist([{"to": 2}], PACKED)
    with ShuffleReader(cut_stages(opened({"id": pa.int64()})), 1, 2) as shuffle:
        shuffle.add_chunks(call)
        shuffle.add_chunks(call.slice(0, 0))
        assert (shuffle.rows, shuffle.receipts, shuffle.read_input("s")) == ({}, [], None)
    with (
        ShuffleReader(cut_stages(opened({"id": pa.int64()})), 0, 1) as shuffle,
        raises(Misrouted),
    ):
        shuffle.add_chunks(call)


def test_large_types_are_read_as_well() -> None:
    """Spark hands binary and text over as large ones where its session says so."""
    flow = opened({"id": pa.int64()})
    (batch,) = Partitioner(flow, "s", 1, SECRET)([pa.record_batch({"id": [1, 2]})], 0)
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    wide = batch.cast(pa.schema([field.with_type(large.get(field.type, field.type)) for field in PACKED]))
    with ShuffleReader(cut_stages(flow), 0, 0) as shuffle:
        shuffle.add_chunks(wide)
        assert read(shuffle).column("id").to_pylist() == [1, 2]


def test_columns_that_are_not_there_stay_away() -> None:
    flow = opened({"id": pa.int64(), "city": pa.string(), "at": pa.int64()})
    (batch,) = Partitioner(flow, "s", 1, SECRET, ("id", "at"))([pa.record_batch({"at": [1], "id": [2]})], 0)
    with ShuffleReader(cut_stages(flow), 0, 0, columns={"s": ("id", "at")}) as shuffle:
        shuffle.add_chunks(batch)
        assert read(shuffle).to_pylist() == [{"id": 2, "at": 1}]
    with ShuffleReader(cut_stages(flow), 0, 0) as shuffle:
        shuffle.add_chunks(batch)
        with raises(Misrouted):
            read(shuffle)


def test_an_eighth_of_the_budget_is_held_in_memory(tmp_path: Path) -> None:
    flow = opened({"id": pa.int64()})
    route = Partitioner(flow, "s", 1, SECRET, limits=ChunkLimits(1000, 8 << 20))
    batches = list(route([pa.record_batch({"id": range(40_000)})], 0))
    shuffle = ShuffleReader(cut_stages(flow), 0, 0, 800_000, str(tmp_path))
    held = []
    for batch in batches:
        shuffle.add_chunks(batch)
        held.append(shuffle.bytes_resident)
    assert max(held) <= 100_000 < max(held) + batches[0].nbytes
    assert shuffle.bytes_resident + shuffle.spilled > 40 * 8000
    assert len(os.listdir(tmp_path)) == 1
    rows = read(shuffle)
    shuffle.close()
    shuffle.close()
    assert os.listdir(tmp_path) == []
    assert rows.column("id").to_pylist() == list(range(40_000)), "what was read stays"


def test_several_spools_share_a_scratch_folder_and_errors_name_it(tmp_path: Path) -> None:
    flow = opened({"id": pa.int64()})
    (batch,) = Partitioner(flow, "s", 1, SECRET)([pa.record_batch({"id": [1]})], 0)
    shuffles = [ShuffleReader(cut_stages(flow), 0, 0, 0, str(tmp_path)) for _ in range(3)]
    for shuffle in shuffles:
        shuffle.add_chunks(batch)
    for shuffle in shuffles:
        assert read(shuffle).num_rows == 1
        shuffle.close()
    assert os.listdir(tmp_path) == []
    with (
        ShuffleReader(cut_stages(flow), 0, 0, 0, str(tmp_path / "gone")) as shuffle,
        raises((SpillRefused, OSError)),
    ):
        shuffle.add_chunks(batch)
