"""Tables of Postgres as its catalog has them, and what it says when something is missing, as what that means here.

>>> table_of("orders", "o").quoted, table_of("shop.my,orders", "o").filtered
('"public"."orders"', 'shop.my\\\\,orders')
>>> print(cell("at", "timestamp with time zone"))
json_build_object('name', 'at', 'value', "at"::text)
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.names import did_you_mean, quoted
from ddflow.connectors.formats.base import DELETED, OWN
from ddflow.connectors.formats.positions import POSITION
from ddflow.connectors.postgres import driver, remedy_of
from ddflow.errors import SourceFailed, SpecError, UnreadableInput

COLUMNS: Final = """
    select a.attname, format_type(a.atttypid, null), c.relreplident,
        exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.oid = to_regclass(%s) order by a.attnum"""


class SourceTable(NamedTuple):
    """A table, and the ``input`` that it feeds."""

    schema: str
    name: str
    input: str

    @property
    def quoted(self) -> str:
        """As it stands in a statement."""
        return ".".join(map(quoted, (self.schema, self.name)))

    @property
    def filtered(self) -> str:
        """As wal2json takes it in ``add-tables``."""
        return ".".join(re.sub(r"([\\,.*\s])", r"\\\1", each) for each in (self.schema, self.name))


def table_of(name: str, input: str) -> SourceTable:
    schema, dot, table = name.rpartition(".")
    return SourceTable(schema if dot else "public", table, input)


def cell(name: str, kind: str) -> str:
    """A column as an object with its name and value, written as wal2json does."""
    column = quoted(name)
    value = column if kind == "boolean" else f"encode({column}, 'hex')" if kind == "bytea" else f"{column}::text"
    return f"json_build_object('name', {literal(name)}, 'value', {value})"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def look(connection: Any, table: SourceTable, declared: pa.Schema, first: bool) -> list[str]:
    """Whether a table can feed its input; the columns that it has no more.  Raises `UnreadableInput`, `SpecError`.

    ``first``: whether it never did, so that it must have all columns.
    """
    asked = f"read the table {table.schema}.{table.name} for {table.input!r}"
    with worded(asked):
        found = connection.execute(COLUMNS, [table.quoted]).fetchall()
    if not found:
        raise UnreadableInput(asked, "there is no such table", "write its schema in front: public.orders")
    if not {POSITION, DELETED} <= set(declared.names):
        raise SpecError(asked, "it takes rows, and changes come as messages", "give it format=dd.formats.wal2json()")
    kinds, gone = {name: kind for name, kind, _, _ in found}, list[str]()
    for column in declared:
        if column.name in OWN:
            continue
        if column.name not in kinds and not first:
            gone.append(column.name)
            continue
        if column.name not in kinds:
            raise UnreadableInput(asked, f"it has no column {column.name!r}", did_you_mean(column.name, kinds))
        if kinds[column.name].endswith("[]") and pat.is_nested(column.type):
            remedy = "declare it as text"
            raise UnreadableInput(asked, f"{column.name!r} is an array, which comes as text", remedy)
    identity, keyed = found[0][2:]
    if identity == "n" or (identity == "d" and not keyed):
        remedy = f"give it a primary key, or: alter table {table.quoted} replica identity full"
        raise UnreadableInput(asked, "it has no replica identity, so nothing tells which row is deleted", remedy)
    return gone


def without(text: pa.Array, gone: Sequence[str]) -> pa.Array:
    """Messages of wal2json in which columns that their table has no more are null, where they are not there.

    An update that lacks a column would say that it stayed as it was.  O(bytes) a column.

    >>> without(pa.array(['{"action":"U","columns":[{"name":"id","type":"integer","value":1}]}']), ["n"]).to_pylist()
    ['{"action":"U","columns":[{"name":"n","value":null},{"name":"id","type":"integer","value":1}]}']
    """
    for name in gone:
        cell_ = f'{{"name":{json.dumps(name, ensure_ascii=False)},'
        nulled = pc.replace_substring(text, '"columns":[', f'"columns":[{cell_}"value":null}},', max_replacements=1)
        text = pc.if_else(pc.match_substring(text, cell_), text, nulled)
    return text


@contextmanager
def worded(asked: str) -> Iterator[None]:
    """What Postgres says, as what it means here: to wait for, or to see to."""
    psycopg = driver()
    of = psycopg.errors
    remedies = {
        of.InsufficientPrivilege: "let it: alter role ... replication; grant select on the table to ...",
        of.ObjectNotInPrerequisiteState: "set wal_level to logical, and start the server again",
        of.ConfigurationLimitExceeded: "raise max_replication_slots, or drop a slot",
        of.UndefinedFile: "install wal2json on the server: apt install postgresql-15-wal2json, or of its version",
        of.InvalidParameterValue: "install wal2json 2.0 or later on the server",
        of.UndefinedObject: "it was dropped: begin a new state, with a new copy",
    }
    try:
        yield
    except psycopg.Error as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        for kind, remedy in remedies.items():
            if isinstance(error, kind):
                raise UnreadableInput(asked, said, remedy) from None
        if (locked := remedy_of(said)) is not None:
            raise UnreadableInput(asked, said, locked) from None
        in_use = "end the other reader, or its session: select pg_terminate_backend(...), with its PID"
        raise SourceFailed(asked, said, in_use if isinstance(error, of.ObjectInUse) else "see to the server") from None
