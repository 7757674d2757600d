"""Test state machines beside a simple implementation in Python, with tables, batch functions and compiled functions.

Also tested: splits, modes, restarts, plans, Spark, and every refusal with its text.
"""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Callable, Iterable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import effort, mid_test
from doors import SECRET
from hypothesis import given, strategies as st
from messages import raises
from tight import MEMORY, tighten

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.errors import (
    DdflowError,
    IllegalTransition,
    ListTooLong,
    MergerFailed,
    NotReadable,
    PlanChanged,
    SpecError,
)
from ddflow.plan.text.codec import describe_plan, fingerprint_plan, rebuild_plan
from ddflow.storage.memory import MemoryStore

EVENTS = pa.schema({"k": pa.int64(), "at": pa.int64(), "t": pa.int64(), "symbol": pa.string(), "gone": pa.bool_()})
SYMBOLS = [None, "coin", "push", "pay", "ship", "fail", "ok"]
Values = frozenset[tuple[Any, ...]]
Oracle = Callable[[Values, dict[str, Any]], Values]

# Machines, each with what it means.

TURNSTILE = dd.Machine(
    "door", {("locked", "coin"): "open", ("open", "push"): "locked"}, on="symbol", start="locked", otherwise="stay"
)


def turnstile(values: Values, event: dict[str, Any]) -> Values:
    ((door,),) = values or {("locked",)}
    return frozenset({({("locked", "coin"): "open", ("open", "push"): "locked"}.get((door, event["symbol"]), door),)})


DROPPING = dd.Machine(
    {"n": pa.int16()}, {(0, "coin"): 1, (1, "coin"): 2, (1, "pay"): 1}, on="symbol", start=0, otherwise="drop"
)


def dropping(values: Values, event: dict[str, Any]) -> Values:
    ((n,),) = values or {(0,)}
    to = {(0, "coin"): 1, (1, "coin"): 2, (1, "pay"): 1}.get((n, event["symbol"]))
    return frozenset() if to is None else frozenset({(to,)})


LEGAL = {("new", "pay"): "paid", ("paid", "ship"): "shipped"}
LIFE = {
    (state, symbol): {LEGAL[state, symbol]} if (state, symbol) in LEGAL else {state, f"illegal: {symbol}"}
    for state in ("new", "paid", "shipped")
    for symbol in ("pay", "ship")
}
ORDERS = dd.Machine("status", LIFE, on="symbol", start="new", otherwise="stay")


def orders(values: Values, event: dict[str, Any]) -> Values:
    out: set[tuple[Any, ...]] = set()
    for (status,) in values or {("new",)}:
        out |= {(to,) for to in LIFE.get((status, event["symbol"]), {status})}
    return frozenset(out)


GAP = 2
SESSION = {"begin": pa.int64(), "end": pa.int64(), "events": pa.int32()}


def sessions_columns(values: pa.RecordBatch, events: pa.RecordBatch) -> pa.RecordBatch:
    """All sessions of a key; an event that comes within the gap of the latest belongs to it, else it begins one."""
    at = pc.fill_null(events["at"], 0)
    n = events.num_rows
    latest = np.full(n, -(2**60))
    of = np.asarray(values["_event"])
    np.maximum.at(latest, of, np.asarray(values["end"]))
    goes_on = np.asarray(at) - latest <= GAP
    its = goes_on[of] & (np.asarray(values["end"]) == latest[of])
    end = np.where(its, np.maximum(np.asarray(at)[of], latest[of]), np.asarray(values["end"]))
    new = np.flatnonzero(~goes_on)
    begin = np.concatenate([np.asarray(values["begin"]), np.asarray(at)[new]])
    end, count = (
        np.concatenate([end, np.asarray(at)[new]]),
        np.concatenate([np.asarray(values["events"]) + its, new * 0 + 1]),
    )
    return pa.record_batch(
        {"begin": begin, "end": end, "events": pa.array(count, pa.int32()), "_event": np.concatenate([of, new])}
    )


