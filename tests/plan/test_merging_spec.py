"""Test specs that merge: contradictions are refused by name before any data, and valid specs have a JSON form."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.errors import ExpressionError, SpecError
from ddflow.plan.inputs.bind import bind_upserts
from ddflow.plan.merge.strategy import MAKERS, Strategy

COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "at": pa.int64(),
        "by": pa.int64(),
        "n": pa.int64(),
        "m": pa.int64(),
        "name": pa.string(),
        "tags": pa.list_(pa.string()),
        "paid": pa.bool_(),
        "gone": pa.bool_(),
        "place": pa.struct({"city": pa.string(), "visits": pa.int64()}),
    }
)
GONE = dd.tombstone("gone")


def merger(held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
    return given


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"merge": "last_row"}, "'last_row'"),
    ({"merge": {"n": dd.sum()}}, "dd.Merge"),
    ({"derive": {"n": "m + 1"}}, "without merge="),
    ({"derive": {"id": "m + 1"}, "merge": dd.Merge()}, "'id'.*a key column"),
    ({"derive": {"at": "m + 1"}, "merge": dd.Merge(), "order_by": "at"}, "'at'.*order_by"),
    ({"derive": {"n": "m"}, "merge": dd.Merge({"n": dd.sum()})}, "both name 'n'"),
    ({"derive": [("n", "m"), ("n", "at")], "merge": dd.Merge()}, "'n'.*more than once"),
    ({"derive": {"n": 5}, "merge": dd.Merge()}, "'n': 5"),
    ({"derive": 5, "merge": dd.Merge()}, "derive= is 5"),
    ({"merge": dd.Merge({"id": dd.sum()})}, "'id'.*a key column"),
    ({"merge": dd.Merge({"at": dd.sum()}), "order_by": "at"}, "'at'.*order_by"),
    ({"merge": dd.Merge({"at": dd.sum()}), "seq": "at"}, "'at'.*seq"),
    ({"merge": dd.Merge({"at": dd.sum()}), "time": "at"}, "'at'.*time"),
    ({"merge": dd.Merge({"at": dd.sum()}), "groups": {"at": ["n"]}}, "'at'.*order column of groups="),
    ({"merge": dd.Merge({"n": dd.sum()}), "value": ["m"]}, r"\['n'\]"),
    ({"groups": {"at": ["n"], "by": ["n"]}}, "'n'.*already in a group"),
    ({"groups": {"at": ["n"], ("at", "by"): ["m"]}}, "'at'"),
    ({"groups": {"at": ["n"], "n": ["m"]}}, "'n'"),
    ({"groups": {"id": ["n"]}}, "'id'.*a key column"),
    ({"groups": {(): ["n"]}}, "without an order column"),
    ({"groups": {"at": ["n"]}, "order_by": "at"}, "'at'.*order_by"),
    ({"groups": 7}, "groups= is 7"),
    ({"groups": {"at": ["n"]}, "versions": "cell", "order_by": "by"}, "groups= and versions='cell'"),
    ({"groups": {"at": ["n"]}, "merge": "first_row"}, "first_row"),
    ({"groups": {"at": ["n"]}, "merge": dd.Merge(function=merger)}, "function"),
    ({"groups": {"at": ["n"]}, "time": "by"}, "hold-back"),
    ({"exclusive": True}, "exclusive=True without groups="),
    ({"exclusive": 1}, "exclusive=1"),
    ({"deletes": "group"}, "without groups="),
    ({"deletes": "group", "groups": {"at": ["n"]}}, "without delete="),
    ({"deletes": "cell"}, "deletes='cell'"),
    ({"versions": "cell"}, "without order_by="),
    ({"versions": "column", "order_by": "at"}, "versions='column'"),
    ({"versions": "cell", "time": "at"}, "hold-back"),
    (
        {"versions": "cell", "order_by": "at", "merge": dd.Merge({"tags": dd.append()})},
        "'tags' depends on the order of arrival",
    ),
    ({"versions": "cell", "order_by": "at", "merge": dd.Merge({"n": dd.sum()}), "delete": GONE}, "'n'.*with deletes"),
    ({"versions": "cell", "order_by": "at", "merge": dd.Merge(default=dd.max()), "where": "n > 0"}, "with deletes"),
    (
        {"versions": "cell", "order_by": "at", "merge": dd.Merge({"place": dd.fields({"city": dd.join_text()})})},
        "'place'",
    ),
    ({"expiry": 5}, "expiry= is 5"),
    ({"expiry": dd.Expiry(ttl=5)}, "0 order columns"),
    ({"expiry": dd.Expiry(ttl=5), "order_by": ["at", "by"]}, r"2 order columns \['at', 'by'\]"),
    ({"expiry": dd.Expiry(ttl=5), "order_by": "at", "groups": {"by": ["n"]}}, r"\['at', 'by'\]"),
    ({"expiry": dd.Expiry(ttl=5), "time": "at"}, "hold-back"),
]


@pytest.mark.parametrize(("options", "named"), CONTRADICTIONS, ids=lambda given: str(given)[:60])
def test_a_contradiction_is_refused_when_the_spec_is_built(options: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        dd.Upsert("id", **options)


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"merge": dd.Merge({"nope": dd.sum()})}, "'nope'"),
    ({"merge": dd.Merge({"name": dd.sum()})}, "'name' is string; use it on integers"),
    ({"merge": dd.Merge({"n": dd.append()})}, "'n' is int64; use it on lists"),
    ({"merge": dd.Merge({"n": dd.join_text()})}, "'n' is int64; use it on text"),
    ({"merge": dd.Merge({"n": dd.bool_or()})}, "'n' is int64; use it on booleans"),
    ({"merge": dd.Merge({"tags": dd.max()})}, "'tags' is list.*; use it on numbers"),
    ({"merge": dd.Merge({"tags": dd.collect()})}, "'tags' is list.*dd.append"),
    ({"merge": dd.Merge({"n": dd.fields({})})}, "'n' is int64; use it on structs"),
    ({"merge": dd.Merge({"place": dd.fields({"town": dd.last()})})}, r"'place'.*\['town'\]"),
    ({"merge": dd.Merge({"place": dd.fields({"city": dd.sum()})})}, r"'place'.*\['city'\]"),
    ({"merge": dd.Merge({"gone": dd.last()}), "delete": GONE}, "'gone'.*deletes"),
    ({"groups": {"nope": ["n"]}}, "'nope'"),
    ({"groups": {"at": ["nope"]}}, "'nope'"),
    ({"groups": {"tags": ["n"]}}, "'tags'.*no order"),
    ({"groups": {"gone": ["n"]}, "delete": GONE}, "'gone'.*deletes"),
    ({"merge": dd.Merge(), "derive": {"nope": "n + 1"}}, "'nope'"),
    ({"merge": dd.Merge(), "derive": {"gone": "true"}, "delete": GONE}, "'gone'.*deletes"),
    ({"merge": dd.Merge(), "derive": {"n": "n + 1"}}, "'n'.*reads itself"),
    ({"merge": dd.Merge(), "derive": {"n": "m + 1", "m": "at"}}, r"\['m'\].*derived after"),
    ({"merge": dd.Merge(), "derive": {"tags": "n + 1"}}, "'tags'.*int64"),
]


@pytest.mark.parametrize(("options", "named"), UNFIT, ids=lambda given: str(given)[:60])
def test_what_does_not_fit_the_columns_is_refused_when_they_meet(options: dict[str, Any], named: str) -> None:
    spec = dd.Upsert("id", **options)
    with pytest.raises(SpecError, match=named):
        bind_upserts("visits", COLUMNS, spec)


def test_a_formula_of_what_is_not_there_is_refused() -> None:
    with raises(ExpressionError):
        bind_upserts("visits", COLUMNS, dd.Upsert("id", merge=dd.Merge(), derive={"n": "nope + 1"}))


def test_cells_that_may_be_left_without_a_value_must_be_nullable() -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("at", pa.int64()), pa.field("n", pa.int64(), nullable=False)]
    )
    with raises(SpecError):
        bind_upserts("visits", schema, dd.Upsert("id", groups={"at": ["n"]}))
    assert bind_upserts("visits", schema, dd.Upsert("id", order_by="at", merge=dd.Merge())).merging is not None


def test_columns_called_like_those_kept_beside_rows_are_refused() -> None:
    schema = pa.schema({"id": pa.int64(), "_given_n": pa.bool_(), "n": pa.int64()})
    with raises(SpecError):
        bind_upserts("visits", schema, dd.Upsert("id", merge=dd.Merge({"n": dd.last()})))


@pytest.mark.parametrize(
    "make",
    [
        lambda: dd.Merge({"n": "sum"}),
        lambda: dd.Merge(default=dd.sum),
        lambda: dd.Merge(function=5),  # type: ignore[dict-item, arg-type]
        lambda: dd.Merge(scalar=True),
        lambda: dd.Merge({"n": dd.sum()}, function=merger),
        lambda: dd.Merge(default=dd.sum(), function=merger),
        lambda: dd.append(limit=0),
        lambda: dd.union(limit=True),
        lambda: dd.join_text(5),
        lambda: dd.fields({"a": 5}),
        lambda: dd.fields({"a": dd.collect()}),  # type: ignore[arg-type, dict-item]
        lambda: dd.Expiry(),
        lambda: dd.Expiry(ttl=-1),
        lambda: dd.Expiry(ttl="5"),
        lambda: dd.Expiry(ttl=5, on_expire="x"),  # type: ignore[arg-type]
        lambda: dd.Expiry(tombstone_ttl=5, on_expire="forget"),
        lambda: dd.Expiry(ttl=float("nan")),
    ],
    ids=range(17),
)
def test_a_value_that_makes_no_sense_is_refused_where_it_is_made(make: Any) -> None:
    with pytest.raises(SpecError):
        make()


SPECS = [
    dd.Upsert("id", merge=dd.Merge()),
    dd.Upsert("id", merge="first_row", order_by="at", expiry=dd.Expiry(ttl=30)),
    dd.Upsert(["id", "m"], "at", merge=dd.Merge({"n": dd.sum(), "tags": dd.union(limit=9)}, dd.first_non_null())),
    dd.Upsert("id", groups={"at": ["n"], ("by", "m"): ["name", "tags"]}, deletes="group", delete=GONE, exclusive=True),
    dd.Upsert("id", order_by="at", versions="cell", tie="greatest", merge=dd.Merge(default=dd.last())),
    dd.Upsert("id", merge=dd.Merge({"name": dd.join_text("; ")}), derive={"n": "m + 1", "paid": "n > 5"}),
    dd.Upsert("id", merge=dd.Merge({"place": dd.fields({"visits": dd.sum()}, default=dd.first())})),
    dd.Upsert("id", order_by="at", expiry=dd.Expiry(5, 0, "forget", "insert")),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.to_json()[:50])
def test_a_spec_has_a_json_form_that_gives_it_back(spec: dd.Upsert) -> None:
    again = dd.Upsert.from_json(spec.to_json())
    assert again == spec and again.fingerprint == spec.fingerprint and hash(again) == hash(spec)
    assert len({each.fingerprint for each in SPECS}) == len(SPECS)


def test_every_strategy_has_a_json_form_that_gives_it_back() -> None:
    made = [make({}) if name == "fields" else make() for name, make in MAKERS.items()]
    assert [Strategy.of_json(each.to_json()) for each in made] == made
    assert [getattr(dd, name) for name in MAKERS] == list(MAKERS.values())


@pytest.mark.parametrize(
    "given",
    [
        "median",
        5,
        {"name": "sum", "limit": 3},
        {"name": "fields", "fields": 5},
        {},
        None,
        {"name": "append", "limit": "x"},
    ],
)
def test_what_is_no_strategy_in_json_is_refused(given: Any) -> None:
    with pytest.raises(SpecError):
        Strategy.of_json(given)


def test_a_function_is_named_in_json_and_not_read_back() -> None:
    spec = dd.Upsert("id", merge=dd.Merge(function=merger))
    text = spec.to_json()
    assert "test_merging_spec.merger" in text and spec.fingerprint != dd.Upsert("id", merge=dd.Merge()).fingerprint
    with raises(SpecError):
        dd.Upsert.from_json(text)
