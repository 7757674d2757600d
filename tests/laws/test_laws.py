"""Test the laws: one sentence and one property each, over drawn schemas, specs, plans, events and splits.

docs/semantics.md states the laws and their limits under "Laws". Each property asserts one law within exactly these
limits. Other files test the laws of restart, crash, medium, compaction and Spark.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chance import effort
from doors import FOREVER, EngineDoor, Result, Rows
from hypothesis import given, strategies as st
from model import CLOSED, Collection
from pair import Pair
from rules import Refused
from strategies import LINEAR, events, ignored, kinds_of, plans, row_of, scenarios, shapes, splits

from ddflow.columns.hashing import Secret

DECIDED = {"tie": "last", "late": "drop", "lateness": None, "null_key": "drop"}


@st.composite
def calls(draw: st.DrawFn, scenario: Mapping[str, Any], most: int = 5) -> list[list[Any]]:
    """Steps at rising times, or pushes and advances; now and then one that must be refused."""
    given_inputs = scenario["inputs"]
    holds_back = "time" in next(iter(given_inputs.values()))["spec"]
    out: list[list[Any]] = []
    at = draw(st.integers(-3, 1))
    for _ in range(draw(st.integers(1, most))):
        at += draw(st.sampled_from([1, 1, 2, 3, 0]) if not holds_back else st.integers(0, 3))
        some = draw(st.sampled_from([[name] for name in given_inputs] + [list(given_inputs)]))
        window = (at - 2, at + 4)
        inputs = {name: draw(events(given_inputs[name], times=window)) for name in some}
        if not holds_back:
            out.append(["step", at, inputs])
        else:
            out.append(["push", inputs])
            if draw(st.booleans()):
                out.append(["advance", at + draw(st.sampled_from([0, 0, 1, 2, -1]))])
    return [*out, ["advance", CLOSED]] if holds_back and draw(st.booleans()) else out


@effort(600)
@given(st.data(), shapes())
def test_agreement_every_call_and_every_read_equals_the_twin(data: st.DataObject, shape: Any) -> None:
    scenario = data.draw(scenarios())
    pair = Pair(scenario, shape)
    for call in data.draw(calls(scenario)):
        pair.play(call)
    pair.close()


@effort(200)
@given(st.data())
def test_schedule_hold_back_any_pushes_and_advances_give_the_same_updates(data: st.DataObject) -> None:
    options = DECIDED | {"tie": data.draw(st.sampled_from(["last", "first", "greatest"]))}
    scenario = data.draw(
        scenarios(holds_back=True, **options | {"late": data.draw(st.sampled_from(["drop", "advance"]))})
    )
    arrivals = {name: data.draw(events(input, most=10)) for name, input in scenario["inputs"].items()}
    whole = EngineDoor(scenario)
    expected = merged([whole.push(arrivals), whole.advance_to(CLOSED)])
    parts = {name: data.draw(splits(rows)) for name, rows in arrivals.items()}
    door, results = EngineDoor(scenario), []
    for i in range(max(map(len, parts.values()))):
        results.append(door.push({name: split[i] for name, split in parts.items() if i < len(split)}))
        results.append(door.advance_to(max(door.engine.frontier, least_time(scenario, parts, i + 1))))
    results.append(door.advance_to(CLOSED))
    assert merged(results) == expected
    assert door.totals() == whole.totals()
    assert not door.totals()["late"]


def least_time(scenario: Mapping[str, Any], parts: Mapping[str, list[Any]], begin: int) -> int:
    """The least time of what is still to come: the furthest that an advance may go with nothing late."""
    times = [
        row[list(input["columns"]).index("t")]
        for name, input in scenario["inputs"].items()
        for split in parts[name][begin:]
        for row in split
    ]
    return min(times, default=6)


@effort(200)
@given(st.data())
def test_schedule_epoch_any_steps_give_the_same_collection_and_diffs_add_up_to_it(data: st.DataObject) -> None:
    tie = data.draw(st.sampled_from(["last", "first", "greatest"]))
    scenario = data.draw(scenarios(holds_back=False, tie=tie, null_key="drop"))
    arrivals = {name: data.draw(events(input, most=12)) for name, input in scenario["inputs"].items()}
    whole = EngineDoor(scenario)
    whole.step(arrivals, 0)
    door, results = EngineDoor(scenario), []
    parts = {name: data.draw(splits(rows)) for name, rows in arrivals.items()}
    for i in range(max(map(len, parts.values()))):
        results.append(door.step({name: split[i] for name, split in parts.items() if i < len(split)}, i))
    same_collections(scenario, whole, door)
    for name in scenario["outputs"]:
        total: Counter[Any] = Counter()
        for (row, _), diff in merged(results)[name].items():
            total[row] += diff
        assert {row: n for row, n in total.items() if n} == door.read(name)


@effort(200)
@given(st.data(), st.sampled_from(["last", "first", "greatest"]), st.booleans())
def test_shuffle_arrival_does_not_matter_with_a_unique_seq_or_the_greatest_row(
    data: st.DataObject, tie: str, holds_back: bool
) -> None:
    seq, order_by = tie != "greatest", data.draw(st.sampled_from([["o"], ["o", "p"]]))
    scenario = data.draw(scenarios(holds_back=holds_back, **DECIDED | {"tie": tie, "seq": seq, "order_by": order_by}))
    input = scenario["inputs"]["a"]
    rows = data.draw(events(input, most=10))
    if seq:
        rows = numbered(input, rows, data.draw(st.permutations(range(len(rows)))))
    shuffled = data.draw(st.permutations(rows))
    doors = [EngineDoor(scenario), EngineDoor(scenario)]
    if holds_back:
        found = [
            merged([door.push({"a": given}), door.advance_to(CLOSED)])
            for door, given in zip(doors, [rows, shuffled], strict=True)
        ]
        if not ignored(input):
            assert found[0] == found[1]
    else:
        doors[0].step({"a": rows}, 0)
        for time, part in enumerate(data.draw(splits(shuffled))):
            doors[1].step({"a": part}, time)
    same_collections(scenario, *doors)


@effort(100)
@given(st.data())
def test_shuffle_a_unique_seq_is_enough_of_an_order_in_epoch_mode(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(holds_back=False, order_by=[], seq=True, null_key="drop"))
    input = scenario["inputs"]["a"]
    rows = data.draw(events(input, most=10))
    rows = numbered(input, rows, range(len(rows)))
    doors = [EngineDoor(scenario), EngineDoor(scenario)]
    doors[0].step({"a": rows}, 0)
    for time, part in enumerate(data.draw(splits(data.draw(st.permutations(rows))))):
        doors[1].step({"a": part}, time)
    same_collections(scenario, *doors)


def numbered(input: Mapping[str, Any], rows: Rows, numbers: Sequence[int]) -> list[list[Any]]:
    """The rows with these values of ``seq``."""
    at = list(input["columns"]).index("seq")
    return [[*row[:at], number, *row[at + 1 :]] for row, number in zip(rows, numbers, strict=True)]


@effort(120)
@given(st.data())
def test_at_most_one_each_key_has_one_live_row_or_none(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(tie="last", null_key="keep"))
    pair = Pair(scenario)
    for call in data.draw(calls(scenario)):
        pair.play(call)
        for name, input in scenario["inputs"].items():
            found = pair.engine.read(name)
            places = [pair.engine.columns_of(name).index(key) for key in input["spec"]["key"]]
            keys = Counter(tuple(row[i] for i in places) for row in found)
            assert set(found.values()) <= {1}
            assert set(keys.values()) <= {1}


@effort(120)
@given(st.data())
def test_linearity_filter_and_project_of_a_sum_are_the_sum_of_theirs(data: st.DataObject) -> None:
    scenario = data.draw(scenarios())
    input = next(iter(scenario["inputs"].values()))
    plan = data.draw(plans(kinds_of(input), ["a"], 3, LINEAR))[0]
    a, b = ["input", "a"], ["negate", ["input", "b"]]
    outputs = {"of_sum": replaced(plan, ["concat", a, b]), "sum_of": ["concat", replaced(plan, a), replaced(plan, b)]}
    door = EngineDoor({"inputs": {"a": input, "b": input}, "outputs": outputs})
    for call in data.draw(calls({"inputs": {"a": input, "b": input}})):
        result = quietly(door, call)
        if result is not None:
            assert result.updates["of_sum"] == result.updates["sum_of"]
    assert door.read("of_sum") == door.read("sum_of")


def replaced(plan: Any, input: Any) -> Any:
    """The plan over another input."""
    if plan == ["input", "a"]:
        return input
    return [
        replaced(part, input) if isinstance(part, list) and part[:1] and part[0] in {"input", *LINEAR} else part
        for part in plan
    ]


@effort(120)
@given(st.data())
def test_an_incremental_count_is_the_count_from_nothing(data: st.DataObject) -> None:
    scenario = data.draw(scenarios())
    input = scenario["inputs"]["a"]
    row = row_of(input["columns"], input["spec"])
    by = data.draw(st.lists(st.sampled_from([name for name in row if name != "l"]), unique=True))
    counted = ["count", ["input", "a"], by, "how many"]
    door = EngineDoor(scenario | {"outputs": {"counted": counted, "twice": ["count", counted, ["how many"], "n"]}})
    for call in data.draw(calls(scenario)):
        quietly(door, call)
        groups = Counter(tuple(each[row.index(name)] for name in by) for each in door.read("a"))
        assert door.read("counted") == Counter({(*group, n): 1 for group, n in groups.items()})
        assert door.read("twice") == Counter(dict.fromkeys(Counter(groups.values()).items(), 1))


@effort(120)
@given(st.data())
def test_accounting_events_in_are_judged_or_pending(data: st.DataObject) -> None:
    scenario = data.draw(scenarios())
    door = EngineDoor(scenario)
    arrived = resolved = 0
    for call in data.draw(calls(scenario)):
        result = quietly(door, call)
        if result is None:
            continue
        arrived += sum(map(len, call[-1].values())) if call[0] != "advance" else 0
        resolved += sum(result.verdicts.values())
        assert arrived == resolved + result.pending
        assert sum(map(len, result.rows.values())) == sum(result.verdicts.values())
    assert sum(door.totals().values()) == resolved


@effort(120)
@given(st.data())
def test_the_encoding_of_the_input_its_batches_and_the_secret_do_not_matter(data: st.DataObject) -> None:
    scenario = data.draw(scenarios())
    secret = Secret(*data.draw(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))))
    doors = [EngineDoor(scenario), EngineDoor(scenario, data.draw(shapes()), secret=secret)]
    for call in data.draw(calls(scenario)):
        results = [quietly(door, call) for door in doors]
        assert results[0] == results[1]


@effort(120)
@given(st.data())
def test_the_updates_between_two_times_lead_from_one_read_to_the_other(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(tie="last", null_key="drop"))
    pair, found = Pair(scenario), dict[str, dict[Any, int]]()
    for call in data.draw(calls(scenario)):
        result = pair.play(call)
        found = merged([found_so_far(found), result]) if result is not None else found
    times = [time for time, _ in pair.twin.twin.history]
    for name in scenario["outputs"] if times else []:
        begin, end = sorted(data.draw(st.tuples(st.sampled_from(times), st.sampled_from(times))))
        between = {key: diff for key, diff in found[name].items() if begin < key[1] <= end}
        assert between == pair.twin.twin.changes(name, begin, end)
        total = Counter(pair.engine.read(name, begin))
        for (row, _), diff in between.items():
            total[row] += diff
        assert {row: n for row, n in total.items() if n} == pair.engine.read(name, end)


def found_so_far(updates: dict[str, dict[Any, int]]) -> Result:
    return Result(updates, Counter(), {}, 0)


@effort(12)
@given(st.data(), st.booleans())
def test_agreement_over_many_keys_and_steps(data: st.DataObject, holds_back: bool) -> None:
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    keys, orders = st.sampled_from(["int64", "string", "float64"]), st.sampled_from(["int64", "string"])
    columns = {"k": data.draw(keys), "s": "string", "n": "int64", "op": "string", "o": data.draw(orders)}
    if holds_back:
        columns["t"] = "int64"
    spec = {
        "key": ["k"],
        "order_by": ["o"],
        "tie": data.draw(st.sampled_from(["last", "first", "greatest"])),
        "delete": {"tombstone": "op", "value": "D"},
        "noop_ignore": data.draw(st.sampled_from([[], ["o"]])),
        "stale": data.draw(st.sampled_from(["drop", "mark", "side"])),
    } | ({"time": "t", "late": "advance"} if holds_back else {})
    scenario = {
        "inputs": {"a": {"columns": columns, "spec": spec}},
        "outputs": {"by_s": ["count", ["filter", ["input", "a"], "n >= 0"], ["s"], "count"], "all": ["input", "a"]},
    }
    pair = Pair(scenario, retain=data.draw(st.sampled_from([0, 3, 10, FOREVER])))
    for step in range(10):
        rows = [many(chance, columns, step) for _ in range(chance.randrange(500))]
        if holds_back:
            pair.push({"a": rows})
            pair.advance_to(4 * step)
        else:
            pair.step({"a": rows}, step)
    pair.close()


def many(chance: random.Random, columns: Mapping[str, str], step: int) -> list[Any]:
    """One event among 800 keys, a fifth of them deletes."""
    key, order = chance.randrange(800), chance.randrange(20 * step + 20)
    row = {
        "k": {"int64": key, "string": f"key {key}", "float64": key / 7}[columns["k"]],
        "o": {"int64": order, "string": f"{order:04}"}[columns["o"]],
        "s": chance.choice(["a", "b", "ccccccccccccccccccc", None]),
        "n": chance.choice([-1, 0, 1, None]),
        "op": "D" if chance.random() < 0.2 else "U",
        "t": 4 * step + chance.randrange(-3, 8),
    }
    return [row[name] for name in columns]


def merged(results: Sequence[Result]) -> dict[str, dict[Any, int]]:
    """All updates of several calls."""
    out: dict[str, dict[Any, int]] = {}
    for result in results:
        for name, updates in result.updates.items():
            mine = out.setdefault(name, {})
            assert not set(mine) & set(updates), "two calls gave updates of one row and time"
            mine.update(updates)
    return out


def quietly(door: EngineDoor, call: Sequence[Any]) -> Result | None:
    """One call of a trace; None when it was refused."""
    verb, *arguments = call
    try:
        if verb == "step":
            return door.step(arguments[1], arguments[0])
        return door.push(arguments[0]) if verb == "push" else door.advance_to(arguments[0])
    except Refused:
        return None


def same_collections(scenario: Mapping[str, Any], one: EngineDoor, other: EngineDoor) -> None:
    """Both hold the same: inputs without the columns that do not count, and outputs where all of them do."""
    for name, input in scenario["inputs"].items():
        assert without_ignored(input, one.read(name)) == without_ignored(input, other.read(name))
        if ignored(input):
            return
    for name in scenario["outputs"]:
        assert one.read(name) == other.read(name)


def without_ignored(input: Mapping[str, Any], found: Collection) -> Collection:
    """The collection with only the columns that count."""
    row = list(kinds_of(input))
    kept = [i for i, name in enumerate(row) if name not in ignored(input)]
    out: Collection = Counter()
    for each, n in found.items():
        out[tuple(each[i] for i in kept)] += n
    return out
