"""Compute the history of a collection: its readable times, its net changes between two times, and type-2 dimensions.

Guarantees: a read at a readable time is exact. A read at any other time is an error. `build_scd2_table` returns each
version of a key with its span of validity. The spans of versions of one key do not overlap.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Ints, Secret, compute_value_hashes
from ddflow.columns.names import DIFF
from ddflow.columns.rows import gather_table
from ddflow.columns.schema import empty_table
from ddflow.dataflow.graph import Graph
from ddflow.errors import ErrorText, NotReadable, Option, SpecError, TimeWentBack
from ddflow.operators.updates import Updates, build_time_column, concat, consolidate, negate
from ddflow.plan.collection import Collection
from ddflow.plan.inputs.input import Input
from ddflow.time import INT64, NEVER, format_time
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.merge import pick_versions_by_sorting

RETAIN: Final = ErrorText("a larger ", Option("retain"), ", or a reader opened earlier, keeps more times")


def check_readable_time(
    asked: str, time: int, since: int, frontier: int, more: str = RETAIN, kind: pa.DataType = INT64
) -> int:
    """Return ``time`` if it can be read: if ``since <= time < frontier``, or if it is `NEVER` and no time is closed.

    O(1). ``asked``: the name of the read, for the error message. ``more``: the remedy that keeps more times. ``kind``:
    the type of times. Raises `NotReadable`, which names the limit that the time violates.
    """
    if since <= time < max(frontier, NEVER + 1):
        return time
    why = f"since is {format_time(since, kind)}" if time < since else f"the frontier is {format_time(frontier, kind)}"
    raise NotReadable(
        asked,
        f"{why}: it can be read from {format_time(since, kind)} up to, not including, {format_time(frontier, kind)}",
        f"read at a closed time; {more}",
    )


def make_side_output_error(asked: str, name: str, input: Input) -> NotReadable:
    """Make the error for a read of a side output of ``stale=`` or ``on_bad=``.

    A side output lists events, but a state stores only rows.
    """
    adds = "on_bad='drop'" if name.endswith(".bad") else f"stale={input.spec.stale!r}"
    return NotReadable(
        asked,
        f"{adds} of the input {input.name!r} adds it: it lists events, but a state holds rows",
        f"write it to a sink in mode 'changelog'; or get its rows from each step, as step[{name!r}], from the files of "
        f"outputs=, or on Spark with readStream; to read the held rows, name {input.name!r}",
        input=input.name,
    )


def compute_net_changes(graph: Graph, node: Collection, t1: int, t2: int) -> pa.Table:
    """Return the net changes of a collection after ``t1``, up to and including ``t2``.

    The table has the columns of the collection and ``_diff``. The table is consolidated: rows are distinct, and no row
    has diff 0. Retractions come first. If both times are equal, there are no rows. O(rows at the first time + rows at
    the second time). Raises `TimeWentBack` if ``t2`` is before ``t1``. Raises `NotReadable` if a time cannot be read.
    Raises `CountOverflow` if a multiplicity or a difference exceeds int64.

    >>> import pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> people = flow.output("people", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, \
dd.Upsert(key="id")))
    >>> with flow.open(retain=9) as engine:
    ...     for time, city in enumerate(["Bern", "Basel", "Bern", "Chur"]):
    ...         _ = engine.step({"people": pa.table({"id": [1], "city": [city]})}, time)
    ...     away = compute_net_changes(engine.dataflow.graph, people, 0, 3).to_pylist()
    ...     back = compute_net_changes(engine.dataflow.graph, people, 0, 2).to_pylist()
    >>> away
    [{'id': 1, 'city': 'Bern', '_diff': -1}, {'id': 1, 'city': 'Chur', '_diff': 1}]
    >>> back  # it was away in between, and nothing has changed
    []
    """
    if t2 < t1:
        kind = graph.time_type
        raise TimeWentBack(
            f"changes from {format_time(t1, kind)} to {format_time(t2, kind)}",
            "the second time is before the first",
            "pass the earlier time first; negate the diffs to go back",
        )
    if t1 == t2:
        return empty_table(pa.schema([*node.schema, pa.field(DIFF, pa.int64(), nullable=False)]))
    net = subtract_rows(graph.accumulate_rows(node, t2), graph.accumulate_rows(node, t1), graph.secret)
    return net.to_table(node.schema, None)


def subtract_rows(after: Updates, before: Updates, secret: Secret) -> Updates:
    """Return the net changes that turn the rows ``before`` into the rows ``after``. O(rows)."""
    return consolidate(concat([after, negate(before)]), secret)


Truths = np.ndarray[Any, np.dtype[np.bool_]]


class VersionSpans(NamedTuple):
    """The spans of n live versions. Versions of one key are adjacent and sorted by time."""

    references: Ints
    """int64[n]: the references of their rows."""
    first: Ints
    """int64[n]: the time when the version began.

    If the stored time is at or before ``since``, the exact time when the version began is unknown.
    """
    to: Ints
    """int64[n]: the time of the key's next version or deletion; undefined for a version that is `current`."""
    current: Truths
    """bool[n]: whether the version is the last of its key."""


