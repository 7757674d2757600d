"""Define window functions over a list of rows, in obvious code that looks at each row for each row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rules import rank

Named = Mapping[str, Any]
Frame = tuple[str, int | None, int | None]
"""The unit, and the begin and end as distances; negative ones precede, and None is unbounded."""
NUMBERS = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile")


@dataclass(frozen=True)
class Call:
    """A call of a window function."""

    function: str
    column: str = ""
    number: int = 1
    frame: Frame | None = None
    ignores: bool = False

    @property
    def sql(self) -> str:
        """The call as SQL."""
        with_number = self.function in ("lag", "lead", "nth_value")
        told = [self.column] if self.column else ["*"] if self.function == "count" else []
        told += [str(self.number)] if with_number or self.function == "ntile" else []
        told += [f"'{self.number} microseconds'"] if self.function == "session_window" else []
        text = f"{self.function}({', '.join(told)}){' ignore nulls' if self.ignores else ''}"
        if self.frame is None:
            return text
        unit, begin, end = self.frame
        return f"{text} over ({unit} between {_bound(begin, 'preceding')} and {_bound(end, 'following')})"

    def result(self, rows: Sequence[Named], keys: Sequence[Any], values: Sequence[Any] | None, at: int) -> Any:
        """Return the result for one row.

        ``keys``: what peers have in common.  ``values``: the order column if there is only one, negated if descending.
        """
        n, peers = len(rows), [j for j, key in enumerate(keys) if key == keys[at]]
        if self.function in NUMBERS:
            size, more = divmod(n, self.number)
            return {
                "row_number": at + 1,
                "rank": peers[0] + 1,
                "dense_rank": len({repr(key) for key in keys[: at + 1]}),
                "percent_rank": peers[0] / (n - 1) if n > 1 else 0.0,
                "cume_dist": (peers[-1] + 1) / n,
                "ntile": [b for b in range(self.number) for _ in range(size + (b < more))][at] + 1,
            }[self.function]
        if self.function == "session_window":
            return self._find_session([self._of(row) for row in rows], at)
        if self.function in ("lag", "lead"):
            way = -1 if self.function == "lag" else 1
            others = [self._of(rows[j]) for j in range(at + way, -1 if way < 0 else n, way)]
            others = [each for each in others if not self.ignores or each is not None]
            return others[self.number - 1] if len(others) >= self.number else None
        frame = [self._of(rows[j]) for j in range(n) if self._has(j, at, keys, values)]
        there = [each for each in frame if each is not None]
        if self.function in ("first_value", "last_value", "nth_value"):
            frame = there if self.ignores else frame
            place = {"first_value": 0, "last_value": len(frame) - 1, "nth_value": self.number - 1}[self.function]
            return frame[place] if 0 <= place < len(frame) else None
        if self.function == "count":
            return len(there)
        if self.function == "array_agg":
            return there
        if self.function == "sum":
            return sum(there) if there else None
        return {"min": min, "max": max}[self.function](there, key=rank) if there else None

    def _find_session(self, times: Sequence[Any], at: int) -> Any:
        """Return the session of a row: go to each side while the next row is less than the gap away."""
        if times[at] is None:
            return None
        gap: Any = self.number if isinstance(times[at], int) else dt.timedelta(microseconds=self.number)
        first = last = at
        while first > 0 and times[first - 1] is not None and times[first] - times[first - 1] < gap:
            first -= 1
        while last + 1 < len(times) and times[last + 1] is not None and times[last + 1] - times[last] < gap:
            last += 1
        return {"start": times[first], "end": times[last] + gap}

    def _of(self, row: Named) -> Any:
        return row[self.column] if self.column else True

    def _has(self, j: int, at: int, keys: Sequence[Any], values: Sequence[Any] | None) -> bool:
        """Tell whether row ``j`` is in the frame of row ``at``."""
        unit, begin, end = self.frame or ("range", None, 0)
        if unit == "rows":
            return (begin is None or j - at >= begin) and (end is None or j - at <= end)
        same = keys[j] == keys[at]

        def within(bound: int | None, way: int) -> bool:
            if bound is None:
                return True
            if bound == 0 or values is None or values[at] is None or values[j] is None:
                return bool(same or (j - at) * way > 0)
            return bool((values[j] - values[at] - bound) * way >= 0)

        return within(begin, 1) and within(end, -1)


def _bound(bound: int | None, unbounded: str) -> str:
    if not bound:
        return f"unbounded {unbounded}" if bound is None else "current row"
    return f"{abs(bound)} {'preceding' if bound < 0 else 'following'}"
