"""History: which times can be read, and the net changes of a collection between two of them.

Invariant: a collection as of t1 plus its changes from t1 to t2 is the collection as of t2, row by row and multiplicity
by multiplicity. So changes from t1 to t2 and from t2 to t3 add up to those from t1 to t3. *Net* means that a row which
left and came back within the interval is no change, and neither is one that came and left. Only consolidation can tell,
so two reads are subtracted. This file keeps nothing; ``readers`` knows which history is held back, and for which
reader.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.output("people", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")))
>>> with flow.open(retain=9) as engine:
...     for time, city in enumerate(["Bern", "Basel", "Bern", "Chur"]):
...         _ = engine.step({"people": pa.table({"id": [1], "city": [city]})}, time)
...     away = changes(engine.dataflow.graph, people, 0, 3).to_pylist()
...     back = changes(engine.dataflow.graph, people, 0, 2).to_pylist()
>>> away
[{'id': 1, 'city': 'Bern', '_diff': -1}, {'id': 1, 'city': 'Chur', '_diff': 1}]
>>> back  # it was away in between, and nothing has changed
[]
"""

from typing import Final

import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DIFF
from ddflow.columns.schema import empty
from ddflow.dataflow.graph import Graph
from ddflow.errors import NotReadable, Option, Phrase, TimeWentBack
from ddflow.operators.updates import Updates, concat, consolidated, negate
from ddflow.plan.collection import Collection
from ddflow.time import INT64, NEVER, shown

RETAIN: Final = Phrase("a larger ", Option("retain"), ", or a reader opened in time, keeps more of them")


def check_readable(
    asked: str, time: int, since: int, frontier: int, more: str = RETAIN, kind: pa.DataType = INT64
) -> int:
    """Return the time if it can be read: ``since <= time < frontier``; before anything is closed, `NEVER`.

    ``asked``, ``more``: the reader and the remedy that keeps more times, for the message. Raises `NotReadable`, which
    names since or the frontier. ``kind``: the type of times. O(1).
    """
    if since <= time < max(frontier, NEVER + 1):
        return time
    why = f"since is {shown(since, kind)}" if time < since else f"the frontier is {shown(frontier, kind)}"
    raise NotReadable(
        asked,
        f"{why}: it can be read from {shown(since, kind)} up to, not including, {shown(frontier, kind)}",
        f"read at a closed time; {more}",
    )


def changes(graph: Graph, node: Collection, t1: int, t2: int) -> pa.Table:
    """Return the changes of a collection after ``t1``, up to ``t2``: its columns and ``_diff``, consolidated.

    No row twice, none with diff 0, retractions first; no rows when both times are the same. O(rows at both times).
    Raises `TimeWentBack` when ``t2`` is before ``t1``, `NotReadable` when one of them cannot be read, `CountOverflow`
    when a multiplicity or a difference of two leaves int64.
    """
    if t2 < t1:
        kind = graph.time_type
        raise TimeWentBack(
            f"changes from {shown(t1, kind)} to {shown(t2, kind)}",
            "the second time is before the first",
            "give the earlier time first; negate the diffs to go back",
        )
    if t1 == t2:
        return empty(pa.schema([*node.schema, pa.field(DIFF, pa.int64(), nullable=False)]))
    net = subtract(graph.accumulated(node, t2), graph.accumulated(node, t1), graph.secret)
    return net.to_table(node.schema, None)


def subtract(after: Updates, before: Updates, secret: Secret) -> Updates:
    """Return the net changes from some rows to others.  O(rows)."""
    return consolidated(concat([after, negate(before)]), secret)
