"""Turn differences back into upserts, with at most one upsert for each key and time.

An upsert says which row a key has from the time of the upsert on. The schema of the upserts follows from the schema of
the updates, the key, and ``on_conflict``. All live rows are stored with their multiplicities, because a hidden row must
reappear if the row that hides it is retracted.

Guarantees: after each time, the latest upserts of all keys, without the deleted keys, are the sum of the updates. If a
key has several rows, an error names them, unless ``on_conflict`` selects the visible row.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import (
    Ints,
    Narrow,
    Secret,
    compute_identities,
    compute_value_hashes,
    has_two_word_identities,
)
from ddflow.columns.layout import Arena
from ddflow.columns.names import DELETED, DIFF, TIME, check_column_names, did_you_mean, parse_column_names
from ddflow.columns.order_words import dense_ranks
from ddflow.columns.rows import RowPool, Rows, gather_column, gather_table, row_values
from ddflow.columns.schema import (
    conform_to_schema,
    empty_table,
    is_flat_type,
    is_key_type,
    is_time_type,
    normalize_type,
)
from ddflow.columns.sorting import SortedRows, sort_by_identity
from ddflow.connectors.to_arrow import to_table
from ddflow.errors import DdflowError, NotArrow, NotHeld, NotUnique, SchemaMismatch, SpecError, TimeWentBack
from ddflow.kernels import upserts as kernels
from ddflow.kernels.gather import SLOT
from ddflow.kernels.upserts import list_rows_per_time
from ddflow.operators.held_rows import NULLS, STEP, CandidateRows, RowStore, RowStoreChange
from ddflow.operators.updates import Updates, build_count_overflow, ints, narrow_ints
from ddflow.time import format_time

ROWS = "rows"
Conflicts = Literal["error", "greatest", "all"]


def check_step_schema(given: pa.Schema, key: Sequence[str], on_conflict: Conflicts) -> pa.Schema:
    """Check the schema of updates, and return the schema that every step must have.

    Raises `SchemaMismatch`, `SpecError`.

    >>> updates = pa.schema([pa.field("id", pa.int64(), False), ("city", pa.string()), ("_time", pa.int64()),
    ...                      ("_diff", pa.int64())])
    >>> UpsertsSchema(check_step_schema(updates, ["id"], "error"), ["id"], "error").out.names
    ['id', 'city', '_time', '_deleted']
    """
    asked = f"updates to turn into upserts by {list(key)}"
    for name in (*key, TIME, DIFF):
        if name not in given.names or (name in (TIME, DIFF) and name in key):
            raise SchemaMismatch(asked, f"there is no column {name!r}", did_you_mean(name, given.names), column=name)
    rows = [field for field in given if field.name not in (TIME, DIFF)]
    check_column_names([field.name for field in rows], asked)
    schema = pa.schema([field.with_type(normalize_type(field.type)) for field in rows])
    for field in schema:
        if field.name in key and not is_key_type(field.type):
            raise SpecError(
                asked,
                f"{field.name!r} is {field.type}, which cannot be hashed as a key",
                "use numbers, text, binary, dates, decimals",
            )
        if field.name not in key and on_conflict == "greatest" and not is_flat_type(field.type):
            raise SpecError(
                f"on_conflict='greatest' of {asked}",
                f"{field.name!r} is {field.type}, which has no order",
                "omit the column, or use on_conflict='all'",
            )
        if field.name == DELETED or (field.name in key and on_conflict == "all" and field.name == ROWS):
            raise SchemaMismatch(asked, f"{field.name!r} is a column that to_upserts adds itself", "rename it")
    kind = given.field(TIME).type
    if not is_time_type(kind):
        raise SchemaMismatch(asked, f"{TIME!r} is {kind}, which is not a time type", "use int64, a timestamp or a date")
    return pa.schema([*schema, pa.field(TIME, kind, False), pa.field(DIFF, pa.int64(), False)])


class UpsertsSchema:
    """The schemas of updates, of the rows of updates, and of the upserts that are made from updates.

    ``row``: a row's columns, without time and diff. ``beside``: the row's columns outside the key, all nullable.
    ``shown``: the visible columns of a key, and ``_deleted``. ``out``: the columns of a table of upserts.
    """

    def __init__(self, updates: pa.Schema, key: Sequence[str], on_conflict: Conflicts) -> None:
        self.updates, self.key, self.on_conflict = updates, key, on_conflict
        self.time_type = updates.field(TIME).type
        self.row = pa.schema([field for field in updates if field.name not in (TIME, DIFF)])
        self.beside = pa.schema([field.with_nullable(True) for field in self.row if field.name not in key])
        fields = [field if field.name in key else field.with_nullable(True) for field in self.row]
        if on_conflict == "all":
            inner = [*(self.row.field(name) for name in self.beside.names), pa.field(DIFF, pa.int64(), False)]
            lists = pa.list_(pa.field("item", pa.struct(inner), False))
            fields = [*(field for field in self.row if field.name in key), pa.field(ROWS, lists)]
        deleted = pa.field(DELETED, pa.bool_(), False)
        self.shown = pa.schema([*fields, deleted])
        self.out = pa.schema([*fields, pa.field(TIME, self.time_type, False), deleted])

    def gather_rows(self, upserts: Ints, shown: Any, pool: RowPool) -> pa.Table:
        """Gather the visible rows of keys, and ``_deleted``. O(upserts).

        ``upserts``: the first update of each upsert. ``shown``: references to rows, -1 for none. With
        ``on_conflict="all"``, ``shown`` describes lists of rows by three arrays: sizes, references and multiplicities.
        """
        columns = {name: gather_column(pool, upserts, self.row.field(name)) for name in self.key}
        if self.on_conflict == "all":
            sizes, references, counted = shown
            gone = sizes == 0
            columns[ROWS] = self._build_list_column(sizes, references, counted, pool)
        else:
            gone = shown < 0
            at = np.where(gone, NULLS << SLOT, shown)
            columns |= {field.name: gather_column(pool, at, field) for field in self.beside}
        columns[DELETED] = pa.array(gone)
        return pa.Table.from_arrays([columns[name] for name in self.shown.names], schema=self.shown)

    def _build_list_column(self, sizes: Ints, references: Ints, counted: Ints, pool: RowPool) -> pa.Array:
        """Build the column that lists all rows of each key. A key without rows has null."""
        kind = self.out.field(ROWS).type
        columns = [gather_column(pool, references, self.row.field(name)) for name in self.beside.names]
        values = pa.StructArray.from_arrays([*columns, pa.array(counted)], fields=list(kind.value_type))
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), values, type=kind, mask=pa.array(sizes == 0))


UPDATES = "updates"
"""The name that messages use for the input."""
NO_SECRET = Secret(0, 0)
"""The hash key for orders that must be the same in all processes.

