"""Resolve upserts: find the winning event of each key at each time, and derive the net changes.

The loop follows McSherry's article "Upserts in differential dataflow". The rules are those of docs/semantics.md for
full rows. Order words and a tie rule decide which event wins. The position of an event in the input does not matter. A
key keeps its order after a delete.

Guarantees: a key has at most one net change at a time. If the winner's row differs from the stored row, the kernel
retracts the stored row and asserts the winner's row. If the two rows are equal, the kernel emits nothing. Every event
gets one verdict. Limits: the kernel reads only identities, orders, hashes and row numbers, never other columns.
Resolving events does not change the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Ints2d, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import prefetch

Empty = Callable[[int, Any], Any]
"""A function that allocates an array with unspecified content, given its size and dtype."""

LAST, FIRST, GREATEST, ERROR = 0, 1, 2, 3
AHEAD = 16
"""Number of keys between the current key and the key whose rows are prefetched."""
BAD, FORGOTTEN, LATE, STALE, TIE_LOST, SUPERSEDED, NOOP, APPLIED = 0, 1, 2, 3, 4, 5, 6, 7

OCCUPIED, LIVE = 1 << 62, 1 << 61
"""Flags of a reference into the state: the entry exists, and its row is live (not a tombstone)."""
LAPSED = 1 << 60
"""Flag of a reference that expired at the start of the step.

The order of an expired entry no longer decides which event wins.
"""
NOBODY = 1 << 62
"""First arrival number of generated events.

A generated event deletes a forgotten row, or a key that is absent from full contents.
"""
OUTCOME, RETRACTS = 60, -(1 << 63)
"""Layout of an event's outcome.

The verdict starts at bit 60. RETRACTS is set if the event retracts a row. If RETRACTS is set, the bits below 60 are the
reference to the retracted row. The events that can retract a row are applied events and deletions of forgotten keys.
"""
ROW = (1 << OUTCOME) - 1
NOTHING = -(1 << 62)
"""A value in place of the number of an event or a group, which means that there is no order."""


class SortedEvents(NamedTuple):
    """The events of a step.

    The first four arrays of this tuple are in the order of identities, and the rest are in the order of rows.
    """

    permutation: Narrow
    """int32[n]: the row at each place, sorted by identity and within a key by time."""
    starts: Narrow
    """int32[g + 1]: the place where each key begins."""
    high: Words
    """uint64[n]: the first word of each identity."""
    low: Words
    """uint64[n]: the second word of each identity, or size 0 if identities have one word."""
    mark: Narrow
    """int32[n]: twice the rank of each row's time, plus 1 for a delete."""
    times: Ints
    """int64[times]: the distinct times of the step, by rank."""
    order: Ints2d
    """int64[n, w]: order words, base words first, then the words that break ties."""
    value: Words
    """uint64[n]: the hash of the columns that decide whether a row changed. If an event retracts a row, `resolve_keys`
    overwrites the event's hash with the hash of the retracted row, because `emit_values` recovers values from hashes.
    """


class Prior(NamedTuple):
    """The state of each key at the start of the step."""

    place: Ints
    """int64[g]: the index slot that the key has or will get, or -1 if there is no slot."""
    reference: Ints
    """int64[g]: flags and the location of the row, or 0 for a new key."""
    value: Words
    """uint64[g]: the hash of the row."""
    order: Ints2d
    """int64[g, w]: the order of the event that set the row, in the same words as the events."""

    def slice_keys(self, begin: int, end: int) -> Prior:
        """Slice the keys [begin, end)."""
        return Prior(self.place[begin:end], self.reference[begin:end], self.value[begin:end], self.order[begin:end])


class Rules(NamedTuple):
    """The rules that choose winners and decide whether orders are kept."""

    base: int
    """Number of order words that come from ``order_by`` and, if the event's own time counts, from that time."""
    tie: int
    """The tie rule: LAST, FIRST, GREATEST or ERROR."""
    ties: bool
    """Whether equal base words are a tie. If only arrival or a sequence decides, events with equal base words do not
    tie."""
    keeps: bool
    """Whether a key keeps its order, even after a delete."""
    since: int
    """The value of ``since`` after the step.

    Of the versions of a key at or before ``since``, only the last version remains.
    """
    over: bool = False
    """Whether the events win over any stored order. The events of one step are compared with each other as usual."""
    forgets: bool = False
    """Whether forgotten rows disappear without a retraction."""


