"""Test spilled data: it reads back unchanged or is refused, and no file of an engine remains after any end."""

from __future__ import annotations

import errno
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import mid_test
from hypothesis import given, strategies as st
from kinds import ENCODED, PLAIN
from messages import raises
from watched import open_below

from ddflow.errors import CorruptState, EngineClosed, SpillFailed, SpillFull, SpillInUse, SpillRefused
from ddflow.storage.files.batch_store import BatchStore, StoredBatch
from ddflow.storage.folder.scratch import LOCK, ScratchStore
from ddflow.storage.protocol import Blob

KINDS = PLAIN | {name: array for name, (array, _) in ENCODED.items()}
INTS = pa.record_batch({"n": [1, 2, 3], "s": ["a", None, "ccc"]})


def scratch(place: Path | str) -> BatchStore:
    return BatchStore(ScratchStore(place))


def path_of(kept: StoredBatch, place: Path | str) -> str:
    return os.path.join(place, kept.blob.name)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[BatchStore]:
    with scratch(tmp_path) as opened:
        yield opened


def files(place: Path | str) -> list[str]:
    return sorted(name for name in os.listdir(place) if name != LOCK)


def same(one: pa.RecordBatch | pa.Table, other: pa.RecordBatch | pa.Table) -> bool:
    """Equal schemas and values; NaN equals itself."""
    return one.schema.equals(other.schema, check_metadata=True) and repr(one.to_pydict()) == repr(other.to_pydict())


def python(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Another Python process that runs ``code``."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finished(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


# What goes in comes out.


@pytest.mark.parametrize("name", KINDS)
def test_every_arrow_type_comes_back_as_it_was(folder: BatchStore, name: str) -> None:
    array = KINDS[name]
    for piece in (array, array.slice(1), array.slice(1, 1), array.slice(0, 0)):
        batch = pa.RecordBatch.from_arrays([piece], names=["x"])
        mapped = folder.write(batch)
        mapped.batch.validate(full=True)
        assert same(mapped.batch, batch)


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5), st.integers(0, 3), st.integers(0, 3))
def test_any_columns_cut_anywhere_come_back_from_batches_and_tables(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], begin: int, rows: int
) -> None:
    columns = [KINDS[name].slice(begin, min(rows, len(KINDS[name]) - begin)) for name in names]
    rows = min(map(len, columns))
    fields = [pa.field(f"{i} / ..", c.type, metadata={"f": "1"}) for i, c in enumerate(columns)]
    batch = pa.RecordBatch.from_arrays([c.slice(0, rows) for c in columns], schema=pa.schema(fields, {"of": "it"}))
    place = tmp_path_factory.mktemp("place")
    with scratch(place) as folder:
        mapped, table = folder.write(batch), folder.write_mapped([batch, batch.slice(0, 0), batch], batch.schema)
        assert len(files(place)) == 1
    assert same(mapped.batch, batch)
    assert same(table, pa.Table.from_batches([batch, batch]))
    table.validate(full=True)
    mapped.verify()


class Unregistered(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.unregistered")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_an_extension_type_that_nobody_registered_comes_back_even_inside_a_list(folder: BatchStore) -> None:
    array = pa.ExtensionArray.from_storage(Unregistered(), pa.array([1, None, 3]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), array)
    batch = pa.RecordBatch.from_arrays([array.slice(0, 2), lists], names=["e", "l"])
    assert folder.write(batch).batch.equals(batch)
    assert folder.write_mapped([batch], batch.schema).equals(pa.Table.from_batches([batch]))


def test_a_batch_takes_no_memory_once_it_is_written_and_anybodys_arrow_can_read_it(
    folder: BatchStore, tmp_path: Path
) -> None:
    batch = pa.record_batch({"n": np.arange(100_000), "s": pa.array(["text"] * 100_000)})
    before = pa.total_allocated_bytes()
    mapped = folder.write(batch)
    assert pa.total_allocated_bytes() - before < 10_000 < mapped.batch.nbytes
    assert mapped.nbytes == os.path.getsize(path_of(mapped, tmp_path))
    assert all(b is None or b.address % 8 == 0 for column in mapped.batch.columns for b in column.buffers())
    with pa.ipc.open_file(path_of(mapped, tmp_path)) as reader:
        assert reader.num_record_batches == 1 and reader.get_batch(0).equals(batch)


def test_a_write_that_the_system_takes_in_bits_is_complete(folder: BatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, memoryview(data)[:7]))
    assert folder.write(INTS).batch.equals(INTS)


