"""Sources of `ddflow.Engine.run`: ``dd.sources``.

Invariant: what is made here is a declaration. It opens nothing, can be copied, and shows no credentials. Each is
implemented in ``source`` of its folder (files in ``landing``), or in a file of its name; their protocol is in
``api``. A library that one needs is imported when it is opened.

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
    """Read files that land in a folder or in S3: Parquet, CSV, JSON lines, Arrow, by their names.

    Parameters
    ----------
    pattern : str or path, or a sequence of these
        A file, a folder, or a pattern such as ``"landing/*.csv"`` or ``"s3://bucket/landing/**/*.json.gz"``.  Keys of
        a bucket come from the environment.  A `ddflow.FilePath` gives the format of the files and the form of
        their text.  Several patterns must be of one machine or of one bucket; each may have other options.  A file of
        several patterns belongs to the first.
    follow : bool
        Whether to wait for later files.  By default it ends with the files that exist already.
    settle : str
        With ``follow``: how long a file must stay unchanged before it is read; objects need no wait.
    lines : bool
        Whether each line is a message, for an input with ``format=``: columns ``value`` and ``offset``.
    tables, others
        As of `kafka`, if lines are messages of several tables.
    full : bool
        Whether each file holds the full contents, so that a key without a row is deleted, like with `replace`.
        By default rows are events.  A file without rows is an error; ``max_absent=`` of `run` stops at a truncated
        one.

    Returns
    -------
    Source
        For ``sources=``.

    Raises
    ------
    SpecError
        For an address outside S3, an invalid ``settle``, ``tables`` without ``lines``, ``full`` or a
        `ddflow.FilePath` with them, no pattern, and patterns of several places.

    Notes
    -----
    Files are read in the order of their paths.  A late file is read whatever its name; a late full one raises
    `SourceChanged`, so name these by their day.  Full files are read into memory.  A file that changes after it was
    read raises `SourceChanged`.  The position has some 40 bytes for each existing file, in every manifest, so move old
    files away.

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
    """Read a table of an SQLite file as the full contents of an input; read it again when the file changes.

    Parameters
    ----------
    path : str or path
        The file.
    table : str
        Its name, or a query in parentheses.  A state stays with a table; a query may change, and is then read.
    follow : bool
        Whether to wait for changes of the file.

    Returns
    -------
    Source
        For ``sources=``.

    Examples
    --------
    >>> sqlite("shop.db", "orders").kind
    'sqlite'
    """
    return SQLiteSource(fspath(path), table, follow)


