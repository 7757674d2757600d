"""Declare the watermark of an input: a promise that later events leave old rows unchanged.

With ``watermark={"at": "1 hour"}``, no event touches a row whose ``at`` is more than an hour below the greatest ``at``
of all earlier steps. This limit is the *horizon*. ddflow handles late events by ``late=``, and forgets rows below the
horizon. All values are compared as 64-bit words that sort like the values.

Guarantees: the horizon depends only on the rows of earlier steps, never on the clock, so a rerun has the same horizons.
Limits: the column is an integer, a date or a timestamp, and the input is in epoch mode.

>>> mark = bind_watermark("clicks", pa.schema({"at": pa.timestamp("s")}), (("at", "1 hour"),), ["at"])
>>> mark.compute_horizon(10_000), mark.decode_word(6_400)[0].as_py().isoformat()
(6400, '1970-01-01T01:46:40')
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.order_words import compute_watermark_words
from ddflow.errors import ErrorText, LateEvent, Option, SpecError
from ddflow.plan.merge.checks import Refuse, refuse_first_broken_rule
from ddflow.time import CLOSED, NEVER, count_nanoseconds, format_time

Watermark = tuple[tuple[str, str | int], ...]
"""The column of a watermark and the delay, in the form of a spec."""


class BoundWatermark(NamedTuple):
    """A watermark, bound to the column of its input."""

    input: str
    field: pa.Field
    delay: int
    """The distance of the horizon from the greatest value, in the unit of the column."""
    in_key: bool
    """Whether all events of a row have the same value in the column."""
    ahead: int | None = None
    """How far a value may be after the time of the step, in the unit of the column.  None without a limit."""

    def compute_horizon(self, greatest: int) -> int:
        """Compute the word below which rows are old. ``greatest``: the greatest word, or `NEVER` before the first."""
        return max(greatest - self.delay, NEVER)

    def compute_greatest(self, time: int, clock: pa.DataType) -> int:
        """Compute the greatest word of a row that is not bad.  ``time``: the time of the step, of type ``clock``."""
        now = time * count_nanoseconds(clock) // count_nanoseconds(self.field.type)
        return CLOSED if self.ahead is None else min(now + self.ahead, CLOSED)

    def read_words(self, rows: pa.RecordBatch, bound: Any) -> tuple[Any, Any]:
        """Return the words of the column in events, and bool[n], false for nulls and values without a meaning.

        The value of a deletion has a meaning only if the key has the column. ``bound``: the binding of the input.
        """
        words, present = compute_watermark_words(rows.column(self.field.name))
        here = present != 0 if present.size else np.ones(words.size, np.bool_)
        return words, here if self.in_key else here & (bound.mark_deletes(rows) == 0)

    def decode_word(self, word: int) -> pa.Array:
        """Convert a word to an array with one value of the column."""
        return pa.array([word], pa.int32() if self.field.type.bit_width == 32 else pa.int64()).cast(self.field.type)

    def make_late_error(self, what: str, horizon: int, where: Sequence[Any], remedy: Sequence[Any] = ()) -> LateEvent:
        """Make the error for rows below the horizon. ``what``: the number of rows. ``where``: the first of them."""
        limit = f"{self.field.name} = {format_time(horizon, self.field.type)}"
        found = ErrorText(f"{what} are below the watermark {limit}", *where)
        fix = ErrorText(*remedy, "choose ", Option("late", "drop"), " or a longer delay; nothing was ingested")
        return LateEvent(f"rows for {self.input!r}", found, fix, input=self.input)

    def read_extent(self, greatest: Mapping[str, int], horizons: Mapping[str, int], fresh: bool) -> tuple[int, int]:
        """Read the least and the greatest word from the numbers that a manifest keeps by input.

        Both numbers can only grow, so the manifest keeps the complement of the least word. ``fresh``: whether the state
        has no rows. If it has rows from the time before the watermark, their least word is unknown.
        """
        least = ~horizons[self.input] if self.input in horizons else CLOSED if fresh else NEVER
        return least, greatest.get(self.input, NEVER)


def parse_watermark(spec: Any, refuse: Refuse) -> Watermark | None:
    """Parse ``watermark=`` of a spec, and refuse options that contradict it. ``refuse`` raises the error.

    >>> from ddflow.plan.inputs.spec import Upsert
    >>> Upsert(["id", "at"], watermark={"at": "1 hour"}, late="drop").watermark
    (('at', '1 hour'),)
    """
    given = spec.watermark
    if spec.ahead is not None and (given is None or not isinstance(spec.ahead, str)):
        remedy = ErrorText("write a duration beside ", Option("watermark"), ", as in ", Option("ahead", "1 day"))
        refuse(ErrorText(Option("ahead", spec.ahead), "" if given else " without a watermark"), remedy)
    if given is None:
        return None
    pairs: Any = tuple(given.items()) if isinstance(given, Mapping) else given
    fits = isinstance(pairs, tuple) and [[*map(type, each)] for each in pairs] in ([[str, str]], [[str, int]])
    column = pairs[0][0] if fits else ""
    refuse_first_broken_rule(
        refuse,
        (
            not fits,
            ErrorText(Option("watermark"), f" is {given!r:.200}"),
            ErrorText("name one column and how late it may be, as in ", Option("watermark", {"at": "1 hour"})),
        ),
        (
            spec.time is not None,
            ErrorText(Option("watermark"), " in hold-back mode, where ", Option("late"), " is about the frontier"),
            ErrorText("omit ", Option("time"), ", or omit ", Option("watermark")),
        ),
        (
            spec.late == "advance",
            ErrorText(Option("late", "advance"), " with ", Option("watermark"), ", below which rows are forgotten"),
            ErrorText("use ", Option("late", "error"), " or ", Option("late", "drop")),
        ),
        (
            spec.expiry is not None,
            ErrorText(Option("watermark"), " with expiry=, which changes old rows"),
            "use one of them: expiry= retracts old rows, and a watermark keeps them in the outputs",
        ),
        (
            spec.merges and column not in spec.key,
            ErrorText(Option("watermark"), f" names {column!r}, whose value depends on the merge"),
            "name a key column, or omit the merge",
        ),
    )
    return cast(Watermark, pairs)


def bind_watermark(
    name: str, row: pa.Schema, given: Watermark | None, key: Sequence[str], ahead: str | None = None
) -> BoundWatermark | None:
    """Bind a watermark to the columns of an input's rows. Raises `SpecError`.

    ``key``: the columns that identify a row. ``ahead``: how far a value may be after the time of the step.
    """
    if given is None:
        return None
    ((column, delay),) = given
    asked = ErrorText(Option("watermark"), f" of {name!r}")
    if column not in row.names:
        raise SpecError(asked, f"{column!r} is not part of the row", f"the columns of the row are {row.names}")
    field = row.field(column)
    kind, whole = field.type, pat.is_integer(field.type)
    if not (whole or pat.is_date(kind) or pat.is_timestamp(kind)) or pat.is_uint64(kind):
        remedy = "name a signed integer, a date or a timestamp"
        raise SpecError(asked, f"{column!r} is {kind}, which has no horizon", remedy, column=column)
    if whole == isinstance(delay, str) or (isinstance(delay, int) and delay < 0):
        remedy = "write a whole number, 0 or more" if whole else "write a duration: '1 hour'"
        raise SpecError(asked, f"{delay!r} is not a delay for {column!r}, which is {kind}", remedy)
    length = delay if isinstance(delay, int) else _read_duration(asked, delay, kind)
    if ahead is not None and whole:
        raise SpecError(Option("ahead", ahead), f"{column!r} is {kind}, which is no time", "omit it, or name a time")
    far = None if ahead is None else _read_duration(ErrorText(Option("ahead"), f" of {name!r}"), ahead, kind)
    return BoundWatermark(name, field, length, column in key, far)


def _read_duration(asked: Any, text: str, kind: pa.DataType) -> int:
    """Convert a duration to the unit of a type. Raises `SpecError`."""
    # Imported here because the functions for expressions load slowly.
    from ddflow.expressions.intervals import parse_interval
    from ddflow.expressions.node import Refusal

    unit = count_nanoseconds(kind)
    try:
        length = parse_interval([(text, None, None)])
    except Refusal as refusal:
        raise SpecError(asked, refusal.found, "write a duration, such as '1 hour' or '2 days'") from None
    out, rest = divmod(length.micros * 1000, unit)
    if length.months or rest or out < 0:
        found = f"{text!r} is not a whole number of units of {kind}"
        raise SpecError(asked, found, "write a duration without months, such as '2 days'")
    return out
