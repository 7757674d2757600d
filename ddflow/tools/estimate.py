"""Estimates: what the state of a source will take, said before anything is run.

Invariant: keys are counted exactly, by the identities that the engine would give them; bytes come from the weights and
rules of ``layout``, put through the same steps. What an arrangement takes depends on its past, not only on its keys:
on how many versions each step writes (a key that comes twice in a step writes one, a no-op none) and on when they are
merged. Payload is never copied: the rows are looked at once, batch by batch, and some 50 bytes are kept for each.
Left out: history that ``retain=`` or readers keep, events that wait for their time, operators behind the source (a
count holds its groups), and which of two events of a key has the greater order: the later wins.

>>> import ddflow as dd, pyarrow as pa
>>> orders = pa.table({"id": pa.array(range(5000)), "total": pa.array([1.5] * 5000)})
>>> print(dd.estimate(orders, dd.Upsert(key="id")))
keys          5,000
index      177.6 KB
batches    125.0 KB
together   302.6 KB, 60.5 bytes a key
at most    302.6 KB, after a step, while batches wait to be merged
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, Secret, Words, identities, value_hashes, words
from ddflow.columns.rows import offset_width, width
from ddflow.columns.schema import conform, empty, one_batch, to_schema, to_table
from ddflow.columns.sorting import sort
from ddflow.dataflow.budget import shown_size
from ddflow.errors import SpecError
from ddflow.operators.upsert.orders import orders
from ddflow.plan.bind import Bound, bind
from ddflow.plan.spec import Upsert
from ddflow.tools.layout import Brought, Rise, weigh

Flags = np.ndarray[Any, np.dtype[np.bool_]]
PIECE, MOST_STEPS = 1 << 20, 10_000
SECRET = Secret(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
"""Any: which identities keys get does not matter to how many there are."""


@dataclass(frozen=True)
class Estimate:
    """What state will take once all rows are in."""

    keys: int
    """Keys that hold a live row."""
    tombstones: int
    """Deleted keys whose order must stay."""
    bytes_index: int
    bytes_batches: int
    bytes_most: int
    """Of index and batches together, after whichever step that was most."""

    @property
    def bytes_resident(self) -> int:
        """Index and batches together, all in memory."""
        return self.bytes_index + self.bytes_batches

    @property
    def bytes_per_key(self) -> float | None:
        """Of index and batches; None without keys."""
        return self.bytes_resident / self.keys if self.keys else None

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain numbers and None, as ``json.dumps`` takes them."""
        return asdict(self) | {"bytes_resident": self.bytes_resident, "bytes_per_key": self.bytes_per_key}

    def __str__(self) -> str:
        lines = self._lines()
        size = max(len(figure) for _, figure, _ in lines)
        return "\n".join(f"{what:<9}{figure:>{size + 2}}{', ' if more else ''}{more}" for what, figure, more in lines)

    def _repr_html_(self) -> str:
        def row(what: str, figure: str, more: str) -> str:
            return f"<tr><th>{escape(what)}</th><td>{escape(figure)}</td><td>{escape(more)}</td></tr>"

        return f"<table><tbody>{''.join(row(*line) for line in self._lines())}</tbody></table>"

    def _lines(self) -> list[tuple[str, str, str]]:
        per_key = "" if self.bytes_per_key is None else f"{self.bytes_per_key:,.1f} bytes a key"
        return [
            ("keys", f"{self.keys:,}", f"and {self.tombstones:,} tombstones" if self.tombstones else ""),
            ("index", shown_size(self.bytes_index), ""),
            ("batches", shown_size(self.bytes_batches), ""),
            ("together", shown_size(self.bytes_resident), per_key),
            ("at most", shown_size(self.bytes_most), "after a step, while batches wait to be merged"),
        ]


def estimate(table: Any, spec: Upsert, *, keys: int | None = None, step: int = 100_000) -> Estimate:
    """What the state of a source will take when these rows come in.

    ``table``: anything that speaks Arrow; a reader is streamed.  ``spec``: as for ``flow.upserts``.  ``keys``: how many
    different keys there will be, when the table is a sample: best all events of some of the keys.  ``step``: how many
    rows a step brings.  Rows without a key are left out unless the spec keeps them.  O(rows); some 50 bytes a row.

    Keys that come about equally often: within 10 % of what the engine takes, after whichever step.  Where some come
    much more often than others it may be 40 % off while a merge is at work.  Raises `NotArrow`, `SchemaMismatch`,
    `SpecError` when spec and columns do not fit, or ``keys`` or ``step`` make no sense.
    """
    for name, given in (("keys", keys), ("step", step)):
        if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
            raise SpecError(f"an estimate with {name}={given!r}", "that is no count", "give a whole number, 1 or more")
    seen = _Seen(table, spec)
    if keys is not None and not 0 < seen.keys <= keys:
        raise SpecError(
            f"an estimate with keys={keys:,}",
            f"the sample has {seen.keys:,} different keys",
            "give the number expected in all, or leave keys= out",
        )
    times = 1.0 if keys is None else keys / seen.keys
    rise = Rise(weigh(seen.bound, seen.payload))
    most = live = dead = 0
    for brought in seen.steps(step / times):
        scaled = Brought(*(round(n * times) for n in brought))
        rise.step(scaled)
        most, live, dead = max(most, rise.bytes_index + rise.bytes_batches), scaled.live, scaled.dead
    return Estimate(
        live,
        dead if rise.weights.keeps else 0,
        rise.bytes_index,
        rise.bytes_batches,
        max(most, rise.bytes_index + rise.bytes_batches),
    )


