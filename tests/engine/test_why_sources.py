"""Test that `why` names the source of an input and its position, in the source's own notation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.connectors.sources import describe_event_position, describe_position
from ddflow.engine.lineage.story import Story
from ddflow.engine.run.source_reader import SourceFeed, find_source_feed
from ddflow.engine.snapshot import Snapshot
from ddflow.storage.epochs import AttachedSource

WRITTEN = 1_790_000_000_000_000_000
FILES = {"1.csv": [9, 1], "2.csv": [9, 1]}


def slot_at(lsn: str) -> dict[str, Any]:
    """A position of a slot of Postgres."""
    orders = {"input": "orders", "oid": 9, "columns": {"id": 1}, "last": 1}
    return {"lsn": lsn, "slot": "shop", "system": "7", "tables": {"public.orders": orders}}


def offsets(**by_partition: int) -> dict[str, Any]:
    """A position of a topic."""
    return {"offsets": {name[1:]: n for name, n in by_partition.items()}, "cluster": "c", "topic_id": ""}


SAID: dict[str, list[tuple[Any, str]]] = {
    "files": [
        ({"done": {}, "at": None, "before": 0}, "no file"),
        ({"done": {"1.csv": [9, 1]}, "at": None, "before": 0}, "1.csv"),
        ({"done": FILES, "at": ["3.csv", 9, 1, 1000], "before": 0}, "2.csv (2 files), and row 1,000 of 3.csv"),
    ],
    "kafka": [(offsets(p0=17, p1=4), "offset 17 of partition 0, offset 4 of partition 1")],
    "postgres": [(slot_at("0/16B3748"), "0/16B3748"), ({"lsn": 7}, '{"lsn": 7}')],
    "delta": [
        ({"table": "t", "version": 7, "rows": None}, "version 7"),
        ({"table": "t", "version": 7, "rows": 1000}, "row 1,000 of the copy of version 7"),
    ],
    "sqlite": [
        ({"table": "t", "stamp": [8192, WRITTEN]}, "the write at 2026-09-21 14:13:20+00:00"),
        ({"table": "t", "stamp": []}, '{"table": "t", "stamp": []}'),
    ],
    "duckdb": [
        (
            {"table": "t", "stamp": [8192, WRITTEN, 5, WRITTEN + 10**9]},
            "the write at 2026-09-21 14:13:21+00:00",
        )
    ],
    "pages": [({"page": 7}, '{"page": 7}')],
}


@pytest.mark.parametrize("kind", SAID)
def test_a_position_in_its_own_words(kind: str) -> None:
    for position, words in SAID[kind]:
        assert describe_position(kind, position) == words


def test_a_place_in_the_log_of_postgres_is_shown_as_postgres_writes_it() -> None:
    assert (describe_event_position("postgres", 0x16B3748), describe_event_position("kafka", 7)) == ("0/16B3748", 7)
    row = {"what": "held", "_time": 3, "verdict": None, "seq": None, "id": 7, "winner__position": 0x16B3748}
    of = SourceFeed("shop", "postgres", "postgresql://db:5432/shop#shop", slot_at("0/16B3750"))
    story = Story("orders", {"id": 7}, pa.Table.from_pylist([row]), {"id": 7}, ("id",), 0, "", source=of)
    assert str(story).splitlines()[1:] == [
        "  from 3: (id=7), by order (_position='0/16B3748')",
        "its input is fed by the source 'shop': postgres postgresql://db:5432/shop#shop, read up to 0/16B3750",
    ]


def test_a_source_is_known_by_its_name_and_by_the_inputs_that_it_gave_rows() -> None:
    shop = AttachedSource("kafka", "kafka://b:1/shop", offsets(p0=1), {"orders": ("secret",), "people": ()})
    files = AttachedSource("files", "/in/*.csv", {"done": {}, "at": None, "before": 0}, {})
    found = {
        name: find_source_feed({"shop": shop, "cities": files}, name)
        for name in ("orders", "people", "cities", "others")
    }
    assert [each and each.source for each in found.values()] == ["shop", "shop", "cities", None]


def flow() -> dd.Flow:
    made = dd.Flow()
    people = made.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"), format=dd.formats.delta_cdf())
    orders = made.upserts("orders", {"order": int, "id": int}, dd.Upsert(key="order"))
    made.output("both", orders.join(people, on="id"))
    return made


def test_a_state_an_engine_and_the_shell_tell_it(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1, 2], "city": ["Bern", "Chur"]}))
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [3], "city": ["Genf"]}), mode="append")
    (tmp_path / "1.csv").write_text("order,id\n7,1\n")
    sources = {"people": dd.sources.delta(tmp_path / "t"), "orders": dd.sources.files(tmp_path / "*.csv")}
    lines = {
        "people": f"the source 'people': delta {tmp_path}/t, read up to version 1",
        "orders": f"the source 'orders': files {tmp_path}/*.csv, read up to 1.csv",
    }
    for state in (None, tmp_path / "state"):
        with flow().open(state) as engine:
            assert "fed by" not in str(engine.why("people", 1))
            engine.run(sources, give_up_after="0s")
            _tells(engine, lines)
    with Snapshot.open(tmp_path / "state") as snapshot:
        _tells(snapshot, lines)
        told: Any = snapshot.why("both", {"order": 7})
        assert told.to_dict()["sources"]["people"]["position"]["version"] == 1
    shown = CliRunner().invoke(app, ["why", str(tmp_path / "state"), "7", "--input", "orders"])
    assert f"its input is fed by {lines['orders']}" in shown.output.splitlines()
    shown = CliRunner().invoke(app, ["why", str(tmp_path / "state"), "7", "--input", "orders", "--json"])
    assert json.loads(shown.output)["source"]["read_up_to"] == "1.csv"


def _tells(of: Any, lines: dict[str, str]) -> None:
    for name, key in (("people", 1), ("orders", 7)):
        assert str(of.why(name, key)).splitlines()[-1] == f"its input is fed by {lines[name]}"
    assert str(of.why("both", {"order": 7})).splitlines()[-2:] in (
        [f"{name!r} is fed by {lines[name]}" for name in names]
        for names in (("people", "orders"), ("orders", "people"))
    )
