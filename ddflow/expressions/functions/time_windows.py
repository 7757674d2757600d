"""Compute windows of time: the half-open ranges [start, end) of one length that contain a timestamp.

Windows begin every ``slide``, counted from 1970-01-01 00:00 UTC plus ``start``. Without a slide, windows *tumble*: a
timestamp is in one window. With a shorter slide, windows *hop*: a timestamp is in several windows. Sessions depend on
several rows, so `ddflow.operators.window` computes them.

Guarantees: as in Spark, a window is a struct ``start, end`` with the type of the timestamp. A null timestamp is in no
window. Windows that hop are a list, and the list has an element for each window.
Limits: lengths are the same for all rows, and have no months, because months differ in length.

>>> import datetime as dt
>>> from ddflow.expressions.node import constant
>>> at = constant(pa.scalar(dt.datetime(2024, 2, 29, 9, 7)))
>>> [str(each.time()) for each in build_window(at, 600_000_000).constant.as_py().values()]
['09:00:00', '09:10:00']
>>> found = build_window(at, 600_000_000, 300_000_000).constant.as_py()
>>> [str(each["window"]["start"].time()) for each in found]
['09:00:00', '09:05:00']
"""

from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.expressions.functions.table import cast_argument_to_timestamp, keep_argument, sql_function
from ddflow.expressions.intervals import Interval, parse_interval, shift_by_interval
from ddflow.expressions.node import Node, Refusal, accept_scalars, build_compute_node
from ddflow.expressions.types import INT64, STRING, is_duration, is_time, sql_name

WINDOW: Final = "window"
"""The name of the function, of the column that a query groups by, and of the field of windows that hop."""
SESSION: Final = "session_window"
"""The name of the window function for sessions, and of the column that a query groups by."""
MOST: Final = 10_000
"""The greatest number of windows that contain a timestamp. A row is copied for each of its windows."""


def read_length(node: Node, name: str) -> int | None:
    """Return the microseconds of a literal such as ``'10 minutes'`` or ``interval 10 minutes``, or None for null."""
    value = node.constant
    if value is None or not (node.type == STRING or is_duration(node.type)):
        found = f"a length of {name} is not a literal" if value is None else f"{sql_name(node.type)} is no length"
        example = "'10 minutes'" if name == SESSION else "'10 minutes', '5 minutes'"
        raise Refusal(found, f"write for example {name}(at, {example})")
    if not value.is_valid:
        return None
    if is_duration(node.type):
        return int(value.cast(pa.duration("us")).value)
    length = parse_interval([(value.as_py(), None, None)])
    if length.months:
        raise Refusal(f"a length of {name} has months, which differ in length", "write days or smaller units")
    return length.micros


@sql_function(WINDOW, takes=[cast_argument_to_timestamp, read_length, read_length, read_length], least=2)
def build_window(at: Node, length: int, slide: int | None = None, start: int = 0) -> Node:
    """Build the window that contains a timestamp or, if windows hop, the list of windows.

    ``length``, ``slide``, ``start``: microseconds. The node fails if a window begins or ends outside of the range of
    timestamps.
    """
    slide = length if slide is None else slide
    if not (0 < slide <= length and abs(start) < slide):
        found = f"a window of {length:,} microseconds, every {slide:,}, from {start:,} on"
        raise Refusal(found, "use a length above 0, a slide of at most the length, and a start below the slide")
    if length > MOST * slide:
        raise Refusal(f"a timestamp is in {-(-length // slide):,} windows", f"use a slide that gives at most {MOST:,}")
    scale = 1000 if at.type.unit == "ns" else 1
    lengths = length * scale, slide * scale, start * scale
    compute = partial(_list_windows if slide < length else _find_window, lengths=lengths)
    return build_compute_node(accept_scalars(compute), at, fallible=True)


def _find_first_starts(at: pa.Array, length: int, slide: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the timestamps as integers, and the starts of the last windows that contain them."""
    values = np.asarray(pc.fill_null(at.cast(INT64), 0))
    last = values - np.mod(values - start, slide)
    if values.size and (last.min() < np.iinfo(np.int64).min + length or last.max() > np.iinfo(np.int64).max - length):
        raise pa.ArrowInvalid("a window is outside of the range of timestamps")
    return values, last


def build_structs(starts: np.ndarray, ends: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Build windows from their bounds.  ``kind``: the type of the timestamps."""
    return pa.StructArray.from_arrays([pa.array(each).cast(kind) for each in (starts, ends)], names=["start", "end"])


def _find_window(at: pa.Array, lengths: tuple[int, int, int]) -> pa.Array:
    _, last = _find_first_starts(at, *lengths)
    found = build_structs(last, last + lengths[0], at.type)
    return pc.if_else(at.is_valid(), found, pa.scalar(None, found.type)) if at.null_count else found


def _list_windows(at: pa.Array, lengths: tuple[int, int, int]) -> pa.Array:
    (length, slide, _), (values, last) = lengths, _find_first_starts(at, *lengths)
    counts = np.where(np.asarray(at.is_valid()), (length - (values - last) - 1) // slide + 1, 0)
    ends = np.cumsum(counts)
    back = np.repeat(ends, counts) - 1 - np.arange(int(ends[-1]) if ends.size else 0)
    starts = np.repeat(last, counts) - back * slide
    structs = build_structs(starts, starts + length, at.type)
    elements = pa.StructArray.from_arrays([structs], names=[WINDOW])
    offsets = pa.array(np.append(0, ends).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, elements)


@sql_function("window_time", takes=[keep_argument])
def build_window_time(window: Node) -> Node:
    """Return the last timestamp of a window: its end less a microsecond."""
    kind = window.type
    if not pat.is_struct(kind) or kind.get_field_index("end") < 0 or not is_time(kind.field("end").type):
        raise Refusal(f"window_time takes a window, but this is {sql_name(kind)}", "write window_time(window(...))")
    end = build_compute_node(partial(pc.struct_field, indices=[kind.get_field_index("end")]), window)
    return shift_by_interval(end, Interval(0, 1, False), -1)
