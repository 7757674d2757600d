"""Types of Arrow as the tables of a data lake hold them: Delta Lake's and Iceberg's.

Invariant: a value comes back as it was. Unsigned integers go into the next wider type, timestamps into microseconds,
with a zone in UTC. What would lose something (nanoseconds, durations) has no type there, and is refused by name. What
only one of the formats has, it says itself: ``own`` of `stored_type` is asked first.

>>> stored(pa.schema({"n": pa.uint32(), "at": pa.timestamp("s", "Europe/Zurich")})).types
[DataType(int64), TimestampType(timestamp[us, tz=UTC])]
>>> stored(pa.schema({"for": pa.duration("s")})).types
[DataType(null)]
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.types as pat

Own = Callable[[pa.DataType], pa.DataType | None]
"""What a format makes of a type that others treat otherwise; None for the rest."""
_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_SAME: Final = (
    *(pat.is_boolean, pat.is_signed_integer, pat.is_float32, pat.is_float64, pat.is_string, pat.is_binary),
    *(pat.is_date32, pat.is_decimal128),
)


def stored_type(kind: pa.DataType, own: Own = lambda kind: None) -> pa.DataType | None:
    """Return the stored type of a column of Arrow's type; None if it would lose information."""
    if pat.is_dictionary(kind):
        return stored_type(kind.value_type, own)
    if (said := own(kind)) is not None:
        return said
    if kind in _WIDER or any(same(kind) for same in _SAME):
        return _WIDER.get(kind, kind)
    if pat.is_timestamp(kind):
        return None if kind.unit == "ns" else pa.timestamp("us", None if kind.tz is None else "UTC")
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        inner = stored_type(kind.value_type, own)
        return None if inner is None else pa.list_(inner)
    if pat.is_struct(kind):
        within = {each.name: inner for each in kind if (inner := stored_type(each.type, own)) is not None}
        return pa.struct(list(within.items())) if len(within) == kind.num_fields else None
    return None


def stored(schema: pa.Schema, own: Own = lambda kind: None) -> pa.Schema:
    """Return the columns of a table for rows of a schema; null is the type of those it cannot hold."""
    return pa.schema([(each.name, stored_type(each.type, own) or pa.null()) for each in schema])
