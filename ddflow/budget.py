"""Sizes that people write, and the budget a step must stay inside.

Invariant: a step is refused before its change is taken in when the state would outgrow the budget, so what was held
stays readable and right.  Counted is what ddflow itself holds: indexes, batches, pending events.  Not counted: the
step's own input and output, and Python.

>>> parse_size("512MB"), parse_size("2 GiB"), parse_size(100)
(512000000, 2147483648, 100)
"""

from __future__ import annotations

import re
from typing import Final

from ddflow.errors import BudgetExceeded, SpecError

UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
                "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def parse_size(given: str | int | None) -> int | None:
    """Bytes of ``"512MB"``, ``"2 GiB"`` or a number; None stays None (no budget).  Raises `SpecError`."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given > 0):
        return given
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", given) if isinstance(given, str) else None
    if found is None or found[2].upper() not in UNITS or not float(found[1]):
        raise SpecError(f"memory={given!r}", "that is no size", "write it like '512MB' or '2GiB', or give bytes")
    return int(float(found[1]) * UNITS[found[2].upper()])


def shown_size(size: int) -> str:
    """Bytes as a person reads them."""
    value = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def check_budget(budget: int, needed: int) -> None:
    """Raise `BudgetExceeded` when ``needed`` bytes of state are more than the budget."""
    if needed > budget:
        raise BudgetExceeded("a step", f"the state would take {shown_size(needed)}, the budget is {shown_size(budget)}",
                             "open with a larger memory=; nothing was changed")  # fmt: skip
