"""Test an engine with its state in a bucket: the same epochs, over HTTP and a failing network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import mid_test
from s3_server import Moto, Proxy, moto, options, proxy

import ddflow as dd
from ddflow.errors import DdflowError, EngineClosed, Fenced, ReplayMismatch
from ddflow.storage.s3 import S3Store

__all__ = ["moto", "proxy"]


def plan() -> dd.Flow:
    flow = dd.Flow()
    columns = {"id": pa.int64(), "at": pa.int64(), "city": pa.string(), "op": pa.string()}
    people = flow.upserts("people", columns, dd.Upsert(key="id", order_by="at", delete=dd.tombstone("op", "D")))
    flow.output("people", people)
    flow.output("by_city", people.project(["city"]).count())
    return flow


def rows(time: int) -> pa.Table:
    ids = [(time * 7 + i * 3) % 20 for i in range(8)]
    return pa.table(
        {
            "id": ids,
            "at": [time * 10 + i for i in range(8)],
            "city": [f"city {i % 3}" for i in ids],
            "op": ["D" if (time + i) % 5 == 0 else "U" for i in ids],
        }
    )


def at(url: str, moto: Moto, cache: Path, **more: Any) -> S3Store:
    return S3Store(url, cache=cache, options=options(moto.url), **more)


def held(engine: Any) -> list[set[str]]:
    return [{str(row) for row in engine.read(name).to_pylist()} for name in ("people", "by_city")]


@mid_test
@pytest.mark.parametrize("memory", [None, "16MB"])
def test_a_state_in_a_bucket_goes_on_as_one_in_memory(moto: Moto, tmp_path: Path, memory: str | None) -> None:
    url, flow = f"s3://{moto.bucket()}/states/people", plan()
    with flow.open() as twin:
        for time in range(1, 7):
            with flow.open(at(url, moto, tmp_path / f"cache {time % 2}"), memory=memory) as engine:
                assert engine.epoch == time - 1
                there, here = (each.step({"people": rows(time)}, time) for each in (engine, twin))
                assert {n: t.num_rows for n, t in there.items()} == {n: t.num_rows for n, t in here.items()}
                again = engine.step({"people": rows(time)}, time)
                assert all(again[name].equals(there[name]) for name in there)
                with pytest.raises(ReplayMismatch):
                    engine.step({"people": rows(time + 1)}, time)
                assert held(engine) == held(twin)
        reader = at(url, moto, tmp_path / "reader", readonly=True, create=False)
        assert {str(r) for r in dd.read(reader, "by_city").to_pylist()} == held(twin)[1]


def test_of_two_writers_in_a_bucket_one_wins(moto: Moto, tmp_path: Path) -> None:
    url, flow = f"s3://{moto.bucket()}/people", plan()
    with flow.open(at(url, moto, tmp_path / "a")) as one, flow.open(at(url, moto, tmp_path / "b")) as other:
        one.step({"people": rows(1)}, 1)
        with pytest.raises(Fenced):
            other.step({"people": rows(2)}, 1)
        one.step({"people": rows(2)}, 2)
        with pytest.raises((Fenced, EngineClosed)):
            other.step({"people": rows(3)}, 3)
        assert held(dd.Snapshot.open(at(url, moto, tmp_path / "c", readonly=True))) == held(one)


@pytest.mark.parametrize("seed", range(4))
def test_through_a_network_that_fails_every_epoch_happens_once(
    moto: Moto, proxy: Proxy, tmp_path: Path, seed: int
) -> None:
    """Whatever is dropped or refused on the way: who gives the epoch again until it is told ends with each one once."""
    url, flow, epochs, tries = f"s3://{moto.bucket()}/people", plan(), 4, 0
    flow.open(at(url, moto, tmp_path / "first")).close()
    proxy.fail(seed, rate=0.08)
    done = 0
    while done < epochs:
        tries += 1
        assert tries < 200, f"seed {seed}: {dict(proxy.seen)}"
        try:
            store = S3Store(url, cache=tmp_path / f"cache {tries}", options=options(proxy.url))
            with flow.open(store) as engine:
                assert done <= engine.epoch <= done + 1, f"seed {seed}"
                for time in range(done + 1, epochs + 1):
                    engine.step({"people": rows(time)}, time, epoch=time)
                    done = time
        except DdflowError:
            continue
    proxy.calm()
    assert proxy.seen, "nothing failed"
    with flow.open() as twin:
        for time in range(1, epochs + 1):
            twin.step({"people": rows(time)}, time)
        assert held(dd.Snapshot.open(at(url, moto, tmp_path / "last", readonly=True))) == held(twin), f"seed {seed}"


@mid_test
def test_a_state_in_a_bucket_is_looked_after_like_any_other(moto: Moto, tmp_path: Path) -> None:
    url, flow = f"s3://{moto.bucket()}/people", plan()
    with flow.open(at(url, moto, tmp_path / "a"), grace=0) as engine:
        for time in range(1, 5):
            engine.step({"people": rows(time)}, time)
        before = held(engine)
        engine.step({"people": rows(5)}, 5)
    log = [rows(time) for time in range(1, 6)]
    assert dd.fsck(at(url, moto, tmp_path / "b", readonly=True)).ok
    assert dd.verify(at(url, moto, tmp_path / "b", readonly=True), {"people": log}).ok
    assert dd.gc(at(url, moto, tmp_path / "b"), grace=0).kept == [4, 5]
    back = dd.rollback(at(url, moto, tmp_path / "b"))
    assert back.manifest.epoch == 4
    with dd.Snapshot.open(at(url, moto, tmp_path / "c", readonly=True)) as snapshot:
        assert held(snapshot) == before
    with flow.open(at(url, moto, tmp_path / "d")) as engine:
        engine.compact(forget=True)
        assert held(engine) == before
        # An object that is gone from the bucket is missed, whatever a cache holds.
        name = next(iter(engine.durable.log.manifest_log.names)) if engine.durable else ""
        at(url, moto, tmp_path / "d").delete(name)
    report = dd.fsck(at(url, moto, tmp_path / "d", readonly=True))
    assert [name in problem.file for problem in report.problems] == [True]
