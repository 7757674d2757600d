"""Measure constants of an engine and of a driver, and predict from them the cost of 10^10 keys on 10^4 partitions.

The engine commits after each step. The driver commits receipts of real tasks. The two smaller sizes give the constants.
Each larger size is a check, and fails if a prediction is off by more than 30 %. `scale_model` has the assumptions.
Requests are counted at the interface of the store. For an engine, CPU time is measured. The bytes of the state are
measured after a compaction.

>>> found = BENCH.measure("engine", 20_000, 3)
>>> found["state_bytes"] > 20_000 * 16, found["written"] > 0, found["reopen_seconds"] > 0
(True, True, True)
>>> found = BENCH.measure("driver", 3, 2)
>>> found["receipts"], found["finish_ms"] > 0, found["task_requests"]["put"] >= 2
(6, True, True)
"""

from __future__ import annotations

import os
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import ours
import pyarrow as pa
import pyarrow.compute as pc
import receipts
import scale_model
from report import Bar, Row, table, within
from runner import Bench, Job

STEP = 10_000
WITHIN = 0.3
KEYS, CHECKED_KEYS, NAMED_KEYS = (3 * 10**5, 2 * 10**6), 10**7, 10**8
PARTS, CHECKED_PARTS, NAMED_PARTS = (50, 200), 600, 2_000
ASKS = {
    "put": {"put": 1},
    "publish": {"put": 1},
    "mark_published": {"put": 1, "delete": 1},
    "map_blob": {"get": 1},
    "read_manifest": {"get": 1},
    "is_published": {"get": 1},
    "list_manifests": {"list": 1},
    "delete": {"delete": 1},
    "delete_manifest": {"delete": 1},
}
"""The number of requests to a bucket that each method of a store needs.

Files that a writer maps come from its cache, so they need no request.
"""
MODEL = (
    "keys {keys:.0e} | partitions {partitions:,} | M events/s {rate_m:g} | place {place} | tasks s {tasks_s:.1f} | "
    "commit s {commit_s:.2f} | files {files:,.0f} | M requests a day {requests_m:.1f} | USD a day {cost:,.0f} | "
    "driver MB {driver_bytes!M:,.0f} | a core MB {core_bytes!M:,.0f} | recovery s {recovery_s:,.0f} | "
    "first at its limit {first} | share of it {share:.0%}"
)


