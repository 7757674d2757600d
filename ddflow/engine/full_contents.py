"""Compare the full contents of an input with the held keys, and make delete events for the absent keys.

Both the contents and the state can be larger than memory. So the module keeps only the identity of each row: 8 bytes if
the key is a single number, else 16 bytes. The comparison walks the held keys in the order of their identities, one
range after the other. The row of a key is gathered only if the key is absent. Guarantees:
`FullContents.make_absent_key_deletions` yields each live key in the scope that no row of the contents has, and yields
it only once. The comparison does not resolve events or change state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import (
    NONE,
    RowHasher,
    Secret,
    Words,
    compute_sortable_words,
    compute_value_hashes,
    unpack_booleans,
    unpack_validity,
)
from ddflow.columns.order_words import dense_ranks, mark_values_below
from ddflow.columns.rows import gather_arrays, row_values
from ddflow.columns.schema import is_text, is_word_type
from ddflow.columns.sorting import SortedRows, sort_by_identity
from ddflow.errors import CorruptState, DuplicateKeys, ErrorText, OutOfScope, Row, SpecError, shorten
from ddflow.expressions import compile as compile_expression
from ddflow.operators.upsert.events import Events
from ddflow.operators.upsert.orders import decode_column_words
from ddflow.operators.upsert.state import walk_live_keys
from ddflow.operators.upsert.upsert import RunningUpsert
from ddflow.plan.inputs.differences import Differences
from ddflow.plan.inputs.spec import Upsert as Spec
from ddflow.storage.feeding import Word

NAMED = 5
"""The maximum number of keys or rows that an error lists."""
SECRET = Secret(0, 0)
"""The secret for hashes that are used only in one comparison and never stored."""
PIECE = 1 << 16
"""The number of absent keys in one batch of deletions."""


class FullContents:
    """The full contents of one input.

    ``upsert``: the input. ``asked``: the text that names the call in messages. ``scope``: a SQL condition over the
    row's columns. ``order``: the order of the tombstones of absent keys; see `parse_order`. Raises `SpecError` and
    `ExpressionError` if the order or the scope does not fit the input.

    >>> import pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1, 2, 3], "city": ["Bern", "Basel", "Bern"]})}, 1)
    ...     contents = FullContents(engine.dataflow.graph.inputs["people"], "a replace", "city = 'Bern'")
    ...     contents.add_rows(pa.record_batch({"id": [1], "city": ["Bern"]}))
    ...     [batch.to_pylist() for batch in contents.make_absent_key_deletions(contents.sort_identities())]
    [[{'id': 3, 'city': 'Bern'}]]
    """

    def __init__(self, upsert: RunningUpsert, asked: str, scope: str | None = None, order: Any = None) -> None:
        self.upsert, self.bound, self.asked, self.rows = upsert, upsert.bound, asked, 0
        self.text, self.scope = scope, None
        if self.bound.merging is not None and self.bound.merging.machine is not None:
            raise SpecError(asked, "its merge is a machine, which computes rows from events", "pass events to step")
        if scope is not None:
            self.scope = compile_expression(
                scope, self.bound.unstamped_row_schema, boolean=True, what=f"the scope of {asked}"
            )
        self.ordered = list_order_columns(self.bound.spec)
        self.order = None if order is None else parse_order(order, self.ordered, self.bound.schema, asked)
        self._fixed = order is not None
        self.spelled = None if self.order is None else encode_order(self.order)
        """The order that the caller passed, in the encoding of a manifest; None if no order was passed."""
        self.named = 0
        """The number of held keys that occur in the contents.

        Only keys that `make_absent_key_deletions` has compared count.
        """
        self._ids: list[tuple[Words, Words]] = []

    def add_rows(self, events: pa.RecordBatch) -> None:
        """Add rows to the contents. O(rows). Raises `OutOfScope` if rows are outside the scope."""
        begin, self.rows = self.rows, self.rows + events.num_rows
        if self.bound.spec.null_key != "keep" and (keyless := self.bound.mark_events_without_key(events)).any():
            # Rows without a key are bad or cause an error, so no held key matches them.
            events = events.filter(pa.array(keyless == 0))
        if not events.num_rows:
            return
        if self.scope is not None and (outside := np.flatnonzero(unpack_booleans(self.scope(events)) == 0)).size:
            keys = [row_values(events.select(list(self.bound.spec.key)), int(row)) for row in outside[:NAMED]]
            raise OutOfScope(
                self.asked,
                f"{outside.size:,} rows from row {begin:,} on are not in the scope "
                f"{shorten(repr(self.text))}, first {keys}",
                "skip them, or widen the scope; nothing was ingested",
            )
        self._ids.append(self.upsert.keys.identify_rows(events))
        if self.bound.spec.exclusive and self.bound.merging is not None:
            # The key of a bad row counts as present, but the row does not affect the order of deletions.
            events = events.filter(pa.array(self.bound.merging.mark_misordered_events(events) == 0))
        if self.ordered and not self._fixed and events.num_rows:
            best = events.select(self.ordered)
            best = best.slice(find_greatest_row(best), 1)
            if self.order is not None:
                both = pa.concat_batches([self.order, best])
                best = both.slice(find_greatest_row(both), 1)
            self.order = pa.concat_batches([best])  # a copy, so that the other rows can be freed

    def sort_identities(self) -> SortedRows:
        """Sort the identities of all rows. O(rows)."""
        highs, lows = zip(*(self._ids or [(NONE, NONE)]), strict=True)
        self._ids = []
        return sort_by_identity(np.concatenate(highs), np.concatenate(lows), None, self.upsert.threads)

    def make_absent_key_deletions(self, by: SortedRows) -> Iterator[pa.RecordBatch]:
        """For each key to delete, make a row that has the columns of the input's events.

        ``by``: the result of `sort_identities`. The columns of the input's rows contain the stored values. The
        ``order_by`` and ``seq`` columns contain the order of the deletion. All other columns are null. O(held keys +
        rows of absent keys). Raises `SpecError` if keys must be deleted but no order is known.
        """
        arranged, schema = self.upsert.output_arrangement, self.bound.unstamped_row_schema
        for high, low, references in walk_live_keys(arranged):
            missing = ~mark_present_identities(by, high, low)
            self.named += missing.size - int(np.count_nonzero(missing))
            if self.upsert.expiring is not None:
                # An expired key does not count as held, and its deletion leaves no tombstone.
                missing &= ~self.upsert.expiring.mark_expired_keys(high, low)
            gone = references[missing]
            for begin in range(0, gone.size, PIECE):
                rows = gather_arrays(arranged.prepare_row_pool(), gone[begin : begin + PIECE], schema)
                batch = pa.RecordBatch.from_arrays(rows, schema=schema)
                if (mark := self.bound.watermark) is not None:
                    old = mark_values_below(batch.column(mark.field.name), self.upsert.horizon)
                    batch = batch.filter(pa.array(~old))
                if self.scope is not None:
                    batch = batch.filter(pa.array(unpack_booleans(self.scope(batch)) != 0))
                if batch.num_rows:
                    yield self._make_deletion_rows(batch)

    def _make_deletion_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        n, columns = rows.num_rows, dict(zip(rows.schema.names, rows.columns, strict=True))
        if self.ordered:
            if self.order is None:
                raise SpecError(
                    self.asked,
                    "there are keys to delete, but no row whose order the deletions could use",
                    f"pass order= for {self.ordered}; nothing was ingested",
                )
            first = pa.array(np.zeros(n, np.int64))
            columns |= {name: self.order.column(name).take(first) for name in self.ordered}
        same = {name for name, column in columns.items() if column.type == self.bound.schema.field(name).type}
        every = [columns[f.name] if f.name in same else pa.nulls(n, f.type) for f in self.bound.schema]
        return self.bound.add_event_columns(pa.RecordBatch.from_arrays(every, schema=self.bound.schema), [])


def refuse_duplicate_keys(asked: str, keys: RowHasher, by: SortedRows, rows: Iterable[Events], began: int = 0) -> None:
    """Raise `DuplicateKeys` if a key occurs in several rows. O(keys).

    ``keys``: the hasher of the keys. ``by``: the sorted identities of all rows. ``rows``: all rows, for the message.
    ``began``: the arrival number of the first row.
    """
    twice = np.flatnonzero(np.diff(by.starts) > 1)
    if not twice.size:
        return
    wanted = {int(by.high[at]) for at in by.starts[twice[:NAMED]]}
    named: dict[int, Any] = {}
    at: dict[int, list[int]] = {}
    for events in rows:
        high, _ = keys.identify_rows(events.rows)
        for row in np.flatnonzero(np.isin(high, np.array(sorted(wanted), np.uint64))):
            named[int(high[row])] = row_values(events.rows.select(keys.names), int(row))
            at.setdefault(int(high[row]), []).append(int(events.arrival[row]) - began)
    one, other, *_ = sorted(next(iter(at.values())))
    raise DuplicateKeys(
        asked,
        ErrorText(
            f"{twice.size:,} keys have more than one row, first {list(named.values())}",
            Row(one, ": the first of them in "),
            Row(other, ", and in "),
        ),
        "fix the contents so that each key has one row; nothing was ingested",
    )


def list_order_columns(spec: Spec | Differences) -> list[str]:
    """List the ``order_by`` columns of an input, and its ``seq`` column if there is one."""
    return [*spec.order_by, *([spec.seq] if spec.seq else [])]


def parse_order(order: Any, names: list[str], schema: pa.Schema, asked: str) -> pa.RecordBatch:
    """Convert the ``order=`` argument of a call to one row with the columns ``names``. O(1). Raises `SpecError`.

    ``order``: a mapping of column to value, or the value of the only column.
    """
    if not names:
        raise SpecError(asked, f"order={order!r} was passed, but the input keeps no order", "omit order=")
    values = order if isinstance(order, Mapping) else {names[0]: order} if len(names) == 1 else {}
    if set(values) != set(names):
        raise SpecError(asked, f"order={order!r}", f"pass a value for each of {names}, by name")
    fields = [schema.field(name) for name in names]
    try:
        columns = [pa.array([values[f.name]], f.type) for f in fields]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError) as error:
        kinds = [str(field.type) for field in fields]
        raise SpecError(asked, f"order={order!r} ({error})", f"pass values of {kinds}") from None
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def encode_order(order: pa.RecordBatch) -> tuple[Word, ...]:
    """Encode an order as one JSON value for each column. ``order``: a batch of one row.

    `decode_order` decodes the values. O(columns).
    """
    out: list[Word] = []
    for column in order.columns:
        kind, value = column.type, column[0].as_py() if column.null_count or not is_word_type(column.type) else None
        if column.null_count:
            out.append(None)
        elif is_word_type(kind):
            out.append(int(compute_sortable_words(column)[0]))
        else:
            out.append(value.hex() if isinstance(value, bytes) else str(value))
    return tuple(out)


def decode_order(words: Sequence[Word], names: Sequence[str], schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Decode the values that `encode_order` made. Return a value for each column name. O(columns).

    Raises `CorruptState` if the values do not fit the columns.
    """
    out = {}
    try:
        for name, word in zip(names, words, strict=True):
            field = schema.field(name)
            if word is None:
                out[name] = pa.scalar(None, field.type)
            elif is_word_type(field.type):
                out[name] = decode_column_words([np.array([word], np.int64)], field.with_nullable(False))[0]
            else:
                made: Any = str(word)
                if pat.is_decimal(field.type):
                    made = Decimal(made)
                elif not is_text(field.type):
                    made = bytes.fromhex(made)
                out[name] = pa.scalar(made, field.type)
    except (ValueError, TypeError, OverflowError, ArithmeticError, pa.ArrowException) as error:
        raise CorruptState(
            f"the order {list(words)!r} of full contents",
            f"it does not fit the columns {list(names)} ({error})",
            "restore the state from a backup, or mark each part of the log with its own order",
        ) from None
    return out


