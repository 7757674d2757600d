"""Test why: versions equal reads at their times, verdicts equal those of the engine, and the text is readable."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from proof_case import EPOCH, HELD, WIDE, events, feed, plan

import ddflow as dd
from ddflow.engine.lineage.log_parts import Full
from ddflow.engine.lineage.story import Story
from ddflow.storage.memory import MemoryStore

TEXT = dd.Upsert(key="id", order_by=["city", "at"], delete=dd.tombstone("gone"))
SEQ = dd.Upsert(key="id", order_by="city", seq="at", tie="first", delete=dd.tombstone("gone"))
IGNORES = dd.Upsert(key="id", order_by="at", noop_ignore=["at"], delete=dd.tombstone("gone"))
SPECS = {"epoch": EPOCH, "wide": WIDE, "text": TEXT, "seq": SEQ, "ignores": IGNORES}
NAMES = ["what", "_time", "verdict"]


def why_of(state: Any, input: str, key: Any, log: Any = None) -> Story:
    """A key's story, of a state that nobody has open."""
    with dd.Snapshot.open(state) as snapshot:
        return snapshot.why(input, key, log)


def told(story: Story, what: str) -> list[dict[str, Any]]:
    return [row for row in story.table.to_pylist() if row["what"] == what]


def holding(rows: pa.Table, key: dict[str, Any]) -> dict[str, Any] | None:
    found = [row for row in rows.drop_columns(["_diff"]).to_pylist() if all(row[n] == v for n, v in key.items())]
    assert len(found) < 2
    return found[0] if found else None


@pytest.mark.drawn(6)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("memory", [None, "16MB"])
def test_versions_are_what_reads_give_and_verdicts_what_the_engine_gave(spec: str, memory: str | None) -> None:
    steps, store, listed = events(11, 8), MemoryStore(), []
    with plan(SPECS[spec]).open(store, retain=1000, verdicts="rows", memory=memory) as engine:
        for time, step in enumerate(steps, 1):
            rows = engine.step({"orders": step}, time).verdicts.rows
            assert rows is not None
            listed += rows["orders"].to_pylist()
        keys = {tuple(row[n] for n in SPECS[spec].key): None for step in steps for row in step.to_pylist()}
        stories = {key: engine.why("orders", key if len(key) > 1 else key[0], steps) for key in keys}
        for key, story in stories.items():
            of = dict(zip(SPECS[spec].key, key, strict=True))
            _check(engine, story, of, steps, [row for row in listed if all(row[n] == v for n, v in of.items())])
    assert sum(len(told(story, "event")) for story in stories.values()) == 96
    with dd.Snapshot.open(store) as snapshot:
        for key, story in stories.items():
            again = snapshot.why("orders", dict(zip(SPECS[spec].key, key, strict=True)), steps)
            assert again.table == story.table and str(again) == str(story)


def _check(engine: dd.Engine, story: Story, key: dict[str, Any], steps: list[pa.Table], listed: list[Any]) -> None:
    versions = [row for row in story.table.to_pylist() if row["what"] in ("held", "deleted")]
    # What a deletion came with is no row, but for its key.
    gone = [row for row in versions if row["what"] == "deleted"]
    assert all(row[name] == key.get(name) for row in gone for name in ("id", "city", "at")), gone
    now = None
    for time in range(1, 9):
        now = next((row for row in reversed(versions) if row["_time"] <= time), None)
        held = holding(engine.read("orders", as_of=time), key)
        assert (now is not None and now["what"] == "held") == (held is not None), (key, time, versions)
        if held is not None:
            assert now is not None and {name: now[name] for name in held} == held
    assert story.row == holding(engine.read("orders"), key)
    found = told(story, "event")
    assert [row["verdict"] for row in found] == [row["verdict"] for row in listed], key
    assert [row["_time"] for row in found] == [row["_time"] for row in listed]
    winners = [name for name in story.table.column_names if name.startswith("winner_")]
    assert [[row[n] for n in winners] for row in found] == [[row[n] for n in winners] for row in listed]
    given = [row for step in steps for row in step.to_pylist()]
    assert all({n: row[n] for n in given[0]} == given[row["seq"]] for row in found)


def test_in_hold_back_mode_pending_events_are_told_and_times_are_their_own() -> None:
    steps, store = events(12, 4), MemoryStore()
    with plan(HELD).open(store, retain=1000, verdicts="rows") as engine:
        for step in steps:
            engine.push({"orders": step})
        done = engine.advance_to(25)
        assert done.verdicts.rows is not None
        listed, pending = done.verdicts.rows["orders"].to_pylist(), 0
        for key in range(9):
            story = engine.why("orders", key, steps)
            mine = sorted((row["_time"], row["verdict"]) for row in listed if row["id"] == key)
            found = sorted((row["_time"], row["verdict"]) for row in told(story, "event"))
            waits = [(row["_time"], "pending") for row in told(story, "pending")]
            assert found == sorted(mine + waits), key
            assert all(time >= 25 for time, _ in waits)
            pending += len(waits)
            for time in range(25):
                held = holding(engine.read("orders", as_of=time), {"id": key})
                now = [
                    row
                    for row in story.table.to_pylist()
                    if row["what"] in ("held", "deleted") and row["_time"] <= time
                ]
                assert (None if held is None else held["city"]) == (
                    now[-1]["city"] if now and now[-1]["what"] == "held" else None
                )
        assert pending == engine.verdicts.pending > 3
    waiting = [key for key in range(9) if told(why_of(store, "orders", key), "pending")]
    assert waiting and all("pending, for " in str(why_of(store, "orders", key)) for key in waiting)