SESSIONS = dd.Machine(SESSION, sessions_columns)


def sessions(values: Values, event: dict[str, Any]) -> Values:
    at = event["at"] or 0
    latest = max(values, key=lambda each: each[1], default=None)
    if latest is None or at - latest[1] > GAP:
        return values | {(at, at, 1)}
    # Two sessions that end together are both the latest.
    rest = {each for each in values if each[1] != latest[1]}
    return frozenset(rest | {(each[0], max(at, each[1]), each[2] + 1) for each in values - rest})


MINUTE = 3


def failures_scalar(values: Any, event: Any, out: Any) -> int:
    """Each failure opens a count; one that reaches three within a minute is an alarm, and stays."""
    n = 0
    for i in range(values.size):
        value = values[i]
        alarm = value.failures >= 3
        if alarm or (event.fails and event.at - value.since <= MINUTE):
            out[n].since = value.since
            out[n].failures = value.failures if alarm else value.failures + 1
            n += 1
    if event.fails:
        out[n].since = event.at
        out[n].failures = 1
        n += 1
    return n


def failures(values: Values, event: dict[str, Any]) -> Values:
    fails, at = event["symbol"] == "fail", event["at"] or 0
    kept = {(since, n if n >= 3 else n + 1) for since, n in values if n >= 3 or (fails and at - since <= MINUTE)}
    return frozenset(kept | ({(at, 1)} if fails else set()))


def failures_columns(values: pa.RecordBatch, events: pa.RecordBatch) -> pa.RecordBatch:
    of = np.asarray(values["_event"])
    fails, at = (
        np.asarray(pc.fill_null(pc.equal(events["symbol"], "fail"), False)),
        np.asarray(pc.fill_null(events["at"], 0)),
    )
    since, n = np.asarray(values["since"]), np.asarray(values["failures"])
    stays = (n >= 3) | (fails[of] & (at[of] - since <= MINUTE))
    new = np.flatnonzero(fails)
    return pa.record_batch(
        {
            "since": np.concatenate([since[stays], at[new]]),
            "failures": pa.array(np.concatenate([(n + (n < 3))[stays], new * 0 + 1]), pa.int8()),
            "_event": np.concatenate([of[stays], new]),
        }
    )


def last_scalar(values: Any, event: Any, out: Any) -> int:
    """A value or the flag of null: the other is as it was when the call began."""
    if event.at_null:
        out[0].last_null = True
    else:
        out[0].last = event.at
    return 1


def last(values: Values, event: dict[str, Any]) -> Values:
    return frozenset({(event["at"],)})


def in_part_scalar(values: Any, event: Any, out: Any) -> int:
    """It writes values that it does not count, columns of others that it does, reads ``out``, and spoils its input."""
    n = values.size
    if event.fails:
        out[0].a_null = out[1].b_null = out[9].a_null = True
        out[3].a = out[9].b = 7
    else:
        out[0].a, out[1].b = event.at + out[3].a + out[9].b, n
    for value in values:
        value.a, value.b_null = 5, True
    event.at = 5
    return 1 + event.fails if event.at_null else 3


def in_part(values: Values, event: dict[str, Any]) -> Values:
    at, fails = event["at"], event["symbol"] == "fail"
    made = [(None, 0.0), (0, None), (0, 0.0)] if fails else [(at or 0, 0.0), (0, float(len(values))), (0, 0.0)]
    return frozenset(made[: (1 + fails) if at is None else 3])


def signs_scalar(values: Any, event: Any, out: Any) -> int:
    """Zero of both signs is one value."""
    out[1].x, out[2].x = -0.0, values.size
    return 3


def signs(values: Values, event: dict[str, Any]) -> Values:
    return frozenset({(0.0,), (float(len(values)),)})


