"""Test the objects of a bucket as a source that is followed, with moto: each object is read once despite failures."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from s3_server import Moto, Proxy, moto, options, proxy

import ddflow as dd
from ddflow.errors import SourceChanged, SourceFailed, SpecError, UnreadableInput
from ddflow.storage.object_store import Bucket

__all__ = ["moto", "proxy"]


@pytest.fixture
def bucket(moto: Moto, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket that is written past the proxy, and read over it."""
    given = {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "hush", "ENDPOINT_URL": proxy.url, "ALLOW_HTTP": "true"}
    for name, value in given.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return Bucket(f"s3://{moto.bucket()}", options(moto.url))


def flow() -> dd.Flow:
    made = dd.Flow()
    rows = made.upserts("rows", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    made.output("rows", rows)
    return made


def messages() -> dd.Flow:
    made, columns = dd.Flow(), {"id": pa.int64(), "city": pa.string()}
    made.output("rows", made.upserts("rows", columns, dd.Upsert(key="id"), format=dd.formats.plain_json()))
    return made


def held(engine: Any) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["city"]) for row in engine.read("rows").to_pylist())


def said(*rows: tuple[int, str]) -> bytes:
    return "".join(json.dumps({"id": id, "city": city}) + "\n" for id, city in rows).encode()


def test_objects_of_days_are_taken_once_and_late_ones_too(bucket: Bucket, tmp_path: Path) -> None:
    source = dd.sources.files(f"{bucket.url}/orders/2026/**/*.json.gz")
    bucket.put_object("orders/2026/11/25/10/b.json.gz", gzip.compress(said((1, "Bern"), (2, "Chur"))))
    bucket.put_object("orders/2026/11/25/10/b.txt", b"not meant")
    bucket.put_object("orders/2025/a.json.gz", gzip.compress(said((9, "Genf"))))
    with flow().open(tmp_path / "state") as engine:
        assert engine.run({"rows": source}).rows == 2
        assert engine.run({"rows": source}).rows == 0
    bucket.put_object("orders/2026/11/24/a.json.gz", gzip.compress(said((2, "Basel"))))
    with flow().open(tmp_path / "state") as engine:
        done = engine.run({"rows": source})
        assert (done.rows, held(engine)) == (1, [(1, "Bern"), (2, "Basel")])


def test_messages_come_by_lines_whatever_the_objects_are_called(bucket: Bucket, tmp_path: Path) -> None:
    source = dd.sources.files(f"{bucket.url}/firehose/**", lines=True)
    bucket.put_object("firehose/2026/11/25/10/stream-1-uuid", said((1, "Bern")))
    bucket.put_object("firehose/2026/11/25/11/stream-1-uuid", gzip.compress(said((1, "Chur"), (2, "Genf"))))
    with messages().open(tmp_path / "state") as engine:
        assert engine.run({"rows": source}).rows == 3
        assert held(engine) == [(1, "Chur"), (2, "Genf")]
        bucket.delete("firehose/2026/11/25/10/stream-1-uuid")  # and is forgotten
        bucket.put_object("firehose/2026/11/25/12/stream-1-uuid", said((3, "Thun")))
        assert engine.run({"rows": source}).rows == 1
        position = engine.calls.durable.log.sources["rows"].position
        assert sorted(position["done"]) == [f"2026/11/25/{hour}/stream-1-uuid" for hour in (11, 12)]


def test_a_faulty_network_is_tried_again(bucket: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    for n in range(5):
        bucket.put_object(f"in/{n}.json", said((n, "Bern")))
    proxy.fail(7, 0.2, "500", "503", "silent", "lost", times=10)
    with flow().open(tmp_path / "state") as engine:
        assert engine.run({"rows": dd.sources.files(f"{bucket.url}/in/")}).rows == 5
    opened = dd.sources.files(f"{bucket.url}/in/").open({"rows": pa.schema({"id": pa.int64()})}, None)
    proxy.fail(7, 1.0, "403")
    with raises(SourceFailed) as raised:
        opened.poll(1 << 20)
    assert "hush" not in str(raised.value)


def test_an_object_that_changed_is_an_error(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_object("in/a.json", said((1, "Bern")))
    source = dd.sources.files(f"{bucket.url}/in/*.json")
    with flow().open(tmp_path / "state") as engine:
        engine.run({"rows": source})
        bucket.put_object("in/a.json", said((1, "Bern"), (2, "Chur")))
        with raises(SourceChanged):
            engine.run({"rows": source})


def test_what_cannot_be_followed_says_so(bucket: Bucket) -> None:
    for address in ("gs://lake/a", "s3://me:hush@lake/a", "s3://lake"):
        with raises(SpecError) as raised:
            dd.sources.files(address)
        assert "hush" not in str(raised.value)
    with flow().open() as engine, raises(UnreadableInput):
        engine.run({"rows": dd.sources.files("s3://there-is-no-such-bucket/in/*.json")})
