"""Route the rows of an input to the partitions of their keys, packed into chunks.

A `Partitioner` runs in each task that reads an input. The partitioner hashes the keys, sorts the rows by partition, and
packs the rows into batches with the columns `PACKED`.

Guarantees: every row is in exactly one chunk, and the key's identity decides the chunk's partition. A shuffle keeps no
order, so each chunk carries the origin of its rows, from which the receiver restores the order of arrival. The origin
is the number of the reading task, or Kafka's partition and offset if the rows have these columns.

Limits: a partitioner refuses unknown columns, lossy casts and text that is not UTF-8 before rows are sent. Keys, orders
and times are checked later, in the step (``dataflow.admission``).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, RowHasher, Secret, assign_partitions
from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import (
    check_values,
    compute_decoded_size,
    conform_to_schema,
    decode_array,
    is_text,
    to_array,
    to_batch,
)
from ddflow.columns.widening import narrow_columns
from ddflow.connectors.formats.base import (
    OWN,
    MissingColumnFinder,
    decode_messages,
    find_undeclared_columns,
    refuse_truncates,
)
from ddflow.connectors.formats.messages import Messages
from ddflow.dataflow.admission import DecodeProgress
from ddflow.errors import DdflowError, SchemaMismatch
from ddflow.errors.base import set_error_input
from ddflow.partitions.chunks import (
    PACKED,
    ChunkLimits,
    RowOrigins,
    add_arrival_column,
    choose_chunk_limits,
    compute_digests,
    hash_rows,
    pack_chunks,
    pack_message_summaries,
    select_chunk_schema,
    slice_binary_value,
    slice_rows,
    unpack_chunk,
)
from ddflow.partitions.messages import MessageSummary, SeenMessageColumns
from ddflow.plan.inputs.input import Binding
from ddflow.plan.plan import Plan

Restore = Callable[[pa.Table], pa.Table]
KAFKA: Final = ("partition", "offset")
"""Columns that hold the origin of a row that was read from Kafka."""
TOPIC: Final = "topic"


class Partitioner:
    """A packer for the rows of one input. A packer keeps no rows between calls, so you may call it any number of times.

    - ``input``: the name of the input in the flow.
    - ``columns``: the declared columns that the rows have, from `find_present_columns`; None for all. Missing columns
      are null.
    - ``limits``: the most rows and bytes to pack together, by default `choose_chunk_limits`. Memory holds at most four
      copies of the rows that are packed together.
    - ``restore``: a function that converts the types of the reading engine back to the flow's types.
    - ``heard``: the facts that the driver knows about the input's messages.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.upserts("orders", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    >>> route = Partitioner(flow, "orders", partitions=2, secret=Secret(1, 2))
    >>> rows = [pa.record_batch({"id": [1, 4]}), pa.record_batch({"id": [5, 1]})]
    >>> [(c["to"], c["at"], c["rows"]) for batch in route(rows, origin=0) for c in batch.to_pylist()]
    [(0, 2, 1), (1, 0, 3)]
    """

    def __init__(
        self,
        flow: Plan,
        input: str,
        partitions: int,
        secret: Secret,
        columns: tuple[str, ...] | None = None,
        limits: ChunkLimits | None = None,
        restore: Restore | None = None,
        heard: SeenMessageColumns | None = None,
    ) -> None:
        bound = flow.inputs[input].bound
        # Tasks receive a serialized copy of the partitioner. Some expressions cannot be serialized, so the partitioner
        # keeps no expressions.
        self.input, self.number, self.several = input, list(flow.inputs).index(input), len(flow.inputs) > 1
        self.declared, self.schema = bound.schema, select_chunk_schema(bound.schema, columns)
        self.keys, self.required = bound.key_schema, bound.required_columns
        self.fixed = bound.fixed_type_columns
        self.partitions, self.secret, self.restore = partitions, secret, restore
        self.format, self.target = bound.format, bound.message_target if bound.format else None
        self.table = None if heard is None else heard.table
        self.left, self.asked = ([], None) if heard is None else (heard.unseen.left, heard.unseen.table)
        self.known = None if heard is None else {*heard.known, *bound.schema.names}
        self.limits = limits or choose_chunk_limits(partitions)

    def __call__(self, batches: Iterable[pa.RecordBatch], origin: int) -> Iterator[pa.RecordBatch]:
        """Pack rows into chunks, and yield the chunks in batches with the columns `PACKED`.

        ``origin``: the number of the reading task, which orders the rows of different tasks. O(rows); about 40 ns for a
        row of four numbers. Raises `SchemaMismatch`.
        """
        first, read, unseen, more = (
            0,
            DecodeProgress(self.table),
            MissingColumnFinder(self.left, self.asked),
            dict[str, None](),
        )
        for table in self._group_batches(batches):
            try:
                chunks = self._route_table(table, origin, first, read, unseen, more)
            except DdflowError as error:
                set_error_input(error, self.input, self.several)
                raise
            first += table.num_rows
            if chunks.num_rows:
                yield chunks
        had = tuple(name for name in self.left if name not in unseen.left)
        new = None if read.table == self.table else read.table
        said = MessageSummary(new, had, tuple(unseen.names), tuple(more), unseen.tables)
        if texts := said.to_texts(self.partitions):  # each task sees only some messages
            yield pack_message_summaries(texts, self.number)

    def _group_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield tables, each with rows to pack together.

        Each time the schema changes, yield a table without rows first, so that the caller can check the columns.
        """
        chunk: list[pa.RecordBatch] = []
        rows = size = 0
        schema: pa.Schema | None = None
        for batch in batches:
            if schema is None or not batch.schema.equals(schema):
                if chunk:
                    yield pa.Table.from_batches(chunk)
                chunk, rows, size, schema = [], 0, 0, batch.schema
                yield pa.Table.from_batches([], schema)
            for piece in slice_rows(batch, *self.limits):
                taken = compute_decoded_size(piece)
                if chunk and (rows + piece.num_rows > self.limits.rows or size + taken > self.limits.bytes):
                    yield pa.Table.from_batches(chunk)
                    chunk, rows, size = [], 0, 0
                chunk.append(piece)
                rows, size = rows + piece.num_rows, size + taken
        if chunk:
            yield pa.Table.from_batches(chunk)

    def _route_table(
        self,
        table: pa.Table,
        number: int,
        first: int,
        read: DecodeProgress,
        unseen: MissingColumnFinder,
        more: dict[str, None],
    ) -> pa.RecordBatch:
        if self.format is not None and self.target is not None:
            return self._pack_rows(*self._decode_messages(table, number, first, read, unseen, more))
        told = has_arrival_columns(table.schema, self.declared)
        # Read the origins before the casts, because the columns of the origins may have any integer type.
        origin = self._read_row_origins(table) if told else RowOrigins.of_range(f"{number:010d}", first, table.num_rows)
        if told:
            table = table.drop_columns(find_arrival_columns(table.schema, self.declared))
        if self.restore is not None:
            table = self.restore(table)
        return self._pack_rows(
            to_batch(conform_to_schema(table, self.schema, repr(self.input), self.required, fixed=self.fixed)), origin
        )

    def _decode_messages(
        self,
        table: pa.Table,
        number: int,
        first: int,
        read: DecodeProgress,
        unseen: MissingColumnFinder,
        more: dict[str, None],
    ) -> tuple[pa.RecordBatch, RowOrigins]:
        """Decode messages, and return their events with the origins of the events.

        Raises `BadMessage`, `SchemaMismatch`.
        """
        assert self.format is not None and self.target is not None
        made = refuse_truncates(
            decode_messages(self.format, table, self.target._replace(table=read.table), first), repr(self.input)
        )
        check_values(made.rows, repr(self.input))
        read.table = made.table
        unseen.search_messages(self.format, table, made, repr(self.input))
        if self.known is not None:
            more |= dict.fromkeys(
                find_undeclared_columns(self.format, table, made, {*self.known, *more}, repr(self.input))
            )
        made = made._replace(rows=made.rows.select(self.schema.names))
        if has_arrival_columns(table.schema, pa.schema([])):
            of = self._read_row_origins(table)
            return to_batch(made.rows), of._replace(which=of.which[made.at], places=of.places[made.at])
        # Events of the same message keep their order, because each event has its row number as its place.
        return to_batch(made.rows), RowOrigins.of_range(f"{number:010d}-{first:015d}", 0, made.rows.num_rows)

    def _pack_rows(self, rows: pa.RecordBatch, origin: RowOrigins) -> pa.RecordBatch:
        high, _ = RowHasher(self.keys, self.secret).identify_rows(rows)
        return pack_chunks(
            rows, assign_partitions(high, self.partitions), hash_rows(rows, self.secret), origin, self.number
        )

    def _read_row_origins(self, table: pa.Table) -> RowOrigins:
        """Read the origin of each row from its Kafka columns. Raises `SchemaMismatch` if a row has no origin."""
        partition, places = (self._read_integers(table, name) for name in KAFKA)
        topic = _decode_column(table, TOPIC) if TOPIC in table.column_names else pa.nulls(table.num_rows)
        texts, of = _encode_values(
            (topic if is_text(topic.type) else pa.nulls(table.num_rows, pa.string())).fill_null("")
        )
        numbers, which = _encode_values(partition)
        which = of * max(len(numbers), 1) + which
        used = np.flatnonzero(np.bincount(which)) if which.size else which
        names = [f"{texts[pair // len(numbers)]}/{numbers[pair % len(numbers)]:010d}" for pair in used.tolist()]
        return RowOrigins(names, np.searchsorted(used, which), np.asarray(places), True)

    def _read_integers(self, table: pa.Table, name: str) -> pa.Array:
        column = _decode_column(table, name)
        if column.null_count:
            raise SchemaMismatch(
                f"rows for {self.input!r}",
                f"{name!r} is null in {column.null_count:,} rows",
                f"{' and '.join(KAFKA)} are the origin of a row: fix them, or drop both columns",
                input=self.input,
            )
        return column.cast(pa.int64())


