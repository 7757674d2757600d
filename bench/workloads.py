"""Generate the upsert workloads from seeds, list their known answers, and compute the checksum of updates.

Columns are ``key``, ``val`` (a null deletes the key) and ``time`` (never decreasing, 1000 rows for each time). `wide`
makes the wide rows. Several unrelated programs found each known answer, so a contender with another answer is wrong.

>>> table = build(SHAPES["tiny"])
>>> table.num_rows, table.column_names, table["time"][-1].as_py()
(20000, ['key', 'val', 'time'], 19)
>>> import pyarrow as pa
>>> updates = pa.table({"key": [7], "val": [3], "_time": [0], "_diff": [1]})
>>> both = pa.concat_tables([updates, pa.table({"key": [7], "val": [3], "_time": [0], "_diff": [-1]})])
>>> checksum([updates]) != 0, checksum([both])  # a retraction undoes its assertion, in any order
(True, 0)
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from wide import Wide, build as build_wide


class Shape(NamedTuple):
    """A workload's parameters: ``n`` rows over ``keys`` keys, drawn with ``seed``."""

    n: int
    keys: int
    zipf: float | None = None
    strings: bool = False
    deletes: float = 0.05
    values: int = 1000
    per_time: int = 1000
    seed: int = 0


class Answer(NamedTuple):
    """The known answer of a line on a workload: the number of updates and their checksum in hexadecimal."""

    updates: int
    checksum: str


SHAPES: dict[str, Shape | Wide] = {
    "w1": Shape(10_000_000, 1_000_000),
    "w1s": Shape(1_000_000, 100_000),
    "w1z": Shape(10_000_000, 1_000_000, zipf=1.2),
    "w3": Shape(2_000_000, 200_000, strings=True),
    "w3s": Shape(200_000, 20_000, strings=True),
    "tiny": Shape(20_000, 2_000),
    "tinyz": Shape(20_000, 2_000, zipf=1.2),
    "tiny3": Shape(20_000, 2_000, strings=True),
    "wide": Wide(3_000_000, 1_000_000),
    "tinyw": Wide(12_000, 4_000),
}

# The lines of a workload. `upsert` gives the updates of the rows, and the next three lines add operators to it.
# `backfill` is `upsert` in a single step. `epoch` is one step in epoch mode; its updates insert each live row once.
LINES = ("upsert", "filter", "count", "filter+count", "backfill", "epoch")

# Number of updates and checksum. The dict loop, numpy, and SQL queries over numpy's updates gave the same figures. Two
# numpy programs computed the answers of `epoch`. The answers for wide rows were computed from the versions alone and by
# DuckDB. `input` is the xxh3-64 of the input's columns, drawn by numpy 2.4.
_TABLES = """
       upsert                     filter                    count                      filter+count
w1     18023791 b10ff7993cdd8f69  1803420 a226ea80278695af  13460296 87449fc0160685cb  1345758 8b3e7b9eab2b3cbe
w1s    1793799 12c6f93100aff722   179718 78800040ca5a698f   1344234 11d2dac932109159   134834 d192520192c2c771
w1z    7357282 414a98f0c2cd07d8   735731 8e450d75027f5dd4   9087632 90d638126feae003   907684 6c8c628a5eb5e003
w3     3597457 2774ccc50edce550   - -                       2689614 cf5754692c59be9d   - -
w3s    351447 26fdbd562b8924d3    - -                       265186 b783d6a531f3df75    - -
tiny   27874 67d1f17ceb2c8e2e     2852 1bb05f1c42cb08e3     20911 cdb0d1243adc6840     2115 ef857951fa2e5320
tinyz  12998 bcf93d1cfc259f1a     1352 8453fbff8787f235     13866 24e3442b8017e833     1378 2cc4e9bbaa545d1f
tiny3  27874 67d1f17ceb2c8e2e     - -                       20911 cdb0d1243adc6840     - -
wide   2998990 935d8e55ef54a031   - -                       - -                        - -
tinyw  11444 2972cfc9eb88c2de     - -                       - -                        - -

       epoch                     input
w1     950055 063a79450424b977   - ad9634b28bb1c099
w1s    95109 c47af85371327d98    - a795302d65b15ea1
w1z    591284 708a3234163c91d5   - 5210d0a994914946
w3     190055 4e9d8157a80b9f05   - 4b87291462ce8ecd
w3s    19057 ef1a46d58401c487    - 7ac4988ad06359f9
tiny   1920 cac3c806c6f85884     - 9264972868bcbf83
tinyz  1810 1272369f39bc8bff     - 7fe61cb758d87195
tiny3  1920 cac3c806c6f85884     - 9264972868bcbf83
wide   1000000 6177b453fa1c641b  - 3d47064a5b12b375
tinyw  4000 7ed27e20e902e0b0     - 900322c88b76bfab
"""


def _known() -> dict[tuple[str, str], Answer]:
    """Parse the tables above by workload and line."""
    known: dict[tuple[str, str], Answer] = {}
    for table in _TABLES.strip().split("\n\n"):
        heading, *rows = (row.split() for row in table.splitlines())
        for name, *cells in rows:
            for line, updates, checksum in zip(heading, cells[::2], cells[1::2], strict=True):
                if checksum != "-":
                    known[name, line] = Answer(0 if updates == "-" else int(updates), checksum)
    return known


KNOWN = _known()


def kind(name: str) -> str:
    """Return the kind of a workload's rows: ``ints``, ``texts`` or ``wide``; raise KeyError for an unknown name."""
    shape = SHAPES[name]
    return "wide" if isinstance(shape, Wide) else "texts" if shape.strings else "ints"


