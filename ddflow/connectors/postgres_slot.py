"""Postgres as a source: a first copy of tables, then what a logical slot has of them, as messages of wal2json.

Invariant: the copy is read in the snapshot that the slot begins with, so a row is in one of the two and in no other. A
poll gives whole transactions, of all tables together; the slot is moved on behind a commit of ours, never ahead of it,
and until then nothing more is read. The position is the end of the last transaction's commit in Postgres' log.

While the first copy lasts, the slot is called ``<slot>_copying``. It gets its name when the copy is committed, which
takes a second slot for a moment; while none is free it is read under that name. One that a dead copy left is dropped.
So a slot is never taken for another's. A table that the position does not know is copied when all else was read, in the
snapshot of a slot for the while; what the others have up to there is of the same epoch. Postgres decodes, and a library
carries the bytes: copies and changes come by COPY. No password is in what is shown of a declaration, in a message, or
in a manifest.

>>> of = PostgresTables("postgresql://me:secret@db/shop", {"public.orders": "orders"}, "shop", False)
>>> of.target, of.inputs("shop")
('postgresql://db:5432/shop#shop', ('orders',))
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import Any, ClassVar, Final

import pyarrow as pa

from ddflow.connectors.attached import Beside, OpenSource, Polled, Source
from ddflow.connectors.formats.parse import reader
from ddflow.connectors.postgres import address, driver, shown
from ddflow.connectors.postgres_catalog import (
    Looked,
    SourceTable,
    identified,
    look,
    table_of,
    worded,
)
from ddflow.connectors.postgres_changes import peeked
from ddflow.connectors.postgres_columns import warn_of_filled, warn_of_gone
from ddflow.connectors.postgres_copy import Begun, begun, copies
from ddflow.connectors.postgres_position import (
    ANEW,
    SlotPosition,
    copied,
    remembered,
    same_server,
    same_slot,
    same_tables,
    system_of,
)
from ddflow.connectors.postgres_stream import place, text_of, written
from ddflow.errors import SourceChanged, SourceFailed, SpecError, UnreadableInput
from ddflow.storage.closing import on_failure

_LOG: Final = logging.getLogger("ddflow")
COPYING: Final = "_copying"
ADDING: Final = "_adding"
LONGEST: Final = 63 - len(COPYING)
MESSAGE: Final = (150, 1024)
"""Bytes that a message of wal2json has at least, and that one is taken to have until some have come."""
STILL: Final = 16 << 20
"""Bytes of a log without changes of ours, behind which the slot is moved on all the same."""
_NAME: Final = re.compile(r"[a-z0-9_]+")
_SLOTS: Final = (
    "select slot_name, active, confirmed_flush_lsn::text from pg_replication_slots where slot_name = any(%s)"
)


@dataclass(frozen=True)
class PostgresTables(Source):
    """See `dd.sources.postgres`.  ``tables``: the input of each table; "" for the one that it is attached as."""

    url: str = field(repr=False)
    tables: Mapping[str, str]
    slot: str
    follow: bool
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
        return f"{shown(self.url)}#{self.slot}"

    @classmethod
    def said(cls, position: Any) -> str:
        """The place in the log."""
        return str(position["lsn"])

    @classmethod
    def placed(cls, place: int) -> int | str:
        """A place in the log."""
        return text_of(place)

    @classmethod
    def without(cls, position: Any, inputs: Collection[str]) -> Any:
        """Without their tables, which are copied anew if they are given again."""
        tables = {name: of for name, of in position["tables"].items() if of["input"] not in inputs}
        return {**position, "tables": tables}

    def inputs(self, name: str) -> Sequence[str]:
        """Those of its tables."""
        return tuple(dict.fromkeys(input or name for input in self.tables.values()))

    def needs(self) -> None:
        """The driver, and what reads the messages of its changes."""
        driver()
        reader()

    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> OpenSource:
        """Connect, look at the tables, and begin behind the position, or with a copy."""
        psycopg = driver()
        (only,) = inputs if len(inputs) == 1 else (None,)
        tables = [table_of(name, str(input or only)) for name, input in self.tables.items()]
        with worded(f"connect to {shown(self.url)}"):
            connection = psycopg.connect(**address(self.url, f"the source {self.slot!r}"), autocommit=True)
        with on_failure(connection.close):
            known = {} if position is None else position["tables"]
            looked = {each: look(connection, each, inputs[each.input], first=each.full not in known) for each in tables}
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
        self.added = tuple(t for t in looked if position is not None and t.full not in position["tables"])
        """Tables that are to be copied to those that are read."""
        self.tables = tuple(table for table in looked if table not in self.added)
        self.copied = copied({table: looked[table] for table in self.tables})
        """The tables as they were copied."""
        self.asked = f"read the slot {of.slot!r} of {shown(of.url)}"
        self._holder: Any = None
        """The connection that holds the snapshot while rows are copied."""
        self._slot, self._keys = of.slot, dict[str, Sequence[str]]()
        self._committed: SlotPosition | None = position
        self._waits, self._broken, self._message = False, "", MESSAGE[1]
        self._copy: Iterator[Polled] | None = None
        self._beside: dict[str, dict[str, Beside]] = {}
        with on_failure(self.close), worded(self.asked):
            self._system = system_of(connection)
            if position is None:
                self._begin()
            else:
                same_slot(self.asked, position, of.slot)
                same_server(self.asked, position, self._system, self._now())
                same_tables(position["tables"], looked)
                self._resume(position["lsn"])
            self._until = self._now()

    def keyed(self, keys: Mapping[str, Sequence[str]]) -> None:
        """See `OpenSource.keyed`.  Looked at again with each poll, because a table may be altered."""
        self._keys = dict(keys)
        self._identified()

    def _identified(self) -> None:
        for table in (*self.tables, *self.added):
            if table.input in self._keys:
                identified(self.connection, table, self._keys[table.input])

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
        """The bytes of the log behind the position; unknown within a copy."""
        with suppress(SourceFailed, UnreadableInput), worded(self.asked):
            return max(self._now() - self.at, 0) if self._copy is None else None
        return None

    def poll(self, room: int) -> Polled | None:
        """Some of the copy, or whole transactions; nothing until the last ones are committed."""
        if self._broken:
            raise SourceFailed(self.asked, f"it could not be moved on: {self._broken}", "see to the server")
        with worded(self.asked):
            if self._copy is None and not self._waits:
                found = self._changes(room) if not self.added or self.at < self._until else None
                if found is not None or not self.added:
                    return found
                self._add()
            return self._copied() if self._copy is not None else None

    def acknowledge(self, position: Any) -> None:
        """Move the slot on; it gets its name behind the first commit."""
        try:
            with worded(self.asked):
                if self._holder is not None:
                    self._holder.close()
                    self._holder = None
                self._named(place(position["lsn"]))
        except (SourceFailed, UnreadableInput) as error:
            self._broken = error.found
        self._waits = False
        warn_of_gone(self.tables, self._committed, position)
        self._committed = position

    def gained(self, input: str, columns: Collection[str]) -> None:
        """See `OpenSource.gained`."""
        with suppress(SourceFailed, UnreadableInput), worded(self.asked):
            for table in self.tables:
                if table.input == input:
                    warn_of_filled(self.connection, table, columns)

    def close(self) -> None:
        """Let go of the connections.  A copy that was not committed leaves nothing."""
        copying = self._holder is not None and self._committed is None
        for each in (self._holder, self.connection):
            if each is not None and not each.closed:
                each.close()
        self._holder = None
        if copying:
            with suppress(Exception), driver().connect(**address(self.of.url, self.asked), autocommit=True) as again:
                again.execute("select pg_drop_replication_slot(%s)", [self.of.slot + COPYING])

    def _now(self) -> int:
        """Where the log ends that a slot is given: what is not flushed is in no slot yet, and may be lost."""
        return place(self.connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()[0])

    def _position(self) -> SlotPosition:
        return remembered(self.at, self.of.slot, self._system, self.copied)

    def _slots(self) -> dict[str, tuple[bool, int]]:
        """Of ours, by name: whether it is in use, and how far it was read."""
        names = [self.of.slot, self.of.slot + COPYING]
        return {name: (used, place(at)) for name, used, at in self.connection.execute(_SLOTS, [names]).fetchall()}

    def _begin(self) -> None:
        """Make a slot, and begin to copy in its snapshot."""
        began, slots, copying = time(), self._slots(), self.of.slot + COPYING
        if self.of.slot in slots:
            drop = f"select pg_drop_replication_slot('{self.of.slot}')"
            remedy = f"name another with slot=; or, where nobody needs what it has unread, drop it: {drop}"
            raise UnreadableInput(self.asked, "it is there, and this state has no position of it", remedy)
        if copying in slots:
            self.connection.execute("select pg_drop_replication_slot(%s)", [copying])
        self._holder = driver().connect(**address(self.of.url, self.asked), autocommit=True, replication="database")
        begins = begun(self.connection, self._holder, copying)
        self.at, self._copy = place(begins.lsn), self._copies(begins, began)

    def _copies(self, begins: Begun, began: float) -> Iterator[Polled]:
        yield from copies(self.connection, self.tables, self.inputs, begins, self._beside)
        self.reached = began

    def _add(self) -> None:
        """Begin to copy tables to those that are read."""
        self._holder = driver().connect(**address(self.of.url, self.asked), autocommit=True, replication="database")
        new = {table: look(self.connection, table, self.inputs[table.input], first=True) for table in self.added}
        began, begins = time(), begun(self.connection, self._holder, self.of.slot + ADDING, lasting=False)
        self._copy = self._additions(begins, new, began)

    def _additions(self, begins: Begun, new: Mapping[SourceTable, Looked], began: float) -> Iterator[Polled]:
        """What is still to be read up to the snapshot, and all rows of new tables in it."""
        if self.tables:
            yield Polled(peeked(self.connection, self._slot, self._looked(), upto=begins.lsn).rows, None)
        yield from copies(self.connection, tuple(new), self.inputs, begins, self._beside)
        self.at, self.reached, self.tables, self.added = place(begins.lsn), began, (*self.tables, *new), ()
        self.copied |= copied(new)

    def _copied(self) -> Polled:
        assert self._copy is not None
        found = next(self._copy, None)
        if found is not None:
            return found
        self._copy, self._waits = None, True
        return Polled({}, self._position(), beside=self._beside)

    def _resume(self, position: str) -> None:
        """Go on behind a position.  Raises `SourceChanged` where the slot is gone, or was moved on by others."""
        slots, self.at = self._slots(), place(position)
        found = slots.get(self.of.slot) or slots.get(self.of.slot + COPYING)
        remedy = f"what changed since then is lost here: {ANEW}"
        if found is None:
            raise SourceChanged(self.asked, "there is no such slot any more", remedy)
        if found[1] > self.at:
            said = f"it was moved on to {text_of(found[1])}, and the state has what came before {position}"
            raise SourceChanged(self.asked, said, remedy)
        self._named(self.at)

    def _named(self, to: int) -> None:
        """Give the slot its name, if it lacks it and there is room for a copy, and move it on."""
        slots, copying, run = self._slots(), self.of.slot + COPYING, self.connection.execute
        try:
            if self.of.slot not in slots:
                run("select pg_copy_logical_replication_slot(%s, %s)", [copying, self.of.slot])
            if copying in slots:
                run("select pg_drop_replication_slot(%s)", [copying])
            self._slot = self.of.slot
        except driver().errors.ConfigurationLimitExceeded:
            if self._slot != copying:
                remedy = "raise max_replication_slots, or drop a slot; it goes on under that name until then"
                _LOG.warning("%s: no slot is free to rename %s: %s", self.asked, copying, remedy)
            self._slot = copying
        if self._slot not in slots or slots[self._slot][1] < to:
            run("select pg_replication_slot_advance(%s, %s)", [self._slot, text_of(to)])

    def _looked(self) -> dict[SourceTable, Looked]:
        """The tables as they are now, which are those that were copied."""
        looked = {each: look(self.connection, each, self.inputs[each.input], first=False) for each in self.tables}
        same_tables(self.copied, looked)
        self.copied = copied(looked)
        self._identified()
        return looked

    def _changes(self, room: int) -> Polled | None:
        """Whole transactions, of about so many bytes."""
        looked_at, now, most = time(), self._now(), max(room // self._message, 1)
        if now <= self.at:
            self.reached = looked_at
            return None
        timed = now - self.at > room  # else all is read, and the time need not be in each message
        found = peeked(self.connection, self._slot, self._looked(), most=most, timed=timed)
        self._message = max(found.size // found.messages, MESSAGE[0]) if found.messages else self._message
        self.reached = looked_at if found.messages < most else (written(found.commit) or self.reached)
        if found.lsn:
            self.at = place(found.lsn)
        elif self.of.follow and now - self.at <= STILL:
            return None
        else:
            self.at = now
        self._waits = True
        return Polled(found.rows, self._position())
