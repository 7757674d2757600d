"""Test the record of how an input was fed: random histories of steps, full contents and restatements.

`verify`, `migrate` and `why` each fold the history again. A log that differs from the state's input is refused.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from chance import effort, mid_test
from hypothesis import example, given, strategies as st
from messages import raises
from proof_case import ARRIVAL, BERN, EPOCH, HELD, SCHEMA, WIDE, one, plan, replaced

import ddflow as dd
from ddflow.errors import LogUnclear, OutOfScope, SpecError, WrongMode
from ddflow.storage.feeding import EVENTS, FULL, FeedHistory, FeedMode, FeedRun
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.tools.fsck import fsck

SPECS = {
    "order": EPOCH,
    "arrival": ARRIVAL,
    "wide": WIDE,
    "text": dd.Upsert(key="id", order_by=["city", "at"], tie="first", delete=dd.tombstone("gone")),
    "seq": dd.Upsert(key="id", seq="at", delete=dd.tombstone("gone")),
    "sums": dd.Upsert(key="id", merge=dd.Merge({"at": dd.sum()}), delete=dd.tombstone("gone")),
}
Calls = list[tuple[str, list[dict[str, Any]], str | None, int | None]]
rows_of_a_call = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 4),
            "city": st.sampled_from(["Bern", "Chur", None]),
            "at": st.integers(0, 9),
            "gone": st.sampled_from([False, False, False, True]),
        }
    ),
    max_size=5,
)
calls = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "full", "full", "restated"]),
        rows_of_a_call,
        st.sampled_from([None, None, BERN]),
        st.none() | st.integers(0, 9),
    ),
    min_size=1,
    max_size=7,
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def orders(spec: dd.Upsert, at: int) -> dict[str, Any]:
    return {name: {"at": at, "city": "Bern"}[name] for name in (*spec.order_by, *([spec.seq] if spec.seq else []))}


def call(engine: dd.Engine, way: tuple[Any, ...], time: int) -> Any:
    """One call, if the engine takes it; the part of the log that it is, marked in full."""
    kind, rows, scope, at = way
    spec = engine.flow.inputs["orders"].spec
    ordered = bool(spec.order_by or spec.seq)
    order = orders(spec, 9 if at is None else at) if ordered and (at is not None or not rows) else None
    if kind == "step":
        engine.step({"orders": table(rows)}, time)
        return table(rows)
    if kind == "restated":
        engine.restate("orders", table(rows), time, order=order, allow_empty=True)
        return dd.Restated(table(rows), order)
    by = spec.key
    rows = [{**row, "gone": False} for row in {tuple(row[n] for n in by): row for row in rows}.values()]
    rows = [row for row in rows if scope is None or row["city"] == "Bern"]
    if ordered and not rows and order is None:
        order = orders(spec, 9)
    engine.replace("orders", table(rows), time, scope, order=order, allow_empty=True)
    return dd.Full(table(rows), scope, order)


def bare(part: Any) -> Any:
    return part.rows if isinstance(part, dd.Full | dd.Restated) else part


def recut(log: list[Any], chance: random.Random) -> list[Any]:
    """The same log with its events cut otherwise, and marks that leave what the state knows to the state."""
    out: list[Any] = []
    for part in log:
        if isinstance(part, dd.Full):
            out.append(dd.Full(part.rows, chance.choice([None, part.scope]), chance.choice([None, part.order])))
        elif isinstance(part, dd.Restated):
            out.append(dd.Restated(part.rows))
        elif out and isinstance(out[-1], pa.Table) and chance.random() < 0.5:
            out[-1] = pa.concat_tables([out[-1], part])
        else:
            at = chance.randrange(part.num_rows + 1)
            out += [part.slice(0, at), part.slice(at)]
    return out


def made(spec: dd.Upsert, ways: Calls, chance: random.Random, store: MemoryStore) -> list[Any]:
    """A state that was fed so, opened and committed now and then; its log, marked in full."""
    log: list[Any] = []
    engine = plan(spec).open(store, commit_every=None, retain=99)
    for time, way in enumerate(ways, 1):
        log.append(call(engine, way, time))
        if chance.random() < 0.6:
            engine.flush()
            if chance.random() < 0.4:
                engine.close()
                engine = plan(spec).open(store.reopen(), commit_every=None, retain=99)
    engine.flush()
    engine.close()
    return log


@mid_test
@effort(120)
@given(st.sampled_from(sorted(SPECS)), calls, st.integers(0, 2**32))
@example(
    "order",
    [
        ("step", [{"id": 1, "city": "Bern", "at": 5, "gone": False}], None, None),
        ("full", [{"id": 2, "city": "Bern", "at": 1, "gone": False}], None, 3),
        ("step", [{"id": 1, "city": "Chur", "at": 2, "gone": False}], None, None),
    ],
    0,
)
def test_a_history_is_told_as_it_was_fed(kind: str, ways: Calls, seed: int) -> None:
    spec, chance, store = SPECS[kind], random.Random(seed), MemoryStore()
    log = made(spec, ways, chance, store)
    assert fsck(store).ok
    held = dd.read(store, "orders").drop_columns(["_diff"])
    assert bag(dd.merge_on_read(log, spec, SCHEMA)) == bag(held)
    given_by_number, given_by_marks = [bare(part) for part in log], recut(log, chance)
    for each in (given_by_number, log, given_by_marks):
        found = dd.verify(store, {"orders": each})
        assert found.ok, str(found)
        done = dd.migrate(store, MemoryStore(), plan(spec), [{"orders": part} for part in each])
        assert [name for name, net in done.tables.items() if net.num_rows] == []
    stories_agree(store, spec, log, held)


def bag(rows: pa.Table) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows.to_pylist())


def stories_agree(store: MemoryStore, spec: dd.Upsert, log: list[Any], held: pa.Table) -> None:
    """What the last event that won, or the full contents that did not name the key, leave is what the state holds."""
    names = list(spec.key)
    keys = {tuple(row[n] for n in names) for part in log for row in bare(part).to_pylist()}
    now = {tuple(row[n] for n in names): row for row in held.to_pylist()}
    with dd.Snapshot.open(store) as snapshot:
        for key in keys:
            story = snapshot.why("orders", dict(zip(names, key, strict=True)), [bare(part) for part in log])
            assert story.row == now.get(key)
            told = [row for row in story.table.to_pylist() if row["what"] in ("event", "absent")]
            last = [row for row in told if row["verdict"] in ("applied", "absent")][-1:]
            holds = bool(last) and last[0]["what"] == "event" and not last[0]["gone"]
            assert holds == (key in now), str(story)
            if holds and kind_of_rows_is_whole(spec):
                assert {name: last[0][name] for name in names} == {name: now[key][name] for name in names}


def kind_of_rows_is_whole(spec: dd.Upsert) -> bool:
    return not spec.merge


def test_a_log_that_cannot_be_told_apart_is_refused_with_what_the_state_says() -> None:
    store = MemoryStore()
    a, b, c = replaced(store)
    for log in (
        [a, b],
        [a, b, c, c],
        pa.concat_tables([a, b, c]),
        [],
        [dd.Full(b)],
        [a, dd.Full(b)],
        [a, dd.Full(b), dd.Full(c), a],
        [a, a, dd.Full(b), a, dd.Full(c)],
        [dd.Full(c, BERN)],
        [dd.Full(a), dd.Full(b), dd.Full(c)],
        [a, dd.Full(b), dd.Full(c, "city = 'Chur'")],
        [a, dd.Restated(b), dd.Full(c)],
        [a, dd.Full(b, BERN), dd.Full(c)],
        [a, dd.Full(b), dd.Full(c), dd.Full(c)],
    ):
        tries = [
            lambda log=log: dd.verify(store, {"orders": log}),
            lambda log=log: dd.Snapshot.open(store).why("orders", 1, log),
        ]
        if isinstance(log, list):
            new = [{"orders": part} for part in log]
            tries.append(lambda new=new: dd.migrate(store, MemoryStore(), plan(ARRIVAL), new))
        for attempt in tries:
            with pytest.raises(LogUnclear) as error:
                attempt()
            assert "the state was fed events (epoch 1), full contents (epoch 2), full contents of the scope" in str(
                error.value
            )
    assert dd.verify(store, {"orders": [a, b, c]}).ok
    assert not dd.verify(store, {"orders": [a, b, one(1)]}).ok


def test_full_contents_bring_no_deleted_key_back_when_they_are_migrated() -> None:
    old, new = MemoryStore(), MemoryStore()
    log = replaced(old)
    flow = plan(dd.Upsert(key="id", order_by="at", delete=dd.tombstone("gone")))
    done = dd.migrate(old, new, flow, ({"orders": part} for part in log))
    assert dd.read(new, "orders")["id"].to_pylist() == [3] and not done.tables["orders"].num_rows
    found = load_newest_manifest(new)
    runs = (FeedRun(1, 1, 1, EVENTS), FeedRun(2, 2, 1, FeedMode(FULL)), FeedRun(3, 3, 1, FeedMode(FULL, BERN)))
    assert found is not None and found.fed == {"orders": FeedHistory(runs)}
    assert dd.verify(new, {"orders": log}).ok
    with raises(WrongMode):
        dd.migrate(old, MemoryStore(), plan(HELD), [{"orders": part} for part in log], whole=True)


def test_an_input_that_is_called_otherwise_is_the_only_one_there_is() -> None:
    old, flow = MemoryStore(), dd.Flow()
    log = replaced(old)
    flow.output("orders", flow.upserts("others", SCHEMA, ARRIVAL))
    done = dd.migrate(old, MemoryStore(), flow, [{"others": part} for part in log])
    assert done.tables["orders"].num_rows == 0
    with pytest.raises(LogUnclear):
        dd.migrate(old, MemoryStore(), flow, [{"others": part} for part in log[:2]])


def test_one_call_of_a_log_may_bring_events_and_full_contents_of_several_inputs() -> None:
    flow, old, new = dd.Flow(), MemoryStore(), MemoryStore()
    for name in ("a", "b", "c"):
        flow.output(f"{name}s", flow.upserts(name, SCHEMA, ARRIVAL))
    first, then = {"a": one(1, 2), "b": one(1), "c": one(5)}, {"a": one(2), "b": one(2), "c": one(6)}
    with flow.open(old, commit_every=None) as engine:
        engine.step(first, 1)
        engine.flush()
        engine.step({"b": then["b"]}, 2)
        engine.replace("a", then["a"], 3)
        engine.replace("c", then["c"], 4)
        engine.flush()
    done = dd.migrate(old, new, flow, [first, then])
    assert (done.epoch, done.last) == (2, 5) and not any(net.num_rows for net in done.tables.values())
    fed, again = load_newest_manifest(old), load_newest_manifest(new)
    assert fed is not None and again is not None and fed.fed == again.fed


def test_a_log_may_begin_with_full_contents_of_all() -> None:
    store = MemoryStore()
    a, b, c = replaced(store)
    assert dd.verify(store, {"orders": [dd.Full(b), dd.Full(c)]}).ok
    with plan(ARRIVAL).open(store.reopen()) as engine:
        engine.step({"orders": one(7)}, 4)
    assert dd.verify(store, {"orders": [dd.Full(b), dd.Full(c, BERN), one(7)]}).ok
    # Where deleted keys keep orders, those decide over events that come later.
    store = MemoryStore()
    a, b, c = replaced(store, EPOCH)
    assert dd.verify(store, {"orders": [dd.Full(b), dd.Full(c)]}).ok
    with plan(EPOCH).open(store.reopen()) as engine:
        engine.step({"orders": one(7)}, 4)
    with raises(LogUnclear):
        dd.verify(store, {"orders": [dd.Full(b), dd.Full(c), one(7)]})
    assert dd.verify(store, {"orders": [a, dd.Full(b), dd.Full(c), one(7)]}).ok


def test_a_story_names_the_full_contents_that_deleted_the_key() -> None:
    store = MemoryStore()
    log = replaced(store)
    lines = {key: str(dd.Snapshot.open(store).why("orders", key, log)).splitlines() for key in (1, 2, 3)}
    fed = "its input was fed events (epoch 1), full contents (epoch 2), full contents of the scope "
    fed += "\"city = 'Bern'\" (epoch 3)"
    assert lines[1][-4:] == [
        f"{fed}; full contents delete the keys that they lack",
        "its 1 event in the log (times are replay epochs, one for each part of the log)",
        "  at 1: applied (id=1, city='Bern', at=1, gone=False)",
        "  at 2: deleted: full contents lack it",
    ]
    assert lines[2][-1] == "  at 3: deleted: full contents of the scope \"city = 'Bern'\" lack it"
    assert [line.split(" (")[0] for line in lines[3][-2:]] == ["  at 2: applied", "  at 3: noop"]
    with plan(EPOCH).open() as engine:
        engine.step({"orders": one(1)}, 1)
        engine.replace("orders", one(2), 2, order=8)
        story = engine.why("orders", 1, [one(1), dd.Full(one(2))])
    absent = story.table.to_pylist()[-1]
    assert (absent["what"], absent["verdict"], absent["winner_at"], absent["id"]) == ("absent", "absent", 8, 1)
    assert story.scopes == (None,) and story.to_dict()["fed"] == "events (epoch 1), full contents (epoch 1)"


def test_hold_back_mode_and_events_alone_take_no_marks() -> None:
    for spec, log in ((HELD, one(1)), (EPOCH, one(1))):
        store = MemoryStore()
        with plan(spec).open(store) as engine:
            _ = engine.push({"orders": log}) if spec.holds_back else engine.step({"orders": log}, 1)
        for mark in (dd.Full, dd.Restated):
            with raises(LogUnclear):
                dd.verify(store, {"orders": [mark(log)]})
    with pytest.raises(WrongMode):
        dd.merge_on_read(dd.Full(one(1)), HELD)
    with pytest.raises(OutOfScope):
        dd.merge_on_read([dd.Full(one(1, city="Chur"), BERN)], EPOCH)
    with raises(SpecError):
        dd.merge_on_read([one(1), dd.Full(table([]))], EPOCH)


def test_a_state_of_one_long_history_is_folded_as_it_comes() -> None:
    """Where nothing but events was given, no more than one part of the log is asked for at a time."""
    store, alive = MemoryStore(), [0, 0]

    class Part:
        def __init__(self) -> None:
            alive[0] += 1
            alive[1] = max(alive)

        def __del__(self) -> None:
            alive[0] -= 1

        def __arrow_c_stream__(self, requested: Any = None) -> Any:
            return one(1).__arrow_c_stream__(requested)

    with plan(EPOCH).open(store) as engine:
        engine.step({"orders": one(1)}, 1)
    assert dd.verify(store, {"orders": (Part() for _ in range(50))}).ok
    dd.migrate(store, MemoryStore(), plan(EPOCH), ({"orders": Part()} for _ in range(50)))
    assert alive[1] <= 4


def test_of_many_runs_of_calls_the_last_are_told_and_the_others_counted() -> None:
    fed = FeedHistory()
    for epoch in range(1, 8):
        fed = fed.add_call(epoch, FeedMode(FULL, f"region = '{epoch}'"))
    told = str(fed).split(", ")
    assert told[0] == "... 3 more runs of calls"
    assert [part.split()[-1] for part in told[1:]] == ["4)", "5)", "6)", "7)"]
