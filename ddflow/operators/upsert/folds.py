"""Fold one column of merged rows, for all keys at once, from stored cells and the cells of events.

After a time, the list of a key has the stored elements, followed by the elements that were added since the list was
last cleared. A list without elements is null. Folds work on row numbers. Arrow copies the values once, at the end.

Guarantees: the result is the same as from folding one event after the other. Sums are exact. A sum that overflows
raises an error. Limits: 32-bit offsets can address 2 GiB. If a list is too long at any time, the step fails.
"""

from collections.abc import Callable
from decimal import Context, Decimal
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import (
    ALL_VALID,
    Flags,
    Ints,
    Secret,
    Words,
    compute_sortable_words,
    compute_value_hashes,
    unpack_booleans,
    unpack_validity,
    view_values,
)
from ddflow.columns.layout import Array, make_writable, offset_width
from ddflow.columns.order_words import dense_ranks
from ddflow.columns.schema import is_word_type
from ddflow.errors import ErrorText, ListTooLong, MergeOverflow, Option, TooLarge
from ddflow.kernels.fold import (
    CLEAR,
    FIRST,
    GREATEST,
    LAST,
    LEAST,
    NOTHING,
    EventsByKey,
    add_floats,
    add_int64,
    add_int128,
    choose_cells,
    collect_list_elements,
    expand_ranges,
    mark_distinct_elements,
)
from ddflow.plan.merge.strategy import LISTS, Strategy, last_non_null

MOST = 2**31 - 1
"""The largest 32-bit offset."""


def compute_validity_flags(column: pa.Array) -> Flags:
    """Return uint8[n], 1 for values that are not null.

    If no value is null, the array has size 0. A value of an Arrow union counts as null if its child is null.
    """
    if not pat.is_union(column.type):
        return unpack_validity(column)
    there = unpack_booleans(column.is_valid())
    return ALL_VALID if there.all() else there


def mark_non_null_values(held: pa.Array) -> Flags:
    """Return uint8[g], 1 for keys whose stored value is not null."""
    there = compute_validity_flags(held)
    return there if there.size else np.ones(len(held), np.uint8)


class ListParts(NamedTuple):
    """The cells whose elements form the lists; see `kernels.fold.collect_list_elements`.

    >>> import numpy as np
    >>> few, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.uint8))
    >>> walked = EventsByKey(few(0, 1), few(0, 2), few(0, 1))
    >>> given, held = pa.array(["b", "c"]), pa.array(["a"])
    >>> join_texts(";", pa.string(), ListParts.from_walk(walked, flags(1, 1), given, held), given, held,
    ...     "names").to_pylist()
    ['a;b;c']
    """

    parts: Ints
    """int64[q]: the row of an event, or the number of rows plus the group for a stored cell."""
    stretches: Ints
    """int64[s + 1]: where each stretch begins in ``parts``."""
    begins: Ints
    """int64[m]: where the list of each (key, time) begins in ``parts``."""
    stops: Ints
    """int64[m]: where that list ends. If there is no list, the element is that of ``begins``."""

    @classmethod
    def from_walk(cls, walked: EventsByKey, action: Flags, column: pa.Array, held: pa.Array) -> Self:
        """Find the parts of each key's list.  O(places + (key, time) groups)."""
        m, most = walked.key_times.size - 1, walked.permutation.size + len(held)
        parts, stretches = np.empty(most, np.int64), np.empty(most + 1, np.int64)
        begins, stops = np.empty(m, np.int64), np.empty(m, np.int64)
        made, opened = collect_list_elements(
            walked,
            action,
            compute_validity_flags(column),
            len(column),
            mark_non_null_values(held),
            parts,
            stretches,
            begins,
            stops,
        )
        return cls(parts[:made], stretches[: opened + 1], begins, stops)

    @property
    def mark_empty(self) -> Array:
        """bool[m], true for (key, time) groups without a list."""
        return np.equal(self.begins, self.stops)

    def to_element_ranges(self, ends: Ints) -> tuple[Ints, Ints | None]:
        """Convert the lists of the (key, time) groups to ranges of elements.

        ``ends``: q + 1 values, the number of elements before each part.

        Return int64[m + 1], where each list begins in the result, and the index of the element at each position of the
        result. The array of indexes is None if the result has all elements in their original order. O(m + the result).
        """
        first = ends[self.begins]
        offsets = np.zeros(self.begins.size + 1, np.int64)
        np.cumsum(ends[self.stops] - first, out=offsets[1:])
        if offsets[-1] == ends[-1] and (first == offsets[:-1])[offsets[1:] > offsets[:-1]].all():
            return offsets, None
        return offsets, _expand_ranges(first, offsets)


