"""Resolve upserts: fold the events of each key, in time order, over what the key holds; emit the differences.

This is the loop of McSherry's "Upserts in differential dataflow" with the rulings of docs/semantics.md, for full-row
replacement. Order words and a tie rule decide who wins, not places. A key holds the order of a deleted row, too.

Guarantees: a key has at most one net change at a time: the exact row that was held is retracted, and the one that won
is asserted, nothing if they are equal. Every event gets one verdict.
Limits: sees identities, orders, hashes and row numbers, never payload, and changes no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Ints2d, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import prefetch

Empty = Callable[[int, Any], Any]
"""Makes an array of unspecified content, by its size and type."""

LAST, FIRST, GREATEST, ERROR = 0, 1, 2, 3
AHEAD = 16
"""How many keys ahead the rows of events are asked for."""
BAD, FORGOTTEN, LATE, STALE, TIE_LOST, SUPERSEDED, NOOP, APPLIED = 0, 1, 2, 3, 4, 5, 6, 7

OCCUPIED, LIVE = 1 << 62, 1 << 61
"""Flags of a reference into state: that there is an entry at all, and that its row is live (not a tombstone)."""
LAPSED = 1 << 60
"""Flag of what a key held until the step began, and was forgotten then: it decides nothing."""
NOBODY = 1 << 62
"""Events from this arrival number on are nobody's: they delete what is forgotten."""
OUTCOME, RETRACTS = 60, -(1 << 63)
"""An event's outcome: its verdict from bit 60 on; where it retracts a row, RETRACTS and, below, which: an applied one,
or a deletion of a key that was forgotten, whose row is due to go anyway."""
ROW = (1 << OUTCOME) - 1
NOTHING = -(1 << 62)
"""Instead of an event or a group: there is no order to compare with."""


class SortedEvents(NamedTuple):
    """The events of a step.  The first four are in the order of identities, the rest in that of rows."""

    permutation: Narrow
    """int32[n]: the row at each place, sorted by identity; within a key by time."""
    starts: Narrow
    """int32[g + 1]: the place where each key begins."""
    high: Words
    """uint64[n]: the identities."""
    low: Words
    """uint64[n]: their second words, or of size 0."""
    mark: Narrow
    """int32[n]: twice the rank of each row's time, and 1 more for a delete."""
    times: Ints
    """int64[times]: the step's distinct times, by rank."""
    order: Ints2d
    """int64[n, w]: order words, base words first, then those that break ties."""
    value: Words
    """uint64[n]: the hash of what counts in "did it change"; overwritten, where an event retracts a row, with the hash
    of that one: the line is at hand then, and emitting makes values of hashes."""


class Prior(NamedTuple):
    """What each key holds when the step begins."""

    place: Ints
    """int64[g]: the index's slot that holds the key or will, -1 for none."""
    reference: Ints
    """int64[g]: flags and where its row is; 0 for a key never seen."""
    value: Words
    """uint64[g]: the hash of its row."""
    order: Ints2d
    """int64[g, w]: the order it was won with, in the words of the events."""

    def slice_keys(self, begin: int, end: int) -> Prior:
        """Of the keys [begin, end)."""
        return Prior(self.place[begin:end], self.reference[begin:end], self.value[begin:end], self.order[begin:end])


class Rules(NamedTuple):
    """Which event wins, and what is kept."""

    base: int
    """How many of the order words come from ``order_by`` (and the original time)."""
    tie: int
    """LAST, FIRST, GREATEST or ERROR."""
    ties: bool
    """Whether equal base words are a tie; not where arrival or a sequence alone decides."""
    keeps: bool
    """Whether a key keeps its order, after a delete too."""
    since: int
    """The since after the step: history before it is not kept apart."""
    over: bool = False
    """Whether the events win over whatever order a key holds; among themselves they are resolved as ever."""
    forgets: bool = False
    """Whether the row of a key that is forgotten is not retracted."""


