"""The first copy of tables of Postgres: a slot is made, and what its snapshot shows is read as messages of wal2json.

Invariant: a snapshot is that of the place where its slot begins, so a row is in the copy or in the slot's changes, and
never in both. It lives as long as the connection that made it. All rows of a copy say that they were inserted where the
log ended before the slot was asked for: a transaction that commits behind the slot's beginning may have written before
it, but not before that, and its changes are newer than the copy.

>>> head(SourceTable("public", "orders", "orders"), "0/16B3700")
'{"action":"I","lsn":"0/16B3700","schema":"public","table":"orders","columns":['
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ddflow.connectors.attached import Beside, Polled
from ddflow.connectors.formats.base import OWN
from ddflow.connectors.formats.positions import POSITION, ROW
from ddflow.connectors.formats.sql_types import of_sql
from ddflow.connectors.postgres import driver
from ddflow.connectors.postgres_catalog import LOG, SourceTable, cell, columns_of, literal, refuse_filtered
from ddflow.connectors.postgres_stream import messages, place, streamed
from ddflow.errors import SourceFailed

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


def begun(connection: Any, holder: Any, slot: str, asked: str, *, lasting: bool = True) -> Begun:
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
def again(asked: str, why: Mapping[str, str]) -> Iterator[None]:
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

    ``beside``: gets, by input, the columns that are not read.  ``held``: a table's `Numbers.held`.  ``whole``: inputs
    that get their rows at once, as their full contents.
    """
    run = connection.execute
    run("begin isolation level repeatable read read only")
    run(f"set transaction snapshot '{begins.snapshot}'")
    for table in tables:
        own = [name for name in inputs[table.input].names if name not in OWN]
        found = columns_of(connection, table)
        refuse_filtered(f"copy the table {table.full} for {table.input!r}", found)
        kinds = {row.name: row.kind for row in found}
        others = {name: Beside(of_sql(kind), table.quoted) for name, kind in kinds.items() if name not in own}
        beside[table.input] = {**beside.get(table.input, {}), **others}
        precise = {row.name: row.precise for row in found}
        cells = ", ".join(cell(name, kinds.get(name), precise.get(name, "")) for name in own)
        text = f"{literal(head(table, begins.since))} || array_to_string(array[{cells}], ',') || ']}}'"
        made = held(table)
        rows = streamed(connection, f"select '', {text} from only {table.quoted}")
        batches = (pa.record_batch({"value": made(messages(some.column("data")).column(0))}) for some in rows)
        if table.input in whole:
            every = [messages(pa.chunked_array([pa.array([], pa.string())])), *batches]
            orders = {table.input: {POSITION: place(begins.since), ROW: 0}}
            yield Polled({table.input: every}, None, frozenset([table.input]), dict(beside), orders=orders)
        for batch in batches:
            yield Polled({table.input: [batch]}, None, beside=dict(beside))
    run("commit")


def head(table: SourceTable, lsn: str) -> str:
    """Return how each message of a copy begins."""
    said = {"action": "I", "lsn": lsn, "schema": table.schema, "table": table.name, "columns": []}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).removesuffix("]}")
