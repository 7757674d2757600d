"""Test plans as JSON: equal plans have equal descriptions and ids, flows can be rebuilt, malicious JSON is refused."""

from __future__ import annotations

import base64
import copy
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import effort, mid_test, seeded
from doors import plain, plan, schema_of, spec_of, to_arrow
from hypothesis import given, strategies as st
from messages import raises
from strategies import events, scenarios

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.errors import CorruptState, SpecError
from ddflow.plan.text.codec import (
    compute_node_id,
    compute_node_ids,
    describe_plan,
    fingerprint_plan,
    format_node,
    rebuild_plan,
)
from ddflow.plan.text.formulas import digest_code

COLUMNS = {"id": pa.int64(), "n": pa.int64(), "s": pa.string()}


def flow_of(scenario: Mapping[str, Any]) -> dd.Flow:
    """A drawn scenario's flow."""
    flow = dd.Flow()
    made = {
        name: flow.upserts(name, schema_of(given["columns"]), spec_of(given["spec"]))
        for name, given in scenario["inputs"].items()
    }
    for name, expression in scenario["outputs"].items():
        flow.output(name, plan(expression, made, False))
    return flow


def people(flow: dd.Flow) -> dd.Collection:
    return flow.upserts("people", COLUMNS, dd.Upsert(key="id"))


def output(make: Callable[[dd.Collection], dd.Collection]) -> dd.Flow:
    """A flow with one output, made of one input."""
    flow = dd.Flow()
    flow.output("out", make(people(flow)))
    return flow


@effort(150)
@given(st.data())
def test_every_plan_is_described_and_made_again(data: st.DataObject) -> None:
    flow = flow_of(data.draw(scenarios()))
    description = describe_plan(flow)
    stored = json.loads(json.dumps(description, sort_keys=True))
    again = rebuild_plan(stored)
    assert describe_plan(again) == description == stored
    assert fingerprint_plan(stored) == fingerprint_plan(describe_plan(again))
    assert {name: node.schema for name, node in again.outputs.items()} == {
        name: node.schema for name, node in flow.outputs.items()
    }


@effort(40)
@given(st.data())
def test_a_plan_that_was_made_again_gives_the_same_updates(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(holds_back=False, null_key="keep", tie="last"))
    flow = flow_of(scenario)
    inputs = {name: data.draw(events(input, most=6)) for name, input in scenario["inputs"].items()}
    found = []
    for each in (flow, dd.Flow.of(rebuild_plan(describe_plan(flow)))):
        with each.open(secret=Secret(1, 2)) as engine:
            given_rows = {name: to_arrow(scenario["inputs"][name]["columns"], rows) for name, rows in inputs.items()}
            out = engine.step(given_rows, 1)
            found.append({name: Counter(plain(out[name])) for name in out})
    assert found[0] == found[1]


OTHER: list[Callable[[dd.Collection], dd.Collection]] = [
    lambda rows: rows,
    lambda rows: rows.filter("n > 1"),
    lambda rows: rows.filter("n > 2"),
    lambda rows: rows.filter("n > 1").filter("n > 2"),
    lambda rows: rows.filter(pc.field("n") > 1),
    lambda rows: rows.project(["n"]),
    lambda rows: rows.project(["n", "s"]),
    lambda rows: rows.project(["s", "n"]),
    lambda rows: rows.project({"s": "n"}),
    lambda rows: rows.project({"n": "n + 0"}),
    lambda rows: rows.count(),
    lambda rows: rows.count(by=[]),
    lambda rows: rows.count(by="n"),
    lambda rows: rows.count(by="n", name="m"),
    lambda rows: rows.negate(),
    lambda rows: rows.concat(rows),
    lambda rows: rows.concat(rows, rows),
    lambda rows: rows.concat(rows.negate()),
    lambda rows: rows.negate().concat(rows),
]


