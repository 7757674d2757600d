"""Which type a column of text is, where a file does not say: CSV fields, and what is quoted in JSON.

Invariant: a guess never loses anything of the values it was made from.  A whole number too large for int64 becomes
uint64 or a decimal, never a rounded float; a number written as no number is (``007``, ``+1``, ``0x10``) stays text,
since it may be a code; what has one value that does not fit stays text; so does a column without a value.  Why that
is not trivial: keys are guessed too, and two keys that are rounded, or stripped of a zero, to the same value become
one row in silence. Dates and times are ISO 8601.  The guess is made from a sample (``SAMPLE`` bytes of the first
file); a value further on that does not fit is an error where it is read.

>>> [str(guess(pa.array(texts))) for texts in (["1", None, "-7"], ["1", "2.5e3"], ["007", "7"], [str(2**64 - 1)])]
['int64', 'double', 'string', 'uint64']
>>> [str(guess(pa.array([text]))) for text in ("2024-02-29", "2024-02-30", "2024-02-29 12:00", "2024-02-29T12:00Z")]
['date32[day]', 'string', 'timestamp[us]', 'timestamp[us, tz=UTC]']
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

SAMPLE: Final = 2 << 20
"""Bytes of a text file that are looked at, and parsed at a time."""

_WHOLE = r"^(0|-?[1-9]\d*)$"
_NUMBER = r"^(-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?|nan|NaN|-?inf|-?Infinity)$"
_BOOLEAN = r"^(true|True|TRUE|false|False|FALSE)$"
_DATE = r"^\d{4}-\d\d-\d\d$"
_CLOCK = r"\d\d:\d\d(:\d\d(\.\d{1,9})?)?"
_TIME = r"^\d\d:\d\d:\d\d(\.\d{1,6})?$"
_STAMP = rf"^\d{{4}}-\d\d-\d\d([T ]{_CLOCK})?$"
_ZONED = rf"^\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(Z|[+-]\d\d(:?\d\d)?)$"
_FINE = r"\.\d{7,9}"


def guess(texts: pa.Array) -> pa.DataType:
    """The type of a column of texts; null counts for nothing.  O(n)."""
    present = texts.drop_null()
    if not len(present):
        return pa.string()
    if _all(present, _WHOLE):
        return whole_type(present)
    if _all(present, _NUMBER):
        return pa.float64()
    if _all(present, _BOOLEAN):
        return pa.bool_()
    if _all(present, _TIME) and not _any(present, r"^(2[4-9]|[3-9])|:[6-9]"):
        return pa.time64("us")
    return guess_moment(present)


def guess_moment(texts: pa.Array) -> pa.DataType:
    """A date's or timestamp's type if all texts are of it, else text."""
    present = texts.drop_null()
    if not len(present):
        return pa.string()
    unit = "ns" if _any(present, _FINE) else "us"
    for pattern, kind in ((_DATE, pa.date32()), (_STAMP, pa.timestamp(unit)), (_ZONED, pa.timestamp(unit, "UTC"))):
        if _all(present, pattern):
            try:
                present.cast(kind)
            except pa.ArrowInvalid:  # the 30th of February
                return pa.string()
            return kind
    return pa.string()


def whole_type(numbers: pa.Array) -> pa.DataType:
    """The narrowest of int64, uint64 and decimal that holds whole numbers, given as text or decimals; else text."""
    if pat.is_string(numbers.type) and _any(numbers, r"\d{39}"):  # Arrow's cast lets these through
        return pa.string()
    for kind in (pa.int64(), pa.uint64(), pa.decimal128(38, 0)):
        try:
            numbers.cast(kind)
        except pa.ArrowInvalid:
            continue
        return kind
    return pa.string()


def settled(kind: pa.DataType) -> pa.DataType:
    """What Arrow's JSON reader inferred, without what the next lines may contradict: times and nulls as text."""
    if pat.is_struct(kind):
        return pa.struct([field.with_type(settled(field.type)) for field in kind])
    if pat.is_list(kind):
        return pa.list_(settled(kind.value_type))
    return pa.string() if pat.is_timestamp(kind) or pat.is_null(kind) else kind


def _all(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _any(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())