class Scale(Bench):
    """The bench of an engine with more and more keys, and of a driver with more and more partitions.

    The last sizes are checks.

    10^8 keys and 2,000 partitions run only if named (``--only size=...``); without them the checks are ten times
    smaller. Limits: a state is reopened while its files are still in the page cache.
    """

    name = "scale"
    about = "Scale: measured constants, checked predictions, and predictions for sizes that do not fit this machine."
    figures = ("epoch_cpu_ms", "finish_ms")
    quick = ({"size": "300000,2000000,10000000,50,200,600"}, {"epochs": "30"})
    columns = (
        "part {part} | size {size:,} | state MB {state_bytes!M:,.1f} | memory MB {memory_bytes!M:,.1f} | "
        "reopen CPU s {reopen_seconds:.2f} | files {files:,} | written KB {written_kb:,.0f} | of it inventory KB "
        "{inventory_kb:,.1f} | epoch CPU ms {epoch_cpu_ms:.1f} | finish ms {finish_ms:.1f} | "
        "manifest KB {manifest_kb:,.1f} | held KB {held_kb:,.0f} | open s {open_seconds:.2f}"
    )

    def jobs(self) -> list[Job]:
        out = []
        for part, sizes, named, epochs in (
            ("engine", (*KEYS, CHECKED_KEYS), NAMED_KEYS, 150),
            ("driver", (*PARTS, CHECKED_PARTS), NAMED_PARTS, 10),
        ):
            for size in (*sizes, named):
                only = ("size",) if size == named else ()
                out.append(Job({"part": part, "size": size, "epochs": epochs}, named=only, timeout=7200))
        return out

    def measure(self, part: str, size: int, epochs: int) -> dict[str, Any]:
        """Measure the constants of one size; raise AssertionError if the final state has other rows."""
        ours.warm()
        with tempfile.TemporaryDirectory(prefix="ddflow-bench-") as folder:
            state = os.path.join(folder, "state")
            return _engine(state, size, epochs) if part == "engine" else _driver(state, size, epochs)

    def compared(self, rows: list[Row]) -> list[Row]:
        """Return the measured rows, with predictions for the checks, and add the rows of the model."""
        known = scale_model.Constants.of(rows)
        if known is None:
            return rows
        for row in rows:
            samples = known.engine if row["part"] == "engine" else known.driver
            if row["size"] > samples[-1]["size"]:
                row["predicted"] = {
                    figure: scale_model.predicted(samples, row["part"], figure, row["size"])
                    for figure in scale_model.GROWTH[row["part"]]
                }
        return [*rows, *scale_model.table(known)]

    def tables(self, result: Row) -> Iterable[tuple[str, Sequence[Row]]]:
        """Yield a table of the measured rows. The rows of the model are left out, because they have other columns."""
        yield self.about, [row for row in result["results"] if row["part"] != "model"]

    def notes(self, result: Row) -> list[str]:
        """Return the model as a table, and the assumptions of the model."""
        model = [row for row in result["results"] if row["part"] == "model"]
        return ["## Model", table(MODEL, model).rstrip(), scale_model.ASSUMED] if model else []

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield each prediction with its measurement."""
        for row in result["results"]:
            for figure, predicted in row.get("predicted", {}).items():
                off = predicted / row[figure] - 1
                said = f"{row[figure]:,.3g}, predicted {predicted:,.3g} ({off:+.0%})"
                name = f"{figure} of {row['size']:,} {'keys' if row['part'] == 'engine' else 'partitions'}"
                yield within(name, said, f"within {WITHIN:.0%}", abs(off) <= WITHIN)


def _engine(state: str, keys: int, epochs: int) -> dict[str, Any]:
    """Load the keys, then commit each step of 10 k events."""
    import ddflow as dd

    rng, flow = np.random.default_rng(keys), dd.Flow()
    flow.output("out", flow.upserts("events", _table(np.zeros(1, np.int64), rng).schema, dd.Upsert(key="key")))
    took, at, everyone = list[float](), 0, rng.permutation(keys)
    with flow.open(state, grace=0.0) as engine:
        for start in range(0, keys, ours.STEP):
            engine.step({"events": _table(everyone[start : start + ours.STEP], rng)}, at := at + 1)
        for _ in range(40):  # the first commits cut a new inventory into sections
            engine.step({"events": _table(rng.integers(0, keys, STEP), rng)}, at := at + 1)
        with _Putting() as putting:
            for _ in range(epochs):
                events, begun = _table(rng.integers(0, keys, STEP), rng), time.process_time()
                engine.step({"events": events}, at := at + 1)
                took.append(time.process_time() - begun)
        files = _live(engine)[0]
        engine.compact()  # between two full merges there may be twice as many bytes
        total, held, answer = _live(engine), engine.stats(), _sums(engine, keys)
    opens = list[float]()
    for _ in range(3 if keys <= CHECKED_KEYS else 1):
        begun = time.process_time()
        with flow.open(state) as engine:
            opens.append(time.process_time() - begun)
            if _sums(engine, keys) != answer or engine.stats()["keys"] != keys:
                raise AssertionError(f"the reopened state has rows that differ from those of {keys:,} keys")
    return {
        "state_bytes": total[1],
        "files": files,
        "memory_bytes": held["bytes_resident"],
        "reopen_seconds": min(opens),
        "written": sum(putting.bytes.values()) / epochs,
        "written_kb": sum(putting.bytes.values()) / epochs / 1e3,
        "inventory_kb": putting.bytes["json"] / epochs / 1e3,
        "puts": sum(putting.puts.values()) / epochs,
        "epoch_cpu_ms": sum(took) / epochs * 1e3,
        "rows": STEP,
        "sync_ms": _sync_ms(os.path.dirname(state)),
    }


def _driver(state: str, partitions: int, epochs: int) -> dict[str, Any]:
    """Commit epochs whose receipts come from real tasks, as in the bench `receipts`. Then reopen the driver."""
    from ddflow.partitions.commit import EpochDriver
    from ddflow.partitions.receipt import Receipt
    from ddflow.storage.memory import MemoryStore
    from ddflow.storage.opening import open_store

    with _Asking() as asking:
        _, _, asks = _epochs(MemoryStore(), 10, 4, asking)
    finishes, told, _ = _epochs(open_store(state, create=True), partitions, epochs, None)
    opens = list[float]()
    tracemalloc.start()
    for _ in range(3):
        before, began = tracemalloc.get_traced_memory()[0], time.perf_counter()
        driver = EpochDriver.open(receipts.flow(), state)
        opens.append(time.perf_counter() - began)
        held = tracemalloc.get_traced_memory()[0] - before
        manifest, names = driver.manifest, driver.live.file_names()
        length = len(driver.log.manifest_log.store.read_manifest(manifest.number))
        driver.close()
        del driver
    data, before = [each.to_json() for each in told], tracemalloc.get_traced_memory()[0]
    again = [Receipt.from_json(each, "a receipt") for each in data]
    told_bytes = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    if again != told or manifest.epoch != epochs or not names:
        raise AssertionError("the reopened driver has different epochs")
    return {
        "receipts": len(told),
        "finish_ms": median(finishes[1:] or finishes),
        "manifest_bytes": length,
        "manifest_kb": length / 1e3,
        "held_bytes": held,
        "held_kb": held / 1e3,
        "told_bytes": told_bytes,
        "live_files": len(names),
        "open_seconds": min(opens),
        **asks,
    }


def _epochs(store: Any, partitions: int, epochs: int, asking: _Asking | None) -> tuple[list[float], list[Any], Any]:
    """Return the milliseconds of the driver's part of each epoch, the last receipts, and the requests to a bucket."""
    from ddflow.partitions.commit import DriverOptions, EpochDriver

    rng, finishes, told = np.random.default_rng(partitions), list[float](), list[Any]()
    tasks, once, parts = Counter[str](), Counter[str](), dict[tuple[int, int], Any]()
    driver = EpochDriver.open(receipts.flow(), store, DriverOptions(partitions=partitions))
    for epoch in range(epochs):
        start = driver.begin()
        if asking is not None:
            asking.counts = tasks if epoch else Counter()
        told = receipts.epoch_of(driver.cut, start, parts, receipts.rows_of(partitions * receipts.ROWS, rng))
        if asking is not None:
            asking.counts = once if epoch else Counter()
        began = time.perf_counter()
        driver.finish(start, told)
        finishes.append((time.perf_counter() - began) * 1e3)
    for part in parts.values():
        part.close()
    driver.close()
    later = max(epochs - 1, 1)
    asks = {
        "task_requests": {name: tasks[name] / later / (2 * partitions) for name in scale_model.PRICES},
        "driver_requests": {name: once[name] / later for name in scale_model.PRICES},
    }
    return finishes, told, asks


