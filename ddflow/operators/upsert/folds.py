"""Folds: one column of merged rows, made for all keys at once from what they hold and the cells of their events.

Invariant: the column is a function of the walk, the events' cells and the held ones, and changes nothing, so a step can
be refused after any number of columns. A choice of cell is given as references, which move no payload and need no type;
everything else is given as values. Both must mean the same inside a struct, where a field has no row that a reference
could name. The held values cost a gather, so they are read only where the strategy looks at them.

>>> import numpy as np
>>> from ddflow.plan.merge.strategy import last_non_null, sum
>>> few, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.uint8))
>>> walked = Walked(few(0, 1), few(0, 2), few(0, 1))  # one key, two events at one time
>>> held, given = Cells(np.array([5 << 40]), lambda: pa.array([10])), pa.array([2, None])
>>> of = (pa.int64(), walked, flags(TAKE, TAKE), given, ALL_VALID, held, Secret(1, 2), str, "visits")
>>> fold(last_non_null(), *of).tolist(), fold(sum(), *of).to_pylist()
([0], [12])
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import ALL_VALID, Flags, Ints, Secret, ordered_words, value_hashes
from ddflow.columns.layout import plainly
from ddflow.columns.order_words import dense_ranks
from ddflow.columns.schema import is_word
from ddflow.kernels.fold import BLANK, CLEAR, FIRST, GREATEST, LAST, LEAST, NOTHING, SKIP, TAKE, Walked, choose
from ddflow.operators.upsert.fold_lists import Parts, grown, held_there, joined, present
from ddflow.operators.upsert.fold_sums import SHORT, added, unscaled
from ddflow.plan.merge.strategy import LISTS, Strategy, last_non_null

__all__ = ["BLANK", "CLEAR", "NOTHING", "SKIP", "TAKE", "Cells", "fold", "ranked"]

RULES = {
    "last": LAST,
    "last_non_null": LAST,
    "first": FIRST,
    "first_non_null": FIRST,
    "max": GREATEST,
    "min": LEAST,
    "bool_or": GREATEST,
    "bool_and": LEAST,
}
"""The strategies whose result is one of the cells."""
NO_WORDS: Ints = np.empty(0, np.int64)


class Cells:
    """What the g keys hold of a column when the step begins.

    ``references``: int64[g], where the row is that a key holds, without flags; NOTHING where it holds no live row.
    ``gather``: gives the g cells, of the row's type, null where nothing is held.
    """

    def __init__(self, references: Ints, gather: Callable[[], pa.Array]) -> None:
        self.references, self._gather = references, gather
        self._values: pa.Array | None = None

    def values(self) -> pa.Array:
        """Gather the cells on the first call.  O(g), once."""
        if self._values is None:
            self._values = self._gather()
        return self._values


def fold(
    strategy: Strategy,
    kind: pa.DataType,
    walked: Walked,
    action: Flags,
    column: pa.Array,
    given: Flags,
    held: Cells,
    secret: Secret,
    named: Callable[[int], str],
    name: str,
) -> Ints | pa.Array:
    """Fold a column: compute its cell for each key after each of the key's times.

    ``kind``: the type of the result: the type of ``column``, or a list of it under ``collect``.  ``action``: uint8[p],
    by place: SKIP, TAKE, CLEAR or BLANK (see `kernels.fold`).  ``column``: the events' n cells, by row.  ``given``:
    uint8[n], by row, 1 if the batch had the column; of size 0: all had.  ``named``: formats a group's key, ``name``: of
    the column, for errors.

    Returns int64[m] references if the result is a choice of cell: an event's row, a held reference, or NOTHING; the
    chosen cell may be null.  Else m cells of ``kind``.  Raises `MergeOverflow`, `ListTooLong`, `TooLarge`.  O(p + n +
    g), plus the result for lists and texts, plus a sort for `max` and `min` of text.
    """
    if strategy.name in RULES:
        return _choose_cells(strategy, walked, action, column, given if strategy.name == "last" else ALL_VALID, held)
    return _make_cells(strategy, kind, walked, action, column, _values(held, kind), secret, named, name)


def _values(held: Cells, kind: pa.DataType) -> pa.Array:
    """Return the held cells; gather nothing if no key is live."""
    if (held.references == NOTHING).all():
        return pa.nulls(held.references.size, kind)
    return held.values()


def _choose_cells(
    strategy: Strategy, walked: Walked, action: Flags, column: pa.Array, counts: Flags, held: Cells
) -> Ints:
    """Return references to the chosen cells.  ``counts``: marks the events of ``last`` and ``first``, null or not."""
    name, rule = strategy.name, RULES[strategy.name]
    references, words, before = held.references, NO_WORDS, NO_WORDS
    had = (references != NOTHING).view(np.uint8)
    if name not in ("last", "first"):
        counts = present(column)
    if name == "first_non_null":
        action = np.minimum(action, np.uint8(CLEAR))  # a null that was put there is no first value
    if name == "first_non_null" or rule >= GREATEST:
        values = _values(held, column.type)
        had = held_there(values)
        if rule >= GREATEST:
            words, before = ranked(column, values)
    out = np.empty(walked.key_times.size - 1, np.int64)
    choose(walked, action, counts, words, references, had, before, rule, out)
    return out


def ranked(column: pa.Array, held: pa.Array) -> tuple[Ints, Ints]:
    """Words whose order is that of the values: of the events' cells int64[n], of the held ones int64[g].

    Both arrays are of one flat type.  NaN is largest, -0.0 equals 0.0; what nulls have is unspecified.  They may be
    the columns' own memory.  O(n + g), for text, binary and long decimals O((n + g) log (n + g)).
    """
    kind = column.type
    if is_word(kind):
        return plainly(ordered_words(column)), plainly(ordered_words(held))
    if pat.is_decimal(kind) and kind.precision <= SHORT and kind.bit_width <= 128:
        return unscaled(column), unscaled(held)
    both = pa.Table.from_arrays([pa.chunked_array([column, held])], ["value"]).combine_chunks()
    ranks = dense_ranks(both, value_hashes(both, Secret.fresh()))
    return ranks[: len(column)].copy(), ranks[len(column) :].copy()


def _make_cells(
    strategy: Strategy,
    kind: pa.DataType,
    walked: Walked,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    secret: Secret,
    named: Callable[[int], str],
    name: str,
) -> pa.Array:
    """Compute the m cells of a strategy that makes values."""
    if strategy.name == "fields":
        return _fields(strategy, kind, walked, action, column, held, secret, named, name)
    if strategy.name == "sum":
        return added(kind, walked, action, column, held, name, named)
    parts = Parts.of(walked, action, column, held)
    if strategy.name in LISTS:
        return grown(
            strategy, kind, parts, column, held, secret, name, lambda part: named(_group(walked, part, len(column)))
        )
    return joined(strategy.separator or "", kind, parts, column, held, name)


def _group(walked: Walked, part: int, rows: int) -> int:
    """Find the group of a part (see `Parts`).  O(places)."""
    if part >= rows:
        return part - rows
    place = int(np.flatnonzero(walked.permutation == part)[0])
    key_time = int(np.searchsorted(walked.key_times, place, "right")) - 1
    return int(np.searchsorted(walked.keys, key_time, "right")) - 1


def _return_values(values: pa.Array) -> pa.Array:
    return values


def _fields(
    strategy: Strategy,
    kind: pa.DataType,
    walked: Walked,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    secret: Secret,
    named: Callable[[int], str],
    name: str,
) -> pa.Array:
    """Fold a struct field by field; a null struct, new or held, adds to no field."""
    n, counts = len(column), present(column)
    there = np.asarray(held.is_valid())
    references = np.where(there, np.arange(n, n + len(held)), NOTHING)
    # The struct is null after a BLANK, so a field's first event is still to come.
    action = np.minimum(action, np.uint8(CLEAR))
    shown = np.empty(walked.key_times.size - 1, np.int64)
    choose(walked, action, counts, NO_WORDS, references, there.view(np.uint8), NO_WORDS, LAST, shown)
    named_fields, default = dict(strategy.parts or ()), strategy.default or last_non_null()
    children = []
    for i, (given, before) in enumerate(zip(column.flatten(), held.flatten(), strict=True)):
        field = kind.field(i)
        each = named_fields.get(field.name, default)
        if each.name in RULES:
            chosen = _choose_cells(
                each, walked, action, given, counts, Cells(references, partial(_return_values, before))
            )
            children.append(pa.concat_arrays([given, before]).take(pa.array(chosen, mask=chosen == NOTHING)))
        else:
            children.append(
                _make_cells(each, field.type, walked, action, given, before, secret, named, f"{name}.{field.name}")
            )
    gone = shown == NOTHING
    bits = pa.py_buffer(np.packbits(~gone, bitorder="little")) if gone.any() else None
    return pa.Array.from_buffers(kind, gone.size, [bits], children=children)
