"""Test compressed files: contents, size, false claims in files, and use with a memory budget."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from kinds import PLAIN
from parts_by_hand import Hands

import ddflow as dd
from ddflow.engine.garbage import list_version_blobs
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.partitions.rescale import rescale
from ddflow.partitions.step import StagePartition
from ddflow.storage.files.arrow_file import MOST, OPTIONS, decompress_buffer, read_batches
from ddflow.storage.files.flatbuffer import MalformedMetadata
from ddflow.storage.inventory_text import find_file_names
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.opening import open_store

LZ4 = pa.Codec("lz4")
FRAME = b"\x04\x22\x4d\x18"
"""What a buffer of LZ4 begins with."""


def claimed(claim: int, body: bytes) -> pa.Buffer:
    """A buffer that says what it holds."""
    return pa.py_buffer(claim.to_bytes(8, "little", signed=True) + body)


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_compressed_is_what_comes_out(name: str) -> None:
    array = pa.concat_arrays([PLAIN[name]] * 50)
    for part in (array, array.slice(1, 20), array.slice(0, 0)):
        batch, sink = pa.record_batch({name: part, "n": list(range(len(part)))}), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema, options=OPTIONS) as writer:
            writer.write_batch(batch)
        (found,) = read_batches(sink.getvalue(), batch.schema, len(part), "the file x")
        assert found.schema == batch.schema and str(found.to_pydict()) == str(batch.to_pydict())


@given(st.binary(max_size=300), st.integers(-2, 80_000), st.integers(0, 300))
def test_a_buffer_holds_what_it_says_or_is_refused(held: bytes, claim: int, end: int) -> None:
    body = LZ4.compress(held).to_pybytes()
    if held:
        assert decompress_buffer(claimed(len(held), body)) == pa.py_buffer(held)
    assert decompress_buffer(claimed(-1, held)) == pa.py_buffer(held)
    for given_claim, rest in ((claim, body), (len(held), body[: min(end, len(body) - 1)]), (claim, held)):
        if (given_claim, rest) != (len(held), body) and given_claim != -1:
            with pytest.raises(MalformedMetadata):
                decompress_buffer(claimed(given_claim, rest))


def test_a_greater_claim_than_can_be_is_refused_before_there_is_room_for_it() -> None:
    zeros = bytes(64 << 20)
    body = LZ4.compress(zeros).to_pybytes()
    assert len(zeros) <= MOST * len(body), "LZ4 holds more in a byte than we read"
    before = pa.total_allocated_bytes()
    for claim in (MOST * len(body) + 1, 1 << 62, -5, 0):
        with pytest.raises(
            MalformedMetadata, match=f"a buffer of {len(body) + 8:,} bytes says that it holds {claim:,}"
        ):
            decompress_buffer(claimed(claim, body))
    with pytest.raises(MalformedMetadata, match="a buffer of 7 bytes is too short"):
        decompress_buffer(pa.py_buffer(b"7 bytes"))
    assert pa.total_allocated_bytes() == before
    assert decompress_buffer(claimed(len(zeros), body)).equals(pa.py_buffer(zeros))


def flow_of() -> dd.Flow:
    flow, columns = dd.Flow(), {"id": pa.int64(), "city": pa.string(), "at": pa.int64(), "gone": pa.bool_()}
    orders = flow.upserts("orders", columns, dd.Upsert("id", order_by="at", delete=dd.tombstone("gone")))
    flow.output("orders", orders)
    flow.output("by_city", orders.count("city"))
    return flow


def rows_of(seed: int, n: int = 4000, keys: int = 1500) -> pa.Table:
    """Upserts, of which one in ten deletes; times go up by ten a batch."""
    chance = np.random.default_rng(seed)
    cities = [f"city {number}" for number in chance.integers(0, 30, n)]
    return pa.table(
        {
            "id": chance.integers(0, keys, n),
            "city": cities,
            "at": 10 * seed + chance.integers(0, 10, n),
            "gone": chance.random(n) < 0.1,
        }
    )


class Story:
    """A state of three partitions in a folder, and the local engine beside it."""

    def __init__(self, place: Path) -> None:
        self.place, self.epoch, self.engine = place, 0, flow_of().open()

    def go(self, epochs: int = 1, n: int = 4000, **options: Any) -> None:
        """More epochs, after which both hold the same."""
        store = open_store(str(self.place), create=True)
        hands = Hands(flow_of(), store, None if self.epoch else 3, random.Random(7), **options)
        for _ in range(epochs):
            self.epoch += 1
            rows = rows_of(self.epoch, n)
            hands.epoch({"orders": rows})
            self.engine.step({"orders": rows}, time=self.epoch)
        hands.close()

    def check(self) -> None:
        """What can be read is what the engine holds, and every file is what it should be."""
        for name in ("orders", "by_city"):
            here, there = (
                Counter(map(str, each.to_pylist())) for each in (dd.read(str(self.place), name), self.engine.read(name))
            )
            assert here == there
        report = dd.fsck(str(self.place))
        assert report.ok, str(report)

    def compressed(self) -> Counter[bool]:
        """Bytes of the newest version's rows, in files that are compressed and in others."""
        store, out = open_store(str(self.place), create=False, readonly=True), Counter[bool]()
        manifest = load_newest_manifest(store)
        assert manifest is not None
        rows = {name for blob in manifest.inventories for name in find_file_names(store.map_blob(blob))}
        for blob in list_version_blobs(store, manifest):
            if blob.name in rows:
                out[FRAME in store.map_blob(blob).to_pybytes()] += blob.length
        store.close()
        return out


