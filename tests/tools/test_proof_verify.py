"""Test verify: an honest state agrees with its log, a planted wrong row is named, and undecidable keys are reported."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from messages import raises
from proof_case import EPOCH, HELD, SCHEMA, WIDE, events, feed, lie, plan, rewritten

import ddflow as dd
from ddflow.columns.hashing import Secret, compute_identities
from ddflow.plan.inputs.bind import bind_upserts
from ddflow.storage.memory import MemoryStore
from ddflow.tools.verify import HashedRows, align_ranges
from ddflow.trace.arrangement import Arrangement

SPECS = {
    "epoch": EPOCH,
    "held": HELD,
    "wide": WIDE,
    "arrival": dd.Upsert(key="id", delete=dd.tombstone("gone")),
    "greatest": dd.Upsert(key="city", order_by="at", tie="greatest", null_key="drop"),
    "text": dd.Upsert(key="id", order_by=["city", "at"], tie="first", delete="gone and at > 20"),
    "where": dd.Upsert(key="id", order_by="at", where="city = 'Bern'"),
}


def compared(store: Any, log: Any, **options: Any) -> Any:
    return dd.verify(store, {"orders": log}, **options).inputs["orders"]


@pytest.mark.drawn(5)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("memory", [None, "16MB"])
def test_an_honest_state_agrees_with_its_log(spec: str, memory: str | None) -> None:
    steps = events(1, 8)
    store = MemoryStore()
    feed(store, steps, SPECS[spec], memory=memory)
    for log in (steps, pa.concat_tables(steps), pa.concat_tables(steps).to_reader(7)):
        found = dd.verify(store, {"orders": log}, memory=memory)
        assert found.ok, str(found)
        of = found.inputs["orders"]
        assert (of.events, of.rows, of.first) == (96, dd.read(store, "orders").num_rows, [])
        assert list(found.operators.values()) == [0]
    assert "agrees with its log" in str(found) and found.to_dict()["ok"]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("spec", ["epoch", "held", "wide", "text"])
def test_a_planted_event_is_found_and_its_key_named(spec: str) -> None:
    """The log has one event other than the state: wherever that changes the collection, exactly that is told."""
    steps = events(2, 8)
    held = SPECS[spec].holds_back
    store, rng, told = MemoryStore(), random.Random(2), 0
    feed(store, steps, SPECS[spec])
    if held:
        with plan(SPECS[spec]).open(store.reopen()) as engine:
            engine.advance_to(dd.CLOSED)
    right = rows_of(dd.merge_on_read(steps, SPECS[spec], SCHEMA))
    for _ in range(30):
        step, row = rng.randrange(8), rng.randrange(12)
        changed = list(steps)
        column = rng.choice(["city", "gone"])
        value = "Genf" if column == "city" else not steps[step]["gone"][row].as_py()
        values = steps[step][column].to_pylist()
        values[row] = value
        place = SCHEMA.get_field_index(column)
        changed[step] = steps[step].set_column(place, SCHEMA.field(place), [pa.array(values, SCHEMA.field(place).type)])
        wrong = rows_of(dd.merge_on_read(changed, SPECS[spec], SCHEMA))
        found = compared(store, changed)
        names = SPECS[spec].key
        ours, theirs = ({tuple(row[n] for n in names): row for row in rows} for rows in (right, wrong))
        expected = {
            (what, key)
            for key in ours | theirs
            for what in ["missing" if key not in ours else "extra" if key not in theirs else "different"]
            if ours.get(key) != theirs.get(key)
        }
        assert {(d.what, tuple(d.key.values())) for d in found.first} == expected
        assert all(d.state == ours.get(tuple(d.key.values())) for d in found.first)
        assert all(d.log == theirs.get(tuple(d.key.values())) for d in found.first)
        assert found.missing + found.extra + found.different == len(expected) and found.ok == (not expected)
        told += bool(expected)
    assert told > 3


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return table.to_pylist()


@pytest.mark.parametrize("memory", ["16MB", "1GB"])
def test_a_state_larger_than_its_budget_is_compared_range_by_range(memory: str) -> None:
    n, rng = 120_000, np.random.default_rng(3)
    schema = {"id": pa.string(), "n": pa.int64()}
    flow = dd.Flow()
    rows = flow.upserts("orders", schema, dd.Upsert(key="id", order_by="n"))
    flow.output("sums", rows.count(["n"]))
    ids = pc.cast(pa.array(rng.permutation(n)), pa.string())
    log = pa.table({"id": ids, "n": pa.array(np.arange(n) % 1000)})
    store, seen = MemoryStore(), list[int]()
    with flow.open(store, memory="16MB") as engine:
        for i in range(4):
            engine.step({"orders": log.slice(i * n // 4, n // 4)}, time=i)
    found = dd.verify(store, {"orders": log.to_reader(5000)}, memory=memory, look=seen.append)
    assert found.ok and found.inputs["orders"].rows == n, str(found)
    assert sum(seen) == n and len(seen) == n // 5000
    wrong = log.slice(0, n - 3)
    found = dd.verify(store, {"orders": wrong.to_reader(5000)}, memory=memory)
    assert (found.inputs["orders"].extra, found.inputs["orders"].missing) == (3, 0)
    assert {d.key["id"] for d in found.inputs["orders"].first} == set(ids[n - 3 :].to_pylist())


def test_ten_differences_are_named_and_all_are_counted() -> None:
    store, log = (
        MemoryStore(),
        pa.table({"id": range(50), "city": ["Bern"] * 50}, schema=SCHEMA.empty_table().select(["id", "city"]).schema),
    )
    feed(store, [log])
    found = compared(store, log.slice(0, 5))
    assert (found.extra, len(found.first)) == (45, 10)
    assert "45 extra" in found.text and found.text.count("extra (") == 10


def test_events_at_or_after_the_frontier_are_pending_and_not_missing() -> None:
    steps, store = events(4, 3), MemoryStore()
    with plan(HELD).open(store) as engine:
        for step in steps:
            engine.push({"orders": step})
        engine.advance_to(20)
        later = sum(pc.sum(pc.greater_equal(step["at"], 20)).as_py() for step in steps)
    found = compared(store, steps)
    assert found.ok and found.later == found.pending == later > 5
    assert any(f"the log has {later}, and {later} are pending" in note for note in found.notes)
    more = compared(store, [*steps, pa.table({"id": [1], "at": [30]})])
    assert not more.ok and not more.first and (more.later, more.pending) == (later + 1, later)
    assert f"{later} events are pending, but the log has {later + 1}" in more.text


def test_keys_with_an_advanced_event_pending_are_not_compared() -> None:
    spec = dd.Upsert(key="id", time="at", late="advance", delete=dd.tombstone("gone"))
    first, late = (
        pa.table({"id": [1, 2], "city": ["a", "b"], "at": [1, 1]}),
        pa.table({"id": [1], "city": ["c"], "at": [2]}),
    )
    store = MemoryStore()
    with plan(spec).open(store) as engine:
        engine.push({"orders": first})
        engine.advance_to(5)
        engine.push({"orders": late})  # stamped 5, which is not closed yet
    found = compared(store, [first, late])
    assert found.ok and found.unknown == 1 and found.pending == 0
    assert any("1 keys have an advanced late event that is pending" in note for note in found.notes)
    with plan(spec).open(store.reopen()) as engine:
        engine.advance_to(6)
    found = compared(store, [first, late])
    assert found.ok and found.unknown == 0 and found.rows == 2


def test_what_no_log_can_tell_is_noted() -> None:
    spec = dd.Upsert(key="id", time="at", late="drop", noop_ignore=["city"], delete=dd.tombstone("gone"))
    store = MemoryStore()
    with plan(spec).open(store) as engine:
        engine.push({"orders": pa.table({"id": [1], "city": ["a"], "at": [1]})})
        engine.advance_to(5)
        engine.push({"orders": pa.table({"id": [2], "city": ["b"], "at": [2]})})
        engine.advance_to(6)
    found = compared(store, pa.table({"id": [1, 2], "city": ["x", "b"], "at": [1, 2]}))
    assert (found.missing, found.different) == (1, 0)
    assert any("refused 1 late events" in note for note in found.notes)
    assert any("['city'] do not count as changes" in note for note in found.notes)
    found = compared(store, pa.table({"id": [1], "at": [1]}))
    assert found.ok and "the state has ingested 2 events, but the log has 1" in found.notes


def test_only_what_is_tracked_is_compared() -> None:
    store = MemoryStore()
    with plan(dd.Upsert(key="id", order_by="at", track=["at"], delete=dd.tombstone("gone"))).open(store) as engine:
        engine.step({"orders": pa.table({"id": [1, 2], "city": ["a", "b"], "at": [1, 1]})}, 1)
    found = compared(store, pa.table({"id": [1, 2], "city": ["x", "y"], "at": [1, 2]}))
    assert (found.missing, found.different) == (0, 1)
    assert "only the columns ['at'] count as changes, so only these are compared" in found.notes


def test_a_row_that_a_lie_put_into_the_state_is_found() -> None:
    """Its checksums and hashes are right: only the log can tell."""
    store, steps = MemoryStore(), events(5, 1)
    feed(store, steps)
    before = compared(store, steps)
    assert before.ok

    def tell(inventory: Any) -> None:
        batch = inventory["inputs"]["orders"]["rows"]["items"][0]["batches"][0]
        batch["file"] = rewritten(
            store,
            batch["file"],
            lambda t: t.set_column(t.schema.get_field_index("at"), t.schema.field("at"), pc.add(t["at"], 1)),
        )

    lie(store, tell)
    found = compared(store, steps)
    assert found.different == found.rows == before.rows


def test_a_count_that_is_not_that_of_its_rows_is_found() -> None:
    store, steps = MemoryStore(), events(6, 1)
    feed(store, steps)

    def tell(inventory: Any) -> None:
        batch = next(iter(inventory["operators"].values()))["arrangements"][0]["items"][0]["batches"][0]
        batch["file"] = rewritten(
            store,
            batch["file"],
            lambda t: t.set_column(t.schema.get_field_index("count"), t.schema.field("count"), pc.add(t["count"], 1)),
        )

    lie(store, tell)
    found = dd.verify(store, {"orders": steps})
    wrong = dd.read(store, "by_city").num_rows
    assert not found.ok and found.inputs["orders"].ok
    assert list(found.operators.values()) == [wrong] and f"{wrong} rows are WRONG" in str(found)


def test_rows_out_of_place_are_a_corrupt_state() -> None:
    store, steps = MemoryStore(), events(7, 1)
    feed(store, steps)

    def tell(inventory: Any) -> None:
        batch = inventory["inputs"]["orders"]["rows"]["items"][0]["batches"][0]
        batch["file"] = rewritten(
            store,
            batch["file"],
            lambda t: t.set_column(
                t.schema.get_field_index("id"), t.schema.field("id"), t["id"].take(list(reversed(range(t.num_rows))))
            ),
        )

    lie(store, tell)
    with pytest.raises(dd.errors.CorruptState, match="not in the place of its key"):
        compared(store, steps)


def test_an_input_that_is_not_there_is_refused() -> None:
    store = MemoryStore()
    feed(store, events(8, 1))
    with raises(dd.errors.NotReadable):
        dd.verify(store, {"order": []})
    with pytest.raises(dd.errors.NotArrow):
        dd.verify(store, {"orders": 7})


@pytest.mark.drawn(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("wide", [False, True])
def test_sides_that_are_cut_anywhere_are_told_apart_as_dictionaries_are(
    seed: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, secret = random.Random(seed), Secret(seed, 7)
    key = ["k", "l"] if wide else ["k"]
    flow, schema = dd.Flow(), pa.schema({"k": pa.int64(), "l": pa.string(), "v": pa.int64()})
    bound = flow.upserts("v", schema, dd.Upsert(key=key)).bound
    flow.output("v", flow.inputs["v"])
    monkeypatch.setattr("ddflow.tools.verify.PIECE", rng.choice([1, 3, 20, 1000]))
    keys = [(k, str(k % 2)) for k in rng.sample(range(100), 60)]
    sides = [{key: rng.randrange(3) for key in rng.sample(keys, rng.randrange(61))} for _ in range(2)]

    def held(side: dict[tuple[int, str], int]) -> Arrangement:
        rows = [{"k": k, "l": x, "v": v} for (k, x), v in side.items()]
        engine = flow.open(secret=secret)
        for time, at in enumerate(sorted({0, len(rows) // 2, rng.randrange(len(rows) + 1)})):
            engine.step({"v": pa.Table.from_pylist(rows[at:], bound.schema)}, time)
        return engine.dataflow.graph.inputs["v"].output_arrangement

    found = {"extra": set[int](), "missing": set[int](), "same": set[int](), "different": set[int]()}
    for one, other in align_ranges(held(sides[0]), held(sides[1]), bound, secret):
        extra, missing, ours, theirs = one.match_keys(other)
        found["extra"] |= set(one.table["k"].take(pa.array(extra)).to_pylist())
        found["missing"] |= set(other.table["k"].take(pa.array(missing)).to_pylist())
        same = one.value[ours] == other.value[theirs]
        found["same"] |= set(one.table["k"].take(pa.array(ours[same])).to_pylist())
        found["different"] |= set(one.table["k"].take(pa.array(ours[~same])).to_pylist())
    a, b = ({k: v for (k, _), v in side.items()} for side in sides)
    assert found == {
        "extra": a.keys() - b.keys(),
        "missing": b.keys() - a.keys(),
        "same": {k for k in a.keys() & b.keys() if a[k] == b[k]},
        "different": {k for k in a.keys() & b.keys() if a[k] != b[k]},
    }, f"seed {seed}"


@pytest.mark.parametrize("again", [0, 2])
def test_rows_out_of_place_or_of_another_range_are_a_corrupt_state(again: int) -> None:
    secret, bound = Secret(1, 7), bind_upserts("v", pa.schema({"k": pa.int64(), "v": pa.int64()}), dd.Upsert(key="k"))
    table = pa.table({"k": range(4), "v": range(4)}, bound.schema)
    table = table.take(pa.array(np.argsort(compute_identities(table.select(["k"]), secret, 4)[0])))
    high = HashedRows.of_range(table, bound, secret, 0, 2**64 - 1).high.tolist()
    assert len(high) == 4 and HashedRows.of_range(table, bound, secret, high[0], high[-1]).high.tolist() == high
    wrong = pa.concat_tables([table.slice(0, 3), table.slice(again, 1)])
    for bad, begin, end in ((wrong, 0, 2**64 - 1), (table, high[0] + 1, high[-1]), (table, high[0], high[-1] - 1)):
        with pytest.raises(dd.errors.CorruptState, match="not in the place of its key"):
            HashedRows.of_range(bad, bound, secret, begin, end)


def test_a_null_key_and_zero_are_two_keys() -> None:
    """The first words of their identities are the same."""
    spec = dd.Upsert(key="id", order_by="at", null_key="keep", delete=dd.tombstone("gone"))
    store, log = MemoryStore(), pa.table({"id": pa.array([None], pa.int64()), "city": ["a"], "at": [1]})
    feed(store, [log], spec)
    assert compared(store, log).ok
    found = compared(store, pa.table({"id": [0], "city": ["a"], "at": [1]}))
    assert (found.missing, found.extra, found.different) == (1, 1, 0)
