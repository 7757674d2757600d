"""Test every Arrow type end to end: input, state, merge, comparison, count, retraction, read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from kinds import ENCODED, FLAT, PLAIN, pieces
from messages import raises
from rules import canonical, rank

import ddflow as dd
from ddflow.storage.memory import MemoryStore

EVERY = PLAIN | {kind: array for kind, (array, _) in ENCODED.items()}
del EVERY["null"]  # is no type of an input's column
SECRET = dd.Secret(3, 5)


def bag(table: pa.Table, *names: str) -> Counter[Any]:
    """The rows of an output as a multiset: the columns' values, with their diffs."""
    columns = [[repr(canonical(value)) for value in table[name].to_pylist()] for name in names]
    total: Counter[Any] = Counter()
    for *row, diff in zip(*columns, table["_diff"].to_pylist(), strict=True):
        total[tuple(row)] += diff
    return Counter({row: n for row, n in total.items() if n})


def feed(array: pa.Array | pa.ChunkedArray, keys: range, at: int, gone: bool = False) -> pa.Table:
    n = len(keys)
    return pa.table({"k": pa.array(keys), "at": pa.array([at] * n), "gone": pa.array([gone] * n), "v": array})


def opened(kind: str, **options: Any) -> Any:
    flow = dd.Flow()
    schema = pa.schema({"k": pa.int64(), "at": pa.int64(), "gone": pa.bool_(), "v": EVERY[kind].type})
    spec = dd.Upsert("k", order_by="at", delete=dd.tombstone("gone"), noop_ignore=["at"])
    input = flow.upserts("s", schema, spec)
    flow.output("rows", input)
    flow.output("values", input.project(["v"]).count(name="n"))
    return flow.open(secret=SECRET, **options)


@pytest.mark.drawn(16)
@pytest.mark.parametrize("kind", EVERY)
def test_values_of_every_type_come_out_as_they_went_in(kind: str) -> None:
    array, n = EVERY[kind], len(EVERY[kind])
    expected = [repr(canonical(value)) for value in array.to_pylist()]
    with opened(kind) as engine:
        out = engine.step({"s": feed(pieces(array), range(n), 1)}, time=1)
        assert bag(out["rows"], "k", "v") == Counter({(str(k), v): 1 for k, v in enumerate(expected)})
        groups = Counter({(v, str(many)): 1 for v, many in Counter(expected).items()})
        if "union" not in kind:  # Python does not tell apart the nulls of two children
            assert bag(out["values"], "v", "n") == groups
        again = engine.step({"s": feed(array, range(n), 2).to_batches()[0].slice(1)}, time=2)
        assert again.verdicts["noop"] == n - 1 and not again["rows"].num_rows
        for step in range(70):  # enough small batches that they are merged
            engine.step({"s": feed(array.slice(step % n, 1), range(100 + step, 101 + step), 1)}, time=3 + step)
        engine._check_invariants()
        assert engine.stats()["arrangements"]["s"]["copied"] > 0
        kept = {(str(k), v) for k, v in enumerate(expected)}
        kept |= {(str(100 + step), expected[step % n]) for step in range(70)}
        assert bag(engine.read("rows"), "k", "v") == Counter(kept)
        out = engine.step({"s": feed(array, range(n), 3, gone=True)}, time=200)
        assert bag(out["rows"], "k", "v") == Counter({(str(k), v): -1 for k, v in enumerate(expected)})
        for table in (*out.values(), engine.read("rows"), engine.read("values")):
            table.validate(full=True)
        assert engine.read("rows").num_rows == 70


@pytest.mark.drawn(16)
@pytest.mark.parametrize("kind", EVERY)
def test_a_value_that_changes_is_retracted_as_it_was_at_every_readable_time(kind: str) -> None:
    array, n = EVERY[kind], len(EVERY[kind])
    expected = [repr(canonical(value)) for value in array.to_pylist()]
    with opened(kind, retain=1000) as engine:
        total: Counter[Any] = Counter()
        for step in range(2 * n):
            out = engine.step({"s": feed(array.slice(step % n, 1), range(1), step)}, time=step)
            total.update(bag(out["rows"], "k", "v"))
            assert {row: many for row, many in total.items() if many} == {("0", expected[step % n]): 1}
        for step in range(2 * n):
            assert bag(engine.read("rows", step), "v") == {(expected[step % n],): 1}


