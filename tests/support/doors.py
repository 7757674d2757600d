"""Give the twin and the engine the same interface, with plain Python values, to open the same plan.

A scenario is JSON. The scenario has inputs with their columns and spec, outputs as nested lists, and rows as lists. So
any failing scenario can be stored under `tests/found` and replayed. The twin and the engine get their rows as the same
Arrow table. Results are converted to canonical Python values before any comparison. In Arrow, equal values can look
different: NaN, -0.0, decimals and timestamps. `model` decides which result is right.

>>> scenario = {"inputs": {"a": {"columns": {"k": "int64", "v": "string"}, "spec": {"key": ["k"]}}},
...             "outputs": {"vs": ["count", ["project", ["input", "a"], ["v"]], None, "count"]}}
>>> door = TwinDoor(scenario)
>>> door.step({"a": [[1, "x"], [2, "x"]]}, 7).updates
{'vs': {(('x', 2), 7): 1}}
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import aggregate_rules as rules
import pyarrow as pa
import pyarrow.types as pat
from conditions import COMPUTED, CONDITIONS
from mergers import DERIVED, MERGERS, PROJECTIONS, with_function
from model import Collection, Node, Twin, Updates, collection, without_zeros
from rules import Input, Refused, Row, canonical
from tight import MEMORY, tighten
from window_rules import Call

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.engine.read.reads import Reader
from ddflow.errors import DdflowError
from ddflow.plan.inputs.spec import Upsert

Rows = Sequence[Sequence[Any]] | Mapping[str, Any]
Shape = Callable[[pa.Table], Any]
FOREVER = 2**62
"""A value of ``retain=`` that keeps the complete history of a test."""
SECRET = Secret(0x0123456789ABCDEF, 0xFEDCBA9876543210)
"""A fixed secret, which makes failures reproducible. A separate test shows that results do not depend on the secret."""


def as_table(table: pa.Table) -> pa.Table:
    """Return the table unchanged, as the default form in which rows reach an input."""
    return table


TYPES: dict[str, pa.DataType] = {
    **{
        name: pa.type_for_alias(name)
        for name in (
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint64",
            "float32",
            "float64",
            "string",
            "large_string",
            "binary",
            "date32",
            "timestamp[us]",
            "timestamp[s]",
            "time64[us]",
            "duration[s]",
        )
    },
    "timestamp[ms, UTC]": pa.timestamp("ms", "UTC"),
    "decimal(9,2)": pa.decimal128(9, 2),
    "fixed(3)": pa.binary(3),
    "list<int64>": pa.list_(pa.int64()),
    "struct<x>": pa.struct({"x": pa.int64()}),
    "decimal(19,2)": pa.decimal128(19, 2),
    "list<string>": pa.list_(pa.string()),
    "struct<x,s>": pa.struct({"x": pa.int64(), "s": pa.string()}),
}
FIELDS: dict[str, Any] = {"struct<x>": {"x": "int64"}, "struct<x,s>": {"x": "int64", "s": "string"}}
"""The field types of each struct type that scenarios use."""


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema of a scenario's ``{name: type}``."""
    return pa.schema([(name, TYPES[kind]) for name, kind in columns.items()])


def spec_of(given: Mapping[str, Any]) -> Upsert:
    """Return the spec that a scenario has as JSON. A custom merger is given by its name in ``MERGERS``."""
    rest, merge = with_function(given)
    # The spec may be invalid without its merger. So the derived columns and the merger are restored in a single call.
    derive = rest.pop("derive", ()) if merge else rest.get("derive", ())
    spec = Upsert.from_json(json.dumps(rest))
    return spec if merge is None else replace(spec, merge=merge, derive=derive)


def to_arrow(columns: Mapping[str, str], rows: Rows) -> pa.Table:
    """Convert rows to a table.

    In rows, a time is an integer in its unit, a decimal is text, and bytes are latin-1 text.

    ``{"without": columns, "rows": rows}`` are rows of a batch without some columns.
    """
    if isinstance(rows, Mapping):
        columns = {name: kind for name, kind in columns.items() if name not in rows["without"]}
        rows = rows["rows"]
    schema = schema_of(columns)
    return pa.table([_array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema=schema)


def row_table(columns: Mapping[str, str], row: Mapping[str, Any]) -> pa.Table:
    """Convert a single row, which has some of the columns, to a table."""
    return to_arrow({name: columns[name] for name in row}, [list(row.values())])


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values, width).cast(kind)
    if pat.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pat.is_binary(kind) or pat.is_fixed_size_binary(kind):
        return pa.array([None if value is None else value.encode("latin-1") for value in values], kind)
    return pa.array(values, kind)