FAILURES = {"since": pa.int64(), "failures": pa.int8()}
IN_PART = {"a": pa.int64(), "b": pa.float32()}
MACHINES: dict[str, tuple[dd.Machine, Oracle]] = {
    "turnstile": (TURNSTILE, turnstile),
    "dropping": (DROPPING, dropping),
    "orders": (ORDERS, orders),
    "sessions": (SESSIONS, sessions),
    "failures": (dd.Machine(FAILURES, failures_columns), failures),
    "compiled failures": (dd.Machine(FAILURES, failures_scalar, scalar=True), failures),
    "compiled last": (dd.Machine({"last": pa.int64()}, last_scalar, scalar=True), last),
    "compiled in part": (dd.Machine(IN_PART, in_part_scalar, scalar=True, limit=10), in_part),
    "compiled signs": (dd.Machine({"x": pa.float64()}, signs_scalar, scalar=True, limit=3), signs),
}
SCALAR = pa.schema([*EVENTS, pa.field("fails", pa.bool_(), nullable=False)])
SPECS: dict[str, dict[str, Any]] = {
    "arrival": {},
    "order": {"order_by": "at"},
    "first": {"order_by": "at", "tie": "first"},
    "hold back": {"time": "t"},
    "hold back, order": {"time": "t", "order_by": "at"},
}


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    rows = [row | {"fails": row["symbol"] == "fail", "at": row["at"]} for row in rows]
    return pa.Table.from_pylist(rows, schema=SCALAR)


