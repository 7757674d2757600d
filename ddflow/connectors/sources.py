"""Sources of `ddflow.Engine.run`: ``dd.sources``.

Invariant: what is made here is a declaration. It opens nothing, can be copied, and shows no credentials. What each is
stands in its own file (``landed``, ``sqlite``, ``duckdb``, ``postgres_slot``, ``kafka``, ``delta_feed``); what is asked
of all, in ``attached``. A library that one needs is imported when it is opened.

>>> files("landing/*.csv").kind
'files'
>>> misread("postgres", {"lsn": 7})
'Expected `str`, got `int` - at `$.lsn`'
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from os import PathLike, fspath
from typing import Any

from msgspec import ValidationError, convert

from ddflow.connectors.attached import Source
from ddflow.connectors.delta_feed import FollowedTable
from ddflow.connectors.files.file_path import dialect_of
from ddflow.connectors.kafka import KafkaTopic
from ddflow.connectors.landed import LandedFiles
from ddflow.connectors.postgres_slot import PostgresTables
from ddflow.connectors.routes import Others
from ddflow.connectors.sqlite import SQLiteSource
from ddflow.errors import cut
from ddflow.time import seconds

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
        a bucket come from the environment.  A `ddflow.FilePath` of one says what the files hold, and how
        their text is written.  Several are of one machine or of one bucket, and each may say something else.  A file
        that several match is of the first of them.
    follow : bool
        Whether to go on with files that come later.  By default the files that are there are all.
    settle : str
        With ``follow``: how long nobody must have written to a file before it is read; objects are put whole.
    lines : bool
        Whether each line is a message, for an input with ``format=``: columns ``value`` and ``offset``.
    tables, others
        As of `kafka`, where lines are messages of several tables.
    full : bool
        Whether each file holds all rows of its time, so that a key that it does not name is deleted, as `replace` does.
        By default rows are events.  A file without rows is an error; ``max_absent=`` of `run` stops at one that is cut
        off.

    Returns
    -------
    Source
        For ``sources=``.

    Raises
    ------
    SpecError
        For an address that is not of S3, for what is no span, for ``tables`` without ``lines``, for ``full`` or a
        `ddflow.FilePath` with them, for no pattern, and for patterns of several places.

    Notes
    -----
    Files that are there together are taken in the order of their paths, and one that comes late is taken whatever its
    name, but a full one, which is
    `SourceChanged`: name these by their day.  They are read into memory.  A file that changes after it was read is
    `SourceChanged`.  The position has some 40 bytes for each file that
    is there, in every manifest: move away what was read long ago.

    Examples
    --------
    >>> files("landing/*.parquet", follow=True).kind
    'files'
    >>> import ddflow as dd
    >>> shops = files([dd.FilePath("a/*.csv", delimiter=";"), dd.FilePath("b/*.tsv", rename={"ID": "id"})])
    """
    several = [pattern] if isinstance(pattern, str | PathLike) else pattern
    patterns = tuple((fspath(each), dialect_of(each)) for each in several)
    return LandedFiles(patterns, follow, seconds(settle, "settle="), lines, tables, others, full)


def sqlite(path: str | PathLike[str], table: str, *, follow: bool = False) -> Source:
    """Read a table of an SQLite file as the full contents of an input; read it again when the file changes.

    Parameters
    ----------
    path : str or path
        The file.
    table : str
        Its name, or a query in parentheses.  A state stays with a table; a query may change, and is then read.
    follow : bool
        Whether to go on when the file changes.

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
        As libpq takes it, ``postgresql://user@host:port/database``.  Let the password come from ``PGPASSFILE`` or
        ``PGPASSWORD``; one in the address is used, and never shown or kept.  The role needs ``replication`` and
        ``select``.
    tables : str or mapping of str to str
        A table, ``"public.orders"``, for the input that the source is attached as; or the input of each table.  A name
        with a dot is quoted: ``'"my.shop"."orders"'``.  Their
        inputs have ``format=dd.formats.wal2json()``, with ``unavailable=True`` where values may be large, and the key
        of the table: the columns of its replica identity, or of a unique index where that is full.
    slot : str
        Of small letters, digits and ``_``; made with the first copy.  Each state has one of its own.
    follow : bool
        Whether to go on with what comes later.  By default what is committed when it is opened is all.
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
        For what is no name of a slot.

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
    return PostgresTables(url, {tables: ""} if isinstance(tables, str) else dict(tables), slot, follow, recopy)


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
        Whether to go on with later versions.  By default the newest one when it is opened is the last.
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
    Turn the feed on: ``delta.enableChangeDataFeed = true``.  Without it whole files that a version took away and added
    are read, and so they are of a version that took columns away or changed a type.  Versions that were vacuumed, or
    cleaned from the log, before they were read are `SourceChanged`.
    Deletion vectors and mapped columns are refused.

    Examples
    --------
    >>> delta("lake/orders", follow=True).kind
    'delta'
    """
    return FollowedTable(fspath(path), start, follow, dict(storage_options or {}))


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
        Whether to go on with what comes later.  By default what is there when it is opened is all.
    group : str, optional
        A consumer group that gets the state's offsets after each commit, so that its lag can be watched.
    tables : mapping of str to str, optional
        Where messages of several tables are in the topic, of Debezium, Maxwell, Canal or wal2json: the input of each,
        ``{"public.orders": "orders"}``.
    others : {"error", "ignore"}
        What becomes of messages of a table that is not named there.
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
        For a start that is none, and for ``tables`` and ``others`` that are none.

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
    return KafkaTopic(servers, topic, start, follow, dict(config or {}), group, tables, others)


def _kind(kind: str) -> type[Source]:
    """Return the class of a kind of source; `Source` for an unknown kind."""
    from ddflow.connectors.duckdb import DuckDBSource

    kinds: list[type[Source]] = [LandedFiles, KafkaTopic, PostgresTables, SQLiteSource, DuckDBSource, FollowedTable]
    return next((each for each in kinds if each.kind == kind), Source)


def said(kind: str, position: Any) -> str:
    """Describe a position of a kind of source in the terms of that source.  O(its size).

    >>> said("delta", {"table": "0", "version": 7, "rows": None}), said("others", [7])
    ('version 7', '[7]')
    """
    return cut((Source if misread(kind, position) else _kind(kind)).said(position))


def without(kind: str, position: Any, inputs: Collection[str]) -> Any:
    """Return a position of a kind of source without some inputs that were dropped.

    >>> without("files", [7], ["orders"])
    [7]
    """
    return position if misread(kind, position) else _kind(kind).without(position, inputs)


def placed(kind: str, place: int) -> int | str:
    """Describe the ``_position`` of an event in the terms of its kind of source.

    >>> placed("postgres", 23803720), placed("files", 7)
    ('0/16B3748', 7)
    """
    return _kind(kind).placed(place)


def misread(kind: str, position: Any) -> str | None:
    """Return why a position in a manifest is invalid for a kind of source; None if it is valid.  O(its size)."""
    try:
        convert(position, _kind(kind).positions)
    except ValidationError as error:
        return cut(str(error))
    return None