@pytest.mark.parametrize("kind", FLAT)
def test_every_flat_type_can_be_a_key_and_an_order(kind: str) -> None:
    array, n = FLAT[kind], len(FLAT[kind])
    expected = [repr(canonical(value)) for value in array.to_pylist()]
    flow, schema = dd.Flow(), pa.schema({"v": array.type, "w": array.type, "n": pa.int64()})
    flow.output("rows", flow.upserts("s", schema, dd.Upsert(["v", "n"], order_by="w", null_key="keep")))
    with flow.open(secret=SECRET) as engine:
        given = pa.table({"v": pieces(array), "w": array.take(pa.array([0] * n)), "n": pa.array([7] * n)})
        for time in range(40):
            engine.step({"s": given}, time=time)
        engine._check_invariants()
        assert bag(engine.read("rows"), "v") == Counter({(v,): 1 for v in expected})
    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", schema, dd.Upsert("n", order_by=["v"])))
    for order in (list(range(n)), list(range(n))[::-1]):
        with flow.open(secret=SECRET) as engine:
            for time, i in enumerate(order):
                engine.step({"s": pa.table({"v": array.slice(i, 1), "w": array.slice(i, 1), "n": [1]})}, time=time)
            last = max(range(n), key=lambda i: rank(canonical(array[i].as_py())))
            assert bag(engine.read("rows"), "v") == {(expected[last],): 1}


def test_a_column_of_nulls_is_refused_when_the_flow_is_built_and_taken_in_a_batch() -> None:
    found = "the columns ['a', 'b'] are of the type null, which has no values; declare the types of their values"
    schema = pa.schema({"k": pa.int64(), "a": pa.null(), "b": pa.null()})
    ring = dd.Machine("m", {(0, "x"): 1}, on="a", start=0)
    inputs: list[Callable[[dd.Flow], Any]] = [
        lambda flow: flow.upserts("s", schema, dd.Upsert("k")),
        lambda flow: flow.upserts("s", schema, dd.Upsert("a")),
        lambda flow: flow.machine("s", schema, dd.Upsert("k"), ring),
    ]
    for make in inputs:
        with pytest.raises(dd.errors.SpecError) as error:
            make(dd.Flow())
        assert found in str(error.value)
    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", {"k": pa.int64(), "a": pa.string()}, dd.Upsert("k")))
    with flow.open() as engine:
        out = engine.step({"s": pa.table({"k": [1], "a": pa.nulls(1)})}, time=1)["rows"]
        assert out.select(["k", "a"]).to_pylist() == [{"k": 1, "a": None}]


def test_a_uuid_key_is_taken_as_its_16_bytes(tmp_path: Path) -> None:
    ids = [UUID(int=i * 2**100 + i) for i in range(4)]
    plain = pa.array([each.bytes for each in ids], pa.binary(16))
    flow, bare = dd.Flow(), dd.Flow()
    for each, kind in ((flow, pa.uuid()), (bare, pa.binary(16))):
        rows = each.upserts("s", {"id": kind, "n": pa.int64()}, dd.Upsert("id"))
        each.output("rows", rows)
        each.output("keys", rows.project(["id"]).to_upserts("id"))
    for state in (None, tmp_path / "state"):
        with flow.open(state, secret=SECRET) as engine, bare.open(secret=SECRET) as other:
            for time, given in enumerate((plain, plain.cast(pa.uuid()), plain)):
                table = pa.table({"id": given, "n": [time, 5, time, 5]})
                out, same = (each.step({"s": table}, time)["rows"] for each in (engine, other))
                assert out["id"].type == pa.uuid() and out["id"].cast(pa.binary(16)).equals(same["id"])
                assert out.drop_columns("id").equals(same.drop_columns("id"))
            assert set(engine.read("keys")["id"].to_pylist()) == set(ids)
            assert engine.why("s", ids[2]).row == {"id": ids[2], "n": 2}
    with flow.open(tmp_path / "state") as engine:
        gone = engine.replace("s", pa.table({"id": plain.slice(1), "n": [5, 2, 5]}), time=9)["rows"]
        assert gone.select(["id", "_diff"]).to_pylist() == [{"id": ids[0], "_diff": -1}]
    with raises(dd.errors.SchemaMismatch):
        bare.open().step({"s": pa.table({"id": list(map(str, ids))})}, 0)


