"""Define ``get_json_object``, which reads the value at a path, and ``from_json``, which parses text to a struct.

As in Spark, invalid JSON never gives an error. The result is null or a struct of nulls. A value becomes null if its
type differs from the type in the shape. The path and the shape are literals, and each is compiled once. `json_text.py`
parses the text and limits its size.

>>> from ddflow.expressions.functions.table import FUNCTIONS
>>> from ddflow.expressions.node import constant
>>> order = constant(pa.scalar('{"id": 7, "city": {"name": "Bern"}, "tags": ["x", "y"]}'))
>>> FUNCTIONS["get_json_object"].call([order, constant(pa.scalar("$.city.name"))]).constant.as_py()
'Bern'
>>> shape = constant(pa.scalar("id INT, tags ARRAY<STRING>"))
>>> FUNCTIONS["from_json"].call([order, shape]).constant.as_py()
{'id': 7, 'tags': ['x', 'y']}
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.expressions.digits import parse_dates, parse_decimal_texts, parse_timestamps
from ddflow.expressions.functions.json_text import (
    BAD,
    NOTHING,
    JsonNumber,
    JsonObject,
    format_number,
    parse_json,
    write_json,
)
from ddflow.expressions.functions.table import build_text_reader, cast_argument_to_text, sql_function
from ddflow.expressions.node import COLUMN, Node, Refusal, TextTooLarge, accept_scalars, build_compute_node
from ddflow.expressions.types import BOOL, DATE, DOUBLE, INSTANT, INT32, INT64, MOST_DIGITS, STRING, WALL

MOST_LEVELS: Final = 16
"""Maximum depth of a shape."""
_STEP: Final = re.compile(r"\.([^.\[\]'\s](?:[^.\[\]]*[^.\[\]\s])?)|\['([^'?]+)'\]|\[([0-9]{1,9})\]")
_WORD: Final = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_0-9]+|[<>(),:])")
_KINDS: Final = {
    **dict.fromkeys(("INT", "INTEGER"), INT32),
    **dict.fromkeys(("BIGINT", "LONG"), INT64),
    "DOUBLE": DOUBLE,
    "STRING": STRING,
    "BOOLEAN": BOOL,
    "DATE": DATE,
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ"), INSTANT),
    "TIMESTAMP_NTZ": WALL,
}


def _build_text_array(name: str, values: Sequence[str | None]) -> pa.Array:
    """Build a column of texts. Unicode surrogates without a partner become question marks. Raises TextTooLarge."""
    encoded = [None if value is None else value.encode("utf-8", "replace") for value in values]
    total = sum(len(each) for each in encoded if each is not None)
    if total > COLUMN:
        made = f"{total:,} bytes for {len(values):,} rows"
        raise TextTooLarge(f"{name} would produce {made}, but a column of a batch holds {COLUMN:,}")
    return pa.array(encoded, pa.binary()).cast(STRING)


@sql_function("get_json_object", takes=[cast_argument_to_text, build_text_reader("the path of get_json_object")])
def get_json_object(node: Node, path: str) -> Node:
    """Read the value at a path, or null if there is no value.

    A text is returned unchanged. Every other value is returned as JSON. A path is ``$``, followed by steps such as
    ``.name``, ``['name']`` and ``[n]``.
    """
    steps = _parse_path(path)

    def find_text(text: str | None) -> str | None:
        value = BAD if text is None else parse_json(text)
        if value is BAD or value is NOTHING:
            return None
        value = _find_value_at_path(value, steps) if steps else value
        if value is BAD:
            return None
        return str(value) if isinstance(value, str) and not isinstance(value, JsonNumber) else write_json(value)

    def compute(values: pa.Array) -> pa.Array:
        return _build_text_array("get_json_object", list(map(find_text, values.to_pylist())))

    return build_compute_node(accept_scalars(compute), node, fallible=True)


def _parse_path(path: str) -> list[str | int]:
    """Split a path into its steps. Raises Refusal for an invalid path."""
    found, at = list[str | int](), 1
    while at < len(path) and path[0] == "$":
        step = _STEP.match(path, at)
        if step is None:
            break
        found.append(int(step[3]) if step[3] is not None else step[1] or step[2])
        at = step.end()
    if path[:1] != "$" or at < len(path):
        remedy = "write $, then .name, ['name'] or [n]; for all elements of a list, unnest it"
        raise Refusal(f"{path!r} is not a path that get_json_object accepts", remedy)
    return found


def _find_value_at_path(value: Any, steps: Sequence[str | int]) -> Any:
    """Find the value at a path. Return `BAD` if the value is missing or null.

    If an object has several equal names, the first value that is not null is used.
    """
    for place, step in enumerate(steps):
        if isinstance(step, int):
            if isinstance(value, JsonObject) or not isinstance(value, list) or step >= len(value):
                return BAD
            value = value[step]
        else:
            named = [each for name, each in value if name == step] if isinstance(value, JsonObject) else []
            if len(named) > 1:
                return next(
                    (it for each in named if (it := _find_value_at_path(each, steps[place + 1 :])) is not BAD), BAD
                )
            value = named[0] if named else None
        if value is None:
            return BAD
    return BAD if value is None else value


@sql_function("from_json", takes=[cast_argument_to_text, build_text_reader("the shape of from_json")])
def from_json(node: Node, shape: str) -> Node:
    """Parse a text into a struct. A text that is not an object gives a struct of nulls.

    An empty text or null gives null.

    A shape is a text such as ``a INT, b STRING`` or ``struct<a: int>``. The plain types are
    ``int bigint double decimal(p,s) string boolean date timestamp timestamp_ntz``. A shape can also contain
    ``array<...>`` of plain types, and ``struct<...>``. A text never becomes a number. A number becomes a text only if
    the shape says ``string``.
    """
    kind = _ShapeParser(shape).parse()

    def compute(values: pa.Array) -> pa.Array:
        given = [None if each is None else parse_json(each, strict=True) for each in values.to_pylist()]
        objects = [None if each is None or each is NOTHING else each for each in given]
        present = [each if each is None or isinstance(each, JsonObject) else JsonObject() for each in objects]
        return _build_column(present, kind)

    return build_compute_node(accept_scalars(compute), node, fallible=True)


def _build_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build a column of type ``kind`` from parsed values. A value of another type gives null. O(values)."""
    if pat.is_struct(kind):
        objects = [_map_fields(each, kind) if isinstance(each, JsonObject) else None for each in values]
        children = [
            _build_column([None if each is None else each.get(field.name) for each in objects], field.type)
            for field in kind
        ]
        gone = pa.array([each is None for each in objects], BOOL)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=gone)
    if pat.is_list(kind):
        return _build_list_column(values, kind)
    if pat.is_decimal(kind):
        return parse_decimal_texts(
            _build_text_array("from_json", list(map(_text_or_none, values))), kind.precision, kind.scale
        )
    return _SCALARS[kind](values)


