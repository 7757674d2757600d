"""Parse the payload of JSON messages with or without Kafka Connect's schema, and return cells by path.

ddflow looks for a schema in each message, so a topic may mix messages with and without a schema. The schema determines
the encoding of times, decimals and bytes. Messages with equal schemas are parsed together. A missing field is null.

>>> text = pa.array(['{"id": 1}', '{"schema": {"type": "struct", "fields": []}, "payload": {"id": 2}}', "{", None])
>>> inside = parse_messages(text, {"id": TEXT})
>>> inside.get_cells("id").to_pylist(), inside.wrong.tolist(), len(inside.schemas)
(['1', '2', None, None], [False, False, True, False], 1)
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.formats.cells import CellEncoding, cast_cells
from ddflow.connectors.formats.parse import TEXT, Bools, parse_objects

Ints = np.ndarray[Any, np.dtype[np.int64]]
_WRAPPED: Final = r'^\s*\{\s*"(schema"\s*:\s*(\{|null)|payload"\s*:)'
_ROW: Final = re.compile(r'\{"(?!schema"|payload")[^"\\]*"')
_SCHEMA: Final = re.compile(r'\s*\{\s*"schema"\s*:\s*')
UNITS: Final = {
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "io.debezium.time.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
    "io.debezium.time.MicroDuration": "us",
    "io.debezium.time.NanoDuration": "ns",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "org.apache.kafka.connect.data.Time": "ms",
}
"""Units of the numbers that represent times, by the name of the schema."""
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


class ParsedMessages(NamedTuple):
    """Parsed messages.

    ``body``: structs with the payload.  ``wrong``: marks messages that are not JSON.  ``schemas``: each schema with the
    indexes of its messages.  ``json``: whether messages were JSON texts.
    """

    body: pa.Array
    wrong: Bools
    schemas: tuple[tuple[Ints, Mapping[str, Any]], ...]
    json: bool = True

    def get_cells(self, *path: str) -> pa.Array:
        """Return the cells at a path; null if the path does not exist.  O(n)."""
        return get_cells_at_path(self.body, path)

    def build_encoding_lookup(
        self, path: Sequence[str], name: str, usual: CellEncoding
    ) -> Callable[[int], CellEncoding]:
        """Return a function that gets the index of a message and returns the encoding of a column.

        A call of this function is O(schemas * log n).
        """
        known = [(rows, read_cell_encodings(schema, path, usual).get(name, usual)) for rows, schema in self.schemas]

        def form(row: int) -> CellEncoding:
            for rows, how in known:
                if (at := np.searchsorted(rows, row)) < rows.size and rows[at] == row:
                    return how
            return usual

        return form

    def take(self, rows: Ints) -> "ParsedMessages":
        """Select messages by ascending indexes."""
        schemas = []
        for of, schema in self.schemas:
            here = np.flatnonzero(np.isin(rows, of, assume_unique=True))
            schemas += [(here, schema)] if here.size else []
        return ParsedMessages(self.body.take(pa.array(rows)), self.wrong[rows], tuple(schemas), self.json)


def get_cells_at_path(body: pa.Array, path: Sequence[str]) -> pa.Array:
    """Return the cells of structs at a path; null if the path does not exist."""
    for name in path:
        if not pat.is_struct(body.type) or body.type.get_field_index(name) < 0:
            return pa.nulls(len(body), pa.string())
        body = pc.struct_field(body, name)
    return body


def parse_messages(value: pa.Array, shape: Mapping[str, Any], exact: Any = False) -> ParsedMessages:
    """Parse the payload of messages.  ``shape``, ``exact``: as for `parse_objects`.  O(bytes)."""
    n = len(value)
    if pat.is_struct(value.type):
        names = {field.name for field in value.type}
        body = get_cells_at_path(value, ["payload"]) if {"schema", "payload"} <= names else value
        return ParsedMessages(body, np.zeros(n, bool), (), False)
    around = mark_messages_with_schema(value)
    if not around.any():
        return ParsedMessages(*parse_objects(value, shape, exact), ())
    exact = np.broadcast_to(exact, n)
    inner = np.flatnonzero(around)
    of = value if inner.size == n else value.take(pa.array(inner))
    body, wrong = parse_objects(of, {"payload": shape}, exact[inner])
    body = get_cells_at_path(body, ["payload"])
    known = tuple((inner[rows], schema) for rows, schema in group_by_schema(of))
    if inner.size == n:
        return ParsedMessages(body, wrong, known)
    bare = np.flatnonzero(~around)
    plain, broken = parse_objects(value.take(pa.array(bare)), shape, exact[bare])
    back = np.argsort(np.concatenate([inner, bare]))
    return ParsedMessages(
        pa.concat_arrays([body, plain]).take(pa.array(back)), np.concatenate([wrong, broken])[back], known
    )


def mark_messages_with_schema(value: pa.Array) -> Bools:
    """Mark the messages with a schema.

    O(n).  The function is fast if all messages begin with the same member and that member is not a schema.
    """
    at = pc.index(value.is_valid(), True).as_py()
    begins = _ROW.match(value[at].as_py()) if at >= 0 else None
    if begins is None:
        return np.asarray(pc.fill_null(pc.match_substring_regex(value, _WRAPPED), False))
    out = np.zeros(len(value), np.bool_)
    odd = np.flatnonzero(~np.asarray(pc.fill_null(pc.starts_with(value, begins[0]), True)))
    out[odd] = np.asarray(pc.match_substring_regex(value.take(pa.array(odd)), _WRAPPED))
    return out


def group_by_schema(text: pa.Array) -> list[tuple[Ints, Mapping[str, Any]]]:
    """Group messages by schema.  O(schemas * n).

    The schema is usually the first member, so messages with the same schema share a prefix.
    """
    left, odd = np.arange(len(text)), list[int]()
    out: list[tuple[Ints, Mapping[str, Any]]] = []
    while left.size:
        first = text[int(left[0])].as_py()
        at = _SCHEMA.match(first)
        try:
            schema, end = json.JSONDecoder().raw_decode(first, at.end() if at else len(first))
        except ValueError:
            odd.append(int(left[0]))
            left = left[1:]
            continue
        same = np.asarray(pc.starts_with(text.take(pa.array(left)), first[:end]))
        out += [(left[same], schema)] if isinstance(schema, dict) else []
        left = left[~same]
    return out + _group_by_trailing_schema(text, np.array(odd, np.int64))


def _group_by_trailing_schema(text: pa.Array, rows: Ints) -> list[tuple[Ints, Mapping[str, Any]]]:
    """Group messages that have the schema after the payload."""
    if not rows.size:
        return []
    found, _ = parse_objects(text.take(pa.array(rows)), {"schema": TEXT})
    texts = get_cells_at_path(found, ["schema"])
    out: list[tuple[Ints, Mapping[str, Any]]] = []
    for each in pc.unique(texts.drop_null()).to_pylist():
        schema = json.loads(each)
        same = np.asarray(pc.fill_null(pc.equal(texts, each), False))
        out += [(rows[same], schema)] if isinstance(schema, dict) else []
    return out


def read_cell_encodings(schema: Mapping[str, Any], path: Sequence[str], usual: CellEncoding) -> dict[str, CellEncoding]:
    """Return the encodings of the columns below a path, from Connect's schema.  O(fields)."""
    return {str(each.get("field")): _read_cell_encoding(each, usual) for each in get_fields_at_path(schema, path)}


