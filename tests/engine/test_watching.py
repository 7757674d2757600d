"""Test watches: they show complete steps and new rows, and never disturb the engine."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.engine.read.live_view import LiveRows


def flow() -> dd.Flow:
    made = dd.Flow()
    made.output("by_city", made.upserts("orders", {"id": int, "city": str}, dd.Upsert("id")).count("city"))
    return made


class Screen:
    """Stands where a notebook's display would be: keeps what was drawn."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def display(self, shown: Any, display_id: bool) -> Screen:
        self.drawn.append(shown._repr_html_())
        return self

    def update(self, shown: Any) -> None:
        self.drawn.append(shown._repr_html_())


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    made, module = Screen(), ModuleType("IPython.display")
    vars(module)["display"] = made.display
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return made


def test_it_follows_calls_and_tints_what_is_new(screen: Screen, tmp_path: Any) -> None:
    with flow().open(tmp_path / "state") as engine:
        engine.watch("by_city", by="count desc", every=0.0)
        engine.step({"id": [1, 2, 3], "city": ["Bern", "Bern", "<Zug>"]})
        engine.watch("orders", rows=1)
    assert "no time is closed yet" in screen.drawn[0]
    assert "2 rows; 0 added" in screen.drawn[1] and screen.drawn[1].index("Bern") < screen.drawn[1].index("&lt;Zug&gt;")
    assert "orders, at 1: 3 rows" in screen.drawn[2]


def test_the_last_state_is_drawn_at_the_end_however_fast_calls_come(screen: Screen) -> None:
    with flow().open() as engine:
        watch = engine.watch("by_city", every=3600.0)
        for n in range(5):
            engine.step({"id": [n], "city": ["Bern"]})
    assert "<td>5</td>" in screen.drawn[-1] and len(screen.drawn) == 2
    assert watch._repr_html_() == screen.drawn[-1]


def test_outside_of_a_notebook_nothing_is_drawn_and_it_can_be_shown() -> None:
    with flow().open() as engine:
        watch = engine.watch("by_city")
        engine.step({"id": [1], "city": ["Bern"]})
        assert "Bern" in watch._repr_html_()
        engine.step({"id": [1], "city": ["Zug"]})
        assert "1 added, 1 removed" in watch._repr_html_()


def test_names_and_columns_that_are_none_are_refused() -> None:
    with flow().open() as engine:
        with raises(dd.errors.NotReadable):
            engine.watch("by_cty")
        with raises(dd.errors.SpecError):
            engine.watch("by_city", by="cont desc")
        with raises(dd.errors.SpecError):
            engine.watch("by_city", rows=0)
        assert engine.calls.listeners == []


def test_rows_of_types_without_an_order_and_of_many_times_are_shown() -> None:
    live = LiveRows("t")
    look = live.build_next_frame(pa.table({"a": [{"x": 1}, None], "_diff": [2, 1]}))
    assert list(look.format_rows()) == [("{'x': 1}",), ("null",)] and look.total == 3
    empty = live.build_next_frame(
        pa.table({"a": pa.array([], pa.struct([("x", pa.int64())])), "_diff": pa.array([], pa.int64())})
    )
    assert (empty.total, empty.went) == (0, 2)
