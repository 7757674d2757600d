"""Read tables, keys and columns from the catalog of Postgres, and stream the rows of a query by COPY.

Guarantees: a missing table, key or permission raises an error that says how to fix it. `stream_rows` yields Arrow
tables of complete rows, and runs no Python code for each cell. In this code, a place in the log (LSN) is a number;
messages and positions show the place in the format of Postgres.

>>> parse_table_name("orders", "o").quoted_name, parse_table_name("shop.my,orders", "o").wal2json_name
('"public"."orders"', 'shop.my\\\\,orders')
>>> print(build_json_column_sql("at", None))
'{"name":"at","value":' || 'null}'
"""

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.types as pat

from ddflow.columns.names import did_you_mean, quote_name, split_qualified_name
from ddflow.connectors.api import SourceNotLetIn
from ddflow.connectors.formats.base import DELETED, OWN
from ddflow.connectors.formats.messages import POSITION
from ddflow.connectors.postgres.sink import find_login_remedy, import_psycopg
from ddflow.errors import SourceFailed, SpecError, UnreadableInput, convert_errors, first_line

COLUMNS: Final = """
    select a.attname as name, format_type(a.atttypid, null) as kind, a.attnum::int as number,
        case a.atttypid when 1700 then format_type(a.atttypid, a.atttypmod) else '' end as precise,
        a.atttypid::bigint as type, a.attnotnull as certain, c.oid::bigint as table,
        c.relkind, c.relpersistence, c.relreplident,
        exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary) as keyed,
        c.relfilenode::bigint as file, c.reltoastrelid::bigint as toast,
        txid_snapshot_xmin(txid_current_snapshot()) as since, row_security_active(c.oid) as hidden,
        array(select array[m.nspname, p.relname]::text[]
            from pg_inherits h join pg_class p on p.oid = h.inhrelid join pg_namespace m on m.oid = p.relnamespace
            where h.inhparent = c.oid and p.relpersistence <> 't' order by p.oid) as children
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.oid = to_regclass(%s) and array[n.nspname, c.relname]::text[] = %s order by a.attnum"""
"""Query for the columns of a table.  Each row of the result has facts about a column and about the table."""
LABELS: Final = """
    with recursive parts(type) as (
        select unnest(%s::bigint[])::oid union
        select p.type from parts o join pg_type t on t.oid = o.type cross join lateral (
            select t.typelem union select t.typbasetype
            union select rngsubtype from pg_range r
                where t.oid::text in (rngtypid::text, to_jsonb(r) ->> 'rngmultitypid')
            union select atttypid from pg_attribute where attrelid = t.typrelid and attnum > 0 and not attisdropped
        ) p(type) where p.type >= 16384)
    select e.oid::text, e.enumlabel::text from parts join pg_enum e on e.enumtypid = type
    union all select 'row ' || type, string_agg(a.attnum || ' ' || a.atttypid, ', ' order by a.attnum)
    from parts join pg_type t on t.oid = type join pg_attribute a on a.attrelid = t.typrelid
    where t.typrelid <> 0 and a.attnum > 0 and not a.attisdropped group by type"""
"""Query for the labels of enums and the attributes of composite types.  The query includes nested types.

The text of a value depends on labels and attributes, so ddflow must notice when these change.
"""
OWN_TYPES: Final = 16384
"""First oid of user-defined types."""
LOG: Final = logging.getLogger("ddflow")
LOSSY: Final = ("real", "double precision", "numeric")
"""Types with NaN and infinities.  wal2json writes null for NaN and infinities.

From version 2.6 on, wal2json can write numbers as text, which keeps NaN and infinities.
"""
NEWER: Final = "install wal2json 2.6 or later on the server, which writes such values unchanged"
"""Remedy in error messages about a lost value of a type in `LOSSY`."""
TABLES: Final = """
    select schemaname, tablename from pg_tables where schemaname !~ '^pg_' and schemaname <> 'information_schema'"""
UNIQUE: Final = """
    select c.relreplident, coalesce(i.indisprimary, false), coalesce(i.indisreplident, false),
        coalesce((select oid from pg_constraint where conindid = i.indexrelid and contype in ('p', 'u')),
            i.indexrelid)::bigint,
        array(select a.attname::text from pg_attribute a
            where a.attrelid = c.oid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) order by a.attnum)
    from pg_class c left join pg_index i on i.indrelid = c.oid
        and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null
    where c.oid = to_regclass(%s) order by i.indisprimary desc, i.indexrelid"""