def build_scd2_table(graph: Graph, node: Collection, since: int, names: tuple[str, str, str]) -> pa.Table:
    """Return a table of all versions of an input or a count. The columns ``names`` follow the collection's columns.

    ``since``: the engine's ``since``. ``names``: the names of the columns ``valid_from``, ``valid_to`` and ``current``.
    The first two columns are nullable and have the type of the flow's times. The third column is a boolean. Versions of
    one key are adjacent and sorted by time, but keys are in no particular order. O(versions). Only one range of
    identities is processed at a time. Raises `NotReadable` if the collection has no key. Raises `SpecError` if an added
    column has the name of an existing column. Raises `CorruptState` if a key has two versions at one time.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> people = flow.output("people", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, \
dd.Upsert(key="id")))
    >>> with flow.open(retain=9) as engine:
    ...     for time, city in enumerate(["Bern", "Basel", "Chur"], 2000):
    ...         _ = engine.step({"people": pa.table({"id": [1], "city": [city]})}, time)
    ...     for row in engine.scd2("people").to_pylist():
    ...         print(list(row.values()))
    [1, 'Bern', 2000, 2001, False]
    [1, 'Basel', 2001, 2002, False]
    [1, 'Chur', 2002, None, True]
    """
    arranged, counting = _find_version_arrangement(graph, node)
    taken = sorted({name for i, name in enumerate(names) if name in node.schema.names or name in names[:i]})
    if taken:
        raise SpecError(
            f"the columns {list(names)} of scd2",
            f"{taken} are named twice; the rows have the columns {node.schema.names}",
            "choose other names: valid_from=, valid_to=, current=",
        )
    kind = graph.plan.time_type
    more = [pa.field(names[0], kind), pa.field(names[1], kind), pa.field(names[2], pa.bool_(), nullable=False)]
    schema = pa.schema([*node.schema, *more])
    tables, columns = [schema.empty_table()], pa.schema([node.schema.field(n) for n in counting])
    for part in arranged.partitions:
        for found in iterate_version_spans(part, columns, since, graph.secret):
            rows = gather_table(part.slots.pool, found.references, node.schema)
            times = [
                _build_nullable_times(found.first, found.first <= since, kind),
                _build_nullable_times(found.to, found.current, kind),
            ]
            tables.append(pa.Table.from_arrays([*rows.columns, *times, pa.array(found.current)], schema=schema))
    return pa.concat_tables(tables)


def iterate_version_spans(
    arranged: Arrangement, counting: pa.Schema, since: int, secret: Secret
) -> Iterator[VersionSpans]:
    """Yield the live versions of a partition that are visible to a read at ``since`` or later.

    Each result covers one range of identities. ``counting``: two adjacent rows of a key are different versions if they
    differ in these columns. O(versions). Raises `CorruptState`.
    """
    for parts in arranged.iterate_version_ranges():
        picked = pick_versions_by_sorting(arranged.slots, parts, since, droppable=False)
        last = picked.last_of_keys
        live = np.flatnonzero(picked.live)
        references = picked.references[live]
        # A row continues the previous version if this version is live, has the same key, and has equal values in the
        # `counting` columns.
        goes_on = np.zeros(live.size, bool)
        goes_on[1:] = (live[1:] == live[:-1] + 1) & ~last[live[:-1]]
        if goes_on.any() and len(counting):
            hashed = compute_value_hashes(gather_table(arranged.slots.pool, references, counting), secret)
            goes_on[1:] &= hashed[1:] == hashed[:-1]
        begin = np.flatnonzero(~goes_on)
        end = live[np.append(begin[1:], live.size)[: begin.size] - 1]
        following = np.append(picked.time[1:], 0)
        yield VersionSpans(references[begin], picked.time[live[begin]], following[end], last[end])


def _build_nullable_times(times: Ints, unknown: Truths, kind: pa.DataType) -> pa.Array:
    """Convert int64 times to the type of time ``kind``. The result is null where ``unknown`` is true."""
    return pc.if_else(pa.array(unknown), pa.scalar(None, kind), build_time_column(np.where(unknown, 0, times), kind))


def _find_version_arrangement(graph: Graph, node: Collection) -> tuple[Arrangement, list[str]]:
    """Return the arrangement with the versions of a collection.

    The second result lists the columns in which two versions must differ.
    """
    opened = graph.opened[node]
    if opened.tracked is not None:
        return opened.output_arrangement, list(opened.tracked)
    raise NotReadable(
        f"scd2 of {node!r}",
        f"it is a {node.verb}, which has no key and keeps no versions",
        "name an input, or an output that is a count",
    )
