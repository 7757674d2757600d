"""Keep partitions of a state open in a worker from one task to the next.

A task takes a partition out of the cache, so only one task at a time has it. The task gets the partition only if the
partition has the inventory that the task needs. Spark may kill a task at any time, so the task puts the partition back
only after it has sent its receipt. Every epoch uses all partitions in turn. If not all partitions fit, the cache keeps
the partitions that it has. If it evicted the least recently used partition instead, no task would find its partition in
the cache. The cache evicts a partition that no task used for `ROUNDS` epochs.

>>> PartCache().nbytes, CacheLimit(512 << 20).compute_bytes(MachineMemory(1 << 30, 0), 0) >> 20
(0, 512)
"""

import os
from collections import OrderedDict
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from ddflow.errors import DdflowError
from ddflow.partitions.step import StagePartition
from ddflow.terminal import format_size

AUTO: Final = "auto"
"""The value of the setting that lets ddflow choose the size of the cache from the executor's memory."""
ROUNDS: Final = 16
"""Number of epochs, of all states in the worker, after which an unused partition is evicted."""
SHARE: Final = 50
"""An epoch counts as slow if its tasks spend at least this percentage of their time on opening partitions."""
COLD: Final = 3
"""How many slow epochs (see `SHARE`) in a row are allowed. One more slow epoch gives a warning."""
Key = tuple[Any, ...]
"""Key of a partition: its state first, then the stage, number and other parameters."""


_GROUPS: Final = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Control groups of versions 2 and 1.

Each entry has the folder, the file with the memory limit, the file with the used memory, and the name of the cached
bytes in ``memory.stat``.
"""


class CachedPart(NamedTuple):
    """An open partition, its size in bytes, and the number of the round (epoch) in which it was added."""

    part: StagePartition
    nbytes: int
    round: int


class PartCache:
    """A cache of partitions by key, with the least recently used partition first. Only one thread may use it at a time.

    >>> from types import SimpleNamespace
    >>> def part(name: str) -> StagePartition:
    ...     return SimpleNamespace(at=name, close=lambda: None)
    >>> cache, found = PartCache(), []
    >>> for epoch in range(4):  # a scan of four parts, of which two fit
    ...     for number in range(4):
    ...         found.append(cache.take(("state", number), ["a"]) is not None)
    ...         cache.put(("state", number), part("a"), 10, most=25, epoch=epoch)
    >>> sum(found), cache.nbytes
    (6, 20)
    """

    def __init__(self) -> None:
        self._parts: OrderedDict[Key, CachedPart] = OrderedDict()
        self._epochs, self._round = dict[Any, int](), 0

    @property
    def nbytes(self) -> int:
        """The number of bytes of all partitions."""
        return sum(each.nbytes for each in self._parts.values())

    def take(self, key: Key, held: Collection[str]) -> StagePartition | None:
        """Remove and return the partition of a key if it has one of the inventories in ``held``. O(held).

        If the partition of this key has an inventory that is not in ``held``, close the partition. Return None if there
        is no usable partition.
        """
        cached = self._parts.pop(key, None)
        if cached is None:
            return None
        if cached.part.at in held:
            return cached.part
        close_part(cached.part)
        return None

    def put(self, key: Key, part: StagePartition, nbytes: int, most: int, epoch: int) -> None:
        """Add a partition, if all partitions then fit into ``most`` bytes. O(partitions).

        Otherwise close partitions until all open partitions fit. The first to close are partitions that were unused for
        `ROUNDS` epochs, then the new partition, then the most recently added ones.
        """
        if self._epochs.get(key[0], -1) < epoch:
            self._epochs[key[0]] = epoch
            self._round += 1
        self.take(key, ())
        self._parts[key] = CachedPart(part, nbytes, self._round)
        while self._parts and self.nbytes > most:
            stale = next(iter(self._parts.values())).round + ROUNDS < self._round
            close_part(self._parts.popitem(last=not stale)[1].part)

    def clear(self) -> None:
        """Close all partitions."""
        while self._parts:
            close_part(self._parts.popitem()[1].part)


class MachineMemory(NamedTuple):
    """The memory of the machine or container in bytes: the total, and the free part.

    Other processes use this memory too.
    """

    total: int
    available: int


class CacheLimit(NamedTuple):
    """The limit on the open partitions of a worker.

    ``fixed``: the limit in bytes, if the user chose one. ``workers``: the number of workers that share the memory of an
    executor. ``granted``: the memory that Spark grants to all workers of an executor outside of its JVM, if limited.
    """

    fixed: int | None
    workers: int = 1
    granted: int | None = None

    def compute_bytes(self, memory: MachineMemory, cached: int) -> int:
        """Compute the current limit in bytes. ``cached``: the bytes of this worker's cache now. Pure.

        If there is no ``fixed`` limit, the cache may use at most a quarter of the worker's share of the memory. The
        cache leaves an eighth of the machine's memory free.

        >>> CacheLimit(None, 2).compute_bytes(MachineMemory(16 << 30, 12 << 30), 0) >> 20  # of 16 GB, two cores
        2048
        >>> CacheLimit(None, 2).compute_bytes(MachineMemory(16 << 30, 3 << 30), 100 << 20) >> 20  # with others
        612
        >>> CacheLimit(None, 4, 1600 << 20).compute_bytes(MachineMemory(64 << 30, 50 << 30), 0) >> 20  # of Kubernetes
        100
        >>> CacheLimit(512 << 20).compute_bytes(MachineMemory(1 << 30, 0), 0) >> 20
        512
        """
        if self.fixed is not None:
            return self.fixed
        total = memory.total if self.granted is None else min(memory.total, self.granted)
        free = max(memory.available - memory.total // 8, 0) // self.workers
        return min(total // 4 // self.workers, cached + free)


def measure_machine_memory(root: Path = Path("/")) -> MachineMemory:
    """Measure the memory of the machine, or of the container if the container has less memory. O(1)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = total // 2
    with suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
        available = {name: int(size) << 10 for name, size, *_ in lines}["MemAvailable:"]
    group, *names = next((each for each in _GROUPS if (root / each[0] / each[1]).exists()), _GROUPS[0])
    with suppress(OSError, ValueError):
        most, used = (int((root / group / name).read_text()) for name in names[:2])
        cache = dict(line.split() for line in (root / group / "memory.stat").read_text().splitlines())
        if most < total:
            total, available = most, min(available, most - used + int(cache.get(names[2], 0)))
    return MachineMemory(total, max(available, 0))


