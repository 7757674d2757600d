"""Test Delta Lake as a source: a copy of a version, then the change feed, by key or as differences; refusals."""

from __future__ import annotations

import datetime as dt
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.connectors.sources import find_position_error
from ddflow.errors import SchemaMismatch, SourceChanged, SpecError, UnreadableInput

COLUMNS = {"id": pa.int64(), "city": pa.string()}
FEED = {"delta.enableChangeDataFeed": "true"}


def by_key() -> dd.Flow:
    """An input of upserts."""
    flow = dd.Flow()
    people = flow.upserts("people", COLUMNS, dd.Upsert(key="id"), format=dd.formats.delta_cdf())
    flow.output("people", people)
    return flow


def as_differences() -> dd.Flow:
    """An input of differences, kept so that it can be read."""
    flow = dd.Flow()
    columns = COLUMNS | {"_change_type": pa.string(), "_commit_version": pa.int64()}
    flow.output("people", flow.updates("people", columns, diff=dd.delta_cdf, keep=True))
    return flow


FLOWS = pytest.mark.parametrize("flow", [by_key, as_differences])


def write(path: Path, rows: list[tuple[int, str | None]], **options: Any) -> None:
    table = pa.table({"id": [i for i, _ in rows], "city": pa.array([c for _, c in rows], pa.string())})
    deltalake.write_deltalake(path, table, **options)


def merge(path: Path, rows: list[tuple[int, str | None]]) -> None:
    """Upserts; rows without a city are deleted."""
    table = pa.table({"id": [i for i, _ in rows], "city": pa.array([c for _, c in rows], pa.string())})
    of = deltalake.DeltaTable(path).merge(table, "t.id = s.id", source_alias="s", target_alias="t")
    of.when_matched_delete("s.city is null").when_matched_update_all().when_not_matched_insert_all().execute()


def there(path: Path) -> list[Any]:
    return sorted(tuple(row.values())[:2] for row in pl.read_delta(path).to_dicts())


def held(engine: Any) -> list[Any]:
    rows = engine.read("people").to_pylist()
    assert {row["_diff"] for row in rows} <= {1}
    return sorted((row["id"], row["city"]) for row in rows)


@FLOWS
@pytest.mark.parametrize("configuration", [FEED, None])
def test_a_state_follows_a_table(tmp_path: Path, flow: Any, configuration: Any) -> None:
    table, source = tmp_path / "t", {"people": dd.sources.delta(tmp_path / "t")}
    write(table, [(1, "Bern"), (2, "Bern"), (3, "Chur")], configuration=configuration)
    write(table, [(4, "Chur")], mode="append")
    changes: list[Any] = [
        lambda: merge(table, [(1, "Genf"), (2, None), (9, "Thun")]),
        lambda: deltalake.DeltaTable(table).optimize.compact(),
        lambda: deltalake.DeltaTable(table).update(predicate="id >= 3", updates={"city": "'Brig'"}),
        lambda: deltalake.DeltaTable(table).delete("id = 4"),
        lambda: write(table, [(4, "Sion"), (1, "Bern")], mode="append") if flow is as_differences else None,
        lambda: write(table, [(7, "Bern"), (8, "Chur")], mode="overwrite"),
        lambda: deltalake.DeltaTable(table).delete(),
        lambda: write(table, [(1, "Bern")], mode="append"),
    ]
    with flow().open(tmp_path / "state") as engine:
        assert engine.run(source, give_up_after="0s").rows == 4 and held(engine) == there(table)
        for number, change in enumerate(changes):
            change()
            if number % 2:  # one at a time, and two of them
                engine.run(source, give_up_after="0s")
                assert held(engine) == there(table), number
            if number == 3:
                engine.close()
                engine = flow().open(tmp_path / "state")
        assert engine.run(source, give_up_after="0s").rows == 0
        engine.close()


def test_versions_are_one_epoch_each_or_together_and_ordered(tmp_path: Path) -> None:
    write(tmp_path / "t", [(1, "Bern")], configuration=FEED)
    for number in range(40):
        merge(tmp_path / "t", [(1, f"{number}"), (number + 2, "x")])
    seen = []
    flow = dd.Flow()
    columns = COLUMNS | {
        "_change_type": pa.string(),
        "_commit_version": pa.int64(),
        "_commit_timestamp": pa.timestamp("us"),
    }
    rows = flow.updates(
        "people", columns, diff=dd.delta_cdf, value=["id", "city", "_commit_version", "_commit_timestamp"]
    )
    flow.output("people", rows)
    opened = dd.sources.delta(tmp_path / "t", start=3).open({"people": pa.schema(columns)}, None)
    while not opened.ended:
        if found := opened.poll(1 << 20):
            seen.append(found)
    assert [found.position["version"] for found in seen] == [3, 4, 6, 10, 18, 34, 40]
    first = seen[0].rows["people"][0]
    assert first["_change_type"].to_pylist() == ["insert"] * first.num_rows and first["_commit_version"][0].as_py() == 3
    stamps = []
    for found in seen:
        (batch,) = found.rows["people"]
        versions = batch["_commit_version"].to_pylist()
        assert versions == sorted(versions) and batch.schema.field("_commit_timestamp").type == pa.timestamp("us")
        stamps += batch["_commit_timestamp"].to_pylist()
    assert stamps == sorted(stamps) and None not in stamps
    with flow.open() as engine:
        assert engine.run({"people": dd.sources.delta(tmp_path / "t", start=3)}, give_up_after="0s").rows == sum(
            batch.num_rows for found in seen for batch in found.rows["people"]
        )


