"""Columns that grow: lists that are appended to, lists of distinct elements, lists of values, texts that are joined.

Invariant: a key's list after a time is what it held and what was folded since it was cleared, in that order. It is null
if nothing was, which is not the empty list. Only Arrow moves payload, of any type, and once, so everything is settled
on row numbers before. A key may show a list after each of many times. A list that is too long at any time refuses the
step. 32-bit offsets reach 2 GiB.

>>> import numpy as np
>>> few, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.uint8))
>>> walked = Walked(few(0, 1), few(0, 2), few(0, 1))
>>> given, held = pa.array(["b", "c"]), pa.array(["a"])
>>> joined(";", pa.string(), Parts.of(walked, flags(1, 1), given, held), given, held, "names").to_pylist()
['a;b;c']
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import ALL_VALID, Flags, Ints, Secret, flags, validity, value_hashes
from ddflow.columns.layout import Array, offset_width
from ddflow.errors import ListTooLong, Option, Phrase, TooLarge
from ddflow.kernels.fold import Walked
from ddflow.kernels.lists import contributions, distinct, spelled
from ddflow.plan.merge.strategy import Strategy

MOST = 2**31 - 1
"""What 32-bit offsets reach."""


def present(column: pa.Array) -> Flags:
    """uint8[n] of 1 where a value is not null; of size 0 when none is null.  A union is null where its child is."""
    if not pat.is_union(column.type):
        return validity(column)
    there = flags(column.is_valid())
    return ALL_VALID if there.all() else there


def held_there(held: pa.Array) -> Flags:
    """uint8[g] of 1 where what is held is not null."""
    there = present(held)
    return there if there.size else np.ones(len(held), np.uint8)


class Parts(NamedTuple):
    """The cells that lists are made of; see `kernels.lists.contributions`."""

    parts: Ints
    """int64[q]: a row of the events, or their number + the group for what was held."""
    stretches: Ints
    """int64[s + 1]: where in parts each stretch begins."""
    begins: Ints
    """int64[m]: where in parts the list of each (key, time) begins."""
    stops: Ints
    """int64[m]: and where it ends; there too where there is no list."""

    @classmethod
    def of(cls, walked: Walked, action: Flags, column: pa.Array, held: pa.Array) -> Self:
        """Find the parts of each key's list.  O(places + (key, time) groups)."""
        m, most = walked.key_times.size - 1, walked.permutation.size + len(held)
        parts, stretches = np.empty(most, np.int64), np.empty(most + 1, np.int64)
        begins, stops = np.empty(m, np.int64), np.empty(m, np.int64)
        made, opened = contributions(
            walked, action, present(column), len(column), held_there(held), parts, stretches, begins, stops
        )
        return cls(parts[:made], stretches[: opened + 1], begins, stops)

    @property
    def empty(self) -> Array:
        """bool[m]: which (key, time) groups have no list."""
        return np.equal(self.begins, self.stops)

    def ranges(self, ends: Ints) -> tuple[Ints, Ints | None]:
        """Convert the lists of the (key, time) groups to ranges of elements.

        ``ends``: q + 1, the elements before each part.

        Returns int64[m + 1], the begin of each list in the result, and the element at each place of the result. The
        second is None if the result is all elements in their order. O(m + the result).
        """
        first = ends[self.begins]
        offsets = np.zeros(self.begins.size + 1, np.int64)
        np.cumsum(ends[self.stops] - first, out=offsets[1:])
        if offsets[-1] == ends[-1] and (first == offsets[:-1])[offsets[1:] > offsets[:-1]].all():
            return offsets, None
        return offsets, _expand_ranges(first, offsets)


def _expand_ranges(first: Ints, ends: Ints) -> Ints:
    out = np.empty(int(ends[-1]), np.int64)
    spelled(first, ends, out)
    return out


