"""How a source was fed, call by call: what a manifest keeps of it, so that a log can be folded as it was given.

Invariant: runs of calls that were fed alike stand in the order of their calls, and with what was forgotten they are all
calls that ever named the source.  The record is bounded, because every commit writes it: past `ROOM` the oldest runs
are forgotten, and only how many calls of each kind they were is kept.  It does not know what rows were given.

>>> fed = Fed()
>>> for epoch, way in enumerate([EVENTS, EVENTS, Way(FULL), Way(FULL, "region = 'EU'")], 1):
...     fed = fed.after(epoch, way)
>>> print(fed)
events (epochs 1 to 2), full contents (epoch 3), full contents of the scope "region = 'EU'" (epoch 4)
>>> read(Record(written(fed), "m"), 4) == fed, fed.plain, Fed().after(1, EVENTS).plain
(True, False, True)
>>> print(fed.blind())
4 calls that are not kept one by one (epochs up to 4: 2 of events, 2 of full contents, 0 restated)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ddflow.storage.epochs import damaged, only
from ddflow.storage.record import I64, Record

EVENTS_KIND: Final = "events"
FULL: Final = "full"
RESTATED: Final = "restated"
WAYS: Final = (EVENTS_KIND, FULL, RESTATED)
ROOM: Final = 1 << 14
"""Characters that the runs of one source may take in a manifest: some 300 runs where scopes are short."""
SHOWN: Final = 4
"""How many runs, the last ones, a message tells of."""

Word = int | str | None
"""A value of an order column, as `ddflow.engine.full_contents.spelled` writes it."""


class Way(NamedTuple):
    """How a call fed a source.  ``kind``: of `WAYS`.  ``scope``: of full contents, as it was given.  ``order``: that
    was given for the keys which they do not name, a word a column; None where none was."""

    kind: str
    scope: str | None = None
    order: tuple[Word, ...] | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing that the source held before is held after it, unless it is given again."""
        return self.kind != EVENTS_KIND and self.scope is None

    def __str__(self) -> str:
        text = {EVENTS_KIND: "events", FULL: "full contents", RESTATED: "restated"}[self.kind]
        return text if self.scope is None else f"{text} of the scope {self.scope[:200]!r}"


EVENTS: Final = Way(EVENTS_KIND)


class Run(NamedTuple):
    """Calls one after the other that fed a source alike, from an epoch to another; an epoch may have several."""

    first: int
    last: int
    calls: int
    way: Way

    @property
    def size(self) -> int:
        """What it counts for `ROOM`: its characters, and those of three numbers as epochs have them."""
        words = [self.way.scope or "", *(self.way.order or ())]
        return 50 + sum(len(str(word)) for word in words)

    def __str__(self) -> str:
        return f"{self.way} ({_epochs(self.first, self.last)})"


