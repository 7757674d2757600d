"""Test that a Postgres value of any type has the same text in the first copy and in changes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import mid_test
from messages import raises
from postgres_server import Server
from test_postgres_source import FORMAT, ask

import ddflow as dd
from ddflow.errors import BadMessage

TYPED: dict[str, tuple[str, ...]] = {
    "aclitem": ("postgres=r/postgres",),
    "bit": ("1",),
    "bit(3)": ("101",),
    "bool": ("t", "f"),
    "box": ("(1,1),(0,0)",),
    "bpchar": ("ab  ", "  ", ""),
    "bytea": ("\\x00ff5c22", ""),
    '"char"': ("a", "\\200", '"', ""),
    "character(5)": ("ab", "ab ", "     ", "é"),
    "cid": ("7",),
    "cidr": ("10.1.0.0/16", "10.1.2.3/32", "::1/128"),
    "circle": ("<(1,2),3>",),
    "date": ("2024-02-29", "infinity", "-infinity", "0044-03-15 BC", "20240-01-01"),
    "datemultirange": ("{[2024-01-01,2024-02-01)}",),
    "daterange": ("[2024-01-01,infinity]", "empty"),
    "float4": ("1.5", "0.1", "1e30", "-0", "1e-40"),
    "float8": ("1.5", "0.1", "1e300", "1e15", "123456789012345680", "-0", "5e-324"),
    "inet": ("10.1.2.3", "10.1.2.3/24", "10.1.2.3/32", "::1", "::1/64"),
    "int2": ("-32768",),
    "int4": ("-7",),
    "int4multirange": ("{[1,3),[5,8)}",),
    "int4range": ("[1,3]", "(,)"),
    "int8": ("9223372036854775807",),
    "int8multirange": ("{}",),
    "int8range": ("[1,3]",),
    "interval": ("1 year -2 days 03:04:05.6", "-1 month", "0"),
    "json": ('{"a" :\n [1, 1.10]}', '"\\u00e9\\\\"', " 1 ", "null"),
    "jsonb": ('{"b": 1.10, "a": null}', '"x"', "1e2"),
    "jsonpath": ("$.a[*] ? (@ > 1)",),
    "line": ("{1,2,3}",),
    "lseg": ("[(1,1),(2,2)]",),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "money": ("-1234567.89", "0"),
    "name": ('a"b c',),
    "numeric": ("1.10", "0.000", "1e-7", "123456789012345678901234567890.5", "-0"),
    "numeric(12,3)": ("1.5", "-7"),
    "nummultirange": ("{[1.10,2)}",),
    "numrange": ("[1.10,2)",),
    "oid": ("4294967295",),
    "path": ("((1,2),(3,4))", "[(1,2),(3,4)]"),
    "pg_lsn": ("16/B374D848",),
    "pg_snapshot": ("10:20:10,14",),
    "point": ("(1.5,-2)",),
    "polygon": ("((1,2),(3,4))",),
    "refcursor": ("c",),
    "regclass": ("pg_class", "kinds", "0"),
    "regcollation": ('"C"',),
    "regconfig": ("english",),
    "regdictionary": ("simple",),
    "regnamespace": ("public",),
    "regoper": ("||/",),
    "regoperator": ("+(integer,integer)",),
    "regproc": ("now",),
    "regprocedure": ("abs(integer)",),
    "regrole": ("postgres",),
    "regtype": ("integer",),
    "text": ("", " x ", "é\u2028\U0001f600", "\\ \" ' / \t\r\n", "".join(map(chr, range(1, 32))) + "\x7f\x80", "NULL"),
    "tid": ("(1,2)",),
    "time": ("23:59:59.999999", "24:00"),
    "timestamp": ("2024-02-29 01:02:03.5", "infinity", "0044-03-15 01:00 BC", "20240-01-01 00:00"),
    "timestamptz": ("2024-02-29 01:02:03.5+05:45", "-infinity", "0044-03-15 01:00+00 BC", "20240-01-01 00:00+00"),
    "timestamptz(3)": ("2024-02-29 01:02:03.0004+00",),
    "timetz": ("01:02:03+05:45", "24:00+00"),
    "tsmultirange": ("{[2024-01-01,2024-02-01)}",),
    "tsquery": ("'a' & !'b'",),
    "tsrange": ("[2024-01-01 00:00,2024-02-01 00:00)",),
    "tstzmultirange": ("{[2024-01-01 00:00+00,)}",),
    "tstzrange": ("[2024-01-01 00:00+02,2024-02-01 00:00+00)",),
    "tsvector": ("'a':1 'b c':2A",),
    "txid_snapshot": ("10:20:10,14",),
    "uuid": ("00000000-0000-0000-0000-00000000000a",),
    "varbit": ("", "10101"),
    "varchar": ("ab  ",),
    "varchar(9)": ("ab  ",),
    "xid": ("7",),
    "xid8": ("18446744073709551615",),
    "xml": ("<a b='1'>x &amp; y</a>",),
    # of the user's own
    "mood": ("sad", 'a"b', "it's"),
    "pair": ('(1,"a ""b"" ",t)', "(,,)"),
    "moods": ("[sad,sad]",),
    "moods_multirange": ("{[sad,sad]}",),
    "d_bool": ("t",),
    "d_bytea": ("\\x00ff",),
    "d_char": ("ab",),
    "d_inet": ("10.1.2.3",),
    "d_float": ("NaN", "-Infinity", "1e300"),
    "d_int": ("7",),
    "d_numeric": ("1.10",),
    "d_text": ("x ",),
    "d_mood": ("sad",),
    "d_ints": ("{1,NULL}",),
    "dd_bool": ("f",),
    "kinds": ("(1,x)",),
}
OWN = (
    """create type mood as enum ('sad', 'a"b', 'it''s')""",
    "create type pair as (a int, b character(6), c bool)",
    "create type moods as range (subtype = mood)",
    "create table kinds (id int, v text)",
    "create domain d_bool as bool",
    "create domain dd_bool as d_bool",
    "create domain d_bytea as bytea",
    "create domain d_char as char(5)",
    "create domain d_inet as inet",
    "create domain d_float as float8",
    "create domain d_int as int check (value > 0)",
    "create domain d_numeric as numeric(9, 2)",
    "create domain d_text as text",
    "create domain d_mood as mood",
    "create domain d_ints as int[]",
)
NO_INPUT = {
    "gtsvector",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_ndistinct",
    "pg_node_tree",
}
"""Types whose values no statement can write."""
KNOWN = """
    select oid::regtype::text, typtype::text from pg_type
    where typtype in ('b', 'd', 'e', 'm', 'r') and typcategory <> 'A'
        and typnamespace in ('pg_catalog'::regnamespace, 'public'::regnamespace)"""


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@mid_test
def test_every_type_has_one_text_in_copies_and_in_changes(server: Server, tmp_path: Path) -> None:
    """Also in arrays, ranges, composites and domains."""
    ask(server, *OWN)
    known = {re.sub(r"\(.*?\)", "", name) for name, _ in ask(server, KNOWN)}
    mine = {re.sub(r"\(.*?\)", "", ask(server, f"select {quoted(name)}::regtype::text")[0][0]) for name in TYPED}
    assert known - mine == NO_INPUT
    columns, values = list[str](), list[str]()
    for kind, texts in TYPED.items():
        for text in texts:
            columns.append(kind)
            values.append(f"{quoted(text)}::{kind}")
        columns.append(f"{kind}[]")
        values.append(f"array[{', '.join(f'{quoted(text)}::{kind}' for text in texts)}, null]::{kind}[]")
    names = [f"c{n}" for n in range(len(columns))]
    typed = ", ".join(f"{name} {kind}" for name, kind in zip(names, columns, strict=True))
    ask(
        server,
        f"create table t (id int primary key, {typed})",
        f"insert into t values (1, {', '.join(values)})",
        "insert into t values (3)",
    )
    made = dd.Flow()
    made.output("t", made.upserts("t", {"id": int, **dict.fromkeys(names, str)}, dd.Upsert(key="id"), format=FORMAT))
    source = {"t": dd.sources.postgres(server.url, "t", slot="shop")}
    with made.open(tmp_path / "state") as engine:
        engine.run(source, give_up_after="0s")
        ask(server, f"insert into t values (2, {', '.join(values)})", "insert into t values (4)")
        engine.run(source, give_up_after="0s")
        rows = {row.pop("id"): row for row in engine.read("t").to_pylist()}
    copied, changed = rows[1], rows[2]
    differ = {
        (kind, value): (copied[name], changed[name])
        for name, kind, value in zip(names, columns, values, strict=True)
        if copied[name] != changed[name]
    }
    assert not differ
    assert rows[3] == rows[4] and {*rows[3].values()} == {None, 1}
    stripped = dict(zip(zip(columns, values, strict=True), copied.values(), strict=False))
    assert stripped["character(5)", "'ab'::character(5)"] == "ab   "
    assert stripped["inet", "'10.1.2.3'::inet"] == "10.1.2.3"


@pytest.mark.parametrize("kind", ["char(9)", "inet"])
def test_a_copied_row_is_found_again_by_its_key(server: Server, tmp_path: Path, kind: str) -> None:
    """Of a type whose cast to text is another text than the one in the log."""
    rows = "('::1', 1), ('10.0.0.2', 2), ('::3', 3)"
    ask(server, f"create table t (k {kind} primary key, v int)", f"insert into t values {rows}")
    made = dd.Flow()
    made.output("t", made.upserts("t", {"k": str, "v": int}, dd.Upsert(key="k"), format=FORMAT))
    source = {"t": dd.sources.postgres(server.url, "t", slot="shop")}
    with made.open(tmp_path / "state") as engine:
        for change in ("update t set v = 9 where v = 1", "delete from t where v = 2", "select 1"):
            engine.run(source)
            ask(server, change)
        held = {row["k"]: row["v"] for row in engine.read("t").to_pylist()}
    assert held == dict(ask(server, "select format('%s', k), v from t"))


def test_a_table_of_more_than_a_hundred_columns_is_copied(server: Server, tmp_path: Path) -> None:
    names = [f"c{n}" for n in range(300)]
    ask(server, f"create table t (id int primary key, {', '.join(f'{name} int' for name in names)})")
    ask(server, "insert into t values (1, 7)")
    made = dd.Flow()
    made.output("t", made.upserts("t", {"id": int, **dict.fromkeys(names, int)}, dd.Upsert(key="id"), format=FORMAT))
    with made.open(tmp_path / "state") as engine:
        engine.run({"t": dd.sources.postgres(server.url, "t", slot="shop")}, give_up_after="0s")
        assert engine.read("t").column("c0").to_pylist() == [7]


BEYOND = {
    "date": (pa.date32(), ("infinity", "-infinity", "0044-03-15 BC", "20240-01-01")),
    "timestamp": (pa.timestamp("us"), ("infinity", "-infinity", "0044-03-15 01:00:00 BC", "20240-01-01 00:00:00")),
    "timestamptz": (pa.timestamp("us", "UTC"), ("infinity", "0044-03-15 01:00:00+00 BC", "20240-01-01 00:00:00+00")),
    "date ": (pa.timestamp("us"), ("infinity", "0044-03-15 BC")),
    "timestamp(0)": (pa.timestamp("s"), ("-infinity", "0044-03-15 01:00:00 BC")),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", BEYOND)
def test_a_time_that_no_calendar_has_is_a_message_that_may_be_dropped(
    server: Server, tmp_path: Path, kind: str
) -> None:
    """In copies and in changes: by value, with what to do; text holds all of them."""
    declared, values = BEYOND[kind]
    copied = "2024-02-29"
    ask(server, f"create table t (id int primary key, at {kind})", f"insert into t values (0, '{copied}')")
    source = {"t": dd.sources.postgres(server.url, "t", slot="shop")}

    def run(state: str, **more: Any) -> int:
        made, format = dd.Flow(), dd.formats.wal2json(unavailable=True, **more)
        made.output("rows", made.upserts("t", {"id": int, "at": declared}, dd.Upsert(key="id"), format=format))
        sinks = {"t.bad": dd.sinks.postgres(server.url, "bad", mode="updates")} if more else {}
        with made.open(tmp_path / state) as engine:
            engine.run(source, sinks)
            return engine.read("rows").num_rows

    assert run("stops") == 1
    for number, value in enumerate(values, 1):
        ask(server, f"insert into t values ({number}, '{value}')")
        for _ in range(2):
            with raises(BadMessage):
                run("stops")
        ask(server, f"delete from t where id = {number}", "select pg_drop_replication_slot('shop')")
        shutil.rmtree(tmp_path / "stops")
        assert run("stops") == 1
    ask(server, "select pg_drop_replication_slot('shop')")
    ask(server, *(f"insert into t values ({number}, '{value}')" for number, value in enumerate(values, 1)))
    assert run("drops", on_bad="drop") == 1
    ask(server, *(f"insert into t values ({number}, '{value}')" for number, value in enumerate(values, 10)))
    assert run("drops", on_bad="drop") == 1
    reasons = ask(server, "select reason from bad")
    assert len(reasons) == 2 * len(values) and all(value in repr(reasons) for value in values)
