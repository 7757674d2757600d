"""Write an output to a table of Postgres.

An epoch is one transaction, in which rows are inserted by COPY, updated in place, and deleted by arrays of keys.
Postgres uses an index only for ``=``, which does not match null. Separate statements therefore handle keys with a null.
No repr, message or manifest shows a password.

>>> PostgresSink("postgresql://me:secret@db/shop", "by_city").target
'postgresql://db:5432/shop#by_city'
>>> find_postgres_type(pa.decimal128(9,
...     2)), find_postgres_type(pa.list_(pa.int64())), find_postgres_type(pa.timestamp("ns"))
('numeric(9,2)', 'bigint[]', None)
"""

import io
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.types as pat

from ddflow.columns.names import did_you_mean, quote_name
from ddflow.connectors.api import (
    BREAKS,
    Mode,
    OpenSink,
    SinkNotLetIn,
    TableChanges,
    TableShape,
    TableSink,
    TargetRecord,
)
from ddflow.connectors.sql_table import InPlaceTable, KeyMatch, cast_to_text, refuse_records_table
from ddflow.connectors.table_shape import build_sink_refusal
from ddflow.errors import SinkFailed, SinkRefused, SpecError, import_extra
from ddflow.storage.address import check_percent_encoding
from ddflow.storage.closing import undo_on_failure

__all__ = ["PostgresSink", "find_postgres_type"]

AT_ONCE: Final = 1 << 20
"""Largest number of keys in one statement."""
UNSET: Final = (("lock_timeout", "0", "10s"), ("synchronous_commit", "off", "local"))
"""Settings of a session that writes, as triples: the name, the value to replace, and the new value.

A write that has waited 10 s for a lock fails, and ddflow retries the write. An acknowledged commit survives a crash of
the server.
"""
NETWORK: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Options of libpq that limit the time to notice a lost server.

The address and the environment override the options.
"""
HEARD: Final = 2.0
"""Seconds to wait for a server to accept a cancellation."""
SESSION: Final = {
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "row_security": "off",  # makes Postgres raise an error instead of hiding rows
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""Settings of every session: fixed text formats, and no time limits.

Session settings override settings of the role and the database.
"""
READS: Final = {"lock_timeout": "0", "search_path": "public", "client_min_messages": "warning"}
"""Further settings of a session that reads.

The creation of a slot may wait for open transactions for a long time, so a session that reads has no lock timeout.
wal2json reports omitted changes as warnings, so warnings must reach the client.
"""
NOT_DISTINCT: Final = 15_00_00
"""First server version with unique indexes that treat nulls as equal."""
LOCKED: Final = (
    (r'FATAL: +(role|database) "[^"]*" does not exist', "fix the address"),
    (r'FATAL: +role "[^"]*" is not permitted to log in', "allow it: alter role ... login"),
    (r"FATAL: .*authentication failed", "fix the user or the password: PGPASSWORD, or ~/.pgpass"),
    (r"no password supplied", "set the password: PGPASSWORD, or ~/.pgpass"),
    (r"FATAL: +no pg_hba.conf entry", "allow the user: add a line to the server's pg_hba.conf"),
    (r"FATAL: +must be superuser or replication role", "allow it: alter role ... replication"),
)
"""Patterns of error texts for a rejected login, and the remedy for each pattern."""
TYPES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.uint8(): "smallint",
    pa.int16(): "smallint",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "bigint",
    pa.int64(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
    pa.date64(): "date",
}


def import_psycopg() -> Any:
    """Import psycopg.  Raises `MissingExtra`."""
    return import_extra("connect to Postgres", "postgres", "psycopg")


def find_login_remedy(said: str) -> str | None:
    """Return the remedy for a rejected login; None for a failure that a retry may solve.

    The error of a rejected login has no SQLSTATE, so this function matches the error text. Only texts in English match.

    >>> texts = 'role "me" does not exist', "the database system is starting up"
    >>> [find_login_remedy(f"FATAL:  {text}") for text in texts]
    ['fix the address', None]
    """
    return next((remedy for text, remedy in LOCKED if re.search(text, said)), None)


