"""Read tables of Postgres: a first copy, then the changes in a logical slot, as messages of wal2json.

A `SlotReader` has one of four states: it reads changes, copies tables, waits for a commit, or is broken.
`choose_poll_action` chooses the action of a poll. If a table is new, or the log lacks changes of the table, ddflow
copies the table in the snapshot of a temporary slot. The epoch of the copy also has the changes of all other tables up
to that snapshot. During the first copy, the slot has the name `<slot>_copying`, so ddflow recognises a copy that
crashed. Guarantees: a copy uses the snapshot at the start of its slot, so each row comes from the copy or from the
changes, never from both. A poll returns complete transactions of all tables. The slot advances to committed positions
only. No declaration, message or manifest shows a password.

>>> of = PostgresSource("postgresql://me:secret@db/shop", {"public.orders": "orders"}, "shop", False)
>>> of.target, of.inputs("shop")
('postgresql://db:5432/shop#shop', ('orders',))
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from time import time
from typing import Any, ClassVar, Final, Literal

import pyarrow as pa

from ddflow.connectors.api import OpenSource, Polled, Source
from ddflow.connectors.formats.parse import import_duckdb
from ddflow.connectors.postgres.catalog import (
    LOG,
    find_key_constraints,
    format_lsn,
    look_up_table,
    parse_commit_time,
    parse_lsn,
    parse_table_name,
    read_catalog_columns,
    refuse_missing_columns,
    refuse_row_level_security,
    translate_errors,
)
from ddflow.connectors.postgres.changes import SlotStart
from ddflow.connectors.postgres.sink import READS, connect, format_public_address, import_psycopg
from ddflow.connectors.postgres.tables import (
    ANEW,
    SlotPosition,
    SlotTables,
    build_position,
    check_position,
    read_system_id,
    warn_of_dropped_columns,
)
from ddflow.errors import SourceChanged, SourceFailed, SpecError, UnreadableInput
from ddflow.storage.closing import undo_on_failure

ADDING: Final = "_adding"
COPYING: Final = "_copying"
LONGEST: Final = 63 - len(COPYING)
"""Largest number of characters in the name of a slot."""
_SLOTS: Final = """
    select slot_name, active, confirmed_flush_lsn::text, coalesce(to_jsonb(s) ->> 'wal_status', '') = 'lost'
    from pg_replication_slots s where slot_name = any(%s)"""
LOST: Final = "the server removed log that the slot had not read"
RAISE: Final = "raise max_slot_wal_keep_size on the server, or set it to -1 for no limit"
MESSAGE: Final = (150, 1024)
"""Two sizes of a wal2json message in bytes: the smallest possible size, and the size assumed before the first message.
"""
STILL: Final = 16 << 20
"""Number of bytes of log after which the slot advances even if the log has no changes of the tables."""
PATIENCE: Final = 5.0
"""Seconds after which ddflow first warns that the creation of a slot waits for open transactions."""
_NOW: Final = (
    "select pg_current_wal_insert_lsn()::text, (txid_snapshot_xmax(txid_current_snapshot()) % (1::bigint << 32))::text"
)
_OPEN: Final = """
    select distinct coalesce('PID ' || l.pid, 'prepared transaction ' || quote_literal(p.gid))
    from pg_locks l left join pg_prepared_xacts p on p.transaction = l.transactionid
    where l.locktype = 'transactionid' and l.granted and age(l.transactionid) >= age(%s::xid)"""
"""Query for open transactions, in all databases, that began before a given transaction."""
_NAME: Final = re.compile(r"[a-z0-9_]+")


@dataclass(frozen=True)
class PostgresSource(Source):
    """See `dd.sources.postgres`.

    ``tables``: the input of each table; "" for the name under which the source is attached.
    """

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
            remedy = f"use lower-case letters, digits and _, at most {LONGEST} characters"
            raise SpecError(f"slot={self.slot!r}", "that is not a valid slot name", remedy)
        if not self.tables:
            raise SpecError("dd.sources.postgres", "it names no table", "pass one, or {'public.orders': 'orders'}")

    @property
    def target(self) -> str:
        """Host, database and slot, without user and password."""
        return f"{format_public_address(self.url)}#{self.slot}"

    @classmethod
    def said(cls, position: Any) -> str:
        """Return the place in the log (LSN) that a position contains."""
        return str(position["lsn"])

    @classmethod
    def placed(cls, place: int) -> int | str:
        """Format a place in the log (LSN) in the notation of Postgres."""
        return format_lsn(place)

    @classmethod
    def without(cls, position: Any, inputs: Collection[str]) -> Any:
        """Return a position without the tables of some inputs.

        ddflow copies the table of an input that is added again.
        """
        tables = {name: of for name, of in position["tables"].items() if of["input"] not in inputs}
        return {**position, "tables": tables}

    def inputs(self, name: str) -> Sequence[str]:
        """Return the inputs that the tables feed."""
        return tuple(dict.fromkeys(input or name for input in self.tables.values()))

    def needs(self) -> None:
        """Import psycopg and DuckDB.  DuckDB parses the messages."""
        import_psycopg()
        import_duckdb()

    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> OpenSource:
        """Connect and look up the tables.  Without a position, the reader begins with a copy."""
        (only,) = inputs if len(inputs) == 1 else (None,)
        every = [parse_table_name(name, str(input or only)) for name, input in self.tables.items()]
        with translate_errors(f"connect to {format_public_address(self.url)}"):
            connection = connect(self.url, f"the source {self.slot!r}", READS)
        with undo_on_failure(connection.close):
            known = {} if position is None else position["tables"]
            looked = {
                each: look_up_table(connection, each, inputs[each.input], first=each.full_name not in known)
                for each in every
            }
            tables = SlotTables(connection, looked, inputs, position, self.recopy)
            return SlotReader(self, connection, tables, position)


StateName = Literal["reading", "copying", "waiting", "broken"]
"""State of a `SlotReader`.