def grown(
    strategy: Strategy,
    kind: pa.DataType,
    parts: Parts,
    column: pa.Array,
    held: pa.Array,
    secret: Secret,
    name: str,
    key: Callable[[int], str],
) -> pa.Array:
    """Each key's list after each of its times: append, union and collect.

    column: the events' cells; held: what keys hold, of ``kind``, the type of the result.  ``key``: the key of a part,
    as text.  Returns m cells of ``kind``.  Raises `ListTooLong`, `TooLarge`.  O(elements of all lists).
    """
    first, sizes = _elements(column, held, strategy.name == "collect")
    ends = np.zeros(parts.parts.size + 1, np.int64)
    np.cumsum(sizes[parts.parts], out=ends[1:])
    elements = _expand_ranges(first[parts.parts], ends)
    children = _both(column if strategy.name == "collect" else column.values, held.values, name)
    if strategy.name == "union":
        kept = np.empty(elements.size, np.uint8)
        hashes = value_hashes(pa.Table.from_arrays([children], ["value"]), secret)
        distinct(hashes, elements, ends[parts.stretches], kept)
        before = np.zeros(elements.size + 1, np.int64)
        np.cumsum(kept.astype(np.int64), out=before[1:])
        ends = before[ends]
        elements = elements[kept.view(bool)]
    if strategy.limit is not None:
        _check_limit(strategy, parts, ends, len(column), name, key)
    offsets, places = parts.ranges(ends)
    wide = pat.is_large_list(kind)
    if not wide and offsets[-1] > MOST:
        raise TooLarge(
            f"lists of {name!r}",
            f"they have {int(offsets[-1]):,} elements, 32-bit offsets reach {MOST:,}",
            "take smaller steps, or declare the column a large_list",
        )
    values = _take_values(children, elements if places is None else elements[places], name)
    starts = pa.array(offsets if wide else offsets.astype(np.int32))
    gone = parts.empty
    made = pa.LargeListArray if wide else pa.ListArray
    return made.from_arrays(starts, values, type=kind, mask=pa.array(gone) if gone.any() else None)


def _elements(column: pa.Array, held: pa.Array, lifts: bool) -> tuple[Ints, Ints]:
    """Of the events' cells and then of the held ones: where their elements begin, and how many they are."""
    of_held, before = _offsets(held), 0
    if lifts:
        first, sizes, before = np.arange(len(column)), np.ones(len(column), np.int64), len(column)
    else:
        offsets = _offsets(column)
        first, sizes, before = offsets[:-1], np.diff(offsets), len(column.values)
    return np.concatenate([first, of_held[:-1] + before]), np.concatenate([sizes, np.diff(of_held)])


def _offsets(column: pa.Array) -> Ints:
    if not len(column):
        return np.zeros(1, np.int64)
    wide = 8 if pat.is_large_list(column.type) else offset_width(column.type) or 4
    return np.frombuffer(column.buffers()[1], f"i{wide}", len(column) + 1, column.offset * wide).astype(np.int64)


def _check_limit(strategy: Strategy, parts: Parts, ends: Ints, rows: int, name: str, key: Callable[[int], str]) -> None:
    """Refuse the first stretch that outgrows the limit.  One that was held so long and got nothing is as it was."""
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
        f"key {of}: {before} elements and {more} more, the limit is {limit}",
        Phrase("raise ", Option("limit"), ", or mend the events; nothing was changed"),
    )


def joined(separator: str, kind: pa.DataType, parts: Parts, column: pa.Array, held: pa.Array, name: str) -> pa.Array:
    """Each key's texts after each of its times, joined.

    column, held: of ``kind``.  Returns m cells of ``kind``, null where there is no text.  Raises `TooLarge`.  O(bytes).
    """
    sizes = np.concatenate([np.diff(_offsets(column)), np.diff(_offsets(held))])[parts.parts]
    offsets, places = parts.ranges(np.arange(parts.parts.size + 1))
    listed = parts.parts if places is None else parts.parts[places]
    total = int((sizes if places is None else sizes[places]).sum()) + len(separator.encode()) * listed.size
    if not pat.is_large_string(kind) and total > MOST:
        _too_large(name, f"its text takes {total:,} bytes, 32-bit offsets reach 2 GiB")
    wide = pa.large_string()
    texts = _take_values(_both(column.cast(wide), held.cast(wide), name), listed, name)
    out = pc.binary_join(pa.LargeListArray.from_arrays(pa.array(offsets), texts), pa.scalar(separator, wide))
    if parts.empty.any():
        out = pc.if_else(pa.array(parts.empty), pa.scalar(None, wide), out)
    return out.cast(kind)


def _both(column: pa.Array, held: pa.Array, name: str) -> pa.Array:
    if not len(held):
        return column
    return _arrow(name, pa.concat_arrays, [column, held])


def _take_values(values: pa.Array, places: Ints, name: str) -> pa.Array:
    return _arrow(name, values.take, pa.array(places))


def _arrow(name: str, function: Callable[[Any], pa.Array], argument: Any) -> pa.Array:
    """Call an Arrow function on sound values; it can fail only if they are too many for its offsets."""
    try:
        return function(argument)
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        _too_large(name, str(error).splitlines()[0])


def _too_large(name: str, found: str) -> NoReturn:
    raise TooLarge(
        f"column {name!r} of one output",
        found,
        "take smaller steps, or declare wider offsets (large_string)",
        column=name,
    )