class Outcomes(NamedTuple):
    """The outcome, written by `resolve_keys`: the first two by row, the versions by key, then time.

    >>> one = lambda *values: np.array(values, np.int64)
    >>> words, few = np.array([7, 8], np.uint64), lambda *values: np.array(values, np.int32)
    >>> orders, times = np.empty((2, 0), np.int64), one(5, 6)
    >>> events = SortedEvents(few(0, 1), few(0, 2), words, words[:0], few(0, 2), times, orders, words)
    >>> prior = Prior(one(0), one(0), words[:1], np.empty((1, 0), np.int64))
    >>> out = allocate_outcomes(2, 1, wide=False)
    >>> resolve_keys(events, prior, Rules(0, LAST, True, False, 4), out)  # +row 0 at 5; -row 0, +row 1 at 6
    (3, 2, -1, 1, 0)
    >>> (out.outcome >> OUTCOME & 7).tolist() == [APPLIED] * 2, (out.outcome & ROW).tolist(), (out.outcome < 0).tolist()
    (True, [0, 0], [False, True])
    """

    outcome: Ints
    """int64[n]: see `OUTCOME`."""
    winner: Ints
    """int64[n]: the row whose order the key holds after that time, or -1 - group for what was held, or NOTHING; of size
    0 when nobody asks."""
    high: Words
    """uint64[n]: the identity of each version."""
    low: Words
    """uint64[n], or of size 0."""
    time: Ints
    """int64[n]: from when on the version is in force; of size 0 when that is one time for all, as far as is told."""
    live: Flags
    """uint8[n]: whether it is a row or a deletion."""
    value: Words
    """uint64[n]: the hash of its row."""
    event: Ints
    """int64[n]: the event that made it, whose order it has; of size 0 when nobody asks."""
    row: Ints
    """int64[n]: where its row comes from: an event, or the row that was held (a no-op that kept it)."""
    last: Ints
    """int64[g]: each key's last version, -1 where nothing changed."""

    def slice_versions(self, begin: int, end: int, first: int, stop: int) -> Outcomes:
        """Slice the room for versions [begin, end) and keys [first, stop); the room for events stays whole."""
        low = self.low[begin:end] if self.low.size else self.low
        time = self.time[begin:end] if self.time.size else self.time
        event = self.event[begin:end] if self.event.size else self.event
        high, live, value, row = self.high[begin:end], self.live[begin:end], self.value[begin:end], self.row[begin:end]
        return Outcomes(self.outcome, self.winner, high, low, time, live, value, event, row, self.last[first:stop])


def allocate_outcomes(
    rows: int,
    groups: int,
    wide: bool,
    winners: bool = True,
    passing: Empty = np.empty,
    kept: Empty = np.empty,
    timed: bool = True,
    ordered: bool = True,
) -> Outcomes:
    """Room for the outcome of ``rows`` events of ``groups`` keys: at most one version an event.

    ``winners``, ``timed``, ``ordered``: whether anybody asks for the winners, the versions' times, their events.
    ``kept``: makes arrays for what a batch keeps of it (identities, times, which are live), 9 bytes a row, 8 more where
    ``wide`` and 8 where ``timed``; ``passing``: for the rest.
    """
    n = rows
    return Outcomes(
        passing(n, np.int64),
        passing(n if winners else 0, np.int64),
        kept(n, np.uint64),
        kept(n if wide else 0, np.uint64),
        kept(n if timed else 0, np.int64),
        kept(n, np.uint8),
        passing(n, np.uint64),
        passing(n if ordered else 0, np.int64),
        passing(n, np.int64),
        passing(groups, np.int64),
    )


@kernel
def _compare_words(a: Ints, i: int, b: Ints, j: int, begin: int, end: int) -> int:
    """-1, 0 or 1: words [begin, end) of row i of a against those of row j of b, left to right."""
    for w in range(begin, end):
        if a[i, w] != b[j, w]:
            return 1 if a[i, w] > b[j, w] else -1
    return 0


@kernel
def _compare_order(order: Ints, row: int, prior: Ints, other: int, begin: int, end: int) -> int:
    """Compare a row's order words with those of another row, or (negative) of what a group held."""
    if other >= 0:
        return _compare_words(order, row, order, other, begin, end)
    return _compare_words(order, row, prior, -1 - other, begin, end)


@kernel
def _find_winner(
    permutation: Narrow, order: Ints, prior: Ints, outcome: Ints, begin: int, end: int, bound: int, base: int, tie: int
) -> int:
    """Find the row that wins among places [begin, end), one key at one time, or -1 for none; -2 - row refuses the step.

    ``bound`` is whose order the key holds (`NOTHING` for no order).  Writes stale and tie_lost verdicts.
    """
    words = order.shape[1]
    best = -1
    for place in range(begin, end):
        row: int = permutation[place]
        outcome[row] = SUPERSEDED << OUTCOME
        if bound != NOTHING:
            against = _compare_order(order, row, prior, bound, 0, base)
            if against == 0:
                if tie == ERROR:
                    return int(-2 - row)
                further = _compare_order(order, row, prior, bound, base, words)
                if further < 0 and tie == LAST:
                    against = -1
                elif further < 0 or (further == 0 and tie == FIRST):
                    outcome[row] = TIE_LOST << OUTCOME
                    continue
            if against < 0:
                outcome[row] = STALE << OUTCOME
                continue
        if best >= 0:
            against = _compare_words(order, row, order, best, 0, base)
            if against == 0:
                if tie == ERROR:
                    return int(-2 - row)
                against = _compare_words(order, row, order, best, base, words)
                if against == 0 and tie != LAST:
                    continue
            if against < 0:
                continue
        best = row
    return int(best)


