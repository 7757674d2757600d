"""Draw schemas, specs, plans and events with hypothesis, from so few values that keys, orders and times repeat.

A drawn scenario is valid JSON (see ``doors``) with a consistent spec, so a failing example is already a trace. The
strategies know which options of a spec exclude each other, and which columns a condition needs. Interesting values
(NaN, -0.0, null, equal orders, deletes of absent keys) must occur often.

>>> sorted(VALUES["bool"])
[False, True]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from conditions import COMPUTED, CONDITIONS, columns_in
from doors import AGGREGATES, ORDERED, THRESHOLDS, Shape, as_table, spec_of
from hypothesis import strategies as st

from ddflow.plan.inputs.spec import Tombstone

NAN = float("nan")
VALUES: dict[str, list[Any]] = {
    "bool": [False, True],
    "int8": [-1, 0, 1],
    "int16": [-300, 0, 5],
    "int32": [0, 1, 2],
    "int64": [0, 1, -1, 2**40],
    "uint8": [0, 1, 255],
    "uint64": [0, 1, 2**63 + 5],
    "float32": [0.0, -0.0, NAN, 1.5],
    "float64": [0.0, -0.0, NAN, -1.5],
    "string": ["", "a", "b", "é"],
    "large_string": ["", "a", "bb"],
    "binary": ["", "a", "\xff"],
    "fixed(3)": ["abc", "\x00\x00\x00"],
    "date32": [0, 1, -1],
    "timestamp[us]": [0, 1, 10**15],
    "timestamp[s]": [0, 60],
    "timestamp[ms, UTC]": [0, 1000],
    "time64[us]": [0, 1],
    "duration[s]": [0, -5],
    "decimal(9,2)": ["0.00", "1.50", "-2.25"],
    "list<int64>": [[], [1], [1, None]],
    "struct<x>": [{"x": 1}, {"x": None}],
}
EXTREMES: dict[str, list[Any]] = {
    "int8": [-128, 127],
    "int32": [-(2**31), 2**31 - 1],
    "int64": [-(2**63), 2**63 - 1],
    "uint64": [2**64 - 1],
    "float32": [float("inf")],
    "float64": [float("inf"), -float("inf"), 5e-324],
    "string": ["a\x00", "z" * 40],
    "binary": ["\x00", "z" * 40],
    "timestamp[us]": [-62_135_596_800 * 10**6, 253_402_300_800 * 10**6 - 1],
    "date32": [-719_162, 2_932_896],
    "decimal(9,2)": ["9999999.99", "-9999999.99"],
}
"""Extreme values for keys and orders. Payload columns do not get extreme values, because ``n + 1`` would overflow."""
FLAT = [kind for kind in VALUES if not kind.startswith(("list", "struct"))]
PAYLOAD = {"n": "int64", "s": "string", "f": "float64", "b": "bool", "d": "decimal(9,2)", "x": "binary"}
TIMES = ["int64", "int64", "timestamp[us]", "date32"]
STAMP = "came"
"""The name of the column of ``ingested=``."""


LINEAR = (*["filter"] * 2, *["project"] * 2, "concat", "negate", "consolidate")
VERBS = (*LINEAR, "count", "sets", "top", "over", "sessions", "versions", "asof", *["join"] * 2, *["agg"] * 2)


def maybe(strategy: st.SearchStrategy[Any], other: Any = None) -> st.SearchStrategy[Any]:
    """Draw from the strategy, or more often return ``other``."""
    return st.one_of(st.just(other), st.just(other), strategy)


def some(names: list[str], least: int = 0) -> st.SearchStrategy[list[str]]:
    """Draw some of the names, in any order."""
    return st.lists(st.sampled_from(names), unique=True, min_size=least, max_size=len(names)) if names else st.just([])


@st.composite
def inputs(draw: st.DrawFn, holds_back: bool, **fixed: Any) -> dict[str, Any]:
    """Draw one input with its columns and its spec. The options in ``fixed`` are used unchanged."""
    keys = {"k": draw(st.sampled_from(FLAT))} | (
        {"j": draw(st.sampled_from(FLAT))} if draw(st.integers(0, 3)) == 0 else {}
    )
    payload = {name: PAYLOAD[name] for name in draw(some(list(PAYLOAD)))}
    if draw(st.integers(0, 5)) == 0:
        payload["l"] = draw(st.sampled_from(["list<int64>", "struct<x>"]))
    spec: dict[str, Any] = {"key": list(keys)}
    orders = {
        name: draw(st.sampled_from(FLAT))
        for name in fixed.get("order_by", draw(st.sampled_from([[], ["o"], ["o"], ["o", "p"]])))
    }
    if orders:
        spec["order_by"] = list(orders)
    if holds_back or orders:
        spec["tie"] = fixed.get("tie", draw(st.sampled_from(["last", "last", "first", "greatest", "error"])))
        if spec["tie"] == "greatest":
            payload.pop("l", None)
    extra: dict[str, str] = {}
    if fixed.get("seq", spec.get("tie", "last") in ("last", "first") and draw(st.integers(0, 2)) == 0):
        extra["seq"], spec["seq"] = "int64", "seq"
    if holds_back:
        extra["t"], spec["time"] = fixed.get("time_type", draw(st.sampled_from(TIMES))), "t"
        spec["late"] = fixed.get("late", draw(st.sampled_from(["error", "drop", "advance"])))
        spec["lateness"] = fixed.get("lateness", draw(maybe(st.integers(0, 3))))
    if spec.get("late") == "advance" or not holds_back:
        spec["stale"] = fixed.get("stale", draw(st.sampled_from(["drop", "drop", "mark", "side"])))
    spec["null_key"] = fixed.get("null_key", draw(st.sampled_from(["error", "drop", "keep"])))
    extra |= draw(deletes(spec, payload))
    conditions = [sql for sql in CONDITIONS if columns_in(sql) <= set(payload)]
    if conditions:
        spec["where"] = draw(maybe(st.sampled_from(conditions)))
    columns = keys | payload | orders | extra
    columns = {name: columns[name] for name in draw(st.permutations(list(columns)))}
    if draw(st.integers(0, 4)) == 0:
        spec["value"] = draw(
            some([name for name in columns if name not in keys and (spec.get("tie") != "greatest" or name != "l")])
        )
    row = row_of(columns, spec)
    spec["noop_ignore"] = fixed.get("noop_ignore", draw(maybe(some([name for name in row if name not in keys]), [])))
    if "noop_ignore" not in fixed and not spec["noop_ignore"]:
        spec["track"] = draw(maybe(some([name for name in row if name not in keys])))
    spec["ingested"] = fixed.get("ingested", draw(maybe(st.just(STAMP))))
    return {"columns": columns, "spec": {name: option for name, option in spec.items() if option is not None}}


@st.composite
def deletes(draw: st.DrawFn, spec: dict[str, Any], payload: Mapping[str, str]) -> dict[str, str]:
    """Add one form of delete to the spec, and return the column that this form needs."""
    form = draw(st.sampled_from(["none", "flag", "word", "moment", "sql"]))
    if form == "flag":
        spec["delete"] = {"tombstone": "gone"}
        return {"gone": "bool"}
    if form == "word":
        spec["delete"] = {"tombstone": "gone", "value": "b"}
        return {"gone": "string"}
    if form == "moment":
        spec["delete"] = {"tombstone": "gone"}
        return {"gone": draw(st.sampled_from(["int64", "timestamp[us]", "float64"]))}
    conditions = [sql for sql in CONDITIONS if columns_in(sql) <= set(payload)]
    if form == "sql" and conditions:
        spec["delete"] = draw(st.sampled_from(conditions))
    return {}


def row_of(columns: Mapping[str, str], spec: Mapping[str, Any]) -> list[str]:
    """Return the row columns of a drawn input, without the column of ``ingested=``."""
    parsed = spec_of({name: option for name, option in spec.items() if option is not None})
    if parsed.value is not None:
        return [name for name in columns if name in parsed.value or name in parsed.key]
    hidden = {parsed.time, parsed.seq} | ({parsed.delete.column} if isinstance(parsed.delete, Tombstone) else set())
    return [name for name in columns if name not in hidden]


def kinds_of(input: Mapping[str, Any]) -> dict[str, str]:
    """Return the types of the row columns of a drawn input, by name."""
    columns, spec = input["columns"], input["spec"]
    stamps = {STAMP: columns[spec["time"]] if "time" in spec else "int64"} if "ingested" in spec else {}
    return {name: columns[name] for name in row_of(columns, spec)} | stamps


def ignored(input: Mapping[str, Any]) -> list[str]:
    """Return the row columns of a drawn input, without the key, that may depend on how events are split into calls.

    These are the columns whose new values do not count as a change and, in epoch mode, the column of ``ingested=``.
    """
    spec = input["spec"]
    stamps = [STAMP] if "ingested" in spec and "time" not in spec else []
    if "track" not in spec:
        return [*spec.get("noop_ignore", []), *stamps]
    return [c for c in row_of(input["columns"], spec) if c not in spec["key"] and c not in spec["track"]] + stamps


@st.composite
def plans(
    draw: st.DrawFn, columns: dict[str, str], names: list[str], depth: int = 2, verbs: tuple[str, ...] = VERBS
) -> tuple[list[Any], dict[str, str]]:
    """Draw a nested list over inputs with these row columns. Return the list, and the columns of its result."""
    if depth == 0:
        return ["input", draw(st.sampled_from(names))], columns
    below, of = draw(plans(columns, names, depth - 1, verbs))
    conditions = [
        sql for sql in CONDITIONS if columns_in(sql) <= {name for name in of if PAYLOAD.get(name) == of[name]}
    ]
    verb = draw(st.sampled_from(verbs))
    if verb == "filter" and conditions:
        return ["filter", below, draw(st.sampled_from(conditions))], of
    if verb == "project":
        return draw(projections(below, of))
    if verb == "count" and "count" not in of and not any(kind.startswith(("list", "struct")) for kind in of.values()):
        by = draw(st.one_of(st.none(), some(list(of))))
        return ["count", below, by, "count"], (
            {name: of[name] for name in (of if by is None else by)} | {"count": "int64"}
        )
    if verb == "concat":
        other = draw(
            st.sampled_from(
                [below, ["negate", below], ["filter", below, draw(st.sampled_from(conditions))]]
                if conditions
                else [below, ["negate", below]]
            )
        )
        return ["concat", below, other], of
    if verb == "sets":
        return draw(sets(below, of, conditions)), of
    if verb == "top" and "rank" not in of and not any(kind.startswith(("list", "struct")) for kind in of.values()):
        return draw(tops(below, of))
    if verb == "over" and not any(name[0] == "w" for name in of) and not_nested(of):
        return draw(windows(below, of))
    moments = [name for name, kind in of.items() if kind == "timestamp[us]"]
    if verb == "sessions" and moments and not any(name.startswith("session") for name in of) and not_nested(of):
        at = draw(st.sampled_from(moments))
        by = draw(some([name for name in of if name != at]))
        more = {"session_start": "timestamp[us]", "session_end": "timestamp[us]"}
        return ["sessions", not_below_zero(below), by, at, draw(st.sampled_from([1, 2, 10**15, 10**16]))], of | more
    if (
        verb == "versions"
        and not {"start", "stop"} & set(of)
        and not any(kind.startswith(("list", "struct")) for kind in of.values())
    ):
        return draw(histories(below, of, conditions))
    if verb == "join" and not any(name.startswith("r_") for name in of):
        return draw(joins(below, of, draw(plans(columns, names, depth - 1, verbs)), conditions))
    if verb == "asof" and not any(name.startswith("r_") for name in of):
        return draw(asof_joins(below, of, draw(plans(columns, names, depth - 1, verbs))))
    if verb == "agg" and (by := [name for name in of if not of[name].startswith(("list", "struct"))]):
        return draw(aggregates(below, of, draw(some(by))))
    return [verb if verb in ("negate", "consolidate") else "consolidate", below], of


@st.composite
def sets(draw: st.DrawFn, below: list[Any], of: dict[str, str], conditions: list[str]) -> list[Any]:
    """Draw a threshold of one collection, or a union, difference or intersection of two collections."""
    verb = draw(st.sampled_from(["distinct", "threshold", "set", "set"]))
    if verb == "distinct":
        return ["distinct", below]
    if verb == "threshold":
        return ["threshold", below, draw(st.sampled_from(sorted(THRESHOLDS)))]
    others = [below, ["negate", below], ["concat", below, below]]
    other = draw(st.sampled_from(others + [["filter", below, sql] for sql in conditions[:2]]))
    sides = draw(st.permutations([below, other]))
    return ["set", *sides, draw(st.sampled_from(["union", "except_", "intersect"])), draw(st.booleans())]


@st.composite
def tops(draw: st.DrawFn, below: list[Any], of: dict[str, str]) -> tuple[list[Any], dict[str, str]]:
    """Draw a plan that takes the first rows of each group, from a collection without negative multiplicities."""
    below = not_below_zero(below)
    ways = st.sampled_from(["", " desc", " asc nulls last", " desc nulls first"])
    by = [name + draw(ways) for name in draw(some(list(of)))]
    told = [draw(st.integers(1, 3)), by, draw(some(list(of))), draw(st.integers(0, 2))]
    rank = draw(st.sampled_from([None, "rank"]))
    return ["top", below, *told, rank], of if rank is None else of | {"rank": "int64"}


def not_nested(of: dict[str, str]) -> bool:
    """Tell whether all columns have an order."""
    return not any(kind.startswith(("list", "struct")) for kind in of.values())


@st.composite
def windows(draw: st.DrawFn, below: list[Any], of: dict[str, str]) -> tuple[list[Any], dict[str, str]]:
    """Draw window functions, over a collection without negative multiplicities."""
    ways = st.sampled_from(["", " desc", " asc nulls last", " desc nulls first"])
    order = [name + draw(ways) for name in draw(some(list(of), 1))]
    calls, kinds = dict[str, list[Any]](), dict[str, str]()
    for i in range(draw(st.integers(1, 2))):
        call = draw(st.sampled_from(WINDOW_FUNCTIONS))
        column = draw(st.sampled_from(list(of)))
        calls[f"w{i}"] = [call[0], column if call[1] else "", *call[2:]]
        kinds[f"w{i}"] = of[column] if call[1] else "int64"
    return ["over", not_below_zero(below), draw(some(list(of))), order, calls], of | kinds


WINDOW_FUNCTIONS = [
    ["row_number", False],
    ["rank", False],
    ["dense_rank", False],
    ["lag", True, 1],
    ["lead", True, 2],
    ["count", False, 1, ["rows", -1, 2]],
    ["min", True],
    ["max", True, 1, ["rows", -2, 0]],
    ["first_value", True, 1, ["rows", None, 1]],
]
"""Window functions that are drawn: the name, whether it reads a column, a number, and a frame."""


def not_below_zero(plan: list[Any]) -> list[Any]:
    """Return the plan, changed if needed so that its multiplicities are not negative."""
    return ["threshold", plan, "n * n"] if "negate" in repr(plan) else plan


@st.composite
def joins(
    draw: st.DrawFn,
    left: list[Any],
    of: dict[str, str],
    other: tuple[list[Any], dict[str, str]],
    conditions: list[str],
) -> tuple[list[Any], dict[str, str]]:
    """Draw a join of any kind with another plan.

    The columns of the other plan get new names, unless a column is the key of both plans and has the same name in both.
    """
    right, there = other
    pairs = [(a, b) for a in of for b in there if of[a] == there[b] and not of[a].startswith(("list", "struct"))]
    on = draw(st.lists(st.sampled_from(pairs), max_size=2, unique_by=(lambda p: p[0], lambda p: p[1]))) if pairs else []
    names = {name: name if (name, name) in on else f"r_{name}" for name in there}
    how = draw(st.sampled_from(["inner", "inner", "left", "right", "full", "semi", "anti"]))
    if how != "inner":
        left, right = not_below_zero(left), not_below_zero(right)
    condition = draw(maybe(st.sampled_from(conditions))) if conditions else None
    right = ["project", right, {new: name for name, new in names.items()}]
    more = {} if how in ("semi", "anti") else {new: there[name] for name, new in names.items() if new not in of}
    return ["join", left, right, {a: names[b] for a, b in on}, how, condition], of | more


@st.composite
def asof_joins(
    draw: st.DrawFn, left: list[Any], of: dict[str, str], other: tuple[list[Any], dict[str, str]]
) -> tuple[list[Any], dict[str, str]]:
    """Draw a join with the nearest row of another plan, if both plans have moments of one type."""
    right, there = other
    pairs = [(a, b) for a in of for b in there if of[a] == there[b] and not of[a].startswith(("list", "struct"))]
    moments = [(a, b) for a, b in pairs if not of[a].endswith(("string", "binary"))]
    if not moments:
        return ["consolidate", left], of
    mine, its = draw(st.sampled_from(moments))
    keys = [pair for pair in pairs if pair[0] != mine and pair[1] != its]
    on = draw(st.lists(st.sampled_from(keys), max_size=2, unique_by=(lambda p: p[0], lambda p: p[1]))) if keys else []
    names = {name: f"r_{name}" for name in there}
    right = ["project", not_below_zero(right), {new: name for name, new in names.items()}]
    at = f"{mine} {draw(st.sampled_from(['>=', '>', '<=', '<']))} {names[its]}"
    told = {a: names[b] for a, b in on}, at, draw(st.sampled_from(["inner", "left"]))
    return ["asof", not_below_zero(left), right, *told], of | {new: there[name] for name, new in names.items()}


@st.composite
def aggregates(
    draw: st.DrawFn, below: list[Any], of: dict[str, str], by: list[str]
) -> tuple[list[Any], dict[str, str]]:
    """Draw some aggregates of groups."""
    of_payload = {name for name in of if PAYLOAD.get(name) == of[name]}
    known = [text for text, (needs, *_) in AGGREGATES.items() if set(needs) <= of_payload]
    chosen = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    level = repr(below).count("'agg'")
    told = {f"a{level}{i}": text for i, text in enumerate(chosen)}
    if any(text.startswith(ORDERED) for text in chosen):
        below = not_below_zero(below)
    kinds = {name: AGGREGATES[text][1] for name, text in told.items()}
    return ["agg", below, by, told], {name: of[name] for name in by} | kinds


@st.composite
def histories(
    draw: st.DrawFn, below: list[Any], of: dict[str, str], conditions: list[str]
) -> tuple[list[Any], dict[str, str]]:
    """Draw a plan with the versions of keys, over a collection that is not indexed by key."""
    order = draw(st.sampled_from(list(of)))
    key = [name for name in draw(some(list(of))) if name != order]
    delete = draw(st.sampled_from([None, *conditions[:2]]))
    told = ["threshold", below, "n * n"], key, order, delete, draw(some(list(of))), "start", "stop"
    return ["versions", *told], of | {"start": of[order], "stop": of[order]}


@st.composite
def projections(draw: st.DrawFn, below: list[Any], of: dict[str, str]) -> tuple[list[Any], dict[str, str]]:
    """Draw a projection by name or by expression."""
    names = draw(some(list(of), 1))
    computed = [sql for sql in COMPUTED if columns_in(sql) <= {name for name in of if PAYLOAD.get(name) == of[name]}]
    if computed and draw(st.booleans()):
        chosen = draw(st.lists(st.sampled_from(computed), min_size=1, max_size=2, unique=True))
        kinds = {"n + 1": "int64", "n > 1": "bool", "coalesce(s, 'none')": "string", "upper(s)": "string"}
        return ["project", below, {f"c{i}": sql for i, sql in enumerate(chosen)}], {
            f"c{i}": kinds.get(sql, PAYLOAD.get(sql, "int64")) for i, sql in enumerate(chosen)
        }
    return ["project", below, names], {name: of[name] for name in names}


@st.composite
def scenarios(draw: st.DrawFn, holds_back: bool | None = None, **fixed: Any) -> dict[str, Any]:
    """Draw one input, or two inputs of the same shape, and up to two outputs."""
    holds_back = draw(st.booleans()) if holds_back is None else holds_back
    input = draw(inputs(holds_back, **fixed))
    names = ["a", "b"] if draw(st.integers(0, 3)) == 0 else ["a"]
    row = kinds_of(input)
    outputs = {
        f"out{i}": draw(plans(row, names, draw(st.sampled_from([0, 1, 2, 2, 3, 3, 4, 6]))))[0]
        for i in range(draw(st.integers(1, 2)))
    }
    return {"inputs": dict.fromkeys(names, input), "outputs": outputs}


def element(kind: str, nulls: bool) -> st.SearchStrategy[Any]:
    """Draw one of the few values that this module uses for a type."""
    return st.sampled_from([*VALUES[kind] * 2, *([None] if nulls else [])])


@st.composite
def events(
    draw: st.DrawFn, input: Mapping[str, Any], most: int = 8, least: int = 0, times: tuple[int, int] = (0, 6)
) -> list[list[Any]]:
    """Draw rows of an input. Keys are sometimes null, and times are within ``times``."""
    spec, columns = input["spec"], input["columns"]
    kinds = []
    for name, kind in columns.items():
        if name == spec.get("time"):
            kinds.append(st.integers(*times))
        elif name == spec.get("seq"):
            kinds.append(st.integers(0, 9))
        elif name in spec["key"]:
            values = [*VALUES[kind], *EXTREMES.get(kind, [])]
            kinds.append(st.sampled_from([*values * (40 if spec["null_key"] == "error" else 5), None]))
        elif name in spec.get("order_by", []):
            kinds.append(st.sampled_from([*VALUES[kind] * 2, *EXTREMES.get(kind, []), None]))
        else:
            kinds.append(element(kind, True))
    return draw(st.lists(st.tuples(*kinds).map(list), min_size=least, max_size=most))


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    return table.to_batches(max_chunksize=2) or [pa.RecordBatch.from_pylist([], table.schema)]


def _encoded(table: pa.Table) -> pa.Table:
    """Encode text as dictionaries, in two chunks if there are enough rows."""
    columns = [column.dictionary_encode() if pa.types.is_string(column.type) else column for column in table.columns]
    out = pa.table(columns, names=table.column_names)
    half = table.num_rows // 2
    return pa.concat_tables([out.slice(0, half), out.slice(half)]) if half else out


def _reordered(table: pa.Table) -> pa.Table:
    """Reorder columns, convert text to string views, and make the rows a slice that starts at an offset."""
    padded = pa.concat_tables([table.slice(0, 1), table]).combine_chunks().slice(min(1, table.num_rows))
    columns = {name: padded.column(name) for name in reversed(table.column_names)}
    return pa.table(
        {
            name: column.cast(pa.string_view()) if pa.types.is_string(column.type) else column
            for name, column in columns.items()
        }
    )


SHAPES: dict[str, Shape] = {
    "table": as_table,
    "batches": _batches,
    "dictionaries": _encoded,
    "reordered": _reordered,
    "reader": lambda table: pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=3)),
}
"""The forms in which the same rows can arrive, for example with reordered columns or with dictionaries."""


def shapes() -> st.SearchStrategy[Shape]:
    """Draw one of the forms in which rows may arrive."""
    return st.sampled_from(sorted(SHAPES)).map(lambda name: SHAPES[name])


@st.composite
def splits(draw: st.DrawFn, rows: list[Any]) -> list[list[Any]]:
    """Draw a split of the rows into consecutive parts."""
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    return [rows[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