def test_a_state_without_a_budget_is_compressed_and_takes_half_the_room(tmp_path: Path) -> None:
    small, plain = Story(tmp_path / "small"), Story(tmp_path / "plain")
    small.go(4)
    plain.go(4, memory=64 << 20)
    small.check()
    plain.check()
    assert small.compressed()[False] == plain.compressed()[True] == 0
    assert 2 * small.compressed()[True] < plain.compressed()[False]


def test_under_a_budget_what_was_compressed_lies_in_files_again(tmp_path: Path) -> None:
    story = Story(tmp_path / "state")
    story.go(2)
    for _ in range(2):
        story.go(memory=64 << 20)
        story.check()
        assert story.compressed()[True] == 0
        story.go()
        story.check()
        assert story.compressed()[True] > 0


@pytest.mark.parametrize("memory", [None, 64 << 20])
def test_a_compressed_state_is_rescaled(tmp_path: Path, memory: int | None) -> None:
    story = Story(tmp_path / "state")
    story.go(3)
    for partitions in (2, 5):
        rescale(str(story.place), partitions, memory=memory)
        story.check()
        story.go()
        story.check()


def test_a_budget_is_kept_though_files_hold_more_than_they_take(tmp_path: Path) -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": pa.int64(), "n": pa.int64()}, dd.Upsert("id"))
    flow.output("rows", rows)
    n, budget = 600_000, 64 << 20
    store = open_store(str(tmp_path / "state"), create=True)
    coordinator = EpochDriver.open(flow, store, DriverOptions(partitions=1))
    start = coordinator.begin()
    part = StagePartition(coordinator.cut, start, 0, 0)
    made = part.step(start, {"rows": pa.table({"id": range(n), "n": [7] * n})}, {}, {"rows": n}, {"rows": "0" * 32})
    part.close()
    coordinator.finish(start, [made.receipt])
    start = coordinator.begin()
    taken = {}
    for memory in (None, budget):
        pa.default_memory_pool().release_unused()
        before = pa.total_allocated_bytes()
        part = StagePartition(coordinator.cut, start._replace(memory=memory), 0, 0)
        taken[memory] = pa.total_allocated_bytes() - before
        part.close()
        del part
    coordinator.close()
    assert taken[None] > 16 * n > 1 << 20 > taken[budget]
