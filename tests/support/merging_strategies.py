"""Draw scenarios of merging with hypothesis.

Specs have strategies, groups and cell versions, and events may lack columns.

A drawn scenario is valid JSON with a consistent spec. A strategy must suit the type of its column. Cell versions with
deletes allow few strategies. Types without an order cannot have ``tie="greatest"``. The few events of few keys must
cover nulls, absent columns, equal orders, older events, and a key that is deleted and inserted again.

>>> fits("list<int64>")
['last', 'last_non_null', 'first', 'first_non_null', 'append', 'union']
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conditions import CONDITIONS, columns_in
from hypothesis import strategies as st
from strategies import EXTREMES, STAMP, TIMES, VALUES, deletes, element, maybe, row_of, some

PAYLOAD = {
    "n": "int64",
    "s": "string",
    "f": "float64",
    "b": "bool",
    "d": "decimal(9,2)",
    "x": "binary",
    "i": "int8",
    "u": "uint64",
    "h": "float32",
    "y": "duration[s]",
    "l": "list<int64>",
    "m": "list<string>",
    "z": "struct<x,s>",
}
MORE: dict[str, list[Any]] = {
    "list<string>": [[], ["a"], ["b", "a"], ["a", None, "a"]],
    "int8": [-1, 0, 1, 2, 100],
    "struct<x,s>": [{"x": 1, "s": "a"}, {"x": None, "s": "b"}, {"x": 5, "s": None}, {"x": None, "s": None}],
    "decimal(9,2)": [*VALUES["decimal(9,2)"], "6000000.00"],
    "string": ["", "a", "b", "é"],
}
"""Values of those payload columns that have different values in the module ``strategies``."""
FREE = ["last", "last_non_null"]
"""Strategies whose results do not depend on the order of arrival, with cell versions and even with deletes."""
NUMBERS = ("int64", "int8", "uint64", "float32", "float64", "decimal(9,2)", "duration[s]")
DERIVED = {"n * 2": ("int64", {"n"}), "n > 1": ("bool", {"n"}), "coalesce(s, 'none')": ("string", {"s"})}
"""SQL of derived columns, with the result type and the columns in it."""
NESTED = ("list", "struct")


def fits(kind: str) -> list[str]:
    """Return the names of strategies for a type, except `fields`, which has parts."""
    out = ["last", "last_non_null", "first", "first_non_null"]
    if kind.startswith("list"):
        return [*out, "append", "union"]
    if not kind.startswith("struct"):
        out += ["max", "min"]
    out += ["sum"] * (kind in NUMBERS) + ["bool_and", "bool_or"] * (kind == "bool") + ["join_text"] * (kind == "string")
    return [*out, "collect"]


@st.composite
def strategy(draw: st.DrawFn, kind: str, allowed: set[str] | None = None) -> Any:
    """Draw the JSON form of a strategy for a type. ``allowed`` has the strategies that cell versions allow."""
    if kind == "struct<x,s>" and (allowed is None or "sum" in allowed) and draw(st.booleans()):
        counting = {"max", "min", "sum"} if allowed else None
        part = {
            name: draw(strategy(of, counting).filter(lambda each: named(each) != "collect"))
            for name, of in (("x", "int64"), ("s", "string"))
        }
        # With cell versions a struct is a single cell, so every event must affect all fields of the struct.
        return {
            "name": "fields",
            "fields": part if allowed else {name: part[name] for name in draw(some(list(part)))},
            **({"default": "max"} if allowed else {}),
        }
    name = draw(st.sampled_from([each for each in fits(kind) if allowed is None or each in allowed]))
    if name in ("append", "union", "collect"):
        limit = draw(maybe(st.sampled_from([1, 3, 6])))
        return {"name": name, "limit": limit} if limit else name
    return {"name": name, "separator": draw(st.sampled_from([";", ""]))} if name == "join_text" else name


@st.composite
def inputs(draw: st.DrawFn, holds_back: bool, **fixed: Any) -> dict[str, Any]:
    """Draw one merging input.

    ``how`` is "row", "groups", "cell", "first_row" or "function"; the other parameters fix options of the spec.
    """
    how = fixed.get("how", draw(st.sampled_from(["row", "row", "groups", "groups", "cell", "first_row", "function"])))
    merger = draw(st.sampled_from(["inc or reset", "longer", "in part"])) if how == "function" else None
    if merger == "in part":  # compiled for each type of record, so there are few
        fixed = {"kinds": ["int64", "string"], "payload": ["n", "s"]} | fixed
    kinds = fixed.get("kinds", ["int8", "int64", "string", "float64", "decimal(9,2)"])
    orders = {
        name: draw(st.sampled_from(kinds))
        for name in fixed.get("order_by", draw(st.sampled_from([[], ["o"], ["o"], ["o", "p"]])))
    }
    spec: dict[str, Any] = {"key": ["k"]}
    extra: dict[str, str] = {}
    if holds_back:
        extra["t"], spec["time"] = draw(st.sampled_from(TIMES)), "t"
        needs = how in ("groups", "cell")
        spec["late"] = fixed.get("late", "advance" if needs else draw(st.sampled_from(["error", "drop", "advance"])))
        spec["lateness"] = fixed.get("lateness", draw(maybe(st.integers(0, 3))))
    if how == "cell":
        spec["versions"] = "cell"
        orders = orders if holds_back else orders or {"o": "int64"}
    payload = {name: PAYLOAD[name] for name in draw(some(fixed.get("payload", list(PAYLOAD)), 1))}
    if how == "function":
        payload |= {"n": "int64", "s": "string"}
    groups = draw(grouped(list(payload), kinds)) if how == "groups" else {}
    extra |= {name: kind for of, _ in groups.values() for name, kind in of.items()}
    if orders or holds_back or groups:
        spec["tie"] = fixed.get("tie", draw(st.sampled_from(["last", "last", "first", "greatest", "error"])))
    if spec.get("tie") == "greatest":
        payload = {name: kind for name, kind in payload.items() if not kind.startswith(NESTED)} or {"n": "int64"}
        groups = {name: (of, [c for c in columns if c in payload]) for name, (of, columns) in groups.items()}
    if orders:
        spec["order_by"] = list(orders)
    if groups:
        spec["groups"] = [[list(of), columns] for of, columns in groups.values()]
        spec["exclusive"] = draw(maybe(st.just(True)))
    if fixed.get("seq", spec.get("tie", "last") in ("last", "first") and draw(st.integers(0, 2)) == 0):
        extra["seq"], spec["seq"] = "int64", "seq"
    if spec.get("late") == "advance" or not holds_back:
        spec["stale"] = fixed.get("stale", draw(st.sampled_from(["drop", "drop", "mark", "side"])))
    spec["null_key"] = fixed.get("null_key", draw(st.sampled_from(["error", "drop", "keep"])))
    dies = fixed.get("deletes", True)
    if dies:
        extra |= draw(deletes(spec, payload))
    conditions = [sql for sql in CONDITIONS if columns_in(sql) <= {c for c in payload if c in "nsfb"}]
    if dies and conditions:
        spec["where"] = draw(maybe(st.sampled_from(conditions)))
    if groups and ("delete" in spec or spec.get("where")):
        spec["deletes"] = draw(maybe(st.just("group")))
    dies = bool(spec.get("delete") or spec.get("where"))
    merge = {"function": merger} if merger else draw(merges(how, payload, dies, fixed.get("only")))
    if merge is not None:
        spec["merge"] = merge
    columns = {"k": fixed.get("key", draw(st.sampled_from(["bool", "bool", "int8"])))} | payload | orders | extra
    lifted = (
        {name for name, each in (merge or {}).get("columns", {}).items() if named(each) == "collect"}
        if isinstance(merge, dict)
        else set()
    )
    whole = (isinstance(merge, dict) and named(merge.get("default", "")) == "collect") or how == "function"
    sql = draw(maybe(st.sampled_from(sorted(DERIVED))))
    if fixed.get("derive", True) and sql and DERIVED[sql][1] <= set(payload) - lifted and not whole:
        columns["e"], spec["derive"] = DERIVED[sql][0], [["e", sql]]
    columns = {name: columns[name] for name in draw(st.permutations(list(columns)))}
    row = row_of(columns, spec)
    spec["noop_ignore"] = fixed.get("noop_ignore", draw(maybe(some([name for name in row if name != "k"]), [])))
    if "noop_ignore" not in fixed and not spec["noop_ignore"]:
        spec["track"] = draw(maybe(some([name for name in row if name != "k"])))
    spec["ingested"] = fixed.get("ingested", draw(maybe(st.just(STAMP))))
    return {"columns": columns, "spec": {name: option for name, option in spec.items() if option is not None}}


def named(each: Any) -> str:
    """Return the name of a strategy's JSON form."""
    return str(each["name"]) if isinstance(each, dict) else str(each)


