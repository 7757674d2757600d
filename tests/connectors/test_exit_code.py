"""Test the exit code 0 after using a connector: no library thread still holds a Python file."""

from __future__ import annotations

import io
import json
import re
import subprocess
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from chance import SOAK, mid_test
from confluent_kafka import Producer
from deltalake.fs import DeltaStorageHandler
from kafka_cluster import Cluster
from postgres_server import Server
from programs import run_python
from s3_server import Moto, moto

from ddflow.connectors.delta.source import read_dataset_rows
from ddflow.connectors.files import csv_reader
from ddflow.connectors.files.columnar_reader import ParquetFile
from ddflow.connectors.files.csv_reader import CsvFile
from ddflow.connectors.files.kinds import Dialect
from ddflow.connectors.files.places import FileLocation, LocalFile

__all__ = ["moto"]
REPOSITORY = Path(__file__).parents[2]
THIS = str(Path(__file__).relative_to(REPOSITORY))
IMPORTED = "import ddflow, ddflow.engine.engine"
"""Of the process that forks: nothing has run, so that no library has threads yet."""
HEAD = """
import os, sys
import ddflow as dd

place, at = sys.argv[1:]

def flow(**more):
    made = dd.Flow()
    people = made.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"), **more)
    made.output("people", people)
    made.output("by_city", people.count("city", name="n"))
    return made

def run(source, sinks, **more):
    with flow(**more).open(os.path.join(place, "state")) as engine:
        engine.run({"people": source} if source else {}, sinks=sinks)
        assert engine.read("people").num_rows == 1000, engine.read("people").num_rows
"""
CSV = "run(dd.sources.files(place + '/people.csv'), {})"
SCRIPTS = {
    "files": CSV,
    "gzip": "run(dd.sources.files(place + '/people.csv.gz'), {})",
    "parquet": "run(dd.sources.files(place + '/people.parquet'), {'by_city': dd.sinks.parquet(place + '/out')})",
    "sqlite": "run(dd.sources.files(place + '/people.csv'), {'by_city': dd.sinks.sqlite(place + '/out.db', 'n')})",
    "duckdb": "run(dd.sources.files(place + '/people.csv'), {'by_city': dd.sinks.duckdb(place + '/out.db', 'n')})",
    "iceberg": """
import pyiceberg.catalog
catalog = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/lake"}
run(dd.sources.files(place + '/people.csv'), {'by_city': dd.sinks.iceberg("shop.by_city", catalog=catalog)})
""",
    "s3": "run(dd.sources.files(at + '/people.*'), {})",
    "postgres": """
source = dd.sources.postgres(at, "people")
run(source, {'by_city': dd.sinks.postgres(at, 'by_city')}, format=dd.formats.wal2json())
""",
    "kafka": """
source = dd.sources.kafka(at, "people")
run(source, {'by_city': dd.sinks.kafka(at, "by_city")}, format=dd.formats.plain_json())
""",
}
DELTA = """
import deltalake
format = {"format": dd.formats.delta_cdf()}
sinks = {"by_city": dd.sinks.delta(place + "/out")}
run(dd.sources.delta(place + "/lake"), sinks, **format)
deltalake.DeltaTable(place + "/lake").update(predicate="id = 2", updates={"city": "'Brig'"})
run(dd.sources.delta(place + "/lake"), sinks, **format)
with flow(**format).open(place + "/state") as engine:
    engine.sync(sinks)
"""
PEOPLE = pa.table({"id": range(1000), "city": [f"c{n % 7}" for n in range(1000)]})


def ended(script: str, place: Path, at: str = "", times: int = 1) -> None:
    """Run a script some times in a soak, else once, and see that each process ends well."""
    for number in range(times if SOAK else 1):
        (own := place / str(number)).mkdir()
        for each in place.iterdir():
            if not each.name.isdecimal():
                (own / each.name).symlink_to(each)
        done = run_python(HEAD + script, own, at, of=IMPORTED, cwd=REPOSITORY)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    lines = ["id,city", *(f"{row['id']},{row['city']}" for row in PEOPLE.to_pylist())]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    with pa.CompressedOutputStream(str(tmp_path / "people.csv.gz"), "gzip") as out:
        out.write((tmp_path / "people.csv").read_bytes())
    pq.write_table(PEOPLE, tmp_path / "people.parquet")
    return tmp_path


