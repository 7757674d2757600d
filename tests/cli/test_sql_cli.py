"""Test ``ddflow sql``: the answer of a query over files, the differences between two answers, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from test_cli import run
from typer.testing import Result

MONDAY, TUESDAY = "id,city,n,op\n1,Bern,3,U\n2,Basel,4,U\n", "id,city,n,op\n2,,,D\n3,Chur,1,U\n"
TABLE = ["orders=monday.csv:key=id:tombstone=op=D", "orders=tuesday.csv"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with two days of orders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "monday.csv").write_text(MONDAY)
    (tmp_path / "tuesday.csv").write_text(TUESDAY)
    return tmp_path


def sql(*words: str, code: int = 0) -> Result:
    return run("sql", *words, code=code)


def rows(result: Result) -> list[dict[str, object]]:
    return sorted(map(json.loads, result.stdout.splitlines()), key=str)


def test_the_answer_is_that_of_all_files_each_row_as_often_as_it_is_there() -> None:
    assert rows(sql("select city from orders where n < 4", *TABLE)) == [{"city": "Bern"}, {"city": "Chur"}]
    assert rows(sql("select 'x' as s from orders", *TABLE)) == [{"s": "x"}, {"s": "x"}]


def test_differences_are_by_file() -> None:
    found = rows(sql("select city from orders where n > 1", *TABLE, "--diff"))
    assert [(each["city"], each["_time"], each["_diff"]) for each in found] == [
        ("Basel", 1, 1),
        ("Basel", 2, -1),
        ("Bern", 1, 1),
    ]


def test_a_table_without_a_key_is_rows_that_are_appended() -> None:
    Path("log.csv").write_text("city,times\nBern,2\nBern,1\nChur,-1\n")
    assert rows(sql("select city, count(*) n from log group by city", "log=log.csv", "log=log.csv")) == [
        {"city": "Bern", "n": 4},
        {"city": "Chur", "n": 2},
    ]
    counted = sql("select city, count(*) n from log where city = 'Bern' group by city", "log=log.csv:diff=times")
    assert rows(counted) == [{"city": "Bern", "n": 3}]
    joined = "select o.id, l.city from orders o join log l on o.city = l.city"
    assert rows(sql(joined, *TABLE, "log=log.csv")) == [{"id": 1, "city": "Bern"}] * 2 + [{"id": 3, "city": "Chur"}]


def test_it_writes_a_file_and_replaces_none() -> None:
    result = sql("select city from orders", *TABLE, "-o", "out.parquet")
    assert "4 rows of 1 table: 2 rows" in result.stderr
    assert pq.read_table("out.parquet").num_rows == 2
    assert "out.parquet" in sql("select city from orders", *TABLE, "-o", "out.parquet", code=1).stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["select cty from orders", *TABLE], 1, "there is no column 'cty' at line 1, column 8; did you mean 'city'"),
        (["select 1 a", "orders=monday.csv:tombstone=op=D"], 2, "the table 'orders' has tombstone= but no key"),
        (["select 1 a", "orders=monday.csv:key=id:diff=n"], 2, "the table 'orders' has a key and diff="),
        (["select 1 a", "monday.csv:key=id"], 2, "write NAME=FILE[:key=COLUMNS]"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], code: int, message: str) -> None:
    assert message in sql(*words, code=code).stderr


def test_what_was_done_is_json_where_rows_go_to_a_file() -> None:
    done = sql("select city from orders", *TABLE, "-o", "out.csv", "--json")
    assert json.loads(done.stdout) == {"read": 4, "tables": 1, "rows": 2, "bad": 0, "output": "out.csv"}
    assert "-o" in sql("select city from orders", *TABLE, "--json", code=2).stderr


def test_a_full_file_deletes_what_it_does_not_name() -> None:
    Path("1.csv").write_text("id,city\n1,Bern\n2,Chur\n")
    Path("2.csv").write_text("id,city\n2,Bern\n")
    counts = "select city, count(*) n from shops group by city"
    assert rows(sql(counts, "shops=[12].csv:key=id:full")) == [{"city": "Bern", "n": 1}]
    assert rows(sql(counts, "shops=1.csv:full:key=id", "shops=2.csv")) == [{"city": "Bern", "n": 1}]
    assert rows(sql(counts, "shops=[12].csv:key=id")) == [{"city": "Bern", "n": 2}]
    joined = "select s.city, o.n from shops s join orders o on s.id = o.id"
    assert rows(sql(joined, "shops=[12].csv:key=id:full", *TABLE)) == []
    assert "has full but no key" in sql(counts, "shops=1.csv:full", code=2).stderr
    Path("2.csv").write_text("id,city\n")
    assert "every key would be deleted" in sql(counts, "shops=[12].csv:key=id:full", code=1).stderr


def test_how_text_is_written_stands_behind_a_table() -> None:
    Path("z.csv").write_text("id|city|n\n1|Bern|1,5\n2|NA|2,5\n")
    table = "z=z.csv:key=id:full:delimiter=|:decimal=,:null=NA:null=-"
    query = "select z.city, z.n + o.n s from z join orders o on o.id = z.id"
    assert rows(sql(query, table, *TABLE)) == [{"city": "Bern", "s": 4.5}]
    assert rows(sql("select city from z", "z=z.csv:key=id:delimiter=|")) == [{"city": "Bern"}, {"city": "NA"}]


@pytest.mark.parametrize("behind", ["key=id:full:bogus=3", "key=id:bogus=3", "full:3:key=id", "key=id:full:keys=id"])
def test_an_option_that_is_not_known_is_refused(behind: str) -> None:
    name = next(each for each in ("bogus", "full:3", "keys") if each in behind)
    assert (
        f"there is no option :{name}; write :full, or :key=, "
        in sql("select city from o", f"o=monday.csv:{behind}", code=2).stderr
    )


def test_words_of_a_table_are_those_of_the_shell() -> None:
    said = sql("select city from o", "o=monday.csv:key=id:tombstone=op", code=1).stderr
    assert "name the text that deletes: :tombstone=op=D" in said
    said = run("diff", "monday.csv", "--key", "id", "--tombstone", "op", code=1).stderr
    assert "name the text that deletes: --tombstone op=D" in said
    said = sql("select 1 a from o", "my shops=monday.csv:key=id", code=2).stderr
    assert "a name has only letters, digits and _, and does not begin with a digit" in said


def test_what_a_table_s_files_hold_is_said_behind_it() -> None:
    Path("z.txt").write_text("id;city\n1;Bern\n")
    Path("m.txt").write_text('{"op": "c", "after": {"id": 7, "city": "Chur"}}\nnone\n')
    query = "select z.city, m.city as other from z join m on m.id > z.id"
    found = sql(query, "z=z.txt:key=id:format=csv:delimiter=;", "m=m.txt:key=id:format=debezium", "--on-bad", "drop")
    assert rows(found) == [{"city": "Bern", "other": "Chur"}]
    assert "1 message could not be read" in found.stderr
    assert "there is no such file type" in sql("select 1 a from z", "z=z.txt:key=id:format=xls", code=1).stderr


@pytest.mark.parametrize(
    ("behind", "code", "advice"),
    [
        ("z.txt:key=id", 1, "pass its format, as in 'NAME=FILE:format=csv'"),
        ("z.txt:key=id:format=csv", 1, "is the delimiter ';'? pass 'NAME=FILE:delimiter=;:format=csv'"),
        ("z.csv:key=id:delimiter=|", 1, "is the delimiter ';'? pass 'NAME=FILE:delimiter=;'"),
        ("z.csv:key=id:delimiter=;:decimal=.", 0, "pass 'NAME=FILE:delimiter=;:decimal=,', or declare"),
    ],
)
def test_advice_about_a_table_is_what_works_for_it(behind: str, code: int, advice: str) -> None:
    """Story: it was ``--delimiter``, which what stands behind a table overrules."""
    for name in ("z.txt", "z.csv"):
        Path(name).write_text("id;n\n1;2,5\n2;3,5\n")
    said = sql("select n from z", f"z={behind}", code=code).stderr
    assert advice in said and "--delimiter" not in said


def test_a_state_keeps_the_history_that_is_asked_for() -> None:
    for day in (1, 2, 3):
        Path(f"{day}.csv").write_text(f"id\n{day}\n")
    run("replace", "1.csv", "2.csv", "3.csv", "--key", "id", "--state", "s", "--retain", "2", "-o", "all.csv")
    assert " as of 1 to then.csv" in run("export", "s", "--as-of", "1", "-o", "then.csv").stderr
    assert Path("then.csv").read_text().split() == ['"id"', "1"]
    run("replace", "3.csv", "--key", "id", "--state", "s", "-o", "again.csv")
    assert "since is 2" in run("export", "s", "--as-of", "1", "-o", "gone.csv", code=1).stderr


ORDERED = (
    "select id, n from o order by n, id",
    "select id, n from o order by n desc nulls first, 1 desc",
    "select id, f from o order by f desc, id",
    "select city from o order by id desc",
    "select city, n from o order by n nulls last, id limit 3",
    "select id, upper(city) as u from o order by u nulls last, id desc",
    "select id from o order by n * 2 - id, id",
    "select distinct city from o order by city desc",
    "select city, count(*) as k from o group by city order by k desc, max(id)",
    "select city, sum(n) as s from o group by city order by count(*), city nulls first",
    "select id from o union all select n from o order by 1 desc",
    "select a.id, b.id as other from o a join o b on a.city = b.city order by b.n desc, a.id, b.id",
    "with w as (select * from o where id > 1) (select id from w order by city, id desc)",
    "select id from o order by (select max(p.n) from o p where p.city = o.city), id",
    "select id from o qualify row_number() over (partition by city order by n, id) <= 2 order by city, n desc, id",
    "select id, lag(n) over (order by id) as p from o order by rank() over (partition by city order by n), id",
    "select id from o where id > 99 order by id",
)


@pytest.mark.parametrize("query", ORDERED)
def test_an_answer_is_in_the_order_that_is_asked_for(query: str) -> None:
    data = "id,city,n,f\n1,Bern,3,1.5\n2,Basel,4,\n3,Chur,,NaN\n4,Bern,4,-2\n5,,1,7\n6,A longer name of 1,0,-0.0\n"
    Path("o.csv").write_text(data + "7,A longer name of 2,0,1e300\n8,A longer name of,-5,-1e300\n")
    said = [list(json.loads(line).values()) for line in sql(query, "o=o.csv:key=id", "-o", "-").stdout.splitlines()]
    with duckdb.connect() as door:
        door.execute("set default_null_order = 'nulls_first_on_asc_last_on_desc'")
        door.execute("create table o as from read_csv('o.csv', types = {'f': 'double'})")
        expected = [list(row) for row in door.execute(query).fetchall()]
    assert list(map(str, said)) == list(map(str, expected))


def test_rows_that_tie_stand_by_the_select_list_and_are_repeated() -> None:
    Path("o.csv").write_text("id,s,n\n1,b,1\n2,a,1\n3,b,1\n4,c,0\n")
    found = sql("select s from o order by n desc", "o=o.csv:key=id", "-o", "out.csv").stderr
    assert "4 rows" in found
    assert Path("out.csv").read_text().split() == ['"s"', '"a"', '"b"', '"b"', '"c"']


def test_rows_that_are_appended_are_an_answer_as_they_are() -> None:
    Path("log.csv").write_text("s,n,times\nb,1,2\na,1,1\nc,0,1\na,3,-1\nd,3,1\na,3,1\n")
    table = "log=log.csv:diff=times"
    assert sql("select s from log order by n desc, s", table, "-o", "-").stdout.split() == [
        f'{{"s":"{each}"}}' for each in "dabbc"
    ]
    assert len(rows(sql("select * from log where n < 2", table))) == 4
    assert rows(sql("select l.s, o.id from log l, orders o where l.n = o.n - 2", table, *TABLE)) == [
        {"id": 1, "s": "a"},
        {"id": 1, "s": "b"},
        {"id": 1, "s": "b"},
    ]
    both = "select s from log union all select city from orders order by s"
    assert [each["s"] for each in map(json.loads, sql(both, table, *TABLE).stdout.splitlines())] == [
        *["Bern", "Chur"],
        *"abbcd",
    ]


@pytest.mark.parametrize(
    ("query", "words", "message"),
    [
        ("select id from o order by n", ["--diff"], "ORDER BY without LIMIT at line 1, column 27"),
        ("select id from (select id from o order by n) x", [], "ORDER BY without LIMIT at line 1, column 43"),
        ("select distinct city from o order by n", [], "ORDER BY o.n is not in SELECT DISTINCT"),
        ("select id from o order by id offset 2", [], "OFFSET without LIMIT"),
    ],
)
def test_an_order_that_means_nothing_is_refused(query: str, words: list[str], message: str) -> None:
    said = sql(query, "o=monday.csv:key=id", *words, code=1).stderr
    assert message in said
    assert "LIMIT" not in message or "add LIMIT" in said
