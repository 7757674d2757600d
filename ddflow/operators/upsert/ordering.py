"""Which event wins, as words: the order of events and of what keys hold, comparable left to right as int64.

Invariant: comparing the words of two events, or of an event and what its key holds, gives what docs/semantics.md says
of ``order_by``, ``seq`` and ``tie``; null is smallest, NaN largest. The first ``base`` words are the original time
(where late events are advanced) and the order columns; the rest break ties: the sequence, its complement under "first",
what counts of the row itself under "greatest". Numbers and times become words once and for all, and are kept in the
index; text and decimals have no such word, so their columns are kept beside the payload and ranked anew in each step,
together with those of the keys it touches. Deciding is the kernel's; nothing is stored here.

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.bind import bind
>>> from ddflow.plan.inputs.spec import Upsert
>>> bound = bind("o", pa.schema({"k": pa.int64(), "at": pa.int32()}), Upsert(key="k", order_by="at"))
>>> order = Order(bound)
>>> order.base, order.words
(1, 1)
>>> order.of(pa.record_batch({"k": [1, 1], "at": pa.array([3, None], pa.int32())}), None, None).tolist()
[[3], [-9223372036854775808]]
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Flags, Ints, Secret, ordered_words, validity, value_hashes
from ddflow.columns.order_words import dense_ranks
from ddflow.columns.schema import is_word
from ddflow.kernels.resolve import ERROR, FIRST, GREATEST, LAST
from ddflow.plan.inputs.bind import Bound

TIES = {"last": LAST, "first": FIRST, "greatest": GREATEST, "error": ERROR}
LEAST = np.iinfo(np.int64).min


def needs_flag(field: pa.Field) -> bool:
    """Whether null needs a word of its own: where all 64 bits may be in use."""
    return bool(field.nullable) and not pat.is_floating(field.type) and field.type.bit_width == 64


def column_words(column: pa.Array, field: pa.Field, flagged: bool | None = None) -> list[Ints]:
    """One or two int64[n] whose lexicographic order is that of the values, null smallest.

    ``flagged``: whether there are two, of which the first is 0 for null; by default where there must be.
    """
    out, present = ordered_words(column), validity(column)
    if present.size:
        out = np.where(present != 0, out, LEAST)
    if not (needs_flag(field) if flagged is None else flagged):
        return [out]
    return [present.astype(np.int64) if present.size else np.ones(out.size, np.int64), out]


def value_of(words: list[Ints], field: pa.Field) -> pa.Array:
    """Convert words of `column_words` to values."""
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

    ``base``: how many words decide before a tie.  ``words``: how many words an entry of the index keeps.  ``hidden``:
    columns kept beside the payload, since they must be ranked in each step.
    """

    def __init__(self, bound: Bound) -> None:
        spec = bound.spec
        self.bound, self.tie, self.keeps = bound, TIES[spec.tie], spec.keeps_order
        self.fields = [bound.schema.field(n) for n in spec.order_by]
        self.ties = bool(spec.order_by) or spec.holds_back
        self.timed = spec.late == "advance"
        self.ranks_base = not all(is_word(f.type) for f in self.fields)
        # Ignored columns decide nothing: a row that differs in them alone is not kept, so none could be compared to it.
        self.rows = [f for f in bound.row_schema if f.name in bound.tracked] if self.tie == GREATEST else []
        self.ranks_rows = not all(is_word(f.type) for f in self.rows)
        self.ranks = self.ranks_base or self.ranks_rows
        """Whether some words must be ranked in each step."""
        base = 1 if self.ranks_base else sum(1 + needs_flag(f) for f in self.fields)
        self.base = self.timed + base
        self.hidden = [f.with_name(f"_order_{f.name}") for f in self.fields] if self.ranks_base and self.keeps else []
        further = 1 if self.ranks_rows else 1 + sum(1 + needs_flag(f) for f in self.rows)
        self.width = self.base + further * (self.tie == GREATEST) + (spec.seq is not None and self.tie in (LAST, FIRST))
        self.words = self.width if self.keeps else 0

    def of(self, events: pa.RecordBatch, original: Ints | None, gone: Flags | None) -> Ints:
        """int64[n, width]: the words of events; those that must be ranked are 0 until `rank` writes them.

        ``original``: their own times, where late ones are advanced.  ``gone``: which delete (for "greatest").  O(n).
        """
        columns: list[Ints] = [original] if self.timed and original is not None else []
        n = events.num_rows
        if self.ranks_base:
            columns.append(np.zeros(n, np.int64))
        else:
            for field in self.fields:
                columns.extend(column_words(events.column(field.name), field))
        if self.ranks_rows:
            columns.append(np.zeros(n, np.int64))
        elif self.tie == GREATEST and gone is not None:
            here = gone == 0
            columns.append(here.astype(np.int64))
            for field in self.rows:
                columns.extend(np.where(here, w, 0) for w in column_words(events.column(field.name), field))
        seq = self.bound.spec.seq
        if seq is not None and self.tie in (LAST, FIRST):
            word = column_words(events.column(seq), pa.field(seq, pa.int64(), nullable=False))[0]
            columns.append(~word if self.tie == FIRST else word)
        return np.ascontiguousarray(np.stack(columns, axis=1)) if columns else np.empty((n, 0), np.int64)

    def rank(
        self,
        events: pa.RecordBatch,
        gone: Flags,
        order: Ints,
        prior: pa.Table | None,
        lives: Flags,
        prior_order: Ints,
        secret: Secret,
    ) -> None:
        """Write the ranked words of events and of what keys hold, in place.

        ``prior``: the payload of the m keys that hold an order (None where orders are not kept); ``lives``: which of
        them are live; ``prior_order``: int64[m, width].  O((n + m) log).
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
        return dense_ranks(table, value_hashes(table, secret))

    def values(self, words: Ints, hidden: pa.Table | None) -> Sequence[pa.Array | pa.ChunkedArray]:
        """Convert orders to values: from kept words int64[m, >= base], or from the kept columns."""
        if self.ranks_base:
            assert hidden is not None, "ranked order columns are kept beside the payload"
            return [hidden.column(f.name) for f in self.hidden]
        out, at = [], int(self.timed)
        for field in self.fields:
            size = 1 + needs_flag(field)
            out.append(value_of([np.ascontiguousarray(words[:, at + i]) for i in range(size)], field))
            at += size
        return out
