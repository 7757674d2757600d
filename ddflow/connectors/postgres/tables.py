"""Track the tables of a replication slot: their entries in a position, and alterations of the tables.

`SlotTables` holds the active tables of a source, and the tables to copy first, each with the reason for the copy.
Guarantees: a position contains the slot, the server, and the name, oid and input of each table. Opening the source
fails if the slot, the server or an input differs from the position. If the oid of a table differs from the oid in the
position, ddflow copies the table again. Columns are identified by their numbers, because a number survives a rename.
`find_alterations` finds alterations that write no rows to the log. After an alteration of a table, ddflow copies the
table again, or warns.
Limits: if a server was restored from a copy of its files, ddflow recognises this only until the server's log has passed
the position. ddflow does not notice that a table was renamed and renamed back between two polls.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NotRequired, TypedDict

import pyarrow as pa

from ddflow.columns.names import quote_name
from ddflow.connectors.api import Polled, UndeclaredColumn
from ddflow.connectors.postgres.catalog import (
    SourceTable,
    TableMetadata,
    find_key_constraints,
    format_lsn,
    look_up_table,
    parse_lsn,
    refuse_unlisted_child_tables,
)
from ddflow.connectors.postgres.changes import NonFiniteNumbers, SlotChanges, SlotStart, copy_rows, peek_slot_changes
from ddflow.connectors.postgres.sink import import_psycopg
from ddflow.errors import SourceChanged, SpecError

ANEW: Final = "create a new state, with a new copy"
LEFT: Final = "an earlier run scheduled another copy of it"
"""Reason for a copy that an earlier run requested; the request is part of the position."""
_SYSTEM: Final = "select system_identifier::text from pg_control_system()"


class CopiedTable(TypedDict):
    """A table in a position.

    - ``input``: name of the input that the table feeds.
    - ``oid``: oid of the table.
    - ``columns``: numbers of the columns that ddflow reads.
    - ``last``: greatest column number at the time of the copy.
    - ``gone``: declared columns that were dropped.
    - ``again``: whether to copy the table again.
    - ``types``, ``labels``, ``file``: see `TableMetadata`.
    - ``unique``: oids of the constraints that make the table's key unique.

    >>> orders = CopiedTable(input="orders", oid=16384, columns={"id": 1}, last=3)
    >>> position = build_position(23803720, "shop", "77", {"public.orders": orders})
    >>> position["lsn"], position["tables"]["public.orders"]["oid"]
    ('0/16B3748', 16384)
    >>> check_position("read the slot 'shp'", position, "shp", "77", 23803720)
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
    """Position of a Postgres source.

    ``lsn``: end of the last read commit in the log.  ``slot``: name of the slot.  ``system``: id of the server.
    ``tables``: tables by full name.
    """

    lsn: str
    slot: str
    system: str
    tables: dict[str, CopiedTable]


def build_position(at: int, slot: str, system: str, tables: Mapping[str, CopiedTable]) -> SlotPosition:
    """Build the position of a slot whose changes were read up to the place ``at`` in the log."""
    return SlotPosition(lsn=format_lsn(at), slot=slot, system=system, tables=dict(tables))


def build_copied_tables(
    looked: Mapping[SourceTable, TableMetadata], before: Mapping[str, CopiedTable], unique: Mapping[str, list[int]]
) -> dict[str, CopiedTable]:
    """Build the tables of a position.

    ``looked``: current metadata of the tables.  ``before``: tables of the last position.  ``unique``: oids of the
    constraints that make keys unique, by table.
    """
    out = dict[str, CopiedTable]()
    for table, each in looked.items():
        was = before.get(table.full_name)
        columns, last, file = each.columns, each.last, [*each.file]
        if was is not None:
            columns, last = {**was["columns"], **columns}, was["last"]
            file = was["file"] if was.get("file", [])[:2] == file[:2] else file
        of = CopiedTable(
            input=table.input, oid=each.oid, columns=dict(columns), last=last, types=dict(each.types), file=file
        )
        if each.gone:
            of["gone"] = sorted(each.gone)
        if each.labels:
            of["labels"] = dict(each.labels)
        if table.full_name in unique:
            of["unique"] = unique[table.full_name]
        out[table.full_name] = of
    return out


def read_system_id(connection: Any) -> str:
    """Return the identifier of a server; "" if the role is not allowed to read the identifier.

    A server that runs on a copy of the files has the same identifier.
    """
    try:
        return str(connection.execute(_SYSTEM).fetchone()[0])
    except import_psycopg().errors.InsufficientPrivilege:
        return ""


