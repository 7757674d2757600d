"""Test failing expressions: a step succeeds exactly if every collection can be computed from its inputs' rows.

Plans are drawn from all operators that evaluate expressions; most expressions fail for some rows. Inputs change in
drawn steps, so that pairs, pads and old rows appear and disappear within a step. The twin computes each collection from
scratch. So it evaluates an expression only for existing rows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pytest
import tight
from chance import effort
from hypothesis import event, given, note, strategies as st
from model import Node
from parts_by_hand import Hands
from rules import Row, canonical

import ddflow as dd
from ddflow.errors import ExpressionError
from ddflow.storage.memory import MemoryStore

Both = tuple[Any, Node]
"""A collection of columns k and v, and the twin's."""
Values = Mapping[str, Any]


def div(over: int | None, under: int | None) -> int | None:
    """Spark's div."""
    return None if over is None or under is None else int(over / under)


def less(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


def above(one: int | None, other: int | None) -> bool | None:
    return None if one is None or other is None else one > other


OF_ONE: Final[dict[str, Callable[[Values], Any]]] = {
    "10 div v": lambda r: div(10, r["v"]),
    "10 div (v - 1)": lambda r: div(10, less(r["v"], 1)),
    "10 div coalesce(v, 0)": lambda r: div(10, r["v"] or 0),
    "case when v <> 0 then 10 div v end": lambda r: div(10, r["v"]) if r["v"] else None,
    "coalesce(nullif(v, 0), 10 div v)": lambda r: r["v"] or div(10, r["v"]),
}
# Each reads all columns: one that nobody reads is not computed.
OF_TWO: Final[dict[str, Callable[[Values], Any]]] = {
    "10 div (v - w)": lambda r: div(10, less(r["v"], r["w"])),
    "10 div coalesce(w, v, 0)": lambda r: div(10, next((each for each in (r["w"], r["v"]) if each is not None), 0)),
    "10 div coalesce(v, w, 0)": lambda r: div(10, next((each for each in (r["v"], r["w"]) if each is not None), 0)),
    "coalesce(v, 10 div w)": lambda r: div(10, r["w"]) if r["v"] is None else r["v"],
    "coalesce(w, v)": lambda r: r["v"] if r["w"] is None else r["w"],
}
CONDITIONS: Final[dict[str, Callable[[Values], bool | None]]] = {
    "10 div v > 2": lambda r: above(div(10, r["v"]), 2),
    "v <> 0 and 10 div v > 2": lambda r: r["v"] and above(div(10, r["v"]), 2),
    "v is null or v = 0 or 10 div v > 2": lambda r: not r["v"] or above(div(10, r["v"]), 2),
}
MATCHES: Final[dict[str, Callable[[Values], bool | None]]] = {
    "10 div w > 2": lambda r: above(div(10, r["w"]), 2),
    "10 div (v - w) > 0": lambda r: above(div(10, less(r["v"], r["w"])), 0),
    "v = 1 or 10 div w > 2": lambda r: r["v"] == 1 or above(div(10, r["w"]), 2),
}


def total(rows: list[tuple[dict[str, Any], int]]) -> int | None:
    """The sum of 10 div v."""
    made = [(div(10, row["v"]), n) for row, n in rows]
    some = [each * n for each, n in made if each is not None]
    return sum(some) if some else None


def to_w(both: Both) -> Both:
    return both[0].project({"k": "k", "w": "v"}), both[1].project({"k": lambda r: r["k"], "w": lambda r: r["v"]})


def show_value(both: Both, text: str, function: Callable[[Values], Any]) -> Both:
    """k, and an expression as v."""
    return both[0].project({"k": "k", "v": text}), both[1].project({"k": lambda r: r["k"], "v": function})


@st.composite
def plans(draw: st.DrawFn, inputs: Sequence[Both], depth: int) -> Both:
    """A collection that is made of some inputs by operators that may fail."""
    if depth == 0:
        return draw(st.sampled_from(inputs))
    one = draw(plans(inputs, depth - 1))
    kind = draw(st.sampled_from(KINDS))
    note(f"{depth}: {kind}")
    if kind == "project":
        return show_value(one, *draw(st.sampled_from([*OF_ONE.items()])))
    if kind == "filter":
        text, keeps = draw(st.sampled_from([*CONDITIONS.items()]))
        return one[0].filter(text), one[1].filter(keeps)
    if kind == "agg":
        return one[0].group_by("k").agg(v="sum(10 div v)"), one[1].agg(["k"], v=total)
    if kind == "count":
        made = tuple(each.count(["k", "v"], name="n") for each in one)
        return show_value(made, "n + v", lambda r: None if r["v"] is None else r["n"] + r["v"])
    if kind == "distinct":
        return one[0].distinct(), one[1].distinct()
    other = draw(plans(inputs, draw(st.integers(0, depth - 1))))
    if kind == "concat":
        return one[0].concat(other[0]), one[1].concat(other[1])
    if kind == "key":
        keyed = one[1].project({"k": lambda r: r["k"], "v": lambda r: r["v"], "q": lambda r: div(10, r["v"])})
        right, twin = other[0].project({"j": "k", "w": "v"}), to_w(other)[1]
        twin = twin.project({"j": lambda r: r["k"], "w": lambda r: r["w"]})
        made = one[0].join(right, on={"10 div v": "j"}), keyed.join(twin, {"q": "j"})
        return show_value(made, *list(OF_TWO.items())[-1])
    right, twin = to_w(other)
    some = [] if kind in ("semi", "anti") else [(None, None)]
    text, meets = draw(st.sampled_from([*some, *MATCHES.items()]))
    made = one[0].join(right, on="k", how=kind, condition=text), one[1].join(twin, {"k": "k"}, kind, meets)
    return made if kind in ("semi", "anti") else show_value(made, *draw(st.sampled_from([*OF_TWO.items()])))


KINDS: Final = (
    *("project", "filter", "agg", "count", "distinct", "concat", "key"),
    *("inner", "left", "right", "full", "semi", "anti"),
)
ROWS: Final = st.tuples(st.sampled_from([1, 2, None]), st.sampled_from([None, 0, 1, 1, 2, 5]))
NAMES: Final = ("a", "b")
STEP: Final = st.fixed_dictionaries(
    {name: st.dictionaries(st.integers(1, 4), st.one_of(ROWS, ROWS, ROWS, st.none()), max_size=4) for name in NAMES}
)
Held = dict[str, dict[int, Any]]


def inputs_of(flow: dd.Flow, **spec: Any) -> list[Both]:
    """Both inputs, of columns k and v, with the twin's."""
    out = list[Both]()
    columns = {"id": int, "k": int, "v": int, "gone": bool} | ({"t": int} if "time" in spec else {})
    for name in NAMES:
        rows = flow.upserts(name, columns, dd.Upsert(key="id", delete=dd.tombstone("gone"), **spec))
        node = Node(("id", "k", "v"), lambda state, name=name: state[name]).project(["k", "v"])
        out.append((rows.project(["k", "v"]), node))
    return out


def table(rows: Mapping[int, Any]) -> pa.Table:
    """Events of an input: a row, or None for a delete, by id."""
    columns: dict[str, list[Any]] = {"id": [*rows], "k": [], "v": [], "gone": []}
    for each in rows.values():
        for name, value in zip(("k", "v", "gone"), (None, None, True) if each is None else (*each, False), strict=True):
            columns[name].append(value)
    schema = pa.schema({"id": pa.int64(), "k": pa.int64(), "v": pa.int64(), "gone": pa.bool_()})
    return pa.table(columns, schema)


def after(held: Held, step: Held) -> Held:
    """What inputs hold after a step."""
    both = {name: {**held[name], **step[name]} for name in NAMES}
    return {name: {key: row for key, row in rows.items() if row is not None} for name, rows in both.items()}


def answers(nodes: Sequence[Node], held: Held) -> list[Counter[Row]] | None:
    """What the twin holds; None where an expression fails."""
    state = {
        name: Counter(tuple(map(canonical, (key, *row))) for key, row in rows.items()) for name, rows in held.items()
    }
    try:
        return [node.of(state) for node in nodes]
    except ZeroDivisionError:
        return None


def count_rows(rows: pa.Table) -> Counter[Row]:
    names = [name for name in rows.column_names if name != "_diff"]
    return Counter({tuple(canonical(row[name]) for name in names): row["_diff"] for row in rows.to_pylist()})


def draw_outputs(data: st.DataObject, flow: dd.Flow, **spec: Any) -> list[Node]:
    """Outputs of a flow, and the twin's."""
    inputs, nodes = inputs_of(flow, **spec), list[Node]()
    for number in range(data.draw(st.integers(1, 2))):
        made, node = data.draw(plans(inputs, data.draw(st.integers(1, 4))))
        flow.output(f"o{number}", made)
        nodes.append(node)
    return nodes


def check(data: st.DataObject, nodes: Sequence[Node], take: Callable[[Any], Any], read: Callable[[str], Any]) -> None:
    """Take drawn steps, each of which succeeds exactly if the twin can compute what is held then."""
    held: Held = {name: {} for name in NAMES}
    for number in range(1, data.draw(st.integers(2, 5))):
        step = data.draw(STEP)
        would = after(held, step)
        expected, given = answers(nodes, would), {name: table(rows) for name, rows in step.items() if rows}
        event("fails" if expected is None else "succeeds")
        if expected is None:
            with pytest.raises(ExpressionError):
                take((given, number))
        else:
            take((given, number))
            held = would
        for place, rows in enumerate(answers(nodes, held) or []):
            assert count_rows(read(f"o{place}")) == rows


@effort(200)
@given(st.data())
def test_a_step_succeeds_if_and_only_if_the_plan_can_be_computed_from_nothing(data: st.DataObject) -> None:
    flow = dd.Flow()
    nodes = draw_outputs(data, flow)
    with flow.open() as engine:
        check(data, nodes, lambda given: engine.step(given[0]), engine.read)


@effort(40)
@given(st.data())
def test_so_it_is_where_steps_are_taken_in_pieces(data: st.DataObject) -> None:
    flow = dd.Flow()
    nodes = draw_outputs(data, flow)
    with TemporaryDirectory() as spill, tight.tiny(), flow.open(memory=tight.MEMORY, spill=spill) as engine:

        def take(given: Any) -> None:
            tight.tighten(engine, 0, 2)
            engine.step(given[0])

        check(data, nodes, take, engine.read)


@effort(60)
@given(st.data(), st.sampled_from([1, 2, 3]), st.integers(0, 99))
def test_so_it_is_on_partitions(data: st.DataObject, partitions: int, seed: int) -> None:
    flow = dd.Flow()
    nodes = draw_outputs(data, flow)
    hands = Hands(flow, MemoryStore(), partitions, random.Random(seed))
    note(str(hands.cut))
    with ExitStack() as stack:
        stack.callback(hands.close)
        check(data, nodes, lambda given: hands.epoch(given[0]), lambda name: dd.read(hands.store.reopen(), name))


TIMED: Final = st.dictionaries(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 3), st.integers(1, 6)),
    st.one_of(ROWS, ROWS, st.none()),
    max_size=10,
)
"""Events by input, id and time."""