def _expand_ranges(first: Ints, ends: Ints) -> Ints:
    out = np.empty(int(ends[-1]), np.int64)
    expand_ranges(first, ends, out)
    return out


def fold_lists(
    strategy: Strategy,
    kind: pa.DataType,
    parts: ListParts,
    column: pa.Array,
    held: pa.Array,
    secret: Secret,
    name: str,
    key: Callable[[int], str],
) -> pa.Array:
    """Compute each key's list after each of its times, for append, union and collect.

    ``column``: the cells of events. ``held``: the stored cells, of the result type ``kind``. ``key``: a function that
    formats the key of a part. Return m cells of ``kind``. Raises `ListTooLong`, `TooLarge`. O(elements of all lists).
    """
    first, sizes = _element_spans(column, held, strategy.name == "collect")
    ends = np.zeros(parts.parts.size + 1, np.int64)
    np.cumsum(sizes[parts.parts], out=ends[1:])
    elements = _expand_ranges(first[parts.parts], ends)
    children = _append_held_cells(column if strategy.name == "collect" else column.values, held.values, name)
    if strategy.name == "union":
        kept = np.empty(elements.size, np.uint8)
        hashes = compute_value_hashes(pa.Table.from_arrays([children], ["value"]), secret)
        mark_distinct_elements(hashes, elements, ends[parts.stretches], kept)
        before = np.zeros(elements.size + 1, np.int64)
        np.cumsum(kept.astype(np.int64), out=before[1:])
        ends = before[ends]
        elements = elements[kept.view(bool)]
    if strategy.limit is not None:
        _check_list_limit(strategy, parts, ends, len(column), name, key)
    offsets, places = parts.to_element_ranges(ends)
    wide = pat.is_large_list(kind)
    if not wide and offsets[-1] > MOST:
        raise TooLarge(
            f"lists of {name!r}",
            f"they have {int(offsets[-1]):,} elements, but 32-bit offsets allow at most {MOST:,}",
            "use smaller steps, or declare the column as large_list",
        )
    values = _take_values(children, elements if places is None else elements[places], name)
    starts = pa.array(offsets if wide else offsets.astype(np.int32))
    gone = parts.mark_empty
    made = pa.LargeListArray if wide else pa.ListArray
    return made.from_arrays(starts, values, type=kind, mask=pa.array(gone) if gone.any() else None)


def _element_spans(column: pa.Array, held: pa.Array, lifts: bool) -> tuple[Ints, Ints]:
    """Return where the range of elements of each cell begins, and the size of each range.

    The cells of the events come before the stored cells.
    """
    of_held, before = _get_list_offsets(held), 0
    if lifts:
        first, sizes, before = np.arange(len(column)), np.ones(len(column), np.int64), len(column)
    else:
        offsets = _get_list_offsets(column)
        first, sizes, before = offsets[:-1], np.diff(offsets), len(column.values)
    return np.concatenate([first, of_held[:-1] + before]), np.concatenate([sizes, np.diff(of_held)])


def _get_list_offsets(column: pa.Array) -> Ints:
    if not len(column):
        return np.zeros(1, np.int64)
    wide = 8 if pat.is_large_list(column.type) else offset_width(column.type) or 4
    return np.frombuffer(column.buffers()[1], f"i{wide}", len(column) + 1, column.offset * wide).astype(np.int64)


