"""The time of a step, and its type: whole numbers, days or moments.

Invariant: the times of a state's steps are of one type, which the first step says and the state's plan keeps; inside
they are int64 all the same, in that type's unit. Until a time is closed, another type may still be said. A step without
a time takes the next whole number; a day or a moment is never made up, because the next one may be missing.

>>> from datetime import date
>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> with flow.open() as engine:
...     engine.step({"id": [1]}, time=date(2026, 11, 26))["people"].to_pylist()
[{'id': 1, '_time': datetime.date(2026, 11, 26), '_diff': 1}]
"""

from contextlib import suppress
from datetime import date, timedelta
from typing import Final, cast

import pyarrow as pa
import pyarrow.types as pat

from ddflow.engine.calls import Calls
from ddflow.engine.evolve import go_on
from ddflow.errors import SchemaMismatch
from ddflow.plan.compatibility import PlanChange
from ddflow.plan.evolve import timed
from ddflow.time import CLOSED, INT64, NEVER, Time, as_int64, as_shown, as_value, shown, type_of

GIVE: Final = "give the {what}, such as time='{later}'; nothing was taken in"
"""The remedy for a step without a time."""


def step_time(calls: Calls, what: str, time: Time | None, epoch: int | None) -> int:
    """Return the time of a call in epoch mode: the given one, else that of a committed ``epoch``, else the next.

    The next is 1 if no time was closed yet. O(1), of the first step O(nodes). Raises `SchemaMismatch` for a value that
    is no time or has another type than earlier times, and for a missing time if times are days or moments.
    """
    last, kind = calls.dataflow.last, calls.dataflow.time_type
    if time.__class__ is int and kind == INT64 and NEVER <= time < CLOSED:
        return time  # as nearly always
    if time is None:
        known = None if epoch is None or calls.durable is None else calls.durable.time_of(epoch)
        if known is None:
            check_counted(calls, f"{what} without a time")
        time = known if known is not None else 1 if last == NEVER else last + 1
        given: pa.DataType | None = INT64 if last == NEVER else kind
        asked = what
    else:
        given, asked = type_of(time), f"{what} at time {as_shown(time)}"
    if given is not None and last == NEVER and given != kind:
        _set_time_type(calls, given)
    elif given is not None and not _alike(given, kind):
        found = f"that is of type {given}, and the times of the steps before are {kind}, the last {shown(last, kind)}"
        raise SchemaMismatch(asked, found, f"give one like {shown(last, kind)}; nothing was taken in")
    return as_int64(asked, time, CLOSED - 1, calls.dataflow.time_type)


def check_counted(calls: Calls, asked: str, remedy: str = GIVE) -> None:
    """Raise `SchemaMismatch` if the next step's time is no number, so that a caller must give it. O(1).

    ``remedy``: a text in which ``{what}`` is day or moment, and ``{later}`` one above the last.
    """
    last, kind = calls.dataflow.last, calls.dataflow.time_type
    if last == NEVER or kind == INT64:
        return
    what = "day" if kind == pa.date32() else "moment"
    later = shown(last, kind)
    with suppress(OverflowError, ValueError):  # past the years that Python has
        later = str(cast(date, as_value(last, kind)) + timedelta(1))
    found = f"the times of the steps before are {what}s, the last {shown(last, kind)}, and the next is not known"
    raise SchemaMismatch(asked, found, remedy.format(what=what, later=later))


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether times of both are of one type; moments of any two zones are."""
    zoned = [pat.is_timestamp(each) and each.tz is not None for each in (one, other)]
    return bool(one == other or all(zoned))


def _set_time_type(calls: Calls, kind: pa.DataType) -> None:
    """Set the type of times, before the first time is closed."""
    dataflow = calls.dataflow
    plan, nodes = timed(dataflow.flow, kind)
    go_on(dataflow, plan, nodes, PlanChange())
    calls.rehash()
    if calls.durable is not None:
        calls.durable.log.timed(plan)
