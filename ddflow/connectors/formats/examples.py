"""What messages show of the rows within, for who has no types of them: objects as JSON, and types that schemas name.

Invariant: a type is told only where Connect's schema has one; all else is left to whoever guesses from the objects.

>>> value = '{"op": "c", "after": {"id": 1, "on": 19675}}'
>>> shown(pa.array([value, "{", None]), ["$.after"]).rows.to_pylist()
['{"id":1,"on":19675}']
>>> fields = '[{"field": "on", "type": "int32", "name": "io.debezium.time.Date"}]'
>>> schema = '{"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": ' + fields + "}]}"
>>> shown(pa.array(['{"schema": ' + schema + ', "payload": ' + value + "}"]), ["$.after"], ("after",)).types
{'on': DataType(date32[day])}
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.formats.envelope import UNITS, fields_at, schemas
from ddflow.connectors.formats.parse import exactly, parsed, quoted

_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_NAMED: Final = {
    "io.debezium.time.Date": pa.date32(),
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "io.debezium.time.ZonedTimestamp": pa.timestamp("us", "UTC"),
}
_MOST: Final = 38


class Examples(NamedTuple):
    """``rows``: objects as JSON text.  ``types``: of columns that a schema tells."""

    rows: pa.Array
    types: dict[str, pa.DataType]


def shown(values: pa.Array, paths: Sequence[str], within: Sequence[str] = ()) -> Examples:
    """Return the first object at one of some ``paths`` of each message, with or without Connect's schema.

    ``within``: the path of the row's fields in the schema.  O(bytes).
    """
    places = [path for each in paths for path in (f"$.payload{each[1:]}", each)]
    cases = (f"when json_type(v, {quoted(path)}) = 'OBJECT' then json_extract(v, {quoted(path)})" for path in places)
    sql = f"(case {' '.join(cases)} end)::varchar"
    rows, wrong = parsed(values, sql)
    rows = exactly(values.filter(pa.array(~wrong)), sql) if wrong.size else rows  # a type is guessed from all digits
    types = dict[str, pa.DataType]()
    for _, schema in schemas(values.filter(pc.starts_with(pc.utf8_trim_whitespace(values), '{"schema"'))):
        for field in fields_at(schema, within):
            if (kind := connect_type(field)) is not None:
                types.setdefault(str(field.get("field")), kind)
    return Examples(rows.drop_null(), types)


def connect_type(field: Mapping[str, Any]) -> pa.DataType | None:
    """Return the type of a field of a schema of Connect; None if it is unknown.  O(fields within).

    >>> connect_type({"type": "int64", "name": "io.debezium.time.MicroTimestamp"})
    TimestampType(timestamp[us])
    >>> connect_type({"type": "array", "items": {"type": "string"}})
    ListType(list<item: string>)
    """
    kind, name, parameters = field.get("type"), str(field.get("name")), field.get("parameters") or {}
    if name.endswith(".Decimal"):
        digits = str(parameters.get("connect.decimal.precision", _MOST))
        scale = str(parameters.get("scale", ""))
        return pa.decimal128(min(int(digits), _MOST), int(scale)) if scale.isdigit() and digits.isdigit() else None
    if name in _NAMED:
        return _NAMED[name]
    if name in UNITS:
        unit: Any = UNITS[name]
        if "Timestamp" in name:
            return pa.timestamp(unit)
        if "Duration" in name:
            return pa.duration(unit)
        return pa.time32(unit) if unit == "ms" else pa.time64(unit)
    if kind == "array" and isinstance(items := field.get("items"), dict):
        inner = connect_type(items)
        return None if inner is None else pa.list_(inner)
    return _PLAIN.get(str(kind))
