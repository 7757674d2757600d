"""Columns that a table of Postgres got or lost while it is read, and what a reader of it has to know of them.

Invariant: a change says nothing of the rows that it does not write. So a column that is gone is null in rows that are
written from then on, and in all when the table is copied again, of which is warned, once: a position has the columns
that are gone. A column that is read for the first time may be `filled` in rows that no change has written. Columns are
known by their numbers, which stay theirs under any name.

>>> table = SourceTable("public", "orders", "orders")
>>> new_in(table, "paid", "has default false")[:52]
'public.orders.paid has default false: rows that were'
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ddflow.columns.names import quoted
from ddflow.connectors.postgres_catalog import SourceTable
from ddflow.connectors.postgres_position import Copied, SlotPosition

_FILLED: Final = """
    select a.attname, coalesce('default ' || pg_get_expr(d.adbin, d.adrelid), 'no nulls')
    from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = to_regclass(%s) and a.attname = any(%s)
        and (a.attnotnull or a.atthasdef or a.atthasmissing) order by a.attnum"""
"""New columns of which rows may have values without being written anew."""


def warn_of_gone(tables: Iterable[SourceTable], before: SlotPosition | None, position: SlotPosition) -> None:
    """Warn of columns that are gone at a committed position, and were not at the one ``before``.  O(columns)."""
    for table in tables:
        for name in sorted(_gone(table, position) - _gone(table, before)):
            was = None if before is None else before["tables"].get(table.full)
            more = " any more" if was is not None and name in was["columns"] else ""
            text = f"{table.full} has no column {name!r}{more}: it is null in rows that are written from now on"
            warnings.warn(f"{text}, and in all rows once the table is copied again", stacklevel=2)


def _gone(table: SourceTable, position: SlotPosition | None) -> set[str]:
    of = None if position is None else position["tables"].get(table.full)
    return set() if of is None else set(of.get("gone", ()))


def filled(connection: Any, table: SourceTable, known: Copied, now: Copied) -> dict[str, str]:
    """Columns that are read for the first time and may have values in rows that no change has written; and why, behind
    their names.  ``known``: as they were.  O(columns).  Raises what Postgres raises."""
    was, gone = known["columns"], set(known.get("gone", ())) - set(now.get("gone", ()))
    fresh = {name: at for name, at in now["columns"].items() if was.get(name) != at or name in gone}
    if not fresh:
        return {}
    found = dict.fromkeys(
        (name for name, at in fresh.items() if at <= known["last"] or at in was.values()), "was there, and not read"
    )
    found |= dict.fromkeys((name for name in fresh if name in was), "is another column than before")
    added = connection.execute(_FILLED, [table.quoted, [name for name in fresh if name not in found]]).fetchall()
    return found | {name: f"has {how}" for name, how in added}


def warn_of_filled(table: SourceTable, columns: Mapping[str, str]) -> None:
    """Warn of what was `filled`, where the table is not read again for it."""
    for name, how in columns.items():
        warnings.warn(new_in(table, name, how), stacklevel=2)


def new_in(table: SourceTable, name: str, how: str) -> str:
    """What is said of a column that was `filled`."""
    text = f"{table.full}.{name} {how}: rows that were there may have a value in Postgres that no "
    text += f"change has, and have null here until Postgres writes them: update {table.quoted} set {quoted(name)} = "
    return text + quoted(name)
