"""Replace the contents of an input or restate its history, and choose the time of a step.

Guarantees: a replace deletes each key that is in the scope of the call and not in the contents. All times of a state
have the same type, which the first step sets: whole numbers, days or timestamps. If a step has no time, it gets the
next number.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")))
>>> with flow.open() as engine:
...     _ = engine.replace("people", pa.table({"id": [1, 2], "city": ["Bern", "Basel"]}), time=1)
...     out = engine.replace("people", pa.table({"id": [1, 3], "city": ["Bern", "Chur"]}), time=2)
...     print(dict(sorted((row["city"], row["_diff"]) for row in out["people"].to_pylist())), out.verdicts)
{'Basel': -1, 'Chur': 1} applied 1, noop 1, absent 1
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, timedelta
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import compute_value_hashes
from ddflow.connectors.error_location import add_file_to_error, is_path
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.inflow import IngestedRows, group_full_contents_by_input
from ddflow.dataflow.result import Step
from ddflow.engine.calls import EngineCalls, warn_of_unseen_columns
from ddflow.engine.commits import CallRequest
from ddflow.engine.evolve import convert_dataflow
from ddflow.engine.full_contents import FullContents, refuse_duplicate_keys
from ddflow.errors import (
    DdflowError,
    EmptyContents,
    ErrorText,
    Option,
    SchemaMismatch,
    SpecError,
    TooManyAbsent,
    WrongMode,
)
from ddflow.operators.upsert.events import Events
from ddflow.plan.compatibility import PlanChange
from ddflow.plan.evolve import build_plan_with_time_type
from ddflow.storage.feeding import FULL, RESTATED, FeedMode
from ddflow.time import (
    CLOSED,
    INT64,
    NEVER,
    Time,
    find_time_type,
    format_time,
    format_time_argument,
    time_to_int64,
    time_to_value,
)

GIVE: Final = "pass the {what}, such as time='{later}'; nothing was ingested"
"""The remedy that an error suggests for a step without a time."""


def choose_step_time(calls: EngineCalls, what: str, time: Time | None, epoch: int | None) -> int:
    """Return ``time`` as an int64. If ``time`` is None, return the time of a committed ``epoch``.

    If ``epoch`` is None or not committed, return the next number. The flow must be in epoch mode. The next number is 1
    if no time is closed yet. O(1), but O(nodes) for the first step. Raises `SchemaMismatch` if the value is not a time,
    or has another type than earlier times. Raises `SchemaMismatch` if ``time`` is missing although the times of the
    state are days or timestamps.

    >>> from datetime import date
    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> with flow.open() as engine:
    ...     engine.step({"id": [1]}, time=date(2026, 11, 26))["people"].to_pylist()
    [{'id': 1, '_time': datetime.date(2026, 11, 26), '_diff': 1}]
    """
    last, kind = calls.dataflow.last, calls.dataflow.time_type
    if time.__class__ is int and kind == INT64 and NEVER <= time < CLOSED:
        return time  # the common case
    if time is None:
        known = None if epoch is None or calls.durable is None else calls.durable.find_call_time(epoch)
        if known is None:
            check_time_is_numeric(calls, f"{what} without a time")
        time = known if known is not None else 1 if last == NEVER else last + 1
        given: pa.DataType | None = INT64 if last == NEVER and calls.dataflow.flow.clock is None else kind
        asked = what
    else:
        given, asked = find_time_type(time), f"{what} at time {format_time_argument(time)}"
    has_clock = calls.dataflow.flow.clock is not None
    if given is not None and last == NEVER and given != kind and not has_clock:
        _set_time_type(calls, given)
    elif given is not None and not is_same_time_type(given, kind):
        shown = format_time(0 if last == NEVER else last, kind)
        told = f"the times of earlier steps are {kind}, the last {shown}"
        found = f"that time has type {given}, but " + (f"the clock of the flow is {kind}" if has_clock else told)
        raise SchemaMismatch(asked, found, f"pass a time like {shown}; nothing was ingested")
    return time_to_int64(asked, time, CLOSED - 1, calls.dataflow.time_type)


def check_time_is_numeric(calls: EngineCalls, asked: str, remedy: str = GIVE) -> None:
    """Raise `SchemaMismatch` if times are not numbers, because then the caller must pass the time of the next step.

    O(1). ``remedy``: a text in which ``{what}`` becomes day or timestamp, and ``{later}`` the day after the last time.
    """
    last, kind = calls.dataflow.last, calls.dataflow.time_type
    if kind == INT64 or (last == NEVER and calls.dataflow.flow.clock is None):
        return
    what, last = "day" if kind == pa.date32() else "timestamp", max(last, 0)
    later = format_time(last, kind)
    with suppress(OverflowError, ValueError):  # outside the years of Python's calendar
        later = str(cast(date, time_to_value(last, kind)) + timedelta(1))
    found = f"the times of earlier steps are {what}s, the last {format_time(last, kind)}, so the next is not known"
    if calls.dataflow.last == NEVER:
        found = f"the clock of the flow has {what}s"
    raise SchemaMismatch(asked, found, remedy.format(what=what, later=later))


def is_same_time_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two types of time count as the same type.

    Timestamps of different time zones count as the same type.
    """
    zoned = [pat.is_timestamp(each) and each.tz is not None for each in (one, other)]
    return bool(one == other or all(zoned))