def is_temporal(kind: pa.DataType) -> bool:
    """Return True if values of this type are stored as integers in a unit of time."""
    return bool(pat.is_timestamp(kind) or pat.is_date(kind) or pat.is_time(kind) or pat.is_duration(kind))


def plain(table: pa.Table) -> list[Row]:
    """Return a table's rows as tuples of canonical Python values, with times as integers."""
    columns = []
    for column in table.columns:
        if (whole := counted(column.type)) != column.type:
            column = column.cast(whole)
        columns.append([canonical(value) for value in column.to_pylist()])
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def counted(kind: pa.DataType) -> pa.DataType:
    """Replace time types by integers, also in lists and structs, because Arrow has dates that Python lacks."""
    if pat.is_list(kind):
        return pa.list_(kind.value_field.with_type(counted(kind.value_type)))
    if pat.is_struct(kind):
        return pa.struct([field.with_type(counted(field.type)) for field in kind])
    return (pa.int32() if kind.bit_width == 32 else pa.int64()) if is_temporal(kind) else kind


@dataclass
class Result:
    """The result of a call in plain values."""

    updates: dict[str, Updates]
    verdicts: Counter[str]
    rows: dict[str, list[Row]]
    pending: int
    absent: int = 0


def twin_input(given: Mapping[str, Any]) -> Input:
    """Convert a scenario's input for the twin."""
    spec = spec_of(given["spec"])
    delete = CONDITIONS[spec.delete] if isinstance(spec.delete, str) else None
    merge = given["spec"].get("merge")
    function = MERGERS[merge["function"]][0] if isinstance(merge, Mapping) and "function" in merge else None
    return Input(
        tuple(given["columns"]),
        spec,
        delete,
        CONDITIONS[spec.where] if spec.where else None,
        types={name: FIELDS.get(kind, kind) for name, kind in given["columns"].items()},
        derive={name: DERIVED[sql] for name, sql in spec.derive},
        function=function,
    )


THRESHOLDS: dict[str, Callable[[int], int]] = {
    "n * n": lambda n: n * n,
    "least(n, 2)": lambda n: min(n, 2),
    "case when n < -1 then n when n > 1 then 1 else 0 end": lambda n: n if n < -1 else int(n > 1),
}


AGGREGATES: dict[str, tuple[str, str, Callable[[list[tuple[dict[str, Any], int]]], Any]]] = {
    "count(*)": ("", "int64", lambda rows: sum(n for _, n in rows)),
    "count(s)": ("s", "int64", lambda rows: rules.counted(_of("s", rows))),
    "sum(n)": ("n", "int64", lambda rows: rules.total(_of("n", rows))),
    "avg(n)": ("n", "float64", lambda rows: rules.average(_of("n", rows))),
    "sum(f)": ("f", "float64", lambda rows: rules.total(_of("f", rows))),
    "sum(n) filter (where b)": ("nb", "int64", lambda rows: rules.total(_of("n", rows, lambda row: row["b"]))),
    "sum(d)": ("d", "decimal(19,2)", lambda rows: rules.total(_of("d", rows))),
    "bool_or(b)": ("b", "bool", lambda rows: rules.truth(_of("b", rows), every=False)),
    "min(n)": ("n", "int64", lambda rows: rules.extreme(_of("n", rows), greatest=False)),
    "max(f)": ("f", "float64", lambda rows: rules.extreme(_of("f", rows), greatest=True)),
    "max(s) filter (where b)": (
        "sb",
        "string",
        lambda rows: rules.extreme(_of("s", rows, lambda row: row["b"]), greatest=True),
    ),
    "count(distinct n)": ("n", "int64", lambda rows: rules.distinct(_of("n", rows))),
}
"""Maps the SQL of an aggregate to the columns that it needs, its result type, and a function of the rows of a group."""
ORDERED = ("min", "max", "count(distinct")
"""The first characters of the SQL of each aggregate that rejects negative multiplicities."""


