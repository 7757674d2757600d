"""Test watermarks: which events are late, which rows are forgotten, and that outputs stay the same.

Over drawn feeds the engine equals the twin. The same flow gives bit-equal updates with and without a watermark, as long
as no event is late, in memory, on disk, after restarts and in partitions. The state of a feed that is ten times as long
stays as large.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from chance import effort
from doors import EngineDoor, TwinDoor
from hypothesis import given, strategies as st
from messages import raises
from operator_table import COLUMNS, TABLE
from parts_by_hand import Hands
from rules import Refused
from tight import MEMORY, merge, tighten, tiny

import ddflow as dd
from ddflow.errors import LateEvent, NotReadable, PlanChanged, SpecError
from ddflow.partitions.rescale import rescale
from ddflow.plan.collection import Collection
from ddflow.plan.watermarks import find_forgetting_rules, find_watermarks
from ddflow.storage.memory import MemoryStore

AT = pa.timestamp("s")
DELAY = 90
Rows = list[tuple[int, ...]]
"""Rows with a key, a time in seconds, a value, and -1 if they are taken away; by default 1."""


def table(rows: Rows) -> pa.Table:
    k, at, v, d = ([(*row, 1)[i] for row in rows] for i in range(4))
    columns = {"k": pa.array(k, pa.int64()), "at": pa.array(at, pa.int64()).cast(AT), "v": pa.array(v, pa.int64())}
    return pa.table({**columns, "d": pa.array(d, pa.int64())})


def by_sql(text: str) -> Callable[[dd.Flow], Collection]:
    return lambda flow: flow.sql(text)


PLANS: dict[str, Callable[[Any], Collection]] = {
    "count": by_sql("select date_trunc('minute', at) m, count(*) n, sum(v) s from a group by date_trunc('minute', at)"),
    "windows": by_sql("select window(at, '1 minute') w, max(v) m from a group by window(at, '1 minute')"),
    "hops": by_sql(
        "select window(at, '1 minute', '20 seconds') w, count(*) n from a group by window(at, '1 minute', '20 seconds')"
    ),
    "distinct": by_sql("select distinct at, v from a"),
    "join": by_sql("select a.k, a.at, a.v, b.v as w from a join b on a.at = b.at and a.k = b.k"),
    "left join": by_sql("select a.k, a.at, a.v, b.v as w from a left join b on a.at = b.at"),
    "semi join": by_sql("select k, at from a where exists (select 1 from b where b.at = a.at)"),
    "union": by_sql("select at, count(*) n from (select at, v from a union all select at, v from b) x group by at"),
    "count of counts": by_sql(
        "select m, max(n) n from (select date_trunc('minute', at) m, k, count(*) n from a "
        "group by date_trunc('minute', at), k) x group by m"
    ),
    "top": lambda flow: flow.inputs["a"].top(2, by=["v desc"], partition_by=["at"]),
    "over": lambda flow: flow.inputs["a"].over(partition_by=["at"], order_by=["v"], n="row_number()"),
    "filter": lambda flow: flow.inputs["a"].filter("v > 3").project(["at", "k"]).count(),
}
"""Plans whose state forgets all old rows."""


def build_flow(plan: str, watermark: bool, *, upserts: bool = False, late: Any = "error") -> dd.Flow:
    flow, columns = dd.Flow(), {"k": pa.int64(), "at": AT, "v": pa.int64(), "d": pa.int64()}
    for name in ("a", "b"):
        mark: Any = {"watermark": {"at": f"{DELAY} seconds"}, "late": late} if watermark else {}
        if upserts:
            flow.upserts(name, columns, dd.Upsert(key=["k", "at"], value=["v"], delete="d < 0", **mark))
        else:
            flow.updates(name, columns, diff="d", **mark)
    flow.output("out", PLANS[plan](flow))
    return flow


def feed(steps: int, seed: int = 1, rows: int = 30, steady: bool = False) -> Iterator[dict[str, pa.Table]]:
    """Yield the rows of steps. No row is below the horizon, but some are at the horizon.

    ``steady``: whether each step has as many rows and advances as far, so that the rows above the horizon stay as many.
    """
    chance, now = random.Random(seed), 1_000_000
    greatest, held = {"a": now, "b": now}, dict[str, list[tuple[int, ...]]](a=[], b=[])
    for _ in range(steps):
        jump = chance.choice([0, 10, 20, 40, 40, 40, 5 * DELAY if chance.random() < 0.05 else 30])
        step, now = {}, now + (30 if steady else jump)
        for name, seen in greatest.items():
            made = list[tuple[int, ...]]()
            held[name] = [row for row in held[name] if row[1] >= seen - DELAY]
            for _ in range(rows if steady else chance.choice([0, rows, rows, 2 * rows])):
                if held[name] and chance.random() < 0.2:
                    made.append((*held[name].pop(chance.randrange(len(held[name]))), -1))
                else:
                    held[name].append((chance.randrange(9), chance.randint(seen - DELAY, now), chance.randrange(9)))
                    made.append((*held[name][-1], 1))
            step[name] = table(made)
            greatest[name] = max([seen, *(row[1] for row in made)])
        yield step


def updates(step: Any, name: str = "out") -> list[str]:
    return sorted(map(repr, step[name].to_pylist()))


def count_versions(engine: Any) -> int:
    return sum(each["versions"] for each in engine.stats()["arrangements"].values())


# The same updates, and less state


@pytest.mark.parametrize("upserts", [False, True], ids=["updates", "upserts"])
@pytest.mark.parametrize("plan", PLANS)
def test_updates_are_bit_equal_and_the_state_forgets(plan: str, upserts: bool) -> None:
    whole, short = (build_flow(plan, marked, upserts=upserts).open() for marked in (False, True))
    for number, rows in enumerate(feed(60)):
        assert updates(whole.step(rows, number)) == updates(short.step(rows, number))
        short._check_invariants()
    assert count_versions(short) < count_versions(whole)


@pytest.mark.parametrize("plan", ["count", "join", "windows"])
@pytest.mark.parametrize("tight", [False, True], ids=["in memory", "on disk"])
def test_ten_times_as_many_rows_leave_as_much_state(plan: str, tight: bool) -> None:
    engine, sizes, nbytes = build_flow(plan, True, upserts=True).open(memory=MEMORY if tight else None), [], []
    if tight:
        tighten(engine)
    for number, rows in enumerate(feed(300, rows=50, steady=True)):
        engine.step(rows, number)
        sizes.append(count_versions(engine))
        nbytes.append(engine.dataflow.nbytes)
    assert max(sizes[30:]) <= 1.2 * max(sizes[:30]) + 64
    assert max(nbytes[30:]) <= 1.5 * max(nbytes[:30])
    engine._check_invariants()


@effort(20)
@given(st.sampled_from(sorted(PLANS)), st.booleans(), st.integers(0, 2**30), st.data())
def test_spills_merges_and_restarts_change_no_update(plan: str, upserts: bool, seed: int, data: st.DataObject) -> None:
    whole, store = build_flow(plan, False, upserts=upserts).open(), MemoryStore()
    options: dict[str, Any] = data.draw(st.sampled_from([{}, {"memory": MEMORY}]))
    options["retain"] = data.draw(st.sampled_from([0, 4, 100]))
    with tiny():
        engine = build_flow(plan, True, upserts=upserts).open(store, **options)
        for number, rows in enumerate(feed(25, seed, rows=6)):
            assert updates(whole.step(rows, number)) == updates(engine.step(rows, number))
            engine._check_invariants()
            act = data.draw(st.sampled_from(["nothing", "restart", "merge", "compact"]))
            if act == "restart":
                engine.close()
                store = store.reopen()
                engine = build_flow(plan, True, upserts=upserts).open(store, **options)
            elif act == "merge":
                merge(engine, None)
            elif act == "compact":
                engine.compact()
        engine.close()


@effort(8)
@given(st.sampled_from(sorted(PLANS)), st.booleans(), st.integers(0, 2**30))
def test_partitions_forget_by_one_horizon(plan: str, upserts: bool, seed: int) -> None:
    whole = build_flow(plan, False, upserts=upserts).open()
    hands = Hands(build_flow(plan, True, upserts=upserts), MemoryStore(), 3, random.Random(seed))
    for rows in feed(14, seed, rows=12):
        _, out = hands.epoch(rows)
        assert drop_time(out["out"]) == drop_time(whole.step(rows)["out"])
    with pytest.raises(LateEvent):
        hands.epoch({"a": table([(1, 0, 1)])})
    hands.close()


def drop_time(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.drop_columns(["_time"]).to_pylist()))


# Late events


def marked(spec: dict[str, Any]) -> dict[str, Any]:
    columns = {"k": "int64", "at": "int64", "v": "int64", "gone": "bool"}
    given_spec = {"key": ["k"], "delete": {"tombstone": "gone"}, "watermark": {"at": 5}} | spec
    outputs = {"out": ["input", "a"], "n": ["count", ["input", "a"], ["at"], "n"]}
    return {"inputs": {"a": {"columns": columns, "spec": given_spec}}, "outputs": outputs}


@effort(120)
@given(st.data())
def test_the_engine_equals_the_twin(data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from([{"key": ["k", "at"]}, {}, {"order_by": ["v"]}, {"noop_ignore": ["v"]}]))
    scenario = marked({**spec, "late": data.draw(st.sampled_from(["error", "drop"]))})
    twin, engine = TwinDoor(scenario), EngineDoor(scenario)
    times = st.sampled_from([*range(0, 30, 2), None]) if "key" not in spec else st.integers(0, 30)
    for time in range(data.draw(st.integers(2, 7))):
        row = st.tuples(st.integers(0, 3), times, st.integers(0, 2), st.sampled_from([False, False, True])).map(list)
        rows = data.draw(st.lists(row, max_size=5))
        try:
            expected = twin.step({"a": rows}, time)
        except Refused as refused:
            with pytest.raises(Refused) as caught:
                engine.step({"a": rows}, time)
            assert caught.value.kinds == refused.kinds == {"LateEvent"}
            continue
        found = engine.step({"a": rows}, time)
        assert (found.updates, found.verdicts, found.rows) == (expected.updates, expected.verdicts, expected.rows)
        engine.engine._check_invariants()


def test_a_late_event_is_dropped_or_refused() -> None:
    for upserts in (False, True):
        engine = build_flow("count", True, upserts=upserts, late="drop").open()
        engine.step({"a": table([(1, 1000, 1)])})
        step = engine.step({"a": table([(1, 1000 - DELAY - 1, 1), (1, 1000 - DELAY, 1)])})
        assert {name: n for name, n in step.verdicts.counts.items() if n} == {"late": 1, "applied": 1}
        engine = build_flow("count", True, upserts=upserts).open()
        engine.step({"a": table([(1, 1000, 1)])})
        with raises(LateEvent):
            engine.step({"a": table([(1, 1000, 1), (1, 1000 - DELAY - 1, 1)])})
        assert engine.step({"a": table([(1, 1000 - DELAY, 1)])}).verdicts["applied"] == 1


def test_an_update_of_a_late_row_is_late_by_the_stored_row() -> None:
    flow = dd.Flow()
    flow.output("out", flow.upserts("a", {"k": int, "at": int}, dd.Upsert("k", watermark={"at": 5})))
    engine = flow.open()
    engine.step({"a": {"k": [1, 2], "at": [10, 20]}})
    with raises(LateEvent):
        engine.step({"a": {"k": [1], "at": [30]}})
    assert engine.step({"a": {"k": [2], "at": [30]}})["out"].num_rows == 2
    assert engine.read("out").num_rows == 2  # the input keeps its rows, because a key can get another time


def test_null_is_never_late_and_never_forgotten() -> None:
    engine = build_flow("distinct", True).open()
    for number, rows in enumerate(feed(60)):
        old = pa.table({"k": [1], "at": pa.array([None], AT), "v": [7], "d": [1]})
        engine.step({"a": pa.concat_tables([rows["a"], old])}, number)
    assert engine.step({"a": old}, 60)["out"].num_rows == 0


# Readings of what is forgotten


def test_what_is_forgotten_cannot_be_read() -> None:
    flow = build_flow("count", True, upserts=True)
    flow.output("all", flow.inputs["a"].count([]))
    engine = flow.open()
    engine.step({"a": table([(1, 1000, 1)])})
    assert engine.read("out").num_rows == engine.read("a").num_rows == 1
    engine.step({"a": table([(1, 1000 + DELAY, 1)])})
    assert engine.read("out").num_rows == 2
    engine.step({"a": table([(1, 5000, 1)])})
    for name in ("out", "a"):
        with raises(NotReadable):
            engine.read(name)
    with raises(NotReadable):
        engine.why("out", {"m": None})
    with raises(NotReadable):
        engine.get("a", k=1, at=datetime(2026, 11, 29))
    assert engine.read("all").to_pylist() == [{"count": 3, "_diff": 1}]
    engine.step({"a": table([(1, 5000, 2)])})
    assert [row["count"] for row in engine.read("all").to_pylist()] == [3]


def test_a_new_output_over_forgotten_rows_changes_the_plan() -> None:
    store = MemoryStore()
    with build_flow("count", True, upserts=True).open(store) as engine:
        engine.step({"a": table([(1, 1000, 1)])})
        engine.step({"a": table([(1, 5000, 1)])})
    flow = build_flow("count", True, upserts=True)
    flow.output("more", flow.inputs["a"].count("v"))
    with raises(PlanChanged):
        flow.open(store.reopen())
    with dd.Snapshot.open(store.reopen()) as snapshot, raises(NotReadable):
        snapshot.read("out")


@pytest.mark.parametrize("change", ["new", "shorter", "longer", "gone"])
def test_a_state_can_get_a_watermark_but_keeps_it(change: str) -> None:
    def build(delay: str | None) -> dd.Flow:
        flow, mark = dd.Flow(), None if delay is None else {"at": delay}
        spec = dd.Upsert(["k", "at"], watermark=mark)
        flow.output("out", flow.upserts("a", table([]).schema, spec).count("at"))
        return flow

    store = MemoryStore()
    with build(None if change == "new" else "1 hour").open(store) as engine:
        engine.step({"a": table([(1, 1000, 1)])})
    after = build({"new": "1 hour", "shorter": "1 minute", "longer": "2 hours", "gone": None}[change])
    if change != "new":
        with raises(PlanChanged):
            after.open(store.reopen())
        return
    with after.open(store.reopen()) as engine:
        engine.step({"a": table([(1, 9000, 1)])})
        with raises(LateEvent):
            engine.step({"a": table([(1, 1000, 2)])})
        with raises(NotReadable):
            engine.read("out")


def test_full_contents_leave_old_rows_alone() -> None:
    flow = dd.Flow()
    spec = dd.Upsert(["k", "at"], value=["v"], watermark={"at": "1 minute"})
    flow.output("out", flow.upserts("a", table([]).schema, spec))
    engine = flow.open()
    engine.step({"a": table([(1, 1000, 1), (2, 2000, 1), (3, 2000, 1)])})
    step = engine.replace("a", table([(2, 2000, 5), (4, 900, 1)]))
    assert updates(step) == updates({"out": engine_rows([(2, 2000, 1, -1), (2, 2000, 5, 1), (3, 2000, 1, -1)], 2)})
    assert (step.verdicts["late"], step.verdicts.absent) == (1, 1)


def engine_rows(rows: list[tuple[int, int, int, int]], time: int) -> pa.Table:
    made = table([row[:3] for row in rows]).drop_columns("d")
    n = len(rows)
    return made.append_column("_time", pa.array([time] * n)).append_column("_diff", pa.array([row[3] for row in rows]))


# Plans


def test_where_a_watermark_ends_is_explained() -> None:
    flow = build_flow("join", True, upserts=True)
    a = flow.inputs["a"]
    flow.output("by_key", a.count("k"))
    text = str(flow.explain())
    assert "forgets rows by at, below the watermark of a, b" in text
    assert "keeps all rows in spite of the watermark, because no group column has one" in text
    engine = flow.open()
    engine.step({"a": table([(1, 1000, 1)])})
    assert "at up to 1970-01-01 00:16:40, watermark 1970-01-01 00:15:10" in str(engine.explain())


def test_a_join_by_other_columns_keeps_the_rows() -> None:
    flow = build_flow("count", True, upserts=True)
    joined = flow.sql("select a.at, b.v from a join b on a.k = b.k")
    flow.output("joined", joined)
    rules = find_forgetting_rules(flow)
    assert {node.verb for node in rules} == {"input", "agg"}
    assert find_watermarks(flow)[joined.inputs[0] if joined.verb == "project" else joined] == {}


@pytest.mark.parametrize(
    "given",
    [
        {"watermark": {"at": "1 month"}},
        {"watermark": {"at": "an hour"}},
        {"watermark": {"at": 5}},
        {"watermark": {"v": "1 hour"}},
        {"watermark": {"none": "1 hour"}},
        {"watermark": {"name": 5}},
        {"watermark": {"at": "1 hour", "v": 5}},
        {"watermark": {"v": -5}},
        {"watermark": {"v": True}},
        {"watermark": "at"},
        {"watermark": {"at": "1 hour"}, "late": "advance"},
        {"watermark": {"at": "1 hour"}, "time": "v"},
        {"watermark": {"at": "1 hour"}, "merge": "first_row"},
        {"watermark": {"at": "1 hour"}, "order_by": "v", "expiry": dd.Expiry(ttl=3)},
        {"late": "drop"},
    ],
)
def test_a_watermark_that_does_not_fit_is_refused(given: dict[str, Any]) -> None:
    columns = {"k": pa.int64(), "at": AT, "v": pa.int64(), "name": pa.string()}
    with raises(SpecError):
        dd.Flow().upserts("a", columns, dd.Upsert("k", **given))
    if not {"merge", "expiry"} & given.keys():
        with raises(SpecError):
            dd.Flow().updates("a", columns, **{name: each for name, each in given.items() if name != "order_by"})


def test_a_row_far_ahead_is_bad_and_does_not_move_the_watermark() -> None:
    moment, columns = datetime(2026, 11, 29, 12), {"id": int, "at": "timestamp"}
    spec = dd.Upsert(["id", "at"], watermark={"at": "1 hour"}, ahead="1 day")
    flow = dd.Flow(clock="timestamp")
    flow.output("counted", flow.upserts("rows", columns, spec).count([]))
    assert dd.Upsert.from_json(spec.to_json()) == spec
    with flow.open() as engine:
        for n, at in enumerate([moment, moment.replace(year=9999), moment + timedelta(days=1), moment]):
            time = (moment + timedelta(microseconds=n)).replace(tzinfo=UTC)
            step = engine.step({"id": [n], "at": [at]}, time=time) if n < 3 else None
            assert step is None or step.verdicts.bad == (n == 1)
        assert engine.dataflow.totals["bad"] == 1
        with raises(LateEvent):
            engine.step({"id": [9], "at": [moment]}, time=moment.replace(minute=1, tzinfo=UTC))
    with raises(SpecError):
        dd.Flow().upserts("rows", columns, spec)
    with raises(SpecError):
        dd.Upsert(["id", "at"], ahead="1 day")
    with raises(SpecError):
        dd.Flow(clock="timestamp").updates("rows", {"n": int}, watermark={"n": 5}, ahead="1 day")


# Other doors


def test_verify_compares_the_rows_that_are_still_there() -> None:
    store, rows = MemoryStore(), [table([(1, 1000, 1), (2, 1000, 1)]), table([(1, 5000, 1)]), table([(2, 5000, 1)])]
    with build_flow("count", True, upserts=True).open(store) as engine:
        for part in rows:
            engine.step({"a": part})
        engine.compact()
    found = dd.verify(store.reopen(), {"a": rows})
    assert found.ok
    assert (found.inputs["a"].rows, found.inputs["a"].unknown) == (2, 2)
    assert dd.fsck(store.reopen()).ok


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int64(), pa.date32(), pa.date64(), pa.timestamp("ns"), pa.timestamp("ms", "UTC")]
)
def test_every_type_of_column_has_a_horizon(kind: pa.DataType) -> None:
    day = {pa.int8(): 1, pa.int64(): 1, pa.date32(): 1, pa.timestamp("ns"): 86_400 * 10**9}.get(kind, 86_400_000)
    mark: Any = {"at": 2 if pa.types.is_integer(kind) else "2 days"}
    flow = dd.Flow()
    flow.updates("a", {"at": kind, "v": pa.int64()}, keep=True, watermark=mark, late="drop")
    flow.output("out", flow.inputs["a"].distinct())
    engine = flow.open()
    for days, late in (([3], 0), ([100], 0), ([97, 98], 1), ([101], 0), ([98, 99], 1), ([-3], 1)):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        at = pa.array([each * day for each in days], width).cast(kind)
        assert engine.step({"a": pa.table({"at": at, "v": [1] * len(days)})}).verdicts["late"] == late
        engine._check_invariants()
    with raises(NotReadable):
        engine.read("a")
    engine.compact()
    assert [each["keys"] for each in engine.stats()["arrangements"].values()] == [3, 3]


def test_an_evolved_engine_forgets_too() -> None:
    flow = build_flow("filter", True, upserts=True)
    engine = flow.open()
    for number, rows in enumerate(feed(30)):
        if number == 10:
            engine.evolve({"a": {"k": pa.int64(), "at": AT, "v": pa.int64(), "d": pa.int64(), "note": pa.string()}})
        engine.step({"a": rows["a"]}, number)
        engine._check_invariants()
    assert count_versions(engine) < 400
    with pytest.raises(LateEvent):
        engine.step({"a": table([(1, 1, 1)])}, 99)


def test_a_state_can_be_split_into_partitions() -> None:
    store, whole = MemoryStore(), build_flow("join", False, upserts=True).open()
    with build_flow("join", True, upserts=True).open(store) as engine:
        for rows in feed(8):
            assert drop_time(engine.step(rows)["out"]) == drop_time(whole.step(rows)["out"])
    rescale(store.reopen(), 3)
    hands = Hands(build_flow("join", True, upserts=True), store.reopen(), None, random.Random(1))
    for number, rows in enumerate(feed(14)):
        if number >= 8:
            assert drop_time(hands.epoch(rows)[1]["out"]) == drop_time(whole.step(rows)["out"])
    with pytest.raises(LateEvent):
        hands.epoch({"a": table([(1, 0, 1)])})
    hands.close()


def test_a_reader_that_holds_an_older_time_reads_what_it_held() -> None:
    engine = build_flow("filter", True).open(retain=100)
    for number, rows in enumerate(feed(30)):
        engine.step(rows, number)
        engine._check_invariants()
    with raises(NotReadable):
        engine.reader("out")


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("upserts", [False, True], ids=["updates", "upserts"])
def test_every_operator_gives_the_same_updates(name: str, upserts: bool) -> None:
    """The column with the watermark is a number that drifts upwards."""
    chance, greatest, held = random.Random(name), 0, list[tuple[str, int]]()
    engines = []
    for mark in (None, {"n": 3}):
        flow = dd.Flow()
        if upserts:
            key = {"key": ["city", "n"], "delete": "d < 0", "value": ["tags"]}
            rows: Any = flow.upserts("a", COLUMNS | {"d": pa.int64()}, dd.Upsert(**key, watermark=mark))  # type: ignore[arg-type]
        else:
            rows = flow.updates("a", COLUMNS | {"d": pa.int64()}, diff="d", watermark=mark)
        flow.output("out", TABLE[name].make(rows))
        flow.output("of all", TABLE[name].make(rows.concat(rows.filter("n % 2 = 0"))))
        engines.append(flow.open())
    for number in range(60):
        made, horizon = [], greatest - 3
        held = [row for row in held if row[1] >= horizon]
        for _ in range(chance.randrange(12)):
            if held and chance.random() < 0.3:
                made.append((*held.pop(chance.randrange(len(held))), -1))
            else:
                held.append((chance.choice("abc"), chance.randint(horizon, greatest + 2)))
                made.append((*held[-1], 1))
        greatest = max([greatest, *(row[1] for row in made)])
        columns = [[row[i] for row in made] for i in range(3)]
        tags = [[row[0], "x"] for row in made]
        given_rows = pa.table(
            [
                columns[0],
                pa.array(columns[1], pa.int64()),
                pa.array(tags, COLUMNS["tags"]),
                pa.array(columns[2], pa.int64()),
            ],
            names=["city", "n", "tags", "d"],
        )
        steps = [engine.step({"a": given_rows}, number) for engine in engines]
        for output in ("out", "of all"):
            assert updates(steps[0], output) == updates(steps[1], output)
        engines[1]._check_invariants()


def test_a_group_that_went_and_came_again_is_forgotten_with_its_deletion() -> None:
    store, options = MemoryStore(), {"retain": 1000, "memory": MEMORY}
    with tiny():
        engine = build_flow("union", True).open(store, **options)
        for number, rows in enumerate(feed(24, 135459614, rows=40)):
            engine.step(rows, number)
            engine._check_invariants()
            if number == 7:
                engine.compact()
            if number in (12, 15, 16):
                engine.close()
                store = store.reopen()
                engine = build_flow("union", True).open(store, **options)
        engine.close()
