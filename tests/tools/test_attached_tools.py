"""Test the maintenance tools on a state with sources and sinks, while a sink lags."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from chance import mid_test
from messages import raises
from msgspec.structs import replace
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.engine.garbage import gc
from ddflow.errors import SinkAhead
from ddflow.partitions.evolve import evolve
from ddflow.partitions.rescale import rescale
from ddflow.storage import backlog
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import Manifest, load_newest_manifest
from ddflow.storage.manifest_log import publish_manifest
from ddflow.tools.fsck import fsck
from ddflow.tools.inspect import inspect
from ddflow.tools.migrate import migrate
from ddflow.tools.rollback import rollback

COLUMNS = {"id": pa.int64(), "city": pa.string()}


def flow(count: str = "city") -> dd.Flow:
    made = dd.Flow()
    orders = made.upserts("orders", COLUMNS, dd.Upsert(key="id"))
    made.output("orders", orders)
    made.output("counts", orders.project([count]).count())
    return made


def source(place: Path) -> dict[str, Any]:
    return {"orders": dd.sources.files(place / "in" / "*.csv")}


def sinks(place: Path) -> dict[str, Any]:
    return {name: dd.sinks.sqlite(place / f"{name}.db", "t") for name in ("orders", "counts")}


def land(place: Path, number: int) -> None:
    (place / "in").mkdir(exist_ok=True)
    (place / "in" / f"{number:03}.csv").write_text(f"id,city\n{number % 5},city {number}\n{number},Bern\n")


def newest_of(state: Path) -> Manifest:
    manifest = load_newest_manifest(LocalStore(state, readonly=True))
    assert manifest is not None
    return manifest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state of 12 epochs from files; the sink of the counts has one of them."""
    monkeypatch.setattr(backlog, "FAN", 2)
    for number in range(1, 13):
        land(tmp_path, number)
        with flow().open(tmp_path / "state", grace=1e6) as engine:
            given = sinks(tmp_path)
            engine.run(source(tmp_path), given if number == 1 else {"orders": given["orders"]})
    assert newest_of(tmp_path / "state").backlog
    return tmp_path


def said(*words: Any, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def test_inspect_tells_what_waits_in_epochs_and_bytes(place: Path) -> None:
    state = place / "state"
    found = inspect(state)
    sink, given = found["sinks"]["counts"], found["sources"]["orders"]
    assert (sink["kind"], sink["epoch"], sink["waiting"], found["sinks"]["orders"]["waiting"]) == ("sqlite", 1, 11, 0)
    lengths = {path.name: path.stat().st_size for path in (state / "blobs").iterdir()}
    manifest = newest_of(state)
    reader = backlog.Backlog(LocalStore(state, readonly=True))
    kept = [*reader.list_receipts(manifest.backlog), *manifest.receipts]
    outputs = [call.outputs["counts"] for each in kept if each.epoch > 1 for call in each.calls]
    assert sink["waiting_bytes"] == sum(lengths[blob.name] for output in outputs for blob in output.blobs) > 11 * 500
    assert found["sinks"]["orders"]["waiting_bytes"] == 0
    assert given["kind"] == "files" and len(given["position"]["done"]) == 12 and str(place) in given["target"]
    assert json.loads(said("inspect", state, "--json"))["sinks"] == found["sinks"]
    shown = said("inspect", state)
    assert "Sinks" in shown and "Sources" in shown and "sqlite" in shown


def test_inspect_tells_which_columns_of_a_source_are_left_out_and_which_came(tmp_path: Path) -> None:
    of = dd.Flow()
    for name in ("orders", "others"):
        columns, format = {"id": int, "city": str}, dd.formats.debezium(table=name)
        of.output(name, of.upserts(name, columns, dd.Upsert(key="id"), format=format))
    (tmp_path / "in").mkdir()
    for number, more in enumerate(({"secret": 1}, {"secret": 1, "amount": 7})):
        row = {"id": number, "city": "Bern"} | more
        line = {"op": "c", "after": row, "source": {"table": "orders", "lsn": number}}
        (tmp_path / "in" / f"{number}.jsonl").write_text(json.dumps(line))
        with of.open(tmp_path / "state") as engine:
            engine.run({"orders": dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True)})
    source = inspect(tmp_path / "state")["sources"]["orders"]
    assert (source["left_out"], source["added"]) == ({"orders": ("secret",)}, {"orders": ("amount",)})
    found = json.loads(said("inspect", tmp_path / "state", "--json"))["sources"]["orders"]
    assert (found["left_out"], found["added"]) == ({"orders": ["secret"]}, {"orders": ["amount"]})
    assert any(line.split()[-2:] == ["secret", "amount"] for line in said("inspect", tmp_path / "state").splitlines())


