"""Estimate the memory of an input's state from a sample of its rows.

The estimate counts keys exactly, by the identities that the engine would use, and measures a row's columns by their
types. The estimate computes the overhead from constants of the index and the spine: the load factor of the index, the
garbage before a merge, and the duration of a merge. `bytes_resident` is a mean over steps: after a particular step, the
engine can hold between two thirds of this mean and one and a half times this mean. `bytes_most` is the upper bound.
Limits: the estimate excludes the history kept for ``retain=`` or readers, the events whose time is not closed yet, and
the operators after the input (a count holds its groups). The estimate assumes that the later event of a key wins.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.declared import to_arrow_schema
from ddflow.columns.hashing import RowHasher, Secret, has_two_word_identities
from ddflow.columns.layout import fixed_width, offset_width
from ddflow.columns.schema import conform_to_schema, empty_table, to_batch
from ddflow.columns.sorting import sort_by_identity
from ddflow.connectors.formats.messages import VALUE
from ddflow.connectors.to_arrow import to_table
from ddflow.errors import SchemaMismatch, SpecError
from ddflow.operators.upsert.orders import build_order
from ddflow.plan.inputs.bind import BoundUpserts, bind_upserts
from ddflow.plan.inputs.spec import Upsert
from ddflow.terminal import format_size, html_table, text_table
from ddflow.trace.index import FILL, LEAST, LOAD, SHARD, SPARE, SPREAD
from ddflow.trace.spine import EFFORT, GARBAGE

PIECE: Final = 1 << 20
WORD: Final = 8
"""Bytes of a word. A word is a part of an identity, a value hash, a reference, or a part of an order.

Besides its words, a version has one byte, which says whether the row is live.
"""
MERGING: Final = 1 / (GARBAGE + 1) / (1 + (GARBAGE - 1) * EFFORT / GARBAGE)
"""Mean share of versions that exist twice, because a running merge has copied them and still holds the originals.

