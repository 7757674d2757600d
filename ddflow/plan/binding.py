"""What an input is bound to: its spec joined with its schema, whichever kind of input it is.

Invariant: a kind of input is known here by its spec and its binding only, which answer the same questions.

>>> from ddflow.plan.spec import Upsert
>>> schema = pa.schema({"id": pa.int64()})
>>> bound_to("log", schema, Differences()).key_schema.names, bound_to("people", schema, Upsert("id")).key_schema.names
(['id'], ['id'])
"""

from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from ddflow.connectors.formats.base import Format
from ddflow.plan.bind import Bound, bind
from ddflow.plan.differences import BoundDifferences, Differences, bind_differences
from ddflow.plan.merge.bind_machine import bind_machine
from ddflow.plan.merge.machine import Machine
from ddflow.plan.spec import Upsert
from ddflow.time import INT64

Binding = Bound | BoundDifferences
Spec = Upsert | Differences
_BIND: Final[dict[type, Any]] = {Upsert: bind, Differences: bind_differences}


def bound_to(
    name: str,
    schema: pa.Schema,
    spec: Spec,
    machine: Machine | None = None,
    format: Format | None = None,
    times: pa.DataType = INT64,
) -> Binding:
    """Join an input's schema, its spec, and its machine or its format.  O(columns).

    ``times``: the type of steps' times, in epoch mode.  Raises `SpecError` or `ExpressionError`.
    """
    given: Any = spec
    made: Binding
    if machine is not None:
        made = bind_machine(name, schema, given, machine)
    else:
        made = _BIND[type(given)](name, schema, given, format)
    return made if spec.holds_back or times == made.time_type else replace(made, time_type=times)