class _Putting:
    """A counter of the files that folder stores write, and of their bytes, by file name ending."""

    def __init__(self) -> None:
        self.bytes, self.puts = Counter[str](), Counter[str]()

    def __enter__(self) -> _Putting:
        from ddflow.storage.folder.local import LocalStore

        self._real = LocalStore.put
        counts, real = self, self._real

        def put(store: Any, ending: str, write: Any) -> Any:
            blob = real(store, ending, write)
            counts.bytes[ending] += blob.length
            counts.puts[ending] += 1
            return blob

        LocalStore.put = put  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        from ddflow.storage.folder.local import LocalStore

        LocalStore.put = self._real  # type: ignore[method-assign]


class _Asking:
    """A counter of the requests to a bucket, in ``counts``."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def __enter__(self) -> _Asking:
        from ddflow.storage.memory import MemoryStore

        self._real = {name: getattr(MemoryStore, name) for name in ASKS}
        for name in ASKS:
            setattr(MemoryStore, name, self._counted(name))
        return self

    def _counted(self, name: str) -> Any:
        def asked(*given: Any, **named: Any) -> Any:
            self.counts.update(ASKS[name])
            return self._real[name](*given, **named)

        return asked

    def __exit__(self, *_: object) -> None:
        from ddflow.storage.memory import MemoryStore

        for name, real in self._real.items():
            setattr(MemoryStore, name, real)


def _table(key: Any, rng: Any) -> pa.Table:
    return pa.table({"key": key, "a": rng.integers(0, 2**40, len(key)), "b": rng.integers(0, 2**40, len(key))})


def _sums(engine: Any, keys: int) -> tuple[int, ...]:
    """Return sums over the engine's rows, or only the number of rows if there are too many."""
    if keys > CHECKED_KEYS:
        return (int(engine.stats()["keys"]),)
    rows = engine.read("out")
    return (rows.num_rows, *(pc.sum(rows.column(name)).as_py() for name in ("key", "a", "b")))


def _live(engine: Any) -> tuple[int, int]:
    """Return the number of files in the newest version of the state, and their bytes."""
    from ddflow.engine.garbage import list_version_blobs

    log = engine.durable.log.manifest_log
    lengths = {blob.name: blob.length for blob in list_version_blobs(log.store, log.manifest)}
    return len(lengths), sum(lengths.values())


def _sync_ms(folder: str) -> float:
    """Return milliseconds to write and sync 4 KB."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(30):
            file.write(bytes(4096))
            begun = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - begun) * 1e3)
    return median(took)


BENCH = Scale()
