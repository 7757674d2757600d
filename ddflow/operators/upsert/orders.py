"""Encode the orders of events and of stored keys as order words (int64). Rows and column groups of a merge have orders.

Guarantees: words, compared from left to right, sort and tie like the values, so a kernel reads no column.

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.bind import bind_upserts
>>> from ddflow.plan.inputs.spec import Upsert
>>> bound = bind_upserts("o", pa.schema({"k": pa.int64(), "at": pa.int32()}), Upsert(key="k", order_by="at"))
>>> order = Order(bound)
>>> order.base, order.words
(1, 1)
>>> order.compute_words(pa.record_batch({"k": [1, 1], "at": pa.array([3, None], pa.int32())}), None, None).tolist()
[[3], [-9223372036854775808]]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Flags, Ints, Secret, compute_sortable_words, compute_value_hashes, unpack_validity
from ddflow.columns.order_words import dense_ranks
from ddflow.columns.schema import column_arrays, is_word_type
from ddflow.kernels.resolve import ERROR, FIRST, GREATEST, LAST
from ddflow.operators.upsert.folds import compute_rank_words
from ddflow.plan.inputs.bind import BoundUpserts

TIES = {"last": LAST, "first": FIRST, "greatest": GREATEST, "error": ERROR}
LEAST = np.iinfo(np.int64).min


def needs_null_flag(field: pa.Field) -> bool:
    """Return whether null needs a second word, because the values can use all 64-bit words."""
    return bool(field.nullable) and not pat.is_floating(field.type) and field.type.bit_width == 64


def encode_column_words(column: pa.Array, field: pa.Field, flagged: bool | None = None) -> list[Ints]:
    """Encode values as one or two arrays int64[n] that sort like the values, with null smallest.

    ``flagged``: whether to use two words, where the first is 0 for null. By default, two words are used only if null
    needs a second word.
    """
    out, present = compute_sortable_words(column), unpack_validity(column)
    if present.size:
        out = np.where(present != 0, out, LEAST)
    if not (needs_null_flag(field) if flagged is None else flagged):
        return [out]
    return [present.astype(np.int64) if present.size else np.ones(out.size, np.int64), out]


def decode_column_words(words: list[Ints], field: pa.Field) -> pa.Array:
    """Decode the words of `encode_column_words` to values."""
    null = (words[0] != 1) if len(words) == 2 else (words[0] == LEAST) if field.nullable else None
    word, kind = words[-1], field.type
    if pat.is_boolean(kind):
        return pa.array(word != 0, mask=null)
    if pat.is_floating(kind):
        bits = np.where(word < 0, word ^ np.int64(0x7FFFFFFFFFFFFFFF), word)
        return pa.array(bits.view(np.float64), mask=null).cast(kind)
    if pat.is_uint64(kind):
        return pa.array(word.view(np.uint64) ^ np.uint64(1 << 63), mask=null)
    signed = "u" if pat.is_unsigned_integer(kind) else "i"
    return pa.array(word.astype(f"{signed}{kind.bit_width // 8}"), mask=null).view(kind)


class Order:
    """The order of one input's events.

    ``base``: the number of words that are compared before the words that only break ties. ``words``: the number of
    words in an index entry. ``hidden``: columns that are stored with the row, because each step must rank their values
    to get words.
    """

    def __init__(self, bound: BoundUpserts) -> None:
        spec = bound.spec
        self.bound, self.tie, self.keeps = bound, TIES[spec.tie], spec.keeps_order
        self.fields = [bound.schema.field(n) for n in spec.order_by]
        self.ties = bool(spec.order_by) or spec.holds_back
        self.timed = spec.late == "advance"
        self.ranks_base = not all(is_word_type(f.type) for f in self.fields)
        # A row that differs from the stored row only in ignored columns is not stored, so ignored columns cannot break
        # ties.
        self.rows = [f for f in bound.row_schema if f.name in bound.tracked] if self.tie == GREATEST else []
        self.ranks_rows = not all(is_word_type(f.type) for f in self.rows)
        self.ranks = self.ranks_base or self.ranks_rows
        """Whether some words are ranks that each step must compute."""
        base = 1 if self.ranks_base else sum(1 + needs_null_flag(f) for f in self.fields)
        self.base = self.timed + base
        self.hidden = [f.with_name(f"_order_{f.name}") for f in self.fields] if self.ranks_base and self.keeps else []
        further = 1 if self.ranks_rows else 1 + sum(1 + needs_null_flag(f) for f in self.rows)
        self.event_word_count = (
            self.base + further * (self.tie == GREATEST) + (spec.seq is not None and self.tie in (LAST, FIRST))
        )
        self.words = self.event_word_count if self.keeps else 0

    def compute_words(self, events: pa.RecordBatch, original: Ints | None, gone: Flags | None) -> Ints:
        """Return the words of events, int64[n, width]. Words that `write_ranked_words` computes are 0. O(n).

        ``original``: the events' own times, if late events are advanced. ``gone``: marks the deletes (for "greatest").
        """
        n = events.num_rows
        if not self.event_word_count:
            return np.empty((n, 0), np.int64)
        columns: list[Ints] = [original] if self.timed and original is not None else []
        if self.ranks_base:
            columns.append(np.zeros(n, np.int64))
        else:
            for field in self.fields:
                columns.extend(encode_column_words(events.column(field.name), field))
        if self.ranks_rows:
            columns.append(np.zeros(n, np.int64))
        elif self.tie == GREATEST and gone is not None:
            here = gone == 0
            columns.append(here.astype(np.int64))
            for field in self.rows:
                columns.extend(np.where(here, w, 0) for w in encode_column_words(events.column(field.name), field))
        seq = self.bound.spec.seq
        if seq is not None and self.tie in (LAST, FIRST):
            word = encode_column_words(events.column(seq), pa.field(seq, pa.int64(), nullable=False))[0]
            columns.append(~word if self.tie == FIRST else word)
        return np.ascontiguousarray(np.stack(columns, axis=1)) if columns else np.empty((n, 0), np.int64)

    def write_ranked_words(
        self,
        events: pa.RecordBatch,
        gone: Flags,
        order: Ints,
        prior: pa.Table | None,
        lives: Flags,
        prior_order: Ints,
        secret: Secret,
    ) -> None:
        """Compute the words that are ranks, for events and stored keys, and write them in place.

        O((n + m) log (n + m)). ``prior``: the stored rows of the m keys that have an order; None if orders are not
        stored. ``lives``: marks the live keys. ``prior_order``: int64[m, width].
        """
        n = events.num_rows
        if self.ranks_base:
            names = [f.name for f in self.fields]
            ranks = self._rank_orders(events, names, prior, [f"_order_{x}" for x in names], secret)
            order[:, self.base - 1], prior_order[:, self.base - 1] = ranks[:n], ranks[n:]
        if self.ranks_rows:
            names = [f.name for f in self.rows]
            ranks = self._rank_orders(events, names, prior, names, secret) + 1
            order[:, self.base] = np.where(gone == 0, ranks[:n], 0)
            prior_order[:, self.base] = np.where(lives != 0, ranks[n:], 0)

    def _rank_orders(
        self, events: pa.RecordBatch, names: list[str], prior: pa.Table | None, prior_names: list[str], secret: Secret
    ) -> Ints:
        table = pa.table([events.column(x) for x in names], names=[str(i) for i in range(len(names))])
        if prior is not None and prior.num_rows:
            old = pa.table([prior.column(x) for x in prior_names], names=table.column_names)
            table = pa.concat_tables([table, old.cast(table.schema)]).combine_chunks()
        return dense_ranks(table, compute_value_hashes(table, secret))

    def decode_orders(self, words: Ints, hidden: pa.Table | None) -> Sequence[pa.Array | pa.ChunkedArray]:
        """Decode orders to values, from stored words int64[m, >= base] or from hidden columns."""
        if self.ranks_base:
            assert hidden is not None, "ranked order columns are kept beside the payload"
            return [hidden.column(f.name) for f in self.hidden]
        out, at = [], int(self.timed)
        for field in self.fields:
            size = 1 + needs_null_flag(field)
            out.append(decode_column_words([np.ascontiguousarray(words[:, at + i]) for i in range(size)], field))
            at += size
        return out


HIDDEN = "_order_"


@dataclass(frozen=True)
class RankedWord:
    """A word that is the rank of an event column's value among the events and the stored keys of a step."""

    word: int
    field: pa.Field
    group: int
    breaks: bool
    """Whether the word only breaks ties."""
    hidden: tuple[tuple[int, str], ...]
    """Pairs of a stored word and its hidden column.

    There is one pair or, with versions of cells, one pair for each part.
    """


