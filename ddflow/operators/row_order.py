"""Sort rows by columns such as ``"amount desc nulls last"``.

If two rows tie in the named columns, the remaining columns decide, so the order is total. Rows are first compared by
order words. A row has at most `MOST` order words. Columns after the first text or binary column have no order words.
Rows with equal order words are compared by the values of the other columns. Values of a type without an order are
compared by hash, and @@
>>> schema = pa.schema({"city": pa.string(), "n": pa.int64(), "note": pa.string()})
>>> parse_order_columns(["n desc nulls first", "`city`"], schema, "top")
[OrderColumn(name='n', descending=True, nulls_first=True), OrderColumn(name='city', descending=False, nulls_first=True)]
>>> order = RowOrder(schema, ["city"], parse_order_columns(["n desc"], schema, "top"), Secret(1, 2))
>>> [each.name for each in order.words], [each.name for each in order.values]
(['n', 'note'], ['note'])
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import Flags, Ints, RowHasher, Secret
from ddflow.columns.names import did_you_mean
from ddflow.columns.order_words import OrderColumn, compute_order_words, count_order_words, has_exact_words
from ddflow.columns.rows import RowPool, gather_table
from ddflow.columns.schema import decode_array, is_flat_type, normalize_type, to_array
from ddflow.columns.wider import find_widening, keeps_order, list_changed_types
from ddflow.errors import ErrorText, Option, SpecError, shorten

MOST: Final = 8
"""The maximum number of order words, except that the first column of ``by`` always gets all its words."""
_WRITTEN: Final = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|(\w+))(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?\s*", re.IGNORECASE
)


def parse_order_columns(by: Any, schema: pa.Schema, asked: str) -> list[OrderColumn]:
    """Parse one or several texts such as ``"amount desc nulls last"`` into order columns. Raises `SpecError`.

    A name that is not an identifier is quoted with backticks. As in Spark, nulls are by default first in ascending
    order and last in descending order.
    """
    texts = [by] if isinstance(by, str) else list(by) if isinstance(by, Iterable) else [by]
    if not all(isinstance(text, str) for text in texts):
        raise SpecError(
            asked,
            ErrorText(Option("by"), f" is {shorten(repr(by))}"),
            ErrorText("pass a list of texts, as in ", Option("by", ["amount desc"])),
        )
    out: list[OrderColumn] = []
    for text in texts:
        found = _WRITTEN.fullmatch(text)
        if found is None:
            remedy = "write a column, then asc or desc, then nulls first or nulls last; other names in backticks"
            raise SpecError(asked, ErrorText(Option("by"), f" holds {shorten(repr(text))}"), remedy)
        name = found[2] if found[1] is None else found[1].replace("``", "`")
        if name not in schema.names:
            lost = f"by= holds {shorten(repr(text))}: there is no column {name!r}"
            raise SpecError(asked, lost, did_you_mean(name, schema.names))
        count_order_words(schema.field(name).type, name)
        descending = (found[3] or "asc").lower() == "desc"
        first = not descending if found[4] is None else found[4].lower() == "first"
        if name not in [each.name for each in out]:  # a repeated column has no effect
            out.append(OrderColumn(name, descending, first))
    return out


def format_order_columns(by: Sequence[OrderColumn]) -> list[str]:
    """Format columns as texts for `parse_order_columns`."""
    ways = "asc", "desc"
    nulls = "last", "first"
    return [f"`{n.replace('`', '``')}` {ways[descending]} nulls {nulls[first]}" for n, descending, first in by]


class RowOrder:
    """A total order of rows.

    ``row``: the columns. ``group``: the columns that are equal in all compared rows. ``by``: the columns that are
    compared first. ``most``: the maximum number of order words, see `MOST`.
    """

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
            kind = find_order_type(row.field(each.name).type)
            wide = count_order_words(kind, each.name) if is_flat_type(normalize_type(kind)) else MOST + 1
            if self.tied + wide > most and (self.words or each not in by):
                self.values = every[at:]
                break
            self.words.append(each)
            self.tied += wide
            if not has_exact_words(kind):
                self.values = every[at:]
                break

    @property
    def is_total_order(self) -> bool:
        """Whether rows with equal words are equal."""
        return bool(self.words) and not self.values

    def sort_rows(self, rows: pa.Table, classes: Ints) -> Ints:
        """Sort rows by value within each class.  O(n log n).

        ``classes``: int64[n], ascending; rows with equal words share a class.
        """
        keys: list[Any] = [classes]
        for each in self.values:
            column, kind = (
                decode_array(to_array(rows.column(each.name))),
                normalize_type(self.row.field(each.name).type),
            )
            alone = pa.table({each.name: column})
            if not is_flat_type(kind):
                hashes = RowHasher(pa.schema([pa.field("", column.type)]), self.secret)
                keys.extend(hashes.compute_identities([column], len(column)))
            elif has_exact_words(kind):
                keys.extend(compute_order_words(alone, [each]).T)
            else:
                ranks = np.array(pc.rank(column, "descending" if each.descending else "ascending", tiebreaker="dense"))
                ranks[np.asarray(column.is_null())] = 0 if each.nulls_first else len(column) + 1
                keys.append(ranks)
        return np.lexsort([key for key in reversed(keys) if key.size])

    def sort_ties(self, pool: RowPool, references: Ints, ties: Flags) -> Ints | None:
        """Sort rows that have equal words by value. Return None if no rows have equal words. O(tied rows).

        ``ties``: uint8[n], 1 if a row has the same words as the row before it.
        """
        again = np.flatnonzero(ties)
        if not again.size:
            return None
        tied = np.union1d(again, again - 1)
        classes = np.cumsum(ties == 0)[tied]
        schema = pa.schema([self.row.field(each.name).with_nullable(True) for each in self.values])
        out = np.arange(references.size)
        out[tied] = tied[self.sort_rows(gather_table(pool, references[tied], schema), classes)]
        return out


def find_order_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the order words. Narrower integers use int64, so that widening does not change the words.

    >>> find_order_type(pa.int32()), find_order_type(pa.float32())
    (DataType(int64), DataType(float))
    """
    return pa.int64() if pat.is_integer(kind) and kind.bit_width < 64 else kind


def argsort_rows(rows: pa.Table, by: Sequence[OrderColumn]) -> Ints:
    """Compute the permutation that sorts a table's rows.

    If two rows tie in the columns of ``by``, the remaining columns decide. O(n log n).

    >>> rows = pa.table({"id": [1, 2, 3], "n": [7.5, None, float("nan")]})
    >>> argsort_rows(rows, parse_order_columns("n desc nulls first", rows.schema, "ORDER BY")).tolist()
    [1, 2, 0]
    """
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    order = RowOrder(rows.schema, [], by, Secret.fresh())
    words = compute_order_words(rows, order.words)
    first: Ints = np.lexsort(words.T[::-1])
    words = words[first]
    classes = np.zeros(first.size, np.int64)
    classes[1:] = np.cumsum((words[1:] != words[:-1]).any(axis=1))
    return first[order.sort_rows(rows.take(pa.array(first)), classes)]


def find_reordered_columns(row: pa.Schema, narrow: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the name and the type of each column whose values sort differently with its type in ``narrow``."""
    for name in list_changed_types(narrow, row):
        was, now = narrow.field(name).type, row.field(name).type
        hashed = not is_flat_type(normalize_type(now)) and find_widening(was, now) != "read"
        # All integer types share the order words of int64, except uint64.
        if hashed or pa.types.is_uint64(now) or not keeps_order(was, now):
            yield name, now