A full merge begins when there are GARBAGE versions per key. The merge copies EFFORT versions for each new version. So
it lasts while GARBAGE/EFFORT new versions per key arrive, of the GARBAGE - 1 + GARBAGE/EFFORT that arrive in a cycle.
During a merge, the mean is (GARBAGE + 1)/2 versions per key, plus half a version per key for the copies.
"""
SECRET: Final = Secret(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
"""Any secret can be used here, because the number of keys does not depend on their identities."""


@dataclass(frozen=True)
class Estimate:
    """The size of the state with all rows. Printing it shows a table; sizes are in bytes."""

    keys: int
    """Keys with a live row."""
    tombstones: int
    """Deleted keys whose order the state must keep."""
    bytes_index: int
    """Bytes of the index, as a mean over steps."""
    bytes_batches: int
    """Bytes of the batches of versions, as a mean over steps."""
    bytes_most: int
    """Bytes of index and batches together, after the largest step."""

    @property
    def bytes_resident(self) -> int:
        """Bytes of the index and the batches together, if all of them are in memory."""
        return self.bytes_index + self.bytes_batches

    @property
    def bytes_per_key(self) -> float | None:
        """Bytes of the index and the batches for each live key; None if there are no keys."""
        return self.bytes_resident / self.keys if self.keys else None

    def to_dict(self) -> dict[str, Any]:
        """Convert the figures to plain numbers and None, for ``json.dumps``."""
        return asdict(self) | {"bytes_resident": self.bytes_resident, "bytes_per_key": self.bytes_per_key}

    def __str__(self) -> str:
        return text_table(self._format_summary(), self._build_table(), [])

    def _repr_html_(self) -> str:
        return html_table(self._format_summary(), self._build_table(), [])

    def _format_summary(self) -> str:
        tombstones = f", {self.tombstones:,} tombstones" if self.tombstones else ""
        per_key = "" if self.bytes_per_key is None else f", {self.bytes_per_key:,.1f} bytes a key"
        return f"{self.keys:,} keys{tombstones}{per_key}"

    def _build_table(self) -> list[list[str]]:
        sizes = {
            "index": self.bytes_index,
            "batches": self.bytes_batches,
            "together": self.bytes_resident,
            "at most, while batches are merged": self.bytes_most,
        }
        return [["part", "size"], *([part, format_size(size)] for part, size in sizes.items())]


def estimate(table: Any, spec: Upsert, *, keys: int | None = None, step: int = 100_000) -> Estimate:
    """Estimate the size of an input's state with these rows.

    Parameters
    ----------
    table : table
        Any Arrow object.  A reader is streamed.
    spec : Upsert
        The spec for ``flow.upserts``.
    keys : int, optional
        The expected number of different keys, if the table is a sample.  The best sample has all events of some keys.
    step : int
        The number of rows in a step.  If all rows are in one step, nothing is left to merge.

    Returns
    -------
    Estimate
        ``bytes_resident`` is within 15 % of the mean over the later steps; no step takes more than ``bytes_most``.

    Raises
    ------
    NotArrow, SchemaMismatch
        For rows that the input would refuse.
    SpecError
        If spec and columns do not fit, or if ``keys`` or ``step`` is invalid.

    Notes
    -----
    Rows without a key are left out unless the spec keeps them.  O(n) for n rows, with about 20 bytes of memory per row.

    Examples
    --------
    >>> import ddflow as dd, pyarrow as pa
    >>> orders = pa.table({"id": pa.array(range(5000)), "total": pa.array([1.5] * 5000)})
    >>> print(dd.estimate(orders, dd.Upsert(key="id")))
    5,000 keys, 79.6 bytes a key
    part                                   size
    index                              272.8 KB
    batches                            125.0 KB
    together                           397.8 KB
    at most, while batches are merged  397.8 KB
    """
    for name, given in (("keys", keys), ("step", step)):
        if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
            raise SpecError(
                f"an estimate with {name}={given!r}", "that is not a count", "use a whole number, 1 or more"
            )
    seen = _Sample(table, spec)
    if keys is not None and not 0 < seen.keys <= keys:
        raise SpecError(
            f"an estimate with keys={keys:,}",
            f"the sample has {seen.keys:,} different keys",
            "pass the total number that you expect, or omit keys=",
        )
    times = 1.0 if keys is None else keys / seen.keys
    rows, entries, live = (round(n * times) for n in (seen.rows, seen.keys, seen.live))
    order, wide = build_order(seen.bound), has_two_word_identities(seen.bound.key_schema)
    dead = entries - live if order.keeps else 0
    slot = WORD * (3 + wide + order.words)
    version = WORD * (1 + wide + order.words) + 1 + seen.payload
    slots, most_slots = _estimate_index_slots(entries, live + dead, rows, step)
    versions, most_versions = _estimate_versions(entries, live + dead, rows, step)
    index, batches = round(slots * slot), round(versions * version)
    return Estimate(
        live, dead, index, batches, max(index + batches, round(most_slots * slot + most_versions * version))
    )


def _estimate_index_slots(entries: int, needed: int, rows: int, step: int) -> tuple[int, int]:
    """Return the mean and the largest number of slots of an index.

    ``needed``: the number of entries without deleted keys. These keep their slots until their shard grows, so half of
    them have slots on average.
    """
    later = min(step, rows - step)
    if later <= 0:  # one step creates the shards in the right size
        exact = max(LEAST, int(entries / FILL)) + SPARE
        return exact, exact
    # The expected number of distinct keys in a step. A shard that becomes full during a step gets slots for all later
    # keys of the step, half of the keys on average, although most of them are already known.
    again = entries * -math.expm1(-later / entries) * (1 - entries / rows)
    full = LOAD + (SPREAD / 2 if entries > SHARD else 0)
    mean = max(LEAST, (entries + needed) / (FILL + full))
    return round(mean) + SPARE, max(LEAST, int((entries + again / 2) / FILL)) + SPARE


def _estimate_versions(entries: int, needed: int, rows: int, step: int) -> tuple[float, float]:
    """Return the mean and the largest number of versions in batches.  ``needed``: the number after a full merge."""
    if rows <= step:
        return needed, needed
    written, full = rows, GARBAGE * entries
    mean = min(written, (needed + full) / 2) * (1 + MERGING)
    return mean, min(written, full * (1 + 1 / EFFORT) + min(step, entries)) + needed


class _Sample:
    """The figures of a sample, which is read once.

    ``rows``: rows with a key.  ``keys``: different keys.  ``live``: live keys.  ``payload``: mean bytes of a live row.
    """

    def __init__(self, given: Any, spec: Upsert) -> None:
        batches, schema = _split_rows(given)
        if VALUE in schema.names and not {*schema.names}.intersection(spec.key):
            remedy = "decode them to rows first, with spark_bridge.decode"
            raise SchemaMismatch("an estimate", f"the rows are messages, without the key {list(spec.key)}", remedy)
        self.bound = bind_upserts("the table", schema, spec)
        stored = [*self.bound.unstamped_row_schema.names, *(spec.order_by if build_order(self.bound).hidden else [])]
        nbytes, alive, parts = 0.0, 0, []
        for batch in batches:
            events = _convert_events(batch, self.bound)
            gone = self.bound.mark_deletes(events) != 0
            parts.append((*RowHasher(self.bound.key_schema, SECRET).identify_rows(events), gone))
            rows = events.filter(pa.array(~gone)) if gone.any() else events
            nbytes, alive = nbytes + sum(_count_bytes(rows.column(name)) for name in stored), alive + rows.num_rows
        high, low, gone = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        by = sort_by_identity(high, low)
        self.rows, self.keys = gone.size, by.starts.size - 1
        # The sort is stable, so the last event of a key comes last.
        self.live = int((~gone[by.permutation[by.starts[1:] - 1]]).sum())
        self.payload = nbytes / max(alive, 1) + 8 * (spec.ingested is not None)


def _count_bytes(column: pa.Array) -> float:
    """Count the bytes that a column takes after its rows are copied into a batch."""
    n, kind = len(column), column.type
    nulls = n / 8 if column.null_count else 0
    if pat.is_boolean(kind):
        return nulls + n / 8
    if fixed_width(kind):
        return float(nulls + n * fixed_width(kind))
    if offset_width(kind):
        return float(nulls + n * offset_width(kind) + (pc.sum(pc.binary_length(column)).as_py() or 0))
    return float(nulls + column.nbytes)


def _split_rows(given: Any) -> tuple[Iterator[pa.Table], pa.Schema]:
    """Split the rows into at least one piece. Return the pieces, and the schema of the input."""
    if isinstance(given, pa.RecordBatchReader):
        schema = to_arrow_schema(given.schema)
        return chain([empty_table(schema)], (pa.Table.from_batches([batch]) for batch in given)), schema
    table = to_table(given, "an estimate", pa.schema([]))
    starts = range(0, max(table.num_rows, 1), PIECE)
    return (table.slice(start, PIECE) for start in starts), to_arrow_schema(table.schema)


def _convert_events(table: pa.Table, bound: BoundUpserts) -> pa.RecordBatch:
    """Convert a piece to the input's types, without rows that lack a key."""
    events = to_batch(conform_to_schema(table, bound.schema, "an estimate", bound.required_columns))
    if bound.spec.null_key == "keep":
        return events
    keyless = bound.mark_events_without_key(events)
    return events.filter(pa.array(keyless == 0)) if keyless.any() else events