class Twin:
    """The same with dicts: which events are folded, and the sets of all keys."""

    def __init__(self, oracle: Oracle, spec: dict[str, Any]) -> None:
        self.oracle, self.spec = oracle, spec
        self.values: dict[int, Values] = {}
        self.orders: dict[int, Any] = {}

    def take(self, time: int, rows: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
        """One time."""
        before, rows = dict(self.values), list(rows)
        if "time" in self.spec:
            self.orders = {}
            if "order_by" in self.spec:
                rows.sort(key=lambda row: (row["at"] is not None, row["at"] or 0))
        for row in rows:
            key = row["k"]
            if "order_by" in self.spec:
                running = self.orders.get(key, "none")
                at = (running if running != "none" else None) if row["at"] is None else row["at"]
                rank = (at is not None, at or 0)
                if running != "none":
                    held = (running is not None, running or 0)
                    if rank < held or (rank == held and self.spec.get("tie") == "first"):
                        continue
                self.orders[key] = at
            self.values[key] = frozenset() if row["gone"] else self.oracle(self.values.get(key, frozenset()), row)
        out: Counter[tuple[Any, ...]] = Counter()
        for key in {row["k"] for row in rows}:
            old, new = before.get(key, frozenset()), self.values.get(key, frozenset())
            out.update({(key, *value, time): 1 for value in new - old})
            out.update({(key, *value, time): -1 for value in old - new})
        return out

    def holds(self) -> Counter[tuple[Any, ...]]:
        return Counter((key, *value) for key, values in self.values.items() for value in values)


def flow_of(machine: dd.Machine, **spec: Any) -> dd.Flow:
    flow = dd.Flow()
    upsert = dd.Upsert("k", delete=dd.tombstone("gone"), **spec)
    made = flow.output("out", flow.machine("events", SCALAR, upsert, machine))
    flow.output("count", made.count(by=[], name="n"))
    return flow


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    rows = table.select([name for name in table.column_names if name != "_diff"])
    out: Counter[tuple[Any, ...]] = Counter()
    for row, diff in zip(rows.to_pylist(), table["_diff"].to_pylist(), strict=True):
        assert diff
        assert tuple(row.values()) not in out, "not consolidated"
        out[tuple(row.values())] += diff
    return out


@st.composite
def stories(draw: st.DrawFn) -> tuple[str, str, list[list[dict[str, Any]]]]:
    one = st.fixed_dictionaries(
        {
            "k": st.sampled_from([1, 1, 2]),
            "at": st.sampled_from([None, 1, 2, 3, 5, 8, 9]),
            "t": st.sampled_from([0, 1, 2]),
            "symbol": st.sampled_from(SYMBOLS),
            "gone": st.sampled_from([False] * 7 + [True]),
        }
    )
    name, spec = draw(st.sampled_from(sorted(MACHINES))), draw(st.sampled_from(sorted(SPECS)))
    calls = draw(st.lists(st.lists(one, max_size=8), min_size=1, max_size=4))
    if name == "compiled failures":
        calls = [[row | {"at": row["at"] or 0} for row in rows] for rows in calls]
    return name, spec, calls


@mid_test
@given(stories(), st.booleans())
@effort(150)
def test_every_call_gives_what_the_obvious_machine_gives(story: Any, durable: bool) -> None:
    name, kind, calls = story
    (machine, oracle), spec = MACHINES[name], SPECS[kind]
    twin, flow, store = Twin(oracle, spec), flow_of(machine, **spec), MemoryStore()
    engine = flow.open(store if durable else None, secret=SECRET)
    for number, rows in enumerate(calls):
        expected: Counter[tuple[Any, ...]] = Counter()
        if "time" in spec:
            rows = [row | {"t": row["t"] + 10 * number} for row in rows]
            engine.push({"events": table_of(rows)})
            found = engine.advance_to(10 * number + 10)["out"]
            for time in sorted({row["t"] for row in rows}):
                expected.update(twin.take(time, [row for row in rows if row["t"] == time]))
        else:
            found = engine.step({"events": table_of(rows)}, number)["out"]
            expected = twin.take(number, rows)
        assert counted(found) == expected
        if durable:
            engine.close()
            store = store.reopen()
            engine = flow.open(store, secret=SECRET)
        assert counted(engine.read("out")) == twin.holds()
        assert engine.read("count")["n"].to_pylist() == [sum(twin.holds().values())] * bool(twin.holds())
    engine.close()


@given(stories(), st.integers(1, 3))
@effort(60)
def test_cutting_events_into_steps_changes_nothing(story: Any, size: int) -> None:
    name, kind, calls = story
    if "time" in SPECS[kind]:
        kind = "order"
    rows, held = [row for call in calls for row in call], []
    for parts in ([rows], [rows[i : i + size] for i in range(0, len(rows), size)]):
        with flow_of(MACHINES[name][0], **SPECS[kind]).open() as engine:
            for time, part in enumerate(parts):
                engine.step({"events": table_of(part)}, time)
            held.append(counted(engine.read("out")) if parts else Counter())
    assert held[0] == held[1]


@given(stories(), st.permutations([1, 2]), st.integers(0, 2**64 - 1), st.integers(1, 5))
@effort(100)
def test_the_secret_the_order_of_keys_and_other_keys_change_nothing(story: Any, keys: Any, word: int, n: int) -> None:
    name, kind, calls = story
    if "time" in SPECS[kind]:
        kind = "order"
    flow, found = flow_of(MACHINES[name][0], **SPECS[kind]), []
    for secret, more in ((SECRET, 0), (Secret(word, word // 3), n)):
        with flow.open(secret=secret) as engine:
            outs = []
            for time, rows in enumerate(calls):
                others = [row | {"k": 2 + i} for i in range(1, more + 1) for row in rows[i % 2 :: 2]]
                given = sorted(others + rows, key=lambda row: keys.index(row["k"]) if row["k"] < 3 else row["k"] % 3)
                out = counted(engine.step({"events": table_of(given if more else rows)}, time)["out"])
                outs.append({row: diff for row, diff in out.items() if row[0] < 3})
        found.append(outs)
    assert found[0] == found[1]


def test_what_a_call_leaves_unset_is_not_what_another_one_wrote() -> None:
    rows = [{"k": 1, "at": at, "t": 0, "symbol": None, "gone": False} for at in (None, 5, None)]
    for size in (1, 2, 3):
        with flow_of(MACHINES["compiled last"][0]).open(secret=SECRET) as engine:
            for i in range(0, 3, size):
                engine.step({"events": table_of(rows[i : i + size])}, i)
                held = rows[min(i + size, 3) - 1]["at"]
                assert counted(engine.read("out")) == Counter({(1, held): 1})


def nans_scalar(values: Any, event: Any, out: Any) -> int:
    """NaN of both signs is one value; the size of what is held is told."""
    out[0].x, out[0].y = event.x, event.y
    out[1].x, out[1].y = -event.x, -event.y
    out[2].x = values.size
    return 3


def test_nans_are_one_value_between_steps_and_within_one() -> None:
    kinds, found = {"x": pa.float64(), "y": pa.float32()}, []
    nan = float("nan")
    rows = pa.table({"k": [1] * 4, "x": [nan, 0.0, nan, 1.5], "y": pa.array([nan, nan, -0.0, 1.5], pa.float32())})
    flow = dd.Flow()
    machine = dd.Machine(kinds, nans_scalar, scalar=True, limit=3)
    flow.output("out", flow.machine("events", {"k": pa.int64()} | kinds, dd.Upsert("k"), machine))
    for size in (1, 2, 3, 4):
        with flow.open(secret=SECRET) as engine:
            for i in range(0, 4, size):
                engine.step({"events": rows.slice(i, size)}, i)
            found.append(sorted(map(str, engine.read("out").select(["x", "y"]).to_pylist())))
    assert found == [[str({"x": x, "y": y}) for x, y in ((-1.5, -1.5), (1.5, 1.5), (2.0, 0.0))]] * 4


def unset(values: Any, event: Any, out: Any) -> int:
    out[0].nowhere = event.at
    return 1


def unread(values: Any, event: Any, out: Any) -> int:
    n = 0
    for value in values:
        out[n].n = value.symbol
        n += 1
    return n


@pytest.mark.parametrize(("function", "field"), [(unset, "nowhere"), (unread, "symbol")])
def test_a_compiled_transition_of_unknown_fields_is_refused_when_the_flow_is_built(function: Any, field: str) -> None:
    words = f"the machine of 'events': {function.__name__} names the field '{field}', which does not exist; fix "
    fields = r"f\(values, event, out\), where values has \['n', 'n_null'\]; event has \['k', .*\]; out has \['n', "
    with pytest.raises(SpecError, match=words + fields):
        flow_of(dd.Machine({"n": pa.int64()}, function, scalar=True))


@pytest.mark.parametrize("name", ["turnstile", "orders", "sessions"])
def test_a_machine_in_little_memory_gives_the_same(name: str) -> None:
    rows = [{"k": i * 7 % 50, "at": i, "t": 0, "symbol": SYMBOLS[i % 7], "gone": i % 41 == 0} for i in range(300)]
    held = []
    for medium in (None, 20):
        store = MemoryStore()
        with flow_of(MACHINES[name][0], order_by="at").open(store, memory=MEMORY, secret=SECRET) as engine:
            if medium is not None:
                tighten(engine, 0, medium)
            for time in range(3):
                engine.step({"events": table_of(rows[time * 100 : time * 100 + 100])}, time)
            held.append(counted(engine.read("out")))
    assert held[0] == held[1] != Counter()


def refused(machine: dd.Machine, *rows: dict[str, Any]) -> None:
    """A second step with these rows is refused, and changes nothing."""
    with flow_of(machine).open() as engine:
        one = {"k": 1, "at": 1, "t": 0, "symbol": "coin", "gone": False}
        engine.step({"events": table_of([one])}, 0)
        before = engine.read("out")
        try:
            engine.step({"events": table_of([one | row for row in rows])}, 1)
        finally:
            assert engine.read("out").equals(before)


def test_an_illegal_transition_refuses_the_step_and_names_it() -> None:
    strict = dd.Machine("door", {("locked", "coin"): "open", ("open", "push"): "locked"}, on="symbol", start="locked")
    with raises(IllegalTransition):
        refused(strict, {})
    several = dd.Machine("door", {("a", "coin"): {"a", "b"}, ("a", "push"): "a"}, on="symbol", start="a")
    with raises(IllegalTransition):
        refused(several, {"symbol": "push"})
    with raises(IllegalTransition):
        refused(strict, {"k": 2, "symbol": None})


def goes_wrong(values: pa.RecordBatch, events: pa.RecordBatch) -> pa.RecordBatch:
    raise LookupError("no way")


def always(**columns: Any) -> Callable[..., pa.RecordBatch]:
    def made(values: pa.RecordBatch, events: pa.RecordBatch) -> pa.RecordBatch:
        if events["symbol"].to_pylist() == ["coin"]:
            return pa.record_batch({"n": [1], "_event": [0]})
        return pa.record_batch(columns)

    return made


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (always(n=[1], _event=[7]), MergerFailed, "value of event 7"),
        (always(n=[1]), MergerFailed, r"columns \['n'\]"),
        (always(n=["x"], _event=[0]), MergerFailed, "'n'"),
        (goes_wrong, MergerFailed, "raised LookupError: no way"),
        (always(n=[1, 2, 3], _event=[0, 0, 0]), ListTooLong, "would hold 3 values, but limit= is 2"),
        (always(n=[9], _event=[0]), IllegalTransition, "leads to .*9.* which is not in states="),
    ],
)
def test_a_transition_that_fails_is_named(function: Any, error: type[DdflowError], words: str) -> None:
    with pytest.raises(error, match=words):
        refused(dd.Machine({"n": pa.int64()}, function, limit=2, states=[1, 2, 3]), {"symbol": "push"})


def too_many(values: Any, event: Any, out: Any) -> int:
    return out.size + 1 if event.at > 1 else 1


def negative(values: Any, event: Any, out: Any) -> int:
    return -1 if event.at > 1 else 0


def throws(values: Any, event: Any, out: Any) -> int:
    if event.at > 1:
        raise ValueError("not so")
    return 0


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (too_many, ListTooLong, "would hold 65 values"),
        (negative, MergerFailed, "a negative number of values"),
        (throws, MergerFailed, "ValueError: not so"),
    ],
)
def test_a_compiled_transition_that_fails_is_named(function: Any, error: type[DdflowError], words: str) -> None:
    with pytest.raises(error, match=words):
        refused(dd.Machine({"n": pa.int64()}, function, scalar=True), {"at": 2})


