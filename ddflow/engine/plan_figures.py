"""What an open engine knows of each collection of its plan: rows and bytes kept, who shares them, and time spent.

Invariant: an arrangement is told of where it is kept, once, whoever looks rows up in it. Times are those of computing a
step since the engine was opened: admitting events, writing state and committing are not among them.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> _ = flow.output("by_city", orders.count("city"))
>>> with flow.open() as engine:
...     _ = engine.step({"orders": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
...     notes = plan_figures(engine.dataflow.graph)
>>> [note[0].partition(",")[0] for node, note in notes.items() if node.keeps or not node.inputs]
['2 rows', '1 row']
"""

from __future__ import annotations

from ddflow.dataflow.budget import shown_size
from ddflow.dataflow.graph import Graph
from ddflow.engine.stats import Arranged
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.terminal import counted


def plan_figures(graph: Graph) -> dict[Collection, list[str]]:
    """By collection, what is to be said of it.  O(nodes, and runs of arrangements)."""
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
        every = [Arranged.of(each) for each in graph.opened[node].arrangements]
        if every:
            size = sum(each.bytes_resident + each.bytes_mapped for each in every)
            notes.append(f"{counted(sum(each.keys for each in every), 'row')}, {shown_size(size)}")
            if lookers.get(node, 0) > 1:
                notes.append(f"rows are looked up in it by {lookers[node]} operators")
            if len(outputs.get(node, [])) > 1:
                notes.append(f"shared by {', '.join(outputs[node])}")
        if node in graph.spent:
            notes.append(shown_time(graph.spent[node]))
    return out


def shown_time(nanoseconds: int) -> str:
    """Format a time in a unit that suits it.

    >>> shown_time(1_234), shown_time(25_000_000), shown_time(12_345_678_901)
    ('1.2 us', '25.0 ms', '12.3 s')
    """
    for unit, size in (("s", 10**9), ("ms", 10**6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:,.1f} {unit}"
    return f"{nanoseconds / 1000:.1f} us"