def _map_fields(pairs: JsonObject, kind: pa.DataType) -> dict[str, Any]:
    """Map an object's values by name.

    If an object has several equal names, the last value that fits the type of the field counts.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        for field in kind:
            named = [value for name, value in pairs if name == field.name]
            fitting = (
                each for each in reversed(named) if each is None or _build_column([each], field.type)[0].is_valid
            )
            found[field.name] = next(fitting, None)
    return found


def _build_list_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build a column of lists. A list that holds a value of another type gives null."""
    lists = [each if isinstance(each, list) and not isinstance(each, JsonObject) else None for each in values]
    flat = [each for some in lists for each in some or ()]
    elements = _build_column(flat, kind.value_type)
    ends = np.concatenate([[0], np.cumsum([len(some or ()) for some in lists], dtype=np.int64)])
    lost = np.asarray(elements.is_null()) & np.array([each is not None for each in flat], bool)
    losses = np.concatenate([[0], np.cumsum(lost)])
    gone = np.array([some is None for some in lists], bool) | (losses[ends[1:]] > losses[ends[:-1]])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), elements, type=kind, mask=pa.array(gone))


def _build_integers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    most = 2 ** (kind.bit_width - 1)
    wholes = [int(each) if isinstance(each, JsonNumber) and each.whole and len(each) < 30 else None for each in values]
    return pa.array([each if each is not None and -most <= each < most else None for each in wholes], kind)


def _build_doubles(values: Sequence[Any]) -> pa.Array:
    """Read numbers, and the texts that stand for NaN and infinity. JSON has no numbers for NaN and infinity."""
    special = {"NaN": "nan", "Infinity": "inf", "+INF": "inf", "INF": "inf", "-Infinity": "-inf", "-INF": "-inf"}
    texts = (each if isinstance(each, JsonNumber) else special.get(each or "") for each in map(_text_or_none, values))
    return pa.array([None if each is None else float(each) for each in texts], DOUBLE)


def _build_strings(values: Sequence[Any]) -> pa.Array:
    def format_value(value: Any) -> str | None:
        if isinstance(value, JsonNumber):
            return format_number(value).strip('"')
        return value if value is None or isinstance(value, str) else write_json(value)

    return _build_text_array("from_json", list(map(format_value, values)))


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _build_non_number_texts(values: Sequence[Any]) -> pa.Array:
    """Build a column that keeps the texts of ``values``. Numbers and other values give null."""
    return _build_text_array(
        "from_json", [None if isinstance(each, JsonNumber) else _text_or_none(each) for each in values]
    )


