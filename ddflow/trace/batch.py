"""Define batches of versions, the change of a step, and the runs that consist of batches.

A batch holds immutable, hash-ordered, consolidated versions of a range of identities. A run is the output of one step
or one merge, in one batch or several. `BatchSlots` numbers the batches of an arrangement.

Guarantees: a batch never changes. Versions of an identity are in order of time, and no two of these versions have the
same time.

>>> import pyarrow as pa
>>> batch = Batch.from_lists([7, 7], [1, 2], [True, False], pa.table({"k": [1, 1]}))
>>> batch._check_invariants()
>>> len(batch), batch.nbytes < 100
(2, True)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, cast
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Flags, Ints, Words
from ddflow.columns.rows import RowPool, Rows
from ddflow.columns.threads import ALONE
from ddflow.errors import CorruptState
from ddflow.kernels.arrays import Words2d
from ddflow.kernels.differences import FIELDS
from ddflow.kernels.gather import SLOT
from ddflow.time import BatchDescription


def repeat_value(value: int, n: int, kind: Any) -> np.ndarray[Any, Any]:
    """Build a column that has one value n times but stores the value only once."""
    return np.ndarray(n, kind, np.array([value], kind), 0, (0,))


@dataclass(eq=False)
class Batch:
    """n versions, sorted by identity, then time.

    ``high``, ``low``: uint64[n], the words of identities; ``low`` has size 0 if identities have one word.  ``time``:
    int64[n].  ``live``: uint8[n], 0 for deletions.  ``value``: uint64[n], hashes of the rows, or size 0 if an index
    holds the hashes.  ``order``: int64[n, w], the order words of each version's event.  ``summed``: whether the
    versions are differences, so that ``value`` has their diffs, ``live`` is always 1, and ``order`` has the identity
    words beyond two.  ``rows``: the payload of n rows, with filler for deletions.  ``mapped``: the file of the columns,
    or None if the columns are in memory.
    """

    high: Words
    low: Words
    time: Ints
    live: Flags
    value: Words
    order: Ints
    rows: Rows
    mapped: Any = None
    summed: bool = False
    _nbytes: int = field(init=False, default=-1)

    @property
    def extra_identity_words(self) -> Ints | None:
        """The identity words after the second word. The value is None if identities have at most two words."""
        return self.order if self.summed else None

    @classmethod
    def from_lists(cls, high: Sequence[int], time: Sequence[int], live: Sequence[bool], table: pa.Table) -> Self:
        """Build a small batch without order words from lists, for examples and tests."""
        n = len(high)
        return cls(
            np.array(high, np.uint64),
            NONE,
            np.array(time, np.int64),
            np.array(live, np.uint8),
            NONE,
            np.empty((n, 0), np.int64),
            Rows(table),
        )

    def __len__(self) -> int:
        return int(self.high.size)

    @property
    def nbytes(self) -> int:
        """Bytes of columns and payload, in memory or in the file."""
        if self._nbytes < 0:
            total = self.rows.held
            for column in (self.high, self.low, self.time, self.live, self.value, self.order):
                total += column.nbytes if 0 not in column.strides else column.itemsize
            self._nbytes = total
        return self._nbytes

    def with_value(self, value: Words) -> Self:
        """Return a copy with other value hashes. O(1)."""
        out, nbytes = object.__new__(type(self)), self._nbytes  # `dataclasses.replace` would slow down small commits
        nbytes = nbytes if nbytes < 0 else nbytes - self.value.nbytes + value.nbytes
        out.__dict__.update(self.__dict__, value=value, _nbytes=nbytes)
        return out

    def _check_invariants(self) -> None:
        """Assert the invariant. Raise `CorruptState` if a key has two values at one time."""
        n = len(self)
        assert len(self.rows) == n == self.time.size == self.live.size == self.order.shape[0]
        assert self.value.size in (0, n)
        if n < 2:
            return
        columns = [self.high, self.low if self.low.size else np.zeros(n, np.uint64)]
        columns += [*np.ascontiguousarray(self.order).view(np.uint64).T] if self.summed else []
        columns.append(self.time)  # type: ignore[arg-type]
        equal, less = np.ones(n - 1, bool), np.zeros(n - 1, bool)
        for column in columns:
            less |= equal & (column[:-1] < column[1:])
            equal &= column[:-1] == column[1:]
        if equal.any():
            at = int(np.flatnonzero(equal)[0])
            raise CorruptState(
                "a batch",
                f"rows {at} and {at + 1} are two values of one key at time {self.time[at]}",
                "do not use this state; replay the log into a new state",
            )
        # Versions are sorted by identity, then time.
        assert less.all(), "a batch is not in hash order"


def mark_first_of_keys(high: Words, low: Words, more: Ints | None = None) -> Any:
    """Mark the first row of each key of sorted identities, as bool[n].  O(n).

    ``low``: empty if identities have one word.  ``more``: int64[n, w], the words beyond two.

    >>> mark_first_of_keys(np.array([1, 1, 2], np.uint64), np.empty(0, np.uint64)).tolist()
    [True, False, True]
    """
    out = np.ones(high.size, np.bool_)
    out[1:] = high[1:] != high[:-1]
    if low.size:
        out[1:] |= low[1:] != low[:-1]
    if more is not None:
        for word in more.T:
            out[1:] |= word[1:] != word[:-1]
    return out


def mark_last_of_keys(high: Words, low: Words, more: Ints | None = None) -> Any:
    """Mark the last row of each key of sorted identities, as bool[n].  O(n)."""
    return np.append(mark_first_of_keys(high, low, more)[1:], np.ones(min(high.size, 1), np.bool_))


class ArrangementChange(NamedTuple):
    """The new versions of a range of identities after one step, and the data to update the index.

    >>> import numpy as np, pyarrow as pa
    >>> zero = np.array([0])
    >>> batch = Batch.from_lists([5], [3], [True], pa.table({"k": [1]}))
    >>> ArrangementChange(batch, np.array([5], np.uint64), zero, zero, 0, live_added=1, tombstones_added=0).nbytes > 0
    True
    """

    batch: Batch
    """The new versions, in memory or in files."""
    value: Words
    """uint64[n]: hashes of the columns that count as a change, for the index."""
    last: Ints
    """int64[keys]: the position of each key's last version, ascending; -1 for an unchanged key."""
    place: Ints
    """int64[keys]: the places of the keys in the index, from `Arrangement.look_up_keys`."""
    built: int
    """The number of the index's table when `Arrangement.look_up_keys` was called."""
    live_added: int
    """The number of live keys that the change adds."""
    tombstones_added: int
    """The number of deleted keys that the change adds and whose order is kept."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the change adds, or 0 if its batch is in files."""
        return self.batch.nbytes if self.batch.mapped is None else 0


