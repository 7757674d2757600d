"""Parse and write JSON text like Jackson, the JSON library of Spark.

Guarantees: `parse_json` returns the first value of a text, and ignores any text after that value. For a text that is
not JSON, `parse_json` returns `BAD`. A parsed number keeps its text, and a parsed object keeps all its pairs in order.
Numbers with a fraction or exponent are written as Java writes doubles: ``1.50`` as ``1.5`` and ``1e3`` as ``1000.0``.
Limits: text nested deeper than `MOST_NESTED` gives `BAD` (Spark stops at 1,000 levels). Text longer than `MOST_TEXT` is
an error.

>>> parse_json('{"a": [1, {"b": "x"}]} and more')
[('a', ['1', [('b', 'x')]])]
>>> parse_json('{"a": 1') is BAD, parse_json("{'a': null}"), parse_json(" ") is NOTHING
(True, [('a', None)], True)
>>> write_json(parse_json('{"a" : [1.50, true, "\\\\u00e9"]}'))
'{"a":[1.5,true,"é"]}'
"""

import re
from decimal import Decimal
from json import JSONDecoder
from typing import Any, Final

import pyarrow as pa

from ddflow.aside import run_on_new_stack

MOST_NESTED: Final = 200
"""Maximum depth of a JSON text. Text that is nested deeper gives `BAD`, because Python's scanner recurses in C."""
MOST_TEXT: Final = 20_000_000
"""Maximum number of characters of a text."""
BAD: Final = object()
"""The result of `parse_json` for a text that is not JSON."""
NOTHING: Final = object()
"""The result of `parse_json` for an empty text."""
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_TOKEN: Final = re.compile(rf"{_STRING}|'(?:[^'\\]|\\.)*'", re.DOTALL)
_BRACKET: Final = re.compile(rf"{_STRING}|'(?:[^'\\]|\\.)*'|[\[{{]|[\]}}]", re.DOTALL)
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f\U00010000-\U0010ffff]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


class JsonNumber(str):
    """The text of a number. ``whole``: whether the text has neither a fraction nor an exponent."""

    __slots__ = ()
    whole = False


class JsonInteger(JsonNumber):
    """The text of an integer."""

    __slots__ = ()
    whole = True


class JsonObject(list[tuple[str, Any]]):
    """The pairs of an object."""

    __slots__ = ()


def _refuse_constant(name: str) -> JsonNumber:
    raise ValueError(name)


def _build_decoder(strict: bool, nan: Any) -> JSONDecoder:
    return JSONDecoder(
        object_pairs_hook=JsonObject, parse_int=JsonInteger, parse_float=JsonNumber, parse_constant=nan, strict=strict
    )


_LOOSE: Final = _build_decoder(False, _refuse_constant)
_STRICT: Final = _build_decoder(True, JsonNumber)


def parse_json(text: str, strict: bool = False) -> Any:
    """Parse a JSON text. Return the value, `BAD` for text that is not JSON, or `NOTHING` for an empty text. O(text).

    The value consists of lists, pairs and texts. Numbers stay texts. ``strict``: whether to refuse control characters
    in texts and accept ``NaN`` as a number, as ``from_json`` does. Raises ArrowInvalid for a text longer than
    `MOST_TEXT`.
    """
    if len(text) > MOST_TEXT:
        raise pa.ArrowInvalid(f"a JSON text has {len(text):,} characters, but the limit is {MOST_TEXT:,}")
    begin = len(text) - len(text.lstrip(" \t\r\n"))
    if begin == len(text):
        return NOTHING
    if text.count("[") + text.count("{") > MOST_NESTED and _count_nesting_levels(text) > MOST_NESTED:
        return BAD
    try:
        return _decode_json_text(text, begin, strict)
    except RecursionError:  # the caller's stack is deep
        return run_on_new_stack(lambda: _decode_json_text(text, begin, strict))


def _decode_json_text(text: str, begin: int, strict: bool) -> Any:
    decoder = _STRICT if strict else _LOOSE
    try:
        value, end = decoder.raw_decode(text, begin)
    except ValueError:
        if "'" not in text:
            return BAD
        try:
            value, end = decoder.raw_decode(text := _TOKEN.sub(_to_double_quotes, text), begin)
        except ValueError:
            return BAD
    loose = isinstance(value, JsonNumber | bool | None) and text[end : end + 1].strip(" \t\r\n,]}")
    return BAD if loose else value


def _to_double_quotes(found: re.Match[str]) -> str:
    """Convert a matched JSON string from single quotes to double quotes."""
    if found[0][0] == '"':
        return found[0]
    marks = {"\\'": "'", '"': '\\"'}
    inner = re.sub(r'\\.|"', lambda each: marks.get(each[0], each[0]), found[0][1:-1], flags=re.DOTALL)
    return f'"{inner}"'


def _count_nesting_levels(text: str) -> int:
    """Count the levels of nested brackets. Brackets in quoted texts do not count."""
    deepest = level = 0
    for found in _BRACKET.finditer(text):
        mark = found[0]
        if mark in "[{":
            level += 1
            deepest = max(deepest, level)
        elif mark in "]}":
            level -= 1
    return deepest


def write_json(value: Any) -> str:
    """Write a value as JSON text without blanks. O(value)."""
    try:
        return _write_value(value)
    except RecursionError:
        return run_on_new_stack(lambda: _write_value(value))


def _write_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, JsonNumber):
        return format_number(value)
    if isinstance(value, str):
        return f'"{_ESCAPED.sub(_escape_letter, value)}"'
    if isinstance(value, JsonObject):
        return f"{{{','.join(f'{_write_value(name)}:{_write_value(each)}' for name, each in value)}}}"
    return f"[{','.join(map(_write_value, value))}]"


def _escape_letter(found: re.Match[str]) -> str:
    letter = found[0]
    if letter in _SHORT:
        return _SHORT[letter]
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def format_number(number: JsonNumber) -> str:
    """Format a number like Jackson."""
    if number.whole:
        return "0" if number == "-0" else str(number)
    value = float(number)
    if value in (float("inf"), float("-inf")):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return format_double(value)


def format_double(value: float) -> str:
    """Format a finite double like Java 19. For some doubles, Java versions before 19 write more digits than needed.

    >>> format_double(0.001), format_double(1e7), format_double(-1.25e-9), format_double(-0.0)
    ('0.001', '1.0E7', '-1.25E-9', '-0.0')
    """
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, point = "".join(map(str, digits)), len(digits) - 1 + exponent
    if value == 0:
        text, point = "0", 0
    if -3 <= point < 7:
        whole = text[: point + 1].ljust(point + 1, "0") if point >= 0 else "0"
        fraction = text[point + 1 :] if point >= 0 else "0" * (-point - 1) + text
        body = f"{whole}.{fraction or '0'}"
    else:
        body = f"{text[0]}.{text[1:] or '0'}E{point}"
    return f"-{body}" if sign else body