"""Query for the replica identity of a table and for the columns of each of its unique indexes."""


class SourceTable(NamedTuple):
    """A table in Postgres, and the ``input`` that it feeds."""

    schema: str
    name: str
    input: str

    @property
    def full_name(self) -> str:
        """Schema and name for messages and positions, quoted only if needed."""
        schema = quote_name(self.schema) if '"' in self.schema else self.schema
        return f"{schema}.{quote_name(self.name) if {'.', chr(34)} & {*self.name} else self.name}"

    @property
    def quoted_name(self) -> str:
        """Schema and name, quoted for a SQL statement."""
        return ".".join(map(quote_name, (self.schema, self.name)))

    @property
    def wal2json_name(self) -> str:
        """Schema and name, escaped for the option ``add-tables`` of wal2json."""
        return ".".join(re.sub(r"([\\,.*\s])", r"\\\1", each) for each in (self.schema, self.name))


class TableMetadata(NamedTuple):
    """Facts about a table from the catalog of Postgres.  Some facts depend on the columns that the input declares."""

    gone: Sequence[str]
    """Declared columns that were dropped."""
    certain: Sequence[str]
    """Columns with a type in `LOSSY` that Postgres declares not null.

    Each message also says whether the column was declared not null at the time of the message.
    """
    lossy: Sequence[str]
    """All columns with a type in `LOSSY`."""
    oid: int
    """Oid of the table, which survives a rename."""
    columns: Mapping[str, int]
    """Catalog numbers of the columns that the source reads.  A table never uses a column number twice."""
    last: int
    """Greatest column number in the table."""
    exact: Mapping[str, pa.DataType] = MappingProxyType({})
    """Columns with a type in `LOSSY` for which the input declares a type without NaN and infinities."""
    types: Mapping[str, int] = MappingProxyType({})
    """Oids of the types of the columns that the source reads."""
    labels: Mapping[str, str] = MappingProxyType({})
    """Result of the query `LABELS` for the types of the columns that the source reads."""
    file: tuple[int, int, int] = (0, 0, 0)
    """The table's file number, the oid of its TOAST table, and the oldest transaction open at the time of the look-up.
    """
    children: Sequence[str] = ()
    """Tables that inherit from this table."""


def parse_table_name(name: str, input: str) -> SourceTable:
    schema, table = split_qualified_name(name)
    return SourceTable(schema or "public", table, input)


def build_json_column_sql(name: str, kind: str | None, precise: str = "") -> str:
    """Return SQL that formats a column as a JSON object, in which the value has the form that wal2json writes.

    ``kind``: the type of the column; None for a missing column.  ``precise``: the type name in the object.  The SQL
    calls the output function of the type by `concat`, because wal2json also calls this function. A cast to text would
    strip the blanks of ``char(n)`` and add ``/32`` to ``inet``.
    """
    said = json.dumps(
        {"name": name} | ({"type": precise} if precise else {}), ensure_ascii=False, separators=(",", ":")
    )
    head, column = quote_literal(f'{said.removesuffix("}")},"value":'), quote_name(name)
    if kind is None:
        return f"{head} || 'null}}'"
    value = column if kind == "boolean" else f"encode({column}, 'hex')" if kind == "bytea" else f"concat({column})"
    # `is not null` is false for a composite value that contains a null.
    text = f"case when {column} is distinct from null then to_json({value})::text else 'null' end"
    return f"{head} || {text} || '}}'"


