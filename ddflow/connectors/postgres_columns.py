"""What became of a table of Postgres while it is read, and what a reader of it has to know of that.

Invariant: a change says nothing of the rows that it does not write. So a column that is gone is null in rows that are
written from then on, and in all when the table is copied again, of which is warned, once: a position has the columns
that are gone. A column that is read for the first time may be `filled` in rows that no change has written. Columns are
known by their numbers, which stay theirs under any name.

Rows may also get other values without a change in the log: a column gets another type, an enum's label another name,
the table is not logged for a while, or has no key. `find_alterations` finds it in the catalog. A typmod alone changes
no value unless rows are written again. `vacuum full` and `cluster` write them again, too: after these the TOAST table
is the same, or the rows have the transactions that they had.

>>> table = SourceTable("public", "orders", "orders")
>>> new_in(table, "paid", "has default false")[:52]
'public.orders.paid has default false: rows that were'
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ddflow.columns.names import quoted
from ddflow.connectors.postgres import driver
from ddflow.connectors.postgres_catalog import SourceTable
from ddflow.connectors.postgres_position import Copied, SlotPosition

_FILLED: Final = """
    select a.attname, coalesce('default ' || pg_get_expr(d.adbin, d.adrelid), 'no nulls')
    from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = to_regclass(%s) and a.attname = any(%s)
        and (a.attnotnull or a.atthasdef or a.atthasmissing) order by a.attnum"""
"""New columns of which rows may have values without being written anew."""
_OLDER: Final = """
    select exists (select from only {} where age(xmin) > age(%s::text::xid))
        and txid_snapshot_xmax(txid_current_snapshot()) - %s < 2000000000"""
"""Whether a row was written by a transaction before another one; not known if that is too long ago."""


def warn_of_gone(tables: Iterable[SourceTable], before: SlotPosition | None, position: SlotPosition) -> None:
    """Warn of columns that disappeared between the position ``before`` and the committed one.  O(columns)."""
    for table in tables:
        for name in sorted(_list_dropped_columns(table, position) - _list_dropped_columns(table, before)):
            was = None if before is None else before["tables"].get(table.full)
            more = " any more" if was is not None and name in was["columns"] else ""
            text = f"{table.full} has no column {name!r}{more}: it is null in rows that are written from now on"
            warnings.warn(f"{text}, and in all rows once the table is copied again", stacklevel=2)


def _list_dropped_columns(table: SourceTable, position: SlotPosition | None) -> set[str]:
    of = None if position is None else position["tables"].get(table.full)
    return set() if of is None else set(of.get("gone", ()))


def filled(connection: Any, table: SourceTable, known: Copied, now: Copied) -> dict[str, str]:
    """Return new columns that may have values in unchanged rows, each with the reason.  O(columns).

    The reason follows the column's name in messages.  ``known``: the table at the last position.  Raises Postgres'
    errors.
    """
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


def find_alterations(connection: Any, table: SourceTable, was: Copied, now: Copied) -> list[str]:
    """Return why rows of a table may hold what no change said.  O(columns); O(rows) if another file holds them."""
    found, kinds, labels = list[str](), was.get("types", {}), was.get("labels", {})
    if was.get("unique") and now.get("unique") and not {*was["unique"]} & {*now["unique"]}:
        found.append("its key was another, or none, for a while")
    found += [
        f"{name!r} has another type"
        for name, kind in now["types"].items()
        if kinds.get(name, kind) != kind and was["columns"].get(name) == now["columns"][name]
    ]
    others = {part: label for part, label in now.get("labels", {}).items() if labels.get(part, label) != label}
    found += [
        f"the enum label {labels[part]!r} is {label!r} now"
        if part.isdigit()
        else "a composite type has other attributes"
        for part, label in others.items()
    ]
    if not found and _is_rewritten(connection, table, was, now):
        found.append("its rows were rewritten, as by set unlogged and back, and the log does not say what changed")
    return found


def _is_rewritten(connection: Any, table: SourceTable, was: Copied, now: Copied) -> bool:
    """Return whether `alter table` may have rewritten all rows: no older row is left, and the TOAST table is new."""
    (file, toast, since), (new, own, _) = was.get("file", now["file"]), now["file"]
    if file == new or (toast and toast == own):
        return False
    with suppress(driver().errors.InsufficientPrivilege):  # the role may read some columns only
        older = connection.execute(_OLDER.format(table.quoted.replace("%", "%%")), [since % (1 << 32), since])
        return not older.fetchone()[0]
    return True


def warn_of_altered(table: SourceTable, columns: Mapping[str, str], why: Sequence[str]) -> None:
    """Warn of `filled` columns and of alterations, if the table is not copied again for them."""
    text = "rows that were there may have other values in Postgres than here: to have these, begin a new state"
    said = [new_in(table, name, how) for name, how in columns.items()]
    for each in (*said, *(f"{table.full}: {each}: {text}" for each in why)):
        warnings.warn(each, stacklevel=2)


def new_in(table: SourceTable, name: str, how: str) -> str:
    """Describe a column that was `filled`."""
    text = f"{table.full}.{name} {how}: rows that were there may have a value in Postgres that no "
    text += f"change has, and have null here until Postgres writes them: update {table.quoted} set {quoted(name)} = "
    return text + quoted(name)