def _check_list_limit(
    strategy: Strategy, parts: ListParts, ends: Ints, rows: int, name: str, key: Callable[[int], str]
) -> None:
    """Raise `ListTooLong` for the first stretch that exceeds the limit.

    A stored list is allowed to exceed the limit if nothing is added to the list.
    """
    starts, limit = parts.stretches, strategy.limit
    assert limit is not None
    over = ends[starts[1:]] - ends[starts[:-1]] > limit
    over &= (parts.parts[starts[1:] - 1] < rows) if starts.size > 1 else True
    if not over.any():
        return
    begin, end = starts[int(np.argmax(over))], starts[int(np.argmax(over)) + 1]
    sizes = ends[begin : end + 1] - ends[begin]
    at = int(np.argmax(sizes > limit))
    if parts.parts[begin] >= rows:
        at = max(at, 2)
    before, more, of = int(sizes[at - 1]), int(sizes[at] - sizes[at - 1]), key(int(parts.parts[begin]))
    raise ListTooLong(
        f"{strategy} of {name!r}",
        f"key {of}: {before} elements and {more} more, but the limit is {limit}",
        ErrorText("raise ", Option("limit"), ", or fix the events; nothing was changed"),
    )


def join_texts(
    separator: str, kind: pa.DataType, parts: ListParts, column: pa.Array, held: pa.Array, name: str
) -> pa.Array:
    """Compute each key's joined text after each of its times.

    ``column``, ``held``: cells of ``kind``. Return m cells of ``kind``, null for keys without text. Raises `TooLarge`.
    O(bytes).
    """
    sizes = np.concatenate([np.diff(_get_list_offsets(column)), np.diff(_get_list_offsets(held))])[parts.parts]
    offsets, places = parts.to_element_ranges(np.arange(parts.parts.size + 1))
    listed = parts.parts if places is None else parts.parts[places]
    total = int((sizes if places is None else sizes[places]).sum()) + len(separator.encode()) * listed.size
    if not pat.is_large_string(kind) and total > MOST:
        _raise_too_large(name, f"its text takes {total:,} bytes, but 32-bit offsets allow at most 2 GiB")
    wide = pa.large_string()
    texts = _take_values(_append_held_cells(column.cast(wide), held.cast(wide), name), listed, name)
    out = pc.binary_join(pa.LargeListArray.from_arrays(pa.array(offsets), texts), pa.scalar(separator, wide))
    if parts.mark_empty.any():
        out = pc.if_else(pa.array(parts.mark_empty), pa.scalar(None, wide), out)
    return out.cast(kind)


def _append_held_cells(column: pa.Array, held: pa.Array, name: str) -> pa.Array:
    if not len(held):
        return column
    return _call_arrow(name, pa.concat_arrays, [column, held])


def _take_values(values: pa.Array, places: Ints, name: str) -> pa.Array:
    return _call_arrow(name, values.take, pa.array(places))


def _call_arrow(name: str, function: Callable[[Any], pa.Array], argument: Any) -> pa.Array:
    """Call an Arrow function that can fail only if the values are too large for 32-bit offsets."""
    try:
        return function(argument)
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        _raise_too_large(name, str(error).splitlines()[0])


def _raise_too_large(name: str, found: str) -> NoReturn:
    raise TooLarge(
        f"column {name!r} of one output",
        found,
        "use smaller steps, or declare wider offsets (large_string)",
        column=name,
    )


LOW = (1 << 64) - 1
SHORT = 18
"""The maximum number of digits of a decimal whose unscaled value fits in a word."""
WIDE = Context(prec=80)


def to_unscaled_integers(column: pa.Array) -> Ints:
    """Return int64[n]: integers, durations, and the unscaled values of decimals of up to `SHORT` digits.

    O(n).

    Nulls have unspecified values. The result can share the memory of the column, so do not write to the result.

    >>> import pyarrow as pa
    >>> from decimal import Decimal
    >>> to_unscaled_integers(pa.array([Decimal("-1.50"), None], pa.decimal128(5, 2))).tolist()
    [-150, 0]
    """
    kind = column.type
    size = kind.bit_width // 8
    if size == 16:
        return np.ascontiguousarray(view_values(column, np.dtype((np.int64, 2)))[:, 0])
    sign = "u" if pat.is_unsigned_integer(kind) else "i"
    return view_values(column, np.dtype(f"{sign}{size}")).astype(np.int64, copy=False)