@mid_test
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("end", ["csv", "csv.gz"])
def test_no_thread_has_a_file_of_python_once_it_was_read(
    whole: bool, end: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends while one has it aborts: the thread must call Python to let it go.

    With reads that did not wait, the thread of Arrow was later in some of 300.
    """
    opened = list[weakref.ref[Any]]()

    class Watched(csv_reader._CloseIgnoringStream):
        def __init__(self, read: Any) -> None:
            super().__init__(read)
            opened.append(weakref.ref(self))

    monkeypatch.setattr(csv_reader, "_CloseIgnoringStream", Watched)
    names = ["id", "city"]
    for _ in range(3000 if SOAK else 300):
        found = CsvFile(LocalFile(str(place / f"people.{end}")), Dialect(), {})
        blocks = found.blocks(names)
        assert next(blocks).columns["city"].texts[0].as_py() == "c0"
        deque(blocks, 0) if whole else blocks.close()  # type: ignore[attr-defined]
        assert opened and not any(each() for each in opened)
        opened.clear()


@pytest.mark.drawn(4, of="ends")
@pytest.mark.parametrize("kind", ["files", "gzip", "parquet", "sqlite", "duckdb", "iceberg"])
def test_a_process_that_used_files_or_an_embedded_database_ends_well(kind: str, place: Path) -> None:
    ended(SCRIPTS[kind], place, times=2)


@mid_test
def test_a_process_that_used_delta_lake_ends_well(tmp_path: Path) -> None:
    for number in range(8 if SOAK else 2):  # a table is one process's own, because each changes it
        (own := tmp_path / f"n{number}").mkdir()
        deltalake.write_deltalake(own / "lake", PEOPLE, configuration={"delta.enableChangeDataFeed": "true"})
        ended(DELTA, own)


@pytest.mark.drawn(4, of="ends")
def test_a_process_that_used_objects_ends_well(moto: Moto, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("AWS_ENDPOINT_URL", moto.url), ("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "key")):
        monkeypatch.setenv(name, value)
    import obstore

    bucket, own = moto.bucket(), {"endpoint": moto.url, "access_key_id": "id", "secret_access_key": "key"}
    store = obstore.store.from_url(f"s3://{bucket}", config=own, client_options={"allow_http": True})
    for name in ("people.csv", "people.parquet"):
        obstore.put(store, name, (place / name).read_bytes())
    ended(SCRIPTS["s3"], place, f"s3://{bucket}", times=2)


@pytest.mark.drawn(4, of="ends")
def test_a_process_that_used_postgres_ends_well(tmp_path: Path) -> None:
    server = Server()
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create table people (id bigint primary key, city text)")
            connection.execute("insert into people select n, 'c' || n % 7 from generate_series(0, 999) n")
        ended(SCRIPTS["postgres"], tmp_path, server.url)
    finally:
        server.close()


@pytest.mark.drawn(4, of="ends")
def test_a_process_that_used_kafka_ends_well(tmp_path: Path) -> None:
    with Cluster() as servers:
        producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        for row in PEOPLE.to_pylist():
            producer.produce("people", json.dumps(row), key=str(row["id"]))
        assert producer.flush(60) == 0
        ended(SCRIPTS["kafka"], tmp_path, servers)


SLOW = """
import io, time
import pyarrow as pa
from ddflow.connectors.files.kinds import Dialect
from ddflow.connectors.files.places import FileLocation
from ddflow.connectors.files.csv_reader import CsvFile

class Slow(io.RawIOBase):
    begun = False
    def readable(self):
        return True
    def readinto(self, into):
        time.sleep(0.01)
        text = b"1,c1\\n" * (len(into) // 5) if self.begun else b"id,city\\n"
        self.begun = True
        into[: len(text)] = text
        return len(text)

class Here(FileLocation):
    def size(self):
        return None
    def open(self):
        return pa.PythonFile(Slow(), mode="r")

file = CsvFile(Here("slow.csv"), Dialect(), {})
batches = file.batches(pa.schema({"id": pa.int64(), "city": pa.string()}))
next(batches)
"""


@pytest.mark.drawn(4, of="ends")
@pytest.mark.parametrize("last", ["batches.close()", "del batches, file"])
def test_a_process_that_leaves_a_csv_file_half_read_ends_well(last: str, tmp_path: Path) -> None:
    ended(SLOW + last, tmp_path, times=2)


class Watched(io.RawIOBase):
    """A file that notes the threads that read it."""

    def __init__(self, data: bytes, seen: set[int]) -> None:
        self._data, self._seen = io.BytesIO(data), seen

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._data.seek(offset, whence)

    def tell(self) -> int:
        return self._data.tell()

    def readinto(self, into: Any) -> int:
        self._seen.add(threading.get_ident())
        return self._data.readinto(into)


class Handler(DeltaStorageHandler):
    """The files of a table of Delta Lake."""

    seen: set[int]

    def open_input_file(self, path: str) -> pa.PythonFile:
        with super().open_input_file(path) as file:
            return pa.PythonFile(Watched(file.read(), self.seen), mode="r")


class Object(FileLocation):
    """A file that Python gives, as one of S3 is."""

    def __init__(self, data: bytes, seen: set[int]) -> None:
        super().__init__("a.parquet")
        self._data, self._seen = data, seen

    def size(self) -> int:
        return len(self._data)

    def open(self) -> pa.NativeFile:
        return pa.PythonFile(Watched(self._data, self._seen), mode="r")


def test_files_that_python_gives_are_read_by_the_thread_that_asks(tmp_path: Path) -> None:
    rows = pa.table({name: range(100_000) for name in "abcdefgh"})
    deltalake.write_deltalake(tmp_path / "t", rows)
    handler, seen = Handler(str(tmp_path / "t")), set[int]()
    handler.seen = seen
    dataset = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_dataset(filesystem=fs.PyFileSystem(handler))
    assert sum(batch.num_rows for batch in read_dataset_rows(dataset, rows.schema.names)) == 100_000
    pq.write_table(rows, data := io.BytesIO())
    file = ParquetFile(Object(data.getvalue(), seen))
    assert sum(batch.num_rows for batch in file.batches(rows.schema)) == 100_000
    assert seen == {threading.get_ident()}


def test_no_text_reads_a_table_of_delta_lake_by_threads() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    kinds = (".py", ".md", ".ipynb", ".sh", ".yml", ".toml")
    texts = {name: (REPOSITORY / name).read_text() for name in listed.splitlines() if name.endswith(kinds)}
    threaded = re.compile(
        r"to_pyarrow_table\(|to_pyarrow_dataset\([^)]*\)\s*\.|DeltaTable\([^()]*\)\.to_pandas", re.ASCII
    )
    of_lake = {name: text for name, text in texts.items() if "DeltaTable" in text and name != THIS}
    found = {name: threaded.findall(text) for name, text in of_lake.items()}
    assert {name: each for name, each in found.items() if each} == {}
