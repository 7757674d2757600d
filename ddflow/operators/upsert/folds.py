"""Folds: one column of merged rows, made for all keys at once from what they hold and the cells of their events.

Guarantees: a fold gives what folding event by event gives. Sums are exact: they are computed in words wide enough for
every Arrow number, and an overflow of the result is an error.

>>> import numpy as np
>>> from ddflow.kernels.fold import TAKE
>>> from ddflow.plan.merge.strategy import last_non_null, sum
>>> few, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.uint8))
>>> walked = Walked(few(0, 1), few(0, 2), few(0, 1))  # one key, two events at one time
>>> held, given = Cells(np.array([5 << 40]), lambda: pa.array([10])), pa.array([2, None])
>>> of = (pa.int64(), walked, flags(TAKE, TAKE), given, ALL_VALID, held, Secret(1, 2), str, "visits")
>>> fold(last_non_null(), *of).tolist(), fold(sum(), *of).to_pylist()
([0], [12])
"""

from collections.abc import Callable
from decimal import Context, Decimal
from functools import partial
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import ALL_VALID, Flags, Ints, Secret, Words, ordered_words, validity, value_hashes, view
from ddflow.columns.layout import Array, plainly
from ddflow.columns.order_words import dense_ranks
from ddflow.columns.schema import is_word
from ddflow.errors import MergeOverflow
from ddflow.kernels.fold import CLEAR, FIRST, GREATEST, LAST, LEAST, NOTHING, Walked, choose
from ddflow.kernels.sums import add, add_floats, add_wide
from ddflow.operators.upsert.fold_lists import Parts, grown, held_there, joined, present
from ddflow.plan.merge.strategy import LISTS, Strategy, last_non_null

LOW = (1 << 64) - 1
SHORT = 18
"""Digits of a decimal whose unscaled value fits a word."""
WIDE = Context(prec=80)


def unscaled(column: pa.Array) -> Ints:
    """int64[n]: integers, durations, and decimals of up to `SHORT` digits without their scale; of nulls unspecified.

    It may be the column's own memory: not to be written to.  O(n).

    >>> import pyarrow as pa
    >>> from decimal import Decimal
    >>> unscaled(pa.array([Decimal("-1.50"), None], pa.decimal128(5, 2))).tolist()
    [-150, 0]
    """
    kind = column.type
    size = kind.bit_width // 8
    if size == 16:
        return np.ascontiguousarray(view(column, np.dtype((np.int64, 2)))[:, 0])
    sign = "u" if pat.is_unsigned_integer(kind) else "i"
    return view(column, np.dtype(f"{sign}{size}")).astype(np.int64, copy=False)


def added(
    kind: pa.DataType,
    walked: Walked,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    name: str,
    named: Callable[[int], str],
) -> pa.Array:
    """Each key's sum after each of its times, null where nothing was added up.

    walked, action: as `kernels.fold.choose` takes them.  column: the events' cells, n; held: what the g keys hold;
    both of ``kind``.  ``name`` of the column and ``named``, of a group's key, are for the error.  Returns m cells of
    ``kind``.  Raises `MergeOverflow`.  O(places + n + g).
    """
    had = validity(held) if held.null_count else np.ones(len(held), np.uint8)
    there = np.empty(walked.key_times.size - 1, np.uint8)
    if pat.is_floating(kind):
        values = _floats(kind, walked, action, column, held, had, there)
    elif pat.is_uint64(kind) or (pat.is_decimal(kind) and kind.precision > SHORT):
        values = _wide(kind, walked, action, column, held, had, there, name, named)
    else:
        out, (low, high) = np.empty(there.size, np.int64), _bounds(kind)
        group, row, before = add(
            walked, action, validity(column), unscaled(column), had, unscaled(held), low, high, out, there
        )
        if group >= 0:
            _refuse(kind, before, int(unscaled(column)[row]), name, named(group))
        if kind.bit_width == 128:
            values = np.stack([out, out >> 63], axis=1)
        else:
            sign = "u" if pat.is_unsigned_integer(kind) else "i"
            values = out.astype(f"{sign}{kind.bit_width // 8}", copy=False)
    return set_nulls(kind, values, there)


def set_nulls(kind: pa.DataType, values: Array, there: Flags) -> pa.Array:
    """Build an array of a fixed-width type, null where ``there`` is 0.  O(m)."""
    bits = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, there.size, [bits, pa.py_buffer(np.ascontiguousarray(values))])


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    if pat.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pat.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1


def _floats(
    kind: pa.DataType, walked: Walked, action: Flags, column: pa.Array, held: pa.Array, had: Flags, there: Flags
) -> Array:
    dtype = np.dtype(f"f{kind.bit_width // 8}")
    given, before = (view(each, dtype).astype(np.float64, copy=False) for each in (column, held))
    out = np.empty(there.size, np.float64)
    add_floats(walked, action, validity(column), given, had, before, bool(kind.bit_width == 32), out, there)
    return out.astype(dtype, copy=False)


def _wide(
    kind: pa.DataType,
    walked: Walked,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    had: Flags,
    there: Flags,
    name: str,
    named: Callable[[int], str],
) -> Array:
    given, before = _pairs(column), _pairs(held)
    out = np.empty((there.size, 2), np.uint64)
    least, most = (np.array([bound & LOW, bound >> 64 & LOW], np.uint64) for bound in _bounds(kind))
    group, row = add_wide(walked, action, validity(column), given, had, before, least, most, out, there)
    if group >= 0:
        _refuse(kind, _whole(out[0]), _whole(given[row]), name, named(group))
    return out[:, 0] if pat.is_uint64(kind) else out


def _pairs(column: pa.Array) -> Words:
    """uint64[n, 2]: low words and high words."""
    if pat.is_decimal(column.type):
        return view(column, np.dtype((np.uint64, 2)))
    out = np.zeros((len(column), 2), np.uint64)
    out[:, 0] = view(column, np.dtype(np.uint64))
    return out


def _whole(pair: Words) -> int:
    number = int(pair[0]) | int(pair[1]) << 64
    return number - (1 << 128) if number >> 127 else number


def _refuse(kind: pa.DataType, before: int, value: int, name: str, key: str) -> NoReturn:
    def shown(number: int) -> str:
        return str(WIDE.scaleb(Decimal(number), -kind.scale) if pat.is_decimal(kind) else number)

    raise MergeOverflow(
        f"a sum of {name!r}",
        f"key {key}: {shown(before)} + {shown(value)} leaves {kind}",
        "declare the column wider, or mend the events; nothing was changed",
    )


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