def test_canonical_equality_decides_what_is_a_change_and_what_is_one_key() -> None:
    nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", {"f": pa.float64(), "v": pa.float64()}, dd.Upsert("f")))
    with flow.open() as engine:
        engine.step({"s": pa.table({"f": [0.0, nan[0]], "v": [nan[0], 0.0]})}, time=1)
        out = engine.step({"s": pa.table({"f": [-0.0, nan[1]], "v": [nan[1], -0.0]})}, time=2)
        assert str(out.verdicts) == "noop 2" and engine.read("rows").num_rows == 2


ROWS = [{"k": i, "v": f"value {i}" if i % 3 else None} for i in range(40)]
PLAIN_TABLE = pa.Table.from_pylist(ROWS)
LONGER = pa.concat_tables([PLAIN_TABLE.slice(37), PLAIN_TABLE, PLAIN_TABLE.slice(0, 5)]).combine_chunks()
INPUTS = {
    "a slice at an odd offset": LONGER.slice(3, 40),
    "a record batch": LONGER.slice(3, 40).to_batches()[0],
    "many chunks": pa.concat_tables([PLAIN_TABLE.slice(i, 7) for i in range(0, 40, 7)] + [PLAIN_TABLE.slice(0, 0)]),
    "batches": PLAIN_TABLE.to_batches(max_chunksize=9) + PLAIN_TABLE.slice(0, 0).to_batches(),
    "a reader": lambda: pa.RecordBatchReader.from_batches(PLAIN_TABLE.schema, PLAIN_TABLE.to_batches(max_chunksize=9)),
    "columns in another order": PLAIN_TABLE.select(["v", "k"]),
    "a dictionary": PLAIN_TABLE.set_column(1, "v", PLAIN_TABLE["v"].dictionary_encode()),
    "narrow integers": PLAIN_TABLE.set_column(0, "k", PLAIN_TABLE["k"].cast(pa.uint8())),
    "polars": pl.DataFrame(ROWS),
    "polars, lazily sliced": pl.DataFrame([*ROWS[:3], *ROWS]).slice(3),
    "duckdb": lambda: duckdb.sql("select i as k, if(i % 3 = 0, null, 'value ' || i) as v from range(40) t(i)"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_it_does_not_matter_who_brings_the_rows_or_how_they_lie_in_memory(name: str) -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", {"k": pa.int64(), "v": pa.string()}, dd.Upsert("k")))
    with flow.open() as engine:
        given = INPUTS[name]
        out = engine.step({"s": given() if callable(given) else given}, time=1)
        assert out.verdicts["applied"] == 40
        assert sorted(out["rows"].select(["k", "v"]).to_pylist(), key=lambda row: row["k"]) == ROWS


def test_nothing_comes_of_nothing() -> None:
    flow = dd.Flow()
    input = flow.upserts("s", {"k": pa.int64(), "v": pa.list_(pa.string())}, dd.Upsert("k"))
    flow.output("rows", input)
    flow.output("n", input.count(by=[]))
    empty = pa.table({"k": pa.array([], pa.int64())})
    with flow.open(verdicts="rows") as engine:
        nothing = [
            {},
            {"s": empty},
            {"s": []},
            {"s": empty.to_reader()},
            {"s": pl.DataFrame({"k": []}, {"k": pl.Int64})},
        ]
        for time, inputs in enumerate(nothing):
            out = engine.step(inputs, time=time)
            assert [table.num_rows for table in out.values()] == [0, 0] and out.verdicts.total == 0
            assert out["rows"].schema.names == ["k", "v", "_time", "_diff"]
        assert engine.frontier == len(nothing) and engine.read("n").num_rows == 0
        engine._check_invariants()


def test_a_megabyte_in_one_value_and_none_in_the_next() -> None:
    flow, long = dd.Flow(), "x" * (1 << 20)
    flow.output("rows", flow.upserts("s", {"k": pa.string(), "v": pa.string()}, dd.Upsert("k")))
    with flow.open() as engine:
        engine.step({"s": pa.table({"k": [long, "", long + "y"], "v": ["", long, None]})}, time=1)
        out = engine.step({"s": pa.table({"k": ["", long], "v": [None, ""]})}, time=2)
        assert bag(out["rows"], "k", "v") == {(repr(""), repr(long)): -1, (repr(""), "None"): 1}
        assert out.verdicts["noop"] == 1


@pytest.mark.parametrize("columns", [{"one": "1"}, {"n": "cast(null as int)"}])
def test_a_projection_to_constants_keeps_its_rows(columns: dict[str, str]) -> None:
    flow = dd.Flow()
    input = flow.upserts("s", {"k": pa.int64(), "v": pa.string()}, dd.Upsert("k"))
    flow.output("constant", input.project(columns))
    flow.output("counted", input.project(columns).count())
    flow.output("passed", input.filter("1 = 1").count(by=[]))
    flow.output("negated", input.project(columns).negate().count(by=[], name="less"))
    with flow.open() as engine:
        out = engine.step({"s": pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]})}, time=1)
        assert out["constant"]["_diff"].to_pylist() == [3]
        assert out["counted"]["count"].to_pylist() == out["passed"]["count"].to_pylist() == [3]
        assert out["negated"]["less"].to_pylist() == [-3]
        for name in flow.outputs:
            columns_of = flow.outputs[name].schema.names
            assert engine.read(name).select(columns_of).to_pylist() == out[name].select(columns_of).to_pylist()


