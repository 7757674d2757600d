"""Parse sizes such as "512MB", and divide an engine's memory budget into shares.

The budget counts indexes, batches, pending events, scratch and the outputs of a step. The budget counts neither the
caller's input nor the memory of Python itself. Without a spill folder, a step that would make the state exceed the
budget is refused before anything changes. With a spill folder, state, pending events and outputs go to files, and large
steps are computed in pieces. State, pending events and outputs cannot go to files in the middle of a piece. So state,
pending events and outputs each have a share of the budget. Before and after a step, each must fit in its share. A
fourth share covers the growth during a step.

>>> parse_size("512MB"), parse_size("2 GiB"), parse_size(100)
(512000000, 2147483648, 100)
>>> MemoryBudget(parse_size("128MB"), None).state
64000000
"""

import re
from os import PathLike
from typing import Final, cast

from ddflow.errors import BudgetExceeded, ErrorText, Option, SpecError
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.scratch import ScratchStore
from ddflow.storage.protocol import Store
from ddflow.terminal import format_size

UNITS: Final = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
LEAST: Final = 16_000_000
"""The smallest allowed budget with a spill folder.

The smallest budget is enough for pieces of a few thousand events and for the merges of these pieces.
"""
SCRATCH: Final = 320
"""The bytes of scratch memory for each event of a piece, in addition to three times the bytes of the event's row.

Scratch memory contains identities, sort keys, held rows and versions.
"""


class MemoryBudget:
    """The memory budget of an engine, and the folder to which state is spilled.

    ``memory``: the total bytes; None for no budget. ``spill``: the folder to spill to, or None. ``state``: the store of
    a durable state, which provides a folder if ``spill`` is None. ``scratch``: the store for results of a call that
    exceed their share. ``home``: the store for state and pending events. ``home`` equals ``scratch``, unless the state
    is durable.

    Raises `SpecError` before the folder is opened if the budget is too small. Also raises the errors of `ScratchStore`.
    """

    def __init__(self, memory: int | None, spill: str | PathLike[str] | None, state: Store | None = None) -> None:
        if spill is not None and memory is None:
            raise SpecError(
                f"spill={str(spill)!r}",
                "there is no budget, so nothing would be spilled",
                ErrorText("pass ", Option("memory"), " too, such as '512MB'"),
            )
        self.memory, self.scratch = memory, cast(BatchStore | None, None)
        if memory is not None and (spill is not None or state is not None):
            if memory < LEAST:
                raise SpecError(
                    f"memory={format_size(memory)}",
                    "that is too small",
                    f"with spill=, use {format_size(LEAST)} or more",
                )
            self.scratch = BatchStore(
                state.open_scratch_store() if spill is None and state is not None else ScratchStore(spill)
            )
        self.home = self.scratch
        total = memory or 0
        self.state, self.pending, self.buffered, self.piece = total // 2, total // 8, total // 8, total // 4
        self.chunk = self.pending // 4

    @property
    def can_spill(self) -> bool:
        """Whether state can be spilled to a folder."""
        return self.scratch is not None

    def close(self) -> None:
        """Remove the scratch files. A second call does nothing."""
        if self.scratch is not None:
            self.scratch.store.close()

    def compute_max_rows(self, width: float) -> int:
        """Return the maximum number of events in a piece. ``width``: the average bytes of a row."""
        return max(int(self.piece / (SCRATCH + 3 * width)), 1024)

    def check_state_size(self, needed: int) -> None:
        """Raise `BudgetExceeded` if the state would exceed the budget and there is no spill folder."""
        if self.memory is not None and not self.can_spill and needed > self.memory:
            found = f"the state would take {format_size(needed)}, but the budget is {format_size(self.memory)}"
            remedy = ErrorText(
                "open with a larger ", Option("memory"), ", or pass a folder as spill=; nothing was changed"
            )
            raise BudgetExceeded("a step", found, remedy)


def parse_size(given: str | int | None, option: str = "memory=") -> int | None:
    """Convert ``"512MB"``, ``"2 GiB"`` or a number to bytes. Return None for None, which means no budget.

    Raises `SpecError`, which names the option.
    """
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given > 0):
        return given
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", given) if isinstance(given, str) else None
    if found is None or found[2].upper() not in UNITS or not float(found[1]):
        raise SpecError(f"{option}{given!r}", "that is not a size", "write it like '512MB' or '2GiB', or pass bytes")
    return int(float(found[1]) * UNITS[found[2].upper()])
