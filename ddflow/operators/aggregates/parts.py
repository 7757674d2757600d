"""Keep a state for each group, such as an exact sum, and update it cell by cell. See `StatePart`.

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
"""Counts below this bound can be added and subtracted without overflow."""


class ValueOverflow(Exception):
    """An error for a value that is outside its type. ``place``: the position of the state."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class UpdatesByGroup(NamedTuple):
    """The updates of a step, sorted by group and time.

    The updates form c cells; each cell has one group and one time.
    """

    cells: GroupTimeCells
    diffs: Ints
    """int64[n]: the diff of each row."""
    lived: Ints
    """The groups that have a stored state, ascending."""
    groups: int
    """The number of groups."""
    of: Ints
    """int64[c]: the group of each cell."""
    shared: pa.Array | None
    """The row counts of the groups before the step, followed by the row counts after each cell.

    None until they are computed.
    """


class StatePart:
    """A kind of state for the values of one argument. ``kind``: the Arrow type of the states.

    Guarantees: a state depends only on the group's current rows, not on the order of their arrival or on retracted
    rows. The state of a group without rows is 0 or empty.
    """

    kind: pa.DataType

    @abstractmethod
    def fold_updates(self, folding: UpdatesByGroup, held: pa.Array, values: Any) -> pa.Array:
        """Return the state after each cell.

        O(updates). Raises `ValueOverflow`.

        ``held``: the stored states of the groups that have one.
        """

    @abstractmethod
    def mark_nonempty(self, states: pa.Array) -> Any:
        """Return bool[n], true for states that differ from the state of a group without rows."""

    def widen_states(self, states: pa.Array, narrow: Any) -> pa.Array:
        """Convert states of ``narrow``, the same part over a narrower type, to states of this part. O(bytes)."""
        return states


class CountPart(StatePart):
    """The number of values that are not null."""

    kind = pa.int64()

    def fold_updates(self, folding: UpdatesByGroup, held: pa.Array, values: Any) -> pa.Array:
        """See `StatePart.fold_updates`. ``values``: the values to count, or None to count all rows."""
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
"""The number of decimal digits of a second in each time unit."""


class ExactSumPart(StatePart):
    """The exact sum of the values of a type, or of their squares; see `kernels.exact`.

    ``unit``, ``scale``: a state is a multiple of 2**unit / 10**scale; durations are in seconds.

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
        """See `StatePart.fold_updates`."""
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
        """Return the same sums as multiples of this part's unit, which is smaller than the narrow unit and divides it.

        See `StatePart.widen_states`.
        """
        times = 10 ** (self.scale - narrow.scale) << (narrow.unit - self.unit)
        if times == 1:
            return states
        # Only doubles can be NaN, and all doubles share one unit.
        return pa.array([encode_sum(times * each) for each in decode_sums(states) if each is not None], BYTES)


def _lay_out_prior_states(folding: UpdatesByGroup, held: pa.Array) -> tuple[Ints, Any]:
    """Write the states of all groups before the step one after the other.

    Return where each state ends, and the address of the first state.
    """
    ends, at = find_state_ends(held)
    sizes = np.zeros(folding.groups + 1, np.int64)
    sizes[folding.lived + 1] = ends[1:] - ends[:-1]
    return np.cumsum(sizes), at + np.uint64(ends[0])


def find_state_ends(states: pa.Array) -> tuple[Ints, Any]:
    """Return where each state ends in the bytes of the column, as int64[n + 1], and the address of the bytes."""
    buffers = states.buffers()
    if not len(states):
        return np.zeros(1, np.int64), np.uint64(0)
    ends = make_writable(np.frombuffer(buffers[1], np.int64, len(states) + 1, 8 * states.offset))
    return ends, np.uint64(buffer_address(buffers[2]))


def decode_sums(states: pa.Array) -> list[int | None]:
    """Decode exact sums to multiples of their unit. A sum that includes NaN or infinities becomes None. O(bytes)."""
    return [_decode_sum(state) for state in states.to_pylist()]


def encode_sum(number: int) -> bytes:
    """Encode a multiple of the unit as a state of `kernels.exact`."""
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
