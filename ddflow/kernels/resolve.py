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
>>> out.update_source[:3].tolist(), out.update_diff[:3].tolist()  # +row0@0, -row0@1, +row1@1
([0, 0, 1], [1, -1, 1])
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
    """int64[n]: the row whose order the key holds after that time, or -1 - group for what was held, or NOTHING."""
    update_rank: Rows
    """int64[2n]."""
    update_source: Rows
    """int64[2n]: a row of the events, or a reference into state."""
    update_diff: Rows
    """int64[2n]."""
    version_rank: Rows
    """int64[n]."""
    version_row: Rows
    """int64[n]: where the held row comes from: a row of the events, or a reference."""
    version_order: Rows
    """int64[n]: the row of the events whose order is held."""
    version_live: Flags
    """uint8[n]."""
    version_value: Words
    """uint64[n]."""
    last: Rows
    """int64[g]: each key's last version, -1 where nothing changed."""


def judged(rows: int, groups: int) -> Judged:
    """Room for the outcome of ``rows`` events of ``groups`` keys: at most two updates and one version an event."""
    n = rows
    return Judged(
        np.empty(n, np.uint8), np.empty(n, np.int64),
        np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int64),
        np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64),
        np.empty(n, np.uint8), np.empty(n, np.uint64), np.empty(groups, np.int64),
    )  # fmt: skip


@kernel
def _compare(a: Rows, i: int, b: Rows, j: int, begin: int, end: int) -> int:
    """-1, 0 or 1: words [begin, end) of row i of a against those of row j of b, left to right."""
    for w in range(begin, end):
        if a[i, w] != b[j, w]:
            return 1 if a[i, w] > b[j, w] else -1
    return 0


@kernel
def _against(events: Events, held: Held, row: int, other: int, begin: int, end: int) -> int:
    """Compare a row's order words with those of another row, or (negative) of what a group held."""
    if other >= 0:
        return _compare(events.order, row, events.order, other, begin, end)
    return _compare(events.order, row, held.order, -1 - other, begin, end)


@kernel
def _winner(events: Events, held: Held, rules: Rules, out: Judged, begin: int, end: int, bound: int) -> int:
    """The row that wins among places [begin, end), one key at one time, or -1 for none; -2 - row refuses the step.

    ``bound`` is whose order the key holds (`NOTHING` for no order).  Writes stale and tie_lost verdicts.
    """
    words = events.order.shape[1]
    best = -1
    for place in range(begin, end):
        row = events.permutation[place]
        out.verdict[row] = SUPERSEDED
        if words == 0 and bound == NOTHING:
            if rules.tie == ERROR and best >= 0:
                return -2 - row
            if rules.tie == LAST or best < 0:
                best = row
            continue
        if bound != NOTHING:
            against = _against(events, held, row, bound, 0, rules.base)
            if against == 0:
                if rules.tie == ERROR:
                    return -2 - row
                further = _against(events, held, row, bound, rules.base, words)
                if further < 0 and rules.tie == LAST:
                    against = -1
                elif further < 0 or (further == 0 and rules.tie == FIRST):
                    out.verdict[row] = TIE_LOST
                    continue
            if against < 0:
                out.verdict[row] = STALE
                continue
        if best >= 0:
            against = _against(events, held, row, best, 0, rules.base)
            if against == 0:
                if rules.tie == ERROR:
                    return -2 - row
                against = _against(events, held, row, best, rules.base, words)
                if against == 0 and rules.tie != LAST:
                    continue
            if against < 0:
                continue
        best = row
    return best


@kernel
def _settle(events: Events, held: Held, rules: Rules, out: Judged, begin: int, end: int, best: int, bound: int) -> None:
    """Write the verdicts of those who lost to ``best``, and whose order each event's key holds now."""
    for place in range(begin, end):
        row = events.permutation[place]
        out.winner[row] = best if best >= 0 else bound
        if best < 0 or row == best or out.verdict[row] == STALE:
            continue
        tied = rules.ties and _against(events, held, row, best, 0, rules.base) == 0
        out.verdict[row] = TIE_LOST if tied else SUPERSEDED


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
    words = events.order.shape[1]
    updates = versions = 0
    for group in range(held.reference.size):
        reference, value = held.reference[group], held.value[group]
        live = reference & LIVE != 0
        bound = -1 - group if rules.keeps and reference != 0 else NOTHING
        last = -1
        begin, stop = events.starts[group], events.starts[group + 1]
        while begin < stop:
            rank, end = 0, stop
            if events.ranks.size != 0:
                rank, end = events.ranks[events.permutation[begin]], begin + 1
                while end < stop and events.ranks[events.permutation[end]] == rank:
                    end += 1
            best = _winner(events, held, rules, out, begin, end, bound)
            if best < -1:
                return updates, versions, -2 - best
            _settle(events, held, rules, out, begin, end, best, bound)
            begin = end
            if best < 0:
                continue
            now = events.gone[best] == 0
            changed = now != live or (now and events.value[best] != value)
            out.verdict[best] = APPLIED if changed else NOOP
            if changed and live:
                out.update_rank[updates], out.update_source[updates], out.update_diff[updates] = rank, reference, -1
                updates += 1
            if changed and now:
                out.update_rank[updates], out.update_source[updates], out.update_diff[updates] = rank, best, 1
                updates += 1
            if changed or not now:
                reference = best
            if changed:
                live, value = now, events.value[best]
            if changed or (rules.keeps and (bound == NOTHING or _against(events, held, best, bound, 0, words) != 0)):
                if last < 0 or rank > rules.since_rank:
                    last = versions
                    versions += 1
                out.version_rank[last], out.version_row[last], out.version_order[last] = rank, reference, best
                out.version_live[last], out.version_value[last] = now, value
            bound = best if rules.keeps else NOTHING
        out.last[group] = last
    return updates, versions, -1
