"""Model the cost of a state on many partitions from measured constants, and find the first bottleneck.

A prediction is computed from the constants of one run and from the assumptions below. The report prints these
assumptions. The bytes and the time of a commit grow linearly with the logarithm of the number of keys, because the work
of merges grows in this way. A figure that grows with keys, files or receipts is proportional to their number, or linear
if the figure has a fixed part. The bottleneck is the resource whose use is nearest to its limit. Limits: the model
ignores stragglers, other load, skewed keys, and the time of Spark itself (0.4 s a batch).

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
"""How many seconds of events an epoch contains."""
TASKS: Final = 1000
"""Maximum number of cores for tasks; a partition takes one."""
MEMORY: Final = 16e9
"""Memory limits in bytes: of the driver, and of the tasks on one core."""
ANSWER: Final = 0.03
"""Seconds that a bucket takes for a request; independent requests overlap."""
AT_A_TIME: Final = 64
LISTED: Final = 1000
"""The number of names in one answer to a list request."""
PUTS: Final = 3500
"""Write requests a second that a bucket's prefix accepts."""
FETCHED: Final = 100e6
"""How many bytes a second a core fetches from a bucket after its cache is lost."""
NAME_BYTES: Final = 43
"""Bytes of one entry in the set of file names of a version. The text of a name is shared by all versions."""
PRICES: Final = {"put": 5e-6, "list": 5e-6, "get": 4e-7, "delete": 0.0}
"""Price of a request in US dollars (list prices of 2025, one region, no traffic)."""
VERSIONS: Final = 7
"""Number of versions kept, with epochs of ten seconds and a grace of a minute."""
MANIFEST: Final = 1 << 28
"""Maximum bytes of a manifest."""

ASSUMED: Final = (
    f"Assumed: epochs of {EPOCH:g} s; {TASKS:,} cores for tasks; {MEMORY / 1e9:g} GB for the driver and for each core; "
    f"parts that stay open, on two stages that hold as much; a bucket answers in {ANSWER * 1e3:g} ms, {AT_A_TIME} "
    f"requests at a time, takes {PUTS:,} writes a second, and gives a core {FETCHED / 1e6:g} MB/s; "
    f"{PRICES['put'] * 1e6:g} USD a million puts or lists, {PRICES['get'] * 1e6:g} a million gets, deletes free; no "
    "skew, no stragglers, and none of the time that Spark itself takes."
)
Sample = Mapping[str, Any]


class Constants(NamedTuple):
    """The measured samples of the engine and of the driver, by ascending size.

    Two sizes determine the model; ``last`` is the larger of them.
    """

    engine: list[Sample]
    driver: list[Sample]

    @classmethod
    def of(cls, rows: list[Sample]) -> Constants | None:
        """Take the two smallest sizes of the engine and of the driver from a result.

        Return None if the engine or the driver was measured at fewer than two sizes.
        """
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
"""How the figures of the engine grow with the keys, and those of the driver with the partitions."""


def line(one: tuple[float, float], other: tuple[float, float], at: float, log: bool = False) -> float:
    """Return the value at ``at`` on the straight line through two points.

    With ``log``, the value is linear in the logarithm of ``at``.
    """
    (a, low), (b, high) = one, other
    x, a, b = (log10(at), log10(a), log10(b)) if log else (at, a, b)
    return low + (high - low) * (x - a) / (b - a)


def predicted(samples: list[Sample], part: str, figure: str, size: float) -> float:
    """Predict a figure at another size from two samples.

    For a size below both samples, a linear figure is proportional to the size.
    """
    one, other = ((each["size"], each[figure]) for each in samples)
    if size < one[0] and GROWTH[part][figure] == "line":
        return one[1] * size / one[0]
    return max(line(one, other, size, GROWTH[part][figure] == "log"), 0.0)


def worst(shares: Mapping[str, float]) -> tuple[float, str]:
    """Return the largest used share of a limit, and the name of the limit."""
    return max((share, what) for what, share in shares.items())


def table(known: Constants) -> Iterator[dict[str, Any]]:
    """Yield a row for each combination of size, number of partitions, rate and storage place."""
    for keys in SIZES:
        for partitions in PARTITIONS:
            for rate in RATES:
                for place in PLACES:
                    yield row(known, keys, partitions, rate, place)


def row(known: Constants, keys: int, partitions: int, rate: int, place: str) -> dict[str, Any]:
    """Compute the cost of one combination."""
    engine, driver = known.engine[-1], known.driver[-1]
    bucket, cores, parts = place == "bucket", min(TASKS, partitions), 2 * partitions
    part_keys, turns = keys / partitions, parts / cores
    asks = {name: driver["task_requests"][name] * parts + driver["driver_requests"][name] for name in PRICES}
    files = parts * (driver["live_files"] / driver["receipts"] + file_growth(known, part_keys))
    # The driver checks new files by name in a folder, and in a bucket by listing all files.
    lists = (files + asks["put"] * VERSIONS) / LISTED if bucket else 0.0
    # First, compute the work of a task, from its rows and files. Next, compute the work of the driver, from its
    # receipts and its manifest.
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
    """Return how many more files a partition of this size has than the small partitions that were measured."""
    one, other = ((each["size"], each["files"]) for each in known.engine)
    return max(line(one, other, keys, log=True), 0.0)
