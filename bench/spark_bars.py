"""The bars of the Spark bench: what ddflow must reach beside Spark's own, from the results of one run.

Invariant: as in ``bars``: a ratio is of two figures of one run, and one that was not run is left out. The slow peers
took a part of the workload that ddflow took whole, so their rate flatters them (their state is smaller) and stands as
it is; what is told as "within so many times the floor" is the floor's rate turned round; and state on disk is compared
after the same rows only.

>>> rows = [{"line": "stream-100k", "workload": "w1", "contender": name, "query": "upsert", "rows": 10**7,
...          "m_rows_per_s": rate, "median_batch_ms": 1.0, "live": [1]}
...         for name, rate in (("ddflow", 2), ("floor", 3))]
>>> for bar in bars_of_spark(rows):
...     print(bar.line, bar.ours, bar.peer, round(bar.ratio, 2), round(bar.needed, 2), bar.met)
w1 stream-100k upsert 2.000 M/s w1 floor 3.0000 0.67 0.67 True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bars import Bar

Key = tuple[str, str, str, str]  # line, workload, contender, query
Rows = Mapping[Key, Mapping[str, Any]]

# Ours, the peer, how many times its rate we must have.
NEEDS: tuple[tuple[Key, Key, float], ...] = (
    (("batch", "w1", "ddflow", "upsert"), ("batch", "w1", "ceiling", "upsert"), 0.4),
    (("batch", "w1", "ddflow", "upsert"), ("batch", "w1", "lag", "upsert"), 1.2),
    (("stream-100k", "w1", "ddflow", "upsert"), ("stream-100k", "w1", "floor", "upsert"), 1 / 1.5),
    (("stream-100k", "w1", "ddflow", "upsert"), ("stream-100k", "w1", "join", "upsert"), 3.0),
    (("stream-100k", "w1s", "ddflow", "upsert"), ("stream-100k", "w1s", "transform-pandas", "upsert"), 100.0),
    (("stream-100k", "w1s", "ddflow", "upsert"), ("stream-100k", "w1s", "rows", "upsert"), 20.0),
    (("stream-100k", "w1s", "ddflow", "upsert"), ("stream-100k", "w1s", "join", "upsert"), 3.0),
    (("stream-100k", "w1", "ddflow", "count"), ("stream-100k", "w1", "ddflow", "upsert"), 0.5),
    (("stream-1m", "w1", "ddflow", "count"), ("stream-1m", "w1", "ddflow", "upsert"), 0.5),
)
LARGE_BATCHES = 0.7  # million rows a second in batches of a million
SMALL_OVER_MS = 150.0  # that a small batch may take over the floor's
STATE_PART = 0.5  # of what RocksDB takes for the same rows
ROCKSDB = ("rows", "apply-pandas", "transform-pandas")


def bars_of_spark(results: Sequence[Mapping[str, Any]]) -> Iterator[Bar]:
    """The bars that the rows of a run say something about."""
    rows: dict[Key, Mapping[str, Any]] = {}
    for row in results:
        key = (row["line"], row["workload"], row["contender"], row["query"])
        if key not in rows or rows[key]["rows"] < row["rows"]:
            rows[key] = row
    yield from _rates(rows)
    yield from _alone(rows)
    yield from _states(results)


def _rates(rows: Rows) -> Iterator[Bar]:
    for ours, theirs, times in NEEDS:
        if ours in rows and theirs in rows:
            mine, peer = rows[ours]["m_rows_per_s"], rows[theirs]["m_rows_per_s"]
            ratio = mine / peer
            line, workload, _, query = ours
            of = f"{theirs[1]} {theirs[2]}" + (" upsert" if theirs[3] != query else "")
            yield Bar(
                f"{workload} {line} {query}", f"{mine:.3f} M/s", "", f"{of} {peer:.4f}", ratio, times, ratio >= times
            )


def _alone(rows: Rows) -> Iterator[Bar]:
    large = rows.get(("stream-1m", "w1", "ddflow", "upsert"))
    if large is not None:
        rate = large["m_rows_per_s"]
        yield Bar(
            "w1 stream-1m upsert", f"{rate:.3f} M/s", f"{LARGE_BATCHES} M/s", "", None, None, rate >= LARGE_BATCHES
        )
    ours, floor = (rows.get(("small", "small", name, "upsert")) for name in ("ddflow", "floor"))
    if ours is not None and floor is not None:
        mine, least = ours["median_batch_ms"], floor["median_batch_ms"]
        yield Bar(
            "1 k rows on the state",
            f"{mine:.0f} ms",
            f"{SMALL_OVER_MS:.0f} ms over",
            f"floor {least:.0f} ms",
            None,
            None,
            mine - least <= SMALL_OVER_MS,
        )


def _states(results: Sequence[Mapping[str, Any]]) -> Iterator[Bar]:
    same: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in results:
        if row["contender"] == "ddflow" and row["query"] == "upsert":
            same[row["line"], row["workload"], row["rows"]] = row
    for row in results:
        ours = same.get((row["line"], row["workload"], row["rows"]))
        if row["contender"] in ROCKSDB and ours is not None:
            mine, theirs = median(ours["live"]), median(row["live"])
            line = f"state on disk, {row['workload']}, {row['rows'] / 1000:,.0f} k rows"
            yield Bar(
                line,
                f"{mine / 1e6:.2f} MB",
                f"{STATE_PART} of it",
                f"{row['contender']} {theirs / 1e6:.2f} MB",
                None,
                None,
                mine <= STATE_PART * theirs,
            )
