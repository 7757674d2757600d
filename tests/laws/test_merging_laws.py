"""Test the laws of merging: the engine beside the twin, and invariance under splits, arrival and restarts.

docs/semantics.md, section 9, states the laws and their limits. Each property asserts one law within exactly these
limits. The table there says which strategies depend on the order of arrival. For each of these, a test shows two orders
of arrival with different rows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from chance import covering, effort
from conditions import CONDITIONS, columns_in
from doors import FOREVER, EngineDoor, TwinDoor
from durable_case import opened
from hypothesis import given, strategies as st
from merging_strategies import batches, events, scenarios
from messages import raises
from model import CLOSED
from pair import Pair
from strategies import VALUES, row_of, shapes, splits
from test_laws import merged, numbered, quietly, same_collections
from tight import tiny

from ddflow.errors import SpecError
from ddflow.storage.memory import MemoryStore

MEDIA = [None, {"share": 0, "rows": 3}, {"share": 700, "rows": 2**40}]


@st.composite
def calls(
    draw: st.DrawFn, scenario: Mapping[str, Any], most: int = 5, contents: bool = True, nulls: bool = True
) -> list[list[Any]]:
    """Steps at rising times with full contents among them, or pushes and advances.  ``nulls``: as in `events`."""
    input = scenario["inputs"]["a"]
    holds_back = "time" in input["spec"]
    out: list[list[Any]] = []
    at = draw(st.integers(-3, 1))
    for _ in range(draw(st.integers(1, most))):
        at += draw(st.sampled_from([1, 1, 2, 3]) if not holds_back else st.integers(0, 3))
        rows = draw(events(input, times=(at - 2, at + 4), nulls=nulls))
        if not holds_back and out and contents and draw(st.integers(0, 4)) == 0:
            out.append(["contents", draw(whole(input, rows, at))])
            continue
        given = {"a": draw(batches(input, rows)) if nulls else rows}
        if not holds_back:
            out.append(["step", at, given])
            continue
        out.append(["push", given])
        if draw(st.booleans()):
            out.append(["advance", at + draw(st.sampled_from([0, 0, 1, 2, -1]))])
    return [*out, ["advance", CLOSED]] if holds_back and draw(st.booleans()) else out


@st.composite
def whole(draw: st.DrawFn, input: Mapping[str, Any], rows: list[list[Any]], at: int) -> dict[str, Any]:
    """A replace or a restatement, as the doors take it by name."""
    spec, columns, order, scope = input["spec"], input["columns"], None, None
    once = draw(st.booleans())
    ordered = [*spec.get("order_by", []), *([spec["seq"]] if "seq" in spec else [])]
    if ordered and (not rows or draw(st.booleans())):
        order = {each: draw(st.sampled_from([None, *VALUES[columns[each]]])) for each in ordered}
    if once:
        key = list(columns).index("k")
        rows = list({row[key]: row for row in rows}.values())
        scopes = [sql for sql in CONDITIONS if columns_in(sql) <= {"b"} & set(row_of(columns, spec))]
        scope = draw(st.sampled_from([None, None, *scopes])) if not merges_flag(spec) else None
    return {"name": "a", "rows": rows, "time": at, "scope": scope, "order": order, "once": once}


def merges_flag(spec: Mapping[str, Any]) -> bool:
    """Whether ``b`` may not be what the event says: collected to a list."""
    return "collect" in str(spec.get("merge", ""))


@effort(150)
@given(st.data(), shapes(), st.sampled_from(MEDIA[:1] * 3 + MEDIA))
def test_agreement_every_call_and_every_read_equals_the_twin(data: st.DataObject, shape: Any, medium: Any) -> None:
    scenario = data.draw(scenarios())
    pair = Pair(scenario, shape, medium=medium)
    for call in data.draw(calls(scenario)):
        pair.play(call)
    pair.close()


@effort(120)
@given(st.data())
def test_schedule_hold_back_any_pushes_and_advances_give_the_same_updates(data: st.DataObject) -> None:
    fixed = {"late": "advance", "lateness": None, "null_key": "drop"}
    scenario = data.draw(
        scenarios(True, **fixed).filter(lambda made: made["inputs"]["a"]["spec"].get("tie") != "error")
    )
    input = scenario["inputs"]["a"]
    rows, at = data.draw(events(input, most=10)), list(input["columns"]).index("t")
    whole = EngineDoor(scenario)
    if (expected := quietly_all(whole, [["push", {"a": rows}], ["advance", CLOSED]])) is None:
        return
    door, results = EngineDoor(scenario), []
    parts = data.draw(splits(rows))
    for i, part in enumerate(parts):
        results.append(door.push({"a": part}))
        rest = [row[at] for later in parts[i + 1 :] for row in later]
        results.append(door.advance_to(max(door.engine.frontier, min(rest, default=6))))
    results.append(door.advance_to(CLOSED))
    assert merged(results) == merged(expected)
    assert door.totals() == whole.totals()


@effort(120)
@given(st.data())
def test_schedule_epoch_any_steps_give_the_same_collection_and_diffs_add_up_to_it(data: st.DataObject) -> None:
    scenario = data.draw(settled(scenarios(False, null_key="drop")).filter(decided))
    rows = data.draw(events(scenario["inputs"]["a"], most=10))
    whole, door = EngineDoor(scenario), EngineDoor(scenario)
    if quietly_all(whole, [["step", 0, {"a": rows}]]) is None:
        return
    results = [door.step({"a": part}, time) for time, part in enumerate(data.draw(splits(rows)))]
    same_collections(scenario, whole, door)
    for name in scenario["outputs"]:
        total: Counter[Any] = Counter()
        for (row, _), diff in merged(results)[name].items():
            total[row] += diff
        assert {row: n for row, n in total.items() if n} == door.read(name)


def decided(scenario: Mapping[str, Any]) -> bool:
    """Whether ties are decided: a refusal refuses more, the larger the step."""
    return scenario["inputs"]["a"]["spec"].get("tie") != "error"


def settled(drawn: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Scenarios in which no column that counts is made of one that does not: those hold modulo what is ignored."""
    return drawn.filter(lambda made: not loose(made["inputs"]["a"]["spec"]))


