"""Cast the versions of an arrangement to wider types or more columns, with new hashes or identities.

The identity of a group is a hash of its columns. If the columns change, the identity and its place in hash order may
change. The row of a deletion can be filler. Therefore a deletion gets the new identity of a live version of the same
key.

Guarantees: each version becomes one version, except deletions of keys without a live version. Widening is injective, so
two groups never become one. Deletions have null in each column that changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Flags, Ints
from ddflow.columns.rows import RowPool, Rows
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.columns.wider import find_widening
from ddflow.kernels.gather import SLOT
from ddflow.kernels.index import REF, VALUE
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.storage.files.batch_store import BatchStore
from ddflow.time import NEVER, BatchDescription
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, BatchRange, Run, mark_first_of_keys
from ddflow.trace.checkpoint import index_run
from ddflow.trace.merge import pick_versions_by_sorting
from ddflow.trace.spill import Made, spill_batch

Cast = Callable[[pa.Table | pa.RecordBatch, pa.Schema, Flags], pa.RecordBatch]
"""A function that casts rows to a schema. The flags mark the live rows."""


def cast_rows(rows: pa.Table | pa.RecordBatch, schema: pa.Schema, live: Flags) -> pa.RecordBatch:
    """Cast rows to wider types of the same values.  See `Cast` and `conform_to_wider_schema`."""
    return conform_to_wider_schema(rows, schema)


def has_changed_identities(old: pa.Schema, new: pa.Schema) -> bool:
    """Return whether identities change. O(columns).

    Identities change if there are more columns, or if the hashes of columns differ.
    """
    pairs = [(f.type, new.field(f.name).type) for f in old if f.name in new.names]
    return old.names != new.names or any(a != b and find_widening(a, b) != "read" for a, b in pairs)


def cast_batch(batch: Batch, schema: pa.Schema, made: Made, rekeys: bool, cast: Cast = cast_rows) -> Batch:
    """Cast a batch to the columns of a schema. O(n), or O(n log n) if ``rekeys`` is set.

    ``batch``: a batch with all versions of its keys.  ``made``: the function that hashes rows of the new schema.
    ``rekeys``: whether identities change with the columns.  ``cast``: the function that casts the rows.  Raises
    `InexactValue`.

    >>> from ddflow.columns.hashing import Secret, compute_identities
    >>> def made(rows):
    ...     high, low = compute_identities(rows.select(["k"]), Secret(1, 2))
    ...     return high, low, high
    >>> old = pa.table({"k": pa.array([7, 8], pa.int32())})
    >>> high, _, _ = made(old)
    >>> order = np.argsort(high)
    >>> batch = replace(Batch.from_lists(high[order], [1, 1], [1, 1], old.take(pa.array(order))), low=np.zeros(2,
    ...     np.uint64))
    >>> sorted(cast_batch(batch, pa.schema({"k": pa.string()}), made, rekeys=True).rows.table.to_pydict()["k"])
    ['7', '8']
    """
    live, there = batch.live != 0, batch.rows.table
    if not live.all():
        every = np.arange(len(batch))
        for at, field in enumerate(there.schema):
            if field.name in schema.names and schema.field(field.name).type != field.type:
                column: Any = there.column(at).take(pa.array(every, mask=~live))
                there = there.set_column(at, field, column)
    rows = cast(there, schema, live)
    high, low, value, *more = made(rows)
    value = batch.value if batch.summed else np.where(live, value, batch.value) if batch.value.size else value
    if not rekeys:
        return replace(batch, rows=Rows(rows), value=value, mapped=None)
    of: Ints = np.cumsum(mark_first_of_keys(batch.high, batch.low, batch.extra_identity_words)) - 1
    said: Ints = np.full(len(batch), -1)
    said[of[live]] = np.flatnonzero(live)
    says: Ints = said[of]
    kept = np.flatnonzero(says >= 0)
    high, low = high[says[kept]], low[says[kept]] if low.size else low
    words = [each[says[kept]] for each in more]
    others = [column for each in words for column in each.view(np.uint64).T[::-1]]
    order = np.lexsort((batch.time[kept], *others, *([low] if low.size else []), high))
    chosen = kept[order]
    return replace(
        batch,
        high=high[order],
        low=low[order] if low.size else low,
        time=batch.time[chosen],
        live=batch.live[chosen],
        value=value[chosen],
        order=words[0][order] if words else batch.order[chosen],
        rows=Rows(rows.take(pa.array(chosen))),
        mapped=None,
    )


def cast_batches(
    old: Arrangement, schema: pa.Schema, made: Made, rekeys: bool, cast: Cast = cast_rows
) -> Iterable[Batch]:
    """Cast all versions of an arrangement, one range of the old identities at a time.  O(versions)."""
    for parts in old.iterate_version_ranges():
        picked = pick_versions_by_sorting(old.slots, parts, old.since, not old.keeps)
        if picked.high.size:
            yield cast_batch(picked.build_batch(old.slots, True), schema, made, rekeys, cast)


def rekey_arrangement(
    old: Arrangement, new: Arrangement, made: Made, indexed: bool, batch_store: BatchStore | None = None
) -> None:
    """Cast all versions of an arrangement to other identities, and add them as one run to an empty arrangement.

    O(versions). ``indexed``: whether the run is in memory and in the index; if not, the run is on disk, in files of
    ``batch_store``. If ``batch_store`` is None, the run stays in memory without an index, for reads only.
    """
    moved = new.make_empty()
    for batch in cast_batches(old, new.schema, made, True):
        if len(batch):
            moved.on_disk.append(Run(BatchDescription(NEVER, NEVER, NEVER), [moved.slots.add_batch(batch)]))
    new.since, new.upper, new.latest, parts = old.since, old.upper, old.latest, list[BatchRange]()
    for some in moved.iterate_version_ranges():
        picked = pick_versions_by_sorting(moved.slots, some, old.since, not new.keeps)
        if picked.high.size:
            new.keys += picked.count_keys()
            batch = picked.build_batch(moved.slots, True)
            parts.append(
                new.slots.add_batch(batch if indexed or batch_store is None else spill_batch(batch, batch_store))
            )
    if not parts:
        return
    items = [*old.on_disk.items, *old.spine.items]
    times = [(item if isinstance(item, Run) else item.output).description for item in items]
    run = Run(BatchDescription(times[0].lower, times[-1].upper, max(each.since for each in times)), parts)
    (new.spine if indexed else new.on_disk).append(run)
    if indexed and not new.slots.summed:
        new.index.reserve_entries(new.keys + sum(map(len, new.slots.batches)))
        index_run(new, run)
    elif not indexed:
        new.index.keep_deletions()
        new.spine.keeps = True


def cast_arrangement_in_place(arranged: Arrangement, schema: pa.Schema, made: Made, hashed: bool) -> None:
    """Cast the rows of an arrangement in place, with the same identities.  O(rows) for each column that changes.

    ``made``: the function that hashes rows of the schema.  ``hashed``: whether value hashes change, so that all rows
    must be read.
    """
    slots, values = arranged.slots, dict[int, Any]()
    old, slots.pool, arranged.schema = slots.pool, RowPool(schema), schema
    slots.pool.threads = old.threads
    slots.pool.set_batch(0, None)
    for slot, batch in enumerate(slots.by_slot):
        if batch is None:
            slots.pool.set_batch(slot, None)
            continue
        rows = conform_to_wider_schema(batch.rows.table, schema)
        if hashed:
            values[slot] = made(rows)[2]
            batch = replace(batch, value=values[slot] if batch.value.size else batch.value)
        slots.replace_batch(slot, replace(batch, rows=Rows(rows)))
    for table in arranged.index.tables.values():
        references = table[:, REF].view(np.int64)
        of = (references & ~(OCCUPIED | LIVE)) >> SLOT
        for slot, value in values.items():
            here = np.flatnonzero((references & OCCUPIED != 0) & (of == slot))
            table[here, VALUE] = value[references[here] & ((1 << SLOT) - 1)]
