"""Test golden files: states of this format that an earlier version wrote open, read the same, and continue.

``python tests/test_golden.py`` writes the states of the current format to ``tests/golden/format-<n>/``. Run it once,
when the format is new; the states of the previous format are deleted then. After that, the states are never written
again. ``expected.json`` has the rows that the states had when they were written.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import SOAK, mid_test, seeded

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.engine.garbage import list_version_blobs
from ddflow.errors import CorruptState
from ddflow.storage import backlog, inventory_text
from ddflow.storage.epochs import AttachedSink
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import FORMAT, load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.opening import open_store
from ddflow.tools.fsck import fsck
from ddflow.trace import spine

GOLDEN = Path(__file__).parent / "golden"
COLUMNS = {
    "name": pa.string(),
    "rev": pa.int64(),
    "tag": pa.string(),
    "op": pa.string(),
    "at": pa.int64(),
    "score": pa.float64(),
    "tags": pa.list_(pa.string()),
}


def plan(kind: str) -> dd.Flow:
    """One flow a kind of state."""
    flow = dd.Flow()
    gone: Any = dd.tombstone("op", "D")
    if kind == "held-back":
        spec = dd.Upsert(key="rev", time="at", late="advance", order_by="score", delete=gone, seq=None)
    elif kind == "ranked":
        spec = dd.Upsert(key=["name"], order_by=["tag"], tie="greatest", delete=gone, value=["name", "score"])
    else:
        spec = dd.Upsert(key=["name", "rev"], order_by=["at"], delete=gone, noop_ignore=["score"])
    rows = flow.upserts("things", COLUMNS, spec)
    flow.output("rows", rows)
    flow.output("high", rows.filter("score > 2.5").project({"who": "upper(cast(name as string))"}))
    flow.output("by_name", rows.project(["name"]).count())
    if kind == "operators":
        stateful(flow, rows.project(["name", "rev", "tag", "at", "score"]))
    return flow


def stateful(flow: dd.Flow, rows: dd.Collection) -> None:
    """Outputs that operators with states of their own make."""
    names = rows.project(["name"])
    flow.output(
        "sums", rows.group_by("name").agg(n="count(rev)", s="sum(score)", mean="avg(rev)", spread="var_pop(at)")
    )
    flow.output("ends", rows.group_by("name").agg(lo="min(at)", last="last(tag order by at)", all="array_agg(rev)"))
    flow.output("different", rows.group_by("name").agg(tags="count(distinct tag)"))
    flow.output("joined", rows.join(rows.project({"name": "name", "other": "rev"}), on="name", how="left"))
    flow.output("without", rows.join(rows.filter("rev > 1").project(["name"]), on="name", how="anti"))
    flow.output("top", rows.top(2, by=["score desc"], partition_by=["name"], rank_name="place"))
    flow.output("versions", rows.project(["name", "at", "score"]).versions("name", "at"))
    flow.output("looked", names.lookup(names.count(), on="name"))
    flow.output("capped", names.threshold("least(n, 2)"))
    flow.output("different names", names.distinct())
    flow.output("back", names.count().to_upserts("name"))


def events(time: int) -> pa.Table:
    """Seven of them, some without a tag, one that deletes."""
    each = [(time * 5 + i * 3) % 11 for i in range(7)]
    return pa.table(
        {
            "name": [f"näme {n % 4}" for n in each],
            "rev": [n % 3 for n in each],
            "tag": [None if n % 5 == 0 else f"t{time:02}{n:02}" for n in each],
            "op": ["D" if (time + i) % 6 == 0 else None for i in range(7)],
            "at": [time * 10 + i for i in range(7)],
            "score": [n / 2 for n in each],
            "tags": [None if n % 4 == 0 else [f"x{n}", None] for n in each],
        },
        pa.schema(COLUMNS),
    )


def feed(engine: dd.Engine, kind: str, times: Iterator[int] | range) -> list[dd.Step]:
    """The calls of some times."""
    out = []
    for time in times:
        if kind == "held-back":
            out.append(engine.push({"things": events(time)}))
            out.append(engine.advance_to(time * 10 - 12))
        else:
            out.append(engine.step({"things": events(time)}, time))
    return out


@contextmanager
def small(kind: str) -> Iterator[None]:
    """Merges that begin early and stop half way; inventories in sections, a backlog, where that is the kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spine, "PIECE", 2)
        patch.setattr(spine, "EFFORT", 1)
        patch.setattr(spine, "GARBAGE", 1)
        for name in ("INLINE", "EDGE", "FEWEST") if kind == "sections" else ():
            patch.setattr(inventory_text, name, 2)
        if kind == "lagging":
            patch.setattr(backlog, "FAN", 2)
        yield


def shown(table: pa.Table) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in table.to_pylist())


def answers(engine: Any) -> dict[str, Any]:
    """All that can be read."""
    return {
        "frontier": engine.frontier,
        "since": engine.since,
        "verdicts": dict(engine.verdicts.counts),
        "pending": engine.verdicts.pending,
        **{name: shown(engine.read(name)) for name in ("things", *engine.flow.outputs)},
        "was": shown(engine.read("rows", as_of=engine.since)),
    }


def gone_on(engine: dd.Engine, kind: str) -> dict[str, Any]:
    """What the next calls put out, and what is there then."""
    steps = feed(engine, kind, range(13, 16))
    return {"steps": [{name: shown(step[name]) for name in step} for step in steps], **answers(engine)}


KINDS = {
    "plain": {"retain": 3},
    "ranked": {},
    "held-back": {"retain": 5},
    "spilled": {"memory": "16MB"},
    "compressed": {"retain": 3},
    "sections": {"retain": 3},
    "operators": {"retain": 3},
    "lagging": {},
}


