"""Chains: the events of each key one after the other, the k-th of every key together.

Invariant: a round holds one event of each key that has one more, and the keys of a round are the first of those of the
round before it; so what keys have become in one is a slice away from what the next begins with. A function of columns
must see every key at most once a call, so there are as many calls as the longest chain has events, and whatever is done
in a call must cost the keys that are still in it, not all there are. Who is folded the walk has decided; what is made
of it is ``rounds``' and ``machines``'.

>>> few = lambda *values: np.array(values, np.int32)
>>> walked = Walked(few(0, 1, 2), few(0, 1, 2, 3), few(0, 1, 3))  # one event of a key, two of another
>>> chains = Chains(walked, np.array([TAKE, TAKE, TAKE], np.uint8))
>>> chains.keys.tolist(), chains.offsets.tolist(), chains.rows.tolist(), chains.shown.tolist()
([1, 0], [0, 2, 3], [1, 0, 2], [1, 0, 2])
"""

import numpy as np

from ddflow.columns.hashing import Flags, Ints, Narrow
from ddflow.kernels.fold import SKIP, TAKE, Walked


class Chains:
    """``walked``: m (key, time) groups of g keys.  ``action``: uint8[p], by place: SKIP, TAKE or CLEAR.
    O(p + g log g).

    ``keys``: int64[g], those with the longest chains first.  ``offsets``: int64[rounds + 1], where each round begins.
    Of all that is folded, by round: ``rows``, int64, the event; ``takes``, whether it is folded and does not clear;
    ``ends``, whether it is the last one of its (key, time).  ``shown``: int64[m], of each (key, time) the number of the
    end that made it, counted from 0; or, where there was none yet, the number of ends and its key.
    """

    def __init__(self, walked: Walked, action: Flags) -> None:
        permutation, key_times, begins = walked
        acting, g, m = np.flatnonzero(action != SKIP), begins.size - 1, key_times.size - 1
        cuts = np.searchsorted(acting, key_times[begins])
        counts = np.diff(cuts)
        self.keys: Ints = np.argsort(-counts, kind="stable")
        rank: Ints = np.empty(g, np.int64)
        rank[self.keys] = np.arange(g)
        key = np.repeat(np.arange(g), counts)
        link = np.arange(acting.size) - np.repeat(cuts[:-1], counts)
        self.offsets: Ints = np.concatenate([[0], np.cumsum(np.bincount(link))]).astype(np.int64)
        position = self.offsets[link] + rank[key]
        place: Ints = np.empty(acting.size, np.int64)
        place[position] = acting
        self.places = place
        self.rows: Ints = permutation[place].astype(np.int64)
        self.takes = action[place] == TAKE
        of = np.searchsorted(key_times, acting, "right") - 1
        last = np.append(of[1:] != of[:-1], np.ones(min(of.size, 1), np.bool_))
        self.ends = np.zeros(acting.size, np.bool_)
        self.ends[position[last]] = True
        self.shown = self._number_ends(m, of[last], (np.cumsum(self.ends) - 1)[position[last]], begins)

    @staticmethod
    def _number_ends(m: int, ended: Ints, number: Ints, begins: Narrow) -> Ints:
        made, since = np.full(m, -1, np.int64), np.full(m, -1, np.int64)
        made[ended], since[ended] = number, ended
        since = np.maximum.accumulate(since) if m else since
        key = np.repeat(np.arange(begins.size - 1), np.diff(begins))
        return np.where(since >= begins[key], made[since], ended.size + key)

    def __len__(self) -> int:
        return self.offsets.size - 1
