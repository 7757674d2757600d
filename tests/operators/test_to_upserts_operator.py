"""Test outputs of upserts: beside the twin at every call, across restarts and in files, and every refusal.

The twin has no operator ``to_upserts``. The expected upserts are `model.to_upserts` of all updates that the twin gave
for the collection. If `model.to_upserts` refuses a call, the engine must refuse the complete call without effect.
"""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import effort, mid_test
from doors import FOREVER, SECRET, TwinDoor, plain, plan, schema_of, spec_of, to_arrow
from hypothesis import given, strategies as st
from messages import raises
from model import to_upserts
from rules import Refused
from strategies import kinds_of, plans, scenarios, some
from test_laws import calls
from test_to_upserts import told
from tight import MEMORY, tighten, tiny

import ddflow as dd
from ddflow.columns.schema import is_flat_type
from ddflow.dataflow import step as computation
from ddflow.errors import (
    BudgetExceeded,
    CorruptState,
    DdflowError,
    NotReadable,
    NotUnique,
    PlanChanged,
    SchemaMismatch,
    SpecError,
)
from ddflow.plan.text.codec import compute_node_id, describe_plan, format_node, rebuild_plan
from ddflow.storage.memory import MemoryStore
from ddflow.tools.export import open_contents

RULES = ["error", "greatest", "all"]


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], list[list[Any]]]:
    """A scenario with one output, how that is to be told as upserts, and calls."""
    scenario = draw(scenarios())
    input = scenario["inputs"]["a"]
    expression, columns = draw(plans(kinds_of(input), list(scenario["inputs"]), draw(st.sampled_from([0, 0, 1, 2]))))
    flat = [field.name for field in schema_of(columns) if is_flat_type(field.type)]
    key = [name for name in input["spec"]["key"] if name in columns]
    if not key or draw(st.integers(0, 3)) == 0:
        key = draw(some(flat, 1)) if flat else []
    rule = draw(st.sampled_from(RULES if len(flat) == len(columns) else ["error", "all"]))
    if not key:
        expression, key, rule = ["count", expression, [], "n"], ["n"], "error"
    scenario = scenario | {"outputs": {"diffs": expression}}
    return scenario, {"key": key, "on_conflict": rule}, draw(calls(scenario, 6))


class Twins:
    """The twin, and what its updates are as upserts."""

    def __init__(self, scenario: dict[str, Any], to: dict[str, Any]) -> None:
        self.door, self.to = TwinDoor(scenario), to
        self.columns = self.door.columns_of("diffs")
        self.updates: list[Any] = []
        self.known: dict[Any, Any] = {}

    def call(self, verb: str, *arguments: Any) -> dict[Any, Any] | None:
        """The upserts of a call; None where it must be refused, and is as if never made."""
        twin = self.door.twin
        before, history, put_out = copy.deepcopy(twin.state), list(twin.history), list(twin.put_out)
        try:
            act = {
                "step": lambda: self.door.step(arguments[1], arguments[0]),
                "push": lambda: self.door.push(arguments[0]),
                "advance": lambda: self.door.advance_to(arguments[0]),
            }[verb]
            more = [(*at, diff) for at, diff in act().updates["diffs"].items()]
            now = to_upserts(self.columns, self.to["key"], [*self.updates, *more], self.to["on_conflict"])
        except Refused:
            twin.state, twin.history[:], twin.put_out[:] = before, history, put_out
            return None
        new = {at: row for at, row in now.items() if at not in self.known}
        self.updates, self.known = [*self.updates, *more], now
        return new

    def holds(self) -> dict[Any, Any]:
        """What each key shows now."""
        latest = {key: row for (key, _), row in sorted(self.known.items(), key=lambda each: each[0][1])}
        return {key: row for key, row in latest.items() if row}


