"""The figures of an open engine: what it holds, where, and what keeping it has cost so far.

Invariant: the figures are plain numbers as of one call and never change. Totals are added up here from those of the
arrangements, so they always agree. One object is a mapping for programs (``stats["keys"]``), a table in a terminal or a
notebook, and JSON for a log. Names of arrangements are what users called their inputs, so they are escaped and cannot
break a line or a page. Nothing is measured here, and no engine is known here.

>>> people = Arranged(keys=950, tombstones=50, batches=2, runs=3, versions=1400, bytes_resident=95_000,
...                   bytes_mapped=0, bytes_index=40_000, written=2000, copied=1000, owed=300)
>>> stats = Stats(frontier=8, since=7, arrangements={"people": people}, pending=4, bytes_pending=120,
...               verdicts={"applied": 1990, "noop": 10}, budget=200_000)
>>> stats["keys"], stats["write_amplification"], stats["bytes_per_key"], stats["arrangements"]["people"]["owed"]
(950, 1.5, 100.0, 300)
>>> print(stats)
frontier 8, since 7
arrangement  keys  tombstones  versions  batches  runs  resident    index  written  copied  owed
people        950          50     1,400        2     3   95.0 KB  40.0 KB    2,000   1,000   300
100.0 bytes a key, write amplification 1.50, 300 versions owed to merges
pending 4 events, 120 B; budget 200.0 KB, 47.6 % used
verdicts: applied 1,990, noop 10
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ddflow.dataflow.budget import shown_size
from ddflow.dataflow.verdicts import Verdicts
from ddflow.terminal import counted, html_table, printable, text_table
from ddflow.time import INT64, shown
from ddflow.trace.arrangement import Arrangement


class Arranged(NamedTuple):
    """The figures of one arrangement; rows of payload are counted as versions, sizes in bytes."""

    keys: int
    """Keys that hold a live row."""
    tombstones: int
    """Deleted keys that still take an entry, since their order must stay.  Where keys expire: about, since what has
    expired is not looked for in every step, and is counted by versions where it lies in files."""
    batches: int
    runs: int
    """Sorted runs that the batches consist of: what a search must look through."""
    versions: int
    """In all batches, with those that a merge will drop."""
    bytes_resident: int
    """In memory: the index, and the batches that are not on disk."""
    bytes_mapped: int
    """On disk, mapped."""
    bytes_index: int
    """The index's part of the resident bytes."""
    written: int
    """Versions that steps have written since the engine was opened."""
    copied: int
    """Versions that merges have copied since then."""
    owed: int
    """Versions that a merge in progress has still to copy."""

    @classmethod
    def of(cls, arranged: Arrangement) -> Arranged:
        """Compute the figures of an arrangement, over all of its partitions. O(runs)."""
        total = cls(*map(sum, zip(*map(cls._but_the_index, arranged.partitions), strict=True)))
        return total._replace(bytes_resident=arranged.nbytes, bytes_index=arranged.nbytes - total.bytes_resident)

    @classmethod
    def _but_the_index(cls, arranged: Arrangement) -> Arranged:
        """Compute the figures of one partition; joined partitions share an index."""
        spine, on_disk, slots = arranged.spine, arranged.on_disk, arranged.slots
        return cls(
            arranged.keys,
            arranged.tombstones - arranged.lapsed,
            len(slots.batches),
            len(spine) + len(on_disk),
            spine.versions + on_disk.versions,
            slots.resident,
            slots.mapped,
            0,
            arranged.written,
            spine.copied + on_disk.copied,
            spine.owed + on_disk.owed,
        )


COLUMNS: Final = {
    "keys": "keys",
    "tombstones": "tombstones",
    "versions": "versions",
    "batches": "batches",
    "runs": "runs",
    "bytes_resident": "resident",
    "bytes_index": "index",
    "bytes_mapped": "mapped",
    "written": "written",
    "copied": "copied",
    "owed": "owed",
}
"""Figure -> the head of its column."""
WHERE_THERE_ARE_SOME: Final = ("tombstones", "bytes_mapped", "owed")
"""Columns that are left out while they are 0 everywhere."""