class Outcomes(NamedTuple):
    """The output arrays of `resolve_keys`.

    The first two arrays of this tuple have an entry for each row. The rest have entries for versions, sorted by key and
    then time.

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
    """int64[n]: the row whose order the key has after the event's time, -1 - group for the stored order, or NOTHING.

    Its size is 0 if no caller needs it.
    """
    high: Words
    """uint64[n]: the first identity word of each version."""
    low: Words
    """uint64[n]: the second identity word, or size 0."""
    time: Ints
    """int64[n]: the time from which the version is valid; size 0 if all versions have the same time."""
    live: Flags
    """uint8[n]: 1 for a row, 0 for a deletion."""
    value: Words
    """uint64[n]: the hash of the version's row."""
    event: Ints
    """int64[n]: the event that made the version and whose order it has; size 0 if no caller needs it."""
    row: Ints
    """int64[n]: the source of the version's row: an event, or the stored row after a no-op."""
    last: Ints
    """int64[g]: the last version of each key, or -1 if it did not change."""

    def slice_versions(self, begin: int, end: int, first: int, stop: int) -> Outcomes:
        """Slice the versions [begin, end) and the keys [first, stop).

        Arrays with an entry for each event are not sliced.
        """
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
    """Allocate the outcome arrays for ``rows`` events of ``groups`` keys. Each event gives at most one version.

    ``winners``, ``timed``, ``ordered``: whether a caller needs the winners, the times of versions, the events of
    versions. ``kept``: a function that allocates the arrays that the new batch keeps (identities, times, live flags).
    The outcome arrays take 9 bytes for each row, plus 8 bytes if ``wide`` and 8 bytes if ``timed``. ``passing``: a
    function that allocates the arrays that the batch does not keep.
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
    """Compare words [begin, end) of row i of a with those of row j of b, from left to right. Return -1, 0 or 1."""
    for w in range(begin, end):
        if a[i, w] != b[j, w]:
            return 1 if a[i, w] > b[j, w] else -1
    return 0


@kernel
def _compare_order(order: Ints, row: int, prior: Ints, other: int, begin: int, end: int) -> int:
    """Compare the order words of ``row`` with those of ``other``, a second row.

    If ``other`` is negative, compare the order words of ``row`` with the stored order of a group.
    """
    if other >= 0:
        return _compare_words(order, row, order, other, begin, end)
    return _compare_words(order, row, prior, -1 - other, begin, end)


@kernel
def _find_winner(
    permutation: Narrow, order: Ints, prior: Ints, outcome: Ints, begin: int, end: int, bound: int, base: int, tie: int
) -> int:
    """Find the winning row among the places [begin, end).

    All rows in the range have the same key and the same time. Return -1 if no row wins, or -2 - row for a tie that is
    an error. ``bound``: the event or group that has the key's current order, or `NOTHING`. Writes the verdicts STALE
    and TIE_LOST.
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
    """Write the verdicts of the events that lost to ``best``.

    For each event, write which event or group has the order of the key after this event.
    """
    for place in range(begin, end):
        row = permutation[place]
        if winner.size != 0:
            winner[row] = best if best >= 0 else bound
        if best >= 0 and row != best and outcome[row] == SUPERSEDED << OUTCOME:
            tied = ties and _compare_words(order, row, order, best, 0, base) == 0
            outcome[row] = (TIE_LOST if tied else SUPERSEDED) << OUTCOME


@kernel
def _prefetch_row(at_hash: np.uint64, at_mark: np.uint64, at_outcome: np.uint64, row: np.uint64) -> None:
    """Prefetch the words of a row that a later iteration reads.

    Rows are in arrival order, so their words are often not in the cache. A mispredicted branch that waits for a word
    from memory costs more than all other work of the loop.
    """
    prefetch(at_hash + (row << np.uint64(3)))
    prefetch(at_outcome + (row << np.uint64(3)))
    prefetch(at_mark + (row << np.uint64(2)))


@kernel
def resolve_keys(events: SortedEvents, prior: Prior, rules: Rules, out: Outcomes) -> tuple[int, int, int, int, int]:
    """Resolve all events against the stored state, and write every array of ``out``. O(n), no allocation.

    Returns the number of updates, the number of versions, a row that ties under ERROR or -1, the change in live keys,
    and the change in keys that have an order but no row. After a tie under ERROR, the output is invalid. Under the tie
    rule ERROR, the rows that have the same key and the same time must be sorted by base words.

    >>> none, words, few = np.empty(0, np.int64), np.empty(0, np.uint64), np.zeros(1, np.int32)
    >>> events = SortedEvents(few[:0], few, words, words, few[:0], none, np.empty((0, 0), np.int64), words)
    >>> resolve_keys(events, Prior(none, none, words, np.empty((0, 0), np.int64)), Rules(0, LAST, True, False, -1),
    ...       allocate_outcomes(0, 0, False))
    (0, 0, -1, 0, 0)
    """
    permutation, starts, highs, lows, marks, times, order, hashes = events  # each read of a field counts references
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