def _set_time_type(calls: EngineCalls, kind: pa.DataType) -> None:
    """Set the type of times, before any time is closed."""
    dataflow = calls.dataflow
    plan, nodes = build_plan_with_time_type(dataflow.flow, kind)
    convert_dataflow(dataflow, plan, nodes, PlanChange())
    calls.choose_row_hashes()
    if calls.durable is not None:
        calls.durable.log.set_plan(plan)


class AbsenceLimit(NamedTuple):
    """A limit on the keys that full contents may delete.

    ``most``: how many keys may be absent, for `compute_absence_limit`. ``empty``: whether contents may have no rows.
    """

    most: int | str | None = None
    empty: bool = False

    def check_absent_count(self, absent: int, contents: FullContents) -> None:
        """Raise `EmptyContents` or `TooManyAbsent` if the limit does not allow this many absent keys."""
        if absent and not contents.rows and not self.empty:
            raise EmptyContents(
                contents.asked,
                f"it has no rows, so all {absent:,} keys would be deleted",
                ErrorText("pass ", Option("allow_empty", True), " if that is intended; nothing was ingested"),
            )
        if self.most is not None and absent > (
            allowed := compute_absence_limit(self.most, there := absent + contents.named)
        ):
            raise TooManyAbsent(
                contents.asked,
                ErrorText(
                    f"it lacks {absent:,} of {there:,} keys, but ",
                    Option("max_absent", self.most),
                    f" allows {allowed:,}",
                ),
                "check that it is complete; if it is, allow more; nothing was ingested",
            )