def test_writing_makes_no_second_copy() -> None:
    out = finished(
        python("""if True:
        import sys, tempfile, tracemalloc, pyarrow as pa, numpy as np
        from ddflow.storage.files.batch_store import BatchStore
        from ddflow.storage.folder.scratch import ScratchStore
        batch = pa.record_batch({"n": np.arange(4 << 20), "s": pa.array(["some text"] * (1 << 22))})
        with tempfile.TemporaryDirectory() as place, BatchStore(ScratchStore(place)) as folder:
            tracemalloc.start()
            pool = pa.default_memory_pool()
            filler = pa.allocate_buffer(max(pool.max_memory() - pool.bytes_allocated(), 1))
            most = pool.max_memory()  # from here on every further byte is a new maximum
            mapped = folder.write(batch)
            print(pool.max_memory() - most, tracemalloc.get_traced_memory()[1], batch.nbytes)
        """)
    )
    arrow, of_python, size = map(int, out.split())
    assert size > 80_000_000 and arrow < size / 20 and of_python < size / 20


# What was changed is not believed.


@given(st.data())
def test_a_flipped_bit_anywhere_is_found_and_the_file_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = tmp_path_factory.mktemp("place")
    with scratch(place) as folder:
        mapped = folder.write(INTS)
        mapped.verify()
        at, bit = data.draw(st.integers(0, mapped.nbytes - 1)), data.draw(st.integers(0, 7))
        flip(path_of(mapped, place), at, bit)
        with pytest.raises(CorruptState, match=f"the file {mapped.blob.name} of {place}.*fix the disk"):
            mapped.verify()
        flip(path_of(mapped, place), at, bit)
        mapped.verify()


def flip(path: str, at: int, bit: int) -> None:
    file = os.open(path, os.O_RDWR)
    os.pwrite(file, bytes([os.pread(file, 1, at)[0] ^ 1 << bit]), at)
    os.close(file)


@given(st.data())
def test_a_damaged_file_is_refused_before_it_is_parsed_and_removed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place, cut = tmp_path_factory.mktemp("place"), data.draw(st.booleans())

    class Damaged(ScratchStore):
        def map_blob(self, blob: Blob, check: bool = True) -> pa.Buffer:
            path, at = os.path.join(place, blob.name), data.draw(st.integers(0, blob.length - 1))
            os.truncate(path, at) if cut else flip(path, at, data.draw(st.integers(0, 7)))
            return super().map_blob(blob, check)

    with BatchStore(Damaged(place)) as folder:
        for write in (folder.write, lambda batch: folder.write_mapped([batch], batch.schema)):
            with pytest.raises(CorruptState, match=f"of {place}") as caught:
                write(INTS)
            assert files(place) == [] and caught.value.fix


# Nothing stays.


def test_files_are_private_and_named_by_us(folder: BatchStore, tmp_path: Path) -> None:
    batch = pa.record_batch({"../../etc/passwd": [1]})
    mapped = folder.write(batch)

    def look() -> Iterator[pa.RecordBatch]:
        assert all(re.fullmatch(r"ddflow-[0-9a-f]{16}-\d+\.arrow", name) for name in files(tmp_path))
        assert len(files(tmp_path)) == 2 and mapped.blob.name in files(tmp_path)
        assert {os.stat(tmp_path / name).st_mode & 0o777 for name in os.listdir(tmp_path)} == {0o600}
        yield batch

    assert folder.write_mapped(look(), batch.schema).num_rows == 1