@st.composite
def grouped(draw: st.DrawFn, payload: list[str], among: list[str]) -> dict[str, tuple[dict[str, str], list[str]]]:
    """Draw one or two groups.

    A group has order columns with their types, and the payload columns that these order columns decide.
    """
    kinds = st.sampled_from(among)
    out: dict[str, tuple[dict[str, str], list[str]]] = {}
    rest = list(payload)
    for i in range(draw(st.integers(1, 2))):
        of = {f"g{i}{j}": draw(kinds) for j in range(draw(st.sampled_from([1, 1, 2])))}
        mine = draw(some(rest))
        rest = [name for name in rest if name not in mine]
        out[f"g{i}"] = of, mine
    return out


@st.composite
def merges(draw: st.DrawFn, how: str, payload: Mapping[str, str], dies: bool, only: Any = None) -> Any:
    """Draw the JSON form of ``merge=``, or None if the spec merges even without ``merge=``."""
    if how == "first_row":
        return "first_row"
    allowed = None
    if how == "cell":
        allowed = set(FREE) if dies else {*FREE, "first", "first_non_null", "max", "min", "sum", "bool_and", "bool_or"}
    allowed = allowed if only is None else set(only)
    columns = {name: draw(strategy(payload[name], allowed)) for name in draw(some(list(payload)))}
    default = draw(maybe(st.sampled_from(FREE if allowed is None or set(FREE) <= allowed else sorted(allowed))))
    if not columns and default is None and how != "row" and draw(st.booleans()):
        return None
    return ({"columns": columns} if columns else {}) | ({"default": default} if default else {})