def loose(spec: Mapping[str, Any]) -> bool:
    """Whether a derived column, or a merger of one's own, may read columns that do not count as a change."""
    reads = "derive" in spec or (isinstance(spec.get("merge"), dict) and "function" in spec["merge"])
    return reads and bool(spec.get("noop_ignore") or "track" in spec)


def quietly_all(door: EngineDoor, played: list[list[Any]]) -> Any:
    """The results of all calls; None where one was refused (an overflow, a list that outgrew its limit)."""
    results = [quietly(door, call) for call in played]
    return None if None in results else results


@effort(120)
@given(st.data(), st.sampled_from(["last", "first", "greatest"]), st.booleans())
def test_shuffle_under_versions_of_cells_no_arrival_matters(data: st.DataObject, tie: str, holds_back: bool) -> None:
    scenario = data.draw(
        settled(
            scenarios(
                holds_back,
                how="cell",
                order_by=["o"],
                tie=tie,
                seq=tie != "greatest",
                late="advance",
                lateness=None,
                null_key="drop",
            )
        )
    )
    input = scenario["inputs"]["a"]
    rows = data.draw(events(input, most=8, nulls=False))
    if any(inexact(input, name) for name in input["columns"]):
        return
    if tie != "greatest":
        rows = numbered(input, rows, data.draw(st.permutations(range(len(rows)))))
    doors, shuffled = [EngineDoor(scenario), EngineDoor(scenario)], data.draw(st.permutations(rows))
    if holds_back:
        made = [
            quietly_all(door, [["push", {"a": given}], ["advance", CLOSED]])
            for door, given in zip(doors, [rows, shuffled], strict=True)
        ]
    else:
        made = [
            quietly_all(doors[0], [["step", 0, {"a": rows}]]),
            quietly_all(
                doors[1], [["step", time, {"a": part}] for time, part in enumerate(data.draw(splits(shuffled)))]
            ),
        ]
    if None not in made:
        same_collections(scenario, *doors)


