"""How an input was fed, call by call: what a manifest keeps of it, so that a log can be folded as it was given.

Invariant: runs of calls that were fed alike stand in the order of their calls, and with what was forgotten they are all
calls that ever named the input.  The record is bounded, because every commit writes it: past `ROOM` the oldest runs
are forgotten, and only how many calls of each kind they were is kept.  It does not know what rows were given.

>>> fed = FeedHistory()
>>> for epoch, way in enumerate([EVENTS, EVENTS, FeedMode(FULL), FeedMode(FULL, "region = 'EU'")], 1):
...     fed = fed.add_call(epoch, way)
>>> print(fed)
events (epochs 1 to 2), full contents (epoch 3), full contents of the scope "region = 'EU'" (epoch 4)
>>> from ddflow.storage.fields import Decoder, decode_record, encode_record
>>> decode_record(Decoder(FeedHistory), encode_record(fed), "m") == fed
True
>>> fed.has_only_events, FeedHistory().add_call(1, EVENTS).has_only_events
(False, True)
>>> print(fed.remove_runs_naming_values())
4 calls that are not kept one by one (epochs up to 4: 2 of events, 2 of full contents, 0 restated)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from ddflow.storage.fields import Instant, Natural, Positive, StrictRecord

EVENTS_KIND: Final = "events"
FULL: Final = "full"
RESTATED: Final = "restated"
WAYS: Final = (EVENTS_KIND, FULL, RESTATED)
ROOM: Final = 1 << 14
"""Characters that the runs of one input may take in a manifest: some 300 runs where scopes are short."""
SHOWN: Final = 4
"""Number of runs, the last ones, in a message."""

Word = Instant | str | None
"""A value of an order column, as `ddflow.engine.full_contents.spelled` writes it."""


class FeedMode(NamedTuple):
    """How a call fed an input.  ``kind``: of `WAYS`.  ``scope``: of full contents, as it was given.  ``order``: that
    was given for the keys which they do not name, a word a column; None where none was."""

    kind: Literal["events", "full", "restated"]
    scope: str | None = None
    order: Annotated[tuple[Word, ...], Meta(min_length=1)] | None = None

    @property
    def is_full_replacement(self) -> bool:
        """Whether nothing that the input held before is held after it, unless it is given again."""
        return self.kind != EVENTS_KIND and self.scope is None

    def __str__(self) -> str:
        text = {EVENTS_KIND: "events", FULL: "full contents", RESTATED: "restated"}[self.kind]
        return text if self.scope is None else f"{text} of the scope {self.scope[:200]!r}"


EVENTS: Final = FeedMode(EVENTS_KIND)


class FeedRun(NamedTuple):
    """Calls one after the other that fed an input alike, from an epoch to another; an epoch may have several."""

    first: Positive
    last: Positive
    calls: Positive
    way: FeedMode

    @property
    def text_length(self) -> int:
        """Characters that count for `ROOM`: its own, and some 50 for the three numbers."""
        return 50 + len(self.way.scope or "") + sum(map(len, map(str, self.way.order or ())))

    def __str__(self) -> str:
        return f"{self.way} ({_format_epochs(self.first, self.last)})"


class FeedHistory(StrictRecord, frozen=True):
    """``runs``: the last ones, oldest first.  ``until``: the last epoch of those that were forgotten, 0 for none;
    ``events``, ``full``, ``restated``: how many calls these were."""

    runs: tuple[FeedRun, ...] = ()
    until: Natural = 0
    events: Natural = 0
    full: Natural = 0
    restated: Natural = 0

    def check_calls(self, epoch: int) -> None:
        """Raise `ValueError` unless calls up to an epoch can have made this record.  O(runs)."""
        gone = self.events + self.full + self.restated
        if (self.until == 0) != (gone == 0):
            raise ValueError(f"it has forgotten {gone:,} calls up to epoch {self.until}")
        last, before, size = self.until, None, 0
        for number, run in enumerate(self.runs):
            first, to, calls, way = run
            odd = (way.scope is not None and way.kind != FULL) or (way.order is not None and way.kind == EVENTS_KIND)
            if odd or way == before or not last <= first <= to or calls < (1 if first == to else 2):
                raise ValueError(f"runs[{number}] is no run of calls that follows the one before")
            last, before, size = to, way, size + run.text_length
        if last > epoch:
            raise ValueError(f"it tells of calls up to epoch {last}, and the last one is {epoch}")
        if size > ROOM:
            raise ValueError(f"its runs take {size:,} characters, of which there may be {ROOM:,}")

    @property
    def has_only_events(self) -> bool:
        """Whether no call gave anything but events: then it does not matter how they were split."""
        return not (self.full or self.restated) and all(run.way == EVENTS for run in self.runs)

    @property
    def forgotten_call_count(self) -> int:
        """The number of calls that are not kept one by one."""
        return self.events + self.full + self.restated

    @property
    def call_count(self) -> int:
        """The number of calls that fed the input."""
        return self.forgotten_call_count + sum(run.calls for run in self.runs)

    @property
    def full_call_count(self) -> int:
        """The number of calls that gave anything but events."""
        return self.full + self.restated + sum(run.calls for run in self.runs if run.way != EVENTS)

    def add_call(self, epoch: int, way: FeedMode) -> FeedHistory:
        """Return the record with one more call.  O(runs)."""
        last = self.runs[-1] if self.runs else None
        if last is not None and last.way == way:
            return replace(self, runs=(*self.runs[:-1], FeedRun(last.first, epoch, last.calls + 1, way)))
        runs = (*self.runs, FeedRun(epoch, epoch, 1, way))
        over, at = sum(run.text_length for run in runs) - ROOM, 0
        while over > 0:
            over, at = over - runs[at].text_length, at + 1
        return self._forget_runs(at, runs)

    def remove_runs_naming_values(self) -> FeedHistory:
        """Return the record without the words of scopes and orders: drops each run that has such words, and all before
        it."""
        worded = [n for n, run in enumerate(self.runs, 1) if run.way.scope is not None or run.way.order is not None]
        return self._forget_runs(max(worded, default=0), self.runs)

    def _forget_runs(self, count: int, runs: tuple[FeedRun, ...]) -> FeedHistory:
        gone = runs[:count]
        more = {kind: sum(run.calls for run in gone if run.way.kind == kind) for kind in WAYS}
        return FeedHistory(
            runs[count:],
            gone[-1].last if gone else self.until,
            self.events + more[EVENTS_KIND],
            self.full + more[FULL],
            self.restated + more[RESTATED],
        )

    def __str__(self) -> str:
        if not self.call_count:
            return "nothing"
        told = [str(run) for run in self.runs[-SHOWN:]]
        if len(self.runs) > SHOWN:
            told.insert(0, f"... {len(self.runs) - SHOWN:,} runs of calls more")
        if self.forgotten_call_count:
            kinds = f"{self.events:,} of events, {self.full:,} of full contents, {self.restated:,} restated"
            calls = f"{self.forgotten_call_count:,} calls that are not kept one by one"
            told.insert(0, f"{calls} (epochs up to {self.until:,}: {kinds})")
        return ", ".join(told)


def record_feed_call(
    known: Mapping[str, FeedHistory], names: Iterable[str], way: FeedMode, epoch: int
) -> dict[str, FeedHistory]:
    """Return how inputs were fed after one more call, which fed the ``names`` in one way.  O(names + runs)."""
    return {**known} | {name: known.get(name, FeedHistory()).add_call(epoch, way) for name in names}


def _format_epochs(first: int, last: int) -> str:
    return f"epoch {first:,}" if first == last else f"epochs {first:,} to {last:,}"