@st.composite
def scenarios(draw: st.DrawFn, holds_back: bool | None = None, **fixed: Any) -> dict[str, Any]:
    """Draw a scenario with a merging input.

    One output has the rows of the input, and another output counts its keys.
    """
    holds_back = draw(st.booleans()) if holds_back is None else holds_back
    input = draw(inputs(holds_back, **fixed))
    outputs = {"rows": ["input", "a"], "keys": ["count", ["project", ["input", "a"], ["k"]], ["k"], "count"]}
    return {"inputs": {"a": input}, "outputs": outputs}


@st.composite
def events(
    draw: st.DrawFn,
    input: Mapping[str, Any],
    most: int = 8,
    least: int = 0,
    times: tuple[int, int] = (0, 6),
    nulls: bool = True,
) -> list[list[Any]]:
    """Draw rows of an input. With ``nulls``, order columns outside of groups may be null."""
    spec, kinds = input["spec"], []
    orders = [*spec.get("order_by", []), *(name for of, _ in spec.get("groups", []) for name in of)]
    for name, kind in input["columns"].items():
        values = MORE.get(kind, VALUES.get(kind, []))
        if name == spec.get("time"):
            kinds.append(st.integers(*times))
        elif name == spec.get("seq"):
            kinds.append(st.integers(0, 5))
        elif name == "k":
            kinds.append(st.sampled_from([*VALUES[kind] * (40 if spec["null_key"] == "error" else 5), None]))
        elif name in orders:
            may = nulls or name not in spec.get("order_by", [])
            few = VALUES[kind][:4] * 2 + EXTREMES.get(kind, [])
            kinds.append(st.sampled_from([*few, *([None] * 3 if may else [])]))
        elif kind in MORE:
            kinds.append(st.sampled_from([*values * 2, None, None]))
        else:
            kinds.append(element(kind, True))
    return draw(st.lists(st.tuples(*kinds).map(list), min_size=least, max_size=most))


@st.composite
def batches(draw: st.DrawFn, input: Mapping[str, Any], rows: list[list[Any]]) -> Any:
    """Return the rows unchanged, or sometimes as a batch that lacks some columns."""
    needed = {"k", input["spec"].get("time")}
    lacks = draw(maybe(some([name for name in input["columns"] if name not in needed]), []))
    kept = [i for i, name in enumerate(input["columns"]) if name not in lacks]
    return {"without": lacks, "rows": [[row[i] for i in kept] for row in rows]} if lacks else rows
