"""Test addresses: no call takes a URL for a folder, and no error repeats a password."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from typer.testing import CliRunner

import ddflow as dd
import spark_bridge
from ddflow.cli import app
from ddflow.engine.garbage import gc
from ddflow.errors import DdflowError, EngineClosed, SpillRefused, StateRefused
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.partitions.rescale import rescale
from ddflow.storage import address, object_store as bucket
from ddflow.storage.memory import MemoryStore
from ddflow.storage.object_store import format_error
from ddflow.storage.opening import open_store
from ddflow.tools.inspect import inspect
from ddflow.tools.rollback import list_versions

SECRET = "wJalr/XUtn+FEMI"
SCHEMES = ["s3a", "gs", "hdfs", "abfss", "file", "S3", "https", "dbfs", "wasbs", "s3n"]
ROWS = {"rows": pa.table({"id": [1]})}


def flow() -> dd.Flow:
    out = dd.Flow()
    out.output("all", out.upserts("rows", {"id": pa.int64()}, dd.Upsert(key="id")))
    return out


def made(place: Path) -> str:
    with flow().open(place / "state") as engine:
        engine.step(ROWS, 1)
    return str(place / "state")


STATES: dict[str, Callable[[Any, Path], Any]] = {
    "flow.open": lambda given, _: flow().open(given),
    "EpochDriver.open": lambda given, _: EpochDriver.open(flow(), given, DriverOptions(partitions=2)),
    "open_store": lambda given, _: open_store(given, readonly=True),
    "dd.read": lambda given, _: dd.read(given, "all"),
    "Snapshot": lambda given, _: dd.Snapshot.open(given).close(),
    "inspect": lambda given, _: inspect(given),
    "fsck": lambda given, _: dd.fsck(given),
    "why": lambda given, _: dd.Snapshot.open(given).why("rows", 1),
    "verify": lambda given, _: dd.verify(given, {"rows": [ROWS["rows"]]}),
    "gc": lambda given, _: gc(given),
    "rollback": lambda given, _: dd.rollback(given),
    "versions": lambda given, _: list_versions(given),
    "rescale": lambda given, _: rescale(given, 2),
    "migrate from": lambda given, place: dd.migrate(given, place / "new", flow(), [ROWS]),
    "migrate to": lambda given, place: dd.migrate(made(place), given, flow(), [ROWS]),
    "spark run": lambda given, _: spark_bridge.run(flow(), {}, state=given),
    "spark stream": lambda given, _: spark_bridge.stream(flow(), {"rows": None}, state=given),  # type: ignore[dict-item]
    "spark source": lambda given, _: spark_bridge.DdflowSource({"path": os.fspath(given)}).schema(),
}
FOLDERS: dict[str, Callable[[Any, Path], Any]] = {
    "flow.open": lambda given, place: flow().open(place / "state", outputs=given),
    "in memory": lambda given, _: flow().open(MemoryStore(), outputs=given),
    "EpochDriver.open": lambda given, place: EpochDriver.open(flow(), place / "state", DriverOptions(outputs=given)),
    "spark run": lambda given, place: spark_bridge.run(flow(), {}, state=str(place / "state"), outputs=given),
    "spark stream": lambda given, place: spark_bridge.stream(
        flow(),
        {"rows": None},
        state=str(place / "state"),  # type: ignore[dict-item]
        outputs=given,
    ),
    "spark run without a state": lambda given, _: spark_bridge.run(flow(), {}, outputs=given),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, in which nothing may come up."""
    below = tmp_path / "here"
    below.mkdir()
    monkeypatch.chdir(below)
    return below


def refusal(door: Callable[[Any, Path], Any], given: Any, place: Path) -> str:
    with pytest.raises(DdflowError) as caught:
        door(given, place)
    return str(caught.value)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("door", STATES)
def test_a_state_at_another_scheme_is_refused_and_becomes_no_folder(
    door: str, scheme: str, here: Path, tmp_path: Path
) -> None:
    for given in (f"{scheme}://bucket/orders", Path(f"{scheme}://bucket/orders")):
        said = refusal(STATES[door], given, tmp_path)
        assert f"{scheme}:/" in said and "s3://bucket/prefix" in said
    said = refusal(STATES[door], f"{scheme}://AKIAI44:{SECRET}@bucket/orders?sig={SECRET}", tmp_path)
    assert SECRET not in said and "AKIAI44" not in said and "bucket/orders" in said
    assert not list(here.iterdir())