@pytest.mark.drawn(1)
@pytest.mark.parametrize("function", [too_many, negative])
def test_a_compiled_transition_that_fails_names_the_key_of_its_event(function: Any) -> None:
    with raises(DdflowError):
        refused(dd.Machine({"n": pa.int64()}, function, scalar=True), *[{"at": 0}] * 6, {"k": 2, "at": 2})


def test_states_of_a_kind_of_numbers_are_kept_as_numbers() -> None:
    door = IntEnum("door", ["LOCKED", "OPEN"])
    machine = dd.Machine("door", {(door.LOCKED, "coin"): door.OPEN}, on="symbol", start=door.LOCKED)
    assert machine.state == (("door", pa.int64()),)


GOOD = {"state": "s", "transition": {("a", "x"): "b"}, "on": "symbol", "start": "a"}


@pytest.mark.parametrize(
    "changed",
    [
        {"on": None},
        {"start": None},
        {"transition": {}},
        {"otherwise": "ignore"},
        {"limit": 0},
        {"scalar": True},
        {"states": ["a"]},
        {"states": ["b"]},
        {"transition": {("a", "x"): 1}},
        {"transition": {"a": "b"}},
        {"state": {"a": pa.string(), "b": pa.string()}},
        {"state": {"s": pa.list_(pa.string())}},
        {"transition": {(i, "x"): {i + 1} for i in range(64)}, "start": 0},
        {"transition": print},
        {"on": "nowhere"},
        {"on": "k"},
        {"state": {"s": pa.int8()}},
        {"state": "k"},
        {"transition": print, "on": None, "state": {"n": pa.int64()}, "start": [{"n": 1}, {"n": 2}], "limit": 1},
    ],
)
def test_a_machine_that_contradicts_itself_or_its_input_is_refused(changed: dict[str, Any]) -> None:
    with raises(SpecError):
        dd.Flow().machine("events", EVENTS, dd.Upsert("k"), dd.Machine(**GOOD | changed))


