"""Represent the places of partitions: one place for each row and each unit of its multiplicity, in order.

The places of one partition at one time form a state. Rows with equal values in the order columns are peers, and form an
event. A window can begin within a partition; its `Prefix` then says what is before its first place.

>>> places = Places(np.array([0, 1, 1, 0]), np.array([0, 3, 4]), np.array([0, 1]))
>>> places.begin.tolist(), places.end.tolist(), places.peer_end.tolist()
([0, 0, 0, 3], [3, 3, 3, 4], [1, 3, 3, 4])
"""

from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Narrow, Words

Bounds = tuple[Ints, Ints]
"""The first place and the end of the frame of each place."""


class Prefix(NamedTuple):
    """What precedes the first place of each of s states.

    ``states``: the states of parts of aggregates, by the key of the part, for some windows. ``held``: int32[s], the
    position in these states, or -1 for empty states.  ``picked``: for some calls, by name, the row that the call picks
    from all rows before, as int64[s], or -1.
    """

    places: Ints
    """int64[s]: the number of places."""
    events: Ints
    """int64[s]: the number of events."""
    held: Narrow
    states: dict[Any, pa.Array]
    picked: dict[str, Ints]

    def take(self, windows: Ints) -> "Prefix":
        """Return the prefixes of states, given the window of each state."""
        picked = {name: rows[windows] for name, rows in self.picked.items()}
        return Prefix(self.places[windows], self.events[windows], self.held[windows], self.states, picked)


def build_empty_prefix(windows: int) -> Prefix:
    """Build the prefix of windows that begin at the start of their partition."""
    return Prefix(np.zeros(windows, np.int64), np.zeros(windows, np.int64), np.full(windows, -1, np.int32), {}, {})


class Places:
    """The e places of s states.

    ``row``: int64[e], the row of each place.  ``starts``: int64[s + 1], where each state begins.  ``event``: int64[n],
    the number of each row's event, ascending within a state.  ``prefix``: see `Prefix`.
    """

    def __init__(self, row: Ints, starts: Ints, event: Ints, prefix: Prefix | None = None) -> None:
        self.row, self.starts, self.event = row, starts, event
        self.prefix = build_empty_prefix(starts.size - 1) if prefix is None else prefix
        self.bounds: dict[Any, Bounds] = {}
        """The bounds of frames that were computed before."""

    @cached_property
    def index(self) -> Ints:
        """int64[e]: the numbers from 0."""
        return np.arange(self.row.size)

    @cached_property
    def state(self) -> Ints:
        """int64[e]: the state of each place."""
        return np.repeat(np.arange(self.starts.size - 1), np.diff(self.starts))

    @cached_property
    def begin(self) -> Ints:
        """int64[e]: the first place of the state."""
        return self.starts[self.state]

    @cached_property
    def end(self) -> Ints:
        """int64[e]: the end of the state."""
        return self.starts[1:][self.state]

    @cached_property
    def peer_number(self) -> Ints:
        """int64[e]: the number of the events up to the place, in all states together."""
        events = self.event[self.row]
        new = np.ones(events.size, bool)
        np.not_equal(events[1:], events[:-1], out=new[1:])
        new[self.starts[:-1][self.starts[:-1] < events.size]] = True
        return np.cumsum(new)

    @cached_property
    def _peer_starts(self) -> Ints:
        """Where each event begins, and the number of places."""
        return np.append(np.flatnonzero(np.diff(self.peer_number, prepend=0)), self.row.size)

    @cached_property
    def peer_begin(self) -> Ints:
        """int64[e]: the first place of the event."""
        return self._peer_starts[self.peer_number - 1]

    @cached_property
    def peer_end(self) -> Ints:
        """int64[e]: the end of the event."""
        return self._peer_starts[self.peer_number]

    @cached_property
    def event_number(self) -> Ints:
        """int64[e]: the number of each event in its partition, from 1."""
        return self.peer_number - self.peer_number[self.begin] + 1 + self.prefix.events[self.state]


MOST_LISTED: Final = 1 << 20
"""The number of places that are computed together, unless one pair of states has more."""


def list_ranges(begins: Ints, sizes: Ints) -> Ints:
    """List the numbers of ranges.  O(numbers).

    >>> list_ranges(np.array([3, 9]), np.array([2, 1])).tolist()
    [3, 4, 9]
    """
    ends = np.cumsum(sizes)
    out: Ints = np.repeat(begins - ends + sizes, sizes)
    out += np.arange(out.size)
    return out


def rank_words(words: Words) -> Ints:
    """Compute the dense rank of each row of order words, from 0.  O(n log n).

    >>> rank_words(np.array([[7, 1], [5, 9], [7, 1]], np.uint64)).tolist()
    [1, 0, 1]
    """
    sorting = np.lexsort(words.T[::-1])
    sorted_words, ranks = words[sorting], np.zeros(sorting.size, np.int64)
    ranks[sorting[1:]] = np.cumsum((sorted_words[1:] != sorted_words[:-1]).any(axis=1))
    return ranks