def duckdb(path: str | PathLike[str], table: str, *, follow: bool = False) -> Source:
    """Read a table of a DuckDB file as the full contents of an input; read it again when the file changes.

    Parameters
    ----------
    path, table, follow
        As of `sqlite`.

    Returns
    -------
    Source
        For ``sources=``.

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
        As libpq takes it, ``postgresql://user@host:port/database``.  Give the password in ``PGPASSFILE`` or
        ``PGPASSWORD``; one in the address is used, and never shown or kept.  The role needs ``replication`` and
        ``select``.
    tables : str or mapping of str to str
        A table, ``"public.orders"``, for the input that the source is attached as; or the input of each table.  A name
        with a dot is quoted: ``'"my.shop"."orders"'``.  Their
        inputs have ``format=dd.formats.wal2json()``, with ``unavailable=True`` if values may be large, and the key
        of the table: the columns of its replica identity, or of a unique index if that is full.
    slot : str
        Its name: small letters, digits and ``_``; created with the first copy.  Each state needs another slot.
    follow : bool
        Whether to wait for later changes.  By default it ends with the changes committed at its opening.
    recopy : bool
        Whether to copy a table again, with a warning, if rows of it changed and the log does not say how: after ``alter
        column ... type``, after a time without a key.  With ``False`` that is `SourceChanged`.

    Returns
    -------
    Source
        For ``sources=``.

    Raises
    ------
    SpecError
        For an invalid name of a slot.

    Notes
    -----
    The server needs ``wal_level=logical`` and the plugin wal2json.  An epoch ends at a commit, of all tables of the
    slot.  The slot keeps the server's log until our commit: drop it when you give up a state, with ``select
    pg_drop_replication_slot('ddflow')``.

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
        Its folder or address.
    start : int or datetime, optional
        The version whose rows come first, for a state that has read nothing yet; a datetime, with a time zone: the
        newest of then.  By default the newest.
    follow : bool
        Whether to wait for later versions.  By default it ends with the newest version at its opening.
    storage_options : mapping of str to str, optional
        As deltalake takes them; never shown or kept.

    Returns
    -------
    Source
        For ``sources=``, of an input with ``format=dd.formats.delta_cdf()``, or of one of differences with
        ``diff=dd.delta_cdf``.

    Raises
    ------
    SpecError
        For a start that is none, when it is attached: for an input that takes rows.

    Notes
    -----
    Turn the feed on: ``delta.enableChangeDataFeed = true``.  Without it ddflow reads the whole files that a
    version removed or added; it does so too if a version dropped columns or changed a type.  A version that was
    vacuumed, or cleaned from the log, before ddflow read it raises `SourceChanged`.
    Deletion vectors and mapped columns are refused.

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
        Brokers, as ``bootstrap.servers`` has them: ``"broker:9092"``.
    topic : str
        Its name.
    start : {"earliest", "latest"} or datetime
        Where a state begins that has read nothing of it; a datetime: with the first message that is not older.
    follow : bool
        Whether to wait for later messages.  By default it ends with the last message at its opening.
    group : str, optional
        A consumer group that gets the state's offsets after each commit, so that its lag can be watched.
    tables : mapping of str to str, optional
        If the topic has messages of several tables, from Debezium, Maxwell, Canal or wal2json: the input of each table,
        ``{"public.orders": "orders"}``.
    others : {"error", "ignore"}
        Whether messages of other tables are an error, or ignored.
    config : mapping, optional
        Further settings of librdkafka, such as ``{"security.protocol": "SASL_SSL", "sasl.password": ...}``; never
        shown or kept.

    Returns
    -------
    Source
        For ``sources=``, of an input with ``format=``.

    Raises
    ------
    SpecError
        For an invalid ``start``, ``tables`` or ``others``.

    Notes
    -----
    Messages have ``value``, ``key``, ``topic``, ``partition``, ``offset`` and ``timestamp``; only committed ones are
    read.  The position is the next offset of each partition, in the state. An offset that the topic no longer has is
    `SourceChanged`. Partitions that come later are read from their beginning.

    Examples
    --------
    >>> kafka("broker:9092", "orders", follow=True).kind
    'kafka'
    """
    return KafkaTopicSource(servers, topic, start, follow, dict(config or {}), group, tables, others)


def _find_source_class(kind: str) -> type[Source]:
    """Return the class of a kind of source; `Source` for an unknown kind."""
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
    """Describe a position of a kind of source in the terms of that source.  O(its size).

    >>> describe_position("delta", {"table": "0", "version": 7, "rows": None}), describe_position("others", [7])
    ('version 7', '[7]')
    """
    return shorten((Source if find_position_error(kind, position) else _find_source_class(kind)).said(position))


def drop_inputs(kind: str, position: Any, inputs: Collection[str]) -> Any:
    """Return a position of a kind of source without some inputs that were dropped.

    >>> drop_inputs("files", [7], ["orders"])
    [7]
    """
    return position if find_position_error(kind, position) else _find_source_class(kind).without(position, inputs)


def describe_event_position(kind: str, place: int) -> int | str:
    """Describe the ``_position`` of an event in the terms of its kind of source.

    >>> describe_event_position("postgres", 23803720), describe_event_position("files", 7)
    ('0/16B3748', 7)
    """
    return _find_source_class(kind).placed(place)


def find_position_error(kind: str, position: Any) -> str | None:
    """Return why a position in a manifest is invalid for a kind of source; None if it is valid.  O(its size)."""
    try:
        convert(position, _find_source_class(kind).positions)
    except ValidationError as error:
        return shorten(str(error))
    return None
