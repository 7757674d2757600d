"""Run other systems' documented facts about upserts through the twin and the engine.

Each of the 77 facts in `tests/conformance` either runs or has a reason why it does not run. Each system has its own
words for time, order and delete. The files translate the facts into the words of ddflow; see the README there. Cases
for ddflow's own rules (``ours.json``) have the same form.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from doors import EngineDoor, Result, Rows, TwinDoor, plain, to_arrow
from messages import raises
from model import NEVER, to_upserts
from rules import Refused, canonical

import ddflow as dd
from ddflow.errors import DdflowError, SpecError
from ddflow.storage.memory import MemoryStore

HERE = Path(__file__).parent.parent / "conformance"
PEERS = ["differential", "trinity", "pinot", "materialize", "flink", "paimon", "dbsp", "hudi", "spark"]
CASES = {case["id"]: case for name in PEERS for case in json.loads((HERE / f"{name}.json").read_text("utf-8"))}
OURS = {case["id"]: case for case in json.loads((HERE / "ours.json").read_text("utf-8"))}
NOT_RUN = json.loads((HERE / "not_run.json").read_text("utf-8"))
DOORS = {"twin": TwinDoor, "engine": EngineDoor}


@pytest.fixture(params=sorted(DOORS))
def opened(request: pytest.FixtureRequest) -> Any:
    """How to open a scenario: with the twin, or with the engine."""
    return DOORS[request.param]


def scenario_of(case: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """The case as a scenario: its input is ``in``, what its plan makes of it ``out``."""
    expression: list[Any] = ["input", "in"]
    for verb, *arguments in case.get("plan", []):
        expression = [verb, expression, *arguments]
    return {
        "inputs": {"in": {"columns": case["columns"], "spec": case["spec"] | spec}},
        "outputs": {"out": expression},
    }


def begun(case: dict[str, Any], opened: Any) -> Any:
    """The case opened; on state in memory, where it is closed and opened again."""
    durable = opened is EngineDoor and any(verb == "restart" for verb, *_ in case["calls"])
    return opened(scenario_of(case), state=MemoryStore()) if durable else opened(scenario_of(case))


def play(door: Any, calls: Sequence[Sequence[Any]], expected: dict[str, Any]) -> tuple[Any, list[Result]]:
    """All calls; after each the state is that of ``states``, where the case has them.  The door that is open then."""
    results = []
    for i, (verb, *arguments) in enumerate(calls):
        if verb == "restart":
            door = door.restart(with_spec(door.scenario, *arguments) if arguments else None)
        elif verb == "step":
            results.append(door.step({"in": arguments[1]}, arguments[0]))
        else:
            results.append(door.push({"in": arguments[0]}) if verb == "push" else door.advance_to(arguments[0]))
        if "states" in expected:
            assert state(door) == rows(expected["states"][i]), f"after call {i}"
    return door, results


def with_spec(scenario: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """The scenario with another spec."""
    return scenario | {"inputs": {"in": scenario["inputs"]["in"] | {"spec": spec}}}


def state(door: Any) -> Counter[Any]:
    return Counter(door.read("out"))


def history(door: Any, key: list[str]) -> Counter[Any]:
    """The versions of ``out``, with their times."""
    if isinstance(door, EngineDoor):
        return Counter(plain(door.engine.scd2("out")))
    return Counter(door.twin.scd2("out", key, NEVER))


def rows(given: Rows) -> Counter[Any]:
    return Counter(tuple(canonical(value) for value in row) for row in given)


@pytest.mark.parametrize("name", sorted(CASES) + sorted(OURS))
def test_a_fact_comes_out_as_its_input_states_it(name: str, opened: Any) -> None:
    case = CASES.get(name) or OURS[name]
    expected = case["expected"]
    if "back" in case:
        return check_back(case, opened)
    if not {"state", "states", "updates", "changes", "refused", "history"} & set(expected):
        return check_variants(case, opened)
    door = begun(case, opened)
    assert door.columns_of("out") == case["row"]
    calls, refused = case["calls"], expected.get("refused")
    door, results = play(door, calls[:-1] if refused else calls, expected)
    if refused:
        before = state(door)
        with pytest.raises(Refused) as caught:
            play(door, calls[-1:], {})
        assert caught.value.kinds == {refused}
        assert state(door.restart() if calls[-1][0] == "restart" else door) == before
    if "state" in expected:
        assert state(door) == rows(expected["state"])
    if "history" in expected:
        assert history(door, case["spec"]["key"]) == rows(expected["history"])
    if "updates" in expected:
        found = {key: diff for result in results for key, diff in result.updates["out"].items()}
        assert found_from(found, expected.get("from")) == {
            (tuple(map(canonical, row)), time): diff for *row, time, diff in expected["updates"]
        }
    if "changes" in expected:
        assert by_key(results, case) == wanted_by_key(expected["changes"], case)
    if "verdicts" in expected:
        told = sorted((row for result in results for row in result.rows["in"]), key=lambda row: row[0])
        assert [row[2 + len(case["spec"]["key"])] for row in told] == expected["verdicts"]
    if "counts" in expected:
        assert {verdict: n for verdict, n in door.totals().items() if verdict in expected["counts"]} == expected[
            "counts"
        ]
    if "marks" in expected:
        marks = [row[-1] for result in results for (row, _), n in result.updates["in.events"].items() for _ in range(n)]
        assert marks == expected["marks"]
    if "side" in expected:
        side = {key: n for result in results for key, n in result.updates["in.stale"].items()}
        assert side == {(tuple(row), time): n for *row, time, n in expected["side"]}


def found_from(updates: dict[Any, int], least: int | None) -> dict[Any, int]:
    return {(row, time): diff for (row, time), diff in updates.items() if least is None or time >= least}


def by_key(results: list[Result], case: dict[str, Any]) -> dict[Any, list[Any]]:
    """Rows with their diffs, in the order of time with retractions first, for each key: order is kept within a key."""
    out: dict[Any, list[Any]] = {}
    ordered = sorted((time, diff, row) for result in results for (row, time), diff in result.updates["out"].items())
    for _, diff, row in ordered:
        out.setdefault(key_of(row, case), []).append((row, diff))
    return out


def wanted_by_key(changes: Rows, case: dict[str, Any]) -> dict[Any, list[Any]]:
    out: dict[Any, list[Any]] = {}
    for *row, diff in changes:
        out.setdefault(key_of(row, case), []).append((tuple(row), diff))
    return out


def key_of(row: Sequence[Any], case: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[case["row"].index(name)] for name in case["spec"]["key"])


def check_variants(case: dict[str, Any], opened: Any) -> None:
    """Cases that hold for every order of arrival, or for each tie rule."""
    expected, calls = case["expected"], case["calls"]
    for count, wanted in expected.get("any_arrival", []):
        for order in itertools.permutations(calls[:count]):
            door = opened(scenario_of(case))
            play(door, [[verb, time, call] for time, (verb, _, call) in enumerate(order)], {})
            assert state(door) == rows(wanted), order
    for tie, wanted in expected.get("by_tie", {}).items():
        door = opened(scenario_of(case, tie=tie))
        play(door, calls, {})
        assert state(door) == rows(wanted), tie
    assert expected.get("any_arrival") or expected.get("by_tie"), "a case that states nothing"


def check_back(case: dict[str, Any], opened: Any) -> None:
    """Cases of updates that are turned back into upserts."""
    if "calls" in case:
        return check_back_in_a_flow(case, opened)
    expected, columns, rule = case["expected"], case["columns"], case["back"]["on_conflict"]
    names, updates = [*columns, "_time", "_diff"], case["updates"]
    told = [(tuple(row), time, diff) for *row, time, diff in updates]

    def upserts(key: list[str]) -> Counter[Any]:
        if opened is TwinDoor:
            gone = lambda its: tuple(its[key.index(name)] if name in key else None for name in columns)  # noqa: E731
            found = to_upserts(list(columns), key, told, rule)
            return Counter((*(row or gone(its)), time, row is None) for (its, time), row in found.items())
        return Counter(plain(dd.to_upserts(to_arrow(dict.fromkeys(names, "int64") | columns, updates), key, rule)))

    if "upserts" in expected:
        assert upserts(case["back"]["key"]) == rows(expected["upserts"])
    for key, refused in expected.get("by_key", []):
        if refused is None:
            assert upserts(key).total() == len(updates)
            continue
        with pytest.raises((Refused, DdflowError), match=refused if opened is TwinDoor else None) as caught:
            upserts(key)
        assert refused in (type(caught.value).__name__, *getattr(caught.value, "kinds", ()))


def check_back_in_a_flow(case: dict[str, Any], opened: Any) -> None:
    """Cases of a plan whose updates are turned back into upserts; the engine has that as an output of its flow."""
    expected, key, row = case["expected"], case["back"]["key"], case["row"]
    door = opened(scenario_of(case))
    _, results = play(door, case["calls"], expected)
    assert state(door) == rows(expected["state"])
    if opened is TwinDoor:
        told = [(*at, diff) for result in results for at, diff in result.updates["out"].items()]
        shown = to_upserts(row, key, told, case["back"]["on_conflict"])
        gone = lambda its: tuple(its[key.index(name)] if name in key else None for name in row)  # noqa: E731
        found = Counter((*(each or gone(its)), time, each is None) for (its, time), each in shown.items())
    else:
        flow = door.flow
        flow.output("upserts", flow.outputs["out"].to_upserts(**case["back"]))
        with flow.open() as engine:
            steps = [engine.step({"in": to_arrow(case["columns"], given)}, time) for _, time, given in case["calls"]]
        found = Counter(each for step in steps for each in plain(step["upserts"]))
    assert found == rows(expected["upserts"])


def test_a_text_column_that_marks_deletes_needs_the_marker() -> None:
    case = CASES["hudi-delete-marker"]
    assert case["expected"]["refused_without_value"]
    with raises(SpecError):
        EngineDoor(scenario_of(case, delete={"tombstone": "ts"}))


def test_every_fact_is_run_or_listed_with_a_reason() -> None:
    assert not set(CASES) & set(NOT_RUN)
    assert len(CASES) + len(NOT_RUN) == 77
    assert all(len(reason) > 20 for reason in NOT_RUN.values())
    assert all(case["source"] and case["features"] for case in CASES.values())


def test_the_readme_says_how_many_are_run() -> None:
    assert f"{len(CASES)} of the 77 facts are run" in (HERE / "README.md").read_text("utf-8")
