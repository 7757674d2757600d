"""A part of a log: rows of one source outside of any state, as the source takes them in.

Invariant: every batch has exactly the source's columns and types, and batches come in the order of the part, which may
be a table or a reader that streams.  What parts there are, and which are events, is told by ``logs``; nothing is
judged here.

>>> from ddflow.plan.bind import bind
>>> from ddflow.plan.spec import Upsert
>>> bound = bind("people", pa.schema({"id": pa.int64(), "city": pa.string()}), Upsert(key="id"))
>>> [batch.to_pylist() for batch in batches(pa.table({"id": [1, 2]}), bound)]
[[{'id': 1, 'city': None}, {'id': 2, 'city': None}]]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ddflow.columns.schema import conform, imported, to_table
from ddflow.plan.bind import Bound


def batches(part: Any, bound: Bound) -> Iterator[pa.RecordBatch]:
    """A part of a log, without its mark, as batches of the source's columns.

    ``part``: anything that speaks Arrow.  O(rows) for columns that need a cast, else O(1) a batch.  Raises `NotArrow`,
    `SchemaMismatch`.
    """
    what = repr(bound.name)
    if not isinstance(part, pa.Table | pa.RecordBatch | pa.RecordBatchReader) and hasattr(part, "__arrow_c_stream__"):
        part = imported(pa.RecordBatchReader.from_stream, part, what)
    for rows in part if isinstance(part, pa.RecordBatchReader) else [part]:
        given = to_table(rows, what, bound.schema)
        table = conform(given, bound.schema, what, bound.required)
        if bound.merging is not None:  # a column that is not there is not null
            table = table.select([name for name in table.column_names if name in given.column_names])
        yield from table.to_batches()