def _of(
    name: str, rows: list[tuple[dict[str, Any], int]], where: Callable[[Mapping[str, Any]], Any] = lambda _: True
) -> list[tuple[Any, int]]:
    return [(row[name] if where(row) is True else None, n) for row, n in rows]


def plan(expression: Sequence[Any], inputs: Mapping[str, Any], python: bool) -> Any:
    """Apply the nested list of an output to nodes of the twin (if ``python``) or to collections of ddflow."""
    verb, *rest = expression
    if verb == "input":
        return inputs[rest[0]]
    below = plan(rest[0], inputs, python)
    if verb == "filter":
        return below.filter(CONDITIONS[rest[1]] if python else rest[1])
    if verb == "project":
        return below.project(projected(rest[1], python) if isinstance(rest[1], Mapping) else rest[1])
    if verb == "count":
        return below.count(by=rest[1], name=rest[2])
    if verb == "concat":
        return below.concat(*(plan(other, inputs, python) for other in rest[1:]))
    if verb == "set":
        return getattr(below, rest[2])(plan(rest[1], inputs, python), all=rest[3])
    if verb == "join":
        right, on, how, condition = plan(rest[1], inputs, python), *rest[2:]
        return below.join(right, on, how, CONDITIONS[condition] if python and condition else condition)
    if verb == "asof":
        return below.asof(plan(rest[1], inputs, python), *rest[2:])
    if verb == "agg":
        made = {name: AGGREGATES[text][2] for name, text in rest[2].items()}
        return below.agg(rest[1], **made) if python else below.group_by(*rest[1]).agg(**rest[2])
    if verb == "over":
        calls = {name: Call(*told[:3], frame=tuple(told[3]) if told[3:] else None) for name, told in rest[3].items()}
        if python:
            return below.over(*rest[1:3], calls)
        return below.over(*rest[1:3], **{name: call.sql for name, call in calls.items()})
    if verb == "sessions":
        (by, at), call = rest[1:3], Call("session_window", *rest[2:])
        bounds = {f"session_{each}": f"session.{each}" for each in ("start", "end")}
        if not python:
            made = below.over(by, at, session=call.sql)
            return made.project({name: name for name in below.schema.names} | bounds)
        made, read = below.over(by, [at], {"session": call}), {name: itemgetter(name) for name in below.columns}
        return made.project(read | {name: _read_bound(name.removeprefix("session_")) for name in bounds})
    if verb == "threshold":
        return below.threshold(THRESHOLDS[rest[1]] if python else rest[1])
    if verb == "versions" and python:
        return below.versions(*rest[1:3], None if rest[3] is None else CONDITIONS[rest[3]], *rest[4:])
    return getattr(below, verb)(*rest[1:])


