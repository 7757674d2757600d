"""``date_format``: a timestamp as text, by a pattern of Java's letters.

Invariant: a pattern gives what Spark gives in the zone UTC and the locale en-US, or is refused with the letters that
are not supported here; years are those of four digits. A pattern is compiled once, to one text a letter, joined.

    y yy yyyy   year            H HH   hour 0-23      S to SSSSSSSSS   fraction of a second
    M MM        month           h hh   hour 1-12      E EEEE           Wed, Wednesday
    MMM MMMM    Jan, January    K KK   hour 0-11      D DDD            day of the year
    d dd        day             k kk   hour 1-24      Q QQ             quarter
    a           AM, PM          m mm s ss             X, twice, three times   Z, the zone

Text stands in quotes (``'T'``; two quotes are one); other characters that are no letters stand for themselves.

>>> import datetime
>>> from ddflow.expressions.node import constant
>>> noon = constant(pa.scalar(datetime.datetime(2024, 2, 29, 12, 5)))
>>> TABLE.entries["date_format"].call([noon, constant(pa.scalar("EEE d MMM yyyy, h:mm a"))]).constant
<pyarrow.StringScalar: 'Thu 29 Feb 2024, 12:05 PM'>
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.casts import wall
from ddflow.expressions.node import Node, Refusal, apply, on_arrays
from ddflow.expressions.room import fits
from ddflow.expressions.table import Table, literal, moment
from ddflow.expressions.types import INT64, STRING

TABLE = Table()
Part = Callable[[pa.Array], pa.Array]
_LONGEST: Final = 12
"""Bytes that a letter becomes, at most: those of September, with some to spare."""
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _number(part: Part, width: int = 1) -> Part:
    return lambda values: pc.utf8_lpad(part(values).cast(STRING), width, "0")


def _pick_name(part: Part, names: Sequence[str]) -> Part:
    return lambda values: pa.array(names).take(part(values))


def _hours(*hours: int) -> Part:
    return lambda values: pa.array(hours * (24 // len(hours))).take(pc.hour(values))


def _fraction(digits: int) -> Part:
    def part(values: pa.Array) -> pa.Array:
        micros = np.asarray(pc.fill_null(values.cast(INT64), 0)) % 1_000_000
        text = pc.utf8_lpad(pa.array(micros * 1000).cast(STRING), 9, "0")
        return pc.if_else(values.is_valid(), pc.utf8_slice_codeunits(text, 0, digits), pa.scalar(None, STRING))

    return part


def _text(text: str) -> Part:
    return lambda values: pc.if_else(values.is_valid(), pa.scalar(text, STRING), pa.scalar(None, STRING))


def _month(values: pa.Array) -> pa.Array:
    return pc.subtract(pc.month(values), 1)


_YEAR: Final = _number(pc.year, 4)
_PARTS: Final[dict[str, Part]] = {
    "y": _number(pc.year),
    "yy": lambda values: pc.utf8_slice_codeunits(_YEAR(values), 2, 4),
    "yyyy": _YEAR,
    **{letter * width: _number(pc.month, width) for letter in "ML" for width in (1, 2)},
    **{letter * 3: _pick_name(_month, [name[:3] for name in _MONTHS]) for letter in "ML"},
    **{letter * 4: _pick_name(_month, _MONTHS) for letter in "ML"},
    "d": _number(pc.day),
    "dd": _number(pc.day, 2),
    "D": _number(pc.day_of_year),
    "DDD": _number(pc.day_of_year, 3),
    **dict.fromkeys(("E", "EE", "EEE"), _pick_name(pc.day_of_week, [name[:3] for name in _DAYS])),
    "EEEE": _pick_name(pc.day_of_week, _DAYS),
    "Q": _number(pc.quarter),
    "QQ": _number(pc.quarter, 2),
    "a": _pick_name(pc.hour, ["AM"] * 12 + ["PM"] * 12),
    **{"H" * width: _number(pc.hour, width) for width in (1, 2)},
    **{"h" * width: _number(_hours(12, *range(1, 12)), width) for width in (1, 2)},
    **{"K" * width: _number(_hours(*range(12)), width) for width in (1, 2)},
    **{"k" * width: _number(_hours(24, *range(1, 24)), width) for width in (1, 2)},
    **{"m" * width: _number(pc.minute, width) for width in (1, 2)},
    **{"s" * width: _number(pc.second, width) for width in (1, 2)},
    **{"S" * width: _fraction(width) for width in range(1, 10)},
    **dict.fromkeys(("X" * width for width in (1, 2, 3)), _text("Z")),
}


@TABLE.function("date_format", takes=[moment, literal("the pattern of date_format")])
def date_format(node: Node, pattern: str) -> Node:
    """Format a timestamp as text."""
    parts = _parts(pattern)
    longest = len(pattern.encode()) + _LONGEST * len(parts)

    def compute(values: pa.Array) -> pa.Array:
        fits("date_format", [values], lambda _: float(len(values) * longest))
        least, most = (bound(pc.year(values)).as_py() for bound in (pc.min, pc.max))
        if least is not None and not 0 <= least <= most <= 9999:
            raise pa.ArrowInvalid("date_format of a year that has not four digits")
        plain = wall(values)
        return pc.binary_join_element_wise(*(part(plain) for part in parts), _text("")(plain), "")

    return apply(on_arrays(compute), node, fallible=True)


def _parts(pattern: str) -> list[Part]:
    """Choose a function for each piece of a pattern.  Raises Refusal for letters that are not supported."""
    out: list[Part] = []
    for piece in _pieces(pattern):
        if piece[0] == "'" and len(piece) > 1:
            out.append(_text("'" if piece == "''" else piece[1:-1].replace("''", "'")))
        elif piece in _PARTS:
            out.append(_PARTS[piece])
        elif (piece[0].isalpha() and piece.isascii()) or piece in ("'", "[", "]", "{", "}", "#"):
            known = ", ".join(sorted(each for each in _PARTS if "S" not in each))
            raise Refusal(
                f"{piece!r} in the pattern of date_format is not supported", f"letters are {known}, S; text in ''"
            )
        else:
            out.append(_text(piece))
    return out


def _pieces(pattern: str) -> list[str]:
    """Split a pattern into quoted text, runs of one letter, and single characters.

    >>> _pieces("yyyy-MM'T'''")
    ['yyyy', '-', 'MM', "'T'''"]
    """
    return [found[0] for found in re.finditer(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", pattern, re.DOTALL)]
