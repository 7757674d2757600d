"""Compile every kernel for the types that the engine calls it with.

Small flows are run that lead through every kernel: keys of one word and of many, text, floats, lists and nulls, orders,
ties, late events, enough keys for the index to grow, enough steps for batches to merge, state in files. A list of types
kept by hand would go stale without a sign; tests/tools/test_warmup.py checks that each kernel has one compiled form.

Guarantees: after `warm` no step of any flow compiles, in this process and, if the kernel cache can be written, in later
ones.

>>> from ddflow.kernels.compile import list_entry_kernels, is_ready
>>> warmed = warm()
>>> warmed.kernels == len(list_entry_kernels()), all(map(is_ready, list_entry_kernels()))
(True, True)
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.json import Decoder

import ddflow as dd
from ddflow.columns.hashing import NONE
from ddflow.columns.rows import Rows
from ddflow.columns.sorting import in_order
from ddflow.columns.threads import WAKING
from ddflow.dataflow.budget import LEAST
from ddflow.dataflow.spill import make_room
from ddflow.kernels.cache import mark_filled
from ddflow.kernels.compile import (
    PATIENCE,
    Interpreted,
    cache_directory,
    is_ready,
    list_entry_kernels,
    watch_compilations,
)
from ddflow.operators.upsert.resolution import EMITTED
from ddflow.storage.fields import decoded, encoded
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.memory import MemoryStore
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, Change
from ddflow.trace.checkpoint import restore, take
from ddflow.trace.group_rows import group_rows
from ddflow.trace.records import ArrangementRecord

Progress = Callable[[int, int, str], None]
"""Called with how many kernels are ready, how many there are, and what is being compiled."""


class Warmed(NamedTuple):
    """The result of `warm`."""

    kernels: int
    """How many there are, all ready now."""
    compiled: int
    """How many had to be compiled; the others were in the cache, or ready."""
    directory: Path | None
    """The directory of compiled kernels for the next process; None if no directory is writable."""


def warm(progress: Progress | None = None) -> Warmed:
    """Compile, or load from the cache, every kernel: some ten seconds, or one.

    ``progress`` receives each compilation as it begins, and each finished part. Does nothing if the compiler is off.
    """
    every = list_entry_kernels()
    names, compiled = {kernel.py_func.__name__ for kernel in every}, 0

    def tell(doing: str) -> None:
        if progress is not None:
            progress(sum(map(is_ready, every)), len(every), doing)

    def compiling(name: str) -> None:
        nonlocal compiled
        if name in names:
            compiled += 1
            tell(name)

    parts = iter(()) if all(isinstance(kernel, Interpreted) for kernel in every) else _run_flows()
    with watch_compilations(compiling), PATIENCE.over():
        for part in parts:
            tell(part)
    mark_filled(cache_directory())
    return Warmed(len(every), compiled, cache_directory())


def _run_flows() -> Iterator[str]:
    """Run the flows and yield a description after each."""
    yield from _run_by_epochs()
    yield from _run_by_time()
    yield from _run_on_disk()
    yield from _run_reopened()
    yield from _run_to_upserts()
    yield from _run_merging()
    yield from _run_ordered()
    yield from _run_aggregates()


def _run_by_epochs() -> Iterator[str]:
    """Run wide identities, order columns with nulls, deletes, every operator, merges and an index that grows."""
    columns = {
        "key": pa.string(),
        "part": pa.float64(),
        "city": pa.string(),
        "tags": pa.list_(pa.int64()),
        "paid": pa.bool_(),
        "at": pa.float64(),
        "gone": pa.bool_(),
    }
    flow = dd.Flow()
    orders = flow.upserts("orders", columns, dd.Upsert(["key", "part"], "at", delete=dd.tombstone("gone")))
    cities = orders.project(["city"])
    flow.output("orders", orders)
    flow.output("counts", orders.count(["paid", "tags"]))
    flow.output("pairs", orders.join(orders.project({"city": "city", "other": "key"}), on="city").count("other"))
    flow.output("cities", cities.concat(cities.negate(), cities).consolidate())
    with flow.open(verdicts="rows", retain=1) as engine:
        for time in range(12):
            engine.step({"orders": _orders(3000 if time == 1 else 100, time).cast(pa.schema(columns))}, time=time)
            yield "flows by epochs"
        for name in flow.outputs:
            engine.read(name)
        engine.read("orders", as_of=10)


def _orders(n: int, seed: int) -> pa.Table:
    """Make n events of orders: all types, with nulls in all but the key."""
    draw = np.random.default_rng(seed)
    key = draw.integers(0, 5000, n)

    def sometimes(values: list[object]) -> pa.Array:
        return pa.array([value if there else None for value, there in zip(values, draw.random(n) < 0.9, strict=True)])

    return pa.table(
        {
            "key": [f"order {k}" * (1 + k % 9) for k in key.tolist()],
            "part": draw.integers(0, 2, n).astype(np.float64),
            "city": sometimes([("Bern", "Basel", "Z" * 99)[c] for c in draw.integers(0, 3, n)]),
            "tags": sometimes([[1, 2]] * n),
            "paid": sometimes((draw.random(n) < 0.5).tolist()),
            "at": sometimes(draw.random(n).tolist()),
            "gone": sometimes((draw.random(n) < 0.2).tolist()),
        }
    )


def _run_by_time() -> Iterator[str]:
    """Run identities of one word, pending events, late ones that are advanced, ties, and a step shared by threads."""
    columns = {"key": pa.int64(), "value": pa.int32(), "at": pa.timestamp("us")}
    flow = dd.Flow()
    readings = flow.upserts("readings", columns, dd.Upsert("key", time="at", late="advance", tie="greatest"))
    flow.output("readings", readings)
    flow.output("counts", readings.project(["value"]).count())
    with flow.open(threads=2) as engine:
        for time in range(0, 120, 10):
            draw, n = np.random.default_rng(time), 400 if time else 6 * WAKING // EMITTED
            at = pa.array(draw.integers(max(time - 5, 0), time + 10, n)).cast(pa.timestamp("us"))
            key, value = draw.integers(0, 2000, n), pa.array(draw.integers(0, 9, n), pa.int32())
            engine.push({"readings": pa.table({"key": key, "value": value, "at": at})})
            engine.advance_to(time + 5)
            yield "flows by time"
        engine.advance_to(dd.CLOSED)
        engine.read("counts")


def _run_on_disk() -> Iterator[str]:
    """Search state in files for existing and for missing keys, of one word and of several."""
    flow = dd.Flow()
    flow.output("text", flow.upserts("text", {"key": pa.string(), "at": pa.int64()}, dd.Upsert("key", "at")))
    flow.output("numbers", flow.upserts("numbers", {"key": pa.int64(), "value": pa.int64()}, dd.Upsert("key")))
    with tempfile.TemporaryDirectory() as place, flow.open(memory=4 * LEAST, spill=place) as engine:
        for time in range(3):
            key = np.arange(time * 100, time * 100 + 20_000)
            names = pa.array(key).cast(pa.string())
            engine.step(
                {"text": pa.table({"key": names, "at": key}), "numbers": pa.table({"key": key, "value": key})}, time
            )
            make_room(engine.dataflow.budget, engine.dataflow.graph, engine.dataflow.batchers, 0)
            yield "state in files"
        engine.read("numbers")


def _run_reopened() -> Iterator[str]:
    """Open a state again after its engine has closed."""
    flow, store = dd.Flow(), MemoryStore()
    flow.output("numbers", flow.upserts("numbers", {"key": pa.int64(), "value": pa.int64()}, dd.Upsert("key")))
    for time in range(2):
        with flow.open(store.writer()) as engine:
            engine.step({"numbers": pa.table({"key": range(1000), "value": range(1000)})}, time)
        yield "state that is opened again"


def _run_to_upserts() -> Iterator[str]:
    """Turn updates back into upserts, by each rule; keys of one row and of several."""
    key = np.arange(60) // 2
    updates = pa.table({"key": key, "value": np.arange(60), "_time": key * 0, "_diff": key * 0 + 1})
    for rule in ("error", "greatest", "all"):
        dd.to_upserts(updates.take(pa.array(range(0, 60, 2))) if rule == "error" else updates, "key", rule)
        yield "updates that become upserts"


def _run_merging() -> Iterator[str]:
    """Run partial rows, merged by row, by groups and by cells; expiring keys; machines of one state and of several."""
    columns = pa.schema(
        {
            "key": pa.int64(),
            "at": pa.int64(),
            "by": pa.int64(),
            "n": pa.int64(),
            "u": pa.uint64(),
            "f": pa.float64(),
            "tags": pa.list_(pa.int64()),
        }
    )
    added = dd.Merge({"n": dd.sum(), "u": dd.sum(), "f": dd.sum(), "tags": dd.union()})
    specs = [
        dd.Upsert("key", "at", merge=added, expiry=dd.Expiry(ttl=1)),
        dd.Upsert("key", "at", groups={"by": ["n", "u"]}, merge=dd.Merge({"f": dd.max(), "tags": dd.append()})),
        dd.Upsert("key", "at", versions="cell"),
        dd.Upsert("key", "at", versions="cell", tie="greatest", value=["n", "f"]),
    ]
    for spec in specs:
        flow = dd.Flow()
        flow.output("rows", flow.upserts("rows", columns, spec))
        with flow.open() as engine:
            for time in range(4):
                n = np.arange(6)
                rows = {
                    "key": n // 2,
                    "at": n + 4 * time if time else [5, None, 4, 3, 2, 1],
                    "by": n,
                    "n": n,
                    "u": n,
                    "f": n / 2,
                    "tags": [[1, 2, 2]] * 6,
                }
                engine.step({"rows": pa.table(rows).cast(columns)}, time)
        yield "columns that are merged"
    for table in ({("a", "x"): "b", ("b", "x"): "a"}, {("a", "x"): ["a", "b"], ("b", "x"): "b"}):
        flow = dd.Flow()
        machine, schema = dd.Machine("state", table, on="symbol", start="a"), {"key": pa.int64(), "symbol": pa.string()}
        flow.output("states", flow.machine("events", schema, dd.Upsert("key"), machine))
        with flow.open() as engine:
            for time in range(2):
                engine.step({"events": pa.table({"key": [1, 1, 2], "symbol": ["x"] * 3})}, time)
        yield "machines"


def _run_aggregates() -> Iterator[str]:
    """Run sums of integers, floats and decimals, and of squares."""
    columns = {"id": pa.int64(), "city": pa.string(), "n": pa.int64(), "f": pa.float64(), "d": pa.decimal128(9, 2)}
    texts = {"rows": "count(f)", "i": "sum(n)", "mean": "avg(f)", "d": "sum(d)", "v": "var_pop(f)"}
    flow = dd.Flow()
    flow.output("cities", flow.upserts("orders", columns, dd.Upsert("id")).group_by("city").agg(**texts))
    with flow.open() as engine:
        for time in range(2):
            n = np.arange(60)
            rows = {"id": n, "city": (n % 3).astype(str), "n": n, "f": n / 3 + time, "d": n / 4}
            engine.step({"orders": pa.table(rows).cast(pa.schema(columns))}, time)
        engine.read("cities")
    yield "aggregates"


def _run_ordered() -> Iterator[str]:
    """Write, look up, delete and restore rows by group in an order, in memory and on disk."""
    schema, batch_store = pa.schema({"n": pa.int64()}), BatchStore(MemoryStore())
    arranged = Arrangement(schema, True, 1, ordered=True)
    arranged.slots.lasting = True
    for time, live in ((0, 1), (1, 1), (2, 0)):
        n = np.arange(40 * (time + 1))
        by = in_order((n // 4).astype(np.uint64), n.astype(np.uint64), n[:, None].copy())
        order = n[:, None].take(by.permutation, axis=0)
        prior = arranged.seek(by.high, by.low, by.starts[:-1], order=order)
        rows = Rows(pa.table({"n": n}).combine_chunks())
        lives, times, counts = np.full(n.size, live, np.uint8), np.full(n.size, time), np.ones(n.size, np.uint64)
        batch = Batch(by.high, by.low, times, lives, NONE, order, rows)
        arranged.apply([Change(batch, counts, n, prior.place, arranged.index.built, 0, 0)], time + 1, time)
        group_rows(arranged, by.high[:1], by.low[:1], most=1)
        if time == 1:
            arranged.spill(batch_store, 0)
    arranged.index.evict(0, 4, np.ones(8, np.uint8))
    flow = dd.Flow()
    few, names = flow.updates("rows", schema), flow.upserts("names", {"n": int, "name": str}, dd.Upsert("n"))
    flow.output("named", few.lookup(names, "n"))
    flow.output("top", few.top(1, by="n"))
    flow.output("ends", few.agg(lo="min(n)", hi="max(n)"))
    flow.output("versions", few.versions([], "n"))
    with flow.open() as engine:
        engine.step({"rows": {"n": [2, 1]}, "names": {"n": [1], "name": ["one"]}}, 0)
    record = decoded(Decoder(ArrangementRecord), encoded(take(arranged, batch_store)), "a warm-up")
    again = Arrangement(schema, True, 1, ordered=True)
    restore(again, record, "a warm-up", batch_store, indexed=True, made=lambda rows: (NONE, NONE, NONE))
    yield "rows in an order"