def test_collections_that_differ_in_what_may_be_null_can_be_concatenated() -> None:
    flow = dd.Flow()
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    input = flow.upserts("s", schema, dd.Upsert("k"))
    both = input.project({"x": "k"}).concat(input.project({"x": "v"}))
    flow.output("both", both)
    flow.output("counted", both.count())
    with flow.open() as engine:
        out = engine.step({"s": pa.table({"k": [1, 2], "v": [2, None]})}, time=1)
        assert bag(out["both"], "x") == {("1",): 1, ("2",): 2, ("None",): 1}
        assert bag(engine.read("counted"), "x", "count") == {("1", "1"): 1, ("2", "2"): 1, ("None", "1"): 1}


@pytest.mark.parametrize("seq", [None, "offset"])
def test_a_verdict_finds_its_event_by_its_arrival_also_where_a_column_is_the_sequence(seq: str | None) -> None:
    flow, store = dd.Flow(), MemoryStore()
    columns = {"k": pa.int64(), "at": pa.int64(), "offset": pa.int64()}
    spec = dd.Upsert("k", order_by="at", seq=seq, null_key="drop")
    flow.output("rows", flow.upserts("s", columns, spec))
    # Two topics have offsets of their own, so a number stands for several events; and null stands for none.
    steps = [
        [(1, 5, 0), (2, 5, 0), (1, 5, 1), (None, 5, 1), (2, 4, None)],
        [(3, 1, 0), (2, 4, 1), (1, 5, 1)],
        [(3, 0, 7), (None, 0, 7)],
    ]
    verdicts = [
        ["tie_lost", "applied", "applied", "bad", "superseded"],
        ["applied", "stale", "noop"],
        ["stale", "bad"],
    ]
    given: list[tuple[int | None, int, int | None]] = []
    for time, (events, expected) in enumerate(zip(steps, verdicts, strict=True)):
        first, given = len(given), given + events
        with flow.open(store.reopen() if time else store, verdicts="rows") as engine:
            table = pa.table(dict(zip(columns, map(list, zip(*events, strict=True)), strict=True)), pa.schema(columns))
            rows = (engine.step({"s": table}, time).verdicts.rows or {})["s"].to_pylist()
        assert sorted(row["_arrival"] for row in rows) == list(range(first, len(given)))
        for row in rows:
            k, _, offset = given[row["_arrival"]]
            assert (row["k"], row["seq"]) == (k, row["_arrival"] if seq is None else offset)
            assert row["verdict"] == expected[row["_arrival"] - first], row