def _read_bound(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: None if row["session"] is None else dict(row["session"])[name]


def grouped(expression: Sequence[Any], inputs: Mapping[str, Node]) -> list[Any]:
    """Return the nested list of an output. In the result, a count by all columns has the names of the columns."""
    verb, *rest = expression
    if verb == "input":
        return [verb, *rest]
    many = {"concat": len(rest), "set": 2, "join": 2, "asof": 2}.get(verb, 1)
    below = [grouped(each, inputs) for each in rest[:many]]
    if verb == "count" and rest[1] is None:
        return [verb, below[0], list(plan(below[0], inputs, True).columns), rest[2]]
    return [verb, *below, *rest[many:]]


def projected(columns: Mapping[str, str], python: bool) -> dict[str, Any]:
    """Return computed columns for the twin (if ``python``) or for ddflow.

    Each computed column is a column, SQL, or a custom function by name.
    """
    own = {name: pair[not python] for name, pair in PROJECTIONS.items()}
    known = own | COMPUTED if python else own
    return {name: known.get(said, itemgetter(said) if python else said) for name, said in columns.items()}


def key_of(expression: Sequence[Any], keys: Mapping[str, list[str]]) -> list[str] | None:
    """Return the columns that determine a row of an output, or None."""
    verb, *rest = expression
    if verb == "input":
        return keys[rest[0]]
    below = key_of(rest[0], keys)
    if verb == "top" and below is not None:
        return [*rest[3], rest[5]] if rest[5] is not None else below
    if verb in ("count", "agg"):
        return rest[1]
    if verb == "versions":
        return [*rest[1], rest[2]]
    if verb in ("concat", "set", "join", "threshold", "distinct") or below is None:
        return None
    if verb == "project":
        kept = [name for name, sql in rest[1].items() if name == sql] if isinstance(rest[1], Mapping) else rest[1]
        return below if set(below) <= set(kept) else None
    return below


class TwinDoor:
    """A scenario that the twin has opened."""

    def __init__(self, scenario: Mapping[str, Any]) -> None:
        self.scenario = scenario
        self.columns = {name: given["columns"] for name, given in scenario["inputs"].items()}
        inputs = {name: twin_input(given) for name, given in scenario["inputs"].items()}
        nodes = {name: collection(name, input) for name, input in inputs.items()}
        self.outputs: dict[str, Node] = {name: plan(each, nodes, True) for name, each in scenario["outputs"].items()}
        self.twin = Twin(inputs, self.outputs)

    def restart(self, scenario: Mapping[str, Any] | None = None) -> TwinDoor:
        """Return the twin itself, because it has no state to reopen.  Refuse a plan with another spec."""
        if scenario is not None and scenario["inputs"] != self.scenario["inputs"]:
            raise Refused("PlanChanged")
        return self

    def evolve(self, scenario: Mapping[str, Any]) -> None:
        """Give the inputs the columns of another scenario.

        The other scenario has more columns at the end, or wider columns; column groups do not change.
        """
        before = {name: collection(name, input) for name, input in self.twin.inputs.items()}
        outputs = {name: grouped(each, before) for name, each in scenario["outputs"].items()}
        self.scenario = {**scenario, "outputs": outputs}
        self.columns = {name: each["columns"] for name, each in scenario["inputs"].items()}
        inputs = {name: twin_input(given) for name, given in scenario["inputs"].items()}
        nodes = {name: collection(name, input) for name, input in inputs.items()}
        self.outputs = {name: plan(each, nodes, True) for name, each in outputs.items()}
        self.twin.evolve(inputs, self.outputs)

    def step(self, inputs: Mapping[str, Rows], time: int) -> Result:
        return self._call(self.twin.step, self._events(inputs), time)

    def replace(
        self,
        name: str,
        rows: Rows,
        time: int,
        scope: str | None = None,
        order: Mapping[str, Any] | None = None,
        once: bool = True,
    ) -> Result:
        events, condition = self._events({name: rows})[name], CONDITIONS[scope] if scope else None
        if order is not None:
            order = dict(zip(order, plain(row_table(self.columns[name], order))[0], strict=True))
        return self._call(self.twin.replace, name, events, time, condition, order, once)

    def push(self, inputs: Mapping[str, Rows]) -> Result:
        return self._call(self.twin.push, self._events(inputs))

    def advance_to(self, frontier: int) -> Result:
        return self._call(self.twin.advance_to, frontier)

    def read(self, name: str, as_of: int | None = None) -> Collection:
        return self.twin.read(name, as_of)

    def changes(self, name: str, t1: int, t2: int) -> Collection:
        out: Collection = Counter()
        for (row, _), diff in self.twin.changes(name, t1, t2).items():
            out[row] += diff
        return without_zeros(out)

    def reader(self, name: str, at: int) -> TwinReader:
        return TwinReader(self, name, at)

    def totals(self) -> Counter[str]:
        return +self.twin.state.totals

    def columns_of(self, name: str) -> list[str]:
        return list(self.twin.readable[name].columns)

    def _events(self, inputs: Mapping[str, Rows]) -> dict[str, list[dict[str, Any]]]:
        tables = {name: to_arrow(self.columns[name], rows) for name, rows in inputs.items()}
        return {
            name: [dict(zip(table.column_names, row, strict=True)) for row in plain(table)]
            for name, table in tables.items()
        }

    def _call(self, act: Callable[..., Any], *arguments: Any) -> Result:
        out = act(*arguments)
        return Result(
            out.updates,
            +out.verdicts,
            {name: sorted(rows, key=repr) for name, rows in out.rows.items()},
            len(self.twin.state.pending),
            out.absent,
        )


@dataclass
class TwinReader:
    """A reader of the twin. In the twin, a reader is only a name and a time, because the twin keeps all history."""

    door: TwinDoor
    name: str
    time: int

    def read(self, as_of: int | None = None) -> Collection:
        return self.door.read(self.name, self.time if as_of is None else as_of)

    def changes_to(self, to: int) -> Collection:
        out = self.door.changes(self.name, self.time, to)
        self.time = to
        return out

    def advance_to(self, to: int) -> None:
        self.time = to


class EngineDoor:
    """A scenario that the engine has opened. All results are checked against the output contract.

    ``medium``: the arguments of `tight.tighten` for an engine that spills to a separate folder; None for an engine in
    memory.
    """

    def __init__(
        self,
        scenario: Mapping[str, Any],
        shape: Shape = as_table,
        medium: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        self.scenario, self.options = scenario, options
        self.columns = {name: given["columns"] for name, given in scenario["inputs"].items()}
        self.shape = shape
        self.flow = dd.Flow()
        self.inputs = {
            name: self.flow.upserts(name, schema_of(given["columns"]), spec_of(given["spec"]))
            for name, given in scenario["inputs"].items()
        }
        self.plans = scenario["outputs"]
        first = next(iter(scenario["inputs"].values()))
        self.time_type = TYPES[first["columns"][first["spec"]["time"]]] if "time" in first["spec"] else pa.int64()
        self.keys = {name: given["spec"]["key"] for name, given in scenario["inputs"].items()}
        for name, expression in self.plans.items():
            self.flow.output(name, plan(expression, self.inputs, False))
        self.place = None if medium is None else mkdtemp()
        if medium is not None:
            options |= {"memory": MEMORY, "spill": self.place}
            finalize(self, rmtree, self.place)
        self.engine = self.flow.open(**{"verdicts": "rows", "retain": FOREVER, "secret": SECRET} | options)
        if medium is not None:
            tighten(self.engine, **medium)

    def restart(self, scenario: Mapping[str, Any] | None = None) -> EngineDoor:
        """Close a state in a `MemoryStore`, and reopen it with the same plan or with a given plan."""
        self.engine.close()
        options = self.options | {"state": self.options["state"].reopen()}
        try:
            return EngineDoor(scenario or self.scenario, self.shape, **options)
        except DdflowError as error:
            raise Refused(type(error).__name__) from error

    def close(self) -> None:
        """Close the engine, and check that no spilled file is left."""
        self.engine.close()
        assert self.place is None or os.listdir(self.place) == []

    def evolve(self, scenario: Mapping[str, Any]) -> None:
        """Give the inputs the columns that they have in another scenario.

        If the engine raises an error, nothing has changed.
        """
        columns = {name: given["columns"] for name, given in scenario["inputs"].items()}
        self.engine.evolve({name: schema_of(each) for name, each in columns.items()})
        self.scenario, self.columns, self.flow = scenario, columns, self.engine.flow
        self.inputs = self.flow.inputs

    def step(self, inputs: Mapping[str, Rows], time: int) -> Result:
        return self._call(self.engine.step, self._tables(inputs), time)

    def replace(
        self,
        name: str,
        rows: Rows,
        time: int,
        scope: str | None = None,
        order: Mapping[str, Any] | None = None,
        once: bool = True,
    ) -> Result:
        table = self._tables({name: rows})[name]
        given = None if order is None else row_table(self.columns[name], order).to_pylist()[0]
        if once:
            return self._call(self.engine.replace, name, table, time, scope, order=given, allow_empty=True)
        return self._call(self.engine.restate, name, table, time, order=given, allow_empty=True)

    def push(self, inputs: Mapping[str, Rows]) -> Result:
        return self._call(self.engine.push, self._tables(inputs))

    def advance_to(self, frontier: int) -> Result:
        return self._call(self.engine.advance_to, frontier)

    def read(self, name: str, as_of: int | None = None) -> Collection:
        return self.collection(name, self.engine.read(name, as_of))

    def changes(self, name: str, t1: int, t2: int) -> Collection:
        return self.collection(name, self.engine.changes(name, t1, t2))

    def reader(self, name: str, at: int | None) -> EngineReader:
        return EngineReader(self, self.engine.reader(name, at))

    def collection(self, name: str, table: pa.Table) -> Collection:
        """Return rows with multiplicities, or net changes. Assert the contract of the result."""
        assert table.column_names == [*self.columns_of(name), "_diff"]
        assert table.schema.types == [*(self.flow.outputs | self.inputs)[name].schema.types, pa.int64()]
        rows = plain(table)
        out: Collection = Counter({row[:-1]: row[-1] for row in rows})
        assert len(out) == len(rows), f"{name}: a row twice: {rows}"
        assert all(out.values()), f"{name}: a row of multiplicity 0: {rows}"
        asserts = [row[-1] > 0 for row in rows]
        assert asserts == sorted(asserts), f"{name}: a retraction after an assertion: {rows}"
        return out

    def totals(self) -> Counter[str]:
        return +Counter(self.engine.verdicts.counts)

    def columns_of(self, name: str) -> list[str]:
        return list((self.flow.outputs | self.inputs)[name].schema.names)

    def _tables(self, inputs: Mapping[str, Rows]) -> dict[str, Any]:
        return {name: self.shape(to_arrow(self.columns[name], rows)) for name, rows in inputs.items()}

    def _call(self, act: Callable[..., Any], *arguments: Any, **options: Any) -> Result:
        try:
            out = act(*arguments, **options)
        except DdflowError as error:
            raise Refused(type(error).__name__) from error
        verdicts = out.verdicts
        rows = {
            name: sorted(plain(table), key=repr) for name, table in (verdicts.rows or {}).items() if table is not None
        }
        assert verdicts.total == sum(verdicts.counts.values()) + verdicts.pending
        updates = {name: self._checked(name, out[name]) for name in out}
        return Result(updates, +Counter(verdicts.counts), rows, verdicts.pending, verdicts.absent)

    def _checked(self, name: str, table: pa.Table) -> Updates:
        """Return the updates of an output, and assert the contract.

        In the outputs of ``stale=``, a row may occur several times.
        """
        assert table.column_names[-2:] == ["_time", "_diff"], table.column_names
        assert table.schema.types[-2:] == [self.time_type, pa.int64()], table.schema
        rows = plain(table)
        assert [row[-2] for row in rows] == sorted(row[-2] for row in rows), f"{name}: not sorted by time: {rows}"
        if name in self.plans:
            assert table.schema.types[:-2] == self.flow.outputs[name].schema.types, table.schema
            assert len({row[:-1] for row in rows}) == len(rows), f"{name}: a row twice at one time: {rows}"
            assert all(row[-1] for row in rows), f"{name}: an update of diff 0: {rows}"
            self._retracts_first(name, table.column_names, rows)
        out: Counter[Any] = Counter()
        for *row, time, diff in rows:
            out[(tuple(row), time)] += diff
        return dict(out)

    def _retracts_first(self, name: str, columns: list[str], rows: list[Row]) -> None:
        """Assert that, within a time, no retraction of a key follows an assertion of the key.

        An output without a key promises no order.
        """
        whole = self.plans[name][0] == "count" and self.plans[name][2] is None
        key = columns[:-3] if whole else key_of(self.plans[name], self.keys)
        asserted = set()
        for row in rows if key is not None else []:
            place = (row[-2], *(row[columns.index(column)] for column in key or []))
            assert row[-1] > 0 or place not in asserted, f"{name}: a retraction after the assertion: {rows}"
            asserted |= {place} if row[-1] > 0 else set()


class EngineReader:
    """A reader of the engine, in plain values."""

    def __init__(self, door: EngineDoor, reader: Reader) -> None:
        self.door, self.reader = door, reader

    @property
    def time(self) -> int:
        return self.reader.time

    def read(self, as_of: int | None = None) -> Collection:
        return self.door.collection(self.reader.name, self.reader.read(as_of))

    def changes_to(self, to: int | None = None) -> Collection:
        return self.door.collection(self.reader.name, self.reader.changes_to(to))

    def advance_to(self, to: int | None = None) -> None:
        self.reader.advance_to(to)