def quote_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def look_up_table(connection: Any, table: SourceTable, declared: pa.Schema, first: bool) -> TableMetadata:
    """Check that a table can feed its input, and return its metadata.  Raises `UnreadableInput`, `SpecError`.

    ``first``: whether ddflow reads the table for the first time, so that it must have all declared columns.
    """
    asked = f"read the table {table.full_name} for {table.input!r}"
    with translate_errors(asked):
        found = read_catalog_columns(connection, table)
    if not found:
        raise UnreadableInput(asked, "there is no such table", _suggest_tables(connection, table))
    of = found[0]
    if of.relkind == "p":
        remedy = "declare an input for each partition, and combine the inputs by union all"
        raise UnreadableInput(asked, "it is partitioned, and changes come only from its partitions", remedy)
    if of.relkind != "r" or of.relpersistence != "p":
        raise UnreadableInput(asked, "it is not a logged table, so the log lacks its changes", "use a logged table")
    if not {POSITION, DELETED} <= set(declared.names):
        raise SpecError(asked, "it takes rows, but changes come as messages", "set format=dd.formats.wal2json()")
    kinds = {row.name: row.kind for row in found if row.name not in OWN}
    gone = [name for name in declared.names if name not in kinds and name not in OWN]
    if gone and first:
        raise UnreadableInput(asked, f"it has no column {gone[0]!r}", did_you_mean(gone[0], kinds), column=gone[0])
    for column in declared:
        if kinds.get(column.name, "").endswith("[]") and pat.is_nested(column.type):
            raise UnreadableInput(asked, f"{column.name!r} is an array, which comes as text", "declare it as text")
    if first:
        refuse_row_level_security(asked, found)
    if of.relreplident == "n" or (of.relreplident == "d" and not of.keyed):
        remedy = f"add a primary key, or: alter table {table.quoted_name} replica identity full"
        raise UnreadableInput(asked, "it has no replica identity, so a delete does not name its row", remedy)
    read = [row for row in found if row.name in declared.names]
    lossy = [row.name for row in read if row.kind in LOSSY]
    exact = {name: declared.field(name).type for name in lossy}
    own = [row.type for row in read if row.type >= OWN_TYPES]
    with translate_errors(asked):
        labels = dict(connection.execute(LABELS, [own]).fetchall()) if own else {}
    return TableMetadata(
        gone,
        [row.name for row in read if row.certain and row.name in lossy],
        lossy,
        of.table,
        {row.name: row.number for row in read},
        max(row.number for row in found),
        {name: kind for name, kind in exact.items() if pat.is_decimal(kind) or pat.is_integer(kind)},
        {row.name: row.type for row in read},
        labels,
        (of.file, of.toast, of.since),
        [SourceTable(schema, name, "").full_name for schema, name in of.children],
    )


def read_catalog_columns(connection: Any, table: SourceTable) -> list[Any]:
    """Return the result of the query `COLUMNS` for a table; [] if the table is missing or its name is too long."""
    with connection.cursor(row_factory=import_psycopg().rows.namedtuple_row) as cursor:
        return list(cursor.execute(COLUMNS, [table.quoted_name, [table.schema, table.name]]).fetchall())


def refuse_row_level_security(asked: str, found: Sequence[Any]) -> None:
    """Refuse to copy a table if the role cannot see all rows.  ``found``: the result of `read_catalog_columns`."""
    if found and found[0].hidden:
        remedy = "allow it to read all rows: alter role ... bypassrls; or read as the owner of the table"
        raise UnreadableInput(asked, "row level security hides rows of it from this role", remedy)


def refuse_unlisted_child_tables(looked: Mapping[SourceTable, TableMetadata], named: Collection[str]) -> None:
    """Refuse a table with child tables that ``named`` lacks, because the rows of child tables are not in the table."""
    for table, each in looked.items():
        if others := [child for child in each.children if child not in named]:
            found = f"{', '.join(others)} inherit from it, but it lacks their rows and changes"
            remedy = "read these tables, too, each for a separate input, and combine the inputs by union all"
            raise UnreadableInput(f"read the table {table.full_name} for {table.input!r}", found, remedy)


def refuse_missing_columns(
    connection: Any, tables: Iterable[SourceTable], inputs: Mapping[str, pa.Schema], new: Mapping[str, Collection[str]]
) -> None:
    """Raise `UnreadableInput` if a table lacks one of the ``new`` columns of its input.

    ``new``: new columns by input.
    """
    for table in tables:
        read = {*OWN, *new.get(table.input, ())}
        if read != {*OWN}:
            declared = pa.schema([field for field in inputs[table.input] if field.name in read])
            look_up_table(connection, table, declared, first=True)


