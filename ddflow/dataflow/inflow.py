"""Ingest the rows of one call: map the rows to inputs, admit them, and queue their events.

`IngestedRows` holds the admitted events of one input. With a budget, a large input is never completely in memory. Rows
are admitted and numbered as they arrive, and events can be spilled before the last row arrives. Guarantees: either all
rows of all inputs are ingested, or an error names the cause and nothing changes. Ingesting changes only copies of
batchers. When the call can no longer fail, the engine replaces the batchers by the changed copies.

>>> import pyarrow as pa, ddflow as dd
>>> admission = InputValidator(dd.Flow().upserts("v", {"v": pa.int64()}, dd.Upsert(key="v")).bound)
>>> parts = list(split_rows(pa.table({"v": range(10)}), admission, 32))
>>> [part.num_rows for part in parts]
[4, 4, 2]
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.columns.rows import gather_arrays
from ddflow.columns.schema import compute_decoded_size
from ddflow.connectors.formats.base import BAD as MARK, DELETED, Truncate
from ddflow.connectors.formats.messages import COLUMNS as MESSAGES
from ddflow.connectors.to_arrow import to_arrow_rows, to_table
from ddflow.dataflow.admission import DecodeProgress, InputValidator, Look, RefusedRows, Where
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.budget import MemoryBudget
from ddflow.dataflow.side_outputs import build_refused_verdicts
from ddflow.errors import BadMessage, BudgetExceeded, ErrorText, NotArrow, Option, SchemaMismatch, WrongMode
from ddflow.operators.updates import ints
from ddflow.operators.upsert.events import Events
from ddflow.operators.upsert.state import walk_live_keys
from ddflow.operators.upsert.upsert import RunningUpsert
from ddflow.terminal import format_size
from ddflow.time import CLOSED, NEVER

PIECE = 1 << 16
"""The number of keys in one batch of delete events."""


@dataclass
class IngestedRows:
    """The rows of one input in one call, and the results of ingesting these rows."""

    admission: InputValidator
    batcher: Batcher | None
    """The earlier pending events together with the events that this call admitted.

    None in epoch mode in memory, which has no pending events.
    """
    read: DecodeProgress
    """The progress of the call through the messages of the input."""
    frontier: int
    time: int | None
    """The time of the step in epoch mode, else None."""
    budget: MemoryBudget
    chunks: list[Events] = field(default_factory=list)
    """The admitted events, used only if there is no batcher."""
    rows: int = 0
    """The number of rows read so far, including refused rows."""
    counts: dict[str, int] = field(default_factory=dict)
    """The number of refused rows for each verdict."""
    greatest: int = NEVER
    """The greatest time of the admitted events, or NEVER if no event was admitted.

    If the input has a watermark, this is the greatest word of the watermark's column, and ``least`` is the least word.
    """
    least: int = CLOSED
    listed: list[pa.Table] | None = None
    """Tables of verdict rows, if verdict rows were requested."""
    bad: list[pa.Array] = field(default_factory=list)
    """For unreadable messages, the values of the mark column. The ``.bad`` side output shows these values."""

    def ingest_rows(self, given: Any, looks: Sequence[Look] = (), where: Where | None = None) -> None:
        """Admit rows and enqueue their events. Raises the errors of `InputValidator.validate_rows` and `enqueue`."""
        events, refused = self.admission.validate_rows(given, self.frontier, self.time, self.rows, looks, where)
        n = events.times.size
        if n:
            self.rows += n
            if self.admission.watermark is not None:
                least, greatest = self.admission.find_extent(events.rows)
                self.least = min(self.least, least)
            else:
                advanced = events.original is not events.times
                greatest = int(events.original.max() if advanced else events.times[-1])
            self.greatest = max(self.greatest, greatest)
            self.enqueue(events)
        if refused is not None:
            self.rows += refused.codes.size
            add_to_counts(self.counts, refused.counts_by_verdict)
            if self.admission.marks:
                self.bad.append(refused.events.rows.column(MARK).drop_null())
        if self.listed is not None:
            none = RefusedRows(events.slice_events(0, 0), ints())
            self.listed.append(build_refused_verdicts(self.admission.bound, refused or none))

    def enqueue(self, events: Events) -> None:
        """Add one or more events. If the pending events exceed their share of the budget, spill some of them to files.

        Raises `SpillFull`, `SpillFailed`.
        """
        budget = self.budget
        if self.batcher is not None:
            self.batcher = self.batcher.copy_with_events(events)
            if budget.home is not None and self.batcher.nbytes > budget.pending:
                self.batcher.spill(budget.home, budget.pending // 2, budget.chunk)
        else:
            self.chunks.append(events)

    @property
    def event_chunks(self) -> Iterable[Events]:
        """All events, split into chunks."""
        return self.chunks if self.batcher is None else self.batcher.peek_in_chunks(CLOSED)[1]


def build_truncate_deletes(upsert: RunningUpsert, inflow: IngestedRows, cut: Truncate) -> Iterator[pa.RecordBatch]:
    """Make batches with a delete event for each key that a truncate removes. O(held keys + earlier events of the call).

    ``inflow``: the earlier rows of the call. Raises `WrongMode` in hold-back mode. Raises `BadMessage` if the truncate
    message lacks a column by which events are ordered.

    >>> import pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> orders = flow.upserts("orders", {"id": pa.int64()}, dd.Upsert(key="id"), format=dd.formats.debezium())
    >>> _ = flow.output("orders", orders)
    >>> def message(op, id, lsn):
    ...     return {"value": f'{{"op": "{op}", "after": {{"id": {id}}}, "source": {{"lsn": {lsn}}}}}'}
    >>> with flow.open() as engine:
    ...     _ = engine.step({"orders": [message("c", 1, 10), message("c", 2, 30)]})
    ...     out = engine.step({"orders": [message("c", 3, 19), message("t", 0, 20), message("c", 4, 21)]})
    ...     sorted((row["id"], row["_diff"]) for row in out["orders"].to_pylist()), str(out.verdicts)
    ([(1, -1), (4, 1)], 'applied 2, superseded 1, noop 1, stale 1')
    """
    bound = upsert.bound
    asked = f"messages for {bound.name!r}"
    if bound.spec.holds_back:
        found = f"{cut.place}: it is a truncate, but the flow is in hold-back mode"
        raise WrongMode(
            asked, found, ErrorText("omit ", Option("time"), " in the spec, because a truncate has no event time")
        )
    if lost := [name for name in bound.spec.order_by if name not in cut.order]:
        found = f"{cut.place}: it is a truncate, but it has no order by {lost}"
        raise BadMessage(
            asked, found, ErrorText("omit ", Option("order_by"), ", so that the format sets it; nothing was ingested")
        )
    keys = bound.key_schema
    for high, _, references in walk_live_keys(upsert.output_arrangement):
        for begin in range(0, high.size, PIECE):
            rows = gather_arrays(upsert.output_arrangement.prepare_row_pool(), references[begin : begin + PIECE], keys)
            yield _build_delete_batch(upsert, rows, cut)
    before = [events.rows.select(keys.names) for events in inflow.event_chunks]
    if before:
        named = pa.Table.from_batches(before).group_by(keys.names).aggregate([]).select(keys.names)
        yield _build_delete_batch(upsert, [column.combine_chunks() for column in named.columns], cut)


def _build_delete_batch(upsert: RunningUpsert, keys: list[pa.Array], cut: Truncate) -> pa.RecordBatch:
    schema = upsert.bound.schema
    n = len(keys[0])
    columns = dict(zip(upsert.bound.key_schema.names, keys, strict=True))
    columns |= {
        name: pa.array([value], schema.field(name).type).take(_build_zero_indices(n))
        for name, value in cut.order.items()
    }
    columns[DELETED] = pa.array(np.ones(n, np.bool_))
    every = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(n, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(every, schema=schema)


def _build_zero_indices(n: int) -> pa.Array:
    return pa.array(np.zeros(n, np.int64))


def map_rows_to_inputs(inputs: Any, known: Mapping[str, InputValidator]) -> Mapping[str, Any]:
    """Map a call's rows to inputs.

    ``inputs``: a mapping from input names to rows, or only the rows if there is one input. If the flow has only one
    input, a dict whose keys are columns of this input is taken as rows of the input. The dict has a list of values for
    each column. O(number of inputs and of their columns). Raises `NotArrow` or `SchemaMismatch` if it is unclear which
    input the rows belong to.
    """
    if isinstance(inputs, (dict, Mapping)):  # the check of the abstract class is slow
        if inputs.keys() <= known.keys():
            return inputs
        only = next(iter(known.values()))
        columns = () if len(known) > 1 else only.bound.schema.names if only.bound.format is None else MESSAGES
        if not any(name in columns for name in inputs):
            raise make_unknown_input_error(next(name for name in inputs if name not in known), known)
    elif len(known) != 1:
        raise NotArrow(
            f"inputs from {type(inputs).__name__}",
            "it does not say which rows are for which input",
            f"pass {{name: rows}}; the inputs are {list(known)}",
        )
    return {next(iter(known)): inputs}


def group_full_contents_by_input(
    call: str, name: Any, rows: Any, known: Mapping[str, InputValidator]
) -> Mapping[str, Any]:
    """Map the rows of a `replace` or `restate` call to inputs. If ``rows`` is None, ``name`` contains the rows.

    Raises `NotArrow` or `SchemaMismatch` if the call names no known input or has no rows.
    """
    if rows is None and not (isinstance(name, str) and name in known):
        if not (named := map_rows_to_inputs(name, known)):
            raise NotArrow(call, "there are no rows for any input", f"write {call}({{name: rows}}, ...)")
        return named
    if rows is None or not isinstance(name, str):
        found = "there are no rows" if rows is None else f"a {type(name).__name__} is not the name of an input"
        raise NotArrow(
            call,
            found,
            ErrorText(f"write {call}(name, rows, ...), or {call}(rows, ", Option("time"), "...) for the only input"),
        )
    if name not in known:
        raise make_unknown_input_error(name, known)
    return {name: rows}


def make_unknown_input_error(name: Any, known: Iterable[str]) -> SchemaMismatch:
    """Make the error for an input name that does not exist."""
    return SchemaMismatch(
        f"rows for {name!r}", "there is no such input", did_you_mean(name, known, "inputs"), input=name
    )


def compute_lateness_frontier(admissions: Mapping[str, InputValidator], inflows: Mapping[str, IngestedRows]) -> int:
    """Return the frontier that follows from the option ``lateness=`` of the inputs.

    Each input has a limit: the greatest time of its events so far, minus its lateness. The frontier is the smallest
    limit of all inputs, or `NEVER` if any input has no lateness.
    """
    to = CLOSED
    for name, admission in admissions.items():
        if admission.bound.spec.lateness is None:
            return NEVER
        seen = max(admission.greatest, inflows[name].greatest if name in inflows else NEVER)
        to = min(to, NEVER if seen == NEVER else max(seen - admission.bound.spec.lateness, NEVER))
    return to


def split_rows(given: Any, admission: InputValidator, most: int) -> Iterator[pa.Table]:
    """Split an input's rows into tables of at most ``most`` bytes.

    The function yields at least one table, even for no rows, so that the columns are always checked. A
    `RecordBatchReader` is read batch by batch. Raises the errors of `to_arrow_rows`. Raises `BudgetExceeded` if a row
    has more than ``most`` bytes.
    """
    what, schema = admission.what, admission.given
    given = to_arrow_rows(given, what, schema, admission.bound.guessed)
    if not isinstance(given, pa.RecordBatchReader):
        yield from _split_table(to_table(given, what, schema), what, most)
        return
    batches: list[pa.RecordBatch] = []
    size, none = 0, True
    for batch in given:
        batches.append(batch)
        size += compute_decoded_size(batch)
        if size >= most:
            yield from _split_table(pa.Table.from_batches(batches, given.schema), what, most)
            batches, size, none = [], 0, False
    if batches or none:
        yield from _split_table(pa.Table.from_batches(batches, given.schema), what, most)


def _split_table(table: pa.Table, what: str, most: int) -> Iterator[pa.Table]:
    size = compute_decoded_size(table)
    if size <= most:
        yield table
        return
    if table.num_rows == 1:
        found = f"one row takes {format_size(size)}, but the budget leaves {format_size(most)} for a row"
        raise BudgetExceeded(
            f"rows for {what}", found, ErrorText("pass a larger ", Option("memory"), "; nothing was ingested")
        )
    rows = max(min(table.num_rows * most // size, table.num_rows // 2), 1)
    for begin in range(0, table.num_rows, rows):
        yield from _split_table(table.slice(begin, rows), what, most)


def add_to_counts(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """Add each count of ``more`` to the count of the same name in ``counts``."""
    for name, n in more.items():
        counts[name] = counts.get(name, 0) + n