@pytest.mark.parametrize(
    "options",
    [
        {"merge": dd.Merge()},
        {"value": ["at"]},
        {"where": "at > 1", "track": ["at"]},
        {"order_by": "at", "tie": "greatest"},
    ],
)
def test_a_spec_of_rows_is_refused(options: dict[str, Any]) -> None:
    with raises(SpecError):
        dd.Flow().machine("events", EVENTS, dd.Upsert("k", **options), TURNSTILE)


def test_stale_events_are_told_with_their_own_columns() -> None:
    flow = dd.Flow()
    spec = dd.Upsert("k", order_by="at", stale="side", delete=dd.tombstone("gone"))
    flow.output("out", flow.machine("events", EVENTS, spec, TURNSTILE))
    rows = pa.Table.from_pylist([{"k": 1, "at": at, "t": 0, "symbol": "coin", "gone": False} for at in (5, 4)], EVENTS)
    with flow.open(verdicts="rows") as engine:
        engine.step({"events": rows.slice(0, 1)}, 0)
        out = engine.step({"events": rows.slice(1)}, 1)
        with raises(SpecError):
            engine.replace("events", rows, 2)
        assert engine.read("out").num_rows == 1
        with pytest.raises(NotReadable):
            engine.read("nowhere")
    assert out["out"].num_rows == 0
    assert out["events.stale"].select(["k", "at", "symbol", "_winner_at"]).to_pylist() == [
        {"k": 1, "at": 4, "symbol": "coin", "_winner_at": 5}
    ]


