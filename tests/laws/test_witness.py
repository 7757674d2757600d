"""Test drawn plans beside DuckDB, which computes each output from the inputs' rows after every step."""

from __future__ import annotations

from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.types as pat
from chance import effort
from doors import EngineDoor, counted
from hypothesis import given, strategies as st
from model import Collection
from plan_sql import query
from rules import canonical
from strategies import scenarios
from test_laws import calls, quietly


def witnessed(table: pa.Table) -> pa.Table:
    """A table that is read, with multiplicities, in types that DuckDB has."""
    fixed = [pa.binary() if pat.is_fixed_size_binary(kind) else counted(kind) for kind in table.schema.types]
    return table.cast(pa.schema(list(zip(table.column_names, fixed, strict=True)))).rename_columns({"_diff": "_n"})


@effort(150)
@given(st.data())
def test_every_output_is_what_duckdb_makes_of_what_the_inputs_hold(data: st.DataObject) -> None:
    scenario = data.draw(scenarios())
    door = EngineDoor(scenario)
    inputs = {name: door.columns_of(name) for name in scenario["inputs"]}
    queries = {name: query(plan, inputs)[0] for name, plan in scenario["outputs"].items()}
    for call in data.draw(calls(scenario)):
        if quietly(door, call) is None:
            continue
        with duckdb.connect() as witness:
            for name in inputs:
                witness.register(name, witnessed(door.engine.read(name)))
            for name, text in queries.items():
                said: Collection = Counter()
                for *row, n in witness.execute(f"select * from {text}").fetchall():
                    said[tuple(canonical(value) for value in row)] += int(n)
                assert said == door.read(name), text
