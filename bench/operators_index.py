"""Measure the index of ordered arrangements: nanoseconds for a look-up and for a write, and bytes for an entry.

Only calls of `OrderedIndex` are timed. As in the operators of ddflow, identities are sorted and have three words: two
words for the group and one for the order. Look-ups must find all written entries, and each group must have the rows
written to it.

>>> found = measured(entries=4000, step=1000)
>>> sorted(found)
['bytes_per_entry', 'checksum', 'ns_a_first', 'ns_a_look_up', 'ns_a_write', 'rows', 'seconds']
>>> found["checksum"] == f"{4000:016x}"
True
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

GROUP = 1000
"""The final number of entries in a group."""
FIRST = 10
"""The number of entries to find in each group."""


def measured(entries: int, step: int) -> dict[str, Any]:
    """Write entries in sorted steps. Look up each entry before the step that writes it, and again after this step.

    Then find the first ten entries of every group.

    Only the last half of the steps is timed. Raises AssertionError if an entry is not found.
    """
    from ddflow.trace.index import IndexWrite
    from ddflow.trace.ordered_index import OrderedIndex

    chance, index = np.random.default_rng(5), OrderedIndex(words=1)
    live = np.ones(step, np.uint8)
    groups, clock = max(entries // GROUP, 1), time.process_time
    looked, wrote, counted, ones = 0.0, 0.0, 0, np.ones(step, np.uint64)
    every, begun = np.arange(step), time.perf_counter()
    words = chance.permutation(entries).astype(np.int64)
    for number, begin in enumerate(range(0, entries, step)):
        order = words[begin : begin + step]
        group = (order % groups).astype(np.uint64)
        at = np.lexsort((order, group))
        high, more = group[at], order[at].reshape(-1, 1)
        start = clock()
        prior = index.look_up_keys(high, high, every, order=more)
        middle = clock()
        index.write(IndexWrite(prior.place, index.built, every, high, high, ones, live, more, slot=number))
        end = clock()
        if 2 * begin >= entries:
            looked, wrote, counted = looked + middle - start, wrote + end - middle, counted + step
        assert (index.look_up_keys(high, high, every, order=more).place >= 0).all()
    asked = np.arange(groups, dtype=np.uint64)
    start = clock()
    first = index.find_group_rows(asked, asked, most=FIRST)
    of_first = clock() - start
    assert first.begins[-1] == sum(min(FIRST, -(-(entries - group) // groups)) for group in range(groups))
    return {
        "rows": entries,
        "seconds": time.perf_counter() - begun,
        "ns_a_look_up": looked * 1e9 / counted,
        "ns_a_write": wrote * 1e9 / counted,
        "ns_a_first": of_first * 1e9 / int(first.begins[-1]),
        "bytes_per_entry": index.nbytes / len(index),
        "checksum": f"{len(index):016x}",
    }