class Stats(Mapping[str, Any]):
    """The result of ``engine.stats()``: an immutable mapping of figures, which prints as a table.

    Parameters
    ----------
    frontier, since : int
        As of `Engine`.
    arrangements : mapping of str to Arranged
        By name, the figures of each arrangement.
    pending : int
        Events that wait for their time.
    bytes_pending : int
        The memory that these take, in bytes.
    verdicts : mapping of str to int
        Events by verdict.
    budget : int or None
        The budget in bytes; None without one.
    bytes_pending_mapped : int
        The bytes of pending events that are on disk.
    pinned : int
        The bytes of memory that only readers hold, of rows that were merged, spilled or deleted since. They do not
        count for the budget, and are freed after the reads.
    time_type : pyarrow.DataType
        Of times, as the table shows them.

    Notes
    -----
    Its keys are those names but ``bytes_pending_mapped`` and ``time_type``, and these totals over all arrangements:

    ``keys``, ``tombstones``, ``batches``, ``versions``, ``bytes_resident``
        Sums; see `Arranged`.
    ``bytes_mapped``
        Bytes on disk, pending events included.
    ``effort_owed``
        Versions that merges in progress still have to copy.
    ``write_amplification``
        Versions written by steps and merges for each that a step wrote; 1.0 before any.
    ``bytes_per_key``
        Bytes of index and batches, resident or mapped, for each live key; None without one.

    O(arrangements).
    """

    __slots__ = ("_figures", "_time_type")

    def __init__(
        self,
        *,
        frontier: int,
        since: int,
        arrangements: Mapping[str, Arranged],
        pending: int,
        bytes_pending: int,
        verdicts: Mapping[str, int],
        budget: int | None,
        bytes_pending_mapped: int = 0,
        pinned: int = 0,
        time_type: pa.DataType = INT64,
    ) -> None:
        total = Arranged(*map(sum, zip(*arrangements.values(), strict=True))) if arrangements else Arranged(*[0] * 11)
        state = total.bytes_resident + total.bytes_mapped
        self._time_type = time_type
        self._figures: Mapping[str, Any] = MappingProxyType(
            {
                "frontier": frontier,
                "since": since,
                "keys": total.keys,
                "tombstones": total.tombstones,
                "batches": total.batches,
                "versions": total.versions,
                "bytes_resident": total.bytes_resident,
                "bytes_mapped": total.bytes_mapped + bytes_pending_mapped,
                "bytes_pending": bytes_pending,
                "bytes_per_key": state / total.keys if total.keys else None,
                "pending": pending,
                "write_amplification": (total.written + total.copied) / total.written if total.written else 1.0,
                "effort_owed": total.owed,
                "budget": budget,
                "pinned": pinned,
                "verdicts": MappingProxyType(dict(verdicts)),
                "arrangements": MappingProxyType({n: MappingProxyType(a._asdict()) for n, a in arrangements.items()}),
            }
        )

    def __getitem__(self, name: str) -> Any:
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def to_dict(self) -> dict[str, Any]:
        """Convert the figures to plain dicts, numbers and None, for ``json.dumps``."""
        out = dict(self._figures)
        out["verdicts"] = dict(self["verdicts"])
        out["arrangements"] = {name: dict(figures) for name, figures in self["arrangements"].items()}
        return out

    def __str__(self) -> str:
        first, *rest = self._lines()
        return text_table(first, self._table(), rest)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        first, *rest = self._lines()
        return html_table(first, self._table(), rest)

    def _table(self) -> list[list[str]]:
        """Build the head, a row for each arrangement, and their total if there are several."""
        arrangements = self["arrangements"]
        rows = [(printable(name), figures) for name, figures in arrangements.items()]
        total = {name: sum(figures[name] for figures in arrangements.values()) for name in COLUMNS}
        if len(rows) > 1:
            rows.append(("total", total))
        wanted = [name for name in COLUMNS if total[name] or name not in WHERE_THERE_ARE_SOME]
        head = ["arrangement", *(COLUMNS[name] for name in wanted)]
        return [head, *([label, *(_figure(name, figures[name]) for name in wanted)] for label, figures in rows)]

    def _lines(self) -> list[str]:
        """Build the lines above the table, then the lines below it."""
        per_key, owed, pending = self["bytes_per_key"], self["effort_owed"], self["pending"]
        state = [] if per_key is None else [f"{per_key:,.1f} bytes a key"]
        state.append(f"write amplification {self['write_amplification']:.2f}")
        state.append(f"{counted(owed, 'version')} owed to merges" if owed else "no merge in progress")
        waiting = f"pending {counted(pending, 'event')}, {shown_size(self['bytes_pending'])}"
        if self["pinned"]:
            waiting += f"; pinned by readers {shown_size(self['pinned'])}"
        if self["budget"] is None:
            room = "no budget"
        else:
            used = (self["bytes_resident"] + self["bytes_pending"]) / self["budget"]
            room = f"budget {shown_size(self['budget'])}, {used:.1%} used".replace("%", " %")
        verdicts = f"verdicts: {Verdicts.of(self['verdicts'])}"
        frontier, since = (shown(self[name], self._time_type) for name in ("frontier", "since"))
        return [f"frontier {frontier}, since {since}", ", ".join(state), f"{waiting}; {room}", verdicts]


def _figure(name: str, number: int) -> str:
    return shown_size(number) if name.startswith("bytes") else f"{number:,}"
