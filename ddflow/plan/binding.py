"""What an input is bound to: its spec joined with its schema, whichever kind of input it is.

Invariant: a kind of input is known here by its spec and its binding only, which answer the same questions.

>>> from ddflow.plan.spec import Upsert
>>> schema = pa.schema({"id": pa.int64()})
>>> bound_to("log", schema, Differences()).key_schema.names, bound_to("people", schema, Upsert("id")).key_schema.names
(['id'], ['id'])
"""

import pyarrow as pa

from ddflow.plan.bind import Bound, bind
from ddflow.plan.differences import BoundDifferences, Differences, bind_differences
from ddflow.plan.spec import Upsert

Binding = Bound | BoundDifferences
Spec = Upsert | Differences


def bound_to(name: str, schema: pa.Schema, spec: Spec) -> Binding:
    """Join an input's schema and its spec.  O(columns).  Raises `SpecError` or `ExpressionError`."""
    return bind_differences(name, schema, spec) if isinstance(spec, Differences) else bind(name, schema, spec)
