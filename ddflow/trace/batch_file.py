"""A batch as a file: its columns and payload as one Arrow record batch, and back.

Invariant: `unfiled` gives the batch that `filed` was given, column for column. A value that all rows share (one time
after a compaction, all of them live) takes no room: it is not in the file but in the *layout*, plain values that a
manifest can hold, which also say which columns there are. ddflow's columns are first and are found by their place, so a
payload may call its own as it likes. A *compressed* file is written to be kept, not to be read in place. It leaves out
what the rows imply, their identities and hashes, because these are random bytes that nothing makes smaller. Only
deletions keep theirs, because their rows may be gone.

>>> batch = Batch.of([4, 9], [1, 2], [True, True], pa.table({"k": ["a", "b"]}))
>>> record, layout = filed(batch)
>>> record.schema.names, layout.own, layout.words
(['_high', '_time', '_live', 'k'], ('high', 'time', 'live'), 0)
>>> unfiled(record, layout).rows.table.to_pylist()
[{'k': 'a'}, {'k': 'b'}]
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import numpy as np
import pyarrow as pa
from msgspec import Meta

from ddflow.columns.hashing import NONE, Ints, Words, view
from ddflow.columns.rows import Rows
from ddflow.storage.fields import Instant, Strict
from ddflow.trace.batch import Batch, same

KINDS: Final[dict[str, Any]] = {
    "high": np.uint64,
    "low": np.uint64,
    "time": np.int64,
    "live": np.uint8,
    "value": np.uint64,
}
"""The columns that are ours, in their order, and the types of their words."""
MADE: Final = ("high", "low", "value")
"""Those of them that a live version's row says as well."""
Made = Callable[[pa.Table | pa.RecordBatch], tuple[Words, Words, Words] | tuple[Words, Words, Words, Ints]]
"""Identities (high, low) and value hashes, as rows have them, and where arrangements are ordered the words beyond two;
those of rows of deletions may be any."""
MOST_WORDS: Final = 1 << 10
"""Order words of a version, at most."""


class Layout(Strict, frozen=True):
    """What a file's columns are.  ``own``: those of ours that it has.  ``time``, ``live``: what all versions share.
    ``words``: order words a version.  ``compressed``: whether the identities and hashes of live versions are left to be
    made again from their rows, and what lies there in their place is zero."""

    own: tuple[Literal["high", "low", "time", "live", "value"], ...]
    time: Instant | None
    live: Annotated[int, Meta(ge=0, le=1)] | None
    words: Annotated[int, Meta(ge=0, le=MOST_WORDS)]
    compressed: bool

    def __post_init__(self) -> None:
        own = self.own
        if (
            own != tuple(filter(own.__contains__, KINDS))
            or "high" not in own
            or ("time" in own) == (self.time is not None)
            or ("live" in own) == (self.live is not None)
        ):
            raise ValueError(f"a file cannot have the columns {own} beside time {self.time} and live {self.live}")

    def schema(self, payload: pa.Schema) -> pa.Schema:
        """Return the columns of the file.  ``payload``: its last columns."""
        fields = [pa.field(f"_{name}", pa.from_numpy_dtype(KINDS[name])) for name in self.own]
        if self.words:
            fields.append(pa.field("_order", pa.list_(pa.int64(), self.words)))
        return pa.schema([*fields, *payload])


def filed(batch: Batch, compressed: bool = False) -> tuple[pa.RecordBatch, Layout]:
    """Return the columns to write, and their layout, without a copy unless ``compressed``.  O(columns), or O(n)."""
    kept = {name: column for name in KINDS if (column := getattr(batch, name)).size and all(column.strides)}
    time = None if "time" in kept else int(batch.time[0])
    live = None if "live" in kept else int(batch.live[0])
    if compressed:
        kept |= {name: np.where(batch.live != 0, np.uint64(0), kept[name]) for name in MADE if name in kept}
    own: Any = tuple(kept)
    layout = Layout(own, time, live, batch.order.shape[1], compressed)
    arrays = list(map(pa.array, kept.values()))
    if layout.words:
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(batch.order.reshape(-1)), layout.words))
    arrays += batch.rows.columns
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema(batch.rows.schema)), layout


def unfiled(record: pa.RecordBatch, layout: Layout, mapped: Any = None) -> Batch:
    """Build the batch over the memory of a file's record; a compressed one needs `whole`.

    ``mapped``: the file, which the batch remembers.  O(columns).
    """
    n, schema = record.num_rows, record.schema
    own = {name: view(record.column(i), np.dtype(KINDS[name])) for i, name in enumerate(layout.own)}
    at = len(own)
    order = np.empty((n, 0), np.int64)
    if layout.words:
        order = view(record.column(at).values, np.dtype(np.int64)).reshape(-1, layout.words)[:n]
    payload = pa.schema([schema.field(i) for i in range(at + bool(layout.words), len(schema))])
    rows = pa.RecordBatch.from_arrays(record.columns[at + bool(layout.words) :], schema=payload)
    time = own["time"] if layout.time is None else same(layout.time, n, np.int64)
    live = own["live"] if layout.live is None else same(layout.live, n, np.uint8)
    low, value = own.get("low", NONE), own.get("value", NONE)
    return Batch(own["high"], low, time, live, value, order, Rows(rows), mapped)


def whole(batch: Batch, made: Sequence[Words]) -> Batch:
    """Fill in the identities and hashes of a compressed batch's live rows, computed from the rows.  O(n)."""
    live = batch.live != 0
    high, low, value = (
        np.where(live, each, was) if was.size else was
        for each, was in zip(made[:3], (batch.high, batch.low, batch.value), strict=True)
    )
    return replace(batch, high=high, low=low, value=value)
