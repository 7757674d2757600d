"""Test ``dd.Upsert``: valid options, refusals with their texts, its JSON form and its fingerprint."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from chance import effort
from doors import schema_of, spec_of
from hypothesis import given, strategies as st
from strategies import inputs

import ddflow as dd
from ddflow.errors import ExpressionError, SpecError
from ddflow.plan.inputs.spec import CHOICES, Tombstone

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "at": pa.int64(),
        "t": pa.int64(),
        "n": pa.int64(),
        "v": pa.string(),
        "flag": pa.bool_(),
        "list": pa.list_(pa.int64()),
        "f": pa.float64(),
    }
)

CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an empty key": ({"key": []}, "key is empty"),
    "a key that is no text": ({"key": [1]}, "key= holds 1"),
    "an empty name": ({"order_by": [""]}, "order_by= holds ''"),
    "a key column twice": ({"key": ["id", "id"]}, "more than once"),
    "an order column twice": ({"order_by": ["at", "at"]}, "more than once"),
    "a value column twice": ({"value": ["v", "v"]}, "more than once"),
    "an ignored column twice": ({"noop_ignore": ["v", "v"]}, "more than once"),
    "a tracked column twice": ({"track": ["v", "v"]}, "more than once"),
    "a key column tracked": ({"track": ["id"]}, "key columns"),
    "tracked columns that are not in the row": ({"value": ["v"], "track": ["n"]}, "but value= does not"),
    "both ways to say what is a change": ({"track": ["v"], "noop_ignore": ["n"]}, "both choose the columns"),
    "a key column as order": ({"order_by": ["id"]}, "key columns"),
    "a key column ignored": ({"noop_ignore": ["id"]}, "key columns"),
    "a key column as time": ({"time": "id"}, "key column 'id'"),
    "a key column as seq": ({"seq": "id"}, "key column 'id'"),
    "a key column as tombstone": ({"delete": dd.tombstone("id")}, "is a key column"),
    "seq also in order_by": ({"order_by": ["at"], "seq": "at"}, "also in order_by or time"),
    "seq also as time": ({"time": "t", "seq": "t"}, "also in order_by or time"),
    "ignored columns that are not in the row": ({"value": ["v"], "noop_ignore": ["n"]}, "but value= does not"),
    "an unknown tie": ({"order_by": ["at"], "tie": "biggest"}, "tie='biggest'"),
    "an unknown late": ({"time": "t", "late": "never"}, "late='never'"),
    "an unknown stale": ({"stale": "keep"}, "stale='keep'"),
    "an unknown null_key": ({"null_key": "maybe"}, "null_key='maybe'"),
    "a delete that is neither": ({"delete": 5}, "delete= is int"),
    "late without time": ({"late": "drop"}, "without time="),
    "lateness without time": ({"lateness": 5}, "without time="),
    "a negative lateness": ({"time": "t", "lateness": -1}, "lateness=-1"),
    "a fractional lateness": ({"time": "t", "lateness": 0.5}, "lateness=0.5"),
    "a tie rule where arrival decides": ({"tie": "first"}, "without order_by="),
    "greatest where arrival decides": ({"tie": "greatest"}, "without order_by="),
    "an error where arrival decides": ({"tie": "error"}, "without order_by="),
    "stale with time": ({"time": "t", "stale": "mark"}, "set late='advance'"),
    "stale with time that drops": ({"time": "t", "late": "drop", "stale": "side"}, "set late='advance'"),
    "seq under greatest": ({"order_by": ["at"], "tie": "greatest", "seq": "n"}, "no effect under tie='greatest'"),
    "seq under error": ({"order_by": ["at"], "tie": "error", "seq": "n"}, "no effect under tie='error'"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_contradiction_is_refused_when_the_spec_is_made(what: str) -> None:
    options, found = CONTRADICTIONS[what]
    with pytest.raises(SpecError) as error:
        dd.Upsert(**({"key": "id"} | options))
    assert found in str(error.value)
    assert error.value.fix


NO_NAMES: list[Any] = [5, True, 1.5, object(), len, dd.Upsert, pa.array([1]), b"id", {"id"}, {1: 2}]
NO_NAMES += [[None], ["id", None], [["id"]], [5]]


def input(**spec: Any) -> dd.Flow:
    flow = dd.Flow()
    flow.upserts("orders", SCHEMA, dd.Upsert(**{"key": "id"} | spec))
    return flow


def machine(**given: Any) -> Any:
    table = {"state": "s", "transition": {("a", "x"): "b"}, "on": "v", "start": "a"}
    return dd.Flow().machine("orders", SCHEMA, dd.Upsert("id"), dd.Machine(**table | given))


TAKERS: dict[str, Any] = {
    **{
        option: lambda wrong, option=option: input(**{option: wrong})
        for option in ("key", "order_by", "noop_ignore", "value", "track", "seq", "time", "ingested")
    },
    "groups": lambda wrong: input(groups=[(wrong, "v")]),
    "groups of": lambda wrong: input(groups={"at": wrong}),
    "tombstone": lambda wrong: input(delete=dd.tombstone(wrong)),
    "Merge": lambda wrong: input(merge=dd.Merge(wrong)),
    "Merge of": lambda wrong: input(merge=dd.Merge([(wrong, dd.sum())])),
    "fields": dd.fields,
    "derive": lambda wrong: input(merge=dd.Merge(), derive=[(wrong, "n")]),
    **{option: lambda wrong, option=option: machine(**{option: wrong}) for option in ("state", "on", "states")},
    "project": lambda wrong: input().inputs["orders"].project(wrong),
    "count": lambda wrong: input().inputs["orders"].count(wrong),
    "count, name": lambda wrong: input().inputs["orders"].count([], name=wrong),
    "concat": lambda wrong: input().inputs["orders"].concat(wrong),
    "unnest": lambda wrong: input().inputs["orders"].unnest(wrong),
    "to_upserts": lambda wrong: input().inputs["orders"].to_upserts(wrong),
    "input": lambda wrong: dd.Flow().upserts(wrong, SCHEMA, dd.Upsert("id")),
    "spec": lambda wrong: dd.Flow().upserts("orders", SCHEMA, wrong),
    "spec of a machine": lambda wrong: dd.Flow().machine("orders", SCHEMA, wrong, machine),
    "output": lambda wrong: (flow := input()).output(wrong, flow.inputs["orders"]),
    "output of": lambda wrong: input().output("out", wrong),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_no_name_is_refused_wherever_one_is_wanted(taker: str) -> None:
    for wrong in NO_NAMES:
        if taker == "states" and wrong in ({"id"}, [5], {1: 2}):
            continue  # these are lists of states, and refused for what the table says
        with pytest.raises((SpecError, ExpressionError)) as error:
            TAKERS[taker](wrong)
        assert error.value.fix


SWAPPED = """flow.output: its arguments are Input(id int64) and 'rows'; write flow.output("name", collection)"""


def test_the_likely_mistakes_are_told_what_to_write() -> None:
    flow = dd.Flow()
    rows = flow.upserts("orders", {"id": pa.int64()}, dd.Upsert("id"))
    mistakes: list[tuple[Any, str]] = [
        (lambda: dd.tombstone(["a", "b"]), "its column is ['a', 'b']; name one column, as text; for several pass SQL"),
        (lambda: dd.tombstone("op", ["D", "T"]), "its value is ['D', 'T']; pass one text, number or boolean; for"),
        (lambda: dd.Upsert("id", seq=["n"]), "an upsert spec: seq= is ['n']; name one column, as text"),
        (lambda: dd.Upsert({"id"}), "an upsert spec: key= is {'id'}; pass column names as text: one, or a list"),
        (lambda: flow.output(rows, "rows"), SWAPPED),
    ]
    for act, words in mistakes:
        with pytest.raises(SpecError) as error:
            act()
        assert words in str(error.value)


UNBINDABLE: dict[str, tuple[dict[str, Any], str]] = {
    "a missing key": ({"key": "idd"}, "no column 'idd'; did you mean 'id'"),
    "a missing order column": ({"order_by": "att"}, "order_by= of 'orders': there is no column 'att'"),
    "a missing seq": ({"seq": "m"}, "seq= of 'orders'"),
    "a missing time": ({"time": "when"}, "time= of 'orders'"),
    "a missing value": ({"value": ["w"]}, "value= of 'orders'"),
    "a missing tombstone": ({"delete": dd.tombstone("op", "D")}, "delete= of 'orders'"),
    "a missing ignored column": ({"noop_ignore": ["w"]}, "noop_ignore= of 'orders'"),
    "a missing tracked column": ({"track": ["w"]}, "track= of 'orders': there is no column 'w'"),
    "a tracked time column": ({"time": "t", "track": ["v", "t"]}, "the columns ['t'] are not in the row"),
    "a tracked tombstone": ({"delete": dd.tombstone("flag"), "track": ["flag"]}, "not in the row"),
    "greatest of a list that is tracked": ({"order_by": "at", "tie": "greatest", "track": ["list"]}, "'list' is list<"),
    "a nested key": ({"key": "list"}, "cannot be hashed as a key"),
    "a nested order": ({"order_by": "list"}, "has no order"),
    "a seq of text": ({"seq": "v"}, "is not an integer"),
    "a seq of doubles": ({"seq": "f"}, "is not an integer"),
    "a time of text": ({"time": "v"}, "is not a time"),
    "a time of doubles": ({"time": "f"}, "is not a time"),
    "greatest of a list": ({"order_by": "at", "tie": "greatest"}, "'list' is list<"),
    "a text tombstone without a value": ({"delete": dd.tombstone("v")}, "there is no value"),
    "a tombstone value of another type": ({"delete": dd.tombstone("n", "D")}, "is not a value of int64"),
    "an ignored time column": ({"time": "t", "noop_ignore": ["t"]}, "not in the row"),
    "a taken name": ({"ingested": "v"}, "the input has a column of that name"),
    "a reserved name": ({"ingested": "_v"}, "names that begin with _ are reserved"),
    "an ignored tombstone": ({"delete": dd.tombstone("flag"), "noop_ignore": ["flag"]}, "not in the row"),
}


@pytest.mark.parametrize("what", UNBINDABLE)
def test_a_spec_that_does_not_fit_its_schema_is_refused_when_the_input_is_made(what: str) -> None:
    options, found = UNBINDABLE[what]
    with pytest.raises(SpecError) as error:
        dd.Flow().upserts("orders", SCHEMA, dd.Upsert(**({"key": "id"} | options)))
    assert found in str(error.value)


@pytest.mark.parametrize("option", ["delete", "where"])
@pytest.mark.parametrize(("sql", "found"), [("n >", "n >"), ("m > 1", "m"), ("n + 1", "boolean")])
def test_a_condition_that_does_not_compile_is_refused_when_the_input_is_made(option: str, sql: str, found: str) -> None:
    with pytest.raises(ExpressionError, match=found.replace("+", r"\+")):
        dd.Flow().upserts("orders", SCHEMA, dd.Upsert(key="id", **{option: sql}))


def test_one_name_may_be_given_without_a_list() -> None:
    assert dd.Upsert(key="id", order_by="at", noop_ignore="at", value="at") == dd.Upsert(
        key=["id"], order_by=["at"], noop_ignore=["at"], value=["at"]
    )


def test_track_is_the_complement_of_noop_ignore() -> None:
    def changed(**options: Any) -> list[dict[str, Any]]:
        flow = dd.Flow()
        flow.output(
            "rows", flow.upserts("s", {"id": pa.int64(), "v": pa.string(), "n": pa.int64()}, dd.Upsert("id", **options))
        )
        out = []
        with flow.open() as engine:
            for time, (v, n) in enumerate([("a", 1), ("a", 2), ("b", 2), (None, 2), (None, 3)]):
                out += engine.step({"s": pa.table({"id": [7], "v": pa.array([v], pa.string()), "n": [n]})}, time)[
                    "rows"
                ].to_pylist()
        return out

    def times(updates: list[dict[str, Any]]) -> list[int]:
        return [row["_time"] for row in updates if row["_diff"] == 1]

    assert times(changed()) == [0, 1, 2, 3, 4]
    assert times(changed(track="v")) == [0, 2, 3]
    assert changed(track=["v"]) == changed(noop_ignore=["n"])
    assert changed(track=["v", "n"]) == changed() and times(changed(track=[])) == [0]


def test_under_greatest_only_what_is_tracked_breaks_ties() -> None:
    spec = dd.Upsert("id", order_by="at", tie="greatest", track=["v"])
    made = dd.Flow().upserts("orders", SCHEMA, spec)  # with the list, which is not compared
    assert made.bound.tracked == ["v"] and not spec.compares_all
    assert spec.counts("v") and not spec.counts("n") and not spec.counts("id")


def test_a_spec_does_not_change() -> None:
    spec = dd.Upsert(key="id")
    with pytest.raises(AttributeError):
        spec.key = ("other",)  # type: ignore[misc]


def test_the_row_is_every_column_but_time_seq_and_the_tombstone() -> None:
    spec = dd.Upsert(key="id", order_by="at", time="t", seq="n", delete=dd.tombstone("flag"))
    assert dd.Flow().upserts("orders", SCHEMA, spec).schema.names == ["id", "at", "v", "list", "f"]


def test_value_chooses_columns_in_input_order_and_the_key_is_always_in() -> None:
    spec = dd.Upsert(key="n", time="t", delete=dd.tombstone("flag"), value=["v", "flag", "t"])
    assert dd.Flow().upserts("orders", SCHEMA, spec).schema.names == ["t", "n", "v", "flag"]


def test_a_delete_expression_removes_no_column() -> None:
    assert dd.Flow().upserts("orders", SCHEMA, dd.Upsert(key="id", delete="flag")).schema.names == SCHEMA.names


def test_json_leaves_defaults_out() -> None:
    assert dd.Upsert(key="id").to_json() == '{"key": ["id"]}'
    spec = dd.Upsert(key="id", order_by="at", delete=dd.tombstone("op", "D"), value=[])
    assert (
        spec.to_json()
        == '{"key": ["id"], "order_by": ["at"], "delete": {"tombstone": "op", "value": "D"}, "value": []}'
    )


NO_SPECS = [
    "",
    "[]",
    "5",
    "{}",
    '{"key": "id", "keys": 1}',
    '{"key": ["id"], "delete": {"column": "x"}}',
    '{"key": ["id"], "late": "drop"}',
]


@pytest.mark.parametrize("text", NO_SPECS)
def test_json_that_no_spec_wrote_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        dd.Upsert.from_json(text)


@effort(200)
@given(st.data(), st.booleans())
def test_every_spec_survives_json_and_equal_specs_have_equal_fingerprints(
    data: st.DataObject, holds_back: bool
) -> None:
    input = data.draw(inputs(holds_back))
    spec = spec_of(input["spec"])
    again = dd.Upsert.from_json(spec.to_json())
    assert again == spec
    assert again.fingerprint == spec.fingerprint
    assert len(spec.fingerprint) == 32
    assert spec.to_json() == again.to_json()


@effort(100)
@given(st.data(), st.booleans())
def test_every_drawn_spec_fits_its_schema(data: st.DataObject, holds_back: bool) -> None:
    input = data.draw(inputs(holds_back))
    made = dd.Flow().upserts("a", schema_of(input["columns"]), spec_of(input["spec"]))
    assert set(input["spec"]["key"]) <= set(made.schema.names)


def test_any_other_option_gives_another_fingerprint() -> None:
    base = {"key": ["id"], "order_by": ["at"], "time": "t", "late": "advance"}
    others: list[dict[str, Any]] = [
        {"key": ["id", "v"]},
        {"order_by": ["n"]},
        {"order_by": []},
        {"seq": "n"},
        {"time": "n"},
        {"late": "drop"},
        {"late": "error"},
        {"lateness": 0},
        {"delete": dd.tombstone("op")},
        {"delete": dd.tombstone("op", "D")},
        {"delete": "op"},
        {"where": "op"},
        {"noop_ignore": ["v"]},
        {"track": []},
        {"track": ["v"]},
        {"value": []},
        {"value": ["v"]},
        {"ingested": "came"},
        *({"tie": tie} for tie in CHOICES["tie"][1:]),
        *({"stale": stale} for stale in CHOICES["stale"][1:]),
        *({"null_key": keys} for keys in CHOICES["null_key"][1:]),
    ]
    prints = {dd.Upsert(**(base | other)).fingerprint for other in [{}, *others]}
    assert len(prints) == 1 + len(others)


def test_a_tombstone_is_a_value() -> None:
    assert dd.tombstone("op", "D") == Tombstone("op", "D") != dd.tombstone("op")