@effort(60)
@given(st.data(), TIMED, st.integers(2, 8))
def test_held_back_times_before_the_first_that_fails_can_be_closed(
    data: st.DataObject, events: dict[tuple[str, int, int], Any], frontier: int
) -> None:
    flow = dd.Flow()
    nodes = draw_outputs(data, flow, time="t")
    held: dict[int, Held] = {0: {name: {} for name in NAMES}}
    for time in range(1, 8):
        step: Held = {
            name: {key: row for (of, key, t), row in events.items() if (of, t) == (name, time)} for name in NAMES
        }
        held[time] = after(held[time - 1], step)
    failing = [time for time in range(1, frontier) if answers(nodes, held[time]) is None]
    with flow.open() as engine:
        for name in NAMES:
            mine = [((key, time), row) for (of, key, time), row in events.items() if of == name]
            rows = table({place: row for place, (_, row) in enumerate(mine)}).drop_columns(["id"])
            columns = [pa.array([at[i] for at, _ in mine], pa.int64()) for i in (0, 1)]
            engine.push({name: rows.append_column("id", columns[0]).append_column("t", columns[1])})
        if failing:
            event("fails")
            first = failing[0]
            with pytest.raises(
                ExpressionError, match=f"at time {first}; .* {first} is the greatest frontier that succ"
            ):
                engine.advance_to(frontier)
            frontier = first
        engine.advance_to(frontier)
        for place, rows in enumerate(answers(nodes, held[frontier - 1]) or []):
            assert count_rows(engine.read(f"o{place}")) == rows
