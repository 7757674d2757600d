"""Test that every row goes to its key's partition in order of arrival, for any chunks, encodings and readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from doors import SECRET, plain, schema_of, spec_of, to_arrow
from hypothesis import given, strategies as st
from messages import raises
from strategies import events, inputs, shapes, splits

import ddflow as dd
from ddflow.columns.hashing import assign_partitions, compute_identities
from ddflow.connectors.to_arrow import to_table
from ddflow.errors import SchemaMismatch
from ddflow.partitions.chunks import (
    NO_ROWS,
    PACKED,
    ChunkLimits,
    add_arrival_column,
    add_digests,
    select_chunk_schema,
    slice_binary_value,
    unpack_chunk,
)
from ddflow.partitions.partitioner import Partitioner, find_present_columns, has_arrival_columns

ORDERS = {"id": pa.int64(), "city": pa.string(), "at": pa.int64()}


def opened(columns: Any, spec: dd.Upsert | None = None) -> dd.Flow:
    """A flow whose second input has these columns."""
    flow = dd.Flow()
    flow.upserts("other", columns, spec or dd.Upsert("id"))
    flow.output("s", flow.upserts("s", columns, spec or dd.Upsert("id")))
    return flow


def routed(route: Partitioner, batches: Iterable[pa.RecordBatch], origin: int = 0) -> list[dict[str, Any]]:
    out = []
    for batch in route(batches, origin):
        batch.validate(full=True)
        assert batch.schema == PACKED and batch.num_rows
        out += [
            {**chunk, "payload": slice_binary_value(batch.column("payload"), i)}
            for i, chunk in enumerate(batch.to_pylist())
        ]
    return out


def rows_of(chunks: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([unpack_chunk(c["payload"], schema, c["rows"]) for c in chunks], schema)


def seen(table: pa.Table) -> list[str]:
    return [repr(row) for row in plain(table)]


def of_all(chunks: Sequence[dict[str, Any]]) -> bytes:
    return add_digests(NO_ROWS, *(c["digest"] for c in chunks))


def batches_of(given: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    return to_table(given, "rows", schema).to_batches()


@effort(60, deadline=None)
@given(st.data())
def test_all_rows_arrive_in_order_each_in_the_partition_of_its_key(data: st.DataObject) -> None:
    input = data.draw(inputs(data.draw(st.booleans())))
    rows = data.draw(events(input, most=20))
    partitions = data.draw(st.sampled_from([1, 2, 3, 8, 1000]))
    schema, spec = schema_of(input["columns"]), spec_of(input["spec"])
    flow = opened(schema, spec)
    limits = ChunkLimits(data.draw(st.integers(1, 6)), data.draw(st.sampled_from([1, 60, 10**6])))
    shape = data.draw(shapes())
    given_rows = to_arrow(input["columns"], rows)
    chunks = routed(Partitioner(flow, "s", partitions, SECRET, limits=limits), batches_of(shape(given_rows), schema))
    high, _ = compute_identities(given_rows.select(list(spec.key)), SECRET, len(rows))
    home = assign_partitions(high, partitions).tolist()
    for to in range(partitions) if partitions < 10 else {*home, 0, 999}:
        own = [c for c in chunks if c["to"] == to]
        assert [(c["what"], c["origin"]) for c in own] == [(1, "0000000000")] * len(own)
        assert [c["at"] for c in own] == sorted({c["at"] for c in own})
        expected = [i for i, p in enumerate(home) if p == to]
        assert seen(rows_of(own, schema)) == seen(given_rows.take(pa.array(expected, pa.int64())))
        at = 0
        for c in own:
            assert c["at"] == expected[at]
            at += c["rows"]
    assert sum(c["rows"] for c in chunks) == len(rows)


@effort(60, deadline=None)
@given(st.data())
def test_the_digest_of_the_rows_is_of_nothing_else(data: st.DataObject) -> None:
    input = data.draw(inputs(False))
    schema, spec = schema_of(input["columns"]), spec_of(input["spec"])
    flow = opened(schema, spec)
    rows = data.draw(events(input, most=12, least=1))

    def digest(rows: list[Any], partitions: int = 1, cuts: list[list[Any]] | None = None, most: int = 1 << 18) -> bytes:
        """Of rows read by several tasks, each of which gives them in some shape."""
        route = Partitioner(flow, "s", partitions, SECRET, limits=ChunkLimits(most, 8 << 20))
        shape = data.draw(shapes())
        parts = [batches_of(shape(to_arrow(input["columns"], part)), schema) for part in cuts or [rows]]
        return of_all([c for task, part in enumerate(parts) for c in routed(route, part, task)])

    once = digest(rows)
    mixed = data.draw(st.permutations(rows))
    assert digest(mixed, data.draw(st.integers(1, 9)), data.draw(splits(mixed)), most=data.draw(st.integers(1, 5)))
    assert once == digest(mixed, data.draw(st.integers(1, 9)), data.draw(splits(mixed)), most=2)
    at = data.draw(st.integers(0, len(rows) - 1))
    assert once != digest(rows[:at] + rows[at + 1 :])
    assert once != digest([*rows, rows[at]])
    other = data.draw(events(input, most=1, least=1))[0]
    if seen(to_arrow(input["columns"], [other])) != seen(to_arrow(input["columns"], [rows[at]])):
        assert once != digest([*rows[:at], other, *rows[at + 1 :]])


def test_a_chunk_is_no_larger_than_asked() -> None:
    flow = opened(ORDERS)
    rng = np.random.default_rng(1)
    table = pa.table(
        {"id": rng.integers(0, 999, 5000), "city": ["x" * (i % 50) for i in range(5000)], "at": range(5000)}
    )
    route = Partitioner(flow, "s", 2, SECRET, limits=ChunkLimits(700, 20_000))
    held = [sum(c["rows"] for c in batch.to_pylist()) for batch in route(table.to_batches(max_chunksize=60), 0)]
    assert sum(held) == 5000 and max(held) <= 700 and min(held[:-1]) > 300
    sizes = [batch.nbytes for batch in route(table.to_batches(), 0)]
    assert max(sizes) < 22_000 and np.median(sizes) > 12_000
    assert len(list(Partitioner(flow, "s", 2, SECRET)(table.to_batches(max_chunksize=60), 0))) == 1


def test_no_rows_are_no_chunks_but_their_columns_are_looked_at() -> None:
    flow = opened(ORDERS)
    route = Partitioner(flow, "s", 2, SECRET)
    assert routed(route, []) == []
    assert routed(route, [pa.record_batch({"id": pa.array([], pa.int32())})]) == []
    with raises(SchemaMismatch):
        routed(route, [pa.record_batch({"ids": pa.array([], pa.int32())})])


def test_columns_that_are_not_there_stay_away() -> None:
    flow = opened(ORDERS)
    rows = pa.record_batch({"at": pa.array([1, 2], pa.int8()), "id": [7, 8]})
    there = find_present_columns(flow.inputs["s"].bound, rows.schema)
    assert there == ("id", "at")
    (chunk,) = routed(Partitioner(flow, "s", 1, SECRET, there), [rows])
    schema = select_chunk_schema(flow.inputs["s"].bound.schema, there)
    assert rows_of([chunk], schema).to_pylist() == [{"id": 7, "at": 1}, {"id": 8, "at": 2}]
    (whole,) = routed(Partitioner(flow, "s", 1, SECRET), [rows])
    assert rows_of([whole], pa.schema(ORDERS)).to_pylist()[0] == {"id": 7, "city": None, "at": 1}


def test_batches_of_different_columns_are_packed_apart() -> None:
    route = Partitioner(opened(ORDERS), "s", 1, SECRET)
    chunks = routed(route, [pa.record_batch({"id": [1]}), pa.record_batch({"id": [2], "city": ["Bern"]})])
    assert rows_of(chunks, pa.schema(ORDERS)).to_pylist() == [
        {"id": 1, "city": None, "at": None},
        {"id": 2, "city": "Bern", "at": None},
    ]
    assert [c["at"] for c in chunks] == [0, 1]


def test_types_are_restored_before_they_are_looked_at() -> None:
    flow = opened({"id": pa.uint64()})

    def restore(table: pa.Table) -> pa.Table:
        return table.cast(pa.schema({"id": pa.uint64()}))

    route = Partitioner(flow, "s", 1, SECRET, restore=restore)
    given_rows = pa.record_batch({"id": pa.array([2**64 - 1], pa.decimal128(20))})
    assert rows_of(routed(route, [given_rows]), pa.schema({"id": pa.uint64()})).to_pylist() == [{"id": 2**64 - 1}]


def test_it_can_be_sent() -> None:
    flow = opened(ORDERS, dd.Upsert("id", where="at > 0"))
    route = ForkingPickler.loads(ForkingPickler.dumps(Partitioner(flow, "s", 4, SECRET, ("id", "at"))))
    assert [c["rows"] for c in routed(route, [pa.record_batch({"id": [1]})])] == [1]


REFUSED = {
    "unknown": (pa.record_batch({"id": [1], "town": ["Bern"]}), "there is a column 'town' that was not declared"),
    "twice": (pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"]), "'id' occurs more than once"),
    "no key": (pa.record_batch({"city": ["Bern"]}), "the column 'id' is missing; it cannot be null for all rows"),
    "type": (
        pa.record_batch({"id": [1.5]}),
        r"column 'id' of rows for 's': row 0 holds 1.5 \(double\), which does not fit",
    ),
    "fit": (pa.record_batch({"id": pa.array([2**63], pa.uint64())}), r"\(uint64\), which does not fit int64"),
    "text": (
        pa.record_batch({"id": [1], "city": pa.array([b"\xff"]).view(pa.string())}),
        "column 'city' of rows for 's': it is not a valid string: Invalid UTF8 .*; fix it where it is created",
    ),
    "no offset": (
        pa.record_batch({"id": [1, 2], "partition": [1, 2], "offset": [5, None]}),
        "'offset' is null in 1 rows; partition and offset are the origin of a row",
    ),
    "a partition alone": (pa.record_batch({"id": [1], "partition": [1]}), "'partition' that was not declared"),
    "a partition of text": (
        pa.record_batch({"id": [1], "partition": ["1"], "offset": [1]}),
        "a column 'partition' that was not declared",
    ),
    "a topic alone": (pa.record_batch({"id": [1], "topic": ["t"]}), "'topic' that was not declared"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_step_would_take_is_refused_before_it_travels(case: str) -> None:
    rows, message = REFUSED[case]
    with pytest.raises(SchemaMismatch, match=message):
        routed(Partitioner(opened(ORDERS), "s", 2, SECRET), [rows])


@pytest.mark.parametrize(
    "case", ["unknown", "twice", "no key", "a partition alone", "a partition of text", "a topic alone"]
)
def test_the_driver_can_tell_by_the_columns_alone(case: str) -> None:
    rows, message = REFUSED[case]
    with pytest.raises(SchemaMismatch, match=message.split(" 'id' of")[0]):
        find_present_columns(opened(ORDERS).inputs["s"].bound, rows.schema)


def kafka(rows: Sequence[tuple[int, str | None, int, int]], topics: bool = True) -> pa.RecordBatch:
    """Rows of (id, topic, partition, offset), in the types that Spark gives them."""
    ids, topic, partition, offset = zip(*rows, strict=True)
    columns = {"id": pa.array(ids), "partition": pa.array(partition, pa.int32()), "offset": pa.array(offset)}
    return pa.record_batch(columns | ({"topic": pa.array(topic, pa.string())} if topics else {}))


ROWS = [(1, "t", 3, 7), (2, "u", 3, 2), (3, "t", 3, 5), (4, "t", 11, 5), (5, None, 3, 1), (6, "t", 3, 6)]


def test_kafkas_columns_are_picked_up_by_themselves() -> None:
    flow = opened({"id": pa.int64()})
    bound = flow.inputs["s"].bound
    assert find_present_columns(bound, kafka(ROWS).schema) == ("id",)
    chunks = routed(Partitioner(flow, "s", 1, SECRET, ("id",)), [kafka(ROWS).slice(0, 3), kafka(ROWS).slice(3)], 99)
    schema = add_arrival_column(bound.schema, True)
    got = {c["origin"]: (c["at"], rows_of([c], schema).to_pydict()) for c in chunks}
    assert got == {
        "/0000000003": (1, {"id": [5], "_arrival": [1]}),
        "t/0000000003": (5, {"id": [3, 6, 1], "_arrival": [5, 6, 7]}),
        "t/0000000011": (5, {"id": [4], "_arrival": [5]}),
        "u/0000000003": (2, {"id": [2], "_arrival": [2]}),
    }
    bare = routed(Partitioner(flow, "s", 1, SECRET, ("id",)), [kafka(ROWS).select(["id"])], 99)
    assert of_all(bare) == of_all(chunks), "where rows come from is no part of what they are"
    without = routed(Partitioner(flow, "s", 1, SECRET, ("id",)), [kafka(ROWS, topics=False)], 99)
    assert Counter(c["origin"] for c in without) == {"/0000000003": 1, "/0000000011": 1}


def test_kafkas_columns_may_be_the_flows_own() -> None:
    ordered = opened({"id": pa.int64(), "offset": pa.int64()}, dd.Upsert("id", order_by="offset"))
    rows = kafka(ROWS)
    assert find_present_columns(ordered.inputs["s"].bound, rows.schema) == ("id", "offset")
    chunks = routed(Partitioner(ordered, "s", 1, SECRET), [rows])
    (own,) = [c for c in chunks if c["origin"] == "t/0000000003"]
    told = rows_of([own], add_arrival_column(ordered.inputs["s"].bound.schema, True))
    assert told.to_pydict() == {"id": [3, 6, 1], "offset": [5, 6, 7], "_arrival": [5, 6, 7]}
    declared = {"id": pa.int64(), "offset": pa.int64(), "partition": pa.int32(), "topic": pa.string()}
    assert not has_arrival_columns(rows.schema, pa.schema(declared))
    (chunk,) = routed(Partitioner(opened(declared), "s", 1, SECRET), [rows], 4)
    assert (chunk["origin"], chunk["at"]) == ("0000000004", 0)
    assert rows_of([chunk], pa.schema(declared)).column("offset").to_pylist() == [7, 2, 5, 5, 1, 6]


def test_rows_of_one_key_go_where_the_state_has_them() -> None:
    """The partition is that of the identity, which is the same whether or not the key may be null."""
    for keep in ("keep", "drop"):
        flow = opened({"id": pa.float64()}, dd.Upsert("id", null_key=keep))
        chunks = routed(Partitioner(flow, "s", 64, SECRET), [pa.record_batch({"id": [0.0, -0.0, None, float("nan")]})])
        high, _ = compute_identities(pa.record_batch({"id": [0.0, None, float("nan")]}), SECRET, 3)
        zero, null, nan = assign_partitions(high, 64).tolist()
        assert Counter({c["to"]: c["rows"] for c in chunks}) == Counter([zero, zero, null, nan])
