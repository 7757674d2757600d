"""A log: the events of one source outside of any state, as the source takes them in.

Invariant: every batch has exactly the source's columns and types, and batches come in the order of the log.  Why that
is not trivial: a log may be a table, a reader that streams, or many of these; and a part is one epoch wherever that
matters, however many batches it has.  It does not judge events.

>>> from ddflow.binding import bind
>>> from ddflow.spec import Upsert
>>> bound = bind("people", pa.schema({"id": pa.int64(), "city": pa.string()}), Upsert(key="id"))
>>> log = [pa.table({"id": [1, 2]}), pa.table({"id": [1], "city": ["Bern"]})]
>>> [[batch.to_pylist() for batch in epoch] for epoch in epochs(log, bound)][1:]
[[[{'id': 1, 'city': 'Bern'}]]]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from ddflow.binding import Bound
from ddflow.errors import NotArrow
from ddflow.schema import conform, imported, to_table


def epochs(log: Any, bound: Bound) -> Iterator[Iterator[pa.RecordBatch]]:
    """The parts of a log, each as its batches; to be read one after the other.

    ``log``: anything that speaks Arrow, or an iterable of these.  Raises `NotArrow`, and, where they are read,
    `SchemaMismatch`.  O(1) a part, and O(rows) for columns that need a cast.
    """
    what = repr(bound.name)
    for part in _parts(log, what):
        yield _batches(part, bound, what)


def events(log: Any, bound: Bound) -> Iterator[pa.RecordBatch]:
    """All of a log's events, in their order.  As `epochs`."""
    for epoch in epochs(log, bound):
        yield from epoch


def _speaks_arrow(given: Any) -> bool:
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")


def _parts(log: Any, what: str) -> Iterator[Any]:
    if _speaks_arrow(log):
        yield log
    elif isinstance(log, Iterable) and not isinstance(log, str | bytes | dict):
        yield from log
    else:
        raise NotArrow(f"rows for {what}", f"{type(log).__name__} does not speak Arrow",
                       "give a table, record batches, a reader, or an iterable of these")  # fmt: skip


def _batches(part: Any, bound: Bound, what: str) -> Iterator[pa.RecordBatch]:
    if not isinstance(part, pa.Table | pa.RecordBatch | pa.RecordBatchReader) and hasattr(part, "__arrow_c_stream__"):
        part = imported(pa.RecordBatchReader.from_stream, part, what)
    for rows in part if isinstance(part, pa.RecordBatchReader) else [part]:
        given = to_table(rows, what, bound.schema)
        table = conform(given, bound.schema, what, bound.required)
        if bound.merging is not None:  # a column that is not there is not null
            table = table.select([name for name in table.column_names if name in given.column_names])
        yield from table.to_batches()