def inexact(input: Mapping[str, Any], name: str) -> bool:
    """Whether a column's sums depend on the order of addition: of floats, or with an overflow on the way."""
    merge = input["spec"].get("merge", {})
    strategies = {**dict.fromkeys(input["columns"], merge.get("default", "")), **merge.get("columns", {})}
    return input["columns"][name].startswith("float") and strategies[name] == "sum"


@effort(120)
@given(st.data(), st.sampled_from(MEDIA))
def test_restart_a_state_that_was_closed_and_opened_goes_on_as_if_it_had_not(data: st.DataObject, medium: Any) -> None:
    scenario = data.draw(scenarios())
    played = data.draw(calls(scenario, contents=False))
    options = {"retain": FOREVER, "verdicts": "rows"}
    never, store = EngineDoor(scenario, **options), MemoryStore()
    door = opened(scenario, store, medium, **options)
    for call in played:
        if call[0] == "step" and door.engine.last is not None and call[1] <= door.engine.last:
            continue
        assert quietly(door, call) == quietly(never, call)
        if data.draw(st.booleans()):
            door.close()
            store = store.reopen()
            door = opened(scenario, store, medium, **options)
            door.engine._check_invariants()
        for name in [*scenario["inputs"], *scenario["outputs"]]:
            assert door.read(name) == never.read(name)
        assert door.totals() == never.totals()
    door.close()


def test_medium_a_budget_that_holds_nothing_changes_no_answer() -> None:
    """As agreement, with everything `tiny`; and it does spill."""
    with tiny() as seen:
        in_files()
    assert {"a piece of a flush", "a key found on disk", "a table that was mapped"} <= set(seen)


@covering(15)
@given(st.data(), shapes())
def in_files(data: st.DataObject, shape: Any) -> None:
    scenario = data.draw(scenarios())
    pair = Pair(scenario, shape, medium=MEDIA[1])
    for call in data.draw(calls(scenario)):
        pair.play(call)
        pair.spill(data.draw(st.sampled_from([0, 500, 1000])))
        pair.merge(data.draw(st.sampled_from([0, 1, None])))
    pair.close()


@effort(100)
@given(st.data())
def test_accounting_events_in_are_judged_or_pending(data: st.DataObject) -> None:
    scenario = data.draw(scenarios())
    door, arrived, resolved = EngineDoor(scenario), 0, 0
    for call in data.draw(calls(scenario, contents=False)):
        if (result := quietly(door, call)) is None:
            continue
        given = call[-1]["a"] if call[0] != "advance" else []
        arrived += len(given["rows"] if isinstance(given, dict) else given)
        resolved += sum(result.verdicts.values())
        assert arrived == resolved + result.pending
        assert sum(map(len, result.rows.values())) == sum(result.verdicts.values())
    assert sum(door.totals().values()) == resolved


INT = "int64"
BOUND: dict[str, tuple[str, Any, Any, Any]] = {
    "append": ("list<int64>", "append", [1], [2]),
    "union": ("list<int64>", "union", [1], [2]),
    "collect": (INT, "collect", 1, 2),
    "join_text": ("string", "join_text", "a", "b"),
}
"""Strategies whose lists and texts are in the order of the fold: type, strategy, and the cells of two events."""
FREE: dict[str, tuple[str, Any, Any, Any, Any]] = {
    "last": (INT, "last", 1, 2, 2),
    "last_non_null": (INT, "last_non_null", 1, None, 1),
    "first": (INT, "first", 1, 2, 1),
    "first_non_null": (INT, "first_non_null", 1, 2, 1),
    "max": (INT, "max", 2, 1, 2),
    "min": (INT, "min", 1, 2, 1),
    "sum": (INT, "sum", 1, 2, 3),
    "bool_and": ("bool", "bool_and", False, True, False),
    "bool_or": ("bool", "bool_or", True, False, True),
    "fields": (
        "struct<x>",
        {"name": "fields", "fields": {"x": "sum"}, "default": "sum"},
        {"x": 1},
        {"x": 2},
        (("x", 3),),
    ),
}
"""Strategies that are order-free under versions of cells: the same, and what comes of both events in any arrival."""


