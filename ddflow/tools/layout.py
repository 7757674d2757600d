"""What an arrangement weighs, and how that goes up and down over steps, in numbers alone: no row is ever made.

Invariant: the rules are the arrangement's own (``choose`` of its spine, the growth of its index), and the weights stand
in `weigh` and nowhere else; so when a layout changes, this file is where estimates learn of it. State is not
proportional to keys. The index grows by half when it is full; batches fill with versions that were replaced, until all
are merged, and while that goes on both copies take memory; so the same keys take twice as much just before a merge as
after one, and how much exactly depends on what each step wrote. It looks at no data: ``sizing`` counts, and asks here.

>>> rise = Rise(Weights(entry=24, written=33.0, merged=24.0, keeps=False))
>>> for step in range(4):  # four times the same 1000 keys
...     rise.step(Brought(keys=1000, written=1000, entered=1000 * (step == 0), revived=0, live=1000, dead=0))
...     print(rise.bytes_index, rise.bytes_batches, rise.versions)
43008 33000 1000
74712 66000 2000
74712 24000 1000
74712 57000 2000
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from ddflow.columns.hashing import is_wide
from ddflow.operators.upsert.orders import orders
from ddflow.plan.bind import Bound
from ddflow.trace.index import LEAST, LOAD, SPARE
from ddflow.trace.spine import EFFORT, FAN, MOST, PIECE, choose

WORD: Final = 8
"""Bytes of an identity's word, a value hash, a reference, a time, an order word."""
FLAG: Final = 1
"""Bytes of a version's liveness."""


class Weights(NamedTuple):
    """Bytes, payload included.  ``keeps``: whether deleted keys keep their entry and a version."""

    entry: int
    """Of a slot of the index, taken or free."""
    written: float
    """Of a version as steps write it, where no history is kept and so a step has one time."""
    merged: float
    """Of a version after a merge for which all times are one and all versions live."""
    keeps: bool


def weigh(bound: Bound, payload: float) -> Weights:
    """The weights of a source's arrangement.  ``payload``: bytes of a row's columns, on average."""
    order, wide = orders(bound), is_wide(bound.key_schema)
    kept = WORD * (1 + wide + order.words) + payload
    live = FLAG if order.keeps else 0
    return Weights(WORD * (3 + wide + order.words), kept + FLAG, kept + live, order.keeps)


class Brought(NamedTuple):
    """What one step brings, in keys."""

    keys: int
    """That it names."""
    written: int
    """That it writes a version of."""
    entered: int
    """Of those, such as no step wrote before."""
    revived: int
    """Of those, such as were deleted and live again."""
    live: int
    """That are live after it."""
    dead: int
    """That were ever named and are not live."""


class _Run:
    """Versions of evenly spread identities, eaten from the least on; memory comes free a part at a time."""

    def __init__(self, versions: float, weight: float, parts: int) -> None:
        self.versions, self.weight, self.parts, self.eaten = versions, weight, parts, 0.0

    def __len__(self) -> int:
        return round(self.versions * (1 - self.eaten))

    @property
    def nbytes(self) -> float:
        return self.versions * self.weight * (1 - math.floor(self.eaten * self.parts) / max(self.parts, 1))


class _Merge:
    """Runs that become one; see ``arrange.merge``.  ``whole``: nothing older is held."""

    def __init__(self, inputs: list[_Run], whole: bool) -> None:
        self.inputs, self.whole, self.credit = inputs, whole, 0
        self.total = sum(map(len, inputs))
        self.output = _Run(0, 0, 0)

    def __len__(self) -> int:
        return self.owed + len(self.output)

    @property
    def owed(self) -> int:
        return sum(map(len, self.inputs))

    @property
    def nbytes(self) -> float:
        return sum(run.nbytes for run in self.inputs) + self.output.nbytes

    def advance(self, versions: int, stay: float, weight: float) -> int:
        """Go through about so many; ``stay``: how many of all versions the whole merge would leave as things are."""
        owed, before = self.owed, self.inputs[0].eaten
        after = 1.0 if owed <= versions + versions // 4 else before + versions / self.total
        for run in self.inputs:
            run.eaten = after
        self.output.versions += (after - before) * stay
        self.output.weight, self.output.parts = weight, self.output.parts + 1
        return owed - self.owed


class Rise:
    """An arrangement that only knows how large it is."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.capacity, self.used, self.entered, self.live = LEAST, 0, 0, 0
        self.items: list[_Run | _Merge] = []

    @property
    def bytes_index(self) -> int:
        """Of the index, free slots included."""
        return (self.capacity + SPARE) * self.weights.entry

    @property
    def bytes_batches(self) -> int:
        """Of all batches."""
        return round(sum(item.nbytes for item in self.items))

    @property
    def versions(self) -> int:
        """In all batches."""
        return sum(map(len, self.items))

    def step(self, brought: Brought) -> None:
        """Take a step in.  O(runs)."""
        need = int((self.used + brought.keys) / LOAD)
        if need > self.capacity:
            self.capacity = max(need, self.capacity + self.capacity // 2)
            # Deletions that need not stay are left behind when the table is rebuilt.
            self.used = self.used if self.weights.keeps else self.live
        if brought.revived:
            # Of the keys that are dead, some lost their entry to a rebuild.
            brought_back = brought.revived * (self.entered - self.used) / max(self.entered - self.live, 1)
            self.used += round(brought_back)
        self.used += brought.entered
        self.entered, self.live = self.entered + brought.entered, brought.live
        stay = brought.live + (brought.dead if self.weights.keeps else 0)
        if brought.written:
            self.items.append(_Run(brought.written, self.weights.written, 1))
            self._plan()
            self._work(brought.written, stay)

    def _plan(self) -> None:
        """As ``Spine.plan``."""
        while True:
            start = next((i + 1 for i in range(len(self.items) - 1, -1, -1) if isinstance(self.items[i], _Merge)), 0)
            runs = [item for item in self.items[start:] if isinstance(item, _Run)]
            first = choose([len(run) for run in runs], self.used if start == 0 else None, FAN)
            if first is None:
                return
            self.items[start + first :] = [_Merge(runs[first:], start + first == 0)]

    def _work(self, paid: int, stay: int) -> None:
        """As ``Spine.work``.  ``stay``: versions that are current."""
        newer = 0
        for i in range(len(self.items) - 1, -1, -1):
            item = self.items[i]
            if isinstance(item, _Merge):
                item.credit += EFFORT * paid
                settled = item.whole or self.weights.keeps
                # Of what is drawn evenly from all keys, so many differ; those that newer runs replaced may go.
                keys = stay if item.whole else stay * -math.expm1(-item.total / stay) if stay else 0.0
                keys -= min(newer, keys) if settled else 0
                weight = self.weights.merged if settled else self.weights.written
                while (owed := item.owed) and item.credit >= min(PIECE, owed):
                    item.credit -= item.advance(min(item.credit, MOST), keys, weight)
                if not item.owed:
                    self.items[i] = item.output
            newer += len(self.items[i])
