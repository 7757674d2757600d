"""Represent the result of a step: one Arrow table for each output, and the verdicts.

Guarantees: a `Step` has a table for each output of the flow and each side output that ``stale=`` adds, and no other
tables. Each table has the columns of the collection, then ``_time`` and ``_diff``. Each table is sorted by time. Within
one time, the retractions of a key come before its assertion. Tables own their memory and never change later. Every
event either has exactly one verdict or is pending. If several verdicts apply, the event gets the verdict that comes
first in `NAMES`. So a bad event is not also late.

>>> from ddflow.columns.schema import empty_table, build_updates_schema
>>> step = Step({"v": empty_table(build_updates_schema(pa.schema({"v": pa.int64()}), pa.int64()))}, Verdicts.of({}), 5)
>>> step["v"].schema.names, len(step), step.frontier
(['v', '_time', '_diff'], 1, 5)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.errors import NoSuchOutput, SpecError, shorten
from ddflow.terminal import format_count, html_table

NAMES: Final = ("bad", "forgotten", "late", "stale", "tie_lost", "superseded", "noop", "applied")
"""The names of the verdicts, in the order of their codes in ``kernels.resolve``. Verdicts are checked in this order."""
GONE: Final = "gone"
"""The name of an extra count in the totals of a state: the number of events whose input was dropped later."""
PRINTED: Final = ("applied", "superseded", "noop", "stale", "tie_lost", "late", "bad", "forgotten")
NO_EVENTS: Final = dict.fromkeys(PRINTED, 0)


@dataclass(frozen=True)
class Verdicts:
    """The number of events for each verdict. ``str`` formats them as text.

    Each count in this text is available as an item, ``verdicts["absent"]``, and as an attribute, ``verdicts.absent``.

    Parameters
    ----------
    counts : mapping of str to int
        Events by verdict, all eight.
    pending : int
        Events that wait for their time to close.
    rows : mapping of str to pyarrow.Table, optional
        For each input, one row for each event that the call resolved, if the engine was opened with
        ``verdicts="rows"``.
    absent : int
        The number of keys that this call deleted because full contents lack them. These deletions are not events.

    Examples
    --------
    >>> verdicts = Verdicts.of({"applied": 2, "noop": 1})
    >>> verdicts["noop"], verdicts.resolved, str(verdicts)
    (1, 3, 'applied 2, noop 1')
    """

    counts: Mapping[str, int]
    pending: int = 0
    rows: Mapping[str, pa.Table] | None = field(default=None, repr=False)
    absent: int = 0

    @classmethod
    def of(cls, counts: Mapping[str, int], pending: int = 0, rows: Mapping[str, pa.Table] | None = None) -> Self:
        """Make `Verdicts` from a mapping of counts. A missing count is 0.

        Parameters
        ----------
        counts : mapping of str to int
            Events by verdict, and ``absent``.
        pending, rows
            As for `Verdicts`.

        Returns
        -------
        Verdicts
            All eight counts.
        """
        known = NO_EVENTS.copy()
        for name, n in counts.items():
            if name in known:
                known[name] = int(n)
        return cls(known, pending, rows, int(counts.get("absent", 0)))

    @classmethod
    def add_up(cls, parts: Sequence[Self]) -> Self:
        """Add the verdicts of one or more calls, in the order of the calls.

        Parameters
        ----------
        parts : sequence of Verdicts
            Verdicts of one engine.

        Returns
        -------
        Verdicts
            The sums of all counts, with the last ``pending``.
        """
        counts = {name: sum(each[name] for each in parts) for name in (*PRINTED, "absent")}
        rows = dict[str, list[pa.Table]]()
        for each in parts:
            for name, table in (each.rows or {}).items():
                rows.setdefault(name, []).append(table)
        listed = all(each.rows is not None for each in parts)
        joined = {name: pa.concat_tables(tables) for name, tables in rows.items()}
        return cls.of(counts, parts[-1].pending, joined if listed else None)

    @property
    def resolved(self) -> int:
        """The total number of events that have a verdict, an int."""
        return sum(self.counts.values())

    @property
    def total(self) -> int:
        """The total number of resolved and pending events, an int."""
        return self.resolved + self.pending

    def __getitem__(self, name: str) -> int:
        known = {**self.counts, "pending": self.pending, "absent": self.absent}
        if name not in known:
            raise KeyError(f"there is no verdict {name!r}; {did_you_mean(name, known, 'verdicts')}")
        return known[name]

    def __getattr__(self, name: str) -> int:
        if name in PRINTED:
            return self.counts[name]
        raise AttributeError(
            f"Verdicts has no {name!r}; {did_you_mean(name, [*PRINTED, 'pending', 'absent'], 'names')}"
        )

    def _repr_html_(self) -> str:
        """Render the nonzero counts for a notebook."""
        counts = {**self.counts, "pending": self.pending, "absent": self.absent}
        rows = [[name, f"{n:,}"] for name, n in counts.items() if n]
        return html_table(f"{self.resolved:,} events", [["verdict", "events"], *rows], [])

    def __str__(self) -> str:
        parts = [f"{name} {n:,}" for name, n in self.counts.items() if n]
        if self.pending:
            parts.append(f"pending {self.pending:,}")
        if self.absent:
            parts.append(f"absent {self.absent:,}")
        return ", ".join(parts) or "no events"


def count_resolved_events(totals: Mapping[str, int]) -> int:
    """Count the events that have a verdict, over all current inputs.

    ``totals``: the counts of a state, including `GONE`.

    >>> count_resolved_events({"applied": 7, "noop": 1, GONE: 3})
    5
    """
    return sum(totals.values()) - 2 * totals.get(GONE, 0)


def decode_verdicts(codes: np.ndarray[Any, np.dtype[Any]]) -> pa.Array:
    """Convert verdict codes to a column of verdict names."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(NAMES)).cast(pa.string())


