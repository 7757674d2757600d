"""Fold a log without a state: return the live rows after all events of the log (merge-on-read).

Guarantees: the result equals the collection of an engine after the same events, whatever the size of the calls.
docs/semantics.md describes the exceptions under "Schedule". `verify` compares a state with this result. The fold runs
the same kernels in an engine in memory, with all events in one call. A part of the log may be marked with `ddflow.Full`
or `ddflow.Restated`. Such a part replaces the contents of the earlier parts. Limits: a log does not show which events
were late (``late=``, ``lateness=``), which events expired, and which were not ingested because their call was refused.
With ``noop_ignore=``, a log does not show which of two equal rows came first. The result lacks the column of
``ingested=``, because a log does not have the times of steps.
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
    """Fold a log without a state, and return the live rows after all events of the log.

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
    """Yield an input that has the rows of `merge_on_read`. Read the input within the ``with`` block.

    ``format``: the format of messages, if they were decoded to rows of a history.
    """
    parts, first = _peek_log_parts(log) if schema is None else (iterate_parts(log, repr(LOG)), schema)
    if first is None:
        raise NotArrow(f"rows for {LOG!r}", "the log is empty, so its columns are not known", "pass schema=", input=LOG)
    declared = to_arrow_schema(first, f"the schema of {LOG!r}")
    flow = Flow()
    # stale= adds rows that do not belong to the collection.
    alone = replace(spec, stale="drop", expiry=None, ingested=None) if isinstance(spec, Upsert) else spec
    late: Any = spec.late if spec.holds_back else "error"
    alone = replace(alone, lateness=None, watermark=None, ahead=None, late=late)
    input = flow._add_input(bind_input(LOG, declared, alone, format=format))
    # A flow needs an output, and a count of all rows is the cheapest output.
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
    """Feed a part of a log to the input ``name``, with the engine call that belongs to the mark of the part.

    ``allowed``: the number of keys that full contents, or a corrected history, may lack; unlimited for a log. The
    function takes as long as the same calls of an engine, and raises the same errors.
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
    """Combine the parts of a log into as few calls as possible. Adjacent parts with plain events form one call."""
    for marked, each in groupby(parts, lambda part: isinstance(part, MARKS)):
        if marked or bound.merging is not None:
            # Make one call for each part. With a merging spec, a column that a part lacks must keep its values; in a
            # larger call it would be null.
            yield from each
        else:
            events = chain.from_iterable(convert_part_to_batches(part, bound) for part in each)
            yield pa.RecordBatchReader.from_batches(declared, events)


def _peek_log_parts(log: Any) -> tuple[Iterator[Any], Any]:
    """Return the parts of a log, and the first part, which shows the schema. The first part of an empty log is None."""
    parts = iterate_parts(log, repr(LOG))
    for part in parts:
        if isinstance(part, MARKS):
            part = replace(part, rows=to_arrow_rows(part.rows, repr(LOG), pa.schema([])))
            return chain([part], parts), part.rows
        part = to_arrow_rows(part, repr(LOG), pa.schema([]))
        return chain([part], parts), part
    return parts, None