@pytest.mark.drawn(1)
@FLOWS
def test_a_large_copy_takes_several_epochs_and_is_gone_on_with(tmp_path: Path, flow: Any) -> None:
    rows = 20_000
    for part in range(3):
        ids = range(part * rows, (part + 1) * rows)
        table = pa.table({"id": ids, "city": [f"c{n % 3}" for n in ids]})
        deltalake.write_deltalake(tmp_path / "t", table, mode="append", partition_by=["city"], configuration=FEED)
    source, seen = {"people": dd.sources.delta(tmp_path / "t")}, list[int]()
    while len(seen) < 30:
        with flow().open(tmp_path / "state") as engine:
            done = engine.run(
                source,
                interval="1ms",
                room="64KB",
                give_up_after="0s",
                on_epoch=lambda step, engine=engine: engine.stop(),
            )
            seen.append(done.rows)
            if len(seen) == 2:
                merge(tmp_path / "t", [(5, "Bern"), (6, None)])
            if done.stopped == "end":
                break
    with flow().open(tmp_path / "state") as engine:
        engine.run(source, give_up_after="0s")
        assert held(engine) == there(tmp_path / "t")
        assert sum(seen[:2]) < 3 * rows


def appended(path: Path, **columns: Any) -> None:
    """Rows that come with other columns, which the table thereby gets."""
    deltalake.write_deltalake(path, pa.table(columns), mode="append", schema_mode="merge")


def rewritten(path: Path, **columns: Any) -> None:
    """All rows and columns anew."""
    deltalake.write_deltalake(path, pa.table(columns), mode="overwrite", schema_mode="overwrite")


def rows(state: Path) -> list[dict[str, Any]]:
    """What a state holds, each row once."""
    found = dd.read(state, "people").to_pylist()
    assert all(row.pop("_diff") == 1 for row in found)
    return sorted(found, key=lambda row: row["id"])


def declared(flow: Any, **more: Any) -> dd.Flow:
    """The same flow with further columns."""
    made = dd.Flow()
    if flow is by_key:
        people = made.upserts("people", COLUMNS | more, dd.Upsert(key="id"), format=dd.formats.delta_cdf())
    else:
        feed = {"_change_type": pa.string(), "_commit_version": pa.int64()}
        people = made.updates("people", COLUMNS | feed | more, diff=dd.delta_cdf, keep=True)
    made.output("people", people)
    return made


@FLOWS
@pytest.mark.parametrize("configuration", [FEED, None])
def test_columns_come_and_go_with_the_table(tmp_path: Path, flow: Any, configuration: Any) -> None:
    table, state, source = tmp_path / "t", tmp_path / "state", {"people": dd.sources.delta(tmp_path / "t")}
    first = pa.table({"id": [1, 2], "city": ["Bern", "Chur"], "secret": ["s", "t"]})
    deltalake.write_deltalake(table, first, configuration=configuration)
    sinks = {
        "people": dd.sinks.sqlite(tmp_path / "out.db", "people", **({} if flow is by_key else {"mode": "retract"}))
    }
    with flow().open(state) as engine:
        assert engine.run(source, sinks, give_up_after="0s").epochs == 1
        appended(table, id=[3], city=["Thun"], secret=["u"])
        appended(table, id=[4], city=["Thun"], secret=["u"], n=pa.array([7], pa.int32()))
        appended(table, id=[5], city=["Thun"], secret=["u"], n=pa.array([None], pa.int32()), on=[dt.date(2024, 2, 29)])
        deltalake.DeltaTable(table).update(predicate="id = 1", updates={"n": "9", "city": "'Brig'"})
        done = engine.run(source, sinks, interval="1h", give_up_after="0s")  # or a busy machine makes more of it
        assert done.epochs == 3, "one before each new column, and one"
        position = engine.durable.log.sources["people"]
        assert position.left_out == {"people": ("secret",)} and find_position_error("delta", position.position) is None
    cells = [(1, "Brig", 9, None), (2, "Chur", None, None), (3, "Thun", None, None), (4, "Thun", 7, None)]
    cells.append((5, "Thun", None, dt.date(2024, 2, 29)))
    assert rows(state) == [dict(zip(("id", "city", "n", "on"), row, strict=True)) for row in cells]
    assert dd.read(state, "people").schema.field("n").type == pa.int32()
    rewritten(table, id=[1, 2], n=pa.array([9, 8], pa.int32()), on=pa.array([None, None], pa.date32()), more=["x", "y"])
    with flow().open(state) as engine:
        engine.run(source, sinks, give_up_after="0s")
    cells = [(1, None, 9, None, "x"), (2, None, 8, None, "y")]
    assert rows(state) == [dict(zip(("id", "city", "n", "on", "more"), row, strict=True)) for row in cells]
    assert not dd.fsck(state).problems
    connection = sqlite3.connect(tmp_path / "out.db")
    read = "select id, city, n, 'on', more from people" if flow is by_key else "select count(*) from people"
    assert len(connection.execute(read).fetchall()) == (2 if flow is by_key else 1)
    connection.close()


