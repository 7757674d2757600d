"""Lists of cells: which cells of a key make its list after each of its times, and which of their elements are distinct.

Invariant: what a key's list is made of stands together: the held cell and those folded since it was cleared, in order,
are a *stretch*, and the list after each of its times is a beginning of one. So a list that grows over many times is
listed once, and duplicates, of which the first stays, are dropped once a stretch. One key may have all events of a
step, so no list may cost quadratic when it is long; and a list that was too long for its limit must be seen though a
later event clears it. Elements are row numbers and hashes here; the payload is Arrow's.

>>> import numpy as np
>>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
>>> walked, parts, stretches = Walked(few(1, 0), few(0, 1, 2), few(0, 2)), ints(0, 0, 0), ints(0, 0, 0, 0)
>>> begins, stops = ints(0, 0), ints(0, 0)
>>> contributions(walked, flags(TAKE, TAKE), flags(), 2, flags(1), parts, stretches, begins, stops)
(3, 1)
>>> parts.tolist(), begins.tolist(), stops.tolist()  # the held cell is numbered behind the two rows
([2, 1, 0], [0, 0], [2, 3])
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.fold import CLEAR, TAKE, Walked

FEW = 24
"""Elements of a stretch above which they are looked up in a table."""


@kernel
def contributions(
    walked: Walked,
    action: Flags,
    counts: Flags,
    rows: int,
    had: Flags,
    parts: Ints,
    stretches: Ints,
    begins: Ints,
    stops: Ints,
) -> tuple[int, int]:
    """List the cells that lists are made of.

    walked, action, counts: as `kernels.fold.choose` takes them.  rows: how many the events have; had: uint8[g], whether
    a key holds a list.  Written: parts int64[p + g], a row, or ``rows`` + group for the held list; stretches int64[p +
    g + 1], where in parts each begins; by key and time, int64[m]: begins and stops, its list's range of parts, empty
    where there is no list.  Returns how many parts and stretches.  O(p + m).

    >>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
    >>> walked = Walked(few(0), few(0, 1), few(0, 1))
    >>> contributions(walked, flags(CLEAR), flags(), 1, flags(1), ints(0, 0), ints(0, 0, 0), ints(0), ints(0))
    (1, 1)
    """
    permutation, key_times, keys = walked
    every = counts.size == 0
    made = opened = 0
    for group in range(keys.size - 1):
        start = made
        if had[group] != 0:
            parts[made] = rows + group
            made += 1
        for key_time in range(keys[group], keys[group + 1]):
            for place in range(key_times[key_time], key_times[key_time + 1]):
                if action[place] == TAKE:
                    row = permutation[place]
                    parts[made] = row
                    made += 1 if every or counts[row] != 0 else 0
                elif action[place] >= CLEAR:
                    if made > start:
                        stretches[opened] = start
                        opened += 1
                    start = made
            begins[key_time], stops[key_time] = start, made
        if made > start:
            stretches[opened] = start
            opened += 1
    stretches[opened] = made
    return made, opened


@kernel
def spelled(first: Ints, ends: Ints, out: Ints) -> None:
    """Spell out ranges of numbers, one after the other.

    first: int64[r], where each begins.  ends: int64[r + 1], from 0 on, where each ends in out.  out: written,
    int64[ends[r]].  O(r + out).

    >>> out = np.empty(3, np.int64)
    >>> spelled(np.array([7, 4]), np.array([0, 2, 3]), out), out.tolist()
    (None, [7, 8, 4])
    """
    for i in range(first.size):
        number = first[i]
        for at in range(ends[i], ends[i + 1]):
            out[at] = number
            number += 1


@kernel
def distinct(hashes: Words, elements: Ints, ends: Ints, kept: Flags) -> None:
    """Mark the first of equal elements of each stretch.

    hashes: uint64, by element.  elements: int64[e]; ends: int64[s + 1], where each stretch begins in them.  kept:
    uint8[e], written.  O(e) expected; scratch of the longest stretch.

    >>> kept = np.empty(4, np.uint8)
    >>> distinct(np.array([5, 6], np.uint64), np.array([0, 1, 0, 0]), np.array([0, 3, 4]), kept), kept.tolist()
    (None, [1, 1, 0, 1])
    """
    few, table = np.empty(FEW, np.uint64), np.empty(0, np.int64)
    for stretch in range(ends.size - 1):
        begin, end = ends[stretch], ends[stretch + 1]
        if end - begin <= FEW:
            size = 0
            for at in range(begin, end):
                value, i = hashes[elements[at]], 0
                while i < size and few[i] != value:
                    i += 1
                kept[at] = i == size
                if i == size:
                    few[size] = value
                    size += 1
            continue
        slots = 1
        while slots < 2 * (end - begin):
            slots *= 2
        if table.size < slots:
            table = np.empty(slots, np.int64)
        table[:slots] = -1
        for at in range(begin, end):
            value = hashes[elements[at]]
            slot = np.int64(value & np.uint64(slots - 1))
            while table[slot] >= 0 and hashes[table[slot]] != value:
                slot = (slot + 1) & (slots - 1)
            kept[at] = table[slot] < 0
            if table[slot] < 0:
                table[slot] = elements[at]
