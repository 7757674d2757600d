"""Tables of Postgres as its catalog has them, and what it says when something is missing, as what that means here.

>>> table_of("orders", "o").quoted, table_of("shop.my,orders", "o").filtered
('"public"."orders"', 'shop.my\\\\,orders')
>>> print(cell("at", None))
'{"name":"at","value":' || 'null}'
"""

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.names import did_you_mean, quoted
from ddflow.connectors.attached import SourceNotLetIn
from ddflow.connectors.formats.base import DELETED, OWN
from ddflow.connectors.formats.positions import POSITION
from ddflow.connectors.postgres import driver, remedy_of
from ddflow.errors import SourceFailed, SpecError, UnreadableInput

COLUMNS: Final = """
    select a.attname, format_type(a.atttypid, null), c.relreplident,
        exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary), c.relkind, c.relpersistence,
        c.oid::bigint, a.attnum::int, a.attnotnull
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.oid = to_regclass(%s) order by a.attnum"""

LOG: Final = logging.getLogger("ddflow")
LOSSY: Final = ("real", "double precision", "numeric")
"""Types of which wal2json writes NaN and the infinities as null, unless it writes numbers as text, since 2.6."""
NEWER: Final = "install wal2json 2.6 or later on the server, which writes them as they are"
"""What keeps values of `LOSSY` types."""
TABLES: Final = """
    select schemaname, tablename from pg_tables where schemaname !~ '^pg_' and schemaname <> 'information_schema'"""
UNIQUE: Final = """
    select c.relreplident, coalesce(i.indisprimary, false), coalesce(i.indisreplident, false),
        array(select a.attname::text from pg_attribute a
            where a.attrelid = c.oid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) order by a.attnum)
    from pg_class c left join pg_index i on i.indrelid = c.oid
        and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null
    where c.oid = to_regclass(%s) order by i.indisprimary desc, i.indexrelid"""
"""What tells the rows of a table apart: its replica identity, and the columns of each unique index."""


class SourceTable(NamedTuple):
    """A table, and the ``input`` that it feeds."""

    schema: str
    name: str
    input: str

    @property
    def full(self) -> str:
        """Its name behind its schema's, for people."""
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        """As it stands in a statement."""
        return ".".join(map(quoted, (self.schema, self.name)))

    @property
    def filtered(self) -> str:
        """As wal2json takes it in ``add-tables``."""
        return ".".join(re.sub(r"([\\,.*\s])", r"\\\1", each) for each in (self.schema, self.name))


class Looked(NamedTuple):
    """What a table has for its input."""

    gone: Sequence[str]
    """The columns that it has no more."""
    certain: Sequence[str]
    """Columns of `LOSSY` types that are never null; a message says whether they were so when it was written."""
    lossy: Sequence[str]
    """All columns of `LOSSY` types."""
    oid: int
    """Of the table, whatever it is called."""
    columns: Mapping[str, int]
    """The columns that it is read in, by their numbers in its catalog, which no other column of it ever gets."""
    last: int
    """The greatest number of a column."""
    exact: Mapping[str, pa.DataType] = MappingProxyType({})
    """Columns of `LOSSY` types that are read in a type that has neither NaN nor the infinities."""


def table_of(name: str, input: str) -> SourceTable:
    schema, dot, table = name.rpartition(".")
    return SourceTable(schema if dot else "public", table, input)


def cell(name: str, kind: str | None) -> str:
    """Return SQL for a column as the text of a JSON object, with its value as wal2json writes it.

    ``kind``: None for a column that is not there.  `concat` uses the type's output function, as wal2json does: a cast
    to text strips the blanks of ``char(n)`` and adds ``/32`` to ``inet``.
    """
    head, column = literal(f'{{"name":{json.dumps(name, ensure_ascii=False)},"value":'), quoted(name)
    if kind is None:
        return f"{head} || 'null}}'"
    value = column if kind == "boolean" else f"encode({column}, 'hex')" if kind == "bytea" else f"concat({column})"
    # `is not null` is false of a composite value with a null in it.
    text = f"case when {column} is distinct from null then to_json({value})::text else 'null' end"
    return f"{head} || {text} || '}}'"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def look(connection: Any, table: SourceTable, declared: pa.Schema, first: bool) -> Looked:
    """Whether a table can feed its input, and what its columns are.  Raises `UnreadableInput`, `SpecError`.

    ``first``: whether it never did, so that it must have all columns.
    """
    asked = f"read the table {table.full} for {table.input!r}"
    with worded(asked):
        found = connection.execute(COLUMNS, [table.quoted]).fetchall()
    if not found:
        raise UnreadableInput(asked, "there is no such table", _alike(connection, table))
    identity, keyed, of, lasting = found[0][2:6]
    if of == "p":
        remedy = "give each partition an input of its own, and put them together by union all"
        raise UnreadableInput(asked, "it is partitioned, and what changes comes from its partitions", remedy)
    if of != "r" or lasting != "p":
        raise UnreadableInput(asked, "it is no table whose changes the log has", "name a table that is logged")
    if not {POSITION, DELETED} <= set(declared.names):
        raise SpecError(asked, "it takes rows, and changes come as messages", "give it format=dd.formats.wal2json()")
    kinds, gone = {name: kind for name, kind, *_ in found}, list[str]()
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
    if identity == "n" or (identity == "d" and not keyed):
        remedy = f"give it a primary key, or: alter table {table.quoted} replica identity full"
        raise UnreadableInput(asked, "it has no replica identity, so nothing tells which row is deleted", remedy)
    lossy = [row[0] for row in found if row[1] in LOSSY and row[0] in declared.names]
    numbers = {row[0]: row[7] for row in found}
    read = {name: number for name, number in numbers.items() if name in declared.names}
    certain = [row[0] for row in found if row[-1] and row[0] in lossy]
    exact = {name: declared.field(name).type for name in lossy}
    exact = {name: kind for name, kind in exact.items() if pat.is_decimal(kind) or pat.is_integer(kind)}
    return Looked(gone, certain, lossy, found[0][6], read, max(numbers.values()), exact)