@mid_test
def test_fsck_looks_at_what_waits_and_at_what_sinks_say(place: Path) -> None:
    state = place / "state"
    assert fsck(state).ok
    manifest = newest_of(state)
    orders = manifest.sources["orders"]
    wrong = {
        "but its plan has no such output": {"other": replace(manifest.sinks["counts"], epoch=12)},
        "received epoch 3, but has acknowledged only 1": {"counts": replace(manifest.sinks["counts"], written=3)},
        "received an epoch 12 that differs": {"orders": replace(manifest.sinks["orders"], digest="0" * 32)},
        "lacks epoch 1, but its updates are no longer kept": {
            "counts": replace(manifest.sinks["counts"], epoch=0, written=0)
        },
    }
    positions = {
        "not a valid position of files: Expected `int`, got `null` - at `$.before`": (
            "files",
            orders.position | {"before": None},
        ),
        "not a valid position of kafka: Object missing required field `offsets`": ("kafka", {}),
        "not a valid position of postgres: Expected `str`, got `int` - at `$.lsn`": ("postgres", {"lsn": 7}),
        "not a valid position of sqlite: Expected `object`, got `null`": ("sqlite", None),
    }
    for number, (words, sink) in enumerate([*wrong.items(), *((words, {}) for words in positions)]):
        copy = place / f"copy {number}"
        shutil.copytree(state, copy)
        store = LocalStore(copy)
        new = replace(manifest, number=manifest.number + 1, sinks=manifest.sinks | sink, previous="")
        if words in positions:
            kind, position = positions[words]
            new = replace(new, sources={"orders": replace(orders, kind=kind, position=position)})
        if "epoch 12" in words:  # a version in which the receipt of that epoch has its digest
            signed = replace(manifest.receipts[-1], digest=manifest.sinks["orders"].digest, written=1)
            new = replace(new, receipts=(*manifest.receipts[:-1], signed))
        if "epoch 1," in words:
            new = replace(new, backlog=())
        assert publish_manifest(store, new)
        store.mark_published(new.number)
        store.close()
        problems = [each.found for each in fsck(copy).problems]
        assert any(words in each for each in problems), (words, problems)


def test_going_back_brings_positions_back_and_names_the_sinks_that_are_ahead(place: Path) -> None:
    state = place / "state"
    shown = said("rollback", state, "--to-epoch", 9, "--yes")
    assert "the source 'orders'" in shown and "position at epoch 9" in shown
    assert "the sink of 'orders' may have epochs up to 12, which no longer exist: ddflow sync" in shown
    assert len(newest_of(state).sources["orders"].position["done"]) == 9
    assert fsck(state).ok
    gc(state, grace=0, orphans=0)
    with flow().open(state) as engine:
        with raises(SinkAhead):
            engine.run({}, sinks(place))
        engine.sync({"orders": sinks(place)["orders"]})
        done = engine.run(source(place), sinks(place))
        assert done.rows == 6 and done.sinks == {"orders": engine.epoch, "counts": engine.epoch}
        rows = {name: engine.read(name).num_rows for name in ("orders", "counts")}
    for name, count in rows.items():
        with sqlite3.connect(place / f"{name}.db") as connection:
            assert connection.execute("select count(*) from t").fetchone() == (count,)


def test_going_back_says_it_in_json_and_of_nothing_where_nothing_is_ahead(place: Path) -> None:
    done = json.loads(said("rollback", place / "state", "--to-epoch", 11, "--yes", "--json"))
    assert done["ahead"] == {"orders": 12, "counts": 12}
    assert rollback(place / "state", 11).ahead == {"orders": 12, "counts": 12}


def test_migration_leaves_sources_and_sinks_with_the_old_state(place: Path) -> None:
    new, log = place / "new", [{"orders": pa.csv.read_csv(path)} for path in sorted((place / "in").glob("*.csv"))]
    done = migrate(place / "state", new, flow("id"), log, whole=True)
    assert done.left == ["orders", "orders", "counts"]
    manifest = newest_of(new)
    assert manifest.sources == {} and manifest.sinks == {} and fsck(new).ok
    assert newest_of(place / "state").sinks["counts"].epoch == 1


def test_rescaling_and_evolving_keep_what_is_attached(place: Path) -> None:
    state, before = place / "state", newest_of(place / "state")
    rescale(state, 4)
    evolve(state, {"city": "large_string"})
    rescale(state, 1)
    after = newest_of(state)
    assert (after.sources, after.sinks, after.backlog) == (before.sources, before.sinks, before.backlog)
    assert fsck(state).ok


def test_verify_export_and_why_read_a_state_with_them(place: Path) -> None:
    state = place / "state"
    log = [pa.csv.read_csv(path) for path in sorted((place / "in").glob("*.csv"))]
    assert dd.verify(state, {"orders": log}).ok
    assert "holds (id=12, city='Bern')" in said("why", state, 12)
    said("export", state, "orders", "-o", place / "out.parquet")
    assert (place / "out.parquet").exists()


def test_why_names_the_offset_of_the_message_that_won(tmp_path: Path) -> None:
    made = dd.Flow()
    made.output("orders", made.upserts("orders", COLUMNS, dd.Upsert(key="id"), format=dd.formats.plain_json()))
    (tmp_path / "in").mkdir()
    for number, city in enumerate(("Bern", "Chur")):
        (tmp_path / "in" / f"{number}.jsonl").write_text(f'{{"id": 7}}\n{{"id": 1, "city": "{city}"}}\n')
    with made.open(tmp_path / "state") as engine:
        engine.run({"orders": dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True)})
    assert "(id=1, city='Chur'), by order (_position=3)" in said("why", tmp_path / "state", 1)
