"""Test estimates: they are close to the engine's mean, an upper bound for each step, and exact for numbers of keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st

import ddflow as dd
from ddflow import errors
from ddflow.tools.estimate import Estimate

SECRET = dd.Secret(0x0123456789ABCDEF, 0xFEDCBA9876543210)
UNIT = 1000
"""Rows a time, as in the benchmark's workloads."""


def numbers(n: int, keys: int, strings: bool = False, deletes: float = 0.05) -> pa.Table:
    """W1, or W3 when keys and values are text: uniform keys, a thousand values, some deletes, times that rise."""
    rng = np.random.default_rng(3)
    key, val, gone = rng.integers(0, keys, n), rng.integers(0, 1000, n), rng.random(n) < deletes
    columns = [pa.array(key), pa.array(val, mask=gone)]
    if strings:
        columns = [
            pa.array([f"user-{k:09}" for k in key]),
            pa.array([None if g else f"city-{v:04}" for v, g in zip(val, gone, strict=True)]),
        ]
    return pa.table([*columns, pa.array(np.arange(n) // UNIT)], names=["key", "val", "time"])


def skewed(n: int, keys: int) -> pa.Table:
    """Every tenth event is of one key, the fewest are of most of the others."""
    rng = np.random.default_rng(6)
    return pa.table({"key": pa.array(rng.zipf(1.2, n) % keys), "val": pa.array(rng.integers(0, 1000, n))})


def wide(n: int, keys: int) -> pa.Table:
    """20 columns; half of the events change one of them, the other half nothing."""
    rng = np.random.default_rng(4)
    key, changes = rng.integers(0, keys, n), rng.random(n) < 0.5
    columns = {"key": pa.array(key), "i0": pa.array(np.where(changes, rng.integers(0, 9999, n), 0))}
    columns |= {f"i{i}": pa.array(key * i) for i in range(1, 7)} | {f"f{i}": pa.array(key / (i + 1)) for i in range(4)}
    columns |= {f"s{i}": pa.array([f"text {k % 1000}" for k in key]) for i in range(6)}
    return pa.table(columns | {"at": pa.array(key).cast(pa.timestamp("us")), "b": pa.array(key % 2 == 0)})


def orders(n: int, keys: int) -> pa.Table:
    """Text keys of two columns, an order that is mostly that of arrival, many deletes that must be remembered."""
    rng = np.random.default_rng(5)
    key, gone = rng.integers(0, keys, n), rng.random(n) < 0.3
    return pa.table(
        {
            "shop": pa.array([f"shop {k % 7}" for k in key]),
            "key": pa.array(key.astype(np.int32)),
            "at": pa.array(np.arange(n) - rng.integers(0, 50, n)),
            "op": pa.array(np.where(gone, "D", "U")),
            "note": pa.array([None if k % 3 else "x" * (k % 40) for k in key]),
        }
    )


HELD_BACK = dd.Upsert("key", time="time", delete="val is null")
WORKLOADS: dict[str, tuple[pa.Table, dd.Upsert, int]] = {
    "w1": (numbers(200_000, 20_000), HELD_BACK, 4000),
    "w3": (numbers(60_000, 6_000, strings=True), HELD_BACK, 3000),
    "wide": (wide(60_000, 20_000), dd.Upsert("key"), 4000),
    "orders": (orders(60_000, 9_000), dd.Upsert(["shop", "key"], order_by="at", delete=dd.tombstone("op", "D")), 5000),
    "every key once": (numbers(60_000, 10**12), dd.Upsert("key"), 1000),
    "some keys often": (skewed(60_000, 10_000), dd.Upsert("key"), 1000),
    "half of all deletes": (numbers(60_000, 4_000, deletes=0.5), HELD_BACK, 2000),
}


def opened(schema: pa.Schema, spec: dd.Upsert) -> Any:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", schema, spec))
    return flow.open(secret=SECRET)


def run(table: pa.Table, spec: dd.Upsert, step: int) -> Iterator[tuple[int, dd.Stats]]:
    """The rows that are in, and the engine's figures, after each step."""
    with opened(table.schema, spec) as engine:
        for start in range(0, table.num_rows, step):
            if spec.time:
                engine.push({"s": table.slice(start, step)})
                engine.advance_to((start + step) // UNIT)
            else:
                engine.step({"s": table.slice(start, step)}, time=start)
            yield start + step, engine.stats()


@pytest.mark.parametrize("name", WORKLOADS)
def test_an_estimate_is_close_to_what_the_engine_takes_in_the_mean_and_bounds_every_step(name: str) -> None:
    table, spec, step = WORKLOADS[name]
    after = list(run(table, spec, step))
    for half in (len(after) // 2, len(after)):
        rows, stats = after[half - 1]
        found = dd.estimate(table.slice(0, rows), spec, step=step)
        assert abs(found.keys - stats["keys"]) <= 0.001 * stats["keys"]
        assert abs(found.tombstones - stats["tombstones"]) <= 0.001 * stats["keys"]
    takes = [stats["bytes_resident"] for _, stats in after]
    a_key = [stats["bytes_resident"] / (stats["keys"] + stats["tombstones"]) for _, stats in after]
    mean = np.mean(a_key[len(a_key) // 2 :]) * (found.keys + found.tombstones)
    assert found.bytes_resident == pytest.approx(mean, rel=0.2)
    assert max(takes) <= found.bytes_most < 2 * max(takes)


def test_a_sample_of_the_keys_tells_what_all_of_them_take() -> None:
    table, spec, step = WORKLOADS["wide"]
    whole = dd.estimate(table, spec, step=step)
    some = table.filter(pa.compute.less(table["key"], 2_000))
    found = dd.estimate(some, spec, keys=whole.keys, step=step)
    assert found.keys == whole.keys
    assert found.bytes_resident == pytest.approx(whole.bytes_resident, rel=0.1)
    ten = dd.estimate(some, spec, keys=10 * whole.keys, step=10 * step)
    assert ten.bytes_resident == pytest.approx(10 * whole.bytes_resident, rel=0.1)


TYPES = {
    "int8": pa.array([1, 2], pa.int8()),
    "bool": pa.array([True, False]),
    "bool or null": pa.array([True, None]),
    "int64 or null": pa.array([1, None]),
    "text": pa.array(["a", "some longer text"]),
    "text or null": pa.array([None, "some text"]),
    "large text": pa.array(["abc", "d"], pa.large_string()),
    "binary": pa.array([b"abc", b""]),
    "fixed": pa.array([b"abc", b"def"], pa.binary(3)),
    "decimal": pa.array([1, 2], pa.decimal128(20, 0)),
    "timestamp": pa.array([1, 2]).cast(pa.timestamp("s")),
    "list": pa.array([[1, 2, 3], []]),
    "struct": pa.array([{"x": 1, "y": "abc"}, {"x": 2, "y": ""}]),
    "map": pa.array([[("a", 1)], [("b", 2), ("c", 3)]], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_weighs_what_its_types_take_and_an_entry_what_the_index_takes(kind: str) -> None:
    n = 4000
    column = pa.concat_arrays([TYPES[kind]] * (n // 2))
    table = pa.table([pa.array(range(n)), column], names=["key", "v"])
    found = dd.estimate(table, dd.Upsert("key"))
    with opened(table.schema, dd.Upsert("key")) as engine:
        engine.step({"s": table}, time=1)
        stats = engine.stats()
    assert found.bytes_index == stats["arrangements"]["s"]["bytes_index"]
    assert found.bytes_resident == pytest.approx(stats["bytes_resident"], rel=0.01)
    assert found.bytes_per_key == found.bytes_resident / n


KEYS: dict[str, tuple[pa.Array, int]] = {
    "floats": (pa.array([0.0, -0.0, float("nan"), float("nan"), 1.5]), 3),
    "dictionary": (pa.array(["a", "b", "a", "", "a"]).dictionary_encode(), 3),
    "views": (pa.array(["a", "b", "a", "", "a"], pa.string_view()), 3),
    "decimals": (pa.array([1, 1, 2, 3, 3], pa.decimal128(9, 2)), 3),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_counted_as_the_engine_tells_them_apart(kind: str) -> None:
    column, expected = KEYS[kind]
    assert dd.estimate(pa.table({"key": column, "v": [1, 1, 1, 2, 3]}), dd.Upsert("key")).keys == expected


@effort(100)
@given(st.data())
def test_keys_and_tombstones_are_those_that_the_engine_ends_with(data: st.DataObject) -> None:
    columns = st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 3)))
    given_rows = data.draw(st.lists(columns, max_size=30))
    spec = dd.Upsert("key", delete="v is null", seq=data.draw(st.sampled_from([None, "n"])))
    schema = pa.schema({"key": pa.int64(), "v": pa.int64(), "n": pa.int64()})
    table = pa.Table.from_pylist([{"key": k, "v": v, "n": n} for n, (k, v) in enumerate(given_rows)], schema=schema)
    step = data.draw(st.integers(1, 8))
    found = dd.estimate(table, spec, step=step)
    ends = [(stats["keys"], stats["tombstones"]) for _, stats in run(table, spec, step)]
    assert (found.keys, found.tombstones) == (ends[-1] if ends else (0, 0))


def test_rows_without_a_key_are_left_out_unless_they_are_kept() -> None:
    table = pa.table({"key": [1, None, 2, None], "v": [1, 2, 3, 4]})
    assert [dd.estimate(table, dd.Upsert("key", null_key=rule)).keys for rule in ("error", "drop", "keep")] == [2, 2, 3]


def test_chunks_and_readers_and_other_encodings_of_the_same_rows_give_the_same_estimate() -> None:
    table, spec, step = WORKLOADS["w3"]
    table = table.slice(0, 20_000)
    found = dd.estimate(table, spec, step=step)
    chunks = pa.Table.from_batches(table.to_batches(max_chunksize=777))
    assert dd.estimate(chunks, spec, step=step) == found
    assert dd.estimate(pa.RecordBatchReader.from_batches(table.schema, chunks.to_batches()), spec, step=step) == found
    encoded = table.set_column(0, "key", table["key"].dictionary_encode())
    assert dd.estimate(encoded, spec, step=step) == found


def test_no_rows_take_what_an_empty_index_takes() -> None:
    schema = pa.schema({"key": pa.int64(), "v": pa.string()})
    for nothing in (schema.empty_table(), pa.RecordBatchReader.from_batches(schema, [])):
        found = dd.estimate(nothing, dd.Upsert("key"))
        assert (found.keys, found.tombstones, found.bytes_batches, found.bytes_per_key) == (0, 0, 0, None)
        with opened(schema, dd.Upsert("key")) as engine:
            assert found.bytes_index == found.bytes_resident == found.bytes_most == engine.stats()["bytes_resident"]
        assert "a key" not in str(found)


def test_it_prints_as_a_table_with_sizes_as_a_person_reads_them() -> None:
    found = Estimate(
        keys=950_000, tombstones=1_200, bytes_index=47_300_000, bytes_batches=55_000_000, bytes_most=131_000_000
    )
    lines = str(found).splitlines()
    assert lines[0] == "950,000 keys, 1,200 tombstones, 107.7 bytes a key"
    assert lines[4].split() == ["together", "102.3", "MB"]
    assert lines[5].startswith("at most, while batches are merged  131.0 MB")
    page = found._repr_html_()
    assert page.count("<tr>") == page.count("</tr>") == 5 and "<td>102.3 MB</td>" in page
    back = json.loads(json.dumps(found.to_dict()))
    assert (back["keys"], back["bytes_resident"], back["bytes_most"]) == (950_000, 102_300_000, 131_000_000)


BAD: list[tuple[dict[str, Any], type[errors.DdflowError], str]] = [
    ({"keys": 2}, errors.SpecError, "an estimate with keys=2: the sample has 3 different keys; pass the total number"),
    ({"keys": 0}, errors.SpecError, "keys=0: that is not a count; use a whole number, 1 or more"),
    ({"keys": 3.0}, errors.SpecError, "keys=3.0: that is not a count"),
    ({"step": 0}, errors.SpecError, "step=0: that is not a count"),
    ({"step": True}, errors.SpecError, "step=True: that is not a count"),
    ({"spec": dd.Upsert("id")}, errors.SpecError, "key= of 'the table': there is no column 'id'"),
    ({"table": pa.table({"value": ["{}"]})}, errors.SchemaMismatch, r"messages, without the key .*spark_bridge.decode"),
    ({"table": [1, 2]}, errors.NotArrow, "list does not speak Arrow"),
    ({"table": pa.table({"key": [1], "_diff": [1]})}, errors.SpecError, r"\['_diff'\] have names that ddflow reserves"),
]


@pytest.mark.parametrize("change, kind, why", BAD)
def test_what_cannot_be_estimated_is_refused(change: dict[str, Any], kind: type[Exception], why: str) -> None:
    given_all = {"table": pa.table({"key": [1, 2, 3, 3]}), "spec": dd.Upsert("key")} | change
    table, spec = given_all.pop("table"), given_all.pop("spec")
    with pytest.raises(kind, match=why):
        dd.estimate(table, spec, **given_all)