@pytest.mark.parametrize("scheme", [*SCHEMES, "s3"])
@pytest.mark.parametrize("door", FOLDERS)
def test_outputs_at_any_scheme_are_refused_before_anything_is_made(
    door: str, scheme: str, here: Path, tmp_path: Path
) -> None:
    said = refusal(FOLDERS[door], f"{scheme}://AKIAI44:{SECRET}@bucket/outputs", tmp_path)
    assert SECRET not in said and ("is not supported" in said or "there is no state" in said)
    assert not list(here.iterdir()) and not (tmp_path / "state").exists()


@pytest.mark.parametrize("scheme", [*SCHEMES, "s3"])
def test_a_folder_to_spill_to_has_no_scheme(scheme: str, here: Path) -> None:
    with raises(SpillRefused) as caught:
        flow().open(memory="64MB", spill=f"{scheme}://AKIAI44:{SECRET}@bucket/spill")
    assert SECRET not in str(caught.value) and not list(here.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["diff", "rows.csv", "--key", "id", "--state", "GIVEN"],
        ["fsck", "GIVEN"],
        ["replace", "rows.csv", "--key", "id", "--state", "GIVEN"],
        ["gc", "GIVEN"],
        ["gc", "GIVEN", "--forget"],
        ["rollback", "GIVEN", "--yes"],
        ["inspect", "GIVEN"],
        ["export", "GIVEN"],
        ["rescale", "GIVEN", "--partitions", "2"],
        ["migrate", "GIVEN", "new", "rows.csv", "--key", "id"],
    ],
)
def test_the_shell_refuses_it_too(words: list[str], here: Path) -> None:
    (here / "rows.csv").write_text("id,v\n1,2\n")
    for given in (f"gs://AKIAI44:{SECRET}@bucket/orders", f"s3://AKIAI44:{SECRET}@bucket/orders"):
        result = CliRunner().invoke(app, [given if word == "GIVEN" else word for word in words])
        said = f"{result.output} {result.exception}"
        assert (
            result.exit_code and SECRET not in said and "AKIAI44" not in said and "s3://bucket" in "".join(said.split())
        )
    assert os.listdir(here) == ["rows.csv"]


@pytest.mark.parametrize(
    "given",
    [
        f"s3://AKIAI44:{SECRET}@bucket/orders",
        f"s3://bucket/orders?X-Amz-Signature={SECRET}",
        f"s3://AKIAI44:{SECRET}@",
        f"s3://bucket/orders#{SECRET}",
    ],
)
def test_a_bucket_with_a_password_is_refused_without_it(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StateRefused, match=r"not of the form s3://bucket/prefix.*AWS_ACCESS_KEY_ID") as caught:
        open_store(given)
    assert SECRET not in str(caught.value)
    monkeypatch.setattr(bucket, "_process", -1)  # as in a child of a process that had one
    with pytest.raises((StateRefused, EngineClosed)) as caught:
        open_store(given)
    assert SECRET not in str(caught.value)


def test_an_endpoint_s_password_is_no_part_of_an_error() -> None:
    assert format_error(ValueError(f"cannot reach http://me:{SECRET.replace('/', '')}@host:9/x")) == (
        "cannot reach http://...@host:9/x"
    )


@pytest.mark.parametrize("given", [7, None, {"password": SECRET}, ("s3://", SECRET), object()])
def test_what_is_no_address_is_not_shown(given: Any) -> None:
    with pytest.raises(StateRefused, match="is not an address; use a folder") as caught:
        open_store(given)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["a:b", "state@home", "./gs://x", "C", "a b/c#d?e", "s3", "-://x", "1a://x"])
def test_a_folder_may_have_almost_any_name(name: str, here: Path) -> None:
    assert not address.parse_scheme(name) and address.mask_address(name) == name
    with contextlib.suppress(FileExistsError):
        flow().open(name).close()
    assert os.path.exists(os.path.join(name, "manifests"))