@kernel
def _write_loser_verdicts(
    permutation: Narrow,
    order: Ints,
    outcome: Ints,
    winner: Ints,
    begin: int,
    end: int,
    best: int,
    bound: int,
    base: int,
    ties: bool,
) -> None:
    """Write the verdicts of those who lost to ``best``, and whose order each event's key holds now."""
    for place in range(begin, end):
        row = permutation[place]
        if winner.size != 0:
            winner[row] = best if best >= 0 else bound
        if best >= 0 and row != best and outcome[row] == SUPERSEDED << OUTCOME:
            tied = ties and _compare_words(order, row, order, best, 0, base) == 0
            outcome[row] = (TIE_LOST if tied else SUPERSEDED) << OUTCOME


@kernel
def _prefetch_row(at_hash: np.uint64, at_mark: np.uint64, at_outcome: np.uint64, row: np.uint64) -> None:
    """Ask for a row ahead of its turn.

    Ints lie as they came: a branch that waits for one from afar costs more than all else here.
    """
    prefetch(at_hash + (row << np.uint64(3)))
    prefetch(at_outcome + (row << np.uint64(3)))
    prefetch(at_mark + (row << np.uint64(2)))


@kernel
def resolve_keys(events: SortedEvents, prior: Prior, rules: Rules, out: Outcomes) -> tuple[int, int, int, int, int]:
    """Fold all events over what is held.

    out: written.  Returns the number of updates, and of versions written; a row that ties under ERROR (then the outcome
    is void), or -1; how many more keys are live, and hold an order and no row.  O(n), no allocation.  Under ERROR the
    rows of a key and time must come sorted by their base words.
    >>> none, words, few = np.empty(0, np.int64), np.empty(0, np.uint64), np.zeros(1, np.int32)
    >>> events = SortedEvents(few[:0], few, words, words, few[:0], none, np.empty((0, 0), np.int64), words)
    >>> resolve_keys(events, Prior(none, none, words, np.empty((0, 0), np.int64)), Rules(0, LAST, True, False, -1),
    ...       allocate_outcomes(0, 0, False))
    (0, 0, -1, 0, 0)
    """
    # Fields are taken out once: reading one inside the loops would count references for every event.
    permutation, starts, highs, lows, marks, times, order, hashes = events
    _, references, values, priors = prior
    base, tie, ties, keeps, since, over, forgets = rules
    outcome, winner, v_high, v_low, v_time, v_live, v_value, v_event, v_row, lasts = out
    words, alone = order.shape[1], times.size < 2
    updates = versions = live_added = tombstones = 0
    at_hash, at_mark = np.uint64(hashes.ctypes.data), np.uint64(marks.ctypes.data)
    at_outcome = np.uint64(outcome.ctypes.data)
    for group in range(references.size):
        if group + AHEAD < references.size:
            _prefetch_row(at_hash, at_mark, at_outcome, np.uint64(permutation[starts[group + AHEAD]]))
        reference, value, live = references[group], values[group], references[group] & LIVE != 0
        live_added, tombstones = live_added - int(live), tombstones - int(keeps and reference != 0 and not live)
        live = live and not (forgets and reference & LAPSED != 0)
        stored, last = -1 - group if keeps and reference != 0 and reference & LAPSED == 0 else NOTHING, -1
        first, begin, stop = starts[group], int(starts[group]), int(starts[group + 1])
        bound = NOTHING if over else stored
        while begin < stop:
            best = int(permutation[begin])
            rank, end = marks[best] >> 1, begin + 1
            while end < stop and (alone or marks[permutation[end]] >> 1 == rank):
                end += 1
            if end > begin + 1 or bound != NOTHING:
                best = _find_winner(permutation, order, priors, outcome, begin, end, bound, base, tie)
                if best < -1:
                    return updates, versions, -2 - best, 0, 0
                _write_loser_verdicts(permutation, order, outcome, winner, begin, end, best, bound, base, ties)
            elif winner.size != 0:
                winner[best] = best
            begin = end
            if best < 0:
                continue
            now = marks[best] & 1 == 0
            changed = now != live or (now and hashes[best] != value)
            if changed:
                outcome[best] = (NOOP if not now and reference & LAPSED != 0 else APPLIED) << OUTCOME
                updates, given = updates + int(live) + int(now), hashes[best]
                if live:
                    outcome[best], hashes[best] = outcome[best] | RETRACTS | (reference & ROW), value
                live, value, reference = now, given, best
            else:
                outcome[best], reference = NOOP << OUTCOME, reference if now else best
            if changed or (keeps and (stored == NOTHING or _compare_order(order, best, priors, stored, 0, words) != 0)):
                if last < 0 or times[rank] > since:
                    last = versions
                    versions += 1
                v_high[last], v_live[last], v_value[last], v_row[last] = highs[first], np.uint8(live), value, reference
                if v_time.size != 0:
                    v_time[last] = times[rank]
                if v_event.size != 0:
                    v_event[last] = best
                if v_low.size != 0:
                    v_low[last] = lows[first]
            bound = stored = best if keeps else NOTHING
        lasts[group], live_added = last, live_added + int(live)
        tombstones += int(keeps and not live and (last >= 0 or references[group] != 0))
    return updates, versions, -1, live_added, tombstones