def _suggest_tables(connection: Any, table: SourceTable) -> str:
    """Build the remedy for a missing table, which suggests tables with similar names."""
    there = {SourceTable(schema, name, "").full_name: name for schema, name in connection.execute(TABLES).fetchall()}
    name = table.full_name
    near = [each for each in there if there[each] == table.name] or get_close_matches(name, list(there), 9, 0)
    if not near:
        return "create it, or check the database: it has no tables"
    how = "write the schema before the name, keep capital letters, and quote a name with a dot"
    return f"{did_you_mean(name, near, 'tables')}; {how}"


def find_key_constraints(
    connection: Any, tables: Iterable[SourceTable], keys: Mapping[str, Sequence[str]]
) -> dict[str, list[int]]:
    """For each table, by its full name, return the oids of the constraints that make its key unique.

    ``keys``: key columns by input.  Raises `UnreadableInput` for a key that does not identify every row of its table.
    """
    return {
        table.full_name: _find_table_key_constraints(connection, table, keys[table.input])
        for table in tables
        if table.input in keys
    }


def _find_table_key_constraints(connection: Any, table: SourceTable, key: Sequence[str]) -> list[int]:
    """Return the oids of the constraints that make the key of a table unique.

    Raises `UnreadableInput` if the key does not identify every row. A change identifies its row by the columns of the
    replica identity, so the key must be exactly these columns. If the identity is full, the key must contain the
    columns of a unique index.
    """
    asked = f"read the table {table.full_name} for {table.input!r}, with key={list(key)}"
    with translate_errors(asked):
        found = connection.execute(UNIQUE, [table.quoted_name]).fetchall()
    full = any(identity == "f" for identity, *_ in found)
    by = {"d": 1, "i": 2}
    unique = [row for row in found if row[4] and (full or row[by.get(row[0], 1)])]
    if oids := [row[3] for row in unique if (set(row[4]) <= set(key) if full else set(row[4]) == set(key))]:
        return oids
    telling = [row[4] for row in unique]
    other = " or ".join(f"key={each}" for each in telling)
    if full:
        index = f"create unique index on {table.quoted_name} ({', '.join(map(quote_name, key))})"
        remedy = f"use {other}, or: {index}" if other else index
        raise UnreadableInput(asked, "no unique index guarantees that these differ in every row", remedy)
    remedy = f"use {other}" if other else f"alter table {table.quoted_name} replica identity full"
    if other and any(row[4] and set(row[4]) <= set(key) for row in found):
        remedy += f", or: alter table {table.quoted_name} replica identity full"
    said = " and ".join(str(each) for each in telling) or "nothing"
    raise UnreadableInput(asked, f"its replica identity identifies a row by {said}", remedy)


def filter_messages_with_null(text: pa.Array, name: str, more: str = "") -> pa.Array:
    """Return the wal2json messages with null in a column.

    ``more``: pattern of the text that follows the null.  O(bytes).
    """
    pattern = f'{{"name":{re.escape(json.dumps(name, ensure_ascii=False))},"type":"[^"]*","value":null{more}'
    return text.filter(pc.match_substring_regex(text, pattern))


def fill_dropped_columns(text: pa.Array, gone: Sequence[str]) -> pa.Array:
    """Add null for the dropped columns ``gone`` to wal2json messages that lack these columns.

    O(bytes) for each column. In an update, a missing column would mean that the value of the column is unchanged.

    >>> text = '{"action":"U","columns":[{"name":"id","type":"integer","value":1}]}'
    >>> fill_dropped_columns(pa.array([text]), ["n"]).to_pylist()
    ['{"action":"U","columns":[{"name":"n","value":null},{"name":"id","type":"integer","value":1}]}']
    """
    for name in gone:
        pattern = f'{{"name":{json.dumps(name, ensure_ascii=False)},'
        nulled = pc.replace_substring(text, '"columns":[', f'"columns":[{pattern}"value":null}},', max_replacements=1)
        text = pc.if_else(pc.match_substring(text, pattern), text, nulled)
    return text