def make_difference_change(
    high: Words, low: Words, time: Ints, diff: Ints, more: Ints, rows: Rows
) -> ArrangementChange:
    """Make the change of a `DifferenceArrangement` from sorted differences, which the arguments describe as in `Batch`.

    >>> one = np.array([5], np.uint64)
    >>> given = one, one, np.array([3]), np.array([2]), np.array([[7]]), Rows(pa.table({"k": [1]}))
    >>> make_difference_change(*given).live_added
    2
    """
    n, none = high.size, np.empty(0, np.int64)
    value = diff.view(np.uint64)
    batch = Batch(high, low, time, repeat_value(1, n, np.uint8), value, more, rows, summed=True)
    return ArrangementChange(batch, value, none, none, 0, int(diff.sum()), 0)


NO_ROWS: Ints = np.empty(0, np.int64)


class RowsByGroup(NamedTuple):
    """The live rows of g groups, in order within each group. A row has a reference without flags and a multiplicity.

    An array other than ``references`` is empty if nothing reads it.
    """

    references: Ints
    values: Ints = NO_ROWS
    begins: Ints = NO_ROWS
    """int64[g + 1]: the position of the first row of each group, and the number of rows."""
    order: Ints = np.empty((0, 0), np.int64)
    """int64[n, w]: the identity words beyond two, if the caller asked for them."""

    def mark_first_rows(self, tied: int) -> tuple[Any, Any]:
        """Mark the first row of each group, and the first of the rows with equal first ``tied`` words, as bool[n]."""
        heads = np.zeros(self.references.size, np.bool_)
        heads[self.begins[:-1]] = True
        words, first = self.order[:, :tied], heads.copy()
        if words.size:
            first[1:] |= (words[1:] != words[:-1]).any(1)
        return heads, first


def to_identity_words(order: Ints) -> Words:
    """Convert order words to identity words, which are contiguous and unsigned."""
    return np.ascontiguousarray(order).view(np.uint64)


