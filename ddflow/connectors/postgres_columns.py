"""Columns that a table of Postgres got or lost while it is read, and what a reader of it has to know of them.

Invariant: a change says nothing of the rows that it does not write. So a column that is gone, perhaps renamed, is null
in rows that are written from then on, and a new one is null in rows that Postgres filled with a default. Of either is
warned, once: a position has the columns that are gone, so no later run says it of them again.

>>> table = SourceTable("public", "orders", "orders")
>>> new_in(table, "paid", "default false")[:49]
'public.orders.paid is new, and is default false: '
"""

import warnings
from collections.abc import Collection, Iterable
from typing import Any, Final

from ddflow.columns.names import quoted
from ddflow.connectors.postgres_catalog import SourceTable
from ddflow.connectors.postgres_position import SlotPosition

_FILLED: Final = """
    select a.attname, coalesce('default ' || pg_get_expr(d.adbin, d.adrelid), 'not null')
    from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = to_regclass(%s) and a.attname = any(%s)
        and (a.attnotnull or a.atthasdef or a.atthasmissing) order by a.attnum"""
"""Columns of which rows may have values without being written anew."""


def warn_of_gone(tables: Iterable[SourceTable], before: SlotPosition | None, position: SlotPosition) -> None:
    """Warn of columns that are gone at a committed position, and were not at the one ``before``.  O(columns)."""
    for table in tables:
        for name in sorted(_gone(table, position) - _gone(table, before)):
            text = f"{table.full} has no column {name!r} any more: it is null in rows that are written from now on. If "
            text += "it was renamed, the new column is null in all others until Postgres writes them: "
            warnings.warn(f"{text}update {table.quoted} set ...", stacklevel=2)


def _gone(table: SourceTable, position: SlotPosition | None) -> set[str]:
    of = None if position is None else position["tables"].get(table.full)
    return set() if of is None else set(of.get("gone", ()))


def warn_of_filled(connection: Any, table: SourceTable, columns: Collection[str]) -> None:
    """Warn of new columns that have values in rows that no change has written.  Raises what Postgres raises."""
    for name, how in connection.execute(_FILLED, [table.quoted, list(columns)]).fetchall():
        warnings.warn(new_in(table, name, how), stacklevel=2)


def new_in(table: SourceTable, name: str, how: str) -> str:
    """What is said of a new column.  ``how``: what gives it values."""
    text = f"{table.full}.{name} is new, and is {how}: rows that were there may have a value in Postgres that no "
    text += f"change has, and have null here until Postgres writes them: update {table.quoted} set {quoted(name)} = "
    return text + quoted(name)