def get_fields_at_path(schema: Mapping[str, Any], path: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the fields below a path in Connect's schema.  O(fields)."""
    for name in path:
        schema = next((each for each in get_fields_at_path(schema, ()) if each.get("field") == name), {})
    given = schema.get("fields")
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def _read_cell_encoding(field: Mapping[str, Any], usual: CellEncoding) -> CellEncoding:
    kind, name, parameters = field.get("type"), field.get("name"), field.get("parameters")
    if name == _DECIMAL:
        scale = parameters.get("scale") if isinstance(parameters, dict) else None
        return usual._replace(decimals="precise", scale=int(str(scale)) if str(scale).lstrip("-").isdigit() else None)
    if name in UNITS:
        return usual._replace(unit=UNITS[name])
    if kind == "string":
        return usual._replace(decimals="string")
    if kind in ("double", "float"):
        return usual._replace(decimals="double")
    if kind == "struct":
        return usual._replace(decimals="precise")
    return usual._replace(binary="base64") if kind == "bytes" else usual


def cast_column(
    inside: ParsedMessages, path: Sequence[str], name: str, kind: pa.DataType, usual: CellEncoding
) -> tuple[pa.Array, Bools | None]:
    """Cast a column below a path to a type, and mark the cells that do not fit.  O((1 + schemas) * n)."""
    cells = inside.get_cells(*path, name)
    usual = usual._replace(quoted=inside.json)
    groups: dict[CellEncoding, list[Ints]] = {}
    for rows, schema in inside.schemas:
        groups.setdefault(read_cell_encodings(schema, path, usual).get(name, usual), []).append(rows)
    told = sum(rows.size for every in groups.values() for rows in every)
    if told < len(cells):
        rest = np.ones(len(cells), np.bool_)
        for every in groups.values():
            for rows in every:
                rest[rows] = False
        groups.setdefault(usual, []).append(np.flatnonzero(rest))
    if len(groups) <= 1:
        return cast_cells(cells, kind, next(iter(groups), usual))
    parts, wrong, places = [], [], []
    for how, every in groups.items():
        rows = np.sort(np.concatenate(every))
        made, bad = cast_cells(cells.take(pa.array(rows)), kind, how)
        parts.append(made)
        wrong.append(np.zeros(rows.size, np.bool_) if bad is None else bad)
        places.append(rows)
    back = np.argsort(np.concatenate(places))
    return pa.concat_arrays(parts).take(pa.array(back)), np.concatenate(wrong)[back]
