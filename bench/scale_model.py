"""The model of scale: what a state of many partitions costs, from constants that were measured, and where it breaks.

Invariant: a prediction is arithmetic on constants of one run and on the assumptions below, which are printed with it.
What grows with the logarithm of keys (bytes and time of a commit, because merges do) is a line through two measured
sizes; what grows with keys, files or receipts is in proportion to the larger of the two, or a line where there is a
part that does not grow. *Where it breaks first* is the resource with the greatest share of its limit in use. Limits: it
knows of no stragglers, no other load, no skew of keys, and no time that Spark itself takes (0.4 s a batch).

>>> line((10, 1.0), (1000, 3.0), 100, log=True), line((10, 1.0), (20, 2.0), 40)
(2.0, 4.0)
>>> share, what = worst({"memory": 0.5, "cores": 2.0})
>>> what, share
('cores', 2.0)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log10
from typing import Any, Final, NamedTuple

SIZES: Final = (10**9, 10**10)
PARTITIONS: Final = (10**3, 10**4)
RATES: Final = (10**6, 10**7)
PLACES: Final = ("folder", "bucket")

EPOCH: Final = 10.0
"""Seconds of events that an epoch has."""
TASKS: Final = 1000
"""Cores that run tasks, at most; a partition takes one."""
MEMORY: Final = 16e9
"""Bytes that the driver may hold, and each core's tasks."""
ANSWER: Final = 0.03
"""Seconds that a bucket takes for a request; many go on at a time where they do not wait for each other."""
AT_A_TIME: Final = 64
LISTED: Final = 1000
"""Names in one answer to a list."""
PUTS: Final = 3500
"""Requests a second that a prefix of a bucket takes, of those that write."""
FETCHED: Final = 100e6
"""Bytes a second that a core fetches from a bucket whose cache is lost."""
NAME_BYTES: Final = 43
"""Bytes of a name's place in the set of a version; the name itself is shared by versions."""
PRICES: Final = {"put": 5e-6, "list": 5e-6, "get": 4e-7, "delete": 0.0}
"""US dollars a request (list prices of 2025, one region, no traffic)."""
VERSIONS: Final = 7
"""Versions that are kept with epochs of ten seconds and a grace of a minute."""
MANIFEST: Final = 1 << 28
"""Bytes of a manifest, at most."""

ASSUMED: Final = (
    f"Assumed: epochs of {EPOCH:g} s; {TASKS:,} cores for tasks; {MEMORY / 1e9:g} GB for the driver and for each core; "
    f"parts that stay open, on two stages that hold as much; a bucket answers in {ANSWER * 1e3:g} ms, {AT_A_TIME} "
    f"requests at a time, takes {PUTS:,} writes a second, and gives a core {FETCHED / 1e6:g} MB/s; "
    f"{PRICES['put'] * 1e6:g} USD a million puts or lists, {PRICES['get'] * 1e6:g} a million gets, deletes free; no "
    "skew, no stragglers, and none of the time that Spark itself takes."
)
Sample = Mapping[str, Any]


class Constants(NamedTuple):
    """The measured samples, by what they are of and size, ascending.  ``last``: the larger of the two that count."""

    engine: list[Sample]
    driver: list[Sample]

    @classmethod
    def of(cls, rows: list[Sample]) -> Constants | None:
        """Those of a result: the two smallest sizes of either; None where there are fewer."""
        engine, driver = (sorted((r for r in rows if r["part"] == p), key=lambda r: r["size"])[:2] for p in PARTS)
        return cls(engine, driver) if len(engine) == len(driver) == 2 else None


PARTS: Final = ("engine", "driver")
GROWTH: Final = {
    "engine": {
        "state_bytes": "line",
        "memory_bytes": "line",
        "reopen_seconds": "line",
        "written": "log",
        "epoch_cpu_ms": "log",
    },
    "driver": {
        "finish_ms": "line",
        "manifest_bytes": "line",
        "held_bytes": "line",
        "told_bytes": "line",
        "open_seconds": "line",
    },
}
"""How the figures of a part grow with its size: keys, or partitions."""


def line(one: tuple[float, float], other: tuple[float, float], at: float, log: bool = False) -> float:
    """The value at a place of the line through two points, whose places may be taken by their logarithm."""
    (a, low), (b, high) = one, other
    x, a, b = (log10(at), log10(a), log10(b)) if log else (at, a, b)
    return low + (high - low) * (x - a) / (b - a)


