"""How the values of a type are spelled in text: one pattern a type, for guesses and for what comes later.

Invariant: texts become values only if each matches its type's pattern, and means exactly the value that it becomes.
Arrow's parsers take `` 7``, ``007``, ``0x7`` and 17 digits of a double as well, and one code that is read as a number
overwrites another one's row. A column whose type the user declared does not come here: that is a wish to convert.

A number has no sign ``+``, no zeros in front, no spaces.  A double has 15 significant digits at most, which it keeps
all, and neither overflows nor underflows.  Decimals have no exponent.

>>> values(pa.array(["7", None, "-12"]), pa.int64()).to_pylist()
[7, None, -12]
>>> for text, kind in (("007", pa.int64()), ("0.1234567890123456", pa.float64()), ("2024-02-30", pa.date32())):
...     try:
...         values(pa.array([None, text]), kind)
...     except Misspelled as error:
...         print(error.row)
1
1
1
"""

from bisect import bisect_left
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.schema import is_text
from ddflow.connectors.files.forms import USUAL, Forms
from ddflow.connectors.files.wire import restored
from ddflow.expressions.types import is_number

EXACT: Final = 15
"""So many significant digits every double keeps."""

_NUMBER: Final = r"^(-?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?|nan|NaN|-?inf|-?Infinity)$"
_NOUGHT: Final = r"^(-?0*\.?0*([eE].*)?|[nN].*|-?[iI].*)$"
_BOOLEAN: Final = pa.array(["true", "True", "TRUE", "false", "False", "FALSE", None])
_DECLARED: Final = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)$"
_TIME: Final = r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?$"


class Misspelled(Exception):
    """Text that is no value of the type.  ``row``: its row."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


def values(texts: pa.Array, kind: pa.DataType, shortest: bool = False, forms: Forms = USUAL) -> pa.Array:
    """Convert texts to values of a type; null is null.  Raises `Misspelled` for an invalid text.  O(n).

    ``shortest``: a double of more digits may have the shortest text that is its own, as programs write it.
    """
    texts = forms.usual(texts, kind)
    if pat.is_boolean(kind):
        _check(pc.is_in(texts, value_set=_BOOLEAN))
    elif (spelled := _pattern(kind)) is not None:
        _check(pc.match_substring_regex(texts, spelled))
    found = _cast(texts, kind)
    if pat.is_integer(kind) or pat.is_duration(kind):
        # There is one way to write a whole number.
        _check(
            pc.equal(
                found.cast(pa.int64()).cast(pa.string()) if pat.is_duration(kind) else found.cast(pa.string()), texts
            )
        )
    elif pat.is_float64(kind):
        _check_exact(texts, found, shortest)
    return found


def converted(texts: pa.Array, kind: pa.DataType, forms: Forms = USUAL) -> pa.Array:
    """Convert texts to a declared type by Arrow's rules, without the spaces around them.  O(n).

    A number may have a sign, leading and trailing zeros, and an exponent, if the type holds it; floats are rounded to
    the nearest. Raises `Misspelled` for a text that cannot be converted.
    """
    if is_text(kind):
        return _cast(texts, kind)
    texts = forms.usual(pc.utf8_trim_whitespace(texts), kind)
    if is_number(kind):
        _check(pc.match_substring_regex(texts, _DECLARED))
        texts = pc.replace_substring_regex(texts, r"^\+", "")
    return _cast(texts, kind)


def _pattern(kind: pa.DataType) -> str | None:
    """Return a regular expression that every value of a type matches; None if Arrow's cast is strict enough.

    Arrow reads one form of dates and timestamps: ISO 8601, without spaces around. `Forms` converts others to it.
    """
    if pat.is_floating(kind):
        return _NUMBER
    if pat.is_decimal(kind):
        before, after = kind.precision - kind.scale, kind.scale
        whole = rf"[1-9]\d{{0,{before - 1}}}"
        if after <= 0:
            return rf"^(0|-?{whole})$"
        return rf"^-?{rf'(0|{whole})' if before > 0 else '0'}(\.\d{{1,{after}}})?$"
    return _TIME if pat.is_time(kind) else None


def _check(good: pa.BooleanArray) -> None:
    row = pc.index(good, False).as_py()
    if row >= 0:
        raise Misspelled(row)


def fits(texts: pa.Array, kind: pa.DataType, shortest: bool = False, forms: Forms = USUAL) -> bool:
    """Return whether all texts spell values of a type, as in `values`.  O(n)."""
    try:
        values(texts, kind, shortest, forms)
    except Misspelled:
        return False
    return True


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return restored(texts, kind)
    except (pa.ArrowException, ValueError):
        row = bisect_left(range(len(texts)), True, key=lambda n: _fails(texts.slice(0, n + 1), kind))
        raise Misspelled(row) from None


def _fails(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        restored(texts, kind)
    except (pa.ArrowException, ValueError):
        return True
    return False


def _check_exact(texts: pa.Array, found: pa.Array, shortest: bool) -> None:
    """Raise `Misspelled` for a text of more digits than a double keeps, or beyond its range."""
    rows = np.flatnonzero(pc.fill_null(pc.greater(pc.binary_length(texts), EXACT), False))
    if len(rows):
        digits = _digits(texts.take(pa.array(rows)))
        many = np.asarray(pc.greater(pc.binary_length(digits), EXACT))
        if shortest and many.any():
            own = _digits(found.take(pa.array(rows)).cast(pa.string()))
            many &= np.asarray(pc.not_equal(*(pc.utf8_rtrim(each, "0") for each in (digits, own))))
        if len(rows := rows[many]):
            raise Misspelled(int(rows[0]))
    size, limits = np.abs(np.asarray(found.fill_null(1.0))), np.finfo(np.float64)
    rows = np.flatnonzero(~((size >= limits.smallest_normal) & (size <= limits.max)))
    if len(rows):
        some = texts.take(pa.array(rows))
        shown = found.take(pa.array(rows)).cast(pa.string())
        own = pc.equal(*(pc.utf8_rtrim(_digits(each), "0") for each in (some, shown)))  # of a small one
        meant = pc.or_(pc.match_substring_regex(some, _NOUGHT), own)
        if len(rows := rows[~np.asarray(meant)]):
            raise Misspelled(int(rows[0]))


def _digits(texts: pa.Array) -> pa.Array:
    """Return the significant digits of numbers, with trailing zeros."""
    return pc.utf8_ltrim(pc.replace_substring_regex(texts, "[eE].*|[-.]", ""), "0")
