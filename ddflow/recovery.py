"""An engine's state as one inventory, for a commit; and an engine filled with it again.

Invariant: an engine that was filled goes on as if it had never been closed: same answers, same verdicts, same merges.
Why that is not trivial: a plan may have gained a column or an output meanwhile.  Rows that were stored without a column
have null there, and hashes of values that know of it; a count that nobody kept is made of what its input holds now, and
the outputs that are new owe their contents, which the next step gives before its own updates.  It does not publish
(``ledger``) nor say what may change (``reopening``).

>>> import pyarrow as pa, ddflow as dd
>>> from ddflow.store.memory import MemoryStore
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("people", people)
>>> store = MemoryStore()
>>> with flow.open(store) as engine:
...     _ = engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
>>> _ = flow.output("by_city", people.project(["city"]).count())
>>> with flow.open(store.writer()) as engine:
...     engine.step({}, time=2)["by_city"].to_pylist()
[{'city': 'Bern', 'count': 2, '_time': 1, '_diff': 1}]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from ddflow import batcher as pending
from ddflow.arrange import inventory
from ddflow.back import Back
from ddflow.errors import CorruptState
from ddflow.frontier import CLOSED, NEVER
from ddflow.identity import value_hashes
from ddflow.operators.updates import consolidated, ints
from ddflow.planned import node_ids
from ddflow.store.record import Record
from ddflow.store.vault import Vault
from ddflow.verdicts import NAMES

if TYPE_CHECKING:
    from ddflow.batcher import Batcher
    from ddflow.circuit import Circuit
    from ddflow.engine import Engine
    from ddflow.flow import Flow
    from ddflow.intake import Intake
    from ddflow.operators.upsert import Upsert


def take(engine: Engine, vault: Vault) -> dict[str, Any]:
    """Write what is in no file yet; all of the engine's state as plain values.

    O(bytes not written yet + files).  Raises `StorageFull`, `StorageFailed`; the engine is then as before.
    """
    circuit, ids = engine.circuit, node_ids(engine.flow)
    sources = {
        name: {
            "arrived": engine.intakes[name].arrived, "greatest": engine.intakes[name].greatest,
            "rows": inventory.take(upsert.arranged, vault), "runs": pending.take(engine.batchers[name], vault),
            **({} if upsert.expiring is None else {"horizon": upsert.expiring.horizons.greatest}),
        } for name, upsert in circuit.upserts.items()
    }  # fmt: skip
    counts = {ids[node]: inventory.take(count.arranged, vault) for node, count in circuit.counts.items()}
    return {"sources": sources, "counts": counts, "totals": engine.totals}


class Fillable(Protocol):
    """What is filled: an engine, or a snapshot."""

    flow: Flow
    circuit: Circuit
    batchers: dict[str, Batcher]
    intakes: dict[str, Intake]
    totals: dict[str, int]
    frontier: int
    last: int
    since: int


def fill(engine: Fillable, record: Record, vault: Vault, indexed: bool, sieved: bool = True) -> None:
    """Fill a new engine, whose times are set, from an inventory.  O(bytes), and O(rows) for counts that are new.

    ``indexed``, ``sieved``: as in `inventory.restore`.  Raises `CorruptState`, naming the file.
    """
    circuit = engine.circuit
    kept, sources = record.record("counts"), record.record("sources")
    for name, upsert in circuit.upserts.items():
        if name not in sources:
            continue
        each, intake = sources.record(name), engine.intakes[name]
        intake.arrived, intake.greatest = each.number("arrived"), each.number("greatest", NEVER, CLOSED)
        inventory.restore(upsert.arranged, each.record("rows"), vault, indexed, _rehash(upsert), sieved)
        if upsert.expiring is not None and "horizon" in each:
            upsert.expiring.horizons.greatest = each.number("horizon", NEVER, CLOSED)
        engine.batchers[name] = pending.restore(each, upsert.bound.event_schema, vault, not indexed)
    totals = record.record("totals")
    engine.totals = {name: totals.number(name) for name in totals.names() if name in NAMES}
    ids = node_ids(engine.flow)
    for node, count in circuit.counts.items():
        if ids[node] in kept:
            inventory.restore(count.arranged, kept.record(ids[node]), vault, indexed, sieved=sieved)
        elif engine.last > NEVER:
            held = circuit.held(node.inputs[0])._replace(times=ints(engine.last))
            _, change = count.judge(held, engine.since)
            count.apply(change, engine.frontier, engine.since)
    arrived = sum(intake.arrived for intake in engine.intakes.values())
    if arrived != sum(engine.totals.values()) + sum(map(len, engine.batchers.values())):
        raise CorruptState(record.what, f"{arrived:,} events came in, and others are judged or pending",
                           "restore it from a copy, or go back with ddflow rollback")  # fmt: skip


def contents(engine: Engine, name: str) -> pa.Table:
    """All that an output holds, as updates of the last closed time, or as upserts of it.  O(rows)."""
    node = engine.flow.outputs[name]
    if isinstance(node, Back):
        back, held = engine.circuit.backs[node], engine.circuit.held(node.inputs[0])
        return back.told.told(back.shown(held._replace(times=ints(engine.last))))
    held = consolidated(engine.circuit.held(node), engine.secret)._replace(times=ints(engine.last))
    return held.to_table(node.schema, engine.flow.time_type)


def _rehash(upsert: Upsert) -> inventory.Rehash:
    return lambda rows: value_hashes(rows.select(upsert.bound.tracked), upsert.secret)
