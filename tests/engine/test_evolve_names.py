"""Test names of evolving columns: similar names are refused everywhere, and the fix in an error names the input."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from messages import raises

import ddflow as dd
from ddflow.errors import SchemaMismatch, SpecError


def flow(*names: str, **more: Any) -> dd.Flow:
    """Inputs of these names; ``more``: columns besides ``id`` and ``weight_kg``."""
    out = dd.Flow()
    for name in names:
        out.output(name, out.upserts(name, {"id": int, "weight_kg": int} | more, dd.Upsert(key="id")))
    return out


def test_a_near_name_is_refused_wherever_it_is_typed(tmp_path: Path) -> None:
    """The flow that declares it takes it in; nothing has changed before."""
    wanted = r"column 'weight' of input 'a': there is no such column, .*did you mean 'weight_kg'\?"
    with flow("a").open(tmp_path / "state") as engine:
        engine.step({"a": {"id": [1], "weight_kg": [7]}})
        with raises(SpecError):
            engine.evolve({"weight": float})
        assert engine.read("a").schema.names == ["id", "weight_kg", "_diff"]
        with raises(SchemaMismatch):
            engine.step({"a": {"id": [1], "weight": [7]}})
        engine.evolve({"note": str})
    with pytest.raises(SpecError, match=wanted):
        dd.evolve(tmp_path / "state", {"weight": "double"})
    with flow("a", note=str, weight=float).open(tmp_path / "state") as engine:
        assert engine.read("a").schema.names == ["id", "weight_kg", "note", "weight", "_diff"]


def test_a_run_takes_near_names_that_its_source_has(tmp_path: Path) -> None:
    """Nobody typed them."""
    (tmp_path / "in").mkdir()
    source = dd.sources.files(tmp_path / "in" / "*.csv")
    with flow("a").open(tmp_path / "state") as engine:
        (tmp_path / "in" / "1.csv").write_text("id,weight_kg\n1,7\n")
        engine.run({"a": source})
        (tmp_path / "in" / "2.csv").write_text("id,weight_kg,weight_lb\n1,7,15\n")
        engine.run({"a": source})
        assert engine.read("a").to_pylist() == [{"id": 1, "weight_kg": 7, "weight_lb": 15, "_diff": 1}]


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_advice_is_the_line_that_works(names: list[str], tmp_path: Path) -> None:
    """With one input and with several: what the error of a row says is typed, and then the row is taken."""
    rows = {"b" if "b" in names else "a": [{"id": 2, "weight_kg": 1.5}]}
    with flow(*names).open(tmp_path / "state") as engine:
        engine.step({names[0]: {"id": [1], "weight_kg": [7]}})
        with pytest.raises(SchemaMismatch) as error:
            engine.step(rows)
    call = re.search(r"dd\.evolve\(STATE, (\{.*\})\)", error.value.fix)
    assert call is not None
    dd.evolve(tmp_path / "state", ast.literal_eval(call[1]))
    wide = dd.Flow()
    for name in names:
        kind = float if name in rows else int
        wide.output(name, wide.upserts(name, {"id": int, "weight_kg": kind}, dd.Upsert(key="id")))
    with wide.open(tmp_path / "state") as engine:
        assert engine.step(rows)[next(iter(rows))].to_pylist()[0]["weight_kg"] == 1.5


@pytest.mark.parametrize("options", [{}, {"threads": 2}, {"memory": "16MB"}])
def test_a_top_gets_a_column_when_the_state_is_opened(options: dict[str, Any], tmp_path: Path) -> None:
    """Its ties are decided by all columns, so its rows stand otherwise; they are those of a state that had it."""

    def tops(**more: Any) -> dd.Flow:
        out = dd.Flow()
        rows = out.upserts("a", {"id": int, "g": int, "n": int} | more, dd.Upsert(key="id"))
        out.output("top", rows.top(2, by=["n"], partition_by="g"))
        return out

    options = {**options, "retain": 10}
    first = {"id": [*range(40)], "g": [i % 3 for i in range(40)], "n": [i % 5 for i in range(40)]}
    then = {"id": [0, 1, 41], "g": [0, 1, 2], "n": [9, 9, 0], "x": [3, 2, 1]}
    with tops().open(tmp_path / "state", **options) as engine:
        engine.step({"a": first}, time=1)
    with tops(x=int).open(tmp_path / "state", **options) as engine, tops(x=int).open(**options) as anew:
        anew.step({"a": first}, time=1)
        for each in (engine, anew):
            each.step({"a": then}, time=2)
        for as_of in (1, 2):
            got, wanted = (sorted(map(repr, each.read("top", as_of=as_of).to_pylist())) for each in (engine, anew))
            assert got == wanted
    assert dd.fsck(tmp_path / "state").ok
    assert sorted(map(repr, dd.read(tmp_path / "state", "top").to_pylist())) == wanted
