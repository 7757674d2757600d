"""Pair custom mergers, projections and derived columns with equivalent functions of one row.

Both functions of a pair give the same result for every row. The twin calls the function of one row. The engine calls
the function that works on complete columns and masks. JSON cannot contain code. So a spec has ``{"function": name}`` in
place of a merger, and `with_function` restores the function.

>>> MERGERS["inc or reset"][0]({"n": 5, "s": "set"}, {"n": 3, "s": "inc"})["n"]
8
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from conditions import COMPUTED, known

from ddflow.plan.merge.merge import Merge

Named = Mapping[str, Any]


def inc_or_reset(held: Named, given: Named) -> dict[str, Any]:
    """Merge ``n`` as ``s`` says: "inc" adds, "reset" clears, any other text keeps the last non-null value."""
    n, old = given["n"], held["n"]
    if given["s"] == "inc" and None not in (n, old):
        n = n + old
    elif given["s"] != "reset":
        n = old if n is None else n
    else:
        n = None
    rest = {name: held[name] if value is None else value for name, value in given.items()}
    return rest | {"n": n}


def inc_or_reset_columns(held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
    """Do the same as `inc_or_reset` for whole columns."""
    n, old, what = given["n"], held["n"], pc.fill_null(given["s"], "")
    both = pc.and_(pc.is_valid(n), pc.is_valid(old))
    merged = pc.if_else(pc.and_(pc.equal(what, "inc"), both), pc.add(n, old), pc.coalesce(n, old))
    columns = {name: pc.coalesce(given[name], held[name]) for name in given.schema.names}
    columns["n"] = pc.if_else(pc.equal(what, "reset"), pa.scalar(None, n.type), merged)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=given.schema)


def longer(held: Named, given: Named) -> dict[str, Any]:
    """Keep the longer text ``s``, and take all other columns from ``given``, even if they are null."""
    s = max((each for each in (held["s"], given["s"]) if each is not None), key=len, default=None)
    return {**given, "s": s}


def longer_columns(held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
    """Do the same as `longer` for whole columns."""
    lengths = [pc.fill_null(pc.utf8_length(each["s"]), -1) for each in (held, given)]
    s = pc.if_else(pc.greater(lengths[1], lengths[0]), given["s"], held["s"])
    at = given.schema.get_field_index("s")
    return given.set_column(at, given.schema.field(at), s)


def in_part(held: Named, given: Named) -> dict[str, Any]:
    """Sum ``n``; the result is null if a null comes after a value above one.

    Of all other columns, take the last value that is not null.
    """
    out = {name: held[name] if value is None else value for name, value in given.items()}
    if None not in (given["n"], held["n"]):
        out["n"] = held["n"] + given["n"]
    return out | ({"n": None} if given["n"] is None and (held["n"] or 0) > 1 else {})


def in_part_scalar(held: Any, given: Any, out: Any) -> None:
    """Do the same as `in_part` for records.

    Columns that the function does not write keep their old values. The function is allowed to overwrite its arguments.
    """
    if not given.n_null and not held.n_null:
        out.n = held.n + given.n
    elif given.n == 0 and held.n > 1:  # a null number is 0 in a record
        out.n_null = True
    given.n, given.n_null, held.n = -5, True, -5


def decoded(row: Named) -> str | None:
    """Return ``raw`` as JSON in a uniform format, or null if ``raw`` is not valid JSON."""
    try:
        return json.dumps(json.loads(row["raw"]))
    except ValueError:
        return None


def trouble(row: Named) -> str | None:
    """Return the error in ``raw``, or null if ``raw`` is valid JSON."""
    return None if decoded(row) is not None else f"no JSON: {row['raw']}"


def decoded_column(batch: pa.RecordBatch) -> pa.Array:
    """Do the same as `decoded` for whole columns."""
    return pa.array([decoded({"raw": raw}) for raw in batch["raw"].to_pylist()], pa.string())


def trouble_column(batch: pa.RecordBatch) -> pa.Array:
    """Do the same as `trouble` for whole columns."""
    there = pc.is_valid(decoded_column(batch))
    return pc.if_else(there, pa.scalar(None, pa.string()), pc.binary_join_element_wise("no JSON", batch["raw"], ": "))


PROJECTIONS: dict[str, tuple[Callable[[Named], Any], Callable[[pa.RecordBatch], pa.Array]]] = {
    "the JSON of raw": (decoded, decoded_column),
    "what is wrong with raw": (trouble, trouble_column),
}
"""Maps the name of a computed column to its function of a row and its function of a batch."""

MERGERS: dict[str, tuple[Callable[[Named, Named], Named], Merge]] = {
    "inc or reset": (inc_or_reset, Merge(function=inc_or_reset_columns)),
    "longer": (longer, Merge(function=longer_columns)),
    "in part": (in_part, Merge(function=in_part_scalar, scalar=True)),
}
"""Maps the name of a merger to its function of two rows and its function of two batches or records."""

DERIVED: dict[str, Callable[[Named], Any]] = COMPUTED | {
    "score + bonus": lambda row: None if None in (row["score"], row["bonus"]) else row["score"] + row["bonus"],
    "concat(firstName, lastName)": lambda row: (
        None if None in (row["firstName"], row["lastName"]) else row["firstName"] + row["lastName"]
    ),
    "n * 2": known("n", lambda n: n * 2),
    "n > 1": known("n", lambda n: n > 1),
    "total > 2": known("total", lambda total: total > 2),
    "coalesce(s, 'none')": lambda row: "none" if row["s"] is None else row["s"],
}
"""Maps the SQL text of a derived column to the equivalent Python function."""


def with_function(given: Mapping[str, Any]) -> tuple[dict[str, Any], Merge | None]:
    """Split the JSON form of a spec into a spec without a merger, and the merger."""
    merge = given.get("merge")
    if not isinstance(merge, Mapping) or "function" not in merge:
        return dict(given), None
    return {name: each for name, each in given.items() if name != "merge"}, MERGERS[merge["function"]][1]
