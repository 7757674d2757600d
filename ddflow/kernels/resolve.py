"""Resolving upserts: fold the events of each key, in time order, over what the key holds; emit the differences.

Invariant: for each key and time there is at most one net change, and it is spelled out: a retraction of exactly the row
that was held, an assertion of exactly the row that won, nothing where they are equal.  Every event gets one verdict.
Why that is not trivial: who wins is decided by order words and a tie rule, not by place; what a key holds includes
the order of a deleted key; and the same event may lose to another of its step or to the past.  This is the loop of
McSherry's "Upserts in differential dataflow" with the rulings of docs/semantics.md; this kernel is full-row
replacement only.  It sees identities, orders, hashes and row numbers, never payload, and changes no state.

>>> import numpy as np
>>> one = lambda *values: np.array(values, np.int64)
>>> events = Events(one(0, 1), one(0, 2), one(0, 1), np.empty((2, 0), np.int64), np.array([0, 0], np.uint8),
...                 np.array([7, 8], np.uint64))
>>> held = Held(one(0), np.zeros(1, np.uint64), np.empty((1, 0), np.int64))
>>> out = judged(2, 1)
>>> judge(events, held, Rules(0, LAST, True, False, -1), out)
(3, 2, -1)
>>> (out.update_source[:3] & ~RETRACTED).tolist(), (out.update_source[:3] < 0).tolist()  # +row0@0, -row0@1, +row1@1
([0, 0, 1], [False, True, False])
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ddflow.kernels.compile import kernel

Words = np.ndarray[Any, np.dtype[np.uint64]]
Flags = np.ndarray[Any, np.dtype[np.uint8]]
Rows = np.ndarray[Any, np.dtype[np.int64]]

LAST, FIRST, GREATEST, ERROR = 0, 1, 2, 3
BAD, FORGOTTEN, LATE, STALE, TIE_LOST, SUPERSEDED, NOOP, APPLIED = 0, 1, 2, 3, 4, 5, 6, 7

OCCUPIED, LIVE = 1 << 62, 1 << 61
"""Flags of a reference into state: that there is an entry at all, and that its row is live (not a tombstone)."""
RETRACTED = -(1 << 63)
"""The flag of an update's source when its diff is -1."""
NOTHING = -(1 << 62)
"""Instead of an event or a group: there is no order to compare with."""


class Events(NamedTuple):
    """The events of a step.  All but the first two are indexed by row, not by place."""

    permutation: Rows
    """int64[n]: the row at each place, sorted by identity; within a key by time."""
    starts: Rows
    """int64[g + 1]: the place where each key begins."""
    ranks: Rows
    """int64[n]: the dense rank of each row's time, or of size 0 when there is one time."""
    order: Rows
    """int64[n, w]: order words, base words first, then those that break ties."""
    gone: Flags
    """uint8[n]: 1 for a delete."""
    value: Words
    """uint64[n]: the hash of what counts in "did it change"."""


class Held(NamedTuple):
    """What each key holds when the step begins."""

    reference: Rows
    """int64[g]: flags and where its row is; 0 for a key never seen."""
    value: Words
    """uint64[g]: the hash of its row."""
    order: Rows
    """int64[g, w]: the order it was won with, in the words of the events."""


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
    since_rank: int
    """The greatest rank whose time is at or before the new since; history before it is not kept apart."""


class Judged(NamedTuple):
    """The outcome, written by `judge`: verdicts by row; updates and versions by key, then time."""

    verdict: Flags
    """uint8[n]."""
    winner: Rows
    """int64[n]: the row whose order the key holds after that time, or -1 - group for what was held, or NOTHING; of size
    0 when nobody asks."""
    update_rank: Rows
    """int64[2n]."""
    update_source: Rows
    """int64[2n]: a row of the events, or a reference into state; with RETRACTED set for a diff of -1."""
    version_event: Rows
    """int64[n]: the event that made the version: its time, its order, whether it is live, the hash of its value."""
    version_row: Rows
    """int64[n]: where the version's row comes from: an event, or the row that was held (a no-op that kept it)."""
    version_place: Rows
    """int64[n]: a place of the version's key among the sorted events."""
    last: Rows
    """int64[g]: each key's last version, -1 where nothing changed."""


def judged(rows: int, groups: int, winners: bool = True) -> Judged:
    """Room for the outcome of ``rows`` events of ``groups`` keys: at most two updates and one version an event."""
    n = rows
    return Judged(
        np.empty(n, np.uint8), np.empty(n if winners else 0, np.int64),
        np.empty(2 * n, np.int64), np.empty(2 * n, np.int64),
        np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(groups, np.int64),
    )  # fmt: skip


@kernel
def _compare(a: Rows, i: int, b: Rows, j: int, begin: int, end: int) -> int:
    """-1, 0 or 1: words [begin, end) of row i of a against those of row j of b, left to right."""
    for w in range(begin, end):
        if a[i, w] != b[j, w]:
            return 1 if a[i, w] > b[j, w] else -1
    return 0


