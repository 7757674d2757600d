"""Read a collection of a state as a stream of tables, to write it to a file.

Guarantees: together, the tables contain the complete collection, with all duplicates, as it was at one time. Inputs and
counts are read by ranges of identities, and stateless operators process each range, so a collection may be larger than
memory. Limits: if equal rows may come from several ranges (a projection without its key, a concatenation), all rows are
summed in memory, and the column ``_diff`` counts the duplicates.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ddflow.columns.names import DIFF
from ddflow.columns.schema import empty_table
from ddflow.dataflow.graph import Graph
from ddflow.engine.snapshot import Snapshot
from ddflow.operators.base import as_updates
from ddflow.operators.updates import Updates, consolidate
from ddflow.plan.collection import Collection
from ddflow.time import format_time_argument


def open_contents(snapshot: Snapshot, name: str, as_of: int | None = None) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Return the columns of an output or an input, and an iterator of its rows as tables.

    Consume the iterator while the snapshot is open. ``as_of`` must not be a time before ``since``. If a collection can
    have duplicates, each row is returned once, with its multiplicity in ``_diff``. O(rows) time, with memory for one
    range of rows, or for all rows if they must be summed. Raises `NotReadable`.

    >>> import ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow, store = dd.Flow(), MemoryStore()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    >>> _ = flow.output("here", people.filter("city = 'Bern'")), flow.output("cities", people.project(["city"]))
    >>> with flow.open(store) as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1, 2, 3], "city": ["Bern", "Basel", "Basel"]})}, time=1)
    >>> with Snapshot.open(store) as snapshot:
    ...     schema, tables = open_contents(snapshot, "here")
    ...     schema.names, [row for table in tables for row in table.to_pylist()]
    ...     _, (cities,) = open_contents(snapshot, "cities")
    ...     sorted(cities.to_pylist(), key=lambda row: row["city"])
    (['id', 'city'], [{'id': 1, 'city': 'Bern'}])
    [{'city': 'Basel', '_diff': 2}, {'city': 'Bern', '_diff': 1}]
    """
    node = snapshot.node(name)
    if as_of is not None:
        as_of = snapshot.closed(f"export {name!r} as of {format_time_argument(as_of, snapshot.flow.time_type)}", as_of)
    if node.unique:
        return node.schema, (
            piece.rows.select(node.schema.names)
            for piece in read_collection_ranges(snapshot.dataflow.graph, node, as_of)
        )
    schema = pa.schema([*node.schema, pa.field(DIFF, pa.int64(), nullable=False)])
    return schema, iter([snapshot.dataflow.graph.read_collection(node, as_of)])


def read_collection_ranges(graph: Graph, node: Collection, as_of: int | None = None) -> Iterator[Updates]:
    """Yield the rows of a collection in pieces.  Several pieces may have equal rows.  O(rows)."""
    # The collections to read. Each collection has a chain of stateless operators that process its pieces.
    walk: list[tuple[Collection, Any]] = [(node, None)]
    while walk:
        each, after = walk.pop()
        opened = graph.opened[each]
        if opened.is_read_from_state:
            pieces = opened.iterate_rows(as_of)
        elif any(by is not None for by in each.exchange()):
            pieces = [consolidate(graph.accumulate_rows(each, as_of), graph.secret)]
        else:
            walk += ((of, (each, n, after)) for n, of in reversed(list(enumerate(each.inputs))))
            continue
        for piece in pieces:
            piece, link = piece._replace(rows=piece.rows.select(each.schema.names)), after
            while link is not None:
                node, n, link = link
                inputs = [as_updates(empty_table(of.schema)) for of in node.inputs]
                inputs[n] = piece
                piece = graph.running[node].compute_output_rows(inputs, as_of)
            yield piece
