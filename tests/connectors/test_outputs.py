"""Test a folder of outputs: owner, names, visible files, and errors after damage.

`test_outputs_power` tests power failures, and `test_durable_kill` tests kills at every system call.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from chance import mid_test
from messages import raises
from programs import run_python
from simdisk import Faulty
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.connectors.parquet.folder import MARK_BYTES, build_folder_name
from ddflow.connectors.parquet.sink import OutputFolder
from ddflow.engine.garbage import gc
from ddflow.errors import CorruptState, DdflowError, StateRefused, StorageFailed, StorageFull
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.storage.folder.disk import Disk
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.memory import MemoryStore
from ddflow.tools.inspect import inspect
from ddflow.tools.rollback import rollback


class Killed(BaseException):
    """A process that ends here."""


def flow() -> dd.Flow:
    out = dd.Flow()
    rows = out.upserts("rows", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    out.output("by city", rows.project(["city"]).count())
    return out


def step(engine: dd.Engine, epoch: int) -> dd.Step:
    return engine.step({"rows": pa.table({"id": [epoch], "city": ["Basel"]})}, epoch)


def fed(state: Any, epochs: range, **options: Any) -> None:
    with flow().open(state, grace=0, **options) as engine:
        for epoch in epochs:
            step(engine, epoch)


def seen(outputs: Path) -> list[int]:
    """The epochs that a reader finds."""
    return sorted(int(path.name[:12]) for path in outputs.glob("*/*.parquet"))


def dies_before_it_shows(state: Path, outputs: Path, epoch: int) -> None:
    """A process that is killed where it would rename the file of an epoch that it has just committed."""

    def before(name: str, *given: Any) -> None:
        if name == "rename" and os.path.exists(given[0]):
            raise Killed

    with pytest.raises(Killed):
        step(flow().open(LocalStore(state, disk=Faulty(Disk(), before=before)), outputs=outputs, grace=0), epoch)


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, Path]:
    """A state at epoch 2, whose file was never shown."""
    state, outputs = tmp_path / "state", tmp_path / "outputs"
    fed(state, range(1, 2), outputs=outputs)
    dies_before_it_shows(state, outputs, 2)
    assert seen(outputs) == [1] and inspect(state)["epoch"] == 2
    return state, outputs


# What is committed is shown before a receipt goes.


def compacts(state: Path) -> None:
    with flow().open(state) as engine:
        engine.compact(forget=True)


def forgets(state: Path) -> None:
    assert CliRunner().invoke(app, ["gc", str(state), "--forget"]).exit_code == 0


def goes_on(state: Path) -> None:
    fed(state, range(3, 13))
    gc(state, grace=0, orphans=0)


def collects(state: Path) -> None:
    gc(state, grace=0, orphans=0)


def another_folder(state: Path) -> None:
    fed(state, range(3, 6), outputs=state.parent / "others")
    compacts(state)


def goes_on_in_partitions(state: Path) -> None:
    coordinator = EpochDriver.open(flow(), state, DriverOptions(grace=0, keep=1))
    coordinator.close()


WAYS = [compacts, forgets, goes_on, another_folder, collects, goes_on_in_partitions]


@pytest.mark.parametrize("way", WAYS)
def test_what_was_committed_is_shown_before_its_receipt_goes(crashed: tuple[Path, Path], way: Any) -> None:
    state, outputs = crashed
    way(state)
    with flow().open(state):  # which is what shows it, where nothing has needed to yet
        assert seen(outputs) == [1, 2]
    compacts(state)
    assert seen(outputs) == [1, 2]
    assert not list(outputs.glob("*/.*"))


def test_a_folder_that_cannot_be_shown_keeps_its_receipts(crashed: tuple[Path, Path]) -> None:
    state, outputs = crashed

    def before(name: str, *given: Any) -> None:
        if name == "rename":
            raise OSError(errno.EIO, "no")

    with raises(StorageFailed):
        flow().open(LocalStore(state, disk=Faulty(Disk(), before=before)))
    compacts(state)
    assert seen(outputs) == [1, 2]


def test_a_folder_that_is_gone_stands_in_nobody_s_way(crashed: tuple[Path, Path]) -> None:
    state, outputs = crashed
    outputs.rename(outputs.with_name("moved"))
    fed(state, range(3, 5))
    compacts(state)
    assert not outputs.exists()


def test_outputs_may_go_to_another_folder_and_epochs_are_told_from_the_one_that_has_them(tmp_path: Path) -> None:
    state, one, two = (tmp_path / name for name in ("state", "one", "two"))
    fed(state, range(1, 4), outputs=one)
    with flow().open(state, outputs=two, grace=0) as engine:
        assert step(engine, 3)["by city"].num_rows == 2  # replayed, from where it is
        step(engine, 4)
        assert [each["epoch"] for each in inspect(state)["receipts"]] == [4]
    assert seen(one) == [1, 2, 3] and seen(two) == [4] and dd.fsck(state).ok
    with flow().open(state, outputs=two) as engine:
        assert step(engine, 4)["by city"].num_rows == 2
        with raises(DdflowError):
            engine.step({"rows": pa.table({"id": [3], "city": ["Basel"]})}, 3, epoch=3)
    # A folder that was moved has them all.
    two.rename(tmp_path / "three")
    fed(state, range(5, 6), outputs=tmp_path / "three")
    assert [each["epoch"] for each in inspect(state)["receipts"]] == [4, 5] and seen(tmp_path / "three") == [4, 5]


# A folder belongs to one state.


@pytest.mark.parametrize(
    "opened",
    [
        lambda state, outputs: flow().open(state, outputs=outputs),
        lambda state, outputs: EpochDriver.open(flow(), state, DriverOptions(outputs=outputs, partitions=2)),
    ],
)
@pytest.mark.parametrize("new", [True, False])
def test_another_state_s_folder_is_refused(opened: Any, new: bool, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    fed(tmp_path / "x", range(1, 4), outputs=outputs)
    if not new:
        opened(tmp_path / "y", None).close()
    before = {path: path.stat().st_mtime_ns for path in outputs.rglob("*")}
    with raises(StateRefused):
        opened(tmp_path / "y", outputs)
    assert any(path.is_file() for path in (tmp_path / "y").rglob("*")) is not new
    assert {path: path.stat().st_mtime_ns for path in outputs.rglob("*")} == before
    fed(tmp_path / "x", range(4, 5), outputs=outputs)
    assert seen(outputs) == [1, 2, 3, 4]


def test_tidying_leaves_a_folder_that_belongs_to_another_state(tmp_path: Path) -> None:
    """The folder was emptied and given to another state, and the first still names it."""
    x, y, outputs = tmp_path / "x", tmp_path / "y", tmp_path / "outputs"
    fed(x, range(1, 4), outputs=outputs)
    for path in sorted(outputs.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    fed(y, range(1, 6), outputs=outputs)
    left = outputs / build_folder_name("by city") / ".00ff00ff00ff00ff-1.parquet.hidden"
    left.write_text("of a commit of y's under way")
    os.utime(left, (0, 0))
    assert rollback(x).hidden == [] and gc(x, grace=0, orphans=0).outputs == []
    with flow().open(x) as engine:
        engine.compact(forget=True)
    assert seen(outputs) == [1, 2, 3, 4, 5] and left.exists()
    problem = dd.fsck(x).problems[0]
    assert problem.file == f"{outputs}/outputs.json" and inspect(y)["id"] in problem.found
    assert gc(y, grace=0, orphans=0).outputs == [str(left)]


def test_of_states_that_want_a_folder_at_once_one_gets_it(tmp_path: Path) -> None:
    for turn in range(20):
        place, won, lost, ready = tmp_path / str(turn), list[str](), list[StateRefused](), threading.Barrier(4)

        def claim(number: int, place: Path = place, won: Any = won, lost: Any = lost, ready: Any = ready) -> None:
            folder = OutputFolder(place, f"{number:016x}")
            ready.wait()
            try:
                folder.claim(f"{number:032x}", "here", ["by city", "all"])
                won.append(f"{number:032x}")
            except StateRefused as error:
                lost.append(error)

        threads = [threading.Thread(target=claim, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(won) == 1 and len(lost) == 3
        assert json.loads((place / "outputs.json").read_text())["state"] == won[0]
        assert sorted(path.name for path in place.iterdir()) == sorted(
            [build_folder_name("by city"), build_folder_name("all"), "outputs.json"]
        )


def test_a_copy_of_a_state_deletes_nothing_until_it_takes_the_folder(tmp_path: Path) -> None:
    """The copy does not know of what the state has committed since."""
    state, copy, outputs = tmp_path / "state", tmp_path / "copy", tmp_path / "outputs"
    fed(state, range(1, 3), outputs=outputs)
    subprocess.run(["cp", "-a", state, copy], check=True)
    dies_before_it_shows(state, outputs, 3)
    gc(copy, grace=0, orphans=0)
    fed(copy, range(3, 4))
    compacts(copy)
    compacts(state)
    assert seen(outputs) == [1, 2, 3]
    state.rename(tmp_path / "moved")
    fed(tmp_path / "moved", range(4, 5), outputs=outputs)
    assert json.loads((outputs / "outputs.json").read_text())["at"] == str(tmp_path / "moved")
    left = outputs / build_folder_name("by city") / ".00ff00ff00ff00ff-1.parquet.hidden"
    left.write_text("x")
    os.utime(left, (0, 0))
    assert gc(tmp_path / "moved", grace=0, orphans=0).outputs == [str(left)] and seen(outputs) == [1, 2, 3, 4]


# What is in it.


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_text(""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "no JSON": lambda path: path.write_text("{'state'"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe{}"),
    "a list": lambda path: path.write_text("[]"),
    "without a state": lambda path: path.write_text('{"at": "x", "outputs": {}}'),
    "without outputs": lambda path: path.write_text(json.dumps({"state": "0" * 32, "at": "x"})),
    "without a place": lambda path: path.write_text(json.dumps({"state": "0" * 32, "outputs": {}})),
    "no id": lambda path: path.write_text(json.dumps({"state": "../x", "at": "x", "outputs": {}})),
    "deep": lambda path: path.write_text('{"state":' + "[" * 200_000),
    "deep objects": lambda path: path.write_text('{"a":' * 100_000),
    "large": lambda path: os.truncate(path, MARK_BYTES + 1),
    "a pipe": fifo,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link": link,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_outputs_json_is_named_with_a_remedy_that_helps(damage: str, tmp_path: Path) -> None:
    state, outputs = tmp_path / "state", tmp_path / "outputs"
    fed(state, range(1, 3), outputs=outputs)
    path = outputs / "outputs.json"
    DAMAGE[damage](path)
    signal.alarm(60)  # whoever waits for a pipe's writer waits for ever
    for wrong in (
        lambda: flow().open(state, outputs=outputs),
        lambda: gc(state),
        lambda: rollback(state),
        lambda: EpochDriver.open(flow(), state, DriverOptions(outputs=outputs)),
    ):
        with raises(CorruptState) as caught:
            wrong()
        assert len(str(caught.value)) < 900 and "delete that file" in caught.value.fix
    assert [problem.file for problem in dd.fsck(state).problems] == [str(path)]
    signal.alarm(0)
    fed(state, range(3, 4))  # who does not use the folder is not kept from going on
    path.rmdir() if path.is_dir() else path.unlink()
    fed(state, range(4, 5), outputs=outputs)
    own = {"state": inspect(state)["id"], "at": str(state), "outputs": {"by city": build_folder_name("by city")}}
    assert json.loads(path.read_text()) == own
    assert seen(outputs) == [1, 2, 4]


def test_the_folders_of_outputs_have_names_that_can_be_read(tmp_path: Path) -> None:
    wanted = {
        "by_city": "by_city",
        "by city": "by_city",
        "orders.stale": "orders.stale",
        "größe": "gr_e",
        "": "",
        "../../etc/passwd": "etc_passwd",
        ".hidden": "hidden",
        "_temporary": "temporary",
        "日本": "",
        "a=b/c": "a_b_c",
        "x" * 300: "x" * 40,
        "a\0b\n": "a_b",
        "\ud800": "",
    }
    for name, readable in wanted.items():
        assert re.fullmatch(re.escape(f"{readable}-" if readable else "") + "[0-9a-f]{16}", build_folder_name(name)), (
            name,
            build_folder_name(name),
        )
    assert len({build_folder_name(name) for name in wanted}) == len(wanted)
    folder = OutputFolder(tmp_path / "outputs", "00ff00ff00ff00ff")
    for at, names in (("here", wanted), ("\udce4", ["by city"])):
        with raises(StateRefused):
            folder.claim("0" * 32, at, names)
    assert not (tmp_path / "outputs").exists()
    del wanted["\ud800"]
    folder.claim("0" * 32, "here", wanted)
    folder.claim("0" * 32, "here", ["one more"])
    names = json.loads((tmp_path / "outputs" / "outputs.json").read_text())["outputs"]
    assert names == {name: build_folder_name(name) for name in [*wanted, "one more"]}
    assert {path.name for path in (tmp_path / "outputs").iterdir()} == {*names.values(), "outputs.json"}


def test_no_pattern_of_parquet_files_finds_one_that_is_not_committed(tmp_path: Path) -> None:
    """Some readers' patterns take names that begin with a dot."""
    outputs = tmp_path / "outputs"
    with flow().open(tmp_path / "state", outputs=outputs, commit_every=None) as engine:
        step(engine, 1)
        engine.flush()
        step(engine, 2)
        there = str(outputs / "by_city-*" / "*.parquet")
        assert len(list((outputs / build_folder_name("by city")).iterdir())) == 2
        assert duckdb.sql(f"select count(*) from read_parquet('{there}')").fetchall() == [(1,)]
        assert pl.scan_parquet(there).select(pl.len()).collect().item() == 1
        assert ds.dataset(outputs / build_folder_name("by city"), format="parquet").count_rows() == 1
        engine.flush()
        page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
        (query,) = re.findall(r"^    DuckDB +(.*)$", page, re.MULTILINE)
        assert duckdb.sql(query.replace("'dir/", f"'{outputs}/")).fetchall() == [("Basel", 2, 1)]
        found = pl.scan_parquet(there).group_by("city", "count").agg(pl.col("_diff").sum()).filter(pl.col("_diff") != 0)
        assert found.collect().rows() == [("Basel", 2, 1)]


