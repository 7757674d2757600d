"""Declare the sinks of `ddflow.Engine.run`: ``dd.sinks``.

Each function returns a declaration: it opens nothing, can be copied, and shows no credentials. The code of a sink is in
``sink.py`` of its folder (Parquet: ``folder.py``), or in the file with its name. ``api.py`` defines the protocol, and
``modes.py`` converts rows for each mode. ddflow imports the library of a sink when it opens the sink.

>>> sqlite("shop.db", "by_city").mode
'upsert'
"""

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from ddflow.connectors.api import Mode, TableSink
from ddflow.connectors.delta.sink import DeltaSink
from ddflow.connectors.iceberg.sink import IcebergSink
from ddflow.connectors.kafka.sink import KafkaSink
from ddflow.connectors.parquet.folder import ParquetSink
from ddflow.connectors.postgres.sink import PostgresSink
from ddflow.connectors.sqlite import SQLiteSink

__all__ = ["Mode", "TableSink", "delta", "duckdb", "iceberg", "kafka", "parquet", "postgres", "sqlite"]


def sqlite(path: str | PathLike[str], table: str, *, mode: Mode = "upsert") -> TableSink:
    """Write an output to a table of an SQLite file.

    Parameters
    ----------
    path : str or path
        The file; created if it is missing.
    table : str
        The name of the table; created if it is missing.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        How ddflow writes rows.  "upsert": a row replaces the row with its key; the plan must prove the key.
        "changelog": each change is a row, with ``_change_type``, ``_commit_version`` and ``_commit_timestamp``.
        "retract": each change is a row with ``_retract``.  "debezium": messages, as ``key`` and ``value``.  "updates":
        rows with ``_time`` and ``_diff``.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        If the table is ``_ddflow_written``, which holds the records of epochs.

    Notes
    -----
    Decimals, dates, times, unsigned 64-bit integers and NaN are stored as text, nested values as JSON.

    Examples
    --------
    >>> sqlite("shop.db", "by_city").kind
    'sqlite'
    """
    return SQLiteSink(fspath(path), table, mode)


def duckdb(path: str | PathLike[str], table: str, *, mode: Mode = "upsert") -> TableSink:
    """Write an output to a table of a DuckDB file.

    Parameters
    ----------
    path, table, mode
        See `sqlite`.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        If the table is ``_ddflow_written``, which holds the records of epochs.

    Notes
    -----
    The file is open only during the write of an epoch, so you can read it in between.  Durations are refused.

    Examples
    --------
    >>> duckdb("shop.duckdb", "by_city", mode="changelog").mode
    'changelog'
    """
    from ddflow.connectors.duckdb import DuckDBSink

    return DuckDBSink(fspath(path), table, mode)


def postgres(url: str, table: str, *, mode: Mode = "upsert", schema: str | None = None) -> TableSink:
    """Write an output to a table of Postgres.  Needs the extra ``postgres``.

    Parameters
    ----------
    url : str
        An address of libpq, ``postgresql://user@host:port/database``.  Give the password in ``PGPASSFILE`` or
        ``PGPASSWORD``.  A password in the address works too; ddflow never shows or stores it.
    table, mode
        See `sqlite`.
    schema : str, optional
        The schema of the table.  By default the server chooses it for the user, usually "public".

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        If the table is ``_ddflow_written``, which holds the records of epochs.  When you attach the sink: for an
        invalid address.

    Notes
    -----
    An epoch is one transaction, with COPY for its rows.  Lists become arrays.  Structs, maps, nanoseconds and durations
    are refused: project them to another type.

    Examples
    --------
    >>> postgres("postgresql://me@db/shop", "by_city").kind
    'postgres'
    """
    return PostgresSink(url, table, mode, schema)


