"""One step, computed: events become updates, updates flow through the operators, and nothing changes yet.

Invariant: what comes out does not depend on how many pieces the events came in. A piece is all events of some range of
identities; most steps are one. Operators without state pass pieces on as they come; a count, or a consolidation, sees
equal rows of all pieces together, for which they are brought into ranges of their own. Scratch is used again by the
next piece, so what outlives one (updates for an output or for a keyed operator, changes of state) is laid on the shelf,
in files where memory is short; and each node is computed once, however many read it.

>>> import pyarrow as pa
>>> from ddflow.dataflow.graph import Circuit
>>> from ddflow.plan.flow import Flow
>>> from ddflow.columns.hashing import Secret
>>> from ddflow.plan.spec import Upsert
>>> flow = Flow()
>>> v = flow.upserts("v", {"k": pa.int64()}, Upsert(key="k"))
>>> _ = flow.output("n", v.count([]))
>>> events = pa.record_batch({"k": [1, 2]}, schema=v.schema)
>>> sealed = Sealed(events, np.zeros(2, np.int64), np.zeros(2, np.int64), np.arange(2))
>>> stepped = Circuit(flow, Secret(1, 2)).judge({"v": Released.of(sealed)}, since=0)
>>> stepped.outputs["n"].to_pylist()
[{'count': 2, '_time': 0, '_diff': 1}]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, identities
from ddflow.columns.schema import empty
from ddflow.dataflow.buffer import Shelf
from ddflow.operators import linear
from ddflow.operators.back_node import Back
from ddflow.operators.held_rows import Change as Held
from ddflow.operators.updates import Updates, consolidated, few, ints
from ddflow.operators.upsert.events import Sealed
from ddflow.operators.upsert.expiring import Seen
from ddflow.operators.upsert.upsert import Judgement
from ddflow.plan import flow as plan
from ddflow.trace.arrangement import Arrangement, Change

if TYPE_CHECKING:
    from ddflow.dataflow.graph import Circuit

Observe = Callable[[Judgement], None]
KEYED = (plan.Count, plan.Consolidate, plan.Concat, Back)
"""Operators that must see all pieces together."""
GATHERED = 1 << 18
"""Updates that a keyed operator takes together, where memory is short."""


def nothing(_: Judgement) -> None:
    """Look at nothing."""


class Released(NamedTuple):
    """Events of one source whose time has come."""

    total: int
    times: Ints
    """int64: the distinct times, ascending."""
    pieces: Iterable[Sealed]
    """All events of some range of identities each, ranges ascending."""

    @classmethod
    def of(cls, sealed: Sealed | None) -> Released:
        """All events in one piece."""
        if sealed is None or not sealed.times.size:
            return cls(0, ints(), ())
        times = sealed.times
        first = np.flatnonzero(times[1:] != times[:-1])
        return cls(times.size, np.concatenate([times[:1], times[1:][first]]), [sealed])


class Stepped(NamedTuple):
    """A computed step: what it puts out, and what it will change."""

    outputs: dict[str, pa.Table]
    changes: dict[str, list[Change]]
    """By source."""
    counted: dict[plan.Collection, list[Change]]
    shown: dict[plan.Collection, list[Held]]
    """What upserts that go out were made of."""
    counts: dict[str, Ints]
    """By source, int64[8]: events by verdict."""
    seen: dict[str, Seen]
    """By source that expires, what it brings for the next step."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the changes will add to the state."""
        every = [change for changes in (*self.changes.values(), *self.counted.values()) for change in changes]
        held = sum(change.nbytes for changes in self.shown.values() for change in changes)
        return held + sum(change.batch.nbytes for change in every if change.batch.mapped is None)


