"""The circuit: the operators of one opened plan, wired, with their state.

Invariant: `judge` computes a whole step for all nodes and changes nothing; `apply` takes the computed changes in and
cannot be refused any more.  So a step that fails, whichever node objects, leaves every arrangement as it was.  Why
that is not trivial: outputs gather retracted rows from batches that ``apply`` may merge away, so they are made before
it; and only columns that somebody downstream reads are gathered at all.  Each node is computed once a step, however
many read it; all share one list of times.

>>> import pyarrow as pa
>>> from ddflow.flow import Flow
>>> from ddflow.spec import Upsert
>>> flow = Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> _ = flow.output("cities", people.project(["city"]).count())
>>> sorted(Circuit(flow, Secret(1, 2)).needed[people])
['city']
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ddflow import flow as plan
from ddflow.arrange.arrangement import Arrangement, Change
from ddflow.batcher import Sealed
from ddflow.identity import Ints, Secret
from ddflow.operators import linear
from ddflow.operators.count import Count
from ddflow.operators.updates import Updates, consolidated, few, ints
from ddflow.operators.upsert import Judgement, Upsert
from ddflow.schema import empty


class Stepped(NamedTuple):
    """A computed step: what it puts out, and what it will change."""

    outputs: dict[str, pa.Table]
    judgements: dict[str, Judgement]
    counts: dict[plan.Collection, Change]

    @property
    def nbytes(self) -> int:
        """Bytes that the changes will add to the state."""
        changes = [j.change for j in self.judgements.values()] + list(self.counts.values())
        return sum(int(change.table.nbytes) + 40 * change.time.size for change in changes)


class Circuit:
    """``plan_``: the flow.  ``secret``: for identities.  ``winners``: whether verdict rows will be asked for."""

    def __init__(self, plan_: plan.Flow, secret: Secret, winners: bool = True) -> None:
        self.plan, self.secret, self.winners = plan_, secret, winners or bool(plan_.side_outputs())
        self.upserts = {name: Upsert(source.bound, secret) for name, source in plan_.sources.items()}
        self.needed = _needed(plan_)
        self.counts = {
            node: Count(node.groups, node.name, secret)
            for node in plan_.nodes
            if isinstance(node, plan.Count) and node in self.needed
        }

    @property
    def arrangements(self) -> dict[str, Arrangement]:
        """All state, by a name for people."""
        out = {name: upsert.arranged for name, upsert in self.upserts.items()}
        for i, count in enumerate(self.counts.values()):
            out[f"count {i} by {count.groups.names}"] = count.arranged
        return out

    def judge(self, sealed: Mapping[str, Sealed | None], since: int) -> Stepped:
        """Compute a step from the events released of each source.  O(events and updates); nothing changes."""
        given = {name: s for name, s in sealed.items() if s is not None and s.times.size}
        parts = [s.times[np.concatenate([[True], s.times[1:] != s.times[:-1]])] for s in given.values()]
        times = parts[0] if len(parts) == 1 else np.unique(np.concatenate([ints(), *parts]))
        judgements = {name: self.upserts[name].judge(s, times, since, self.winners) for name, s in given.items()}
        done: dict[plan.Collection, Updates] = {}
        changes: dict[plan.Collection, Change] = {}
        for node in self.plan.nodes:
            if node not in self.needed:
                continue
            if isinstance(node, plan.Source):
                schema = pa.schema([f for f in node.schema if f.name in self.needed[node]])
                judgement = judgements.get(node.name)
                done[node] = judgement.updates(schema) if judgement else _nothing(schema, times)
            elif isinstance(node, plan.Count):
                done[node], changes[node] = self.counts[node].judge(done[node.inputs[0]], since)
            else:
                done[node] = self._stateless(node, [done[i] for i in node.inputs])
        for judgement in judgements.values():
            _ = judgement.change  # computed now: nothing may fail once a step is taken in
        outputs = {}
        for name, node in self.plan.outputs.items():
            updates = done[node] if node.distinct else consolidated(done[node], self.secret)
            outputs[name] = updates.to_table(node.schema, self.plan.time_type)
        return Stepped(outputs, judgements, changes)

    def _stateless(self, node: plan.Collection, inputs: list[Updates]) -> Updates:
        if isinstance(node, plan.Filter):
            return linear.filter_rows(inputs[0], node.predicate)
        if isinstance(node, plan.Project):
            here = [i for i, f in enumerate(node.schema) if f.name in self.needed[node]]
            schema = pa.schema([node.schema.field(i) for i in here])
            return linear.project(inputs[0], schema, [node.columns[i] for i in here])
        if isinstance(node, plan.Negate):
            return linear.negate(inputs[0])
        if isinstance(node, plan.Concat):
            return linear.concat(inputs)
        assert isinstance(node, plan.Consolidate), node
        return consolidated(inputs[0], self.secret)

    def apply(self, stepped: Stepped, upper: int, since: int) -> None:
        """Take a computed step into the state.  Amortised O(versions written)."""
        for name, upsert in self.upserts.items():
            judgement = stepped.judgements.get(name)
            upsert.arranged.apply([judgement.change] if judgement else [], upper, since)
        for node, count in self.counts.items():
            change = stepped.counts.get(node)
            count.arranged.apply([change] if change else [], upper, since)

    def read(self, node: plan.Collection, as_of: int | None) -> pa.Table:
        """A collection as of a time, by default now: its rows and ``_diff``, consolidated.

        O(rows of the sources it needs).
        """
        updates = self._read(node, as_of, {})
        return consolidated(updates, self.secret).to_table(node.schema, None)

    def _read(self, node: plan.Collection, as_of: int | None, done: dict[plan.Collection, Updates]) -> Updates:
        if node not in done:  # once, however many read it: a chain of concatenations would double the work each time
            done[node] = self._made(node, as_of, done)
        return done[node]

    def _made(self, node: plan.Collection, as_of: int | None, done: dict[plan.Collection, Updates]) -> Updates:
        if isinstance(node, plan.Source | plan.Count):
            arranged = self.upserts[node.name].arranged if isinstance(node, plan.Source) else self.counts[node].arranged
            rows = arranged.read(as_of).select(node.schema.names)
            n = rows.num_rows
            return Updates(rows, np.zeros(n, np.int32), np.ones(n, np.int64), ints(0))  # one time, whichever
        # A projection may have been pruned for the step's sake; a read wants all its columns.
        inputs = [self._read(i, as_of, done) for i in node.inputs]
        if isinstance(node, plan.Project):
            return linear.project(inputs[0], node.schema, node.columns)
        return self._stateless(node, inputs)

    def _check(self) -> None:
        for arrangement in self.arrangements.values():
            arrangement._check()


def _nothing(schema: pa.Schema, times: Ints) -> Updates:
    return Updates(empty(schema), few(), ints(), times)


def _needed(flow: plan.Flow) -> dict[plan.Collection, set[str]]:
    """For each node that an output depends on, the columns that somebody reads; one at least, to carry the rows."""
    needed: dict[plan.Collection, set[str]] = {node: set(node.schema.names) for node in flow.outputs.values()}
    for node in reversed(flow.nodes):
        if node not in needed:
            continue
        mine = needed[node]
        if not mine:
            mine.add(node.schema.names[0])
        for each in node.inputs:
            wanted = needed.setdefault(each, set())
            every = set(each.schema.names)
            if isinstance(node, plan.Count):
                wanted |= set(node.by)
            elif isinstance(node, plan.Filter):
                read = node.predicate.columns
                wanted |= every if read is None else mine | set(read)
            elif isinstance(node, plan.Project):
                for field, column in zip(node.schema, node.columns, strict=True):
                    if field.name in mine:
                        read = (column,) if isinstance(column, str) else column.columns
                        wanted |= every if read is None else set(read)
            elif isinstance(node, plan.Negate):
                wanted |= mine
            else:
                wanted |= every
    return needed