def two_arrivals(kind: str, strategy: Any, cells: tuple[Any, Any], versions: str, door: Any = EngineDoor) -> list[Any]:
    """What two events of orders 1 and 2 make of a cell, in both orders of arrival."""
    spec = {"key": ["k"], "order_by": ["o"], "versions": versions, "merge": {"columns": {"v": strategy}}}
    scenario = {
        "inputs": {"a": {"columns": {"k": INT, "o": INT, "v": kind}, "spec": spec}},
        "outputs": {"rows": ["input", "a"]},
    }
    out = []
    for arrival in itertools.permutations([[1, 1, cells[0]], [1, 2, cells[1]]]):
        opened_door = door(scenario)
        for time, row in enumerate(arrival):
            opened_door.step({"a": [row]}, time)
        out.append(next(iter(opened_door.read("rows")))[2])
    return out


@pytest.mark.parametrize("door", [TwinDoor, EngineDoor], ids=["twin", "engine"])
@pytest.mark.parametrize("name", FREE)
def test_what_the_table_calls_order_free_is_so(name: str, door: Any) -> None:
    kind, strategy, *cells, expected = FREE[name]
    assert two_arrivals(kind, strategy, (cells[0], cells[1]), "cell", door) == [expected, expected]


@pytest.mark.parametrize("door", [TwinDoor, EngineDoor], ids=["twin", "engine"])
@pytest.mark.parametrize("name", sorted({*BOUND, *FREE} - {"last"}))
def test_under_versions_of_rows_no_strategy_but_the_last_is(name: str, door: Any) -> None:
    kind, strategy, *cells = BOUND[name] if name in BOUND else FREE[name]
    in_order, against = two_arrivals(kind, strategy, (cells[0], cells[1]), "row", door)
    assert in_order != against


@pytest.mark.parametrize("name", BOUND)
def test_what_the_table_calls_bound_to_arrival_is_refused_under_versions_of_cells(name: str) -> None:
    kind, strategy, *_ = BOUND[name]
    with raises(SpecError):
        two_arrivals(kind, strategy, (None, None), "cell")


@pytest.mark.parametrize("name", sorted({*FREE} - {"last", "last_non_null"}))
def test_with_deletes_only_the_last_ones_are_order_free(name: str) -> None:
    kind, strategy, *_ = FREE[name]
    spec = {
        "key": ["k"],
        "order_by": ["o"],
        "versions": "cell",
        "delete": {"tombstone": "gone"},
        "merge": {"columns": {"v": strategy}},
    }
    columns = {"k": INT, "o": INT, "v": kind, "gone": "bool"}
    with raises(SpecError):
        EngineDoor({"inputs": {"a": {"columns": columns, "spec": spec}}, "outputs": {"rows": ["input", "a"]}})


def test_sums_of_floats_are_bound_to_arrival_in_their_last_bits() -> None:
    spec = {"key": ["k"], "order_by": ["o"], "versions": "cell", "merge": {"columns": {"v": "sum"}}}
    found = set()
    for arrival in itertools.permutations([[1, 1, 0.1], [1, 2, 0.2], [1, 3, 0.3]]):
        door = EngineDoor(
            {
                "inputs": {"a": {"columns": {"k": INT, "o": INT, "v": "float64"}, "spec": spec}},
                "outputs": {"rows": ["input", "a"]},
            }
        )
        door.step({"a": list(arrival)}, 0)
        found |= {row[2] for row in door.read("rows")}
    assert found == {0.6, 0.6000000000000001}


def test_a_merger_of_ones_own_is_bound_to_arrival() -> None:
    spec = {"key": ["k"], "merge": {"function": "inc or reset"}}
    found = []
    for arrival in itertools.permutations([[1, 5, "set"], [1, 3, "inc"]]):
        door = EngineDoor(
            {
                "inputs": {"a": {"columns": {"k": INT, "n": INT, "s": "string"}, "spec": spec}},
                "outputs": {"rows": ["input", "a"]},
            }
        )
        door.step({"a": list(arrival)}, 0)
        found += [row[1] for row in door.read("rows")]
    assert found == [8, 5]
