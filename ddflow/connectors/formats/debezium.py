"""Debezium's messages: the envelope, with Connect's schema or without, or flattened to the row after a change.

Invariant: ``c``, ``u`` and ``r`` upsert what is ``after``; ``d`` deletes its key; a tombstone says nothing behind the
delete of its key and deletes elsewhere; ``t`` cuts the batch; ``m`` is ignored. Of ``before`` only columns that tell
which key is meant, and in which order, are read. Order is Postgres' log position, or MySQL's file and position with the
row, else the message's offset. A tombstone, which has no position at its source, takes that of the message behind it,
or before it where it is the last.

>>> from ddflow.connectors.formats.base import Target, decoded, events_schema
>>> format, columns = Debezium(), pa.schema({"id": pa.int64(), "v": pa.string()})
>>> target = Target("'o'", columns, ("id",), (), True, events_schema(format, columns, True))
>>> created = '{"op": "c", "before": null, "after": {"id": 1, "v": "x"}, "source": {"lsn": 9}}'
>>> gone = '{"op": "d", "before": {"id": 1}, "after": null, "source": {"lsn": 10}}'
>>> came = pa.table({"value": [created, gone, None], "key": ['{"id": 1}'] * 3})
>>> for row in decoded(format, came, target).rows.to_pylist():
...     print(row)
{'id': 1, 'v': 'x', '_position': 9, '_row': 0, '_deleted': False}
{'id': 1, 'v': None, '_position': 10, '_row': 0, '_deleted': True}
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.schema import is_text
from ddflow.connectors.formats.base import BadMessages, Format, Target, Truncate, Upserts
from ddflow.connectors.formats.cells import BINARIES, CellForm, shape_of
from ddflow.connectors.formats.decimals import MODES, PRECISE
from ddflow.connectors.formats.envelope import Inside, Ints, opened, typed
from ddflow.connectors.formats.keys import key_cells
from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.parse import TEXT, Bools
from ddflow.connectors.formats.plain import misfit
from ddflow.connectors.formats.positions import POSITION, ROW, filled, positions
from ddflow.errors import SpecError, cut

UPSERT, DELETE, NOTHING, TRUNCATE, TOMBSTONE, UNKNOWN = range(6)
_CODES: Final = {"c": UPSERT, "u": UPSERT, "r": UPSERT, "d": DELETE, "m": NOTHING, "t": TRUNCATE}
_SOURCE: Final = ("lsn", "file", "pos", "row", "table", "schema", "db")
UNAVAILABLE: Final = "__debezium_unavailable_value"


class Envelopes(NamedTuple):
    """Messages that were opened: what each does, where its row is, and of which table it is."""

    inside: Inside
    codes: Ints
    after: tuple[str, ...]
    before: tuple[str, ...]
    source: dict[str, pa.Array]


@dataclass(frozen=True, repr=False, kw_only=True)
class Debezium(Format):
    """`ddflow.formats.debezium` makes it and has its options."""

    table: str | None = None
    flattened: bool = False
    decimals: str = PRECISE
    binary: str = "base64"
    unavailable: bool = False
    placeholder: str = UNAVAILABLE

    kind: ClassVar[str] = "debezium"
    order: ClassVar[tuple[tuple[str, pa.DataType], ...]] = ((POSITION, pa.int64()), (ROW, pa.int64()))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choose(decimals=MODES, binary=BINARIES)
        if not isinstance(self.placeholder, str) or not self.placeholder:
            raise SpecError(
                "dd.formats.debezium", f"placeholder={self.placeholder!r}", "give the text of the connector"
            )

    @property
    def leaves_out(self) -> bool:
        """Whether values that were unavailable keep what is stored."""
        return self.unavailable

    @property
    def usual(self) -> CellForm:
        """How cells are written where no schema says it."""
        return CellForm(decimals=self.decimals, binary=self.binary)

    def upserts(self, messages: Messages, target: Target, bad: BadMessages) -> Upserts:
        """See `Format`."""
        read = (self._flat if self.flattened else self._nested)(messages, target)
        codes = self._codes(read, messages, bad)
        order = positions(read.source, messages) if target.ordered else {}
        if order:
            order = filled(order, codes == TOMBSTONE, messages)
        truncates = self._truncates(codes, order, messages)
        at = np.flatnonzero((codes == UPSERT) | (codes == DELETE) | (codes == TOMBSTONE))
        if at.size < messages.rows:
            read = read._replace(inside=read.inside.take(at))
            order = {name: column.take(pa.array(at)) for name, column in order.items()}
        deleted = codes[at] != UPSERT
        columns, absent = self._columns(read, at, deleted, messages, target, bad)
        made = Upserts(columns, deleted, order, at, absent, truncates)
        return made if self.flattened else self._moved(read, made, messages, target, bad)

    def _nested(self, messages: Messages, target: Target) -> Envelopes:
        """Messages with an envelope."""
        rows = {field.name: shape_of(field.type) for field in target.columns}
        before = {name: rows[name] for name in (*target.key, *target.deciding)}
        source = dict.fromkeys(_SOURCE if target.ordered else _SOURCE[4:], TEXT)
        inside = opened(messages.value, {"op": TEXT, "after": rows, "before": before, "source": source})
        codes = _coded(inside.cells("op"), messages.value)
        missing = (codes == UPSERT) & np.asarray(inside.cells("after").is_null())
        codes[missing] = UNKNOWN
        found = {name: inside.cells("source", name) for name in source}
        return Envelopes(inside, codes, ("after",), ("before",), found)

    def _flat(self, messages: Messages, target: Target) -> Envelopes:
        """Messages that are the row after a change, with ``__`` columns of the envelope."""
        rows: dict[str, Any] = {field.name: shape_of(field.type) for field in target.columns}
        own = {name: [f"__{name}", f"__source_{name}"] for name in _SOURCE}
        shape = dict.fromkeys([*(each for two in own.values() for each in two), "__deleted", "__op"], TEXT) | rows
        inside = opened(messages.value, shape)
        codes = np.full(messages.rows, UPSERT)
        operations = inside.cells("__op")
        if operations.null_count < messages.rows:
            told = _coded(operations, messages.value)
            codes = np.where(np.asarray(operations.is_valid()), told, codes)
        codes[np.asarray(pc.fill_null(pc.equal(inside.cells("__deleted").cast(pa.string()), "true"), False))] = DELETE
        codes[np.asarray(inside.body.is_null())] = TOMBSTONE
        found = {name: pc.coalesce(*(inside.cells(each).cast(pa.string()) for each in own[name])) for name in own}
        return Envelopes(inside, codes, (), (), found)

    def _codes(self, read: Envelopes, messages: Messages, bad: BadMessages) -> Ints:
        """What each message does; those that cannot be told, and those of other tables, do nothing."""
        codes, wrong = read.codes.copy(), read.inside.wrong
        if wrong.any():
            bad.mark(np.flatnonzero(wrong & ~bad.mask), "it is no JSON")
        codes[bad.mask] = NOTHING
        tombstones = np.flatnonzero(codes == TOMBSTONE)
        if tombstones.size:
            said = tombstones[(tombstones > 0) & (codes[tombstones - 1] == DELETE)]
            codes[said[_same_key(messages, said)]] = NOTHING
        if self.table is not None:
            codes[~self._of_table(read.source) & (codes != TOMBSTONE)] = NOTHING
            codes[~self._of_topic(messages) & (codes == TOMBSTONE)] = NOTHING
        else:
            named = pc.if_else(pa.array(codes < NOTHING), read.source["table"].cast(pa.string()), None)
            if len(several := pc.unique(named.drop_null())) > 1:
                first = int(pc.index(pc.not_equal(pc.fill_null(named, several[0]), several[0]), True).as_py())
                found = f"its table is {cut(str(several[1]), 80)!r}, that of others {cut(str(several[0]), 80)!r}"
                bad.mark([first], f"{found}: name one, dd.formats.debezium(table={str(several[0])!r})")
        if (unknown := np.flatnonzero(codes == UNKNOWN)).size:
            bad.mark(unknown, "it is no event of Debezium: it lacks 'op', or what is 'after'")
        codes[codes == UNKNOWN] = NOTHING
        return codes

    def _of_topic(self, messages: Messages) -> Bools:
        """Which messages are of a topic of that table alone: a tombstone does not say whose it is."""
        if messages.topic is None:
            return np.zeros(messages.rows, np.bool_)
        own = pc.or_(pc.equal(messages.topic, self.table), pc.ends_with(messages.topic, f".{self.table}"))
        return np.asarray(pc.fill_null(own, False))

    def _of_table(self, source: dict[str, pa.Array]) -> Bools:
        """Which messages are of the table that was named: ``orders``, ``public.orders`` or ``shop.public.orders``."""
        *before, table = str(self.table).split(".")
        out = pc.equal(source["table"].cast(pa.string()), table)
        if before:
            inner = pc.coalesce(source["schema"].cast(pa.string()), source["db"].cast(pa.string()))
            out = pc.and_(out, pc.equal(inner, before[-1]))
        if len(before) > 1:
            out = pc.and_(out, pc.equal(source["db"].cast(pa.string()), before[-2]))
        return np.asarray(pc.fill_null(out, False))

    def _truncates(self, codes: Ints, order: dict[str, pa.Array], messages: Messages) -> tuple[Truncate, ...]:
        rows = np.flatnonzero(codes == TRUNCATE).tolist()
        told = [{name: column[row].as_py() for name, column in order.items()} for row in rows]
        return tuple(Truncate(row, each, messages.place(row)) for row, each in zip(rows, told, strict=True))

    def _columns(
        self, read: Envelopes, at: Ints, deleted: Bools, messages: Messages, target: Target, bad: BadMessages
    ) -> tuple[dict[str, pa.Array], dict[str, Bools]]:
        """The cells of upserts by column, and of deletes those that tell key and order; which were unavailable."""
        columns, absent = dict[str, pa.Array](), dict[str, Bools]()
        inside, gone = read.inside, np.flatnonzero(deleted)
        suspect = self._suspect(messages)
        for field in target.columns:
            name = field.name
            if suspect and (here := self._unavailable(inside.cells(*read.after, name))).any():
                absent[name] = here & ~deleted
                if not self.unavailable:
                    remedy = "its table's replica identity is not full: see debezium(unavailable=True)"
                    bad.mark(at[absent[name]], f"column {name!r} is unavailable: {remedy}")
                inside = _without(inside, read.after, name, here)
            made, wrong = typed(inside, read.after, name, field.type, self.usual)
            if wrong is not None:
                misfit(inside.cells(*read.after, name), np.flatnonzero(wrong & ~deleted), field, at, bad)
            columns[name] = made
        if gone.size:
            columns |= self._of_deletes(read, columns, at, gone, messages, target, bad)
        for name in target.key:
            lacking = np.flatnonzero(np.asarray(columns[name].is_null()) & deleted)
            bad.mark(at[lacking], f"it deletes, and says {name!r} neither in its key nor in 'before'")
        return columns, absent

    def _of_deletes(
        self,
        read: Envelopes,
        columns: dict[str, pa.Array],
        at: Ints,
        gone: Ints,
        messages: Messages,
        target: Target,
        bad: BadMessages,
    ) -> dict[str, pa.Array]:
        """The columns that deletes need: of the message's key, else of ``before``."""
        out, some = {}, read.inside.take(gone)
        keyed = key_cells(messages, at[gone], target, self.usual)
        for name in dict.fromkeys((*target.key, *target.deciding)):
            kind = target.columns.field(name).type
            found, wrong = typed(some, read.before, name, kind, self.usual)
            if wrong is not None:
                misfit(some.cells(*read.before, name), np.flatnonzero(wrong), target.columns.field(name), at[gone], bad)
            if name in keyed:
                found = pc.coalesce(keyed[name], found)
            every = pa.concat_arrays([columns[name], found])
            which = np.arange(len(columns[name]))
            which[gone] = which.size + np.arange(gone.size)
            out[name] = every.take(pa.array(which))
        return out

    def _suspect(self, messages: Messages) -> bool:
        """Whether a placeholder may be anywhere.  O(bytes), much faster than looking at columns."""
        value = messages.value
        if pat.is_struct(value.type):
            return True
        data = value.buffers()[2]
        words = re.escape(self.placeholder.encode()) + b"|" + re.escape(_base64(self.placeholder).rstrip("=").encode())
        return data is not None and re.search(words, data) is not None

    def _unavailable(self, cells: pa.Array) -> Bools:
        """Which cells are placeholders: as text, as bytes, or as the only one of a list."""
        if pat.is_list(cells.type) and is_text(cells.type.value_type):
            single = pc.equal(pc.list_value_length(cells), 1)
            first = pc.list_element(pc.if_else(single, cells, pa.scalar([None], cells.type)), 0)
            return self._unavailable(pc.if_else(single, first, pa.scalar(None, first.type)))
        if is_text(cells.type):
            known = pa.array([self.placeholder, _base64(self.placeholder)], cells.type)
            return np.asarray(pc.is_in(cells, known))
        if pat.is_binary(cells.type):
            return np.asarray(pc.is_in(cells, pa.array([self.placeholder.encode()], cells.type)))
        return np.zeros(len(cells), np.bool_)

    def _moved(self, read: Envelopes, made: Upserts, messages: Messages, target: Target, bad: BadMessages) -> Upserts:
        """An update whose key was another before also deletes that one: not every connector says so itself."""
        changed = np.zeros(made.deleted.size, np.bool_)
        named = ~made.deleted
        for name in target.key:
            before, after = (read.inside.cells(each, name) for each in ("before", "after"))
            named &= np.asarray(before.is_valid())
            if before.type == after.type:
                changed |= np.asarray(pc.fill_null(pc.not_equal(before, after), False))
        rows = np.flatnonzero(changed & named)
        if not rows.size:
            return made
        assert made.at is not None
        some, take = read.inside.take(rows), pa.array(np.argsort(np.concatenate([made.at * 2 + 1, made.at[rows] * 2])))
        columns = {}
        for name, column in made.columns.items():
            old = pa.nulls(rows.size, column.type)
            if name in (*target.key, *target.deciding):
                old, wrong = typed(some, read.before, name, column.type, self.usual)
                if wrong is not None:
                    misfit(
                        some.cells("before", name),
                        np.flatnonzero(wrong),
                        target.columns.field(name),
                        made.at[rows],
                        bad,
                    )
            columns[name] = pa.concat_arrays([column, old]).take(take)
        which = np.asarray(take)
        return made._replace(
            columns=columns,
            deleted=np.concatenate([made.deleted, np.ones(rows.size, np.bool_)])[which],
            order={name: pa.concat_arrays([c, c.take(pa.array(rows))]).take(take) for name, c in made.order.items()},
            at=np.concatenate([made.at, made.at[rows]])[which],
            absent={n: np.concatenate([c, np.zeros(rows.size, bool)])[which] for n, c in (made.absent or {}).items()},
        )


