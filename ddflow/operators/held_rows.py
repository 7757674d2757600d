"""Store rows with multiplicities by key, possibly several rows for a key. See `RowStore`.

>>> from ddflow.columns.hashing import Secret, compute_identities
>>> from ddflow.columns.sorting import sort_by_identity
>>> table = pa.table({"k": [1, 1], "v": ["a", "b"]})
>>> held, by = RowStore(table.schema, wide=True), sort_by_identity(*compute_identities(table.select(["k"]), Secret(1,
...     2)))
>>> keys = held.seek(by)
>>> found = held.list_candidates(keys, by, np.array([7, 8]))
>>> once, pool = found._replace(counts=np.array([1, 1])), held.pool.with_events(Rows(table))
>>> held.apply_changes(held.compute_change(once, pool, by, keys))
>>> held.rows, held.list_candidates(held.seek(by), by, np.array([8, 9])).counts.tolist()
(2, [1, 1, 0])
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Narrow, Words
from ddflow.columns.layout import Arena
from ddflow.columns.rows import RowPool, Rows, gather_table
from ddflow.columns.sorting import SortedRows
from ddflow.kernels import upserts as kernels
from ddflow.kernels.gather import SLOT
from ddflow.kernels.resolve import LIVE
from ddflow.trace.index import Index, IndexWrite

STEP, NULLS, FIRST = 0, 1, 2
"""Batch numbers in the `RowPool`: the step's rows, one row of nulls, and the first batch of stored rows."""
BATCHES = 256
"""The number of batches above which the store gathers all rows into one batch.

References could address more batches than this, but gathering from many small batches is slow.
"""
SLACK = 4096
"""With fewer dead rows than this, the store does not gather the live rows."""
CELL = 4 * 8 + 40
"""Bytes that each stored row takes in addition to its values: a cell, and the key's entry in a partly filled index."""


class StepKeys(NamedTuple):
    """The keys of a step: their first cells (-1 for none), and their positions in the index table ``built``."""

    heads: Ints
    place: Ints
    built: int


class CandidateRows(NamedTuple):
    """The candidates of a step, in the layout of ``kernels.upserts``.

    The candidates are the stored rows of the step's keys, and the rows of the step. ``of``: int32[n], for each update,
    the position of its candidate.
    """

    first: Ints
    cell: Ints
    row: Ints
    counts: Ints
    hashed: Ints
    of: Narrow


