"""How messages are read: ``dd.formats``, for ``format=`` of `ddflow.Flow.upserts`.

Invariant: a batch of messages goes in and a batch of upserts comes out, by a library's parser (DuckDB's; extra
``cdc``), never message by message. The rooms: `base` (what a format is), `messages` (what comes), `envelope` (what
is inside), `parse` (JSON), `cells` with `decimals` and `times` (values in declared types), `keys`, `positions`; and a
file for each format.

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
from ddflow.connectors.formats.plain import Custom, PlainJson
from ddflow.errors import SpecError

__all__ = ["Format", "custom", "debezium", "plain_json"]

KINDS: Final[dict[str, type[Format]]] = {each.kind: each for each in (Debezium, PlainJson, Custom)}
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
    """Messages of Debezium, with Connect's schema around them or without.

    Parameters
    ----------
    table : str, optional
        Of a topic that has several, whose messages are read: ``"orders"``, ``"public.orders"`` or
        ``"shop.public.orders"``.  Without it a batch of several tables is refused.
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


def plain_json(
    *,
    decimals: Literal["precise", "string", "double"] = "string",
    binary: Literal["base64", "base64-url-safe", "hex"] = "base64",
    on_bad: OnBad = "stop",
) -> Format:
    """Messages that are rows, as objects of JSON; one without a value deletes its key.

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
    """Messages that a function of yours reads.

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
