"""Test sinks of a partitioned state: each epoch once despite failures; rollback, rescaling, sync and detach."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import mid_test
from messages import raises
from parts_by_hand import Hands

import ddflow as dd
from ddflow.engine.run.delivery import Delivery
from ddflow.errors import SinkAhead, SinkRefused
from ddflow.partitions.driver_epochs import DriverEpochs, sync_state
from ddflow.partitions.rescale import rescale
from ddflow.storage import backlog
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.opening import open_existing_store, open_store
from ddflow.tools.fsck import fsck

COLUMNS = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
DAYS = [
    [(n, ["Bern", "Chur", "Genf"][n % 3], n) for n in range(12)],
    [(1, "Chur", 5), (4, "Basel", 2)],
    [(n, "Bern", 7) for n in range(6, 9)],
]


def flow() -> dd.Flow:
    made = dd.Flow()
    orders = made.upserts("orders", COLUMNS, dd.Upsert(key="id"))
    made.output("cities", orders.project(["city"]))
    made.output("by_city", orders.group_by("city").agg(n="count(*)", total="sum(amount)"))
    return made


class Place:
    """A state in three partitions, and tables of SQLite."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.partitions = folder, str(folder / "state"), 3
        self.sinks = {
            "by_city": dd.sinks.sqlite(folder / "out.db", "by_city"),
            "cities": dd.sinks.sqlite(folder / "out.db", "cities", mode="updates"),
        }

    @contextmanager
    def hands(self) -> Iterator[Hands]:
        with closing(Hands(flow(), open_store(self.state), self.partitions, random.Random(7))) as hands:
            yield hands

    def day(self, rows: list[tuple[Any, ...]], pumped: bool = True, **sinks: Any) -> list[int]:
        """An epoch of a driver of its own; where each sink is then."""
        with self.hands() as hands:
            deliveries = [
                Delivery(DriverEpochs(hands.coordinator), name, sink) for name, sink in (sinks or self.sinks).items()
            ]
            if pumped:
                assert all(each.deliver_waiting_epochs(0.0) for each in deliveries)
            table = pa.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))
            hands.epoch({"orders": table})
            if pumped:
                assert all(each.deliver_waiting_epochs(0.0) for each in deliveries)
                deliveries[0].epochs.publish_connector_positions()
            for each in deliveries:
                each.close()
            return [each.at for each in deliveries]

    def there(self, table: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "out.db")) as connection:
            return sorted(connection.execute(f"select * from {table}").fetchall())

    def held(self, name: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values())[:-1] for row in dd.read(self.state, name).to_pylist())

    def manifest(self) -> Any:
        with open_existing_store(self.state) as store:
            return load_newest_manifest(store)

    def check(self) -> None:
        """Targets hold what the state does, each update once."""
        assert self.there("by_city") == self.held("by_city")
        sums: dict[str, int] = {}
        for city, _, diff in self.there("cities"):
            sums[city] = sums.get(city, 0) + diff
        counts: dict[str, int] = {}
        for row in dd.read(self.state, "cities").to_pylist():
            counts[row["city"]] = row["_diff"]
        assert {city: n for city, n in sums.items() if n} == counts


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_epoch_goes_to_its_sinks_once(place: Place) -> None:
    assert [place.day(rows) for rows in DAYS] == [[1, 1], [2, 2], [3, 3]]
    place.check()
    manifest = place.manifest()
    assert {name: (each.epoch, each.written) for name, each in manifest.sinks.items()} == {
        "by_city": (3, 3),
        "cities": (3, 3),
    }
    assert dd.fsck(place.state).ok


def test_a_driver_that_died_before_its_sinks_had_it_goes_on_there(place: Place) -> None:
    place.day(DAYS[0])
    place.day(DAYS[1], pumped=False)
    assert place.there("by_city") != place.held("by_city")
    assert place.day(DAYS[2]) == [3, 3]
    place.check()


def test_an_epoch_was_committed_when_its_manifest_says(place: Place) -> None:
    said = []
    for rows in DAYS:
        place.day(rows, pumped=False)
        said.append(place.manifest().written)
    with closing(_driver(place)) as driver:
        assert [DriverEpochs(driver).read_commit_time(epoch) for epoch in (1, 2, 3)] == said


def test_epochs_are_kept_until_sinks_have_them(place: Place) -> None:
    place.day(DAYS[0])
    for n in range(12):
        place.day([(n, "Thun", n)], pumped=False)
    assert [each.epoch for each in place.manifest().receipts] == list(range(2, 14))
    place.day(DAYS[1])
    place.check()
    place.day(DAYS[2])
    assert [each.epoch for each in place.manifest().receipts] == list(range(8, 16))


@mid_test
def test_a_driver_keeps_a_long_backlog_in_files_of_its_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "FAN", 2)
    place.day(DAYS[0])
    for n in range(19):
        place.day([(n, "Thun", n)], pumped=False)
    manifest = place.manifest()
    assert [(each.first, each.last) for each in manifest.backlog] == [(2, 9), (10, 11)] and manifest.oldest_epoch == 2
    place.day(DAYS[1])
    place.check()
    place.day(DAYS[2])
    assert place.manifest().backlog == () and fsck(place.state).ok


def test_a_late_sink_gets_what_there_is(place: Place) -> None:
    for rows in DAYS[:2]:
        place.day(rows, pumped=False)
    assert place.day(DAYS[2]) == [3, 3]
    place.check()


def test_after_a_rollback_a_sink_is_ahead_and_sync_mends_it(place: Place) -> None:
    place.day(DAYS[0])
    place.day(DAYS[1])
    dd.rollback(place.state, 1)
    with raises(SinkAhead):
        place.day(DAYS[2])
    with closing(_driver(place)) as driver:
        assert sync_state(driver, place.sinks, adopt=False, dry=True)["by_city"][:3] == (1, 1, 0)
        sync_state(driver, place.sinks, adopt=False, dry=False)
    place.check()
    assert place.day(DAYS[2]) == [2, 2]
    place.check()


def test_a_sink_goes_on_after_rescaling(place: Place) -> None:
    place.day(DAYS[0])
    place.day(DAYS[1], pumped=False)
    rescale(place.state, 5)
    place.partitions = 5
    assert place.day(DAYS[2]) == [3, 3]
    place.check()
    rescale(place.state, 1)
    with flow().open(place.state) as engine:  # an engine goes on with what a driver delivered
        assert engine.run(sinks=place.sinks).sinks == {"by_city": 3, "cities": 3}
        engine.step({"orders": {"id": [0], "city": ["Brig"], "amount": [1]}})
        assert engine.run(sinks=place.sinks).sinks == {"by_city": 4, "cities": 4}
    place.check()


def test_another_states_table_is_refused_and_a_sink_is_forgotten(place: Place, tmp_path: Path) -> None:
    place.day(DAYS[0])
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other")
    other.sinks = place.sinks
    with raises(SinkRefused):
        other.day(DAYS[0])
    with closing(_driver(place)) as driver:
        sync_state(driver, {}, False, False, ("cities",))
    assert list(place.manifest().sinks) == ["by_city"]


def _driver(place: Place) -> Any:
    from ddflow.partitions.commit import EpochDriver

    return EpochDriver.open(flow(), place.state)
