"""The replication slot of a state, and the first copy of tables in the snapshot with which a slot begins.

Guarantees: a row is in the copy or in the changes of the slot, never in both. During the first copy the slot is called
`<slot>_copying`, so a copy that died is recognised. The slot advances to committed positions only.

>>> OwnSlot(None, "shop", "read the slot 'shop'").copying
'shop_copying'
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ddflow.connectors.api import Beside, Polled
from ddflow.connectors.formats.base import OWN
from ddflow.connectors.formats.messages import POSITION, ROW
from ddflow.connectors.formats.row_columns import parse_sql_type
from ddflow.connectors.postgres.catalog import (
    LOG,
    SourceTable,
    cell,
    columns_of,
    format_lsn,
    literal,
    messages,
    parse_lsn,
    refuse_filtered,
    stream_rows,
)
from ddflow.connectors.postgres.position import ANEW
from ddflow.connectors.postgres.sink import driver
from ddflow.errors import SourceChanged, SourceFailed, UnreadableInput

_LOG: Final = logging.getLogger("ddflow")
COPYING: Final = "_copying"
LONGEST: Final = 63 - len(COPYING)
"""Characters that a name may have."""
_SLOTS: Final = """
    select slot_name, active, confirmed_flush_lsn::text, coalesce(to_jsonb(s) ->> 'wal_status', '') = 'lost'
    from pg_replication_slots s where slot_name = any(%s)"""
LOST: Final = "the server removed the log that the slot had unread"
RAISE: Final = "raise max_slot_wal_keep_size on the server, or -1 for no limit"


class OwnSlot:
    """The slot that is to be called ``name``.  ``called``: its name now.  ``asked``: for messages."""

    def __init__(self, connection: Any, name: str, asked: str) -> None:
        self.connection, self.name, self.asked, self.called = connection, name, asked, name

    @property
    def copying(self) -> str:
        """Its name while rows are copied."""
        return self.name + COPYING

    def there(self) -> dict[str, tuple[bool, int, bool]]:
        """Return, by name, the existing slots: whether it is in use, its position, and whether its log is lost."""
        found = self.connection.execute(_SLOTS, [[self.name, self.copying]]).fetchall()
        return {name: (used, parse_lsn(at), lost) for name, used, at, lost in found}

    def make_way(self) -> None:
        """Drop the slot of a dead copy.  Raises `UnreadableInput` if a slot has the name."""
        slots = self.there()
        if self.name in slots:
            drop = f"select pg_drop_replication_slot('{self.name}')"
            remedy = f"name another with slot=; or, where nobody needs what it has unread, drop it: {drop}"
            raise UnreadableInput(self.asked, "it is there, and this state has no position of it", remedy)
        if self.copying in slots:
            self.connection.execute("select pg_drop_replication_slot(%s)", [self.copying])

    def resume(self, at: int) -> None:
        """Continue after a place.  Raises `SourceChanged` if the slot is missing, lost its log, or was moved."""
        slots = self.there()
        found = slots.get(self.name) or slots.get(self.copying)
        remedy = f"what changed since then is lost here: {ANEW}"
        if found is None:
            raise SourceChanged(self.asked, "there is no such slot any more", remedy)
        if found[2]:
            drop = f"select pg_drop_replication_slot('{self.name}')"
            raise SourceChanged(self.asked, LOST, f"{remedy}, and drop this slot: {drop}; {RAISE}")
        if found[1] > at:
            said = f"it was moved on to {format_lsn(found[1])}, and the state has what came before {format_lsn(at)}"
            raise SourceChanged(self.asked, said, remedy)
        self.move_on(at)

    def move_on(self, to: int) -> None:
        """Give the slot its name, if it lacks it and there is room for a copy, and move it on."""
        slots, run = self.there(), self.connection.execute
        try:
            if self.name not in slots:
                run("select pg_copy_logical_replication_slot(%s, %s)", [self.copying, self.name])
            if self.copying in slots:
                run("select pg_drop_replication_slot(%s)", [self.copying])
            self.called = self.name
        except driver().errors.ConfigurationLimitExceeded:
            if self.called != self.copying:
                remedy = "raise max_replication_slots, or drop a slot; it goes on under that name until then"
                _LOG.warning("%s: no slot is free to rename %s: %s", self.asked, self.copying, remedy)
            self.called = self.copying
        if self.called not in slots or slots[self.called][1] < to:
            run("select pg_replication_slot_advance(%s, %s)", [self.called, format_lsn(to)])


LEFT: Final = "a run before this one was to do so"
"""Why a table is copied again of which a position says that."""
PATIENCE: Final = 5.0
"""Seconds until a warning says why a slot waits."""
_NOW: Final = (
    "select pg_current_wal_insert_lsn()::text, (txid_snapshot_xmax(txid_current_snapshot()) % (1::bigint << 32))::text"
)
_OPEN: Final = """
    select distinct coalesce('PID ' || l.pid, 'prepared transaction ' || quote_literal(p.gid))
    from pg_locks l left join pg_prepared_xacts p on p.transaction = l.transactionid
    where l.locktype = 'transactionid' and l.granted and age(l.transactionid) >= age(%s::xid)"""
"""Transactions that had begun before another one, of all databases."""


class Begun(NamedTuple):
    """Where a slot begins, the name of the snapshot of then, and a place in the log that no change of it is before."""

    lsn: str
    snapshot: str
    since: str


def begin_slot(connection: Any, holder: Any, slot: str, asked: str, *, lasting: bool = True) -> Begun:
    """Make a slot on a connection of replication, which then holds its snapshot.  Raises what psycopg raises.

    ``asked``: for messages.  ``lasting``: whether it stays when that connection ends.
    """
    psycopg = driver()
    since, now = connection.execute(_NOW).fetchone()
    how = "LOGICAL" if lasting else "TEMPORARY LOGICAL"
    holder.pgconn.send_query(f'CREATE_REPLICATION_SLOT "{slot}" {how} wal2json EXPORT_SNAPSHOT'.encode())
    with _warn_of_waits(connection, asked, now):
        (made,) = holder.wait(psycopg.generators.execute(holder.pgconn))  # in Python, where signals are heard
    if made.status != psycopg.pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.lookup(made.error_field(psycopg.pq.DiagnosticField.SQLSTATE).decode())(
            made.error_message.decode()
        )
    lsn, snapshot = (made.get_value(0, n).decode() for n in (1, 2))
    return Begun(lsn, snapshot, since)


@contextmanager
def _warn_of_waits(connection: Any, asked: str, now: str) -> Iterator[None]:
    """Warn of open transactions, begun before ``now``, that delay a slot: after 5 s, then once a minute."""
    done = Event()

    def warn() -> None:
        pause = PATIENCE
        while not done.wait(pause):
            pause = 60.0
            with suppress(driver().Error):  # whatever it is, the slot meets it, too
                open_ = ", ".join(each for (each,) in connection.execute(_OPEN, [now]).fetchall())
                remedy = "a copy begins when they end: see pg_stat_activity, or select pg_terminate_backend(PID)"
                LOG.warning("%s: the slot waits for open transactions: %s; %s", asked, open_ or "new ones", remedy)

    thread = Thread(target=warn, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def warn_of_copies(asked: str, why: Mapping[str, str]) -> Iterator[None]:
    """Log why tables are copied again, once the copy has a slot.

    Raises `SourceFailed` while no slot is free, because the user did not ask for the copy.
    """
    try:
        yield
    except driver().errors.ConfigurationLimitExceeded as error:
        if not why:
            raise
        found = f"{str(error).strip().splitlines()[0]}, and {', '.join(why)} is to be copied again, which takes one"
        raise SourceFailed(asked, found, "raise max_replication_slots, or drop a slot") from None
    for table, reason in why.items():
        LOG.warning("%s: %s is copied again: %s", asked, table, reason)


def copies(
    connection: Any,
    tables: Sequence[SourceTable],
    inputs: Mapping[str, pa.Schema],
    begins: Begun,
    beside: dict[str, dict[str, Beside]],
    held: Callable[[SourceTable], Callable[[pa.Array], pa.Array]],
    whole: Collection[str] = (),
) -> Iterator[Polled]:
    """Read all rows of tables, in a transaction.  O(bytes).

    ``beside``: gets, by input, the columns that are not read.  ``held``: a table's `Numbers.replace_unholdable`.
    ``whole``: inputs that get their rows at once, as their full contents.
    """
    run = connection.execute
    run("begin isolation level repeatable read read only")
    run(f"set transaction snapshot '{begins.snapshot}'")
    for table in tables:
        own = [name for name in inputs[table.input].names if name not in OWN]
        found = columns_of(connection, table)
        refuse_filtered(f"copy the table {table.full} for {table.input!r}", found)
        kinds = {row.name: row.kind for row in found}
        others = {name: Beside(parse_sql_type(kind), table.quoted) for name, kind in kinds.items() if name not in own}
        beside[table.input] = {**beside.get(table.input, {}), **others}
        precise = {row.name: row.precise for row in found}
        cells = ", ".join(cell(name, kinds.get(name), precise.get(name, "")) for name in own)
        text = f"{literal(head(table, begins.since))} || array_to_string(array[{cells}], ',') || ']}}'"
        made = held(table)
        rows = stream_rows(connection, f"select '', {text} from only {table.quoted}")
        batches = (pa.record_batch({"value": made(messages(some.column("data")).column(0))}) for some in rows)
        if table.input in whole:
            every = [messages(pa.chunked_array([pa.array([], pa.string())])), *batches]
            orders = {table.input: {POSITION: parse_lsn(begins.since), ROW: 0}}
            yield Polled({table.input: every}, None, frozenset([table.input]), dict(beside), orders=orders)
        for batch in batches:
            yield Polled({table.input: [batch]}, None, beside=dict(beside))
    run("commit")


def head(table: SourceTable, lsn: str) -> str:
    """Return how each message of a copy begins.

    >>> head(SourceTable("public", "orders", "orders"), "0/16B3700")
    '{"action":"I","lsn":"0/16B3700","schema":"public","table":"orders","columns":['
    """
    said = {"action": "I", "lsn": lsn, "schema": table.schema, "table": table.name, "columns": []}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).removesuffix("]}")