Because the key is fixed, it gives no protection against rows that are crafted to collide.
"""


def to_upserts(
    diffs: Any, key: str | Sequence[str], on_conflict: Conflicts = "error", *, secret: Secret | None = None
) -> pa.Table:
    """Turn the updates of all steps into upserts.

    Parameters
    ----------
    diffs : table or iterable of tables
        Updates: an object that exports Arrow data, or an iterable of such objects, one for each step.
    key, on_conflict, secret
        See `ToUpserts`.

    Returns
    -------
    pyarrow.Table
        The row's columns, ``_time`` and ``_deleted`` (boolean), by ascending time.

    Raises
    ------
    NotArrow
        If there is no step at all.
    DdflowError
        The errors of `ToUpserts.step`.

    Notes
    -----
    O(n) expected, for n updates.

    >>> import pyarrow as pa
    >>> diffs = pa.table({"id": [1, 1, 1, 1], "city": ["Bern", "Bern", "Chur", "Chur"], "_time": [0, 4, 4, 5],
    ...                   "_diff": [1, -1, 1, -1]})
    >>> for upsert in to_upserts(diffs, "id").to_pylist():
    ...     print(upsert)
    {'id': 1, 'city': 'Bern', '_time': 0, '_deleted': False}
    {'id': 1, 'city': 'Chur', '_time': 4, '_deleted': False}
    {'id': 1, 'city': None, '_time': 5, '_deleted': True}
    """
    back = ToUpserts(key, on_conflict, secret=secret)
    if hasattr(diffs, "__arrow_c_stream__") or hasattr(diffs, "__arrow_c_array__"):
        return back.step(diffs)
    if not isinstance(diffs, Iterable) or isinstance(diffs, str | bytes | dict):
        raise NotArrow(
            "updates to turn into upserts",
            f"{type(diffs).__name__} does not speak Arrow",
            "pass a table of updates, or an iterable of such tables",
        )
    tables = [back.step(step) for step in diffs]
    if not tables:
        found = "there is no table, so the columns are unknown"
        raise NotArrow("updates to turn into upserts", found, "pass an empty table")
    return pa.concat_tables(tables)


class ToUpserts:
    """Turn a stream of updates into upserts by ``key``, one step after the other.

    `ToUpserts` stores all n live rows, which takes O(n) memory: about 70 bytes for each row, plus the values of the
    row. Raises `SpecError` for a wrong key or ``on_conflict``.

    Parameters
    ----------
    key : str or sequence of str
        The columns of the key.
    on_conflict : {"error", "greatest", "all"}
        The rule for a key with several rows, or with one row several times.  "error" refuses the step.  "greatest"
        shows the greatest row, compared column by column (null smallest, NaN largest); a hidden row reappears when the
        greater row leaves.  "all" shows the key's columns and ``rows``, a list of all rows of the key: structs of the
        other columns and ``_diff``, the multiplicity.
    secret : Secret, optional
        The secret for row identities, by default a fresh one.  No result depends on it.
    """

    def __init__(
        self, key: str | Sequence[str], on_conflict: Conflicts = "error", *, secret: Secret | None = None
    ) -> None:
        self.key = parse_column_names(key, "dd.ToUpserts", "key")
        self.on_conflict, self.secret, self.arena = on_conflict, secret or Secret.fresh(), Arena()
        asked = f"upserts by {list(self.key)}"
        if not self.key or len(set(self.key)) < len(self.key):
            raise SpecError(asked, "a key has at least one column, and no column twice", "name the columns of the key")
        if on_conflict not in get_args(Conflicts):
            raise SpecError(
                f"on_conflict={on_conflict!r}",
                "there is no such rule",
                did_you_mean(str(on_conflict), get_args(Conflicts), "values"),
            )
        self.opened = False
        self.last: int | None = None

    def __len__(self) -> int:
        """Return the number of distinct stored rows, including hidden rows."""
        return self.held_rows.rows if self.opened else 0

    def step(self, diffs: Any) -> pa.Table:
        """Turn updates into upserts, sorted by time. Within a time, keys keep the order that they have in ``diffs``.

        Parameters
        ----------
        diffs : table
            The row's columns, ``_time`` and ``_diff``, in any order, consolidated or not.  All times must be greater
            than the times of the step before.  Give all updates from the beginning: the first step may be the initial
            contents of a collection.

        Returns
        -------
        pyarrow.Table
            The row's columns (under "all" the key's and ``rows``), ``_time``, ``_deleted`` (boolean).  For a deleted
            key, all columns but the key are null.

        Raises
        ------
        NotUnique, NotHeld
            If a key has several rows, or if an absent row is retracted.
        TimeWentBack
            If a time is not greater than the times of the step before.
        SchemaMismatch, SpecError, NotArrow
            If columns are missing, reserved or changed; if a type is not supported; if ``diffs`` does not export Arrow
            data.
        CountOverflow, TooLarge
            If a multiplicity does not fit int64; if a text column would exceed 2 GiB.

        Notes
        -----
        O(n + h) expected, for n updates and the h stored rows of their keys. Comparisons of rows add a logarithmic
        factor. After an error the state is unchanged.
        """
        table = to_table(diffs, UPDATES, pa.schema([]))
        declared = self.schema.updates if self.opened else check_step_schema(table.schema, self.key, self.on_conflict)
        updates = Updates.from_table(conform_to_schema(table, declared, UPDATES, declared.names))
        self._check_times(updates, declared.field(TIME).type)
        if not self.opened:
            self._set_schema(declared)
        upserts, change = self.resolve(updates)
        if change is None:
            return empty_table(self.schema.out)
        self.keep(change)
        self.last = int(updates.times[-1])
        return self.told(upserts)

    def declare(self, given: pa.Schema) -> None:
        """Declare the schema of the updates before the first step. Raises the same schema errors as `step`."""
        self._set_schema(check_step_schema(given, self.key, self.on_conflict))

    def resolve(self, updates: Updates) -> tuple[Updates, RowStoreChange | None]:
        """Compute the upserts of updates, and the change that `keep` applies. The state stays unchanged.

        ``updates``: updates in the declared columns, with ascending ranks within each key. If the updates include one
        update of a key at a time, they must include all updates of this key at this time.

        Return the visible columns and ``_deleted``, sorted by time rank. Each row has the diff 1. If there
        are no updates, the change is None. The change is valid until the next `resolve`. A copy that
        `RowStoreChange.copy_out` makes stays valid until `keep` applies the copy. Raises the errors of `step`.
        """
        if not updates.diffs.size:
            return Updates(empty_table(self.schema.shown), narrow_ints(), ints(), updates.times), None
        self.arena.reset()
        rows, diffs, ranks, times = Rows(updates.rows), updates.diffs, updates.ranks, updates.times
        by = sort_by_identity(*compute_identities(rows.table.select(self.key), self.secret), self.arena)
        hashes = compute_value_hashes(rows.table.select(self.schema.beside.names), self.secret).view(np.int64)
        keys = self.held_rows.seek(by, self.arena)
        found, pool = (
            self.held_rows.list_candidates(keys, by, hashes, self.arena),
            self.held_rows.pool.with_events(rows),
        )
        found, upserts, shown = self._compute_shown_rows(found, pool, by, ranks, diffs, times)
        rows_shown = self.schema.gather_rows(upserts, shown, pool)
        made = Updates(rows_shown, ranks[upserts], np.ones(upserts.size, np.int64), times)
        return made, self.held_rows.compute_change(found, pool, by, keys)

    def keep(self, *changes: RowStoreChange) -> None:
        """Apply the changes of a resolved step. Amortised O(updates + stored rows of their keys)."""
        self.held_rows.apply_changes(*changes)

    def told(self, upserts: Updates) -> pa.Table:
        """Build a table of resolved upserts: the visible columns, ``_time``, ``_deleted``.  O(upserts)."""
        return upserts.to_table(self.schema.shown, self.schema.time_type).select(self.schema.out.names)

    def _set_schema(self, declared: pa.Schema) -> None:
        """Set the schema from the first step or a declaration."""
        self.schema, self.opened = UpsertsSchema(declared, self.key, self.on_conflict), True
        self.held_rows = RowStore(
            self.schema.row, has_two_word_identities(pa.schema([self.schema.row.field(name) for name in self.key]))
        )

    def _check_times(self, updates: Updates, kind: pa.DataType) -> None:
        """Raise `TimeWentBack` if a time is not greater than all times of the previous step."""
        if updates.times.size and self.last is not None and updates.times[0] <= self.last:
            raise TimeWentBack(
                f"a step with updates at {format_time(int(updates.times[0]), kind)}",
                f"the previous step went up to {format_time(self.last, kind)}",
                "pass all updates of a time in one step, and pass steps in order of time",
            )

    def _rank_candidates(self, found: CandidateRows, pool: RowPool) -> CandidateRows:
        """Sort each key's candidates by their rows, ascending.

        Columns of a type without an order come last. Values without an order are compared by a hash that is the same in
        all processes.
        """
        n = found.cell.size
        rows = gather_table(pool, self.held_rows.find_references(found, np.arange(n)), self.schema.beside)
        flat = rows.select([field.name for field in self.schema.beside if is_flat_type(field.type)])
        ranks = (
            dense_ranks(flat, compute_value_hashes(flat, self.secret)) if flat.num_columns else np.zeros(n, np.int64)
        )
        ties = compute_value_hashes(rows, NO_SECRET) if flat.num_columns < rows.num_columns else np.zeros(n, np.uint64)
        groups = np.repeat(np.arange(found.first.size - 1), np.diff(found.first))
        order = np.lexsort((ties, ranks, groups))
        place = np.empty(order.size, np.int32)
        place[order] = np.arange(order.size, dtype=np.int32)
        return CandidateRows(
            found.first, found.cell[order], found.row[order], found.counts[order], found.hashed[order], place[found.of]
        )

    def _compute_shown_rows(
        self, found: CandidateRows, pool: RowPool, by: SortedRows, ranks: Narrow, diffs: Ints, times: Ints
    ) -> tuple[CandidateRows, Ints, Any]:
        """Compute the candidates with new counts, and the first update and the visible row of each upsert.

        The visible row is a reference, or -1 if the key has no row. With ``on_conflict="all"``, the visible rows are
        lists: sizes, references and multiplicities.
        """
        n = diffs.size
        given = by.permutation, by.starts, ranks, diffs

        def settle(unique: bool) -> tuple[int, int, int, int]:
            net[:] = 0
            return kernels.find_changes_of_greatest(
                *given, found.of, found.first, unique, count, net, heap, entered, row, shown
            )

        if self.on_conflict == "all":
            return self._list_all_rows(self._rank_candidates(found, pool), pool, by, ranks, diffs, times)
        m, arena = found.cell.size, self.arena
        net, heap, entered = arena.empty(m, np.int64), arena.empty(m + n, np.int64), arena.empty(n, np.int32)
        row, shown = arena.empty(n, np.int64), arena.empty(n, np.int64)
        count = found.counts.copy()
        # First try to compute the result without a comparison of rows, because usually no key has two rows.
        written, why, where, place = settle(True)
        if why == kernels.SEVERAL and self.on_conflict == "greatest":
            found = self._rank_candidates(found, pool)
            count = found.counts.copy()
            written, why, where, place = settle(False)
        found = found._replace(counts=count)
        if why:
            raise self._build_refusal_error(why, where, int(by.permutation[place]), found, pool, times, ranks)
        order = self._sort_upserts(row[:written], n)
        row, shown = row.take(order), shown.take(order)
        live = np.flatnonzero(shown >= 0)
        at = np.full(shown.size, -1)
        at[live] = self.held_rows.find_references(found, shown.take(live))
        return found, row, at

    def _list_all_rows(
        self, found: CandidateRows, pool: RowPool, by: SortedRows, ranks: Narrow, diffs: Ints, times: Ints
    ) -> tuple[CandidateRows, Ints, tuple[Ints, Ints, Ints]]:
        n, m, room = diffs.size, found.cell.size, 0
        while True:
            count, row, size = found.counts.copy(), np.empty(n, np.int64), np.empty(n, np.int64)
            listed, counted = np.empty(room, np.int64), np.empty(room, np.int64)
            written, needed, why, where, place = list_rows_per_time(
                by.permutation,
                by.starts,
                ranks,
                diffs,
                found.of,
                found.first,
                count,
                np.zeros(m, np.int64),
                np.empty(m, np.int32),
                np.empty(n, np.int32),
                row,
                size,
                listed,
                counted,
            )
            if why or needed <= room:
                break
            room = needed
        found = found._replace(counts=count)
        if why:
            raise self._build_refusal_error(why, where, int(by.permutation[place]), found, pool, times, ranks)
        row, size = row[:written], size[:written]
        order = self._sort_upserts(row, n)
        begins = np.cumsum(size) - size
        # For each value of the output lists, ``at`` is the position of the value in the computed lists, which are in
        # the order of keys.
        sizes = size[order]
        at = np.arange(needed) + np.repeat(begins[order] - (np.cumsum(sizes) - sizes), sizes)
        return found, row[order], (sizes, self.held_rows.find_references(found, listed[at]), counted[at])

    def _sort_upserts(self, row: Ints, n: int) -> Ints:
        """Sort upserts by the first update of each upsert: by time, and within a time in the order of keys. O(n)."""
        place = np.full(n, -1)
        place[row] = np.arange(row.size)
        return place[place >= 0]

    def _build_refusal_error(
        self, why: int, group: int, row: int, found: CandidateRows, pool: RowPool, times: Ints, ranks: Narrow
    ) -> DdflowError:
        """Build the error for the first refused update."""
        updates = pool.rows[STEP]
        assert updates is not None
        time = format_time(int(times[ranks[row]]), self.schema.time_type)
        asked = f"upserts by {list(self.key)} at time {time}"
        if why == kernels.OVERFLOW:
            return build_count_overflow(updates.table, row)
        if why == kernels.ABSENT:
            return NotHeld(
                asked,
                f"{row_values(updates.table, row)} is retracted more often than the collection holds it",
                "pass all updates from the beginning, step after step; if they begin later, first pass the rows "
                "that the collection held",
            )
        live = np.arange(found.first[group], found.first[group + 1])
        live = live[found.counts[live] > 0]
        rows = gather_table(pool, self.held_rows.find_references(found, live[:3]), self.held_rows.pool.schema)
        shown = ", ".join(f"{row_values(rows, i)} ({found.counts[live[i]]} times)" for i in range(rows.num_rows))
        more = f" and {live.size - 3} more" if live.size > 3 else ""
        return NotUnique(
            asked,
            f"one key holds {shown}{more}",
            "name the columns that make a row unique, or choose the visible row: on_conflict='greatest' or 'all'",
        )
