"""Test expiry: which rows expire, when, and that they never return (docs/semantics.md, section 10).

Over drawn specs and calls the engine equals the twin: in memory, under an empty budget, and with restarts and merges at
any moment. A feed that always has new keys keeps a bounded number of keys, versions and bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from doors import EngineDoor, to_arrow
from hypothesis import given, strategies as st
from messages import raises
from pair import Pair
from rules import Refused
from test_durable import small_spines
from tight import MEMORY, merge, spill, tighten

import ddflow as dd
from ddflow.errors import SpecError
from ddflow.storage.memory import MemoryStore

COLUMNS = {"k": "int64", "at": "int64", "v": "string", "gone": "bool"}


def scenario(
    expiry: dict[str, Any], columns: dict[str, str] = COLUMNS, outputs: Any = None, **spec: Any
) -> dict[str, Any]:
    given_spec = {"key": ["k"], "order_by": ["at"], "delete": {"tombstone": "gone"}, "expiry": expiry} | spec
    return {"inputs": {"a": {"columns": columns, "spec": given_spec}}, "outputs": outputs or {"out": ["input", "a"]}}


def counted(upserts: dict[str, Any]) -> dict[str, int]:
    return {name: n for name, n in upserts.items() if n}


# Examples


def test_pinot_metadata_ttl_a_key_below_the_horizon_is_forgotten_and_its_row_stays_in_what_was_put_out() -> None:
    outputs = {"out": ["input", "a"], "n": ["count", ["input", "a"], [], "n"]}
    door = EngineDoor(scenario({"ttl": 30, "on_expire": "forget"}, outputs=outputs))
    door.step({"a": [[1, 80, "old", False], [2, 120, "x", False]]}, 1)
    assert set(door.read("out")) == {(1, 80, "old"), (2, 120, "x")}
    out = door.step({}, 2)
    assert out.updates == {"out": {}, "n": {}}
    assert set(door.read("out")) == {(2, 120, "x")}
    assert set(door.read("n")) == {(2,)}
    assert door.step({"a": [[1, 85, "late", False]]}, 3).verdicts == {"forgotten": 1}
    out = door.step({"a": [[1, 95, "new", False]]}, 4)
    assert out.updates["out"] == {((1, 95, "new"), 4): 1}
    assert out.updates["n"] == {((2,), 4): -1, ((3,), 4): 1}
    assert door.engine.dataflow.graph.inputs["a"].expiring.forgotten == 1


def test_retract_takes_the_row_back_through_all_operators_in_a_step_without_events() -> None:
    outputs = {"out": ["input", "a"], "n": ["count", ["input", "a"], ["v"], "n"]}
    door = EngineDoor(scenario({"ttl": 30}, outputs=outputs))
    door.step({"a": [[1, 80, "x", False], [2, 120, "x", False]]}, 1)
    out = door.step({}, 2)
    assert out.updates == {"out": {((1, 80, "x"), 2): -1}, "n": {(("x", 2), 2): -1, (("x", 1), 2): 1}}
    assert door.step({}, 3).updates == {"out": {}, "n": {}}


def test_a_forgotten_key_that_comes_back_is_counted_once_unless_forgetting_is_asked_for() -> None:
    outputs = {"n": ["count", ["input", "a"], [], "n"]}
    counts = {}
    for how in ("by default", "retract", "forget"):
        expiry = {"ttl": 30} if how == "by default" else {"ttl": 30, "on_expire": how}
        door = EngineDoor(scenario(expiry, outputs=outputs))
        door.step({"a": [[1, 80, "x", False], [2, 120, "x", False]]}, 1)
        door.step({}, 2)
        door.step({"a": [[1, 110, "x", False]]}, 3)
        counts[how] = sum(n for (n,) in door.read("n")), len(door.read("a"))
    assert counts == {"by default": (2, 2), "retract": (2, 2), "forget": (3, 2)}


@pytest.mark.parametrize("merge", [{}, {"merge": {}}, {"merge": "first_row"}, {"versions": "cell"}])
def test_a_delete_that_meets_the_expiry_of_its_key_is_a_noop_and_the_row_goes(merge: dict[str, Any]) -> None:
    columns = {name: kind for name, kind in COLUMNS.items() if name != "v"}
    outputs = {"out": ["input", "a"], "n": ["count", ["input", "a"], [], "n"]}
    door = EngineDoor(scenario({"ttl": 30}, columns, outputs, **merge))
    door.step({"a": [[1, 80, False], [2, 85, False], [3, 120, False]]}, 1)
    out = door.step({"a": [[1, 100, True], [2, 110, False], [2, 115, True], [4, 130, True]]}, 2)
    assert out.updates["out"] == {((1, 80), 2): -1, ((2, 85), 2): -1}
    assert out.updates["n"] == {((3,), 2): -1, ((1,), 2): 1}
    assert out.verdicts == {"noop": 3, "superseded": 1}
    assert [row[3] for row in sorted(out.rows["a"])] == ["noop", "superseded", "noop", "noop"]
    assert door.step({"a": [[1, 99, False], [2, 116, False]]}, 3).verdicts == {"stale": 1, "applied": 1}


def test_a_forgotten_key_with_events_of_its_own_is_one_net_change() -> None:
    door = EngineDoor(scenario({"ttl": 30}))
    door.step({"a": [[1, 80, "x", False], [2, 120, "x", False]]}, 1)
    out = door.step({"a": [[1, 100, "y", False]]}, 2)
    assert out.updates["out"] == {((1, 80, "x"), 2): -1, ((1, 100, "y"), 2): 1}
    assert out.verdicts == {"applied": 1}


def test_the_first_epoch_has_no_horizon_and_null_is_below_every_one() -> None:
    door = EngineDoor(scenario({"ttl": 10}))
    door.step({"a": [[1, None, "x", False], [2, 0, "x", False], [3, 100, "x", False]]}, 1)
    assert len(door.read("out")) == 3
    assert door.step({"a": [[4, None, "x", False]]}, 2).verdicts == {"forgotten": 1}
    assert set(door.read("out")) == {(3, 100, "x")}


def test_tombstones_expire_by_a_time_of_their_own_and_an_older_insert_may_then_be_new() -> None:
    door = EngineDoor(scenario({"tombstone_ttl": 20, "on_forgotten": "insert"}))
    door.step({"a": [[1, 100, "x", False], [2, 100, "x", False], [1, 120, "x", True], [2, 150, "x", True]]}, 1)
    assert door.step({"a": [[1, 119, "again", False], [2, 149, "again", False]]}, 2).verdicts == {
        "applied": 1,
        "stale": 1,
    }
    assert set(door.read("out")) == {(1, 119, "again")}


def test_on_forgotten_refuse_keeps_out_what_a_tombstone_would_have_kept_out() -> None:
    door = EngineDoor(scenario({"tombstone_ttl": 20}))
    door.step({"a": [[1, 120, "x", True], [2, 150, "x", False]]}, 1)
    assert door.step({"a": [[1, 119, "x", False], [3, 129, "x", False], [3, 130, "x", False]]}, 2).verdicts == {
        "forgotten": 2,
        "applied": 1,
    }


def test_full_contents_are_authoritative_and_leave_no_tombstone_of_what_is_forgotten() -> None:
    door = EngineDoor(scenario({"ttl": 30}))
    door.step({"a": [[1, 80, "x", False], [2, 120, "x", False]]}, 1)
    out = door.replace("a", [[2, 120, "x", False], [3, 5, "old", False]], 2)
    assert out.absent == 0
    assert out.verdicts == {"noop": 1, "applied": 1}
    assert set(door.read("out")) == {(2, 120, "x"), (3, 5, "old")}
    door.step({}, 3)
    assert set(door.read("out")) == {(2, 120, "x")}


def test_first_row_within_a_window_is_the_dedup_of_an_append_only_feed() -> None:
    flow = dd.Flow()
    spec = dd.Upsert("id", "at", merge="first_row", expiry=dd.Expiry(ttl=100, on_expire="forget"))
    _ = flow.output("clicks", flow.upserts("clicks", {"id": pa.int64(), "at": pa.int64(), "page": pa.string()}, spec))
    feed = [[(7, 10, "a"), (7, 12, "b"), (8, 90, "c")], [(7, 60, "d"), (8, 95, "e")], [(9, 170, "f")], [(7, 171, "g")]]
    out = []
    with flow.open() as engine:
        for time, rows in enumerate(feed):
            columns = zip(*rows, strict=True)
            table = pa.table(dict(zip(("id", "at", "page"), map(list, columns), strict=True)))
            out += [
                (row["id"], row["page"], row["_diff"])
                for row in engine.step({"clicks": table}, time)["clicks"].to_pylist()
            ]
    assert sorted(out[:2]) == [(7, "a", 1), (8, "c", 1)]
    assert out[2:] == [(9, "f", 1), (7, "g", 1)]


def test_a_time_to_live_of_zero_keeps_what_has_the_greatest_order_seen() -> None:
    door = EngineDoor(scenario({"ttl": 0}))
    door.step({"a": [[1, 80, "x", False], [2, 120, "x", False], [3, 120, "x", False]]}, 1)
    assert door.step({}, 2).updates["out"] == {((1, 80, "x"), 2): -1}
    out = door.step({"a": [[4, 119, "late", False], [5, 120, "x", False], [6, 121, "x", False]]}, 3)
    assert out.verdicts == {"forgotten": 1, "applied": 2}
    door.step({}, 4)
    assert set(door.read("out")) == {(6, 121, "x")}


def test_a_time_to_live_of_zero_of_tombstones_keeps_those_of_the_greatest_order_seen() -> None:
    door = EngineDoor(scenario({"tombstone_ttl": 0, "on_forgotten": "insert"}))
    door.step({"a": [[1, 100, "x", True], [2, 150, "x", True], [3, 90, "x", False]]}, 1)
    assert door.step({"a": [[1, 99, "again", False], [2, 149, "again", False]]}, 2).verdicts == {
        "applied": 1,
        "stale": 1,
    }
    assert set(door.read("out")) == {(1, 99, "again"), (3, 90, "x")}


def test_timestamps_expire_in_their_own_unit() -> None:
    columns = COLUMNS | {"at": "timestamp[us]"}
    door = EngineDoor(scenario({"ttl": 10**6}, columns))
    door.step({"a": [[1, 10**15, "x", False], [2, 10**15 + 10**6 + 1, "x", False]]}, 1)
    door.step({}, 2)
    assert len(door.read("out")) == 1


@pytest.mark.parametrize(
    ("kind", "expiry"),
    [
        ("string", {"ttl": 30}),
        ("bool", {"ttl": 30}),
        ("decimal(9,2)", {"ttl": 30}),
        ("int64", {"ttl": 1.5}),
        ("timestamp[us]", {"tombstone_ttl": 0.5}),
        ("int8", {"ttl": 256}),
        ("float64", {"ttl": float("inf")}),
    ],
)
def test_an_order_that_cannot_expire_is_refused(kind: str, expiry: dict[str, Any]) -> None:
    with raises(SpecError):
        EngineDoor(scenario(expiry, COLUMNS | {"at": kind}))


def test_upserts_do_not_go_out_of_what_is_forgotten_without_a_word() -> None:
    door = EngineDoor(scenario({"ttl": 30, "on_expire": "forget"}))
    with raises(SpecError):
        door.inputs["a"].filter("at > 0").to_upserts("k")


@pytest.mark.parametrize("how", ["retract", "forget"])
def test_verify_does_not_hold_a_state_to_what_it_has_forgotten(how: str) -> None:
    outputs = {"out": ["input", "a"], "n": ["count", ["input", "a"], ["v"], "n"]}
    store = MemoryStore()
    door = EngineDoor(scenario({"ttl": 30, "on_expire": how}, outputs=outputs), state=store)
    rows = [[1, 80, "x", False], [2, 120, "x", False]]
    door.step({"a": rows}, 1)
    door.step({}, 2)
    door.engine.close()
    found = dd.verify(store.reopen(), {"a": to_arrow(COLUMNS, rows)})
    assert found.ok
    assert (found.inputs["a"].rows, found.inputs["a"].unknown) == (1, 1)
    assert dd.fsck(store.reopen()).ok


# The twin


ORDERS = {
    "int64": [*range(-12, 13, 3), *range(13), 2**63 - 1, -(2**63)],
    "int8": [*range(-12, 13), 127, -128],
    "uint64": [*range(13), 2**63 + 3],
    "timestamp[us]": [*range(-12, 13), 5],
    "date32": [*range(13)],
    "float64": [*map(float, range(-8, 9)), 0.5, -0.0, float("nan"), float("inf"), -float("inf"), 1e300],
    "float32": [0.5, -3.25, 1.0, 4.0, 9.5, float("nan")],
}


@st.composite
def expiring(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from([*ORDERS, "int64", "int64"]))
    whole = not kind.startswith("float")
    ttls = st.sampled_from([0, 1, 2, 5, 9]) if whole else st.sampled_from([0, 0.5, 2, 3.75, 9.0])
    expiry = {
        name: draw(ttls)
        for name in draw(st.sampled_from([["ttl"], ["ttl"], ["ttl", "tombstone_ttl"], ["tombstone_ttl"]]))
    }
    expiry |= {"on_forgotten": draw(st.sampled_from(["refuse", "refuse", "insert"]))}
    if "ttl" in expiry:
        expiry |= draw(st.sampled_from([{"on_expire": "forget"}, {"on_expire": "retract"}, {}]))
    spec: dict[str, Any] = {"null_key": "keep"}
    spec |= draw(
        st.sampled_from(
            [
                {},
                {},
                {"merge": {}},
                {"merge": "first_row"},
                {"versions": "cell"},
                {"merge": {"function": "inc or reset"}},
            ]
        )
    )
    # Who is greatest among partial rows is test_merging_laws.py's.
    spec["tie"] = draw(st.sampled_from(["last", "first", "last" if len(spec) > 1 else "greatest"]))
    spec |= draw(st.sampled_from([{}, {"noop_ignore": ["s"]}])) | draw(st.sampled_from([{}, {"stale": "mark"}]))
    columns = {"k": draw(st.sampled_from(["int64", "string"])), "at": kind, "s": "string", "n": "int64", "gone": "bool"}
    if spec["tie"] in ("last", "first") and draw(st.integers(0, 4)) == 0:
        columns |= {"seq": "int64"}
        spec["seq"] = "seq"
    outputs: dict[str, Any] = {"out": ["input", "a"], "some": ["filter", ["input", "a"], "n > 1"]}
    if expiry.get("on_expire") != "forget":
        outputs["n"] = ["count", ["input", "a"], ["s"], "count"]
    return scenario(expiry, columns, outputs, **spec)


@st.composite
def rows_of(draw: st.DrawFn, given_scenario: dict[str, Any], most: int = 6, once: bool = False) -> list[list[Any]]:
    columns = given_scenario["inputs"]["a"]["columns"]
    values = {
        "k": [*range(6)] if columns["k"] == "int64" else ["", "a", "b", "c", None],
        "at": [*ORDERS[columns["at"]], None],
        "s": ["x", "inc", "reset", None],
        "n": [0, 2, 3, None],
        "gone": [False, False, False, True],
        "seq": [0, 1, 2],
    }
    kinds = [st.sampled_from(values[name]) for name in columns]
    rows = draw(st.lists(st.tuples(*kinds).map(list), max_size=most))
    return list({row[0]: row for row in rows}.values()) if once else rows


@st.composite
def calls(draw: st.DrawFn, given_scenario: dict[str, Any], most: int = 7) -> list[list[Any]]:
    out: list[list[Any]] = []
    for time in range(draw(st.integers(2, most))):
        kind = draw(st.sampled_from(["step"] * 5 + ["nothing", "replace"]))
        if kind == "replace":
            out.append(["contents", {"name": "a", "rows": draw(rows_of(given_scenario, once=True)), "time": time}])
        else:
            out.append(["step", time, {"a": draw(rows_of(given_scenario))} if kind == "step" else {}])
    return out


def listed(given_scenario: dict[str, Any]) -> str:
    """Under versions of cells the order that is told of a deleted key is another's matter."""
    return "counts" if "versions" in given_scenario["inputs"]["a"]["spec"] else "rows"


