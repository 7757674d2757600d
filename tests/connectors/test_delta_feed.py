"""Delta Lake as a source: a copy of a version, then its change feed, by key and as differences; resumed; refused."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.errors import SourceChanged, SpecError, UnreadableInput

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
    return sorted(tuple(row.values())[:2] for row in deltalake.DeltaTable(path).to_pyarrow_table().to_pylist())


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


@FLOWS
def test_a_large_copy_takes_several_epochs_and_is_gone_on_with(tmp_path: Path, flow: Any) -> None:
    rows = 90_000
    for part in range(3):
        ids = range(part * rows, (part + 1) * rows)
        table = pa.table({"id": ids, "city": [f"c{n % 7}" for n in ids]})
        deltalake.write_deltalake(tmp_path / "t", table, mode="append", partition_by=["city"], configuration=FEED)
    source, seen = {"people": dd.sources.delta(tmp_path / "t")}, list[int]()
    while len(seen) < 30:
        with flow().open(tmp_path / "state") as engine:
            done = engine.run(source, interval="1ms", until="1ms", room="64KB", give_up_after="0s")
            seen.append(done.rows)
            if len(seen) == 2:
                merge(tmp_path / "t", [(5, "Bern"), (6, None)])
            if done.stopped == "end":
                break
    with flow().open(tmp_path / "state") as engine:
        engine.run(source, give_up_after="0s")
        assert held(engine) == there(tmp_path / "t")
        assert sum(seen[:2]) < 3 * rows


@FLOWS
def test_columns_that_come_later_are_read_when_they_are_declared(tmp_path: Path, flow: Any) -> None:
    table, source = tmp_path / "t", {"people": dd.sources.delta(tmp_path / "t")}
    write(table, [(1, "Bern")], configuration=FEED)
    with flow().open(tmp_path / "state") as engine:
        engine.run(source, give_up_after="0s")
        new = pa.table({"id": [2], "city": ["Chur"], "n": [7]})
        deltalake.write_deltalake(table, new, mode="append", schema_mode="merge")
        engine.run(source, give_up_after="0s")
        assert held(engine) == [(1, "Bern"), (2, "Chur")]
    more = dd.Flow()
    columns = COLUMNS | {"_change_type": pa.string(), "_commit_version": pa.int64(), "n": pa.int64()}
    if flow is by_key:
        columns = COLUMNS | {"n": pa.int64()}
        people = more.upserts("people", columns, dd.Upsert(key="id"), format=dd.formats.delta_cdf())
    else:
        people = more.updates("people", columns, diff=dd.delta_cdf, keep=True)
    more.output("people", people)
    merge_n = pa.table({"id": [1], "city": ["Bern"], "n": [9]})
    of = deltalake.DeltaTable(table).merge(merge_n, "t.id = s.id", source_alias="s", target_alias="t")
    of.when_matched_update_all().execute()
    with more.open(tmp_path / "state") as engine:
        engine.run(source, give_up_after="0s")
        found = sorted(tuple(row[name] for name in ("id", "city", "n")) for row in engine.read("people").to_pylist())
        assert found == [(1, "Bern", 9), (2, "Chur", None)]


def test_without_the_feed_a_version_with_new_settings_may_only_add(tmp_path: Path) -> None:
    table, source = tmp_path / "t", {"people": dd.sources.delta(tmp_path / "t")}
    write(table, [(1, "Bern")])
    with by_key().open(tmp_path / "state") as engine:
        engine.run(source, give_up_after="0s")
        new = pa.table({"id": [2], "city": ["Chur"], "n": [7]})
        deltalake.write_deltalake(table, new, mode="append", schema_mode="merge")
        engine.run(source, give_up_after="0s")
        assert held(engine) == [(1, "Bern"), (2, "Chur")]
        more = pa.table({"id": [3], "city": ["Genf"], "m": [7]})
        deltalake.write_deltalake(table, more, mode="overwrite", schema_mode="overwrite")
        with pytest.raises(UnreadableInput, match=r"version 2 took files away.*enableChangeDataFeed"):
            engine.run(source, give_up_after="0s")


def test_what_is_not_there_any_more(tmp_path: Path) -> None:
    source = {"people": dd.sources.delta(tmp_path / "t")}
    with by_key().open(tmp_path / "state") as engine:
        with pytest.raises(UnreadableInput, match="there is no table of Delta Lake"):
            engine.run(source, give_up_after="0s")
        write(tmp_path / "t", [(1, "Bern"), (2, "Bern")], configuration=FEED)
        with pytest.raises(SourceChanged, match="version"):
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
        with by_key().open(place / "_state") as engine, pytest.raises(SourceChanged, match="begin a new state"):
            engine.run({"people": dd.sources.delta(place)}, give_up_after="0s")
    os.system(f"rm -r {tmp_path}/t")
    write(tmp_path / "t", [(1, "Bern")], configuration=FEED)
    with by_key().open(tmp_path / "state") as engine, pytest.raises(SourceChanged, match="another table is there now"):
        engine.run(source, give_up_after="0s")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path / "t", [(1, "Bern")], configuration=FEED)
    source = {"people": dd.sources.delta(tmp_path / "t")}
    plain = dd.Flow()
    plain.output("people", plain.upserts("people", COLUMNS, dd.Upsert(key="id")))
    with plain.open() as engine, pytest.raises(SpecError, match="declare '_change_type'"):
        engine.run(source, give_up_after="0s")
    lacks = dd.Flow()
    key = dd.Upsert(key="person")
    lacks.output("people", lacks.upserts("people", {"person": int}, key, format=dd.formats.delta_cdf()))
    with lacks.open() as engine, pytest.raises(UnreadableInput, match="it has no column 'person'"):
        engine.run(source, give_up_after="0s")
    for start in (-1, True, dt.datetime(2026, 11, 25)):
        with pytest.raises(SpecError, match="that is no version"):
            dd.sources.delta(tmp_path / "t", start=start)
    with by_key().open() as engine:
        now = dd.sources.delta(tmp_path / "t", start=dt.datetime.now(dt.UTC))
        assert engine.run({"people": now}, give_up_after="0s").rows == 1
    features = {"minReaderVersion": 3, "minWriterVersion": 7}
    features |= {f"{side}Features": ["deletionVectors"] for side in ("reader", "writer")}
    log = tmp_path / "t" / "_delta_log" / f"{1:020}.json"
    log.write_text(json.dumps({"protocol": features}))
    with by_key().open() as engine, pytest.raises(UnreadableInput, match="deletionVectors"):
        engine.run(source, give_up_after="0s")
    assert "hush" not in repr(dd.sources.delta("t", storage_options={"secret": "hush"}))
