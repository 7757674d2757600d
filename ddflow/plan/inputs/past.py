"""Past columns: those that a plan had when an epoch was committed, where it has wider or more columns now.

Invariant: an epoch is compared, and its files are read, by the columns that it was given with, for as long as it can be
given again. Files and digests know no types of their own, so a manifest keeps the columns of its receipts.

>>> from ddflow.plan.inputs.spec import Upsert
>>> plan = Plan()
>>> _ = plan.output("people", plan.upserts("people", {"id": pa.int64()}, Upsert(key="id")))
>>> past = PastSchemas.of(past_columns(plan, 7), "an example")
>>> past.epoch, past.inputs["people"].names, past.outputs["people"].names
(7, ['id'], ['id', '_time', '_diff'])
>>> at([past], 7) is past, at([past], 8)
(True, None)
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from ddflow.errors import CorruptState
from ddflow.plan.plan import Plan
from ddflow.storage.epochs import PastColumns
from ddflow.storage.fields import MEND


class PastSchemas(NamedTuple):
    """Past columns.  ``epoch``: the last one with these columns of ``inputs`` and ``outputs``, side ones included."""

    epoch: int
    inputs: Mapping[str, pa.Schema]
    outputs: Mapping[str, pa.Schema]

    @classmethod
    def of(cls, record: PastColumns, what: str) -> PastSchemas:
        """Read the past columns of a manifest.  ``what``: names it in errors.  O(columns).  Raises `CorruptState`."""
        given = record.inputs, record.outputs
        return cls(record.epoch, *({name: schema_of(text, what) for name, text in each.items()} for each in given))


def past_columns(plan: Plan, epoch: int) -> PastColumns:
    """Record the columns of a plan for a manifest.  O(columns)."""
    names = [*plan.outputs, *plan.side_outputs()]
    outputs = {name: plan.updates_schema(name) for name in names}
    return PastColumns(
        epoch,
        {name: text_of(input.bound.schema) for name, input in plan.inputs.items()},
        {name: text_of(schema) for name, schema in outputs.items() if schema is not None},
    )


def carried(
    known: tuple[PastColumns, ...], before: Plan | None, last: int, oldest: int | None
) -> tuple[PastColumns, ...]:
    """Keep the past columns of epochs from ``oldest`` on; none if that is None.  O(columns).

    ``known``: those of the previous version.  ``before``: its plan, if the next one has other columns; ``last``: its
    epoch.
    """
    if before is not None and [each.epoch for each in known[-1:]] != [last]:
        known = (*known, past_columns(before, last))
    return tuple(each for each in known if oldest is not None and oldest <= each.epoch)


def at(past: Iterable[PastSchemas], epoch: int) -> PastSchemas | None:
    """Find the past columns of an epoch; None if the plan still has them.  ``past``: ascending.  O(``past``)."""
    return next((each for each in past if epoch <= each.epoch), None)


def text_of(schema: pa.Schema) -> str:
    """Write a schema as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str, what: str) -> pa.Schema:
    """Read the schema of a text.  Raises `CorruptState` for an invalid one."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, OSError, pa.ArrowException, ValueError) as error:
        raise CorruptState(what, f"its past columns are no schema ({error})", MEND) from None