def check_position(asked: str, position: SlotPosition, slot: str, system: str, ends: int) -> None:
    """Raise `SpecError` if the position belongs to a different slot, and `SourceChanged` if to a different server.

    ``ends``: end of the server's log.  The function also raises `SourceChanged` if the log ends before the position.
    """
    if position["slot"] != slot:
        raise SpecError(asked, f"this state reads the slot {position['slot']!r}", f"write slot={position['slot']}")
    remedy = f"the state has changes that the server does not have: {ANEW}"
    if position["system"] != system and position["system"] and system:
        said = f"it is another server: its system identifier is {system}, but was {position['system']}"
        raise SourceChanged(asked, said, remedy)
    if ends < parse_lsn(position["lsn"]):
        said = f"the server's log ends at {format_lsn(ends)}, but the state has read it up to {position['lsn']}: "
        raise SourceChanged(asked, f"{said}it was set back, for example to a backup", remedy)


def check_same_tables(known: Mapping[str, CopiedTable], tables: Iterable[SourceTable]) -> None:
    """Raise `SpecError` if a table of the source, or the input of a table, differs from the position.

    O(tables).
    """
    by_input = {table.input: table.full_name for table in tables}
    for name, each in known.items():
        if name not in by_input.values() and each["input"] in by_input:
            found = f"this state reads it from {name}, and would skip unread changes of that table"
            asked = f"read {each['input']!r} from {by_input[each['input']]}"
            raise SpecError(asked, found, f"name {name}; or {ANEW}")
    for table in tables:
        was = known.get(table.full_name)
        if was is not None and was["input"] != table.input:
            found = f"this state reads it for {was['input']!r}, but has no copy of it for {table.input!r}"
            asked = f"read the table {table.full_name} for {table.input!r}"
            raise SpecError(asked, found, f"let it feed {was['input']!r}; or {ANEW}")


_FILLED: Final = """
    select a.attname, coalesce('default ' || pg_get_expr(d.adbin, d.adrelid), 'no nulls')
    from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = to_regclass(%s) and a.attname = any(%s)
        and (a.attnotnull or a.atthasdef or a.atthasmissing) order by a.attnum"""
"""Query for new columns with a default or without nulls.

Old rows can have values in a new column although no change contains these values.
"""
_OLDER: Final = """
    select exists (select from only {} where age(xmin) > age(%s::text::xid))
        and txid_snapshot_xmax(txid_current_snapshot()) - %s < 2000000000"""
"""Query for whether a row is older than a transaction; false if the transaction is too old for the comparison."""


def warn_of_dropped_columns(tables: Iterable[SourceTable], before: SlotPosition | None, position: SlotPosition) -> None:
    """Warn of columns that were dropped after the position ``before`` and up to the committed position.  O(columns)."""
    for table in tables:
        for name in sorted(_list_dropped_columns(table, position) - _list_dropped_columns(table, before)):
            was = None if before is None else before["tables"].get(table.full_name)
            more = " any more" if was is not None and name in was["columns"] else ""
            text = f"{table.full_name} has no column {name!r}{more}: it is null in rows that are written from now on"
            warnings.warn(f"{text}, and in all rows once the table is copied again", stacklevel=2)


def _list_dropped_columns(table: SourceTable, position: SlotPosition | None) -> set[str]:
    of = None if position is None else position["tables"].get(table.full_name)
    return set() if of is None else set(of.get("gone", ()))


def find_prefilled_columns(connection: Any, table: SourceTable, known: CopiedTable, now: CopiedTable) -> dict[str, str]:
    """Return new columns that may have values in unchanged rows, with the reason for each column.  O(columns).

    Messages show the reason after the name of the column.  ``known``: the table at the last position.  ``now``: the
    table now.  Raises errors of psycopg.
    """
    was, gone = known["columns"], set(known.get("gone", ())) - set(now.get("gone", ()))
    fresh = {name: at for name, at in now["columns"].items() if was.get(name) != at or name in gone}
    if not fresh:
        return {}
    found = dict.fromkeys(
        (name for name, at in fresh.items() if at <= known["last"] or at in was.values()), "existed, but was not read"
    )
    found |= dict.fromkeys((name for name in fresh if name in was), "is not the same column as before")
    added = connection.execute(_FILLED, [table.quoted_name, [name for name in fresh if name not in found]]).fetchall()
    return found | {name: f"has {how}" for name, how in added}