END = 2**64 - 1
"""The greatest identity."""
LASTS = 1 << 16
"""The number of versions that `iterate_last_rows_of_keys` reads at once."""


class BatchRange(NamedTuple):
    """Rows [begin, end) of the batch in a slot."""

    slot: int
    begin: int
    end: int

    @property
    def references(self) -> Ints:
        """int64[end - begin]: the references of the rows, without flags."""
        return np.arange(self.slot << SLOT | self.begin, self.slot << SLOT | self.end, dtype=np.int64)


def iterate_last_rows_of_keys(batch: Batch, part: BatchRange) -> Iterator[Ints]:
    """Yield, in several arrays, the numbers of the rows of a part that are the last rows of their keys. O(rows)."""
    for begin in range(part.begin, part.end, LASTS):
        end = min(begin + LASTS, part.end)
        to = min(end + 1, part.end)
        more = None if batch.extra_identity_words is None else batch.extra_identity_words[begin:to]
        yield np.flatnonzero(mark_last_of_keys(batch.high[begin:to], batch.low[begin:to], more)[: end - begin]) + begin


class BatchSlots:
    """The batches of an arrangement, by slot number. Slot 0 is for the events of the current step.

    ``summed``: whether versions are differences.
    ``addresses``: uint64[slots, FIELDS], the addresses of the columns of differences, for kernels.  ``lasting``:
    whether commits write the batches to files.  ``files``: the files of batches in memory, by slot.  ``shapes``: the
    lists of columns that payloads in files have or had; entries are only added.  ``file_schemas``: the schemas of the
    files that commits have written, for `encode_batch`.  ``readers``: the results of `freeze`
    that are still in use.
    """

    def __init__(self, schema: pa.Schema, summed: bool = False) -> None:
        self.summed = summed
        self.addresses: Words2d = np.zeros((16, FIELDS), np.uint64)
        self.by_slot: list[Batch | None] = [None]
        self.free: list[int] = []
        self.pool = RowPool(schema)
        self.pool.set_batch(0, None)
        self.resident = self.mapped = 0
        self.lasting = False
        self.files: dict[int, Any] = {}
        self.shapes: list[list[str]] = []
        self.file_schemas: dict[Any, tuple[pa.Schema, pa.Schema]] = {}
        self.readers: WeakSet[BatchSlots] = WeakSet()

    def __getitem__(self, slot: int) -> Batch:
        batch = self.by_slot[slot]
        assert batch is not None, f"slot {slot} is empty"
        return batch

    @property
    def batches(self) -> list[Batch]:
        """All batches, in the order of slots."""
        return [batch for batch in self.by_slot if batch is not None]

    def add_batch(self, batch: Batch) -> BatchRange:
        """Assign a slot to a batch, and return all rows of the batch as a range. O(columns)."""
        if self.summed:
            batch = replace(batch, summed=True)
        if self.free:
            slot = self.free.pop()
            self.by_slot[slot] = batch
        else:
            slot = len(self.by_slot)
            self.by_slot.append(batch)
        self.pool.set_batch(slot, batch.rows)
        if batch.mapped is None:
            self.resident += batch.nbytes
        else:
            self.mapped += batch.mapped.nbytes
        if self.summed:
            self._set_addresses(slot, batch)
        return tuple.__new__(BatchRange, (slot, 0, batch.high.size))

    def freeze(self) -> BatchSlots:
        """Return a copy of the current slots, which a reader in a different thread can use.  O(columns * batches)."""
        out = copy(self)
        out.by_slot, out.pool, out.addresses = self.by_slot.copy(), self.pool.copy(), self.addresses.copy()
        out.pool.threads = ALONE  # the writer's threads may end while the copy is read
        self.readers.add(out)
        return out

    @property
    def bytes_pinned(self) -> int:
        """Bytes of memory of batches that only readers still use.  O(batches that readers hold)."""
        here = {id(batch.rows) for batch in self.batches}
        held = {id(batch.rows): batch for each in list(self.readers) for batch in each.batches if batch.mapped is None}
        return sum(batch.nbytes for rows, batch in held.items() if rows not in here)

    def drop_batch(self, slot: int) -> None:
        """Remove a batch.

        The file of the batch is dropped at once. The memory of the batch becomes free when no reader uses it.
        """
        batch = self[slot]
        self._count_bytes(batch, -1)
        self.by_slot[slot] = None
        self.pool.set_batch(slot, None)
        self.free.append(slot)
        file = self.files.pop(slot, batch.mapped)
        if file is not None:
            file.drop()

    def set_batch_file(self, slot: int, file: Any) -> None:
        """Record the file of a batch in memory. Drop the value hashes of its versions, because the index has them."""
        self.files[slot], batch = file, self.by_slot[slot]
        if not self.summed and batch is not None:
            self.by_slot[slot] = batch.with_value(NONE)
            self.resident -= batch.value.nbytes

    def replace_batch(self, slot: int, batch: Batch) -> None:
        """Replace the batch of a slot by another batch with the same versions in the same rows.  O(columns)."""
        self._count_bytes(self[slot], -1)
        batch = replace(batch, summed=True) if self.summed else batch
        self.by_slot[slot] = batch
        self.pool.set_batch(slot, batch.rows)
        self._count_bytes(batch, 1)
        if self.summed:
            self._set_addresses(slot, batch)

    def _set_addresses(self, slot: int, batch: Batch) -> None:
        while slot >= self.addresses.shape[0]:
            self.addresses = np.concatenate([self.addresses, np.zeros_like(self.addresses)])
        columns = batch.high, batch.low, batch.order, batch.time, batch.value
        starts = [column.__array_interface__["data"][0] for column in columns]
        self.addresses[slot] = *starts[:4], batch.time.strides[0], starts[4]

    def _count_bytes(self, batch: Batch, sign: int) -> None:
        if batch.mapped is None:
            self.resident += sign * batch.nbytes
        else:
            self.mapped += sign * batch.mapped.nbytes

    def build_slot_mask(self, parts: list[BatchRange]) -> Flags:
        """Return uint8[slots], with 1 for each slot that the parts are in."""
        out = np.zeros(len(self.by_slot), np.uint8)
        out[[part.slot for part in parts]] = 1
        return out


