"""Export: a collection of a state as tables, range by range, for whoever writes them to a file.

Invariant: the tables together are the collection as of one time, each row once for each time it is there. A collection
may be larger than memory. Sources and counts are read a range of identities at a time, and what filters, projects,
negates or puts such together passes each range on; where equal rows may come from several places (a projection without
its key, a concatenation) they have to be brought together, which takes all of them in memory, and a column ``_diff``
says how often each is there. It writes nothing itself.

>>> import ddflow as dd
>>> from ddflow.storage.memory import MemoryStore
>>> flow, store = dd.Flow(), MemoryStore()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("here", people.filter("city = 'Bern'")), flow.output("cities", people.project(["city"]))
>>> with flow.open(store) as engine:
...     _ = engine.step({"people": pa.table({"id": [1, 2, 3], "city": ["Bern", "Basel", "Basel"]})}, time=1)
>>> with Snapshot.open(store) as snapshot:
...     schema, tables = contents(snapshot, "here")
...     schema.names, [row for table in tables for row in table.to_pylist()]
...     [row for table in contents(snapshot, "cities")[1] for row in table.to_pylist() if row["city"] == "Basel"]
(['id', 'city'], [{'id': 1, 'city': 'Bern'}])
[{'city': 'Basel', '_diff': 2}]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.schema import DIFF
from ddflow.dataflow.graph import Circuit
from ddflow.engine.snapshot import Snapshot
from ddflow.operators import linear
from ddflow.operators.back_node import Back
from ddflow.operators.updates import Updates, consolidated, ints
from ddflow.plan import flow as plan


def contents(snapshot: Snapshot, name: str, as_of: int | None = None) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """The columns of an output or a source, and its rows, table by table; to be read while the snapshot is open.

    ``as_of``: at a time not before ``since``.  Rows that may be there more than once are there once, with ``_diff``.
    O(rows); memory for one range, or for all where rows have to be brought together.  Raises `NotReadable`.
    """
    node = snapshot._node(name)
    if as_of is not None:
        as_of = snapshot._closed(f"export {name!r} as of {as_of!r}", as_of)
    if is_set(node):
        return node.schema, (piece.rows.select(node.schema.names) for piece in ranges(snapshot.circuit, node, as_of))
    schema = pa.schema([*node.schema, pa.field(DIFF, pa.int64(), nullable=False)])
    return schema, iter([snapshot.circuit.read(node, as_of)])


def is_set(node: plan.Collection) -> bool:
    """Whether each row of a collection is there once, whatever its sources hold.  O(nodes)."""
    walk = [node]
    while walk:
        each = walk.pop()
        if isinstance(each, plan.Source | plan.Count | Back):
            continue
        if isinstance(each, plan.Negate) or not each.distinct:
            return False
        walk += each.inputs
    return True


def ranges(circuit: Circuit, node: plan.Collection, as_of: int | None = None) -> Iterator[Updates]:
    """The rows of a collection, in pieces; equal rows may be in several.  O(rows)."""
    walk: list[tuple[plan.Collection, Any]] = [(node, None)]  # what is to be read, and what its pieces pass then
    while walk:
        each, after = walk.pop()
        if not isinstance(each, plan.Source | plan.Count) and not _gathers(each):
            walk += ((of, (each, after)) for of in reversed(each.inputs))
            continue
        for piece in _own(circuit, each, as_of):
            link = after
            while link is not None:
                passed, link = link
                piece = _passed(circuit, passed, piece)
            yield piece


def _gathers(node: plan.Collection) -> bool:
    """Whether rows that are equal have to be brought together for a collection."""
    return isinstance(node, Back) or (isinstance(node, plan.Consolidate) and not node.inputs[0].distinct)


def _own(circuit: Circuit, node: plan.Collection, as_of: int | None) -> Iterator[Updates]:
    """The rows of a collection that is not made of its inputs piece by piece."""
    if not isinstance(node, plan.Source | plan.Count):
        yield consolidated(circuit.held(node, as_of), circuit.secret)
        return
    arranged = circuit.upserts[node.name].arranged if isinstance(node, plan.Source) else circuit.counts[node].arranged
    for table in arranged.pieces(as_of):
        n = table.num_rows
        yield Updates(table.select(node.schema.names), np.zeros(n, np.int32), np.ones(n, np.int64), ints(0))


def _passed(circuit: Circuit, node: plan.Collection, piece: Updates) -> Updates:
    """What a node makes of a piece of its input."""
    if isinstance(node, plan.Project):
        # A projection may have been pruned for the step's sake; a read wants all its columns.
        return linear.project(piece, node.schema, node.columns)
    if isinstance(node, plan.Concat):
        columns: list[Any] = [piece.rows.column(name) for name in node.schema.names]
        return piece._replace(rows=pa.Table.from_arrays(columns, schema=node.schema))
    if isinstance(node, plan.Consolidate):
        return piece
    return circuit.stateless(node, [piece])