def test_other_collections_have_other_ids_and_equal_ones_the_same() -> None:
    ids = [describe_plan(output(make))["outputs"]["out"] for make in OTHER]
    assert len(set(ids)) == len(ids)
    assert ids == [describe_plan(output(make))["outputs"]["out"] for make in OTHER]
    assert all(len(each) == 32 and int(each, 16) for each in ids)


def test_what_is_asked_for_twice_is_one_collection() -> None:
    rows = people(dd.Flow())

    def first(batch: Any) -> Any:
        return pc.greater(batch.column("n"), 1)

    def another(batch: Any) -> Any:
        return pc.greater(batch.column("n"), 2)

    another.__name__, another.__qualname__ = first.__name__, first.__qualname__
    for make in [*OTHER, lambda rows: rows.filter(first), lambda rows: rows.filter(first).count("n")]:
        assert make(rows) is make(rows)
    assert rows.filter(first) is not rows.filter(another)
    assert rows.filter("n > 1").count("n") is rows.filter("n > 1").count("n")
    assert rows.filter("n > 1").count("n") is not rows.filter("n > 2").count("n")
    few, some = rows.filter("n > 1"), rows.project(["n"])
    assert few.join(some, on="n").inputs[0] is rows.filter("n > 1").join(some, on="n", how="left").inputs[0].inputs[0]


def test_an_input_of_another_spec_or_another_column_keeps_its_id_but_not_the_fingerprint() -> None:
    flows = []
    for spec, more in (({}, {}), ({"order_by": "n"}, {}), ({}, {"extra": pa.int8()})):
        flow = dd.Flow()
        flow.output("out", flow.upserts("people", COLUMNS | more, dd.Upsert(key="id", **spec)))
        flows.append(flow)
    assert len({describe_plan(flow)["outputs"]["out"] for flow in flows}) == 1
    assert len({fingerprint_plan(describe_plan(flow)) for flow in flows}) == 3


def test_consolidation_is_no_part_of_what_a_collection_is() -> None:
    plain, consolidated = (
        output(lambda rows, how=how: how(rows.project(["n"])).count())
        for how in (lambda c: c, lambda c: c.consolidate())
    )
    assert describe_plan(plain) == describe_plan(consolidated)


def test_what_no_output_depends_on_is_not_described_and_ids_come_one_by_one_too() -> None:
    flow = dd.Flow()
    rows = people(flow)
    used = flow.output("out", rows.filter("n > 1").count())
    unused = rows.filter("n > 2").count()
    assert set(compute_node_ids(flow)) == {rows, used, *used.inputs}
    assert compute_node_ids(flow)[used] == compute_node_id(used) == describe_plan(flow)["outputs"]["out"]
    assert compute_node_id(unused) not in describe_plan(flow)["collections"]
    assert compute_node_ids(flow.frozen()) == compute_node_ids(flow)


@mid_test
def test_a_graph_whose_tree_would_be_too_large_is_written_once_a_node() -> None:
    flow = dd.Flow()
    rows = people(flow)
    for _ in range(3000):
        rows = rows.concat(rows)
    flow.output("out", rows)
    description = describe_plan(flow)
    assert len(description["collections"]) == 3001
    assert describe_plan(rebuild_plan(description)) == description
    assert len(format_node(description, description["outputs"]["out"], "it")) < 400


SCRIPT = """
import json, sys
import pyarrow as pa, pyarrow.compute as pc
import ddflow as dd
from ddflow.plan.text.codec import describe_plan, fingerprint_plan

def known(batch, limit=3):
    words = {"a", "b", "c", "d", "e"}
    return pa.array([value in {"a", "b", "c", "d"} for value in batch.column("s").to_pylist()], pa.bool_())

flow = dd.Flow()
names = ["people", "others"] if sys.argv[1] == "forth" else ["others", "people"]
rows = {name: flow.upserts(name, {"id": pa.int64(), "s": pa.string()}, dd.Upsert(key="id")) for name in names}
makers = {"a": lambda: rows["people"].filter(known).count(), "b": lambda: rows["others"].filter(pc.field("id") > 1),
          "c": lambda: rows["people"].concat(rows["others"]).filter("id > 1 and s <> ''").project(["s"]).count()}
for name in makers if sys.argv[1] == "forth" else reversed(makers):
    flow.output(name, makers[name]())
description = describe_plan(flow)
print(json.dumps([description, fingerprint_plan(description)], sort_keys=True))
"""


