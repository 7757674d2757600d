"""Verdicts: what became of every input event, counted always and listed on request.

Invariant: every event has exactly one verdict or is pending; events in = resolved + pending.  The order in which causes
are looked at is that of ``NAMES``: an event that is bad is not also late.  See docs/semantics.md, Verdicts.

>>> tally = Verdicts.of({"applied": 2, "noop": 1}, pending=4)
>>> str(tally), tally.resolved, tally.total
('applied 2, noop 1, pending 4', 3, 7)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.terminal import html_table

NAMES: Final = ("bad", "forgotten", "late", "stale", "tie_lost", "superseded", "noop", "applied")
"""By the codes of ``kernels.resolve``, in the order of resolution."""
GONE: Final = "gone"
"""The name of a count next to verdicts in the totals of a state: events of inputs that were dropped since."""
SHOWN: Final = ("applied", "superseded", "noop", "stale", "tie_lost", "late", "bad", "forgotten")


@dataclass(frozen=True)
class Verdicts:
    """Counts of events by verdict. It prints as text.

    Each count that it prints is an entry, ``verdicts["absent"]``, and an attribute, ``verdicts.absent``.

    Parameters
    ----------
    counts : mapping of str to int
        Events by verdict, all eight.
    pending : int
        Events that wait for their time to close.
    rows : mapping of str to pyarrow.Table, optional
        By input, one row for each event resolved here, if the engine was opened with ``verdicts="rows"``.
    absent : int
        Keys that this call deleted because full contents lack them. These are no events.

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
        """Make one of some counts; the others are 0.

        Parameters
        ----------
        counts : mapping of str to int
            Events by verdict, and ``absent``.
        pending, rows
            As of `Verdicts`.

        Returns
        -------
        Verdicts
            With all eight counts.
        """
        return cls({name: int(counts.get(name, 0)) for name in SHOWN}, pending, rows, int(counts.get("absent", 0)))

    @classmethod
    def add_up(cls, parts: Sequence[Self]) -> Self:
        """Make one of those of several calls, one or more, in their order.

        Parameters
        ----------
        parts : sequence of Verdicts
            Of one engine.

        Returns
        -------
        Verdicts
            With the sums of all counts; ``pending`` is the last one's.
        """
        counts = {name: sum(each[name] for each in parts) for name in (*SHOWN, "absent")}
        rows = dict[str, list[pa.Table]]()
        for each in parts:
            for name, table in (each.rows or {}).items():
                rows.setdefault(name, []).append(table)
        listed = all(each.rows is not None for each in parts)
        joined = {name: pa.concat_tables(tables) for name, tables in rows.items()}
        return cls.of(counts, parts[-1].pending, joined if listed else None)

    @property
    def resolved(self) -> int:
        """How many events have a verdict, an int."""
        return sum(self.counts.values())

    @property
    def total(self) -> int:
        """How many events there are, resolved and pending, an int."""
        return self.resolved + self.pending

    def __getitem__(self, name: str) -> int:
        known = {**self.counts, "pending": self.pending, "absent": self.absent}
        if name not in known:
            raise KeyError(f"there is no verdict {name!r}; {did_you_mean(name, known)}")
        return known[name]

    def __getattr__(self, name: str) -> int:
        if name in SHOWN:
            return self.counts[name]
        raise AttributeError(f"Verdicts has no {name!r}; {did_you_mean(name, [*SHOWN, 'pending', 'absent'])}")

    def _repr_html_(self) -> str:
        """Render the counts that are not 0 for a notebook."""
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


def resolved(totals: Mapping[str, int]) -> int:
    """How many events of the inputs that there are have a verdict.  ``totals``: of a state, and `GONE`.

    >>> resolved({"applied": 7, "noop": 1, GONE: 3})
    5
    """
    return sum(totals.values()) - 2 * totals.get(GONE, 0)


def named(codes: np.ndarray[Any, np.dtype[Any]]) -> pa.Array:
    """Verdict codes as a text column."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(NAMES)).cast(pa.string())