SHOWN: Final = 10
"""The maximum number of updates of an output that a notebook shows.

`COLUMNS` and `CHARACTERS` limit the shown columns and values.
"""
COLUMNS: Final = 20
CHARACTERS: Final = 60


class Step(Mapping[str, pa.Table]):
    """The result of a call: a mapping from the name of each output to its updates.

    Each value is a `pyarrow.Table`. The table has the columns of the row, then ``_time`` (int64, or the type of the
    time column) and ``_diff`` (int64). The table is sorted by time. Within one time, the retractions of a key come
    before its assertion.

    Attributes
    ----------
    verdicts : Verdicts
        Counts of the events resolved in this call.
    frontier : int
        The least time that is still open.
    """

    def __init__(self, tables: Mapping[str, pa.Table], verdicts: Verdicts, frontier: int) -> None:
        self._tables = tables
        self.verdicts, self.frontier = verdicts, frontier
        self.waits: tuple[Callable[[int, float | None], int], int] | None = None

    @classmethod
    def join(cls, steps: Sequence[Self]) -> Self:
        """Join one or more steps of an epoch, in the order of their calls.

        Parameters
        ----------
        steps : sequence of Step
            Steps of one engine.

        Returns
        -------
        Step
            All updates, the sums of the verdicts, and the last frontier.
        """
        last = steps[-1]
        if len(steps) == 1:
            return last
        tables = {name: pa.concat_tables([each[name] for each in steps if name in each]) for name in last}
        out = cls(tables, Verdicts.add_up([each.verdicts for each in steps]), last.frontier)
        out.waits = last.waits
        return out

    def committed(self, timeout: float | None = None) -> int:
        """Wait until the call is committed. Any thread may call this method.

        Parameters
        ----------
        timeout : float, optional
            The most seconds to wait.

        Returns
        -------
        int
            The number of the epoch with the call.

        Raises
        ------
        SpecError
            For a state in memory. Without a ``timeout``, also for an engine that commits only by `Engine.flush`.
        TimeoutError
            If the call is not committed within ``timeout`` seconds.
        EngineClosed
            If the engine was closed before the commit.
        DdflowError
            The error of the commit.

        Notes
        -----
        With ``commit_every="call"`` a call is committed when it returns.
        """
        if self.waits is None:
            found = "the engine's state is in memory"
            raise SpecError("wait for a commit", found, "open the flow with a state: flow.open('state/orders')")
        wait, epoch = self.waits
        return wait(epoch, timeout)

    def __getitem__(self, name: str) -> pa.Table:
        return self._tables[name] if name in self._tables else raise_no_output(name, self._tables)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def _repr_html_(self) -> str:
        """Render the first updates of each output, and the verdict counts, for a notebook."""
        return (
            "".join(render_rows_html(name, table) for name, table in self._tables.items()) + self.verdicts._repr_html_()
        )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {table.num_rows:,} updates" for name, table in self._tables.items())
        return f"Step({sizes}; {self.verdicts})"


def raise_no_output(name: object, known: Iterable[str]) -> NoReturn:
    """Raise `NoSuchOutput`. This error is also a `KeyError`, because a step is a mapping. O(names)."""
    raise NoSuchOutput("get an output", f"there is no output {name!r:.200}", did_you_mean(str(name), known, "outputs"))


def render_rows_html(name: str, table: pa.Table) -> str:
    """Render the first rows of a table for a notebook, with a name above them. O(number of rows and columns shown)."""
    names = [*table.column_names[: COLUMNS - 2], *table.column_names[COLUMNS - 2 :][-2:]]
    rows = zip(*(format_values(table.column(each)) for each in names), strict=True)
    rest = [f"... and {table.num_rows - SHOWN:,} more"] if table.num_rows > SHOWN else []
    if len(names) < table.num_columns:
        rest.append(f"{table.num_columns - len(names):,} columns are not shown")
    return html_table(f"{name}: {format_count(table.num_rows, 'update')}", [names, *map(list, rows)], rest)


def format_values(column: pa.ChunkedArray, most: int = SHOWN) -> Iterator[str]:
    """Format the first values of a column. Shorten long values. O(values)."""
    for value in column.slice(0, most):
        try:
            plain = value.as_py()
        except (OverflowError, ValueError):  # a Python date cannot be later than the year 9999
            plain = value
        yield "null" if plain is None else shorten(str(plain), CHARACTERS)