class Engines:
    """An engine of the same plan, with the upserts as an output beside the updates.

    ``medium``: how many events are resolved together, in files; None: in memory."""

    def __init__(self, scenario: dict[str, Any], to: dict[str, Any], store: Any, medium: int | None) -> None:
        self.scenario, self.to, self.columns = scenario, to, {}
        flow, inputs = dd.Flow(), {}
        for name, each in scenario["inputs"].items():
            inputs[name] = flow.upserts(name, schema_of(each["columns"]), spec_of(each["spec"]))
        made = plan(scenario["outputs"]["diffs"], inputs, False)
        flow.output("upserts", flow.output("diffs", made).to_upserts(**to))
        budget = {} if medium is None else {"memory": MEMORY}
        self.engine = flow.open(store, secret=SECRET, **budget)
        if medium is not None:
            tighten(self.engine, 0, medium)
        self.names = made.schema.names

    def call(self, verb: str, *arguments: Any) -> dict[Any, Any] | None:
        """The upserts of a call; None where it is refused."""
        tables = {}
        if verb != "advance":
            inputs = self.scenario["inputs"]
            tables = {name: to_arrow(inputs[name]["columns"], rows) for name, rows in arguments[-1].items()}
        try:
            act = {
                "step": lambda: self.engine.step(tables, arguments[0]),
                "push": lambda: self.engine.push(tables),
                "advance": lambda: self.engine.advance_to(arguments[0]),
            }[verb]
            out = act()
        except DdflowError:
            return None
        assert out["upserts"].schema == self.engine.output_schema("upserts")
        return self.told(out["upserts"])

    def told(self, table: pa.Table) -> dict[Any, Any]:
        """Upserts, in plain values."""
        return told(table, self.names, self.to["key"], self.to["on_conflict"])

    def holds(self, as_of: int | None = None) -> dict[Any, Any]:
        """What each key shows, as it is read."""
        table = self.engine.read("upserts", as_of)
        assert table.column_names == [*self.engine.flow.outputs["upserts"].schema.names, "_diff"]
        assert set(table["_diff"].to_pylist()) <= {1}
        n = table.num_rows
        table = table.drop_columns("_diff").append_column("_time", pa.array([0] * n, pa.int64()))
        found = self.told(table.append_column("_deleted", pa.array([False] * n, pa.bool_())))
        return {key: row for (key, _), row in found.items()}


def agree(found: Any, expected: Any) -> None:
    assert (found is None) == (expected is None), (found, expected)
    assert not found or {at: row or None for at, row in found.items()} == {
        at: row or None for at, row in expected.items()
    }, (found, expected)
    assert bool(found) == bool(expected), (found, expected)


@effort(150)
@given(stories())
def test_every_call_gives_the_upserts_that_the_twin_gives_or_is_refused_whole(story: Any) -> None:
    scenario, to, played = story
    twin, other = Twins(scenario, to), Engines(scenario, to, None, None)
    for call in played:
        agree(other.call(*call), twin.call(*call))
        other.engine._check_invariants()
        assert other.holds() == twin.holds()
        if to["on_conflict"] == "error":
            one, two = (Counter(plain(other.engine.read(name))) for name in ("diffs", "upserts"))
            assert one == two


@effort(60)
@given(stories(), st.data())
def test_a_restart_anywhere_and_steps_in_pieces_change_nothing(story: Any, data: st.DataObject) -> None:
    scenario, to, played = story
    medium = st.sampled_from([None, 3, 2**40])
    store = MemoryStore()
    with tiny():
        twin, other = Twins(scenario, to), Engines(scenario, to, store, data.draw(medium))
        for call in played:
            last = other.engine.last
            expected, found = twin.call(*call), other.call(*call)
            if call[0] == "step" and expected is None and call[1] <= last:
                continue  # a time that was committed may be that call, given again
            agree(found, expected)
            other.engine._check_invariants()
            if data.draw(st.booleans()):
                other.engine.close()
                store = store.reopen()
                other = Engines(scenario, to, store, data.draw(medium))
                other.engine._check_invariants()
            assert other.holds() == twin.holds()
        other.engine.close()
        with dd.Snapshot.open(store) as snapshot:
            assert Counter(plain(snapshot.read("upserts"))) == Counter(plain(dd.read(store, "upserts")))


