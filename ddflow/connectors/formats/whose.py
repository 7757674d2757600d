"""Whose a message is: the table that it says it is of, with its schema and database where it names them.

Invariant: two names are of one table where one is the end of the other. So ``orders`` and ``shop.orders`` are one,
``a.orders`` and ``b.orders`` are two, and of names of one table the longest counts. A name that is given is read from
its end, too: ``orders``, ``public.orders`` or ``shop.public.orders``. A dot within a name is taken for one between.

>>> settled("orders", ["a.orders", "orders", "b.orders"])
('a.orders', ['b.orders'])
>>> source = {"table": ["t", "u"], "schema": ["a", "a"], "db": [None, None]}
>>> every = {name: pa.array(cells, pa.string()) for name, cells in source.items()}
>>> named(every).to_pylist(), of_table("a.t", every).tolist(), untold("shop.a.t", every).tolist()
(['a.t', 'a.u'], [True, False], [True, False])
>>> counted(every, np.array([True, True])), is_of("a.t", "shop.a.t"), nearest("orderz", ["shop.orders", "shop.people"])
({'a.t': 1, 'a.u': 1}, True, 'shop.orders')
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.names import near
from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.parse import Bools

PARTS: Final = ("table", "schema", "db")
"""What a message may say of its table."""
Source = Mapping[str, pa.Array]
"""By `PARTS`, what messages say."""


def named(source: Source) -> pa.Array:
    """Return the whole name of each message's table; null if the message names no table.  O(n)."""
    table, schema, db = _parts(source)
    db = pc.if_else(pc.fill_null(pc.equal(db, schema), False), None, db)  # MySQL's database is its schema
    return pc.binary_join_element_wise(db, schema, table, pc.if_else(table.is_valid(), ".", None), null_handling="skip")


def longer(one: str | None, other: str) -> str | None:
    """Return the longer of two names of one table; None if they name two tables.  O(1)."""
    if one is None or other == one or other.endswith(f".{one}"):
        return other
    return one if one.endswith(f".{other}") else None


def settled(own: str | None, names: Iterable[str]) -> tuple[str | None, list[str]]:
    """Return the longest name of the messages' table, and the ``names`` of other tables.  O(names)."""
    others = []
    for name in names:
        both = longer(own, name)
        if both is None:
            others.append(name)
        else:
            own = both
    return own, others


def of_table(name: str, source: Source) -> Bools:
    """Mark the messages of the given table.  O(n)."""
    *before, last = name.split(".")
    table, schema, db = _parts(source)
    out = pc.equal(table, last)
    if before:
        out = pc.and_(out, pc.equal(pc.coalesce(schema, db), before[-1]))
    if len(before) > 1:
        out = pc.and_(out, pc.equal(db, before[-2]))
    return np.asarray(pc.fill_null(out, False))


def is_of(table: str, name: str) -> bool:
    """Return whether a whole name from a message is a name of the given table.  O(1)."""
    return name == table or name.endswith(f".{table}")


def counted(source: Source, which: Bools) -> dict[str, int]:
    """Count some messages by the whole name of their table.  O(n)."""
    coded = named(source).filter(pa.array(which)).drop_null().dictionary_encode()
    return dict(zip(coded.dictionary.to_pylist(), np.bincount(coded.indices).tolist(), strict=True))


def nearest(name: str, tables: Iterable[str]) -> str | None:
    """Return the table that a name may have meant; compares as many parts as both have.  O(tables)."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        ends = {".".join(each.split(".")[-count:]): each for each in tables if each.count(".") >= count - 1}
        if (found := near(".".join(parts[-count:]), ends)) is not None:
            return ends[found]
    return None


def untold(name: str, source: Source) -> Bools:
    """Mark the messages without enough of a name to compare with the given table.  O(n)."""
    *before, last = name.split(".")
    table, schema, db = _parts(source)
    lacks = pa.array(np.zeros(len(table), np.bool_))
    if before:
        lacks = pc.and_(table.is_valid(), pc.and_(schema.is_null(), db.is_null()))
    if len(before) > 1:
        lacks = pc.or_(lacks, db.is_null())
    mine = pc.fill_null(pc.equal(table, last), False)
    return np.asarray(pc.or_(table.is_null(), pc.and_(mine, lacks)))


def of_topic(name: str, messages: Messages) -> Bools:
    """Mark the messages of a topic of that table: a tombstone has no other sign of its table.  O(n)."""
    if messages.topic is None:
        return np.zeros(messages.rows, np.bool_)
    own = pc.or_(pc.equal(messages.topic, name), pc.ends_with(messages.topic, f".{name}"))
    return np.asarray(pc.fill_null(own, False))


def _parts(source: Source) -> list[pa.Array]:
    return [source[part].cast(pa.string()) for part in PARTS]
