"""Compare a target's table with the shape that a sink needs.

Guarantees: a sink never removes a column. It adds new columns, and refuses the rest before a row changes: a column of
another type, an unknown or dropped column, a missing key, or a table of another mode.

>>> shape = TableShape("by_city", pa.schema({"city": pa.string(), "n": pa.int64()}), ("city",))
>>> find_missing_columns(shape, {"city": "text"}, {"city": "text", "n": "bigint"}, "shop")
['n']
>>> find_missing_columns(shape, {"city": "int", "n": "bigint"}, {"city": "text", "n": "bigint"}, "shop")
Traceback (most recent call last):
    ...
ddflow.errors.SinkRefused: write 'by_city' to shop: 'city' is int, we write text; give another table, ...
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
"""Columns of modes that only add rows.

A sink never adds them to an existing table: the table would then be a mirror that turns into a log halfway.
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
"""Declarations of types that users may confuse, with their Arrow types."""
OTHER_MODE: Final = ErrorText("give the sink the ", Option("mode"), " that the table was written in, or another table")


def find_missing_columns(
    shape: TableShape,
    there: Mapping[str, Any],
    wanted: Mapping[str, Any],
    place: str,
    type_of: Callable[[pa.DataType], Any] = lambda kind: kind,
) -> list[str]:
    """Return the columns that a table lacks.  O(columns).

    ``there``, ``wanted``: existing and needed types by column, in the target's terms.  ``type_of``: converts Arrow's
    types to these.

    Raises `SinkRefused` for a table of another shape.
    """
    other = [f"{c!r} is {there[c]}, we write {kind}" for c, kind in wanted.items() if there.get(c, kind) != kind]
    if other:
        types = {c: there[c] for c, kind in wanted.items() if there.get(c, kind) != kind}
        fits = [
            f"{c!r} as {told}"
            for c, kind in types.items()
            if (told := _suggest_declared_type(shape.schema, c, kind, type_of))
        ]
        remedy = f"declare {', '.join(fits)}, or cast it so; or " if fits else ""
        raise build_sink_refusal(shape, place, "; ".join(other), f"{remedy}give another table, or change its columns")
    if lost := [column for column in there if column not in wanted]:
        remedy = OTHER_MODE if MARKS & {*lost} else "give another table, or drop them; declare those that a run took in"
        raise build_sink_refusal(shape, place, f"it has columns that we do not write: {lost}", remedy)
    if gone := [column for column in shape.key or () if column not in there]:
        raise build_sink_refusal(shape, place, f"it lacks the key {gone}", "give another table")
    new = [column for column in wanted if column not in there]
    if dropped := [column for column in new if column in shape.had]:
        found = f"it has no column {', '.join(map(repr, dropped))} any more, which earlier epochs wrote"
        raise build_sink_refusal(shape, place, found, "ddflow sync --yes adds it again and fills it")
    if shape.key is None and (marks := [column for column in new if column in MARKS]):
        raise build_sink_refusal(shape, place, f"it lacks what tells its changes apart: {marks}", OTHER_MODE)
    return new


def _suggest_declared_type(
    schema: pa.Schema, name: str, there: Any, type_of: Callable[[pa.DataType], Any]
) -> str | None:
    """Return the declaration that gives a column the table's type; None if no such type is a likely mistake.

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
    """Return the columns that a table with Arrow types lacks.  Raises like `find_missing_columns`."""
    found, asked = (dict(zip(each.names, each.types, strict=True)) for each in (there, wanted))
    return pa.schema([wanted.field(name) for name in find_missing_columns(shape, found, asked, place)])


def build_sink_refusal(shape: TableShape, place: str, found: str, remedy: str) -> SinkRefused:
    """Build the error for a table that cannot be written."""
    return SinkRefused(f"write {shape.output!r} to {place}", found, remedy)


def build_dropped_table_error(output: str, place: str, epoch: int) -> SinkRefused:
    """Build the error for a dropped table: a new one would hold only the rows of the next epoch."""
    found = f"it is gone, though epoch {epoch} was written into it"
    return SinkRefused(f"write {output!r} to {place}", found, "ddflow sync makes it anew, with all rows")


def is_written(there: TargetRecord | None, now: TargetRecord, before: TargetRecord | None, place: str) -> bool:
    """Return whether a table has an epoch already.  ``there``: its record; other parameters: see `OpenSink.write`.

    Raises `SinkAhead` if the record is neither ``before`` nor ``now``.
    """
    if there == now != before:
        return True
    if there != before:
        found = f"it has epoch {there.epoch if there else None}, and had {before.epoch if before else None}"
        remedy = "another process writes there: stop it; then see what differs, and make it so: ddflow sync"
        raise SinkAhead(f"write epoch {now.epoch} of {now.output!r} to {place}", found, remedy)
    return False