@pytest.mark.parametrize("name", ["turnstile", "dropping", "orders", "sessions", "compiled failures"])
@pytest.mark.parametrize("gone", [True, False])
def test_a_key_that_lost_all_it_held_begins_anew_in_the_same_step(name: str, gone: bool) -> None:
    machine, oracle = MACHINES[name]
    twin = Twin(oracle, {})
    one = {"k": 1, "at": 1, "t": 0, "symbol": "coin", "gone": False}
    with flow_of(machine).open() as engine:
        for time, symbols in enumerate((["coin", "pay"], ["push", "coin"], ["push", "coin", "push", "pay", "fail"])):
            rows = [one | {"symbol": each, "gone": gone and each == "push"} for each in symbols]
            assert counted(engine.step({"events": table_of(rows)}, time)["out"]) == twin.take(time, rows)


def as_given(values: pa.RecordBatch, events: pa.RecordBatch) -> pa.RecordBatch:
    """What a list of numbers says, as often as it says it."""
    rows = [(float(x), i) for i, text in enumerate(events["symbol"].to_pylist()) for x in (text or "").split()]
    return pa.record_batch(
        {"x": pa.array([x for x, _ in rows], pa.float64()), "_event": pa.array([i for _, i in rows], pa.int64())}
    )


def test_equal_values_are_one_and_an_equal_set_in_another_order_is_no_change() -> None:
    with flow_of(dd.Machine({"x": pa.float64()}, as_given)).open() as engine:
        one = {"k": 1, "at": 1, "t": 0, "gone": False}
        out = [
            engine.step({"events": table_of([one | {"symbol": text}])}, time)
            for time, text in enumerate(("0 nan 2 2 nan -0.0", "nan 2 -0.0", "2", ""))
        ]
    assert sorted(map(str, out[0]["out"]["x"].to_pylist())) == ["0.0", "2.0", "nan"]
    assert out[0]["out"]["_diff"].to_pylist() == [1, 1, 1]
    assert out[1]["out"].num_rows == 0
    assert out[1].verdicts["noop"] == 1
    assert out[2]["out"]["_diff"].to_pylist() == [-1, -1]
    assert counted(out[3]["out"]) == Counter({(1, 2.0, 3): -1})


