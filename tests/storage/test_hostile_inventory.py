"""Test forged inventories with valid checksums: refused by name, or read; never a signal, never a hang.

Run as a program, this file is the child: it opens mutated golden states one after the other and reports each seed
first, so that a signal can be traced to its seed.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import mid_test, seeded
from msgspec.structs import replace

import ddflow as dd
from ddflow.errors import DdflowError
from ddflow.storage import inventory_text
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.inventory_text import InventorySectionWriter, read_inventory_text
from ddflow.storage.manifest import FORMAT, load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob

KINDS = ("plain", "ranked", "held-back", "spilled", "compressed", "sections")
ODD = (
    0,
    1,
    -1,
    2,
    7,
    2**31,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64 - 1,
    2**70,
    1e300,
    0.5,
    None,
    True,
    "",
    "x",
    [],
    {},
    [0, 0, 0],
    [[]],
    "high",
    "low",
    "time",
    "18446744073709551615",
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be changed."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inside for place in places(each, (*path, key)))]


def mutated(given: Any, rng: random.Random) -> Any:
    """The same with a few values replaced, swapped, doubled or left out."""
    given = copy.deepcopy(given)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        path = rng.choice([place for place in places(given) if place])
        *way, last = path
        within = given
        for key in way:
            within = within[key]
        match rng.randrange(6):
            case 0:
                within[last] = copy.deepcopy(rng.choice(ODD))
            case 1 if isinstance(within[last], int):
                within[last] += rng.choice((-1, 1, 2, 1000, -1000))
            case 2:
                del within[last]
            case 3 if isinstance(within, list):
                within.append(copy.deepcopy(rng.choice(within)))
            case 4:
                other = rng.choice([place for place in places(given) if place])
                input = given
                for key in other:
                    input = input[key]
                within[last] = copy.deepcopy(input)
            case _ if isinstance(within, list):
                rng.shuffle(within)
    return given


def in_sections(store: MemoryStore, data: bytes, rng: random.Random) -> Blob:
    """A text in sections, of which now and then one is named twice, or not, or elsewhere."""
    cut = InventorySectionWriter(store)
    for _ in range(4):
        blob = cut.write_inventory(data)
    lines = store.map_blob(blob).to_pybytes().split(b"\n")
    if len(lines) > 2 and rng.random() < 0.5:
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(3):
            case 0:
                lines[at] = lines[other]
            case 1:
                lines[at], lines[other] = lines[other], lines[at]
            case 2:
                del lines[at]
        return store.put("json", lambda sink: sink.write(b"\n".join(lines)))
    return blob


def attack(kind: str, folder: Path, seeds: range) -> None:
    """Open, read, step and check a state under each seed's inventory."""
    from test_golden import events, plan

    store = LocalStore(folder)
    manifest = load_newest_manifest(store)
    assert manifest is not None
    [part] = manifest.inventories
    inventory = json.loads(read_inventory_text(store, part).data)
    shared = MemoryStore().shared
    for entry in store.list_blobs():
        shared.blobs[entry.name] = (folder / "blobs" / entry.name).read_bytes(), 0.0
    for seed in seeds:
        print(seed, flush=True)
        rng = random.Random(seed)
        data = json.dumps(mutated(inventory, rng), separators=(",", ":")).encode()
        memory = MemoryStore()
        memory.shared.blobs = dict(shared.blobs)
        blob: Blob = (
            InventorySectionWriter(memory).write_inventory(data)
            if kind != "sections"
            else in_sections(memory, data, rng)
        )
        assert memory.publish(0, replace(manifest, number=0, inventories=(blob,)).encode())
        memory.mark_published(0)
        try:
            with dd.Snapshot.open(memory) as snapshot:
                snapshot.read("rows")
        except DdflowError:
            pass
        try:
            with plan(kind).open(memory, memory=rng.choice((None, "16MB")), retain=5) as engine:
                engine.read("rows")
                for time in range(20, 24):
                    if kind == "held-back":
                        engine.push({"things": events(time)})
                        engine.advance_to(time * 10)
                    else:
                        engine.step({"things": events(time)}, time)
                engine.read("by_name")
        except DdflowError:
            pass


def run(kind: str, folder: Path, seeds: range) -> None:
    """Attack in a child process, whose memory is bounded."""
    child = [sys.executable, __file__, kind, str(folder), str(seeds.start), str(seeds.stop)]
    done = subprocess.run(child, capture_output=True, text=True, timeout=3000, check=False)
    at = done.stdout.strip().splitlines()[-1:] or ["none"]
    assert done.returncode == 0, f"{kind}, seed {at[0]}: exit code {done.returncode}\n{done.stderr[-3000:]}"
    assert int(at[0]) == seeds[-1]


def state(kind: str, to: Path) -> Path:
    from test_golden import copied

    return copied(f"format-{FORMAT}", kind, to)[0]


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_made_up_inventory_is_refused_or_read(kind: str, tmp_path: Path) -> None:
    begin = seeded(__name__, kind).randrange(1000, 5_900)  # of those that are run in a soak
    run(kind, state(kind, tmp_path), range(begin, begin + 30))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_very_many_made_up_inventories(kind: str, tmp_path: Path) -> None:
    run(kind, state(kind, tmp_path), range(1000, 6_000))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
    pa.set_cpu_count(1)
    inventory_text.INLINE = inventory_text.EDGE = inventory_text.FEWEST = 2  # type: ignore[misc]
    attack(sys.argv[1], Path(sys.argv[2]), range(int(sys.argv[3]), int(sys.argv[4])))
