"""Keep a state for each group, such as an exact sum, and update it cell by cell. See `StatePart`.

>>> few, ints = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64))
>>> folding = UpdatesByCell(few(0, 0), few(-1), ints(1, -1), 0)
>>> CountPart().fold_updates(folding, pa.array([], pa.int64()), pa.array([7, None])).to_pylist()
[1]
>>> part = build_sum_part(pa.int64())
>>> decode_sums(part.fold_updates(folding, pa.array([], part.kind), pa.array([7, 5])))
[2]
>>> states = ExactSumPart(pa.float64()).fold_updates(folding, pa.array([], BYTES), pa.array([0.1, 0.1]))
>>> states.to_pylist(), decode_sums(states)
([b''], [0])
"""

from abc import abstractmethod
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import ALL_VALID, Ints, Narrow, Words, unpack_validity, view_values, view_words
from ddflow.columns.layout import buffer_address, make_writable
from ddflow.kernels import exact
from ddflow.kernels.accumulate import accumulate_diffs
from ddflow.kernels.exact_results import LEAST
from ddflow.kernels.sort import order_by_rank

BYTES: Final = pa.large_binary()
INT64: Final = np.dtype(np.int64)


class ValueOverflow(Exception):
    """An error for a value that is outside its type. ``place``: the position of the state."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


class UpdatesByCell:
    """The n updates of a step by group and time. They form c cells; each cell has one group and one time.

    The states of a step are ``held`` stored states, followed by the state after each cell. See
    `kernels.accumulate.number_cells` for ``cells`` and ``before``. ``diffs``: the diff of each row. ``counts``: the row
    counts at all states, or None until they are computed.
    """

    def __init__(self, cells: Narrow, before: Narrow, diffs: Ints, held: int) -> None:
        self.cells, self.before, self.diffs, self.held = cells, before, diffs, held
        self.size, self.counts = held + before.size, cast("pa.Array | None", None)

    @cached_property
    def rows_by_cell(self) -> exact.RowsByCell:
        """The rows of each cell, for parts that process one cell after another. O(n)."""
        numbers, c = self.cells - np.int32(self.held), self.before.size
        rows, starts = np.empty(numbers.size, np.int64), np.zeros(c + 1, np.int64)
        order_by_rank(numbers, np.empty(0, np.int64), np.int64(c), rows)
        np.cumsum(np.bincount(numbers, minlength=c), out=starts[1:])
        return exact.RowsByCell(rows, starts)


class StatePart:
    """A kind of state for the values of one argument. ``kind``: the Arrow type of the states.

    Guarantees: a state depends only on the group's current rows, not on the order of their arrival or on retracted
    rows. The state of a group without rows is 0 or empty.
    """

    kind: pa.DataType

    @abstractmethod
    def fold_updates(self, folding: UpdatesByCell, held: pa.Array, values: Any) -> pa.Array:
        """Return the stored states ``held``, followed by the state after each cell.

        O(updates). Raises `ValueOverflow`.
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

    def fold_updates(self, folding: UpdatesByCell, held: pa.Array, values: Any) -> pa.Array:
        """See `StatePart.fold_updates`. ``values``: the values to count, or None to count all rows."""
        had, rows = view_values(held, INT64), folding.counts
        if (
            rows is not None
            and (values is None or not values.null_count)
            and np.array_equal(view_values(rows, INT64)[: folding.held], had)
        ):
            return rows
        out = np.zeros(folding.size, np.int64)
        out[: folding.held] = had
        present = ALL_VALID if values is None else unpack_validity(values)
        if accumulate_diffs(folding.cells, folding.before, present, folding.diffs, out):
            # Add up the diffs in more words, to find out whether a sum is outside int64.
            states = np.zeros((folding.size, 3), np.uint64)
            states[: folding.held] = np.stack([had, had >> 63, had >> 63], 1).view(np.uint64)
            ones = np.ones(folding.cells.size, np.uint64)
            given = folding.cells, folding.before, ones, present, folding.diffs.view(np.uint64), False
            exact.accumulate_words(*given, states)
            beyond = np.flatnonzero((states[:, 1:] != (out >> 63).view(np.uint64)[:, None]).any(axis=1))
            if beyond.size:
                raise ValueOverflow(int(beyond[0]))
        return pa.Array.from_buffers(pa.int64(), out.size, [None, pa.py_buffer(out)])

    def mark_nonempty(self, states: pa.Array) -> Any:
        """See `StatePart.mark_nonempty`."""
        return view_values(states, INT64) != 0


