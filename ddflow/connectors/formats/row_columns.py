"""Find undeclared columns of the rows in messages, and the types of these columns.

Types come from example values, from Connect's schema or from the type names of databases.

Guarantees: the type of an undeclared column fits every example. The type for an unknown type name is text, which fits
every value.

>>> [str(parse_sql_type(of)) for of in ("integer", "numeric(10,2)", "timestamp(3) with time zone", "bigint unsigned")]
['int32', 'decimal128(10, 2)', 'timestamp[us, tz=UTC]', 'uint64']
>>> [str(parse_sql_type(of)) for of in ("varchar(20)", "numeric", "integer[]", "int(11)", "datetime(6)", "bytea")]
['string', 'string', 'string', 'int32', 'timestamp[us]', 'binary']
"""

import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.files import open_files
from ddflow.connectors.formats.envelope import UNITS, get_fields_at_path, group_by_schema, mark_messages_with_schema
from ddflow.connectors.formats.parse import Bools, evaluate_sql_keeping_digits, evaluate_sql_on_json, quote_sql_literal
from ddflow.errors import SchemaMismatch, UnreadableInput

Path = Sequence[str | int]
"""Path of a row in a message: names of object members, and indexes of list elements."""
Ints = np.ndarray[Any, np.dtype[np.int64]]
Own = Callable[[Ints], Bools]
"""Function that gets indexes of messages, and marks the messages of the table that the options name."""


def find_row_columns(
    value: pa.Array, path: Path, known: Collection[str] = (), own: Own | None = None
) -> dict[str, int]:
    """Return the columns of the rows at a path in messages, except the columns in ``known``.  O(bytes).

    The result maps each column to the index of the first message that has it.

    >>> text = pa.array(['{"after": {"id": 1}}', '{"after": null}', '{"after": {"id": 2, "n": 1.5}}', "{"])
    >>> find_row_columns(text, ("after",))
    {'id': 0, 'n': 2}
    """
    if pat.is_struct(value.type):
        names = [field.name for field in find_fields_at_path(value.type, path) if field.name not in known]
        return dict.fromkeys(names, 0) if len(value) else {}
    inner = mark_messages_with_schema(value)
    if not inner.any():
        return _find_object_keys(value, path, np.arange(len(value)), known, own)
    found, left = dict[str, int](), inner.copy()
    rows = np.flatnonzero(inner)
    for of, schema in group_by_schema(value.take(pa.array(rows))):
        left[rows[of]] = False
        names = [str(field.get("field")) for field in get_fields_at_path(schema, [str(each) for each in path])]
        names = [name for name in names if name not in known]
        if names and (mine := rows[of] if own is None else rows[of][own(rows[of])]).size:
            _note_first_row_of_columns(found, names, int(mine.min()))
    for some, at in ((left, ("payload", *path)), (~inner, path)):
        if some.any():
            for name, row in _find_object_keys(
                value.filter(pa.array(some)), at, np.flatnonzero(some), known, own
            ).items():
                _note_first_row_of_columns(found, [name], row)
    return found


def find_fields_at_path(kind: pa.DataType, path: Path) -> list[pa.Field]:
    """Return the fields below a path in structs, with or without Connect's schema."""
    names = {field.name for field in kind} if pat.is_struct(kind) else set()
    for name in ("payload", *path) if {"schema", "payload"} <= names else path:
        if isinstance(name, int):
            kind = kind.value_type if pat.is_list(kind) else pa.null()
        elif pat.is_struct(kind) and kind.get_field_index(name) >= 0:
            kind = kind.field(name).type
        else:
            return []
    return list(kind) if pat.is_struct(kind) else []


class ColumnNameLists:
    """Names of columns in messages, read from JSON lists of names.  The lists may contain inner lists of names.

    ``unknown``: the names of each distinct list that are not ``known``.  ``rows``: the messages with unknown names.
    O(messages + bytes of distinct lists).
    """

    def __init__(self, texts: pa.Array, known: Collection[str]) -> None:
        told = texts.dictionary_encode()
        self.codes: Ints = np.asarray(pc.fill_null(told.indices, -1))
        self.unknown = [
            [name for name in _flatten_names(json.loads(text)) if name not in known]
            for text in told.dictionary.to_pylist()
        ]
        self.rows: Ints = np.flatnonzero(np.array([*map(bool, self.unknown), False])[self.codes])

    def find_first_rows(self, rows: Ints) -> dict[str, int]:
        """Return the unknown names in messages.

        A name is mapped to the index of the first message that contains the name.
        """
        codes, at = np.unique(self.codes[rows], return_index=True)
        found = dict[str, int]()
        for row, code in sorted(zip(rows[at].tolist(), codes.tolist(), strict=True)):
            for name in self.unknown[code]:
                found.setdefault(name, row)
        return found