def translate_errors(asked: str) -> AbstractContextManager[None]:
    """Convert an error of psycopg to an error of ddflow, which is a failure to retry or a mistake to fix."""
    psycopg = import_psycopg()
    of = psycopg.errors
    remedies = {
        of.InsufficientPrivilege: "allow it: alter role ... replication; grant select on the table to ...",
        of.ConfigurationLimitExceeded: "raise max_replication_slots, or drop a slot",
        of.UndefinedFile: "install wal2json on the server: apt install postgresql-15-wal2json, or for its version",
        of.CharacterNotInRepertoire: "correct the value: a database in SQL_ASCII accepts bytes that are not UTF-8",
        of.UndefinedObject: "it was dropped: create a new state, with a new copy",
    }

    def to_ours(error: Exception) -> SourceFailed | UnreadableInput:
        said = first_line(error)
        remedy = next((remedy for kind, remedy in remedies.items() if isinstance(error, kind)), None)
        if isinstance(error, of.ObjectNotInPrerequisiteState) and "wal_level" in said:
            remedy = "set wal_level to logical, and restart the server"
        if isinstance(error, of.InvalidParameterValue) and re.search(r"\boption\b", said):
            remedy = "install wal2json 2.0 or later on the server"
        if remedy is not None:
            return UnreadableInput(asked, said, remedy)
        if (locked := find_login_remedy(said)) is not None:
            return SourceNotLetIn(asked, said, locked)
        in_use = "end the other reader, or its session: select pg_terminate_backend(...), with its PID"
        return SourceFailed(asked, said, in_use if isinstance(error, of.ObjectInUse) else "check the server")

    return convert_errors(psycopg.Error, to_ours)


BLOCK: Final = 4 << 20
_BETWEEN, _AROUND = "\x02", "\x01"
"""Delimiter and quote character of CSV.

Few cells need quotes, because JSON texts escape the delimiter and the quote character.
"""


def stream_rows(connection: Any, query: str) -> Iterator[pa.Table]:
    """Stream the result of a query by COPY, as Arrow tables with the columns ``lsn`` and ``data``."""
    form = f"format csv, delimiter {quote_literal(_BETWEEN)}, quote {quote_literal(_AROUND)}"
    with connection.cursor().copy(f"copy ({query}) to stdout ({form})") as copy:
        block = pa.BufferOutputStream()
        for row in copy:
            block.write(row)
            if block.tell() >= BLOCK:
                yield _parse_csv(block.getvalue())
                block = pa.BufferOutputStream()
        if block.tell():
            yield _parse_csv(block.getvalue())


def parse_lsn(lsn: str) -> int:
    """Convert a place in the log (LSN) to a number.

    >>> parse_lsn("16/B374D848") - parse_lsn("16/B374D840"), format_lsn(parse_lsn("16/B374D848"))
    (8, '16/B374D848')
    """
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def format_lsn(at: int) -> str:
    """Format a place in the log (LSN) in the notation of Postgres."""
    return f"{at >> 32:X}/{at & 0xFFFFFFFF:X}"


def build_message_batch(data: pa.ChunkedArray) -> pa.RecordBatch:
    """Convert messages to a batch for an input.  The column ``value`` contains the messages."""
    return pa.record_batch({"value": data.combine_chunks() if data.num_chunks != 1 else data.chunk(0)})


def parse_commit_time(message: str) -> float | None:
    """Return the commit time of a message's transaction as Unix time in seconds; None if the message has none.

    >>> parse_commit_time('{"action":"C","timestamp":"1970-01-01 01:00:02.5+01"}'), parse_commit_time('{"action":"C"}')
    (2.5, None)
    """
    said = json.loads(message).get("timestamp")
    return None if said is None else datetime.fromisoformat(said).timestamp()


def _parse_csv(block: pa.Buffer) -> pa.Table:
    """Parse complete rows of CSV.

    Arrow allocates the memory of the block, because one of Arrow's threads can free it after Python has ended.
    """
    convert = csv.ConvertOptions(column_types={"lsn": pa.string(), "data": pa.string()})
    read: Any = csv.ReadOptions(use_threads=False, block_size=block.size + 1)
    read.column_names = ["lsn", "data"]
    parse: Any = csv.ParseOptions(delimiter=_BETWEEN, newlines_in_values=True)
    parse.quote_char = _AROUND
    with csv.open_csv(pa.BufferReader(block), read, parse, convert) as reader:
        return reader.read_all()