class MergeOrders:
    """The orders of one input's events, for the row and for each column group of a merge.

    ``words``: the number of words that are stored for a key. ``spans``, ``columns``: as in `kernels.walk`. ``hidden``:
    columns that are stored with the row. ``base``: the number of words of group 0 that are compared before the words
    that only break ties.

    >>> import pyarrow as pa
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> schema = pa.schema({"id": pa.int64(), "at": pa.int64(), "by": pa.string(), "v": pa.int64()})
    >>> orders = MergeOrders(bind_upserts("o", schema, Upsert("id", groups={"at": ["v"]}, order_by="by")))
    >>> orders.words, orders.spans.tolist(), [field.name for field in orders.hidden]
    (3, [[0, 1, 1], [1, 3, 3]], ['_order_by'])
    """

    def __init__(self, bound: BoundUpserts) -> None:
        spec, merging = bound.spec, bound.merging
        assert merging is not None
        self.bound, self.merging, self.tie, self.keeps = bound, merging, TIES[spec.tie], spec.keeps_order
        self.timed = spec.late == "advance"
        self.seq = spec.seq if self.tie in (LAST, FIRST) else None
        cells = merging.cells
        self.parts = len(merging.columns) + 2 if cells else 1
        self.ordered = len(merging.groups) == 1 or cells or bool(spec.order_by) or self.timed
        self._sources: list[tuple[pa.Field | str, int, bool]] = []
        self.ranks: list[RankedWord] = []
        self.hidden: list[pa.Field] = []
        spans, fields = [], []
        self._ranked: list[tuple[int, pa.Field, int]] = []
        self._at: dict[str, tuple[int, int, pa.Field]] = {}
        # The order of a cell can be missing. The order of a row can be missing if all its order columns belong to
        # column groups.
        self.flags = cells or spec.deletes == "group"
        for number, group in enumerate(merging.groups[:1] if cells else merging.groups):
            begin = self.event_word_count
            if number == 0 and self.timed:
                self._sources.append(("time", 1, False))
            for field in group.order:
                first = self.event_word_count
                self._add_column(field, number, bool(field.nullable), flagged=not number)
                fields.append((number, first, self.event_word_count, int(field.nullable)))
                self._at[field.name] = first, self.event_word_count, field
            base = self.event_word_count
            if self.tie == GREATEST and not cells and (number or self.ordered):
                self._sources.append(("gone", 1, True))
                for field in group.compared:
                    self._add_column(field, number, True, tie=True)
            if self.seq is not None and (number or self.ordered):
                self._sources.append(("seq", 1, True))
            spans.append((begin, base, self.event_word_count))
        self.spans, self.columns = np.array(spans, np.int64), np.array(fields, np.int64).reshape(-1, 4)
        self.base = int(self.spans[0, 1])
        self.words = self.event_word_count * self.parts if self.keeps else 0
        self._name_hidden_columns(cells)

    @property
    def event_word_count(self) -> int:
        """The number of words of an event."""
        return sum(max(words, 1) for _, words, _ in self._sources)

    def _add_column(
        self, field: pa.Field, group: int, nullable: bool, tie: bool = False, flagged: bool = False
    ) -> None:
        """Add the words of a column, or one word for its rank."""
        # An unset order is the least word. If a value or a null can have the least word, a flag distinguishes it from
        # an unset order.
        may_be_least = nullable or (is_word_type(field.type) and needs_null_flag(field.with_nullable(True)))
        field, flagged = field.with_nullable(nullable), flagged and self.flags and may_be_least
        if is_word_type(field.type):
            self._sources.append((field, 1 + (flagged or needs_null_flag(field)), tie))
        else:
            if flagged:
                self._sources.append((field, 0, tie))
            self._ranked.append((self.event_word_count, field, -1 - group if tie else group))
            self._sources.append(("rank", 1, tie))

    def _name_hidden_columns(self, cells: bool) -> None:
        """Name the hidden columns of the ranked words."""
        for word, field, group in self._ranked:
            names = []
            for part in range(self.parts if self.keeps else 0):
                tie, number = group < 0, -1 - group if group < 0 else group
                name = f"_tie_{number}_{field.name}" if tie else f"{HIDDEN}{field.name}"
                if cells and part:
                    of = "delete" if part == 1 else self.merging.columns[part - 2].name
                    name = f"{HIDDEN}{part}_{of}_{field.name}"
                names.append((part * self.event_word_count + word, name))
                self.hidden.append(field.with_name(name).with_nullable(True))
            self.ranks.append(RankedWord(word, field, -1 - group if group < 0 else group, group < 0, tuple(names)))

    def compute_words(self, events: pa.RecordBatch, original: Ints | None, gone: Flags) -> Ints:
        """Return the words of events, int64[n, width]. Words that `write_ranked_words` computes are 0. O(n)."""
        columns: list[Ints] = []
        n, here = events.num_rows, gone == 0
        for source, wide, tie in self._sources:
            if isinstance(source, pa.Field) and not wide:
                present = unpack_validity(events.column(source.name))
                columns.append(present.astype(np.int64) if present.size else np.ones(n, np.int64))
            elif isinstance(source, pa.Field):
                words = encode_column_words(events.column(source.name), source, wide == 2)
                columns.extend(np.where(here, w, 0) if tie else w for w in words)
            elif source == "time":
                assert original is not None
                columns.append(original)
            elif source == "gone":
                columns.append(here.astype(np.int64))
            elif source == "seq":
                assert self.seq is not None
                word = encode_column_words(events.column(self.seq), pa.field(self.seq, pa.int64(), nullable=False))[0]
                columns.append(~word if self.tie == FIRST else word)
            else:
                columns.append(np.zeros(n, np.int64))
        return np.ascontiguousarray(np.stack(columns, axis=1)) if columns else np.empty((n, 0), np.int64)

    def write_ranked_words(
        self, events: pa.RecordBatch, gone: Flags, order: Ints, prior: pa.Table | None, prior_order: Ints
    ) -> None:
        """Compute the words that are ranks, for events and stored keys, and write them in place.

        O((n + g) log (n + g)). ``prior``: the hidden columns of all keys, with nulls for keys without state.
        ``prior_order``: int64[g, words].
        """
        for each in self.ranks:
            column = events.column(each.field.name)
            parts = [] if prior is None else column_arrays(prior, [name for _, name in each.hidden])
            olds = pa.concat_arrays(parts) if parts else pa.nulls(0, column.type)
            words, held_words = compute_rank_words(column, olds)
            words, held_words = _replace_nulls(words, column), _replace_nulls(held_words, olds)
            # All deletes are equal, whatever values their rows have. The first tie word is 0 for a delete.
            says = int(self.spans[each.group, 1])
            order[:, each.word] = np.where(gone == 0, words, 0) if each.breaks else words
            g = prior_order.shape[0]
            for i, (word, _) in enumerate(each.hidden if prior is not None else ()):
                its = held_words[i * g : (i + 1) * g]
                prior_order[:, word] = np.where(prior_order[:, says] != 0, its, 0) if each.breaks else its

    def has_missing_orders(self, events: pa.RecordBatch) -> bool:
        """Return whether an event lacks an order column of the row. O(1)."""
        return any(events.column(field.name).null_count for field in self.merging.groups[0].order)

    def build_order_column(self, name: str, running: Ints) -> pa.Array | None:
        """Decode the orders after events to an order column of the row.

        The orders are an int64[m, words] of `kernels.walk`. O(m).
        Return None for a ranked column, because its values are in a hidden column.
        """
        begin, end, field = self._at[name]
        if not is_word_type(field.type):
            return None
        return decode_column_words([np.ascontiguousarray(running[:, word]) for word in range(begin, end)], field)

    @property
    def fields(self) -> list[pa.Field]:
        """The order columns of the row."""
        return list(self.merging.groups[0].order)

    def decode_orders(self, words: Ints, hidden: pa.Table | None) -> list[pa.Array | pa.ChunkedArray]:
        """Return the values of the row's order columns, from stored words int64[m, words] or from hidden columns."""
        out = []
        for field in self.fields:
            made: pa.Array | pa.ChunkedArray | None = self.build_order_column(field.name, words)
            if made is None:
                assert hidden is not None, "ranked order columns are kept beside the payload"
                made = hidden.column(HIDDEN + field.name)
            out.append(made)
        return out


def build_order(bound: BoundUpserts) -> Order | MergeOrders:
    """Build the order of an input's events: one order, or one for each column group.  O(columns)."""
    return Order(bound) if bound.merging is None else MergeOrders(bound)


def _replace_nulls(words: Ints, column: pa.Array) -> Ints:
    present = unpack_validity(column)
    return np.where(present != 0, words, LEAST) if present.size else words
