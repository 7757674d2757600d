"""Sinks of `ddflow.Engine.run`: ``dd.sinks``.

Invariant: what is made here is a declaration. It opens nothing, can be copied, and shows no credentials. Each is
implemented in ``sink`` of its folder (of Parquet in ``folder``), or in a file of its name; their protocol is in
``api``, and ``modes`` converts rows for each mode. A library that one needs is imported when it is opened.

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
        Its name; created if it is missing.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        How rows are written.  "upsert": rows are replaced by a key that the plan proves.  "changelog": each change is a
        row, with ``_change_type``, ``_commit_version`` and ``_commit_timestamp``.  "retract": with ``_retract``.
        "debezium": messages, as ``key`` and ``value``.  "updates": with ``_time`` and ``_diff``.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        For the table of records, ``_ddflow_written``.

    Notes
    -----
    Decimals, dates, times, unsigned 64-bit integers and NaN are text; what is nested is JSON.

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
        As of `sqlite`.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        For the table of records, ``_ddflow_written``.

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
        ``PGPASSWORD``; one in the address is used, and never shown or kept.
    table, mode
        As of `sqlite`.
    schema : str, optional
        The schema of the table.  By default the server's choice for the user, mostly "public".

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        When it is attached, for an address that is none; for the table of records, ``_ddflow_written``.

    Notes
    -----
    An epoch is one transaction, with COPY for its rows.  Lists are arrays.  Structs, maps, nanoseconds and durations
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
        Its folder or address; created if it is missing.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        As of `sqlite`.  "upsert" is one merge an epoch, the others add rows.
    storage_options : mapping of str to str, optional
        As deltalake takes them; never shown or kept.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Notes
    -----
    Unsigned integers are stored in the next wider type, timestamps in microseconds, with a zone in UTC.  Nanoseconds,
    times of day, durations, maps and UUIDs are refused: project them to another type.

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
        Its namespace and name, ``"shop.by_city"``; both are created if they are missing.
    catalog : str or mapping of str to str
        The name of a catalog that pyiceberg is configured with (``~/.pyiceberg.yaml``, ``PYICEBERG_CATALOG__...``), or
        properties: ``{"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "file:///lake"}``, and ``name`` if
        it is not "default".  Their values are never shown or kept, except the address.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        As of `sqlite`.  "upsert" rewrites the files of deleted rows, the others add files.

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
    An epoch is one snapshot.  Integers have 32 or 64 bits, and unsigned ones the next wider type; timestamps are in
    microseconds, with a zone in UTC.  Nanoseconds, durations and maps are refused: project them to another type.

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
        Brokers, as ``bootstrap.servers`` has them.
    topic : str
        Its name; created with one partition if it is missing.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        As of `sqlite`; rows are JSON.  "upsert": the message's key is the row's, and a deleted row is a message without
        a value, so a compacted topic keeps what the output holds.
    config : mapping, optional
        Further settings of librdkafka; never shown or kept.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        For a name that ends with ``.ddflow``, as control topics do.

    Notes
    -----
    An epoch is one transaction.  Its last record goes to the control topic ``<topic>.ddflow`` and names the epoch, so
    read with ``isolation.level=read_committed``.

    Examples
    --------
    >>> kafka("broker:9092", "by_city").target
    'kafka://broker:9092/by_city'
    """
    return KafkaSink(servers, topic, mode, dict(config or {}))


def parquet(folder: str | PathLike[str], *, mode: Mode = "changelog") -> TableSink:
    """Write an output to a folder of Parquet files, one an epoch.

    Parameters
    ----------
    folder : str or path
        Created if it is missing; holds one output.
    mode : {"changelog", "retract", "debezium", "updates"}
        As of `sqlite`; rows are only added.

    Returns
    -------
    TableSink
        For ``sinks=``.

    Raises
    ------
    SpecError
        For an address.

    Notes
    -----
    A file counts once its record, ``_written/<number>.json``, exists; the record is written last.  A file without a
    record belongs to an unfinished epoch, perhaps of a dead writer; the next epoch replaces it.

    Examples
    --------
    >>> parquet("out/by_city").kind
    'parquet'
    """
    return ParquetSink(fspath(folder), mode)
