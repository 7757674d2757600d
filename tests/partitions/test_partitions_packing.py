"""Test packing: rows of every type travel as chunks and return unchanged; digests are sums over rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from kinds import PLAIN
from messages import raises
from rules import canonical

import ddflow as dd
from ddflow.columns.hashing import Secret, assign_partitions, compute_identities
from ddflow.columns.schema import to_batch
from ddflow.errors import Misrouted
from ddflow.partitions.chunks import (
    NO_ROWS,
    PACKED,
    RECEIPT,
    RowOrigins,
    add_arrival_column,
    add_digests,
    choose_chunk_limits,
    compute_digests,
    exchange_sums_schema,
    hash_rows,
    pack_chunks,
    pack_exchange_sums,
    pack_receipts,
    select_chunk_schema,
    slice_binary_value,
    slice_rows,
    unpack_chunk,
)
from ddflow.partitions.stages import cut_stages

SECRET = Secret(3, 5)


def values(array: Any) -> list[str]:
    return [repr(canonical(value)) for value in array.to_pylist()]


def packed(
    rows: pa.RecordBatch, to: list[int], origin: RowOrigins | None = None, what: int = 0
) -> list[dict[str, Any]]:
    """The chunks of some rows, row by row of what travels, with the payload still a buffer."""
    origin = origin or RowOrigins.of_range("0000000000", 0, rows.num_rows)
    batch = pack_chunks(rows, np.array(to, np.int32), hash_rows(rows, SECRET), origin, what)
    batch.validate(full=True)
    assert batch.schema == PACKED
    return [
        {**chunk, "payload": slice_binary_value(batch.column("payload"), i)}
        for i, chunk in enumerate(batch.to_pylist())
    ]


def moved(payload: pa.Buffer, by: int) -> pa.Buffer:
    """The same bytes so many bytes behind a multiple of 64."""
    room = pa.allocate_buffer(payload.size + 64 + by)
    begin = -room.address % 64 + by
    np.frombuffer(room, np.uint8)[begin : begin + payload.size] = np.frombuffer(payload, np.uint8)
    return room.slice(begin, payload.size)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("kind", PLAIN)
def test_rows_of_every_type_come_back_as_they_were(kind: str, told: bool) -> None:
    array = pa.concat_arrays([PLAIN[kind]] * 3).slice(1)
    n = len(array)
    rows = pa.record_batch({"v": array, "n": pa.array(range(n)), "_arrival": pa.array(["a column's name"] * n)})
    to = [(i * 7 + i // 3) % 4 for i in range(n)]
    origin = RowOrigins(["here"], np.empty(0, np.int64), np.arange(100, 100 + n), told)
    chunks = packed(rows, to, origin)
    assert [c["to"] for c in chunks] == sorted(set(to))
    for chunk in chunks:
        places = [i for i in range(n) if to[i] == chunk["to"]]
        assert (chunk["at"], chunk["rows"], chunk["payload"].size % 8) == (100 + places[0], len(places), 0)
        for by in (0, 1, 4):
            back = unpack_chunk(moved(chunk["payload"], by), add_arrival_column(rows.schema, told), len(places))
            back.validate(full=True)
            assert values(back.column(0)) == [values(array)[i] for i in places], by
            assert back.schema.field(0).type == array.type
            assert back.column(1).to_pylist() == places
            assert not told or back.column(3).to_pylist() == [100 + i for i in places]
            for column in back.columns:
                assert all(b.address % 8 == 0 for b in column.buffers() if b is not None and b.size), by


def test_what_is_not_such_a_chunk_is_refused() -> None:
    rows = pa.record_batch({"n": [1, 2]})
    payload = packed(rows, [0, 0])[0]["payload"]
    with raises(Misrouted):
        unpack_chunk(payload, rows.schema, 3)
    with raises(Misrouted):
        unpack_chunk(payload.slice(0, 4), rows.schema, 2)
    with raises(Misrouted):
        unpack_chunk(payload, pa.schema({"n": pa.int64(), "m": pa.string()}), 2)


def test_rows_of_several_origins_are_chunks_of_their_own_in_the_order_of_their_places() -> None:
    rows = pa.record_batch({"n": [0, 1, 2, 3, 4, 5]})
    origin = RowOrigins(["b", "a"], np.array([0, 1, 0, 1, 0, 0]), np.array([9, 5, 7, 6, 8, 1]), True)
    chunks = packed(rows, [1, 0, 1, 0, 1, 0], origin)
    got = [
        (
            c["to"],
            c["origin"],
            c["at"],
            unpack_chunk(c["payload"], add_arrival_column(rows.schema, True), c["rows"]).to_pydict(),
        )
        for c in chunks
    ]
    assert got == [
        (0, "b", 1, {"n": [5], "_arrival": [1]}),
        (0, "a", 5, {"n": [1, 3], "_arrival": [5, 6]}),
        (1, "b", 7, {"n": [2, 4, 0], "_arrival": [7, 8, 9]}),
    ]


def test_many_partitions_have_a_chunk_each() -> None:
    n = 70_000
    to = np.random.default_rng(1).permutation(n)
    chunks = packed(pa.record_batch({"n": range(n)}), to.tolist())
    assert [c["to"] for c in chunks] == list(range(n))
    for chunk in chunks[:: n // 7]:
        assert to[unpack_chunk(chunk["payload"], pa.schema({"n": pa.int64()}), 1).column(0)[0].as_py()] == chunk["to"]


words = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20)


@effort(50)
@given(words, st.data())
def test_a_digest_is_a_sum_over_rows(drawn: list[int], data: st.DataObject) -> None:
    hashes = np.array(drawn, np.uint64)
    starts = sorted(data.draw(st.sets(st.integers(0, len(drawn) - 1))) | {0})
    each = compute_digests(hashes, np.array(starts)).to_pylist()
    for begin, end, digest in zip(starts, [*starts[1:], len(drawn)], each, strict=True):
        expected = sum(drawn[begin:end]) % 2**64, sum(h * h for h in drawn[begin:end]) % 2**64
        assert digest == b"".join(word.to_bytes(8, "little") for word in expected)
    shuffled = data.draw(st.permutations(each))
    assert (
        add_digests(*shuffled)
        == add_digests(NO_ROWS, *each)
        == compute_digests(hashes, np.zeros(1, np.int64))[0].as_py()
    )


def test_the_hash_of_a_row_knows_its_columns_by_name() -> None:
    one, other = pa.record_batch({"a": [1, 2]}), pa.record_batch({"b": [1, 2]})
    assert not set(hash_rows(one, SECRET).tolist()) & set(hash_rows(other, SECRET).tolist())
    assert hash_rows(one, SECRET).tolist() == hash_rows(pa.record_batch({"a": [1, 2]}), SECRET).tolist()


@effort(100)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=9), st.integers(1, 2**20))
def test_partitions_are_equal_ranges_of_mixed_identities(high: list[int], partitions: int) -> None:
    got = assign_partitions(np.array(high, np.uint64), partitions)
    mixed = [h * 0x9E3779B97F4A7C15 % 2**64 >> 32 for h in high]
    assert got.tolist() == [word * partitions >> 32 for word in mixed]
    assert got.dtype == np.int32 and 0 <= min(got) <= max(got) < partitions


def test_more_is_packed_together_for_many_partitions_but_not_without_end() -> None:
    assert choose_chunk_limits(1) == choose_chunk_limits(64) == (1 << 18, 8 << 20)
    assert choose_chunk_limits(1000) == (512_000, 16_384_000)
    assert choose_chunk_limits(10**6) == (1 << 21, 64 << 20)


def test_slices_are_no_larger_than_asked_but_for_a_single_row() -> None:
    table = pa.table({"s": ["x" * 100, "y" * 3, "z" * 3, "w" * 3]})
    parts = list(slice_rows(table, 3, 30))
    assert pa.concat_tables(parts).equals(table) and parts[0].num_rows == 1
    assert [p.num_rows for p in slice_rows(table, 3, 10**6)] == [3, 1]
    assert list(slice_rows(table.slice(0, 0), 3, 30)) == []


@pytest.mark.parametrize("by", [["city"], ["city", "paid"], []])
def test_sums_travel_to_the_partition_of_what_they_meet_by(by: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    flow = dd.Flow()
    orders = flow.upserts("o", {"id": pa.int64(), "city": pa.string(), "paid": pa.bool_()}, dd.Upsert("id"))
    flow.output("counts", orders.count(by))
    plan = cut_stages(flow)
    schema, n = exchange_sums_schema(plan.exchanges[0]), 1000
    columns = {
        "city": [f"c{i % 50}" for i in range(n)],
        "paid": [i % 3 == 0 for i in range(n)],
        "all": [True] * n,
        "_time": range(n),
        "_diff": [1, -1] * (n // 2),
    }
    table = pa.table([pa.array(columns[f.name], f.type) for f in schema], schema=schema)
    given = pa.concat_tables([table.slice(0, 3), table.slice(3)])
    monkeypatch.setattr("ddflow.partitions.chunks.choose_chunk_limits", lambda partitions: (300, 10**6))
    back = []
    for batch in pack_exchange_sums({0: given}, plan, 5, SECRET):
        for chunk, value in zip(batch.to_pylist(), batch.column("payload"), strict=True):
            assert chunk["what"] == -1
            rows = unpack_chunk(value.as_buffer(), schema, chunk["rows"])
            high, _ = compute_identities(rows.select(list(plan.exchanges[0].by)), SECRET, rows.num_rows)
            assert set(assign_partitions(high, 5).tolist()) == {chunk["to"]}
            back.append(rows)
    assert len(back) == 4 * (1 if not by else 5)
    assert pa.Table.from_batches(back).sort_by("_time").equals(table)


def test_receipts_travel_as_they_are() -> None:
    batch = pack_receipts([json.dumps({"a": 1}).encode(), b"2"], to=3)
    assert batch.schema == PACKED
    assert [(c["to"], c["what"], c["payload"]) for c in batch.to_pylist()] == [
        (3, RECEIPT, b'{"a": 1}'),
        (3, RECEIPT, b"2"),
    ]


def test_columns_that_are_there_keep_the_declared_order() -> None:
    declared = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.bool_()})
    assert select_chunk_schema(declared, ("c", "a")).names == ["a", "c"]
    assert select_chunk_schema(declared, None) is declared
    empty = to_batch(pa.table({"a": pa.array([], pa.int64())}))
    assert packed(empty, []) == []