def _coded(operations: pa.Array, value: pa.Array) -> Ints:
    """What operations do; a message without a value is a tombstone."""
    if pat.is_null(operations.type):
        codes = np.full(len(value), UNKNOWN)
    else:
        coded = operations.cast(pa.string()).dictionary_encode()
        known = np.array([*(_CODES.get(each, UNKNOWN) for each in coded.dictionary.to_pylist()), UNKNOWN])
        codes = known[np.asarray(pc.fill_null(coded.indices, len(known) - 1))]
    none = np.asarray(value.is_null())
    if is_text(value.type) and (codes == UNKNOWN).any():
        rows = np.flatnonzero((codes == UNKNOWN) & ~none)
        text = pc.utf8_trim_whitespace(value.take(pa.array(rows)))
        none = none.copy()
        none[rows] = np.asarray(pc.or_(pc.equal(text, "null"), pc.match_substring_regex(text, _NULL)))
    codes[none] = TOMBSTONE
    return codes


_NULL: Final = r'^\{\s*"schema"\s*:\s*null\s*,\s*"payload"\s*:\s*null\s*\}$'


def _same_key(messages: Messages, rows: Ints) -> Bools:
    """Of which messages the key is that of the message before; messages without keys have the same."""
    if messages.key is None or not rows.size:
        return np.ones(rows.size, np.bool_)
    one, other = (messages.key.take(pa.array(each)) for each in (rows, rows - 1))
    if pat.is_struct(one.type):
        return np.array([a == b for a, b in zip(one, other, strict=True)], np.bool_)
    return np.asarray(pc.fill_null(pc.equal(one, other), True))


def _without(inside: Inside, path: tuple[str, ...], name: str, here: Bools) -> Inside:
    """The same, with null in the place of some cells."""
    if not path:
        body = inside.body
        cells = pc.struct_field(body, name)
        parts = [c if f.name != name else _nulled(cells, here) for f, c in zip(body.type, body.flatten(), strict=True)]
        return inside._replace(body=pa.StructArray.from_arrays(parts, fields=list(body.type), mask=body.is_null()))
    inner = _without(inside._replace(body=inside.cells(*path)), (), name, here).body
    return inside._replace(
        body=pa.StructArray.from_arrays(
            [inner if f.name == path[0] else c for f, c in zip(inside.body.type, inside.body.flatten(), strict=True)],
            fields=list(inside.body.type),
            mask=inside.body.is_null(),
        )
    )


def _nulled(cells: pa.Array, here: Bools) -> pa.Array:
    return pc.if_else(pa.array(here), pa.scalar(None, cells.type), cells)


def _base64(text: str) -> str:
    import base64

    return base64.b64encode(text.encode()).decode()
