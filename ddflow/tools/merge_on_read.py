"""Fold a log without state: return the live rows after all its events (merge-on-read).

Guarantees: the result equals the collection of an engine after the same events, in calls of any size, as far as
docs/semantics.md promises under "Schedule". `verify` compares a state with it. The fold runs the same kernels in an
engine in memory, with all events in one call. A part in a mark, `ddflow.Full` or `ddflow.Restated`, replaces the
contents before it.
Limits: a log does not tell which events were late (``late=``, ``lateness=``), were left out by a refused call, or
expired. With ``noop_ignore=`` it does not tell which of two equal rows came first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, groupby
from os import PathLike
from typing import Any

import pyarrow as pa

from ddflow.columns.declared import to_arrow_schema
from ddflow.columns.hashing import Secret
from ddflow.connectors.formats.base import Format
from ddflow.connectors.to_arrow import to_arrow_rows
from ddflow.dataflow.result import Step
from ddflow.engine.engine import Engine, Flow
from ddflow.engine.lineage.log_parts import MARKS, Full, Restated, convert_part_to_batches, iterate_parts
from ddflow.engine.replace import AbsenceLimit
from ddflow.errors import NotArrow
from ddflow.operators.inputs import RunningInput
from ddflow.plan.inputs.input import Binding, Spec, bind_input
from ddflow.plan.inputs.spec import Upsert
from ddflow.time import CLOSED, Time

ANY = AbsenceLimit(empty=True)
LOG = "log"
"""Name of the input in messages."""


def merge_on_read(
    log: Any,
    spec: Upsert,
    schema: Any = None,
    *,
    memory: str | int | None = None,
    spill: str | PathLike[str] | None = None,
    secret: Secret | None = None,
) -> pa.Table:
    """Fold a log without state, and return the live rows after all its events.

    Parameters
    ----------
    log : table or iterable of tables
        Tables, record batches, a reader, any Arrow object, or an iterable of these, in the order of arrival.  Put full
        contents into a mark, see `ddflow.engine.lineage.log_parts`.
    spec : Upsert
        The rules for upserts.
    schema : pyarrow.Schema, optional
        The columns of the events.  By default the columns of the first part.  A missing column is null.
    memory, spill
        See `Flow.open`.  With both, the log is streamed and may be larger than memory; the live rows must fit.
    secret : Secret, optional
        The secret of the hash order.

    Returns
    -------
    pyarrow.Table
        The live rows, each once, in hash order.

    Raises
    ------
    NotArrow, SchemaMismatch, SpecError, NullKey, BudgetExceeded
        Like `Engine.step`.
    TieRefused
        With ``tie="error"``, for two events that tie anywhere in the log.
    DdflowError
        For a part in a mark: the errors of `Engine.replace`.

    Notes
    -----
    O(n) expected, for n events.

    Examples
    --------
    >>> log = pa.table({"id": [1, 2, 1], "city": ["Bern", "Basel", "Chur"]})
    >>> sorted(merge_on_read(log, Upsert(key="id"))["city"].to_pylist())
    ['Basel', 'Chur']

    >>> import pyarrow as pa
    >>> from ddflow.plan.inputs.spec import tombstone
    >>> log = pa.table({"order_id": [1, 1, 2, 2], "ts": [200, 100, 100, 200], "deleted": [False, False, False, True]})
    >>> merge_on_read(log, Upsert(key="order_id", order_by="ts", delete=tombstone("deleted"))).to_pylist()
    [{'order_id': 1, 'ts': 200}]
    """
    with fold_log(log, spec, schema, memory=memory, spill=spill, secret=secret) as upsert:
        return upsert.output_arrangement.read().select(upsert.bound.row_schema.names)


@contextmanager
def fold_log(
    log: Any,
    spec: Spec,
    schema: Any = None,
    *,
    memory: str | int | None = None,
    spill: str | PathLike[str] | None = None,
    secret: Secret | None = None,
    format: Format | None = None,
) -> Iterator[RunningInput]:
    """Yield the input with the rows of `merge_on_read`.  Read it within the ``with`` block.

    ``format``: the format of messages, if they were decoded to rows of a history.
    """
    parts, first = _peek_log_parts(log) if schema is None else (iterate_parts(log, repr(LOG)), schema)
    if first is None:
        raise NotArrow(f"rows for {LOG!r}", "there is no part that tells of columns", "give schema=", input=LOG)
    declared = to_arrow_schema(first, f"the schema of {LOG!r}")
    flow = Flow()
    # Rows added by stale= are no part of the collection.
    alone = replace(spec, stale="drop", expiry=None) if isinstance(spec, Upsert) else spec
    input = flow._add_input(bind_input(LOG, declared, replace(alone, lateness=None), format=format))
    # A flow needs an output; this one needs least of each row.
    flow.output("rows", input.count(by=[]))
    with flow.open(memory=memory, spill=spill, secret=secret) as engine:
        for time, part in enumerate(_group_parts_into_calls(parts, declared, input.bound)):
            feed_log_part(engine, LOG, part, time)
        if flow.holds_back:
            engine.advance_to(CLOSED)
        yield engine.dataflow.graph.inputs[LOG]


def feed_log_part(
    engine: Engine, name: str, part: Any, time: Time, epoch: int | None = None, allowed: AbsenceLimit = ANY
) -> Step:
    """Feed a part of a log to the input ``name``, in the engine call that its mark demands.

    ``allowed``: the number of keys that full contents, or a corrected history, may lack; unlimited for a log.  Has the
    cost and the errors of the call.
    """
    if isinstance(part, Full):
        most, empty = allowed
        return engine.replace(
            name, part.rows, time, part.scope, order=part.order, max_absent=most, allow_empty=empty, epoch=epoch
        )
    if isinstance(part, Restated):
        return engine.restate(name, part.rows, time, order=part.order, allow_empty=allowed.empty, epoch=epoch)
    if engine.flow.holds_back:
        return engine.push({name: part}, epoch=epoch)
    return engine.step({name: part}, time, epoch=epoch)


def _group_parts_into_calls(parts: Iterator[Any], declared: pa.Schema, bound: Binding) -> Iterator[Any]:
    """Group the parts into the fewest calls: adjacent events form one call."""
    for marked, each in groupby(parts, lambda part: isinstance(part, MARKS)):
        if marked or bound.merging is not None:
            # One call for each part: with merging, a missing column keeps its values instead of being null.
            yield from each
        else:
            events = chain.from_iterable(convert_part_to_batches(part, bound) for part in each)
            yield pa.RecordBatchReader.from_batches(declared, events)


def _peek_log_parts(log: Any) -> tuple[Iterator[Any], Any]:
    """Return the parts of a log, and the first part to read the schema from; None for an empty log."""
    parts = iterate_parts(log, repr(LOG))
    for part in parts:
        if isinstance(part, MARKS):
            part = replace(part, rows=to_arrow_rows(part.rows, repr(LOG), pa.schema([])))
            return chain([part], parts), part.rows
        part = to_arrow_rows(part, repr(LOG), pa.schema([]))
        return chain([part], parts), part
    return parts, None
