"""Cells of messages as dates, times and durations: numbers since an epoch, or ISO text.

Invariant: nothing is rounded and no zone is guessed: a number counts units that the schema of its message or the
declared type names, a text has the digits that the declared type holds, and where that has a zone, so has the text. A
text in UTC fits a column without a zone, as the wall clock there. A time is within a day (MySQL has others), and a date
within the years 1 to 9999: numbers outside of them are of another unit than declared, or mean infinity.

>>> timed(pa.array(["1700000000000", None]), pa.timestamp("ms")).to_pylist()
[datetime.datetime(2023, 11, 14, 22, 13, 20), None]
>>> timed(pa.array(["2023-11-14T22:13:20.5Z"]), pa.timestamp("us")).to_pylist()
[datetime.datetime(2023, 11, 14, 22, 13, 20, 500000)]
>>> timed(pa.array(["19675", "2023-11-14Z"]), pa.date32()).to_pylist()
[datetime.date(2023, 11, 14), datetime.date(2023, 11, 14)]
"""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.schema import first_unreal, is_text

NUMBER: Final = r"^-?[0-9]+$"
DAY: Final = 86_400_000


def is_timed(kind: pa.DataType) -> bool:
    """Return whether values are dates, times or durations."""
    return bool(pat.is_temporal(kind))


def timed(cells: pa.Array, kind: pa.DataType, unit: str = "") -> pa.Array:
    """Convert cells, numbers or texts, to a type of time.  ``unit``: of the numbers, by default the type's.  O(n).

    Raises `pyarrow.ArrowInvalid` or `ValueError` for a cell that does not fit.
    """
    made = _convert_times(cells, kind, unit)
    if first_unreal(made) >= 0:
        raise ValueError("no clock or calendar has it")
    return made


def _convert_times(cells: pa.Array, kind: pa.DataType, unit: str) -> pa.Array:
    if pat.is_integer(cells.type):
        return _of_numbers(cells.cast(pa.int64()), kind, unit)
    if not is_text(cells.type):
        return cells.cast(kind)
    try:
        return _of_numbers(cells.cast(pa.int64()), kind, unit)
    except pa.ArrowInvalid:
        pass
    numbers = pc.fill_null(pc.match_substring_regex(cells, NUMBER), True)
    none = pa.scalar(None, cells.type)
    counted = _of_numbers(pc.if_else(numbers, cells, none).cast(pa.int64()), kind, unit)
    return pc.if_else(numbers, counted, _of_text(pc.if_else(numbers, none, cells), kind))


def _of_numbers(numbers: pa.Array, kind: pa.DataType, unit: str) -> pa.Array:
    if pat.is_date32(kind):
        return numbers.cast(pa.int32()).cast(kind)
    if pat.is_date64(kind):
        return pc.multiply_checked(numbers, DAY).cast(kind)
    of: Any = unit or kind.unit
    if pat.is_timestamp(kind):
        return numbers.cast(pa.timestamp(of, kind.tz)).cast(kind)
    if pat.is_duration(kind):
        return numbers.cast(pa.duration(unit or "us")).cast(kind)
    if of in ("s", "ms"):
        return numbers.cast(pa.int32()).cast(pa.time32(of)).cast(kind)
    return numbers.cast(pa.time64(of)).cast(kind)


def _of_text(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if pat.is_time(kind):
        whole = pc.binary_join_element_wise("1970-01-01", pc.replace_substring_regex(text, "Z$", ""), "T")
        return whole.cast(pa.timestamp(kind.unit)).cast(kind)
    if not pat.is_timestamp(kind):
        return pc.replace_substring_regex(text, "Z$", "").cast(kind)
    zoned = pc.match_substring_regex(text, r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)$")
    zoned = pc.and_(zoned, pc.match_substring(text, ":"))  # the end of a bare date looks like an offset
    if kind.tz is None:
        if not pc.any(zoned).as_py():
            return text.cast(kind)
        whole = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
        return whole.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
    return text.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
