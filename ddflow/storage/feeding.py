"""Record how calls passed rows to each input of a state, so that a log can be replayed in the same way.

A `FeedHistory` is a list of runs. A run stands for consecutive calls of the same kind, and has their first and last
epoch.

Guarantees: runs are in the order of their calls. Every call that ever named the input is in a run or is counted as
forgotten.
Limits: every commit writes the record, so the oldest runs are removed if the record exceeds `ROOM` characters. For
removed ("forgotten") runs, the record keeps only the number of calls of each kind. The record never contains rows.
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
"""The maximum number of characters for the runs of one input in a manifest. About 300 short runs fit.
"""
SHOWN: Final = 4
"""The maximum number of runs that a message shows. A message shows the latest runs."""

Word = Instant | str | None
"""A value of an order column, as `ddflow.engine.full_contents.encode_order` writes it."""


class FeedMode(NamedTuple):
    """How a call passed rows to an input.

    ``kind``: a value of `WAYS`. ``scope``: the scope of full contents, as the call passed it. ``order``: the order of
    the call for absent keys, one word per column; None if the call had no order.
    """

    kind: Literal["events", "full", "restated"]
    scope: str | None = None
    order: Annotated[tuple[Word, ...], Meta(min_length=1)] | None = None

    @property
    def is_full_replacement(self) -> bool:
        """Whether the call replaces all rows that the input held before."""
        return self.kind != EVENTS_KIND and self.scope is None

    def __str__(self) -> str:
        text = {EVENTS_KIND: "events", FULL: "full contents", RESTATED: "restated"}[self.kind]
        return text if self.scope is None else f"{text} of the scope {self.scope[:200]!r}"


EVENTS: Final = FeedMode(EVENTS_KIND)


class FeedRun(NamedTuple):
    """Consecutive calls that passed rows to an input in the same way, from epoch ``first`` to ``last``.

    An epoch may have several calls.
    """

    first: Positive
    last: Positive
    calls: Positive
    way: FeedMode

    @property
    def text_length(self) -> int:
        """The size of a run, as limited by `ROOM`: the characters of its texts, and about 50 for the numbers."""
        return 50 + len(self.way.scope or "") + sum(map(len, map(str, self.way.order or ())))

    def __str__(self) -> str:
        return f"{self.way} ({_format_epochs(self.first, self.last)})"


class FeedHistory(StrictRecord, frozen=True):
    """The record of how calls passed rows to one input.

    ``runs``: the last runs, oldest first. ``until``: the last epoch of the forgotten runs, 0 if no run is forgotten.
    ``events``, ``full``, ``restated``: the number of forgotten calls of each kind.

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
    4 calls without details (epochs up to 4: 2 of events, 2 of full contents, 0 restated)
    """

    runs: tuple[FeedRun, ...] = ()
    until: Natural = 0
    events: Natural = 0
    full: Natural = 0
    restated: Natural = 0

    def check_calls(self, epoch: int) -> None:
        """Raise `ValueError` if this record is impossible for a state whose last epoch is ``epoch``. O(runs)."""
        gone = self.events + self.full + self.restated
        if (self.until == 0) != (gone == 0):
            raise ValueError(f"it has forgotten {gone:,} calls up to epoch {self.until}")
        last, before, size = self.until, None, 0
        for number, run in enumerate(self.runs):
            first, to, calls, way = run
            odd = (way.scope is not None and way.kind != FULL) or (way.order is not None and way.kind == EVENTS_KIND)
            if odd or way == before or not last <= first <= to or calls < (1 if first == to else 2):
                raise ValueError(f"runs[{number}] is not a valid run of calls, or does not follow the run before it")
            last, before, size = to, way, size + run.text_length
        if last > epoch:
            raise ValueError(f"it has calls up to epoch {last}, but the last epoch is {epoch}")
        if size > ROOM:
            raise ValueError(f"its runs take {size:,} characters, but the limit is {ROOM:,}")

    @property
    def has_only_events(self) -> bool:
        """Whether every call passed events, and no call passed full contents or corrections.

        If every call passed events, the split of the events into calls does not matter.
        """
        return not (self.full or self.restated) and all(run.way == EVENTS for run in self.runs)

    @property
    def forgotten_call_count(self) -> int:
        """The total number of calls in forgotten runs."""
        return self.events + self.full + self.restated

    @property
    def call_count(self) -> int:
        """The number of calls that passed rows to the input."""
        return self.forgotten_call_count + sum(run.calls for run in self.runs)

    @property
    def full_call_count(self) -> int:
        """The number of calls that passed full contents or a corrected history to the input."""
        return self.full + self.restated + sum(run.calls for run in self.runs if run.way != EVENTS)

    def add_call(self, epoch: int, way: FeedMode) -> FeedHistory:
        """Return the record with one more call. O(runs)."""
        last = self.runs[-1] if self.runs else None
        if last is not None and last.way == way:
            again = tuple.__new__(FeedRun, (last.first, epoch, last.calls + 1, way))
            return replace(self, runs=(*self.runs[:-1], again))
        runs = (*self.runs, FeedRun(epoch, epoch, 1, way))
        over, at = sum(run.text_length for run in runs) - ROOM, 0
        while over > 0:
            over, at = over - runs[at].text_length, at + 1
        return self._forget_runs(at, runs)

    def remove_runs_naming_values(self) -> FeedHistory:
        """Return the record without the values in scopes and orders.

        If a run has a value in its scope or order, this run and all runs before it become forgotten runs.
        """
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
            told.insert(0, f"... {len(self.runs) - SHOWN:,} more runs of calls")
        if self.forgotten_call_count:
            kinds = f"{self.events:,} of events, {self.full:,} of full contents, {self.restated:,} restated"
            calls = f"{self.forgotten_call_count:,} calls without details"
            told.insert(0, f"{calls} (epochs up to {self.until:,}: {kinds})")
        return ", ".join(told)


def record_feed_call(
    known: Mapping[str, FeedHistory], names: Iterable[str], way: FeedMode, epoch: int
) -> dict[str, FeedHistory]:
    """Return the records of all inputs, after adding one call that passed rows to the inputs ``names``.

    O(names + runs).
    """
    out = {**known}
    for name in names:
        out[name] = (known.get(name) or FeedHistory()).add_call(epoch, way)
    return out


def _format_epochs(first: int, last: int) -> str:
    return f"epoch {first:,}" if first == last else f"epochs {first:,} to {last:,}"