class _Seen:
    """The rows, looked at once.  Of each that has a key: its identity, whether it deletes, a hash of what counts in
    "did it change", and its time where it has one."""

    def __init__(self, given: Any, spec: Upsert) -> None:
        batches, schema = _batches(given)
        self.bound = bind("the table", schema, spec)
        weighed, parts, live = _Weighed(self.bound), [], 0
        for batch in batches:
            events = _events(batch, self.bound)
            by_key = pa.RecordBatch.from_arrays([events.column(n) for n in spec.key], schema=self.bound.key_schema)
            gone = self.bound.deletes(events)
            value = value_hashes(events.select(self.bound.tracked), SECRET)
            times = words(events.column(spec.time)).view(np.int64) if spec.time else np.empty(0, np.int64)
            parts.append((*identities(by_key, SECRET), gone != 0, value, times))
            weighed.add(events if not gone.any() else events.filter(pa.array(gone == 0)))
            live += int(gone.size - gone.sum())
        high, low, self.gone, self.value, self.times = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        self.by = sort(high, low)
        self.payload = weighed.nbytes / max(live, 1)

    @property
    def keys(self) -> int:
        """How many different ones there are."""
        return self.by.starts.size - 1

    def steps(self, rows: float) -> Iterator[Brought]:
        """What each step of so many rows brings."""
        n = self.gone.size
        if not n:
            return
        rows = max(rows, 1.0, n / MOST_STEPS)
        # The sort is stable, so a key's events stand in the order of steps: the last one of each step (and time) stays.
        step = (self.by.permutation / rows).astype(np.int64)
        first = np.zeros(n, bool)
        first[self.by.starts[:-1]] = True
        times = self.times[self.by.permutation] if self.times.size else step
        begins = np.flatnonzero(first | _differs(step) | _differs(times))
        last = self.by.permutation[np.append(begins[1:], n) - 1]
        first, step, live, value = first[begins], step[begins], ~self.gone[last], self.value[last]
        # Several times in a step: a key that changed, and back again, has written a version all the same.
        changed = np.ones(live.size, bool) if self.bound.spec.keeps_order else _changed(first, live, value)
        begins = np.flatnonzero(first | _differs(step))
        last = np.append(begins[1:], live.size) - 1
        changed = np.logical_or.reduceat(changed, begins)
        new, live, lived = first[begins], live[last], _before(first[begins], live[last])
        step = step[begins]
        # Not known yet: no step before has written a version of the key.
        known = np.cumsum(changed) - changed
        entered = changed & (known == np.repeat(known[new], np.diff(np.append(np.flatnonzero(new), new.size))))

        def each(which: Any) -> Ints:
            return np.bincount(step[which], minlength=int(step.max()) + 1)

        alive = np.cumsum(each(live & ~lived) - each(lived & ~live))
        columns = (
            each(slice(None)),
            each(changed),
            each(entered),
            each(changed & live & ~lived & ~entered),
            alive,
            np.cumsum(each(new)) - alive,
        )
        yield from (Brought(*numbers) for numbers in zip(*(column.tolist() for column in columns), strict=True))


def _differs(column: Ints | Words) -> Flags:
    """bool[n]: whether each value is another than the one before it; the first is."""
    return np.append(True, column[1:] != column[:-1])


def _before(first: Flags, live: Flags) -> Flags:
    """bool[n]: whether each event's key was live before it, as the key's previous event left it."""
    out: Flags = ~first & np.append(False, live[:-1])
    return out


def _changed(first: Flags, live: Flags, value: Words) -> Flags:
    """bool[n]: whether each event, or the last one of each step, changes what its key holds."""
    lived = _before(first, live)
    out: Flags = np.where(live, ~lived | _differs(value), lived)
    return out


class _Weighed:
    """Bytes of the columns that an arrangement stores, added up over batches of live rows."""

    def __init__(self, bound: Bound) -> None:
        self.names = [*bound.row_schema.names, *(bound.spec.order_by if orders(bound).hidden else [])]
        self.nbytes = 0.0

    def add(self, events: pa.RecordBatch) -> None:
        """Weigh some rows as they are when gathered into a batch of their own.  O(rows)."""
        n = events.num_rows
        for column in (events.column(name) for name in self.names):
            kind = column.type
            self.nbytes += n / 8 if column.null_count else 0
            if pat.is_boolean(kind):
                self.nbytes += n / 8
            elif width(kind):
                self.nbytes += n * width(kind)
            elif offset_width(kind):
                self.nbytes += n * offset_width(kind) + (pc.sum(pc.binary_length(column)).as_py() or 0)
            else:
                self.nbytes += column.nbytes


def _batches(given: Any) -> tuple[Iterator[pa.Table], pa.Schema]:
    """The rows in pieces, one at least, and the schema that a source of them would have."""
    if isinstance(given, pa.RecordBatchReader):
        schema = to_schema(given.schema)
        return chain([empty(schema)], (pa.Table.from_batches([batch]) for batch in given)), schema
    table = to_table(given, "an estimate", pa.schema([]))
    starts = range(0, max(table.num_rows, 1), PIECE)
    return (table.slice(start, PIECE) for start in starts), to_schema(table.schema)


def _events(table: pa.Table, bound: Bound) -> pa.RecordBatch:
    """A piece in the source's types, without the rows that have no key."""
    events = one_batch(conform(table, bound.schema, "an estimate", bound.required))
    if bound.spec.null_key == "keep":
        return events
    keyless = bound.keyless(events)
    return events.filter(pa.array(keyless == 0)) if keyless.any() else events
