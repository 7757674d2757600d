"""What a manifest keeps of the last epochs: their calls, what came of each, and the files that its outputs gained.

Invariant: what `written` made, `read` gives back, or raises `CorruptState` with the path to what is wrong. An epoch
that is given again is told from these, so a batch number must never be of another query than the one that feeds the
state, and a file must never be named twice. It does not know what files hold, nor who fed them; ``manifest`` says
where it stands.

>>> blob = Blob("00ff00ff00ff00ff-1.arrow", 4, bytes(16))
>>> call = Call("step", 7, "0" * 32, 8, {"applied": 3}, {"rows": Output((blob,), 3)}, {"step": 1200})
>>> read(Record(written(Epoch(1, (call,), batch=0)), "m")) == Epoch(1, (call,), 0)
True
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ddflow.errors import CorruptState
from ddflow.storage.protocol import Blob
from ddflow.storage.record import Record
from ddflow.time import CLOSED, NEVER

KINDS: Final = ("step", "push", "advance_to", "replace", "restate")
REMEDY: Final = "go back with ddflow rollback, restore it from a copy, or replay the log into a new state"
QUERY: Final = 200
"""Characters that the name of a query may have."""
_HEX = re.compile(r"[0-9a-f]+")
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class Output(NamedTuple):
    """The files that hold what one output gained by a call, one or more in their order; how many ``rows`` all have."""

    blobs: tuple[Blob, ...]
    rows: int


class Call(NamedTuple):
    """One call of an epoch, and what came of it.

    ``kind``: of `KINDS`.  ``time``: of the step, or the frontier asked for; 0 for a push.  ``digest``: 32 hex digits,
    of the input rows.  ``frontier``: after it.  ``counts``: events by verdict, ``absent`` keys.
    ``outputs``: by name, where not empty.  ``figures``: what was measured, by name.
    """

    kind: str
    time: int
    digest: str
    frontier: int
    counts: Mapping[str, int]
    outputs: Mapping[str, Output]
    figures: Mapping[str, int] = _NOTHING


class Epoch(NamedTuple):
    """An epoch that was committed, call by call.  ``batch``: its number to the query that feeds the state, if any."""

    epoch: int
    calls: tuple[Call, ...]
    batch: int | None = None


class Feed(NamedTuple):
    """Who feeds a state: a ``query`` by its id, "" where it has none that is known, and its last ``batch``, from 0."""

    query: str
    batch: int


def written(epoch: Epoch) -> dict[str, Any]:
    """An epoch as plain values.  O(files)."""
    return {"epoch": epoch.epoch, "calls": [_written(call) for call in epoch.calls], "batch": epoch.batch}


def read(record: Record) -> Epoch:
    """An epoch, as `written` made it.  O(files).  Raises `CorruptState`."""
    only(record, frozenset(("epoch", "calls", "batch")))
    batch = record.number("batch") if "batch" in record else None
    return Epoch(record.number("epoch"), tuple(_call(each) for each in record.records("calls")), batch)


def feed(record: Record) -> Feed:
    """Who feeds a state.  O(1).  Raises `CorruptState`."""
    only(record, frozenset(("query", "batch")))
    return Feed(record.text("query", QUERY), record.number("batch"))


def numbers(record: Record, least: int = 0) -> dict[str, int]:
    """Whole numbers by name, from ``least`` on.  O(names).  Raises `CorruptState`."""
    return {name: record.number(name, least) for name in record.names()}


def instant(record: Record, name: str) -> int:
    """A time.  O(1).  Raises `CorruptState`."""
    return record.number(name, NEVER, CLOSED)


def digits(record: Record, name: str, count: int) -> str:
    """So many hex digits.  O(1).  Raises `CorruptState`."""
    text = record.text(name, count)
    if len(text) != count or not _HEX.fullmatch(text):
        raise damaged(record.what, f"{name} is {text!r}, not {count} hex digits")
    return text


def only(record: Record, fields: frozenset[str]) -> None:
    """Raise `CorruptState` unless a record has these fields and no others.  O(fields)."""
    unknown, missing = sorted(set(record.names()) - fields), sorted(fields - set(record.names()))
    if unknown or missing:
        raise damaged(record.what, f"it lacks the fields {missing}, and has {len(unknown)} that nobody knows")


def damaged(what: str, found: str) -> CorruptState:
    """The error for what was not written by us."""
    return CorruptState(what, found, REMEDY)


def _written(call: Call) -> dict[str, Any]:
    return {
        "kind": call.kind,
        "time": call.time,
        "digest": call.digest,
        "frontier": call.frontier,
        "counts": dict(call.counts),
        "outputs": {name: given(each) for name, each in call.outputs.items()},
        "figures": dict(call.figures),
    }


def given(output: Output) -> dict[str, Any]:
    """What an output gained, as plain values.  O(files)."""
    return {"blobs": [blob.to_json() for blob in output.blobs], "rows": output.rows}


def _call(record: Record) -> Call:
    only(record, frozenset(Call._fields))
    kind = record.text("kind", 16)
    if kind not in KINDS:
        raise damaged(record.what, f"kind is {kind!r}, not one of {', '.join(KINDS)}")
    return Call(
        kind,
        instant(record, "time"),
        digits(record, "digest", 32),
        instant(record, "frontier"),
        numbers(record.record("counts")),
        {name: output(each) for name, each in record.named("outputs").items()},
        numbers(record.record("figures")),
    )


def output(record: Record) -> Output:
    """What an output gained, as `given` wrote it.  O(files).  Raises `CorruptState`."""
    only(record, frozenset(("blobs", "rows")))
    blobs = tuple(record.blobs("blobs"))
    if not blobs or len({blob.name for blob in blobs}) < len(blobs):
        raise damaged(record.what, f"its {len(blobs)} files are none, or two are the same")
    return Output(blobs, record.number("rows"))