def find_greatest_row(rows: pa.RecordBatch) -> int:
    """Find the greatest row. Rows are compared column by column, from left to right.

    Null is the smallest value, and NaN the largest. There must be at least one row. O(n). For text and decimals, O(n
    log n).
    """
    left = np.arange(rows.num_rows)
    for column in rows.columns:
        if left.size == 1:
            break
        column = column.take(pa.array(left))
        if not is_word_type(column.type):
            table = pa.table({"0": column})
            rank = dense_ranks(table, compute_value_hashes(table, SECRET))
            left = left[rank == rank.max()]
            continue
        present = unpack_validity(column)
        if present.size and present.any():
            left, column = left[present != 0], column.filter(pa.array(present != 0))
        elif present.size:
            continue
        word = compute_sortable_words(column)
        left = left[word == word.max()]
    return int(left[0])


def mark_present_identities(by: SortedRows, high: Words, low: Words) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return bool[n], which marks the identities that are among the sorted identities ``by``. O(n log rows)."""
    out = np.zeros(high.size, np.bool_)
    if not by.high.size:
        return out
    at = np.searchsorted(by.high, high)
    left = np.arange(high.size)
    while left.size:
        # There is usually one iteration. A null and a value can collide. Only then do two identities have the same
        # first word.
        left = left[at[left] < by.high.size]
        left = left[by.high[at[left]] == high[left]]
        found = by.low[at[left]] == low[left] if low.size else np.ones(left.size, np.bool_)
        out[left[found]] = True
        left = left[~found]
        at[left] += 1
    return out