# Who may write there, and how much.


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    outputs.chmod(mode)
    for state in (tmp_path / "state", MemoryStore()):
        with raises(StateRefused):
            flow().open(state, outputs=outputs)
    fed(tmp_path / "state", range(1, 3), outputs=outputs, trust="group")
    assert seen(outputs) == [1, 2]
    outputs.chmod(0o700)
    (outputs / build_folder_name("by city")).chmod(mode)
    with raises(StateRefused):
        flow().open(tmp_path / "state", outputs=outputs)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir(mode=0o700)
    real = Disk.status

    def status(disk: Disk, path: str, follow: bool = False) -> Any:
        found = real(disk, path, follow)
        return found._replace(user=os.geteuid() + 1) if path == str(outputs) else found

    monkeypatch.setattr(Disk, "status", status)
    with raises(StateRefused):
        flow().open(tmp_path / "state", outputs=outputs)


def test_a_folder_may_be_reached_by_a_link_and_an_output_s_own_may_be_none(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")
    fed(tmp_path / "state", range(1, 3), outputs=tmp_path / "outputs")
    assert seen(tmp_path / "disk") == [1, 2] and inspect(tmp_path / "state")["folder"]["path"] == str(tmp_path / "disk")
    own = tmp_path / "disk" / build_folder_name("by city")
    own.rename(tmp_path / "away")
    own.symlink_to(tmp_path / "away")
    with raises(StateRefused):
        flow().open(tmp_path / "state", outputs=tmp_path / "outputs")


def test_folders_and_files_are_this_user_s_alone(tmp_path: Path) -> None:
    fed(tmp_path / "state", range(1, 2), outputs=tmp_path / "a" / "b")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")}
    assert modes == {0o700, 0o600} and (tmp_path / "a").stat().st_mode & 0o777 == 0o700


@pytest.mark.drawn(1)
@pytest.mark.parametrize("where", ["state", "outputs"])
def test_a_limit_of_files_is_told_as_such(where: str, tmp_path: Path) -> None:
    code = f"""
import resource, sys
import pyarrow as pa, ddflow as dd
from ddflow.errors import StorageFull
flow = dd.Flow()
flow.output("all", flow.upserts("rows", {{"id": pa.int64()}}, dd.Upsert(key="id")))
engine = flow.open("state"{', outputs="outputs"' if where == "outputs" else ""})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    engine.step({{"rows": pa.table({{"id": range(50_000)}})}}, 1)
except StorageFull as error:
    print(error)
"""
    said = run_python(code, cwd=tmp_path).stdout
    assert "this process may write files of 20,000 bytes at most; raise the limit (ulimit -f, RLIMIT_FSIZE)" in said
    assert f"in the {'outputs folder' if where == 'outputs' else 'state'} {tmp_path}" in said and "free" not in said


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EFBIG, "its file system allows no file of this size; use a folder on another file system"),
        (errno.ENOSPC, "bytes are free; free space"),
    ],
)
def test_a_disk_without_room_for_an_output_is_told_as_such(number: int, remedy: str, tmp_path: Path) -> None:
    full = list[str]()

    def before(name: str, *given: Any) -> None:
        if name == "write" and full:
            raise OSError(number, os.strerror(number))

    store = LocalStore(tmp_path / "state", disk=Faulty(Disk(), before=before))
    engine = flow().open(store, outputs=tmp_path / "outputs")
    full.append("now")
    with pytest.raises(StorageFull, match=re.escape(remedy)):
        step(engine, 1)
    assert not list((tmp_path / "outputs").glob("*/*"))