def find_alterations(connection: Any, table: SourceTable, was: CopiedTable, now: CopiedTable) -> list[str]:
    """Return the alterations by which rows of a table may have got values that no change contains.

    ``was``, ``now``: the table at the last position and now.  O(columns), or O(rows) if the table has a new file.
    """
    found, kinds, labels = list[str](), was.get("types", {}), was.get("labels", {})
    if was.get("unique") and now.get("unique") and not {*was["unique"]} & {*now["unique"]}:
        found.append("its key was different or missing for a while")
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
    if not found and _is_table_rewritten(connection, table, was, now):
        found.append("its rows were rewritten, as by set unlogged and set logged, but the log lacks the changes")
    return found


def _is_table_rewritten(connection: Any, table: SourceTable, was: CopiedTable, now: CopiedTable) -> bool:
    """Return whether `alter table` may have rewritten all rows.

    The result is True if the table's file and its TOAST table are new, and no row is older than the last position.
    """
    (file, toast, since), (new, own, _) = was.get("file", now["file"]), now["file"]
    if file == new or (toast and toast == own):
        return False
    with suppress(import_psycopg().errors.InsufficientPrivilege):  # the role may read some columns only
        older = connection.execute(_OLDER.format(table.quoted_name.replace("%", "%%")), [since % (1 << 32), since])
        return not older.fetchone()[0]
    return True


def warn_of_alterations(table: SourceTable, columns: Mapping[str, str], why: Sequence[str]) -> None:
    """Warn of alterations and of prefilled columns in a table that cannot be copied again."""
    text = "older rows may have other values in Postgres than in this state: to get them, create a new state"
    said = [describe_new_column(table, name, how) for name, how in columns.items()]
    for each in (*said, *(f"{table.full_name}: {each}: {text}" for each in why)):
        warnings.warn(each, stacklevel=2)


def describe_new_column(table: SourceTable, name: str, how: str) -> str:
    """Describe a column that `find_prefilled_columns` returned.

    >>> table = SourceTable("public", "orders", "orders")
    >>> describe_new_column(table, "paid", "has default false")[:52]
    'public.orders.paid has default false: older rows may'
    """
    text = f"{table.full_name}.{name} {how}: older rows may have a value in Postgres that no "
    column = quote_name(name)
    text += "change has, and have null in this state until Postgres writes them: "
    return f"{text}update {table.quoted_name} set {column} = {column}"


