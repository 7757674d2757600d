"""What is kept of a group's values: a state for each group, folded cell by cell.

Invariant: a state depends on the rows that are there, not on the order in which they came or on rows that left; of no
rows it is nothing (0, or empty). So a group without rows leaves nothing behind.

>>> from ddflow.kernels.accumulate import GroupTimeCells
>>> ints = lambda *v: np.array(v, np.int64)
>>> folding = UpdatesByGroup(GroupTimeCells(ints(0, 1), ints(0, 2), ints(0, 1)), ints(1, -1), ints(), 1, ints(0), None)
>>> CountPart().fold_updates(folding, pa.array([], pa.int64()), pa.array([7, None])).to_pylist()
[1]
>>> states = ExactSumPart(pa.float64()).fold_updates(folding, pa.array([], BYTES), pa.array([0.1, 0.1]))
>>> states.to_pylist()
[b'']
>>> decode_sums(states)
[0]
"""

from abc import abstractmethod
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, Words, unpack_validity, view_values
from ddflow.columns.layout import buffer_address, make_writable
from ddflow.kernels import exact
from ddflow.kernels.accumulate import GroupTimeCells, accumulate_diffs
from ddflow.kernels.exact_results import LEAST

BYTES: Final = pa.large_binary()
INT64: Final = np.dtype(np.int64)
FAR: Final = 1 << 61
"""Counts below it have differences that can be added."""


class ValueOverflow(Exception):
    """A value leaves its type.  ``place``: that of the state it is made of."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class UpdatesByGroup(NamedTuple):
    """The updates of a step, by group and time."""

    cells: GroupTimeCells
    diffs: Ints
    """int64[n], by row."""
    lived: Ints
    """The groups that had a state, ascending."""
    groups: int
    """How many there are."""
    of: Ints
    """int64[c]: the groups of cells."""
    shared: pa.Array | None
    """How many rows groups had, then had after cells, once that is known."""


class StatePart:
    """What is kept of the values of one argument.  ``kind``: the type of states."""

    kind: pa.DataType

    @abstractmethod
    def fold_updates(self, folding: UpdatesByGroup, held: pa.Array, values: Any) -> pa.Array:
        """Return the states after each cell.  O(updates).  Raises `ValueOverflow`.

        ``held``: prior states of live groups.
        """

    @abstractmethod
    def mark_nonempty(self, states: pa.Array) -> Any:
        """bool[n]: which states are not those of no rows."""

    def widen_states(self, states: pa.Array, narrow: Any) -> pa.Array:
        """States of the same part of narrower values, ``narrow``, as its own.  O(bytes)."""
        return states


class CountPart(StatePart):
    """How many values are not null."""

    kind = pa.int64()

    def fold_updates(self, folding: UpdatesByGroup, held: pa.Array, values: Any) -> pa.Array:
        """See `StatePart.fold`.  ``values``: None where every row counts."""
        before, had, n = np.zeros(folding.groups, np.int64), view_values(held, INT64), len(held)
        if values is not None and not values.null_count and folding.shared is not None:
            rows = view_values(folding.shared, INT64)
            if all(max(each.max(initial=0), -each.min(initial=0)) < FAR for each in (rows, had)):
                before[folding.lived] = had - rows[:n]
                return pa.array(rows[n:] + before.take(folding.of))
        out = np.empty(folding.cells.starts.size - 1, np.int64)
        before[folding.lived] = had
        present = np.empty(0, np.uint8) if values is None else unpack_validity(values)
        beyond = accumulate_diffs(folding.cells, present, folding.diffs, before, out)
        if beyond >= 0:
            raise ValueOverflow(beyond)
        return pa.Array.from_buffers(pa.int64(), out.size, [None, pa.py_buffer(out)])

    def mark_nonempty(self, states: pa.Array) -> Any:
        """See `StatePart.mark_nonempty`."""
        return view_values(states, INT64) != 0


FRACTION: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""The digits of a second that a unit of time has."""


