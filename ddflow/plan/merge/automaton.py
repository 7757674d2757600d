"""A table of transitions, compiled for one input: states and symbols as numbers, and back.

Invariant: what the kernels say in numbers is what the table says in values, and a symbol that it does not have, null
too, has a number of its own. Symbols come in any flat type, most of all in few small whole numbers or short texts, and
to look each up must cost less than the fold; and states that a key holds come from state, which is believed only as far
as the table has them.

>>> from ddflow.plan.merge.machine import Machine
>>> door = Machine("door", {("locked", "coin"): "open", ("open", "push"): "locked"}, on="symbol", start="locked")
>>> automaton = Automaton(door, pa.string())
>>> automaton.states.to_pylist(), automaton.symbols.of(pa.array(["push", None, "coin"])).tolist()
(['locked', 'open'], [1, 2, 0])
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import validity
from ddflow.columns.layout import plainly
from ddflow.errors import CorruptState, SpecError
from ddflow.kernels.automaton import NOTHING, REFUSED, many, one, packed, unpacked
from ddflow.kernels.fold import Walked
from ddflow.plan.merge.machine import Machine, _sort_values
from ddflow.plan.merge.records import numbers

Codes = np.ndarray[Any, np.dtype[np.int32]]
SMALL = 1 << 16
"""Up to how wide a range of whole numbers is looked up in a table."""


class Coder:
    """A numbering of ``values``, which are distinct and without null, by place; other values get their count."""

    def __init__(self, values: pa.Array) -> None:
        self.values, self.least, self.places = values, 0, np.empty(0, np.int32)
        if pat.is_integer(values.type) and not pat.is_uint64(values.type) and len(values):
            given = numbers(values).astype(np.int64)
            self.least, size = int(given.min()), int(given.max()) - int(given.min()) + 1
            if size <= SMALL:
                self.places = np.full(size + 1, len(values), np.int32)
                self.places[given - self.least] = np.arange(len(values), dtype=np.int32)

    def of(self, column: pa.Array) -> Codes:
        """Map values of the same type to their numbers: int32[n].  O(n)."""
        if not self.places.size:
            return plainly(np.asarray(pc.fill_null(pc.index_in(column, self.values), len(self.values)), np.int32))
        at = (numbers(column).astype(np.int64) - self.least).view(np.uint64)
        out = self.places.take(np.minimum(at, np.uint64(self.places.size - 1)).view(np.int64))
        present = validity(column)
        return np.where(present != 0, out, np.int32(len(self.values))) if present.size else out


def _values(given: list[Any], kind: pa.DataType, what: str) -> pa.Array:
    try:
        return pa.array(given, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
        raise SpecError(
            what, f"{given} are no values of {kind} ({error})", "give values of the column's type"
        ) from None


class Automaton:
    """A compiled table of ``machine``.  ``kind``: the type of symbols.  Raises `SpecError` for values of another type.

    ``states``: by number, sorted.
    """

    def __init__(self, machine: Machine, kind: pa.DataType) -> None:
        listed = machine.all_states
        symbols = sorted({symbol for _, symbol, _ in machine.rows}, key=lambda each: (type(each).__name__, each))
        self.several, self.field = machine.several, machine.schema.field(0)
        self.states = _values(listed, self.field.type, "the states of a machine")
        self.symbols = Coder(_values(list(symbols), kind, f"on={machine.on!r} of a machine"))
        self._coder, s, c = Coder(self.states), len(listed), len(symbols)
        start, stays = [listed.index(each) for each in _sort_values(machine.start)], machine.otherwise == "stay"
        there = {
            (listed.index(state), symbols.index(symbol)): [listed.index(each) for each in to]
            for state, symbol, to in machine.rows
        }
        self.refused = np.zeros(c + 1, np.uint64)
        self.table: Any = np.zeros((s, c + 1), np.uint64 if self.several else np.int32)
        for state in range(s):
            for symbol in range(c + 1):
                to = there.get((state, symbol), [state] if stays else [])
                self.table[state, symbol] = sum(1 << each for each in to) if self.several else (*to, NOTHING)[0]
                if (state, symbol) not in there and machine.otherwise == "error":
                    self.refused[symbol] |= np.uint64(1 << state) if self.several else np.uint64(0)
                    self.table[state, symbol] = 0 if self.several else REFUSED
        self.start = sum(1 << each for each in start) if self.several else start[0]

    def run(self, walked: Walked, action: Any, symbols: pa.Array, held: pa.Array) -> tuple[pa.Array, Any, int, int]:
        """Compute the cell of each (key, time): m cells, bool[m] for those that hold anything, and a refusal.

        The refusal is the refused row and the number of its state, or -1 twice.  ``held``: g cells, null for none.
        O(p + m).  Raises `CorruptState`.
        """
        codes, m = self.symbols.of(symbols), walked.key_times.size - 1
        if not self.several:
            before = self._state_numbers(held)
            out = np.full(m, NOTHING, np.int32)
            row, state = one(walked, action, codes, self.table, before, self.start, out)
            there = out != NOTHING
            cells = self.states.take(pa.array(out, mask=None if there.all() else ~there))
            return cells, there, row, state
        words, masks = np.zeros(len(held), np.uint64), np.zeros(m, np.uint64)
        ends = np.concatenate([[0], np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(held), 0)))])
        packed(ends.astype(np.int64), self._state_numbers(held.flatten().field(0)), words)
        row, state = many(walked, action, codes, self.table, self.refused, words, np.uint64(self.start), masks)
        counts, spelled = np.empty(m, np.int64), np.empty(int(np.bitwise_count(masks).sum()) if m else 0, np.int32)
        unpacked(masks, counts, spelled)
        return lists(counts, [self.states.take(pa.array(spelled))], [self.field]), counts != 0, row, state

    def _state_numbers(self, held: pa.Array) -> Codes:
        """Map the held states to their numbers; NOTHING for null."""
        out = self._coder.of(held)
        strange = out == len(self.states)
        if strange.any():
            if int(strange.sum()) != held.null_count:
                raise CorruptState("a machine", "a key holds a state that the table has not", "restore the state")
            out = np.where(strange, np.int32(NOTHING), out)
        return out


def lists(counts: Any, columns: list[pa.Array], fields: list[pa.Field]) -> pa.Array:
    """Split columns into lists of structs, by their counts; null for an empty list.  O(values)."""
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    values = pa.StructArray.from_arrays(columns, fields=fields)
    none = counts == 0
    return pa.ListArray.from_arrays(
        pa.array(ends), values, type=pa.list_(pa.struct(fields)), mask=pa.array(none) if none.any() else None
    )