def test_descriptions_are_the_same_in_every_process_and_whatever_came_first() -> None:
    found = set()
    for seed, order in (("0", "forth"), ("1", "back")):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        found.add(
            subprocess.run(
                [sys.executable, "-c", SCRIPT, order],
                capture_output=True,
                text=True,
                check=True,
                env=environment,
                cwd=Path(__file__).parents[2],
            ).stdout
        )
    assert len(found) == 1, found


def test_the_id_of_a_count_is_the_one_that_states_were_written_under() -> None:
    description = describe_plan(output(lambda rows: rows.filter("n > 1").project(["s"]).count()))
    assert description["outputs"]["out"] == "8c39e5ebf6652422d48c87b1f514c7a1"


def positive(batch: pa.RecordBatch) -> pa.Array:
    return pc.greater(batch.column("n"), 0)


def above(limit: int) -> Callable[[pa.RecordBatch], pa.Array]:
    def holds(batch: pa.RecordBatch) -> pa.Array:
        return pc.greater(batch.column("n"), limit)

    return holds


class Above:
    """A callable, and a method, that hold what they compare with."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.greater(batch.column("n"), self.limit)

    def holds(self, batch: pa.RecordBatch) -> pa.Array:
        return self(batch)


def test_a_function_is_known_by_its_name_and_a_digest_stands_beside() -> None:
    description = describe_plan(output(lambda rows: rows.filter(positive)))
    assert description["collections"][description["outputs"]["out"]]["predicate"] == {
        "python": "test_planned.positive",
        "type": "bool",
    }
    assert description["formulas"] == {
        "python test_planned.positive": [sys.implementation.cache_tag, digest_code(positive)]
    }


MANY = list(range(1000))
TWO_OF_A_NAME: dict[str, tuple[Any, Any]] = {
    "closures": (above(1), above(2)),
    "lambdas": (lambda batch: batch.column("n").is_null(), lambda batch: batch.column("s").is_null()),
    "callables": (Above(1), Above(2)),
    "methods": (Above(1).holds, Above(2).holds),
    "expressions too long to be shown": (pc.field("n").isin(MANY), pc.field("n").isin([*MANY[:500], 7, *MANY[501:]])),
}


@pytest.mark.parametrize("what", TWO_OF_A_NAME)
def test_two_formulas_of_one_name_are_refused_and_one_that_is_used_twice_is_not(what: str) -> None:
    one, other = TWO_OF_A_NAME[what]
    with raises(SpecError):
        describe_plan(output(lambda rows: rows.filter(one).concat(rows.filter(other))))
    twice = describe_plan(output(lambda rows: rows.filter(one).concat(rows.filter(one))))
    assert len(twice["collections"]) == 3
    method = Above(3)
    describe_plan(output(lambda rows: rows.filter(method.holds).concat(rows.filter(method.holds))))


def test_a_digest_sees_code_and_plain_values_that_a_function_was_made_with() -> None:
    assert digest_code(above(1)) == digest_code(above(1)) != digest_code(above(2))
    others = [
        lambda b: b.n,
        lambda b: b.m,
        lambda b: b.n + 1,
        lambda b: b.n + 2,
        lambda b, c=1: b.n,
        lambda b, c=2: b.n,
        lambda b: [+x for x in b.n],
        lambda b: [-x for x in b.n],
        lambda b: b.n in {1},
        lambda b: b.n in {1, 2},
        lambda b: above(b.n),
    ]
    assert len({digest_code(each) for each in others}) == len(others)

    def named(rows: Any) -> Any:  # another name, another place, other names of what is local
        return rows.n

    assert digest_code(named) == digest_code(others[0])
    assert digest_code(Above(1)) == digest_code(Above(2)), "of objects nothing is seen"


@pytest.mark.parametrize("formula", [positive, pc.field("n") > 1])
@pytest.mark.parametrize("verb", ["filter", "project"])
def test_a_plan_with_a_formula_that_is_not_sql_needs_the_flow(formula: Any, verb: str) -> None:
    flow = output(lambda rows: rows.filter(formula) if verb == "filter" else rows.project({"m": formula, "s": "s"}))
    with raises(SpecError) as error:
        rebuild_plan(describe_plan(flow), "state/orders")
    assert error.value.asked == "read the plan of state/orders"


def test_a_collection_is_shown_as_it_would_be_written() -> None:
    flow = dd.Flow()
    rows, others = people(flow), flow.upserts("others", COLUMNS, dd.Upsert(key="id"))
    flow.output(
        "out",
        rows.filter("n > 1")
        .project({"m": "n + 1", "s": "s"})
        .concat(others.negate().project({"m": "n", "s": "s"}), others.project({"m": "n", "s": "s"}))
        .count("m", name="k"),
    )
    description = describe_plan(flow)
    assert format_node(description, description["outputs"]["out"], "it") == (
        "people.filter('n > 1').project({'m': 'n + 1', 's': 's'}).concat(others.negate().project({'m': 'n', 's': 's'}),"
        " others.project({'m': 'n', 's': 's'})).count(by=['m'], name='k')"
    )


def whole() -> dict[str, Any]:
    """A description with something of everything."""
    flow = dd.Flow()
    spec = dd.Upsert(key="id", order_by="n", delete=dd.tombstone("s", "gone"), noop_ignore=["m"], where="n < 9")
    rows = flow.upserts("people", COLUMNS | {"m": pa.list_(pa.int64())}, spec)
    flow.output("rows", rows)
    counted = flow.output("by_n", rows.filter("n > 1").project({"n": "n", "k": "n + 1"}).count(by=["n"]))
    flow.output("both", counted.concat(counted.negate()))
    return json.loads(json.dumps(describe_plan(flow)))


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values within a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from paths(value[key], (*path, key))


JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    2**63,
    10**400,
    1.5,
    float("nan"),
    "",
    "x",
    "id",
    "n",
    "n >",
    "\ud800",
    "a\x00b",
    [],
    {},
    [[]],
    [None],
    [1],
    ["n", "n"],
    {"sql": "n"},
    {"tombstone": 5},
    {"tombstone": "n", "value": []},
    "count",
    "concat",
    "greatest",
    "(" * 500 + "n",
]


def mutated(description: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A description with one to three places changed, taken away, swapped or added."""
    out = copy.deepcopy(description)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        path = chance.choice(list(paths(out)))
        within: Any = out
        for key in path[:-1]:
            within = within[key]
        verb, place = chance.choice(["junk", "junk", "drop", "other", "add"]), path[-1]
        if verb == "junk":
            within[place] = copy.deepcopy(chance.choice(JUNK))
        elif verb == "drop":
            del within[place]
        elif verb == "other":
            other: Any = description
            for key in chance.choice(list(paths(description))):
                other = other[key]
            within[place] = copy.deepcopy(other)
        elif isinstance(within, dict):
            within[chance.choice(["x", "key", "tie", "lateness", "sql", "of", "value"])] = chance.choice(JUNK)
        else:
            within.append(chance.choice(JUNK))
    return out


