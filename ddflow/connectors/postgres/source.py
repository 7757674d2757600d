"""Postgres as a source: a first copy of tables, then what a logical slot has of them, as messages of wal2json.

Invariant: the copy is read in the snapshot that the slot begins with, so a row is in one of the two and in no other. A
poll gives whole transactions, of all tables together; the slot is moved on behind a commit of ours, never ahead of it,
and until then nothing more is read. The position is the end of the last transaction's commit in Postgres' log.

A table that the position does not know is copied when all else was read, in the snapshot of a slot for the while; what
the others have up to there is of the same epoch. So is one of which the log does not have all: its copy is then all
that its input holds. Postgres decodes, and a library carries the bytes: copies and changes come by COPY. No password is
in what is shown of a declaration, in a message, or in a manifest.

>>> of = PostgresTables("postgresql://me:secret@db/shop", {"public.orders": "orders"}, "shop", False)
>>> of.target, of.inputs("shop")
('postgresql://db:5432/shop#shop', ('orders',))
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import Any, ClassVar, Final

import pyarrow as pa

from ddflow.connectors.api import Beside, OpenSource, Polled, Source
from ddflow.connectors.formats.parse import import_duckdb
from ddflow.connectors.postgres.catalog import (
    Looked,
    SourceTable,
    columns_of,
    commit_time,
    find_unique_indexes,
    format_lsn,
    has_columns,
    look_up_table,
    parse_lsn,
    refuse_children,
    refuse_filtered,
    table_of,
    translate_errors,
)
from ddflow.connectors.postgres.changes import Numbers, Peeked, peek_slot
from ddflow.connectors.postgres.position import (
    Copied,
    SlotPosition,
    build_position,
    describe_copies,
    find_alterations,
    find_filled_columns,
    lost_changes,
    same_server,
    same_slot,
    same_tables,
    system_of,
    warn_of_altered,
    warn_of_gone,
)
from ddflow.connectors.postgres.sink import READS, connect, driver, public_address
from ddflow.connectors.postgres.slot import COPYING, LEFT, LONGEST, Begun, OwnSlot, begin_slot, copies, warn_of_copies
from ddflow.errors import SourceChanged, SourceFailed, SpecError, UnreadableInput
from ddflow.storage.closing import on_failure

ADDING: Final = "_adding"
MESSAGE: Final = (150, 1024)
"""Bytes that a message of wal2json has at least, and that one is taken to have until some have come."""
STILL: Final = 16 << 20
"""Bytes of a log without changes of ours, behind which the slot is moved on all the same."""
_NAME: Final = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True)
class PostgresTables(Source):
    """See `dd.sources.postgres`.  ``tables``: the input of each table; "" for the one that it is attached as."""

    url: str = field(repr=False)
    tables: Mapping[str, str]
    slot: str
    follow: bool
    recopy: bool = True
    kind: ClassVar[str] = "postgres"
    unit: ClassVar[str] = "bytes"
    shared: ClassVar[bool] = False
    positions: ClassVar[Any] = SlotPosition

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.slot) or len(self.slot) > LONGEST:
            remedy = f"use small letters, digits and _, {LONGEST} at most"
            raise SpecError(f"slot={self.slot!r}", "that is no name of a slot", remedy)
        if not self.tables:
            raise SpecError("dd.sources.postgres", "it names no table", "name one, or {'public.orders': 'orders'}")

    @property
    def target(self) -> str:
        """Host, database and slot."""
        return f"{public_address(self.url)}#{self.slot}"

    @classmethod
    def said(cls, position: Any) -> str:
        """Describe the place in the log."""
        return str(position["lsn"])

    @classmethod
    def placed(cls, place: int) -> int | str:
        """Format a place in the log."""
        return format_lsn(place)

    @classmethod
    def without(cls, position: Any, inputs: Collection[str]) -> Any:
        """Return the position without their tables; a table that returns is copied again."""
        tables = {name: of for name, of in position["tables"].items() if of["input"] not in inputs}
        return {**position, "tables": tables}

    def inputs(self, name: str) -> Sequence[str]:
        """Return the inputs of its tables."""
        return tuple(dict.fromkeys(input or name for input in self.tables.values()))

    def needs(self) -> None:
        """Import the driver, and the reader of the messages."""
        driver()
        import_duckdb()

    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> OpenSource:
        """Connect, look at the tables, and begin behind the position, or with a copy."""
        (only,) = inputs if len(inputs) == 1 else (None,)
        tables = [table_of(name, str(input or only)) for name, input in self.tables.items()]
        with translate_errors(f"connect to {public_address(self.url)}"):
            connection = connect(self.url, f"the source {self.slot!r}", READS)
        with on_failure(connection.close):
            known = {} if position is None else position["tables"]
            looked = {
                each: look_up_table(connection, each, inputs[each.input], first=each.full not in known)
                for each in tables
            }
            return Slot(self, connection, looked, inputs, position)


class Slot(OpenSource):
    """A slot that is read, or made and copied to."""

    def __init__(
        self,
        of: PostgresTables,
        connection: Any,
        looked: Mapping[SourceTable, Looked],
        inputs: Mapping[str, pa.Schema],
        position: Any,
    ) -> None:
        self.of, self.connection, self.inputs = of, connection, inputs
        known: Mapping[str, Copied] = {} if position is None else position["tables"]
        fresh = (t for t in looked if t.full not in known or known[t.full].get("again"))
        self.added = () if position is None else tuple(fresh)
        """Tables that are to be copied to those that are read."""
        self.tables = tuple(table for table in looked if table not in self.added)
        self.copied = describe_copies({table: looked[table] for table in self.tables}, {}, {}) | {
            table.full: known[table.full] for table in looked if table.full in known
        }
        """The tables as they were copied."""
        self._named = {table.full for table in looked}
        self.asked = f"read the slot {of.slot!r} of {public_address(of.url)}"
        self._holder: Any = None
        """The connection that holds the snapshot while rows are copied."""
        self._own, self._keys = OwnSlot(connection, of.slot, self.asked), dict[str, Sequence[str]]()
        self._why = dict[str, str]()
        """Of tables that are to be copied again."""
        self._whole = frozenset[str]()
        """Inputs that take all that they hold at once."""
        self._committed: SlotPosition | None = position
        self._waits, self._broken, self._message = False, "", MESSAGE[1]
        self._copy: Iterator[Polled] | None = None
        self._beside: dict[str, dict[str, Beside]] = {}
        self._numbers = Numbers()
        with on_failure(self.close), translate_errors(self.asked):
            refuse_children(looked, self._named)
            self._system = system_of(connection)
            if position is None:
                self._begin()
            else:
                same_slot(self.asked, position, of.slot)
                same_server(self.asked, position, self._system, self._now())
                same_tables(position["tables"], looked)
                for table in [each for each in self.added if each.full in known]:
                    self._allow_copy(table, LEFT)
                self.at = parse_lsn(position["lsn"])
                self._own.resume(self.at)
            self._until = self._now()

    def declared(self, new: Mapping[str, Collection[str]]) -> None:
        """See `OpenSource.declared`."""
        has_columns(self.connection, self.tables, self.inputs, new)

    def keyed(self, keys: Mapping[str, Sequence[str]], whole: Collection[str]) -> None:
        """See `OpenSource.keyed`.  Looked at again with each poll, because a table may be altered."""
        self._keys, self._whole = dict(keys), frozenset(whole)
        with translate_errors(self.asked):
            self._look_up_tables()

    def _compare(self, table: SourceTable, was: Copied, now: Copied) -> None:
        """Let a table be copied again if no change has all of its rows' values, else warn."""
        if was["oid"] != now["oid"]:
            found = f"it is another table than the one that was copied (oid {now['oid']}, and it was {was['oid']})"
            self._again(table, found)
            return
        new, why = (
            find_filled_columns(self.connection, table, was, now),
            find_alterations(self.connection, table, was, now),
        )
        if table.input not in self._whole:
            warn_of_altered(table, new, why)
        elif new or why:
            self._again(table, "; ".join([*(f"{name!r} {how}" for name, how in new.items()), *why]))

    def _again(self, table: SourceTable, why: str) -> None:
        """Let a table be copied again.  Raises `SourceChanged` if its input cannot be, or that is not wanted."""
        if table.input not in self._whole:
            raise lost_changes(table, why)
        self._allow_copy(table, why)
        self._why[table.full] = why
        self.added = (*self.added, table)
        self.tables = tuple(each for each in self.tables if each != table)
        self.copied[table.full] = {**self.copied[table.full], "again": True}

    def _allow_copy(self, table: SourceTable, why: str) -> None:
        """Raise `SourceChanged` if tables are not to be copied again."""
        if not self.of.recopy:
            remedy = "run once without recopy=False, which copies the table again; or begin a new state"
            raise SourceChanged(f"read the table {table.full} for {table.input!r}", why, remedy)

    @property
    def ended(self) -> bool:
        """Whether all was read that was committed when it was opened."""
        done = not (self._waits or self._broken or self.added) and self._copy is None
        return done and not self.of.follow and self.at >= self._until

    @property
    def waits(self) -> bool:
        """Whether what it gave is to be committed; what follows a log gathers changes meanwhile."""
        return self._waits and not self.of.follow

    def lag(self) -> int | None:
        """Return the bytes of the log after the position; None during a copy."""
        with suppress(SourceFailed, UnreadableInput), translate_errors(self.asked):
            return max(self._now() - self.at, 0) if self._copy is None else None
        return None

    def poll(self, room: int) -> Polled | None:
        """Return part of the copy, or whole transactions; nothing until the last ones are committed."""
        if self._broken:
            raise SourceFailed(self.asked, f"it could not be moved on: {self._broken}", "see to the server")
        with translate_errors(self.asked):
            if self._copy is None and not self._waits:
                reads = self.tables and (not self.added or self.at < self._until)
                found = self._changes(room) if reads else None
                if found is not None or not self.added:
                    return found
                self._add()
            return self._next_copied() if self._copy is not None else None

    def acknowledge(self, position: Any) -> None:
        """Move the slot on; it gets its name behind the first commit."""
        try:
            with translate_errors(self.asked):
                if self._holder is not None:
                    self._holder.close()
                    self._holder = None
                self._own.move_on(parse_lsn(position["lsn"]))
        except (SourceFailed, UnreadableInput) as error:
            self._broken = error.found
        self._waits = False
        warn_of_gone(self.tables, self._committed, position)
        self._committed = position

    def close(self) -> None:
        """Let go of the connections.  A copy that was not committed leaves nothing."""
        copying = self._holder is not None and self._committed is None
        for each in (self._holder, self.connection):
            if each is not None and not each.closed:
                each.close()
        self._holder = None
        if copying:
            with suppress(Exception), connect(self.of.url, self.asked, READS, connect_timeout=3) as again:
                again.execute("select pg_drop_replication_slot(%s)", [self.of.slot + COPYING])

    def _now(self) -> int:
        """Return the flushed end of the log: later bytes are in no slot yet, and may be lost."""
        return parse_lsn(self.connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()[0])

    def _position(self) -> SlotPosition:
        return build_position(self.at, self.of.slot, self._system, self.copied)

    def _begin(self) -> None:
        """Make a slot, and begin to copy in its snapshot."""
        began = time()
        self._own.make_way()
        self._holder = connect(self.of.url, self.asked, READS, replication="database")
        begins = begin_slot(self.connection, self._holder, self._own.copying, self.asked)
        self.at, self._copy = parse_lsn(begins.lsn), self._copies(begins, began)

    def _copies(self, begins: Begun, began: float) -> Iterator[Polled]:
        yield from copies(self.connection, self.tables, self.inputs, begins, self._beside, self._null_replacer)
        self.reached = began

    def _add(self) -> None:
        """Begin to copy tables to those that are read."""
        self._holder = connect(self.of.url, self.asked, READS, replication="database")
        new = {each: self._look(each) for each in self.added}
        for table in new:
            refuse_filtered(f"copy the table {table.full} for {table.input!r}", columns_of(self.connection, table))
        unique = find_unique_indexes(self.connection, new, self._keys)
        began, why = time(), {each.full: self._why.get(each.full, LEFT) for each in new if each.full in self.copied}
        with warn_of_copies(self.asked, why):
            begins = begin_slot(self.connection, self._holder, self.of.slot + ADDING, self.asked, lasting=False)
        self._copy = self._additions(begins, new, unique, began)

    def _additions(
        self, begins: Begun, new: Mapping[SourceTable, Looked], unique: Mapping[str, list[int]], began: float
    ) -> Iterator[Polled]:
        """Read the rest up to the snapshot, then all rows of new tables in it."""
        if self.tables:
            found = self._peek_slot(self._look_up_tables(), upto=begins.lsn)
            yield Polled({each.input: found.rows.get(each.input, ()) for each in self.tables}, None)
        whole = {table.input for table in new if table.full in self.copied}
        yield from copies(self.connection, tuple(new), self.inputs, begins, self._beside, self._null_replacer, whole)
        self.at, self.reached, self.tables = parse_lsn(begins.lsn), began, (*self.tables, *new)
        self.added = tuple(each for each in self.added if each not in new)
        self.copied |= describe_copies(new, {}, unique)

    def _null_replacer(self, table: SourceTable) -> Callable[[pa.Array], pa.Array]:
        looked, key = self._look(table), self._keys.get(table.input, ())
        return lambda text: self._numbers.replace_unholdable(text, table, looked, key)

    def _next_copied(self) -> Polled:
        assert self._copy is not None
        if (found := next(self._copy, None)) is not None:
            return found
        self._copy, self._waits = None, True
        return Polled({}, self._position(), beside=self._beside)

    def _look(self, table: SourceTable) -> Looked:
        return look_up_table(self.connection, table, self.inputs[table.input], first=table.full not in self.copied)

    def _look_up_tables(self) -> dict[SourceTable, Looked]:
        """Look up the current tables, and check that they are the copied ones."""
        looked = {each: self._look(each) for each in self.tables}
        same_tables(self.copied, looked)
        refuse_children(looked, self._named)
        now = describe_copies(
            looked, self.copied, find_unique_indexes(self.connection, (*self.tables, *self.added), self._keys)
        )
        for table in looked:
            self._compare(table, self.copied[table.full], now[table.full])
        looked = {table: each for table, each in looked.items() if table in self.tables}
        self.copied |= {table.full: now[table.full] for table in looked}
        return looked

    def _peek_slot(self, looked: Mapping[SourceTable, Looked], **how: Any) -> Peeked:
        """Read from the slot, and mark the tables with incomplete changes for another copy."""
        try:
            found = peek_slot(self.connection, self._own.called, looked, self._keys, self._numbers, **how)
        except driver().errors.InvalidParameterValue as error:
            if not self._numbers.note_refusal(error):
                raise
            return self._peek_slot(looked, **how)
        for table, why in {**found.untold, **found.lost}.items():
            if table in found.lost or table.input in self._whole:
                self._again(table, why)
        return found

    def _changes(self, room: int) -> Polled | None:
        """Read whole transactions of about ``room`` bytes."""
        looked_at, now, most = time(), self._now(), max(room // self._message, 1)
        if now <= self.at:
            self.reached = looked_at
            return None
        timed, added = now - self.at > room, self.added  # else all is read, and the time need not be in each message
        found = self._peek_slot(self._look_up_tables(), most=most, timed=timed)
        if self.added != added:
            return self._changes(room) if self.tables else None
        self._message = max(found.size // found.messages, MESSAGE[0]) if found.messages else self._message
        self.reached = looked_at if found.messages < most else (commit_time(found.commit) or self.reached)
        if found.lsn:
            self.at = parse_lsn(found.lsn)
        elif self.of.follow and now - self.at <= STILL:
            return None
        else:
            self.at = now
        self._waits = True
        return Polled(found.rows, self._position())