@FLOWS
def test_stop_names_the_column_and_its_version(tmp_path: Path, flow: Any) -> None:
    table, state, source = tmp_path / "t", tmp_path / "state", {"people": dd.sources.delta(tmp_path / "t")}
    write(table, [(1, "Bern")], configuration=FEED)
    with flow().open(state) as engine:
        engine.run(source, give_up_after="0s")
        write(table, [(2, "Chur")], mode="append")
        appended(table, id=[3], city=["Thun"], n=[7])
        write(table, [(4, "Chur")], mode="append", schema_mode="merge")
        with raises(SchemaMismatch):
            engine.run(source, give_up_after="0s", evolve="stop")
    assert [row["id"] for row in rows(state)] == [1, 2]
    with declared(flow, n=pa.int64()).open(state) as engine:
        engine.run(source, give_up_after="0s", evolve="stop")
    assert [row["n"] for row in rows(state)] == [None, None, 7, None]


@FLOWS
@pytest.mark.parametrize("value, kind", [(2**40, pa.int64()), ("x", pa.string()), (2.5, pa.float64())], ids=str)
def test_a_wider_column_ends_the_run_and_names_the_command(tmp_path: Path, flow: Any, value: Any, kind: Any) -> None:
    table, state, source = tmp_path / "t", tmp_path / "state", {"people": dd.sources.delta(tmp_path / "t")}
    narrow = pa.table({"id": [1], "city": ["Bern"], "n": pa.array([5], pa.int32())})
    deltalake.write_deltalake(table, narrow, configuration=FEED)
    with declared(flow, n=pa.int32()).open(state) as engine:
        engine.run(source, give_up_after="0s")
    rewritten(table, id=[1, 2], city=["Bern"] * 2, n=pa.array([None, None], kind))
    with declared(flow, n=pa.int32()).open(state) as engine:
        if kind != pa.string():
            engine.run(source, give_up_after="0s")
        before = engine.read("people")
    appended(table, id=[3], city=["Bern"], n=pa.array([value], kind))
    command = rf"dd.evolve\('{state}', \{{'n': '{kind}'\}}\)"
    with pytest.raises(SchemaMismatch, match=command), declared(flow, n=pa.int32()).open(state) as engine:
        engine.run(source, give_up_after="0s")
    assert dd.read(state, "people").equals(before)
    dd.evolve(state, {"n": kind})
    with declared(flow, n=kind).open(state) as engine:
        engine.run(source, give_up_after="0s")
    assert [row["n"] for row in rows(state)] == [None, None, value]


def test_a_column_that_is_gone_is_absent_in_merges(tmp_path: Path) -> None:
    table, source = tmp_path / "t", {"people": dd.sources.delta(tmp_path / "t")}
    write(table, [(1, "Bern")], configuration=FEED)
    flow = dd.Flow()
    spec = dd.Upsert(key="id", merge=dd.Merge({"city": dd.last()}))
    feed = dd.formats.delta_cdf()
    flow.output("people", flow.upserts("people", COLUMNS | {"n": pa.int64()}, spec, format=feed))
    with flow.open() as engine:
        for rows, city in (({"city": ["Bern"], "n": [1]}, "Bern"), ({"n": [2]}, "Bern"), ({"city": [None]}, None)):
            changes = {
                "id": [1],
                **rows,
                "_change_type": ["update_postimage"],
                "_commit_version": [rows.get("n", [9])[0]],
            }
            engine.step({"people": changes})
            assert engine.read("people")["city"].to_pylist() == [city]
    made = dd.Flow()
    made.output("people", made.upserts("people", COLUMNS, spec, format=feed))
    with made.open(tmp_path / "state") as engine:
        engine.run(source, give_up_after="0s")
        appended(table, id=[2], city=["Chur"])
        rewritten(table, id=[1, 3])
        engine.run(source, give_up_after="0s")
        # The table's writer took all rows away, and put some in.
        assert held(engine) == [(1, None), (3, None)]


