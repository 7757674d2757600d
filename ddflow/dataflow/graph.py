"""The circuit: the operators of one opened plan, wired, with their state.

Invariant: `judge` computes a whole step for all nodes and changes nothing; `apply` takes the computed changes in and
cannot be refused any more. So a step that fails, whichever node objects, leaves every arrangement as it was. Outputs
gather retracted rows from batches that ``apply`` may merge away, so they are made before it; and only columns that
somebody downstream reads are gathered at all. Each node is computed once a step, however many read it; all share one
list of times.

>>> import pyarrow as pa
>>> from ddflow.plan.flow import Flow
>>> from ddflow.plan.spec import Upsert
>>> flow = Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> _ = flow.output("cities", people.project(["city"]).count())
>>> sorted(Circuit(flow, Secret(1, 2)).needed[people])
['city']
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Secret
from ddflow.columns.threads import ALONE, Crew
from ddflow.dataflow.buffer import Shelf
from ddflow.dataflow.step import Computation, Observe, Released, Stepped, nothing
from ddflow.operators import linear
from ddflow.operators.back import Back as ToBack
from ddflow.operators.back_node import Back
from ddflow.operators.count import Count
from ddflow.operators.held_rows import HeldRows
from ddflow.operators.unnest import Unnest
from ddflow.operators.updates import Updates, consolidated, ints
from ddflow.operators.upsert.upsert import Upsert
from ddflow.plan import flow as plan
from ddflow.trace.arrangement import Arrangement


class Circuit:
    """``plan_``: the flow.  ``secret``: for identities.  ``winners``: whether verdict rows will be asked for.

    ``crew``: the threads that share the work."""

    def __init__(self, plan_: plan.Flow, secret: Secret, winners: bool = True, crew: Crew = ALONE) -> None:
        self.plan, self.secret, self.winners = plan_, secret, winners or bool(plan_.side_outputs())
        self.upserts = {name: Upsert(source.bound, secret, crew) for name, source in plan_.sources.items()}
        self.needed = _needed(plan_)
        self.counts = {
            node: Count(node.groups, node.name, secret)
            for node in plan_.nodes
            if isinstance(node, plan.Count) and node in self.needed
        }
        self.backs = {
            node: ToBack(node.inputs[0].schema, node.key, node.on_conflict, plan_.time_type, secret)
            for node in plan_.nodes
            if isinstance(node, Back) and node in self.needed
        }

    @property
    def arrangements(self) -> dict[str, Arrangement]:
        """All state that is kept, by a name for people."""
        out = {name: upsert.arranged for name, upsert in self.upserts.items()}
        for i, count in enumerate(self.counts.values()):
            out[f"count {i} by {count.groups.names}"] = count.arranged
        return out

    @property
    def showing(self) -> dict[str, HeldRows]:
        """What is held for upserts that go out, by a name for people; it is made of what is kept."""
        backs = enumerate(self.backs.values())
        return {f"to_upserts {i} by {list(back.told.key)}": back.told.held for i, back in backs}

    @property
    def nbytes(self) -> int:
        """Bytes in memory of all that."""
        held = sum(each.nbytes for each in self.showing.values())
        return held + sum(each.nbytes for each in self.arrangements.values())

    def expiring(self, released: Mapping[str, Released], time: int, most: int | None) -> dict[str, Released]:
        """What is released at ``time``, and for each key that is forgotten then an event that deletes it.

        ``most``: how many of those a piece may have, None for any.  O(events of sources where there are some).
        """
        out = dict(released)
        for name, upsert in self.upserts.items():
            due = upsert.expiring.due() if upsert.expiring is not None else (NONE, NONE)
            if upsert.expiring is None or not due[0].size:
                continue
            given = out.get(name, Released.of(None))
            total = given.total + due[0].size
            many = not isinstance(given.pieces, list | tuple) or (most is not None and total > most)
            pieces = upsert.expiring.woven(given.pieces, due, time, (most or total) if many else None)
            out[name] = Released(total, np.union1d(given.times, [time]), pieces if many else list(pieces))
        return out

    def judge(
        self, released: Mapping[str, Released], since: int, shelf: Shelf | None = None, observe: Observe = nothing
    ) -> Stepped:
        """Compute a step from the events released of each source.  O(events and updates); nothing changes.

        ``shelf``: where updates of a large step lie.  ``observe``: is shown each judgement once, when its events have
        been judged.
        """
        given = {name: each for name, each in released.items() if each.total}
        return Computation(self, given, since, shelf or Shelf(None, 0), observe).run()

    def stateless(self, node: plan.Collection, inputs: list[Updates]) -> Updates:
        """What an operator without state makes of its inputs' updates.  O(updates)."""
        if isinstance(node, plan.Filter):
            return linear.filter_rows(inputs[0], node.predicate)
        if isinstance(node, plan.Project):
            here = [i for i, f in enumerate(node.schema) if f.name in self.needed[node]]
            schema = pa.schema([node.schema.field(i) for i in here])
            return linear.project(inputs[0], schema, [node.columns[i] for i in here])
        if isinstance(node, plan.Negate):
            return linear.negate(inputs[0])
        if isinstance(node, Unnest):
            return linear.unnest(inputs[0], node.schema, node.column)
        if isinstance(node, plan.Concat):
            return linear.concat(inputs)
        assert isinstance(node, plan.Consolidate), node
        return consolidated(inputs[0], self.secret)

    def apply(self, stepped: Stepped, upper: int, since: int) -> None:
        """Take a computed step into the state.  Amortised O(versions written)."""
        for name, upsert in self.upserts.items():
            changes = stepped.changes.get(name, ())
            if upsert.expiring is not None and name in stepped.seen:
                upsert.expiring.take(changes, stepped.seen[name])
            upsert.arranged.apply(changes, upper, since)
        for node, count in self.counts.items():
            count.arranged.apply(stepped.counted.get(node, ()), upper, since)
        for each, back in self.backs.items():
            back.apply(stepped.shown.get(each, ()))

    def refill(self, last: int) -> None:
        """Fill what is held for upserts from what their collections hold, at a time.  O(rows of the sources).

        Raises `NotUnique` or `NotHeld` where a plan asks for upserts, and did not before, that cannot be.
        """
        for node, back in self.backs.items():
            back.fill(self.held(node.inputs[0])._replace(times=ints(last)))

    def read(self, node: plan.Collection, as_of: int | None) -> pa.Table:
        """A collection as of a time, by default now: its rows and ``_diff``, consolidated.

        O(rows of the sources it needs).
        """
        return consolidated(self.held(node, as_of), self.secret).to_table(node.schema, None)

    def held(self, node: plan.Collection, as_of: int | None = None) -> Updates:
        """The rows of a collection as of a time, by default now, not consolidated.  O(rows of the sources)."""
        walk, wanted = [node], set[plan.Collection]()
        while walk:
            each = walk.pop()
            if each not in wanted:
                wanted.add(each)
                walk += () if isinstance(each, plan.Source | plan.Count) else each.inputs
        done: dict[plan.Collection, Updates] = {}
        for each in self.plan.nodes:  # a collection stands behind what it is made of
            if each in wanted:
                done[each] = self._made(each, as_of, done)
        return done[node]

    def _made(self, node: plan.Collection, as_of: int | None, done: dict[plan.Collection, Updates]) -> Updates:
        if isinstance(node, plan.Source | plan.Count):
            arranged = self.upserts[node.name].arranged if isinstance(node, plan.Source) else self.counts[node].arranged
            rows = arranged.read(as_of).select(node.schema.names)
            n = rows.num_rows
            return Updates(rows, np.zeros(n, np.int32), np.ones(n, np.int64), ints(0))  # one time, whichever
        # A projection may have been pruned for the step's sake; a read wants all its columns.
        inputs = [done[each] for each in node.inputs]
        if isinstance(node, Back):
            shown = self.backs[node].shown(inputs[0]._replace(times=ints(as_of or 0)))
            return shown._replace(rows=shown.rows.select(node.schema.names))
        if isinstance(node, plan.Project):
            return linear.project(inputs[0], node.schema, node.columns)
        return self.stateless(node, inputs)

    def _check(self) -> None:
        for arrangement in self.arrangements.values():
            arrangement._check()


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