def _build_timestamps(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Read timestamps from texts. Read instants also from integers, which count seconds."""
    moments = parse_timestamps(_build_non_number_texts(values), kind)
    if kind == WALL:
        return moments
    seconds = np.asarray(_build_integers(values, INT64).fill_null(0))
    numbers = np.array([isinstance(each, JsonNumber) and each.whole for each in values], bool)
    fits = numbers & (np.abs(seconds) < 2**63 // 1_000_000)
    instants = pa.array(np.where(fits, seconds, 0) * 1_000_000, mask=~fits).cast(kind)
    return pc.coalesce(moments, instants)


_SCALARS: Final[dict[pa.DataType, Callable[[Sequence[Any]], pa.Array]]] = {
    INT32: partial(_build_integers, kind=INT32),
    INT64: partial(_build_integers, kind=INT64),
    DOUBLE: _build_doubles,
    STRING: _build_strings,
    BOOL: lambda values: pa.array([each if isinstance(each, bool) else None for each in values], BOOL),
    DATE: lambda values: parse_dates(_build_non_number_texts(values)),
    INSTANT: partial(_build_timestamps, kind=INSTANT),
    WALL: partial(_build_timestamps, kind=WALL),
}


class _ShapeParser:
    """A parser of the shape argument of ``from_json``. A shape is a list of columns as in DDL, or ``struct<...>``."""

    def __init__(self, text: str) -> None:
        self.text, self.words, at = text, list[str](), 0
        while at < len(text.rstrip()):
            found = _WORD.match(text, at)
            if found is None or len(text) > 100_000:
                raise self._build_shape_refusal(text[at : at + 20])
            self.words.append(found[1])
            at = found.end()

    def parse(self) -> pa.DataType:
        """Parse the shape. Raises Refusal for an invalid shape and for an unsupported type."""
        self.words.reverse()
        if [word.upper() for word in self.words[-2:]] == ["<", "STRUCT"]:
            kind = self._parse_type(0)
        else:
            kind = self._parse_struct("", 0)
        if self.words:
            raise self._build_shape_refusal(self.words[-1])
        return kind

    def _parse_struct(self, end: str, level: int) -> pa.DataType:
        fields = list[tuple[str, pa.DataType]]()
        while not fields or self._skip_word(","):
            name = self._next_word()
            if not re.fullmatch(r"`.+`|\w+", name):
                raise self._build_shape_refusal(name)
            self._skip_word(":")
            fields.append((name[1:-1].replace("``", "`") if name[0] == "`" else name, self._parse_type(level + 1)))
        if end and self._next_word() != end:
            raise self._build_shape_refusal(self.text)
        if len({name for name, _ in fields}) < len(fields):
            raise Refusal(f"the shape {self.text!r:.200} names a field twice", "use each field name once")
        return pa.struct(fields)

    def _parse_type(self, level: int) -> pa.DataType:
        if level > MOST_LEVELS:
            raise Refusal(f"the shape has more than {MOST_LEVELS} levels", "read inner levels as STRING")
        name = self._next_word().upper()
        if name == "STRUCT" and self._skip_word("<"):
            return self._parse_struct(">", level)
        if name == "ARRAY" and self._skip_word("<"):
            element = self._parse_type(level + 1)
            if self._next_word() != ">" or pat.is_nested(element):
                raise Refusal(f"an array of {element} in a shape is not supported", "use arrays of plain types")
            return pa.list_(element)
        if name in ("DECIMAL", "DEC", "NUMERIC"):
            return self._parse_decimal()
        if name not in _KINDS:
            known = ", ".join([*dict.fromkeys(_KINDS), "DECIMAL(p,s)", "ARRAY<...>", "STRUCT<...>"])
            raise Refusal(f"{name} in the shape of from_json is not supported", f"the types are {known}")
        return _KINDS[name]

    def _parse_decimal(self) -> pa.DataType:
        digits = [10, 0]
        if self._skip_word("("):
            digits = [self._parse_digits(), self._parse_digits() if self._skip_word(",") else 0]
            if self._next_word() != ")":
                raise self._build_shape_refusal(self.text)
        if not 0 <= digits[1] <= digits[0] <= MOST_DIGITS or not digits[0]:
            raise Refusal(
                f"decimal({digits[0]},{digits[1]}) is not a type",
                "use 1 to 38 digits, and no greater scale than digits",
            )
        return pa.decimal128(*digits)

    def _parse_digits(self) -> int:
        word = self._next_word()
        return int(word) if word.isdecimal() and len(word) < 4 else 99

    def _next_word(self) -> str:
        if not self.words:
            raise self._build_shape_refusal("its end")
        return self.words.pop()

    def _skip_word(self, word: str) -> bool:
        found = bool(self.words) and self.words[-1] == word
        if found:
            self.words.pop()
        return found

    def _build_shape_refusal(self, place: str) -> Refusal:
        found = f"the shape {self.text!r:.200} of from_json does not parse at {place!r:.40}"
        return Refusal(found, "write 'a INT, b STRING', with types as in casts")