def test_a_plan_with_tables_is_read_back_and_one_with_functions_needs_its_flow() -> None:
    for machine in (TURNSTILE, DROPPING, ORDERS):
        written = describe_plan(flow_of(machine, order_by="at"))
        again = rebuild_plan(written)
        assert describe_plan(again) == written
        assert fingerprint_plan(written) == fingerprint_plan(describe_plan(flow_of(machine, order_by="at")))
    assert describe_plan(flow_of(TURNSTILE)) != describe_plan(flow_of(ORDERS))
    with raises(SpecError):
        rebuild_plan(describe_plan(flow_of(SESSIONS)))


def test_a_state_of_another_machine_is_refused() -> None:
    store = MemoryStore()
    flow_of(dd.Machine(SESSION, sessions_columns, limit=9)).open(store).close()
    with flow_of(SESSIONS).open(store.reopen()) as engine:  # nothing was committed, so it may be any plan
        engine.step({"events": table_of([{"k": 1, "at": 1, "t": 0, "symbol": "coin", "gone": False}])}, 0)
    other = dd.Machine(SESSION, failures_columns)
    for machine in (other, dd.Machine(SESSION, sessions_columns, limit=9)):
        with raises(PlanChanged):
            flow_of(machine).open(store.reopen())
    plain = dd.Flow()
    plain.output("out", plain.upserts("events", SCALAR, dd.Upsert("k", delete=dd.tombstone("gone"))))
    with pytest.raises(PlanChanged):
        plain.open(store.reopen())


@pytest.mark.parametrize("name", ["turnstile", "orders", "sessions", "compiled last"])
def test_a_state_is_whole_with_or_without_its_code(name: str, tmp_path: Path) -> None:
    flow = flow_of(MACHINES[name][0], order_by="at")
    with flow.open(tmp_path / "state") as engine:
        engine.step({"events": table_of([{"k": 1, "at": 1, "t": 0, "symbol": "coin", "gone": False}])}, 0)
    for known in (None, flow):
        report = dd.fsck(tmp_path / "state", flow=known)
        assert not report.problems, report


def test_starts_of_functions_and_lists_of_other_things() -> None:
    def adds(values: pa.RecordBatch, events: pa.RecordBatch) -> pa.RecordBatch:
        return values.set_column(0, "n", pc.add(values["n"], 1))

    machine = dd.Machine({"n": pa.int64()}, adds, start=[{"n": 10}, {"n": 20}, {"n": 10}])
    with flow_of(machine).open() as engine:
        out = engine.step({"events": table_of([{"k": 1, "at": 1, "t": 0, "symbol": None, "gone": False}])}, 0)["out"]
    assert counted(out) == Counter({(1, 11, 0): 1, (1, 21, 0): 1})
    flow = dd.Flow()
    rows = flow.upserts("a", {"k": pa.int64(), "tags": pa.list_(pa.string())}, dd.Upsert("k"))
    flow.output("tags", rows.unnest("tags").project(["tags"]).count())
    with flow.open() as engine:
        engine.step({"a": pa.table({"k": [1, 2, 3], "tags": [["x", "y", "x"], [], None]}, pa.schema(rows.schema))}, 0)
        assert counted(engine.read("tags")) == Counter({("x", 2): 1, ("y", 1): 1})
    for column in ("k", "tag"):
        with raises(SpecError):
            rows.unnest(column)


def test_the_examples_of_the_page_are_true() -> None:
    page = Path(__file__).parents[2] / "docs" / "machines.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.failed == 0
    assert found.attempted > 20
