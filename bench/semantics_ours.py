"""ddflow in the semantics bench: the flow of each line, a step of it, and what its rows add up to.

Invariant: a step takes one table and gives Arrow; beside the rows that are read at the end, the updates of all steps
must add up to the same, so that differences are checked and not only states. What is put out is dropped after each
step, so it is added up as it comes, outside of the time that counts. Nothing here measures.

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


def able(name: str) -> bool:
    """Whether this ddflow has what a line is about."""
    return LINES[name].rule != "dfa" or (hasattr(dd, "Machine") and hasattr(dd.Flow, "machine"))


def spec(name: str, size: Size) -> dd.Upsert:
    """What a line's source does."""
    line, given = LINES[name], dict[str, Any]()
    if line.kind in ("deletes", "lists"):
        given["delete"] = dd.tombstone("gone")
    if line.kind != "groups":
        given["order_by"] = () if name == "dfa-arrival" else "at"
    elif line.rule == "full":
        given["order_by"] = "ts_a"
    else:
        given["groups"] = GROUPS
    strategies = {
        "overwrite": dd.last_non_null,
        "ignore": dd.first_non_null,
        "max": dd.max,
        "sum": dd.sum,
        "append": dd.append,
        "union": dd.union,
    }
    if name.endswith("cell"):
        given["versions"] = "cell"
    elif line.rule in strategies:
        given["merge"] = dd.Merge(default=strategies[line.rule]())
    if name == "tombstones-stay":
        given["expiry"] = dd.Expiry(tombstone_ttl=2**40)
    elif name == "tombstones-go":
        given["expiry"] = dd.Expiry(tombstone_ttl=window(size))
    return dd.Upsert("id", **given)


def plan(name: str, size: Size, schema: pa.Schema) -> dd.Flow:
    """A line's flow, its output called ``out``."""
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
    """An engine that takes a table as a step, or as the whole contents."""

    def __init__(self, name: str, size: Size, schema: pa.Schema) -> None:
        self.engine, self.time, self.sum = plan(name, size, schema).open(), 0, 0
        self.whole, self.rows = name == "contents-replace", size.keys

    def step(self, table: pa.Table) -> pa.Table:
        """One step; its updates."""
        self.time += 1
        if self.whole and table.num_rows == self.rows:
            return self.engine.replace("s", table, time=self.time)["out"]
        return self.engine.step({"s": table}, time=self.time)["out"]

    def take(self, updates: pa.Table) -> None:
        """Add them up."""
        self.sum += digest(updates.drop_columns(["_time", "_diff"]), updates["_diff"])

    def answer(self) -> str:
        """The checksum of the rows held; AssertionError when the updates add up to others."""
        rows = self.engine.read("out")
        held = digest(rows.select([name for name in rows.column_names if not name.startswith("_")]))
        self.engine.close()
        if held != self.sum % 2**64:
            raise AssertionError("the updates do not add up to the rows that are held")
        return f"{held:016x}"


class Shown:
    """What upserts add up to: the last of each key, in arrays."""

    def __init__(self, key: str, names: tuple[str, ...], keys: int) -> None:
        self.key, self.live = key, np.zeros(keys, bool)
        self.columns = {name: np.full(keys, -1) for name in names}

    def take(self, upserts: pa.Table) -> None:
        """Take in the upserts of a step."""
        at = upserts[self.key].to_numpy()
        self.live[at] = ~upserts["_deleted"].to_numpy()
        for name, column in self.columns.items():
            column[at] = upserts[name].fill_null(-1).to_numpy()

    def answer(self) -> str:
        """The checksum of the rows that are shown."""
        rows = {name: pa.array(column, mask=column < 0) for name, column in self.columns.items()}
        table = pa.table({self.key: np.arange(self.live.size), **rows})
        return f"{digest(table.filter(pa.array(self.live))):016x}"


class Operator(Stepping):
    """An engine whose output is upserts."""

    def __init__(self, name: str, size: Size, schema: pa.Schema) -> None:
        super().__init__(name, size, schema)
        self.shown = Shown("id", ("at", *CELLS), size.keys)

    def take(self, updates: pa.Table) -> None:
        """Take in the upserts."""
        self.shown.take(updates)

    def answer(self) -> str:
        """The checksum of the rows that are shown; AssertionError when the engine reads others."""
        rows, shown = self.engine.read("out"), self.shown.answer()
        self.engine.close()
        if f"{digest(rows.select(['id', 'at', *CELLS])):016x}" != shown:
            raise AssertionError("the upserts do not add up to what the engine reads")
        return shown


class Back:
    """`dd.ToUpserts` on its own, by the rule "error"."""

    def __init__(self, keys: int) -> None:
        self.back, self.shown = dd.ToUpserts("key"), Shown("key", ("val",), keys)

    def step(self, updates: pa.Table) -> pa.Table:
        """The upserts of a step's updates."""
        return self.back.step(updates)

    def take(self, upserts: pa.Table) -> None:
        """Take them in."""
        self.shown.take(upserts)

    def answer(self) -> str:
        """The checksum of the rows that are shown."""
        return self.shown.answer()


def opened(name: str, size: Size, made: list[pa.Table]) -> Stepping | Back:
    """What runs a line."""
    if LINES[name].rule == "updates":
        return Back(size.keys)
    return (Operator if name == "operator" else Stepping)(name, size, made[0].schema)