@mid_test
@pytest.mark.parametrize(("n", "together"), [(60, 3), (6000, 1000)])
def test_pieces_of_a_step_are_told_as_one_table(tmp_path: Path, n: int, together: int) -> None:
    """Ranges of keys, files and several times all happen; and scratch is used again, which few rows have none of."""
    flow = dd.Flow()
    input = flow.upserts("a", {"k": pa.int64(), "v": pa.int64(), "t": pa.int64()}, dd.Upsert("k", time="t", tie="last"))
    flow.output("one", input.to_upserts("k"))
    flow.output("all", input.concat(input.filter("v > 3")).to_upserts("v", "all"))
    number = np.arange(n)
    events = pa.table({"k": number % (n // 3), "v": number * 7 % (n // 4), "t": number // (n // 5)})
    with tiny() as seen, flow.open(memory=MEMORY, spill=tmp_path) as tight, flow.open() as whole:
        tighten(tight, rows=together)
        for half in (0, 1):
            steps = []
            for engine in (tight, whole):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(computation, "GATHERED", together)
                    engine.push({"a": events.slice(half * n // 2, n // 2)})
                    steps.append(engine.advance_to(2 if half == 0 else dd.CLOSED))
                engine._check_invariants()
            for name in flow.outputs:
                one, two = (step[name] for step in steps)
                assert one.schema == two.schema and one["_time"].equals(two["_time"])
                assert Counter(map(repr, one.to_pylist())) == Counter(map(repr, two.to_pylist()))
        assert seen["a step taken in ranges"] and seen["updates brought into ranges"]


@effort(40)
@given(stories())
def test_there_and_back_is_the_identity(story: Any) -> None:
    """What comes out as upserts, taken in as upserts, comes out as the same upserts."""
    scenario, to, played = story
    if to["on_conflict"] == "all":
        to = to | {"on_conflict": "error"}
    one = Engines(scenario, to, None, None)
    flow, columns = dd.Flow(), one.engine.flow.outputs["diffs"].schema
    fields = [field.with_nullable(True) for field in columns]
    spec = dd.Upsert(to["key"], delete=dd.tombstone("_deleted"), null_key="keep")
    input = flow.upserts("a", pa.schema([*fields, ("_deleted", pa.bool_())]), spec)
    flow.output("again", input.to_upserts(to["key"]))
    with flow.open() as engine:
        for call in played:
            tables: list[pa.Table] = []
            one.told = lambda table, tables=tables: tables.append(table) or {}
            one.call(*call)
            for table in tables:
                times = [row[-2] for row in plain(table)]
                for time in sorted(set(times)):
                    these = table.filter(pa.array([each == time for each in times])).drop_columns("_time")
                    again = engine.step({"a": these}, time)["again"].drop_columns("_time")
                    assert Counter(plain(again.select(these.column_names))) == Counter(plain(these))


ORDERS = {"id": pa.int64(), "city": pa.string(), "paid": pa.bool_()}


def orders(flow: dd.Flow, **more: pa.DataType) -> Any:
    return flow.upserts("orders", ORDERS | more, dd.Upsert(key="id", delete="city = 'gone'"))


def rows(*events: tuple[Any, ...]) -> dict[str, pa.Table]:
    columns = zip(ORDERS.items(), zip(*events, strict=True), strict=True)
    return {"orders": pa.table({name: pa.array(list(values), kind) for (name, kind), values in columns})}


def test_an_output_for_a_log_that_is_compacted() -> None:
    flow = dd.Flow()
    flow.output("for_kafka", orders(flow).filter("paid").to_upserts("id"))
    with flow.open(retain=FOREVER) as engine:
        engine.step(rows((1, "Bern", True), (2, "Chur", False)), 1)
        out = engine.step(rows((1, "Basel", True), (2, "Chur", True)), 2)["for_kafka"]
        assert out.column_names == ["id", "city", "paid", "_time", "_deleted"]
        assert sorted(map(tuple, map(dict.values, out.to_pylist()))) == [
            (1, "Basel", True, 2, False),
            (2, "Chur", True, 2, False),
        ]
        assert engine.step(rows((1, "Basel", False)), 3)["for_kafka"].to_pylist() == [
            {"id": 1, "city": None, "paid": None, "_time": 3, "_deleted": True}
        ]
        assert engine.step({}, 4)["for_kafka"].num_rows == 0
        assert engine.read("for_kafka", 1).to_pylist() == [{"id": 1, "city": "Bern", "paid": True, "_diff": 1}]
        changes = engine.changes("for_kafka", 1, 3)
        assert Counter(plain(changes)) == {(1, "Bern", True, -1): 1, (2, "Chur", True, 1): 1}
        with engine.reader("for_kafka", 2) as reader:
            assert reader.read().num_rows == 2
        with raises(NotReadable):
            engine.scd2("for_kafka")
        assert engine.stats()["arrangements"]["to_upserts 0 by ['id']"]["keys"] == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_another_operator_refuses_leaves_upserts_as_they_were(first: bool) -> None:
    flow = dd.Flow()
    input = orders(flow)
    nodes = {"id": input.to_upserts("id"), "city": input.to_upserts("city")}
    for name in nodes if first else reversed(nodes):
        flow.output(name, nodes[name])
    with flow.open() as engine:
        engine.step(rows((1, "Bern", True)), 1)
        with pytest.raises(NotUnique) as refused:
            engine.step(rows((1, "Chur", True), (2, "Chur", None)), 2)
        for words in ("upserts by ['city'] at time 2", "'id': 1", "'id': 2", "on_conflict='greatest'"):
            assert words in str(refused.value), str(refused.value)
        engine._check_invariants()
        assert engine.frontier == 2 and engine.read("id").num_rows == engine.read("city").num_rows == 1
        out = engine.step(rows((1, "Basel", True)), 2)
        assert out["id"].to_pylist() == [{"id": 1, "city": "Basel", "paid": True, "_time": 2, "_deleted": False}]
        assert Counter(out["city"]["_deleted"].to_pylist()) == {True: 1, False: 1}


def test_a_step_that_the_budget_refuses_leaves_upserts_as_they_were() -> None:
    """Its held rows count in the budget: the same flow without it has room."""
    flow, bare, memory = dd.Flow(), dd.Flow(), 190_000
    flow.output("out", orders(flow).to_upserts("id"))
    bare.output("out", orders(bare))
    first, many = rows((1, "Bern", True)), rows(*((i, "Chur", True) for i in range(3000)))
    with bare.open(memory=memory) as engine:
        engine.step(first, 1)
        engine.step(many, 2)
    with flow.open(memory=memory) as engine:
        engine.step(first, 1)
        with pytest.raises(BudgetExceeded):
            engine.step(many, 2)
        engine._check_invariants()
        assert engine.step(rows((1, "gone", None)), 2)["out"]["_deleted"].to_pylist() == [True]


def shop(**more: tuple[str, str]) -> dd.Flow:
    flow = dd.Flow()
    input = flow.output("orders", orders(flow))
    for name, (key, rule) in more.items():
        flow.output(name, input.to_upserts(key, rule))
    return flow


def test_a_new_output_gives_all_it_holds_as_upserts_or_the_state_is_not_opened(tmp_path: Path) -> None:
    place, two = tmp_path / "state", {"by_id": ("id", "error"), "by_city": ("city", "all")}
    with shop().open(place) as engine:
        engine.step(rows((1, "Bern", True), (2, "Bern", False)), 1)
    with shop(**two).open(place) as engine:
        out = engine.step({}, 2)["by_id"].sort_by("id")
        assert out.to_pylist() == [
            {"id": 1, "city": "Bern", "paid": True, "_time": 1, "_deleted": False},
            {"id": 2, "city": "Bern", "paid": False, "_time": 1, "_deleted": False},
        ]
    with shop(**two).open(place) as engine:
        out = engine.step(rows((2, "gone", None)), 3)
        assert out["by_id"].to_pylist() == [{"id": 2, "city": None, "paid": None, "_time": 3, "_deleted": True}]
        assert out["by_city"].to_pylist() == [
            {"city": "Bern", "rows": [{"id": 1, "paid": True, "_diff": 1}], "_time": 3, "_deleted": False}
        ]
        engine.step(rows((2, "Bern", True)), 4)
    with pytest.raises(NotUnique):  # whose two rows have no order
        shop(**two, unique=("city", "error")).open(place)
    with raises(PlanChanged):
        shop(by_id=("id", "greatest"), by_city=("city", "all")).open(place)
    with shop(**two).open(place) as engine:
        assert engine.read("by_id").num_rows == 2
    assert dd.fsck(place).ok


@pytest.mark.parametrize("shows", [True, False])
def test_an_epoch_is_given_again_by_a_plan_with_another_column_too(tmp_path: Path, shows: bool) -> None:
    flow, place, folder = dd.Flow(), tmp_path / "state", tmp_path / "out" if shows else None
    flow.output("all", orders(flow).to_upserts("city", "all"))
    with flow.open(place, outputs=folder) as engine:
        engine.step(rows((1, "Bern", True), (2, "Bern", False)), 1)
        first = engine.step(rows((1, "Chur", True)), 2)["all"]
    paths = [path for path in tmp_path.rglob("*.parquet") if path.parent.parent == folder]
    assert not shows or sum(pq.read_table(path).num_rows for path in paths) == 3
    with flow.open(place, outputs=folder) as engine:
        assert engine.step(rows((1, "Chur", True)), 2)["all"].equals(first)
    grown = dd.Flow()
    grown.output("all", orders(grown, rank=pa.int64()).to_upserts("city", "all"))
    with grown.open(place, outputs=folder) as engine:
        again = engine.step(rows((1, "Chur", True)), 2)["all"]
        assert again.schema == engine.output_schema("all")
        expected = first.to_pylist()
        for each in (each for row in expected for each in row["rows"] or []):
            each["rank"] = None
        assert again.to_pylist() == expected
    with dd.Snapshot.open(place) as snapshot:
        schema, tables = open_contents(snapshot, "all")
        assert schema.names == ["city", "rows"] and sum(table.num_rows for table in tables) == 2


def test_nothing_can_be_made_of_upserts_but_an_output() -> None:
    flow = dd.Flow()
    input = orders(flow)
    last = input.to_upserts("id")
    for act in (
        lambda: last.filter("_deleted"),
        lambda: last.project(["id"]),
        last.count,
        last.consolidate,
        last.negate,
        lambda: last.concat(input),
        lambda: input.concat(last),
        lambda: last.to_upserts("id"),
    ):
        with raises(SpecError):
            act()
    flow.output("out", last)
    assert [type(node).__name__ for node in flow.nodes] == ["Input", "AsUpserts"]


def test_what_it_cannot_do_is_said_when_the_plan_is_made() -> None:
    flow = dd.Flow()
    input = orders(flow, lists=pa.list_(pa.int64()), _deleted=pa.bool_())
    plain_orders = input.project(["id", "city", "lists"])
    for key, rule, error, words in [
        ("idd", "error", SpecError, "did you mean 'id'"),
        ([], "error", SpecError, "at least one column"),
        ("id", "greatets", SpecError, "did you mean 'greatest'"),
        ("lists", "error", SpecError, "hashed as a key"),
        ("id", "greatest", SpecError, "has no order"),
    ]:
        with pytest.raises(error, match=words):
            plain_orders.to_upserts(key, rule)
    with raises(SchemaMismatch):
        input.to_upserts("id")
    assert not [node for node in flow.nodes if type(node).__name__ == "Back"]


def test_its_plan_is_written_and_read_back() -> None:
    flow = dd.Flow()
    node = flow.output("out", orders(flow).filter("paid").to_upserts(["city", "id"], "all"))
    description = describe_plan(flow)
    assert describe_plan(rebuild_plan(description)) == description
    assert format_node(description, compute_node_id(node), "it").endswith(
        ".to_upserts(['city', 'id'], on_conflict='all')"
    )
    ident = description["outputs"]["out"]
    for wrong in ({"on_conflict": "most"}, {"on_conflict": 3}, {"key": "id"}, {"key": ["other"]}, {"of": []}):
        nodes = description["collections"] | {ident: description["collections"][ident] | wrong}
        with pytest.raises(CorruptState):
            rebuild_plan(description | {"collections": nodes})
    behind = {"op": "negate", "of": [ident]}
    with raises(CorruptState):
        rebuild_plan(description | {"collections": description["collections"] | {"0" * 32: behind}})
