"""Test verb names of other libraries and nearly correct calls: the error says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ddflow as dd
from ddflow.errors import NoSuchVerb, SpecError


@pytest.fixture
def orders() -> Any:
    return dd.Flow().upserts("orders", {"id": int, "city": str, "amount": "decimal(12,2)"}, dd.Upsert(key="id"))


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a count of groups": (lambda rows: rows.group_by("city").count(), NoSuchVerb, r"agg\(n='count\(\*\)'\)"),
    "a sum of groups": (lambda rows: rows.group_by("city").sum("amount"), NoSuchVerb, r"agg\(sum='sum\(amount\)'\)"),
    "an aggregate without a name": (
        lambda rows: rows.group_by("city").agg("sum(amount)"),
        SpecError,
        r"'sum\(amount\)' has no name; name each column, as in agg\(n='sum\(amount\)'\)",
    ),
    "an aggregate whose name is in its text": (
        lambda rows: rows.group_by("city").agg("count(*) AS many"),
        SpecError,
        r"name each column, as in agg\(many='count\(\*\)'\)",
    ),
    "aggregates in a dict": (lambda rows: rows.agg({"n": "count(*)"}), SpecError, r"agg\(n='count\(\*\)'\)"),
    "a list of groups": (lambda rows: rows.group_by(["city"]), SpecError, r"group_by\('city', 'year'\)"),
    "an aggregate that is misspelt": (lambda rows: rows.agg(n="summ(amount)"), ValueError, "did you mean sum"),
    "select": (lambda rows: rows.select("city"), NoSuchVerb, "write project"),
    "groupBy": (lambda rows: rows.groupBy("city"), NoSuchVerb, "write group_by"),
    "a verb that is misspelt": (lambda rows: rows.fliter("id > 1"), NoSuchVerb, "did you mean 'filter'"),
    "a verb that nobody has": (lambda rows: rows.frobnicate(), NoSuchVerb, "help"),
    "a step of a flow": (lambda rows: rows.flow.step({}), NoSuchVerb, r"with flow.open\(\) as engine: engine.step"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_error_says_what_to_write(orders: Any, case: str) -> None:
    call, kind, match = REFUSED[case]
    with pytest.raises(kind, match=match):
        call(orders)


def test_what_is_asked_of_every_object_is_answered_as_python_does(orders: Any) -> None:
    assert not hasattr(orders, "_repr_svg_")
    assert not hasattr(orders, "select")


def test_what_is_written_instead_is_there(orders: Any) -> None:
    for of in (orders, orders.group_by("city"), orders.flow):
        for name, written in of._instead.items():
            assert not hasattr(type(of), name)
            verb = written.removeprefix("with flow.open() as engine: engine.").removeprefix("flow.").partition("(")[0]
            assert hasattr(dd.Engine if "engine." in written else dd.Flow if "flow." in written else of, verb), name