A reader reads changes from the slot (``reading``), copies tables (``copying``), waits for the commit of its rows
(``waiting``), or has failed to advance the slot (``broken``).
"""
Action = Literal["read changes", "begin a copy", "continue the copy", "wait", "fail"]


@dataclass(frozen=True)
class SlotState:
    """State of a `SlotReader`.

    ``snapshot``: the connection that holds the snapshot of a copy until the commit.  ``rows``: the rows of the copy
    that are still unread.  ``why``: the reason for the state ``broken``.
    """

    name: StateName = "reading"
    snapshot: Any = None
    rows: Iterator[Polled] = field(default_factory=lambda: iter(()))
    why: str = ""


def choose_poll_action(state: StateName, *, has_new_tables: bool, is_behind: bool) -> Action:
    """Choose the action of a poll.

    ``has_new_tables``: whether any table must be copied.  ``is_behind``: whether the copied tables may have unread
    changes from before the opening.

    >>> choose_poll_action("reading", has_new_tables=True, is_behind=True)
    'read changes'
    >>> choose_poll_action("reading", has_new_tables=True, is_behind=False)
    'begin a copy'
    """
    match state:
        case "reading":
            return "begin a copy" if has_new_tables and not is_behind else "read changes"
        case "copying":
            return "continue the copy"
        case "waiting":
            return "wait"
        case "broken":
            return "fail"


class SlotReader(OpenSource):
    """Reader of a slot and of the copies of its tables."""

    def __init__(self, of: PostgresSource, connection: Any, tables: SlotTables, position: SlotPosition | None) -> None:
        self.of, self.connection, self.tables = of, connection, tables
        self.asked = f"read the slot {of.slot!r} of {format_public_address(of.url)}"
        self._own = ReplicationSlot(connection, of.slot, self.asked)
        self._state, self._committed, self._message_size = SlotState(), position, MESSAGE[1]
        with undo_on_failure(self.close), translate_errors(self.asked):
            self._system = read_system_id(connection)
            if position is None:
                self._begin_first_copy()
            else:
                check_position(self.asked, position, of.slot, self._system, self._find_log_end())
                tables.resume(position)
                self.at = parse_lsn(position["lsn"])
                self._own.resume(self.at)
            self._until = self._find_log_end()

    def declared(self, new: Mapping[str, Collection[str]]) -> None:
        """See `OpenSource.declared`."""
        refuse_missing_columns(self.connection, self.tables.active_tables, self.tables.inputs, new)

    def keyed(self, keys: Mapping[str, Sequence[str]], whole: Collection[str]) -> None:
        """See `OpenSource.keyed`.  Each poll checks the keys again, because a user may alter a table."""
        self.tables.keys, self.tables.whole = dict(keys), frozenset(whole)
        with translate_errors(self.asked):
            self.tables.look_up_active_tables()

    @property
    def ended(self) -> bool:
        """Whether a source without ``follow`` has read all changes that were committed before the source was opened."""
        done = self._state.name == "reading" and not self.tables.to_copy
        return done and not self.of.follow and self.at >= self._until

    @property
    def waits(self) -> bool:
        """Whether the epoch should end now, because the reader waits for a commit.

        With ``follow``, the epoch can stay open, because changes can collect while the reader waits.
        """
        return self._state.name == "waiting" and not self.of.follow

    def lag(self) -> int | None:
        """Return the number of log bytes after the position; None during a copy."""
        with suppress(SourceFailed, UnreadableInput), translate_errors(self.asked):
            return max(self._find_log_end() - self.at, 0) if self._state.name != "copying" else None
        return None

    def poll(self, room: int) -> Polled | None:
        """Return a part of a copy, or complete transactions.  Return None while the last rows are not committed."""
        is_behind = bool(self.tables.active_tables) and self.at < self._until
        with translate_errors(self.asked):
            match choose_poll_action(self._state.name, has_new_tables=bool(self.tables.to_copy), is_behind=is_behind):
                case "read changes":
                    found = self._read_changes(room)
                    return found if found is not None or not self.tables.to_copy else self._begin_new_table_copy()
                case "begin a copy":
                    return self._begin_new_table_copy()
                case "continue the copy":
                    return self._copy_next_rows()
                case "wait":
                    return None
                case "fail":
                    raise SourceFailed(
                        self.asked, f"ddflow could not advance it: {self._state.why}", "check the server"
                    )

    def acknowledge(self, position: Any) -> None:
        """Advance the slot to a committed position.  After the first commit, rename the slot to its final name."""
        try:
            with translate_errors(self.asked):
                self._release_snapshot()
                self._own.advance_slot(parse_lsn(position["lsn"]))
            self._state = SlotState()
        except (SourceFailed, UnreadableInput) as error:
            self._state = SlotState("broken", why=error.found)
        warn_of_dropped_columns(self.tables.active_tables, self._committed, position)
        self._committed = position

    def close(self) -> None:
        """Close the connections.  If the first copy was not committed, drop its slot."""
        copying = self._state.snapshot is not None and self._committed is None
        self._release_snapshot()
        self.connection.close()
        if copying:
            with suppress(Exception), connect(self.of.url, self.asked, READS, connect_timeout=3) as again:
                again.execute("select pg_drop_replication_slot(%s)", [self.of.slot + COPYING])

    def _release_snapshot(self) -> None:
        if self._state.snapshot is not None:
            self._state.snapshot.close()
            self._state = replace(self._state, snapshot=None)

    def _find_log_end(self) -> int:
        """Return the end of the flushed log.

        A slot does not see bytes after the end of the flushed log, and a crash can lose these bytes.
        """
        return parse_lsn(self.connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()[0])

    def _build_position(self) -> SlotPosition:
        return build_position(self.at, self.of.slot, self._system, self.tables.copied)

    def _connect_snapshot(self) -> Any:
        """Open the connection that will hold a snapshot, and enter the state ``copying``."""
        holder = connect(self.of.url, self.asked, READS, replication="database")
        self._state = SlotState("copying", holder)
        return holder

    def _begin_first_copy(self) -> None:
        """Create the slot, and begin to copy all tables in its snapshot."""
        began = time()
        self._own.drop_abandoned_slot()
        begins = create_slot(self.connection, self._connect_snapshot(), self._own.copying_name, self.asked)
        self.at, self._state = parse_lsn(begins.lsn), replace(self._state, rows=self._copy_all_tables(begins, began))

    def _copy_all_tables(self, begins: SlotStart, began: float) -> Iterator[Polled]:
        yield from self.tables.copy_tables(self.tables.every, begins)
        self.reached = began

    def _begin_new_table_copy(self) -> Polled:
        """Begin to copy the tables in `SlotTables.to_copy`, and return the first rows."""
        holder = self._connect_snapshot()
        self._state = replace(self._state, rows=self._copy_new_tables(holder))
        return self._copy_next_rows()

    def _copy_new_tables(self, holder: Any) -> Iterator[Polled]:
        """Yield the changes of active tables up to a new snapshot, then all rows of new tables in that snapshot."""
        tables, began = self.tables, time()
        new = {table: tables.look_up_one_table(table) for table in tables.to_copy}
        for table in new:
            refuse_row_level_security(
                f"copy the table {table.full_name} for {table.input!r}", read_catalog_columns(self.connection, table)
            )
        unique = find_key_constraints(self.connection, new, tables.keys)
        with warn_of_recopies(self.asked, {table.full_name: why for table, why in tables.to_copy.items() if why}):
            begins = create_slot(self.connection, holder, self.of.slot + ADDING, self.asked, lasting=False)
        if tables.active_tables:
            found = tables.peek_changes(self._own.called, upto=begins.lsn)
            yield Polled({each.input: found.rows.get(each.input, ()) for each in tables.active_tables}, None)
        yield from tables.copy_tables(tuple(new), begins)
        self.at, self.reached = parse_lsn(begins.lsn), began
        tables.note_copied_tables(new, unique)

    def _copy_next_rows(self) -> Polled:
        if (found := next(self._state.rows, None)) is not None:
            return found
        self._state = replace(self._state, name="waiting")
        return Polled({}, self._build_position(), beside=self.tables.beside)

    def _read_changes(self, room: int) -> Polled | None:
        """Read complete transactions of about ``room`` bytes."""
        began, end, most = time(), self._find_log_end(), max(room // self._message_size, 1)
        if end <= self.at:
            self.reached = began
            return None
        to_copy = len(self.tables.to_copy)
        # If this poll cannot read the whole log, request commit times, because `reached` is then the time of the last
        # message.
        found = self.tables.peek_changes(self._own.called, most=most, timed=end - self.at > room)
        if len(self.tables.to_copy) != to_copy:
            return self._read_changes(room) if self.tables.active_tables else None
        if found.messages:
            self._message_size = max(found.size // found.messages, MESSAGE[0])
        self.reached = began if found.messages < most else (parse_commit_time(found.commit) or self.reached)
        if not found.lsn and self.of.follow and end - self.at <= STILL:
            return None
        self.at = parse_lsn(found.lsn) if found.lsn else end
        self._state = replace(self._state, name="waiting")
        return Polled(found.rows, self._build_position())


class ReplicationSlot:
    """A replication slot.

    ``name``: final name of the slot.  ``called``: current name of the slot.  ``asked``: the request, for messages.


    >>> ReplicationSlot(None, "shop", "read the slot 'shop'").copying_name
    'shop_copying'
    """

    def __init__(self, connection: Any, name: str, asked: str) -> None:
        self.connection, self.name, self.asked, self.called = connection, name, asked, name

    @property
    def copying_name(self) -> str:
        """Name of the slot during the first copy."""
        return self.name + COPYING

    def find_slots(self) -> dict[str, tuple[bool, int, bool]]:
        """Return for each existing slot: whether it is in use, its place in the log, and whether its log is lost."""
        found = self.connection.execute(_SLOTS, [[self.name, self.copying_name]]).fetchall()
        return {name: (used, parse_lsn(at), lost) for name, used, at, lost in found}

    def drop_abandoned_slot(self) -> None:
        """Drop the slot of a crashed copy.  Raises `UnreadableInput` if a slot with the final name exists."""
        slots = self.find_slots()
        if self.name in slots:
            drop = f"select pg_drop_replication_slot('{self.name}')"
            remedy = f"pass another name as slot=; or, if its unread changes are not needed, drop it: {drop}"
            raise UnreadableInput(self.asked, "it exists already, but this state has no position in it", remedy)
        if self.copying_name in slots:
            self.connection.execute("select pg_drop_replication_slot(%s)", [self.copying_name])

    def resume(self, at: int) -> None:
        """Continue after a place in the log.

        Raises `SourceChanged` if the slot is missing, if the server removed the slot's log, or if the slot has advanced
        beyond the place.
        """
        slots = self.find_slots()
        found = slots.get(self.name) or slots.get(self.copying_name)
        remedy = f"the changes since then are lost: {ANEW}"
        if found is None:
            raise SourceChanged(self.asked, "the slot no longer exists", remedy)
        if found[2]:
            drop = f"select pg_drop_replication_slot('{self.name}')"
            raise SourceChanged(self.asked, LOST, f"{remedy}, and drop this slot: {drop}; {RAISE}")
        if found[1] > at:
            said = f"it was advanced to {format_lsn(found[1])}, but the state has read it only up to {format_lsn(at)}"
            again = "open the state again, in case another process committed meanwhile; if the slot is still ahead, "
            raise SourceChanged(self.asked, said, again + remedy)
        self.advance_slot(at)

    def advance_slot(self, to: int) -> None:
        """Advance the slot to a place in the log.

        If the slot still has the name `copying_name`, rename the slot. The rename needs a free slot on the server.
        """
        slots, run = self.find_slots(), self.connection.execute
        try:
            if self.name not in slots:
                run("select pg_copy_logical_replication_slot(%s, %s)", [self.copying_name, self.name])
            if self.copying_name in slots:
                run("select pg_drop_replication_slot(%s)", [self.copying_name])
            self.called = self.name
        except import_psycopg().errors.ConfigurationLimitExceeded:
            if self.called != self.copying_name:
                remedy = "raise max_replication_slots, or drop a slot; until then it keeps that name"
                LOG.warning("%s: no slot is free to rename %s: %s", self.asked, self.copying_name, remedy)
            self.called = self.copying_name
        if self.called not in slots or slots[self.called][1] < to:
            run("select pg_replication_slot_advance(%s, %s)", [self.called, format_lsn(to)])


def create_slot(connection: Any, holder: Any, slot: str, asked: str, *, lasting: bool = True) -> SlotStart:
    """Create a slot on the replication connection ``holder``, which then holds the slot's snapshot.

    ``asked``: the request, for messages.  ``lasting``: whether the slot outlives the connection.  Raises the errors of
    psycopg.
    """
    psycopg = import_psycopg()
    since, now = connection.execute(_NOW).fetchone()
    how = "LOGICAL" if lasting else "TEMPORARY LOGICAL"
    holder.pgconn.send_query(f'CREATE_REPLICATION_SLOT "{slot}" {how} wal2json EXPORT_SNAPSHOT'.encode())
    with _warn_of_open_transactions(connection, asked, now):
        (made,) = holder.wait(psycopg.generators.execute(holder.pgconn))  # waits in Python, so signals interrupt it
    if made.status != psycopg.pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.lookup(made.error_field(psycopg.pq.DiagnosticField.SQLSTATE).decode())(
            made.error_message.decode()
        )
    lsn, snapshot = (made.get_value(0, n).decode() for n in (1, 2))
    return SlotStart(lsn, snapshot, since)


@contextmanager
def _warn_of_open_transactions(connection: Any, asked: str, now: str) -> Iterator[None]:
    """Warn of open transactions older than ``now`` that delay the creation of a slot: after 5 s, then every minute."""
    done = Event()

    def warn() -> None:
        pause = PATIENCE
        while not done.wait(pause):
            pause = 60.0
            with suppress(import_psycopg().Error):  # the creation of the slot will raise the same error
                open_ = ", ".join(each for (each,) in connection.execute(_OPEN, [now]).fetchall())
                remedy = "the copy begins when they end: see pg_stat_activity, or select pg_terminate_backend(PID)"
                LOG.warning("%s: the slot waits for open transactions: %s; %s", asked, open_ or "new ones", remedy)

    thread = Thread(target=warn, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def warn_of_recopies(asked: str, why: Mapping[str, str]) -> Iterator[None]:
    """Log why tables are copied again.

    The function logs the reasons after the ``with`` block has created the slot for the copy.

    If no slot is free, the function raises `SourceFailed`. ddflow then retries, because the user did not ask for the
    copy.
    """
    try:
        yield
    except import_psycopg().errors.ConfigurationLimitExceeded as error:
        if not why:
            raise
        found = f"{str(error).strip().splitlines()[0]}, but copying {', '.join(why)} again needs a slot"
        raise SourceFailed(asked, found, "raise max_replication_slots, or drop a slot") from None
    for table, reason in why.items():
        LOG.warning("%s: %s is copied again: %s", asked, table, reason)
