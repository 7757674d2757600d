"""Types as text: what ``{"amount": "decimal(12,2)"}`` means, and ``--types 'amount=decimal(12,2)'`` on the shell.

Invariant: a text means one type everywhere, and Arrow's own spelling of a type (``str(type)``) means that type. The
names come from three places (SQL, Arrow, Spark) that agree on most of them. ``int`` has 32 bits as in SQL;
``timestamp`` has no zone, as in the SQL standard; ``timestamptz`` and Spark's ``timestamp_ltz`` are UTC. Nothing is
parsed here but types.

>>> parse_type("bigint"), parse_type("decimal(12, 2)"), parse_type("timestamp[ms, tz=Europe/Zurich]")
(DataType(int64), Decimal128Type(decimal128(12, 2)), TimestampType(timestamp[ms, tz=Europe/Zurich]))
>>> parse_type("timestamp_ltz") == parse_type("timestamptz")
True
>>> parse_type("list<struct<at: date, tags: list<string>>>")
ListType(list<item: struct<at: date32[day], tags: list<item: string>>>)
>>> parse_types(["id=int64,total=decimal(12,2)"])["total"]
Decimal128Type(decimal128(12, 2))
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

import pyarrow as pa

from ddflow.errors import SpecError

_SQL: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "real": pa.float32(),
    "text": pa.string(),
    "varchar": pa.string(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "bytes": pa.binary(),
    "timestamp": pa.timestamp("us"),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_tz": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "decimal": pa.decimal128(38, 0),
    "date32[day]": pa.date32(),
    "date64[ms]": pa.date64(),
    "halffloat": pa.float16(),
}
_ARROW: Final = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "float",
    "double",
    "string",
    "large_string",
    "binary",
    "large_binary",
    "date32",
    "date64",
    *(f"{kind}[{unit}]" for kind in ("timestamp", "duration") for unit in ("s", "ms", "us", "ns")),
    "time32[s]",
    "time32[ms]",
    "time64[us]",
    "time64[ns]",
)
_DECIMAL = re.compile(r"(?:decimal|numeric|decimal(128|256))\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?([\w/+:-]+)\]")
_FIXED_LIST = re.compile(r"fixed_size_list<(.*)>\[(\d+)\]")
_FIXED = re.compile(r"fixed_size_binary\[(\d+)\]")


def parse_type(text: str) -> pa.DataType:
    """Parse the name of a type.  Raises `SpecError`, naming the nearest name.  O(length)."""
    given = text.strip()
    lower = given.lower()
    if lower in _SQL:
        return _SQL[lower]
    if lower in _ARROW:
        return pa.type_for_alias(lower)
    try:
        return _with_arguments(given, lower)
    except SpecError:
        raise
    except (pa.ArrowInvalid, ValueError) as error:
        raise SpecError(f"type {text!r}", str(error), "give numbers that the type allows") from None


def spelled_type(kind: pa.DataType) -> str:
    """Write a short text that names the type, as `parse_type` reads it.  O(1).

    >>> spelled_type(pa.timestamp("us", "UTC")), spelled_type(pa.decimal128(38, 2)), spelled_type(pa.int64())
    ('timestamptz', 'decimal(38,2)', 'int64')
    """
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    own = str(kind)
    return own if own in _ARROW and "[" not in own else next((n for n, each in _SQL.items() if each == kind), own)


def _with_arguments(given: str, lower: str) -> pa.DataType:
    if match := _DECIMAL.fullmatch(lower):
        digits, scale = int(match[2]), int(match[3] or 0)
        return pa.decimal256(digits, scale) if match[1] == "256" or digits > 38 else pa.decimal128(digits, scale)
    if (match := _ZONED.fullmatch(given)) is not None:
        return pa.timestamp(match[1], match[2])
    if match := _FIXED.fullmatch(lower):
        return pa.binary(int(match[1]))
    if (match := _FIXED_LIST.fullmatch(given)) is not None:
        return pa.list_(parse_type(_strip_field_name(match[1])), int(match[2]))
    name, _, rest = given.partition("<")
    if rest.endswith(">"):
        inner = _split_at_commas(rest[:-1])
        match name.strip().lower():
            case "list" | "array" if len(inner) == 1:
                return pa.list_(parse_type(_strip_field_name(inner[0])))
            case "large_list" if len(inner) == 1:
                return pa.large_list(parse_type(_strip_field_name(inner[0])))
            case "map" if len(inner) == 2:
                return pa.map_(parse_type(inner[0]), parse_type(inner[1]))
            case "struct" if inner:
                return pa.struct([pa.field(column, kind) for column, kind in map(_field, inner)])
    near = get_close_matches(lower, [*_SQL, *_ARROW, "decimal(12,2)", "list<...>", "struct<...>", "map<...>"], 1)
    raise SpecError(
        f"type {given!r}",
        "there is no such type",
        f"did you mean {near[0]!r}?"
        if near
        else f"use one of {', '.join(_ARROW[:15])}, date, timestamp, decimal(12,2), ...",
    )


def _strip_field_name(text: str) -> str:
    """Arrow writes ``list<item: string>``; the name says nothing."""
    return text.split(":", 1)[1] if re.match(r"\s*\w+\s*:", text) else text


def _field(text: str) -> tuple[str, pa.DataType]:
    name, colon, kind = text.partition(":")
    if not colon:
        raise SpecError(f"struct field {text.strip()!r}", "it has no type", "write name: type")
    return name.strip(), parse_type(kind)


def _split_at_commas(text: str) -> list[str]:
    """Parts between commas that are in no bracket.

    >>> _split_at_commas("a=decimal(3,1),b=list<int>")
    ['a=decimal(3,1)', 'b=list<int>']
    """
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "(<[") - (letter in ")>]")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


def parse_types(texts: Iterable[str]) -> dict[str, pa.DataType]:
    """Parse ``column=type`` texts, separated by commas, to types by column.  Raises `SpecError`."""
    out: dict[str, pa.DataType] = {}
    for part in (part for text in texts for part in _split_at_commas(text)):
        column, equals, kind = part.partition("=")
        column = column.strip()
        if not equals or not column:
            raise SpecError(f"types {part.strip()!r}", "it is not column=type", "write for example amount=double")
        if column in out:
            raise SpecError(f"types {part.strip()!r}", f"{column!r} has the type {out[column]} already", "name it once")
        out[column] = parse_type(kind)
    return out