def test_a_hostile_description_is_refused_or_is_the_plan_it_says() -> None:
    good, chance, refused = whole(), seeded(__name__, "description"), 0
    for turn in range(1000):
        bad = mutated(good, chance)
        try:
            flow = rebuild_plan(bad, "a state")
        except (CorruptState, SpecError) as error:
            assert isinstance(error, CorruptState) or "is not SQL" in str(error), (turn, error)
            assert len(str(error)) < 2500, (turn, error)
            refused += 1
        else:
            again = describe_plan(flow)
            assert again["outputs"] == bad["outputs"], (turn, bad)
            assert set(again["collections"]) <= set(bad["collections"]), (turn, bad)
            for name, input in again["inputs"].items():
                assert input["columns"] == bad["inputs"][name]["columns"], (turn, bad)
    assert refused > 400


def test_a_hostile_schema_is_refused_or_has_the_columns_that_stand_beside() -> None:
    good, chance = whole(), seeded(__name__, "schema")
    data = base64.b64decode(good["inputs"]["people"]["schema"])
    for turn in range(1000):
        changed = bytearray(data[: chance.randrange(len(data))] if chance.random() < 0.2 else data)
        for _ in range(chance.choice([1, 1, 2, 4]) if changed else 0):
            changed[chance.randrange(len(changed))] = chance.choice([0, 127, 128, 255, chance.randrange(256)])
        bad = copy.deepcopy(good)
        bad["inputs"]["people"]["schema"] = base64.b64encode(changed).decode()
        try:
            flow = rebuild_plan(bad)
        except CorruptState:
            continue
        assert describe_plan(flow)["inputs"]["people"]["columns"] == good["inputs"]["people"]["columns"], turn


