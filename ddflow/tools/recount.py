"""Counts made anew: of the rows that a state holds, compared with the counts that it has kept incrementally.

Invariant: linearity. A count kept over any history of updates is the count of what its input holds now. The rows may
be more than memory takes, so they are counted range by range by an operator of its own, whose state is one row a group,
as the kept one's is. It looks at counts only; rows are ``verify``'s.

>>> import ddflow as dd
>>> from ddflow.storage.memory import MemoryStore
>>> flow, store = dd.Flow(), MemoryStore()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("by_city", people.project(["city"]).count())
>>> with flow.open(store) as engine:
...     _ = engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
>>> with Snapshot.open(store) as snapshot:
...     list(recounted(snapshot))
[("people.project(['city']).count(by=['city'])", 0)]
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret, value_hashes
from ddflow.engine.snapshot import Snapshot
from ddflow.operators.base import Context, Running
from ddflow.operators.updates import ints
from ddflow.plan.codec import describe, node_ids, shown
from ddflow.plan.collection import Collection
from ddflow.tools.export import ranges
from ddflow.trace.arrangement import Arrangement


def recounted(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    """Recount each count of a state: yield its description, and the number of groups that differ from their rows.

    Skips counts of rows that their inputs have forgotten or did not keep, and results that depend on arrival. O(rows);
    memory for the groups. Raises `CountOverflow`.
    """
    ids, description = node_ids(snapshot.flow), describe(snapshot.flow)
    for node, kept in snapshot.dataflow.graph.keeping.items():
        if node.forgetting or node.as_it_came or not kept.arrangements or snapshot.dataflow.graph.unkept(*node.inputs):
            continue
        fresh = _recompute_state(snapshot, node)
        secret = snapshot.dataflow.graph.secret
        stored, made = _hashes(kept.arranged, secret), _hashes(fresh.arranged, secret)
        wrong = max(np.setdiff1d(stored, made).size, np.setdiff1d(made, stored).size)
        yield shown(description, ids[node], "this state"), wrong


def _recompute_state(snapshot: Snapshot, node: Collection) -> Running:
    """Run the operator again over its input's rows, in a new state. Each range has another time."""
    graph = snapshot.dataflow.graph
    fresh: Running = node.open(Context(graph.secret, graph.plan.time_type, frozenset(node.schema.names)))
    for time, piece in enumerate(ranges(graph, node.inputs[0])):
        if piece.diffs.size:
            _, change = fresh.compute([piece._replace(times=ints(time))], time)
            fresh.apply([change], time + 1, time)
    return fresh


def _hashes(arranged: Arrangement, secret: Secret) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Hash each group with its count."""
    tables: list[pa.Table] = list(arranged.pieces())
    return np.concatenate([np.empty(0, np.uint64), *(value_hashes(table, secret) for table in tables)])