def test_where_times_are_days_events_say_their_part_of_the_log() -> None:
    log = [pa.table({"id": [7], "city": [city], "at": [at]}) for city, at in (("Bern", 5), ("Basel", 3))]
    log.append(pa.table({"id": [8], "city": ["Chur"], "at": [6]}))
    made = dd.Flow()
    spec = dd.Upsert(key="id", order_by="at")
    made.output("out", made.upserts("orders", {"id": int, "city": str, "at": int}, spec))
    with made.open() as engine:
        engine.step({"orders": log[0]}, date(2026, 11, 1))
        engine.step({"orders": log[1]}, date(2026, 11, 3))
        engine.replace("orders", log[2], time=date(2026, 11, 4))
        story = engine.why("orders", 7, [log[0], log[1], Full(log[2])])
    assert str(story).splitlines()[-4:] == [
        "its 2 events in the log (in the order of the parts of the log)",
        "  in part 1: applied (id=7, city='Bern', at=5)",
        "  in part 2: stale (id=7, city='Basel', at=3); the key held order (at=5)",
        "  in part 3: deleted: full contents lack it, by order (at=6)",
    ]
    rows = story.table.filter(pc.field("verdict").is_valid()).to_pylist()
    assert [(row["_time"], row["_part"]) for row in rows] == [(None, 1), (None, 2), (None, 3)]


def test_a_story_as_people_read_it() -> None:
    log = [
        pa.table({"id": [7, 7], "city": ["Bern", "Chur"], "at": [5, 5], "gone": [False, False]}),
        pa.table({"id": [7], "city": ["Basel"], "at": [3], "gone": [False]}),
        pa.table(
            {"id": [7], "city": [None], "at": [9], "gone": [True]},
            schema=pa.schema({"id": pa.int64(), "city": pa.string(), "at": pa.int64(), "gone": pa.bool_()}),
        ),
        pa.table({"id": [7], "city": ["Genf"], "at": [8], "gone": [False]}),
    ]
    store = MemoryStore()
    feed(store, log, retain=1)
    assert str(why_of(store, "orders", 7, log)).splitlines() == [
        "the key (id=7) of 'orders' holds nothing",
        "  earlier, from 1: (id=7, city='Chur', at=5), by order (at=5)",
        "  from 3 or before: deleted, by order (at=9)",
        "its 5 events in the log (times are replay epochs, one for each part of the log)",
        "  at 1: tie_lost (id=7, city='Bern', at=5, gone=False); the key held order (at=5)",
        "  at 1: applied (id=7, city='Chur', at=5, gone=False)",
        "  at 2: stale (id=7, city='Basel', at=3, gone=False); the key held order (at=5)",
        "  at 3: applied (id=7, city=null, at=9, gone=True)",
        "  at 4: stale (id=7, city='Genf', at=8, gone=False); the key held order (at=9)",
    ]
    story = why_of(store, "orders", {"id": 8})
    assert str(story) == "the key (id=8) of 'orders' holds nothing" and story.table.num_rows == 0
    assert why_of(store, "orders", 7, log).to_dict()["row"] is None


def test_the_log_may_be_one_table_which_is_one_epoch() -> None:
    steps, store = events(13, 3), MemoryStore()
    feed(store, [pa.concat_tables(steps)])
    with plan().open(MemoryStore(), verdicts="rows") as engine:
        rows = engine.step({"orders": pa.concat_tables(steps)}, time=1).verdicts.rows
    assert rows is not None
    for key in range(9):
        found = told(why_of(store, "orders", key, pa.concat_tables(steps)), "event")
        assert [row["verdict"] for row in found] == [r["verdict"] for r in rows["orders"].to_pylist() if r["id"] == key]


def test_state_that_was_merged_and_compacted_still_tells_its_winners() -> None:
    steps, store = events(14, 40), MemoryStore()
    feed(store, steps)
    with plan().open(store.reopen(), memory="16MB") as engine:
        for key in range(9):
            story = engine.why("orders", key)
            assert story.row == holding(engine.read("orders"), {"id": key})
            assert story.row is None or story.row["at"] == told(story, "held")[-1]["at"]


REFUSED: dict[str, Any] = {
    "the input 'order'": ("order", 1, "did you mean 'orders'?"),
    "a text": ("orders", "x", "'x' is not a valid int64"),
    "null": ("orders", None, "'id' is null"),
    "two values": ("orders", {"id": 1, "city": "Bern"}, "its columns are ['id']"),
    "another column": ("orders", {"idd": 1}, "its columns are ['id']"),
    "a half": ("orders", 1.5, "is not a valid int64"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_key_is_refused(what: str) -> None:
    input, key, found = REFUSED[what]
    store = MemoryStore()
    feed(store, events(15, 1))
    with pytest.raises(dd.errors.NotReadable) as caught:
        why_of(store, input, key)
    assert found in str(caught.value)


def test_a_null_key_and_zero_have_stories_of_their_own() -> None:
    """The first words of their identities are the same."""
    spec = dd.Upsert(key="id", order_by="at", null_key="keep", delete=dd.tombstone("gone"))
    store, log = MemoryStore(), pa.table({"id": [None, 0, None], "city": ["a", "b", "c"], "at": [1, 1, 2]})
    feed(store, [log.slice(0, 2), log.slice(2)], spec, retain=9)
    for key, cities in ((None, ["a", "c"]), (0, ["b"])):
        story = why_of(store, "orders", {"id": key}, log)
        assert [row["city"] for row in told(story, "held")] == cities
        assert [row["city"] for row in told(story, "event")] == cities