def delta(
    path: str | PathLike[str], *, mode: Mode = "upsert", storage_options: Mapping[str, str] | None = None
) -> TableSink:
    """Write an output to a table of Delta Lake.  Needs the extra ``delta``.

    Parameters
    ----------
    path : str or path
        The folder or address of the table; created if it is missing.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        See `sqlite`.  "upsert" is one merge for each epoch; the other modes add rows.
    storage_options : mapping of str to str, optional
        Options for deltalake; ddflow never shows or stores them.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Notes
    -----
    Unsigned integers are stored in the next wider type, and timestamps in microseconds; those with a time zone are in
    UTC.  Nanoseconds, times of day, durations, maps and UUIDs are refused: project them to another type.

    Examples
    --------
    >>> delta("lake/by_city", mode="changelog").kind
    'delta'
    """
    return DeltaSink(fspath(path), mode, dict(storage_options or {}))


def iceberg(table: str, *, catalog: str | Mapping[str, str] = "default", mode: Mode = "upsert") -> TableSink:
    """Write an output to a table of Iceberg.  Needs the extra ``iceberg``.

    Parameters
    ----------
    table : str
        The namespace and name of the table, ``"shop.by_city"``; both are created if they are missing.
    catalog : str or mapping of str to str
        The name of a catalog in the configuration of pyiceberg (``~/.pyiceberg.yaml``, ``PYICEBERG_CATALOG__...``), or
        the properties of one: ``{"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "file:///lake"}``, with
        ``name`` if it is not "default".  ddflow never shows or stores their values, except the address.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        See `sqlite`.  "upsert" rewrites the files of deleted rows; the other modes add files.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        For a name without a namespace.

    Notes
    -----
    An epoch is one snapshot.  Integers have 32 or 64 bits; unsigned integers are stored in the next wider type.
    Timestamps are in microseconds; those with a time zone are in UTC.  Nanoseconds, durations and maps are refused:
    project them to another type.

    Examples
    --------
    >>> iceberg("shop.by_city", catalog={"type": "rest", "uri": "https://lake:8181", "token": "hush"}).target
    'https://lake:8181#shop.by_city'
    """
    return IcebergSink(table, catalog if isinstance(catalog, str) else dict(catalog), mode)


def kafka(servers: str, topic: str, *, mode: Mode = "upsert", config: Mapping[str, Any] | None = None) -> TableSink:
    """Write an output to a topic of Kafka.  Needs the extra ``kafka``.

    Parameters
    ----------
    servers : str
        The brokers, in the form of ``bootstrap.servers``.
    topic : str
        The name of the topic; created with one partition if it is missing.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        See `sqlite`.  Rows are JSON.  "upsert": a message has the key of its row, and a deleted row is a message
        without a value, so a compacted topic keeps the contents of the output.
    config : mapping, optional
        Further settings of librdkafka; ddflow never shows or stores them.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        For a name that ends with ``.ddflow``, because control topics have such names.

    Notes
    -----
    An epoch is one transaction.  Its last record goes to the control topic ``<topic>.ddflow`` and names the epoch.
    Read the topic with ``isolation.level=read_committed``.

    Examples
    --------
    >>> kafka("broker:9092", "by_city").target
    'kafka://broker:9092/by_city'
    """
    return KafkaSink(servers, topic, mode, dict(config or {}))


def parquet(folder: str | PathLike[str], *, mode: Mode = "changelog") -> TableSink:
    """Write an output to a folder of Parquet files, one file for each epoch.

    Parameters
    ----------
    folder : str or path
        The folder; created if it is missing.  It holds one output.
    mode : {"changelog", "retract", "debezium", "updates"}
        See `sqlite`.  Rows are only added.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        For an address instead of a folder.

    Notes
    -----
    A file counts once its record, ``_written/<number>.json``, exists.  ddflow writes the record last.  A file without a
    record belongs to an unfinished epoch, perhaps from a crashed writer; the next epoch replaces it.

    Examples
    --------
    >>> parquet("out/by_city").kind
    'parquet'
    """
    return ParquetSink(fspath(folder), mode)
