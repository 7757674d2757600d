"""The ranks of rows by their columns, where no word says how they compare.

Invariant: null is smallest and NaN largest, as docs/semantics.md says of ties; rows that a hash calls equal share a
rank.

>>> dense_ranks(pa.table({"a": [2.5, None, 2.5]}), np.array([7, 0, 7])).tolist()
[1, 0, 1]
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.layout import Array


def dense_ranks(table: pa.Table | pa.RecordBatch, equal: Array) -> Array:
    """Compute the dense rank of every row by its columns, left to right: null smallest, NaN largest.

    ``table``: n rows of flat types.  ``equal``: uint64[n], a word that is equal for equal rows (a hash of them).
    Returns int64[n]; equal rows share a rank.  O(n log n).  (Order: docs/semantics.md, ties.)
    """
    if not table.num_columns or not table.num_rows:
        return np.zeros(table.num_rows, np.int64)
    columns: dict[str, Any] = {}
    for i, column in enumerate(table.itercolumns()):
        # Arrow sorts NaN beside the nulls, so null-ness and NaN-ness become columns of their own.
        columns[f"{i}valid"] = pc.is_valid(column)
        if pat.is_floating(column.type):
            columns[f"{i}nan"] = pc.fill_null(pc.is_nan(column), False)
            column = pc.add(pc.cast(column, pa.float64()), 0.0)
        elif pat.is_fixed_size_binary(column.type):
            column = pc.cast(column, pa.binary())
        elif pat.is_decimal32(column.type) or pat.is_decimal64(column.type):
            # Arrow sorts the narrow ones wrongly: negative ones come after zero.
            column = pc.cast(column, pa.decimal128(column.type.precision, column.type.scale))
        columns[f"{i}value"] = column
    order = pc.sort_indices(pa.table(columns), [(name, "ascending", "at_start") for name in columns])
    permutation = np.asarray(order).astype(np.int64)
    steps = np.zeros(table.num_rows, np.int64)
    steps[1:] = np.cumsum(equal[permutation][1:] != equal[permutation][:-1])
    ranks = np.empty(table.num_rows, np.int64)
    ranks[permutation] = steps
    return ranks