def _flatten_names(names: Iterable[Any]) -> Iterator[str]:
    for each in names:
        yield from each if isinstance(each, list) else (each,)


def _find_object_keys(
    value: pa.Array, path: Path, rows: Ints, known: Collection[str], own: Own | None
) -> dict[str, int]:
    keys, _ = evaluate_sql_on_json(
        value, f"to_json(json_keys(v, {quote_sql_literal(format_json_path(path))}))::varchar"
    )
    lists = ColumnNameLists(keys, known)
    some = lists.rows if own is None or not lists.rows.size else lists.rows[own(rows[lists.rows])]
    return {name: int(rows[row]) for name, row in lists.find_first_rows(some).items()}


def _note_first_row_of_columns(found: dict[str, int], names: Iterable[str], row: int) -> None:
    for name in names:
        found[name] = min(row, found.get(name, row))


def format_json_path(path: Path) -> str:
    """Format a path in DuckDB's syntax.

    >>> format_json_path(("data", 0))
    '$."data"[0]'
    """
    return "$" + "".join(f"[{each}]" if isinstance(each, int) else f'."{each}"' for each in path)


def filter_messages_with_values(value: pa.Array, path: Path, names: Sequence[str]) -> pa.Array:
    """Return the messages with a value in one of the named columns.  If any message has a schema, return all messages.

    O(bytes).

    >>> filter_messages_with_values(pa.array(['{"id": 1, "n": null}', '{"n": 1.5}', "5"]), (), ["n"]).to_pylist()
    ['{"n": 1.5}']
    """
    if mark_messages_with_schema(value).any():
        return value
    pointers = ", ".join(quote_sql_literal("".join(map(_escape_json_pointer_step, (*path, name)))) for name in names)
    there, _ = evaluate_sql_on_json(value, f"list_any_value(json_extract_string(v, [{pointers}])) is not null")
    return value.filter(there)


def _escape_json_pointer_step(step: str | int) -> str:
    """Escape a step of a JSON pointer."""
    return "/" + str(step).replace("~", "~0").replace("/", "~1")


def guess_column_types(rows: pa.Array, names: Iterable[str], what: str) -> dict[str, pa.DataType]:
    """Guess the types of the named columns in JSON rows, except columns without values.  O(bytes).

    ``what``: the name of the input in errors.  Raises `SchemaMismatch` if no type fits all values.

    >>> guess_column_types(pa.array(['{"id": 1, "n": null}', '{"n": 1.5}', '{"on": null}']), ["n", "on"], "'t'")
    {'n': DataType(double)}
    """
    out = dict[str, pa.DataType]()
    for name in names:
        cells = evaluate_sql_keeping_digits(
            rows, f"nullif(json_extract(v, {quote_sql_literal(_escape_json_pointer_step(name))})::varchar, 'null')"
        ).drop_null()
        if not len(cells):
            continue
        try:
            lines = (f"{{{json.dumps(name)}: {cell}}}" for cell in cells.to_pylist())
            out[name] = guess_schema(lines, {}).field(name).type
        except (SchemaMismatch, UnreadableInput) as error:
            remedy = f"declare it in the flow, as text: {{{name!r}: str}}"
            raise SchemaMismatch(f"the new column {name!r} of {what}", error.found, remedy, column=name) from None
    return out


