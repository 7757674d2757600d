"""Find the rows of a table that match rows of another table in named columns.

Two values match if their identities are equal: null matches null, NaN matches NaN, and a number matches an equal number
whose type has another width. A `RowMatcher` keeps nothing between calls.

>>> rows = pa.table({"city": ["Bern", "Chur", None], "n": [1, 2, 3]})
>>> RowMatcher(Secret(1, 2)).select_matches(rows, pa.table({"place": ["Chur", None]}), {"city": "place"}).to_pylist()
[{'city': 'Chur', 'n': 2}, {'city': None, 'n': 3}]
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Flags, Ints, RowHasher, Secret
from ddflow.columns.schema import column_arrays


class RowMatcher(NamedTuple):
    """An object that finds matching rows by identities, which it computes with ``secret``."""

    secret: Secret

    def assign_row_numbers(self, *parts: tuple[pa.Table, Sequence[str]]) -> list[Ints]:
        """Assign a number to each row of each table.

        Rows with equal values in the named columns get the same number. O(n log n).
        """
        every = [self._identify_rows(table, names) for table, names in parts]
        found = np.unique(np.concatenate(every), axis=0, return_inverse=True)[1].reshape(-1)
        ends = np.cumsum([len(words) for words in every])
        return np.split(found, ends[:-1])

    def mark_matches(self, rows: pa.Table, wanted: pa.Table, names: Mapping[str, str] | Iterable[str]) -> Flags:
        """Mark the rows that match a row of ``wanted``, as uint8[n]. O(n), plus O(m log m) for m matches.

        ``names``: the columns, mapped to their names in ``wanted`` if these differ.
        """
        its = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
        mine, theirs = self._identify_rows(rows, list(its)), self._identify_rows(wanted, list(its.values()))
        near = np.flatnonzero(np.isin(mine[:, 0], theirs[:, 0]))
        found = np.unique(np.concatenate([theirs, mine[near]]), axis=0, return_inverse=True)[1].reshape(-1)
        out: Flags = np.zeros(len(mine), np.uint8)
        out[near] = np.isin(found[len(theirs) :], found[: len(theirs)])
        return out

    def _identify_rows(self, table: pa.Table, names: Sequence[str]) -> Any:
        """Compute the identities of rows from the named columns, as an array of shape (n, 2). O(n)."""
        words = np.zeros((table.num_rows, 2), np.uint64)
        if names:
            fields = [table.schema.field(name).with_nullable(True) for name in names]
            unnamed = pa.schema([field.with_name(str(i)) for i, field in enumerate(fields)])
            high, low = RowHasher(unnamed, self.secret).compute_identities(column_arrays(table, names), table.num_rows)
            words[:, 0] = high
            words[:, 1] = low if low.size else 0
        return words

    def select_matches(self, rows: pa.Table, wanted: pa.Table, names: Mapping[str, str] | Iterable[str]) -> pa.Table:
        """Return the rows that match a row of `wanted`."""
        return rows.take(pa.array(np.flatnonzero(self.mark_matches(rows, wanted, names))))
