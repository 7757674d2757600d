"""Whether files of upserts look like full files: each has nearly all keys of those before it, and few others.

Invariant: only counts are looked at that are there anyway, so it is a guess and said as one; nothing changes by it. A
run whose events may delete, or of few rows, is not looked at.

>>> looks = FullLike()
>>> for rows, keys in ((100, 100), (101, 103), (99, 104)):
...     looks.saw(rows, keys)
>>> looks.hint("write --full")
'each file names most keys of those before it, and 5 keys are not in the last one: where each file holds all rows, so \
that these are gone, write --full'
>>> looks.saw(30, 130)
>>> looks.hint("write --full")
"""

from typing import Final

KNOWN, NAMED, LEAST = 0.9, 0.5, 20
"""The share of a file's rows whose keys are known, that of the keys which it names, and rows of a file; at least."""
FULL: Final = {True: "add --full", False: "use ddflow replace"}
"""What to do, by whether rows are counted."""


class FullLike:
    """``looked``: whether it may be so at all."""

    def __init__(self, looked: bool = True) -> None:
        self.files, self.rows, self.keys, self.alike = 0, 0, 0, looked

    def saw(self, rows: int, keys: int) -> None:
        """Count a file's rows, and the keys after it."""
        known = rows - (keys - self.keys)
        if rows < LEAST or (self.files and (known < KNOWN * rows or rows < NAMED * self.keys)):
            self.alike = False
        self.files, self.rows, self.keys = self.files + 1, rows, keys

    def hint(self, remedy: str) -> str | None:
        """Return a hint for the end of the run; None if the files do not look full."""
        gone = self.keys - self.rows
        if not self.alike or self.files < 2 or gone <= 0:
            return None
        left = f"{gone:,} keys are" if gone > 1 else "1 key is"
        found = f"each file names most keys of those before it, and {left} not in the last one"
        these = "these are" if gone > 1 else "it is"
        return f"{found}: where each file holds all rows, so that {these} gone, {remedy}"
