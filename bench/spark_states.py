"""Spark's own stateful operators doing the upsert job: what runs for each key in the Python workers.

Invariant: all three keep a key's last value, take the last event of each time, and give the same rows of updates, with
nothing for an event that changes nothing. A shuffle loses the order of rows, so ``seq`` is attached before it and
sorted by here; and ``handleInputRows`` may get a key's rows in several pandas frames. Workers import this file by
name, so the folder is on their path. Nothing here touches a session.

>>> rows = [(2, 1, None), (0, 0, 5), (1, 1, 6), (3, 2, None)]  # seq, time, val
>>> updates(7, None, rows)
(None, [(7, 5, 0, 1), (7, 5, 1, -1)])
>>> updates(7, 5, [(4, 3, 5), (5, 4, 9)])
(9, [(7, 5, 4, -1), (7, 9, 4, 1)])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

UPDATES = "key long, val long, _time long, _diff long"
STATE = "val long"
NAMES = ["key", "val", "_time", "_diff"]
Change = tuple[Any, Any, int, int]


def updates(key: Any, last: Any, rows: Iterable[tuple[int, int, Any]]) -> tuple[Any, list[Change]]:
    """The value that is left of a key which had ``last`` (None: not there), and its updates; O(rows log rows)."""
    final = {time: val for _, time, val in sorted(rows)}
    out: list[Change] = []
    for time, val in final.items():
        if val != last:
            if last is not None:
                out.append((key, last, time, -1))
            if val is not None:
                out.append((key, val, time, 1))
            last = val
    return last, out


class ByRows(StatefulProcessor):
    """For ``transformWithState``: rows in, rows out."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self.last = handle.getValueState("last", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """A key's rows of a batch."""
        before = self.last.get()
        old = None if before is None else before[0]
        new, out = updates(key[0], old, ((row.seq, row.time, row.val) for row in rows))
        _keep(self.last, old, new)
        for update in out:
            yield Row(**dict(zip(NAMES, update, strict=True)))

    def close(self) -> None:
        """Nothing to close."""


class ByFrames(StatefulProcessor):
    """For ``transformWithStateInPandas``: pandas frames in, pandas frames out."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self.last = handle.getValueState("last", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """A key's rows of a batch."""
        before = self.last.get()
        old = None if before is None else before[0]
        new, out = updates(key[0], old, _plain(rows))
        _keep(self.last, old, new)
        if out:
            yield pd.DataFrame(out, columns=NAMES)

    def close(self) -> None:
        """Nothing to close."""


def by_group(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """For ``applyInPandasWithState``: the same with its older kind of state."""
    old = state.get[0] if state.exists else None
    new, out = updates(key[0], old, _plain(frames))
    if new is not None:
        state.update((new,))
    elif state.exists:
        state.remove()
    if out:
        yield pd.DataFrame(out, columns=NAMES)


def _plain(frames: Iterable[pd.DataFrame]) -> Iterator[tuple[int, int, Any]]:
    """Rows as Python numbers; pandas holds a column with nulls as floats."""
    for frame in frames:
        for seq, time, val in zip(frame["seq"].tolist(), frame["time"].tolist(), frame["val"].tolist(), strict=True):
            yield seq, time, None if val is None or val != val else int(val)


def _keep(state: Any, old: Any, new: Any) -> None:
    if new is None and old is not None:
        state.clear()
    elif new is not None and new != old:
        state.update((new,))
