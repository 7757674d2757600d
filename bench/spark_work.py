"""What the Spark bench works on: workloads as Parquet files, the updates they must come to, and who holds how much.

Invariant: every contender reads the same files (a workload whole in one file, or cut into one file a batch), and what
it wrote is read back from its own files and summed; nothing it says of itself is believed. A file stream orders files
by the time they were changed, so these are set; a session is a Python process, a JVM, a daemon and its workers, and
memory is that of all of them, added up (pages that workers share with the daemon count for each). Batches end with a
time (1000 rows a time), so a contender that keeps nothing waiting gives the same updates as one that does. Nothing
here starts a session.

>>> events("small", 8, step=2, keys=6)["key"].to_pylist()  # each key once, then others at random
[2, 3, 0, 5, 4, 1, 5, 1]
>>> written = pa.table({"key": [7], "val": [3], "_time": [0], "_diff": [1]})
>>> with tempfile.TemporaryDirectory() as folder:
...     pq.write_table(written, Path(folder) / "part.parquet")
...     found = answer(folder)
>>> found == workloads.Answer(1, f"{workloads.checksum([written]):016x}")
True
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import workloads

KEYS = 1_000_000  # of state, before the small batches come
ROW_GROUP = 250_000
FIRST_CHANGED = 1_700_000_000  # seconds; file number n of a stream was changed n seconds later


class Job(NamedTuple):
    """What to measure: ``contender`` on the first ``rows`` of a workload, in batches of ``step`` (0: all at once).

    ``query``: ``upsert`` or ``count`` (behind a projection).  ``loaded``: rows of the first batch, where it loads keys;
    0: it is as large as the others.  ``skip``: how many batches come before the counted ones.
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
    """The first ``rows`` upserts; of ``small`` every key once in random order, then random ones, ``step`` a time."""
    if workload != "small":
        return workloads.load(workload).slice(0, rows)
    # A generator for each column, so that fewer rows are the first of more.
    by_key, by_val, by_gone = (np.random.default_rng([keys, number]) for number in range(3))
    key = np.concatenate([by_key.permutation(keys), by_key.integers(0, keys, max(rows - keys, 0))])[:rows]
    val = pa.array(by_val.integers(0, 1000, len(key)), mask=by_gone.random(len(key)) < 0.05)
    return pa.table({"key": key, "val": val, "time": np.maximum(np.arange(len(key)) - keys, -1) // step + 1})


def files(job: Job) -> list[Path]:
    """The job's input as Parquet files, one for each batch, made on first use and kept with the workloads."""
    cut = "whole" if not job.step else f"{job.step}" + (f"-{job.loaded}" if job.loaded else "")
    folder = workloads.folder() / f"spark-{job.workload}-{cut}"
    folder.mkdir(parents=True, exist_ok=True)
    edges = [0, job.loaded or job.step or job.rows]
    while edges[-1] < job.rows:
        edges.append(min(edges[-1] + job.step, job.rows))
    table, paths = None, []
    for number, (start, stop) in enumerate(pairwise(edges)):
        path = folder / f"{number:06d}-{stop - start}.parquet"
        paths.append(path)
        if not path.exists():
            table = table or events(job.workload, job.rows, job.step or 1000, job.loaded or KEYS)
            descriptor, scratch = tempfile.mkstemp(dir=folder, suffix=".part")
            os.close(descriptor)
            pq.write_table(table.slice(start, stop - start), scratch, row_group_size=ROW_GROUP)
            os.utime(scratch, (FIRST_CHANGED + number,) * 2)
            os.replace(scratch, path)
    return paths


def feed(job: Job, folder: str) -> str:
    """A folder with links to the job's files and to nothing else: ``folder``, which is made."""
    os.makedirs(folder)
    for path in files(job):
        os.symlink(path, os.path.join(folder, path.name))
    return folder


def expected(job: Job) -> workloads.Answer:
    """What the updates must come to: known where the workload is whole, else from numpy or, for counts, a dict."""
    shape = workloads.SHAPES.get(job.workload)
    known = workloads.answer(job.workload, job.query) if shape is not None and shape.n == job.rows else None
    if known is not None:
        return known
    from peers import dict_loop, numpy_lexsort

    rows = events(job.workload, job.rows, job.step or 1000, job.loaded or KEYS)
    return summed(dict_loop(rows, "count") if job.query == "count" else numpy_lexsort(rows))


def summed(tables: Any) -> workloads.Answer:
    """How many updates there are in tables, and what they add up to."""
    kept = list(tables)
    return workloads.Answer(sum(table.num_rows for table in kept), f"{workloads.checksum(kept):016x}")


def answer(folder: str) -> workloads.Answer:
    """The same of all Parquet files in a folder and those under it; the columns are the row's, ``_time``, ``_diff``."""
    shown = sorted(path for path in Path(folder).rglob("*.parquet") if not path.name.startswith((".", "_")))
    found = dataset.dataset(shown, format="parquet")
    order = [name for name in ("key", "val", "count", "_time", "_diff") if name in found.schema.names]
    batches = found.to_batches(columns=order)
    return summed(pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)


class Tree:
    """Samples the memory of this process and all under it, added up, from a thread while entered.

    ``resident``, ``private``: the most bytes there ever were of all pages, and of those that are no file's.
    """

    def __init__(self, every: float = 0.25) -> None:
        self.every, self.resident, self.private = every, 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Tree:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(self.every):
            self._look()

    def _look(self) -> None:
        me = psutil.Process()
        every = [_held(process) for process in (me, *me.children(recursive=True))]
        self.resident = max(self.resident, sum(resident for resident, _ in every))
        self.private = max(self.private, sum(private for _, private in every))


def _held(process: psutil.Process) -> tuple[int, int]:
    """Resident bytes of a process, and those of them that are no file's; nothing of one that has ended."""
    try:
        resident = process.memory_info().rss
        said = Path(f"/proc/{process.pid}/status").read_text() if sys.platform == "linux" else ""
    except (psutil.Error, OSError):
        return 0, 0
    anonymous = [int(line.split()[1]) * 1024 for line in said.splitlines() if line.startswith("RssAnon:")]
    return resident, anonymous[0] if anonymous else resident