class ExactSumPart(StatePart):
    """The exact sum of values of a type, or of their squares; see `kernels.exact`.

    ``unit``, ``scale``: its unit is 2 to the one, by 10 to the other.  Of durations: what they count, of a second.

    >>> narrow, wide = ExactSumPart(pa.int32()), ExactSumPart(pa.decimal128(12, 2))
    >>> decode_sums(wide.widen_states(pa.array([encode_sum(-7), b""], BYTES), narrow))
    [-700, 0]
    """

    kind = BYTES

    def __init__(self, of: pa.DataType, square: bool = False) -> None:
        self.square = square
        if pat.is_decimal(of):
            self.word, self.how = pa.decimal128(of.precision, of.scale), exact.DECIMAL
        else:
            self.word, self.how = (pa.float64(), exact.FLOAT) if pat.is_floating(of) else (pa.int64(), exact.INTEGER)
        times = 2 if square else 1
        self.unit = times * LEAST if self.how == exact.FLOAT else 0
        self.scale = times * (
            of.scale if self.how == exact.DECIMAL else FRACTION[of.unit] if pat.is_duration(of) else 0
        )

    def fold_updates(self, folding: UpdatesByGroup, held: pa.Array, values: Any) -> pa.Array:
        """See `StatePart.fold`."""
        cells, values = folding.cells, values.cast(self.word)
        size = 2 * len(values) if self.how == exact.DECIMAL else len(values)
        at = np.dtype(np.uint64)
        if self.how == exact.DECIMAL and size:
            words: Words = make_writable(np.frombuffer(values.buffers()[1], at, size, 16 * values.offset))
        else:
            words = view_values(values, at)
        held_ends, held_at = _lay_out_prior_states(folding, held)
        work = np.zeros(exact.WORK, np.uint64)
        ends, present = np.zeros(cells.starts.size, np.int64), unpack_validity(values)
        out, begin, room = np.empty(0, np.uint8), 0, 64 * ends.size + exact.MOST
        given = cells, words, present, folding.diffs.view(np.uint64), self.how, self.square, held_ends, held_at
        while begin < folding.groups:
            used, mine = int(ends[cells.firsts[begin]]), int(cells.firsts[begin + 1] - cells.firsts[begin])
            more = np.empty(max(room, used + mine * exact.MOST), np.uint8)
            more[:used] = out[:used]
            out, room = more, 2 * more.size
            begin = exact.accumulate_sums(*given, work, begin, ends, out)
        return pa.Array.from_buffers(
            BYTES, ends.size - 1, [None, pa.py_buffer(ends), pa.py_buffer(out[: int(ends[-1])].copy())]
        )

    def mark_nonempty(self, states: pa.Array) -> Any:
        """See `StatePart.mark_nonempty`."""
        ends, _ = find_state_ends(states)
        return ends[1:] != ends[:-1]

    def widen_states(self, states: pa.Array, narrow: Any) -> pa.Array:
        """See `StatePart.widen_states`: the same sums, in a unit that is a part of the narrower one."""
        times = 10 ** (self.scale - narrow.scale) << (narrow.unit - self.unit)
        if times == 1:
            return states
        # Doubles, of which NaN may be counted, have no other unit.
        return pa.array([encode_sum(times * each) for each in decode_sums(states) if each is not None], BYTES)


def _lay_out_prior_states(folding: UpdatesByGroup, held: pa.Array) -> tuple[Ints, Any]:
    """Lay out the prior states of all groups one after the other: return their ends, and their address."""
    ends, at = find_state_ends(held)
    sizes = np.zeros(folding.groups + 1, np.int64)
    sizes[folding.lived + 1] = ends[1:] - ends[:-1]
    return np.cumsum(sizes), at + np.uint64(ends[0])


def find_state_ends(states: pa.Array) -> tuple[Ints, Any]:
    """Where states end in their bytes, int64[n + 1], and the address of those."""
    buffers = states.buffers()
    if not len(states):
        return np.zeros(1, np.int64), np.uint64(0)
    ends = make_writable(np.frombuffer(buffers[1], np.int64, len(states) + 1, 8 * states.offset))
    return ends, np.uint64(buffer_address(buffers[2]))


def decode_sums(states: pa.Array) -> list[int | None]:
    """Exact sums as numbers of their unit; None where NaN or infinities are counted.  O(bytes)."""
    return [_decode_sum(state) for state in states.to_pylist()]


def encode_sum(number: int) -> bytes:
    """Encode a number of units as a state; see `kernels.exact`."""
    if not number:
        return b""
    place = ((number & -number).bit_length() - 1) // 32
    digits = number >> 32 * place
    size = (digits if digits >= 0 else ~digits).bit_length() // 32 + 1
    return place.to_bytes(4, "little") + digits.to_bytes(4 * size, "little", signed=True)


def _decode_sum(state: bytes) -> int | None:
    header = int.from_bytes(state[:4], "little")
    if header & 7 * exact.NEVER:
        return None
    return int.from_bytes(state[4:], "little", signed=True) << 32 * (header & 0xFFFF)