def _decode_column(table: pa.Table, name: str) -> pa.Array:
    return decode_array(to_array(table.column(name)))


def _encode_values(column: pa.Array) -> tuple[list[Any], Ints]:
    """Dictionary-encode a column. Return the list of distinct values, and for each row the index of its value."""
    coded = column.dictionary_encode()
    return coded.dictionary.to_pylist(), np.asarray(coded.indices).astype(np.int64)


def has_arrival_columns(given: pa.Schema, declared: pa.Schema) -> bool:
    """Return whether rows carry their origin in the columns of Kafka. Pure.

    Rows carry their origin if they have Kafka's columns `partition` and `offset` as integers. If the flow declares both
    columns, they are ordinary columns, so the result is False.
    """
    here = all(given.names.count(n) == 1 and pat.is_signed_integer(given.field(n).type) for n in KAFKA)
    return here and not all(n in declared.names for n in KAFKA)


def find_arrival_columns(given: pa.Schema, declared: pa.Schema) -> list[str]:
    """Return the columns that carry the origin of rows and are not part of an event. Pure."""
    if not has_arrival_columns(given, declared):
        return []
    return [name for name in (*KAFKA, TOPIC) if name in given.names and name not in declared.names]


def find_present_columns(bound: Binding, given: pa.Schema) -> tuple[str, ...]:
    """Return the declared columns that some rows have, in the declared order, for `Partitioner` and `ShuffleReader`.

    ``given``: the columns of the rows. O(columns). Raises `SchemaMismatch` for a duplicate or undeclared column, and
    if a required column is missing.
    """
    asked, names = f"rows for {bound.name!r}", given.names
    if bound.format is not None:
        if bound.format.of_rows:
            return tuple(name for name in bound.schema.names if name in (*names, *OWN))
        Messages(given.empty_table(), repr(bound.name), 0)
        return tuple(bound.schema.names)
    for name in names:
        if names.count(name) > 1:
            raise SchemaMismatch(asked, f"the column {name!r} occurs more than once", "rename one of them", column=name)
    arrival = find_arrival_columns(given, bound.schema)
    for name in names:
        if name not in bound.schema.names and name not in arrival:
            raise SchemaMismatch(
                asked,
                f"there is a column {name!r} that was not declared",
                did_you_mean(name, bound.schema.names),
                column=name,
            )
    for name in bound.required_columns:
        if name not in names:
            raise SchemaMismatch(
                asked,
                f"the column {name!r} is missing",
                f"it cannot be null for all rows: add it (found {names})",
                column=name,
            )
    return tuple(name for name in bound.schema.names if name in names)


