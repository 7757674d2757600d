"""Test opening a state with another plan: refusals with their texts, and allowed changes by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import effort
from hypothesis import given, strategies as st
from messages import raises
from strategies import scenarios
from test_planned import above, flow_of, positive

import ddflow as dd
from ddflow.errors import CorruptState, PlanChanged
from ddflow.plan.compatibility import PlanChange, compare_plans
from ddflow.plan.text.codec import describe_plan

WHERE = "state/orders"
COLUMNS: dict[str, Any] = {"id": pa.int64(), "at": pa.int64(), "rev": pa.int64(), "op": pa.string(), "n": pa.int32()}
LAST: dict[str, Any] = {"key": "id", "order_by": "at"}
HELD: dict[str, Any] = {"key": "id", "order_by": "at", "time": "rev", "late": "advance"}
Plan = Callable[..., dd.Flow]


def flow(
    spec: dict[str, Any] = LAST, columns: Any = COLUMNS, outputs: Any = None, more: tuple[str, ...] = ()
) -> dd.Flow:
    """A plan of one input ``orders``, and one for each further name; ``outputs``: how each is built from it."""
    out = dd.Flow()
    rows = out.upserts("orders", columns, dd.Upsert(**spec))
    for name in more:
        out.upserts(name, columns, dd.Upsert(**spec))
    for name, make in (outputs or {"rows": lambda rows: rows}).items():
        out.output(name, make(rows))
    return out


def stored(of: dd.Flow) -> dict[str, Any]:
    """The description as a state gives it back."""
    return dict(json.loads(json.dumps(describe_plan(of), sort_keys=True)))


def refused(old: dd.Flow, new: dd.Flow) -> str:
    with pytest.raises(PlanChanged) as error:
        compare_plans(stored(old), new, WHERE)
    assert error.value.asked == "open state/orders with this plan"
    lacks = ""
    if "is missing, but was" in error.value.found:
        lacks = r"declare the columns that the state has, \{'\w+': '\w+'.*\} of '\w+', because a state .*\); or "
    if "output 'out' is not in the plan" in error.value.found:
        lacks = re.escape("to remove ['out'], first run dd.evolve('state/orders', drop_outputs=['out']); or ")
    if "input 'others' is not in the plan" in error.value.found:
        lacks = re.escape("to remove ['others'], first run dd.evolve('state/orders', drop_inputs=['others']); or ")
    changed = r"(keep \['.*\(docs/guides/deploy-a-changed-query\.md\); or )?"
    assert re.fullmatch(
        f"{lacks}{changed}open it with the plan that created it, or create a new state: from a log with dd.migrate, "
        "else by a new run",
        error.value.fix,
    )
    return error.value.found


def keep(held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
    return held


def named(column: str) -> Any:
    """Functions of one name, whose code is not the same."""

    def taken(held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
        return given.select([column])

    return taken


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "key": (LAST, LAST | {"key": ["id", "op"]}, "key= of input 'orders' is ['id', 'op'], but was ['id']"),
    "order_by": (
        LAST,
        LAST | {"order_by": ["rev", "at"]},
        "order_by= of input 'orders' is ['rev', 'at'], but was ['at']",
    ),
    "no order_by": (LAST, {"key": "id"}, "order_by= of input 'orders' is [], but was ['at']"),
    "tie": (LAST, LAST | {"tie": "greatest"}, "tie= of input 'orders' is 'greatest', but was 'last'"),
    "tie, back to the default": (LAST | {"tie": "first"}, LAST, "tie= of input 'orders' is 'last', but was 'first'"),
    "seq": (LAST, LAST | {"seq": "rev"}, "seq= of input 'orders' is 'rev', but was None"),
    "time": (HELD, HELD | {"time": "at", "order_by": "rev"}, "time= of input 'orders' is 'at', but was 'rev'"),
    "the mode": (HELD, LAST, "time= of input 'orders' is None, but was 'rev'"),
    "delete": (LAST, LAST | {"delete": "op = 'D'"}, "delete= of input 'orders' is \"op = 'D'\", but was None"),
    "another tombstone": (
        LAST | {"delete": dd.tombstone("op", "D")},
        LAST | {"delete": dd.tombstone("op", "X")},
        "delete= of input 'orders' is dd.tombstone('op', 'X'), but was dd.tombstone('op', 'D')",
    ),
    "late": (HELD, HELD | {"late": "drop"}, "late= of input 'orders' is 'drop', but was 'advance'"),
    "stale": (LAST, LAST | {"stale": "side"}, "stale= of input 'orders' is 'side', but was 'drop'"),
    "null_key": (LAST, LAST | {"null_key": "keep"}, "null_key= of input 'orders' is 'keep', but was 'error'"),
    "noop_ignore": (LAST, LAST | {"noop_ignore": "n"}, "noop_ignore= of input 'orders' is ['n'], but was []"),
    "track": (LAST, LAST | {"track": "n"}, "track= of input 'orders' is ['n'], but was None"),
    "ingested": (LAST, LAST | {"ingested": "came"}, "ingested= of input 'orders' is 'came', but was None"),
    "where": (LAST, LAST | {"where": "n > 1"}, "where= of input 'orders' is 'n > 1', but was None"),
    "value": (
        LAST | {"value": ["n"]},
        LAST | {"value": ["n", "op"]},
        "value= of input 'orders' is ['n', 'op'], but was ['n']",
    ),
    "merge": (
        LAST | {"merge": dd.Merge({"n": dd.sum(), "op": dd.join_text("; ")}, default=dd.first_non_null())},
        LAST | {"merge": dd.Merge({"n": dd.max(), "op": dd.collect(limit=3)})},
        "merge= of input 'orders' is dd.Merge({'n': dd.max(), 'op': dd.collect(limit=3)}), but was "
        "dd.Merge({'n': dd.sum(), 'op': dd.join_text('; ')}, default=dd.first_non_null())",
    ),
    "merge by a function": (
        LAST | {"merge": dd.Merge(function=keep)},
        LAST | {"merge": "first_row"},
        "merge= of input 'orders' is 'first_row', but was dd.Merge(function=test_reopening.keep)",
    ),
    "merge by another of that name": (
        LAST | {"merge": dd.Merge(function=named("a"))},
        LAST | {"merge": dd.Merge(function=named("b"))},
        "is dd.Merge(function=test_reopening.named.<locals>.taken), but the state was created with another function",
    ),
    "groups": (
        {"key": "id", "groups": {"at": ["n"]}},
        {"key": "id", "groups": {("at", "rev"): ["n", "op"]}},
        "groups= of input 'orders' is {('at', 'rev'): ['n', 'op']}, but was {'at': ['n']}",
    ),
    "derive": (
        LAST | {"merge": dd.Merge(), "derive": {"n": "1"}},
        LAST | {"merge": dd.Merge(), "derive": {"n": "2"}},
        "derive= of input 'orders' is {'n': '2'}, but was {'n': '1'}",
    ),
    "expiry": (
        LAST | {"expiry": dd.Expiry(ttl=5, on_expire="retract")},
        LAST | {"expiry": dd.Expiry(tombstone_ttl=7)},
        "expiry= of input 'orders' is dd.Expiry(tombstone_ttl=7), but was dd.Expiry(ttl=5",
    ),
    "value, none at all": (LAST, LAST | {"value": []}, "value= of input 'orders' is [], but was None"),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_another_option_is_refused_with_both_values(what: str) -> None:
    old, new, found = OPTIONS[what]
    assert found in refused(flow(old), flow(new))


def columns(**changed: Any) -> pa.Schema:
    """The columns, some of another type, or gone."""
    return pa.schema(
        [
            changed.get(name, pa.field(name, kind))
            for name, kind in COLUMNS.items()
            if changed.get(name, True) is not None
        ]
    )


SCHEMAS: dict[str, tuple[Any, str]] = {
    "another type": (columns(n=pa.field("n", pa.int16())), "column 'n' of input 'orders' is int16, but was int32"),
    "a missing column": (columns(n=None), "column 'n' of input 'orders' is missing, but was int32"),
    "not null any more": (
        columns(n=pa.field("n", pa.int32(), nullable=False)),
        "column 'n' of input 'orders' is not null, but was nullable",
    ),
    "another name": (columns(n=pa.field("m", pa.int32())), "column 'n' of input 'orders' is missing"),
    "another order": (
        pa.schema([pa.field(name, COLUMNS[name]) for name in ("id", "rev", "at", "op", "n")]),
        "the columns of input 'orders' are in the order ['id', 'rev', 'at', 'op', 'n'], but were in the order "
        "['id', 'at', 'rev', 'op', 'n']",
    ),
    "a new one that is never null": (
        pa.schema([*columns(), pa.field("m", pa.int8(), nullable=False)]),
        "column 'm' of input 'orders' is new and declared not null",
    ),
}


@pytest.mark.parametrize("what", SCHEMAS)
def test_another_schema_is_refused_with_both_values(what: str) -> None:
    new, found = SCHEMAS[what]
    assert found in refused(flow(), flow(columns=new))


def test_null_where_none_could_be_is_refused_too() -> None:
    strict = columns(n=pa.field("n", pa.int32(), nullable=False))
    assert "column 'n' of input 'orders' is nullable, but was not null" in refused(flow(columns=strict), flow())


def test_an_encoding_is_no_other_type() -> None:
    encoded = columns(op=pa.field("op", pa.dictionary(pa.int32(), pa.string())))
    assert not compare_plans(stored(flow()), flow(columns=encoded), WHERE)


def test_all_that_is_refused_is_named_and_what_is_much_is_cut() -> None:
    found = refused(flow(), flow(LAST | {"tie": "first", "null_key": "keep"}, columns(n=pa.field("n", pa.int16()))))
    assert all(part in found for part in ("tie= of", "null_key= of", "column 'n' of")), found
    wide = {"id": pa.int64()} | {f"c{i}": pa.int64() for i in range(20)}
    found = refused(flow({"key": "id"}, wide), flow({"key": "id"}, {"id": pa.int64()}))
    assert found.count("is missing") == 8
    assert found.endswith(", and 12 more")


ADDED = COLUMNS | {"city": pa.string()}


@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_new_nullable_column_is_allowed_and_named_wherever_it_stands(place: int) -> None:
    fields = list(columns())
    fields.insert(place, pa.field("city", pa.string()))
    change = compare_plans(stored(flow()), flow(columns=pa.schema(fields)), WHERE)
    assert change == PlanChange(columns={"orders": ["city"]})
    assert change.description == "input 'orders' gets the columns ['city'], which are null in all existing rows"


def test_a_new_column_is_refused_where_it_would_judge_ties_and_only_there() -> None:
    greatest = LAST | {"tie": "greatest"}
    assert "tie='greatest' compares all columns" in refused(flow(greatest), flow(greatest, ADDED))
    narrow = greatest | {"value": ["n"]}
    assert compare_plans(stored(flow(narrow)), flow(narrow, ADDED), WHERE).columns == {"orders": ["city"]}


def test_a_new_column_is_refused_where_an_output_would_be_another_by_it() -> None:
    def outputs(rows: Any) -> Any:
        return rows.count()

    found = refused(flow(outputs={"n": outputs}), flow(columns=ADDED, outputs={"n": outputs}))
    assert found == (
        "output 'n' is orders.count(by=['id', 'at', 'rev', 'op', 'n', 'city']), "
        "but was orders.count(by=['id', 'at', 'rev', 'op', 'n'])"
    )


def test_a_new_column_leaves_outputs_alone_that_do_not_read_it() -> None:
    def outputs(rows: Any) -> Any:
        return rows.filter("n > 1").project(["id", "at", "rev", "op", "n"]).consolidate().count(by="op")

    assert compare_plans(stored(flow(outputs={"n": outputs})), flow(columns=ADDED, outputs={"n": outputs}), WHERE)


def test_new_outputs_and_inputs_are_allowed_and_named() -> None:
    new = flow(outputs={"rows": lambda rows: rows, "n": lambda rows: rows.count(by=[])}, more=("others",))
    change = compare_plans(stored(flow()), new, WHERE)
    assert change == PlanChange(inputs=["others"], outputs=["n"])
    assert change.description == "the inputs ['others'] are new; the outputs ['n'] are new"


def test_the_lateness_may_change_and_is_named() -> None:
    change = compare_plans(stored(flow(HELD)), flow(HELD | {"lateness": 5}), WHERE)
    assert change == PlanChange(options={"orders": {"lateness": (None, 5)}})
    assert change.description == "lateness= of input 'orders' is 5, but was None"


OUTPUTS: dict[str, tuple[Any, Any, str]] = {
    "gone": (
        lambda rows: rows.filter("n > 1"),
        None,
        "output 'out' is not in the plan, but was orders.filter('n > 1')",
    ),
    "of another predicate": (
        lambda rows: rows.filter("n > 1"),
        lambda rows: rows.filter("n > 2"),
        "output 'out' is orders.filter('n > 2'), but was orders.filter('n > 1')",
    ),
    "of other columns": (
        lambda rows: rows.project(["id", "n"]),
        lambda rows: rows.project(["id"]),
        "output 'out' is orders.project(['id']), but was orders.project(['id', 'n'])",
    ),
    "of another formula": (
        lambda rows: rows.project({"n": "n"}),
        lambda rows: rows.project({"n": "n + 1"}),
        "output 'out' is orders.project({'n': 'n + 1'}), but was orders.project(['n'])",
    ),
    "counted by another name": (
        lambda rows: rows.count([], name="m"),
        lambda rows: rows.count([], name="k"),
        "output 'out' is orders.count(by=[], name='k'), but was orders.count(by=[], name='m')",
    ),
    "by another function": (
        lambda rows: rows.filter(positive),
        lambda rows: rows.filter(above(1)),
        "orders.filter(test_planned.above.<locals>.holds), but was orders.filter(test_planned.positive)",
    ),
}


@pytest.mark.parametrize("what", OUTPUTS)
def test_an_output_that_is_gone_or_another_is_refused_with_both(what: str) -> None:
    old, new, found = OUTPUTS[what]
    outputs = {"rows": lambda rows: rows}
    assert found in refused(flow(outputs=outputs | {"out": old}), flow(outputs=outputs | ({"out": new} if new else {})))


def test_outputs_that_differ_only_where_they_are_cut_are_told_by_their_ids() -> None:
    def long(number: int) -> Any:
        texts = ", ".join(str(each) for each in (*range(200), number, *range(200)))
        return lambda rows: rows.filter(f"n in ({texts})").negate()

    found = refused(flow(outputs={"out": long(1000)}), flow(outputs={"out": long(1001)}))
    assert len(set(re.findall(r"\([0-9a-f]{32}\)", found))) == 2


def test_a_changed_query_is_added_beside_the_old_one_and_the_error_says_so() -> None:
    queries = {"a": "select v from orders", "a_2": "select id from orders", "b": "select count(*) n from orders"}

    def queried(**changed: str) -> dd.Flow:
        made = dd.Flow()
        made.upserts("orders", {"id": int, "v": int}, dd.Upsert(key="id"))
        for name, text in (queries | changed).items():
            made.output(name, made.sql(text))
        return made

    def remedy(new: dd.Flow, old: dd.Flow) -> str:
        with pytest.raises(PlanChanged) as error:
            compare_plans(stored(old), new, WHERE)
        return error.value.fix

    assert remedy(queried(a="select v + 1 w from orders", b="select sum(v) n from orders"), queried()).startswith(
        "keep ['a', 'b'] unchanged, and add the changed queries as new outputs, ['a_3', 'b_2'], which ddflow fills "
        "from the state; move the sinks; then remove the old outputs with dd.evolve('state/orders', "
        "drop_outputs=['a', 'b']) (docs/guides/deploy-a-changed-query.md); or open it with the plan that created it"
    )
    # Not where the input is another one, or holds no rows.
    other = dd.Flow()
    other.upserts("orders", {"id": int, "v": int}, dd.Upsert(key="v"))
    for name, text in (queries | {"a": "select v + 1 w from orders"}).items():
        other.output(name, other.sql(text))
    assert remedy(other, queried()).startswith("open it with the plan")

    def logged(query: str) -> dd.Flow:
        made = dd.Flow()
        made.updates("orders", {"id": int})
        made.output("a", made.sql(query))
        return made

    assert remedy(logged("select sum(id) n from orders"), logged("select max(id) n from orders")).startswith("open it")


def test_an_input_that_is_gone_is_refused() -> None:
    found = refused(flow(more=("others",)), flow())
    assert found == "input 'others' is not in the plan, but the state has it"


def test_a_function_of_the_same_name_that_does_something_else_is_refused() -> None:
    old, new = (flow(outputs={"out": lambda rows, limit=limit: rows.filter(above(limit))}) for limit in (1, 2))
    assert not compare_plans(stored(old), flow(outputs={"out": lambda rows: rows.filter(above(1))}), WHERE)
    assert "the formula test_planned.above.<locals>.holds has changed, but its name" in refused(old, new)


def test_a_long_pyarrow_expression_is_refused_where_only_what_is_not_shown_differs() -> None:
    many = list(range(1000))
    old, new = (
        flow(outputs={"out": lambda rows, values=values: rows.filter(pc.field("n").isin(values))})
        for values in (many, [*many[:500], 7, *many[501:]])
    )
    assert not compare_plans(stored(old), old, WHERE)
    assert "the formula is_in(n, " in refused(old, new)


def test_a_digest_that_another_python_made_says_nothing() -> None:
    old, new = (flow(outputs={"out": lambda rows, limit=limit: rows.filter(above(limit))}) for limit in (1, 2))
    description = stored(old)
    for each in description["formulas"].values():
        each[0] = "cpython-27"
    assert not compare_plans(description, new, WHERE)


@effort(100)
@given(st.data())
def test_a_plan_is_the_same_as_itself_and_no_other_drawn_plan(data: st.DataObject) -> None:
    one, other = (flow_of(data.draw(scenarios())) for _ in range(2))
    change = compare_plans(stored(one), one, WHERE)
    assert not change
    assert change.description == "it is the same plan"
    if describe_plan(one) != describe_plan(other):
        try:
            assert compare_plans(stored(one), other, WHERE)
        except PlanChanged as error:
            assert len(error.found) < 5000


@pytest.mark.parametrize("part", ["inputs", "outputs", "formulas", "collections"])
def test_a_description_that_is_none_is_corrupt(part: str) -> None:
    new = flow(outputs={"rows": lambda rows: rows.filter("n > 2"), "out": lambda rows: rows.filter(positive)})
    description = stored(
        flow(outputs={"rows": lambda rows: rows.filter("n > 1"), "out": lambda rows: rows.filter(positive)})
    )
    for junk in (None, 5, [], dict.fromkeys(description[part], 5)):
        with raises(CorruptState):
            compare_plans(description | {part: junk}, new, WHERE)


def test_of_long_outputs_it_is_said_where_they_begin_to_differ() -> None:
    def made(where: str) -> dd.Flow:
        out = dd.Flow()
        orders = out.upserts("orders", {"id": int, "city": str, "n": int}, dd.Upsert(key="id"))
        rows = orders.filter(where) if where else orders
        for number in range(7):
            rows = rows.project({"id": "id", "city": "city", "n": f"n + {number}"})
        out.output("out", rows.group_by("city").agg(total="sum(n)"))
        return out

    found = refused(made("n > 1"), made("n > 2"))
    assert found == "output 'out' is built from orders.filter('n > 2'), but was built from orders.filter('n > 1')"
    assert "orders.filter('n > 1')" in refused(made("n > 1"), made(""))
