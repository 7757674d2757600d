"""Decode messages that describe a change by an operation, a new row and an old row, in several formats.

A format of messages with an envelope returns `EnvelopeEvents`, with the operation of each event and the paths of the
new row and the old row. `Enveloped` converts these events to upserts: it filters tables, drops repeated tombstones,
finds the keys of deletes, adds deletes for changed keys, marks unavailable cells and builds the order. `Enveloped`
reads only the key columns and the order columns of old rows. A message may hold several events.

>>> inside = ParsedMessages(pa.array([{"a": 1}]), np.zeros(1, bool), ())
>>> read = EnvelopeEvents(inside, np.zeros(1, np.int64), (), (), {}, np.arange(1))
>>> read.inside.get_cells("a").to_pylist()
[1]
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.connectors.formats.base import BadMessages, Format, MessageTarget, Truncate, Upserts
from ddflow.connectors.formats.cells import CellEncoding
from ddflow.connectors.formats.envelope import Ints, ParsedMessages
from ddflow.connectors.formats.messages import (
    PARTS,
    POSITION,
    ROW,
    Messages,
    build_order_columns,
    build_table_names,
    compute_ambiguous_table_mask,
    compute_table_mask,
    compute_topic_mask,
    count_messages_by_table,
    fill_missing_positions,
    resolve_table_name,
)
from ddflow.connectors.formats.parse import Bools, replace_cells
from ddflow.connectors.formats.plain import read_column_at_path, read_key_cells
from ddflow.connectors.formats.row_columns import Own
from ddflow.errors import shorten

UPSERT, DELETE, NOTHING, TRUNCATE, TOMBSTONE, UNKNOWN = range(6)
_DO: Final = (UPSERT, DELETE, TRUNCATE)
"""Operations that change one table.  Messages with these operations name the table."""
SOURCE: Final = ("lsn", "file", "pos", "row", *PARTS)
"""Fields of the ``source`` of an event: the log position, and the parts of the table name."""


class EnvelopeEvents(NamedTuple):
    """Events of parsed messages, with their operation codes and the paths of the new row and the old row.

    ``source``: the values of the fields in `SOURCE`.  ``of``: the index of the message of each event.  ``absent``: for
    each column, marks the cells that the source did not write.  ``fresh``: marks events that create a row, so that no
    stored value exists.
    """

    inside: ParsedMessages
    codes: Ints
    after: tuple[str, ...]
    before: tuple[str, ...]
    source: dict[str, pa.Array]
    of: Ints
    absent: dict[str, Bools] | None = None
    fresh: Bools | None = None


@dataclass(frozen=True, repr=False, kw_only=True)
class Enveloped(Format):
    """Base of formats with an envelope.  ``table``: the table to read, None for the table of the first message."""

    table: str | None = None

    order: ClassVar[Any] = ((POSITION, pa.int64()), (ROW, pa.int64()))
    unknown: ClassVar[str]
    """Reason why a message is bad if it is not an event of the format."""
    hidden: ClassVar[str]
    """Reason why a cell is unavailable."""
    keyless: ClassVar[str] = ""
    """Hint for a delete without a key, appended to the reason."""

    @property
    def of_tables(self) -> bool:
        """Whether messages can name their table; always True for formats with an envelope."""
        return True

    @property
    def asked(self) -> str | None:
        """Table that the options name, or None."""
        return self.table

    @property
    def usual(self) -> CellEncoding:
        """Encoding of cells in messages without a schema."""
        return CellEncoding(decimals="string")

    def sources(self, value: pa.Array) -> dict[str, pa.Array]:
        """Return the table of each message, as columns ``table``, ``schema`` and ``db``.  O(bytes)."""
        raise NotImplementedError

    def owner(self, value: pa.Array) -> Own | None:
        """Return a function that marks messages of the named table.  See `Format`."""
        return (
            None
            if self.table is None
            else lambda rows: compute_table_mask(str(self.table), self.sources(value.take(pa.array(rows))))
        )

    def read(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> EnvelopeEvents:
        """Read the events of messages, and mark unreadable messages in ``bad``."""
        raise NotImplementedError

    def upserts(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> Upserts:
        """Convert messages to upserts.  See `Format`."""
        read = self.read(messages, target, bad)
        codes, table = self._classify_messages(read, messages, target, bad)
        waits = self.table is not None and target.table is None
        tables = count_messages_by_table(read.source, np.isin(read.codes, _DO)) if waits else {}
        order = build_order_columns(read.source, messages, read.of) if target.ordered else {}
        if order:
            order = fill_missing_positions(order, codes == TOMBSTONE, messages, read.of)
        truncates = self._list_truncates(codes, order, messages, read.of)
        live = np.flatnonzero((codes == UPSERT) | (codes == DELETE) | (codes == TOMBSTONE))
        if live.size < codes.size:
            absent = None if read.absent is None else {name: each[live] for name, each in read.absent.items()}
            fresh = None if read.fresh is None else read.fresh[live]
            read = read._replace(inside=read.inside.take(live), of=read.of[live], absent=absent, fresh=fresh)
            order = {name: column.take(pa.array(live)) for name, column in order.items()}
        deleted, at = codes[live] != UPSERT, read.of
        columns, missing = self._build_columns(read, at, deleted, messages, target, bad)
        made = Upserts(columns, deleted, order, at, missing, truncates, table, tables)
        return self._add_old_key_deletes(read, made, target, bad) if read.before else made

    def _classify_messages(
        self, read: EnvelopeEvents, messages: Messages, target: MessageTarget, bad: BadMessages
    ) -> tuple[Ints, str | None]:
        """Return the code of each event, and the table of the messages.

        Events of unreadable messages, and events of tables that are not read, get the code `NOTHING`.
        """
        codes, wrong = read.codes.copy(), read.inside.wrong
        if wrong.any():
            bad.mark(read.of[np.flatnonzero(wrong & ~bad.mask[read.of])], "it is not valid JSON")
        codes[bad.mask[read.of]] = NOTHING
        tombstones = np.flatnonzero(codes == TOMBSTONE)
        if tombstones.size:
            said = tombstones[(tombstones > 0) & (codes[tombstones - 1] == DELETE)]
            codes[said[_mark_repeated_keys(messages, read.of[said])]] = NOTHING
        if self.table is not None:
            silent = compute_ambiguous_table_mask(self.table, read.source)
            reason = f"it does not say whether it belongs to the table {shorten(self.table, 80)!r}"
            bad.mark(read.of[np.isin(codes, _DO) & silent], reason)
            others = ~compute_table_mask(self.table, read.source) & ~(
                silent & (codes == UNKNOWN)
            )  # a message that is not an event has no table
            codes[others & (codes != TOMBSTONE)] = NOTHING
            codes[~compute_topic_mask(self.table, messages)[read.of] & (codes == TOMBSTONE)] = NOTHING
        table = self._resolve_table(codes, read, target.table, bad)
        if (unknown := np.flatnonzero(codes == UNKNOWN)).size:
            bad.mark(read.of[unknown], self.unknown)
        codes[codes == UNKNOWN] = NOTHING
        return codes, table

    def _resolve_table(self, codes: Ints, read: EnvelopeEvents, own: str | None, bad: BadMessages) -> str | None:
        """Return the table of the messages: ``own``, or the first table that a message names.

        Messages of a different table are marked as bad and get the code `NOTHING`.
        """
        names = pc.if_else(pa.array(np.isin(codes, _DO)), build_table_names(read.source), None)
        table, others = resolve_table_name(own, pc.unique(names).drop_null().to_pylist())
        if others:
            rows = np.flatnonzero(np.asarray(pc.is_in(names, pa.array(others))))
            told = names.take(pa.array(rows)).to_pylist()
            bad.mark(read.of[rows], lambda n: _describe_other_table(str(told[n]), str(table), self.kind))
            codes[np.isin(read.of, read.of[rows])] = NOTHING
        return table

    def _list_truncates(
        self, codes: Ints, order: dict[str, pa.Array], messages: Messages, of: Ints
    ) -> tuple[Truncate, ...]:
        rows = np.flatnonzero(codes == TRUNCATE).tolist()
        told = [{name: column[row].as_py() for name, column in order.items()} for row in rows]
        return tuple(
            Truncate(int(of[row]), each, messages.locate_message(int(of[row])))
            for row, each in zip(rows, told, strict=True)
        )

    def _build_columns(
        self,
        read: EnvelopeEvents,
        at: Ints,
        deleted: Bools,
        messages: Messages,
        target: MessageTarget,
        bad: BadMessages,
    ) -> tuple[dict[str, pa.Array], dict[str, Bools]]:
        """Build the columns of upserts, and mark the unavailable cells of each column.

        Deletes have values only in the key columns and the order columns.
        """
        columns, absent = dict[str, pa.Array](), dict[str, Bools]()
        inside, gone = read.inside, np.flatnonzero(deleted)
        for field in target.columns:
            name = field.name
            if read.absent is not None and name in read.absent:
                absent[name] = read.absent[name] & ~deleted
                if self.leaves_out and read.fresh is not None:
                    _mark_missing_values(name, at[absent[name] & read.fresh], bad)
                if not self.leaves_out:
                    remedy = f"{self.hidden}: see unavailable= of dd.formats.{self.kind}"
                    bad.mark(at[absent[name]], f"column {name!r} is unavailable: {remedy}")
            columns[name] = read_column_at_path(inside, read.after, field, self.usual, at, bad, deleted)
        if gone.size:
            columns |= self._build_delete_columns(read, columns, at, gone, messages, target, bad)
        for name in target.key:
            lacking = np.flatnonzero(np.asarray(columns[name].is_null()) & deleted)
            bad.mark(at[lacking], f"it is a delete, but neither its key nor its old row has {name!r}{self.keyless}")
        return columns, absent

    def _build_delete_columns(
        self,
        read: EnvelopeEvents,
        columns: dict[str, pa.Array],
        at: Ints,
        gone: Ints,
        messages: Messages,
        target: MessageTarget,
        bad: BadMessages,
    ) -> dict[str, pa.Array]:
        """Return the key and order columns of deletes.  Values come from the message key, or else from the old row."""
        out, some = {}, read.inside.take(gone)
        keyed = read_key_cells(messages, at[gone], target, self.usual)
        for name in dict.fromkeys((*target.key, *target.deciding)):
            found = read_column_at_path(some, read.before, target.columns.field(name), self.usual, at[gone], bad)
            if name in keyed:
                found = _coalesce(keyed[name], found)
            out[name] = replace_cells(columns[name], gone, found)
        return out

    def _add_old_key_deletes(
        self, read: EnvelopeEvents, made: Upserts, target: MessageTarget, bad: BadMessages
    ) -> Upserts:
        """Add a delete of the old key for each update that changed the key.

        Some connectors do not send a delete of the old key.
        """
        changed = np.zeros(made.deleted.size, np.bool_)
        for name in target.key:
            before, after = (read.inside.get_cells(*path, name) for path in (read.before, read.after))
            if before.type == after.type:
                changed |= np.asarray(pc.fill_null(pc.not_equal(before, after), False))
        rows = np.flatnonzero(changed & ~made.deleted)
        if not rows.size:
            return made
        assert made.at is not None
        for name, lacking in (made.absent or {}).items():
            _mark_missing_values(name, made.at[rows[lacking[rows]]], bad)
        some, take = read.inside.take(rows), pa.array(np.argsort(np.concatenate([made.at * 2 + 1, made.at[rows] * 2])))
        columns = {}
        for name, column in made.columns.items():
            old = pa.nulls(rows.size, column.type)
            if name in (*target.key, *target.deciding):
                old = read_column_at_path(some, read.before, target.columns.field(name), self.usual, made.at[rows], bad)
                old = _coalesce(old, column.take(pa.array(rows)))  # the old row may lack unchanged values
            columns[name] = pa.concat_arrays([column, old]).take(take)
        which = np.asarray(take)
        return made._replace(
            columns=columns,
            deleted=np.concatenate([made.deleted, np.ones(rows.size, np.bool_)])[which],
            order={name: pa.concat_arrays([c, c.take(pa.array(rows))]).take(take) for name, c in made.order.items()},
            at=np.concatenate([made.at, made.at[rows]])[which],
            absent={n: np.concatenate([c, np.zeros(rows.size, bool)])[which] for n, c in (made.absent or {}).items()},
        )


def map_operation_codes(types: pa.Array, known: dict[str, int]) -> Ints:
    """Map the operation names of messages to codes."""
    texts = types.cast(pa.string()).dictionary_encode()
    codes = np.array([*(known.get(each, UNKNOWN) for each in texts.dictionary.to_pylist()), UNKNOWN])
    out: Ints = codes[np.asarray(pc.fill_null(texts.indices, codes.size - 1))]
    return out


def _coalesce(one: pa.Array, other: pa.Array) -> pa.Array:
    """Fill the nulls of a column from another column.

    Arrow's ``coalesce`` does not support extension types.
    """
    if not isinstance(one.type, pa.BaseExtensionType):
        return pc.coalesce(one, other)
    return pa.ExtensionArray.from_storage(one.type, pc.coalesce(one.storage, other.storage))


def _mark_missing_values(name: str, messages: Ints, bad: BadMessages) -> None:
    """Mark messages as bad if their row has a new key and lacks a value.

    No stored value exists for a new key.
    """
    remedy = "alter table ... replica identity full, so that the source writes it from then on, and create a new state"
    bad.mark(messages, f"column {name!r} is unavailable, and no stored row has it, because the key changed: {remedy}")


def _describe_other_table(table: str, own: str, kind: str) -> str:
    """Build the reason for a message that is bad because its table is not ``own``, the table that is read."""
    remedy = f"split the messages by table, or select one in a flow: dd.formats.{kind}(table={own!r})"
    return f"its table is {shorten(table, 80)!r}, but other messages are of {shorten(own, 80)!r}: {remedy}"


def _mark_repeated_keys(messages: Messages, rows: Ints) -> Bools:
    """Mark each message with the same key as the previous message.  Messages without a key count as equal."""
    if messages.key is None or not rows.size:
        return np.ones(rows.size, np.bool_)
    one, other = (messages.key.take(pa.array(each)) for each in (rows, rows - 1))
    if pat.is_struct(one.type):
        return np.array([a == b for a, b in zip(one, other, strict=True)], np.bool_)
    return np.asarray(pc.fill_null(pc.equal(one, other), True))
