"""Files whose names have numbers without zeros in front: ``10. March.csv`` sorts before ``2. March.csv``.

Invariant: nothing changes by it, because the order of names is the one that every program and bucket gives; it is said
where names are alike but for their numbers and these would give another order.  Names that differ in more, such as
those of random parts, are not looked at.

>>> swapped(["10. March.csv", "2. March.csv", "a.csv"])
('10. March.csv', '2. March.csv', '02. March.csv')
>>> swapped(["02. March.csv", "10. March.csv"]), swapped(["2.csv", "10.csv"])
(None, None)
"""

import re
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Protocol, TypeVar

_NUMBER = re.compile(r"[0-9]+")


class HasName(Protocol):
    """Object with a name."""

    @property
    def name(self) -> str:
        """Name for messages."""


N = TypeVar("N", bound=HasName)


def in_order(files: Sequence[N]) -> Sequence[N]:
    """Return the files unchanged, and warn if numeric order differs from name order.  O(files)."""
    warn_of_numbers([each.name for each in files])
    return files


def warn_of_numbers(names: Sequence[str]) -> None:
    """Warn if the numbers in names have another order than the names as text.  O(names)."""
    if (found := swapped(names)) is not None:
        one, other, padded = found
        warnings.warn(
            f"{one} is read before {PurePath(other).name}, because names sort as text: write the numbers in them with "
            f"zeros in front ({PurePath(padded).name}), or give the files one by one in their order",
            stacklevel=4,
        )


def swapped(names: Sequence[str]) -> tuple[str, str, str] | None:
    """Return two neighbours of sorted names with numbers in the other order, and the second one with zeros.

    Returns None if there are none, and for names in an order that a user chose.  O(names).
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_NUMBER.sub("0", name), []).append(name)
    for each in alike.values():
        if each != sorted(each):
            continue
        for one, other in pairwise(each):
            if _numbers(one) > _numbers(other):
                widths = [max(map(len, found)) for found in zip(*map(_NUMBER.findall, each), strict=True)]
                padded = iter(widths)
                return one, other, _NUMBER.sub(lambda found: found[0].zfill(next(padded)), other)  # noqa: B023
    return None


def _numbers(name: str) -> list[int]:
    return [int(found) for found in _NUMBER.findall(name)]
