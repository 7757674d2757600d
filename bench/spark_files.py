"""Make the input files of the Spark bench, and read back updates and the newest state.

>>> events("small", 8, step=2, keys=6)["key"].to_pylist()  # each key once, then others at random
[2, 3, 0, 5, 4, 1, 5, 1]
>>> ends = revenue(pa.table({"key": [7, 7, 8], "val": [3, 3, 103], "_time": [0, 5, 5], "_diff": [1, -1, 1]}))
>>> sorted(tuple(row.values()) for row in ends.to_pylist())
[(3, 1, 7, 0, 1), (3, 1, 7, 5, -1), (3, 1, 8, 5, 1)]
>>> written = pa.table({"key": [7], "val": [3], "_time": [0], "_diff": [1]})
>>> with tempfile.TemporaryDirectory() as folder:
...     pq.write_table(written, Path(folder) / "part.parquet")
...     answer(folder) == workloads.Answer(1, f"{workloads.checksum([written]):016x}")
True
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import workloads

CITIES = 100
FOREVER = 1 << 40  # a time after all events
REVENUE = ["city", "n", "s", "_time", "_diff"]
KEYS = 1_000_000  # keys in the state before the small batches
ROW_GROUP = 250_000
FIRST_CHANGED = 1_700_000_000  # seconds; file n of a stream has a modification time n seconds later


class Task(NamedTuple):
    """A measurement of ``contender`` on the first ``rows`` rows of a workload.

    Batches have ``step`` rows; 0 means one batch.

    ``query``: ``upsert``, ``count`` (after a projection) or ``revenue`` (a join with cities by value, sums by city).
    ``loaded``: rows of the first batch if it loads keys, else 0.  ``skip``: the number of batches before the counted
    ones.
    """

    line: str
    workload: str
    contender: str
    rows: int
    step: int = 0
    query: str = "upsert"
    loaded: int = 0
    skip: int = 0


def events(workload: str, rows: int, step: int = 1000, keys: int = KEYS) -> pa.Table:
    """Return the first ``rows`` upserts. *small* has every key once in random order, and then random keys.

    *small* has ``step`` random keys a time.
    """
    if workload != "small":
        return workloads.load(workload).slice(0, rows)
    # Each column has its own random generator, so a table with fewer rows is a prefix of a table with more rows.
    by_key, by_val, by_gone = (np.random.default_rng([keys, number]) for number in range(3))
    key = np.concatenate([by_key.permutation(keys), by_key.integers(0, keys, max(rows - keys, 0))])[:rows]
    val = pa.array(by_val.integers(0, 1000, len(key)), mask=by_gone.random(len(key)) < 0.05)
    return pa.table({"key": key, "val": val, "time": np.maximum(np.arange(len(key)) - keys, -1) // step + 1})


def files(task: Task) -> list[Path]:
    """Return the input as Parquet files, one per batch.

    Each file is made when it is first used, in the folder of the workloads.

    Every contender reads the same files. A file stream orders files by modification time, so the files have set times.
    A batch never splits a time, and each time has 1000 rows. So contenders with and without hold-back mode give the
    same updates.
    """
    cut = "whole" if not task.step else f"{task.step}" + (f"-{task.loaded}" if task.loaded else "")
    folder = workloads.folder() / f"spark-{task.workload}-{cut}"
    folder.mkdir(parents=True, exist_ok=True)
    edges = [0, task.loaded or task.step or task.rows]
    while edges[-1] < task.rows:
        edges.append(min(edges[-1] + task.step, task.rows))
    table, paths = None, []
    for number, (start, stop) in enumerate(pairwise(edges)):
        path = folder / f"{number:06d}-{stop - start}.parquet"
        paths.append(path)
        if not path.exists():
            table = table or events(task.workload, task.rows, task.step or 1000, task.loaded or KEYS)
            descriptor, scratch = tempfile.mkstemp(dir=folder, suffix=".part")
            os.close(descriptor)
            pq.write_table(table.slice(start, stop - start), scratch, row_group_size=ROW_GROUP)
            os.utime(scratch, (FIRST_CHANGED + number,) * 2)
            os.replace(scratch, path)
    return paths


def expected(task: Task) -> workloads.Answer:
    """Return the expected answer.

    The answer for a whole workload is known. For a part of a workload, numpy computes the answer, or a dict if the
    query contains a count.
    """
    shape = workloads.SHAPES.get(task.workload)
    known = workloads.answer(task.workload, task.query) if shape is not None and shape.n == task.rows else None
    if known is not None:
        return known
    from peers import dict_loop, numpy_lexsort

    rows = events(task.workload, task.rows, task.step or 1000, task.loaded or KEYS)
    if task.query == "revenue":
        return workloads.summed([revenue(pa.concat_tables(numpy_lexsort(rows)))])
    return workloads.summed(dict_loop(rows, "count") if task.query == "count" else numpy_lexsort(rows))


def cities(values: int = 1000) -> pa.Table:
    """Return a table with the city of each value, which is valid from time 0.

    An extra row with a time far in the future makes all earlier times close.
    """
    of = np.arange(-1, values)
    return pa.table({"of": of, "city": of % CITIES, "time": np.where(of < 0, FOREVER, 0)})


def revenue(updates: pa.Table) -> pa.Table:
    """Compute the updates of a query that counts and sums the keys of each city.

    The input is the updates of (key, val). O(n log n).
    """
    key, val, time, diff = (updates[name].to_numpy() for name in ("key", "val", "_time", "_diff"))
    order = np.lexsort((time, val % CITIES))
    city, time = (val % CITIES)[order], time[order]
    counts, sums = (np.cumsum(each[order]) for each in (diff, diff * key))
    last = np.append((city[1:] != city[:-1]) | (time[1:] != time[:-1]), True)  # the last row of each (city, time)
    city, time, counts, sums = (each[last] for each in (city, time, counts, sums))
    first = np.insert(city[1:] != city[:-1], 0, True)
    before = [np.insert(each[:-1], 0, 0) for each in (counts, sums)]
    start = np.maximum.accumulate(np.where(first, np.arange(len(city)), 0))  # first row of each city
    n, s = counts - before[0][start], sums - before[1][start]
    old = [np.where(first, 0, np.insert(each[:-1], 0, 0)) for each in (n, s)]
    changed = (n != old[0]) | (s != old[1])
    sides = ((changed & (old[0] != 0), *old, -1), (changed & (n != 0), n, s, 1))
    parts = [
        pa.table([city[rows], n[rows], s[rows], time[rows], np.full(rows.sum(), diff)], names=REVENUE)
        for rows, n, s, diff in sides
    ]
    return pa.concat_tables(parts)


def answer(folder: str) -> workloads.Answer:
    """Compute the checksum of the updates in the Parquet files of a folder tree."""
    shown = sorted(path for path in Path(folder).rglob("*.parquet") if not path.name.startswith((".", "_")))
    found = dataset.dataset(shown, format="parquet")
    every = ("key", "val", "count", *REVENUE)
    order = [name for name in every if name in found.schema.names]
    batches = found.to_batches(columns=order)
    return workloads.summed(pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)


def newest(contender: str, folder: str) -> int:
    """Return the bytes of the newest version of a contender's state, or 0 if there is none. Each file counts once.

    All contenders keep older versions for a while, and a bench ends before these versions are deleted.
    """
    if contender == "ddflow":
        return _ddflow(folder)
    if contender != "join":
        return rocksdb(folder)
    numbers = [int(name) for name in os.listdir(folder)] if os.path.isdir(folder) else []
    found = Path(folder, str(max(numbers))).glob("*.parquet") if numbers else ()
    return sum(path.stat().st_size for path in found)


def _ddflow(folder: str) -> int:
    """Return the bytes of the files that the newest manifest of a state names. The outputs are in another folder."""
    from ddflow.engine.garbage import list_version_blobs
    from ddflow.storage.inventory_text import is_state_file
    from ddflow.storage.manifest import load_newest_manifest as newest_manifest
    from ddflow.storage.opening import open_store

    store = open_store(folder, create=False, readonly=True)
    try:
        manifest = newest_manifest(store)
        named = list_version_blobs(store, manifest) if manifest is not None else ()
        return sum({blob.name: blob.length for blob in named if is_state_file(blob)}.values())
    finally:
        store.close()


def rocksdb(folder: str) -> int:
    """Return the bytes of the state folder of a checkpoint.

    For each partition, only the newest archive and the tables that it lists are included.
    """
    archives = sorted(Path(folder).rglob("*.zip"), key=lambda path: int(path.stem))
    total = 0
    for path in {path.parent: path for path in archives}.values():
        with zipfile.ZipFile(path) as archive:
            _, listed = archive.read("metadata").decode().split("\n", 1)
        tables: list[dict[str, Any]] = json.loads(listed)["sstFiles"]
        total += path.stat().st_size + sum(table["sizeBytes"] for table in tables)
    return total