def guess_schema(rows: Iterable[str], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Guess the schema of JSON rows in the same way as for a JSON file.

    ``types``: types that replace guesses.  See `open_files`.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(f"{row}\n" for row in rows)
        file.flush()
        return open_files([file.name], types).schema


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


class ExampleRows(NamedTuple):
    """Example rows as JSON text (``rows``), and the column types that a schema determines (``types``)."""

    rows: pa.Array
    types: dict[str, pa.DataType]


def find_example_rows(values: pa.Array, paths: Sequence[str], within: Sequence[str] = ()) -> ExampleRows:
    """Return for each message the object at the first path in ``paths`` that leads to an object.

    ``within``: the path of the row's fields in the schema.  O(bytes).

    >>> value = '{"op": "c", "after": {"id": 1, "on": 19675}}'
    >>> find_example_rows(pa.array([value, "{", None]), ["$.after"]).rows.to_pylist()
    ['{"id":1,"on":19675}']
    >>> fields = '[{"field": "on", "type": "int32", "name": "io.debezium.time.Date"}]'
    >>> schema = '{"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": ' + fields + "}]}"
    >>> messages = pa.array(['{"schema": ' + schema + ', "payload": ' + value + "}"])
    >>> find_example_rows(messages, ["$.after"], ("after",)).types
    {'on': DataType(date32[day])}
    """
    places = [path for each in paths for path in (f"$.payload{each[1:]}", each)]
    cases = (
        f"when json_type(v, {quote_sql_literal(path)}) = 'OBJECT' then json_extract(v, {quote_sql_literal(path)})"
        for path in places
    )
    sql = f"(case {' '.join(cases)} end)::varchar"
    rows, wrong = evaluate_sql_on_json(values, sql)
    rows = (
        evaluate_sql_keeping_digits(values.filter(pa.array(~wrong)), sql) if wrong.size else rows
    )  # a guess of types needs all digits
    types = dict[str, pa.DataType]()
    for _, schema in group_by_schema(values.filter(pc.starts_with(pc.utf8_trim_whitespace(values), '{"schema"'))):
        for field in get_fields_at_path(schema, within):
            if (kind := find_kafka_connect_type(field)) is not None:
                types.setdefault(str(field.get("field")), kind)
    return ExampleRows(rows.drop_null(), types)


def find_kafka_connect_type(field: Mapping[str, Any]) -> pa.DataType | None:
    """Return the Arrow type of a field in Connect's schema; None if the field's type is unknown.  O(nested fields).

    >>> find_kafka_connect_type({"type": "int64", "name": "io.debezium.time.MicroTimestamp"})
    TimestampType(timestamp[us])
    >>> find_kafka_connect_type({"type": "array", "items": {"type": "string"}})
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
        inner = find_kafka_connect_type(items)
        return None if inner is None else pa.list_(inner)
    return _PLAIN.get(str(kind))


_INTEGERS: Final = {
    **{"tinyint": 8, "smallint": 16, "smallserial": 16, "mediumint": 32, "int": 32, "integer": 32, "serial": 32},
    **{"bigint": 64, "bigserial": 64},
}
_OTHERS: Final = {
    **{"boolean": pa.bool_(), "bool": pa.bool_(), "real": pa.float32(), "float": pa.float64()},
    **{"double": pa.float64(), "double precision": pa.float64(), "date": pa.date32(), "bytea": pa.binary()},
    **{"time": pa.time64("us"), "time without time zone": pa.time64("us"), "datetime": pa.timestamp("us")},
    **{"timestamp": pa.timestamp("us"), "timestamp without time zone": pa.timestamp("us")},
    **{"timestamp with time zone": pa.timestamp("us", "UTC")},
}
_SIZE: Final = re.compile(r"\(([0-9, ]+)\)")
_DIGITS: Final = re.compile(r"(?:numeric|decimal)\((\d+),\s*(\d+)\)")


def parse_sql_type(text: str) -> pa.DataType:
    """Return the type that holds the values of a Postgres or MySQL type.  O(length)."""
    lower = text.strip().lower()
    if match := _DIGITS.fullmatch(lower):
        digits, scale = int(match[1]), int(match[2])
        return pa.decimal128(digits, scale) if scale <= digits <= 38 else pa.string()
    name = " ".join(_SIZE.sub(" ", lower).split())
    if name.removesuffix(" unsigned") in _INTEGERS:
        sign = "uint" if name.endswith(" unsigned") else "int"
        return pa.type_for_alias(f"{sign}{_INTEGERS[name.removesuffix(' unsigned')]}")
    return _OTHERS.get(name, pa.string())
