"""Test plots: they show their figures, and report what they need."""

from __future__ import annotations

import datetime as dt

import matplotlib
import numpy as np
import pyarrow as pa
from messages import raises

import ddflow as dd
from ddflow.metrics import CallMetrics

matplotlib.use("Agg")


def fed() -> tuple[list[dd.Step], list[CallMetrics]]:
    flow, seen = dd.Flow(), list[CallMetrics]()
    flow.output("by_city", flow.upserts("orders", {"id": int, "city": str}, dd.Upsert("id")).count("city"))
    with flow.open(metrics=seen.append) as engine:
        steps = [
            engine.step({"id": [1, 2], "city": ["Bern", "Bern"]}),
            engine.step({"id": [1, 2], "city": ["Bern", "Zug"]}),
        ]
    return steps, seen


def heights(container: object) -> list[int]:
    return [int(bar.get_height()) for bar in container]  # type: ignore[attr-defined]


def test_changes_are_what_came_and_what_went_by_time() -> None:
    steps, _ = fed()
    axes = dd.plot.changes(pa.concat_tables(step["by_city"] for step in steps), title="by city")
    assert [heights(each) for each in axes.containers] == [[1, 2], [0, -1]] and axes.get_title() == "by city"
    assert [each.get_text() for each in axes.get_xticklabels()] == ["1", "2"]


def test_times_are_shown_in_their_own_type_and_many_are_added_up() -> None:
    day = dt.date(2024, 2, 29)
    axes = dd.plot.changes({"_time": pa.array([day]), "_diff": [3]})
    assert axes.get_xticklabels()[0].get_text() == "2024-02-29"
    many = dd.plot.changes({"_time": np.arange(10_000), "_diff": np.ones(10_000, np.int64)})
    assert sum(heights(many.containers[0])) == 10_000 and len(many.containers[0]) <= 200


def test_verdicts_are_stacked_by_call() -> None:
    steps, seen = fed()
    for given in (steps, seen):
        axes = dd.plot.verdicts(given, noop=True)
        assert {each.get_label(): heights(each) for each in axes.containers} == {"applied": [2, 1], "noop": [0, 1]}
    assert len(dd.plot.verdicts(steps[0].verdicts).containers) == 1


def test_what_has_no_changes_or_verdicts_is_refused() -> None:
    with raises(dd.errors.SchemaMismatch):
        dd.plot.changes({"_time": [1]})
    with raises(dd.errors.SpecError):
        dd.plot.verdicts([{"applied": 1}])


def test_changes_of_several_steps_are_a_list_of_their_updates() -> None:
    steps, _ = fed()
    axes = dd.plot.changes([step["by_city"] for step in steps])
    assert [heights(each) for each in axes.containers] == [[1, 2], [0, -1]]
    for given in (steps[0], steps):
        with raises(dd.errors.SpecError):
            dd.plot.changes(given)


def test_few_changes_beside_many_noops_are_seen_and_keys_that_are_gone_too() -> None:
    flow = dd.Flow()
    flow.output("beds", flow.upserts("beds", {"id": int, "ward": str}, dd.Upsert("id")))
    first, ids = dt.date(2026, 11, 7), list(range(2_000))
    with flow.open(retain=9) as engine:
        steps = [
            engine.replace({"id": ids, "ward": ["a"] * 2_000}, time=first),
            engine.replace({"id": ids[1:], "ward": ["b"] * 3 + ["a"] * 1_996}, time=first + dt.timedelta(1)),
        ]
        net = engine.changes("beds", first, "2026-11-08")
    axes = dd.plot.verdicts(steps[1])
    assert {each.get_label(): heights(each) for each in axes.containers} == {"applied": [3], "absent": [1]}
    legend = axes.get_legend()
    assert legend is not None and [each.get_text() for each in legend.get_texts()][-1] == "and 1,996 noop"
    assert [each.get_text() for each in axes.get_xticklabels()] == ["2026-11-08"]
    for given in (steps[1]["beds"], net):
        axes = dd.plot.changes(given, key="id")
        shown = {each.get_label(): heights(each) for each in axes.containers}
        assert shown == {"added": [0], "changed": [3], "removed": [-1]}
        days = [each.get_text() for each in axes.get_xticklabels()]
        assert days == (["net"] if given is net else ["2026-11-08"])
    assert [heights(each) for each in dd.plot.changes(net).containers] == [[3], [-4]]
    with raises(dd.errors.SchemaMismatch):
        dd.plot.changes(net, key="idd")
