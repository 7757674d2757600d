"""Remember what precedes some rows of large partitions, so that a step reads only the rows from there on.

A mark is an event of a partition. It holds the number of places and events before this event, and the states of
aggregates over the rows before it. Marks describe the rows of the last step. They are taken from rows that a step reads
anyway, and a change drops the marks after it. They are not part of the stored state.

>>> marks = Marks()
>>> marks.add((1, 1), [Mark((5,), 600, 600, (), ())])
>>> marks.find((1, 1), (7,), 0).places, marks.find((1, 1), (4,), 0)
(600, None)
>>> marks.drop_after((1, 1), (5,)), marks.find((1, 1), (7,), 0).places
(None, 600)
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from ddflow.columns.hashing import Ints
from ddflow.operators.window.places import Places

Group = tuple[int, int]
Place = tuple[int, ...]
"""The order words of a row."""
STRIDE: Final = 512
"""The least number of places between two marks."""
BYTES: Final = 400
"""The approximate memory of a mark."""


class Mark(NamedTuple):
    """What precedes an event."""

    at: Place
    places: int
    events: int
    states: tuple[Any, ...]
    picked: tuple[Place | None, ...]
    """For each call that picks a row from all rows before: all words of the row, or None."""


class Marks:
    """The marks of all partitions, by the identity words of the partition."""

    def __init__(self) -> None:
        self.by_group: dict[Group, list[Mark]] = {}

    def find(self, group: Group, at: Place, less: int) -> Mark | None:
        """Find the last mark at or before a place that has at least ``less`` places after it.  O(log marks)."""
        marks = self.by_group.get(group, [])
        i = bisect_right(marks, at, key=attrgetter("at")) - 1
        if i >= 0 and less:
            i = bisect_right(marks, marks[i].places - less, key=attrgetter("places")) - 1
        return marks[i] if i >= 0 else None

    def add(self, group: Group, made: Sequence[Mark]) -> None:
        """Add marks after the existing ones of a partition."""
        self.by_group.setdefault(group, []).extend(made)

    def choose_places(self, group: Group, places: Places, state: int, ties: Any) -> Ints:
        """Choose places of a state for new marks, and return their distances from the start of the state.  O(places).

        ``ties``: bool[n], whether the order words of a row equal those of the row before.
        """
        row, marks = places.row[places.starts[state] : places.starts[state + 1]], self.by_group.get(group)
        skipped = marks[-1].places - int(places.prefix.places[state]) if marks else 0
        begun = np.append(True, ~ties[row[1:]] & (row[1:] != row[:-1]))
        begins = np.maximum.accumulate(np.where(begun, np.arange(row.size), 0))
        at = np.unique(begins[skipped + STRIDE :: STRIDE])
        return at[at > skipped]

    def drop_after(self, group: Group, at: Place) -> None:
        """Drop the marks after a place."""
        marks = self.by_group.get(group, [])
        del marks[bisect_right(marks, at, key=attrgetter("at")) :]
        if not marks:
            self.by_group.pop(group, None)

    @property
    def nbytes(self) -> int:
        """The approximate size in memory, in bytes.  O(partitions with marks)."""
        return BYTES * sum(map(len, self.by_group.values()))