def test_a_dropped_batch_loses_its_file_and_keeps_its_values(folder: BatchStore, tmp_path: Path) -> None:
    mapped = folder.write(INTS)
    mapped.drop()
    assert files(tmp_path) == []
    mapped.verify()
    mapped.drop()
    assert mapped.batch.equals(INTS)


def test_a_forgotten_batch_loses_its_file_while_its_columns_stay(folder: BatchStore, tmp_path: Path) -> None:
    column = folder.write(INTS).batch.column("s")
    gc.collect()
    assert files(tmp_path) == []
    assert column.to_pylist() == ["a", None, "ccc"]


def test_no_descriptor_stays_open_however_many_batches_there_are(folder: BatchStore) -> None:
    before = len(os.listdir("/dev/fd"))
    mapped = [folder.write(INTS) for _ in range(50)]
    tables = [folder.write_mapped([INTS], INTS.schema)]
    with pytest.raises(pa.ArrowInvalid):
        folder.write_mapped([INTS], pa.schema([]))
    assert len(os.listdir("/dev/fd")) == before
    assert mapped[-1].batch.equals(INTS) and tables[0].num_rows == 3


def test_close_removes_everything_and_leaves_what_was_mapped_readable(tmp_path: Path) -> None:
    folder = scratch(tmp_path)
    mapped = folder.write(INTS)
    folder.store.close()
    assert os.listdir(tmp_path) == []
    folder.store.close()
    mapped.verify()
    mapped.drop()
    assert mapped.batch.equals(INTS)
    for call in (lambda: folder.write(INTS), lambda: folder.write_mapped([INTS], INTS.schema)):
        with raises(EngineClosed):
            call()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_closed_half_way_through_a_file_has_no_file(tmp_path: Path) -> None:
    folder = scratch(tmp_path)

    def closing() -> Iterator[pa.RecordBatch]:
        yield INTS
        folder.store.close()
        yield INTS

    with pytest.raises((EngineClosed, SpillFailed)):
        folder.write_mapped(closing(), INTS.schema)
    assert os.listdir(tmp_path) == []


def test_a_forgotten_folder_is_closed(tmp_path: Path) -> None:
    column = scratch(tmp_path).write(INTS).batch.column("s")
    gc.collect()
    assert os.listdir(tmp_path) == []
    assert column.to_pylist() == ["a", None, "ccc"]


def test_a_batch_of_a_closed_folder_takes_no_file_of_the_next_one_with_it(tmp_path: Path) -> None:
    with scratch(tmp_path) as folder:
        old = folder.write(INTS)
    with scratch(tmp_path) as folder:
        new = folder.write(INTS)
        old.drop()
        del old
        gc.collect()
        assert files(tmp_path) == [new.blob.name]


def test_an_exit_without_close_leaves_nothing(tmp_path: Path) -> None:
    finished(
        python(
            """if True:
        import sys, pyarrow as pa
        from ddflow.storage.files.batch_store import BatchStore
        from ddflow.storage.folder.scratch import ScratchStore
        folder = BatchStore(ScratchStore(sys.argv[1]))
        kept = folder.write(pa.record_batch({"n": [1]}))
        """,
            tmp_path,
        )
    )
    assert os.listdir(tmp_path) == []


