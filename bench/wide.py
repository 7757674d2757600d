"""Generate the wide workload, whose rows have 20 columns.

A row is a pure function of its key and its *version*, which is the number of changes to the key so far. A change
affects one of the 19 columns after the key, each column in turn. So the generator needs no state, and the expected
updates follow from the versions alone.

The first events insert every key once, in random order, at version 0. Later events have random keys. Half of these
events change the row of their key, and half repeat it, as in real feeds. There are no deletes.

>>> rows(np.array([5]), np.array([0])).column_names[:3], len(rows(np.array([5]), np.array([0])).column_names)
(['key', 'i1', 'i2'], 20)
>>> before, after = (rows(np.array([5]), np.array([version])).to_pylist()[0] for version in (3, 4))
>>> [name for name in before if before[name] != after[name]]
['f3']
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DIGITS = {"s1": 1, "s2": 3, "s3": 5, "s4": 7, "s5": 9, "s6": 12}  # maximum digits of a text column, before its changes
CHANGING = (*(f"i{n}" for n in range(1, 8)), *(f"f{n}" for n in range(1, 5)), *DIGITS, "at", "flag")
NAMES = ("key", *CHANGING)


class Wide(NamedTuple):
    """A size: ``n`` events over ``keys`` keys; the first ``keys`` events insert each key once."""

    n: int
    keys: int
    per_time: int = 1000
    seed: int = 0


def build(shape: Wide) -> pa.Table:
    """Make the events in memory, with one chunk for each column. O(n) time.

    Columns: ``key``, ``i1``-``i7`` int64, ``f1``-``f4`` float64, ``s1``-``s6`` text of 6 to 17 bytes, ``at`` a
    timestamp, ``flag``; then the clock ``time``, which never decreases.
    """
    key, version, time = events(shape)
    return rows(key, version).append_column("time", pa.array(time))


def events(shape: Wide) -> tuple[Any, Any, Any]:
    """Return key, version and time of each event."""
    rng = np.random.default_rng(shape.seed)
    later = shape.n - shape.keys
    key = np.concatenate((rng.permutation(shape.keys), rng.integers(0, shape.keys, later)))
    changes = np.concatenate((np.zeros(shape.keys, bool), rng.random(later) < 0.5))
    order = np.argsort(key, kind="stable")
    counted = np.cumsum(changes[order])
    first = np.flatnonzero(np.insert(np.diff(key[order]) != 0, 0, True))  # a key's first event changes nothing
    version = np.empty(shape.n, np.int64)
    version[order] = counted - np.repeat(counted[first], np.diff(np.append(first, shape.n)))
    return key, version, np.arange(shape.n) // shape.per_time


def rows(key: Any, version: Any) -> pa.Table:
    """Return the rows of the given keys at the given versions. O(n)."""
    columns = [pa.array(key)]
    for place, name in enumerate(CHANGING):
        first = (place - key - 1) % len(CHANGING) + 1  # the key's first change to this column
        changes = np.maximum(0, (version - first + len(CHANGING)) // len(CHANGING))
        columns.append(_column(name, _drawn(key, place), changes))
    return pa.table(columns, names=NAMES)


def _column(name: str, drawn: Any, changes: Any) -> pa.Array:
    """Make a column.

    A value follows from the random number of its row and the number of changes. Each change gives a new value.
    """
    if name in DIGITS:
        digits = pc.cast(pa.array(drawn % 10 ** DIGITS[name] + changes), pa.string())
        return pc.binary_join_element_wise(pa.scalar("text-"), digits, "")
    if name == "flag":
        return pa.array((drawn + changes) % 2 == 1)
    if name == "at":
        seconds = 1_700_000_000 + drawn % 100_000_000 + changes
        return pa.array(seconds * 1_000_000, pa.timestamp("us"))
    number = drawn % 1_000_000 + changes
    return pa.array(number / 8 if name.startswith("f") else number)


def _drawn(key: Any, place: int) -> Any:
    """Return a random number of 62 bits for each key, different for every column."""
    z = key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64((place + 1) * 0xBF58476D1CE4E5B9 % 2**64)
    z ^= z >> np.uint64(31)
    z *= np.uint64(0x94D049BB133111EB)
    return (z >> np.uint64(2)).astype(np.int64)
