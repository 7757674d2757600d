"""Full contents in, differences out: an input's whole table, or its whole history corrected, against what it holds.

Invariant: afterwards the input holds what it was given and nothing else (within the scope), whatever orders its keys
had; what comes out is the difference, and events in = resolved + pending holds. A key that is absent from the contents
is deleted without an event, so these are counted apart; held orders must not decide, but those of the rows must stay;
and a step of full contents is a step like any other: in pieces under a budget, an epoch on durable state, refused
whole. Restating is the same with a log of events, which are resolved among themselves as if nothing had been held. Who
is absent is found by ``full_contents``.

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
import warnings
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import value_hashes
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.inflow import Inflow, of_one
from ddflow.dataflow.result import Step
from ddflow.dataflow.spilling import make_room
from ddflow.engine.calls import Calls
from ddflow.engine.commits import Asked
from ddflow.engine.digests import combined
from ddflow.engine.full_contents import Contents
from ddflow.errors import SpecError, TooManyAbsent, WrongMode
from ddflow.operators.upsert.events import Events
from ddflow.storage.feeding import FULL, RESTATED, Way


def replace(
    calls: Calls,
    kind: Literal["replace", "restate"],
    name: Any,
    rows: Any,
    time: int | None,
    scope: str | None,
    order: Any,
    epoch: int | None,
    most: int | str | None = None,
) -> Step:
    """Either of the two: a step of one input, in which what is absent is deleted.

    ``name``: the rows where ``rows`` is None.  ``time``: None for one above the last.  ``most``: how many keys may be
    absent, as `most_absent` takes it.
    """
    if most is not None:
        most_absent(most, 0)
    dataflow = calls.dataflow
    with dataflow.guard.use(kind):
        if dataflow.flow.holds_back:
            raise WrongMode(
                kind,
                "the flow is in hold-back mode: its inputs name a time column",
                "full contents are of one time; push their rows as events, or leave time= out of the spec",
            )
        time = calls.time(kind, time, epoch)
        name, rows = of_one(kind, name, rows, dataflow.admissions)
        upsert = dataflow.graph.inputs[name].keyed_for(f"{kind} of {name!r}")
        contents = Contents(upsert, f"{kind} of {name!r} at time {time}", scope, order)
        asked = Asked(kind, time, _further(dataflow, name, contents))
        way = Way(FULL if kind == "replace" else RESTATED, scope, contents.spelled)
        if (again := calls.replayed(asked, epoch, {name: rows})) is not None:
            return again
        make_room(dataflow.budget, dataflow.graph, dataflow.batchers)
        inflow, digest = _flown(calls, name, rows, time, contents, asked)
        _warn_of_lacking(dataflow, name, contents.asked)
        full = dataflow.admissions[name].arrived + inflow.rows
        absent = _absent(dataflow, inflow, contents, time, full, kind == "replace")
        if most is not None and absent > (allowed := most_absent(most, there := absent + contents.named)):
            raise TooManyAbsent(
                contents.asked,
                f"it lacks {absent:,} of {there:,} keys, and max_absent={most!r} lets {allowed:,} go",
                "is it whole? if it is, allow more; nothing was taken in",
            )
        upsert.contents = full
        try:
            step = dataflow.step({name: inflow}, time)
        finally:
            upsert.contents = None
        step.verdicts = dataclasses.replace(step.verdicts, absent=absent)
        return calls.done(asked, digest, step, {name: inflow}, way)


def most_absent(given: int | str, there: int) -> int:
    """How many of the keys that are there may go.  Raises `SpecError`.

    >>> most_absent(12, 100), most_absent("12", 100), most_absent("2.5%", 100)
    (12, 12, 2)
    """
    match = None if isinstance(given, bool) else re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)%", str(given).strip())
    if match is None or (match[2] and float(match[2]) > 100):
        found = "that is no number of keys, nor a share of them"
        raise SpecError(f"max_absent={given!r}", found, "write 100, or '50%'")
    return int(match[1]) if match[1] else int(there * float(match[2]) / 100)


def _warn_of_lacking(dataflow: Dataflow, name: str, asked: str) -> None:
    """Warn of columns that full contents lack, which are null from then on; under a merge they are left as they are."""
    admission = dataflow.admissions[name]
    if admission.format is not None or dataflow.graph.inputs[name].bound.merging is not None:
        return
    if lacking := [each for each in admission.bound.schema.names if each not in admission.columns]:
        warnings.warn(f"{asked}: it lacks the columns {lacking}, which are null in all its rows", stacklevel=4)


def _further(dataflow: Dataflow, name: str, contents: Contents) -> str:
    """What a call names beside its rows, in words: with others it is another call."""
    order = None if contents.order is None else int(value_hashes(contents.order, dataflow.secret)[0])
    return json.dumps([name, contents.text, order])


def _flown(calls: Calls, name: str, rows: Any, time: int, contents: Contents, asked: Asked) -> tuple[Inflow, str]:
    """Admit the rows, showing them to ``contents``; and the call's digest, on durable state."""
    dataflow = calls.dataflow
    digest = None if calls.durable is None else calls.digest(name)

    def look(events: pa.RecordBatch) -> None:
        contents.look(events)
        if digest is not None:
            digest.update(events)

    inflow = dataflow.inflow(name, rows, time, look)
    return inflow, "" if digest is None else combined(asked.words, time, {name: digest})


def _absent(dataflow: Dataflow, inflow: Inflow, contents: Contents, time: int, arrival: int, once: bool) -> int:
    """Put a deletion for each absent key with the rows; how many.  ``once``: whether a key may have one row only."""
    by, total = contents.sorted(), 0
    if once:
        contents.refuse_duplicates(by, inflow.pieces)
    for events in contents.absent(by):
        n = events.num_rows
        times = np.full(n, time)
        inflow.put(Events(events, times, times, arrival + total + np.arange(n)), dataflow.budget)
        total += n
    return total
