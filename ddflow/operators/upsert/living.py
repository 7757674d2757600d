"""The keys that live, of what an input holds, range by range.

>>> from ddflow.plan.inputs.bind import bind
>>> from ddflow.plan.inputs.spec import Upsert
>>> import pyarrow as pa
>>> from ddflow.operators.upsert.upsert import RunningUpsert
>>> from ddflow.columns.hashing import Secret
>>> upsert = RunningUpsert(bind("v", pa.schema({"k": pa.int64()}), Upsert("k")), Secret(1, 2))
>>> [references.size for _, _, references in living(upsert.arranged)]
[0]
"""

from collections.abc import Iterator

from ddflow.columns.hashing import NONE, Ints, Words
from ddflow.time import NEVER
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ends
from ddflow.trace.merge import by_sorting


def living(arranged: Arrangement) -> Iterator[tuple[Words, Words, Ints]]:
    """Yield the identities of all live keys (high, low) and references to their rows, range by range, ascending.

    O(keys) in memory, O(versions) on disk; it must not change meanwhile.
    """
    if not arranged.lower:
        references, places = arranged.index.walk(live=True)
        high, low, _, _ = arranged.index.entries(places)
        yield high, low, references
        return
    for parts in arranged.ranges():
        picked = by_sorting(arranged.slots, parts, NEVER, droppable=False)
        now = ends(picked.high, picked.low) & (picked.live != 0)
        yield picked.high[now], picked.low[now] if picked.low.size else NONE, picked.references[now]