@dataclass(frozen=True)
class PastSchemaDigests:
    """A function that computes the digests of chunks again, with the columns of an earlier plan.

    ``now``: the columns of each input's chunks, by number of the input. ``past``: the columns of the plan with which
    the rows were first committed.

    >>> import ddflow as dd
    >>> from ddflow.partitions.partitioner import Partitioner
    >>> def chunks(kind, value):
    ...     flow = dd.Flow()
    ...     _ = flow.upserts("a", {"id": pa.int64(), "n": kind}, dd.Upsert(key="id"))
    ...     rows = pa.record_batch({"id": [1], "n": pa.array([value], kind)})
    ...     return [c for c in Partitioner(flow, "a", 1, Secret(1, 2))([rows], 0)][0], flow.inputs["a"].bound.schema
    >>> (then, narrow), (now, wide) = chunks(pa.int32(), 7), chunks(pa.float64(), 7.0)
    >>> again = PastSchemaDigests((wide,), (narrow,), Secret(1, 2))(now)
    >>> now.column("digest") == then.column("digest"), again.column("digest") == then.column("digest")
    (False, True)
    """

    now: tuple[pa.Schema, ...]
    past: tuple[pa.Schema, ...]
    secret: Secret

    def __call__(self, chunks: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the digests of chunks by digests of the columns of the earlier plan. O(rows). Raises `Misrouted`."""
        chunks = chunks.filter(chunks.column("payload").is_valid())
        payload = chunks.column("payload")
        told = zip(*(chunks.column(name).to_pylist() for name in ("what", "origin", "rows")), strict=True)
        found = starmap(self._digest_chunk, ((slice_binary_value(payload, i), *each) for i, each in enumerate(told)))
        at = PACKED.get_field_index("digest")
        return chunks.set_column(at, PACKED.field(at), pa.array(list(found), pa.binary()))

    def _digest_chunk(self, payload: pa.Buffer, what: int, origin: str, rows: int) -> bytes:
        batch = unpack_chunk(payload, add_arrival_column(self.now[what], "/" in origin), rows)
        table = pa.Table.from_batches([batch])
        if "/" in origin:
            table = table.select(list(range(table.num_columns - 1)))  # the last column holds the rows' places
        then = to_batch(narrow_columns(table, self.past[what]))
        found: bytes = compute_digests(hash_rows(then, self.secret), np.zeros(1, np.int64))[0].as_py()
        return found