def fold_sums(
    kind: pa.DataType,
    walked: EventsByKey,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    name: str,
    named: Callable[[int], str],
) -> pa.Array:
    """Compute each key's sum after each of its times. The sum is null if nothing was added.

    ``walked``, ``action``: as in `kernels.fold.choose_cells`. ``column``: the n cells of events. ``held``: the g stored
    cells. Both arrays have cells of the type ``kind``. ``name``: the column, for errors. ``named``: a function that
    formats a group's key, for errors. Return m cells of ``kind``. Raises `MergeOverflow`. O(places + n + g).
    """
    had = unpack_validity(held) if held.null_count else np.ones(len(held), np.uint8)
    there = np.empty(walked.key_times.size - 1, np.uint8)
    if pat.is_floating(kind):
        values = _fold_floats(kind, walked, action, column, held, had, there)
    elif pat.is_uint64(kind) or (pat.is_decimal(kind) and kind.precision > SHORT):
        values = _fold_wide_integers(kind, walked, action, column, held, had, there, name, named)
    else:
        out, (low, high) = np.empty(there.size, np.int64), _integer_bounds(kind)
        group, row, before = add_int64(
            walked,
            action,
            unpack_validity(column),
            to_unscaled_integers(column),
            had,
            to_unscaled_integers(held),
            low,
            high,
            out,
            there,
        )
        if group >= 0:
            _raise_overflow(kind, before, int(to_unscaled_integers(column)[row]), name, named(group))
        if kind.bit_width == 128:
            values = np.stack([out, out >> 63], axis=1)
        else:
            sign = "u" if pat.is_unsigned_integer(kind) else "i"
            values = out.astype(f"{sign}{kind.bit_width // 8}", copy=False)
    return set_nulls(kind, values, there)


def set_nulls(kind: pa.DataType, values: Array, there: Flags) -> pa.Array:
    """Build an array of a fixed-width type, with nulls at the positions for which ``there`` is 0. O(m)."""
    bits = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, there.size, [bits, pa.py_buffer(np.ascontiguousarray(values))])


def _integer_bounds(kind: pa.DataType) -> tuple[int, int]:
    if pat.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pat.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1


def _fold_floats(
    kind: pa.DataType, walked: EventsByKey, action: Flags, column: pa.Array, held: pa.Array, had: Flags, there: Flags
) -> Array:
    dtype = np.dtype(f"f{kind.bit_width // 8}")
    given, before = (view_values(each, dtype).astype(np.float64, copy=False) for each in (column, held))
    out = np.empty(there.size, np.float64)
    add_floats(walked, action, unpack_validity(column), given, had, before, bool(kind.bit_width == 32), out, there)
    return out.astype(dtype, copy=False)


def _fold_wide_integers(
    kind: pa.DataType,
    walked: EventsByKey,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    had: Flags,
    there: Flags,
    name: str,
    named: Callable[[int], str],
) -> Array:
    given, before = _word_pairs(column), _word_pairs(held)
    out = np.empty((there.size, 2), np.uint64)
    least, most = (np.array([bound & LOW, bound >> 64 & LOW], np.uint64) for bound in _integer_bounds(kind))
    group, row = add_int128(walked, action, unpack_validity(column), given, had, before, least, most, out, there)
    if group >= 0:
        _raise_overflow(kind, _join_words(out[0]), _join_words(given[row]), name, named(group))
    return out[:, 0] if pat.is_uint64(kind) else out


def _word_pairs(column: pa.Array) -> Words:
    """Return uint64[n, 2]: the low and the high word of each value."""
    if pat.is_decimal(column.type):
        return view_values(column, np.dtype((np.uint64, 2)))
    out = np.zeros((len(column), 2), np.uint64)
    out[:, 0] = view_values(column, np.dtype(np.uint64))
    return out


def _join_words(pair: Words) -> int:
    number = int(pair[0]) | int(pair[1]) << 64
    return number - (1 << 128) if number >> 127 else number