@kernel
def _against(order: Rows, row: int, held: Rows, other: int, begin: int, end: int) -> int:
    """Compare a row's order words with those of another row, or (negative) of what a group held."""
    if other >= 0:
        return _compare(order, row, order, other, begin, end)
    return _compare(order, row, held, -1 - other, begin, end)


@kernel
def _winner(
    permutation: Rows, order: Rows, held: Rows, verdict: Flags, begin: int, end: int, bound: int, base: int, tie: int
) -> int:
    """The row that wins among places [begin, end), one key at one time, or -1 for none; -2 - row refuses the step.

    ``bound`` is whose order the key holds (`NOTHING` for no order).  Writes stale and tie_lost verdicts.
    """
    words = order.shape[1]
    best = -1
    for place in range(begin, end):
        row: int = permutation[place]
        verdict[row] = SUPERSEDED
        if bound != NOTHING:
            against = _against(order, row, held, bound, 0, base)
            if against == 0:
                if tie == ERROR:
                    return -2 - row
                further = _against(order, row, held, bound, base, words)
                if further < 0 and tie == LAST:
                    against = -1
                elif further < 0 or (further == 0 and tie == FIRST):
                    verdict[row] = TIE_LOST
                    continue
            if against < 0:
                verdict[row] = STALE
                continue
        if best >= 0:
            against = _compare(order, row, order, best, 0, base)
            if against == 0:
                if tie == ERROR:
                    return -2 - row
                against = _compare(order, row, order, best, base, words)
                if against == 0 and tie != LAST:
                    continue
            if against < 0:
                continue
        best = row
    return best


@kernel
def _settle(
    permutation: Rows, order: Rows, verdict: Flags, winner: Rows, begin: int, end: int, best: int, bound: int,
    base: int, ties: bool,
) -> None:  # fmt: skip
    """Write the verdicts of those who lost to ``best``, and whose order each event's key holds now."""
    for place in range(begin, end):
        row = permutation[place]
        if winner.size != 0:
            winner[row] = best if best >= 0 else bound
        if best >= 0 and row != best and verdict[row] == SUPERSEDED:
            tied = ties and _compare(order, row, order, best, 0, base) == 0
            verdict[row] = TIE_LOST if tied else SUPERSEDED


@kernel
def judge(events: Events, held: Held, rules: Rules, out: Judged) -> tuple[int, int, int]:
    """Fold all events over what is held.

    events, held, rules: see the fields; read.  out: written.  Returns how many updates and versions were written, and
    a row that ties under ERROR (then the outcome is void), or -1.  Under ERROR the rows of one key and time must come
    sorted by their base words.  O(n), each event twice; no allocation.

    >>> empty = np.empty(0, np.int64)
    >>> events = Events(empty, np.zeros(1, np.int64), empty, np.empty((0, 0), np.int64), np.empty(0, np.uint8),
    ...                 np.empty(0, np.uint64))
    >>> judge(events, Held(empty, np.empty(0, np.uint64), np.empty((0, 0), np.int64)),
    ...       Rules(0, LAST, True, False, -1), judged(0, 0))
    (0, 0, -1)
    """
    # Fields are taken out once: reading one inside the loops would count references for every event.
    permutation, starts, ranks, order, gone, hashes = events
    references, values, held_order = held
    base, tie, ties, keeps, since_rank = rules
    verdict, winner, update_rank, update_source, version_event, version_row, version_place, lasts = out
    words, updates, versions = order.shape[1], 0, 0
    for group in range(references.size):
        reference, value = references[group], values[group]
        live = reference & LIVE != 0
        bound = -1 - group if keeps and reference != 0 else NOTHING
        last = -1
        begin, stop = starts[group], starts[group + 1]
        while begin < stop:
            rank, end = 0, stop
            if ranks.size != 0:
                rank, end = ranks[permutation[begin]], begin + 1
                while end < stop and ranks[permutation[end]] == rank:
                    end += 1
            if end == begin + 1 and bound == NOTHING:
                best = permutation[begin]
                if winner.size != 0:
                    winner[best] = best
            else:
                best = _winner(permutation, order, held_order, verdict, begin, end, bound, base, tie)
                if best < -1:
                    return updates, versions, -2 - best
                _settle(permutation, order, verdict, winner, begin, end, best, bound, base, ties)
            begin = end
            if best < 0:
                continue
            now = gone[best] == 0
            changed = now != live or (now and hashes[best] != value)
            verdict[best] = APPLIED if changed else NOOP
            if changed and live:
                update_rank[updates], update_source[updates] = rank, reference | RETRACTED
                updates += 1
            if changed and now:
                update_rank[updates], update_source[updates] = rank, best
                updates += 1
            if changed or not now:
                reference = best
            if changed:
                live, value = now, hashes[best]
            if changed or (keeps and (bound == NOTHING or _against(order, best, held_order, bound, 0, words) != 0)):
                if last < 0 or rank > since_rank:
                    last = versions
                    versions += 1
                version_event[last], version_row[last], version_place[last] = best, reference, starts[group]
            bound = best if keeps else NOTHING
        lasts[group] = last
    return updates, versions, -1
