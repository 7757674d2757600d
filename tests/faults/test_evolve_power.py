"""Test power failures at any moment of a state's evolution: the version before or after it stays complete.

The scenario has several processes: one steps, one is killed during a rewrite, one rewrites, and one evolves between two
calls. The test opens each image of the disk with its columns, and compares it with an engine of these columns. Then the
test repeats its last epoch, evolves it to the last columns, and continues.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from chance import mid_test, seeded
from simdisk import Killed, SimDisk, Story, killing

import ddflow as dd
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.partitions.rewrite import Rewrite
from ddflow.storage.folder.local import LocalStore

PATH = "/data/orders"
IMAGES = 60
COLUMNS: list[dict[str, Any]] = [
    {"id": pa.int64(), "n": pa.int32()},
    {"id": pa.int64(), "n": pa.int32(), "city": pa.string()},
    {"id": pa.int64(), "n": pa.decimal128(12, 1), "city": pa.string()},
    {"id": pa.int64(), "n": pa.decimal128(12, 1), "city": pa.large_string(), "more": pa.int8()},
]
"""Of the input, version by version: evolved between calls, rewritten, and evolved again."""
LOG = [
    pa.table({"id": [number % 3, 7], "n": pa.array([number, None], pa.int32())}, pa.schema(COLUMNS[0]))
    for number in range(1, 11)
]


def plan(version: int) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.output("rows", flow.upserts("a", COLUMNS[version], dd.Upsert(key="id")))
    flow.output("by_n", rows.count("n"))
    flow.output("all", rows.distinct())
    return flow


def cast(table: pa.Table, version: int) -> pa.Table:
    return pa.Table.from_batches([conform_to_wider_schema(table, pa.schema(COLUMNS[version]))])


def version_of(flow: Any) -> int:
    """Which of the versions a plan's columns are."""
    return COLUMNS.index(
        dict(zip(flow.inputs["a"].bound.schema.names, flow.inputs["a"].bound.schema.types, strict=True))
    )


def plain(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


def expected(version: int, epoch: int) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """What is held after some epochs, and what the last of them gave."""
    step: Any = {}
    with plan(version).open() as engine:
        for time, table in enumerate(LOG[:epoch], 1):
            step = engine.step({"a": cast(table, version)}, time)
        return {name: plain(engine.read(name)) for name in engine.flow.outputs}, {n: plain(t) for n, t in step.items()}


def scenario(seed: int) -> Callable[..., None]:
    def run(open: Callable[..., Any], note: Callable[[Any], None]) -> None:
        chance, epoch = Random(seed), 0
        for version in range(3):
            with plan(version).open(open(), grace=0.0) as engine:
                note(("columns", version))
                for _ in range(2):
                    engine.step({"a": cast(LOG[epoch], version)}, epoch + 1)
                    epoch += 1
                    note(("told", epoch))
                if version != 1:  # what the next commit publishes
                    engine.evolve(pa.schema(COLUMNS[version + 1]))
                    engine.step({"a": cast(LOG[epoch], version + 1)}, epoch + 1)
                    epoch += 1
                    note(("told", epoch))
                    note(("columns", version + 1))
            if version == 1:
                name, ending = chance.choice((("link", ""), ("unlink", ".part"), ("sync_dir", "")))
                with contextlib.suppress(Killed):
                    dd.evolve(open(before=killing(name, ending, chance.randrange(6))), pa.schema(COLUMNS[2]))
                note(("maybe", 2))
                dd.evolve(open(), pa.schema(COLUMNS[2]))
                note(("columns", 2))

    return run


def check(store: Any, notes: list[Any]) -> None:
    told, columns = (max((n for kind, n in notes if kind == what), default=0) for what in ("told", "columns"))
    if not store.list_manifests():
        assert not notes, "what was acknowledged is lost"
        return
    with dd.Snapshot.open(store) as snapshot:
        epoch, version = snapshot.epoch, version_of(snapshot.flow)
        assert told <= epoch <= told + 1 and columns <= version <= columns + 1, (told, epoch, columns, version)
        held, gave = expected(version, epoch)
        if epoch:
            assert {name: plain(snapshot.read(name)) for name in held} == held
    if version < 2:
        dd.evolve(store, pa.schema(COLUMNS[2]))
        version = 2
    with plan(version).open(store) as engine:
        held, gave = expected(version, epoch)
        if epoch:  # given again by the columns that it had at first
            again = engine.step({"a": LOG[epoch - 1]}, epoch)
            assert {name: plain(table) for name, table in again.items()} == gave
        engine.step({"a": cast(LOG[epoch], version)}, epoch + 1)
        held, _ = expected(version, epoch + 1)
        assert {name: plain(engine.read(name)) for name in held} == held


def told_whole(seed: int) -> str | None:
    """What is wrong with the images of one story, if anything."""
    story = Story(scenario(seed), check, lambda disk: LocalStore(PATH, disk=disk))
    disk = story.told(SimDisk(most=6000))
    found = story.violation(disk, range(seed * IMAGES, (seed + 1) * IMAGES))
    return found and f"scenario {seed}, {found}"


@mid_test
def test_every_image_holds_the_columns_before_or_after() -> None:
    assert told_whole(seeded(__name__, 0).randrange(1000)) is None


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
def test_every_image_of_a_hundred_stories_holds_the_columns_before_or_after(seed: int) -> None:
    assert told_whole(1000 + seed) is None


def test_a_rewrite_that_is_published_before_its_files_are_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: without the sync of a commit, an image holds a version without its files."""
    real = Rewrite._check_files

    def look(self: Any, taken: Any) -> None:
        real(self, taken)
        for each in taken:
            for blob in each.added:
                self.store.delete(blob.name)

    monkeypatch.setattr(Rewrite, "_check_files", look)
    with pytest.raises(Exception, match=r"CorruptState|is not there|missing"):
        found = told_whole(7)
        assert found is None, found
