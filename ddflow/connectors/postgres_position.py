"""What a state remembers of a slot of Postgres, and whether what it is opened on is still that.

Invariant: a position names the slot, the server and the tables that it is of, each table by its name, its oid and the
input that it feeds. Where one of them is another now, changes would be taken of rows that nobody copied, or passed
over, and nothing in the log tells it: so it is an error, before anything is read; another table of the same name is
copied. A table whose input the plan has no more leaves the position; of all others the caller has seen to it that they
are still fed.

Not seen: a server that was set back by a copy of its files, and whose log has grown past the position before anybody
looked; and what was written to a table while it had another name, between two looks.

>>> orders = Copied(input="orders", oid=16384, columns={"id": 1}, last=3)
>>> position = remembered(23803720, "shop", "77", {"public.orders": orders})
>>> position["lsn"], position["tables"]["public.orders"]["oid"]
('0/16B3748', 16384)
>>> same_slot("read the slot 'shp'", position, "shp")
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: read the slot 'shp': this state reads the slot 'shop'; write slot=shop
"""

from collections.abc import Mapping
from typing import Any, Final, NotRequired, TypedDict

from ddflow.connectors.postgres import driver
from ddflow.connectors.postgres_catalog import Looked, SourceTable
from ddflow.connectors.postgres_stream import place, text_of
from ddflow.errors import SourceChanged, SpecError

ANEW: Final = "begin a new state, with a new copy"
_SYSTEM: Final = "select system_identifier::text from pg_control_system()"


class Copied(TypedDict):
    """A table of a position: the ``input`` that it feeds, its ``oid`` in Postgres, the ``columns`` that it was read in
    by their numbers, the ``last`` number of a column when it was copied, declared columns that are ``gone``, if any
    are, and whether it is to be copied ``again``.  ``types``, ``labels``, ``file``: as of `Looked`.  ``unique``: the
    constraints that say that its key tells its rows apart, by their oids."""

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


def remembered(at: int, slot: str, system: str, tables: Mapping[str, Copied]) -> SlotPosition:
    return SlotPosition(lsn=text_of(at), slot=slot, system=system, tables=dict(tables))


def copied(
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
    if ends < place(position["lsn"]):
        said = f"the server's log ends at {text_of(ends)}, and the state has read it up to {position['lsn']}: "
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
