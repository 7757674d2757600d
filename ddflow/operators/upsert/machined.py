"""Machines in a step: the values that they make of the events that the walk folds.

Invariant: a key's row after a time is what its machine holds then. A key that holds nothing has no row; its order
stays, as a deleted key's does. The walk knows of orders only: it calls a key live whose last event was no delete,
though a machine may have dropped all values. The rows are resolved like any others.

>>> from ddflow.plan.merge.machine import Machine
>>> from ddflow.plan.merge.bind_machine import bind_machine
>>> from ddflow.operators.upsert.events import Events
>>> from ddflow.columns.hashing import Secret
>>> from ddflow.operators.upsert.upsert import RunningUpsert, ints
>>> from ddflow.plan.inputs.spec import Upsert as Spec
>>> schema = pa.schema({"k": pa.int64(), "symbol": pa.string()})
>>> ring = Machine("at", {(0, "up"): 1, (1, "up"): 0}, on="symbol", start=0)
>>> upsert = RunningUpsert(bind_machine("rings", schema, Spec("k"), ring), Secret(1, 2))
>>> events = pa.record_batch({"k": [1, 1, 1], "symbol": ["up", "up", "up"]}, schema)
>>> resolved = upsert.resolve(Events(events, ints(0, 0, 0), ints(0, 0, 0), ints(0, 1, 2)), ints(0), since=0)
>>> resolved.updates(upsert.bound.row_schema).to_table(upsert.bound.row_schema, None).to_pylist()
[{'k': 1, 'at': 1, '_diff': 1}]
"""

import numpy as np
import pyarrow as pa

from ddflow.columns.rows import shown_row
from ddflow.errors import IllegalTransition
from ddflow.operators.upsert.walking import Walking
from ddflow.plan.merge.chains import Chains
from ddflow.plan.merge.records import kind_of, to_records
from ddflow.plan.merge.rounds import picked


def columns(of: Walking) -> dict[str, pa.Array]:
    """Run the machine, and return its column by key and time; write to ``of.taken.live`` which keys hold a value.

    O(events) and what a function takes.  Raises `IllegalTransition`, `MergerFailed`, `ListTooLong`.
    """
    machined = of.merging.machine
    assert machined is not None
    field, action = machined.column, of.taken.action[0]
    rows = of.events.rows.select(machined.schema.names)
    held = of.gathered(of.cells, field)

    def key(row: int) -> str:
        return str(shown_row(rows.select(list(of.upsert.bound.spec.key)), row))

    if machined.automaton is not None:
        assert machined.machine.on is not None, "a table is asked by a column"
        symbols = rows.column(machined.machine.on)
        made, there, row, state = machined.automaton.run(of.steps, action, symbols, held)
        if row >= 0:
            raise IllegalTransition(
                machined.asked,
                f"the key {key(row)} is in {machined.automaton.states[state].as_py()!r}, from which "
                f"{shown_row(rows.select([machined.machine.on]), row)} leads nowhere",
                "name the transition, or use otherwise='stay' or 'drop'; nothing was changed",
            )
    else:
        secret = of.upsert.secret
        if machined.machine.scalar:
            records = to_records(rows, kind_of(machined.schema, machined.asked))
            made = machined.scalar(of.steps, action, records, held, secret, key)
        else:
            chains = Chains(of.steps, action)
            made = machined.vector(chains, picked(rows, chains.rows), held, secret, key)
        there = np.asarray(made.is_valid())
    of.taken.live[:] = there
    return {field.name: made}