class RowStoreChange(NamedTuple):
    """The computed change of a step, which is not yet applied: m candidates of g keys, and the new ``rows``."""

    first: Ints
    cell: Ints
    counts: Ints
    hashed: Ints
    new: Ints
    """The candidates to which ``rows`` belong."""
    rows: pa.Table
    keys: StepKeys
    high: Words
    low: Words

    def copy_out(self) -> Self:
        """Copy the change out of the arena, because the next step reuses the arena. O(candidates)."""
        first, cell, counts, hashed = (each.copy() for each in self[:4])
        keys = self.keys._replace(heads=self.keys.heads.copy(), place=self.keys.place.copy())
        return self._replace(first=first, cell=cell, counts=counts, hashed=hashed, keys=keys)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the change will add to the store."""
        return int(self.rows.nbytes) + self.new.size * CELL


Ranked = Callable[[CandidateRows, RowPool], CandidateRows]
"""A function that sorts the candidates of each key."""


class RowStore:
    """A store that finds rows, with their multiplicities, by key.

    An arrangement allows one live row for each key. The input of `ToUpserts` can have several live rows for a key, so
    `ToUpserts` needs this store. ``upserts.py`` decides which row of a key the output shows.

    The store keeps one cell for each distinct row, with its multiplicity. The cells of a key form a chain. A look-up
    reads one index entry, and then the chain of the key. Rows stay in the batches of the steps that inserted them. If
    there are too many batches or half of their rows are dead, the store gathers the live rows into one batch.

    Guarantees: no stored multiplicity is 0, and a look-up never reads the rows of another key.

    ``row``: the columns. ``wide``: whether key identities have two words. ``rows``, ``keys``: the number of stored rows
    and of stored keys.
    """

    def __init__(self, row: pa.Schema, wide: bool) -> None:
        self.index = Index(wide, 0, keeps=False)
        self.cells: Ints = np.zeros((1024, 4), np.int64)
        self.free, self.used, self.rows, self.keys, self.stored = -1, 0, 0, 0, 0
        self.pool = self._empty_pool(pa.schema([field.with_nullable(True) for field in row]))

    def seek(self, by: SortedRows, arena: Arena | None = None) -> StepKeys:
        """Find the first cell of each key of sorted rows. O(keys) expected."""
        held = self.index.look_up_keys(by.high, by.low, by.starts[:-1], arena)
        heads = np.where(held.reference & LIVE != 0, held.value.view(np.int64), -1)
        return StepKeys(heads, held.place, self.index.built)

    def list_candidates(
        self, keys: StepKeys, by: SortedRows, hashes: Ints, arena: Arena | None = None
    ) -> CandidateRows:
        """List all rows of the keys: the stored rows and the rows of the step.

        ``hashes``: int64[n], hashes of the values of the step's rows. O(rows of the step and stored rows of its keys)
        expected.
        """
        n = by.permutation.size
        m = kernels.count_chained_cells(self.cells, keys.heads) + n
        arena = arena or Arena()
        first, of = arena.empty(keys.heads.size + 1, np.int64), arena.empty(n, np.int32)
        cell, row, count, hashed = (arena.empty(m, np.int64) for _ in range(4))
        kernels.list_candidates(
            by.permutation, by.starts, hashes, self.cells, keys.heads, first, cell, row, count, hashed, of
        )
        m = int(first[-1])
        return CandidateRows(first, cell[:m], row[:m], count[:m], hashed[:m], of)

    def find_references(self, found: CandidateRows, which: Ints) -> Ints:
        """Return int64[which]: references to the rows of the candidates at the positions ``which``. O(which)."""
        cell = found.cell.take(which)
        return np.where(cell >= 0, self.cells[np.maximum(cell, 0), kernels.REF], found.row.take(which))

    def compute_change(self, found: CandidateRows, pool: RowPool, by: SortedRows, keys: StepKeys) -> RowStoreChange:
        """Compute the change that stores the counts of the candidates when `apply_changes` applies it.

        The store stays unchanged. ``pool``: the stored rows, with the step's rows as batch 0. O(candidates).
        """
        new, starts = np.flatnonzero((found.cell < 0) & (found.counts > 0)), by.starts[:-1]
        rows = gather_table(pool, found.row[new], self.pool.schema)
        low = by.low[starts] if by.low.size else by.low
        return RowStoreChange(
            found.first, found.cell, found.counts, found.hashed, new, rows, keys, by.high[starts], low
        )

    def insert_rows(self, rows: pa.Table, by: SortedRows, hashes: Ints, counts: Ints, ranked: Ranked) -> None:
        """Store distinct rows with the given ``counts``. The store must not hold any key of these rows. O(rows).

        ``by``, ``hashes``: int64[n], of these rows, as in `list_candidates`. ``ranked``: a function that sorts the
        candidates of each key.
        """
        keys, pool = self.seek(by), self.pool.with_events(Rows(rows))
        found = ranked(self.list_candidates(keys, by, hashes), pool)
        self.apply_changes(self.compute_change(found._replace(counts=counts.take(found.row)), pool, by, keys))

    def apply_changes(self, *changes: RowStoreChange) -> None:
        """Apply the changes of a step. Two changes must not have a key in common. Amortised O(candidates)."""
        self.index.reserve_entries(sum(change.keys.heads.size for change in changes))
        for change in changes:
            self._apply_change(change)

    def _apply_change(self, change: RowStoreChange) -> None:
        refs, keys, more = np.empty(change.cell.size, np.int64), change.keys, change.new.size
        if more:
            number = len(self.pool.rows)
            self.pool.set_batch(number, Rows(change.rows))
            refs[change.new] = np.arange(more) + (number << SLOT)
            self.stored += more
        if self.used + more > self.cells.shape[0]:
            room = max(more, self.cells.shape[0] // 2)
            self.cells = np.concatenate([self.cells, np.zeros((room, 4), np.int64)])
        heads = np.empty(keys.heads.size, np.int64)
        self.free, self.used, added = kernels.write_cells(
            change.first, change.cell, change.counts, change.hashed, refs, self.cells, self.free, self.used, heads
        )
        live, lived = heads >= 0, keys.heads >= 0
        self.rows, self.keys = self.rows + added, self.keys + int(live.sum()) - int(lived.sum())
        last = np.where(lived | live, np.arange(heads.size), -1)
        columns = heads.view(np.uint64), live.astype(np.uint8), np.empty((heads.size, 0), np.int64)
        self.index.write(IndexWrite(keys.place, keys.built, last, change.high, change.low, *columns, slot=FIRST))
        if len(self.pool.rows) > BATCHES or self.stored > 2 * self.rows + SLACK:
            self._compact_rows()

    @property
    def nbytes(self) -> int:
        """Bytes of the index, the cells and the rows, including dead rows that still take memory.  O(batches)."""
        rows = sum(each.nbytes for each in self.pool.rows if each is not None)
        return self.index.nbytes + int(self.cells.nbytes) + rows

    def _compact_rows(self) -> None:
        """Gather the live rows into one batch.  O(stored rows)."""
        live = np.flatnonzero(self.cells[: self.used, kernels.COUNT] > 0)
        rows = Rows(gather_table(self.pool, self.cells[live, kernels.REF], self.pool.schema))
        self.pool = self._empty_pool(self.pool.schema)
        self.pool.set_batch(FIRST, rows)
        self.cells[live, kernels.REF] = np.arange(live.size) + (FIRST << SLOT)
        self.stored = live.size

    def _empty_pool(self, schema: pa.Schema) -> RowPool:
        """Build a pool that holds only the row of nulls."""
        out = RowPool(schema)
        out.set_batch(NULLS, Rows(pa.Table.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)))
        return out

    def _check_invariants(self) -> None:
        """Assert the invariants."""
        # Each cell is either in exactly one chain or in the free list.
        _, places = self.index.list_entries(live=True)
        heads = [int(value) for value in self.index.read_entries(places)[2].view(np.int64)]
        seen, counted = set(), 0
        for start in [*heads, self.free]:
            at = start
            while at >= 0:
                assert at not in seen and at < self.used, (at, self.used)
                # A cell with a stored row has a positive multiplicity. A free cell has the multiplicity 0.
                assert (self.cells[at, kernels.COUNT] > 0) == (start != self.free), at
                counted += start != self.free
                seen.add(at)
                at = int(self.cells[at, kernels.NEXT])
        assert len(seen) == self.used and counted == self.rows, (len(seen), self.used, counted, self.rows)
        assert len(heads) == self.keys, (len(heads), self.keys)
