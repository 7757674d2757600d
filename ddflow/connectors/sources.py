"""Declare the sources for `ddflow.Engine.run`: the functions of ``dd.sources``.

Each function returns a declaration. A declaration opens no connection, can be copied, and shows no credentials. The
code of a source is in a file that has the name of the source, or in ``source.py`` of a folder with that name; for
`files`, in ``landing/``. ``api.py`` defines the protocol of sources. ddflow imports the library of a source when it
opens the source.

>>> files("landing/*.csv").kind
'files'
>>> find_position_error("postgres", {"lsn": 7})
'Expected `str`, got `int` - at `$.lsn`'
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from os import PathLike, fspath
from typing import Any

from msgspec import ValidationError, convert

from ddflow.connectors.api import Source
from ddflow.connectors.delta.source import DeltaSource
from ddflow.connectors.files.file_path import build_dialect
from ddflow.connectors.formats.routes import Others
from ddflow.connectors.kafka.source import KafkaTopicSource
from ddflow.connectors.landing.source import LandingSource
from ddflow.connectors.postgres.source import PostgresSource
from ddflow.connectors.sqlite import SQLiteSource
from ddflow.errors import shorten
from ddflow.time import parse_seconds

__all__ = ["Source", "delta", "duckdb", "files", "kafka", "postgres", "sqlite"]


def files(
    pattern: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    follow: bool = False,
    settle: str = "1s",
    lines: bool = False,
    tables: Mapping[str, str] | None = None,
    others: Others = "error",
    full: bool = False,
) -> Source:
    """Read files that land in a folder or in S3: Parquet, CSV, JSON lines or Arrow.

    Parameters
    ----------
    pattern : str or path, or a sequence of these
        A file, a folder, or a pattern such as ``"landing/*.csv"`` or ``"s3://bucket/landing/**/*.json.gz"``.  The
        ending of a file's name determines its format.  The credentials of a bucket come from the environment.  A
        `ddflow.FilePath` declares the format of the files and the form of their text.  Several patterns must be on one
        machine or in one bucket.  Each pattern may have its own options.  A file that matches several patterns belongs
        to the first one.
    follow : bool
        Whether to wait for later files.  By default the source ends after the existing files.
    settle : str
        With ``follow``: how long a file must stay unchanged before ddflow reads it.  Objects in S3 need no wait.
    lines : bool
        Whether each line is a message, for an input with ``format=``.  Rows have the columns ``value`` and ``offset``.
    tables, others
        The same as in `kafka`, if lines are messages of several tables.
    full : bool
        Whether each file holds the full contents of the input, so that keys without a row are deleted, like with
        `replace`.  By default rows are events.  A full file without rows is an error.  To stop at a truncated file, use
        the option ``max_absent=`` of `run`.

    Returns
    -------
    Source
        A declaration to pass in ``sources=``.

    Raises
    ------
    SpecError
        For an address outside S3, an invalid ``settle``, ``tables`` without ``lines``, ``full`` or a
        `ddflow.FilePath` with ``lines``, no pattern, and patterns on several machines or in several buckets.

    Notes
    -----
    ddflow reads files in the order of their paths.  ddflow reads a late file even if its path sorts before the paths of
    files that were already read.  A full file that arrives late raises `SourceChanged`, so put the day into the names
    of full files.  ddflow reads full files into memory.  A file that changes after ddflow read it raises
    `SourceChanged`. The position in every manifest takes about 40 bytes for each existing file, so move old files away.

    Examples
    --------
    >>> files("landing/*.parquet", follow=True).kind
    'files'
    >>> import ddflow as dd
    >>> shops = files([dd.FilePath("a/*.csv", delimiter=";"), dd.FilePath("b/*.tsv", rename={"ID": "id"})])
    """
    several = [pattern] if isinstance(pattern, str | PathLike) else pattern
    patterns = tuple((fspath(each), build_dialect(each)) for each in several)
    return LandingSource(patterns, follow, parse_seconds(settle, "settle="), lines, tables, others, full)


def sqlite(path: str | PathLike[str], table: str, *, follow: bool = False) -> Source:
    """Read a table of an SQLite file as the full contents of an input, again after each change of the file.

    Parameters
    ----------
    path : str or path
        The file.
    table : str
        The name of the table, or a query in parentheses.  A state must keep the name of its table.  A query may change;
        ddflow then reads the new query.
    follow : bool
        Whether to wait for changes of the file.

    Returns
    -------
    Source
        A declaration to pass in ``sources=``.

    Examples
    --------
    >>> sqlite("shop.db", "orders").kind
    'sqlite'
    """
    return SQLiteSource(fspath(path), table, follow)


def duckdb(path: str | PathLike[str], table: str, *, follow: bool = False) -> Source:
    """Read a table of a DuckDB file as the full contents of an input, again after each change of the file.

    Parameters
    ----------
    path, table, follow
        The same as in `sqlite`.

    Returns
    -------
    Source
        A declaration to pass in ``sources=``.

    Examples
    --------
    >>> duckdb("shop.duckdb", "orders").kind
    'duckdb'
    """
    from ddflow.connectors.duckdb import DuckDBSource

    return DuckDBSource(fspath(path), table, follow)


def postgres(
    url: str, tables: str | Mapping[str, str], *, slot: str = "ddflow", follow: bool = False, recopy: bool = True
) -> Source:
    """Read tables of Postgres: a first copy, then every change from a slot.  Needs the extra ``postgres``.

    Parameters
    ----------
    url : str
        An address of libpq, ``postgresql://user@host:port/database``.  Set the password in ``PGPASSFILE`` or
        ``PGPASSWORD``.  The address may also contain the password, which ddflow never shows or stores.  The role needs
        ``replication`` and ``select``.
    tables : str or mapping of str to str
        A table, ``"public.orders"``, or a mapping from each table to its input.  A single table feeds the input that
        you attach the source as.  Quote a name with a dot: ``'"my.shop"."orders"'``.  Declare the inputs with
        ``format=dd.formats.wal2json()``, and with ``unavailable=True`` if values may be large.  The key of an input
        must be the columns of the table's replica identity.  If the replica identity is full, the key must contain the
        columns of a unique index.
    slot : str
        The name of the slot: lower-case letters, digits and ``_``.  ddflow creates the slot with the first copy.  Each
        state needs a separate slot.
    follow : bool
        Whether to wait for later changes.  By default the source ends with the changes committed when it was opened.
    recopy : bool
        Whether to copy a table again, with a warning, if the log lacks changes of its rows.  This happens after ``alter
        column ... type``, or if the table had no key for a while.  With ``False``, ddflow raises `SourceChanged`
        instead.

    Returns
    -------
    Source
        A declaration to pass in ``sources=``.

    Raises
    ------
    SpecError
        For an invalid slot name.

    Notes
    -----
    The server needs ``wal_level=logical`` and the plugin wal2json.  An epoch ends at a commit of Postgres, and contains
    the changes of all tables of the slot up to that commit.  The server keeps the log of a slot until ddflow commits.
    If you no longer use a state, drop the slot of that state: ``select pg_drop_replication_slot('ddflow')``.

    Examples
    --------
    >>> postgres("postgresql://me@db/shop", {"public.orders": "orders", "public.customers": "customers"}).kind
    'postgres'
    """
    return PostgresSource(url, {tables: ""} if isinstance(tables, str) else dict(tables), slot, follow, recopy)


def delta(
    path: str | PathLike[str],
    *,
    start: int | datetime | None = None,
    follow: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Source:
    """Read a table of Delta Lake at one version, then the changes of later versions.  Needs the extra ``delta``.

    Parameters
    ----------
    path : str or path
        The folder or address of the table.
    start : int or datetime, optional
        The version to copy first, if the state has read nothing yet.  A datetime, with a time zone, means the newest
        version at that time.  The default is the newest version.
    follow : bool
        Whether to wait for later versions.  By default the source ends with the newest version when it was opened.
    storage_options : mapping of str to str, optional
        Options for deltalake.  ddflow never shows or stores these options.

    Returns
    -------
    Source
        A declaration to pass in ``sources=``, for an input with ``format=dd.formats.delta_cdf()``, or for an input of
        differences with ``diff=dd.delta_cdf``.

    Raises
    ------
    SpecError
        For an invalid ``start``.  When you attach the source: for an input that takes plain rows.

    Notes
    -----
    Turn the change data feed on: ``delta.enableChangeDataFeed = true``.  Without the change data feed, or if a version
    dropped columns or changed a type, ddflow reads all removed and added files of a version.  ddflow raises
    `SourceChanged` if a version that ddflow has not read was vacuumed, or cleaned from the log.  ddflow refuses tables
    with deletion vectors or mapped columns.

    Examples
    --------
    >>> delta("lake/orders", follow=True).kind
    'delta'
    """
    return DeltaSource(fspath(path), start, follow, dict(storage_options or {}))


def kafka(
    servers: str,
    topic: str,
    *,
    start: str | datetime = "earliest",
    follow: bool = False,
    group: str | None = None,
    tables: Mapping[str, str] | None = None,
    others: Others = "error",
    config: Mapping[str, Any] | None = None,
) -> Source:
    """Read the messages of all partitions of a topic.  Needs the extra ``kafka``.

    Parameters
    ----------
    servers : str
        The brokers, in the form of ``bootstrap.servers``: ``"broker:9092"``.
    topic : str
        The name of the topic.
    start : {"earliest", "latest"} or datetime
        The first message to read, if the state has read nothing of the topic yet.  A datetime means the first message
        that is not older.
    follow : bool
        Whether to wait for later messages.  By default the source ends with the last message when it was opened.
    group : str, optional
        A consumer group to which ddflow commits the offsets after each epoch, so that you can monitor the lag.
    tables : mapping of str to str, optional
        The input of each table, ``{"public.orders": "orders"}``, if the topic has messages of several tables from
        Debezium, Maxwell, Canal or wal2json.
    others : {"error", "ignore"}
        Whether messages of other tables are an error, or ignored.
    config : mapping, optional
        Further settings of librdkafka, such as ``{"security.protocol": "SASL_SSL", "sasl.password": ...}``.  ddflow
        never shows or stores these settings.

    Returns
    -------
    Source
        A declaration to pass in ``sources=``, for an input with ``format=``.

    Raises
    ------
    SpecError
        For an invalid ``start``, ``tables`` or ``others``.

    Notes
    -----
    Messages have the columns ``value``, ``key``, ``topic``, ``partition``, ``offset`` and ``timestamp``.  ddflow reads
    committed messages only.  The position in the state is the next offset of each partition.  ddflow raises
    `SourceChanged` if the topic no longer has that offset.  If a partition is added later, ddflow reads the partition
    from its first message.

    Examples
    --------
    >>> kafka("broker:9092", "orders", follow=True).kind
    'kafka'
    """
    return KafkaTopicSource(servers, topic, start, follow, dict(config or {}), group, tables, others)


def _find_source_class(kind: str) -> type[Source]:
    """Return the source class for a kind, such as "kafka"; `Source` if the kind is unknown."""
    from ddflow.connectors.duckdb import DuckDBSource

    kinds: list[type[Source]] = [
        LandingSource,
        KafkaTopicSource,
        PostgresSource,
        SQLiteSource,
        DuckDBSource,
        DeltaSource,
    ]
    return next((each for each in kinds if each.kind == kind), Source)


def describe_position(kind: str, position: Any) -> str:
    """Describe a position in words that fit the kind of source.  O(size of the position).

    >>> describe_position("delta", {"table": "0", "version": 7, "rows": None}), describe_position("others", [7])
    ('version 7', '[7]')
    """
    return shorten((Source if find_position_error(kind, position) else _find_source_class(kind)).said(position))


def drop_inputs(kind: str, position: Any, inputs: Collection[str]) -> Any:
    """Remove dropped inputs from a position.  ``kind``: the kind of the source.

    >>> drop_inputs("files", [7], ["orders"])
    [7]
    """
    return position if find_position_error(kind, position) else _find_source_class(kind).without(position, inputs)


def describe_event_position(kind: str, place: int) -> int | str:
    """Format the ``_position`` of an event in the notation of a kind of source.

    >>> describe_event_position("postgres", 23803720), describe_event_position("files", 7)
    ('0/16B3748', 7)
    """
    return _find_source_class(kind).placed(place)


def find_position_error(kind: str, position: Any) -> str | None:
    """Return why a position in a manifest is invalid for a kind of source; None if the position is valid.

    O(size of the position).
    """
    try:
        convert(position, _find_source_class(kind).positions)
    except ValidationError as error:
        return shorten(str(error))
    return None