FRACTION: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""The number of decimal digits of a second in each time unit."""


class SumPart(StatePart):
    """The exact sum of the values of a type, or of their squares; see `kernels.exact`.

    ``unit``, ``scale``: a state is a multiple of 2**unit / 10**scale; durations are in seconds.

    >>> narrow, wide = WordSumPart(pa.int32()), WordSumPart(pa.decimal128(12, 2))
    >>> decode_sums(wide.widen_states(pa.array([encode_words(-7, 3), bytes(24)], narrow.kind), narrow))
    [-700, 0]
    """

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

    def view_values(self, values: pa.Array) -> Words:
        """Return the words of the values as in memory, two for each decimal."""
        values = values.cast(self.word)
        if self.how != exact.DECIMAL:
            return view_values(values, np.dtype(np.uint64))
        return view_words(values, 2).reshape(-1)

    def widen_states(self, states: pa.Array, narrow: Any) -> pa.Array:
        """Return the same sums as multiples of this part's unit, which is smaller than the narrow unit and divides it.

        See `StatePart.widen_states`.
        """
        times = 10 ** (self.scale - narrow.scale) << (narrow.unit - self.unit)
        if times == 1 and self.kind == narrow.kind:
            return states
        # Only doubles can be NaN, and all doubles share one unit.
        return pa.array([self.encode(times * each) for each in decode_sums(states) if each is not None], self.kind)

    @abstractmethod
    def encode(self, number: int) -> bytes:
        """Encode a multiple of the unit as a state."""


class WordSumPart(SumPart):
    """The exact sum of integers or decimals, as an integer of a fixed number of words."""

    def __init__(self, of: pa.DataType) -> None:
        super().__init__(of)
        # A value times a diff has 127 bits, or 190 bits for a decimal.
        self.width = 4 if self.how == exact.DECIMAL else 3
        self.kind = pa.binary(8 * self.width)

    def fold_updates(self, folding: UpdatesByCell, held: pa.Array, values: Any) -> pa.Array:
        """See `StatePart.fold_updates`."""
        states = np.zeros((folding.size, self.width), np.uint64)
        states[: folding.held] = view_words(held, self.width)
        given = folding.cells, folding.before, self.view_values(values), unpack_validity(values)
        exact.accumulate_words(*given, folding.diffs.view(np.uint64), self.how == exact.DECIMAL, states)
        return pa.Array.from_buffers(self.kind, folding.size, [None, pa.py_buffer(states)])

    def mark_nonempty(self, states: pa.Array) -> Any:
        """See `StatePart.mark_nonempty`."""
        return view_words(states, self.width).any(axis=1)

    def encode(self, number: int) -> bytes:
        """See `SumPart.encode`."""
        return encode_words(number, self.width)


class ExactSumPart(SumPart):
    """The exact sum of doubles or of squares, in as many digits as it has."""

    kind = BYTES

    def fold_updates(self, folding: UpdatesByCell, held: pa.Array, values: Any) -> pa.Array:
        """See `StatePart.fold_updates`."""
        n, (held_ends, _) = folding.held, find_state_ends(held)
        ends, used, begin = np.zeros(folding.size + 1, np.int64), int(held_ends[-1] - held_ends[0]), 0
        ends[: n + 1] = held_ends - held_ends[0]
        out = np.empty(used + 64 * folding.before.size + exact.MOST, np.uint8)
        if used:
            out[:used] = np.frombuffer(held.buffers()[2], np.uint8, used, int(held_ends[0]))
        given = folding.rows_by_cell, folding.before, self.view_values(values), unpack_validity(values)
        work = np.zeros(exact.WORK, np.uint64)
        while True:
            words = folding.diffs.view(np.uint64), self.how, self.square, work
            begin = exact.accumulate_sums(*given, *words, begin, ends, out)
            used = int(ends[n + begin])
            if begin == folding.before.size:
                break
            out = np.concatenate([out[:used], np.empty(used + exact.MOST, np.uint8)])
        return pa.Array.from_buffers(BYTES, folding.size, [None, pa.py_buffer(ends), pa.py_buffer(out[:used].copy())])

    def mark_nonempty(self, states: pa.Array) -> Any:
        """See `StatePart.mark_nonempty`."""
        ends, _ = find_state_ends(states)
        return ends[1:] != ends[:-1]

    def encode(self, number: int) -> bytes:
        """See `SumPart.encode`."""
        return encode_sum(number)


def build_sum_part(of: pa.DataType) -> SumPart:
    """Build the part that sums values of a type."""
    return ExactSumPart(of) if pat.is_floating(of) else WordSumPart(of)


def find_state_ends(states: pa.Array) -> tuple[Ints, Any]:
    """Return where each state ends in the bytes of the column, as int64[n + 1], and the address of the bytes."""
    buffers = states.buffers()
    if not len(states):
        return np.zeros(1, np.int64), np.uint64(0)
    ends = make_writable(np.frombuffer(buffers[1], np.int64, len(states) + 1, 8 * states.offset))
    return ends, np.uint64(buffer_address(buffers[2]))


def decode_sums(states: pa.Array) -> list[int | None]:
    """Decode exact sums to multiples of their unit. A sum that includes NaN or infinities becomes None. O(bytes)."""
    if pat.is_fixed_size_binary(states.type):
        return [int.from_bytes(state, "little", signed=True) for state in states.to_pylist()]
    return [_decode_sum(state) for state in states.to_pylist()]


def encode_words(number: int, width: int) -> bytes:
    """Encode an integer as a state of ``width`` words."""
    return number.to_bytes(8 * width, "little", signed=True)


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