def write(place: Path) -> None:
    """Make the golden states of the present format."""
    expected = {}
    for kind, options in KINDS.items():
        with small(kind), plan(kind).open(place / kind, secret=Secret(1, 2), grace=0, **options) as engine:
            if kind == "spilled":
                engine.dataflow.budget.state = 0  # everything goes to files at once
            assert engine.durable is not None
            if kind == "lagging":
                engine.durable.log.keep = 1
                engine.durable.log.sinks["rows"] = AttachedSink("sqlite", "out.db:rows", "upsert", 0, 0, "")
            engine.durable.batch_store.compresses = kind == "compressed"  # as parts of a partitioned state do
            for arranged in engine.dataflow.graph.arrangements.values():
                arranged.spine.fan = arranged.on_disk.fan = 3
            feed(engine, kind, range(1, 13))
            expected[kind] = {"epoch": engine.epoch, **answers(engine)}
            under_way = [
                m for a in engine.dataflow.graph.arrangements.values() for m in (*a.spine.merges, *a.on_disk.merges)
            ]
            print(kind, "merges half done:", sum(bool(m.output.parts) for m in under_way), "of", len(under_way))
            print(kind, "sections:", len(engine.durable.sections.blobs))
            print(kind, "backlog:", [part.level for part in engine.durable.log.manifest_log.manifest.backlog])
        with plan(kind).open(shutil.copytree(place / kind, place / "next"), **options) as engine:
            expected[kind]["next"] = gone_on(engine, kind)
        shutil.rmtree(place / "next")
        shutil.rmtree(place / kind / "spill", ignore_errors=True)
        shutil.make_archive(str(place / kind), "zip", place / kind)
        shutil.rmtree(place / kind)
    (place / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=True) + "\n")


def golden() -> list[tuple[str, str]]:
    return [(form.name, kind.stem) for form in sorted(GOLDEN.glob("format-*")) for kind in sorted(form.glob("*.zip"))]


def copied(form: str, kind: str, to: Path) -> tuple[Path, dict[str, Any]]:
    """A golden state to work on (an archive keeps no modes), and what is expected of it."""
    state = to / kind
    shutil.unpack_archive(GOLDEN / form / f"{kind}.zip", state)
    for each in (state, *state.rglob("*")):
        each.chmod(0o700 if each.is_dir() else 0o600)
    return state, json.loads((GOLDEN / form / "expected.json").read_text())[kind]


def test_the_present_format_has_golden_states() -> None:
    assert golden() == [(f"format-{FORMAT}", kind) for kind in sorted(KINDS)]


@pytest.mark.drawn(10)
@pytest.mark.parametrize(("form", "kind"), golden())
@pytest.mark.parametrize("budget", [None, "16MB"])
def test_a_golden_state_reads_as_when_it_was_written_and_goes_on(
    form: str, kind: str, budget: str | None, tmp_path: Path
) -> None:
    state, expected = copied(form, kind, tmp_path)
    follows, epoch = expected.pop("next"), expected.pop("epoch")
    assert fsck(state).ok
    with dd.Snapshot.open(state) as snapshot:
        assert (snapshot.epoch, answers(snapshot)) == (epoch, expected)
    with plan(kind).open(state, memory=budget, retain=KINDS[kind].get("retain", 0)) as engine:
        engine._check_invariants()
        assert (engine.epoch, answers(engine)) == (epoch, expected)
        # The last epoch is replayed.
        again = engine.advance_to(108, epoch=epoch) if kind == "held-back" else engine.step({"things": events(12)}, 12)
        assert sum(again.verdicts.counts.values()) > 0
        assert gone_on(engine, kind) == follows
        engine._check_invariants()


@pytest.mark.parametrize(("form", "kind"), golden())
def test_a_golden_state_is_of_the_format_that_its_folder_says(form: str, kind: str, tmp_path: Path) -> None:
    state, _ = copied(form, kind, tmp_path)
    store = open_store(state, create=False, readonly=True)
    found = load_newest_manifest(store)
    assert found is not None and store.read_manifest(found.number).startswith(f"ddflow manifest {form[7:]} ".encode())


@mid_test
@pytest.mark.drawn(3)
@pytest.mark.parametrize(("form", "kind"), golden())
def test_a_flip_of_any_byte_and_a_cut_at_any_length_of_any_file_is_named(form: str, kind: str, tmp_path: Path) -> None:
    """Where a file's bytes are asked for, which is before anything is done with them."""
    state, _ = copied(form, kind, tmp_path)
    real, memory, tried = LocalStore(state, readonly=True), MemoryStore(), 0
    draw, share = seeded(__name__, kind), 1 if SOAK else 5
    manifest = load_newest_manifest(real)
    assert manifest is not None
    for blob in list_version_blobs(real, manifest):
        data = bytearray((state / "blobs" / blob.name).read_bytes())
        for at in range(draw.randrange(share), 2 * len(data), share):
            if at < len(data):
                data[at] ^= 1 << at % 8
            memory.shared.blobs[blob.name] = (bytes(data) if at < len(data) else bytes(data[: at - len(data)])), 0.0
            try:
                memory.map_blob(blob)
            except CorruptState as error:
                assert blob.name in str(error)
            else:
                raise AssertionError(f"{blob.name}, {at}: not told")
            if at < len(data):
                data[at] ^= 1 << at % 8
            tried += 1
        memory.shared.blobs[blob.name] = bytes(data), 0.0
        memory.map_blob(blob)
    assert tried > 50_000 // share


if __name__ == "__main__":
    target = GOLDEN / f"format-{FORMAT}"
    if target.exists():
        sys.exit(f"{target.name} is there already: golden files are written once")
    target.mkdir(parents=True)
    write(target)
