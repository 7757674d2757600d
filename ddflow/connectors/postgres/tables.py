"""Track the tables of a slot: their position, and altered columns, types, keys and files.

`SlotTables` holds the tables of a source: active tables, and tables to copy first, each with the reason for a copy.
Guarantees: a position names the slot, the server and each table by name, oid and input. Opening fails if the slot, the
server or an input differs; a table with another oid is copied again. Columns are identified by number, which survives a
rename. `find_alterations` finds changes that write no rows to the log; ddflow then copies the table again, or warns.
Limits: ddflow does not recognise a server restored from a file copy once its log has passed the position. It does not
notice a table that was renamed back and forth between two polls.
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

ANEW: Final = "begin a new state, with a new copy"
LEFT: Final = "a run before this one was to do so"
"""Reason for a copy if the position already demands it."""
_SYSTEM: Final = "select system_identifier::text from pg_control_system()"


class CopiedTable(TypedDict):
    """A table in a position.

    ``input``: the fed input.  ``oid``: the table's oid.  ``columns``: the numbers of the read columns.  ``last``: the
    greatest column number at the time of the copy.  ``gone``: the declared columns that were dropped.  ``again``:
    whether to copy the table again.  ``types``, ``labels``, ``file``: see `TableMetadata`.  ``unique``: the oids of the
    constraints that make its key unique.

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
    """Position of a source.

    ``lsn``: the end of a commit in the log.  ``slot``: its name.  ``system``: the id of the server.  ``tables``: the
    tables by full name.
    """

    lsn: str
    slot: str
    system: str
    tables: dict[str, CopiedTable]


def build_position(at: int, slot: str, system: str, tables: Mapping[str, CopiedTable]) -> SlotPosition:
    """Build the position of a slot after reading up to the place ``at`` in the log."""
    return SlotPosition(lsn=format_lsn(at), slot=slot, system=system, tables=dict(tables))