def played(pair: Pair, call: list[Any]) -> None:
    pair.play(call)
    pair.engine.engine._check_invariants()


@effort(150)
@given(st.data())
def test_agreement_the_engine_equals_the_twin(data: st.DataObject) -> None:
    drawn = data.draw(expiring())
    pair = Pair(drawn, retain=data.draw(st.sampled_from([0, 0, 2**62])), verdicts=listed(drawn))
    for call in data.draw(calls(drawn)):
        played(pair, call)
        if data.draw(st.booleans()):
            pair.merge(None)
    pair.close()


@effort(80)
@given(st.data())
def test_medium_what_was_forgotten_stays_so_through_spills_and_merges(data: st.DataObject) -> None:
    drawn = data.draw(expiring())
    medium = {"share": data.draw(st.sampled_from([0, 2000])), "rows": data.draw(st.integers(1, 4))}
    pair = Pair(drawn, medium=medium, retain=data.draw(st.sampled_from([0, 2**62])), verdicts=listed(drawn))
    for call in data.draw(calls(drawn)):
        played(pair, call)
        act = data.draw(st.sampled_from(["spill", "some", "merge", "bite", "nothing"]))
        if act in ("spill", "some"):
            pair.spill(0 if act == "spill" else 500)
        elif act in ("merge", "bite"):
            pair.merge(None if act == "merge" else 3)
    pair.close()


