"""Build small states and their logs for tests of `verify` and `fsck`.

There is a state of every kind, and there are states with false contents but valid checksums.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import to_builtins
from msgspec.structs import replace

import ddflow as dd
from ddflow.storage.files.arrow_file import open_file_writer
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.memory import MemoryStore

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string(), "at": pa.int64(), "gone": pa.bool_()})
EPOCH = dd.Upsert(key="id", order_by="at", delete=dd.tombstone("gone"))
HELD = dd.Upsert(key="id", time="at", delete=dd.tombstone("gone"))
ARRIVAL = dd.Upsert(key="id", delete=dd.tombstone("gone"))
WIDE = dd.Upsert(key=["id", "city"], order_by="at", delete=dd.tombstone("gone"), null_key="keep")

BERN = "city = 'Bern'"


def plan(spec: dd.Upsert = EPOCH, **more: pa.DataType) -> dd.Flow:
    """Return a flow with three outputs: orders, the counts of orders by city, and the orders of Bern."""
    flow = dd.Flow()
    columns = dict(zip(SCHEMA.names, SCHEMA.types, strict=True)) | more
    orders = flow.upserts("orders", columns, spec)
    flow.output("orders", orders)
    flow.output("by_city", orders.project(["city"]).count())
    flow.output("in_bern", orders.filter("city = 'Bern'"))
    return flow


def events(seed: int, steps: int = 6, rows: int = 12, keys: int = 9, first: int = 0) -> list[pa.Table]:
    """Return random events with few keys, for some steps. ``first`` is the number of the first step."""
    rng, out = random.Random(seed), []
    for step in range(first, first + steps):
        made = [
            {
                "id": rng.randrange(keys),
                "city": rng.choice(["Bern", "Basel", "Chur", None]),
                "at": step * 10 + rng.randrange(25),
                "gone": rng.random() < 0.2,
            }
            for _ in range(rows)
        ]
        out.append(pa.Table.from_pylist(made, SCHEMA))
    return out


def feed(state: Any, steps: list[pa.Table], spec: dd.Upsert = EPOCH, **options: Any) -> None:
    """Feed each table of events with a step or a push.

    The frontier advances as far as it can before a remaining event would be late.
    """
    with plan(spec).open(state, **options) as engine:
        for i, step in enumerate(steps):
            if spec.holds_back:
                engine.push({"orders": step})
                if least := [int(later["at"].to_numpy().min()) for later in steps[i + 1 :]]:
                    engine.advance_to(max(engine.frontier, min(least)))
            else:
                engine.step({"orders": step}, time=engine.last + 1 if engine.last > dd.NEVER else 1)


def one(*ids: int, city: str = "Bern", at: int = 1) -> pa.Table:
    """Return a table with a row for each key. Each column that is not given has the same value in all rows."""
    rows = [{"id": each, "city": city, "at": at, "gone": False} for each in ids]
    return pa.Table.from_pylist(rows, SCHEMA)


def replaced(store: MemoryStore, spec: dd.Upsert = ARRIVAL) -> list[pa.Table]:
    """Feed a state with events, full contents and scoped full contents; return its log without marks."""
    parts = [one(1, 2), one(2, 3), one(3)]
    with plan(spec).open(store, retain=9) as engine:
        engine.step({"orders": parts[0]}, 1)
        engine.replace("orders", parts[1], 2)
        engine.replace("orders", parts[2], 3, BERN)
    return parts


def files(state: Path) -> list[Path]:
    """Return all files of a state in a folder."""
    return sorted(path for path in state.rglob("*") if path.is_file())


def lie(store: MemoryStore, tell: Callable[[Any], None]) -> None:
    """Publish the newest version again with a changed inventory and a valid checksum."""
    manifest = load_newest_manifest(store)
    assert manifest is not None
    inventory = json.loads(store.map_blob(manifest.inventories[0]).to_pybytes())
    tell(inventory)
    store = store.reopen()
    part = store.put("json", lambda sink: sink.write(json.dumps(inventory).encode()))
    new = replace(manifest, number=manifest.number + 1, nonce=store.nonce, inventories=(part,))
    assert store.publish(new.number, new.encode())


def lie_in(store: MemoryStore, **fields: Any) -> None:
    """Publish the newest version again with other fields and a valid checksum."""
    manifest = load_newest_manifest(store)
    assert manifest is not None
    store = store.reopen()
    new = replace(manifest, number=manifest.number + 1, nonce=store.nonce, **fields)
    assert store.publish(new.number, new.encode())


def rewritten(store: MemoryStore, named: list[Any], change: Callable[[pa.Table], pa.Table]) -> list[Any]:
    """Write a file of an inventory again with changed columns, and return the new entry of the file."""
    with pa.ipc.open_file(store.shared.blobs[named[0]][0]) as file:
        table = change(file.read_all())

    def write(sink: Any) -> None:
        with open_file_writer(sink, table.schema) as writer:
            writer.write_batch(table.combine_chunks().to_batches()[0])

    return to_builtins(store.reopen().put("arrow", write))


def named(path: Path, state: Path) -> str:
    """Return the name that a file has in reports."""
    return path.relative_to(state).as_posix()
