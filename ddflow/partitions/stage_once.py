"""A stage computed once, from an empty start that nothing follows: what it puts out and what it sends on.

Invariant: what all stages and partitions put out is, added up, what the first step of a new engine puts out: stamped 0
in epoch mode; in hold-back mode at the events' own times, with all of them closed, so that none is late. The result
depends on the rows and on the secret only, so it may be computed twice. Nothing is kept: no arrangement takes in what
was computed, nothing is written, and there is no receipt. It needs memory for all rows of its partition at once.

>>> import ddflow as dd
>>> from ddflow.partitions.stages import cut
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "name": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("names", people.project("name").count())
>>> stages, rows = cut(flow), pa.table({"id": [1, 2, 1], "name": ["mcsherry", "zappa", "zappa"]})
>>> first = computed(stages, 0, Secret(1, 2), {"people": rows}, {})
>>> computed(stages, 1, Secret(1, 2), {}, first.sent).outputs["names"].to_pylist()
[{'name': 'zappa', 'count': 2, '_time': 0, '_diff': 1}]
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.connectors.formats.base import BAD
from ddflow.dataflow.admission import Admission
from ddflow.dataflow.buffer import UpdateBuffer
from ddflow.dataflow.graph import Released
from ddflow.dataflow.side_outputs import SideOutputs, bad_rows, is_bad
from ddflow.partitions.stage_graph import StageComputation, StageGraph, as_updates
from ddflow.partitions.stages import Stages
from ddflow.time import CLOSED, NEVER

TIME: Final = 0
"""The time that epoch mode stamps: there is one step."""


class Computed(NamedTuple):
    """``outputs``: by name, those of the stage, side outputs among them.  ``sent``: by exchange, what goes on to later
    stages, where there is something."""

    outputs: dict[str, pa.Table]
    sent: dict[int, pa.Table]


def computed(cut: Stages, stage: int, secret: Secret, rows: dict[str, Any], sums: Mapping[int, pa.Table]) -> Computed:
    """Compute one stage of one partition.  O(rows and updates) expected.

    ``rows``: by input, in the order of arrival, on stage 0; they are taken out of it one by one, so that no input is
    held twice.  ``sums``: by exchange of this stage.  Raises as a step of an engine does.
    """
    flow, graph = cut.flow, StageGraph(cut, stage, secret)
    sides = SideOutputs(flow.side_outputs(), flow.time_type)
    time, released = None if flow.holds_back else TIME, {}
    bad = {name: table for name, table in sides.tables().items() if is_bad(name)}
    for name in list(rows):
        admission = Admission(flow.inputs[name].bound)
        admitted = admission.admit(admission.uncut(rows.pop(name)), NEVER, time)
        released[name] = Released.of(admitted.events)
        if admitted.refused is not None and f"{name}.bad" in bad:
            bad[f"{name}.bad"] = bad_rows([admitted.refused.column(BAD).drop_null()], TIME, flow.time_type)
    graph.came = {n: as_updates(table, cut.exchanges[n].schema) for n, table in sums.items()}
    stepped = StageComputation(graph, released, CLOSED - 1, UpdateBuffer(None, 0), sides.add).run()
    sent = {number: table for number, table in graph.sent.items() if table.num_rows}
    return Computed({**stepped.outputs, **sides.tables(), **bad}, sent)