@effort(60)
@given(st.data(), st.booleans())
def test_restart_the_horizon_is_part_of_the_state(data: st.DataObject, tight: bool) -> None:
    drawn = data.draw(expiring())
    options: dict[str, Any] = {"memory": MEMORY} if tight else {}
    pair = Pair(drawn, state=MemoryStore(), retain=0, verdicts=listed(drawn), **options)
    for call in data.draw(calls(drawn)):
        if tight:
            tighten(pair.engine.engine, 0, 2)
        played(pair, call)
        if data.draw(st.booleans()):
            pair.engine = pair.engine.restart()
    pair.engine.engine.close()


# Nothing comes back


@pytest.mark.parametrize("how", ["forget", "retract"])
@pytest.mark.parametrize("durable", [False, True])
def test_a_key_that_lies_beneath_in_files_does_not_come_back(how: str, durable: bool) -> None:
    options: dict[str, Any] = {"state": MemoryStore(), "memory": MEMORY} if durable else {"medium": {"share": 0}}
    door = EngineDoor(scenario({"ttl": 30, "on_expire": how, "on_forgotten": "insert"}), retain=0, **options)
    door.step({"a": [[1, 80, "old", False], [2, 85, "old", False], [3, 120, "x", False]]}, 1)
    spill(door.engine, 0)
    door.step({}, 2)
    for time in range(3, 9):
        assert set(door.read("out")) == {(3, 120, "x")}
        door = door.restart() if durable and time % 2 else door
        spill(door.engine, 0 if time % 2 else 500)
        merge(door.engine, None if time > 5 else 1)
        door.step({}, time)
        door.engine._check_invariants()
    out = door.step({"a": [[1, 70, "older than what was forgotten", False]]}, 9)
    assert out.verdicts == {"applied": 1}
    assert set(door.read("out")) == {(1, 70, "older than what was forgotten"), (3, 120, "x")}


