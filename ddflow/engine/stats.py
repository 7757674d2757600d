"""Show figures of an open engine or a snapshot, such as sizes, costs and verdicts.

The figures are shown as a table, on the plan, or in a notebook. Guarantees: the figures are updated by steps, so
`stats` reads no rows and repeats no computation. An arrangement that several operators share is counted once. The times
that are shown include only the computation of steps, and not admission, writing or commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Graph
from ddflow.dataflow.result import Verdicts
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.plan import Plan
from ddflow.plan.text.explain import Explaining, PlanDiagram, PlanExplanation, render_html, render_plan
from ddflow.terminal import escape_text, format_count, format_size, html_table, text_table
from ddflow.time import INT64, format_time
from ddflow.trace.arrangement import Arrangement


class PendingFigures(NamedTuple):
    """The number of pending events, and the bytes that they take in memory and in mapped files."""

    events: int = 0
    nbytes: int = 0
    mapped_bytes: int = 0


class ArrangementFigures(NamedTuple):
    """The figures of one arrangement. Versions are counted in rows, and sizes in bytes.

    >>> people = ArrangementFigures(keys=950, tombstones=50, batches=2, runs=3, versions=1400, bytes_resident=95_000,
    ...                   bytes_mapped=0, bytes_index=40_000, written=2000, copied=1000, owed=300)
    >>> stats = Stats(frontier=8, since=7, arrangements={"people": people}, pending=PendingFigures(4, 120),
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

    keys: int
    """The number of keys that have a live row."""
    tombstones: int
    """The number of deleted keys that still take space, because the order of their deletion must be kept.

    The number is approximate if keys expire, because not every step looks for expired keys. In files, each version of
    an expired key counts.
    """
    batches: int
    runs: int
    """The number of sorted runs in the batches. A search must look into each run."""
    versions: int
    """The number of versions in all batches, including versions that a merge will drop."""
    bytes_resident: int
    """The bytes in memory, for the index and the batches that are not on disk."""
    bytes_mapped: int
    """The bytes of mapped files."""
    bytes_index: int
    """The bytes of the index, which are also part of the bytes in memory."""
    written: int
    """The number of versions that steps have written since the engine was opened."""
    copied: int
    """The number of versions that merges have copied since the engine was opened."""
    owed: int
    """The number of versions that merges in progress must still copy."""

    @classmethod
    def of(cls, arranged: Arrangement) -> ArrangementFigures:
        """Return the figures of an arrangement, summed over all its partitions. O(runs)."""
        total = cls(*map(sum, zip(*map(cls._measure_partition, arranged.partitions), strict=True)))
        return total._replace(bytes_resident=arranged.nbytes, bytes_index=arranged.nbytes - total.bytes_resident)

    @classmethod
    def _measure_partition(cls, arranged: Arrangement) -> ArrangementFigures:
        """Return the figures of one partition without its index, because joined partitions share one index."""
        spine, on_disk, slots = arranged.spine, arranged.on_disk, arranged.slots
        return cls(
            arranged.keys,
            arranged.tombstone_count - arranged.expired_tombstone_count,
            len(slots.batches),
            len(spine) + len(on_disk),
            spine.version_count + on_disk.version_count,
            slots.resident,
            slots.mapped,
            0,
            arranged.written,
            spine.copied + on_disk.copied,
            spine.remaining_versions + on_disk.remaining_versions,
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
"""The column heading of each figure."""
WHERE_THERE_ARE_SOME: Final = ("tombstones", "bytes_mapped", "owed")
"""The columns that the table omits if all their values are 0."""


class Stats(Mapping[str, Any]):
    """The result of ``engine.stats()``: an immutable mapping of figures, which `print` shows as a table.

    Parameters
    ----------
    frontier, since : int
        The frontier and ``since`` of the `Engine`.
    arrangements : mapping of str to ArrangementFigures
        The figures of each arrangement, by its name.
    pending : PendingFigures
        The events that wait for their time.
    verdicts : mapping of str to int
        Events by verdict.
    budget : int or None
        The budget in bytes; None without one.
    pinned : int
        Bytes of memory that only readers still use, because the rows were merged, spilled or deleted since. These bytes
        do not count for the budget, and are freed after the reads.
    time_type : pyarrow.DataType
        The type of times in the table.

    Notes
    -----
    The keys of the mapping are the parameters above except ``time_type``. The value of ``pending`` is a number of
    events. The mapping also has these totals over all arrangements:

    ``keys``, ``tombstones``, ``batches``, ``versions``, ``bytes_resident``
        Sums; see `ArrangementFigures`.
    ``bytes_mapped``
        Bytes on disk, including pending events.
    ``bytes_pending``
        Bytes of memory that pending events take.
    ``effort_owed``
        Versions that merges in progress have yet to copy.
    ``write_amplification``
        Versions that steps and merges wrote, divided by the versions that steps wrote. It is 1.0 before the first
        version.
    ``bytes_per_key``
        Bytes of index and batches, resident or mapped, for each live key; None without live keys.

    O(arrangements).
    """

    __slots__ = ("_figures", "_time_type")

    def __init__(
        self,
        *,
        frontier: int,
        since: int,
        arrangements: Mapping[str, ArrangementFigures],
        pending: PendingFigures,
        verdicts: Mapping[str, int],
        budget: int | None,
        pinned: int = 0,
        time_type: pa.DataType = INT64,
    ) -> None:
        total = (
            ArrangementFigures(*map(sum, zip(*arrangements.values(), strict=True)))
            if arrangements
            else ArrangementFigures(*[0] * 11)
        )
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
                "bytes_mapped": total.bytes_mapped + pending.mapped_bytes,
                "bytes_pending": pending.nbytes,
                "bytes_per_key": state / total.keys if total.keys else None,
                "pending": pending.events,
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
        """Convert the figures to plain dicts, numbers and None, so that ``json.dumps`` accepts them."""
        out = dict(self._figures)
        out["verdicts"] = dict(self["verdicts"])
        out["arrangements"] = {name: dict(figures) for name, figures in self["arrangements"].items()}
        return out

    def __str__(self) -> str:
        first, *rest = self._format_lines()
        return text_table(first, self._make_table(), rest)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        first, *rest = self._format_lines()
        return html_table(first, self._make_table(), rest)

    def _make_table(self) -> list[list[str]]:
        """Build the rows of the table: a heading, a row for each arrangement, and a total if there are several rows."""
        arrangements = self["arrangements"]
        rows = [(escape_text(name), figures) for name, figures in arrangements.items()]
        total = {name: sum(figures[name] for figures in arrangements.values()) for name in COLUMNS}
        if len(rows) > 1:
            rows.append(("total", total))
        wanted = [name for name in COLUMNS if total[name] or name not in WHERE_THERE_ARE_SOME]
        head = ["arrangement", *(COLUMNS[name] for name in wanted)]
        return [head, *([label, *(_format_figure(name, figures[name]) for name in wanted)] for label, figures in rows)]

    def _format_lines(self) -> list[str]:
        """Build the line above the table, followed by the lines below the table."""
        per_key, owed, pending = self["bytes_per_key"], self["effort_owed"], self["pending"]
        state = [] if per_key is None else [f"{per_key:,.1f} bytes a key"]
        state.append(f"write amplification {self['write_amplification']:.2f}")
        state.append(f"{format_count(owed, 'version')} owed to merges" if owed else "no merge in progress")
        waiting = f"pending {format_count(pending, 'event')}, {format_size(self['bytes_pending'])}"
        if self["pinned"]:
            waiting += f"; pinned by readers {format_size(self['pinned'])}"
        if self["budget"] is None:
            room = "no budget"
        else:
            used = (self["bytes_resident"] + self["bytes_pending"]) / self["budget"]
            room = f"budget {format_size(self['budget'])}, {used:.1%} used".replace("%", " %")
        verdicts = f"verdicts: {Verdicts.of(self['verdicts'])}"
        frontier, since = (format_time(self[name], self._time_type) for name in ("frontier", "since"))
        return [f"frontier {frontier}, since {since}", ", ".join(state), f"{waiting}; {room}", verdicts]


def _format_figure(name: str, number: int) -> str:
    return format_size(number) if name.startswith("bytes") else f"{number:,}"


def describe_nodes(graph: Graph) -> dict[Collection, list[str]]:
    """Describe each collection by its number of rows, its readers, and the time spent on computing it.

    O(nodes + runs of all arrangements).

    >>> import pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
    >>> _ = flow.output("by_city", orders.count("city"))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"orders": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
    ...     notes = describe_nodes(engine.dataflow.graph)
    >>> [note[0].partition(",")[0] for node, note in notes.items() if node.keeps or not node.inputs]
    ['2 rows', '1 row']
    """
    lookers, outputs = dict[Collection, int](), dict[Collection, list[str]]()
    for node in graph.nodes:
        for of in node.inputs if node.looks else ():
            lookers[of] = lookers.get(of, 0) + 1
    for name, output in graph.plan.outputs.items():
        for node in walk_inputs([output]):
            outputs.setdefault(node, []).append(name)
    out: dict[Collection, list[str]] = {}
    for node in graph.nodes:
        notes = out[node] = list[str]()
        every = [ArrangementFigures.of(each) for each in graph.opened[node].arrangements]
        if every:
            size = sum(each.bytes_resident + each.bytes_mapped for each in every)
            notes.append(f"{format_count(sum(each.keys for each in every), 'row')}, {format_size(size)}")
            if lookers.get(node, 0) > 1:
                notes.append(f"{lookers[node]} operators look up rows in it")
            if len(outputs.get(node, [])) > 1:
                notes.append(f"shared by {', '.join(outputs[node])}")
        horizons, mark = graph.horizons, graph.horizons.marks.get(graph.names.get(node, ""))
        if mark is not None and mark.input in horizons.words:
            words = horizons.extents[mark.input][1], horizons.words[mark.input]
            both = [format_time(each, mark.field.type) for each in words]
            notes.append(f"{mark.field.name} up to {both[0]}, watermark {both[1]}")
        if node in graph.spent:
            notes.append(format_duration(graph.spent[node]))
    return out


def format_duration(nanoseconds: int) -> str:
    """Format a duration in a unit that fits its size.

    >>> format_duration(1_234), format_duration(25_000_000), format_duration(12_345_678_901)
    ('1.2 us', '25.0 ms', '12.3 s')
    """
    for unit, size in (("s", 10**9), ("ms", 10**6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:,.1f} {unit}"
    return f"{nanoseconds / 1000:.1f} us"


class Inspectable(Explaining):
    """Methods that show figures and the plan of an engine or a snapshot.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"people": {"id": [7]}})
    ...     engine.stats()["keys"], engine.explain(format="svg")[:4], "1 row" in engine._repr_html_()
    (1, '<svg', True)
    """

    def __init__(self, dataflow: Dataflow) -> None:
        self.dataflow = dataflow

    @property
    def flow(self) -> Plan:
        """The plan."""
        return self.dataflow.flow

    @property
    def frontier(self) -> int:
        """The least time that may still arrive, as an int64.

        The value is `NEVER` before the first step. If no more times can arrive, the value is `CLOSED`.
        """
        return self.dataflow.frontier

    @property
    def since(self) -> int:
        """The least time that can be read exactly, as an int64."""
        return self.dataflow.since

    @property
    def verdicts(self) -> Verdicts:
        """The number of events for each verdict since the state began, as `Verdicts`."""
        return Verdicts.of(self.dataflow.totals, self.dataflow.pending_count)

    def _render_plan(self, name: str | None, format: str) -> PlanExplanation | PlanDiagram:
        with self.dataflow.guard.lock_for_read("explain"):
            return render_plan(self.flow, name, format, describe_nodes(self.dataflow.graph))

    def stats(self) -> Stats:
        """Return the current figures: keys, batches, bytes in memory and on disk, unfinished merges and verdicts.

        Returns
        -------
        Stats
            A mapping, which prints as a table.

        Notes
        -----
        O(arrangements + their runs).
        """
        with self.dataflow.guard.lock_for_read("stats", closed=True):
            held = self.dataflow.graph.arrangements
            return Stats(
                frontier=self.frontier,
                since=self.since,
                arrangements={name: ArrangementFigures.of(arranged) for name, arranged in held.items()},
                pending=PendingFigures(
                    self.dataflow.pending_count,
                    sum(b.nbytes for b in self.dataflow.batchers.values()),
                    sum(b.mapped_bytes for b in self.dataflow.batchers.values()),
                ),
                verdicts=self.verdicts.counts,
                budget=self.dataflow.budget.memory,
                time_type=self.dataflow.time_type,
                pinned=self.dataflow.recent.count_waiting_bytes(self.dataflow.holds.find_least_time())
                + sum(each.slots.bytes_pinned for arranged in held.values() for each in arranged.partitions),
            )

    def _repr_html_(self) -> str:
        """Render the plan with its figures, followed by `stats`, for a notebook.

        After `close`, render only the plan without figures.
        """
        if self.dataflow.guard.state != "open":
            return render_html(self.flow)
        with self.dataflow.guard.lock_for_read("show"):
            figures = describe_nodes(self.dataflow.graph)
        return render_html(self.flow, figures) + self.stats()._repr_html_()