def test_what_a_killed_engine_left_is_gone_at_the_next_open_and_nothing_else(tmp_path: Path) -> None:
    process = python(
        """if True:
        import sys, time, pyarrow as pa
        from ddflow.storage.files.batch_store import BatchStore
        from ddflow.storage.folder.scratch import ScratchStore
        folder = BatchStore(ScratchStore(sys.argv[1]))
        kept = folder.write(pa.record_batch({"n": [1]}))

        def slowly():
            yield kept.batch
            print("ready", flush=True)
            time.sleep(600)

        folder.write_mapped(slowly(), kept.batch.schema)
        """,
        tmp_path,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    with raises(SpillInUse):
        ScratchStore(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(files(tmp_path)) == 2
    theirs = ["ddflow-export.arrow", "ddflow-0123456789abcdef-1.arrow.bak", "orders.arrow"]
    for name in theirs:
        (tmp_path / name).write_text("a user's")
    (tmp_path / "ddflow-0123456789abcdef-7.arrow").mkdir()
    with scratch(tmp_path):
        assert files(tmp_path) == sorted([*theirs, "ddflow-0123456789abcdef-7.arrow"])


@mid_test
def test_a_forked_child_touches_nothing_and_does_not_keep_the_folder(tmp_path: Path) -> None:
    out = finished(
        python(
            """if True:
        import os, sys, time, pyarrow as pa
        from ddflow.errors import EngineClosed
        from ddflow.storage.files.batch_store import BatchStore
        from ddflow.storage.folder.scratch import ScratchStore
        folder = BatchStore(ScratchStore(sys.argv[1]))
        kept = folder.write(pa.record_batch({"n": [1]}))
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            assert os.path.exists(os.path.join(sys.argv[1], kept.blob.name))
            if os.fork():
                folder.store.close()
                ScratchStore(sys.argv[1]).close()  # while a child that was forked before still lives
                print("opened again")
            else:
                time.sleep(2)
                os._exit(0)
        else:
            try:
                folder.write(kept.batch)
            except EngineClosed:
                sys.exit(0)  # runs the finalizers
            sys.exit(1)
        """,
            tmp_path,
        )
    )
    assert out == "opened again\n"
    assert os.listdir(tmp_path) == []


# Tables.


def test_a_table_is_the_users_and_its_file_is_gone_at_once(folder: BatchStore, tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield INTS
            assert len(files(tmp_path)) == 1

    table = folder.write_mapped(batches(), INTS.schema)
    assert files(tmp_path) == []
    folder.store.close()
    assert table.equals(pa.Table.from_batches([INTS] * 3)) and table.column("n").num_chunks == 3


@pytest.mark.parametrize("schema", [INTS.schema, pa.schema({"u": KINDS["sparse union"].type})])
def test_a_table_without_rows_has_its_columns(folder: BatchStore, schema: pa.Schema) -> None:
    table = folder.write_mapped([], schema)
    assert table.schema == schema and table.num_rows == 0


def test_a_table_given_up_leaves_no_file(folder: BatchStore, tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield INTS
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        folder.write_mapped(batches(), INTS.schema)
    assert files(tmp_path) == []
    with pytest.raises(pa.ArrowInvalid):
        folder.write_mapped([INTS, pa.record_batch({"other": [1]})], INTS.schema)
    assert files(tmp_path) == []


# One engine a folder.


def test_a_second_engine_is_refused_until_the_first_lets_go(folder: BatchStore, tmp_path: Path) -> None:
    with raises(SpillInUse):
        ScratchStore(tmp_path)
    link = tmp_path.parent / f"{tmp_path.name} by another name"
    link.symlink_to(tmp_path)
    with pytest.raises(SpillInUse):
        ScratchStore(link)
    mapped = folder.write(INTS)
    assert files(tmp_path) == [mapped.blob.name]
    folder.store.close()
    ScratchStore(link).close()


def test_a_folder_on_a_full_disk_is_left_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with raises(SpillFull):
            ScratchStore(tmp_path)
    assert os.listdir(tmp_path) == [] and open_below(tmp_path) == []
    ScratchStore(tmp_path).close()


def test_engines_that_race_for_a_folder_have_it_one_after_the_other(tmp_path: Path) -> None:
    inside, most, turns, end = 0, 0, 0, time.monotonic() + 120

    def race() -> None:
        nonlocal inside, most, turns
        while turns <= 10 and time.monotonic() < end:
            try:
                with scratch(tmp_path):
                    inside += 1
                    most, turns = max(most, inside), turns + 1
                    time.sleep(0.001)
                    inside -= 1
            except SpillInUse:
                pass

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and turns > 10 and os.listdir(tmp_path) == []


# Folders that will not do.


def _missing(place: Path) -> Any:
    return place / "missing"


def _file(place: Path) -> Any:
    (place / "file").write_text("")
    return place / "file"


def _open_to_all(place: Path) -> Any:
    place.chmod(0o777)
    return place


def _read_only(place: Path) -> Any:
    place.chmod(0o555)
    return place


def _someone_elses(place: Path) -> Any:
    if os.geteuid() == 0:
        os.chown(place, 12345, -1)
        return place
    return "/"


REFUSED = {
    _missing: "no such folder.*create it first",
    _file: "it is not a folder",
    _open_to_all: "mode is 777",
    _read_only: r"read-only \(mode 555\)",
    _someone_elses: "belongs to user",
    lambda place: "a\0b": "null",
    lambda place: 7: "int",
    lambda place: "": "no such folder",
}


@pytest.mark.parametrize("make", REFUSED)
def test_a_folder_that_will_not_do_is_refused_and_left_as_it_was(make: Any, tmp_path: Path) -> None:
    given = make(tmp_path)
    (before, descriptors) = (sorted(os.listdir(tmp_path)), len(os.listdir("/dev/fd")))
    try:
        with pytest.raises(SpillRefused, match=REFUSED[make]):
            ScratchStore(given)
    finally:
        tmp_path.chmod(0o700)
    assert (sorted(os.listdir(tmp_path)), len(os.listdir("/dev/fd"))) == (before, descriptors)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(SpillRefused):
        ScratchStore(tmp_path)
    assert (tmp_path / "victim").read_text() == "precious"


# Disks that will not do.


def test_a_full_disk_is_an_error_with_sizes_after_which_going_on_works(tmp_path: Path) -> None:
    out = finished(
        python(
            """if True:
        import os, resource, sys, pyarrow as pa, numpy as np
        from ddflow.errors import SpillFull
        from ddflow.storage.files.batch_store import BatchStore
        from ddflow.storage.folder.scratch import ScratchStore
        small, large = pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": np.arange(100_000)})
        with BatchStore(ScratchStore(sys.argv[1])) as folder:
            before = folder.write(small)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_001, resource.RLIM_INFINITY))
            for write in (folder.write, lambda batch: folder.write_mapped([batch], batch.schema)):
                try:
                    write(large)
                except SpillFull as error:
                    print(error)
            assert len(os.listdir(sys.argv[1])) == 2  # the lock, and what was written before
            before.verify()
            assert before.batch.equals(small)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert folder.write(large).batch.equals(large)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            ScratchStore(sys.argv[1])
        except SpillFull as error:
            print(error)
        """,
            tmp_path,
        )
    )
    lines = out.splitlines()
    assert len(lines) == 3 and os.listdir(tmp_path) == []
    for line in lines:
        assert str(tmp_path) in line and re.search(r"files of (300,001|0) bytes at most; raise the limit", line)
    assert all(re.search(r"800,\d{3} bytes were needed", line) for line in lines[:2])


def test_a_folder_that_was_taken_away_is_an_error_and_put_back_it_works_again(
    folder: BatchStore, tmp_path: Path
) -> None:
    before, away = folder.write(INTS), tmp_path.with_name("away")
    tmp_path.rename(away)
    with pytest.raises(OSError, match="call again") as caught:
        folder.write(INTS)
    assert type(caught.value) is SpillFailed
    assert files(away) == [before.blob.name]
    assert before.batch.equals(INTS)
    away.rename(tmp_path)
    assert folder.write(INTS).batch.equals(INTS)


def test_several_threads_may_write_at_once(folder: BatchStore, tmp_path: Path) -> None:
    mapped: list[StoredBatch] = []

    def write(begin: int) -> None:
        mapped.extend(folder.write(pa.record_batch({"n": np.arange(i, i + 1000)})) for i in range(begin, begin + 20))

    threads = [threading.Thread(target=write, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(m.batch.column(0)[0].as_py() for m in mapped) == [100 * i + j for i in range(4) for j in range(20)]
    assert len(files(tmp_path)) == 80
    for each in mapped:
        each.verify()