def parse_address(url: str, what: str) -> dict[str, Any]:
    """Split an address into its parts.  ``what``: a description of the request for error messages. Raises `SpecError`.

    The error message does not show the address.
    """
    psycopg = import_psycopg()
    check_percent_encoding(url, what)
    try:
        return dict(psycopg.conninfo.conninfo_to_dict(url))
    except psycopg.Error as error:
        said = str(error).strip()
    # The error is raised outside the except block, because the driver's error contains the address.
    found, remedy = "its address is not a Postgres address", "write postgresql://USER@HOST:PORT/DATABASE"
    option = re.fullmatch(r'invalid URI query parameter: "(\w+)"', said)
    known = ["slot", "recopy", *(each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults())]
    # A text that resembles no option may be part of a password with a slash, so the message must not show the text.
    if option is not None and (near := get_close_matches(option[1], known, 3, 0.75)):
        found, remedy = f"its address has an unknown option {option[1]!r}", did_you_mean(option[1], near, "options")
    raise SpecError(what, found, remedy)


def connect(url: str, what: str, settings: Mapping[str, str] = MappingProxyType({}), **how: Any) -> Any:
    """Open a session with ``settings`` and `SESSION`.  Settings that the server does not know are left out.

    ``how``: options for psycopg.  Raises `SpecError` and the errors of psycopg.
    """
    given = {name: value for name, value in NETWORK.items() if f"PG{name.upper()}" not in os.environ}
    connection = import_psycopg().connect(**{**given, **parse_address(url, what), **how}, autocommit=True)
    if (breaks := BREAKS.get()) is not None:
        breaks.append(partial(abort_connection, connection))
    with undo_on_failure(connection.close):
        # Use one statement without parameters, because a replication connection accepts nothing else.
        pairs = ", ".join(f"('{name}', '{value}')" for name, value in {**SESSION, **settings}.items())
        known = f"(values {pairs}) wanted(name, value) join pg_catalog.pg_settings s on lower(s.name) = wanted.name"
        connection.execute(f"select pg_catalog.set_config(wanted.name, wanted.value, false) from {known}")
    return connection


def abort_connection(connection: Any) -> None:
    """Make the current statement of a connection fail at once.

    The function asks the server to cancel the statement. Because the server may be unreachable, the function also shuts
    the socket down. The second check of `closed` protects another connection, which may have got the same file
    descriptor in the meantime.
    """
    if not connection.closed:
        with suppress(Exception):
            connection.cancel_safe(timeout=HEARD)
        with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as own:
            if not connection.closed:
                own.shutdown(socket.SHUT_RDWR)


def format_public_address(url: str) -> str:
    """Format an address without user and password."""
    of = parse_address(url, "connect to Postgres")
    return f"postgresql://{of.get('host', 'localhost')}:{of.get('port', 5432)}/{of.get('dbname', '')}"


def find_postgres_type(kind: pa.DataType) -> str | None:
    """Return the Postgres type for an Arrow type, as the catalog spells it; None if values would lose data."""
    if pat.is_list(kind) or pat.is_large_list(kind):
        inner = None if pat.is_nested(kind.value_type) else find_postgres_type(kind.value_type)
        return None if inner is None else f"{inner}[]"
    if pat.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})" if kind.scale >= 0 else None
    if pat.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp without time zone" if kind.tz is None else "timestamp with time zone"
    if pat.is_time(kind) and kind.unit != "ns":
        return "time without time zone"
    if pat.is_string(kind) or pat.is_large_string(kind):
        return "text"
    return "bytea" if pat.is_binary(kind) or pat.is_large_binary(kind) else TYPES.get(kind)


@dataclass(frozen=True)
class PostgresSink(TableSink):
    """See `dd.sinks.postgres`."""

    url: str = field(repr=False)
    table: str
    mode: Mode = "upsert"
    schema: str | None = None
    kind: ClassVar[str] = "postgres"

    def __post_init__(self) -> None:
        refuse_records_table(self.table)

    @property
    def target(self) -> str:
        """Host, database and table, without user and password."""
        return (
            f"{format_public_address(self.url)}#{self.table if self.schema is None else f'{self.schema}.{self.table}'}"
        )

    def needs(self) -> None:
        """Import psycopg."""
        import_psycopg()

    def open(self, shape: TableShape) -> OpenSink:
        """Connect, and choose the schema."""
        psycopg = import_psycopg()
        try:
            connection = connect(self.url, f"the sink of {self.table!r}")
            with undo_on_failure(connection.close):
                for name, unset, value in UNSET:
                    set_ = f"select set_config('{name}', '{value}', false)"
                    connection.execute(f"{set_} where current_setting('{name}') = '{unset}'")
                if self.schema is not None:
                    connection.execute(f"set search_path to {quote_name(self.schema)}")
                    if connection.execute("select current_schema()").fetchone() == (None,):
                        found, remedy = (
                            f"there is no schema {self.schema!r}",
                            f"create schema {quote_name(self.schema)}",
                        )
                        raise SinkRefused(f"write to {self.target}", found, remedy)
        except psycopg.Error as error:
            asked, said = f"connect to {self.target}", str(error).strip()
            if (locked := find_login_remedy(said)) is not None:
                raise SinkNotLetIn(asked, said, locked) from None
            raise SinkFailed(asked, said, "check the server") from None
        return PostgresTable(connection, self.table, shape, self.target)