def has_columns(
    connection: Any, tables: Iterable[SourceTable], inputs: Mapping[str, pa.Schema], new: Mapping[str, Collection[str]]
) -> None:
    """Refuse columns, ``new`` by input, that a table does not have.  Raises `UnreadableInput`."""
    for table in tables:
        read = {*OWN, *new.get(table.input, ())}
        if read != {*OWN}:
            declared = pa.schema([field for field in inputs[table.input] if field.name in read])
            look(connection, table, declared, first=True)


def _alike(connection: Any, table: SourceTable) -> str:
    """The remedy where a table is not there: those that may be meant."""
    there = {f"{schema}.{name}": name for schema, name in connection.execute(TABLES).fetchall()}
    name = f"{table.schema}.{table.name}"
    near = [each for each in there if there[each] == table.name] or get_close_matches(name, list(there), 9, 0)
    if not near:
        return "make it, or see to the database: it has none"
    return f"{did_you_mean(name, near)}; write the schema in front, and capital letters as they are, without quotes"


def identified(connection: Any, tables: Iterable[SourceTable], keys: Mapping[str, Sequence[str]]) -> None:
    """Refuse keys, by input, by which not every row of a table is one row.  Raises `UnreadableInput`."""
    for table in tables:
        if table.input in keys:
            _identified(connection, table, keys[table.input])


def _identified(connection: Any, table: SourceTable, key: Sequence[str]) -> None:
    """Refuse a key by which not every row of a table is one row.  Raises `UnreadableInput`.

    A change tells the row that it is of by the columns of the replica identity, or by all where that is full. So a key
    is exactly those columns; where all are there, one that holds the columns of a unique index.
    """
    asked = f"read the table {table.full} for {table.input!r}, with key={list(key)}"
    with worded(asked):
        found = connection.execute(UNIQUE, [table.quoted]).fetchall()
    full = any(identity == "f" for identity, *_ in found)
    by = {"d": 1, "i": 2}
    telling = [row[3] for row in found if row[3] and (full or row[by.get(row[0], 1)])]
    if any(set(each) <= set(key) if full else set(each) == set(key) for each in telling):
        return
    other = " or ".join(f"key={each}" for each in telling)
    if full:
        index = f"create unique index on {table.quoted} ({', '.join(map(quoted, key))})"
        remedy = f"give it {other}, or: {index}" if other else index
        raise UnreadableInput(asked, "no unique index says that these differ in every row", remedy)
    remedy = f"give it {other}" if other else f"alter table {table.quoted} replica identity full"
    if other and any(row[3] and set(row[3]) <= set(key) for row in found):
        remedy += f", or: alter table {table.quoted} replica identity full"
    said = " and ".join(str(each) for each in telling) or "nothing"
    raise UnreadableInput(asked, f"its replica identity tells a row by {said}", remedy)


def with_null(text: pa.Array, name: str, more: str = "") -> pa.Array:
    """Those messages of wal2json in which a column is null.  ``more``: what is to stand behind it.  O(bytes)."""
    cell_ = f'{{"name":{re.escape(json.dumps(name, ensure_ascii=False))},"type":"[^"]*","value":null{more}'
    return text.filter(pc.match_substring_regex(text, cell_))


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
        of.ConfigurationLimitExceeded: "raise max_replication_slots, or drop a slot",
        of.UndefinedFile: "install wal2json on the server: apt install postgresql-15-wal2json, or of its version",
        of.UndefinedObject: "it was dropped: begin a new state, with a new copy",
    }
    try:
        yield
    except psycopg.Error as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if isinstance(error, of.ObjectNotInPrerequisiteState) and "wal_level" in said:
            raise UnreadableInput(asked, said, "set wal_level to logical, and start the server again") from None
        if isinstance(error, of.InvalidParameterValue) and re.search(r"\boption\b", said):
            raise UnreadableInput(asked, said, "install wal2json 2.0 or later on the server") from None
        for kind, remedy in remedies.items():
            if isinstance(error, kind):
                raise UnreadableInput(asked, said, remedy) from None
        if (locked := remedy_of(said)) is not None:
            raise SourceNotLetIn(asked, said, locked) from None
        in_use = "end the other reader, or its session: select pg_terminate_backend(...), with its PID"
        raise SourceFailed(asked, said, in_use if isinstance(error, of.ObjectInUse) else "see to the server") from None
