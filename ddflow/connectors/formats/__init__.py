"""How messages are read: ``dd.formats``, for ``format=`` of `ddflow.Flow.upserts`; and written.

Invariant: a batch of messages goes in and a batch of upserts comes out, by a library's parser (DuckDB's; extra
``duckdb``), never message by message. The rooms: `base` (what a format is), `messages` (what comes), `envelope` (what
is inside), `parse` (JSON), `cells` with `decimals` and `times` (values in declared types), `keys`, `positions`; a
file for each format; and `written`, the other way.

>>> import pyarrow as pa, ddflow as dd
>>> flow, columns = dd.Flow(), {"id": pa.int64(), "city": pa.string()}
>>> people = flow.upserts("people", columns, dd.Upsert(key="id"), format=dd.formats.debezium())
>>> _ = flow.output("people", people)
>>> with flow.open() as engine:
...     value = '{"op": "c", "after": {"id": 1, "city": "Bern"}, "source": {"lsn": 7}}'
...     engine.step({"people": [{"value": value}]}, time=1)["people"].to_pylist()
[{'id': 1, 'city': 'Bern', '_time': 1, '_diff': 1}]
"""

from collections.abc import Callable
from typing import Any, Final, Literal

from ddflow.connectors.formats.base import Format, OnBad
from ddflow.connectors.formats.debezium import UNAVAILABLE, Debezium
from ddflow.connectors.formats.mysql_feeds import Canal, Maxwell
from ddflow.connectors.formats.plain import Custom, DeltaFeed, Kcat, PlainJson, write
from ddflow.connectors.formats.wal2json import Wal2Json
from ddflow.errors import SpecError

__all__ = ["Format", "canal", "custom", "debezium", "delta_cdf", "kcat", "maxwell", "plain_json", "wal2json", "write"]

KINDS: Final[dict[str, type[Format]]] = {
    each.kind: each for each in (Debezium, Maxwell, Canal, Wal2Json, Kcat, DeltaFeed, PlainJson, Custom)
}
"""The formats there are, by the names that plans have for them."""


def debezium(
    *,
    table: str | None = None,
    flattened: bool = False,
    decimals: Literal["precise", "string", "double"] = "precise",
    binary: Literal["base64", "base64-url-safe", "hex"] = "base64",
    unavailable: bool = False,
    placeholder: str = UNAVAILABLE,
    on_bad: OnBad = "stop",
) -> Format:
    """Read messages of Debezium, with or without Connect's schema.

    Parameters
    ----------
    table : str, optional
        Of a topic that has several, whose messages are read: ``"orders"``, ``"public.orders"`` or
        ``"shop.public.orders"``.  Without it messages of other tables than that of the first are bad, as are those of a
        second table that has the given name in another schema or database.
    flattened : bool
        Whether messages are the row after a change, as ``ExtractNewRecordState`` leaves them.
    decimals : {"precise", "string", "double"}
        The connector's ``decimal.handling.mode``, where no schema says it.
    binary : {"base64", "base64-url-safe", "hex"}
        Its ``binary.handling.mode``.
    unavailable : bool
        Whether a value that the source did not write (an unchanged TOAST value of Postgres) keeps what is stored.  The
        input then merges by `ddflow.last`.  By default such a message is bad.
    placeholder : str
        Its ``unavailable.value.placeholder``.
    on_bad : {"stop", "drop"}
        What becomes of a message that cannot be read: the step is refused, or the message counts as bad and goes to
        the output ``<input>.bad``.

    Returns
    -------
    Format
        For ``format=``.

    Raises
    ------
    SpecError
        For an option that is none.

    Examples
    --------
    >>> debezium(table="public.orders")
    dd.formats.debezium(table='public.orders')
    """
    return Debezium(
        table=table,
        flattened=flattened,
        decimals=decimals,
        binary=binary,
        unavailable=unavailable,
        placeholder=placeholder,
        on_bad=on_bad,
    )


