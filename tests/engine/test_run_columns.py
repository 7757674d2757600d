"""Test columns that appear, disappear or widen at a source: state and targets follow, or the run says why not."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import raises

import ddflow as dd
from ddflow.connectors.api import OpenSink, TableShape
from ddflow.connectors.sources import Source
from ddflow.connectors.sqlite import SQLiteSink
from ddflow.errors import BadMessage, PlanChanged, SchemaMismatch, SinkFailed, SpecError

COLUMNS = {"id": pa.int64(), "city": pa.string()}


def flow(format: Any = None, **more: Any) -> dd.Flow:
    """Orders as they are, and how many a city has."""
    made = dd.Flow()
    orders = made.upserts("orders", COLUMNS | more, dd.Upsert(key="id"), format=format)
    made.output("orders", orders)
    made.output("by_city", orders.count("city"))
    return made


def rows_of(place: Path, table: str = "orders") -> list[dict[str, Any]]:
    """What a table of a SQLite file holds, sorted."""
    connection = sqlite3.connect(place)
    connection.row_factory = sqlite3.Row
    try:
        return sorted(map(dict, connection.execute(f"select * from {table}").fetchall()), key=str)
    finally:
        connection.close()


class Place:
    """A folder with a state, what lands beside it, and a target."""

    def __init__(self, folder: Path, source: Source | None = None) -> None:
        self.folder = folder
        (folder / "in").mkdir(parents=True)
        self.source = source or dd.sources.files(folder / "in" / "*")

    def land(self, name: str, text: str) -> None:
        (self.folder / "in" / name).write_text(text)

    def run(self, of: dd.Flow | None = None, **options: Any) -> Any:
        sinks: dict[str, Any] = {
            "orders": dd.sinks.sqlite(self.folder / "out.db", "orders"),
            "by_city": dd.sinks.sqlite(self.folder / "out.db", "by_city"),
        }
        with (of or flow()).open(self.folder / "state") as engine:
            return engine.run({"orders": self.source}, sinks, **options)

    def orders(self) -> list[dict[str, Any]]:
        return rows_of(self.folder / "out.db")

    def held(self) -> list[dict[str, Any]]:
        return sorted(dd.read(self.folder / "state", "orders").drop_columns(["_diff"]).to_pylist(), key=str)


def test_a_new_column_ends_the_epoch_and_comes_to_the_targets(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.land("1.csv", "id,city,secret\n1,Bern,s\n2,Chur,t\n")
    place.land("2.csv", "id,city,secret\n3,Bern,s\n")
    place.land("3.csv", "id,secret,city,amount\n4,s,Bern,7\n")
    place.land("4.csv", "id,city\n2,Bern\n")
    done = place.run()
    assert done.epochs == 2
    assert done.rows == 5
    amounts = {1: None, 2: None, 3: None, 4: 7}
    assert place.orders() == place.held() == [{"id": i, "city": "Bern", "amount": n} for i, n in amounts.items()]
    assert rows_of(tmp_path / "out.db", "by_city") == [{"city": "Bern", "count": 4}]
    with flow().open(tmp_path / "state") as engine:
        assert engine.output_schema("orders").names == ["id", "city", "amount", "_time", "_diff"]
        attached = engine.durable.log.manifest_log.manifest.sources["orders"]  # type: ignore[union-attr]
        assert attached.left_out == {"orders": ("secret",)}


def test_one_file_at_a_time_is_as_all_together(tmp_path: Path) -> None:
    files = {
        "1.csv": "id,city,left\n1,Bern,x\n",
        "2.jsonl": '{"id": 2, "city": "Chur", "left": "y", "n": 1.5}\n',
        "3.csv": "id,city,left,on,n\n3,Chur,,2024-02-29,\n",
    }
    together, apart = Place(tmp_path / "together"), Place(tmp_path / "apart")
    for name, text in files.items():
        together.land(name, text)
        apart.land(name, text)
        apart.run()
    together.run()
    assert together.orders() == apart.orders()
    assert together.held() == apart.held()
    assert together.held()[2] == {"id": 3, "city": "Chur", "n": None, "on": together.held()[2]["on"]}
    assert str(together.held()[2]["on"]) == "2024-02-29"


def test_a_column_without_a_value_waits_for_one(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.land("1.csv", "id,city\n1,Bern\n")
    place.land("2.csv", "id,city,amount\n2,Bern,\n")
    place.run()
    assert place.orders()[0].keys() == {"id", "city"}
    place.land("3.csv", "id,city,amount\n3,Bern,1.5\n")
    place.run()
    assert [row["amount"] for row in place.orders()] == [None, None, 1.5]


def test_stop_names_the_column_and_where_it_came(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.land("1.csv", "id,city\n1,Bern\n")
    place.land("2.csv", "id,city,amount\n2,Bern,7\n")
    with raises(SchemaMismatch):
        place.run(evolve="stop")
    assert place.orders() == place.held() == [{"id": 1, "city": "Bern"}]
    assert place.run(flow(amount=pa.int64()), evolve="stop").rows == 1
    assert [row["amount"] for row in place.orders()] == [None, 7]
    with flow().open() as engine, raises(SpecError):
        engine.run({"orders": place.source}, evolve="never")  # type: ignore[arg-type]


def test_a_flow_may_lack_what_a_run_took_in_and_declare_more(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.land("1.csv", "id,city\n1,Bern\n")
    place.land("2.csv", "id,city,amount\n2,Bern,7\n")
    place.run()
    place.land("3.csv", "id,city,amount\n3,Bern,8\n")
    place.run()
    place.land("4.csv", "id,city,amount\n3,Bern,8\n")
    place.run(flow(amount=pa.int64(), note=pa.string()))
    assert place.held()[2] == {"id": 3, "city": "Bern", "amount": 8, "note": None}
    with raises(PlanChanged):
        place.run()
    with raises(PlanChanged):
        place.run(flow(amount=pa.date32()))


def sqlite_table(place: Path) -> tuple[Source, Callable[[str], Any]]:
    def write(text: str) -> None:
        connection = sqlite3.connect(place / "in.db")
        connection.executescript(text)
        connection.close()

    return dd.sources.sqlite(place / "in.db", "orders"), write


def duckdb_table(place: Path) -> tuple[Source, Callable[[str], Any]]:
    def write(text: str) -> None:
        with duckdb.connect(place / "in.duckdb") as connection:
            connection.execute(text)

    return dd.sources.duckdb(place / "in.duckdb", "orders"), write


TABLES = {"sqlite": sqlite_table, "duckdb": duckdb_table}


@pytest.mark.parametrize("kind", TABLES)
def test_columns_of_a_database_come_and_go(tmp_path: Path, kind: str) -> None:
    source, write = TABLES[kind](tmp_path)
    place = Place(tmp_path, source)
    write("create table orders (id bigint, City text, secret text); insert into orders values (1, 'Bern', 's')")
    place.run()
    write("alter table orders add column amount double; update orders set amount = 1.5")
    place.run()
    assert place.orders() == [{"id": 1, "city": "Bern", "amount": 1.5}]
    write("alter table orders drop column city; alter table orders add column note text; update orders set note = 'x'")
    place.run()
    assert place.orders() == [{"id": 1, "city": None, "amount": 1.5, "note": "x"}]
    assert rows_of(tmp_path / "out.db", "by_city") == [{"city": None, "count": 1}]


@pytest.mark.parametrize("kind", TABLES)
def test_a_wider_column_ends_the_run_and_names_the_command(tmp_path: Path, kind: str) -> None:
    source, write = TABLES[kind](tmp_path)
    place = Place(tmp_path, source)
    write("create table orders (id bigint, city text, n bigint); insert into orders values (1, 'Bern', 5)")
    place.run(flow(n=pa.int32()))
    before = place.held()
    write("drop table orders; create table orders (id bigint, city text, n double)")
    write("insert into orders values (1, 'Bern', 2.5)")
    with raises(SchemaMismatch):
        place.run(flow(n=pa.int32()))
    assert place.held() == before
    dd.evolve(tmp_path / "state", {"n": "double"})
    with flow(n=pa.float64()).open(tmp_path / "state") as engine:
        engine.run({"orders": source})
    assert place.held() == [{"id": 1, "city": "Bern", "n": 2.5}]


def test_a_wider_column_of_files_names_the_command(tmp_path: Path) -> None:
    place = Place(tmp_path)
    pq.write_table(
        pa.table({"id": [1], "city": ["Bern"], "n": pa.array([5], pa.int32())}), tmp_path / "in" / "1.parquet"
    )
    place.run(flow(n=pa.int32()))
    for values in ([2**40], [2.5]):
        pq.write_table(pa.table({"id": [2], "city": ["Bern"], "n": values}), tmp_path / "in" / "2.parquet")
        with raises(SchemaMismatch):
            place.run(flow(n=pa.int32()))
    (tmp_path / "in" / "2.parquet").unlink()
    place.land("2.csv", "id,city,n\n2,Bern,x\n")
    with raises(SchemaMismatch):
        place.run(flow(n=pa.int32()))
    assert [row["n"] for row in place.held()] == [5]


class Flaky(SQLiteSink):
    """A target that cannot be reached while there is a file."""

    def open(self, shape: TableShape) -> OpenSink:
        if Path(f"{self.path}.down").exists():
            raise SinkFailed(f"open {self.target}", "it is down", "wait")
        return super().open(shape)


def test_a_target_that_was_away_gets_the_epochs_of_both_shapes(tmp_path: Path) -> None:
    place, sink = Place(tmp_path), Flaky(str(tmp_path / "out.db"), "orders", "changelog")
    place.land("1.csv", "id,city\n1,Bern\n")
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": place.source}, {"orders": sink})
        (tmp_path / "out.db.down").touch()
        place.land("2.csv", "id,city\n2,Bern\n")
        with pytest.raises(SinkFailed):
            engine.run({"orders": place.source}, {"orders": sink}, give_up_after="0s")
        place.land("3.csv", "id,city,amount\n1,Chur,7\n")
        with pytest.raises(SinkFailed):
            engine.run({"orders": place.source}, {"orders": sink}, give_up_after="0.2s")
    (tmp_path / "out.db.down").unlink()
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": place.source}, {"orders": sink})
    found = [(row["id"], row["amount"], row["_change_type"], row["_commit_version"]) for row in place.orders()]
    assert sorted(found, key=lambda row: (row[3], row[2])) == [
        (1, None, "insert", 1),
        (2, None, "insert", 2),
        (1, 7, "update_postimage", 3),
        (1, None, "update_preimage", 3),
    ]


def message(op: str, after: dict[str, Any] | None, lsn: int, table: str = "orders") -> str:
    return json.dumps({"op": op, "before": {"id": 1}, "after": after, "source": {"lsn": lsn, "table": table}})


def test_messages_get_columns_in_the_batch_in_which_they_come(tmp_path: Path) -> None:
    place = Place(tmp_path, dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True))
    debezium = dd.formats.debezium(table="orders")
    bern = {"city": "Bern", "secret": "s"}
    lines = [message("c", {"id": i} | bern, i) for i in range(1, 4)]
    place.land("1.jsonl", "\n".join(lines))
    more = [message("u", {"id": 1, "amount": None} | bern, 5), message("u", {"id": 2, "amount": 7.5} | bern, 6)]
    more += [message("c", {"id": 3, "other": 1}, 7, "others"), message("d", None, 8)]
    place.land("2.jsonl", "\n".join(more))
    place.run(flow(debezium))
    assert (
        place.orders()
        == place.held()
        == [
            {"id": 2, "city": "Bern", "amount": 7.5},
            {"id": 3, "city": "Bern", "amount": None},
        ]
    )
    place.land("3.jsonl", message("u", {"id": 2, "amount": 8, "note": "x"} | bern, 9))
    with raises(SchemaMismatch):
        place.run(flow(debezium), evolve="stop")
    place.run(flow(debezium))
    place.run(flow(debezium, amount=pa.float64(), note=pa.string()))
    assert place.orders()[0] == {"id": 2, "city": "Bern", "amount": 8.0, "note": "x"}


def test_a_column_of_messages_waits_for_a_value_in_its_own_table(tmp_path: Path) -> None:
    place = Place(tmp_path, dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True))
    made = flow(dd.formats.debezium(table="orders"))
    rows = [({"id": 1}, "orders"), ({"id": 1, "n/~": None}, "orders"), ({"id": 1, "n/~": 5}, "others")]
    rows += [({"id": 2, "n/~": None}, "orders"), ({"id": 3, "n/~": None, "m": "x"}, "orders")]
    with made.open() as engine:  # one run, which notices the column once and asks for its value from then on
        for number, (row, table) in enumerate(rows):
            place.land(f"{number}.jsonl", message("c", row | {"city": "Bern"}, number, table))
        engine.run({"orders": place.source})
        assert engine.output_schema("orders").names[:-2] == ["id", "city", "m"]
    apart = tmp_path / "apart"
    place = Place(apart, dd.sources.files(apart / "in" / "*.jsonl", lines=True))
    for number, (row, table) in enumerate(rows):
        place.land(f"{number}.jsonl", message("c", row | {"city": "Bern"}, number, table))
        place.run(made)
    place.land("last.jsonl", message("c", {"id": 4, "n/~": 1.5, "city": "Bern"}, len(rows)))
    with pytest.warns(UserWarning, match="no message so far has the declared column 'm'"):
        place.run(made)
    assert [row.get("n/~") for row in place.held()] == [None, None, 1.5]  # 1 became another key
    assert [row["m"] for row in place.held()] == [None, "x", None]


def test_columns_of_connects_schema_have_its_types(tmp_path: Path) -> None:
    place = Place(tmp_path, dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True))

    def line(row: dict[str, Any], lsn: int) -> str:
        kinds = {"id": {"type": "int64"}, "city": {"type": "string"}}
        kinds |= {"on": {"type": "int32", "name": "io.debezium.time.Date"}} if "on" in row else {}
        fields = [{"field": name} | kind for name, kind in kinds.items()]
        schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
        return json.dumps({"schema": schema, "payload": {"op": "c", "after": row, "source": {"lsn": lsn}}})

    place.land("1.jsonl", line({"id": 1, "city": "Bern"}, 1) + "\n" + line({"id": 2, "city": "Bern", "on": None}, 2))
    place.run(flow(dd.formats.debezium()))
    place.land("2.jsonl", line({"id": 3, "city": "Bern", "on": 19675}, 3))
    place.run(flow(dd.formats.debezium()))
    assert [str(row["on"]) for row in place.held()] == ["None", "None", "2023-11-14"]


def test_a_column_whose_values_have_no_type_in_common_is_an_error(tmp_path: Path) -> None:
    """What it says to declare is taken, also where the name is near another one."""
    place = Place(tmp_path, dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True))
    place.land("1.jsonl", json.dumps({"id": 1, "city": "Bern"}))
    place.land("2.jsonl", json.dumps({"id": 2, "city_no": [1, "x"]}))
    with raises(SchemaMismatch):
        place.run(flow(dd.formats.plain_json()))
    place.run(flow(dd.formats.plain_json(), city_no=str))
    assert [row["city_no"] for row in place.held()] == [None, '[1,"x"]']


# By format: of a version of a row of a table, the message, or what it takes to make one.
ROW = {"id": 2, "city": "Chur"}


def listed(row: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {"id": "bigint", "amount": "numeric(9,2)"}
    return [{"name": name, "type": kinds.get(name, "text"), "value": value} for name, value in row.items()]


def change(row: dict[str, Any], table: str) -> dict[str, Any]:
    kinds = [each["type"] for each in listed(row)]
    names = {"columnnames": [*row], "columntypes": kinds, "columnvalues": [*row.values()]}
    return {"kind": "insert", "schema": "public", "table": table} | names


def cased(row: dict[str, Any], table: str) -> dict[str, Any]:
    kinds = {"id": "bigint", "amount": "decimal(9,2)"}
    data = [dict.fromkeys(row) | {"id": "1", "city": "Bern"}, {name: str(value) for name, value in row.items()}]
    types = {name: kinds.get(name, "text") for name in row}
    return {"database": "shop", "table": table, "type": "INSERT", "isDdl": False, "data": data, "mysqlType": types}


Told = Callable[[dict[str, Any], str], dict[str, Any]]
SAID: dict[str, tuple[Any, Told, str]] = {
    "debezium": (dd.formats.debezium, lambda row, table: json.loads(message("c", row, 5, table)), "double"),
    "maxwell": (
        dd.formats.maxwell,
        lambda row, table: {"database": "shop", "table": table, "type": "insert", "data": row},
        "double",
    ),
    "canal": (dd.formats.canal, cased, "decimal128(9, 2)"),
    "wal2json 2": (
        dd.formats.wal2json,
        lambda row, table: {"action": "I", "schema": "public", "table": table, "columns": listed(row)},
        "decimal128(9, 2)",
    ),
    "wal2json 1": (
        dd.formats.wal2json,
        lambda row, table: {"change": [change({"id": 9, "city": "x"}, "others"), change(row, table)]},
        "decimal128(9, 2)",
    ),
    "kcat": (
        lambda **of: dd.formats.kcat(dd.formats.debezium(**of)),
        lambda row, table: {"topic": "t", "offset": 1, "payload": message("c", row, 5, table)},
        "double",
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_each_format_says_which_columns_are_new_in_its_table(tmp_path: Path, kind: str) -> None:
    made, told, shown = SAID[kind]
    place = Place(tmp_path, dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True))
    first = [(ROW | {"amount": 1, "of": 2}, "others"), (ROW | {"secret": 1}, "orders")]
    # A table of others has a row in the very columns that come to ours later; ours gets one in place of another.
    then = [(ROW | {"amount": 1, "of": 2}, "others"), (ROW | {"amount": 7.5}, "orders"), (ROW, "orders")]
    then += [(ROW | {"id": 3, "amount": 7.5}, "orders")]
    for number, some in enumerate((first, then)):
        place.land(f"{number}.jsonl", "\n".join(json.dumps(told(*each)) for each in some))
        if number:
            with pytest.raises(SchemaMismatch) as error:
                place.run(flow(made(table="orders")), evolve="stop")
            assert f"column 'amount' ({shown}), first in" in str(error.value)
        place.run(flow(made(table="orders")))
    held = {row["id"]: row["amount"] for row in place.held()}
    assert {2: held[2], 3: float(held[3])} == {2: None, 3: 7.5}
    assert place.held()[0].keys() == {"id", "city", "amount"}


def test_a_wider_column_of_messages_names_the_command_for_its_input(tmp_path: Path) -> None:
    made = flow(dd.formats.debezium(), n=pa.int32(), price=pa.decimal128(4, 2))
    made.output("others", made.upserts("others", {"id": int}, dd.Upsert(key="id")))
    place = Place(tmp_path, dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True))
    place.land("1.jsonl", message("c", ROW | {"n": 1}, 1))
    with pytest.warns(UserWarning, match="no message so far has the declared column 'price'"):
        place.run(made)
    before = place.held()
    for cell, command in (
        ({"n": 3_000_000_000}, r"; if the column .*: dd.evolve\('{}/state', \{{'orders': \{{'n': 'int64'"),
        ({"n": 1.5}, "'n': 'double'"),
        ({"n": "x"}, "'n': 'string'"),
        ({"price": "123.5"}, r"'price': 'decimal\(5,2\)'"),
    ):
        place.land("2.jsonl", message("c", ROW | cell, 2))
        with pytest.raises(BadMessage, match=command.format(tmp_path)):
            place.run(made)
        assert place.held() == before
    place.land("2.jsonl", message("c", ROW | {"id": "x"}, 2))
    with raises(BadMessage):
        place.run(made)


def test_a_file_of_duckdb_that_this_process_writes_to_is_read(tmp_path: Path) -> None:
    flow = dd.Flow()
    flow.output("orders", flow.upserts("orders", {"id": int}, dd.Upsert(key="id")))
    with duckdb.connect(tmp_path / "in.duckdb") as writing, flow.open() as engine:
        writing.execute("create table orders as select 7::bigint id")
        engine.run({"orders": dd.sources.duckdb(tmp_path / "in.duckdb", "orders")}, give_up_after="1s")
        assert engine.read("orders")["id"].to_pylist() == [7]