def test_a_tombstone_goes_only_when_no_older_run_still_holds_its_key() -> None:
    expiry = {"tombstone_ttl": 20, "on_forgotten": "insert"}
    door = EngineDoor(scenario(expiry), medium={"share": 0}, retain=0)
    arranged = door.engine.dataflow.graph.inputs["a"].output_arrangement
    arranged.on_disk.fan = 99
    door.step({"a": [[1, 100, "x", False], [2, 100, "x", False]]}, 1)
    spill(door.engine, 0)
    door.step({"a": [[1, 110, "x", True]]}, 2)
    spill(door.engine, 0)
    door.step({"a": [[3, 200, "x", False]]}, 3)
    spill(door.engine, 0)
    versions = lambda: arranged.on_disk.version_count + arranged.spine.version_count  # noqa: E731
    assert arranged.tombstone_count == 1
    assert versions() == 4, "the run with the tombstone was merged with nothing older: it must stay"
    assert set(door.read("out")) == {(2, 100, "x"), (3, 200, "x")}
    door.engine.compact()
    assert (versions(), arranged.tombstone_count) == (2, 0)
    assert set(door.read("out")) == {(2, 100, "x"), (3, 200, "x")}


def test_a_reader_of_the_time_before_still_sees_what_was_forgotten() -> None:
    door = EngineDoor(scenario({"ttl": 30}))
    door.step({"a": [[1, 80, "x", False], [2, 120, "x", False]]}, 1)
    door.step({}, 2)
    merge(door.engine, None)
    assert len(door.read("out", 1)) == 2
    assert len(door.read("out", 2)) == 1


