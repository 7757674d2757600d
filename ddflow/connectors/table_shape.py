"""Compare a target's table with the shape that a sink needs.

Guarantees: a sink never removes a column. A sink adds new columns, and refuses every other difference before it writes
a row: a column of another type, an unknown or dropped column, a missing key, or a table of another mode.

>>> shape = TableShape("by_city", pa.schema({"city": pa.string(), "n": pa.int64()}), ("city",))
>>> find_missing_columns(shape, {"city": "text"}, {"city": "text", "n": "bigint"}, "shop")
['n']
>>> find_missing_columns(shape, {"city": "int", "n": "bigint"}, {"city": "text", "n": "bigint"}, "shop")
Traceback (most recent call last):
    ...
ddflow.errors.SinkRefused: write 'by_city' to shop: 'city' is int, but ddflow writes text; use another table, ...
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.names import DIFF
from ddflow.connectors.api import TableShape, TargetRecord
from ddflow.connectors.modes import CHANGE, RETRACT
from ddflow.errors import ErrorText, Option, SinkAhead, SinkRefused

MARKS: Final = frozenset({CHANGE, RETRACT, DIFF})
"""Columns of the modes that only add rows to a table.

A sink never adds a column in `MARKS` to an existing table, because the older rows of the table are not changes.
"""
DECLARED: Final = {
    "int": pa.int64(),
    "pa.int32()": pa.int32(),
    "pa.int16()": pa.int16(),
    "float": pa.float64(),
    "pa.float32()": pa.float32(),
    "datetime": pa.timestamp("us"),
    'pa.timestamp("us", "UTC")': pa.timestamp("us", "UTC"),
}
"""Type declarations that users may confuse, each with its Arrow type."""
OTHER_MODE: Final = ErrorText("pass the ", Option("mode"), " that the table was written in, or use another table")


def find_missing_columns(
    shape: TableShape,
    there: Mapping[str, Any],
    wanted: Mapping[str, Any],
    place: str,
    type_of: Callable[[pa.DataType], Any] = lambda kind: kind,
) -> list[str]:
    """Return the columns that a table lacks.  O(columns).

    ``there``, ``wanted``: the types of existing and needed columns, as types of the target.  ``type_of``: a function
    that maps an Arrow type to a type of the target.

    Raises `SinkRefused` if the table does not fit the shape.
    """
    other = [
        f"{c!r} is {there[c]}, but ddflow writes {kind}" for c, kind in wanted.items() if there.get(c, kind) != kind
    ]
    if other:
        types = {c: there[c] for c, kind in wanted.items() if there.get(c, kind) != kind}
        fits = [
            f"{c!r} as {told}"
            for c, kind in types.items()
            if (told := _suggest_declared_type(shape.schema, c, kind, type_of))
        ]
        remedy = f"declare {', '.join(fits)}, or cast to that; or " if fits else ""
        raise build_sink_refusal(shape, place, "; ".join(other), f"{remedy}use another table, or change its columns")
    if lost := [column for column in there if column not in wanted]:
        remedy = (
            OTHER_MODE
            if MARKS & {*lost}
            else "use another table, or drop them; declare the columns that a run ingested"
        )
        raise build_sink_refusal(shape, place, f"it has columns that ddflow does not write: {lost}", remedy)
    if gone := [column for column in shape.key or () if column not in there]:
        raise build_sink_refusal(shape, place, f"it lacks the key {gone}", "use another table")
    new = [column for column in wanted if column not in there]
    if dropped := [column for column in new if column in shape.had]:
        found = f"it no longer has the column {', '.join(map(repr, dropped))}, which earlier epochs wrote"
        raise build_sink_refusal(shape, place, found, "ddflow sync --yes adds it again and fills it")
    if shape.key is None and (marks := [column for column in new if column in MARKS]):
        raise build_sink_refusal(shape, place, f"it lacks the columns that mark its changes: {marks}", OTHER_MODE)
    return new


def _suggest_declared_type(
    schema: pa.Schema, name: str, there: Any, type_of: Callable[[pa.DataType], Any]
) -> str | None:
    """Return the declaration that gives a column the table's type; None if `DECLARED` has no such declaration.

    >>> _suggest_declared_type(pa.schema({"n": pa.int64()}), "n", pa.int32(), lambda kind: kind)
    'pa.int32()'
    """
    own = schema.field(name).type
    for told, kind in DECLARED.items():
        alike = pat.is_timestamp if pat.is_timestamp(kind) else _is_number
        if alike(own) and type_of(kind) == there:
            return told
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind))


def find_new_columns(shape: TableShape, there: pa.Schema, wanted: pa.Schema, place: str) -> pa.Schema:
    """Return the wanted columns that a table lacks.  The table has Arrow types.

    Raises the errors of `find_missing_columns`.
    """
    found, asked = (dict(zip(each.names, each.types, strict=True)) for each in (there, wanted))
    return pa.schema([wanted.field(name) for name in find_missing_columns(shape, found, asked, place)])


def build_sink_refusal(shape: TableShape, place: str, found: str, remedy: str) -> SinkRefused:
    """Build the error for a table that cannot be written."""
    return SinkRefused(f"write {shape.output!r} to {place}", found, remedy)


def build_dropped_table_error(output: str, place: str, epoch: int) -> SinkRefused:
    """Build the error for a dropped table.  A new table would lack the rows of earlier epochs."""
    found = f"it no longer exists, but epoch {epoch} was written to it"
    return SinkRefused(f"write {output!r} to {place}", found, "ddflow sync creates it again, with all rows")


def is_written(there: TargetRecord | None, now: TargetRecord, before: TargetRecord | None, place: str) -> bool:
    """Return whether a table already contains an epoch.  ``there``: the table's record.

    For the other parameters, see `OpenSink.write`. Raises `SinkAhead` if the record is neither ``before`` nor ``now``.
    """
    if there == now != before:
        return True
    if there != before:
        found = f"it has epoch {there.epoch if there else None}, but had {before.epoch if before else None}"
        remedy = "another process writes there: stop it; then show and repair the differences with ddflow sync"
        raise SinkAhead(f"write epoch {now.epoch} of {now.output!r} to {place}", found, remedy)
    return False
