"""Keep the state of an upsert input: one live row for each key, with the order of the event that set the row.

Guarantees: the arrangement equals the sum of the updates of all steps. The arrangement stays unchanged until the whole
step is computed.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import (
    NONE,
    Ints,
    Narrow,
    RowHasher,
    Secret,
    Words,
    compute_value_hashes,
    has_two_word_identities,
)
from ddflow.columns.layout import Arena, fixed_width, make_writable
from ddflow.columns.order_words import mark_values_below
from ddflow.columns.rows import gather_column, row_values
from ddflow.columns.schema import is_word_type
from ddflow.columns.sorting import sort_by_identity
from ddflow.columns.threads import ALONE, Threads
from ddflow.errors import Option
from ddflow.kernels.emit import mark_times_and_deletes
from ddflow.kernels.resolve import LATE, LIVE, NOBODY
from ddflow.operators.base import Hashes, ReadableNode
from ddflow.operators.upsert.events import Events, KeyedEvents
from ddflow.operators.upsert.expiry import KeyExpiry
from ddflow.operators.upsert.orders import build_order
from ddflow.plan.inputs.bind import BoundUpserts
from ddflow.time import NEVER
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import mark_last_of_keys
from ddflow.trace.merge import pick_versions_by_sorting

NOBODY_ELSE: Ints = np.empty(0, np.int64)
"""An array without generated events."""


class UpsertState(ReadableNode):
    """The state of an upsert input.  ``bound``: the input's spec and schema.

    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import ints
    >>> from ddflow.operators.upsert.events import Events
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> schema = pa.schema({"k": pa.int64(), "v": pa.string()})
    >>> state = UpsertState(bind_upserts("rows", schema, Upsert("k")), Secret(1, 2))
    >>> events = pa.record_batch({"k": [7, 8, 7], "v": ["a", "b", "c"]}, schema=schema)
    >>> keyed = state.sort_by_key(Events(events, ints(0, 0, 0), ints(0, 0, 0), ints(0, 1, 2)), ints(0), since=0)
    >>> keyed.by.starts.tolist(), keyed.prior.reference.tolist()  # two keys, of which nothing is held
    ([0, 2, 3], [0, 0])
    """

    unfed = True
    """Whether the state shows that the input never had an event."""

    def __init__(self, bound: BoundUpserts, secret: Secret, threads: Threads = ALONE) -> None:
        self.bound, self.secret, self.threads = bound, secret, threads
        self.order = build_order(bound)
        stored = pa.schema([*bound.row_schema, *self.order.hidden])
        self.hidden = frozenset(field.name for field in self.order.hidden)
        """The columns that the arrangement has in addition to the columns of the row."""
        self.contents: int | None = None
        """The arrival number of the first event that was generated for an absent key in a step of full contents.

        None in other steps.
        """
        self.horizon = NEVER
        """The word of the watermark's column below which no event may change a row."""
        self.moves = bound.watermark is not None and not bound.watermark.in_key
        """Whether events can change the value of the watermark's column in a row."""
        self.wide, self.arena = has_two_word_identities(bound.key_schema), Arena()
        self.arrangements = (Arrangement(stored, self.wide, self.order.words, self.order.keeps),)
        self.tracked = bound.tracked
        self.output_arrangement.set_threads(threads)
        expires = bound.spec.expiry is not None
        self.keys, self.identified = RowHasher(bound.key_schema, secret, threads), bound.key_schema
        self.expiring = KeyExpiry(bound, self.order, self.output_arrangement, self.keys) if expires else None
        row = bound.row_schema
        self.values = RowHasher(pa.schema([row.field(name) for name in bound.tracked]), secret, threads)
        self.stored = row
        """The columns of the row."""
        self.given = [*row.names, *(bound.spec.order_by if self.order.hidden else ())]
        """The columns of events that are stored."""
        # Equal keys of these types have equal bytes, so the key of a retraction can be taken from the event.
        exact = [n for n in bound.spec.key if is_word_type(bound.key_schema.field(n).type)]
        self.exact = {n for n in exact if not pat.is_floating(bound.key_schema.field(n).type)}
        # The hash of a key of one word, or of a single value column, is bijective. Therefore the column can be computed
        # from the hash.
        alone = [] if self.wide else bound.spec.key, bound.tracked if bound.merging is None else []
        self.identity, self.hashed = (self._find_word_column(row, names) for names in alone)

    @staticmethod
    def _find_word_column(row: pa.Schema, names: Sequence[str]) -> str | None:
        """Return the name of the only column if equal values of it have equal 64-bit words. Otherwise return None."""
        kinds = [row.field(name).type for name in names]
        return (
            names[0]
            if [is_word_type(k) and fixed_width(k) == 8 and not pat.is_floating(k) for k in kinds] == [True]
            else None
        )

    def hash_rows(self, rows: pa.Table | pa.RecordBatch) -> Hashes:
        """See `ReadableNode.hash_rows`."""
        return *self.keys.identify_rows(rows), compute_value_hashes(rows.select(self.bound.tracked), self.secret)

    def sort_by_key(self, events: Events, times: Ints, since: int) -> KeyedEvents:
        """Sort events by key, and look up the stored state of their keys. O(n) expected.

        ``times``: the step's distinct times, ascending. ``since``: the value of ``since`` after the step.
        """
        arena, rows, bound = self.arena, events.rows, self.bound
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        keys = list(map(columns.__getitem__, self.keys.names))
        by = sort_by_identity(*self.keys.compute_identities(keys, rows.num_rows), arena, self.threads)
        gone, full = bound.mark_deletes(rows), self.contents
        own = NOBODY if full is None else full
        plain = full is None and self.expiring is None
        absent = NOBODY_ELSE if plain else np.flatnonzero(events.arrival >= own)
        if absent.size:
            gone[absent] = 1
        arranged = self.output_arrangement
        prior = arranged.look_up_keys(by.high, by.low, by.starts[:-1], arena)
        mark: Narrow = arena.empty(events.times.size, np.int32)
        mark_times_and_deletes(make_writable(events.times), times, gone, mark)
        settled = bool(times.size) and int(times[-1]) <= since
        keyed = KeyedEvents(events, columns, times, settled, by, prior, arranged.index.built, gone, absent, mark, full)
        if self.moves and self.horizon > NEVER and keyed.by.high.size:
            return self._drop_late_events(keyed, self.horizon)
        return keyed if self.expiring is None else self.expiring.drop_forgotten_events(keyed)

    def _drop_late_events(self, keyed: KeyedEvents, horizon: int) -> KeyedEvents:
        """Drop the events of keys whose stored rows are below the watermark. They have the verdict ``late``. O(events).

        Raises `LateEvent` if the spec refuses late events, unless the step has full contents.
        """
        mark, prior, by = self.bound.watermark, keyed.prior, keyed.by
        assert mark is not None
        late = prior.reference & LIVE != 0
        held = prior.reference[late]
        late[late] = mark_values_below(
            gather_column(self.output_arrangement.prepare_row_pool(), held, mark.field), horizon
        )
        if late.any() and self.bound.spec.late == "error" and keyed.full is None:
            row = int(by.permutation[by.starts[late.argmax()]])
            key = row_values(keyed.events.rows.select(self.keys.names), row)
            remedy = "name a column that updates leave unchanged in ", Option("watermark"), ", or "
            raise mark.make_late_error(f"{late.sum():,} stored rows", horizon, [f", first {key}"], remedy)
        gone = np.empty(keyed.events.times.size, np.bool_)
        gone[by.permutation] = np.repeat(late, np.diff(by.starts))
        return keyed.filter_events(~gone)._replace(left=np.flatnonzero(gone), left_verdict=LATE)


def walk_live_keys(arranged: Arrangement) -> Iterator[tuple[Words, Words, Ints]]:
    """Yield the identities (high, low) of all live keys, and references to the keys' rows, in ascending ranges.

    O(keys) in memory, O(versions) on disk. The arrangement must not change during the iteration.

    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> import pyarrow as pa
    >>> from ddflow.operators.upsert.upsert import RunningUpsert
    >>> from ddflow.columns.hashing import Secret
    >>> upsert = RunningUpsert(bind_upserts("v", pa.schema({"k": pa.int64()}), Upsert("k")), Secret(1, 2))
    >>> [references.size for _, _, references in walk_live_keys(upsert.output_arrangement)]
    [0]
    """
    if not arranged.unindexed_parts:
        references, places = arranged.index.list_entries(live=True)
        high, low, _, _ = arranged.index.read_entries(places)
        yield high, low, references
        return
    for parts in arranged.iterate_version_ranges():
        picked = pick_versions_by_sorting(arranged.slots, parts, NEVER, droppable=False)
        now = mark_last_of_keys(picked.high, picked.low) & (picked.live != 0)
        yield picked.high[now], picked.low[now] if picked.low.size else NONE, picked.references[now]