class Computation:
    """``circuit``: the operators.  ``released``: the events, by source.  ``since``: what it will be after the step."""

    def __init__(
        self, circuit: Circuit, released: Mapping[str, Released], since: int, shelf: Shelf, observe: Observe
    ) -> None:
        self.circuit, self.released, self.since, self.shelf, self.observe = circuit, released, since, shelf, observe
        times = [each.times for each in released.values()]
        self.times = times[0] if len(times) == 1 else np.unique(np.concatenate([ints(), *times]))
        self.done: dict[plan.Collection, list[Updates]] = {}
        self.out = Stepped({}, {}, {}, {}, {}, {})
        nodes = [node for node in circuit.plan.nodes if node in circuit.needed]
        kept = set(circuit.plan.outputs.values())
        kept.update(each for node in nodes if isinstance(node, KEYED) for each in node.inputs)
        self.nodes, self.kept = nodes, kept
        self.many = any(each.total and not isinstance(each.pieces, list) for each in released.values())

    def run(self) -> Stepped:
        """The whole step.  O(events and updates).  Raises what operators raise; nothing has changed then."""
        for node in self.nodes:
            if isinstance(node, plan.Source):
                self._judge(node)
            elif isinstance(node, plan.Count):
                self._count(node)
            elif isinstance(node, Back):
                self._show(node)
            elif isinstance(node, plan.Concat):
                self._concat(node)
            elif isinstance(node, plan.Consolidate):
                for piece in self._gathered(node.inputs[0]):
                    self._spread(node, consolidated(piece, self.circuit.secret))
            elif not node.inputs:
                arrived = self.circuit.stateless(node, [])
                self.times = arrived.times
                self._spread(node, arrived)
        # A source whose columns nobody reads is judged all the same.
        for name in self.released:
            if name not in self.out.changes:
                self._judge(self.circuit.plan.sources[name])
        time_type = self.circuit.plan.time_type
        for name, node in self.outputs():
            if isinstance(node, Back):
                told = self.circuit.backs[node].told
                table = self.shelf.output(self.done[node], told.shown, time_type)
                self.out.outputs[name] = table.select(told.out.names)
                continue
            pieces = self._pieces(node) if node.distinct else self._consolidated(node)
            self.out.outputs[name] = self.shelf.output(pieces, node.schema, time_type)
        return self.out

    def outputs(self) -> Iterable[tuple[str, plan.Collection]]:
        """The outputs that are put out, by name."""
        return self.circuit.plan.outputs.items()

    def arrived(self, node: plan.Collection, by: Sequence[str] | None) -> list[Updates]:
        """The updates of a node that a keyed operator, or an output, reads by some columns (None: all)."""
        del by
        return self._pieces(node)

    def _judge(self, node: plan.Source) -> None:
        upsert, counts = self.circuit.upserts[node.name], np.zeros(8, np.int64)
        if node.name not in self.released:
            return
        changes = self.out.changes[node.name] = []
        wanted = self.circuit.needed.get(node)
        schema = node.schema if wanted is None else pa.schema([f for f in node.schema if f.name in wanted])
        for sealed in self.released[node.name].pieces:
            judgement = upsert.judge(sealed, self.times, self.since, self.circuit.winners)
            counts += judgement.counts
            if upsert.expiring is not None:
                self.out.seen[node.name] = judgement.seen.plus(self.out.seen.get(node.name, Seen()))
            self.observe(judgement)
            if wanted is not None:
                self._spread(node, judgement.updates(schema))
            changes.extend(self._kept(upsert.arranged, change) for change in judgement.changes)
        self.out.counts[node.name] = counts

    def _kept(self, arranged: Arrangement, change: Change) -> Change:
        """A change that outlives its piece: in files, where the step is in pieces since memory is short."""
        if not self.many or self.shelf.home is None:
            return change
        return arranged.shelved(change, self.shelf.home)

    def _count(self, node: plan.Count) -> None:
        count = self.circuit.counts[node]
        changes = self.out.counted[node] = []
        for piece in self._gathered(node.inputs[0], node.by):
            updates, change = count.judge(piece, self.since)
            self._spread(node, updates)
            changes.append(self._kept(count.arranged, change))

    def _show(self, node: Back) -> None:
        back = self.circuit.backs[node]
        changes, upserts = self.out.shown.setdefault(node, []), self.done.setdefault(node, [])
        for piece in self._gathered(node.inputs[0], list(node.key)):
            made, change = back.judge(piece)
            upserts.append(self.shelf.lay(made) if self.many else made)
            if change is not None:
                changes.append(change.own() if self.many else change)

    def _concat(self, node: plan.Concat) -> None:
        inputs = [self._pieces(each) for each in node.inputs]
        if all(len(pieces) == 1 for pieces in inputs):
            self._spread(node, linear.concat([pieces[0] for pieces in inputs]))
            return
        for pieces in inputs:
            for piece in pieces:
                same = pa.Table.from_arrays(piece.rows.columns, schema=node.schema)
                self._spread(node, piece._replace(rows=same))

    def _spread(self, node: plan.Collection, updates: Updates) -> None:
        """Give a piece of a node's updates to all that pass it on; keep it where it is needed whole."""
        fresh: dict[plan.Collection, Updates] = {node: updates}
        for each in self.nodes:
            if each.inputs and each.inputs[0] in fresh and not isinstance(each, KEYED):
                fresh[each] = self.circuit.stateless(each, [fresh[each.inputs[0]]])
        for each, made in fresh.items():
            if each in self.kept:
                self.done.setdefault(each, []).append(self.shelf.lay(made) if self.many else made)

    def _pieces(self, node: plan.Collection) -> list[Updates]:
        """All pieces of a node's updates; an empty one where there are none."""
        found = self.done.get(node)
        if found:
            return found
        wanted = self.circuit.needed[node]
        schema = pa.schema([field for field in node.schema if field.name in wanted])
        return [Updates(empty(schema), few(), ints(), self.times)]

    def _consolidated(self, node: plan.Collection) -> list[Updates]:
        return [
            self.shelf.lay(made) if self.many else made
            for made in (consolidated(piece, self.circuit.secret) for piece in self._gathered(node))
        ]

    def _gathered(self, node: plan.Collection, by: list[str] | None = None) -> Iterator[Updates]:
        """A node's updates with equal rows (by some columns; None: all) in one piece, ranges ascending."""
        pieces = self.arrived(node, by)
        if len(pieces) == 1:
            yield pieces[0]
            return
        total = sum(piece.diffs.size for piece in pieces)
        bits = (total // GATHERED).bit_length() if self.shelf.scratch is not None else 0
        ranged = [self._ranged(piece, by, bits) for piece in pieces]
        for number in range(1 << bits):
            parts = [piece.between(int(ends[number]), int(ends[number + 1])) for piece, ends in ranged]
            yield linear.concat(parts)

    def _ranged(self, piece: Updates, by: list[str] | None, bits: int) -> tuple[Updates, Ints]:
        """A piece in the order of ranges of its rows' identities, by some columns, and where each range ends."""
        if not bits:
            return piece, ints(0, piece.diffs.size)
        names = piece.rows.schema.names if by is None else by
        high, _ = identities(piece.rows.select(names), self.circuit.secret, piece.diffs.size)
        at = (high >> np.uint64(64 - bits)).astype(np.uint16)
        ends = np.concatenate([ints(0), np.cumsum(np.bincount(at, minlength=1 << bits))])
        return self.shelf.lay(piece.picked(np.argsort(at, kind="stable"))), ends