def replace_rows(
    calls: EngineCalls,
    kind: Literal["replace", "restate"],
    name: Any,
    rows: Any,
    time: Time | None,
    scope: str | None,
    order: Any,
    epoch: int | None,
    allowed: AbsenceLimit,
) -> Step:
    """Ingest full contents or a corrected history as one step. The step also deletes the absent keys of these inputs.

    ``name``: an input. If ``rows`` is None, ``name`` is the rows of the only input, or a mapping from inputs to rows.
    ``time``: the time of the step; None for the next number.
    """
    if allowed.most is not None:
        compute_absence_limit(allowed.most, 0)
    dataflow = calls.dataflow
    with dataflow.guard.lock_for_write(kind):
        if dataflow.flow.holds_back:
            raise WrongMode(
                kind,
                "the flow is in hold-back mode: its inputs name a time column",
                ErrorText(
                    "push the rows as events, or omit ",
                    Option("time"),
                    " in the spec, because full contents have one time",
                ),
            )
        at = choose_step_time(calls, kind, time, epoch)
        inputs = group_full_contents_by_input(kind, name, rows, dataflow.admissions)
        if len(inputs) > 1 and (scope is not None or order is not None):
            found = f"there are rows for {len(inputs)} inputs: {list(inputs)}"
            raise SpecError(
                kind,
                found,
                ErrorText(Option("scope"), " and order= apply to one input; call it for each input, at separate times"),
            )
        upserts = {each: dataflow.graph.inputs[each].require_keys(f"{kind} of {each!r}") for each in inputs}
        when = f"at time {format_time(at, dataflow.time_type)}"
        every = {each: FullContents(of, f"{kind} of {each!r} {when}", scope, order) for each, of in upserts.items()}
        asked = CallRequest(kind, at, _encode_arguments(dataflow, every), time_type=dataflow.time_type)
        if (again := calls.find_committed_step(asked, epoch, inputs)) is not None:
            return again
        inflows = calls.ingest_inputs(asked, inputs, {name: [contents.add_rows] for name, contents in every.items()})
        total = 0
        try:
            for each, contents in every.items():
                lacking = dataflow.admissions[each].missing_columns
                calls.warn_of_missing_columns(each, lacking, f"{contents.asked}: it lacks", "in all its rows")
                warn_of_unseen_columns(each, dataflow.admissions[each])
                full = dataflow.admissions[each].arrived + inflows[each].rows
                try:
                    absent = _enqueue_deletions(dataflow, inflows[each], contents, at, full, kind == "replace")
                    allowed.check_absent_count(absent, contents)
                except DdflowError as error:
                    if is_path(inputs[each]):
                        raise add_file_to_error(inputs[each], error) from None
                    raise
                upserts[each].contents, total = full, total + absent
            step = dataflow.step(inflows, at)
        finally:
            for upsert in upserts.values():
                upsert.contents = None
        step.verdicts = dataclasses.replace(step.verdicts, absent=total)
        spelled = next(iter(every.values())).spelled
        return calls.record_call(
            asked, step, inflows, FeedMode(FULL if kind == "replace" else RESTATED, scope, spelled)
        )


def compute_absence_limit(given: int | str, there: int) -> int:
    """Return the maximum number of keys that may be deleted. ``there``: the number of existing keys.

    Raises `SpecError` if the limit is invalid.

    >>> compute_absence_limit(12, 100), compute_absence_limit("12", 100), compute_absence_limit("2.5%", 100)
    (12, 12, 2)
    """
    match = None if isinstance(given, bool) else re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)%", str(given).strip())
    if match is None or (match[2] and float(match[2]) > 100):
        found = "that is neither a number of keys nor a share of them"
        raise SpecError(Option("max_absent", given), found, "use 100 or '50%'")
    return int(match[1]) if match[1] else int(there * float(match[2]) / 100)


def _encode_arguments(dataflow: Dataflow, every: Mapping[str, FullContents]) -> str:
    """Encode the scopes and orders of a call as text, so that calls with different arguments have different digests."""
    words = []
    for name, contents in sorted(every.items()):
        order = None if contents.order is None else int(compute_value_hashes(contents.order, dataflow.secret)[0])
        words.append([name, contents.text, order])
    return json.dumps(words)


def _enqueue_deletions(
    dataflow: Dataflow, inflow: IngestedRows, contents: FullContents, time: int, arrival: int, once: bool
) -> int:
    """Enqueue a deletion for each absent key. Return the number of deletions.

    ``once``: whether a key may have only one row.
    """
    by, total = contents.sort_identities(), 0
    if once:
        refuse_duplicate_keys(contents.asked, contents.upsert.keys, by, inflow.event_chunks, arrival - inflow.rows)
    for events in contents.make_absent_key_deletions(by):
        n, stamp = events.num_rows, contents.bound.stamp
        inflow.enqueue(Events.at_time(events, time, arrival + total + np.arange(n), stamp))
        total += n
    return total