def maxwell(*, table: str | None = None, on_bad: OnBad = "stop") -> Format:
    """Read messages of Maxwell, bootstraps included.

    Parameters
    ----------
    table, on_bad
        As of `debezium`; a table is ``"orders"`` or ``"shop.orders"``.

    Returns
    -------
    Format
        For ``format=``.

    Raises
    ------
    SpecError
        For an option that is none.

    Notes
    -----
    Events are ordered by ``position`` where Maxwell writes it (``output_binlog_position``), else by offset.

    Examples
    --------
    >>> maxwell()
    dd.formats.maxwell()
    """
    return Maxwell(table=table, on_bad=on_bad)


def canal(*, table: str | None = None, on_bad: OnBad = "stop") -> Format:
    """Read messages of Canal, as flat JSON, with several rows each.

    Parameters
    ----------
    table, on_bad
        As of `maxwell`.

    Returns
    -------
    Format
        For ``format=``.

    Raises
    ------
    SpecError
        For an option that is none.

    Examples
    --------
    >>> canal(table="orders")
    dd.formats.canal(table='orders')
    """
    return Canal(table=table, on_bad=on_bad)


def wal2json(*, table: str | None = None, unavailable: bool = False, on_bad: OnBad = "stop") -> Format:
    """Read messages of wal2json: one for each transaction (version 1), or for each change (2).

    Parameters
    ----------
    table, unavailable, on_bad
        As of `debezium`: a column that an update does not name was not written.

    Returns
    -------
    Format
        For ``format=``.

    Raises
    ------
    SpecError
        For an option that is none.

    Notes
    -----
    Events are ordered by ``lsn`` or ``nextlsn`` (``include-lsn``), else by offset.

    Examples
    --------
    >>> wal2json(unavailable=True)
    dd.formats.wal2json(unavailable=True)
    """
    return Wal2Json(table=table, unavailable=unavailable, on_bad=on_bad)


def kcat(of: Format) -> Format:
    """Read lines of a dump by ``kcat -J``; each holds a message of another format.

    Parameters
    ----------
    of : Format
        Of the messages within.

    Returns
    -------
    Format
        For ``format=``.

    Raises
    ------
    SpecError
        For what is no format.

    Examples
    --------
    >>> kcat(debezium())
    dd.formats.kcat(dd.formats.debezium())
    """
    return Kcat(of=of)


def delta_cdf(*, on_bad: OnBad = "stop") -> Format:
    """Read the change feed of a table of Delta Lake, from ``load_cdf`` or ``readChangeFeed``, as upserts.

    Parameters
    ----------
    on_bad : {"stop", "drop"}
        As of `debezium`.

    Returns
    -------
    Format
        For ``format=``.

    Raises
    ------
    SpecError
        For an option that is none.

    Notes
    -----
    Events are ordered by ``_commit_version``.  `ddflow.delta_cdf` takes the same rows as differences, without a key.

    Examples
    --------
    >>> delta_cdf()
    dd.formats.delta_cdf()
    """
    return DeltaFeed(on_bad=on_bad)


def plain_json(
    *,
    decimals: Literal["precise", "string", "double"] = "string",
    binary: Literal["base64", "base64-url-safe", "hex"] = "base64",
    on_bad: OnBad = "stop",
) -> Format:
    """Read messages that are rows, as objects of JSON; one without a value deletes its key.

    Parameters
    ----------
    decimals, binary, on_bad
        As of `debezium`.

    Returns
    -------
    Format
        For ``format=``.

    Raises
    ------
    SpecError
        For an option that is none.

    Examples
    --------
    >>> plain_json(on_bad="drop")
    dd.formats.plain_json(on_bad='drop')
    """
    return PlainJson(decimals=decimals, binary=binary, on_bad=on_bad)


def custom(function: Callable[[Any], Any]) -> Format:
    """Read messages with a function of yours.

    Parameters
    ----------
    function : callable
        Takes a table of messages and gives rows, as anything that speaks Arrow: the declared columns, and if you like
        ``_deleted`` (true where a row deletes its key) and ``_position`` (an integer that orders events; by default
        the offset).  It must give the same rows each time.

    Returns
    -------
    Format
        For ``format=``.

    Raises
    ------
    SpecError
        For what cannot be called.

    Examples
    --------
    >>> import pyarrow.compute as pc
    >>> custom(lambda messages: {"line": messages["value"]}).kind
    'custom'
    """
    if not callable(function):
        raise SpecError("dd.formats.custom", f"it is given {function!r:.99}", "give a function of a table of messages")
    return Custom(function=function)
