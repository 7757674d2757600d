"""Test that acknowledged epochs can be read back, with any clock and any manifest number from another program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from msgspec.structs import replace
from s3_server import moto, options

import ddflow as dd
from ddflow.engine.garbage import gc
from ddflow.errors import CorruptState, DdflowError, StateRefused
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import load_manifest, load_newest_manifest
from ddflow.storage.protocol import GREATEST
from ddflow.storage.s3 import S3Store
from ddflow.tools.rollback import list_versions, rollback

__all__ = ["moto"]
ROWS = {"people": pa.table({"id": [1, 2], "city": ["a", "b"]})}


def plan() -> dd.Flow:
    flow = dd.Flow()
    flow.output("out", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")))
    return flow


@pytest.mark.parametrize("seconds", [-86_400.0, -0.001, -62_135_596_800.0])
def test_epochs_acknowledged_while_the_clock_is_before_1970_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    with monkeypatch.context() as patch:
        for module in ("ddflow.storage.manifest_log", "ddflow.tools.rollback"):
            patch.setattr(f"{module}.time", lambda: seconds)
        with plan().open(tmp_path / "s") as engine:
            for time in (1, 2):
                engine.step(ROWS, time)
        assert rollback(tmp_path / "s", 1).manifest.epoch == 1
    with plan().open(tmp_path / "s") as engine:
        assert (engine.epoch, engine.read("people").num_rows) == (1, 2)
        assert engine.step(ROWS, 9).verdicts["noop"] == 2
    assert all(each.wrong is None for each in list_versions(tmp_path / "s"))
    gc(tmp_path / "s")
    with plan().open(tmp_path / "s") as engine:
        assert engine.epoch == 2


def test_a_clock_that_no_reader_understands_is_refused_before_anything_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plan().open(tmp_path / "s") as engine:
        engine.step(ROWS, 1)
        monkeypatch.setattr("ddflow.storage.manifest_log.time", lambda: 1e12)
        with raises(StateRefused):
            engine.step(ROWS, 2)
        monkeypatch.undo()
    with plan().open(tmp_path / "s") as engine:
        assert engine.epoch == 1


LAST = "9999999999999999"
ASKED: dict[str, Callable[[Any], Any]] = {
    "open": lambda store: plan().open(store),
    "read": lambda store: dd.read(store, "people"),
    "newest": load_newest_manifest,
    "rollback": rollback,
    "versions": list_versions,
    "gc": gc,
}


@pytest.mark.parametrize("folder", ["manifests", "marks"])
@pytest.mark.parametrize("place", ["local", "s3"])
def test_a_number_that_no_manifest_can_have_is_refused_by_name(
    folder: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def opened() -> Any:
        if place == "local":
            return LocalStore(tmp_path / "s")
        return S3Store(url, cache=tmp_path / "cache", options=options(server.url))

    server = request.getfixturevalue("moto") if place == "s3" else None
    url = f"s3://{server.bucket()}/orders" if server else ""
    store = opened()
    with plan().open(store) as engine:
        engine.step(ROWS, 1)
    whole = store.read_manifest(1)
    if place == "local":
        (tmp_path / "s" / folder / LAST).write_bytes(whole)
    else:
        store._bucket.put_object(f"{folder}/{LAST}", whole)
    for ask in ASKED.values():
        with pytest.raises(CorruptState) as caught:
            ask(opened())
        assert f"{folder}/{LAST} of " in caught.value.asked and "remove it" in caught.value.fix
    if place == "local":
        (tmp_path / "s" / folder / LAST).unlink()
    else:
        store._bucket.delete(f"{folder}/{LAST}")
    with plan().open(opened()) as engine:
        assert engine.epoch == 1


def test_after_the_greatest_number_nothing_is_written_and_the_error_says_why(tmp_path: Path) -> None:
    """Somebody made a manifest of that number by hand: it can be read, and not be followed."""
    with plan().open(tmp_path / "s") as engine:
        engine.step(ROWS, 1)
    store = LocalStore(tmp_path / "s")

    last = replace(load_manifest(store, 1), number=GREATEST)
    assert store.publish(GREATEST, last.encode())
    with plan().open(tmp_path / "s") as engine, pytest.raises(DdflowError) as caught:
        engine.step(ROWS, 2)
    assert isinstance(
        caught.value, StateRefused
    ) and f"write manifest {LAST}: Expected `int` <= {GREATEST} - at `$.number`" in str(caught.value)
    assert dd.read(tmp_path / "s", "people").num_rows == 2
