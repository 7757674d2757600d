"""Run ddflow in the bench `semantics`: the flow of each line, its steps, and the checksum of its rows.

A step takes one table and returns an Arrow table of updates. The updates of all steps must add up to the final rows, so
the bench checks differences as well as states. Updates are summed outside of the timing and dropped. This module does
not measure time.

>>> import semantics_work as work
>>> size = work.Size(50, 20, 1, 3)
>>> for name in ("overwrite", "groups", "union", "to_upserts", "contents-replace"):
...     runner = opened(name, size, made := work.tables(work.LINES[name].kind, size))
...     for table in made:
...         runner.take(runner.step(table))
...     assert runner.answer() == work.expected(name, size), name
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from semantics_work import CELLS, GROUPS, LINES, STATES, Size, digest, window

import ddflow as dd

MERGES = {
    "overwrite": dd.last_non_null,
    "ignore": dd.first_non_null,
    "max": dd.max,
    "sum": dd.sum,
    "append": dd.append,
    "union": dd.union,
}


def spec(name: str, size: Size) -> dd.Upsert:
    """Return the upsert of a line."""
    line, given = LINES[name], dict[str, Any]()
    if line.kind in ("deletes", "lists"):
        given["delete"] = dd.tombstone("gone")
    if line.rule == "groups":
        given["groups"] = GROUPS
    else:
        given["order_by"] = "ts_a" if line.kind == "groups" else () if name == "dfa-arrival" else "at"
    if name.endswith("cell"):
        given["versions"] = "cell"
    elif line.rule in MERGES:
        given["merge"] = dd.Merge(default=MERGES[line.rule]())
    if name.startswith("tombstones"):
        given["expiry"] = dd.Expiry(tombstone_ttl=2**40 if name == "tombstones-stay" else window(size))
    return dd.Upsert("id", **given)


def plan(name: str, size: Size, schema: pa.Schema) -> dd.Flow:
    """Return a line's flow with output ``out``."""
    flow, line = dd.Flow(), LINES[name]
    declared = pa.schema([field.with_nullable(field.name.startswith(("c", "t"))) for field in schema])
    if line.rule == "dfa":
        moves = {(state, symbol): STATES[state][symbol] for state in range(4) for symbol in range(4)}
        machine = dd.Machine(state="state", transition=moves, on="symbol", start=0)
        rows = flow.machine("s", declared, spec(name, size), machine)
    else:
        rows = flow.upserts("s", declared, spec(name, size))
    flow.output("out", rows.to_upserts("id") if name == "operator" else rows)
    return flow


class Stepping:
    """An engine. A table is a step of events or, on the line contents-replace, the whole contents."""

    def __init__(self, name: str, size: Size, schema: pa.Schema) -> None:
        self.engine, self.time, self.sum = plan(name, size, schema).open(threads=1), 0, 0
        self.whole = size.keys if name == "contents-replace" else None

    def step(self, table: pa.Table) -> pa.Table:
        """Run one step; return its updates."""
        self.time += 1
        if table.num_rows == self.whole:
            return self.engine.replace("s", table, time=self.time)["out"]
        return self.engine.step({"s": table}, time=self.time)["out"]

    def take(self, updates: pa.Table) -> None:
        """Add the updates to the sum."""
        self.sum += digest(updates.drop_columns(["_time", "_diff"]), updates["_diff"])

    def held(self) -> pa.Table:
        """Return the engine's rows and close the engine."""
        rows = self.engine.read("out")
        self.engine.close()
        return rows.select([name for name in rows.column_names if not name.startswith("_")])

    def answer(self) -> str:
        """Return the checksum of the rows; raise AssertionError if the updates add up to other rows."""
        held = digest(self.held())
        if held != self.sum % 2**64:
            raise AssertionError("the updates do not add up to the rows of the engine")
        return f"{held:016x}"


class Shown:
    """The last upsert of each key, in arrays. The arrays are the table that the upserts produce."""

    def __init__(self, key: str, names: tuple[str, ...], keys: int) -> None:
        self.key, self.live = key, np.zeros(keys, bool)
        self.columns = {name: np.full(keys, -1) for name in names}

    def take(self, upserts: pa.Table) -> None:
        """Apply the upserts of a step."""
        at = upserts[self.key].to_numpy()
        self.live[at] = ~upserts["_deleted"].to_numpy()
        for name, column in self.columns.items():
            column[at] = upserts[name].fill_null(-1).to_numpy()

    def answer(self) -> str:
        """Return the checksum of the rows that are not deleted."""
        rows = {name: pa.array(column, mask=column < 0) for name, column in self.columns.items()}
        table = pa.table({self.key: np.arange(self.live.size), **rows})
        return f"{digest(table.filter(pa.array(self.live))):016x}"


class Operator(Stepping):
    """An engine whose output is upserts."""

    def __init__(self, name: str, size: Size, schema: pa.Schema) -> None:
        super().__init__(name, size, schema)
        self.shown = Shown("id", ("at", *CELLS), size.keys)
        self.take = self.shown.take

    def answer(self) -> str:
        """Return the checksum of the visible rows; raise AssertionError if the engine reads other rows."""
        shown = self.shown.answer()
        if f"{digest(self.held().select(['id', 'at', *CELLS])):016x}" != shown:
            raise AssertionError("the upserts do not add up to the rows that the engine reads")
        return shown


class Back:
    """`dd.ToUpserts` by itself, with the rule "error"."""

    def __init__(self, keys: int) -> None:
        shown, self.step = Shown("key", ("val",), keys), dd.ToUpserts("key").step
        self.take, self.answer = shown.take, shown.answer


def opened(name: str, size: Size, made: list[pa.Table]) -> Stepping | Back:
    """Return the runner of a line."""
    if LINES[name].rule == "updates":
        return Back(size.keys)
    return (Operator if name == "operator" else Stepping)(name, size, made[0].schema)