class SlotTables:
    """Tables of an open Postgres source.

    ``looked``: metadata of the tables at the opening.  ``recopy``: whether ddflow may copy a table again.

    >>> table = SourceTable("public", "orders", "orders")
    >>> tables = SlotTables(None, {table: TableMetadata([], [], [], 9, {"id": 1}, 1)}, {}, None, recopy=False)
    >>> tables.active_tables, tables.to_copy
    ((SourceTable(schema='public', name='orders', input='orders'),), {})
    >>> tables.whole = frozenset(["orders"])
    >>> tables.request_recopy(table, "it is another table")
    Traceback (most recent call last):
        ...
    ddflow.errors.SourceChanged: read the table public.orders for 'orders': it is another table; run once ...
    """

    def __init__(
        self,
        connection: Any,
        looked: Mapping[SourceTable, TableMetadata],
        inputs: Mapping[str, pa.Schema],
        position: SlotPosition | None,
        recopy: bool,
    ) -> None:
        self.connection, self.inputs, self.recopy, self.every = connection, inputs, recopy, tuple(looked)
        refuse_unlisted_child_tables(looked, {table.full_name for table in looked})
        known = build_copied_tables(looked, {}, {}) if position is None else position["tables"]
        self.copied = {table.full_name: known[table.full_name] for table in looked if table.full_name in known}
        """Copied tables, by full name, as the position stores them."""
        self.to_copy = {
            table: LEFT if table.full_name in known else ""
            for table in looked
            if table.full_name not in known or known[table.full_name].get("again")
        }
        """Tables to copy, with the reason why ddflow copies each table again; "" for a new table."""
        self.keys: Mapping[str, Sequence[str]] = {}
        self.whole = frozenset[str]()
        """Inputs that can take their full contents in one batch."""
        self.beside = dict[str, dict[str, UndeclaredColumn]]()
        """Undeclared columns by input."""
        self.numbers = NonFiniteNumbers()

    @property
    def active_tables(self) -> tuple[SourceTable, ...]:
        """Tables for which no copy is pending; the source reads the changes of these tables."""
        return tuple(table for table in self.every if table not in self.to_copy)

    def resume(self, position: SlotPosition) -> None:
        """Check that the source can continue with the tables of a position.  Raises `SpecError`, `SourceChanged`."""
        check_same_tables(position["tables"], self.every)
        for table, why in self.to_copy.items():
            if why:
                self._check_recopy_allowed(table, why)

    def look_up_one_table(self, table: SourceTable) -> TableMetadata:
        """Look up the metadata of one table."""
        return look_up_table(self.connection, table, self.inputs[table.input], first=table.full_name not in self.copied)

    def look_up_active_tables(self) -> dict[SourceTable, TableMetadata]:
        """Look up the metadata of the active tables.  Request a copy of each table whose changes the log lacks."""
        looked = {table: self.look_up_one_table(table) for table in self.active_tables}
        refuse_unlisted_child_tables(looked, {table.full_name for table in self.every})
        now = build_copied_tables(looked, self.copied, find_key_constraints(self.connection, self.every, self.keys))
        for table in looked:
            self._check_for_recopy(table, self.copied[table.full_name], now[table.full_name])
        looked = {table: each for table, each in looked.items() if table not in self.to_copy}
        self.copied |= {table.full_name: now[table.full_name] for table in looked}
        return looked

    def _check_for_recopy(self, table: SourceTable, was: CopiedTable, now: CopiedTable) -> None:
        """Compare a table with the last position.

        If the log may lack values of the table's rows, request a copy. If the table's input cannot take a second copy,
        warn.
        """
        if was["oid"] != now["oid"]:
            found = f"it is not the table that was copied (its oid is {now['oid']}, but was {was['oid']})"
            self.request_recopy(table, found)
            return
        new = find_prefilled_columns(self.connection, table, was, now)
        why = find_alterations(self.connection, table, was, now)
        if table.input not in self.whole:
            warn_of_alterations(table, new, why)
        elif new or why:
            self.request_recopy(table, "; ".join([*(f"{name!r} {how}" for name, how in new.items()), *why]))

    def request_recopy(self, table: SourceTable, why: str) -> None:
        """Schedule another copy of a table.

        Raises `SourceChanged` if the table's input cannot take full contents, or if the source has ``recopy=False``.
        """
        if table.input not in self.whole:
            asked = f"read the table {table.full_name} for {table.input!r}"
            raise SourceChanged(asked, why, f"its earlier rows are lost, because the input folds rows: {ANEW}")
        self._check_recopy_allowed(table, why)
        self.to_copy[table] = why
        self.copied[table.full_name] = {**self.copied[table.full_name], "again": True}

    def _check_recopy_allowed(self, table: SourceTable, why: str) -> None:
        """Raise `SourceChanged` if the source has ``recopy=False``."""
        if not self.recopy:
            remedy = "run once without recopy=False, which copies the table again; or create a new state"
            raise SourceChanged(f"read the table {table.full_name} for {table.input!r}", why, remedy)

    def peek_changes(self, slot: str, **how: Any) -> SlotChanges:
        """Read changes from a slot with `peek_slot_changes`.  Request a copy of each table with incomplete changes."""
        try:
            found = peek_slot_changes(
                self.connection, slot, self.look_up_active_tables(), self.keys, self.numbers, **how
            )
        except import_psycopg().errors.InvalidParameterValue as error:
            if not self.numbers.detect_text_refusal(error):
                raise
            return self.peek_changes(slot, **how)
        for table, why in {**found.untold, **found.lost}.items():
            if table in found.lost or table.input in self.whole:
                self.request_recopy(table, why)
        return found

    def copy_tables(self, tables: Sequence[SourceTable], begins: SlotStart) -> Iterator[Polled]:
        """Yield all rows of some tables, as they are in the snapshot of a slot."""
        whole = {table.input for table in tables if self.to_copy.get(table)}
        yield from copy_rows(
            self.connection, tables, self.inputs, begins, self.beside, self._build_nonfinite_replacer, whole
        )

    def _build_nonfinite_replacer(self, table: SourceTable) -> Callable[[pa.Array], pa.Array]:
        looked, key = self.look_up_one_table(table), self.keys.get(table.input, ())
        return lambda text: self.numbers.replace_nonfinite_numbers(text, table, looked, key)

    def note_copied_tables(self, new: Mapping[SourceTable, TableMetadata], unique: Mapping[str, list[int]]) -> None:
        """Make copied tables active.  ``unique``: see `build_copied_tables`."""
        self.copied |= build_copied_tables(new, {}, unique)
        for table in new:
            del self.to_copy[table]