class CacheMissMonitor:
    """A detector of states whose epochs spend most of their time on opening partitions again."""

    def __init__(self) -> None:
        self._epochs = dict[str, int]()

    def __call__(self, state: str, figures: Mapping[str, int], given: str | int | None) -> str | None:
        """Return a warning or None. There is at most one warning for each state.

        ``figures``: the figures of an epoch. ``given``: the option ``part_cache`` as the user wrote it.

        >>> watch, figures = CacheMissMonitor(), {"miss": 19, "hit": 1, "parts": 520_000_000, "part_cache": 128_000_000}
        >>> said = [watch("state", figures | {"open": 91, "step": 9}, "auto") for _ in range(9)]
        >>> [each is not None for each in said]
        [False, False, False, True, False, False, False, False, False]
        >>> print(*said[3].split("; "), sep=";\\n")
        19 of 20 parts of the state were opened again in each of the last 3 epochs, 91 % of the time of tasks;
        they take 520.0 MB, but a worker keeps only 128.0 MB open (part_cache='auto');
        pass part_cache='651MB' if each Python worker of an executor may use that much, or give executors more memory
        """
        missed, size, most = (figures.get(name, 0) for name in ("miss", "parts", "part_cache"))
        needed = missed + figures.get("hit", 0) + figures.get("behind", 0)
        spent, opened = sum(figures.get(name, 0) for name in ("take", "open", "step", "write")), figures.get("open", 0)
        poor = missed * 2 > needed and opened * 100 >= spent * SHARE
        before = self._epochs.get(state, 0)
        self._epochs[state] = before + 1 if before > COLD or poor else 0
        if before != COLD or not poor:
            return None
        keeps = "and a worker may keep"
        remedy = "keep workers alive: check spark.python.worker.reuse and the idle time-out of dynamic allocation"
        if size > most:
            keeps = "but a worker keeps only"
            wanted = f"pass part_cache='{size * 5 // 4 // 1_000_000 + 1}MB'"
            remedy = f"{wanted} if each Python worker of an executor may use that much, or give executors more memory"
        return (
            f"{missed} of {needed} parts of the state were opened again in each of the last {COLD} epochs, "
            f"{opened * 100 // max(spent, 1)} % of the time of tasks; they take {format_size(size)}, "
            f"{keeps} {format_size(most)} open (part_cache={given!r}); {remedy}"
        )


def close_part(part: StagePartition) -> None:
    """Close a partition that is not needed, and ignore errors.

    The files of the partition are in the state, or are garbage there.
    """
    with suppress(DdflowError, OSError):
        part.close()


PARTS: Final = PartCache()
"""The cache of this process, which is a worker."""
WATCH: Final = CacheMissMonitor()
"""The detector of this process, which is the driver."""
