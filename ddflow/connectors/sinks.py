"""Declare the sinks for `ddflow.Engine.run`: the functions of ``dd.sinks``.

Each function returns a declaration. A declaration opens no connection, can be copied, and shows no credentials. The
code of a sink is in a file that has the name of the sink, or in ``sink.py`` of a folder with that name; for Parquet, in
``folder.py``. ``api.py`` defines the protocol of sinks, and ``modes.py`` converts rows for each mode. ddflow imports
the library of a sink when it opens the sink.

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
        The file.  ddflow creates it if it is missing.
    table : str
        The name of the table.  ddflow creates the table if it is missing.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        How ddflow writes rows.  "upsert": a row replaces the row with its key, and the plan must prove the key.
        "changelog": each change is a row, with ``_change_type``, ``_commit_version`` and ``_commit_timestamp``.
        "retract": each change is a row with the column ``_retract``.  "debezium": each change is a message with
        ``key`` and ``value``.  "updates": each change is a row with ``_time`` and ``_diff``.

    Returns
    -------
    TableSink
        A declaration to pass in ``sinks=``.

    Raises
    ------
    SpecError
        If the table is ``_ddflow_written``, where ddflow stores the records of epochs.

    Notes
    -----
    ddflow stores decimals, dates, times, unsigned 64-bit integers and NaN as text, and nested values as JSON.

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
        The same as in `sqlite`.

    Returns
    -------
    TableSink
        A declaration to pass in ``sinks=``.

    Raises
    ------
    SpecError
        If the table is ``_ddflow_written``, where ddflow stores the records of epochs.

    Notes
    -----
    The file is open only while ddflow writes an epoch, so you can read the file between epochs.  ddflow refuses
    durations.

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
        An address of libpq, ``postgresql://user@host:port/database``.  Set the password in ``PGPASSFILE`` or
        ``PGPASSWORD``.  The address may also contain the password, which ddflow never shows or stores.
    table, mode
        The same as in `sqlite`.
    schema : str, optional
        The schema of the table.  By default the server chooses the schema for the user, usually "public".

    Returns
    -------
    TableSink
        A declaration to pass in ``sinks=``.

    Raises
    ------
    SpecError
        If the table is ``_ddflow_written``, where ddflow stores the records of epochs.  When you attach the
        sink: for an invalid address.

    Notes
    -----
    An epoch is one transaction, which writes rows by COPY.  Lists become arrays.  ddflow refuses structs, maps,
    nanoseconds and durations: project columns of these types to another type.

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
        The folder or address of the table.  ddflow creates the table if it is missing.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        The same as in `sqlite`.  "upsert" runs one merge for each epoch; the other modes add rows.
    storage_options : mapping of str to str, optional
        Options for deltalake.  ddflow never shows or stores these options.

    Returns
    -------
    TableSink
        A declaration to pass in ``sinks=``.

    Notes
    -----
    ddflow stores an unsigned integer in the next wider type, and timestamps in microseconds.  Timestamps with a time
    zone are stored in UTC.  ddflow refuses nanoseconds, times of day, durations, maps and UUIDs: project columns of
    these types to another type.

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
        The namespace and name of the table, ``"shop.by_city"``.  ddflow creates each if it is missing.
    catalog : str or mapping of str to str
        The name of a catalog in the configuration of pyiceberg (``~/.pyiceberg.yaml``, ``PYICEBERG_CATALOG__...``), or
        the properties of a catalog, such as ``{"type": "sql", "uri": "sqlite:///catalog.db", "warehouse":
        "file:///lake"}``.  Add the property ``name`` if the catalog's name is not "default".  ddflow never shows or
        stores the values of properties, except the address.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        The same as in `sqlite`.  "upsert" rewrites the files that contain deleted rows; the other modes add files.

    Returns
    -------
    TableSink
        A declaration to pass in ``sinks=``.

    Raises
    ------
    SpecError
        For a name without a namespace.

    Notes
    -----
    An epoch is one snapshot.  ddflow stores signed integers in 32 or 64 bits, and an unsigned integer in the next wider
    type. ddflow stores timestamps in microseconds, and timestamps with a time zone in UTC.  ddflow refuses nanoseconds,
    durations and maps: project columns of these types to another type.

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
        The name of the topic.  ddflow creates the topic with one partition if it is missing.
    mode : {"upsert", "changelog", "retract", "debezium", "updates"}
        The same as in `sqlite`.  Rows are JSON.  "upsert": a message has the key of its row, and a deleted row is a
        message without a value.  So a compacted topic keeps the contents of the output.
    config : mapping, optional
        Further settings of librdkafka.  ddflow never shows or stores these settings.

    Returns
    -------
    TableSink
        A declaration to pass in ``sinks=``.

    Raises
    ------
    SpecError
        For a name that ends with ``.ddflow``, because the names of control topics end so.

    Notes
    -----
    An epoch is one transaction.  The last message of the transaction goes to the control topic ``<topic>.ddflow`` and
    names the epoch. Set ``isolation.level=read_committed`` in programs that read the topic.

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
        The folder.  ddflow creates it if it is missing.  A folder holds one output.
    mode : {"changelog", "retract", "debezium", "updates"}
        The same as in `sqlite`.  ddflow only adds rows.

    Returns
    -------
    TableSink
        A declaration to pass in ``sinks=``.

    Raises
    ------
    SpecError
        For an address such as ``s3://...`` instead of a folder.

    Notes
    -----
    A file is valid as soon as its record ``_written/<number>.json`` exists, because ddflow writes the record last.  A
    file without a record belongs to an unfinished epoch; the writer may have crashed.  The next epoch replaces a file
    without a record.

    Examples
    --------
    >>> parquet("out/by_city").kind
    'parquet'
    """
    return ParquetSink(fspath(folder), mode)