def predicted(samples: list[Sample], part: str, figure: str, size: float) -> float:
    """A figure at another size, from the samples at two; below both in proportion, where it is no logarithm."""
    one, other = ((each["size"], each[figure]) for each in samples)
    if size < one[0] and GROWTH[part][figure] == "line":
        return one[1] * size / one[0]
    return max(line(one, other, size, GROWTH[part][figure] == "log"), 0.0)


def worst(shares: Mapping[str, float]) -> tuple[float, str]:
    """The greatest share of a limit, and whose it is."""
    return max((share, what) for what, share in shares.items())


def table(known: Constants) -> Iterator[dict[str, Any]]:
    """A row for each size, number of partitions, rate and place."""
    for keys in SIZES:
        for partitions in PARTITIONS:
            for rate in RATES:
                for place in PLACES:
                    yield row(known, keys, partitions, rate, place)


def row(known: Constants, keys: int, partitions: int, rate: int, place: str) -> dict[str, Any]:
    """What one of them costs."""
    engine, driver = known.engine[-1], known.driver[-1]
    bucket, cores, parts = place == "bucket", min(TASKS, partitions), 2 * partitions
    part_keys, turns = keys / partitions, parts / cores
    asks = {name: driver["task_requests"][name] * parts + driver["driver_requests"][name] for name in PRICES}
    files = parts * (driver["live_files"] / driver["receipts"] + file_growth(known, part_keys))
    # The driver looks whether new files are there: name by name in a folder, in a bucket by lists of all that are.
    lists = (files + asks["put"] * VERSIONS) / LISTED if bucket else 0.0
    # What a task does: its rows, its files.  Then the driver: its receipts, its manifest.
    compute = engine["epoch_cpu_ms"] / 1e3 / engine["rows"] * rate * EPOCH / partitions
    wait = ANSWER if bucket else engine["sync_ms"] / 1e3
    write = driver["task_requests"]["put"] * wait
    finish = predicted(known.driver, "driver", "finish_ms", partitions) / 1e3
    commit = write + finish + (driver["driver_requests"]["put"] * wait + lists / AT_A_TIME * ANSWER)
    manifest = predicted(known.driver, "driver", "manifest_bytes", partitions)
    of_file = driver["held_bytes"] / driver["live_files"]
    held = files * (of_file + VERSIONS * NAME_BYTES) + predicted(known.driver, "driver", "told_bytes", partitions)
    core = predicted(known.engine, "engine", "memory_bytes", part_keys) * turns
    recovery = predicted(known.driver, "driver", "open_seconds", partitions)
    recovery += predicted(known.engine, "engine", "reopen_seconds", part_keys) * turns
    if bucket:
        recovery += parts / AT_A_TIME * ANSWER
        recovery += predicted(known.engine, "engine", "state_bytes", part_keys) * turns / FETCHED
    shares = {
        "cores for tasks": (compute + write) * turns / EPOCH,
        "the driver's commit": commit / EPOCH,
        "memory of the driver": held / MEMORY,
        "memory of a core": core / MEMORY,
        "bytes of a manifest": manifest / MANIFEST,
        **({"writes to the bucket": asks["put"] / EPOCH / PUTS} if bucket else {}),
    }
    share, what = worst(shares)
    day = {name: n * 86_400 / EPOCH for name, n in (asks | {"list": asks["list"] + lists}).items()}
    return {
        "part": "model",
        "keys": keys,
        "partitions": partitions,
        "rate_m": rate / 1e6,
        "place": place,
        "tasks_s": (compute + write) * turns,
        "commit_s": commit,
        "files": files,
        "requests_m": sum(day.values()) / 1e6 if bucket else 0.0,
        "cost": sum(PRICES[name] * n for name, n in day.items()) if bucket else 0.0,
        "driver_bytes": held,
        "core_bytes": core,
        "recovery_s": recovery,
        "share": share,
        "first": what,
    }


def file_growth(known: Constants, keys: float) -> float:
    """Files of a partition of so many keys beyond those of the small parts that the driver was measured with."""
    one, other = ((each["size"], each["files"]) for each in known.engine)
    return max(line(one, other, keys, log=True), 0.0)