def build_copied_tables(
    looked: Mapping[SourceTable, TableMetadata], before: Mapping[str, CopiedTable], unique: Mapping[str, list[int]]
) -> dict[str, CopiedTable]:
    """Build the tables of a position.

    ``looked``: their current metadata.  ``before``: the tables of the last position.  ``unique``: the oids of key
    constraints, by table.
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
    """Return the identifier of a server; "" if the role may not read it.  A copy of its files has the same one."""
    try:
        return str(connection.execute(_SYSTEM).fetchone()[0])
    except import_psycopg().errors.InsufficientPrivilege:
        return ""


def check_position(asked: str, position: SlotPosition, slot: str, system: str, ends: int) -> None:
    """Raise `SpecError` for a position of another slot, and `SourceChanged` for another server.

    ``ends``: the end of the server's log, which must not be before the position.
    """
    if position["slot"] != slot:
        raise SpecError(asked, f"this state reads the slot {position['slot']!r}", f"write slot={position['slot']}")
    remedy = f"the state has changes that the server has not: {ANEW}"
    if position["system"] != system and position["system"] and system:
        said = f"it is another server: its system identifier is {system}, and was {position['system']}"
        raise SourceChanged(asked, said, remedy)
    if ends < parse_lsn(position["lsn"]):
        said = f"the server's log ends at {format_lsn(ends)}, and the state has read it up to {position['lsn']}: "
        raise SourceChanged(asked, f"{said}it was set back, as by restoring a copy", remedy)


def check_same_tables(known: Mapping[str, CopiedTable], tables: Iterable[SourceTable]) -> None:
    """Raise `SpecError` if an input has another table, or a table another input, than in the position.  O(tables)."""
    by_input = {table.input: table.full_name for table in tables}
    for name, each in known.items():
        if name not in by_input.values() and each["input"] in by_input:
            found = f"this state reads it from {name}, of which unread changes would be passed over"
            asked = f"read {each['input']!r} from {by_input[each['input']]}"
            raise SpecError(asked, found, f"name {name}; or {ANEW}")
    for table in tables:
        was = known.get(table.full_name)
        if was is not None and was["input"] != table.input:
            found = f"this state reads it for {was['input']!r}, and has no copy of it for {table.input!r}"
            asked = f"read the table {table.full_name} for {table.input!r}"
            raise SpecError(asked, found, f"let it feed {was['input']!r}; or {ANEW}")


_FILLED: Final = """
    select a.attname, coalesce('default ' || pg_get_expr(d.adbin, d.adrelid), 'no nulls')
    from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = to_regclass(%s) and a.attname = any(%s)
        and (a.attnotnull or a.atthasdef or a.atthasmissing) order by a.attnum"""
"""New columns with a default or without nulls: old rows may have values in them that no change contains."""
_OLDER: Final = """
    select exists (select from only {} where age(xmin) > age(%s::text::xid))
        and txid_snapshot_xmax(txid_current_snapshot()) - %s < 2000000000"""
"""Whether a row is older than a given transaction; false if that transaction is too old to compare."""


def warn_of_dropped_columns(tables: Iterable[SourceTable], before: SlotPosition | None, position: SlotPosition) -> None:
    """Warn of columns that disappeared between the position ``before`` and the committed one.  O(columns)."""
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
    """Return new columns that may have values in unchanged rows, each with the reason.  O(columns).

    Messages show the reason after the name of the column.  ``known``: the table at the last position.  Raises errors of
    psycopg.
    """
    was, gone = known["columns"], set(known.get("gone", ())) - set(now.get("gone", ()))
    fresh = {name: at for name, at in now["columns"].items() if was.get(name) != at or name in gone}
    if not fresh:
        return {}
    found = dict.fromkeys(
        (name for name, at in fresh.items() if at <= known["last"] or at in was.values()), "was there, and not read"
    )
    found |= dict.fromkeys((name for name in fresh if name in was), "is another column than before")
    added = connection.execute(_FILLED, [table.quoted_name, [name for name in fresh if name not in found]]).fetchall()
    return found | {name: f"has {how}" for name, how in added}


def find_alterations(connection: Any, table: SourceTable, was: CopiedTable, now: CopiedTable) -> list[str]:
    """Return reasons why rows may have values that no change contains.

    O(columns), or O(rows) if the table has a new file.
    """
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
    if not found and _is_table_rewritten(connection, table, was, now):
        found.append("its rows were rewritten, as by set unlogged and back, and the log does not say what changed")
    return found


def _is_table_rewritten(connection: Any, table: SourceTable, was: CopiedTable, now: CopiedTable) -> bool:
    """Return whether `alter table` may have rewritten all rows: the TOAST table is new, and no older row remains."""
    (file, toast, since), (new, own, _) = was.get("file", now["file"]), now["file"]
    if file == new or (toast and toast == own):
        return False
    with suppress(import_psycopg().errors.InsufficientPrivilege):  # the role may read some columns only
        older = connection.execute(_OLDER.format(table.quoted_name.replace("%", "%%")), [since % (1 << 32), since])
        return not older.fetchone()[0]
    return True


def warn_of_alterations(table: SourceTable, columns: Mapping[str, str], why: Sequence[str]) -> None:
    """Warn of alterations, and of the columns of `find_prefilled_columns`, in a table that cannot be copied again."""
    text = "rows that were there may have other values in Postgres than here: to have these, begin a new state"
    said = [describe_new_column(table, name, how) for name, how in columns.items()]
    for each in (*said, *(f"{table.full_name}: {each}: {text}" for each in why)):
        warnings.warn(each, stacklevel=2)


def describe_new_column(table: SourceTable, name: str, how: str) -> str:
    """Describe a column from `find_prefilled_columns`.

    >>> table = SourceTable("public", "orders", "orders")
    >>> describe_new_column(table, "paid", "has default false")[:52]
    'public.orders.paid has default false: rows that were'
    """
    text = f"{table.full_name}.{name} {how}: rows that were there may have a value in Postgres that no "
    column = quote_name(name)
    text += "change has, and have null here until Postgres writes them: "
    return f"{text}update {table.quoted_name} set {column} = {column}"


class SlotTables:
    """Tables of an open source.

    ``looked``: their metadata at the opening.  ``recopy``: whether a table may be copied again.

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
        """Tables for the position, by full name."""
        self.to_copy = {
            table: LEFT if table.full_name in known else ""
            for table in looked
            if table.full_name not in known or known[table.full_name].get("again")
        }
        """Tables to copy, each with the reason to copy it again; "" for a new table."""
        self.keys: Mapping[str, Sequence[str]] = {}
        self.whole = frozenset[str]()
        """Inputs that can get their full contents at once."""
        self.beside = dict[str, dict[str, UndeclaredColumn]]()
        """Undeclared columns by input."""
        self.numbers = NonFiniteNumbers()

    @property
    def active_tables(self) -> tuple[SourceTable, ...]:
        """Copied tables, whose changes the source reads."""
        return tuple(table for table in self.every if table not in self.to_copy)

    def resume(self, position: SlotPosition) -> None:
        """Continue with the tables of a position.  Raises `SpecError`, `SourceChanged`."""
        check_same_tables(position["tables"], self.every)
        for table, why in self.to_copy.items():
            if why:
                self._check_recopy_allowed(table, why)

    def look_up_one_table(self, table: SourceTable) -> TableMetadata:
        """Look up one table."""
        return look_up_table(self.connection, table, self.inputs[table.input], first=table.full_name not in self.copied)

    def look_up_active_tables(self) -> dict[SourceTable, TableMetadata]:
        """Look up the active tables, and request a copy of each table with changes missing in the log."""
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

        If the log may lack values of its rows, request a copy, or warn if its input cannot take one.
        """
        if was["oid"] != now["oid"]:
            found = f"it is another table than the one that was copied (oid {now['oid']}, and it was {was['oid']})"
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

        Raises `SourceChanged` if its input cannot take full contents, or if the source has ``recopy=False``.
        """
        if table.input not in self.whole:
            asked = f"read the table {table.full_name} for {table.input!r}"
            raise SourceChanged(asked, why, f"what it held is lost here, as its rows are folded: {ANEW}")
        self._check_recopy_allowed(table, why)
        self.to_copy[table] = why
        self.copied[table.full_name] = {**self.copied[table.full_name], "again": True}

    def _check_recopy_allowed(self, table: SourceTable, why: str) -> None:
        """Raise `SourceChanged` if the source has ``recopy=False``."""
        if not self.recopy:
            remedy = "run once without recopy=False, which copies the table again; or begin a new state"
            raise SourceChanged(f"read the table {table.full_name} for {table.input!r}", why, remedy)

    def peek_changes(self, slot: str, **how: Any) -> SlotChanges:
        """Read changes from a slot like `peek_slot_changes`, and request a copy of tables with incomplete changes."""
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
        """Read all rows of tables in the snapshot of a slot."""
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