class Run:
    """The output of one step or one merge: versions in hash order, in one batch or several.

    A merge removes versions from the front of a run, range by range, so memory and disk space become free during the
    merge. A reference to a row consists of a slot and a row number. References stay valid while a merge removes
    versions, because the remaining rows keep their numbers.

    ``description``: the times of the run. ``parts``: ascending ranges of identities. The parts have all versions of
    these times, except the versions that a merge has removed. ``record``: the JSON of the run's record in an inventory,
    None if the run has changed since.

    >>> slots = BatchSlots(pa.schema({"k": pa.int64()}))
    >>> batch = Batch.from_lists([4, 7, 9], [1, 1, 2], [True] * 3, pa.table({"k": [1, 2, 3]}))
    >>> run = Run(BatchDescription(0, 3, 0), [slots.add_batch(batch)])
    >>> run.split_off(slots, 7), len(run), run.split_off(slots, 2**64 - 1), len(run)
    ([BatchRange(slot=1, begin=0, end=2)], 1, [BatchRange(slot=1, begin=2, end=3)], 0)
    """

    def __init__(self, description: BatchDescription, parts: list[BatchRange]) -> None:
        self.description, self.parts, self.size, self.record = description, parts, 0, cast(Any, None)
        for part in parts:
            self.size += part.end - part.begin

    def __len__(self) -> int:
        return self.size

    def freeze(self) -> Run:
        """Return a copy of the current run.  O(parts)."""
        return Run(self.description, self.parts.copy())

    def add(self, part: BatchRange) -> None:
        """Append the next range of identities."""
        self.parts.append(part)
        self.size += part.end - part.begin
        self.record = None

    def split_off(self, slots: BatchSlots, last: int) -> list[BatchRange]:
        """Remove and return the rows whose first identity word is at most ``last``.  O(parts removed + log rows).

        The caller drops the batches of the removed rows.
        """
        self.record = None
        if last == END:
            taken, self.parts, self.size = self.parts, [], 0
            return taken
        taken = []
        while self.parts:
            part = self.parts[0]
            high = slots[part.slot].high
            end = part.end
            if int(high[end - 1]) > last:
                end = int(np.searchsorted(high[part.begin : end], np.uint64(last), side="right")) + part.begin
            if end > part.begin:
                taken.append(BatchRange(part.slot, part.begin, end))
                self.size -= end - part.begin
            if end < part.end:
                self.parts[0] = BatchRange(part.slot, end, part.end)
                break
            del self.parts[0]
        return taken
