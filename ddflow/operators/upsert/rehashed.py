"""What the rows of a state say of themselves: their identities and hashes, made again as an operator made them.

Invariant: for a live version both are those that the operator keeps with it; for a deletion, whose row may be filler,
they may be any. Filler may be null where a key never is, and what is null there must not be hashed as a null would be,
or keys of one word would get two. Files leave out what is made here (``arrange.filed``), and an examination compares
it with what files have (``proof.restored``).

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> upsert = Upsert(people.bound, dd.Secret(1, 2))
>>> high, low, value = of_upsert(upsert, pa.table({"id": [1, 1], "city": ["Bern", "Rome"]}))
>>> high[0] == high[1], low.size, value[0] == value[1]
(np.True_, 0, np.False_)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Words, identities, value_hashes
from ddflow.operators.count import Count
from ddflow.operators.upsert.upsert import Upsert

Words3 = tuple[Words, Words, Words]


def of_upsert(upsert: Upsert, rows: pa.Table | pa.RecordBatch) -> Words3:
    """Identities (high, low) of a source's rows, and hashes of their values.  O(rows)."""
    return *identities_of(upsert, rows), value_hashes(rows.select(upsert.bound.tracked), upsert.secret)


def identities_of(upsert: Upsert, rows: pa.Table | pa.RecordBatch) -> tuple[Words, Words]:
    """Identities of a source's rows.  O(rows)."""
    bound = upsert.bound
    # A deletion's payload is filler, whose key may be null.
    nullable = pa.schema([field.with_nullable(True) for field in bound.key_schema])
    schema = nullable if upsert.wide else bound.key_schema
    keys = pa.Table.from_arrays([rows.column(name) for name in schema.names], schema=schema)
    return identities(keys, upsert.secret, rows.num_rows)


def of_count(count: Count, rows: pa.Table | pa.RecordBatch) -> Words3:
    """Identities (high, low) of a count's groups, and the counts themselves.  O(rows)."""
    groups = pa.Table.from_arrays([rows.column(field.name) for field in count.groups], schema=count.groups)
    high, low = identities(groups, count.secret, rows.num_rows)
    return high, low, np.asarray(rows.column(count.name).fill_null(0)).view(np.uint64)
