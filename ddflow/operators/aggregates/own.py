"""Aggregates of the user's own as parts of an agg: a state of numbers for each group, folded by their functions.

Invariant: what is kept of no values is ``zero``, so a group without rows leaves nothing behind where the functions keep
their law. An exception that a function raises refuses the step.

>>> from ddflow.plan.aggregates import Aggregate
>>> from ddflow.kernels.cells import GroupTimes
>>> from ddflow.operators.aggregates.parts import Folding
>>> total = Aggregate((0.0,), lambda s, x: (s[0] + x,), lambda s, x: (s[0] - x,), lambda s: s[0])
>>> part = OwnPart(total, pa.int32())
>>> ints = lambda *v: np.array(v, np.int64)
>>> folding = Folding(GroupTimes(ints(0, 1), ints(0, 2), ints(0, 1)), ints(1, 2), ints(), 1, ints(0), None)
>>> states = part.fold(folding, pa.array([], part.kind), pa.array([7, 4], pa.int32()))
>>> part.numbers(states)[0].view(float).tolist(), part.something(states).tolist()
([15.0], [True])
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, validity, view
from ddflow.errors import AggregateFailed
from ddflow.kernels.own_aggregate import Loops, objection
from ddflow.operators.aggregates.parts import INT64, Folding, StatePart
from ddflow.operators.aggregates.results import FoldedAggregate
from ddflow.plan.aggregates import Aggregate, AggregateCall, AppliedAggregate


class OwnPart(StatePart):
    """The states of an aggregate of the user's own.  ``of``: the type of its values."""

    def __init__(self, aggregate: Aggregate, of: pa.DataType) -> None:
        self.aggregate, self.double = aggregate, pat.is_floating(of)
        kinds = tuple(isinstance(each, float) for each in aggregate.zero)
        self.loops, self.width = Loops.of(*aggregate.functions, kinds), len(kinds)
        self.kind = pa.binary(8 * self.width)
        zero = [np.array([each]).view(np.int64) for each in aggregate.zero]
        self.zero: Ints = np.concatenate(zero)

    def numbers(self, states: pa.Array) -> Ints:
        """int64[n, width]: the words of states."""
        n, size = len(states), self.kind.byte_width
        if not n:
            return np.empty((0, self.width), np.int64)
        found = np.frombuffer(states.buffers()[1], np.uint8, n * size, states.offset * size)
        words: Ints = found.copy().view(np.int64).reshape(n, self.width)
        return words

    def fold(self, folding: Folding, held: pa.Array, values: Any) -> pa.Array:
        """See `StatePart.fold`.  As many calls as values come or go."""
        rows, starts, firsts = folding.cells
        before = np.tile(self.zero, (folding.groups, 1))
        before[folding.lived] = self.numbers(held)
        out = np.empty((starts.size - 1, self.width), np.int64)
        kind = (pa.float64(), np.dtype(np.float64)) if self.double else (pa.int64(), INT64)
        words = view(values.cast(kind[0]), kind[1])
        states = before, before.view(np.float64), out, out.view(np.float64)
        self._run_loop(self.loops.fold, rows, starts, firsts, validity(values), words, folding.diffs, *states)
        return pa.Array.from_buffers(self.kind, starts.size - 1, [None, pa.py_buffer(out)])

    def results(self, states: pa.Array, wanted: Any) -> Any:
        """Compute the results of the states that `wanted` marks."""
        words, kind = self.numbers(states), self.aggregate.type
        out = np.zeros(wanted.size, np.float64 if pat.is_floating(kind) else np.int64)
        self._run_loop(self.loops.results, words, words.view(np.float64), wanted.view(np.uint8), out)
        return out

    def something(self, states: pa.Array) -> Any:
        """See `StatePart.something`."""
        return (self.numbers(states) != self.zero).any(axis=1)

    def _run_loop(self, loop: Any, *given: Any) -> None:
        try:
            loop(*given)
        except Exception as error:
            names = ", ".join(getattr(each, "__name__", "?") for each in self.aggregate.functions)
            found = f"one of {names} raised {type(error).__name__}: {error}"
            raise AggregateFailed("dd.Aggregate", found, "mend it; nothing of this step was kept") from error


class OwnAggregate(FoldedAggregate):
    """An aggregate of the user's own, of a plan."""

    def __init__(self, name: str, given: AppliedAggregate, schema: pa.Schema) -> None:
        call = AggregateCall(name, given.sql, "own", [given.sql], False, [], False, "")
        super().__init__(call, schema)
        self.given, self.type = given, given.of.type
        kind = self.argument(given.sql)
        if not (pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind)):
            raise call.refused(f"its argument is {kind}, not a number", "cast it, as in cast(x as double)")
        self.part = OwnPart(given.of, kind)
        value = 0.5 if self.part.double else 1
        kinds = tuple(isinstance(each, float) for each in given.of.zero)
        if found := objection(given.of.functions, kinds, value, not pat.is_floating(self.type)):
            raise call.refused(found, "see dd.Aggregate for what the functions take and give")
        self.tallied(given.sql)
        self.parts[f"own {id(given.of)}", given.sql] = self.part

    def told(self, formulas: Any) -> dict[str, Any]:
        """Write the functions by name, then the type and the text of ``zero``."""
        of = self.given.of
        return {**formulas.functions(of.functions), "type": str(of.type), "zero": repr(of.zero)}

    def unlike(self, narrow: Any) -> Iterator[str]:
        """See `FoldedAggregate.unlike`."""
        if self.part.double != narrow.part.double:
            yield f"{self.call.text!r} is folded by functions of its own, which were given whole numbers"

    def results(self, states: Sequence[pa.Array], there: Any) -> pa.Array:
        """See `FoldedAggregate.results`."""
        none = view(states[0], INT64) == 0
        out = self.part.results(states[1], there & ~none)
        return pa.array(out if not pat.is_boolean(self.type) else out != 0, mask=none)
