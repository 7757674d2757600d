"""The position of a state in a slot, and what changed in its tables since: columns, types, keys and files.

Guarantees: a position names the slot, the server and each table by name, oid and input. If one of them is another now,
opening fails before anything is read. Columns are known by number, which survives a rename. `find_alterations` finds
changes that write no rows to the log, and the table is then copied again.
Limits: a server restored from a file copy is not recognised once its log has passed the position; a table renamed
back and forth between two polls is not noticed.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NotRequired, TypedDict

from ddflow.columns.names import quoted
from ddflow.connectors.postgres.catalog import Looked, SourceTable, format_lsn, parse_lsn
from ddflow.connectors.postgres.sink import driver
from ddflow.errors import SourceChanged, SpecError

ANEW: Final = "begin a new state, with a new copy"
_SYSTEM: Final = "select system_identifier::text from pg_control_system()"


class Copied(TypedDict):
    """A table of a position: the ``input`` that it feeds, its ``oid`` in Postgres, the ``columns`` that it was read in
    by their numbers, the ``last`` number of a column when it was copied, declared columns that are ``gone``, if any
    are, and whether it is to be copied ``again``.  ``types``, ``labels``, ``file``: as of `Looked`.  ``unique``: the
    constraints that say that its key tells its rows apart, by their oids.

    >>> orders = Copied(input="orders", oid=16384, columns={"id": 1}, last=3)
    >>> position = build_position(23803720, "shop", "77", {"public.orders": orders})
    >>> position["lsn"], position["tables"]["public.orders"]["oid"]
    ('0/16B3748', 16384)
    >>> same_slot("read the slot 'shp'", position, "shp")
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: read the slot 'shp': this state reads the slot 'shop'; write slot=shop
    """

    input: str
    oid: int
    columns: dict[str, int]
    last: int
    gone: NotRequired[list[str]]
    again: NotRequired[bool]
    types: NotRequired[dict[str, int]]
    labels: NotRequired[dict[str, str]]
    file: NotRequired[list[int]]
    unique: NotRequired[list[int]]


class SlotPosition(TypedDict):
    """The end of a commit in Postgres' log (``lsn``), of a ``slot``, a server (``system``) and ``tables``."""

    lsn: str
    slot: str
    system: str
    tables: dict[str, Copied]


def build_position(at: int, slot: str, system: str, tables: Mapping[str, Copied]) -> SlotPosition:
    return SlotPosition(lsn=format_lsn(at), slot=slot, system=system, tables=dict(tables))


def describe_copies(
    looked: Mapping[SourceTable, Looked], before: Mapping[str, Copied], unique: Mapping[str, list[int]]
) -> dict[str, Copied]:
    """Return tables for a position.  ``before``: from an older one, since the copy.  ``unique``: by table."""
    out = dict[str, Copied]()
    for table, each in looked.items():
        was = before.get(table.full)
        columns, last, file = each.columns, each.last, [*each.file]
        if was is not None:
            columns, last = {**was["columns"], **columns}, was["last"]
            file = was["file"] if was.get("file", [])[:2] == file[:2] else file
        of = Copied(
            input=table.input, oid=each.oid, columns=dict(columns), last=last, types=dict(each.types), file=file
        )
        if each.gone:
            of["gone"] = sorted(each.gone)
        if each.labels:
            of["labels"] = dict(each.labels)
        if table.full in unique:
            of["unique"] = unique[table.full]
        out[table.full] = of
    return out


def system_of(connection: Any) -> str:
    """Return the identifier of a server, which a copy of its files shares; "" if a role may not ask."""
    try:
        return str(connection.execute(_SYSTEM).fetchone()[0])
    except driver().errors.InsufficientPrivilege:
        return ""


def same_slot(asked: str, position: SlotPosition, slot: str) -> None:
    """Raise `SpecError` if a position is of another slot."""
    if position["slot"] != slot:
        raise SpecError(asked, f"this state reads the slot {position['slot']!r}", f"write slot={position['slot']}")


def same_server(asked: str, position: SlotPosition, system: str, ends: int) -> None:
    """Raise `SourceChanged` for a server that never had a position.  ``ends``: the end of its log."""
    remedy = f"the state has changes that the server has not: {ANEW}"
    if position["system"] != system and position["system"] and system:
        said = f"it is another server: its system identifier is {system}, and was {position['system']}"
        raise SourceChanged(asked, said, remedy)
    if ends < parse_lsn(position["lsn"]):
        said = f"the server's log ends at {format_lsn(ends)}, and the state has read it up to {position['lsn']}: "
        raise SourceChanged(asked, f"{said}it was set back, as by restoring a copy", remedy)


def same_tables(known: Mapping[str, Copied], looked: Mapping[SourceTable, Looked]) -> None:
    """Raise `SpecError` for a table that was left out, or feeds another input.  O(tables)."""
    by_input = {table.input: table.full for table in looked}
    for name, each in known.items():
        if name not in by_input.values() and each["input"] in by_input:
            found = f"this state reads it from {name}, of which unread changes would be passed over"
            asked = f"read {each['input']!r} from {by_input[each['input']]}"
            raise SpecError(asked, found, f"name {name}; or {ANEW}")
    for table in looked:
        was = known.get(table.full)
        if was is not None and was["input"] != table.input:
            found = f"this state reads it for {was['input']!r}, and has no copy of it for {table.input!r}"
            asked = f"read the table {table.full} for {table.input!r}"
            raise SpecError(asked, found, f"let it feed {was['input']!r}; or {ANEW}")


def lost_changes(table: SourceTable, found: str) -> SourceChanged:
    """Return the error for a table that lost changes and cannot be copied again."""
    asked = f"read the table {table.full} for {table.input!r}"
    return SourceChanged(asked, found, f"what it held is lost here, as its rows are folded: {ANEW}")


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


def find_filled_columns(connection: Any, table: SourceTable, known: Copied, now: Copied) -> dict[str, str]:
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
    """Warn of `find_filled_columns` columns and of alterations, if the table is not copied again for them."""
    text = "rows that were there may have other values in Postgres than here: to have these, begin a new state"
    said = [new_in(table, name, how) for name, how in columns.items()]
    for each in (*said, *(f"{table.full}: {each}: {text}" for each in why)):
        warnings.warn(each, stacklevel=2)


def new_in(table: SourceTable, name: str, how: str) -> str:
    """Describe a column that was `find_filled_columns`.

    >>> table = SourceTable("public", "orders", "orders")
    >>> new_in(table, "paid", "has default false")[:52]
    'public.orders.paid has default false: rows that were'
    """
    text = f"{table.full}.{name} {how}: rows that were there may have a value in Postgres that no "
    text += f"change has, and have null here until Postgres writes them: update {table.quoted} set {quoted(name)} = "
    return text + quoted(name)