class PostgresTable(InPlaceTable):
    """A table of Postgres."""

    staged = " on commit delete rows"
    index = ""

    def __init__(self, connection: Any, table: str, shape: TableShape, place: str) -> None:
        of = import_psycopg()
        type(self).failures = (of.Error,)
        type(self).clashes = (of.errors.UniqueViolation, of.errors.ExclusionViolation)
        type(self).refusals = (of.IntegrityError, of.ProgrammingError, of.DataError, of.NotSupportedError)
        super().__init__(connection, table, shape, place)
        self.unique = " nulls not distinct" if connection.info.server_version >= NOT_DISTINCT else None

    def holds(self) -> None:
        """See `SqlTable.holds`.

        Also refuse long names: Postgres cuts a long name, so the next epoch would not find the column or table.
        """
        super().holds()
        with self.translate_errors("ask"):
            names = [self.table, *self.shape.schema.names]
            cut = self.execute("select n from unnest(?::text[]) n where n::name::text <> n", [names])
        if cut:
            found = f"a name in Postgres has at most 63 bytes, but {cut[0][0]!r} is longer"
            raise build_sink_refusal(
                self.shape, self.place, found, "rename it: project the column, or use another table"
            )

    def prepare(self) -> None:
        """See `SqlTable.prepare`."""
        self.holds()
        super().prepare()

    def execute(self, text: str, given: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """See `SqlTable.execute`.  A statement with parameters contains no names that a user chose."""
        found = (
            self.connection.execute(text.replace("?", "%s"), list(given)) if given else self.connection.execute(text)
        )
        return list(found.fetchall()) if found.description else []

    def refusal_remedy(self, error: Exception) -> str:
        """See `SqlTable.refusal_remedy`."""
        if isinstance(error, import_psycopg().errors.InsufficientPrivilege):
            return (
                "allow the role: grant select, insert, update, delete on the table, or create on its schema, or "
                "temporary on the database, to ...; or, under row level security: alter role ... bypassrls"
            )
        if isinstance(error, self.clashes):
            return "check the constraint; if rows exchange its values, make it deferrable initially deferred"
        return super().refusal_remedy(error)

    def failure_remedy(self, error: Exception) -> str:
        """See `SqlTable.failure_remedy`."""
        if isinstance(error, import_psycopg().errors.LockNotAvailable):
            return "another session has locked the table: find it with pg_locks and pg_blocking_pids()"
        return super().failure_remedy(error)

    def find_sql_type(self, kind: pa.DataType) -> str | None:
        """See `find_postgres_type`."""
        return find_postgres_type(kind)

    def read_column_types(self, table: str) -> dict[str, str]:
        """Read the columns from the catalog."""
        found = self.execute(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute "
            "where attrelid = to_regclass(?) and attnum > 0 and not attisdropped order by attnum",
            [quote_name(table)],
        )
        return dict(found)

    def insert_rows(self, table: str, rows: pa.Table) -> None:
        """Insert rows by COPY, as CSV.  Null is an empty cell without quotes; all other cells have quotes."""
        names = ", ".join(map(quote_name, rows.schema.names))
        texts = pa.table(
            [_to_copy_text(column) for column in rows.columns], names=[str(at) for at in range(rows.num_columns)]
        )
        options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
        with self.connection.cursor().copy(f"copy {quote_name(table)} ({names}) from stdin (format csv)") as copy:
            for batch in texts.to_batches(max_chunksize=10_000):
                out = io.BytesIO()
                csv.write_csv(batch, out, options)
                copy.write(out.getvalue())

    def delete_keys(self, table: str, keys: pa.Table) -> None:
        """Delete the rows with the given keys.

        The keys are passed as arrays, so that the query plan fits the number of keys.
        """
        null = pa.array([False] * keys.num_rows)
        for column in keys.columns:
            null = pc.or_(null, pc.is_null(column))
        names = [quote_name(name).replace("%", "%%") for name in keys.schema.names]
        kinds = [find_postgres_type(kind) for kind in keys.schema.types]
        of = f"delete from {quote_name(table).replace('%', '%%')} t"
        for some, same in ((keys.filter(pc.invert(null)), "="), (keys.filter(null), "is not distinct from")):
            made = (f"g.c{at}::{kind}" for at, kind in enumerate(kinds))
            where = " and ".join(f"t.{name} {same} {cell}" for name, cell in zip(names, made, strict=True))
            columns = ", ".join(f"c{at}" for at in range(len(names)))
            text = f"{of} using unnest({', '.join('%s::text[]' for _ in names)}) as g({columns}) where {where}"
            if same == "=" and len(names) == 1 and not str(kinds[0]).endswith("[]"):
                text = f"{of} where t.{names[0]} = any(%s::{kinds[0]}[])"
            for part in some.to_batches(max_chunksize=AT_ONCE):
                # A prepared statement would reuse a plan that was made for a different number of keys.
                self.connection.execute(
                    text, [_format_column_as_array(column) for column in part.columns], prepare=False
                )

    def execute_and_count(self, text: str) -> int:
        """See `InPlaceTable.execute_and_count`.

        The statement is not prepared, because a prepared statement would reuse a plan that was made for a different
        number of rows.
        """
        return int(self.connection.execute(text, prepare=False).rowcount)

    def build_key_matches(self, keys: pa.Table) -> Sequence[KeyMatch]:
        """Compare keys without null by ``=``, for which Postgres uses an index.

        Compare keys with null by another condition.
        """
        names = [quote_name(name) for name in keys.schema.names]
        same, alike = (
            " and ".join(f"t.{name} {each} g.{name}" for name in names) or "true"
            for each in ("=", "is not distinct from")
        )
        null = " or ".join(f"g.{name} is null" for name in names) or "false"
        found = [KeyMatch(f"not ({null})", same)]
        return [*found, KeyMatch(f"({null})", alike)] if any(column.null_count for column in keys.columns) else found

    def is_referenced(self) -> bool:
        """Return whether a foreign key refers to the table."""
        asked = "select 1 from pg_constraint where contype = 'f' and confrelid = to_regclass(?) limit 1"
        return bool(self.execute(asked, [quote_name(self.table)]))

    def write(self, changes: TableChanges, now: TargetRecord, before: TargetRecord | None) -> None:
        """Write an epoch.

        After the first epoch, run ``analyze`` on the key, so that the server does not scan the whole table.
        """
        super().write(changes, now, before)
        if before is None and self.shape.key:
            with self.translate_errors("analyze"):
                self.execute(f"analyze {quote_name(self.table)} ({', '.join(map(quote_name, self.shape.key))})")

    def cancel(self) -> None:
        """See `abort_connection`."""
        abort_connection(self.connection)

    def convert_to_array(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """See `InPlaceTable.convert_to_array`."""
        if kind == pa.uint64():
            values = [None if value is None else int(value) for value in values]
        return pa.array(values, kind)


def _format_column_as_array(column: pa.Array) -> str:
    """Format a column as the text of a Postgres array."""
    texts = _to_copy_text(pa.chunked_array([column])).combine_chunks().cast(pa.large_string())
    for each in ("\\", '"'):
        texts = pc.replace_substring(texts, each, f"\\{each}")
    quote, none = (pa.scalar(each, pa.large_string()) for each in ('"', ""))
    cells: Any = pc.fill_null(pc.binary_join_element_wise(quote, texts, quote, none), "NULL")
    return "{" + ",".join(cells.to_pylist()) + "}"


def _to_copy_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to text for COPY."""
    if (form := _find_formatter(column.type)) is not None:
        texts = [None if each is None else form(each) for each in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    return column if find_postgres_type(column.type) == "text" else cast_to_text(column)


def _find_formatter(kind: pa.DataType) -> Callable[[Any], str] | None:
    """Return the function that formats values of a type in Python; None if Arrow can format such values."""
    if pat.is_list(kind) or pat.is_large_list(kind):
        return partial(_format_array, form=_find_formatter(kind.value_type) or str)
    return (lambda value: "\\x" + value.hex()) if find_postgres_type(kind) == "bytea" else None


def _format_array(values: Sequence[Any], form: Callable[[Any], str]) -> str:
    """Format a list as the text of a Postgres array."""
    cells = (form(each).replace("\\", "\\\\").replace('"', '\\"') if each is not None else None for each in values)
    return "{" + ",".join("NULL" if each is None else f'"{each}"' for each in cells) + "}"