class Fed(NamedTuple):
    """``runs``: the last ones, oldest first.  ``until``: the last epoch of those that were forgotten, 0 for none;
    ``events``, ``full``, ``restated``: how many calls these were."""

    runs: tuple[Run, ...] = ()
    until: int = 0
    events: int = 0
    full: int = 0
    restated: int = 0

    @property
    def plain(self) -> bool:
        """Whether no call gave anything but events: then it does not matter how they were split."""
        return not (self.full or self.restated) and all(run.way == EVENTS for run in self.runs)

    @property
    def forgotten(self) -> int:
        """How many calls are not kept one by one."""
        return self.events + self.full + self.restated

    @property
    def calls(self) -> int:
        """How many calls fed the source."""
        return self.forgotten + sum(run.calls for run in self.runs)

    @property
    def wholes(self) -> int:
        """How many of them gave anything but events."""
        return self.full + self.restated + sum(run.calls for run in self.runs if run.way != EVENTS)

    def after(self, epoch: int, way: Way) -> Fed:
        """As it is after one more call.  O(runs)."""
        last = self.runs[-1] if self.runs else None
        if last is not None and last.way == way:
            return self._replace(runs=(*self.runs[:-1], last._replace(last=epoch, calls=last.calls + 1)))
        runs = (*self.runs, Run(epoch, epoch, 1, way))
        over, at = sum(run.size for run in runs) - ROOM, 0
        while over > 0:
            over, at = over - runs[at].size, at + 1
        return self._replace(runs=runs)._without(at)

    def blind(self) -> Fed:
        """As it is when no word of a scope or an order may stay: what has such words, and what came before."""
        worded = [n for n, run in enumerate(self.runs, 1) if run.way.scope is not None or run.way.order is not None]
        return self._without(max(worded, default=0))

    def _without(self, count: int) -> Fed:
        gone = self.runs[:count]
        more = {kind: sum(run.calls for run in gone if run.way.kind == kind) for kind in WAYS}
        return Fed(
            self.runs[count:],
            gone[-1].last if gone else self.until,
            self.events + more[EVENTS_KIND],
            self.full + more[FULL],
            self.restated + more[RESTATED],
        )

    def __str__(self) -> str:
        if not self.calls:
            return "nothing"
        told = [str(run) for run in self.runs[-SHOWN:]]
        if len(self.runs) > SHOWN:
            told.insert(0, f"... {len(self.runs) - SHOWN:,} runs of calls more")
        if self.forgotten:
            kinds = f"{self.events:,} of events, {self.full:,} of full contents, {self.restated:,} restated"
            calls = f"{self.forgotten:,} calls that are not kept one by one"
            told.insert(0, f"{calls} (epochs up to {self.until:,}: {kinds})")
        return ", ".join(told)


def fed_by(known: Mapping[str, Fed], names: Iterable[str], way: Way, epoch: int) -> dict[str, Fed]:
    """How sources were fed after one more call, which fed the ``names`` in one way.  O(names), as `Fed.after`."""
    return {**known} | {name: known.get(name, Fed()).after(epoch, way) for name in names}


def written(fed: Fed) -> dict[str, Any]:
    """A record as plain values.  O(runs)."""
    return fed._asdict() | {"runs": [_listed(run) for run in fed.runs]}


def read(record: Record, epoch: int) -> Fed:
    """A record, as `written` made it.  ``epoch``: of the manifest.  O(runs).  Raises `CorruptState`."""
    only(record, frozenset(Fed._fields))
    until = record.number("until", 0, epoch)
    counts = [record.number(kind) for kind in WAYS]
    if (until == 0) != (sum(counts) == 0):
        raise damaged(record.what, f"it has forgotten {sum(counts):,} calls up to epoch {until}")
    runs, size = list[Run](), 0
    for number, given in enumerate(record.list("runs")):
        run = _run(given, runs[-1].last if runs else until, epoch)
        if run is None or (runs and runs[-1].way == run.way):
            raise damaged(record.what, f"runs[{number}] is no run of calls that follows the one before")
        size += run.size
        runs.append(run)
    if size > ROOM:
        raise damaged(record.what, f"its runs take {size:,} characters, of which there may be {ROOM:,}")
    return Fed(tuple(runs), until, *counts)


def _listed(run: Run) -> list[Any]:
    return [
        run.first,
        run.last,
        run.calls,
        run.way.kind,
        run.way.scope,
        None if run.way.order is None else list(run.way.order),
    ]


def _run(given: Any, least: int, most: int) -> Run | None:
    """A run, if that is one."""
    if not isinstance(given, list) or len(given) != 6:
        return None
    *numbers, kind, scope, order = given
    if not all(type(each) is int and 0 <= each <= I64 for each in numbers):
        return None
    first, last, calls = numbers
    if not max(least, 1) <= first <= last <= most or calls < (1 if first == last else 2) or kind not in WAYS:
        return None
    if not (scope is None or (isinstance(scope, str) and kind == FULL)):
        return None
    if order is not None:
        if kind == EVENTS_KIND or not isinstance(order, list) or not order:
            return None
        if not all(
            each is None or isinstance(each, str) or (type(each) is int and -I64 - 1 <= each <= I64) for each in order
        ):
            return None
    return Run(first, last, calls, Way(kind, scope, None if order is None else tuple(order)))


def _epochs(first: int, last: int) -> str:
    return f"epoch {first:,}" if first == last else f"epochs {first:,} to {last:,}"