def test_a_refused_step_forgets_nothing() -> None:
    door = EngineDoor(scenario({"ttl": 30}, tie="error"))
    door.step({"a": [[1, 80, "x", False], [2, 120, "x", False]]}, 1)
    with pytest.raises(Refused):
        door.step({"a": [[2, 120, "y", False]]}, 2)
    assert len(door.read("out")) == 2
    assert door.step({}, 2).updates["out"] == {((1, 80, "x"), 2): -1}


def test_a_state_that_no_event_gave_a_horizon_is_read() -> None:
    store = MemoryStore()
    door = EngineDoor(scenario({"ttl": 30}), state=store)
    door.step({}, 1)  # no event: no horizon to be told of
    door = door.restart()
    assert door.engine.dataflow.graph.inputs["a"].expiring.horizons.greatest is None
    door.step({"a": [[1, 80, "x", False], [2, 120, "x", False]]}, 2)
    door = door.restart()
    assert door.engine.dataflow.graph.inputs["a"].expiring.horizons.greatest == 120
    door.step({}, 3)
    assert len(door.read("out")) == 1


# What it costs


def feed(engine: dd.Engine, steps: int, size: int, deletes: bool, least: int = 0) -> None:
    """Ever new keys: each is inserted, and deleted where that is asked for, and never seen again."""
    for time in range(least, least + steps):
        ids = np.arange(time * size, (time + 1) * size)
        table = pa.table({"k": ids, "at": ids, "v": np.zeros(size, np.int64), "gone": np.zeros(size, bool)})
        if deletes:
            table = pa.concat_tables([table, table.set_column(3, "gone", pa.array(np.ones(size, bool)))])
        engine.step({"a": table}, time)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("how", ["forget", "retract", "deletes"])