@FLOWS
def test_a_table_stays_the_same_where_a_writer_gives_it_another_id(tmp_path: Path, flow: Any) -> None:
    table, source, ids = tmp_path / "t", {"people": dd.sources.delta(tmp_path / "t")}, set[str]()
    write(table, [(1, "Bern")], configuration=FEED)
    for number in range(3):
        with flow().open(tmp_path / "state") as engine:
            engine.run(source, give_up_after="0s")
            engine.run(source, give_up_after="0s")
        ids.add(str(deltalake.DeltaTable(table).metadata().id))
        more = pa.table({"id": [1], "city": ["Chur"], f"c{number}": [number]})
        of = deltalake.DeltaTable(table)
        merge = of.merge(more, "t.id = s.id", source_alias="s", target_alias="t", merge_schema=True)
        merge.when_matched_update_all().execute()
        deltalake.DeltaTable(table).update(predicate="id = 1", updates={"city": "'Thun'"})
    assert len(ids) > 1 and rows(tmp_path / "state") == [{"id": 1, "city": "Thun", "c0": 0, "c1": 1}]


def test_what_is_not_there_any_more(tmp_path: Path) -> None:
    source = {"people": dd.sources.delta(tmp_path / "t")}
    with by_key().open(tmp_path / "state") as engine:
        with raises(UnreadableInput):
            engine.run(source, give_up_after="0s")
        write(tmp_path / "t", [(1, "Bern"), (2, "Bern")], configuration=FEED)
        with raises(SourceChanged):
            engine.run({"people": dd.sources.delta(tmp_path / "t", start=9)}, give_up_after="0s")
        engine.run(source, give_up_after="0s")
        merge(tmp_path / "t", [(1, "Chur")])
        merge(tmp_path / "t", [(1, "Genf")])
        deltalake.DeltaTable(tmp_path / "t").create_checkpoint()
    for lost in ("log", "files"):
        place = tmp_path / lost
        os.system(f"cp -r {tmp_path}/t {place} && cp -r {tmp_path}/state {place}/_state")
        if lost == "log":
            (place / "_delta_log" / f"{1:020}.json").unlink()
        else:
            for path in (place / "_change_data").iterdir():
                path.unlink()
        with by_key().open(place / "_state") as engine, raises(SourceChanged):
            engine.run({"people": dd.sources.delta(place)}, give_up_after="0s")
    os.system(f"rm -r {tmp_path}/t")
    write(tmp_path / "t", [(1, "Bern")], configuration=FEED)
    with by_key().open(tmp_path / "state") as engine, raises(SourceChanged):
        engine.run(source, give_up_after="0s")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path / "t", [(1, "Bern")], configuration=FEED)
    source = {"people": dd.sources.delta(tmp_path / "t")}
    plain = dd.Flow()
    plain.output("people", plain.upserts("people", COLUMNS, dd.Upsert(key="id")))
    with plain.open() as engine, raises(SpecError):
        engine.run(source, give_up_after="0s")
    lacks = dd.Flow()
    key = dd.Upsert(key="person")
    lacks.output("people", lacks.upserts("people", {"person": int}, key, format=dd.formats.delta_cdf()))
    with lacks.open() as engine, raises(UnreadableInput):
        engine.run(source, give_up_after="0s")
    for columns in ({"id": int}, {"id": int, "town": str}):
        one = dd.Flow()
        one.output("people", one.upserts("people", columns, dd.Upsert(key="id"), format=dd.formats.delta_cdf()))
        with one.open(tmp_path / "one") as engine:
            if "town" in columns:
                with raises(UnreadableInput):
                    engine.run(source, give_up_after="0s")
            else:
                engine.run(source, give_up_after="0s")
    assert "town" not in dd.read(tmp_path / "one", "people").schema.names
    for start in (-1, True, dt.datetime(2026, 11, 25)):
        with raises(SpecError):
            dd.sources.delta(tmp_path / "t", start=start)
    with by_key().open() as engine:
        now = dd.sources.delta(tmp_path / "t", start=dt.datetime.now(dt.UTC))
        assert engine.run({"people": now}, give_up_after="0s").rows == 1
    features = {"minReaderVersion": 3, "minWriterVersion": 7}
    features |= {f"{side}Features": ["deletionVectors"] for side in ("reader", "writer")}
    log = tmp_path / "t" / "_delta_log" / f"{1:020}.json"
    log.write_text(json.dumps({"protocol": features}))
    with by_key().open() as engine, raises(UnreadableInput):
        engine.run(source, give_up_after="0s")
    assert "hush" not in repr(dd.sources.delta("t", storage_options={"secret": "hush"}))