def change(where: list[Any], value: Any) -> dict[str, Any]:
    out = whole()
    within: Any = out
    for key in where[:-1]:
        within = within[key]
    within[where[-1]] = value
    return out


def a_cycle() -> dict[str, Any]:
    out = whole()
    at = out["outputs"]["both"]
    out["collections"][at]["of"] = [at, at]
    return out


HOSTILE: dict[str, tuple[Callable[[], Any], str]] = {
    "no object": (lambda: [], "not an object"),
    "no collections": (lambda: change(["collections"], None), "collections: it is None, not an object"),
    "an output of nothing": (lambda: change(["outputs", "rows"], "0" * 32), "do not fit together"),
    "a cycle": (a_cycle, "CycleError"),
    "a collection under another's id": (
        lambda: change(["collections", "0" * 32], {"op": "input", "name": "people", "of": []}),
        "when it is built",
    ),
    "an unknown operator": (
        lambda: change(["collections", "0" * 32], {"op": "windows", "of": [whole()["outputs"]["rows"]]}),
        "its operator is 'windows'",
    ),
    "a filter of nothing": (lambda: change(["collections", "0" * 32], {"op": "filter", "of": []}), "without inputs"),
    "SQL that does not compile": (
        lambda: change(
            ["collections", "0" * 32], {"op": "filter", "of": [whole()["outputs"]["rows"]], "predicate": {"sql": "m >"}}
        ),
        "ExpressionError",
    ),
    "a schema that is none": (lambda: change(["inputs", "people", "schema"], "AAAA"), "its schema is not valid"),
    "a schema that is no base64": (lambda: change(["inputs", "people", "schema"], "{}"), "its schema is not valid"),
    "another schema": (
        lambda: change(["inputs", "people", "columns"], [["id", "int8", True]]),
        "but the list of columns is",
    ),
    "a key that is no text": (
        lambda: change(["inputs", "people", "spec", "key"], [1]),
        "Expected `str`, got `int` - at `$.key[0]`",
    ),
    "an unknown option": (lambda: change(["inputs", "people", "spec", "keys"], "x"), "spec"),
    "a negative lateness": (
        lambda: change(["inputs", "people", "spec", "lateness"], -1),
        "Expected `int` >= 0 - at `$.lateness`",
    ),
    "a spec that does not fit": (lambda: change(["inputs", "people", "spec", "order_by"], ["z"]), "no column 'z'"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_description_that_was_not_written_here_is_corrupt(what: str) -> None:
    make, found = HOSTILE[what]
    with pytest.raises(CorruptState) as error:
        rebuild_plan(make(), "state/orders")
    assert found in str(error.value)
    assert "the plan of state/orders" in str(error.value)
