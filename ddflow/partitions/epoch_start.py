"""The start of an epoch: what the tasks of an epoch start from, as one plain value that travels with them.

Invariant: two tasks with equal starts begin from the same version of the same state and stamp the same times, whenever
and wherever they run, first or again. A task may be run twice, long after, or where another folder is mounted under
the same name; so it says which manifest it means by number and by digest, and every time that a step depends on is
in it and is never asked for. It holds no rows and does nothing.

>>> start = EpochStart(store="s3://shop/orders", trust="owner", number=3, digest="0" * 32, epoch=4, partitions=2,
...             secret=(1, 2), frontier=7, last=6, since=6, time=7, to=7, horizons={}, inventories=(), folder=None,
...             retain=0, memory=None)
>>> start.closes, start._replace(to=2**63 - 1).closes
(False, True)
"""

from collections.abc import Mapping
from typing import NamedTuple

from ddflow.partitions.version import Version
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob
from ddflow.time import CLOSED


def own(memory: int) -> int:
    """Compute the bytes that a part may use of its task's memory: an eighth each goes to rows from Spark, to the
    shuffle reader and to allocators.  Pure."""
    return memory - 3 * (memory // 8)


class Growth(NamedTuple):
    """The new parts of a plan.  ``outputs``: by name.  ``operators``: the ids of operators without state in
    any file."""

    outputs: tuple[str, ...]
    operators: tuple[str, ...]


class EpochStart(NamedTuple):
    """The start of an epoch's tasks; it can be pickled, unless its store is in memory.

    ``store``: the state's address, or the store, where it is in memory.  ``trust``: as in `Flow.open`.  ``number``,
    ``digest``: of the manifest.  ``epoch``: the one that is being made.  ``partitions``: how many.  ``secret``: of the
    state.  ``frontier``, ``last``, ``since``: of the state now.  ``time``: what a step of epoch mode stamps.  ``to``:
    the frontier that a step of hold-back mode closes to, after its rows came.  ``horizons``: by input whose keys
    expire, the greatest order of all partitions at the commit before.  ``inventories``: for each stage, by partition;
    none for a state without a commit.  ``folder``: of Parquet outputs; None where they are files of the state.
    ``retain``: as in `Flow.open`.  ``memory``: bytes that a task may take, or None.  ``past``: of each part, the names
    of the inventories that led to the one it has, as far as the driver knows; a part that was kept open with one of
    these can be brought up to date.  ``growth``: of tasks that take no rows, and make what is new of what is held.
    """

    store: str | MemoryStore
    trust: str
    number: int
    digest: str
    epoch: int
    partitions: int
    secret: tuple[int, int]
    frontier: int
    last: int
    since: int
    time: int
    to: int
    horizons: Mapping[str, int]
    inventories: tuple[tuple[Blob, ...], ...]
    folder: str | None
    retain: int
    memory: int | None
    past: tuple[tuple[tuple[str, ...], ...], ...] = ()
    growth: Growth | None = None

    def inventory(self, stage: int, number: int) -> str:
        """Return the name of the inventory of a part; "" for none."""
        return self.inventories[stage][number].name if self.inventories else ""

    def before(self, stage: int, number: int) -> tuple[str, ...]:
        """Return the names of the inventories that led to this part's one, in order."""
        return self.past[stage][number] if self.past else ()

    @property
    def version(self) -> Version:
        """The version of the state."""
        return Version(self.store, self.trust, self.number, self.digest)

    @property
    def closes(self) -> bool:
        """Whether its step closes all times."""
        return self.to == CLOSED > self.frontier
