"""An order of rows: as texts say it, completed by the remaining columns, in words as far as these go, then by values.

Invariant: it is total. Rows stand by the columns of ``by``, then by the other columns in their order, ascending, nulls
first. Words decide as far as they are short and exact: up to `MOST` of them, and up to the first column of text or
binary of any length, of which they hold a prefix. Rows that tie by words are compared by their values, from the first
column on that words do not decide. A type without an order (a list, a struct) is compared by hashes, which are the same
for the life of a state and mean nothing; such a column may not be in ``by``.

>>> schema = pa.schema({"city": pa.string(), "n": pa.int64(), "note": pa.string()})
>>> ordered_by(["n desc nulls first", "`city`"], schema, "top")
[OrderColumn(name='n', descending=True, nulls_first=True), OrderColumn(name='city', descending=False, nulls_first=True)]
>>> order = RowOrder(schema, ["city"], ordered_by(["n desc"], schema, "top"), Secret(1, 2))
>>> [each.name for each in order.words], [each.name for each in order.values]
(['n', 'note'], ['note'])
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Flags, Ints, RowHashes, Secret
from ddflow.columns.names import did_you_mean
from ddflow.columns.order_words import OrderColumn, exact, order_words, word_count
from ddflow.columns.rows import RowPool, gather
from ddflow.columns.schema import is_flat, normal_type, one_chunk, plain
from ddflow.columns.wider import differing, keeps_order, widening
from ddflow.errors import Option, Phrase, SpecError, cut
from ddflow.operators.ordered_rows import ordered_type

MOST: Final = 8
"""Words of an order, at most; those of the first column that is asked for in any case."""
_WRITTEN: Final = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|(\w+))(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?\s*", re.IGNORECASE
)


def ordered_by(by: Any, schema: pa.Schema, asked: str) -> list[OrderColumn]:
    """Texts such as ``"amount desc nulls last"``, one or several, as columns.  Raises `SpecError`.

    A name that is no word stands in backticks.  Nulls are first ascending and last descending, as in Spark.
    """
    texts = [by] if isinstance(by, str) else list(by) if isinstance(by, Iterable) else [by]
    if not all(isinstance(text, str) for text in texts):
        raise SpecError(
            asked,
            Phrase(Option("by"), f" is {cut(repr(by))}"),
            Phrase("give a list of texts, as in ", Option("by", ["amount desc"])),
        )
    out: list[OrderColumn] = []
    for text in texts:
        found = _WRITTEN.fullmatch(text)
        if found is None:
            remedy = "write a column, then asc or desc, then nulls first or nulls last; other names in backticks"
            raise SpecError(asked, Phrase(Option("by"), f" holds {cut(repr(text))}"), remedy)
        name = found[2] if found[1] is None else found[1].replace("``", "`")
        if name not in schema.names:
            lost = f"by= holds {cut(repr(text))}: there is no column {name!r}"
            raise SpecError(asked, lost, did_you_mean(name, schema.names))
        word_count(schema.field(name).type, name)
        descending = (found[3] or "asc").lower() == "desc"
        first = not descending if found[4] is None else found[4].lower() == "first"
        if name not in [each.name for each in out]:  # the second time it says nothing
            out.append(OrderColumn(name, descending, first))
    return out


def written(by: Sequence[OrderColumn]) -> list[str]:
    """Columns as texts, which `ordered_by` reads."""
    ways = "asc", "desc"
    nulls = "last", "first"
    return [f"`{n.replace('`', '``')}` {ways[descending]} nulls {nulls[first]}" for n, descending, first in by]


class RowOrder:
    """``row``: the columns.  ``group``: those that are equal where rows are compared.  ``by``: what decides first.

    ``most``: how many words there may be; 0 for those of the first column of ``by`` alone."""

    def __init__(
        self, row: pa.Schema, group: Sequence[str], by: Sequence[OrderColumn], secret: Secret, most: int = MOST
    ) -> None:
        self.row, self.secret = row, secret
        self.names = [name for name in row.names if name not in group]
        named = {*group, *(each.name for each in by)}
        every = [each for each in by if each.name not in group]
        every += [OrderColumn(name, False, True) for name in row.names if name not in named]
        self.words: list[OrderColumn] = []
        self.values: list[OrderColumn] = []
        self.tied = 0
        for at, each in enumerate(every):
            kind = ordered_type(row.field(each.name).type)
            wide = word_count(kind, each.name) if is_flat(normal_type(kind)) else MOST + 1
            if self.tied + wide > most and (self.words or each not in by):
                self.values = every[at:]
                break
            self.words.append(each)
            self.tied += wide
            if not exact(kind):
                self.values = every[at:]
                break

    @property
    def whole(self) -> bool:
        """Whether rows with equal words are equal."""
        return bool(self.words) and not self.values

    def sorted(self, rows: pa.Table, classes: Ints) -> Ints:
        """Sort rows by values.  ``classes``: int64[n], ascending, equal for those that tie.  O(n log n)."""
        keys: list[Any] = [classes]
        for each in self.values:
            column, kind = plain(one_chunk(rows.column(each.name))), normal_type(self.row.field(each.name).type)
            alone = pa.table({each.name: column})
            if not is_flat(kind):
                hashes = RowHashes(pa.schema([pa.field("", column.type)]), self.secret)
                keys.extend(hashes.identities([column], len(column)))
            elif exact(kind):
                keys.extend(order_words(alone, [each]).T)
            else:
                ranks = np.array(pc.rank(column, "descending" if each.descending else "ascending", tiebreaker="dense"))
                ranks[np.asarray(column.is_null())] = 0 if each.nulls_first else len(column) + 1
                keys.append(ranks)
        return np.lexsort([key for key in reversed(keys) if key.size])

    def settled(self, pool: RowPool, references: Ints, ties: Flags) -> Ints | None:
        """Sort rows by values if their words tie; return None if no words tie.  O(tied rows).

        ``ties``: uint8[n], 1 where the words of a row are those of the one before."""
        again = np.flatnonzero(ties)
        if not again.size:
            return None
        tied = np.union1d(again, again - 1)
        classes = np.cumsum(ties == 0)[tied]
        schema = pa.schema([self.row.field(each.name).with_nullable(True) for each in self.values])
        out = np.arange(references.size)
        out[tied] = tied[self.sorted(gather(pool, references[tied], schema), classes)]
        return out


def in_order(rows: pa.Table, by: Sequence[OrderColumn]) -> Ints:
    """Where the rows of a table stand in an order, those that tie by their other columns.  O(n log n).

    >>> rows = pa.table({"id": [1, 2, 3], "n": [7.5, None, float("nan")]})
    >>> in_order(rows, ordered_by("n desc nulls first", rows.schema, "ORDER BY")).tolist()
    [1, 2, 0]
    """
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    order = RowOrder(rows.schema, [], by, Secret.fresh())
    words = order_words(rows, order.words)
    first: Ints = np.lexsort(words.T[::-1])
    words = words[first]
    classes = np.zeros(first.size, np.int64)
    classes[1:] = np.cumsum((words[1:] != words[:-1]).any(axis=1))
    return first[order.sorted(rows.take(pa.array(first)), classes)]


def reordered(row: pa.Schema, narrow: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the columns, and their types, whose values sort differently in narrower types."""
    for name in differing(narrow, row):
        was, now = narrow.field(name).type, row.field(name).type
        hashed = not is_flat(normal_type(now)) and widening(was, now) != "read"
        # Words of integers are those of int64, but for uint64.
        if hashed or pa.types.is_uint64(now) or not keeps_order(was, now):
            yield name, now
