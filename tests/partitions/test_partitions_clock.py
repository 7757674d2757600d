"""Test flows with a clock on partitioned states: each epoch has the rows of a step of one engine at the same time.

The plans have temporal filters below and above exchanges, so rows wait in several stages. Between epochs, the state is
rescaled, evolved, continued by an engine, or filled with new outputs. Tasks run in this process (``parts_by_hand``).
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from chance import effort, long_test
from hypothesis import event, given, strategies as st
from messages import raises
from parts_by_hand import Hands
from stages_by_hand import by_hand

import ddflow as dd
from ddflow.errors import ReplayMismatch, SchemaMismatch, SpecError, TimeWentBack
from ddflow.partitions.driver_epochs import DriverEpochs, find_partitioning
from ddflow.partitions.epoch_start import convert_epoch_time, find_clock
from ddflow.partitions.rescale import rescale
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.tools.export import open_contents

MOMENT = pa.timestamp("us")
COLUMNS = {"id": pa.int64(), "at": MOMENT, "upto": MOMENT, "n": pa.int64()}
NAMES = ["shown", "counted", "moved", "grouped", "latest", "shares", "joined"]
LAST = 60
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 11),
        "at": st.none() | st.integers(0, 40),
        "upto": st.none() | st.integers(0, 50),
        "n": st.integers(0, 3),
    }
)
STEPS = st.lists(
    st.tuples(
        st.lists(ROWS, max_size=5, unique_by=lambda row: row["id"]),
        st.integers(1, 9),
        st.sampled_from(["stay", "stay", "open", "rescale", "engine"]),
        st.integers(1, 4),
    ),
    min_size=2,
    max_size=7,
)


def moment(time: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=time)


def table(rows: list[dict[str, Any]], **more: Any) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in (COLUMNS | more).items()})


def counted(rows: pa.Table) -> Counter[Any]:
    """The rows of a table, whatever their order and the representation of their times."""
    plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in rows.columns]
    found: Counter[Any] = Counter()
    for *row, diff in zip(*(column.to_pylist() for column in plain), strict=True):
        found[tuple(row)] += diff
    return Counter({row: n for row, n in found.items() if n})


def flow_of(*names: str, **more: Any) -> dd.Flow:
    """A flow with some of the outputs. ``more``: further columns."""
    flow = dd.Flow(clock="timestamp")
    rows = flow.upserts("rows", COLUMNS | more, dd.Upsert(key="id"))
    shown = rows.filter("now() >= at and current_timestamp < upto")
    recent = "select n, max(at) last from rows group by n having max(at) > now() - interval 5 microseconds"
    outputs = {
        "rows": rows,
        "shown": shown,
        "counted": shown.count(by="n"),
        "moved": rows.project(["n", "at"]).filter("at <= now()"),
        "latest": rows.project(["n", "upto"]).filter("upto > now()").count(by="n"),
        "grouped": flow.sql(recent),
        "shares": rows.filter("at <= now()").project({"id": "id", "share": "10 div (n + 1)"}),
        "joined": shown.join(rows.count(by="n").filter("count > 1"), on="n"),
    }
    for name in names or NAMES:
        flow.output(name, outputs[name])
    return flow


def hands_of(flow: dd.Flow, store: Any, partitions: int | None = None) -> Hands:
    hands = Hands(flow, store, partitions, random.Random(7))
    hands.budgets = [None, 64 << 20]
    return hands


def check_state(store: MemoryStore, flow: dd.Flow, engine: dd.Engine) -> None:
    """Compare all ways to read a state with an engine, and check its files."""
    with dd.Snapshot.open(store.reopen()) as snapshot:
        for name in flow.outputs:
            expected = counted(engine.read(name))
            assert counted(snapshot.read(name)) == expected, name
            schema, tables = open_contents(snapshot, name)
            contents = pa.concat_tables([schema.empty_table(), *tables])
            if "_diff" not in schema.names:
                contents = contents.append_column("_diff", pa.array([1] * contents.num_rows, pa.int64()))
            assert counted(contents) == expected, name
    hands = hands_of(flow, store.reopen())
    for name in flow.outputs:
        found = DriverEpochs(hands.coordinator).read_output(name)
        assert counted(found.drop_columns(["_time"])) == counted(engine.read(name)), name
    hands.close()
    report = dd.fsck(store.reopen())
    assert report.ok, str(report)


@long_test
@effort(40)
@given(steps=STEPS, partitions=st.integers(1, 3))
def test_epochs_are_the_steps_of_an_engine(steps: list[Any], partitions: int) -> None:
    flow, store, time = flow_of(), MemoryStore(), 0
    hands = hands_of(flow, store, partitions)
    with flow.open() as engine:
        for number, (rows, later, way, more) in enumerate([*steps, ([], LAST, "stay", 1)]):
            time += later
            given = {"rows": table(rows)} if rows else {}
            if number and way != "stay":
                hands.close()
                store = store.reopen()
                if way == "rescale":
                    rescale(store, more)
                    store = store.reopen()
                    event(f"rescaled to {more}")
                if way == "engine":
                    partitions = load_newest_manifest(store).partitions  # type: ignore[union-attr]
                    rescale(store, 1)
                    with flow.open(store := store.reopen()) as local:
                        made, expected = local.step(given, time=moment(time)), engine.step(given, time=moment(time))
                    for name in NAMES:
                        assert counted(made[name]) == counted(expected[name]), name
                    rescale(store := store.reopen(), partitions)
                    hands = hands_of(flow, store := store.reopen())
                    continue
                hands = hands_of(flow, store)
            found = hands.epoch(given, time=time)[1]
            expected = engine.step(given, time=moment(time))
            for name in NAMES:
                assert counted(found[name]) == counted(expected[name]), name
        hands.close()
        check_state(store, flow, engine)


@long_test
@effort(20)
@given(steps=STEPS, partitions=st.integers(1, 3), first=st.sampled_from(["rows", "counted", "joined"]))
def test_new_outputs_and_columns(steps: list[Any], partitions: int, first: str) -> None:
    store, twin, time, more = MemoryStore(), MemoryStore(), 0, dict[str, Any]()
    for names in ([first], [first, "moved", "shares"], NAMES):
        flow = flow_of(*dict.fromkeys([first, *names]), **more)
        hands = hands_of(flow, store, partitions if time == 0 else None)
        with flow.open(twin) as engine:
            for rows, later, *_ in steps[:2]:
                time += later
                given = {"rows": table([row | {"more": None} for row in rows], **more)} if rows else {}
                found, expected = hands.epoch(given, time=time)[1], engine.step(given, time=moment(time))
                for name in flow.outputs:
                    assert counted(found[name]) == counted(expected[name]), name
            hands.close()
            check_state(store, flow, engine)
        if len(flow.outputs) > 2 and not more:
            more = {"more": pa.string()}
            wider = flow_of(*flow.outputs, **more)
            dd.evolve(store := store.reopen(), flow=wider)
        store, twin = store.reopen(), twin.reopen()


@effort(60)
@given(steps=STEPS, partitions=st.integers(1, 3))
def test_hold_back_mode(steps: list[Any], partitions: int) -> None:
    flow = dd.Flow()
    spec = dd.Upsert(key="id", time="time", lateness=3, late="error")
    rows = flow.upserts("rows", COLUMNS | {"time": MOMENT}, spec)
    shown = flow.output("shown", rows.filter("now() >= at and now() < upto"))
    flow.output("counted", shown.count(by="n"))
    flow.output("moved", rows.project(["n", "at"]).filter("at <= now()"))
    hands, time, every = hands_of(flow, MemoryStore(), partitions), 0, list[dict[str, Any]]()
    found: dict[str, list[pa.Table]] = {name: [] for name in flow.outputs}
    for number, (rows_now, later, *_) in enumerate(steps):
        timed = [row | {"time": time + i} for i, row in enumerate(rows_now)]
        time += later + len(timed)
        every += timed
        given = {"rows": table(timed, time=MOMENT)} if timed else {}
        for name, each in hands.epoch(given, close=number == len(steps) - 1)[1].items():
            found[name].append(each)
    hands.close()
    with flow.open() as engine:
        made = [engine.push({"rows": table(every, time=MOMENT)}), engine.advance_to(dd.CLOSED)]
        for name in flow.outputs:
            assert counted(pa.concat_tables(found[name])) == counted(pa.concat_tables([each[name] for each in made]))


@effort(60)
@given(rows=st.lists(ROWS, max_size=12, unique_by=lambda row: row["id"]), time=st.integers(0, LAST))
@pytest.mark.parametrize("holds_back", [False, True])
def test_runs_without_a_state(holds_back: bool, rows: list[dict[str, Any]], time: int) -> None:
    flow = flow_of()
    if holds_back:
        flow = dd.Flow()
        given = flow.upserts("rows", COLUMNS | {"time": MOMENT}, dd.Upsert(key="id", time="time"))
        flow.output("shown", shown := given.filter("now() >= at and now() < upto"))
        flow.output("counted", shown.count(by="n"))
    timed = [row | {"time": row["id"]} for row in rows]
    tables = [table(timed[n::2], **({"time": MOMENT} if holds_back else {})) for n in range(2)]
    found = by_hand(flow, {"rows": tables}, 3, 0 if holds_back else time)
    with flow.open() as engine:
        given_rows = {"rows": pa.concat_tables(tables)}
        made = [engine.push(given_rows), engine.advance_to(dd.CLOSED)] if holds_back else None
        made = made or [engine.step(given_rows, time=moment(time))]
        for name in flow.outputs:
            assert counted(found[name]) == counted(pa.concat_tables([each[name] for each in made])), name


def test_partitions_without_rows_run_only_where_rows_wait() -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", COLUMNS, dd.Upsert(key="id"))
    flow.output("counted", rows.filter("at <= now()").count(by="n"))
    with pytest.MonkeyPatch.context() as patch:
        hands = hands_of(flow, MemoryStore(), 4)
        ran = list[tuple[int, int]]()
        part = hands.part
        patch.setattr(hands, "part", lambda start, *at: ran.append(at) or part(start, *at))
        hands.epoch({"rows": table([{"id": 1, "at": 5, "upto": None, "n": 2}])}, time=1)
        ran.clear()
        assert not hands.epoch({}, time=4)[1]["counted"].num_rows and {stage for stage, _ in ran} == {0}
        assert counted(hands.epoch({}, time=7)[1]["counted"]) == {(2, 1, 7): 1}
        assert len({at for at in ran if at[0] == 1}) == 1
        hands.close()


def test_the_driver_keeps_number_and_time() -> None:
    flow, store = flow_of("shown", "counted"), MemoryStore()
    hands = hands_of(flow, store, 2)
    given = {"rows": table([{"id": 1, "at": 5, "upto": 9, "n": 2}])}
    with raises(SpecError):
        hands.epoch(given)
    done, _ = hands.epoch(given, time=3)
    assert (done.epoch, done.time) == (1, 3) and hands.coordinator.manifest.last == 3
    with raises(TimeWentBack):
        hands.epoch({}, time=3)
    done, found = hands.epoch({}, time=6)
    assert (done.epoch, done.time, found["shown"].num_rows) == (2, 6, 1)
    committed = hands.coordinator.committed(epoch=2)
    assert committed is not None
    for time in (None, 6):
        again = hands.coordinator.replayed(committed, {}, {}, time)
        assert again.replayed and again.time == 6 and again.outputs == done.outputs
    with raises(ReplayMismatch):
        hands.coordinator.replayed(committed, {}, {}, 7)
    stamp = hands.coordinator.stamp_batch()
    assert stamp is not None and hands.epoch({}, time=2**61)[0].time == 2**61
    assert hands.coordinator.stamp_batch() == 2**61 + 1
    hands.close()


def test_times_that_do_not_fit_the_flow() -> None:
    plain, held = dd.Flow(), dd.Flow()
    plain.upserts("rows", COLUMNS, dd.Upsert(key="id"))
    held.upserts("rows", COLUMNS, dd.Upsert(key="id", time="at"))
    clock = flow_of()
    assert convert_epoch_time(clock, moment(7)) == 7 and convert_epoch_time(plain, None, required=True) is None
    for flow, time in [(plain, moment(3)), (held, moment(3)), (clock, None)]:
        with raises(SpecError):
            convert_epoch_time(flow, time, required=True)
    for wrong in (7, "soon", dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)):
        with raises(SchemaMismatch):
            convert_epoch_time(clock, wrong)
    days = dd.Flow(clock="date")
    days.output("rows", days.upserts("rows", COLUMNS, dd.Upsert(key="id")))
    hands = hands_of(days, MemoryStore(), 2)
    with raises(SpecError):
        hands.coordinator.stamp_batch()
    assert hands.epoch({}, time=convert_epoch_time(days, "2026-11-29"))[0].time == 20786
    hands.close()


def test_a_state_with_times_of_steps_is_continued() -> None:
    """A state whose first step set the type of times has a clock, although its flow declares none."""
    store, plain = MemoryStore(), dd.Flow()
    plain.output("rows", plain.upserts("rows", COLUMNS, dd.Upsert(key="id")))
    with plain.open(store) as engine:
        engine.step({"rows": table([{"id": 1, "at": 5, "upto": 9, "n": 2}])}, time=moment(3))
    hands = hands_of(plain, store.reopen())
    assert find_clock(hands.coordinator.flow) == pa.timestamp("us", "UTC")
    hands.epoch({"rows": table([{"id": 2, "at": 5, "upto": 9, "n": 2}])}, time=8)
    hands.close()
    with plain.open(store.reopen()) as engine:
        assert counted(engine.read("rows")) == {(1, 5, 9, 2): 1, (2, 5, 9, 2): 1} and engine.dataflow.last == 8


def test_where_filtered_rows_are() -> None:
    flow = flow_of()
    assert find_partitioning(flow, "shown") == find_partitioning(flow, "rows" if "rows" in flow.outputs else "shown")
    assert find_partitioning(flow, "moved") is None
    assert find_partitioning(flow, "counted") is not None


def test_waiting_rows_move_with_their_partition() -> None:
    """Rows that wait are sorted by time, so their identities say nothing about the partition."""
    flow, store = flow_of("shown", "counted", "moved"), MemoryStore()
    hands = hands_of(flow, store, 1)
    waiting = [{"id": n, "at": 10 + n, "upto": 40, "n": n % 4} for n in range(20)]
    hands.epoch({"rows": table(waiting)}, time=1)
    hands.close()
    with flow.open() as engine:
        engine.step({"rows": table(waiting)}, time=moment(1))
        for time, partitions in [(12, 3), (17, 2), (25, 4), (50, 1)]:
            rescale(store := store.reopen(), partitions)
            check_state(store := store.reopen(), flow, engine)
            hands = hands_of(flow, store := store.reopen())
            found, expected = hands.epoch({}, time=time)[1], engine.step({}, time=moment(time))
            for name in flow.outputs:
                assert counted(found[name]) == counted(expected[name]) and expected[name].num_rows, name
            hands.close()


def test_verify_computes_waiting_rows_again() -> None:
    flow, store = flow_of("shown", "moved", "latest"), MemoryStore()
    hands = hands_of(flow, store, 3)
    log = [table([{"id": n, "at": 10 + n, "upto": 40 - n, "n": n % 4} for n in range(20)])]
    hands.epoch({"rows": log[0]}, time=1)
    hands.epoch({}, time=15)
    hands.close()
    verified = dd.verify(store.reopen(), {"rows": log})
    assert verified.ok, str(verified)


def test_windows_and_asof_joins_on_partitions() -> None:
    """The features of time and order without a clock run on partitions like on one engine."""
    flow = dd.Flow()
    rows = flow.upserts("rows", COLUMNS, dd.Upsert(key="id"))
    flow.output("windows", flow.sql("select window(at, '5 microseconds') w, count(*) c from rows group by 1"))
    flow.output("ranked", rows.over(partition_by="n", order_by="at", place="row_number()", total="sum(id)"))
    flow.output("nearest", rows.asof(rows.project({"n": "n", "its": "at", "other": "id"}), on="n", at="at >= its"))
    hands = hands_of(flow, MemoryStore(), 3)
    chance = random.Random(7)
    with flow.open() as engine:
        for time in range(1, 5):
            given = [
                {"id": chance.randrange(20), "at": chance.randrange(30), "upto": None, "n": n % 3} for n in range(8)
            ]
            tables = {"rows": table(list({row["id"]: row for row in given}.values()))}
            found, expected = hands.epoch(tables)[1], engine.step(tables, time=time)
            for name in flow.outputs:
                assert sorted(map(str, found[name].to_pylist())) == sorted(map(str, expected[name].to_pylist())), name
    hands.close()


def test_earlier_times_are_read_after_a_rescaling() -> None:
    flow, store = flow_of(), MemoryStore()
    chance = random.Random(7)
    with flow.open(store, retain=LAST) as engine, flow.open(retain=LAST) as twin:
        for time in range(1, 30, 4):
            rows = [
                {"id": n, "at": chance.randrange(40), "upto": chance.randrange(50), "n": n % 3}
                for n in range(time % 7, 12)
            ]
            for each in (engine, twin):
                each.step({"rows": table(rows)}, time=moment(time))
        engine.close()
        rescale(store := store.reopen(), 3)
        with dd.Snapshot.open(store.reopen()) as snapshot:
            for name in NAMES:
                for as_of in range(1, 30):
                    expected = counted(twin.read(name, as_of=moment(as_of)))
                    assert counted(snapshot.read(name, as_of=moment(as_of))) == expected, (name, as_of)


@pytest.mark.parametrize(("partitions", "keep"), [(1, True), (3, True), (3, False)])
def test_waiting_rows_get_a_new_column(partitions: int, keep: bool) -> None:
    """Rows without a key are in the partition of all their columns, so a new column moves them."""

    def build(**more: Any) -> dd.Flow:
        flow = dd.Flow()
        rows = flow.updates("rows", COLUMNS | more, keep=keep)
        flow.output("shown", shown := rows.filter("at > now() - interval 5 microseconds"))
        flow.output("counted", shown.count(by="n"))
        return flow

    store, twin, more = MemoryStore(), MemoryStore(), {"more": pa.string()}
    rows = [{"id": n, "at": n, "upto": None, "n": n % 4, "more": None} for n in range(20)]
    hands = hands_of(build(), store, partitions)
    hands.epoch({"rows": table(rows)}, time=3)
    hands.close()
    with build().open(twin) as engine:
        engine.step({"rows": table(rows)}, time=moment(3))
    dd.evolve(store := store.reopen(), flow=build(**more))
    hands = hands_of(build(**more), store := store.reopen())
    with build(**more).open(twin.reopen()) as engine:
        for time in (9, 14, 40):
            given = {"rows": table([row | {"more": str(time), "at": time + row["n"]} for row in rows[:5]], **more)}
            found, expected = hands.epoch(given, time=time)[1], engine.step(given, time=moment(time))
            for name in ("shown", "counted"):
                assert counted(found[name]) == counted(expected[name]), (name, time)
        hands.close()
        if keep:
            check_state(store, build(**more), engine)
