"""Inputs of an opened plan: what makes updates of the events of each.

Invariant: graph, step, checkpoint and tools ask an input by the methods that all of them have, and not of which kind it
is. A kind is a binding in ``ddflow/plan`` and what runs it here: one line of `KINDS`.

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.bind import bind
>>> from ddflow.plan.inputs.spec import Upsert
>>> type(opened_input(bind("v", pa.schema({"k": pa.int64()}), Upsert("k")), Secret(1, 2))).__name__
'RunningUpsert'
"""

from typing import Any, Final

from ddflow.columns.hashing import Secret
from ddflow.columns.threads import ALONE, Threads
from ddflow.operators.differences import RunningDifferences, TakenIn
from ddflow.operators.upsert.resolution import Resolution
from ddflow.operators.upsert.upsert import RunningUpsert
from ddflow.plan.inputs.bind import Bound
from ddflow.plan.inputs.differences import BoundDifferences

RunningInput = RunningUpsert | RunningDifferences
Outcome = Resolution | TakenIn
"""Of some events of an input: ``counts``, ``verdict``, ``updates(schema)``, ``changes``."""
KINDS: Final[dict[type, Any]] = {Bound: RunningUpsert, BoundDifferences: RunningDifferences}


def opened_input(bound: Bound | BoundDifferences, secret: Secret, threads: Threads = ALONE) -> RunningInput:
    """Open an input with empty state."""
    made: RunningInput = KINDS[type(bound)](bound, secret, threads)
    return made