@pytest.mark.parametrize("spills", [False, True])
def test_an_endless_feed_of_new_keys_keeps_a_bounded_state(how: str, spills: bool, tmp_path: Any) -> None:
    expiry = dd.Expiry(tombstone_ttl=2000) if how == "deletes" else dd.Expiry(ttl=2000, on_expire=how)
    spec = dd.Upsert("k", "at", delete=dd.tombstone("gone"), expiry=expiry)
    flow, columns = dd.Flow(), {"k": pa.int64(), "at": pa.int64(), "v": pa.int64(), "gone": pa.bool_()}
    _ = flow.output("a", flow.upserts("a", columns, spec))
    with flow.open(**({"memory": "64MB", "spill": tmp_path} if spills else {})) as engine:
        arranged, sizes = engine.dataflow.graph.inputs["a"].output_arrangement, []
        for turn in range(4):
            for part in range(10):
                feed(engine, 5, 500, how == "deletes", turn * 50 + part * 5)
                if spills:
                    spill(engine, 0)
            stats = engine.stats()
            sizes.append((stats["versions"], stats["bytes_resident"] + stats["bytes_mapped"], arranged.tombstone_count))
        engine._check_invariants()
        assert stats["keys"] <= 2501
        # 100,000 keys went through; the second half of them took no more room than the first.
        assert sizes[-1][0] < 16_000 and sizes[-1][0] <= 2 * sizes[1][0], sizes
        assert sizes[-1][1] <= 2 * sizes[1][1], sizes
        assert sizes[-1][2] < 16_000, sizes


def test_a_time_to_live_shorter_than_a_step_does_not_look_at_all_keys_in_every_step(monkeypatch: Any) -> None:
    door = EngineDoor(scenario({"tombstone_ttl": 0}), retain=0)
    expiring_, surveys = door.engine.dataflow.graph.inputs["a"].expiring, []
    survey = expiring_._scan_orders
    monkeypatch.setattr(expiring_, "_scan_orders", lambda *horizons: surveys.append(horizons) or survey(*horizons))
    door.step({"a": [[key, 0, "x", False] for key in range(400)]}, 0)
    for time in range(1, 101):
        door.step({"a": [[1000 + time, time, "x", True]]}, time)
    # One for every 50 keys or so that came, an eighth of those that live.
    assert 2 <= len(surveys) <= 4
    assert door.engine.stats()["tombstones"] <= 1 + 50


def test_a_deletion_that_lapsed_and_was_merged_away_is_not_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``tie="greatest"`` its row was read, from where none is any more."""
    small_spines(monkeypatch)
    columns = {"k": pa.int64(), "at": pa.int64(), "s": pa.string(), "gone": pa.bool_()}
    expiry = dd.Expiry(tombstone_ttl=0, on_forgotten="insert")
    spec = dd.Upsert("k", order_by="at", delete=dd.tombstone("gone"), tie="greatest", expiry=expiry)
    flow = dd.Flow()
    flow.output("out", flow.upserts("a", columns, spec))
    with flow.open() as engine:
        for k, at, gone in [(0, -9, False), (3, -12, True), (4, -8, False), (5, -8, False), (6, -8, False)]:
            engine.step({"k": [k], "at": [at], "s": ["x"], "gone": [gone]})
        out = engine.step({"k": [3], "at": [-12], "s": ["x"], "gone": [False]})["out"]
        assert out.select(["k", "at", "_diff"]).to_pylist() == [{"k": 3, "at": -12, "_diff": 1}]
