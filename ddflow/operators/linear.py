"""Filter, project, negate, unnest, concat: operators that look at one update at a time and keep nothing.

Invariant: linearity.  op(a + b) = op(a) + op(b), so each step's output depends on that step's updates alone, and the
collection downstream is what the operator makes of the collection upstream.  Multiplicities are kept: a projection does
not remove duplicates, their diffs add up when the output is consolidated.

>>> import pyarrow as pa
>>> updates = Updates(pa.table({"v": ["zappa", "oz"]}), few(0, 1), ints(1, 1), ints(3, 4))
>>> negate(updates).diffs.tolist()
[-1, -1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import flags
from ddflow.columns.schema import one_chunk
from ddflow.kernels.sort import order_by_rank
from ddflow.operators.updates import Updates, few, ints, overflow

__all__ = ["concat", "few", "filter_rows", "ints", "negate", "project", "unnest"]


def one_batch(table: Any, names: Sequence[str] | None = None) -> pa.RecordBatch:
    """A table of one chunk a column, or those of its columns, as a record batch, without a copy."""
    names = table.schema.names if names is None else names
    columns = [one_chunk(c) if isinstance(c := table.column(n), pa.ChunkedArray) else c for n in names]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([table.schema.field(n) for n in names]))


def filter_rows(updates: Updates, predicate: Callable[[pa.RecordBatch], pa.Array]) -> Updates:
    """The updates whose row passes; null does not.  O(n)."""
    if not updates.diffs.size:
        return updates
    read = getattr(predicate, "columns", None)  # the others are not even gathered for rows that do not pass
    # A predicate that reads none still has to be told how many rows there are.
    names = None if read is None else list(read) or updates.rows.schema.names[:1]
    places = np.flatnonzero(flags(predicate(one_batch(updates.rows, names))))
    return updates if places.size == updates.diffs.size else updates.picked(places)


def project(
    updates: Updates, schema: pa.Schema, columns: Sequence[str | Callable[[pa.RecordBatch], pa.Array]]
) -> Updates:
    """The rows mapped to ``schema``, a column name or expression each.  O(n) for expressions, O(1) for names."""
    batch = one_batch(updates.rows) if any(callable(c) for c in columns) else None
    out = [c(batch) if callable(c) else updates.rows.column(c) for c in columns]
    return updates._replace(rows=pa.Table.from_arrays(out, schema=schema))


def negate(updates: Updates) -> Updates:
    """The same rows with every diff's sign turned; within a time, what is a retraction now comes first.  O(n).

    Raises `CountOverflow` for the one diff that has no opposite.
    """
    least = np.flatnonzero(updates.diffs == np.iinfo(np.int64).min)
    if least.size:
        raise overflow(updates.rows, int(least[0]))
    order = np.empty(updates.diffs.size, np.int64)
    order_by_rank(updates.ranks, (updates.diffs < 0).astype(np.int64), np.int64(updates.times.size), order)
    return updates._replace(diffs=-updates.diffs).picked(order)


def unnest(updates: Updates, schema: pa.Schema, column: str) -> Updates:
    """A row for each element of a column of lists, in the columns of ``schema``.  O(elements) a column."""
    lists = updates.rows.column(column)
    lists = one_chunk(lists) if isinstance(lists, pa.ChunkedArray) else lists
    sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    parent, elements = np.repeat(np.arange(updates.diffs.size), sizes), lists.flatten()
    made = (
        dict(zip([f.name for f in elements.type], elements.flatten(), strict=True))
        if pa.types.is_struct(elements.type)
        else {column: elements}
    )
    others = updates.rows.select([name for name in schema.names if name not in made]).take(pa.array(parent))
    columns = [made[name] if name in made else others.column(name) for name in schema.names]
    return Updates(
        pa.Table.from_arrays(columns, schema=schema),
        updates.ranks.take(parent),
        updates.diffs.take(parent),
        updates.times,
    )


def concat(parts: Sequence[Updates]) -> Updates:
    """All updates of all parts, in the order of their times.  O(n)."""
    ranks = np.concatenate([p.ranks for p in parts])
    times, order = parts[0].times, np.empty(ranks.size, np.int64)
    # The parts may differ in what may be null; then every column that may be in one may be in all.
    fields = [f.with_nullable(any(p.rows.schema.field(f.name).nullable for p in parts)) for f in parts[0].rows.schema]
    tables = [pa.Table.from_arrays(p.rows.columns, schema=pa.schema(fields)) for p in parts]
    rows = pa.concat_tables(tables).combine_chunks()
    order_by_rank(ranks, np.empty(0, np.int64), np.int64(times.size), order)
    return Updates(rows, ranks, np.concatenate([p.diffs for p in parts]), times).picked(order)