def lines(name: str) -> tuple[str, ...]:
    """Return the lines that make sense on a workload."""
    wide = ("upsert", "backfill", "epoch")
    return {"ints": LINES, "texts": ("count", *wide), "wide": wide}[kind(name)]


def answer(name: str, line: str) -> Answer | None:
    """Return the known answer or None. The answer for one step is the same as for many steps."""
    return KNOWN.get((name, "upsert" if line == "backfill" else line))


def build(shape: Shape | Wide) -> pa.Table:
    """Make a workload in memory, with one chunk for each column. O(n) time.

    numpy draws the numbers. If a new version of numpy draws other random numbers, `fingerprint` shows that the *input*
    has changed.
    """
    if isinstance(shape, Wide):
        return build_wide(shape)
    rng = np.random.default_rng(shape.seed)
    if shape.zipf is None:
        key = rng.integers(0, shape.keys, shape.n)
    else:
        key = (rng.zipf(shape.zipf, shape.n) - 1) % shape.keys
    val = rng.integers(0, shape.values, shape.n)
    gone = rng.random(shape.n) < shape.deletes
    time = np.arange(shape.n, dtype=np.int64) // shape.per_time
    return pa.table([*columns(key, val, gone, shape.strings), pa.array(time)], names=["key", "val", "time"])


def columns(key: Any, val: Any, gone: Any, strings: bool) -> tuple[pa.Array, pa.Array]:
    """Return the key and the value as Arrow arrays.

    The arrays are int64, or text of 14 and 9 bytes. Values are null where ``gone``.
    """
    if not strings:
        return pa.array(key.astype("int64")), pa.array(val.astype("int64"), mask=gone)
    vals = pc.if_else(pa.array(gone), pa.scalar(None, pa.string()), _text("city-", val, 4))
    return _text("user-", key, 9), vals


def _text(prefix: str, numbers: Any, width: int) -> pa.Array:
    padded = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), width=width, padding="0")
    return pc.binary_join_element_wise(pa.scalar(prefix), padded, "")


def folder() -> Path:
    """Return the folder of generated workloads: ``$DDFLOW_BENCH_DATA``, else the user's cache directory."""
    if given := os.environ.get("DDFLOW_BENCH_DATA"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ddflow-bench"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddflow-bench"


def load(name: str) -> pa.Table:
    """Return the workload ``name`` as a table of one chunk. The file is read and not mapped, so the pages are resident.

    The workload is made and stored on first use. Raises KeyError for an unknown name.
    """
    path = folder() / f"{name}-{SHAPES[name].seed}.arrow"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        table = build(SHAPES[name])
        descriptor, scratch = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(descriptor)
        with pa.OSFile(scratch, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        os.replace(scratch, path)  # an interrupted run leaves no partial workload
    with pa.OSFile(str(path), "rb") as source:
        return pa.ipc.open_file(source).read_all().combine_chunks()


def fingerprint(table: pa.Table) -> str:
    """Return the xxh3-64 of the values, column after column, with nulls as -1.

    Equal rows give the same result on any machine.
    """
    digest = xxhash.xxh3_64()
    for column in table.columns:
        for chunk in column.chunks:
            digest.update(_numbers(chunk).tobytes())
    return digest.hexdigest()


def checksum(updates: Iterable[pa.Table], rows: int = 1_000_000) -> int:
    """Return the sum of ``diff * mix(a*A + b*B + ... + time*T)`` over the updates, modulo 2^64, in any order.

    ``a``, ``b`` and so on are the row's columns: text counts as its digits, floats as their bits. ``_time`` and
    ``_diff`` are the last two columns. ``mix`` is splitmix64's finalizer. O(n) time, with memory for a few arrays of
    ``rows`` rows.
    """
    total = 0
    for table in updates:
        for batch in table.to_batches(max_chunksize=rows):
            total += _mixed(batch)
    return total % 2**64


def summed(updates: Iterable[pa.Table]) -> Answer:
    """Return the number of updates and their checksum."""
    kept = list(updates)
    return Answer(sum(table.num_rows for table in kept), f"{checksum(kept):016x}")


def _mixed(batch: pa.RecordBatch) -> int:
    *data, time, diff = (_numbers(column).view(np.uint64) for column in batch.columns)
    z = time * np.uint64(0x94D049BB133111EB)
    for place, column in enumerate(data):
        z += column * np.uint64(_factor(place))
    return int(np.sum(_finalized(z) * diff, dtype=np.uint64))


def _factor(place: int) -> int:
    """Return the multiplier, an odd number, of the row's column at ``place``."""
    given = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)
    if place < len(given):
        return given[place]
    return int(_finalized(np.array([place], np.uint64))[0]) | 1


def _finalized(z: Any) -> Any:
    """Apply splitmix64's finalizer to uint64[n], in place."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _numbers(column: pa.Array) -> Any:
    """Convert a column to int64.

    A text such as ``name-7`` becomes its number, a float becomes its bits, and null becomes -1.
    """
    if pa.types.is_floating(column.type):
        return pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False).view(np.int64)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.cast(pc.utf8_slice_codeunits(pc.cast(column, pa.large_string()), 5), pa.int64())
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("us"))
    return pc.fill_null(pc.cast(column, pa.int64()), -1).to_numpy(zero_copy_only=False)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array. ``combine_chunks`` is not used for a single chunk, because it would copy."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def slices(table: pa.Table, step: int) -> Iterator[pa.Table]:
    """Yield the table in slices of ``step`` rows, without a copy."""
    for start in range(0, table.num_rows, step):
        yield table.slice(start, step)