def test_an_output_s_folder_that_was_deleted_is_told_and_made_again(tmp_path: Path) -> None:
    state, outputs = tmp_path / "state", tmp_path / "outputs"
    engine = flow().open(state, outputs=outputs)
    (outputs / build_folder_name("by city")).rmdir()
    with raises(StateRefused):
        step(engine, 1)
    engine.close()
    fed(state, range(1, 2), outputs=outputs)
    assert seen(outputs) == [1]
    assert pq.read_table(next(outputs.glob("*/*.parquet"))).num_rows == 1


READ = """
import os, sys
import ddflow as dd
from ddflow.engine.commits import EpochCommitter
flow = dd.Flow()
flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
threads = lambda: len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0  # as Linux lists them
with flow.open("state", outputs="changes") as engine:
    before = threads()
    for time in (1, 2):
        engine.step({"people": {"id": [time]}}, time=time)  # given again: read from the folder
    print(threads() - before)
"""


@mid_test
def test_outputs_are_read_in_the_thread_that_asks(tmp_path: Path) -> None:
    """Else one of Arrow's may hold our bytes while Python ends, and then abort the process, once in a hundred runs."""
    flow = dd.Flow()
    flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    with flow.open(tmp_path / "state", outputs=tmp_path / "changes") as engine:
        for time in (1, 2):
            engine.step({"people": {"id": [time]}}, time=time)
    done = subprocess.run([sys.executable, "-c", READ], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