def _raise_overflow(kind: pa.DataType, before: int, value: int, name: str, key: str) -> NoReturn:
    def format_sum(number: int) -> str:
        return str(WIDE.scaleb(Decimal(number), -kind.scale) if pat.is_decimal(kind) else number)

    raise MergeOverflow(
        f"a sum of {name!r}",
        f"key {key}: {format_sum(before)} + {format_sum(value)} overflows {kind}",
        "declare a wider type for the column, or fix the events; nothing was changed",
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
"""The kernel rules of the strategies whose result is one of the cells."""
NO_WORDS: Ints = np.empty(0, np.int64)


class PriorCells:
    """The cells of a column that the g keys have before the step.

    ``references``: int64[g], references to the live row of each key, without flags; NOTHING without a live row.
    ``gather``: a function that returns the g cells, in the row's type, null without a live row.

    >>> import numpy as np
    >>> from ddflow.kernels.fold import TAKE
    >>> from ddflow.plan.merge.strategy import last_non_null, sum
    >>> few, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.uint8))
    >>> walked = EventsByKey(few(0, 1), few(0, 2), few(0, 1))  # one key, two events at one time
    >>> held, given = PriorCells(np.array([5 << 40]), lambda: pa.array([10])), pa.array([2, None])
    >>> field = pa.field("visits", pa.int64())
    >>> of = (field, walked, flags(TAKE, TAKE), given, ALL_VALID, held, Secret(1, 2), str)
    >>> fold_cells(last_non_null(), *of).tolist(), fold_cells(sum(), *of).to_pylist()
    ([0], [12])
    """

    def __init__(self, references: Ints, gather: Callable[[], pa.Array]) -> None:
        self.references, self._gather = references, gather
        self._held_values: pa.Array | None = None

    def gather_values(self) -> pa.Array:
        """Return the cells. The first call gathers them. O(g), once."""
        if self._held_values is None:
            self._held_values = self._gather()
        return self._held_values


def fold_cells(
    strategy: Strategy,
    field: pa.Field,
    walked: EventsByKey,
    action: Flags,
    column: pa.Array,
    given: Flags,
    held: PriorCells,
    secret: Secret,
    named: Callable[[int], str],
) -> Ints | pa.Array:
    """Fold a column: compute its cell for each key after each of the key's times.

    ``field``: the name of the column and the type of the result. The type of the cells is the type of ``column`` or,
    for ``collect``, a list type with this element type. ``action``: uint8[p], by place: SKIP, TAKE, CLEAR or BLANK (see
    `kernels.fold`). ``column``: the events' n cells, by row. ``given``: uint8[n], by row, 1 if the batch of the event
    had the column. If all batches had the column, ``given`` has size 0. ``named``: a function that formats a group's
    key for errors.

    If the strategy chooses a cell, return int64[m] references. A reference is the row of an event, the reference of a
    stored cell, or NOTHING. The chosen cell can be null. For other strategies, return m cells of the field's type.
    Raises `MergeOverflow`, `ListTooLong`, `TooLarge`. O(p + n + g), plus the size of lists and texts, plus a sort for
    `max` and `min` of text.
    """
    if strategy.name in RULES:
        return _choose_cells(strategy, walked, action, column, given if strategy.name == "last" else ALL_VALID, held)
    return _fold_new_cells(
        strategy, field, walked, action, column, _gather_held_values(held, field.type), secret, named
    )


def _gather_held_values(held: PriorCells, kind: pa.DataType) -> pa.Array:
    """Return the stored cells. If no key is live, no cells are gathered."""
    if (held.references == NOTHING).all():
        return pa.nulls(held.references.size, kind)
    return held.gather_values()


def _choose_cells(
    strategy: Strategy, walked: EventsByKey, action: Flags, column: pa.Array, counts: Flags, held: PriorCells
) -> Ints:
    """Return references to the chosen cells.

    ``counts``: marks the events that ``last`` and ``first`` use, whether their value is null or not.
    """
    name, rule = strategy.name, RULES[strategy.name]
    references, words, before = held.references, NO_WORDS, NO_WORDS
    had = (references != NOTHING).view(np.uint8)
    if name not in ("last", "first"):
        counts = compute_validity_flags(column)
    if name == "first_non_null":
        action = np.minimum(action, np.uint8(CLEAR))  # if an event writes null, the null is not a first value
    if name == "first_non_null" or rule >= GREATEST:
        values = _gather_held_values(held, column.type)
        had = mark_non_null_values(values)
        if rule >= GREATEST:
            words, before = compute_rank_words(column, values)
    out = np.empty(walked.key_times.size - 1, np.int64)
    choose_cells(walked, action, counts, words, references, had, before, rule, out)
    return out


def compute_rank_words(column: pa.Array, held: pa.Array) -> tuple[Ints, Ints]:
    """Return words that sort like the values: int64[n] for the events' cells, int64[g] for the stored cells.

    Both arrays of cells have the same flat type. NaN is largest, -0.0 equals 0.0, and nulls have unspecified words. The
    words may share memory with the columns. O(n + g), and O((n + g) log (n + g)) for text, binary and long decimals.
    """
    kind = column.type
    if is_word_type(kind):
        return make_writable(compute_sortable_words(column)), make_writable(compute_sortable_words(held))
    if pat.is_decimal(kind) and kind.precision <= SHORT and kind.bit_width <= 128:
        return to_unscaled_integers(column), to_unscaled_integers(held)
    both = pa.Table.from_arrays([pa.chunked_array([column, held])], ["value"]).combine_chunks()
    ranks = dense_ranks(both, compute_value_hashes(both, Secret.fresh()))
    return ranks[: len(column)].copy(), ranks[len(column) :].copy()


def _fold_new_cells(
    strategy: Strategy,
    field: pa.Field,
    walked: EventsByKey,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    secret: Secret,
    named: Callable[[int], str],
) -> pa.Array:
    """Compute the m cells of a strategy whose results are new values."""
    name, kind = field.name, field.type
    if strategy.name == "fields":
        return _fold_fields(strategy, field, walked, action, column, held, secret, named)
    if strategy.name == "sum":
        return fold_sums(kind, walked, action, column, held, name, named)
    parts = ListParts.from_walk(walked, action, column, held)
    if strategy.name in LISTS:
        return fold_lists(
            strategy,
            kind,
            parts,
            column,
            held,
            secret,
            name,
            lambda part: named(_find_part_group(walked, part, len(column))),
        )
    return join_texts(strategy.separator or "", kind, parts, column, held, name)


def _find_part_group(walked: EventsByKey, part: int, rows: int) -> int:
    """Find the group of a part (see `ListParts`).  O(places)."""
    if part >= rows:
        return part - rows
    place = int(np.flatnonzero(walked.permutation == part)[0])
    key_time = int(np.searchsorted(walked.key_times, place, "right")) - 1
    return int(np.searchsorted(walked.keys, key_time, "right")) - 1


def _return_values(values: pa.Array) -> pa.Array:
    return values


def _fold_fields(
    strategy: Strategy,
    of: pa.Field,
    walked: EventsByKey,
    action: Flags,
    column: pa.Array,
    held: pa.Array,
    secret: Secret,
    named: Callable[[int], str],
) -> pa.Array:
    """Fold a struct, one field after the other.

    A null struct adds nothing to any field, whether it is from an event or stored.
    """
    n, counts = len(column), compute_validity_flags(column)
    there = np.asarray(held.is_valid())
    references = np.where(there, np.arange(n, n + len(held)), NOTHING)
    # After a BLANK the struct is null, so the fields of the struct have no first event yet.
    action = np.minimum(action, np.uint8(CLEAR))
    shown = np.empty(walked.key_times.size - 1, np.int64)
    choose_cells(walked, action, counts, NO_WORDS, references, there.view(np.uint8), NO_WORDS, LAST, shown)
    named_fields, default = dict(strategy.parts or ()), strategy.default or last_non_null()
    children = []
    for i, (given, before) in enumerate(zip(column.flatten(), held.flatten(), strict=True)):
        field = of.type.field(i)
        each = named_fields.get(field.name, default)
        if each.name in RULES:
            chosen = _choose_cells(
                each, walked, action, given, counts, PriorCells(references, partial(_return_values, before))
            )
            children.append(pa.concat_arrays([given, before]).take(pa.array(chosen, mask=chosen == NOTHING)))
        else:
            inner = field.with_name(f"{of.name}.{field.name}")
            children.append(_fold_new_cells(each, inner, walked, action, given, before, secret, named))
    gone = shown == NOTHING
    bits = pa.py_buffer(np.packbits(~gone, bitorder="little")) if gone.any() else None
    return pa.Array.from_buffers(of.type, gone.size, [bits], children=children)
