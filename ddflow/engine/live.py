"""The rows of an output that somebody watches: the first of them in an order, and which are new since the last look.

Invariant: a row is new where the look before had no such row, whether it was among those shown or not. What is shown
is bounded, however many rows there are; a look costs O(rows) and changes nothing. Notebook and terminal show the
same.

>>> live = LiveRows("by_city", by="n desc", most=2)
>>> first = live.look(pa.table({"city": ["Bern", "Zug", "Chur"], "n": [3, 1, 2], "_diff": [1, 1, 1]}))
>>> list(first.texts()), first.total
([('Bern', '3'), ('Chur', '2')], 3)
>>> second = live.look(pa.table({"city": ["Bern", "Zug", "Chur"], "n": [3, 4, 2], "_diff": [1, 1, 1]}))
>>> list(second.texts()), second.new, second.came, second.went
([('Zug', '4'), ('Bern', '3')], [True, False], 1, 1)
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Secret, value_hashes
from ddflow.columns.names import DIFF, did_you_mean
from ddflow.columns.schema import one_chunk
from ddflow.dataflow.result import texts
from ddflow.errors import Option, Phrase, SpecError


class LiveLook(NamedTuple):
    """``shown``: the first rows.  ``new``: which of them are.  ``total``: rows there are.  ``came``, ``went``: rows
    since the look before."""

    shown: pa.Table
    new: list[bool]
    total: int
    came: int
    went: int

    def texts(self) -> Iterator[tuple[str, ...]]:
        """Format the values of each row."""
        return zip(*(texts(column, self.shown.num_rows) for column in self.shown.columns), strict=True)


class LiveRows:
    """``name``: of the output.  ``by``: a column, and ``desc`` behind it; None for the first column.  ``most``: rows
    shown."""

    def __init__(self, name: str, by: str | None = None, most: int = 10) -> None:
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise SpecError(
                Phrase(f"watch {name!r} with ", Option("rows", most)), "that is no number of rows", "give 1 or more"
            )
        self.name, self.by, self.most = name, by, most
        self._secret = Secret.fresh()
        self._before: np.ndarray[tuple[int], np.dtype[np.uint64]] | None = None

    def order(self, names: list[str]) -> tuple[str, str] | None:
        """Return the column that orders rows, and its direction. Raises `SpecError` for an unknown one."""
        if self.by is None:
            return (names[0], "ascending") if names else None
        column, _, way = self.by.rpartition(" ")
        if self.by in names or way.lower() not in ("asc", "desc"):
            column, way = self.by, "asc"
        if column not in names:
            remedy = did_you_mean(column, names)
            raise SpecError(f"watch {self.name!r} by {self.by!r}", "there is no such column", remedy)
        return column, "descending" if way.lower() == "desc" else "ascending"

    def look(self, held: pa.Table) -> LiveLook:
        """Compare a table of `Engine.read` with the last one and pick its first rows. O(rows)."""
        names = [name for name in held.schema.names if name != DIFF]
        rows = held.select(names).combine_chunks()
        hashes = np.asarray(value_hashes(rows, self._secret)) if rows.num_rows else np.zeros(0, np.uint64)
        new = np.zeros(rows.num_rows, bool) if self._before is None else ~np.isin(hashes, self._before)
        went = 0 if self._before is None else int((~np.isin(self._before, hashes)).sum())
        self._before = hashes
        order, first = self.order(names), np.arange(min(self.most, rows.num_rows))
        if order is not None and rows.num_rows:
            try:
                column = pa.table({"by": one_chunk(rows.column(order[0]))})
                first = np.asarray(pc.sort_indices(column, [("by", order[1])]))[: self.most]
            except pa.ArrowNotImplementedError:  # a type without an order
                pass
        shown = rows.take(pa.array(first))
        total = int(np.abs(np.asarray(held.column(DIFF))).sum())
        return LiveLook(shown, new[first].tolist(), total, int(new.sum()), went)
